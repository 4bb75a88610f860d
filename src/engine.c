/* Loading: file → description → binding → program → layout → device → weights at hand. */
#include "engine.h"

#include <jansson.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "run/measure.h"

enum { CONTEXT_DEFAULT_MAX = 8192, BATCH_DEFAULT = 512, BATCH_MAX = 1 << 16, SNAPSHOTS = 4 };

static strata_status parse_kv_type(const char *name, const st_desc *desc, st_type *out, strata_error *error)
{
    static const struct { const char *name; st_type type; } types[] = {
        {"f32", ST_TYPE_F32}, {"bf16", ST_TYPE_BF16}, {"q8_0", ST_TYPE_Q8_0}};
    if (!name) {
        *out = st_kv_default_type(desc);
        return STRATA_OK;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0) {
            *out = types[i].type;
            return STRATA_OK;
        }
    return st_error_set(error, STRATA_USAGE, NULL, "--kv-type: expected f32, bf16 or q8_0, found %s", name);
}

static strata_status describe_model(strata_engine *engine, strata_error *error)
{
    const st_gguf *gguf = st_model_gguf(engine->model);
    strata_status status = st_desc_build(gguf, &engine->arena, &engine->desc, error);
    if (status == STRATA_OK) status = st_binding_build(engine->desc, gguf, &engine->arena, &engine->binding, error);
    if (status == STRATA_OK)
        status = st_program_build(engine->desc, engine->binding, &engine->arena, &engine->program, error);
    return status;
}

static strata_status choose_sizes(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    const st_desc *desc = engine->desc;
    st_kv_options kv = {.snapshots = desc->recurrent ? SNAPSHOTS : 0};
    strata_status status = parse_kv_type(options->kv_type, desc, &kv.type, error);
    if (status != STRATA_OK) return status;
    kv.context = options->context ? options->context : CONTEXT_DEFAULT_MAX;
    if (kv.context > desc->context_max) kv.context = desc->context_max;
    engine->batch = options->batch ? options->batch : BATCH_DEFAULT;
    if (engine->batch > BATCH_MAX)
        return st_error_set(error, STRATA_USAGE, NULL, "batch: expected at most %d, found %u", BATCH_MAX, engine->batch);
    if (engine->batch > kv.context) engine->batch = kv.context;
    kv.batch = engine->batch;
    engine->nextn = options->nextn;
    if (engine->nextn && desc->nextn_count == 0)
        return st_error_set(error, STRATA_USAGE, NULL, "%s: the model has no NextN block",
                            st_gguf_path(st_model_gguf(engine->model)));
    return st_kv_layout_build(desc, &kv, &engine->arena, &engine->layout, error);
}

/* Brings every weight into memory, in the file's order, with the bytes done so far. */
static strata_status fetch_weights(const strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    const st_gguf *gguf = st_model_gguf(engine->model);
    uint64_t done = 0, total = st_gguf_tensor_bytes(gguf);
    st_device_info info;
    engine->backend->info(engine->device, &info);
    bool fits = total < info.total_bytes / 2; /* more than that is better read when it is needed */
    for (size_t i = 0; i < st_gguf_tensor_count(gguf); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(gguf, i);
        if (fits) st_file_populate(tensor->data, tensor->bytes);
        done += tensor->bytes;
        if (options->progress && !options->progress(options->progress_context, done, total))
            return st_error_set(error, STRATA_INTERRUPTED, NULL, "loading was stopped");
    }
    return STRATA_OK;
}

static strata_status load(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    strata_status status = describe_model(engine, error);
    if (status == STRATA_OK) status = choose_sizes(engine, options, error);
    if (status != STRATA_OK) return status;
    st_device_options device = {.cpu = options->cpu, .threads = options->threads, .profile = options->profile};
    status = engine->backend->open(&device, &engine->device, error);
    return status == STRATA_OK ? fetch_weights(engine, options, error) : status;
}

strata_status strata_engine_new(const strata_model *model, const strata_engine_options *options, strata_engine **out,
                                strata_error *error)
{
    static const strata_engine_options defaults = {0};
    strata_engine *engine = st_alloc_zero(1, sizeof *engine);
    if (!engine) return st_error_memory(error, sizeof *engine, "the engine");
    engine->model = model;
    engine->backend = st_backend_cpu();
    pthread_mutex_init(&engine->turn, NULL);
    strata_status status = load(engine, options ? options : &defaults, error);
    if (status != STRATA_OK) {
        strata_engine_free(engine);
        return status;
    }
    *out = engine;
    return STRATA_OK;
}

void strata_engine_free(strata_engine *engine)
{
    if (!engine) return;
    if (engine->device) engine->backend->close(engine->device);
    pthread_mutex_destroy(&engine->turn);
    st_arena_free(&engine->arena);
    st_free(engine);
}

uint32_t strata_engine_context(const strata_engine *engine)
{
    return engine->layout->options.context;
}

/* What a range of operations costs one token: the weights it reads, and its multiplications and additions. */
static st_op_cost cost_per_token(const strata_engine *engine, st_op_range range)
{
    st_op_cost sum = {0};
    for (uint32_t i = 0; i < range.count; i++) {
        const st_op *op = &engine->program->ops[range.first + i];
        st_op_cost cost = st_op_estimate(engine->program, engine->binding, op, 1, 0);
        sum.weight_bytes += cost.weight_bytes;
        sum.flops += cost.flops;
    }
    return sum;
}

