#include "model/bind.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { DIMS = 3, NAME_MAX_BYTES = 128 };

/* --- presence: does a layer (or the model) have a tensor of this role? -------------------------------------------- */

typedef enum presence { ABSENT, OPTIONAL_TENSOR, REQUIRED_TENSOR } presence;

typedef struct layer_view {
    const st_desc *desc;
    const st_layer_desc *layer; /* NULL for the model's own tensors */
    uint32_t index;
    bool fused_experts;         /* the file has ffn_gate_up_exps */
    bool has_q_norm;            /* the file has attn_q_norm */
    bool two_factors;           /* the file has rope_factors_short */
    bool joined_qkv;            /* the file has attn_qkv in an attention layer */
    bool joined_ba;             /* the file has ssm_ba */
} layer_view;

static bool is_attention(const layer_view *v)
{
    return v->layer->kind == ST_LAYER_ATTENTION;
}

static bool is_deltanet(const layer_view *v)
{
    return v->layer->kind == ST_LAYER_DELTANET;
}

static bool is_ssm(const layer_view *v)
{
    return v->layer->kind == ST_LAYER_SSM;
}

static bool has_delta_channels(const layer_view *v)
{
    return is_deltanet(v) && v->layer->deltanet.channels;
}

static bool has_delta_heads(const layer_view *v)
{
    return is_deltanet(v) && !v->layer->deltanet.channels;
}

static bool is_gated(const layer_view *v)
{
    return v->desc->arch->ffn != ST_FFN_UNGATED;
}

static bool is_latent(const layer_view *v)
{
    return is_attention(v) && v->layer->attention.latent_query > 0;
}

static bool has_post_norms(const layer_view *v)
{
    return v->desc->arch->form == ST_FORM_SANDWICH || v->desc->arch->form == ST_FORM_POST_NORM;
}

static bool has_ffn_norm(const layer_view *v)
{
    return v->desc->arch->form == ST_FORM_PRE_NORM || v->desc->arch->form == ST_FORM_SANDWICH;
}

static bool has_own_kv(const layer_view *v)
{
    return is_attention(v) && !is_latent(v) && v->layer->attention.kv_layer == v->index;
}

static bool has_qk_norm_weights(const layer_view *v)
{
    st_qk_norm norm = v->layer->attention.qk_norm;
    return norm != ST_QK_NORM_NONE && norm != ST_QK_NORM_AFTER_ROPE;
}

static bool has_experts(const layer_view *v)
{
    return v->layer->ffn.experts > 0;
}

/* The queries have a matrix of their own. */
static bool has_own_queries(const layer_view *v)
{
    return is_attention(v) && !v->joined_qkv && v->layer->attention.query_rank == 0;
}

static bool has_selection_bias(const layer_view *v)
{
    st_selection_bias selection = v->desc->arch->selection;
    return selection == ST_SELECTION_BIASED ||
           (selection == ST_SELECTION_BY_ROUTER && v->layer->ffn.router == ST_ROUTER_SIGMOID);
}

static bool is_nextn(const layer_view *v)
{
    return v->index >= v->desc->layer_count;
}

static presence bias_presence(const layer_view *v)
{
    return v->desc->arch->bias == ST_BIAS_REQUIRED ? REQUIRED_TENSOR : OPTIONAL_TENSOR;
}

/* The keys can serve as values where both have the same length. */
static presence value_presence(const layer_view *v)
{
    const st_attention_desc *a = &v->layer->attention;
    return v->desc->arch->value_may_be_key && a->value_length == a->key_length ? OPTIONAL_TENSOR : REQUIRED_TENSOR;
}

/* The rules of roles.def: the presence where the condition holds; the tensor is absent where it does not. */
#define RULE(name, presence_then, condition)              \
    static presence when_##name(const layer_view *v)      \
    {                                                     \
        (void)v;                                          \
        return (condition) ? (presence_then) : ABSENT;    \
    }

