/* What an operation costs, as functions of its shape and the batch: the planner's and the benchmark's arithmetic. */
#include "model/program.h"

#include <math.h>

typedef struct op_view {
    const st_program *program;
    const st_binding *binding;
    const st_op *op;
    uint32_t rows, depth;
} op_view;

static double width(const op_view *v, int32_t value)
{
    return value == ST_NO_VALUE ? 0 : v->program->values[value].width;
}

static double weight_bytes(const op_view *v)
{
    double bytes = 0;
    for (int i = 0; i < ST_OP_WEIGHTS; i++)
        if (v->op->weight[i] != ST_NO_WEIGHT) bytes += (double)v->binding->weights[v->op->weight[i]].bytes;
    return bytes;
}

static double value_bytes(const op_view *v)
{
    double elements = width(v, v->op->out) + width(v, v->op->out2);
    for (int i = 0; i < ST_OP_INPUTS; i++) elements += width(v, v->op->in[i]);
    return elements * sizeof(float) * v->rows;
}

static st_op_cost cost_elementwise(const op_view *v)
{
    double widest = width(v, v->op->in[0]);
    if (width(v, v->op->out) > widest) widest = width(v, v->op->out);
    return (st_op_cost){.flops = 4 * widest * v->rows, .weight_bytes = weight_bytes(v), .value_bytes = value_bytes(v)};
}

/* One row of the table per token. */
static st_op_cost cost_embed(const op_view *v)
{
    const st_weight *table = &v->binding->weights[v->op->weight[0]];
    double row = (double)table->bytes / (double)table->ne[1];
    return (st_op_cost){.flops = width(v, v->op->out) * v->rows, .weight_bytes = row * v->rows,
                        .value_bytes = value_bytes(v)};
}

static st_op_cost cost_matmul(const op_view *v)
{
    const st_weight *matrix = &v->binding->weights[v->op->weight[0]];
    return (st_op_cost){.flops = 2.0 * (double)matrix->ne[0] * (double)matrix->ne[1] * v->rows,
                        .weight_bytes = weight_bytes(v),
                        .value_bytes = value_bytes(v)};
}

static st_op_cost cost_head_matmul(const op_view *v)
{
    st_op_cost cost = cost_matmul(v);
    cost.flops *= (double)v->binding->weights[v->op->weight[0]].ne[2];
    return cost;
}

static st_op_cost cost_kv_store(const op_view *v)
{
    double bytes = value_bytes(v);
    return (st_op_cost){.flops = bytes / sizeof(float), .state_bytes = bytes, .value_bytes = bytes};
}

static st_op_cost cost_attention(const op_view *v)
{
    double heads = v->op->p.attention.heads, kv_heads = v->op->p.attention.kv_heads;
    double head = (double)v->op->p.attention.key_length + v->op->p.attention.value_length;
    double kept = v->op->p.attention.value_in_key ? v->op->p.attention.key_length : head;
    double seen = (double)v->depth + (v->rows + 1) / 2.0;
    double span = v->op->p.attention.window ? v->op->p.attention.window : v->op->p.attention.chunk;
    if (span > 0 && seen > span) seen = span;
    return (st_op_cost){.flops = 2 * heads * head * seen * v->rows,
                        .state_bytes = kv_heads * kept * sizeof(float) * seen,
                        .value_bytes = value_bytes(v)};
}

double st_experts_touched(const st_op *op, double rows)
{
    double experts = op->p.experts.experts, share = experts > 0 ? op->p.experts.used / experts : 1;
    return share < 1 ? experts * (1 - pow(1 - share, rows)) : experts;
}

/* Each expert that a batch chooses is read once. */
static st_op_cost cost_experts(const op_view *v)
{
    double experts = v->op->p.experts.experts, used = v->op->p.experts.used;
    double touched = st_experts_touched(v->op, v->rows);
    double e = width(v, v->op->in[0]), f = v->op->p.experts.width, matrices = v->op->p.experts.ungated ? 2 : 3;
    return (st_op_cost){.flops = 2 * matrices * e * f * used * v->rows,
                        .weight_bytes = weight_bytes(v) * touched / experts,
                        .value_bytes = value_bytes(v)};
}

static st_op_cost cost_conv(const op_view *v)
{
    double channels = width(v, v->op->in[0]), taps = v->op->p.conv.width;
    return (st_op_cost){.flops = 2 * channels * taps * v->rows,
                        .weight_bytes = weight_bytes(v),
                        .state_bytes = 2 * channels * (taps - 1) * sizeof(float),
                        .value_bytes = value_bytes(v)};
}

static st_op_cost cost_deltanet(const op_view *v)
{
    double heads = v->op->p.deltanet.value_heads, size = v->op->p.deltanet.size;
    double state = heads * size * size;
    return (st_op_cost){.flops = 7 * state * v->rows,
                        .weight_bytes = weight_bytes(v),
                        .state_bytes = 2 * state * sizeof(float),
                        .value_bytes = value_bytes(v)};
}

static st_op_cost cost_ssm(const op_view *v)
{
    double state = (double)v->op->p.ssm.heads * v->op->p.ssm.head_size * v->op->p.ssm.state_size;
    return (st_op_cost){.flops = 5 * state * v->rows,
                        .weight_bytes = weight_bytes(v),
                        .state_bytes = 2 * state * sizeof(float),
                        .value_bytes = value_bytes(v)};
}

typedef struct op_row {
    const char *name;
    st_op_cost (*cost)(const op_view *view);
} op_row;

static const op_row op_rows[ST_OP_COUNT] = {
#define OP(id, text, cost) [ST_OP_##id] = {text, cost},
#include "model/ops.def"
#undef OP
};

const char *st_op_name(st_op_kind kind)
{
    return op_rows[kind].name;
}

st_op_cost st_op_estimate(const st_program *program, const st_binding *binding, const st_op *op, uint32_t rows,
                          uint32_t depth)
{
    op_view view = {.program = program, .binding = binding, .op = op, .rows = rows, .depth = depth};
    /* cppcheck-suppress returnDanglingLifetime ; a cost holds numbers alone */
    return op_rows[op->kind].cost(&view);
}
