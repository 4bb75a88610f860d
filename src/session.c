/* Sessions behind strata.h: prompts, logits and scores. generate.c has the answers. */
#include "session.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* --- life --------------------------------------------------------------------------------------------------------- */

strata_status strata_session_new(strata_engine *engine, strata_session **out, strata_error *error)
{
    strata_session *session = st_alloc_zero(1, sizeof *session);
    if (!session) return st_error_memory(error, sizeof *session, "the session");
    session->engine = engine;
    pthread_mutex_init(&session->lock, NULL);
    st_engine_lock(engine);
    strata_status status = st_conversation_new(st_run_kv(engine->run), &session->conversation, error);
    st_engine_unlock(engine);
    if (status != STRATA_OK) {
        strata_session_free(session);
        return status;
    }
    session->tokens = st_conversation_tokens(session->conversation);
    *out = session;
    return STRATA_OK;
}

void strata_session_free(strata_session *session)
{
    if (!session) return;
    st_engine_lock(session->engine);
    if (session->conversation) st_sched_forget(session->engine->sched, session->conversation);
    st_conversation_free(session->conversation);
    st_engine_unlock(session->engine);
    pthread_mutex_destroy(&session->lock);
    st_free(session->logits);
    st_free(session);
}

/* Whether the slot has the logits after the last token. The engine's lock is held. */
static bool has_logits(const strata_session *session)
{
    const st_conversation *c = session->conversation;
    return session->computed && st_conversation_slot(c) != ST_NO_SLOT &&
           st_conversation_position(c) == session->count;
}

static float *slot_logits(const strata_session *session)
{
    return st_run_slot_logits(session->engine->run, st_conversation_slot(session->conversation));
}

strata_status strata_session_fork(strata_session *session, strata_session **out, strata_error *error)
{
    strata_session *child = NULL;
    strata_status status = strata_session_new(session->engine, &child, error);
    if (status != STRATA_OK) return status;
    st_engine_lock(session->engine);
    status = st_conversation_fork(session->conversation, child->conversation, error);
    if (status == STRATA_OK && has_logits(session) && st_conversation_slot(child->conversation) != ST_NO_SLOT) {
        memcpy(slot_logits(child), slot_logits(session), session->engine->desc->vocab * sizeof(float));
        child->computed = true;
    }
    st_engine_unlock(session->engine);
    if (status != STRATA_OK) {
        strata_session_free(child);
        return status;
    }
    memcpy(child->tokens, session->tokens, session->count * sizeof *child->tokens);
    child->count = session->count;
    child->random = session->random;
    child->has_random = session->has_random;
    *out = child;
    return STRATA_OK;
}

/* --- stopping ----------------------------------------------------------------------------------------------------- */

void strata_session_interrupt(strata_session *session, bool interrupt)
{
    atomic_store_explicit(&session->interrupted, interrupt, memory_order_relaxed);
    atomic_store_explicit(&session->stop, interrupt, memory_order_relaxed);
}

bool strata_session_cancel(strata_session *session)
{
    pthread_mutex_lock(&session->lock);
    bool in_call = session->in_call;
    if (in_call) atomic_store_explicit(&session->stop, true, memory_order_relaxed);
    pthread_mutex_unlock(&session->lock);
    return in_call;
}

/* A cancelled call is over: the next one stops only if the session is interrupted. */
static void reset_stop(strata_session *session, bool in_call)
{
    pthread_mutex_lock(&session->lock);
    session->in_call = in_call;
    bool interrupted = atomic_load_explicit(&session->interrupted, memory_order_relaxed);
    atomic_store_explicit(&session->stop, interrupted, memory_order_relaxed);
    pthread_mutex_unlock(&session->lock);
}

void st_session_begin(strata_session *session)
{
    reset_stop(session, true);
}

