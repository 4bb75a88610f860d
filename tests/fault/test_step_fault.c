/* A step of three conversations, a prompt and a fork on a simulated GPU whose n-th copy or launch fails, for every n, or that
 * is lost at the n-th call: a typed error; the conversations of the step go on from their last full pages or restore point with
 * the right logits, others are not concerned, and nothing leaks. */
#include "support/golden.h"

#include <string.h>

#include "engine.h"
#include "support/session_rig.h"

static const char *const models[] = {"llama", "gemma4-e", "qwen35moe"};
enum { MODELS = sizeof models / sizeof *models };

/* ---- a step of three conversations ------------------------------------------------------------------------------- */

enum { CONVERSATIONS = 4, PIECES = 3, BATCH = 16, END = 40 };

/* Where each conversation is before the step, and how many of its rows the step has; the last one takes no part. Each has a
 * restore point at the end of its last page, where the model needs one. */
static const struct {
    uint32_t position, rows, reaches; /* reaches: it goes on from there at least */
} places[CONVERSATIONS] = {{13, 1, 8}, {20, 5, 20}, {8, 7, 8}, {16, 0, 16}};

typedef struct rig {
    golden g;
    golden_run r;
    st_conversation *all[CONVERSATIONS];
} rig;

/* Runs the conversation up to `end`; *kept (may be NULL) is where it began. */
static void advance(rig *t, st_conversation *c, uint32_t end, uint32_t *kept)
{
    strata_error error;
    st_seek seek;
    if (st_conversation_seek(c, t->g.tokens, end, true, &seek, &error) != STRATA_OK) fail_msg("%s", error.message);
    for (uint32_t count, position = seek.kept; position < end; position += count) {
        count = end - position < BATCH ? end - position : BATCH;
        if (golden_step(&t->r, c, t->g.tokens + position, count, &error) != STRATA_OK) fail_msg("%s", error.message);
    }
    if (st_run_wait(t->r.run, &error) != STRATA_OK) fail_msg("%s", error.message);
    st_conversation_keep(c, ST_RESTORE_MARK);
    if (kept) *kept = seek.kept;
}

static void open_rig(rig *t, const char *name)
{
    assert_true(golden_open(&t->g, name));
    st_plan_options placed = st_plan_options_default();
    placed.layers = 2;
    placed.moe = ST_MOE_CPU;
    placed.tier_bytes = 0; /* a failed copy to the RAM tier is no failure of the step */
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = BATCH, .threads = 1, .nextn = t->g.nextn_logits != NULL, .cpu = "ref",
                              .placed = &placed, .conversations = CONVERSATIONS, .page_tokens = 4};
    golden_run_open(&t->r, &t->g, &options);
    t->all[0] = t->r.conversation;
    for (int i = 1; i < CONVERSATIONS; i++)
        assert_int_equal(st_conversation_new(st_run_kv(t->r.run), &t->all[i], NULL), STRATA_OK);
    for (int i = 0; i < CONVERSATIONS; i++) advance(t, t->all[i], places[i].position, NULL);
}

static void close_rig(rig *t)
{
    for (int i = 0; i < CONVERSATIONS; i++) st_conversation_free(t->all[i]);
    t->r.conversation = NULL;
    st_kv_use use = st_kv_count(st_run_kv(t->r.run));
    for (uint32_t i = 0; i < use.pool_count; i++) assert_int_equal(use.pools[i].held, 0);
    assert_int_equal(use.slots_taken, 0);
    assert_int_equal(use.conversations, 0);
    golden_run_close(&t->r); /* checks that no byte of the GPU is left */
    golden_close(&t->g);
}

static void check_row(const rig *t, const float *logits, uint32_t position)
{
    uint32_t vocab = t->g.desc->vocab;
    const float *wanted = t->g.logits + (size_t)position * vocab;
    for (uint32_t i = 0; i < vocab; i++) assert_float_equal(logits[i], wanted[i], 2e-4f);
}

/* The step and the logits of each conversation's last row. */
static strata_status run_step(rig *t, strata_error *error)
{
    st_run_piece pieces[PIECES];
    uint32_t rows[PIECES], row = 0;
    const float *logits;
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = (st_run_piece){.conversation = t->all[i], .count = places[i].rows, .prompt = places[i].rows > 1};
        memcpy(st_conversation_tokens(t->all[i]) + places[i].position, t->g.tokens + places[i].position,
               places[i].rows * sizeof(strata_token));
        row += places[i].rows;
        rows[i] = row - 1;
    }
    strata_status status = st_run_step(t->r.run, pieces, PIECES, error);
    if (status == STRATA_OK) status = st_run_logits(t->r.run, rows, PIECES, &logits, error);
    for (int i = 0; i < PIECES && status == STRATA_OK; i++)
        check_row(t, logits + (size_t)i * t->g.desc->vocab, places[i].position + places[i].rows - 1);
    return status == STRATA_OK ? st_run_wait(t->r.run, error) : status;
}

