#include "backend/cuda/halves.cuh"

namespace {

struct silu_gate {
    const float *in, *gate;
    float *out;
    uint32_t width;
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        size_t at = (size_t)row * width + i;
        out[at] = in[at] * st_cuda_silu(gate[at]);
    }
};

} // namespace

extern "C" int st_cuda_silu_gate(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each_for_product(call, b->out.width, silu_gate{st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->out), b->out.width});
}
