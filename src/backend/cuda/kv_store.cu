#include "backend/cuda/kv.cuh"

namespace {

enum { THREADS = 128 };

struct store_args {
    st_cuda_rows rows;
    st_kv_view kv;
    const float *keys, *values; /* values: NULL: they are parts of the keys */
    uint32_t key_width, value_width;
};

/* Whole warps take part, so that a block of 32 elements finds its scale together. */
template <class K> __device__ void store_row(unsigned char *row, const float *from, uint32_t width)
{
    uint32_t padded = (width + ST_CUDA_WARP - 1) / ST_CUDA_WARP * ST_CUDA_WARP;
    for (uint32_t i = threadIdx.x; i < padded; i += THREADS) K::store(row, i, i < width, i < width ? from[i] : 0.0f);
}

/* A block per row. */
template <class K> __global__ void kv_store(store_args a)
{
    st_cuda_begin();
    uint32_t row = blockIdx.x;
    if (row >= a.rows.count()) return;
    const st_step_row &at = a.rows.at(row);
    st_cuda_kv_rows kv(a.kv, a.rows, at.conversation);
    store_row<K>(kv.key(at.position), a.keys + (size_t)row * a.key_width, a.key_width);
    if (a.values) store_row<K>(kv.value(at.position), a.values + (size_t)row * a.value_width, a.value_width);
}

struct store {
    const st_cuda_call *call;
    store_args args;
    template <class K> int run() const
    {
        return st_cuda_start<kv_store<K>>(call, call->rows, THREADS, 0, args);
    }
};

} // namespace

extern "C" int st_cuda_kv_store(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    store_args args = {st_cuda_rows_of(call), b->kv, st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), b->in[0].width,
                       b->in[1].width};
    return st_cuda_with_kv_type(b->kv.type, store{call, args});
}
