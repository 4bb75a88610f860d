/* The interface of an instruction set: int8 quantisation of activations, dot products of quantised weight rows with
 * them, strips of unpacked weights for batches, and float arithmetic on whole rows. Each instruction set fills an
 * st_isa table in its own file. fast*.c call the table and contain no code for a particular instruction set. */
#ifndef ST_BACKEND_CPU_ISA_H
#define ST_BACKEND_CPU_ISA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/scratch.h"
#include "model/arch.h"

enum { ST_ISA_TYPES = 43 }; /* every tensor type number is smaller */

/* A row of a batch of int8 activations: element i of block b ≈ scale[b × stride] × q[b × stride × 32 + i]. `stride` is 1
 * for a contiguous row. It is ST_ACT_TILE in a tile, where block b of all tokens is contiguous. */
typedef struct st_act_row {
    int8_t *q;
    float *scale;
    float *sum;     /* scale × Σq */
    int32_t *total; /* [2] for each block: Σq of each half */
    size_t stride;
} st_act_row;

/* One of few rows of int8 activations, with a scale for each half of a block: element i ≈ scale[i / ST_ACT_HALF] × q[i]. */
typedef struct st_act_halves {
    int8_t *q;
    float *scale;
    float *sum; /* scale × Σq */
} st_act_halves;

/* The blocks of a row with the largest rounding error. They are refined: the residual becomes a second int8 block. */
typedef struct st_refined {
    uint32_t count, blocks[ST_REFINED];
} st_refined;

/* A tile of activations. The blocks of `acts` are interleaved by token, those of `rest` (the residuals) are not:
 * residual block token × ST_REFINED + i belongs to the token's i-th refined block. */
typedef struct st_act_tile {
    st_act_row acts, rest;
    const st_refined *refined; /* [tokens]; NULL: none */
} st_act_tile;

/* A part of some rows of weights, unpacked for a batch: weight = scale × (byte − zero) + offset. Groups of 16 or 32
 * elements share a scale and an offset. The rows are interleaved by four elements: bytes[count / 4][ST_STRIP_ROWS][4]. */
typedef struct st_strip {
    uint8_t *bytes;       /* [count × ST_STRIP_ROWS] */
    float *scale;         /* [count / group × ST_STRIP_ROWS] */
    float *offset;        /* the same shape, if the type has offsets */
    size_t first, blocks; /* which of the activations' blocks of 32 elements it covers */
} st_strip;

/* The sums of a tile's tokens with the rows of a strip: those so far, and where the new ones are stored. */
typedef struct st_tile_sums {
    const float *from;    /* [ST_ACT_TILE][ST_STRIP_ROWS]; NULL: zeros */
    float *to;            /* [tokens][stride]: the first `lanes` of each token */
    size_t stride, lanes;
} st_tile_sums;

typedef struct st_isa_type {
    /* out[i] = row i · act, for `rows` rows at a stride of row_bytes. NULL: no kernel for the type. */
    void (*dots)(const unsigned char *matrix, size_t row_bytes, size_t rows, const st_act_halves *act, size_t count,
                 float *out);
    /* Unpacks four rows into lanes `lane` … `lane` + 3 of a strip. */
    void (*unpack)(const unsigned char *const rows[4], size_t count, const st_strip *strip, size_t lane);
    uint32_t group; /* 16 or 32 */
    int32_t zero;
    bool has_offset;
} st_isa_type;

/* Rows of the KV cache, read in place; a row holds `heads` heads. While a kernel reads the rows it prefetches the same
 * number of bytes, in order, starting at `prefetch`. */
typedef struct st_cache_rows {
    const unsigned char *first;
    size_t stride; /* bytes from row to row */
    size_t count, heads, width;
    uintptr_t prefetch; /* 0: none */
} st_cache_rows;

/* A float matrix with each float split in place into two bfloat16 numbers, high and low. The split works on chunks of
 * ST_SPLIT_CHUNK elements along the dimension that a product sums over. A 32-bit word holds two elements that are
 * adjacent along that dimension. */
