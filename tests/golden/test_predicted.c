/* The planner's prediction against the virtual clock of the simulated devices: the same work, priced twice. */
#include "support/clock_rig.h"
#include "support/golden.h"

#include <math.h>
#include <stdio.h>

/* Slow enough that a tiny model's bytes and operations are not lost in the latencies. */
static void slow_devices(st_profile profiles[ST_DEVICES_MAX])
{
    for (int d = 0; d < ST_DEVICES_MAX; d++) profiles[d] = st_profile_default(d == ST_HOST ? ST_DEVICE_HOST : ST_DEVICE_CARD);
    profiles[ST_HOST].memory_rate = 60e6;
    profiles[ST_HOST].op_rate = 200e6;
    profiles[ST_CARD].memory_rate = 504e6;
    profiles[ST_CARD].op_rate = 4e9;
    profiles[ST_CARD].link_up = profiles[ST_CARD].link_down = 25e6;
    profiles[ST_CARD].handover_seconds = 500e-6;
    for (int d = 0; d < ST_DEVICES_MAX; d++)
        for (int c = 0; c < ST_CLASS_COUNT; c++)
            profiles[d].classes[c] = (st_class_rates){.seconds = (c + 1) * 20e-6, .deep_seconds = 800e-6, .memory_share = 0.9,
                                                      .op_share = 0.7, .fill = c == ST_CLASS_PLAIN_PRODUCT ? 200 : 3,
                                                      .batch_seconds = c == ST_CLASS_PLAIN_PRODUCT ? 40e-6 : 0};
}

static void check_close(const char *what, const char *name, double found, double expected)
{
    if (!(fabs(found / expected - 1) <= 0.02)) fail_msg("%s: %s %g t/s on the clock, %g predicted", name, what, found, expected);
}

/* `faster`: how much faster the link and the RAM are. */
static void compare_on(const char *name, const golden *g, const st_plan_options *placed, st_watch *watch, double faster)
{
    st_profile profiles[ST_DEVICES_MAX];
    slow_devices(profiles);
    profiles[ST_CARD].link_up *= faster;
    profiles[ST_CARD].link_down *= faster;
    profiles[ST_HOST].memory_rate *= faster;
    golden_options options = {.kv_type = ST_TYPE_BF16, .batch = 16, .threads = 1, .cpu = "ref", .placed = placed,
                              .profiles = profiles, .watch = watch};
    golden_run r;
    golden_run_open(&r, g, &options);
    strata_error error;
    double start = st_sim_world_seconds(r.world);
    golden_feed(&r, 0, 48, NULL);
    clock_head(r.run, 15, true);
    double filled = st_sim_world_seconds(r.world);
    if (golden_step(&r, r.conversation, g->tokens, 1, &error) != STRATA_OK) fail_msg("%s", error.message);
    clock_head(r.run, 0, false);
    double decoded = st_sim_world_seconds(r.world);
    st_plan_speed speed = st_plan_predict(&r.source, r.plan, 48, 48, -1);
    check_close("prefill", name, 48 / (filled - start), speed.prefill_tps);
    check_close("decode", name, 1 / (decoded - filled), speed.decode_tps);
    golden_run_close(&r);
}

static void compare(const char *name, const golden *g, const st_plan_options *placed, st_watch *watch)
{
    compare_on(name, g, placed, watch, 1);
}

static void prediction_matches_the_clock_on_every_placement(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "mixtral", "qwen2moe", "llama4", "gemma4-e", "gemma4-moe", "qwen35moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g;
        assert_true(golden_open(&g, names[i]));
        for (int32_t layers = 1; layers <= (int32_t)g.desc->layer_count; layers++) {
            st_plan_options placed = st_plan_options_default();
            placed.layers = layers;
            placed.moe = layers % 2 ? ST_MOE_CPU : ST_MOE_RESIDENT;
            placed.cpu_ffn_layers = layers % 3 == 0 ? 2 : 0;
            compare(names[i], &g, &placed, NULL);
        }
        golden_close(&g);
    }
}

/* Watching the routing copies it to the host and waits for it, layer by layer; the planner prices that too. */
static void watching_the_routing_is_priced(void **state)
{
    (void)state;
    static const char *const names[] = {"mixtral", "qwen2moe", "qwen35moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g;
        st_watch watch = {0}; /* counts nothing and writes nothing */
        assert_true(golden_open(&g, names[i]));
        st_plan_options placed = st_plan_options_default();
        placed.layers = ST_LAYERS_ALL;
        placed.moe = ST_MOE_RESIDENT;
        compare(names[i], &g, &placed, &watch);
        golden_close(&g);
    }
}

/* Prompts run dense parts in RAM on the GPU: copies and computation overlap as the planner says, for links that are
 * slower and faster than the GPU. */
static void streamed_dense_parts_are_priced(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen3", "gemma4-e", "qwen35"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g;
        assert_true(golden_open(&g, names[i]));
        for (int32_t layers = (int32_t)g.desc->layer_count; layers > 0; layers -= 2)
            for (int fast = 0; fast < 2; fast++) {
                st_plan_options placed = st_plan_options_default();
                placed.layers = layers;
                placed.cpu_ffn_layers = (uint32_t)layers;
                placed.dense_rows = 2;
                compare_on(names[i], &g, &placed, NULL, fast ? 8 : 1);
            }
        golden_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prediction_matches_the_clock_on_every_placement),
        cmocka_unit_test(watching_the_routing_is_priced),
        cmocka_unit_test(streamed_dense_parts_are_priced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
