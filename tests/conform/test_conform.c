/* Every operation, every tensor type, every instruction set of this machine: the fast path against the reference, over
 * random shapes with odd sizes. With STRATA_TEST_BACKEND (support/mirror.h) that backend instead. Every comparison that fails is
 * printed with its seed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/scratch.h"
#include "base/alloc.h"
#include "gguf/gguf.h"
#include "support/conform_rig.h"
#include "support/mirror.h"
#include "support/steps.h"

static uint32_t rounds; /* of random shapes; each kind of operation takes some multiple */

/* --- weights: rows made of real blocks of the kit ------------------------------------------------------------------------------------ */

static st_gguf *kit_rows;

static const st_gguf_tensor *kit_blocks(uint32_t type)
{
    for (size_t i = 0; i < st_gguf_tensor_count(kit_rows); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(kit_rows, i);
        if (tensor->type == type && tensor->name.length > 2 && memcmp(tensor->name.data, "q.", 2) == 0) return tensor;
    }
    return NULL;
}

/* A block of a type that the kit lacks: a float16 scale, then bits. */
static void random_block(const st_type_info *info, unsigned char *block)
{
    uint16_t d = st_float_to_half(random_even());
    memcpy(block, &d, sizeof d);
    for (uint32_t i = sizeof d; i < info->bytes; i++) block[i] = (unsigned char)random_bits();
}

/* A matrix [width, rows] of blocks drawn from the kit's, or of random floats. The caller frees data. */
static st_bound_weight make_weight(uint32_t type, size_t width, size_t rows, size_t parts)
{
    const st_type_info *info = st_type_find(type);
    st_bound_weight w = {.info = info, .type = type, .ne = {width, rows, parts}};
    assert_true(st_type_row_bytes(info, width, &w.row_bytes));
    size_t blocks = width / info->block * rows * parts;
    unsigned char *data = st_alloc_array(blocks, info->bytes);
    assert_non_null(data);
    const st_gguf_tensor *source = kit_blocks(type);
    size_t known = source ? source->bytes / info->bytes : 0;
    for (size_t i = 0; i < blocks; i++) {
        if (source) memcpy(data + i * info->bytes, source->data + random_bits() % known * info->bytes, info->bytes);
        else if (info->block == 1) ((float *)(void *)data)[i] = random_float();
        else random_block(info, data + i * info->bytes);
    }
    w.data = data;
    if (parts > 1) {
        const void **table = st_alloc_array(parts, sizeof *table);
        assert_non_null(table);
        for (size_t i = 0; i < parts; i++) table[i] = data + i * rows * w.row_bytes;
        w.parts = table;
    }
    return w;
}

static void free_weight(st_bound_weight *w)
{
    st_free((void *)(uintptr_t)w->data);
    st_free((void *)(uintptr_t)w->parts);
}

/* Replaces values by what int8 keeps of them, with a scale by 16, in a batch on the CPU by 32. Returns the sum of the
 * squared steps of the values in the middle between two bytes, where the last bits of a sum decide. */
static double round_to_int8(float *x, size_t count, bool batch)
{
    size_t group = batch && !mirror_name() ? ST_ACT_BLOCK : ST_ACT_HALF;
    double undecided = 0;
    for (size_t b = 0; b + group <= count; b += group) {
        float top = 0;
        for (size_t i = 0; i < group; i++) top = fmaxf(top, fabsf(x[b + i]));
        for (size_t i = 0; i < group; i++) {
            float scaled = top > 0 ? x[b + i] * (127 / top) : 0, step = top / 127;
            if (fabsf(scaled - floorf(scaled) - 0.5f) < 1e-3f) undecided += (double)step * step;
            x[b + i] = rintf(scaled) * step;
        }
    }
    return undecided;
}

/* What batches may lose to fewer bits. Another backend may multiply them in f16: weights, scales and activations keep 11 bits, each
 * rounded by 2⁻¹² at most. The CPU's matrix unit multiplies them in bfloat16: weights and activations keep 8 bits, rounded by 2⁻⁹. */
enum { FEW_ROWS = 2 };

static bool is_bfloat16(const char *cpu)
{
    return strcmp(cpu, "amx") == 0;
}

static double batch_error_max(const char *cpu, uint32_t rows, double exact)
{
    if (mirror_name()) return rows > FEW_ROWS ? 1e-3 : exact;
    return is_bfloat16(cpu) && rows >= ST_PANEL_ROWS ? 4e-3 : exact;
}

/* Experts: two products behind one another, the first times itself: three errors. */
static double experts_error_max(const char *cpu, uint32_t rows, double exact)
{
    if (mirror_name()) return 3 * batch_error_max(cpu, rows, exact / 3);
    return is_bfloat16(cpu) && rows >= ST_FEW_PAIRS ? 12e-3 : exact;
}

/* --- the tests ------------------------------------------------------------------------------------------------------------------------- */

static bool is_float_type(uint32_t type)
{
    return type == ST_TYPE_F32 || type == ST_TYPE_F16 || type == ST_TYPE_BF16;
}

/* Types whose weights the CPU multiplies with int8 activations; all others with floats. Another backend chooses by type and by
 * the number of rows. */
