/* int8 activations: a row of floats as bytes with a scale for each block of 32. Launches of few rows multiply them with
 * quantised weights; the sums of each half of a block serve the types that have an offset. */
#ifndef ST_CUDA_ACTS_CUH
#define ST_CUDA_ACTS_CUH

#include "backend/cuda/common.cuh"

struct __align__(8) st_cuda_act_block {
    float scale;
    int16_t total[2]; /* sums of the bytes of each half */
};

/* Rows in scratch: the bytes of a row, then its blocks. */
struct st_cuda_acts {
    unsigned char *memory; /* aligned to 16 bytes */
    uint32_t width;        /* a multiple of 32 */

    __device__ signed char *bytes(uint32_t row) const
    {
        return (signed char *)memory + (size_t)row * st_cuda_acts_row_bytes(width);
    }
    __device__ st_cuda_act_block *blocks(uint32_t row) const
    {
        return (st_cuda_act_block *)(bytes(row) + width);
    }
};

/* NaN if one of the two is. */
static __device__ __forceinline__ float st_cuda_max_or_nan(float a, float b)
{
    return a > b || isnan(a) ? a : b;
}

/* Quantises one row's block of 32: eight neighbouring lanes call it, each with four elements from `first` on. A block with
 * NaN or an infinity gets a scale that is not finite, so its products are NaN. */
static __device__ __forceinline__ void st_cuda_quantise(const st_cuda_acts &acts, uint32_t row, uint32_t first, float4 x)
{
    enum { LANES = 8 };
    uint32_t within = threadIdx.x % LANES;
    unsigned mask = 0xFFu << (threadIdx.x % ST_CUDA_WARP / LANES * LANES);
    float top = st_cuda_max_or_nan(st_cuda_max_or_nan(fabsf(x.x), fabsf(x.y)), st_cuda_max_or_nan(fabsf(x.z), fabsf(x.w)));
    for (int step = LANES / 2; step > 0; step /= 2) top = st_cuda_max_or_nan(top, __shfl_xor_sync(mask, top, step));
    float inverse = top > 0 ? 127.0f / top : 0.0f;
    int a = __float2int_rn(x.x * inverse), b = __float2int_rn(x.y * inverse);
    int c = __float2int_rn(x.z * inverse), d = __float2int_rn(x.w * inverse);
    int total = a + b + c + d;
    for (int step = 1; step < LANES / 2; step *= 2) total += __shfl_xor_sync(mask, total, step);
    int other = __shfl_xor_sync(mask, total, LANES / 2);
    *(char4 *)(acts.bytes(row) + first) = make_char4((signed char)a, (signed char)b, (signed char)c, (signed char)d);
    if (within == 0) acts.blocks(row)[first / 32] = {top / 127.0f, {(int16_t)total, (int16_t)other}};
}

/* As st_cuda_each_kernel, for rows of a multiple of 32 elements at `out`, which are quantised afterwards. */
template <class F> static __global__ void st_cuda_each_quantised_kernel(st_cuda_rows rows, st_cuda_acts acts, const float *out, F f)
{
    st_cuda_begin();
    uint32_t first = (blockIdx.x * blockDim.x + threadIdx.x) * 4, row = blockIdx.y;
    if (first >= acts.width || row >= rows.count()) return;
    for (uint32_t i = 0; i < 4; i++) f(rows, row, first + i);
    st_cuda_quantise(acts, row, first, *(const float4 *)(out + (size_t)row * acts.width + first));
}

/* As st_cuda_each, for an operation whose output may be quantised; `f` writes an element of it. */
template <class F> static int st_cuda_each_quantised(const st_cuda_call *call, uint32_t width, F f)
{
    enum { THREADS = 128 };
    if (!st_cuda_writes_int8(call)) return st_cuda_each(call, width, f);
    st_cuda_acts acts = {call->scratch, width};
    return st_cuda_start<st_cuda_each_quantised_kernel<F>>(call, dim3(st_cuda_blocks(width / 4, THREADS), call->rows),
                                                           THREADS, 0, st_cuda_rows_of(call), acts,
                                                           st_cuda_floats(call->bound->out), f);
}

#endif
