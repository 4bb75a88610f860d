/* The KV cache of a sequence: keys and values of each layer in float32, f16, bf16 or q8_0, rings for layers with a window or
 * chunks, recurrent state and its snapshots. Only this module maps positions to memory. Knows no weights and no
 * operations; backends get views (backend.h). */
#ifndef ST_KV_KV_H
#define ST_KV_KV_H

#include "backend/backend.h"
#include "kv/layout.h"

enum { ST_KV_SHARES_MAX = 2 };

typedef struct st_kv st_kv;

/* A device's share of a sequence: the layers of its layout, in memory that the caller owns. State is copied and cleared on
 * `queue`, in order with the work that runs there. */
typedef struct st_kv_share {
    const st_kv_layout *layout;
    const st_backend *backend;
    st_queue *queue;
    unsigned char *memory; /* layout->total_bytes */
} st_kv_share;

/* The sequence is empty. Every layer is in one of the shares; the layouts and the memory must outlive it. */
strata_status st_kv_new(const st_kv_share *shares, uint32_t count, st_kv **out, strata_error *error);
void st_kv_free(st_kv *kv);

st_kv_view st_kv_view_of(const st_kv *kv, uint32_t layer);
st_state_view st_kv_state_of(const st_kv *kv, uint32_t layer);

uint32_t st_kv_position(const st_kv *kv);        /* the next token's */
void st_kv_advance(st_kv *kv, uint32_t count);   /* `count` tokens have been stored */

/* Drops everything from `position` on, or from the nearest earlier position that rings and snapshots allow. *reached is the
 * new position; the caller computes the tokens between it and `position` again. */
strata_status st_kv_rewind(st_kv *kv, uint32_t position, uint32_t *reached, strata_error *error);

/* Keeps a snapshot of the recurrent state at this position; the oldest is overwritten when all are in use. No-op for models
 * without recurrent layers. */
strata_status st_kv_snapshot(st_kv *kv, strata_error *error);

#endif
