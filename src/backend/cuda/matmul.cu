/* out = w0 · in0 (+ w1), float32 products of dequantised weights; most quantised types are in matmul_int8.cu (few rows),
 * matmul_cores.cu and matmul_tiles.cu. A few rows: a warp per column, each weight is read once for ROWS rows. Plain types up to
 * ST_CUDA_FEW_ROWS rows, such as a router: a block has SIDE columns of SEVERAL rows, and its warps a part of the depth each; more rows
 * with NARROW columns at most: NEAR of both. Other batches: tiles of columns × rows in shared memory. */
#include "backend/cuda/products.h"
#include "backend/cuda/weights.cuh"

namespace {

enum { WARPS = 4, FEW = 4, SEVERAL = 8, TILE = 64, DEPTH = 32, SIDE = 4, TILE_THREADS = 256 };
enum { SPLITS = 8, SPLIT_THREADS = SPLITS * ST_CUDA_WARP, NEAR = 32, NARROW = 512 };

typedef st_cuda_product_args matmul_args;

/* Elements k, k + 128 … by four, AHEAD loads under way at once. */
template <class W, int AHEAD>
__device__ __forceinline__ void fetch(const unsigned char *weights, uint32_t k, uint32_t width, float4 *w)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) w[i] = W::four(weights, min(k + i * 4 * ST_CUDA_WARP, width - 4));
}

/* Plain types by four elements: rows of weights are aligned, and their width is a multiple of 4. The first weights are loaded
 * before the kernel waits for the one before it. */
template <class W, int ROWS> __global__ void few_rows_by_four(matmul_args a)
{
    enum { AHEAD = 4, STEP = 4 * ST_CUDA_WARP };
    st_cuda_release();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, column = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP;
    const unsigned char *weights = a.weights_of(min(column, a.columns - 1));
    float4 w[AHEAD];
    float sum[ROWS] = {};
    fetch<W, AHEAD>(weights, 4 * lane, a.width, w);
    st_cuda_await();
    uint32_t count = a.rows.count(), first_row = blockIdx.y * ROWS;
    if (column >= a.columns || first_row >= count) return;
    for (uint32_t first = 4 * lane; first < a.width; first += AHEAD * STEP) {
        if (first != 4 * lane) fetch<W, AHEAD>(weights, first, a.width, w);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            uint32_t k = first + i * STEP;
            if (k >= a.width) break;
#pragma unroll
            for (int r = 0; r < ROWS; r++) { /* rows past the end: the last, not stored */
                float4 x = *(const float4 *)(a.in_of(min(first_row + r, count - 1)) + k);
                sum[r] += w[i].x * x.x + w[i].y * x.y + w[i].z * x.z + w[i].w * x.w;
            }
        }
    }
    float offset = a.bias.data ? a.bias.at(column) : 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float all = st_cuda_warp_sum(sum[r]);
        if (lane == 0 && first_row + r < count) a.out_of(first_row + r)[column] = all + offset;
    }
}

/* … with SIDE columns and SEVERAL rows of a block: as many sums as a warp has lanes. */
template <class W> __global__ void __launch_bounds__(SPLIT_THREADS) several_rows_by_four(matmul_args a)
{
    static_assert(SIDE * SEVERAL == ST_CUDA_WARP, "a lane writes each sum");
    __shared__ float parts[SPLITS][ST_CUDA_WARP];
    st_cuda_release();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, first_column = blockIdx.x * SIDE, first_row = blockIdx.y * SEVERAL;
    float4 w[SIDE], next[SIDE];
    float sums[ST_CUDA_WARP] = {}; /* [row][column] */
    auto load = [&](uint32_t k, float4 *to) {
#pragma unroll
        for (int c = 0; c < SIDE; c++) to[c] = W::four(a.weights_of(min(first_column + c, a.columns - 1)), min(k, a.width - 4));
    };
    load(4 * threadIdx.x, next);
    st_cuda_await();
    uint32_t count = a.rows.count();
    if (first_row >= count) return; /* the same for the whole block */
#pragma unroll 1
    for (uint32_t k = 4 * threadIdx.x; k < a.width; k += 4 * SPLIT_THREADS) {
#pragma unroll
        for (int c = 0; c < SIDE; c++) w[c] = next[c];
        load(k + 4 * SPLIT_THREADS, next);
        float4 x[SEVERAL]; /* rows past the end: the last, not stored */
#pragma unroll
        for (int r = 0; r < SEVERAL; r++) x[r] = *(const float4 *)(a.in_of(min(first_row + r, count - 1)) + k);
#pragma unroll
        for (int i = 0; i < ST_CUDA_WARP; i++) {
            const float4 &v = x[i / SIDE], &u = w[i % SIDE];
            sums[i] += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
        }
    }
#pragma unroll
    for (int n = ST_CUDA_WARP / 2; n > 0; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) sums[i] = st_cuda_exchange(sums[i], sums[i + n], n);
    parts[threadIdx.x / ST_CUDA_WARP][lane] = sums[0];
    __syncthreads();
    uint32_t row = first_row + lane / SIDE, column = first_column + lane % SIDE;
    if (threadIdx.x >= ST_CUDA_WARP || row >= count || column >= a.columns) return;
    float sum = a.bias.data ? a.bias.at(column) : 0;
#pragma unroll
    for (int s = 0; s < SPLITS; s++) sum += parts[s][lane];
    a.out_of(row)[column] = sum;
}