RULE(MODEL_REQUIRED, REQUIRED_TENSOR, true)
RULE(MODEL_OPTIONAL, OPTIONAL_TENSOR, true)
RULE(MODEL_OUTPUT_NORM, REQUIRED_TENSOR, !v->desc->arch->output_norm_is_embedding_norm)
RULE(MODEL_EMBEDDING_NORM, REQUIRED_TENSOR, v->desc->arch->output_norm_is_embedding_norm)
RULE(MODEL_FACTORS_BY_LENGTH, OPTIONAL_TENSOR, v->desc->arch->rope_factors_by_length)
RULE(MODEL_SECOND_FACTORS, REQUIRED_TENSOR, v->two_factors)
RULE(MODEL_PER_LAYER, REQUIRED_TENSOR, v->desc->per_layer_width > 0)
RULE(PRE_NORM, REQUIRED_TENSOR, v->desc->arch->form != ST_FORM_POST_NORM)
RULE(OPTIONAL, OPTIONAL_TENSOR, true)
RULE(ATTENTION_OUTPUT, REQUIRED_TENSOR, is_attention(v) || has_delta_channels(v))
RULE(OUTPUT_BIAS, v->desc->arch->expert_biases ? REQUIRED_TENSOR : OPTIONAL_TENSOR, is_attention(v))
RULE(SINKS, REQUIRED_TENSOR, is_attention(v) && v->desc->arch->sinks)
RULE(LATENT, REQUIRED_TENSOR, is_latent(v))
RULE(LATENT_QUERY, REQUIRED_TENSOR, is_latent(v) && v->layer->attention.query_rank > 0)
RULE(QKV, is_attention(v) ? OPTIONAL_TENSOR : REQUIRED_TENSOR,
     has_delta_heads(v) || (has_own_kv(v) && !v->desc->arch->gated_attention))
RULE(QKV_BIAS, bias_presence(v), is_attention(v) && v->joined_qkv)
RULE(QUERIES, REQUIRED_TENSOR, has_own_queries(v) || has_delta_channels(v))
RULE(QUERIES_BIAS, bias_presence(v), has_own_queries(v) && !is_latent(v))
RULE(OWN_KV, REQUIRED_TENSOR, (has_own_kv(v) && !v->joined_qkv) || has_delta_channels(v))
RULE(OWN_KV_BIAS, bias_presence(v), has_own_kv(v) && !v->joined_qkv)
RULE(OWN_VALUE, value_presence(v), (has_own_kv(v) && !v->joined_qkv) || has_delta_channels(v))
RULE(QK_NORM, v->desc->arch->qk_norm_optional ? OPTIONAL_TENSOR : REQUIRED_TENSOR,
     is_attention(v) && has_qk_norm_weights(v))
RULE(OWN_K_NORM, REQUIRED_TENSOR, has_own_kv(v) && v->has_q_norm)
RULE(DELTA_HEADS, REQUIRED_TENSOR, has_delta_heads(v))
RULE(DELTA_CHANNELS, REQUIRED_TENSOR, has_delta_channels(v))
RULE(DELTANET_OR_SSM, REQUIRED_TENSOR, is_deltanet(v) || is_ssm(v))
RULE(JOINED_CONV, REQUIRED_TENSOR, has_delta_heads(v) || is_ssm(v))
RULE(DELTA_BA, OPTIONAL_TENSOR, has_delta_heads(v) && v->layer->deltanet.grouped)
RULE(DELTA_ALPHA, REQUIRED_TENSOR, has_delta_heads(v) && !v->joined_ba)
RULE(DELTA_BETA, REQUIRED_TENSOR, is_deltanet(v) && !v->joined_ba)
RULE(SSM, REQUIRED_TENSOR, is_ssm(v))
RULE(SHORT_CONV, REQUIRED_TENSOR, v->layer->kind == ST_LAYER_SHORT_CONV)
RULE(POST_NORMS, REQUIRED_TENSOR, has_post_norms(v))
RULE(POST_ATTENTION_NORM, REQUIRED_TENSOR, has_post_norms(v) || v->desc->arch->ffn_norm_is_post_attention)
RULE(FFN_NORM, REQUIRED_TENSOR, has_ffn_norm(v) && !v->desc->arch->ffn_norm_is_post_attention)
RULE(DENSE, REQUIRED_TENSOR, v->layer->ffn.dense_width > 0)
RULE(DENSE_GATE, REQUIRED_TENSOR, v->layer->ffn.dense_width > 0 && v->desc->arch->ffn == ST_FFN_GATED)
RULE(EXPERTS, REQUIRED_TENSOR, has_experts(v))
RULE(SELECTION_BIAS, REQUIRED_TENSOR, has_experts(v) && has_selection_bias(v))
RULE(EXPERT_BIASES, REQUIRED_TENSOR, has_experts(v) && v->desc->arch->expert_biases)
RULE(EXPERTS_OPTIONAL, OPTIONAL_TENSOR, has_experts(v))
RULE(EXPERTS_FUSED, OPTIONAL_TENSOR, has_experts(v) && is_gated(v))
RULE(EXPERTS_UNFUSED, REQUIRED_TENSOR, has_experts(v) && !v->fused_experts)
RULE(EXPERTS_GATE, REQUIRED_TENSOR, has_experts(v) && !v->fused_experts && is_gated(v))
RULE(EXPERTS_BESIDE, REQUIRED_TENSOR, has_experts(v) && v->desc->arch->dense_beside_experts)
RULE(SHARED, REQUIRED_TENSOR, v->layer->ffn.shared_width > 0)
RULE(SHARED_UP_GATE, REQUIRED_TENSOR, v->layer->ffn.shared_width > 0 && is_gated(v))
RULE(SHARED_GATE, REQUIRED_TENSOR,
     v->layer->ffn.shared_width > 0 && v->desc->arch->shared_expert == ST_SHARED_GATED)
