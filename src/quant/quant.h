/* The GGUF tensor types: one table {name, block, bytes, dequantise}. Only this module knows the bits of a block; it
 * knows no files, models or devices. Block layouts (blocks.h), codebooks (tables.h) and elements of blocks
 * (elements.h) are usable from C and CUDA. */
#ifndef ST_QUANT_QUANT_H
#define ST_QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are the file format's. */
typedef enum st_type {
    ST_TYPE_F32 = 0,
    ST_TYPE_F16 = 1,
    ST_TYPE_Q4_0 = 2,
    ST_TYPE_Q4_1 = 3,
    ST_TYPE_Q5_0 = 6,
    ST_TYPE_Q5_1 = 7,
    ST_TYPE_Q8_0 = 8,
    ST_TYPE_Q2_K = 10,
    ST_TYPE_Q3_K = 11,
    ST_TYPE_Q4_K = 12,
    ST_TYPE_Q5_K = 13,
    ST_TYPE_Q6_K = 14,
    ST_TYPE_IQ2_XXS = 16,
    ST_TYPE_IQ2_XS = 17,
    ST_TYPE_IQ3_XXS = 18,
    ST_TYPE_IQ1_S = 19,
    ST_TYPE_IQ4_NL = 20,
    ST_TYPE_IQ3_S = 21,
    ST_TYPE_IQ2_S = 22,
    ST_TYPE_IQ4_XS = 23,
    ST_TYPE_I8 = 24,
    ST_TYPE_I16 = 25,
    ST_TYPE_I32 = 26,
    ST_TYPE_I64 = 27,
    ST_TYPE_F64 = 28,
    ST_TYPE_IQ1_M = 29,
    ST_TYPE_BF16 = 30,
    ST_TYPE_TQ1_0 = 34,
    ST_TYPE_TQ2_0 = 35,
    ST_TYPE_MXFP4 = 39,
    ST_TYPE_NVFP4 = 40,
    ST_TYPE_Q1_0 = 41,
    ST_TYPE_Q2_0 = 42,
} st_type;

typedef struct st_type_info {
    const char *name;   /* as users write it: "Q4_K" */
    uint32_t block;     /* elements per block; 1 for plain types */
    uint32_t bytes;     /* bytes per block */
    /* `blocks` whole blocks at `from` (any alignment) → blocks × block floats. Every type has one; integers and F64
     * are converted. */
    void (*dequantise)(const void *from, float *to, size_t blocks);
} st_type_info;

/* The table entry of a type number from a file; NULL: the number is not in the table. */
const st_type_info *st_type_find(uint32_t type);

/* Iterates over the table: st_type_count() entries. */
size_t st_type_count(void);
st_type st_type_at(size_t index);

/* Bytes of a row of `elements`, checked: false if it is not a whole number of blocks or overflows. */
bool st_type_row_bytes(const st_type_info *info, uint64_t elements, size_t *out);

/* IEEE float16 and bfloat16 to float, exact. */
float st_half_to_float(uint16_t half) __attribute__((const));
uint16_t st_float_to_half(float value); /* round to nearest even */
float st_bf16_to_float(uint16_t bits);
uint16_t st_float_to_bf16(float value); /* round to nearest even; NaN stays NaN */

#endif
