/* src/backend/cpu/ref.c, the operations on matrices: weights of every type, dequantised and multiplied in double. */
#include "support/op_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "gguf/gguf.h"
#include "support/mirror.h"

/* ---- weights of every type --------------------------------------------------------------------------------------- */

enum { E = 512, SAMPLES = 8 };

/* Rows of E elements in a type: quantised and dequantised. */
typedef struct sample {
    const st_type_info *info;
    uint32_t type;
    size_t row_bytes;
    const unsigned char *rows;
    const float *values; /* [SAMPLES, E] */
} sample;

static st_gguf *quant_kit;

/* Types of a scale and a few bits per element, lowest bits first, that the kit does not have: ±d, and (q − 1)·d. */
static bool make_bits(st_type type, unsigned char *bytes, float *values)
{
    uint32_t bits = type == ST_TYPE_Q1_0 ? 1 : type == ST_TYPE_Q2_0 ? 2 : 0, per_block = bits ? 128 / bits : 0;
    for (size_t i = 0; bits && i < SAMPLES * E; i++) {
        unsigned char *block = bytes + i / per_block * 18;
        uint32_t at = (uint32_t)(i % per_block) * bits, q = (uint32_t)(i * 2654435761u >> 13) & ((1u << bits) - 1);
        block[0] = 0;
        block[1] = 0x38; /* 0.5 */
        if (at == 0) memset(block + 2, 0, 16);
        block[2 + at / 8] |= (unsigned char)(q << at % 8);
        values[i] = bits == 1 ? (q ? 0.5f : -0.5f) : ((float)q - 1) * 0.5f;
    }
    return bits > 0;
}

