/* src/plan on the shapes of real models, with a GPU of 12 GiB: the placements that the documentation promises. */
#include "support/full_size.h"
#include "support/plan_rig.h"

#include <stdio.h>
#include <string.h>

#include "plan/alternatives.h"
#include "sampler/candidates.h"

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

/* The driver's memory and the default margins of a desktop. */
static void set_desktop(plan_rig *rig, uint64_t vram, uint64_t ram)
{
    st_profile *host = &rig->devices[ST_HOST], *card = &rig->devices[ST_CARD];
    card->total_bytes = card->free_bytes = vram;
    card->overhead_bytes = 500 * MIB;
    card->granularity = 2 * MIB;
    host->total_bytes = host->free_bytes = ram;
    host->granularity = 4096;
    host->memory_rate = 42e9;
    card->memory_rate = 378e9;
    rig->options = st_plan_options_default();
    rig->options.workers[ST_HOST] = 12;
}

/* The GPU and the RAM of docs/plan.md. */
static void open_desktop(plan_rig *rig, const plan_shape *shape, uint64_t ram)
{
    plan_rig_open(rig, shape);
    set_desktop(rig, 12 * GIB, ram);
}

enum { PAGE = ST_KV_PAGE_TOKENS };

static void qwen3_8b_fits_the_gpu(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_8b, 64 * GIB);
    rig.options.kv_type = ST_TYPE_BF16;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->context, 40960);
    assert_int_equal(rig.plan->ffn_on_card, 36);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_KV], (uint64_t)(40960 + PAGE) * 144 * 1024);
    plan_rig_close(&rig);
}

/* Window layers stop growing at their window, so the whole context fits beside the weights, outside the margin. */
static void gemma4_12b_fits_the_gpu(void **state)
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
        /* Eight full layers of one head of 512; forty with a window of 1024, eight heads of 256: 16 pages and one for where
         * they begin, a spare one, one that is being filled, and 8 for a batch of 512; 34 bytes by 32. */
        uint64_t full = 8 * (uint64_t)(262144 + PAGE) * 2 * (512 / 32 * 34),
                 windows = 40 * (uint64_t)(16 + 3 + 8) * PAGE * 2 * (8 * 256 / 32 * 34);
        assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_KV], full + windows);
    }
    plan_rig_close(&rig);
}

static void qwen3_30b_a3b_uses_an_expert_cache(void **state)
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

/* The sums of docs/plan.md, but the wider tensors are in other layers: all values, and down in the second half. */
static void bytes_agree_with_the_documentation(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_30b_a3b, 64 * GIB);
    rig.options.context = 32768;
    rig.options.out_rows = 16;
    rig.options.workers[ST_HOST] = 8;
    rig.options.workers[ST_CARD] = 1;
    rig.options.moe = ST_MOE_CACHE;
    plan_rig_get(&rig);
    uint64_t narrow = 2654208, wide = 3059712; /* an expert */
    uint64_t layer = 17408 + 2 * 4718592 + 589824 + 860160 + 1048576, output = 255252480 + 8192;
    uint64_t weights = 48 * layer + output, kv = (uint64_t)48 * (32768 + PAGE) * 2 * 4 * 128 * 2;
    uint64_t shared = 159451392, worker = (2048 + 2 * 768 + 2048) * 4, host_worker = 712704, sums = (uint64_t)2 * 2048 * 2048 * 4;
    st_step_limits step = {.rows = 2048, .out_rows = 16, .conversations = 1, .tables = 32768 / PAGE};
    uint64_t steps = 2 * ((st_step_bytes(&step) + 255) / 256 * 256);
    uint64_t work = (uint64_t)2048 * 49664 + (uint64_t)16 * (2048 + 151936) * 4 + steps;
    uint64_t lists = (16 * sizeof(st_adjustments) + 255) / 256 * 256, best = 16 * sizeof(st_candidates);
    uint64_t reduced = lists + (best + 255) / 256 * 256;
    uint64_t fixed = weights + kv + work + worker + sums + reduced + 10 * wide;
    uint64_t room = (12 * GIB - 756 * MIB) / (2 * MIB) * (2 * MIB) - fixed, all = 24 * narrow + 24 * wide;
    uint64_t slots = room / all * all, left = room % all, more = left / narrow < 24 ? left / narrow : 24;
    slots += more * narrow;
    if (more == 24) slots += (left - 24 * narrow) / wide * wide;
    const uint64_t *card = rig.plan->devices[ST_CARD].owners, *host = rig.plan->devices[ST_HOST].owners;
    assert_int_equal(card[ST_OWNER_RUNTIME], 500 * MIB);
    assert_int_equal(card[ST_OWNER_WEIGHTS], weights);
    assert_int_equal(card[ST_OWNER_KV], kv);
    assert_int_equal(card[ST_OWNER_SCRATCH], work + worker + sums + reduced);
    assert_int_equal(card[ST_OWNER_STAGING], 10 * wide);
    assert_int_equal(card[ST_OWNER_SLOTS], slots);
    assert_int_equal(card[ST_OWNER_PADDING], 0);
    assert_int_equal(card[ST_OWNER_GRANULARITY], (2 * MIB - (fixed + slots) % (2 * MIB)) % (2 * MIB));
    assert_int_equal(host[ST_OWNER_WEIGHTS], 175030272);
    assert_int_equal(host[ST_OWNER_EXPERTS], 128 * all);
    assert_int_equal(host[ST_OWNER_SCRATCH], work + shared + 8 * host_worker);
    assert_int_equal(host[ST_OWNER_STAGING], steps + (16 + 1) * 151936 * 4 + lists + best);
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
    assert_non_null(strstr(rig.error.message, "RAM: the weights that are not on the GPU"));
    assert_non_null(strstr(rig.error.message, "bytes are missing"));
    assert_non_null(strstr(rig.error.hint, "placement.disk"));
    rig.options.disk = true;
    plan_rig_get(&rig);
    assert_true(rig.plan->on_disk);
    assert_true(rig.plan->speed.decode_tps < in_ram / 2);
    assert_string_equal(rig.plan->speed.limit, "the disk");
    plan_rig_close(&rig);
}

