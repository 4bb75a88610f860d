/* Attention kernels for a few queries over a q8_0 KV cache, each instruction set against plain C. Queries are integers
 * that fit in 16 bits, so packing them is lossless. (test_conform.c compares the whole operation with the reference.)
 * */
#include <math.h>
#include <string.h>

#include "backend/cpu/isa.h"
#include "base/alloc.h"
#include "quant/row.h"
#include "support/kit.h"
#include "support/random.h"

enum { POSITIONS = 71, SPACE = 5 }; /* SPACE: padding after each result row that no kernel may write */

typedef struct shape {
    size_t heads, shared, width, positions;
} shape;

static const shape shapes[] = {{1, 1, 32, 1},  {3, 3, 64, 64}, {2, 2, 128, 7}, {1, 5, 96, 13},
                               {2, 4, 64, 66}, {1, 9, 32, 3},  {1, 7, 160, 5}, {4, 1, 256, POSITIONS}};

typedef struct rig {
    shape is;
    size_t row_bytes;
    unsigned char *rows;
    st_cache_rows cache;
    size_t queries;
} rig;

static rig make_rig(const shape *s)
{
    rig r = {.is = *s, .row_bytes = st_row_bytes(ST_TYPE_Q8_0, s->heads * s->width), .queries = s->heads * s->shared};
    float *row = st_alloc_array(s->heads * s->width, sizeof *row);
    r.rows = st_alloc_array(s->positions, r.row_bytes);
    assert_true(row && r.rows);
    for (size_t i = 0; i < s->positions; i++) {
        for (size_t k = 0; k < s->heads * s->width; k++) row[k] = random_even() * (float)(1 + i % 3);
        st_row_store(ST_TYPE_Q8_0, row, s->heads * s->width, r.rows + i * r.row_bytes);
    }
    st_free(row);
    r.cache = (st_cache_rows){r.rows, r.row_bytes, s->positions, s->heads, s->width, 0};
    return r;
}

static double element(const rig *r, size_t position, size_t head, size_t at)
{
    float x;
    st_row_load(ST_TYPE_Q8_0, r->rows + position * r->row_bytes, head * r->is.width + at, 1, &x);
    return x;
}

static void check(double error, double norm, const shape *s, const char *what)
{
    if (!(sqrt(error / norm) <= 1e-5))
        fail_msg("%s: %zu heads, %zu queries each, width %zu, %zu positions: error %g", what, s->heads, s->shared, s->width,
                 s->positions, sqrt(error / norm));
}

static void check_dots(const st_isa *isa, const shape *s)
{
    rig r = make_rig(s);
    size_t ldo = s->positions + SPACE;
    float *q = st_alloc_array(r.queries * s->width, sizeof *q), *packed = st_alloc_array(r.queries * s->width, sizeof *q);
    float *out = st_alloc_array(r.queries * ldo, sizeof *out);
    assert_true(q && packed && out);
    for (size_t i = 0; i < r.queries * s->width; i++)
        q[i] = (float)(i % s->width == 3 ? 32767 : (int)(random_bits() % 65535) - 32767) * 0.001f;
    memcpy(packed, q, r.queries * s->width * sizeof *q);
    for (size_t i = 0; i < r.queries * ldo; i++) out[i] = 77;
    if (isa->pack_queries[ST_TYPE_Q8_0]) isa->pack_queries[ST_TYPE_Q8_0](packed, r.queries, s->width);
    isa->dot_rows[ST_TYPE_Q8_0](packed, s->width, s->shared, &r.cache, out, ldo);
    double error = 0, norm = 0;
    for (size_t i = 0; i < r.queries; i++) {
        for (size_t p = 0; p < s->positions; p++) {
            double sum = 0;
            for (size_t k = 0; k < s->width; k++) sum += (double)q[i * s->width + k] * element(&r, p, i / s->shared, k);
            error += (out[i * ldo + p] - sum) * (out[i * ldo + p] - sum);
            norm += sum * sum;
        }
        for (size_t p = s->positions; p < ldo; p++) assert_true(out[i * ldo + p] == 77);
    }
    check(error, norm, s, isa->name);
    void *const pieces[] = {q, packed, out, r.rows};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
}

static void check_sums(const st_isa *isa, const shape *s)
{
    rig r = make_rig(s);
    size_t ldw = s->positions + SPACE, ldo = s->width + SPACE;
    float *weights = st_alloc_array(r.queries * ldw, sizeof *weights), *out = st_alloc_array(r.queries * ldo, sizeof *out);
    assert_true(weights && out);
    for (size_t i = 0; i < r.queries * ldw; i++) weights[i] = i % ldw < s->positions ? fabsf(random_even()) : NAN;
    for (size_t i = 0; i < r.queries * ldo; i++) out[i] = i % ldo < s->width ? 0.5f : 77;
    isa->weigh_rows[ST_TYPE_Q8_0](weights, ldw, s->shared, &r.cache, out, ldo);
    double error = 0, norm = 0;
    for (size_t i = 0; i < r.queries; i++) {
        for (size_t k = 0; k < s->width; k++) {
            double sum = 0.5;
            for (size_t p = 0; p < s->positions; p++) sum += (double)weights[i * ldw + p] * element(&r, p, i / s->shared, k);
            error += (out[i * ldo + k] - sum) * (out[i * ldo + k] - sum);
            norm += sum * sum;
        }
        for (size_t k = s->width; k < ldo; k++) assert_true(out[i * ldo + k] == 77);
    }
    check(error, norm, s, isa->name);
    void *const pieces[] = {weights, out, r.rows};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
}

/* Every shape on every instruction set of this machine. */
static void test_all_shapes(void (*test)(const st_isa *isa, const shape *s))
{
    const st_isa *const all[] = {st_isa_avx2(), st_isa_avxvnni(), st_isa_avx512()};
    bool any = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; all[i] && k < sizeof shapes / sizeof *shapes; k++, any = true) test(all[i], &shapes[k]);
    if (!any) skip();
}

static void dot_products_match_plain_c(void **state)
{
    (void)state;
    test_all_shapes(check_dots);
}

static void weighted_sums_match_plain_c(void **state)
{
    (void)state;
    test_all_shapes(check_sums);
}

/* An all-zero query has scale 0, and its scores are 0. */
static void zero_query_has_zero_score(void **state)
{
    (void)state;
    const st_isa *isa = st_isa_avx512() ? st_isa_avx512() : st_isa_avx2();
    if (!isa) skip();
    rig r = make_rig(&shapes[0]);
    float q[32] = {0}, score = 77;
    if (isa->pack_queries[ST_TYPE_Q8_0]) isa->pack_queries[ST_TYPE_Q8_0](q, 1, 32);
    isa->dot_rows[ST_TYPE_Q8_0](q, 32, 1, &r.cache, &score, 1);
    assert_true(score == 0);
    st_free(r.rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_products_match_plain_c),
        cmocka_unit_test(weighted_sums_match_plain_c),
        cmocka_unit_test(zero_query_has_zero_score),
    };
    return cmocka_run_group_tests_name("q8", tests, NULL, NULL);
}
