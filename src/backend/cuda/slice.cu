#include "backend/cuda/common.cuh"

namespace {

struct slice {
    const float *in;
    float *out;
    uint32_t in_width, width, size, stride, offset;
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        out[(size_t)row * width + i] = in[(size_t)row * in_width + i / size * stride + offset + i % size];
    }
};

} // namespace

extern "C" int st_cuda_slice(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each(call, b->out.width,
                        slice{st_cuda_floats(b->in[0]), st_cuda_floats(b->out), b->in[0].width, b->out.width,
                              b->out.width / b->op->p.slice.groups, b->op->p.slice.stride, b->op->p.slice.offset});
}