/* A dense model of 17 GB: attention and state of all layers and some feed-forward parts are on the GPU. */
static void qwen35_27b_is_split(void **state)
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
    assert_int_equal(rig.plan->devices[ST_HOST].owners[ST_OWNER_RESTORE], 4 * (uint64_t)156893184);
    uint32_t ffn = rig.plan->ffn_on_card;
    rig.options.nextn = true; /* the NextN block is placed last */
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->kv_device[64], ST_HOST);
    assert_true(rig.plan->ffn_on_card <= ffn);
    plan_rig_close(&rig);
}

/* ---- other plans ------------------------------------------------------------------------------------------------- */

static st_alternatives alternatives_of(plan_rig *rig)
{
    st_alternatives found;
    strata_error error = {0};
    plan_rig_get(rig);
    if (st_plan_alternatives(&rig->source, &rig->options, rig->plan, &found, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    return found;
}

/* At 131,072 tokens a KV cache of q8_0 leaves room for expert slots. */
static void a_long_context_wants_another_kv_type(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_30b_a3b, 64 * GIB);
    rig.options.context = 131072;
    st_alternatives a = alternatives_of(&rig);
    if (strncmp(a.advice, "options.kv_type q8_0: ", 22) != 0) fail_msg("%s", a.advice);
    double now = rig.plan->speed.decode_tps;
    rig.options.kv_type = ST_TYPE_Q8_0;
    plan_rig_get(&rig);
    char rates[64];
    snprintf(rates, sizeof rates, ": %.1f t/s instead of %.1f t/s", rig.plan->speed.decode_tps, now);
    assert_non_null(strstr(a.advice, rates));
    assert_true(rig.plan->speed.decode_tps > 1.5 * now);
    a = alternatives_of(&rig);
    assert_int_equal(strncmp(a.advice, "options.kv_type", 15) == 0, false); /* it is q8_0 already */
    plan_rig_close(&rig);
}

/* Options that hold the plan back are named. */
static void options_that_slow_a_plan_down_are_named(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_30b_a3b, 64 * GIB);
    rig.options.context = 8192;
    rig.options.layers = 3;
    assert_int_equal(strncmp(alternatives_of(&rig).advice, "without placement.layers: ", 26), 0);
    rig.options.layers = ST_LAYERS_AUTO;
    rig.options.moe = ST_MOE_CPU;
    assert_int_equal(strncmp(alternatives_of(&rig).advice, "without placement.moe: ", 23), 0);
    plan_rig_close(&rig);
}

/* The table's cell of the plan's context and KV type is the plan, and the longest contexts fit. */
static void the_table_agrees_with_the_plan(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_8b, 10 * GIB);
    rig.devices[ST_CARD].total_bytes = rig.devices[ST_CARD].free_bytes = 8 * GIB;
    rig.options.layers = ST_LAYERS_ALL;
    st_alternatives a = alternatives_of(&rig);
    assert_true(a.type_count == 2 && a.types[0] == ST_TYPE_F16 && a.types[1] == ST_TYPE_Q8_0);
    bool found = false;
    for (uint32_t j = 0; j < a.context_count; j++) {
        assert_true(j == 0 || a.table[0][j].context > a.table[0][j - 1].context);
        if (a.table[0][j].context != rig.plan->context) continue;
        found = a.table[0][j].decode_tps == rig.plan->speed.decode_tps;
    }
    assert_true(found);
    for (uint32_t i = 0; i < a.type_count; i++) {
        rig.options.kv_type = (int32_t)a.types[i];
        rig.options.context = a.longest[i];
        assert_int_equal(plan_rig_plan(&rig), STRATA_OK);
        rig.options.context = a.longest[i] + 1024;
        if (a.longest[i] < rig.source.desc->context_max) assert_int_equal(plan_rig_plan(&rig), STRATA_MEMORY);
    }
    assert_true(a.longest[1] > a.longest[0]);
    plan_rig_close(&rig);
}

