/* src/model/desc.c: every key that is missing or absurd is refused by name, and what the kit's families say is read
 * exactly. The keys are those of the kit's models, changed; no tensor is needed. */
#include "support/gguf_copy.h"

#include <math.h>
#include <stdio.h>

#include "model/desc.h"

typedef enum change_kind { CHANGE_NONE, DROP, U32, F32, TEXT, U32S, BOOLS } change_kind;

typedef struct change {
    const char *key; /* a leading dot stands for the architecture */
    change_kind kind;
    double value;
    uint32_t count; /* U32S, BOOLS: items, all of them `value` */
    const char *text;
} change;

#define DROPPED(name) {.key = name, .kind = DROP}
#define INT(name, number) {.key = name, .kind = U32, .value = number}
#define REAL(name, number) {.key = name, .kind = F32, .value = number}
#define WORD(name, string) {.key = name, .kind = TEXT, .text = string}
#define INTS(name, number, items) {.key = name, .kind = U32S, .value = number, .count = items}
#define FLAGS(name, number, items) {.key = name, .kind = BOOLS, .value = number, .count = items}

typedef struct built {
    gguf_copy copy;
    st_gguf *gguf;
    st_arena arena;
    const st_desc *desc;
    strata_status status;
    strata_error error;
} built;

static void apply(gguf_copy *copy, const change *c)
{
    if (c->kind == CHANGE_NONE) return;
    gguf_copy_drop_key(copy, c->key);
    const char *name = gguf_copy_key(copy, c->key);
    gguf_writer *writer = &copy->writer;
    switch (c->kind) {
    case U32: gguf_write_key_u32(writer, name, (uint32_t)c->value); break;
    case F32: gguf_write_key_f32(writer, name, (float)c->value); break;
    case TEXT: gguf_write_key_string(writer, name, c->text); break;
    case U32S:
        gguf_write_key_array(writer, name, ST_GGUF_U32, c->count);
        for (uint32_t i = 0; i < c->count; i++) gguf_write_u32(writer, (uint32_t)c->value);
        break;
    case BOOLS:
        gguf_write_key_array(writer, name, ST_GGUF_BOOL, c->count);
        for (uint32_t i = 0; i < c->count; i++) st_buf_append_char(&writer->out, (char)c->value);
        break;
    default: break;
    }
}

static void build(built *b, const char *family, const change *changes, size_t count)
{
    *b = (built){.status = STRATA_OK};
    gguf_copy_open(&b->copy, family);
    gguf_copy_clear_tensors(&b->copy);
    gguf_copy_add(&b->copy, "some.weight", ST_TYPE_F32, 1, (uint64_t[]){1}, NULL); /* a model without tensors is refused */
    for (size_t i = 0; i < count; i++) apply(&b->copy, &changes[i]);
    gguf_copy_finish(&b->copy, true);
    const st_buf *bytes = &b->copy.writer.out;
    b->status = st_gguf_open_memory("m.gguf", bytes->data, bytes->length, &b->gguf, &b->error);
    if (b->status == STRATA_OK) b->status = st_desc_build(b->gguf, &b->arena, &b->desc, &b->error);
}

static void tear_down(built *b)
{
    st_arena_free(&b->arena);
    st_gguf_close(b->gguf);
    gguf_copy_close(&b->copy);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *family;
    change changes[3]; /* the message names the key of the first */
    strata_status status;
    const char *says; /* and contains this text, if not NULL */
} refusal;

#define FORMAT STRATA_FORMAT

