/* What an instruction set brings to the CPU backend: int8 activations, dots of quantised rows with them, strips of
 * unpacked weights for batches, and the arithmetic of whole rows. One file per instruction set fills the table; fast.c
 * drives it and knows none. */
#ifndef ST_BACKEND_CPU_ISA_H
#define ST_BACKEND_CPU_ISA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/scratch.h"
#include "model/arch.h"

enum { ST_ISA_TYPES = 41 }; /* tensor type numbers are below it */

/* A row of activations as int8: element i of block b ≈ scale[b × stride] × q[b × stride × 32 + i]. `stride` is 1 for a row
 * by itself and ST_ACT_TILE in a tile, where the same block of all tokens lies together. */
typedef struct st_act_row {
    int8_t *q;
    float *scale;
    float *sum;     /* scale × Σq */
    int32_t *total; /* Σq of the block's two halves, one after the other */
    size_t stride;
} st_act_row;

/* The blocks of a row that round worst. They are refined: the residual of rounding is a second block of int8. */
typedef struct st_refined {
    uint32_t count, blocks[ST_REFINED];
} st_refined;

/* A tile of activations. `rest` has the residuals token by token, not side by side: number token × ST_REFINED + i belongs to
 * the token's i-th refined block. */
typedef struct st_act_tile {
    st_act_row acts, rest;
    const st_refined *refined; /* [tokens]; NULL: none */
} st_act_tile;

/* Rows of weights, unpacked for a batch: weight = scale × (byte − zero) + offset, scale and offset shared by
 * groups of 16 or 32. Four elements of a row are a lane, rows side by side: bytes[count / 4][ST_STRIP_ROWS][4]. */
typedef struct st_strip {
    uint8_t *bytes; /* [count × ST_STRIP_ROWS] */
    float *scale;   /* [count / group × ST_STRIP_ROWS] */
    float *offset;  /* as many, if the type has one */
} st_strip;

typedef struct st_isa_type {
    /* out[i] = row i · act, for `rows` rows that lie row_bytes apart. NULL: the type has no kernel here. */
    void (*dots)(const unsigned char *matrix, size_t row_bytes, size_t rows, const st_act_row *act, size_t count, float *out);
    /* Unpacks four rows into places `lane` … of a strip. */
    void (*unpack)(const unsigned char *const rows[4], size_t count, const st_strip *strip, size_t lane);
    uint32_t group; /* 16 or 32 */
    int32_t zero;
    bool has_offset;
} st_isa_type;

/* Rows of the KV cache in place, each of some heads. The kernels prefetch as many bytes from `fetch` on, in order. */
typedef struct st_cache_rows {
    const unsigned char *first;
    size_t stride; /* bytes from row to row */
    size_t count, heads, width;
    uintptr_t fetch; /* 0: none */
} st_cache_rows;

/* A matrix of floats, each split into two bfloat16 numbers in the place of the float: by chunks of ST_SPLIT_CHUNK elements
 * along the dimension that a product sums over. A word of 32 bits holds two elements that follow one another in it. */
typedef struct st_split {
    const float *high, *low; /* low NULL: zeros */
    size_t stride;           /* words from row to row of high or low … */
    size_t step;             /* … and from chunk to chunk */
} st_split;

/* Products of split matrices. Rows and columns of a product are multiples of ST_SPLIT_TILE. */
typedef struct st_isa_split {
    /* A row that is summed along: each chunk becomes ST_SPLIT_TILE words of high, then as many of low. */
    void (*split_row)(float *row, size_t count);
    /* Two successive rows that are summed across: the first becomes high, the second low. */
    void (*split_two_rows)(float *first, float *second, size_t count);
    /* c[m, n] (+)= a[m, chunks] · b[chunks, n] */
    void (*gemm)(const st_split *a, const st_split *b, float *c, size_t ldc, size_t m, size_t n, size_t chunks, bool add);
} st_isa_split;

