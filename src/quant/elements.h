/* Element i of a block, for every block type: the reference that dequant.c loops over and GPU kernels call. Usable
 * from C and CUDA. The order of the float operations is part of the format: in C the results are bit-identical on
 * every machine. Private to src/quant and the kernels. */
#ifndef ST_QUANT_ELEMENTS_H
#define ST_QUANT_ELEMENTS_H

#include "quant/blocks.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define ST_ELEMENT static __device__ __forceinline__
#define ST_ELEMENT_HALF(bits) __half2float(__ushort_as_half(bits))
#define ST_ELEMENT_FLOAT(bits) __uint_as_float(bits)
#define ST_QUANT_TABLE static __device__ const
#else
#include "quant/quant.h"
#define ST_ELEMENT static inline
#define ST_ELEMENT_HALF(bits) st_half_to_float(bits)
#define ST_ELEMENT_FLOAT(bits) ((union { uint32_t u; float f; }){.u = (bits)}.f)
#endif

#include "quant/tables.h"

/* Four bits of element i of a small block: 16 low nibbles, then 16 high nibbles. */
ST_ELEMENT int st_nibble_of_32(const uint8_t *qs, int i)
{
    return i < 16 ? qs[i] & 0x0F : qs[i - 16] >> 4;
}

ST_ELEMENT int st_fifth_bit(const uint8_t *qh, int i)
{
    return (qh[i / 8] >> i % 8 & 1) << 4;
}

ST_ELEMENT float st_at_q4_0(const st_block_q4_0 *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)(st_nibble_of_32(block->qs, i) - 8);
}

ST_ELEMENT float st_at_q4_1(const st_block_q4_1 *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)st_nibble_of_32(block->qs, i) + ST_ELEMENT_HALF(block->m);
}

ST_ELEMENT float st_at_q5_0(const st_block_q5_0 *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)((st_nibble_of_32(block->qs, i) | st_fifth_bit(block->qh, i)) - 16);
}

ST_ELEMENT float st_at_q5_1(const st_block_q5_1 *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)(st_nibble_of_32(block->qs, i) | st_fifth_bit(block->qh, i)) +
           ST_ELEMENT_HALF(block->m);
}

ST_ELEMENT float st_at_q8_0(const st_block_q8_0 *block, int i)
{
    return (float)block->qs[i] * ST_ELEMENT_HALF(block->d);
}

/* ---- K blocks ---------------------------------------------------------------------------------------------------- */

/* Two bits of element i of 256: Q2_K, Q3_K and TQ2_0 have the same layout. */
ST_ELEMENT int st_two_bits(const uint8_t *qs, int i)
{
    return qs[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
}

ST_ELEMENT float st_at_q2_k(const st_block_q2_k *block, int i)
{
    int scale = block->scales[i / 16] & 0x0F, min = block->scales[i / 16] >> 4;
    return ST_ELEMENT_HALF(block->d) * (float)scale * (float)st_two_bits(block->qs, i) -
           ST_ELEMENT_HALF(block->min_d) * (float)min;
}

ST_ELEMENT float st_at_q3_k(const st_block_q3_k *block, int i)
{
    int part = i / 16;
    int low = block->scales[part % 8] >> (part < 8 ? 0 : 4) & 0x0F;
    int high = block->scales[8 + part % 4] >> 2 * (part / 4) & 3;
    int scale = (low | high << 4) - 32;
    int minus = block->hmask[i % 32] >> i / 32 & 1 ? 0 : 4;
    return ST_ELEMENT_HALF(block->d) * (float)scale * (float)(st_two_bits(block->qs, i) - minus);
}

/* The 6-bit scale and minimum of part 0 to 7: the first four are contiguous, the others are split over two bytes. */
ST_ELEMENT int st_scale_6(const uint8_t *scales, int part)
{
    int place = part % 4;
    return part < 4 ? scales[place] & 0x3F : (scales[8 + place] & 0x0F) | (scales[place] >> 6) << 4;
}

ST_ELEMENT int st_min_6(const uint8_t *scales, int part)
{
    int place = part % 4;
    return part < 4 ? scales[4 + place] & 0x3F : scales[8 + place] >> 4 | (scales[4 + place] >> 6) << 4;
}

/* Four bits of element i of 256: Q4_K and Q5_K have the same layout. */
ST_ELEMENT int st_four_bits(const uint8_t *qs, int i)
{
    int byte = qs[32 * (i / 64) + i % 32];
    return i % 64 < 32 ? byte & 0x0F : byte >> 4;
}

ST_ELEMENT float st_at_q4_k(const st_block_q4_k *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)st_scale_6(block->scales, i / 32) * (float)st_four_bits(block->qs, i) -
           ST_ELEMENT_HALF(block->min_d) * (float)st_min_6(block->scales, i / 32);
}

