/* The recurrent part of a layer's description. */
#include "model/desc_parts.h"

enum { CONV_WIDTH_MAX = 64 };

static void read_deltanet(st_keys *keys, const st_arch *arch, st_deltanet_desc *out)
{
    out->grouped = arch->recurrent == ST_RECURRENT_DELTA_GROUPED;
    out->key_heads = st_keys_u32(keys, "ssm.group_count", ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->value_heads = st_keys_u32(keys, "ssm.time_step_rank", ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->state_size = st_keys_u32(keys, "ssm.state_size", ST_KEY_REQUIRED, 1, ST_HEAD_SIZE_MAX);
    out->conv_width = st_keys_u32(keys, "ssm.conv_kernel", ST_KEY_REQUIRED, 1, CONV_WIDTH_MAX);
    if (out->value_heads % out->key_heads)
        st_keys_refuse(keys, "ssm.time_step_rank", "a multiple of ssm.group_count", out->value_heads);
    uint32_t inner = out->value_heads * out->state_size; /* below 2^28 by the bounds above */
    uint32_t stated = st_keys_u32(keys, "ssm.inner_size", inner, 0, UINT32_MAX - 1);
    if (stated != inner) st_keys_refuse(keys, "ssm.inner_size", "time_step_rank × state_size", stated);
}

/* Every head has its own keys. */
static void read_delta_channels(st_keys *keys, st_deltanet_desc *out)
{
    out->key_heads = st_keys_u32(keys, "attention.head_count", ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->value_heads = out->key_heads;
    out->state_size = st_keys_u32(keys, "kda.head_dim", ST_KEY_REQUIRED, 1, ST_HEAD_SIZE_MAX);
    out->conv_width = st_keys_u32(keys, "ssm.conv_kernel", ST_KEY_REQUIRED, 1, CONV_WIDTH_MAX);
    out->channels = true;
}

static void read_ssm(st_keys *keys, st_ssm_desc *out)
{
    uint32_t inner = st_keys_u32(keys, "ssm.inner_size", ST_KEY_REQUIRED, 1, ST_WIDTH_MAX);
    out->heads = st_keys_u32(keys, "ssm.time_step_rank", ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->state_size = st_keys_u32(keys, "ssm.state_size", ST_KEY_REQUIRED, 1, ST_HEAD_SIZE_MAX);
    out->groups = st_keys_u32(keys, "ssm.group_count", 1, 1, ST_HEADS_MAX);
    out->conv_width = st_keys_u32(keys, "ssm.conv_kernel", ST_KEY_REQUIRED, 1, CONV_WIDTH_MAX);
    out->head_size = inner / out->heads;
    if (inner % out->heads) st_keys_refuse(keys, "ssm.inner_size", "a multiple of ssm.time_step_rank", inner);
    if (out->heads % out->groups)
        st_keys_refuse(keys, "ssm.group_count", "a divisor of ssm.time_step_rank", out->groups);
}

void st_desc_read_recurrent(st_keys *keys, const st_desc *desc, st_layer_desc *out)
{
    if (out->kind == ST_LAYER_SSM) read_ssm(keys, &out->ssm);
    if (out->kind == ST_LAYER_SHORT_CONV)
        out->short_conv_width = st_keys_u32(keys, "shortconv.l_cache", ST_KEY_REQUIRED, 1, CONV_WIDTH_MAX);
    if (out->kind != ST_LAYER_DELTANET) return;
    if (desc->arch->recurrent == ST_RECURRENT_DELTA_CHANNELS) read_delta_channels(keys, &out->deltanet);
    else read_deltanet(keys, desc->arch, &out->deltanet);
}

/* The bounds above keep every product below 2^64. */
st_state_shape st_layer_state(const st_desc *desc, uint32_t layer)
{
    const st_layer_desc *l = &desc->layers[layer];
    const st_deltanet_desc *d = &l->deltanet;
    const st_ssm_desc *s = &l->ssm;
    uint64_t size = d->state_size, inner = (uint64_t)s->heads * s->head_size;
    switch (l->kind) {
    case ST_LAYER_DELTANET:
        return (st_state_shape){size * (2 * (uint64_t)d->key_heads + d->value_heads), d->conv_width - 1u,
                                size * size * d->value_heads};
    case ST_LAYER_SSM:
        return (st_state_shape){inner + 2 * (uint64_t)s->groups * s->state_size, s->conv_width - 1u,
                                inner * s->state_size};
    case ST_LAYER_SHORT_CONV: return (st_state_shape){desc->embedding, l->short_conv_width - 1u, 0};
    default: return (st_state_shape){0};
    }
}

const char *st_layer_kind_name(st_layer_kind kind)
{
    static const char *const names[ST_LAYER_KINDS] = {
        [ST_LAYER_ATTENTION] = "attention",   [ST_LAYER_DELTANET] = "deltanet", [ST_LAYER_SSM] = "ssm",
        [ST_LAYER_SHORT_CONV] = "short_conv", [ST_LAYER_FFN] = "ffn",
    };
    return names[kind];
}
