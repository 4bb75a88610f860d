/* src/backend/cpu/ref.c: each reference operation against its formula in double, written down here once more. Odd
 * sizes and several rows. The operations on matrices are in test_ops_matrix.c. */
#include "support/op_rig.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "quant/row.h"

/* ---- norms and positions ----------------------------------------------------------------------------------------- */

static void rms_norm(void **state)
{
    (void)state;
    static const struct { uint32_t width, group, weight; } cases[] = {{7, 7, 7}, {64, 16, 16}, {64, 16, 64},
                                                                      {66, 33, 0}, {1, 1, 1}, {513, 513, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int in_place = 0; in_place < 2; in_place++) {
            uint32_t width = cases[c].width, group = cases[c].group;
            float in[ROWS * 513], copy[ROWS * 513], out[ROWS * 513], w[513];
            randomise(in, ROWS * width);
            memset(in, 0, width * sizeof *in); /* a row of zeros is not divided by */
            memcpy(copy, in, sizeof in);
            randomise(w, 513);
            st_op op = {.kind = ST_OP_RMS_NORM};
            op.p.norm.group = group;
            op.p.norm.epsilon = 1e-3f;
            st_bound_op bound = {.op = &op, .in = {{in, width}}, .out = {in_place ? in : out, width}};
            if (cases[c].weight) bound.weight[0] = floats(w, cases[c].weight, 1);
            op_run(&bound, ST_ROWS_ALL);
            const float *found = in_place ? in : out;
            for (size_t i = 0; i < ROWS * width; i++) {
                double squares = 0;
                for (size_t k = i / group * group; k < i / group * group + group; k++)
                    squares += (double)copy[k] * (double)copy[k];
                double factor = cases[c].weight ? (double)w[i % width % cases[c].weight] : 1;
                double expected = (double)copy[i] / sqrt(squares / group + 1e-3) * factor;
                check_close("rms_norm", i, (double)found[i], expected, 2);
            }
        }
}

/* The share of its own speed that a pair keeps, by the paper. */
static double yarn_keeps(const st_rope *rope, size_t pair)
{
    double base = 2 * log((double)rope->base), whole = (double)rope->original_context / (2 * M_PI);
    double low = floor(rope->dims * log(whole / (double)rope->beta_fast) / base);
    double high = ceil(rope->dims * log(whole / (double)rope->beta_slow) / base);
    if (low < 0) low = 0;
    if (high > rope->dims - 1) high = rope->dims - 1;
    double ramp = ((double)pair - low) / fmax(0.001, high - low);
    return 1 - fmin(1, fmax(0, ramp));
}

static double angle_of(const st_rope *rope, const float *factors, uint32_t position, size_t pair)
{
    double speed = pow((double)rope->base, -2.0 * (double)pair / rope->dims) / (factors ? (double)factors[pair] : 1);
    if (rope->scaling == ST_ROPE_SCALING_LINEAR) speed /= (double)rope->scaling_factor;
    if (rope->scaling == ST_ROPE_SCALING_YARN) {
        double keeps = yarn_keeps(rope, pair);
        speed = speed * keeps + speed / (double)rope->scaling_factor * (1 - keeps);
    }
    return position * speed;
}

static void angles(void **state)
{
    (void)state;
    static const st_rope ropes[] = {
        {.dims = 16, .base = 10000, .attention_factor = 1},
        {.dims = 6, .base = 1e6f, .attention_factor = 1},
        {.dims = 16, .base = 10000, .attention_factor = 1, .scaling = ST_ROPE_SCALING_LINEAR, .scaling_factor = 4},
        {.dims = 64, .base = 10000, .attention_factor = 1.1386f, .scaling = ST_ROPE_SCALING_YARN, .scaling_factor = 4,
         .original_context = 4096, .beta_fast = 32, .beta_slow = 1},
        {.dims = 8, .base = 500, .attention_factor = 0.9f, .scaling = ST_ROPE_SCALING_YARN, .scaling_factor = 2,
         .original_context = 64, .beta_fast = 8, .beta_slow = 2},
    };
    for (size_t c = 0; c < sizeof ropes / sizeof *ropes; c++)
        for (int with = 0; with < 2; with++) {
            float out[ROWS * 64], factors[32];
            for (int i = 0; i < 32; i++) factors[i] = i % 5 == 4 ? 1e30f : 1.5f + random_value();
            st_op op = {.kind = ST_OP_ANGLES};
            op.p.angles.rope = ropes[c];
            st_bound_op bound = {.op = &op, .out = {out, ropes[c].dims}};
            if (with) bound.weight[0] = floats(factors, ropes[c].dims / 2, 1);
            op_step_at(1000);
            op_run(&bound, ST_ROWS_ALL);
            op_step_at(0);
            for (size_t r = 0; r < ROWS; r++)
                for (size_t pair = 0; pair < ropes[c].dims / 2; pair++) {
                    double angle = angle_of(&ropes[c], with ? factors : NULL, 1000 + (uint32_t)r, pair);
                    double tolerance = 100; /* an angle of a thousand has six digits behind the point */
                    check_close("cosine", pair, (double)out[r * ropes[c].dims + 2 * pair],
                          cos(angle) * (double)ropes[c].attention_factor, tolerance);
                    check_close("sine", pair, (double)out[r * ropes[c].dims + 2 * pair + 1],
                          sin(angle) * (double)ropes[c].attention_factor, tolerance);
                }
        }
}

static void rope(void **state)
{
    (void)state;
    static const struct { st_rope_style style; uint32_t heads, head_size, dims; } cases[] = {
        {ST_ROPE_PAIRS, 3, 8, 8}, {ST_ROPE_HALVES, 3, 8, 8}, {ST_ROPE_PAIRS, 2, 10, 6}, {ST_ROPE_HALVES, 2, 11, 6}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint32_t width = cases[c].heads * cases[c].head_size, dims = cases[c].dims;
        float value[ROWS * 24], before[ROWS * 24], turns[ROWS * 8];
        randomise(value, ROWS * width);
        randomise(turns, ROWS * dims);
        memcpy(before, value, sizeof value);
        st_op op = {.kind = ST_OP_ROPE};
        op.p.rope.heads = cases[c].heads;
        op.p.rope.head_size = cases[c].head_size;
        op.p.rope.dims = dims;
        op.p.rope.style = cases[c].style;
        st_bound_op bound = {.op = &op, .in = {{value, width}, {turns, dims}}, .out = {value, width}};
        op_run(&bound, ST_ROWS_ALL);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t i = 0; i < width; i++) {
                size_t in_head = i % cases[c].head_size, start = r * width + i - in_head;
                double expected = (double)before[r * width + i];
                if (in_head < dims) {
                    bool pairs = cases[c].style == ST_ROPE_PAIRS;
                    size_t pair = pairs ? in_head / 2 : in_head % (dims / 2);
                    bool second = pairs ? in_head % 2 : in_head >= dims / 2;
                    double x = (double)before[start + (pairs ? 2 * pair : pair)];
                    double y = (double)before[start + (pairs ? 2 * pair + 1 : pair + dims / 2)];
                    double cosine = (double)turns[r * dims + 2 * pair], sine = (double)turns[r * dims + 2 * pair + 1];
                    expected = second ? x * sine + y * cosine : x * cosine - y * sine;
                }
                check_close("rope", i, (double)value[r * width + i], expected, 2);
            }
    }
}

