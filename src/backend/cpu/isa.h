/* What an instruction set brings to the CPU backend: int8 activations, dots of quantised rows with them, strips of
 * unpacked weights for batches, and the arithmetic of whole rows. One file per instruction set fills the table; fast.c
 * drives it and knows none. */
#ifndef ST_BACKEND_CPU_ISA_H
#define ST_BACKEND_CPU_ISA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/arch.h"
#include "model/scratch.h"

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

/* A tile of activations, and what rounding left of the blocks that round worst: block i of `rest` belongs to list[i]. */
typedef struct st_act_tile {
    st_act_row acts, rest;
    const uint32_t *list; /* [refined] */
    size_t refined;       /* 0: none */
} st_act_tile;

/* Rows of weights, unpacked for a batch: weight = scale × (byte − zero) + offset, scale and offset shared by
 * groups of 16 or 32. Four elements of a row are a lane, rows side by side: bytes[count / 4][ST_STRIP_ROWS][4]. */
typedef struct st_strip {
    uint8_t *bytes; /* [count × ST_STRIP_ROWS] */
    float *scale;   /* [count / group × ST_STRIP_ROWS] */
    float *offset;  /* [count / 32 × ST_STRIP_ROWS], if the type has one */
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

/* Rows of floats as they lie in memory. As many bytes from `fetch` on are fetched, in order, while they are used. */
typedef struct st_float_rows {
    const float *first;
    size_t stride; /* floats from row to row */
    size_t count, width;
    uintptr_t fetch; /* 0: nothing */
} st_float_rows;

/* Products of bfloat16 pairs: a word holds two elements that are multiplied and summed together. */
typedef struct st_isa_pairs {
    void (*pack)(const float *in, uint32_t *out, size_t pairs); /* (in[2i], in[2i + 1]); out may be in */
    void (*weave)(const float *first, const float *second, uint32_t *out, size_t count); /* (first[i], second[i]) */
    /* c[m, n] (+)= a[m, pairs] · b[pairs, n]; n is a multiple of 16 */
    void (*gemm)(const uint32_t *a, size_t lda, const uint32_t *b, size_t ldb, float *c, size_t ldc, size_t m, size_t n,
                 size_t pairs, bool add);
} st_isa_pairs;

typedef struct st_isa {
    const char *name;
    const st_isa_pairs *(*pairs)(void); /* NULL in here or from it: the machine has none */
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
    /* Float rows: F32, F16, BF16 by type number; NULL elsewhere. */
    float (*dot_float[ST_ISA_TYPES])(const void *row, const float *x, size_t count);
    void (*to_float[ST_ISA_TYPES])(const void *row, float *out, size_t count);
    void (*q8_to_float)(const unsigned char *blocks, float *out, size_t count); /* whole blocks of a q8_0 row (quant/row.h) */
    /* out[queries, rows] = a[queries, width] · each row */
    void (*dot_rows)(const float *a, size_t lda, size_t queries, const st_float_rows *rows, float *out, size_t ldo);
    /* out[queries, width] += weights[queries, rows] · the rows */
    void (*weigh_rows)(const float *weights, size_t ldw, size_t queries, const st_float_rows *rows, float *out,
                       size_t ldo);
    /* c[m, n] (+)= a[m, k] · b[k, n]; each row `ld` elements behind the last; n is a multiple of 16 */
    void (*gemm)(const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, size_t m, size_t n, size_t k,
                 bool add);
    void (*transpose)(const float *in, size_t ld_in, float *out, size_t ld_out, size_t rows, size_t columns);
    void (*add_scaled)(float *out, const float *in, float scale, size_t count); /* out += scale × in */
    void (*scale)(const float *in, float factor, float *out, size_t count);
    void (*norm)(const float *in, const float *weight, float factor, float *out, size_t count); /* weight may be NULL */
    float (*sum_squares)(const float *x, size_t count);
    float (*maximum)(const float *x, size_t count);
    float (*exp_and_sum)(float *x, float shift, size_t count); /* x = exp(x − shift); their sum */
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
const st_isa_pairs *st_isa_avx512bf16(void); /* with avx512 */

#endif
