/* The description of a model: keys + row → every number the forward pass needs, validated and immutable. Reads keys
 * and, where no key states a fact, which tensors the file has; touches no tensor's data. */
#ifndef ST_MODEL_DESC_H
#define ST_MODEL_DESC_H

#include "base/arena.h"
#include "gguf/gguf.h"
#include "model/arch.h"
#include "strata.h"

typedef enum st_rope_scaling { ST_ROPE_SCALING_NONE, ST_ROPE_SCALING_LINEAR, ST_ROPE_SCALING_YARN } st_rope_scaling;

typedef struct st_rope {
    st_rope_style style; /* ST_ROPE_NONE: positions are not encoded */
    uint32_t dims;       /* elements of a head that RoPE rotates */
    bool factors;        /* rope_freqs.weight divides the frequencies, if the file has it */
    float base;
    st_rope_scaling scaling;
    float scaling_factor;
    float original_context; /* YaRN */
    float attention_factor; /* YaRN: scales sine and cosine; 1 otherwise */
    float beta_fast, beta_slow;
    bool unrounded;         /* YaRN: the ends of the ramp are not rounded */
} st_rope;

enum { ST_KV_POOLS_MAX = 4 }; /* numbers of positions that the layers of a model may see, full attention included */

/* The part of a layer that mixes tokens. */
typedef enum st_layer_kind {
    ST_LAYER_ATTENTION,
    ST_LAYER_DELTANET,
    ST_LAYER_SSM,
    ST_LAYER_SHORT_CONV,
    ST_LAYER_FFN, /* none: the layer is a feed-forward part alone */
    ST_LAYER_KINDS
} st_layer_kind;

typedef struct st_attention_desc {
    uint32_t heads, kv_heads;
    uint32_t key_length, value_length; /* per head */
    float scale;
    uint32_t window;       /* position i sees j iff i−j < window; 0: no window */
    uint32_t chunk;        /* position i sees j iff i/chunk = j/chunk; 0: no chunks */
    float temperature;     /* see arch.h; 0: none */
    uint32_t temperature_chunk;
    bool temperature_from_zero; /* it counts positions from 0 */
    st_rope rope;
    st_qk_norm qk_norm;
    /* Latent attention: a row of the cache is the latent and a rotated part, key_length elements for all heads; its
     * first value_length elements are the value. Each head multiplies its query and its output with matrices of its
     * own. */
    uint32_t latent_query; /* elements of a head's query before that; 0: not latent */
    uint32_t latent_value; /* elements of a head's output after that */
    uint32_t query_rank;   /* the queries are projected through so many elements; 0: directly */
    uint32_t kv_layer;     /* whose K and V it reads: its own index, or an earlier layer's */
} st_attention_desc;

typedef struct st_deltanet_desc {
    uint32_t key_heads, value_heads;
    uint32_t state_size; /* per head, of keys and of values */
    uint32_t conv_width;
    bool grouped;        /* see arch.h */
    bool channels;       /* a decay per channel of the key; q, k and v are projected and convolved apart */
} st_deltanet_desc;

/* Selective state space: heads of head_size channels, each with a state of head_size × state_size. */
typedef struct st_ssm_desc {
    uint32_t heads, head_size, state_size;
    uint32_t groups;     /* of heads that share B and C, and of channels that are normalised together */
    uint32_t conv_width;
} st_ssm_desc;

typedef struct st_ffn_desc {
    uint32_t dense_width;  /* 0: no dense FFN */
    uint32_t experts, experts_used, expert_width; /* 0: no experts */
    uint32_t shared_width; /* 0: no shared expert */
    st_router router;
    bool renormalise;
    float weights_scale;
    uint32_t groups, groups_used, group_top; /* see program.h; groups 1: none */
} st_ffn_desc;

typedef struct st_layer_desc {
    st_layer_kind kind;
    st_attention_desc attention; /* kind ST_LAYER_ATTENTION */
    st_deltanet_desc deltanet;   /* kind ST_LAYER_DELTANET */
    st_ssm_desc ssm;             /* kind ST_LAYER_SSM */
    uint32_t short_conv_width;   /* kind ST_LAYER_SHORT_CONV: over E channels */
    st_ffn_desc ffn;
} st_layer_desc;

typedef struct st_desc {
    const st_arch *arch;
    uint32_t layer_count;      /* of the forward pass */
    uint32_t nextn_count;      /* NextN blocks behind them (0 or 1) */
    uint32_t block_count;      /* of the file; a NextN block that is announced may be missing */
    uint32_t embedding;        /* E */
    uint32_t vocab;
    uint32_t context_max;
    uint32_t per_layer_width;  /* per-layer embeddings; 0: none */
    float norm_epsilon;
    float embedding_scale;
    float residual_scale;      /* of the outputs of a layer's parts */
    float logit_scale;         /* the logits are × it */
    float logit_softcap;       /* 0: none */
    const st_layer_desc *layers; /* [layer_count + nextn_count] */
    bool recurrent;            /* some layer has recurrent state, which cannot be cut */
} st_desc;

/* The recurrent state of a layer: the last inputs of a convolution, and floats beside them. All 0: none. */
typedef struct st_state_shape {
    uint64_t conv_channels, conv_rows;
    uint64_t floats;
} st_state_shape;

st_state_shape st_layer_state(const st_desc *desc, uint32_t layer);

/* The name of a layer's kind: "attention", "deltanet", "ssm", "short_conv" or "ffn". */
const char *st_layer_kind_name(st_layer_kind kind);

/* Builds the description in `arena`. An unknown architecture is STRATA_UNSUPPORTED with the list of known ones; a
 * missing or absurd key is STRATA_FORMAT with its name, what was expected and what was found. */
strata_status st_desc_build(const st_gguf *gguf, st_arena *arena, const st_desc **out, strata_error *error);

/* A copy in `arena` whose layers use at most `used` routed experts of a token. More than a layer uses is
 * STRATA_USAGE. */
strata_status st_desc_use_experts(const st_desc *desc, uint32_t used, st_arena *arena, const st_desc **out,
                                  strata_error *error);

#endif
