/* The cost model: what a scheduled plan takes on its devices. st_plan_predict (plan.h) is all of it at once. Pure; knows
 * rates and bytes, no address. */
#ifndef ST_PLAN_COST_H
#define ST_PLAN_COST_H

#include "plan/plan.h"

typedef struct st_predictor st_predictor;

/* Prices a decoded token behind `depth` positions (fewer where the context is shorter). Lives in `arena`; the source's
 * parts and the plan must outlive it. */
strata_status st_predictor_build(const st_plan_source *source, const st_plan *plan, uint32_t depth, st_arena *arena,
                                 st_predictor **out, strata_error *error);

/* Seconds of a decoded token; with another hit rate if it is not negative. `limit` (may be NULL): what most of the time
 * is spent on, as text. Both calls use the predictor's memory: one at a time. */
double st_predictor_decode(const st_predictor *predictor, double hit_rate, const char **limit);

/* Seconds of a prompt of `tokens` in batches of the plan's size, up to the logits of its last row. */
double st_predictor_prefill(const st_predictor *predictor, uint32_t tokens);

#endif
