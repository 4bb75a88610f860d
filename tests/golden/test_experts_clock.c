/* The speed of each expert mode in virtual time, for a model of Qwen3-30B-A3B's shape on a described machine. No tensor
 * is computed; the routing comes from a recorded trace if there is one, and from a generator with the same locality. */
#include "support/clock_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 48, EXPERTS = 128, USED = 6, WARM = 28, TOKENS = 128 };

static const plan_shape shape = {.arch = "qwen3moe", .layers = LAYERS, .embedding = 2048, .heads = 32, .kv_heads = 4,
                                 .head = 128, .vocab = 151936, .context = 40960, .experts = EXPERTS, .used = USED,
                                 .expert_width = 768, .type = ST_TYPE_Q4_K, .big = ST_TYPE_Q6_K};

/* --- routing ------------------------------------------------------------------------------------------------------ */

static int32_t routes[WARM + TOKENS][LAYERS][USED];

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % limit;
}

static bool chosen(const int32_t *ids, int count, int32_t expert)
{
    for (int i = 0; i < count; i++)
        if (ids[i] == expert) return true;
    return false;
}

/* With probability `locality`, each expert of a token is one that the last eight tokens used. */
static void make_routes(double locality)
{
    random_state = 0x9e3779b97f4a7c15u;
    for (int t = 0; t < WARM + TOKENS; t++)
        for (int l = 0; l < LAYERS; l++)
            for (int k = 0; k < USED; k++) {
                int32_t expert;
                do {
                    bool again = t > 0 && random_below(1000) < (uint32_t)(1000 * locality);
                    int back = 1 + (int)random_below(t < 8 ? (uint32_t)(t > 0 ? t : 1) : 8);
                    expert = again ? routes[t - back][l][random_below(USED)] : (int32_t)random_below(EXPERTS);
                } while (chosen(routes[t][l], k, expert));
                routes[t][l][k] = expert;
            }
}

/* The prompt and the decoded tokens of the Qwen trace. False: the trace is not available. */
static bool read_routes(void)
{
    const char *path = kit_path_optional("../traces/qwen.route.csv");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return false;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        int turn, phase, step, layer, slot, expert;
        if (sscanf(line, "%d,%d,%d,%d,%d,%d", &turn, &phase, &step, &layer, &slot, &expert) == 6 && step >= 0 &&
            step < WARM + TOKENS && layer >= 0 && layer < LAYERS && slot >= 0 && slot < USED)
            routes[step][layer][slot] = expert;
    }
    fclose(file);
    return true;
}

/* --- a run -------------------------------------------------------------------------------------------------------- */

typedef struct scenario {
    st_moe_mode mode;
    int32_t slots;             /* −1: chosen by the planner */
    uint64_t card_bytes;
    st_stream_options experts;
    double host_ops, assumed_ops; /* operations per second of the host, and by its profile once the model is loaded; 0: usual */
    double link;               /* bytes per second; 0: usual */
    double host_fixed;         /* seconds of the host's experts beside their bytes */
    double round_trip;         /* of a chain; 0: usual */
} scenario;

typedef struct outcome {
    double tps, roofline_tps, predicted_tps, slots;
    uint64_t hits, misses, uploads, fetches; /* of an expert cache */
} outcome;

typedef struct experts_rig {
    clock_rig clock;
    st_conversation *conversation;
    int token;
    double experts_seconds; /* the roofline's, summed over all events */
} experts_rig;

static void choose(void *context, uint32_t layer, uint32_t rows, uint32_t used, int32_t *ids, float *weights)
{
    experts_rig *r = context;
    assert_int_equal(rows, 1);
    const st_stream *stream = r->clock.stream;
    uint32_t hits = 0;
    for (uint32_t k = 0; k < used; k++) {
        ids[k] = routes[r->token][layer][k];
        weights[k] = 1.0f / (float)used;
        if (stream) hits += st_stream_card_parts(stream, layer, 0)[ids[k]] != NULL;
    }
    if (!stream) return;
    double bytes = (double)r->clock.plan.plan->experts.slot_bytes[layer];
    r->experts_seconds += fmax(hits * bytes / r->clock.plan.devices[ST_CARD].memory_rate,
                               (used - hits) * bytes / r->clock.plan.devices[ST_HOST].memory_rate);
}

