/* The reference dequantisers: blocks element by element, as elements.h defines them. The order of the float operations
 * is part of the format: results are bit-identical on every machine. */
#include "quant/dequant.h"

#include "quant/elements.h"
#include "quant/quant.h"

/* Defines st_dequantise_NAME for a type without blocks. */
#define PLAIN_TYPE(name, c_type, expression)                                  \
    void st_dequantise_##name(const void *from, float *to, size_t blocks)     \
    {                                                                         \
        for (size_t i = 0; i < blocks; i++) {                                 \
            c_type x;                                                         \
            memcpy(&x, (const unsigned char *)from + i * sizeof x, sizeof x); \
            to[i] = (expression);                                             \
        }                                                                     \
    }

void st_dequantise_f32(const void *from, float *to, size_t blocks)
{
    memcpy(to, from, blocks * sizeof *to);
}

PLAIN_TYPE(f16, uint16_t, st_half_to_float(x))
PLAIN_TYPE(bf16, uint16_t, st_bf16_to_float(x))
PLAIN_TYPE(f64, double, (float)x)
PLAIN_TYPE(i8, int8_t, (float)x)
PLAIN_TYPE(i16, int16_t, (float)x)
PLAIN_TYPE(i32, int32_t, (float)x)
PLAIN_TYPE(i64, int64_t, (float)x)

/* The same for blocks. A block is copied, because its address in the file may be unaligned. With the steps unrolled, the compiler
 * computes what the elements of a step share once, and several of them together. */
enum { STEP = 16 };
#define BLOCK_TYPE(name, elements)                                                              \
    _Static_assert((elements) % STEP == 0, "whole steps");                                      \
    void st_dequantise_##name(const void *from, float *to, size_t blocks)                       \
    {                                                                                           \
        for (size_t i = 0; i < blocks; i++) {                                                   \
            st_block_##name block;                                                              \
            memcpy(&block, (const unsigned char *)from + i * sizeof block, sizeof block);       \
            _Pragma("GCC unroll 16")                                                            \
            for (int first = 0; first < (elements); first += STEP)                              \
                for (int k = first; k < first + STEP; k++)                                      \
                    to[i * (elements) + k] = st_at_##name(&block, k);                           \
        }                                                                                       \
    }

BLOCK_TYPE(q4_0, ST_BLOCK)
BLOCK_TYPE(q4_1, ST_BLOCK)
BLOCK_TYPE(q5_0, ST_BLOCK)
BLOCK_TYPE(q5_1, ST_BLOCK)
BLOCK_TYPE(q8_0, ST_BLOCK)
BLOCK_TYPE(iq4_nl, ST_BLOCK)
BLOCK_TYPE(mxfp4, ST_BLOCK)
BLOCK_TYPE(nvfp4, ST_NVFP4_BLOCK)
BLOCK_TYPE(q1_0, ST_Q1_0_BLOCK)
BLOCK_TYPE(q2_0, ST_Q2_0_BLOCK)
BLOCK_TYPE(q2_k, ST_SUPERBLOCK)
BLOCK_TYPE(q3_k, ST_SUPERBLOCK)
BLOCK_TYPE(q4_k, ST_SUPERBLOCK)
BLOCK_TYPE(q5_k, ST_SUPERBLOCK)
BLOCK_TYPE(q6_k, ST_SUPERBLOCK)
BLOCK_TYPE(tq1_0, ST_SUPERBLOCK)
BLOCK_TYPE(tq2_0, ST_SUPERBLOCK)
BLOCK_TYPE(iq1_s, ST_SUPERBLOCK)
BLOCK_TYPE(iq1_m, ST_SUPERBLOCK)
BLOCK_TYPE(iq2_xxs, ST_SUPERBLOCK)
BLOCK_TYPE(iq2_xs, ST_SUPERBLOCK)
BLOCK_TYPE(iq2_s, ST_SUPERBLOCK)
BLOCK_TYPE(iq3_xxs, ST_SUPERBLOCK)
BLOCK_TYPE(iq3_s, ST_SUPERBLOCK)
BLOCK_TYPE(iq4_xs, ST_SUPERBLOCK)
