/* Memory of conversations: views for the backends, copies of pages, slots and restore points, and the assignment of
 * pages and slots, which idle conversations lose first. */
#include "kv/kv.h"

#include "base/alloc.h"
#include "base/error.h"
#include "kv/memory.h"

enum { WAIT_LIMIT_US = 120 * 1000 * 1000, POINTS_MAX = 4096 };

/* --- life --------------------------------------------------------------------------------------------------------- */

static strata_status open_bookkeeping(st_kv *kv, strata_error *error)
{
    const st_kv_layout *layout = kv->layout;
    uint32_t table = layout->pools[0].table_max, slots = layout->options.conversations;
    kv->slots = st_alloc_zero(slots, sizeof *kv->slots);
    kv->found = st_alloc_zero(table, sizeof *kv->found);
    kv->found_names = st_alloc_zero(table, sizeof *kv->found_names);
    kv->table = st_alloc_zero(table, sizeof *kv->table);
    kv->marks = st_alloc_zero((kv->layout->pools[0].pages + 63) / 64, sizeof *kv->marks);
    if (!kv->slots || !kv->found || !kv->found_names || !kv->table || !kv->marks)
        return st_error_memory(error, slots * sizeof *kv->slots + table * (2 * sizeof *kv->found + sizeof(st_prefix)),
                               "the KV cache");
    uint32_t names = layout->pools[0].pages + kv->source.tier_pages;
    strata_status status = st_prefixes_new(names, kv->page, &kv->prefixes, error);
    for (uint32_t i = 0; i < layout->pool_count && status == STRATA_OK; i++)
        status = st_pages_new(layout->pools[i].pages, kv->page, i == 0 ? kv->prefixes : NULL, &kv->pages[i], error);
    if (status != STRATA_OK) return status;
    return st_restore_new(kv->source.restore_bytes, POINTS_MAX, kv->prefixes, &kv->restore, error);
}

const st_kv_share *st_kv_far_share(const st_kv *kv)
{
    return kv->source.share_count > 1 ? &kv->source.shares[1] : NULL;
}

static strata_status open_transfers(st_kv *kv, strata_error *error)
{
    const st_kv_share *far = st_kv_far_share(kv);
    strata_status status = STRATA_OK;
    for (int i = 0; far && kv->needs_points && i < ST_KV_TRANSFERS && status == STRATA_OK; i++)
        status = far->backend->event_new(far->device, &kv->transfers[i].event, error);
    return status;
}

/* Pages leave a device whole, with rows that nothing writes: a NextN block has none of the first token. */
static strata_status clear_far_pages(const st_kv *kv, strata_error *error)
{
    const st_kv_share *far = st_kv_far_share(kv);
    size_t bytes = far ? far->layout->cache_bytes : 0;
    st_event *cleared = NULL;
    if (!bytes) return STRATA_OK;
    strata_status status = far->backend->zero(far->queue, far->memory, bytes, error);
    if (status == STRATA_OK) status = far->backend->event_new(far->device, &cleared, error);
    if (status == STRATA_OK) status = far->backend->event_record(cleared, far->queue, error);
    if (status == STRATA_OK) status = far->backend->event_wait_host(cleared, WAIT_LIMIT_US, error);
    if (cleared) far->backend->event_free(cleared);
    return status;
}

strata_status st_kv_new(const st_kv_source *source, st_kv **out, strata_error *error)
{
    st_kv *kv = st_alloc_zero(1, sizeof *kv);
    if (!kv) return st_error_memory(error, sizeof *kv, "the KV cache");
    kv->source = *source;
    kv->layout = source->shares[0].layout;
    kv->page = kv->layout->options.page_tokens;
    kv->shift = kv->layout->page_shift;
    kv->needs_points = kv->layout->needs_points;
    for (int i = 0; i < ST_KV_TRANSFERS; i++) kv->transfers[i].point = ST_NO_POINT;
    for (uint32_t i = 0; i < source->share_count; i++)
        kv->has_state = kv->has_state || source->shares[i].layout->slot_bytes > 0;
    strata_status status = open_bookkeeping(kv, error);
    if (status == STRATA_OK) status = open_transfers(kv, error);
    if (status == STRATA_OK && kv->source.tier_pages) status = st_exchange_open(kv, error);
    if (status == STRATA_OK) status = clear_far_pages(kv, error);
    if (status != STRATA_OK) {
        st_kv_free(kv);
        return status;
    }
    *out = kv;
    return STRATA_OK;
}

