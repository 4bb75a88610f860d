/* Sessions of one engine on many threads: each prompts, generates, scores, forks and closes at random. What a thread computes is, bit
 * by bit, what it computes alone on an engine of its own. Each thread's prompts have tokens that no other uses. */
#include "support/session_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 8, OPERATIONS = 63, OPEN_MAX = 3, CONTEXT = 192, CANARY = 290 };

/* A thread and its random numbers. No assertions in the thread: cmocka is not thread-safe. */
typedef struct actor {
    strata_engine *engine;
    uint32_t number, operations;
    uint64_t random;
    strata_session *sessions[OPEN_MAX];
    uint64_t digests[OPERATIONS]; /* of what each operation returned */
    strata_error error;           /* of the operation that failed */
    bool failed;
} actor;

static uint32_t draw(actor *a, uint32_t limit)
{
    a->random = a->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(a->random >> 33) % limit;
}

static void digest(uint64_t *to, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) *to = (*to ^ at[i]) * 1099511628211u;
}

static bool digest_text(void *context, const char *text, size_t length)
{
    digest(context, text, length);
    return true;
}

static bool must(actor *a, strata_status status)
{
    a->failed = a->failed || status != STRATA_OK;
    return !a->failed;
}

static void check_logits(actor *a, strata_session *session, uint64_t *out)
{
    const float *logits;
    size_t count;
    if (must(a, strata_session_logits(session, &logits, &count, &a->error))) digest(out, logits, count * sizeof *logits);
}

/* A prefix that threads share, then the thread's own tokens; returns how many there are. */
static size_t make_tokens(actor *a, strata_token tokens[CONTEXT], size_t *shared)
{
    uint32_t count = 1 + draw(a, kit_is_slow() ? 8 : 30), from = draw(a, 2) * 100;
    *shared = draw(a, kit_is_slow() ? 2 : 3) * 70;
    count += (uint32_t)*shared;
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = i < *shared ? session_ids[from + i] : i % 3 ? (strata_token)draw(a, 280) : CANARY + (strata_token)a->number;
    return count;
}

static void prompt(actor *a, strata_session *session, uint64_t *out)
{
    strata_token tokens[CONTEXT];
    size_t marks[1], count = make_tokens(a, tokens, marks);
    strata_prompt_options options = {.marks = marks, .mark_count = 1};
    if (must(a, strata_session_prompt(session, tokens, count, &options, NULL, &a->error))) check_logits(a, session, out);
}

static bool digest_row(void *context, size_t row, const float *logits, size_t vocab)
{
    if (row % 16 == 0) digest(context, logits, vocab * sizeof *logits);
    return true;
}

static void score(actor *a, strata_session *session, uint64_t *out)
{
    strata_token tokens[CONTEXT];
    size_t shared, count = make_tokens(a, tokens, &shared);
    must(a, strata_session_score(session, tokens, count, false, digest_row, out, &a->error));
}

static void generate(actor *a, strata_session *session, uint64_t *out)
{
    strata_answer answer;
    strata_generation g = {.sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = draw(a, 1000)},
                           .max_tokens = 1 + draw(a, 12), .ignore_end = true, .on_text = digest_text, .context = out};
    if (must(a, strata_session_generate(session, &g, &answer, &a->error))) digest(out, &answer.tokens, sizeof answer.tokens);
}

static void operate(actor *a, uint64_t *out)
{
    uint32_t at = draw(a, OPEN_MAX), other = (at + 1 + draw(a, OPEN_MAX - 1)) % OPEN_MAX, kind = draw(a, 9);
    if (!a->sessions[at]) {
        if (must(a, strata_session_new(a->engine, &a->sessions[at], &a->error))) prompt(a, a->sessions[at], out);
    } else if (kind < 3) {
        prompt(a, a->sessions[at], out);
    } else if (kind < 5) {
        generate(a, a->sessions[at], out);
    } else if (kind == 5) {
        check_logits(a, a->sessions[at], out);
    } else if (kind == 6) {
        strata_session_free(a->sessions[other]);
        a->sessions[other] = NULL;
        if (must(a, strata_session_fork(a->sessions[at], &a->sessions[other], &a->error)))
            check_logits(a, a->sessions[other], out);
    } else if (kind == 7) {
        score(a, a->sessions[at], out);
    } else {
        strata_session_free(a->sessions[at]);
        a->sessions[at] = NULL;
    }
}

static void *act(void *context)
{
    actor *a = context;
    a->random = 1000 + a->number;
    for (int i = 0; i < (int)a->operations && !a->failed; i++) {
        a->digests[i] = 14695981039346656037u;
        operate(a, &a->digests[i]);
    }
    for (int i = 0; i < OPEN_MAX; i++) strata_session_free(a->sessions[i]);
    return NULL;
}

static void check_failed(const actor *a)
{
    if (a->failed) fail_msg("thread %u: %s", a->number, a->error.message);
}

static void open_engine(session_rig *r, const char *name, uint32_t sessions, bool on_gpu)
{
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    placement.device = on_gpu ? "sim" : NULL;
    placement.vram_bytes = on_gpu ? (uint64_t)1 << 30 : 0;
    placement.layers = on_gpu ? -1 : -2;
    session_rig_open(r, name, (strata_engine_options){.threads = 1, .batch = 32, .context = CONTEXT, .sessions = sessions,
                                                      .kv_type = "f32", .placement = &placement});
    strata_session_free(r->session);
    r->session = NULL;
}

/* Three sessions run at a time, and the pages are too few for all that are open. */
static void compare(const char *name, uint32_t operations, bool on_gpu)
{
    static actor alone[THREADS], together[THREADS];
    pthread_t threads[THREADS];
    session_rig r;
    memset(alone, 0, sizeof alone);
    memset(together, 0, sizeof together);
    for (uint32_t i = 0; i < THREADS; i++) {
        open_engine(&r, name, OPEN_MAX, on_gpu);
        alone[i].engine = r.engine;
        alone[i].number = together[i].number = i;
        alone[i].operations = together[i].operations = operations;
        (void)act(&alone[i]);
        check_failed(&alone[i]);
        session_rig_close(&r);
    }
    open_engine(&r, name, 3, on_gpu);
    for (uint32_t i = 0; i < THREADS; i++) {
        together[i].engine = r.engine;
        assert_int_equal(pthread_create(&threads[i], NULL, act, &together[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        check_failed(&together[i]);
        for (uint32_t k = 0; k < operations; k++)
            if (alone[i].digests[k] != together[i].digests[k]) fail_msg("%s: thread %u, operation %u differs", name, i, k);
    }
    assert_int_equal(session_kv_use(&r, 0, "held"), 0);
    assert_int_equal(session_kv_use(&r, -1, "slots_taken"), 0);
    assert_int_equal(session_kv_use(&r, -1, "sessions"), 0);
    session_rig_close(&r);
}

static void attention(void **state)
{
    (void)state;
    compare("llama", kit_is_slow() ? 6 : OPERATIONS / 4, false);
}

static void windows(void **state)
{
    (void)state;
    compare("gemma4-e", kit_is_slow() ? 6 : OPERATIONS / 4, false);
}

static void recurrent_state(void **state)
{
    (void)state;
    compare("qwen35", OPERATIONS, false);
}

static void simulated_gpu(void **state)
{
    (void)state;
    compare("qwen35", kit_is_slow() ? 4 : OPERATIONS / 4, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention), cmocka_unit_test(windows),
                                       cmocka_unit_test(recurrent_state), cmocka_unit_test(simulated_gpu)};
    return kit_run("threads", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
