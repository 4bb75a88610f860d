/* src/kv/pages.c: named cases, and random operations against a model of arrays and linear scans. */
#include "support/kit.h"

#include <string.h>

#include "base/fault.h"
#include "kv/pages.h"
#include "support/random.h"

static st_prefixes *prefixes; /* of the open pool */

static st_pages *open_pages(uint32_t pages, uint32_t page_tokens, bool named)
{
    st_pages *p = NULL;
    strata_error error;
    prefixes = NULL;
    if (named && st_prefixes_new(pages, page_tokens, &prefixes, &error) != STRATA_OK) fail_msg("%s", error.message);
    if (st_pages_new(pages, page_tokens, prefixes, &p, &error) != STRATA_OK) fail_msg("%s", error.message);
    return p;
}

static void close_pages(st_pages *p)
{
    st_pages_free(p);
    st_prefixes_free(prefixes);
    prefixes = NULL;
}

static void expect_counts(const st_pages *p, uint32_t free, uint32_t held, uint32_t cached)
{
    st_pages_counts count = st_pages_count(p);
    assert_int_equal(count.free, free);
    assert_int_equal(count.held, held);
    assert_int_equal(count.cached, cached);
    assert_int_equal(count.total, free + held + cached);
}

/* --- conversations with pages of one token ------------------------------------------------------------------------ */

enum { LONGEST = 1024 };

typedef struct talk {
    uint32_t pages[LONGEST], count;
    st_prefix last;
} talk;

static uint32_t grow(st_pages *p, talk *t)
{
    uint32_t page = st_pages_take(p, t->count ? t->pages[t->count - 1] : ST_NO_PAGE);
    assert_int_not_equal(page, ST_NO_PAGE);
    return t->pages[t->count++] = page;
}

/* Takes a page and publishes it full of `id`. */
static void grow_full(st_pages *p, talk *t, strata_token id)
{
    t->last = st_pages_publish(p, grow(p, t), t->last, &id);
}

static void close_talk(st_pages *p, talk *t)
{
    while (t->count > 0) st_pages_drop(p, t->pages[--t->count]);
}

/* How many tokens of `first`, `first` + 1, … are cached. */
static uint32_t cached_length(const st_pages *p, strata_token first)
{
    st_prefix at = 0;
    uint32_t length = 0;
    for (strata_token id = first; st_pages_find(p, at, &id, &at) != ST_NO_PAGE; id++) length++;
    return length;
}

static uint32_t run_count(const talk *t)
{
    uint32_t runs = t->count > 0;
    for (uint32_t i = 1; i < t->count; i++) runs += t->pages[i] != t->pages[i - 1] + 1;
    return runs;
}

static void one_conversation_ascends(void **state)
{
    (void)state;
    st_pages *p = open_pages(7, 1, true);
    talk t = {0};
    for (uint32_t i = 0; i < 7; i++) assert_int_equal(grow(p, &t), i);
    assert_int_equal(st_pages_take(p, 6), ST_NO_PAGE);
    expect_counts(p, 0, 7, 0);
    close_talk(p, &t);
    expect_counts(p, 7, 0, 0);
    close_pages(p);
}

static void conversations_that_grow_in_turn_have_one_run_each(void **state)
{
    (void)state;
    st_pages *p = open_pages(1024, 1, true);
    talk t[8] = {0};
    for (uint32_t round = 0; round < 64; round++)
        for (uint32_t i = 0; i < 8; i++) grow_full(p, &t[i], (strata_token)(i * 1000 + round));
    for (uint32_t i = 0; i < 8; i++) assert_int_equal(run_count(&t[i]), 1);
    for (uint32_t i = 0; i < 8; i++) close_talk(p, &t[i]);
    close_pages(p);
}

