#include "kv/conversation.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/memory.h"

/* --- life --------------------------------------------------------------------------------------------------------- */

static bool allocate(st_conversation *c)
{
    const st_kv_layout *layout = c->kv->layout;
    c->tokens = st_alloc_array(layout->options.context, sizeof *c->tokens);
    c->names = st_alloc_array(layout->pools[0].table_max, sizeof *c->names);
    bool all = c->tokens && c->names;
    for (uint32_t i = 0; i < layout->pool_count; i++) {
        c->tables[i].pages = st_alloc_array(layout->pools[i].table_max, sizeof *c->tables[i].pages);
        all = all && c->tables[i].pages;
    }
    return all;
}

strata_status st_conversation_new(st_kv *kv, st_conversation **out, strata_error *error)
{
    st_conversation *c = st_alloc_zero(1, sizeof *c);
    if (!c) return st_error_memory(error, sizeof *c, "the conversation");
    *c = (st_conversation){.kv = kv, .slot = ST_NO_SLOT, .shared = true, .number = kv->numbers++, .next = kv->first};
    if (c->next) c->next->previous = c;
    kv->first = c;
    if (!allocate(c)) {
        st_conversation_free(c);
        return st_error_memory(error, kv->layout->options.context * sizeof *c->tokens, "the conversation");
    }
    *out = c;
    return STRATA_OK;
}

void st_conversation_free(st_conversation *c)
{
    if (!c) return;
    st_persist_save(c, true);
    st_kv_release(c);
    if (c->previous) c->previous->next = c->next;
    else c->kv->first = c->next;
    if (c->next) c->next->previous = c->previous;
    for (uint32_t i = 0; i < ST_KV_POOLS_MAX; i++) st_free(c->tables[i].pages);
    st_free(c->names);
    st_free(c->tokens);
    st_free(c);
}

strata_token *st_conversation_tokens(st_conversation *c)
{
    return c->tokens;
}

uint32_t st_conversation_position(const st_conversation *c)
{
    return c->position;
}

uint32_t st_conversation_number(const st_conversation *c)
{
    return c->number;
}

uint32_t st_conversation_slot(const st_conversation *c)
{
    return c->slot;
}

void st_conversation_run(st_conversation *c, bool runs)
{
    if (c->runs && !runs) st_persist_save(c, false);
    c->runs = runs;
    c->used = ++c->kv->clock;
}

bool st_conversation_ready(const st_conversation *c)
{
    return c->position == 0 || !c->kv->needs_points || (c->slot != ST_NO_SLOT && c->valid);
}

/* --- prefixes and restore points ---------------------------------------------------------------------------------- */

/* Pages that hold `count` tokens. */
static uint32_t pages_of(const st_kv *kv, uint64_t count)
{
    return (uint32_t)((count + kv->page - 1) >> kv->shift);
}

/* The first page that the token at `position` attends to. */
static uint32_t oldest_page(const st_kv *kv, uint32_t pool, uint32_t position)
{
    uint32_t span = kv->layout->pools[pool].span;
    return position + 1 > span ? (position + 1 - span) >> kv->shift : 0;
}

/* Whether the tails of all windows reach back far enough for the token at `position`. */
static bool tails_reach(const st_conversation *c, uint32_t position)
{
    for (uint32_t pool = 1; pool < c->kv->layout->pool_count; pool++)
        if (oldest_page(c->kv, pool, position) < c->tables[pool].first) return false;
    return true;
}

/* The pages of the longest prefix that has a restore point, among the first `count` of `names`; *point is that
 * point. */
static uint32_t last_point(const st_kv *kv, const st_prefix *names, uint32_t count, uint32_t *point)
{
    while (count > 0 && (*point = st_restore_find(kv->restore, names[count - 1])) == ST_NO_POINT) count--;
    return count;
}

/* The last position, at most `limit`, at which the conversation can continue from its own pages. *point is the restore
 * point that it needs for that; ST_NO_POINT: none. */
static uint32_t own_reach(const st_conversation *c, uint32_t limit, uint32_t *point)
{
    const st_kv *kv = c->kv;
    *point = ST_NO_POINT;
    if (!kv->needs_points) return limit;
    bool live = c->slot != ST_NO_SLOT && c->valid;
    if (live && (limit == c->position || (!kv->has_state && tails_reach(c, limit)))) return limit;
    uint32_t pages = limit >> kv->shift;
    return last_point(kv, c->names, pages < c->named ? pages : c->named, point) << kv->shift;
}

