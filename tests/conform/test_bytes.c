/* Attention in bytes: what an instruction set does of it, against the same said plainly; and no result depends on how many
 * threads share the work. (test_conform.c compares the whole with floats.) */
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "base/alloc.h"
#include "quant/row.h"
#include "support/kit.h"
#include "support/random.h"

enum { KEYS = ST_BYTE_KEYS, GROUP = ST_BYTE_GROUP, QUERIES = 3 * GROUP, LANES = 16, TILES = 3, WORD = 4, WIDTH_MAX = 256 };

static const st_isa_bytes *bytes;

static int find_kernels(void **state)
{
    (void)state;
    const st_isa *isa = st_isa_avx512();
    bytes = isa ? isa->bytes : NULL;
    return 0;
}

static void need_kernels(void)
{
    if (!bytes) skip();
}

/* --- packing ----------------------------------------------------------------------------------------------------------------- */

static const size_t widths[] = {4, 7, 16, 20, 64, 80, 128, 256};
enum { WIDTHS = sizeof widths / sizeof *widths };

static void columns_are_summed(void **state)
{
    (void)state;
    need_kernels();
    for (size_t w = 0; w < WIDTHS; w++) {
        enum { ROWS = 5, STRIDE = WIDTH_MAX + 3 };
        float rows[ROWS * STRIDE], sums[WIDTH_MAX] = {0}, squares[WIDTH_MAX] = {0};
        for (size_t i = 0; i < ROWS * STRIDE; i++) rows[i] = random_even();
        bytes->moments(rows, STRIDE, ROWS, widths[w], sums, squares);
        bytes->moments(rows, STRIDE, 1, widths[w], sums, squares);
        for (size_t i = 0; i < WIDTH_MAX; i++) {
            double sum = i < widths[w] ? rows[i] : 0, square = sum * sum;
            for (size_t r = 0; r < ROWS && i < widths[w]; r++) {
                sum += rows[r * STRIDE + i];
                square += (double)rows[r * STRIDE + i] * rows[r * STRIDE + i];
            }
            assert_float_equal(sums[i], sum, 1e-5);
            assert_float_equal(squares[i], square, 1e-5);
        }
    }
}

static void queries_are_packed(void **state)
{
    (void)state;
    need_kernels();
    for (size_t w = 0; w < WIDTHS; w++) {
        float in[WIDTH_MAX], factor[WIDTH_MAX], with[WIDTH_MAX], dot;
        uint8_t out[WIDTH_MAX + 1];
        double largest = 0, expected = 0;
        for (size_t i = 0; i < widths[w]; i++) {
            in[i] = random_even();
            factor[i] = 1 + random_even() / 2;
            with[i] = random_even();
            largest = fmax(largest, fabs((double)in[i] * factor[i]));
            expected += (double)in[i] * with[i];
        }
        out[widths[w]] = 77;
        float scale = bytes->pack_query(in, factor, with, widths[w], out, &dot);
        assert_float_equal(scale, largest / 127, 1e-6);
        assert_float_equal(dot, expected, 1e-4);
        for (size_t i = 0; i < widths[w]; i++)
            assert_true(fabs((out[i] - 128) * largest / 127 - (double)in[i] * factor[i]) <= 0.501 * largest / 127);
        assert_int_equal(out[widths[w]], 77);
    }
}

static void keys_are_packed(void **state)
{
    (void)state;
    need_kernels();
    for (size_t w = 0; w < WIDTHS; w++) {
        enum { ROWS = 3 };
        size_t width = widths[w], padded = (width + 3) / 4 * 4;
        float rows[ROWS * WIDTH_MAX], mean[WIDTH_MAX], factor[WIDTH_MAX], scale[ROWS];
        int8_t out[ROWS * WIDTH_MAX];
        memset(out, 77, sizeof out);
        for (size_t i = 0; i < ROWS * width; i++) rows[i] = i / width == 1 ? 0.25f : random_even();
        for (size_t i = 0; i < width; i++) {
            mean[i] = 0.25f; /* the second row is its mean, and nothing is left of it */
            factor[i] = 1 + random_even() / 2;
        }
        bytes->pack_keys(rows, width, ROWS, mean, factor, width, out, padded, scale);
        assert_true(scale[1] == 0);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t i = 0; i < padded; i++) {
                if (i >= width) assert_int_equal(out[r * padded + i], 77);
                else assert_true(fabs(out[r * padded + i] * (double)scale[r] - ((double)rows[r * width + i] - mean[i]) * factor[i]) <=
                                 0.501 * scale[r] + 1e-12);
            }
    }
}

/* --- meeting ------------------------------------------------------------------------------------------------------------------ */

typedef struct rig {
    size_t key, value;
    int8_t keys[KEYS][WIDTH_MAX], values[KEYS][WIDTH_MAX]; /* as they are, before they are turned … */
    st_byte_tile tile;                                     /* … and after */
    st_byte_queries queries;
    double largest[QUERIES], sum[QUERIES], out[QUERIES][WIDTH_MAX];
} rig;