static void runs_ascend_after_churn(void **state)
{
    (void)state;
    st_pages *p = open_pages(2048, 1, true);
    static talk t[8];
    memset(t, 0, sizeof t);
    strata_token id = 0;
    uint32_t pages = 0, runs = 0;
    random_state = 7;
    /* Eight conversations hold up to half of the pool: prompts of 16 to 115 pages, answers of 1 to 20 in turn, until
     * every page was evicted several times. */
    for (uint32_t round = 0; round < 1000; round++) {
        talk *next = &t[random_bits() % 8];
        close_talk(p, next);
        next->last = 0;
        for (uint32_t n = 16 + random_bits() % 100; n > 0; n--) grow_full(p, next, id++);
        pages += next->count;
        runs += run_count(next);
        for (uint32_t n = 1 + random_bits() % 20; n > 0; n--)
            for (uint32_t i = 0; i < 8; i++)
                if (t[i].count > 0 && t[i].count < 120) grow_full(p, &t[i], id++);
        st_pages_counts count = st_pages_count(p);
        assert_int_equal(count.free + count.held + count.cached, 2048);
    }
    assert_true(st_pages_count(p).cached > 0);
    if (pages < 4 * runs) fail_msg("%u pages in %u runs", pages, runs);
    close_pages(p);
}

static void eight_forks_hold_a_prefix_once(void **state)
{
    (void)state;
    st_pages *p = open_pages(64, 1, true);
    talk t[8] = {0};
    for (strata_token id = 0; id < 20; id++) grow_full(p, &t[0], id);
    for (uint32_t i = 1; i < 8; i++) {
        for (strata_token id = 0; id < 20; id++) {
            uint32_t page = st_pages_find(p, t[i].last, &id, &t[i].last);
            assert_int_equal(page, t[0].pages[id]);
            st_pages_hold(p, t[i].pages[t[i].count++] = page);
        }
        grow(p, &t[i]);
    }
    expect_counts(p, 64 - 27, 27, 0);
    assert_int_equal(st_pages_holders(p, t[0].pages[3]), 8);
    for (uint32_t i = 0; i < 7; i++) close_talk(p, &t[i]);
    expect_counts(p, 64 - 21, 21, 0);
    close_talk(p, &t[7]);
    expect_counts(p, 44, 0, 20);
    close_pages(p);
}

static void a_prefix_is_evicted_from_its_end(void **state)
{
    (void)state;
    st_pages *p = open_pages(32, 1, true);
    talk old = {0}, recent = {0}, now = {0};
    for (strata_token id = 0; id < 8; id++) grow_full(p, &old, id);
    for (strata_token id = 0; id < 8; id++) grow_full(p, &recent, 100 + id);
    close_talk(p, &old);
    close_talk(p, &recent);
    for (uint32_t i = 0; i < 16; i++) grow(p, &now);
    expect_counts(p, 0, 16, 16);
    for (uint32_t left = 8; left-- > 0;) {
        grow(p, &now);
        assert_int_equal(cached_length(p, 0), left);
        assert_int_equal(cached_length(p, 100), 8);
    }
    grow(p, &now);
    assert_int_equal(cached_length(p, 100), 7);
    close_pages(p);
}

static void evicted_pages_become_a_run(void **state)
{
    (void)state;
    st_pages *p = open_pages(1024, 1, true);
    static talk old, now;
    old = now = (talk){0};
    for (strata_token id = 0; id < 1024; id++) grow_full(p, &old, id);
    close_talk(p, &old);
    for (strata_token id = 0; id < 64; id++) grow_full(p, &now, 5000 + id);
    assert_int_equal(run_count(&now), 64 / ST_PAGES_BLOCK_MAX);
    assert_int_equal(cached_length(p, 0), 1024 - 64);
    close_pages(p);
}

static void a_window_that_slides_evicts_nothing(void **state)
{
    (void)state;
    st_pages *p = open_pages(8, 1, true);
    talk kept = {0}, window = {0};
    for (strata_token id = 0; id < 4; id++) grow_full(p, &kept, id);
    close_talk(p, &kept);
    for (uint32_t i = 0; i < 4; i++) grow(p, &window);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t slid = window.pages[window.count - 4];
        st_pages_drop(p, slid);
        assert_int_equal(grow(p, &window), slid);
        assert_int_equal(cached_length(p, 0), 4);
    }
    close_pages(p);
}

/* --- prefixes ----------------------------------------------------------------------------------------------------- */

static void a_use_makes_a_page_recent(void **state)
{
    (void)state;
    st_pages *p = open_pages(2, 1, true);
    talk a = {0}, b = {0}, c = {0};
    grow_full(p, &a, 1);
    grow_full(p, &b, 2);
    close_talk(p, &a);
    close_talk(p, &b);
    st_pages_hold(p, 0);
    st_pages_drop(p, 0);
    grow(p, &c);
    assert_int_equal(cached_length(p, 1), 1);
    assert_int_equal(cached_length(p, 2), 0);
    close_pages(p);
}

