/* out = weights · in on tensor cores. A block has a tile of 16 × TM columns for each warp and 8 × TN rows. A lane of a warp unpacks
 * the weights of its fragments from the file's blocks straight into registers: 2 × TM columns, of which lane t of four has the
 * elements 64 t to 64 t + 63 of each group of 256. Activations, which are stored in that order (halves.cuh), go through shared
 * memory, STAGES pieces deep. */
#ifndef ST_CUDA_TILES_CUH
#define ST_CUDA_TILES_CUH

#include "backend/cuda/mma.cuh"
#include "backend/cuda/pieces.cuh"
#include "backend/cuda/tiles.h"

/* Where the rows of a tile are. */
template <int ROWS> struct st_cuda_tile_rows {
    uint32_t chunk[ROWS]; /* of `halves` */
    uint32_t out[ROWS];
    float factor[ROWS];
};

/* Finds the tile's rows. Returns how many there are; 0: the block has nothing to do. */
template <int ROWS, int THREADS>
static __device__ uint32_t st_cuda_find_rows(const st_cuda_tiles_args &a, st_cuda_tile_rows<ROWS> &rows, uint32_t &expert)
{
    const st_cuda_tile_experts &e = a.experts;
    uint32_t first = blockIdx.y * ROWS, count;
    if (e.tiles) {
        if (blockIdx.y >= *e.tile_count) return 0;
        st_cuda_tile tile = e.tiles[blockIdx.y];
        expert = tile.expert, first = tile.first, count = tile.count;
    } else {
        uint32_t all = a.rows.count();
        if (first >= all) return 0;
        count = min((uint32_t)ROWS, all - first);
    }
    for (uint32_t n = threadIdx.x; n < ROWS; n += THREADS) {
        uint32_t place = first + min(n, count - 1), pair = e.tiles ? e.order[place] : place; /* past the end: the last, not stored */
        uint32_t row = e.inputs ? pair / e.used : place;
        rows.chunk[n] = (uint32_t)a.halves.at(row);
        rows.out[n] = e.inputs ? place : pair;
        rows.factor[n] = a.halves.scales()[row] / ST_CUDA_WEIGHT_FACTOR * (e.inputs && e.weights ? e.weights[pair] : 1);
    }
    return count;
}

/* Adds up the parts of a tile in the last block that ends; false: another block is the last. The parts are added in their order,
 * whichever block that is. */
template <int COUNT, int THREADS> static __device__ bool st_cuda_add_parts(const st_cuda_tiles_args &a, float4 *sums)
{
    __shared__ bool last;
    uint32_t tile = blockIdx.y * gridDim.x + blockIdx.x;
    float4 *parts = (float4 *)a.partial + (size_t)tile * a.splits * COUNT * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < COUNT; i++) parts[((size_t)blockIdx.z * COUNT + i) * THREADS] = sums[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&a.counters[tile], 1) + 1 == a.splits;
    __syncthreads();
    __threadfence();
    if (!last) return false;
    if (threadIdx.x == 0) a.counters[tile] = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) sums[i] = {};
#pragma unroll 1
    for (uint32_t s = 0; s < a.splits; s++) { /* outside, so that the loads of a part are under way at once */
        float4 part[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) part[i] = __ldcg(parts + ((size_t)s * COUNT + i) * THREADS);
#pragma unroll
        for (int i = 0; i < COUNT; i++) sums[i].x += part[i].x, sums[i].y += part[i].y, sums[i].z += part[i].z, sums[i].w += part[i].w;
    }
    return true;
}

/* How a block runs: TM fragments of 16 columns for each warp, TN of 8 rows. */
template <class W, int WARPS, int TM, int TN> struct st_cuda_tile_shape {
    static constexpr bool AHEAD = TM == 2 && TN <= 4; /* the next weights are loaded into registers of their own */
    static constexpr int THREADS = WARPS * ST_CUDA_WARP;
    static constexpr int STAGES = TN == 16 ? 3 : 4;
    static constexpr int STAGE = TN * ST_CUDA_PIECE_CHUNKS; /* activations of a piece */
    static constexpr int BYTES = STAGES * STAGE * (int)sizeof(uint4);
    static constexpr int WIDTH = 16 * TM, PITCH = WIDTH + 4; /* of a warp's sums in shared memory; rows of a column pair differ in their banks */
    static constexpr int PASSES = WARPS * 8 * TN * PITCH * (int)sizeof(float) > BYTES ? 2 : 1; /* of as many rows as fit there */
    static constexpr int TOGETHER = TN == 4 || TN == 8 ? 4 : 2;
    static constexpr int PREFETCH = TN <= 8 ? 2 : 0; /* groups from the current one to that which is brought into the L2 cache */
    /* of a processor, at least: as many as leave the registers that a block needs */
    static constexpr int BLOCKS = WARPS == 8 ? 1 : TM == 1 ? (TN == 8 ? 4 : 6) : TN == 16 || (TN <= 4 && W::PIECES == 1) ? 2 : 3;
};

