/* out = w0 · in0 (+ w1) for one row, with int8 activations, on GPUs whose memory system copies to shared memory by itself
 * (compute capability 9.0). A warp has every so manyth row of weights, which come through its own ring in shared memory, a
 * piece at a time: much more is under way than registers would hold, and the first pieces before the kernel waits for the one
 * before it. A lane multiplies the same elements of all rows: with each piece of up to 32 rows it keeps their activations. */
#include "backend/cuda/gemv.cuh"

namespace {

enum {
    WARPS = 8,
    PIECE = 4096, /* elements of a row */
    STAGES_MAX = 4,
    RING_BYTES = 96 * 1024, /* of a block: those of all warps, at most */
    BYTES_MIN = 8 << 20,    /* of the matrices */
};

struct bulk_args {
    st_cuda_gemv_args products;           /* of which a block has one column: first_block is the first column */
    uint32_t columns;                     /* of all products */
    uint32_t row_bytes, piece_bytes, stages;
};

/* The next rows of weights of a warp, one for each lane. */
struct batch {
    uint32_t column, rows; /* column: of the lane's row; rows: how many there are */

    __device__ __forceinline__ batch(const bulk_args &a, uint32_t first, uint32_t step)
    {
        column = first + threadIdx.x % ST_CUDA_WARP * step;
        rows = __popc(__ballot_sync(0xFFFFFFFFu, column < a.columns));
    }
    __device__ __forceinline__ void advance(const bulk_args &a, uint32_t step)
    {
        *this = batch(a, __shfl_sync(0xFFFFFFFFu, column, 0) + ST_CUDA_WARP * step, step);
    }
};

/* What is copied next: a piece of a row of the batch, by the lane that has the row. All their first pieces come before the second. */
struct copies {
    batch own;
    uint32_t row, left;           /* left: bytes of each row, with this piece */
    const unsigned char *weights; /* of the lane's row: where the piece begins */

    __device__ __forceinline__ copies(const bulk_args &a, const batch &rows) : own(rows), row(0)
    {
        find(a);
    }
    __device__ __forceinline__ void find(const bulk_args &a)
    {
        const st_cuda_gemv_product &p = a.products.of(own.column);
        weights = p.weights + (size_t)(own.column - p.first_block) * p.row_bytes;
        left = a.row_bytes;
    }
    __device__ __forceinline__ void send(const bulk_args &a, uint32_t step, unsigned char *to, uint64_t *barrier)
    {
        if (own.rows == 0) return;
        if (threadIdx.x % ST_CUDA_WARP == row) st_cuda_bulk_copy(to, weights, min(a.piece_bytes, left), barrier);
        if (++row < own.rows) return;
        row = 0;
        weights += a.piece_bytes;
        if (left > a.piece_bytes) {
            left -= a.piece_bytes;
        } else {
            own.advance(a, step);
            find(a);
        }
    }
};

template <class S> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP, 2) gemv_bulk(bulk_args a)
{
    enum { SPANS = PIECE / S::ELEMENTS / ST_CUDA_WARP }; /* of a lane */
    ST_CUDA_DYNAMIC(uint4, shared);
    __shared__ uint64_t barriers[WARPS][STAGES_MAX];
    st_cuda_release();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, step = WARPS * gridDim.x;
    st_cuda_keep(warp);
    unsigned char *ring = (unsigned char *)shared + warp * a.stages * a.piece_bytes;
    uint32_t stage = 0, odd = 0; /* odd: of the times that the stage was filled before */
    batch now(a, warp * gridDim.x + blockIdx.x, step);
    copies next(a, now);
    if (lane == 0)
        for (uint32_t i = 0; i < a.stages; i++) st_cuda_bulk_barrier(&barriers[warp][i]);
    __syncwarp();
    for (uint32_t i = 0; i < a.stages; i++) next.send(a, step, ring + i * a.piece_bytes, &barriers[warp][i]);
    __syncwarp(); /* no lane waits for a copy that another has not begun */
    st_cuda_await();
    bool present = a.products.rows.count() > 0;
    for (; now.rows > 0; now.advance(a, step)) {
        float own = 0; /* of the lane's row */
        for (uint32_t before = 0; before < a.products.acts.width; before += PIECE) {
            uint32_t spans = min((uint32_t)PIECE, a.products.acts.width - before) / S::ELEMENTS;
            typename S::acts x[SPANS];
            typename S::place at[SPANS];
#pragma unroll
            for (int i = 0; i < SPANS; i++) {
                uint32_t span = min(lane + i * ST_CUDA_WARP, spans - 1);
                S::load(a.products.acts, 0, before / S::ELEMENTS + span, x[i]);
                if (lane + i * ST_CUDA_WARP >= spans) S::clear(x[i]);
                at[i] = typename S::place(span);
                S::keep(at[i]);
            }
#pragma unroll 1
            for (uint32_t r = 0; r < now.rows; r++) {
                const unsigned char *row = ring + stage * a.piece_bytes;
                float sum = 0;
                st_cuda_bulk_wait(&barriers[warp][stage], odd);
#pragma unroll
                for (int i = 0; i < SPANS; i++) {
                    unsigned words[S::WORDS];
                    S::template fetch<st_cuda_from_shared>(row, at[i], words);
                    sum = S::dot(row, at[i], words, x[i], sum);
                }
                __syncwarp(); /* all lanes have read the stage */
                next.send(a, step, ring + stage * a.piece_bytes, &barriers[warp][stage]);
                if (++stage == a.stages) stage = 0, odd ^= 1;
                sum = st_cuda_warp_sum(sum);
                own += lane == r ? sum : 0;
            }
        }
        if (!present || lane >= now.rows) continue;
        const st_cuda_gemv_product &p = a.products.of(now.column);
        uint32_t column = now.column - p.first_block;
        p.out[column] = own + (p.bias.data ? p.bias.at(column) : 0);
    }
}

struct launch {
    const st_cuda_call *call;
    bulk_args args;

    template <class W> int run() const
    {
        size_t bytes = (size_t)WARPS * args.stages * args.piece_bytes;
        typedef st_cuda_span<W> S;
        int code = (int)cudaFuncSetAttribute(gemv_bulk<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, RING_BYTES);
        if (code != cudaSuccess) return code;
        uint32_t blocks = min(2 * st_cuda_processors(), st_cuda_blocks(args.columns, WARPS));
        return st_cuda_start<gemv_bulk<S>>(call, blocks, WARPS * ST_CUDA_WARP, bytes, args);
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
    args.row_bytes = (uint32_t)w->row_bytes;
    args.piece_bytes = (uint32_t)(w->row_bytes * PIECE / w->ne[0]);
    args.stages = min((uint32_t)STAGES_MAX, RING_BYTES / (WARPS * args.piece_bytes));
    return st_cuda_with_unit(w->type, launch{call, args});
}
