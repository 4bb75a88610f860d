/* src/run: loading and the executor, on the CPU backend and on a fake one that counts calls and fails. */
#include "support/golden.h"

#include <string.h>

#include "base/fault.h"

/* ---- a backend that is the CPU but for what a test changes ------------------------------------------------------- */

static struct {
    uint64_t launches, fail_at; /* the fail_at-th launch does its work and then fails; 0: none fails */
    size_t alloc_bytes;
} fake;

static strata_status fake_launch(st_segment *segment, st_queue *queue, uint32_t rows, strata_error *error)
{
    strata_status status = st_backend_cpu()->launch(segment, queue, rows, error);
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
    st_run *run; /* the load's */
    st_conversation *conversation;
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
    uint32_t conversations; /* 0: 1 */
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
    plan.conversations = options.conversations;
    plan.page_tokens = 4;
    plan.workers[ST_HOST] = 1;
    strata_status status = st_plan_build(&r->source, &plan, &r->arena, &r->plan, error);
    if (status != STRATA_OK) return status;
    st_load_device devices[ST_DEVICES_MAX] = {r->device};
    status = st_load_new(&r->source, r->plan, devices, &(st_load_options){0}, &r->load, error);
    if (status != STRATA_OK) return status;
    r->run = st_load_run(r->load);
    return st_conversation_new(st_run_kv(r->run), &r->conversation, error);
}

static void close_rig(rig *r)
{
    st_conversation_free(r->conversation);
    st_load_free(r->load);
    st_backend_cpu()->close(r->device.device);
    st_arena_free(&r->arena);
    golden_close(&r->g);
}

/* The conversation's next tokens, from the kit's at `first`, as a piece of a step. */
static st_run_piece piece_of(rig *r, st_conversation *c, uint32_t first, uint32_t count)
{
    uint32_t position = st_conversation_position(c);
    assert_true(position + count <= 64);
    memcpy(st_conversation_tokens(c) + position, r->g.tokens + first, count * sizeof *r->g.tokens);
    return (st_run_piece){.conversation = c, .count = count, .prompt = true};
}

static strata_status try_step(rig *r, uint32_t first, uint32_t count, strata_error *error)
{
    st_run_piece piece = piece_of(r, r->conversation, first, count);
    return st_run_step(r->run, &piece, 1, error);
}

static void feed(rig *r, uint32_t first, uint32_t count)
{
    strata_error error;
    assert_int_equal(st_conversation_position(r->conversation), first);
    if (try_step(r, first, count, &error) != STRATA_OK) fail_msg("%s", error.message);
}

/* Cuts the conversation to at most `position` tokens; returns where it can continue. */
static uint32_t cut_to(rig *r, uint32_t position)
{
    st_seek seek;
    strata_error error;
    strata_status status = st_conversation_seek(r->conversation, r->g.tokens, position + 1, true, &seek, &error);
    if (status != STRATA_OK) fail_msg("%s", error.message);
    return seek.kept;
}

/* The logits of a row of the last step are the expectation's for that position. */
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
    close_rig(&r);
}

static void batches_beyond_the_context_are_refused(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "llama", st_backend_cpu());
    assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4}, NULL), STRATA_OK);
    strata_error error;
    assert_int_equal(try_step(&r, 0, 0, &error), STRATA_LIMIT);
    assert_int_equal(try_step(&r, 0, 17, &error), STRATA_LIMIT);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(try_step(&r, 0, i < 3 ? 16 : 15, &error), STRATA_OK);
    st_run_piece piece = {.conversation = r.conversation, .count = 2};
    assert_int_equal(st_run_step(r.run, &piece, 1, &error), STRATA_LIMIT); /* 63 of 64 */
    assert_non_null(strstr(error.message, "63"));
    assert_non_null(strstr(error.message, "64"));
    assert_int_equal(try_step(&r, 0, 1, &error), STRATA_OK);
    piece.count = 1;
    assert_int_equal(st_run_step(r.run, &piece, 1, &error), STRATA_LIMIT);
    assert_int_equal(st_conversation_position(r.conversation), 64);
    close_rig(&r);
}

