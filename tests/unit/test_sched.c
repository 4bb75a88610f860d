/* Requests of several threads in the steps of one scheduler. On the reference path a row does not depend on the other
 * rows of its step: what a session computes beside others is, bit by bit, what it computes alone. */
#include "support/session_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend/sim/sim.h"
#include "session.h"

static const strata_token *const ids = session_ids;
enum { PAGE = SESSION_PAGE };

/* A thread with one session. No assertions in the thread: cmocka is not thread-safe. */
typedef struct actor {
    strata_session *session;
    const strata_token *prompt;
    size_t count, tokens; /* of the prompt; to generate, 0: none */
    _Atomic uint64_t done; /* tokens of the prompt so far */
    _Atomic uint32_t admitted; /* how often the prompt got a place */
    atomic_bool over;
    size_t reused;
    strata_answer answer;
    strata_status status;
    strata_error error;
    pthread_t thread;
} actor;

static bool note_progress(void *context, uint64_t done, uint64_t total)
{
    actor *a = context;
    (void)total;
    atomic_store(&a->done, done);
    return true;
}

static void note_admitted(void *context)
{
    atomic_fetch_add(&((actor *)context)->admitted, 1);
}

static void *act(void *context)
{
    actor *a = context;
    strata_prompt_options options = {.progress = note_progress, .on_admitted = note_admitted, .context = a};
    strata_generation g = {.sampling = {.top_p = 1, .repeat_penalty = 1}, .max_tokens = a->tokens, .ignore_end = true};
    a->status = a->count ? strata_session_prompt(a->session, a->prompt, a->count, &options, &a->reused, &a->error) : STRATA_OK;
    if (a->status == STRATA_OK && a->tokens) a->status = strata_session_generate(a->session, &g, &a->answer, &a->error);
    atomic_store(&a->over, true);
    return NULL;
}

static void start(actor *a)
{
    atomic_store(&a->done, 0);
    atomic_store(&a->over, false);
    assert_int_equal(pthread_create(&a->thread, NULL, act, a), 0);
}

static void await(actor *a)
{
    pthread_join(a->thread, NULL);
}

static void expect_ok(actor *a)
{
    await(a);
    if (a->status != STRATA_OK) fail_msg("%s", a->error.message);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static st_sched_counts counts(const session_rig *r)
{
    st_engine_lock(r->engine);
    st_sched_counts c = st_sched_count(r->engine->sched);
    st_engine_unlock(r->engine);
    return c;
}

/* The tokens of a greedy answer, computed by an engine that has nothing else to do. */
static void expect_answer(const char *name, uint32_t context, const actor *a)
{
    session_rig alone;
    session_rig_open_longer(&alone, name, context, (strata_engine_options){.threads = 1, .context = context, .kv_type = "f32"});
    actor same = {.session = alone.session, .prompt = a->prompt, .count = a->count, .tokens = a->tokens};
    start(&same);
    expect_ok(&same);
    assert_int_equal(a->session->count, a->count + a->tokens);
    assert_int_equal(alone.session->count, a->session->count);
    assert_memory_equal(a->session->tokens, alone.session->tokens, a->session->count * sizeof(strata_token));
    session_rig_close(&alone);
}

static const char *const models[] = {"llama", "gemma4-e", "qwen35"};
enum { MODELS = 3 };

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void answers_share_steps(void **state)
{
    (void)state;
    enum { MANY = 4, TOKENS = 90 };
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        session_rig_open_longer(&r, models[m], 512, (strata_engine_options){.threads = 1, .context = 512, .kv_type = "f32"});
        actor a[MANY] = {0};
        for (int i = 0; i < MANY; i++) {
            a[i] = (actor){.session = session_open(&r), .prompt = ids + 40 * i, .count = 10 + (size_t)i, .tokens = TOKENS};
            start(&a[i]);
        }
        for (int i = 0; i < MANY; i++) expect_ok(&a[i]);
        st_sched_counts c = counts(&r);
        assert_true(c.answer_rows > c.steps * 3 / 2);
        assert_int_equal(c.answer_rows, MANY * (TOKENS - 1)); /* the last token of an answer is not run */
        assert_int_equal(c.running + c.waiting, 0);
        expect_answer(models[m], 512, &a[MANY - 1]);
        for (int i = 0; i < MANY; i++) strata_session_free(a[i].session);
        session_rig_close(&r);
    }
}