RULE(PER_LAYER, REQUIRED_TENSOR, v->desc->per_layer_width > 0)
RULE(NEXTN, REQUIRED_TENSOR, is_nextn(v))
RULE(NEXTN_OPTIONAL, OPTIONAL_TENSOR, is_nextn(v))

#undef RULE

/* --- dimensions --------------------------------------------------------------------------------------------------- */

typedef enum dim {
    DIM_NONE,
    DIM_ONE,
    DIM_E,
    DIM_E_TWICE,
    DIM_E_THRICE,
    DIM_VOCAB,
    DIM_ROPE_PAIRS,
    DIM_PER_LAYER,
    DIM_PER_LAYER_ALL,
    DIM_Q,
    DIM_K,
    DIM_V,
    DIM_HEADS,
    DIM_QUERY_RANK,
    DIM_UNROTATED,
    DIM_LATENT_VALUE,
    DIM_ATTENTION_OUT,
    DIM_Q_NORM,
    DIM_K_NORM,
    DIM_CHANNELS,
    DIM_INNER,
    DIM_SSM_IN,
    DIM_CONV_WIDTH,
    DIM_STATE_HEADS,
    DIM_STATE_HEADS_TWICE,
    DIM_DECAYS,
    DIM_NORM_GROUP,
    DIM_NORM_GROUPS,
    DIM_DENSE,
    DIM_DENSE_UP,
    DIM_EXPERTS,
    DIM_EXPERT,
    DIM_EXPERT_TWICE,
    DIM_SHARED,
} dim;

/* Elements of a head of the query projection. */
static uint64_t query_length(const layer_view *v)
{
    const st_attention_desc *a = &v->layer->attention;
    if (a->latent_query) return a->latent_query;
    return (uint64_t)a->key_length * (v->desc->arch->gated_attention ? 2 : 1);
}

/* The bounds of desc.c keep every product below 2^64. */
static uint64_t attention_dim(const layer_view *v, dim d)
{
    const st_attention_desc *a = &v->layer->attention;
    uint64_t heads = a->heads, kv_heads = a->kv_heads;
    bool whole_row = a->qk_norm == ST_QK_NORM_ROW;
    switch (d) {
    case DIM_Q: return heads * query_length(v);
    case DIM_K: return kv_heads * a->key_length;
    case DIM_V: return kv_heads * a->value_length;
    case DIM_CHANNELS: return heads * a->key_length + kv_heads * ((uint64_t)a->key_length + a->value_length);
    case DIM_HEADS: return heads;
    case DIM_QUERY_RANK: return a->query_rank;
    case DIM_UNROTATED: return a->latent_query - (a->key_length - a->value_length);
    case DIM_LATENT_VALUE: return a->latent_value;
    case DIM_ATTENTION_OUT: return heads * (a->latent_query ? a->latent_value : a->value_length);
    case DIM_Q_NORM: return whole_row ? heads * a->key_length : a->key_length;
    default: return whole_row ? kv_heads * a->key_length : a->key_length; /* DIM_K_NORM */
    }
}

