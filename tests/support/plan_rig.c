#include "support/plan_rig.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

const plan_shape plan_small = {.arch = "llama", .layers = 4, .embedding = 64, .heads = 4, .kv_heads = 2, .head = 16,
                               .ffn = 128, .vocab = 256, .context = 4096};
const plan_shape plan_small_moe = {.arch = "qwen3moe",
                                   .layers = 4,
                                   .embedding = 64,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head = 16,
                                   .vocab = 256,
                                   .context = 16384,
                                   .experts = 8,
                                   .used = 2,
                                   .expert_width = 32};

/* --- the file ---------------------------------------------------------------------------------------------------- */

typedef struct builder {
    gguf_writer writer;
    const plan_shape *s;
    uint32_t layer;
} builder;

static void put(builder *b, const char *key, uint32_t value)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", b->s->arch, key);
    if (value) gguf_write_key_u32(&b->writer, name, value);
}

/* A matrix whose rows are not a whole number of blocks has type float32. */
static void tensor(builder *b, const char *name, st_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    uint64_t ne[3] = {ne0, ne1, ne2};
    const st_type_info *info = st_type_find(type);
    gguf_write_tensor(&b->writer, name, ne0 % info->block ? ST_TYPE_F32 : type, 3, ne);
}

static void of_layer(builder *b, const char *name, st_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    char full[96];
    snprintf(full, sizeof full, "blk.%u.%s", b->layer, name);
    tensor(b, full, type, ne0, ne1, ne2);
}

static void vector(builder *b, const char *name, uint64_t length)
{
    of_layer(b, name, ST_TYPE_F32, length, 1, 1);
}

static void matrix(builder *b, const char *name, uint64_t in, uint64_t out)
{
    of_layer(b, name, b->s->type, in, out, 1);
}

static bool is(const builder *b, const char *arch)
{
    return strcmp(b->s->arch, arch) == 0;
}

static bool is_full(const plan_shape *s, uint32_t layer)
{
    return s->window == 0 || (layer + 1) % s->full_every == 0;
}

static bool has_own_kv(const plan_shape *s, uint32_t layer)
{
    return layer + s->shared_kv < s->layers || layer >= s->layers;
}

static uint32_t kv_heads_of(const plan_shape *s, uint32_t layer)
{
    return s->full_kv_heads && is_full(s, layer) ? s->full_kv_heads : s->kv_heads;
}

static void write_attention(builder *b)
{
    const plan_shape *s = b->s;
    bool full = is_full(s, b->layer);
    uint64_t head = full ? s->head : s->window_head, q = s->heads * head, kv = kv_heads_of(s, b->layer) * head;
    bool bias = is(b, "qwen2") || is(b, "qwen2moe"), norms = is(b, "qwen3") || is(b, "qwen3moe") || s->delta_size;
    matrix(b, "attn_q.weight", s->embedding, s->delta_size ? 2 * q : q);
    matrix(b, "attn_output.weight", q, s->embedding);
    if (bias) vector(b, "attn_q.bias", q);
    if (norms || is(b, "gemma4")) vector(b, "attn_q_norm.weight", head);
    if (is(b, "olmoe")) vector(b, "attn_q_norm.weight", q);
    if (!has_own_kv(s, b->layer)) return;
    matrix(b, "attn_k.weight", s->embedding, kv);
    if (!full || !s->full_kv_heads) of_layer(b, "attn_v.weight", s->big, s->embedding, kv, 1);
    if (bias) vector(b, "attn_k.bias", kv), vector(b, "attn_v.bias", kv);
    if (norms || is(b, "gemma4")) vector(b, "attn_k_norm.weight", head);
    if (is(b, "olmoe")) vector(b, "attn_k_norm.weight", kv);
}

static void write_deltanet(builder *b)
{
    const plan_shape *s = b->s;
    uint64_t keys = (uint64_t)s->delta_keys * s->delta_size, values = (uint64_t)s->delta_values * s->delta_size;
    matrix(b, "attn_qkv.weight", s->embedding, 2 * keys + values);
    matrix(b, "attn_gate.weight", s->embedding, values);
    of_layer(b, "ssm_conv1d.weight", ST_TYPE_F32, 4, 2 * keys + values, 1);
    vector(b, "ssm_dt.bias", s->delta_values);
    vector(b, "ssm_a", s->delta_values);
    of_layer(b, "ssm_alpha.weight", ST_TYPE_F32, s->embedding, s->delta_values, 1);
    of_layer(b, "ssm_beta.weight", ST_TYPE_F32, s->embedding, s->delta_values, 1);
    vector(b, "ssm_norm.weight", s->delta_size);
    matrix(b, "ssm_out.weight", values, s->embedding);
}

static bool has_experts(const plan_shape *s, uint32_t layer)
{
    return s->experts && (s->moe_step == 0 || (layer + 1) % s->moe_step == 0);
}