static void open_clock(experts_rig *r, const scenario *w, const st_sim_routing *routing)
{
    strata_error error;
    clock_rig_open(&r->clock, &shape, w->card_bytes);
    st_plan_options *options = &r->clock.plan.options;
    options->moe = w->mode;
    options->expert_slots = w->slots;
    options->watch = w->mode == ST_MOE_CACHE && w->slots < EXPERTS; /* the host reads the routing anyway */
    if (w->host_ops > 0) r->clock.plan.devices[ST_HOST].op_rate = w->host_ops;
    r->clock.plan.devices[ST_HOST].classes[ST_CLASS_EXPERTS].seconds = w->host_fixed;
    if (w->round_trip > 0) r->clock.plan.devices[ST_CARD].round_trip_seconds = w->round_trip;
    if (w->link > 0) r->clock.plan.devices[ST_CARD].link_up = w->link;
    clock_rig_load(&r->clock, &w->experts, routing);
    if (w->assumed_ops > 0) r->clock.plan.devices[ST_HOST].op_rate = w->assumed_ops;
    clock_must(st_conversation_new(st_run_kv(r->clock.run), &r->conversation, &error), &error);
}

static void close_clock(experts_rig *r)
{
    st_conversation_free(r->conversation);
    clock_rig_close(&r->clock);
}

/* The time the GPU needs to read a token's weights other than experts. */
static double trunk_seconds(const experts_rig *r)
{
    const st_plan_source *s = &r->clock.plan.source;
    const st_part *part = &s->program->main;
    double bytes = 0;
    for (uint32_t i = 0; i < part->body.count + part->head.count; i++) {
        const st_op *op = &s->program->ops[part->body.first + i];
        if (op->kind != ST_OP_EXPERTS && op->kind != ST_OP_EMBED)
            bytes += st_work_of(s->program, s->binding, op, 1, WARM + TOKENS / 2, ST_TYPE_BF16).bytes;
    }
    return bytes / r->clock.plan.devices[ST_CARD].memory_rate;
}

static void step(experts_rig *r)
{
    st_conversation_tokens(r->conversation)[st_conversation_position(r->conversation)] = 1;
    clock_rig_step(&r->clock, r->conversation, 1);
}

static outcome read_counters(const experts_rig *r)
{
    const st_stats *stats = r->clock.watch.stats;
    return (outcome){.hits = st_stats_total(stats, true, ST_STAT_HITS), .misses = st_stats_total(stats, true, ST_STAT_MISSES),
                     .uploads = st_stats_total(stats, true, ST_STAT_UPLOADS),
                     .fetches = st_stats_total(stats, true, ST_STAT_FETCHES)};
}

static outcome run(const scenario *w)
{
    experts_rig r = {0};
    st_sim_routing routing = {.choose = choose, .context = &r};
    open_clock(&r, w, &routing);
    for (r.token = 0; r.token < WARM; r.token++) step(&r);
    outcome before = read_counters(&r);
    double start = st_sim_world_seconds(r.clock.world);
    r.experts_seconds = 0;
    for (; r.token < WARM + TOKENS; r.token++) step(&r);
    double seconds = st_sim_world_seconds(r.clock.world) - start, each = r.experts_seconds / TOKENS;
    outcome o = read_counters(&r);
    o.hits -= before.hits;
    o.misses -= before.misses;
    o.uploads -= before.uploads;
    o.fetches -= before.fetches;
    o.tps = TOKENS / seconds;
    o.slots = r.clock.plan.plan->experts.slots_per_layer;
    o.roofline_tps = 1 / (trunk_seconds(&r) + each + LAYERS * r.clock.plan.devices[ST_CARD].round_trip_seconds);
    double hit_rate = o.hits + o.misses ? (double)o.hits / (double)(o.hits + o.misses) : -1;
    double uploads = (double)o.uploads / (LAYERS * TOKENS), fetches = (double)o.fetches / (LAYERS * TOKENS);
    st_plan measured = *r.clock.plan.plan;
    measured.experts.uploads = uploads;
    o.predicted_tps = st_plan_predict(&r.clock.plan.source, &measured, WARM + TOKENS / 2, 1, hit_rate).decode_tps;
    print_message("mode %s, %.1f slots: %.1f t/s, roofline %.1f, predicted %.1f; hits %.3f, uploads %.3f and fetches %.3f an event\n",
                  st_moe_mode_name(w->mode), o.slots, o.tps, o.roofline_tps, o.predicted_tps, hit_rate, uploads, fetches);
    close_clock(&r);
    return o;
}

