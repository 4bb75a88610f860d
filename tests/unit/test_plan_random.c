/* Properties of every plan, over thousands of random models, devices and options. */
#include "support/plan_rig.h"

#include <string.h>

enum { SEED = 20240611, SEARCHES = 2500, LADDERS = 500, RUNGS = 8 };

static uint64_t random_state;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* low … high */
static uint32_t between(uint32_t low, uint32_t high)
{
    return low + (uint32_t)(next_random() % (high - low + 1));
}

static bool one_in(uint32_t n)
{
    return between(1, n) == 1;
}

static uint32_t one_of(const uint32_t *values, uint32_t count)
{
    return values[between(0, count - 1)];
}

#define ONE_OF(...) one_of((const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static uint32_t repeats(uint32_t count)
{
    return kit_is_slow() ? count / 8 : count;
}

/* --- models ------------------------------------------------------------------------------------------------------ */

static void add_experts(plan_shape *s)
{
    s->experts = ONE_OF(4, 8, 16, 64, 128);
    s->used = between(1, s->experts < 8 ? s->experts : 8);
    s->expert_width = 32 * between(1, 24);
}

static void be_gemma(plan_shape *s)
{
    s->arch = "gemma4";
    s->tied = !one_in(4);
    s->full_every = between(1, 4);
    s->layers = s->full_every * between(1, 6);
    if (!one_in(4)) {
        s->window = between(1, 600);
        s->window_head = s->head / 2;
    }
    if (one_in(3)) s->per_layer = 32 * between(1, 8);
    /* The last layers share an earlier layer's KV: a layer of each kind must come before them. */
    if (one_in(3) && s->layers > s->full_every) s->shared_kv = between(1, s->layers - s->full_every);
    if (one_in(3)) add_experts(s);
}

static void be_recurrent(plan_shape *s)
{
    s->layers = 4 * between(1, 5);
    s->delta_keys = ONE_OF(1, 2, 4);
    s->delta_values = s->delta_keys * between(1, 3);
    s->delta_size = 16 * between(1, 8);
    s->nextn = one_in(2);
    s->arch = one_in(2) ? "qwen35" : "qwen35moe";
    if (strcmp(s->arch, "qwen35") == 0) return;
    add_experts(s);
    s->shared_width = 32 * between(1, 8);
}

static plan_shape random_shape(void)
{
    static const char *const plain[] = {"llama", "qwen2", "qwen3"}, *const sparse[] = {"llama", "qwen3moe", "olmoe"};
    plan_shape s = {.layers = between(1, 20), .embedding = 64 * between(1, 32), .kv_heads = ONE_OF(1, 2, 4),
                    .head = ONE_OF(32, 64, 128), .ffn = 64 * between(1, 64), .vocab = between(100, 50000),
                    .context = ONE_OF(100, 1000, 4096, 8192, 40960, 131072), .tied = one_in(2),
                    .type = (st_type)ONE_OF(ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_Q8_0, ST_TYPE_Q4_0, ST_TYPE_Q4_K),
                    .big = (st_type)ONE_OF(ST_TYPE_Q8_0, ST_TYPE_Q6_K, ST_TYPE_BF16)};
    s.heads = s.kv_heads * between(1, 4);
    switch (between(0, 5)) {
    case 0: s.arch = plain[between(0, 2)]; break;
    case 1: be_gemma(&s); break;
    case 2: be_recurrent(&s); break;
    case 3:
        s.arch = "llama4";
        add_experts(&s);
        s.moe_step = between(1, 2);
        break;
    case 4:
        s.arch = "qwen2moe";
        add_experts(&s);
        s.shared_width = 32 * between(1, 8);
        break;
    default:
        s.arch = sparse[between(0, 2)];
        add_experts(&s);
    }
    return s;
}

/* --- devices and options ----------------------------------------------------------------------------------------- */

/* `tenths` tenths of the model's file, plus the least that a conversation needs. */
static uint64_t tenths_of(const plan_rig *rig, uint32_t tenths)
{
    return (uint64_t)tenths * (rig->file_bytes + (64 << 20)) / 10;
}

static void random_devices(plan_rig *rig)
{
    st_profile *host = &rig->devices[ST_HOST], *card = &rig->devices[ST_CARD];
    host->free_bytes = tenths_of(rig, between(3, 60)) + between(0, 100000);
    card->free_bytes = tenths_of(rig, between(0, 30)) + between(0, 100000);
    card->granularity = ONE_OF(1, 4096, 2 << 20);
    host->granularity = ONE_OF(1, 4096);
    card->overhead_bytes = one_in(2) ? between(0, 30 << 20) : 0;
    card->display = one_in(2);
    if (one_in(8)) card->types[between(0, ST_OP_COUNT - 1)] = 0; /* the GPU cannot do everything */
    if (one_in(8)) rig->source.device_count = 1;
}

