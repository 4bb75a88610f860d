/* An expert cache under failures: an upload, a fetch or a decision fails, more uploads are wanted than the queue holds,
 * or uploads complete while the GPU still computes. The logits stay the same, and the counters record what happened. */
#include "support/golden.h"

#include <string.h>

#include "moe/trace.h"

static golden_options cache_options(const st_plan_options *placed, uint32_t batch)
{
    return (golden_options){.kv_type = ST_TYPE_F32, .batch = batch, .threads = 1, .cpu = "ref", .placed = placed};
}

static st_plan_options slots_of(int32_t slots)
{
    st_plan_options placed = st_plan_options_default();
    placed.layers = ST_LAYERS_ALL;
    placed.moe = ST_MOE_CACHE;
    placed.expert_slots = slots;
    return placed;
}

static void check_all(golden_run *r, const char *when)
{
    golden_score score = {0};
    golden_feed(r, 0, r->g->token_count, &score);
    if (!(golden_error(&score) <= 2e-5)) fail_msg("%s: error %g", when, golden_error(&score));
    assert_int_equal(score.agree, score.rows);
}

/* A failed upload or fetch changes no logits. A failure of any other copy returns an error; the conversation then restarts
 * from zero and computes the right logits. */
static void each_failed_copy_is_tolerated_or_reported(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "qwen3moe"));
    st_plan_options placed = slots_of(2);
    uint64_t tolerated = 0, reported = 0;
    for (uint64_t n = 1;; n++) {
        golden_options options = cache_options(&placed, 7);
        golden_watch watch;
        golden_watch_open(&watch, &g);
        options.watch = &watch.watch;
        golden_run r;
        golden_run_open(&r, &g, &options);
        uint64_t before = st_sim_calls(r.world, ST_SIM_COPY);
        st_sim_fail_at(r.world, ST_SIM_COPY, n);
        strata_error error = {0};
        strata_status status = STRATA_OK;
        for (uint32_t i = 0; i < 42 && status == STRATA_OK; i += 7) status = golden_step(&r, r.conversation, g.tokens + i, 7, &error);
        bool injected = st_sim_calls(r.world, ST_SIM_COPY) - before >= n;
        st_sim_fail_at(r.world, ST_SIM_COPY, 0);
        if (status == STRATA_OK && injected) {
            tolerated++;
            assert_true(golden_watch_count(&watch, ST_STAT_FAILED) > 0);
        }
        if (status != STRATA_OK) {
            reported++;
            assert_int_equal(status, STRATA_DEVICE);
        }
        (void)golden_cut(&r, 0);
        check_all(&r, "after a copy that failed");
        golden_run_close(&r);
        golden_watch_close(&watch);
        if (!injected) break;
        if (n >= 40 || kit_is_slow()) n += kit_is_slow() ? 30 : 16; /* testing every call would take long */
    }
    assert_true(tolerated > 0 && reported > 0);
    golden_close(&g);
}

/* A link so slow that uploads queue up. */
static void full_upload_queue_keeps_the_logits(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "qwen3moe"));
    st_profile profiles[ST_DEVICES_MAX] = {st_profile_default(ST_DEVICE_HOST), st_profile_default(ST_DEVICE_CARD)};
    profiles[ST_HOST].memory_rate = 60e9;
    profiles[ST_CARD].memory_rate = 504e9;
    profiles[ST_CARD].link_up = 1e5;
    profiles[ST_CARD].link_down = 25e9;
    st_plan_options placed = slots_of(2);
    golden_options options = cache_options(&placed, 1);
    options.profiles = profiles;
    options.experts.flights_max = 2;
    golden_watch watch;
    golden_watch_open(&watch, &g);
    options.watch = &watch.watch;
    golden_run r;
    golden_run_open(&r, &g, &options);
    for (int i = 0; i < 6; i++) {
        check_all(&r, "with a slow link");
        (void)golden_cut(&r, 0);
    }
    assert_true(golden_watch_count(&watch, ST_STAT_QUEUE_FULL) > 0);
    assert_int_equal(golden_watch_count(&watch, ST_STAT_COMPUTED) + golden_watch_count(&watch, ST_STAT_FETCHES),
                     golden_watch_count(&watch, ST_STAT_MISSES));
    golden_run_close(&r);
    golden_watch_close(&watch);
    golden_close(&g);
}

