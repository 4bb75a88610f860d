/* Forms of operations in the sizes of models: a GPU has kernels that small shapes do not reach. The fast path, or the backend of
 * STRATA_TEST_BACKEND, against the reference. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quant/row.h"
#include "support/form_rig.h"
#include "support/mirror.h"

/* Narrow KV and quantised weights cost the CPU's fast path some bits of queries and activations. */
static double error_max(bool exact)
{
    return exact || mirror_name() ? 1e-5 : 1e-3;
}

/* --- attention ------------------------------------------------------------------------------------------------------ */

typedef struct attention_form {
    const char *name;
    uint32_t heads, kv_heads, key, value, window, chunk;
    bool latent, sinks;
} attention_form;

static const attention_form attention_forms[] = {
    {"sinks, heads of 64", 16, 2, 64, 64, 0, 0, false, true},
    {"sinks, heads of 64 with a window", 16, 2, 64, 64, 50, 0, false, true},
    {"three heads of 64 with a window", 9, 3, 64, 64, 45, 0, false, false},
    {"sinks, heads of 128", 3, 3, 128, 128, 0, 0, false, true},
    {"sinks, heads of 256", 9, 1, 256, 256, 0, 0, false, true},
    {"heads of 256 with a window", 8, 4, 256, 256, 70, 0, false, false},
    {"heads of 512", 16, 1, 512, 512, 0, 0, false, false},
    {"sinks, heads of 512 with a window", 6, 2, 512, 512, 50, 0, false, true},
    {"heads of 512 with chunks", 3, 1, 512, 512, 0, 48, false, false},
    {"sinks, heads of 96", 12, 2, 96, 96, 0, 0, false, true},
    {"sinks, keys and values of other lengths", 4, 2, 48, 32, 0, 0, false, true},
    {"latent", 16, 1, 576, 512, 0, 0, true, false},
    {"latent, 20 heads", 20, 1, 576, 512, 0, 0, true, false},
    {"latent with sinks and a window", 5, 1, 576, 512, 40, 0, true, true},
    {"latent of 96", 9, 1, 96, 64, 0, 0, true, false},
};

enum { STEPS = 3, MANY_ROWS = 2, PARTS_MAX = 5 }; /* MANY_ROWS: the step that has them */

/* Whether a case is left out under a sanitizer: its reference takes long. */
static bool is_long(bool large)
{
    return large && kit_is_slow() && !mirror_name();
}

static const struct { uint32_t count; step_part parts[PARTS_MAX]; } attention_steps[STEPS] = {
    {1, {{.rows = 1, .position = 209, .seed = 1}}},
    {5, {{.rows = 1, .position = 0, .seed = 1}, {.rows = 1, .position = 31, .slot = 1, .seed = 2},
         {.rows = 2, .position = 64, .slot = 2, .seed = 3}, {.rows = 1, .position = 150, .slot = 3, .seed = 4},
         {.rows = 3, .position = 99, .slot = 4, .seed = 5}}},
    {3, {{.rows = 70, .position = 33, .seed = 1}, {.rows = 3, .position = 90, .slot = 1, .seed = 2},
         {.rows = 17, .slot = 2, .seed = 3}}},
};

static void attend(const level_case *c, const attention_form *form, int at)
{
    random_state = 7 + (uint64_t)at;
    st_op op = form_op(ST_OP_ATTENTION);
    op.p.attention.heads = form->heads;
    op.p.attention.kv_heads = form->kv_heads;
    op.p.attention.key_length = form->key;
    op.p.attention.value_length = form->value;
    op.p.attention.window = form->window;
    op.p.attention.chunk = form->chunk;
    op.p.attention.scale = 2 / sqrtf((float)form->key);
    op.p.attention.value_in_key = form->latent;
    uint32_t keys = form->kv_heads * form->key, values = form->kv_heads * form->value;
    step_pool pool = {.page_shift = 5, .order = 3, .window = form->window, .chunk = form->chunk};
    st_step *step = step_new(attention_steps[at].parts, attention_steps[at].count, &pool, 1);
    st_kv_view view = step_view(&pool, 0, (st_type)c->type, keys, values, 0);
    step_fill(&view, &pool, step, attention_steps[at].parts, keys, values, true);
    st_bound_op bound = {.op = &op, .in[0] = form_value(step->count, form->heads * form->key), .kv = view};
    bound.out.width = form->heads * form->value;
    if (form->latent) {
        bound.kv.values = view.keys;
        bound.kv.value_row_bytes = view.key_row_bytes;
        bound.kv.value_page_bytes = view.key_page_bytes;
    }
    if (form->sinks) bound.weight[0] = form_floats(form->heads, 1, 1);
    form_need(&op, &bound);
    compare(c->cpu, form->name, &bound, step, error_max(c->type == ST_TYPE_F32), (uint64_t)at);
    step_view_free(&view);
    form_free(&bound, step);
}

