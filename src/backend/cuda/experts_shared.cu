/* The selected experts of some 9 to 32 rows, with int8 activations. A block has a part of one expert's matrices and looks up the
 * pairs (row, expert) that chose it: weights come from memory once, and are unpacked once for each PAIRS of them. Gate and up
 * with the activation, quantised, into scratch; then the products with down of every pair; then the weighted sums, in the order of
 * the pairs. Experts without an address in the tables are left out. */
#include "backend/cuda/experts_args.cuh"
#include "backend/cuda/gemv.cuh"

namespace {

enum { WARPS = 8, THREADS = WARPS * ST_CUDA_WARP, ADD_THREADS = 128 };
enum { PAIRS = 2, PAIRS_MAX = ST_CUDA_EXPERTS_SHARED_PAIRS };

typedef st_cuda_experts_args experts_args;

/* How a warp reads weights: groups of lanes share rows, ROWS each, unit by unit. Words of two units of each row are in registers. */
template <class W> struct shape {
    enum {
        ROWS = W::WORDS > 8 ? 2 : 4,
        INPUT_LANES = 4 * ROWS, INPUT_ROWS = ST_CUDA_WARP / INPUT_LANES * ROWS,  /* of gate and up: eight rows for a warp */
        DOWN_LANES = 8, DOWN_ROWS = ST_CUDA_WARP / DOWN_LANES * ROWS,            /* whose rows are shorter */
    };
};

/* Whether the expert has an address for each of its matrices. */
__device__ __forceinline__ bool is_present(const experts_args &a, int32_t expert)
{
    return a.gate_table[expert] && a.up_table[expert] && a.down_table[expert];
}

/* Lists the pairs of an expert in their order, and returns how many there are, 0 if it is not present. All warps call it; one of
 * them writes the list, which is complete after the next barrier. */
__device__ __forceinline__ uint32_t find_pairs(const experts_args &a, int32_t expert, uint16_t *list)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, all = a.rows.count() * a.used, count = 0;
    int32_t ids[PAIRS_MAX / ST_CUDA_WARP];
#pragma unroll
    for (int i = 0; i < PAIRS_MAX / ST_CUDA_WARP; i++) {
        uint32_t pair = i * ST_CUDA_WARP + lane;
        ids[i] = pair < all ? a.ids[pair] : -1;
    }
#pragma unroll
    for (int i = 0; i < PAIRS_MAX / ST_CUDA_WARP; i++) {
        unsigned found = __ballot_sync(0xFFFFFFFFu, ids[i] == expert);
        if (threadIdx.x < ST_CUDA_WARP && ids[i] == expert)
            list[count + __popc(found & ((1u << lane) - 1))] = (uint16_t)(i * ST_CUDA_WARP + lane);
        count += __popc(found);
    }
    return is_present(a, expert) ? count : 0;
}

/* Sums over LANES neighbouring lanes: lane l gets that of x[l / ROWS % PAIRS][l % ROWS]. The same lanes are added in the same order
 * for one pair and for two. */
template <int COUNT, int ROWS, int LANES> __device__ __forceinline__ float sum_of_lanes(float (*x)[ROWS])
{
    static_assert(COUNT == 1 || COUNT == PAIRS, "one exchange of pairs");
#pragma unroll
    for (int n = ROWS / 2; n > 0; n /= 2)
#pragma unroll
        for (int i = 0; i < COUNT * n; i++) x[i / n][i % n] = st_cuda_exchange(x[i / n][i % n], x[i / n][i % n + n], n);
    float sum = st_cuda_exchange(x[0][0], x[COUNT - 1][0], ROWS);
#pragma unroll
    for (int step = 2 * ROWS; step < LANES; step *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    return sum;
}

/* Dot products of the lanes' ROWS rows of weights with COUNT rows of activations: lane l of a group gets that of activations
 * l / ROWS with row l % ROWS. */
template <class W, int ROWS, int LANES, int COUNT>
__device__ __forceinline__ float multiply(const unsigned char *const *rows, const st_cuda_acts &acts, const uint32_t *of)
{
    uint32_t first = threadIdx.x % LANES, units = acts.width / 32, steps = (units + LANES - 1) / LANES;
    unsigned words[2][ROWS][W::WORDS];
    float sums[COUNT][ROWS] = {};
    auto fetch = [&](uint32_t step, unsigned (*to)[W::WORDS]) { /* past the end: the last unit, not added */
#pragma unroll
        for (int r = 0; r < ROWS; r++) W::template fetch<st_cuda_from_device>(rows[r], min(first + step * LANES, units - 1), to[r]);
    };
    auto add = [&](uint32_t step, const unsigned (*from)[W::WORDS]) {
        uint32_t unit = first + step * LANES, at = min(unit, units - 1);
        st_cuda_unit_acts x[COUNT];
#pragma unroll
        for (int p = 0; p < COUNT; p++) {
            st_cuda_load_acts<W>(acts, of[p], at, x[p]);
            if (unit >= units) x[p].scale[0] = x[p].scale[1] = 0;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            st_cuda_unit w;
            W::decode(rows[r], unit, from[r], w); /* past the end: any bytes, which are not added */
#pragma unroll
            for (int p = 0; p < COUNT; p++) sums[p][r] = st_cuda_unit_dot(w, x[p], sums[p][r]);
        }
    };
    fetch(0, words[0]);
    if (steps > 1) fetch(1, words[1]);
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step += 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (step + i >= steps) break;
            add(step + i, words[i]);
            if (step + i + 2 < steps) fetch(step + i + 2, words[i]);
        }
    }
    return sum_of_lanes<COUNT, ROWS, LANES>(sums);
}

