#include "kv/persist.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/memory.h"

size_t st_kv_saved_page_bytes(const st_kv *kv)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < kv->source.share_count; i++) bytes += kv->source.shares[i].layout->pools[0].page_bytes;
    return bytes;
}

strata_status st_kv_set_store(st_kv *kv, st_store *store, const st_digest *identity, strata_error *error)
{
    size_t keys = (size_t)kv->layout->pools[0].table_max + 1, bytes = st_kv_saved_page_bytes(kv);
    st_persist p = {.store = store, .identity = *identity, .keys = st_alloc_array(keys, sizeof *p.keys),
                    .page = st_alloc(bytes ? bytes : 1)};
    if (!p.keys || !p.page) {
        st_free(p.keys);
        st_free(p.page);
        return st_error_memory(error, keys * sizeof *p.keys + bytes, "saved state");
    }
    kv->persist = p;
    return STRATA_OK;
}

/* Whether pages are saved from, and loaded to, the RAM tier. */
static bool through_tier(const st_kv *kv)
{
    return kv->source.share_count > 1;
}

static bool is_on(const st_kv *kv)
{
    return kv->persist.store && (!through_tier(kv) || kv->exchange.tier);
}

/* Computes the keys of the first `pages` of the tokens. */
static const st_digest *keys_of(st_kv *kv, const strata_token *tokens, uint32_t pages)
{
    st_digest *keys = kv->persist.keys;
    keys[0] = kv->persist.identity;
    for (uint32_t i = 0; i < pages; i++)
        keys[i + 1] = st_save_key(keys[i], tokens + ((size_t)i << kv->shift), kv->page);
    return keys;
}

/* --- the bytes of a page ------------------------------------------------------------------------------------------ */

typedef struct packing {
    uint32_t page;
    unsigned char *at;
    bool unpacks;
} packing;

static strata_status pack_piece(void *context, const st_kv_share *s, size_t offset, size_t stride, size_t bytes,
                                strata_error *error)
{
    (void)error;
    packing *p = context;
    unsigned char *memory = s->memory + offset + p->page * stride;
    memcpy(p->unpacks ? memory : p->at, p->unpacks ? p->at : memory, bytes);
    p->at += bytes;
    return STRATA_OK;
}

/* Copies between a page of the tier, or of a pool in host memory, and its bytes in a file. */
static void pack(const st_kv *kv, uint32_t page, unsigned char *bytes, bool unpacks)
{
    packing p = {.page = page, .at = bytes, .unpacks = unpacks};
    if (!through_tier(kv)) (void)st_kv_each_piece(&kv->source.shares[0], 0, pack_piece, &p, NULL);
    for (uint32_t i = 0; through_tier(kv) && i < kv->source.share_count; i++) {
        size_t length = kv->source.shares[i].layout->pools[0].page_bytes;
        unsigned char *part = st_kv_tier_page(kv, i, page);
        memcpy(unpacks ? part : p.at, unpacks ? p.at : part, length);
        p.at += length;
    }
}

/* On the writer's thread: the page is held and published, so its rows do not change. */
static void read_page(void *context, uint32_t page, unsigned char *out)
{
    pack(context, page, out, false);
}

/* --- saving ------------------------------------------------------------------------------------------------------- */

/* Where the bytes of a prefix are; ST_NO_PAGE: nowhere. */
static uint32_t page_of(const st_kv *kv, st_prefix name)
{
    if (!st_prefixes_live(kv->prefixes, name)) return ST_NO_PAGE;
    if (through_tier(kv)) return st_tier_find(kv->exchange.tier, name);
    return st_prefixes_page(kv->prefixes, name, ST_PLACE_POOL);
}

static void hold(st_kv *kv, const st_store_job *job, bool holds)
{
    for (uint32_t i = job->page_count; i-- > 0;) {
        if (through_tier(kv)) (holds ? st_tier_use : st_tier_unuse)(kv->exchange.tier, job->pages[i]);
        else (holds ? st_pages_hold : st_pages_drop)(kv->pages[0], job->pages[i]);
    }
    for (uint32_t i = 0; i < job->point_count; i++)
        (holds ? st_restore_use : st_restore_unuse)(kv->restore, job->points[i].number);
}

/* The restore points from the end of page `first` to that of page `end` that are worth a place on disk: marks, and the
 * last one. Without `out`, counts them, the saved ones, too: the writer may remove their file meanwhile. */
