/* Loading: file → description → binding → program → plan → devices → weights at hand. */
#include "engine.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "plan/explain.h"
#include "run/measure.h"

static strata_status describe_model(strata_engine *engine, strata_error *error)
{
    const st_gguf *gguf = st_model_gguf(engine->model);
    strata_status status = st_desc_build(gguf, &engine->arena, &engine->desc, error);
    if (status == STRATA_OK) status = st_binding_build(engine->desc, gguf, &engine->arena, &engine->binding, error);
    if (status == STRATA_OK)
        status = st_program_build(engine->desc, engine->binding, &engine->arena, &engine->program, error);
    return status;
}

/* The real devices are the CPU alone so far: a card is planned for, or simulated. */
static strata_status refuse_absent_card(const strata_engine *engine, strata_error *error)
{
    if (engine->placement.device_count < 2 || engine->placement.sim) return STRATA_OK;
    return st_error_set(error, STRATA_UNSUPPORTED, "use strata plan to see what it would do, --device sim to simulate it, or "
                        "--device cpu", "the card %s is not here", engine->placement.devices[ST_CARD].name);
}

static strata_status make_plan(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    uint32_t threads = options->threads ? options->threads : st_cores_here();
    strata_status status = st_placement_of(options, threads, &engine->placement, error);
    if (status == STRATA_OK) status = refuse_absent_card(engine, error);
    if (status != STRATA_OK) return status;
    engine->source = (st_plan_source){.desc = engine->desc, .binding = engine->binding, .program = engine->program,
                                      .devices = engine->placement.devices,
                                      .device_count = engine->placement.device_count};
    return st_plan_build(&engine->source, &engine->placement.options, &engine->arena, &engine->plan, error);
}

static strata_status open_devices(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    st_device_options device = {.cpu = options->cpu, .threads = options->threads, .profile = options->profile};
    engine->devices[ST_HOST].backend = st_backend_cpu();
    strata_status status = STRATA_OK;
    if (engine->placement.sim) {
        st_sim_options sim = {.host = engine->placement.devices[ST_HOST], .card = engine->placement.devices[ST_CARD],
                              .program = engine->program, .binding = engine->binding};
        status = st_sim_world_new(&sim, &engine->world, error);
        device.world = engine->world;
        engine->devices[ST_HOST].backend = st_backend_sim_host();
        engine->devices[ST_CARD].backend = st_backend_sim_card();
    }
    for (uint32_t d = 0; d < engine->plan->device_count && status == STRATA_OK; d++)
        status = engine->devices[d].backend->open(&device, &engine->devices[d].device, error);
    return status;
}

/* Bytes of the layer's weights, but for routed experts; or of one of those. */
static void count_layer_bytes(const strata_engine *engine, uint32_t layer, uint64_t *expert, uint64_t *dense)
{
    for (uint32_t i = 0; i < engine->binding->count; i++) {
        const st_weight *w = &engine->binding->weights[i];
        if (w->layer != (int32_t)layer) continue;
        if (st_role_is_expert(w->role)) *expert += w->bytes / w->ne[2];
        else *dense += w->bytes;
    }
}

static strata_status open_trace(strata_engine *engine, const char *path, const uint32_t *experts, uint32_t layers,
                                strata_error *error)
{
    st_trace_shape shape = {.layers = layers};
    shape.expert_bytes = st_arena_alloc(&engine->arena, layers, sizeof *shape.expert_bytes);
    shape.dense_bytes = st_arena_alloc(&engine->arena, layers, sizeof *shape.dense_bytes);
    if (!shape.expert_bytes || !shape.dense_bytes) return st_error_memory(error, layers * sizeof(uint64_t), "the routing's record");
    snprintf(shape.model, sizeof shape.model, "%s", st_gguf_path(st_model_gguf(engine->model)));
    snprintf(shape.arch, sizeof shape.arch, "%s", engine->desc->arch->name);
    for (uint32_t i = 0; i < layers; i++) {
        count_layer_bytes(engine, i, &shape.expert_bytes[i], &shape.dense_bytes[i]);
        if (experts[i] > shape.experts) shape.experts = experts[i];
        if (engine->desc->layers[i].ffn.experts_used > shape.used) shape.used = engine->desc->layers[i].ffn.experts_used;
    }
    return st_trace_writer_open(path, &shape, &engine->watch.trace, error);
}

