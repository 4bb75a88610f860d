/* Reference operations of recurrent layers. */
#include "backend/cpu/ref.h"

enum { CHANNELS_PER_PART = 64, TAPS_MAX = 64 };

/* One channel of one conversation: its rows, in order. */
static void conv_channel(const st_cpu_call *call, const st_step_conversation *conversation, size_t c)
{
    const st_bound_op *bound = call->bound;
    size_t channels = bound->in[0].width, taps = call->op->p.conv.width;
    float *state = bound->state.conv + conversation->slot * bound->state.slot_floats;
    float seen[TAPS_MAX]; /* the last taps − 1 inputs, oldest first, then the current one */
    for (size_t t = 0; t + 1 < taps; t++) seen[t] = state[t * channels + c];
    for (size_t i = 0; i < conversation->rows; i++) {
        size_t row = conversation->first_row + i;
        seen[taps - 1] = st_cpu_row(bound->in[0], row)[c];
        float sum = 0;
        for (size_t t = 0; t < taps; t++) sum += seen[t] * st_cpu_element(&bound->weight[0], c * taps + t);
        st_cpu_row(bound->out, row)[c] = st_ref_silu(sum);
        for (size_t t = 0; t + 1 < taps; t++) seen[t] = seen[t + 1];
    }
    for (size_t t = 0; t + 1 < taps; t++) state[t * channels + c] = seen[t];
}

/* A part is a range of channels of all conversations. */
static void conv_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const st_cpu_call *call = context;
    size_t channels = call->bound->in[0].width, end = (part + 1) * CHANNELS_PER_PART;
    for (size_t i = 0; i < call->step->conversation_count; i++)
        for (size_t c = part * CHANNELS_PER_PART; c < end && c < channels; c++)
            conv_channel(call, &st_step_conversations(call->step)[i], c);
}

void st_ref_conv(const st_cpu_call *call)
{
    size_t parts = (call->bound->in[0].width + CHANNELS_PER_PART - 1) / CHANNELS_PER_PART;
    st_pool_run(call->pool, conv_part, (void *)(uintptr_t)call, parts);
}

static void l2_normalise(const float *in, size_t count, float *out)
{
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += (double)in[i] * in[i];
    float scale = 1.0f / sqrtf((float)squares + 1e-6f);
    for (size_t i = 0; i < count; i++) out[i] = in[i] * scale;
}

/* One token of the gated delta rule: S ← decay·S; δ = b·(v − Sᵀk); S ← S + k⊗δ; o = Sᵀq / √d. S is [key, value]. */
static void delta_step(float *state, size_t size, const float *q, const float *k, const float *v, float decay, float b,
                       float *delta, float *out)
{
    for (size_t j = 0; j < size; j++) delta[j] = 0;
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            state[i * size + j] *= decay;
            delta[j] += state[i * size + j] * k[i];
        }
    for (size_t j = 0; j < size; j++) {
        delta[j] = b * (v[j] - delta[j]);
        out[j] = 0;
    }
    float scale = 1.0f / sqrtf((float)size);
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            state[i * size + j] += k[i] * delta[j];
            out[j] += state[i * size + j] * q[i] * scale;
        }
}

/* A part is one value head of one conversation: its rows, in order. */
static void deltanet_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    size_t key_heads = call->op->p.deltanet.key_heads, value_heads = call->op->p.deltanet.value_heads;
    size_t size = call->op->p.deltanet.size, head = part % value_heads, key_head = head % key_heads;
    const st_step_conversation *c = &st_step_conversations(call->step)[part / value_heads];
    float *state = bound->state.delta + c->slot * bound->state.slot_floats + head * size * size;
    float *q = st_cpu_scratch(call, worker), *k = q + size, *delta = k + size;
    float bias = st_cpu_element(&bound->weight[0], head), a = st_cpu_element(&bound->weight[1], head);
    for (size_t row = c->first_row; row < (size_t)c->first_row + c->rows; row++) {
        const float *qkv = st_cpu_row(bound->in[0], row);
        l2_normalise(qkv + key_head * size, size, q);
        l2_normalise(qkv + (key_heads + key_head) * size, size, k);
        const float *v = qkv + (2 * key_heads + head) * size;
        float decay = expf(st_ref_softplus(st_cpu_row(bound->in[1], row)[head] + bias) * a);
        float b = st_ref_sigmoid(st_cpu_row(bound->in[2], row)[head]);
        delta_step(state, size, q, k, v, decay, b, delta, st_cpu_row(bound->out, row) + head * size);
    }
}

void st_ref_deltanet(const st_cpu_call *call)
{
    size_t parts = (size_t)call->step->conversation_count * call->op->p.deltanet.value_heads;
    st_pool_run(call->pool, deltanet_part, (void *)(uintptr_t)call, parts);
}
