/* Batched attention: a row's result depends only on its own query and the positions it sees, not on the other rows of
 * the batch or the number of threads. Also the GEMM of floats split into two bfloat16 numbers, against plain C. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "base/alloc.h"
#include "quant/row.h"
#include "support/kit.h"
#include "support/random.h"
#include "support/steps.h"

enum { POSITIONS = 200, PAGES = 4, PAGE_SHIFT = 6 };
enum { HEADS = 6, KV_HEADS = 2, KEY = 48, VALUE = 40, SCRATCH_BYTES = 1 << 22, THREADS_MAX = 5 };

static const st_type kv_types[] = {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0};
static const char *const levels[] = {"ref", "avx2", "avxvnni", "avx512"};
enum { TYPES = sizeof kv_types / sizeof *kv_types, LEVELS = sizeof levels / sizeof *levels };

typedef struct attention_case {
    const char *cpu;
    st_type type;
} attention_case;

static void fill(float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = random_even();
}

static float *floats(size_t count)
{
    float *out = st_alloc_array(count, sizeof *out);
    assert_non_null(out);
    fill(out, count);
    return out;
}

/* --- a row and its neighbours ------------------------------------------------------------------------------------- */

typedef struct rig {
    st_op op;
    st_kv_view kv; /* position p is in row p */
    st_device *device;
    float *queries; /* [POSITIONS, HEADS, KEY] */
    void *scratch;
} rig;

/* Overwrites the keys and values at all positions from `first` on with new random ones. */
static void fill_cache(rig *r, uint32_t first)
{
    float keys[KV_HEADS * KEY], values[KV_HEADS * VALUE];
    for (size_t i = first; i < POSITIONS; i++) {
        fill(keys, KV_HEADS * KEY);
        fill(values, KV_HEADS * VALUE);
        st_row_store(r->kv.type, keys, KV_HEADS * KEY, r->kv.keys + i * r->kv.key_row_bytes);
        st_row_store(r->kv.type, values, KV_HEADS * VALUE, r->kv.values + i * r->kv.value_row_bytes);
    }
}

static bool open_device(const char *cpu, uint32_t threads, st_device **out)
{
    st_device_options options = {.cpu = cpu, .threads = threads};
    return st_backend_cpu()->open(&options, out, NULL) == STRATA_OK;
}

static void rig_open(rig *r, const attention_case *c)
{
    *r = (rig){.op = {.kind = ST_OP_ATTENTION}};
    if (!open_device(c->cpu, 2, &r->device)) skip();
    r->op.p.attention.heads = HEADS;
    r->op.p.attention.kv_heads = KV_HEADS;
    r->op.p.attention.key_length = KEY;
    r->op.p.attention.value_length = VALUE;
    r->op.p.attention.scale = 1.5f;
    r->kv = (st_kv_view){.pages = PAGES, .page_shift = PAGE_SHIFT, .type = c->type,
                         .key_row_bytes = st_row_bytes(c->type, KV_HEADS * KEY),
                         .value_row_bytes = st_row_bytes(c->type, KV_HEADS * VALUE)};
    r->kv.key_page_bytes = r->kv.key_row_bytes << PAGE_SHIFT;
    r->kv.value_page_bytes = r->kv.value_row_bytes << PAGE_SHIFT;
    r->kv.keys = st_alloc_array(PAGES, r->kv.key_page_bytes);
    r->kv.values = st_alloc_array(PAGES, r->kv.value_page_bytes);
    r->scratch = st_alloc_aligned((1 + THREADS_MAX) * (size_t)SCRATCH_BYTES, 64);
    assert_true(r->kv.keys && r->kv.values && r->scratch);
    r->queries = floats((size_t)POSITIONS * HEADS * KEY);
    fill_cache(r, 0);
}

static void rig_close(rig *r)
{
    st_backend_cpu()->close(r->device);
    st_free(r->kv.keys);
    st_free(r->kv.values);
    st_free(r->queries);
    st_free(r->scratch);
}

