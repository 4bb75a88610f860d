/* options.replay_routing: a recorded routing that replaces the choices of the model's routers, in an engine and in a
 * plan. Owns the trace, its rows and its hit rates; the program is lowered for it. */
#ifndef ST_RECORDING_H
#define ST_RECORDING_H

#include "moe/curve.h"
#include "moe/recorded.h"
#include "plan/plan.h"

typedef struct st_recording {
    st_trace *trace;  /* NULL: the option is not set */
    st_recorded *rows;
    st_curve curve;   /* the plan refers to it */
} st_recording;

/* Describes the model and lowers its program in `arena`, for the recorded routing if the options name one: with its
 * number of experts for each token. */
strata_status st_recording_open(st_recording *recording, const strata_engine_options *options, const st_gguf *gguf,
                                st_arena *arena, const st_desc **desc, const st_binding **binding,
                                const st_program **program, strata_error *error);
void st_recording_close(st_recording *recording);

/* For st_plan_options.hits; NULL: none. */
const st_hit_curve *st_recording_hits(const st_recording *recording);

#endif
