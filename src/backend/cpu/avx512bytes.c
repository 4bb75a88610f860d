/* AVX-512 with VNNI: attention in bytes. Products of a group of queries with a tile stand in registers, and go to memory
 * between the steps, which stay in the nearest cache. */
#include "backend/cpu/isa.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

enum {
    VEC = 16,
    ROWS = 6,    /* of a block of products … */
    COLUMNS = 4, /* … by so many registers: 24 sums of 32 */
    KEYS = ST_BYTE_KEYS,
    GROUP = ST_BYTE_GROUP,
    LARGEST = 127,    /* of a byte */
    VECTORS_MAX = ST_BYTE_KEY_MAX / VEC,
    STEPS = 64, /* weights are 2^(−n / STEPS) */
    WORD = 4,
};

#define LOWEST (-1e30f) /* below any score */
#define INLINE static inline __attribute__((always_inline))

/* What a group leaves between the steps. */
typedef struct group_state {
    _Alignas(64) float scores[GROUP][KEYS];
    _Alignas(64) float tops[GROUP][VEC]; /* the largest scores, by lanes */
    _Alignas(64) uint8_t weights[GROUP][KEYS];
    _Alignas(64) float shift[VEC], share[VEC], shrink[VEC]; /* a query each */
} group_state;

/* Sums of a product. Kept as __m512i, whose elements are of 64 bits, gcc 12 would store them in every turn of a loop. */
typedef int32_t words16 __attribute__((vector_size(64)));

INLINE int word_at(const void *from)
{
    int word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* --- packing ---------------------------------------------------------------------------------------------------------- */

INLINE __mmask16 lanes_of(size_t left)
{
    return (__mmask16)(left >= VEC ? 0xFFFFu : (1u << left) - 1);
}

/* Stores that narrow or mask take long where they need not. */
INLINE void store_bytes(void *out, __mmask16 some, __m128i bytes)
{
    if (some == 0xFFFFu) _mm_storeu_si128(out, bytes);
    else _mm_mask_storeu_epi8(out, some, bytes);
}

static void moments(const float *rows, size_t stride, size_t count, size_t width, float *sums, float *squares)
{
    for (size_t i = 0; i < width; i += VEC) {
        __mmask16 some = lanes_of(width - i);
        __m512 sum = _mm512_maskz_loadu_ps(some, sums + i), square = _mm512_maskz_loadu_ps(some, squares + i);
        for (size_t r = 0; r < count; r++) {
            __m512 x = _mm512_maskz_loadu_ps(some, rows + r * stride + i);
            sum = _mm512_add_ps(sum, x);
            square = _mm512_fmadd_ps(x, x, square);
        }
        _mm512_mask_storeu_ps(sums + i, some, sum);
        _mm512_mask_storeu_ps(squares + i, some, square);
    }
}

/* What makes the largest of all lanes LARGEST, and what undoes it. */
INLINE __m512 inverse_of(__m512 top, float *scale)
{
    float largest = _mm512_reduce_max_ps(top);
    *scale = largest / LARGEST;
    return _mm512_set1_ps(largest > 0 ? LARGEST / largest : 0);
}

/* `vectors` of a query: a constant wherever this is inlined, so that they stay in registers. */
INLINE float pack_vectors(const float *in, const float *factor, const float *with, size_t width, size_t vectors, uint8_t *out,
                          float *dot)
{
    __m512 x[VECTORS_MAX], top = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (size_t j = 0; j < vectors; j++) {
        __mmask16 some = lanes_of(width - VEC * j);
        x[j] = _mm512_maskz_loadu_ps(some, in + VEC * j);
        sum = _mm512_fmadd_ps(x[j], _mm512_maskz_loadu_ps(some, with + VEC * j), sum);
        x[j] = _mm512_mul_ps(x[j], _mm512_maskz_loadu_ps(some, factor + VEC * j));
        top = _mm512_max_ps(top, _mm512_abs_ps(x[j]));
    }
    *dot = _mm512_reduce_add_ps(sum);
    float scale;
    __m512 inverse = inverse_of(top, &scale);
#pragma GCC unroll 16
    for (size_t j = 0; j < vectors; j++) {
        __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[j], inverse)), _mm512_set1_epi32(128));
        store_bytes(out + VEC * j, lanes_of(width - VEC * j), _mm512_cvtusepi32_epi8(q));
    }
    return scale;
}