/* Attention of some conversations, which all have the same keys and values. */
static void run_parts(const rig *r, st_device *device, const step_part *parts, uint32_t count, const float *queries, float *out)
{
    const st_backend *cpu = st_backend_cpu();
    step_pool pool = {.page_shift = PAGE_SHIFT};
    st_step *step = step_new(parts, count, &pool, 1);
    for (uint32_t i = 0; i < count; i++) /* the first table names pages 0, 1, 2, 3; it is the longest */
        st_step_conversations(step)[i].pages[0] = st_step_conversations(step)[0].pages[0];
    st_bound_op bound = {.op = &r->op, .kv = r->kv, .out = {.width = HEADS * VALUE, .data = out}};
    bound.in[0] = (st_bound_value){.width = HEADS * KEY, .data = (void *)(uintptr_t)queries};
    st_segment_source source = {.ops = &bound, .count = 1, .rows = ST_ROWS_ALL, .step = step, .step_bytes = step->bytes,
                                .scratch = r->scratch, .shared_bytes = SCRATCH_BYTES, .worker_bytes = SCRATCH_BYTES};
    st_queue *queue = NULL;
    st_segment *segment = NULL;
    assert_int_equal(cpu->queue_new(device, ST_QUEUE_COMPUTE, &queue, NULL), STRATA_OK);
    assert_int_equal(cpu->prepare(device, &source, &segment, NULL), STRATA_OK);
    assert_int_equal(cpu->launch(segment, queue, step->count, NULL), STRATA_OK);
    cpu->segment_free(segment);
    cpu->queue_free(queue);
    st_free(step);
}

/* Attention of one row, computed in a batch of `count` rows from `first` on. */
static void row_in_batch(const rig *r, uint32_t position, uint32_t first, uint32_t count, float out[HEADS * VALUE])
{
    float *all = st_alloc_array((size_t)count * HEADS * VALUE, sizeof *all);
    assert_non_null(all);
    step_part part = {.rows = count, .position = first};
    run_parts(r, r->device, &part, 1, r->queries + (size_t)first * HEADS * KEY, all);
    memcpy(out, all + (size_t)(position - first) * HEADS * VALUE, HEADS * VALUE * sizeof *out);
    st_free(all);
}

static void check_row(rig *r, uint32_t position)
{
    static const struct { uint32_t before, count; } batches[] = {{0, 4}, {3, 4}, {0, 60}, {37, 80}, {59, 60}, {130, 131}};
    float alone[HEADS * VALUE], found[HEADS * VALUE], kept[HEADS * KEY], *query = r->queries + (size_t)position * HEADS * KEY;
    memcpy(kept, query, sizeof kept);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        uint32_t before = batches[i].before, count = batches[i].count;
        if (before > position || position - before + count > POSITIONS) continue;
        fill(r->queries, (size_t)POSITIONS * HEADS * KEY);
        memcpy(query, kept, sizeof kept);
        fill_cache(r, position + 1);
        row_in_batch(r, position, position - before, count, i ? found : alone);
        if (i && memcmp(found, alone, sizeof found) != 0)
            fail_msg("position %u, window %u, chunk %u: the result differs in a batch of %u", position,
                     r->op.p.attention.window, r->op.p.attention.chunk, count);
    }
}

static void row_is_independent_of_its_batch(void **state)
{
    rig r;
    rig_open(&r, *state);
    static const uint32_t positions[] = {3, 64, 130, 196};
    for (int kind = 0; kind < 3; kind++)
        for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
            r.op.p.attention.window = kind == 1 ? 50 : 0;
            r.op.p.attention.chunk = kind == 2 ? 48 : 0;
            check_row(&r, positions[i]);
        }
    rig_close(&r);
}