/* Finds the pages of the longest cached prefix of the tokens, in the pool or in the RAM tier; returns how many. */
static uint32_t find_prefix(st_kv *kv, const strata_token *tokens, uint32_t count)
{
    uint32_t pages = 0;
    st_prefix parent = 0;
    for (; (uint64_t)(pages + 1) << kv->shift <= count; pages++) {
        parent = st_prefixes_find(kv->prefixes, parent, tokens + ((size_t)pages << kv->shift));
        if (parent == 0) break;
        kv->found_names[pages] = parent;
        kv->found[pages] = st_prefixes_page(kv->prefixes, parent, ST_PLACE_POOL);
        if (kv->found[pages] == ST_NO_PAGE && st_tier_find(kv->exchange.tier, parent) == ST_NO_PAGE) break;
    }
    return pages;
}

/* As own_reach, for the prefix that find_prefix found in the cache. */
static uint32_t found_reach(const st_kv *kv, uint32_t pages, uint32_t limit, uint32_t *point)
{
    uint64_t reach = (uint64_t)pages << kv->shift;
    *point = ST_NO_POINT;
    if (!kv->needs_points) return reach < limit ? (uint32_t)reach : limit;
    return last_point(kv, kv->found_names, pages < limit >> kv->shift ? pages : limit >> kv->shift, point) << kv->shift;
}

void st_kv_cut_to(st_conversation *c, uint32_t position)
{
    st_kv *kv = c->kv;
    uint32_t pages = pages_of(kv, position);
    for (uint32_t pool = 0; pool < kv->layout->pool_count; pool++)
        if (c->tables[pool].end > pages) st_kv_cut(c, pool, pages);
    c->position = position;
    if (c->named > position >> kv->shift) c->named = position >> kv->shift;
    if (c->confirmed > position) c->confirmed = position;
    if (position == 0) c->passing = 0;
}

/* An enqueued copy writes the conversation's rows from `position` on, and is lost if the device fails. The next
 * confirmed step confirms it. */
static void unconfirm(st_conversation *c, uint32_t position)
{
    if (c->confirmed > position) c->confirmed = position;
}

/* The page before `index` in the conversation's table; ST_NO_PAGE: the table begins there. */
static uint32_t page_before(const st_conversation *c, uint32_t pool, uint32_t index)
{
    return index > c->tables[pool].first ? *st_kv_entry(c, pool, index - 1) : ST_NO_PAGE;
}

/* Takes the pages that a restore point's tails are copied to. */
static strata_status take_tails(st_conversation *c, uint32_t position, strata_error *error)
{
    st_kv *kv = c->kv;
    uint32_t end = position >> kv->shift;
    for (uint32_t pool = 1; pool < kv->layout->pool_count; pool++) {
        uint32_t tail = kv->layout->pools[pool].tail_max;
        st_page_table *table = &c->tables[pool];
        st_kv_cut(c, pool, 0);
        for (table->first = table->end = end > tail ? end - tail : 0; table->end < end; table->end++) {
            uint32_t page = st_kv_take_page(c, pool, page_before(c, pool, table->end));
            if (page == ST_NO_PAGE)
                return st_error_set(error, STRATA_LIMIT, NULL, "every page of window attention is in use");
            *st_kv_entry(c, pool, table->end) = page;
        }
    }
    return STRATA_OK;
}

static strata_status restore(st_conversation *c, uint32_t position, uint32_t point, strata_error *error)
{
    st_kv *kv = c->kv;
    st_restore_use(kv->restore, point); /* taking a slot and pages must not evict it */
    strata_status status = st_kv_take_slot(kv, c, error);
    if (status == STRATA_OK) status = take_tails(c, position, error);
    if (status == STRATA_OK) status = st_kv_restore(kv, c, point, error);
    st_restore_unuse(kv->restore, point);
    c->valid = status == STRATA_OK;
    unconfirm(c, 0);
    return status;
}

static void drop_found(st_kv *kv, uint32_t first, uint32_t end)
{
    for (uint32_t i = end; i-- > first;) st_pages_drop(kv->pages[0], kv->table[i]);
}

