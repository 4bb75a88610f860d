/* A block per group: the mean first, then the deviations from it. */
#include "backend/cuda/common.cuh"

namespace {

enum { WARPS = 8, THREADS = WARPS * ST_CUDA_WARP };

struct norm_args {
    st_cuda_rows rows;
    const float *in;
    float *out;
    uint32_t group, groups; /* elements of a group, groups of a row */
    float epsilon;
    st_cuda_vector weight;
};

__global__ void __launch_bounds__(THREADS) layer_norm(norm_args a)
{
    st_cuda_begin();
    uint32_t row = blockIdx.x / a.groups, start = blockIdx.x % a.groups * a.group;
    if (row >= a.rows.count()) return;
    size_t base = (size_t)row * a.groups * a.group + start;
    float sum = 0, squares = 0;
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) sum += a.in[base + i];
    float mean = st_cuda_block_sum<WARPS>(sum) / (float)a.group;
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) squares += (a.in[base + i] - mean) * (a.in[base + i] - mean);
    __syncthreads();
    float scale = 1.0f / sqrtf(st_cuda_block_sum<WARPS>(squares) / (float)a.group + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) /* each thread reads what it writes: they may be the same */
        a.out[base + i] = (a.in[base + i] - mean) * scale * (a.weight.data ? a.weight.at((start + i) % a.weight.count) : 1);
}

} // namespace

extern "C" int st_cuda_layer_norm(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    uint32_t group = b->op->p.norm.group, groups = b->out.width / group;
    norm_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), st_cuda_floats(b->out), group, groups, b->op->p.norm.epsilon,
                      st_cuda_vector_of(&b->weight[0])};
    return st_cuda_start<layer_norm>(call, call->rows * groups, THREADS, 0, args);
}
