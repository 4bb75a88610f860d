/* Model families as rows of values on shared axes. Alone knows the families' names: adding one is adding a row. Knows
 * no keys, no tensors and no operations; desc.c, bind.c and lower.c read the axes and never the name. */
#ifndef ST_MODEL_ARCH_H
#define ST_MODEL_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef enum st_rope_style {
    ST_ROPE_NONE,
    ST_ROPE_PAIRS,  /* rotates elements 2i and 2i+1 as a pair */
    ST_ROPE_HALVES, /* rotates elements i and i+n/2 as a pair */
} st_rope_style;

/* RMS norm of the query and key projections. */
typedef enum st_qk_norm {
    ST_QK_NORM_NONE,
    ST_QK_NORM_HEAD,            /* per head, with weights, before RoPE */
    ST_QK_NORM_ROW,             /* over the whole projection, with weights, before RoPE */
    ST_QK_NORM_AFTER_ROPE,      /* per head, without weights, after RoPE, on layers that have RoPE */
    ST_QK_NORM_HEAD_AFTER_ROPE, /* per head, with weights, after RoPE */
} st_qk_norm;

typedef enum st_bias { ST_BIAS_OPTIONAL, ST_BIAS_REQUIRED } st_bias;

/* The pattern of layer kinds. */
typedef enum st_layer_pattern {
    ST_LAYERS_ATTENTION,    /* all full attention */
    ST_LAYERS_WINDOWED,     /* attention.sliding_window_pattern marks the sliding-window layers; without it every
                               `interval`-th layer is full */
    ST_LAYERS_ONE_WINDOW,   /* all have the window attention.sliding_window, if it is not 0 */
    ST_LAYERS_CHUNKED,      /* every `interval`-th layer is full, the others attend within their chunk */
    ST_LAYERS_RECURRENT,    /* every `full_attention_interval`-th layer is attention, the others recurrent */
    ST_LAYERS_BY_KV_HEADS,  /* layers without KV heads are recurrent */
} st_layer_pattern;

/* The order of the parts of a layer and their norms; n are norms. */
typedef enum st_layer_form {
    ST_FORM_PRE_NORM,  /* x += mix(n(x)); x += ffn(n(x)) */
    ST_FORM_SANDWICH,  /* x += n(mix(n(x))); x += n(ffn(n(x))) */
    ST_FORM_POST_NORM, /* x += n(mix(x)); x += n(ffn(x)) */
    ST_FORM_PARALLEL,  /* h = n(x); x += mix(h) + ffn(h) */
    ST_FORM_SINGLE,    /* x += part(n(x)): a layer has one part, attention, recurrent or feed-forward */
} st_layer_form;

typedef enum st_norm_kind {
    ST_NORM_RMS,
    ST_NORM_LAYER, /* subtracts the mean */
} st_norm_kind;

typedef enum st_activation {
    ST_ACT_SILU,
    ST_ACT_GELU,   /* in its tanh approximation */
    ST_ACT_SWIGLU_CLAMPED, /* min(g, 7)·sigmoid(1.702·min(g, 7)) × (1 + the other factor within ±7) */
    ST_ACT_RELU_SQUARED,
} st_activation;

/* The matrices of a feed-forward part. */
typedef enum st_ffn_form {
    ST_FFN_GATED,   /* down(activation(gate·x) × up·x) */
    ST_FFN_JOINED,  /* the same; a dense part's ffn_up holds gate ‖ up */
    ST_FFN_UNGATED, /* down(activation(up·x)) */
} st_ffn_form;

typedef enum st_router {
    ST_ROUTER_SOFTMAX,        /* softmax over all experts, then top-k */
    ST_ROUTER_SIGMOID,        /* top-k, each weighted by its sigmoid */
    ST_ROUTER_SOFTMAX_CHOSEN, /* top-k, then softmax over them */
} st_router;

/* A bias per expert that is added for the selection alone. */
typedef enum st_selection_bias {
    ST_SELECTION_PLAIN,
    ST_SELECTION_BIASED,
    ST_SELECTION_BY_ROUTER, /* biased if the router is a sigmoid. Without a key of the router, a bias means a sigmoid */
} st_selection_bias;

typedef enum st_shared_expert {
    ST_SHARED_NONE,
    ST_SHARED_GATED,  /* × sigmoid(ffn_gate_inp_shexp · x) */
    ST_SHARED_ALWAYS,
    ST_SHARED_IF_STATED, /* always on, in models with expert_shared_feed_forward_length */
} st_shared_expert;

/* What states the width of the shared expert. */
typedef enum st_shared_width {
    ST_SHARED_WIDTH_KEY,    /* expert_shared_feed_forward_length, or else feed_forward_length */
    ST_SHARED_WIDTH_EXPERT, /* that key, or else the width of a routed expert */
    ST_SHARED_WIDTH_TENSOR, /* the tensor: the key is missing or unreliable */
} st_shared_width;

