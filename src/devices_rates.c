/* The rate at which decoding reads weights of a type from memory: a chain of matrices, each multiplied by one row,
 * larger than the last-level cache. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "devices.h"

/* Matrices of a small model: they lose more at their starts and ends than large ones, which makes up for the operations
 * between the matrices of a model. */
enum {
    WIDTH = 1024,
    MATRICES_MAX = 8192,
    TRIES = 3,
    SHARED_BYTES = 1 << 20,
    WORKER_BYTES = 4 << 20,
};

/* A decoder of nothing but matrices. */
typedef struct chain {
    const st_backend *backend;
    st_device *device;
    st_queue *queue;
    unsigned char *weights, *scratch; /* the backend's, in large pages as weights are */
    size_t weight_bytes;
    float *values; /* [2, WIDTH]: each matrix reads what the one before it wrote */
    st_step *step;
} chain;

static void close_chain(chain *c)
{
    if (c->queue) c->backend->queue_free(c->queue);
    c->backend->free(c->device, c->weights);
    c->backend->free(c->device, c->scratch);
    st_free(c->values);
    st_free(c->step);
}

static st_bound_op bind(const chain *c, const st_op *op, uint32_t type, size_t matrix_bytes, uint32_t index)
{
    st_bound_op bound = {.op = op, .in[0] = {c->values + index % 2 * WIDTH, WIDTH},
                         .out = {c->values + (index + 1) % 2 * WIDTH, WIDTH}};
    bound.weight[0] = (st_bound_weight){.data = c->weights + index * matrix_bytes, .info = st_type_find(type),
                                        .type = type, .ne = {WIDTH, WIDTH, 1}, .row_bytes = matrix_bytes / WIDTH};
    return bound;
}

static strata_status prepare(const chain *c, uint32_t type, size_t matrix_bytes, uint32_t count, st_segment **out,
                             strata_error *error)
{
    static const st_op op = {.kind = ST_OP_MATMUL};
    st_bound_op *ops = st_alloc_array(count, sizeof *ops);
    if (!ops) return st_error_memory(error, count * sizeof *ops, "timing matrices");
    for (uint32_t i = 0; i < count; i++) ops[i] = bind(c, &op, type, matrix_bytes, i);
    c->step->count = c->step->batch_max = 1;
    st_segment_source source = {.ops = ops, .count = count, .rows = ST_ROWS_ALL, .step = c->step, .scratch = c->scratch,
                                .shared_bytes = SHARED_BYTES, .worker_bytes = WORKER_BYTES};
    strata_status status = c->backend->prepare(c->device, &source, out, error);
    st_free(ops);
    return status;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median: a token takes the usual time, not the best. */
static strata_status time_segment(const chain *c, st_segment *segment, double *seconds, strata_error *error)
{
    double times[TRIES];
    strata_status status = c->backend->launch(segment, c->queue, error); /* warms up */
    for (int i = 0; i < TRIES && status == STRATA_OK; i++) {
        double start = st_clock_seconds();
        status = c->backend->launch(segment, c->queue, error);
        times[i] = st_clock_seconds() - start;
    }
    if (status != STRATA_OK) return status;
    qsort(times, TRIES, sizeof *times, compare_seconds);
    *seconds = times[TRIES / 2];
    return STRATA_OK;
}

static strata_status open_chain(chain *c, strata_error *error)
{
    st_device_info info;
    void *weights = NULL, *scratch = NULL;
    c->backend->info(c->device, &info);
    c->weight_bytes = (size_t)st_memory_probe_bytes_now();
    strata_status status = c->backend->alloc(c->device, c->weight_bytes, &weights, error);
    c->weights = weights;
    if (status == STRATA_OK)
        status = c->backend->alloc(c->device, SHARED_BYTES + (size_t)WORKER_BYTES * info.workers, &scratch, error);
    c->scratch = scratch;
    if (status != STRATA_OK) return status;
    c->values = st_alloc_zero(2 * (size_t)WIDTH, sizeof *c->values);
    c->step = st_alloc_zero(1, st_step_bytes(1));
    if (!c->values || !c->step) return st_error_memory(error, st_step_bytes(1), "the measurement");
    status = c->backend->queue_new(c->device, ST_QUEUE_COMPUTE, &c->queue, error);
    return status == STRATA_OK ? c->backend->zero(c->queue, c->weights, c->weight_bytes, error) : status;
}

static strata_status time_type(const chain *c, uint32_t type, double *rate, strata_error *error)
{
    size_t row_bytes = 0;
    double seconds = 0;
    st_segment *segment = NULL;
    st_type_row_bytes(st_type_find(type), WIDTH, &row_bytes);
    size_t matrix_bytes = row_bytes * WIDTH, count = c->weight_bytes / matrix_bytes;
    if (count > MATRICES_MAX) count = MATRICES_MAX;
    if (count == 0) return STRATA_OK; /* no memory to measure with: the rate stays as it is */
    strata_status status = prepare(c, type, matrix_bytes, (uint32_t)count, &segment, error);
    if (status == STRATA_OK) status = time_segment(c, segment, &seconds, error);
    if (segment) c->backend->segment_free(segment);
    if (status == STRATA_OK && seconds > 0) *rate = (double)(count * matrix_bytes) / seconds;
    return status;
}

strata_status st_measure_reading(const st_backend *backend, st_device *device, double rates[ST_PROFILE_TYPES],
                                 strata_error *error)
{
    chain c = {.backend = backend, .device = device};
    strata_status status = open_chain(&c, error);
    for (uint32_t type = 0; type < ST_PROFILE_TYPES && status == STRATA_OK; type++)
        if (rates[type] > 0.0) status = time_type(&c, type, &rates[type], error);
    close_chain(&c);
    return status;
}