static bool has_kernel(uint32_t type)
{
    static const uint32_t types[] = {ST_TYPE_Q4_0, ST_TYPE_Q4_1, ST_TYPE_Q5_0, ST_TYPE_Q5_1, ST_TYPE_Q8_0, ST_TYPE_Q2_K, ST_TYPE_Q3_K,
                                     ST_TYPE_Q4_K, ST_TYPE_Q5_K, ST_TYPE_Q6_K, ST_TYPE_IQ2_XXS, ST_TYPE_IQ2_XS,
                                     ST_TYPE_IQ2_S, ST_TYPE_IQ3_XXS, ST_TYPE_IQ3_S, ST_TYPE_IQ1_S, ST_TYPE_IQ1_M,
                                     ST_TYPE_IQ4_NL, ST_TYPE_IQ4_XS, ST_TYPE_MXFP4, ST_TYPE_NVFP4, ST_TYPE_TQ1_0,
                                     ST_TYPE_TQ2_0, ST_TYPE_Q1_0, ST_TYPE_Q2_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i] == type) return true;
    return false;
}

static void matmul(void **state)
{
    const level_case *c = *state;
    check_level(c);
    const st_type_info *info = st_type_find(c->type);
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        random_state = seed * 77 + c->type;
        uint32_t rows = random_rows(), columns = between(1, mirror_name() ? 200 : 50); /* several tiles of a GPU */
        size_t width = is_float_type(c->type) ? between(1, 300) : (size_t)info->block * between(1, info->block == 32 ? 20 : 4);
        st_op op = {.kind = ST_OP_MATMUL};
        st_bound_op bound = {.op = &op, .in[0] = {.width = (uint32_t)width}, .out = {.width = columns}};
        bound.weight[0] = make_weight(c->type, width, columns, 1);
        if (seed % 2) bound.weight[1] = make_weight(ST_TYPE_F32, columns, 1, 1);
        float *x = random_floats(rows * width);
        bound.in[0].data = x;
        st_step *step = step_rows(rows, 0);
        /* int8 costs about half a percent; a handful of outputs may lose more to cancellation */
        bool floats = !has_kernel(c->type);
        double error_max = floats ? 1e-5 : batch_error_max(c->cpu, mirror_name() ? 1 : rows, 1e-2);
        if (floats || rows * columns >= 64) compare(c->cpu, info->name, &bound, step, error_max, seed);
        for (uint32_t r = 0; r < rows; r++) round_to_int8(x + r * width, width, rows >= ST_FEW_ROWS);
        compare(c->cpu, info->name, &bound, step, has_kernel(c->type) ? batch_error_max(c->cpu, rows, 1e-5) : 1e-5, seed);
        st_free(x);
        st_free(step);
        free_weight(&bound.weight[0]);
        free_weight(&bound.weight[1]);
    }
    conclude();
}

typedef struct matmul_size {
    uint32_t rows, columns, width;
} matmul_size;

static void compare_sizes(const level_case *c, const matmul_size *sizes, size_t count, double error_max)
{
    for (uint64_t i = 0; i < count; i++) {
        random_state = i * 83 + c->type;
        st_op op = {.kind = ST_OP_MATMUL};
        st_bound_op bound = {.op = &op, .in[0] = {.width = sizes[i].width}, .out = {.width = sizes[i].columns}};
        bound.weight[0] = make_weight(c->type, sizes[i].width, sizes[i].columns, 1);
        float *x = bound.in[0].data = random_floats((size_t)sizes[i].rows * sizes[i].width);
        st_step *step = step_rows(sizes[i].rows, 0);
        compare(c->cpu, st_type_find(c->type)->name, &bound, step, error_max, i);
        st_free(x);
        st_free(step);
        free_weight(&bound.weight[0]);
    }
    conclude();
}

/* So many tiles that a GPU takes its largest ones. */
static void matmul_large(void **state)
{
    static const matmul_size sizes[] = {{200, 7700, 256}, {130, 33300, 256}, {300, 4999, 768}};
    compare_sizes(*state, sizes, sizeof sizes / sizeof *sizes, 1e-3);
}

/* So deep, or so many columns, that a GPU's warps have several blocks of each column, or several columns one after the other. */
static void matmul_deep(void **state)
{
    static const matmul_size sizes[] = {{5, 40, 35 * 256}, {11, 4231, 9 * 256}, {7, 4300, 14 * 256}, {30, 24, 21 * 256}, {16, 33, 16 * 256},
                                        {29, 4250, 3 * 256}, {13, 17001, 2 * 256}};
    compare_sizes(*state, sizes, sizeof sizes / sizeof *sizes, 1e-3);
}

/* Batches with so few columns, as a router's, that a GPU's warps share the depth. */
static void matmul_narrow(void **state)
{
    static const matmul_size sizes[] = {{65, 128, 2048}, {200, 33, 260}, {130, 1, 516}, {97, 512, 64}, {70, 513, 64}, {66, 40, 257}};
    compare_sizes(*state, sizes, sizeof sizes / sizeof *sizes, 1e-5);
}

/* One row, and matrices so large that a GPU's memory system copies them: rows of one piece, of two, of which the last is a quarter, of
 * three, and of four, of which the last is half. Then smaller ones: few and many columns, short and long rows. */
