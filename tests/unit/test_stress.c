/* Sessions on many threads that prompt, generate, fork, cancel one another and close at random, on a KV cache that is too
 * small for them. A prompt that succeeds has the logits that it has on an engine of its own; a cancelled call says so;
 * nothing is left at the end. The prompts of a thread have tokens that no other thread uses. */
#include "support/session_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 16, OPERATIONS = 2000, CONTEXT = 256, POOL = 3 * CONTEXT, RUNNING = 6, CANARY = 290 };

typedef struct stress {
    session_rig rig, cold;   /* the engine; another one that computes what is expected */
    pthread_mutex_t checking; /* guards `cold` */
    struct actor *actors;     /* [THREADS] */
    uint32_t operations;      /* of each */
    _Atomic uint32_t cancelled, checked;
} stress;

/* No assertions in a thread: cmocka is not thread-safe. */
typedef struct actor {
    stress *all;
    uint32_t number;
    uint64_t random;
    pthread_mutex_t lock;     /* guards the pointer: others cancel the session */
    strata_session *session;
    bool prompted;            /* the session has tokens: a cancelled prompt may not have set them */
    pthread_t thread;
    char failure[sizeof(strata_error)];
} actor;

static uint32_t draw(actor *a, uint32_t limit)
{
    a->random = a->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(a->random >> 33) % limit;
}

static void expect(actor *a, strata_status status, const strata_error *error, bool may_stop)
{
    bool fine = status == STRATA_OK || (may_stop && status == STRATA_INTERRUPTED);
    if (status == STRATA_INTERRUPTED) atomic_fetch_add(&a->all->cancelled, 1);
    if (!fine && !a->failure[0]) snprintf(a->failure, sizeof a->failure, "thread %u: %s", a->number, error->message);
}

static size_t make_tokens(actor *a, strata_token tokens[CONTEXT])
{
    uint32_t shared = draw(a, 3) * 50, count = shared + 1 + draw(a, 70);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = i < shared ? session_ids[i] : i % 3 ? (strata_token)draw(a, 280) : CANARY + (strata_token)a->number;
    return count;
}

/* Compares with the logits of the same tokens on an engine that nobody else uses. */
static void check(actor *a, const strata_token *tokens, size_t count)
{
    stress *all = a->all;
    strata_error error;
    const float *found, *expected;
    size_t vocab;
    strata_status status = strata_session_logits(a->session, &found, &vocab, &error);
    expect(a, status, &error, true);
    if (status != STRATA_OK) return;
    pthread_mutex_lock(&all->checking);
    status = strata_session_prompt(all->cold.session, tokens, count, NULL, NULL, &error);
    if (status == STRATA_OK) status = strata_session_logits(all->cold.session, &expected, &vocab, &error);
    expect(a, status, &error, false);
    bool same = status != STRATA_OK || memcmp(found, expected, vocab * sizeof *found) == 0;
    pthread_mutex_unlock(&all->checking);
    if (!same) snprintf(a->failure, sizeof a->failure, "thread %u: other logits than alone", a->number);
    atomic_fetch_add(&all->checked, 1);
}

static void prompt(actor *a)
{
    strata_token tokens[CONTEXT];
    size_t count = make_tokens(a, tokens);
    strata_error error;
    strata_status status = strata_session_prompt(a->session, tokens, count, NULL, NULL, &error);
    expect(a, status, &error, true);
    a->prompted = a->prompted || status == STRATA_OK;
    if (status == STRATA_OK && draw(a, 6) == 0) check(a, tokens, count);
}

static bool refuse(void *context, const char *text, size_t length)
{
    (void)text;
    return (*(size_t *)context += length) < 20;
}

static void generate(actor *a)
{
    strata_answer answer;
    strata_error error;
    size_t heard = 0;
    strata_generation g = {.sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = draw(a, 1000)},
                           .max_tokens = 1 + draw(a, 50), .ignore_end = true};
    if (draw(a, 2)) {
        g.on_text = refuse;
        g.context = &heard;
    }
    strata_status status = strata_session_generate(a->session, &g, &answer, &error);
    if (status == STRATA_OK && answer.finish == STRATA_FINISH_CANCEL) atomic_fetch_add(&a->all->cancelled, 1);
    expect(a, status, &error, false);
}

