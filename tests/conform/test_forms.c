/* Operations and forms of operations that few families have: the fast path against the reference. With
 * STRATA_TEST_BACKEND, that backend, for the forms that it runs. test_forms_large.c has the sizes of models. */
#include <math.h>
#include <stdio.h>

#include "support/form_rig.h"
#include "support/mirror.h"

static uint32_t rounds;

/* --- rows ----------------------------------------------------------------------------------------------------------- */

typedef struct row_form {
    const char *name;
    st_op_kind kind;
    bool second, weight;
    st_activation activation;
} row_form;

static const row_form row_forms[] = {
    {"layer_norm", ST_OP_LAYER_NORM, false, true, 0},
    {"weightless layer_norm", ST_OP_LAYER_NORM, false, false, 0},
    {"mul", ST_OP_MUL, true, false, 0},
    {"clamped swiglu", ST_OP_GATED_ACT, true, false, ST_ACT_SWIGLU_CLAMPED},
    {"relu squared, gated", ST_OP_GATED_ACT, true, false, ST_ACT_RELU_SQUARED},
    {"relu squared", ST_OP_GATED_ACT, false, false, ST_ACT_RELU_SQUARED},
    {"silu alone", ST_OP_GATED_ACT, false, false, ST_ACT_SILU},
};

static void rows(const char *cpu, const row_form *form, uint64_t seed)
{
    random_state = seed * 3 + 1;
    uint32_t count = random_rows(), width = between(1, 300);
    st_op op = form_op(form->kind);
    if (form->kind == ST_OP_LAYER_NORM) {
        op.p.norm.group = width;
        op.p.norm.epsilon = 1e-5f;
    } else if (form->kind == ST_OP_GATED_ACT) op.p.gate.activation = form->activation;
    st_bound_op bound = {.op = &op, .in[0] = form_value(count, width), .out = {.width = width}};
    if (form->second) bound.in[1] = form_value(count, width);
    if (form->weight) bound.weight[0] = form_floats(width, 1, 1);
    for (size_t i = 0; i < (size_t)count * width; i++) ((float *)bound.in[0].data)[i] *= 4; /* past the clamp */
    st_step *step = step_rows(count, 0);
    form_need(&op, &bound);
    if (width > 1) compare(cpu, form->name, &bound, step, 1e-5, seed);
    form_free(&bound, step);
}

static void row_operations(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++)
        for (size_t i = 0; i < sizeof row_forms / sizeof *row_forms; i++) rows(c->cpu, &row_forms[i], seed);
    conclude();
}

static void head_matmul(void **state)
{
    const level_case *c = *state;
    check_level(c);
    static const st_type types[] = {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0};
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 5 + 1;
        st_type type = types[seed % 4];
        uint32_t count = random_rows(), heads = between(1, 5), in = 32 * between(1, 3), out = between(1, 50), rest = between(0, 9);
        st_op op = form_op(ST_OP_HEAD_MATMUL);
        op.p.head_matmul.heads = heads;
        st_bound_op bound = {.op = &op, .in[0] = form_value(count, heads * (in + rest)), .out = {.width = heads * (out + rest)}};
        bound.weight[0] = form_weight(type, in, out, heads);
        st_step *step = step_rows(count, 0);
        form_need(&op, &bound);
        compare(c->cpu, bound.weight[0].info->name, &bound, step, 1e-5, seed);
        form_free(&bound, step);
    }
    conclude();
}

/* --- attention ------------------------------------------------------------------------------------------------------ */

/* Sinks, and values that are parts of keys, for one row and for many. */
static void attention(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 8 * rounds; seed++) {
        random_state = seed * 11 + 1;
        bool latent = seed % 2, sinks = !latent || seed % 4 == 1;
        uint32_t count = seed % 3 ? random_rows() : 1, kv_heads = latent ? 1 : between(1, 3), heads = kv_heads * between(1, 4);
        uint32_t value = 16 * between(1, 3), key = latent ? value + 16 : 16 * between(1, 3);
        st_op op = form_op(ST_OP_ATTENTION);
        op.p.attention.heads = heads;
        op.p.attention.kv_heads = kv_heads;
        op.p.attention.key_length = key;
        op.p.attention.value_length = value;
        op.p.attention.scale = 0.2f;
        op.p.attention.value_in_key = latent;
        step_part part = {.rows = count, .position = between(0, 150), .seed = seed};
        step_pool pool = {.page_shift = 4, .order = seed};
        st_step *step = step_new(&part, 1, &pool, 1);
        st_kv_view view = step_view(&pool, 0, ST_TYPE_F32, kv_heads * key, kv_heads * value, 0);
        step_fill(&view, &pool, step, &part, kv_heads * key, kv_heads * value, true);
        st_bound_op bound = {.op = &op, .in[0] = form_value(count, heads * key), .out = {.width = heads * value}, .kv = view};
        if (latent) {
            bound.kv.values = view.keys;
            bound.kv.value_row_bytes = view.key_row_bytes;
            bound.kv.value_page_bytes = view.key_page_bytes;
        }
        if (sinks) bound.weight[0] = form_floats(heads, 1, 1);
        form_need(&op, &bound);
        compare(c->cpu, latent ? "values in keys" : "sinks", &bound, step, 1e-5, seed);
        step_view_free(&view);
        form_free(&bound, step);
    }
    conclude();
}

