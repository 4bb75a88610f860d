/* src/moe/replay.c and strata_replay: counts against those by hand, by another implementation and by brute force; and
 * the hit rates that the default policy must reach on real routings. */
#include "support/kit.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "moe/cache.h"
#include "moe/curve.h"
#include "moe/replay.h"

static const char excerpt[] = "tests/data/traces/excerpt.route.csv";
static const st_replay_rates rates = {.card = 400e9, .host = 50e9, .handover_seconds = 20e-6};

static st_trace *read_trace(const char *path)
{
    st_trace *trace = NULL;
    strata_error error;
    if (st_trace_read(path, &trace, &error) != STRATA_OK) fail_msg("%s", error.message);
    return trace;
}

static st_replay_result replay(const st_trace *trace, const char *policy, uint32_t slots)
{
    st_replay_options options = {.policy = policy, .slots = slots, .budget = -1.0, .rates = rates};
    st_replay_result result;
    strata_error error;
    if (st_replay(trace, &options, &result, &error) != STRATA_OK) fail_msg("%s", error.message);
    return result;
}

/* ---- by hand ----------------------------------------------------------------------------------------------------- */

static const char small[] = "# route_trace v1\n# model=x arch=y n_layer=2 n_expert=4 n_expert_used=2\n"
                            "# layer=0 expert_bytes=1000000 dense_bytes=8000000\n"
                            "# layer=1 expert_bytes=2000000 dense_bytes=4000000\n"
                            "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
                            "0,0,0,0,0,0,0.5,0,0\n0,0,0,0,1,1,0.5,0,0\n" /* the prompt warms layer 0 */
                            "0,1,1,0,0,0,0.5,0,0\n0,1,1,0,1,2,0.5,0,0\n" /* 0 hits, 2 misses and replaces 1 */
                            "0,1,1,1,0,3,0.5,0,0\n0,1,1,1,1,1,0.5,0,0\n" /* both miss */
                            "0,1,2,0,0,2,0.5,0,0\n0,1,2,0,1,0,0.5,0,0\n" /* both hit */
                            "0,1,2,1,0,1,0.5,0,0\n0,1,2,1,1,3,0.5,0,0\n"; /* both hit */

static void counts_match_those_by_hand(void **state)
{
    (void)state;
    st_trace *trace = NULL;
    assert_int_equal(st_trace_parse("t", small, strlen(small), &trace, NULL), STRATA_OK);
    st_replay_result r = replay(trace, "lru", 2);
    assert_true(r.events == 4 && r.hits == 5 && r.misses == 3 && r.uploads == 3);
    double trunk = 12e6 / rates.card, slow = 1e6 / rates.host, both = 2 * 2e6 / rates.host;
    double fast = 2e6 / rates.card + 2 * 2e6 / rates.card;
    assert_true(fabs(r.seconds - (2 * trunk + slow + both + fast + 4 * rates.handover_seconds)) < 1e-12);
    r = replay(trace, "optimum", 2);
    assert_true(r.hits == 5 && r.misses == 3 && r.uploads == 3);
    r = replay(trace, "optimum", 1);
    assert_true(r.hits == 3 && r.uploads == 1); /* one expert of the recurring pair is kept */
    r = replay(trace, NULL, 0);
    assert_true(r.hits == 0 && r.misses == 8 && r.uploads == 0);
    st_replay_options wrong = {.slots = 5, .rates = rates};
    assert_int_equal(st_replay(trace, &wrong, &r, NULL), STRATA_USAGE);
    wrong = (st_replay_options){.slots = 1};
    assert_int_equal(st_replay(trace, &wrong, &r, NULL), STRATA_USAGE);
    wrong = (st_replay_options){.slots = 1, .rates = rates, .policy = "none"};
    assert_int_equal(st_replay(trace, &wrong, &r, NULL), STRATA_USAGE);
    st_trace_free(trace);
}

