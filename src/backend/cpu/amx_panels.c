/* AMX: batches of matrix products in bfloat16. A tile instruction multiplies 16 tokens with 16 rows of weights over 32
 * elements and adds to float32 sums. Weights arrive as strips, so every type that has strips has panels. */
#include "backend/cpu/isa.h"

#include <immintrin.h>

#include "backend/cpu/amx.inc"

#define INLINE static inline __attribute__((always_inline))

enum {
    VEC = 16,
    TILE = ST_PANEL_TILE,
    TILE_BYTES = ST_PANEL_TILE_BYTES,
    HALVES = ST_STRIP_ROWS / TILE, /* tiles of a block of a strip */
    SUMS = TILE * TILE,            /* floats of a tile of sums */
    WORD_BYTES = ST_STRIP_ROWS * 4, /* a strip holds four elements of all its rows together */
};

/* --- operands ----------------------------------------------------------------------------------------------------- */

static void pack(const float *x, size_t count, unsigned char *out, size_t row)
{
    out += row * ST_ACT_BLOCK * 2;
    for (size_t i = 0; i < count; i += ST_ACT_BLOCK, out += TILE_BYTES)
        _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + VEC), _mm512_loadu_ps(x + i)));
}

/* Pairs of bfloat16: the even elements in the low halves of the words, the odd ones in the high halves. Halves are
 * rounded away from zero, which is cheaper than to even. */
INLINE __m512i pairs_of(__m512 even, __m512 odd)
{
    const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32((int)0xFFFF0000);
    __m512i low = _mm512_srli_epi32(_mm512_add_epi32((__m512i)even, half), 16);
    return _mm512_ternarylogic_epi32(_mm512_add_epi32((__m512i)odd, half), low, high, 0xEC); /* (odd & high) | low */
}

/* One word of 16 rows: four elements, which become two rows of pairs. */
INLINE void widen_word(const uint8_t *word, __m512 scale, __m512 offset, unsigned char *out)
{
    const __m512i byte = _mm512_set1_epi32(255);
    __m512i words = _mm512_loadu_si512(word);
    __m512 x[4];
    for (unsigned i = 0; i < 4; i++) {
        __m512i element = _mm512_and_si512(_mm512_srli_epi32(words, 8 * i), byte);
        x[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(element), scale, offset);
    }
    _mm512_storeu_si512(out, pairs_of(x[0], x[1]));
    _mm512_storeu_si512(out + TILE_ROW_BYTES, pairs_of(x[2], x[3]));
}

/* The parameters of the strip are compile-time constants at every inlined call. */
INLINE void widen_strip(const st_strip *strip, int group, float zero, bool has_offset, unsigned char *out)
{
    const size_t groups = ST_ACT_BLOCK / (size_t)group, words = (size_t)group / 4;
    for (size_t b = 0; b < strip->blocks; b++)
        for (size_t half = 0; half < HALVES; half++)
            for (size_t g = b * groups; g < (b + 1) * groups; g++) {
                size_t at = g * ST_STRIP_ROWS + half * TILE;
                const uint8_t *bytes = strip->bytes + g * words * WORD_BYTES + half * TILE * 4;
                __m512 scale = _mm512_loadu_ps(strip->scale + at), offset = _mm512_mul_ps(scale, _mm512_set1_ps(-zero));
                if (has_offset) offset = _mm512_loadu_ps(strip->offset + at);
                for (size_t i = 0; i < words; i++, out += 2 * TILE_ROW_BYTES) widen_word(bytes + i * WORD_BYTES, scale, offset, out);
            }
}

