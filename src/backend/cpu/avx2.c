/* AVX2 with FMA and F16C: the minimum that the fast path requires. */
#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/tables.h"

#define LEVEL "avx2"
enum { SUMS_OF_16_BITS = 1 };

#include "backend/cpu/level256.inc"

INLINE __m256i pairs_to_sums(__m256i pairs)
{
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

INLINE __m256i add_dot(__m256i sum, __m256i u, __m256i s)
{
    return _mm256_add_epi32(sum, pairs_to_sums(_mm256_maddubs_epi16(u, s)));
}

/* Up to 63 × 127, four products fit into 16 bits. */
INLINE __m256i dots_interleaved(__m256i u, __m256i x, __m256i v, __m256i y)
{
    __m256i a = _mm256_maddubs_epi16(u, x), b = _mm256_maddubs_epi16(v, y);
    return pairs_to_sums(_mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)));
}

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
