/* The pages of one pool, and the prefix cache that finds them. This module counts the holders of each page and knows
 * which pages are free; a page that is full and published is found again by the ids of its tokens and of all tokens
 * before it. Pure bookkeeping: knows page numbers and token ids; knows no memory, no device and no layer. Allocates
 * only in st_pages_new. The caller serialises all calls.
 *
 * A page is free, held (by one or more conversations), or cached: published and held by no conversation. Cached
 * pages are evicted, the least recently used first, when no page is free: in pools of 128 pages or more, several
 * together. */
#ifndef ST_KV_PAGES_H
#define ST_KV_PAGES_H

#include "kv/prefixes.h"

enum {
    ST_PAGES_MAX = 1 << 28, /* the most pages of a pool */
    ST_PAGES_BLOCK_MAX = 16 /* the most pages that are evicted together */
};

typedef struct st_pages st_pages;

typedef struct st_pages_counts {
    uint32_t total, free, held, cached; /* held + cached + free = total */
} st_pages_counts;

/* `prefixes`: names the published pages and must outlive the pool; NULL: the pool has no prefix cache. */
strata_status st_pages_new(uint32_t pages, uint32_t page_tokens, st_prefixes *prefixes, st_pages **out,
                           strata_error *error);
void st_pages_free(st_pages *pages);
st_pages_counts st_pages_count(const st_pages *pages);

/* Takes a page, held once; ST_NO_PAGE: all pages are held. The result is
 *  - the page after `after` if that is free;
 *  - else a page of the longest free run: the first; or, if the page below the run is held, by a conversation that may
 *    grow, the middle one of a run longer than a block. Conversations that grow alternately then have a run each;
 *  - else an evicted page. Blocks of adjacent pages (1/128 to 1/64 of the pool, at most ST_PAGES_BLOCK_MAX pages) are
 *    evicted together, the least recently used block first; a single page if each block has a held one. Without blocks,
 *    eviction would soon leave no two adjacent pages free at the same time.
 * A cached page is never evicted while a page is free, so a window that slides costs no prefix. O(log pages). */
uint32_t st_pages_take(st_pages *pages, uint32_t after);

/* Adds a holder to a page that is held or cached. */
void st_pages_hold(st_pages *pages, uint32_t page);

/* Removes a holder. The last holder's page becomes cached, as the most recently used, if it is published, else free.
 * A conversation drops its last page first, so that a long prefix is evicted from its end. */
void st_pages_drop(st_pages *pages, uint32_t page);
uint32_t st_pages_holders(const st_pages *pages, uint32_t page);

/* --- prefixes ----------------------------------------------------------------------------------------------------- */

/* Publishes a held page that is full of `ids` [page_tokens] behind `parent`, and returns the prefix's name. If
 * another page has this prefix already, its name is returned and `page` stays as it is: the caller may hold that
 * page (st_pages_find) and drop its own. 0: `parent` is not live, or the pool has no prefix cache. A page that is
 * published already, behind a parent that is no longer live, gets a new name. */
st_prefix st_pages_publish(st_pages *pages, uint32_t page, st_prefix parent, const strata_token *ids);

/* Publishes a held, unpublished page as the page of a live prefix that has none in the pool. */
void st_pages_publish_as(st_pages *pages, uint32_t page, st_prefix prefix);

/* Takes a page out of the prefix cache. Its only holder may then change its rows in place. */
void st_pages_unpublish(st_pages *pages, uint32_t page);

/* The page with these ids behind `parent`; ids are compared, not only hashes. *prefix is its name; ST_NO_PAGE: none,
 * and *prefix is unchanged. The page is neither held nor marked as used: st_pages_hold does both. */
uint32_t st_pages_find(const st_pages *pages, st_prefix parent, const strata_token *ids, st_prefix *prefix);

/* Whether the page is published: then its rows must not change. */
bool st_pages_published(const st_pages *pages, uint32_t page);

#endif
