#include "backend/cuda/halves.cuh"

namespace {

template <st_activation ACTIVATION> struct gated_act {
    __device__ float operator()(float gate, float up) const
    {
        return st_cuda_gated(ACTIVATION, gate, up);
    }
};

} // namespace

extern "C" int st_cuda_gated_act(const st_cuda_call *call)
{
    switch (call->bound->op->p.gate.activation) {
    case ST_ACT_SILU: return st_cuda_each_for_product(call, gated_act<ST_ACT_SILU>());
    case ST_ACT_GELU: return st_cuda_each_for_product(call, gated_act<ST_ACT_GELU>());
    case ST_ACT_SWIGLU_CLAMPED: return st_cuda_each_for_product(call, gated_act<ST_ACT_SWIGLU_CLAMPED>());
    case ST_ACT_RELU_SQUARED: return st_cuda_each_for_product(call, gated_act<ST_ACT_RELU_SQUARED>());
    default: return (int)cudaErrorInvalidValue;
    }
}
