#include "gguf/known.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/utf8.h"
#include "gguf/directory.h"
#include "gguf/limits.h"

#define STRING ST_GGUF_IS_STRING
#define BOOL ST_GGUF_IS_BOOL
#define FLOAT ST_GGUF_IS_FLOAT
#define INT ST_GGUF_IS_INT
#define UINT ST_GGUF_IS_UINT
#define STRINGS ST_GGUF_IS_STRINGS
#define BOOLS ST_GGUF_IS_BOOLS
#define FLOATS ST_GGUF_IS_FLOATS
#define INTS ST_GGUF_IS_INTS
#define UINTS ST_GGUF_IS_UINTS

static const st_gguf_known known_rows[] = {
    {"general.architecture", STRING},
    {"general.type", STRING},
    {"general.alignment", UINT},
    {"general.quantization_version", UINT},
    {"general.file_type", UINT},
    {"general.name", STRING},
    {"general.author", STRING},
    {"general.version", STRING},
    {"general.organization", STRING},
    {"general.finetune", STRING},
    {"general.basename", STRING},
    {"general.description", STRING},
    {"general.quantized_by", STRING},
    {"general.size_label", STRING},
    {"general.license", STRING},
    {"general.license.name", STRING},
    {"general.license.link", STRING},
    {"general.url", STRING},
    {"general.doi", STRING},
    {"general.uuid", STRING},
    {"general.repo_url", STRING},
    {"general.source.url", STRING},
    {"general.source.doi", STRING},
    {"general.source.uuid", STRING},
    {"general.source.repo_url", STRING},
    {"general.base_model.count", UINT},
    {"general.dataset.count", UINT},
    {"general.tags", STRINGS},
    {"general.languages", STRINGS},
    {"general.sampling.sequence", STRING},
    {"general.sampling.top_k", INT},
    {"general.sampling.top_p", FLOAT},
    {"general.sampling.min_p", FLOAT},
    {"general.sampling.xtc_probability", FLOAT},
    {"general.sampling.xtc_threshold", FLOAT},
    {"general.sampling.temp", FLOAT},
    {"general.sampling.penalty_last_n", INT},
    {"general.sampling.penalty_repeat", FLOAT},
    {"general.sampling.mirostat", INT},
    {"general.sampling.mirostat_tau", FLOAT},
    {"general.sampling.mirostat_eta", FLOAT},

    {"split.no", UINT},
    {"split.count", UINT},
    {"split.tensors.count", UINT},

    {"tokenizer.ggml.model", STRING},
    {"tokenizer.ggml.pre", STRING},
    {"tokenizer.ggml.tokens", STRINGS},
    {"tokenizer.ggml.token_type", INTS},
    {"tokenizer.ggml.token_type_count", UINT},
    {"tokenizer.ggml.scores", FLOATS},
    {"tokenizer.ggml.merges", STRINGS},
    {"tokenizer.ggml.bos_token_id", UINT},
    {"tokenizer.ggml.eos_token_id", UINT},
    {"tokenizer.ggml.eot_token_id", UINT},
    {"tokenizer.ggml.eom_token_id", UINT},
    {"tokenizer.ggml.unknown_token_id", UINT},
    {"tokenizer.ggml.seperator_token_id", UINT},
    {"tokenizer.ggml.padding_token_id", UINT},
    {"tokenizer.ggml.mask_token_id", UINT},
    {"tokenizer.ggml.cls_token_id", UINT},
    {"tokenizer.ggml.fim_pre_token_id", UINT},
    {"tokenizer.ggml.fim_suf_token_id", UINT},
    {"tokenizer.ggml.fim_mid_token_id", UINT},
    {"tokenizer.ggml.fim_pad_token_id", UINT},
    {"tokenizer.ggml.fim_rep_token_id", UINT},
    {"tokenizer.ggml.fim_sep_token_id", UINT},
    {"tokenizer.ggml.prefix_token_id", UINT},
    {"tokenizer.ggml.suffix_token_id", UINT},
    {"tokenizer.ggml.middle_token_id", UINT},
    {"tokenizer.ggml.add_bos_token", BOOL},
    {"tokenizer.ggml.add_eos_token", BOOL},
    {"tokenizer.ggml.add_sep_token", BOOL},
    {"tokenizer.ggml.add_space_prefix", BOOL},
    {"tokenizer.ggml.remove_extra_whitespaces", BOOL},
    {"tokenizer.ggml.precompiled_charsmap", INTS},
    {"tokenizer.huggingface.json", STRING},
    {"tokenizer.rwkv.world", STRING},
    {"tokenizer.chat_template", STRING},
    {"tokenizer.chat_templates", STRINGS},

    {".vocab_size", UINT},
    {".context_length", UINT},
    {".embedding_length", UINT},
    {".embedding_length_out", UINT},
    {".embedding_length_per_layer_input", UINT},
    {".features_length", UINT},
    {".block_count", UINT},
    {".leading_dense_block_count", UINT},
    {".feed_forward_length", UINT | UINTS},
    {".expert_feed_forward_length", UINT},
    {".expert_shared_feed_forward_length", UINT},
    {".expert_chunk_feed_forward_length", UINT},
    {".expert_count", UINT},
    {".expert_used_count", UINT},
    {".expert_shared_count", UINT},
    {".expert_group_count", UINT},
    {".expert_group_used_count", UINT},
    {".expert_weights_scale", FLOAT},
    {".expert_weights_norm", BOOL},
    {".expert_gating_func", UINT},
    {".expert_group_scale", FLOAT},
    {".experts_per_group", UINT},
    {".moe_every_n_layers", UINT},
    {".interleave_moe_layer_step", UINT},
    {".full_attention_interval", UINT},
    {".nextn_predict_layers", UINT},
    {".use_parallel_residual", BOOL},
    {".tensor_data_layout", STRING},
    {".pooling_type", UINT},
    {".logit_scale", FLOAT},
    {".residual_scale", FLOAT},
    {".embedding_scale", FLOAT},
    {".attn_logit_softcapping", FLOAT},
    {".router_logit_softcapping", FLOAT},
    {".final_logit_softcapping", FLOAT},
    {".decoder_start_token_id", UINT},
    {".activation_sparsity_scale", FLOAT | FLOATS},
    {".swiglu_clamp_exp", FLOAT | FLOATS},
    {".swiglu_clamp_shexp", FLOAT | FLOATS},

    {".attention.head_count", UINT | UINTS},
    {".attention.head_count_kv", UINT | UINTS},
    {".attention.key_length", UINT},
    {".attention.value_length", UINT},
    {".attention.key_length_swa", UINT},
    {".attention.value_length_swa", UINT},
    {".attention.key_length_mla", UINT},
    {".attention.value_length_mla", UINT},
    {".attention.layer_norm_epsilon", FLOAT},
    {".attention.layer_norm_rms_epsilon", FLOAT},
    {".attention.group_norm_epsilon", FLOAT},
    {".attention.group_norm_groups", UINT},
    {".attention.max_alibi_bias", FLOAT},
    {".attention.clamp_kqv", FLOAT},
    {".attention.causal", BOOL},
    {".attention.scale", FLOAT},
    {".attention.output_scale", FLOAT},
    {".attention.temperature_length", UINT},
    {".attention.temperature_scale", FLOAT},
    {".attention.sliding_window", UINT},
    {".attention.sliding_window_pattern", UINT | BOOLS | UINTS},
    {".attention.recurrent_layers", BOOLS | UINTS},
    {".attention.shared_kv_layers", UINT},
    {".attention.q_lora_rank", UINT},
    {".attention.kv_lora_rank", UINT},
    {".attention.relative_buckets_count", UINT},
    {".attention.indexer.head_count", UINT},
    {".attention.indexer.key_length", UINT},
    {".attention.indexer.top_k", UINT},

    {".rope.dimension_count", UINT},
    {".rope.dimension_count_swa", UINT},
    {".rope.dimension_sections", INTS},
    {".rope.freq_base", FLOAT},
    {".rope.freq_base_swa", FLOAT},
    {".rope.scale_linear", FLOAT},
    {".rope.scaling.type", STRING},
    {".rope.scaling.factor", FLOAT},
    {".rope.scaling.alpha", FLOAT},
    {".rope.scaling.attn_factor", FLOAT},
    {".rope.scaling.original_context_length", UINT},
    {".rope.scaling.finetuned", BOOL},
    {".rope.scaling.yarn_log_multiplier", FLOAT},
    {".rope.scaling.yarn_ext_factor", FLOAT},
    {".rope.scaling.yarn_attn_factor", FLOAT},
    {".rope.scaling.yarn_beta_fast", FLOAT},
    {".rope.scaling.yarn_beta_slow", FLOAT},

    {".ssm.conv_kernel", UINT},
    {".ssm.inner_size", UINT},
    {".ssm.state_size", UINT},
    {".ssm.time_step_rank", UINT},
    {".ssm.group_count", UINT},
    {".ssm.dt_b_c_rms", BOOL},
    {".kda.head_dim", UINT},
    {".shortconv.l_cache", UINT},
    {".moe_latent_size", UINT},
};