static void attention(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (size_t i = 0; i < sizeof attention_forms / sizeof *attention_forms; i++)
        for (int at = 0; at < STEPS; at++)
            if (at < MANY_ROWS || !is_long(attention_forms[i].latent)) attend(c, &attention_forms[i], at);
    conclude();
}

/* A row that has no value of its own: the bytes that st_row_store writes, and no other. */
static void latent_store(void **state)
{
    const level_case *c = *state;
    check_level(c);
    enum { WIDTH = 576 };
    for (int at = 0; at < STEPS; at++) {
        step_pool pool = {.page_shift = 4, .order = 5};
        st_step *step = step_new(attention_steps[at].parts, attention_steps[at].count, &pool, 1);
        st_op op = form_op(ST_OP_KV_STORE);
        op.in[1] = ST_NO_VALUE;
        st_bound_op bound = {.op = &op, .in[0] = form_value(step->count, WIDTH)};
        bound.kv = step_view(&pool, 0, (st_type)c->type, WIDTH, WIDTH, 0);
        st_kv_view expected = step_view(&pool, 0, (st_type)c->type, WIDTH, WIDTH, 0);
        form_need(&op, &bound);
        for (uint32_t i = 0; i < step->count; i++) {
            const st_step_row *row = &st_step_rows(step)[i];
            const st_step_conversation *of = &st_step_conversations(step)[row->conversation];
            st_row_store(expected.type, (float *)bound.in[0].data + (size_t)i * WIDTH, WIDTH,
                         st_kv_key(&expected, of, st_step_tables(step), row->position));
        }
        run_op(c->cpu, &bound, step);
        assert_memory_equal(bound.kv.keys, expected.keys, expected.pages * expected.key_page_bytes);
        assert_memory_equal(bound.kv.values, expected.values, expected.pages * expected.value_page_bytes);
        step_view_free(&bound.kv);
        step_view_free(&expected);
        form_free(&bound, step);
    }
}

static void head_matmul(void **state)
{
    const level_case *c = *state;
    check_level(c);
    static const struct { uint32_t heads, in, out, rest; } sizes[] = {{16, 128, 512, 64}, {16, 512, 128, 0}, {3, 192, 70, 5}};
    static const uint32_t counts[] = {1, 3, 8, 9, 70};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts && !is_long(counts[k] > 9); k++) {
            random_state = 11 * i + k + 1;
            uint32_t heads = sizes[i].heads, rest = sizes[i].rest;
            st_op op = form_op(ST_OP_HEAD_MATMUL);
            op.p.head_matmul.heads = heads;
            st_bound_op bound = {.op = &op, .in[0] = form_value(counts[k], heads * (sizes[i].in + rest))};
            bound.out.width = heads * (sizes[i].out + rest);
            bound.weight[0] = form_weight((st_type)c->type, sizes[i].in, sizes[i].out, heads);
            st_step *step = step_rows(counts[k], 0);
            form_need(&op, &bound);
            compare(c->cpu, bound.weight[0].info->name, &bound, step, 1e-5, k);
            form_free(&bound, step);
        }
    conclude();
}

/* --- routers and experts ---------------------------------------------------------------------------------------------- */

typedef struct route_form {
    uint32_t experts, used, groups, groups_used, group_top;
    st_router router;
    bool bias, renormalise;
    float scale;
} route_form;

static const route_form route_forms[] = {
    {128, 4, 0, 0, 0, ST_ROUTER_SOFTMAX_CHOSEN, false, false, 0},
    {256, 8, 8, 4, 2, ST_ROUTER_SIGMOID, true, true, 2.5f},
    {256, 8, 1, 1, 0, ST_ROUTER_SIGMOID, true, true, 2.446f},
    {160, 6, 8, 3, 1, ST_ROUTER_SOFTMAX, false, false, 16},
    {64, 6, 0, 0, 0, ST_ROUTER_SOFTMAX, true, true, 1.5f},
    {48, 5, 4, 4, 2, ST_ROUTER_SIGMOID, false, false, 0},
    {9, 9, 3, 3, 2, ST_ROUTER_SIGMOID, true, true, 1},
    {100, 10, 50, 10, 2, ST_ROUTER_SIGMOID, true, true, 1}, /* more groups than a warp has lanes */
    {40, 4, 0, 0, 0, ST_ROUTER_SOFTMAX_CHOSEN, true, true, 2},
};

