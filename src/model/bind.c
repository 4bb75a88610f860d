#include "model/bind.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

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
} layer_view;

static bool is_attention(const layer_view *v)
{
    return v->layer->kind == ST_LAYER_ATTENTION;
}

static bool is_deltanet(const layer_view *v)
{
    return v->layer->kind == ST_LAYER_DELTANET;
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
RULE(ATTENTION, REQUIRED_TENSOR, is_attention(v))
RULE(OUTPUT_BIAS, v->desc->arch->expert_biases ? REQUIRED_TENSOR : OPTIONAL_TENSOR, is_attention(v))
RULE(SINKS, REQUIRED_TENSOR, is_attention(v) && v->desc->arch->sinks)
RULE(LATENT, REQUIRED_TENSOR, is_latent(v))
RULE(LATENT_QUERY, REQUIRED_TENSOR, is_latent(v) && v->layer->attention.query_rank > 0)
RULE(QKV, is_attention(v) ? OPTIONAL_TENSOR : REQUIRED_TENSOR,
     is_deltanet(v) || (has_own_kv(v) && !v->desc->arch->gated_attention))
RULE(QKV_BIAS, bias_presence(v), is_attention(v) && v->joined_qkv)
RULE(QUERIES, REQUIRED_TENSOR, has_own_queries(v))
RULE(QUERIES_BIAS, bias_presence(v), has_own_queries(v) && !is_latent(v))
RULE(OWN_KV, REQUIRED_TENSOR, has_own_kv(v) && !v->joined_qkv)
RULE(OWN_KV_BIAS, bias_presence(v), has_own_kv(v) && !v->joined_qkv)
RULE(OWN_VALUE, value_presence(v), has_own_kv(v) && !v->joined_qkv)
RULE(QK_NORM, v->desc->arch->qk_norm_optional ? OPTIONAL_TENSOR : REQUIRED_TENSOR,
     is_attention(v) && has_qk_norm_weights(v))
RULE(OWN_K_NORM, REQUIRED_TENSOR, has_own_kv(v) && v->has_q_norm)
RULE(DELTANET, REQUIRED_TENSOR, is_deltanet(v))
RULE(POST_NORMS, REQUIRED_TENSOR, has_post_norms(v))
RULE(POST_ATTENTION_NORM, REQUIRED_TENSOR, has_post_norms(v) || v->desc->arch->ffn_norm_is_post_attention)
RULE(FFN_NORM, REQUIRED_TENSOR, has_ffn_norm(v) && !v->desc->arch->ffn_norm_is_post_attention)
RULE(DENSE, REQUIRED_TENSOR, v->layer->ffn.dense_width > 0)
RULE(DENSE_GATE, REQUIRED_TENSOR, v->layer->ffn.dense_width > 0 && v->desc->arch->ffn == ST_FFN_GATED)
RULE(EXPERTS, REQUIRED_TENSOR, has_experts(v))
RULE(SELECTION_BIAS, REQUIRED_TENSOR, has_experts(v) && has_selection_bias(v))
RULE(EXPERT_BIASES, REQUIRED_TENSOR, has_experts(v) && v->desc->arch->expert_biases)
RULE(EXPERTS_OPTIONAL, OPTIONAL_TENSOR, has_experts(v))
RULE(EXPERTS_UNFUSED, REQUIRED_TENSOR, has_experts(v) && !v->fused_experts)
RULE(EXPERTS_BESIDE, REQUIRED_TENSOR, has_experts(v) && v->desc->arch->dense_beside_experts)
RULE(SHARED, REQUIRED_TENSOR, v->layer->ffn.shared_width > 0)
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
    DIM_QKV,
    DIM_DELTA_VALUES,
    DIM_CONV_WIDTH,
    DIM_VALUE_HEADS,
    DIM_STATE,
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
    case DIM_QKV: return heads * a->key_length + kv_heads * ((uint64_t)a->key_length + a->value_length);
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
    uint64_t size = n->state_size;
    switch (d) {
    case DIM_QKV: return size * (2 * (uint64_t)n->key_heads + n->value_heads);
    case DIM_DELTA_VALUES: return size * n->value_heads;
    case DIM_CONV_WIDTH: return n->conv_width;
    case DIM_VALUE_HEADS: return n->value_heads;
    default: return size; /* DIM_STATE */
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
    case DIM_VOCAB: return desc->vocab;
    case DIM_ROPE_PAIRS: return rope_pairs(desc);
    case DIM_PER_LAYER: return desc->per_layer_width;
    case DIM_PER_LAYER_ALL: return (uint64_t)desc->per_layer_width * desc->layer_count;
    default: break;
    }
    if (!v->layer) return 1; /* the model's own tensors have none of a layer's dimensions */
    if (d <= DIM_K_NORM || (d == DIM_QKV && is_attention(v))) return attention_dim(v, d);
    return d <= DIM_STATE ? deltanet_dim(v, d) : ffn_dim(v, d);
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

static strata_status check_shape(const binder *b, const char *name, const st_gguf_tensor *tensor,
                                 const uint64_t expected[DIMS])
{
    bool same = tensor->ne[3] == 1;
    for (int i = 0; i < DIMS; i++) same = same && tensor->ne[i] == expected[i];
    if (same) return STRATA_OK;
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
    if (role == ST_ROLE_FFN_GATE_UP_EXPS) v->fused_experts = true;
    if (role == ST_ROLE_ATTN_Q_NORM) v->has_q_norm = true;
    if (role == ST_ROLE_ROPE_FACTORS_SHORT) v->two_factors = true;
    if (role == ST_ROLE_ATTN_QKV) v->joined_qkv = is_attention(v);
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

/* A tensor of a layer past block_count is an error. Other unused tensors are allowed. */
static strata_status check_leftovers(const binder *b)
{
    uint32_t layers = b->desc->block_count;
    for (size_t i = 0; i < st_gguf_tensor_count(b->gguf); i++) {
        st_str name = st_gguf_tensor_at(b->gguf, i)->name;
        char text[NAME_MAX_BYTES];
        snprintf(text, sizeof text, "%.*s", ST_STR_ARG(name));
        uint32_t layer;
        if (sscanf(text, "blk.%9" SCNu32 ".", &layer) == 1 && layer >= layers)
            return st_error_set(b->error, STRATA_FORMAT, "the file is damaged or was converted wrongly",
                                "%s: tensor %s: expected layers 0 to %" PRIu32 " (block_count), found layer %" PRIu32,
                                st_gguf_path(b->gguf), text, layers - 1, layer);
    }
    return STRATA_OK;
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
