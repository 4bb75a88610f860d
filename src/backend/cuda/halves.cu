/* Rows of floats to f16 activations. */
#include "backend/cuda/halves.cuh"

namespace {

enum { WARPS = 8, THREADS = WARPS * ST_CUDA_WARP };

/* A block per row. */
__global__ void __launch_bounds__(THREADS) convert(st_cuda_convert_args a)
{
    st_cuda_begin();
    uint32_t row = blockIdx.x, count = a.count ? *a.count : a.rows.count(), width = a.to.halves.width;
    a.to.begin();
    if (row >= st_cuda_converter::padded(count)) return;
    const float *in = row < count ? a.in + (size_t)row * width : NULL;
    float top = 0;
    for (uint32_t i = 4 * threadIdx.x; i < width && in; i += 4 * THREADS) top = st_cuda_top_of(top, *(const float4 *)(in + i));
    a.to.finish<WARPS>(row, in, top);
}

} // namespace

int st_cuda_start_convert(const st_cuda_call *call, const st_cuda_convert_args &args)
{
    return st_cuda_start<convert>(call, st_cuda_converter::padded(args.to.halves.rows), THREADS, 0, args);
}
