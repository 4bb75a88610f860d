#include "run/measure.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "kv/layout.h"
#include "quant/row.h"

/* The shapes of a layer of a model with a few billion parameters. */
enum {
    WIDTH = 2048,
    HEADS = 16,
    KV_HEADS = 8,
    HEAD = 128,
    DEPTH = 2048,
    EXPERTS = 32,
    USED = 8,
    EXPERT_WIDTH = 768,
    VALUE_HEADS = 32,
    TAPS = 4,
    BATCH = 256,
    PAGE_SHIFT = 6, /* of the KV cache */
    PAGES = ((DEPTH + BATCH - 1) >> PAGE_SHIFT) + 1,
    CHAIN_WIDTH = 1024, /* for two workers the matrices of a small model: what they lose at their starts and ends makes
                         * up for the operations between the matrices of a model */
    CHAIN_MAX = 8192,
    TRIES = 3, /* at least */
    PAIRS_MAX = 16, /* of workers that get WIDTH columns each */
};

#define SEGMENT_SECONDS 0.05

typedef struct op_timer {
    const st_backend *backend;
    st_device *device;
    uint32_t workers;
    st_queue *queue;
    unsigned char *memory; /* the operations' inputs, weights and outputs; their content does not matter */
    size_t bytes, used;
    st_step *step;
    const void **parts;    /* [EXPERTS] */
    st_on_measure on_row;
    void *context;
    strata_error *error;
} op_timer;

uint32_t st_measure_columns(uint32_t width, uint32_t workers)
{
    uint32_t pairs = workers / 2;
    return width * (pairs < 1 ? 1 : pairs < PAIRS_MAX ? pairs : PAIRS_MAX);
}

static size_t align_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static void *reserve(op_timer *l, size_t bytes)
{
    void *start = l->memory + l->used;
    l->used += align_up(bytes);
    return l->used <= l->bytes ? start : l->memory;
}

static st_bound_value value(op_timer *l, uint32_t width, uint32_t rows)
{
    return (st_bound_value){reserve(l, (size_t)width * rows * sizeof(float)), width};
}

static st_bound_weight matrix(op_timer *l, uint32_t type, size_t in, size_t out, size_t parts)
{
    const st_type_info *info = st_type_find(type);
    st_bound_weight w = {.info = info, .type = type, .ne = {in, out, parts}};
    st_type_row_bytes(info, in, &w.row_bytes);
    unsigned char *data = reserve(l, w.row_bytes * out * parts);
    w.data = data;
    if (parts == 1) return w;
    for (size_t i = 0; i < parts; i++) l->parts[i] = data + i * out * w.row_bytes;
    w.parts = l->parts;
    return w;
}

/* The shortest of several launches of a segment: the first wake the workers and raise the clock, and a launch that
 * another process disturbed does not count. The operations have the same shape. */
static strata_status time_ops(op_timer *l, const st_bound_op *ops, uint32_t count, double *seconds)
{
    st_scratch scratch = l->backend->scratch(ops, l->step->count);
    scratch.shared_bytes = align_up(scratch.shared_bytes);
    scratch.worker_bytes = align_up(scratch.worker_bytes);
    st_segment_source source = {.ops = ops, .count = count, .rows = ST_ROWS_ALL,
                                .step = l->step, .step_bytes = l->step->bytes,
                                .scratch = reserve(l, scratch.shared_bytes + scratch.worker_bytes * l->workers),
                                .shared_bytes = scratch.shared_bytes, .worker_bytes = scratch.worker_bytes};
    st_segment *segment = NULL;
    strata_status status = l->used > l->bytes ? st_error_memory(l->error, l->used, "the measurement of operations")
                                              : l->backend->prepare(l->device, &source, &segment, l->error);
    *seconds = 1e9;
    double end = st_clock_seconds() + SEGMENT_SECONDS;
    for (int i = 0; (i < TRIES || st_clock_seconds() < end) && status == STRATA_OK; i++) {
        double start = st_clock_seconds();
        status = l->backend->launch(segment, l->queue, l->step->count, l->error);
        double took = st_clock_seconds() - start;
        if (took < *seconds) *seconds = took;
    }
    if (segment) l->backend->segment_free(segment);
    return status;
}

