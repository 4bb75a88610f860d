/* A model ready to run, as sessions see it: behind strata_engine. */
#ifndef ST_ENGINE_H
#define ST_ENGINE_H

#include <pthread.h>

#include "backend/sim/sim.h"
#include "model.h"
#include "placement.h"
#include "run/load.h"
#include "strata.h"

struct strata_engine {
    const strata_model *model;
    st_arena arena; /* what follows lives in it */
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    st_placement placement; /* the devices as data, and what was asked for */
    st_plan_source source;
    const st_plan *plan;
    st_sim_world *world; /* of simulated devices; NULL: real ones */
    st_load_device devices[ST_DEVICES_MAX];
    st_watch watch;      /* of the routing; nobody is shown it unless there are statistics or a trace */
    st_trace *warm;      /* a recorded routing that fills the slots */
    st_load *load;
    pthread_mutex_t turn; /* sessions run one at a time: the device has one pool */
    bool taken[ST_SEQUENCES_MAX]; /* which of the plan's sequences have a session; under `turn` */
};

enum { ST_SESSION_OUT_ROWS = 16 }; /* rows of logits at a time */

#endif