typedef struct kind_name {
    st_gguf_kind kind;
    const char *name;
} kind_name;

static const kind_name kind_names[] = {
    {STRING, "a string"},
    {BOOL, "a bool"},
    {FLOAT, "a float"},
    {INT, "an integer"},
    {UINT, "an integer of 0 or more"},
    {STRINGS, "an array of strings"},
    {BOOLS, "an array of bools"},
    {FLOATS, "an array of floats"},
    {INTS, "an array of integers"},
    {UINTS, "an array of integers of 0 or more"},
};

const st_gguf_known *st_gguf_known_rows(size_t *count)
{
    *count = sizeof known_rows / sizeof *known_rows;
    return known_rows;
}

/* "an integer of 0 or more, or an array of …" */
static void kinds_text(unsigned kinds, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof kind_names / sizeof *kind_names; i++) {
        if (!(kinds & (unsigned)kind_names[i].kind) || used >= size) continue;
        int wrote = snprintf(text + used, size - used, "%s%s", used ? ", or " : "", kind_names[i].name);
        if (wrote > 0) used += (size_t)wrote;
    }
}

/* The kind of a value; UINT for every integer, whatever its sign. */
static unsigned kind_of(const st_gguf_key *key)
{
    bool array = key->type == ST_GGUF_ARRAY;
    if (key->item_type == ST_GGUF_STRING) return array ? STRINGS : STRING;
    if (key->item_type == ST_GGUF_BOOL) return array ? BOOLS : BOOL;
    if (st_gguf_type_is_float(key->item_type)) return array ? FLOATS : FLOAT;
    return array ? INTS | UINTS : INT | UINT;
}