static strata_status time_op(op_timer *l, const st_bound_op *bound, st_op_measure *row)
{
    strata_status status = time_ops(l, bound, 1, &row->seconds);
    if (status != STRATA_OK || l->on_row(l->context, row)) return status;
    return st_error_set(l->error, STRATA_INTERRUPTED, NULL, "stopped after %s", st_op_name(row->kind));
}

/* The step has `rows` rows of one conversation, whose pages are adjacent. */
static st_op start(op_timer *l, st_op_kind kind, uint32_t rows, uint32_t position)
{
    l->used = 0;
    st_step_lay_out(l->step, BATCH, 1, rows, PAGES);
    l->step->out_count = rows;
    *st_step_conversations(l->step) = (st_step_conversation){.rows = rows, .position = position};
    for (uint32_t i = 0; i < rows; i++) st_step_rows(l->step)[i] = (st_step_row){.position = position + i};
    for (uint32_t i = 0; i < PAGES; i++) st_step_tables(l->step)[i] = i;
    return (st_op){.kind = kind};
}

static strata_status time_matmul(op_timer *l, uint32_t type, uint32_t rows)
{
    st_op op = start(l, ST_OP_MATMUL, rows, 0);
    uint32_t columns = st_measure_columns(WIDTH, l->workers);
    st_bound_op bound = {.op = &op, .in[0] = value(l, WIDTH, rows), .out = value(l, columns, rows)};
    bound.weight[0] = matrix(l, type, WIDTH, columns, 1);
    st_op_measure row = {op.kind, st_type_find(type)->name, rows, 0, (double)bound.weight[0].row_bytes * columns,
                         2.0 * WIDTH * columns * rows};
    return time_op(l, &bound, &row);
}

static strata_status time_experts(op_timer *l, uint32_t type, uint32_t rows)
{
    st_op op = start(l, ST_OP_EXPERTS, rows, 0);
    op.p.experts.experts = EXPERTS;
    op.p.experts.used = USED;
    op.p.experts.width = EXPERT_WIDTH;
    op.p.experts.fused = true;
    st_bound_op bound = {.op = &op, .in = {value(l, WIDTH, rows), value(l, USED, rows), value(l, USED, rows)},
                         .out = value(l, WIDTH, rows)};
    int32_t *ids = bound.in[1].data;
    for (uint32_t i = 0; i < rows * USED; i++) ids[i] = (int32_t)((i * 5 + i / USED) % EXPERTS);
    /* gate, up and down share one table of addresses: the bytes read are the same */
    bound.weight[0] = matrix(l, type, WIDTH, 2 * EXPERT_WIDTH, EXPERTS);
    bound.weight[2] = bound.weight[0];
    bound.weight[2].ne[0] = EXPERT_WIDTH;
    st_type_row_bytes(bound.weight[2].info, EXPERT_WIDTH, &bound.weight[2].row_bytes);
    double touched = rows * USED < EXPERTS ? rows * USED : EXPERTS;
    double gate_up_bytes = (double)bound.weight[0].row_bytes * 2 * EXPERT_WIDTH;
    double expert_bytes = gate_up_bytes + (double)bound.weight[2].row_bytes * WIDTH;
    st_op_measure row = {op.kind, st_type_find(type)->name, rows, 0, touched * expert_bytes,
                         6.0 * WIDTH * EXPERT_WIDTH * USED * rows};
    return time_op(l, &bound, &row);
}

