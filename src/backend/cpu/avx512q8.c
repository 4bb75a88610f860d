/* AVX-512 with VNNI: attention of a few queries over a q8_0 KV cache, read in place. A head is a whole number of
 * blocks. The kernels process four positions at a time, each in a quarter of a register.
 *
 * Keys stay int8. Queries become 16-bit words, a signed upper byte and an unsigned lower byte. Both are multiplied
 * with the keys as bytes, so nothing is widened. Values are widened once for all queries that share them. */
#include "backend/cpu/isa.h"

#include <immintrin.h>
#include <string.h>

enum {
    VEC = 16,
    FOUR = 4,
    BLOCK = ST_ACT_BLOCK, /* elements of a q8_0 block: a float16 scale, then the bytes */
    BLOCK_BYTES = 2 + BLOCK,
    HALF = BLOCK / 2,
    BLOCKS = 2,   /* blocks of keys held in registers at a time */
    QUERIES = 4,  /* queries multiplied with them at a time */
    LARGEST = 32767,
};

#define INLINE static inline __attribute__((always_inline))

/* --- queries ------------------------------------------------------------------------------------------------------ */

/* A query packed in place of its floats: the upper bytes + 128, the lower bytes, and the scale of a word. */
typedef struct words {
    const uint8_t *upper, *lower;
    float scale;
} words;

INLINE words words_of(const float *packed, size_t width)
{
    words w = {.upper = (const uint8_t *)packed, .lower = (const uint8_t *)packed + width};
    memcpy(&w.scale, w.lower + width, sizeof w.scale);
    return w;
}

/* Packs a query in place. The bytes stored never reach past the floats already read. The lower bytes are stored behind
 * the words first and moved at the end. */
static void pack_query(float *query, size_t width)
{
    __m512 top = _mm512_setzero_ps();
    for (size_t i = 0; i < width; i += VEC) top = _mm512_max_ps(top, _mm512_abs_ps(_mm512_loadu_ps(query + i)));
    float largest = _mm512_reduce_max_ps(top), scale = largest / LARGEST;
    __m512 inverse = _mm512_set1_ps(largest > 0 ? LARGEST / largest : 0);
    unsigned char *bytes = (unsigned char *)query;
    for (size_t i = 0; i < width; i += VEC) { /* words first: 16 words take the place of 8 floats */
        __m512i word = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(query + i), inverse));
        _mm256_storeu_si256((__m256i *)(void *)(bytes + 2 * i), _mm512_cvtepi32_epi16(word));
    }
    for (size_t i = 0; i < width; i += VEC) { /* then the upper bytes, and the lower bytes behind the words */
        __m256i word = _mm256_loadu_si256((const __m256i *)(const void *)(bytes + 2 * i));
        _mm_storeu_si128((__m128i *)(void *)(bytes + 2 * width + i), _mm256_cvtepi16_epi8(word));
        word = _mm256_add_epi16(_mm256_srai_epi16(word, 8), _mm256_set1_epi16(128));
        _mm_storeu_si128((__m128i *)(void *)(bytes + i), _mm256_cvtepi16_epi8(word));
    }
    memmove(bytes + width, bytes + 2 * width, width);
    memcpy(bytes + 2 * width, &scale, sizeof scale);
}

void st_avx512_pack_queries(float *queries, size_t count, size_t width)
{
    for (size_t i = 0; i < count; i++) pack_query(queries + i * width, width);
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

/* Four rows, each starting at one head. If fewer than four are left the last row is repeated. */
typedef struct four_rows {
    const unsigned char *at[FOUR];
    size_t count;
} four_rows;

INLINE four_rows rows_from(const st_cache_rows *rows, size_t first, size_t head)
{
    four_rows four = {.count = rows->count - first < FOUR ? rows->count - first : FOUR};
    const unsigned char *row = rows->first + first * rows->stride + head * (rows->width / BLOCK) * BLOCK_BYTES;
    for (size_t r = 0; r < FOUR; r++) four.at[r] = row + (r < four.count ? r : four.count - 1) * rows->stride;
    return four;
}

INLINE __m512i quarters(const unsigned char *const at[FOUR], size_t from)
{
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)(at[0] + from)));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(at[1] + from)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(at[2] + from)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(at[3] + from)), 3);
}

