/* A model ready to run, as sessions see it: behind strata_engine. */
#ifndef ST_ENGINE_H
#define ST_ENGINE_H

#include <pthread.h>

#include "model.h"
#include "kv/store.h"
#include "placement.h"
#include "recording.h"
#include "sched/sched.h"
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
    st_recording recording; /* a recorded routing that replaces the routers' choices */
    st_load *load;
    st_run *run;            /* the executor; the load owns it */
    st_store *store;        /* saved state of conversations; NULL: none */
    st_sched *sched;        /* runs the sessions' requests on the executor */
    /* The lock guards the executor, conversations, devices and all counters; the scheduler holds it for a step. Threads
     * get it in the order in which they ask, so that the scheduler's next step does not pass them. */
    pthread_mutex_t lock;
    pthread_cond_t unlocked;
    uint64_t ticket, serving;
};

/* Callers hold a const engine; the lock inside is still mutable. */
void st_engine_lock(const strata_engine *engine);
void st_engine_unlock(const strata_engine *engine);

/* strata_engine_clock, for a caller that has the lock. */
double st_engine_now(const strata_engine *engine);

enum { ST_SESSION_OUT_ROWS = 16 }; /* rows of logits at a time */

#endif
