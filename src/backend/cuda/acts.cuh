/* int8 activations: a row of floats as bytes with a scale for each group of 16, as many as half a unit of weights has. Launches
 * of few rows multiply them with quantised weights; the sums of the bytes serve the types that have an offset. */
#ifndef ST_CUDA_ACTS_CUH
#define ST_CUDA_ACTS_CUH

#include <float.h>

#include "backend/cuda/common.cuh"

struct __align__(8) st_cuda_act_group {
    float scale, total; /* total: sum of the bytes */
};

/* Rows in scratch: the bytes of a row, then its groups. */
struct st_cuda_acts {
    unsigned char *memory; /* aligned to 16 bytes */
    uint32_t width;        /* a multiple of 32 */

    __device__ signed char *bytes(uint32_t row) const
    {
        return (signed char *)memory + (size_t)row * (uint32_t)st_cuda_acts_row_bytes(width);
    }
    __device__ st_cuda_act_group *groups(uint32_t row) const
    {
        return (st_cuda_act_group *)(bytes(row) + width);
    }
};

/* What a lane has of a row's group: four elements from `first` on, of four neighbouring lanes. A group with NaN or an infinity
 * gets a scale that is not finite, so its products are NaN. */
struct st_cuda_quantised {
    unsigned bytes;
    float2 group; /* st_cuda_act_group, stored at once */

    st_cuda_quantised() = default;
    /* Called by whole warps. */
    __device__ __forceinline__ explicit st_cuda_quantised(float4 x)
    {
        enum { LANES = ST_CUDA_ACT_GROUP / 4 };
        float top = st_cuda_max_or_nan(st_cuda_max_or_nan(fabsf(x.x), fabsf(x.y)), st_cuda_max_or_nan(fabsf(x.z), fabsf(x.w)));
        for (int step = LANES / 2; step > 0; step /= 2) top = st_cuda_max_or_nan(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
        float scale = top * (1 / 127.0f), inverse = scale >= FLT_MIN ? st_cuda_reciprocal(scale) : 0.0f;
        unsigned low = __byte_perm(__float2int_rn(x.x * inverse), __float2int_rn(x.y * inverse), 0x0040);
        unsigned high = __byte_perm(__float2int_rn(x.z * inverse), __float2int_rn(x.w * inverse), 0x0040);
        bytes = __byte_perm(low, high, 0x5410);
        int total = __dp4a((int)bytes, 0x01010101, 0);
        for (int step = LANES / 2; step > 0; step /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, step);
        group = make_float2(scale, (float)total);
    }
    __device__ __forceinline__ void store(const st_cuda_acts &acts, uint32_t row, uint32_t first) const
    {
        *(unsigned *)(acts.bytes(row) + first) = bytes;
        if (first % ST_CUDA_ACT_GROUP == 0) *(float2 *)(acts.groups(row) + first / ST_CUDA_ACT_GROUP) = group;
    }
};

/* Whole warps call it; lanes that are not `valid` store nothing. */
static __device__ __forceinline__ void st_cuda_quantise(const st_cuda_acts &acts, uint32_t row, uint32_t first, float4 x, bool valid)
{
    st_cuda_quantised q(x);
    if (valid) q.store(acts, row, first);
}

/* out = f(a, b) by element, for operations whose output may be quantised or converted. */
template <class F> struct st_cuda_pairs {
    const float *a, *b; /* b: NULL: ones */
    float *out;
    uint32_t width;
    bool one;           /* b has an element for each row */
    F f;

    __device__ float4 four(uint32_t row, uint32_t i) const
    {
        size_t at = (size_t)row * width + i;
        float4 x = *(const float4 *)(a + at), y = make_float4(1, 1, 1, 1);
        if (one) y.x = y.y = y.z = y.w = b[row];
        else if (b) y = *(const float4 *)(b + at);
        return make_float4(f(x.x, y.x), f(x.y, y.y), f(x.z, y.z), f(x.w, y.w));
    }
    __device__ void store(uint32_t row, uint32_t i, float4 x) const
    {
        *(float4 *)(out + (size_t)row * width + i) = x;
    }
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        size_t at = (size_t)row * width + i;
        out[at] = f(a[at], b ? b[one ? row : at] : 1.0f);
    }
};

/* Of in[0] and in[1]. */
template <class F> static st_cuda_pairs<F> st_cuda_pairs_of(const st_cuda_call *call, const F &f)
{
    const st_bound_op *b = call->bound;
    return {st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->out), b->out.width,
            b->in[1].data && b->in[1].width == 1, f};
}

/* Of rows of a multiple of 32 elements, which are quantised as well. */
template <class F> static __global__ void st_cuda_each_quantised_kernel(st_cuda_rows rows, st_cuda_acts acts, st_cuda_pairs<F> pairs)
{
    st_cuda_begin();
    uint32_t first = (blockIdx.x * blockDim.x + threadIdx.x) * 4, row = blockIdx.y;
    float4 x = {};
    if (first < acts.width && rows.loads(row)) x = pairs.four(row, first);
    bool valid = first < acts.width && row < rows.count();
    if (valid) pairs.store(row, first, x);
    st_cuda_quantise(acts, row, first, x, valid);
}

template <class F> static int st_cuda_each_quantised(const st_cuda_call *call, const st_cuda_pairs<F> &pairs)
{
    enum { THREADS = 128 };
    if (!st_cuda_writes_int8(call)) return st_cuda_each(call, pairs.width, pairs);
    st_cuda_acts acts = {call->scratch, pairs.width};
    dim3 blocks(st_cuda_blocks(pairs.width / 4, THREADS), call->rows);
    return st_cuda_start<st_cuda_each_quantised_kernel<F>>(call, blocks, THREADS, 0, st_cuda_rows_of(call), acts, pairs);
}

#endif
