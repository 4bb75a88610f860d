/* Convolution, the gated delta rule and selective state spaces on the fast path. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast.h"

enum {
    CHANNELS = ST_CONV_CHANNELS,
    CHUNK = ST_DELTA_CHUNK,
    CHUNK_MIN = 8, /* from this many rows on, the chunked form is faster */
};

/* A worker's scratch for a range of channels. */
typedef struct conv_state {
    size_t first, count; /* channels */
    float *weights;      /* by tap: [taps, CHANNELS] */
    float *seen;         /* the last inputs, a ring: [taps, CHANNELS] */
    float *sum;          /* [CHANNELS] */
    const float *bias;   /* [CHANNELS]; NULL: none */
} conv_state;

/* The rows of one conversation, in order; each row is a vector of channels. */
static void conv_rows(const st_cpu_call *call, const st_step_conversation *c, const conv_state *s)
{
    const st_bound_op *bound = call->bound;
    size_t channels = bound->in[0].width, taps = call->op->p.conv.width;
    float *state = bound->state.conv + c->slot * bound->state.slot_floats;
    for (size_t t = 0; t + 1 < taps; t++)
        memcpy(s->seen + t * CHANNELS, state + t * channels + s->first, s->count * sizeof *state);
    size_t oldest = 0; /* index of the oldest input in the ring */
    for (size_t row = c->first_row; row < (size_t)c->first_row + c->rows; row++) {
        memcpy(s->seen + (oldest + taps - 1) % taps * CHANNELS, st_cpu_row(bound->in[0], row) + s->first,
               s->count * sizeof *state);
        if (s->bias) memcpy(s->sum, s->bias, s->count * sizeof *s->sum);
        else memset(s->sum, 0, s->count * sizeof *s->sum);
        for (size_t t = 0; t < taps; t++) {
            const float *x = s->seen + (oldest + t) % taps * CHANNELS, *w = s->weights + t * CHANNELS;
            for (size_t k = 0; k < s->count; k++) s->sum[k] += x[k] * w[k];
        }
        if (!call->op->p.conv.linear) call->isa->silu(s->sum, s->count);
        memcpy(st_cpu_row(bound->out, row) + s->first, s->sum, s->count * sizeof *s->sum);
        oldest = (oldest + 1) % taps;
    }
    for (size_t t = 0; t + 1 < taps; t++)
        memcpy(state + t * channels + s->first, s->seen + (oldest + t) % taps * CHANNELS, s->count * sizeof *state);
}

/* A part is a range of channels of all conversations, so that the weights are transposed once. */
static void conv_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    size_t channels = call->bound->in[0].width, taps = call->op->p.conv.width;
    if (taps == 0) return; /* the model description guarantees taps > 0; static analysers do not know it */
    conv_state s = {.first = part * CHANNELS, .weights = st_cpu_scratch(call, worker)};
    s.count = channels - s.first < CHANNELS ? channels - s.first : CHANNELS;
    s.seen = s.weights + taps * CHANNELS;
    s.sum = s.seen + taps * CHANNELS;
    if (call->bound->weight[3].data) s.bias = (const float *)call->bound->weight[3].data + s.first;
    for (size_t k = 0; k < s.count; k++) {
        size_t first;
        const float *stored = st_cpu_filter(call->bound, s.first + k, &first)->data;
        for (size_t t = 0; t < taps; t++) s.weights[t * CHANNELS + k] = stored[first + t];
    }
    for (size_t i = 0; i < call->step->conversation_count; i++)
        conv_rows(call, &st_step_conversations(call->step)[i], &s);
}

/* The first `count` weights are absent or float32. */
static bool all_floats(const st_bound_op *bound, int count)
{
    for (int i = 0; i < count; i++)
        if (bound->weight[i].data && bound->weight[i].type != ST_TYPE_F32) return false;
    return true;
}

void st_cpu_fast_conv(const st_cpu_call *call)
{
    if (!all_floats(call->bound, 4)) {
        st_cpu_ref_kernels[ST_OP_CONV](call);
        return;
    }
    st_pool_run(call->pool, conv_part, (void *)(uintptr_t)call, (call->bound->in[0].width + CHANNELS - 1) / CHANNELS);
}

/* --- the gated delta rule ----------------------------------------------------------------------------------------- */

