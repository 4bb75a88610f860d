#include "run/measure.h"

#include "base/error.h"
#include "kv/layout.h"
#include "quant/row.h"
#include "run/measure_timer.h"

enum { HEADS = 16, KV_HEADS = 8, HEAD = 128, VALUE_HEADS = 32, TAPS = 4 };

static strata_status time_op(st_op_timer *l, const st_bound_op *bound, st_op_measure *row)
{
    strata_status status = st_timer_ops(l, bound, 1, &row->seconds);
    if (status != STRATA_OK || l->on_row(l->context, row)) return status;
    return st_error_set(l->error, STRATA_INTERRUPTED, NULL, "stopped after %s", st_op_name(row->kind));
}

static strata_status time_matmul(st_op_timer *l, uint32_t type, uint32_t rows)
{
    st_op op = st_timer_start(l, ST_OP_MATMUL, rows, 0);
    uint32_t columns = st_measure_columns(ST_TIMED_WIDTH, l->workers);
    st_bound_op bound = {.op = &op, .in[0] = st_timer_value(l, ST_TIMED_WIDTH, rows), .out = st_timer_value(l, columns, rows)};
    bound.weight[0] = st_timer_matrix(l, type, ST_TIMED_WIDTH, columns, 1);
    st_op_measure row = {op.kind, st_type_find(type)->name, rows, 0, (double)bound.weight[0].row_bytes * columns,
                         2.0 * ST_TIMED_WIDTH * columns * rows};
    return time_op(l, &bound, &row);
}

static strata_status time_experts(st_op_timer *l, uint32_t type, uint32_t rows)
{
    st_op op = st_timer_start(l, ST_OP_EXPERTS, rows, 0);
    op.p.experts.experts = ST_TIMED_EXPERTS;
    op.p.experts.used = ST_TIMED_USED;
    op.p.experts.width = ST_TIMED_EXPERT_WIDTH;
    op.p.experts.fused = true;
    st_bound_op bound = {.op = &op, .in = {st_timer_value(l, ST_TIMED_WIDTH, rows), st_timer_value(l, ST_TIMED_USED, rows), st_timer_value(l, ST_TIMED_USED, rows)},
                         .out = st_timer_value(l, ST_TIMED_WIDTH, rows)};
    int32_t *ids = bound.in[1].data;
    for (uint32_t i = 0; i < rows * ST_TIMED_USED; i++) ids[i] = (int32_t)((i * 5 + i / ST_TIMED_USED) % ST_TIMED_EXPERTS);
    /* gate, up and down share one table of addresses: the bytes read are the same */
    bound.weight[0] = st_timer_matrix(l, type, ST_TIMED_WIDTH, 2 * ST_TIMED_EXPERT_WIDTH, ST_TIMED_EXPERTS);
    bound.weight[2] = bound.weight[0];
    bound.weight[2].ne[0] = ST_TIMED_EXPERT_WIDTH;
    st_type_row_bytes(bound.weight[2].info, ST_TIMED_EXPERT_WIDTH, &bound.weight[2].row_bytes);
    double touched = rows * ST_TIMED_USED < ST_TIMED_EXPERTS ? rows * ST_TIMED_USED : ST_TIMED_EXPERTS;
    double gate_up_bytes = (double)bound.weight[0].row_bytes * 2 * ST_TIMED_EXPERT_WIDTH;
    double expert_bytes = gate_up_bytes + (double)bound.weight[2].row_bytes * ST_TIMED_WIDTH;
    st_op_measure row = {op.kind, st_type_find(type)->name, rows, 0, touched * expert_bytes,
                         6.0 * ST_TIMED_WIDTH * ST_TIMED_EXPERT_WIDTH * ST_TIMED_USED * rows};
    return time_op(l, &bound, &row);
}

static strata_status time_attention(st_op_timer *l, st_type type, uint32_t rows, uint32_t position)
{
    st_op op = st_timer_start(l, ST_OP_ATTENTION, rows, position);
    op.p.attention.heads = HEADS;
    op.p.attention.kv_heads = KV_HEADS;
    op.p.attention.key_length = op.p.attention.value_length = HEAD;
    op.p.attention.scale = 1;
    size_t row_bytes = st_row_bytes(type, KV_HEADS * HEAD);
    size_t page_bytes = row_bytes << ST_TIMED_PAGE_SHIFT;
    st_bound_op bound = {.op = &op, .in[0] = st_timer_value(l, HEADS * HEAD, rows), .out = st_timer_value(l, HEADS * HEAD, rows)};
    bound.kv = (st_kv_view){.keys = st_timer_reserve(l, ST_TIMED_PAGES * page_bytes), .values = st_timer_reserve(l, ST_TIMED_PAGES * page_bytes),
                            .key_row_bytes = row_bytes, .value_row_bytes = row_bytes, .key_page_bytes = page_bytes,
                            .value_page_bytes = page_bytes, .page_shift = ST_TIMED_PAGE_SHIFT, .pages = ST_TIMED_PAGES, .type = type};
    st_op_measure row = {op.kind, st_type_find(type)->name, rows, 0, 2.0 * (position + rows) * (double)row_bytes,
                         4.0 * HEADS * HEAD * (position + rows / 2.0) * rows};
    return time_op(l, &bound, &row);
}

