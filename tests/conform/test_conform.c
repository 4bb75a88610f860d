/* Every operation, every tensor type, every instruction set of this machine: the fast path against the reference, over
 * random shapes with odd sizes. With STRATA_TEST_BACKEND (support/mirror.h), that backend instead of the fast path. Every
 * failed comparison is printed with its seed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "base/alloc.h"
#include "gguf/gguf.h"
#include "backend/cpu/scratch.h"
#include "quant/row.h"
#include "support/kit.h"
#include "support/mirror.h"
#include "support/random.h"

enum { BLOCKS_KEPT = 16, SCRATCH_BYTES = 1 << 23, FENCE_BYTES = 256, WORKERS = 2 };

/* --- random numbers ----------------------------------------------------------------------------------------------- */

static uint32_t between(uint32_t low, uint32_t high)
{
    return low + random_bits() % (high - low + 1);
}

static float random_float(void)
{
    float sum = 0; /* roughly normal */
    for (int i = 0; i < 4; i++) sum += random_even();
    return sum;
}

static float *random_floats(size_t count)
{
    float *out = st_alloc_array(count, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = random_float();
    return out;
}

static uint32_t random_rows(void)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 70};
    return rows[random_bits() % (sizeof rows / sizeof *rows)];
}

/* --- one operation on one device ---------------------------------------------------------------------------------- */

static st_step *make_step(uint32_t rows, uint32_t position)
{
    st_step *step = st_alloc_zero(1, st_step_bytes(rows));
    assert_non_null(step);
    step->count = step->out_count = rows;
    step->position = position;
    step->batch_max = rows;
    return step;
}

/* The levels' devices, opened once. */
static struct { const char *cpu; st_device *device; } devices[3];

static st_device *device_of(const char *cpu)
{
    size_t i = 0;
    for (; devices[i].cpu; i++)
        if (strcmp(devices[i].cpu, cpu) == 0) return devices[i].device;
    strata_error error;
    st_device_options options = {.cpu = cpu, .threads = WORKERS};
    if (st_backend_cpu()->open(&options, &devices[i].device, &error) != STRATA_OK) fail_msg("%s", error.message);
    devices[i].cpu = cpu;
    return devices[i].device;
}

static void *scratch;
static uint32_t rounds; /* of random shapes; each kind of operation takes some multiple */