/* Two prompts with the same cold prefix run it once. */
static void a_prefix_runs_once(void **state)
{
    (void)state;
    enum { SHARED = 500, OWN = 30 };
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        session_rig_open_longer(&r, models[m], 640,
                                (strata_engine_options){.threads = 1, .context = 640, .batch = 32, .kv_type = "f32"});
        strata_token other[SHARED + OWN];
        memcpy(other, ids, sizeof other);
        for (int i = SHARED; i < SHARED + OWN; i++) other[i] = 285;
        actor a = {.session = r.session, .prompt = ids, .count = SHARED + OWN};
        actor b = {.session = session_open(&r), .prompt = other, .count = SHARED + OWN};
        start(&a);
        while (atomic_load(&a.done) == 0 && !atomic_load(&a.over)) nap();
        start(&b);
        expect_ok(&a);
        expect_ok(&b);
        st_sched_counts c = counts(&r);
        assert_in_range(c.rows, SHARED + 2 * OWN, SHARED + 2 * OWN + PAGE);
        assert_true(b.reused >= SHARED - PAGE);
        session_check(&r, a.session, ids, SHARED + OWN);
        session_check(&r, b.session, other, SHARED + OWN);
        strata_session_free(b.session);
        session_rig_close(&r);
    }
}

/* Every short prompt is done before the long one that came first. */
static void short_prompts_pass_a_long_one(void **state)
{
    (void)state;
    enum { LONG = 16000, SHORTS = 20 };
    session_rig r;
    session_rig_open_longer(&r, "qwen3", 16384,
                            (strata_engine_options){.threads = 1, .context = 16384, .batch = 16, .kv_type = "f32", .sessions = 4});
    static strata_token many[LONG];
    for (int i = 0; i < LONG; i++) many[i] = ids[i % SESSION_IDS];
    actor a = {.session = r.session, .prompt = many, .count = LONG}, shorts[SHORTS];
    start(&a);
    while (atomic_load(&a.done) == 0 && !atomic_load(&a.over)) nap();
    for (int i = 0; i < SHORTS; i++) {
        shorts[i] = (actor){.session = session_open(&r), .prompt = ids + 7 * i + 3, .count = 12, .tokens = 1};
        start(&shorts[i]);
    }
    for (int i = 0; i < SHORTS; i++) expect_ok(&shorts[i]);
    assert_false(atomic_load(&a.over));
    strata_session_cancel(a.session);
    await(&a);
    assert_int_equal(a.status, STRATA_INTERRUPTED);
    for (int i = 0; i < SHORTS; i++) strata_session_free(shorts[i].session);
    session_rig_close(&r);
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

static void a_cancelled_prompt_keeps_its_pages(void **state)
{
    (void)state;
    enum { LONG = 900, SEEN = 200 };
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        session_rig_open_longer(&r, models[m], 1024,
                                (strata_engine_options){.threads = 1, .context = 1024, .batch = 16, .kv_type = "f32"});
        assert_false(strata_session_cancel(r.session)); /* no call is under way: nothing happens */
        actor a = {.session = r.session, .prompt = ids, .count = LONG}, other = {.session = session_open(&r), .prompt = ids + 5,
                                                                                .count = 40, .tokens = 60};
        start(&a);
        start(&other);
        while (atomic_load(&a.done) < SEEN && !atomic_load(&a.over)) nap();
        strata_session_cancel(a.session);
        await(&a);
        assert_int_equal(a.status, STRATA_INTERRUPTED);
        expect_ok(&other); /* the cancel touches one conversation */
        size_t reused = 0;
        strata_error error;
        if (strata_session_prompt(a.session, ids, LONG, NULL, &reused, &error) != STRATA_OK) fail_msg("%s", error.message);
        assert_in_range(reused, SEEN - PAGE, LONG - 1);
        session_check(&r, a.session, ids, LONG);
        strata_session_free(other.session);
        session_rig_close(&r);
    }
}