static void matmul_wide(void **state)
{
    const level_case *c = *state;
    static const matmul_size sizes[] = {{1, 6502, 4096}, {1, 6501, 4096}, {1, 5001, 5120}, {1, 2101, 12288}, {1, 1901, 14336},
                                        {1, 301, 1280}, {1, 203, 2816}, {1, 4101, 768}, {1, 4103, 2304}};
    for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        random_state = i * 97 + c->type;
        st_op op = {.kind = ST_OP_MATMUL};
        st_bound_op bound = {.op = &op, .in[0] = {.width = sizes[i].width}, .out = {.width = sizes[i].columns}};
        bound.weight[0] = make_weight(c->type, sizes[i].width, sizes[i].columns, 1);
        bound.weight[1] = make_weight(ST_TYPE_F32, sizes[i].columns, 1, 1);
        float *x = bound.in[0].data = random_floats(sizes[i].width);
        st_step *step = step_rows(1, 0);
        round_to_int8(x, sizes[i].width, false);
        compare(c->cpu, st_type_find(c->type)->name, &bound, step, 1e-5, i);
        st_free(x);
        st_free(step);
        for (int k = 0; k < 2; k++) free_weight(&bound.weight[k]);
    }
    conclude();
}

/* Columns first … of one expert's matrix, for one row. */
static float *expert_matmul(const st_bound_weight *w, uint32_t expert, size_t first, size_t columns, float *x, st_step *one)
{
    st_op op = {.kind = ST_OP_MATMUL};
    st_bound_op bound = {.op = &op, .in[0] = {.width = (uint32_t)w->ne[0], .data = x}, .out = {.width = (uint32_t)columns}};
    bound.weight[0] = (st_bound_weight){.info = w->info, .type = w->type, .ne = {w->ne[0], columns, 1}, .row_bytes = w->row_bytes};
    bound.weight[0].data = (const unsigned char *)w->parts[expert] + first * w->row_bytes;
    return run_plainly(&bound, one);
}

static double squares(const float *x, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)x[i] * x[i];
    return sum;
}

/* out += weight × what one expert makes of x, with int8 inputs and hidden values as the fast path has them. Returns the
 * square of what undecided roundings of hidden values may change. */
static double add_expert(const st_bound_op *bound, uint32_t expert, float *x, float weight, bool batch, st_step *one,
                         float *out)
{
    uint32_t width = bound->op->p.experts.width, embedding = bound->out.width;
    bool fused = bound->op->p.experts.fused;
    round_to_int8(x, embedding, batch);
    float *gate = expert_matmul(&bound->weight[0], expert, 0, width, x, one);
    float *up = expert_matmul(&bound->weight[fused ? 0 : 1], expert, fused ? width : 0, width, x, one);
    st_op op = {.kind = ST_OP_GATED_ACT};
    op.p.gate.activation = bound->op->p.experts.activation;
    st_bound_op gated = {.op = &op, .in = {{.width = width, .data = gate}, {.width = width, .data = up}}, .out = {.width = width}};
    float *hidden = run_plainly(&gated, one);
    double undecided = round_to_int8(hidden, width, batch), size = squares(hidden, width);
    float *part = expert_matmul(&bound->weight[2], expert, 0, embedding, hidden, one);
    double changed = size > 0 ? undecided / size * weight * weight * squares(part, embedding) : 0;
    for (uint32_t k = 0; k < embedding; k++) out[k] += weight * part[k];
    void *const pieces[] = {gate, up, hidden, part};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
    return changed;
}

/* With `error_max`, what the sums of a backend may differ from it: the order of the sums, and undecided roundings. */
static float *experts_in_int8(const st_bound_op *bound, uint32_t rows, double *error_max)
{
    uint32_t used = bound->op->p.experts.used, embedding = bound->out.width;
    bool on_input = bound->op->p.experts.weight_on_input;
    bool batch = rows * used >= ST_FEW_PAIRS * bound->op->p.experts.experts;
    const int32_t *ids = bound->in[1].data;
    const float *in = bound->in[0].data, *weights = bound->in[2].data, *factors = bound->weight[3].data;
    float *out = st_alloc_zero((size_t)rows * embedding, sizeof *out), *x = st_alloc_array(embedding, sizeof *x);
    assert_true(out && x);
    st_step *one = step_rows(1, 0);
    double changed = 0;
    for (uint32_t i = 0; i < rows * used; i++) {
        float factor = factors ? factors[ids[i]] : 1;
        for (uint32_t k = 0; k < embedding; k++) x[k] = in[i / used * embedding + k] * (on_input ? weights[i] : 1);
        float weight = on_input ? factor : factor * weights[i];
        changed += add_expert(bound, (uint32_t)ids[i], x, weight, batch, one, out + i / used * embedding);
    }
    *error_max = 1e-5; /* and powers of two times that: a test counts comparisons by their bound */
    while (*error_max < 4 * sqrt(changed / fmax(squares(out, (size_t)rows * embedding), 1e-30))) *error_max *= 2;
    st_free(one);
    st_free(x);
    return out;
}

