#include "kv/pages.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/map.h"
#include "kv/order.h"
#include "kv/runs.h"

typedef enum page_state {
    FREE,
    HELD,
    CACHED, /* published and not held */
    STATES
} page_state;

typedef struct page_entry {
    st_prefix name, parent; /* name 0: not published */
    uint32_t holders;
    uint32_t bucket, next; /* the chain of the prefix table, while published */
} page_entry;

/* `block_pages` adjacent pages, which are evicted together if none of them is held. */
typedef struct block_entry {
    uint32_t count[STATES];
} block_entry;

struct st_pages {
    page_entry *page; /* [total] */
    st_runs runs;     /* free pages */
    uint32_t total, page_tokens;
    uint32_t count[STATES];

    block_entry *block; /* [block_count] */
    uint32_t block_pages, block_count;
    st_order cached;    /* cached pages */
    st_order evictable; /* blocks with cached pages and no held ones */

    /* The prefix table: chains of pages by a hash of parent and ids. NULL without a prefix cache. */
    uint32_t *buckets; /* [bucket_mask + 1] */
    strata_token *ids; /* [total][page_tokens] */
    uint32_t bucket_mask;
    uint64_t names; /* given out so far */
};

/* --- the pool ----------------------------------------------------------------------------------------------------- */

static bool allocate_prefixes(st_pages *p)
{
    uint32_t buckets = 1;
    while (buckets <= p->total / 2) buckets *= 2;
    p->buckets = st_alloc_array(buckets, sizeof *p->buckets);
    p->ids = st_alloc_array(p->total, p->page_tokens * sizeof *p->ids);
    if (!p->buckets || !p->ids) return false;
    for (uint32_t i = 0; i < buckets; i++) p->buckets[i] = ST_NO_PAGE;
    p->bucket_mask = buckets - 1;
    return true;
}

static bool allocate(st_pages *p, bool prefixes)
{
    uint32_t total = p->total;
    p->page = st_alloc_zero(total, sizeof *p->page);
    p->block = st_alloc_zero(p->block_count, sizeof *p->block);
    if (!p->page || !p->block) return false;
    for (uint32_t i = 0; i < total; i++) p->block[i / p->block_pages].count[FREE]++;
    return st_runs_new(&p->runs, total) && st_order_new(&p->cached, total) &&
           st_order_new(&p->evictable, p->block_count) && (!prefixes || allocate_prefixes(p));
}

strata_status st_pages_new(uint32_t pages, uint32_t page_tokens, bool prefixes, st_pages **out, strata_error *error)
{
    if (pages > ST_PAGES_MAX || page_tokens == 0)
        return st_error_set(error, STRATA_LIMIT, NULL, "KV pool: expected at most %u pages of 1 token or more, "
                            "found %u of %u", (unsigned)ST_PAGES_MAX, pages, page_tokens);
    st_pages *p = st_alloc_zero(1, sizeof *p);
    if (!p) return st_error_memory(error, sizeof *p, "a KV pool");
    p->total = p->count[FREE] = pages;
    p->page_tokens = page_tokens;
    p->block_pages = 1;
    while (p->block_pages < ST_PAGES_BLOCK_MAX && p->block_pages * 128 <= pages) p->block_pages *= 2;
    p->block_count = pages / p->block_pages + (pages % p->block_pages != 0);
    if (!allocate(p, prefixes)) {
        st_pages_free(p);
        return st_error_memory(error, pages * (sizeof *p->page + (prefixes ? page_tokens * sizeof *p->ids : 0)),
                               "the pages of a KV pool");
    }
    *out = p;
    return STRATA_OK;
}

void st_pages_free(st_pages *pages)
{
    if (!pages) return;
    st_free(pages->page);
    st_free(pages->block);
    st_runs_free(&pages->runs);
    st_free(pages->cached.links);
    st_free(pages->evictable.links);
    st_free(pages->buckets);
    st_free(pages->ids);
    st_free(pages);
}

st_pages_counts st_pages_count(const st_pages *pages)
{
    const uint32_t *count = pages->count;
    return (st_pages_counts){.total = pages->total, .free = count[FREE], .held = count[HELD], .cached = count[CACHED]};
}

uint32_t st_pages_holders(const st_pages *pages, uint32_t page)
{
    return pages->page[page].holders;
}

/* --- states of a page --------------------------------------------------------------------------------------------- */

static bool is_evictable(const block_entry *block)
{
    return block->count[HELD] == 0 && block->count[CACHED] > 0;
}

static void move(st_pages *p, uint32_t number, page_state from, page_state to)
{
    uint32_t block_number = number / p->block_pages;
    block_entry *block = &p->block[block_number];
    bool evictable = is_evictable(block);
    block->count[from]--;
    block->count[to]++;
    p->count[from]--;
    p->count[to]++;
    if (from == FREE || to == FREE) st_runs_set(&p->runs, number, to == FREE);
    if (from == CACHED) st_order_remove(&p->cached, number);
    if (to == CACHED) st_order_add(&p->cached, number);
    if (evictable == is_evictable(block)) return;
    if (evictable) st_order_remove(&p->evictable, block_number);
    else st_order_add(&p->evictable, block_number);
}

