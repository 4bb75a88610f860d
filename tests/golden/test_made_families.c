/* Families without a pair in the kit: tiny models with random weights, against a forward pass in double precision that
 * is written here from the families' description alone and shares no code with the library. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/gguf_copy.h"
#include "support/golden.h"
#include "support/random.h"

enum { E = 48, H = 4, HKV = 2, D = 16, F = 40, VOCAB = 320, LAYERS = 5, TOKENS = 40, TENSORS_MAX = 160 };
enum { X = 8, USED = 3, FX = 12, GROUPS = 4, GROUPS_USED = 2 };
enum { SH = 4, SP = 6, SN = 8, SG = 2, TAPS = 4, INNER = SH * SP, CHANNELS = INNER + 2 * SG * SN }; /* state spaces */

typedef enum qk { QK_NONE, QK_HEAD, QK_ROW, QK_HEAD_AFTER } qk;
typedef enum form { PRE, POST, PARALLEL, SINGLE } form; /* SINGLE: state space, feed-forward, attention, and again */

typedef struct family {
    const char *arch, *note;
    int rope;        /* 1: pairs, 2: halves, 0: none */
    uint32_t rotated; /* elements of a head */
    qk norm;
    form order;
    bool layer_norm, biases, joined;
    uint32_t window, full_every; /* 0: no windows */
    bool full_unrotated;
    const char *ffn_norm;
    bool experts, sigmoid, biased, shared, renormalised;
    uint32_t groups, dense_layers;
    double embedding_scale, residual_scale, attention_scale, logits; /* 0: none */
    bool divides; /* the key holds the inverse of `logits` */
} family;

static const family families[] = {
    {.arch = "olmo2", .note = "full", .rope = 2, .rotated = D, .norm = QK_ROW, .order = POST},
    {.arch = "olmo2", .note = "windows", .rope = 2, .rotated = D, .norm = QK_ROW, .order = POST, .window = 12, .full_every = 4},
    {.arch = "exaone4", .note = "windows", .rope = 2, .rotated = D, .norm = QK_HEAD, .order = POST, .window = 12, .full_every = 4,
     .full_unrotated = true},
    {.arch = "exaone4", .note = "full", .rope = 2, .rotated = D, .norm = QK_HEAD, .order = POST},
    {.arch = "cohere2", .note = "", .rope = 1, .rotated = D, .order = PARALLEL, .layer_norm = true, .window = 12, .full_every = 4,
     .full_unrotated = true, .logits = 0.25},
    {.arch = "seed_oss", .note = "", .rope = 2, .rotated = D, .biases = true, .ffn_norm = "post_attention_norm.weight"},
    {.arch = "nemotron_h", .note = "", .order = SINGLE},
    {.arch = "phi3", .note = "no factors", .rope = 2, .rotated = 12, .joined = true, .ffn_norm = "ffn_norm.weight"},
    {.arch = "bailingmoe2", .note = "", .rope = 2, .rotated = 8, .norm = QK_HEAD, .joined = true, .ffn_norm = "ffn_norm.weight",
     .experts = true, .sigmoid = true, .biased = true, .shared = true, .renormalised = true, .groups = GROUPS, .dense_layers = 1},
    {.arch = "hunyuan-moe", .note = "", .rope = 2, .rotated = D, .norm = QK_HEAD_AFTER, .ffn_norm = "ffn_norm.weight",
     .experts = true, .shared = true, .renormalised = true},
    {.arch = "granitemoe", .note = "", .rope = 1, .rotated = D, .ffn_norm = "ffn_norm.weight", .experts = true, .renormalised = true,
     .embedding_scale = 3, .residual_scale = 0.4, .attention_scale = 0.2, .logits = 0.5, .divides = true},
};

/* --- the file ------------------------------------------------------------------------------------------------------- */

typedef struct maker {
    const family *f;
    gguf_copy copy;
    uint32_t layer;
    void *data[TENSORS_MAX];
    size_t count;
} maker;

