#include "support/full_size.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "quant/quant.h"

typedef struct file {
    gguf_writer *writer;
    const char *arch;
    uint32_t layer;
} file;

static void put(const file *f, const char *key, uint32_t value)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", f->arch, key);
    gguf_write_key_u32(f->writer, name, value);
}

static void put_float(const file *f, const char *key, float value)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", f->arch, key);
    gguf_write_key_f32(f->writer, name, value);
}

static void whole(const file *f, const char *name, st_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    uint64_t ne[3] = {ne0, ne1, ne2};
    gguf_write_tensor(f->writer, name, type, 3, ne);
}

static void typed(const file *f, const char *name, st_type type, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    char full[96];
    snprintf(full, sizeof full, "blk.%u.%s", f->layer, name);
    whole(f, full, type, ne0, ne1, ne2);
}

/* Q4_K, or a type of shorter blocks where the rows are not whole ones of it. */
static void matrix(const file *f, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    typed(f, name, ne0 % 256 ? ST_TYPE_IQ4_NL : ST_TYPE_Q4_K, ne0, ne1, ne2);
}

static void vector(const file *f, const char *name, uint64_t length)
{
    typed(f, name, ST_TYPE_F32, length, 1, 1);
}

typedef struct common {
    uint32_t layers, nextn, embedding, heads, kv_heads, head, ffn, vocab, context, experts, used, expert_width;
} common;

static file begin(gguf_writer *writer, const char *arch, const common *c)
{
    file f = {.writer = writer, .arch = arch};
    gguf_write_key_string(writer, "general.architecture", arch);
    put(&f, "block_count", c->layers + c->nextn);
    if (c->nextn) put(&f, "nextn_predict_layers", c->nextn);
    put(&f, "embedding_length", c->embedding);
    put(&f, "feed_forward_length", c->ffn);
    put(&f, "attention.head_count", c->heads);
    put(&f, "attention.head_count_kv", c->kv_heads);
    put(&f, "context_length", c->context);
    put(&f, "vocab_size", c->vocab);
    put(&f, "expert_count", c->experts);
    put(&f, "expert_used_count", c->used);
    put(&f, "expert_feed_forward_length", c->expert_width);
    if (c->head) put(&f, "attention.key_length", c->head);
    if (c->head) put(&f, "attention.value_length", c->head);
    return f;
}

/* The model's own tensors, after all keys. */
static void write_trunk(const file *f, const common *c, st_type table, st_type output)
{
    whole(f, "token_embd.weight", table, c->embedding, c->vocab, 1);
    whole(f, "output_norm.weight", ST_TYPE_F32, c->embedding, 1, 1);
    whole(f, "output.weight", output, c->embedding, c->vocab, 1);
}

static void write_experts(const file *f, const common *c)
{
    typed(f, "ffn_gate_inp.weight", ST_TYPE_F32, c->embedding, c->experts, 1);
    matrix(f, "ffn_gate_exps.weight", c->embedding, c->expert_width, c->experts);
    matrix(f, "ffn_up_exps.weight", c->embedding, c->expert_width, c->experts);
    matrix(f, "ffn_down_exps.weight", c->expert_width, c->embedding, c->experts);
}

static void write_shared(const file *f, const common *c, uint32_t width)
{
    matrix(f, "ffn_gate_shexp.weight", c->embedding, width, 1);
    matrix(f, "ffn_up_shexp.weight", c->embedding, width, 1);
    matrix(f, "ffn_down_shexp.weight", width, c->embedding, 1);
}

static void write_dense(const file *f, const common *c)
{
    matrix(f, "ffn_gate.weight", c->embedding, c->ffn, 1);
    matrix(f, "ffn_up.weight", c->embedding, c->ffn, 1);
    matrix(f, "ffn_down.weight", c->ffn, c->embedding, 1);
}

static void write_attention(const file *f, const common *c)
{
    uint64_t q = (uint64_t)c->heads * c->head, kv = (uint64_t)c->kv_heads * c->head;
    matrix(f, "attn_q.weight", c->embedding, q, 1);
    matrix(f, "attn_k.weight", c->embedding, kv, 1);
    matrix(f, "attn_v.weight", c->embedding, kv, 1);
    matrix(f, "attn_output.weight", q, c->embedding, 1);
}

static void write_biases(const file *f, const common *c)
{
    vector(f, "attn_q.bias", (uint64_t)c->heads * c->head);
    vector(f, "attn_k.bias", (uint64_t)c->kv_heads * c->head);
    vector(f, "attn_v.bias", (uint64_t)c->kv_heads * c->head);
}

/* --- the models ------------------------------------------------------------------------------------------------------ */

