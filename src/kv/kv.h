/* Where a position's keys and values lie, and what a sequence remembers: caches per layer in float32, bf16 or q8_0, rings
 * for window and chunked layers, recurrent state, snapshots. Alone knows position → storage. Knows no weights and no
 * operations; hands views (backend.h) to whoever runs them. */
#ifndef ST_KV_KV_H
#define ST_KV_KV_H

#include "backend/backend.h"
#include "base/arena.h"
#include "model/desc.h"

typedef struct st_kv_options {
    st_type type;       /* of keys and values */
    uint32_t context;   /* positions */
    uint32_t batch;     /* the most tokens stored before one of them looks back */
    uint32_t snapshots; /* kept at a time, for models whose state cannot be rewound */
    bool no_rings;      /* window layers keep every position: for tests */
} st_kv_options;

/* The type when nobody asks for one. */
st_type st_kv_default_type(const st_desc *desc);

/* One layer's place in the one block of memory. */
typedef struct st_kv_layer {
    uint32_t capacity;       /* rows; 0: no keys and values of its own */
    uint32_t span;           /* how far back a position sees; 0: everything */
    size_t key_row_bytes, value_row_bytes;
    size_t keys_offset, values_offset;
    size_t conv_offset, delta_offset; /* recurrent layers; in the state's range */
    size_t conv_bytes, delta_bytes;
} st_kv_layer;

/* The layout is a pure function of description and options: the planner prices it, st_kv allocates it. */
typedef struct st_kv_layout {
    st_kv_options options;
    uint32_t layer_count;
    const st_kv_layer *layers;
    size_t cache_bytes;    /* keys and values of all layers, at the block's start */
    size_t state_offset, state_bytes; /* recurrent state of all layers, behind it */
    size_t snapshot_bytes; /* of all snapshots, behind that */
    size_t total_bytes;
} st_kv_layout;

strata_status st_kv_layout_build(const st_desc *desc, const st_kv_options *options, st_arena *arena,
                                 const st_kv_layout **out, strata_error *error);

/* Bytes of one layer's keys and values. */
size_t st_kv_layer_bytes(const st_kv_layer *layer);

typedef struct st_kv st_kv;

/* `layout` must outlive it. The sequence is empty. State is copied and cleared on `queue`, in order with what runs there. */
strata_status st_kv_new(const st_kv_layout *layout, const st_backend *backend, st_device *device, st_queue *queue,
                        st_kv **out, strata_error *error);
void st_kv_free(st_kv *kv);

st_kv_view st_kv_view_of(const st_kv *kv, uint32_t layer);
st_state_view st_kv_state_of(const st_kv *kv, uint32_t layer);

uint32_t st_kv_position(const st_kv *kv);        /* the next token's */
void st_kv_advance(st_kv *kv, uint32_t count);   /* `count` tokens have been stored */

/* Forgets everything from `position` on, or from the nearest earlier position that the state allows; returns where it
 * stands. What lies between that and `position` has to be computed again. */
strata_status st_kv_rewind(st_kv *kv, uint32_t position, uint32_t *reached, strata_error *error);

/* Remembers the state at this position, in the place of the oldest snapshot if need be. Nothing to do for models that
 * can be rewound. */
strata_status st_kv_snapshot(st_kv *kv, strata_error *error);

#endif
