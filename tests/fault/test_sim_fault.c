/* The simulated GPU while its n-th allocation, copy or launch fails, while it is lost at the n-th call, and while a
 * host allocation fails, for every n until a run has no failure: a typed error, no leak, and the next run works. */
#include "support/sim_rig.h"

#include "base/fault.h"

/* Opens a rig in `world`, runs it and frees it. */
static strata_status attempt(st_sim_world *world, strata_error *error)
{
    sim_rig r;
    strata_status status = sim_rig_open(&r, world, error);
    if (status == STRATA_OK) status = sim_rig_run(&r, true, error);
    if (status == STRATA_OK && !sim_rig_is_right(&r)) fail_msg("a clean run with wrong results");
    sim_rig_close(&r);
    assert_int_equal(st_sim_used_bytes(world), 0);
    return status;
}

static st_sim_world *open_world(void)
{
    st_sim_options options = sim_options();
    return sim_world_open(&options);
}

static void each_failed_call_is_reported(void **state)
{
    (void)state;
    static const struct { st_sim_call call; strata_status status; uint64_t calls; } rows[] = {
        {ST_SIM_ALLOC, STRATA_MEMORY, 2}, {ST_SIM_COPY, STRATA_DEVICE, 4}, {ST_SIM_LAUNCH, STRATA_DEVICE, 1}};
    strata_error error;
    for (size_t i = 0; i < 3; i++) {
        st_sim_world *world = open_world();
        assert_int_equal(attempt(world, &error), STRATA_OK);
        assert_int_equal(st_sim_calls(world, rows[i].call), rows[i].calls);
        for (uint64_t n = 1; n <= rows[i].calls; n++) {
            st_sim_fail_at(world, rows[i].call, n);
            assert_int_equal(attempt(world, &error), rows[i].status);
            assert_int_equal(attempt(world, &error), STRATA_OK); /* the call fails only once */
        }
        st_sim_fail_at(world, rows[i].call, rows[i].calls + 1); /* one more than a run makes: the first run succeeds */
        assert_int_equal(attempt(world, &error), STRATA_OK);
        assert_int_equal(attempt(world, &error), rows[i].status);
        st_sim_fail_at(world, rows[i].call, 1);
        st_sim_fail_at(world, rows[i].call, 0); /* disarms it */
        assert_int_equal(attempt(world, &error), STRATA_OK);
        st_sim_world_free(world);
    }
}

static void lost_gpu_stays_lost(void **state)
{
    (void)state;
    strata_error error;
    strata_status status = STRATA_DEVICE_LOST;
    uint64_t n = 0;
    while (status != STRATA_OK) {
        st_sim_world *world = open_world();
        st_sim_lose_at(world, ++n);
        status = attempt(world, &error);
        if (status != STRATA_OK) {
            assert_int_equal(status, STRATA_DEVICE_LOST);
            assert_int_equal(attempt(world, &error), STRATA_DEVICE_LOST); /* it stays lost */
            assert_true(st_sim_world_seconds(world) >= 0);
        }
        st_sim_world_free(world);
    }
    assert_true(n > 12);
}

/* The GPU is lost while a copy is in flight: waiting for it and all further work fail. */
static void gpu_lost_during_a_copy_fails_all_further_work(void **state)
{
    (void)state;
    strata_error error;
    st_sim_world *world = open_world();
    sim_rig r;
    assert_int_equal(sim_rig_open(&r, world, &error), STRATA_OK);
    st_event *event = NULL;
    assert_int_equal(r.card->event_new(r.device, &event, NULL), STRATA_OK);
    assert_int_equal(r.card->copy(r.up, ST_COPY_UP, r.x, r.host_x, 16, NULL), STRATA_OK);
    assert_int_equal(r.card->event_record(event, r.up, NULL), STRATA_OK);
    st_sim_lose_at(world, 1);
    assert_int_equal(r.card->event_wait_host(event, 0, &error), STRATA_DEVICE_LOST);
    assert_int_equal(r.card->copy(r.up, ST_COPY_UP, r.x, r.host_x, 16, &error), STRATA_DEVICE_LOST);
    assert_int_equal(r.card->zero(r.up, r.x, 16, &error), STRATA_DEVICE_LOST);
    assert_int_equal(r.card->launch(r.segment, r.compute, SIM_ROWS, &error), STRATA_DEVICE_LOST);
    r.card->event_free(event);
    sim_rig_close(&r);
    assert_int_equal(st_sim_used_bytes(world), 0);
    st_sim_world_free(world);
}

static void failed_host_allocation_is_reported(void **state)
{
    (void)state;
    strata_error error;
    strata_status status = STRATA_MEMORY;
    uint64_t n = 0;
    while (status != STRATA_OK) {
        st_sim_options options = sim_options();
        st_sim_world *world = NULL;
        st_fault_arm(ST_FAULT_ALLOC, ++n, false);
        status = st_sim_world_new(&options, &world, &error);
        if (status == STRATA_OK) status = attempt(world, &error);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        if (status != STRATA_OK) assert_int_equal(status, STRATA_MEMORY);
        st_sim_world_free(world);
    }
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failed_call_is_reported),
        cmocka_unit_test(lost_gpu_stays_lost),
        cmocka_unit_test(gpu_lost_during_a_copy_fails_all_further_work),
        cmocka_unit_test(failed_host_allocation_is_reported),
    };
    return cmocka_run_group_tests_name("sim_fault", tests, NULL, NULL);
}
