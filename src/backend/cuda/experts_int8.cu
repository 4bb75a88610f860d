/* The selected experts of few rows, with int8 activations: gate and up of each pair (row, expert) with the activation, quantised,
 * into scratch, then down and the weighted sum. Experts without an address in the tables are left out. */
#include "backend/cuda/gemv.cuh"
#include "backend/cuda/experts_args.cuh"

namespace {

enum { WARPS = 4, PROJECT_WARPS = 8, FIRST_THREADS = 128, USED_MAX = ST_CUDA_EXPERTS_USED_MAX };

typedef st_cuda_experts_args experts_args;

__global__ void __launch_bounds__(FIRST_THREADS) prepare(st_cuda_rows rows, uint32_t rows_max, st_cuda_experts_input input)
{
    st_cuda_begin();
    input.prepare(rows, rows_max, blockIdx.x);
}

/* Dot products of ROWS rows of weights with a row of activations, in every lane. */
template <class W, int ROWS>
__device__ __forceinline__ void multiply(const unsigned char *const *rows, const st_cuda_acts &acts, uint32_t row, uint32_t lane,
                                         float *sums)
{
    enum { UNITS = 2 };
    uint32_t units = acts.width / 32;
    for (uint32_t base = 0; base < units; base += UNITS * ST_CUDA_WARP) {
        unsigned words[UNITS][ROWS][W::WORDS];
        st_cuda_unit_acts x[UNITS];
        st_cuda_fetch_units<W, ROWS, UNITS>(rows, base + lane, units, words);
#pragma unroll
        for (int i = 0; i < UNITS; i++) st_cuda_load_acts<W>(acts, row, min(base + lane + i * ST_CUDA_WARP, units - 1), x[i]);
#pragma unroll
        for (int i = 0; i < UNITS * ROWS; i++) {
            uint32_t unit = base + lane + i / ROWS * ST_CUDA_WARP;
            st_cuda_unit w;
            W::decode(rows[i % ROWS], min(unit, units - 1), words[i / ROWS][i % ROWS], w);
            float dot = st_cuda_unit_dot(w, x[i / ROWS]);
            sums[i % ROWS] += unit < units ? dot : 0;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = st_cuda_warp_sum(sums[r]);
}

/* activation(gate · in) × (up · in), quantised: a block has 32 elements of a pair, a warp four of them, two at a time; without a
 * gate all four. */
template <class W> __global__ void __launch_bounds__(PROJECT_WARPS *ST_CUDA_WARP, 2) project(experts_args a)
{
    enum { ROWS = 4, EACH = ST_CUDA_ACT_BLOCK / PROJECT_WARPS };
    __shared__ __align__(16) float hidden[ST_CUDA_ACT_BLOCK];
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, own = threadIdx.x / ST_CUDA_WARP * EACH, pair = blockIdx.y;
    if (pair >= a.rows.count() * a.used) return;
    int32_t id = a.ids[pair];
    const unsigned char *gate = (const unsigned char *)a.gate_table[id], *up = (const unsigned char *)a.up_table[id];
    bool present = gate && up; /* the others are left out of the sum, but quantised */
    float factor = a.on_input ? a.weights[pair] : 1;
    uint32_t first = blockIdx.x * ST_CUDA_ACT_BLOCK + own, both = a.alone ? 0 : 1; /* an element has 1 + both rows */
    for (uint32_t i = 0; i < EACH; i += ROWS >> both) {
        float sums[ROWS] = {};
        const unsigned char *rows[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            size_t column = first + i + (k >> both);
            rows[k] = k & both ? up + (a.up_first + column) * a.up_bytes : gate + column * a.gate_bytes;
        }
        if (present) multiply<W, ROWS>(rows, a.in, a.by_used.quotient(pair), lane, sums);
        float gate_sum = sums[0], up_sum = sums[1]; /* of lane k: those of row k and the one behind it */
#pragma unroll
        for (int k = 1; k < ROWS; k++)
            if (lane == k) gate_sum = sums[k], up_sum = sums[(k + 1) % ROWS];
        if (lane < ROWS && !(lane & both)) {
            uint32_t at = i + (lane >> both);
            float x = a.hidden_of(id, first + at, gate_sum * factor, up_sum * factor);
            hidden[own + at] = present ? x : 0;
        }
    }
    __syncthreads();
    if (threadIdx.x < ST_CUDA_WARP)
        st_cuda_quantise(a.hidden_acts, pair, blockIdx.x * ST_CUDA_ACT_BLOCK + 4 * lane,
                         *(const float4 *)(hidden + 4 * lane % ST_CUDA_ACT_BLOCK), lane < ST_CUDA_ACT_BLOCK / 4);
}

/* A warp per output: the units of all experts of the row one after another, UNITS of a lane under way at once. */
template <class W> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) combine(experts_args a)
{
    enum { UNITS = W::WORDS > 8 ? 2 : 4 };
    __shared__ const unsigned char *experts[USED_MAX]; /* NULL: not present */
    __shared__ float weights[USED_MAX];
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, column = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP, row = blockIdx.y;
    uint32_t units = a.by_units.value, all = a.used * units;
    if (row >= a.rows.count()) return;
    for (uint32_t k = threadIdx.x; k < a.used; k += WARPS * ST_CUDA_WARP) {
        int32_t id = a.ids[row * a.used + k];
        experts[k] = (const unsigned char *)a.down_table[id];
        weights[k] = a.weight_of(row * a.used + k, id);
    }
    __syncthreads();
    if (column >= a.embedding) return;
    float sum = 0;
    for (uint32_t base = lane; base < all; base += UNITS * ST_CUDA_WARP) {
        unsigned words[UNITS][W::WORDS];
        const unsigned char *rows[UNITS];
        uint32_t of[UNITS]; /* expert */
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            uint32_t at = min(base + i * ST_CUDA_WARP, all - 1); /* past the end: the last, not added */
            of[i] = a.by_units.quotient(at);
            rows[i] = experts[of[i]];
            if (!rows[i]) continue;
            rows[i] += (size_t)column * a.down_bytes;
            W::template fetch<st_cuda_from_device>(rows[i], at - of[i] * units, words[i]);
        }
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            uint32_t at = base + i * ST_CUDA_WARP, u = at - of[i] * units;
            if (at >= all || !rows[i]) continue;
            st_cuda_unit w;
            st_cuda_unit_acts x;
            W::decode(rows[i], u, words[i], w);
            st_cuda_load_acts<W>(a.hidden_acts, row * a.used + of[i], u, x);
            sum += weights[of[i]] * st_cuda_unit_dot(w, x);
        }
    }
    for (uint32_t k = lane; a.down_bias.data && k < a.used; k += ST_CUDA_WARP)
        if (experts[k]) sum += weights[k] * a.down_bias.at((size_t)a.ids[row * a.used + k] * a.embedding + column);
    sum = st_cuda_warp_sum(sum);
    if (lane == 0) a.out[(size_t)row * a.embedding + column] = sum;
}