static strata_status check_key(const st_gguf_file *file, const st_gguf_key *key, unsigned kinds, strata_error *error)
{
    st_gguf_place place = {.file = file, .kind = "key", .name = key->name};
    char expected[160];
    unsigned kind = kind_of(key);
    if (!(kinds & kind)) {
        kinds_text(kinds, expected, sizeof expected);
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected %s, found %s", expected,
                            st_gguf_key_kind(key));
    }
    if (!(kind & (UINT | UINTS)) || kinds & (INT | INTS)) return STRATA_OK;
    size_t bytes = st_gguf_type_bytes(key->item_type);
    for (uint64_t i = 0; i < key->count; i++) {
        uint64_t value;
        if (st_gguf_load_integer(key->item_type, key->data + i * bytes, &value)) continue;
        kinds_text(kinds, expected, sizeof expected);
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected %s, found %" PRId64, expected,
                            (int64_t)value);
    }
    return STRATA_OK;
}

static strata_status check_architecture(st_gguf_file *file, const st_gguf_key *key, strata_error *error)
{
    st_gguf_place place = {.file = file, .kind = "key", .name = key->name};
    st_str value = {(const char *)key->data + 8, key->data_bytes - 8};
    if (value.length == 0 || value.length > ST_GGUF_ARCHITECTURE_BYTES_MAX)
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected a string of 1 to %d bytes, found one of %zu",
                            ST_GGUF_ARCHITECTURE_BYTES_MAX, value.length);
    if (memchr(value.data, '\0', value.length) || st_utf8_valid_prefix(value.data, value.length) != value.length)
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error,
                            "expected a string in UTF-8 without NUL bytes, found \"%.*s\"", ST_STR_ARG(value));
    file->architecture = value;
    return STRATA_OK;
}

strata_status st_gguf_check_known(st_gguf_file *file, strata_error *error)
{
    for (size_t i = 0; i < sizeof known_rows / sizeof *known_rows; i++) {
        const st_gguf_known *row = &known_rows[i];
        char name[ST_GGUF_ARCHITECTURE_BYTES_MAX + 64];
        bool of_architecture = row->name[0] == '.';
        if (of_architecture && file->architecture.length == 0) continue;
        int length = snprintf(name, sizeof name, "%.*s%s", ST_STR_ARG(file->architecture), row->name);
        if (!of_architecture) length = snprintf(name, sizeof name, "%s", row->name);
        if (length < 0 || (size_t)length >= sizeof name) continue;
        const st_gguf_key *key = st_gguf_file_key(file, (st_str){name, (size_t)length});
        if (!key) continue;
        strata_status status = check_key(file, key, row->kinds, error);
        if (status == STRATA_OK && i == 0) status = check_architecture(file, key, error);
        if (status != STRATA_OK) return status;
    }
    return STRATA_OK;
}
