/* Interrupts: the pool skips parts, a session stops within a step and keeps finished steps. A fault makes the n-th
 * part see the flag set, so that a test always stops at the same part. */
#include "support/session_rig.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/pool.h"
#include "session.h"

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

enum { PARTS = 200, STOP_PART = 60 };

typedef struct counted_job {
    atomic_bool flag;
    _Atomic size_t ran;
} counted_job;

static void count_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    counted_job *job = context;
    atomic_fetch_add(&job->ran, 1);
    if (part == STOP_PART) atomic_store(&job->flag, true);
}

static size_t parts_run(st_pool *pool, counted_job *job)
{
    atomic_store(&job->ran, 0);
    st_pool_run(pool, count_part, job, PARTS);
    return atomic_load(&job->ran);
}

static void the_pool_reads_the_flag_between_parts(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 4};
    for (int t = 0; t < 3; t++) {
        st_pool *pool = NULL;
        counted_job job = {0};
        assert_int_equal(st_pool_new(threads[t], &pool, NULL), STRATA_OK);
        assert_int_equal(parts_run(pool, &job), PARTS); /* the pool does not watch the flag yet */
        st_pool_watch(pool, &job.flag);
        assert_int_equal(parts_run(pool, &job), 0);
        assert_true(st_pool_skipped(pool));
        atomic_store(&job.flag, false);
        assert_int_equal(parts_run(pool, &job), 0); /* later parts need the skipped ones */
        st_pool_watch(pool, &job.flag);
        size_t ran = parts_run(pool, &job);
        assert_int_equal(st_pool_skipped(pool), ran < PARTS);
        if (threads[t] == 1) assert_int_equal(ran, STOP_PART + 1); /* other threads may be ahead of STOP_PART */
        st_pool_watch(pool, NULL);
        assert_false(st_pool_skipped(pool));
        assert_int_equal(parts_run(pool, &job), PARTS);
        st_pool_free(pool);
    }
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

enum { BATCH = 16, PROMPT = 60 };

static const strata_token *const ids = session_ids;

static void open_rig_placed(session_rig *r, const char *name, uint32_t threads, const strata_placement *placement)
{
    strata_engine_options options = {.threads = threads, .batch = BATCH, .sessions = 2, .kv_type = "f32", .placement = placement};
    session_rig_open(r, name, options);
}

static void open_rig(session_rig *r, const char *name, uint32_t threads)
{
    open_rig_placed(r, name, threads, NULL);
}

typedef struct progress {
    uint64_t done, total, interrupt_at;
    strata_session *session;
} progress;

static bool note_progress(void *context, uint64_t done, uint64_t total)
{
    progress *p = context;
    p->done = done;
    p->total = total;
    if (p->interrupt_at && done >= p->interrupt_at) strata_session_interrupt(p->session, true);
    return true;
}

static strata_status prompt(session_rig *r, size_t count, progress *p, strata_error *error)
{
    strata_prompt_options options = {.progress = note_progress, .context = p};
    return strata_session_prompt(r->session, ids, count, &options, NULL, error);
}

/* The number of parts that a prompt takes. */
static uint64_t count_parts(session_rig *r, size_t count)
{
    st_fault_arm(ST_FAULT_PART, UINT64_MAX, false);
    assert_int_equal(strata_session_prompt(r->session, ids, count, NULL, NULL, NULL), STRATA_OK);
    uint64_t parts = st_fault_calls(ST_FAULT_PART);
    st_fault_arm(ST_FAULT_PART, 0, false);
    return parts;
}

static const struct {
    const char *name;
    bool recurrent; /* after an interrupted step it goes on from a restore point, or from the start */
} models[] = {{"llama", false}, {"gemma4-e", false}, {"qwen3moe", false}, {"qwen35", true}};

enum { MODELS = sizeof models / sizeof *models, PLACES = 4 };

