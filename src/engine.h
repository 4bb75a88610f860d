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
    pthread_mutex_t lock;   /* guards the devices, which share a thread pool, and all counters; held for one batch */
    bool taken[ST_SEQUENCES_MAX]; /* which of the plan's sequences have a session; under `lock` */
};

/* Callers hold a const engine; the lock inside is still mutable. */
void st_engine_lock(const strata_engine *engine);
void st_engine_unlock(const strata_engine *engine);

enum { ST_SESSION_OUT_ROWS = 16 }; /* rows of logits at a time */

#endif
