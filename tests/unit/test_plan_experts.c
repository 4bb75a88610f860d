/* src/plan: routed experts and the context. Exact slots, the choice of the mode, and the choice of the context. */
#include "support/plan_rig.h"

#include <math.h>
#include <string.h>

/* plan_small_moe: an expert is three matrices of 64 × 32 floats. */
enum { EXPERT = 3 * 64 * 32 * 4, EXPERTS = 8, USED = 2, LAYERS = 4, IN_TRANSIT = USED + 2 };

static void check_line(const plan_rig *rig, const char *part)
{
    for (uint32_t i = 0; i < rig->plan->why_count; i++)
        if (strstr(rig->plan->why[i], part)) return;
    for (uint32_t i = 0; i < rig->plan->why_count; i++) print_message("%s\n", rig->plan->why[i]);
    fail_msg("no line says: %s", part);
}

static void check_refused(plan_rig *rig, strata_status status, const char *message)
{
    plan_rig_plan(rig);
    if (rig->status != status || !strstr(rig->error.message, message))
        fail_msg("expected status %d, \"%s\"; found %d, \"%s\"", status, message, rig->status, rig->error.message);
}

static uint64_t planned_on_card(const plan_rig *rig)
{
    return rig->plan->devices[ST_CARD].planned_bytes;
}

/* The GPU's bytes with a cache of zero slots at this context: everything but the slots. */
static uint64_t beside_slots(plan_rig *rig)
{
    rig->options.expert_slots = 1;
    plan_rig_get(rig);
    rig->options.expert_slots = -1;
    return planned_on_card(rig) - rig->plan->devices[ST_CARD].owners[ST_OWNER_SLOTS];
}

/* --- slots ------------------------------------------------------------------------------------------------------- */

static void slots_are_exact_to_the_byte(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.options.context = 1024;
    rig.options.moe = ST_MOE_CACHE;
    uint64_t rest = beside_slots(&rig);
    for (uint32_t n = 1; n <= LAYERS * EXPERTS; n++)
        for (int short_of = 0; short_of < 2; short_of++) {
            uint32_t slots = n - (uint32_t)short_of;
            rig.devices[ST_CARD].free_bytes = rest + n * EXPERT - (uint64_t)short_of;
            if (slots == 0) {
                check_refused(&rig, STRATA_MEMORY, ": 1 bytes are missing");
                continue;
            }
            const st_plan *plan = plan_rig_get(&rig);
            assert_int_equal(plan->devices[ST_CARD].owners[ST_OWNER_SLOTS], slots * EXPERT);
            assert_int_equal(plan->expert_staging_bytes, IN_TRANSIT * EXPERT);
            for (uint32_t l = 0; l < LAYERS; l++) /* evenly; the first layers have one more */
                assert_int_equal(plan->experts.slots[l], slots / LAYERS + (l < slots % LAYERS));
            assert_int_equal(plan->experts.budget_bytes, n * EXPERT - (uint64_t)short_of + IN_TRANSIT * EXPERT);
            assert_true(plan->experts.slots_per_layer == (double)slots / LAYERS);
            assert_int_equal(plan->devices[ST_HOST].owners[ST_OWNER_EXPERTS],
                             LAYERS * EXPERTS * EXPERT); /* RAM holds all experts */
        }
    rig.devices[ST_CARD].free_bytes += 1 << 30; /* no more slots than experts */
    assert_true(plan_rig_get(&rig)->experts.resident_share == 1);
    plan_rig_close(&rig);
}