typedef struct st_isa {
    const char *name;
    const st_isa_split *(*split)(void); /* NULL in here or from it: the CPU has no fast products of bfloat16 */
    void (*quantise)(const float *x, size_t count, const st_act_row *out);
    /* out[32] = what `block` of act does not hold of x */
    void (*residual)(const float *x, const st_act_row *act, size_t block, float out[ST_ACT_BLOCK]);
    st_isa_type types[ST_ISA_TYPES];
    /* out[t × out_stride + lane] for the first `tokens` of a tile and the first `lanes` of a strip. */
    void (*strip_times_tile)(const st_isa_type *type, const st_strip *strip, const st_act_tile *tile, size_t count,
                             size_t tokens, size_t lanes, float *out, size_t out_stride);
    /* Nothing but int8 arithmetic in registers: what the strips could reach at best. The result means nothing. */
    uint64_t (*int8_work)(uint64_t rounds);
    uint32_t int8_ops_per_round; /* multiplications and additions */
    /* Float rows: F32, F16, BF16 by type number; NULL elsewhere. from_float stores what st_row_store does. */
    float (*dot_float[ST_ISA_TYPES])(const void *row, const float *x, size_t count);
    void (*to_float[ST_ISA_TYPES])(const void *row, float *out, size_t count);
    void (*from_float[ST_ISA_TYPES])(const float *in, void *row, size_t count);
    void (*q8_to_float)(const unsigned char *blocks, float *out, size_t count); /* whole blocks of a q8_0 row (quant/row.h) */
    /* Queries as dot_rows of a type wants them, in place; NULL: as they are. */
    void (*pack_queries[ST_ISA_TYPES])(float *queries, size_t count, size_t width);
    /* out[heads × shared, rows] = a[heads × shared, width] · that head of each row; by type number, and of q8_0 heads are whole
     * blocks */
    void (*dot_rows[ST_ISA_TYPES])(const float *a, size_t lda, size_t shared, const st_cache_rows *rows, float *out, size_t ldo);
    /* out[heads × shared, width] += weights[heads × shared, rows] · that head of the rows */
    void (*weigh_rows[ST_ISA_TYPES])(const float *weights, size_t ldw, size_t shared, const st_cache_rows *rows, float *out,
                                     size_t ldo);
    /* c[m, n] (+)= a[m, k] · b[k, n]; each row `ld` elements behind the last; n is a multiple of 16 */
    void (*gemm)(const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, size_t m, size_t n, size_t k,
                 bool add);
    void (*transpose)(const float *in, size_t ld_in, float *out, size_t ld_out, size_t rows, size_t columns);
    void (*add_scaled)(float *out, const float *in, float scale, size_t count); /* out += scale × in */
    void (*scale)(const float *in, float factor, float *out, size_t count);
    void (*norm)(const float *in, const float *weight, float factor, float *out, size_t count); /* weight may be NULL */
    float (*sum_squares)(const float *x, size_t count);
    /* Online softmax of some rows: scores become exp(score − the row's maximum so far). A row of `sums` holds `width`
     * weighted sums, the maximum and the sum of weights; sums so far are rescaled when the maximum grows. */
    void (*softmax)(float *scores, size_t lds, size_t rows, size_t count, float *sums, size_t ldo, size_t width);
    void (*gated)(st_activation activation, const float *gate, const float *up, float *out, size_t count);
    void (*times_sigmoid)(const float *in, const float *gate, float *out, size_t count);
    void (*times_silu)(const float *in, const float *gate, float *out, size_t count);
    void (*silu)(float *x, size_t count);
    void (*turn)(float *a, float *b, const float *turns, size_t pairs); /* halves: a and b by cosine, sine */
    /* one token of the gated delta rule (ref.c says it) on state[size, size] */
    void (*delta_step)(float *state, size_t size, const float *q, const float *k, const float *v, float decay, float b,
                       float *delta, float *out);
    void (*tanh_cap)(const float *in, float cap, float *out, size_t count);
} st_isa;

/* NULL where the machine lacks the instructions. */
const st_isa *st_isa_avx2(void);
const st_isa *st_isa_avx512(void);
/* For st_isa_avx512 alone. */
const st_isa_split *st_isa_amx(void);
void st_avx512_pack_queries(float *queries, size_t count, size_t width);
void st_avx512_dot_q8(const float *packed, size_t lda, size_t shared, const st_cache_rows *rows, float *out, size_t ldo);
void st_avx512_weigh_q8(const float *weights, size_t ldw, size_t shared, const st_cache_rows *rows, float *out, size_t ldo);

#endif
