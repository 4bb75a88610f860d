/* The memory of all conversations of an engine: pages of keys and values in pools, slots of recurrent state, restore
 * points in host RAM and, beside a GPU, a RAM tier of pages (layout.h, pages.h, restore.h, tier.h). Assigns pages and
 * slots to conversations (conversation.h) and copies them. Only this module and conversation.c map positions to
 * memory. Knows no weights, no operations and no text; backends get views (backend.h). Allocates only in st_kv_new.
 * The caller's lock guards it. */
#ifndef ST_KV_KV_H
#define ST_KV_KV_H

#include "backend/backend.h"
#include "base/digest.h"
#include "kv/layout.h"
#include "kv/pages.h"
#include "kv/restore.h"

enum { ST_KV_SHARES_MAX = 2 };
#define ST_NO_SLOT UINT32_MAX

typedef struct st_kv st_kv;
typedef struct st_conversation st_conversation;

/* A device's share: the layers of its layout, in memory that the caller owns. Pages and state are copied and cleared on
 * `queue`, in order with the work that runs there. */
typedef struct st_kv_share {
    const st_kv_layout *layout;
    const st_backend *backend;
    st_device *device;
    st_queue *queue;
    unsigned char *memory; /* layout->total_bytes */
} st_kv_share;

typedef struct st_kv_source {
    st_kv_share shares[ST_KV_SHARES_MAX]; /* the host's first; every layer is in one of them */
    uint32_t share_count;
    unsigned char *restore; /* host memory of restore points */
    size_t restore_bytes;
    unsigned char *tier;    /* host memory of the RAM tier: st_kv_tier_bytes. NULL: none */
    uint32_t tier_pages;    /* 0 without a second share */
} st_kv_source;

/* The layouts and the memory must outlive it. Conversations are freed before it. */
strata_status st_kv_new(const st_kv_source *source, st_kv **out, strata_error *error);
void st_kv_free(st_kv *kv);

st_kv_view st_kv_view_of(const st_kv *kv, uint32_t layer);
st_state_view st_kv_state_of(const st_kv *kv, uint32_t layer);
/* The hidden row of a slot, in the memory of share `share`. */
unsigned char *st_kv_carry(const st_kv *kv, uint32_t share, uint32_t slot);

/* Saves the state of idle conversations in a folder (store.h) from now on, and finds it there. The store must outlive
 * st_kv_free. `identity` is the store's. Pages on a GPU are saved from the RAM tier: without one they are not.
 * STRATA_MEMORY: nothing changes. */
struct st_store;
strata_status st_kv_set_store(st_kv *kv, struct st_store *store, const st_digest *identity, strata_error *error);
size_t st_kv_saved_page_bytes(const st_kv *kv); /* of a page in a file */

/* Every enqueued step has ended on every device: its pages may be shared. */
void st_kv_confirm(st_kv *kv);
/* A device has failed: conversations go back to their confirmed tokens. */
void st_kv_fail(st_kv *kv);

/* Whether conversations have recurrent state, which a failed step destroys. */
bool st_kv_has_state(const st_kv *kv);

/* Pages of full attention that running conversations may take: free, cached, or held by idle ones. Counted only as far
 * as `enough`. */
uint32_t st_kv_room(const st_kv *kv, uint32_t enough);

typedef struct st_kv_use {
    st_pages_counts pools[ST_KV_POOLS_MAX];
    uint32_t pool_count, page_tokens;
    uint32_t slots, slots_taken;
    uint32_t points;      /* restore points that exist */
    size_t restore_bytes; /* that they take */
    uint32_t conversations;
    uint32_t tier_pages, tier_pages_used; /* of the RAM tier */
} st_kv_use;

st_kv_use st_kv_count(const st_kv *kv);

#endif