static uint64_t deltanet_dim(const layer_view *v, dim d)
{
    const st_deltanet_desc *n = &v->layer->deltanet;
    uint64_t size = n->state_size, values = size * n->value_heads;
    switch (d) {
    case DIM_Q:
    case DIM_K: return size * n->key_heads;
    case DIM_V:
    case DIM_ATTENTION_OUT:
    case DIM_INNER: return values;
    case DIM_CHANNELS: return 2 * size * n->key_heads + values;
    case DIM_CONV_WIDTH: return n->conv_width;
    case DIM_STATE_HEADS: return n->value_heads;
    case DIM_STATE_HEADS_TWICE: return 2 * (uint64_t)n->value_heads;
    case DIM_DECAYS: return n->channels ? values : n->value_heads;
    case DIM_NORM_GROUPS: return 1;
    default: return size; /* DIM_NORM_GROUP */
    }
}

static uint64_t ssm_dim(const layer_view *v, dim d)
{
    const st_ssm_desc *s = &v->layer->ssm;
    uint64_t inner = (uint64_t)s->heads * s->head_size, channels = inner + 2 * (uint64_t)s->groups * s->state_size;
    switch (d) {
    case DIM_INNER: return inner;
    case DIM_CHANNELS: return channels;
    case DIM_SSM_IN: return inner + channels + s->heads;
    case DIM_CONV_WIDTH: return s->conv_width;
    case DIM_NORM_GROUP: return inner / s->groups;
    case DIM_NORM_GROUPS: return s->groups;
    default: return s->heads; /* DIM_STATE_HEADS, DIM_DECAYS */
    }
}

static uint64_t ffn_dim(const layer_view *v, dim d)
{
    const st_ffn_desc *f = &v->layer->ffn;
    switch (d) {
    case DIM_DENSE: return f->dense_width;
    case DIM_DENSE_UP: return (v->desc->arch->ffn == ST_FFN_JOINED ? 2 : 1) * (uint64_t)f->dense_width;
    case DIM_EXPERTS: return f->experts;
    case DIM_EXPERT: return f->expert_width;
    case DIM_EXPERT_TWICE: return 2 * (uint64_t)f->expert_width;
    default: return f->shared_width; /* DIM_SHARED */
    }
}

/* Frequency factors: one per rotated pair of the largest layer that uses them. */
static uint64_t rope_pairs(const st_desc *desc)
{
    uint32_t pairs = 1;
    for (uint32_t i = 0; i < desc->layer_count + desc->nextn_count; i++) {
        const st_layer_desc *layer = &desc->layers[i];
        const st_rope *rope = &layer->attention.rope;
        bool used = layer->kind == ST_LAYER_ATTENTION && rope->style != ST_ROPE_NONE && rope->factors;
        if (used && rope->dims / 2 > pairs) pairs = rope->dims / 2;
    }
    return pairs;
}

static uint64_t dim_size(const layer_view *v, dim d)
{
    const st_desc *desc = v->desc;
    switch (d) {
    case DIM_NONE:
    case DIM_ONE: return 1;
    case DIM_E: return desc->embedding;
    case DIM_E_TWICE: return 2 * (uint64_t)desc->embedding;
    case DIM_E_THRICE: return 3 * (uint64_t)desc->embedding;
    case DIM_VOCAB: return desc->vocab;
    case DIM_ROPE_PAIRS: return rope_pairs(desc);
    case DIM_PER_LAYER: return desc->per_layer_width;
    case DIM_PER_LAYER_ALL: return (uint64_t)desc->per_layer_width * desc->layer_count;
    default: break;
    }
    if (!v->layer) return 1; /* the model's own tensors have none of a layer's dimensions */
    if (d >= DIM_DENSE) return ffn_dim(v, d);
    switch (v->layer->kind) {
    case ST_LAYER_ATTENTION: return attention_dim(v, d);
    case ST_LAYER_DELTANET: return deltanet_dim(v, d);
    case ST_LAYER_SSM: return ssm_dim(v, d);
    default: return v->layer->short_conv_width; /* DIM_CONV_WIDTH */
    }
}

