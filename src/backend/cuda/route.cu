/* A warp per row. Routers without bias and groups select in registers if there are at most 32 × EACH_MAX experts. */
#include "backend/cuda/experts_input.cuh"
#include "backend/cuda/recorded.cuh"

namespace {

enum { EACH_MAX = 16 };

struct route_args {
    st_cuda_rows rows;
    float *scores;
    int32_t *ids;
    float *weights;
    st_cuda_vector bias;            /* of the selection */
    uint32_t experts, used;
    uint32_t groups, groups_used, group_top; /* groups up to 1: none */
    st_router router;
    bool renormalise;
    float scale;
    st_cuda_recorded recorded;
    uint32_t rows_max;           /* blocks behind these prepare … */
    st_cuda_experts_input input; /* … what the experts read */

    /* Sigmoids saturate: without bias and groups the scores themselves select. */
    __device__ bool plain() const
    {
        return router != ST_ROUTER_SOFTMAX && !bias.data && groups <= 1;
    }
    __device__ float probability(float score) const
    {
        return router == ST_ROUTER_SIGMOID ? st_cuda_sigmoid(score) : score;
    }
};

/* Keys have the order of the scores, −0 equal to 0 and NaN above all, so that it is selected and seen. 0: none. */
__device__ __forceinline__ uint32_t key_of(float score)
{
    int32_t bits = __float_as_int(score + 0.0f);
    return isnan(score) ? UINT32_MAX : (uint32_t)(bits ^ (bits >> 31 | INT32_MIN));
}

__device__ __forceinline__ float score_of(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

/* The keys of a row's scores: lane l has numbers l, l + 32 … of them. */
template <int EACH> struct lane_keys {
    uint32_t of[EACH];

    __device__ __forceinline__ void load(const float *scores, uint32_t count, uint32_t lane, bool softmax)
    {
        float x[EACH], largest = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) x[i] = lane + i * ST_CUDA_WARP < count ? scores[lane + i * ST_CUDA_WARP] : -INFINITY;
        if (softmax) {
#pragma unroll
            for (int i = 0; i < EACH; i++) largest = fmaxf(largest, x[i]);
            largest = st_cuda_warp_max(largest);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                x[i] = st_cuda_exp(x[i] - largest);
                sum += x[i];
            }
            sum = st_cuda_reciprocal(st_cuda_warp_sum(sum));
#pragma unroll
            for (int i = 0; i < EACH; i++) x[i] *= sum;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) of[i] = lane + i * ST_CUDA_WARP < count ? key_of(x[i]) : 0;
    }
    /* The largest score and its index, the lowest of equal ones, in all lanes; its key is 0 afterwards. */
    __device__ __forceinline__ float take_best(uint32_t lane, uint32_t &index)
    {
        uint32_t best = of[0];
#pragma unroll
        for (int i = 1; i < EACH; i++) best = max(best, of[i]);
        best = __reduce_max_sync(0xFFFFFFFFu, best);
        index = UINT32_MAX;
#pragma unroll
        for (int i = EACH - 1; i >= 0; i--)
            if (of[i] == best) index = lane + i * ST_CUDA_WARP;
        index = __reduce_min_sync(0xFFFFFFFFu, index);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (index == lane + i * ST_CUDA_WARP) of[i] = 0;
        return score_of(best);
    }
};

/* Up to 32 × EACH experts of which up to 32 are used, without bias and groups: lane k has the k-th. */
template <int EACH> __global__ void __launch_bounds__(ST_CUDA_WARP) route(route_args a)
{
    st_cuda_begin();
    uint32_t row = blockIdx.x, lane = threadIdx.x, id = 0;
    if (row >= a.rows_max) a.input.prepare(a.rows, a.rows_max, row - a.rows_max);
    if (row >= a.rows_max || !a.rows.loads(row)) return;
    float *weights = a.weights + (size_t)row * a.used, weight = 0, sum = 0, first = 0;
    int32_t *ids = a.ids + (size_t)row * a.used;
    lane_keys<EACH> keys;
    keys.load(a.scores + (size_t)row * a.experts, a.experts, lane, a.router == ST_ROUTER_SOFTMAX);
    if (row >= a.rows.count()) return;
#pragma unroll 1
    for (uint32_t k = 0; k < a.used; k++) {
        uint32_t index;
        float score = a.probability(keys.take_best(lane, index));
        if (k == 0) first = score;
        if (a.router == ST_ROUTER_SOFTMAX_CHOSEN) score = st_cuda_exp(score - first);
        sum += score;
        if (lane == k) id = index, weight = score;
    }
    bool divided = a.renormalise || a.router == ST_ROUTER_SOFTMAX_CHOSEN;
    if (lane < a.used) {
        ids[lane] = (int32_t)id;
        weights[lane] = weight / (divided ? sum : 1) * a.scale;
    }
    st_cuda_take_recorded(a.recorded, a.rows, row, ids, weights, lane);
}

__device__ void softmax(float *scores, uint32_t count, uint32_t lane)
{
    float largest = -INFINITY, sum = 0;
    for (uint32_t i = lane; i < count; i += ST_CUDA_WARP) largest = fmaxf(largest, scores[i]);
    largest = st_cuda_warp_max(largest);
    for (uint32_t i = lane; i < count; i += ST_CUDA_WARP) {
        scores[i] = st_cuda_exp(scores[i] - largest);
        sum += scores[i];
    }
    sum = st_cuda_reciprocal(st_cuda_warp_sum(sum));
    for (uint32_t i = lane; i < count; i += ST_CUDA_WARP) scores[i] *= sum;
}

