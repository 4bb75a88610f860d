/* src/moe/echo.c and st_cache_hint: what an earlier layer says of a later one, and what a cache makes of it. */
#include "support/kit.h"

#include <string.h>

#include "base/fault.h"
#include "moe/cache.h"
#include "moe/echo.h"

enum { LAYERS = 4, EXPERTS = 32, USED = 2, LEAD = 2 };

static st_echo *new_echo(void)
{
    static const uint32_t experts[LAYERS] = {EXPERTS, EXPERTS, EXPERTS, EXPERTS};
    st_echo *echo = NULL;
    assert_int_equal(st_echo_new(LAYERS, experts, USED, LEAD, &echo, NULL), STRATA_OK);
    return echo;
}

/* A token whose layer 0 chose `a` and `a` + 1, layer 2 their tenfold. */
static void see_token(st_echo *echo, uint32_t a, bool to_the_end)
{
    const uint32_t low[] = {a, a + 1}, high[] = {a + 10, a + 11};
    st_echo_see(echo, 0, USED, low);
    st_echo_see(echo, 1, USED, low);
    if (to_the_end) st_echo_see(echo, 2, USED, high);
}

static void choices_are_remembered(void **state)
{
    (void)state;
    st_echo *echo = new_echo();
    st_echo_guess guesses[4];
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    see_token(echo, 0, false);
    assert_int_equal(st_echo_guess_of(echo, 2, 4, guesses), 0); /* nothing is known yet */
    for (int i = 0; i < 20; i++) {
        see_token(echo, 0, true);
        see_token(echo, 4, true);
    }
    see_token(echo, 4, false);
    assert_int_equal(st_echo_guess_of(echo, 2, 4, guesses), 4);
    assert_true((guesses[0].expert == 14 && guesses[1].expert == 15) || (guesses[0].expert == 15 && guesses[1].expert == 14));
    assert_true(guesses[1].likely > 0.9f && guesses[0].likely <= 1.0f && guesses[2].likely < 0.1f);
    see_token(echo, 0, false);
    st_echo_guess_of(echo, 2, 1, guesses);
    assert_true(guesses[0].expert == 10 || guesses[0].expert == 11);
    /* Layers without one below that speaks for them, and layers that are not there. */
    assert_int_equal(st_echo_guess_of(echo, 1, 4, guesses), 0);
    assert_int_equal(st_echo_guess_of(echo, 3, 4, guesses), 0);
    assert_int_equal(st_echo_guess_of(echo, 9, 4, guesses), 0);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_echo_free(echo);
}

/* After a long time of one habit another is learned: counts are halved, and none overflows. */
static void habits_change(void **state)
{
    (void)state;
    st_echo *echo = new_echo();
    st_echo_guess guess;
    for (int i = 0; i < 100000; i++) see_token(echo, 0, true);
    const uint32_t low[] = {0, 1}, other[] = {20, 21};
    for (int i = 0; i < 9000; i++) {
        st_echo_see(echo, 0, USED, low);
        st_echo_see(echo, 2, USED, other);
    }
    st_echo_see(echo, 0, USED, low);
    assert_int_equal(st_echo_guess_of(echo, 2, 1, &guess), 1);
    assert_true(guess.expert == 20 || guess.expert == 21);
    assert_true(guess.likely > 0.5f && guess.likely <= 1.0f);
    st_echo_free(echo);
}

static void hints(void **state)
{
    (void)state;
    const uint32_t experts = EXPERTS, slots = 3;
    for (size_t p = 0; p < st_cache_policy_count(); p++) {
        st_cache_options options = {.layers = 1, .experts = &experts, .slots = &slots, .used = USED,
                                    .policy = st_cache_policy_name(p), .budget = -1.0};
        st_cache *cache = NULL;
        st_cache_answer answer;
        assert_int_equal(st_cache_new(&options, &cache, NULL), STRATA_OK);
        for (uint32_t i = 0; i < 3; i++) assert_true(st_cache_place(cache, 0, i) >= 0);
        const uint32_t likely[] = {0, 7, 8, 9};
        const float sure[] = {0.99f, 0.9f, 0.8f, 0.7f}, unsure[] = {0.99f, 0.05f, 0.04f, 0.03f};
        st_cache_demand demand = {.count = 4, .experts = likely, .weights = unsure};
        st_cache_hint(cache, &demand, 4, &answer);
        assert_int_equal(answer.upload_count, 0);
        demand.weights = sure;
        st_cache_hint(cache, &demand, 1, &answer); /* one, and not in place of a likely one */
        assert_int_equal(answer.upload_count, 1);
        assert_int_equal(answer.uploads[0].expert, 7);
        assert_int_equal(answer.uploads[0].evicted, 2); /* placed last */
        assert_true(answer.slot[0] >= 0 && answer.slot[1] < 0);
        st_cache_hint(cache, &demand, 4, &answer); /* 7 is on the way, and its slot is nobody's */
        assert_int_equal(answer.upload_count, 1);
        assert_int_equal(answer.uploads[0].expert, 8);
        assert_int_equal(st_cache_slot_of(cache, 0, 7), -1);
        st_cache_pin(cache, 0, 0, true);
        st_cache_free(cache);
    }
}

static void memory_that_fails(void **state)
{
    (void)state;
    const uint32_t experts[LAYERS] = {EXPERTS, 0, EXPERTS, 8};
    st_echo *echo = NULL;
    for (uint64_t nth = 1; nth <= 3; nth++) {
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        assert_int_equal(st_echo_new(LAYERS, experts, USED, 1, &echo, NULL), STRATA_MEMORY);
        assert_null(echo);
    }
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_int_equal(st_echo_new(LAYERS, experts, USED, 1, &echo, NULL), STRATA_OK);
    st_echo_free(echo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_remembered),
        cmocka_unit_test(habits_change),
        cmocka_unit_test(hints),
        cmocka_unit_test(memory_that_fails),
    };
    return cmocka_run_group_tests_name("echo", tests, NULL, NULL);
}
