#include "backend/cuda/common.cuh"

namespace {

struct angle {
    float *out;
    st_rope rope;
    float low, high; /* YaRN's ramp, in pairs */
    st_cuda_vector factors;

    /* Rounded as the CPU does it: at a large position the last bit of a frequency is a visible angle. */
    __device__ float frequency(uint32_t pair) const
    {
        float own = (float)(1.0 / pow((double)rope.base, 2.0 * pair / rope.dims));
        if (factors.data) own = __fdiv_rn(own, factors.at(pair));
        if (rope.scaling == ST_ROPE_SCALING_NONE) return own;
        float slow = __fdiv_rn(own, rope.scaling_factor), share = 0;
        if (rope.scaling == ST_ROPE_SCALING_YARN)
            share = 1 - fminf(1, fmaxf(0, __fdiv_rn((float)pair - low, fmaxf(0.001f, high - low))));
        return __fadd_rn(__fmul_rn(slow, 1 - share), __fmul_rn(own, share));
    }

    __device__ void operator()(const st_cuda_rows &rows, uint32_t row, uint32_t pair) const
    {
        float turn = __fmul_rn((float)rows.at(row).position, frequency(pair));
        float *to = out + (size_t)row * rope.dims + 2 * pair;
        to[0] = cosf(turn) * rope.attention_factor;
        to[1] = sinf(turn) * rope.attention_factor;
    }
};

} // namespace

extern "C" int st_cuda_angles(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const st_rope *rope = &b->op->p.angles.rope;
    angle f = {st_cuda_floats(b->out), *rope, 0, 0, st_cuda_vector_of(&b->weight[0])};
    if (rope->scaling == ST_ROPE_SCALING_YARN) {
        float dims = (float)rope->dims, log_base = 2 * logf(rope->base);
        float low = dims * logf(rope->original_context / (rope->beta_fast * 6.28318530718f)) / log_base;
        float high = dims * logf(rope->original_context / (rope->beta_slow * 6.28318530718f)) / log_base;
        f.low = fmaxf(rope->unrounded ? low : floorf(low), 0);
        f.high = fminf(rope->unrounded ? high : ceilf(high), dims - 1);
    }
    return st_cuda_each(call, rope->dims / 2, f);
}
