/* Matrices among the weights, as they are in the file: element i of a row, by type. */
#ifndef ST_CUDA_WEIGHTS_CUH
#define ST_CUDA_WEIGHTS_CUH

#include "backend/cuda/common.cuh"
#include "quant/elements.h"

/* Plain types also have elements i to i + 3 of an aligned row; i is a multiple of 4. */
struct st_cuda_f32 {
    enum { PLAIN = true };
    static __device__ __forceinline__ float4 four(const unsigned char *row, size_t i)
    {
        return __ldg((const float4 *)(row + i * sizeof(float)));
    }
    static __device__ __forceinline__ float at(const unsigned char *row, size_t i)
    {
        return ((const float *)row)[i];
    }
};

struct st_cuda_f16 {
    enum { PLAIN = true };
    static __device__ __forceinline__ float4 four(const unsigned char *row, size_t i)
    {
        uint2 bits = __ldg((const uint2 *)(row + i * sizeof(__half)));
        float2 a = __half22float2(*(const __half2 *)&bits.x), b = __half22float2(*(const __half2 *)&bits.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    static __device__ __forceinline__ float at(const unsigned char *row, size_t i)
    {
        return __half2float(((const __half *)row)[i]);
    }
};

struct st_cuda_bf16 {
    enum { PLAIN = true };
    static __device__ __forceinline__ float4 four(const unsigned char *row, size_t i)
    {
        uint2 bits = __ldg((const uint2 *)(row + i * sizeof(__nv_bfloat16)));
        return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u), __uint_as_float(bits.y << 16),
                           __uint_as_float(bits.y & 0xFFFF0000u));
    }
    static __device__ __forceinline__ float at(const unsigned char *row, size_t i)
    {
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    }
};

/* name in the type table, name of the functions, elements of a block */
#define ST_CUDA_BLOCK_TYPES(X) \
    X(Q4_0, q4_0, 32)          \
    X(Q4_1, q4_1, 32)          \
    X(Q5_0, q5_0, 32)          \
    X(Q5_1, q5_1, 32)          \
    X(Q8_0, q8_0, 32)          \
    X(Q2_K, q2_k, 256)         \
    X(Q3_K, q3_k, 256)         \
    X(Q4_K, q4_k, 256)         \
    X(Q5_K, q5_k, 256)         \
    X(Q6_K, q6_k, 256)         \
    X(IQ1_S, iq1_s, 256)       \
    X(IQ1_M, iq1_m, 256)       \
    X(IQ2_XXS, iq2_xxs, 256)   \
    X(IQ2_XS, iq2_xs, 256)     \
    X(IQ2_S, iq2_s, 256)       \
    X(IQ3_XXS, iq3_xxs, 256)   \
    X(IQ3_S, iq3_s, 256)       \
    X(IQ4_NL, iq4_nl, 32)      \
    X(IQ4_XS, iq4_xs, 256)     \
    X(TQ1_0, tq1_0, 256)       \
    X(TQ2_0, tq2_0, 256)       \
    X(MXFP4, mxfp4, 32)        \
    X(NVFP4, nvfp4, 64)        \
    X(Q1_0, q1_0, 128)         \
    X(Q2_0, q2_0, 64)

#define X(NAME, name, block)                                                                  \
    struct st_cuda_##name {                                                                   \
        enum { PLAIN = false };                                                               \
        static __device__ __forceinline__ float at(const unsigned char *row, size_t i)        \
        {                                                                                     \
            return st_at_##name((const st_block_##name *)row + i / (block), (int)(i % (block))); \
        }                                                                                     \
    };
ST_CUDA_BLOCK_TYPES(X)
#undef X

/* f.run<type>() for the type of that number; f launches a kernel for it. */
template <class F> static int st_cuda_with_type(uint32_t type, const F &f)
{
    switch (type) {
    case ST_TYPE_F32: return f.template run<st_cuda_f32>();
    case ST_TYPE_F16: return f.template run<st_cuda_f16>();
    case ST_TYPE_BF16: return f.template run<st_cuda_bf16>();
#define X(NAME, name, block) \
    case ST_TYPE_##NAME: return f.template run<st_cuda_##name>();
        ST_CUDA_BLOCK_TYPES(X)
#undef X
    default: return (int)cudaErrorInvalidValue;
    }
}

#endif