/* The chosen experts, and their weights. */
static void routers(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (size_t i = 0; i < sizeof route_forms / sizeof *route_forms; i++) {
        const route_form *f = &route_forms[i];
        random_state = i + 1;
        enum { ROWS = 70 };
        st_op op = form_op(ST_OP_ROUTE);
        op.p.route.experts = f->experts;
        op.p.route.used = f->used;
        op.p.route.groups = f->groups;
        op.p.route.groups_used = f->groups_used;
        op.p.route.group_top = f->group_top;
        op.p.route.router = f->router;
        op.p.route.renormalise = f->renormalise;
        op.p.route.scale = f->scale;
        st_bound_op bound = {.op = &op, .out = {.width = f->used}, .out2 = {.width = f->used}};
        if (f->bias) bound.weight[0] = form_floats(f->experts, 1, 1);
        form_need(&op, &bound);
        float *scores = random_floats((size_t)ROWS * f->experts), *weights[2];
        int32_t *ids[2];
        st_step *step = step_rows(ROWS, 0);
        for (int run = 0; run < 2; run++) {
            bound.in[0] = form_value(ROWS, f->experts);
            memcpy(bound.in[0].data, scores, (size_t)ROWS * f->experts * sizeof *scores);
            bound.out.data = ids[run] = st_alloc_array((size_t)ROWS * f->used, sizeof *ids[run]);
            bound.out2.data = weights[run] = random_floats((size_t)ROWS * f->used);
            run_op(run ? c->cpu : "ref", &bound, step);
            st_free(bound.in[0].data);
        }
        bound.in[0].data = NULL;
        assert_memory_equal(ids[0], ids[1], (size_t)ROWS * f->used * sizeof *ids[0]);
        note(c->cpu, "router", distance(weights[1], weights[0], (size_t)ROWS * f->used), 1e-5, ROWS, i);
        for (int run = 0; run < 2; run++) {
            st_free(ids[run]);
            st_free(weights[run]);
        }
        st_free(scores);
        form_free(&bound, step);
    }
    conclude();
}

/* Biases with the clamped activation, or no gate, with few rows or many experts (int8), more rows (f16), and experts that are
 * elsewhere. */
static void run_experts(const level_case *c, bool ungated, uint32_t rows, uint32_t count, uint64_t seed)
{
    random_state = seed;
    uint32_t used = 3, width = 96, e = 160;
    st_op op = form_op(ST_OP_EXPERTS);
    op.p.experts.experts = count;
    op.p.experts.used = used;
    op.p.experts.width = width;
    op.p.experts.ungated = ungated;
    op.p.experts.weight_on_input = seed % 3 == 0;
    op.p.experts.activation = ungated ? ST_ACT_RELU_SQUARED : ST_ACT_SWIGLU_CLAMPED;
    st_bound_op bound = {.op = &op, .in[0] = form_value(rows, e), .out = {.width = e}};
    form_choices(&bound, rows);
    bound.weight[0] = form_table(form_weight((st_type)c->type, e, width, count));
    if (!ungated) bound.weight[1] = form_table(form_weight((st_type)c->type, e, width, count));
    bound.weight[2] = form_table(form_weight((st_type)c->type, width, e, count));
    bound.weight[4] = form_floats(width, count, 1);
    if (!ungated) bound.weight[5] = form_floats(width, count, 1);
    bound.weight[6] = form_floats(e, count, 1);
    for (int i = 0; i < 3; i++) /* one is not resident */
        if (bound.weight[i].parts) ((const void **)(uintptr_t)bound.weight[i].parts)[7] = NULL;
    st_step *step = step_rows(rows, 0);
    form_need(&op, &bound);
    bool exact = c->type == ST_TYPE_F32, batch = mirror_name() && rows > 8 && count == 12;
    compare(c->cpu, ungated ? "ungated" : "biases", &bound, step, exact ? 1e-5 : batch ? 2e-3 : 5e-2, seed);
    form_free(&bound, step);
}