static float pack_query(const float *in, const float *factor, const float *with, size_t width, uint8_t *out, float *dot)
{
    if (width == 4 * VEC) return pack_vectors(in, factor, with, 4 * VEC, 4, out, dot);
    if (width == 8 * VEC) return pack_vectors(in, factor, with, 8 * VEC, 8, out, dot);
    return pack_vectors(in, factor, with, width, (width + VEC - 1) / VEC, out, dot);
}

/* The same of a key. */
INLINE float pack_key(const float *in, const float *mean, const float *factor, size_t width, size_t vectors, int8_t *out)
{
    __m512 x[VECTORS_MAX], top = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (size_t j = 0; j < vectors; j++) {
        __mmask16 some = lanes_of(width - VEC * j);
        x[j] = _mm512_sub_ps(_mm512_maskz_loadu_ps(some, in + VEC * j), _mm512_maskz_loadu_ps(some, mean + VEC * j));
        x[j] = _mm512_mul_ps(x[j], _mm512_maskz_loadu_ps(some, factor + VEC * j));
        top = _mm512_max_ps(top, _mm512_abs_ps(x[j]));
    }
    float scale;
    __m512 inverse = inverse_of(top, &scale);
#pragma GCC unroll 16
    for (size_t j = 0; j < vectors; j++) {
        __m512i k = _mm512_cvtps_epi32(_mm512_mul_ps(x[j], inverse));
        store_bytes(out + VEC * j, lanes_of(width - VEC * j), _mm512_cvtsepi32_epi8(k));
    }
    return scale;
}

static void pack_keys(const float *rows, size_t stride, size_t count, const float *mean, const float *factor, size_t width,
                      int8_t *out, size_t padded, float *scale)
{
    size_t vectors = (width + VEC - 1) / VEC;
    for (size_t r = 0; r < count; r++, rows += stride, out += padded) {
        if (width == 4 * VEC) scale[r] = pack_key(rows, mean, factor, 4 * VEC, 4, out);
        else if (width == 8 * VEC) scale[r] = pack_key(rows, mean, factor, 8 * VEC, 8, out);
        else scale[r] = pack_key(rows, mean, factor, width, vectors, out);
    }
}

static void start_keys(const st_byte_tile *tile, size_t key)
{
    for (size_t i = 0; i < KEYS; i += VEC) {
        __m512i sum = _mm512_setzero_si512();
        for (size_t w = 0; w < key / WORD; w++)
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)128), _mm512_loadu_si512(tile->keys + (w * KEYS + i) * WORD));
        _mm512_storeu_si512(tile->start + i, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
}

/* The positions of a word of weights: soften packs four vectors of scores so that the words of a quarter of each come
 * one behind the other. */
INLINE size_t position_of(size_t word)
{
    return word / VEC * ST_BYTE_VALUES + word % WORD * VEC + word % VEC / WORD * WORD;
}

/* COLUMNS vectors of all values, row by row as they lie. */
INLINE void pack_columns(const float *rows, size_t stride, size_t value, int8_t *out, float *scales)
{
    __m512 top[COLUMNS], inverse[COLUMNS];
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS; j++) top[j] = _mm512_setzero_ps();
    for (size_t r = 0; r < KEYS; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++)
            top[j] = _mm512_max_ps(top[j], _mm512_abs_ps(_mm512_loadu_ps(rows + r * stride + (size_t)(VEC * j))));
    }
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS; j++) {
        __mmask16 some = _mm512_cmp_ps_mask(top[j], _mm512_setzero_ps(), _CMP_GT_OQ);
        inverse[j] = _mm512_maskz_div_ps(some, _mm512_set1_ps(LARGEST), top[j]);
        _mm512_storeu_ps(scales + VEC * j, _mm512_mul_ps(top[j], _mm512_set1_ps(1.0f / LARGEST)));
    }
    for (size_t w = 0; w < KEYS / WORD; w++, out += value * WORD) {
        const float *four = rows + position_of(w) * stride;
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) {
            __m512i word = _mm512_setzero_si512();
#pragma GCC unroll 4
            for (size_t r = 0; r < WORD; r++) {
                __m512 x = _mm512_mul_ps(_mm512_loadu_ps(four + r * stride + (size_t)(VEC * j)), inverse[j]);
                __m512i byte = _mm512_and_si512(_mm512_cvtps_epi32(x), _mm512_set1_epi32(0xFF));
                word = _mm512_or_si512(word, _mm512_slli_epi32(byte, 8 * (unsigned)r));
            }
            _mm512_storeu_si512(out + (size_t)(VEC * j) * WORD, word);
        }
    }
}

