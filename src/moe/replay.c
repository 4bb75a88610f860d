#include "moe/replay.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "moe/cache.h"

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static void count_event(const st_trace *trace, const st_replay_rates *rates, const st_trace_event *event, uint32_t hits,
                        uint32_t uploads, st_replay_result *result)
{
    if (!event->decode) return;
    double bytes = (double)trace->shape.expert_bytes[event->layer];
    uint32_t misses = event->count - hits;
    result->events++;
    result->hits += hits;
    result->misses += misses;
    result->uploads += uploads;
    result->seconds += fmax(hits * bytes / rates->card, misses * bytes / rates->host) + rates->handover_seconds;
}

static double trunk_seconds(const st_trace *trace, const st_replay_rates *rates)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < trace->shape.layers; i++) bytes += (double)trace->shape.dense_bytes[i];
    return bytes / rates->card;
}

/* ---- a cache ----------------------------------------------------------------------------------------------------- */

static strata_status open_cache(const st_trace *trace, const st_replay_options *o, st_cache **out, strata_error *error)
{
    const st_trace_shape *shape = &trace->shape;
    uint32_t layers = shape->layers, *sizes = st_alloc_array((size_t)layers * 2, sizeof *sizes);
    if (!sizes) return st_error_memory(error, (size_t)layers * 2 * sizeof *sizes, "the replay");
    for (uint32_t i = 0; i < layers; i++) {
        sizes[i] = shape->experts;
        sizes[layers + i] = o->slots;
    }
    st_cache_options options = {.layers = layers, .experts = sizes, .slots = sizes + layers, .used = shape->used,
                                .policy = o->policy, .admission = o->admission, .budget = o->budget,
                                .upload_cost = o->upload_cost};
    strata_status status = st_cache_new(&options, out, error);
    st_free(sizes);
    return status;
}

static void replay_once(const st_trace *trace, const st_replay_options *options, st_cache *cache,
                        st_replay_result *result)
{
    for (size_t i = 0; i < trace->event_count; i++) {
        const st_trace_event *event = &trace->events[i];
        st_cache_demand demand = {.layer = event->layer, .count = event->count,
                                  .experts = trace->experts + event->first, .weights = trace->weights + event->first};
        st_cache_answer answer;
        st_cache_ask(cache, &demand, &answer);
        for (uint32_t u = 0; u < answer.upload_count; u++) st_cache_filled(cache, event->layer, answer.uploads[u].slot);
        count_event(trace, &options->rates, event, answer.hits, answer.upload_count, result);
    }
}

static strata_status replay_cache(const st_trace *trace, const st_replay_options *options, st_replay_result *result,
                                  strata_error *error)
{
    st_cache *cache = NULL;
    strata_status status = open_cache(trace, options, &cache, error);
    for (uint32_t i = 0; status == STRATA_OK && i < options->before; i++) {
        st_replay_result earlier = {0};
        replay_once(trace, options, cache, &earlier);
    }
    if (status == STRATA_OK) replay_once(trace, options, cache, result);
    st_cache_free(cache);
    return status;
}

/* ---- the optimum ------------------------------------------------------------------------------------------------- */

static const size_t NEVER = SIZE_MAX;

typedef struct oracle {
    size_t *next;      /* [rows]: the next event that uses the row's expert; NEVER */
    size_t *use;       /* [layers × experts]: the next event that uses the expert; NEVER */
    bool *resident;    /* [layers × experts] */
    uint32_t *held;    /* [layers × slots]: the residents */
    uint32_t *count;   /* [layers] */
} oracle;

static void free_oracle(oracle *o)
{
    st_free(o->next);
    st_free(o->use);
    st_free(o->resident);
    st_free(o->held);
    st_free(o->count);
}

