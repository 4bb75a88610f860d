/* src/run: loading and the executor, on the CPU backend and on a fake one that counts calls and fails. */
#include "support/golden.h"

#include <string.h>

#include "base/fault.h"

/* ---- a backend that is the CPU but for what a test changes ------------------------------------------------------- */

static struct {
    uint64_t launches, fail_at; /* the fail_at-th launch does its work and then fails; 0: none fails */
    size_t alloc_bytes;
} fake;

static strata_status fake_launch(st_segment *segment, st_queue *queue, strata_error *error)
{
    strata_status status = st_backend_cpu()->launch(segment, queue, error);
    if (++fake.launches != fake.fail_at) return status;
    if (error) *error = (strata_error){.status = STRATA_DEVICE, .message = "the launch failed"};
    return STRATA_DEVICE;
}

static strata_status fake_host_alloc(st_device *device, size_t bytes, void **out, bool *pinned, strata_error *error)
{
    fake.alloc_bytes += bytes;
    return st_backend_cpu()->host_alloc(device, bytes, out, pinned, error);
}

static st_backend fake_backend(void)
{
    st_backend backend = *st_backend_cpu();
    memset(&fake, 0, sizeof fake);
    backend.launch = fake_launch;
    backend.host_alloc = fake_host_alloc;
    return backend;
}

typedef struct rig {
    golden g;
    st_arena arena;
    st_profile host;
    st_plan_source source;
    const st_plan *plan;
    st_load_device device;
    st_load *load;
    st_run *run;
} rig;

static void open_rig(rig *r, const char *name, const st_backend *backend)
{
    *r = (rig){.host = st_profile_default(ST_DEVICE_HOST), .device.backend = backend};
    assert_true(golden_open(&r->g, name));
    r->host.total_bytes = r->host.free_bytes = (uint64_t)8 << 30;
    st_device_options options = {.cpu = "ref", .threads = 1};
    assert_int_equal(st_backend_cpu()->open(&options, &r->device.device, NULL), STRATA_OK);
}

typedef struct run_options {
    uint32_t batch, out_rows;
    bool nextn;
} run_options;

static strata_status start(rig *r, run_options options, strata_error *error)
{
    r->source = (st_plan_source){.desc = r->g.desc, .binding = r->g.binding, .program = r->g.program, .devices = &r->host,
                                 .device_count = 1};
    st_plan_options plan = st_plan_options_default();
    plan.kv_type = ST_TYPE_F32;
    plan.context = 64;
    plan.batch = options.batch;
    plan.out_rows = options.out_rows;
    plan.nextn = options.nextn;
    plan.snapshots = 2;
    plan.workers[ST_HOST] = 1;
    strata_status status = st_plan_build(&r->source, &plan, &r->arena, &r->plan, error);
    if (status != STRATA_OK) return status;
    st_load_device devices[ST_DEVICES_MAX] = {r->device};
    status = st_load_new(&r->source, r->plan, devices, &(st_load_options){0}, &r->load, error);
    if (status != STRATA_OK) return status;
    st_run_source source = st_load_sequence(r->load, 0);
    return st_run_new(&source, &r->run, error);
}

static void close_rig(rig *r)
{
    st_run_free(r->run);
    st_load_free(r->load);
    st_backend_cpu()->close(r->device.device);
    st_arena_free(&r->arena);
    golden_close(&r->g);
}

static void feed(rig *r, uint32_t first, uint32_t count)
{
    strata_error error;
    assert_int_equal(st_kv_position(st_run_kv(r->run)), first);
    if (st_run_tokens(r->run, r->g.tokens + first, count, &error) != STRATA_OK) fail_msg("%s", error.message);
}

/* The logits of a row of the last batch are the expectation's for that position. */
static void check_row(rig *r, uint32_t row, uint32_t position)
{
    const float *logits;
    strata_error error;
    if (st_run_logits(r->run, &row, 1, &logits, &error) != STRATA_OK) fail_msg("%s", error.message);
    for (uint32_t i = 0; i < r->g.desc->vocab; i++)
        assert_float_equal(logits[i], r->g.logits[(size_t)position * r->g.desc->vocab + i], 2e-4f);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void logits_are_those_of_the_rows_asked_for(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "llama", st_backend_cpu());
    assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4}, NULL), STRATA_OK);
    feed(&r, 0, 16);
    static const uint32_t asked[][4] = {{15, 0, 7, 7}, {3, 2, 1, 0}};
    uint32_t vocab = r.g.desc->vocab;
    for (size_t i = 0; i < 2; i++)
        for (uint32_t count = 1; count <= 4; count++) {
            const float *all, *one;
            float copy[4 * 320];
            assert_int_equal(st_run_logits(r.run, asked[i], count, &all, NULL), STRATA_OK);
            memcpy(copy, all, count * vocab * sizeof *copy);
            for (uint32_t k = 0; k < count; k++) {
                assert_int_equal(st_run_logits(r.run, &asked[i][k], 1, &one, NULL), STRATA_OK);
                assert_memory_equal(copy + k * vocab, one, vocab * sizeof *copy);
                check_row(&r, asked[i][k], asked[i][k]);
            }
        }
    close_rig(&r);
}