static void temperature(void **state)
{
    (void)state;
    static const uint32_t positions[] = {0, 6, 30, 8190, 100000};
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
        float value[ROWS * 3], before[ROWS * 3];
        randomise(value, ROWS * 3);
        memcpy(before, value, sizeof value);
        st_op op = {.kind = ST_OP_TEMPERATURE};
        op.p.temperature.chunk = 8;
        op.p.temperature.factor = 0.1f;
        st_bound_op bound = {.op = &op, .in = {{value, 3}}, .out = {value, 3}};
        op_step_at(positions[p]);
        op_run(&bound, ST_ROWS_ALL);
        op_step_at(0);
        for (size_t i = 0; i < ROWS * 3; i++) {
            uint32_t position = positions[p] + (uint32_t)(i / 3);
            double scale = log(floor((position + 1) / 8.0) + 1) * 0.1 + 1;
            check_close("temperature", i, (double)value[i], (double)before[i] * scale, 3);
        }
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct attention_case {
    uint32_t heads, kv_heads, key, value, window, chunk, page_shift;
    st_type type;
} attention_case;

enum { KEYS_MAX = 2 * 9, POSITIONS_MAX = 40 };

/* Whether position i looks at j. */
static bool sees(const attention_case *c, uint32_t i, uint32_t j)
{
    if (j > i) return false;
    if (c->window && i - j >= c->window) return false;
    return !c->chunk || i / c->chunk == j / c->chunk;
}

static void attend(const attention_case *c, const float *query, uint32_t position, uint32_t head,
                   float keys[POSITIONS_MAX][KEYS_MAX], float values[POSITIONS_MAX][KEYS_MAX], double *out)
{
    uint32_t kv = head / (c->heads / c->kv_heads);
    double sum = 0, weight[POSITIONS_MAX];
    for (uint32_t j = 0; j <= position; j++) {
        double score = 0;
        for (uint32_t i = 0; i < c->key; i++) score += (double)query[i] * (double)keys[j][kv * c->key + i];
        weight[j] = sees(c, position, j) ? exp(score * 0.3) : 0;
        sum += weight[j];
    }
    for (uint32_t i = 0; i < c->value; i++) {
        out[i] = 0;
        for (uint32_t j = 0; j <= position; j++) out[i] += weight[j] / sum * (double)values[j][kv * c->value + i];
    }
}

/* What the cache keeps of a row. */
static void narrow(st_type type, float *row, size_t count)
{
    unsigned char stored[KEYS_MAX * 4];
    st_row_store(type, row, count, stored);
    st_row_load(type, stored, 0, count, row);
}

static void check_attention(const attention_case *c)
{
    static float keys[POSITIONS_MAX][KEYS_MAX], values[POSITIONS_MAX][KEYS_MAX], query[ROWS * 64], out[ROWS * 64];
    static float k[ROWS * KEYS_MAX], v[ROWS * KEYS_MAX];
    uint32_t key_width = c->kv_heads * c->key, value_width = c->kv_heads * c->value;
    size_t key_bytes = st_row_bytes(c->type, key_width), value_bytes = st_row_bytes(c->type, value_width);
    uint32_t pages = POSITIONS_MAX >> c->page_shift;
    unsigned char *cache = st_alloc_zero(pages << c->page_shift, key_bytes + value_bytes);
    assert_non_null(cache);
    /* A page holds its keys, then its values. Pages are in reverse order. */
    st_kv_view kv = {.keys = cache, .values = cache + (key_bytes << c->page_shift), .key_row_bytes = key_bytes,
                     .value_row_bytes = value_bytes, .page_shift = c->page_shift, .pages = pages, .type = c->type};
    kv.key_page_bytes = kv.value_page_bytes = (key_bytes + value_bytes) << c->page_shift;
    for (uint32_t i = 0; i < pages; i++) st_step_tables(op_step)[i] = pages - 1 - i;
    st_op store = {.kind = ST_OP_KV_STORE}, look = {.kind = ST_OP_ATTENTION};
    look.p.attention.heads = c->heads;
    look.p.attention.kv_heads = c->kv_heads;
    look.p.attention.key_length = c->key;
    look.p.attention.value_length = c->value;
    look.p.attention.window = c->window;
    look.p.attention.chunk = c->chunk;
    look.p.attention.scale = 0.3f;
    st_bound_op storing = {.op = &store, .in = {{k, key_width}, {v, value_width}}, .kv = kv};
    st_bound_op looking = {.op = &look, .in = {{query, c->heads * c->key}}, .out = {out, c->heads * c->value},
                           .kv = kv};
    for (uint32_t position = 0; position < POSITIONS_MAX; position += ROWS) {
        randomise(k, sizeof k / sizeof *k);
        randomise(v, sizeof v / sizeof *v);
        randomise(query, sizeof query / sizeof *query);
        op_step_at(position);
        op_run(&storing, ST_ROWS_ALL);
        op_run(&looking, ST_ROWS_ALL);
        for (uint32_t r = 0; r < ROWS; r++) {
            memcpy(keys[position + r], k + r * key_width, key_width * sizeof *k);
            memcpy(values[position + r], v + r * value_width, value_width * sizeof *v);
            narrow(c->type, keys[position + r], key_width);
            narrow(c->type, values[position + r], value_width);
        }
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t head = 0; head < c->heads; head++) {
                double expected[16];
                attend(c, query + (r * c->heads + head) * c->key, position + r, head, keys, values, expected);
                for (uint32_t i = 0; i < c->value; i++)
                    check_close("attention", position + r, (double)out[(r * c->heads + head) * c->value + i],
                                expected[i], 3);
            }
    }
    op_step_at(0);
    st_free(cache);
}