/* After a failure every conversation goes on, and computes what it should. */
static void check_all(rig *t, uint64_t n)
{
    for (int i = 0; i < CONVERSATIONS; i++) {
        uint32_t kept, row;
        const float *logits;
        strata_error error;
        assert_in_range(st_conversation_position(t->all[i]), 0, places[i].position + places[i].rows);
        if (i >= PIECES) {
            assert_int_equal(st_conversation_position(t->all[i]), places[i].position);
            assert_true(st_conversation_ready(t->all[i]));
        }
        advance(t, t->all[i], END, &kept);
        if (kept < places[i].reaches) fail_msg("call %u: conversation %d restarts at %u", (unsigned)n, i, kept);
        row = (END - kept - 1) % BATCH;
        if (st_run_logits(t->r.run, &row, 1, &logits, &error) != STRATA_OK) fail_msg("%s", error.message);
        check_row(t, logits, END - 1);
    }
}

/* Returns false when the step makes fewer than n calls. */
static bool try_nth(const char *name, st_sim_call call, uint64_t n)
{
    static rig t;
    strata_error error = {0};
    open_rig(&t, name);
    uint64_t before = st_sim_calls(t.r.world, call);
    st_sim_fail_at(t.r.world, call, n);
    strata_status status = run_step(&t, &error);
    bool injected = st_sim_calls(t.r.world, call) - before >= n;
    st_sim_fail_at(t.r.world, call, 0);
    assert_int_equal(status, injected ? STRATA_DEVICE : STRATA_OK);
    if (injected) assert_true(error.status == STRATA_DEVICE && error.message[0]);
    check_all(&t, n);
    close_rig(&t);
    return injected;
}

static void each_failed_call_of_a_step_is_reported(void **state)
{
    (void)state;
    static const st_sim_call calls[] = {ST_SIM_COPY, ST_SIM_LAUNCH};
    for (int m = 0; m < MODELS; m++)
        for (int k = 0; k < 2; k++) {
            uint64_t n = 1;
            while (try_nth(models[m], calls[k], n)) n += kit_is_slow() ? 4 : 1;
            assert_true(n > 1);
        }
}

/* A lost GPU stays lost: every call says so, and everything can be closed. */
static void gpu_lost_during_a_step_is_reported(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        strata_status status = STRATA_DEVICE_LOST;
        for (uint64_t n = 1; status != STRATA_OK; n += kit_is_slow() ? 4 : 1) {
            static rig t;
            strata_error error = {0};
            st_seek seek;
            open_rig(&t, models[m]);
            st_sim_lose_at(t.r.world, n);
            status = run_step(&t, &error);
            if (status != STRATA_OK) {
                assert_int_equal(status, STRATA_DEVICE_LOST);
                strata_status again = st_conversation_seek(t.all[1], t.g.tokens, END, true, &seek, NULL);
                if (again == STRATA_OK) again = golden_step(&t.r, t.all[1], t.g.tokens + seek.kept, 1, &error);
                assert_int_equal(again, STRATA_DEVICE_LOST);
            }
            close_rig(&t);
        }
    }
}

/* ---- a prompt and a fork of sessions ----------------------------------------------------------------------------- */

enum { PAGE = SESSION_PAGE, COUNT = PAGE + 30, OTHER = 20, LONG = 2 * PAGE + 20 };

static void open_sessions(session_rig *s, const char *name, strata_session **other)
{
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    placement.device = "sim";
    placement.vram_bytes = (uint64_t)1 << 30;
    placement.layers = 2;
    placement.moe = "cpu";
    session_rig_open(s, name, (strata_engine_options){.threads = 1, .batch = 40, .sessions = 3, .kv_type = "f32", .placement = &placement,
                                                      .nextn = strcmp(name, "qwen35moe") == 0});
    *other = session_open(s);
    (void)session_prompt(*other, session_ids + 100, OTHER);
    (void)session_prompt(s->session, session_ids, COUNT);
}

/* Another prompt with the same first pages: pages are shared, and restore points brought back. A restore point that could not
 * be copied does not exist, which is no error. */
static bool try_prompt(const char *name, st_sim_call call, uint64_t n)
{
    session_rig s;
    strata_session *other;
    strata_token tokens[COUNT + 10];
    strata_error error = {0};
    size_t reused = 12345;
    open_sessions(&s, name, &other);
    memcpy(tokens, session_ids, sizeof tokens);
    tokens[COUNT - 5] = 300;
    st_sim_world *world = s.engine->backends.world;
    uint64_t before = st_sim_calls(world, call);
    st_sim_fail_at(world, call, n);
    strata_status status = strata_session_prompt(s.session, tokens, COUNT + 10, NULL, &reused, &error);
    bool injected = st_sim_calls(world, call) - before >= n;
    st_sim_fail_at(world, call, 0);
    if (status != STRATA_OK) {
        assert_true(injected && status == STRATA_DEVICE && error.status == STRATA_DEVICE);
        assert_int_equal(reused, 12345);
    }
    session_check_near(&s, s.session, tokens, COUNT + 10); /* the session has the new prompt and computes what is missing */
    session_check_near(&s, other, session_ids + 100, OTHER);
    strata_session_free(other);
    session_rig_close(&s);
    return injected;
}

