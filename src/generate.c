/* Answers: tokens are sampled and turned into text on the scheduler's thread, which must not wait for anybody; the text
 * goes through an outlet to the session's thread, which passes it to the caller. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "sampler/likely.h"
#include "sampler/stop.h"
#include "session.h"

enum { TEXT_RESERVE = 4096, OUTLET_BYTES = 64 * 1024, OUTLET_PARTS = 256 };

/* The text that one token completes, or the rest at the end of the answer. */
typedef struct text_part {
    size_t end;       /* in the text of the outlet */
    size_t tokens;    /* of the answer so far */
    bool stopped;     /* a stop string is complete */
    bool rest;
    st_random random; /* the stream after the token */
} text_part;

typedef struct text_parts {
    st_buf text;
    text_part parts[OUTLET_PARTS];
    uint32_t count;
} text_parts;

typedef struct generator {
    strata_session *session;
    const strata_generation *options;
    const st_tokenizer *tokenizer;
    st_request request;
    /* The scheduler's thread, until the request has ended. */
    st_sampler *sampler;
    st_stop *stop;
    st_decode_state decode;
    st_buf decoded, shown;
    strata_answer answer;
    double start;
    strata_status status;
    strata_error error;
    bool broken;        /* the logits are: the stored rows are not worth keeping */
    /* Guarded by the lock. */
    pthread_mutex_t lock;
    text_parts *outlet;
    bool full;          /* the scheduler's thread waits until there is room in the outlet */
    /* The session's thread. */
    text_parts *taken;
    bool cancelled;     /* on_text returned false */
    text_part last;     /* the part for which it did */
    text_parts parts[2]; /* outlet and taken */
} generator;

/* --- life --------------------------------------------------------------------------------------------------------- */

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

static strata_status check_given(const generator *g, strata_error *error)
{
    uint32_t vocab = g->session->engine->desc->vocab;
    for (size_t i = 0; i < g->options->given_count; i++)
        if (g->options->given[i] < 0 || (uint32_t)g->options->given[i] >= vocab)
            return st_error_set(error, STRATA_INPUT, NULL, "given token %zu: expected an id below %u, found %d", i,
                                vocab, g->options->given[i]);
    return STRATA_OK;
}

static strata_status generator_open(generator *g, strata_error *error)
{
    strata_session *session = g->session;
    pthread_mutex_init(&g->lock, NULL);
    g->outlet = &g->parts[0];
    g->taken = &g->parts[1];
    strata_status status = st_model_tokenizer(session->engine->model, &g->tokenizer, error);
    if (status == STRATA_OK) status = check_given(g, error);
    if (status == STRATA_OK) status = open_sampler(g, error);
    if (status == STRATA_OK) status = st_stop_new(g->options->stops, g->options->stop_count, &g->stop, error);
    if (status != STRATA_OK) return status;
    /* Room for a token's text: generating allocates nothing, unless a text is very long. */
    st_buf *texts[] = {&g->decoded, &g->shown, &g->parts[0].text, &g->parts[1].text};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!st_buf_reserve(texts[i], TEXT_RESERVE)) return st_error_memory(error, TEXT_RESERVE, "text");
    for (uint32_t i = 0; i < session->count; i++) st_sampler_accept(g->sampler, session->tokens[i]);
    return STRATA_OK;
}

static void generator_close(generator *g)
{
    if (g->sampler) {
        g->session->random = g->cancelled ? g->last.random : *st_sampler_random(g->sampler);
        g->session->has_random = true;
    }
    st_sampler_free(g->sampler);
    st_stop_free(g->stop);
    st_buf_free(&g->decoded);
    st_buf_free(&g->shown);
    for (int i = 0; i < 2; i++) st_buf_free(&g->parts[i].text);
    pthread_mutex_destroy(&g->lock);
}

/* --- the scheduler's thread --------------------------------------------------------------------------------------- */

/* Puts the text that may be shown into the outlet. */
static strata_status hand_over(generator *g, bool stopped, bool rest)
{
    strata_status status = STRATA_OK;
    if (g->shown.length == 0 || !g->options->on_text) {
        g->shown.length = 0;
        return STRATA_OK;
    }
    pthread_mutex_lock(&g->lock);
    if (!st_buf_append(&g->outlet->text, g->shown.data, g->shown.length))
        status = st_error_memory(&g->error, g->shown.length, "text");
    else
        g->outlet->parts[g->outlet->count++] =
            (text_part){.end = g->outlet->text.length, .tokens = g->answer.tokens, .stopped = stopped, .rest = rest,
                        .random = *st_sampler_random(g->sampler)};
    pthread_mutex_unlock(&g->lock);
    g->shown.length = 0;
    return status;
}