/* --- experts --------------------------------------------------------------------------------------------------------- */

static void experts(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 17 + 1;
        uint32_t rows_now = random_rows(), count = between(2, 9), used = between(1, count), width = between(3, 70), e = between(3, 70);
        bool ungated = seed % 2;
        st_op op = form_op(ST_OP_EXPERTS);
        op.p.experts.experts = count;
        op.p.experts.used = used;
        op.p.experts.width = width;
        op.p.experts.ungated = ungated;
        op.p.experts.activation = ungated ? ST_ACT_RELU_SQUARED : ST_ACT_SWIGLU_CLAMPED;
        st_bound_op bound = {.op = &op, .in[0] = form_value(rows_now, e), .out = {.width = e}};
        form_choices(&bound, rows_now);
        bound.weight[0] = form_experts(e, width, count);
        if (!ungated) bound.weight[1] = form_experts(e, width, count);
        bound.weight[2] = form_experts(width, e, count);
        if (!ungated) {
            bound.weight[4] = form_floats(width, count, 1);
            bound.weight[5] = form_floats(width, count, 1);
            bound.weight[6] = form_floats(e, count, 1);
        }
        st_step *step = step_rows(rows_now, 0);
        form_need(&op, &bound);
        compare(c->cpu, ungated ? "ungated" : "biases", &bound, step, 1e-5, seed);
        form_free(&bound, step);
    }
    conclude();
}

/* --- recurrent state: the output and the new state ------------------------------------------------------------------ */

static void convolution(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 8 * rounds; seed++) {
        random_state = seed * 19 + 1;
        bool split = seed % 2;
        uint32_t taps = between(1, 5), range = between(1, 130), channels = split ? 3 * range : range;
        uint32_t first = seed % 4 ? between(1, 20) : between(60, 100); /* few rows, or a prompt */
        st_op op = form_op(ST_OP_CONV);
        op.p.conv.width = taps;
        op.p.conv.linear = seed % 3 == 0;
        st_step *step = form_two_conversations(first, between(1, 5));
        st_bound_op bound = {.op = &op, .in[0] = form_value(step->count, channels), .out = {.width = channels}};
        for (int i = 0; i < (split ? 3 : 1); i++) bound.weight[i] = form_floats(taps, range, 1);
        if (seed % 5 < 3) bound.weight[3] = form_floats(channels, 1, 1);
        bound.state.slots = 2;
        bound.state.slot_floats = (taps - 1) * (size_t)channels;
        form_need(&op, &bound);
        form_compare_state(c->cpu, "conv", &bound, step, &bound.state.conv, 2 * bound.state.slot_floats + 1, seed);
        form_free(&bound, step);
    }
    conclude();
}

static void deltanet(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 23 + 1;
        bool channels = seed % 2;
        uint32_t keys = between(1, 3), values = channels ? keys : keys * between(1, 3), size = seed % 3 ? 16 * between(1, 2) : between(1, 20);
        st_op op = form_op(ST_OP_DELTANET);
        st_step *step = form_two_conversations(between(1, 80), between(1, 5));
        st_bound_op bound = form_deltanet(&op, step->count, keys, values, size, channels);
        form_need(&op, &bound);
        form_compare_state(c->cpu, channels ? "channels" : "grouped", &bound, step, &bound.state.delta, 2 * bound.state.slot_floats, seed);
        form_free(&bound, step);
    }
    conclude();
}

static void state_space(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 29 + 1;
        uint32_t groups = between(1, 3), heads = groups * between(1, 3), size = between(1, 20), states = between(1, 70);
        st_op op = form_op(ST_OP_SSM);
        st_step *step = form_two_conversations(between(1, 30), between(1, 5));
        st_bound_op bound = form_ssm(&op, step->count, heads, size, states, groups);
        form_need(&op, &bound);
        form_compare_state(c->cpu, "ssm", &bound, step, &bound.state.delta, 2 * bound.state.slot_floats, seed);
        form_free(&bound, step);
    }
    conclude();
}

static int set_up(void **state)
{
    (void)state;
    rounds = conform_rounds();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    conform_close();
    return 0;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; CMUnitTestFunction run; } kinds[] = {
        {"rows", row_operations}, {"head_matmul", head_matmul}, {"attention", attention}, {"experts", experts},
        {"conv", convolution}, {"deltanet", deltanet}, {"ssm", state_space}};
    enum { KINDS = sizeof kinds / sizeof *kinds, LEVELS = 4 };
    static level_case cases[LEVELS] = {{.cpu = "avx2"}, {.cpu = "avxvnni"}, {.cpu = "avx512"}, {.cpu = "amx"}};
    static struct CMUnitTest tests[KINDS * LEVELS];
    static char names[KINDS * LEVELS][32];
    size_t count = 0;
    if (mirror_name()) cases[0].cpu = mirror_name();
    for (size_t l = 0; l < (mirror_name() ? 1 : LEVELS); l++)
        for (size_t k = 0; k < KINDS; k++, count++) {
            snprintf(names[count], sizeof *names, "%s %s", kinds[k].name, cases[l].cpu);
            tests[count] = (struct CMUnitTest){.name = names[count], .test_func = kinds[k].run, .initial_state = &cases[l]};
        }
    return kit_run("forms", tests, count, set_up, tear_down, argc, argv);
}