/* --- roles -------------------------------------------------------------------------------------------------------- */

typedef struct role_row {
    const char *name;
    presence (*when)(const layer_view *view);
    dim dims[DIMS];
} role_row;

static const role_row roles[ST_ROLE_COUNT] = {
#define ROLE(id, name, rule, ...) [ST_ROLE_##id] = {name, when_##rule, {__VA_ARGS__}},
#include "model/roles.def"
#undef ROLE
};

static bool role_is_of_model(st_role role)
{
    return role <= ST_ROLE_PER_LAYER_PROJ_NORM;
}

/* --- binding ------------------------------------------------------------------------------------------------------ */

typedef struct binder {
    const st_desc *desc;
    const st_gguf *gguf;
    st_arena *arena;
    strata_error *error;
    st_weight *weights;
    uint32_t count;
    int32_t *index;
} binder;

static void tensor_name(const layer_view *v, st_role role, char name[NAME_MAX_BYTES])
{
    if (v->layer) snprintf(name, NAME_MAX_BYTES, "blk.%" PRIu32 ".%s", v->index, roles[role].name);
    else snprintf(name, NAME_MAX_BYTES, "%s", roles[role].name);
}

static void print_shape(const uint64_t *ne, uint32_t count, char *out, size_t size)
{
    size_t used = 0;
    while (count > 1 && ne[count - 1] == 1) count--;
    for (uint32_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRIu64, i ? ", " : "[", ne[i]);
    if (used < size) snprintf(out + used, size - used, "]");
}

/* Dimensions of 1 do not matter, wherever they are: they move no element. */
static bool same_shape(const uint64_t *a, int a_count, const uint64_t *b, int b_count)
{
    int i = 0, k = 0;
    for (;;) {
        while (i < a_count && a[i] == 1) i++;
        while (k < b_count && b[k] == 1) k++;
        if (i == a_count || k == b_count) return i == a_count && k == b_count;
        if (a[i++] != b[k++]) return false;
    }
}

static strata_status check_shape(const binder *b, const char *name, const st_gguf_tensor *tensor,
                                 const uint64_t expected[DIMS])
{
    if (same_shape(tensor->ne, 4, expected, DIMS)) return STRATA_OK;
    char wanted[96], found[96];
    print_shape(expected, DIMS, wanted, sizeof wanted);
    print_shape(tensor->ne, 4, found, sizeof found);
    return st_error_set(b->error, STRATA_FORMAT, "the file is damaged or was converted wrongly",
                        "%s: tensor %s: expected shape %s, found %s", st_gguf_path(b->gguf), name, wanted, found);
}

static strata_status missing(const binder *b, const char *name, const uint64_t expected[DIMS])
{
    char wanted[96];
    print_shape(expected, DIMS, wanted, sizeof wanted);
    return st_error_set(b->error, STRATA_FORMAT, "the file is damaged, or a part of a split is missing",
                        "%s: tensor %s: expected shape %s, found no such tensor", st_gguf_path(b->gguf), name, wanted);
}

/* Old files keep one tensor per expert: blk.N.ffn_gate.X.weight for blk.N.ffn_gate_exps.weight. */
static strata_status bind_parts(binder *b, const layer_view *v, st_role role, const uint64_t ne[DIMS],
                                st_weight *weight)
{
    static const struct { st_role role; const char *stem; } old_names[] = {
        {ST_ROLE_FFN_GATE_EXPS, "ffn_gate"}, {ST_ROLE_FFN_UP_EXPS, "ffn_up"}, {ST_ROLE_FFN_DOWN_EXPS, "ffn_down"}};
    const char *stem = NULL;
    for (size_t i = 0; i < sizeof old_names / sizeof *old_names; i++)
        if (old_names[i].role == role) stem = old_names[i].stem;
    char name[NAME_MAX_BYTES];
    if (stem) snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.0.weight", v->index, stem);
    if (!stem || !st_gguf_tensor_find(b->gguf, name)) {
        tensor_name(v, role, name);
        return missing(b, name, ne);
    }
    const st_gguf_tensor **parts = st_arena_alloc(b->arena, ne[2], sizeof *parts);
    if (!parts) return st_error_memory(b->error, ne[2] * sizeof *parts, "the list of experts");
    uint64_t one[DIMS] = {ne[0], ne[1], 1};
    for (uint64_t i = 0; i < ne[2]; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.%" PRIu64 ".weight", v->index, stem, i);
        parts[i] = st_gguf_tensor_find(b->gguf, name);
        if (!parts[i]) return missing(b, name, one);
        strata_status status = check_shape(b, name, parts[i], one);
        if (status != STRATA_OK) return status;
        if (parts[i]->type != parts[0]->type)
            return st_error_set(b->error, STRATA_UNSUPPORTED, NULL,
                                "%s: tensor %s: expected type %s as expert 0, found %s", st_gguf_path(b->gguf), name,
                                parts[0]->info->name, parts[i]->info->name);
        weight->bytes += parts[i]->bytes;
    }
    weight->tensor = parts[0];
    weight->parts = parts;
    return STRATA_OK;
}

