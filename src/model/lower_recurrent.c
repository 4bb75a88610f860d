/* Lowers recurrent layers. */
#include "model/emit.h"

/* In place, with filters of up to three adjacent ranges of channels; ST_ROLE_COUNT: none. */
static st_op *convolve(st_builder *b, uint32_t width, int32_t value, const st_role filters[3])
{
    st_op *op = st_emit(b, ST_OP_CONV, value, ST_NO_VALUE, value);
    for (int i = 0; i < 3; i++)
        if (filters[i] != ST_ROLE_COUNT) op->weight[i] = st_emit_weight(b, filters[i]);
    op->p.conv.width = width;
    return op;
}

static int32_t delta_rule(st_builder *b, const st_deltanet_desc *d, int32_t qkv, int32_t alpha, int32_t beta)
{
    int32_t out = st_emit_value(b, "delta", (uint64_t)d->value_heads * d->state_size, ST_ROWS_ALL);
    st_op *op = st_emit(b, ST_OP_DELTANET, qkv, alpha, out);
    op->in[2] = beta;
    op->weight[0] = st_emit_weight(b, ST_ROLE_SSM_DT_BIAS);
    op->weight[1] = st_emit_weight(b, ST_ROLE_SSM_A);
    op->p.deltanet.key_heads = d->key_heads;
    op->p.deltanet.value_heads = d->value_heads;
    op->p.deltanet.size = d->state_size;
    op->p.deltanet.grouped = d->grouped;
    op->p.deltanet.channels = d->channels;
    st_emit_norm_in_place(b, st_emit_weight(b, ST_ROLE_SSM_NORM), d->state_size, out);
    return out;
}

typedef struct alpha_beta {
    int32_t alpha, beta;
} alpha_beta;

/* One matrix may hold beta ‖ alpha of the value heads of each key head. */
static alpha_beta project_alpha_beta(st_builder *b, const st_deltanet_desc *d, int32_t h)
{
    if (st_emit_weight(b, ST_ROLE_SSM_BA) == ST_NO_WEIGHT)
        return (alpha_beta){.alpha = st_emit_project(b, "alpha", ST_ROLE_SSM_ALPHA, ST_ROLE_COUNT, h),
                            .beta = st_emit_project(b, "beta", ST_ROLE_SSM_BETA, ST_ROLE_COUNT, h)};
    uint32_t share = d->value_heads / d->key_heads;
    int32_t both = st_emit_project(b, "beta_alpha", ST_ROLE_SSM_BA, ST_ROLE_COUNT, h);
    return (alpha_beta){.alpha = st_emit_slice(b, "alpha", both, d->key_heads, 2 * share, share, share),
                        .beta = st_emit_slice(b, "beta", both, d->key_heads, 2 * share, 0, share)};
}

static int32_t delta_heads(st_builder *b, const st_deltanet_desc *d, int32_t h)
{
    static const st_role filters[3] = {ST_ROLE_SSM_CONV1D, ST_ROLE_COUNT, ST_ROLE_COUNT};
    int32_t qkv = st_emit_project(b, "qkv", ST_ROLE_ATTN_QKV, ST_ROLE_COUNT, h);
    int32_t z = st_emit_project(b, "z", ST_ROLE_ATTN_GATE, ST_ROLE_COUNT, h);
    alpha_beta ab = project_alpha_beta(b, d, h);
    convolve(b, d->conv_width, qkv, filters);
    int32_t out = delta_rule(b, d, qkv, ab.alpha, ab.beta);
    st_emit(b, ST_OP_SILU_GATE, out, z, out);
    return st_emit_project(b, "delta_out", ST_ROLE_SSM_OUT, ST_ROLE_COUNT, out);
}

static int32_t concat(st_builder *b, const char *name, int32_t first, int32_t second)
{
    int32_t out = st_emit_value(b, name, (uint64_t)st_emit_width(b, first) + st_emit_width(b, second), ST_ROWS_ALL);
    st_emit(b, ST_OP_CONCAT, first, second, out);
    return out;
}

/* Two small matrices, one after the other. */
static int32_t project_twice(st_builder *b, const char *name, st_role first, st_role second, int32_t h)
{
    return st_emit_project(b, name, second, ST_ROLE_COUNT, st_emit_project(b, name, first, ST_ROLE_COUNT, h));
}

