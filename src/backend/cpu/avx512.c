/* AVX-512 with VNNI: eight sums of four products in one instruction, sixteen rows of a strip in one vector. */
#include "backend/cpu/isa.h"

#include <immintrin.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/tables.h"

#define DOT_UNSIGNED(u, s) _mm256_dpbusd_epi32(_mm256_setzero_si256(), u, s)
#define DOT_SIGNED(a, b) _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(a), _mm256_sign_epi8(b, a))

/* Registers of a block of sums in row_gemm: 6 × 2 of 32. */
enum { GEMM_ROWS = 6, GEMM_COLUMNS = 2 };
#define VEC_BYTES 64

#include "backend/cpu/dot.inc"
#include "backend/cpu/strip.inc"
#include "backend/cpu/rows.inc"
#include "backend/cpu/dot512.inc"

/* Words first … last of a block of one token, against the same words of sixteen rows. */
static inline __m512i dot_words(__m512i sums, const __m512i *weights, const int8_t *q, int first, int last)
{
    for (int i = first; i < last; i++) {
        int32_t word;
        memcpy(&word, q + 4 * i, sizeof word);
        sums = _mm512_dpbusd_epi32(sums, weights[i], _mm512_set1_epi32(word));
    }
    return sums;
}

/* The kinds of strip are compile-time constants here, so that each gets a loop of its own. */
static inline __attribute__((always_inline)) void tile_kernel(const st_strip *strip, const st_act_row *tile, size_t count,
                                                              int32_t zero, int group, bool has_offset,
                                                              __m512 total[ST_ACT_TILE])
{
    for (int t = 0; t < ST_ACT_TILE; t++) total[t] = _mm512_setzero_ps();
    for (size_t b = 0; b < count / ST_ACT_BLOCK; b++) {
        __m512i weights[8];
        for (int i = 0; i < 8; i++) weights[i] = _mm512_loadu_si512(strip->bytes + (b * 8 + (size_t)i) * 64);
        const int8_t *q = tile->q + b * ST_ACT_TILE * ST_ACT_BLOCK;
        const float *scale = tile->scale + b * ST_ACT_TILE, *sum = tile->sum + b * ST_ACT_TILE;
        const int32_t *totals = tile->total + b * ST_ACT_TILE * 2;
        __m512 s0 = _mm512_loadu_ps(strip->scale + b * (group == 16 ? 2 : 1) * ST_STRIP_ROWS), s1 = s0, offset = s0;
        if (group == 16) s1 = _mm512_loadu_ps(strip->scale + (2 * b + 1) * ST_STRIP_ROWS);
        if (has_offset) offset = _mm512_loadu_ps(strip->offset + b * ST_STRIP_ROWS);
#pragma GCC unroll 8
        for (int t = 0; t < ST_ACT_TILE; t++) {
            const int8_t *x = q + t * ST_ACT_BLOCK;
            __m512 part;
            if (group == 16) {
                __m512i a = dot_words(_mm512_set1_epi32(-zero * totals[2 * t]), weights, x, 0, 4);
                __m512i c = dot_words(_mm512_set1_epi32(-zero * totals[2 * t + 1]), weights, x, 4, 8);
                part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c), s1, _mm512_mul_ps(_mm512_cvtepi32_ps(a), s0));
                total[t] = _mm512_fmadd_ps(part, _mm512_set1_ps(scale[t]), total[t]);
            } else {
                __m512i start = zero ? _mm512_set1_epi32(-zero * (totals[2 * t] + totals[2 * t + 1])) : _mm512_setzero_si512();
                part = _mm512_cvtepi32_ps(dot_words(start, weights, x, 0, 8));
                total[t] = _mm512_fmadd_ps(part, _mm512_mul_ps(s0, _mm512_set1_ps(scale[t])), total[t]);
            }
            if (has_offset) total[t] = _mm512_fmadd_ps(offset, _mm512_set1_ps(sum[t]), total[t]);
        }
    }
}

static void strip_times_tile(const st_isa_type *type, const st_strip *strip, const st_act_row *tile, size_t count,
                             size_t tokens, size_t lanes, float *out, size_t out_stride)
{
    __m512 total[ST_ACT_TILE];
    if (type->group == 16) tile_kernel(strip, tile, count, type->zero, 16, false, total);
    else if (type->has_offset) tile_kernel(strip, tile, count, 0, 32, true, total);
    else tile_kernel(strip, tile, count, type->zero, 32, false, total);
    __mmask16 mask = (__mmask16)((1u << lanes) - 1);
    for (size_t t = 0; t < tokens; t++) _mm512_mask_storeu_ps(out + t * out_stride, mask, total[t]);
}

enum { WORK_SUMS = 12 };

static uint64_t int8_work(uint64_t rounds)
{
    __m512i sums[WORK_SUMS], u = _mm512_set1_epi8(3), s = _mm512_set1_epi8(5);
    for (int i = 0; i < WORK_SUMS; i++) sums[i] = _mm512_set1_epi32(i);
    for (uint64_t r = 0; r < rounds; r++) {
        for (int i = 0; i < WORK_SUMS; i++) sums[i] = _mm512_dpbusd_epi32(sums[i], u, s);
        __asm volatile("" : "+v"(u)); /* every round is computed */
    }
    for (int i = 1; i < WORK_SUMS; i++) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
    return (uint64_t)_mm512_reduce_add_epi32(sums[0]);
}

static const st_isa isa = {
    .name = "avx512",
    .types =
        {
            [ST_TYPE_Q4_0] = {dots512_q4_0, unpack_q4_0, 32, 8, false},
            [ST_TYPE_Q4_1] = {dots512_q4_1, unpack_q4_1, 32, 0, true},
            [ST_TYPE_Q8_0] = {dots512_q8_0, unpack_q8_0, 32, 128, false},
            [ST_TYPE_Q4_K] = {dots512_q4_k, unpack_q4_k, 32, 0, true},
            [ST_TYPE_Q5_K] = {dots512_q5_k, unpack_q5_k, 32, 0, true},
            [ST_TYPE_Q6_K] = {dots512_q6_k, unpack_q6_k, 16, 32, false},
            [ST_TYPE_IQ4_NL] = {dots_iq4_nl, unpack_iq4_nl, 32, 128, false},
            [ST_TYPE_IQ4_XS] = {dots_iq4_xs, unpack_iq4_xs, 32, 128, false},
            [ST_TYPE_MXFP4] = {dots_mxfp4, unpack_mxfp4, 32, 12, false},
        },
    .strip_times_tile = strip_times_tile,
    .int8_work = int8_work,
    .int8_ops_per_round = WORK_SUMS * 64 * 2,
    ISA_ROWS};

const st_isa *st_isa_avx512(void)
{
    bool here = st_isa_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vnni");
    return here ? &isa : NULL;
}