void st_kv_free(st_kv *kv)
{
    if (!kv) return;
    st_persist_close(kv);
    st_kv_finish(kv);
    st_exchange_close(kv);
    for (int i = 0; i < ST_KV_TRANSFERS; i++)
        if (kv->transfers[i].event) st_kv_far_share(kv)->backend->event_free(kv->transfers[i].event);
    st_restore_free(kv->restore);
    for (uint32_t i = 0; i < kv->layout->pool_count; i++) st_pages_free(kv->pages[i]);
    st_prefixes_free(kv->prefixes);
    st_free(kv->slots);
    st_free(kv->found);
    st_free(kv->found_names);
    st_free(kv->table);
    st_free(kv->marks);
    st_free(kv);
}

st_kv_use st_kv_count(const st_kv *kv)
{
    st_kv_use use = {.pool_count = kv->layout->pool_count, .page_tokens = kv->page,
                     .slots = kv->layout->options.conversations,
                     .points = st_restore_count(kv->restore), .restore_bytes = st_restore_used_bytes(kv->restore)};
    for (uint32_t i = 0; i < use.pool_count; i++) use.pools[i] = st_pages_count(kv->pages[i]);
    uint32_t copying = st_exchange_holds(kv); /* they are published */
    use.pools[0].held -= copying;
    use.pools[0].cached += copying;
    for (uint32_t i = 0; i < use.slots; i++) use.slots_taken += kv->slots[i] != NULL;
    for (const st_conversation *c = kv->first; c; c = c->next) use.conversations++;
    if (kv->exchange.tier) {
        st_tier_counts tier = st_tier_count(kv->exchange.tier);
        use.tier_pages = tier.total;
        use.tier_pages_used = tier.total - tier.free;
    }
    return use;
}

/* --- views -------------------------------------------------------------------------------------------------------- */

/* The share that a layer is in. */
static const st_kv_share *share_of(const st_kv *kv, uint32_t layer)
{
    for (uint32_t i = 1; i < kv->source.share_count; i++) {
        const st_kv_options *options = &kv->source.shares[i].layout->options;
        if (options->layer_device && options->layer_device[layer] == options->device) return &kv->source.shares[i];
    }
    return &kv->source.shares[0];
}

st_kv_view st_kv_view_of(const st_kv *kv, uint32_t layer)
{
    const st_kv_share *s = share_of(kv, layer);
    const st_kv_layer *l = &s->layout->layers[layer];
    bool in_keys = l->value_row_bytes == 0;
    return (st_kv_view){.keys = s->memory + l->keys_offset,
                        .values = s->memory + (in_keys ? l->keys_offset : l->values_offset),
                        .key_row_bytes = l->key_row_bytes,
                        .value_row_bytes = in_keys ? l->key_row_bytes : l->value_row_bytes,
                        .key_page_bytes = l->key_page_bytes,
                        .value_page_bytes = in_keys ? l->key_page_bytes : l->value_page_bytes,
                        .page_shift = s->layout->page_shift,
                        .pages = s->layout->pools[l->pool].pages,
                        .pool = l->pool,
                        .type = s->layout->options.type};
}

st_state_view st_kv_state_of(const st_kv *kv, uint32_t layer)
{
    const st_kv_share *s = share_of(kv, layer);
    const st_kv_layer *l = &s->layout->layers[layer];
    return (st_state_view){.conv = (float *)(void *)(s->memory + l->conv_offset),
                           .delta = (float *)(void *)(s->memory + l->delta_offset),
                           .slot_floats = s->layout->slot_bytes / sizeof(float),
                           .slots = s->layout->options.conversations};
}

static unsigned char *slot_of(const st_kv_share *s, uint32_t slot)
{
    return s->memory + s->layout->state_offset + slot * s->layout->slot_bytes;
}

