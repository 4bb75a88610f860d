/* Attention whose context is split into parts that run at the same time: which heads and positions a block has, where the parts are
 * in scratch, and how they are combined. */
#ifndef ST_CUDA_ATTENTION_PARTS_CUH
#define ST_CUDA_ATTENTION_PARTS_CUH

#include "backend/cuda/acts.cuh"
#include "backend/cuda/attention.cuh"

enum {
    ST_CUDA_PARTS_THREADS = 128, /* of a block that combines */
    ST_CUDA_PART_MIN = 32,       /* positions of a part … */
    ST_CUDA_WHOLE = 128,         /* … but up to so many are one: a block takes less time for them than parts for their combination */
};

struct st_cuda_attention_parts {
    st_cuda_attention_args a;
    uint32_t splits, blocks_of_group;
    float *sums;    /* [rows, heads, splits, value] */
    float2 *scales; /* [rows, heads, splits]: largest score, sum of the exponentials */
    st_cuda_acts acts; /* memory NULL: the output is not quantised */
    uint32_t *counters; /* [rows, blocks of heads]: parts that are done. NULL: a second kernel combines */
    st_cuda_divisor by_splits, by_blocks_of_group, by_kv_heads, by_quads; /* quads: four elements of a value */

    /* Of `count` positions: how many a part has, and how many parts there are. The first part is never empty. */
    __device__ uint32_t part_length(uint32_t count) const
    {
        return count <= ST_CUDA_WHOLE ? max(count, 1u) : max((uint32_t)ST_CUDA_PART_MIN, by_splits.quotient(count + splits - 1));
    }
    __device__ uint32_t parts(uint32_t count) const
    {
        uint32_t length = part_length(count);
        return (count + length - 1) / length;
    }
};

/* The row, heads and positions of a block. */
struct st_cuda_block_of_heads {
    uint32_t row, kv_head, head, active; /* active: query heads */
    uint32_t position, count, from, end; /* count: of positions; from > position: the part is empty */

    template <int GROUP> static __device__ st_cuda_block_of_heads get(const st_cuda_attention_parts &s)
    {
        uint32_t rest = s.by_blocks_of_group.quotient(blockIdx.x), of_group = blockIdx.x - rest * s.blocks_of_group;
        uint32_t row = s.by_kv_heads.quotient(rest);
        st_cuda_block_of_heads b = {row, rest - row * s.by_kv_heads.value, 0, 0, 0, 0, 1, 1};
        if (b.row >= s.a.rows.count()) return b;
        b.head = b.kv_head * s.a.group + of_group * GROUP;
        b.active = min((uint32_t)GROUP, s.a.group - of_group * GROUP);
        b.position = s.a.rows.at(b.row).position;
        uint32_t first = s.a.first(b.position);
        b.count = b.position + 1 - first;
        uint32_t length = s.part_length(b.count);
        b.from = first + blockIdx.y * length;
        b.end = min(b.position + 1, b.from + length);
        return b;
    }
};

static __device__ __forceinline__ void st_cuda_add(float4 &to, float weight, float4 x)
{
    to.x += weight * x.x, to.y += weight * x.y, to.z += weight * x.z, to.w += weight * x.w;
}

/* The weights of the parts of a head, relative to its largest score, and what their sum is to be divided by; by one warp. */
static __device__ void st_cuda_weigh_parts(const st_cuda_attention_parts &s, size_t first, uint32_t parts, float sink, float *weights,
                                           float *inverse)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
    float2 scales[ST_CUDA_SPLITS_MAX / ST_CUDA_WARP];
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < ST_CUDA_SPLITS_MAX / ST_CUDA_WARP; i++) {
        uint32_t p = lane + i * ST_CUDA_WARP;
        scales[i] = p < parts ? __ldcg(&s.scales[first + p]) : make_float2(-INFINITY, 0);
        largest = fmaxf(largest, scales[i].x);
    }
    largest = fmaxf(st_cuda_warp_max(largest), sink);
#pragma unroll
    for (int i = 0; i < ST_CUDA_SPLITS_MAX / ST_CUDA_WARP; i++) {
        float weight = st_cuda_exp(scales[i].x - largest); /* 0 past the end */
        weights[lane + i * ST_CUDA_WARP] = weight;
        sum += weight * scales[i].y;
    }
    sum = st_cuda_warp_sum(sum);
    if (lane == 0) *inverse = st_cuda_reciprocal(sum + st_cuda_exp(sink - largest));
}