ST_ELEMENT float st_at_q5_k(const st_block_q5_k *block, int i)
{
    int q = st_four_bits(block->qs, i) | (block->qh[i % 32] >> i / 32 & 1) << 4;
    return ST_ELEMENT_HALF(block->d) * (float)st_scale_6(block->scales, i / 32) * (float)q -
           ST_ELEMENT_HALF(block->min_d) * (float)st_min_6(block->scales, i / 32);
}

ST_ELEMENT float st_at_q6_k(const st_block_q6_k *block, int i)
{
    int low_byte = block->ql[64 * (i / 128) + i % 64];
    int low = i % 128 < 64 ? low_byte & 0x0F : low_byte >> 4;
    int q = (low | st_two_bits(block->qh, i) << 4) - 32;
    return ST_ELEMENT_HALF(block->d) * (float)block->scales[i / 16] * (float)q;
}

/* ---- one scale for one- or two-bit values ------------------------------------------------------------------------ */

ST_ELEMENT float st_at_q1_0(const st_block_q1_0 *block, int i)
{
    float d = ST_ELEMENT_HALF(block->d);
    return block->qs[i / 8] >> i % 8 & 1 ? d : -d;
}

ST_ELEMENT float st_at_q2_0(const st_block_q2_0 *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)((block->qs[i / 4] >> 2 * (i % 4) & 3) - 1);
}

/* ---- ternary blocks ---------------------------------------------------------------------------------------------- */

ST_ELEMENT float st_at_tq2_0(const st_block_tq2_0 *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)(st_two_bits(block->qs, i) - 1);
}

/* Digit `place` of a byte that holds a base-3 fraction: multiply by 3^place modulo 256, then by 3; the digit is the
 * carry. */
ST_ELEMENT int st_ternary_digit(uint8_t byte, int place)
{
    int power = place == 0 ? 1 : place == 1 ? 3 : place == 2 ? 9 : place == 3 ? 27 : 81;
    return (uint8_t)(byte * power) * 3 >> 8;
}

ST_ELEMENT float st_at_tq1_0(const st_block_tq1_0 *block, int i)
{
    int digit = i < 160   ? st_ternary_digit(block->qs[i % 32], i / 32)
                : i < 240 ? st_ternary_digit(block->qs[32 + i % 16], (i - 160) / 16)
                          : st_ternary_digit(block->qh[i % 4], (i - 240) / 4);
    return ST_ELEMENT_HALF(block->d) * (float)(digit - 1);
}

/* ---- codebook blocks (tables.h) ---------------------------------------------------------------------------------- */

ST_ELEMENT uint32_t st_word_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Value i of a grid entry. */
ST_ELEMENT float st_grid_value(uint64_t entry, int i)
{
    return (float)(int8_t)(entry >> 8 * i & 0xFF);
}

ST_ELEMENT float st_with_sign(float value, unsigned signs, int i)
{
    return signs >> i & 1 ? -value : value;
}

ST_ELEMENT int st_half_byte(const uint8_t *bytes, int i)
{
    return bytes[i / 2] >> 4 * (i % 2) & 0x0F;
}

ST_ELEMENT float st_at_iq2_xxs(const st_block_iq2_xxs *block, int i)
{
    const uint8_t *part = block->qs + 8 * (i / 32);
    uint32_t word = st_word_at(part + 4);
    int group = i % 32 / 8;
    float scale = ST_ELEMENT_HALF(block->d) * (0.5f + (float)(word >> 28)) * 0.25f;
    return st_with_sign(scale * st_grid_value(st_iq2_xxs_grid[part[group]], i % 8),
                        st_iq_signs[word >> 7 * group & 0x7F], i % 8);
}

ST_ELEMENT float st_at_iq2_xs(const st_block_iq2_xs *block, int i)
{
    unsigned q = block->qs[i / 8];
    float scale = ST_ELEMENT_HALF(block->d) * (0.5f + (float)st_half_byte(block->scales, i / 16)) * 0.25f;
    return st_with_sign(scale * st_grid_value(st_iq2_xs_grid[q & 511], i % 8), st_iq_signs[q >> 9], i % 8);
}

ST_ELEMENT float st_at_iq2_s(const st_block_iq2_s *block, int i)
{
    int group = i / 8;
    unsigned index = block->qs[group] | (block->qh[group / 4] >> 2 * (group % 4) & 3u) << 8;
    float scale = ST_ELEMENT_HALF(block->d) * (0.5f + (float)st_half_byte(block->scales, i / 16)) * 0.25f;
    return st_with_sign(scale * st_grid_value(st_iq2_s_grid[index], i % 8), block->signs[group], i % 8);
}

