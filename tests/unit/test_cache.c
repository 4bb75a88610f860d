/* src/moe/cache.c: which expert is in which slot, event by event. */
#include "support/kit.h"

#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "moe/cache.h"

enum { EXPERTS = 16 };

/* One layer, one cache. */
typedef struct rig {
    st_cache *cache;
    st_cache_answer answer;
} rig;

static st_cache_options options_of(const char *policy, uint32_t slots, uint32_t used)
{
    static const uint32_t experts[1] = {EXPERTS};
    static uint32_t slot_counts[1];
    slot_counts[0] = slots;
    return (st_cache_options){.layers = 1, .experts = experts, .slots = slot_counts, .used = used, .policy = policy,
                              .budget = -1.0};
}

static rig open_rig(st_cache_options options)
{
    rig r = {0};
    strata_error error;
    if (st_cache_new(&options, &r.cache, &error) != STRATA_OK) fail_msg("%s", error.message);
    return r;
}

static void ask_weighed(rig *r, uint32_t count, const uint32_t *experts, const float *weights)
{
    st_cache_demand demand = {.layer = 0, .count = count, .experts = experts, .weights = weights};
    st_cache_ask(r->cache, &demand, &r->answer);
    assert_int_equal(r->answer.hits + r->answer.misses, count);
    assert_int_equal(r->answer.upload_count + r->answer.coming + r->answer.unwanted + r->answer.unpaid +
                         r->answer.over_budget + r->answer.no_room, r->answer.misses);
}

static void fill(rig *r)
{
    for (uint32_t i = 0; i < r->answer.upload_count; i++) st_cache_filled(r->cache, 0, r->answer.uploads[i].slot);
}

/* Requests these experts; all copies end before the next event. */
#define ASK(r, ...)                                                                            \
    do {                                                                                       \
        const uint32_t asked_[] = {__VA_ARGS__};                                               \
        ask_weighed((r), sizeof asked_ / sizeof *asked_, asked_, NULL);                        \
        fill(r);                                                                               \
    } while (0)

static bool is_in(const rig *r, uint32_t expert)
{
    return st_cache_slot_of(r->cache, 0, expert) >= 0;
}

static void expect_in(const rig *r, const char *experts)
{
    for (uint32_t i = 0; i < EXPERTS; i++) {
        bool wanted = strchr(experts, "0123456789abcdef"[i]) != NULL;
        if (is_in(r, i) != wanted) fail_msg("expert %u: expected to be %s, of %s", i, wanted ? "in" : "out", experts);
    }
}

static void lru_evicts_the_least_recently_used(void **state)
{
    (void)state;
    rig r = open_rig(options_of("lru", 4, 2));
    ASK(&r, 0, 1);
    assert_int_equal(r.answer.misses, 2);
    assert_int_equal(r.answer.uploads[0].evicted, -1);
    ASK(&r, 2, 3);
    ASK(&r, 0, 4);
    assert_int_equal(r.answer.hits, 1);
    assert_int_equal(r.answer.upload_count, 1);
    assert_int_equal(r.answer.uploads[0].expert, 4);
    assert_int_equal(r.answer.uploads[0].evicted, 1);
    expect_in(&r, "0234");
    ASK(&r, 5, 6);
    expect_in(&r, "0456");
    st_cache_free(r.cache);
}

/* An event cannot evict an expert that it uses, even if that leaves misses without a slot. */
static void an_event_does_not_evict_its_own_experts(void **state)
{
    (void)state;
    rig r = open_rig(options_of("lru", 2, 4));
    ASK(&r, 0, 1);
    ASK(&r, 2, 3, 0, 1);
    assert_int_equal(r.answer.hits, 2);
    assert_int_equal(r.answer.no_room, 2);
    assert_int_equal(r.answer.upload_count, 0);
    assert_true(r.answer.slot[0] < 0 && r.answer.slot[1] < 0 && r.answer.slot[2] >= 0 && r.answer.slot[3] >= 0);
    ASK(&r, 2, 3, 4, 5); /* more misses than slots: one upload for each slot */
    assert_int_equal(r.answer.upload_count, 2);
    assert_int_equal(r.answer.no_room, 2);
    expect_in(&r, "23");
    st_cache_free(r.cache);
}

