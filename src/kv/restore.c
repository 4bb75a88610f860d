#include "kv/restore.h"

#include "base/alloc.h"
#include "base/error.h"
#include "kv/order.h"

typedef struct entry {
    st_prefix prefix; /* 0: the entry is free */
    size_t offset, bytes;
    st_restore_kind kind;
    uint32_t users;
    bool done, superseded;
    bool victim;           /* while room is made: would be evicted */
    uint32_t below, above; /* neighbours in memory */
    uint32_t next;         /* the chain of a bucket, or of the free entries */
} entry;

struct st_restore {
    entry *points;     /* [most] */
    uint32_t *buckets; /* [bucket_mask + 1]: chains of points by prefix */
    const st_prefixes *prefixes;
    size_t budget, used_bytes;
    uint32_t most, count, bucket_mask;
    uint32_t unused; /* the first free entry */
    uint32_t lowest; /* in memory */
    st_order order;
};

strata_status st_restore_new(size_t budget, uint32_t points, const st_prefixes *prefixes, st_restore **out,
                             strata_error *error)
{
    st_restore *r = st_alloc_zero(1, sizeof *r);
    if (!r) return st_error_memory(error, sizeof *r, "restore points");
    uint32_t buckets = 1;
    while (buckets <= points / 2) buckets *= 2;
    *r = (st_restore){.prefixes = prefixes, .budget = budget, .most = points, .bucket_mask = buckets - 1,
                      .unused = ST_NO_POINT, .lowest = ST_NO_POINT};
    r->points = st_alloc_zero(points, sizeof *r->points);
    r->buckets = st_alloc_array(buckets, sizeof *r->buckets);
    if (!r->points || !r->buckets || !st_order_new(&r->order, points)) {
        st_restore_free(r);
        return st_error_memory(error, points * sizeof *r->points, "restore points");
    }
    for (uint32_t i = 0; i < buckets; i++) r->buckets[i] = ST_NO_POINT;
    for (uint32_t i = points; i-- > 0;) {
        r->points[i].next = r->unused;
        r->unused = i;
    }
    *out = r;
    return STRATA_OK;
}

void st_restore_free(st_restore *restore)
{
    if (!restore) return;
    st_free(restore->points);
    st_free(restore->buckets);
    st_free(restore->order.links);
    st_free(restore);
}

st_restore_kind st_restore_kind_of(const st_restore *restore, uint32_t point)
{
    return restore->points[point].kind;
}

size_t st_restore_bytes(const st_restore *restore, uint32_t point)
{
    return restore->points[point].bytes;
}

size_t st_restore_offset(const st_restore *restore, uint32_t point)
{
    return restore->points[point].offset;
}

size_t st_restore_used_bytes(const st_restore *restore)
{
    return restore->used_bytes;
}

uint32_t st_restore_count(const st_restore *restore)
{
    return restore->count;
}

/* --- by prefix and by place --------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(const st_restore *r, st_prefix prefix)
{
    return &r->buckets[(prefix * 0x9E3779B97F4A7C15u >> 32) & r->bucket_mask];
}

static uint32_t find(const st_restore *r, st_prefix prefix)
{
    if (prefix == 0) return ST_NO_POINT;
    uint32_t found = *bucket_of(r, prefix);
    while (found != ST_NO_POINT && r->points[found].prefix != prefix) found = r->points[found].next;
    return found;
}

static void place_add(st_restore *r, uint32_t number, uint32_t below)
{
    entry *p = &r->points[number];
    uint32_t *up = below == ST_NO_POINT ? &r->lowest : &r->points[below].above;
    p->below = below;
    p->above = *up;
    *up = number;
    if (p->above != ST_NO_POINT) r->points[p->above].below = number;
}

static void place_remove(st_restore *r, uint32_t number)
{
    const entry *p = &r->points[number];
    *(p->below == ST_NO_POINT ? &r->lowest : &r->points[p->below].above) = p->above;
    if (p->above != ST_NO_POINT) r->points[p->above].below = p->below;
}

static void forget(st_restore *r, uint32_t number)
{
    entry *p = &r->points[number];
    uint32_t *link = bucket_of(r, p->prefix);
    while (*link != number) link = &r->points[*link].next;
    *link = p->next;
    st_order_remove(&r->order, number);
    place_remove(r, number);
    r->used_bytes -= p->bytes;
    r->count--;
    *p = (entry){.next = r->unused};
    r->unused = number;
}

/* --- room for a point --------------------------------------------------------------------------------------------- */

/* Free bytes, from `offset` on, above the point `below` (ST_NO_POINT: from the start of the block). */
typedef struct gap {
    size_t offset, bytes;
    uint32_t below;
} gap;

static gap gap_above(const st_restore *r, uint32_t below)
{
    gap found = {.below = below};
    uint32_t above = r->lowest;
    if (below != ST_NO_POINT) {
        found.offset = r->points[below].offset + r->points[below].bytes;
        above = r->points[below].above;
    }
    found.bytes = (above == ST_NO_POINT ? r->budget : r->points[above].offset) - found.offset;
    return found;
}

static bool first_fit(const st_restore *r, size_t bytes, gap *out)
{
    for (uint32_t below = ST_NO_POINT;;) {
        *out = gap_above(r, below);
        if (out->bytes >= bytes) return true;
        below = below == ST_NO_POINT ? r->lowest : r->points[below].above;
        if (below == ST_NO_POINT) return false;
    }
}

