#include "kv/tier.h"

#include "base/alloc.h"
#include "base/error.h"
#include "kv/order.h"
#include "kv/runs.h"

typedef struct tier_page {
    st_prefix prefix;  /* 0: none: the page is free or, while busy, discarded */
    uint32_t children; /* pages of the tier that continue it */
    uint32_t users;
    bool filling;
} tier_page;

struct st_tier {
    tier_page *pages; /* [total] */
    st_prefixes *prefixes;
    st_runs runs;     /* free pages */
    st_order order;   /* pages with a prefix; a parent is always more recent than its children */
    uint32_t total, free;
};

strata_status st_tier_new(uint32_t pages, st_prefixes *prefixes, st_tier **out, strata_error *error)
{
    st_tier *t = st_alloc_zero(1, sizeof *t);
    if (!t) return st_error_memory(error, sizeof *t, "the RAM tier");
    t->prefixes = prefixes;
    t->total = t->free = pages;
    t->pages = st_alloc_zero(pages, sizeof *t->pages);
    if (!t->pages || !st_runs_new(&t->runs, pages) || !st_order_new(&t->order, pages)) {
        st_tier_free(t);
        return st_error_memory(error, pages * sizeof *t->pages, "the RAM tier");
    }
    *out = t;
    return STRATA_OK;
}

void st_tier_free(st_tier *tier)
{
    if (!tier) return;
    st_free(tier->pages);
    st_free(tier->order.links);
    st_runs_free(&tier->runs);
    st_free(tier);
}

static bool is_busy(const tier_page *p)
{
    return p->users > 0 || p->filling;
}

st_tier_counts st_tier_count(const st_tier *tier)
{
    st_tier_counts counts = {.total = tier->total, .free = tier->free};
    for (uint32_t i = 0; i < tier->total; i++) counts.busy += is_busy(&tier->pages[i]);
    return counts;
}

/* The page of the prefix's parent; ST_NO_PAGE: the parent is empty, or not in the tier. */
static uint32_t parent_page(const st_tier *t, st_prefix prefix)
{
    st_prefix parent = st_prefixes_parent(t->prefixes, prefix);
    return parent && st_prefixes_live(t->prefixes, parent) ? st_prefixes_page(t->prefixes, parent, ST_PLACE_TIER)
                                                           : ST_NO_PAGE;
}

static void set_free(st_tier *t, uint32_t page, bool free)
{
    st_runs_set(&t->runs, page, free);
    if (free) t->free++;
    else t->free--;
}

/* The page has no prefix any more. It is free unless it is busy. */
static void forget(st_tier *t, uint32_t page)
{
    tier_page *p = &t->pages[page];
    uint32_t parent = parent_page(t, p->prefix);
    if (parent != ST_NO_PAGE) t->pages[parent].children--;
    st_prefixes_set_page(t->prefixes, p->prefix, ST_PLACE_TIER, ST_NO_PAGE);
    st_order_remove(&t->order, page);
    p->prefix = 0;
    p->children = 0;
    if (!is_busy(p)) set_free(t, page, true);
}

void st_tier_make_room(st_tier *tier, uint32_t count, st_prefix end)
{
    if (count > tier->total) count = tier->total;
    for (uint32_t i = tier->order.oldest; tier->free < count && i != ST_ORDER_END;) {
        const tier_page *p = &tier->pages[i];
        uint32_t newer = tier->order.links[i].newer;
        if (p->children == 0 && !is_busy(p) && p->prefix != end) forget(tier, i);
        i = newer;
    }
}

/* A free page, if possible the one after `after`. */
static uint32_t take_free(st_tier *t, uint32_t after)
{
    uint32_t page = after == ST_NO_PAGE ? ST_NO_PAGE : after + 1;
    if (!st_runs_is_free(&t->runs, page)) page = st_runs_longest(&t->runs).first;
    set_free(t, page, false);
    return page;
}

/* Gives a page to a prefix that knows it already. `before` is the parent's page; ST_NO_PAGE: the parent is empty. */
static void begin_filling(st_tier *t, uint32_t page, st_prefix prefix, uint32_t before)
{
    t->pages[page] = (tier_page){.prefix = prefix, .filling = true};
    if (before == ST_NO_PAGE) {
        st_order_add(&t->order, page);
        return;
    }
    st_order_add_before(&t->order, page, before);
    t->pages[before].children++;
}

uint32_t st_tier_take(st_tier *tier, st_prefix prefix, uint32_t after)
{
    st_prefix parent = st_prefixes_parent(tier->prefixes, prefix);
    uint32_t before = parent_page(tier, prefix);
    if (tier->free == 0 || (parent && before == ST_NO_PAGE)) return ST_NO_PAGE;
    uint32_t page = take_free(tier, after);
    st_prefixes_set_page(tier->prefixes, prefix, ST_PLACE_TIER, page);
    begin_filling(tier, page, prefix, before);
    return page;
}

uint32_t st_tier_take_new(st_tier *tier, st_prefix parent, const strata_token *ids, uint32_t after, st_prefix *prefix)
{
    uint32_t before = ST_NO_PAGE;
    if (parent && st_prefixes_live(tier->prefixes, parent))
        before = st_prefixes_page(tier->prefixes, parent, ST_PLACE_TIER);
    if (tier->free == 0 || (parent && before == ST_NO_PAGE)) return ST_NO_PAGE;
    uint32_t page = take_free(tier, after);
    *prefix = st_prefixes_add(tier->prefixes, parent, ids, ST_PLACE_TIER, page);
    begin_filling(tier, page, *prefix, before);
    return page;
}

/* A discarded page becomes free at the end of its last use. */
static void end_use(st_tier *t, uint32_t page)
{
    const tier_page *p = &t->pages[page];
    if (p->prefix == 0 && !is_busy(p)) set_free(t, page, true);
}

void st_tier_filled(st_tier *tier, uint32_t page)
{
    tier->pages[page].filling = false;
    end_use(tier, page);
}

void st_tier_use(st_tier *tier, uint32_t page)
{
    tier->pages[page].users++;
}

void st_tier_unuse(st_tier *tier, uint32_t page)
{
    tier->pages[page].users--;
    end_use(tier, page);
}

uint32_t st_tier_find(const st_tier *tier, st_prefix prefix)
{
    uint32_t page = st_prefixes_page(tier->prefixes, prefix, ST_PLACE_TIER);
    return page != ST_NO_PAGE && !tier->pages[page].filling ? page : ST_NO_PAGE;
}

/* Parents are more recent than their children, so one pass towards the older pages finds all that continue the page. */
void st_tier_discard(st_tier *tier, uint32_t page)
{
    if (tier->pages[page].prefix == 0) return;
    uint32_t older = tier->order.links[page].older;
    forget(tier, page);
    for (uint32_t i = older; i != ST_ORDER_END; i = older) {
        older = tier->order.links[i].older;
        st_prefix prefix = tier->pages[i].prefix;
        if (st_prefixes_parent(tier->prefixes, prefix) && parent_page(tier, prefix) == ST_NO_PAGE) forget(tier, i);
    }
}

void st_tier_touch(st_tier *tier, st_prefix prefix)
{
    uint32_t page = st_prefixes_live(tier->prefixes, prefix) && prefix
                        ? st_prefixes_page(tier->prefixes, prefix, ST_PLACE_TIER)
                        : ST_NO_PAGE;
    if (page == ST_NO_PAGE) return;
    st_order_remove(&tier->order, page);
    st_order_add(&tier->order, page);
}