unsigned char *st_kv_carry(const st_kv *kv, uint32_t share, uint32_t slot)
{
    const st_kv_share *s = &kv->source.shares[share];
    return slot_of(s, slot) + s->layout->carry_offset;
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

strata_status st_kv_each_piece(const st_kv_share *s, uint32_t pool, st_kv_piece piece, void *context,
                               strata_error *error)
{
    const st_kv_layout *layout = s->layout;
    const st_kv_pool *p = &layout->pools[pool];
    if (p->page_bytes == 0) return STRATA_OK;
    if (layout->options.page_major) return piece(context, s, p->offset, p->page_bytes, p->page_bytes, error);
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < layout->layer_count && status == STRATA_OK; i++) {
        const st_kv_layer *l = &layout->layers[i];
        if (l->pool != pool || l->key_row_bytes + l->value_row_bytes == 0) continue;
        status = piece(context, s, l->keys_offset, l->key_page_bytes, l->key_page_bytes, error);
        if (status == STRATA_OK && l->value_row_bytes > 0)
            status = piece(context, s, l->values_offset, l->value_page_bytes, l->value_page_bytes, error);
    }
    return status;
}

typedef struct page_copy {
    uint32_t to, from;
} page_copy;

static strata_status copy_piece(void *context, const st_kv_share *s, size_t offset, size_t stride, size_t bytes,
                                strata_error *error)
{
    const page_copy *c = context;
    unsigned char *part = s->memory + offset;
    return s->backend->copy(s->queue, ST_COPY_WITHIN, part + c->to * stride, part + c->from * stride, bytes, error);
}

strata_status st_kv_copy_page(st_kv *kv, uint32_t pool, uint32_t to, uint32_t from, strata_error *error)
{
    page_copy copy = {to, from};
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < kv->source.share_count && status == STRATA_OK; i++)
        status = st_kv_each_piece(&kv->source.shares[i], pool, copy_piece, &copy, error);
    return status;
}

strata_status st_kv_clear_slot(st_kv *kv, uint32_t slot, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < kv->source.share_count && status == STRATA_OK; i++) {
        const st_kv_share *s = &kv->source.shares[i];
        if (s->layout->slot_bytes) status = s->backend->zero(s->queue, slot_of(s, slot), s->layout->slot_bytes, error);
    }
    return status;
}

strata_status st_kv_copy_slot(st_kv *kv, uint32_t to, uint32_t from, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < kv->source.share_count && status == STRATA_OK; i++) {
        const st_kv_share *s = &kv->source.shares[i];
        size_t bytes = s->layout->slot_bytes;
        if (bytes) status = s->backend->copy(s->queue, ST_COPY_WITHIN, slot_of(s, to), slot_of(s, from), bytes, error);
    }
    return status;
}

/* --- restore points ----------------------------------------------------------------------------------------------- */

/* A copy between a conversation and a restore point, packed: of each share its slot, then the pages of its tails. */
typedef struct point_copy {
    const st_conversation *c;
    unsigned char *at; /* in the restore point */
    bool saves;
    uint32_t page;
} point_copy;

static strata_status copy_part(point_copy *p, const st_kv_share *s, unsigned char *memory, size_t bytes,
                               strata_error *error)
{
    bool near = s == &p->c->kv->source.shares[0];
    st_copy_kind kind = near ? ST_COPY_WITHIN : p->saves ? ST_COPY_DOWN : ST_COPY_UP;
    unsigned char *to = p->saves ? p->at : memory, *from = p->saves ? memory : p->at;
    p->at += bytes;
    return bytes ? s->backend->copy(s->queue, kind, to, from, bytes, error) : STRATA_OK;
}

static strata_status copy_point_piece(void *context, const st_kv_share *s, size_t offset, size_t stride, size_t bytes,
                                      strata_error *error)
{
    point_copy *p = context;
    return copy_part(p, s, s->memory + offset + p->page * stride, bytes, error);
}

static strata_status copy_tail(point_copy *p, const st_kv_share *s, uint32_t pool, strata_error *error)
{
    const st_page_table *table = &p->c->tables[pool];
    uint32_t tail = s->layout->pools[pool].tail_max, first = table->end > tail ? table->end - tail : 0;
    strata_status status = STRATA_OK;
    if (first < table->first) first = table->first;
    for (uint32_t i = first; i < table->end && status == STRATA_OK; i++) {
        p->page = *st_kv_entry(p->c, pool, i);
        status = st_kv_each_piece(s, pool, copy_point_piece, p, error);
    }
    return status;
}

