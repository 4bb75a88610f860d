/* A plan as JSON (docs/json.md) for people and programs. Decides nothing. */
#ifndef ST_PLAN_EXPLAIN_H
#define ST_PLAN_EXPLAIN_H

#include <jansson.h>

#include "plan/alternatives.h"
#include "plan/plan.h"

/* NULL: out of memory. */
json_t *st_plan_json(const st_plan_source *source, const st_plan *plan);

/* Adds "alternatives", "longest" and "advice" to a plan's JSON. False: out of memory. */
bool st_alternatives_json(const st_alternatives *alternatives, json_t *plan);

#endif
