#include "backend/cuda/common.cuh"

namespace {

struct mul_weight {
    const float *in;
    float *out;
    uint32_t width;
    st_cuda_vector weight;
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        size_t at = (size_t)row * width + i;
        out[at] = in[at] * weight.at(weight.count == 1 ? 0 : i);
    }
};

} // namespace

extern "C" int st_cuda_mul_weight(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each(call, b->out.width, mul_weight{st_cuda_floats(b->in[0]), st_cuda_floats(b->out), b->out.width,
                                                        st_cuda_vector_of(&b->weight[0])});
}