static strata_status bind_role(binder *b, layer_view *v, st_role role)
{
    presence wanted = roles[role].when(v);
    if (wanted == ABSENT) return STRATA_OK;
    st_weight weight = {.role = role, .layer = v->layer ? (int32_t)v->index : -1};
    for (int i = 0; i < DIMS; i++) weight.ne[i] = dim_size(v, roles[role].dims[i]);
    char name[NAME_MAX_BYTES];
    tensor_name(v, role, name);
    weight.tensor = st_gguf_tensor_find(b->gguf, name);
    strata_status status = STRATA_OK;
    if (weight.tensor) {
        weight.bytes = weight.tensor->bytes;
        status = check_shape(b, name, weight.tensor, weight.ne);
    } else if (wanted == OPTIONAL_TENSOR) {
        return STRATA_OK;
    } else {
        status = bind_parts(b, v, role, weight.ne, &weight);
    }
    if (status != STRATA_OK) return status;
    if (role == ST_ROLE_SSM_NORM) { /* stored by groups; one vector for the norm */
        weight.ne[0] *= weight.ne[1];
        weight.ne[1] = 1;
    }
    if (role == ST_ROLE_FFN_GATE_UP_EXPS) v->fused_experts = true;
    if (role == ST_ROLE_ATTN_Q_NORM) v->has_q_norm = true;
    if (role == ST_ROLE_ROPE_FACTORS_SHORT) v->two_factors = true;
    if (role == ST_ROLE_ATTN_QKV) v->joined_qkv = is_attention(v);
    if (role == ST_ROLE_SSM_BA) v->joined_ba = true;
    b->index[(size_t)(weight.layer + 1) * ST_ROLE_COUNT + role] = (int32_t)b->count;
    b->weights[b->count++] = weight;
    return STRATA_OK;
}

static strata_status bind_all(binder *b)
{
    uint32_t layers = b->desc->layer_count + b->desc->nextn_count;
    for (int64_t i = -1; i < (int64_t)layers; i++) {
        layer_view v = {.desc = b->desc, .layer = i < 0 ? NULL : &b->desc->layers[i], .index = i < 0 ? 0 : (uint32_t)i};
        for (int role = 0; role < ST_ROLE_COUNT; role++) {
            if (role_is_of_model((st_role)role) != (i < 0)) continue;
            strata_status status = bind_role(b, &v, (st_role)role);
            if (status != STRATA_OK) return status;
        }
    }
    return STRATA_OK;
}

/* --- leftovers ---------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* The role of a tensor, by its name in a layer or in the model; ST_ROLE_COUNT: none. */
static st_role role_of(const char *name, bool of_model)
{
    for (int role = 0; role < ST_ROLE_COUNT; role++)
        if (role_is_of_model((st_role)role) == of_model && strcmp(roles[role].name, name) == 0) return (st_role)role;
    return ST_ROLE_COUNT;
}

/* Files may keep the unused keys and values of layers that read another layer's. */
static bool may_be_unused(const binder *b, int32_t layer, st_role role)
{
    bool of_kv = role == ST_ROLE_ATTN_K || role == ST_ROLE_ATTN_V || role == ST_ROLE_ATTN_K_NORM ||
                 role == ST_ROLE_ATTN_K_BIAS || role == ST_ROLE_ATTN_V_BIAS;
    const st_layer_desc *l = &b->desc->layers[layer < 0 ? 0 : layer];
    return layer >= 0 && of_kv && l->kind == ST_LAYER_ATTENTION && l->attention.kv_layer != (uint32_t)layer;
}