static strata_status open_watch(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    uint32_t layers = engine->desc->layer_count + engine->desc->nextn_count, most = 0;
    uint32_t *experts = st_arena_alloc(&engine->arena, layers, sizeof *experts);
    if (!experts) return st_error_memory(error, layers * sizeof *experts, "the experts' statistics");
    for (uint32_t i = 0; i < layers; i++) {
        experts[i] = engine->desc->layers[i].ffn.experts;
        if (experts[i] > most) most = experts[i];
    }
    if (most == 0)
        return options->record_routing ? st_error_set(error, STRATA_USAGE, NULL, "the model has no routed experts to record")
                                       : STRATA_OK;
    engine->watch.experts_max = most;
    engine->watch.seen = st_arena_alloc(&engine->arena, most, sizeof *engine->watch.seen);
    engine->watch.distinct = st_arena_alloc(&engine->arena, most, sizeof *engine->watch.distinct);
    if (!engine->watch.seen || !engine->watch.distinct) return st_error_memory(error, most * 8, "the experts' statistics");
    strata_status status = st_stats_new(layers, experts, &engine->watch.stats, error);
    if (status == STRATA_OK && options->record_routing)
        status = open_trace(engine, options->record_routing, experts, layers, error);
    return status;
}

static strata_status parse_prefetch(const char *text, unsigned *out, strata_error *error)
{
    static const struct { const char *name; unsigned flags; } rows[] = {
        {"off", 0}, {"same", ST_PREFETCH_SAME}, {"next", ST_PREFETCH_NEXT}, {"both", ST_PREFETCH_SAME | ST_PREFETCH_NEXT}};
    for (size_t i = 0; text && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(text, rows[i].name) == 0) {
            *out = rows[i].flags;
            return STRATA_OK;
        }
    return text ? st_error_set(error, STRATA_USAGE, NULL, "--prefetch: expected off, same, next or both, found %s", text) : STRATA_OK;
}

static strata_status land(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    const strata_placement *placement = options->placement;
    st_load_options landing = {.progress = options->progress, .trace = options->trace_memory,
                               .context = options->progress_context, .experts.budget = -1};
    strata_status status = STRATA_OK;
    if (placement) {
        landing.experts.policy = placement->expert_policy;
        landing.experts.deterministic = placement->deterministic;
        status = parse_prefetch(placement->prefetch, &landing.experts.prefetch, error);
        if (status == STRATA_OK && placement->expert_profile) status = st_trace_read(placement->expert_profile, &engine->warm, error);
        landing.experts.warm = engine->warm;
    }
    if (status == STRATA_OK && (options->expert_stats || options->record_routing)) status = open_watch(engine, options, error);
    if (status != STRATA_OK) return status;
    if (engine->watch.stats) landing.watch = &engine->watch;
    return st_load_new(&engine->source, engine->plan, engine->devices, &landing, &engine->load, error);
}

static strata_status load(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    strata_status status = describe_model(engine, error);
    if (status == STRATA_OK && options->nextn && engine->desc->nextn_count == 0)
        return st_error_set(error, STRATA_USAGE, NULL, "%s: the model has no NextN block",
                            st_gguf_path(st_model_gguf(engine->model)));
    if (status == STRATA_OK) status = make_plan(engine, options, error);
    if (status == STRATA_OK) status = open_devices(engine, options, error);
    return status == STRATA_OK ? land(engine, options, error) : status;
}

strata_status strata_engine_new(const strata_model *model, const strata_engine_options *options, strata_engine **out,
                                strata_error *error)
{
    static const strata_engine_options defaults = {0};
    strata_engine *engine = st_alloc_zero(1, sizeof *engine);
    if (!engine) return st_error_memory(error, sizeof *engine, "the engine");
    engine->model = model;
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
    st_load_free(engine->load);
    strata_error unwritten;
    if (st_trace_writer_close(engine->watch.trace, &unwritten) != STRATA_OK) st_log(ST_LOG_WARN, "%s", unwritten.message);
    st_stats_free(engine->watch.stats);
    st_trace_free(engine->warm);
    for (uint32_t d = ST_DEVICES_MAX; d-- > 0;)
        if (engine->devices[d].device) engine->devices[d].backend->close(engine->devices[d].device);
    st_sim_world_free(engine->world);
    pthread_mutex_destroy(&engine->turn);
    st_arena_free(&engine->arena);
    st_free(engine);
}

