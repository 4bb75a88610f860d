/* What an operation costs, as functions of its shape and the batch: the planner's and the benchmark's arithmetic. */
#include "model/program.h"
#include "model/scratch.h"

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

/* --- scratch: the largest that the ways to compute an operation take ----------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ST_SCRATCH_ALIGN - 1) / ST_SCRATCH_ALIGN * ST_SCRATCH_ALIGN;
}

/* int8 activations of `rows` rows: a byte each, and 16 bytes of scale and sums by 32. */
static size_t act_bytes(size_t elements, size_t rows)
{
    size_t tiles = (rows + ST_ACT_TILE - 1) / ST_ACT_TILE;
    return tiles * aligned(ST_ACT_TILE * (elements + elements / ST_ACT_BLOCK * 16));
}

/* The same with what rounding left of one block in ST_REFINE, and a list of those for each tile. */
static size_t batch_bytes(size_t elements, size_t rows)
{
    size_t refined = (elements / ST_ACT_BLOCK + ST_REFINE - 1) / ST_REFINE, tiles = (rows + ST_ACT_TILE - 1) / ST_ACT_TILE;
    return act_bytes(elements, rows) + act_bytes(refined * ST_ACT_BLOCK, rows) + tiles * aligned(refined * sizeof(uint32_t));
}

/* A strip of unpacked weights: a byte each, a scale and an offset by 16. Or one row as floats. */
static size_t strip_bytes(size_t elements)
{
    size_t bytes = ST_STRIP_ROWS * (elements + (elements + 15) / 16 * 2 * sizeof(float));
    return larger(bytes, 2 * elements * sizeof(float)) + 3 * ST_SCRATCH_ALIGN;
}

/* A matrix of floats, a piece at a time. */
enum { FLOAT_PIECE_BYTES = ST_FLOAT_COLUMNS * (2 * ST_FLOAT_STRETCH + ST_FLOAT_ROWS) * 4 };

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
                        .value_bytes = value_bytes(v),
                        .worker_bytes = larger(strip_bytes(matrix->ne[0]), FLOAT_PIECE_BYTES),
                        .shared_bytes = batch_bytes(matrix->ne[0], v->rows)};
}

static st_op_cost cost_kv_store(const op_view *v)
{
    double bytes = value_bytes(v);
    return (st_op_cost){.flops = bytes / sizeof(float), .state_bytes = bytes, .value_bytes = bytes};
}

