/* src/quant/row.c: rows of keys and values in every KV type, of any length, whole and in slices. */
#include "support/kit.h"

#include <math.h>
#include <string.h>

#include "quant/row.h"

enum { LENGTH_MAX = 200 };

static const size_t lengths[] = {1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 200};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static const st_type types[] = {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0};

static void fill(float *row, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        row[i] = ((float)(seed >> 8) / (float)(1 << 24) - 0.5f) * 8;
    }
}

static void row_bytes_are_exact(void **state)
{
    (void)state;
    for (size_t n = 0; n < LENGTHS; n++) {
        size_t count = lengths[n], blocks = (count + 31) / 32;
        assert_int_equal(st_row_bytes(ST_TYPE_F32, count), 4 * count);
        assert_int_equal(st_row_bytes(ST_TYPE_F16, count), 2 * count);
        assert_int_equal(st_row_bytes(ST_TYPE_BF16, count), 2 * count);
        assert_int_equal(st_row_bytes(ST_TYPE_Q8_0, count), count + 2 * blocks);
    }
}

/* The largest rounding error of a stored element: zero, half a step of the type, or half a step of the block. */
static double allowed_error(st_type type, const float *row, size_t count, size_t index)
{
    if (type == ST_TYPE_F32) return 0;
    if (type == ST_TYPE_F16) return fabs((double)row[index]) / 2048 + 0x1p-25; /* below 2⁻¹⁴ steps are 2⁻²⁴ */
    if (type == ST_TYPE_BF16) return fabs((double)row[index]) / 256;
    double largest = 0;
    for (size_t i = index / 32 * 32; i < index / 32 * 32 + 32 && i < count; i++)
        largest = fmax(largest, fabs((double)row[i]));
    return largest / 127 * 0.5 + largest / 1024; /* the scale is a float16 */
}

static void rows_round_trip(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t n = 0; n < LENGTHS; n++) {
            size_t count = lengths[n], bytes = st_row_bytes(types[t], count);
            float row[LENGTH_MAX], back[LENGTH_MAX + 1];
            unsigned char stored[LENGTH_MAX * 4 + 1];
            fill(row, count, (unsigned)(t * 100 + n));
            stored[bytes] = 0xA5;
            back[count] = 12345;
            st_row_store(types[t], row, count, stored);
            st_row_load(types[t], stored, 0, count, back);
            assert_int_equal(stored[bytes], 0xA5); /* nothing is written past the end */
            assert_true(back[count] == 12345);
            for (size_t i = 0; i < count; i++)
                if (!(fabs((double)row[i] - back[i]) <= allowed_error(types[t], row, count, i)))
                    fail_msg("type %d, element %zu of %zu: %g became %g", types[t], i, count, (double)row[i],
                             (double)back[i]);
        }
}

static void slices_equal_the_whole_row(void **state)
{
    (void)state;
    float row[LENGTH_MAX], whole[LENGTH_MAX], piece[LENGTH_MAX];
    unsigned char stored[LENGTH_MAX * 4];
    fill(row, LENGTH_MAX, 7);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        st_row_store(types[t], row, LENGTH_MAX, stored);
        st_row_load(types[t], stored, 0, LENGTH_MAX, whole);
        for (size_t first = 0; first < LENGTH_MAX; first += 7)
            for (size_t count = 1; first + count <= LENGTH_MAX; count += 13) {
                st_row_load(types[t], stored, first, count, piece);
                assert_memory_equal(piece, whole + first, count * sizeof *piece);
            }
    }
}

/* A row of whole blocks has the format of the tensor type of the same name. */
static void q8_0_is_the_file_format(void **state)
{
    (void)state;
    float row[96], ours[96], theirs[96];
    unsigned char stored[96 * 4];
    fill(row, 96, 3);
    row[5] = 0;
    st_row_store(ST_TYPE_Q8_0, row, 96, stored);
    st_row_load(ST_TYPE_Q8_0, stored, 0, 96, ours);
    st_type_find(ST_TYPE_Q8_0)->dequantise(stored, theirs, 3);
    assert_memory_equal(ours, theirs, sizeof ours);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const struct { uint32_t bits; uint16_t rounded; } cases[] = {
        {0x3F800000, 0x3F80}, {0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81}, {0xC0490FDB, 0xC049}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float value;
        uint16_t found;
        memcpy(&value, &cases[i].bits, sizeof value);
        st_row_store(ST_TYPE_BF16, &value, 1, &found);
        assert_int_equal(found, cases[i].rounded);
    }
}

/* An infinity in the KV cache would make attention NaN: values out of range become the largest finite value. */
static void f16_saturates(void **state)
{
    (void)state;
    static const struct { float value; uint16_t stored; } cases[] = {
        {65504, 0x7BFF}, {-65504, 0xFBFF}, {65520, 0x7BFF},     {-65520, 0xFBFF},     {1e5f, 0x7BFF}, {-3e38f, 0xFBFF},
        {INFINITY, 0x7BFF}, {-INFINITY, 0xFBFF}, {65488, 0x7BFE}, {65489, 0x7BFF}, {0x1p-24f, 1}, {0x1p-26f, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint16_t found;
        st_row_store(ST_TYPE_F16, &cases[i].value, 1, &found);
        if (found != cases[i].stored) fail_msg("%g became %04x, expected %04x", (double)cases[i].value, found, cases[i].stored);
    }
    float nan = NAN, back;
    uint16_t stored;
    st_row_store(ST_TYPE_F16, &nan, 1, &stored);
    st_row_load(ST_TYPE_F16, &stored, 0, 1, &back);
    assert_true(isnan(back));
}

/* The same for the scale of a block: it saturates, and no element becomes an infinity or NaN. */
static void q8_0_saturates(void **state)
{
    (void)state;
    float row[32] = {3e38f, 1, 0, -3e38f}, back[32];
    unsigned char stored[34];
    st_row_store(ST_TYPE_Q8_0, row, 32, stored);
    st_row_load(ST_TYPE_Q8_0, stored, 0, 32, back);
    assert_true(back[0] == 127.0f * 65504 && back[1] == 0 && back[2] == 0 && back[3] == -127.0f * 65504);
}

static void zeros_and_extremes(void **state)
{
    (void)state;
    float row[33] = {0}, back[33];
    unsigned char stored[64 * 4];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        st_row_store(types[t], row, 33, stored);
        st_row_load(types[t], stored, 0, 33, back);
        for (int i = 0; i < 33; i++) assert_true(back[i] == 0);
    }
    /* One large element sets its block's step and no other block's. */
    row[0] = 1e4f;
    row[32] = -0.125f;
    st_row_store(ST_TYPE_Q8_0, row, 33, stored);
    st_row_load(ST_TYPE_Q8_0, stored, 0, 33, back);
    assert_float_equal(back[0], 1e4f, 10);
    assert_float_equal(back[32], -0.125f, 1e-3);
    row[0] = 1e-30f; /* a step too small for a float16 is stored as zero */
    row[1] = -1e-42f;
    st_row_store(ST_TYPE_Q8_0, row, 32, stored);
    st_row_load(ST_TYPE_Q8_0, stored, 0, 32, back);
    for (int i = 0; i < 32; i++) assert_float_equal(back[i], 0, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_saturates), cmocka_unit_test(q8_0_saturates), cmocka_unit_test(row_bytes_are_exact),
        cmocka_unit_test(rows_round_trip), cmocka_unit_test(slices_equal_the_whole_row),
        cmocka_unit_test(q8_0_is_the_file_format), cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(zeros_and_extremes),
    };
    return cmocka_run_group_tests_name("row", tests, NULL, NULL);
}