/* Writes rows first … end − 1 of a warp's columns, `column` being the first of them, from `sums`, which has row `first` at its
 * begin. A loop over the rows rather than code for each: the code of a block that runs once comes from memory. */
template <class SHAPE, int ROWS>
static __device__ void st_cuda_write_rows(const st_cuda_tiles_args &a, const st_cuda_tile_product &p, const st_cuda_tile_rows<ROWS> &rows,
                                          uint32_t expert, uint32_t column, uint32_t first, uint32_t end, const float *sums)
{
    const st_cuda_tile_experts &e = a.experts;
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, span = e.gated ? 16 : SHAPE::WIDTH, at = lane % span;
    column += at;
    if (column >= p.columns) return;
    size_t of_expert = (size_t)expert * p.columns + column;
    float bias = p.bias.data ? p.bias.at(column) : e.bias.data ? e.bias.at(of_expert) : 0;
    float up_bias = e.gated && e.up_bias.data ? e.up_bias.at(of_expert) : 0;
    const float *from = sums + at;
    float *out = p.out + column;
    if (e.inputs)
#pragma unroll 1
        for (uint32_t row = first + lane / span; row < end; row += ST_CUDA_WARP / span) {
            const float *x = from + (row - first) * SHAPE::PITCH;
            float up = e.gated ? x[16] * rows.factor[row] + up_bias : 1.0f;
            out[(size_t)rows.out[row] * p.columns] = st_cuda_gated(e.activation, x[0] * rows.factor[row] + bias, up);
        }
    else
#pragma unroll 4
        for (uint32_t row = first + lane / span; row < end; row += ST_CUDA_WARP / span)
            out[(size_t)rows.out[row] * p.columns] = from[(row - first) * SHAPE::PITCH] * rows.factor[row] + bias;
}

