/* Pairs of f16 in a register, as tensor cores read them (machine.cuh), rows of f16 in shared memory, and products of
 * numbers that are sums of two f16. */
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

/* Two BF16 numbers / ST_CUDA_BF16_SHRINK as f16: up to a million, and as small as f16 needs. */
enum { ST_CUDA_BF16_SHRINK = 16 };

static __device__ __forceinline__ unsigned st_cuda_shrink_bf16(unsigned both)
{
    const float factor = 1.0f / ST_CUDA_BF16_SHRINK;
    return st_cuda_pack(__uint_as_float(both << 16) * factor, __uint_as_float(both & 0xFFFF0000u) * factor);
}

/* Two numbers as the sum of two f16 each: 22 bits. */
static __device__ __forceinline__ void st_cuda_split_halves(float a, float b, unsigned &high, unsigned &low)
{
    high = st_cuda_pack(a, b);
    float2 kept = st_cuda_unpack(high);
    low = st_cuda_pack(a - kept.x, b - kept.y);
}

/* Rows of f16 in shared memory; the low parts of sums of two come behind. Rows are padded, so that their addresses
 * differ in their banks. */
enum { ST_CUDA_ROW_PAD = 8 };

template <int WIDTH, int COUNT> struct st_cuda_half_rows {
    enum { STRIDE = WIDTH + ST_CUDA_ROW_PAD, HALVES = COUNT * STRIDE };
    __half *data;

    __device__ __half *at(uint32_t row, uint32_t element, int part) const
    {
        return data + part * HALVES + row * STRIDE + element;
    }
};

/* a[16 × 16], high and low parts: the tile's rows from `row` on, their elements from `element` on */
template <class TILE>
static __device__ __forceinline__ void st_cuda_load_factor(unsigned (*a)[4], TILE tile, uint32_t row, uint32_t element)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
#pragma unroll
    for (int part = 0; part < 2; part++)
        st_cuda_load_matrices(a[part], tile.at(row + lane % 16, element + lane / 16 * 8, part));
}

/* c[16 × 16] += a[16 × 16] · b[16 × 16]: high and low parts, without the product of both low ones */
static __device__ __forceinline__ void st_cuda_mma_split(float (*c)[4], const unsigned (*a)[4], const unsigned (*b)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) st_cuda_mma(c[i], a[0], b[0][2 * i], b[0][2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 2; i++) st_cuda_mma(c[i], a[1], b[0][2 * i], b[0][2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 2; i++) st_cuda_mma(c[i], a[0], b[1][2 * i], b[1][2 * i + 1]);
}

#endif
