/* Attention of few rows. The context of a row is split into parts, and a block computes all query heads of one KV head, up to
 * GROUP, over one part: keys and values are read once for the group. Then the parts are combined. float32 throughout. */
#include "backend/cuda/acts.cuh"
#include "backend/cuda/attention.cuh"

namespace {

enum {
    THREADS = 128,
    LANES = 8,                 /* of a position's key */
    POSITIONS = THREADS / LANES,
    TILE = 128,                /* positions between two updates of the softmax */
    PART_MIN = 32,             /* positions of a part */
};

struct split_args {
    st_cuda_attention_args a;
    uint32_t splits, blocks_of_group;
    float *sums;    /* [rows, heads, splits, value] */
    float2 *scales; /* [rows, heads, splits]: largest score, sum of the exponentials */
    st_cuda_acts acts; /* memory NULL: the output is not quantised */

    /* The positions of a part; the first part is never empty. */
    __device__ uint32_t part_length(uint32_t position) const
    {
        return max((uint32_t)PART_MIN, (position + 1 - a.first(position) + splits - 1) / splits);
    }
};

__device__ float dot(float4 x, float4 y)
{
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}

__device__ void add(float4 &to, float weight, float4 x)
{
    to.x += weight * x.x, to.y += weight * x.y, to.z += weight * x.z, to.w += weight * x.w;
}

/* Scores of `count` positions from `base` on: eight lanes share a key. */
template <class K, int GROUP>
__device__ void score(const st_cuda_attention_args &a, const st_cuda_kv_rows &kv, const float *query, uint32_t kv_head, uint32_t base,
                      uint32_t count, float (*scores)[TILE])
{
    uint32_t lane = threadIdx.x % LANES;
    unsigned mask = 0xFFu << (threadIdx.x % ST_CUDA_WARP / LANES * LANES);
    for (uint32_t t = threadIdx.x / LANES; t < count; t += POSITIONS) {
        const unsigned char *row = kv.key(base + t);
        float sum[GROUP] = {};
#pragma unroll 4
        for (uint32_t k = 4 * lane; k < a.key; k += 4 * LANES) {
            float4 key = K::four(row, kv_head * a.key + k);
#pragma unroll
            for (int h = 0; h < GROUP; h++) sum[h] += dot(key, *(const float4 *)(query + h * a.key + k));
        }
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            for (int step = LANES / 2; step > 0; step /= 2) sum[h] += __shfl_xor_sync(mask, sum[h], step);
            if (lane == h % LANES) scores[h][t] = sum[h] * a.scale;
        }
    }
}

/* Replaces scores by exponentials, and updates the largest score and the sum of each head; a warp per head. */
template <int GROUP> __device__ void softmax(float (*scores)[TILE], uint32_t count, float *largest, float *sums, float *shrink)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
    for (uint32_t h = threadIdx.x / ST_CUDA_WARP; h < GROUP; h += THREADS / ST_CUDA_WARP) {
        float now = largest[h], sum = 0;
        for (uint32_t t = lane; t < count; t += ST_CUDA_WARP) now = fmaxf(now, scores[h][t]);
        now = st_cuda_warp_max(now);
        for (uint32_t t = lane; t < count; t += ST_CUDA_WARP) {
            float x = expf(scores[h][t] - now);
            scores[h][t] = x;
            sum += x;
        }
        sum = st_cuda_warp_sum(sum);
        if (lane > 0) continue;
        shrink[h] = expf(largest[h] - now);
        sums[h] = sums[h] * shrink[h] + sum;
        largest[h] = now;
    }
}

template <class K, int GROUP> __global__ void __launch_bounds__(THREADS) attend_part(split_args s)
{
    extern __shared__ float4 shared[]; /* query[GROUP, key] */
    __shared__ float scores[GROUP][TILE], largest[GROUP], sums[GROUP], shrink[GROUP];
    __shared__ float4 reduced[THREADS];
    const st_cuda_attention_args &a = s.a;
    float *query = (float *)shared;
    uint32_t kv_heads = a.heads / a.group, index = blockIdx.x;
    uint32_t of_group = index % s.blocks_of_group, kv_head = index / s.blocks_of_group % kv_heads;
    uint32_t row = index / s.blocks_of_group / kv_heads;
    if (row >= a.rows.count()) return;
    uint32_t position = a.rows.at(row).position, length = s.part_length(position);
    uint32_t from = a.first(position) + blockIdx.y * length, end = min(position + 1, from + length);
    if (from > position) return;
    uint32_t head = kv_head * a.group + of_group * GROUP, active = min((uint32_t)GROUP, a.group - of_group * GROUP);
    for (uint32_t i = threadIdx.x; i < GROUP * a.key; i += THREADS)
        query[i] = i < active * a.key ? a.in[((size_t)row * a.heads + head) * a.key + i] : 0;
    if (threadIdx.x < GROUP) largest[threadIdx.x] = -INFINITY, sums[threadIdx.x] = 0;
    st_cuda_kv_rows kv(a.kv, a.rows, a.rows.at(row).conversation);
    uint32_t quads = a.value / 4, sets = THREADS / quads, set = threadIdx.x / quads, at = threadIdx.x % quads * 4;
    float4 gathered[GROUP] = {};
    __syncthreads();
    for (uint32_t base = from; base < end; base += TILE) {
        uint32_t count = min((uint32_t)TILE, end - base);
        score<K, GROUP>(a, kv, query, kv_head, base, count, scores);
        __syncthreads();
        softmax<GROUP>(scores, count, largest, sums, shrink);
        __syncthreads();
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            float4 &g = gathered[h];
            g = make_float4(g.x * shrink[h], g.y * shrink[h], g.z * shrink[h], g.w * shrink[h]);
        }
#pragma unroll 4
        for (uint32_t t = set; t < count && set < sets; t += sets) {
            float4 value = K::four(kv.value(base + t), kv_head * a.value + at);
#pragma unroll
            for (int h = 0; h < GROUP; h++) add(gathered[h], scores[h][t], value);
        }
        __syncthreads();
    }
    size_t part = ((size_t)row * a.heads + head) * s.splits + blockIdx.y;