static void gpt_oss_120b(gguf_writer *writer)
{
    static const common c = {.layers = 36, .embedding = 2880, .heads = 64, .kv_heads = 8, .head = 64, .ffn = 2880, .vocab = 201088,
                             .context = 131072, .experts = 128, .used = 4, .expert_width = 2880};
    file f = begin(writer, "gpt-oss", &c);
    put(&f, "attention.sliding_window", 128);
    gguf_write_key_string(writer, "gpt-oss.rope.scaling.type", "yarn");
    put_float(&f, "rope.scaling.factor", 32);
    put(&f, "rope.scaling.original_context_length", 4096);
    put_float(&f, "rope.freq_base", 150000);
    write_trunk(&f, &c, ST_TYPE_Q8_0, ST_TYPE_Q8_0); /* rows are no whole number of blocks of 256 */
    for (f.layer = 0; f.layer < c.layers; f.layer++) {
        vector(&f, "attn_norm.weight", c.embedding);
        vector(&f, "post_attention_norm.weight", c.embedding);
        vector(&f, "attn_sinks.weight", c.heads);
        write_attention(&f, &c);
        write_biases(&f, &c);
        vector(&f, "attn_output.bias", c.embedding);
        typed(&f, "ffn_gate_inp.weight", ST_TYPE_F32, c.embedding, c.experts, 1);
        vector(&f, "ffn_gate_inp.bias", c.experts);
        static const char *const names[] = {"gate", "up", "down"};
        for (int i = 0; i < 3; i++) {
            char name[64];
            snprintf(name, sizeof name, "ffn_%s_exps.weight", names[i]);
            typed(&f, name, ST_TYPE_MXFP4, c.embedding, c.expert_width, c.experts);
            snprintf(name, sizeof name, "ffn_%s_exps.bias", names[i]);
            typed(&f, name, ST_TYPE_F32, c.embedding, c.experts, 1);
        }
    }
}

static void glm_45_air(gguf_writer *writer)
{
    static const common c = {.layers = 46, .nextn = 1, .embedding = 4096, .heads = 96, .kv_heads = 8, .head = 128, .ffn = 10944,
                             .vocab = 151552, .context = 131072, .experts = 128, .used = 8, .expert_width = 1408};
    file f = begin(writer, "glm4moe", &c);
    put(&f, "rope.dimension_count", 64);
    put(&f, "leading_dense_block_count", 1);
    put(&f, "expert_shared_count", 1);
    put(&f, "expert_gating_func", 2);
    gguf_write_key_bool(writer, "glm4moe.expert_weights_norm", true);
    write_trunk(&f, &c, ST_TYPE_Q4_K, ST_TYPE_Q6_K);
    for (f.layer = 0; f.layer < c.layers + c.nextn; f.layer++) {
        vector(&f, "attn_norm.weight", c.embedding);
        vector(&f, "post_attention_norm.weight", c.embedding);
        write_attention(&f, &c);
        write_biases(&f, &c);
        if (f.layer == 0) {
            write_dense(&f, &c);
            continue;
        }
        write_experts(&f, &c);
        write_shared(&f, &c, 1408);
        vector(&f, "exp_probs_b.bias", c.experts);
    }
    f.layer = c.layers;
    matrix(&f, "nextn.eh_proj.weight", 2 * (uint64_t)c.embedding, c.embedding, 1);
    vector(&f, "nextn.enorm.weight", c.embedding);
    vector(&f, "nextn.hnorm.weight", c.embedding);
    vector(&f, "nextn.shared_head_norm.weight", c.embedding);
}

static void write_latent(const file *f, const common *c)
{
    vector(f, "attn_norm.weight", c->embedding);
    vector(f, "ffn_norm.weight", c->embedding);
    matrix(f, "attn_q_a.weight", c->embedding, 1536, 1);
    vector(f, "attn_q_a_norm.weight", 1536);
    matrix(f, "attn_q_b.weight", 1536, (uint64_t)c->heads * 192, 1);
    matrix(f, "attn_kv_a_mqa.weight", c->embedding, 576, 1);
    vector(f, "attn_kv_a_norm.weight", 512);
    matrix(f, "attn_k_b.weight", 128, 512, c->heads);
    matrix(f, "attn_v_b.weight", 512, 128, c->heads);
    matrix(f, "attn_output.weight", (uint64_t)c->heads * 128, c->embedding, 1);
}

static void deepseek_v3(gguf_writer *writer)
{
    static const common c = {.layers = 61, .embedding = 7168, .heads = 128, .kv_heads = 1, .ffn = 18432, .vocab = 129280,
                             .context = 163840, .experts = 256, .used = 8, .expert_width = 2048};
    file f = begin(writer, "deepseek2", &c);
    put(&f, "attention.q_lora_rank", 1536);
    put(&f, "attention.kv_lora_rank", 512);
    put(&f, "attention.key_length", 576);
    put(&f, "attention.value_length", 512);
    put(&f, "attention.key_length_mla", 192);
    put(&f, "attention.value_length_mla", 128);
    put(&f, "rope.dimension_count", 64);
    put(&f, "leading_dense_block_count", 3);
    put(&f, "expert_shared_count", 1);
    put(&f, "expert_gating_func", 2);
    put(&f, "expert_group_count", 8);
    put(&f, "expert_group_used_count", 4);
    put_float(&f, "expert_weights_scale", 2.5f);
    gguf_write_key_bool(writer, "deepseek2.expert_weights_norm", true);
    write_trunk(&f, &c, ST_TYPE_Q4_K, ST_TYPE_Q6_K);
    for (f.layer = 0; f.layer < c.layers; f.layer++) {
        write_latent(&f, &c);
        if (f.layer < 3) {
            write_dense(&f, &c);
            continue;
        }
        write_experts(&f, &c);
        write_shared(&f, &c, 2048);
        vector(&f, "exp_probs_b.bias", c.experts);
    }
}

