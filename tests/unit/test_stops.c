/* src/kv/stops.c: named cases, and random prompts against a search of every position. */
#include "support/kit.h"

#include "kv/stops.h"
#include "support/random.h"

static void expect_next(const st_stops *s, uint32_t position, uint32_t expected, st_restore_kind expected_kind)
{
    st_restore_kind kind = (st_restore_kind)77;
    assert_int_equal(st_stops_next(s, position, &kind), expected);
    assert_int_equal(kind, expected == ST_NO_STOP ? (st_restore_kind)77 : expected_kind);
}

static void a_prompt_with_marks(void **state)
{
    (void)state;
    const uint32_t marks[] = {10, 200, 210, 1000, 5000};
    st_stops s = {.marks = marks, .mark_count = 5, .diverged = 700, .end = 1100, .page_tokens = 64};
    expect_next(&s, 0, 192, ST_RESTORE_MARK); /* 10 is within the first page */
    expect_next(&s, 192, 640, ST_RESTORE_MARK);
    expect_next(&s, 640, 960, ST_RESTORE_MARK);
    expect_next(&s, 960, 1088, ST_RESTORE_PASSING);
    expect_next(&s, 1088, ST_NO_STOP, ST_RESTORE_PASSING);
    expect_next(&s, 1100, ST_NO_STOP, ST_RESTORE_PASSING);
}

static void a_long_prompt(void **state)
{
    (void)state;
    st_stops s = {.diverged = ST_NO_STOP, .end = 20000, .page_tokens = 64};
    expect_next(&s, 0, 8192, ST_RESTORE_PASSING);
    expect_next(&s, 8191, 8192, ST_RESTORE_PASSING);
    expect_next(&s, 8192, 16384, ST_RESTORE_PASSING);
    expect_next(&s, 16384, 19968, ST_RESTORE_PASSING);
    expect_next(&s, 19968, ST_NO_STOP, ST_RESTORE_PASSING);
    s.page_tokens = 16384; /* longer than the distance of points */
    expect_next(&s, 0, 16384, ST_RESTORE_PASSING);
    expect_next(&s, 16384, ST_NO_STOP, ST_RESTORE_PASSING);
}

static void the_end_of_the_prompt(void **state)
{
    (void)state;
    const uint32_t marks[] = {128};
    st_stops s = {.diverged = ST_NO_STOP, .end = 128, .page_tokens = 64};
    expect_next(&s, 0, 64, ST_RESTORE_PASSING);
    expect_next(&s, 64, ST_NO_STOP, ST_RESTORE_PASSING);
    s.marks = marks;
    s.mark_count = 1;
    expect_next(&s, 64, 128, ST_RESTORE_MARK); /* a mark at the end itself counts */
    s = (st_stops){.diverged = ST_NO_STOP, .end = ST_STOPS_EVERY, .page_tokens = 64};
    expect_next(&s, 0, ST_STOPS_EVERY - 64, ST_RESTORE_PASSING);
    s.end = 0;
    expect_next(&s, 0, ST_NO_STOP, ST_RESTORE_PASSING);
    s = (st_stops){.diverged = ST_NO_STOP, .end = UINT32_MAX - 1, .page_tokens = 1};
    expect_next(&s, UINT32_MAX - 8000, UINT32_MAX - 2, ST_RESTORE_PASSING);
}

/* Whether a point is taken at `at`, by the rules one by one. */
static bool is_stop(const st_stops *s, uint32_t at, st_restore_kind *kind)
{
    uint32_t page = s->page_tokens;
    if (at % page != 0 || at > s->end) return false;
    *kind = ST_RESTORE_MARK;
    for (uint32_t i = 0; i < s->mark_count; i++)
        if (s->marks[i] <= s->end && s->marks[i] / page == at / page) return true;
    if (s->diverged <= s->end && s->diverged / page == at / page) return true;
    *kind = ST_RESTORE_PASSING;
    return at < s->end && (at + page >= s->end || at % ST_STOPS_EVERY == 0);
}

static void random_prompts(void **state)
{
    (void)state;
    enum { SEED = 3 };
    random_state = SEED;
    for (uint32_t trial = 0; trial < 3000; trial++) {
        uint32_t marks[6], count = random_bits() % 7, most = trial % 20 ? 300 : 30000;
        st_stops s = {.marks = marks, .mark_count = count, .page_tokens = 1u << random_bits() % 10,
                      .end = random_bits() % most, .diverged = random_bits() % 2 ? random_bits() % most : ST_NO_STOP};
        for (uint32_t i = 0, at = 0; i < count; i++) marks[i] = at += random_bits() % (most / 4);
        uint32_t position = random_bits() % most, expected = ST_NO_STOP;
        st_restore_kind kind = ST_RESTORE_PASSING, found_kind = ST_RESTORE_PASSING;
        for (uint32_t at = position + 1; at <= s.end && expected == ST_NO_STOP; at++)
            if (is_stop(&s, at, &kind)) expected = at;
        uint32_t found = st_stops_next(&s, position, &found_kind);
        if (found != expected || (found != ST_NO_STOP && found_kind != kind))
            fail_msg("seed %d, trial %u: expected %u (%d), found %u (%d)", SEED, trial, expected, kind, found,
                     found_kind);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_with_marks),
        cmocka_unit_test(a_long_prompt),
        cmocka_unit_test(the_end_of_the_prompt),
        cmocka_unit_test(random_prompts),
    };
    return cmocka_run_group_tests_name("stops", tests, NULL, NULL);
}