static void steps_of_wrong_pieces_are_refused(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "llama", st_backend_cpu());
    assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4, .conversations = 2}, NULL), STRATA_OK);
    st_conversation *others[2] = {NULL};
    strata_error error;
    for (int i = 0; i < 2; i++) assert_int_equal(st_conversation_new(st_run_kv(r.run), &others[i], NULL), STRATA_OK);
    st_run_piece pieces[] = {piece_of(&r, r.conversation, 0, 8), piece_of(&r, others[0], 0, 8), piece_of(&r, others[1], 0, 0)};
    assert_int_equal(st_run_step(r.run, pieces, 0, &error), STRATA_LIMIT);
    assert_int_equal(st_run_step(r.run, pieces + 2, 1, &error), STRATA_LIMIT); /* no rows */
    assert_int_equal(st_run_step(r.run, pieces + 1, 2, &error), STRATA_LIMIT); /* one of them without rows */
    pieces[2].count = 1;
    assert_int_equal(st_run_step(r.run, pieces, 3, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "17 rows of 3 conversations: expected 1 to 16 rows of at most 2"));
    for (int i = 0; i < 2; i++) assert_int_equal(st_conversation_position(others[i]), 0);
    assert_int_equal(st_run_step(r.run, pieces, 2, &error), STRATA_OK);
    check_row(&r, 7, 7);
    check_row(&r, 15, 7);
    for (int i = 0; i < 2; i++) st_conversation_free(others[i]);
    close_rig(&r);
}

/* The second piece is refused: the first one's pages are free again, and it can run alone. */
static void a_refused_step_changes_nothing(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "gemma4-e", st_backend_cpu());
    assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4, .conversations = 2}, NULL), STRATA_OK);
    st_conversation *full = NULL;
    strata_error error;
    assert_int_equal(st_conversation_new(st_run_kv(r.run), &full, NULL), STRATA_OK);
    for (int i = 0; i < 4; i++) {
        st_run_piece piece = piece_of(&r, full, 0, 16);
        assert_int_equal(st_run_step(r.run, &piece, 1, &error), STRATA_OK);
    }
    feed(&r, 0, 6);
    st_kv_use before = st_kv_count(st_run_kv(r.run)), after;
    st_run_piece pieces[] = {piece_of(&r, r.conversation, 6, 8), {.conversation = full, .count = 1}};
    assert_int_equal(st_run_step(r.run, pieces, 2, &error), STRATA_LIMIT);
    after = st_kv_count(st_run_kv(r.run));
    assert_memory_equal(before.pools, after.pools, sizeof before.pools);
    feed(&r, 6, 8);
    check_row(&r, 7, 13);
    st_conversation_free(full);
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
        st_conversation_keep(r.conversation, ST_RESTORE_MARK);
        for (uint32_t k = 16; k < 30; k++) {
            feed(&r, k, 1);
            check_row(&r, 0, k);
        }
        uint32_t reached = cut_to(&r, 20);
        assert_in_range(reached, 16, 20);
        feed(&r, reached, 3);
        check_row(&r, 2, reached + 2);
        assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        assert_int_equal(fake.alloc_bytes, 0);
        close_rig(&r);
    }
}

/* A failed launch may have updated the state. The conversation goes on from what earlier steps have stored, or from 0 if
 * recurrent state is lost, and its results are those of a new conversation. */
static void a_conversation_goes_on_after_a_failed_launch(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma4-e", "qwen35", "qwen35moe"};
    for (size_t i = 0; i < 4; i++)
        for (uint64_t fail_at = 1; fail_at <= 4; fail_at++) {
            rig r;
            strata_error error = {0};
            st_backend backend = fake_backend();
            open_rig(&r, names[i], &backend);
            bool nextn = r.g.nextn_logits != NULL;
            assert_int_equal(start(&r, (run_options){.batch = 16, .out_rows = 4, .nextn = nextn}, NULL), STRATA_OK);
            fake.fail_at = fail_at;
            strata_status status = STRATA_OK;
            uint32_t stored = 0;
            for (; stored < 48 && status == STRATA_OK; stored += status == STRATA_OK ? 12 : 0)
                status = try_step(&r, stored, 12, &error);
            assert_int_equal(status, STRATA_DEVICE);
            assert_int_equal(error.status, STRATA_DEVICE);
            uint32_t reached = cut_to(&r, 47);
            assert_int_equal(reached, r.g.desc->recurrent ? 0 : stored);
            for (uint32_t count; reached < 48; reached += count) {
                count = 48 - reached < 16 ? 48 - reached : 16;
                feed(&r, reached, count);
                check_row(&r, count - 1, reached + count - 1);
                if (nextn) assert_int_equal(st_run_nextn_rows(r.run), count - (reached == 0));
            }
            close_rig(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_rows_asked_for), cmocka_unit_test(rows_out_of_range_are_refused),
        cmocka_unit_test(batches_beyond_the_context_are_refused), cmocka_unit_test(steps_of_wrong_pieces_are_refused),
        cmocka_unit_test(a_refused_step_changes_nothing), cmocka_unit_test(every_byte_is_in_the_ledger),
        cmocka_unit_test(the_token_path_allocates_nothing), cmocka_unit_test(a_conversation_goes_on_after_a_failed_launch),
    };
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