static void add(maker *m, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    uint64_t ne[3] = {ne0, ne1, ne2};
    size_t elements = (size_t)(ne0 * ne1 * ne2);
    float *data = st_alloc_array(elements, sizeof *data), size = ne1 > 1 ? 1 / sqrtf((float)ne0) : 0.2f;
    assert_non_null(data);
    assert_true(m->count < TENSORS_MAX);
    bool norm = strstr(name, "norm") != NULL;
    for (size_t i = 0; i < elements; i++) data[i] = random_float() * size + (norm ? 1 : 0);
    gguf_copy_add(&m->copy, name, ST_TYPE_F32, ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1, ne, data);
    m->data[m->count++] = data;
}

static void of_layer(maker *m, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    char whole[96];
    snprintf(whole, sizeof whole, "blk.%u.%s", m->layer, name);
    add(m, whole, ne0, ne1, ne2);
}

static void add_attention(maker *m)
{
    const family *f = m->f;
    if (f->order != POST) of_layer(m, "attn_norm.weight", E, 1, 1);
    if (f->joined) of_layer(m, "attn_qkv.weight", E, (H + 2 * HKV) * D, 1);
    else {
        of_layer(m, "attn_q.weight", E, H * D, 1);
        of_layer(m, "attn_k.weight", E, HKV * D, 1);
        of_layer(m, "attn_v.weight", E, HKV * D, 1);
    }
    if (f->biases) of_layer(m, "attn_q.bias", H * D, 1, 1), of_layer(m, "attn_k.bias", HKV * D, 1, 1), of_layer(m, "attn_v.bias", HKV * D, 1, 1);
    of_layer(m, "attn_output.weight", H * D, E, 1);
    if (f->norm != QK_NONE) of_layer(m, "attn_q_norm.weight", f->norm == QK_ROW ? H * D : D, 1, 1);
    if (f->norm != QK_NONE) of_layer(m, "attn_k_norm.weight", f->norm == QK_ROW ? HKV * D : D, 1, 1);
    if (f->order == POST) of_layer(m, "post_attention_norm.weight", E, 1, 1), of_layer(m, "post_ffw_norm.weight", E, 1, 1);
    if (f->ffn_norm) of_layer(m, f->ffn_norm, E, 1, 1);
}

static void add_state_space(maker *m)
{
    of_layer(m, "ssm_in.weight", E, INNER + CHANNELS + SH, 1);
    of_layer(m, "ssm_conv1d.weight", TAPS, CHANNELS, 1);
    of_layer(m, "ssm_conv1d.bias", CHANNELS, 1, 1);
    of_layer(m, "ssm_dt.bias", SH, 1, 1);
    of_layer(m, "ssm_a", 1, SH, 1);
    for (int i = 0; i < SH; i++) ((float *)m->data[m->count - 1])[i] = -0.3f * (float)(i + 1);
    of_layer(m, "ssm_d", 1, SH, 1);
    of_layer(m, "ssm_norm.weight", INNER / SG, SG, 1);
    of_layer(m, "ssm_out.weight", INNER, E, 1);
}

/* A layer of one part. */
static void add_single(maker *m)
{
    if (m->layer % 3 == 2) {
        add_attention(m);
        return;
    }
    of_layer(m, "attn_norm.weight", E, 1, 1);
    if (m->layer % 3 == 0) {
        add_state_space(m);
        return;
    }
    of_layer(m, "ffn_up.weight", E, F, 1);
    of_layer(m, "ffn_down.weight", F, E, 1);
}

static void add_ffn(maker *m)
{
    const family *f = m->f;
    if (!f->experts || m->layer < f->dense_layers) {
        bool joined = strcmp(f->arch, "phi3") == 0;
        if (!joined) of_layer(m, "ffn_gate.weight", E, F, 1);
        of_layer(m, "ffn_up.weight", E, joined ? 2 * F : F, 1);
        of_layer(m, "ffn_down.weight", F, E, 1);
        return;
    }
    of_layer(m, "ffn_gate_inp.weight", E, X, 1);
    if (f->biased) of_layer(m, "exp_probs_b.bias", X, 1, 1);
    of_layer(m, "ffn_gate_exps.weight", E, FX, X);
    of_layer(m, "ffn_up_exps.weight", E, FX, X);
    of_layer(m, "ffn_down_exps.weight", FX, E, X);
    if (!f->shared) return;
    of_layer(m, "ffn_gate_shexp.weight", E, 2 * FX, 1);
    of_layer(m, "ffn_up_shexp.weight", E, 2 * FX, 1);
    of_layer(m, "ffn_down_shexp.weight", 2 * FX, E, 1);
}