/* Larger experts take more of the GPU; each layer's part of a slot is aligned to 256 bytes. */
static void slots_of_different_sizes(void **state)
{
    (void)state;
    plan_shape shape = plan_small_moe;
    shape.type = ST_TYPE_Q8_0;
    shape.big = ST_TYPE_F32; /* down, in layers 2 and 3 */
    shape.expert_width = 96;
    enum {
        GATE = 64 * 96 / 32 * 34,
        SMALL = 3 * ((GATE + 255) / 256 * 256),
        LARGE = 2 * ((GATE + 255) / 256 * 256) + 64 * 96 * 4
    };
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.context = 1024;
    rig.options.moe = ST_MOE_CACHE;
    uint64_t rest = beside_slots(&rig);
    assert_int_equal(rig.plan->experts.slot_bytes[1], SMALL);
    assert_int_equal(rig.plan->experts.slot_bytes[2], LARGE);
    assert_int_equal(rig.plan->expert_staging_bytes, IN_TRANSIT * LARGE);
    rig.devices[ST_CARD].free_bytes = rest + 3 * 2 * (SMALL + LARGE) + 2 * SMALL + LARGE - 1;
    plan_rig_get(&rig);
    static const uint32_t slots[LAYERS] = {4, 4, 3, 3};
    assert_memory_equal(rig.plan->experts.slots, slots, sizeof slots);
    rig.devices[ST_CARD].free_bytes++;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->experts.slots[2], 4);
    plan_rig_close(&rig);
}

static void slots_follow_the_option(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.options.context = 1024;
    rig.options.expert_slots = 3;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->experts.mode, ST_MOE_CACHE);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_SLOTS], LAYERS * 3 * EXPERT);
    uint64_t need = planned_on_card(&rig);
    rig.options.context = 0; /* the context gets the remaining memory: a multiple of 256 */
    rig.devices[ST_CARD].free_bytes = need + 10 * 256 * LAYERS * 128 + 5000;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->context, 1024 + 10 * 256);
    assert_int_equal(rig.plan->experts.slots[3], 3);
    rig.options.expert_slots = 9;
    rig.devices[ST_CARD].free_bytes = 1 << 30;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->experts.slots[3], EXPERTS);
    check_line(&rig, "9 asked for, clamped to the 8 experts");
    rig.options.expert_slots = 3;
    rig.options.context = 1024;
    rig.devices[ST_CARD].free_bytes = need - 7;
    check_refused(&rig, STRATA_MEMORY, ": 7 bytes are missing");
    rig.options.expert_slots = 0;
    assert_int_equal(plan_rig_get(&rig)->experts.mode, ST_MOE_CPU);
    plan_rig_close(&rig);
}

static void cpu_moe_layers_have_no_slots(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.options.context = 1024;
    rig.options.cpu_moe_layers = 3;
    rig.options.moe = ST_MOE_RESIDENT;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_EXPERTS], EXPERTS * EXPERT);
    assert_int_equal(rig.plan->devices[ST_HOST].owners[ST_OWNER_EXPERTS], 3 * EXPERTS * EXPERT);
    rig.options.moe = ST_MOE_CACHE;
    rig.devices[ST_CARD].free_bytes = beside_slots(&rig) + 5 * EXPERT;
    plan_rig_get(&rig);
    static const uint32_t slots[LAYERS] = {0, 0, 0, 5};
    assert_memory_equal(rig.plan->experts.slots, slots, sizeof slots);
    rig.options.cpu_moe_layers = 4;
    check_refused(&rig, STRATA_USAGE, "placement.cpu_moe_layers: it leaves no layer");
    rig.options.moe = ST_MOE_AUTO;
    assert_int_equal(plan_rig_get(&rig)->experts.mode, ST_MOE_CPU);
    plan_rig_close(&rig);
}

/* --- modes ------------------------------------------------------------------------------------------------------- */

static double speed_of(plan_rig *rig, st_moe_mode mode)
{
    rig->options.moe = mode;
    double tps = plan_rig_plan(rig) == STRATA_OK ? rig->plan->speed.decode_tps : 0;
    rig->options.moe = ST_MOE_AUTO;
    return tps;
}

