/* The block layouts of the GGUF tensor types, byte by byte as in the file. Usable from C and CUDA: plain structs of
 * fixed-width integers without padding. Scales named d, m or min_d are IEEE float16, little endian. */
#ifndef ST_QUANT_BLOCKS_H
#define ST_QUANT_BLOCKS_H

#include <stdint.h>

#ifdef __cplusplus
#define ST_BLOCK_SIZE_IS(type, size) static_assert(sizeof(type) == (size), "the layout of " #type)
#else
#define ST_BLOCK_SIZE_IS(type, size) _Static_assert(sizeof(type) == (size), "the layout of " #type)
#endif

enum {
    ST_BLOCK = 32,       /* elements of a small block */
    ST_SUPERBLOCK = 256, /* elements of a K, IQ or TQ block */
    ST_NVFP4_BLOCK = 64, ST_Q1_0_BLOCK = 128, ST_Q2_0_BLOCK = 64,
};

/* ---- small blocks: element i is in the low nibble of byte i, element i + 16 in its high nibble ------------------- */

typedef struct st_block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
} st_block_q4_0;
ST_BLOCK_SIZE_IS(st_block_q4_0, 18);

typedef struct st_block_q4_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qs[16];
} st_block_q4_1;
ST_BLOCK_SIZE_IS(st_block_q4_1, 20);

typedef struct st_block_q5_0 {
    uint16_t d;
    uint8_t qh[4]; /* bit i: the fifth bit of element i */
    uint8_t qs[16];
} st_block_q5_0;
ST_BLOCK_SIZE_IS(st_block_q5_0, 22);

typedef struct st_block_q5_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qh[4]; /* bit i: the fifth bit of element i */
    uint8_t qs[16];
} st_block_q5_1;
ST_BLOCK_SIZE_IS(st_block_q5_1, 24);

typedef struct st_block_q8_0 {
    uint16_t d;
    int8_t qs[32];
} st_block_q8_0;
ST_BLOCK_SIZE_IS(st_block_q8_0, 34);

/* ---- K blocks: 256 elements, scales of parts of 16 or 32 ------------------------------------------------------- */

typedef struct st_block_q2_k {
    uint8_t scales[16]; /* per 16 elements: scale in the low nibble, minimum in the high nibble */
    uint8_t qs[64];     /* half h of 128: element 32k + i is bits 2k of byte 32h + i */
    uint16_t d;
    uint16_t min_d;
} st_block_q2_k;
ST_BLOCK_SIZE_IS(st_block_q2_k, 84);

typedef struct st_block_q3_k {
    uint8_t hmask[32];  /* element 32k + i is bit k of byte i; a 0 bit subtracts 4 */
    uint8_t qs[64];     /* as in Q2_K */
    uint8_t scales[12]; /* 16 scales of 6 bits, less 32: low nibbles of 8 bytes, high nibbles, then 2 bits each */
    uint16_t d;
} st_block_q3_k;
ST_BLOCK_SIZE_IS(st_block_q3_k, 110);

typedef struct st_block_q4_k {
    uint16_t d;
    uint16_t min_d;
    uint8_t scales[12]; /* 8 scales and 8 minima of 6 bits, per 32 elements */
    uint8_t qs[128];    /* quarter q of 64: elements i and 32 + i are the nibbles of byte 32q + i */
} st_block_q4_k;
ST_BLOCK_SIZE_IS(st_block_q4_k, 144);

typedef struct st_block_q5_k {
    uint16_t d;
    uint16_t min_d;
    uint8_t scales[12]; /* as in Q4_K */
    uint8_t qh[32];     /* element 32k + i: its fifth bit is bit k of byte i */
    uint8_t qs[128];    /* as in Q4_K */
} st_block_q5_k;
ST_BLOCK_SIZE_IS(st_block_q5_k, 176);

typedef struct st_block_q6_k {
    uint8_t ql[128];   /* half h of 128: elements i and 64 + i are the nibbles of byte 64h + i */
    uint8_t qh[64];    /* half h of 128: bits 2k of byte 32h + i are the high bits of element 32k + i */
    int8_t scales[16]; /* per 16 elements */
    uint16_t d;
} st_block_q6_k;
ST_BLOCK_SIZE_IS(st_block_q6_k, 210);

/* ---- codebook blocks (tables.h) ---------------------------------------------------------------------------------- */

typedef struct st_block_iq1_s {
    uint16_t d;
    uint8_t qs[32];  /* low 8 bits of a grid index, per 8 elements */
    uint16_t qh[8];  /* per 32: four times 3 high bits, 3 bits of scale, the sign of the shift */
} st_block_iq1_s;
ST_BLOCK_SIZE_IS(st_block_iq1_s, 50);

