/* Attention whose context is split into parts that run at the same time: where they are in scratch, and how they are combined. */
#ifndef ST_CUDA_ATTENTION_PARTS_CUH
#define ST_CUDA_ATTENTION_PARTS_CUH

#include "backend/cuda/acts.cuh"
#include "backend/cuda/attention.cuh"

enum {
    ST_CUDA_PARTS_THREADS = 128, /* of a block that combines */
    ST_CUDA_PART_MIN = 32,       /* positions of a part */
};

struct st_cuda_attention_parts {
    st_cuda_attention_args a;
    uint32_t splits, blocks_of_group;
    float *sums;    /* [rows, heads, splits, value] */
    float2 *scales; /* [rows, heads, splits]: largest score, sum of the exponentials */
    st_cuda_acts acts; /* memory NULL: the output is not quantised */
    uint32_t *counters; /* [rows, blocks of heads]: parts that are done. NULL: a second kernel combines */

    /* The positions of a part; the first part is never empty. */
    __device__ uint32_t part_length(uint32_t position) const
    {
        return max((uint32_t)ST_CUDA_PART_MIN, (position + 1 - a.first(position) + splits - 1) / splits);
    }
    __device__ uint32_t parts(uint32_t position) const
    {
        uint32_t length = part_length(position);
        return (position + 1 - a.first(position) + length - 1) / length;
    }
};

static __device__ __forceinline__ void st_cuda_add(float4 &to, float weight, float4 x)
{
    to.x += weight * x.x, to.y += weight * x.y, to.z += weight * x.z, to.w += weight * x.w;
}

/* The output of a head out of its parts. */
static __device__ void st_cuda_combine_head(const st_cuda_attention_parts &s, uint32_t row, uint32_t head, uint32_t parts)
{
    __shared__ float weights[ST_CUDA_SPLITS_MAX];
    __shared__ float4 reduced[ST_CUDA_PARTS_THREADS];
    __shared__ float inverse;
    const st_cuda_attention_args &a = s.a;
    size_t first = ((size_t)row * a.heads + head) * s.splits;
    if (threadIdx.x < ST_CUDA_WARP) {
        float largest = -INFINITY, sum = 0, sink = a.sink(head);
        for (uint32_t p = threadIdx.x; p < parts; p += ST_CUDA_WARP) largest = fmaxf(largest, __ldcg(&s.scales[first + p]).x);
        largest = fmaxf(st_cuda_warp_max(largest), sink);
        for (uint32_t p = threadIdx.x; p < parts; p += ST_CUDA_WARP) {
            float2 scale = __ldcg(&s.scales[first + p]);
            weights[p] = expf(scale.x - largest);
            sum += weights[p] * scale.y;
        }
        sum = st_cuda_warp_sum(sum);
        if (threadIdx.x == 0) inverse = 1 / (sum + expf(sink - largest));
    }
    __syncthreads();
    uint32_t quads = a.value / 4, sets = ST_CUDA_PARTS_THREADS / quads, set = threadIdx.x / quads, at = threadIdx.x % quads * 4;
    float4 sum = {};
    for (uint32_t p = set; p < parts && set < sets; p += sets)
        st_cuda_add(sum, weights[p], __ldcg((const float4 *)(s.sums + (first + p) * a.value + at)));
    reduced[threadIdx.x] = sum;
    __syncthreads();
    if (set == 0) {
        for (uint32_t i = 1; i < sets; i++) st_cuda_add(sum, 1, reduced[i * quads + threadIdx.x]);
        sum = make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
        *(float4 *)(a.out + ((size_t)row * a.heads + head) * a.value + at) = sum;
        if (s.acts.memory) st_cuda_quantise(s.acts, row, head * a.value + at, sum);
    }
    __syncthreads();
}

/* A block per row and head. */
static __global__ void __launch_bounds__(ST_CUDA_PARTS_THREADS) st_cuda_combine_kernel(st_cuda_attention_parts s)
{
    st_cuda_begin();
    uint32_t row = blockIdx.x / s.a.heads;
    if (row < s.a.rows.count()) st_cuda_combine_head(s, row, blockIdx.x % s.a.heads, s.parts(s.a.rows.at(row).position));
}

static inline int st_cuda_combine(const st_cuda_call *call, const st_cuda_attention_parts &s)
{
    return st_cuda_start<st_cuda_combine_kernel>(call->stream, call->rows * s.a.heads, ST_CUDA_PARTS_THREADS, 0, s);
}

/* Without counters: a second kernel combines. */
static inline st_cuda_attention_parts st_cuda_attention_parts_of(const st_cuda_call *call)
{
    const st_op *op = call->bound->op;
    const auto &p = op->p.attention;
    uint32_t splits = st_cuda_attention_splits(op, call->rows), width = p.heads * p.value_length;
    uint32_t *counters = st_cuda_attention_counters(op, call->rows, call->scratch);
    float *sums = (float *)((unsigned char *)counters + st_cuda_attention_counters_bytes(op));
    return {st_cuda_attention_args_of(call), splits, st_cuda_attention_blocks(op) / p.kv_heads, sums,
            (float2 *)(sums + (size_t)call->rows * splits * width),
            {call->quantises && call->rows <= ST_CUDA_INT8_ROWS ? call->scratch : NULL, width}, NULL};
}

#endif