struct project_launch {
    const st_cuda_call *call;
    experts_args args;
    template <class W> int run() const
    {
        dim3 grid(args.width / ST_CUDA_ACT_BLOCK, call->rows * args.used);
        return st_cuda_start<project<W>>(call, grid, PROJECT_WARPS * ST_CUDA_WARP, 0, args);
    }
};

struct combine_launch {
    const st_cuda_call *call;
    experts_args args;
    template <class W> int run() const
    {
        dim3 grid(st_cuda_blocks(args.embedding, WARPS), call->rows);
        return st_cuda_start<combine<W>>(call, grid, WARPS * ST_CUDA_WARP, 0, args);
    }
};

} // namespace

int st_cuda_experts_prepare(const st_cuda_call *call)
{
    if (call->prepared) return cudaSuccess;
    st_cuda_experts_input input = st_cuda_experts_input_of(call);
    uint32_t blocks = input.blocks(call->rows, FIRST_THREADS);
    return st_cuda_start<prepare>(call, blocks, FIRST_THREADS, 0, st_cuda_rows_of(call), call->rows, input);
}

extern "C" int st_cuda_experts_int8(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    experts_args args = st_cuda_experts_args_of(call);
    int code = st_cuda_experts_prepare(call);
    if (code == cudaSuccess) code = st_cuda_with_unit(b->weight[0].type, project_launch{call, args});
    return code == cudaSuccess ? st_cuda_with_unit(b->weight[2].type, combine_launch{call, args}) : code;
}
