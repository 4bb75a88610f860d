#include "backend/cuda/common.cuh"

namespace {

struct rotate {
    float *value;
    const float *angles;
    uint32_t width, head_size, offset, dims;
    bool halves;
    __device__ void operator()(const st_cuda_rows &, uint32_t row, uint32_t i) const
    {
        uint32_t pairs = dims / 2, head = i / pairs, pair = i % pairs;
        float *base = value + (size_t)row * width + head * head_size + offset;
        float *a = base + (halves ? pair : 2 * pair), *b = base + (halves ? pair + pairs : 2 * pair + 1);
        const float *angle = angles + (size_t)row * dims + 2 * pair;
        float x = *a, y = *b, c = angle[0], s = angle[1];
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
};

} // namespace

extern "C" int st_cuda_rope(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    uint32_t dims = b->op->p.rope.dims;
    rotate f = {st_cuda_floats(b->out), st_cuda_floats(b->in[1]), b->out.width, b->op->p.rope.head_size, b->op->p.rope.offset, dims,
                b->op->p.rope.style == ST_ROPE_HALVES};
    return st_cuda_each(call, b->op->p.rope.heads * (dims / 2), f);
}
