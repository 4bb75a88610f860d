/* A model split between the CPU and the simulated GPU, whose n-th allocation, copy or launch fails, for every n: a
 * typed error, no memory left allocated on the GPU, and the conversation can restart. */
#include "support/golden.h"

#include <stdio.h>

static golden_options options_for(const golden *g, const st_plan_options *placed)
{
    return (golden_options){.kv_type = ST_TYPE_F32, .batch = 16, .threads = 1, .nextn = g->nextn_logits != NULL, .cpu = "ref",
                            .placed = placed};
}

/* Feeds two batches and computes logits. */
static strata_status use(golden_run *r, strata_error *error)
{
    const float *logits;
    uint32_t row = 15;
    strata_status status = golden_step(r, r->conversation, r->g->tokens, 16, error);
    if (status == STRATA_OK) status = golden_step(r, r->conversation, r->g->tokens + 16, 16, error);
    if (status == STRATA_OK) status = st_run_logits(r->run, &row, 1, &logits, error);
    return status;
}

/* After a failure and a cut to zero, the logits are right. */
static void check_again(golden_run *r, const char *name, uint64_t n)
{
    (void)golden_cut(r, 0);
    golden_score score = {0};
    golden_feed(r, 0, r->g->token_count, &score);
    if (!(golden_error(&score) <= 2e-5)) fail_msg("%s after call %lu failed: error %g", name, (unsigned long)n, golden_error(&score));
}

/* Returns false when the run makes fewer than n calls. */
static bool try_nth(const char *name, const golden *g, const st_plan_options *placed, st_sim_call call, uint64_t n)
{
    golden_options options = options_for(g, placed);
    options.fails = call;
    options.fails_at = n;
    golden_run r;
    strata_error error = {0};
    strata_status status = golden_run_try(&r, g, &options, &error); /* closes what it opened */
    bool failed = status != STRATA_OK;
    if (!failed) {
        status = use(&r, &error);
        failed = status != STRATA_OK;
        if (failed) check_again(&r, name, n);
        bool more = failed || st_sim_calls(r.world, call) >= n;
        st_sim_world *world = r.world;
        r.world = NULL;
        golden_run_close(&r);
        assert_int_equal(st_sim_used_bytes(world), 0);
        st_sim_world_free(world);
        assert_true(failed || !more); /* a failure is never swallowed */
    }
    if (failed) {
        assert_int_equal(error.status, status);
        assert_true(status == (call == ST_SIM_ALLOC ? STRATA_MEMORY : STRATA_DEVICE));
    }
    return failed;
}

static void each_failed_call_is_reported(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen35moe", "gemma4-e"};
    for (size_t i = 0; i < 3; i++) {
        golden g;
        assert_true(golden_open(&g, names[i]));
        st_plan_options placed = st_plan_options_default();
        placed.layers = 2;
        placed.moe = ST_MOE_CPU;
        for (int call = 0; call < ST_SIM_CALLS; call++) {
            uint64_t n = 1;
            while (try_nth(names[i], &g, &placed, (st_sim_call)call, n)) n += kit_is_slow() ? 4 : 1;
            assert_true(n > 1);
        }
        golden_close(&g);
    }
}

/* The same where the matrices of dense parts are copied to the GPU in every step: a failed copy ends the step, and the next
 * steps are right. */
static void each_failed_call_of_a_streamed_step_is_reported(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen35"};
    for (size_t i = 0; i < 2; i++) {
        golden g;
        assert_true(golden_open(&g, names[i]));
        st_plan_options placed = st_plan_options_default();
        placed.layers = (int32_t)g.desc->layer_count - (int32_t)i; /* a layer's attention on the host, too */
        placed.cpu_ffn_layers = g.desc->layer_count;
        placed.dense_rows = 2;
        for (int call = ST_SIM_COPY; call < ST_SIM_CALLS; call++) {
            uint64_t n = 1;
            while (try_nth(names[i], &g, &placed, (st_sim_call)call, n)) n += kit_is_slow() ? 4 : 1;
            assert_true(n > 4 * g.desc->layer_count);
        }
        golden_close(&g);
    }
}

/* A plan that exceeds the GPU's memory is refused before anything is allocated. */
static void too_small_gpu_is_refused(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "llama"));
    st_plan_options placed = st_plan_options_default();
    placed.layers = ST_LAYERS_ALL;
    golden_options options = options_for(&g, &placed);
    options.card_bytes = (uint64_t)757 << 20; /* overhead and margin leave 1 MiB */
    golden_run r;
    strata_error error = {0};
    assert_int_equal(golden_run_try(&r, &g, &options, &error), STRATA_MEMORY);
    assert_null(r.world);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failed_call_is_reported),
        cmocka_unit_test(each_failed_call_of_a_streamed_step_is_reported),
        cmocka_unit_test(too_small_gpu_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