static void two_deterministic_runs_are_identical(void **state)
{
    (void)state;
    golden g;
    static float first[320];
    assert_true(golden_open(&g, "qwen2moe"));
    st_plan_options placed = slots_of(2);
    for (int round = 0; round < 2; round++) {
        golden_options options = cache_options(&placed, 7);
        options.experts.deterministic = true;
        golden_run r;
        golden_run_open(&r, &g, &options);
        const float *logits;
        uint32_t row = 0;
        for (uint32_t i = 0; i < 40; i++) golden_feed(&r, i, 1, NULL);
        assert_int_equal(st_run_logits(r.run, &row, 1, &logits, NULL), STRATA_OK);
        if (round == 0) memcpy(first, logits, g.desc->vocab * sizeof *first);
        else assert_memory_equal(first, logits, g.desc->vocab * sizeof *first);
        golden_run_close(&r);
    }
    golden_close(&g);
}

static void prefetching_changes_no_logits(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3moe", "gemma4-moe"};
    for (int n = 0; n < 2; n++)
        for (unsigned prefetch = 1; prefetch <= 3; prefetch++) {
            golden g;
            assert_true(golden_open(&g, names[n]));
            st_plan_options placed = slots_of(2);
            golden_options options = cache_options(&placed, 1);
            options.experts.prefetch = prefetch;
            golden_watch watch;
            golden_watch_open(&watch, &g);
            options.watch = &watch.watch;
            golden_run r;
            golden_run_open(&r, &g, &options);
            check_all(&r, names[n]);
            uint64_t sent = golden_watch_count(&watch, ST_STAT_PREFETCHES);
            if (prefetch & ST_PREFETCH_NEXT) assert_true(sent + golden_watch_count(&watch, ST_STAT_DROPPED) > 0);
            golden_run_close(&r);
            golden_watch_close(&watch);
            golden_close(&g);
        }
}

/* Copies and the CPU are done long before the GPU. */
static void make_gpu_slow(st_profile profiles[ST_DEVICES_MAX])
{
    profiles[ST_HOST] = st_profile_default(ST_DEVICE_HOST);
    profiles[ST_CARD] = st_profile_default(ST_DEVICE_CARD);
    profiles[ST_HOST].memory_rate = 1e9;
    profiles[ST_CARD].memory_rate = 1e6;
    profiles[ST_CARD].link_up = profiles[ST_CARD].link_down = 1e12;
}

/* Advances virtual time, so that uploads complete and the GPU makes progress. */
static void host_works(golden_run *r)
{
    const st_load_device *host = &r->devices[ST_HOST];
    unsigned char bytes[2][4096];
    st_queue *queue;
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(host->backend->queue_new(host->device, ST_QUEUE_COMPUTE, &queue, NULL), STRATA_OK);
    assert_int_equal(host->backend->copy(queue, ST_COPY_WITHIN, bytes[0], bytes[1], sizeof bytes[0], NULL), STRATA_OK);
    host->backend->queue_free(queue);
}

/* A prompt of several batches without logits in between: a batch starts while the GPU still computes the last layer of
 * the previous one. Uploads over a fast link complete first and must not change the tables that the GPU reads. */
static void uploads_completing_during_a_batch_keep_the_logits(void **state)
{
    (void)state;
    st_profile profiles[ST_DEVICES_MAX];
    make_gpu_slow(profiles);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        golden g;
        assert_true(golden_open(&g, "qwen3moe"));
        st_plan_options placed = slots_of(2);
        golden_options options = cache_options(&placed, 7);
        options.profiles = profiles;
        options.experts.deterministic = deterministic;
        options.experts.arms = ST_ARMS_CPU;
        golden_watch watch;
        golden_watch_open(&watch, &g);
        options.watch = &watch.watch;
        golden_run r;
        golden_run_open(&r, &g, &options);
        uint32_t last = (g.token_count - 1) / 7 * 7;
        for (uint32_t i = 0; i < last; i += 7) {
            golden_feed(&r, i, 7, NULL);
            host_works(&r);
        }
        golden_score score = {0};
        golden_feed(&r, last, g.token_count - last, &score);
        if (!(golden_error(&score) <= 2e-5)) fail_msg("deterministic %d: error %g", deterministic, golden_error(&score));
        assert_true(score.rows > 0);
        assert_true(golden_watch_count(&watch, ST_STAT_UPLOADS) > 0);
        golden_run_close(&r);
        golden_watch_close(&watch);
        golden_close(&g);
    }
}

