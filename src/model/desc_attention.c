/* The attention part of a layer's description: heads, windows, RoPE, and the latent form. */
#include <math.h>

#include "base/error.h"
#include "model/desc_parts.h"

/* --- RoPE --------------------------------------------------------------------------------------------------------- */

/* Factors by length need no other scaling; such files name it or not. */
static st_rope_scaling scaling_kind(st_keys *keys, const st_arch *arch)
{
    static const char *const names[] = {"none", "linear", "yarn"};
    st_str type = ST_STR("none");
    if (keys->status != STRATA_OK) return ST_ROPE_SCALING_NONE;
    keys->status = st_gguf_get_str(keys->gguf, st_keys_name(keys, "rope.scaling.type"), &type, NULL, keys->error);
    if (keys->status != STRATA_OK || (arch->rope_factors_by_length && st_str_is(type, "longrope")))
        return ST_ROPE_SCALING_NONE;
    for (size_t kind = 0; kind < 3; kind++)
        if (st_str_is(type, names[kind])) return (st_rope_scaling)kind;
    keys->status = st_error_set(keys->error, STRATA_UNSUPPORTED, NULL,
                                "%s: key %s: expected none, linear or yarn, found %.*s", st_gguf_path(keys->gguf),
                                keys->name, ST_STR_ARG(type));
    return ST_ROPE_SCALING_NONE;
}

/* Sine and cosine are scaled unless the file states a multiplier for the scores instead. */
static void read_yarn(st_keys *keys, const st_desc *desc, st_attention_desc *attention)
{
    st_rope *rope = &attention->rope;
    rope->beta_fast = st_keys_f32(keys, "rope.scaling.yarn_beta_fast", 32, 0, 1e6);
    rope->beta_slow = st_keys_f32(keys, "rope.scaling.yarn_beta_slow", 1, 0, 1e6);
    rope->unrounded = desc->arch->yarn_unrounded;
    float grown = logf(rope->scaling_factor);
    if (!st_keys_has(keys, "rope.scaling.yarn_log_multiplier")) {
        rope->attention_factor *= 1 + 0.1f * grown;
        return;
    }
    float multiplier = st_keys_f32(keys, "rope.scaling.yarn_log_multiplier", 0, 0, 1e6) * grown + 1;
    if (desc->arch->yarn_scales_attention) attention->scale *= multiplier * multiplier;
}

static void read_rope_scaling(st_keys *keys, const st_desc *desc, bool windowed, st_attention_desc *attention)
{
    st_rope *rope = &attention->rope;
    rope->scaling_factor = 1;
    rope->attention_factor = 1;
    if (desc->arch->rope_scaling_full_only && windowed) return;
    rope->scaling = scaling_kind(keys, desc->arch);
    if (rope->scaling != ST_ROPE_SCALING_LINEAR)
        rope->attention_factor = st_keys_f32(keys, "rope.scaling.attn_factor", 1, 0, 1e6);
    if (rope->scaling == ST_ROPE_SCALING_YARN || desc->arch->rope_factors_by_length)
        rope->original_context = (float)st_keys_u32(keys, "rope.scaling.original_context_length", desc->context_max, 1,
                                                    ST_CONTEXT_MAX);
    if (rope->scaling != ST_ROPE_SCALING_NONE)
        rope->scaling_factor = st_keys_f32(keys, "rope.scaling.factor", 1, 1e-6, 1e6);
    if (rope->scaling == ST_ROPE_SCALING_YARN) read_yarn(keys, desc, attention);
}

static bool layer_has_rope(st_keys *keys, const st_desc *desc, uint32_t layer, const st_attention_desc *attention)
{
    const st_arch *arch = desc->arch;
    bool full = attention->window == 0 && attention->chunk == 0;
    bool among_others = arch->pattern == ST_LAYERS_CHUNKED || st_keys_u32(keys, "attention.sliding_window", 0, 0,
                                                                          ST_CONTEXT_MAX) > 0;
    if (arch->rope == ST_ROPE_NONE || (arch->full_without_rope && full && among_others)) return false;
    if (arch->no_rope_interval && (layer + 1) % arch->no_rope_interval == 0) return false;
    return !arch->rope_if_finetuned || st_keys_bool(keys, "rope.scaling.finetuned", true);
}