static void pack_values(const float *rows, size_t stride, size_t value, const st_byte_tile *tile)
{
    for (size_t i = 0; i < value; i += COLUMNS * VEC)
        pack_columns(rows + i, stride, value, tile->values + i * WORD, tile->value_scale + i);
}

/* --- the meeting -------------------------------------------------------------------------------------------------------- */

/* sums += a · b, by words of four. */
INLINE void multiply(const uint8_t *a, size_t lda, const int8_t *b, size_t ldb, size_t words, words16 sums[ROWS][COLUMNS])
{
#pragma GCC unroll 1
    for (size_t w = 0; w < words; w++, a += WORD, b += WORD * ldb) {
        __m512i right[COLUMNS];
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) right[j] = _mm512_loadu_si512(b + (size_t)j * VEC * WORD);
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++) {
            __m512i left = _mm512_set1_epi32(word_at(a + (size_t)i * lda));
#pragma GCC unroll 4
            for (int j = 0; j < COLUMNS; j++) sums[i][j] = (words16)_mm512_dpbusd_epi32((__m512i)sums[i][j], left, right[j]);
        }
    }
}

/* Scores of ROWS queries, less their own scale, against COLUMNS vectors of keys; and the largest in each lane. A function by
 * itself, as is `weigh`: what surrounds them would take registers from the sums. */
__attribute__((noinline, noclone)) static void score(const uint8_t *q, size_t key, const st_byte_tile *tile, size_t at,
                                                     float (*scores)[KEYS], float (*tops)[VEC])
{
    words16 sums[ROWS][COLUMNS];
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) sums[i][j] = (words16)_mm512_loadu_si512(tile->start + at + (size_t)(j * VEC));
    multiply(q, key, tile->keys + WORD * at, KEYS, key / WORD, sums);
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++) {
        __m512 top = _mm512_loadu_ps(tops[i]);
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) {
            __m512 scale = _mm512_loadu_ps(tile->key_scale + at + (size_t)(j * VEC));
            __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps((__m512i)sums[i][j]), scale);
            _mm512_storeu_ps(scores[i] + at + (size_t)(j * VEC), x);
            top = _mm512_max_ps(top, x);
        }
        _mm512_storeu_ps(tops[i], top);
    }
}

/* COLUMNS vectors of what ROWS queries gather: what was there shrinks, and the tile's share is added. */
__attribute__((noinline, noclone)) static void weigh(const uint8_t *weights, const int8_t *values, size_t value, size_t words,
                                                     const float *scale, const float *share, const float *shrink, float *out)
{
    words16 sums[ROWS][COLUMNS];
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) sums[i][j] = (words16)_mm512_setzero_si512();
    multiply(weights, KEYS, values, value, words, sums);
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++, out += value)
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) {
            __m512 factor = _mm512_mul_ps(_mm512_loadu_ps(scale + j * VEC), _mm512_set1_ps(share[i]));
            __m512 before = _mm512_mul_ps(_mm512_loadu_ps(out + j * VEC), _mm512_set1_ps(shrink[i]));
            _mm512_storeu_ps(out + j * VEC, _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sums[i][j]), factor, before));
        }
}

/* 2^x for x ≤ 0, −∞ included. */
INLINE __m512 power_of_two(__m512 x)
{
    __m512 part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), whole = _mm512_sub_ps(x, part);
    __m512 p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(6.9314718e-1f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, part, _mm512_set1_ps(1)), whole);
}

