/* What the machine can do, measured; and what the plan predicts. */
#include <math.h>

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

static uint64_t counted(const strata_engine *engine, bool decode, st_stat what)
{
    st_engine_lock(engine);
    uint64_t count = st_stats_total(engine->watch.stats, decode, what);
    st_engine_unlock(engine);
    return count;
}

/* Of the experts that the rows of prompts choose on average, the share that was not missed; negative: there was no prompt.
 * A prompt of few rows, such as a first token, counts as little as it uses. */
static double counted_batch_rate(const strata_engine *engine)
{
    if (!engine->watch.stats) return -1;
    double expected = (double)counted(engine, false, ST_STAT_EXPECTED), missed = (double)counted(engine, false, ST_STAT_MISSES);
    return expected > 0 ? fmax(0, 1 - missed / expected) : -1;
}

/* Of the experts that were chosen while decoding, the share that was in a slot; negative: none were chosen. */
static double counted_hit_rate(const strata_engine *engine)
{
    if (!engine->watch.stats) return -1;
    double hits = (double)counted(engine, true, ST_STAT_HITS), misses = (double)counted(engine, true, ST_STAT_MISSES);
    return hits + misses > 0 ? hits / (hits + misses) : -1;
}

/* The plan with the uploads that were counted while decoding. */
static st_plan plan_as_run(const strata_engine *engine)
{
    st_plan plan = *engine->plan;
    double events = engine->watch.stats ? (double)counted(engine, true, ST_STAT_EVENTS) : 0;
    if (events > 0) plan.experts.uploads = (double)counted(engine, true, ST_STAT_UPLOADS) / events;
    return plan;
}

void strata_engine_predict(const strata_engine *engine, uint32_t depth, uint32_t count, double *decode, double *prompt)
{
    double rate = counted_batch_rate(engine), seconds = st_plan_prompt_seconds(&engine->source, engine->plan, depth + count, rate);
    if (depth > 0) seconds -= st_plan_prompt_seconds(&engine->source, engine->plan, depth, rate);
    *decode = strata_engine_predict_together(engine, depth, 1);
    *prompt = seconds > 0 ? count / seconds : 0;
}

double strata_engine_predict_together(const strata_engine *engine, uint32_t depth, uint32_t conversations)
{
    st_plan plan = plan_as_run(engine);
    return st_plan_together_tps(&engine->source, &plan, depth, conversations, counted_hit_rate(engine));
}
