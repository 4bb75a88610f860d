/* Copies the matrices of dense parts that stay in RAM to the GPU, for steps that run these parts there (plan/plan.h):
 * each fetch fills one of two buffers while the GPU computes with the other. Owns the copy queue and its events; knows
 * what is copied and in which order. Launches nothing: run.c does. Private to run/. */
#ifndef ST_RUN_DENSE_H
#define ST_RUN_DENSE_H

#include "plan/plan.h"

typedef struct st_dense st_dense;

typedef struct st_dense_source {
    const st_binding *binding;
    const st_program *program;
    const st_stages *stages;   /* of the body: its fetched runs are the fetches, in this order */
    const st_backend *backend; /* of the GPU */
    st_device *device;
    unsigned char *buffers;    /* in GPU memory: two of buffer_bytes */
    size_t buffer_bytes;
    const void *const *host_weights; /* [weights] */
} st_dense_source;

/* The source's parts must outlive it. */
strata_status st_dense_new(const st_dense_source *source, st_dense **out, strata_error *error);
void st_dense_free(st_dense *dense);

/* The buffer of the fetch. */
unsigned char *st_dense_buffer(const st_dense *dense, uint32_t fetch);

/* A step begins: sends the first fetches. */
strata_status st_dense_begin(st_dense *dense, strata_error *error);
/* Work that is enqueued on `queue` from now on begins when the fetch has ended. */
strata_status st_dense_await(st_dense *dense, uint32_t fetch, st_queue *queue, strata_error *error);
/* The run that uses the fetch is launched on `queue`: sends the fetch that gets the buffer next. */
strata_status st_dense_launched(st_dense *dense, uint32_t fetch, st_queue *queue, strata_error *error);

#endif