static void read_rope(st_keys *keys, const st_desc *desc, uint32_t layer, bool windowed, st_attention_desc *attention)
{
    const st_arch *arch = desc->arch;
    st_rope *rope = &attention->rope;
    if (!layer_has_rope(keys, desc, layer, attention)) return; /* ST_ROPE_NONE */
    bool own_size = windowed && st_keys_has(keys, "attention.key_length_swa");
    const char *dims_key = windowed ? "rope.dimension_count_swa" : "rope.dimension_count";
    uint32_t dims = own_size ? attention->key_length
                             : st_keys_u32(keys, "rope.dimension_count", attention->key_length, 2, ST_HEAD_SIZE_MAX);
    rope->style = arch->rope;
    rope->dims = windowed ? st_keys_u32(keys, dims_key, dims, 2, ST_HEAD_SIZE_MAX) : dims;
    rope->base = st_keys_f32(keys, "rope.freq_base", 10000, 1, 1e12);
    if (windowed) {
        float base = arch->window_rope_base > 0 ? arch->window_rope_base : rope->base;
        rope->base = st_keys_f32(keys, "rope.freq_base_swa", base, 1, 1e12);
    }
    rope->factors = !(arch->rope_factors_full_only && windowed);
    if (rope->dims > attention->key_length || rope->dims % 2)
        st_keys_refuse(keys, dims_key, "an even number no larger than a head", rope->dims);
    read_rope_scaling(keys, desc, windowed, attention);
}

/* --- windows and chunks ------------------------------------------------------------------------------------------- */

static bool layer_is_marked(st_keys *keys, const st_desc *desc, uint32_t layer)
{
    static const char suffix[] = "attention.sliding_window_pattern";
    const st_gguf_key *pattern = st_gguf_key_find(keys->gguf, st_keys_name(keys, suffix));
    uint32_t interval = desc->arch->interval;
    if (!pattern || pattern->type != ST_GGUF_ARRAY) {
        interval = st_keys_u32(keys, suffix, interval, 0, ST_LAYERS_MAX);
        return interval > 0 && (layer + 1) % interval != 0;
    }
    keys->status = st_gguf_get_array(keys->gguf, keys->name, ST_GGUF_BOOL, &pattern, keys->error);
    if (keys->status != STRATA_OK) return false;
    if (pattern->count <= layer) {
        st_keys_refuse(keys, suffix, "a value for each layer", (double)pattern->count);
        return false;
    }
    return st_gguf_item_i64(pattern, layer) != 0;
}

static bool layer_is_windowed(st_keys *keys, const st_desc *desc, uint32_t layer)
{
    const st_arch *arch = desc->arch;
    if (keys->status != STRATA_OK) return false;
    bool may_lack = arch->windows_optional || arch->pattern == ST_LAYERS_ONE_WINDOW;
    if (may_lack && st_keys_u32(keys, "attention.sliding_window", 0, 0, ST_CONTEXT_MAX) == 0) return false;
    if (arch->pattern == ST_LAYERS_ONE_WINDOW) return true;
    return arch->pattern == ST_LAYERS_WINDOWED && layer_is_marked(keys, desc, layer);
}

static void read_window(st_keys *keys, st_attention_desc *out)
{
    out->window = st_keys_u32(keys, "attention.sliding_window", ST_KEY_REQUIRED, 1, ST_CONTEXT_MAX);
    out->key_length = st_keys_u32(keys, "attention.key_length_swa", out->key_length, 1, ST_HEAD_SIZE_MAX);
    out->value_length = st_keys_u32(keys, "attention.value_length_swa", out->value_length, 1, ST_HEAD_SIZE_MAX);
}

/* --- scales ------------------------------------------------------------------------------------------------------- */

static float read_scale(st_keys *keys, const st_desc *desc, const st_attention_desc *a)
{
    const st_arch *arch = desc->arch;
    if (arch->unit_scale) return 1.0f;
    float size = (float)a->key_length;
    if (arch->wide_scale_layers && desc->layer_count == arch->wide_scale_layers)
        size = (float)desc->embedding / (float)a->heads;
    float scale = 1.0f / sqrtf(size);
    return arch->scale_keys ? st_keys_f32(keys, "attention.scale", scale, 1e-9, 1e9) : scale;
}

static void read_temperature(st_keys *keys, const st_desc *desc, st_attention_desc *out)
{
    const st_arch *arch = desc->arch;
    if (arch->pattern == ST_LAYERS_CHUNKED && out->chunk == 0) {
        out->temperature = st_keys_f32(keys, "attention.temperature_scale", arch->temperature, 0, 1e3);
        out->temperature_chunk = st_keys_u32(keys, "attention.temperature_length", arch->chunk, 1, ST_CONTEXT_MAX);
    }
    if (!arch->temperature_key) return;
    out->temperature = st_keys_f32(keys, "attention.temperature_scale", 0, 0, 1e3);
    out->temperature_from_zero = true;
    if (out->temperature > 0)
        out->temperature_chunk =
            st_keys_u32(keys, "rope.scaling.original_context_length", ST_KEY_REQUIRED, 1, ST_CONTEXT_MAX);
}