/* The recurrent layers of a family. */
typedef enum st_recurrent {
    ST_RECURRENT_DELTA,          /* Gated DeltaNet: a decay per head; value head h reads key head h % key heads */
    ST_RECURRENT_DELTA_GROUPED,  /* the same; value head h reads key head h / (value heads / key heads) */
    ST_RECURRENT_DELTA_CHANNELS, /* a decay per channel of the key (KDA); q, k and v are projected apart */
    ST_RECURRENT_SSM,            /* selective state space with a scalar decay per head (Mamba-2) */
    ST_RECURRENT_SHORT_CONV,     /* a gated short convolution */
} st_recurrent;

/* What logit_scale does to the logits. */
typedef enum st_logit_scale { ST_LOGITS_PLAIN, ST_LOGITS_DIVIDED, ST_LOGITS_MULTIPLIED } st_logit_scale;

typedef struct st_arch {
    const char *name; /* general.architecture */

    /* attention */
    st_rope_style rope;
    st_qk_norm qk_norm;
    bool qk_norm_optional;   /* a file without the norms' weights has no q/k norm */
    uint32_t qk_norm_not_with_experts; /* a model with this many experts has no q/k norm; 0: every model has it */
    st_bias bias;            /* of q, k and v */
    bool gated_attention;    /* the query projection holds [q ‖ gate] per head; the output is × sigmoid(gate) */
    bool value_norm;         /* weightless RMS norm of V per head */
    bool value_may_be_key;   /* a layer without attn_v uses the raw K projection as V */
    bool unit_scale;         /* attention scale 1 instead of 1/√key_length */
    uint32_t wide_scale_layers; /* a model with this many layers has the attention scale 1/√(E/heads); 0: none has */
    bool sinks;              /* a logit per head joins the softmax's denominator */
    bool latent;             /* keys and values of all heads are projections of one cached latent row (MLA) */

    /* RoPE */
    uint32_t no_rope_interval; /* every so-manieth layer has no RoPE; 0: all have it */
    bool full_without_rope;  /* the full layers of a model with windows or chunks have no RoPE … */
    float temperature;       /* … and scale q by ln(floor((pos+1)/chunk)+1)·temperature+1; 0: no */
    bool temperature_key;    /* attention.temperature_scale scales every layer's q by the same formula, with pos for
                                pos+1 and the original context for the chunk */
    bool rope_factors_full_only;
    bool rope_factors_by_length; /* the file has two lists of factors, for short and for long contexts */
    bool rope_scaling_full_only;
    bool rope_if_finetuned;  /* a model with rope.scaling.finetuned false has no RoPE */
    float window_rope_base;  /* of window layers without a key; 0: as on full layers */
    bool yarn_unrounded;     /* the ends of YaRN's ramp are not rounded */
    bool yarn_scales_attention; /* rope.scaling.yarn_log_multiplier scales the scores, too */

    /* layer kinds */
    st_layer_pattern pattern;
    uint32_t interval;       /* windowed, chunked: which layers are full */
    bool windows_optional;   /* a model without attention.sliding_window has full layers alone */
    uint32_t chunk;          /* chunked: positions per chunk */
    st_recurrent recurrent;

    /* feed-forward */
    st_activation activation;
    st_ffn_form ffn;
    st_router router;        /* unless expert_gating_func says otherwise */
    st_selection_bias selection;
    bool renormalise;        /* weights of the selected experts sum to one, unless expert_weights_norm says otherwise */
    bool weight_on_input;    /* the router's weight scales the expert's input, not its output */
    bool expert_biases;      /* the router, the experts' matrices and attention's output have biases */
    st_shared_expert shared_expert;
    st_shared_width shared_width;
    bool dense_beside_experts; /* a dense FFN runs in parallel with the routed experts; each has its own norms */

    /* the residual stream */
    st_layer_form form;
    st_norm_kind norm;
    bool scaled_embedding;   /* × √E */
    bool scale_keys;         /* embedding_scale, residual_scale and attention.scale are read */
    st_logit_scale logits;
    bool ffn_norm_is_post_attention;   /* the pre-FFN norm is stored as post_attention_norm */
    bool output_norm_is_embedding_norm; /* the norm before the output matrix is stored as token_embd_norm */
    bool nextn_optional;     /* a file may announce a NextN block and not have it */
} st_arch;

/* The row for a file's architecture name, or NULL. */
const st_arch *st_arch_find(st_str name);

/* The known names, for the error about an unknown one. */
size_t st_arch_count(void);
const char *st_arch_name_at(size_t index);

#endif
