/* A model ready to run, as sessions see it: behind strata_engine. */
#ifndef ST_ENGINE_H
#define ST_ENGINE_H

#include <pthread.h>

#include "model.h"
#include "placement.h"
#include "strata.h"

struct strata_engine {
    const strata_model *model;
    st_arena arena; /* owns description, binding, program and plan */
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    st_placement placement; /* device profiles, and the planner's options */
    st_plan_source source;
    const st_plan *plan;
    st_backends backends;   /* the devices, opened */
    st_watch watch;         /* counts and records the routing, if the options ask for it */
    st_trace *warm;         /* a recorded routing that fills the expert slots */
    st_load *load;
    st_run *run;            /* the executor; the load owns it */
    uint32_t step_multiple; /* steps of a prompt end at its multiples, so that they do not depend on what is stored;
                               0: anywhere */
    pthread_mutex_t lock;   /* guards the executor, conversations, devices and all counters; held for one step */
    pthread_cond_t call_ended; /* a session's call has ended, or was admitted */
    uint64_t arrived, admitted; /* calls so far; calls are admitted in the order of arrival */
    uint32_t running;       /* places of calls under way, at most plan->conversations */
};

/* Callers hold a const engine; the lock inside is still mutable. */
void st_engine_lock(const strata_engine *engine);
void st_engine_unlock(const strata_engine *engine);

/* Waits until the calls that arrived before are admitted and `places` of plan->conversations are free. */
void st_engine_enter(strata_engine *engine, uint32_t places);
void st_engine_leave(strata_engine *engine, uint32_t places);

enum { ST_SESSION_OUT_ROWS = 16 }; /* rows of logits at a time */

#endif