/* Whether a page that was found still belongs to its prefix: a failed arrival takes it away. */
static bool is_sound(const st_kv *kv, uint32_t index)
{
    st_prefix name = kv->found_names[index];
    return st_prefixes_live(kv->prefixes, name) &&
           st_prefixes_page(kv->prefixes, name, ST_PLACE_POOL) == kv->found[index];
}

/* Holds the first `pages` of the prefix that was found and lists them in kv->table, with new pages in place of the ones
 * in the RAM tier alone. Returns how many it holds: fewer if the pool has no page left. */
static uint32_t hold_found(const st_conversation *c, uint32_t pages)
{
    st_kv *kv = c->kv;
    uint32_t i = 0;
    for (uint32_t k = 0; k < pages; k++)
        if (kv->found[k] != ST_NO_PAGE) st_pages_hold(kv->pages[0], kv->found[k]);
    for (; i < pages; i++) {
        kv->table[i] = kv->found[i];
        if (kv->found[i] == ST_NO_PAGE) kv->table[i] = st_kv_take_page(c, 0, i ? kv->table[i - 1] : ST_NO_PAGE);
        if (kv->table[i] == ST_NO_PAGE) break;
    }
    for (uint32_t k = i; k < pages; k++)
        if (kv->found[k] != ST_NO_PAGE) st_pages_drop(kv->pages[0], kv->found[k]);
    uint32_t sound = 0;
    while (sound < i && is_sound(kv, sound)) sound++;
    drop_found(kv, sound, i);
    return sound;
}

/* Replaces the conversation's pages of full attention by the prefix that was found, to continue at *position. Where the
 * pool has too few pages, or a page cannot be brought from the RAM tier, *position becomes an earlier one, with another
 * restore point. False: the conversation's own pages are worth as much. */
static bool take_over(st_conversation *c, uint32_t limit, uint32_t *position, uint32_t *point)
{
    st_kv *kv = c->kv;
    uint32_t wanted = pages_of(kv, *position), pages = hold_found(c, wanted);
    if (pages < wanted) *position = found_reach(kv, pages, limit, point);
    if (*position <= c->position) {
        drop_found(kv, 0, pages);
        return false;
    }
    drop_found(kv, pages_of(kv, *position), pages);
    pages = pages_of(kv, *position);
    st_kv_cut(c, 0, 0);
    memcpy(c->tables[0].pages, kv->table, pages * sizeof *kv->table);
    memcpy(c->names, kv->found_names, pages * sizeof *kv->found_names);
    c->tables[0].end = pages;
    c->passing = c->arrives = 0;
    uint32_t there = st_exchange_bring(kv, c, pages);
    if (there < pages) *position = found_reach(kv, there, limit, point);
    st_kv_cut_to(c, *position);
    c->named = *position >> kv->shift;
    c->confirmed = *position;
    return true;
}

static uint32_t common_prefix(const strata_token *a, const strata_token *b, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && a[i] == b[i]) i++;
    return i;
}

strata_status st_conversation_seek(st_conversation *c, const strata_token *tokens, uint32_t count, bool shared,
                                   st_seek *out, strata_error *error)
{
    st_kv *kv = c->kv;
    st_kv_settle(kv);
    uint32_t limit = count ? count - 1 : 0, own_point, found_point = ST_NO_POINT, pages = 0, found = 0;
    uint32_t common = common_prefix(c->tokens, tokens, c->position < limit ? c->position : limit);
    uint32_t own = own_reach(c, common, &own_point);
    if (shared && own < limit) {
        pages = find_prefix(kv, tokens, count);
        found = found_reach(kv, pages, limit, &found_point);
        if (st_persist_load(c, tokens, limit, pages, found > own ? found : own)) {
            pages = find_prefix(kv, tokens, count);
            found = found_reach(kv, pages, limit, &found_point);
        }
    }
    st_kv_cut_to(c, own);
    bool adopts = found > own && take_over(c, limit, &found, &found_point);
    uint32_t kept = adopts ? found : c->position;
    uint32_t point = adopts ? found_point : kept == own ? own_point : ST_NO_POINT; /* a failed arrival may cut it */
    c->shared = shared;
    memmove(c->tokens, tokens, count * sizeof *tokens);
    uint64_t cached = (uint64_t)pages << kv->shift;
    bool diverged = kv->needs_points && cached > kept && cached < count;
    *out = (st_seek){.kept = kept, .diverged = diverged ? (uint32_t)cached : 0};
    if (kv->needs_points && (adopts || point != ST_NO_POINT || kept == 0)) c->valid = false;
    strata_status status = point != ST_NO_POINT ? restore(c, kept, point, error) : STRATA_OK;
    if (status != STRATA_OK) {
        st_kv_release(c);
        out->kept = 0;
    }
    return status;
}

