/* src/kv/prefixes.c and tier.c: named cases, and random operations against a model of arrays and linear scans. */
#include "support/kit.h"

#include <string.h>

#include "base/fault.h"
#include "kv/tier.h"
#include "support/random.h"

enum { POOL = 64, LONGEST = 64 };

typedef struct rig {
    st_prefixes *prefixes;
    st_tier *tier;
    uint32_t pool; /* pages of the pool that names were given */
} rig;

static rig open_rig(uint32_t pages)
{
    rig r = {0};
    strata_error error;
    if (st_prefixes_new(POOL + pages, 1, &r.prefixes, &error) != STRATA_OK) fail_msg("%s", error.message);
    if (st_tier_new(pages, r.prefixes, &r.tier, &error) != STRATA_OK) fail_msg("%s", error.message);
    return r;
}

static void close_rig(rig *r)
{
    st_tier_free(r->tier);
    st_prefixes_free(r->prefixes);
}

/* A conversation of pages with one token each: its names. */
typedef struct talk {
    st_prefix names[LONGEST];
    uint32_t count;
} talk;

/* Adds a page of the pool. */
static void grow(rig *r, talk *t, strata_token id)
{
    t->names[t->count] = st_prefixes_add(r->prefixes, t->count ? t->names[t->count - 1] : 0, &id, ST_PLACE_POOL, r->pool++);
    t->count++;
}

static void touch(rig *r, const talk *t)
{
    for (uint32_t i = t->count; i-- > 0;) st_tier_touch(r->tier, t->names[i]);
}

static uint32_t stored_length(const rig *r, const talk *t)
{
    uint32_t i = 0;
    while (i < t->count && st_prefixes_live(r->prefixes, t->names[i]) && st_tier_find(r->tier, t->names[i]) != ST_NO_PAGE)
        i++;
    return i;
}

/* Stores what the tier has no page of; returns how many pages were stored. */
static uint32_t store(rig *r, const talk *t)
{
    uint32_t stored = 0, first = stored_length(r, t), page = ST_NO_PAGE;
    touch(r, t);
    st_tier_make_room(r->tier, t->count - first, first ? t->names[first - 1] : 0);
    for (uint32_t i = first; i < t->count && st_prefixes_live(r->prefixes, t->names[i]); i++, stored++) {
        page = st_tier_take(r->tier, t->names[i], page);
        if (page == ST_NO_PAGE) break;
        assert_int_equal(st_tier_find(r->tier, t->names[i]), ST_NO_PAGE);
        st_tier_filled(r->tier, page);
        assert_int_equal(st_tier_find(r->tier, t->names[i]), page);
    }
    return stored;
}

/* The pool evicts everything. */
static void evict_pool(rig *r, const talk *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (st_prefixes_live(r->prefixes, t->names[i]))
            st_prefixes_set_page(r->prefixes, t->names[i], ST_PLACE_POOL, ST_NO_PAGE);
}

static talk talk_of(rig *r, strata_token first, uint32_t count)
{
    talk t = {0};
    for (uint32_t i = 0; i < count; i++) grow(r, &t, first + (strata_token)i);
    return t;
}

/* --- named cases -------------------------------------------------------------------------------------------------- */

static void an_evicted_prefix_is_found_by_its_name(void **state)
{
    (void)state;
    rig r = open_rig(8);
    talk t = talk_of(&r, 10, 4);
    assert_int_equal(store(&r, &t), 4);
    evict_pool(&r, &t);
    st_prefix at = 0;
    for (strata_token id = 10; id < 14; id++) {
        at = st_prefixes_find(r.prefixes, at, &id);
        assert_true(at == t.names[id - 10]);
        assert_int_equal(st_prefixes_page(r.prefixes, at, ST_PLACE_POOL), ST_NO_PAGE);
        assert_int_equal(st_tier_find(r.tier, at), id - 10); /* adjacent pages */
    }
    strata_token other = 11;
    assert_true(st_prefixes_find(r.prefixes, 0, &other) == 0);
    close_rig(&r);
}

static void a_prefix_without_a_place_is_gone(void **state)
{
    (void)state;
    rig r = open_rig(8);
    talk t = talk_of(&r, 10, 3);
    evict_pool(&r, &t);
    for (int i = 0; i < 3; i++) assert_false(st_prefixes_live(r.prefixes, t.names[i]));
    strata_token id = 10;
    assert_true(st_prefixes_find(r.prefixes, 0, &id) == 0);
    talk again = talk_of(&r, 10, 1);
    assert_true(again.names[0] != t.names[0]); /* a name is never used again */
    close_rig(&r);
}

