/* Lowers attention. */
#include "model/emit.h"

static bool same_angles(const st_rope *a, const st_rope *b)
{
    return a->dims == b->dims && a->factors == b->factors && a->base == b->base && a->scaling == b->scaling &&
           a->scaling_factor == b->scaling_factor && a->original_context == b->original_context &&
           a->attention_factor == b->attention_factor && a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->unrounded == b->unrounded;
}

/* Layers with the same RoPE parameters share cosines and sines: the first layer computes them. */
static int32_t angles(st_builder *b, const st_rope *rope)
{
    for (uint32_t i = b->part_first; i < b->op_count; i++)
        if (b->ops[i].kind == ST_OP_ANGLES && same_angles(&b->ops[i].p.angles.rope, rope)) return b->ops[i].out;
    int32_t out = st_emit_value(b, "angles", rope->dims, ST_ROWS_ALL);
    st_op *op = st_emit(b, ST_OP_ANGLES, ST_NO_VALUE, ST_NO_VALUE, out);
    if (rope->factors) op->weight[0] = st_emit_model_weight(b, ST_ROLE_ROPE_FREQS);
    if (st_emit_model_weight(b, ST_ROLE_ROPE_FACTORS_SHORT) != ST_NO_WEIGHT) {
        op->weight[0] = st_emit_model_weight(b, ST_ROLE_ROPE_FACTORS_SHORT);
        op->weight[1] = st_emit_model_weight(b, ST_ROLE_ROPE_FACTORS_LONG);
    }
    op->p.angles.rope = *rope;
    return out;
}

/* Rotates rope->dims elements of each head, from `offset` on. */
static void rope_in_place(st_builder *b, const st_rope *rope, uint32_t heads, uint32_t head_size, uint32_t offset,
                          int32_t value)
{
    if (rope->style == ST_ROPE_NONE) return;
    int32_t turns = angles(b, rope);
    st_op *op = st_emit(b, ST_OP_ROPE, value, turns, value);
    op->p.rope.heads = heads;
    op->p.rope.head_size = head_size;
    op->p.rope.offset = offset;
    op->p.rope.dims = rope->dims;
    op->p.rope.style = rope->style;
}

/* Norm and RoPE of the query or key projection, in the row's order. */
static void position_in_place(st_builder *b, const st_attention_desc *a, st_role norm_role, uint32_t heads,
                              int32_t value)
{
    bool weighted = st_emit_weight(b, norm_role) != ST_NO_WEIGHT;
    if (a->qk_norm == ST_QK_NORM_HEAD && weighted)
        st_emit_norm_in_place(b, st_emit_weight(b, norm_role), a->key_length, value);
    if (a->qk_norm == ST_QK_NORM_ROW && weighted) st_emit_norm_row(b, norm_role, value);
    rope_in_place(b, &a->rope, heads, a->key_length, 0, value);
    if (a->qk_norm == ST_QK_NORM_HEAD_AFTER_ROPE && weighted)
        st_emit_norm_in_place(b, st_emit_weight(b, norm_role), a->key_length, value);
    if (a->qk_norm == ST_QK_NORM_AFTER_ROPE) st_emit_norm_in_place(b, ST_NO_WEIGHT, a->key_length, value);
}

typedef struct projections {
    int32_t q;
    int32_t k, v; /* ST_NO_VALUE: the layer reads another layer's KV */
} projections;

/* One matrix holds q ‖ k ‖ v. */
static projections project_joined(st_builder *b, const st_attention_desc *a, int32_t h)
{
    int32_t all = st_emit_project(b, "qkv", ST_ROLE_ATTN_QKV, ST_ROLE_ATTN_QKV_BIAS, h);
    uint32_t q = a->heads * a->key_length, k = a->kv_heads * a->key_length, v = a->kv_heads * a->value_length;
    return (projections){.q = st_emit_slice(b, "q", all, 1, q + k + v, 0, q),
                         .k = st_emit_slice(b, "k", all, 1, q + k + v, q, k),
                         .v = st_emit_slice(b, "v", all, 1, q + k + v, q + k, v)};
}

/* Projections of one input are adjacent, so that a backend may fuse them. */
static projections project(st_builder *b, const st_attention_desc *a, int32_t h)
{
    if (st_emit_weight(b, ST_ROLE_ATTN_QKV) != ST_NO_WEIGHT) return project_joined(b, a, h);
    projections p = {st_emit_project(b, "q", ST_ROLE_ATTN_Q, ST_ROLE_ATTN_Q_BIAS, h), ST_NO_VALUE, ST_NO_VALUE};
    if (a->kv_layer != (uint32_t)b->layer) return p;
    p.k = st_emit_project(b, "k", ST_ROLE_ATTN_K, ST_ROLE_ATTN_K_BIAS, h);
    if (st_emit_weight(b, ST_ROLE_ATTN_V) != ST_NO_WEIGHT)
        p.v = st_emit_project(b, "v", ST_ROLE_ATTN_V, ST_ROLE_ATTN_V_BIAS, h);
    else /* raw: before K's norm and RoPE */
        p.v = st_emit_slice(b, "v", p.k, 1, st_emit_width(b, p.k), 0, st_emit_width(b, p.k));
    return p;
}

static void store_kv(st_builder *b, const st_attention_desc *a, projections kv)
{
    if (kv.k == ST_NO_VALUE) return;
    position_in_place(b, a, ST_ROLE_ATTN_K_NORM, a->kv_heads, kv.k);
    if (b->desc->arch->value_norm) st_emit_norm_in_place(b, ST_NO_WEIGHT, a->value_length, kv.v);
    st_emit(b, ST_OP_KV_STORE, kv.k, kv.v, ST_NO_VALUE)->p.kv.kv_layer = a->kv_layer;
}