static void minimax_m2(gguf_writer *writer)
{
    static const common c = {.layers = 62, .embedding = 3072, .heads = 48, .kv_heads = 8, .head = 128, .ffn = 1536, .vocab = 200064,
                             .context = 196608, .experts = 256, .used = 8, .expert_width = 1536};
    file f = begin(writer, "minimax-m2", &c);
    put(&f, "rope.dimension_count", 64);
    put(&f, "expert_gating_func", 2);
    write_trunk(&f, &c, ST_TYPE_Q4_K, ST_TYPE_Q6_K);
    for (f.layer = 0; f.layer < c.layers; f.layer++) {
        vector(&f, "attn_norm.weight", c.embedding);
        vector(&f, "ffn_norm.weight", c.embedding);
        write_attention(&f, &c);
        vector(&f, "attn_q_norm.weight", (uint64_t)c.heads * c.head);
        vector(&f, "attn_k_norm.weight", (uint64_t)c.kv_heads * c.head);
        write_experts(&f, &c);
        vector(&f, "exp_probs_b.bias", c.experts);
    }
}

static void write_delta(const file *f, const common *c)
{
    matrix(f, "attn_qkv.weight", c->embedding, 2 * 16 * 128 + 32 * 128, 1);
    matrix(f, "attn_gate.weight", c->embedding, 32 * 128, 1);
    typed(f, "ssm_conv1d.weight", ST_TYPE_F32, 4, 2 * 16 * 128 + 32 * 128, 1);
    vector(f, "ssm_dt.bias", 32);
    vector(f, "ssm_a", 32);
    matrix(f, "ssm_ba.weight", c->embedding, 64, 1);
    vector(f, "ssm_norm.weight", 128);
    matrix(f, "ssm_out.weight", 32 * 128, c->embedding, 1);
}

static void qwen3_next_80b(gguf_writer *writer)
{
    static const common c = {.layers = 48, .embedding = 2048, .heads = 16, .kv_heads = 2, .head = 256, .ffn = 5120, .vocab = 151936,
                             .context = 262144, .experts = 512, .used = 10, .expert_width = 512};
    file f = begin(writer, "qwen3next", &c);
    put(&f, "rope.dimension_count", 64);
    put(&f, "expert_shared_feed_forward_length", 512);
    put(&f, "ssm.conv_kernel", 4);
    put(&f, "ssm.state_size", 128);
    put(&f, "ssm.group_count", 16);
    put(&f, "ssm.time_step_rank", 32);
    put(&f, "ssm.inner_size", 32 * 128);
    write_trunk(&f, &c, ST_TYPE_Q4_K, ST_TYPE_Q6_K);
    for (f.layer = 0; f.layer < c.layers; f.layer++) {
        vector(&f, "attn_norm.weight", c.embedding);
        vector(&f, "post_attention_norm.weight", c.embedding);
        if ((f.layer + 1) % 4) write_delta(&f, &c);
        else {
            matrix(&f, "attn_q.weight", c.embedding, 2 * 16 * 256, 1); /* with the gate */
            matrix(&f, "attn_k.weight", c.embedding, 2 * 256, 1);
            matrix(&f, "attn_v.weight", c.embedding, 2 * 256, 1);
            matrix(&f, "attn_output.weight", 16 * 256, c.embedding, 1);
            vector(&f, "attn_q_norm.weight", 256);
            vector(&f, "attn_k_norm.weight", 256);
        }
        write_experts(&f, &c);
        write_shared(&f, &c, 512);
        vector(&f, "ffn_gate_inp_shexp.weight", c.embedding);
    }
}

const full_size full_sizes[FULL_SIZES] = {
    {"gpt-oss-120b", gpt_oss_120b}, {"GLM-4.5-Air", glm_45_air}, {"DeepSeek-V3", deepseek_v3},
    {"MiniMax-M2", minimax_m2}, {"Qwen3-Next-80B", qwen3_next_80b},
};

static bool write_file(const full_size *model, const char *path)
{
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    model->write(&writer);
    gguf_writer_finish_directory(&writer);
    const st_buf *out = &writer.out;
    off_t bytes = (off_t)((out->length + 31) / 32 * 32 + writer.data_bytes);
    int fd = out->failed ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    bool written = fd >= 0 && write(fd, out->data, out->length) == (ssize_t)out->length &&
                   ftruncate(fd, bytes) == 0;
    if (fd >= 0) close(fd);
    gguf_writer_free(&writer);
    return written;
}

bool full_size_write_files(const char *folder)
{
    char path[512];
    for (int i = 0; i < FULL_SIZES; i++) {
        int length = snprintf(path, sizeof path, "%s/%s.gguf", folder, full_sizes[i].name);
        if (length >= (int)sizeof path || !write_file(&full_sizes[i], path)) return false;
    }
    return true;
}
