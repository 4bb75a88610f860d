/* The memory layout of the KV cache and the recurrent state on one device, a pure function of
 * description and options: the planner prices it, st_kv uses it. */
#ifndef ST_KV_LAYOUT_H
#define ST_KV_LAYOUT_H

#include "base/arena.h"
#include "model/desc.h"
#include "quant/quant.h"

enum { ST_KV_PAGE_TOKENS = 64 }; /* positions of a page by default */

typedef struct st_kv_options {
    st_type type;           /* of keys and values */
    uint32_t page_tokens;   /* positions of a page: a power of two */
    uint32_t context;       /* positions of the longest conversation */
    uint32_t pool_tokens;   /* positions of full attention that all conversations share; at least `context` */
    uint32_t conversations; /* that run at a time: each has a slot of recurrent state */
    uint32_t batch;         /* maximum rows of a step: their keys and values are all stored before attention runs */
    uint32_t carry;         /* floats of the hidden row that belongs to the state; 0: none */
    bool no_windows;        /* window layers keep every position: for tests */
    bool page_major;        /* the layers of a page lie together; else the pages of a layer do */
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

/* The pages of the layers that see equally many positions. A page number means the same positions of the same
 * conversation in every layer of the pool, on every device. Pool 0 is full attention's, also where no layer has it: its
 * pages name the prefixes of conversations. */
typedef struct st_kv_pool {
    uint32_t span;      /* positions that a token attends to; 0: all before it */
    uint32_t pages;
    uint32_t table_max; /* pages of one conversation */
    uint32_t tail_max;  /* pages of a restore point: the next token attends to them. 0 for pool 0 */
    size_t page_bytes;  /* of this device's layers */
    size_t offset;      /* of page 0, if the layout is page-major */
} st_kv_pool;

/* One layer's part of the block of memory. */
typedef struct st_kv_layer {
    uint32_t pool;
    size_t key_row_bytes, value_row_bytes; /* 0: no keys and values of its own. Values alone 0: in its keys */
    size_t keys_offset, values_offset;     /* of page 0 */
    size_t key_page_bytes, value_page_bytes; /* from a page to the next */
    size_t conv_offset, delta_offset; /* in slot 0: of a convolution's inputs, and of the other state */
    size_t conv_bytes, delta_bytes;
} st_kv_layer;

typedef struct st_kv_layout {
    st_kv_options options;
    uint32_t page_shift;
    uint32_t pool_count;
    st_kv_pool pools[ST_KV_POOLS_MAX];
    uint32_t layer_count;
    const st_kv_layer *layers;
    size_t cache_bytes;    /* keys and values of all layers, at the block's start */
    size_t state_offset;   /* slot 0, behind it */
    size_t slot_bytes;     /* of one slot: recurrent state of all layers, and the hidden row */
    size_t carry_offset;   /* in a slot */
    size_t total_bytes;
    bool needs_points;     /* conversations have state, or layers that forget. The same on every device */
    size_t point_bytes;    /* the most that a restore point holds of this device: a slot and the tails of all pools */
    struct {
        size_t kv, state, padding;
    } exact; /* total_bytes by content; `padding` is the gaps between layers, which the ranges above include */
} st_kv_layout;

/* Entries of all page tables of a step. */
uint32_t st_kv_tables_max(const st_kv_layout *layout);

/* Bytes of a RAM tier of `pages`: the pages of full attention of every layout, one layout after the other. SIZE_MAX:
 * overflow. */
enum { ST_TIER_PAGES_MAX = 1 << 24 };
size_t st_kv_tier_bytes(const st_kv_layout *const *layouts, uint32_t count, uint32_t pages);

/* Bytes of one layer's keys and values in all pages, and of its recurrent state in all slots. */
size_t st_kv_layer_bytes(const st_kv_layout *layout, const st_kv_layer *layer);
size_t st_kv_layer_state_bytes(const st_kv_layout *layout, const st_kv_layer *layer);

/* Whether a layout with these options exists, but for its size. */
strata_status st_kv_layout_check(const st_desc *desc, const st_kv_options *options, strata_error *error);

strata_status st_kv_layout_build(const st_desc *desc, const st_kv_options *options, st_arena *arena,
                                 const st_kv_layout **out, strata_error *error);

/* The same sizes without the layers (out->layers is NULL). False: a size overflows. The caller has checked the
 * options. */
bool st_kv_layout_price(const st_desc *desc, const st_kv_options *options, st_kv_layout *out);

#endif
