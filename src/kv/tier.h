/* The RAM tier: which pages of full attention have a copy in host memory beside a GPU, and where. The tier has room
 * for a number of pages; a page of the tier belongs to a prefix (prefixes.h), and a page is kept only while the pages
 * before it are: the tier holds beginnings of conversations. Room is made from cold ends: the least recently used
 * page that no other page of the tier continues. This module decides; exchange.c copies the bytes. Pure bookkeeping:
 * allocates only in st_tier_new. The caller serialises all calls. */
#ifndef ST_KV_TIER_H
#define ST_KV_TIER_H

#include "kv/prefixes.h"

typedef struct st_tier st_tier;

/* `prefixes` must outlive it, and have room for `pages` names more than the pool has pages. */
strata_status st_tier_new(uint32_t pages, st_prefixes *prefixes, st_tier **out, strata_error *error);
void st_tier_free(st_tier *tier);

/* Evicts until `count` pages are free, or as many as possible. The page of `end` is kept: the new pages continue it.
 * Adjacent evicted pages make large copies possible, so the caller makes room for all its pages at once. */
void st_tier_make_room(st_tier *tier, uint32_t count, st_prefix end);

/* Gives a page to a live prefix whose parent is in the tier or empty, if possible the page after `after` (ST_NO_PAGE:
 * any). The page is busy until st_tier_filled. It ranks as just less recently used than its parent. ST_NO_PAGE: no page
 * is free, or the parent is not in the tier. */
uint32_t st_tier_take(st_tier *tier, st_prefix prefix, uint32_t after);
/* The same for a prefix that has no place yet: names it, behind a parent in the tier or the empty one. */
uint32_t st_tier_take_new(st_tier *tier, st_prefix parent, const strata_token *ids, uint32_t after, st_prefix *prefix);
/* Its bytes are there: st_tier_find finds it. */
void st_tier_filled(st_tier *tier, uint32_t page);

/* The page of a live prefix; ST_NO_PAGE: it has none, or its bytes are not there yet. */
uint32_t st_tier_find(const st_tier *tier, st_prefix prefix);

/* A page in use (its bytes are being copied) is not evicted; uses are counted. */
void st_tier_use(st_tier *tier, uint32_t page);
void st_tier_unuse(st_tier *tier, uint32_t page);

/* The copies to or from the page have failed: removes it and every page that continues it. A busy page becomes free
 * when its last use ends, or when it is filled. */
void st_tier_discard(st_tier *tier, uint32_t page);

/* Makes the page of the prefix, if it has one, the most recently used. A caller that uses a conversation touches its
 * pages from the last to the first, so that its end is evicted first. */
void st_tier_touch(st_tier *tier, st_prefix prefix);

typedef struct st_tier_counts {
    uint32_t total, free, busy; /* busy: being filled, or in use */
} st_tier_counts;

st_tier_counts st_tier_count(const st_tier *tier);

#endif