static void room_is_made_from_cold_ends(void **state)
{
    (void)state;
    rig r = open_rig(8);
    talk a = talk_of(&r, 10, 4), b = talk_of(&r, 20, 4), c = talk_of(&r, 30, 3);
    store(&r, &a);
    store(&r, &b);
    touch(&r, &a); /* a is used again: b is colder */
    assert_int_equal(store(&r, &c), 3);
    assert_int_equal(stored_length(&r, &a), 4);
    assert_int_equal(stored_length(&r, &b), 1);
    assert_int_equal(stored_length(&r, &c), 3);
    close_rig(&r);
}

static void a_shared_beginning_is_kept_longest(void **state)
{
    (void)state;
    rig r = open_rig(8);
    talk a = talk_of(&r, 10, 4), b = a, c = talk_of(&r, 30, 4);
    b.count = 2;
    grow(&r, &b, 20);
    grow(&r, &b, 21);
    store(&r, &a);
    store(&r, &b);
    assert_int_equal(st_tier_count(r.tier).free, 2);
    assert_int_equal(store(&r, &c), 4);
    assert_int_equal(stored_length(&r, &a), 2); /* its end was the coldest */
    assert_int_equal(stored_length(&r, &b), 4);
    close_rig(&r);
}

static void a_conversation_longer_than_the_tier_keeps_its_beginning(void **state)
{
    (void)state;
    rig r = open_rig(5);
    talk t = {0};
    for (strata_token id = 0; id < 9; id++) {
        grow(&r, &t, id);
        (void)store(&r, &t);
        assert_int_equal(stored_length(&r, &t), t.count < 5 ? t.count : 5);
    }
    close_rig(&r);
}

static void a_page_needs_its_parent(void **state)
{
    (void)state;
    rig r = open_rig(4);
    talk t = talk_of(&r, 10, 3);
    assert_int_equal(st_tier_take(r.tier, t.names[1], ST_NO_PAGE), ST_NO_PAGE);
    assert_int_equal(st_tier_count(r.tier).free, 4);
    close_rig(&r);
}

static void pages_in_use_are_not_evicted(void **state)
{
    (void)state;
    rig r = open_rig(4);
    talk a = talk_of(&r, 10, 2), b = talk_of(&r, 20, 2), c = talk_of(&r, 30, 3);
    store(&r, &a);
    store(&r, &b);
    uint32_t end = st_tier_find(r.tier, a.names[1]);
    st_tier_use(r.tier, end);
    st_tier_use(r.tier, end);
    assert_int_equal(st_tier_count(r.tier).busy, 1);
    assert_int_equal(store(&r, &c), 2);
    assert_int_equal(stored_length(&r, &a), 2);
    st_tier_unuse(r.tier, end);
    st_tier_unuse(r.tier, end);
    assert_int_equal(store(&r, &c), 1);
    assert_int_equal(stored_length(&r, &a), 1);
    close_rig(&r);
}

static void a_page_that_is_being_filled_is_not_evicted(void **state)
{
    (void)state;
    rig r = open_rig(1);
    talk a = talk_of(&r, 10, 1), b = talk_of(&r, 20, 1);
    uint32_t page = st_tier_take(r.tier, a.names[0], ST_NO_PAGE);
    assert_int_equal(store(&r, &b), 0);
    st_tier_filled(r.tier, page);
    assert_int_equal(store(&r, &b), 1);
    close_rig(&r);
}

static void discarding_takes_all_that_continues(void **state)
{
    (void)state;
    rig r = open_rig(8);
    talk a = talk_of(&r, 10, 4), b = a;
    b.count = 2;
    grow(&r, &b, 20);
    store(&r, &a);
    store(&r, &b);
    uint32_t end = st_tier_find(r.tier, a.names[3]);
    st_tier_use(r.tier, end);
    st_tier_discard(r.tier, st_tier_find(r.tier, a.names[1]));
    assert_int_equal(stored_length(&r, &a), 1);
    assert_int_equal(stored_length(&r, &b), 1);
    assert_int_equal(st_tier_count(r.tier).free, 6); /* one of the discarded pages is in use */
    st_tier_unuse(r.tier, end);
    assert_int_equal(st_tier_count(r.tier).free, 7);
    evict_pool(&r, &a);
    assert_false(st_prefixes_live(r.prefixes, a.names[3]));
    close_rig(&r);
}

