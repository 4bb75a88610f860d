/* src/moe/stats.c: counts per layer and expert, as a table and as JSON. */
#include "support/kit.h"

#include <string.h>

#include "base/fault.h"
#include "moe/stats.h"

static st_stats *new_stats(void)
{
    static const uint32_t experts[] = {4, 0, 8};
    st_stats *stats = NULL;
    assert_int_equal(st_stats_new(3, experts, &stats, NULL), STRATA_OK);
    return stats;
}

static void count_some(st_stats *stats)
{
    const uint32_t a[] = {0, 7}, b[] = {7, 3};
    const int32_t none[] = {-1, -1}, first[] = {5, -1};
    st_stats_event(stats, 2, false, 2, a, none);
    st_stats_event(stats, 2, true, 2, b, first);
    st_stats_event(stats, 2, true, 2, b, NULL);
    st_stats_rows(stats, 2, false, 1, 2);
    st_stats_rows(stats, 2, false, 4, 2);
    st_stats_upload(stats, 2, true, 3, 1000);
    st_stats_add(stats, 2, true, ST_STAT_FETCHES, 1);
    st_stats_add(stats, 2, true, ST_STAT_FETCH_BYTES, 2000000);
    st_stats_add(stats, 0, true, ST_STAT_FAILED, 3);
}

/* A number in a layer's phase of the JSON, or in one of its arrays. */
static uint64_t number_of(const st_stats *stats, size_t layer, const char *object, const char *field, size_t index)
{
    json_t *root = st_stats_json(stats), *at = json_array_get(json_object_get(root, "layers"), layer);
    at = json_object_get(at, object);
    uint64_t number = (uint64_t)json_integer_value(field ? json_object_get(at, field) : json_array_get(at, index));
    json_decref(root);
    return number;
}

static void counts_add_up(void **state)
{
    (void)state;
    st_stats *stats = new_stats();
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    count_some(stats);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_int_equal(number_of(stats, 0, "prompt", "misses", 0), 2); /* the only layer with events */
    assert_int_equal(number_of(stats, 0, "prompt", "expected", 0), 2 + 5); /* 8 × (1 − 0.75⁴) = 5.5 of four rows */
    assert_int_equal(number_of(stats, 0, "decode", "hits", 0), 3);
    assert_int_equal(number_of(stats, 0, "decode", "misses", 0), 1);
    assert_int_equal(number_of(stats, 0, "decode", "events", 0), 2);
    assert_int_equal(st_stats_total(stats, true, ST_STAT_FAILED), 3);
    assert_int_equal(st_stats_total(stats, true, ST_STAT_UPLOAD_BYTES), 1000);
    assert_int_equal(number_of(stats, 0, "expert_hits", NULL, 7), 2);
    assert_int_equal(number_of(stats, 0, "expert_misses", NULL, 7), 1);
    assert_int_equal(number_of(stats, 0, "expert_uploads", NULL, 3), 1);
    /* 0, 7 and 3 have one first use each; 7 is reused twice and 3 once, one event later. */
    assert_int_equal(number_of(stats, 0, "reuse", NULL, 0), 3);
    assert_int_equal(number_of(stats, 0, "reuse", NULL, 1), 3);
    st_stats_free(stats);
}

/* The bucket of each distance: 1, 2, 3–4, 5–8, … */
static void reuse_distances(void **state)
{
    (void)state;
    const uint32_t rare = 0, filler = 1;
    const struct { uint32_t distance, bucket; } rows[] = {{1, 1}, {2, 2}, {3, 3}, {4, 3}, {5, 4}, {8, 4}, {9, 5}, {1000, 11},
                                                          {65536, 17}, {200000, 17}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        st_stats *stats = new_stats();
        st_stats_event(stats, 0, true, 1, &rare, NULL);
        for (uint32_t n = 1; n < rows[i].distance; n++) st_stats_event(stats, 0, true, 1, &filler, NULL);
        uint64_t before = number_of(stats, 0, "reuse", NULL, rows[i].bucket);
        st_stats_event(stats, 0, true, 1, &rare, NULL);
        assert_int_equal(number_of(stats, 0, "reuse", NULL, rows[i].bucket), before + 1);
        st_stats_free(stats);
    }
}

static void tables(void **state)
{
    (void)state;
    st_stats *stats = new_stats();
    st_buf out = {0};
    count_some(stats);
    assert_true(st_stats_print(stats, &out));
    st_buf_append_char(&out, '\0');
    assert_non_null(strstr(out.data, "prompt"));
    assert_non_null(strstr(out.data, "75.0 %"));
    assert_non_null(strstr(out.data, "2.0\n"));
    assert_non_null(strstr(out.data, "never before"));
    assert_null(strstr(out.data, "the CPU computed"));
    st_stats_add(stats, 2, true, ST_STAT_COMPUTED, 4);
    st_stats_add(stats, 2, true, ST_STAT_CPU_NS, 100000);
    st_stats_add(stats, 2, true, ST_STAT_WAIT_NS, 3000);
    out.length = 0;
    assert_true(st_stats_print(stats, &out));
    st_buf_append_char(&out, '\0');
    assert_non_null(strstr(out.data, "the CPU computed a miss in 25.0 µs, and waited 1.5 µs for the router of a layer\n"));
    st_buf_free(&out);
    st_stats_free(stats);
}

static void the_json(void **state)
{
    (void)state;
    st_stats *stats = new_stats();
    count_some(stats);
    json_t *root = st_stats_json(stats), *layers = json_object_get(root, "layers"), *layer = json_array_get(layers, 0);
    assert_int_equal(json_array_size(layers), 1); /* layers with routing events */
    assert_int_equal(json_integer_value(json_object_get(layer, "layer")), 2);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "decode"), "fetches")), 1);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(layer, "expert_hits"), 7)), 2);
    assert_int_equal(json_array_size(json_object_get(layer, "expert_misses")), 8);
    assert_true(json_real_value(json_object_get(json_object_get(root, "decode"), "hit_rate")) == 0.75);
    json_decref(root);
    st_stats_free(stats);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    const uint32_t experts[] = {4};
    st_stats *stats = NULL;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        assert_int_equal(st_stats_new(1, experts, &stats, NULL), STRATA_MEMORY);
        assert_null(stats);
    }
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_add_up), cmocka_unit_test(reuse_distances), cmocka_unit_test(tables),
        cmocka_unit_test(the_json), cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
