/* The types whose bits are indices into the codebooks of tables.h. Bit-identical on every machine, as in dequant.c. */
#include "quant/dequant.h"

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/tables.h"

static uint32_t word_at(const uint8_t bytes[4])
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Value i of a grid entry. */
static float grid_value(uint64_t entry, int i)
{
    return (float)(int8_t)(entry >> 8 * i & 0xFF);
}

static float with_sign(float value, unsigned signs, int i)
{
    return signs >> i & 1 ? -value : value;
}

static int half_byte(const uint8_t *bytes, int i)
{
    return bytes[i / 2] >> 4 * (i % 2) & 0x0F;
}

static void block_iq2_xxs(const st_block_iq2_xxs *block, float *to)
{
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        const uint8_t *part = block->qs + 8 * (i / 32);
        uint32_t word = word_at(part + 4);
        int group = i % 32 / 8;
        float scale = st_half_to_float(block->d) * (0.5f + (float)(word >> 28)) * 0.25f;
        to[i] = with_sign(scale * grid_value(st_iq2_xxs_grid[part[group]], i % 8),
                          st_iq_signs[word >> 7 * group & 0x7F], i % 8);
    }
}
ST_DEQUANTISE_BLOCKS(iq2_xxs, ST_SUPERBLOCK)

static void block_iq2_xs(const st_block_iq2_xs *block, float *to)
{
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        unsigned q = block->qs[i / 8];
        float scale = st_half_to_float(block->d) * (0.5f + (float)half_byte(block->scales, i / 16)) * 0.25f;
        to[i] = with_sign(scale * grid_value(st_iq2_xs_grid[q & 511], i % 8), st_iq_signs[q >> 9], i % 8);
    }
}
ST_DEQUANTISE_BLOCKS(iq2_xs, ST_SUPERBLOCK)

static void block_iq2_s(const st_block_iq2_s *block, float *to)
{
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int group = i / 8;
        unsigned index = block->qs[group] | (block->qh[group / 4] >> 2 * (group % 4) & 3u) << 8;
        float scale = st_half_to_float(block->d) * (0.5f + (float)half_byte(block->scales, i / 16)) * 0.25f;
        to[i] = with_sign(scale * grid_value(st_iq2_s_grid[index], i % 8), block->signs[group], i % 8);
    }
}
ST_DEQUANTISE_BLOCKS(iq2_s, ST_SUPERBLOCK)

static void block_iq3_xxs(const st_block_iq3_xxs *block, float *to)
{
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        uint32_t word = word_at(block->signs + 4 * (i / 32));
        float scale = st_half_to_float(block->d) * (0.5f + (float)(word >> 28)) * 0.5f;
        to[i] = with_sign(scale * grid_value(st_iq3_xxs_grid[block->qs[i / 4]], i % 4),
                          st_iq_signs[word >> 7 * (i % 32 / 8) & 0x7F], i % 8);
    }
}
ST_DEQUANTISE_BLOCKS(iq3_xxs, ST_SUPERBLOCK)

static void block_iq3_s(const st_block_iq3_s *block, float *to)
{
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int group = i / 4;
        unsigned index = block->qs[group] | (block->qh[group / 8] >> group % 8 & 1u) << 8;
        float scale = st_half_to_float(block->d) * (float)(1 + 2 * half_byte(block->scales, i / 32));
        to[i] = with_sign(scale * grid_value(st_iq3_s_grid[index], i % 4), block->signs[i / 8], i % 8);
    }
}
ST_DEQUANTISE_BLOCKS(iq3_s, ST_SUPERBLOCK)

static const float iq1_shift = 0.125f;

static void block_iq1_s(const st_block_iq1_s *block, float *to)
{
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        unsigned high = block->qh[i / 32];
        unsigned index = block->qs[i / 8] | (high >> 3 * (i % 32 / 8) & 7) << 8;
        float scale = st_half_to_float(block->d) * (float)(2 * (high >> 12 & 7) + 1);
        float shift = high & 0x8000 ? -iq1_shift : iq1_shift;
        to[i] = scale * (grid_value(st_iq1_grid[index], i % 8) + shift);
    }
}
ST_DEQUANTISE_BLOCKS(iq1_s, ST_SUPERBLOCK)

static void block_iq1_m(const st_block_iq1_m *block, float *to)
{
    unsigned d = 0;
    for (int i = 0; i < 4; i++) d |= (block->scales[i] >> 12 & 0xFu) << 4 * i;
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        unsigned high = block->qh[i / 16] >> 4 * (i / 8 % 2) & 0xFu;
        unsigned index = block->qs[i / 8] | (high & 7) << 8;
        unsigned scale = block->scales[i / 64] >> 3 * (i / 16 % 4) & 7u;
        float shift = high & 8 ? -iq1_shift : iq1_shift;
        to[i] = st_half_to_float((uint16_t)d) * (float)(2 * scale + 1) *
                (grid_value(st_iq1_grid[index], i % 8) + shift);
    }
}
ST_DEQUANTISE_BLOCKS(iq1_m, ST_SUPERBLOCK)

static void block_iq4_nl(const st_block_iq4_nl *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_BLOCK; i++) to[i] = d * (float)st_iq4_values[st_nibble_of_32(block->qs, i)];
}
ST_DEQUANTISE_BLOCKS(iq4_nl, ST_BLOCK)

static void block_iq4_xs(const st_block_iq4_xs *block, float *to)
{
    float d = st_half_to_float(block->d);
    for (int i = 0; i < ST_SUPERBLOCK; i++) {
        int part = i / 32;
        int scale = (half_byte(block->scales_l, part) | (block->scales_h >> 2 * part & 3) << 4) - 32;
        to[i] = d * (float)scale * (float)st_iq4_values[st_nibble_of_32(block->qs + 16 * part, i % 32)];
    }
}
ST_DEQUANTISE_BLOCKS(iq4_xs, ST_SUPERBLOCK)

/* Half of 2 to the power e - 127; the two smallest are subnormal. The half undoes the doubling in st_fp4_values. */
static float half_of_e8m0(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void block_mxfp4(const st_block_mxfp4 *block, float *to)
{
    float d = half_of_e8m0(block->e);
    for (int i = 0; i < ST_BLOCK; i++) to[i] = d * (float)st_fp4_values[st_nibble_of_32(block->qs, i)];
}
ST_DEQUANTISE_BLOCKS(mxfp4, ST_BLOCK)

/* Half of an unsigned E4M3; its one NaN counts as zero and the top bit is ignored. */
static float half_of_ue4m3(uint8_t byte)
{
    if (byte == 0x7F) return 0.0f;
    int exponent = byte >> 3 & 0xF, fraction = byte & 7;
    if (exponent == 0) return (float)fraction / 1024.0f;
    return (float)(8 + fraction) * (float)(1 << exponent) / 2048.0f;
}

static void block_nvfp4(const st_block_nvfp4 *block, float *to)
{
    for (int i = 0; i < ST_NVFP4_BLOCK; i++) {
        int part = i / 16, within = i % 16;
        int byte = block->qs[8 * part + within % 8];
        int index = within < 8 ? byte & 0x0F : byte >> 4;
        to[i] = half_of_ue4m3(block->d[part]) * (float)st_fp4_values[index];
    }
}
ST_DEQUANTISE_BLOCKS(nvfp4, ST_NVFP4_BLOCK)
