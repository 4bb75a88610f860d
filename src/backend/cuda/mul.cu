#include "backend/cuda/common.cuh"

namespace {

struct mul {
    const float *a, *b;
    float *out;
    uint32_t width;
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        size_t at = (size_t)row * width + i;
        out[at] = a[at] * b[at];
    }
};

} // namespace

extern "C" int st_cuda_mul(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each(call, b->out.width, mul{st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->out), b->out.width});
}
