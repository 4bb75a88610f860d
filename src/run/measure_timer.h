/* Times operations on a device: memory for their inputs, weights and outputs, a step, and the shortest of several launches.
 * Inside the measurement alone. */
#ifndef ST_RUN_MEASURE_TIMER_H
#define ST_RUN_MEASURE_TIMER_H

#include "backend/backend.h"
#include "run/measure.h"

/* The shapes of a layer of a model with a few billion parameters. */
enum {
    ST_TIMED_WIDTH = 2048,
    ST_TIMED_EXPERTS = 32,
    ST_TIMED_USED = ST_TIMED_EXPERTS / ST_MEASURE_ROWS_OF_EXPERT,
    ST_TIMED_EXPERT_WIDTH = 768,
    ST_TIMED_ROWS = ST_MEASURE_BATCH, /* at most */
    ST_TIMED_DEPTH = 2048,
    ST_TIMED_PAGE_SHIFT = 6, /* of the KV cache */
    ST_TIMED_PAGES = ((ST_TIMED_DEPTH + ST_TIMED_ROWS - 1) >> ST_TIMED_PAGE_SHIFT) + 1,
    ST_TIMED_TRIES = 3, /* at least */
};

#define ST_TIMED_SECONDS 0.05 /* at least, of all tries */

typedef struct st_op_timer {
    const st_backend *backend;
    st_device *device;
    uint32_t workers;
    st_queue *queue;
    unsigned char *memory; /* the operations' inputs, weights and outputs; their content does not matter */
    size_t bytes, used;
    st_step *step;
    const void **parts;    /* [ST_TIMED_EXPERTS], of matrices with parts */
    st_on_measure on_row;  /* of st_measure_ops */
    void *context;
    strata_error *error;
} st_op_timer;

/* Opens a timer with backend, device and error set: `bytes` of memory, and as much as the workers' scratch may need. It is closed
 * after an error too. */
strata_status st_timer_open(st_op_timer *l, size_t bytes);
void st_timer_close(st_op_timer *l);

/* Begins an operation, whose memory is free again: the step has `rows` rows of one conversation, whose pages are adjacent. */
st_op st_timer_start(st_op_timer *l, st_op_kind kind, uint32_t rows, uint32_t position);

/* Memory of the operation. Beyond the timer's it is the start, and st_timer_ops fails. */
size_t st_timer_align(size_t bytes);
void *st_timer_reserve(st_op_timer *l, size_t bytes);
st_bound_value st_timer_value(st_op_timer *l, uint32_t width, uint32_t rows);
st_bound_weight st_timer_matrix(st_op_timer *l, uint32_t type, size_t in, size_t out, size_t parts);

/* The shortest of several launches of a segment: the first wake the workers and raise the clock, and a launch that another process
 * disturbed does not count. The operations have the same shape. */
strata_status st_timer_ops(st_op_timer *l, const st_bound_op *ops, uint32_t count, double *seconds);

#endif
