/* Experts with int8 activations: the parameters of their kernels, in launches whose rows share experts or not. */
#ifndef ST_CUDA_EXPERTS_ARGS_CUH
#define ST_CUDA_EXPERTS_ARGS_CUH

#include "backend/cuda/experts_input.cuh"

struct st_cuda_experts_args {
    st_cuda_rows rows;
    const void *const *gate_table;
    const void *const *up_table;
    const void *const *down_table;
    size_t gate_bytes, up_bytes, down_bytes; /* of a row of the matrix */
    st_cuda_acts in, hidden_acts;
    const int32_t *ids;    /* [rows, used] */
    const float *weights;  /* [rows, used] */
    float *out;            /* [rows, embedding] */
    st_cuda_vector factors;
    st_cuda_vector gate_bias, up_bias, down_bias; /* a row per expert */
    uint32_t used, width, embedding;
    uint32_t up_first;     /* row of its matrix at which `up` begins */
    st_activation activation;
    bool on_input;
    st_cuda_divisor by_used, by_units; /* units: of a hidden row */
    bool alone;            /* `up` alone, at gate_table: hidden = activation(up · in) */

    __device__ float weight_of(uint32_t pair, int32_t id) const
    {
        return (on_input ? 1 : weights[pair]) * (factors.data ? factors.at(id) : 1);
    }

    /* An element of an expert's hidden row; `up` is not used if there is no gate. */
    __device__ __forceinline__ float hidden_of(int32_t id, uint32_t column, float gate, float up) const
    {
        size_t bias_at = (size_t)id * width + column;
        if (gate_bias.data) gate += gate_bias.at(bias_at);
        if (up_bias.data) up += up_bias.at(bias_at);
        return st_cuda_gated(activation, gate, alone ? 1.0f : up);
    }
};

static inline st_cuda_experts_args st_cuda_experts_args_of(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.experts;
    int up = st_cuda_up_of(b->op);
    const void *const *tables = (const void *const *)call->scratch;
    uint32_t embedding = b->in[0].width;
    st_cuda_experts_input input = st_cuda_experts_input_of(call);
    unsigned char *hidden_acts = input.acts.memory + call->rows * st_cuda_acts_row_bytes(embedding);
    return {st_cuda_rows_of(call), tables, tables + up * p.experts, tables + 2 * p.experts, b->weight[0].row_bytes,
            b->weight[up].row_bytes, b->weight[2].row_bytes, input.acts, {hidden_acts, p.width},
            (const int32_t *)b->in[1].data, st_cuda_floats(b->in[2]), st_cuda_floats(b->out),
            st_cuda_vector_of(&b->weight[3]), st_cuda_vector_of(&b->weight[4]), st_cuda_vector_of(&b->weight[5]),
            st_cuda_vector_of(&b->weight[6]), p.used, p.width, embedding, p.fused ? p.width : 0, p.activation,
            p.weight_on_input, st_cuda_divisor_of(p.used), st_cuda_divisor_of(p.width / 32), p.ungated};
}

/* experts_int8.cu: the input, unless the router has prepared it. Returns a cudaError_t. */
int st_cuda_experts_prepare(const st_cuda_call *call);

#endif