#pragma unroll
    for (int h = 0; h < GROUP; h++, part += s.splits) {
        reduced[threadIdx.x] = gathered[h];
        __syncthreads();
        if (set == 0 && h < active) {
            float4 sum = gathered[h];
            for (uint32_t i = 1; i < sets; i++) add(sum, 1, reduced[i * quads + threadIdx.x]);
            *(float4 *)(s.sums + part * a.value + at) = sum;
            if (threadIdx.x == 0) s.scales[part] = make_float2(largest[h], sums[h]);
        }
        __syncthreads();
    }
}

/* A block per row and head. */
__global__ void __launch_bounds__(THREADS) combine(split_args s)
{
    __shared__ float weights[ST_CUDA_SPLITS_MAX];
    __shared__ float4 reduced[THREADS];
    __shared__ float inverse;
    const st_cuda_attention_args &a = s.a;
    uint32_t row = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    if (row >= a.rows.count()) return;
    uint32_t position = a.rows.at(row).position, length = s.part_length(position);
    uint32_t parts = (position + 1 - a.first(position) + length - 1) / length;
    size_t first = (size_t)blockIdx.x * s.splits;
    if (threadIdx.x < ST_CUDA_WARP) {
        float largest = -INFINITY, sum = 0;
        for (uint32_t p = threadIdx.x; p < parts; p += ST_CUDA_WARP) largest = fmaxf(largest, s.scales[first + p].x);
        largest = st_cuda_warp_max(largest);
        for (uint32_t p = threadIdx.x; p < parts; p += ST_CUDA_WARP) {
            weights[p] = expf(s.scales[first + p].x - largest);
            sum += weights[p] * s.scales[first + p].y;
        }
        sum = st_cuda_warp_sum(sum);
        if (threadIdx.x == 0) inverse = 1 / sum;
    }
    __syncthreads();
    uint32_t quads = a.value / 4, sets = THREADS / quads, set = threadIdx.x / quads, at = threadIdx.x % quads * 4;
    float4 sum = {};
    for (uint32_t p = set; p < parts && set < sets; p += sets)
        add(sum, weights[p], *(const float4 *)(s.sums + (first + p) * a.value + at));
    reduced[threadIdx.x] = sum;
    __syncthreads();
    if (set > 0) return;
    for (uint32_t i = 1; i < sets; i++) add(sum, 1, reduced[i * quads + threadIdx.x]);
    sum = make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
    *(float4 *)(a.out + (size_t)blockIdx.x * a.value + at) = sum;
    if (s.acts.memory) st_cuda_quantise(s.acts, row, head * a.value + at, sum);
}

struct attention {
    const st_cuda_call *call;
    split_args args;

    template <class K, int GROUP> int start(uint32_t blocks) const
    {
        size_t bytes = GROUP * args.a.key * sizeof(float);
        return st_cuda_start<attend_part<K, GROUP>>(call->stream, dim3(blocks, args.splits), THREADS, bytes, args);
    }
    template <class K> int run() const
    {
        uint32_t group = args.a.group, blocks = call->rows * (args.a.heads / group) * args.blocks_of_group;
        int code = group == 1 ? start<K, 1>(blocks) : group == 2 ? start<K, 2>(blocks) : group <= 4 ? start<K, 4>(blocks)
                                                                                     : start<K, ST_CUDA_GROUP_MAX>(blocks);
        if (code != cudaSuccess) return code;
        return st_cuda_start<combine>(call->stream, call->rows * args.a.heads, THREADS, 0, args);
    }
};

} // namespace

extern "C" int st_cuda_attention_split(const st_cuda_call *call)
{
    const auto &p = call->bound->op->p.attention;
    uint32_t splits = st_cuda_attention_splits(call->bound->op, call->rows), width = p.heads * p.value_length;
    float *sums = (float *)(call->scratch + call->rows * st_cuda_acts_row_bytes(width));
    split_args args = {st_cuda_attention_args_of(call), splits, (p.heads / p.kv_heads + ST_CUDA_GROUP_MAX - 1) / ST_CUDA_GROUP_MAX,
                       sums, (float2 *)(sums + (size_t)call->rows * splits * width),
                       {call->quantises ? call->scratch : NULL, width}};
    return st_cuda_with_kv_type(call->bound->kv.type, attention{call, args});
}
