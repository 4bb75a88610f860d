/* Chains on the simulated GPU: values go to the host and back on the way through one launch, in virtual time; mistakes
 * of the host are errors. */
#include "support/sim_rig.h"

#include <math.h>
#include <string.h>

enum { SEND = 1, ADD = 2, LINKS = 4, BYTES = SIM_ROWS * SIM_OUT * 4, LIMIT_US = 5000000 };

#define ROUND_TRIP 0.5

typedef struct chain_rig {
    sim_rig sim;
    st_chain *chain;
    st_event *end;
    float *given, *answer; /* host memory, [SIM_ROWS, SIM_OUT] each */
} chain_rig;

/* The segment twice: its output z goes to the host, which adds to it. */
static void open_rig(chain_rig *r)
{
    st_sim_options options = sim_options();
    options.card.round_trip_seconds = ROUND_TRIP;
    strata_error error;
    *r = (chain_rig){0};
    if (sim_rig_open(&r->sim, sim_world_open(&options), &error) != STRATA_OK) fail_msg("%s", error.message);
    sim_rig *s = &r->sim;
    if (sim_rig_run(s, true, &error) != STRATA_OK) fail_msg("%s", error.message); /* sends the inputs */
    r->given = s->host_z;
    r->answer = s->host_x;
    assert_int_equal(s->card->event_new(s->device, &r->end, &error), STRATA_OK);
    st_link links[LINKS] = {{.kind = ST_LINK_RUN, .segment = s->segment},
                            {.kind = ST_LINK_SEND, .values = {{r->given, s->z, SIM_OUT}}, .value_count = 1},
                            {.kind = ST_LINK_ADD, .values = {{s->z, r->answer, SIM_OUT}}, .value_count = 1},
                            {.kind = ST_LINK_SEND, .values = {{r->given, s->z, SIM_OUT}}, .value_count = 1}};
    st_chain_source source = {.links = links, .count = LINKS, .step = s->step, .limit_us = LIMIT_US};
    assert_int_equal(s->card->chain_new(s->device, &source, &r->chain, &error), STRATA_OK);
    assert_non_null(r->chain);
    assert_int_equal(s->card->chain_rows(r->chain), ST_CHAIN_ROWS);
}

static void close_rig(chain_rig *r)
{
    r->sim.card->chain_free(r->chain);
    r->sim.card->event_free(r->end);
    st_sim_world *world = r->sim.world;
    sim_rig_close(&r->sim);
    st_sim_world_free(world);
}

static strata_status launch(chain_rig *r, uint32_t sequence, strata_error *error)
{
    return r->sim.card->chain_launch(r->chain, r->sim.compute, SIM_ROWS, sequence, r->end, error);
}

static strata_status await(chain_rig *r, uint32_t link, strata_error *error)
{
    return r->sim.card->chain_await(r->chain, link, 2 * LIMIT_US, NULL, error);
}

static void close_to(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9)) fail_msg("%.9g s, expected %.9g", found, expected);
}

/* A hand-over takes half a round trip and its bytes each way; an answer without a value has no bytes. */
static void values_go_to_the_host_and_back(void **state)
{
    (void)state;
    chain_rig r;
    strata_error error;
    open_rig(&r);
    float before[SIM_ROWS * SIM_OUT];
    memcpy(before, r.given, sizeof before);
    for (uint32_t sequence = 1; sequence <= 4; sequence++) {
        bool none = sequence % 2 == 0;
        memset(r.given, 0, BYTES);
        double start = st_sim_world_seconds(r.sim.world);
        assert_int_equal(launch(&r, sequence, &error), STRATA_OK);
        assert_int_equal(await(&r, SEND, &error), STRATA_OK);
        double given = st_sim_world_seconds(r.sim.world);
        assert_memory_equal(r.given, before, BYTES);
        for (int i = 0; i < SIM_ROWS * SIM_OUT; i++) r.answer[i] = (float)i;
        r.sim.card->chain_answer(r.chain, ADD, none);
        if (await(&r, LINKS - 1, &error) != STRATA_OK) fail_msg("%s", error.message);
        for (int i = 0; i < SIM_ROWS * SIM_OUT; i++) assert_true(r.given[i] == before[i] + (none ? 0 : (float)i));
        close_to(st_sim_world_seconds(r.sim.world) - given, ROUND_TRIP + (none ? 0 : BYTES / 100.0) + BYTES / 50.0);
        assert_true(given - start > 0.25 + ROUND_TRIP / 2 + BYTES / 50.0); /* and the operations */
    }
    close_rig(&r);
}