/* For every GPU size the planner chooses the simplest mode that no other beats by more than 15 %. */
static void the_mode_is_chosen_by_predicted_speed(void **state)
{
    (void)state;
    static const st_moe_mode modes[] = {ST_MOE_RESIDENT, ST_MOE_CPU, ST_MOE_CACHE};
    plan_shape shape = plan_small_moe;
    shape.experts = 64;
    shape.expert_width = 512;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.context = 1024;
    rig.devices[ST_CARD].launch_seconds = rig.devices[ST_CARD].handover_seconds = rig.devices[ST_CARD].round_trip_seconds = 1e-7;
    uint64_t all = rig.file_bytes * 5 / 4 + (4 << 20);
    uint32_t seen[4] = {0}, passed_over = 0;
    for (uint64_t bytes = 1 << 20; bytes < all; bytes += all / 250) {
        rig.devices[ST_CARD].free_bytes = bytes;
        st_moe_mode best = ST_MOE_AUTO;
        double best_tps = 0;
        for (int i = 0; i < 3; i++) {
            double tps = speed_of(&rig, modes[i]);
            /* With the automatic number of layers, all experts are on the GPU or none is. */
            if (modes[i] == ST_MOE_RESIDENT && tps > 0 &&
                !(rig.plan->experts.resident_share == 1 && rig.plan->output_on_card))
                tps = 0;
            passed_over += tps > 1.05 * best_tps && tps <= 1.15 * best_tps;
            if (tps == 0 || (best != ST_MOE_AUTO && tps <= 1.15 * best_tps)) continue;
            best = modes[i];
            best_tps = tps;
        }
        plan_rig_get(&rig);
        assert_int_equal(rig.plan->experts.mode, best);
        seen[best]++;
    }
    assert_true(seen[ST_MOE_RESIDENT] && seen[ST_MOE_CPU] && seen[ST_MOE_CACHE] && passed_over);
    plan_rig_close(&rig);
}

static void the_mode_follows_the_option(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.options.context = 1024;
    rig.options.batch = 0;
    rig.options.moe = ST_MOE_RESIDENT;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_EXPERTS], LAYERS * EXPERTS * EXPERT);
    assert_int_equal(rig.plan->devices[ST_HOST].owners[ST_OWNER_EXPERTS], 0);
    assert_int_equal(rig.plan->experts.slots[2], EXPERTS);
    assert_int_equal(rig.plan->batch, 512);
    rig.options.moe = ST_MOE_CPU;
    rig.options.context = 4096;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_EXPERTS], 0);
    assert_int_equal(rig.plan->devices[ST_HOST].owners[ST_OWNER_EXPERTS], LAYERS * EXPERTS * EXPERT);
    assert_int_equal(rig.plan->experts.slots[2], 0);
    assert_int_equal(rig.plan->batch, 2048); /* experts in RAM beside a GPU */
    rig.options.context = 1024;
    assert_int_equal(plan_rig_get(&rig)->batch, 1024);
    rig.options.layers = 0;
    assert_int_equal(plan_rig_get(&rig)->batch, 512); /* the GPU is not used */
    assert_int_equal(rig.plan->experts.mode, ST_MOE_CPU);
    rig.options.moe = ST_MOE_RESIDENT;
    check_refused(&rig, STRATA_USAGE, "placement.moe: expected layers on a GPU, found none");
    rig.options.layers = 2; /* with the experts of these two layers */
    rig.options.moe = ST_MOE_RESIDENT;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_EXPERTS], 2 * EXPERTS * EXPERT);
    assert_int_equal(rig.plan->devices[ST_HOST].owners[ST_OWNER_EXPERTS], 2 * EXPERTS * EXPERT);
    rig.options.expert_slots = 2;
    check_refused(&rig, STRATA_USAGE, "placement.expert_slots: only a cache has slots");
    rig.options.moe = ST_MOE_CACHE;
    rig.options.expert_slots = 0;
    check_refused(&rig, STRATA_USAGE, "placement.expert_slots 0: a cache needs slots");
    plan_rig_close(&rig);
}

static void hit_rates(void **state)
{
    (void)state;
    plan_shape shape = plan_small_moe;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.context = 1024;
    rig.options.expert_slots = 2;
    plan_rig_get(&rig);
    assert_true(rig.plan->experts.hit_rate == 0.25);
    assert_string_equal(rig.plan->experts.hit_source, "slots / experts");
    plan_rig_close(&rig);
    shape.experts = 100;
    plan_rig_open(&rig, &shape);
    rig.options.context = 1024;
    rig.options.expert_slots = 19;
    plan_rig_get(&rig);
    assert_true(rig.plan->experts.hit_rate > 0.7399 && rig.plan->experts.hit_rate < 0.7401);
    assert_string_equal(rig.plan->experts.hit_source, "table");
    plan_rig_close(&rig);
}

