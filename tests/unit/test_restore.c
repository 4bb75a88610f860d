/* src/kv/restore.c: named cases, and random operations against a model with a map of every byte. */
#include "support/kit.h"

#include <string.h>

#include "base/fault.h"
#include "kv/restore.h"
#include "support/random.h"

enum { NAMES = 32 };

typedef struct rig {
    st_prefixes *prefixes;
    st_pages *pages;
    st_restore *restore;
    st_prefix name[NAMES]; /* of live prefixes; name[i] belongs to page i */
} rig;

static rig open_rig(size_t budget, uint32_t points)
{
    rig r = {0};
    strata_error error;
    if (st_prefixes_new(NAMES, 1, &r.prefixes, &error) != STRATA_OK) fail_msg("%s", error.message);
    if (st_pages_new(NAMES, 1, r.prefixes, &r.pages, &error) != STRATA_OK) fail_msg("%s", error.message);
    for (strata_token i = 0; i < NAMES; i++)
        r.name[i] = st_pages_publish(r.pages, st_pages_take(r.pages, (uint32_t)i - 1), 0, &i);
    if (st_restore_new(budget, points, r.prefixes, &r.restore, &error) != STRATA_OK) fail_msg("%s", error.message);
    return r;
}

static void close_rig(rig *r)
{
    st_restore_free(r->restore);
    st_pages_free(r->pages);
    st_prefixes_free(r->prefixes);
}

static uint32_t take(rig *r, uint32_t name, size_t bytes, st_restore_kind kind)
{
    uint32_t point = st_restore_take(r->restore, r->name[name], bytes, kind, 0);
    if (point != ST_NO_POINT) st_restore_done(r->restore, point);
    return point;
}

static bool has(const rig *r, uint32_t name)
{
    return st_restore_find(r->restore, r->name[name]) != ST_NO_POINT;
}

/* The points that exist are those of the names in `expected`, "0" to "9". */
static void expect_points(const rig *r, const char *expected)
{
    for (uint32_t i = 0; i < 10; i++)
        if (has(r, i) != (strchr(expected, '0' + (int)i) != NULL)) fail_msg("point %u; expected %s", i, expected);
    assert_int_equal(st_restore_count(r->restore), strlen(expected));
}

/* --- named cases -------------------------------------------------------------------------------------------------- */

static void a_point_is_found_once_it_is_done(void **state)
{
    (void)state;
    rig r = open_rig(100, 4);
    uint32_t point = st_restore_take(r.restore, r.name[0], 40, ST_RESTORE_MARK, 0);
    assert_int_not_equal(point, ST_NO_POINT);
    assert_false(has(&r, 0));
    assert_int_equal(take(&r, 0, 40, ST_RESTORE_MARK), ST_NO_POINT); /* it exists */
    st_restore_done(r.restore, point);
    assert_int_equal(st_restore_find(r.restore, r.name[0]), point);
    assert_int_equal(st_restore_find(r.restore, r.name[1]), ST_NO_POINT);
    assert_int_equal(st_restore_find(r.restore, 0), ST_NO_POINT);
    assert_int_equal(st_restore_used_bytes(r.restore), 40);
    close_rig(&r);
}

static void a_discarded_point_leaves_its_bytes(void **state)
{
    (void)state;
    rig r = open_rig(100, 4);
    st_restore_discard(r.restore, st_restore_take(r.restore, r.name[0], 100, ST_RESTORE_MARK, 0));
    expect_points(&r, "");
    assert_int_equal(st_restore_used_bytes(r.restore), 0);
    assert_int_equal(st_restore_offset(r.restore, take(&r, 0, 100, ST_RESTORE_MARK)), 0);
    close_rig(&r);
}

