/* The table of types, and its reference dequantisers: slow and obvious. Private to src/quant; backend/cuda reads the
 * table. */
#ifndef ST_QUANT_DEQUANT_H
#define ST_QUANT_DEQUANT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* name, function, elements per block, bytes per block */
#define ST_TYPE_TABLE(X)            \
    X(F32, f32, 1, 4)               \
    X(F16, f16, 1, 2)               \
    X(Q4_0, q4_0, 32, 18)           \
    X(Q4_1, q4_1, 32, 20)           \
    X(Q5_0, q5_0, 32, 22)           \
    X(Q5_1, q5_1, 32, 24)           \
    X(Q8_0, q8_0, 32, 34)           \
    X(Q2_K, q2_k, 256, 84)          \
    X(Q3_K, q3_k, 256, 110)         \
    X(Q4_K, q4_k, 256, 144)         \
    X(Q5_K, q5_k, 256, 176)         \
    X(Q6_K, q6_k, 256, 210)         \
    X(IQ2_XXS, iq2_xxs, 256, 66)    \
    X(IQ2_XS, iq2_xs, 256, 74)      \
    X(IQ3_XXS, iq3_xxs, 256, 98)    \
    X(IQ1_S, iq1_s, 256, 50)        \
    X(IQ4_NL, iq4_nl, 32, 18)       \
    X(IQ3_S, iq3_s, 256, 110)       \
    X(IQ2_S, iq2_s, 256, 82)        \
    X(IQ4_XS, iq4_xs, 256, 136)     \
    X(I8, i8, 1, 1)                 \
    X(I16, i16, 1, 2)               \
    X(I32, i32, 1, 4)               \
    X(I64, i64, 1, 8)               \
    X(F64, f64, 1, 8)               \
    X(IQ1_M, iq1_m, 256, 56)        \
    X(BF16, bf16, 1, 2)             \
    X(TQ1_0, tq1_0, 256, 54)        \
    X(TQ2_0, tq2_0, 256, 66)        \
    X(MXFP4, mxfp4, 32, 17)         \
    X(NVFP4, nvfp4, 64, 36)         \
    X(Q1_0, q1_0, 128, 18)          \
    X(Q2_0, q2_0, 64, 18)

#define X(name, function, block, bytes) void st_dequantise_##function(const void *from, float *to, size_t blocks);
ST_TYPE_TABLE(X)
#undef X

#endif