/* The index of the largest score, the lowest of equal ones; the same in all lanes. */
__device__ uint32_t best_of(const float *scores, uint32_t count, uint32_t lane)
{
    uint32_t best = lane < count ? lane : 0;
    for (uint32_t i = lane + ST_CUDA_WARP; i < count; i += ST_CUDA_WARP)
        if (scores[i] > scores[best]) best = i;
    float score = scores[best];
    for (int step = ST_CUDA_WARP / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, best, step);
        float other_score = __shfl_xor_sync(0xFFFFFFFFu, score, step);
        if (other_score > score || (other_score == score && other < best)) {
            best = other;
            score = other_score;
        }
    }
    return __shfl_sync(0xFFFFFFFFu, best, 0);
}

/* Takes the best out, so that the next one is found. */
__device__ uint32_t take_best(float *scores, uint32_t count, uint32_t lane)
{
    uint32_t best = best_of(scores, count, lane);
    __syncwarp();
    if (lane == 0) scores[best] = -INFINITY;
    __syncwarp();
    return best;
}

/* The sum of the `top` largest scores of a group: one or two. */
__device__ float group_score(const float *scores, uint32_t count, uint32_t top)
{
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        second = fmaxf(second, fminf(first, scores[i]));
        first = fmaxf(first, scores[i]);
    }
    return top > 1 && count > 1 ? first + second : first;
}

/* Experts outside the best groups are not selected. */
__device__ void drop_groups(const route_args &a, float *experts, float *groups, uint32_t lane)
{
    uint32_t size = a.experts / a.groups;
    for (uint32_t g = lane; g < a.groups; g += ST_CUDA_WARP) groups[g] = group_score(experts + g * size, size, a.group_top);
    __syncwarp();
    for (uint32_t i = 0; i < a.groups_used; i++) take_best(groups, a.groups, lane);
    for (uint32_t i = lane; i < a.groups * size; i += ST_CUDA_WARP)
        if (groups[i / size] != -INFINITY) experts[i] = -INFINITY; /* the best are marked */
    __syncwarp();
}

/* Every form, any number of experts. Changes the scores in memory, which nothing reads afterwards. */
__global__ void __launch_bounds__(ST_CUDA_WARP) route_many(route_args a)
{
    st_cuda_begin();
    ST_CUDA_DYNAMIC(float, selected_by); /* [experts], then [groups] */
    uint32_t row = blockIdx.x, lane = threadIdx.x;
    if (row >= a.rows_max) a.input.prepare(a.rows, a.rows_max, row - a.rows_max);
    if (row >= a.rows_max || row >= a.rows.count()) return;
    float *scores = a.scores + (size_t)row * a.experts, *weights = a.weights + (size_t)row * a.used, sum = 0;
    int32_t *ids = a.ids + (size_t)row * a.used;
    if (a.router == ST_ROUTER_SOFTMAX) softmax(scores, a.experts, lane);
    for (uint32_t i = lane; i < a.experts; i += ST_CUDA_WARP) /* each lane reads what it wrote */
        selected_by[i] = a.plain() ? scores[i] : a.probability(scores[i]) + (a.bias.data ? a.bias.at(i) : 0);
    __syncwarp();
    if (a.groups > 1) drop_groups(a, selected_by, selected_by + a.experts, lane);
    for (uint32_t k = 0; k < a.used; k++) {
        uint32_t best = take_best(selected_by, a.experts, lane);
        if (lane > 0) continue;
        ids[k] = (int32_t)best;
        weights[k] = a.probability(scores[best]);
    }
    __syncwarp();
    if (a.router == ST_ROUTER_SOFTMAX_CHOSEN) softmax(weights, a.used, lane);
    __syncwarp();
    for (uint32_t k = 0; k < a.used; k++) sum += weights[k];
    __syncwarp();
    for (uint32_t k = lane; k < a.used; k += ST_CUDA_WARP) weights[k] = weights[k] / (a.renormalise ? sum : 1) * a.scale;
    st_cuda_take_recorded(a.recorded, a.rows, row, ids, weights, lane);
}

} // namespace

extern "C" int st_cuda_route(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.route;
    route_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), (int32_t *)b->out.data, st_cuda_floats(b->out2),
                       st_cuda_vector_of(&b->weight[0]), p.experts, p.used, p.groups, p.groups_used, p.group_top, p.router,
                       p.renormalise, p.scale > 0 ? p.scale : 1, st_cuda_recorded_of(b->op), call->rows, {}};
    uint32_t each = st_cuda_blocks(args.experts, ST_CUDA_WARP), blocks = call->rows;
    const st_bound_op *experts = call->experts ? call->experts->bound : NULL;
    if (experts && (st_cuda_experts_in_int8(experts, call->rows) || st_cuda_experts_are_shared(experts, call->rows))) {
        args.input = st_cuda_experts_input_of(call->experts);
        blocks += args.input.blocks(call->rows, ST_CUDA_WARP);
    }
    if (args.bias.data || p.groups > 1 || p.used > ST_CUDA_WARP || each > EACH_MAX)
        return st_cuda_start_early<route_many>(call, blocks, ST_CUDA_WARP, (p.experts + p.groups) * sizeof(float), args);
    if (each <= 4) return st_cuda_start_early<route<4>>(call, blocks, ST_CUDA_WARP, 0, args);
    if (each <= 8) return st_cuda_start_early<route<8>>(call, blocks, ST_CUDA_WARP, 0, args);
    return st_cuda_start_early<route<EACH_MAX>>(call, blocks, ST_CUDA_WARP, 0, args);
}