/* Three pages share two buckets, so that two of them collide whatever the hash. */
static void colliding_prefixes_are_told_apart(void **state)
{
    (void)state;
    for (strata_token base = 0; base < 300; base += 3) {
        st_pages *p = open_pages(3, 1, true);
        st_prefix names[3], found;
        for (strata_token i = 0; i < 3; i++) {
            strata_token id = base + i;
            names[i] = st_pages_publish(p, st_pages_take(p, (uint32_t)i - 1), 0, &id);
        }
        for (strata_token i = 0; i < 3; i++) {
            strata_token id = base + i, other = base + 3;
            assert_int_equal(st_pages_find(p, 0, &id, &found), i);
            assert_true(found == names[i]);
            assert_int_equal(st_pages_find(p, names[i], &id, &found), ST_NO_PAGE);
            assert_int_equal(st_pages_find(p, 0, &other, &found), ST_NO_PAGE);
        }
        for (strata_token i = 0; i < 3; i++) {
            strata_token gone = base + (i + 1) % 3;
            st_pages_unpublish(p, (uint32_t)(gone - base));
            assert_int_equal(st_pages_find(p, 0, &gone, &found), ST_NO_PAGE);
            for (strata_token j = i + 1; j < 3; j++) {
                strata_token kept = base + (j + 1) % 3;
                assert_int_equal(st_pages_find(p, 0, &kept, &found), kept - base);
            }
        }
        close_pages(p);
    }
}

static void all_ids_are_compared(void **state)
{
    (void)state;
    st_pages *p = open_pages(4, 64, true);
    strata_token ids[64] = {0};
    st_prefix name = st_pages_publish(p, st_pages_take(p, ST_NO_PAGE), 0, ids), found = 0;
    for (uint32_t i = 0; i < 64; i++) {
        ids[i] = 1;
        assert_int_equal(st_pages_find(p, 0, ids, &found), ST_NO_PAGE);
        ids[i] = 0;
    }
    assert_int_equal(st_pages_find(p, 0, ids, &found), 0);
    assert_true(found == name);
    close_pages(p);
}

static void a_reused_number_never_stands_for_the_evicted_prefix(void **state)
{
    (void)state;
    st_pages *p = open_pages(2, 1, true);
    const strata_token x = 1, y = 2, z = 3;
    st_prefix parent = st_pages_publish(p, st_pages_take(p, ST_NO_PAGE), 0, &x), found;
    st_prefix child = st_pages_publish(p, st_pages_take(p, 0), parent, &y);
    st_pages_drop(p, 0); /* the parent first, so that it is evicted first */
    st_pages_drop(p, 1);
    assert_int_equal(st_pages_take(p, ST_NO_PAGE), 0);
    assert_false(st_prefixes_live(prefixes, parent));
    assert_true(st_prefixes_live(prefixes, child));
    st_prefix other = st_pages_publish(p, 0, 0, &z);
    assert_true(other != 0 && other != parent && other != child);
    assert_int_equal(st_pages_find(p, other, &y, &found), ST_NO_PAGE);
    assert_int_equal(st_pages_find(p, parent, &y, &found), ST_NO_PAGE);
    assert_int_equal(st_pages_find(p, 0, &x, &found), ST_NO_PAGE);
    assert_true(st_pages_publish(p, 0, parent, &y) == 0);
    /* The same text again has another name, and the old child is not behind it. */
    st_pages_unpublish(p, 0);
    st_prefix again = st_pages_publish(p, 0, 0, &x);
    assert_true(again != parent);
    assert_int_equal(st_pages_find(p, again, &y, &found), ST_NO_PAGE);
    /* The child is evicted like any other page. */
    expect_counts(p, 0, 1, 1);
    assert_int_equal(st_pages_take(p, ST_NO_PAGE), 1);
    assert_false(st_prefixes_live(prefixes, child));
    expect_counts(p, 0, 2, 0);
    close_pages(p);
}

