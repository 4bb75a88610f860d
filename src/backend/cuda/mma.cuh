/* Pairs of f16 in a register, as tensor cores read them (machine.cuh). */
#ifndef ST_CUDA_MMA_CUH
#define ST_CUDA_MMA_CUH

#include "backend/cuda/common.cuh"

static __device__ __forceinline__ unsigned st_cuda_pack(float a, float b)
{
    __half2 both = __floats2half2_rn(a, b);
    return *(const unsigned *)&both;
}

static __device__ __forceinline__ float2 st_cuda_unpack(unsigned both)
{
    return __half22float2(*(const __half2 *)&both);
}

/* Two numbers as the sum of two f16 each: 22 bits. */
static __device__ __forceinline__ void st_cuda_split_halves(float a, float b, unsigned &high, unsigned &low)
{
    high = st_cuda_pack(a, b);
    float2 kept = st_cuda_unpack(high);
    low = st_cuda_pack(a - kept.x, b - kept.y);
}

#endif