static const refusal refusals[] = {
    /* the model */
    {"llama", {WORD("general.architecture", "bert")}, STRATA_UNSUPPORTED,
     "architecture bert: expected one of llama, qwen2, qwen3, qwen2moe, qwen3moe, olmoe, llama4, gemma4, qwen35, "
     "qwen35moe"},
    {"llama", {WORD("general.architecture", "")}, FORMAT, "1 to 64 bytes"},
    {"llama", {DROPPED("general.architecture")}, STRATA_UNSUPPORTED, "(none)"},
    {"llama", {DROPPED(".block_count")}, FORMAT, "found no such key"},
    {"llama", {INT(".block_count", 0)}, FORMAT, "1 to 4096"},
    {"llama", {INT(".block_count", 4097)}, FORMAT, "4097"},
    {"llama", {INT(".block_count", 4294967295.0)}, FORMAT, NULL},
    {"llama", {WORD(".block_count", "4")}, FORMAT, NULL},
    {"llama", {DROPPED(".embedding_length")}, FORMAT, "found no such key"},
    {"llama", {INT(".embedding_length", 0)}, FORMAT, NULL},
    {"llama", {INT(".embedding_length", 1 << 21)}, FORMAT, NULL},
    {"llama", {DROPPED(".context_length")}, FORMAT, NULL},
    {"llama", {INT(".context_length", 0)}, FORMAT, NULL},
    {"llama", {INT(".context_length", 4294967295.0)}, FORMAT, NULL},
    {"llama", {DROPPED(".vocab_size"), DROPPED("tokenizer.ggml.tokens")}, FORMAT, "found no such key"},
    {"llama", {INT(".vocab_size", 0), DROPPED("tokenizer.ggml.tokens")}, FORMAT, NULL},
    {"llama", {INT(".vocab_size", 1 << 25), DROPPED("tokenizer.ggml.tokens")}, FORMAT, NULL},
    {"llama", {INTS("tokenizer.ggml.tokens", 1, 4)}, FORMAT, NULL},
    {"llama", {REAL(".attention.layer_norm_rms_epsilon", -1e-5)}, FORMAT, "0 to 1"},
    {"llama", {REAL(".attention.layer_norm_rms_epsilon", 2)}, FORMAT, NULL},
    {"llama", {REAL(".attention.layer_norm_rms_epsilon", NAN)}, FORMAT, NULL},
    {"gemma4-e", {REAL(".final_logit_softcapping", -30)}, FORMAT, NULL},
    {"gemma4-e", {REAL(".final_logit_softcapping", INFINITY)}, FORMAT, NULL},
    {"gemma4-e", {INT(".embedding_length_per_layer_input", 1 << 24)}, FORMAT, NULL},
    {"gemma4-e", {INT(".embedding_length_per_layer_input", 1 << 13), INT(".block_count", 4096)}, FORMAT, NULL},

    /* attention */
    {"llama", {DROPPED(".attention.head_count")}, FORMAT, "found no such key"},
    {"llama", {INT(".attention.head_count", 0)}, FORMAT, "1 to 16384"},
    {"llama", {INT(".attention.head_count", 16385)}, FORMAT, NULL},
    {"llama", {REAL(".attention.head_count", 4)}, FORMAT, NULL},
    {"llama", {INTS(".attention.head_count", 4, 3)}, FORMAT, "a value for each layer"},
    {"llama", {INTS(".attention.head_count", 0, 4)}, FORMAT, NULL},
    {"llama", {INT(".attention.head_count_kv", 0)}, FORMAT, NULL},
    {"llama", {INT(".attention.head_count_kv", 3)}, FORMAT, "a divisor of the number of heads"},
    {"llama", {INT(".attention.head_count_kv", 8)}, FORMAT, "a divisor of the number of heads"},
    {"llama", {INTS(".attention.head_count_kv", 2, 1)}, FORMAT, "a value for each layer"},
    {"llama", {INTS(".attention.head_count_kv", 2, 0)}, FORMAT, NULL},
    {"llama", {INT(".attention.key_length", 0)}, FORMAT, NULL},
    {"llama", {INT(".attention.key_length", 16385)}, FORMAT, NULL},
    {"llama", {DROPPED(".attention.key_length"), INT(".attention.head_count", 128)}, FORMAT, "found 0"},
    {"llama", {INT(".attention.value_length", 0)}, FORMAT, NULL},
    {"qwen35", {INT(".attention.value_length", 16)}, FORMAT, "key_length"},
    {"qwen35", {INT(".attention.value_length", 64)}, FORMAT, "key_length"},
    {"gemma4-e", {DROPPED(".attention.sliding_window")}, FORMAT, "found no such key"},
    {"gemma4-e", {INT(".attention.sliding_window", 0)}, FORMAT, NULL},
    {"gemma4-e", {FLAGS(".attention.sliding_window_pattern", 1, 5)}, FORMAT, "a value for each layer"},
    {"gemma4-e", {FLAGS(".attention.sliding_window_pattern", 1, 0)}, FORMAT, NULL},
    {"gemma4-e", {INT(".attention.key_length_swa", 0)}, FORMAT, NULL},
    {"gemma4-e", {INT(".attention.value_length_swa", 20000)}, FORMAT, NULL},
    {"gemma4-e", {INT(".attention.shared_kv_layers", 6)}, FORMAT, "0 to 5"},
    {"gemma4-e", {INT(".attention.shared_kv_layers", 4)}, FORMAT, "an earlier layer of the same kind"},
    {"gemma4-dense", {INT(".attention.shared_kv_layers", 5)}, FORMAT, "an earlier layer of the same kind"},

    /* RoPE */
    {"llama", {INT(".rope.dimension_count", 15)}, FORMAT, "an even number no larger than a head"},
    {"llama", {INT(".rope.dimension_count", 18)}, FORMAT, "an even number no larger than a head"},
    {"llama", {INT(".rope.dimension_count", 0)}, FORMAT, NULL},
    {"llama", {INT(".rope.dimension_count", 1)}, FORMAT, NULL},
    {"gemma4-e", {INT(".rope.dimension_count_swa", 18)}, FORMAT, "an even number no larger than a head"},
    {"gemma4-e", {INT(".rope.dimension_count_swa", 15)}, FORMAT, "an even number no larger than a head"},
    {"llama", {REAL(".rope.freq_base", 0)}, FORMAT, NULL},
    {"llama", {REAL(".rope.freq_base", -10000)}, FORMAT, NULL},
    {"llama", {REAL(".rope.freq_base", NAN)}, FORMAT, NULL},
    {"gemma4-e", {REAL(".rope.freq_base_swa", 0)}, FORMAT, NULL},
    {"llama", {WORD(".rope.scaling.type", "longrope")}, STRATA_UNSUPPORTED, "none, linear or yarn, found longrope"},
    {"llama", {WORD(".rope.scaling.type", "")}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".rope.scaling.factor", 0), WORD(".rope.scaling.type", "linear")}, FORMAT, NULL},
    {"llama", {REAL(".rope.scaling.factor", -2), WORD(".rope.scaling.type", "yarn")}, FORMAT, NULL},
    {"llama", {INT(".rope.scaling.original_context_length", 0), WORD(".rope.scaling.type", "yarn")}, FORMAT, NULL},
    {"llama", {REAL(".rope.scaling.yarn_beta_fast", -1), WORD(".rope.scaling.type", "yarn")}, FORMAT, NULL},
    {"llama", {REAL(".rope.scaling.yarn_beta_slow", NAN), WORD(".rope.scaling.type", "yarn")}, FORMAT, NULL},
    {"llama", {REAL(".rope.scaling.attn_factor", INFINITY), WORD(".rope.scaling.type", "yarn")}, FORMAT, NULL},

    /* feed-forward */
    {"llama", {DROPPED(".feed_forward_length")}, FORMAT, "found no such key"},
    {"llama", {INT(".feed_forward_length", 0)}, FORMAT, NULL},
    {"llama", {INT(".feed_forward_length", 1 << 21)}, FORMAT, NULL},
    {"gemma4-e", {INTS(".feed_forward_length", 128, 5)}, FORMAT, "a value for each layer"},
    {"gemma4-moe", {DROPPED(".feed_forward_length")}, FORMAT, NULL},
    {"mixtral", {INT(".expert_count", 16385)}, FORMAT, NULL},
    {"mixtral", {DROPPED(".expert_used_count")}, FORMAT, NULL},
    {"mixtral", {INT(".expert_used_count", 0)}, FORMAT, NULL},
    {"mixtral", {INT(".expert_used_count", 5)}, FORMAT, "1 to 4"},
    {"qwen35moe", {DROPPED(".expert_feed_forward_length")}, FORMAT, "found no such key"},
    {"qwen3moe", {INT(".expert_feed_forward_length", 0)}, FORMAT, NULL},
    {"qwen35moe", {DROPPED(".expert_shared_feed_forward_length")}, FORMAT, NULL},
    {"qwen2moe", {INT(".expert_shared_feed_forward_length", 0)}, FORMAT, NULL},
    {"llama4", {INT(".interleave_moe_layer_step", 0)}, FORMAT, NULL},

    /* recurrent layers and NextN */
    {"qwen35", {INT(".full_attention_interval", 0)}, FORMAT, NULL},
    {"qwen35", {DROPPED(".ssm.group_count")}, FORMAT, NULL},
    {"qwen35", {INT(".ssm.group_count", 0)}, FORMAT, NULL},
    {"qwen35", {DROPPED(".ssm.time_step_rank")}, FORMAT, NULL},
    {"qwen35", {INT(".ssm.time_step_rank", 3)}, FORMAT, "a multiple of ssm.group_count"},
    {"qwen35", {DROPPED(".ssm.state_size")}, FORMAT, NULL},
    {"qwen35", {INT(".ssm.state_size", 1 << 15)}, FORMAT, NULL},
    {"qwen35", {INT(".ssm.conv_kernel", 0)}, FORMAT, NULL},
    {"qwen35", {INT(".ssm.conv_kernel", 65)}, FORMAT, "1 to 64"},
    {"qwen35", {INT(".ssm.inner_size", 63)}, FORMAT, "time_step_rank × state_size"},
    {"qwen35", {INT(".nextn_predict_layers", 5)}, FORMAT, NULL},
    {"qwen35", {INT(".nextn_predict_layers", 2)}, FORMAT, "0 to 1"},
    {"qwen35", {INT(".nextn_predict_layers", 1), INT(".block_count", 1)}, FORMAT, "fewer than block_count"},
    {"more/granitehybrid", {INT(".ssm.inner_size", 129)}, FORMAT, "a multiple of ssm.time_step_rank"},
    {"more/granitehybrid", {INT(".ssm.group_count", 3)}, FORMAT, "a divisor of ssm.time_step_rank"},
    {"more/granitehybrid", {DROPPED(".ssm.conv_kernel")}, FORMAT, "found no such key"},
    {"more/kimi-linear", {DROPPED(".kda.head_dim")}, FORMAT, "found no such key"},
    {"more/lfm2moe", {INT(".shortconv.l_cache", 0)}, FORMAT, "1 to 64"},
    {"more/qwen3next", {FLAGS(".attention.recurrent_layers", 1, 3)}, FORMAT, "a value for each layer"},

    /* routers, latent attention */
    {"more/deepseek2", {INT(".expert_gating_func", 4)}, STRATA_UNSUPPORTED, "1 to 3, found 4"},
    {"more/deepseek2", {INT(".expert_group_count", 5)}, FORMAT, "a divisor of expert_count"},
    {"more/deepseek2", {INT(".expert_group_used_count", 4)}, FORMAT, "1 to 3"},
    {"more/deepseek2", {INT(".expert_group_used_count", 1), INT(".expert_used_count", 5)}, FORMAT, "enough experts"},
    {"more/deepseek2", {REAL(".expert_weights_scale", 0)}, FORMAT, NULL},
    {"more/deepseek2", {DROPPED(".attention.key_length_mla")}, FORMAT, "found no such key"},
    {"more/deepseek2", {INT(".attention.key_length_mla", 16)}, FORMAT, "17 to"},
    {"more/deepseek2", {INT(".attention.head_count_kv", 4)}, FORMAT, "1 to 1"},
    {"more/deepseek2", {INT(".attention.key_length", 40)}, FORMAT, "48 to 48"},
    {"more/deepseek2", {DROPPED(".rope.dimension_count")}, FORMAT, "found no such key"},
    {"more/gpt-oss-clamp", {DROPPED(".attention.sliding_window")}, FORMAT, "found no such key"},
    {"more/mistral3", {REAL(".attention.temperature_scale", -1)}, FORMAT, NULL},

    /* relatives: the value of a key that the family does not read would change the result */
    {"llama", {REAL(".residual_scale", 0.5)}, STRATA_UNSUPPORTED, "0.5"},
    {"llama", {REAL(".embedding_scale", 12)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".attention.scale", 0.1)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".logit_scale", 8)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".attn_logit_softcapping", 50)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".attention.clamp_kqv", 8)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".attention.max_alibi_bias", 8)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".attention.temperature_scale", 0.1)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {REAL(".rope.scale_linear", 4)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {INT(".attention.sliding_window", 64)}, STRATA_UNSUPPORTED, "64"},
    {"llama", {INT(".attention.kv_lora_rank", 32)}, STRATA_UNSUPPORTED, NULL},
    {"llama", {INT(".full_attention_interval", 4)}, STRATA_UNSUPPORTED, NULL},
    {"qwen3moe", {INT(".expert_shared_count", 1)}, STRATA_UNSUPPORTED, NULL},
    {"qwen3moe", {INT(".expert_gating_func", 7)}, STRATA_UNSUPPORTED, NULL},
    {"qwen3moe", {REAL(".router_logit_softcapping", 30)}, STRATA_UNSUPPORTED, NULL},
    {"more/deepseek2", {INT(".attention.indexer.top_k", 2048)}, STRATA_UNSUPPORTED, "2048"},
    {"more/nemotron_h_moe", {INT(".moe_latent_size", 32)}, STRATA_UNSUPPORTED, "32"},
    {"more/phi3", {WORD(".rope.scaling.type", "su")}, STRATA_UNSUPPORTED, "found su"},
};

