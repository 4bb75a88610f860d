#include <string.h>

#include "backend/backend.h"

static st_bound_value value_shape(const st_program *program, int32_t value)
{
    return (st_bound_value){.width = value == ST_NO_VALUE ? 0 : program->values[value].width};
}

/* Rows that are no whole number of blocks have row_bytes 0. */
static st_bound_weight weight_shape(const st_binding *binding, int32_t weight)
{
    st_bound_weight shape = {0};
    if (weight == ST_NO_WEIGHT) return shape;
    const st_weight *w = &binding->weights[weight];
    shape.info = w->tensor->info;
    shape.type = w->tensor->type;
    memcpy(shape.ne, w->ne, sizeof shape.ne);
    st_type_row_bytes(shape.info, shape.ne[0], &shape.row_bytes);
    return shape;
}

st_bound_op st_bound_shape(const st_program *program, const st_binding *binding, const st_op *op)
{
    st_bound_op shape = {.op = op, .out = value_shape(program, op->out), .out2 = value_shape(program, op->out2)};
    for (int i = 0; i < ST_OP_INPUTS; i++) shape.in[i] = value_shape(program, op->in[i]);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) shape.weight[i] = weight_shape(binding, op->weight[i]);
    return shape;
}

void st_bound_for_context(st_bound_op *bound, uint32_t context)
{
    if (bound->op->kind != ST_OP_ANGLES || !bound->weight[1].data) return;
    if ((float)context > bound->op->p.angles.rope.original_context) bound->weight[0] = bound->weight[1];
    bound->weight[1] = (st_bound_weight){0};
}