static strata_status time_deltanet(st_op_timer *l, uint32_t rows)
{
    st_op op = st_timer_start(l, ST_OP_DELTANET, rows, 0);
    op.p.deltanet.key_heads = HEADS;
    op.p.deltanet.value_heads = VALUE_HEADS;
    op.p.deltanet.size = HEAD;
    uint32_t channels = (2 * HEADS + VALUE_HEADS) * HEAD;
    st_bound_op bound = {.op = &op,
                         .in = {st_timer_value(l, channels, rows), st_timer_value(l, VALUE_HEADS, rows), st_timer_value(l, VALUE_HEADS, rows)},
                         .out = st_timer_value(l, VALUE_HEADS * HEAD, rows)};
    bound.weight[0] = st_timer_matrix(l, ST_TYPE_F32, VALUE_HEADS, 1, 1);
    bound.weight[1] = st_timer_matrix(l, ST_TYPE_F32, VALUE_HEADS, 1, 1);
    size_t state = (size_t)VALUE_HEADS * HEAD * HEAD;
    bound.state = (st_state_view){.delta = st_timer_reserve(l, state * sizeof(float)), .slot_floats = state, .slots = 1};
    st_op_measure row = {op.kind, "F32", rows, 0, 2.0 * (double)state * sizeof(float), 7.0 * (double)state * rows};
    return time_op(l, &bound, &row);
}

/* Operations on rows: two inputs, one output, a weight that some of them use. */
static strata_status time_rows(st_op_timer *l, st_op_kind kind, uint32_t rows)
{
    st_op op = st_timer_start(l, kind, rows, 0);
    if (kind == ST_OP_RMS_NORM) {
        op.p.norm.group = ST_TIMED_WIDTH;
        op.p.norm.epsilon = 1e-6f;
    } else if (kind == ST_OP_ROPE) {
        op.p.rope.heads = HEADS;
        op.p.rope.head_size = op.p.rope.dims = HEAD;
        op.p.rope.style = ST_ROPE_HALVES;
    } else if (kind == ST_OP_CONV) op.p.conv.width = TAPS;
    else if (kind == ST_OP_SOFTCAP) op.p.softcap.cap = 30;
    st_bound_op bound = {.op = &op, .in = {st_timer_value(l, ST_TIMED_WIDTH, rows), st_timer_value(l, ST_TIMED_WIDTH, rows)}};
    bound.out = kind == ST_OP_ROPE ? bound.in[0] : st_timer_value(l, ST_TIMED_WIDTH, rows);
    bound.weight[0] = kind == ST_OP_CONV ? st_timer_matrix(l, ST_TYPE_F32, TAPS, ST_TIMED_WIDTH, 1) : st_timer_matrix(l, ST_TYPE_F32, ST_TIMED_WIDTH, 1, 1);
    size_t state = (size_t)ST_TIMED_WIDTH * TAPS;
    bound.state = (st_state_view){.conv = st_timer_reserve(l, state * sizeof(float)), .slot_floats = state, .slots = 1};
    st_op_measure row = {kind, "-", rows, 0, 3.0 * ST_TIMED_WIDTH * rows * sizeof(float), 4.0 * ST_TIMED_WIDTH * rows};
    return time_op(l, &bound, &row);
}

static bool is_common(st_type type)
{
    return type == ST_TYPE_Q4_K || type == ST_TYPE_Q6_K || type == ST_TYPE_Q8_0;
}

static strata_status time_all(st_op_timer *l)
{
    static const uint32_t rows[] = {1, ST_MEASURE_BATCH};
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
            if (is_common(st_type_at(t))) status = time_experts(l, st_type_at(t), rows[r]);
        for (size_t t = 0; t < ST_KV_TYPES && status == STRATA_OK; t++)
            status = time_attention(l, st_kv_types[t].type, rows[r], ST_TIMED_DEPTH);
        if (status == STRATA_OK) status = time_deltanet(l, rows[r]);
        for (size_t k = 0; k < sizeof row_kinds / sizeof *row_kinds && status == STRATA_OK; k++)
            status = time_rows(l, row_kinds[k], rows[r]);
    }
    for (size_t t = 0; t < st_type_count() && status == STRATA_OK; t++) {
        if (!is_common(st_type_at(t))) continue;
        status = time_matmul(l, st_type_at(t), ST_MEASURE_SMALL_BATCH);
        if (status == STRATA_OK) status = time_experts(l, st_type_at(t), ST_MEASURE_SMALL_BATCH);
    }
    return status;
}

strata_status st_measure_ops(const st_backend *backend, st_device *device, st_on_measure on_row, void *context,
                             strata_error *error)
{
    const void *parts[ST_TIMED_EXPERTS];
    st_op_timer l = {.backend = backend, .device = device, .parts = parts, .on_row = on_row, .context = context,
                  .error = error};
    strata_status status = st_timer_open(&l, (size_t)384 << 20);
    if (status == STRATA_OK) status = time_all(&l);
    st_timer_close(&l);
    return status;
}

static bool keep_seconds(void *seconds, const st_op_measure *row)
{
    *(double *)seconds = row->seconds;
    return true;
}

strata_status st_measure_short_attention(const st_backend *backend, st_device *device, double *seconds, strata_error *error)
{
    st_op_timer l = {.backend = backend, .device = device, .on_row = keep_seconds, .context = seconds, .error = error};
    strata_status status = st_timer_open(&l, (size_t)64 << 20);
    if (status == STRATA_OK) status = time_attention(&l, ST_TYPE_F16, 1, 1 << ST_TIMED_PAGE_SHIFT);
    st_timer_close(&l);
    return status;
}
