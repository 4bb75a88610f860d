/* What the machine can do, measured; and what the plan predicts. */
#include "engine.h"
#include "json.h"
#include "run/measure.h"

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
    st_engine_lock(engine);
    const st_load_device *host = &engine->backends.devices[ST_HOST];
    strata_status status = host->backend->probe(host->device, &rates, error);
    if (status == STRATA_OK && operations)
        status = st_measure_ops(host->backend, host->device, add_measure, rows, error);
    st_engine_unlock(engine);
    if (status != STRATA_OK) {
        json_decref(rows);
        return status;
    }
    json_t *root = json_pack("{s:f, s:f, s:o}", "read_bytes_per_s", rates.read_bytes, "int8_ops_per_s", rates.int8_ops,
                             "operations", rows);
    return st_json_give(root, 0, "the measurement", json, error);
}

static double prompt_seconds(const strata_engine *engine, uint32_t count)
{
    if (count == 0) return 0;
    double tps = st_plan_predict(&engine->source, engine->plan, 0, count, -1).prefill_tps;
    return tps > 0 ? count / tps : 0;
}

/* Of the experts that were chosen while decoding, the share that was in a slot; negative: none were chosen. */
static double counted_hit_rate(const strata_engine *engine)
{
    const st_stats *stats = engine->watch.stats;
    if (!stats) return -1;
    st_engine_lock(engine);
    double hits = (double)st_stats_total(stats, true, ST_STAT_HITS);
    double misses = (double)st_stats_total(stats, true, ST_STAT_MISSES);
    st_engine_unlock(engine);
    return hits + misses > 0 ? hits / (hits + misses) : -1;
}

void strata_engine_predict(const strata_engine *engine, uint32_t depth, uint32_t count, double *decode, double *prompt)
{
    double seconds = prompt_seconds(engine, depth + count) - prompt_seconds(engine, depth);
    *decode = st_plan_predict(&engine->source, engine->plan, depth, 1, counted_hit_rate(engine)).decode_tps;
    *prompt = seconds > 0 ? count / seconds : 0;
}

double strata_engine_predict_together(const strata_engine *engine, uint32_t depth, uint32_t conversations)
{
    return st_plan_together_tps(&engine->source, engine->plan, depth, conversations, counted_hit_rate(engine));
}