/* Replayed again, the trace finds the experts of the time before; larger caches hit more. */
static void a_curve_of_hit_rates(void **state)
{
    (void)state;
    st_trace *trace = NULL;
    strata_error error;
    assert_int_equal(st_trace_parse("t", small, strlen(small), &trace, NULL), STRATA_OK);
    st_replay_options options = {.policy = "lru", .slots = 2, .budget = -1.0, .before = 1, .rates = rates};
    st_replay_result r;
    assert_int_equal(st_replay(trace, &options, &r, NULL), STRATA_OK);
    assert_true(r.events == 4 && r.hits == 7 && r.misses == 1); /* layer 1 keeps its two */
    st_trace_free(trace);
    trace = read_trace(excerpt);
    st_curve curve;
    if (st_curve_new(trace, NULL, &curve, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(curve.hits.count, ST_CURVE_POINTS);
    assert_ptr_equal(curve.hits.points, curve.points);
    for (int i = 1; i < ST_CURVE_POINTS; i++) {
        const st_hit_point *p = &curve.points[i];
        assert_true(p->share > p[-1].share && p->rate >= p[-1].rate - 0.02 && p->rate <= 1 && p->uploads >= 0);
    }
    assert_true(curve.points[ST_CURVE_POINTS - 1].share == 1 && curve.points[ST_CURVE_POINTS - 1].rate == 1);
    assert_int_equal(st_curve_new(trace, "none", &curve, &error), STRATA_USAGE);
    st_trace_free(trace);
}

/* ---- by another implementation ----------------------------------------------------------------------------------- */

typedef struct known_row {
    const char *policy;
    uint32_t slots, hits, uploads;
    uint32_t within; /* tolerance: ties may be ordered differently there */
} known_row;

/* From a simulation in Python that shares nothing with this code. Its optimum also admits experts that are never
 * used again. */
static const known_row known[] = {
    {"lru", 8, 604, 1700, 0},      {"lru", 16, 968, 1336, 0},    {"lru", 32, 1525, 779, 0},    {"lru", 48, 1821, 483, 0},
    {"slru", 16, 1074, 1230, 4},   {"slru", 32, 1602, 702, 4},   {"slru", 48, 1891, 413, 4},   {"lfu", 8, 688, 1616, 4},
    {"lfu", 16, 1119, 1185, 4},    {"lfu", 32, 1606, 698, 4},    {"lfu", 48, 1902, 402, 4},    {"blend", 8, 726, 396, 4},
    {"blend", 16, 1143, 507, 4},   {"blend", 32, 1622, 514, 4},  {"blend", 48, 1889, 392, 4},  {"optimum", 8, 1124, 0, 0},
    {"optimum", 16, 1535, 0, 0},   {"optimum", 32, 1911, 0, 0},  {"optimum", 48, 2074, 0, 0},
};

static uint32_t apart(uint64_t a, uint64_t b)
{
    return (uint32_t)(a > b ? a - b : b - a);
}

static void counts_match_another_implementation(void **state)
{
    (void)state;
    st_trace *trace = read_trace(excerpt);
    assert_int_equal(trace->decode_tokens, 128);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const known_row *k = &known[i];
        st_replay_result r = replay(trace, k->policy, k->slots);
        assert_true(r.events == 384 && r.hits + r.misses == 2304);
        if (apart(r.hits, k->hits) > k->within || (k->uploads && apart(r.uploads, k->uploads) > k->within))
            fail_msg("%s at %u: expected %u hits and %u uploads, found %llu and %llu", k->policy, k->slots, k->hits,
                     k->uploads, (unsigned long long)r.hits, (unsigned long long)r.uploads);
    }
    st_trace_free(trace);
}

/* ---- by trying everything ---------------------------------------------------------------------------------------- */

enum { TRY_EXPERTS = 5, TRY_STEPS = 12, TRY_SETS = 1 << TRY_EXPERTS };

static uint32_t bits_of(uint32_t set)
{
    return (uint32_t)__builtin_popcount(set);
}

/* The most hits of any policy, by dynamic programming over all sets of resident experts. */
static uint32_t most_hits(const uint32_t demands[TRY_STEPS], uint32_t slots)
{
    int best[TRY_SETS], next[TRY_SETS];
    for (int s = 0; s < TRY_SETS; s++) best[s] = s ? -1 : 0;
    for (uint32_t t = 0; t < TRY_STEPS; t++) {
        for (int s = 0; s < TRY_SETS; s++) next[s] = -1;
        for (uint32_t from = 0; from < TRY_SETS; from++) {
            if (best[from] < 0) continue;
            for (uint32_t to = 0; to < TRY_SETS; to++) {
                int hits = best[from] + (int)bits_of(from & demands[t]);
                if (bits_of(to) > slots || (to & ~(from | demands[t]))) continue; /* only resident or requested */
                if (hits > next[to]) next[to] = hits;
            }
        }
        memcpy(best, next, sizeof best);
    }
    int most = 0;
    for (int s = 0; s < TRY_SETS; s++) most = best[s] > most ? best[s] : most;
    return (uint32_t)most;
}

static void no_policy_beats_the_optimum(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 60; round++) {
        st_buf text = {0};
        uint32_t demands[TRY_STEPS], slots = 1 + (uint32_t)rand() % 3;
        st_buf_printf(&text, "# route_trace v1\n# n_layer=1 n_expert=%d n_expert_used=2\n"
                             "# layer=0 expert_bytes=1 dense_bytes=1\n"
                             "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n", TRY_EXPERTS);
        for (uint32_t t = 0; t < TRY_STEPS; t++) {
            uint32_t a = (uint32_t)rand() % TRY_EXPERTS, b = (a + 1 + (uint32_t)rand() % (TRY_EXPERTS - 1)) % TRY_EXPERTS;
            demands[t] = 1u << a | 1u << b;
            st_buf_printf(&text, "0,1,%u,0,0,%u,1,0,1\n0,1,%u,0,1,%u,1,0,1\n", t, a, t, b);
        }
        st_trace *trace = NULL;
        assert_int_equal(st_trace_parse("t", text.data, text.length, &trace, NULL), STRATA_OK);
        st_replay_result optimum = replay(trace, "optimum", slots);
        assert_int_equal(optimum.hits, most_hits(demands, slots));
        for (size_t p = 0; p < st_cache_policy_count(); p++)
            assert_true(replay(trace, st_cache_policy_name(p), slots).hits <= optimum.hits);
        st_trace_free(trace);
        st_buf_free(&text);
    }
}