enum { REFUSALS = sizeof refusals / sizeof *refusals };

static void invalid_keys_are_refused(void **state)
{
    const refusal *row = *state;
    built b;
    build(&b, row->family, row->changes, 3);
    if (b.status != row->status)
        fail_msg("expected status %d, found %d: %s", row->status, b.status, b.status ? b.error.message : "");
    assert_null(b.desc);
    assert_int_equal(b.error.status, row->status);
    const char *key = gguf_copy_key(&b.copy, row->changes[0].key);
    bool architecture = strcmp(key, "general.architecture") == 0;
    if (!architecture && !strstr(b.error.message, key)) fail_msg("%s: does not name %s", b.error.message, key);
    if (row->says && !strstr(b.error.message, row->says)) fail_msg("%s: does not say %s", b.error.message, row->says);
    assert_non_null(strstr(b.error.message, "m.gguf"));
    tear_down(&b);
}

/* ---- the families, exactly --------------------------------------------------------------------------------------- */

typedef struct layer_row {
    uint32_t first, last;
    const char *text;
} layer_row;

typedef struct family_row {
    const char *name;
    uint32_t layers, nextn;
    double epsilon, embedding_scale, softcap;
    uint32_t per_layer;
    bool recurrent;
    layer_row rows[6];
} family_row;