static rig *rig_new(size_t key, size_t value)
{
    rig *r = st_alloc_zero(1, sizeof *r);
    assert_non_null(r);
    r->key = key;
    r->value = value;
    r->tile = (st_byte_tile){.keys = st_alloc_aligned(KEYS * key, 64), .start = st_alloc_aligned(KEYS * 4, 64),
                             .key_scale = st_alloc_aligned(KEYS * 4, 64), .values = st_alloc_aligned(KEYS * value, 64),
                             .value_scale = st_alloc_aligned(value * 4, 64)};
    r->queries = (st_byte_queries){.key = key, .value = value, .q = st_alloc_zero(QUERIES, key),
                                   .scale = st_alloc_zero(QUERIES, 4), .largest = st_alloc_zero(QUERIES, 4),
                                   .sum = st_alloc_zero(QUERIES * LANES, 4), .out = st_alloc_zero(QUERIES * value, 4)};
    for (size_t i = 0; i < QUERIES; i++) {
        for (size_t k = 0; k < key; k++) r->queries.q[i * key + k] = (uint8_t)(1 + random_bits() % 255);
        r->queries.scale[i] = 0.002f + 0.001f * random_even();
        r->queries.largest[i] = -INFINITY;
        r->largest[i] = -INFINITY;
    }
    return r;
}

static void rig_free(rig *r)
{
    void *const pieces[] = {r->tile.keys, r->tile.start, r->tile.key_scale, r->tile.values, r->tile.value_scale, r->queries.q,
                            r->queries.scale, r->queries.largest, r->queries.sum, r->queries.out};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
    st_free(r);
}

/* Another tile: keys of bytes, values of floats that are packed here. */
static void fill_tile(rig *r)
{
    float *values = st_alloc_array(KEYS * r->value, sizeof *values);
    assert_non_null(values);
    for (size_t k = 0; k < KEYS; k++) {
        r->tile.key_scale[k] = 0.01f + 0.005f * random_even();
        for (size_t i = 0; i < r->key; i++) {
            r->keys[k][i] = (int8_t)((int)(random_bits() % 255) - 127);
            r->tile.keys[(i / WORD * KEYS + k) * WORD + i % WORD] = r->keys[k][i];
        }
    }
    for (size_t i = 0; i < KEYS * r->value; i++) values[i] = i % r->value == 1 ? 0 : random_even();
    bytes->start_keys(&r->tile, r->key);
    bytes->pack_values(values, r->value, r->value, &r->tile);
    for (size_t i = 0; i < r->value; i++) {
        float largest = 0;
        for (size_t k = 0; k < KEYS; k++) largest = fmaxf(largest, fabsf(values[k * r->value + i]));
        assert_float_equal(r->tile.value_scale[i], largest / 127, 1e-7);
        for (size_t k = 0; k < KEYS; k++)
            r->values[k][i] = (int8_t)lrintf(largest > 0 ? values[k * r->value + i] * (127 / largest) : 0);
    }
    st_free(values);
}

/* The weight of a score that lies `behind` the largest of its tile, as a byte. */
static int weight_of(float behind)
{
    long n = lrintf(behind);
    if (n < 0) n = 0;
    long twice = n / 64 > 15 ? 0 : lrint(510 * exp2(-(double)(n % 64) / 64)) >> n / 64;
    return (int)((twice + 1) / 2);
}

/* One query, plainly. Scores and steps are computed in the floats of the kernels: a step more or less would be another
 * weight, and is no error. */
static void meet_plainly(rig *r, size_t query, st_seen seen)
{
    float scores[KEYS], top = -INFINITY, scale = r->queries.scale[query];
    for (size_t k = seen.from; k < seen.to; k++) {
        int32_t sum = 0;
        for (size_t i = 0; i < r->key; i++) sum += (r->queries.q[query * r->key + i] - 128) * r->keys[k][i];
        scores[k] = (float)sum * r->tile.key_scale[k];
        top = fmaxf(top, scores[k]);
    }
    if (seen.from >= seen.to) return;
    double mine = (double)(top * scale), now = fmax(mine, r->largest[query]);
    double share = exp2(mine - now), shrink = exp2(r->largest[query] - now);
    r->largest[query] = now;
    r->sum[query] *= shrink;
    for (size_t i = 0; i < r->value; i++) r->out[query][i] *= shrink;
    for (size_t k = seen.from; k < seen.to; k++) {
        int weight = weight_of(fmaf(-scores[k], 64 * scale, 64 * (top * scale)));
        r->sum[query] += share * weight;
        for (size_t i = 0; i < r->value; i++)
            r->out[query][i] += share * weight * r->values[k][i] * (double)r->tile.value_scale[i];
    }
}