/* ---- real routings ----------------------------------------------------------------------------------------------- */

static const char *trace_path(const char *name)
{
    static char path[4096];
    const char *root = getenv("STRATA_TEST_TRACES");
    snprintf(path, sizeof path, "%s/%s.route.csv", root ? root : "../shared/traces", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

static double hit_rate(const st_trace *trace, const char *policy, uint32_t slots, double *uploads)
{
    st_replay_result r = replay(trace, policy, slots);
    if (uploads) *uploads = (double)r.uploads / (double)r.events;
    return 100.0 * (double)r.hits / (double)(r.hits + r.misses);
}

/* Published hit rates on the recording of Qwen3-30B-A3B, and the rates that the default must reach. */
static void hit_rates_on_the_qwen_trace(void **state)
{
    (void)state;
    const char *path = trace_path("qwen");
    if (!path) {
        print_message("the recordings are not beside the checkout: set STRATA_TEST_TRACES\n");
        skip();
    }
    st_trace *trace = read_trace(path);
    double uploads = 0.0;
    assert_true(fabs(hit_rate(trace, "lru", 32, NULL) - 81.7) < 0.05 && fabs(hit_rate(trace, "lru", 48, NULL) - 91.7) < 0.05);
    assert_true(fabs(hit_rate(trace, "slru", 32, NULL) - 83.0) < 0.05 && fabs(hit_rate(trace, "slru", 48, NULL) - 92.4) < 0.06);
    assert_true(fabs(hit_rate(trace, "optimum", 32, NULL) - 91.8) < 0.06);
    assert_true(fabs(hit_rate(trace, "optimum", 48, NULL) - 96.2) < 0.05);
    assert_true(hit_rate(trace, NULL, 32, &uploads) >= 82.5);
    assert_true(uploads <= 0.85);
    assert_true(hit_rate(trace, NULL, 48, NULL) >= 92.2);
    st_trace_free(trace);
}

static void the_default_is_robust(void **state)
{
    (void)state;
    const char *const names[] = {"qwen", "gemma", "gptoss"};
    for (size_t i = 0; i < 3; i++) {
        const char *path = trace_path(names[i]);
        if (!path) {
            print_message("the recordings are not beside the checkout: set STRATA_TEST_TRACES\n");
            skip();
        }
        st_trace *trace = read_trace(path);
        for (uint32_t slots = 32; slots <= 48; slots += 16)
            assert_true(hit_rate(trace, NULL, slots, NULL) >= hit_rate(trace, "lru", slots, NULL) - 0.5);
        st_replay_options options = {.slots = 8, .admission = 1, .budget = -1.0, .rates = rates};
        st_replay_result r;
        assert_int_equal(st_replay(trace, &options, &r, NULL), STRATA_OK);
        assert_true((double)r.hits >= 0.40 * (double)(r.hits + r.misses));
        options.slots = 16;
        assert_int_equal(st_replay(trace, &options, &r, NULL), STRATA_OK);
        assert_true((double)r.hits >= 0.60 * (double)(r.hits + r.misses));
        st_trace_free(trace);
    }
}

/* ---- strata_replay ----------------------------------------------------------------------------------------------- */

static void rows_as_json(void **state)
{
    (void)state;
    strata_error error;
    char *text = NULL;
    strata_replay_options options = {.slots = "32,8", .policies = "optimum,blend", .profile = "rtx-4070-ti+ddr5-5600"};
    if (strata_replay(excerpt, &options, &text, &error) != STRATA_OK) fail_msg("%s", error.message);
    json_t *root = json_loads(text, 0, NULL), *rows = json_object_get(root, "rows"), *row = json_array_get(rows, 2);
    assert_int_equal(json_array_size(rows), 4);
    assert_string_equal(json_string_value(json_object_get(row, "policy")), "blend");
    assert_true(json_is_true(json_object_get(row, "default")));
    assert_false(json_is_true(json_object_get(json_array_get(rows, 0), "default")));
    assert_int_equal(json_integer_value(json_object_get(row, "slots")), 32);
    double rate = json_real_value(json_object_get(row, "hit_rate")), uploads = json_real_value(json_object_get(row, "uploads"));
    assert_true(rate > 0.70 && rate < 0.71 && uploads > 1.3 && uploads < 1.4);
    assert_true(json_real_value(json_object_get(row, "decode_tps")) > json_real_value(json_object_get(root, "cpu_tps")));
    json_decref(root);
    strata_free(text);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    const struct { strata_replay_options options; const char *words; } rows[] = {
        {{.slots = "0"}, "options.slots"}, {{.slots = "129"}, "1 to 128"}, {{.slots = "8,"}, "options.slots"}, {{.slots = ""}, "options.slots"},
        {{.slots = "8, 9"}, "options.slots"}, {{.slots = "99999999999999999999999999999999999999"}, "options.slots"},
        {{.policies = "mru"}, "blend, lru, slru, lfu, optimum"}, {{.policies = ""}, "options.policies"},
        {{.profile = "abacus"}, "abacus"}, {{.admission = 3}, "touch"}, {{.budget = -1.0}, "budget"},
        {{.upload_cost = NAN}, "cost"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = NULL;
        strata_error error;
        if (strata_replay(excerpt, &rows[i].options, &text, &error) != STRATA_USAGE || text) fail_msg("row %zu was accepted", i);
        if (!strstr(error.message, rows[i].words)) fail_msg("row %zu: %s", i, error.message);
    }
    char *text = NULL;
    assert_int_equal(strata_replay("/nowhere", NULL, &text, NULL), STRATA_FILE);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    strata_replay_options options = {.slots = "4", .policies = "lru,optimum", .profile = "rtx-4070-ti+ddr5-5600"};
    uint64_t failures = 0;
    bool hit = true;
    for (uint64_t nth = 1; hit; nth++) {
        char *text = NULL;
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = strata_replay(excerpt, &options, &text, NULL);
        hit = st_fault_calls(ST_FAULT_ALLOC) >= nth;
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        assert_true(text ? status == STRATA_OK : status == STRATA_MEMORY); /* the machine's profile is optional */
        failures += text == NULL;
        strata_free(text);
    }
    assert_true(failures >= 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_match_those_by_hand), cmocka_unit_test(a_curve_of_hit_rates), cmocka_unit_test(counts_match_another_implementation),
        cmocka_unit_test(no_policy_beats_the_optimum), cmocka_unit_test(hit_rates_on_the_qwen_trace),
        cmocka_unit_test(the_default_is_robust), cmocka_unit_test(rows_as_json),
        cmocka_unit_test(invalid_options_are_refused), cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
