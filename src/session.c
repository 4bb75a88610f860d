/* A session: a conversation on the engine's KV cache, and the loop that generates more. */

#include "base/alloc.h"
#include "base/error.h"
#include "engine.h"
#include "kv/stops.h"
#include "sampler/sampler.h"
#include "sampler/stop.h"

enum { TEXT_RESERVE = 4096 };

struct strata_session {
    strata_engine *engine;
    st_conversation *conversation;
    strata_token *tokens; /* [context]: of the conversation; the stored ones come first */
    uint32_t count;       /* of the tokens */
    bool computed;        /* the slot has the logits after the last token, as long as the session keeps it */
    float *logits;        /* [vocab]: the copy that strata_session_logits returns; NULL before the first */
    atomic_bool interrupt; /* calls stop while it is true */
    st_random random;     /* the stream that generations draw from */
    bool has_random;
};

/* --- life --------------------------------------------------------------------------------------------------------- */

strata_status strata_session_new(strata_engine *engine, strata_session **out, strata_error *error)
{
    strata_session *session = st_alloc_zero(1, sizeof *session);
    if (!session) return st_error_memory(error, sizeof *session, "the session");
    session->engine = engine;
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
    st_conversation_free(session->conversation);
    st_engine_unlock(session->engine);
    st_free(session->logits);
    st_free(session);
}

static uint32_t stored(const strata_session *session)
{
    return st_conversation_position(session->conversation);
}