static uint32_t attention_span(const st_op *op)
{
    return op->p.attention.window ? op->p.attention.window : op->p.attention.chunk;
}

/* The row of that reach; a new one if there is none yet. */
static json_t *kv_read_row(json_t *rows, json_int_t span)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        if (json_integer_value(json_object_get(row, "span")) == span) return row;
    }
    json_t *row = json_pack("{s:I, s:I}", "span", span, "bytes_per_position", (json_int_t)0);
    return json_array_append_new(rows, row) == 0 ? row : NULL;
}

/* What a token reads of keys and values for each position that it looks back at, by how far back that is at most. */
static json_t *kv_read_rows(const strata_engine *engine)
{
    const st_program *program = engine->program;
    json_t *rows = json_array();
    for (uint32_t i = 0; i < program->main.body.count; i++) {
        const st_op *op = &program->ops[program->main.body.first + i];
        if (op->kind != ST_OP_ATTENTION) continue;
        const st_kv_layer *layer = &engine->layout->layers[op->p.attention.kv_layer];
        json_t *sum = json_object_get(kv_read_row(rows, attention_span(op)), "bytes_per_position");
        size_t bytes = layer->key_row_bytes + layer->value_row_bytes;
        if (json_integer_set(sum, json_integer_value(sum) + (json_int_t)bytes) != 0) {
            json_decref(rows);
            return NULL;
        }
    }
    return rows;
}

/* The kinds of operation that took time, with how often and how long; empty unless the engine was made to profile. */
static json_t *profile_rows(const strata_engine *engine)
{
    st_op_time times[ST_OP_COUNT];
    engine->backend->times(engine->device, times);
    json_t *rows = json_array();
    for (int i = 0; i < ST_OP_COUNT; i++)
        if (times[i].calls && json_array_append_new(rows, json_pack("{s:s, s:I, s:f}", "op", st_op_name((st_op_kind)i), "calls",
                                                                    (json_int_t)times[i].calls, "seconds", times[i].seconds)))
            break;
    return rows;
}

/* Hands a JSON value over as text, and lets go of it. */
static strata_status give_json(json_t *root, char **json, strata_error *error)
{
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text) return st_error_memory(error, 4096, "the engine's description");
    *json = text;
    return STRATA_OK;
}

static json_t *cost_facts(const strata_engine *engine)
{
    const st_part *part = &engine->program->main;
    st_op_cost body = cost_per_token(engine, part->body), head = cost_per_token(engine, part->head);
    return json_pack("{s:f, s:f, s:f, s:o}", "bytes_per_token", body.weight_bytes + head.weight_bytes, "ops_per_token",
                     body.flops + head.flops, "prompt_ops_per_token", body.flops, "kv_reads", kv_read_rows(engine));
}

static json_t *memory_facts(const strata_engine *engine)
{
    const st_kv_layout *layout = engine->layout;
    st_run_source source = st_engine_source(engine);
    st_run_options options = st_engine_run_options(engine);
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "weight_bytes",
                     (json_int_t)st_gguf_tensor_bytes(st_model_gguf(engine->model)), "kv_bytes",
                     (json_int_t)layout->cache_bytes, "state_bytes", (json_int_t)layout->state_bytes, "snapshot_bytes",
                     (json_int_t)layout->snapshot_bytes, "scratch_bytes", (json_int_t)st_run_price(&source, &options));
}

strata_status strata_engine_describe(const strata_engine *engine, char **json, strata_error *error)
{
    st_device_info info;
    engine->backend->info(engine->device, &info);
    json_t *memory = memory_facts(engine), *cost = cost_facts(engine);
    json_t *root = json_pack("{s:s, s:s, s:i, s:I, s:I, s:s}", "backend", engine->backend->name, "kernels", info.name,
                             "threads", (int)info.workers, "context", (json_int_t)engine->layout->options.context, "batch",
                             (json_int_t)engine->batch, "kv_type", st_type_find(engine->layout->options.type)->name);
    bool whole = json_object_update(root, memory) == 0 && json_object_update(root, cost) == 0 &&
                 json_object_set_new(root, "profile", profile_rows(engine)) == 0;
    json_decref(memory);
    json_decref(cost);
    if (!whole) {
        json_decref(root);
        root = NULL;
    }
    return give_json(root, json, error);
}

static bool add_measure(void *context, const st_op_measure *row)
{
    json_t *entry = json_pack("{s:s, s:s, s:i, s:f, s:f, s:f}", "op", st_op_name(row->kind), "type", row->type, "rows",
                              (int)row->rows, "seconds", row->seconds, "gb_per_s", row->bytes / row->seconds * 1e-9,
                              "gop_per_s", row->ops / row->seconds * 1e-9);
    return json_array_append_new(context, entry) == 0;
}

strata_status strata_engine_measure(strata_engine *engine, bool operations, char **json, strata_error *error)
{
    st_device_rates rates = {0};
    json_t *rows = json_array();
    pthread_mutex_lock(&engine->turn);
    strata_status status = engine->backend->probe(engine->device, &rates, error);
    if (status == STRATA_OK && operations)
        status = st_measure_ops(engine->backend, engine->device, add_measure, rows, error);
    pthread_mutex_unlock(&engine->turn);
    if (status != STRATA_OK) {
        json_decref(rows);
        return status;
    }
    json_t *root = json_pack("{s:f, s:f, s:o}", "read_bytes_per_s", rates.read_bytes, "int8_ops_per_s", rates.int8_ops,
                             "operations", rows);
    return give_json(root, json, error);
}
