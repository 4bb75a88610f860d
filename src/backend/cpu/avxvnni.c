/* AVX-VNNI: AVX2 with products of bytes that are summed in 32 bits by one instruction. CPUs without AVX-512 have it. */
#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"
#include "quant/tables.h"

#define LEVEL "avxvnni"
enum { SUMS_OF_16_BITS = 0 };

#include "backend/cpu/level256.inc"

INLINE __m256i add_dot(__m256i sum, __m256i u, __m256i s)
{
    return _mm256_dpbusd_avx_epi32(sum, u, s);
}

INLINE __m256i dots_interleaved(__m256i u, __m256i x, __m256i v, __m256i y)
{
    return add_neighbours(dot_unsigned(u, x), dot_unsigned(v, y));
}

static bool has_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

const st_isa *st_isa_avxvnni(void)
{
    return st_isa_avx2() && has_vnni() ? &isa : NULL;
}
