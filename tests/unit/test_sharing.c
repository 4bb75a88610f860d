/* Sessions of one engine that share pages: forks, common prefixes, marks, and more sessions than run at a time. */
#include "support/session_rig.h"

#include "engine.h"

#include <string.h>

#include "base/buf.h"

enum { PAGE = SESSION_PAGE, BATCH = 48, TOKENS = 9 };

static const strata_token *const ids = session_ids;

/* Attention alone, windows, recurrent state, and with the NextN block. All but the first need restore points. */
static const struct {
    const char *name;
    bool nextn;
} models[] = {{"llama", false}, {"gemma4-e", false}, {"qwen35", false}, {"qwen35moe", true}};

enum { MODELS = sizeof models / sizeof *models };

static void open_model(session_rig *r, int model, uint32_t sessions)
{
    session_rig_open(r, models[model].name, (strata_engine_options){.threads = 1, .batch = BATCH, .kv_type = "f32",
                                                                    .sessions = sessions, .nextn = models[model].nextn});
}

static strata_session *fork_of(strata_session *session)
{
    strata_session *child = NULL;
    strata_error error;
    if (strata_session_fork(session, &child, &error) != STRATA_OK) fail_msg("%s", error.message);
    return child;
}

static bool append(void *context, const char *text, size_t length)
{
    return st_buf_append(context, text, length);
}

/* The text of an answer; a seed draws it, so that two answers differ. */
static char *answer_of(strata_session *session, uint64_t seed, size_t tokens)
{
    st_buf text = {0};
    strata_answer answer;
    strata_error error;
    strata_generation g = {.sampling = {.temperature = 1.5f, .top_p = 1, .repeat_penalty = 1, .seed = seed}, .max_tokens = tokens,
                           .ignore_end = true, .on_text = append, .context = &text};
    if (strata_session_generate(session, &g, &answer, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(answer.tokens, tokens);
    return st_buf_take(&text, NULL);
}

static void check_answer(strata_session *session, uint64_t seed, size_t tokens, const char *expected)
{
    char *found = answer_of(session, seed, tokens);
    assert_string_equal(found, expected);
    strata_free(found);
}

/* ---- forks ------------------------------------------------------------------------------------------------------- */

/* A fork answers as its parent would, at a place in a page, at its end and behind it, with a free slot and without. Then
 * both go on with answers of their own, in turns. */
static void a_fork_goes_on_as_its_parent(void **state)
{
    (void)state;
    static const size_t lengths[] = {10, PAGE, 2 * PAGE + 30};
    for (int m = 0; m < MODELS; m++)
        for (int l = kit_is_slow() ? 2 : 0; l < 3; l++)
            for (uint32_t sessions = kit_is_slow() && l > 0 && m % 2 ? 2 : 1; sessions <= 2; sessions++) {
                session_rig r;
                open_model(&r, m, sessions);
                (void)session_prompt(r.session, ids, lengths[l]);
                char *first = answer_of(r.session, 1, TOKENS), *second = answer_of(r.session, 2, TOKENS);
                (void)session_prompt(r.session, ids, lengths[l]);
                strata_session *child = fork_of(r.session);
                session_check(&r, child, ids, lengths[l]);
                session_check(&r, r.session, ids, lengths[l]);
                check_answer(child, 1, TOKENS, first);
                strata_session *grandchild = fork_of(child);
                check_answer(r.session, 1, TOKENS, first);
                check_answer(r.session, 2, TOKENS, second);
                check_answer(child, 2, TOKENS, second);
                check_answer(grandchild, 2, TOKENS, second);
                strata_session_free(child);
                strata_session_free(grandchild);
                strata_free(first);
                strata_free(second);
                session_rig_close(&r);
            }
}

/* Either of them may be freed first. */
static void a_fork_outlives_its_parent(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        open_model(&r, m, 2);
        (void)session_prompt(r.session, ids, PAGE + 30);
        strata_session *child = fork_of(r.session), *unused = session_open(&r), *empty = fork_of(unused);
        strata_session_free(unused);
        strata_session_free(r.session);
        r.session = NULL;
        session_check(&r, child, ids, PAGE + 30);
        strata_session *grandchild = fork_of(child);
        strata_session_free(grandchild);
        assert_int_equal(session_prompt(child, ids, PAGE + 40), 10);
        session_check(&r, child, ids, PAGE + 40);
        (void)session_prompt(empty, ids + 5, TOKENS);
        session_check(&r, empty, ids + 5, TOKENS);
        strata_session_free(empty);
        strata_session_free(child);
        session_rig_close(&r);
    }
}

static uint64_t steps_of(const session_rig *r)
{
    st_engine_lock(r->engine);
    uint64_t steps = st_sched_count(r->engine->sched).steps;
    st_engine_unlock(r->engine);
    return steps;
}

/* A fork that copies its parent's slot has its parent's logits. */
static void a_fork_with_a_slot_has_its_parents_logits(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        open_model(&r, m, 2);
        (void)session_prompt(r.session, ids, PAGE + 30);
        strata_session *child = fork_of(r.session);
        const float *logits = NULL;
        size_t count;
        uint64_t steps = steps_of(&r);
        assert_int_equal(strata_session_logits(child, &logits, &count, NULL), STRATA_OK);
        assert_int_equal(steps_of(&r) - steps, m == 0); /* the first has no slot to copy: one token runs */
        session_check(&r, child, ids, PAGE + 30);
        assert_int_equal(session_prompt(child, ids, PAGE + 31), 1);
        session_check(&r, child, ids, PAGE + 31);
        strata_session_free(child);
        session_rig_close(&r);
    }
}

