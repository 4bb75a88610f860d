/* Every family split between the CPU and a GPU (simulated, or the backend of support/mirror.h): the logits are those of
 * the CPU, the device's memory is exactly as planned, and closing frees all of it. */
#include "support/golden.h"

#include <stdio.h>

#include "support/mirror.h"

/* Whether the device's memory is as planned while it runs, and free when it is closed. */
static void check_memory(golden_run *r)
{
    st_sim_world *world = r->world;
    if (world) assert_true(r->plan->device_count == 1 || st_sim_used_bytes(world) == r->plan->devices[ST_CARD].block_bytes);
    r->world = NULL;
    golden_run_close(r);
    if (world) assert_int_equal(st_sim_used_bytes(world), 0);
    st_sim_world_free(world);
}

/* The whole prompt and greedy decoding on that placement. */
static void run_with_policy(const golden_family *family, const golden *g, const st_plan_options *placed, uint32_t batch, uint32_t layers,
                            const char *policy)
{
    const char *name = family->name;
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = batch, .threads = 1, .nextn = g->nextn_logits != NULL,
                              .cpu = "ref", .placed = placed, .experts.policy = policy};
    double error_max = mirror_name() ? 1e-3 : family->error_max;
    golden_run r;
    golden_run_open(&r, g, &options);
    assert_int_equal(r.plan->layers_on_card, layers);
    golden_score score = {0};
    golden_feed(&r, 0, g->token_count, &score);
    if (mirror_name())
        print_message("# error %-14s %2u layers, experts %d, %2d slots, batch %2u: %9.2e of %.0e, %u of %u argmaxes\n", name,
                      layers, (int)placed->moe, (int)placed->expert_slots, batch, golden_error(&score), error_max, score.agree,
                      score.rows);
    if (!(golden_error(&score) <= error_max)) fail_msg("%s, %u layers, batch %u: relative error %g", name, layers, batch, golden_error(&score));
    assert_int_equal(score.agree, score.rows);
    assert_int_equal(score.rows, g->row_count);
    if (options.nextn && !(golden_nextn_error(&score) <= error_max)) fail_msg("%s, %u layers: NextN error %g", name, layers, golden_nextn_error(&score));
    assert_int_equal(golden_greedy(&r, 1e-3f), g->greedy_count);
    check_memory(&r);
}

/* The same, of a plan that streams dense parts if any are in RAM and the batch is large enough. */
static void run_streamed(const golden_family *family, const golden *g, const st_plan_options *placed, uint32_t batch, uint32_t layers)
{
    bool dense = false;
    for (uint32_t l = 0; l < g->desc->layer_count; l++) {
        const st_ffn_desc *ffn = &g->desc->layers[l].ffn;
        dense = dense || (ffn->experts == 0 && (ffn->dense_width > 0 || l >= layers));
    }
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = batch, .threads = 1, .cpu = "ref", .placed = placed};
    golden_run r;
    golden_run_open(&r, g, &options);
    assert_int_equal(r.plan->dense.rows, dense && batch >= placed->dense_rows ? placed->dense_rows : 0);
    golden_run_close(&r);
    run_with_policy(family, g, placed, batch, layers, NULL);
}

static void run_placed(const golden_family *family, const golden *g, const st_plan_options *placed, uint32_t batch, uint32_t layers)
{
    run_with_policy(family, g, placed, batch, layers, NULL);
}

static void some_layers_on_the_gpu(void **state)
{
    const golden_family *family = *state;
    golden g;
    if (!golden_open(&g, family->name)) skip();
    uint32_t all = g.desc->layer_count, counts[] = {0, 1, all / 2, all};
    for (size_t k = 0; k < 4; k++) {
        st_plan_options options = st_plan_options_default();
        options.layers = (int32_t)counts[k];
        run_placed(family, &g, &options, k % 2 ? 7 : g.token_count, counts[k]);
    }
    golden_close(&g);
}

