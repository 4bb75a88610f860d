/* Attention of few rows. The context of a row is split into parts, and a block computes all query heads of one KV head, up to
 * GROUP, over one part: keys and values are read once for the group. Then the parts are combined, by the last block of the heads
 * or by a second kernel. float32 throughout; narrower types mostly run on tensor cores instead (attention_cores.cu). */
#include "backend/cuda/attention_parts.cuh"

namespace {

enum {
    THREADS = ST_CUDA_PARTS_THREADS,
    LANES = 8,                 /* of a position's key */
    POSITIONS = THREADS / LANES,
    TILE = 128,                /* positions between two updates of the softmax */
};

__device__ float dot(float4 x, float4 y)
{
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
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
            float x = st_cuda_exp(scores[h][t] - now);
            scores[h][t] = x;
            sum += x;
        }
        sum = st_cuda_warp_sum(sum);
        if (lane > 0) continue;
        shrink[h] = st_cuda_exp(largest[h] - now);
        sums[h] = sums[h] * shrink[h] + sum;
        largest[h] = now;
    }
}

template <class K, int GROUP> __global__ void __launch_bounds__(THREADS) attend_part(st_cuda_attention_parts s)
{
    st_cuda_begin();
    ST_CUDA_DYNAMIC(float4, shared); /* query[GROUP, key] */
    __shared__ float scores[GROUP][TILE], largest[GROUP], sums[GROUP], shrink[GROUP];
    __shared__ float4 reduced[THREADS];
    const st_cuda_attention_args &a = s.a;
    float *query = (float *)shared;
    st_cuda_block_of_heads b = st_cuda_block_of_heads::get<GROUP>(s);
    if (b.from > b.position) return;
    uint32_t row = b.row, kv_head = b.kv_head, head = b.head, active = b.active, from = b.from, end = b.end;
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
            for (int h = 0; h < GROUP; h++) st_cuda_add(gathered[h], scores[h][t], value);
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
            for (uint32_t i = 1; i < sets; i++) st_cuda_add(sum, 1, reduced[i * quads + threadIdx.x]);
            *(float4 *)(s.sums + part * a.value + at) = sum;
            if (threadIdx.x == 0) s.scales[part] = make_float2(largest[h], sums[h]);
        }
        __syncthreads();
    }
}

/* Running sums of a set of lanes over its positions: largest score, exponentials, weighted values. */
template <int GROUP> struct running {
    float largest[GROUP], total[GROUP], sum[GROUP][8];
};

/* Adds up the sets of the block and writes its part. */
template <int GROUP, int LANES>
__device__ __forceinline__ void write_part(const st_cuda_attention_parts &s, const st_cuda_block_of_heads &b, const running<GROUP> &r)
{
    enum { HEAD = 8 * LANES, SETS = THREADS / LANES };
    __shared__ float sums[GROUP][SETS][HEAD], largest[GROUP][SETS], totals[GROUP][SETS];
    uint32_t set = threadIdx.x / LANES, at = threadIdx.x % LANES * 8;
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) sums[h][set][at + i] = r.sum[h][i];
        if (at == 0) largest[h][set] = r.largest[h], totals[h][set] = r.total[h];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < b.active * HEAD; i += THREADS) {
        uint32_t h = i / HEAD, element = i % HEAD;
        size_t part = ((size_t)b.row * s.a.heads + b.head + h) * s.splits + blockIdx.y;
        float top = -INFINITY, sum = 0, total = 0;
        for (int k = 0; k < SETS; k++) top = fmaxf(top, largest[h][k]);
        for (int k = 0; k < SETS; k++) {
            float weight = largest[h][k] == -INFINITY ? 0 : st_cuda_exp(largest[h][k] - top);
            sum += weight * sums[h][k][element];
            total += weight * totals[h][k];
        }
        s.sums[part * HEAD + element] = sum;
        if (element == 0) s.scales[part] = make_float2(top, total);
    }
}

