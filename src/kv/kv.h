/* Where a position's keys and values lie, and what a sequence remembers: caches per layer in float32, bf16 or q8_0, rings
 * for window and chunked layers, recurrent state, snapshots. Alone knows position → storage. Knows no weights and no
 * operations; hands views (backend.h) to whoever runs them. */
#ifndef ST_KV_KV_H
#define ST_KV_KV_H

#include "backend/backend.h"
#include "kv/layout.h"

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