static void each_failed_call_of_a_prompt_is_reported(void **state)
{
    (void)state;
    static const st_sim_call calls[] = {ST_SIM_COPY, ST_SIM_LAUNCH};
    for (int m = 0; m < MODELS; m++)
        for (int k = 0; k < 2; k++) {
            uint64_t n = 1;
            while (try_prompt(models[m], calls[k], n)) n += kit_is_slow() ? 7 : 1;
            assert_true(n > 1);
        }
}

/* A fork copies recurrent state: it fails, and the session goes on without it. */
static bool try_fork(const char *name, uint64_t n)
{
    session_rig s;
    strata_session *other, *child = NULL;
    strata_error error = {0};
    open_sessions(&s, name, &other);
    st_sim_world *world = s.engine->backends.world;
    uint64_t before = st_sim_calls(world, ST_SIM_COPY);
    st_sim_fail_at(world, ST_SIM_COPY, n);
    strata_status status = strata_session_fork(s.session, &child, &error);
    bool injected = st_sim_calls(world, ST_SIM_COPY) - before >= n;
    st_sim_fail_at(world, ST_SIM_COPY, 0);
    assert_int_equal(status, injected ? STRATA_DEVICE : STRATA_OK);
    assert_int_equal(child == NULL, injected);
    assert_int_equal(session_kv_use(&s, -1, "sessions"), injected ? 2 : 3);
    session_check_near(&s, s.session, session_ids, COUNT);
    if (child) session_check_near(&s, child, session_ids, COUNT);
    strata_session_free(child);
    strata_session_free(other);
    session_rig_close(&s);
    return injected;
}

static void each_failed_copy_of_a_fork_is_reported(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        uint64_t n = 1;
        while (try_fork(models[m], n)) n++;
        assert_int_equal(n > 1, m == 2); /* the others have no state to copy */
    }
}

/* ---- a failure in another session's step ------------------------------------------------------------------------- */

typedef struct saboteur {
    strata_session *other;
    st_sim_world *world;
    strata_status status;
} saboteur;

/* Behind the first page a launch fails: in a step of the session, of another one, or of both. */
static bool sabotage(void *context, uint64_t done, uint64_t total)
{
    saboteur *s = context;
    (void)total;
    if (s->other && done > PAGE) {
        st_sim_fail_at(s->world, ST_SIM_LAUNCH, 2);
        s->status = strata_session_prompt(s->other, session_ids + 50, OTHER, NULL, NULL, NULL);
        s->other = NULL;
    }
    return true;
}

/* A failed step ends the calls of its sessions. They continue from what was stored before: with recurrent state, from the
 * restore point behind the first page. */
static void sessions_survive_a_failed_step(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        session_rig s;
        strata_session *other;
        open_sessions(&s, models[m], &other);
        saboteur context = {.other = other, .world = s.engine->backends.world};
        static const size_t marks[] = {PAGE};
        strata_prompt_options options = {.marks = marks, .mark_count = 1, .progress = sabotage, .context = &context};
        strata_error error;
        strata_status status = strata_session_prompt(s.session, session_ids + 7, LONG, &options, NULL, &error);
        assert_true(status == STRATA_OK || status == STRATA_DEVICE);
        assert_true(context.status == STRATA_OK || context.status == STRATA_DEVICE);
        assert_true(status == STRATA_DEVICE || context.status == STRATA_DEVICE);
        size_t reused = 0;
        if (status == STRATA_DEVICE) {
            status = strata_session_prompt(s.session, session_ids + 7, LONG, NULL, &reused, &error);
            assert_true(reused >= PAGE);
        }
        if (status != STRATA_OK) fail_msg("%s", error.message);
        assert_int_equal(strata_session_prompt(other, session_ids + 50, OTHER, NULL, NULL, NULL), STRATA_OK);
        session_check_near(&s, s.session, session_ids + 7, LONG);
        session_check_near(&s, other, session_ids + 50, OTHER);
        strata_session_free(other);
        session_rig_close(&s);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failed_call_of_a_step_is_reported),   cmocka_unit_test(gpu_lost_during_a_step_is_reported),
        cmocka_unit_test(each_failed_call_of_a_prompt_is_reported), cmocka_unit_test(each_failed_copy_of_a_fork_is_reported),
        cmocka_unit_test(sessions_survive_a_failed_step),
    };
    return kit_run("step_fault", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
