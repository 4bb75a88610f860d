/* The hit rates of a recorded routing by the size of the cache, for the planner. Replays the trace as the expert cache
 * would run it when the trace is repeated: it was replayed once before it counts. */
#ifndef ST_MOE_CURVE_H
#define ST_MOE_CURVE_H

#include "moe/replay.h"
#include "plan/plan.h"

enum { ST_CURVE_POINTS = 17 };

typedef struct st_curve {
    st_hit_point points[ST_CURVE_POINTS];
    st_hit_curve hits; /* of these points: the curve must not be moved */
} st_curve;

/* `policy` of the cache; NULL: the default. */
strata_status st_curve_new(const st_trace *trace, const char *policy, st_curve *out, strata_error *error);

#endif
