/* Rows of the KV cache, by type: stored whole, read by element. As quant/row.c has them; rows may begin at any byte. */
#ifndef ST_CUDA_KV_CUH
#define ST_CUDA_KV_CUH

#include "backend/cuda/common.cuh"

/* The bits that quant/row.c stores: a half beyond the largest finite one is that one, and NaN stays NaN. */
static __device__ __forceinline__ unsigned short st_cuda_half_bits(float x)
{
    unsigned bits = __float_as_uint(x), payload = bits >> 13 & 0x3FF;
    if (isnan(x)) return (unsigned short)((bits >> 16 & 0x8000) | 0x7C00 | (payload ? payload : 0x200));
    return __half_as_ushort(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

static __device__ __forceinline__ unsigned short st_cuda_bf16_bits(float x)
{
    if (isnan(x)) return (unsigned short)(__float_as_uint(x) >> 16 | 0x40);
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* `four`: elements i to i + 3 of an aligned row (call.h); i is a multiple of 4. `load_eight`: elements i to i + 7, to be unpacked
 * later; i is a multiple of 8. Whole warps store blocks of 32 elements. */
struct st_cuda_kv_f32 {
    struct eight {
        float4 low, high;
    };
    static __device__ __forceinline__ eight load_eight(const unsigned char *row, uint32_t i)
    {
        const float4 *from = (const float4 *)(row + i * sizeof(float));
        return {from[0], from[1]};
    }
    static __device__ __forceinline__ void unpack(const eight &x, float *to)
    {
        to[0] = x.low.x, to[1] = x.low.y, to[2] = x.low.z, to[3] = x.low.w;
        to[4] = x.high.x, to[5] = x.high.y, to[6] = x.high.z, to[7] = x.high.w;
    }
    static __device__ __forceinline__ float4 four(const unsigned char *row, uint32_t i)
    {
        return *(const float4 *)(row + i * sizeof(float));
    }
    static __device__ __forceinline__ float at(const unsigned char *row, uint32_t i)
    {
        return ((const float *)row)[i];
    }
    static __device__ __forceinline__ void store(unsigned char *row, uint32_t i, bool valid, float x)
    {
        if (valid) ((float *)row)[i] = x;
    }
};

struct st_cuda_kv_f16 {
    typedef uint4 eight;
    static __device__ __forceinline__ eight load_eight(const unsigned char *row, uint32_t i)
    {
        return *(const uint4 *)(row + i * sizeof(__half));
    }
    static __device__ __forceinline__ void unpack(const eight &x, float *to)
    {
        const unsigned words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 two = __half22float2(*(const __half2 *)&words[i]);
            to[2 * i] = two.x, to[2 * i + 1] = two.y;
        }
    }
    static __device__ __forceinline__ float4 four(const unsigned char *row, uint32_t i)
    {
        uint2 bits = *(const uint2 *)(row + i * sizeof(__half));
        float2 a = __half22float2(*(const __half2 *)&bits.x), b = __half22float2(*(const __half2 *)&bits.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    static __device__ __forceinline__ float at(const unsigned char *row, uint32_t i)
    {
        return __half2float(((const __half *)row)[i]);
    }
    static __device__ __forceinline__ void store(unsigned char *row, uint32_t i, bool valid, float x)
    {
        if (valid) ((unsigned short *)row)[i] = st_cuda_half_bits(x);
    }
};

struct st_cuda_kv_bf16 {
    typedef uint4 eight;
    static __device__ __forceinline__ eight load_eight(const unsigned char *row, uint32_t i)
    {
        return *(const uint4 *)(row + i * sizeof(__nv_bfloat16));
    }
    static __device__ __forceinline__ void unpack(const eight &x, float *to)
    {
        const unsigned words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[2 * i] = __uint_as_float(words[i] << 16);
            to[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
        }
    }
    static __device__ __forceinline__ float4 four(const unsigned char *row, uint32_t i)
    {
        uint2 bits = *(const uint2 *)(row + i * sizeof(__nv_bfloat16));
        return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u), __uint_as_float(bits.y << 16),
                           __uint_as_float(bits.y & 0xFFFF0000u));
    }
    static __device__ __forceinline__ float at(const unsigned char *row, uint32_t i)
    {
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    }
    static __device__ __forceinline__ void store(unsigned char *row, uint32_t i, bool valid, float x)
    {
        if (valid) ((unsigned short *)row)[i] = st_cuda_bf16_bits(x);
    }
};

struct st_cuda_kv_q8_0 {
    enum { BLOCK = 32, STRIDE = BLOCK + 2 };
    struct eight {
        unsigned short scale, two[4];
    };
    static __device__ __forceinline__ eight load_eight(const unsigned char *row, uint32_t i)
    {
        const unsigned short *block = (const unsigned short *)(row + (size_t)(i / BLOCK) * STRIDE), *from = block + 1 + i % BLOCK / 2;
        return {block[0], {from[0], from[1], from[2], from[3]}};
    }
    static __device__ __forceinline__ void unpack(const eight &x, float *to)
    {
        float scale = __half2float(__ushort_as_half(x.scale));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[2 * i] = scale * (float)(signed char)(x.two[i] & 0xFF);
            to[2 * i + 1] = scale * (float)(signed char)(x.two[i] >> 8);
        }
    }
    static __device__ __forceinline__ float4 four(const unsigned char *row, uint32_t i)
    {
        const unsigned short *block = (const unsigned short *)(row + (size_t)(i / BLOCK) * STRIDE);
        float scale = __half2float(__ushort_as_half(block[0]));
        unsigned a = block[1 + i % BLOCK / 2], b = block[2 + i % BLOCK / 2];
        return make_float4(scale * (float)(signed char)a, scale * (float)(signed char)(a >> 8), scale * (float)(signed char)b,
                           scale * (float)(signed char)(b >> 8));
    }
    static __device__ __forceinline__ float at(const unsigned char *row, uint32_t i)
    {
        const unsigned char *block = row + (size_t)(i / BLOCK) * STRIDE;
        unsigned short scale = (unsigned short)(block[0] | block[1] << 8);
        return __half2float(__ushort_as_half(scale)) * (float)(signed char)block[2 + i % BLOCK];
    }
    static __device__ __forceinline__ void store(unsigned char *row, uint32_t i, bool valid, float x)
    {
        float largest = st_cuda_warp_max(valid ? fabsf(x) : 0.0f);
        float scale = __fdiv_rn(largest, 127.0f), inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
        unsigned short half = st_cuda_half_bits(scale);
        unsigned char *block = row + (size_t)(i / BLOCK) * STRIDE;
        if (i % BLOCK == 0 && valid) {
            block[0] = (unsigned char)(half & 0xFF);
            block[1] = (unsigned char)(half >> 8);
        }
        if (valid) block[2 + i % BLOCK] = (unsigned char)(signed char)__float2int_rn(x * inverse);
    }
};

/* f.run<type>() for the type of a KV cache. */
template <class F> static int st_cuda_with_kv_type(st_type type, const F &f)
{
    switch (type) {
    case ST_TYPE_F32: return f.template run<st_cuda_kv_f32>();
    case ST_TYPE_F16: return f.template run<st_cuda_kv_f16>();
    case ST_TYPE_BF16: return f.template run<st_cuda_kv_bf16>();
    case ST_TYPE_Q8_0: return f.template run<st_cuda_kv_q8_0>();
    default: return (int)cudaErrorInvalidValue;
    }
}

#endif