static void no_budget_no_point(void **state)
{
    (void)state;
    rig r = open_rig(0, 4);
    assert_int_equal(take(&r, 0, 0, ST_RESTORE_MARK), ST_NO_POINT);
    assert_int_equal(take(&r, 0, 1, ST_RESTORE_MARK), ST_NO_POINT);
    close_rig(&r);
    r = open_rig(100, 0);
    assert_int_equal(take(&r, 0, 1, ST_RESTORE_MARK), ST_NO_POINT);
    close_rig(&r);
    r = open_rig(100, 4);
    take(&r, 0, 60, ST_RESTORE_PASSING);
    assert_int_equal(take(&r, 1, 101, ST_RESTORE_MARK), ST_NO_POINT);
    assert_int_equal(take(&r, 1, SIZE_MAX, ST_RESTORE_MARK), ST_NO_POINT);
    assert_int_equal(st_restore_take(r.restore, 0, 10, ST_RESTORE_MARK, 0), ST_NO_POINT); /* the empty prefix */
    expect_points(&r, "0");
    close_rig(&r);
    st_restore_free(NULL);
}

static void eviction_takes_superseded_then_passing_then_old(void **state)
{
    (void)state;
    rig r = open_rig(60, 10);
    take(&r, 0, 10, ST_RESTORE_MARK);
    take(&r, 1, 10, ST_RESTORE_PASSING);
    take(&r, 2, 10, ST_RESTORE_MARK);
    take(&r, 3, 10, ST_RESTORE_PASSING);
    take(&r, 4, 10, ST_RESTORE_PASSING);
    uint32_t newer = st_restore_take(r.restore, r.name[5], 10, ST_RESTORE_MARK, r.name[4]);
    st_restore_done(r.restore, newer);
    expect_points(&r, "012345");
    take(&r, 6, 10, ST_RESTORE_MARK);
    expect_points(&r, "012356"); /* 4 was superseded */
    take(&r, 7, 10, ST_RESTORE_MARK);
    expect_points(&r, "023567");
    take(&r, 8, 10, ST_RESTORE_MARK);
    expect_points(&r, "025678");
    st_restore_use(r.restore, st_restore_find(r.restore, r.name[0]));
    st_restore_unuse(r.restore, st_restore_find(r.restore, r.name[0]));
    take(&r, 9, 10, ST_RESTORE_MARK);
    expect_points(&r, "056789");
    close_rig(&r);
}

static void a_newer_point_replaces_the_one_that_it_supersedes(void **state)
{
    (void)state;
    rig r = open_rig(30, 3);
    for (uint32_t i = 0; i < 3; i++) take(&r, i, 10, ST_RESTORE_PASSING);
    uint32_t point = st_restore_take(r.restore, r.name[3], 10, ST_RESTORE_PASSING, r.name[1]);
    assert_int_equal(st_restore_offset(r.restore, point), 10);
    st_restore_done(r.restore, point);
    expect_points(&r, "023");
    /* A superseded point that is used again is worth as much as others. */
    assert_int_equal(st_restore_take(r.restore, r.name[3], 10, ST_RESTORE_MARK, r.name[2]), ST_NO_POINT);
    st_restore_use(r.restore, st_restore_find(r.restore, r.name[2]));
    st_restore_unuse(r.restore, st_restore_find(r.restore, r.name[2]));
    take(&r, 4, 10, ST_RESTORE_PASSING);
    expect_points(&r, "234");
    /* Taking the existing point 3 again made it a mark. */
    take(&r, 5, 10, ST_RESTORE_PASSING);
    take(&r, 6, 10, ST_RESTORE_PASSING);
    expect_points(&r, "356");
    close_rig(&r);
}

/* A point that another conversation has marked since is a place where conversations branch. */
static void a_mark_is_not_superseded(void **state)
{
    (void)state;
    rig r = open_rig(30, 8);
    assert_true(take(&r, 0, 10, ST_RESTORE_PASSING) != ST_NO_POINT);
    assert_true(take(&r, 1, 10, ST_RESTORE_PASSING) != ST_NO_POINT);
    assert_int_equal(take(&r, 0, 10, ST_RESTORE_MARK), ST_NO_POINT); /* it exists: now a mark */
    uint32_t point = st_restore_take(r.restore, r.name[2], 10, ST_RESTORE_PASSING, r.name[0]);
    st_restore_done(r.restore, point);
    assert_true(take(&r, 3, 10, ST_RESTORE_PASSING) != ST_NO_POINT);
    expect_points(&r, "023");
    close_rig(&r);
}

