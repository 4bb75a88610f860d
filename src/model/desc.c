#include "model/desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/error.h"

/* Upper bounds on a model's numbers: far above existing models, far below overflow. */
enum {
    LAYERS_MAX = 4096,
    WIDTH_MAX = 1 << 20,
    HEADS_MAX = 1 << 14,
    HEAD_SIZE_MAX = 1 << 14,
    EXPERTS_MAX = 1 << 14,
    VOCAB_MAX = 1 << 24,
    CONTEXT_MAX = 1 << 30,
    PER_LAYER_ALL_MAX = 1 << 24,
};

/* Reads keys behind the architecture's prefix; the first failure stays in `status` and later reads do nothing. */
typedef struct key_reader {
    const st_gguf *gguf;
    st_str prefix;
    strata_status status;
    strata_error *error;
    char name[256]; /* of the key read last */
} key_reader;

static const char *key_name(key_reader *reader, const char *suffix)
{
    snprintf(reader->name, sizeof reader->name, "%.*s.%s", ST_STR_ARG(reader->prefix), suffix);
    return reader->name;
}

static void refuse(key_reader *reader, const char *suffix, const char *expected, double found)
{
    if (reader->status != STRATA_OK) return;
    reader->status = st_error_set(reader->error, STRATA_FORMAT, "the file is damaged or was converted wrongly",
                                  "%s: key %s: expected %s, found %g", st_gguf_path(reader->gguf),
                                  key_name(reader, suffix), expected, found);
}

static uint32_t checked_u32(key_reader *reader, const char *suffix, uint64_t value, uint32_t min, uint32_t max)
{
    if (value >= min && value <= max) return (uint32_t)value;
    char expected[64];
    snprintf(expected, sizeof expected, "%" PRIu32 " to %" PRIu32, min, max);
    refuse(reader, suffix, expected, (double)value);
    return min;
}

/* An absent key takes the default; a default of UINT32_MAX makes the key required. */
#define REQUIRED UINT32_MAX

static uint32_t read_u32(key_reader *reader, const char *suffix, uint32_t fallback, uint32_t min, uint32_t max)
{
    if (reader->status != STRATA_OK) return min;
    uint64_t value = fallback;
    bool found;
    reader->status = st_gguf_get_u64(reader->gguf, key_name(reader, suffix), &value, &found, reader->error);
    if (reader->status != STRATA_OK) return min;
    if (!found && fallback == REQUIRED) {
        reader->status = st_error_set(reader->error, STRATA_FORMAT, "the file is damaged or was converted wrongly",
                                      "%s: key %s: expected a whole number, found no such key",
                                      st_gguf_path(reader->gguf), key_name(reader, suffix));
        return min;
    }
    return checked_u32(reader, suffix, value, min, max);
}

static float read_f32(key_reader *reader, const char *suffix, double fallback, double min, double max)
{
    if (reader->status != STRATA_OK) return (float)fallback;
    double value = fallback;
    reader->status = st_gguf_get_f64(reader->gguf, key_name(reader, suffix), &value, NULL, reader->error);
    if (reader->status != STRATA_OK) return (float)fallback;
    if (value >= min && value <= max) return (float)value; /* false for NaN */
    char expected[64];
    snprintf(expected, sizeof expected, "%g to %g", min, max);
    refuse(reader, suffix, expected, value);
    return (float)fallback;
}

/* A key with one number for all layers, or an array with one number per layer. */
static uint32_t read_layer_u32(key_reader *reader, const char *suffix, uint32_t layer, uint32_t layers,
                               uint32_t fallback, uint32_t min, uint32_t max)
{
    if (reader->status != STRATA_OK) return min;
    const st_gguf_key *key = st_gguf_key_find(reader->gguf, key_name(reader, suffix));
    if (!key || key->type != ST_GGUF_ARRAY) return read_u32(reader, suffix, fallback, min, max);
    reader->status = st_gguf_get_array(reader->gguf, reader->name, ST_GGUF_I64, &key, reader->error);
    if (reader->status != STRATA_OK) return min;
    if (key->count < layers) {
        refuse(reader, suffix, "a value for each layer", (double)key->count);
        return min;
    }
    /* A NextN block without its own value uses the last layer's. */
    int64_t value = st_gguf_item_i64(key, layer < key->count ? layer : key->count - 1);
    return checked_u32(reader, suffix, value < 0 ? UINT64_MAX : (uint64_t)value, min, max);
}