static void l2_normalise(const st_isa *isa, const float *in, size_t count, float *out)
{
    isa->scale(in, 1.0f / sqrtf(isa->sum_squares(in, count) + 1e-6f), out, count);
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

typedef struct delta_head {
    const st_cpu_call *call;
    size_t head, key_head, key_heads, size;
    const float *bias; /* of the head, or of each channel of its key */
    float a;
    float *state; /* [size (key), size (value)] */
} delta_head;

static const float *query_of(const delta_head *h, size_t row)
{
    return st_cpu_row(h->call->bound->in[0], row) + h->key_head * h->size;
}

static const float *key_of(const delta_head *h, size_t row)
{
    return query_of(h, row) + h->key_heads * h->size;
}

static const float *value_of(const delta_head *h, size_t row)
{
    return st_cpu_row(h->call->bound->in[0], row) + (2 * h->key_heads + h->head) * h->size;
}

static float *out_of(const delta_head *h, size_t row)
{
    return st_cpu_row(h->call->bound->out, row) + h->head * h->size;
}

static float log_decay(const delta_head *h, size_t row)
{
    return softplus(st_cpu_row(h->call->bound->in[1], row)[h->head] + h->bias[0]) * h->a;
}

/* The decay of each channel of the key: its own, or the head's. */
static void load_decays(const delta_head *h, size_t row, float *decay)
{
    const float *alpha = st_cpu_row(h->call->bound->in[1], row) + h->head * h->size;
    float all = h->call->op->p.deltanet.channels ? 0 : expf(log_decay(h, row));
    for (size_t i = 0; i < h->size; i++)
        decay[i] = h->call->op->p.deltanet.channels ? expf(softplus(alpha[i] + h->bias[i]) * h->a) : all;
}

static float beta(const delta_head *h, size_t row)
{
    return 1.0f / (1.0f + expf(-st_cpu_row(h->call->bound->in[2], row)[h->head]));
}

/* The recurrent form: token by token. */
static void run_steps(const delta_head *h, size_t first, size_t count, float *scratch)
{
    const st_isa *isa = h->call->isa;
    float *q = scratch, *k = q + h->size, *delta = k + h->size, *decay = delta + h->size;
    for (size_t row = first; row < first + count; row++) {
        l2_normalise(isa, query_of(h, row), h->size, q);
        l2_normalise(isa, key_of(h, row), h->size, k);
        load_decays(h, row, decay);
        isa->delta_step(h->state, h->size, q, k, value_of(h, row), decay, beta(h, row), delta, out_of(h, row));
    }
}

/* The chunked form: GEMMs over a chunk of tokens. With L the running sum of log decays, S₀ the state before it:
 *     (I + A) Δ = B,   A[t,s] = b(t) e^(L(t)−L(s)) k(t)·k(s) for s < t,   B[t] = b(t) (v(t) − e^L(t) S₀ᵀk(t))
 *     o(t) = (e^L(t) S₀ᵀq(t) + Σ s≤t e^(L(t)−L(s)) k(s)·q(t) Δ[s]) / √d
 *     S   = e^L(last) S₀ + Σ e^(L(last)−L(s)) k(s) ⊗ Δ[s] */
typedef struct delta_chunk {
    float *q, *k;      /* [CHUNK, size] */
    float *transposed; /* [size, CHUNK]: k transposed */
    float *a, *p;      /* [CHUNK, CHUNK]: k·k and q·k */
    float *delta;      /* [CHUNK, size] */
    float *out;        /* [CHUNK, size] */
    float *b;          /* [CHUNK] */
    double log_sum[CHUNK]; /* L: differences of large sums are still exact decays */
} delta_chunk;

static delta_chunk chunk_in(float *scratch, size_t size)
{
    delta_chunk c = {.q = scratch};
    c.k = c.q + CHUNK * size;
    c.transposed = c.k + CHUNK * size;
    c.a = c.transposed + CHUNK * size;
    c.p = c.a + CHUNK * CHUNK;
    c.delta = c.p + CHUNK * CHUNK;
    c.out = c.delta + CHUNK * size;
    c.b = c.out + CHUNK * size;
    return c;
}

static void load_chunk(const delta_head *h, size_t first, size_t count, delta_chunk *c)
{
    const st_isa *isa = h->call->isa;
    double sum = 0;
    for (size_t t = 0; t < count; t++) {
        l2_normalise(isa, query_of(h, first + t), h->size, c->q + t * h->size);
        l2_normalise(isa, key_of(h, first + t), h->size, c->k + t * h->size);
        c->log_sum[t] = sum += log_decay(h, first + t);
        c->b[t] = beta(h, first + t);
    }
    memset(c->k + count * h->size, 0, (CHUNK - count) * h->size * sizeof *c->k);
    isa->transpose(c->k, h->size, c->transposed, CHUNK, CHUNK, h->size);
    isa->gemm(c->k, h->size, c->transposed, CHUNK, c->a, CHUNK, count, CHUNK, h->size, false);
    isa->gemm(c->q, h->size, c->transposed, CHUNK, c->p, CHUNK, count, CHUNK, h->size, false);
    isa->gemm(c->k, h->size, h->state, h->size, c->delta, h->size, count, h->size, h->size, false);
    isa->gemm(c->q, h->size, h->state, h->size, c->out, h->size, count, h->size, h->size, false);
}

/* Solves (I + A) Δ = B by forward substitution. */
static void solve_chunk(const delta_head *h, size_t first, size_t count, const delta_chunk *c)
{
    const st_isa *isa = h->call->isa;
    for (size_t t = 0; t < count; t++) {
        float *delta = c->delta + t * h->size, reach = expf((float)c->log_sum[t]);
        const float *v = value_of(h, first + t);
        for (size_t j = 0; j < h->size; j++) delta[j] = c->b[t] * (v[j] - reach * delta[j]);
        for (size_t s = 0; s < t; s++) {
            float decay = expf((float)(c->log_sum[t] - c->log_sum[s]));
            c->p[t * CHUNK + s] *= decay;
            isa->add_scaled(delta, c->delta + s * h->size, -c->b[t] * decay * c->a[t * CHUNK + s], h->size);
        }
        isa->scale(c->out + t * h->size, reach, c->out + t * h->size, h->size);
        memset(c->p + t * CHUNK + t + 1, 0, (CHUNK - t - 1) * sizeof *c->p);
    }
}

static void run_chunk(const delta_head *h, size_t first, size_t count, float *scratch)
{
    const st_isa *isa = h->call->isa;
    delta_chunk c = chunk_in(scratch, h->size);
    load_chunk(h, first, count, &c);
    solve_chunk(h, first, count, &c);
    isa->gemm(c.p, CHUNK, c.delta, h->size, c.out, h->size, count, h->size, count, true);
    float scale = 1.0f / sqrtf((float)h->size);
    double last = c.log_sum[count - 1];
    for (size_t t = 0; t < count; t++) isa->scale(c.out + t * h->size, scale, out_of(h, first + t), h->size);
    isa->scale(h->state, expf((float)last), h->state, h->size * h->size);
    for (size_t t = 0; t < count; t++)
        isa->scale(c.delta + t * h->size, expf((float)(last - c.log_sum[t])), c.delta + t * h->size, h->size);
    isa->gemm(c.transposed, CHUNK, c.delta, h->size, h->state, h->size, h->size, h->size, count, true);
}

/* A part is one value head of one conversation: its rows, in order. The form depends on the rows of the conversation
 * alone, not on the other conversations of the step. */
static void deltanet_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    size_t heads = call->op->p.deltanet.value_heads, head = part % heads;
    const st_step_conversation *c = &st_step_conversations(call->step)[part / heads];
    delta_head h = {.call = call, .head = head, .key_heads = call->op->p.deltanet.key_heads, .size = call->op->p.deltanet.size,
                    .bias = bound->weight[0].data, .a = ((const float *)bound->weight[1].data)[head]};
    bool channels = call->op->p.deltanet.channels;
    h.bias += channels ? head * h.size : head;
    h.key_head = st_cpu_key_head(call->op, head);
    h.state = bound->state.delta + c->slot * bound->state.slot_floats + head * h.size * h.size;
    float *scratch = st_cpu_scratch(call, worker);
    bool chunks = c->rows >= CHUNK_MIN && h.size % 16 == 0 && !channels;
    for (size_t done = 0; done < c->rows; done += CHUNK) {
        size_t count = c->rows - done < CHUNK ? c->rows - done : CHUNK;
        if (chunks) run_chunk(&h, c->first_row + done, count, scratch);
        else run_steps(&h, c->first_row + done, count, scratch);
    }
}