static void write_experts(builder *b)
{
    const plan_shape *s = b->s;
    st_type down = b->layer >= s->layers / 2 ? s->big : s->type;
    of_layer(b, "ffn_gate_inp.weight", ST_TYPE_F32, s->embedding, s->experts, 1);
    if (is(b, "gemma4")) {
        static const char *const norms[] = {"pre_ffw_norm_2.weight", "post_ffw_norm_1.weight", "post_ffw_norm_2.weight",
                                            "ffn_gate_inp.scale"};
        for (int i = 0; i < 4; i++) vector(b, norms[i], s->embedding);
        vector(b, "ffn_down_exps.scale", s->experts);
        of_layer(b, "ffn_gate_up_exps.weight", s->type, s->embedding, 2 * (uint64_t)s->expert_width, s->experts);
    } else {
        of_layer(b, "ffn_gate_exps.weight", s->type, s->embedding, s->expert_width, s->experts);
        of_layer(b, "ffn_up_exps.weight", s->type, s->embedding, s->expert_width, s->experts);
    }
    of_layer(b, "ffn_down_exps.weight", down, s->expert_width, s->embedding, s->experts);
    uint32_t shared = is(b, "llama4") ? s->expert_width : s->shared_width;
    if (shared == 0) return;
    if (!is(b, "llama4")) vector(b, "ffn_gate_inp_shexp.weight", s->embedding);
    matrix(b, "ffn_gate_shexp.weight", s->embedding, shared);
    matrix(b, "ffn_up_shexp.weight", s->embedding, shared);
    matrix(b, "ffn_down_shexp.weight", shared, s->embedding);
}

static void write_gemma(builder *b)
{
    const plan_shape *s = b->s;
    vector(b, "post_attention_norm.weight", s->embedding);
    vector(b, "post_ffw_norm.weight", s->embedding);
    vector(b, "layer_output_scale.weight", 1);
    if (s->per_layer == 0) return;
    matrix(b, "inp_gate.weight", s->embedding, s->per_layer);
    matrix(b, "proj.weight", s->per_layer, s->embedding);
    vector(b, "post_norm.weight", s->embedding);
}

static void write_layer(builder *b)
{
    const plan_shape *s = b->s;
    bool experts = has_experts(s, b->layer);
    vector(b, "attn_norm.weight", s->embedding);
    vector(b, s->delta_size ? "post_attention_norm.weight" : "ffn_norm.weight", s->embedding);
    if (s->delta_size && b->layer < s->layers && (b->layer + 1) % 4) write_deltanet(b);
    else write_attention(b);
    if (is(b, "gemma4")) write_gemma(b);
    if (experts) write_experts(b);
    if (experts && !is(b, "gemma4")) return;
    matrix(b, "ffn_gate.weight", s->embedding, s->ffn);
    matrix(b, "ffn_up.weight", s->embedding, s->ffn);
    of_layer(b, "ffn_down.weight", b->layer >= s->layers / 2 ? s->big : s->type, s->ffn, s->embedding, 1);
}

static void write_nextn(builder *b)
{
    const plan_shape *s = b->s;
    b->layer = s->layers;
    write_layer(b);
    matrix(b, "nextn.eh_proj.weight", 2 * (uint64_t)s->embedding, s->embedding);
    vector(b, "nextn.enorm.weight", s->embedding);
    vector(b, "nextn.hnorm.weight", s->embedding);
    vector(b, "nextn.shared_head_norm.weight", s->embedding);
}

static void write_model(builder *b)
{
    const plan_shape *s = b->s;
    tensor(b, "token_embd.weight", s->tied ? s->big : s->type, s->embedding, s->vocab, 1);
    tensor(b, "output_norm.weight", ST_TYPE_F32, s->embedding, 1, 1);
    if (!s->tied) tensor(b, "output.weight", s->big, s->embedding, s->vocab, 1);
    if (s->per_layer) {
        uint64_t all = (uint64_t)s->per_layer * s->layers;
        tensor(b, "per_layer_token_embd.weight", s->type, all, s->vocab, 1);
        tensor(b, "per_layer_model_proj.weight", s->type, s->embedding, all, 1);
        tensor(b, "per_layer_proj_norm.weight", ST_TYPE_F32, s->per_layer, 1, 1);
    }
    for (b->layer = 0; b->layer < s->layers; b->layer++) write_layer(b);
    if (s->nextn) write_nextn(b);
}

