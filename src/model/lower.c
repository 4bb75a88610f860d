/* Lowers a description to a program: the only definition of the forward pass. Reads a row's axes, never its name. */
#include <math.h>

#include "base/check.h"
#include "base/error.h"
#include "model/program.h"

enum { OPS_PER_LAYER_MAX = 64, ROW_ALIGN = 64 };

typedef struct builder {
    const st_desc *desc;
    const st_binding *binding;
    st_op *ops;
    uint32_t op_count, op_max;
    st_value *values;
    uint32_t value_count, value_max;
    int32_t layer;     /* of the operations now emitted; −1: none */
    st_block block;    /* of the operations now emitted */
    uint32_t part_first; /* the part's first operation: angles are shared within a part */
    bool overflow;     /* the program passed its size bound: an internal error, reported and not run */
} builder;

/* --- emitting ----------------------------------------------------------------------------------------------------- */

static int32_t new_value(builder *b, const char *name, uint64_t width, st_rows rows)
{
    if (b->value_count == b->value_max) {
        b->overflow = true;
        return 0;
    }
    b->values[b->value_count] = (st_value){.name = name, .width = (uint32_t)width, .rows = rows};
    return (int32_t)b->value_count++;
}

static uint32_t width_of(const builder *b, int32_t value)
{
    return b->values[value].width;
}

static st_rows rows_of(const builder *b, int32_t value)
{
    return b->values[value].rows;
}

static st_op *emit(builder *b, st_op_kind kind, int32_t in0, int32_t in1, int32_t out)
{
    if (b->op_count == b->op_max) {
        b->overflow = true;
        b->op_count--;
    }
    st_op *op = &b->ops[b->op_count++];
    *op = (st_op){.kind = kind, .layer = b->layer, .block = b->block, .out = out, .out2 = ST_NO_VALUE};
    for (int i = 0; i < ST_OP_INPUTS; i++) op->in[i] = ST_NO_VALUE;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op->weight[i] = ST_NO_WEIGHT;
    op->in[0] = in0;
    op->in[1] = in1;
    return op;
}

static int32_t weight(const builder *b, st_role role)
{
    return st_binding_find(b->binding, role, b->layer);
}

static int32_t model_weight(const builder *b, st_role role)
{
    return st_binding_find(b->binding, role, -1);
}

static int32_t embed(builder *b, const char *name, int32_t table, float scale)
{
    int32_t out = new_value(b, name, b->binding->weights[table].ne[0], ST_ROWS_ALL);
    st_op *op = emit(b, ST_OP_EMBED, ST_NO_VALUE, ST_NO_VALUE, out);
    op->weight[0] = table;
    op->p.embed.scale = scale;
    return out;
}

static int32_t matmul_bias(builder *b, const char *name, int32_t matrix, int32_t bias, int32_t in)
{
    int32_t out = new_value(b, name, b->binding->weights[matrix].ne[1], rows_of(b, in));
    st_op *op = emit(b, ST_OP_MATMUL, in, ST_NO_VALUE, out);
    op->weight[0] = matrix;
    op->weight[1] = bias;
    return out;
}

static int32_t matmul(builder *b, const char *name, int32_t matrix, int32_t in)
{
    return matmul_bias(b, name, matrix, ST_NO_WEIGHT, in);
}

static void norm_to(builder *b, int32_t norm_weight, uint32_t group, int32_t in, int32_t out)
{
    st_op *op = emit(b, ST_OP_RMS_NORM, in, ST_NO_VALUE, out);
    op->weight[0] = norm_weight;
    op->p.norm.group = group;
    op->p.norm.epsilon = b->desc->norm_epsilon;
}

static int32_t norm(builder *b, const char *name, int32_t norm_weight, int32_t in)
{
    int32_t out = new_value(b, name, width_of(b, in), rows_of(b, in));
    norm_to(b, norm_weight, width_of(b, in), in, out);
    return out;
}

static void norm_in_place(builder *b, int32_t norm_weight, uint32_t group, int32_t value)
{
    norm_to(b, norm_weight, group, value, value);
}

static void add_to(builder *b, int32_t value, int32_t other)
{
    emit(b, ST_OP_ADD, value, other, value);
}

static void scale_in_place(builder *b, int32_t value, float factor)
{
    emit(b, ST_OP_SCALE, value, ST_NO_VALUE, value)->p.scale.factor = factor;
}