static size_t up_to(size_t count, size_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

/* Attention in bytes: queries with their sums, a tile, and what both are packed from. */
static size_t byte_attention_bytes(const op_view *v)
{
    size_t key = up_to(v->op->p.attention.key_length, 4), value = up_to(v->op->p.attention.value_length, ST_BYTE_VALUES);
    size_t shared = v->op->p.attention.heads / v->op->p.attention.kv_heads;
    size_t queries = up_to(larger(ST_BYTE_STATE / value, shared), ST_BYTE_GROUP), pieces = 13;
    size_t floats = queries * (value + 16 + 2) + ST_BYTE_KEYS * (larger(key, value) + 2) + value;
    size_t bytes = queries * (key + 2) + ST_BYTE_KEYS * (2 * key + value);
    return floats * sizeof(float) + bytes + pieces * ST_SCRATCH_ALIGN;
}

/* A block of queries against a tile of keys and values; or a few rows; or one position at a time, by the reference. */
static size_t attention_worker_bytes(const op_view *v)
{
    size_t key = v->op->p.attention.key_length, value = up_to(v->op->p.attention.value_length, 16);
    size_t heads = v->op->p.attention.heads, shared = heads / v->op->p.attention.kv_heads;
    size_t queries = larger(ST_QUERY_BLOCK, shared);
    size_t block = queries * (key + ST_KEY_TILE + value + 2) + ST_KEY_TILE * (larger(key, value) + key);
    size_t few = heads * (key + ST_FEW_KEYS) + ST_KEY_RUN * heads / shared * larger(key, value);
    size_t floats = larger(larger(block, few), key + value) * sizeof(float);
    return v->op->p.attention.narrow ? larger(floats, byte_attention_bytes(v)) : floats;
}

/* The stretches of a few rows; or what keys and queries are balanced by, in bytes. */
static size_t attention_shared_bytes(const op_view *v)
{
    size_t heads = v->op->p.attention.heads, kv_heads = v->op->p.attention.kv_heads;
    size_t few = (ST_FEW_ROWS - 1) * ST_STRETCHES * heads * (v->op->p.attention.value_length + 2);
    return larger(few, 3 * kv_heads * up_to(v->op->p.attention.key_length, 4)) * sizeof(float);
}

static st_op_cost cost_attention(const op_view *v)
{
    double heads = v->op->p.attention.heads, kv_heads = v->op->p.attention.kv_heads;
    double head = (double)v->op->p.attention.key_length + v->op->p.attention.value_length;
    double seen = (double)v->depth + (v->rows + 1) / 2.0;
    double span = v->op->p.attention.window ? v->op->p.attention.window : v->op->p.attention.chunk;
    if (span > 0 && seen > span) seen = span;
    return (st_op_cost){.flops = 2 * heads * head * seen * v->rows,
                        .state_bytes = kv_heads * head * sizeof(float) * seen,
                        .value_bytes = value_bytes(v),
                        .worker_bytes = attention_worker_bytes(v),
                        .shared_bytes = attention_shared_bytes(v)};
}

/* The pairs (token, expert) sorted, their inputs and hidden rows, each expert's beginning at a tile. */
static size_t experts_shared_bytes(const op_view *v)
{
    size_t experts = v->op->p.experts.experts, pairs = (size_t)v->rows * v->op->p.experts.used;
    size_t places = pairs + (pairs < experts ? pairs : experts) * (ST_ACT_TILE - 1);
    size_t hidden = v->op->p.experts.width, embedding = v->program->values[v->op->in[0]].width;
    size_t lists = (4 * (experts + 1) + pairs) * sizeof(uint32_t);
    return lists + places * hidden * sizeof(float) + act_bytes(embedding, places) + act_bytes(hidden, places) +
           8 * ST_SCRATCH_ALIGN;
}

static size_t experts_worker_bytes(const op_view *v)
{
    size_t hidden = v->op->p.experts.width, embedding = v->program->values[v->op->in[0]].width;
    size_t columns = larger((size_t)v->rows * ST_STRIP_ROWS, (ST_FEW_ROWS - 1) * ST_FEW_COLUMNS);
    size_t batch = columns * sizeof(float) + strip_bytes(larger(hidden, embedding));
    return larger(batch, (2 * embedding + 3 * hidden) * sizeof(float));
}

/* Each expert that a batch of r rows can touch is read once: at most all, at most r × used. */
static st_op_cost cost_experts(const op_view *v)
{
    double experts = v->op->p.experts.experts, used = v->op->p.experts.used;
    double touched = used * v->rows < experts ? used * v->rows : experts;
    double e = width(v, v->op->in[0]), f = v->op->p.experts.width;
    return (st_op_cost){.flops = 6 * e * f * used * v->rows,
                        .weight_bytes = weight_bytes(v) * touched / experts,
                        .value_bytes = value_bytes(v),
                        .worker_bytes = experts_worker_bytes(v),
                        .shared_bytes = experts_shared_bytes(v)};
}

static st_op_cost cost_conv(const op_view *v)
{
    double channels = width(v, v->op->in[0]), taps = v->op->p.conv.width;
    return (st_op_cost){.flops = 2 * channels * taps * v->rows,
                        .weight_bytes = weight_bytes(v),
                        .state_bytes = 2 * channels * (taps - 1) * sizeof(float),
                        .value_bytes = value_bytes(v),
                        .worker_bytes = (2 * (size_t)taps + 1) * ST_CONV_CHANNELS * sizeof(float)};
}

static st_op_cost cost_deltanet(const op_view *v)
{
    double heads = v->op->p.deltanet.value_heads, size = v->op->p.deltanet.size;
    double state = heads * size * size;
    return (st_op_cost){.flops = 7 * state * v->rows,
                        .weight_bytes = weight_bytes(v),
                        .state_bytes = 2 * state * sizeof(float),
                        .value_bytes = value_bytes(v),
                        .worker_bytes = ST_DELTA_CHUNK * (5 * (size_t)size + 2 * ST_DELTA_CHUNK + 2) * sizeof(float)};
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
