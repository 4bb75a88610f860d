#include "together.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SETTLED_TOKENS = 4, PROMPT_MIXED = 16 };

typedef struct together_session {
    together *all;
    strata_session *session;
    strata_token *ids;       /* [context + 1] */
    uint32_t stored, drawn;  /* tokens of the prompt; ids that are drawn: they stay the same */
    uint32_t tokens;         /* to decode */
    pthread_mutex_t *gate;   /* held until all begin */
    double *times;           /* [tokens]: when each was chosen; NULL: not asked for */
    _Atomic uint32_t chosen;
    const atomic_bool *over; /* NULL: decodes all tokens */
    strata_status status;
    strata_error error;
} together_session;

strata_status together_open(together *t, strata_engine *engine, uint32_t count, uint32_t vocab, strata_error *error)
{
    *t = (together){.engine = engine, .vocab = vocab, .context = strata_engine_context(engine)};
    void *memory = NULL;
    strata_status status = cli_allocate(count, sizeof *t->sessions, "the sessions", &memory, error);
    if (status != STRATA_OK) return status;
    t->sessions = memory;
    memset(t->sessions, 0, count * sizeof *t->sessions);
    for (; t->count < count && status == STRATA_OK; t->count++) {
        together_session *s = &t->sessions[t->count];
        s->all = t;
        status = strata_session_new(engine, &s->session, error);
        if (status == STRATA_OK) status = cli_allocate(t->context + 1, sizeof *s->ids, "the tokens", &memory, error);
        if (status == STRATA_OK) s->ids = memory;
    }
    if (status != STRATA_OK) together_close(t);
    return status;
}

void together_close(together *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        strata_session_free(t->sessions[i].session);
        free(t->sessions[i].ids);
    }
    free(t->sessions);
    *t = (together){0};
}

static void draw(together *t, together_session *s, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        t->random = t->random * 6364136223846793005u + 1442695040888963407u;
        s->ids[i] = (strata_token)((t->random >> 33) % t->vocab);
    }
}

strata_status together_prompt(together *t, uint32_t active, uint32_t depth, uint32_t more, strata_error *error)
{
    strata_status status = STRATA_OK;
    uint32_t count = depth + more > 0 ? depth + more : 1;
    for (uint32_t i = 0; i < active && status == STRATA_OK; i++) {
        together_session *s = &t->sessions[i];
        draw(t, s, s->drawn < depth ? s->drawn : depth, t->context + 1);
        s->drawn = depth;
        s->stored = count;
        status = strata_session_prompt(s->session, s->ids, count, NULL, NULL, error);
    }
    return status;
}

static bool note_token(void *context, const strata_sampled *sampled)
{
    together_session *s = context;
    (void)sampled;
    if (s->times) {
        uint32_t chosen = atomic_load(&s->chosen);
        s->times[chosen] = cli_now_seconds();
        atomic_store(&s->chosen, chosen + 1);
    }
    return !s->over || !atomic_load(s->over);
}

/* The last token is chosen, but not run: one more than wanted is given. */
static void *decode(void *context)
{
    together_session *s = context;
    strata_answer answer;
    strata_generation g = {.sampling = {.top_p = 1, .repeat_penalty = 1}, .max_tokens = s->tokens + 1,
                           .given = s->ids + s->stored, .given_count = s->tokens + 1, .on_token = note_token,
                           .context = s, .without_logits = true};
    pthread_mutex_lock(s->gate);
    pthread_mutex_unlock(s->gate);
    s->status = strata_session_generate(s->session, &g, &answer, &s->error);
    return NULL;
}

/* Threads that decode, one for each session. */
typedef struct crew {
    pthread_t *threads;
    uint32_t count, first; /* sessions from `first` on */
    pthread_mutex_t gate;
} crew;

/* The threads begin. */
static void crew_begin(crew *c)
{
    pthread_mutex_unlock(&c->gate);
}

static strata_status crew_end(crew *c, const together *t, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < c->count; i++) {
        pthread_join(c->threads[i], NULL);
        const together_session *s = &t->sessions[c->first + i];
        if (status == STRATA_OK && s->status != STRATA_OK) {
            status = s->status;
            *error = s->error;
        }
    }
    pthread_mutex_destroy(&c->gate);
    free(c->threads);
    return status;
}

/* Makes the threads, which wait for crew_begin. */
static strata_status crew_call(crew *c, together *t, uint32_t first, uint32_t count, strata_error *error)
{
    void *memory = NULL;
    strata_status status = cli_allocate(count, sizeof *c->threads, "the threads", &memory, error);
    if (status != STRATA_OK) return status;
    *c = (crew){.threads = memory, .first = first};
    pthread_mutex_init(&c->gate, NULL);
    pthread_mutex_lock(&c->gate);
    for (; c->count < count; c->count++) {
        together_session *s = &t->sessions[first + c->count];
        s->gate = &c->gate;
        if (pthread_create(&c->threads[c->count], NULL, decode, s) == 0) continue;
        crew_begin(c);
        (void)crew_end(c, t, error);
        return cli_fail(error, STRATA_RUNTIME, NULL, "a thread cannot be created");
    }
    return STRATA_OK;
}