uint32_t strata_engine_context(const strata_engine *engine)
{
    return engine->plan->context;
}

/* Virtual time goes on while another session runs. */
double strata_engine_clock(const strata_engine *engine)
{
    if (!engine->world) return st_clock_seconds();
    pthread_mutex_t *turn = (pthread_mutex_t *)(uintptr_t)&engine->turn;
    pthread_mutex_lock(turn);
    double seconds = st_sim_world_seconds(engine->world);
    pthread_mutex_unlock(turn);
    return seconds;
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
        uint32_t kv_layer = op->p.attention.kv_layer;
        const st_kv_layer *layer = &engine->plan->sequence[engine->plan->kv_device[kv_layer]].kv->layers[kv_layer];
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
    engine->devices[ST_HOST].backend->times(engine->devices[ST_HOST].device, times);
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

static json_int_t owned(const strata_engine *engine, st_owner owner)
{
    uint64_t bytes = 0;
    for (uint32_t d = 0; d < engine->plan->device_count; d++) bytes += engine->plan->devices[d].owners[owner];
    return (json_int_t)bytes;
}

static json_t *memory_facts(const strata_engine *engine)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "weight_bytes",
                     (json_int_t)st_gguf_tensor_bytes(st_model_gguf(engine->model)), "kv_bytes", owned(engine, ST_OWNER_KV),
                     "state_bytes", owned(engine, ST_OWNER_STATE), "snapshot_bytes", owned(engine, ST_OWNER_SNAPSHOTS),
                     "scratch_bytes", owned(engine, ST_OWNER_SCRATCH));
}

/* As numbers, and as a table for people. */
static bool add_expert_stats(const strata_engine *engine, json_t *root)
{
    st_buf table = {0};
    bool whole = st_stats_print(engine->watch.stats, &table) &&
                 json_object_set_new(root, "expert_stats", st_stats_json(engine->watch.stats)) == 0 &&
                 json_object_set_new(root, "expert_table", json_stringn(table.data, table.length)) == 0;
    st_buf_free(&table);
    return whole;
}

strata_status strata_engine_describe(const strata_engine *engine, char **json, strata_error *error)
{
    const st_load_device *host = &engine->devices[ST_HOST];
    const st_plan *plan = engine->plan;
    st_device_info info;
    host->backend->info(host->device, &info);
    json_t *memory = memory_facts(engine), *cost = cost_facts(engine);
    json_t *root = json_pack("{s:s, s:s, s:i, s:I, s:I, s:s}", "backend", host->backend->name, "kernels", info.name,
                             "threads", (int)info.workers, "context", (json_int_t)plan->context, "batch",
                             (json_int_t)plan->batch, "kv_type", st_type_find(plan->kv_type)->name);
    bool whole = json_object_update(root, memory) == 0 && json_object_update(root, cost) == 0 &&
                 json_object_set_new(root, "profile", profile_rows(engine)) == 0 &&
                 json_object_set_new(root, "plan", st_plan_json(&engine->source, plan)) == 0;
    if (whole && engine->watch.stats) whole = add_expert_stats(engine, root);
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
    const st_load_device *host = &engine->devices[ST_HOST];
    strata_status status = host->backend->probe(host->device, &rates, error);
    if (status == STRATA_OK && operations) status = st_measure_ops(host->backend, host->device, add_measure, rows, error);
    pthread_mutex_unlock(&engine->turn);
    if (status != STRATA_OK) {
        json_decref(rows);
        return status;
    }
    json_t *root = json_pack("{s:f, s:f, s:o}", "read_bytes_per_s", rates.read_bytes, "int8_ops_per_s", rates.int8_ops,
                             "operations", rows);
    return give_json(root, json, error);
}

static double prompt_seconds(const strata_engine *engine, uint32_t count)
{
    if (count == 0) return 0;
    double tps = st_plan_predict(&engine->source, engine->plan, 0, count, -1).prefill_tps;
    return tps > 0 ? count / tps : 0;
}

void strata_engine_predict(const strata_engine *engine, uint32_t depth, uint32_t count, double *decode, double *prompt)
{
    double seconds = prompt_seconds(engine, depth + count) - prompt_seconds(engine, depth);
    *decode = st_plan_predict(&engine->source, engine->plan, depth, 1, -1).decode_tps;
    *prompt = seconds > 0 ? count / seconds : 0;
}