typedef struct st_split {
    const float *high, *low; /* low NULL: all low parts are zero */
    size_t stride;           /* 32-bit words from row to row of high or low */
    size_t step;             /* 32-bit words from chunk to chunk */
} st_split;

/* GEMM of split matrices. The rows and columns of a product are multiples of ST_SPLIT_TILE. */
typedef struct st_isa_split {
    /* Splits a row along which the product sums: a chunk becomes ST_SPLIT_TILE words of high, then of low. */
    void (*split_row)(float *row, size_t count);
    /* Splits two successive rows across which the product sums: `first` receives high, `second` low. */
    void (*split_two_rows)(float *first, float *second, size_t count);
    /* c[m, n] (+)= a[m, chunks] · b[chunks, n] */
    void (*gemm)(const st_split *a, const st_split *b, float *c, size_t ldc, size_t m, size_t n, size_t chunks, bool add);
} st_isa_split;

/* A product of a batch in bfloat16: some blocks of the activations of tokens with the same blocks of some strips. The
 * operands lie in tiles of ST_PANEL_TILE rows × ST_ACT_BLOCK elements, a tile ST_PANEL_TILE_BYTES long; one tile of
 * weights holds half the rows of a strip. */
typedef struct st_panel_product {
    const unsigned char *acts;    /* [token tiles], acts_step bytes apart, [blocks] tiles */
    const unsigned char *weights; /* [strips], weights_step bytes apart, [blocks][2] tiles */
    size_t acts_step, weights_step, tokens, strips, blocks;
    float *sums; /* [pairs of token tiles][strips][2 token tiles][2 halves of a strip] tiles of ST_PANEL_TILE² floats */
    bool add;    /* to the sums so far; otherwise the sums start at zero */
} st_panel_product;

/* Batches on a matrix unit: activations are rounded to bfloat16 and strips are widened to it, scales and offsets
 * included, so that a product sums whole rows in float32. A token's sums do not depend on the other tokens. */
typedef struct st_isa_panels {
    /* Rounds a row of activations: it becomes row `row` of the tiles at `out`, one for each block. */
    void (*pack)(const float *x, size_t count, unsigned char *out, size_t row);
    /* Widens the blocks of a strip. */
    void (*widen)(const st_isa_type *type, const st_strip *strip, unsigned char *out);
    void (*multiply)(const st_panel_product *product);
    /* Arithmetic in registers only: the upper bound for `multiply`. The result has no meaning. */
    uint64_t (*work)(uint64_t rounds);
    uint32_t ops_per_round; /* multiplications and additions */
} st_isa_panels;