/* A recorded routing gives the hit rates, and the uploads that slow the CPU down. */
static void recorded_hit_rates(void **state)
{
    (void)state;
    static const st_hit_point points[] = {{0, 0, 0}, {0.25, 0.5, 2}, {0.5, 0.9, 1}, {1, 1, 0}};
    static const st_hit_point few[] = {{0, 0, 0}, {1, 0.2, 0}};
    static const st_hit_curve curve = {points, 4}, lower = {few, 2};
    assert_true(st_hit_at(&curve, 0).rate == 0 && st_hit_at(&curve, 1).rate == 1);
    assert_true(fabs(st_hit_at(&curve, 0.375).rate - 0.7) < 1e-12 && fabs(st_hit_at(&curve, 0.375).uploads - 1.5) < 1e-12);
    assert_true(st_hit_at(&curve, 2).rate == 1 && st_hit_at(&curve, -1).rate == 0);
    assert_true(st_hit_rate_of(NULL, 8, 0.25) == 0.25);
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe); /* 8 experts */
    rig.options.context = 1024;
    rig.options.expert_slots = 3;
    rig.options.hits = &curve;
    plan_rig_get(&rig);
    assert_true(fabs(rig.plan->experts.hit_rate - 0.7) < 1e-12 && fabs(rig.plan->experts.uploads - 1.5) < 1e-12);
    assert_string_equal(rig.plan->experts.hit_source, "recorded");
    double tps = rig.plan->speed.decode_tps;
    rig.options.hits = &lower;
    plan_rig_get(&rig);
    assert_true(rig.plan->speed.decode_tps < tps);
    plan_rig_close(&rig);
}

/* A context that leaves no room for slots moves whole layers to RAM, last first; -g forbids it. */
static void a_long_context_moves_layers_to_ram(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.options.context = 8192;
    rig.options.moe = ST_MOE_CPU;
    rig.options.layers = ST_LAYERS_ALL;
    plan_rig_get(&rig);
    assert_true(rig.plan->output_on_card);
    const uint64_t layer_kv = 8192 * 128, all = planned_on_card(&rig);
    rig.options.moe = ST_MOE_AUTO;
    rig.options.layers = ST_LAYERS_AUTO;
    rig.devices[ST_CARD].free_bytes = all + IN_TRANSIT * EXPERT / 2;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->layers_on_card, LAYERS);
    assert_int_equal(rig.plan->experts.mode, ST_MOE_CPU); /* no room for a cache */
    rig.devices[ST_CARD].free_bytes = all - layer_kv;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->layers_on_card, LAYERS - 1);
    assert_int_equal(rig.plan->kv_device[LAYERS - 1], ST_HOST);
    assert_int_equal(rig.plan->context, 8192);
    rig.options.layers = ST_LAYERS_ALL;
    check_refused(&rig, STRATA_MEMORY, "4 of 4 layers, a context of 8,192");
    assert_non_null(strstr(rig.error.hint, "placement.layers 3"));
    plan_rig_close(&rig);
}

enum { PAGE = ST_KV_PAGE_TOKENS };

static uint32_t whole_pages(uint32_t tokens)
{
    return (tokens + PAGE - 1) / PAGE * PAGE;
}

/* Bytes of plan_small on the GPU that grow with the context: pages, and the page tables of two step blocks. */
static uint64_t bytes_of_context(uint32_t context)
{
    st_step_limits step = {.rows = 16, .out_rows = 1, .conversations = 1, .tables = whole_pages(context) / PAGE};
    return (uint64_t)(whole_pages(context) + PAGE) * LAYERS * 2 * 32 * 2 + 2 * ((st_step_bytes(&step) + 255) / 256 * 256);
}

/* --- context ----------------------------------------------------------------------------------------------------- */

