/* The selected experts of few rows, with int8 activations: gate and up of each pair (row, expert) with the activation into
 * scratch, then down and the weighted sum. Experts without an address in the tables are left out. */
#include "backend/cuda/gemv.cuh"
#include "backend/cuda/tables.cuh"

namespace {

enum { WARPS = 4, FIRST_THREADS = 128 };

struct experts_args {
    st_cuda_rows rows;
    const void *const *gate_table;
    const void *const *up_table;
    const void *const *down_table;
    size_t gate_bytes, up_bytes, down_bytes; /* of a row of the matrix */
    st_cuda_acts in, hidden_acts;
    const int32_t *ids;    /* [rows, used] */
    const float *weights;  /* [rows, used] */
    float *hidden;         /* [rows, used, width] */
    float *out;            /* [rows, embedding] */
    st_cuda_vector factors;
    st_cuda_vector gate_bias, up_bias, down_bias; /* a row per expert */
    uint32_t used, width, embedding;
    uint32_t up_first;     /* row of its matrix at which `up` begins */
    st_activation activation;
    bool on_input;
    bool alone;            /* `up` alone, at gate_table: hidden = activation(up · in) */

    __device__ float weight_of(uint32_t pair, int32_t id) const
    {
        return (on_input ? 1 : weights[pair]) * (factors.data ? factors.at(id) : 1);
    }
};

/* int8 activations of the input, a row of blocks each; the last row of blocks copies the tables. */
__global__ void __launch_bounds__(FIRST_THREADS) quantise_and_fetch(experts_args a, const float *in, st_cuda_tables tables)
{
    st_cuda_begin();
    uint32_t row = blockIdx.y, first = (blockIdx.x * FIRST_THREADS + threadIdx.x) * 4;
    if (row + 1 == gridDim.y)
        for (uint32_t i = first / 4; i < tables.experts; i += gridDim.x * FIRST_THREADS) tables.fetch(i);
    else if (first < a.embedding && row < a.rows.count())
        st_cuda_quantise(a.in, row, first, *(const float4 *)(in + (size_t)row * a.embedding + first));
}

/* hidden = activation(gate · in) × (up · in): a warp per element. */
template <class W> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) project(experts_args a)
{
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, column = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP, pair = blockIdx.y;
    if (column >= a.width || pair >= a.rows.count() * a.used) return;
    const unsigned char *gate = (const unsigned char *)a.gate_table[a.ids[pair]], *up = (const unsigned char *)a.up_table[a.ids[pair]];
    if (!gate || !up) { /* left out of the sum, but quantised with the others */
        if (lane == 0) a.hidden[(size_t)pair * a.width + column] = 0;
        return;
    }
    gate += (size_t)column * a.gate_bytes;
    up += (size_t)(a.up_first + column) * a.up_bytes;
    float sums[2] = {};
#pragma unroll 2
    for (uint32_t u = lane; u < a.embedding / 32; u += ST_CUDA_WARP) {
        st_cuda_unit w[2];
        st_cuda_unit_acts x;
        st_cuda_unpack_unit<W>(gate, u, w[0]);
        if (!a.alone) st_cuda_unpack_unit<W>(up, u, w[1]);
        st_cuda_load_acts<W>(a.in, pair / a.used, u, x);
        sums[0] += st_cuda_unit_dot(w[0], x);
        if (!a.alone) sums[1] += st_cuda_unit_dot(w[1], x);
    }
    float factor = a.on_input ? a.weights[pair] : 1;
    for (int i = 0; i < 2; i++) sums[i] = st_cuda_warp_sum(sums[i]) * factor;
    if (lane > 0) return;
    size_t bias = (size_t)a.ids[pair] * a.width + column;
    if (a.gate_bias.data) sums[0] += a.gate_bias.at(bias);
    if (a.up_bias.data) sums[1] += a.up_bias.at(bias);
    a.hidden[(size_t)pair * a.width + column] = st_cuda_gated(a.activation, sums[0], a.alone ? 1.0f : sums[1]);
}