/* --- the layer ---------------------------------------------------------------------------------------------------- */

static void read_heads(st_keys *keys, const st_desc *desc, uint32_t layer, st_attention_desc *out)
{
    uint32_t layers = desc->layer_count;
    out->heads = st_keys_layer_u32(keys, "attention.head_count", layer, layers, ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->kv_heads = st_keys_layer_u32(keys, "attention.head_count_kv", layer, layers, out->heads, 1, ST_HEADS_MAX);
    if (out->heads % out->kv_heads)
        st_keys_refuse(keys, "attention.head_count_kv", "a divisor of the number of heads", out->kv_heads);
    out->key_length = st_keys_u32(keys, "attention.key_length", desc->embedding / out->heads, 1, ST_HEAD_SIZE_MAX);
    out->value_length = st_keys_u32(keys, "attention.value_length", out->key_length, 1, ST_HEAD_SIZE_MAX);
}

/* The cache has one head, whose value is the first part of its key. Files that keep all heads apart are older. */
static void read_latent(st_keys *keys, const st_desc *desc, uint32_t layer, st_attention_desc *out)
{
    uint32_t layers = desc->layer_count;
    uint32_t latent = st_keys_u32(keys, "attention.kv_lora_rank", ST_KEY_REQUIRED, 1, ST_HEAD_SIZE_MAX);
    uint32_t rotated = st_keys_u32(keys, "rope.dimension_count", ST_KEY_REQUIRED, 2, ST_HEAD_SIZE_MAX);
    out->heads = st_keys_layer_u32(keys, "attention.head_count", layer, layers, ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->kv_heads = st_keys_layer_u32(keys, "attention.head_count_kv", layer, layers, 1, 1, 1);
    out->latent_query =
        st_keys_u32(keys, "attention.key_length_mla", ST_KEY_REQUIRED, rotated + 1, ST_HEAD_SIZE_MAX);
    out->latent_value = st_keys_u32(keys, "attention.value_length_mla", ST_KEY_REQUIRED, 1, ST_HEAD_SIZE_MAX);
    out->query_rank = st_keys_u32(keys, "attention.q_lora_rank", 0, 0, ST_WIDTH_MAX);
    uint32_t row = latent + rotated;
    out->key_length = st_keys_u32(keys, "attention.key_length", row, row, row);
    out->value_length = st_keys_u32(keys, "attention.value_length", latent, latent, latent);
    out->scale = 1.0f / sqrtf((float)out->latent_query);
    out->kv_layer = layer;
    read_rope(keys, desc, layer, false, out);
}

static void choose_qk_norm(st_keys *keys, const st_arch *arch, st_attention_desc *out)
{
    out->qk_norm = arch->qk_norm;
    if (arch->qk_norm == ST_QK_NORM_AFTER_ROPE && out->rope.style == ST_ROPE_NONE) out->qk_norm = ST_QK_NORM_NONE;
    uint32_t experts = st_keys_u32(keys, "expert_count", 0, 0, ST_EXPERTS_MAX);
    if (experts && experts == arch->qk_norm_not_with_experts) out->qk_norm = ST_QK_NORM_NONE;
}

void st_desc_read_attention(st_keys *keys, const st_desc *desc, uint32_t layer, st_attention_desc *out)
{
    const st_arch *arch = desc->arch;
    if (arch->latent) {
        read_latent(keys, desc, layer, out);
        return;
    }
    bool windowed = layer_is_windowed(keys, desc, layer);
    read_heads(keys, desc, layer, out);
    if (windowed) read_window(keys, out);
    /* The gate is projected with the queries and has their length; it multiplies the attention output. */
    if (arch->gated_attention && out->value_length != out->key_length)
        st_keys_refuse(keys, "attention.value_length", "the same as attention.key_length", out->value_length);
    if (arch->pattern == ST_LAYERS_CHUNKED) out->chunk = (layer + 1) % arch->interval == 0 ? 0 : arch->chunk;
    read_temperature(keys, desc, out);
    out->scale = read_scale(keys, desc, out);
    out->kv_layer = layer;
    read_rope(keys, desc, layer, windowed, out);
    choose_qk_norm(keys, arch, out);
}