static void a_prompt_stops_within_a_step(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (uint32_t threads = 1; threads <= (m ? 1 : 2); threads++) {
            session_rig r;
            strata_error error = {0};
            open_rig(&r, models[m].name, threads);
            uint64_t parts = count_parts(&r, PROMPT);
            assert_true(parts > PLACES);
            for (uint64_t place = 0; place < PLACES; place++) {
                progress p = {0}, again = {0};
                assert_int_equal(strata_session_prompt(r.session, ids + 100, 1, NULL, NULL, NULL), STRATA_OK);
                st_fault_arm(ST_FAULT_PART, 1 + place * (parts - 1) / (PLACES - 1), false);
                strata_status status = prompt(&r, PROMPT, &p, &error);
                assert_int_equal(status, STRATA_INTERRUPTED);
                st_fault_arm(ST_FAULT_PART, 0, false);
                status = prompt(&r, PROMPT, &again, &error);
                assert_int_equal(status, STRATA_OK);
                /* Finished steps stay; the last one may have ended before its logits. */
                if (!models[m].recurrent) assert_true(again.total == PROMPT - p.done || again.total == 1);
                session_check(&r, r.session, ids, PROMPT);
            }
            session_rig_close(&r);
        }
}

/* A longer prompt after a finished one: the interrupted step goes back to where it began, or to the restore point at the end
 * of the first page. */
static void an_interrupted_step_keeps_earlier_steps(void **state)
{
    (void)state;
    enum { PAGE = SESSION_PAGE, SHORTER = PAGE + 16, LONGER = SHORTER + 30 };
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        open_rig(&r, models[m].name, 1);
        for (uint64_t nth = 1; nth < 100; nth += 30) {
            progress p = {0};
            assert_int_equal(strata_session_prompt(r.session, ids, SHORTER, NULL, NULL, NULL), STRATA_OK);
            st_fault_arm(ST_FAULT_PART, nth, false);
            assert_int_equal(strata_session_prompt(r.session, ids, LONGER, NULL, NULL, NULL), STRATA_INTERRUPTED);
            st_fault_arm(ST_FAULT_PART, 0, false);
            assert_int_equal(prompt(&r, LONGER, &p, NULL), STRATA_OK);
            assert_int_equal(p.total, LONGER - (models[m].recurrent ? PAGE : SHORTER));
            session_check(&r, r.session, ids, LONGER);
        }
        session_rig_close(&r);
    }
}

/* Experts on a simulated GPU and on the CPU: the parts are the CPU's, and the GPU's queue is drained. */
static void a_prompt_stops_beside_a_gpu(void **state)
{
    (void)state;
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    placement.device = "sim";
    placement.vram_bytes = 1u << 30;
    placement.moe = "cache";
    placement.expert_slots = 2;
    placement.deterministic = true;
    session_rig r;
    open_rig_placed(&r, "qwen3moe", 2, &placement);
    uint64_t parts = count_parts(&r, PROMPT);
    assert_true(parts > PLACES);
    for (uint64_t place = 0; place < PLACES; place++) {
        assert_int_equal(strata_session_prompt(r.session, ids + 100, 1, NULL, NULL, NULL), STRATA_OK);
        st_fault_arm(ST_FAULT_PART, 1 + place * (parts - 1) / (2 * PLACES), false);
        assert_int_equal(strata_session_prompt(r.session, ids, PROMPT, NULL, NULL, NULL), STRATA_INTERRUPTED);
        st_fault_arm(ST_FAULT_PART, 0, false);
        assert_int_equal(strata_session_prompt(r.session, ids, PROMPT, NULL, NULL, NULL), STRATA_OK);
    }
    session_rig_close(&r);
}

