/* AVX2 with FMA and F16C: the minimum that the fast path requires. */
#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/tables.h"

/* Accumulators of row_gemm: 4 × 2 of 16 registers. */
enum { GEMM_ROWS = 4, GEMM_COLUMNS = 2 };
/* Queries multiplied with a KV cache row at once; each has four accumulators. */
enum { FEW_QUERIES = 2 };
#define VEC_BYTES 32

#include "backend/cpu/blocks.inc"
#include "backend/cpu/grid.inc"
#include "backend/cpu/dot256.inc"
#include "backend/cpu/strip.inc"
#define DOT_BYTES dot_unsigned
#define DOTS_OF_ROWS DOTS_BY_ROW
#include "backend/cpu/low.inc"
#include "backend/cpu/rows.inc"

enum { HALF_ROWS = 8, HALF_TILE = 4 };

/* Dot products of some tokens with eight rows of a strip, for words first … last − 1 of a block. With minus_128
 * (types with bytes above 127) the bytes become signed, less 128, so that no pair of products overflows 16 bits. */
INLINE void dot_words(__m256i sums[], const uint8_t *bytes, const int8_t *q, int tokens, int first, int last, bool minus_128)
{
    for (int i = first; i < last; i++) {
        __m256i w = load_bytes(bytes + (size_t)i * ST_STRIP_ROWS * 4), magnitude = w;
        if (minus_128) {
            w = plus_128(w);
            magnitude = _mm256_abs_epi8(w);
        }
        for (int t = 0; t < tokens; t++) {
            int32_t word;
            memcpy(&word, q + t * ST_ACT_BLOCK + 4 * i, sizeof word);
            __m256i x = _mm256_set1_epi32(word);
            if (minus_128) x = _mm256_sign_epi8(x, w);
            sums[t] = _mm256_add_epi32(sums[t], pairs_to_sums(_mm256_maddubs_epi16(magnitude, x)));
        }
    }
}

/* Adds the products of eight rows of strip block `b` with the activation blocks from `at` on, one for each token. */
INLINE void add_block(const st_strip *strip, size_t b, size_t row, const st_act_row *acts, size_t at, int tokens, int32_t zero,
                      int group, bool has_offset, __m256 total[])
{
    bool minus_128 = zero == 128;
    if (minus_128) zero = 0;
    const uint8_t *bytes = strip->bytes + b * ST_ACT_BLOCK * ST_STRIP_ROWS + row * 4;
    for (int g = 0; g < 32 / group; g++) {
        __m256i sums[HALF_TILE];
        for (int t = 0; t < tokens; t++) sums[t] = _mm256_set1_epi32(start_of(acts->total + 2 * (at + (size_t)t), zero, group, g));
        dot_words(sums, bytes, acts->q + at * ST_ACT_BLOCK, tokens, g * group / 4, (g + 1) * group / 4, minus_128);
        __m256 scale = _mm256_loadu_ps(strip->scale + (b * (32 / group) + (size_t)g) * ST_STRIP_ROWS + row);
        for (int t = 0; t < tokens; t++)
            total[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[t]),
                                       _mm256_mul_ps(scale, _mm256_set1_ps(acts->scale[at + (size_t)t])), total[t]);
        if (!has_offset) continue;
        __m256 offset = _mm256_loadu_ps(strip->offset + (b * (32 / group) + (size_t)g) * ST_STRIP_ROWS + row);
        for (int t = 0; t < tokens; t++)
            total[t] = _mm256_fmadd_ps(offset, _mm256_set1_ps(sum_of(acts, at + (size_t)t, group, g)), total[t]);
    }
}

/* Adds the products of blocks first … last − 1 with the residuals of one token. */
INLINE void add_residuals(const st_strip *strip, size_t first, size_t last, size_t row, const st_act_tile *tile, size_t token,
                          int32_t zero, int group, bool has_offset, __m256 total[])
{
    const st_refined *refined = &tile->refined[token];
    for (size_t i = 0; i < refined->count; i++)
        if (in_range(strip, refined, i, first, last))
            add_block(strip, refined->blocks[i] - strip->first, row, &tile->rest, token * ST_REFINED + i, 1, zero, group,
                      has_offset, total);
}

/* Adds the products of eight rows of the strip with tokens token … end − 1, at most four. The sums of absent tokens are
 * undefined. */
INLINE void half_kernel(const st_strip *strip, const st_act_tile *tile, size_t row, size_t token, size_t end, int32_t zero,
                        int group, bool has_offset, __m256 total[HALF_TILE])
{
    for (size_t first = 0, last; first < strip->blocks; first = last) {
        last = range_end(strip, first);
        for (size_t b = first; b < last; b++)
            add_block(strip, b, row, &tile->acts, (strip->first + b) * ST_ACT_TILE + token, HALF_TILE, zero, group, has_offset,
                      total);
        for (size_t t = 0; tile->refined && t < HALF_TILE && token + t < end; t++)
            add_residuals(strip, first, last, row, tile, token + t, zero, group, has_offset, total + t);
    }
}