/* Elements `at` … of a head's output, and their int8 activations; called by whole warps. */
static __device__ __forceinline__ void st_cuda_attention_store(const st_cuda_attention_parts &s, uint32_t row, uint32_t head, uint32_t at,
                                                               float4 sum, float inverse, bool valid)
{
    sum = make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
    if (valid) *(float4 *)(s.a.out + ((size_t)row * s.a.heads + head) * s.a.value + at) = sum;
    if (s.acts.memory) st_cuda_quantise(s.acts, row, head * s.a.value + at, sum, valid);
}

/* The output of heads `head` … out of their parts, all heads at the same time: a thread has four elements of a head or, if
 * there are more threads than those, of every sets-th part. */
static __device__ void st_cuda_combine_heads(const st_cuda_attention_parts &s, uint32_t row, uint32_t head, uint32_t active,
                                             uint32_t parts)
{
    __shared__ float weights[ST_CUDA_GROUP_MAX][ST_CUDA_SPLITS_MAX], inverse[ST_CUDA_GROUP_MAX];
    __shared__ float4 reduced[ST_CUDA_PARTS_THREADS];
    const st_cuda_attention_args &a = s.a;
    size_t first = ((size_t)row * a.heads + head) * s.splits;
    for (uint32_t h = threadIdx.x / ST_CUDA_WARP; h < active; h += ST_CUDA_PARTS_THREADS / ST_CUDA_WARP)
        st_cuda_weigh_parts(s, first + h * s.splits, parts, a.sink(head + h), weights[h], &inverse[h]);
    __syncthreads();
    enum { AHEAD = 8 }; /* loads under way at once */
    uint32_t quads = s.by_quads.value, items = active * quads, pass = min(items, (uint32_t)ST_CUDA_PARTS_THREADS);
    uint32_t sets = st_cuda_small_quotient(ST_CUDA_PARTS_THREADS, pass), set = st_cuda_small_quotient(threadIdx.x, pass);
    uint32_t end = set < sets ? parts : 0;
    for (uint32_t base = 0; base < items; base += pass) { /* once, if there are several sets */
        uint32_t item = base + threadIdx.x - set * pass, of = s.by_quads.quotient(item), h = min(of, active - 1);
        uint32_t at = (item - of * quads) * 4;
        float4 sum = {};
        const float *part = s.sums + (first + h * s.splits) * a.value + at;
        for (uint32_t p = set; p < end; p += AHEAD * sets) {
            float4 x[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) /* past the end: the last, times 0 */
                x[i] = __ldcg((const float4 *)(part + min(p + i * sets, end - 1) * a.value));
#pragma unroll
            for (int i = 0; i < AHEAD; i++) st_cuda_add(sum, p + i * sets < end ? weights[h][p + i * sets] : 0, x[i]);
        }
        if (sets > 1) {
            reduced[threadIdx.x] = sum;
            __syncthreads();
        }
        bool valid = set == 0 && item < items;
#pragma unroll 1
        for (uint32_t i = 1; i < sets && valid; i++) st_cuda_add(sum, 1, reduced[i * pass + threadIdx.x]);
        st_cuda_attention_store(s, row, head + h, at, sum, inverse[h], valid);
    }
}

/* A block per row and head. */
static __global__ void __launch_bounds__(ST_CUDA_PARTS_THREADS) st_cuda_combine_kernel(st_cuda_attention_parts s)
{
    st_cuda_begin();
    uint32_t row = st_cuda_small_quotient(blockIdx.x, s.a.heads);
    if (row >= s.a.rows.count()) return;
    uint32_t position = s.a.rows.at(row).position;
    st_cuda_combine_heads(s, row, blockIdx.x - row * s.a.heads, 1, s.parts(position + 1 - s.a.first(position)));
}

static inline int st_cuda_combine(const st_cuda_call *call, const st_cuda_attention_parts &s)
{
    return st_cuda_start<st_cuda_combine_kernel>(call, call->rows * s.a.heads, ST_CUDA_PARTS_THREADS, 0, s);
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
            {call->quantises && call->rows <= ST_CUDA_INT8_ROWS ? call->scratch : NULL, width}, NULL,
            st_cuda_divisor_of(splits), st_cuda_divisor_of(st_cuda_attention_blocks(op) / p.kv_heads),
            st_cuda_divisor_of(p.kv_heads), st_cuda_divisor_of(p.value_length / 4)};
}

/* Whether this block's part is the last of its heads: all parts are then visible to it. */
static __device__ bool st_cuda_is_last(const st_cuda_attention_parts &s, uint32_t parts)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&s.counters[blockIdx.x], 1) + 1 == parts;
    __syncthreads();
    __threadfence();
    return last;
}

/* attention_cores.cu: F16, BF16 and Q8_0 on tensor cores. Returns a cudaError_t. */
int st_cuda_attention_cores(const st_cuda_call *call, const st_cuda_attention_parts &args);

#endif