static void widen(const st_isa_type *type, const st_strip *strip, unsigned char *out)
{
    if (type->group == 16 && type->has_offset) widen_strip(strip, 16, 0, true, out);
    else if (type->group == 16) widen_strip(strip, 16, (float)type->zero, false, out);
    else if (type->has_offset) widen_strip(strip, 32, 0, true, out);
    else widen_strip(strip, 32, (float)type->zero, false, out);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* What is prefetched beside a block: some rows of that block of the tokens that follow. */
typedef struct ahead {
    const unsigned char *acts; /* the two tiles of tokens that follow */
    size_t first, end;         /* of the rows of both tiles */
} ahead;

INLINE void prefetch_rows(const st_panel_product *p, const ahead *next, size_t block)
{
    const char *tiles = (const char *)next->acts + block * TILE_BYTES;
    for (size_t row = next->first; row < next->end; row++)
        _mm_prefetch(tiles + row / TILE * p->acts_step + row % TILE * TILE_ROW_BYTES, _MM_HINT_T1);
}

/* Tiles 0 to 3 are the sums of one or two tiles of tokens with a strip; 4 and 5 hold tokens, 6 and 7 weights. */
INLINE void multiply_pair(const st_panel_product *p, const unsigned char *acts, const unsigned char *weights,
                          float *sums, bool second, const ahead *next)
{
    if (p->add) {
        _tile_loadd(0, sums, TILE_ROW_BYTES);
        _tile_loadd(1, sums + SUMS, TILE_ROW_BYTES);
        if (second) _tile_loadd(2, sums + 2 * SUMS, TILE_ROW_BYTES);
        if (second) _tile_loadd(3, sums + 3 * SUMS, TILE_ROW_BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t b = 0; b < p->blocks; b++, acts += TILE_BYTES, weights += HALVES * TILE_BYTES) {
        _tile_loadd(4, acts, TILE_ROW_BYTES);
        _tile_loadd(6, weights, TILE_ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, weights + TILE_BYTES, TILE_ROW_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        if (!second) continue;
        prefetch_rows(p, next, b);
        _tile_loadd(5, acts + p->acts_step, TILE_ROW_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, TILE_ROW_BYTES);
    _tile_stored(1, sums + SUMS, TILE_ROW_BYTES);
    if (second) _tile_stored(2, sums + 2 * SUMS, TILE_ROW_BYTES);
    if (second) _tile_stored(3, sums + 3 * SUMS, TILE_ROW_BYTES);
}

/* Configures the tiles for up to 2 × TILE tokens: absent ones are neither read nor multiplied. */
static void load_tiles_for(size_t tokens)
{
    tile_config config = whole_tiles();
    size_t first = tokens < TILE ? tokens : TILE, second = tokens > TILE ? tokens - TILE : TILE;
    config.rows[0] = config.rows[1] = config.rows[4] = (uint8_t)first;
    config.rows[2] = config.rows[3] = config.rows[5] = (uint8_t)second;
    load_tiles(&config);
}

static void multiply(const st_panel_product *p)
{
    enum { PAIR = 2 * TILE };
    size_t configured = 0;
    for (size_t token = 0; token < p->tokens; token += PAIR) {
        size_t tokens = p->tokens - token < PAIR ? p->tokens - token : PAIR;
        const unsigned char *acts = p->acts + token / TILE * p->acts_step;
        float *sums = p->sums + token / PAIR * p->strips * 2 * HALVES * SUMS;
        size_t after = p->tokens - token - tokens, rows = after < PAIR ? after : PAIR; /* to prefetch */
        if (tokens != configured) load_tiles_for(configured = tokens);
        for (size_t s = 0; s < p->strips; s++, sums += 2 * HALVES * SUMS) {
            const unsigned char *weights = p->weights + s * p->weights_step;
            ahead next = {acts + 2 * p->acts_step, s * rows / p->strips, (s + 1) * rows / p->strips};
            if (tokens > TILE) multiply_pair(p, acts, weights, sums, true, &next);
            else multiply_pair(p, acts, weights, sums, false, &next);
        }
    }
    _tile_release();
}

/* --- the machine's rate ------------------------------------------------------------------------------------------- */

enum { WORK_PRODUCTS = 4 };

static uint64_t work(uint64_t rounds)
{
    load_tiles_for(2 * TILE);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (uint64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return rounds;
}

const st_isa_panels *st_panels_amx(void)
{
    static const st_isa_panels panels = {pack, widen, multiply, work, WORK_PRODUCTS * SUMS * ST_ACT_BLOCK * 2};
    return tiles_supported() ? &panels : NULL;
}
