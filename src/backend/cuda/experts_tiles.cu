/* The selected experts of many rows, on tensor cores. Pairs (row, expert) are sorted by expert; a tile has pairs of one expert.
 * Gate and up with the activation into scratch, then down and the weighted sum. Experts without an address in the tables are
 * left out. */
#include "backend/cuda/tables.cuh"
#include "backend/cuda/tiles.h"

namespace {

enum { GROUP_THREADS = 1024, GROUP_WARPS = GROUP_THREADS / ST_CUDA_WARP, COMBINE_THREADS = 128, GRID_ROWS_MAX = 65535 };
enum { TILE_COUNT, PLACE_COUNT }; /* counts in scratch */

static_assert(sizeof(st_cuda_tile) == ST_CUDA_TILE_BYTES, "call.h");

struct group_args {
    st_cuda_rows rows;
    st_cuda_tables tables;
    bool has_up;
    const int32_t *ids; /* [rows, used] */
    uint32_t used, tile_rows;
    uint32_t *counts;
    st_cuda_tile *tiles;
    uint32_t *order;
};

/* Whether all matrices of an expert have an address; if not, `down` has none in the copy either. */
__device__ bool is_present(const group_args &a, uint32_t expert)
{
    const void **to = a.tables.to;
    uint32_t experts = a.tables.experts;
    bool present = to[expert] && (!a.has_up || to[experts + expert]) && to[2 * experts + expert];
    if (!present) to[2 * experts + expert] = NULL;
    return present;
}

/* The sum of x over the threads before this one; `all` gets the sum over the block. */
__device__ uint32_t sum_before(uint32_t x, uint32_t &all)
{
    __shared__ uint32_t sums[GROUP_WARPS];
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, sum = x;
    for (int step = 1; step < ST_CUDA_WARP; step *= 2) {
        uint32_t before = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += before;
    }
    __syncthreads();
    if (lane == ST_CUDA_WARP - 1) sums[warp] = sum;
    __syncthreads();
    uint32_t earlier = 0;
    all = 0;
    for (uint32_t i = 0; i < GROUP_WARPS; i++) {
        if (i < warp) earlier += sums[i];
        all += sums[i];
    }
    return earlier + sum - x;
}

/* One block: counts the pairs of each expert, lists the tiles, and sorts the pairs. The order of the pairs of an expert may
 * vary; their results do not depend on it. */
__global__ void __launch_bounds__(GROUP_THREADS) group(group_args a)
{
    st_cuda_begin();
    ST_CUDA_DYNAMIC(uint32_t, places); /* [experts]: pairs of the expert, then the place of its next one */
    uint32_t experts = a.tables.experts, pairs = a.rows.count() * a.used, first = 0, first_tile = 0;
    for (uint32_t i = threadIdx.x; i < experts; i += GROUP_THREADS) {
        a.tables.fetch(i);
        places[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs; i += GROUP_THREADS) atomicAdd(&places[a.ids[i]], 1);
    for (uint32_t base = 0; base < experts; base += GROUP_THREADS) {
        uint32_t expert = base + threadIdx.x, all, all_tiles;
        __syncthreads();
        uint32_t count = expert < experts && is_present(a, expert) ? places[expert] : 0;
        uint32_t tiles = (count + a.tile_rows - 1) / a.tile_rows;
        uint32_t place = first + sum_before(count, all), tile = first_tile + sum_before(tiles, all_tiles);
        first += all, first_tile += all_tiles;
        if (expert < experts) places[expert] = place;
        for (uint32_t i = 0; i < tiles; i++, place += a.tile_rows)
            a.tiles[tile + i] = {expert, place, min(a.tile_rows, count - i * a.tile_rows), 0};
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs; i += GROUP_THREADS) {
        int32_t id = a.ids[i];
        if (a.tables.to[2 * experts + id]) a.order[atomicAdd(&places[id], 1)] = i;
    }
    if (threadIdx.x == 0) a.counts[TILE_COUNT] = first_tile, a.counts[PLACE_COUNT] = first;
}

struct combine_args {
    st_cuda_rows rows;
    const void *const *down;
    const int32_t *ids;
    const float *weights; /* NULL: 1 */
    st_cuda_vector factors;
    st_cuda_vector bias;   /* [experts, embedding] */
    const float *products; /* [pairs, columns] */
    float *out;            /* [rows, embedding], from the slice's first column on */
    uint32_t used, first, columns, embedding; /* first: column of the slice */
};

/* A row of a slice. */
__global__ void __launch_bounds__(COMBINE_THREADS) combine(combine_args a)
{
    st_cuda_begin();
    uint32_t column = blockIdx.x * COMBINE_THREADS + threadIdx.x;
    for (uint32_t row = blockIdx.y; row < a.rows.count() && column < a.columns; row += gridDim.y) {
        float sum = 0;
        for (uint32_t k = 0; k < a.used; k++) {
            size_t pair = (size_t)row * a.used + k;
            int32_t id = a.ids[pair];
            if (!a.down[id]) continue;
            float weight = (a.weights ? a.weights[pair] : 1) * (a.factors.data ? a.factors.at(id) : 1);
            float x = a.products[pair * a.columns + column];
            sum += weight * (a.bias.data ? x + a.bias.at((size_t)id * a.embedding + a.first + column) : x);
        }
        a.out[(size_t)row * a.embedding + column] = sum;
    }
}

/* Tiles of about as many rows as an expert has. */
st_cuda_tiles_plan plan_of(uint32_t type, uint32_t pairs, uint32_t experts)
{
    uint32_t each = pairs / experts, rows = each <= 12 ? 16 : each <= 24 ? 32 : each <= 80 ? 64 : st_cuda_tile_rows_max(type);
    return {ST_CUDA_TILE_WARPS, rows, min(pairs, pairs / rows + experts), 1, false};
}

} // namespace

extern "C" int st_cuda_experts_tiles(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.experts;
    int up = st_cuda_up_of(b->op);
    uint32_t embedding = b->in[0].width, pairs = call->rows * p.used;
    st_cuda_experts_layout l = st_cuda_experts_lay_out(b->op, embedding, call->rows);
    unsigned char *scratch = call->scratch;
    const void *const *tables = (const void *const *)scratch;
    uint32_t *counts = (uint32_t *)(scratch + l.counts), *order = (uint32_t *)(scratch + l.order);
    float *hidden = (float *)(scratch + l.hidden);
    st_cuda_halves in = {scratch + l.in, embedding, call->rows}, hidden_halves = {scratch + l.hidden_halves, p.width, pairs};
    const int32_t *ids = (const int32_t *)b->in[1].data;
    const float *weights = st_cuda_floats(b->in[2]);
    st_cuda_tiles_plan plan = plan_of(b->weight[0].type, pairs, p.experts);
    st_cuda_tile *tiles = (st_cuda_tile *)(scratch + l.tiles);
    st_cuda_rows rows = st_cuda_rows_of(call);

    group_args grouping = {rows, st_cuda_tables_of(call), up > 0, ids, p.used, plan.rows, counts, tiles, order};
    int code = st_cuda_start<group>(call, 1, GROUP_THREADS, p.experts * sizeof(uint32_t), grouping);
    if (code == cudaSuccess) code = st_cuda_start_convert(call, {{in, NULL, false}, rows, NULL, st_cuda_floats(b->in[0])});
    st_cuda_tile_experts gate = {tiles, counts + TILE_COUNT, order, tables, tables + up * p.experts, b->weight[up].row_bytes, 0,
                                 p.fused ? p.width : 0, p.used, true, !p.ungated, p.weight_on_input ? weights : NULL,
                                 st_cuda_vector_of(&b->weight[4]), st_cuda_vector_of(&b->weight[5]), p.activation};
    st_cuda_tiles_args args = {rows, in, 1, 1, {{NULL, b->weight[0].row_bytes, p.width, 0, hidden, {}}}, NULL, NULL, gate};
    if (code == cudaSuccess) code = st_cuda_tiles_start(call, b->weight[0].type, args, plan);
    if (code == cudaSuccess) code = st_cuda_start_convert(call, {{hidden_halves, NULL, false}, rows, counts + PLACE_COUNT, hidden});
    for (uint32_t first = 0; first < embedding && code == cudaSuccess; first += l.slice) {
        uint32_t columns = min(l.slice, embedding - first);
        st_cuda_tile_experts down = {tiles, counts + TILE_COUNT, order, tables + 2 * p.experts, NULL, 0, first, 0, p.used, false, false,
                                     NULL, {}, {}, p.activation};
        args = {rows, hidden_halves, 1, 1, {{NULL, b->weight[2].row_bytes, columns, 0, hidden, {}}}, NULL, NULL, down};
        code = st_cuda_tiles_start(call, b->weight[2].type, args, plan);
        combine_args combining = {rows, tables + 2 * p.experts, ids, p.weight_on_input ? NULL : weights, st_cuda_vector_of(&b->weight[3]),
                                  st_cuda_vector_of(&b->weight[6]), hidden, st_cuda_floats(b->out) + first, p.used, first, columns, embedding};
        dim3 grid(st_cuda_blocks(columns, COMBINE_THREADS), min(call->rows, (uint32_t)GRID_ROWS_MAX));
        if (code == cudaSuccess) code = st_cuda_start<combine>(call, grid, COMBINE_THREADS, 0, combining);
    }
    return code;
}
