#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "quant/quant.h"

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The value by its definition, so that the test does not repeat the code. */
static double half_by_definition(uint16_t half)
{
    int exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;
    double magnitude;
    if (exponent == 0x1F) magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0) magnitude = ldexp(fraction, -24);
    else magnitude = ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

static void every_half_converts(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xFFFF; half++) {
        float value = st_half_to_float((uint16_t)half);
        double wanted = half_by_definition((uint16_t)half);
        if (isnan(wanted)) assert_true(isnan(value));
        else assert_true((double)value == wanted);
        assert_int_equal(signbit(value) != 0, half >> 15);
        assert_int_equal(st_float_to_half(value), half);
    }
}

/* Between each two neighbours: below the middle goes down, above goes up, the middle to the even one. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7BFF; half++) {
        float low = st_half_to_float((uint16_t)half), high = st_half_to_float((uint16_t)(half + 1));
        float middle = (low + high) / 2; /* exact: it needs one more bit */
        uint32_t even = half & 1 ? half + 1 : half;
        assert_int_equal(st_float_to_half(middle), even);
        assert_int_equal(st_float_to_half(-middle), even | 0x8000);
        assert_int_equal(st_float_to_half(from_bits(to_bits(middle) - 1)), half);
        assert_int_equal(st_float_to_half(from_bits(to_bits(middle) + 1)), half + 1);
    }
}

static void halves_at_their_limits(void **state)
{
    (void)state;
    assert_int_equal(st_float_to_half(65504.0f), 0x7BFF);
    assert_int_equal(st_float_to_half(from_bits(to_bits(65520.0f) - 1)), 0x7BFF);
    assert_int_equal(st_float_to_half(65520.0f), 0x7C00); /* the middle: to the even one, which is infinity */
    assert_int_equal(st_float_to_half(1e30f), 0x7C00);
    assert_int_equal(st_float_to_half(-INFINITY), 0xFC00);
    assert_int_equal(st_float_to_half(0.0f), 0);
    assert_int_equal(st_float_to_half(-0.0f), 0x8000);
    assert_int_equal(st_float_to_half(1e-30f), 0);
    assert_int_equal(st_float_to_half(from_bits(1)), 0);
    /* NaN with a payload that the half has no bits for */
    assert_true(isnan(st_half_to_float(st_float_to_half(from_bits(0x7F800001)))));
    assert_true(isnan(st_half_to_float(st_float_to_half(from_bits(0xFFFFFFFF)))));
}

static void every_bf16_converts(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xFFFF; bits++) {
        float value = st_bf16_to_float((uint16_t)bits);
        assert_int_equal(to_bits(value), bits << 16);
        if (isnan(value)) assert_true(isnan(st_bf16_to_float(st_float_to_bf16(value))));
        else assert_int_equal(st_float_to_bf16(value), bits);
    }
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7F80; bits++) {
        uint32_t middle = bits << 16 | 0x8000, even = bits & 1 ? bits + 1 : bits;
        assert_int_equal(st_float_to_bf16(from_bits(middle)), even);
        assert_int_equal(st_float_to_bf16(from_bits(middle - 1)), bits);
        assert_int_equal(st_float_to_bf16(from_bits(middle + 1)), bits + 1);
        assert_int_equal(st_float_to_bf16(from_bits(middle | 0x80000000u)), even | 0x8000);
    }
    assert_int_equal(st_float_to_bf16(from_bits(0x7F7FFFFF)), 0x7F80); /* rounds to infinity */
    assert_true(isnan(st_bf16_to_float(st_float_to_bf16(from_bits(0x7F800001)))));
    assert_true(isnan(st_bf16_to_float(st_float_to_bf16(from_bits(0x7FFFFFFF)))));
    assert_true(isnan(st_bf16_to_float(st_float_to_bf16(from_bits(0xFFFFFFFF)))));
}

static void every_type_has_a_row(void **state)
{
    (void)state;
    assert_int_equal(st_type_count(), 33);
    for (size_t i = 0; i < st_type_count(); i++) {
        const st_type_info *info = st_type_find(st_type_at(i));
        assert_non_null(info);
        assert_non_null(info->dequantise);
        assert_true(info->block >= 1 && info->bytes >= 1);
        for (size_t other = 0; other < i; other++) {
            assert_int_not_equal(st_type_at(other), st_type_at(i));
            assert_string_not_equal(st_type_find(st_type_at(other))->name, info->name);
        }
    }
}

static void unknown_type_numbers_are_rejected(void **state)
{
    (void)state;
    static const uint32_t gone[] = {4, 5, 9, 15, 31, 32, 33, 36, 37, 38, 43, 44, 255, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) assert_null(st_type_find(gone[i]));
    size_t known = 0;
    for (uint32_t type = 0; type < 1000; type++) known += st_type_find(type) != NULL;
    assert_int_equal(known, 33);
}