static strata_status time_attention(op_timer *l, st_type type, uint32_t rows)
{
    st_op op = start(l, ST_OP_ATTENTION, rows, DEPTH);
    op.p.attention.heads = HEADS;
    op.p.attention.kv_heads = KV_HEADS;
    op.p.attention.key_length = op.p.attention.value_length = HEAD;
    op.p.attention.scale = 1;
    size_t row_bytes = st_row_bytes(type, KV_HEADS * HEAD);
    size_t page_bytes = row_bytes << PAGE_SHIFT;
    st_bound_op bound = {.op = &op, .in[0] = value(l, HEADS * HEAD, rows), .out = value(l, HEADS * HEAD, rows)};
    bound.kv = (st_kv_view){.keys = reserve(l, PAGES * page_bytes), .values = reserve(l, PAGES * page_bytes),
                            .key_row_bytes = row_bytes, .value_row_bytes = row_bytes, .key_page_bytes = page_bytes,
                            .value_page_bytes = page_bytes, .page_shift = PAGE_SHIFT, .pages = PAGES, .type = type};
    st_op_measure row = {op.kind, st_type_find(type)->name, rows, 0, 2.0 * (DEPTH + rows) * (double)row_bytes,
                         4.0 * HEADS * HEAD * (DEPTH + rows / 2.0) * rows};
    return time_op(l, &bound, &row);
}

static strata_status time_deltanet(op_timer *l, uint32_t rows)
{
    st_op op = start(l, ST_OP_DELTANET, rows, 0);
    op.p.deltanet.key_heads = HEADS;
    op.p.deltanet.value_heads = VALUE_HEADS;
    op.p.deltanet.size = HEAD;
    uint32_t channels = (2 * HEADS + VALUE_HEADS) * HEAD;
    st_bound_op bound = {.op = &op,
                         .in = {value(l, channels, rows), value(l, VALUE_HEADS, rows), value(l, VALUE_HEADS, rows)},
                         .out = value(l, VALUE_HEADS * HEAD, rows)};
    bound.weight[0] = matrix(l, ST_TYPE_F32, VALUE_HEADS, 1, 1);
    bound.weight[1] = matrix(l, ST_TYPE_F32, VALUE_HEADS, 1, 1);
    size_t state = (size_t)VALUE_HEADS * HEAD * HEAD;
    bound.state = (st_state_view){.delta = reserve(l, state * sizeof(float)), .slot_floats = state, .slots = 1};
    st_op_measure row = {op.kind, "F32", rows, 0, 2.0 * (double)state * sizeof(float), 7.0 * (double)state * rows};
    return time_op(l, &bound, &row);
}

/* Operations on rows: two inputs, one output, a weight that some of them use. */
static strata_status time_rows(op_timer *l, st_op_kind kind, uint32_t rows)
{
    st_op op = start(l, kind, rows, 0);
    if (kind == ST_OP_RMS_NORM) {
        op.p.norm.group = WIDTH;
        op.p.norm.epsilon = 1e-6f;
    } else if (kind == ST_OP_ROPE) {
        op.p.rope.heads = HEADS;
        op.p.rope.head_size = op.p.rope.dims = HEAD;
        op.p.rope.style = ST_ROPE_HALVES;
    } else if (kind == ST_OP_CONV) op.p.conv.width = TAPS;
    else if (kind == ST_OP_SOFTCAP) op.p.softcap.cap = 30;
    st_bound_op bound = {.op = &op, .in = {value(l, WIDTH, rows), value(l, WIDTH, rows)}};
    bound.out = kind == ST_OP_ROPE ? bound.in[0] : value(l, WIDTH, rows);
    bound.weight[0] = kind == ST_OP_CONV ? matrix(l, ST_TYPE_F32, TAPS, WIDTH, 1) : matrix(l, ST_TYPE_F32, WIDTH, 1, 1);
    size_t state = (size_t)WIDTH * TAPS;
    bound.state = (st_state_view){.conv = reserve(l, state * sizeof(float)), .slot_floats = state, .slots = 1};
    st_op_measure row = {kind, "-", rows, 0, 3.0 * WIDTH * rows * sizeof(float), 4.0 * WIDTH * rows};
    return time_op(l, &bound, &row);
}