void st_cpu_fast_deltanet(const st_cpu_call *call)
{
    if (!all_floats(call->bound, 2)) {
        st_cpu_ref_kernels[ST_OP_DELTANET](call);
        return;
    }
    size_t parts = (size_t)call->step->conversation_count * call->op->p.deltanet.value_heads;
    st_pool_run(call->pool, deltanet_part, (void *)(uintptr_t)call, parts);
}

/* --- selective state space ---------------------------------------------------------------------------------------- */

/* A part is one head of one conversation: its rows, in order. */
static void ssm_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    st_cpu_ssm s = st_cpu_ssm_of(call, part);
    const float *biases = bound->weight[0].data, *as = bound->weight[1].data, *ds = bound->weight[2].data;
    for (size_t i = 0; i < s.conversation->rows; i++) {
        size_t row = s.conversation->first_row + i;
        const float *in = st_cpu_row(bound->in[0], row), *x = in + s.x;
        float delta = softplus(st_cpu_row(bound->in[1], row)[s.head] + biases[s.head]), decay = expf(delta * as[s.head]);
        float *out = st_cpu_row(bound->out, row) + s.x;
        for (size_t k = 0; k < s.size; k++)
            out[k] = ds[s.head] * x[k] +
                     call->isa->ssm_step(s.state + k * s.states, in + s.b, in + s.c, decay, delta * x[k], s.states);
    }
}

void st_cpu_fast_ssm(const st_cpu_call *call)
{
    if (!all_floats(call->bound, 3)) {
        st_cpu_ref_kernels[ST_OP_SSM](call);
        return;
    }
    size_t parts = (size_t)call->step->conversation_count * call->op->p.ssm.heads;
    st_pool_run(call->pool, ssm_part, (void *)(uintptr_t)call, parts);
}
