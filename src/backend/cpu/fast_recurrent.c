/* Convolution and the gated delta rule on the fast path. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast.h"

enum {
    CHANNELS = ST_CONV_CHANNELS,
    CHUNK = ST_DELTA_CHUNK,
    CHUNK_MIN = 8, /* from this many rows on, the chunked form is faster */
};

/* A part is a range of channels over all rows, in order; each row is a vector of channels. */
static void conv_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    size_t channels = bound->in[0].width, taps = call->op->p.conv.width, first = part * CHANNELS;
    size_t count = channels - first < CHANNELS ? channels - first : CHANNELS;
    if (taps == 0) return; /* the model description guarantees taps > 0; static analysers do not know it */
    /* scratch: the weights by tap [taps, CHANNELS]; the last inputs [taps, CHANNELS], a ring; the sums [CHANNELS] */
    float *weights = st_cpu_scratch(call, worker), *seen = weights + taps * CHANNELS, *sum = seen + taps * CHANNELS;
    const float *stored = bound->weight[0].data;
    for (size_t t = 0; t < taps; t++)
        for (size_t c = 0; c < count; c++) weights[t * CHANNELS + c] = stored[(first + c) * taps + t];
    for (size_t t = 0; t + 1 < taps; t++)
        memcpy(seen + t * CHANNELS, bound->state.conv + t * channels + first, count * sizeof *seen);
    size_t oldest = 0; /* index of the oldest input in the ring */
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
    float bias, a;
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
    return softplus(st_cpu_row(h->call->bound->in[1], row)[h->head] + h->bias) * h->a;
}

static float beta(const delta_head *h, size_t row)
{
    return 1.0f / (1.0f + expf(-st_cpu_row(h->call->bound->in[2], row)[h->head]));
}

/* The recurrent form: token by token. */
static void run_steps(const delta_head *h, size_t first, size_t count, float *scratch)
{
    const st_isa *isa = h->call->isa;
    float *q = scratch, *k = q + h->size, *delta = k + h->size;
    for (size_t row = first; row < first + count; row++) {
        l2_normalise(isa, query_of(h, row), h->size, q);
        l2_normalise(isa, key_of(h, row), h->size, k);
        isa->delta_step(h->state, h->size, q, k, value_of(h, row), expf(log_decay(h, row)), beta(h, row), delta,
                        out_of(h, row));
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
    float *log_sum;    /* [CHUNK]: L */
    float *b;          /* [CHUNK] */
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
    c.log_sum = c.out + CHUNK * size;
    c.b = c.log_sum + CHUNK;
    return c;
}

static void load_chunk(const delta_head *h, size_t first, size_t count, const delta_chunk *c)
{
    const st_isa *isa = h->call->isa;
    float sum = 0;
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
        float *delta = c->delta + t * h->size, reach = expf(c->log_sum[t]);
        const float *v = value_of(h, first + t);
        for (size_t j = 0; j < h->size; j++) delta[j] = c->b[t] * (v[j] - reach * delta[j]);
        for (size_t s = 0; s < t; s++) {
            float decay = expf(c->log_sum[t] - c->log_sum[s]);
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
    float scale = 1.0f / sqrtf((float)h->size), last = c.log_sum[count - 1];
    for (size_t t = 0; t < count; t++) isa->scale(c.out + t * h->size, scale, out_of(h, first + t), h->size);
    isa->scale(h->state, expf(last), h->state, h->size * h->size);
    for (size_t t = 0; t < count; t++) isa->scale(c.delta + t * h->size, expf(last - c.log_sum[t]), c.delta + t * h->size, h->size);
    isa->gemm(c.transposed, CHUNK, c.delta, h->size, h->state, h->size, h->size, h->size, count, true);
}

/* A part is one value head over all rows, in order. */
static void deltanet_part(void *context, uint32_t worker, size_t head)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    delta_head h = {.call = call, .head = head, .key_heads = call->op->p.deltanet.key_heads, .size = call->op->p.deltanet.size,
                    .bias = ((const float *)bound->weight[0].data)[head], .a = ((const float *)bound->weight[1].data)[head]};
    h.key_head = head % h.key_heads;
    h.state = bound->state.delta + head * h.size * h.size;
    float *scratch = st_cpu_scratch(call, worker);
    bool chunks = call->rows >= CHUNK_MIN && h.size % 16 == 0;
    for (size_t row = 0; row < call->rows; row += CHUNK) {
        size_t count = call->rows - row < CHUNK ? call->rows - row : CHUNK;
        if (chunks) run_chunk(&h, row, count, scratch);
        else run_steps(&h, row, count, scratch);
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
