/* What decoding reads, timed with weights from memory: chains of matrices, and experts in launches of their own. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "run/measure.h"
#include "run/measure_timer.h"

/* --- experts of one row, from memory ------------------------------------------------------------------------------- */

enum { SPLIT_OPS_MAX = 2048 }; /* launches of a pass: of one expert each, they read more than 4 GiB */

typedef struct split_timer {
    st_op_timer *timer;
    st_op op;
    st_segment *segments[SPLIT_OPS_MAX];
    const void *gate_up[SPLIT_OPS_MAX][ST_TIMED_USED], *down[SPLIT_OPS_MAX][ST_TIMED_USED];
    uint32_t count;
} split_timer;

static strata_status prepare_split(split_timer *s, uint32_t used, const st_bound_op *shape, void *scratch,
                                   const st_scratch *needed)
{
    st_op_timer *l = s->timer;
    st_bound_op bound = *shape;
    for (uint32_t i = 0; i < used; i++) {
        s->gate_up[s->count][i] = st_timer_reserve(l, bound.weight[0].row_bytes * 2 * ST_TIMED_EXPERT_WIDTH);
        s->down[s->count][i] = st_timer_reserve(l, bound.weight[2].row_bytes * ST_TIMED_WIDTH);
    }
    bound.weight[0].parts = s->gate_up[s->count];
    bound.weight[2].parts = s->down[s->count];
    st_segment_source source = {.ops = &bound, .count = 1, .rows = ST_ROWS_ALL, .step = l->step,
                                .step_bytes = l->step->bytes, .scratch = scratch,
                                .shared_bytes = needed->shared_bytes, .worker_bytes = needed->worker_bytes};
    return l->backend->prepare(l->device, &source, &s->segments[s->count++], l->error);
}

/* The shortest pass over all segments, each launched alone. */
static strata_status time_passes(const split_timer *s, double *seconds)
{
    strata_status status = STRATA_OK;
    double end = st_clock_seconds() + ST_TIMED_SECONDS, best = 1e9;
    for (int try = 0; (try < ST_TIMED_TRIES || st_clock_seconds() < end) && status == STRATA_OK; try++) {
        double start = st_clock_seconds();
        for (uint32_t i = 0; i < s->count && status == STRATA_OK; i++)
            status = s->timer->backend->launch(s->segments[i], s->timer->queue, 1, s->timer->error);
        double took = (st_clock_seconds() - start) / s->count;
        if (took < best) best = took;
    }
    *seconds = best;
    return status;
}

/* Operations with `used` experts each, no expert twice, as many as `bytes` hold. */
static strata_status time_split(split_timer *s, uint32_t used, size_t bytes, st_fit_point *point)
{
    st_op_timer *l = s->timer;
    s->op = st_timer_start(l, ST_OP_EXPERTS, 1, 0);
    s->op.p.experts.experts = s->op.p.experts.used = used;
    s->op.p.experts.width = ST_TIMED_EXPERT_WIDTH;
    s->op.p.experts.fused = true;
    st_bound_op shape = {.op = &s->op, .in = {st_timer_value(l, ST_TIMED_WIDTH, 1), st_timer_value(l, used, 1), st_timer_value(l, used, 1)},
                         .out = st_timer_value(l, ST_TIMED_WIDTH, 1)};
    for (uint32_t i = 0; i < used; i++) ((int32_t *)shape.in[1].data)[i] = (int32_t)i;
    shape.weight[0] = st_timer_matrix(l, ST_TYPE_Q4_K, ST_TIMED_WIDTH, 2 * ST_TIMED_EXPERT_WIDTH, 1);
    shape.weight[2] = st_timer_matrix(l, ST_TYPE_Q4_K, ST_TIMED_EXPERT_WIDTH, ST_TIMED_WIDTH, 1);
    shape.weight[0].ne[2] = shape.weight[2].ne[2] = used;
    shape.weight[0].parts = s->gate_up[0];
    shape.weight[2].parts = s->down[0];
    point->work = used * (double)(shape.weight[0].row_bytes * 2 * ST_TIMED_EXPERT_WIDTH + shape.weight[2].row_bytes * ST_TIMED_WIDTH);
    st_scratch needed = l->backend->scratch(&shape, 1);
    needed.shared_bytes = st_timer_align(needed.shared_bytes);
    needed.worker_bytes = st_timer_align(needed.worker_bytes);
    void *scratch = st_timer_reserve(l, needed.shared_bytes + needed.worker_bytes * l->workers);
    size_t count = (size_t)((double)bytes / point->work);
    strata_status status = STRATA_OK;
    s->count = 0;
    while (s->count < count && s->count < SPLIT_OPS_MAX && status == STRATA_OK)
        status = prepare_split(s, used, &shape, scratch, &needed);
    if (status == STRATA_OK && s->count > 0) status = time_passes(s, &point->seconds);
    for (uint32_t i = 0; i < s->count; i++)
        if (s->segments[i]) l->backend->segment_free(s->segments[i]);
    memset(s->segments, 0, sizeof s->segments);
    return status;
}

