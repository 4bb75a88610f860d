/* A session: a sequence of tokens, its KV cache on the devices, and the loop that generates more. */

#include "base/alloc.h"
#include "base/error.h"
#include "engine.h"
#include "sampler/sampler.h"
#include "sampler/stop.h"

enum { TEXT_RESERVE = 4096 };

struct strata_session {
    strata_engine *engine;
    uint32_t sequence;    /* index among the plan's; ST_SEQUENCES_MAX: none */
    st_run *run;
    strata_token *tokens; /* [context]: the sequence */
    uint32_t count;       /* of the sequence */
    uint32_t done;        /* tokens that have run: the others run before the next logits */
    uint32_t last_row;    /* row of the sequence's last token in the last batch */
    atomic_bool interrupt; /* prompts and answers stop while it is true */
    st_random random;     /* the stream that generations draw from */
    bool has_random;
};

/* --- life --------------------------------------------------------------------------------------------------------- */

/* The engine allocates the memory of all sessions when it loads; a session claims one of the plan's sequences. */
static strata_status take_sequence(strata_session *session, strata_error *error)
{
    strata_engine *engine = session->engine;
    uint32_t i = 0;
    st_engine_lock(engine);
    while (i < engine->plan->sequences && engine->taken[i]) i++;
    if (i < engine->plan->sequences) {
        engine->taken[i] = true;
        session->sequence = i;
    }
    st_engine_unlock(engine);
    if (session->sequence != ST_SEQUENCES_MAX) return STRATA_OK;
    return st_error_set(error, STRATA_LIMIT, "free one, or load the engine with more options.sessions",
                        "all %u sessions are in use", engine->plan->sequences);
}

static strata_status open_session(strata_session *session, strata_error *error)
{
    strata_status status = take_sequence(session, error);
    if (status != STRATA_OK) return status;
    session->tokens = st_alloc_array(strata_engine_context(session->engine), sizeof *session->tokens);
    if (!session->tokens) return st_error_memory(error, sizeof *session->tokens, "the session");
    st_run_source source = st_load_sequence(session->engine->load, session->sequence);
    source.interrupt = &session->interrupt;
    st_engine_lock(session->engine);
    status = st_run_new(&source, &session->run, error);
    st_engine_unlock(session->engine);
    return status;
}

strata_status strata_session_new(strata_engine *engine, strata_session **out, strata_error *error)
{
    strata_session *session = st_alloc_zero(1, sizeof *session);
    if (!session) return st_error_memory(error, sizeof *session, "the session");
    session->engine = engine;
    session->sequence = ST_SEQUENCES_MAX;
    strata_status status = open_session(session, error);
    if (status != STRATA_OK) {
        strata_session_free(session);
        return status;
    }
    *out = session;
    return STRATA_OK;
}

void strata_session_free(strata_session *session)
{
    if (!session) return;
    strata_engine *engine = session->engine;
    st_engine_lock(engine);
    st_run_free(session->run);
    if (session->sequence != ST_SEQUENCES_MAX) engine->taken[session->sequence] = false;
    st_engine_unlock(engine);
    st_free(session->tokens);
    st_free(session);
}

void strata_session_interrupt(strata_session *session, bool interrupt)
{
    atomic_store_explicit(&session->interrupt, interrupt, memory_order_relaxed);
}

/* --- running tokens ----------------------------------------------------------------------------------------------- */

static strata_status check_tokens(const strata_session *session, const strata_token *tokens, size_t count,
                                  strata_error *error)
{
    uint32_t context = strata_engine_context(session->engine), vocab = session->engine->desc->vocab;
    if (count == 0) return st_error_set(error, STRATA_INPUT, NULL, "expected at least one token, found none");
    if (count > context)
        return st_error_set(error, STRATA_LIMIT, "use a larger options.context or a shorter prompt",
                            "the prompt has %zu tokens, the context holds %u", count, context);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
            return st_error_set(error, STRATA_INPUT, NULL, "token %zu: expected an id below %u, found %d", i, vocab,
                                tokens[i]);
    return STRATA_OK;
}

