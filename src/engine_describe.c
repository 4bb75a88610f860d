/* strata_engine_describe: what an engine runs, what it takes and what it has counted, as JSON (docs/json.md). */
#include "engine.h"
#include "json.h"
#include "plan/explain.h"

/* Weights read, and multiplications and additions, of a range of operations for one token. */
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

/* Finds the row of a span, or adds one. */
static json_t *kv_read_row(json_t *rows, json_int_t span)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        if (json_integer_value(json_object_get(row, "span")) == span) return row;
    }
    json_t *row = json_pack("{s:I, s:I}", "span", span, "bytes_per_position", (json_int_t)0);
    return json_array_append_new(rows, row) == 0 ? row : NULL;
}

/* Bytes of KV cache that a token reads for each earlier position, by the span of the attention. */
static json_t *kv_read_rows(const strata_engine *engine)
{
    const st_program *program = engine->program;
    json_t *rows = json_array();
    for (uint32_t i = 0; i < program->main.body.count; i++) {
        const st_op *op = &program->ops[program->main.body.first + i];
        if (op->kind != ST_OP_ATTENTION) continue;
        uint32_t kv_layer = op->p.attention.kv_layer;
        const st_kv_layer *layer = &engine->plan->memory[engine->plan->kv_device[kv_layer]].kv->layers[kv_layer];
        json_t *sum = json_object_get(kv_read_row(rows, attention_span(op)), "bytes_per_position");
        size_t bytes = layer->key_row_bytes + layer->value_row_bytes;
        if (json_integer_set(sum, json_integer_value(sum) + (json_int_t)bytes) != 0) {
            json_decref(rows);
            return NULL;
        }
    }
    return rows;
}

/* Calls and seconds of each kind of operation on each device; empty unless options.profile is set. */
static json_t *profile_rows(const strata_engine *engine)
{
    json_t *rows = json_array();
    for (uint32_t d = 0; d < engine->plan->device_count; d++) {
        st_op_time times[ST_OP_COUNT];
        engine->backends.devices[d].backend->times(engine->backends.devices[d].device, times);
        for (int i = 0; i < ST_OP_COUNT; i++)
            if (times[i].calls &&
                json_array_append_new(rows, json_pack("{s:s, s:s, s:I, s:f}", "op", st_op_name((st_op_kind)i), "device",
                                                      d == ST_HOST ? "host" : "card", "calls", (json_int_t)times[i].calls,
                                                      "seconds", times[i].seconds)))
                return rows;
    }
    return rows;
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
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "weight_bytes",
                     (json_int_t)st_gguf_tensor_bytes(st_model_gguf(engine->model)), "kv_bytes",
                     owned(engine, ST_OWNER_KV), "state_bytes", owned(engine, ST_OWNER_STATE), "restore_bytes",
                     owned(engine, ST_OWNER_RESTORE), "kv_ram_bytes", owned(engine, ST_OWNER_TIER), "scratch_bytes",
                     owned(engine, ST_OWNER_SCRATCH));
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

/* The counts of prompts and answers together. */
static json_t *expert_counts(const strata_engine *engine)
{
    static const struct {
        const char *name;
        st_stat stat;
    } rows[] = {{"hits", ST_STAT_HITS},       {"misses", ST_STAT_MISSES},           {"fetches", ST_STAT_FETCHES},
                {"uploads", ST_STAT_UPLOADS}, {"fetch_bytes", ST_STAT_FETCH_BYTES}, {"upload_bytes", ST_STAT_UPLOAD_BYTES},
                {"computed", ST_STAT_COMPUTED}, {"cpu_ns", ST_STAT_CPU_NS}, {"wait_ns", ST_STAT_WAIT_NS}};
    json_t *counts = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t sum = st_stats_total(engine->watch.stats, false, rows[i].stat) +
                       st_stats_total(engine->watch.stats, true, rows[i].stat);
        if (json_object_set_new(counts, rows[i].name, json_integer((json_int_t)sum)) != 0) break;
    }
    return counts;
}

/* Pages, slots and restore points in use. */
static json_t *kv_use(const strata_engine *engine)
{
    st_kv_use use = st_kv_count(st_run_kv(engine->run));
    json_t *pools = json_array();
    for (uint32_t i = 0; i < use.pool_count; i++)
        json_array_append_new(pools, json_pack("{s:I, s:I, s:I, s:I}", "pages", (json_int_t)use.pools[i].total, "free",
                                               (json_int_t)use.pools[i].free, "held", (json_int_t)use.pools[i].held,
                                               "cached", (json_int_t)use.pools[i].cached));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "page_tokens", (json_int_t)use.page_tokens,
                     "slots", (json_int_t)use.slots, "slots_taken", (json_int_t)use.slots_taken, "sessions",
                     (json_int_t)use.conversations, "restore_points", (json_int_t)use.points, "restore_bytes_used",
                     (json_int_t)use.restore_bytes, "ram_pages", (json_int_t)use.tier_pages, "ram_pages_used",
                     (json_int_t)use.tier_pages_used, "pools", pools);
}

static json_t *scheduler(const strata_engine *engine)
{
    st_sched_counts c = st_sched_count(engine->sched);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "running", (json_int_t)c.running, "waiting",
                     (json_int_t)c.waiting, "steps", (json_int_t)c.steps, "rows", (json_int_t)c.rows, "answer_rows",
                     (json_int_t)c.answer_rows, "parked", (json_int_t)c.parked, "followed", (json_int_t)c.followed,
                     "longest_wait_seconds", c.longest_wait);
}

/* What a running session changes: read under the lock. */
static bool add_counters(const strata_engine *engine, json_t *root)
{
    st_engine_lock(engine);
    bool whole = json_object_set_new(root, "profile", profile_rows(engine)) == 0 &&
                 json_object_set_new(root, "kv_use", kv_use(engine)) == 0 &&
                 json_object_set_new(root, "scheduler", scheduler(engine)) == 0 &&
                 (!engine->watch.stats || json_object_set_new(root, "experts", expert_counts(engine)) == 0) &&
                 (!engine->watch.stats || !engine->plan->watched || add_expert_stats(engine, root));
    st_engine_unlock(engine);
    return whole;
}

strata_status strata_engine_describe(const strata_engine *engine, char **json, strata_error *error)
{
    const st_load_device *host = &engine->backends.devices[ST_HOST];
    const st_plan *plan = engine->plan;
    st_device_info info;
    host->backend->info(host->device, &info);
    json_t *memory = memory_facts(engine), *cost = cost_facts(engine);
    json_t *root = json_pack("{s:s, s:s, s:i, s:I, s:I, s:s}", "backend", host->backend->name, "kernels", info.name,
                             "threads", (int)info.workers, "context", (json_int_t)plan->context, "batch",
                             (json_int_t)plan->batch, "kv_type", st_type_find(plan->kv_type)->name);
    bool whole = json_object_update(root, memory) == 0 && json_object_update(root, cost) == 0 &&
                 add_counters(engine, root) &&
                 json_object_set_new(root, "plan", st_plan_json(&engine->source, plan)) == 0;
    json_decref(memory);
    json_decref(cost);
    if (!whole) {
        json_decref(root);
        root = NULL;
    }
    return st_json_give(root, 0, "the engine's description", json, error);
}