static int32_t delta_channels(st_builder *b, const st_deltanet_desc *d, int32_t h)
{
    static const st_role filters[3] = {ST_ROLE_SSM_CONV1D_Q, ST_ROLE_SSM_CONV1D_K, ST_ROLE_SSM_CONV1D_V};
    int32_t q = st_emit_project(b, "q", ST_ROLE_ATTN_Q, ST_ROLE_COUNT, h);
    int32_t k = st_emit_project(b, "k", ST_ROLE_ATTN_K, ST_ROLE_COUNT, h);
    int32_t v = st_emit_project(b, "v", ST_ROLE_ATTN_V, ST_ROLE_COUNT, h);
    int32_t beta = st_emit_project(b, "beta", ST_ROLE_SSM_BETA, ST_ROLE_COUNT, h);
    int32_t alpha = project_twice(b, "alpha", ST_ROLE_SSM_F_A, ST_ROLE_SSM_F_B, h);
    int32_t gate = project_twice(b, "gate", ST_ROLE_SSM_G_A, ST_ROLE_SSM_G_B, h);
    int32_t qkv = concat(b, "qkv", concat(b, "qk", q, k), v);
    convolve(b, d->conv_width, qkv, filters);
    int32_t out = delta_rule(b, d, qkv, alpha, beta);
    st_emit(b, ST_OP_SIGMOID_GATE, out, gate, out);
    return st_emit_project(b, "delta_out", ST_ROLE_ATTN_OUTPUT, ST_ROLE_COUNT, out);
}

static int32_t ssm(st_builder *b, const st_ssm_desc *s, int32_t h)
{
    static const st_role filters[3] = {ST_ROLE_SSM_CONV1D, ST_ROLE_COUNT, ST_ROLE_COUNT};
    uint32_t inner = s->heads * s->head_size, channels = inner + 2 * s->groups * s->state_size;
    uint32_t all = inner + channels + s->heads;
    int32_t in = st_emit_project(b, "ssm_in", ST_ROLE_SSM_IN, ST_ROLE_COUNT, h);
    int32_t z = st_emit_slice(b, "z", in, 1, all, 0, inner);
    int32_t xbc = st_emit_slice(b, "xbc", in, 1, all, inner, channels);
    int32_t dt = st_emit_slice(b, "dt", in, 1, all, inner + channels, s->heads);
    convolve(b, s->conv_width, xbc, filters)->weight[3] = st_emit_weight(b, ST_ROLE_SSM_CONV1D_BIAS);
    int32_t out = st_emit_value(b, "ssm", inner, ST_ROWS_ALL);
    st_op *op = st_emit(b, ST_OP_SSM, xbc, dt, out);
    op->weight[0] = st_emit_weight(b, ST_ROLE_SSM_DT_BIAS);
    op->weight[1] = st_emit_weight(b, ST_ROLE_SSM_A);
    op->weight[2] = st_emit_weight(b, ST_ROLE_SSM_D);
    op->p.ssm.heads = s->heads;
    op->p.ssm.head_size = s->head_size;
    op->p.ssm.state_size = s->state_size;
    op->p.ssm.groups = s->groups;
    st_emit(b, ST_OP_SILU_GATE, out, z, out);
    st_emit_norm_in_place(b, st_emit_weight(b, ST_ROLE_SSM_NORM), inner / s->groups, out);
    return st_emit_project(b, "ssm_out", ST_ROLE_SSM_OUT, ST_ROLE_COUNT, out);
}

/* C × the convolution of B × x. */
static int32_t short_conv(st_builder *b, uint32_t width, int32_t h)
{
    static const st_role filters[3] = {ST_ROLE_SHORTCONV_CONV, ST_ROLE_COUNT, ST_ROLE_COUNT};
    uint32_t e = b->desc->embedding;
    int32_t in = st_emit_project(b, "conv_in", ST_ROLE_SHORTCONV_IN, ST_ROLE_COUNT, h);
    int32_t u = st_emit_slice(b, "conv_b", in, 1, 3 * e, 0, e);
    int32_t c = st_emit_slice(b, "conv_c", in, 1, 3 * e, e, e);
    int32_t x = st_emit_slice(b, "conv_x", in, 1, 3 * e, 2 * e, e);
    st_emit(b, ST_OP_MUL, u, x, u);
    convolve(b, width, u, filters)->p.conv.linear = true;
    st_emit(b, ST_OP_MUL, u, c, u);
    return st_emit_project(b, "conv_out", ST_ROLE_SHORTCONV_OUT, ST_ROLE_COUNT, u);
}

int32_t st_lower_recurrent(st_builder *b, const st_layer_desc *layer, int32_t h)
{
    if (layer->kind == ST_LAYER_SSM) return ssm(b, &layer->ssm, h);
    if (layer->kind == ST_LAYER_SHORT_CONV) return short_conv(b, layer->short_conv_width, h);
    return layer->deltanet.channels ? delta_channels(b, &layer->deltanet, h) : delta_heads(b, &layer->deltanet, h);
}
