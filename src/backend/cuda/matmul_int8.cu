/* out = w0 · in0 (+ w1) for few rows, with int8 activations. A warp has COLUMNS rows of weights, and reads each once for all
 * ROWS rows of the step, and the activations of a row once for all COLUMNS. Up to ST_CUDA_JOINED_MAX products of the same input run together. */
#include "backend/cuda/gemv.cuh"

namespace {

enum {
    WARPS = 4,
    MANY_COLUMNS = 4096, /* a warp then has two */
    DEEP = 2048,         /* elements of a row: lanes then have more than two units */
};

/* A lane has the loads of SPANS spans of each column under way at a time; the first ones before the kernel waits for the one
 * before it. */
template <class S, int ROWS, int COLUMNS, int SPANS>
__global__ void __launch_bounds__(WARPS *ST_CUDA_WARP, ROWS == 1 ? 4 : 1) gemv(st_cuda_gemv_args a)
{
    enum { TOGETHER = ROWS == 1 && SPANS > 1 ? 2 : 1 }; /* spans whose activations are loaded at a time */
    st_cuda_release();
    const st_cuda_gemv_product &p = a.own();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, spans = a.acts.width / S::ELEMENTS;
    uint32_t first = ((blockIdx.x - p.first_block) * WARPS + threadIdx.x / ST_CUDA_WARP) * COLUMNS;
    const unsigned char *weights[COLUMNS];
    float sum[COLUMNS][ROWS] = {};
    unsigned words[SPANS][COLUMNS][S::WORDS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) weights[c] = p.weights + (size_t)min(first + c, p.columns - 1) * p.row_bytes;
    st_cuda_fetch_spans<S, COLUMNS, SPANS>(weights, lane, spans, words);
    st_cuda_await();
    uint32_t count = a.rows.count(); /* of a single row used at the end alone: nothing waits for its load */
    if (first >= p.columns || (ROWS > 1 && count == 0)) return;
    for (uint32_t base = 0; base < spans; base += SPANS * ST_CUDA_WARP) {
        if (base > 0) st_cuda_fetch_spans<S, COLUMNS, SPANS>(weights, base + lane, spans, words);
#pragma unroll
        for (int i = 0; i < SPANS; i += TOGETHER) {
            uint32_t span = base + i * ST_CUDA_WARP + lane;
            if (span - lane >= spans) break; /* the same for the warp */
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                typename S::acts x[TOGETHER];
#pragma unroll
                for (int k = 0; k < TOGETHER; k++) { /* rows past the end: the last, not stored */
                    uint32_t at = min(span + k * ST_CUDA_WARP, spans - 1);
                    S::load(a.acts, ROWS > 1 ? min((uint32_t)r, count - 1) : 0, at, x[k]);
                    if (span + k * ST_CUDA_WARP >= spans) S::clear(x[k]);
                }
#pragma unroll
                for (int k = 0; k < TOGETHER * COLUMNS; k++) {
                    int c = k % COLUMNS, own = k / COLUMNS;
                    typename S::place at(min(span + own * ST_CUDA_WARP, spans - 1));
                    sum[c][r] = S::dot(weights[c], at, words[i + own][c], x[own], sum[c][r]);
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

    /* `units`: so many have their loads under way. */
    template <class S, int ROWS, int COLUMNS, int UNITS> int start() const
    {
        enum { UNITS_EACH = S::ELEMENTS / 32, SPANS = UNITS > UNITS_EACH ? UNITS / UNITS_EACH : 1 };
        uint32_t blocks;
        st_cuda_gemv_args args = st_cuda_gemv_args_of(call, WARPS * COLUMNS, blocks);
        return st_cuda_start<gemv<S, ROWS, COLUMNS, SPANS>>(call, blocks, WARPS * ST_CUDA_WARP, 0, args);
    }
    template <class W> int run() const
    {
        enum { MANY = W::WORDS > 8 ? 2 : 4 }; /* units: as many as registers hold */
        typedef st_cuda_span<W> S;
        uint32_t columns = st_cuda_gemv_columns(call);
        bool deep = call->bound->weight[0].ne[0] > DEEP;
        if (call->rows == 1 && columns < MANY_COLUMNS) return deep ? start<S, 1, 1, 4>() : start<S, 1, 1, 2>();
        if (call->rows == 1) return deep ? start<S, 1, 2, MANY>() : start<S, 1, 2, 2>();
        if (call->rows == 2) return start<st_cuda_span_of_unit<W>, 2, 2, 2>();
        return start<st_cuda_span_of_unit<W>, ST_CUDA_INT8_ROWS, 4, 1>();
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