void st_session_end(strata_session *session)
{
    reset_stop(session, false);
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

static strata_status check_tokens(const strata_session *session, const strata_token *tokens, size_t count,
                                  strata_error *error)
{
    uint32_t context = strata_engine_context(session->engine), vocab = session->engine->desc->vocab;
    uint32_t most = session->engine->desc->context_max;
    if (count == 0) return st_error_set(error, STRATA_INPUT, NULL, "expected at least one token, found none");
    if (count > context)
        return st_error_set(error, STRATA_LIMIT,
                            count > most ? "use a shorter prompt" : "use a larger options.context or a shorter prompt",
                            "the prompt has %zu tokens, the context holds %u; the model's maximum is %u", count,
                            context, most);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
            return st_error_set(error, STRATA_INPUT, NULL, "token %zu: expected an id below %u, found %d", i, vocab,
                                tokens[i]);
    return STRATA_OK;
}

st_request st_session_request(strata_session *session)
{
    return (st_request){.conversation = session->conversation, .tokens = session->tokens, .count = session->count,
                        .computed = session->computed, .stop = &session->stop, .interrupt = &session->interrupted};
}

/* Marks past the prompt are dropped, and marks after the first ST_REQUEST_MARKS. */
static void take_marks(const strata_prompt_options *options, st_request *request)
{
    for (size_t i = 0; options && i < options->mark_count && request->mark_count < ST_REQUEST_MARKS; i++)
        if (options->marks[i] <= request->count)
            request->marks[request->mark_count++] = (uint32_t)options->marks[i];
}

/* Waits for a prompt and reports its progress; false: the progress function has cancelled it. */
static bool wait_for_prompt(strata_session *session, st_request *request, const strata_prompt_options *options)
{
    uint32_t told = UINT32_MAX;
    bool wanted = true;
    for (bool goes_on = true; goes_on;) {
        goes_on = st_sched_wait(session->engine->sched, request);
        if (!options || !request->notify || !wanted || request->done == told) continue;
        told = request->done;
        uint32_t done = told > request->reused ? told - request->reused : 0;
        wanted = options->progress(options->context, done, request->count - request->reused);
        if (!wanted) strata_session_cancel(session);
    }
    return wanted;
}

strata_status strata_session_prompt(strata_session *session, const strata_token *tokens, size_t count,
                                    const strata_prompt_options *options, size_t *reused, strata_error *error)
{
    strata_status status = check_tokens(session, tokens, count, error);
    if (status != STRATA_OK) return status;
    st_request request = st_session_request(session);
    request.tokens = tokens;
    request.count = (uint32_t)count;
    request.prompt = true;
    request.notify = options && options->progress;
    request.on_admitted = options ? options->on_admitted : NULL;
    request.context = options ? options->context : NULL;
    take_marks(options, &request);
    st_session_begin(session);
    st_sched_submit(session->engine->sched, &request);
    bool wanted = wait_for_prompt(session, &request, options);
    st_session_end(session);
    if (request.seen) session->count = (uint32_t)count; /* the tokens are set, also if none of them is stored */
    session->computed = request.status == STRATA_OK && request.computed;
    if (request.status != STRATA_OK) return st_error_copy(error, &request.error);
    if (!wanted) return st_error_set(error, STRATA_INTERRUPTED, NULL, "interrupted after all %zu tokens", count);
    if (reused) *reused = request.reused;
    return STRATA_OK;
}

/* --- logits ------------------------------------------------------------------------------------------------------- */

static st_next copy_logits(void *context, const float *logits, const st_candidates *best, strata_token *token)
{
    strata_session *session = context;
    (void)best;
    (void)token;
    memcpy(session->logits, logits, session->engine->desc->vocab * sizeof *logits);
    return ST_NEXT_END;
}

strata_status strata_session_logits(strata_session *session, const float **logits, size_t *count, strata_error *error)
{
    uint32_t vocab = session->engine->desc->vocab;
    if (session->count == 0)
        return st_error_set(error, STRATA_INPUT, NULL, "the session has no tokens, so it has no logits");
    if (!session->logits) session->logits = st_alloc_array(vocab, sizeof *session->logits);
    if (!session->logits) return st_error_memory(error, vocab * sizeof *session->logits, "logits");
    st_request request = st_session_request(session);
    request.next = copy_logits;
    request.context = session;
    st_session_begin(session);
    st_sched_submit(session->engine->sched, &request);
    while (st_sched_wait(session->engine->sched, &request)) continue;
    st_session_end(session);
    session->computed = request.status == STRATA_OK && request.computed;
    if (request.status != STRATA_OK) return st_error_copy(error, &request.error);
    *logits = session->logits;
    *count = vocab;
    return STRATA_OK;
}

/* --- scores ------------------------------------------------------------------------------------------------------- */

typedef struct scoring {
    strata_session *session;
    bool nextn;
    strata_on_row on_row;
    void *context;
    size_t row;
} scoring;

/* Runs a step of at most a batch. */
static strata_status run_step(const scoring *s, uint32_t *rows, strata_error *error)
{
    strata_session *session = s->session;
    strata_engine *engine = session->engine;
    st_engine_lock(engine);
    uint32_t left = session->count - st_conversation_position(session->conversation), most = engine->plan->batch;
    st_run_piece piece = {.conversation = session->conversation, .count = left < most ? left : most, .prompt = true};
    st_run_watch(engine->run, &session->stop);
    strata_status status = st_run_step(engine->run, &piece, 1, error);
    *rows = s->nextn ? st_run_nextn_rows(engine->run) : piece.count;
    st_engine_unlock(engine);
    return status;
}

/* Passes the logits of a step's rows to the caller, a few at a time. */
static strata_status score_rows(scoring *s, uint32_t step_rows, strata_error *error)
{
    strata_engine *engine = s->session->engine;
    uint32_t vocab = engine->desc->vocab, rows[ST_SESSION_OUT_ROWS];
    for (uint32_t first = 0; first < step_rows; first += ST_SESSION_OUT_ROWS) {
        uint32_t count = step_rows - first < ST_SESSION_OUT_ROWS ? step_rows - first : ST_SESSION_OUT_ROWS;
        for (uint32_t i = 0; i < count; i++) rows[i] = first + i;
        const float *logits;
        st_engine_lock(engine); /* no other session runs; sessions may be made, forked and freed */
        strata_status status = s->nextn ? st_run_nextn_logits(engine->run, rows, count, &logits, error)
                                        : st_run_logits(engine->run, rows, count, &logits, error);
        st_engine_unlock(engine);
        if (status != STRATA_OK) return status;
        for (uint32_t i = 0; i < count; i++)
            if (!s->on_row(s->context, s->row++, logits + (size_t)i * vocab, vocab))
                return st_error_set(error, STRATA_INTERRUPTED, NULL, "stopped after %zu rows", s->row);
    }
    return STRATA_OK;
}

static strata_status score_all(scoring *s, const strata_token *tokens, uint32_t count, strata_error *error)
{
    strata_session *session = s->session;
    st_seek seek;
    st_engine_lock(session->engine);
    strata_status status = st_conversation_seek(session->conversation, tokens, 0, false, &seek, error);
    st_engine_unlock(session->engine);
    if (status != STRATA_OK) return status;
    memcpy(session->tokens, tokens, count * sizeof *tokens);
    session->count = count;
    for (uint32_t done = 0, rows = 0; done < count && status == STRATA_OK;) {
        status = run_step(s, &rows, error);
        if (status == STRATA_OK) status = score_rows(s, rows, error);
        done = st_conversation_position(session->conversation);
    }
    st_engine_lock(session->engine);
    st_run_watch(session->engine->run, NULL);
    st_engine_unlock(session->engine);
    return status;
}

strata_status strata_session_score(strata_session *session, const strata_token *tokens, size_t count, bool nextn,
                                   strata_on_row on_row, void *context, strata_error *error)
{
    if (nextn && !session->engine->plan->nextn)
        return st_error_set(error, STRATA_USAGE, NULL, "the engine was made without the NextN block");
    strata_status status = check_tokens(session, tokens, count, error);
    if (status != STRATA_OK) return status;
    scoring s = {.session = session, .nextn = nextn, .on_row = on_row, .context = context};
    st_request request = st_session_request(session);
    request.count = (uint32_t)count;
    request.alone = true; /* the rows of a step are valid until the next one */
    st_session_begin(session);
    st_sched_submit(session->engine->sched, &request);
    bool granted = st_sched_wait(session->engine->sched, &request);
    if (granted) {
        session->computed = false;
        status = score_all(&s, tokens, (uint32_t)count, error);
        st_sched_leave(session->engine->sched, &request);
    }
    st_session_end(session);
    return granted ? status : st_error_copy(error, &request.error);
}
