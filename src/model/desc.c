#include "model/desc.h"

#include <math.h>

#include "base/error.h"
#include "model/desc_parts.h"

/* --- RoPE --------------------------------------------------------------------------------------------------------- */

static void read_rope_scaling(st_keys *keys, uint32_t context, st_rope *rope)
{
    static const char *const names[] = {"none", "linear", "yarn"};
    if (keys->status != STRATA_OK) return;
    st_str type = ST_STR("none");
    keys->status = st_gguf_get_str(keys->gguf, st_keys_name(keys, "rope.scaling.type"), &type, NULL, keys->error);
    if (keys->status != STRATA_OK) return;
    size_t kind = 0;
    while (kind < 3 && !st_str_is(type, names[kind])) kind++;
    if (kind == 3) {
        keys->status = st_error_set(keys->error, STRATA_UNSUPPORTED, NULL,
                                    "%s: key %s: expected none, linear or yarn, found %.*s",
                                    st_gguf_path(keys->gguf), keys->name, ST_STR_ARG(type));
        return;
    }
    rope->scaling = (st_rope_scaling)kind;
    rope->scaling_factor = 1;
    rope->attention_factor = 1;
    if (kind == ST_ROPE_SCALING_NONE) return;
    rope->scaling_factor = st_keys_f32(keys, "rope.scaling.factor", 1, 1e-6, 1e6);
    if (kind == ST_ROPE_SCALING_LINEAR) return;
    rope->original_context =
        (float)st_keys_u32(keys, "rope.scaling.original_context_length", context, 1, ST_CONTEXT_MAX);
    rope->beta_fast = st_keys_f32(keys, "rope.scaling.yarn_beta_fast", 32, 0, 1e6);
    rope->beta_slow = st_keys_f32(keys, "rope.scaling.yarn_beta_slow", 1, 0, 1e6);
    float factor = st_keys_f32(keys, "rope.scaling.attn_factor", 1, 0, 1e6);
    rope->attention_factor = factor * (1 + 0.1f * logf(rope->scaling_factor));
}

