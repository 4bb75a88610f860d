/* The selected experts of every row: gate and up, or up alone, of each pair (row, expert) into scratch, then down and the
 * weighted sum. A warp per output. Experts without an address in the tables are left out. */
#include "backend/cuda/tables.cuh"
#include "backend/cuda/weights.cuh"

namespace {

enum { WARPS = 4, TABLE_THREADS = 128 };

struct experts_args {
    st_cuda_rows rows;
    const void *const *table; /* of this matrix */
    size_t row_bytes;
    const float *in;          /* [rows, embedding] */
    const int32_t *ids;       /* [rows, used] */
    const float *weights;     /* [rows, used] */
    float *hidden;            /* [rows, used, width] */
    float *out;               /* [rows, embedding] */
    st_cuda_vector factors;
    st_cuda_vector bias;      /* of this matrix, a row per expert */
    uint32_t used, width, embedding;
    uint32_t first;           /* row of the matrix at which its part begins */
    st_activation activation;
    bool on_input;
    bool second, alone;       /* second: hidden = activation(hidden) × the product; alone: activation(the product) */
};

__global__ void fetch_tables(st_cuda_tables tables)
{
    st_cuda_begin();
    tables.fetch(blockIdx.x * blockDim.x + threadIdx.x);
}

template <class W> __device__ float product(const unsigned char *row, const float *in, uint32_t count, uint32_t lane)
{
    float sum = 0;
    for (uint32_t k = lane; k < count; k += ST_CUDA_WARP) sum += W::at(row, k) * in[k];
    return st_cuda_warp_sum(sum);
}

template <class W> __global__ void project(experts_args a)
{
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, column = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP;
    for (uint32_t pair = blockIdx.y; pair < a.rows.count() * a.used; pair += gridDim.y) {
        const unsigned char *expert = (const unsigned char *)a.table[a.ids[pair]];
        if (!expert || column >= a.width) continue;
        const float *in = a.in + (size_t)(pair / a.used) * a.embedding;
        float x = product<W>(expert + (size_t)(a.first + column) * a.row_bytes, in, a.embedding, lane);
        if (a.on_input) x *= a.weights[pair];
        if (a.bias.data) x += a.bias.at((size_t)a.ids[pair] * a.width + column);
        float *hidden = a.hidden + (size_t)pair * a.width + column;
        if (lane > 0) continue;
        if (a.alone) *hidden = st_cuda_gated(a.activation, x, 1.0f);
        else *hidden = a.second ? st_cuda_gated(a.activation, *hidden, x) : x;
    }
}

template <class W> __global__ void combine(experts_args a)
{
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, column = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP;
    for (uint32_t row = blockIdx.y; row < a.rows.count() && column < a.embedding; row += gridDim.y) {
        float sum = 0;
        for (uint32_t k = 0; k < a.used; k++) {
            size_t pair = (size_t)row * a.used + k;
            int32_t id = a.ids[pair];
            const unsigned char *expert = (const unsigned char *)a.table[id];
            if (!expert) continue;
            float weight = (a.on_input ? 1 : a.weights[pair]) * (a.factors.data ? a.factors.at(id) : 1);
            float x = product<W>(expert + column * a.row_bytes, a.hidden + pair * a.width, a.width, lane);
            sum += weight * (a.bias.data ? x + a.bias.at((size_t)id * a.embedding + column) : x);
        }
        if (lane == 0) a.out[(size_t)row * a.embedding + column] = sum;
    }
}

enum { GRID_ROWS_MAX = 65535 };

struct project_launch {
    const st_cuda_call *call;
    experts_args args;
    template <class W> int run() const
    {
        dim3 grid(st_cuda_blocks(args.width, WARPS), min(call->rows * args.used, (uint32_t)GRID_ROWS_MAX));
        return st_cuda_start<project<W>>(call, grid, WARPS * ST_CUDA_WARP, 0, args);
    }
};

struct combine_launch {
    const st_cuda_call *call;
    experts_args args;
    template <class W> int run() const
    {
        dim3 grid(st_cuda_blocks(args.embedding, WARPS), min(call->rows, (uint32_t)GRID_ROWS_MAX));
        return st_cuda_start<combine<W>>(call, grid, WARPS * ST_CUDA_WARP, 0, args);
    }
};

} // namespace

extern "C" int st_cuda_experts(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.experts;
    int up = st_cuda_up_of(b->op);
    if (st_cuda_experts_in_int8(b, call->rows)) return st_cuda_experts_int8(call);
    if (st_cuda_experts_are_shared(b, call->rows)) return st_cuda_experts_shared(call);
    if (st_cuda_experts_in_tiles(b, call->rows)) return st_cuda_experts_tiles(call);
    st_cuda_tables tables = st_cuda_tables_of(call);
    int code = st_cuda_start<fetch_tables>(call, st_cuda_blocks(p.experts, TABLE_THREADS), TABLE_THREADS, 0, tables);
    float *hidden = (float *)(call->scratch + st_cuda_tables_bytes(p.experts));
    experts_args args = {st_cuda_rows_of(call), tables.to, b->weight[0].row_bytes, st_cuda_floats(b->in[0]),
                         (const int32_t *)b->in[1].data, st_cuda_floats(b->in[2]), hidden, st_cuda_floats(b->out),
                         st_cuda_vector_of(&b->weight[3]), st_cuda_vector_of(&b->weight[4]), p.used, p.width, b->in[0].width, 0,
                         p.activation, p.weight_on_input, false, p.ungated};
    if (code == cudaSuccess) code = st_cuda_with_type(b->weight[0].type, project_launch{call, args});
    args.table = tables.to + up * p.experts;
    args.row_bytes = b->weight[up].row_bytes;
    args.first = p.fused ? p.width : 0;
    args.bias = st_cuda_vector_of(&b->weight[5]);
    args.second = true;
    if (code == cudaSuccess && !p.ungated) code = st_cuda_with_type(b->weight[up].type, project_launch{call, args});
    args.table = tables.to + 2 * p.experts;
    args.row_bytes = b->weight[2].row_bytes;
    args.bias = st_cuda_vector_of(&b->weight[6]);
    return code == cudaSuccess ? st_cuda_with_type(b->weight[2].type, combine_launch{call, args}) : code;
}