/* Heads of 8 × LANES elements: LANES lanes have a position, eight elements each, and go through the part on their own. */
template <class K, int GROUP, int LANES> __global__ void __launch_bounds__(THREADS) attend_by_warps(st_cuda_attention_parts s)
{
    st_cuda_release();
    enum { HEAD = 8 * LANES, SETS = THREADS / LANES, UNROLL = GROUP > 4 ? 2 : 4 };
    const st_cuda_attention_args &a = s.a;
    st_cuda_block_of_heads b = st_cuda_block_of_heads::get<GROUP>(s);
    st_cuda_kv_rows kv(a.kv, a.rows, b.from > b.position ? 0 : a.rows.at(b.row).conversation);
    st_cuda_await();
    if (b.from > b.position) return;
    uint32_t set = threadIdx.x / LANES, at = threadIdx.x % LANES * 8, of_kv = b.kv_head * HEAD + at;
    float query[GROUP][8];
    running<GROUP> r;
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        const float *from = a.in + ((size_t)b.row * a.heads + b.head + min((uint32_t)h, b.active - 1)) * HEAD + at;
        r.largest[h] = -INFINITY, r.total[h] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) query[h][i] = from[i] * a.scale, r.sum[h][i] = 0;
    }
    for (uint32_t base = b.from; base < b.end; base += SETS * UNROLL) {
        typename K::eight keys[UNROLL], values[UNROLL];
        float scores[UNROLL][GROUP];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            uint32_t t = min(base + u * SETS + set, b.end - 1);
            keys[u] = K::load_eight(kv.key(t), of_kv);
            values[u] = K::load_eight(kv.value(t), of_kv);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float key[8];
            K::unpack(keys[u], key);
            bool valid = base + u * SETS + set < b.end;
#pragma unroll
            for (int h = 0; h < GROUP; h++) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) sum += key[i] * query[h][i];
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
                scores[u][h] = valid ? sum : -INFINITY;
            }
        }
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            float now = r.largest[h];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) now = fmaxf(now, scores[u][h]);
            float shrink = r.largest[h] == -INFINITY ? 0 : st_cuda_exp(r.largest[h] - now);
            r.largest[h] = now;
            r.total[h] *= shrink;
#pragma unroll
            for (int i = 0; i < 8; i++) r.sum[h][i] *= shrink;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                scores[u][h] = base + u * SETS + set < b.end ? st_cuda_exp(scores[u][h] - now) : 0;
                r.total[h] += scores[u][h];
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float value[8];
            K::unpack(values[u], value);
            if (base + u * SETS + set >= b.end) continue; /* 0 × NaN of another position */
#pragma unroll
            for (int h = 0; h < GROUP; h++)
#pragma unroll
                for (int i = 0; i < 8; i++) r.sum[h][i] += scores[u][h] * value[i];
        }
    }
    write_part<GROUP, LANES>(s, b, r);
    if (!s.counters) return;
    uint32_t parts = s.parts(b.count);
    if (!st_cuda_is_last(s, parts)) return;
    st_cuda_combine_heads(s, b.row, b.head, b.active, parts);
}

struct attention {
    const st_cuda_call *call;
    st_cuda_attention_parts args;

    template <class K, int GROUP> int start(uint32_t blocks) const
    {
        size_t bytes = GROUP * args.a.key * sizeof(float);
        return st_cuda_start<attend_part<K, GROUP>>(call, dim3(blocks, args.splits), THREADS, bytes, args);
    }
    template <class K, int GROUP> int start_group(uint32_t blocks) const
    {
        dim3 grid(blocks, args.splits);
        if (!st_cuda_attention_by_warps(call->bound)) return start<K, GROUP>(blocks);
        if (args.a.key == 64) return st_cuda_start<attend_by_warps<K, GROUP, 8>>(call, grid, THREADS, 0, args);
        if (args.a.key == 128) return st_cuda_start<attend_by_warps<K, GROUP, 16>>(call, grid, THREADS, 0, args);
        return st_cuda_start<attend_by_warps<K, GROUP, 32>>(call, grid, THREADS, 0, args);
    }
    template <class K> int run() const
    {
        uint32_t group = args.a.group, blocks = call->rows * (args.a.heads / group) * args.blocks_of_group;
        return group == 1   ? start_group<K, 1>(blocks)
               : group == 2 ? start_group<K, 2>(blocks)
               : group <= 4 ? start_group<K, 4>(blocks)
                            : start_group<K, ST_CUDA_GROUP_MAX>(blocks);
    }
};

} // namespace

extern "C" int st_cuda_attention_split(const st_cuda_call *call)
{
    st_cuda_attention_parts args = st_cuda_attention_parts_of(call);
    if (call->counts && call->rows <= ST_CUDA_FEW_ROWS)
        args.counters = st_cuda_attention_counters(call->bound->op, call->rows, call->scratch);
    int code = st_cuda_attention_on_cores(call->bound) ? st_cuda_attention_cores(call, args)
                                                       : st_cuda_with_kv_type(call->bound->kv.type, attention{call, args});
    return code != cudaSuccess || args.counters ? code : st_cuda_combine(call, args);
}