static const family_row family_rows[] = {
    {"llama", 4, 0, 1e-5, 1, 0, 0, false,
     {{0, 3, "attention 4/2 x 16,16 scale 0.25 pairs 16 of 10000 norm 0 kv own; dense 128"}}},
    {"mixtral", 4, 0, 1e-5, 1, 0, 0, false,
     {{0, 3, "attention 4/2 x 16,16 scale 0.25 pairs 16 of 1e+06 norm 0 kv own; experts 2 of 4 x 96"}}},
    {"qwen2", 4, 0, 1e-6, 1, 0, 0, false,
     {{0, 3, "attention 4/2 x 16,16 scale 0.25 halves 16 of 10000 norm 0 kv own; dense 128"}}},
    {"qwen3", 4, 0, 1e-6, 1, 0, 0, false,
     {{0, 3, "attention 4/2 x 32,32 scale 0.176777 halves 32 of 10000 norm 1 kv own; dense 128"}}},
    {"qwen2moe", 4, 0, 1e-6, 1, 0, 0, false,
     {{0, 3, "attention 4/2 x 16,16 scale 0.25 halves 16 of 10000 norm 0 kv own; experts 2 of 8 x 32 shared 64"}}},
    {"qwen3moe", 4, 0, 1e-6, 1, 0, 0, false,
     {{0, 3, "attention 4/2 x 16,16 scale 0.25 halves 16 of 10000 norm 1 kv own; experts 4 of 16 x 32"}}},
    {"olmoe", 4, 0, 1e-5, 1, 0, 0, false,
     {{0, 3, "attention 4/4 x 16,16 scale 0.25 halves 16 of 10000 norm 2 kv own; experts 4 of 16 x 32"}}},
    {"llama4", 4, 0, 1e-5, 1, 0, 0, false,
     {{0, 2,
       "attention 4/2 x 16,16 scale 0.25 chunk 8192 pairs 16 of 500000 norm 3 kv own; experts 1 of 4 x 64 shared 64"},
      {3, 3,
       "attention 4/2 x 16,16 scale 0.25 temperature 0.1/8192 no rope norm 0 kv own; experts 1 of 4 x 64 shared 64"}}},
    {"gemma4-e", 6, 0, 1e-6, 8, 30, 16, false,
     {{0, 1, "attention 4/2 x 16,16 scale 1 window 16 halves 16 of 10000 without factors norm 1 kv own; dense 128"},
      {2, 2, "attention 4/2 x 32,32 scale 1 halves 32 of 1e+06 norm 1 kv own; dense 128"},
      {3, 4, "attention 4/2 x 16,16 scale 1 window 16 halves 16 of 10000 without factors norm 1 kv 1; dense 256"},
      {5, 5, "attention 4/2 x 32,32 scale 1 halves 32 of 1e+06 norm 1 kv 2; dense 256"}}},
    {"gemma4-dense", 6, 0, 1e-6, 8, 30, 0, false,
     {{0, 1, "attention 4/2 x 16,16 scale 1 window 16 halves 16 of 10000 without factors norm 1 kv own; dense 128"},
      {2, 2, "attention 4/1 x 32,32 scale 1 halves 32 of 1e+06 norm 1 kv own; dense 128"},
      {3, 4, "attention 4/2 x 16,16 scale 1 window 16 halves 16 of 10000 without factors norm 1 kv own; dense 128"},
      {5, 5, "attention 4/1 x 32,32 scale 1 halves 32 of 1e+06 norm 1 kv own; dense 128"}}},
    {"gemma4-moe", 6, 0, 1e-6, 8, 30, 0, false,
     {{0, 1,
       "attention 4/2 x 16,16 scale 1 window 16 halves 16 of 10000 without factors norm 1 kv own; "
       "dense 128 experts 2 of 8 x 32"},
      {2, 2, "attention 4/1 x 32,32 scale 1 halves 32 of 1e+06 norm 1 kv own; dense 128 experts 2 of 8 x 32"},
      {3, 4,
       "attention 4/2 x 16,16 scale 1 window 16 halves 16 of 10000 without factors norm 1 kv own; "
       "dense 128 experts 2 of 8 x 32"},
      {5, 5, "attention 4/1 x 32,32 scale 1 halves 32 of 1e+06 norm 1 kv own; dense 128 experts 2 of 8 x 32"}}},
    {"qwen35", 4, 1, 1e-6, 1, 0, 0, true,
     {{0, 2, "deltanet 2/4 x 16 conv 4; dense 128"},
      {3, 4, "attention 4/2 x 32,32 scale 0.176777 halves 8 of 10000 norm 1 kv own; dense 128"}}},
    {"qwen35moe", 4, 1, 1e-6, 1, 0, 0, true,
     {{0, 2, "deltanet 2/4 x 16 conv 4; experts 4 of 16 x 32 shared 32"},
      {3, 4, "attention 4/2 x 32,32 scale 0.176777 halves 8 of 10000 norm 1 kv own; experts 4 of 16 x 32 shared 32"}}},
};

