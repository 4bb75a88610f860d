#include "run/measure_timer.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "run/measure.h"

enum { PAIRS_MAX = 16 }; /* of workers that get `width` columns each */

uint32_t st_measure_columns(uint32_t width, uint32_t workers)
{
    uint32_t pairs = workers / 2;
    return width * (pairs < 1 ? 1 : pairs < PAIRS_MAX ? pairs : PAIRS_MAX);
}

size_t st_timer_align(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

void *st_timer_reserve(st_op_timer *l, size_t bytes)
{
    void *start = l->memory + l->used;
    l->used += st_timer_align(bytes);
    return l->used <= l->bytes ? start : l->memory;
}

st_bound_value st_timer_value(st_op_timer *l, uint32_t width, uint32_t rows)
{
    return (st_bound_value){st_timer_reserve(l, (size_t)width * rows * sizeof(float)), width};
}

st_bound_weight st_timer_matrix(st_op_timer *l, uint32_t type, size_t in, size_t out, size_t parts)
{
    const st_type_info *info = st_type_find(type);
    st_bound_weight w = {.info = info, .type = type, .ne = {in, out, parts}};
    st_type_row_bytes(info, in, &w.row_bytes);
    unsigned char *data = st_timer_reserve(l, w.row_bytes * out * parts);
    w.data = data;
    if (parts == 1) return w;
    for (size_t i = 0; i < parts; i++) l->parts[i] = data + i * out * w.row_bytes;
    w.parts = l->parts;
    return w;
}

strata_status st_timer_ops(st_op_timer *l, const st_bound_op *ops, uint32_t count, double *seconds)
{
    st_scratch scratch = l->backend->scratch(ops, l->step->count);
    scratch.shared_bytes = st_timer_align(scratch.shared_bytes);
    scratch.worker_bytes = st_timer_align(scratch.worker_bytes);
    st_segment_source source = {.ops = ops, .count = count, .rows = ST_ROWS_ALL,
                                .step = l->step, .step_bytes = l->step->bytes,
                                .scratch = st_timer_reserve(l, scratch.shared_bytes + scratch.worker_bytes * l->workers),
                                .shared_bytes = scratch.shared_bytes, .worker_bytes = scratch.worker_bytes};
    st_segment *segment = NULL;
    strata_status status = l->used > l->bytes ? st_error_memory(l->error, l->used, "the measurement of operations")
                                              : l->backend->prepare(l->device, &source, &segment, l->error);
    *seconds = 1e9;
    double end = st_clock_seconds() + ST_TIMED_SECONDS;
    for (int i = 0; (i < ST_TIMED_TRIES || st_clock_seconds() < end) && status == STRATA_OK; i++) {
        double start = st_clock_seconds();
        status = l->backend->launch(segment, l->queue, l->step->count, l->error);
        double took = st_clock_seconds() - start;
        if (took < *seconds) *seconds = took;
    }
    if (segment) l->backend->segment_free(segment);
    return status;
}

st_op st_timer_start(st_op_timer *l, st_op_kind kind, uint32_t rows, uint32_t position)
{
    l->used = 0;
    st_step_lay_out(l->step, ST_TIMED_ROWS, 1, rows, ST_TIMED_PAGES);
    l->step->out_count = rows;
    *st_step_conversations(l->step) = (st_step_conversation){.rows = rows, .position = position};
    for (uint32_t i = 0; i < rows; i++) st_step_rows(l->step)[i] = (st_step_row){.position = position + i};
    for (uint32_t i = 0; i < ST_TIMED_PAGES; i++) st_step_tables(l->step)[i] = i;
    return (st_op){.kind = kind};
}

strata_status st_timer_open(st_op_timer *l, size_t bytes)
{
    st_device_info info;
    void *memory = NULL;
    l->backend->info(l->device, &info);
    l->workers = info.workers;
    l->bytes = bytes + ((size_t)4 * info.workers << 20);
    strata_status status = l->backend->alloc(l->device, l->bytes, &memory, l->error);
    l->memory = memory;
    if (status != STRATA_OK) return status;
    static const st_step_limits most = {.rows = ST_TIMED_ROWS, .out_rows = ST_TIMED_ROWS, .conversations = 1, .tables = ST_TIMED_PAGES};
    l->step = st_alloc_zero(1, st_step_bytes(&most));
    if (!l->step) return st_error_memory(l->error, st_step_bytes(&most), "the measurement of operations");
    status = l->backend->queue_new(l->device, ST_QUEUE_COMPUTE, &l->queue, l->error);
    return status == STRATA_OK ? l->backend->zero(l->queue, l->memory, l->bytes, l->error) : status;
}

void st_timer_close(st_op_timer *l)
{
    if (l->queue) l->backend->queue_free(l->queue);
    st_free(l->step);
    l->backend->free(l->device, l->memory);
}
