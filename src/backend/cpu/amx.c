/* AMX: GEMM of float matrices, with each float split into the sum of two bfloat16 numbers: the nearest bfloat16
 * (high), and the nearest to the remainder (low). Of the four products only low × low, below 2⁻¹⁶ of the result, is
 * left out. */
#include "backend/cpu/isa.h"

#include <immintrin.h>

#include "backend/cpu/amx.inc"

#define INLINE static inline __attribute__((always_inline))

enum {
    VEC = 16,
    TILE = ST_SPLIT_TILE, /* rows of a tile, and its columns of 32-bit words */
    CHUNK = ST_SPLIT_CHUNK,
};

/* --- splitting ---------------------------------------------------------------------------------------------------- */

INLINE __m512 float_of(__m256i bf16)
{
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16);
}

/* Converts both vectors to bfloat16; the elements of `first` are in the low half. */
INLINE __m512i split_two(__m512 first, __m512 second, __m512i *low)
{
    __m512i high = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    __m512 first_rest = _mm512_sub_ps(first, float_of(_mm512_castsi512_si256(high)));
    __m512 second_rest = _mm512_sub_ps(second, float_of(_mm512_extracti64x4_epi64(high, 1)));
    *low = (__m512i)_mm512_cvtne2ps_pbh(second_rest, first_rest);
    return high;
}

static void split_row(float *row, size_t count)
{
    for (size_t i = 0; i < count; i += CHUNK) {
        __m512i low, high = split_two(_mm512_loadu_ps(row + i), _mm512_loadu_ps(row + i + VEC), &low);
        _mm512_storeu_si512(row + i, high);
        _mm512_storeu_si512(row + i + VEC, low);
    }
}

static void split_two_rows(float *first, float *second, size_t count)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (size_t i = 0; i < count; i += VEC) {
        __m512i low, high = split_two(_mm512_loadu_ps(first + i), _mm512_loadu_ps(second + i), &low);
        _mm512_storeu_si512(first + i, _mm512_permutexvar_epi16(order, high));
        _mm512_storeu_si512(second + i, _mm512_permutexvar_epi16(order, low));
    }
}

/* --- GEMM --------------------------------------------------------------------------------------------------------- */

/* Computes up to 2 × 2 tiles of c. Tiles 0 to 3 are the accumulators, 4 and 5 hold a, 6 and 7 hold b. The flags are
 * compile-time constants at every inlined call. */
INLINE void load_left(const float *a, size_t stride, bool second_row)
{
    _tile_loadd(4, a, stride * sizeof *a);
    if (second_row) _tile_loadd(5, a + TILE * stride, stride * sizeof *a);
}

INLINE void load_right(const float *b, size_t stride, bool second_column)
{
    _tile_loadd(6, b, stride * sizeof *b);
    if (second_column) _tile_loadd(7, b + TILE, stride * sizeof *b);
}

INLINE void add_products(bool second_row, bool second_column)
{
    _tile_dpbf16ps(0, 4, 6);
    if (second_column) _tile_dpbf16ps(1, 4, 7);
    if (second_row) _tile_dpbf16ps(2, 5, 6);
    if (second_row && second_column) _tile_dpbf16ps(3, 5, 7);
}

INLINE void multiply_block(const st_split *a, const st_split *b, size_t row, size_t column, float *c, size_t ldc,
                           bool second_row, bool second_column, size_t chunks, bool add)
{
    size_t c_row = ldc * sizeof *c, below = TILE * ldc;
    if (add) {
        _tile_loadd(0, c, c_row);
        if (second_column) _tile_loadd(1, c + TILE, c_row);
        if (second_row) _tile_loadd(2, c + below, c_row);
        if (second_row && second_column) _tile_loadd(3, c + below + TILE, c_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t i = 0, left = row * a->stride, right = column; i < chunks; i++, left += a->step, right += b->step) {
        load_left(a->low + left, a->stride, second_row);
        load_right(b->high + right, b->stride, second_column);
        add_products(second_row, second_column);
        load_left(a->high + left, a->stride, second_row);
        add_products(second_row, second_column);
        if (!b->low) continue;
        load_right(b->low + right, b->stride, second_column);
        add_products(second_row, second_column);
    }
    _tile_stored(0, c, c_row);
    if (second_column) _tile_stored(1, c + TILE, c_row);
    if (second_row) _tile_stored(2, c + below, c_row);
    if (second_row && second_column) _tile_stored(3, c + below + TILE, c_row);
}

INLINE void multiply_rows(const st_split *a, const st_split *b, size_t row, float *c, size_t ldc, bool second_row, size_t n,
                          size_t chunks, bool add)
{
    size_t j = 0;
    for (; j + 2 * TILE <= n; j += 2 * TILE) multiply_block(a, b, row, j, c + j, ldc, second_row, true, chunks, add);
    if (j < n) multiply_block(a, b, row, j, c + j, ldc, second_row, false, chunks, add);
}

static void gemm(const st_split *a, const st_split *b, float *c, size_t ldc, size_t m, size_t n, size_t chunks, bool add)
{
    tile_config config = whole_tiles();
    load_tiles(&config);
    size_t i = 0;
    for (; i + 2 * TILE <= m; i += 2 * TILE) multiply_rows(a, b, i, c + i * ldc, ldc, true, n, chunks, add);
    if (i < m) multiply_rows(a, b, i, c + i * ldc, ldc, false, n, chunks, add);
    _tile_release();
}

const st_isa_split *st_isa_amx(void)
{
    static const st_isa_split split = {split_row, split_two_rows, gemm};
    return tiles_supported() ? &split : NULL;
}