static void run_op(const char *cpu, const st_bound_op *bound, st_step *step)
{
    if (mirror_name() && strcmp(cpu, mirror_name()) == 0) {
        mirror_run(bound, ST_ROWS_ALL, step);
        return;
    }
    const st_backend *backend = st_backend_cpu();
    strata_error error;
    st_device *device = device_of(cpu);
    st_queue *queue = NULL;
    st_segment *segment = NULL;
    st_scratch stated = backend->scratch(bound, step->count);
    st_segment_source source = {.ops = bound, .count = 1, .rows = ST_ROWS_ALL, .step = step, .scratch = scratch,
                                .shared_bytes = (stated.shared_bytes + 63) / 64 * 64 + FENCE_BYTES,
                                .worker_bytes = (stated.worker_bytes + 63) / 64 * 64 + FENCE_BYTES};
    if (source.shared_bytes + WORKERS * source.worker_bytes > SCRATCH_BYTES) fail_msg("scratch for the tests is too small");
    if (backend->queue_new(device, ST_QUEUE_COMPUTE, &queue, &error) != STRATA_OK ||
        backend->prepare(device, &source, &segment, &error) != STRATA_OK ||
        backend->launch(segment, queue, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    backend->segment_free(segment);
    backend->queue_free(queue);
}

static bool level_is_here(const char *cpu)
{
    if (mirror_name()) return true; /* a missing backend is a failure */
    st_device_options options = {.cpu = cpu, .threads = 1};
    st_device *device = NULL;
    if (st_backend_cpu()->open(&options, &device, NULL) != STRATA_OK) return false;
    st_backend_cpu()->close(device);
    return true;
}

/* ‖a−b‖/‖b‖ */
static double distance(const float *a, const float *b, size_t count)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(error / (norm > 0 ? norm : 1));
}

/* --- what a test found -------------------------------------------------------------------------------------------- */

/* The comparisons of one kind in the running test. */
typedef struct tally {
    const char *what;
    double worst, error_max; /* the largest error against its bound */
    uint32_t compared, failed;
} tally;

enum { TALLIES_MAX = 32 };

static tally tallies[TALLIES_MAX];
static size_t tally_count;

static tally *tally_of(const char *what, double error_max)
{
    for (size_t i = 0; i < tally_count; i++)
        if (strcmp(tallies[i].what, what) == 0 && tallies[i].error_max == error_max) return &tallies[i];
    assert_true(tally_count < TALLIES_MAX);
    tallies[tally_count] = (tally){.what = what, .error_max = error_max};
    return &tallies[tally_count++];
}

static void note(const char *cpu, const char *what, double error, double error_max, uint32_t rows, uint64_t seed)
{
    tally *t = tally_of(what, error_max);
    t->compared++;
    if (!(error <= t->worst)) t->worst = error;
    if (error <= error_max) return;
    t->failed++;
    print_message("# %s, %s: error %g, expected %g; %u rows, seed %llu\n", cpu, what, error, error_max, rows,
                  (unsigned long long)seed);
}

/* At the end of a test: the largest error of a backend, and whether it is within its bound. */
static void conclude(void)
{
    uint32_t failed = 0;
    for (size_t i = 0; i < tally_count; i++) {
        const tally *t = &tallies[i];
        failed += t->failed;
        if (mirror_name())
            print_message("# error %-28s %9.2e of %.0e in %u comparisons, %u failed\n", t->what, t->worst, t->error_max,
                          t->compared, t->failed);
    }
    tally_count = 0;
    if (failed) fail_msg("%u comparisons failed", failed);
}

/* Runs the operation on `cpu`, compares with the expected result and frees that. */
static void compare_with(float *expected, const char *cpu, const char *what, st_bound_op *bound, st_step *step,
                         double error_max, uint64_t seed)
{
    size_t count = (size_t)step->count * bound->out.width;
    float *found = st_alloc_zero(count, sizeof *found);
    assert_non_null(found);
    bound->out.data = found;
    run_op(cpu, bound, step);
    note(cpu, what, distance(found, expected, count), error_max, step->count, seed);
    st_free(expected);
    st_free(found);
}

/* The reference's result of an operation. The caller frees it. */
static float *run_plainly(st_bound_op *bound, st_step *step)
{
    float *out = st_alloc_zero((size_t)step->count * bound->out.width, sizeof *out);
    assert_non_null(out);
    bound->out.data = out;
    run_op("ref", bound, step);
    return out;
}

/* Runs the operation on the reference and on `cpu`, and compares. */
static void compare(const char *cpu, const char *what, st_bound_op *bound, st_step *step, double error_max, uint64_t seed)
{
    compare_with(run_plainly(bound, step), cpu, what, bound, step, error_max, seed);
}

/* --- weights: rows made of real blocks of the kit ----------------------------------------------------------------- */

static st_gguf *kit_rows;

static const st_gguf_tensor *kit_blocks(uint32_t type)
{
    for (size_t i = 0; i < st_gguf_tensor_count(kit_rows); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(kit_rows, i);
        if (tensor->type == type && tensor->name.length > 2 && memcmp(tensor->name.data, "q.", 2) == 0) return tensor;
    }
    return NULL;
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
        else ((float *)(void *)data)[i] = random_float();
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

/* Rounds values to int8 with a scale per 32. */
static void round_to_int8(float *x, size_t count)
{
    for (size_t b = 0; b + ST_ACT_BLOCK <= count; b += ST_ACT_BLOCK) {
        float top = 0;
        for (size_t i = 0; i < ST_ACT_BLOCK; i++) top = fmaxf(top, fabsf(x[b + i]));
        for (size_t i = 0; i < ST_ACT_BLOCK; i++) x[b + i] = top > 0 ? rintf(x[b + i] * (127 / top)) * (top / 127) : 0;
    }
}

/* --- the tests ---------------------------------------------------------------------------------------------------- */

typedef struct level_case {
    const char *cpu;
    uint32_t type;
} level_case;

static void check_level(const level_case *c)
{
    if (!level_is_here(c->cpu)) skip();
}

static bool is_float_type(uint32_t type)
{
    return type == ST_TYPE_F32 || type == ST_TYPE_F16 || type == ST_TYPE_BF16;
}

/* Types whose weights are multiplied with int8 activations; all others, and all on another backend, with floats. */
static bool has_kernel(uint32_t type)
{
    if (mirror_name()) return false;
    static const uint32_t types[] = {ST_TYPE_Q4_0, ST_TYPE_Q4_1, ST_TYPE_Q5_0, ST_TYPE_Q5_1, ST_TYPE_Q8_0, ST_TYPE_Q2_K, ST_TYPE_Q3_K,
                                     ST_TYPE_Q4_K, ST_TYPE_Q5_K, ST_TYPE_Q6_K, ST_TYPE_IQ2_XXS, ST_TYPE_IQ2_XS,
                                     ST_TYPE_IQ2_S, ST_TYPE_IQ3_XXS, ST_TYPE_IQ3_S, ST_TYPE_IQ1_S, ST_TYPE_IQ1_M,
                                     ST_TYPE_IQ4_NL, ST_TYPE_IQ4_XS, ST_TYPE_MXFP4};
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
        st_step *step = make_step(rows, 0);
        /* int8 costs about half a percent; a handful of outputs may lose more to cancellation */
        bool floats = is_float_type(c->type) || mirror_name();
        if (floats || rows * columns >= 64) compare(c->cpu, info->name, &bound, step, floats ? 1e-5 : 1e-2, seed);
        for (uint32_t r = 0; r < rows; r++) round_to_int8(x + r * width, width);
        compare(c->cpu, info->name, &bound, step, 1e-5, seed);
        st_free(x);
        st_free(step);
        free_weight(&bound.weight[0]);
        free_weight(&bound.weight[1]);
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

/* out += weight × one expert's output for x, with int8 inputs and hidden values as on the fast path. */
static void add_expert(const st_bound_op *bound, uint32_t expert, float *x, float weight, st_step *one, float *out)
{
    uint32_t width = bound->op->p.experts.width, embedding = bound->out.width;
    bool fused = bound->op->p.experts.fused;
    round_to_int8(x, embedding);
    float *gate = expert_matmul(&bound->weight[0], expert, 0, width, x, one);
    float *up = expert_matmul(&bound->weight[fused ? 0 : 1], expert, fused ? width : 0, width, x, one);
    st_op op = {.kind = ST_OP_GATED_ACT};
    op.p.gate.activation = bound->op->p.experts.activation;
    st_bound_op gated = {.op = &op, .in = {{.width = width, .data = gate}, {.width = width, .data = up}}, .out = {.width = width}};
    float *hidden = run_plainly(&gated, one);
    round_to_int8(hidden, width);
    float *part = expert_matmul(&bound->weight[2], expert, 0, embedding, hidden, one);
    for (uint32_t k = 0; k < embedding; k++) out[k] += weight * part[k];
    void *const pieces[] = {gate, up, hidden, part};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
}

static float *experts_in_int8(const st_bound_op *bound, uint32_t rows)
{
    uint32_t used = bound->op->p.experts.used, embedding = bound->out.width;
    bool on_input = bound->op->p.experts.weight_on_input;
    const int32_t *ids = bound->in[1].data;
    const float *in = bound->in[0].data, *weights = bound->in[2].data, *factors = bound->weight[3].data;
    float *out = st_alloc_zero((size_t)rows * embedding, sizeof *out), *x = st_alloc_array(embedding, sizeof *x);
    assert_true(out && x);
    st_step *one = make_step(1, 0);
    for (uint32_t i = 0; i < rows * used; i++) {
        float factor = factors ? factors[ids[i]] : 1;
        for (uint32_t k = 0; k < embedding; k++) x[k] = in[i / used * embedding + k] * (on_input ? weights[i] : 1);
        add_expert(bound, (uint32_t)ids[i], x, on_input ? factor : factor * weights[i], one, out + i / used * embedding);
    }
    st_free(one);
    st_free(x);
    return out;
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
        bool fused = seed % 3 == 0;
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
        st_step *step = make_step(rows, 0);
        compare(c->cpu, name, &bound, step, is_float_type(c->type) || mirror_name() ? 1e-5 : 5e-2, seed);
        /* Among many hidden values one is so near the middle between two int8 values that the last bit of its sum decides. */
        double same_max = rows * used * width < 20000 ? 1e-5 : 1e-4;
        if (has_kernel(c->type)) compare_with(experts_in_int8(&bound, rows), c->cpu, name, &bound, step, same_max, seed);
        for (int i = 0; i < 3; i++) st_free(bound.in[i].data);
        for (int i = 0; i < 4; i++) free_weight(&bound.weight[i]);
        st_free(step);
    }
    conclude();
}

/* --- a row's result is the same bits whichever rows share its batch ----------------------------------------------- */

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

/* Batches of any size from four rows on, and from one to three. */
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
            st_step *step = make_step(rows, 0);
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

/* Batches of the same size; the other rows choose the experts of the row, or others. */
static void experts_neighbours(void **state)
{
    const level_case *c = *state;
    check_level(c);
    uint32_t block = st_type_find(c->type)->block, unit = block < 32 ? 32 : block;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        random_state = seed * 59 + c->type;
        uint32_t used = between(1, 3), count = 2 * used + 2, rows = seed % 2 ? between(4, 9) : between(2, 40), embedding = 2 * unit;
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
        st_step *step = make_step(rows, 0);
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

/* Whether a batch of rows is multiplied in two bfloat16 numbers for each float: narrow KV, on a CPU with fast ones. */
static bool is_split(const level_case *c, uint32_t rows)
{
    return strcmp(c->cpu, "avx512") == 0 && st_isa_amx() && c->type != ST_TYPE_F32 && rows >= ST_FEW_ROWS;
}

/* Float32 products are float-accurate. Two bfloat16 numbers keep a float to 2⁻¹⁷, and low × low is left out, another 2⁻¹⁶
 * at most: a product is off by 2⁻¹⁶ or so. A score of standard deviation σ is then off by σ 2⁻¹⁶, and so is its weight,
 * relatively; the product with the value adds 2⁻¹⁶. If the errors are independent, that is 2⁻¹⁶ √(1 + σ²) for each term of a
 * sum and for the whole. The bound is twice that. */
static double attention_error_max(const level_case *c, uint32_t rows, double deviation)
{
    if (is_split(c, rows)) return sqrt(1 + deviation * deviation) / 32768;
    /* With q8_0 KV, few rows may have queries of 16 bits: test_q8.c compares with the same rounding. */
    return c->type == ST_TYPE_Q8_0 ? 1e-4 : 1e-5;
}

static void fill_cache(st_kv_view *kv, size_t key_width, size_t value_width)
{
    kv->key_row_bytes = st_row_bytes(kv->type, key_width);
    kv->value_row_bytes = st_row_bytes(kv->type, value_width);
    kv->keys = st_alloc_array(kv->capacity, kv->key_row_bytes);
    kv->values = st_alloc_array(kv->capacity, kv->value_row_bytes);
    assert_non_null(kv->keys);
    assert_non_null(kv->values);
    for (uint32_t i = 0; i < kv->capacity; i++) {
        float *k = random_floats(key_width), *v = random_floats(value_width);
        st_row_store(kv->type, k, key_width, kv->keys + i * kv->key_row_bytes);
        st_row_store(kv->type, v, value_width, kv->values + i * kv->value_row_bytes);
        st_free(k);
        st_free(v);
    }
}

static void attention(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 8 * rounds; seed++) {
        random_state = seed * 991 + c->type;
        uint32_t rows = random_rows(), kv_heads = between(1, 3), heads = kv_heads * between(1, 9);
        uint32_t key = between(1, 5) * (seed % 3 ? 16 : 7), value = between(1, 5) * (seed % 3 ? 16 : 5);
        if (seed % 5 == 0) key = value = 64u << random_bits() % 3; /* as models have them */
        uint32_t position = between(0, 700), window = seed % 4 == 1 ? between(1, 90) : 0, chunk = seed % 4 == 2 ? 64 : 0;
        uint32_t span = window ? window : chunk;
        double deviation = seed % 2 ? 3 : 0.5; /* of the scores: random floats have a variance of 4 / 3 */
        st_op op = {.kind = ST_OP_ATTENTION};
        op.p.attention.heads = heads;
        op.p.attention.kv_heads = kv_heads;
        op.p.attention.key_length = key;
        op.p.attention.value_length = value;
        op.p.attention.window = window;
        op.p.attention.chunk = chunk;
        op.p.attention.scale = (float)(deviation * 0.75 / sqrt(key));
        st_bound_op bound = {.op = &op, .in[0] = {.width = heads * key}, .out = {.width = heads * value}};
        bound.kv = (st_kv_view){.capacity = span ? span + rows - 1 : position + rows, .type = (st_type)c->type};
        fill_cache(&bound.kv, kv_heads * key, kv_heads * value);
        bound.in[0].data = random_floats((size_t)rows * heads * key);
        st_step *step = make_step(rows, position);
        compare(c->cpu, "attention", &bound, step, mirror_name() ? 1e-5 : attention_error_max(c, rows, deviation), seed);
        st_free(bound.in[0].data);
        st_free(bound.kv.keys);
        st_free(bound.kv.values);
        st_free(step);
    }
    conclude();
}

/* The fast path stores keys and values as the reference does, bit by bit, also beyond the range of the type. */
static void kv_store(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 77 + c->type;
        uint32_t rows = random_rows(), width = between(1, 90);
        st_op op = {.kind = ST_OP_KV_STORE};
        st_bound_op bound = {.op = &op, .in = {{.width = width}, {.width = width}}};
        for (int i = 0; i < 2; i++) {
            float *in = bound.in[i].data = random_floats((size_t)rows * width);
            for (size_t k = 0; k < (size_t)rows * width; k++) in[k] *= seed % 2 ? 1 : ldexpf(1, (int)between(0, 60) - 40);
            static const float special[] = {INFINITY, -INFINITY, NAN, -0.0f, 65520, -1e-8f};
            if (c->type != ST_TYPE_Q8_0) in[seed % width] = special[seed % 6]; /* no q8_0 block has a scale for these */
        }
        st_step *step = make_step(rows, between(0, 7));
        st_kv_view found[2];
        for (int i = 0; i < 2; i++) {
            bound.kv = (st_kv_view){.capacity = rows, .type = (st_type)c->type};
            fill_cache(&bound.kv, width, width);
            run_op(i ? c->cpu : "ref", &bound, step);
            found[i] = bound.kv;
        }
        assert_memory_equal(found[0].keys, found[1].keys, rows * found[0].key_row_bytes);
        assert_memory_equal(found[0].values, found[1].values, rows * found[0].value_row_bytes);
        for (int i = 0; i < 2; i++) {
            st_free(found[i].keys);
            st_free(found[i].values);
            st_free(bound.in[i].data);
        }
        st_free(step);
    }
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
        st_step *step = make_step(rows, 0);
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
        st_step *step = make_step(rows, 0);
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

/* Recurrent operations change a state: both sides start from the same and must end in the same. */
static void recurrent(void **state)
{
    const level_case *c = *state;
    check_level(c);
    for (uint64_t seed = 1; seed <= 8 * rounds; seed++) {
        random_state = seed * 17;
        uint32_t rows = random_rows(), key_heads = between(1, 3), value_heads = key_heads * between(1, 3), size = seed % 4 < 2 ? between(3, 40) : 16 * between(1, 4);
        uint32_t taps = between(2, 5), channels = (2 * key_heads + value_heads) * size;
        bool conv = seed % 2;
        st_op op = {.kind = conv ? ST_OP_CONV : ST_OP_DELTANET};
        if (conv) op.p.conv.width = taps;
        else {
            op.p.deltanet.key_heads = key_heads;
            op.p.deltanet.value_heads = value_heads;
            op.p.deltanet.size = size;
        }
        size_t state_count = conv ? (size_t)(taps - 1) * channels : (size_t)value_heads * size * size;
        uint32_t out_width = conv ? channels : value_heads * size;
        float *start = random_floats(state_count), *states[2], *out[2];
        st_bound_op bound = {.op = &op, .in = {{random_floats((size_t)rows * channels), channels}}};
        if (!conv)
            for (int i = 1; i < 3; i++) bound.in[i] = (st_bound_value){random_floats((size_t)rows * value_heads), value_heads};
        bound.weight[0] = conv ? make_weight(ST_TYPE_F32, taps, channels, 1) : make_weight(ST_TYPE_F32, value_heads, 1, 1);
        if (!conv) {
            bound.weight[1] = make_weight(ST_TYPE_F32, value_heads, 1, 1);
            float *a = (float *)(uintptr_t)bound.weight[1].data;
            for (uint32_t i = 0; i < value_heads; i++) a[i] = -fabsf(a[i]); /* as files store it: the state decays */
        }
        st_step *step = make_step(rows, 0);
        for (int i = 0; i < 2; i++) {
            states[i] = random_floats(state_count);
            out[i] = random_floats((size_t)rows * out_width);
            memcpy(states[i], start, state_count * sizeof *start);
            bound.state = conv ? (st_state_view){.conv = states[i]} : (st_state_view){.delta = states[i]};
            bound.out = (st_bound_value){out[i], out_width};
            run_op(i ? c->cpu : "ref", &bound, step);
        }
        note(c->cpu, conv ? "conv" : "deltanet", distance(out[1], out[0], (size_t)rows * out_width), 1e-5, rows, seed);
        note(c->cpu, conv ? "conv state" : "deltanet state", distance(states[1], states[0], state_count), 1e-5, rows, seed);
        for (int i = 0; i < 2; i++) {
            st_free(states[i]);
            st_free(out[i]);
            free_weight(&bound.weight[i]);
        }
        for (int i = 0; i < 3; i++) st_free(bound.in[i].data);
        st_free(start);
        st_free(step);
    }
    conclude();
}

static int open_kit(void **state)
{
    (void)state;
    rounds = kit_is_slow() ? 3 : mirror_name() ? 12 : 5;
    scratch = st_alloc_aligned(SCRATCH_BYTES, 64);
    if (!scratch) return -1;
    return st_gguf_open(kit_path("quant/rows.gguf"), &kit_rows, NULL) == STRATA_OK ? 0 : -1;
}

static int close_kit(void **state)
{
    (void)state;
    st_gguf_close(kit_rows);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) st_backend_cpu()->close(devices[i].device);
    mirror_close();
    st_free(scratch);
    return 0;
}

enum { TESTS_MAX = 256 };

/* Types that no model multiplies by. */
static bool is_left_out(st_type type)
{
    return type >= ST_TYPE_I8 && type <= ST_TYPE_F64;
}

int main(int argc, char **argv)
{
    const char *levels[] = {"avx2", "avx512"};
    size_t level_count = sizeof levels / sizeof *levels;
    if (mirror_name()) {
        levels[0] = mirror_name();
        level_count = 1;
    }
    static const st_type kv_types[] = {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0};
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
            if (is_left_out(type)) continue;
            ADD(matmul, levels[l], type);
            ADD(experts, levels[l], type);
            ADD(matmul_neighbours, levels[l], type);
            ADD(experts_neighbours, levels[l], type);
        }
        for (size_t t = 0; t < sizeof kv_types / sizeof *kv_types; t++) {
            ADD(attention, levels[l], kv_types[t]);
            ADD(kv_store, levels[l], kv_types[t]);
        }
        ADD(rows_alone, levels[l], ST_TYPE_F32);
        ADD(rope, levels[l], ST_TYPE_F32);
        ADD(recurrent, levels[l], ST_TYPE_F32);
    }
    return kit_run("conform", tests, count, open_kit, close_kit, argc, argv);
}