static void put_u32(maker *m, const char *key, uint32_t value)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", m->f->arch, key);
    gguf_write_key_u32(&m->copy.writer, name, value);
}

static void put_f32(maker *m, const char *key, double value)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", m->f->arch, key);
    if (value != 0) gguf_write_key_f32(&m->copy.writer, name, (float)value);
}

/* A value in the layers of one kind, 0 in the others. */
static void put_some(maker *m, const char *key, uint32_t kind, uint32_t value)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", m->f->arch, key);
    gguf_write_key_array(&m->copy.writer, name, ST_GGUF_U32, LAYERS);
    for (uint32_t i = 0; i < LAYERS; i++) gguf_write_u32(&m->copy.writer, i % 3 == kind ? value : 0);
}

static void put_single(maker *m)
{
    put_some(m, "feed_forward_length", 1, F);
    put_some(m, "attention.head_count_kv", 2, HKV);
    put_u32(m, "ssm.conv_kernel", TAPS);
    put_u32(m, "ssm.state_size", SN);
    put_u32(m, "ssm.group_count", SG);
    put_u32(m, "ssm.inner_size", INNER);
    put_u32(m, "ssm.time_step_rank", SH);
}

static void put_keys(maker *m)
{
    const family *f = m->f;
    gguf_write_key_string(&m->copy.writer, "general.architecture", f->arch);
    put_u32(m, "block_count", LAYERS);
    put_u32(m, "context_length", 512);
    put_u32(m, "embedding_length", E);
    put_u32(m, "attention.head_count", H);
    if (f->order == SINGLE) put_single(m);
    else put_u32(m, "feed_forward_length", F), put_u32(m, "attention.head_count_kv", HKV);
    put_u32(m, "attention.key_length", D);
    put_u32(m, "attention.value_length", D);
    put_u32(m, "rope.dimension_count", f->rope ? f->rotated : D);
    put_f32(m, f->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5);
    if (f->window) put_u32(m, "attention.sliding_window", f->window);
    put_f32(m, "embedding_scale", f->embedding_scale);
    put_f32(m, "residual_scale", f->residual_scale);
    put_f32(m, "attention.scale", f->attention_scale);
    if (f->logits != 0) put_f32(m, "logit_scale", f->divides ? 1 / f->logits : f->logits);
    if (!f->experts) return;
    put_u32(m, "expert_count", X);
    put_u32(m, "expert_used_count", USED);
    put_u32(m, "expert_feed_forward_length", FX);
    put_u32(m, "leading_dense_block_count", f->dense_layers);
    if (f->groups) put_u32(m, "expert_group_count", f->groups), put_u32(m, "expert_group_used_count", GROUPS_USED);
    if (f->biased) {
        put_f32(m, "expert_weights_scale", 2.5);
        char name[96];
        snprintf(name, sizeof name, "%s.expert_weights_norm", f->arch);
        gguf_write_key_bool(&m->copy.writer, name, true);
    }
}

static void make(maker *m, const family *f)
{
    *m = (maker){.f = f};
    random_state = 7 + (uint64_t)(f - families);
    gguf_copy_open(&m->copy, "llama");
    gguf_copy_clear_tensors(&m->copy);
    gguf_copy_drop_keys_of(&m->copy, "llama.");
    gguf_copy_drop_key(&m->copy, "general.architecture");
    put_keys(m);
    add(m, "token_embd.weight", E, VOCAB, 1);
    add(m, "output_norm.weight", E, 1, 1);
    for (m->layer = 0; m->layer < LAYERS; m->layer++) {
        if (f->order == SINGLE) {
            add_single(m);
            continue;
        }
        add_attention(m);
        add_ffn(m);
    }
    gguf_copy_finish(&m->copy, true);
}

static void unmake(maker *m)
{
    gguf_copy_close(&m->copy);
    for (size_t i = 0; i < m->count; i++) st_free(m->data[i]);
}