static void rows_out_of_range_are_refused(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "llama", st_backend_cpu());
    assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4}, NULL), STRATA_OK);
    const float *logits = NULL;
    strata_error error;
    uint32_t rows[5] = {0};
    assert_int_equal(st_run_logits(r.run, rows, 1, &logits, &error), STRATA_LIMIT); /* before anything ran */
    feed(&r, 0, 3);
    assert_int_equal(st_run_logits(r.run, rows, 0, &logits, &error), STRATA_LIMIT);
    assert_int_equal(st_run_logits(r.run, rows, 5, &logits, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "1 to 4"));
    rows[1] = 3;
    assert_int_equal(st_run_logits(r.run, rows, 2, &logits, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "row 3"));
    assert_int_equal(st_run_nextn_logits(r.run, rows, 1, &logits, &error), STRATA_LIMIT);
    assert_null(logits);
    check_row(&r, 2, 2);
    uint32_t reached;
    assert_int_equal(st_run_rewind(r.run, 1, &reached, NULL), STRATA_OK);
    assert_int_equal(reached, 1);
    assert_int_equal(st_run_logits(r.run, rows, 1, &logits, &error), STRATA_LIMIT); /* earlier logits are dropped */
    close_rig(&r);
}

static void batches_beyond_the_context_are_refused(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "llama", st_backend_cpu());
    assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4}, NULL), STRATA_OK);
    strata_error error;
    assert_int_equal(st_run_tokens(r.run, r.g.tokens, 0, &error), STRATA_LIMIT);
    assert_int_equal(st_run_tokens(r.run, r.g.tokens, 17, &error), STRATA_LIMIT);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(st_run_tokens(r.run, r.g.tokens, i < 3 ? 16 : 15, &error), STRATA_OK);
    assert_int_equal(st_run_tokens(r.run, r.g.tokens, 2, &error), STRATA_LIMIT); /* 63 of 64 */
    assert_non_null(strstr(error.message, "63"));
    assert_non_null(strstr(error.message, "64"));
    assert_int_equal(st_run_tokens(r.run, r.g.tokens, 1, &error), STRATA_OK);
    assert_int_equal(st_run_tokens(r.run, r.g.tokens, 1, &error), STRATA_LIMIT);
    assert_int_equal(st_kv_position(st_run_kv(r.run)), 64);
    close_rig(&r);
}

/* ---- other devices ----------------------------------------------------------------------------------------------- */

static void every_byte_is_in_the_ledger(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma4-e", "qwen35moe"};
    for (size_t i = 0; i < 3; i++) {
        rig r;
        st_backend backend = fake_backend();
        open_rig(&r, names[i], &backend);
        assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4}, NULL), STRATA_OK);
        assert_int_equal(fake.alloc_bytes, r.plan->devices[ST_HOST].block_bytes);
        strata_error error;
        if (st_ledger_check(st_load_ledger(r.load), &error) != STRATA_OK) fail_msg("%s", error.message);
        close_rig(&r);
    }
}

static void the_token_path_allocates_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "mixtral", "gemma4-moe", "qwen35moe"};
    for (size_t i = 0; i < 4; i++) {
        rig r;
        st_backend backend = fake_backend();
        open_rig(&r, names[i], &backend);
        assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4}, NULL), STRATA_OK);
        fake.alloc_bytes = 0;
        st_fault_arm(ST_FAULT_ALLOC, UINT64_MAX, false);
        feed(&r, 0, 16);
        assert_int_equal(st_kv_snapshot(st_run_kv(r.run), NULL), STRATA_OK);
        for (uint32_t k = 16; k < 30; k++) {
            feed(&r, k, 1);
            check_row(&r, 0, k);
        }
        uint32_t reached;
        assert_int_equal(st_run_rewind(r.run, 20, &reached, NULL), STRATA_OK);
        feed(&r, reached, 3);
        check_row(&r, 2, reached + 2);
        assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        assert_int_equal(fake.alloc_bytes, 0);
        close_rig(&r);
    }
}

/* A failed launch may have updated the state. After a rewind to 0 the results are those of a new sequence. */
static void a_sequence_restarts_after_a_failed_launch(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen35", "qwen35moe"};
    for (size_t i = 0; i < 3; i++)
        for (uint64_t fail_at = 1; fail_at <= 4; fail_at++) {
            rig r;
            strata_error error = {0};
            st_backend backend = fake_backend();
            open_rig(&r, names[i], &backend);
            bool nextn = r.g.nextn_logits != NULL;
            assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4, .nextn = nextn}, NULL), STRATA_OK);
            fake.fail_at = fail_at;
            strata_status status = STRATA_OK;
            for (uint32_t k = 0; k < 4 && status == STRATA_OK; k++)
                status = st_run_tokens(r.run, r.g.tokens + k * 12, 12, &error);
            assert_int_equal(status, STRATA_DEVICE);
            assert_int_equal(error.status, STRATA_DEVICE);
            uint32_t reached = 99;
            assert_int_equal(st_run_rewind(r.run, 0, &reached, NULL), STRATA_OK);
            assert_int_equal(reached, 0);
            for (uint32_t k = 0; k < 48; k += 16) {
                feed(&r, k, 16);
                check_row(&r, 15, k + 15);
            }
            if (nextn) assert_int_equal(st_run_nextn_rows(r.run), 16);
            close_rig(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_rows_asked_for), cmocka_unit_test(rows_out_of_range_are_refused),
        cmocka_unit_test(batches_beyond_the_context_are_refused), cmocka_unit_test(every_byte_is_in_the_ledger),
        cmocka_unit_test(the_token_path_allocates_nothing), cmocka_unit_test(a_sequence_restarts_after_a_failed_launch),
    };
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
