#include "backend/cuda/common.cuh"

namespace {

struct temper {
    float *value;
    uint32_t width, chunk, from; /* from: the number of the first position */
    float factor;
    __device__ void operator()(const st_cuda_rows &rows, uint32_t row, uint32_t i) const
    {
        float chunks = floorf(__fdiv_rn((float)(rows.at(row).position + from), (float)chunk));
        value[(size_t)row * width + i] *= logf(chunks + 1) * factor + 1;
    }
};

} // namespace

extern "C" int st_cuda_temperature(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    return st_cuda_each(call, b->out.width,
                        temper{st_cuda_floats(b->out), b->out.width, b->op->p.temperature.chunk,
                               b->op->p.temperature.from_zero ? 0u : 1u, b->op->p.temperature.factor});
}