/* --- the forward pass, plainly -------------------------------------------------------------------------------------- */

typedef struct plain {
    const family *f;
    const st_gguf *gguf;
    uint32_t layer;
    double inputs[LAYERS][TOKENS][CHANNELS], states[LAYERS][SH][SP][SN]; /* of state spaces */
    double x[TOKENS][E], k[LAYERS][TOKENS][HKV * D], v[LAYERS][TOKENS][HKV * D];
} plain;

static const float *weights_of(const plain *p, const char *name)
{
    char whole[96];
    snprintf(whole, sizeof whole, "blk.%u.%s", p->layer, name);
    const st_gguf_tensor *t = st_gguf_tensor_find(p->gguf, whole);
    if (!t) fail_msg("the test made no tensor %s", whole);
    return (const float *)(const void *)t->data;
}

static void multiply(const float *w, const double *in, uint32_t from, uint32_t to, double *out)
{
    for (uint32_t o = 0; o < to; o++) {
        out[o] = 0;
        for (uint32_t i = 0; i < from; i++) out[o] += (double)w[(size_t)o * from + i] * in[i];
    }
}

static void norm_of(const plain *p, const float *w, const double *in, uint32_t count, double *out)
{
    double mean = 0, squares = 0;
    for (uint32_t i = 0; p->f->layer_norm && i < count; i++) mean += in[i] / count;
    for (uint32_t i = 0; i < count; i++) squares += (in[i] - mean) * (in[i] - mean) / count;
    for (uint32_t i = 0; i < count; i++) out[i] = (in[i] - mean) / sqrt(squares + 1e-5f) * (double)w[i];
}

static double silu_of(double x)
{
    return x / (1 + exp(-x));
}

static bool is_full(const family *f, uint32_t layer)
{
    return f->window == 0 || (layer + 1) % f->full_every == 0;
}

static void rotate(const plain *p, uint32_t position, double *head)
{
    const family *f = p->f;
    if (f->rope == 0 || (f->full_unrotated && is_full(f, p->layer))) return;
    uint32_t half = f->rotated / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = position * pow(10000, -2.0 * i / f->rotated);
        double *a = head + (f->rope == 1 ? 2 * i : i), *b = head + (f->rope == 1 ? 2 * i + 1 : i + half);
        double x = *a, y = *b;
        *a = x * cos(angle) - y * sin(angle);
        *b = x * sin(angle) + y * cos(angle);
    }
}

/* Norm and rotation of a projection of `heads` heads. */
static void place(const plain *p, const char *norm_name, uint32_t heads, uint32_t position, double *row)
{
    const float *w = p->f->norm == QK_NONE ? NULL : weights_of(p, norm_name);
    if (p->f->norm == QK_ROW) norm_of(p, w, row, heads * D, row);
    for (uint32_t h = 0; h < heads; h++) {
        if (p->f->norm == QK_HEAD) norm_of(p, w, row + h * D, D, row + h * D);
        rotate(p, position, row + h * D);
        if (p->f->norm == QK_HEAD_AFTER) norm_of(p, w, row + h * D, D, row + h * D);
    }
}

static void attend(plain *p, uint32_t t, double *q, double *out)
{
    const family *f = p->f;
    double scale = f->attention_scale != 0 ? (double)(float)f->attention_scale : 1 / sqrt(D);
    for (uint32_t h = 0; h < H; h++) {
        double scores[TOKENS], sum = 0, *o = out + h * D;
        uint32_t first = !is_full(f, p->layer) && t + 1 > f->window ? t + 1 - f->window : 0, kv = h / (H / HKV);
        memset(o, 0, D * sizeof *o);
        for (uint32_t s = first; s <= t; s++) {
            scores[s] = 0;
            for (uint32_t i = 0; i < D; i++) scores[s] += q[h * D + i] * p->k[p->layer][s][kv * D + i];
            sum += scores[s] = exp(scores[s] * scale);
        }
        for (uint32_t s = first; s <= t; s++)
            for (uint32_t i = 0; i < D; i++) o[i] += scores[s] / sum * p->v[p->layer][s][kv * D + i];
    }
}

