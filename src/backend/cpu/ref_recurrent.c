/* Reference operations of recurrent layers. */
#include "backend/cpu/ref.h"

enum { CHANNELS_PER_PART = 64, TAPS_MAX = 64 };

/* One channel of one conversation: its rows, in order. */
static void conv_channel(const st_cpu_call *call, const st_step_conversation *conversation, size_t c)
{
    const st_bound_op *bound = call->bound;
    size_t channels = bound->in[0].width, taps = call->op->p.conv.width;
    float *state = bound->state.conv + conversation->slot * bound->state.slot_floats;
    const st_bound_weight *bias = &bound->weight[3];
    size_t tap;
    const st_bound_weight *filter = st_cpu_filter(bound, c, &tap);
    float seen[TAPS_MAX]; /* the last taps − 1 inputs, oldest first, then the current one */
    for (size_t t = 0; t + 1 < taps; t++) seen[t] = state[t * channels + c];
    for (size_t i = 0; i < conversation->rows; i++) {
        size_t row = conversation->first_row + i;
        seen[taps - 1] = st_cpu_row(bound->in[0], row)[c];
        float sum = bias->data ? st_cpu_element(bias, c) : 0;
        for (size_t t = 0; t < taps; t++) sum += seen[t] * st_cpu_element(filter, tap + t);
        st_cpu_row(bound->out, row)[c] = call->op->p.conv.linear ? sum : st_ref_silu(sum);
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

/* One token of the gated delta rule: S ← diag(decay)·S; δ = b·(v − Sᵀk); S ← S + k⊗δ; o = Sᵀq / √d. S is
 * [key, value]. */
static void delta_step(float *state, size_t size, const float *q, const float *k, const float *v, const float *decay,
                       float b, float *delta, float *out)
{
    for (size_t j = 0; j < size; j++) delta[j] = 0;
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            state[i * size + j] *= decay[i];
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

/* The decay of each channel of a head's key: its own, or the head's. */
static void load_decays(const st_cpu_call *call, size_t row, size_t head, float *decay)
{
    const st_bound_op *bound = call->bound;
    const float *alpha = st_cpu_row(bound->in[1], row);
    size_t size = call->op->p.deltanet.size;
    bool channels = call->op->p.deltanet.channels;
    float a = st_cpu_element(&bound->weight[1], head);
    for (size_t i = 0; i < size; i++) {
        size_t index = channels ? head * size + i : head;
        decay[i] = expf(st_ref_softplus(alpha[index] + st_cpu_element(&bound->weight[0], index)) * a);
    }
}

/* A part is one value head of one conversation: its rows, in order. */
static void deltanet_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    size_t key_heads = call->op->p.deltanet.key_heads, value_heads = call->op->p.deltanet.value_heads;
    size_t size = call->op->p.deltanet.size, head = part % value_heads, key_head = st_cpu_key_head(call->op, head);
    const st_step_conversation *c = &st_step_conversations(call->step)[part / value_heads];
    float *state = bound->state.delta + c->slot * bound->state.slot_floats + head * size * size;
    float *q = st_cpu_scratch(call, worker), *k = q + size, *delta = k + size, *decay = delta + size;
    for (size_t row = c->first_row; row < (size_t)c->first_row + c->rows; row++) {
        const float *qkv = st_cpu_row(bound->in[0], row);
        l2_normalise(qkv + key_head * size, size, q);
        l2_normalise(qkv + (key_heads + key_head) * size, size, k);
        const float *v = qkv + (2 * key_heads + head) * size;
        load_decays(call, row, head, decay);
        float b = st_ref_sigmoid(st_cpu_row(bound->in[2], row)[head]);
        delta_step(state, size, q, k, v, decay, b, delta, st_cpu_row(bound->out, row) + head * size);
    }
}

void st_ref_deltanet(const st_cpu_call *call)
{
    size_t parts = (size_t)call->step->conversation_count * call->op->p.deltanet.value_heads;
    st_pool_run(call->pool, deltanet_part, (void *)(uintptr_t)call, parts);
}

/* --- selective state space ---------------------------------------------------------------------------------------- */

/* One token of one head: S ← decay·S + Δ·x⊗B; y = S·C + d·x. S is [head size, state size]. */
static void ssm_step(float *state, size_t head_size, size_t state_size, const float *x, const float *b, const float *c,
                     float decay, float delta, float d, float *out)
{
    for (size_t i = 0; i < head_size; i++) {
        float *s = state + i * state_size, sum = 0;
        for (size_t n = 0; n < state_size; n++) {
            s[n] = s[n] * decay + delta * x[i] * b[n];
            sum += s[n] * c[n];
        }
        out[i] = sum + d * x[i];
    }
}

/* A part is one head of one conversation: its rows, in order. */
static void ssm_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    st_cpu_ssm s = st_cpu_ssm_of(call, part);
    float bias = st_cpu_element(&bound->weight[0], s.head), a = st_cpu_element(&bound->weight[1], s.head);
    float d = st_cpu_element(&bound->weight[2], s.head);
    size_t first = s.conversation->first_row;
    for (size_t row = first; row < first + s.conversation->rows; row++) {
        const float *in = st_cpu_row(bound->in[0], row);
        float delta = st_ref_softplus(st_cpu_row(bound->in[1], row)[s.head] + bias);
        ssm_step(s.state, s.size, s.states, in + s.x, in + s.b, in + s.c, expf(delta * a), delta, d,
                 st_cpu_row(bound->out, row) + s.x);
    }
}

void st_ref_ssm(const st_cpu_call *call)
{
    size_t parts = (size_t)call->step->conversation_count * call->op->p.ssm.heads;
    st_pool_run(call->pool, ssm_part, (void *)(uintptr_t)call, parts);
}