static void the_default_context_is_the_models_maximum(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    assert_int_equal(plan_rig_get(&rig)->context, 4096);
    check_line(&rig, "context: 4,096, the model's maximum");
    rig.options.context = 999999999;
    assert_int_equal(plan_rig_get(&rig)->context, 4096);
    check_line(&rig, "999,999,999 asked for, clamped to the model's maximum of 4,096");
    plan_rig_close(&rig);
}

/* Without routed experts: the largest context that fits, exact to a page. */
static void a_dense_model_gets_the_largest_context_that_fits(void **state)
{
    (void)state;
    plan_shape shape = plan_small;
    shape.context = 100000;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    for (uint32_t context = 4096; context < 60000; context += 7771) {
        rig.options.context = context;
        rig.devices[ST_CARD].free_bytes = (uint64_t)1 << 40;
        uint64_t need = plan_rig_get(&rig)->devices[ST_CARD].planned_bytes;
        rig.options.context = 0;
        rig.devices[ST_CARD].free_bytes = need;
        assert_int_equal(plan_rig_get(&rig)->context, whole_pages(context));
        assert_int_equal(rig.plan->ffn_on_card, 4);
        if (context == 4096) continue;
        rig.devices[ST_CARD].free_bytes = need - 1;
        assert_int_equal(plan_rig_get(&rig)->context, whole_pages(context) - PAGE);
        check_line(&rig, "that fits the GPU");
    }
    /* The same without a GPU. */
    rig.source.device_count = 1;
    rig.options.context = 30000;
    uint64_t need = plan_rig_get(&rig)->devices[ST_HOST].planned_bytes;
    rig.options.context = 0;
    rig.devices[ST_HOST].free_bytes = need;
    assert_int_equal(plan_rig_get(&rig)->context, whole_pages(30000));
    rig.devices[ST_HOST].free_bytes = need - 1;
    assert_int_equal(plan_rig_get(&rig)->context, whole_pages(30000) - PAGE);
    plan_rig_close(&rig);
}

/* A model that does not fit with 4,096 positions is placed for 8,192; the remaining memory extends the context. */
static void a_large_model_is_placed_for_8192_positions(void **state)
{
    (void)state;
    plan_shape shape = plan_small;
    shape.context = 100000;
    shape.ffn = 2048;
    const uint64_t ffn = (64 + 3 * 64 * 2048) * 4;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.context = 4096;
    uint64_t need = plan_rig_get(&rig)->devices[ST_CARD].planned_bytes;
    rig.options.context = 0;
    rig.devices[ST_CARD].free_bytes = need;
    assert_int_equal(plan_rig_get(&rig)->context, 4096);
    assert_int_equal(rig.plan->ffn_on_card, 4);
    rig.devices[ST_CARD].free_bytes = need - 1;
    assert_int_equal(plan_rig_get(&rig)->ffn_on_card, 2); /* two of them hold more than 4,096 positions, one less */
    uint64_t room = bytes_of_context(4096) + 2 * ffn - 1;
    assert_true(bytes_of_context(8192) <= room && bytes_of_context(8192) > room - ffn);
    assert_true(bytes_of_context(rig.plan->context) <= room && bytes_of_context(rig.plan->context + 1) > room);
    plan_rig_close(&rig);
}

/* With an expert cache: the largest multiple of 256 that keeps 90 % of the speed at 8,192. */
static void context_is_traded_for_slots(void **state)
{
    (void)state;
    plan_shape shape = plan_small_moe;
    shape.context = 60000;
    shape.experts = 64;
    shape.expert_width = 256;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.moe = ST_MOE_CACHE;
    rig.devices[ST_CARD].launch_seconds = rig.devices[ST_CARD].handover_seconds = 0;
    rig.options.context = 8192;
    uint64_t rest = beside_slots(&rig), slot = rig.plan->experts.slot_bytes[0];
    rig.devices[ST_CARD].free_bytes = rest + LAYERS * 40 * slot;
    double usual = plan_rig_get(&rig)->speed.decode_tps;
    assert_int_equal(rig.plan->experts.slots[0], 40);
    rig.options.context = 0;
    plan_rig_get(&rig);
    uint32_t context = rig.plan->context;
    double chosen = rig.plan->speed.decode_tps;
    assert_int_equal(context % 256, 0);
    assert_true(context > 8192 && context < 60000);
    assert_true(chosen >= 0.9 * usual);
    check_line(&rig, "a longer one takes expert slots");
    rig.options.context = context + 256;
    plan_rig_get(&rig);
    assert_true(rig.plan->speed.decode_tps < 0.9 * usual);
    plan_rig_close(&rig);
}