/* … with one row of activations, or PAIRS of them. */
template <class W, int ROWS, int LANES>
__device__ __forceinline__ float multiply_pairs(const unsigned char *const *rows, const st_cuda_acts &acts, const uint32_t *of, uint32_t count)
{
    return count == 1 ? multiply<W, ROWS, LANES, 1>(rows, acts, of) : multiply<W, ROWS, LANES, PAIRS>(rows, acts, of);
}

/* Gate and up of up to PAIRS pairs, with the activation: the elements of a warp, of the 32 of a block. */
template <class W>
__device__ __forceinline__ void project_pairs(const experts_args &a, int32_t expert, const uint16_t *pairs, uint32_t count,
                                              float (*hidden)[ST_CUDA_ACT_BLOCK])
{
    typedef shape<W> s;
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, both = a.alone ? 0 : 1; /* an element has 1 + both rows */
    uint32_t own = threadIdx.x / ST_CUDA_WARP * (s::INPUT_ROWS >> both), group = lane / s::INPUT_LANES * s::ROWS;
    uint32_t first = blockIdx.x * ST_CUDA_ACT_BLOCK + own;
    if (own >= ST_CUDA_ACT_BLOCK) return;
    const unsigned char *gate = (const unsigned char *)a.gate_table[expert], *up = (const unsigned char *)a.up_table[expert];
    const unsigned char *rows[s::ROWS];
    uint32_t of[PAIRS];
#pragma unroll
    for (int r = 0; r < s::ROWS; r++) {
        size_t column = first + ((group + r) >> both);
        rows[r] = r & both ? up + (a.up_first + column) * a.up_bytes : gate + column * a.gate_bytes;
    }
#pragma unroll
    for (int p = 0; p < PAIRS; p++) of[p] = a.by_used.quotient(pairs[min((uint32_t)p, count - 1)]);
    float sum = multiply_pairs<W, s::ROWS, s::INPUT_LANES>(rows, a.in, of, count);
    float next = __shfl_xor_sync(0xFFFFFFFFu, sum, 1); /* `up` of the element, if it has both */
    uint32_t row = lane % s::ROWS, p = lane % s::INPUT_LANES / s::ROWS, at = (group + row) >> both;
    if (p >= count || row & both) return;
    float factor = a.on_input ? a.weights[pairs[p]] : 1;
    hidden[p][own + at] = a.hidden_of(expert, first + at, sum * factor, next * factor);
}

/* activation(gate · in) × (up · in), quantised: a block has 32 elements of an expert. Waits before it lets the next kernel start, so
 * that the router's choice is complete when that one begins. */
template <class W> __global__ void __launch_bounds__(THREADS, 2) project(experts_args a)
{
    __shared__ __align__(16) float hidden[PAIRS][ST_CUDA_ACT_BLOCK];
    __shared__ uint16_t pairs[PAIRS_MAX];
    st_cuda_await();
    st_cuda_release();
    int32_t expert = (int32_t)blockIdx.y;
    uint32_t count = find_pairs(a, expert, pairs);
    if (count == 0) return; /* the same for the whole block */
    for (uint32_t done = 0; done < count; done += PAIRS) {
        __syncthreads();
        project_pairs<W>(a, expert, pairs + done, min(count - done, (uint32_t)PAIRS), hidden);
        __syncthreads();
        if (threadIdx.x >= ST_CUDA_WARP) continue;
        uint32_t p = threadIdx.x / 8, at = threadIdx.x % 8 * 4;
        bool valid = p < PAIRS && done + p < count;
        float4 x = valid ? *(const float4 *)&hidden[p][at] : make_float4(0, 0, 0, 0);
        st_cuda_quantise(a.hidden_acts, valid ? pairs[done + p] : 0, blockIdx.x * ST_CUDA_ACT_BLOCK + at, x, valid);
    }
}

