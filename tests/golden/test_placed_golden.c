/* Every family split between the CPU and the simulated card: the same logits as on the CPU, planned bytes taken to the byte,
 * and nothing left on the card. */
#include "support/golden.h"

#include <stdio.h>

static const char *const families[] = {"llama",  "mixtral",  "qwen2",        "qwen3",      "qwen2moe", "qwen3moe", "olmoe",
                                       "llama4", "gemma4-e", "gemma4-dense", "gemma4-moe", "qwen35",   "qwen35moe"};

/* The whole prompt and what follows greedily, on that placement. */
static void run_with_policy(const char *name, const golden *g, const st_plan_options *placed, uint32_t batch, uint32_t layers,
                            const char *policy)
{
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = batch, .threads = 1, .nextn = g->nextn_logits != NULL,
                              .cpu = "ref", .placed = placed, .experts.policy = policy};
    golden_run r;
    golden_run_open(&r, g, &options);
    assert_int_equal(r.plan->layers_on_card, layers);
    golden_score score = {0};
    golden_feed(&r, 0, g->token_count, &score);
    if (!(golden_error(&score) <= 2e-5)) fail_msg("%s, %u layers, batch %u: relative error %g", name, layers, batch, golden_error(&score));
    assert_int_equal(score.agree, score.rows);
    assert_int_equal(score.rows, g->row_count);
    if (options.nextn && !(golden_nextn_error(&score) <= 2e-5)) fail_msg("%s, %u layers: NextN error %g", name, layers, golden_nextn_error(&score));
    assert_int_equal(golden_greedy(&r, 1e-3f), g->greedy_count);
    assert_true(r.plan->device_count == 1 || st_sim_used_bytes(r.world) == r.plan->devices[ST_CARD].block_bytes);
    st_sim_world *world = r.world;
    r.world = NULL;
    golden_run_close(&r);
    assert_int_equal(st_sim_used_bytes(world), 0);
    st_sim_world_free(world);
}

static void run_placed(const char *name, const golden *g, const st_plan_options *placed, uint32_t batch, uint32_t layers)
{
    run_with_policy(name, g, placed, batch, layers, NULL);
}

static void some_layers_on_the_card(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        golden g;
        assert_true(golden_open(&g, families[i]));
        uint32_t all = g.desc->layer_count, counts[] = {0, 1, all / 2, all};
        for (size_t k = 0; k < 4; k++) {
            st_plan_options options = st_plan_options_default();
            options.layers = (int32_t)counts[k];
            run_placed(families[i], &g, &options, k % 2 ? 7 : g.token_count, counts[k]);
        }
        golden_close(&g);
    }
}

static void the_trunk_alone_on_the_card(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        golden g;
        assert_true(golden_open(&g, families[i]));
        st_plan_options options = st_plan_options_default();
        options.layers = ST_LAYERS_ALL;
        options.moe = ST_MOE_CPU;
        options.cpu_ffn_layers = g.desc->layer_count;
        run_placed(families[i], &g, &options, g.token_count, g.desc->layer_count);
        run_placed(families[i], &g, &options, 1, g.desc->layer_count);
        golden_close(&g);
    }
}

/* Every mode, few slots to all, any batch. */
static void experts_in_every_mode(void **state)
{
    (void)state;
    static const char *const names[] = {"mixtral", "qwen2moe", "qwen3moe", "olmoe", "llama4", "gemma4-moe", "qwen35moe"};
    static const uint32_t batches[] = {1, 7, 48};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        golden g;
        assert_true(golden_open(&g, names[i]));
        uint32_t layers = g.desc->layer_count, experts = 0;
        for (uint32_t l = 0; l < layers; l++)
            if (g.desc->layers[l].ffn.experts > experts) experts = g.desc->layers[l].ffn.experts;
        uint32_t stride = kit_is_slow() ? (experts - 1) / 2 : 1;
        for (uint32_t slots = 1; slots <= experts; slots += stride)
            for (size_t b = 0; b < 3; b++) {
                if (kit_is_slow() && b != slots % 3) continue;
                st_plan_options options = st_plan_options_default();
                options.layers = ST_LAYERS_ALL;
                options.moe = ST_MOE_CACHE;
                options.expert_slots = (int32_t)slots;
                const char *policy = st_cache_policy_name((slots + b) % st_cache_policy_count()); /* all have their turn */
                run_with_policy(names[i], &g, &options, batches[b], layers, policy);
            }
        for (size_t b = kit_is_slow() ? 2 : 0; b < 3; b++) {
            st_plan_options options = st_plan_options_default();
            options.layers = ST_LAYERS_ALL;
            options.moe = ST_MOE_RESIDENT;
            run_placed(names[i], &g, &options, batches[b], layers);
            options.moe = ST_MOE_CPU;
            run_placed(names[i], &g, &options, batches[b], layers);
        }
        golden_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(some_layers_on_the_card),
        cmocka_unit_test(the_trunk_alone_on_the_card),
        cmocka_unit_test(experts_in_every_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