static void a_prefix_is_published_once(void **state)
{
    (void)state;
    st_pages *p = open_pages(8, 1, true);
    talk a = {0}, b = {0};
    for (strata_token id = 0; id < 3; id++) {
        st_prefix parent = a.last;
        grow_full(p, &a, id);
        grow_full(p, &b, id);
        assert_true(a.last != 0 && a.last == b.last);
        assert_true(st_pages_published(p, a.pages[id]));
        assert_false(st_pages_published(p, b.pages[id]));
        assert_true(st_pages_publish(p, a.pages[id], parent, &id) == a.last);
    }
    close_talk(p, &b);
    expect_counts(p, 5, 3, 0);
    close_talk(p, &a);
    expect_counts(p, 5, 0, 3);
    close_pages(p);
}

/* The names of a conversation's unpublished pages belong to pages that it does not hold. Once those are evicted, it
 * publishes its own from the start. */
static void a_conversation_repairs_its_prefix(void **state)
{
    (void)state;
    st_pages *p = open_pages(5, 1, true);
    talk a = {0}, b = {0};
    grow_full(p, &a, 0);
    for (strata_token id = 0; id < 3; id++) grow_full(p, &b, id);
    close_talk(p, &a);
    uint32_t other = st_pages_take(p, ST_NO_PAGE);
    other = st_pages_take(p, other);
    assert_int_equal(other, 0);
    assert_int_equal(cached_length(p, 0), 0);
    b.last = 0;
    for (strata_token id = 0; id < 3; id++) b.last = st_pages_publish(p, b.pages[id], b.last, &id);
    assert_true(b.last != 0);
    assert_int_equal(cached_length(p, 0), 3);
    close_talk(p, &b);
    expect_counts(p, 0, 2, 3);
    close_pages(p);
}

static void a_page_is_unpublished_in_place(void **state)
{
    (void)state;
    st_pages *p = open_pages(2, 1, true);
    talk t = {0};
    grow_full(p, &t, 0);
    grow_full(p, &t, 1);
    st_pages_unpublish(p, t.pages[1]);
    assert_int_equal(cached_length(p, 0), 1);
    assert_false(st_prefixes_live(prefixes, t.last));
    expect_counts(p, 0, 2, 0);
    close_talk(p, &t);
    expect_counts(p, 1, 0, 1);
    st_pages_unpublish(p, 0); /* cached: it becomes free */
    expect_counts(p, 2, 0, 0);
    close_pages(p);
}

static void a_pool_without_prefix_cache(void **state)
{
    (void)state;
    const strata_token id = 1;
    st_prefix found = 77;
    st_pages *p = open_pages(2, 64, false);
    assert_true(st_pages_publish(p, st_pages_take(p, ST_NO_PAGE), 0, &id) == 0);
    assert_int_equal(st_pages_find(p, 0, &id, &found), ST_NO_PAGE);
    assert_true(found == 77);
    st_pages_drop(p, 0);
    expect_counts(p, 2, 0, 0);
    close_pages(p);
    p = open_pages(0, 64, true);
    assert_int_equal(st_pages_take(p, ST_NO_PAGE), ST_NO_PAGE);
    assert_false(st_prefixes_live(prefixes, 5));
    expect_counts(p, 0, 0, 0);
    close_pages(p);
    st_pages_free(NULL);
}

/* --- random operations against the model -------------------------------------------------------------------------- */

enum { MOST = 400, TOKENS = 4, NAMES = 8192 };

typedef struct model_page {
    uint32_t holders;
    st_prefix name, parent;
    strata_token ids[TOKENS];
    uint64_t used;
} model_page;

typedef struct model {
    model_page page[MOST];
    uint32_t total, tokens, block;
    uint64_t clock, block_used[MOST];
    st_prefix names[NAMES];
    uint32_t name_count;
} model;

static bool model_free(const model *m, uint32_t page)
{
    return page < m->total && m->page[page].holders == 0 && m->page[page].name == 0;
}

static st_pages_counts model_count(const model *m)
{
    st_pages_counts count = {.total = m->total};
    for (uint32_t i = 0; i < m->total; i++)
        ++*(m->page[i].holders ? &count.held : m->page[i].name ? &count.cached : &count.free);
    return count;
}

static bool model_live(const model *m, st_prefix name)
{
    bool live = name == 0;
    for (uint32_t i = 0; i < m->total; i++) live |= m->page[i].name == name;
    return live;
}

static uint32_t model_find(const model *m, st_prefix parent, const strata_token *ids)
{
    for (uint32_t i = 0; i < m->total && model_live(m, parent); i++)
        if (m->page[i].name && m->page[i].parent == parent &&
            memcmp(m->page[i].ids, ids, m->tokens * sizeof *ids) == 0)
            return i;
    return ST_NO_PAGE;
}