static strata_status time_all(op_timer *l)
{
    static const uint32_t rows[] = {1, BATCH};
    static const st_op_kind row_kinds[] = {ST_OP_RMS_NORM, ST_OP_ROPE, ST_OP_ADD, ST_OP_GATED_ACT, ST_OP_SIGMOID_GATE,
                                           ST_OP_SILU_GATE, ST_OP_SOFTCAP, ST_OP_CONV};
    strata_status status = STRATA_OK;
    for (size_t r = 0; r < 2; r++) {
        for (size_t t = 0; t < st_type_count() && status == STRATA_OK; t++) {
            st_type type = st_type_at(t);
            if (type >= ST_TYPE_I8 && type <= ST_TYPE_F64) continue; /* not weights of any model */
            status = time_matmul(l, type, rows[r]);
        }
        for (size_t t = 0; t < st_type_count() && status == STRATA_OK; t++)
            if (st_type_at(t) == ST_TYPE_Q4_K || st_type_at(t) == ST_TYPE_Q6_K || st_type_at(t) == ST_TYPE_Q8_0)
                status = time_experts(l, st_type_at(t), rows[r]);
        for (size_t t = 0; t < ST_KV_TYPES && status == STRATA_OK; t++)
            status = time_attention(l, st_kv_types[t].type, rows[r]);
        if (status == STRATA_OK) status = time_deltanet(l, rows[r]);
        for (size_t k = 0; k < sizeof row_kinds / sizeof *row_kinds && status == STRATA_OK; k++)
            status = time_rows(l, row_kinds[k], rows[r]);
    }
    return status;
}

/* `bytes` of memory, and as much as the workers' scratch may need. */
static strata_status open_timer(op_timer *l, size_t bytes)
{
    st_device_info info;
    void *memory = NULL;
    l->backend->info(l->device, &info);
    l->workers = info.workers;
    l->bytes = bytes + ((size_t)4 * info.workers << 20);
    strata_status status = l->backend->alloc(l->device, l->bytes, &memory, l->error);
    l->memory = memory;
    if (status != STRATA_OK) return status;
    static const st_step_limits most = {.rows = BATCH, .out_rows = BATCH, .conversations = 1, .tables = PAGES};
    l->step = st_alloc_zero(1, st_step_bytes(&most));
    if (!l->step) return st_error_memory(l->error, st_step_bytes(&most), "the measurement of operations");
    status = l->backend->queue_new(l->device, ST_QUEUE_COMPUTE, &l->queue, l->error);
    return status == STRATA_OK ? l->backend->zero(l->queue, l->memory, l->bytes, l->error) : status;
}

static void close_timer(op_timer *l)
{
    if (l->queue) l->backend->queue_free(l->queue);
    st_free(l->step);
    l->backend->free(l->device, l->memory);
}

strata_status st_measure_ops(const st_backend *backend, st_device *device, st_on_measure on_row, void *context,
                             strata_error *error)
{
    const void *parts[EXPERTS];
    op_timer l = {.backend = backend, .device = device, .parts = parts, .on_row = on_row, .context = context,
                  .error = error};
    strata_status status = open_timer(&l, (size_t)384 << 20);
    if (status == STRATA_OK) status = time_all(&l);
    close_timer(&l);
    return status;
}

/* --- experts of one row, from memory ------------------------------------------------------------------------------- */

enum { SPLIT_OPS_MAX = 64 }; /* launches of a pass */

typedef struct split_timer {
    op_timer *timer;
    st_op op;
    st_segment *segments[SPLIT_OPS_MAX];
    const void *gate_up[SPLIT_OPS_MAX][USED], *down[SPLIT_OPS_MAX][USED];
    uint32_t count;
} split_timer;