/* Runs at most one batch of the tokens before `end` that have not run. The lock is held for a batch. */
static strata_status run_batch(strata_session *session, uint32_t end, strata_error *error)
{
    strata_engine *engine = session->engine;
    uint32_t count = end - session->done;
    if (count > engine->plan->batch) count = engine->plan->batch;
    st_engine_lock(engine);
    strata_status status = st_run_tokens(session->run, session->tokens + session->done, count, error);
    /* An interrupted batch is discarded. After another failure the state may be half updated: the sequence restarts. */
    uint32_t reached, kept = status == STRATA_INTERRUPTED ? session->done : 0;
    if (status != STRATA_OK && st_run_rewind(session->run, kept, &reached, NULL) == STRATA_OK) session->done = reached;
    st_engine_unlock(engine);
    if (status != STRATA_OK) return status;
    session->done += count;
    session->last_row = count - 1;
    return STRATA_OK;
}

/* Runs the sequence up to `end`; progress counts from `first`. */
static strata_status run_until(strata_session *session, uint32_t end, uint32_t first, strata_progress progress,
                               void *context, strata_error *error)
{
    while (session->done < end) {
        strata_status status = run_batch(session, end, error);
        if (status != STRATA_OK) return status;
        if (progress && !progress(context, session->done - first, session->count - first))
            return st_error_set(error, STRATA_INTERRUPTED, NULL, "interrupted after %u of %u tokens", session->done,
                                session->count);
    }
    return STRATA_OK;
}

static strata_status take_snapshot(strata_session *session, strata_error *error)
{
    st_engine_lock(session->engine);
    strata_status status = st_kv_snapshot(st_run_kv(session->run), error);
    st_engine_unlock(session->engine);
    return status;
}

/* Runs a new prompt. A model whose state cannot be rewound gets a snapshot one step before the end, so that the same
 * prompt again, or another answer to it, runs its last token alone. Continuing token by token takes no snapshots: they
 * would evict more useful ones. */
static strata_status run_prompt(strata_session *session, strata_progress progress, void *context, strata_error *error)
{
    /* With a NextN block the token before the rewind point runs again. */
    uint32_t first = session->done, step = session->engine->plan->nextn ? 2 : 1;
    strata_status status = STRATA_OK;
    if (session->engine->desc->recurrent && session->count > first + step) {
        status = run_until(session, session->count - step, first, progress, context, error);
        if (status == STRATA_OK) status = take_snapshot(session, error);
    }
    return status == STRATA_OK ? run_until(session, session->count, first, progress, context, error) : status;
}

/* Keeps the first `count` tokens and their KV cache. */
static strata_status rewind_to(strata_session *session, uint32_t count, strata_error *error)
{
    uint32_t reached;
    if (count < session->done) {
        st_engine_lock(session->engine);
        strata_status status = st_run_rewind(session->run, count, &reached, error);
        st_engine_unlock(session->engine);
        if (status != STRATA_OK) return status;
        session->done = reached;
    }
    session->count = count;
    return STRATA_OK;
}

strata_status strata_session_prompt(strata_session *session, const strata_token *tokens, size_t count,
                                    strata_progress progress, void *context, strata_error *error)
{
    strata_status status = check_tokens(session, tokens, count, error);
    if (status != STRATA_OK) return status;
    uint32_t shared = 0;
    while (shared < session->done && shared < count && session->tokens[shared] == tokens[shared]) shared++;
    if (shared == count) shared--; /* the last token runs again for its logits */
    status = rewind_to(session, shared, error);
    if (status != STRATA_OK) return status;
    memcpy(session->tokens, tokens, count * sizeof *tokens);
    session->count = (uint32_t)count;
    return run_prompt(session, progress, context, error);
}

strata_status strata_session_logits(strata_session *session, const float **logits, size_t *count, strata_error *error)
{
    if (session->count == 0) return st_error_set(error, STRATA_INPUT, NULL, "the sequence is empty: it has no logits");
    strata_status status = run_until(session, session->count, session->done, NULL, NULL, error);
    if (status != STRATA_OK) return status;
    st_engine_lock(session->engine);
    status = st_run_logits(session->run, &session->last_row, 1, logits, error);
    st_engine_unlock(session->engine);
    if (status == STRATA_OK) *count = session->engine->desc->vocab;
    return status;
}

/* --- scoring ------------------------------------------------------------------------------------------------------ */

typedef struct scoring {
    strata_session *session;
    bool nextn;
    strata_on_row on_row;
    void *context;
    size_t row;
} scoring;