/* --- RoPE --------------------------------------------------------------------------------------------------------- */

static void read_rope_scaling(key_reader *reader, uint32_t context, st_rope *rope)
{
    static const char *const names[] = {"none", "linear", "yarn"};
    if (reader->status != STRATA_OK) return;
    st_str type = ST_STR("none");
    reader->status = st_gguf_get_str(reader->gguf, key_name(reader, "rope.scaling.type"), &type, NULL, reader->error);
    if (reader->status != STRATA_OK) return;
    size_t kind = 0;
    while (kind < 3 && !st_str_is(type, names[kind])) kind++;
    if (kind == 3) {
        reader->status = st_error_set(reader->error, STRATA_UNSUPPORTED, NULL,
                                      "%s: key %s: expected none, linear or yarn, found %.*s",
                                      st_gguf_path(reader->gguf), reader->name, ST_STR_ARG(type));
        return;
    }
    rope->scaling = (st_rope_scaling)kind;
    rope->scaling_factor = 1;
    rope->attention_factor = 1;
    if (kind == ST_ROPE_SCALING_NONE) return;
    rope->scaling_factor = read_f32(reader, "rope.scaling.factor", 1, 1e-6, 1e6);
    if (kind == ST_ROPE_SCALING_LINEAR) return;
    rope->original_context = (float)read_u32(reader, "rope.scaling.original_context_length", context, 1, CONTEXT_MAX);
    rope->beta_fast = read_f32(reader, "rope.scaling.yarn_beta_fast", 32, 0, 1e6);
    rope->beta_slow = read_f32(reader, "rope.scaling.yarn_beta_slow", 1, 0, 1e6);
    float factor = read_f32(reader, "rope.scaling.attn_factor", 1, 0, 1e6);
    rope->attention_factor = factor * (1 + 0.1f * logf(rope->scaling_factor));
}