/* The lanes of a vector of scores that a query sees. */
INLINE __mmask16 seen_lanes(const st_seen *seen, int query, int vector)
{
    if (!seen) return 0xFFFFu;
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(vector * VEC));
    __mmask16 before = _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32(seen[query].to));
    return _mm512_mask_cmpge_epi32_mask(before, at, _mm512_set1_epi32(seen[query].from));
}

/* Of what a query sees alone. */
INLINE __m512 seen_top(const float *scores, const st_seen *seen, int query, int vectors)
{
    __m512 top = _mm512_set1_ps(LOWEST);
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++)
        top = _mm512_mask_max_ps(top, seen_lanes(seen, query, j), top, _mm512_load_ps(scores + VEC * j));
    return top;
}

/* The largest score of each query. */
INLINE __m512 largest_of(const st_seen *seen, int vectors, group_state *g)
{
    _Alignas(64) float fours[GROUP][4];
    for (int i = 0; i < GROUP; i++) {
        __m512 top = seen ? seen_top(g->scores[i], seen, i, vectors) : _mm512_load_ps(g->tops[i]);
        __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(top), _mm512_extractf32x8_ps(top, 1));
        _mm_store_ps(fours[i], _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
    }
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512 a = _mm512_load_ps(fours[0]), b = _mm512_load_ps(fours[4]), c = _mm512_load_ps(fours[8]);
    a = _mm512_max_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
    c = _mm512_max_ps(_mm512_permutexvar_ps(even, c), _mm512_permutexvar_ps(odd, c));
    return _mm512_max_ps(_mm512_permutex2var_ps(a, even, c), _mm512_permutex2var_ps(a, odd, c));
}

/* 2 × 255 × 2^(−n / STEPS) */
static const uint16_t powers[STEPS] = {
    510, 505, 499, 494, 488, 483, 478, 473, 468, 463, 458, 453, 448, 443, 438, 434,
    429, 424, 420, 415, 411, 406, 402, 398, 393, 389, 385, 381, 377, 373, 369, 365,
    361, 357, 353, 349, 345, 342, 338, 334, 331, 327, 324, 320, 317, 313, 310, 307,
    303, 300, 297, 294, 290, 287, 284, 281, 278, 275, 272, 269, 266, 263, 261, 258,
};

/* Scores of a query, four vectors of them, become weights: 255 for the largest. */
INLINE __m512i weights_of(const float *scores, const st_seen *seen, int query, int vector, __m512 scale, __m512 shift)
{
    const __m512i low = _mm512_loadu_si512(powers), high = _mm512_loadu_si512(powers + STEPS / 2);
    __m512i steps[4], weights[2];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512 behind = _mm512_fnmadd_ps(_mm512_load_ps(scores + VEC * (vector + j)), scale, shift);
        steps[j] = _mm512_cvtps_epi32(behind);
        if (seen) steps[j] = _mm512_mask_mov_epi32(_mm512_set1_epi32(UINT16_MAX), seen_lanes(seen, query, vector + j), steps[j]);
    }
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        __m512i n = _mm512_packus_epi32(steps[2 * j], steps[2 * j + 1]);
        __m512i twice = _mm512_srlv_epi16(_mm512_permutex2var_epi16(low, n, high), _mm512_srli_epi16(n, 6));
        weights[j] = _mm512_avg_epu16(twice, _mm512_setzero_si512());
    }
    return _mm512_packus_epi16(weights[0], weights[1]);
}

/* A running softmax whose weights are bytes against the largest score of the tile: `share` is what the tile counts against
 * the largest of all so far, `shrink` what everything before it does. */