template <class W, int WARPS, int TM, int TN>
static __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP, st_cuda_tile_shape<W, WARPS, TM, TN>::BLOCKS)
    st_cuda_tiles(st_cuda_tiles_args a)
{
    st_cuda_begin();
    typedef st_cuda_tile_shape<W, WARPS, TM, TN> shape;
    constexpr int THREADS = shape::THREADS, ROWS = 8 * TN, STAGES = shape::STAGES, STAGE = shape::STAGE;
    constexpr int TOGETHER = shape::TOGETHER, PREFETCH = shape::PREFETCH;
    constexpr bool AHEAD = shape::AHEAD;
    ST_CUDA_DYNAMIC(uint4, stages);
    __shared__ st_cuda_tile_rows<ROWS> rows;
    uint32_t of = 0, expert = 0, lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP;
    while (of + 1 < a.count && blockIdx.x >= a.products[of + 1].first_block) of++;
    const st_cuda_tile_product &p = a.products[of];
    uint32_t count = st_cuda_find_rows<ROWS, THREADS>(a, rows, expert);
    if (count == 0) return; /* the same for the whole block */

    /* the lane's columns: where they begin, [fragment][half of it] */
    const unsigned char *base[2] = {p.weights, p.weights};
    bool gated = a.experts.gated;
    uint32_t span = gated ? 16 : 16 * TM, first_column = ((blockIdx.x - p.first_block) * WARPS + warp) * span + lane / 4;
    uint32_t starts[TM][2];
    if (a.experts.tiles) base[0] = base[1] = (const unsigned char *)a.experts.table[expert] + a.experts.first * p.row_bytes;
    if (gated) base[1] = (const unsigned char *)a.experts.up_table[expert] + a.experts.up_first * a.experts.up_bytes;
#pragma unroll
    for (int i = 0; i < 2 * TM; i++) {
        uint32_t column = min(first_column + (gated ? 0 : i / 2 * 16) + i % 2 * 8, p.columns - 1);
        starts[i / 2][i % 2] = column * (uint32_t)(gated && i / 2 ? a.experts.up_bytes : p.row_bytes);
    }
    uint32_t steps = a.halves.pieces() / W::PIECES, first_step = steps * blockIdx.z / a.splits, last_step = steps * (blockIdx.z + 1) / a.splits;
    uint32_t begin = first_step * W::PIECES, end = last_step * W::PIECES, blocks = a.halves.width / 32;
    __syncthreads();

    /* four warps copy eight rows at a time: `halves` is where the thread's chunks begin */
    const uint4 *halves = a.halves.chunks() + (WARPS > 4 ? warp % 4 : warp) * 32 + lane % 4;
    uint32_t copied_row = (WARPS > 4 ? warp / 4 * 8 : 0) + lane / 4;
    auto copy_piece = [&](uint32_t piece) {
        uint4 *to = stages + (piece - begin) % STAGES * STAGE;
        if (piece < end) {
            const uint4 *base = halves + piece * ST_CUDA_PIECE_CHUNKS;
            uint32_t from[STAGE / THREADS]; /* found before the copies, which the compiler leaves in their order */
#pragma unroll
            for (int i = 0; i < STAGE / THREADS; i++) from[i] = rows.chunk[8 * (i * THREADS / ST_CUDA_PIECE_CHUNKS) + copied_row];
#pragma unroll
            for (int i = 0; i < STAGE / THREADS; i++) st_cuda_copy_16(to + i * THREADS + threadIdx.x, base + from[i]);
        }
        st_cuda_copies_end();
    };
    auto fetch = [&](uint32_t step, typename W::raw w[TM][2]) { /* no branch, so that the loads of all columns are under way at once */
#pragma unroll
        for (int i = 0; i < 2 * TM; i++) W::fetch(base[i / 2] + starts[i / 2][i % 2], step, lane % 4, blocks, w[i / 2][i % 2]);
    };

    float sums[TM][TN][4] = {};
    typename W::raw w[TM][2], next[TM][2];
    st_cuda_scales scales[TM][2];
    auto open = [&](uint32_t step) {
#pragma unroll
        for (int i = 0; i < 2 * TM; i++) W::open(w[i / 2][i % 2], step, lane % 4, blocks, scales[i / 2][i % 2]);
    };
    /* The products with a piece's activations. `following`: the step whose weights are loaded when those of this one are unpacked. */
    auto multiply = [&](int p, const uint4 *stage, bool loads, uint32_t following) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            unsigned fragments[2][TM][4]; /* of two steps of 16 elements */
#pragma unroll
            for (int k = 0; k < 4 * TM; k++) {
                int s = k % 2, j = k / 2 % 2, i = k / 4, four = 2 * c + s, of = W::scale(p, four);
                unsigned two[2];
                st_cuda_four_halves<W::CENTRE>(W::bytes(w[i][j], p, four), scales[i][j].d[of], scales[i][j].m[of], two);
                fragments[s][i][j] = two[0];
                fragments[s][i][2 + j] = two[1];
            }
            if (loads && c == 3) fetch(following, w);
#pragma unroll
            for (int n = 0; n < TN; n += TOGETHER) {
                uint4 b[TOGETHER]; /* several, so that a product does not wait for the one before it */
#pragma unroll
                for (int k = 0; k < TOGETHER; k++) b[k] = stage[(n + k) * ST_CUDA_PIECE_CHUNKS + c * 32 + lane];
#pragma unroll
                for (int s = 0; s < 2; s++)
#pragma unroll
                    for (int k = 0; k < TOGETHER * TM; k++) {
                        const uint4 &x = b[k / TM];
                        st_cuda_mma(sums[k % TM][n + k / TM], fragments[s][k % TM], s ? x.z : x.x, s ? x.w : x.y);
                    }
            }
        }
    };
    for (int s = 0; s < STAGES - 1; s++) copy_piece(begin + s);
    fetch(first_step, w);
    for (uint32_t step = first_step; step < last_step; step++) {
        uint32_t following = min(step + 1, last_step - 1);
        open(step);
        if (PREFETCH && (W::PIECES == 2 || step % 2 == 0)) {
            uint32_t group = min(step * W::PIECES / 2 + PREFETCH, blocks / 8 - (blocks >= 8));
#pragma unroll
            for (int i = 0; i < 2 * TM; i++)
                st_cuda_prefetch(base[i / 2] + starts[i / 2][i % 2] + group * W::GROUP_BYTES + lane % 4 * (W::GROUP_BYTES / 4));
        }
        if (AHEAD) fetch(following, next);
#pragma unroll
        for (int p = 0; p < W::PIECES; p++) {
            uint32_t piece = step * W::PIECES + p;
            st_cuda_copies_wait<STAGES - 2>();
            __syncthreads();
            copy_piece(piece + STAGES - 1);
            multiply(p, stages + (piece - begin) % STAGES * STAGE, !AHEAD && p == W::PIECES - 1, following);
        }
        if (AHEAD)
#pragma unroll
            for (int i = 0; i < 2 * TM; i++) w[i / 2][i % 2] = next[i / 2][i % 2];
    }
    if (a.splits > 1 && !st_cuda_add_parts<TM * TN, THREADS>(a, (float4 *)sums)) return;

    /* element 2 j + e of a fragment: column 8 j, row e */
    __syncthreads();
    float *own = (float *)stages + warp * (8 * TN / shape::PASSES) * shape::PITCH;