/* A backend multiplies with floats, with int8 activations or, batches, in f16 or bfloat16. */
static void compare_with_either(const char *cpu, const char *name, st_bound_op *bound, st_step *step, uint64_t seed)
{
    size_t count = (size_t)step->count * bound->out.width;
    double error_max = 0;
    float *expected[] = {run_plainly(bound, step), experts_in_int8(bound, step->count, &error_max)};
    float *found = st_alloc_zero(count, sizeof *found);
    assert_non_null(found);
    bound->out.data = found;
    run_op(cpu, bound, step);
    double error = fmin(distance(found, expected[0], count), distance(found, expected[1], count));
    note(cpu, name, error, experts_error_max(cpu, step->count, error_max), step->count, seed);
    for (int i = 0; i < 2; i++) st_free(expected[i]);
    st_free(found);
}

static void experts(void **state)
{
    const level_case *c = *state;
    check_level(c);
    const char *name = st_type_find(c->type)->name;
    uint32_t block = st_type_find(c->type)->block, unit = block < 32 ? 32 : block;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        random_state = seed * 131 + c->type;
        uint32_t rows = random_rows(), count = between(2, 9), used = between(1, count), width = unit * between(1, 2);
        uint32_t embedding = unit * between(1, 2);
        if (mirror_name() && seed % 3 == 2) /* few share an expert */
            rows = between(9, 32), count = 24, used = between(1, 2), width = unit * between(1, 3);
        if (mirror_name() && seed % 4 == 3) rows = between(1, 8); /* int8, pair by pair */
        bool fused = seed % 3 == 0 || (mirror_name() && seed % 5 == 0);
        st_op op = {.kind = ST_OP_EXPERTS};
        op.p.experts.experts = count;
        op.p.experts.used = used;
        op.p.experts.width = width;
        op.p.experts.fused = fused;
        op.p.experts.activation = seed % 2 ? ST_ACT_SILU : ST_ACT_GELU;
        op.p.experts.weight_on_input = seed % 4 == 1;
        st_bound_op bound = {.op = &op, .in = {{.width = embedding}, {.width = used}, {.width = used}}, .out = {.width = embedding}};
        bound.weight[0] = make_weight(c->type, embedding, fused ? 2 * width : width, count);
        if (!fused) bound.weight[1] = make_weight(c->type, embedding, width, count);
        bound.weight[2] = make_weight(c->type, width, embedding, count);
        if (seed % 2) bound.weight[3] = make_weight(ST_TYPE_F32, count, 1, 1);
        int32_t *ids = st_alloc_array((size_t)rows * used, sizeof *ids);
        assert_non_null(ids);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t k = 0, first = random_bits(); k < used; k++) ids[r * used + k] = (int32_t)((first + k) % count);
        bound.in[0].data = random_floats((size_t)rows * embedding);
        bound.in[1].data = ids;
        bound.in[2].data = random_floats((size_t)rows * used);
        st_step *step = step_rows(rows, 0);
        bool either = mirror_name() || is_bfloat16(c->cpu);
        if (has_kernel(c->type) && either) compare_with_either(c->cpu, name, &bound, step, seed);
        else compare(c->cpu, name, &bound, step, has_kernel(c->type) ? 5e-2 : 1e-5, seed);
        if (has_kernel(c->type) && !either) {
            double error_max = 0;
            float *expected = experts_in_int8(&bound, rows, &error_max);
            compare_with(expected, c->cpu, name, &bound, step, error_max, seed);
        }
        for (int i = 0; i < 3; i++) st_free(bound.in[i].data);
        for (int i = 0; i < 4; i++) free_weight(&bound.weight[i]);
        st_free(step);
    }
    conclude();
}

/* --- a row's result is the same bits whichever rows share its batch -------------------------------------------------------------------- */

/* `rows` random rows, some elements far larger than others, with `row` at `place`. */
static float *neighbours_of(const float *row, size_t width, uint32_t place, uint32_t rows)
{
    float *x = random_floats(rows * width);
    for (uint32_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 1 + width / 100; i++) x[r * width + random_bits() % width] *= 100;
    memcpy(x + place * width, row, width * sizeof *x);
    return x;
}

static void check_same(const level_case *c, const float *a, const float *b, size_t width, uint64_t seed)
{
    for (size_t i = 0; i < width; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s, %s: element %zu is %.9g in one batch and %.9g in another, seed %llu", c->cpu,
                     st_type_find(c->type)->name, i, (double)a[i], (double)b[i], (unsigned long long)seed);
}

/* Batches of four rows and more, and of one to three. */
static void matmul_neighbours(void **state)
{
    const level_case *c = *state;
    check_level(c);
    const st_type_info *info = st_type_find(c->type);
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        random_state = seed * 53 + c->type;
        uint32_t columns = between(1, 50);
        size_t width = is_float_type(c->type) ? between(1, 300) : (size_t)info->block * between(1, info->block == 32 ? 40 : 5);
        st_op op = {.kind = ST_OP_MATMUL};
        st_bound_op bound = {.op = &op, .in[0] = {.width = (uint32_t)width}, .out = {.width = columns}};
        bound.weight[0] = make_weight(c->type, width, columns, 1);
        float *row = random_floats(width), *out[2];
        uint32_t same = between(1, 20); /* another backend may choose its kernel by the number of rows */
        for (int i = 0; i < 2; i++) {
            uint32_t rows = mirror_name() ? same : seed % 3 ? between(4, 20) : between(1, 3), place = between(0, rows - 1);
            out[i] = st_alloc_array((size_t)rows * columns, sizeof **out);
            assert_non_null(out[i]);
            bound.in[0].data = neighbours_of(row, width, place, rows);
            bound.out.data = out[i];
            st_step *step = step_rows(rows, 0);
            run_op(c->cpu, &bound, step);
            memmove(out[i], out[i] + place * columns, columns * sizeof **out);
            st_free(bound.in[0].data);
            st_free(step);
        }
        check_same(c, out[0], out[1], columns, seed);
        for (int i = 0; i < 2; i++) st_free(out[i]);
        st_free(row);
        free_weight(&bound.weight[0]);
    }
}

