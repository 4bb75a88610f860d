#include "kv/exchange.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "kv/memory.h"

enum { WAIT_LIMIT_US = 120 * 1000 * 1000 };

/* --- the tier's memory -------------------------------------------------------------------------------------------- */

unsigned char *st_kv_tier_page(const st_kv *kv, uint32_t share, uint32_t page)
{
    const st_kv_layout *layouts[ST_KV_SHARES_MAX];
    for (uint32_t i = 0; i < share; i++) layouts[i] = kv->source.shares[i].layout;
    size_t offset = st_align_up(st_kv_tier_bytes(layouts, share, kv->source.tier_pages), ST_RANGE_ALIGN);
    return kv->source.tier + offset + page * kv->source.shares[share].layout->pools[0].page_bytes;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static strata_status open_lane(st_kv *kv, st_lane_kind kind, strata_error *error)
{
    const st_kv_share *far = st_kv_far_share(kv);
    st_lane *lane = &kv->exchange.lanes[kind];
    st_queue_kind queue = kind == ST_LANE_UP ? ST_QUEUE_UP : ST_QUEUE_DOWN;
    strata_status status = far->backend->queue_new(far->device, queue, &lane->queue, error);
    for (int i = 0; i < ST_LANE_FLIGHTS && status == STRATA_OK; i++)
        status = far->backend->event_new(far->device, &lane->flights[i].event, error);
    return status;
}

strata_status st_exchange_open(st_kv *kv, strata_error *error)
{
    st_exchange *x = &kv->exchange;
    const st_kv_share *far = st_kv_far_share(kv);
    uint32_t pages = kv->source.tier_pages, pool = kv->layout->pools[0].pages;
    x->moving = st_alloc_array(pages, sizeof *x->moving);
    x->arrival = st_alloc_zero(pool, sizeof *x->arrival);
    if (!x->moving || !x->arrival)
        return st_error_memory(error, pages * sizeof *x->moving + pool * sizeof *x->arrival, "the RAM tier");
    strata_status status = open_lane(kv, ST_LANE_DOWN, error);
    if (status == STRATA_OK) status = open_lane(kv, ST_LANE_UP, error);
    if (status == STRATA_OK) status = far->backend->event_new(far->device, &x->computed, error);
    return status == STRATA_OK ? st_tier_new(pages, kv->prefixes, &x->tier, error) : status;
}

void st_exchange_close(st_kv *kv)
{
    st_exchange *x = &kv->exchange;
    const st_kv_share *far = st_kv_far_share(kv);
    for (int k = 0; far && k < ST_LANES; k++) {
        for (int i = 0; i < ST_LANE_FLIGHTS; i++)
            if (x->lanes[k].flights[i].event) far->backend->event_free(x->lanes[k].flights[i].event);
        if (x->lanes[k].queue) far->backend->queue_free(x->lanes[k].queue);
    }
    if (far && x->computed) far->backend->event_free(x->computed);
    st_tier_free(x->tier);
    st_free(x->moving);
    st_free(x->arrival);
    *x = (st_exchange){0};
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

/* `count` adjacent pages of the pool and of the tier, each from `pool` and `tier` on. */
typedef struct run_copy {
    st_queue *queue;
    st_copy_kind kind;
    bool up;
    uint32_t pool, tier, count;
    unsigned char *at; /* in the tier, of the next part */
} run_copy;

static strata_status copy_bytes(const run_copy *r, const st_kv_share *s, unsigned char *pool, size_t bytes,
                                strata_error *error)
{
    return s->backend->copy(r->queue, r->kind, r->up ? pool : r->at, r->up ? r->at : pool, bytes, error);
}

static strata_status copy_part(void *context, const st_kv_share *s, size_t offset, size_t stride, size_t bytes,
                               strata_error *error)
{
    run_copy *r = context;
    strata_status status = copy_bytes(r, s, s->memory + offset + r->pool * stride, bytes, error);
    r->at += bytes;
    return status;
}

/* One copy where the pages of the share lie in one piece each; else a copy for each part of each page. */
static strata_status copy_run(st_kv *kv, const st_kv_share *s, run_copy r, strata_error *error)
{
    const st_kv_pool *pool = &s->layout->pools[0];
    r.at = st_kv_tier_page(kv, (uint32_t)(s - kv->source.shares), r.tier);
    if (s->layout->options.page_major)
        return copy_bytes(&r, s, s->memory + pool->offset + r.pool * pool->page_bytes, r.count * pool->page_bytes,
                          error);
    strata_status status = STRATA_OK;
    for (; r.count > 0 && status == STRATA_OK; r.count--, r.pool++)
        status = st_kv_each_piece(s, 0, copy_part, &r, error);
    return status;
}

static strata_status copy_shares(st_kv *kv, st_lane_kind kind, run_copy r, strata_error *error)
{
    strata_status status = STRATA_OK;
    r.up = kind == ST_LANE_UP;
    for (uint32_t i = 0; i < kv->source.share_count && status == STRATA_OK; i++) {
        const st_kv_share *s = &kv->source.shares[i];
        if (s->layout->pools[0].page_bytes == 0) continue;
        r.queue = i == 0 ? s->queue : kv->exchange.lanes[kind].queue;
        r.kind = i == 0 ? ST_COPY_WITHIN : r.up ? ST_COPY_UP : ST_COPY_DOWN;
        status = copy_run(kv, s, r, error);
    }
    return status;
}

/* Enqueues the copies of a flight; adjacent pages are one copy. */
static strata_status copy_flight(st_kv *kv, st_lane_kind kind, uint32_t first, strata_error *error)
{
    const st_exchange *x = &kv->exchange;
    strata_status status = STRATA_OK;
    run_copy r = {0};
    for (uint32_t i = first; i != ST_NO_PAGE && status == STRATA_OK; i = x->moving[i].next) {
        bool continues = r.count && i == r.tier + r.count && x->moving[i].page == r.pool + r.count;
        if (!continues && r.count) status = copy_shares(kv, kind, r, error);
        if (!continues) r = (run_copy){.pool = x->moving[i].page, .tier = i};
        r.count++;
    }
    return status == STRATA_OK && r.count ? copy_shares(kv, kind, r, error) : status;
}

/* --- flights ------------------------------------------------------------------------------------------------------ */

static uint32_t ring(uint64_t number)
{
    return (uint32_t)(number % ST_LANE_FLIGHTS);
}

/* Cuts every conversation at its first page of the flight, which is lost. */
static void cut_conversations(st_kv *kv, uint64_t number)
{
    for (st_conversation *c = kv->first; c; c = c->next)
        for (uint32_t i = 0; i < c->tables[0].end; i++) {
            if (kv->exchange.arrival[c->tables[0].pages[i]] != number) continue;
            st_kv_cut_to(c, i << kv->shift);
            c->valid = false;
            break;
        }
}

/* Ends the copies of a list of pages. Pages that failed to arrive are no longer published; pages that failed to be
 * stored, or to arrive, leave the tier, so that nothing tries them again. */
static void end_pages(st_kv *kv, st_lane_kind kind, uint32_t first, bool ok)
{
    st_exchange *x = &kv->exchange;
    for (uint32_t i = first; i != ST_NO_PAGE; i = x->moving[i].next) {
        uint32_t page = x->moving[i].page;
        if (!ok) st_tier_discard(x->tier, i);
        if (!ok && kind == ST_LANE_UP) st_pages_unpublish(kv->pages[0], page);
        if (kind == ST_LANE_UP) st_tier_unuse(x->tier, i);
        else st_tier_filled(x->tier, i);
        st_pages_drop(kv->pages[0], page);
    }
}

/* Ends the oldest flight of a lane. */
static void end_flight(st_kv *kv, st_lane_kind kind, bool ok)
{
    st_lane *lane = &kv->exchange.lanes[kind];
    uint64_t number = ++lane->ended;
    if (!ok && kind == ST_LANE_UP) cut_conversations(kv, number);
    end_pages(kv, kind, lane->flights[ring(number)].first, ok);
}

static strata_status wait_for_flight(st_kv *kv, st_lane_kind kind, strata_error *error)
{
    st_lane *lane = &kv->exchange.lanes[kind];
    st_event *event = lane->flights[ring(lane->ended + 1)].event;
    strata_status status = st_kv_far_share(kv)->backend->event_wait_host(event, WAIT_LIMIT_US, error);
    end_flight(kv, kind, status == STRATA_OK);
    return status;
}

uint32_t st_exchange_holds(const st_kv *kv)
{
    const st_exchange *x = &kv->exchange;
    uint32_t count = 0;
    for (int k = 0; k < ST_LANES; k++)
        for (uint64_t number = x->lanes[k].ended + 1; number <= x->lanes[k].begun; number++)
            for (uint32_t i = x->lanes[k].flights[ring(number)].first; i != ST_NO_PAGE; i = x->moving[i].next)
                count += st_pages_holders(kv->pages[0], x->moving[i].page) == 1;
    return count;
}

void st_exchange_settle(st_kv *kv)
{
    for (int k = 0; kv->exchange.tier && k < ST_LANES; k++) {
        st_lane *lane = &kv->exchange.lanes[k];
        while (lane->ended < lane->begun &&
               st_kv_far_share(kv)->backend->event_done(lane->flights[ring(lane->ended + 1)].event))
            end_flight(kv, (st_lane_kind)k, true);
    }
}

strata_status st_exchange_wait(st_kv *kv, uint64_t number, strata_error *error)
{
    strata_status status = STRATA_OK;
    while (kv->exchange.lanes[ST_LANE_UP].ended < number) {
        strata_status one = wait_for_flight(kv, ST_LANE_UP, status == STRATA_OK ? error : NULL);
        if (status == STRATA_OK) status = one;
    }
    return status;
}

bool st_exchange_finish(st_kv *kv, st_lane_kind kind)
{
    const st_lane *lane = &kv->exchange.lanes[kind];
    bool any = lane->ended < lane->begun;
    while (lane->ended < lane->begun) (void)wait_for_flight(kv, kind, NULL);
    return any;
}

/* Sends the list of pages, which are in use, as the next flight. After a failure the list has ended: copies that were
 * enqueued before the failure may still access the pages, so the caller waits for them. */
static strata_status send(st_kv *kv, st_lane_kind kind, uint32_t first, strata_error *error)
{
    const st_backend *backend = st_kv_far_share(kv)->backend;
    st_lane *lane = &kv->exchange.lanes[kind];
    while (lane->begun - lane->ended == ST_LANE_FLIGHTS) (void)wait_for_flight(kv, kind, NULL);
    st_event *event = lane->flights[ring(lane->begun + 1)].event;
    strata_status status = copy_flight(kv, kind, first, error);
    if (status == STRATA_OK) status = backend->event_record(event, lane->queue, error);
    if (status == STRATA_OK) {
        lane->flights[ring(++lane->begun)].first = first;
        return STRATA_OK;
    }
    if (backend->event_record(event, lane->queue, NULL) == STRATA_OK)
        (void)backend->event_wait_host(event, WAIT_LIMIT_US, NULL);
    end_pages(kv, kind, first, false);
    return status;
}

/* Appends a page of the tier to a list. */
static void append(st_exchange *x, uint32_t **link, uint32_t tier, uint32_t pool)
{
    x->moving[tier].page = pool;
    x->moving[tier].next = ST_NO_PAGE;
    **link = tier;
    *link = &x->moving[tier].next;
}

/* --- to the tier -------------------------------------------------------------------------------------------------- */

/* The first prefixes of a conversation that are in the tier, or on their way to it. */
static uint32_t stored_count(const st_kv *kv, const st_prefix *names, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && st_prefixes_live(kv->prefixes, names[i]) &&
           st_prefixes_page(kv->prefixes, names[i], ST_PLACE_TIER) != ST_NO_PAGE)
        i++;
    return i;
}

void st_exchange_store(st_kv *kv, const st_prefix *names, uint32_t count)
{
    st_exchange *x = &kv->exchange;
    if (!x->tier) return;
    st_exchange_settle(kv);
    for (uint32_t i = count; i-- > 0;) st_tier_touch(x->tier, names[i]);
    uint32_t stored = stored_count(kv, names, count), first = ST_NO_PAGE, *link = &first, tier = ST_NO_PAGE;
    if (stored == count) return;
    if (stored > 0) tier = st_prefixes_page(kv->prefixes, names[stored - 1], ST_PLACE_TIER);
    st_tier_make_room(x->tier, count - stored, stored ? names[stored - 1] : 0);
    for (uint32_t i = stored; i < count && st_prefixes_live(kv->prefixes, names[i]); i++) {
        uint32_t page = st_prefixes_page(kv->prefixes, names[i], ST_PLACE_POOL);
        if (page == ST_NO_PAGE || (tier = st_tier_take(x->tier, names[i], tier)) == ST_NO_PAGE) break;
        st_pages_hold(kv->pages[0], page);
        append(x, &link, tier, page);
    }
    if (first != ST_NO_PAGE) (void)send(kv, ST_LANE_DOWN, first, NULL);
}

void st_exchange_forget(st_kv *kv, st_prefix prefix)
{
    if (!kv->exchange.tier || !st_prefixes_live(kv->prefixes, prefix)) return;
    uint32_t page = st_prefixes_page(kv->prefixes, prefix, ST_PLACE_TIER);
    if (page != ST_NO_PAGE) st_tier_discard(kv->exchange.tier, page);
}

/* --- from the tier ------------------------------------------------------------------------------------------------ */

bool st_exchange_is_arriving(const st_kv *kv, uint32_t page)
{
    return kv->exchange.tier && kv->exchange.arrival[page] > kv->exchange.lanes[ST_LANE_UP].ended;
}

/* The copies may overwrite pages that work under way still reads. */
static strata_status wait_for_work(st_kv *kv, strata_error *error)
{
    const st_kv_share *far = st_kv_far_share(kv);
    st_exchange *x = &kv->exchange;
    strata_status status = far->backend->event_record(x->computed, far->queue, error);
    return status == STRATA_OK ? far->backend->event_wait_queue(x->computed, x->lanes[ST_LANE_UP].queue, error)
                               : status;
}

/* Lists the pages to bring; returns how many pages are there or listed. */
static uint32_t list_arrivals(st_kv *kv, const st_conversation *c, uint32_t count, uint32_t *first)
{
    st_exchange *x = &kv->exchange;
    uint32_t i = 0, *link = first;
    for (; i < count; i++) {
        if (kv->found[i] != ST_NO_PAGE) continue;
        uint32_t page = c->tables[0].pages[i], tier = ST_NO_PAGE;
        if (st_prefixes_live(kv->prefixes, c->names[i])) tier = st_tier_find(x->tier, c->names[i]);
        if (tier == ST_NO_PAGE) break;
        st_pages_publish_as(kv->pages[0], page, c->names[i]);
        st_pages_hold(kv->pages[0], page);
        st_tier_use(x->tier, tier);
        append(x, &link, tier, page);
    }
    return i;
}

uint32_t st_exchange_bring(st_kv *kv, st_conversation *c, uint32_t count)
{
    st_exchange *x = &kv->exchange;
    uint32_t first = ST_NO_PAGE, missing = 0;
    if (!x->tier) return count;
    count = list_arrivals(kv, c, count, &first);
    if (first != ST_NO_PAGE) {
        while (kv->found[missing] != ST_NO_PAGE) missing++;
        strata_status status = wait_for_work(kv, NULL);
        if (status != STRATA_OK) end_pages(kv, ST_LANE_UP, first, false);
        else status = send(kv, ST_LANE_UP, first, NULL);
        if (status != STRATA_OK) count = missing;
        for (uint32_t i = first; status == STRATA_OK && i != ST_NO_PAGE; i = x->moving[i].next)
            x->arrival[x->moving[i].page] = x->lanes[ST_LANE_UP].begun;
    }
    if (count > c->tables[0].end) count = c->tables[0].end; /* waiting for room has cut it */
    for (uint32_t i = 0; i < count; i++)
        if (c->arrives < x->arrival[c->tables[0].pages[i]]) c->arrives = x->arrival[c->tables[0].pages[i]];
    for (uint32_t i = count; i-- > 0;) st_tier_touch(x->tier, c->names[i]);
    return count;
}