static void experts(void **state)
{
    const level_case *c = *state;
    check_level(c);
    static const struct { uint32_t rows, experts; } counts[] = {{1, 12}, {3, 12}, {8, 12}, {9, 12}, {40, 12}, {150, 12}, {9, 40}, {26, 40}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int ungated = 0; ungated < 2; ungated++)
            run_experts(c, ungated, counts[i].rows, counts[i].experts, 2 * i + (uint64_t)ungated + 1);
    conclude();
}

/* --- rows and state ---------------------------------------------------------------------------------------------------- */

static void rows(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        random_state = seed;
        uint32_t count = seed % 2 ? 3 : 70, width = seed < 3 ? 4096 : 2 * 2880;
        st_op op = form_op(ST_OP_LAYER_NORM);
        op.p.norm.group = seed < 3 ? width : width / 2;
        op.p.norm.epsilon = 1e-5f;
        st_bound_op bound = {.op = &op, .in[0] = form_value(count, width), .out = {.width = width}};
        bound.weight[0] = form_floats(op.p.norm.group, 1, 1);
        st_step *step = step_rows(count, 0);
        form_need(&op, &bound);
        compare(c->cpu, "layer_norm", &bound, step, 1e-5, seed);
        form_free(&bound, step);
    }
    conclude();
}

/* RoPE of the end of each head, YaRN's ramp as it is, and temperatures from position 0 on. */
static void positions(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 12; seed++) {
        random_state = seed;
        uint32_t count = random_rows(), heads = 4, size = 192, dims = 64, kind = (uint32_t)(seed % 3);
        st_op op = form_op(kind == 0 ? ST_OP_ROPE : kind == 1 ? ST_OP_ANGLES : ST_OP_TEMPERATURE);
        st_bound_op bound = {.op = &op, .out = {.width = kind == 1 ? dims : heads * size}};
        if (kind == 0) {
            op.p.rope.heads = heads;
            op.p.rope.head_size = size;
            op.p.rope.offset = size - dims;
            op.p.rope.dims = dims;
            op.p.rope.style = seed % 2 ? ST_ROPE_HALVES : ST_ROPE_PAIRS;
            bound.in[1] = form_value(count, dims);
        } else if (kind == 1)
            op.p.angles.rope = (st_rope){.style = ST_ROPE_HALVES, .dims = dims, .base = 150000,
                                         .scaling = ST_ROPE_SCALING_YARN, .scaling_factor = 32,
                                         .original_context = 4096, .attention_factor = 1.35f, .beta_fast = 32,
                                         .beta_slow = 1, .unrounded = true};
        else {
            op.p.temperature.chunk = 16;
            op.p.temperature.factor = 0.1f;
            op.p.temperature.from_zero = true;
        }
        size_t floats = (size_t)count * bound.out.width;
        float *start = random_floats(floats), *out[2];
        st_step *step = step_rows(count, 13);
        form_need(&op, &bound);
        for (int run = 0; run < 2; run++) {
            out[run] = random_floats(floats);
            memcpy(out[run], start, floats * sizeof *start);
            bound.out.data = out[run];
            bound.in[0] = kind == 1 ? (st_bound_value){0} : bound.out;
            run_op(run ? c->cpu : "ref", &bound, step);
        }
        note(c->cpu, "positions", distance(out[1], out[0], floats), 1e-5, count, seed);
        bound.in[0].data = NULL;
        for (int run = 0; run < 2; run++) st_free(out[run]);
        st_free(start);
        form_free(&bound, step);
    }
    conclude();
}

static void deltanet(void **state)
{
    const level_case *c = *state;
    check_level(c);
    static const struct { uint32_t keys, values, size; bool channels; } sizes[] = {
        {2, 4, 64, false}, {2, 6, 128, false}, {3, 3, 64, true}, {4, 4, 128, true}, {2, 2, 96, true}, {1, 3, 96, false}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        random_state = i + 1;
        st_op op = form_op(ST_OP_DELTANET);
        st_step *step = form_two_conversations(20, 3);
        st_bound_op bound = form_deltanet(&op, step->count, sizes[i].keys, sizes[i].values, sizes[i].size, sizes[i].channels);
        form_need(&op, &bound);
        form_compare_state(c->cpu, sizes[i].channels ? "channels" : "grouped", &bound, step, &bound.state.delta,
                           2 * bound.state.slot_floats, i);
        form_free(&bound, step);
    }
    conclude();
}