static void read_rope(st_keys *keys, const st_desc *desc, bool windowed, st_attention_desc *attention)
{
    const st_arch *arch = desc->arch;
    bool full = attention->window == 0 && attention->chunk == 0;
    if (arch->full_without_rope && full) return; /* ST_ROPE_NONE */
    st_rope *rope = &attention->rope;
    const char *dims_key = windowed ? "rope.dimension_count_swa" : "rope.dimension_count";
    rope->style = arch->rope;
    rope->dims = st_keys_u32(keys, dims_key, attention->key_length, 2, ST_HEAD_SIZE_MAX);
    rope->base = st_keys_f32(keys, "rope.freq_base", 10000, 1, 1e12);
    if (windowed) rope->base = st_keys_f32(keys, "rope.freq_base_swa", rope->base, 1, 1e12);
    rope->factors = !(arch->rope_factors_full_only && windowed);
    if (rope->dims > attention->key_length || rope->dims % 2)
        st_keys_refuse(keys, dims_key, "an even number no larger than a head", rope->dims);
    read_rope_scaling(keys, desc->context_max, rope);
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

static bool layer_is_windowed(st_keys *keys, const st_desc *desc, uint32_t layer)
{
    if (desc->arch->pattern != ST_LAYERS_WINDOWED || keys->status != STRATA_OK) return false;
    const st_gguf_key *pattern;
    keys->status = st_gguf_get_array(keys->gguf, st_keys_name(keys, "attention.sliding_window_pattern"),
                                       ST_GGUF_BOOL, &pattern, keys->error);
    if (keys->status != STRATA_OK || !pattern) return false;
    if (pattern->count <= layer) {
        st_keys_refuse(keys, "attention.sliding_window_pattern", "a value for each layer", (double)pattern->count);
        return false;
    }
    return st_gguf_item_i64(pattern, layer) != 0;
}

static void read_attention(st_keys *keys, const st_desc *desc, uint32_t layer, st_attention_desc *out)
{
    const st_arch *arch = desc->arch;
    uint32_t layers = desc->layer_count;
    bool windowed = layer_is_windowed(keys, desc, layer);
    out->heads = st_keys_layer_u32(keys, "attention.head_count", layer, layers, ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->kv_heads = st_keys_layer_u32(keys, "attention.head_count_kv", layer, layers, out->heads, 1, ST_HEADS_MAX);
    if (out->heads % out->kv_heads)
        st_keys_refuse(keys, "attention.head_count_kv", "a divisor of the number of heads", out->kv_heads);
    out->key_length = st_keys_u32(keys, "attention.key_length", desc->embedding / out->heads, 1, ST_HEAD_SIZE_MAX);
    out->value_length = st_keys_u32(keys, "attention.value_length", out->key_length, 1, ST_HEAD_SIZE_MAX);
    if (windowed) {
        out->window = st_keys_u32(keys, "attention.sliding_window", ST_KEY_REQUIRED, 1, ST_CONTEXT_MAX);
        out->key_length = st_keys_u32(keys, "attention.key_length_swa", out->key_length, 1, ST_HEAD_SIZE_MAX);
        out->value_length = st_keys_u32(keys, "attention.value_length_swa", out->value_length, 1, ST_HEAD_SIZE_MAX);
    }
    /* The gate is projected with the queries and has their length; it multiplies the attention output. */
    if (arch->gated_attention && out->value_length != out->key_length)
        st_keys_refuse(keys, "attention.value_length", "the same as attention.key_length", out->value_length);
    if (arch->pattern == ST_LAYERS_CHUNKED) {
        bool full = (layer + 1) % arch->interval == 0;
        out->chunk = full ? 0 : arch->chunk;
        out->temperature = full ? arch->temperature : 0;
        out->temperature_chunk = arch->chunk;
    }
    out->scale = arch->unit_scale ? 1.0f : 1.0f / sqrtf((float)out->key_length);
    out->kv_layer = layer;
    read_rope(keys, desc, windowed, out);
    out->qk_norm = arch->qk_norm;
    if (arch->qk_norm == ST_QK_NORM_AFTER_ROPE && out->rope.style == ST_ROPE_NONE) out->qk_norm = ST_QK_NORM_NONE;
    uint32_t experts = st_keys_u32(keys, "expert_count", 0, 0, ST_EXPERTS_MAX);
    if (experts && experts == arch->qk_norm_not_with_experts) out->qk_norm = ST_QK_NORM_NONE;
}

static void read_deltanet(st_keys *keys, st_deltanet_desc *out)
{
    out->key_heads = st_keys_u32(keys, "ssm.group_count", ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->value_heads = st_keys_u32(keys, "ssm.time_step_rank", ST_KEY_REQUIRED, 1, ST_HEADS_MAX);
    out->state_size = st_keys_u32(keys, "ssm.state_size", ST_KEY_REQUIRED, 1, ST_HEAD_SIZE_MAX);
    out->conv_width = st_keys_u32(keys, "ssm.conv_kernel", ST_KEY_REQUIRED, 1, 64);
    if (out->value_heads % out->key_heads)
        st_keys_refuse(keys, "ssm.time_step_rank", "a multiple of ssm.group_count", out->value_heads);
    uint32_t inner = out->value_heads * out->state_size; /* below 2^28 by the bounds above */
    uint32_t stated = st_keys_u32(keys, "ssm.inner_size", inner, 0, UINT32_MAX - 1);
    if (stated != inner) st_keys_refuse(keys, "ssm.inner_size", "time_step_rank × state_size", stated);
}

static void read_layer(st_keys *keys, const st_desc *desc, uint32_t layer, st_layer_desc *out)
{
    bool nextn = layer >= desc->layer_count;
    if (desc->arch->pattern == ST_LAYERS_RECURRENT && !nextn) {
        uint32_t interval = st_keys_u32(keys, "full_attention_interval", 4, 1, ST_LAYERS_MAX);
        if ((layer + 1) % interval) out->kind = ST_LAYER_DELTANET;
    }
    if (out->kind == ST_LAYER_DELTANET) read_deltanet(keys, &out->deltanet);
    else read_attention(keys, desc, layer, &out->attention);
    st_desc_read_ffn(keys, desc, layer, &out->ffn);
}

/* The last n layers read K and V of the last earlier layer of their own kind. */
static void share_kv(st_keys *keys, const st_desc *desc, st_layer_desc *layers)
{
    uint32_t shared = st_keys_u32(keys, "attention.shared_kv_layers", 0, 0, desc->layer_count - 1);
    uint32_t own = desc->layer_count - shared;
    for (uint32_t i = own; i < desc->layer_count && keys->status == STRATA_OK; i++) {
        uint32_t source = own;
        for (uint32_t j = 0; j < own; j++)
            if (layers[j].kind == layers[i].kind && layers[j].attention.window == layers[i].attention.window &&
                layers[j].attention.chunk == layers[i].attention.chunk)
                source = j;
        bool same = source < own && layers[source].attention.kv_heads == layers[i].attention.kv_heads &&
                    layers[source].attention.key_length == layers[i].attention.key_length &&
                    layers[source].attention.value_length == layers[i].attention.value_length;
        if (!same)
            st_keys_refuse(keys, "attention.shared_kv_layers", "an earlier layer of the same kind for each", shared);
        else layers[i].attention.kv_layer = source;
    }
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static uint32_t read_vocab(st_keys *keys)
{
    if (keys->status != STRATA_OK) return 1;
    const st_gguf_key *tokens;
    keys->status = st_gguf_get_array(keys->gguf, "tokenizer.ggml.tokens", ST_GGUF_STRING, &tokens, keys->error);
    if (keys->status != STRATA_OK) return 1;
    if (tokens) return st_keys_check(keys, "vocab_size", tokens->count, 1, ST_VOCAB_MAX);
    return st_keys_u32(keys, "vocab_size", ST_KEY_REQUIRED, 1, ST_VOCAB_MAX);
}

static void read_model(st_keys *keys, st_desc *desc)
{
    uint32_t blocks = st_keys_u32(keys, "block_count", ST_KEY_REQUIRED, 1, ST_LAYERS_MAX);
    desc->nextn_count = st_keys_u32(keys, "nextn_predict_layers", 0, 0, 1);
    if (desc->nextn_count >= blocks) st_keys_refuse(keys, "nextn_predict_layers", "fewer than block_count", blocks);
    desc->layer_count = blocks > desc->nextn_count ? blocks - desc->nextn_count : 1;
    desc->block_count = blocks;
    if (desc->arch->nextn_optional && !st_keys_tensor(keys, desc->layer_count, "nextn.eh_proj.weight"))
        desc->nextn_count = 0;
    desc->embedding = st_keys_u32(keys, "embedding_length", ST_KEY_REQUIRED, 1, ST_WIDTH_MAX);
    desc->vocab = read_vocab(keys);
    desc->context_max = st_keys_u32(keys, "context_length", ST_KEY_REQUIRED, 1, ST_CONTEXT_MAX);
    uint32_t per_layer_max = ST_PER_LAYER_ALL_MAX / desc->layer_count; /* those of all layers make one row */
    desc->per_layer_width = st_keys_u32(keys, "embedding_length_per_layer_input", 0, 0, per_layer_max);
    desc->norm_epsilon = st_keys_f32(keys, "attention.layer_norm_rms_epsilon", 1e-5, 0, 1);
    desc->logit_softcap = st_keys_f32(keys, "final_logit_softcapping", 0, 0, 1e6);
    desc->embedding_scale = desc->arch->scaled_embedding ? sqrtf((float)desc->embedding) : 1.0f;
}

static strata_status refuse_architecture(const st_gguf *gguf, st_str name, strata_error *error)
{
    char known[512] = "";
    for (size_t i = 0; i < st_arch_count(); i++) st_error_list(known, sizeof known, st_arch_name_at(i));
    return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s: architecture %.*s: expected one of %s",
                        st_gguf_path(gguf), ST_STR_ARG(name), known);
}

strata_status st_desc_build(const st_gguf *gguf, st_arena *arena, const st_desc **out, strata_error *error)
{
    st_str name = ST_STR("(none)");
    strata_status status = st_gguf_get_str(gguf, "general.architecture", &name, NULL, error);
    if (status != STRATA_OK) return status;
    const st_arch *arch = st_arch_find(name);
    if (!arch) return refuse_architecture(gguf, name, error);
    if (st_gguf_tensor_count(gguf) == 0)
        return st_error_set(error, STRATA_UNSUPPORTED, "use a file with the weights; strata info shows this one",
                            "%s: expected a model with weights, found a file without tensors (a vocabulary or "
                            "metadata)",
                            st_gguf_path(gguf));

    st_keys keys = {.gguf = gguf, .prefix = name, .error = error};
    st_desc *desc = st_arena_alloc(arena, 1, sizeof *desc);
    if (!desc) return st_error_memory(error, sizeof *desc, "the model's description");
    desc->arch = arch;
    read_model(&keys, desc);
    if (keys.status != STRATA_OK) return keys.status;

    uint32_t layer_count = desc->layer_count + desc->nextn_count;
    st_layer_desc *layers = st_arena_alloc(arena, layer_count, sizeof *layers);
    if (!layers) return st_error_memory(error, layer_count * sizeof *layers, "the model's description");
    desc->layers = layers;
    for (uint32_t i = 0; i < layer_count && keys.status == STRATA_OK; i++) {
        read_layer(&keys, desc, i, &layers[i]);
        if (layers[i].kind == ST_LAYER_DELTANET) desc->recurrent = true;
    }
    if (keys.status == STRATA_OK) share_kv(&keys, desc, layers);
    if (keys.status == STRATA_OK) *out = desc;
    return keys.status;
}