/* The lowest bits come first. */
static void few_bits_with_one_scale(void **state)
{
    (void)state;
    struct { uint16_t d; uint8_t qs[16]; } block = {.d = st_float_to_half(0.5f)};
    float out[128];
    for (int i = 0; i < 16; i++) block.qs[i] = (uint8_t)(37 * i + 11);
    st_type_find(ST_TYPE_Q1_0)->dequantise(&block, out, 1);
    for (int i = 0; i < 128; i++) assert_true(out[i] == (block.qs[i / 8] >> i % 8 & 1 ? 0.5f : -0.5f));
    st_type_find(ST_TYPE_Q2_0)->dequantise(&block, out, 1);
    for (int i = 0; i < 64; i++) assert_true(out[i] == 0.5f * (float)((block.qs[i / 4] >> i % 4 * 2 & 3) - 1));
}

static void row_bytes(void **state)
{
    (void)state;
    size_t bytes = 77;
    const st_type_info *q4_k = st_type_find(ST_TYPE_Q4_K), *f64 = st_type_find(ST_TYPE_F64);
    const st_type_info *iq1_s = st_type_find(ST_TYPE_IQ1_S), *mxfp4 = st_type_find(ST_TYPE_MXFP4);
    assert_true(st_type_row_bytes(q4_k, 512, &bytes));
    assert_int_equal(bytes, 288);
    assert_true(st_type_row_bytes(mxfp4, 96, &bytes));
    assert_int_equal(bytes, 51);
    assert_true(st_type_row_bytes(q4_k, 0, &bytes));
    assert_int_equal(bytes, 0);
    bytes = 77;
    assert_false(st_type_row_bytes(q4_k, 255, &bytes));
    assert_false(st_type_row_bytes(q4_k, 257, &bytes));
    assert_false(st_type_row_bytes(f64, UINT64_MAX, &bytes));
    assert_false(st_type_row_bytes(f64, UINT64_MAX / 8 + 1, &bytes));
    assert_int_equal(bytes, 77);
    assert_true(st_type_row_bytes(f64, UINT64_MAX / 8, &bytes));
    assert_true(bytes == UINT64_MAX / 8 * 8);
    assert_true(st_type_row_bytes(iq1_s, UINT64_MAX - 255, &bytes)); /* fewer bytes than elements */
}

static void plain_types_convert(void **state)
{
    (void)state;
    float out[3];
    const int8_t i8[] = {-128, 0, 127};
    st_type_find(ST_TYPE_I8)->dequantise(i8, out, 3);
    assert_true(out[0] == -128 && out[1] == 0 && out[2] == 127);
    const int16_t i16[] = {-32768, 1, 32767};
    st_type_find(ST_TYPE_I16)->dequantise(i16, out, 3);
    assert_true(out[0] == -32768 && out[1] == 1 && out[2] == 32767);
    const int32_t i32[] = {INT32_MIN, 5, 1 << 20};
    st_type_find(ST_TYPE_I32)->dequantise(i32, out, 3);
    assert_true(out[0] == -2147483648.0f && out[1] == 5 && out[2] == 1048576);
    const int64_t i64[] = {INT64_MIN, -7, (int64_t)1 << 40};
    st_type_find(ST_TYPE_I64)->dequantise(i64, out, 3);
    assert_true(out[0] == -9223372036854775808.0f && out[1] == -7 && out[2] == 1099511627776.0f);
    const double f64[] = {0.1, -0.0, 1e300};
    st_type_find(ST_TYPE_F64)->dequantise(f64, out, 3);
    assert_true(out[0] == 0.1f && out[1] == 0 && signbit(out[1]) && isinf(out[2]));
    const float f32[] = {0.5f, -0.0f, 3};
    st_type_find(ST_TYPE_F32)->dequantise(f32, out, 3);
    assert_memory_equal(out, f32, sizeof out);
}

/* A scale byte of each value: the kit's rows hold only a few of them. */
static void fp4_scales(void **state)
{
    (void)state;
    for (int e = 0; e < 255; e++) {
        uint8_t block[17] = {(uint8_t)e, 0x21}; /* element 0 is 0.5, element 16 is 1 */
        float out[32];
        st_type_find(ST_TYPE_MXFP4)->dequantise(block, out, 1);
        assert_true((double)out[0] == ldexp(0.5, e - 127));
        assert_true((double)out[16] == ldexp(1, e - 127));
    }
    for (int d = 0; d < 128; d++) {
        uint8_t block[36] = {(uint8_t)d, 0, 0, 0, 0x27}; /* element 0 is 6, element 8 is 1 */
        float out[64];
        int exponent = d >> 3, fraction = d & 7;
        double scale = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
        if (d == 0x7F) scale = 0;
        st_type_find(ST_TYPE_NVFP4)->dequantise(block, out, 1);
        assert_true((double)out[0] == 6 * scale);
        assert_true((double)out[8] == scale);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_converts), cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(halves_at_their_limits), cmocka_unit_test(every_bf16_converts),
        cmocka_unit_test(bf16_rounds_to_nearest_even), cmocka_unit_test(every_type_has_a_row),
        cmocka_unit_test(unknown_type_numbers_are_rejected), cmocka_unit_test(row_bytes),
        cmocka_unit_test(few_bits_with_one_scale),
        cmocka_unit_test(plain_types_convert), cmocka_unit_test(fp4_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