static strata_status copy_point(st_kv *kv, const st_conversation *c, uint32_t point, bool saves, strata_error *error)
{
    point_copy p = {.c = c, .at = kv->source.restore + st_restore_offset(kv->restore, point), .saves = saves};
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < kv->source.share_count && status == STRATA_OK; i++) {
        const st_kv_share *s = &kv->source.shares[i];
        status = copy_part(&p, s, slot_of(s, c->slot), s->layout->slot_bytes, error);
        for (uint32_t pool = 1; pool < kv->layout->pool_count && status == STRATA_OK; pool++)
            status = copy_tail(&p, s, pool, error);
    }
    return status;
}

size_t st_kv_point_bytes(const st_kv *kv, const st_conversation *c)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < kv->source.share_count; i++) {
        const st_kv_layout *layout = kv->source.shares[i].layout;
        bytes += layout->slot_bytes;
        for (uint32_t pool = 1; pool < layout->pool_count; pool++) {
            uint32_t tail = layout->pools[pool].tail_max, held = c->tables[pool].end - c->tables[pool].first;
            bytes += (held < tail ? held : tail) * layout->pools[pool].page_bytes;
        }
    }
    return bytes;
}

static void end_transfer(st_kv *kv, st_kv_transfer *t, bool ok)
{
    if (!t->saves) st_restore_unuse(kv->restore, t->point);
    else if (ok) st_restore_done(kv->restore, t->point);
    else st_restore_discard(kv->restore, t->point);
    t->point = ST_NO_POINT;
}

static void wait_for_transfer(st_kv *kv, st_kv_transfer *t)
{
    if (t->point == ST_NO_POINT) return;
    end_transfer(kv, t, st_kv_far_share(kv)->backend->event_wait_host(t->event, WAIT_LIMIT_US, NULL) == STRATA_OK);
}

/* Transfers end in the order in which they begin: the next one to use is the oldest. */
static st_kv_transfer *next_transfer(st_kv *kv)
{
    st_kv_transfer *t = &kv->transfers[kv->next_transfer++ % ST_KV_TRANSFERS];
    wait_for_transfer(kv, t);
    return t;
}

void st_kv_settle(st_kv *kv)
{
    st_exchange_settle(kv);
    st_persist_settle(kv);
    for (int i = 0; i < ST_KV_TRANSFERS; i++) {
        st_kv_transfer *t = &kv->transfers[i];
        if (t->point != ST_NO_POINT && st_kv_far_share(kv)->backend->event_done(t->event)) end_transfer(kv, t, true);
    }
}

void st_kv_finish(st_kv *kv)
{
    st_exchange_finish(kv, ST_LANE_DOWN);
    st_exchange_finish(kv, ST_LANE_UP);
    for (int i = 0; i < ST_KV_TRANSFERS; i++) wait_for_transfer(kv, &kv->transfers[i]);
}

static strata_status transfer(st_kv *kv, const st_conversation *c, uint32_t point, bool saves, strata_error *error)
{
    const st_kv_share *far = st_kv_far_share(kv);
    st_kv_transfer now = {.point = point, .saves = saves}, *t = far ? next_transfer(kv) : &now;
    if (!saves) st_restore_use(kv->restore, point);
    strata_status status = copy_point(kv, c, point, saves, error);
    if (status == STRATA_OK && far) status = far->backend->event_record(t->event, far->queue, error);
    t->point = point;
    t->saves = saves;
    if (status == STRATA_OK && far) return STRATA_OK;
    /* A copy that was enqueued before the failure may still read or write the point. */
    if (far && far->backend->event_record(t->event, far->queue, NULL) == STRATA_OK)
        (void)far->backend->event_wait_host(t->event, WAIT_LIMIT_US, NULL);
    end_transfer(kv, t, status == STRATA_OK);
    return status;
}

strata_status st_kv_save(st_kv *kv, const st_conversation *c, uint32_t point, strata_error *error)
{
    return transfer(kv, c, point, true, error);
}

