/* Two halves of GPU memory that are filled in turn: while the GPU computes with one, a copy queue fills the other. Owns
 * the copy queue and the events that keep a half from being overwritten while it is read, and from being read before it
 * is filled. Knows no address and copies nothing: the caller enqueues copies on `queue` and launches. */
#ifndef ST_MEMORY_HALVES_H
#define ST_MEMORY_HALVES_H

#include "backend/backend.h"

enum { ST_HALVES = 2 };

typedef struct st_halves {
    const st_backend *backend; /* of the GPU; NULL: not open */
    st_queue *queue;           /* of the copies */
    st_event *filled[ST_HALVES], *used_up[ST_HALVES];
    bool filling[ST_HALVES];   /* `filled` has been recorded */
    bool in_use[ST_HALVES];    /* `used_up` has */
} st_halves;

strata_status st_halves_open(st_halves *halves, const st_backend *backend, st_device *device, strata_error *error);
/* Waits for the copies. Closing one that is not open is allowed. */
void st_halves_close(st_halves *halves);

/* The copies enqueued from now on begin when the last launch with the half has ended. */
strata_status st_halves_claim(st_halves *halves, uint32_t half, strata_error *error);
/* The copies into the half are enqueued: filled[half] is recorded behind them. */
strata_status st_halves_fill(st_halves *halves, uint32_t half, strata_error *error);
/* The work with the half is launched on `queue`. After a failure the caller waits until that queue is empty. */
strata_status st_halves_use(st_halves *halves, uint32_t half, st_queue *queue, strata_error *error);

#endif