static uint32_t list_points(st_kv *kv, const st_conversation *c, uint32_t first, uint32_t end, st_store_point *out)
{
    uint32_t count = 0;
    bool last = true;
    for (uint32_t i = end; kv->needs_points && i > 0 && i >= first; i--) {
        uint32_t point = st_restore_find(kv->restore, c->names[i - 1]);
        if (point == ST_NO_POINT) continue;
        st_restore_kind kind = st_restore_kind_of(kv->restore, point);
        bool wanted = last || kind == ST_RESTORE_MARK;
        last = false;
        if (!wanted || (out && st_store_has_point(kv->persist.store, kv->persist.keys[i]))) continue;
        if (out)
            out[count] = (st_store_point){.page = i, .kind = (uint32_t)kind,
                                          .data = kv->source.restore + st_restore_offset(kv->restore, point),
                                          .bytes = st_restore_bytes(kv->restore, point), .number = point};
        count++;
    }
    return count;
}

void st_persist_save(st_conversation *c, bool last)
{
    st_kv *kv = c->kv;
    uint32_t first = 0, end;
    if (!is_on(kv) || !c->shared || c->named == 0) return;
    if (last) st_kv_finish(kv);
    else st_kv_settle(kv);
    const st_digest *keys = keys_of(kv, c->tokens, c->named);
    while (first < c->named && st_store_has_page(kv->persist.store, keys[first + 1])) first++;
    for (end = first; end < c->named && page_of(kv, c->names[end]) != ST_NO_PAGE; end++) {}
    uint32_t points = list_points(kv, c, first, end, NULL);
    if (end == first && points == 0) return;
    st_store_job *job = st_store_job_new(kv->persist.store, end - first, points);
    if (!job) return;
    job->point_count = list_points(kv, c, first, end, job->points);
    if (end == first && job->point_count == 0) {
        st_free(job);
        return;
    }
    job->first_page = first;
    job->read = read_page;
    job->context = kv;
    memcpy(job->keys, keys + first, (end - first + 1) * sizeof *keys);
    size_t ids = (size_t)(end - first) << kv->shift;
    memcpy(job->ids, c->tokens + ((size_t)first << kv->shift), ids * sizeof *c->tokens);
    for (uint32_t i = first; i < end; i++) job->pages[i - first] = page_of(kv, c->names[i]);
    hold(kv, job, true);
    st_store_write(kv->persist.store, job);
}

bool st_persist_settle(st_kv *kv)
{
    st_store_job *job;
    bool any = false;
    while (kv->persist.store && (job = st_store_done(kv->persist.store))) {
        hold(kv, job, false);
        st_free(job);
        any = true;
    }
    return any;
}

bool st_persist_cancel(st_kv *kv)
{
    bool any = kv->persist.store && st_store_cancel(kv->persist.store);
    return st_persist_settle(kv) || any;
}

void st_persist_forget(st_conversation *c)
{
    st_kv *kv = c->kv;
    if (!kv->persist.store) return;
    (void)st_persist_cancel(kv);
    const st_digest *keys = keys_of(kv, c->tokens, c->named);
    for (uint32_t i = 0; i < c->named; i++) st_store_remove(kv->persist.store, keys[i + 1]);
}

void st_persist_close(st_kv *kv)
{
    if (kv->persist.store) st_store_flush(kv->persist.store);
    (void)st_persist_settle(kv);
    st_free(kv->persist.keys);
    st_free(kv->persist.page);
    kv->persist = (st_persist){0};
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Bytes of a restore point at the end of page `page`. */
static size_t point_bytes_at(const st_kv *kv, uint32_t page)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < kv->source.share_count; i++) {
        const st_kv_layout *layout = kv->source.shares[i].layout;
        bytes += layout->slot_bytes;
        for (uint32_t pool = 1; pool < layout->pool_count; pool++) {
            uint32_t tail = layout->pools[pool].tail_max;
            bytes += (page < tail ? page : tail) * layout->pools[pool].page_bytes;
        }
    }
    return bytes;
}

/* The last page, up to `end`, behind which a conversation can continue from a saved point; 0: none behind `least`. */
static uint32_t last_saved_point(const st_kv *kv, uint32_t least, uint32_t end)
{
    const st_digest *keys = kv->persist.keys;
    while (end > least && st_store_point_bytes(kv->persist.store, keys[end]) != point_bytes_at(kv, end)) end--;
    return end > least ? end : 0;
}