/* The simulated GPU reports a host write to a table that a launched operation reads. */
static void host_write_to_a_table_in_use_is_reported(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "qwen3moe"));
    st_plan_options placed = slots_of(2);
    golden_options options = cache_options(&placed, g.token_count);
    st_profile profiles[ST_DEVICES_MAX];
    make_gpu_slow(profiles);
    options.profiles = profiles;
    golden_run r;
    golden_run_open(&r, &g, &options);
    strata_error error = {0};
    golden_feed(&r, 0, g.token_count, NULL);
    uint32_t layer = g.desc->layer_count - 1, row = 0;
    const void **table = (const void **)(uintptr_t)st_stream_card_parts(st_load_stream(r.load), layer, 0);
    memset(table, 0, g.desc->layers[layer].ffn.experts * sizeof *table);
    const float *logits;
    assert_int_equal(st_run_logits(r.run, &row, 1, &logits, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "after the launch"));
    golden_run_close(&r);
    golden_close(&g);
}

/* After a failed decision, the end of the layer restores each expert to the one device that held it, whatever was
 * fetched for the previous layer. */
static void failed_decision_after_a_fetch_restores_the_tables(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "qwen3moe"));
    assert_int_equal(g.desc->layers[0].ffn.experts_used, 4);
    uint32_t recorded[] = {2, 3}, count = g.desc->layers[1].ffn.experts;
    st_trace_event event = {.layer = 1, .count = 2};
    st_trace warm = {.events = &event, .event_count = 1, .experts = recorded, .row_count = 2};
    st_plan_options placed = slots_of(2);
    golden_options options = cache_options(&placed, 1);
    options.experts.arms = ST_ARMS_FETCH;
    options.experts.warm = &warm; /* layer 1 holds experts 2 and 3 in its slots, layer 0 holds 0 and 1 */
    golden_run r;
    golden_run_open(&r, &g, &options);
    st_stream *stream = st_load_stream(r.load);
    const int32_t fetched[] = {2, 3, 4, 5}, wrong[] = {0, 1, 2, -1};
    const float weights[] = {0.25f, 0.25f, 0.25f, 0.25f};
    st_stream_work work;
    assert_int_equal(st_stream_decide(stream, 0, fetched, weights, 1, &work, NULL), STRATA_OK);
    assert_true(work.waves > 0);
    assert_int_equal(st_stream_end(stream, 0, NULL), STRATA_OK);
    assert_int_equal(st_stream_decide(stream, 1, wrong, weights, 1, &work, NULL), STRATA_DEVICE);
    assert_int_equal(st_stream_end(stream, 1, NULL), STRATA_OK);
    const void *const *card = st_stream_card_parts(stream, 1, 0), *const *host = st_stream_host_parts(stream, 1, 0);
    for (uint32_t e = 0; e < count; e++) assert_int_equal((card[e] != NULL) + (host[e] != NULL), 1);
    assert_non_null(card[2]);
    golden_run_close(&r);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failed_copy_is_tolerated_or_reported),
        cmocka_unit_test(full_upload_queue_keeps_the_logits),
        cmocka_unit_test(two_deterministic_runs_are_identical),
        cmocka_unit_test(prefetching_changes_no_logits),
        cmocka_unit_test(uploads_completing_during_a_batch_keep_the_logits),
        cmocka_unit_test(host_write_to_a_table_in_use_is_reported),
        cmocka_unit_test(failed_decision_after_a_fetch_restores_the_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
