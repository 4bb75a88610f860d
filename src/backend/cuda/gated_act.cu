#include "backend/cuda/halves.cuh"

namespace {

struct gated_act {
    const float *gate, *up; /* up: NULL: 1 */
    float *out;
    uint32_t width;
    st_activation activation;
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        size_t at = (size_t)row * width + i;
        out[at] = st_cuda_gated(activation, gate[at], up ? up[at] : 1.0f);
    }
};

} // namespace

extern "C" int st_cuda_gated_act(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each_for_product(call, b->out.width, gated_act{st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->out),
                                                       b->out.width, b->op->p.gate.activation});
}
