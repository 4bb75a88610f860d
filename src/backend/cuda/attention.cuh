/* The parameters of an attention, and which positions a row sees. */
#ifndef ST_CUDA_ATTENTION_CUH
#define ST_CUDA_ATTENTION_CUH

#include "backend/cuda/kv.cuh"

struct st_cuda_attention_args {
    st_cuda_rows rows;
    st_kv_view kv;
    const float *in;
    float *out;
    uint32_t heads, group; /* query heads, and how many share a KV head */
    uint32_t key, value;   /* elements of a head */
    uint32_t window, chunk, begin; /* begin: the first position with keys and values */
    float scale;
    st_cuda_vector sinks; /* a logit per head that joins the softmax and has no value; data NULL: none */

    /* The first position that `position` sees. */
    __device__ uint32_t first(uint32_t position) const
    {
        uint32_t first = window && position + 1 > window ? max(begin, position + 1 - window) : begin;
        return chunk ? max(first, position / chunk * chunk) : first;
    }
    __device__ float sink(uint32_t head) const
    {
        return sinks.data ? sinks.at(head) : -INFINITY;
    }
};

static inline st_cuda_attention_args st_cuda_attention_args_of(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.attention;
    return {st_cuda_rows_of(call), b->kv, st_cuda_floats(b->in[0]), st_cuda_floats(b->out), p.heads,
            p.heads / p.kv_heads, p.key_length, p.value_length, p.window, p.chunk, p.first, p.scale,
            st_cuda_vector_of(&b->weight[0])};
}

#endif