static strata_status prepare_split(split_timer *s, uint32_t used, const st_bound_op *shape, void *scratch,
                                   const st_scratch *needed)
{
    op_timer *l = s->timer;
    st_bound_op bound = *shape;
    for (uint32_t i = 0; i < used; i++) {
        s->gate_up[s->count][i] = reserve(l, bound.weight[0].row_bytes * 2 * EXPERT_WIDTH);
        s->down[s->count][i] = reserve(l, bound.weight[2].row_bytes * WIDTH);
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
    double end = st_clock_seconds() + SEGMENT_SECONDS, best = 1e9;
    for (int try = 0; (try < TRIES || st_clock_seconds() < end) && status == STRATA_OK; try++) {
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
    op_timer *l = s->timer;
    s->op = start(l, ST_OP_EXPERTS, 1, 0);
    s->op.p.experts.experts = s->op.p.experts.used = used;
    s->op.p.experts.width = EXPERT_WIDTH;
    s->op.p.experts.fused = true;
    st_bound_op shape = {.op = &s->op, .in = {value(l, WIDTH, 1), value(l, used, 1), value(l, used, 1)},
                         .out = value(l, WIDTH, 1)};
    for (uint32_t i = 0; i < used; i++) ((int32_t *)shape.in[1].data)[i] = (int32_t)i;
    shape.weight[0] = matrix(l, ST_TYPE_Q4_K, WIDTH, 2 * EXPERT_WIDTH, 1);
    shape.weight[2] = matrix(l, ST_TYPE_Q4_K, EXPERT_WIDTH, WIDTH, 1);
    shape.weight[0].ne[2] = shape.weight[2].ne[2] = used;
    shape.weight[0].parts = s->gate_up[0];
    shape.weight[2].parts = s->down[0];
    point->work = used * (double)(shape.weight[0].row_bytes * 2 * EXPERT_WIDTH + shape.weight[2].row_bytes * WIDTH);
    st_scratch needed = l->backend->scratch(&shape, 1);
    needed.shared_bytes = align_up(needed.shared_bytes);
    needed.worker_bytes = align_up(needed.worker_bytes);
    void *scratch = reserve(l, needed.shared_bytes + needed.worker_bytes * l->workers);
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
    op_timer l = {.backend = backend, .device = device, .error = error};
    split_timer *s = st_alloc_zero(1, sizeof *s);
    size_t bytes = (size_t)st_memory_probe_bytes_now();
    if (!s) return st_error_memory(error, sizeof *s, "the measurement of experts");
    s->timer = &l;
    strata_status status = open_timer(&l, bytes + ((size_t)32 << 20));
    if (status == STRATA_OK) status = time_split(s, 1, bytes, &points[0]);
    if (status == STRATA_OK) status = time_split(s, USED, bytes, &points[1]);
    close_timer(&l);
    st_free(s);
    return status;
}

/* A decoder of nothing but matrices: each reads from what the one before it wrote. */
static strata_status time_chain(op_timer *l, uint32_t type, size_t bytes, double *rate)
{
    st_op op = start(l, ST_OP_MATMUL, 1, 0);
    uint32_t columns = st_measure_columns(CHAIN_WIDTH, l->workers);
    st_bound_value values[] = {value(l, columns, 1), value(l, columns, 1)};
    st_bound_weight first = matrix(l, type, CHAIN_WIDTH, columns, 1);
    size_t matrix_bytes = first.row_bytes * columns, count = bytes / align_up(matrix_bytes);
    if (count > CHAIN_MAX) count = CHAIN_MAX;
    if (count == 0) return STRATA_OK; /* no memory to measure with: the rate stays as it is */
    st_bound_op *ops = st_alloc_zero(count, sizeof *ops);
    if (!ops) return st_error_memory(l->error, count * sizeof *ops, "timing matrices");
    for (size_t i = 0; i < count; i++) {
        ops[i] = (st_bound_op){.op = &op, .in[0] = {values[i % 2].data, CHAIN_WIDTH}, .out = values[(i + 1) % 2]};
        ops[i].weight[0] = i == 0 ? first : matrix(l, type, CHAIN_WIDTH, columns, 1);
    }
    double seconds;
    strata_status status = time_ops(l, ops, (uint32_t)count, &seconds);
    st_free(ops);
    if (status == STRATA_OK && seconds > 0) *rate = (double)(count * matrix_bytes) / seconds;
    return status;
}

strata_status st_measure_reading(const st_backend *backend, st_device *device, double *rates, uint32_t types,
                                 strata_error *error)
{
    op_timer l = {.backend = backend, .device = device, .error = error};
    size_t bytes = (size_t)st_memory_probe_bytes_now();
    strata_status status = open_timer(&l, bytes);
    for (uint32_t type = 0; type < types && status == STRATA_OK; type++)
        if (rates[type] > 0.0) status = time_chain(&l, type, bytes, &rates[type]);
    close_timer(&l);
    return status;
}
