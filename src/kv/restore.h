/* Restore points: copies, in host RAM, of what a conversation needs beside its pages of full attention to continue
 * at a position: tails of window and chunked layers, recurrent state, the last hidden row. This module decides where
 * each point lies in a block of `budget` bytes, which points are found and which are evicted; kv.c copies the bytes.
 * Points are immutable. Pure bookkeeping: allocates only in st_restore_new. The caller serialises all calls.
 *
 * A point belongs to a prefix: its position is the end of a published page (pages.h). */
#ifndef ST_KV_RESTORE_H
#define ST_KV_RESTORE_H

#include "kv/pages.h"

#define ST_NO_POINT UINT32_MAX

typedef struct st_restore st_restore;

/* Why a point was taken. Points are evicted in this order: points that cannot be found any more because their prefix
 * is no longer live, and superseded passing ones; then other passing ones; then marks. Within each class the least
 * recently used is first. */
typedef enum st_restore_kind {
    ST_RESTORE_PASSING, /* a page boundary during an answer or a long prompt */
    ST_RESTORE_MARK,    /* where conversations branch: end of the system prompt, of the last user message */
} st_restore_kind;

/* `budget` bytes; `points`: the most at a time; `prefixes` must outlive the restore points. */
strata_status st_restore_new(size_t budget, uint32_t points, const st_prefixes *prefixes, st_restore **out,
                             strata_error *error);
void st_restore_free(st_restore *restore);

/* Reserves `bytes` for a point at `prefix` and returns its number; st_restore_find finds it once st_restore_done was
 * called. Points that are in use or not done are not evicted for it, and nothing is evicted unless that makes enough
 * room. The new point supersedes the one at `older` (0: none), which may be evicted for it. ST_NO_POINT: there is no
 * room, or the prefix has a point already, which then is a mark if `kind` is, and supersedes `older` instead. Points
 * lie side by side: the caller rounds `bytes` to the alignment that its copies need. */
uint32_t st_restore_take(st_restore *restore, st_prefix prefix, size_t bytes, st_restore_kind kind, st_prefix older);
void st_restore_done(st_restore *restore, uint32_t point);    /* its copy has ended */
/* Frees a point whose copy has failed or whose bytes are broken. It must not be in use. */
void st_restore_discard(st_restore *restore, uint32_t point);

uint32_t st_restore_find(const st_restore *restore, st_prefix prefix); /* a point that is done; ST_NO_POINT: none */

/* A point in use (its bytes are being copied to a device) is not evicted; uses are counted. Use makes a point the most
 * recent, and it is no longer superseded. */
void st_restore_use(st_restore *restore, uint32_t point);
void st_restore_unuse(st_restore *restore, uint32_t point);

st_restore_kind st_restore_kind_of(const st_restore *restore, uint32_t point);
size_t st_restore_bytes(const st_restore *restore, uint32_t point);
size_t st_restore_offset(const st_restore *restore, uint32_t point);
size_t st_restore_used_bytes(const st_restore *restore);
uint32_t st_restore_count(const st_restore *restore);

#endif