/* From disk all weights are read; from the page cache only the GPU's are copied. */
static void load_times_follow_the_rates(void **state)
{
    (void)state;
    plan_rig rig;
    open_desktop(&rig, &qwen3_8b, 64 * GIB);
    rig.devices[ST_HOST].disk_rate = 2e9;
    rig.devices[ST_CARD].link_up = 10e9;
    plan_rig_get(&rig);
    st_load_times times = st_plan_load_times(&rig.source, rig.plan);
    double copied = (double)rig.plan->devices[ST_CARD].owners[ST_OWNER_WEIGHTS];
    assert_true(times.cache_seconds == copied / 10e9);
    assert_true(times.disk_seconds > copied / 2e9 && times.disk_seconds < 1.2 * copied / 2e9);
    rig.source.device_count = 1;
    plan_rig_get(&rig);
    assert_true(st_plan_load_times(&rig.source, rig.plan).cache_seconds == 0.0);
    plan_rig_close(&rig);
}

static void open_full_size(plan_rig *rig, const char *name, uint64_t vram, uint64_t ram)
{
    for (int i = 0; i < FULL_SIZES; i++) {
        if (strcmp(full_sizes[i].name, name) != 0) continue;
        gguf_writer writer;
        gguf_writer_begin(&writer, 3);
        full_sizes[i].write(&writer);
        plan_rig_open_file(rig, &writer);
        set_desktop(rig, vram, ram);
        return;
    }
    fail_msg("no model %s", name);
}

/* A plan, or a refusal with the bytes that are missing. */
static void full_size_models(void **state)
{
    (void)state;
    static const struct { uint64_t vram, ram; bool fits[FULL_SIZES]; } machines[] = {
        {12 * GIB, 64 * GIB, {true, true, false, false, true}}, {24 * GIB, 192 * GIB, {true, true, false, true, true}}};
    for (size_t m = 0; m < 2; m++)
        for (int i = 0; i < FULL_SIZES; i++) {
            plan_rig rig;
            open_full_size(&rig, full_sizes[i].name, machines[m].vram, machines[m].ram);
            print_message("# %s: file %.1f GB, %d GiB + %d GiB: ", full_sizes[i].name, (double)rig.file_bytes / 1e9,
                          (int)(machines[m].vram / GIB), (int)(machines[m].ram / GIB));
            if (plan_rig_plan(&rig) == STRATA_OK) {
                plan_rig_check(&rig);
                print_message("context %u, %u layers on the GPU, experts %d, %.1f tokens/s\n", rig.plan->context,
                              rig.plan->layers_on_card, (int)rig.plan->experts.mode, rig.plan->speed.decode_tps);
            } else {
                print_message("%s\n", rig.error.message);
                assert_int_equal(rig.status, STRATA_MEMORY);
                assert_non_null(strstr(rig.error.message, "bytes are missing"));
            }
            assert_int_equal(rig.status == STRATA_OK, machines[m].fits[i]);
            plan_rig_close(&rig);
        }
}

/* The latent and its rotated part: one row per token and layer. */
static void latent_rows_are_priced(void **state)
{
    (void)state;
    plan_rig rig;
    open_full_size(&rig, "DeepSeek-V3", 80 * GIB, 1024 * GIB);
    rig.options.context = 32768;
    rig.options.kv_type = ST_TYPE_BF16;
    plan_rig_get(&rig);
    uint64_t kv = rig.plan->devices[ST_HOST].owners[ST_OWNER_KV] + rig.plan->devices[ST_CARD].owners[ST_OWNER_KV];
    assert_int_equal(kv, (uint64_t)61 * (32768 + PAGE) * (512 + 64) * 2);
    plan_rig_close(&rig);
}

/* --write FOLDER: the files of the full-size models, for tests/e2e/plan_full.sh. */
int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return full_size_write_files(argv[2]) ? 0 : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_context_wants_another_kv_type), cmocka_unit_test(options_that_slow_a_plan_down_are_named),
        cmocka_unit_test(the_table_agrees_with_the_plan), cmocka_unit_test(load_times_follow_the_rates),
        cmocka_unit_test(full_size_models), cmocka_unit_test(latent_rows_are_priced),
        cmocka_unit_test(qwen3_8b_fits_the_gpu), cmocka_unit_test(gemma4_12b_fits_the_gpu),
        cmocka_unit_test(qwen3_30b_a3b_uses_an_expert_cache), cmocka_unit_test(bytes_agree_with_the_documentation),
        cmocka_unit_test(llama4_scout_in_ram), cmocka_unit_test(qwen35_27b_is_split),
    };
    return cmocka_run_group_tests_name("plan, real shapes", tests, NULL, NULL);
}
