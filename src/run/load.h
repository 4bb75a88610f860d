/* The loader: allocates one block per device as planned, loads weights at their offsets, prepares the executor and
 * records all bytes in the ledger. Owns the blocks through the ledger; decides nothing. Knows the plan's offsets; knows
 * no family, runs no operation. */
#ifndef ST_RUN_LOAD_H
#define ST_RUN_LOAD_H

#include "memory/ledger.h"
#include "plan/plan.h"
#include "run/run.h"

typedef struct st_load st_load;

/* An opened device; the first is the host. */
typedef struct st_load_device {
    const st_backend *backend;
    st_device *device;
} st_load_device;

typedef struct st_load_options {
    strata_progress progress; /* bytes of weights loaded; may be NULL */
    st_ledger_trace trace;    /* may be NULL */
    void *context;            /* of both */
    st_stream_options experts; /* of a plan with an expert cache */
    st_stats *stats;          /* counts what an expert cache does; may be NULL */
    st_watch *watch;          /* receives the routing of a watched plan; may be NULL */
    const st_recorded *recorded; /* of a program whose routers take recorded choices; else NULL */
    bool untouched;           /* mapped weights are not read: for runs that compute nothing */
} st_load_options;

/* Allocates memory and loads every weight; `devices` are the plan's, in its order. The source, the plan and the devices
 * must outlive it. At the end planned and allocated bytes are compared: a difference is logged with both numbers. */
strata_status st_load_new(const st_plan_source *source, const st_plan *plan, const st_load_device *devices,
                          const st_load_options *options, st_load **out, strata_error *error);
void st_load_free(st_load *load);

/* The executor, which lives as long as the load, and the expert cache (NULL: none). */
st_run *st_load_run(const st_load *load);
st_stream *st_load_stream(const st_load *load);

const st_ledger *st_load_ledger(const st_load *load);

#endif