/* … with NEAR columns and NEAR rows of a block. A warp has four neighbours of every 32 elements of the depth, a lane SEVERAL rows of
 * SIDE columns: so many blocks and warps that a router keeps the GPU busy. */
template <class W> __global__ void __launch_bounds__(SPLIT_THREADS) many_rows_by_four(matmul_args a)
{
    static_assert((NEAR / SEVERAL) * (NEAR / SIDE) == ST_CUDA_WARP, "a lane has its sums");
    enum { SUMS = SIDE * SEVERAL, STEP = 4 * SPLITS };
    __shared__ float parts[SPLITS][NEAR][NEAR + 1]; /* [row][column] */
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, count = a.rows.count();
    uint32_t own_row = lane / (NEAR / SIDE) * SEVERAL, own_column = lane % (NEAR / SIDE) * SIDE;
    uint32_t first_column = blockIdx.x * NEAR, first_row = blockIdx.y * NEAR;
    if (first_row >= count) return; /* the same for the whole block */
    const unsigned char *weights[SIDE]; /* rows and columns past the end: the last, not stored */
    const float *in[SEVERAL];
    float sums[SUMS] = {};
#pragma unroll
    for (int c = 0; c < SIDE; c++) weights[c] = a.weights_of(min(first_column + own_column + c, a.columns - 1));
#pragma unroll
    for (int r = 0; r < SEVERAL; r++) in[r] = a.in_of(min(first_row + own_row + r, count - 1));
#pragma unroll 1
    for (uint32_t k = 4 * warp; k < a.width; k += STEP) {
        float4 w[SIDE], x[SEVERAL];
#pragma unroll
        for (int c = 0; c < SIDE; c++) w[c] = W::four(weights[c], k);
#pragma unroll
        for (int r = 0; r < SEVERAL; r++) x[r] = *(const float4 *)(in[r] + k);
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const float4 &v = x[i / SIDE], &u = w[i % SIDE];
            sums[i] += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++) parts[warp][own_row + i / SIDE][own_column + i % SIDE] = sums[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < NEAR * NEAR; i += SPLIT_THREADS) {
        uint32_t row = first_row + i / NEAR, column = first_column + i % NEAR;
        if (row >= count || column >= a.columns) continue;
        float sum = a.bias.data ? a.bias.at(column) : 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) sum += parts[s][i / NEAR][i % NEAR];
        a.out_of(row)[column] = sum;
    }
}

template <class W, int ROWS> __global__ void few_rows(matmul_args a)
{
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, column = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP;
    uint32_t first = blockIdx.y * ROWS, count = a.rows.count();
    if (column >= a.columns || first >= count) return;
    const unsigned char *weights = a.weights_of(column);
    const float *in[ROWS];
    float sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
        in[r] = a.in_of(min(first + r, count - 1)); /* rows past the end: the last, not stored */
        sum[r] = 0;
    }
    for (uint32_t k = lane; k < a.width; k += ST_CUDA_WARP) {
        float weight = W::at(weights, k);
        for (int r = 0; r < ROWS; r++) sum[r] += weight * in[r][k];
    }
    float offset = a.bias.data ? a.bias.at(column) : 0;
    for (int r = 0; r < ROWS; r++) {
        float all = st_cuda_warp_sum(sum[r]);
        if (lane == 0 && first + r < count) a.out_of(first + r)[column] = all + offset;
    }
}