/* The scales of one block in each of four rows. */
INLINE __m128 scales_of(const unsigned char *const at[FOUR], size_t block)
{
    uint64_t halves = 0;
#pragma GCC unroll 4
    for (size_t r = 0; r < FOUR; r++) {
        uint16_t half;
        memcpy(&half, at[r] + block * BLOCK_BYTES, sizeof half);
        halves |= (uint64_t)half << 16 * r;
    }
    return _mm_cvtph_ps(_mm_cvtsi64_si128((long long)halves));
}

/* One block of four keys. `start` is −128 × the sums of their bytes, because the upper bytes of queries are 128 too
 * high. */
typedef struct key_block {
    __m512i first, second, start;
    __m512 scale;
} key_block;

INLINE key_block keys_of(const unsigned char *const at[FOUR], size_t block)
{
    const __m512i high = _mm512_set1_epi8((char)128), zero = _mm512_setzero_si512();
    const __m512i by_quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    key_block k = {.first = quarters(at, block * BLOCK_BYTES + 2), .second = quarters(at, block * BLOCK_BYTES + 2 + HALF)};
    k.start = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, high, k.first), high, k.second));
    k.scale = _mm512_permutexvar_ps(by_quarter, _mm512_castps128_ps512(scales_of(at, block)));
    return k;
}

INLINE __m512i broadcast_16(const uint8_t *sixteen)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)sixteen));
}

/* total += block · query, for each quarter. */
INLINE __m512 add_block(__m512 total, const key_block *k, const words *q, size_t block)
{
    const uint8_t *upper = q->upper + block * BLOCK, *lower = q->lower + block * BLOCK;
    __m512i sum = _mm512_dpbusd_epi32(k->start, broadcast_16(upper), k->first);
    sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(sum, broadcast_16(upper + HALF), k->second), 8);
    sum = _mm512_dpbusd_epi32(sum, broadcast_16(lower), k->first);
    sum = _mm512_dpbusd_epi32(sum, broadcast_16(lower + HALF), k->second);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), k->scale, total);
}

/* Multiplies `blocks` blocks of four keys with `queries` queries. Both are compile-time constants at every inlined
 * call, and everything stays in registers. */
INLINE void add_keys(const four_rows *rows, size_t block, size_t blocks, const words *q, size_t queries, __m512 *total)
{
    key_block k[BLOCKS];
#pragma GCC unroll 2
    for (size_t b = 0; b < blocks; b++) k[b] = keys_of(rows->at, block + b);
#pragma GCC unroll 4
    for (size_t i = 0; i < queries; i++)
#pragma GCC unroll 2
        for (size_t b = 0; b < blocks; b++) total[i] = add_block(total[i], &k[b], &q[i], block + b);
}

/* The sum of each quarter. */
INLINE __m128 sum_quarters(__m512 x)
{
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4E));
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xB1));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, x));
}

INLINE void dot_four(const four_rows *rows, size_t width, const float *packed, size_t lda, size_t queries, float *out,
                     size_t ldo)
{
    words q[QUERIES];
    __m512 total[QUERIES];
#pragma GCC unroll 4
    for (size_t i = 0; i < queries; i++) q[i] = words_of(packed + i * lda, width), total[i] = _mm512_setzero_ps();
    size_t block = 0, blocks = width / BLOCK;
    for (; block + BLOCKS <= blocks; block += BLOCKS) add_keys(rows, block, BLOCKS, q, queries, total);
    if (block < blocks) add_keys(rows, block, 1, q, queries, total);
#pragma GCC unroll 4
    for (size_t i = 0; i < queries; i++) {
        __m128 scores = _mm_mul_ps(sum_quarters(total[i]), _mm_set1_ps(q[i].scale));
        if (rows->count == FOUR) _mm_storeu_ps(out + i * ldo, scores);
        else _mm_mask_storeu_ps(out + i * ldo, (__mmask8)((1u << rows->count) - 1), scores);
    }
}

