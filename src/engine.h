/* A model ready to run, as sessions see it: behind strata_engine. */
#ifndef ST_ENGINE_H
#define ST_ENGINE_H

#include <pthread.h>

#include "kv/kv.h"
#include "model.h"
#include "run/run.h"
#include "strata.h"

struct strata_engine {
    const strata_model *model;
    st_arena arena; /* what follows lives in it */
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    const st_kv_layout *layout;
    const st_backend *backend;
    st_device *device;
    uint32_t batch;
    bool nextn;
    pthread_mutex_t turn; /* sessions run one at a time: the device has one pool */
};

enum { ST_SESSION_OUT_ROWS = 16 }; /* rows of logits at a time */

/* What a session's executor is made of. */
static inline st_run_source st_engine_source(const strata_engine *engine)
{
    return (st_run_source){.desc = engine->desc, .binding = engine->binding, .program = engine->program,
                           .layout = engine->layout, .backend = engine->backend, .device = engine->device};
}

static inline st_run_options st_engine_run_options(const strata_engine *engine)
{
    return (st_run_options){.batch = engine->batch, .out_rows = ST_SESSION_OUT_ROWS, .nextn = engine->nextn};
}

#endif
