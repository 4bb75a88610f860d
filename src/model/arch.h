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
    ST_QK_NORM_HEAD,       /* per head, with weights, before RoPE */
    ST_QK_NORM_ROW,        /* over the whole projection, with weights, before RoPE */
    ST_QK_NORM_AFTER_ROPE, /* per head, without weights, after RoPE, on layers that have RoPE */
} st_qk_norm;

typedef enum st_bias { ST_BIAS_OPTIONAL, ST_BIAS_REQUIRED } st_bias;

/* The pattern of layer kinds. */
typedef enum st_layer_pattern {
    ST_LAYERS_ATTENTION,    /* all full attention */
    ST_LAYERS_WINDOWED,     /* attention.sliding_window_pattern marks the sliding-window layers */
    ST_LAYERS_CHUNKED,      /* every `interval`-th layer is full, the others attend within their chunk */
    ST_LAYERS_RECURRENT,    /* every `full_attention_interval`-th layer is attention, the others Gated DeltaNet */
} st_layer_pattern;

typedef enum st_activation { ST_ACT_SILU, ST_ACT_GELU } st_activation; /* GELU in its tanh approximation */

typedef enum st_router {
    ST_ROUTER_SOFTMAX, /* softmax over all experts, then top-k */
    ST_ROUTER_SIGMOID, /* top-k, each weighted by its sigmoid */
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
} st_shared_expert;

/* What states the width of the shared expert. */
typedef enum st_shared_width {
    ST_SHARED_WIDTH_KEY,    /* expert_shared_feed_forward_length, or else feed_forward_length */
    ST_SHARED_WIDTH_EXPERT, /* that key, or else the width of a routed expert */
    ST_SHARED_WIDTH_TENSOR, /* the tensor: the key is missing or unreliable */
} st_shared_width;

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

    /* layer kinds */
    st_layer_pattern pattern;
    uint32_t interval;       /* chunked: which layers are full */
    uint32_t chunk;          /* chunked: positions per chunk */
    bool full_without_rope;  /* the full layers have no RoPE … */
    float temperature;       /* … and scale q by ln(floor((pos+1)/chunk)+1)·temperature+1; 0: no */
    bool rope_factors_full_only;

    /* feed-forward */
    st_activation activation;
    st_router router;        /* unless expert_gating_func says otherwise */
    st_selection_bias selection;
    bool renormalise;        /* weights of the selected experts sum to one, unless expert_weights_norm says otherwise */
    bool weight_on_input;    /* the router's weight scales the expert's input, not its output */
    st_shared_expert shared_expert;
    st_shared_width shared_width;
    bool dense_beside_experts; /* a dense FFN runs in parallel with the routed experts; each has its own norms */

    /* the residual stream */
    bool scaled_embedding;   /* × √E */
    bool post_norms;         /* the outputs of attention and FFN are normalised before the residual addition */
    bool ffn_norm_is_post_attention; /* the pre-FFN norm is stored as post_attention_norm */
    bool nextn_optional;     /* a file may announce a NextN block and not have it */
} st_arch;

/* The row for a file's architecture name, or NULL. */
const st_arch *st_arch_find(st_str name);

/* The known names, for the error about an unknown one. */
size_t st_arch_count(void);
const char *st_arch_name_at(size_t index);

#endif