static void a_failed_take_supersedes_nothing(void **state)
{
    (void)state;
    rig r = open_rig(30, 3);
    take(&r, 0, 10, ST_RESTORE_PASSING);
    uint32_t used = take(&r, 1, 10, ST_RESTORE_PASSING);
    take(&r, 2, 10, ST_RESTORE_MARK);
    st_restore_use(r.restore, used);
    assert_int_equal(st_restore_take(r.restore, r.name[3], 20, ST_RESTORE_MARK, r.name[2]), ST_NO_POINT);
    expect_points(&r, "012"); /* nothing is evicted in vain */
    take(&r, 3, 10, ST_RESTORE_MARK);
    expect_points(&r, "123");
    close_rig(&r);
}

static void points_of_evicted_prefixes_go_first(void **state)
{
    (void)state;
    rig r = open_rig(30, 3);
    take(&r, 0, 10, ST_RESTORE_PASSING);
    take(&r, 1, 10, ST_RESTORE_MARK);
    take(&r, 2, 10, ST_RESTORE_MARK);
    st_pages_unpublish(r.pages, 1);
    take(&r, 3, 10, ST_RESTORE_MARK);
    expect_points(&r, "023");
    close_rig(&r);
}

static void a_point_in_use_survives(void **state)
{
    (void)state;
    rig r = open_rig(20, 4);
    uint32_t used = take(&r, 0, 10, ST_RESTORE_PASSING);
    st_restore_use(r.restore, used);
    st_restore_use(r.restore, used);
    uint32_t copying = st_restore_take(r.restore, r.name[1], 10, ST_RESTORE_PASSING, r.name[0]);
    assert_int_equal(take(&r, 2, 10, ST_RESTORE_MARK), ST_NO_POINT);
    st_restore_unuse(r.restore, used);
    assert_int_equal(take(&r, 2, 10, ST_RESTORE_MARK), ST_NO_POINT);
    assert_true(has(&r, 0));
    st_restore_done(r.restore, copying);
    take(&r, 2, 10, ST_RESTORE_MARK);
    expect_points(&r, "02"); /* 1 was done and not in use */
    st_restore_unuse(r.restore, used);
    take(&r, 3, 10, ST_RESTORE_MARK);
    expect_points(&r, "23");
    close_rig(&r);
}

static void only_points_in_the_way_are_evicted(void **state)
{
    (void)state;
    rig r = open_rig(60, 10);
    for (uint32_t i = 0; i < 6; i++) take(&r, i, 10, ST_RESTORE_MARK);
    uint32_t two = st_restore_find(r.restore, r.name[2]);
    st_restore_use(r.restore, two);
    st_restore_unuse(r.restore, two);
    /* In the order of use: 0 1 3 4 5 2. Points 0 and 1 leave 20 bytes side by side; then 3, 4 and 5 leave 30. */
    uint32_t point = take(&r, 6, 30, ST_RESTORE_MARK);
    assert_int_equal(st_restore_offset(r.restore, point), 30);
    expect_points(&r, "0126");
    close_rig(&r);
}

static void the_number_of_points_is_limited(void **state)
{
    (void)state;
    rig r = open_rig(1000, 2);
    take(&r, 0, 10, ST_RESTORE_MARK);
    take(&r, 1, 10, ST_RESTORE_MARK);
    assert_int_equal(st_restore_offset(r.restore, take(&r, 2, 10, ST_RESTORE_MARK)), 0);
    expect_points(&r, "12");
    close_rig(&r);
}

/* --- random operations against the model -------------------------------------------------------------------------- */

enum { BYTES = 200, POINTS = 12 };

typedef struct model_point {
    bool exists, done, superseded;
    st_restore_kind kind;
    uint32_t users, number;
    size_t offset, bytes;
    uint64_t used;
} model_point;

/* Points by the name of their prefix. */
typedef struct model {
    model_point point[NAMES];
    bool dead[NAMES];
    size_t budget;
    uint32_t most;
    uint64_t clock;
} model;

