/* AVX-512 with VNNI: an instruction computes 16 sums of four products; a vector holds 16 rows of a strip. */
#include "backend/cpu/isa.h"

#include <immintrin.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/tables.h"

/* Accumulators of row_gemm: 6 × 2 of 32 registers. */
enum { GEMM_ROWS = 6, GEMM_COLUMNS = 2 };
/* Queries multiplied with a KV cache row at once; each has four accumulators. */
enum { FEW_QUERIES = 4 };
#define VEC_BYTES 64

#include "backend/cpu/blocks.inc"
#include "backend/cpu/grid.inc"
#include "backend/cpu/strip.inc"
#include "backend/cpu/rows.inc"
#include "backend/cpu/dot512.inc"
#include "backend/cpu/dot512_k.inc"
#define DOT_BYTES(u, s) _mm256_dpbusd_epi32(_mm256_setzero_si256(), u, s)
#define DOTS_OF_ROWS DOTS512_BY_ROW
#include "backend/cpu/low.inc"

enum { HALF_TILE = 4, VECTORS = ST_STRIP_ROWS / 16 };

/* Dot products of some tokens with all rows of a strip, for words first … last − 1 of a block. Each word of a token is
 * broadcast once for all vectors of rows. */
INLINE void dot_words(__m512i sums[][VECTORS], const uint8_t *bytes, const int8_t *q, int tokens, int first, int last)
{
    for (int i = first; i < last; i++) {
        __m512i weights[VECTORS];
        for (int v = 0; v < VECTORS; v++) weights[v] = _mm512_loadu_si512(bytes + (i * VECTORS + v) * 64);
        for (int t = 0; t < tokens; t++) {
            __m512i x = _mm512_set1_epi32((int)word_of(q + t * ST_ACT_BLOCK + 4 * i));
            for (int v = 0; v < VECTORS; v++) sums[t][v] = _mm512_dpbusd_epi32(sums[t][v], weights[v], x);
        }
    }
}

/* Adds the products of strip block `b` with the activation blocks from `at` on, one for each token. The number of
 * tokens and the parameters of the strip are compile-time constants at every inlined call, so each combination gets
 * its own loop. */
INLINE void add_block(const st_strip *strip, size_t b, const st_act_row *acts, size_t at, int tokens, int32_t zero, int group,
                      bool has_offset, __m512 total[][VECTORS])
{
    const uint8_t *bytes = strip->bytes + b * ST_ACT_BLOCK * ST_STRIP_ROWS;
    for (int g = 0; g < 32 / group; g++) {
        __m512i sums[HALF_TILE][VECTORS];
        for (int t = 0; t < tokens; t++) {
            __m512i start = _mm512_set1_epi32(start_of(acts->total + 2 * (at + (size_t)t), zero, group, g));
            for (int v = 0; v < VECTORS; v++) sums[t][v] = zero ? start : _mm512_setzero_si512();
        }
        dot_words(sums, bytes, acts->q + at * ST_ACT_BLOCK, tokens, g * group / 4, (g + 1) * group / 4);
        const float *scales = strip->scale + (b * (32 / group) + (size_t)g) * ST_STRIP_ROWS;
        for (int v = 0; v < VECTORS; v++) {
            __m512 scale = _mm512_loadu_ps(scales + 16 * v);
            for (int t = 0; t < tokens; t++)
                total[t][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t][v]),
                                              _mm512_mul_ps(scale, _mm512_set1_ps(acts->scale[at + (size_t)t])), total[t][v]);
        }
        const float *offsets = strip->offset + (b * (32 / group) + (size_t)g) * ST_STRIP_ROWS;
        for (int v = 0; has_offset && v < VECTORS; v++) {
            __m512 offset = _mm512_loadu_ps(offsets + 16 * v);
            for (int t = 0; t < tokens; t++)
                total[t][v] = _mm512_fmadd_ps(offset, _mm512_set1_ps(sum_of(acts, at + (size_t)t, group, g)), total[t][v]);
        }
    }
}

/* Adds the products of blocks first … last − 1 with the residuals of one token. */
INLINE void add_residuals(const st_strip *strip, size_t first, size_t last, const st_act_tile *tile, size_t token,
                          int32_t zero, int group, bool has_offset, __m512 total[][VECTORS])
{
    const st_refined *refined = &tile->refined[token];
    for (size_t i = 0; i < refined->count; i++)
        if (in_range(strip, refined, i, first, last))
            add_block(strip, refined->blocks[i] - strip->first, &tile->rest, token * ST_REFINED + i, 1, zero, group,
                      has_offset, total);
}

/* Adds the products of tokens token … end − 1, at most four. The sums of absent tokens are undefined. */
INLINE void tile_kernel(const st_strip *strip, const st_act_tile *tile, size_t token, size_t end, int32_t zero, int group,
                        bool has_offset, __m512 total[HALF_TILE][VECTORS])
{
    for (size_t first = 0, last; first < strip->blocks; first = last) {
        last = range_end(strip, first);
        for (size_t b = first; b < last; b++)
            add_block(strip, b, &tile->acts, (strip->first + b) * ST_ACT_TILE + token, HALF_TILE, zero, group, has_offset,
                      total);
        for (size_t t = 0; tile->refined && t < HALF_TILE && token + t < end; t++)
            add_residuals(strip, first, last, tile, token + t, zero, group, has_offset, total + t);
    }
}

