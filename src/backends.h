/* The backends: one row for each set of devices that a model can run on. strata_placement.device names a row. No other
 * file chooses a backend. */
#ifndef ST_BACKENDS_H
#define ST_BACKENDS_H

#include "plan/plan.h"
#include "run/load.h"

typedef struct st_backend_row {
    const char *name;
    const st_backend *(*host)(void);
    const st_backend *(*card)(void); /* the GPU's; NULL: a plugin's, or the row has no GPU */
    const char *plugin;              /* the GPU's backend comes from libstrata-PLUGIN.so; NULL: it does not */
    const st_backend_statement *statement; /* of the plugin's backend: what GPUs run that are only described */
    /* What the row's devices share (st_device_options.world), and its clock. NULL: nothing, and real time. */
    strata_status (*world_new)(const st_plan_source *source, void **out, strata_error *error);
    void (*world_free)(void *world);
    double (*seconds)(const void *world);
} st_backend_row;

/* The row of NAME, or of NAME:INDEX for one of several GPUs of a plugin; the CPU's if `text` is NULL. NULL: unknown. */
const st_backend_row *st_backend_find(const char *text, uint32_t *index);
/* The row whose GPU is used where the user names none. */
const st_backend_row *st_backend_default_gpu(void);
bool st_backend_has_gpu(const st_backend_row *row);
/* "cpu, sim or cuda" */
const char *st_backend_names(char *text, size_t size);

/* Opened devices of a row. */
typedef struct st_backends {
    const st_backend_row *row;
    void *world;
    st_load_device devices[ST_DEVICES_MAX]; /* the host, then the GPU */
} st_backends;

/* Opens the first `count` devices and takes ownership of `gpu.device` if it is open, even on failure. The caller calls
 * st_backends_close after a failure too. */
strata_status st_backends_open(st_backends *backends, const st_backend_row *row, const st_plan_source *source,
                               st_device_options options, st_load_device gpu, uint32_t count, strata_error *error);
void st_backends_close(st_backends *backends);

#endif