INLINE void soften(const st_byte_queries *b, size_t first, const st_seen *seen, int vectors, group_state *g)
{
    const __mmask16 all = (1 << GROUP) - 1;
    __m512 mine = _mm512_mul_ps(largest_of(seen, vectors, g), _mm512_maskz_loadu_ps(all, b->scale + first));
    __m512 before = _mm512_maskz_loadu_ps(all, b->largest + first), now = _mm512_max_ps(before, mine);
    _mm512_mask_storeu_ps(b->largest + first, all, now);
    _mm512_store_ps(g->shift, _mm512_mul_ps(_mm512_set1_ps(STEPS), mine));
    _mm512_store_ps(g->share, power_of_two(_mm512_sub_ps(mine, now)));
    _mm512_store_ps(g->shrink, power_of_two(_mm512_sub_ps(before, now)));
    for (int i = 0; i < GROUP; i++) {
        __m512 scale = _mm512_set1_ps(STEPS * b->scale[first + (size_t)i]), shift = _mm512_set1_ps(g->shift[i]);
        __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j += 4) {
            __m512i weights = weights_of(g->scores[i], seen, i, j, scale, shift);
            _mm512_store_si512(g->weights[i] + VEC * j, weights);
            total = _mm512_dpbusd_epi32(total, weights, _mm512_set1_epi8(1));
        }
        float *sum = b->sum + (first + (size_t)i) * VEC;
        __m512 before_it = _mm512_mul_ps(_mm512_set1_ps(g->shrink[i]), _mm512_loadu_ps(sum));
        _mm512_storeu_ps(sum, _mm512_fmadd_ps(_mm512_set1_ps(g->share[i]), _mm512_cvtepi32_ps(total), before_it));
    }
}

__attribute__((noinline)) static void soften_all(const st_byte_queries *b, size_t first, group_state *g)
{
    soften(b, first, NULL, KEYS / VEC, g);
}

__attribute__((noinline)) static void soften_seen(const st_byte_queries *b, size_t first, const st_seen *seen, group_state *g)
{
    soften(b, first, seen, KEYS / VEC, g);
}

__attribute__((noinline)) static void soften_few(const st_byte_queries *b, size_t first, const st_seen *seen, group_state *g)
{
    soften(b, first, seen, COLUMNS, g);
}

/* Whether a group sees no more than the first block of products. */
static bool sees_few(const st_seen *seen)
{
    for (int i = 0; i < GROUP; i++)
        if (seen[i].to > COLUMNS * VEC) return false;
    return true;
}

static void meet(const st_byte_queries *b, const st_byte_tile *tile, size_t first, size_t end, const st_seen *seen)
{
    group_state g;
    for (; first < end; first += GROUP) {
        bool few = seen && sees_few(seen + first);
        size_t width = few ? COLUMNS * VEC : KEYS;
        for (int i = 0; i < GROUP; i++) _mm512_store_ps(g.tops[i], _mm512_set1_ps(LOWEST));
        for (size_t i = 0; i < GROUP; i += ROWS)
            for (size_t k = 0; k < width; k += COLUMNS * VEC)
                score(b->q + (first + i) * b->key, b->key, tile, k, g.scores + i, g.tops + i);
        if (few) soften_few(b, first, seen + first, &g);
        else if (seen) soften_seen(b, first, seen + first, &g);
        else soften_all(b, first, &g);
        for (size_t column = 0; column < b->value; column += COLUMNS * VEC)
            for (size_t i = 0; i < GROUP; i += ROWS)
                weigh(g.weights[i], tile->values + WORD * column, b->value, width / WORD, tile->value_scale + column,
                      g.share + i, g.shrink + i, b->out + (first + i) * b->value + column);
    }
}

static void finish(const st_byte_queries *b, size_t query, float *out, size_t width)
{
    const float *gathered = b->out + query * b->value;
    __m512 factor = _mm512_set1_ps(1 / _mm512_reduce_add_ps(_mm512_loadu_ps(b->sum + query * VEC)));
    for (size_t i = 0; i < width; i += VEC)
        _mm512_mask_storeu_ps(out + i, lanes_of(width - i), _mm512_mul_ps(_mm512_loadu_ps(gathered + i), factor));
}

const st_isa_bytes st_isa_avx512_bytes = {
    .moments = moments, .pack_query = pack_query, .pack_keys = pack_keys, .start_keys = start_keys,
    .pack_values = pack_values, .meet = meet, .finish = finish,
};
