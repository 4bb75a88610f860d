/* The cost model: what a plan's order of work takes on the devices it is for. st_plan_predict (plan.h) is all of it at
 * once; a predictor is for asking again and again about plans that differ in slots and bytes but not in where
 * operations run. Pure; knows rates and bytes, no address. */
#ifndef ST_PLAN_COST_H
#define ST_PLAN_COST_H

#include "plan/plan.h"

typedef struct st_predictor st_predictor;

/* Of the plan it takes op_device, kv_type, context and experts.mode, which hold for it as long as it lives; it decodes
 * behind `depth` positions (fewer where the context has not as many). All of it is in `arena`. */
strata_status st_predictor_build(const st_plan_source *source, const st_plan *plan, uint32_t depth, st_arena *arena,
                                 st_predictor **out, strata_error *error);

/* Seconds of a decoded token. Of the plan it takes the slots, the recorded hit rate and, with on_disk, the host's
 * capacity, margin and owners, which may change between calls. `limit` (may be NULL): what it is spent on most, in
 * words for people. Both calls work in the predictor's memory: one at a time. */
double st_predictor_decode(const st_predictor *predictor, const st_plan *plan, double hit_rate, const char **limit);

/* Seconds of a prompt of `tokens` in batches of the plan's size, to its last row's logits. */
double st_predictor_prefill(const st_predictor *predictor, const st_plan *plan, uint32_t tokens);

#endif
