#include "backend/cuda/common.cuh"

namespace {

struct concat {
    const float *a, *b;
    float *out;
    uint32_t a_width, b_width;
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        float x = i < a_width ? a[(size_t)row * a_width + i] : b[(size_t)row * b_width + i - a_width];
        out[(size_t)row * (a_width + b_width) + i] = x;
    }
};

} // namespace

extern "C" int st_cuda_concat(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each(call, b->out.width,
                        concat{st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->out), b->in[0].width,
                               b->in[1].width});
}
