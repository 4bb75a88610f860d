/* A plan as JSON (docs/json.md) for people and programs. Decides nothing. */
#ifndef ST_PLAN_EXPLAIN_H
#define ST_PLAN_EXPLAIN_H

#include <jansson.h>

#include "plan/plan.h"

/* NULL: out of memory. */
json_t *st_plan_json(const st_plan_source *source, const st_plan *plan);

#endif