/* The kit has most quantised types; the others and the plain ones are made here. */
static void open_sample(st_type type, sample *s)
{
    static float made[SAMPLES * E];
    static union { int64_t align; unsigned char bytes[SAMPLES * E * 8]; } memory;
    strata_error error;
    if (!quant_kit && st_gguf_open(kit_path("quant/rows.gguf"), &quant_kit, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    *s = (sample){.info = st_type_find(type), .type = type};
    assert_true(st_type_row_bytes(s->info, E, &s->row_bytes));
    for (size_t i = 0; i < st_gguf_tensor_count(quant_kit); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(quant_kit, i);
        if (tensor->type != type || tensor->name.data[0] != 'q') continue;
        char name[64];
        snprintf(name, sizeof name, "d%.*s", (int)tensor->name.length - 1, tensor->name.data + 1);
        const st_gguf_tensor *values = st_gguf_tensor_find(quant_kit, name);
        assert_non_null(values);
        s->rows = tensor->data;
        memcpy(made, values->data, sizeof made);
        s->values = made;
        return;
    }
    s->rows = memory.bytes;
    s->values = made;
    if (make_bits(type, memory.bytes, made)) return;
    for (size_t i = 0; i < SAMPLES * E; i++) {
        int number = (int)(random_value() * 100);
        float real = random_value();
        double exact = (double)real;
        int16_t two = (int16_t)number;
        int64_t eight = number;
        bool is_real = type == ST_TYPE_F32 || type == ST_TYPE_F64;
        const void *from = type == ST_TYPE_F32 ? (const void *)&real : type == ST_TYPE_F64 ? (const void *)&exact
                           : type == ST_TYPE_I16 ? (const void *)&two : (const void *)&eight;
        memcpy(memory.bytes + i * s->info->bytes, from, s->info->bytes); /* low bytes first */
        made[i] = is_real ? real : (float)number;
    }
}

static st_bound_weight quantised(const sample *s, const void *data, uint64_t ne0, uint64_t ne1)
{
    st_bound_weight w = {.data = data, .info = s->info, .type = s->type, .ne = {ne0, ne1, 1}};
    assert_true(st_type_row_bytes(s->info, ne0, &w.row_bytes));
    return w;
}

/* A plugin may multiply quantised weights with int8 activations: the bound of tests/conform for the CPU's kernels. */
static void check_product(const sample *s, size_t index, double found, double expected, double size)
{
    bool rounded = mirror_name() && strcmp(mirror_name(), "ref") != 0 && s->info->block > 1;
    check_close(s->info->name, index, found, expected, rounded ? 1e-2 / CLOSE * size : size);
}

static void embed(void **state)
{
    (void)state;
    static float out[ROWS * E];
    for (size_t t = 0; t < st_type_count(); t++)
        for (int scaled = 0; scaled < 2; scaled++) {
            sample s;
            if (!mirror_runs(ST_OP_EMBED, st_type_at(t))) continue;
            open_sample(st_type_at(t), &s);
            st_op op = {.kind = ST_OP_EMBED};
            op.p.embed.scale = scaled ? 2.5f : 1;
            for (int r = 0; r < ROWS; r++) st_step_rows(op_step)[r].id = (r * 3 + 7) % SAMPLES;
            st_bound_op bound = {.op = &op, .out = {out, E}, .weight = {quantised(&s, s.rows, E, SAMPLES)}};
            op_run(&bound, ST_ROWS_ALL);
            for (size_t i = 0; i < ROWS * E; i++) {
                float expected = s.values[(size_t)st_step_rows(op_step)[i / E].id * E + i % E] * (scaled ? 2.5f : 1);
                if (out[i] != expected)
                    fail_msg("%s[%zu]: %g, expected %g", s.info->name, i, (double)out[i], (double)expected);
            }
        }
}

static void matmul(void **state)
{
    (void)state;
    static float in[ROWS * E], out[ROWS * SAMPLES], bias[SAMPLES];
    for (size_t t = 0; t < st_type_count(); t++)
        for (int biased = 0; biased < 2; biased++) {
            sample s;
            if (!mirror_runs(ST_OP_MATMUL, st_type_at(t))) continue;
            open_sample(st_type_at(t), &s);
            randomise(in, ROWS * E);
            randomise(bias, SAMPLES);
            st_op op = {.kind = ST_OP_MATMUL};
            st_bound_op bound = {.op = &op, .in = {{in, E}}, .out = {out, SAMPLES},
                                 .weight = {quantised(&s, s.rows, E, SAMPLES)}};
            if (biased) bound.weight[1] = floats(bias, SAMPLES, 1);
            op_run(&bound, ST_ROWS_ALL);
            for (size_t r = 0; r < ROWS; r++)
                for (size_t c = 0; c < SAMPLES; c++) {
                    double sum = biased ? (double)bias[c] : 0, size = fabs(sum);
                    for (size_t i = 0; i < E; i++) {
                        double product = (double)in[r * E + i] * (double)s.values[c * E + i];
                        sum += product;
                        size += fabs(product);
                    }
                    check_product(&s, r * SAMPLES + c, (double)out[r * SAMPLES + c], sum, size);
                }
        }
}

/* Sizes that are multiples of no block or register. */
static void matmul_of_odd_sizes(void **state)
{
    (void)state;
    static const struct { size_t in, out; } sizes[] = {{1, 1}, {3, 2}, {17, 33}, {33, 16}, {100, 15}, {7, 129}};
    static float in[ROWS * 128], matrix[128 * 130], out[ROWS * 130];
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        size_t a = sizes[n].in, b = sizes[n].out;
        randomise(in, ROWS * a);
        randomise(matrix, a * b);
        st_op op = {.kind = ST_OP_MATMUL};
        st_bound_op bound = {.op = &op, .in = {{in, (uint32_t)a}}, .out = {out, (uint32_t)b},
                             .weight = {floats(matrix, a, b)}};
        op_run(&bound, ST_ROWS_ALL);
        for (size_t i = 0; i < ROWS * b; i++) {
            double sum = 0, size = 0;
            for (size_t k = 0; k < a; k++) {
                sum += (double)in[i / b * a + k] * (double)matrix[i % b * a + k];
                size += fabs((double)in[i / b * a + k] * (double)matrix[i % b * a + k]);
            }
            check_close("matmul", i, (double)out[i], sum, size);
        }
    }
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

enum { WIDE = 256, HIDDEN = 256, EXPERTS = 3, USED = 2, EXPERT_ROWS = 2 };

/* A matrix of WIDE rows and columns out of halves of the sample's rows, in an order of its own. */
static void compose(const sample *s, unsigned seed, unsigned char *bytes, float *values)
{
    size_t half = s->row_bytes / 2;
    for (size_t r = 0; r < WIDE; r++) {
        size_t from = (r * 5 + seed) % SAMPLES, side = (r + seed / 3) % 2;
        memcpy(bytes + r * half, s->rows + from * s->row_bytes + side * half, half);
        memcpy(values + r * WIDE, s->values + from * E + side * WIDE, WIDE * sizeof *values);
    }
}

typedef struct expert_set {
    unsigned char *bytes[3][EXPERTS]; /* gate, up, down */
    float *values[3][EXPERTS];
    unsigned char *fused[EXPERTS]; /* gate and up, one after the other */
} expert_set;

static void make_experts(const sample *s, expert_set *set)
{
    size_t bytes = s->row_bytes / 2 * WIDE;
    for (int x = 0; x < EXPERTS; x++) {
        for (int m = 0; m < 3; m++) {
            set->bytes[m][x] = st_alloc(bytes);
            set->values[m][x] = st_alloc(sizeof(float) * WIDE * WIDE);
            assert_true(set->bytes[m][x] && set->values[m][x]);
            compose(s, (unsigned)(x * 7 + m * 3), set->bytes[m][x], set->values[m][x]);
        }
        set->fused[x] = st_alloc(2 * bytes);
        assert_non_null(set->fused[x]);
        memcpy(set->fused[x], set->bytes[0][x], bytes);
        memcpy(set->fused[x] + bytes, set->bytes[1][x], bytes);
    }
}

static void free_experts(expert_set *set)
{
    for (int x = 0; x < EXPERTS; x++) {
        for (int m = 0; m < 3; m++) {
            st_free(set->bytes[m][x]);
            st_free(set->values[m][x]);
        }
        st_free(set->fused[x]);
    }
}

/* `magnitudes` are sums of absolute values: the scale of the rounding error. */
static void one_expert(const expert_set *set, int x, const double *in, st_activation activation, double weight,
                       double *out, double *magnitude)
{
    static double hidden[HIDDEN], hidden_size[HIDDEN];
    for (size_t f = 0; f < HIDDEN; f++) {
        double gate = 0, up = 0, gate_size = 0, up_size = 0;
        for (size_t i = 0; i < WIDE; i++) {
            double g = (double)set->values[0][x][f * WIDE + i] * in[i];
            double u = (double)set->values[1][x][f * WIDE + i] * in[i];
            gate += g, up += u, gate_size += fabs(g), up_size += fabs(u);
        }
        hidden[f] = (activation == ST_ACT_SILU ? silu(gate) : gelu(gate)) * up;
        hidden_size[f] = gate_size * up_size;
    }
    for (size_t i = 0; i < WIDE; i++)
        for (size_t f = 0; f < HIDDEN; f++) {
            out[i] += weight * (double)set->values[2][x][i * HIDDEN + f] * hidden[f];
            magnitude[i] += fabs(weight * (double)set->values[2][x][i * HIDDEN + f]) * hidden_size[f];
        }
}

static void check_experts(const sample *s, const expert_set *set, bool fused, bool on_input, bool factors,
                          st_activation activation)
{
    static float in[EXPERT_ROWS * WIDE], out[EXPERT_ROWS * WIDE], weights[EXPERT_ROWS * USED], factor[EXPERTS];
    int32_t ids[EXPERT_ROWS * USED] = {2, 0, 1, 2};
    randomise(in, EXPERT_ROWS * WIDE);
    randomise(weights, EXPERT_ROWS * USED);
    randomise(factor, EXPERTS);
    st_op op = {.kind = ST_OP_EXPERTS};
    op.p.experts.experts = EXPERTS;
    op.p.experts.used = USED;
    op.p.experts.width = HIDDEN;
    op.p.experts.activation = activation;
    op.p.experts.fused = fused;
    op.p.experts.weight_on_input = on_input;
    st_bound_op bound = {.op = &op, .in = {{in, WIDE}, {ids, USED}, {weights, USED}}, .out = {out, WIDE}};
    const void *parts[3][EXPERTS];
    for (int m = 0; m < 3; m++)
        for (int x = 0; x < EXPERTS; x++) parts[m][x] = m == 0 && fused ? set->fused[x] : set->bytes[m][x];
    for (int m = 0; m < 3; m++) {
        if (m == 1 && fused) continue;
        bound.weight[m] = quantised(s, parts[m][0], WIDE, m == 0 && fused ? 2 * HIDDEN : HIDDEN);
        bound.weight[m].ne[2] = EXPERTS;
        bound.weight[m].parts = parts[m];
    }
    if (factors) bound.weight[3] = floats(factor, EXPERTS, 1);
    op_step->count = EXPERT_ROWS;
    op_run(&bound, ST_ROWS_ALL);
    op_step->count = ROWS;
    for (size_t r = 0; r < EXPERT_ROWS; r++) {
        double expected[WIDE] = {0}, size[WIDE] = {0}, input[WIDE];
        for (size_t u = 0; u < USED; u++) {
            double weight = (double)weights[r * USED + u], scale = factors ? (double)factor[ids[r * USED + u]] : 1;
            for (size_t i = 0; i < WIDE; i++) input[i] = (double)in[r * WIDE + i] * (on_input ? weight : 1);
            one_expert(set, ids[r * USED + u], input, activation, scale * (on_input ? 1 : weight), expected, size);
        }
        for (size_t i = 0; i < WIDE; i++)
            check_product(s, i, (double)out[r * WIDE + i], expected[i], size[i]);
    }
}

static void experts(void **state)
{
    (void)state;
    for (size_t t = 0; t < st_type_count(); t++) {
        sample s;
        expert_set set;
        if (!mirror_runs(ST_OP_EXPERTS, st_type_at(t))) continue;
        open_sample(st_type_at(t), &s);
        make_experts(&s, &set);
        check_experts(&s, &set, t % 2, t % 3 == 0, t % 5 < 2, t % 2 ? ST_ACT_GELU : ST_ACT_SILU);
        if (st_type_at(t) == ST_TYPE_Q4_K)
            for (int c = 0; c < 16; c++)
                check_experts(&s, &set, c & 1, c & 2, c & 4, c & 8 ? ST_ACT_GELU : ST_ACT_SILU);
        free_experts(&set);
    }
}

enum { EXPERTS_MAX = 600 };

typedef struct route_case {
    st_router router;
    bool renormalise;
    uint32_t experts, used;
    bool ties;
} route_case;

static void route(void **state)
{
    (void)state;
    static const route_case cases[] = {
        {ST_ROUTER_SOFTMAX, false, 8, 2, false}, {ST_ROUTER_SOFTMAX, true, 8, 2, false},
        {ST_ROUTER_SIGMOID, false, 4, 1, false}, {ST_ROUTER_SIGMOID, true, 7, 3, false},
        {ST_ROUTER_SOFTMAX, true, 5, 5, true},   {ST_ROUTER_SOFTMAX, false, 33, 8, true},
        {ST_ROUTER_SIGMOID, false, 16, 4, true}, {ST_ROUTER_SOFTMAX, true, 1, 1, false},
        {ST_ROUTER_SOFTMAX, true, 128, 8, false}, {ST_ROUTER_SIGMOID, true, 200, 8, true},
        {ST_ROUTER_SOFTMAX, false, 300, 8, true}, {ST_ROUTER_SOFTMAX, true, EXPERTS_MAX, 8, true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const route_case *k = &cases[c];
        float scores[ROWS * EXPERTS_MAX], before[ROWS * EXPERTS_MAX], weights[ROWS * 8];
        int32_t ids[ROWS * 8];
        for (size_t i = 0; i < ROWS * k->experts; i++)
            before[i] = scores[i] = k->ties ? (float)(int)(random_value() * 3) : 4 * random_value();
        st_op op = {.kind = ST_OP_ROUTE};
        op.p.route.experts = k->experts;
        op.p.route.used = k->used;
        op.p.route.router = k->router;
        op.p.route.renormalise = k->renormalise;
        st_bound_op bound = {.op = &op, .in = {{scores, k->experts}}, .out = {ids, k->used},
                             .out2 = {weights, k->used}};
        op_run(&bound, ST_ROWS_ALL);
        for (size_t r = 0; r < ROWS; r++) {
            const float *row = before + r * k->experts;
            double all = 0, chosen = 0;
            for (size_t i = 0; i < k->experts; i++) all += exp((double)row[i]);
            bool taken[EXPERTS_MAX] = {false};
            for (size_t u = 0; u < k->used; u++) {
                size_t best = SIZE_MAX; /* the highest not yet chosen, the lowest index on ties */
                for (size_t i = 0; i < k->experts; i++)
                    if (!taken[i] && (best == SIZE_MAX || row[i] > row[best])) best = i;
                taken[best] = true;
                assert_int_equal(ids[r * k->used + u], best);
                chosen += k->router == ST_ROUTER_SOFTMAX ? exp((double)row[best]) / all : sigmoid((double)row[best]);
            }
            for (size_t u = 0; u < k->used; u++) {
                double score = (double)row[ids[r * k->used + u]];
                double weight = k->router == ST_ROUTER_SOFTMAX ? exp(score) / all : sigmoid(score);
                check_close("route", u, (double)weights[r * k->used + u], k->renormalise ? weight / chosen : weight, 1);
            }
        }
    }
}

/* Rows with recorded choices have those; in row 2 the first is negative, and the router chooses. */
static void recorded_routes(void **state)
{
    (void)state;
    enum { OFFERED = 33, TAKEN = 6, AT = 7, ROUTED = 2 };
    float scores[ROWS * OFFERED], own_scores[ROWS * OFFERED], weights[ROWS * TAKEN], own_weights[ROWS * TAKEN];
    int32_t ids[ROWS * TAKEN], own_ids[ROWS * TAKEN];
    randomise(scores, ROWS * OFFERED);
    memcpy(own_scores, scores, sizeof scores);
    st_op op = {.kind = ST_OP_ROUTE};
    op.p.route.experts = OFFERED;
    op.p.route.used = TAKEN;
    op.p.route.renormalise = true;
    st_bound_op bound = {.op = &op, .in = {{own_scores, OFFERED}}, .out = {own_ids, TAKEN}, .out2 = {own_weights, TAKEN}};
    op_run(&bound, ST_ROWS_ALL);
    for (uint32_t r = 0; r < ROWS; r++) {
        uint32_t *choice = st_step_choices(op_step, r);
        memset(choice, 0xFF, OP_CHOICES * sizeof *choice);
        for (uint32_t k = 0; k < TAKEN && r != ROUTED; k++) {
            float weight = 0.25f * (float)(r + k);
            choice[AT + k] = (5 * r + 3 * k) % OFFERED;
            memcpy(&choice[AT + TAKEN + k], &weight, sizeof weight);
        }
    }
    op.p.route.recorded = true;
    op.p.route.choices_at = AT;
    bound.in[0].data = scores;
    bound.out.data = ids;
    bound.out2.data = weights;
    op_run(&bound, ST_ROWS_ALL);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < TAKEN; k++) {
            size_t i = (size_t)r * TAKEN + k;
            assert_int_equal(ids[i], r == ROUTED ? own_ids[i] : (int32_t)((5 * r + 3 * k) % OFFERED));
            assert_true(weights[i] == (r == ROUTED ? own_weights[i] : 0.25f * (float)(r + k)));
        }
}

static int close_all(void **state)
{
    st_gguf_close(quant_kit);
    return op_rig_close(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed),   cmocka_unit_test(matmul), cmocka_unit_test(matmul_of_odd_sizes),
        cmocka_unit_test(experts), cmocka_unit_test(route),  cmocka_unit_test(recorded_routes),
    };
    return kit_run("ops matrix", tests, sizeof tests / sizeof *tests, op_rig_open, close_all, argc, argv);
}