static void mix(plain *p, uint32_t t, const double *in, double *out)
{
    double q[H * D], all[(H + 2 * HKV) * D], o[H * D], *k = p->k[p->layer][t], *v = p->v[p->layer][t];
    if (p->f->joined) {
        multiply(weights_of(p, "attn_qkv.weight"), in, E, (H + 2 * HKV) * D, all);
        memcpy(q, all, sizeof q);
        memcpy(k, all + H * D, HKV * D * sizeof *k);
        memcpy(v, all + (H + HKV) * D, HKV * D * sizeof *v);
    } else {
        multiply(weights_of(p, "attn_q.weight"), in, E, H * D, q);
        multiply(weights_of(p, "attn_k.weight"), in, E, HKV * D, k);
        multiply(weights_of(p, "attn_v.weight"), in, E, HKV * D, v);
    }
    if (p->f->biases) {
        for (uint32_t i = 0; i < H * D; i++) q[i] += (double)weights_of(p, "attn_q.bias")[i];
        for (uint32_t i = 0; i < HKV * D; i++) k[i] += (double)weights_of(p, "attn_k.bias")[i];
        for (uint32_t i = 0; i < HKV * D; i++) v[i] += (double)weights_of(p, "attn_v.bias")[i];
    }
    place(p, "attn_q_norm.weight", H, t, q);
    place(p, "attn_k_norm.weight", HKV, t, k);
    attend(p, t, q, o);
    multiply(weights_of(p, "attn_output.weight"), o, H * D, E, out);
}

/* One token: S ← exp(Δ·a)·S + Δ·x⊗B; y = S·C + d·x; then the gate, the norm of each group, and the output matrix. */
static void state_space(plain *p, uint32_t t, const double *in, double *out)
{
    double all[INNER + CHANNELS + SH], c[CHANNELS], y[INNER];
    const float *filter = weights_of(p, "ssm_conv1d.weight"), *norm = weights_of(p, "ssm_norm.weight");
    multiply(weights_of(p, "ssm_in.weight"), in, E, INNER + CHANNELS + SH, all);
    memcpy(p->inputs[p->layer][t], all + INNER, sizeof c);
    for (uint32_t i = 0; i < CHANNELS; i++) {
        c[i] = (double)weights_of(p, "ssm_conv1d.bias")[i];
        for (uint32_t k = 0; k < TAPS; k++)
            if (t + k + 1 >= TAPS) c[i] += (double)filter[i * TAPS + k] * p->inputs[p->layer][t + k + 1 - TAPS][i];
        c[i] = silu_of(c[i]);
    }
    for (uint32_t h = 0; h < SH; h++) {
        double delta = log1p(exp(all[INNER + CHANNELS + h] + (double)weights_of(p, "ssm_dt.bias")[h]));
        const double *b = c + INNER + h / (SH / SG) * SN, *read = b + SG * SN;
        for (uint32_t i = 0; i < SP; i++) {
            double *s = p->states[p->layer][h][i], x = c[h * SP + i], sum = (double)weights_of(p, "ssm_d")[h] * x;
            for (uint32_t n = 0; n < SN; n++) {
                s[n] = exp(delta * (double)weights_of(p, "ssm_a")[h]) * s[n] + delta * x * b[n];
                sum += s[n] * read[n];
            }
            y[h * SP + i] = sum * silu_of(all[h * SP + i]);
        }
    }
    for (uint32_t g = 0; g < SG; g++) norm_of(p, norm + g * (INNER / SG), y + g * (INNER / SG), INNER / SG, y + g * (INNER / SG));
    multiply(weights_of(p, "ssm_out.weight"), y, INNER, E, out);
}

static void squared_relu(const plain *p, const double *in, double *out)
{
    double u[F];
    multiply(weights_of(p, "ffn_up.weight"), in, E, F, u);
    for (uint32_t i = 0; i < F; i++) u[i] = u[i] > 0 ? u[i] * u[i] : 0;
    multiply(weights_of(p, "ffn_down.weight"), u, F, E, out);
}