static void the_flag_stays_set_until_cleared(void **state)
{
    (void)state;
    session_rig r;
    open_rig(&r, "llama", 2);
    progress p = {.session = r.session, .interrupt_at = 2 * BATCH};
    strata_error error = {0};
    assert_int_equal(prompt(&r, PROMPT, &p, &error), STRATA_INTERRUPTED);
    uint64_t done = p.done; /* another step may have begun before the flag was set */
    assert_in_range(done, 2 * BATCH, PROMPT - 1);
    assert_int_equal(strata_session_prompt(r.session, ids, PROMPT, NULL, NULL, &error), STRATA_INTERRUPTED);
    strata_generation g = {.sampling = {.top_p = 1, .repeat_penalty = 1}, .max_tokens = 5};
    strata_answer answer;
    assert_int_equal(strata_session_generate(r.session, &g, &answer, &error), STRATA_OK);
    assert_int_equal(answer.finish, STRATA_FINISH_CANCEL);
    assert_int_equal(answer.tokens, 0);
    strata_session_interrupt(r.session, false);
    p = (progress){0};
    assert_int_equal(prompt(&r, PROMPT, &p, &error), STRATA_OK);
    assert_int_equal(p.total, PROMPT - done);
    session_check(&r, r.session, ids, PROMPT);
    session_rig_close(&r);
}

typedef struct listener {
    st_buf text;
    strata_session *session;
    size_t left; /* calls until the interrupt */
} listener;

static bool hear(void *context, const char *text, size_t length)
{
    listener *l = context;
    st_buf_append(&l->text, text, length);
    if (l->left && --l->left == 0) strata_session_interrupt(l->session, true);
    return true;
}

static strata_answer generate(session_rig *r, listener *l, size_t max_tokens)
{
    strata_generation g = {.sampling = {.top_p = 1, .repeat_penalty = 1}, .max_tokens = max_tokens, .ignore_end = true,
                           .on_text = hear, .context = l};
    strata_answer answer;
    strata_error error;
    if (strata_session_generate(r->session, &g, &answer, &error) != STRATA_OK) fail_msg("%s", error.message);
    return answer;
}

/* An answer that is interrupted, and then continued, is the answer. */
static void an_interrupted_answer_can_be_continued(void **state)
{
    (void)state;
    enum { TOKENS = 400 }; /* more than the texts that wait for on_text at a time */
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        open_rig(&r, models[m].name, 1);
        listener whole = {0}, parts = {.session = r.session, .left = 5};
        assert_int_equal(strata_session_prompt(r.session, ids, PROMPT, NULL, NULL, NULL), STRATA_OK);
        assert_int_equal(generate(&r, &whole, TOKENS).finish, STRATA_FINISH_LENGTH);
        strata_token tokens_of_whole[PROMPT + TOKENS];
        assert_int_equal(r.session->count, PROMPT + TOKENS);
        memcpy(tokens_of_whole, r.session->tokens, sizeof tokens_of_whole);
        assert_int_equal(strata_session_prompt(r.session, ids, PROMPT, NULL, NULL, NULL), STRATA_OK);
        strata_answer answer = generate(&r, &parts, TOKENS);
        assert_int_equal(answer.finish, STRATA_FINISH_CANCEL);
        size_t tokens = answer.tokens;
        assert_in_range(tokens, 5, TOKENS - 1);
        strata_session_interrupt(r.session, false);
        for (uint64_t nth = 3; tokens < TOKENS; nth += 211) { /* and within the parts of a token */
            st_fault_arm(ST_FAULT_PART, nth, false);
            answer = generate(&r, &parts, TOKENS - tokens);
            tokens += answer.tokens;
            assert_true(answer.finish == STRATA_FINISH_CANCEL || tokens == TOKENS);
        }
        st_fault_arm(ST_FAULT_PART, 0, false);
        assert_int_equal(r.session->count, PROMPT + TOKENS);
        assert_memory_equal(r.session->tokens, tokens_of_whole, sizeof tokens_of_whole);
        st_buf_free(&whole.text);
        st_buf_free(&parts.text);
        session_rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pool_reads_the_flag_between_parts), cmocka_unit_test(a_prompt_stops_within_a_step),
        cmocka_unit_test(an_interrupted_step_keeps_earlier_steps), cmocka_unit_test(a_prompt_stops_beside_a_gpu),
        cmocka_unit_test(the_flag_stays_set_until_cleared), cmocka_unit_test(an_interrupted_answer_can_be_continued),
    };
    return cmocka_run_group_tests_name("interrupts", tests, NULL, NULL);
}