/* --- the prefix table --------------------------------------------------------------------------------------------- */

static strata_token *ids_of(const st_pages *p, uint32_t number)
{
    return p->ids + (size_t)number * p->page_tokens;
}

static uint32_t bucket_of(const st_pages *p, st_prefix parent, const strata_token *ids)
{
    const uint64_t key[2] = {parent, st_hash_bytes(ids, p->page_tokens * sizeof *ids)};
    return (uint32_t)st_hash_bytes(key, sizeof key) & p->bucket_mask;
}

static uint32_t table_find(const st_pages *p, uint32_t bucket, st_prefix parent, const strata_token *ids)
{
    uint32_t found = p->buckets[bucket];
    while (found != ST_NO_PAGE && (p->page[found].parent != parent ||
                                   memcmp(ids_of(p, found), ids, p->page_tokens * sizeof *ids) != 0))
        found = p->page[found].next;
    return found;
}

static void table_remove(st_pages *p, uint32_t number)
{
    page_entry *removed = &p->page[number];
    uint32_t *link = &p->buckets[removed->bucket];
    while (*link != number) link = &p->page[*link].next;
    *link = removed->next;
    removed->name = removed->parent = 0;
}

bool st_pages_published(const st_pages *pages, uint32_t page)
{
    return pages->page[page].name != 0;
}

/* A name is a multiple of the number of pages plus the page's own number, so the page follows from the name. */
bool st_pages_live(const st_pages *pages, st_prefix prefix)
{
    uint32_t total = pages->total;
    return prefix == 0 || (total > 0 && pages->page[prefix % total].name == prefix);
}

uint32_t st_pages_find(const st_pages *pages, st_prefix parent, const strata_token *ids, st_prefix *prefix)
{
    if (!pages->buckets || !st_pages_live(pages, parent)) return ST_NO_PAGE;
    uint32_t found = table_find(pages, bucket_of(pages, parent, ids), parent, ids);
    if (found != ST_NO_PAGE) *prefix = pages->page[found].name;
    return found;
}

st_prefix st_pages_publish(st_pages *pages, uint32_t page, st_prefix parent, const strata_token *ids)
{
    if (!pages->buckets || !st_pages_live(pages, parent)) return 0;
    uint32_t bucket = bucket_of(pages, parent, ids);
    uint32_t found = table_find(pages, bucket, parent, ids);
    if (found != ST_NO_PAGE) return pages->page[found].name;
    st_pages_unpublish(pages, page);
    page_entry *published = &pages->page[page];
    published->name = ++pages->names * pages->total + page;
    published->parent = parent;
    published->bucket = bucket;
    published->next = pages->buckets[bucket];
    pages->buckets[bucket] = page;
    memcpy(ids_of(pages, page), ids, pages->page_tokens * sizeof *ids);
    return published->name;
}

/* --- take, hold, drop --------------------------------------------------------------------------------------------- */

void st_pages_unpublish(st_pages *pages, uint32_t page)
{
    if (!st_pages_published(pages, page)) return;
    table_remove(pages, page);
    if (pages->page[page].holders == 0) move(pages, page, CACHED, FREE);
}

/* Evicts a whole block, since single pages in the order of use would soon leave no two adjacent pages free together; a
 * single page if each block has a held one. */
static void evict(st_pages *p)
{
    uint32_t first = p->cached.oldest, end = first + 1;
    if (first == ST_ORDER_END) return;
    if (p->evictable.oldest != ST_ORDER_END) {
        first = p->evictable.oldest * p->block_pages;
        end = first + p->block_pages < p->total ? first + p->block_pages : p->total;
    }
    for (uint32_t i = first; i < end; i++) st_pages_unpublish(p, i);
}

/* A held page below a free run is the last one of a conversation, which may grow. */
static uint32_t first_of_new_run(const st_pages *p)
{
    st_run run = st_runs_longest(&p->runs);
    bool grows = run.first > 0 && p->page[run.first - 1].holders > 0;
    return grows && run.length > p->block_pages ? run.first + run.length / 2 : run.first;
}

uint32_t st_pages_take(st_pages *pages, uint32_t after)
{
    if (pages->count[FREE] == 0) evict(pages);
    if (pages->count[FREE] == 0) return ST_NO_PAGE;
    uint32_t taken = after == ST_NO_PAGE ? ST_NO_PAGE : after + 1;
    if (!st_runs_is_free(&pages->runs, taken)) taken = first_of_new_run(pages);
    move(pages, taken, FREE, HELD);
    pages->page[taken].holders = 1;
    return taken;
}

void st_pages_hold(st_pages *pages, uint32_t page)
{
    if (pages->page[page].holders++ == 0) move(pages, page, CACHED, HELD);
}

void st_pages_drop(st_pages *pages, uint32_t page)
{
    if (--pages->page[page].holders == 0) move(pages, page, HELD, st_pages_published(pages, page) ? CACHED : FREE);
}