static bool model_evictable(const model *m, uint32_t first)
{
    bool cached = false;
    for (uint32_t i = first; i < first + m->block && i < m->total; i++) {
        if (m->page[i].holders > 0) return false;
        cached |= m->page[i].name != 0;
    }
    return cached;
}

static void model_evict(model *m)
{
    uint32_t oldest = ST_NO_PAGE, count = m->block;
    for (uint32_t i = 0; i < m->total; i += m->block)
        if (model_evictable(m, i) &&
            (oldest == ST_NO_PAGE || m->block_used[i / m->block] < m->block_used[oldest / m->block]))
            oldest = i;
    if (oldest == ST_NO_PAGE) {
        count = 1;
        for (uint32_t i = 0; i < m->total; i++)
            if (m->page[i].holders == 0 && m->page[i].name &&
                (oldest == ST_NO_PAGE || m->page[i].used < m->page[oldest].used))
                oldest = i;
    }
    for (uint32_t i = oldest; oldest != ST_NO_PAGE && i < oldest + count && i < m->total; i++) m->page[i].name = 0;
}

static uint32_t model_take(model *m, uint32_t after)
{
    if (model_count(m).free == 0) model_evict(m);
    uint32_t best = ST_NO_PAGE, longest = 0;
    for (uint32_t i = 0, length = 0; i < m->total; i++) {
        length = model_free(m, i) ? length + 1 : 0;
        if (length > longest) {
            longest = length;
            best = i + 1 - length;
        }
    }
    if (best != ST_NO_PAGE && best > 0 && longest > m->block && m->page[best - 1].holders > 0)
        best += longest / 2;
    if (after != ST_NO_PAGE && model_free(m, after + 1)) best = after + 1;
    if (best != ST_NO_PAGE) m->page[best].holders = 1;
    return best;
}

static st_prefix random_parent(const model *m)
{
    if (m->name_count == 0 || random_bits() % 4 == 0) return 0;
    uint32_t recent = m->name_count < 40 ? m->name_count : 40;
    return m->names[m->name_count - 1 - random_bits() % recent];
}