static uint32_t model_count(const model *m, size_t *bytes)
{
    uint32_t count = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < NAMES; i++) {
        count += m->point[i].exists;
        *bytes += m->point[i].exists ? m->point[i].bytes : 0;
    }
    return count;
}

/* The first free range if the points in `without` did not exist; SIZE_MAX: none. */
static size_t model_fit(const model *m, const bool *without, size_t bytes)
{
    bool used[BYTES] = {0};
    for (uint32_t i = 0; i < NAMES; i++)
        if (m->point[i].exists && !without[i]) memset(used + m->point[i].offset, 1, m->point[i].bytes);
    for (size_t at = 0, length = 0; at < m->budget; at++) {
        length = used[at] ? 0 : length + 1;
        if (length == bytes) return at + 1 - bytes;
    }
    return SIZE_MAX;
}

static int model_rank(const model *m, uint32_t name)
{
    const model_point *p = &m->point[name];
    if (m->dead[name]) return 0;
    return p->kind == ST_RESTORE_MARK ? 2 : p->superseded ? 0 : 1;
}

static uint32_t model_victim(const model *m, const bool *without)
{
    uint32_t best = NAMES;
    for (uint32_t i = 0; i < NAMES; i++) {
        const model_point *p = &m->point[i];
        if (!p->exists || !p->done || p->users > 0 || without[i]) continue;
        if (best == NAMES || model_rank(m, i) < model_rank(m, best) ||
            (model_rank(m, i) == model_rank(m, best) && p->used < m->point[best].used))
            best = i;
    }
    return best;
}

static size_t model_room(model *m, size_t bytes)
{
    bool without[NAMES] = {0};
    size_t used;
    size_t at = model_fit(m, without, bytes);
    if (at != SIZE_MAX) {
        if (model_count(m, &used) < m->most) return at;
        uint32_t victim = model_victim(m, without);
        if (victim == NAMES) return SIZE_MAX;
        m->point[victim].exists = false;
        return model_fit(m, without, bytes);
    }
    while (at == SIZE_MAX) {
        uint32_t victim = model_victim(m, without);
        if (victim == NAMES) return SIZE_MAX;
        without[victim] = true;
        at = model_fit(m, without, bytes);
    }
    for (uint32_t i = 0; i < NAMES; i++)
        if (without[i] && m->point[i].offset < at + bytes && m->point[i].offset + m->point[i].bytes > at)
            m->point[i].exists = false;
    return at;
}

static bool model_take(model *m, uint32_t name, size_t bytes, st_restore_kind kind, uint32_t older)
{
    if (bytes == 0 || bytes > m->budget) return false;
    bool supersedes = older < NAMES && older != name && m->point[older].exists;
    bool was = supersedes && m->point[older].superseded;
    if (supersedes) m->point[older].superseded = true;
    if (m->point[name].exists) {
        if (kind == ST_RESTORE_MARK) m->point[name].kind = kind;
        return false;
    }
    size_t at = model_room(m, bytes);
    if (at == SIZE_MAX) {
        if (supersedes) m->point[older].superseded = was;
        return false;
    }
    m->point[name] = (model_point){.exists = true, .kind = kind, .offset = at, .bytes = bytes, .used = ++m->clock};
    return true;
}