typedef struct st_block_iq1_m {
    uint8_t qs[32];     /* low 8 bits of a grid index, per 8 elements */
    uint8_t qh[16];     /* two times: 3 high bits, the sign of the shift */
    uint16_t scales[4]; /* four times 3 bits of scale per 16 elements; the top 4 bits together are d */
} st_block_iq1_m;
ST_BLOCK_SIZE_IS(st_block_iq1_m, 56);

typedef struct st_block_iq2_xxs {
    uint16_t d;
    uint8_t qs[64]; /* per 32 elements 8 bytes: four grid indices, then a word of four 7-bit signs and a scale */
} st_block_iq2_xxs;
ST_BLOCK_SIZE_IS(st_block_iq2_xxs, 66);

typedef struct st_block_iq2_xs {
    uint16_t d;
    uint16_t qs[32];   /* per 8 elements: 9 bits of grid index, 7 bits of signs */
    uint8_t scales[8]; /* per 16 elements 4 bits */
} st_block_iq2_xs;
ST_BLOCK_SIZE_IS(st_block_iq2_xs, 74);

typedef struct st_block_iq2_s {
    uint16_t d;
    uint8_t qs[32];    /* low 8 bits of a grid index, per 8 elements */
    uint8_t signs[32]; /* a bit per element */
    uint8_t qh[8];     /* 2 high bits of a grid index, per 8 elements */
    uint8_t scales[8]; /* per 16 elements 4 bits */
} st_block_iq2_s;
ST_BLOCK_SIZE_IS(st_block_iq2_s, 82);

typedef struct st_block_iq3_xxs {
    uint16_t d;
    uint8_t qs[64];    /* a grid index per 4 elements */
    uint8_t signs[32]; /* per 32 elements a word: four 7-bit signs and a scale */
} st_block_iq3_xxs;
ST_BLOCK_SIZE_IS(st_block_iq3_xxs, 98);

typedef struct st_block_iq3_s {
    uint16_t d;
    uint8_t qs[64];    /* low 8 bits of a grid index, per 4 elements */
    uint8_t qh[8];     /* the ninth bits */
    uint8_t signs[32]; /* a bit per element */
    uint8_t scales[4]; /* per 32 elements 4 bits */
} st_block_iq3_s;
ST_BLOCK_SIZE_IS(st_block_iq3_s, 110);

typedef struct st_block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
} st_block_iq4_nl;
ST_BLOCK_SIZE_IS(st_block_iq4_nl, 18);

typedef struct st_block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;   /* 2 high bits of a scale, per 32 elements */
    uint8_t scales_l[4]; /* 4 low bits */
    uint8_t qs[128];     /* per 32 elements 16 bytes, as in IQ4_NL */
} st_block_iq4_xs;
ST_BLOCK_SIZE_IS(st_block_iq4_xs, 136);

/* ---- one scale for one- or two-bit values ------------------------------------------------------------------------ */

typedef struct st_block_q1_0 {
    uint16_t d;
    uint8_t qs[16]; /* a bit per element, lowest first: 1 is d, 0 is −d */
} st_block_q1_0;
ST_BLOCK_SIZE_IS(st_block_q1_0, 18);

typedef struct st_block_q2_0 {
    uint16_t d;
    uint8_t qs[16]; /* two bits per element, lowest first */
} st_block_q2_0;
ST_BLOCK_SIZE_IS(st_block_q2_0, 18);

/* ---- ternary and 4-bit float blocks ------------------------------------------------------------------------------ */

typedef struct st_block_tq1_0 {
    uint8_t qs[48]; /* five ternary digits per byte, as a fraction of 256: 32 bytes, then 16 */
    uint8_t qh[4];  /* four digits per byte */
    uint16_t d;
} st_block_tq1_0;
ST_BLOCK_SIZE_IS(st_block_tq1_0, 54);

typedef struct st_block_tq2_0 {
    uint8_t qs[64]; /* as in Q2_K */
    uint16_t d;
} st_block_tq2_0;
ST_BLOCK_SIZE_IS(st_block_tq2_0, 66);

typedef struct st_block_mxfp4 {
    uint8_t e; /* E8M0 exponent */
    uint8_t qs[16];
} st_block_mxfp4;
ST_BLOCK_SIZE_IS(st_block_mxfp4, 17);

typedef struct st_block_nvfp4 {
    uint8_t d[4];   /* per 16 elements: unsigned E4M3 */
    uint8_t qs[32]; /* per 16 elements 8 bytes: element i in the low nibble, i + 8 in the high nibble */
} st_block_nvfp4;
ST_BLOCK_SIZE_IS(st_block_nvfp4, 36);

#endif