static void attention(void **state)
{
    (void)state;
    static const attention_case cases[] = {
        {4, 2, 8, 8, 0, 0, 0, ST_TYPE_F32},  {4, 2, 9, 5, 0, 0, 1, ST_TYPE_F32},  {2, 2, 3, 7, 0, 0, 2, ST_TYPE_F32},
        {6, 1, 5, 5, 0, 0, 3, ST_TYPE_F32},  {4, 2, 8, 8, 6, 0, 0, ST_TYPE_F32},  {4, 2, 8, 8, 6, 0, 2, ST_TYPE_F32},
        {4, 2, 8, 8, 1, 0, 1, ST_TYPE_F32},  {4, 2, 8, 8, 0, 7, 2, ST_TYPE_F32},  {4, 2, 8, 8, 0, 10, 3, ST_TYPE_F32},
        {4, 2, 9, 5, 0, 0, 2, ST_TYPE_BF16}, {4, 2, 9, 9, 6, 0, 3, ST_TYPE_Q8_0}, {4, 2, 9, 5, 0, 0, 1, ST_TYPE_F16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_attention(&cases[i]);
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

enum { WIDTH = 37 };

static float in_a[ROWS * WIDTH], in_b[ROWS * WIDTH], result[ROWS * 2 * WIDTH], weight_row[WIDTH];

static void check_elements(st_op *op, uint32_t second_width, bool weighted,
                           double (*formula)(double a, double b, double w))
{
    for (size_t i = 0; i < ROWS * WIDTH; i++) in_a[i] = 6 * random_value(), in_b[i] = 6 * random_value();
    randomise(weight_row, WIDTH);
    uint32_t weight_width = weighted ? second_width : 0;
    for (int in_place = 0; in_place < 2; in_place++) {
        memcpy(result, in_a, sizeof in_a);
        st_bound_op bound = {.op = op, .in = {{in_place ? result : in_a, WIDTH}, {in_b, second_width}},
                             .out = {result, WIDTH}};
        if (weighted) bound.weight[0] = floats(weight_row, weight_width, 1);
        op_run(&bound, ST_ROWS_ALL);
        for (size_t i = 0; i < ROWS * WIDTH; i++) {
            size_t row = i / WIDTH, column = i % WIDTH, second = second_width == 1 ? 0 : column;
            double expected = formula((double)in_a[i], (double)in_b[row * second_width + second],
                                      (double)weight_row[weight_width == 1 ? 0 : column]);
            check_close(st_op_name(op->kind), i, (double)result[i], expected, fabs(expected) + 6);
        }
    }
}

static double f_add(double a, double b, double w) { (void)w; return a + b; }
static double f_scale(double a, double b, double w) { (void)b; (void)w; return a * 1.75; }
static double f_mul(double a, double b, double w) { (void)b; return a * w; }
static double f_silu_act(double a, double b, double w) { (void)w; return silu(a) * b; }
static double f_gelu_act(double a, double b, double w) { (void)w; return gelu(a) * b; }
static double f_sigmoid(double a, double b, double w) { (void)w; return a * sigmoid(b); }
static double f_silu_gate(double a, double b, double w) { (void)w; return a * silu(b); }
static double f_softcap(double a, double b, double w) { (void)b; (void)w; return 2.5 * tanh(a / 2.5); }

static void element_by_element(void **state)
{
    (void)state;
    st_op add = {.kind = ST_OP_ADD}, scale = {.kind = ST_OP_SCALE}, mul = {.kind = ST_OP_MUL_WEIGHT};
    st_op act = {.kind = ST_OP_GATED_ACT}, gate = {.kind = ST_OP_SIGMOID_GATE}, silu_gate = {.kind = ST_OP_SILU_GATE};
    st_op softcap = {.kind = ST_OP_SOFTCAP};
    scale.p.scale.factor = 1.75f;
    softcap.p.softcap.cap = 2.5f;
    check_elements(&add, WIDTH, false, f_add);
    check_elements(&scale, WIDTH, false, f_scale);
    check_elements(&mul, WIDTH, true, f_mul);
    check_elements(&mul, 1, true, f_mul);
    act.p.gate.activation = ST_ACT_SILU;
    check_elements(&act, WIDTH, false, f_silu_act);
    act.p.gate.activation = ST_ACT_GELU;
    check_elements(&act, WIDTH, false, f_gelu_act);
    check_elements(&gate, WIDTH, false, f_sigmoid);
    check_elements(&gate, 1, false, f_sigmoid);
    check_elements(&silu_gate, WIDTH, false, f_silu_gate);
    check_elements(&softcap, WIDTH, false, f_softcap);
}

static void slice_and_concat(void **state)
{
    (void)state;
    randomise(in_a, ROWS * WIDTH);
    randomise(in_b, ROWS * WIDTH);
    st_op slice = {.kind = ST_OP_SLICE}, concat = {.kind = ST_OP_CONCAT};
    slice.p.slice.groups = 3;
    slice.p.slice.stride = 12;
    slice.p.slice.offset = 5;
    st_bound_op slicing = {.op = &slice, .in = {{in_a, WIDTH}}, .out = {result, 12}};
    op_run(&slicing, ST_ROWS_ALL);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < 12; i++) assert_true(result[r * 12 + i] == in_a[r * WIDTH + i / 4 * 12 + 5 + i % 4]);
    st_bound_op joining = {.op = &concat, .in = {{in_a, WIDTH}, {in_b, 3}}, .out = {result, WIDTH + 3}};
    op_run(&joining, ST_ROWS_ALL);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < WIDTH + 3; i++)
            assert_true(result[r * (WIDTH + 3) + i] == (i < WIDTH ? in_a[r * WIDTH + i] : in_b[r * 3 + i - WIDTH]));
}

static void gather(void **state)
{
    (void)state;
    randomise(in_a, ROWS * WIDTH);
    static const uint32_t rows[] = {4, 0, 0};
    op_step->out_count = 3;
    memcpy(st_step_out_rows(op_step), rows, sizeof rows);
    st_op op = {.kind = ST_OP_GATHER};
    st_bound_op bound = {.op = &op, .in = {{in_a, WIDTH}}, .out = {result, WIDTH}};
    result[3 * WIDTH] = 99;
    op_run(&bound, ST_ROWS_OUT);
    for (size_t r = 0; r < 3; r++)
        assert_memory_equal(result + r * WIDTH, in_a + rows[r] * WIDTH, WIDTH * sizeof *result);
    assert_true(result[3 * WIDTH] == 99); /* and no row more */
    op_step->out_count = 0;
}

/* ---- recurrent layers -------------------------------------------------------------------------------------------- */

static void conv(void **state)
{
    (void)state;
    static const struct { uint32_t channels, taps; } cases[] = {{1, 1}, {7, 2}, {65, 4}, {130, 5}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        enum { BATCHES = 3 };
        uint32_t channels = cases[c].channels, taps = cases[c].taps;
        static float in[ROWS * 130], out[ROWS * 130], weights[130 * 5], memory[4 * 130], all[BATCHES * ROWS * 130];
        randomise(weights, channels * taps);
        memset(memory, 0, sizeof memory);
        st_op op = {.kind = ST_OP_CONV};
        op.p.conv.width = taps;
        st_bound_op bound = {.op = &op, .in = {{in, channels}}, .out = {out, channels},
                             .weight = {floats(weights, taps, channels)}, .state = {.conv = memory, .slots = 1}};
        for (size_t batch = 0; batch < BATCHES; batch++) {
            randomise(in, ROWS * channels);
            memcpy(all + batch * ROWS * channels, in, ROWS * channels * sizeof *in);
            op_run(&bound, ST_ROWS_ALL);
            for (size_t i = 0; i < ROWS * channels; i++) {
                size_t now = batch * ROWS + i / channels, channel = i % channels;
                double sum = 0;
                for (size_t t = 0; t < taps; t++) /* the last tap multiplies the current token */
                    if (now + t + 1 >= taps)
                        sum += (double)weights[channel * taps + t] *
                               (double)all[(now + t + 1 - taps) * channels + channel];
                check_close("conv", i, (double)out[i], silu(sum), 4);
            }
        }
    }
}

enum { D = 5, KEY_HEADS = 2, VALUE_HEADS = 4 };

/* One token of one head: S[key][value]. */
static void delta_rule(double S[D][D], const double *q, const double *k, const double *v, double decay, double b,
                       double *out)
{
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) S[i][j] *= decay;
    for (int j = 0; j < D; j++) {
        double seen = 0;
        for (int i = 0; i < D; i++) seen += S[i][j] * k[i];
        for (int i = 0; i < D; i++) S[i][j] += k[i] * b * (v[j] - seen);
        out[j] = 0;
        for (int i = 0; i < D; i++) out[j] += S[i][j] * q[i] / sqrt(D);
    }
}