/* Prefetches one head's share of the next rows while the kernel uses that head of four rows. */
INLINE void prefetch_share(const st_cache_rows *rows, size_t at, size_t head)
{
    if (!rows->prefetch) return;
    size_t share = FOUR * rows->stride / rows->heads;
    uintptr_t from = rows->prefetch + at * rows->stride + head * share;
    for (size_t i = 0; i < share; i += 64) _mm_prefetch((const char *)(from + i), _MM_HINT_T1);
}

/* Runs the queries that share a KV head, a few at a time; each number of queries has its own kernel. */
#define BY_QUERIES(kernel, in, ld_in, shared, rows, width, out, ld_out)                                                \
    for (size_t done = 0; done < (shared); done += QUERIES) {                                                          \
        const float *from = (in) + done * (ld_in);                                                                     \
        float *to = (out) + done * (ld_out);                                                                           \
        size_t left = (shared) - done;                                                                                 \
        if (left >= QUERIES) kernel(rows, width, from, ld_in, QUERIES, to, ld_out);                                    \
        else if (left == 3) kernel(rows, width, from, ld_in, 3, to, ld_out);                                           \
        else if (left == 2) kernel(rows, width, from, ld_in, 2, to, ld_out);                                           \
        else kernel(rows, width, from, ld_in, 1, to, ld_out);                                                          \
    }

void st_avx512_dot_q8(const float *packed, size_t lda, size_t shared, const st_cache_rows *rows, float *out, size_t ldo)
{
    for (size_t at = 0; at < rows->count; at += FOUR) {
        for (size_t head = 0; head < rows->heads; head++) {
            four_rows four = rows_from(rows, at, head);
            prefetch_share(rows, at, head);
            size_t query = head * shared;
            BY_QUERIES(dot_four, packed + query * lda, lda, shared, &four, rows->width, out + query * ldo + at, ldo)
        }
    }
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* Half a block of a row, as floats. */
INLINE __m512 widened(const unsigned char *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}

INLINE __m128 four_weights(const float *weights, size_t count)
{
    return count == FOUR ? _mm_loadu_ps(weights) : _mm_maskz_loadu_ps((__mmask8)((1u << count) - 1), weights);
}

/* out += weights · four rows. `queries` is a compile-time constant at every inlined call. */
INLINE void weigh_four(const four_rows *rows, size_t width, const float *weights, size_t ldw, size_t queries, float *out,
                       size_t ldo)
{
    __m128 own[QUERIES];
#pragma GCC unroll 4
    for (size_t q = 0; q < queries; q++) own[q] = four_weights(weights + q * ldw, rows->count);
    for (size_t block = 0; block < width / BLOCK; block++, out += BLOCK) {
        __m128 scales = scales_of(rows->at, block);
        float scaled[QUERIES][FOUR]; /* weights × the scales of their rows */
#pragma GCC unroll 4
        for (size_t q = 0; q < queries; q++)
            _mm_storeu_ps(scaled[q], _mm_mul_ps(own[q], scales));
#pragma GCC unroll 2
        for (size_t half = 0; half < BLOCK; half += HALF) {
            __m512 x[FOUR];
#pragma GCC unroll 4
            for (int r = 0; r < FOUR; r++) x[r] = widened(rows->at[r] + block * BLOCK_BYTES + 2 + half);
#pragma GCC unroll 4
            for (size_t q = 0; q < queries; q++) {
                __m512 sum = _mm512_loadu_ps(out + q * ldo + half);
#pragma GCC unroll 4
                for (int r = 0; r < FOUR; r++) sum = _mm512_fmadd_ps(x[r], _mm512_set1_ps(scaled[q][r]), sum);
                _mm512_storeu_ps(out + q * ldo + half, sum);
            }
        }
    }
}

void st_avx512_weigh_q8(const float *weights, size_t ldw, size_t shared, const st_cache_rows *rows, float *out, size_t ldo)
{
    for (size_t at = 0; at < rows->count; at += FOUR) {
        for (size_t head = 0; head < rows->heads; head++) {
            four_rows four = rows_from(rows, at, head);
            prefetch_share(rows, at, head);
            const float *of_head = weights + head * shared * ldw + at;
            BY_QUERIES(weigh_four, of_head, ldw, shared, &four, rows->width, out + head * shared * ldo, ldo)
        }
    }
}
