#include "backend/cuda/common.cuh"

namespace {

enum { THREADS = 128, WARPS = THREADS / ST_CUDA_WARP };

struct norm_args {
    st_cuda_rows rows;
    const float *in;
    float *out;
    uint32_t group, groups; /* elements of a group, groups of a row */
    float epsilon;
    st_cuda_vector weight;
};

/* A block per group. */
__global__ void rms_norm(norm_args a)
{
    __shared__ float partial[WARPS];
    uint32_t row = blockIdx.x / a.groups, start = blockIdx.x % a.groups * a.group;
    if (row >= a.rows.count()) return;
    size_t base = (size_t)row * a.groups * a.group + start;
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) squares += a.in[base + i] * a.in[base + i];
    squares = st_cuda_warp_sum(squares);
    if (threadIdx.x % ST_CUDA_WARP == 0) partial[threadIdx.x / ST_CUDA_WARP] = squares;
    __syncthreads();
    squares = 0;
    for (int i = 0; i < WARPS; i++) squares += partial[i];
    float scale = 1.0f / sqrtf(squares / (float)a.group + a.epsilon);
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) {
        float factor = a.weight.data ? a.weight.at((start + i) % a.weight.count) : 1;
        a.out[base + i] = a.in[base + i] * scale * factor;
    }
}

} // namespace

extern "C" int st_cuda_rms_norm(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    uint32_t group = b->op->p.norm.group, groups = b->out.width / group;
    norm_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), st_cuda_floats(b->out), group, groups,
                      b->op->p.norm.epsilon, st_cuda_vector_of(&b->weight[0])};
    return st_cuda_start<rms_norm>(call->stream, call->rows * groups, THREADS, 0, args);
}