static void random_experts_options(st_plan_options *o)
{
    o->moe = (st_moe_mode)between(ST_MOE_AUTO, ST_MOE_CACHE);
    if (one_in(3)) o->moe = ST_MOE_AUTO;
    if (one_in(6)) o->expert_slots = (int32_t)between(0, 20);
    if (one_in(4)) o->cpu_moe_layers = between(0, 10);
}

static void random_options(plan_rig *rig)
{
    st_plan_options *o = &rig->options;
    uint32_t layers = rig->source.desc->layer_count;
    o->layers = one_in(2) ? ST_LAYERS_AUTO : one_in(3) ? ST_LAYERS_ALL : (int32_t)between(0, layers);
    if (rig->source.device_count == 1 && o->layers != ST_LAYERS_AUTO) o->layers = 0;
    o->context = one_in(2) ? 0 : between(1, 2 * rig->source.desc->context_max);
    o->kv_type = one_in(2) ? -1 : (int32_t)ONE_OF(ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0);
    o->batch = ONE_OF(0, 1, 16, 256, 1000);
    o->out_rows = between(0, 40);
    o->conversations = between(0, 5);
    o->page_tokens = ONE_OF(0, 1, 16, 256);
    o->tier_bytes = one_in(2) ? ST_BYTES_AUTO : between(0, 1 << 22);
    o->restore_bytes = one_in(2) ? ST_BYTES_AUTO : between(0, 1 << 20);
    o->no_windows = one_in(8);
    o->nextn = rig->source.desc->nextn_count && one_in(2);
    o->disk = one_in(4);
    if (one_in(4)) o->cpu_ffn_layers = between(0, 10);
    for (int i = 0; i < ST_DEVICES_MAX; i++) {
        o->workers[i] = between(0, 16);
        o->margin_bytes[i] = one_in(2) ? 0 : between(0, 1 << 20);
        if (o->workers[i] == 0) o->workers[i] = 1;
    }
    random_experts_options(o);
}

/* --- properties -------------------------------------------------------------------------------------------------- */

/* Refusals name numbers; plans keep the invariants and follow the options. */
static void plans_keep_the_invariants(void **state)
{
    (void)state;
    uint32_t planned = 0, refused = 0, cards = 0, modes[4] = {0};
    for (uint32_t i = 0; i < repeats(SEARCHES); i++) {
        plan_shape shape = random_shape();
        plan_rig rig;
        plan_rig_open(&rig, &shape);
        for (int k = 0; k < 4; k++) {
            random_devices(&rig);
            random_options(&rig);
            const st_plan_options *o = &rig.options;
            if (plan_rig_plan(&rig) == STRATA_OK) {
                plan_rig_check(&rig);
                planned++;
                cards += rig.plan->device_count == 2;
                modes[rig.plan->experts.mode]++;
                if (o->context)
                    assert_int_equal(rig.plan->context, o->context < shape.context ? o->context : shape.context);
                if (o->kv_type >= 0) assert_int_equal(rig.plan->kv_type, o->kv_type);
                if (o->layers == ST_LAYERS_ALL) assert_int_equal(rig.plan->layers_on_card, shape.layers);
                if (o->layers >= 0) assert_int_equal(rig.plan->layers_on_card, o->layers);
                if (o->batch && o->batch <= rig.plan->context) assert_int_equal(rig.plan->batch, o->batch);
            } else {
                refused++;
                if (rig.status != STRATA_USAGE && rig.status != STRATA_MEMORY && rig.status != STRATA_DEVICE)
                    fail_msg("%s", rig.error.message);
                if (rig.status == STRATA_MEMORY) assert_non_null(strstr(rig.error.message, "bytes are missing"));
            }
            rig.source.device_count = 2;
            for (int op = 0; op < ST_OP_COUNT; op++) rig.devices[ST_CARD].types[op] = rig.devices[ST_HOST].types[op];
        }
        plan_rig_close(&rig);
    }
    print_message("seed %d: %u plans (%u with a GPU; resident %u, cpu %u, cache %u), %u refusals\n", SEED, planned,
                  cards, modes[ST_MOE_RESIDENT], modes[ST_MOE_CPU], modes[ST_MOE_CACHE], refused);
    /* The generator must reach every case. */
    assert_true(planned > refused / 2 && cards > planned / 4 && refused > planned / 20);
    assert_true(modes[ST_MOE_RESIDENT] && modes[ST_MOE_CPU] && modes[ST_MOE_CACHE]);
}

