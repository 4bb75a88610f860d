/* The operands of the gated delta rule, for the kernels that run it row by row and in chunks. Knows neither. */
#ifndef ST_CUDA_DELTANET_CUH
#define ST_CUDA_DELTANET_CUH

#include "backend/cuda/common.cuh"

struct st_cuda_delta_args {
    st_cuda_rows rows;
    const float *qkv, *alpha, *beta;
    float *out;
    float *state; /* of slot 0: [value_heads, size, size] */
    size_t slot_floats;
    st_cuda_vector bias, a;
    uint32_t key_heads, value_heads, size;
    uint32_t rows_end; /* conversations of so many rows or more are left to another kernel */
    bool grouped, channels; /* which key head a value head reads; a decay for each channel of the key */

    __device__ uint32_t key_head(uint32_t head) const
    {
        return grouped ? head / (value_heads / key_heads) : head % key_heads;
    }
    /* The logarithm of the decay of channel i of a head's key. */
    __device__ float log_decay(uint32_t row, uint32_t head, uint32_t i) const
    {
        uint32_t all = channels ? value_heads * size : value_heads, at = channels ? head * size + i : head;
        return st_cuda_softplus(alpha[(size_t)row * all + at] + bias.at(at)) * a.at(head);
    }
    __device__ float write_strength(uint32_t row, uint32_t head) const
    {
        return st_cuda_sigmoid(beta[(size_t)row * value_heads + head]);
    }
};

static inline st_cuda_delta_args st_cuda_delta_args_of(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.deltanet;
    return {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->in[2]),
            st_cuda_floats(b->out), b->state.delta, b->state.slot_floats, st_cuda_vector_of(&b->weight[0]),
            st_cuda_vector_of(&b->weight[1]), p.key_heads, p.value_heads, p.size, UINT32_MAX, p.grouped, p.channels};
}

#endif