/* A prompt that waits for a place is cancelled, too. */
static void a_waiting_prompt_can_be_cancelled(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open_longer(&r, "llama", 2048, (strata_engine_options){.threads = 1, .context = 2048, .kv_type = "f32", .sessions = 1});
    actor a = {.session = r.session, .prompt = ids, .count = 20, .tokens = 1500};
    actor b = {.session = session_open(&r), .prompt = ids + 9, .count = 30};
    start(&a);
    while (counts(&r).running == 0 && !atomic_load(&a.over)) nap();
    start(&b);
    while (counts(&r).waiting == 0 && !atomic_load(&b.over)) nap();
    assert_true(strata_session_cancel(b.session));
    await(&b);
    assert_int_equal(b.status, STRATA_INTERRUPTED);
    assert_int_equal(atomic_load(&b.admitted), 0);
    assert_int_equal(atomic_load(&a.admitted), 1);
    assert_false(atomic_load(&a.over));
    strata_session_cancel(a.session);
    expect_ok(&a);
    assert_int_equal(a.answer.finish, STRATA_FINISH_CANCEL);
    strata_session_free(b.session);
    session_rig_close(&r);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { MANY_FULL = 3, FULL = 256, FULL_TOKENS = 200 };

/* Conversations that together outgrow the pool; returns how often one had to give its place up. */
static uint64_t outgrow(const char *name)
{
    session_rig r;
    session_rig_open_longer(&r, name, FULL, (strata_engine_options){.threads = 1, .context = FULL, .kv_type = "f32",
                                                                    .pool_tokens = (MANY_FULL - 1) * FULL, .sessions = MANY_FULL});
    actor a[MANY_FULL];
    for (int i = 0; i < MANY_FULL; i++) {
        a[i] = (actor){.session = session_open(&r), .prompt = ids + 40 * i, .count = 40, .tokens = FULL_TOKENS};
        start(&a[i]);
    }
    for (int i = 0; i < MANY_FULL; i++) expect_ok(&a[i]);
    uint64_t parked = counts(&r).parked;
    for (int i = 0; i < MANY_FULL; i++) {
        assert_int_equal(atomic_load(&a[i].admitted), 1); /* not again after it gave its place up */
        expect_answer(name, FULL, &a[i]);
        strata_session_free(a[i].session);
    }
    assert_int_equal(session_kv_use(&r, 0, "held"), 0);
    session_rig_close(&r);
    return parked;
}

/* One conversation more than the pool has room for: all finish, and with the right tokens. */
static void more_conversations_than_memory_all_finish(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        uint64_t parked = 0;
        for (int i = 0; i < 10 && parked == 0; i++) parked = outgrow(models[m]); /* on a busy machine they may run one by one */
        assert_true(parked > 0);
    }
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* A failed launch ends the conversations of its step; later calls work. */
static void a_failed_step_is_survived(void **state)
{
    (void)state;
    enum { MANY = 3 };
    for (uint64_t nth = 1; nth < 40; nth += 6) {
        session_rig r;
        strata_placement placement = STRATA_PLACEMENT_DEFAULT;
        placement.device = "sim";
        placement.vram_bytes = (uint64_t)1 << 30;
        session_rig_open(&r, "qwen35", (strata_engine_options){.threads = 1, .batch = 8, .kv_type = "f32", .placement = &placement});
        actor a[MANY];
        st_sim_fail_at(r.engine->backends.world, ST_SIM_LAUNCH, nth);
        for (int i = 0; i < MANY; i++) {
            a[i] = (actor){.session = session_open(&r), .prompt = ids + 20 * i, .count = 20, .tokens = 20};
            start(&a[i]);
        }
        int failed = 0;
        for (int i = 0; i < MANY; i++) {
            await(&a[i]);
            assert_true(a[i].status == STRATA_OK || a[i].status == STRATA_DEVICE);
            failed += a[i].status != STRATA_OK;
        }
        assert_true(failed > 0);
        for (int i = 0; i < MANY; i++) {
            start(&a[i]);
            expect_ok(&a[i]);
            strata_session_free(a[i].session);
        }
        session_rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_share_steps), cmocka_unit_test(a_prefix_runs_once),
        cmocka_unit_test(short_prompts_pass_a_long_one), cmocka_unit_test(a_cancelled_prompt_keeps_its_pages),
        cmocka_unit_test(a_waiting_prompt_can_be_cancelled),
        cmocka_unit_test(more_conversations_than_memory_all_finish), cmocka_unit_test(a_failed_step_is_survived),
    };
    return kit_run("scheduler", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
