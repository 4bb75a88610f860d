/* Convolution and the gated delta rule on the fast path. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast.h"

enum { CHANNELS = ST_CONV_CHANNELS };

/* A part is a few channels over all rows, in order; each row is a vector of channels. */
static void conv_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    size_t channels = bound->in[0].width, taps = call->op->p.conv.width, first = part * CHANNELS;
    size_t count = channels - first < CHANNELS ? channels - first : CHANNELS;
    /* scratch: the weights by taps [taps, CHANNELS], then the inputs seen [taps, CHANNELS], oldest first, and a sum */
    float *weights = st_cpu_scratch(call, worker), *seen = weights + taps * CHANNELS, *sum = seen + taps * CHANNELS;
    const float *stored = bound->weight[0].data;
    for (size_t t = 0; t < taps; t++)
        for (size_t c = 0; c < count; c++) weights[t * CHANNELS + c] = stored[(first + c) * taps + t];
    for (size_t t = 0; t + 1 < taps; t++)
        memcpy(seen + t * CHANNELS, bound->state.conv + t * channels + first, count * sizeof *seen);
    size_t oldest = 0; /* the inputs are a ring */
    for (size_t row = 0; row < call->rows; row++) {
        memcpy(seen + (oldest + taps - 1) % taps * CHANNELS, st_cpu_row(bound->in[0], row) + first, count * sizeof *seen);
        memset(sum, 0, count * sizeof *sum);
        for (size_t t = 0; t < taps; t++) {
            const float *x = seen + (oldest + t) % taps * CHANNELS, *w = weights + t * CHANNELS;
            for (size_t c = 0; c < count; c++) sum[c] += x[c] * w[c];
        }
        call->isa->silu(sum, count);
        memcpy(st_cpu_row(bound->out, row) + first, sum, count * sizeof *sum);
        oldest = (oldest + 1) % taps;
    }
    for (size_t t = 0; t + 1 < taps; t++)
        memcpy(bound->state.conv + t * channels + first, seen + (oldest + t) % taps * CHANNELS, count * sizeof *seen);
}

void st_cpu_fast_conv(const st_cpu_call *call)
{
    if (call->bound->weight[0].type != ST_TYPE_F32) {
        st_cpu_ref_kernels[ST_OP_CONV](call);
        return;
    }
    st_pool_run(call->pool, conv_part, (void *)(uintptr_t)call, (call->bound->in[0].width + CHANNELS - 1) / CHANNELS);
}

/* --- the delta rule -------------------------------------------------------------------------------------------------------------- */

static void unit_length(const st_isa *isa, const float *in, size_t count, float *out)
{
    isa->scale(in, 1.0f / sqrtf(isa->sum_squares(in, count) + 1e-6f), out, count);
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* A part is one value head over all rows, in order. */
static void deltanet_part(void *context, uint32_t worker, size_t head)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    size_t key_heads = call->op->p.deltanet.key_heads, size = call->op->p.deltanet.size, key_head = head % key_heads;
    float *state = bound->state.delta + head * size * size;
    float *q = st_cpu_scratch(call, worker), *k = q + size, *delta = k + size;
    float bias = ((const float *)bound->weight[0].data)[head], a = ((const float *)bound->weight[1].data)[head];
    for (size_t row = 0; row < call->rows; row++) {
        const float *qkv = st_cpu_row(bound->in[0], row);
        unit_length(call->isa, qkv + key_head * size, size, q);
        unit_length(call->isa, qkv + (key_heads + key_head) * size, size, k);
        float decay = expf(softplus(st_cpu_row(bound->in[1], row)[head] + bias) * a);
        float b = 1.0f / (1.0f + expf(-st_cpu_row(bound->in[2], row)[head]));
        call->isa->delta_step(state, size, q, k, qkv + (2 * key_heads + head) * size, decay, b, delta,
                              st_cpu_row(bound->out, row) + head * size);
    }
}

void st_cpu_fast_deltanet(const st_cpu_call *call)
{
    if (call->bound->weight[0].type != ST_TYPE_F32 || call->bound->weight[1].type != ST_TYPE_F32) {
        st_cpu_ref_kernels[ST_OP_DELTANET](call);
        return;
    }
    st_pool_run(call->pool, deltanet_part, (void *)(uintptr_t)call, call->op->p.deltanet.value_heads);
}
