/* src/moe/watch.c: the routing is recorded on every placement, and is the same on all. */
#include "support/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TOKENS = 21 };

typedef struct rig {
    golden g;
    uint32_t experts[16];
    uint64_t bytes[16];
    golden_watch stats;
    char path[64];
} rig;

static void open_watch(rig *r, const char *name)
{
    assert_true(golden_open(&r->g, name));
    uint32_t layers = r->g.desc->layer_count, used = 0;
    for (uint32_t i = 0; i < layers; i++) {
        r->experts[i] = r->g.desc->layers[i].ffn.experts;
        r->bytes[i] = 1;
        if (r->experts[i]) used = r->g.desc->layers[i].ffn.experts_used;
    }
    snprintf(r->path, sizeof r->path, "/tmp/strata-watch-%d", (int)getpid());
    st_trace_shape shape = {.model = "kit", .arch = "kit", .layers = layers, .experts = r->experts[layers - 1], .used = used,
                            .expert_bytes = r->bytes, .dense_bytes = r->bytes};
    golden_watch_open(&r->stats, &r->g);
    assert_int_equal(st_trace_writer_open(r->path, &shape, &r->stats.watch.trace, NULL), STRATA_OK);
}

/* A prompt of 14 in two batches, then token by token; returns the trace. */
static st_trace *watch_run(rig *r, const st_plan_options *placed)
{
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = 7, .threads = 1, .cpu = "ref", .placed = placed,
                              .watch = &r->stats.watch};
    golden_run run;
    strata_error error;
    st_trace *trace = NULL;
    golden_run_open(&run, &r->g, &options);
    for (uint32_t i = 0; i < TOKENS; i += i < 14 ? 7 : 1)
        golden_feed(&run, i, i < 14 ? 7 : 1, NULL);
    const float *logits;
    uint32_t row = 0;
    assert_int_equal(st_run_logits(run.run, &row, 1, &logits, NULL), STRATA_OK);
    golden_run_close(&run);
    assert_int_equal(st_trace_writer_close(r->stats.watch.trace, NULL), STRATA_OK);
    if (st_trace_read(r->path, &trace, &error) != STRATA_OK) fail_msg("%s", error.message);
    return trace;
}

static void close_watch(rig *r)
{
    unlink(r->path);
    golden_watch_close(&r->stats);
    golden_close(&r->g);
}

/* Every miss is fetched or computed on the CPU; it is also uploaded, or a reason is counted. */
static void check_misses(const st_stats *stats)
{
    static const st_stat reasons[] = {ST_STAT_UPLOADS, ST_STAT_QUEUE_FULL,  ST_STAT_COMING, ST_STAT_UNWANTED,
                                      ST_STAT_UNPAID,  ST_STAT_OVER_BUDGET, ST_STAT_NO_ROOM};
    for (int decode = 0; decode < 2; decode++) {
        uint64_t misses = st_stats_total(stats, decode, ST_STAT_MISSES), told = 0;
        for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) told += st_stats_total(stats, decode, reasons[i]);
        assert_true(misses > 0);
        assert_int_equal(misses, told);
        uint64_t fetched = st_stats_total(stats, decode, ST_STAT_FETCHES);
        assert_int_equal(misses, fetched + st_stats_total(stats, decode, ST_STAT_COMPUTED));
    }
}

static void the_trace_is_the_same_on_every_placement(void **state)
{
    (void)state;
    static const st_moe_mode modes[] = {ST_MOE_AUTO, ST_MOE_RESIDENT, ST_MOE_CPU, ST_MOE_CACHE};
    static const char *const names[] = {"qwen3moe", "llama4", "gemma4-moe"}; /* of the last, the GPU can run all */
    for (int n = 0; n < 3; n++) {
        st_trace *first = NULL;
        for (int m = 0; m < 4; m++) {
            static rig r;
            open_watch(&r, names[n]);
            st_plan_options placed = st_plan_options_default();
            placed.layers = ST_LAYERS_ALL;
            placed.moe = modes[m];
            if (modes[m] == ST_MOE_CACHE) placed.expert_slots = 2;
            st_trace *trace = watch_run(&r, modes[m] == ST_MOE_AUTO ? NULL : &placed);
            uint32_t moe = 0;
            for (uint32_t l = 0; l < r.g.desc->layer_count; l++) moe += r.experts[l] > 0;
            assert_int_equal(trace->event_count, (size_t)moe * TOKENS);
            assert_int_equal(trace->decode_tokens, TOKENS - 14);
            assert_int_equal(st_stats_total(r.stats.watch.stats, false, ST_STAT_EVENTS), 2 * moe);
            assert_int_equal(st_stats_total(r.stats.watch.stats, true, ST_STAT_EVENTS), (TOKENS - 14) * moe);
            uint64_t misses = st_stats_total(r.stats.watch.stats, true, ST_STAT_MISSES);
            if (modes[m] != ST_MOE_CACHE) assert_int_equal(misses, 0);
            else check_misses(r.stats.watch.stats);
            if (!first) {
                first = trace;
            } else {
                assert_int_equal(trace->row_count, first->row_count);
                assert_memory_equal(trace->experts, first->experts, trace->row_count * sizeof *trace->experts);
                st_trace_free(trace);
            }
            close_watch(&r);
        }
        st_trace_free(first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_trace_is_the_same_on_every_placement)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