typedef struct st_isa {
    const char *name;
    const st_isa_split *(*split)(void); /* NULL, or returns NULL: the CPU has no fast bfloat16 products */
    void (*quantise)(const float *x, size_t count, const st_act_row *out);
    void (*quantise_halves)(const float *x, size_t count, const st_act_halves *out);
    /* out[32] = x − the dequantised `block` of act */
    void (*residual)(const float *x, const st_act_row *act, size_t block, float out[ST_ACT_BLOCK]);
    st_isa_type types[ST_ISA_TYPES];
    /* Adds the products of a strip with the first `tokens` of a tile to the tile's sums. */
    void (*strip_times_tile)(const st_isa_type *type, const st_strip *strip, const st_act_tile *tile, size_t tokens,
                             const st_tile_sums *sums);
    /* Int8 arithmetic in registers only: the upper bound for strip_times_tile. The result has no meaning. */
    uint64_t (*int8_work)(uint64_t rounds);
    uint32_t int8_ops_per_round; /* multiplications and additions */
    /* Rows of F32, F16 and BF16, by type number; NULL for other types. from_float stores as st_row_store does. */
    float (*dot_float[ST_ISA_TYPES])(const void *row, const float *x, size_t count);
    void (*to_float[ST_ISA_TYPES])(const void *row, float *out, size_t count);
    void (*from_float[ST_ISA_TYPES])(const float *in, void *row, size_t count);
    void (*q8_to_float)(const unsigned char *blocks, float *out, size_t count); /* whole q8_0 blocks (quant/row.h) */
    /* Converts queries in place to the format that dot_rows of a type reads; NULL: dot_rows reads floats. */
    void (*pack_queries[ST_ISA_TYPES])(float *queries, size_t count, size_t width);
    /* out[heads × shared, rows] = a[heads × shared, width] · the same head of each row; by type number. A head of q8_0
     * is a whole number of blocks. */
    void (*dot_rows[ST_ISA_TYPES])(const float *a, size_t lda, size_t shared, const st_cache_rows *rows, float *out, size_t ldo);
    /* out[heads × shared, width] += weights[heads × shared, rows] · the same head of the rows */
    void (*weigh_rows[ST_ISA_TYPES])(const float *weights, size_t ldw, size_t shared, const st_cache_rows *rows, float *out,
                                     size_t ldo);
    /* c[m, n] (+)= a[m, k] · b[k, n]; lda, ldb and ldc are strides in elements; n is a multiple of 16 */
    void (*gemm)(const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, size_t m, size_t n, size_t k,
                 bool add);
    void (*transpose)(const float *in, size_t ld_in, float *out, size_t ld_out, size_t rows, size_t columns);
    void (*add_scaled)(float *out, const float *in, float scale, size_t count); /* out += scale × in */
    void (*scale)(const float *in, float factor, float *out, size_t count);
    void (*norm)(const float *in, const float *weight, float factor, float *out, size_t count); /* weight may be NULL */
    float (*sum_squares)(const float *x, size_t count);
    /* Online softmax of some rows: scores become exp(score − the row's maximum so far). A row of `sums` holds `width`
     * weighted sums, the maximum and the sum of weights. The sums are rescaled when the maximum grows. */
    void (*softmax)(float *scores, size_t lds, size_t rows, size_t count, float *sums, size_t ldo, size_t width);
    void (*gated)(st_activation activation, const float *gate, const float *up, float *out, size_t count);
    void (*relu_squared)(const float *in, float *out, size_t count);
    void (*times_sigmoid)(const float *in, const float *gate, float *out, size_t count);
    void (*times_silu)(const float *in, const float *gate, float *out, size_t count);
    void (*silu)(float *x, size_t count);
    void (*rotate)(float *a, float *b, const float *rotations, size_t pairs); /* RoPE, halves style */
    /* one token of the gated delta rule (formula in ref_recurrent.c) on state[size, size], with a decay per row of it */
    void (*delta_step)(float *state, size_t size, const float *q, const float *k, const float *v, const float *decay, float b,
                       float *delta, float *out);
    /* state ← decay × state + input × b; returns state · c */
    float (*ssm_step)(float *state, const float *b, const float *c, float decay, float input, size_t count);
    void (*multiply)(const float *a, const float *b, float *out, size_t count);
    void (*tanh_cap)(const float *in, float cap, float *out, size_t count);
} st_isa;

/* Return NULL if the CPU lacks the instructions. */
const st_isa *st_isa_avx2(void);
const st_isa *st_isa_avxvnni(void);
const st_isa *st_isa_avx512(void);
/* Beside st_isa_avx512; NULL if the CPU or the system has no matrix unit. */
const st_isa_panels *st_panels_amx(void);
/* Used by st_isa_avx512 only. */
const st_isa_split *st_isa_amx(void);
void st_avx512_pack_queries(float *queries, size_t count, size_t width);
void st_avx512_dot_q8(const float *packed, size_t lda, size_t shared, const st_cache_rows *rows, float *out, size_t ldo);
void st_avx512_weigh_q8(const float *weights, size_t ldw, size_t shared, const st_cache_rows *rows, float *out, size_t ldo);

#endif