static void a_slot_being_written_is_neither_a_hit_nor_a_victim(void **state)
{
    (void)state;
    rig r = open_rig(options_of("lru", 2, 1));
    const uint32_t a = 7, b = 8, c = 9;
    ask_weighed(&r, 1, &a, NULL);
    uint32_t slot = r.answer.uploads[0].slot;
    assert_int_equal(st_cache_slot_of(r.cache, 0, a), -1);
    ask_weighed(&r, 1, &a, NULL); /* still being copied: a miss, and no second copy */
    assert_int_equal(r.answer.misses, 1);
    assert_int_equal(r.answer.coming, 1);
    assert_int_equal(r.answer.upload_count, 0);
    ask_weighed(&r, 1, &b, NULL);
    uint32_t other = r.answer.uploads[0].slot;
    assert_int_not_equal(slot, other);
    ask_weighed(&r, 1, &c, NULL); /* both are being written: neither can be evicted */
    assert_int_equal(r.answer.no_room, 1);
    st_cache_filled(r.cache, 0, slot);
    assert_int_equal(st_cache_slot_of(r.cache, 0, a), slot);
    st_cache_failed(r.cache, 0, other);
    assert_int_equal(st_cache_slot_of(r.cache, 0, b), -1);
    st_cache_filled(r.cache, 0, other); /* too late: the slot is empty */
    assert_int_equal(st_cache_slot_of(r.cache, 0, b), -1);
    ask_weighed(&r, 1, &b, NULL);
    assert_int_equal(r.answer.uploads[0].slot, other);
    assert_int_equal(r.answer.uploads[0].evicted, -1);
    fill(&r);
    st_cache_failed(r.cache, 0, slot); /* lost after the upload had landed */
    expect_in(&r, "8");
    st_cache_free(r.cache);
}

static void slru_protects_experts_used_twice(void **state)
{
    (void)state;
    rig r = open_rig(options_of("slru", 8, 2)); /* two slots on probation, six protected */
    for (uint32_t i = 0; i < 6; i++) {
        ASK(&r, i);
        ASK(&r, i); /* the second use protects */
    }
    for (uint32_t i = 6; i < 16; i++) ASK(&r, i); /* used once each */
    expect_in(&r, "012345ef");
    st_cache_free(r.cache);

    /* With no more slots than a token uses experts, all slots are on probation, so new experts are admitted. */
    r = open_rig(options_of("slru", 2, 2));
    ASK(&r, 0, 1);
    ASK(&r, 0, 1);
    ASK(&r, 2, 3);
    expect_in(&r, "23");
    st_cache_free(r.cache);
}

static void lfu_counts_decay(void **state)
{
    (void)state;
    rig r = open_rig(options_of("lfu", 2, 1));
    for (int i = 0; i < 10; i++) ASK(&r, 0);
    ASK(&r, 1);
    ASK(&r, 2);
    expect_in(&r, "02"); /* ten uses are worth more than a recent one */
    for (uint32_t i = 0; i < 200; i++) ASK(&r, 3 + i % 2);
    expect_in(&r, "34"); /* until they have decayed */
    st_cache_free(r.cache);
}

static void the_default_admits_only_more_valuable_experts(void **state)
{
    (void)state;
    assert_string_equal(st_cache_policy_name(0), "blend");
    assert_null(st_cache_policy_name(st_cache_policy_count()));
    rig r = open_rig(options_of(NULL, 2, 1));
    for (int i = 0; i < 8; i++) {
        ASK(&r, 0);
        ASK(&r, 1);
    }
    ASK(&r, 2); /* once, against eight times */
    assert_int_equal(r.answer.unwanted, 1);
    expect_in(&r, "01");
    for (int i = 0; i < 40; i++) ASK(&r, 2);
    expect_in(&r, is_in(&r, 0) ? "02" : "12");
    st_cache_free(r.cache);

    /* Among experts used equally often, those with larger router weights stay; new ones are admitted in that order. */
    r = open_rig(options_of(NULL, 2, 4));
    const uint32_t pair[] = {5, 6, 7, 8};
    const float weights[] = {0.1f, 0.2f, 0.3f, 0.4f};
    ask_weighed(&r, 4, pair, weights);
    fill(&r);
    expect_in(&r, "78");
    const uint32_t two[] = {5, 6};
    const float much[] = {0.9f, 0.1f};
    ask_weighed(&r, 2, two, much);
    assert_int_equal(r.answer.uploads[0].expert, 5);
    assert_int_equal(r.answer.uploads[0].evicted, 7);
    st_cache_free(r.cache);
}

static void unusable_weights_count_as_equal(void **state)
{
    (void)state;
    const uint32_t wanted[] = {3, 4};
    const float nothing[][2] = {{0.0f, 0.0f}, {-1.0f, -2.0f}, {NAN, 1.0f}, {INFINITY, 1.0f}};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        rig r = open_rig(options_of(NULL, 2, 2));
        ASK(&r, 0, 1);
        for (int n = 0; n < 3; n++) {
            ask_weighed(&r, 2, wanted, nothing[i]);
            fill(&r);
        }
        expect_in(&r, "34");
        st_cache_free(r.cache);
    }
}