/* out += weight × down(silu(gate) × up) */
static void add_gated(const float *gate, const float *up, const float *down, uint32_t width, const double *in, double weight, double *out)
{
    double g[2 * F], u[2 * F], o[E];
    multiply(gate, in, E, width, g);
    multiply(up, in, E, width, u);
    for (uint32_t i = 0; i < width; i++) g[i] = silu_of(g[i]) * u[i];
    multiply(down, g, width, E, o);
    for (uint32_t i = 0; i < E; i++) out[i] += weight * o[i];
}

/* Sets what is outside the best groups to −∞. A group's score is the sum of its two best. */
static void drop_groups(const family *f, double *s)
{
    uint32_t size = X / f->groups;
    double score[GROUPS];
    for (uint32_t g = 0; g < f->groups; g++) {
        double best = -INFINITY;
        for (uint32_t a = 0; a < size; a++)
            for (uint32_t b = 0; b < a; b++) best = fmax(best, s[g * size + a] + s[g * size + b]);
        score[g] = best;
    }
    for (uint32_t g = 0; g < f->groups; g++) {
        uint32_t better = 0;
        for (uint32_t o = 0; o < f->groups; o++) better += score[o] > score[g];
        for (uint32_t i = 0; better >= GROUPS_USED && i < size; i++) s[g * size + i] = -INFINITY;
    }
}

static void route(const plain *p, const double *in, bool chosen[X], double weights[X])
{
    const family *f = p->f;
    double s[X], total = 0;
    multiply(weights_of(p, "ffn_gate_inp.weight"), in, E, X, weights);
    for (uint32_t i = 0; i < X; i++) {
        weights[i] = f->sigmoid ? 1 / (1 + exp(-weights[i])) : exp(weights[i]);
        total += weights[i];
    }
    for (uint32_t i = 0; i < X; i++) {
        if (!f->sigmoid) weights[i] /= total;
        s[i] = weights[i] + (f->biased ? (double)weights_of(p, "exp_probs_b.bias")[i] : 0);
    }
    if (f->groups) drop_groups(f, s);
    double sum = 0;
    for (uint32_t i = 0; i < X; i++) {
        uint32_t better = 0;
        for (uint32_t o = 0; o < X; o++) better += s[o] > s[i];
        chosen[i] = better < USED;
        if (chosen[i]) sum += weights[i];
    }
    for (uint32_t i = 0; i < X; i++) weights[i] *= (f->renormalised ? 1 / sum : 1) * (f->biased ? 2.5 : 1);
}

static void feed(const plain *p, const double *in, double *out)
{
    const family *f = p->f;
    memset(out, 0, E * sizeof *out);
    if (!f->experts || p->layer < f->dense_layers) {
        const float *up = weights_of(p, "ffn_up.weight");
        bool joined = strcmp(f->arch, "phi3") == 0;
        add_gated(joined ? up : weights_of(p, "ffn_gate.weight"), joined ? up + F * E : up, weights_of(p, "ffn_down.weight"), F, in, 1, out);
        return;
    }
    bool chosen[X];
    double weights[X];
    route(p, in, chosen, weights);
    for (uint32_t i = 0; i < X; i++)
        if (chosen[i])
            add_gated(weights_of(p, "ffn_gate_exps.weight") + i * E * FX, weights_of(p, "ffn_up_exps.weight") + i * E * FX,
                      weights_of(p, "ffn_down_exps.weight") + i * E * FX, FX, in, weights[i], out);
    if (f->shared)
        add_gated(weights_of(p, "ffn_gate_shexp.weight"), weights_of(p, "ffn_up_shexp.weight"), weights_of(p, "ffn_down_shexp.weight"),
                  2 * FX, in, 1, out);
}

static void add_to(const plain *p, double *x, const double *part)
{
    double scale = p->f->residual_scale != 0 ? (double)(float)p->f->residual_scale : 1;
    for (uint32_t i = 0; i < E; i++) x[i] += scale * part[i];
}