static void strip_times_tile(const st_isa_type *type, const st_strip *strip, const st_act_tile *tile, size_t tokens,
                             const st_tile_sums *sums)
{
    for (size_t token = 0; token < tokens; token += HALF_TILE)
        for (size_t row = 0; row < sums->lanes; row += HALF_ROWS) {
            const float *from = sums->from ? sums->from + token * ST_STRIP_ROWS + row : NULL;
            __m256 total[HALF_TILE];
            for (int t = 0; t < HALF_TILE; t++)
                total[t] = from ? _mm256_loadu_ps(from + t * ST_STRIP_ROWS) : _mm256_setzero_ps();
            if (type->group == 16 && type->has_offset) half_kernel(strip, tile, row, token, tokens, 0, 16, true, total);
            else if (type->group == 16) half_kernel(strip, tile, row, token, tokens, type->zero, 16, false, total);
            else if (type->has_offset) half_kernel(strip, tile, row, token, tokens, 0, 32, true, total);
            else if (type->zero == 128) half_kernel(strip, tile, row, token, tokens, 128, 32, false, total);
            else half_kernel(strip, tile, row, token, tokens, type->zero, 32, false, total);
            for (size_t t = 0; t < HALF_TILE && token + t < tokens; t++) {
                float values[HALF_ROWS];
                _mm256_storeu_ps(values, total[t]);
                size_t width = sums->lanes - row < HALF_ROWS ? sums->lanes - row : HALF_ROWS;
                memcpy(sums->to + (token + t) * sums->stride + row, values, width * sizeof *values);
            }
        }
}

enum { WORK_SUMS = 8 };

static uint64_t int8_work(uint64_t rounds)
{
    __m256i sums[WORK_SUMS], u = _mm256_set1_epi8(3), s = _mm256_set1_epi8(5);
    for (int i = 0; i < WORK_SUMS; i++) sums[i] = _mm256_set1_epi32(i);
    for (uint64_t r = 0; r < rounds; r++) {
        for (int i = 0; i < WORK_SUMS; i++) {
            sums[i] = _mm256_add_epi32(sums[i], pairs_to_sums(_mm256_maddubs_epi16(u, s)));
            __asm volatile("" : "+x"(u)); /* the compiler must compute every product */
        }
    }
    for (int i = 1; i < WORK_SUMS; i++) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
    return (uint64_t)(uint32_t)sum_words(sums[0]);
}

static const st_isa isa = {
    .name = "avx2",
    .types =
        {
            [ST_TYPE_Q4_0] = {dots_q4_0, unpack_q4_0, 32, 8, false},
            [ST_TYPE_Q4_1] = {dots_q4_1, unpack_q4_1, 32, 0, true},
            [ST_TYPE_Q5_0] = {dots_q5_0, unpack_q5_0, 32, 16, false},
            [ST_TYPE_Q5_1] = {dots_q5_1, unpack_q5_1, 32, 0, true},
            [ST_TYPE_Q8_0] = {dots_q8_0, unpack_q8_0, 32, 128, false},
            [ST_TYPE_Q2_K] = {dots_q2_k, unpack_q2_k, 16, 0, true},
            [ST_TYPE_Q3_K] = {dots_q3_k, unpack_q3_k, 16, 4, false},
            [ST_TYPE_Q4_K] = {dots_q4_k, unpack_q4_k, 32, 0, true},
            [ST_TYPE_Q5_K] = {dots_q5_k, unpack_q5_k, 32, 0, true},
            [ST_TYPE_Q6_K] = {dots_q6_k, unpack_q6_k, 16, 32, false},
            [ST_TYPE_IQ2_XXS] = {dots_iq2_xxs, unpack_iq2_xxs, 16, GRID_ZERO, false},
            [ST_TYPE_IQ2_XS] = {dots_iq2_xs, unpack_iq2_xs, 16, GRID_ZERO, false},
            [ST_TYPE_IQ2_S] = {dots_iq2_s, unpack_iq2_s, 16, GRID_ZERO, false},
            [ST_TYPE_IQ3_XXS] = {dots_iq3_xxs, unpack_iq3_xxs, 16, GRID_ZERO, false},
            [ST_TYPE_IQ3_S] = {dots_iq3_s, unpack_iq3_s, 16, GRID_ZERO, false},
            [ST_TYPE_IQ1_S] = {dots_iq1_s, unpack_iq1_s, 16, GRID_ZERO, false},
            [ST_TYPE_IQ1_M] = {dots_iq1_m, unpack_iq1_m, 16, GRID_ZERO, false},
            [ST_TYPE_IQ4_NL] = {dots_iq4_nl, unpack_iq4_nl, 32, 128, false},
            [ST_TYPE_IQ4_XS] = {dots_iq4_xs, unpack_iq4_xs, 32, 128, false},
            [ST_TYPE_MXFP4] = {dots_mxfp4, unpack_mxfp4, 32, 12, false},
            [ST_TYPE_NVFP4] = {dots_nvfp4, unpack_nvfp4, 16, 12, false},
            [ST_TYPE_TQ1_0] = {dots_tq1_0, unpack_tq1_0, 32, 1, false},
            [ST_TYPE_TQ2_0] = {dots_tq2_0, unpack_tq2_0, 32, 1, false},
            [ST_TYPE_Q1_0] = {dots_q1_0, unpack_q1_0, 32, 1, false},
            [ST_TYPE_Q2_0] = {dots_q2_0, unpack_q2_0, 32, 1, false},
        },
    .strip_times_tile = strip_times_tile,
    .int8_work = int8_work,
    .int8_ops_per_round = WORK_SUMS * 32 * 2,
    ISA_ROWS};

/* __builtin_cpu_supports of clang does not know F16C. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const st_isa *st_isa_avx2(void)
{
    bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return supported ? &isa : NULL;
}