static void evicted_pages_are_adjacent(void **state)
{
    (void)state;
    rig r = open_rig(32);
    talk a = talk_of(&r, 0, 16), b = talk_of(&r, 100, 16), c = talk_of(&r, 200, 8);
    store(&r, &a);
    store(&r, &b);
    assert_int_equal(store(&r, &c), 8);
    for (uint32_t i = 1; i < 8; i++)
        assert_int_equal(st_tier_find(r.tier, c.names[i]), st_tier_find(r.tier, c.names[i - 1]) + 1);
    close_rig(&r);
}

/* --- random operations -------------------------------------------------------------------------------------------- */

enum { TALKS = 6 };

/* Every stored page has its parent in the tier, pages belong to one prefix each, and the counts add up. */
static void check(const rig *r, const talk *talks, uint32_t pages, uint32_t seed)
{
    uint32_t owner[LONGEST] = {0}, used = 0;
    st_prefix names[LONGEST] = {0};
    for (int k = 0; k < TALKS; k++) {
        bool gap = false;
        for (uint32_t i = 0; i < talks[k].count; i++) {
            st_prefix name = talks[k].names[i];
            uint32_t page = st_prefixes_live(r->prefixes, name) ? st_prefixes_page(r->prefixes, name, ST_PLACE_TIER) : ST_NO_PAGE;
            gap = gap || page == ST_NO_PAGE;
            if (gap && page != ST_NO_PAGE) fail_msg("seed %u: page %u is stored without the one before it", seed, i);
            if (page == ST_NO_PAGE) continue;
            if (owner[page] && names[page] != name) fail_msg("seed %u: page %u has two prefixes", seed, page);
            used += !owner[page];
            owner[page] = 1;
            names[page] = name;
        }
    }
    st_tier_counts counts = st_tier_count(r->tier);
    if (counts.total != pages || counts.free > pages - used) fail_msg("seed %u: %u free, %u used", seed, counts.free, used);
}

/* A conversation begins like another one, or is new. */
static void begin(rig *r, talk *talks, talk *t, strata_token *next)
{
    const talk *like = &talks[between(0, TALKS - 1)];
    evict_pool(r, t);
    uint32_t common = like->count ? between(0, like->count) : 0;
    while (common > 0 && !st_prefixes_live(r->prefixes, like->names[common - 1])) common--;
    for (uint32_t i = 0; i < common; i++)
        if (!st_prefixes_live(r->prefixes, like->names[i])) common = i;
    memmove(t->names, like->names, common * sizeof *t->names);
    t->count = common;
    for (uint32_t n = between(1, 6); n > 0 && t->count < 20; n--) grow(r, t, (*next)++);
    r->pool %= POOL;
}

static void random_operations(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= (kit_is_slow() ? 10 : 60); seed++) {
        random_state = seed;
        uint32_t pages = between(1, 40);
        rig r = open_rig(pages);
        talk talks[TALKS] = {0};
        strata_token next = 0;
        for (int i = 0; i < 400; i++) {
            talk *t = &talks[between(0, TALKS - 1)];
            uint32_t choice = between(0, 9);
            if (choice < 3) begin(&r, talks, t, &next);
            else if (choice < 8) (void)store(&r, t);
            else if (choice == 8 && stored_length(&r, t)) st_tier_discard(r.tier, st_tier_find(r.tier, t->names[between(0, stored_length(&r, t) - 1)]));
            else touch(&r, t);
            check(&r, talks, pages, seed);
        }
        close_rig(&r);
    }
}

static void each_failed_allocation_leaves_nothing(void **state)
{
    (void)state;
    rig r = open_rig(1);
    st_tier_free(r.tier);
    r.tier = NULL;
    uint64_t failures = 0;
    for (uint64_t nth = 1; !r.tier; nth++) {
        strata_error error = {0};
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = st_tier_new(8, r.prefixes, &r.tier, &error);
        assert_true(status == (r.tier ? STRATA_OK : STRATA_MEMORY) && error.status == status);
        failures += !r.tier;
    }
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_int_equal(failures, 4);
    close_rig(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_evicted_prefix_is_found_by_its_name), cmocka_unit_test(a_prefix_without_a_place_is_gone),
        cmocka_unit_test(room_is_made_from_cold_ends), cmocka_unit_test(a_shared_beginning_is_kept_longest),
        cmocka_unit_test(a_conversation_longer_than_the_tier_keeps_its_beginning),
        cmocka_unit_test(a_page_needs_its_parent), cmocka_unit_test(pages_in_use_are_not_evicted),
        cmocka_unit_test(a_page_that_is_being_filled_is_not_evicted),
        cmocka_unit_test(discarding_takes_all_that_continues), cmocka_unit_test(evicted_pages_are_adjacent),
        cmocka_unit_test(random_operations), cmocka_unit_test(each_failed_allocation_leaves_nothing),
    };
    return kit_run("tier", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