static void run_layer(plain *p, uint32_t t)
{
    const family *f = p->f;
    double h[E], part[E], *x = p->x[t];
    if (f->order == POST) {
        mix(p, t, x, part);
        norm_of(p, weights_of(p, "post_attention_norm.weight"), part, E, part);
        add_to(p, x, part);
        feed(p, x, part);
        norm_of(p, weights_of(p, "post_ffw_norm.weight"), part, E, part);
        add_to(p, x, part);
        return;
    }
    norm_of(p, weights_of(p, "attn_norm.weight"), x, E, h);
    if (f->order == SINGLE) {
        if (p->layer % 3 == 0) state_space(p, t, h, part);
        else if (p->layer % 3 == 1) squared_relu(p, h, part);
        else mix(p, t, h, part);
        add_to(p, x, part);
        return;
    }
    mix(p, t, h, part);
    add_to(p, x, part);
    if (f->order == PRE) norm_of(p, weights_of(p, f->ffn_norm), x, E, h);
    feed(p, h, part);
    add_to(p, x, part);
}

/* The logits of token t; earlier tokens have run. */
static void run_token(plain *p, uint32_t t, int32_t id, double *logits)
{
    const float *table = (const float *)(const void *)st_gguf_tensor_find(p->gguf, "token_embd.weight")->data;
    const float *last = (const float *)(const void *)st_gguf_tensor_find(p->gguf, "output_norm.weight")->data;
    double scale = p->f->embedding_scale != 0 ? p->f->embedding_scale : 1, h[E];
    for (uint32_t i = 0; i < E; i++) p->x[t][i] = scale * (double)table[(size_t)id * E + i];
    for (p->layer = 0; p->layer < LAYERS; p->layer++) run_layer(p, t);
    norm_of(p, last, p->x[t], E, h);
    multiply(table, h, E, VOCAB, logits);
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] *= p->f->logits != 0 ? p->f->logits : 1;
}

/* --- the tests ------------------------------------------------------------------------------------------------------ */

static plain forward;

static void logits_agree(void **state)
{
    const family *f = *state;
    maker m;
    golden like, g;
    golden_run r;
    strata_error problem;
    assert_true(golden_open(&like, "llama"));
    make(&m, f);
    golden_open_bytes(&g, &like, m.copy.writer.out.data, m.copy.writer.out.length);
    bool layer_norms = false;
    for (uint32_t i = 0; i < g.program->op_count; i++) layer_norms |= g.program->ops[i].kind == ST_OP_LAYER_NORM;
    assert_int_equal(layer_norms, f->layer_norm);
    static const char *const levels[] = {"ref", NULL};
    for (int level = 0; level < 2; level++) {
        golden_options options = {.kv_type = ST_TYPE_F32, .batch = 7, .threads = 2, .cpu = levels[level]};
        golden_run_open(&r, &g, &options);
        forward = (plain){.f = f, .gguf = g.model};
        double error = 0, size = 0, logits[VOCAB];
        for (uint32_t first = 0; first < TOKENS; first += 7) {
            uint32_t count = TOKENS - first < 7 ? TOKENS - first : 7;
            golden_feed(&r, first, count, NULL);
            for (uint32_t i = 0; i < count; i++) {
                const float *found;
                run_token(&forward, first + i, g.tokens[first + i], logits);
                if (st_run_logits(r.run, &i, 1, &found, &problem) != STRATA_OK) fail_msg("%s", problem.message);
                for (uint32_t k = 0; k < VOCAB; k++) error += pow((double)found[k] - logits[k], 2), size += logits[k] * logits[k];
            }
        }
        print_message("# error %-12s %-10s %9.2e\n", f->arch, f->note, sqrt(error / size));
        if (!(sqrt(error / size) <= (level ? 2e-4 : 2e-5))) fail_msg("%s: error %g", f->arch, sqrt(error / size));
        golden_run_close(&r);
    }
    golden_close(&g);
    golden_close(&like);
    unmake(&m);
}

enum { FAMILIES = sizeof families / sizeof *families };

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[FAMILIES];
    static char names[FAMILIES][64];
    for (size_t i = 0; i < FAMILIES; i++) {
        snprintf(names[i], sizeof *names, "%s %s", families[i].arch, families[i].note);
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = logits_agree, .initial_state = (void *)(uintptr_t)&families[i]};
    }
    return kit_run("made families", tests, FAMILIES, NULL, NULL, argc, argv);
}