/* A tensor that other layers or families compute with, or a bias or factor of any kind, would change the result. */
static strata_status check_unused(const binder *b, const char *whole, const char *name, int32_t layer)
{
    st_role role = role_of(name, layer < 0);
    bool bound = role != ST_ROLE_COUNT && b->index[(size_t)(layer + 1) * ST_ROLE_COUNT + role] >= 0;
    bool known = role != ST_ROLE_COUNT && !may_be_unused(b, layer, role);
    bool changes = ends_with(name, ".bias") || ends_with(name, ".scale");
    if (bound || (!known && !(role == ST_ROLE_COUNT && changes))) return STRATA_OK;
    return st_error_set(b->error, STRATA_UNSUPPORTED, "the file is of a related model that strata does not support",
                        "%s: tensor %s: expected no such tensor in this %s of architecture %s", st_gguf_path(b->gguf),
                        whole, layer < 0 ? "model" : "layer", b->desc->arch->name);
}

/* A tensor of a layer past block_count is an error. Other unused tensors are allowed if they can change nothing. */
static strata_status check_leftovers(const binder *b)
{
    uint32_t blocks = b->desc->block_count, layers = b->desc->layer_count + b->desc->nextn_count;
    strata_status status = STRATA_OK;
    for (size_t i = 0; i < st_gguf_tensor_count(b->gguf) && status == STRATA_OK; i++) {
        st_str name = st_gguf_tensor_at(b->gguf, i)->name;
        char text[NAME_MAX_BYTES];
        snprintf(text, sizeof text, "%.*s", ST_STR_ARG(name));
        uint32_t layer;
        int length = 0;
        bool of_layer = sscanf(text, "blk.%9" SCNu32 ".%n", &layer, &length) == 1 && length > 0;
        if (of_layer && layer >= blocks)
            return st_error_set(b->error, STRATA_FORMAT, "the file is damaged or was converted wrongly",
                                "%s: tensor %s: expected layers 0 to %" PRIu32 " (block_count), found layer %" PRIu32,
                                st_gguf_path(b->gguf), text, blocks - 1, layer);
        if (!of_layer) status = check_unused(b, text, text, -1);
        else if (layer < layers) status = check_unused(b, text, text + length, (int32_t)layer);
    }
    return status;
}

strata_status st_binding_build(const st_desc *desc, const st_gguf *gguf, st_arena *arena, const st_binding **out,
                               strata_error *error)
{
    size_t layers = (size_t)desc->layer_count + desc->nextn_count;
    size_t places = (layers + 1) * ST_ROLE_COUNT;
    binder b = {.desc = desc, .gguf = gguf, .arena = arena, .error = error};
    st_binding *binding = st_arena_alloc(arena, 1, sizeof *binding);
    b.weights = st_arena_alloc(arena, places, sizeof *b.weights);
    b.index = st_arena_alloc(arena, places, sizeof *b.index);
    if (!binding || !b.weights || !b.index)
        return st_error_memory(error, places * (sizeof *b.weights + sizeof *b.index), "the list of weights");
    for (size_t i = 0; i < places; i++) b.index[i] = -1;
    strata_status status = bind_all(&b);
    if (status == STRATA_OK) status = check_leftovers(&b);
    if (status != STRATA_OK) return status;
    *binding = (st_binding){.weights = b.weights, .count = b.count, .index = b.index};
    *out = binding;
    return STRATA_OK;
}

bool st_role_is_expert(st_role role)
{
    return role == ST_ROLE_FFN_GATE_UP_EXPS || role == ST_ROLE_FFN_GATE_EXPS || role == ST_ROLE_FFN_UP_EXPS ||
           role == ST_ROLE_FFN_DOWN_EXPS;
}

int32_t st_binding_find(const st_binding *binding, st_role role, int32_t layer)
{
    return binding->index[(size_t)(layer + 1) * ST_ROLE_COUNT + (size_t)role];
}
