/* Keys that would change the result and that a row's axes do not read: a file with one of them is of a relative that
 * strata does not support, and is refused instead of run wrongly. */
#include "base/error.h"
#include "model/desc_parts.h"

/* A key that the row's axes do not read, with the values that change nothing. */
typedef struct foreign_key {
    const char *suffix;
    double neutral, also; /* both change nothing */
    bool (*is_read)(const st_arch *arch); /* NULL: no family reads it */
} foreign_key;

static bool reads_scales(const st_arch *arch)
{
    return arch->scale_keys;
}

static bool reads_logit_scale(const st_arch *arch)
{
    return arch->logits != ST_LOGITS_PLAIN;
}

static bool reads_temperature(const st_arch *arch)
{
    return arch->temperature_key || arch->temperature > 0;
}

static bool has_shared_expert(const st_arch *arch)
{
    return arch->shared_expert != ST_SHARED_NONE;
}

static bool is_latent(const st_arch *arch)
{
    return arch->latent;
}

static bool reads_intervals(const st_arch *arch)
{
    return arch->pattern == ST_LAYERS_RECURRENT;
}

static const foreign_key foreign_keys[] = {
    {"embedding_scale", 1, 1, reads_scales},
    {"residual_scale", 1, 1, reads_scales},
    {"attention.scale", 0, 0, reads_scales},
    {"logit_scale", 1, 0, reads_logit_scale},
    {"attention.temperature_scale", 0, 0, reads_temperature},
    {"expert_shared_count", 0, 0, has_shared_expert},
    {"attention.kv_lora_rank", 0, 0, is_latent},
    {"attention.q_lora_rank", 0, 0, is_latent},
    {"full_attention_interval", 1, 0, reads_intervals},
    {"attn_logit_softcapping", 0, 0, NULL},
    {"router_logit_softcapping", 0, 0, NULL},
    {"attention.clamp_kqv", 0, 0, NULL},
    {"attention.max_alibi_bias", 0, 0, NULL},
    {"attention.output_scale", 1, 0, NULL},
    {"attention.indexer.top_k", 0, 0, NULL},
    {"rope.scale_linear", 1, 0, NULL},
    {"rope.scaling.yarn_ext_factor", 1, -1, NULL},
    {"rope.scaling.yarn_attn_factor", 1, 1, NULL},
    {"expert_group_scale", 1, 0, NULL},
    {"experts_per_group", 0, 1, NULL},
    {"moe_every_n_layers", 0, 1, NULL},
    {"moe_latent_size", 0, 0, NULL},
};

static void refuse_foreign(st_keys *keys, const char *suffix, double value)
{
    if (keys->status != STRATA_OK) return;
    keys->status = st_error_set(keys->error, STRATA_UNSUPPORTED,
                                "the file is of a related model that strata does not support",
                                "%s: key %s: expected no such key for this architecture, or a value without effect; "
                                "found %g",
                                st_gguf_path(keys->gguf), st_keys_name(keys, suffix), value);
}

/* A window no shorter than the context hides nothing. */
static void check_window(st_keys *keys, const st_desc *desc)
{
    bool reads = desc->arch->pattern == ST_LAYERS_WINDOWED || desc->arch->pattern == ST_LAYERS_ONE_WINDOW ||
                 desc->arch->pattern == ST_LAYERS_CHUNKED;
    uint32_t window = reads ? 0 : st_keys_u32(keys, "attention.sliding_window", 0, 0, UINT32_MAX - 1);
    if (window > 0 && window < desc->context_max) refuse_foreign(keys, "attention.sliding_window", window);
}

/* A whole number or a float. */
static double number_of(st_keys *keys, const char *suffix)
{
    const st_gguf_key *key = st_gguf_key_find(keys->gguf, st_keys_name(keys, suffix));
    double value = 0;
    uint64_t whole = 0;
    if (key->type == ST_GGUF_F32 || key->type == ST_GGUF_F64) {
        keys->status = st_gguf_get_f64(keys->gguf, keys->name, &value, NULL, keys->error);
        return value;
    }
    keys->status = st_gguf_get_u64(keys->gguf, keys->name, &whole, NULL, keys->error);
    return (double)whole;
}

void st_desc_check_foreign(st_keys *keys, const st_desc *desc)
{
    for (size_t i = 0; i < sizeof foreign_keys / sizeof *foreign_keys; i++) {
        const foreign_key *row = &foreign_keys[i];
        if ((row->is_read && row->is_read(desc->arch)) || !st_keys_has(keys, row->suffix)) continue;
        double value = number_of(keys, row->suffix);
        if (value != row->neutral && value != row->also) refuse_foreign(keys, row->suffix, value);
    }
    if (!st_keys_bool(keys, "attention.causal", true)) refuse_foreign(keys, "attention.causal", 0);
    if (st_keys_bool(keys, "ssm.dt_b_c_rms", false)) refuse_foreign(keys, "ssm.dt_b_c_rms", 1);
    check_window(keys, desc);
}