static void only_attention_on_the_gpu(void **state)
{
    const golden_family *family = *state;
    golden g;
    if (!golden_open(&g, family->name)) skip();
    st_plan_options options = st_plan_options_default();
    options.layers = ST_LAYERS_ALL;
    options.moe = ST_MOE_CPU;
    options.cpu_ffn_layers = g.desc->layer_count;
    run_placed(family, &g, &options, g.token_count, g.desc->layer_count);
    run_placed(family, &g, &options, 1, g.desc->layer_count);
    golden_close(&g);
}

static const uint32_t batches[] = {1, 7, 48};

/* Dense parts in RAM that the GPU runs in steps of many rows: of layers on the GPU and, with half of the layers there, of
 * layers on the host. With 5 rows of 7 the steps of the prompt's end and of decoding run them on the host. A GPU may start
 * launches of few rows early, which must not read streamed weights. */
static void dense_parts_streamed(void **state)
{
    const golden_family *family = *state;
    golden g;
    if (!golden_open(&g, family->name)) skip();
    uint32_t all = g.desc->layer_count;
    static const uint32_t rows[] = {1, 5, 40};
    for (size_t b = 0; b < 3; b++)
        for (int half = 0; half < 2; half++) {
            if (kit_is_slow() && half != (int)(b % 2)) continue;
            st_plan_options options = st_plan_options_default();
            options.layers = half ? (int32_t)(all + 1) / 2 : ST_LAYERS_ALL;
            options.moe = ST_MOE_CPU;
            options.cpu_ffn_layers = all;
            options.dense_rows = mirror_name() ? ST_EARLY_ROWS_MAX + 1 : rows[b];
            run_streamed(family, &g, &options, batches[b], half ? (all + 1) / 2 : all);
        }
    golden_close(&g);
}

/* From one slot to all, any batch. */
static void experts_in_slots(void **state)
{
    const golden_family *family = *state;
    golden g;
    if (!golden_open(&g, family->name)) skip();
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
            const char *policy = st_cache_policy_name((slots + b) % st_cache_policy_count()); /* every policy is used */
            run_with_policy(family, &g, &options, batches[b], layers, policy);
        }
    golden_close(&g);
}

static void experts_on_one_device(void **state)
{
    const golden_family *family = *state;
    golden g;
    if (!golden_open(&g, family->name)) skip();
    for (size_t b = kit_is_slow() ? 2 : 0; b < 3; b++) {
        st_plan_options options = st_plan_options_default();
        options.layers = ST_LAYERS_ALL;
        options.moe = ST_MOE_RESIDENT;
        run_placed(family, &g, &options, batches[b], g.desc->layer_count);
        options.moe = ST_MOE_CPU;
        run_placed(family, &g, &options, batches[b], g.desc->layer_count);
    }
    golden_close(&g);
}

enum { KINDS = 5, FAMILIES_MAX = 64 };

int main(int argc, char **argv)
{
    static const struct { const char *name; CMUnitTestFunction run; bool experts; } kinds[KINDS] = {
        {"some layers", some_layers_on_the_gpu, false}, {"attention alone", only_attention_on_the_gpu, false},
        {"dense parts streamed", dense_parts_streamed, false},
        {"experts in slots", experts_in_slots, true}, {"experts on one device", experts_on_one_device, true}};
    static struct CMUnitTest tests[KINDS * FAMILIES_MAX];
    static char names[KINDS * FAMILIES_MAX][64];
    size_t count = 0;
    for (size_t f = 0; f < golden_family_count && f < FAMILIES_MAX; f++)
        for (size_t k = 0; k < KINDS; k++) {
            const golden_family *family = &golden_families[f];
            if ((kinds[k].experts && !(family->flags & GOLDEN_EXPERTS)) || golden_is_long(family)) continue;
            snprintf(names[count], sizeof *names, "%s: %s", family->name, kinds[k].name);
            tests[count] = (struct CMUnitTest){.name = names[count], .test_func = kinds[k].run,
                                               .initial_state = (void *)(uintptr_t)family};
            count++;
        }
    return kit_run("placed", tests, count, NULL, NULL, argc, argv);
}
