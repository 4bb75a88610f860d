/* A block per row and head: tiles of keys, a running softmax, float32 throughout. Few rows are in attention_split.cu, prompts
 * with narrow KV in attention_flash.cu and attention_wide.cu, latent attention in attention_latent.cu. */
#include "backend/cuda/attention.cuh"

namespace {

enum { THREADS = 128, WARPS = THREADS / ST_CUDA_WARP, TILE = 64, REST_BLOCKS = 1024 };

/* Scores of positions base … base + count: a warp per position. */
template <class K>
__device__ void score(const st_cuda_attention_args &a, const st_cuda_kv_rows &kv, const float *query, uint32_t head, uint32_t base,
                      uint32_t count, float *scores)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
    for (uint32_t t = threadIdx.x / ST_CUDA_WARP; t < count; t += WARPS) {
        const unsigned char *row = kv.key(base + t);
        float sum = 0;
        for (uint32_t k = lane; k < a.key; k += ST_CUDA_WARP) sum += query[k] * K::at(row, head * a.key + k);
        sum = st_cuda_warp_sum(sum);
        if (lane == 0) scores[t] = sum * a.scale;
    }
}

/* Over `count` of at most TILE scores; every warp finds the same. */
__device__ float largest_of(const float *scores, uint32_t count)
{
    float found = -INFINITY;
    for (uint32_t t = threadIdx.x % ST_CUDA_WARP; t < count; t += ST_CUDA_WARP) found = fmaxf(found, scores[t]);
    return st_cuda_warp_max(found);
}

__device__ float sum_of(const float *scores, uint32_t count)
{
    float sum = 0;
    for (uint32_t t = threadIdx.x % ST_CUDA_WARP; t < count; t += ST_CUDA_WARP) sum += scores[t];
    return st_cuda_warp_sum(sum);
}

template <class K> __device__ void attend_row(const st_cuda_attention_args &a, uint32_t row, uint32_t head)
{
    ST_CUDA_DYNAMIC(float, shared); /* query[key], gathered[value], scores[TILE] */
    float *query = shared, *gathered = query + a.key, *scores = gathered + a.value;
    uint32_t kv_head = head / a.group;
    const float *in = a.in + ((size_t)row * a.heads + head) * a.key;
    for (uint32_t i = threadIdx.x; i < a.key; i += THREADS) query[i] = in[i];
    for (uint32_t i = threadIdx.x; i < a.value; i += THREADS) gathered[i] = 0;
    __syncthreads();
    st_cuda_kv_rows kv(a.kv, a.rows, a.rows.at(row).conversation);
    uint32_t position = a.rows.at(row).position, end = position + 1;
    float largest = -INFINITY, sum = 0;
    for (uint32_t base = a.first(position); base < end; base += TILE) {
        uint32_t count = min((uint32_t)TILE, end - base);
        score<K>(a, kv, query, kv_head, base, count, scores);
        __syncthreads();
        float now = fmaxf(largest, largest_of(scores, count)), shrink = expf(largest - now);
        largest = now;
        __syncthreads();
        for (uint32_t t = threadIdx.x; t < count; t += THREADS) scores[t] = expf(scores[t] - now);
        __syncthreads();
        sum = sum * shrink + sum_of(scores, count);
        for (uint32_t i = threadIdx.x; i < a.value; i += THREADS) {
            float more = gathered[i] * shrink;
            for (uint32_t t = 0; t < count; t++)
                more += scores[t] * K::at(kv.value(base + t), kv_head * a.value + i);
            gathered[i] = more;
        }
        __syncthreads();
    }
    float *out = a.out + ((size_t)row * a.heads + head) * a.value;
    sum += expf(a.sink(head) - largest);
    for (uint32_t i = threadIdx.x; i < a.value; i += THREADS) out[i] = gathered[i] / sum;
}

/* Rows of conversations with less than `rows_max` rows. */
template <class K> __global__ void __launch_bounds__(THREADS) attend(st_cuda_attention_args a, uint32_t rows_max)
{
    st_cuda_begin();
    uint32_t end = a.rows.count() * a.heads;
    for (uint32_t i = blockIdx.x; i < end; i += gridDim.x) {
        uint32_t row = i / a.heads;
        if (a.rows.conversation(a.rows.at(row).conversation).rows < rows_max) attend_row<K>(a, row, i % a.heads);
    }
}

struct attention {
    const st_cuda_call *call;
    st_cuda_attention_args args;
    bool rest; /* of the rows, after those on tensor cores */
    template <class K> int run() const
    {
        size_t bytes = (args.key + args.value + TILE) * sizeof(float);
        uint32_t blocks = min(call->rows * args.heads, rest ? (uint32_t)REST_BLOCKS : UINT32_MAX);
        return st_cuda_start<attend<K>>(call, blocks, THREADS, bytes, args, rest ? (uint32_t)ST_CUDA_FLASH_ROWS_MIN : UINT32_MAX);
    }
};

} // namespace

extern "C" int st_cuda_attention(const st_cuda_call *call)
{
    if (st_cuda_attention_in_latent(call->bound)) return st_cuda_attention_latent(call);
    if (st_cuda_attention_splits_context(call->bound, call->rows)) return st_cuda_attention_split(call);
    bool flash = st_cuda_attention_in_flash(call->bound, call->rows);
    int code = flash ? st_cuda_attention_flash(call) : (int)cudaSuccess;
    return code == cudaSuccess ? st_cuda_with_kv_type(call->bound->kv.type, attention{call, st_cuda_attention_args_of(call), flash}) : code;
}