/* Flushes the text held back at the end: an incomplete code point, and the start of a stop string. */
static strata_status show_rest(generator *g)
{
    g->decoded.length = 0;
    bool stopped = false;
    strata_status status = st_tokenizer_decode_finish(&g->decode, &g->decoded, &g->error);
    if (status == STRATA_OK)
        status = st_stop_push(g->stop, (st_str){g->decoded.data, g->decoded.length}, &g->shown, &stopped, &g->error);
    if (status == STRATA_OK && !stopped) status = st_stop_finish(g->stop, &g->shown, &g->error);
    return status == STRATA_OK ? hand_over(g, false, true) : status;
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

/* Shows the text that the token completes. *stopped: a stop string is complete. */
static strata_status show_token(generator *g, strata_token token, bool *stopped)
{
    if (is_hidden(g, token, stopped)) return *stopped ? show_rest(g) : STRATA_OK;
    g->decoded.length = 0;
    strata_status status = st_tokenizer_decode_push(g->tokenizer, &g->decode, token, &g->decoded, &g->error);
    if (status == STRATA_OK)
        status = st_stop_push(g->stop, (st_str){g->decoded.data, g->decoded.length}, &g->shown, stopped, &g->error);
    return status == STRATA_OK ? hand_over(g, *stopped, false) : status;
}

static bool outlet_is_full(generator *g)
{
    pthread_mutex_lock(&g->lock);
    g->full = g->outlet->text.length >= OUTLET_BYTES || g->outlet->count >= OUTLET_PARTS - 1; /* one is for the rest */
    bool full = g->full;
    pthread_mutex_unlock(&g->lock);
    return full;
}

/* What a token is chosen from: all logits, or candidates. */
typedef struct offer {
    const float *logits;
    const st_candidates *best;
} offer;

static void find_likely(const generator *g, const offer *from, strata_token token, st_likely *out)
{
    size_t vocab = g->session->engine->desc->vocab, wanted = g->options->top_logprobs;
    *out = (st_likely){.logprob = NAN};
    if (!g->options->logprobs) return;
    if (from->best) st_likely_of_candidates(from->best, token, wanted, out);
    else st_likely_of_logits(from->logits, vocab, token, wanted, out);
}

/* Passes a token to the caller; false: the caller cancels. */
static bool tell_token(const generator *g, strata_token token, bool end, const offer *from)
{
    st_likely likely;
    if (!g->options->on_token) return true;
    find_likely(g, from, token, &likely);
    strata_sampled sampled = {.token = token, .end = end, .logits = from->logits,
                              .control = st_tokenizer_type(g->tokenizer, token) == ST_TOKEN_CONTROL,
                              .vocab = g->session->engine->desc->vocab, .logprob = likely.logprob,
                              .top = likely.top, .top_count = likely.top_count};
    return g->options->on_token(g->options->context, &sampled);
}

/* Chooses the next token. False: the answer ends without one. */
static bool choose(generator *g, const offer *from, strata_token *token)
{
    if (g->answer.tokens < g->options->given_count) {
        *token = g->options->given[g->answer.tokens];
        return true;
    }
    g->status = from->best ? st_sampler_pick_among(g->sampler, from->best, token, &g->error)
                           : st_sampler_pick(g->sampler, from->logits, token, &g->error);
    g->broken = g->status != STRATA_OK;
    if (g->broken) return false;
    if (!st_tokenizer_is_end(g->tokenizer, *token)) return true;
    (void)tell_token(g, *token, true, from);
    g->answer.finish = STRATA_FINISH_END;
    return false;
}

/* Accepts a token and shows its text; *over: the answer ends with it. */
static void take_token(generator *g, strata_token token, const offer *from, bool *over)
{
    bool stopped = false;
    st_sampler_accept(g->sampler, token);
    g->answer.tokens++;
    *over = !tell_token(g, token, false, from);
    if (*over) g->answer.finish = STRATA_FINISH_CANCEL;
    g->status = *over ? show_rest(g) : show_token(g, token, &stopped);
    if (stopped) g->answer.finish = STRATA_FINISH_END;
    *over = *over || stopped;
}

/* A caller that reads the logits gets all of them. Logprobs are those before adjustments, and of a given token the
 * candidates may have none. */
static bool adjust(void *context, st_adjustments *out)
{
    generator *g = context;
    const strata_generation *o = g->options;
    bool reads = o->on_token && !o->without_logits, likely = o->on_token && o->logprobs;
    if (reads || (likely && g->answer.tokens < o->given_count)) return false;
    return st_sampler_adjust(g->sampler, out) && !(likely && out->count);
}

static st_next next_token(void *context, const float *logits, const st_candidates *best, strata_token *token)
{
    generator *g = context;
    if (outlet_is_full(g)) return ST_NEXT_WAIT;
    if (g->answer.tokens == 0) g->answer.first_seconds = st_engine_now(g->session->engine) - g->start;
    const offer from = {logits, best};
    bool chosen = choose(g, &from, token), over = false;
    bool fits = chosen && g->request.count < strata_engine_context(g->session->engine);
    if (chosen) take_token(g, *token, &from, &over);
    if (!over && fits && g->answer.tokens != g->options->max_tokens && g->status == STRATA_OK) return ST_NEXT_TOKEN;
    if (!over && g->status == STRATA_OK) g->status = show_rest(g);
    return fits ? ST_NEXT_LAST : ST_NEXT_END;
}

/* --- the session's thread ----------------------------------------------------------------------------------------- */

/* Takes what is in the outlet, and lets the scheduler's thread go on if that waits. */
static void take_text(generator *g)
{
    pthread_mutex_lock(&g->lock);
    text_parts *parts = g->taken;
    g->taken = g->outlet;
    g->outlet = parts;
    g->outlet->text.length = g->outlet->count = 0;
    bool waits = g->full;
    g->full = false;
    pthread_mutex_unlock(&g->lock);
    if (waits) st_sched_resume(g->session->engine->sched, &g->request);
}

static void pass_on(generator *g)
{
    size_t begin = 0;
    for (uint32_t i = 0; i < g->taken->count && !g->cancelled; i++) {
        const text_part *part = &g->taken->parts[i];
        bool go_on = g->options->on_text(g->options->context, g->taken->text.data + begin, part->end - begin);
        begin = part->end;
        if (go_on || part->rest) continue;
        g->cancelled = true;
        g->last = *part;
        strata_session_cancel(g->session);
    }
}

static void run(generator *g)
{
    st_sched *sched = g->session->engine->sched;
    st_sched_submit(sched, &g->request);
    for (bool goes_on = true; goes_on;) {
        goes_on = st_sched_wait(sched, &g->request);
        take_text(g);
        pass_on(g);
    }
}

/* An answer that was cancelled by on_text ends with the token whose text on_text has seen. Tokens that were computed
 * meanwhile are dropped. */
static void end_cancelled(generator *g, uint32_t before)
{
    bool stopped = g->last.stopped;
    g->answer.finish = stopped ? STRATA_FINISH_END : STRATA_FINISH_CANCEL;
    g->answer.tokens = g->last.tokens;
    uint64_t count = before + (uint64_t)g->last.tokens;
    if (count < g->session->count) {
        g->session->count = (uint32_t)count;
        g->session->computed = false;
    }
}

static strata_status generate(generator *g, strata_error *error)
{
    strata_session *session = g->session;
    st_request *request = &g->request;
    uint32_t before = session->count;
    *request = st_session_request(session);
    request->next = next_token;
    request->adjust = adjust;
    request->context = g;
    request->notify = g->options->on_text != NULL;
    g->start = strata_engine_clock(session->engine);
    g->answer.finish = STRATA_FINISH_LENGTH;
    run(g);
    session->count = request->count;
    session->computed = request->status == STRATA_OK && request->computed;
    if (request->status == STRATA_INTERRUPTED) {
        g->answer.finish = STRATA_FINISH_CANCEL;
        if (!g->cancelled) g->status = show_rest(g);
        take_text(g);
        pass_on(g);
    } else if (request->status != STRATA_OK) {
        return st_error_copy(error, &request->error);
    }
    if (g->broken) {
        st_engine_lock(session->engine);
        st_conversation_forget(session->conversation); /* NaN logits: the stored rows are broken */
        st_engine_unlock(session->engine);
    }
    if (g->status != STRATA_OK) return st_error_copy(error, &g->error);
    if (g->cancelled) end_cancelled(g, before);
    g->answer.seconds = strata_engine_clock(session->engine) - g->start;
    return STRATA_OK;
}

strata_status strata_session_generate(strata_session *session, const strata_generation *generation,
                                      strata_answer *answer, strata_error *error)
{
    if (session->count == 0)
        return st_error_set(error, STRATA_INPUT, NULL, "the session has no tokens, so it has no logits");
    generator *g = st_alloc_zero(1, sizeof *g);
    if (!g) return st_error_memory(error, sizeof *g, "the answer");
    g->session = session;
    g->options = generation;
    st_session_begin(session);
    strata_status status = generator_open(g, error);
    if (status == STRATA_OK) status = generate(g, error);
    st_session_end(session);
    if (status == STRATA_OK) *answer = g->answer;
    generator_close(g);
    st_free(g);
    return status;
}