/* Eight forks hold the pages of their common prefix once, and one of their own each when they go on. */
static void forks_hold_a_prefix_once(void **state)
{
    (void)state;
    enum { FORKS = 8, PAGES = 2, LENGTH = PAGES * PAGE + 10 };
    for (int m = 0; m < MODELS; m += kit_is_slow() ? 3 : 1) {
        session_rig r;
        open_model(&r, m, FORKS + 1);
        strata_session *forks[FORKS];
        strata_token longer[LENGTH + 2];
        memcpy(longer, ids, sizeof longer);
        (void)session_prompt(r.session, ids, LENGTH);
        assert_int_equal(session_kv_use(&r, 0, "held"), PAGES + 1);
        for (int i = 0; i < FORKS; i++) forks[i] = fork_of(r.session);
        assert_int_equal(session_kv_use(&r, 0, "held"), PAGES + 1);
        for (int i = 0; i < FORKS; i++) {
            longer[LENGTH + 1] = 290 + i;
            assert_int_equal(session_prompt(forks[i], longer, LENGTH + 2), 2);
            assert_int_equal(session_kv_use(&r, 0, "held"), PAGES + 2 + i);
        }
        for (int i = 0; i < FORKS; i++) {
            longer[LENGTH + 1] = 290 + i;
            session_check(&r, forks[i], longer, LENGTH + 2);
        }
        for (int i = 0; i < FORKS; i++) strata_session_free(forks[i]);
        strata_session_free(r.session);
        r.session = NULL;
        assert_int_equal(session_kv_use(&r, 0, "held"), 0);
        assert_int_equal(session_kv_use(&r, -1, "slots_taken"), 0);
        assert_int_equal(session_kv_use(&r, -1, "sessions"), 0);
        session_rig_close(&r);
    }
}

/* ---- common prefixes --------------------------------------------------------------------------------------------- */

static size_t reused_of(strata_session *session, const strata_token *tokens, size_t count, const size_t *marks, size_t mark_count)
{
    strata_prompt_options options = {.marks = marks, .mark_count = mark_count};
    size_t reused = SIZE_MAX;
    strata_error error;
    if (strata_session_prompt(session, tokens, count, &options, &reused, &error) != STRATA_OK) fail_msg("%s", error.message);
    return reused;
}

/* Two sessions with the same prefix: the second one reuses its full pages, also after the first is gone. */
static void sessions_share_the_pages_of_a_prefix(void **state)
{
    (void)state;
    session_rig r;
    open_model(&r, 0, 2);
    strata_token other[3 * PAGE];
    memcpy(other, ids, sizeof other);
    other[2 * PAGE + 10] = 300;
    assert_int_equal(reused_of(r.session, ids, 3 * PAGE, NULL, 0), 0);
    strata_session *second = session_open(&r);
    assert_int_equal(reused_of(second, other, 3 * PAGE, NULL, 0), 2 * PAGE);
    assert_int_equal(session_kv_use(&r, 0, "held"), 2 + 1 + 1);
    session_check(&r, second, other, 3 * PAGE);
    session_check(&r, r.session, ids, 3 * PAGE);
    strata_session_free(second);
    strata_session_free(r.session);
    assert_int_equal(session_kv_use(&r, 0, "cached"), 2 + 1 + 1);
    r.session = session_open(&r);
    assert_int_equal(reused_of(r.session, ids, 3 * PAGE, NULL, 0), 3 * PAGE - 1); /* all but the last token, for its logits */
    session_check(&r, r.session, ids, 3 * PAGE);
    session_rig_close(&r);
}

/* A prompt that fails says nothing about reuse: outputs of failed calls stay unchanged. */
static void a_failed_prompt_reports_no_reuse(void **state)
{
    (void)state;
    session_rig r;
    open_model(&r, 0, 1);
    session_counter stop = {.stop_at = 1};
    strata_prompt_options options = {.progress = session_count, .context = &stop};
    size_t reused = 7;
    (void)session_prompt(r.session, ids, PAGE);
    assert_int_equal(strata_session_prompt(r.session, ids, 2 * PAGE, &options, &reused, NULL), STRATA_INTERRUPTED);
    assert_int_equal(reused, 7);
    session_rig_close(&r);
}