strata_status together_decode(together *t, uint32_t active, uint32_t tokens, double *seconds, strata_error *error)
{
    crew c;
    for (uint32_t i = 0; i < active; i++) t->sessions[i].tokens = tokens;
    strata_status status = crew_call(&c, t, 0, active, error);
    if (status != STRATA_OK) return status;
    double start = strata_engine_clock(t->engine);
    crew_begin(&c);
    status = crew_end(&c, t, error);
    *seconds = strata_engine_clock(t->engine) - start;
    return status;
}

/* --- decoding beside a prompt ------------------------------------------------------------------------------------- */

/* The gaps between tokens that end between two moments. */
static strata_status take_gaps(const together *t, double from, double to, together_mixed *out, strata_error *error)
{
    size_t most = 0;
    for (uint32_t i = 1; i < t->count; i++) most += atomic_load(&t->sessions[i].chosen);
    void *gaps = NULL;
    strata_status status = cli_allocate(most ? most : 1, sizeof *out->gaps, "the gaps", &gaps, error);
    if (status != STRATA_OK) return status;
    out->gaps = gaps;
    for (uint32_t i = 1; i < t->count; i++) {
        const together_session *s = &t->sessions[i];
        for (uint32_t k = 1; k < atomic_load(&s->chosen); k++)
            if (s->times[k] > from && s->times[k - 1] < to) out->gaps[out->gap_count++] = s->times[k] - s->times[k - 1];
        for (uint32_t k = 0; k < atomic_load(&s->chosen); k++) out->tokens += s->times[k] > from && s->times[k] <= to;
    }
    return STRATA_OK;
}

static strata_status time_prompt(together *t, uint32_t prompt, double *from, double *to, strata_error *error)
{
    const float *logits;
    size_t vocab;
    together_session *s = &t->sessions[0];
    draw(t, s, 0, prompt);
    *from = cli_now_seconds();
    strata_status status = strata_session_prompt(s->session, s->ids, prompt, NULL, NULL, error);
    if (status == STRATA_OK) status = strata_session_logits(s->session, &logits, &vocab, error);
    *to = cli_now_seconds();
    return status;
}

/* Waits until every session that decodes has a few tokens. */
static void let_settle(const together *t)
{
    struct timespec wait = {.tv_nsec = 2000000};
    for (uint32_t i = 1; i < t->count; i++)
        while (atomic_load(&t->sessions[i].chosen) < SETTLED_TOKENS && t->sessions[i].status == STRATA_OK)
            nanosleep(&wait, NULL);
}

static strata_status mix(together *t, uint32_t prompt, together_mixed *out, strata_error *error)
{
    atomic_bool over = false;
    double from = 0.0, to = 0.0;
    crew c;
    strata_status status = STRATA_OK;
    for (uint32_t i = 1; i < t->count && status == STRATA_OK; i++) {
        together_session *s = &t->sessions[i];
        void *times = NULL;
        s->tokens = t->context - s->stored - 1;
        s->over = &over;
        atomic_store(&s->chosen, 0);
        status = cli_allocate(s->tokens + 1, sizeof *s->times, "the times", &times, error);
        s->times = times;
    }
    if (status == STRATA_OK) status = crew_call(&c, t, 1, t->count - 1, error);
    if (status != STRATA_OK) return status;
    crew_begin(&c);
    let_settle(t);
    status = time_prompt(t, prompt, &from, &to, error);
    out->prompt_seconds = to - from;
    atomic_store(&over, true);
    strata_status decoded = crew_end(&c, t, error);
    return status != STRATA_OK ? status : decoded != STRATA_OK ? decoded : take_gaps(t, from, to, out, error);
}

strata_status together_mix(together *t, uint32_t prompt, together_mixed *out, strata_error *error)
{
    double from, to;
    *out = (together_mixed){0};
    strata_status status = time_prompt(t, prompt, &from, &to, error);
    out->alone_seconds = to - from;
    if (status == STRATA_OK) status = together_prompt(t, t->count, 0, PROMPT_MIXED, error);
    if (status == STRATA_OK) status = mix(t, prompt, out, error);
    for (uint32_t i = 0; i < t->count; i++) {
        free(t->sessions[i].times);
        t->sessions[i].times = NULL;
        t->sessions[i].over = NULL;
    }
    return status;
}