enum { FAMILIES = sizeof family_rows / sizeof *family_rows };

static void print_attention(const st_attention_desc *a, uint32_t layer, st_buf *out)
{
    st_buf_printf(out, "attention %u/%u x %u,%u scale %g", a->heads, a->kv_heads, a->key_length, a->value_length,
                  (double)a->scale);
    if (a->window) st_buf_printf(out, " window %u", a->window);
    if (a->chunk) st_buf_printf(out, " chunk %u", a->chunk);
    if (a->temperature > 0) st_buf_printf(out, " temperature %g/%u", (double)a->temperature, a->temperature_chunk);
    if (a->rope.style == ST_ROPE_NONE) st_buf_printf(out, " no rope");
    else st_buf_printf(out, " %s %u of %g%s", a->rope.style == ST_ROPE_PAIRS ? "pairs" : "halves", a->rope.dims,
                       (double)a->rope.base, a->rope.factors ? "" : " without factors");
    if (a->rope.scaling != ST_ROPE_SCALING_NONE) st_buf_printf(out, " scaled %g", (double)a->rope.scaling_factor);
    st_buf_printf(out, " norm %d", (int)a->qk_norm);
    if (a->kv_layer == layer) st_buf_printf(out, " kv own");
    else st_buf_printf(out, " kv %u", a->kv_layer);
}

