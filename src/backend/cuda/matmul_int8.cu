/* out = w0 · in0 (+ w1) for few rows, with int8 activations. A warp has COLUMNS rows of weights, and reads each once for all
 * ROWS rows of the step, and the activations of a row once for all COLUMNS. Up to ST_CUDA_JOINED_MAX products of the same input run together. */
#include "backend/cuda/gemv.cuh"

namespace {

enum {
    WARPS = 4,
    MANY_COLUMNS = 4096, /* a warp then has two */
    DEEP = 2048,         /* elements of a row: lanes then have more than two units */
};

/* A lane has the loads of UNITS units of each column under way at a time; the first ones before the kernel waits for the one
 * before it. */
template <class W, int ROWS, int COLUMNS, int UNITS>
__global__ void __launch_bounds__(WARPS *ST_CUDA_WARP, ROWS == 1 ? 4 : 1) gemv(st_cuda_gemv_args a)
{
    enum { TOGETHER = ROWS == 1 && UNITS > 1 ? 2 : 1 }; /* units whose activations are loaded at a time */
    st_cuda_release();
    const st_cuda_gemv_product &p = a.own();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, units = a.acts.width / 32;
    uint32_t first = ((blockIdx.x - p.first_block) * WARPS + threadIdx.x / ST_CUDA_WARP) * COLUMNS;
    const unsigned char *weights[COLUMNS];
    float sum[COLUMNS][ROWS] = {};
    unsigned words[UNITS][COLUMNS][W::WORDS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) weights[c] = p.weights + (size_t)min(first + c, p.columns - 1) * p.row_bytes;
    st_cuda_fetch_units<W, COLUMNS, UNITS>(weights, lane, units, words);
    st_cuda_await();
    uint32_t count = a.rows.count(); /* of a single row used at the end alone: nothing waits for its load */
    if (first >= p.columns || (ROWS > 1 && count == 0)) return;
    for (uint32_t base = 0; base < units; base += UNITS * ST_CUDA_WARP) {
        if (base > 0) st_cuda_fetch_units<W, COLUMNS, UNITS>(weights, base + lane, units, words);
#pragma unroll
        for (int i = 0; i < UNITS; i += TOGETHER) {
            uint32_t unit = base + i * ST_CUDA_WARP + lane;
            if (unit - lane >= units) break; /* the same for the warp */
            st_cuda_unit w[TOGETHER][COLUMNS];
#pragma unroll
            for (int k = 0; k < TOGETHER * COLUMNS; k++)
                W::decode(weights[k % COLUMNS], min(unit + k / COLUMNS * ST_CUDA_WARP, units - 1), words[i + k / COLUMNS][k % COLUMNS],
                          w[k / COLUMNS][k % COLUMNS]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                st_cuda_unit_acts x[TOGETHER];
#pragma unroll
                for (int k = 0; k < TOGETHER; k++) /* rows and units past the end: the last, not stored or added */
                    st_cuda_load_acts<W>(a.acts, ROWS > 1 ? min((uint32_t)r, count - 1) : 0, min(unit + k * ST_CUDA_WARP, units - 1), x[k]);
#pragma unroll
                for (int k = 0; k < TOGETHER * COLUMNS; k++) {
                    float dot = st_cuda_unit_dot(w[k / COLUMNS][k % COLUMNS], x[k / COLUMNS]);
                    sum[k % COLUMNS][r] += unit + k / COLUMNS * ST_CUDA_WARP < units ? dot : 0;
                }
            }
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

    template <class W, int ROWS, int COLUMNS, int UNITS> int start() const
    {
        uint32_t blocks;
        st_cuda_gemv_args args = st_cuda_gemv_args_of(call, WARPS * COLUMNS, blocks);
        return st_cuda_start<gemv<W, ROWS, COLUMNS, UNITS>>(call, blocks, WARPS * ST_CUDA_WARP, 0, args);
    }
    template <class W> int run() const
    {
        enum { MANY = W::WORDS > 8 ? 2 : 4 }; /* units: as many as registers hold */
        uint32_t columns = st_cuda_gemv_columns(call);
        bool deep = call->bound->weight[0].ne[0] > DEEP;
        if (call->rows == 1 && columns < MANY_COLUMNS) return deep ? start<W, 1, 1, 4>() : start<W, 1, 1, 2>();
        if (call->rows == 1) return deep ? start<W, 1, 2, MANY>() : start<W, 1, 2, 2>();
        if (call->rows == 2) return start<W, 2, 2, 2>();
        return start<W, ST_CUDA_INT8_ROWS, 4, 1>();
    }
};

} // namespace

extern "C" int st_cuda_matmul_int8(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    int code = cudaSuccess;
    if (!(call->rows < ST_CUDA_CORES_ROWS_MIN ? call->quantised : call->ready))
        code = st_cuda_quantise_rows(call, st_cuda_floats(b->in[0]), (uint32_t)b->weight[0].ne[0], call->scratch);
    if (code != cudaSuccess) return code;
    return st_cuda_matmul_fits_bulk(call) ? st_cuda_matmul_bulk(call) : st_cuda_with_unit(b->weight[0].type, launch{call});
}