static void admission_on_the_second_touch(void **state)
{
    (void)state;
    st_cache_options options = options_of("lru", 2, 1);
    options.admission = 2;
    rig r = open_rig(options);
    ASK(&r, 0);
    ASK(&r, 1); /* empty slots are filled at once */
    expect_in(&r, "01");
    ASK(&r, 2);
    assert_int_equal(r.answer.unwanted, 1);
    ASK(&r, 2);
    expect_in(&r, "12");
    ASK(&r, 0); /* evicted: its touches are counted from zero */
    expect_in(&r, "12");
    ASK(&r, 0);
    expect_in(&r, "02");
    st_cache_free(r.cache);
}

static void uploads_keep_to_the_budget(void **state)
{
    (void)state;
    st_cache_options options = options_of("lru", 4, 4);
    options.budget = 0.5;
    rig r = open_rig(options);
    uint32_t uploads = 0;
    ASK(&r, 0, 1, 2, 3);
    assert_int_equal(r.answer.upload_count, 4); /* into empty slots */
    for (uint32_t i = 1; i <= 40; i++) {
        uint32_t base = (i % 4) * 4;
        ASK(&r, base, base + 1, base + 2, base + 3);
        uploads += r.answer.upload_count;
        assert_true(uploads <= (i + 1) / 2);
        assert_int_equal(r.answer.over_budget + r.answer.upload_count, r.answer.misses);
    }
    assert_int_equal(uploads, 20);
    st_cache_free(r.cache);

    options.budget = 0.0;
    r = open_rig(options);
    ASK(&r, 0, 1, 2, 3);
    ASK(&r, 4, 5, 6, 7);
    expect_in(&r, "0123");
    st_cache_free(r.cache);
}

static void unspent_budget_is_limited(void **state)
{
    (void)state;
    st_cache_options options = options_of("lru", 8, 2);
    options.budget = 1.0;
    rig r = open_rig(options);
    ASK(&r, 0, 1, 2, 3, 4, 5, 6, 7);
    for (int i = 0; i < 50; i++) ASK(&r, 0);
    ASK(&r, 8, 9, 10, 11, 12);
    assert_int_equal(r.answer.upload_count, 2);
    st_cache_free(r.cache);
}

static void experts_are_placed_before_the_first_event(void **state)
{
    (void)state;
    rig r = open_rig(options_of("lru", 3, 1));
    assert_int_equal(st_cache_place(r.cache, 0, 5), 0);
    assert_int_equal(st_cache_place(r.cache, 0, 6), 1);
    assert_int_equal(st_cache_place(r.cache, 0, 5), 0); /* already in a slot */
    assert_int_equal(st_cache_place(r.cache, 0, 7), 2);
    assert_int_equal(st_cache_place(r.cache, 0, 8), -1);
    assert_int_equal(st_cache_place(r.cache, 0, EXPERTS), -1);
    ASK(&r, 0);
    expect_in(&r, "056"); /* the expert that was placed first is evicted last */
    ASK(&r, 1);
    expect_in(&r, "015");
    st_cache_free(r.cache);
}

/* A prediction uploads likely experts, and evicts none that is likely itself. */
static void hints_upload_likely_experts(void **state)
{
    (void)state;
    for (size_t p = 0; p < st_cache_policy_count(); p++) {
        rig r = open_rig(options_of(st_cache_policy_name(p), 3, 4));
        for (uint32_t i = 0; i < 3; i++) assert_true(st_cache_place(r.cache, 0, i) >= 0);
        const uint32_t likely[] = {0, 7, 8, 9};
        const float sure[] = {0.99f, 0.9f, 0.8f, 0.7f}, unsure[] = {0.99f, 0.05f, 0.04f, 0.03f};
        st_cache_demand demand = {.count = 4, .experts = likely, .weights = unsure};
        st_cache_hint(r.cache, &demand, &r.answer);
        assert_int_equal(r.answer.upload_count, 0);
        demand.weights = sure;
        demand.count = 2;
        st_cache_hint(r.cache, &demand, &r.answer);
        assert_int_equal(r.answer.upload_count, 1);
        assert_int_equal(r.answer.uploads[0].expert, 7);
        assert_int_equal(r.answer.uploads[0].evicted, 2); /* placed last */
        assert_true(r.answer.slot[0] >= 0 && r.answer.slot[1] < 0);
        demand.count = 4;
        st_cache_hint(r.cache, &demand, &r.answer); /* the upload of 7 has not landed: its slot cannot be evicted */
        assert_int_equal(r.answer.upload_count, 1);
        assert_int_equal(r.answer.uploads[0].expert, 8);
        assert_int_equal(st_cache_slot_of(r.cache, 0, 7), -1);
        st_cache_free(r.cache);
    }
}

