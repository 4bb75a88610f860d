/* out = w0 · in0 (+ w1) for one row, with int8 activations, on GPUs whose memory system copies to shared memory by itself
 * (compute capability 9.0). A warp has every so manyth row of weights, which come through its own ring in shared memory, a
 * piece at a time: much more is under way than registers would hold, and the first pieces before the kernel waits for the one
 * before it. A lane multiplies the same elements of all rows, so it keeps their activations if a row is one piece. */
#include "backend/cuda/gemv.cuh"

namespace {

enum {
    WARPS = 8,
    PIECE = 4096, /* elements of a row */
    UNITS = PIECE / 32 / ST_CUDA_WARP, /* of a lane */
    STAGES_MAX = 4,
    RING_BYTES = 96 * 1024, /* of a block: those of all warps, at most */
    BYTES_MIN = 8 << 20,    /* of the matrices */
};

struct bulk_args {
    st_cuda_gemv_args products;           /* of which a block has one column: first_block is the first column */
    uint32_t columns, pieces;             /* of all products; of a row */
    uint32_t piece_bytes, stages;
};

/* A piece of a warp's rows of weights, and its stage of the ring. */
struct place {
    uint32_t column, part, stage, odd; /* odd: of the times that the stage was filled before */

    __device__ __forceinline__ void advance(const bulk_args &a, uint32_t step)
    {
        if (++part == a.pieces) part = 0, column += step;
        if (++stage == a.stages) stage = 0, odd ^= 1;
    }
    __device__ __forceinline__ void send(const bulk_args &a, unsigned char *ring, uint64_t *barriers) const
    {
        const st_cuda_gemv_product &p = a.products.of(column);
        uint32_t from = part * a.piece_bytes;
        const unsigned char *row = p.weights + (column - p.first_block) * p.row_bytes;
        st_cuda_bulk_copy(ring + stage * a.piece_bytes, row + from, min(a.piece_bytes, (uint32_t)p.row_bytes - from), &barriers[stage]);
    }
};

template <class W> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP, 2) gemv_bulk(bulk_args a)
{
    ST_CUDA_DYNAMIC(uint4, shared);
    __shared__ uint64_t barriers[WARPS][STAGES_MAX];
    st_cuda_release();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, all_units = a.products.acts.width / 32;
    uint32_t step = WARPS * gridDim.x;
    unsigned char *ring = (unsigned char *)shared + warp * a.stages * a.piece_bytes;
    place now = {warp * gridDim.x + blockIdx.x, 0, 0, 0}, next = now;
    if (lane == 0)
        for (uint32_t i = 0; i < a.stages; i++) st_cuda_bulk_barrier(&barriers[warp][i]);
    for (uint32_t i = 0; i < a.stages; i++, next.advance(a, step))
        if (lane == 0 && next.column < a.columns) next.send(a, ring, barriers[warp]);
    __syncwarp();
    st_cuda_await();
    bool present = a.products.rows.count() > 0;
    st_cuda_unit_acts x[UNITS];
    float sum = 0;
    for (bool first = true; now.column < a.columns; first = false, now.advance(a, step), next.advance(a, step)) {
        uint32_t before = now.part * (PIECE / 32), units = min((uint32_t)PIECE / 32, all_units - before);
        const unsigned char *row = ring + now.stage * a.piece_bytes;
        if (first || a.pieces > 1)
#pragma unroll
            for (int i = 0; i < UNITS; i++) /* past the end: the last, not added */
                st_cuda_load_acts<W>(a.products.acts, 0, before + min(lane + i * ST_CUDA_WARP, units - 1), x[i]);
        st_cuda_bulk_wait(&barriers[warp][now.stage], now.odd);
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            uint32_t unit = lane + i * ST_CUDA_WARP;
            unsigned words[W::WORDS];
            st_cuda_unit w;
            W::template fetch<st_cuda_from_shared>(row, min(unit, units - 1), words);
            W::decode(row, min(unit, units - 1), words, w);
            float dot = st_cuda_unit_dot(w, x[i]);
            sum += unit < units ? dot : 0;
        }
        __syncwarp(); /* all lanes have read the stage */
        if (lane == 0 && next.column < a.columns) next.send(a, ring, barriers[warp]);
        if (now.part + 1 < a.pieces) continue;
        float all = st_cuda_warp_sum(sum);
        const st_cuda_gemv_product &p = a.products.of(now.column);
        uint32_t column = now.column - p.first_block;
        if (lane == 0 && present) p.out[column] = all + (p.bias.data ? p.bias.at(column) : 0);
        sum = 0;
    }
}

struct launch {
    const st_cuda_call *call;
    bulk_args args;

    template <class W> int run() const
    {
        size_t bytes = (size_t)WARPS * args.stages * args.piece_bytes;
        int code = (int)cudaFuncSetAttribute(gemv_bulk<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, RING_BYTES);
        if (code != cudaSuccess) return code;
        uint32_t blocks = min(2 * st_cuda_processors(), st_cuda_blocks(args.columns, WARPS));
        return st_cuda_start<gemv_bulk<W>>(call, blocks, WARPS * ST_CUDA_WARP, bytes, args);
    }
};

} // namespace

/* Short rows and small matrices take less time in registers: qwen3-30b-a3b, whose rows have 2,048 elements, decodes 457 tokens/s
 * with these and 421 here; qwen3-8b 422 and 448. */
extern "C" bool st_cuda_matmul_fits_bulk(const st_cuda_call *call)
{
    bool fits = st_cuda_has_bulk() && call->rows == 1 && call->bound->weight[0].ne[0] >= PIECE;
    size_t bytes = 0;
    for (uint32_t i = 0; i <= call->joined; i++) {
        const st_bound_weight *w = &call->bound[i].weight[0];
        fits = fits && w->row_bytes % 16 == 0 && (uintptr_t)w->data % 16 == 0;
        bytes += w->row_bytes * w->ne[1];
    }
    return fits && bytes >= BYTES_MIN;
}

extern "C" int st_cuda_matmul_bulk(const st_cuda_call *call)
{
    const st_bound_weight *w = &call->bound->weight[0];
    bulk_args args = {};
    args.products = st_cuda_gemv_args_of(call, 1, args.columns);
    args.pieces = st_cuda_blocks(w->ne[0], PIECE);
    args.piece_bytes = (uint32_t)(args.pieces > 1 ? w->row_bytes * PIECE / w->ne[0] : w->row_bytes);
    args.stages = min((uint32_t)STAGES_MAX, RING_BYTES / (WARPS * args.piece_bytes));
    return st_cuda_with_unit(w->type, launch{call, args});
}