st_peek st_conversation_peek(st_conversation *c, const strata_token *tokens, uint32_t count)
{
    st_kv *kv = c->kv;
    uint32_t limit = count ? count - 1 : 0, point, found_point, idle = 0;
    uint32_t own = own_reach(c, common_prefix(c->tokens, tokens, c->position < limit ? c->position : limit), &point);
    uint32_t pages = own < limit ? find_prefix(kv, tokens, count) : 0;
    uint32_t found = own < limit ? found_reach(kv, pages, limit, &found_point) : 0;
    const uint32_t *held = found > own ? kv->found : c->tables[0].pages;
    uint32_t kept = found > own ? found : own;
    (void)st_kv_mark_running(kv);
    for (uint32_t i = 0; i < pages_of(kv, kept); i++) idle += held[i] == ST_NO_PAGE || !st_kv_marked(kv, held[i]);
    return (st_peek){.kept = kept, .idle_pages = idle};
}

strata_status st_conversation_fork(st_conversation *c, st_conversation *child, strata_error *error)
{
    st_kv *kv = c->kv;
    uint32_t slot = 0, slots = kv->layout->options.conversations;
    while (slot < slots && kv->slots[slot]) slot++;
    bool live = kv->needs_points && st_conversation_ready(c) && c->position > 0 && slot < slots;
    strata_status status = live ? st_kv_copy_slot(kv, slot, c->slot, error) : STRATA_OK;
    if (status != STRATA_OK) return status;
    st_kv_release(child);
    for (uint32_t pool = 0; pool < (live ? kv->layout->pool_count : 1); pool++) {
        child->tables[pool].first = c->tables[pool].first;
        child->tables[pool].end = c->tables[pool].end;
        for (uint32_t i = c->tables[pool].first; i < c->tables[pool].end; i++) {
            *st_kv_entry(child, pool, i) = *st_kv_entry(c, pool, i);
            st_pages_hold(kv->pages[pool], *st_kv_entry(c, pool, i));
        }
    }
    if (live) {
        child->slot = slot;
        kv->slots[slot] = child;
    }
    child->valid = live;
    child->position = c->position;
    child->confirmed = c->confirmed;
    child->named = c->named;
    child->shared = c->shared;
    child->arrives = c->arrives;
    memcpy(child->names, c->names, c->named * sizeof *c->names);
    memcpy(child->tokens, c->tokens, c->position * sizeof *c->tokens);
    if (live && kv->has_state) unconfirm(child, 0);
    if (!live) st_kv_cut_to(child, child->confirmed); /* steps are confirmed by slot, and the child has none */
    return STRATA_OK;
}