/* Nobody answers: the GPU gives up, and the host's wait reports it. */
static void an_answer_that_does_not_come_is_an_error(void **state)
{
    (void)state;
    chain_rig r;
    strata_error error;
    open_rig(&r);
    assert_int_equal(launch(&r, 1, &error), STRATA_OK);
    assert_int_equal(await(&r, SEND, &error), STRATA_OK);
    double start = st_sim_world_seconds(r.sim.world);
    assert_int_equal(await(&r, LINKS - 1, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "5000000"));
    close_to(st_sim_world_seconds(r.sim.world) - start, 1e-6 * LIMIT_US);
    close_rig(&r);
}

/* An abandoned launch ends, and the next one works. */
static void an_abandoned_launch_ends(void **state)
{
    (void)state;
    chain_rig r;
    strata_error error;
    atomic_bool stop = true;
    open_rig(&r);
    assert_int_equal(launch(&r, 1, &error), STRATA_OK);
    assert_int_equal(r.sim.card->chain_await(r.chain, SEND, LIMIT_US, &stop, &error), STRATA_INTERRUPTED);
    r.sim.card->chain_abandon(r.chain);
    assert_int_equal(r.sim.card->event_wait_host(r.end, LIMIT_US, &error), STRATA_OK);
    assert_int_equal(launch(&r, 2, &error), STRATA_OK);
    assert_int_equal(await(&r, SEND, &error), STRATA_OK);
    r.sim.card->chain_answer(r.chain, ADD, true);
    assert_int_equal(r.sim.card->event_wait_host(r.end, LIMIT_US, &error), STRATA_OK);
    close_rig(&r);
}

/* The host copies to the memory that a hand-over writes, without having awaited it. */
static void a_race_with_a_hand_over_is_reported(void **state)
{
    (void)state;
    chain_rig r;
    strata_error error;
    open_rig(&r);
    assert_int_equal(launch(&r, 1, &error), STRATA_OK);
    assert_int_equal(r.sim.card->copy(r.sim.up, ST_COPY_DOWN, r.given, r.sim.x, 200, &error), STRATA_OK);
    r.sim.card->chain_answer(r.chain, ADD, true);
    assert_int_equal(await(&r, LINKS - 1, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "same time"));
    close_rig(&r);
}

static void a_lost_gpu_ends_the_wait(void **state)
{
    (void)state;
    chain_rig r;
    strata_error error;
    open_rig(&r);
    assert_int_equal(launch(&r, 1, &error), STRATA_OK);
    st_sim_lose_at(r.sim.world, 1);
    st_event *event = NULL;
    assert_int_equal(r.sim.card->event_new(r.sim.device, &event, &error), STRATA_DEVICE_LOST);
    assert_int_equal(await(&r, SEND, &error), STRATA_DEVICE_LOST);
    r.sim.card->chain_abandon(r.chain);
    close_rig(&r);
}

static void links_of_the_wrong_memory_are_refused(void **state)
{
    (void)state;
    chain_rig r;
    strata_error error;
    open_rig(&r);
    st_link wrong = {.kind = ST_LINK_SEND, .values = {{r.sim.z, r.given, SIM_OUT}}, .value_count = 1};
    st_chain_source source = {.links = &wrong, .count = 1, .step = r.sim.step, .limit_us = LIMIT_US};
    st_chain *chain = NULL;
    assert_int_equal(r.sim.card->chain_new(r.sim.device, &source, &chain, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "GPU memory"));
    wrong.values[0] = (st_link_value){r.sim.x, r.sim.z, SIM_OUT};
    assert_int_equal(r.sim.card->chain_new(r.sim.device, &source, &chain, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "host memory"));
    assert_null(chain);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_go_to_the_host_and_back),      cmocka_unit_test(an_answer_that_does_not_come_is_an_error),
        cmocka_unit_test(an_abandoned_launch_ends),            cmocka_unit_test(a_race_with_a_hand_over_is_reported),
        cmocka_unit_test(a_lost_gpu_ends_the_wait),            cmocka_unit_test(links_of_the_wrong_memory_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