typedef struct rung {
    bool planned, streams;
    double tps;
    uint64_t slots; /* of all layers */
    uint32_t layers, ffn;
} rung;

static rung rung_of(plan_rig *rig)
{
    rung r = {.planned = plan_rig_plan(rig) == STRATA_OK};
    if (!r.planned) return r;
    plan_rig_check(rig);
    r.tps = rig->plan->speed.decode_tps;
    r.streams = rig->plan->dense.rows > 0;
    r.layers = rig->plan->layers_on_card;
    r.ffn = rig->plan->ffn_on_card;
    for (uint32_t i = 0; i < rig->source.desc->layer_count; i++) r.slots += rig->plan->experts.slots[i];
    return r;
}

/* A fixed mode never gets slower with more memory; a chosen mode may be up to 15 % slower than a more complex one. A plan
 * that has room for the buffers of streamed parts may have fewer layers on the GPU than one without. */
static void check_rung(const plan_rig *rig, const plan_shape *shape, const rung *before, const rung *now,
                       bool mode_free)
{
    if (!before->planned || (now->streams && !before->streams)) return;
    double least = before->tps * (mode_free ? 1 / 1.15 : 1) * (1 - 1e-9);
    if (now->planned && now->tps >= least && (mode_free || now->slots >= before->slots) &&
        now->layers >= before->layers && now->ffn >= before->ffn)
        return;
    fail_msg(
        "%s, %u layers, GPU of %llu bytes, RAM of %llu: %.3f t/s, %llu slots, %u + %u layers; less memory had %.3f, "
        "%llu, %u + %u (%s)",
        shape->arch, shape->layers, (unsigned long long)rig->devices[ST_CARD].free_bytes,
        (unsigned long long)rig->devices[ST_HOST].free_bytes, now->tps, (unsigned long long)now->slots, now->layers,
        now->ffn, before->tps, (unsigned long long)before->slots, before->layers, before->ffn, rig->error.message);
}

static void climb(plan_rig *rig, const plan_shape *shape, uint32_t device, bool mode_free)
{
    rung before = {0};
    uint64_t bytes = rig->devices[device].free_bytes;
    for (int i = 0; i < RUNGS; i++) {
        rig->devices[device].free_bytes = bytes;
        rung now = rung_of(rig);
        check_rung(rig, shape, &before, &now, mode_free);
        before = now;
        bytes += bytes / between(2, 200) + between(1, 100000);
    }
}

/* With a fixed context more memory never means fewer slots or a slower prediction. Hand-overs take no time here: with
 * them, a partial offload can be slower than none. */
static void more_memory_is_never_slower(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < repeats(LADDERS); i++) {
        plan_shape shape = random_shape();
        plan_rig rig;
        plan_rig_open(&rig, &shape);
        rig.devices[ST_CARD].launch_seconds = rig.devices[ST_CARD].handover_seconds = 0;
        rig.devices[ST_CARD].granularity = ONE_OF(1, 2 << 20);
        rig.devices[ST_CARD].link_up = rig.devices[ST_CARD].link_down = 50e9;
        rig.options.context = between(1, shape.context < 20000 ? shape.context : 20000);
        rig.options.batch = ONE_OF(1, 16, 256);
        rig.options.moe = (st_moe_mode)between(ST_MOE_AUTO, ST_MOE_CACHE);
        rig.options.layers = one_in(2) ? ST_LAYERS_AUTO : ST_LAYERS_ALL;
        bool mode_free = shape.experts && rig.options.moe == ST_MOE_AUTO;
        uint64_t most = rig.devices[ST_HOST].free_bytes;
        rig.devices[ST_CARD].free_bytes = tenths_of(&rig, between(1, 10));
        climb(&rig, &shape, ST_CARD, mode_free);
        rig.options.disk = one_in(2);
        rig.options.watch = one_in(4);
        rig.devices[ST_HOST].free_bytes = tenths_of(&rig, between(1, 10));
        climb(&rig, &shape, ST_HOST, mode_free);
        rig.devices[ST_HOST].free_bytes = most;
        plan_rig_close(&rig);
    }
}

static int seed(void **state)
{
    (void)state;
    random_state = SEED;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(plans_keep_the_invariants, seed),
        cmocka_unit_test_setup(more_memory_is_never_slower, seed),
    };
    return cmocka_run_group_tests_name("plan, random", tests, NULL, NULL);
}