ST_ELEMENT float st_at_iq3_xxs(const st_block_iq3_xxs *block, int i)
{
    uint32_t word = st_word_at(block->signs + 4 * (i / 32));
    float scale = ST_ELEMENT_HALF(block->d) * (0.5f + (float)(word >> 28)) * 0.5f;
    return st_with_sign(scale * st_grid_value(st_iq3_xxs_grid[block->qs[i / 4]], i % 4),
                        st_iq_signs[word >> 7 * (i % 32 / 8) & 0x7F], i % 8);
}

ST_ELEMENT float st_at_iq3_s(const st_block_iq3_s *block, int i)
{
    int group = i / 4;
    unsigned index = block->qs[group] | (block->qh[group / 8] >> group % 8 & 1u) << 8;
    float scale = ST_ELEMENT_HALF(block->d) * (float)(1 + 2 * st_half_byte(block->scales, i / 32));
    return st_with_sign(scale * st_grid_value(st_iq3_s_grid[index], i % 4), block->signs[i / 8], i % 8);
}

#define ST_IQ1_SHIFT 0.125f

ST_ELEMENT float st_at_iq1_s(const st_block_iq1_s *block, int i)
{
    unsigned high = block->qh[i / 32];
    unsigned index = block->qs[i / 8] | (high >> 3 * (i % 32 / 8) & 7) << 8;
    float scale = ST_ELEMENT_HALF(block->d) * (float)(2 * (high >> 12 & 7) + 1);
    return scale * (st_grid_value(st_iq1_grid[index], i % 8) + (high & 0x8000 ? -ST_IQ1_SHIFT : ST_IQ1_SHIFT));
}

ST_ELEMENT float st_at_iq1_m(const st_block_iq1_m *block, int i)
{
    unsigned d = 0;
    for (int k = 0; k < 4; k++) d |= (block->scales[k] >> 12 & 0xFu) << 4 * k;
    unsigned high = block->qh[i / 16] >> 4 * (i / 8 % 2) & 0xFu;
    unsigned index = block->qs[i / 8] | (high & 7) << 8;
    unsigned scale = block->scales[i / 64] >> 3 * (i / 16 % 4) & 7u;
    return ST_ELEMENT_HALF((uint16_t)d) * (float)(2 * scale + 1) *
           (st_grid_value(st_iq1_grid[index], i % 8) + (high & 8 ? -ST_IQ1_SHIFT : ST_IQ1_SHIFT));
}

ST_ELEMENT float st_at_iq4_nl(const st_block_iq4_nl *block, int i)
{
    return ST_ELEMENT_HALF(block->d) * (float)st_iq4_values[st_nibble_of_32(block->qs, i)];
}

ST_ELEMENT float st_at_iq4_xs(const st_block_iq4_xs *block, int i)
{
    int part = i / 32;
    int scale = (st_half_byte(block->scales_l, part) | (block->scales_h >> 2 * part & 3) << 4) - 32;
    return ST_ELEMENT_HALF(block->d) * (float)scale *
           (float)st_iq4_values[st_nibble_of_32(block->qs + 16 * part, i % 32)];
}

/* ---- 4-bit float blocks ------------------------------------------------------------------------------------------ */

/* Half of 2 to the power e - 127, because st_fp4_values is doubled; the two smallest are subnormal. */
ST_ELEMENT float st_half_of_e8m0(uint8_t e)
{
    return ST_ELEMENT_FLOAT(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

ST_ELEMENT float st_at_mxfp4(const st_block_mxfp4 *block, int i)
{
    return st_half_of_e8m0(block->e) * (float)st_fp4_values[st_nibble_of_32(block->qs, i)];
}

/* Half of an unsigned E4M3; its NaN counts as zero and the top bit is ignored. */
ST_ELEMENT float st_half_of_ue4m3(uint8_t byte)
{
    if (byte == 0x7F) return 0.0f;
    int exponent = byte >> 3 & 0xF, fraction = byte & 7;
    if (exponent == 0) return (float)fraction / 1024.0f;
    return (float)(8 + fraction) * (float)(1 << exponent) / 2048.0f;
}

ST_ELEMENT float st_at_nvfp4(const st_block_nvfp4 *block, int i)
{
    int part = i / 16, within = i % 16, byte = block->qs[8 * part + within % 8];
    return st_half_of_ue4m3(block->d[part]) * (float)st_fp4_values[within < 8 ? byte & 0x0F : byte >> 4];
}

#endif
