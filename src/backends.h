/* The backends: one row for each set of devices that a model can run on. strata_placement.device names a row; a GPU's
 * backend joins as one more. No other file chooses a backend. */
#ifndef ST_BACKENDS_H
#define ST_BACKENDS_H

#include "plan/plan.h"
#include "run/load.h"

typedef struct st_backend_row {
    const char *name;
    const st_backend *(*host)(void);
    const st_backend *(*card)(void); /* NULL: none, the CPU works alone */
    /* What the row's devices share (st_device_options.world), and its clock. NULL: nothing, and real time. */
    strata_status (*world_new)(const st_plan_source *source, void **out, strata_error *error);
    void (*world_free)(void *world);
    double (*seconds)(const void *world);
} st_backend_row;

/* NULL: the real devices. Unknown names have no row. */
const st_backend_row *st_backend_find(const char *name);
/* "cpu or sim" */
const char *st_backend_names(char *text, size_t size);

/* Opened devices of a row. */
typedef struct st_backends {
    const st_backend_row *row;
    void *world;
    st_load_device devices[ST_DEVICES_MAX]; /* the host, then the GPU */
} st_backends;

/* Opens the first `count` devices. After a failure, too, st_backends_close frees what there is. */
strata_status st_backends_open(st_backends *backends, const st_backend_row *row, const st_plan_source *source,
                               st_device_options options, uint32_t count, strata_error *error);
void st_backends_close(st_backends *backends);

#endif
