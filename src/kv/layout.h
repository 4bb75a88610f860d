/* The memory layout of a sequence, a pure function of description and options: the planner prices it, st_kv uses it. */
#ifndef ST_KV_LAYOUT_H
#define ST_KV_LAYOUT_H

#include "base/arena.h"
#include "model/desc.h"
#include "quant/quant.h"

typedef struct st_kv_options {
    st_type type;       /* of keys and values */
    uint32_t context;   /* positions */
    uint32_t batch;     /* maximum tokens per batch: their keys and values are all stored before attention runs */
    uint32_t snapshots; /* kept at a time, for models with recurrent layers, whose state cannot be rewound */
    bool no_rings;      /* window layers keep every position: for tests */
    const uint8_t *layer_device; /* [layers]: only layers of `device` are laid out; NULL: all */
    uint8_t device;
} st_kv_options;

/* The types that keys and values may have, by their names in options and JSON. */
enum { ST_KV_TYPES = 4 };
#define ST_KV_TYPE_NAMES "f32, f16, bf16 or q8_0"
typedef struct st_kv_type {
    const char *name;
    st_type type;
} st_kv_type;
extern const st_kv_type st_kv_types[ST_KV_TYPES];

const char *st_kv_type_name(st_type type);        /* NULL: not one of them */
const st_kv_type *st_kv_type_find(const char *name); /* the same */

/* The type unless the caller asks for one: f16, and bf16 for models with recurrent layers. */
st_type st_kv_default_type(const st_desc *desc);

/* One layer's part of the block of memory. */
typedef struct st_kv_layer {
    uint32_t capacity;       /* rows; 0: no keys and values of its own */
    uint32_t span;           /* positions that a token attends to; 0: all before it */
    size_t key_row_bytes, value_row_bytes;
    size_t keys_offset, values_offset;
    size_t conv_offset, delta_offset; /* of recurrent layers; within the state's range */
    size_t conv_bytes, delta_bytes;
} st_kv_layer;

typedef struct st_kv_layout {
    st_kv_options options;
    uint32_t layer_count;
    const st_kv_layer *layers;
    size_t cache_bytes;    /* keys and values of all layers, at the block's start */
    size_t state_offset, state_bytes; /* recurrent state of all layers, behind it */
    size_t snapshot_bytes; /* of all snapshots, behind that */
    size_t total_bytes;
    struct {
        size_t kv, state, snapshots, padding;
    } exact; /* total_bytes by content; `padding` is the gaps between layers, which the ranges above include */
} st_kv_layout;

strata_status st_kv_layout_build(const st_desc *desc, const st_kv_options *options, st_arena *arena,
                                 const st_kv_layout **out, strata_error *error);

/* The same sizes without the layers (out->layers is NULL). False: a size overflows. The options are not checked. */
bool st_kv_layout_price(const st_desc *desc, const st_kv_options *options, st_kv_layout *out);

/* Bytes of one layer's keys and values, without gaps. */
size_t st_kv_layer_bytes(const st_kv_layer *layer);

#endif