static scenario cache_scenario(int32_t slots)
{
    return (scenario){.mode = ST_MOE_CACHE, .slots = slots, .card_bytes = (uint64_t)12 << 30};
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* `tolerance`: relative error allowed for the prediction, given the measured hits and uploads. */
static void check_modes(double tolerance)
{
    scenario cpu = {.mode = ST_MOE_CPU, .slots = -1, .card_bytes = (uint64_t)12 << 30}, cache = cache_scenario(-1);
    outcome on_cpu = run(&cpu), in_cache = run(&cache);
    assert_true(in_cache.slots > 54 && in_cache.slots < 59);
    assert_true(in_cache.tps >= 2.5 * on_cpu.tps);
    assert_true(in_cache.tps >= 0.85 * in_cache.roofline_tps);
    assert_true(fabs(on_cpu.tps / on_cpu.predicted_tps - 1) <= 0.02);
    assert_true(fabs(in_cache.tps / in_cache.predicted_tps - 1) <= tolerance);
    cache.experts.no_uploads = true;
    outcome still = run(&cache);
    assert_true(fabs(still.tps / still.predicted_tps - 1) <= 0.02);
}

static void recorded_routing_meets_the_targets(void **state)
{
    (void)state;
    if (!read_routes()) skip();
    check_modes(0.02);
}

static void generated_local_routing_meets_the_targets(void **state)
{
    (void)state;
    make_routes(0.94);
    check_modes(0.03);
}

/* Splitting misses between CPU and fetches is never slower than either alone, and as fast as predicted. With a fast link fetching pays where many
 * experts are missing; where few are, a token is one launch, and the CPU computes them. */
static void check_arms(double locality, double link, double host_ops)
{
    make_routes(locality);
    for (int32_t slots = 8; slots <= 48; slots += 20) {
        scenario w = cache_scenario(slots);
        w.link = link;
        w.host_ops = host_ops;
        outcome both = run(&w);
        w.experts.arms = ST_ARMS_CPU;
        double cpu = run(&w).tps;
        w.experts.arms = ST_ARMS_FETCH;
        double fetch = run(&w).tps;
        assert_true(both.tps >= 0.99 * fmax(cpu, fetch));
        assert_true(fabs(both.tps / both.predicted_tps - 1) <= 0.17);
    }
}

static void splitting_misses_is_no_slower_than_one_arm(void **state)
{
    (void)state;
    check_arms(0.9, 0, 0);
    check_arms(0.9, 50e9, 0);
    static const double localities[] = {0.5, 0.9, 0.99};
    for (size_t i = 0; i < sizeof localities / sizeof *localities; i++) {
        check_arms(localities[i], 50e9, 300e9);
        check_arms(localities[i], 50e9, 100e9);
    }
}

/* A host that is slower than its profile says, such as one that shares its cores, computes as few experts as one whose
 * profile is right. */
static void misses_are_split_by_the_measured_speed(void **state)
{
    (void)state;
    make_routes(0.5);
    scenario w = cache_scenario(32);
    w.experts.no_uploads = true;
    w.host_ops = 100e9;
    outcome right = run(&w);
    w.assumed_ops = 1e12;
    outcome wrong = run(&w);
    assert_true(right.fetches > 0);
    assert_true(wrong.tps >= 0.99 * right.tps);
    assert_true(fabs((double)wrong.fetches / (double)right.fetches - 1) <= 0.02);
    w.experts.deterministic = true; /* what is measured differs from run to run */
    assert_true(run(&w).fetches < 0.6 * (double)right.fetches);
}

/* A host that is as fast as its profile says is not taken for a slower one: neither what its experts take beside their
 * bytes nor the copies of the fetched experts, which slow it down meanwhile, count as slowness. */
static void a_right_profile_stays_right(void **state)
{
    (void)state;
    make_routes(0.5);
    static const struct { double link, fixed; } rows[] = {{0, 0}, {50e9, 0}, {0, 100e-6}, {50e9, 100e-6}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scenario w = cache_scenario(16);
        w.experts.no_uploads = true;
        w.round_trip = 1e-3; /* no chains */
        w.link = rows[i].link;
        w.host_fixed = rows[i].fixed;
        outcome measured = run(&w);
        w.experts.deterministic = true;
        outcome assumed = run(&w);
        print_message("fetched %llu, by the profile %llu; speed %.3f\n", (unsigned long long)measured.fetches,
                      (unsigned long long)assumed.fetches, measured.tps / assumed.tps);
        assert_true(measured.fetches <= 1.2 * (double)assumed.fetches);
        assert_true(measured.tps >= 0.99 * assumed.tps);
    }
}

/* Under uniform routing uploads gain nothing, so they must cost at most 2 % of the speed. */
static void uploads_under_uniform_routing_cost_little(void **state)
{
    (void)state;
    make_routes(0);
    scenario w = cache_scenario(32);
    outcome moving = run(&w);
    w.experts.no_uploads = true;
    outcome still = run(&w);
    assert_true(moving.tps >= 0.98 * still.tps);
    assert_true(still.uploads == 0);
    assert_true(fabs(still.tps / still.predicted_tps - 1) <= 0.02);
}

/* Prefetching the last token's experts costs at most a fifth of the speed where it does not help. */
static void prefetching_costs_little(void **state)
{
    (void)state;
    if (!read_routes()) make_routes(0.94);
    for (int32_t slots = 32; slots <= 56; slots += 24) {
        scenario w = cache_scenario(slots);
        double without = run(&w).tps;
        w.experts.prefetch = ST_PREFETCH_SAME;
        double with = run(&w).tps;
        print_message("prefetch: %.3f of the speed without\n", with / without);
        assert_true(with >= 0.8 * without);
    }
}

static void cache_of_all_experts_is_as_fast_as_resident(void **state)
{
    (void)state;
    make_routes(0.9);
    scenario w = {.mode = ST_MOE_RESIDENT, .slots = -1, .card_bytes = (uint64_t)40 << 30};
    double resident = run(&w).tps;
    w = cache_scenario(EXPERTS);
    w.card_bytes = (uint64_t)40 << 30;
    assert_true(run(&w).tps >= 0.99 * resident);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_of_all_experts_is_as_fast_as_resident),
        cmocka_unit_test(uploads_under_uniform_routing_cost_little),
        cmocka_unit_test(recorded_routing_meets_the_targets),
        cmocka_unit_test(generated_local_routing_meets_the_targets),
        cmocka_unit_test(splitting_misses_is_no_slower_than_one_arm),
        cmocka_unit_test(misses_are_split_by_the_measured_speed),
        cmocka_unit_test(a_right_profile_stays_right),
        cmocka_unit_test(prefetching_costs_little),
    };
    size_t count = kit_is_slow() ? 2 : sizeof tests / sizeof *tests; /* virtual time is the same under a sanitizer */
    return kit_run("clock", tests, count, NULL, NULL, argc, argv);
}