#define EXPECT(condition)                                                                                            \
    do {                                                                                                             \
        if (!(condition)) fail_msg("seed %u, operation %u: %s", seed, operation, #condition);                        \
    } while (0)

static void publish_both(model *m, st_pages *p, uint32_t page, uint32_t seed, uint32_t operation)
{
    strata_token ids[TOKENS];
    for (uint32_t i = 0; i < m->tokens; i++) ids[i] = (strata_token)(random_bits() % (m->tokens < 3 ? 3 : 2));
    st_prefix parent = random_parent(m), found = 0;
    uint32_t expected = model_find(m, parent, ids);
    EXPECT(st_pages_find(p, parent, ids, &found) == expected);
    EXPECT(found == (expected == ST_NO_PAGE ? 0 : m->page[expected].name));
    if (m->page[page].holders == 0 || m->name_count == NAMES) return;
    bool live = model_live(m, parent);
    st_prefix name = st_pages_publish(p, page, parent, ids);
    if (expected != ST_NO_PAGE || !live) {
        EXPECT(name == found);
        return;
    }
    EXPECT(name != 0);
    for (uint32_t i = 0; i < m->name_count; i++) EXPECT(m->names[i] != name);
    m->names[m->name_count++] = m->page[page].name = name;
    m->page[page].parent = parent;
    memcpy(m->page[page].ids, ids, sizeof ids);
}

static void do_both(model *m, st_pages *p, uint32_t seed, uint32_t operation)
{
    uint32_t page = random_bits() % m->total;
    model_page *it = &m->page[page];
    switch (random_bits() % 8) {
    case 0:
    case 1: {
        uint32_t after = random_bits() % 3 ? page : ST_NO_PAGE;
        EXPECT(st_pages_take(p, after) == model_take(m, after));
        break;
    }
    case 2:
        if (model_free(m, page)) break;
        st_pages_hold(p, page);
        it->holders++;
        break;
    case 3:
    case 4:
    case 5:
        if (it->holders == 0) break;
        st_pages_drop(p, page);
        if (--it->holders > 0) break;
        it->used = m->block_used[page / m->block] = ++m->clock;
        break;
    case 6:
        if (random_bits() % 8) break;
        st_pages_unpublish(p, page);
        it->name = 0;
        break;
    default: publish_both(m, p, page, seed, operation);
    }
}

static void compare(const model *m, const st_pages *p, uint32_t seed, uint32_t operation)
{
    st_pages_counts is = st_pages_count(p), should = model_count(m);
    EXPECT(memcmp(&is, &should, sizeof is) == 0);
    for (uint32_t i = 0; i < m->total; i++) {
        EXPECT(st_pages_holders(p, i) == m->page[i].holders);
        EXPECT(st_pages_published(p, i) == (m->page[i].name != 0));
        EXPECT(st_prefixes_live(prefixes, m->page[i].name));
    }
    for (uint32_t i = 0; i < 8 && m->name_count > 0; i++) {
        st_prefix name = m->names[random_bits() % m->name_count];
        EXPECT(st_prefixes_live(prefixes, name) == model_live(m, name));
    }
}

static void random_operations(void **state)
{
    (void)state;
    static model m;
    uint32_t seeds = kit_is_slow() ? 20 : 100, names = 0;
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        random_state = seed;
        m = (model){.total = 1 + random_bits() % (seed % 2 ? 12 : MOST), .tokens = 1u << random_bits() % 3};
        m.block = m.total < 128 ? 1 : m.total < 256 ? 2 : 4;
        st_pages *p = open_pages(m.total, m.tokens, true);
        for (uint32_t operation = 0; operation < 4000; operation++) {
            do_both(&m, p, seed, operation);
            if (operation % 8 == 0) compare(&m, p, seed, operation);
        }
        names += m.name_count;
        close_pages(p);
    }
    print_message("seeds 1 to %u: %u prefixes published\n", seeds, names);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void each_failed_allocation_leaves_nothing(void **state)
{
    (void)state;
    st_pages *p = NULL;
    uint64_t failures = 0;
    for (uint64_t nth = 1; !p; nth++) {
        strata_error error = {0};
        st_prefixes_free(prefixes);
        prefixes = NULL;
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = st_prefixes_new(100, 4, &prefixes, &error);
        if (status == STRATA_OK) status = st_pages_new(100, 4, prefixes, &p, &error);
        assert_true(status == (p ? STRATA_OK : STRATA_MEMORY) && error.status == status);
        failures += !p;
    }
    assert_int_equal(failures, 10);
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    const strata_token ids[4] = {1, 2, 3, 4};
    st_prefix name = 0;
    for (uint32_t i = 0; i < 250; i++) {
        uint32_t page = st_pages_take(p, ST_NO_PAGE);
        name = st_pages_publish(p, page, name, ids);
        assert_true(name != 0);
        st_pages_drop(p, page);
        if (i % 90 == 0) name = 0;
    }
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    close_pages(p);
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    st_pages *p = NULL;
    strata_error error;
    assert_int_equal(st_pages_new(ST_PAGES_MAX + 1u, 1, NULL, &p, &error), STRATA_LIMIT);
    assert_int_equal(st_pages_new(1, 0, NULL, &p, &error), STRATA_LIMIT);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_conversation_ascends),
        cmocka_unit_test(conversations_that_grow_in_turn_have_one_run_each),
        cmocka_unit_test(runs_ascend_after_churn),
        cmocka_unit_test(eight_forks_hold_a_prefix_once),
        cmocka_unit_test(a_prefix_is_evicted_from_its_end),
        cmocka_unit_test(evicted_pages_become_a_run),
        cmocka_unit_test(a_window_that_slides_evicts_nothing),
        cmocka_unit_test(a_use_makes_a_page_recent),
        cmocka_unit_test(colliding_prefixes_are_told_apart),
        cmocka_unit_test(all_ids_are_compared),
        cmocka_unit_test(a_reused_number_never_stands_for_the_evicted_prefix),
        cmocka_unit_test(a_prefix_is_published_once),
        cmocka_unit_test(a_conversation_repairs_its_prefix),
        cmocka_unit_test(a_page_is_unpublished_in_place),
        cmocka_unit_test(a_pool_without_prefix_cache),
        cmocka_unit_test(random_operations),
        cmocka_unit_test(each_failed_allocation_leaves_nothing),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
