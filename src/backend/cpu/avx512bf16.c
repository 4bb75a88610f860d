/* AVX-512 with BF16: products of bfloat16 pairs, summed as floats, at twice the rate of float products. */
#include "backend/cpu/isa.h"

#include <immintrin.h>

enum { VEC = 16, ROWS = 6, COLUMNS = 4 }; /* 24 sums of 32 registers */

static inline __m512i pair_up(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

static void pack(const float *in, uint32_t *out, size_t pairs)
{
    size_t i = 0;
    for (; i + VEC <= pairs; i += VEC)
        _mm512_storeu_si512(out + i, pair_up(_mm512_loadu_ps(in + 2 * i), _mm512_loadu_ps(in + 2 * i + VEC)));
    if (i == pairs) return;
    size_t left = 2 * (pairs - i);
    __mmask16 low = (__mmask16)(left >= VEC ? 0xFFFFu : (1u << left) - 1);
    __mmask16 high = (__mmask16)(left > VEC ? (1u << (left - VEC)) - 1 : 0);
    __m512i last = pair_up(_mm512_maskz_loadu_ps(low, in + 2 * i), _mm512_maskz_loadu_ps(high, in + 2 * i + VEC));
    _mm512_mask_storeu_epi32(out + i, (__mmask16)((1u << (pairs - i)) - 1), last);
}

static void weave(const float *first, const float *second, uint32_t *out, size_t count)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (size_t i = 0; i < count; i += VEC) {
        __mmask16 some = (__mmask16)(count - i >= VEC ? 0xFFFFu : (1u << (count - i)) - 1);
        __m512i both = pair_up(_mm512_maskz_loadu_ps(some, first + i), _mm512_maskz_loadu_ps(some, second + i));
        _mm512_mask_storeu_epi32(out + i, some, _mm512_permutexvar_epi16(order, both));
    }
}

static inline __attribute__((always_inline)) void gemm_block(const uint32_t *a, size_t lda, const uint32_t *b,
                                                             size_t ldb, float *c, size_t ldc, int rows, int columns,
                                                             size_t pairs, bool add)
{
    __m512 total[ROWS][COLUMNS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++)
            total[i][j] = add ? _mm512_loadu_ps(c + (size_t)i * ldc + (size_t)j * VEC) : _mm512_setzero_ps();
    for (size_t p = 0; p < pairs; p++) {
        __m512bh right[COLUMNS];
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) right[j] = (__m512bh)_mm512_loadu_si512(b + p * ldb + (size_t)j * VEC);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m512bh left = (__m512bh)_mm512_set1_epi32((int)a[(size_t)i * lda + p]);
#pragma GCC unroll 4
            for (int j = 0; j < columns; j++) total[i][j] = _mm512_dpbf16_ps(total[i][j], left, right[j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) _mm512_storeu_ps(c + (size_t)i * ldc + (size_t)j * VEC, total[i][j]);
}

/* `rows` is a constant wherever this is inlined. */
static inline __attribute__((always_inline)) void gemm_rows(const uint32_t *a, size_t lda, const uint32_t *b,
                                                            size_t ldb, float *c, size_t ldc, int rows, size_t n,
                                                            size_t pairs, bool add)
{
    size_t j = 0;
    for (; j + COLUMNS * VEC <= n; j += COLUMNS * VEC)
        gemm_block(a, lda, b + j, ldb, c + j, ldc, rows, COLUMNS, pairs, add);
    for (; j < n; j += VEC) gemm_block(a, lda, b + j, ldb, c + j, ldc, rows, 1, pairs, add);
}

static void gemm(const uint32_t *a, size_t lda, const uint32_t *b, size_t ldb, float *c, size_t ldc, size_t m, size_t n,
                 size_t pairs, bool add)
{
    for (; m >= ROWS; m -= ROWS, a += ROWS * lda, c += ROWS * ldc)
        gemm_rows(a, lda, b, ldb, c, ldc, ROWS, n, pairs, add);
    for (; m >= 2; m -= 2, a += 2 * lda, c += 2 * ldc) gemm_rows(a, lda, b, ldb, c, ldc, 2, n, pairs, add);
    if (m) gemm_rows(a, lda, b, ldb, c, ldc, 1, n, pairs, add);
}

static const st_isa_pairs isa_pairs = {.pack = pack, .weave = weave, .gemm = gemm};

const st_isa_pairs *st_isa_avx512bf16(void)
{
    return __builtin_cpu_supports("avx512bf16") ? &isa_pairs : NULL;
}