#define EXPECT(condition)                                                                                            \
    do {                                                                                                             \
        if (!(condition)) fail_msg("seed %u, operation %u: %s", seed, operation, #condition);                        \
    } while (0)

static void do_both(model *m, rig *r, uint32_t seed, uint32_t operation)
{
    uint32_t name = random_bits() % NAMES;
    model_point *p = &m->point[name];
    switch (random_bits() % 6) {
    case 0:
    case 1: {
        uint32_t older = random_bits() % 2 ? random_bits() % NAMES : NAMES;
        size_t bytes = random_bits() % 3 ? 16 : random_bits() % 50;
        st_restore_kind kind = random_bits() % 2 ? ST_RESTORE_MARK : ST_RESTORE_PASSING;
        uint32_t number = st_restore_take(r->restore, r->name[name], bytes, kind, older < NAMES ? r->name[older] : 0);
        bool taken = model_take(m, name, bytes, kind, older);
        EXPECT((number != ST_NO_POINT) == taken);
        if (!taken) break;
        p->number = number;
        EXPECT(st_restore_offset(r->restore, number) == p->offset);
        break;
    }
    case 2:
        if (!p->exists || p->done) break;
        p->exists = random_bits() % 8 > 0;
        if (p->exists) st_restore_done(r->restore, p->number);
        else st_restore_discard(r->restore, p->number);
        p->done = true;
        break;
    case 3:
        if (!p->exists || !p->done || p->users == 2) break;
        st_restore_use(r->restore, p->number);
        p->users++;
        p->superseded = false;
        p->used = ++m->clock;
        break;
    case 4:
        if (!p->exists || p->users == 0) break;
        st_restore_unuse(r->restore, p->number);
        p->users--;
        break;
    default:
        if (random_bits() % 64) break;
        st_pages_unpublish(r->pages, name);
        m->dead[name] = true;
    }
}

static void compare(const model *m, const rig *r, uint32_t seed, uint32_t operation)
{
    size_t bytes;
    EXPECT(st_restore_count(r->restore) == model_count(m, &bytes));
    EXPECT(st_restore_count(r->restore) <= m->most);
    EXPECT(st_restore_used_bytes(r->restore) == bytes);
    EXPECT(bytes <= m->budget);
    for (uint32_t i = 0; i < NAMES; i++) {
        const model_point *p = &m->point[i];
        EXPECT(st_restore_find(r->restore, r->name[i]) == (p->exists && p->done ? p->number : ST_NO_POINT));
        if (!p->exists) continue;
        EXPECT(st_restore_offset(r->restore, p->number) == p->offset && p->offset + p->bytes <= m->budget);
    }
}

static void random_operations(void **state)
{
    (void)state;
    uint32_t seeds = kit_is_slow() ? 20 : 100;
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        random_state = seed;
        model m = {.budget = random_bits() % BYTES, .most = 1 + random_bits() % POINTS};
        rig r = open_rig(m.budget, m.most);
        for (uint32_t operation = 0; operation < 3000; operation++) {
            do_both(&m, &r, seed, operation);
            compare(&m, &r, seed, operation);
        }
        close_rig(&r);
    }
    print_message("seeds 1 to %u\n", seeds);
}

static void each_failed_allocation_leaves_nothing(void **state)
{
    (void)state;
    rig r = open_rig(1, 1);
    st_restore_free(r.restore);
    r.restore = NULL;
    uint64_t failures = 0;
    for (uint64_t nth = 1; !r.restore; nth++) {
        strata_error error = {0};
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = st_restore_new(100, 8, r.prefixes, &r.restore, &error);
        assert_true(status == (r.restore ? STRATA_OK : STRATA_MEMORY) && error.status == status);
        failures += !r.restore;
    }
    assert_int_equal(failures, 4);
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    for (uint32_t i = 0; i < 100; i++) take(&r, i % NAMES, 1 + i % 40, i % 3 ? ST_RESTORE_MARK : ST_RESTORE_PASSING);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_point_is_found_once_it_is_done),
        cmocka_unit_test(a_discarded_point_leaves_its_bytes),
        cmocka_unit_test(no_budget_no_point),
        cmocka_unit_test(eviction_takes_superseded_then_passing_then_old),
        cmocka_unit_test(a_newer_point_replaces_the_one_that_it_supersedes),
        cmocka_unit_test(a_mark_is_not_superseded), cmocka_unit_test(a_failed_take_supersedes_nothing),
        cmocka_unit_test(points_of_evicted_prefixes_go_first),
        cmocka_unit_test(a_point_in_use_survives),
        cmocka_unit_test(only_points_in_the_way_are_evicted),
        cmocka_unit_test(the_number_of_points_is_limited),
        cmocka_unit_test(random_operations),
        cmocka_unit_test(each_failed_allocation_leaves_nothing),
    };
    return cmocka_run_group_tests_name("restore", tests, NULL, NULL);
}
