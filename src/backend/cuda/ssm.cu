/* A selective state space: S ← exp(Δ·a)·S + Δ·x⊗B; y = S·C + d·x. Rows of the state do not depend on each other: a warp runs one
 * through the rows of a conversation, with its part of the state in registers. */
#include "backend/cuda/common.cuh"

namespace {

enum { WARPS = 4, EACH = ST_CUDA_STATE_MAX / ST_CUDA_WARP }; /* EACH: elements of a row of the state that a lane has */

struct ssm_args {
    st_cuda_rows rows;
    const float *in; /* [rows, x ‖ B ‖ C] */
    const float *dt; /* [rows, heads] */
    float *out;      /* [rows, heads × size] */
    float *state;    /* of slot 0: [heads, size, states] */
    size_t slot_floats;
    st_cuda_vector bias, a, d;
    uint32_t heads, size, states, groups;
};

__global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) ssm(ssm_args a)
{
    st_cuda_begin();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, i = blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP, head = blockIdx.y;
    if (i >= a.size || blockIdx.z >= a.rows.conversation_count()) return;
    const st_step_conversation &c = a.rows.conversation(blockIdx.z);
    uint32_t inner = a.heads * a.size, width = inner + 2 * a.groups * a.states, group = head / (a.heads / a.groups);
    float *own = a.state + c.slot * a.slot_floats + ((size_t)head * a.size + i) * a.states;
    float bias = a.bias.at(head), rate = a.a.at(head), skip = a.d.at(head), state[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++) state[n] = n * ST_CUDA_WARP + lane < a.states ? own[n * ST_CUDA_WARP + lane] : 0;
    for (uint32_t row = c.first_row; row < c.first_row + c.rows; row++) {
        const float *in = a.in + (size_t)row * width, *b = in + inner + group * a.states, *read = b + a.groups * a.states;
        float delta = st_cuda_softplus(a.dt[(size_t)row * a.heads + head] + bias), decay = expf(delta * rate);
        float x = in[head * a.size + i], sum = 0;
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            uint32_t at = n * ST_CUDA_WARP + lane;
            if (at >= a.states) continue;
            state[n] = state[n] * decay + delta * x * b[at];
            sum += state[n] * read[at];
        }
        sum = st_cuda_warp_sum(sum);
        if (lane == 0) a.out[(size_t)row * inner + head * a.size + i] = sum + skip * x;
    }
#pragma unroll
    for (int n = 0; n < EACH; n++)
        if (n * ST_CUDA_WARP + lane < a.states) own[n * ST_CUDA_WARP + lane] = state[n];
}

} // namespace

extern "C" int st_cuda_ssm(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.ssm;
    ssm_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->out), b->state.delta,
                     b->state.slot_floats, st_cuda_vector_of(&b->weight[0]), st_cuda_vector_of(&b->weight[1]),
                     st_cuda_vector_of(&b->weight[2]), p.heads, p.head_size, p.state_size, p.groups};
    dim3 grid(st_cuda_blocks(p.head_size, WARPS), p.heads, st_cuda_conversations_max(call));
    return st_cuda_start<ssm>(call, grid, WARPS * ST_CUDA_WARP, 0, args);
}
