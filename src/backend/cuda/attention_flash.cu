/* Attention of prompts on tensor cores, with heads of 64 and 128 (others: attention_wide.cu). A block has 64 rows of a
 * conversation and one query head; keys and values come in tiles of POSITIONS, and the softmax runs along. Queries are
 * sums of two f16 numbers, as weights are (attention_mma.cuh). */
#include "backend/cuda/attention_prompts.cuh"

namespace {

enum { WARPS = 4, THREADS = WARPS * ST_CUDA_WARP, ROWS = 16 * WARPS };

/* Queries × factor, as two f16 each. */
template <int HEAD>
__device__ void load_queries(const st_cuda_attention_args &a, const block_rows<ROWS> &b, uint32_t head, float factor,
                             rows_of<HEAD, ROWS> to)
{
    for (uint32_t i = threadIdx.x; i < ROWS * HEAD / 4; i += THREADS) {
        uint32_t row = i / (HEAD / 4), element = i % (HEAD / 4) * 4;
        float4 x = {};
        if (row < b.count) x = *(const float4 *)(a.in + ((size_t)(b.first + row) * a.heads + head) * HEAD + element);
        uint2 high, low;
        st_cuda_split_halves(x.x * factor, x.y * factor, high.x, low.x);
        st_cuda_split_halves(x.z * factor, x.w * factor, high.y, low.y);
        *(uint2 *)to.at(row, element, 0) = high;
        *(uint2 *)to.at(row, element, 1) = low;
    }
}

/* Keys and values of positions base … end − 1; the rest of the tile is zeros. */
template <class F, int HEAD, int COUNT>
__device__ void load_tile(const st_cuda_kv_rows &kv, uint32_t of_head, uint32_t base, uint32_t end, rows_of<HEAD, COUNT> keys,
                          rows_of<HEAD, COUNT> values)
{
    typedef typename F::kv K;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < COUNT * HEAD / 8; i += THREADS) {
        uint32_t row = i / (HEAD / 8), element = i % (HEAD / 8) * 8;
        uint4 high[2] = {}, low[2] = {};
        if (base + row < end) {
            F::halves(K::load_eight(kv.key(base + row), of_head + element), high[0], low[0]);
            F::halves(K::load_eight(kv.value(base + row), of_head + element), high[1], low[1]);
        }
        *(uint4 *)keys.at(row, element, 0) = high[0];
        *(uint4 *)values.at(row, element, 0) = high[1];
        if (F::SPLIT) {
            *(uint4 *)keys.at(row, element, 1) = low[0];
            *(uint4 *)values.at(row, element, 1) = low[1];
        }
    }
}

/* scores = queries · keys of a tile */
template <class F, int HEAD, int COUNT>
__device__ __forceinline__ void score_rows(rows_of<HEAD, ROWS> queries, rows_of<HEAD, COUNT> keys, float (*scores)[4])
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, matrix = lane / 8, row = lane % 8;
#pragma unroll 2
    for (uint32_t k = 0; k < HEAD; k += 16) {
        unsigned q[2][4];
        st_cuda_load_factor(q, queries, 16 * warp, k);
#pragma unroll
        for (int n = 0; n < COUNT / 8; n += 2) {
            unsigned b[4];
            st_cuda_load_matrices(b, keys.at(8 * (n + matrix / 2) + row, k + matrix % 2 * 8, 0));
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int part = 0; part < 2; part++) st_cuda_mma(scores[n + i], q[part], b[2 * i], b[2 * i + 1]);
            if (!F::SPLIT) continue;
            st_cuda_load_matrices(b, keys.at(8 * (n + matrix / 2) + row, k + matrix % 2 * 8, 1));
#pragma unroll
            for (int i = 0; i < 2; i++) st_cuda_mma(scores[n + i], q[0], b[2 * i], b[2 * i + 1]);
        }
    }
}

/* The tile of positions that fits beside the queries in 99 KiB. */
template <class F, int HEAD> struct tile_of {
    enum {
        POSITIONS = 64 / (F::SPLIT ? 2 : 1),
        BYTES = (2 * ROWS + (F::SPLIT ? 4 : 2) * POSITIONS) * (HEAD + PAD) * (int)sizeof(__half),
    };
};

template <class F, int HEAD>
__global__ void __launch_bounds__(THREADS, HEAD > 64 ? 3 : 4) flash(st_cuda_attention_args a)
{
    st_cuda_begin();
    enum { POSITIONS = tile_of<F, HEAD>::POSITIONS, PARTS = F::SPLIT ? 2 : 1 };
    ST_CUDA_DYNAMIC(uint4, shared);
    rows_of<HEAD, ROWS> queries = {(__half *)shared};
    rows_of<HEAD, POSITIONS> keys = {queries.data + 2 * rows_of<HEAD, ROWS>::HALVES};
    rows_of<HEAD, POSITIONS> values = {keys.data + PARTS * rows_of<HEAD, POSITIONS>::HALVES};
    uint32_t head = blockIdx.x, kv_head = head / a.group, row = threadIdx.x / ST_CUDA_WARP * 16;
    block_rows<ROWS> b;
    if (!b.find(a.rows)) return;
    const float log2e = 1.4426950408889634f;
    load_queries<HEAD>(a, b, head, a.scale * log2e * F::SHRINK, queries);
    st_cuda_kv_rows kv(a.kv, a.rows, b.conversation);
    warp_rows w;
    w.find(a, b, row);
    running<HEAD> r = {{}, {-INFINITY, -INFINITY}, {}};
    for (uint32_t base = a.first(b.position); base < b.end(); base += POSITIONS) {
        __syncthreads();
        load_tile<F, HEAD, POSITIONS>(kv, kv_head * HEAD, base, b.end(), keys, values);
        __syncthreads();
        if (!w.sees_tile(base, POSITIONS)) continue; /* the same for the warp */
        float scores[POSITIONS / 8][4] = {};
        score_rows<F, HEAD, POSITIONS>(queries, keys, scores);
        softmax<HEAD, POSITIONS>(scores, base, w.sees, r);
        gather<F, HEAD>(scores, values, 0, r.out);
    }
    write_rows<F, HEAD>(a, b, head, row, 0, r);
}

struct launch {
    const st_cuda_call *call;
    st_cuda_attention_args args;

    template <class F, int HEAD> int start() const
    {
        return start_prompts<flash<F, HEAD>, ROWS, THREADS, tile_of<F, HEAD>::BYTES>(call, args);
    }
    template <class F> int run() const
    {
        return args.key == 64 ? start<F, 64>() : start<F, 128>();
    }
};

} // namespace

extern "C" int st_cuda_attention_flash(const st_cuda_call *call)
{
    st_cuda_attention_args args = st_cuda_attention_args_of(call);
    return args.key > 128 ? st_cuda_attention_wide(call, args) : with_halves(call->bound->kv.type, launch{call, args});
}