static void print_layer(const st_layer_desc *l, uint32_t layer, st_buf *out)
{
    if (l->kind == ST_LAYER_ATTENTION) print_attention(&l->attention, layer, out);
    else st_buf_printf(out, "deltanet %u/%u x %u conv %u", l->deltanet.key_heads, l->deltanet.value_heads,
                       l->deltanet.state_size, l->deltanet.conv_width);
    st_buf_printf(out, ";");
    if (l->ffn.dense_width) st_buf_printf(out, " dense %u", l->ffn.dense_width);
    if (l->ffn.experts)
        st_buf_printf(out, " experts %u of %u x %u", l->ffn.experts_used, l->ffn.experts, l->ffn.expert_width);
    if (l->ffn.shared_width) st_buf_printf(out, " shared %u", l->ffn.shared_width);
    st_buf_append_char(out, '\0');
}

static void check_layer(const st_desc *desc, uint32_t layer, const char *expected)
{
    st_buf text = {0};
    print_layer(&desc->layers[layer], layer, &text);
    assert_string_equal(text.data, expected);
    st_buf_free(&text);
}

static void every_family_is_described(void **state)
{
    const family_row *row = *state;
    built b;
    build(&b, row->name, NULL, 0);
    assert_int_equal(b.status, STRATA_OK);
    const st_desc *d = b.desc;
    assert_int_equal(d->layer_count, row->layers);
    assert_int_equal(d->nextn_count, row->nextn);
    assert_int_equal(d->embedding, 64);
    assert_int_equal(d->vocab, 320);
    assert_int_equal(d->context_max, 512);
    assert_int_equal(d->per_layer_width, row->per_layer);
    assert_float_equal(d->norm_epsilon, row->epsilon, 1e-12);
    assert_float_equal(d->embedding_scale, row->embedding_scale, 0);
    assert_float_equal(d->logit_softcap, row->softcap, 0);
    assert_int_equal(d->recurrent, row->recurrent);
    uint32_t next = 0;
    for (size_t i = 0; i < 6 && row->rows[i].text; i++)
        for (uint32_t layer = row->rows[i].first; layer <= row->rows[i].last; layer++, next++) {
            assert_int_equal(layer, next);
            check_layer(d, layer, row->rows[i].text);
        }
    assert_int_equal(next, row->layers + row->nextn);
    tear_down(&b);
}