/* Whether the slot has the logits after the last token. The lock is held, or the session runs. */
static bool has_logits(const strata_session *session)
{
    bool has_slot = st_conversation_slot(session->conversation) != ST_NO_SLOT;
    return session->computed && has_slot && stored(session) == session->count;
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

void strata_session_interrupt(strata_session *session, bool interrupt)
{
    atomic_store_explicit(&session->interrupt, interrupt, memory_order_relaxed);
}

/* A call begins: the session runs until `leave`. */
static void enter(strata_session *session, uint32_t places)
{
    st_engine_enter(session->engine, places);
    st_engine_lock(session->engine);
    st_conversation_run(session->conversation, true);
    st_engine_unlock(session->engine);
}

static void leave(strata_session *session, uint32_t places)
{
    st_engine_lock(session->engine);
    st_conversation_run(session->conversation, false);
    st_engine_unlock(session->engine);
    st_engine_leave(session->engine, places);
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

/* Tokens run in steps until `end`; restore points are taken where `stops` says. */
typedef struct running {
    strata_session *session;
    st_stops stops;
    bool prompt;
    bool scores;    /* the caller reads the logits of every row */
    uint32_t first; /* progress counts from here */
    uint32_t done;  /* the position after the last step */
    strata_progress progress;
    void *context;
} running;

/* The tokens of the next step: at most a batch, up to the next restore point. */
static uint32_t step_size(const running *r, uint32_t position, uint32_t stop)
{
    const strata_engine *engine = r->session->engine;
    uint32_t most = engine->plan->batch, end = r->stops.end < stop ? r->stops.end : stop;
    if (engine->step_multiple && r->prompt) most = engine->step_multiple - position % engine->step_multiple;
    return end - position < most ? end - position : most;
}

/* Copies the logits of the step's last row to the slot's. */
static strata_status keep_logits(strata_session *session, uint32_t row, strata_error *error)
{
    strata_engine *engine = session->engine;
    const float *logits;
    strata_status status = st_run_logits(engine->run, &row, 1, &logits, error);
    if (status != STRATA_OK) return status;
    memcpy(slot_logits(session), logits, engine->desc->vocab * sizeof *logits);
    session->computed = true;
    return STRATA_OK;
}

/* Runs one step. The lock is held for it. */
static strata_status locked_step(running *r, strata_error *error)
{
    strata_session *session = r->session;
    strata_engine *engine = session->engine;
    st_restore_kind kind = ST_RESTORE_PASSING;
    bool points = engine->plan->restore_bytes > 0;
    uint32_t position = stored(session), stop = points ? st_stops_next(&r->stops, position, &kind) : ST_NO_STOP;
    uint32_t count = step_size(r, position, stop), end = position + count;
    st_run_piece piece = {.conversation = session->conversation, .count = count, .prompt = r->prompt};
    session->computed = false;
    st_run_watch(engine->run, &session->interrupt);
    strata_status status = st_run_step(engine->run, &piece, 1, error);
    bool last = end == session->count && !r->scores;
    bool point = points && (end == stop || (!r->prompt && end % r->stops.page_tokens == 0));
    if (status == STRATA_OK && last) status = keep_logits(session, count - 1, error);
    if (status == STRATA_OK && point && !last) status = st_run_wait(engine->run, error);
    if (status == STRATA_OK && point) st_conversation_keep(session->conversation, kind);
    st_run_watch(engine->run, NULL);
    return status;
}

/* After a failure in another session's step the conversation may be unable to continue at its position: it then seeks
 * an earlier one. */
static strata_status run_step(running *r, strata_error *error)
{
    strata_session *session = r->session;
    strata_status status = STRATA_OK;
    st_seek seek;
    st_engine_lock(session->engine);
    if (!st_conversation_ready(session->conversation))
        status = st_conversation_seek(session->conversation, session->tokens, session->count, true, &seek, error);
    if (status == STRATA_OK) status = locked_step(r, error);
    r->done = stored(session);
    st_engine_unlock(session->engine);
    return status;
}

/* Runs the tokens up to stops.end. */
static strata_status run_until(running *r, strata_error *error)
{
    uint32_t count = r->session->count;
    while (r->done < r->stops.end) {
        strata_status status = run_step(r, error);
        if (status != STRATA_OK) return status;
        uint32_t done = r->done > r->first ? r->done - r->first : 0;
        if (r->progress && !r->progress(r->context, done, count - r->first))
            return st_error_set(error, STRATA_INTERRUPTED, NULL, "interrupted after %u of %u tokens", r->done, count);
    }
    return STRATA_OK;
}

/* The steps of the tokens from `first` on. */
static running running_of(strata_session *session, uint32_t first, bool prompt)
{
    return (running){.session = session, .prompt = prompt, .first = first, .done = first,
                     .stops = {.diverged = ST_NO_STOP, .end = session->count,
                               .page_tokens = session->engine->plan->memory[ST_HOST].kv->options.page_tokens}};
}

/* Marks past the prompt are dropped, and marks after the first MARKS_MAX. */
enum { MARKS_MAX = 64 };

static uint32_t take_marks(const strata_prompt_options *options, uint32_t count, uint32_t marks[MARKS_MAX])
{
    uint32_t taken = 0;
    for (size_t i = 0; options && i < options->mark_count && taken < MARKS_MAX; i++)
        if (options->marks[i] <= count) marks[taken++] = (uint32_t)options->marks[i];
    return taken;
}

static strata_status run_prompt(strata_session *session, const strata_token *tokens, uint32_t count,
                                const strata_prompt_options *options, uint32_t *kept, strata_error *error)
{
    st_seek seek;
    uint32_t marks[MARKS_MAX];
    st_engine_lock(session->engine);
    strata_status status = st_conversation_seek(session->conversation, tokens, count, true, &seek, error);
    st_engine_unlock(session->engine);
    session->count = count; /* the tokens are set, also if none of them is stored */
    if (status != STRATA_OK) return status;
    *kept = seek.kept;
    running r = running_of(session, seek.kept, true);
    if (seek.diverged) r.stops.diverged = seek.diverged;
    r.stops.marks = marks;
    r.stops.mark_count = take_marks(options, count, marks);
    r.progress = options ? options->progress : NULL;
    r.context = options ? options->context : NULL;
    return run_until(&r, error);
}

strata_status strata_session_prompt(strata_session *session, const strata_token *tokens, size_t count,
                                    const strata_prompt_options *options, size_t *reused, strata_error *error)
{
    uint32_t kept = 0;
    strata_status status = check_tokens(session, tokens, count, error);
    if (status != STRATA_OK) return status;
    enter(session, 1);
    status = run_prompt(session, tokens, (uint32_t)count, options, &kept, error);
    leave(session, 1);
    if (status == STRATA_OK && reused) *reused = kept;
    return status;
}

/* Runs the tokens that are not stored, and at least the last one if its logits are lost: other sessions have taken the
 * slot or pages, or a step has failed. */
static strata_status run_missing(strata_session *session, strata_error *error)
{
    st_conversation *c = session->conversation;
    strata_status status = STRATA_OK;
    st_engine_lock(session->engine);
    bool known = has_logits(session);
    if (!known && (stored(session) == 0 || stored(session) >= session->count || !st_conversation_ready(c))) {
        st_seek seek;
        status = st_conversation_seek(c, session->tokens, session->count, true, &seek, error);
    }
    running r = running_of(session, stored(session), false);
    st_engine_unlock(session->engine);
    if (known || status != STRATA_OK) return status;
    return run_until(&r, error);
}

/* The logits after the last token, while the session runs. */
static strata_status logits_of(strata_session *session, const float **logits, strata_error *error)
{
    if (session->count == 0)
        return st_error_set(error, STRATA_INPUT, NULL, "the session has no tokens, so it has no logits");
    strata_status status = run_missing(session, error);
    if (status != STRATA_OK) return status;
    *logits = slot_logits(session);
    return STRATA_OK;
}

strata_status strata_session_logits(strata_session *session, const float **logits, size_t *count, strata_error *error)
{
    uint32_t vocab = session->engine->desc->vocab;
    const float *found = NULL;
    if (!session->logits) session->logits = st_alloc_array(vocab, sizeof *session->logits);
    if (!session->logits) return st_error_memory(error, vocab * sizeof *session->logits, "logits");
    enter(session, 1);
    strata_status status = logits_of(session, &found, error);
    if (status == STRATA_OK) memcpy(session->logits, found, vocab * sizeof *found);
    leave(session, 1);
    if (status != STRATA_OK) return status;
    *logits = session->logits;
    *count = vocab;
    return STRATA_OK;
}

/* --- scoring ------------------------------------------------------------------------------------------------------ */

typedef struct scoring {
    strata_session *session;
    bool nextn;
    strata_on_row on_row;
    void *context;
    size_t row;
} scoring;

/* Runs a step and passes the logits of all its rows to the caller, a few at a time. */
static strata_status score_step(scoring *s, running *r, strata_error *error)
{
    strata_engine *engine = s->session->engine;
    uint32_t vocab = engine->desc->vocab, rows[ST_SESSION_OUT_ROWS], before = r->done;
    strata_status status = run_step(r, error);
    if (status != STRATA_OK) return status;
    uint32_t step_rows = s->nextn ? st_run_nextn_rows(engine->run) : r->done - before;
    for (uint32_t first = 0; first < step_rows; first += ST_SESSION_OUT_ROWS) {
        uint32_t count = step_rows - first < ST_SESSION_OUT_ROWS ? step_rows - first : ST_SESSION_OUT_ROWS;
        for (uint32_t i = 0; i < count; i++) rows[i] = first + i;
        const float *logits;
        st_engine_lock(engine); /* no other session runs; sessions may be made, forked and freed */
        status = s->nextn ? st_run_nextn_logits(engine->run, rows, count, &logits, error)
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
    running r = running_of(session, 0, true);
    r.scores = true;
    while (r.done < count && status == STRATA_OK) status = score_step(s, &r, error);
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
    uint32_t all = session->engine->plan->conversations; /* alone: the rows of a step are valid until the next one */
    enter(session, all);
    status = score_all(&s, tokens, (uint32_t)count, error);
    leave(session, all);
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
    const float *logits = NULL;
    strata_status status = logits_of(g->session, &logits, error);
    if (status != STRATA_OK) return status;
    status = st_sampler_pick(g->sampler, logits, token, error);
    if (status == STRATA_OK) return STRATA_OK;
    st_engine_lock(g->session->engine);
    st_conversation_forget(g->session->conversation); /* NaN logits: the stored rows are broken */
    st_engine_unlock(g->session->engine);
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
    enter(session, 1);
    strata_status status = generator_open(&g, error);
    if (status == STRATA_OK) status = generate(&g, &found, error);
    generator_close(&g);
    leave(session, 1);
    if (status == STRATA_OK) *answer = found;
    return status;
}