/* Gives a saved page a place behind `parent` and reads it. *page is the place: of the tier, or a held page of the pool.
 * 0: it cannot be loaded. */
static st_prefix load_page(st_conversation *c, st_digest key, st_prefix parent, const strata_token *ids, uint32_t *page)
{
    st_kv *kv = c->kv;
    st_prefix name = 0;
    uint32_t after = *page;
    if (!st_store_read_page(kv->persist.store, key, ids, kv->persist.page)) return 0;
    if (through_tier(kv)) *page = st_tier_take_new(kv->exchange.tier, parent, ids, after, &name);
    else *page = st_kv_take_page(c, 0, after);
    if (*page == ST_NO_PAGE) return 0;
    pack(kv, *page, kv->persist.page, true);
    if (through_tier(kv)) return name;
    name = st_pages_publish(kv->pages[0], *page, parent, ids);
    if (name == 0) st_pages_drop(kv->pages[0], *page);
    return name;
}

/* Loads pages `first` to `end` − 1; their names go to kv->found_names. Returns the end of what was loaded. The pages
 * of the pool stay held, and are listed in kv->table. */
static uint32_t load_pages(st_conversation *c, const strata_token *tokens, uint32_t first, uint32_t end)
{
    st_kv *kv = c->kv;
    uint32_t i = first, page = ST_NO_PAGE;
    if (through_tier(kv)) {
        st_exchange_store(kv, kv->found_names, first); /* the tier holds beginnings */
        st_tier_make_room(kv->exchange.tier, end - first, first ? kv->found_names[first - 1] : 0);
    }
    for (; i < end; i++) {
        st_prefix parent = i ? kv->found_names[i - 1] : 0;
        kv->found_names[i] = load_page(c, kv->persist.keys[i + 1], parent, tokens + ((size_t)i << kv->shift), &page);
        if (kv->found_names[i] == 0) break;
        kv->table[i] = page;
    }
    return i;
}

/* Loads the restore point at the end of a page that was found or loaded. */
static void load_point(st_kv *kv, uint32_t page)
{
    size_t bytes = point_bytes_at(kv, page);
    st_digest key = kv->persist.keys[page];
    st_prefix name = kv->found_names[page - 1];
    uint32_t kind = ST_RESTORE_PASSING;
    if (st_restore_find(kv->restore, name) != ST_NO_POINT) return;
    uint32_t point = st_restore_take(kv->restore, name, bytes, ST_RESTORE_MARK, 0);
    if (point == ST_NO_POINT) return;
    unsigned char *to = kv->source.restore + st_restore_offset(kv->restore, point);
    if (st_store_read_point(kv->persist.store, key, &kind, to, bytes)) st_restore_done(kv->restore, point);
    else st_restore_discard(kv->restore, point);
}

/* Holds the pages of the pool that were found, so that loading others does not evict them. */
static void hold_found(st_kv *kv, uint32_t pages, bool holds)
{
    for (uint32_t i = pages; i-- > 0;)
        if (kv->found[i] != ST_NO_PAGE) (holds ? st_pages_hold : st_pages_drop)(kv->pages[0], kv->found[i]);
}

bool st_persist_load(st_conversation *c, const strata_token *tokens, uint32_t limit, uint32_t pages, uint32_t position)
{
    st_kv *kv = c->kv;
    uint32_t all = limit >> kv->shift, end = pages, most = kv->layout->pools[0].table_max;
    if (!is_on(kv) || !kv->persist.keys) return false;
    if (all > most) all = most;
    if (all <= position >> kv->shift) return false;
    const st_digest *keys = keys_of(kv, tokens, all);
    while (end < all && st_store_has_page(kv->persist.store, keys[end + 1])) end++;
    if (kv->needs_points) end = last_saved_point(kv, position >> kv->shift, end < all ? end : all);
    if (end <= position >> kv->shift) return false;
    uint32_t first = pages < end ? pages : end;
    hold_found(kv, first, true);
    uint32_t loaded = load_pages(c, tokens, first, end);
    if (kv->needs_points && loaded == end) load_point(kv, end);
    for (uint32_t i = loaded; i-- > first;) {
        if (through_tier(kv)) st_tier_filled(kv->exchange.tier, kv->table[i]);
        else st_pages_drop(kv->pages[0], kv->table[i]);
    }
    hold_found(kv, first, false);
    return loaded > first || (kv->needs_points && end <= pages);
}