void st_conversation_forget(st_conversation *c)
{
    st_kv *kv = c->kv;
    st_kv_finish(kv); /* a restore point with a copy under way cannot be discarded */
    st_persist_forget(c);
    for (uint32_t i = 0; i < c->named; i++) {
        uint32_t point = st_restore_find(kv->restore, c->names[i]);
        if (point != ST_NO_POINT) st_restore_discard(kv->restore, point);
        st_exchange_forget(kv, c->names[i]);
    }
    for (uint32_t i = 0; i < c->tables[0].end; i++) st_pages_unpublish(kv->pages[0], c->tables[0].pages[i]);
    st_kv_release(c);
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Copy on write: replaces the page of the next token if it is shared or published. */
static strata_status own_page(st_conversation *c, uint32_t pool, strata_error *error)
{
    st_kv *kv = c->kv;
    uint32_t index = c->position >> kv->shift;
    if (index >= c->tables[pool].end) return STRATA_OK;
    uint32_t *entry = st_kv_entry(c, pool, index);
    bool alone = st_pages_holders(kv->pages[pool], *entry) == 1;
    if (alone && !st_pages_published(kv->pages[pool], *entry)) return STRATA_OK;
    uint32_t page = st_kv_take_page(c, pool, page_before(c, pool, index));
    if (page == ST_NO_PAGE && st_pages_holders(kv->pages[pool], *entry) == 1) {
        st_pages_unpublish(kv->pages[pool], *entry); /* no room for a copy: the prefix cache gives the page up */
        return STRATA_OK;
    }
    if (page == ST_NO_PAGE)
        return st_error_set(error, STRATA_LIMIT, "end other conversations", "every page of the KV cache is in use");
    strata_status status = st_kv_copy_page(kv, pool, page, *entry, error);
    st_pages_drop(kv->pages[pool], status == STRATA_OK ? *entry : page);
    if (status == STRATA_OK) {
        *entry = page;
        unconfirm(c, index << kv->shift);
    }
    return status;
}

bool st_conversation_copies(const st_conversation *c)
{
    uint32_t index = c->position >> c->kv->shift;
    return index < c->tables[0].end && st_pages_holders(c->kv->pages[0], c->tables[0].pages[index]) > 1;
}

static strata_status take_pages(st_conversation *c, uint32_t pool, uint32_t end, strata_error *error)
{
    st_kv *kv = c->kv;
    st_page_table *table = &c->tables[pool];
    while (table->end < end) {
        uint32_t page = st_kv_take_page(c, pool, page_before(c, pool, table->end));
        if (page == ST_NO_PAGE)
            return st_error_set(error, STRATA_LIMIT, "end other conversations, or use a smaller options.context",
                                "the KV cache has room for %u tokens, and the conversations that run need more",
                                kv->layout->options.pool_tokens);
        *st_kv_entry(c, pool, table->end++) = page;
    }
    return STRATA_OK;
}

bool st_conversation_arriving(st_conversation *c)
{
    if (c->arrives == 0) return false;
    st_exchange_settle(c->kv);
    if (c->arrives <= c->kv->exchange.lanes[ST_LANE_UP].ended) c->arrives = 0;
    return c->arrives > 0;
}

strata_status st_conversation_await(st_conversation *c, strata_error *error)
{
    uint32_t position = c->position;
    if (!st_conversation_arriving(c)) return STRATA_OK;
    strata_status status = st_exchange_wait(c->kv, c->arrives, error);
    c->arrives = 0;
    return c->position == position ? STRATA_OK : status; /* else the failure concerns other conversations */
}

strata_status st_conversation_prepare(st_conversation *c, uint32_t count, strata_error *error)
{
    st_kv *kv = c->kv;
    strata_status arrived = st_conversation_await(c, error);
    if (arrived != STRATA_OK) return arrived;
    uint64_t last = (uint64_t)c->position + count;
    if (last > kv->layout->options.context)
        return st_error_set(error, STRATA_LIMIT, NULL, "%u tokens at position %u: the context holds %u", count,
                            c->position, kv->layout->options.context);
    if (!st_conversation_ready(c))
        return st_error_set(error, STRATA_RUNTIME, NULL, "the state of the conversation at position %u is lost",
                            c->position);
    strata_status status = st_kv_take_slot(kv, c, error);
    if (status == STRATA_OK && c->position == 0 && kv->has_state) status = st_kv_clear_slot(kv, c->slot, error);
    for (uint32_t pool = 0; pool < kv->layout->pool_count && status == STRATA_OK; pool++) {
        status = own_page(c, pool, error);
        if (status == STRATA_OK) status = take_pages(c, pool, pages_of(kv, last), error);
    }
    if (status != STRATA_OK) {
        st_conversation_cancel(c);
        return status;
    }
    c->valid = true;
    c->running = count;
    return STRATA_OK;
}

void st_conversation_cancel(st_conversation *c)
{
    c->running = 0;
    st_kv_cut_to(c, c->position);
}

uint32_t st_conversation_write(const st_conversation *c, uint32_t position, uint32_t table, st_step_conversation *out,
                               uint32_t *tables)
{
    const st_kv *kv = c->kv;
    uint32_t written = 0;
    out->position = position;
    out->slot = c->slot;
    for (uint32_t pool = 0; pool < kv->layout->pool_count; pool++) {
        const st_page_table *t = &c->tables[pool];
        out->pages[pool] = (st_step_pages){.first_page = t->first, .table = table + written};
        for (uint32_t i = t->first; i < t->end; i++) tables[written++] = *st_kv_entry(c, pool, i);
    }
    return written;
}

/* The pages whose prefixes are still found. A name that belongs to another conversation's page is lost when that page
 * is evicted; the conversation's own page is then published in its place. */
static uint32_t live_names(const st_conversation *c)
{
    uint32_t i = 0;
    while (i < c->named && st_prefixes_live(c->kv->prefixes, c->names[i])) i++;
    return i;
}

/* If another page holds the same prefix, the conversation shares it and drops its own. */
static void share_page(st_conversation *c, uint32_t index, st_prefix parent)
{
    st_kv *kv = c->kv;
    uint32_t *own = &c->tables[0].pages[index];
    st_prefix name;
    uint32_t page = st_pages_find(kv->pages[0], parent, c->tokens + ((size_t)index << kv->shift), &name);
    if (page == *own || page == ST_NO_PAGE || st_exchange_is_arriving(kv, page)) return;
    st_pages_hold(kv->pages[0], page);
    st_pages_drop(kv->pages[0], *own);
    *own = page;
}

static void publish(st_conversation *c)
{
    st_kv *kv = c->kv;
    uint32_t full = c->position >> kv->shift;
    if (!c->shared || c->named == full) return;
    for (c->named = live_names(c); c->named < full; c->named++) {
        uint32_t i = c->named;
        st_prefix parent = i ? c->names[i - 1] : 0;
        const strata_token *ids = c->tokens + ((size_t)i << kv->shift);
        c->names[i] = st_pages_publish(kv->pages[0], c->tables[0].pages[i], parent, ids);
        if (c->names[i] == 0) break;
        share_page(c, i, parent);
    }
    st_exchange_store(kv, c->names, c->named);
}

/* Drops the pages that slid out of the window, except the last of them: the conversation may be cut by a few tokens. */
static void slide(st_conversation *c)
{
    st_kv *kv = c->kv;
    for (uint32_t pool = 1; pool < kv->layout->pool_count; pool++) {
        st_page_table *table = &c->tables[pool];
        uint32_t oldest = oldest_page(kv, pool, c->position);
        for (; table->first + 1 < oldest && table->first < table->end; table->first++)
            st_pages_drop(kv->pages[pool], *st_kv_entry(c, pool, table->first));
    }
}

void st_conversation_commit(st_conversation *c)
{
    c->position += c->running;
    c->running = 0;
    c->used = ++c->kv->clock;
    slide(c);
}

void st_conversation_confirm(st_conversation *c)
{
    c->confirmed = c->position;
    publish(c);
}

void st_conversation_fail(st_conversation *c)
{
    if (c->running == 0 && c->confirmed == c->position) return;
    c->running = 0;
    st_kv_cut_to(c, c->confirmed);
    if (c->kv->has_state || !tails_reach(c, c->position)) c->valid = false;
}

/* Whether the conversation has every page of a restore point's tails. It may lack the spare one after a cut. */
static bool tails_are_whole(const st_conversation *c)
{
    const st_kv_layout *layout = c->kv->layout;
    for (uint32_t pool = 1; pool < layout->pool_count; pool++) {
        const st_page_table *table = &c->tables[pool];
        if (table->first > 0 && table->first + layout->pools[pool].tail_max > table->end) return false;
    }
    return true;
}

void st_conversation_keep(st_conversation *c, st_restore_kind kind)
{
    st_kv *kv = c->kv;
    uint32_t page = c->position >> kv->shift;
    bool whole = page << kv->shift == c->position && c->confirmed == c->position && c->named == page && page > 0;
    if (!kv->needs_points || !c->shared || !c->valid || !whole || !tails_are_whole(c)) return;
    st_kv_settle(kv);
    uint32_t point = st_restore_take(kv->restore, c->names[page - 1], st_kv_point_bytes(kv, c), kind, c->passing);
    if (point == ST_NO_POINT || st_kv_save(kv, c, point, NULL) != STRATA_OK) return;
    if (kind == ST_RESTORE_PASSING) c->passing = c->names[page - 1];
}