/* Passes the logits of all rows of the last batch to the caller, a few at a time. */
static strata_status score_batch(scoring *s, uint32_t batch_rows, strata_error *error)
{
    uint32_t vocab = s->session->engine->desc->vocab, rows[ST_SESSION_OUT_ROWS];
    for (uint32_t first = 0; first < batch_rows; first += ST_SESSION_OUT_ROWS) {
        uint32_t count = batch_rows - first < ST_SESSION_OUT_ROWS ? batch_rows - first : ST_SESSION_OUT_ROWS;
        for (uint32_t i = 0; i < count; i++) rows[i] = first + i;
        const float *logits;
        st_engine_lock(s->session->engine);
        strata_status status = s->nextn ? st_run_nextn_logits(s->session->run, rows, count, &logits, error)
                                        : st_run_logits(s->session->run, rows, count, &logits, error);
        st_engine_unlock(s->session->engine);
        if (status != STRATA_OK) return status;
        for (uint32_t i = 0; i < count; i++)
            if (!s->on_row(s->context, s->row++, logits + (size_t)i * vocab, vocab))
                return st_error_set(error, STRATA_INTERRUPTED, NULL, "stopped after %zu rows", s->row);
    }
    return STRATA_OK;
}

strata_status strata_session_score(strata_session *session, const strata_token *tokens, size_t count, bool nextn,
                                   strata_on_row on_row, void *context, strata_error *error)
{
    if (nextn && !session->engine->plan->nextn)
        return st_error_set(error, STRATA_USAGE, NULL, "the engine was made without the NextN block");
    strata_status status = check_tokens(session, tokens, count, error);
    if (status == STRATA_OK) status = rewind_to(session, 0, error);
    if (status != STRATA_OK) return status;
    memcpy(session->tokens, tokens, count * sizeof *tokens);
    session->count = (uint32_t)count;
    scoring s = {.session = session, .nextn = nextn, .on_row = on_row, .context = context};
    while (session->done < session->count && status == STRATA_OK) {
        status = run_batch(session, session->count, error);
        if (status == STRATA_OK)
            status = score_batch(&s, nextn ? st_run_nextn_rows(session->run) : session->last_row + 1, error);
    }
    return status;
}

/* --- generating --------------------------------------------------------------------------------------------------- */

typedef struct generator {
    strata_session *session;
    const strata_generation *options;
    const st_tokenizer *tokenizer;
    st_sampler *sampler;
    st_stop *stop;
    st_decode_state decode;
    st_buf decoded, shown;
} generator;

static strata_status open_sampler(generator *g, strata_error *error)
{
    strata_session *session = g->session;
    strata_sampling sampling = g->options->sampling;
    uint32_t vocab = session->engine->desc->vocab, context = strata_engine_context(session->engine);
    if (sampling.penalty_tokens > context) sampling.penalty_tokens = context;
    strata_status status = st_sampler_new(&sampling, vocab, &g->sampler, error);
    if (status != STRATA_OK) return status;
    size_t ends;
    const strata_token *end_ids = st_tokenizer_ends(g->tokenizer, &ends);
    if (g->options->ignore_end) st_sampler_ban(g->sampler, end_ids, ends);
    if (g->options->continue_random && session->has_random) *st_sampler_random(g->sampler) = session->random;
    return STRATA_OK;
}

static strata_status generator_open(generator *g, strata_error *error)
{
    strata_session *session = g->session;
    strata_status status = st_model_tokenizer(session->engine->model, &g->tokenizer, error);
    if (status == STRATA_OK) status = open_sampler(g, error);
    if (status == STRATA_OK) status = st_stop_new(g->options->stops, g->options->stop_count, &g->stop, error);
    if (status != STRATA_OK) return status;
    /* Room for a token's text: generating allocates nothing, unless a text is very long. */
    if (!st_buf_reserve(&g->decoded, TEXT_RESERVE) || !st_buf_reserve(&g->shown, TEXT_RESERVE))
        return st_error_memory(error, TEXT_RESERVE, "text");
    for (uint32_t i = 0; i < session->count; i++) st_sampler_accept(g->sampler, session->tokens[i]);
    return STRATA_OK;
}

static void generator_close(generator *g)
{
    if (g->sampler) {
        g->session->random = *st_sampler_random(g->sampler);
        g->session->has_random = true;
    }
    st_sampler_free(g->sampler);
    st_stop_free(g->stop);
    st_buf_free(&g->decoded);
    st_buf_free(&g->shown);
}

static bool show_text(generator *g)
{
    bool go_on = true;
    if (g->shown.length && g->options->on_text)
        go_on = g->options->on_text(g->options->context, g->shown.data, g->shown.length);
    g->shown.length = 0;
    return go_on;
}