/* A prefix with a mark at its end: another conversation runs what is left, and at most a page more. */
static void a_marked_prefix_is_reused(void **state)
{
    (void)state;
    enum { PREFIX = 2 * PAGE + 20, COUNT = PREFIX + 60 };
    static const size_t marks[] = {30, PREFIX, COUNT + 1};
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        open_model(&r, m, 2);
        strata_token other[COUNT];
        for (int i = 0; i < COUNT; i++) other[i] = i < PREFIX ? ids[i] : 281 + i % 20;
        assert_int_equal(reused_of(r.session, ids, COUNT, marks, 3), 0);
        strata_session *second = session_open(&r);
        assert_in_range(reused_of(second, other, COUNT, marks, 3), PREFIX - PAGE, PREFIX);
        session_check(&r, second, other, COUNT);
        session_check(&r, r.session, ids, COUNT);
        strata_session_free(second);
        session_rig_close(&r);
    }
}

/* Without restore points a conversation with window or recurrent layers restarts, and computes the same. */
static void restore_points_can_be_turned_off(void **state)
{
    (void)state;
    for (int m = 1; m < MODELS; m++) {
        session_rig r;
        session_rig_open(&r, models[m].name, (strata_engine_options){.threads = 1, .batch = BATCH, .kv_type = "f32", .sessions = 2,
                                                                     .restore_bytes = STRATA_RESTORE_OFF});
        static const size_t marks[] = {PAGE};
        (void)reused_of(r.session, ids, 2 * PAGE, marks, 1);
        assert_int_equal(session_kv_use(&r, -1, "restore_points"), 0);
        strata_session *second = session_open(&r);
        assert_int_equal(reused_of(second, ids, 2 * PAGE, NULL, 0), 0);
        session_check(&r, second, ids, 2 * PAGE);
        strata_session_free(second);
        session_rig_close(&r);
    }
}

/* Scores see nothing of the prefix cache, and leave nothing in it. */
static bool count_row(void *context, size_t row, const float *logits, size_t vocab)
{
    (void)logits;
    (void)vocab;
    assert_int_equal(row, *(size_t *)context);
    ++*(size_t *)context;
    return true;
}

static void scoring_bypasses_the_prefix_cache(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        session_rig r;
        open_model(&r, m, 2);
        size_t rows = 0;
        assert_int_equal(strata_session_score(r.session, ids, 2 * PAGE, false, count_row, &rows, NULL), STRATA_OK);
        strata_session *second = session_open(&r);
        assert_int_equal(reused_of(second, ids, 2 * PAGE, NULL, 0), 0);
        rows = 0;
        assert_int_equal(strata_session_score(second, ids, 2 * PAGE, false, count_row, &rows, NULL), STRATA_OK);
        assert_int_equal(rows, 2 * PAGE);
        strata_session_free(second);
        session_rig_close(&r);
    }
}

/* ---- more sessions than run at a time ---------------------------------------------------------------------------- */

/* Ten sessions take turns where one runs at a time: each loses its slot, and its pages if others need them. */
static void any_number_of_sessions_may_be_open(void **state)
{
    (void)state;
    enum { SESSIONS = 10, LENGTH = PAGE + 20, ROUNDS = 3 };
    size_t rounds = kit_is_slow() ? 1 : ROUNDS;
    for (int m = 0; m < MODELS; m += kit_is_slow() ? 3 : 1) {
        session_rig r;
        open_model(&r, m, 1);
        strata_session *all[SESSIONS];
        strata_token tokens[LENGTH + ROUNDS];
        memcpy(tokens, ids, sizeof tokens);
        for (int i = 0; i < SESSIONS; i++) all[i] = session_open(&r);
        for (size_t round = 0; round < rounds; round++)
            for (int i = 0; i < SESSIONS; i++) {
                tokens[2] = 290 + i; /* no prefix is common */
                (void)session_prompt(all[i], tokens, LENGTH + round);
            }
        for (int i = 0; i < SESSIONS; i++) {
            tokens[2] = 290 + i;
            session_check(&r, all[i], tokens, LENGTH + rounds - 1);
        }
        assert_int_equal(session_kv_use(&r, -1, "sessions"), SESSIONS + 1);
        for (int i = 0; i < SESSIONS; i++) strata_session_free(all[i]);
        session_rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_goes_on_as_its_parent), cmocka_unit_test(a_fork_outlives_its_parent),
        cmocka_unit_test(a_fork_with_a_slot_has_its_parents_logits), cmocka_unit_test(forks_hold_a_prefix_once),
        cmocka_unit_test(sessions_share_the_pages_of_a_prefix), cmocka_unit_test(a_marked_prefix_is_reused),
        cmocka_unit_test(a_failed_prompt_reports_no_reuse), cmocka_unit_test(restore_points_can_be_turned_off),
        cmocka_unit_test(scoring_bypasses_the_prefix_cache), cmocka_unit_test(any_number_of_sessions_may_be_open),
    };
    return kit_run("sharing", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
