/* out = w0 · in0 (+ w1) for few rows, with int8 activations. A warp has COLUMNS rows of weights, and reads each once for all
 * ROWS rows of the step, and the activations of a row once for all COLUMNS. Up to ST_CUDA_JOINED_MAX products of the same input run together. */
#include "backend/cuda/gemv.cuh"

namespace {

enum { WARPS = 4, MANY_COLUMNS = 8192 };

struct product {
    const unsigned char *weights;
    size_t row_bytes;
    uint32_t columns, first_block;
    float *out;
    st_cuda_vector bias;
};

struct gemv_args {
    st_cuda_rows rows;
    st_cuda_acts acts;
    uint32_t count;
    product products[ST_CUDA_JOINED_MAX];
};

template <class W, int ROWS, int COLUMNS> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) gemv(gemv_args a)
{
    uint32_t of = 0;
    while (of + 1 < a.count && blockIdx.x >= a.products[of + 1].first_block) of++;
    const product &p = a.products[of];
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
    uint32_t first = ((blockIdx.x - p.first_block) * WARPS + threadIdx.x / ST_CUDA_WARP) * COLUMNS;
    uint32_t count = a.rows.count(), units = a.acts.width / 32;
    if (first >= p.columns || count == 0) return;
    const unsigned char *weights[COLUMNS];
    float sum[COLUMNS][ROWS] = {};
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) weights[c] = p.weights + (size_t)min(first + c, p.columns - 1) * p.row_bytes;
#pragma unroll(ROWS == 1 ? 2 : 1)
    for (uint32_t u = lane; u < units; u += ST_CUDA_WARP) {
        st_cuda_unit w[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) W::unpack(weights[c], u, w[c]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            st_cuda_unit_acts x;
            st_cuda_load_acts<W>(a.acts, min((uint32_t)r, count - 1), u, x); /* rows past the end: the last, not stored */
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sum[c][r] += st_cuda_unit_dot(w[c], x);
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float all = st_cuda_warp_sum(sum[c][r]);
            if (lane == 0 && first + c < p.columns && r < count)
                p.out[(size_t)r * p.columns + first + c] = all + (p.bias.data ? p.bias.at(first + c) : 0);
        }
}

struct launch {
    const st_cuda_call *call;

    template <class W, int ROWS, int COLUMNS> int start() const
    {
        const st_bound_op *b = call->bound;
        gemv_args args = {st_cuda_rows_of(call), {call->scratch, (uint32_t)b->weight[0].ne[0]}, 1 + call->joined, {}};
        uint32_t blocks = 0;
        for (uint32_t i = 0; i < args.count; i++, b++) {
            args.products[i] = {(const unsigned char *)b->weight[0].data, b->weight[0].row_bytes, b->out.width, blocks,
                                st_cuda_floats(b->out), st_cuda_vector_of(&b->weight[1])};
            blocks += st_cuda_blocks(b->out.width, WARPS * COLUMNS);
        }
        return st_cuda_start<gemv<W, ROWS, COLUMNS>>(call->stream, blocks, WARPS * ST_CUDA_WARP, 0, args);
    }
    template <class W> int run() const
    {
        uint32_t columns = 0;
        for (uint32_t i = 0; i <= call->joined; i++) columns += call->bound[i].out.width;
        if (call->rows == 1) return columns < MANY_COLUMNS ? start<W, 1, 1>() : start<W, 1, 2>();
        if (call->rows == 2) return start<W, 2, 2>();
        return start<W, ST_CUDA_INT8_ROWS, 4>();
    }
};

} // namespace

extern "C" int st_cuda_matmul_int8(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    int code = cudaSuccess;
    if (!call->quantised)
        code = st_cuda_quantise_rows(call, st_cuda_floats(b->in[0]), (uint32_t)b->weight[0].ne[0], 1, call->scratch);
    return code == cudaSuccess ? st_cuda_with_unit(b->weight[0].type, launch{call}) : code;
}