static void write_keys(builder *b)
{
    const plan_shape *s = b->s;
    gguf_write_key_string(&b->writer, "general.architecture", s->arch);
    put(b, "block_count", s->layers + s->nextn);
    put(b, "nextn_predict_layers", s->nextn);
    put(b, "context_length", s->context);
    put(b, "embedding_length", s->embedding);
    put(b, "feed_forward_length", s->ffn ? s->ffn : s->expert_width);
    put(b, "attention.head_count", s->heads);
    if (!s->full_kv_heads) put(b, "attention.head_count_kv", s->kv_heads);
    put(b, "attention.key_length", s->head);
    put(b, "attention.value_length", s->head);
    put(b, "vocab_size", s->vocab);
    put(b, "expert_count", s->experts);
    put(b, "expert_used_count", s->used);
    put(b, "expert_feed_forward_length", s->expert_width);
    put(b, "expert_shared_feed_forward_length", s->shared_width);
    put(b, "interleave_moe_layer_step", s->moe_step);
    put(b, "embedding_length_per_layer_input", s->per_layer);
    put(b, "attention.shared_kv_layers", s->shared_kv);
    if (s->delta_size) {
        put(b, "ssm.conv_kernel", 4);
        put(b, "ssm.state_size", s->delta_size);
        put(b, "ssm.group_count", s->delta_keys);
        put(b, "ssm.time_step_rank", s->delta_values);
        put(b, "full_attention_interval", 4);
    }
    if (strcmp(s->arch, "gemma4") != 0) return;
    put(b, "attention.sliding_window", s->window ? s->window : 1);
    put(b, "attention.key_length_swa", s->window_head ? s->window_head : s->head);
    put(b, "attention.value_length_swa", s->window_head ? s->window_head : s->head);
    if (s->full_kv_heads) {
        gguf_write_key_array(&b->writer, "gemma4.attention.head_count_kv", ST_GGUF_U32, s->layers);
        for (uint32_t i = 0; i < s->layers; i++) gguf_write_u32(&b->writer, kv_heads_of(s, i));
    }
    gguf_write_key_array(&b->writer, "gemma4.attention.sliding_window_pattern", ST_GGUF_BOOL, s->layers);
    for (uint32_t i = 0; i < s->layers; i++) st_buf_append_char(&b->writer.out, !is_full(s, i));
}

/* Maps the directory followed by address space for the tensors, none of whose pages is ever touched. */
static void map_file(plan_rig *rig, const gguf_writer *writer)
{
    size_t start = (writer->out.length + 31) / 32 * 32;
    rig->file_bytes = start + (size_t)writer->data_bytes;
    void *memory =
        mmap(NULL, rig->file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    rig->file = memory;
    memcpy(rig->file, writer->out.data, writer->out.length);
}

/* --- the rig ----------------------------------------------------------------------------------------------------- */

static void set_devices(plan_rig *rig)
{
    st_profile *host = &rig->devices[ST_HOST], *card = &rig->devices[ST_CARD];
    *host = st_profile_default(ST_DEVICE_HOST);
    *card = st_profile_default(ST_DEVICE_CARD);
    host->total_bytes = host->free_bytes = card->total_bytes = card->free_bytes = (uint64_t)1 << 40;
    host->memory_rate = 50e9;
    host->op_rate = 1e12;
    host->disk_rate = 3e9;
    card->memory_rate = 400e9;
    card->op_rate = 50e12;
    card->link_up = card->link_down = 25e9;
    host->granularity = card->granularity = 1;
    card->overhead_bytes = 0;
}

void plan_rig_open(plan_rig *rig, const plan_shape *shape)
{
    builder b = {.s = shape};
    gguf_writer_begin(&b.writer, 3);
    write_keys(&b);
    write_model(&b);
    plan_rig_open_file(rig, &b.writer);
}

void plan_rig_open_file(plan_rig *rig, gguf_writer *writer)
{
    *rig = (plan_rig){.options = st_plan_options_default()};
    gguf_writer_finish_directory(writer);
    assert_false(writer->out.failed);
    map_file(rig, writer);
    gguf_writer_free(writer);
    st_plan_source *s = &rig->source;
    if (st_gguf_open_memory("plan.gguf", rig->file, rig->file_bytes, &rig->gguf, &rig->error) != STRATA_OK ||
        st_program_of_file(rig->gguf, &rig->arena, &s->desc, &s->binding, &s->program, &rig->error) != STRATA_OK)
        fail_msg("%s", rig->error.message);
    set_devices(rig);
    s->devices = rig->devices;
    s->device_count = 2;
    rig->options.batch = 16;
    rig->options.margin_bytes[ST_HOST] = rig->options.margin_bytes[ST_CARD] = 0;
}

void plan_rig_scratch(const plan_rig *rig, uint32_t device, uint32_t batch, st_scratch *out, uint32_t count)
{
    const st_program *program = rig->source.program;
    assert_true(program->op_count <= count);
    for (uint32_t i = 0; i < program->op_count; i++) {
        st_bound_op shape = st_bound_shape(program, rig->source.binding, &program->ops[i]);
        out[i] = rig->devices[device].scratch(&shape, batch);
    }
}

void plan_rig_close(plan_rig *rig)
{
    st_arena_free(&rig->plan_arena);
    st_arena_free(&rig->arena);
    st_gguf_close(rig->gguf);
    munmap(rig->file, rig->file_bytes);
}

strata_status plan_rig_plan(plan_rig *rig)
{
    st_arena_free(&rig->plan_arena);
    rig->plan = NULL;
    memset(&rig->error, 0, sizeof rig->error);
    rig->status = st_plan_build(&rig->source, &rig->options, &rig->plan_arena, &rig->plan, &rig->error);
    return rig->status;
}

const st_plan *plan_rig_get(plan_rig *rig)
{
    if (plan_rig_plan(rig) != STRATA_OK) fail_msg("%s (%s)", rig->error.message, rig->error.hint);
    plan_rig_check(rig);
    return rig->plan;
}
