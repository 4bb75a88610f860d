/* src/plan on the shapes of real models, on a card of 12 GiB: what the user of such a card is promised. */
#include "support/plan_rig.h"

#include <string.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

static const plan_shape qwen3_8b = {.arch = "qwen3",
                                    .layers = 36,
                                    .embedding = 4096,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .head = 128,
                                    .ffn = 12288,
                                    .vocab = 151936,
                                    .context = 40960,
                                    .type = ST_TYPE_Q4_K,
                                    .big = ST_TYPE_Q6_K};
static const plan_shape qwen3_30b_a3b = {.arch = "qwen3moe",
                                         .layers = 48,
                                         .embedding = 2048,
                                         .heads = 32,
                                         .kv_heads = 4,
                                         .head = 128,
                                         .vocab = 151936,
                                         .context = 262144,
                                         .experts = 128,
                                         .used = 8,
                                         .expert_width = 768,
                                         .type = ST_TYPE_Q4_K,
                                         .big = ST_TYPE_Q6_K};
static const plan_shape gemma4_12b = {.arch = "gemma4",
                                      .layers = 48,
                                      .embedding = 3840,
                                      .heads = 16,
                                      .kv_heads = 8,
                                      .full_kv_heads = 1,
                                      .head = 512,
                                      .window_head = 256,
                                      .window = 1024,
                                      .full_every = 6,
                                      .ffn = 15360,
                                      .vocab = 262144,
                                      .context = 262144,
                                      .tied = true,
                                      .type = ST_TYPE_Q4_0,
                                      .big = ST_TYPE_Q6_K};
static const plan_shape llama4_scout = {.arch = "llama4", .layers = 48, .embedding = 5120, .heads = 40, .kv_heads = 8,
                                        .head = 128, .ffn = 16384, .vocab = 202048, .context = 10485760, .experts = 16,
                                        .used = 1, .expert_width = 8192, .type = ST_TYPE_Q4_K, .big = ST_TYPE_Q6_K};
static const plan_shape qwen35_27b = {.arch = "qwen35", .layers = 64, .embedding = 5120, .heads = 24, .kv_heads = 4,
                                      .head = 256, .ffn = 17408, .vocab = 248320, .context = 262144, .delta_keys = 16,
                                      .delta_values = 48, .delta_size = 128, .nextn = true, .type = ST_TYPE_Q4_K,
                                      .big = ST_TYPE_Q6_K};

/* The card and the RAM of the page, with what a driver takes and the default margins. */
static void open_desktop(plan_rig *rig, const plan_shape *shape, uint64_t ram)
{
    plan_rig_open(rig, shape);
    st_profile *host = &rig->devices[ST_HOST], *card = &rig->devices[ST_CARD];
    card->total_bytes = card->free_bytes = 12 * GIB;
    card->overhead_bytes = 500 * MIB;
    card->granularity = 2 * MIB;
    host->total_bytes = host->free_bytes = ram;
    host->granularity = 4096;
    host->memory_rate = 42e9;
    card->memory_rate = 378e9;
    rig->options = st_plan_options_default();
    rig->options.workers[ST_HOST] = 12;
    rig->options.snapshots = 4;
}

static void all_of_qwen3_8b(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_8b, 64 * GIB);
    rig.options.kv_type = ST_TYPE_BF16;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->context, 40960);
    assert_int_equal(rig.plan->ffn_on_card, 36);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_KV], (uint64_t)40960 * 144 * 1024);
    plan_rig_close(&rig);
}

/* Rings saturate: the whole context fits beside the weights, and the margin is left alone. */
static void all_of_gemma4_12b(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &gemma4_12b, 64 * GIB);
    rig.options.kv_type = ST_TYPE_Q8_0;
    for (int i = 0; i < 2; i++) {
        rig.options.context = i ? 999999999 : 0;
        plan_rig_get(&rig);
        assert_int_equal(rig.plan->context, 262144);
        assert_int_equal(rig.plan->ffn_on_card, 48);
        assert_int_equal(rig.plan->devices[ST_CARD].margin_bytes, 256 * MIB);
        /* Eight full layers of one head of 512, forty rings of 1024 + 511 positions of eight heads of 256; 34 bytes
         * by 32. */
        uint64_t full = 8 * (uint64_t)262144 * 2 * (512 / 32 * 34),
                 rings = 40 * (uint64_t)1535 * 2 * (8 * 256 / 32 * 34);
        assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_KV], full + rings);
    }
    plan_rig_close(&rig);
}

static void the_trunk_of_qwen3_30b_a3b(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_30b_a3b, 64 * GIB);
    rig.options.layers = ST_LAYERS_ALL;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->layers_on_card, 48);
    assert_int_equal(rig.plan->experts.mode, ST_MOE_CACHE);
    assert_true(rig.plan->experts.budget_bytes > 6 * GIB);
    assert_int_equal(rig.plan->batch, 2048);
    assert_true(rig.plan->context >= 8192);
    plan_rig_close(&rig);
}

static void llama4_scout_in_ram(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &llama4_scout, 64 * GIB);
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->layers_on_card, 48);
    double in_ram = rig.plan->speed.decode_tps;
    rig.devices[ST_HOST].free_bytes = 32 * GIB;
    assert_int_equal(plan_rig_plan(&rig), STRATA_MEMORY);
    assert_non_null(strstr(rig.error.message, "RAM: the weights beside the card's"));
    assert_non_null(strstr(rig.error.message, "bytes are missing"));
    assert_non_null(strstr(rig.error.hint, "--disk"));
    rig.options.disk = true;
    plan_rig_get(&rig);
    assert_true(rig.plan->on_disk);
    assert_true(rig.plan->speed.decode_tps < in_ram / 2);
    assert_string_equal(rig.plan->speed.limit, "the disk");
    plan_rig_close(&rig);
}

/* A dense model of 17 GB: all attention and state, a part of the feed-forward parts; none with half the card. */
static void a_part_of_qwen35_27b(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen35_27b, 64 * GIB);
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->layers_on_card, 64);
    assert_true(rig.plan->output_on_card);
    assert_true(rig.plan->ffn_on_card > 20 && rig.plan->ffn_on_card < 64);
    assert_true(rig.plan->context >= 8192);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_STATE], 156893184);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_SNAPSHOTS], 4 * (uint64_t)156893184);
    uint32_t ffn = rig.plan->ffn_on_card;
    rig.options.nextn = true; /* comes last */
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->kv_device[64], ST_HOST);
    assert_true(rig.plan->ffn_on_card <= ffn);
    plan_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_qwen3_8b),
        cmocka_unit_test(all_of_gemma4_12b),
        cmocka_unit_test(the_trunk_of_qwen3_30b_a3b),
        cmocka_unit_test(llama4_scout_in_ram),
        cmocka_unit_test(a_part_of_qwen35_27b),
    };
    return cmocka_run_group_tests_name("plan, real shapes", tests, NULL, NULL);
}
