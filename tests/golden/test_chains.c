/* Chained steps, one launch for all layers, against the same steps with copies: the same logits to the bit and, on the
 * simulated GPU, fewer launches and less time. Failures in the middle leave a conversation that can go on. */
#include "support/golden.h"
#include "support/mirror.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 6, ROWS = 3, VOCAB_MAX = 1024 }; /* a step has 1 to ROWS rows */

typedef struct placement {
    const char *model;
    st_moe_mode moe;
    int32_t layers, slots;
    uint32_t cpu_ffn;
} placement;

static const placement placements[] = {
    {"qwen3moe", ST_MOE_CACHE, ST_LAYERS_ALL, 2, 0}, {"qwen3moe", ST_MOE_CPU, ST_LAYERS_ALL, -1, 0},
    {"qwen2moe", ST_MOE_CACHE, ST_LAYERS_ALL, 3, 0}, {"qwen2moe", ST_MOE_CPU, ST_LAYERS_ALL, -1, 0},
    {"gemma4-moe", ST_MOE_CACHE, ST_LAYERS_ALL, 2, 0}, {"llama4", ST_MOE_CPU, ST_LAYERS_ALL, -1, 1},
    {"qwen35moe", ST_MOE_CACHE, ST_LAYERS_ALL, 2, 0}, {"llama", ST_MOE_AUTO, ST_LAYERS_ALL, -1, 2},
    {"mixtral", ST_MOE_CPU, 2, -1, 0},
};

enum { PLACEMENTS = sizeof placements / sizeof *placements };

static void open_run(golden_run *r, const golden *g, const placement *p, bool chains, st_plan_options *placed)
{
    static st_profile profiles[ST_DEVICES_MAX];
    profiles[ST_HOST] = st_profile_default(ST_DEVICE_HOST);
    profiles[ST_CARD] = st_profile_default(ST_DEVICE_CARD);
    profiles[ST_HOST].memory_rate = 60e9;
    profiles[ST_CARD].memory_rate = 504e9;
    profiles[ST_CARD].link_up = profiles[ST_CARD].link_down = 25e9;
    if (!chains) profiles[ST_CARD].round_trip_seconds = 0;
    *placed = st_plan_options_default();
    placed->layers = p->layers;
    placed->moe = p->moe;
    placed->expert_slots = p->slots;
    placed->cpu_ffn_layers = p->cpu_ffn;
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = 8, .threads = 1, .cpu = "ref", .placed = placed,
                              .profiles = profiles, .experts = {.deterministic = true}};
    golden_run_open(r, g, &options);
}

/* `rows` tokens in one step that is not a prompt's, and the logits of the last one. */
static strata_status decode(golden_run *r, uint32_t position, uint32_t rows, float *out, strata_error *error)
{
    const float *logits;
    uint32_t row = rows - 1;
    memcpy(st_conversation_tokens(r->conversation) + position, r->g->tokens + position, rows * sizeof(strata_token));
    st_run_piece piece = {.conversation = r->conversation, .count = rows};
    strata_status status = st_run_step(r->run, &piece, 1, error);
    if (status == STRATA_OK) status = st_run_logits(r->run, &row, 1, &logits, error);
    if (status == STRATA_OK && out) memcpy(out, logits, r->g->desc->vocab * sizeof *out);
    return status;
}

typedef struct outcome {
    float logits[STEPS][VOCAB_MAX];
    uint64_t launches, copies;
    double seconds;
} outcome;

static void read_clock(const golden_run *r, outcome *out)
{
    if (!r->world) return;
    out->launches = st_sim_calls(r->world, ST_SIM_LAUNCH);
    out->copies = st_sim_calls(r->world, ST_SIM_COPY);
    out->seconds = st_sim_world_seconds(r->world);
}

static void run_steps(const golden *g, const placement *p, bool chains, outcome *out)
{
    golden_run r;
    st_plan_options placed;
    strata_error error;
    assert_true(g->desc->vocab <= VOCAB_MAX);
    open_run(&r, g, p, chains, &placed);
    if (r.plan->parts[ST_PART_MAIN].body.chained != chains) fail_msg("%s: chained %d", p->model, !chains);
    golden_feed(&r, 0, 8, NULL);
    outcome before = {0};
    read_clock(&r, &before);
    for (uint32_t i = 0, position = 8; i < STEPS; position += 1 + i++ % ROWS)
        if (decode(&r, position, 1 + i % ROWS, out->logits[i], &error) != STRATA_OK)
            fail_msg("%s: %s", p->model, error.message);
    read_clock(&r, out);
    out->launches -= before.launches;
    out->copies -= before.copies;
    out->seconds -= before.seconds;
    golden_run_close(&r);
}