static void run_rows(const level_case *c, st_bound_op *bound, float *x, uint32_t rows, float *out)
{
    st_step *step = step_rows(rows, 0);
    bound->in[0].data = x;
    bound->out.data = out;
    run_op(c->cpu, bound, step);
    st_free(step);
}

/* The rows in batches too small for bfloat16, none of them smaller than a batch. */
static void run_in_small_batches(const level_case *c, st_bound_op *bound, float *x, uint32_t rows, float *out)
{
    enum { SMALL = ST_PANEL_ROWS - 9 };
    size_t width = bound->in[0].width, columns = bound->out.width;
    for (uint32_t row = 0; row < rows; row += SMALL) {
        uint32_t first = row + SMALL < rows ? row : rows - SMALL;
        run_rows(c, bound, x + first * width, SMALL, out + first * columns);
    }
}

/* Every number of rows from 2 to 33, and more than a strip of part of the rows serves: a row has the bits that it
 * has in the largest batch, in a small one where that is not bfloat16 yet, or, for one to three rows, alone. Rows are
 * longer than what is unpacked at a time. */
static void matmul_row_counts(void **state)
{
    enum { ROWS = ST_STRIP_TOKENS + 9 };
    const level_case *c = *state;
    check_level(c);
    if (mirror_name()) skip(); /* another backend may choose its kernel by the number of rows */
    const st_type_info *info = st_type_find(c->type);
    random_state = 61 + c->type;
    uint32_t columns = 70;
    size_t width = info->block == 256 ? 256 * 5 : info->block * (ST_STRIP_WIDTH * 2 / info->block + 3);
    st_op op = {.kind = ST_OP_MATMUL};
    st_bound_op bound = {.op = &op, .in[0] = {.width = (uint32_t)width}, .out = {.width = columns}};
    bound.weight[0] = make_weight(c->type, width, columns, 1);
    float *x = random_floats(ROWS * width), *all = random_floats((size_t)ROWS * columns), *found = random_floats((size_t)ROWS * columns);
    float *alone = random_floats((size_t)ROWS * columns), *small = random_floats((size_t)ROWS * columns);
    for (uint32_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < 9; i++) x[r * width + random_bits() % width] *= 100;
    for (uint32_t r = 0; r < ROWS; r++) run_rows(c, &bound, x + r * width, 1, alone + r * columns);
    run_rows(c, &bound, x, ROWS, all);
    run_in_small_batches(c, &bound, x, ROWS, small);
    if (!is_bfloat16(c->cpu)) check_same(c, small, all, (size_t)ROWS * columns, 0);
    bound.in[0].data = x;
    st_step *step = step_rows(ROWS, 0);
    compare(c->cpu, info->name, &bound, step, is_float_type(c->type) ? 1e-5 : 1e-2, 0);
    st_free(step);
    for (uint32_t rows = 2; rows < ROWS; rows += rows < 34 || rows >= ST_STRIP_TOKENS - 1 ? 1 : ST_STRIP_TOKENS - 1 - rows) {
        uint32_t first = between(0, ROWS - rows);
        run_rows(c, &bound, x + first * width, rows, found);
        const float *same = rows < ST_FEW_ROWS ? alone : rows < ST_PANEL_ROWS ? small : all;
        check_same(c, found, same + (size_t)first * columns, (size_t)rows * columns, rows);
    }
    void *const pieces[] = {x, all, found, alone, small};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
    free_weight(&bound.weight[0]);
    conclude();
}