/* Decays and strengths of writing, as the logits that make them. */
typedef struct gate_range {
    const char *name;
    float rate;        /* of the decays; 0: random */
    float alpha, beta; /* logits are up to so large. 0: random */
    float value;       /* values are up to so large. 0: random */
    bool same_keys;    /* every row has the same key: all corrections depend on each other */
} gate_range;

static void set_gates(const gate_range *g, st_bound_op *b, uint32_t rows)
{
    size_t values = b->op->p.deltanet.value_heads, keys = (size_t)b->op->p.deltanet.key_heads * b->op->p.deltanet.size;
    float *qkv = b->in[0].data, *rates = (float *)(uintptr_t)b->weight[1].data;
    for (size_t i = 0; i < rows * values && g->alpha > 0; i++) ((float *)b->in[1].data)[i] *= g->alpha;
    for (size_t i = 0; i < rows * values && g->beta > 0; i++) ((float *)b->in[2].data)[i] *= g->beta;
    for (uint32_t i = 0; i < values && g->rate > 0; i++) rates[i] = -g->rate;
    for (size_t i = 0; i < (size_t)rows * b->in[0].width && g->value > 0; i++)
        if (i % b->in[0].width >= 2 * keys) qkv[i] *= g->value;
    for (size_t r = 1; r < rows && g->same_keys; r++)
        memcpy(qkv + r * b->in[0].width + keys, qkv + keys, keys * sizeof *qkv);
}

/* Prompts, whose rows a backend may compute in chunks: their borders, several conversations, and gates of all ranges. */
static void delta_chunks(void **state)
{
    const level_case *c = *state;
    check_level(c);
    static const uint32_t lengths[][3] = {{64, 1, 0}, {65, 31, 33}, {95, 96, 32}, {1, 97, 63},
                                          {127, 64, 0}, {200, 128, 0}, {33, 31, 2}, {256, 5, 0}};
    static const struct { uint32_t keys, values, size; } sizes[] = {{2, 4, 64}, {1, 3, 128}, {2, 2, 16}, {1, 2, 128}};
    static const gate_range gates[] = {
        {"random", 0, 0, 0, 0, false}, {"decays near 1", 1e-4f, 0, 0, 0, false}, {"decays near 0", 40, 4, 0, 0, false},
        {"decays of 0 and 1", 20, 30, 20, 0, false}, {"same keys", 1e-3f, 0, 20, 0, true}, {"large values", 0.1f, 0, 0, 1e8f, false},
        {"small values", 2, 0, 0, 1e-8f, false}};
    enum { LENGTHS = sizeof lengths / sizeof *lengths, SIZES = sizeof sizes / sizeof *sizes, GATES = sizeof gates / sizeof *gates };
    for (uint32_t i = 0; i < LENGTHS + GATES; i++) {
        random_state = i + 1;
        const uint32_t *rows = lengths[i % LENGTHS];
        step_part parts[] = {{.rows = rows[0], .slot = 2}, {.rows = rows[1], .slot = 0}, {.rows = rows[2], .slot = 1}};
        st_op op = form_op(ST_OP_DELTANET);
        st_step *step = step_new(parts, rows[2] ? 3 : 2, NULL, 0);
        st_bound_op bound = form_deltanet(&op, step->count, sizes[i % SIZES].keys, sizes[i % SIZES].values, sizes[i % SIZES].size, false);
        op.p.deltanet.grouped = i % 3 > 0;
        bound.state.slots = 3;
        set_gates(&gates[i % GATES], &bound, step->count);
        form_need(&op, &bound);
        form_compare_state(c->cpu, gates[i % GATES].name, &bound, step, &bound.state.delta, 3 * bound.state.slot_floats, i);
        form_free(&bound, step);
    }
    conclude();
}

/* Products of the same input before and behind a delta rule, in a segment and one by one: they may share what scratch has of the
 * input only if the delta rule leaves it alone. */
