/* Plain, small-block and K types. The order of the float operations is part of the format: results are bit-identical
 * on every machine. */
#include "quant/dequant.h"

#include "quant/blocks.h"
#include "quant/quant.h"

/* Defines st_dequantise_NAME for a type without blocks. */
#define PLAIN_TYPE(name, c_type, expression)                                  \
    void st_dequantise_##name(const void *from, float *to, size_t blocks)     \
    {                                                                         \
        for (size_t i = 0; i < blocks; i++) {                                 \
            c_type x;                                                         \
            memcpy(&x, (const unsigned char *)from + i * sizeof x, sizeof x); \
            to[i] = (expression);                                             \
        }                                                                     \
    }

PLAIN_TYPE(f32, float, x)
PLAIN_TYPE(f16, uint16_t, st_half_to_float(x))
PLAIN_TYPE(bf16, uint16_t, st_bf16_to_float(x))
PLAIN_TYPE(f64, double, (float)x)
PLAIN_TYPE(i8, int8_t, (float)x)
PLAIN_TYPE(i16, int16_t, (float)x)
PLAIN_TYPE(i32, int32_t, (float)x)
PLAIN_TYPE(i64, int64_t, (float)x)

static int fifth_bit(const uint8_t qh[4], int i)
{
    return (qh[i / 8] >> i % 8 & 1) << 4;
}

static void block_q4_0(const st_block_q4_0 *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_BLOCK; i++) to[i] = d * (float)(st_nibble_of_32(block->qs, i) - 8);
}
ST_DEQUANTISE_BLOCKS(q4_0, ST_BLOCK)

static void block_q4_1(const st_block_q4_1 *block, float *to)
{
    float d = st_half_to_float(block->d), m = st_half_to_float(block->m);
    for (int i = 0; i < ST_BLOCK; i++) to[i] = d * (float)st_nibble_of_32(block->qs, i) + m;
}
ST_DEQUANTISE_BLOCKS(q4_1, ST_BLOCK)

static void block_q5_0(const st_block_q5_0 *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_BLOCK; i++)
        to[i] = d * (float)((st_nibble_of_32(block->qs, i) | fifth_bit(block->qh, i)) - 16);
}
ST_DEQUANTISE_BLOCKS(q5_0, ST_BLOCK)

static void block_q5_1(const st_block_q5_1 *block, float *to)
{
    float d = st_half_to_float(block->d), m = st_half_to_float(block->m);
    for (int i = 0; i < ST_BLOCK; i++) to[i] = d * (float)(st_nibble_of_32(block->qs, i) | fifth_bit(block->qh, i)) + m;
}
ST_DEQUANTISE_BLOCKS(q5_1, ST_BLOCK)

static void block_q8_0(const st_block_q8_0 *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_BLOCK; i++) to[i] = (float)block->qs[i] * d;
}
ST_DEQUANTISE_BLOCKS(q8_0, ST_BLOCK)

/* Two bits of element i of 256: Q2_K, Q3_K and TQ2_0 store them alike. */
static int two_bits(const uint8_t qs[64], int i)
{
    int half = i / 128, quarter = i % 128 / 32;
    return qs[32 * half + i % 32] >> 2 * quarter & 3;
}

static void block_q2_k(const st_block_q2_k *block, float *to)
{
    float d = st_half_to_float(block->d), min_d = st_half_to_float(block->min_d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int scale = block->scales[i / 16] & 0x0F, min = block->scales[i / 16] >> 4;
        to[i] = d * (float)scale * (float)two_bits(block->qs, i) - min_d * (float)min;
    }
}
ST_DEQUANTISE_BLOCKS(q2_k, ST_SUPERBLOCK)

static void block_q3_k(const st_block_q3_k *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int part = i / 16;
        int low = block->scales[part % 8] >> (part < 8 ? 0 : 4) & 0x0F;
        int high = block->scales[8 + part % 4] >> 2 * (part / 4) & 3;
        int scale = (low | high << 4) - 32;
        int minus = block->hmask[i % 32] >> i / 32 & 1 ? 0 : 4;
        to[i] = d * (float)scale * (float)(two_bits(block->qs, i) - minus);
    }
}
ST_DEQUANTISE_BLOCKS(q3_k, ST_SUPERBLOCK)

/* The 6-bit scale and minimum of part 0 to 7: the first four whole, the others in pieces. */
static void scale_and_min(const uint8_t scales[12], int part, int *scale, int *min)
{
    int place = part % 4;
    if (part < 4) {
        *scale = scales[place] & 0x3F;
        *min = scales[4 + place] & 0x3F;
    } else {
        *scale = (scales[8 + place] & 0x0F) | (scales[place] >> 6) << 4;
        *min = scales[8 + place] >> 4 | (scales[4 + place] >> 6) << 4;
    }
}

/* Four bits of element i of 256: Q4_K and Q5_K store them alike. */
static int four_bits(const uint8_t qs[128], int i)
{
    int byte = qs[32 * (i / 64) + i % 32];
    return i % 64 < 32 ? byte & 0x0F : byte >> 4;
}

static void block_q4_k(const st_block_q4_k *block, float *to)
{
    float d = st_half_to_float(block->d), min_d = st_half_to_float(block->min_d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int scale, min;
        scale_and_min(block->scales, i / 32, &scale, &min);
        to[i] = d * (float)scale * (float)four_bits(block->qs, i) - min_d * (float)min;
    }
}
ST_DEQUANTISE_BLOCKS(q4_k, ST_SUPERBLOCK)

static void block_q5_k(const st_block_q5_k *block, float *to)
{
    float d = st_half_to_float(block->d), min_d = st_half_to_float(block->min_d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int scale, min;
        scale_and_min(block->scales, i / 32, &scale, &min);
        int q = four_bits(block->qs, i) | (block->qh[i % 32] >> i / 32 & 1) << 4;
        to[i] = d * (float)scale * (float)q - min_d * (float)min;
    }
}
ST_DEQUANTISE_BLOCKS(q5_k, ST_SUPERBLOCK)

static void block_q6_k(const st_block_q6_k *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int low_byte = block->ql[64 * (i / 128) + i % 64];
        int low = i % 128 < 64 ? low_byte & 0x0F : low_byte >> 4;
        int q = (low | two_bits(block->qh, i) << 4) - 32;
        to[i] = d * (float)block->scales[i / 16] * (float)q;
    }
}
ST_DEQUANTISE_BLOCKS(q6_k, ST_SUPERBLOCK)

static void block_tq2_0(const st_block_tq2_0 *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) to[i] = d * (float)(two_bits(block->qs, i) - 1);
}
ST_DEQUANTISE_BLOCKS(tq2_0, ST_SUPERBLOCK)

/* Digit `place` of a byte that holds a fraction in base 3: shift it up, read the digit that falls out. */
static int ternary_digit(uint8_t byte, int place)
{
    static const uint8_t powers[] = {1, 3, 9, 27, 81};
    uint8_t shifted = (uint8_t)(byte * powers[place]);
    return shifted * 3 >> 8;
}

static void block_tq1_0(const st_block_tq1_0 *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int digit;
        if (i < 160) digit = ternary_digit(block->qs[i % 32], i / 32);
        else if (i < 240) digit = ternary_digit(block->qs[32 + i % 16], (i - 160) / 16);
        else digit = ternary_digit(block->qh[i % 4], (i - 240) / 4);
        to[i] = d * (float)(digit - 1);
    }
}
ST_DEQUANTISE_BLOCKS(tq1_0, ST_SUPERBLOCK)