static void set_session(actor *a, strata_session *session)
{
    pthread_mutex_lock(&a->lock);
    strata_session *old = a->session;
    a->session = session;
    pthread_mutex_unlock(&a->lock);
    strata_session_free(old);
}

static void open_session(actor *a)
{
    strata_session *session = NULL;
    strata_error error;
    strata_status status = strata_session_new(a->all->rig.engine, &session, &error);
    expect(a, status, &error, false);
    set_session(a, session);
    a->prompted = false;
    if (session) prompt(a);
}

static void fork_session(actor *a)
{
    strata_session *child = NULL;
    strata_error error;
    strata_status status = strata_session_fork(a->session, &child, &error);
    expect(a, status, &error, false);
    if (status == STRATA_OK) set_session(a, child);
}

static void cancel_another(actor *a)
{
    actor *other = &a->all->actors[draw(a, THREADS)];
    pthread_mutex_lock(&other->lock);
    if (other->session) strata_session_cancel(other->session);
    pthread_mutex_unlock(&other->lock);
}

static void *act(void *context)
{
    actor *a = context;
    for (uint32_t i = 0; i < a->all->operations && !a->failure[0]; i++) {
        uint32_t kind = draw(a, 10);
        if (!a->session) open_session(a);
        else if (kind < 3 || !a->prompted) prompt(a);
        else if (kind < 6) generate(a);
        else if (kind < 8) cancel_another(a);
        else if (kind < 9) fork_session(a);
        else set_session(a, NULL);
    }
    set_session(a, NULL);
    return NULL;
}

static void run_all(const char *name, uint64_t seed, uint32_t operations, bool on_gpu)
{
    stress all = {.checking = PTHREAD_MUTEX_INITIALIZER, .operations = operations / THREADS / (kit_is_slow() ? 5 : 1)};
    actor actors[THREADS] = {0};
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    placement.device = on_gpu ? "sim" : "cpu";
    if (on_gpu) placement.vram_bytes = (uint64_t)1 << 30;
    strata_engine_options options = {.threads = 1, .batch = 32, .context = CONTEXT, .sessions = RUNNING, .kv_type = "f32",
                                     .pool_tokens = POOL, .placement = &placement};
    session_rig_open(&all.rig, name, options);
    options.pool_tokens = 0;
    session_rig_open(&all.cold, name, options);
    all.actors = actors;
    for (uint32_t i = 0; i < THREADS; i++) /* all of them first: an actor cancels any other */
        actors[i] = (actor){.all = &all, .number = i, .random = seed * 1000 + i, .lock = PTHREAD_MUTEX_INITIALIZER};
    for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&actors[i].thread, NULL, act, &actors[i]), 0);
    for (uint32_t i = 0; i < THREADS; i++) pthread_join(actors[i].thread, NULL);
    printf("# %s, seed %llu: %u calls cancelled, %u compared\n", name, (unsigned long long)seed, atomic_load(&all.cancelled),
           atomic_load(&all.checked));
    for (uint32_t i = 0; i < THREADS; i++)
        if (actors[i].failure[0]) fail_msg("seed %llu: %s", (unsigned long long)seed, actors[i].failure);
    assert_true(atomic_load(&all.checked) > 0);
    assert_int_equal(session_kv_use(&all.rig, 0, "held"), 0);
    assert_int_equal(session_kv_use(&all.rig, -1, "slots_taken"), 0);
    assert_int_equal(session_kv_use(&all.rig, -1, "sessions"), 1); /* the rig's own */
    session_rig_close(&all.cold);
    session_rig_close(&all.rig);
}

static void attention(void **state)
{
    (void)state;
    run_all("llama", 1, OPERATIONS / 5, false);
}

static void windows(void **state)
{
    (void)state;
    run_all("gemma4-e", 2, OPERATIONS / 5, false);
}

static void recurrent_state(void **state)
{
    (void)state;
    run_all("qwen35", 3, OPERATIONS, false);
}

static void simulated_gpu(void **state)
{
    (void)state;
    run_all("qwen35", 4, OPERATIONS / 5, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention), cmocka_unit_test(windows),
                                       cmocka_unit_test(recurrent_state), cmocka_unit_test(simulated_gpu)};
    return kit_run("stress", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