/* Batches of the same size; the other rows choose the experts of the row, or others. */
static void experts_neighbours(void **state)
{
    const level_case *c = *state;
    check_level(c);
    uint32_t block = st_type_find(c->type)->block, unit = block < 32 ? 32 : block;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        random_state = seed * 59 + c->type;
        uint32_t used = between(1, 3), rows = seed % 2 ? between(4, 9) : between(2, 40), embedding = 2 * unit;
        uint32_t count = 2 * used + 2;
        if (seed % 4 == 2) count = 16 * used, rows = between(9, 32);
        st_op op = {.kind = ST_OP_EXPERTS};
        op.p.experts.experts = count;
        op.p.experts.used = used;
        op.p.experts.width = unit;
        op.p.experts.weight_on_input = seed % 4 == 1;
        st_bound_op bound = {.op = &op, .in = {{.width = embedding}, {.width = used}, {.width = used}}, .out = {.width = embedding}};
        bound.weight[0] = make_weight(c->type, embedding, unit, count);
        bound.weight[1] = make_weight(c->type, embedding, unit, count);
        bound.weight[2] = make_weight(c->type, unit, embedding, count);
        float *row = random_floats(embedding), *weights = random_floats((size_t)rows * used), *out[2];
        int32_t *ids = st_alloc_array((size_t)rows * used, sizeof *ids);
        assert_non_null(ids);
        bound.in[1].data = ids;
        bound.in[2].data = weights;
        st_step *step = step_rows(rows, 0);
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t place = i ? rows - 1 : 0;
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t k = 0; k < used; k++) {
                    ids[r * used + k] = (int32_t)(i == 0 || r == place ? k : used + (r + k) % (count - used));
                    weights[r * used + k] = r == place ? (float)(k + 1) : random_float();
                }
            bound.in[0].data = neighbours_of(row, embedding, place, rows);
            out[i] = st_alloc_array((size_t)rows * embedding, sizeof **out);
            assert_non_null(out[i]);
            bound.out.data = out[i];
            run_op(c->cpu, &bound, step);
            memmove(out[i], out[i] + (size_t)place * embedding, embedding * sizeof **out);
            st_free(bound.in[0].data);
        }
        check_same(c, out[0], out[1], embedding, seed);
        void *const pieces[] = {out[0], out[1], ids, weights, row, step};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
        for (int i = 0; i < 3; i++) free_weight(&bound.weight[i]);
    }
}

/* --- a segment gives what its operations give one by one: a backend may fuse neighbours ------------------------------------------------- */

enum { CHAIN = 9, CHAIN_VALUES = 6 };

/* x += y; h = norm(x); a = w0 · h; b = w1 · h; a = activation(a) × b; c = w2 · a; x += c; h = norm(x); a = w3 · h. */
static void make_chain(st_bound_op *ops, const st_op *kinds, const st_bound_value *values, const st_bound_weight *weights)
{
    const st_bound_value *x = &values[0], *y = &values[1], *h = &values[2], *a = &values[3], *b = &values[4], *c = &values[5];
    const struct { const st_bound_value *in[2], *out; int weight; } links[CHAIN] = {
        {{x, y}, x, -1}, {{x}, h, 4}, {{h}, a, 0}, {{h}, b, 1}, {{a, b}, a, -1}, {{a}, c, 2}, {{x, c}, x, -1}, {{x}, h, 4}, {{h}, a, 3}};
    for (int i = 0; i < CHAIN; i++) {
        ops[i] = (st_bound_op){.op = &kinds[i], .in[0] = *links[i].in[0], .out = *links[i].out};
        if (links[i].in[1]) ops[i].in[1] = *links[i].in[1];
        if (links[i].weight >= 0) ops[i].weight[0] = weights[links[i].weight];
    }
}

/* A type of other products that rows of the same length have. */
static uint32_t other_type(uint32_t type)
{
    if (st_type_find(type)->block < 256) return ST_TYPE_Q8_0;
    return type == ST_TYPE_Q4_K ? ST_TYPE_Q6_K : ST_TYPE_Q4_K;
}

static void segments(void **state)
{
    const level_case *c = *state;
    check_level(c);
    uint32_t block = st_type_find(c->type)->block, unit = block < 32 ? 32 : block;
    for (uint64_t seed = 1; seed <= 2 * rounds; seed++) {
        random_state = seed * 37 + c->type;
        uint32_t rows = seed <= 12 ? (uint32_t)seed : random_rows(), embedding = unit * between(1, 3), width = unit * between(1, 2);
        st_op kinds[CHAIN] = {{.kind = ST_OP_ADD}, {.kind = ST_OP_RMS_NORM}, {.kind = ST_OP_MATMUL}, {.kind = ST_OP_MATMUL},
                              {.kind = ST_OP_GATED_ACT}, {.kind = ST_OP_MATMUL}, {.kind = ST_OP_ADD}, {.kind = ST_OP_RMS_NORM},
                              {.kind = ST_OP_MATMUL}};
        kinds[1].p.norm.group = kinds[7].p.norm.group = embedding;
        kinds[1].p.norm.epsilon = kinds[7].p.norm.epsilon = 1e-6f;
        st_bound_weight weights[] = {make_weight(c->type, embedding, width, 1),
                                     make_weight(seed % 3 == 0 ? ST_TYPE_F32 : seed % 3 == 1 ? other_type(c->type) : c->type, embedding,
                                                 width, 1),
                                     make_weight(c->type, width, embedding, 1), make_weight(c->type, embedding, width, 1),
                                     make_weight(ST_TYPE_F32, embedding, 1, 1)};
        const uint32_t widths[CHAIN_VALUES] = {embedding, embedding, embedding, width, width, embedding};
        float *start[CHAIN_VALUES];
        st_bound_value values[2][CHAIN_VALUES]; /* in one segment, and one by one */
        st_bound_op ops[CHAIN];
        st_step *step = step_rows(rows, 0);
        for (int i = 0; i < CHAIN_VALUES; i++) start[i] = random_floats((size_t)rows * widths[i]);
        for (int run = 0; run < 2; run++) {
            for (int i = 0; i < CHAIN_VALUES; i++) {
                values[run][i] = (st_bound_value){random_floats((size_t)rows * widths[i]), widths[i]};
                memcpy(values[run][i].data, start[i], (size_t)rows * widths[i] * sizeof(float));
            }
            make_chain(ops, kinds, values[run], weights);
            if (run == 0) run_segment(c->cpu, ops, CHAIN, step);
            for (int i = 0; i < CHAIN && run == 1; i++) run_op(c->cpu, &ops[i], step);
        }
        double bound = mirror_name() ? 2e-3 : 0; /* on a GPU a byte of the activations may be rounded the other way */
        for (int i = 0; i < CHAIN_VALUES; i++) {
            note(c->cpu, "segment", distance(values[0][i].data, values[1][i].data, (size_t)rows * widths[i]), bound, rows, seed);
            for (int run = 0; run < 2; run++) st_free(values[run][i].data);
            st_free(start[i]);
        }
        for (int i = 0; i < 5; i++) free_weight(&weights[i]);
        st_free(step);
    }
    conclude();
}

