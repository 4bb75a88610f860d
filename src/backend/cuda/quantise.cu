/* Rows of floats to int8 activations. */
#include "backend/cuda/acts.cuh"

namespace {

enum { THREADS = 128 };

struct quantise_args {
    st_cuda_rows rows;
    const float *in;
    st_cuda_acts acts;
};

/* Four elements per thread. */
__global__ void quantise(quantise_args a)
{
    st_cuda_begin();
    uint32_t first = (blockIdx.x * THREADS + threadIdx.x) * 4, row = blockIdx.y;
    float4 x = {};
    if (first < a.acts.width && a.rows.loads(row)) x = *(const float4 *)(a.in + (size_t)row * a.acts.width + first);
    st_cuda_quantise(a.acts, row, first, x, first < a.acts.width && row < a.rows.count());
}

} // namespace

extern "C" int st_cuda_quantise_rows(const st_cuda_call *call, const float *in, uint32_t width, void *acts)
{
    quantise_args args = {st_cuda_rows_of(call), in, {(unsigned char *)acts, width}};
    dim3 grid(st_cuda_blocks(width / 4, THREADS), call->rows);
    return st_cuda_start<quantise>(call, grid, THREADS, 0, args);
}
