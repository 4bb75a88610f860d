/* The parts of desc.c: bounds, and readers of a layer's parts. */
#ifndef ST_MODEL_DESC_PARTS_H
#define ST_MODEL_DESC_PARTS_H

#include "model/desc.h"
#include "model/keys.h"

/* Upper bounds on a model's numbers: far above existing models, far below overflow. */
enum {
    ST_LAYERS_MAX = 4096,
    ST_WIDTH_MAX = 1 << 20,
    ST_HEADS_MAX = 1 << 14,
    ST_HEAD_SIZE_MAX = 1 << 14,
    ST_EXPERTS_MAX = 1 << 14,
    ST_VOCAB_MAX = 1 << 24,
    ST_CONTEXT_MAX = 1 << 30,
    ST_PER_LAYER_ALL_MAX = 1 << 24,
};

/* desc_attention.c */
void st_desc_read_attention(st_keys *keys, const st_desc *desc, uint32_t layer, st_attention_desc *out);

/* desc_recurrent.c: of a layer whose kind is known */
void st_desc_read_recurrent(st_keys *keys, const st_desc *desc, st_layer_desc *out);

/* desc_foreign.c: refuses keys that would change the result and that the row does not read */
void st_desc_check_foreign(st_keys *keys, const st_desc *desc);

/* desc_ffn.c */
void st_desc_read_ffn(st_keys *keys, const st_desc *desc, uint32_t layer, st_ffn_desc *out);

#endif
