#include "kv/pages.h"

#include "base/alloc.h"
#include "base/error.h"
#include "kv/order.h"
#include "kv/runs.h"

typedef enum page_state {
    FREE,
    HELD,
    CACHED, /* published and not held */
    STATES
} page_state;

typedef struct page_entry {
    st_prefix name; /* 0: not published */
    uint32_t holders;
} page_entry;

/* `block_pages` adjacent pages, which are evicted together if none of them is held. */
typedef struct block_entry {
    uint32_t count[STATES];
} block_entry;

struct st_pages {
    page_entry *page; /* [total] */
    st_runs runs;     /* free pages */
    uint32_t total;
    uint32_t count[STATES];

    block_entry *block; /* [block_count] */
    uint32_t block_pages, block_count;
    st_order cached;    /* cached pages */
    st_order evictable; /* blocks with cached pages and no held ones */
    st_prefixes *prefixes; /* NULL: no prefix cache */
};

/* --- the pool ----------------------------------------------------------------------------------------------------- */

static bool allocate(st_pages *p)
{
    uint32_t total = p->total;
    p->page = st_alloc_zero(total, sizeof *p->page);
    p->block = st_alloc_zero(p->block_count, sizeof *p->block);
    if (!p->page || !p->block) return false;
    for (uint32_t i = 0; i < total; i++) p->block[i / p->block_pages].count[FREE]++;
    return st_runs_new(&p->runs, total) && st_order_new(&p->cached, total) &&
           st_order_new(&p->evictable, p->block_count);
}

strata_status st_pages_new(uint32_t pages, uint32_t page_tokens, st_prefixes *prefixes, st_pages **out,
                           strata_error *error)
{
    if (pages > ST_PAGES_MAX || page_tokens == 0)
        return st_error_set(error, STRATA_LIMIT, NULL, "KV pool: expected at most %u pages of 1 token or more, "
                            "found %u of %u", (unsigned)ST_PAGES_MAX, pages, page_tokens);
    st_pages *p = st_alloc_zero(1, sizeof *p);
    if (!p) return st_error_memory(error, sizeof *p, "a KV pool");
    p->total = p->count[FREE] = pages;
    p->prefixes = prefixes;
    p->block_pages = 1;
    while (p->block_pages < ST_PAGES_BLOCK_MAX && p->block_pages * 128 <= pages) p->block_pages *= 2;
    p->block_count = pages / p->block_pages + (pages % p->block_pages != 0);
    if (!allocate(p)) {
        st_pages_free(p);
        return st_error_memory(error, pages * sizeof *p->page, "the pages of a KV pool");
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

/* --- published pages ---------------------------------------------------------------------------------------------- */

bool st_pages_published(const st_pages *pages, uint32_t page)
{
    return pages->page[page].name != 0;
}

uint32_t st_pages_find(const st_pages *pages, st_prefix parent, const strata_token *ids, st_prefix *prefix)
{
    st_prefix found = pages->prefixes ? st_prefixes_find(pages->prefixes, parent, ids) : 0;
    uint32_t page = found ? st_prefixes_page(pages->prefixes, found, ST_PLACE_POOL) : ST_NO_PAGE;
    if (page != ST_NO_PAGE) *prefix = found;
    return page;
}

void st_pages_publish_as(st_pages *pages, uint32_t page, st_prefix prefix)
{
    pages->page[page].name = prefix;
    st_prefixes_set_page(pages->prefixes, prefix, ST_PLACE_POOL, page);
}

st_prefix st_pages_publish(st_pages *pages, uint32_t page, st_prefix parent, const strata_token *ids)
{
    st_prefixes *names = pages->prefixes;
    if (!names || !st_prefixes_live(names, parent)) return 0;
    st_prefix found = st_prefixes_find(names, parent, ids);
    if (found && st_prefixes_page(names, found, ST_PLACE_POOL) != ST_NO_PAGE) return found;
    st_pages_unpublish(pages, page);
    if (found) st_pages_publish_as(pages, page, found);
    else found = pages->page[page].name = st_prefixes_add(names, parent, ids, ST_PLACE_POOL, page);
    return found;
}

/* --- take, hold, drop --------------------------------------------------------------------------------------------- */

void st_pages_unpublish(st_pages *pages, uint32_t page)
{
    if (!st_pages_published(pages, page)) return;
    st_prefixes_set_page(pages->prefixes, pages->page[page].name, ST_PLACE_POOL, ST_NO_PAGE);
    pages->page[page].name = 0;
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