static void strip_times_tile(const st_isa_type *type, const st_strip *strip, const st_act_tile *tile, size_t tokens,
                             const st_tile_sums *sums)
{
    for (size_t token = 0; token < tokens; token += HALF_TILE) {
        const float *from = sums->from ? sums->from + token * ST_STRIP_ROWS : NULL;
        __m512 total[HALF_TILE][VECTORS];
        for (int t = 0; t < HALF_TILE; t++)
            for (int v = 0; v < VECTORS; v++)
                total[t][v] = from ? _mm512_loadu_ps(from + t * ST_STRIP_ROWS + 16 * v) : _mm512_setzero_ps();
        if (type->group == 16 && type->has_offset) tile_kernel(strip, tile, token, tokens, 0, 16, true, total);
        else if (type->group == 16) tile_kernel(strip, tile, token, tokens, type->zero, 16, false, total);
        else if (type->has_offset) tile_kernel(strip, tile, token, tokens, 0, 32, true, total);
        else tile_kernel(strip, tile, token, tokens, type->zero, 32, false, total);
        for (size_t t = 0; t < HALF_TILE && token + t < tokens; t++)
            for (size_t v = 0; v < VECTORS && 16 * v < sums->lanes; v++) {
                size_t left = sums->lanes - 16 * v;
                _mm512_mask_storeu_ps(sums->to + (token + t) * sums->stride + 16 * v,
                                      (__mmask16)(left >= 16 ? 0xFFFFu : (1u << left) - 1), total[t][v]);
            }
    }
}

enum { WORK_SUMS = 12 };

static uint64_t int8_work(uint64_t rounds)
{
    __m512i sums[WORK_SUMS], u = _mm512_set1_epi8(3), s = _mm512_set1_epi8(5);
    for (int i = 0; i < WORK_SUMS; i++) sums[i] = _mm512_set1_epi32(i);
    for (uint64_t r = 0; r < rounds; r++) {
        for (int i = 0; i < WORK_SUMS; i++) sums[i] = _mm512_dpbusd_epi32(sums[i], u, s);
        __asm volatile("" : "+v"(u)); /* the compiler must compute every round */
    }
    for (int i = 1; i < WORK_SUMS; i++) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
    return (uint64_t)_mm512_reduce_add_epi32(sums[0]);
}

static const st_isa isa = {
    .name = "avx512",
    .split = st_isa_amx,
    .types =
        {
            [ST_TYPE_Q4_0] = {dots512_q4_0, unpack_q4_0, 32, 8, false},
            [ST_TYPE_Q4_1] = {dots512_q4_1, unpack_q4_1, 32, 0, true},
            [ST_TYPE_Q5_0] = {dots512_q5_0, unpack_q5_0, 32, 16, false},
            [ST_TYPE_Q5_1] = {dots512_q5_1, unpack_q5_1, 32, 0, true},
            [ST_TYPE_Q8_0] = {dots512_q8_0, unpack_q8_0, 32, 128, false},
            [ST_TYPE_Q2_K] = {dots512_q2_k, unpack_q2_k, 16, 0, true},
            [ST_TYPE_Q3_K] = {dots512_q3_k, unpack_q3_k, 16, 4, false},
            [ST_TYPE_Q4_K] = {dots512_q4_k, unpack_q4_k, 32, 0, true},
            [ST_TYPE_Q5_K] = {dots512_q5_k, unpack_q5_k, 32, 0, true},
            [ST_TYPE_Q6_K] = {dots512_q6_k, unpack_q6_k, 16, 32, false},
            [ST_TYPE_IQ2_XXS] = {dots512_iq2_xxs, unpack_iq2_xxs, 16, GRID_ZERO, false},
            [ST_TYPE_IQ2_XS] = {dots512_iq2_xs, unpack_iq2_xs, 16, GRID_ZERO, false},
            [ST_TYPE_IQ2_S] = {dots512_iq2_s, unpack_iq2_s, 16, GRID_ZERO, false},
            [ST_TYPE_IQ3_XXS] = {dots512_iq3_xxs, unpack_iq3_xxs, 16, GRID_ZERO, false},
            [ST_TYPE_IQ3_S] = {dots512_iq3_s, unpack_iq3_s, 16, GRID_ZERO, false},
            [ST_TYPE_IQ1_S] = {dots512_iq1_s, unpack_iq1_s, 16, GRID_ZERO, false},
            [ST_TYPE_IQ1_M] = {dots512_iq1_m, unpack_iq1_m, 16, GRID_ZERO, false},
            [ST_TYPE_IQ4_NL] = {dots512_iq4_nl, unpack_iq4_nl, 32, 128, false},
            [ST_TYPE_IQ4_XS] = {dots512_iq4_xs, unpack_iq4_xs, 32, 128, false},
            [ST_TYPE_MXFP4] = {dots512_mxfp4, unpack_mxfp4, 32, 12, false},
            [ST_TYPE_NVFP4] = {dots512_nvfp4, unpack_nvfp4, 16, 12, false},
            [ST_TYPE_TQ1_0] = {dots512_tq1_0, unpack_tq1_0, 32, 1, false},
            [ST_TYPE_TQ2_0] = {dots512_tq2_0, unpack_tq2_0, 32, 1, false},
            [ST_TYPE_Q1_0] = {dots512_q1_0, unpack_q1_0, 32, 1, false},
            [ST_TYPE_Q2_0] = {dots512_q2_0, unpack_q2_0, 32, 1, false},
        },
    .strip_times_tile = strip_times_tile,
    .int8_work = int8_work,
    .int8_ops_per_round = WORK_SUMS * 64 * 2,
    ISA_ROWS};

const st_isa *st_isa_avx512(void)
{
    bool supported = st_isa_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vnni");
    return supported ? &isa : NULL;
}
