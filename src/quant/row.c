#include "quant/row.h"

#include <math.h>
#include <string.h>

#include "base/poison.h"

enum { Q8_BLOCK = 32, Q8_STRIDE = Q8_BLOCK + 2 };

static size_t f32_bytes(size_t count)
{
    return count * sizeof(float);
}

static void f32_store(const float *from, size_t count, unsigned char *row)
{
    memcpy(row, from, count * sizeof *from);
}

static void f32_load(const unsigned char *row, size_t first, size_t count, float *to)
{
    memcpy(to, row + first * sizeof *to, count * sizeof *to);
}

static size_t two_bytes(size_t count)
{
    return count * sizeof(uint16_t);
}

/* Float16, clamped to the largest finite value: an infinity would make attention return NaN. */
static uint16_t finite_half(float value)
{
    const float largest = 65504;
    return st_float_to_half(value > largest ? largest : value < -largest ? -largest : value);
}

static void f16_store(const float *from, size_t count, unsigned char *row)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t bits = finite_half(from[i]);
        memcpy(row + i * sizeof bits, &bits, sizeof bits);
    }
}

ST_CHECKS_RANGES static void f16_load(const unsigned char *row, size_t first, size_t count, float *to)
{
    st_check_range(row + first * sizeof(uint16_t), count * sizeof(uint16_t));
    st_check_range(to, count * sizeof *to);
    for (size_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, row + (first + i) * sizeof bits, sizeof bits);
        to[i] = st_half_to_float(bits);
    }
}

static void bf16_store(const float *from, size_t count, unsigned char *row)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t bits = st_float_to_bf16(from[i]);
        memcpy(row + i * sizeof bits, &bits, sizeof bits);
    }
}

ST_CHECKS_RANGES static void bf16_load(const unsigned char *row, size_t first, size_t count, float *to)
{
    st_check_range(row + first * sizeof(uint16_t), count * sizeof(uint16_t));
    st_check_range(to, count * sizeof *to);
    for (size_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, row + (first + i) * sizeof bits, sizeof bits);
        to[i] = st_bf16_to_float(bits);
    }
}

static size_t q8_bytes(size_t count)
{
    return count + (count + Q8_BLOCK - 1) / Q8_BLOCK * sizeof(uint16_t);
}

static void q8_store_block(const float *from, size_t count, unsigned char *block)
{
    float largest = 0;
    for (size_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(from[i]));
    float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
    uint16_t half = finite_half(scale);
    memcpy(block, &half, sizeof half);
    for (size_t i = 0; i < count; i++) {
        int8_t quantised = (int8_t)lrintf(from[i] * inverse);
        memcpy(block + sizeof half + i, &quantised, 1);
    }
}

static void q8_store(const float *from, size_t count, unsigned char *row)
{
    for (size_t i = 0; i < count; i += Q8_BLOCK)
        q8_store_block(from + i, count - i < Q8_BLOCK ? count - i : Q8_BLOCK, row + i / Q8_BLOCK * Q8_STRIDE);
}

ST_CHECKS_RANGES static void q8_load(const unsigned char *row, size_t first, size_t count, float *to)
{
    const unsigned char *begin = row + first / Q8_BLOCK * Q8_STRIDE;
    st_check_range(begin, q8_bytes(first % Q8_BLOCK + count));
    st_check_range(to, count * sizeof *to);
    for (size_t i = 0; i < count; i++) {
        const unsigned char *block = row + (first + i) / Q8_BLOCK * Q8_STRIDE;
        uint16_t half;
        int8_t quantised;
        memcpy(&half, block, sizeof half);
        memcpy(&quantised, block + sizeof half + (first + i) % Q8_BLOCK, 1);
        to[i] = st_half_to_float(half) * (float)quantised;
    }
}

typedef struct row_codec {
    size_t (*bytes)(size_t count);
    void (*store)(const float *from, size_t count, unsigned char *row);
    void (*load)(const unsigned char *row, size_t first, size_t count, float *to);
} row_codec;

static const row_codec codecs[] = {
    [ST_TYPE_F32] = {f32_bytes, f32_store, f32_load},
    [ST_TYPE_F16] = {two_bytes, f16_store, f16_load},
    [ST_TYPE_Q8_0] = {q8_bytes, q8_store, q8_load},
    [ST_TYPE_BF16] = {two_bytes, bf16_store, bf16_load},
};

size_t st_row_bytes(st_type type, size_t count)
{
    return codecs[type].bytes(count);
}

void st_row_store(st_type type, const float *from, size_t count, void *row)
{
    codecs[type].store(from, count, row);
}

void st_row_load(st_type type, const void *row, size_t first, size_t count, float *to)
{
    codecs[type].load(row, first, count, to);
}
