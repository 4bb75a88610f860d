#include "moe/curve.h"

#include "moe/stream.h"

strata_status st_curve_new(const st_trace *trace, const char *policy, st_curve *out, strata_error *error)
{
    const uint32_t experts = trace->shape.experts, last = ST_CURVE_POINTS - 1;
    /* The rates do not change hits; the replay wants some. */
    st_replay_options options = {.policy = policy, .budget = -1.0, .upload_cost = ST_UPLOAD_COST, .before = 1,
                                 .rates = {.card = 1, .host = 1}};
    out->points[0] = (st_hit_point){0};
    out->points[last] = (st_hit_point){.share = 1, .rate = 1};
    for (uint32_t i = 1; i < last; i++) {
        st_replay_result result;
        options.slots = (uint32_t)((uint64_t)experts * i / last);
        strata_status status = st_replay(trace, &options, &result, error);
        if (status != STRATA_OK) return status;
        double asked = (double)(result.hits + result.misses), events = (double)result.events;
        out->points[i] = (st_hit_point){.share = (double)options.slots / experts,
                                        .rate = asked > 0 ? (double)result.hits / asked : 0,
                                        .uploads = events > 0 ? (double)result.uploads / events : 0};
    }
    out->hits = (st_hit_curve){.points = out->points, .count = ST_CURVE_POINTS};
    return STRATA_OK;
}