static int32_t attend(st_builder *b, const st_attention_desc *a, int32_t q)
{
    int32_t out = st_emit_value(b, "attention", (uint64_t)a->heads * a->value_length, ST_ROWS_ALL);
    st_op *op = st_emit(b, ST_OP_ATTENTION, q, ST_NO_VALUE, out);
    op->weight[0] = st_emit_weight(b, ST_ROLE_ATTN_SINKS);
    op->p.attention.heads = a->heads;
    op->p.attention.kv_heads = a->kv_heads;
    op->p.attention.key_length = a->key_length;
    op->p.attention.value_length = a->value_length;
    op->p.attention.window = a->window;
    op->p.attention.chunk = a->chunk;
    op->p.attention.kv_layer = a->kv_layer;
    op->p.attention.first = b->layer >= (int32_t)b->desc->layer_count; /* NextN: the first token has no row */
    op->p.attention.scale = a->scale;
    op->p.attention.value_in_key = a->latent_query > 0;
    return out;
}

static int32_t attention(st_builder *b, const st_attention_desc *a, int32_t h)
{
    projections kv = project(b, a, h);
    int32_t q = kv.q;
    int32_t gate = ST_NO_VALUE;
    if (b->desc->arch->gated_attention) {
        int32_t both = q;
        q = st_emit_slice(b, "q", both, a->heads, 2 * a->key_length, 0, a->key_length);
        gate = st_emit_slice(b, "q_gate", both, a->heads, 2 * a->key_length, a->key_length, a->key_length);
    }
    position_in_place(b, a, ST_ROLE_ATTN_Q_NORM, a->heads, q);
    if (a->temperature > 0) {
        st_op *op = st_emit(b, ST_OP_TEMPERATURE, q, ST_NO_VALUE, q);
        op->p.temperature.chunk = a->temperature_chunk;
        op->p.temperature.factor = a->temperature;
        op->p.temperature.from_zero = a->temperature_from_zero;
    }
    store_kv(b, a, kv);

    int32_t out = attend(b, a, q);
    if (gate != ST_NO_VALUE) st_emit(b, ST_OP_SIGMOID_GATE, out, gate, out);
    return st_emit_project(b, "attention_out", ST_ROLE_ATTN_OUTPUT, ST_ROLE_ATTN_OUTPUT_BIAS, out);
}

static int32_t head_matmul(st_builder *b, const char *name, st_role role, uint32_t heads, int32_t in)
{
    const st_weight *w = &b->binding->weights[st_emit_weight(b, role)];
    uint64_t rest = st_emit_width(b, in) / heads - w->ne[0];
    int32_t out = st_emit_value(b, name, heads * (w->ne[1] + rest), ST_ROWS_ALL);
    st_op *op = st_emit(b, ST_OP_HEAD_MATMUL, in, ST_NO_VALUE, out);
    op->weight[0] = st_emit_weight(b, role);
    op->p.head_matmul.heads = heads;
    return out;
}

/* Stores one row for all heads: the normed latent ‖ the rotated part. */
static void store_latent(st_builder *b, const st_attention_desc *a, int32_t row)
{
    uint32_t latent = a->value_length, rotated = a->key_length - latent;
    int32_t c = st_emit_slice(b, "latent", row, 1, a->key_length, 0, latent);
    int32_t r = st_emit_slice(b, "k_rotated", row, 1, a->key_length, latent, rotated);
    st_emit_norm_row(b, ST_ROLE_ATTN_KV_A_NORM, c);
    rope_in_place(b, &a->rope, 1, rotated, 0, r);
    st_emit(b, ST_OP_CONCAT, c, r, row);
    st_emit(b, ST_OP_KV_STORE, row, ST_NO_VALUE, ST_NO_VALUE)->p.kv.kv_layer = a->kv_layer;
}

/* Queries are multiplied with the matrix that makes keys of the latent, and outputs with the one that makes values, so
 * that attention reads the latent alone. */
static int32_t latent_attention(st_builder *b, const st_attention_desc *a, int32_t h)
{
    bool ranked = a->query_rank > 0;
    int32_t first = st_emit_project(b, ranked ? "q_latent" : "q", ranked ? ST_ROLE_ATTN_Q_A : ST_ROLE_ATTN_Q,
                                    ST_ROLE_COUNT, h);
    int32_t row = st_emit_project(b, "kv_latent", ST_ROLE_ATTN_KV_A_MQA, ST_ROLE_COUNT, h);
    if (ranked) st_emit_norm_row(b, ST_ROLE_ATTN_Q_A_NORM, first);
    int32_t q = ranked ? st_emit_project(b, "q", ST_ROLE_ATTN_Q_B, ST_ROLE_COUNT, first) : first;
    rope_in_place(b, &a->rope, a->heads, a->latent_query, a->latent_query - (a->key_length - a->value_length), q);
    store_latent(b, a, row);
    int32_t absorbed = head_matmul(b, "q_absorbed", ST_ROLE_ATTN_K_B, a->heads, q);
    int32_t out = head_matmul(b, "heads", ST_ROLE_ATTN_V_B, a->heads, attend(b, a, absorbed));
    return st_emit_project(b, "attention_out", ST_ROLE_ATTN_OUTPUT, ST_ROLE_ATTN_OUTPUT_BIAS, out);
}

int32_t st_lower_mixer(st_builder *b, const st_layer_desc *layer, int32_t h)
{
    if (layer->kind != ST_LAYER_ATTENTION) return st_lower_recurrent(b, layer, h);
    bool latent = layer->attention.latent_query > 0;
    return latent ? latent_attention(b, &layer->attention, h) : attention(b, &layer->attention, h);
}