static strata_status make_oracle(const st_trace *trace, uint32_t slots, oracle *o, strata_error *error)
{
    size_t cells = (size_t)trace->shape.layers * trace->shape.experts; /* at most 2²⁸ */
    o->next = st_alloc_array(trace->row_count, sizeof *o->next);
    o->use = st_alloc_array(cells, sizeof *o->use);
    o->resident = st_alloc_zero(cells, sizeof *o->resident);
    o->held = st_alloc_array((size_t)trace->shape.layers * slots, sizeof *o->held);
    o->count = st_alloc_zero(trace->shape.layers, sizeof *o->count);
    if (!o->next || !o->use || !o->resident || !o->held || !o->count)
        return st_error_memory(error, cells * sizeof *o->use, "the optimum");
    for (size_t i = 0; i < cells; i++) o->use[i] = NEVER;
    for (size_t i = trace->event_count; i-- > 0;) {
        const st_trace_event *event = &trace->events[i];
        for (size_t r = event->first; r < event->first + event->count; r++) {
            size_t *use = &o->use[(size_t)event->layer * trace->shape.experts + trace->experts[r]];
            o->next[r] = *use;
            *use = i;
        }
    }
    return STRATA_OK;
}

/* Admits an expert if it is used sooner than a resident one; returns whether it did. */
static bool admit(oracle *o, const st_trace_shape *shape, uint32_t slots, uint32_t layer, uint32_t expert)
{
    size_t base = (size_t)layer * shape->experts;
    uint32_t *held = o->held + (size_t)layer * slots, latest = 0;
    if (o->use[base + expert] == NEVER || slots == 0) return false;
    if (o->count[layer] < slots) latest = o->count[layer]++;
    else {
        for (uint32_t i = 1; i < slots; i++)
            if (o->use[base + held[i]] > o->use[base + held[latest]]) latest = i;
        if (o->use[base + held[latest]] <= o->use[base + expert]) return false;
        o->resident[base + held[latest]] = false;
    }
    held[latest] = expert;
    o->resident[base + expert] = true;
    return true;
}

static strata_status replay_optimum(const st_trace *trace, const st_replay_options *options, st_replay_result *result,
                                    strata_error *error)
{
    oracle o = {0};
    strata_status status = make_oracle(trace, options->slots, &o, error);
    for (size_t i = 0; status == STRATA_OK && i < trace->event_count; i++) {
        const st_trace_event *event = &trace->events[i];
        size_t base = (size_t)event->layer * trace->shape.experts, end = event->first + event->count;
        uint32_t hits = 0, uploads = 0;
        for (size_t r = event->first; r < end; r++) {
            hits += o.resident[base + trace->experts[r]];
            o.use[base + trace->experts[r]] = o.next[r];
        }
        for (size_t r = event->first; r < end; r++)
            if (!o.resident[base + trace->experts[r]])
                uploads += admit(&o, &trace->shape, options->slots, event->layer, trace->experts[r]);
        count_event(trace, &options->rates, event, hits, uploads, result);
    }
    free_oracle(&o);
    return status;
}

strata_status st_replay(const st_trace *trace, const st_replay_options *options, st_replay_result *out,
                        strata_error *error)
{
    const st_replay_rates *rates = &options->rates;
    if (options->slots > trace->shape.experts)
        return st_error_set(error, STRATA_USAGE, NULL, "replay: expected at most %" PRIu32 " slots, found %" PRIu32,
                            trace->shape.experts, options->slots);
    if (!(rates->card > 0.0) || !(rates->host > 0.0))
        return st_error_set(error, STRATA_USAGE, NULL, "replay: expected rates above 0, found %g and %g", rates->card,
                            rates->host);
    bool optimum = options->policy && strcmp(options->policy, ST_REPLAY_OPTIMUM) == 0;
    st_replay_result result = {.seconds = (double)trace->decode_tokens * trunk_seconds(trace, rates)};
    strata_status status = optimum ? replay_optimum(trace, options, &result, error)
                                   : replay_cache(trace, options, &result, error);
    if (status == STRATA_OK) *out = result;
    return status;
}