strata_status st_kv_restore(st_kv *kv, const st_conversation *c, uint32_t point, strata_error *error)
{
    return transfer(kv, c, point, false, error);
}

/* --- confirmed tokens --------------------------------------------------------------------------------------------- */

void st_kv_confirm(st_kv *kv)
{
    for (uint32_t i = 0; i < kv->layout->options.conversations; i++)
        if (kv->slots[i]) st_conversation_confirm(kv->slots[i]);
}

void st_kv_fail(st_kv *kv)
{
    for (uint32_t i = 0; i < kv->layout->options.conversations; i++)
        if (kv->slots[i]) st_conversation_fail(kv->slots[i]);
}

/* --- assignment of pages and slots -------------------------------------------------------------------------------- */

uint32_t *st_kv_entry(const st_conversation *c, uint32_t pool, uint32_t index)
{
    return &c->tables[pool].pages[pool == 0 ? index : index % c->kv->layout->pools[pool].table_max];
}

void st_kv_cut(st_conversation *c, uint32_t pool, uint32_t index)
{
    st_page_table *table = &c->tables[pool];
    while (table->end > index && table->end > table->first)
        st_pages_drop(c->kv->pages[pool], *st_kv_entry(c, pool, --table->end));
    if (table->end <= table->first) table->first = table->end = index;
}

/* Window pages belong to the slot: without it the conversation cannot continue from them. Steps are confirmed by slot:
 * without it the conversation keeps only what was confirmed. */
static void drop_slot(st_conversation *c)
{
    st_conversation_fail(c);
    if (c->slot != ST_NO_SLOT) c->kv->slots[c->slot] = NULL;
    c->slot = ST_NO_SLOT;
    c->valid = false;
    for (uint32_t pool = 1; pool < c->kv->layout->pool_count; pool++) st_kv_cut(c, pool, 0);
}

void st_kv_release(st_conversation *c)
{
    drop_slot(c);
    st_kv_cut(c, 0, 0);
    c->position = c->confirmed = c->running = c->named = 0;
    c->passing = c->arrives = 0;
}

/* The least recently used idle conversation, other than `but`, that holds a slot or, without `with_slot`, pages of full
 * attention; NULL: none. */
static st_conversation *find_idle(const st_kv *kv, const st_conversation *but, bool with_slot)
{
    st_conversation *oldest = NULL;
    for (st_conversation *c = kv->first; c; c = c->next) {
        bool holds = with_slot ? c->slot != ST_NO_SLOT : c->tables[0].end > 0;
        if (c != but && !c->runs && c->running == 0 && holds && (!oldest || c->used < oldest->used)) oldest = c;
    }
    return oldest;
}

uint32_t st_kv_take_page(const st_conversation *c, uint32_t pool, uint32_t after)
{
    st_kv *kv = c->kv;
    for (;;) {
        uint32_t page = st_pages_take(kv->pages[pool], after);
        if (page != ST_NO_PAGE) return page;
        /* Pages of full attention that are being copied to or from the RAM tier are held until the copy ends. */
        if (pool == 0 && (st_exchange_finish(kv, ST_LANE_DOWN) || st_persist_settle(kv))) continue;
        st_conversation *other = find_idle(kv, c, pool > 0);
        if (other && pool > 0) drop_slot(other);
        else if (other) st_kv_release(other);
        else if (pool > 0 || !(st_exchange_finish(kv, ST_LANE_UP) || st_persist_cancel(kv))) return ST_NO_PAGE;
    }
}

strata_status st_kv_take_slot(st_kv *kv, st_conversation *c, strata_error *error)
{
    uint32_t slots = kv->layout->options.conversations, i = 0;
    if (c->slot != ST_NO_SLOT) return STRATA_OK;
    while (i < slots && kv->slots[i]) i++;
    if (i == slots) {
        st_conversation *other = find_idle(kv, c, true);
        if (!other)
            return st_error_set(error, STRATA_LIMIT, NULL, "%u conversations run: expected at most %u", slots + 1,
                                slots);
        i = other->slot;
        drop_slot(other);
    }
    kv->slots[i] = c;
    c->slot = i;
    return STRATA_OK;
}
