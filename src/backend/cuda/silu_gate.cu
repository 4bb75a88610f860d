#include "backend/cuda/halves.cuh"

namespace {

struct silu_gate {
    __device__ float operator()(float x, float gate) const
    {
        return x * st_cuda_silu(gate);
    }
};

} // namespace

extern "C" int st_cuda_silu_gate(const st_cuda_call *call)
{
    return st_cuda_each_for_product(call, silu_gate());
}
