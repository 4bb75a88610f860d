#include "backend/cuda/weights.cuh"

namespace {

template <class W> struct embed_element {
    const unsigned char *table;
    size_t row_bytes;
    float *out;
    uint32_t width;
    float scale;
    __device__ void operator()(const st_cuda_rows &rows, uint32_t row, uint32_t i) const
    {
        out[(size_t)row * width + i] = W::at(table + (size_t)rows.at(row).id * row_bytes, i) * scale;
    }
};

struct embed {
    const st_cuda_call *call;
    template <class W> int run() const
    {
        const st_bound_op *b = call->bound;
        return st_cuda_each(call, b->out.width,
                            embed_element<W>{(const unsigned char *)b->weight[0].data, b->weight[0].row_bytes,
                                             st_cuda_floats(b->out), b->out.width, b->op->p.embed.scale});
    }
};

} // namespace

extern "C" int st_cuda_embed(const st_cuda_call *call)
{
    return st_cuda_with_type(call->bound->weight[0].type, embed{call});
}