/* Experts on the CPU take no GPU memory: the largest multiple of 256 that fits. */
static void cpu_experts_leave_the_gpu_to_the_context(void **state)
{
    (void)state;
    plan_shape shape = plan_small_moe;
    shape.context = 60000;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.moe = ST_MOE_CPU;
    rig.options.context = 20000;
    uint64_t need = plan_rig_get(&rig)->devices[ST_CARD].planned_bytes;
    rig.options.context = 0;
    rig.devices[ST_CARD].free_bytes = need;
    assert_int_equal(plan_rig_get(&rig)->context, 20000 / 256 * 256);
    check_line(&rig, "the largest multiple of 256 that fits the GPU");
    rig.devices[ST_CARD].free_bytes = (uint64_t)1 << 40;
    assert_int_equal(plan_rig_get(&rig)->context, 60000 / 256 * 256);
    plan_rig_close(&rig);
}

/* If the usual context does not fit, the planner chooses a shorter one, down to 256. */
static void a_short_context_is_the_last_resort(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.source.device_count = 1;
    static const uint32_t contexts[] = {3000, 256};
    for (int i = 0; i < 2; i++) {
        rig.devices[ST_HOST].free_bytes = (uint64_t)1 << 40;
        rig.options.context = contexts[i];
        rig.devices[ST_HOST].free_bytes = plan_rig_get(&rig)->devices[ST_HOST].planned_bytes;
        rig.options.context = 0;
        assert_int_equal(plan_rig_get(&rig)->context, whole_pages(contexts[i]));
    }
    rig.devices[ST_HOST].free_bytes--;
    check_refused(&rig, STRATA_MEMORY, "a context of 256");
    plan_rig_close(&rig);
}

static bool runs_no_experts(const st_op *op)
{
    return op->kind != ST_OP_EXPERTS;
}

/* A GPU without kernels for the model's experts leaves them to the CPU, whatever the mode. */
static void experts_without_kernels_stay_on_the_cpu(void **state)
{
    (void)state;
    static const st_moe_mode modes[] = {ST_MOE_AUTO, ST_MOE_CACHE, ST_MOE_RESIDENT};
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.devices[ST_CARD].runs = runs_no_experts;
    for (int i = 0; i < 3; i++) {
        rig.options.moe = modes[i];
        plan_rig_get(&rig);
        assert_int_not_equal(rig.plan->experts.mode, ST_MOE_CACHE);
        assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_SLOTS], 0);
        assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_EXPERTS], 0);
    }
    plan_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_without_kernels_stay_on_the_cpu), cmocka_unit_test(slots_are_exact_to_the_byte), cmocka_unit_test(slots_of_different_sizes),
        cmocka_unit_test(slots_follow_the_option), cmocka_unit_test(cpu_moe_layers_have_no_slots),
        cmocka_unit_test(the_mode_is_chosen_by_predicted_speed), cmocka_unit_test(the_mode_follows_the_option),
        cmocka_unit_test(hit_rates), cmocka_unit_test(recorded_hit_rates), cmocka_unit_test(a_long_context_moves_layers_to_ram),
        cmocka_unit_test(the_default_context_is_the_models_maximum),
        cmocka_unit_test(a_dense_model_gets_the_largest_context_that_fits),
        cmocka_unit_test(a_large_model_is_placed_for_8192_positions), cmocka_unit_test(context_is_traded_for_slots),
        cmocka_unit_test(cpu_experts_leave_the_gpu_to_the_context),
        cmocka_unit_test(a_short_context_is_the_last_resort),
    };
    return cmocka_run_group_tests_name("plan, experts and context", tests, NULL, NULL);
}