strata_status st_measure_experts(const st_backend *backend, st_device *device, st_fit_point points[2], strata_error *error)
{
    st_op_timer l = {.backend = backend, .device = device, .error = error};
    split_timer *s = st_alloc_zero(1, sizeof *s);
    size_t bytes = (size_t)st_memory_probe_bytes_now();
    if (!s) return st_error_memory(error, sizeof *s, "the measurement of experts");
    s->timer = &l;
    strata_status status = st_timer_open(&l, bytes + ((size_t)32 << 20));
    if (status == STRATA_OK) status = time_split(s, 1, bytes, &points[0]);
    if (status == STRATA_OK) status = time_split(s, ST_TIMED_USED, bytes, &points[1]);
    st_timer_close(&l);
    st_free(s);
    return status;
}

/* --- chains of matrices ---------------------------------------------------------------------------------------------- */

enum { CHAIN_WIDTH = 1024, CHAIN_MAX = 8192 };

/* A decoder of nothing but square matrices, or of wider ones for many workers: each reads from what the one before it wrote. The
 * bytes and the seconds of one. */
static strata_status time_chain(st_op_timer *l, uint32_t type, uint32_t width, size_t bytes, st_fit_point *point)
{
    st_op op = st_timer_start(l, ST_OP_MATMUL, 1, 0);
    uint32_t columns = st_measure_columns(width, l->workers);
    st_bound_value values[] = {st_timer_value(l, columns, 1), st_timer_value(l, columns, 1)};
    st_bound_weight first = st_timer_matrix(l, type, width, columns, 1);
    size_t matrix_bytes = first.row_bytes * columns, count = bytes / st_timer_align(matrix_bytes);
    if (count > CHAIN_MAX) count = CHAIN_MAX;
    if (count == 0) return STRATA_OK; /* no memory to measure with: the point stays as it is */
    st_bound_op *ops = st_alloc_zero(count, sizeof *ops);
    if (!ops) return st_error_memory(l->error, count * sizeof *ops, "timing matrices");
    for (size_t i = 0; i < count; i++) {
        ops[i] = (st_bound_op){.op = &op, .in[0] = {values[i % 2].data, width}, .out = values[(i + 1) % 2]};
        ops[i].weight[0] = i == 0 ? first : st_timer_matrix(l, type, width, columns, 1);
    }
    double seconds;
    strata_status status = st_timer_ops(l, ops, (uint32_t)count, &seconds);
    st_free(ops);
    if (status == STRATA_OK) *point = (st_fit_point){.work = (double)matrix_bytes, .seconds = seconds / (double)count};
    return status;
}

strata_status st_measure_products(const st_backend *backend, st_device *device, st_fit_point points[2], strata_error *error)
{
    st_op_timer l = {.backend = backend, .device = device, .error = error};
    size_t bytes = (size_t)st_memory_probe_bytes_now();
    strata_status status = st_timer_open(&l, bytes);
    for (uint32_t i = 0; i < 2 && status == STRATA_OK; i++) status = time_chain(&l, ST_TYPE_Q4_K, CHAIN_WIDTH << i, bytes, &points[i]);
    st_timer_close(&l);
    return status;
}

strata_status st_measure_reading(const st_backend *backend, st_device *device, double fixed, double *rates, uint32_t types,
                                 strata_error *error)
{
    st_op_timer l = {.backend = backend, .device = device, .error = error};
    size_t bytes = (size_t)st_memory_probe_bytes_now();
    strata_status status = st_timer_open(&l, bytes);
    for (uint32_t type = 0; type < types && status == STRATA_OK; type++) {
        st_fit_point point = {0};
        if (rates[type] > 0.0) status = time_chain(&l, type, CHAIN_WIDTH, bytes, &point);
        if (point.seconds > fixed) rates[type] = point.work / (point.seconds - fixed);
    }
    st_timer_close(&l);
    return status;
}