/* The router and its experts. */
static void routed(void **state)
{
    const level_case *c = *state;
    check_level(c);
    uint32_t block = st_type_find(c->type)->block, unit = block < 32 ? 32 : block;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        random_state = seed * 43 + c->type;
        uint32_t rows = seed <= 10 ? (uint32_t)seed : random_rows(), count = between(2, 9), used = between(1, count);
        uint32_t embedding = unit * between(1, 2), width = unit * between(1, 2);
        if (mirror_name() && seed % 3 == 2) rows = between(9, 32), count = 24, used = between(1, 2);
        st_op kinds[2] = {{.kind = ST_OP_ROUTE}, {.kind = ST_OP_EXPERTS}};
        kinds[0].p.route.experts = kinds[1].p.experts.experts = count;
        kinds[0].p.route.used = kinds[1].p.experts.used = used;
        kinds[0].p.route.renormalise = seed % 2;
        kinds[1].p.experts.width = width;
        st_bound_weight weights[3] = {make_weight(c->type, embedding, width, count), make_weight(c->type, embedding, width, count),
                                      make_weight(c->type, width, embedding, count)};
        st_step *step = step_rows(rows, 0);
        float *scores = random_floats((size_t)rows * count), *x = random_floats((size_t)rows * embedding), *out[2];
        for (int run = 0; run < 2; run++) {
            float *own = random_floats((size_t)rows * count), *factors = random_floats((size_t)rows * used);
            int32_t *ids = st_alloc_zero((size_t)rows * used, sizeof *ids);
            assert_non_null(ids);
            memcpy(own, scores, (size_t)rows * count * sizeof *own);
            out[run] = random_floats((size_t)rows * embedding);
            st_bound_op ops[2] = {{.op = &kinds[0], .in[0] = {own, count}, .out = {ids, used}, .out2 = {factors, used}},
                                  {.op = &kinds[1], .in = {{x, embedding}, {ids, used}, {factors, used}}, .out = {out[run], embedding}}};
            for (int i = 0; i < 3; i++) ops[1].weight[i] = weights[i];
            if (run == 0) run_segment(c->cpu, ops, 2, step);
            for (int i = 0; i < 2 && run == 1; i++) run_op(c->cpu, &ops[i], step);
            void *const pieces[] = {own, factors, ids};
            for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
        }
        note(c->cpu, "routed", distance(out[0], out[1], (size_t)rows * embedding), 1e-5, rows, seed);
        void *const pieces[] = {scores, x, out[0], out[1], step};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
        for (int i = 0; i < 3; i++) free_weight(&weights[i]);
    }
    conclude();
}

/* The operations that change rows one by one, with two inputs and one weight at most. */
static void rows_alone(void **state)
{
    const level_case *c = *state;
    check_level(c);
    static const struct { st_op_kind kind; const char *name; bool second, weight; } kinds[] = {
        {ST_OP_RMS_NORM, "rms_norm", false, true},  {ST_OP_RMS_NORM, "weightless rms_norm", false, false},
        {ST_OP_ADD, "add", true, false},            {ST_OP_SCALE, "scale", false, false},
        {ST_OP_MUL_WEIGHT, "mul_weight", false, true}, {ST_OP_GATED_ACT, "gated_act", true, false},
        {ST_OP_SIGMOID_GATE, "sigmoid_gate", true, false}, {ST_OP_SILU_GATE, "silu_gate", true, false},
        {ST_OP_SOFTCAP, "softcap", false, false},
    };
    for (uint64_t seed = 1; seed <= 40 * rounds; seed++) {
        random_state = seed * 3 + 1;
        size_t k = seed % (sizeof kinds / sizeof *kinds);
        uint32_t rows = random_rows(), group = between(1, 90), width = group * between(1, 5);
        st_op op = {.kind = kinds[k].kind};
        if (op.kind == ST_OP_RMS_NORM) {
            op.p.norm.group = group;
            op.p.norm.epsilon = 1e-6f;
        } else if (op.kind == ST_OP_SCALE) op.p.scale.factor = 1.7f;
        else if (op.kind == ST_OP_GATED_ACT) op.p.gate.activation = seed % 2 ? ST_ACT_SILU : ST_ACT_GELU;
        else if (op.kind == ST_OP_SOFTCAP) op.p.softcap.cap = 3;
        st_bound_op bound = {.op = &op, .in[0] = {.width = width}, .out = {.width = width}};
        bound.in[0].data = random_floats((size_t)rows * width);
        uint32_t second_width = op.kind == ST_OP_SIGMOID_GATE && seed % 4 == 0 ? 1 : width;
        if (kinds[k].second) bound.in[1] = (st_bound_value){random_floats((size_t)rows * second_width), second_width};
        uint32_t weight_width = op.kind == ST_OP_RMS_NORM && seed % 2 ? group : op.kind == ST_OP_MUL_WEIGHT && seed % 2 ? 1 : width;
        if (kinds[k].weight) bound.weight[0] = make_weight(ST_TYPE_F32, weight_width, 1, 1);
        st_step *step = step_rows(rows, 0);
        compare(c->cpu, kinds[k].name, &bound, step, 1e-5, seed);
        st_free(bound.in[0].data);
        st_free(bound.in[1].data);
        free_weight(&bound.weight[0]);
        st_free(step);
    }
    conclude();
}

