/* A thread per channel of a conversation runs through its rows in order, because the output may be the input. In prompts several
 * threads of a block share the rows of a channel, and read the inputs before their own ones first. */
#include "backend/cuda/common.cuh"

namespace {

enum { THREADS = 128, FEW_TAPS = 4, AHEAD_MAX = 16, FILTERS = 3, SHARES = 16, SHARED_CHANNELS = 32 };

struct filter {
    st_cuda_vector weight; /* [taps, channels]; data NULL: none */
    uint32_t channels;
};

struct conv_args {
    st_cuda_rows rows;
    const float *in;
    float *out;
    float *state; /* of slot 0: [taps − 1, channels], oldest first */
    size_t slot_floats;
    uint32_t channels, taps;
    filter filters[FILTERS]; /* of adjacent ranges of channels */
    st_cuda_vector bias;
    bool linear;             /* without the activation */
};

/* MAX ≥ taps: with few the inputs stay in registers. The last `taps` of seen[] are used, the current input is the last. AHEAD: inputs
 * that are loaded at a time. A block has CHANNELS channels, and PARTS threads for the rows of each. */
template <int MAX, int AHEAD, int CHANNELS = THREADS, int PARTS = 1> __global__ void __launch_bounds__(CHANNELS *PARTS) convolve(conv_args a)
{
    st_cuda_release();
    uint32_t channel = blockIdx.x * CHANNELS + threadIdx.x % CHANNELS, skipped = MAX - a.taps;
    bool present = channel < a.channels && blockIdx.y < a.rows.conversation_count();
    if (!present) channel = 0;
    const st_step_conversation &c = a.rows.conversation(present ? blockIdx.y : 0);
    float *state = a.state + (present ? c.slot * a.slot_floats : 0);
    float seen[MAX], weights[MAX], bias = a.bias.data ? a.bias.at(channel) : 0;
    uint32_t own = channel; /* in its range */
    int of = 0;
    while (of + 1 < FILTERS && a.filters[of + 1].weight.data && own >= a.filters[of].channels) own -= a.filters[of++].channels;
    const st_cuda_vector &weight = a.filters[of].weight;
    if (MAX == FEW_TAPS && skipped == 0) {
        float4 four = weight.four((size_t)own * FEW_TAPS);
        weights[0] = four.x, weights[1] = four.y, weights[2] = four.z, weights[3] = four.w;
    } else {
#pragma unroll
        for (int t = 0; t < MAX; t++) weights[t] = (uint32_t)t >= skipped ? weight.at((size_t)own * a.taps + t - skipped) : 0;
    }
#pragma unroll
    for (int t = 0; t < MAX; t++)
        seen[t] = (uint32_t)t >= skipped && t + 1 < MAX ? state[(size_t)(t - skipped) * a.channels + channel] : 0;
    st_cuda_await();
    uint32_t rows = present ? c.rows : 0, each = PARTS > 1 ? (rows + PARTS - 1) / PARTS : rows, all_end = c.first_row + rows;
    uint32_t start = c.first_row + min(threadIdx.x / CHANNELS * each, rows), end = min(start + each, all_end);
    if (PARTS > 1) {
#pragma unroll
        for (int t = 0; t + 1 < MAX; t++) { /* inputs of this step; the first rows have seen those of the state alone */
            uint32_t before = MAX - 1 - t, own = start - c.first_row;
            if ((uint32_t)t < skipped) continue;
            if (own >= before) seen[t] = present ? a.in[(size_t)(start - before) * a.channels + channel] : 0;
            else if (own > 0) seen[t] = state[(size_t)(t - skipped + own) * a.channels + channel];
        }
        __syncthreads(); /* before any output is written */
    }
    if (start >= end) return;
    for (uint32_t first = start; first < end; first += AHEAD) {
        float inputs[AHEAD]; /* read before the outputs are written, so that the loads are under way at once */
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) inputs[i] = a.in[(size_t)min(first + i, end - 1) * a.channels + channel];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (first + i >= end) break;
            float sum = bias;
            seen[MAX - 1] = inputs[i];
#pragma unroll
            for (int t = 0; t < MAX; t++) sum += seen[t] * weights[t];
            a.out[(size_t)(first + i) * a.channels + channel] = a.linear ? sum : st_cuda_silu(sum);
#pragma unroll
            for (int t = 0; t + 1 < MAX; t++) seen[t] = seen[t + 1];
        }
    }
    if (PARTS > 1 && end < all_end) return;
#pragma unroll
    for (int t = 0; t + 1 < MAX; t++)
        if ((uint32_t)t >= skipped) state[(size_t)(t - skipped) * a.channels + channel] = seen[t];
}

} // namespace

extern "C" int st_cuda_conv(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    conv_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), st_cuda_floats(b->out), b->state.conv,
                      b->state.slot_floats, b->in[0].width, b->op->p.conv.width, {}, st_cuda_vector_of(&b->weight[3]),
                      b->op->p.conv.linear};
    for (int i = 0; i < FILTERS; i++) args.filters[i] = {st_cuda_vector_of(&b->weight[i]), (uint32_t)b->weight[i].ne[1]};
    dim3 blocks(st_cuda_blocks(args.channels, THREADS), st_cuda_conversations_max(call));
    if (args.taps > ST_CUDA_TAPS_MAX) return (int)cudaErrorInvalidValue;
    if (args.taps > FEW_TAPS) return st_cuda_start<convolve<ST_CUDA_TAPS_MAX, AHEAD_MAX>>(call, blocks, THREADS, 0, args);
    if (call->rows == 1) return st_cuda_start<convolve<FEW_TAPS, 1>>(call, blocks, THREADS, 0, args);
    if (call->rows <= ST_CUDA_FEW_ROWS) return st_cuda_start<convolve<FEW_TAPS, AHEAD_MAX>>(call, blocks, THREADS, 0, args);
    blocks.x = st_cuda_blocks(args.channels, SHARED_CHANNELS);
    return st_cuda_start<convolve<FEW_TAPS, AHEAD_MAX / 2, SHARED_CHANNELS, SHARES>>(call, blocks, SHARED_CHANNELS * SHARES, 0, args);
}