/* A step is a launch of the body and one of the head. */
static void chains_compute_the_same_in_less_time(void **state)
{
    (void)state;
    static outcome copied, chained;
    for (size_t i = 0; i < PLACEMENTS; i++) {
        golden g;
        assert_true(golden_open(&g, placements[i].model));
        run_steps(&g, &placements[i], false, &copied);
        run_steps(&g, &placements[i], true, &chained);
        for (int t = 0; t < STEPS; t++)
            if (memcmp(copied.logits[t], chained.logits[t], g.desc->vocab * sizeof(float)) != 0)
                fail_msg("%s, placement %zu: step %d differs", placements[i].model, i, t);
        golden_close(&g);
        if (mirror_name()) continue;
        if (placements[i].layers == ST_LAYERS_ALL) assert_int_equal(chained.launches, 2 * STEPS);
        assert_true(chained.launches < copied.launches && chained.copies < copied.copies);
        if (!(chained.seconds < copied.seconds))
            fail_msg("%s: %g s, %g with copies", placements[i].model, chained.seconds, copied.seconds);
    }
}

/* The GPU is lost, or a call fails, at every call of a decoded token in turn. */
static void failures_in_the_middle_are_reported(void **state)
{
    (void)state;
    if (mirror_name()) skip(); /* fault/test_cuda_fault does it there */
    for (size_t i = 0; i < 2; i++)
        for (int lost = 0; lost < 2; lost++)
            for (uint64_t n = 1, failed = 1; failed; n += kit_is_slow() ? 3 : 1) {
                golden g;
                golden_run r;
                st_plan_options placed;
                strata_error error;
                float logits[VOCAB_MAX];
                assert_true(golden_open(&g, placements[i].model));
                open_run(&r, &g, &placements[i], true, &placed);
                golden_feed(&r, 0, 8, NULL);
                if (lost) st_sim_lose_at(r.world, n);
                else st_sim_fail_at(r.world, n % 2 ? ST_SIM_LAUNCH : ST_SIM_COPY, (n + 1) / 2);
                strata_status status = decode(&r, 8, 1, logits, &error);
                failed = status != STRATA_OK;
                if (failed) assert_int_equal(status, lost ? STRATA_DEVICE_LOST : STRATA_DEVICE);
                if (!lost) {
                    st_sim_fail_at(r.world, ST_SIM_LAUNCH, 0);
                    st_sim_fail_at(r.world, ST_SIM_COPY, 0);
                    failed = n < 12; /* a failed upload of an expert is none */
                    (void)golden_cut(&r, 0);
                    golden_feed(&r, 0, 8, NULL);
                    if (decode(&r, 8, 1, logits, &error) != STRATA_OK)
                        fail_msg("after call %u: %s", (unsigned)n, error.message);
                }
                golden_run_close(&r);
                golden_close(&g);
            }
}

/* An interrupted step leaves the conversation where it was; the next step computes what it would have. */
static void an_interrupt_ends_the_launch(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        golden g;
        golden_run r;
        st_plan_options placed;
        strata_error error;
        float expected[VOCAB_MAX], logits[VOCAB_MAX];
        atomic_bool stop = false;
        assert_true(golden_open(&g, placements[i].model));
        open_run(&r, &g, &placements[i], true, &placed);
        golden_feed(&r, 0, 8, NULL);
        assert_int_equal(decode(&r, 8, 1, expected, &error), STRATA_OK);
        (void)golden_cut(&r, 8);
        st_run_watch(r.run, &stop);
        stop = true;
        assert_int_equal(decode(&r, 8, 1, NULL, &error), STRATA_INTERRUPTED);
        stop = false;
        if (decode(&r, 8, 1, logits, &error) != STRATA_OK) fail_msg("%s", error.message);
        double difference = 0; /* experts may have been uploaded meanwhile: sums are in another order */
        for (uint32_t k = 0; k < g.desc->vocab; k++) {
            double d = (double)(logits[k] - expected[k]);
            if (difference < (d < 0 ? -d : d)) difference = d < 0 ? -d : d;
        }
        assert_true(difference < 1e-4);
        golden_run_close(&r);
        golden_close(&g);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_compute_the_same_in_less_time),
        cmocka_unit_test(failures_in_the_middle_are_reported),
        cmocka_unit_test(an_interrupt_ends_the_launch),
    };
    return kit_run("chains", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