#pragma unroll
    for (int pass = 0; pass < shape::PASSES; pass++) {
        constexpr int EACH = TN / shape::PASSES;
#pragma unroll
        for (int k = 0; k < TM * EACH * 4; k++) {
            int i = k / 4 % TM, n = k / 4 / TM, j = k / 2 % 2, e = k % 2;
            own[(n * 8 + lane % 4 * 2 + e) * shape::PITCH + lane / 4 + 16 * i + 8 * j] = sums[i][pass * EACH + n][2 * j + e];
        }
        __syncwarp();
        st_cuda_write_rows<shape>(a, p, rows, expert, first_column - lane / 4, pass * EACH * 8, min(count, (pass + 1) * EACH * 8), own);
        __syncwarp();
    }
}

/* One launch, for weights of type W. */
template <class W> struct st_cuda_tiles_launch {
    const st_cuda_call *call;
    const st_cuda_tiles_plan &plan;

    template <int WARPS, int TM, int TN> int start(st_cuda_tiles_args args) const
    {
        constexpr int BYTES = st_cuda_tile_shape<W, WARPS, TM, TN>::BYTES;
        static_assert(BYTES + 2048 <= 99 * 1024, "shared memory of a block");
        uint32_t blocks = 0, span = WARPS * (args.experts.gated ? 16 : 16 * TM);
        for (uint32_t i = 0; i < args.count; i++) {
            args.products[i].first_block = blocks;
            blocks += st_cuda_blocks(args.products[i].columns, span);
        }
        int code = (int)cudaFuncSetAttribute(st_cuda_tiles<W, WARPS, TM, TN>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
        if (code != cudaSuccess) return code;
        dim3 grid(blocks, plan.grid_rows, plan.splits);
        return st_cuda_start<st_cuda_tiles<W, WARPS, TM, TN>>(call, grid, WARPS * ST_CUDA_WARP, BYTES, args);
    }
    int run(const st_cuda_tiles_args &args) const
    {
        enum { WARPS = ST_CUDA_TILE_WARPS };
        if (plan.narrow && plan.rows == 16) return start<WARPS, 1, 2>(args);
        if (plan.narrow && plan.rows == 32) return start<WARPS, 1, 4>(args);
        if (plan.narrow) return start<WARPS, 1, 8>(args);
        if (plan.rows == 16) return start<WARPS, 2, 2>(args);
        if (plan.rows == 32) return start<WARPS, 2, 4>(args);
        if (plan.rows == 64) return start<WARPS, 2, 8>(args);
        return plan.warps == WARPS ? start<WARPS, 2, 16>(args) : start<2 * WARPS, 2, 16>(args);
    }
};

/* … of units of U; GROUP_BYTES: of 256 elements. */
template <class U, int CENTRE, size_t GROUP_BYTES>
static int st_cuda_run_tiles(const st_cuda_call *call, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan)
{
    return st_cuda_tiles_launch<st_cuda_stream_of<st_cuda_pieces_of_units<U, CENTRE>, GROUP_BYTES>>{call, plan}.run(args);
}

#endif