/* ---- defaults and optional keys ---------------------------------------------------------------------------------- */

typedef struct allowed {
    const char *family;
    change changes[4];
    uint32_t layer;
    const char *text;
} allowed;

static const allowed allowances[] = {
    {"llama", {DROPPED(".attention.head_count_kv")}, 0,
     "attention 4/4 x 16,16 scale 0.25 pairs 16 of 10000 norm 0 kv own; dense 128"},
    {"llama", {DROPPED(".attention.key_length"), DROPPED(".attention.value_length"), DROPPED(".rope.dimension_count"),
               DROPPED(".rope.freq_base")}, 3,
     "attention 4/2 x 16,16 scale 0.25 pairs 16 of 10000 norm 0 kv own; dense 128"},
    {"llama", {INT(".attention.value_length", 24)}, 0,
     "attention 4/2 x 16,24 scale 0.25 pairs 16 of 10000 norm 0 kv own; dense 128"},
    {"llama", {INTS(".attention.head_count", 4, 4), INTS(".feed_forward_length", 77, 9)}, 2,
     "attention 4/2 x 16,16 scale 0.25 pairs 16 of 10000 norm 0 kv own; dense 77"},
    {"llama", {WORD(".rope.scaling.type", "linear"), REAL(".rope.scaling.factor", 4)}, 0,
     "attention 4/2 x 16,16 scale 0.25 pairs 16 of 10000 scaled 4 norm 0 kv own; dense 128"},
    {"llama", {WORD(".rope.scaling.type", "none"), REAL(".rope.scaling.factor", 4)}, 0,
     "attention 4/2 x 16,16 scale 0.25 pairs 16 of 10000 norm 0 kv own; dense 128"},
    {"llama4", {INT(".expert_count", 128)}, 0,
     "attention 4/2 x 16,16 scale 0.25 chunk 8192 pairs 16 of 500000 norm 0 kv own; experts 1 of 128 x 64 shared 64"},
    {"llama4", {INT(".interleave_moe_layer_step", 2)}, 0,
     "attention 4/2 x 16,16 scale 0.25 chunk 8192 pairs 16 of 500000 norm 3 kv own; dense 128"},
    {"llama4", {INT(".interleave_moe_layer_step", 2)}, 1,
     "attention 4/2 x 16,16 scale 0.25 chunk 8192 pairs 16 of 500000 norm 3 kv own; experts 1 of 4 x 64 shared 64"},
    {"llama4", {INT(".attention.shared_kv_layers", 1), INT(".block_count", 3)}, 2,
     "attention 4/2 x 16,16 scale 0.25 chunk 8192 pairs 16 of 500000 norm 3 kv 1; experts 1 of 4 x 64 shared 64"},
    {"gemma4-e", {DROPPED(".attention.sliding_window_pattern")}, 0,
     "attention 4/2 x 32,32 scale 1 halves 32 of 1e+06 norm 1 kv own; dense 128"},
    {"gemma4-e", {DROPPED(".attention.key_length_swa"), DROPPED(".attention.value_length_swa"),
                  DROPPED(".rope.dimension_count_swa"), DROPPED(".rope.freq_base_swa")}, 0,
     "attention 4/2 x 32,32 scale 1 window 16 halves 32 of 1e+06 without factors norm 1 kv own; dense 128"},
    {"qwen35", {DROPPED(".ssm.inner_size"), INT(".full_attention_interval", 2)}, 1,
     "attention 4/2 x 32,32 scale 0.176777 halves 8 of 10000 norm 1 kv own; dense 128"},
    {"qwen35", {INTS(".attention.head_count_kv", 2, 4), DROPPED(".attention.value_length")}, 4,
     "attention 4/2 x 32,32 scale 0.176777 halves 8 of 10000 norm 1 kv own; dense 128"},
    {"qwen35", {INT(".nextn_predict_layers", 0)}, 4, "deltanet 2/4 x 16 conv 4; dense 128"},
    {"mixtral", {INT(".expert_feed_forward_length", 33)}, 0,
     "attention 4/2 x 16,16 scale 0.25 pairs 16 of 1e+06 norm 0 kv own; experts 2 of 4 x 33"},
};

