#include "model/desc.h"

#include <math.h>

#include "base/error.h"
#include "model/desc_parts.h"

/* --- layers ------------------------------------------------------------------------------------------------------- */

static bool layer_is_recurrent(st_keys *keys, const st_desc *desc, uint32_t layer)
{
    uint32_t layers = desc->layer_count;
    const st_gguf_key *marks = NULL;
    if (desc->arch->pattern == ST_LAYERS_BY_KV_HEADS)
        return st_keys_layer_u32(keys, "attention.head_count_kv", layer, layers, 1, 0, ST_HEADS_MAX) == 0;
    if (desc->arch->pattern != ST_LAYERS_RECURRENT || keys->status != STRATA_OK) return false;
    keys->status = st_gguf_get_array(keys->gguf, st_keys_name(keys, "attention.recurrent_layers"), ST_GGUF_BOOL, &marks,
                                     keys->error);
    if (keys->status != STRATA_OK) return false;
    if (marks && marks->count <= layer)
        st_keys_refuse(keys, "attention.recurrent_layers", "a value for each layer", (double)marks->count);
    else if (marks) return st_gguf_item_i64(marks, layer) != 0;
    return (layer + 1) % st_keys_u32(keys, "full_attention_interval", 4, 1, ST_LAYERS_MAX) != 0;
}

static st_layer_kind kind_of(st_keys *keys, const st_desc *desc, uint32_t layer)
{
    static const st_layer_kind kinds[] = {
        [ST_RECURRENT_DELTA] = ST_LAYER_DELTANET,          [ST_RECURRENT_DELTA_GROUPED] = ST_LAYER_DELTANET,
        [ST_RECURRENT_DELTA_CHANNELS] = ST_LAYER_DELTANET, [ST_RECURRENT_SSM] = ST_LAYER_SSM,
        [ST_RECURRENT_SHORT_CONV] = ST_LAYER_SHORT_CONV};
    bool nextn = layer >= desc->layer_count;
    if (nextn || !layer_is_recurrent(keys, desc, layer)) return ST_LAYER_ATTENTION;
    bool single = desc->arch->form == ST_FORM_SINGLE;
    if (single && st_keys_layer_u32(keys, "feed_forward_length", layer, desc->layer_count, 0, 0, ST_WIDTH_MAX) > 0)
        return ST_LAYER_FFN;
    return kinds[desc->arch->recurrent];
}

static void read_layer(st_keys *keys, const st_desc *desc, uint32_t layer, st_layer_desc *out)
{
    out->kind = kind_of(keys, desc, layer);
    if (out->kind == ST_LAYER_ATTENTION) st_desc_read_attention(keys, desc, layer, &out->attention);
    else st_desc_read_recurrent(keys, desc, out);
    if (desc->arch->form != ST_FORM_SINGLE || out->kind == ST_LAYER_FFN)
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

static void read_scales(st_keys *keys, st_desc *desc)
{
    const st_arch *arch = desc->arch;
    desc->embedding_scale = arch->scaled_embedding ? sqrtf((float)desc->embedding) : 1.0f;
    desc->residual_scale = desc->logit_scale = 1.0f;
    if (arch->scale_keys) {
        desc->embedding_scale = st_keys_f32(keys, "embedding_scale", desc->embedding_scale, 1e-9, 1e9);
        desc->residual_scale = st_keys_f32(keys, "residual_scale", 1, 1e-9, 1e9);
    }
    if (arch->logits == ST_LOGITS_PLAIN) return;
    float scale = st_keys_f32(keys, "logit_scale", 1, 1e-9, 1e9);
    desc->logit_scale = arch->logits == ST_LOGITS_DIVIDED ? 1.0f / scale : scale;
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
    float epsilon = st_keys_f32(keys, "attention.layer_norm_epsilon", 1e-5, 0, 1);
    bool rms = desc->arch->norm == ST_NORM_RMS;
    desc->norm_epsilon = rms ? st_keys_f32(keys, "attention.layer_norm_rms_epsilon", epsilon, 0, 1) : epsilon;
    desc->logit_softcap = st_keys_f32(keys, "final_logit_softcapping", 0, 0, 1e6);
    read_scales(keys, desc);
}

static strata_status refuse_architecture(const st_gguf *gguf, st_str name, strata_error *error)
{
    char known[1024] = "";
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
    st_desc_check_foreign(&keys, desc);
    if (keys.status != STRATA_OK) return keys.status;

    uint32_t layer_count = desc->layer_count + desc->nextn_count;
    st_layer_desc *layers = st_arena_alloc(arena, layer_count, sizeof *layers);
    if (!layers) return st_error_memory(error, layer_count * sizeof *layers, "the model's description");
    desc->layers = layers;
    for (uint32_t i = 0; i < layer_count && keys.status == STRATA_OK; i++) {
        read_layer(&keys, desc, i, &layers[i]);
        st_state_shape state = st_layer_state(desc, i);
        if (state.conv_rows || state.floats) desc->recurrent = true;
    }
    if (keys.status == STRATA_OK) share_kv(&keys, desc, layers);
    if (keys.status == STRATA_OK) *out = desc;
    return keys.status;
}

strata_status st_desc_use_experts(const st_desc *desc, uint32_t used, st_arena *arena, const st_desc **out,
                                  strata_error *error)
{
    uint32_t count = desc->layer_count + desc->nextn_count, most = 0;
    st_desc *copy = st_arena_alloc(arena, 1, sizeof *copy);
    st_layer_desc *layers = st_arena_alloc(arena, count, sizeof *layers);
    if (!copy || !layers) return st_error_memory(error, count * sizeof *layers, "the model's description");
    for (uint32_t i = 0; i < count; i++) {
        layers[i] = desc->layers[i];
        st_ffn_desc *ffn = &layers[i].ffn;
        if (most < ffn->experts_used) most = ffn->experts_used;
        if (ffn->experts_used > used) ffn->experts_used = used;
    }
    if (used > most)
        return st_error_set(error, STRATA_USAGE, NULL,
                            "expected at most %u experts for each token and layer, as the model uses, found %u", most,
                            used);
    *copy = *desc;
    copy->layers = layers;
    *out = copy;
    return STRATA_OK;
}