static void unit(const float *x, double *out)
{
    double squares = 1e-6;
    for (int i = 0; i < D; i++) squares += (double)x[i] * (double)x[i];
    for (int i = 0; i < D; i++) out[i] = (double)x[i] / sqrt(squares);
}

static void deltanet(void **state)
{
    (void)state;
    enum { CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * D };
    static float qkv[ROWS * CHANNELS], alpha[ROWS * VALUE_HEADS], beta[ROWS * VALUE_HEADS], out[ROWS * VALUE_HEADS * D];
    static float bias[VALUE_HEADS], a[VALUE_HEADS], memory[VALUE_HEADS * D * D];
    static double S[VALUE_HEADS][D][D];
    randomise(bias, VALUE_HEADS);
    for (int i = 0; i < VALUE_HEADS; i++) a[i] = -0.2f - (float)i;
    memset(memory, 0, sizeof memory);
    st_op op = {.kind = ST_OP_DELTANET};
    op.p.deltanet.key_heads = KEY_HEADS;
    op.p.deltanet.value_heads = VALUE_HEADS;
    op.p.deltanet.size = D;
    st_bound_op bound = {.op = &op, .in = {{qkv, CHANNELS}, {alpha, VALUE_HEADS}, {beta, VALUE_HEADS}},
                         .out = {out, VALUE_HEADS * D},
                         .weight = {floats(bias, VALUE_HEADS, 1), floats(a, VALUE_HEADS, 1)},
                         .state = {.delta = memory, .slots = 1}};
    for (int batch = 0; batch < 3; batch++) { /* the state goes on from batch to batch */
        randomise(qkv, ROWS * CHANNELS);
        for (int i = 0; i < ROWS * VALUE_HEADS; i++) alpha[i] = 30 * random_value(), beta[i] = 4 * random_value();
        op_run(&bound, ST_ROWS_ALL);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t h = 0; h < VALUE_HEADS; h++) {
                const float *row = qkv + r * CHANNELS;
                double q[D], k[D], v[D], expected[D];
                unit(row + h % KEY_HEADS * D, q);
                unit(row + (KEY_HEADS + h % KEY_HEADS) * D, k);
                for (size_t i = 0; i < D; i++) v[i] = (double)row[(2 * KEY_HEADS + h) * D + i];
                double x = (double)alpha[r * VALUE_HEADS + h] + (double)bias[h];
                double decay = exp((x > 0 ? x + log1p(exp(-x)) : log1p(exp(x))) * (double)a[h]);
                delta_rule(S[h], q, k, v, decay, sigmoid((double)beta[r * VALUE_HEADS + h]), expected);
                for (size_t i = 0; i < D; i++)
                    check_close("deltanet", i, (double)out[(r * VALUE_HEADS + h) * D + i], expected[i], 4);
            }
    }
    for (size_t i = 0; i < VALUE_HEADS * D * D; i++) check_close("state", i, (double)memory[i], (&S[0][0][0])[i], 4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm),           cmocka_unit_test(angles),           cmocka_unit_test(rope),
        cmocka_unit_test(temperature),        cmocka_unit_test(attention),        cmocka_unit_test(element_by_element),
        cmocka_unit_test(slice_and_concat),   cmocka_unit_test(gather),           cmocka_unit_test(conv),
        cmocka_unit_test(deltanet),
    };
    return kit_run("ops", tests, sizeof tests / sizeof *tests, op_rig_open, op_rig_close, argc, argv);
}