/* In place: the output starts as a copy of the input on both sides. */
static void rope(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        random_state = seed;
        uint32_t rows = random_rows(), heads = between(1, 5), pairs = between(1, 40), size = 2 * pairs + between(0, 9);
        st_op op = {.kind = ST_OP_ROPE};
        op.p.rope.heads = heads;
        op.p.rope.head_size = size;
        op.p.rope.dims = 2 * pairs;
        op.p.rope.style = seed % 2 ? ST_ROPE_HALVES : ST_ROPE_PAIRS;
        size_t count = (size_t)rows * heads * size;
        float *start = random_floats(count), *out[2] = {random_floats(count), random_floats(count)};
        st_bound_op bound = {.op = &op, .in = {{.width = heads * size}, {random_floats((size_t)rows * 2 * pairs), 2 * pairs}}};
        st_step *step = step_rows(rows, 0);
        for (int i = 0; i < 2; i++) {
            memcpy(out[i], start, count * sizeof *start);
            bound.in[0].data = out[i];
            bound.out = bound.in[0];
            run_op(i ? c->cpu : "ref", &bound, step);
        }
        note(c->cpu, "rope", distance(out[1], out[0], count), 1e-5, rows, seed);
        st_free(start);
        st_free(out[0]);
        st_free(out[1]);
        st_free(bound.in[1].data);
        st_free(step);
    }
    conclude();
}

static int open_kit(void **state)
{
    (void)state;
    rounds = conform_rounds();
    return st_gguf_open(kit_path("quant/rows.gguf"), &kit_rows, NULL) == STRATA_OK ? 0 : -1;
}

static int close_kit(void **state)
{
    (void)state;
    st_gguf_close(kit_rows);
    conform_close();
    return 0;
}

enum { TESTS_MAX = 960 };

/* Types that no model multiplies by. */
static bool is_left_out(st_type type)
{
    return type >= ST_TYPE_I8 && type <= ST_TYPE_F64;
}

int main(int argc, char **argv)
{
    const char *levels[] = {"avx2", "avxvnni", "avx512", "amx"};
    size_t level_count = sizeof levels / sizeof *levels;
    if (mirror_name()) {
        levels[0] = mirror_name();
        level_count = 1;
    }
    static struct CMUnitTest tests[TESTS_MAX];
    static level_case cases[TESTS_MAX];
    static char names[TESTS_MAX][64];
    size_t count = 0;
#define ADD(function, cpu_name, type_number)                                                                     \
    do {                                                                                                         \
        cases[count] = (level_case){cpu_name, type_number};                                                      \
        snprintf(names[count], sizeof *names, #function " %s %s", cpu_name, st_type_find(type_number)->name);    \
        tests[count] = (struct CMUnitTest){.name = names[count], .test_func = function, .initial_state = &cases[count]}; \
        count++;                                                                                                 \
    } while (0)
    for (size_t l = 0; l < level_count; l++) {
        for (size_t t = 0; t < st_type_count(); t++) {
            st_type type = st_type_at(t);
            if (is_left_out(type) || (mirror_name() && !mirror_runs(ST_OP_MATMUL, type))) continue;
            ADD(matmul, levels[l], type);
            if (mirror_name() && is_float_type(type)) ADD(matmul_narrow, levels[l], type);
            if (mirror_name() && has_kernel(type)) ADD(matmul_large, levels[l], type);
            if (mirror_name() && has_kernel(type)) ADD(matmul_deep, levels[l], type);
            if (mirror_name() && has_kernel(type)) ADD(matmul_wide, levels[l], type);
            ADD(experts, levels[l], type);
            ADD(matmul_neighbours, levels[l], type);
            ADD(matmul_row_counts, levels[l], type);
            ADD(experts_neighbours, levels[l], type);
            ADD(segments, levels[l], type);
            ADD(routed, levels[l], type);
        }
        ADD(rows_alone, levels[l], ST_TYPE_F32);
        ADD(rope, levels[l], ST_TYPE_F32);
    }
    return kit_run("conform", tests, count, open_kit, close_kit, argc, argv);
}
