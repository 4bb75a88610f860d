/* A warp per row. Changes the scores, which nothing reads afterwards. */
#include "backend/cuda/recorded.cuh"

namespace {

struct route_args {
    st_cuda_rows rows;
    float *scores;
    int32_t *ids;
    float *weights;
    uint32_t experts, used;
    bool sigmoids, renormalise;
    st_cuda_recorded recorded;
};

__device__ void softmax(float *scores, uint32_t count, uint32_t lane)
{
    float largest = -INFINITY, sum = 0;
    for (uint32_t i = lane; i < count; i += ST_CUDA_WARP) largest = fmaxf(largest, scores[i]);
    largest = st_cuda_warp_max(largest);
    for (uint32_t i = lane; i < count; i += ST_CUDA_WARP) {
        scores[i] = expf(scores[i] - largest);
        sum += scores[i];
    }
    sum = st_cuda_warp_sum(sum);
    for (uint32_t i = lane; i < count; i += ST_CUDA_WARP) scores[i] /= sum;
}

/* The index of the largest score, the lowest of equal ones. */
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
    return best;
}

__global__ void route(route_args a)
{
    uint32_t row = blockIdx.x, lane = threadIdx.x;
    if (row >= a.rows.count()) return;
    float *scores = a.scores + (size_t)row * a.experts, *weights = a.weights + (size_t)row * a.used, sum = 0;
    int32_t *ids = a.ids + (size_t)row * a.used;
    if (!a.sigmoids) softmax(scores, a.experts, lane);
    __syncwarp();
    for (uint32_t k = 0; k < a.used; k++) {
        uint32_t best = __shfl_sync(0xFFFFFFFFu, best_of(scores, a.experts, lane), 0);
        float weight = a.sigmoids ? st_cuda_sigmoid(scores[best]) : scores[best];
        sum += weight;
        __syncwarp();
        if (lane == 0) {
            ids[k] = (int32_t)best;
            weights[k] = weight;
            scores[best] = -INFINITY;
        }
        __syncwarp();
    }
    if (a.renormalise)
        for (uint32_t k = lane; k < a.used; k += ST_CUDA_WARP) weights[k] /= sum;
    st_cuda_take_recorded(a.recorded, a.rows, row, ids, weights, lane);
}

} // namespace

extern "C" int st_cuda_route(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    route_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), (int32_t *)b->out.data, st_cuda_floats(b->out2),
                       b->op->p.route.experts, b->op->p.route.used, b->op->p.route.router == ST_ROUTER_SIGMOID,
                       b->op->p.route.renormalise, st_cuda_recorded_of(b->op)};
    return st_cuda_start<route>(call->stream, call->rows, ST_CUDA_WARP, 0, args);
}