static void read_rope(key_reader *reader, const st_desc *desc, bool windowed, st_attention_desc *attention)
{
    const st_arch *arch = desc->arch;
    bool full = attention->window == 0 && attention->chunk == 0;
    if (arch->full_without_rope && full) return; /* ST_ROPE_NONE */
    st_rope *rope = &attention->rope;
    const char *dims_key = windowed ? "rope.dimension_count_swa" : "rope.dimension_count";
    rope->style = arch->rope;
    rope->dims = read_u32(reader, dims_key, attention->key_length, 2, HEAD_SIZE_MAX);
    rope->base = read_f32(reader, "rope.freq_base", 10000, 1, 1e12);
    if (windowed) rope->base = read_f32(reader, "rope.freq_base_swa", rope->base, 1, 1e12);
    rope->factors = !(arch->rope_factors_full_only && windowed);
    if (rope->dims > attention->key_length || rope->dims % 2)
        refuse(reader, dims_key, "an even number no larger than a head", rope->dims);
    read_rope_scaling(reader, desc->context_max, rope);
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

static bool layer_is_windowed(key_reader *reader, const st_desc *desc, uint32_t layer)
{
    if (desc->arch->pattern != ST_LAYERS_WINDOWED || reader->status != STRATA_OK) return false;
    const st_gguf_key *pattern;
    reader->status = st_gguf_get_array(reader->gguf, key_name(reader, "attention.sliding_window_pattern"),
                                       ST_GGUF_BOOL, &pattern, reader->error);
    if (reader->status != STRATA_OK || !pattern) return false;
    if (pattern->count <= layer) {
        refuse(reader, "attention.sliding_window_pattern", "a value for each layer", (double)pattern->count);
        return false;
    }
    return st_gguf_item_i64(pattern, layer) != 0;
}

static void read_attention(key_reader *reader, const st_desc *desc, uint32_t layer, st_attention_desc *out)
{
    const st_arch *arch = desc->arch;
    uint32_t layers = desc->layer_count;
    bool windowed = layer_is_windowed(reader, desc, layer);
    out->heads = read_layer_u32(reader, "attention.head_count", layer, layers, REQUIRED, 1, HEADS_MAX);
    out->kv_heads = read_layer_u32(reader, "attention.head_count_kv", layer, layers, out->heads, 1, HEADS_MAX);
    if (out->heads % out->kv_heads)
        refuse(reader, "attention.head_count_kv", "a divisor of the number of heads", out->kv_heads);
    out->key_length = read_u32(reader, "attention.key_length", desc->embedding / out->heads, 1, HEAD_SIZE_MAX);
    out->value_length = read_u32(reader, "attention.value_length", out->key_length, 1, HEAD_SIZE_MAX);
    if (windowed) {
        out->window = read_u32(reader, "attention.sliding_window", REQUIRED, 1, CONTEXT_MAX);
        out->key_length = read_u32(reader, "attention.key_length_swa", out->key_length, 1, HEAD_SIZE_MAX);
        out->value_length = read_u32(reader, "attention.value_length_swa", out->value_length, 1, HEAD_SIZE_MAX);
    }
    /* The gate is projected with the queries and has their length; it multiplies the attention output. */
    if (arch->gated_attention && out->value_length != out->key_length)
        refuse(reader, "attention.value_length", "the same as attention.key_length", out->value_length);
    if (arch->pattern == ST_LAYERS_CHUNKED) {
        bool full = (layer + 1) % arch->interval == 0;
        out->chunk = full ? 0 : arch->chunk;
        out->temperature = full ? arch->temperature : 0;
        out->temperature_chunk = arch->chunk;
    }
    out->scale = arch->unit_scale ? 1.0f : 1.0f / sqrtf((float)out->key_length);
    out->kv_layer = layer;
    read_rope(reader, desc, windowed, out);
    out->qk_norm = arch->qk_norm;
    if (arch->qk_norm == ST_QK_NORM_AFTER_ROPE && out->rope.style == ST_ROPE_NONE) out->qk_norm = ST_QK_NORM_NONE;
    uint32_t experts = read_u32(reader, "expert_count", 0, 0, EXPERTS_MAX);
    if (experts && experts == arch->qk_norm_not_with_experts) out->qk_norm = ST_QK_NORM_NONE;
}

static void read_deltanet(key_reader *reader, st_deltanet_desc *out)
{
    out->key_heads = read_u32(reader, "ssm.group_count", REQUIRED, 1, HEADS_MAX);
    out->value_heads = read_u32(reader, "ssm.time_step_rank", REQUIRED, 1, HEADS_MAX);
    out->state_size = read_u32(reader, "ssm.state_size", REQUIRED, 1, HEAD_SIZE_MAX);
    out->conv_width = read_u32(reader, "ssm.conv_kernel", REQUIRED, 1, 64);
    if (out->value_heads % out->key_heads)
        refuse(reader, "ssm.time_step_rank", "a multiple of ssm.group_count", out->value_heads);
    uint32_t inner = out->value_heads * out->state_size; /* below 2^28 by the bounds above */
    uint32_t stated = read_u32(reader, "ssm.inner_size", inner, 0, UINT32_MAX - 1);
    if (stated != inner) refuse(reader, "ssm.inner_size", "time_step_rank × state_size", stated);
}

static void read_ffn(key_reader *reader, const st_desc *desc, uint32_t layer, st_ffn_desc *out)
{
    const st_arch *arch = desc->arch;
    uint32_t layers = desc->layer_count;
    uint32_t experts = read_u32(reader, "expert_count", 0, 0, EXPERTS_MAX);
    uint32_t step = read_u32(reader, "interleave_moe_layer_step", 1, 1, LAYERS_MAX);
    bool routed = experts > 0 && (layer + 1) % step == 0;
    uint32_t needed = routed && !arch->dense_beside_experts ? 0 : REQUIRED;
    uint32_t width = read_layer_u32(reader, "feed_forward_length", layer, layers, needed, needed ? 1 : 0, WIDTH_MAX);
    if (!routed || arch->dense_beside_experts) out->dense_width = width;
    if (!routed) return;
    out->experts = experts;
    out->experts_used = read_u32(reader, "expert_used_count", REQUIRED, 1, experts);
    out->expert_width = read_u32(reader, "expert_feed_forward_length", width ? width : REQUIRED, 1, WIDTH_MAX);
    if (arch->shared_expert == ST_SHARED_NONE) return;
    uint32_t shared = arch->shared_width_is_expert_width ? out->expert_width : width;
    out->shared_width = read_u32(reader, "expert_shared_feed_forward_length", shared ? shared : REQUIRED, 1,
                                 WIDTH_MAX);
}

static void read_layer(key_reader *reader, const st_desc *desc, uint32_t layer, st_layer_desc *out)
{
    bool nextn = layer >= desc->layer_count;
    if (desc->arch->pattern == ST_LAYERS_RECURRENT && !nextn) {
        uint32_t interval = read_u32(reader, "full_attention_interval", 4, 1, LAYERS_MAX);
        if ((layer + 1) % interval) out->kind = ST_LAYER_DELTANET;
    }
    if (out->kind == ST_LAYER_DELTANET) read_deltanet(reader, &out->deltanet);
    else read_attention(reader, desc, layer, &out->attention);
    read_ffn(reader, desc, layer, &out->ffn);
}

/* The last n layers read K and V of the last earlier layer of their own kind. */
static void share_kv(key_reader *reader, const st_desc *desc, st_layer_desc *layers)
{
    uint32_t shared = read_u32(reader, "attention.shared_kv_layers", 0, 0, desc->layer_count - 1);
    uint32_t own = desc->layer_count - shared;
    for (uint32_t i = own; i < desc->layer_count && reader->status == STRATA_OK; i++) {
        uint32_t source = own;
        for (uint32_t j = 0; j < own; j++)
            if (layers[j].kind == layers[i].kind && layers[j].attention.window == layers[i].attention.window &&
                layers[j].attention.chunk == layers[i].attention.chunk)
                source = j;
        bool same = source < own && layers[source].attention.kv_heads == layers[i].attention.kv_heads &&
                    layers[source].attention.key_length == layers[i].attention.key_length &&
                    layers[source].attention.value_length == layers[i].attention.value_length;
        if (!same) refuse(reader, "attention.shared_kv_layers", "an earlier layer of the same kind for each", shared);
        else layers[i].attention.kv_layer = source;
    }
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static uint32_t read_vocab(key_reader *reader)
{
    if (reader->status != STRATA_OK) return 1;
    const st_gguf_key *tokens;
    reader->status = st_gguf_get_array(reader->gguf, "tokenizer.ggml.tokens", ST_GGUF_STRING, &tokens, reader->error);
    if (reader->status != STRATA_OK) return 1;
    if (tokens) return checked_u32(reader, "vocab_size", tokens->count, 1, VOCAB_MAX);
    return read_u32(reader, "vocab_size", REQUIRED, 1, VOCAB_MAX);
}

static void read_model(key_reader *reader, st_desc *desc)
{
    uint32_t blocks = read_u32(reader, "block_count", REQUIRED, 1, LAYERS_MAX);
    desc->nextn_count = read_u32(reader, "nextn_predict_layers", 0, 0, 1);
    if (desc->nextn_count >= blocks) refuse(reader, "nextn_predict_layers", "fewer than block_count", blocks);
    desc->layer_count = blocks > desc->nextn_count ? blocks - desc->nextn_count : 1;
    desc->embedding = read_u32(reader, "embedding_length", REQUIRED, 1, WIDTH_MAX);
    desc->vocab = read_vocab(reader);
    desc->context_max = read_u32(reader, "context_length", REQUIRED, 1, CONTEXT_MAX);
    uint32_t per_layer_max = PER_LAYER_ALL_MAX / desc->layer_count; /* those of all layers make one row */
    desc->per_layer_width = read_u32(reader, "embedding_length_per_layer_input", 0, 0, per_layer_max);
    desc->norm_epsilon = read_f32(reader, "attention.layer_norm_rms_epsilon", 1e-5, 0, 1);
    desc->logit_softcap = read_f32(reader, "final_logit_softcapping", 0, 0, 1e6);
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

    key_reader reader = {.gguf = gguf, .prefix = name, .error = error};
    st_desc *desc = st_arena_alloc(arena, 1, sizeof *desc);
    if (!desc) return st_error_memory(error, sizeof *desc, "the model's description");
    desc->arch = arch;
    read_model(&reader, desc);
    if (reader.status != STRATA_OK) return reader.status;

    uint32_t layer_count = desc->layer_count + desc->nextn_count;
    st_layer_desc *layers = st_arena_alloc(arena, layer_count, sizeof *layers);
    if (!layers) return st_error_memory(error, layer_count * sizeof *layers, "the model's description");
    desc->layers = layers;
    for (uint32_t i = 0; i < layer_count && reader.status == STRATA_OK; i++) {
        read_layer(&reader, desc, i, &layers[i]);
        if (layers[i].kind == ST_LAYER_DELTANET) desc->recurrent = true;
    }
    if (reader.status == STRATA_OK) share_kv(&reader, desc, layers);
    if (reader.status == STRATA_OK) *out = desc;
    return reader.status;
}