template <class W>
__device__ __forceinline__ void lower_pairs(const experts_args &a, int32_t expert, const uint16_t *pairs, uint32_t count, float *products)
{
    typedef shape<W> s;
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP;
    uint32_t first = (blockIdx.x * WARPS + warp) * s::DOWN_ROWS + lane / s::DOWN_LANES * s::ROWS;
    const unsigned char *down = (const unsigned char *)a.down_table[expert], *rows[s::ROWS];
    uint32_t of[PAIRS];
#pragma unroll
    for (int r = 0; r < s::ROWS; r++) rows[r] = down + (size_t)min(first + r, a.embedding - 1) * a.down_bytes;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) of[p] = pairs[min((uint32_t)p, count - 1)];
    float sum = multiply_pairs<W, s::ROWS, s::DOWN_LANES>(rows, a.hidden_acts, of, count);
    uint32_t column = first + lane % s::ROWS, p = lane % s::DOWN_LANES / s::ROWS;
    if (p < count && column < a.embedding) products[(size_t)pairs[p] * a.embedding + column] = sum;
}

/* Brings a block's part of `down` into the L2 cache. */
template <class W> __device__ __forceinline__ void prefetch_down(const experts_args &a, int32_t expert)
{
    enum { LINE = 128, COLUMNS = WARPS * shape<W>::DOWN_ROWS };
    uint32_t first = blockIdx.x * COLUMNS, bytes = min((uint32_t)COLUMNS, a.embedding - first) * (uint32_t)a.down_bytes;
    const unsigned char *down = (const unsigned char *)a.down_table[expert] + (size_t)first * a.down_bytes;
    for (uint32_t at = threadIdx.x * LINE; at < bytes; at += THREADS * LINE) st_cuda_prefetch(down + at);
}

/* products[pair] = down · hidden: a block has WARPS × DOWN_ROWS elements of the pairs of an expert. Before it waits for `project`, it
 * reads what was complete before that kernel: the choice, the tables and the experts. */
template <class W> __global__ void __launch_bounds__(THREADS, 2) lower(experts_args a, float *products)
{
    __shared__ uint16_t pairs[PAIRS_MAX];
    st_cuda_release();
    int32_t expert = (int32_t)blockIdx.y;
    uint32_t count = find_pairs(a, expert, pairs);
    if (count > 0) prefetch_down<W>(a, expert);
    st_cuda_await();
    if (count == 0) return; /* the same for the whole block */
    __syncthreads();
    for (uint32_t done = 0; done < count; done += PAIRS)
        lower_pairs<W>(a, expert, pairs + done, min(count - done, (uint32_t)PAIRS), products);
}

/* The weighted sum of a row's products, four elements for each thread. */
__global__ void __launch_bounds__(ADD_THREADS) add(experts_args a, const float *products)
{
    st_cuda_begin();
    uint32_t row = blockIdx.y, column = (blockIdx.x * ADD_THREADS + threadIdx.x) * 4;
    if (row >= a.rows.count() || column >= a.embedding) return;
    float4 sum = {};
#pragma unroll 4
    for (uint32_t k = 0; k < a.used; k++) {
        uint32_t pair = row * a.used + k;
        int32_t id = a.ids[pair];
        if (!is_present(a, id)) continue;
        float weight = a.weight_of(pair, id);
        float4 x = *(const float4 *)(products + (size_t)pair * a.embedding + column);
        if (a.down_bias.data) {
            float4 bias = a.down_bias.four((size_t)id * a.embedding + column);
            x.x += bias.x, x.y += bias.y, x.z += bias.z, x.w += bias.w;
        }
        sum.x += weight * x.x, sum.y += weight * x.y, sum.z += weight * x.z, sum.w += weight * x.w;
    }
    *(float4 *)(a.out + (size_t)row * a.embedding + column) = sum;
}

struct project_launch {
    const st_cuda_call *call;
    experts_args args;
    template <class W> int run() const
    {
        dim3 grid(args.width / ST_CUDA_ACT_BLOCK, call->bound->op->p.experts.experts);
        return st_cuda_start_early<project<W>>(call, grid, THREADS, 0, args);
    }
};

struct lower_launch {
    const st_cuda_call *call;
    experts_args args;
    float *products;
    template <class W> int run() const
    {
        dim3 grid(st_cuda_blocks(args.embedding, WARPS * shape<W>::DOWN_ROWS), call->bound->op->p.experts.experts);
        return st_cuda_start_early<lower<W>>(call, grid, THREADS, 0, args, products);
    }
};

} // namespace

extern "C" int st_cuda_experts_shared(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    experts_args args = st_cuda_experts_args_of(call);
    float *products = (float *)(args.hidden_acts.memory + (size_t)call->rows * args.used * st_cuda_acts_row_bytes(args.width));
    int code = st_cuda_experts_prepare(call);
    if (code == cudaSuccess) code = st_cuda_with_unit(b->weight[0].type, project_launch{call, args});
    if (code == cudaSuccess) code = st_cuda_with_unit(b->weight[2].type, lower_launch{call, args, products});
    dim3 grid(st_cuda_blocks(args.embedding / 4, ADD_THREADS), call->rows);
    return code == cudaSuccess ? st_cuda_start_early<add>(call, grid, ADD_THREADS, 0, args, products) : code;
}