static void delta_between(void **state)
{
    const level_case *c = *state;
    check_level(c);
    enum { ROWS = 80, WIDTH = 256, COLUMNS = 64, OPS = 3 };
    random_state = 1;
    st_op kinds[OPS] = {form_op(ST_OP_MATMUL), form_op(ST_OP_DELTANET), form_op(ST_OP_MATMUL)};
    st_step *step = step_rows(ROWS, 0);
    st_bound_op ops[OPS] = {{.op = &kinds[0], .in[0] = form_value(ROWS, WIDTH), .out.width = COLUMNS}};
    ops[1] = form_deltanet(&kinds[1], ROWS, 1, 2, 64, false);
    ops[1].state.slots = 1;
    ops[2] = ops[0];
    ops[2].op = &kinds[2];
    for (int i = 0; i < OPS; i += 2) ops[i].weight[0] = form_weight((st_type)c->type, WIDTH, COLUMNS, 1);
    float *found[2][OPS], *start = random_floats(ops[1].state.slot_floats);
    for (int run = 0; run < 2; run++) {
        for (int i = 0; i < OPS; i++) ops[i].out.data = found[run][i] = random_floats((size_t)ROWS * ops[i].out.width);
        ops[1].state.delta = random_floats(ops[1].state.slot_floats);
        memcpy(ops[1].state.delta, start, ops[1].state.slot_floats * sizeof *start);
        if (run == 0) run_segment(c->cpu, ops, OPS, step);
        for (int i = 0; i < OPS && run == 1; i++) run_op(c->cpu, &ops[i], step);
        st_free(ops[1].state.delta);
    }
    for (int i = 0; i < OPS; i++) {
        note(c->cpu, "segment", distance(found[0][i], found[1][i], (size_t)ROWS * ops[i].out.width), 1e-5, ROWS, (uint64_t)i);
        for (int run = 0; run < 2; run++) st_free(found[run][i]);
    }
    ops[2].in[0].data = NULL; /* the first one's */
    for (int i = 0; i < OPS; i++) form_free(&ops[i], NULL);
    st_free(start);
    st_free(step);
    conclude();
}

static void state_space(void **state)
{
    const level_case *c = *state;
    check_level(c);
    static const struct { uint32_t heads, size, states, groups; } sizes[] = {{8, 64, 128, 1}, {6, 64, 256, 2}, {3, 33, 16, 3}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        random_state = i + 1;
        st_op op = form_op(ST_OP_SSM);
        st_step *step = form_two_conversations(9, 2);
        st_bound_op bound = form_ssm(&op, step->count, sizes[i].heads, sizes[i].size, sizes[i].states, sizes[i].groups);
        form_need(&op, &bound);
        form_compare_state(c->cpu, "ssm", &bound, step, &bound.state.delta, 2 * bound.state.slot_floats, i);
        form_free(&bound, step);
    }
    conclude();
}

static int tear_down(void **state)
{
    (void)state;
    conform_close();
    return 0;
}

/* A kind of operation with the types that it is tried with. */
typedef struct kind_row {
    const char *name;
    CMUnitTestFunction run;
    uint32_t types[4], count;
} kind_row;

static const kind_row kinds[] = {
    {"attention", attention, {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0}, 4},
    {"latent_store", latent_store, {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0}, 4},
    {"head_matmul", head_matmul, {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0}, 4},
    {"experts", experts, {ST_TYPE_F32, ST_TYPE_Q8_0, ST_TYPE_MXFP4}, 3},
    {"routers", routers, {ST_TYPE_F32}, 1},
    {"rows", rows, {ST_TYPE_F32}, 1},
    {"positions", positions, {ST_TYPE_F32}, 1},
    {"deltanet", deltanet, {ST_TYPE_F32}, 1},
    {"delta_chunks", delta_chunks, {ST_TYPE_F32}, 1},
    {"delta_between", delta_between, {ST_TYPE_F32, ST_TYPE_Q8_0}, 2},
    {"ssm", state_space, {ST_TYPE_F32}, 1},
};

int main(int argc, char **argv)
{
    enum { KINDS = sizeof kinds / sizeof *kinds, TESTS_MAX = KINDS * 4 * 2 };
    const char *levels[] = {"avx2", "avx512"};
    static level_case cases[TESTS_MAX];
    static struct CMUnitTest tests[TESTS_MAX];
    static char names[TESTS_MAX][48];
    size_t count = 0;
    if (mirror_name()) levels[0] = mirror_name();
    for (size_t l = 0; l < (mirror_name() ? 1 : 2); l++)
        for (size_t k = 0; k < KINDS; k++)
            for (uint32_t t = 0; t < kinds[k].count; t++, count++) {
                cases[count] = (level_case){levels[l], kinds[k].types[t]};
                snprintf(names[count], sizeof *names, "%s %s %s", kinds[k].name, levels[l],
                         st_type_find(kinds[k].types[t])->name);
                tests[count] = (struct CMUnitTest){.name = names[count], .test_func = kinds[k].run,
                                                   .initial_state = &cases[count]};
            }
    return kit_run("large forms", tests, count, NULL, tear_down, argc, argv);
}