/* Three tiles: the first is seen whole, of the others each query sees some, none or all. */
static void queries_meet_tiles(void **state)
{
    (void)state;
    need_kernels();
    static const struct { size_t key, value; } shapes[] = {{4, 64}, {64, 64}, {128, 128}, {20, 64}, {192, 128}, {256, 256}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        rig *r = rig_new(shapes[s].key, shapes[s].value);
        for (size_t t = 0; t < TILES; t++) {
            st_seen seen[QUERIES];
            for (size_t i = 0; i < QUERIES; i++) {
                uint8_t from = (uint8_t)(random_bits() % KEYS), to = (uint8_t)(random_bits() % (KEYS + 1));
                seen[i] = t == 0 || i % 5 == 0 ? (st_seen){0, KEYS} : (st_seen){from, to};
                if (t == 1 && i < GROUP) seen[i] = (st_seen){0, (uint8_t)(to / 2)}; /* a group that sees half of it */
            }
            fill_tile(r);
            bytes->meet(&r->queries, &r->tile, t == 2 ? GROUP : 0, QUERIES, t == 0 ? NULL : seen);
            for (size_t i = t == 2 ? GROUP : 0; i < QUERIES; i++) meet_plainly(r, i, seen[i]);
        }
        double error = 0, norm = 0;
        for (size_t q = 0; q < QUERIES; q++) {
            float out[WIDTH_MAX];
            bytes->finish(&r->queries, q, out, r->value);
            for (size_t i = 0; i < r->value; i++) {
                double expected = r->out[q][i] / r->sum[q];
                error += (out[i] - expected) * (out[i] - expected);
                norm += expected * expected;
            }
        }
        if (!(sqrt(error / norm) <= 1e-5))
            fail_msg("key %zu, value %zu: error %g", shapes[s].key, shapes[s].value, sqrt(error / norm));
        rig_free(r);
    }
}

/* --- the whole ---------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 150, POSITION = 300, HEADS = 6, KV_HEADS = 2, HEAD = 48, SCRATCH_BYTES = 1 << 22, THREADS_MAX = 7 };

static void run_with(uint32_t threads, st_bound_op *bound, st_step *step, void *scratch)
{
    const st_backend *cpu = st_backend_cpu();
    st_device_options options = {.cpu = "avx512", .threads = threads};
    st_segment_source source = {.ops = bound, .count = 1, .rows = ST_ROWS_ALL, .step = step, .scratch = scratch,
                                .shared_bytes = SCRATCH_BYTES, .worker_bytes = SCRATCH_BYTES};
    st_device *device = NULL;
    st_queue *queue = NULL;
    st_segment *segment = NULL;
    assert_int_equal(cpu->open(&options, &device, NULL), STRATA_OK);
    assert_int_equal(cpu->queue_new(device, ST_QUEUE_COMPUTE, &queue, NULL), STRATA_OK);
    assert_int_equal(cpu->prepare(device, &source, &segment, NULL), STRATA_OK);
    assert_int_equal(cpu->launch(segment, queue, NULL), STRATA_OK);
    cpu->segment_free(segment);
    cpu->queue_free(queue);
    cpu->close(device);
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    need_kernels();
    size_t positions = POSITION + ROWS, width = KV_HEADS * HEAD, outs = (size_t)ROWS * HEADS * HEAD;
    st_op op = {.kind = ST_OP_ATTENTION};
    op.p.attention.heads = HEADS;
    op.p.attention.kv_heads = KV_HEADS;
    op.p.attention.key_length = op.p.attention.value_length = HEAD;
    op.p.attention.scale = 0.2f;
    op.p.attention.narrow = true;
    float *keys = st_alloc_array(positions * width, 4), *values = st_alloc_array(positions * width, 4);
    float *in = st_alloc_array(outs, 4), *first = st_alloc_array(outs, 4), *other = st_alloc_array(outs, 4);
    void *scratch = st_alloc_aligned((1 + THREADS_MAX) * (size_t)SCRATCH_BYTES, 64);
    st_step *step = st_alloc_zero(1, st_step_bytes(ROWS));
    assert_true(keys && values && in && first && other && scratch && step);
    for (size_t i = 0; i < positions * width; i++) keys[i] = random_even(), values[i] = random_even();
    for (size_t i = 0; i < outs; i++) in[i] = random_even();
    step->count = step->out_count = step->batch_max = ROWS;
    step->position = POSITION;
    st_bound_op bound = {.op = &op, .in[0] = {.width = HEADS * HEAD, .data = in}, .out = {.width = HEADS * HEAD, .data = first}};
    bound.kv = (st_kv_view){.capacity = (uint32_t)positions, .type = ST_TYPE_F32, .key_row_bytes = width * 4,
                            .value_row_bytes = width * 4, .keys = (unsigned char *)keys, .values = (unsigned char *)values};
    run_with(1, &bound, step, scratch);
    bound.out.data = other;
    for (uint32_t threads = 2; threads <= THREADS_MAX; threads++) {
        memset(other, 0, outs * 4);
        run_with(threads, &bound, step, scratch);
        if (memcmp(first, other, outs * 4) != 0) fail_msg("%u threads give other bits than one", threads);
    }
    void *const pieces[] = {keys, values, in, first, other, scratch, step};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_summed), cmocka_unit_test(queries_are_packed), cmocka_unit_test(keys_are_packed),
        cmocka_unit_test(queries_meet_tiles), cmocka_unit_test(threads_do_not_matter),
    };
    return cmocka_run_group_tests_name("bytes", tests, find_kernels, NULL);
}
