/* How fast weights of a type are read as decoding reads them: matrix after matrix, each for one row, more of them than any
 * cache holds. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "devices.h"

/* Matrices of a small model: they lose more at their beginnings and ends than large ones, and what a model does between
 * its matrices is not in the chain. */
enum {
    WIDTH = 1024,
    WEIGHT_BYTES = 256 << 20, /* at least: a cache that keeps something of what comes round again keeps little */
    MATRICES_MAX = 2048,
    TRIES = 5,
    ALIGNMENT = 64,
    SHARED_BYTES = 1 << 20,
    WORKER_BYTES = 4 << 20,
};

/* A decoder of nothing but matrices. */
typedef struct chain {
    const st_backend *backend;
    st_device *device;
    st_queue *queue;
    st_segment *segment;
    unsigned char *weights, *scratch; /* WEIGHT_BYTES and the last matrix's; what operations work in */
    float *values;                    /* [2, WIDTH]: each matrix reads what the one before it wrote */
    st_step *step;
} chain;

static void close_chain(chain *c)
{
    if (c->segment) c->backend->segment_free(c->segment);
    if (c->queue) c->backend->queue_free(c->queue);
    st_free(c->weights);
    st_free(c->scratch);
    st_free(c->values);
    st_free(c->step);
}

static st_bound_op bind(const chain *c, const st_op *op, uint32_t type, size_t matrix_bytes, uint32_t index)
{
    st_bound_op bound = {.op = op, .in[0] = {c->values + index % 2 * WIDTH, WIDTH},
                         .out = {c->values + (index + 1) % 2 * WIDTH, WIDTH}};
    bound.weight[0] = (st_bound_weight){.data = c->weights + index * matrix_bytes, .info = st_type_find(type), .type = type,
                                        .ne = {WIDTH, WIDTH, 1}, .row_bytes = matrix_bytes / WIDTH};
    return bound;
}

static strata_status prepare(chain *c, uint32_t type, size_t matrix_bytes, uint32_t count, strata_error *error)
{
    static const st_op op = {.kind = ST_OP_MATMUL};
    st_bound_op *ops = st_alloc_array(count, sizeof *ops);
    if (!ops) return st_error_memory(error, count * sizeof *ops, "timing matrices");
    for (uint32_t i = 0; i < count; i++) ops[i] = bind(c, &op, type, matrix_bytes, i);
    c->step->count = c->step->batch_max = 1;
    st_segment_source source = {.ops = ops, .count = count, .rows = ST_ROWS_ALL, .step = c->step, .scratch = c->scratch,
                                .shared_bytes = SHARED_BYTES, .worker_bytes = WORKER_BYTES};
    strata_status status = c->backend->prepare(c->device, &source, &c->segment, error);
    st_free(ops);
    return status;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median: a token has no best of five. */
static strata_status time_chain(chain *c, double *seconds, strata_error *error)
{
    double times[TRIES];
    strata_status status = c->backend->launch(c->segment, c->queue, error); /* pages and caches settle */
    for (int i = 0; i < TRIES && status == STRATA_OK; i++) {
        double start = st_clock_seconds();
        status = c->backend->launch(c->segment, c->queue, error);
        times[i] = st_clock_seconds() - start;
    }
    if (status != STRATA_OK) return status;
    qsort(times, TRIES, sizeof *times, compare_seconds);
    *seconds = times[TRIES / 2];
    return STRATA_OK;
}

static strata_status open_chain(chain *c, uint32_t type, size_t matrix_bytes, size_t count, strata_error *error)
{
    st_device_info info;
    c->backend->info(c->device, &info);
    size_t scratch_bytes = SHARED_BYTES + (size_t)WORKER_BYTES * info.workers;
    c->weights = st_alloc_aligned(count * matrix_bytes, ALIGNMENT);
    c->scratch = st_alloc_aligned(scratch_bytes, ALIGNMENT);
    c->values = st_alloc_zero(2 * (size_t)WIDTH, sizeof *c->values);
    c->step = st_alloc_zero(1, st_step_bytes(1));
    if (!c->weights || !c->scratch || !c->values || !c->step)
        return st_error_memory(error, count * matrix_bytes + scratch_bytes, "timing matrices");
    memset(c->weights, 0, count * matrix_bytes);
    strata_status status = c->backend->queue_new(c->device, ST_QUEUE_COMPUTE, &c->queue, error);
    return status == STRATA_OK ? prepare(c, type, matrix_bytes, (uint32_t)count, error) : status;
}

strata_status st_measure_reading(const st_backend *backend, st_device *device, uint32_t type, double *rate,
                                 strata_error *error)
{
    chain c = {.backend = backend, .device = device};
    size_t row_bytes = 0;
    double seconds = 0;
    st_type_row_bytes(st_type_find(type), WIDTH, &row_bytes);
    size_t matrix_bytes = row_bytes * WIDTH, count = WEIGHT_BYTES / matrix_bytes + 1;
    if (count > MATRICES_MAX) count = MATRICES_MAX;
    strata_status status = open_chain(&c, type, matrix_bytes, count, error);
    if (status == STRATA_OK) status = time_chain(&c, &seconds, error);
    close_chain(&c);
    if (status == STRATA_OK) *rate = seconds > 0 ? (double)(count * matrix_bytes) / seconds : 0;
    return status;
}