static void mul_weight_in_place(builder *b, int32_t value, int32_t factors)
{
    emit(b, ST_OP_MUL_WEIGHT, value, ST_NO_VALUE, value)->weight[0] = factors;
}

static int32_t slice(builder *b, const char *name, int32_t in, uint32_t groups, uint32_t stride, uint32_t offset,
                     uint32_t size)
{
    int32_t out = new_value(b, name, (uint64_t)groups * size, rows_of(b, in));
    st_op *op = emit(b, ST_OP_SLICE, in, ST_NO_VALUE, out);
    op->p.slice.groups = groups;
    op->p.slice.stride = stride;
    op->p.slice.offset = offset;
    return out;
}

/* act(gate) × up, in gate's place */
static void gated_act_in_place(builder *b, st_activation activation, int32_t gate, int32_t up)
{
    emit(b, ST_OP_GATED_ACT, gate, up, gate)->p.gate.activation = activation;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

static bool same_angles(const st_rope *a, const st_rope *b)
{
    return a->dims == b->dims && a->factors == b->factors && a->base == b->base && a->scaling == b->scaling &&
           a->scaling_factor == b->scaling_factor && a->original_context == b->original_context &&
           a->attention_factor == b->attention_factor && a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow;
}

/* Layers with the same RoPE parameters share cosines and sines: the first layer computes them. */
static int32_t angles(builder *b, const st_rope *rope)
{
    for (uint32_t i = b->part_first; i < b->op_count; i++)
        if (b->ops[i].kind == ST_OP_ANGLES && same_angles(&b->ops[i].p.angles.rope, rope)) return b->ops[i].out;
    int32_t out = new_value(b, "angles", rope->dims, ST_ROWS_ALL);
    st_op *op = emit(b, ST_OP_ANGLES, ST_NO_VALUE, ST_NO_VALUE, out);
    if (rope->factors) op->weight[0] = model_weight(b, ST_ROLE_ROPE_FREQS);
    op->p.angles.rope = *rope;
    return out;
}

static void rope_in_place(builder *b, const st_rope *rope, uint32_t heads, uint32_t head_size, int32_t value)
{
    if (rope->style == ST_ROPE_NONE) return;
    int32_t turns = angles(b, rope);
    st_op *op = emit(b, ST_OP_ROPE, value, turns, value);
    op->p.rope.heads = heads;
    op->p.rope.head_size = head_size;
    op->p.rope.dims = rope->dims;
    op->p.rope.style = rope->style;
}

/* Norm and RoPE of the query or key projection, in the row's order. */
static void position_in_place(builder *b, const st_attention_desc *a, st_role norm_role, uint32_t heads, int32_t value)
{
    if (a->qk_norm == ST_QK_NORM_HEAD) norm_in_place(b, weight(b, norm_role), a->key_length, value);
    if (a->qk_norm == ST_QK_NORM_ROW) norm_in_place(b, weight(b, norm_role), width_of(b, value), value);
    rope_in_place(b, &a->rope, heads, a->key_length, value);
    if (a->qk_norm == ST_QK_NORM_AFTER_ROPE) norm_in_place(b, ST_NO_WEIGHT, a->key_length, value);
}

typedef struct keys_and_values {
    int32_t k, v; /* ST_NO_VALUE: the layer reads another layer's KV */
} keys_and_values;

static keys_and_values project_kv(builder *b, const st_attention_desc *a, int32_t h)
{
    keys_and_values kv = {ST_NO_VALUE, ST_NO_VALUE};
    if (a->kv_layer != (uint32_t)b->layer) return kv;
    kv.k = matmul_bias(b, "k", weight(b, ST_ROLE_ATTN_K), weight(b, ST_ROLE_ATTN_K_BIAS), h);
    if (weight(b, ST_ROLE_ATTN_V) != ST_NO_WEIGHT)
        kv.v = matmul_bias(b, "v", weight(b, ST_ROLE_ATTN_V), weight(b, ST_ROLE_ATTN_V_BIAS), h);
    else kv.v = slice(b, "v", kv.k, 1, width_of(b, kv.k), 0, width_of(b, kv.k)); /* raw: before K's norm and RoPE */
    return kv;
}

static void store_kv(builder *b, const st_attention_desc *a, keys_and_values kv)
{
    if (kv.k == ST_NO_VALUE) return;
    position_in_place(b, a, ST_ROLE_ATTN_K_NORM, a->kv_heads, kv.k);
    if (b->desc->arch->value_norm) norm_in_place(b, ST_NO_WEIGHT, a->value_length, kv.v);
    emit(b, ST_OP_KV_STORE, kv.k, kv.v, ST_NO_VALUE)->p.kv.kv_layer = a->kv_layer;
}

/* Projections of one input are adjacent, so that a backend may fuse them. */
static int32_t attention(builder *b, const st_attention_desc *a, int32_t h)
{
    int32_t q = matmul_bias(b, "q", weight(b, ST_ROLE_ATTN_Q), weight(b, ST_ROLE_ATTN_Q_BIAS), h);
    keys_and_values kv = project_kv(b, a, h);
    int32_t gate = ST_NO_VALUE;
    if (b->desc->arch->gated_attention) {
        int32_t both = q;
        q = slice(b, "q", both, a->heads, 2 * a->key_length, 0, a->key_length);
        gate = slice(b, "q_gate", both, a->heads, 2 * a->key_length, a->key_length, a->key_length);
    }
    position_in_place(b, a, ST_ROLE_ATTN_Q_NORM, a->heads, q);
    if (a->temperature > 0) {
        st_op *op = emit(b, ST_OP_TEMPERATURE, q, ST_NO_VALUE, q);
        op->p.temperature.chunk = a->temperature_chunk;
        op->p.temperature.factor = a->temperature;
    }
    store_kv(b, a, kv);

    int32_t out = new_value(b, "attention", (uint64_t)a->heads * a->value_length, ST_ROWS_ALL);
    st_op *op = emit(b, ST_OP_ATTENTION, q, ST_NO_VALUE, out);
    op->p.attention.heads = a->heads;
    op->p.attention.kv_heads = a->kv_heads;
    op->p.attention.key_length = a->key_length;
    op->p.attention.value_length = a->value_length;
    op->p.attention.window = a->window;
    op->p.attention.chunk = a->chunk;
    op->p.attention.kv_layer = a->kv_layer;
    op->p.attention.first = b->layer >= (int32_t)b->desc->layer_count; /* NextN: the first token has no row */
    op->p.attention.scale = a->scale;
    if (gate != ST_NO_VALUE) emit(b, ST_OP_SIGMOID_GATE, out, gate, out);
    return matmul_bias(b, "attention_out", weight(b, ST_ROLE_ATTN_OUTPUT), weight(b, ST_ROLE_ATTN_OUTPUT_BIAS), out);
}

static int32_t deltanet(builder *b, const st_deltanet_desc *d, int32_t h)
{
    int32_t qkv = matmul(b, "qkv", weight(b, ST_ROLE_ATTN_QKV), h);
    int32_t z = matmul(b, "z", weight(b, ST_ROLE_ATTN_GATE), h);
    int32_t alpha = matmul(b, "alpha", weight(b, ST_ROLE_SSM_ALPHA), h);
    int32_t beta = matmul(b, "beta", weight(b, ST_ROLE_SSM_BETA), h);
    st_op *conv = emit(b, ST_OP_CONV, qkv, ST_NO_VALUE, qkv);
    conv->weight[0] = weight(b, ST_ROLE_SSM_CONV1D);
    conv->p.conv.width = d->conv_width;

    int32_t out = new_value(b, "delta", (uint64_t)d->value_heads * d->state_size, ST_ROWS_ALL);
    st_op *op = emit(b, ST_OP_DELTANET, qkv, alpha, out);
    op->in[2] = beta;
    op->weight[0] = weight(b, ST_ROLE_SSM_DT_BIAS);
    op->weight[1] = weight(b, ST_ROLE_SSM_A);
    op->p.deltanet.key_heads = d->key_heads;
    op->p.deltanet.value_heads = d->value_heads;
    op->p.deltanet.size = d->state_size;
    norm_in_place(b, weight(b, ST_ROLE_SSM_NORM), d->state_size, out);
    emit(b, ST_OP_SILU_GATE, out, z, out);
    return matmul(b, "delta_out", weight(b, ST_ROLE_SSM_OUT), out);
}

/* --- feed-forward ------------------------------------------------------------------------------------------------- */

static int32_t gated_ffn(builder *b, const char *name, st_role gate_role, st_role up_role, st_role down_role, int32_t h)
{
    int32_t gate = matmul(b, "ffn_gate", weight(b, gate_role), h);
    int32_t up = matmul(b, "ffn_up", weight(b, up_role), h);
    gated_act_in_place(b, b->desc->arch->activation, gate, up);
    return matmul(b, name, weight(b, down_role), gate);
}

static int32_t shared_expert(builder *b, int32_t h)
{
    int32_t shared = gated_ffn(b, "shared_expert", ST_ROLE_FFN_GATE_SHEXP, ST_ROLE_FFN_UP_SHEXP,
                               ST_ROLE_FFN_DOWN_SHEXP, h);
    if (b->desc->arch->shared_expert == ST_SHARED_GATED) {
        int32_t gate = matmul(b, "shared_gate", weight(b, ST_ROLE_FFN_GATE_INP_SHEXP), h);
        emit(b, ST_OP_SIGMOID_GATE, shared, gate, shared);
    }
    return shared;
}

/* The shared expert comes between the router and the experts: on another device it overlaps with them. */
static int32_t routed_experts(builder *b, const st_ffn_desc *f, int32_t router_input, int32_t h)
{
    const st_arch *arch = b->desc->arch;
    int32_t scores = matmul(b, "router", weight(b, ST_ROLE_FFN_GATE_INP), router_input);
    int32_t ids = new_value(b, "expert_ids", f->experts_used, ST_ROWS_ALL);
    int32_t weights = new_value(b, "expert_weights", f->experts_used, ST_ROWS_ALL);
    st_op *route = emit(b, ST_OP_ROUTE, scores, ST_NO_VALUE, ids);
    route->out2 = weights;
    route->p.route.experts = f->experts;
    route->p.route.used = f->experts_used;
    route->p.route.router = arch->router;
    route->p.route.renormalise = arch->renormalise;

    int32_t shared = f->shared_width ? shared_expert(b, h) : ST_NO_VALUE;
    int32_t out = new_value(b, "experts", b->desc->embedding, ST_ROWS_ALL);
    b->block = ST_BLOCK_EXPERTS;
    st_op *op = emit(b, ST_OP_EXPERTS, h, ids, out);
    b->block = ST_BLOCK_FFN;
    op->in[2] = weights;
    bool fused = weight(b, ST_ROLE_FFN_GATE_UP_EXPS) != ST_NO_WEIGHT;
    op->weight[0] = weight(b, fused ? ST_ROLE_FFN_GATE_UP_EXPS : ST_ROLE_FFN_GATE_EXPS);
    op->weight[1] = weight(b, ST_ROLE_FFN_UP_EXPS);
    op->weight[2] = weight(b, ST_ROLE_FFN_DOWN_EXPS);
    op->weight[3] = weight(b, ST_ROLE_FFN_DOWN_EXPS_SCALE);
    op->p.experts.experts = f->experts;
    op->p.experts.used = f->experts_used;
    op->p.experts.width = f->expert_width;
    op->p.experts.activation = arch->activation;
    op->p.experts.fused = fused;
    op->p.experts.weight_on_input = arch->weight_on_input;
    if (shared != ST_NO_VALUE) add_to(b, out, shared);
    return out;
}

/* Dense FFN and experts in parallel, each with its norms; the router reads the residual stream. */
static int32_t ffn_beside_experts(builder *b, const st_ffn_desc *f, int32_t x, int32_t dense)
{
    int32_t router_input = norm(b, "router_in", ST_NO_WEIGHT, x);
    scale_in_place(b, router_input, 1.0f / sqrtf((float)b->desc->embedding));
    mul_weight_in_place(b, router_input, weight(b, ST_ROLE_FFN_GATE_INP_SCALE));
    int32_t h = norm(b, "expert_in", weight(b, ST_ROLE_PRE_FFW_NORM_2), x);
    int32_t routed = routed_experts(b, f, router_input, h);
    norm_in_place(b, weight(b, ST_ROLE_POST_FFW_NORM_1), width_of(b, dense), dense);
    norm_in_place(b, weight(b, ST_ROLE_POST_FFW_NORM_2), width_of(b, routed), routed);
    add_to(b, dense, routed);
    return dense;
}

static int32_t feed_forward(builder *b, const st_ffn_desc *f, int32_t x)
{
    st_role norm_role = b->desc->arch->ffn_norm_is_post_attention ? ST_ROLE_POST_ATTENTION_NORM : ST_ROLE_FFN_NORM;
    int32_t h = norm(b, "ffn_in", weight(b, norm_role), x);
    int32_t out = ST_NO_VALUE;
    if (f->dense_width) out = gated_ffn(b, "ffn_out", ST_ROLE_FFN_GATE, ST_ROLE_FFN_UP, ST_ROLE_FFN_DOWN, h);
    if (f->experts && f->dense_width) return ffn_beside_experts(b, f, x, out);
    return f->experts ? routed_experts(b, f, h, h) : out;
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

/* Returns the scaled, normed per-layer inputs of all layers, or ST_NO_VALUE. */
static int32_t per_layer_inputs(builder *b, int32_t x)
{
    uint32_t width = b->desc->per_layer_width;
    if (width == 0) return ST_NO_VALUE;
    int32_t all = matmul(b, "per_layer", model_weight(b, ST_ROLE_PER_LAYER_MODEL_PROJ), x);
    scale_in_place(b, all, 1.0f / sqrtf((float)b->desc->embedding));
    norm_in_place(b, model_weight(b, ST_ROLE_PER_LAYER_PROJ_NORM), width, all);
    int32_t tokens = embed(b, "per_layer_token", model_weight(b, ST_ROLE_PER_LAYER_TOKEN_EMBD), sqrtf((float)width));
    add_to(b, all, tokens);
    scale_in_place(b, all, sqrtf(0.5f));
    return all;
}

static void add_per_layer_input(builder *b, int32_t x, int32_t inputs)
{
    uint32_t width = b->desc->per_layer_width;
    int32_t gate = matmul(b, "per_layer_gate", weight(b, ST_ROLE_INP_GATE), x);
    int32_t mine = slice(b, "per_layer_input", inputs, 1, width_of(b, inputs), width * (uint32_t)b->layer, width);
    gated_act_in_place(b, b->desc->arch->activation, gate, mine);
    int32_t out = matmul(b, "per_layer_out", weight(b, ST_ROLE_PROJ), gate);
    norm_in_place(b, weight(b, ST_ROLE_POST_NORM), width_of(b, out), out);
    add_to(b, x, out);
}

static void layer(builder *b, uint32_t index, int32_t x, int32_t inputs)
{
    const st_layer_desc *l = &b->desc->layers[index];
    b->layer = (int32_t)index;
    b->block = ST_BLOCK_ATTENTION;
    int32_t h = norm(b, "attn_in", weight(b, ST_ROLE_ATTN_NORM), x);
    int32_t mixed = l->kind == ST_LAYER_ATTENTION ? attention(b, &l->attention, h) : deltanet(b, &l->deltanet, h);
    bool post_norms = b->desc->arch->post_norms;
    if (post_norms) norm_in_place(b, weight(b, ST_ROLE_POST_ATTENTION_NORM), width_of(b, mixed), mixed);
    add_to(b, x, mixed);
    b->block = ST_BLOCK_FFN;
    int32_t fed = feed_forward(b, &l->ffn, x);
    if (post_norms) norm_in_place(b, weight(b, ST_ROLE_POST_FFW_NORM), width_of(b, fed), fed);
    add_to(b, x, fed);
    if (inputs != ST_NO_VALUE) add_per_layer_input(b, x, inputs);
    int32_t output_scale = weight(b, ST_ROLE_LAYER_OUTPUT_SCALE);
    if (output_scale != ST_NO_WEIGHT) mul_weight_in_place(b, x, output_scale);
    b->layer = -1;
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

static int32_t output_matrix(const builder *b)
{
    int32_t own = model_weight(b, ST_ROLE_OUTPUT);
    return own != ST_NO_WEIGHT ? own : model_weight(b, ST_ROLE_TOKEN_EMBD);
}

/* The output rows, normalised, times the output matrix. */
static void head(builder *b, int32_t hidden, int32_t norm_weight, int32_t matrix, st_part *part)
{
    part->body.count = b->op_count - part->body.first;
    part->hidden = hidden;
    part->head.first = b->op_count;
    b->block = ST_BLOCK_OUTPUT;
    int32_t chosen = new_value(b, "out_rows", width_of(b, hidden), ST_ROWS_OUT);
    emit(b, ST_OP_GATHER, hidden, ST_NO_VALUE, chosen);
    norm_in_place(b, norm_weight, width_of(b, chosen), chosen);
    part->logits = matmul(b, "logits", matrix, chosen);
    if (b->desc->logit_softcap > 0)
        emit(b, ST_OP_SOFTCAP, part->logits, ST_NO_VALUE, part->logits)->p.softcap.cap = b->desc->logit_softcap;
    part->head.count = b->op_count - part->head.first;
}

static void lower_main(builder *b, st_part *part)
{
    *part = (st_part){.body.first = b->op_count, .input = ST_NO_VALUE};
    b->part_first = b->op_count;
    b->block = ST_BLOCK_INPUT;
    int32_t x = embed(b, "x", model_weight(b, ST_ROLE_TOKEN_EMBD), b->desc->embedding_scale);
    int32_t inputs = per_layer_inputs(b, x);
    for (uint32_t i = 0; i < b->desc->layer_count; i++) layer(b, i, x, inputs);
    head(b, x, model_weight(b, ST_ROLE_OUTPUT_NORM), output_matrix(b), part);
}

/* The NextN block predicts the token after the next from the hidden state and the next token's embedding. */
static void lower_nextn(builder *b, st_part *part)
{
    uint32_t index = b->desc->layer_count;
    b->layer = (int32_t)index;
    *part = (st_part){.body.first = b->op_count};
    b->part_first = b->op_count;
    b->block = ST_BLOCK_INPUT;
    part->input = new_value(b, "hidden_in", b->desc->embedding, ST_ROWS_ALL);
    int32_t own_table = weight(b, ST_ROLE_NEXTN_EMBED_TOKENS);
    int32_t e = embed(b, "next_token", own_table != ST_NO_WEIGHT ? own_table : model_weight(b, ST_ROLE_TOKEN_EMBD),
                      b->desc->embedding_scale);
    b->block = ST_BLOCK_ATTENTION;
    norm_in_place(b, weight(b, ST_ROLE_NEXTN_ENORM), width_of(b, e), e);
    int32_t h = norm(b, "hidden", model_weight(b, ST_ROLE_OUTPUT_NORM), part->input);
    norm_in_place(b, weight(b, ST_ROLE_NEXTN_HNORM), width_of(b, h), h);
    int32_t both = new_value(b, "next_and_hidden", 2 * (uint64_t)b->desc->embedding, ST_ROWS_ALL);
    emit(b, ST_OP_CONCAT, e, h, both);
    int32_t x = matmul(b, "x", weight(b, ST_ROLE_NEXTN_EH_PROJ), both);
    layer(b, index, x, ST_NO_VALUE);

    b->layer = (int32_t)index;
    int32_t own_matrix = weight(b, ST_ROLE_NEXTN_SHARED_HEAD_HEAD);
    head(b, x, weight(b, ST_ROLE_NEXTN_SHARED_HEAD_NORM), own_matrix != ST_NO_WEIGHT ? own_matrix : output_matrix(b),
         part);
    b->layer = -1;
}

/* --- value addresses: values with disjoint lifetimes may share one ------------------------------------------------ */

typedef struct lifetime {
    uint32_t first, last; /* operations */
} lifetime;

static void extend(lifetime *life, int32_t value, uint32_t op)
{
    if (value == ST_NO_VALUE) return;
    if (life[value].first > op) life[value].first = op;
    if (life[value].last < op) life[value].last = op;
}

static void find_lifetimes(const builder *b, const st_program *program, lifetime *life)
{
    for (uint32_t i = 0; i < b->value_count; i++) life[i] = (lifetime){.first = UINT32_MAX};
    for (uint32_t i = 0; i < b->op_count; i++) {
        const st_op *op = &b->ops[i];
        for (int k = 0; k < ST_OP_INPUTS; k++) extend(life, op->in[k], i);
        extend(life, op->out, i);
        extend(life, op->out2, i);
    }
    /* The executor reads and writes these between parts and may run a head several times. */
    const st_part *parts[] = {&program->main, &program->nextn};
    for (int i = 0; i < 2; i++) {
        if (parts[i]->body.count == 0) continue;
        int32_t kept[] = {parts[i]->input, parts[i]->hidden, parts[i]->logits};
        for (int k = 0; k < 3; k++)
            if (kept[k] != ST_NO_VALUE) life[kept[k]] = (lifetime){.first = 0, .last = b->op_count};
    }
}

static bool lives_throughout(const builder *b, const lifetime *life)
{
    return life->first == 0 && life->last == b->op_count;
}

static size_t place_bytes(const st_value *value)
{
    return st_align_up((size_t)value->width * sizeof(float), ROW_ALIGN);
}

/* Placed values that are still alive, sorted by offset. */
typedef struct placing {
    const lifetime *life;
    int32_t *placed;
    uint32_t count;
} placing;

/* Removes values whose last use is before operation `first`. */
static void forget_before(placing *p, uint32_t first)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->life[p->placed[i]].last >= first) p->placed[kept++] = p->placed[i];
    p->count = kept;
}

/* Puts `value` at the lowest offset that no live value overlaps. */
static void place_value(const builder *b, placing *p, uint32_t value, st_program *program)
{
    st_value *v = &b->values[value];
    const lifetime *life = &p->life[value];
    size_t offset = 0, bytes = place_bytes(v);
    for (uint32_t i = 0; i < p->count; i++) {
        const st_value *other = &b->values[p->placed[i]];
        const lifetime *span = &p->life[p->placed[i]];
        if (other->rows != v->rows || span->last < life->first || span->first > life->last) continue;
        size_t other_end = other->offset_bytes + place_bytes(other);
        if (offset + bytes > other->offset_bytes && offset < other_end) offset = other_end;
    }
    v->offset_bytes = offset;
    if (program->row_bytes[v->rows] < offset + bytes) program->row_bytes[v->rows] = offset + bytes;
    uint32_t at = p->count++;
    for (; at > 0 && b->values[p->placed[at - 1]].offset_bytes > offset; at--) p->placed[at] = p->placed[at - 1];
    p->placed[at] = (int32_t)value;
}

/* Values that live throughout come first. The others follow by first use, so only a few are alive at a time. */
static bool place_values(builder *b, st_arena *arena, st_program *program)
{
    lifetime *life = st_arena_alloc(arena, b->value_count, sizeof *life);
    uint32_t *earliest = st_arena_alloc(arena, b->value_count, sizeof *earliest); /* smallest first use from here on */
    placing p = {.life = life, .placed = st_arena_alloc(arena, b->value_count, sizeof *p.placed)};
    if (!life || !earliest || !p.placed) return false;
    find_lifetimes(b, program, life);
    uint32_t first = UINT32_MAX;
    for (uint32_t i = b->value_count; i-- > 0;) {
        if (!lives_throughout(b, &life[i]) && first > life[i].first) first = life[i].first;
        earliest[i] = first;
    }
    for (uint32_t i = 0; i < b->value_count; i++)
        if (lives_throughout(b, &life[i])) place_value(b, &p, i, program);
    for (uint32_t i = 0; i < b->value_count; i++) {
        if (lives_throughout(b, &life[i])) continue;
        forget_before(&p, earliest[i]);
        place_value(b, &p, i, program);
    }
    return true;
}

/* Lowers a description with its weights to operations, in `arena`. */
static strata_status build(const st_desc *desc, const st_binding *binding, st_arena *arena, const st_program **out,
                           strata_error *error)
{
    uint32_t max = (desc->layer_count + desc->nextn_count + 2) * OPS_PER_LAYER_MAX;
    builder b = {.desc = desc, .binding = binding, .op_max = max, .value_max = max, .layer = -1};
    st_program *program = st_arena_alloc(arena, 1, sizeof *program);
    b.ops = st_arena_alloc(arena, max, sizeof *b.ops);
    b.values = st_arena_alloc(arena, max, sizeof *b.values);
    if (!program || !b.ops || !b.values)
        return st_error_memory(error, max * (sizeof *b.ops + sizeof *b.values), "the model's program");
    lower_main(&b, &program->main);
    if (desc->nextn_count) lower_nextn(&b, &program->nextn);
    if (b.overflow)
        return st_error_set(error, STRATA_RUNTIME, NULL, "the model's program is longer than %u operations", max);
    if (!place_values(&b, arena, program)) return st_error_memory(error, b.value_count * 16, "the model's program");
    program->ops = b.ops;
    program->op_count = b.op_count;
    program->values = b.values;
    program->value_count = b.value_count;
    *out = program;
    return STRATA_OK;
}

strata_status st_program_of_file(const st_gguf *gguf, st_arena *arena, const st_desc **desc, const st_binding **binding,
                                 const st_program **program, strata_error *error)
{
    strata_status status = st_desc_build(gguf, arena, desc, error);
    if (status == STRATA_OK) status = st_binding_build(*desc, gguf, arena, binding, error);
    return status == STRATA_OK ? build(*desc, *binding, arena, program, error) : status;
}