/* Flushes the text held back at the end: an incomplete code point, and the start of a stop string. */
static strata_status show_end(generator *g, strata_error *error)
{
    g->decoded.length = 0;
    bool stopped = false;
    strata_status status = st_tokenizer_decode_finish(&g->decode, &g->decoded, error);
    if (status == STRATA_OK)
        status = st_stop_push(g->stop, (st_str){g->decoded.data, g->decoded.length}, &g->shown, &stopped, error);
    if (status == STRATA_OK && !stopped) status = st_stop_finish(g->stop, &g->shown, error);
    if (status == STRATA_OK) show_text(g);
    return status;
}

/* A control token shows no text, but a stop string may name it. */
static bool is_hidden(const generator *g, strata_token token, bool *stopped)
{
    if (g->options->show_control || st_tokenizer_type(g->tokenizer, token) != ST_TOKEN_CONTROL) return false;
    st_str text = st_tokenizer_text(g->tokenizer, token);
    for (size_t i = 0; i < g->options->stop_count; i++)
        if (st_str_equal(text, st_str_from(g->options->stops[i]))) *stopped = true;
    return true;
}

/* Shows the text that the token completes. The answer is finished when a stop string is complete or on_text cancels. */
static strata_status show_token(generator *g, strata_token token, bool *finished, strata_finish *finish,
                                strata_error *error)
{
    g->decoded.length = 0;
    bool stopped = false;
    if (is_hidden(g, token, &stopped)) {
        *finish = STRATA_FINISH_END;
        *finished = stopped;
        return stopped ? show_end(g, error) : STRATA_OK;
    }
    strata_status status = st_tokenizer_decode_push(g->tokenizer, &g->decode, token, &g->decoded, error);
    if (status == STRATA_OK)
        status = st_stop_push(g->stop, (st_str){g->decoded.data, g->decoded.length}, &g->shown, &stopped, error);
    if (status != STRATA_OK) return status;
    *finish = stopped ? STRATA_FINISH_END : STRATA_FINISH_CANCEL;
    *finished = !show_text(g) || stopped;
    return STRATA_OK;
}

static strata_status pick_next(generator *g, strata_token *token, strata_error *error)
{
    const float *logits;
    size_t vocab;
    strata_status status = strata_session_logits(g->session, &logits, &vocab, error);
    if (status != STRATA_OK) return status;
    status = st_sampler_pick(g->sampler, logits, token, error);
    /* Unusable logits mean that the state is broken: the next prompt must not reuse it. */
    if (status != STRATA_OK) (void)rewind_to(g->session, 0, NULL);
    return status;
}

static strata_status generate(generator *g, strata_answer *answer, strata_error *error)
{
    strata_session *session = g->session;
    uint32_t context = strata_engine_context(session->engine);
    double start = strata_engine_clock(session->engine);
    bool finished = false, text_over = false;
    answer->finish = STRATA_FINISH_LENGTH;
    while (!finished && (g->options->max_tokens == 0 || answer->tokens < g->options->max_tokens)) {
        strata_token token;
        strata_status status = pick_next(g, &token, error);
        if (status == STRATA_INTERRUPTED) {
            answer->finish = STRATA_FINISH_CANCEL;
            break;
        }
        if (status != STRATA_OK) return status;
        if (answer->tokens == 0) answer->first_seconds = strata_engine_clock(session->engine) - start;
        if (st_tokenizer_is_end(g->tokenizer, token)) {
            answer->finish = STRATA_FINISH_END;
            break;
        }
        st_sampler_accept(g->sampler, token);
        answer->tokens++;
        if (session->count < context) session->tokens[session->count++] = token;
        else finished = true; /* the context is full */
        bool ended = false;
        strata_finish finish;
        status = show_token(g, token, &ended, &finish, error);
        if (status != STRATA_OK) return status;
        if (ended) {
            answer->finish = finish;
            text_over = true;
            finished = true;
        }
    }
    strata_status status = text_over ? STRATA_OK : show_end(g, error);
    answer->seconds = strata_engine_clock(session->engine) - start;
    return status;
}

strata_status strata_session_generate(strata_session *session, const strata_generation *generation,
                                      strata_answer *answer, strata_error *error)
{
    generator g = {.session = session, .options = generation};
    strata_answer found = {0};
    strata_status status = generator_open(&g, error);
    if (status == STRATA_OK) status = generate(&g, &found, error);
    if (status == STRATA_OK) status = take_snapshot(session, error);
    generator_close(&g);
    if (status == STRATA_OK) *answer = found;
    return status;
}