template <class W> __global__ void __launch_bounds__(TILE_THREADS) batch(matmul_args a)
{
    st_cuda_begin();
    __shared__ float weights[DEPTH][TILE + 1], inputs[DEPTH][TILE + 1];
    uint32_t first_column = blockIdx.x * TILE, first_row = blockIdx.y * TILE, count = a.rows.count();
    uint32_t x = threadIdx.x % (TILE / SIDE), y = threadIdx.x / (TILE / SIDE);
    float sum[SIDE][SIDE] = {};
    if (first_row >= count) return; /* the same for the whole block */
    for (uint32_t start = 0; start < a.width; start += DEPTH) {
        for (uint32_t i = threadIdx.x; i < DEPTH * TILE; i += TILE_THREADS) {
            uint32_t k = i % DEPTH, at = i / DEPTH, column = first_column + at, row = first_row + at;
            bool inside = start + k < a.width;
            weights[k][at] = inside && column < a.columns ? W::at(a.weights_of(column), start + k) : 0.0f;
            inputs[k][at] = inside && row < count ? a.in_of(row)[start + k] : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++) {
            float w[SIDE], v[SIDE];
            for (int i = 0; i < SIDE; i++) {
                w[i] = weights[k][x + i * (TILE / SIDE)];
                v[i] = inputs[k][y + i * (TILE / SIDE)];
            }
            for (int r = 0; r < SIDE; r++)
                for (int c = 0; c < SIDE; c++) sum[r][c] += w[c] * v[r];
        }
        __syncthreads();
    }
    for (int r = 0; r < SIDE; r++)
        for (int c = 0; c < SIDE; c++) {
            uint32_t row = first_row + y + r * (TILE / SIDE), column = first_column + x + c * (TILE / SIDE);
            if (row < count && column < a.columns)
                a.out_of(row)[column] = sum[r][c] + (a.bias.data ? a.bias.at(column) : 0);
        }
}

struct matmul {
    const st_cuda_call *call;
    matmul_args args;
    template <class W> int run() const
    {
        uint32_t columns = st_cuda_blocks(args.columns, WARPS), threads = WARPS * ST_CUDA_WARP;
        dim3 all(columns, 1, args.heads), by_few(columns, st_cuda_blocks(call->rows, FEW), args.heads);
        if constexpr (W::PLAIN) {
            bool aligned = (args.width | args.in_width | args.in_part) % 4 == 0 && ((uintptr_t)args.weights | args.row_bytes) % 16 == 0;
            if (aligned && call->rows == 1) return st_cuda_start<few_rows_by_four<W, 1>>(call, all, threads, 0, args);
            /* a router's matrix is small: tiles of it would run on two processors */
            dim3 by_several(st_cuda_blocks(args.columns, SIDE), st_cuda_blocks(call->rows, SEVERAL), args.heads);
            if (aligned && call->rows <= SEVERAL) return st_cuda_start<few_rows_by_four<W, SEVERAL>>(call, all, threads, 0, args);
            if (aligned && call->rows <= ST_CUDA_FEW_ROWS)
                return st_cuda_start_early<several_rows_by_four<W>>(call, by_several, SPLIT_THREADS, 0, args);
            dim3 by_many(st_cuda_blocks(args.columns, NEAR), st_cuda_blocks(call->rows, NEAR), args.heads);
            if (aligned && args.columns <= NARROW) return st_cuda_start<many_rows_by_four<W>>(call, by_many, SPLIT_THREADS, 0, args);
        }
        if (call->rows == 1) return st_cuda_start<few_rows<W, 1>>(call, all, threads, 0, args);
        if (call->rows <= SEVERAL) return st_cuda_start<few_rows<W, FEW>>(call, by_few, threads, 0, args);
        dim3 tiles(st_cuda_blocks(args.columns, TILE), st_cuda_blocks(call->rows, TILE), args.heads);
        return st_cuda_start<batch<W>>(call, tiles, TILE_THREADS, 0, args);
    }
};

} // namespace

int st_cuda_products_start(const st_cuda_call *call, uint32_t type, const st_cuda_product_args &args)
{
    return st_cuda_with_type(type, matmul{call, args});
}

extern "C" int st_cuda_matmul(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const st_bound_weight *w = &b->weight[0];
    if (st_cuda_matmul_on_cores(b, call->rows)) return st_cuda_matmul_cores(call);
    if (st_cuda_matmul_in_int8(b, call->rows)) return st_cuda_matmul_int8(call);
    if (st_cuda_matmul_in_tiles(b, call->rows)) return st_cuda_matmul_tiles(call);
    uint32_t width = (uint32_t)w->ne[0], columns = b->out.width;
    st_cuda_product_args args = {st_cuda_rows_of(call), (const unsigned char *)w->data, w->row_bytes, width, columns,
                                 st_cuda_floats(b->in[0]), st_cuda_floats(b->out), st_cuda_vector_of(&b->weight[1]), width, columns, 1, 0, 0};
    return st_cuda_products_start(call, w->type, args);
}
