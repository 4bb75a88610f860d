#include "model/emit.h"

int32_t st_emit_value(st_builder *b, const char *name, uint64_t width, st_rows rows)
{
    if (b->value_count == b->value_max) {
        b->overflow = true;
        return 0;
    }
    b->values[b->value_count] = (st_value){.name = name, .width = (uint32_t)width, .rows = rows};
    return (int32_t)b->value_count++;
}

uint32_t st_emit_width(const st_builder *b, int32_t value)
{
    return b->values[value].width;
}

st_rows st_emit_rows(const st_builder *b, int32_t value)
{
    return b->values[value].rows;
}

st_op *st_emit(st_builder *b, st_op_kind kind, int32_t in0, int32_t in1, int32_t out)
{
    if (b->op_count == b->op_max) {
        b->overflow = true;
        b->op_count--;
    }
    st_op *op = &b->ops[b->op_count++];
    *op = (st_op){.kind = kind, .layer = b->layer, .block = b->block, .out = out, .out2 = ST_NO_VALUE};
    for (int i = 0; i < ST_OP_INPUTS; i++) op->in[i] = ST_NO_VALUE;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op->weight[i] = ST_NO_WEIGHT;
    op->in[0] = in0;
    op->in[1] = in1;
    return op;
}

int32_t st_emit_weight(const st_builder *b, st_role role)
{
    return st_binding_find(b->binding, role, b->layer);
}

int32_t st_emit_model_weight(const st_builder *b, st_role role)
{
    return st_binding_find(b->binding, role, -1);
}

int32_t st_emit_embed(st_builder *b, const char *name, int32_t table, float scale)
{
    int32_t out = st_emit_value(b, name, b->binding->weights[table].ne[0], ST_ROWS_ALL);
    st_op *op = st_emit(b, ST_OP_EMBED, ST_NO_VALUE, ST_NO_VALUE, out);
    op->weight[0] = table;
    op->p.embed.scale = scale;
    return out;
}

int32_t st_emit_matmul_bias(st_builder *b, const char *name, int32_t matrix, int32_t bias, int32_t in)
{
    int32_t out = st_emit_value(b, name, b->binding->weights[matrix].ne[1], st_emit_rows(b, in));
    st_op *op = st_emit(b, ST_OP_MATMUL, in, ST_NO_VALUE, out);
    op->weight[0] = matrix;
    op->weight[1] = bias;
    return out;
}

int32_t st_emit_matmul(st_builder *b, const char *name, int32_t matrix, int32_t in)
{
    return st_emit_matmul_bias(b, name, matrix, ST_NO_WEIGHT, in);
}

void st_emit_norm_to(st_builder *b, int32_t norm_weight, uint32_t group, int32_t in, int32_t out)
{
    st_op_kind kind = b->desc->arch->norm == ST_NORM_RMS ? ST_OP_RMS_NORM : ST_OP_LAYER_NORM;
    st_op *op = st_emit(b, kind, in, ST_NO_VALUE, out);
    op->weight[0] = norm_weight;
    op->p.norm.group = group;
    op->p.norm.epsilon = b->desc->norm_epsilon;
}

int32_t st_emit_norm(st_builder *b, const char *name, int32_t norm_weight, int32_t in)
{
    int32_t out = st_emit_value(b, name, st_emit_width(b, in), st_emit_rows(b, in));
    st_emit_norm_to(b, norm_weight, st_emit_width(b, in), in, out);
    return out;
}

void st_emit_norm_in_place(st_builder *b, int32_t norm_weight, uint32_t group, int32_t value)
{
    st_emit_norm_to(b, norm_weight, group, value, value);
}

int32_t st_emit_project(st_builder *b, const char *name, st_role role, st_role bias_role, int32_t in)
{
    int32_t bias = bias_role == ST_ROLE_COUNT ? ST_NO_WEIGHT : st_emit_weight(b, bias_role);
    return st_emit_matmul_bias(b, name, st_emit_weight(b, role), bias, in);
}

void st_emit_norm_row(st_builder *b, st_role role, int32_t value)
{
    st_emit_norm_in_place(b, st_emit_weight(b, role), st_emit_width(b, value), value);
}

void st_emit_add_to(st_builder *b, int32_t value, int32_t other)
{
    st_emit(b, ST_OP_ADD, value, other, value);
}

void st_emit_scale_in_place(st_builder *b, int32_t value, float factor)
{
    st_emit(b, ST_OP_SCALE, value, ST_NO_VALUE, value)->p.scale.factor = factor;
}

void st_emit_mul_weight_in_place(st_builder *b, int32_t value, int32_t factors)
{
    st_emit(b, ST_OP_MUL_WEIGHT, value, ST_NO_VALUE, value)->weight[0] = factors;
}

int32_t st_emit_slice(st_builder *b, const char *name, int32_t in, uint32_t groups, uint32_t stride, uint32_t offset,
                     uint32_t size)
{
    int32_t out = st_emit_value(b, name, (uint64_t)groups * size, st_emit_rows(b, in));
    st_op *op = st_emit(b, ST_OP_SLICE, in, ST_NO_VALUE, out);
    op->p.slice.groups = groups;
    op->p.slice.stride = stride;
    op->p.slice.offset = offset;
    return out;
}

void st_emit_gated_act_in_place(st_builder *b, st_activation activation, int32_t gate, int32_t up)
{
    st_emit(b, ST_OP_GATED_ACT, gate, up, gate)->p.gate.activation = activation;
}