/* A batch counts once per token: experts that most tokens chose stay; a long prompt decays the others. */
static void batches_are_weighted_by_their_tokens(void **state)
{
    (void)state;
    rig r = open_rig(options_of(NULL, 2, 2));
    for (int i = 0; i < 20; i++) ASK(&r, 0, 1);
    const uint32_t wanted[] = {2, 3, 4, 5}, uses[] = {10, 90, 80, 20};
    st_cache_demand demand = {.count = 4, .experts = wanted, .tokens = 100, .uses = uses};
    st_cache_ask(r.cache, &demand, &r.answer);
    fill(&r);
    expect_in(&r, "34");
    st_cache_free(r.cache);

    const float weights[] = {5.0f, 2.0f, 40.0f, 53.0f};
    r = open_rig(options_of(NULL, 2, 2));
    for (int i = 0; i < 20; i++) ASK(&r, 0, 1);
    demand.uses = NULL;
    demand.weights = weights;
    st_cache_ask(r.cache, &demand, &r.answer);
    fill(&r);
    expect_in(&r, "45");
    demand.tokens = UINT32_MAX; /* decays everything that came before */
    st_cache_ask(r.cache, &demand, &r.answer);
    assert_int_equal(r.answer.hits, 2);
    st_cache_free(r.cache);
}

static void layers_have_their_own_slots(void **state)
{
    (void)state;
    const uint32_t experts[] = {4, 0, 8}, slots[] = {1, 0, 3}, wanted[] = {0, 3};
    st_cache_options options = {.layers = 3, .experts = experts, .slots = slots, .used = 2, .policy = "lru", .budget = -1.0};
    rig r = open_rig(options);
    st_cache_demand demand = {.layer = 2, .count = 2, .experts = wanted};
    st_cache_ask(r.cache, &demand, &r.answer);
    for (uint32_t i = 0; i < r.answer.upload_count; i++) st_cache_filled(r.cache, 2, r.answer.uploads[i].slot);
    assert_int_equal(st_cache_slot_of(r.cache, 0, 3), -1);
    assert_true(st_cache_slot_of(r.cache, 2, 3) >= 0);
    assert_int_equal(st_cache_slot_of(r.cache, 1, 0), -1);
    assert_int_equal(st_cache_place(r.cache, 1, 0), -1);
    st_cache_free(r.cache);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    st_cache *cache = NULL;
    strata_error error;
    st_cache_options options = options_of("fifo", 4, 2);
    assert_int_equal(st_cache_new(&options, &cache, &error), STRATA_USAGE);
    assert_non_null(strstr(error.message, "fifo"));
    options = options_of("lru", EXPERTS + 1, 2);
    assert_int_equal(st_cache_new(&options, &cache, &error), STRATA_USAGE);
    assert_non_null(strstr(error.message, "layer 0"));
    options = options_of("lru", 4, 0);
    assert_int_equal(st_cache_new(&options, &cache, NULL), STRATA_USAGE);
    options = options_of("lru", 4, 2);
    options.admission = 3;
    assert_int_equal(st_cache_new(&options, &cache, NULL), STRATA_USAGE);
    options.admission = 0;
    options.upload_cost = -1.0;
    assert_int_equal(st_cache_new(&options, &cache, NULL), STRATA_USAGE);
    assert_null(cache);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    st_cache_options options = options_of(NULL, 4, 2);
    st_cache *cache = NULL;
    uint64_t failures = 0;
    for (uint64_t nth = 1; !cache; nth++) {
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = st_cache_new(&options, &cache, NULL);
        failures += status == STRATA_MEMORY;
        assert_true(status == STRATA_MEMORY || cache);
    }
    assert_true(failures >= 3);
    /* An event allocates nothing. */
    rig r = {.cache = cache};
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    for (uint32_t i = 0; i < 100; i++) ASK(&r, i % 16, (i * 7 + 1) % 16 == i % 16 ? (i + 3) % 16 : (i * 7 + 1) % 16);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_cache_free(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lru_evicts_the_least_recently_used), cmocka_unit_test(an_event_does_not_evict_its_own_experts),
        cmocka_unit_test(a_slot_being_written_is_neither_a_hit_nor_a_victim),
        cmocka_unit_test(slru_protects_experts_used_twice), cmocka_unit_test(lfu_counts_decay),
        cmocka_unit_test(the_default_admits_only_more_valuable_experts),
        cmocka_unit_test(unusable_weights_count_as_equal), cmocka_unit_test(admission_on_the_second_touch),
        cmocka_unit_test(uploads_keep_to_the_budget), cmocka_unit_test(unspent_budget_is_limited),
        cmocka_unit_test(experts_are_placed_before_the_first_event), cmocka_unit_test(hints_upload_likely_experts),
        cmocka_unit_test(batches_are_weighted_by_their_tokens), cmocka_unit_test(layers_have_their_own_slots),
        cmocka_unit_test(invalid_options_are_refused), cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