/* A prompt beside another and beside conversations with a few rows. */
static void result_is_independent_of_the_thread_count(void **state)
{
    static const step_part parts[] = {{.rows = 100, .position = 100}, {.rows = 1, .position = 199}, {.rows = 3, .position = 70},
                                      {.rows = 1, .position = 0},     {.rows = 40, .position = 60}, {.rows = 2, .position = 150}};
    const attention_case *c = *state;
    rig r;
    rig_open(&r, c);
    size_t count = (size_t)POSITIONS * HEADS * VALUE, part_count = sizeof parts / sizeof *parts;
    float *first = floats(count), *other = floats(count);
    memset(first, 0, count * sizeof *first);
    run_parts(&r, r.device, parts, (uint32_t)part_count, r.queries, first);
    for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
        st_device *device;
        assert_true(open_device(c->cpu, threads, &device));
        memset(other, 0, count * sizeof *other);
        run_parts(&r, device, parts, (uint32_t)part_count, r.queries, other);
        if (memcmp(first, other, count * sizeof *first) != 0)
            fail_msg("%u threads give a different result than two", threads);
        st_backend_cpu()->close(device);
    }
    st_free(first);
    st_free(other);
    rig_close(&r);
}

/* --- products of split floats ------------------------------------------------------------------------------------- */

static void check_gemm(const st_isa_split *split, size_t m, size_t n, size_t k, bool low, bool add)
{
    size_t lda = k + 3, ldb = n + 5, ldc = n + 7;
    float *a = floats(m * lda), *b = floats(k * ldb), *c = floats(m * ldc), *expected = floats(m * ldc);
    memcpy(expected, c, m * ldc * sizeof *c);
    if (!low)
        for (size_t i = 0; i < k * ldb; i++) b[i] = st_bf16_to_float(st_float_to_bf16(b[i]));
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = add ? c[i * ldc + j] : 0;
            for (size_t p = 0; p < k; p++) sum += (double)a[i * lda + p] * b[p * ldb + j];
            expected[i * ldc + j] = (float)sum;
        }
    for (size_t i = 0; i < m; i++) split->split_row(a + i * lda, k);
    for (size_t p = 0; p < k; p += 2) split->split_two_rows(b + p * ldb, b + (p + 1) * ldb, n);
    st_split left = {a, a + ST_SPLIT_TILE, lda, ST_SPLIT_CHUNK};
    st_split right = {b, low ? b + ldb : NULL, 2 * ldb, ST_SPLIT_CHUNK * ldb};
    split->gemm(&left, &right, c, ldc, m, n, k / ST_SPLIT_CHUNK, add);
    for (size_t i = 0; i < m * ldc; i++) /* k products of at most 1; padding is not written */
        if (!(fabs((double)c[i] - expected[i]) <= (i % ldc < n ? sqrt((double)k) * 0x1p-16 : 0)))
            fail_msg("%zu × %zu × %zu: [%zu, %zu] is %.8g, expected %.8g", m, n, k, i / ldc, i % ldc, c[i], expected[i]);
    void *const pieces[] = {a, b, c, expected};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
}

static void split_gemm_matches_plain_c(void **state)
{
    (void)state;
    const st_isa_split *split = st_isa_amx();
    if (!split) skip();
    static const size_t sizes[][3] = {{16, 16, 32}, {32, 32, 64}, {48, 80, 32}, {128, 64, 96}, {16, 144, 128}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 4; kind++) check_gemm(split, sizes[i][0], sizes[i][1], sizes[i][2], kind & 1, kind & 2);
}

int main(void)
{
    static attention_case cases[LEVELS * TYPES];
    static char names[2 * LEVELS * TYPES][64];
    static struct CMUnitTest tests[1 + 2 * LEVELS * TYPES] = {cmocka_unit_test(split_gemm_matches_plain_c)};
    static const struct { const char *name; CMUnitTestFunction run; } kinds[] = {
        {"neighbours", row_is_independent_of_its_batch}, {"threads", result_is_independent_of_the_thread_count}};
    size_t count = 0;
    for (size_t i = 0; i < LEVELS * TYPES; i++) {
        cases[i] = (attention_case){levels[i / TYPES], kv_types[i % TYPES]};
        for (size_t k = 0; k < 2; k++, count++) {
            snprintf(names[count], sizeof *names, "%s, %s, %s", kinds[k].name, cases[i].cpu, st_type_find(cases[i].type)->name);
            tests[1 + count] = (struct CMUnitTest){.name = names[count], .test_func = kinds[k].run, .initial_state = &cases[i]};
        }
    }
    return _cmocka_run_group_tests("attention", tests, 1 + count, NULL, NULL);
}