enum { ALLOWANCES = sizeof allowances / sizeof *allowances };

static void optional_keys_have_defaults(void **state)
{
    const allowed *row = *state;
    built b;
    build(&b, row->family, row->changes, 4);
    if (b.status != STRATA_OK) fail_msg("%s", b.error.message);
    check_layer(b.desc, row->layer, row->text);
    tear_down(&b);
}

/* A chunked layer and a full one cannot share KV. */
static void chunked_layers_share_among_themselves(void **state)
{
    (void)state;
    built b;
    const change changes[] = {INT(".attention.shared_kv_layers", 1)};
    build(&b, "llama4", changes, 1); /* the last layer is full, and no earlier one is */
    assert_int_equal(b.status, STRATA_FORMAT);
    assert_non_null(strstr(b.error.message, "an earlier layer of the same kind"));
    tear_down(&b);
}

static void yarn_is_read(void **state)
{
    (void)state;
    built b;
    const change changes[] = {WORD(".rope.scaling.type", "yarn"), REAL(".rope.scaling.factor", 4),
                              INT(".rope.scaling.original_context_length", 128)};
    build(&b, "llama", changes, 3);
    assert_int_equal(b.status, STRATA_OK);
    const st_rope *rope = &b.desc->layers[0].attention.rope;
    assert_int_equal(rope->scaling, ST_ROPE_SCALING_YARN);
    assert_float_equal(rope->original_context, 128, 0);
    assert_float_equal(rope->beta_fast, 32, 0);
    assert_float_equal(rope->beta_slow, 1, 0);
    assert_float_equal(rope->attention_factor, 1 + 0.1f * logf(4), 1e-6);
    tear_down(&b);
}

static void the_token_list_sets_the_vocabulary_size(void **state)
{
    (void)state;
    built b;
    const change changes[] = {INT(".vocab_size", 999)};
    build(&b, "llama", changes, 1);
    assert_int_equal(b.status, STRATA_OK);
    assert_int_equal(b.desc->vocab, 320);
    tear_down(&b);
    const change without[] = {INT(".vocab_size", 999), DROPPED("tokenizer.ggml.tokens")};
    build(&b, "llama", without, 2);
    assert_int_equal(b.status, STRATA_OK);
    assert_int_equal(b.desc->vocab, 999);
    tear_down(&b);
}

int main(void)
{
    static struct CMUnitTest tests[REFUSALS + FAMILIES + ALLOWANCES + 3];
    static char names[REFUSALS + FAMILIES + ALLOWANCES + 3][96];
    size_t n = 0;
    for (size_t i = 0; i < REFUSALS; i++, n++) {
        const change *first = &refusals[i].changes[0];
        snprintf(names[n], sizeof *names, "refused %zu: %s %s %s", i, refusals[i].family, first->key,
                 first->kind == DROP ? "missing" : first->kind == TEXT ? first->text : "");
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = invalid_keys_are_refused,
                                       .initial_state = (void *)(uintptr_t)&refusals[i]};
    }
    for (size_t i = 0; i < FAMILIES; i++, n++) {
        snprintf(names[n], sizeof *names, "described: %s", family_rows[i].name);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = every_family_is_described,
                                       .initial_state = (void *)(uintptr_t)&family_rows[i]};
    }
    for (size_t i = 0; i < ALLOWANCES; i++, n++) {
        snprintf(names[n], sizeof *names, "allowed %zu: %s %s", i, allowances[i].family, allowances[i].changes[0].key);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = optional_keys_have_defaults,
                                       .initial_state = (void *)(uintptr_t)&allowances[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(chunked_layers_share_among_themselves);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(yarn_is_read);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(the_token_list_sets_the_vocabulary_size);
    return _cmocka_run_group_tests("desc", tests, n, NULL, NULL);
}
