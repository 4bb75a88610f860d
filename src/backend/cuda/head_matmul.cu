/* A matrix per head, float32 products of dequantised weights; then the rest of each head is copied. */
#include "backend/cuda/products.h"

namespace {

struct copy_rest {
    const float *in;
    float *out;
    uint32_t in_width, out_width, in_part, out_part, rest; /* the rest is at the end of a part */
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        uint32_t head = i / rest, at = i % rest;
        out[(size_t)row * out_width + (head + 1) * out_part - rest + at] = in[(size_t)row * in_width + (head + 1) * in_part - rest + at];
    }
};

} // namespace

extern "C" int st_cuda_head_matmul(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const st_bound_weight *w = &b->weight[0];
    uint32_t heads = b->op->p.head_matmul.heads, in_part = b->in[0].width / heads, out_part = b->out.width / heads;
    uint32_t width = (uint32_t)w->ne[0], columns = (uint32_t)w->ne[1], rest = in_part - width;
    st_cuda_product_args args = {st_cuda_rows_of(call), (const unsigned char *)w->data, w->row_bytes, width, columns,
                                 st_cuda_floats(b->in[0]), st_cuda_floats(b->out), {}, b->in[0].width, b->out.width, heads, in_part, out_part};
    int code = st_cuda_products_start(call, w->type, args);
    if (code != cudaSuccess || rest == 0) return code;
    return st_cuda_each(call, heads * rest, copy_rest{args.in, args.out, args.in_width, args.out_width, in_part, out_part, rest});
}