/* The gap around a victim once it and the victims beside it are evicted. */
static gap gap_around(const st_restore *r, uint32_t victim)
{
    const entry *points = r->points;
    uint32_t below = points[victim].below;
    while (below != ST_NO_POINT && points[below].victim) below = points[below].below;
    gap around = gap_above(r, below);
    uint32_t above = below == ST_NO_POINT ? r->lowest : points[below].above;
    for (; above != ST_NO_POINT && points[above].victim; above = points[above].above)
        around.bytes += points[above].bytes + gap_above(r, above).bytes;
    return around;
}

enum { RANKS = 3 }; /* of eviction */

static int rank_of(const st_restore *r, const entry *p)
{
    if (!st_prefixes_live(r->prefixes, p->prefix)) return 0;
    if (p->kind == ST_RESTORE_MARK) return 2;
    return p->superseded ? 0 : 1;
}

/* The next point to evict after `number` (ST_NO_POINT: the first); *rank starts as 0. */
static uint32_t next_victim(const st_restore *r, uint32_t number, int *rank)
{
    for (; *rank < RANKS; ++*rank) {
        number = number == ST_NO_POINT ? r->order.oldest : r->order.links[number].newer;
        for (; number != ST_ORDER_END; number = r->order.links[number].newer) {
            const entry *p = &r->points[number];
            if (p->done && p->users == 0 && rank_of(r, p) == *rank) return number;
        }
    }
    return ST_NO_POINT;
}

/* Marks victims in the order of eviction until they leave a gap of `bytes`; then evicts the victims
 * inside the gap, from its start. If all victims together do not suffice, nothing is evicted. */
static bool make_room(st_restore *r, size_t bytes, gap *out)
{
    int rank = 0;
    uint32_t victim = ST_NO_POINT;
    gap found = {0};
    while (found.bytes < bytes && (victim = next_victim(r, victim, &rank)) != ST_NO_POINT) {
        r->points[victim].victim = true;
        found = gap_around(r, victim);
    }
    for (uint32_t i = r->order.oldest; i != ST_ORDER_END; i = r->order.links[i].newer) r->points[i].victim = false;
    if (found.bytes < bytes) return false;
    while ((*out = gap_above(r, found.below)).bytes < bytes)
        forget(r, found.below == ST_NO_POINT ? r->lowest : r->points[found.below].above);
    return true;
}

/* The same where bytes are free and no entry is. */
static bool make_entry(st_restore *r, size_t bytes, gap *out)
{
    int rank = 0;
    uint32_t victim = next_victim(r, ST_NO_POINT, &rank);
    if (victim == ST_NO_POINT) return false;
    forget(r, victim);
    return first_fit(r, bytes, out);
}

static bool find_room(st_restore *r, size_t bytes, gap *out)
{
    if (!first_fit(r, bytes, out)) return make_room(r, bytes, out);
    return r->unused != ST_NO_POINT || make_entry(r, bytes, out);
}

static uint32_t add(st_restore *r, const gap *room, entry added)
{
    uint32_t number = r->unused, *bucket = bucket_of(r, added.prefix);
    r->unused = r->points[number].next;
    added.offset = room->offset;
    added.next = *bucket;
    *bucket = number;
    r->points[number] = added;
    place_add(r, number, room->below);
    st_order_add(&r->order, number);
    r->used_bytes += added.bytes;
    r->count++;
    return number;
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

/* Returns what the flag was. */
static bool set_superseded(st_restore *r, uint32_t number, bool superseded)
{
    if (number == ST_NO_POINT) return false;
    bool was = r->points[number].superseded;
    r->points[number].superseded = superseded;
    return was;
}

uint32_t st_restore_take(st_restore *restore, st_prefix prefix, size_t bytes, st_restore_kind kind, st_prefix older)
{
    if (prefix == 0 || bytes == 0 || bytes > restore->budget) return ST_NO_POINT;
    uint32_t before = older == prefix ? ST_NO_POINT : find(restore, older);
    bool was = set_superseded(restore, before, true);
    uint32_t existing = find(restore, prefix);
    if (existing != ST_NO_POINT) {
        if (kind == ST_RESTORE_MARK) restore->points[existing].kind = kind;
        return ST_NO_POINT;
    }
    gap room;
    if (!find_room(restore, bytes, &room)) {
        set_superseded(restore, before, was);
        return ST_NO_POINT;
    }
    return add(restore, &room, (entry){.prefix = prefix, .bytes = bytes, .kind = kind});
}

void st_restore_done(st_restore *restore, uint32_t point)
{
    restore->points[point].done = true;
}

void st_restore_discard(st_restore *restore, uint32_t point)
{
    forget(restore, point);
}

uint32_t st_restore_find(const st_restore *restore, st_prefix prefix)
{
    uint32_t found = find(restore, prefix);
    return found != ST_NO_POINT && restore->points[found].done ? found : ST_NO_POINT;
}

void st_restore_use(st_restore *restore, uint32_t point)
{
    restore->points[point].users++;
    restore->points[point].superseded = false;
    st_order_remove(&restore->order, point);
    st_order_add(&restore->order, point);
}

void st_restore_unuse(st_restore *restore, uint32_t point)
{
    restore->points[point].users--;
}
