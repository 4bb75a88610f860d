#include "support/form_rig.h"

#include <math.h>
#include <string.h>

#include "quant/row.h"
#include "support/mirror.h"

st_op form_op(st_op_kind kind)
{
    st_op op = {.kind = kind};
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op.weight[i] = ST_NO_WEIGHT;
    return op;
}

void form_need(st_op *op, const st_bound_op *bound)
{
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op->weight[i] = bound->weight[i].data ? 0 : ST_NO_WEIGHT;
    const st_backend *backend = mirror_name() ? mirror_backend() : NULL;
    bool kind = !backend || !backend->types || backend->types[op->kind] != 0;
    if (!kind || (backend && backend->runs && !backend->runs(op))) skip();
}

st_bound_weight form_floats(size_t width, size_t rows, size_t parts)
{
    st_bound_weight w = {.info = st_type_find(ST_TYPE_F32), .type = ST_TYPE_F32, .ne = {width, rows, parts}, .row_bytes = width * 4};
    w.data = random_floats(width * rows * parts);
    return w;
}

static void free_weight(st_bound_weight *w)
{
    st_free((void *)(uintptr_t)w->data);
    st_free((void *)(uintptr_t)w->parts);
}

void form_free(st_bound_op *b, st_step *step)
{
    for (int i = 0; i < ST_OP_INPUTS; i++) st_free(b->in[i].data);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) free_weight(&b->weight[i]);
    st_free(step);
}

st_bound_value form_value(uint32_t rows, uint32_t width)
{
    return (st_bound_value){.data = random_floats((size_t)rows * width), .width = width};
}

/* A scale of 2⁻⁴ to 2⁻¹, then codes. */
static void fill_mxfp4(unsigned char *data, size_t bytes)
{
    enum { BLOCK_BYTES = 17, EXPONENT = 123 };
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)(i % BLOCK_BYTES ? random_bits() : EXPONENT + random_bits() % 4);
}

st_bound_weight form_weight(st_type type, size_t width, size_t rows, size_t parts)
{
    st_bound_weight w = {.info = st_type_find(type), .type = type, .ne = {width, rows, parts}};
    assert_true(st_type_row_bytes(w.info, width, &w.row_bytes));
    unsigned char *data = st_alloc_array(rows * parts, w.row_bytes);
    float *row = random_floats(width);
    assert_non_null(data);
    for (size_t i = 0; i < rows * parts && type != ST_TYPE_MXFP4; i++) {
        for (size_t k = 0; k < width; k++) row[k] = random_float();
        st_row_store(type, row, width, data + i * w.row_bytes);
    }
    if (type == ST_TYPE_MXFP4) fill_mxfp4(data, rows * parts * w.row_bytes);
    st_free(row);
    w.data = data;
    return w;
}

st_bound_weight form_table(st_bound_weight w)
{
    const void **table = st_alloc_array(w.ne[2], sizeof *table);
    assert_non_null(table);
    for (size_t i = 0; i < w.ne[2]; i++) table[i] = (const unsigned char *)w.data + i * w.ne[1] * w.row_bytes;
    w.parts = table;
    return w;
}

st_bound_weight form_experts(uint32_t width, uint32_t columns, uint32_t count)
{
    return form_table(form_floats(width, columns, count));
}

void form_choices(st_bound_op *bound, uint32_t rows)
{
    uint32_t used = bound->op->p.experts.used, count = bound->op->p.experts.experts;
    int32_t *ids = st_alloc_array((size_t)rows * used, sizeof *ids);
    assert_non_null(ids);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0, first = random_bits(); k < used; k++) ids[r * used + k] = (int32_t)((first + k) % count);
    bound->in[1] = (st_bound_value){ids, used};
    bound->in[2] = form_value(rows, used);
}

/* As files store it: the state decays. */
static void make_negative(const st_bound_weight *w)
{
    for (size_t i = 0; i < w->ne[0]; i++) ((float *)(uintptr_t)w->data)[i] = -fabsf(random_float());
}

st_bound_op form_deltanet(st_op *op, uint32_t rows, uint32_t keys, uint32_t values, uint32_t size, bool channels)
{
    uint32_t decays = channels ? values * size : values;
    op->p.deltanet.key_heads = keys;
    op->p.deltanet.value_heads = values;
    op->p.deltanet.size = size;
    op->p.deltanet.grouped = !channels;
    op->p.deltanet.channels = channels;
    st_bound_op bound = {.op = op, .out = {.width = values * size}, .state.slots = 2};
    bound.in[0] = form_value(rows, (2 * keys + values) * size);
    bound.in[1] = form_value(rows, decays);
    bound.in[2] = form_value(rows, values);
    bound.weight[0] = form_floats(decays, 1, 1);
    bound.weight[1] = form_floats(values, 1, 1);
    make_negative(&bound.weight[1]);
    bound.state.slot_floats = (size_t)values * size * size;
    return bound;
}

st_bound_op form_ssm(st_op *op, uint32_t rows, uint32_t heads, uint32_t size, uint32_t states, uint32_t groups)
{
    op->p.ssm.heads = heads;
    op->p.ssm.head_size = size;
    op->p.ssm.state_size = states;
    op->p.ssm.groups = groups;
    st_bound_op bound = {.op = op, .out = {.width = heads * size}, .state.slots = 2};
    bound.in[0] = form_value(rows, heads * size + 2 * groups * states);
    bound.in[1] = form_value(rows, heads);
    for (int i = 0; i < 3; i++) bound.weight[i] = form_floats(heads, 1, 1);
    make_negative(&bound.weight[1]);
    bound.state.slot_floats = (size_t)heads * size * states;
    return bound;
}

void form_compare_state(const char *cpu, const char *what, st_bound_op *bound, st_step *step, float **view, size_t floats, uint64_t seed)
{
    float *start = random_floats(floats), *out[2], *state[2];
    size_t count = (size_t)step->count * bound->out.width;
    for (int i = 0; i < 2; i++) {
        out[i] = random_floats(count);
        state[i] = random_floats(floats);
        memcpy(state[i], start, floats * sizeof *start);
        *view = state[i];
        bound->out.data = out[i];
        run_op(i ? cpu : "ref", bound, step);
    }
    note(cpu, what, distance(out[1], out[0], count), 1e-5, step->count, seed);
    note(cpu, what, distance(state[1], state[0], floats), 1e-5, step->count, seed);
    for (int i = 0; i < 2; i++) {
        st_free(out[i]);
        st_free(state[i]);
    }
    st_free(start);
}

st_step *form_two_conversations(uint32_t first, uint32_t second)
{
    step_part parts[] = {{.rows = first, .slot = 1}, {.rows = second, .slot = 0}};
    return step_new(parts, 2, NULL, 0);
}
