#include "backend/cuda/common.cuh"

namespace {

struct gather {
    const float *in;
    float *out;
    uint32_t width;
    __device__ void operator()(const st_cuda_rows &rows, uint32_t row, uint32_t i) const
    {
        out[(size_t)row * width + i] = in[(size_t)rows.out_row(row) * width + i];
    }
};

} // namespace

extern "C" int st_cuda_gather(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each(call, b->out.width, gather{st_cuda_floats(b->in[0]), st_cuda_floats(b->out), b->out.width});
}