/* A warp per output: the units of all experts of the row one after another. */
template <class W> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) combine(experts_args a)
{
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, column = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP, row = blockIdx.y;
    uint32_t units = a.width / 32;
    if (column >= a.embedding || row >= a.rows.count()) return;
    float sum = 0;
#pragma unroll 2
    for (uint32_t i = lane; i < a.used * units; i += ST_CUDA_WARP) {
        uint32_t pair = row * a.used + i / units, u = i % units;
        int32_t id = a.ids[pair];
        const unsigned char *down = (const unsigned char *)a.down_table[id];
        if (!down) continue;
        st_cuda_unit w;
        st_cuda_unit_acts x;
        st_cuda_unpack_unit<W>(down + (size_t)column * a.down_bytes, u, w);
        st_cuda_load_acts<W>(a.hidden_acts, pair, u, x);
        sum += a.weight_of(pair, id) * st_cuda_unit_dot(w, x);
    }
    for (uint32_t k = lane; a.down_bias.data && k < a.used; k += ST_CUDA_WARP) {
        uint32_t pair = row * a.used + k;
        int32_t id = a.ids[pair];
        if (a.down_table[id]) sum += a.weight_of(pair, id) * a.down_bias.at((size_t)id * a.embedding + column);
    }
    sum = st_cuda_warp_sum(sum);
    if (lane == 0) a.out[(size_t)row * a.embedding + column] = sum;
}

struct project_launch {
    const st_cuda_call *call;
    experts_args args;
    template <class W> int run() const
    {
        dim3 grid(st_cuda_blocks(args.width, WARPS), call->rows * args.used);
        return st_cuda_start<project<W>>(call->stream, grid, WARPS * ST_CUDA_WARP, 0, args);
    }
};

struct combine_launch {
    const st_cuda_call *call;
    experts_args args;
    template <class W> int run() const
    {
        dim3 grid(st_cuda_blocks(args.embedding, WARPS), call->rows);
        return st_cuda_start<combine<W>>(call->stream, grid, WARPS * ST_CUDA_WARP, 0, args);
    }
};

} // namespace

extern "C" int st_cuda_experts_int8(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.experts;
    int up = st_cuda_up_of(b->op);
    const void *const *tables = (const void *const *)call->scratch;
    uint32_t embedding = b->in[0].width, pairs = call->rows * p.used;
    unsigned char *hidden = call->scratch + st_cuda_tables_bytes(p.experts);
    unsigned char *in = hidden + (size_t)pairs * p.width * sizeof(float);
    unsigned char *hidden_acts = in + call->rows * st_cuda_acts_row_bytes(embedding);
    experts_args args = {st_cuda_rows_of(call), tables, tables + up * p.experts, tables + 2 * p.experts, b->weight[0].row_bytes,
                         b->weight[up].row_bytes, b->weight[2].row_bytes, {in, embedding}, {hidden_acts, p.width},
                         (const int32_t *)b->in[1].data, st_cuda_floats(b->in[2]), (float *)hidden, st_cuda_floats(b->out),
                         st_cuda_vector_of(&b->weight[3]), st_cuda_vector_of(&b->weight[4]), st_cuda_vector_of(&b->weight[5]),
                         st_cuda_vector_of(&b->weight[6]), p.used, p.width, embedding, p.fused ? p.width : 0, p.activation,
                         p.weight_on_input, p.ungated};
    dim3 blocks(st_cuda_blocks(embedding / 4, FIRST_THREADS), call->rows + 1);
    int code = st_cuda_start<quantise_and_fetch>(call->stream, blocks, FIRST_THREADS, 0, args, (const float *)st_cuda_floats(b->in[0]),
                                                 st_cuda_tables_of(call));
    if (code == cudaSuccess) code = st_cuda_with_unit(b->weight[0].type, project_launch{call, args});
    if (code == cudaSuccess) code = st_cuda_quantise_rows(call, args.hidden, p.width, p.used, hidden_acts);
    return code == cudaSuccess ? st_cuda_with_unit(b->weight[2].type, combine_launch{call, args}) : code;
}
