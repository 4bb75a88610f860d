#include "task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core.h"

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void on_client_gone(void *context)
{
    server_task *task = context;
    server_count(&task->server->metrics.cancelled, 1);
    server_task_cancel(task);
}

server_task *server_task_new(server *s, http_request *http, const server_api *api)
{
    server_task *task = calloc(1, sizeof *task);
    if (!task) return NULL;
    unsigned char random[12] = {0};
    (void)!getrandom(random, sizeof random, 0);
    size_t at = (size_t)snprintf(task->id, sizeof task->id, "%s", api->id_prefix);
    for (size_t i = 0; i < sizeof random; i++)
        at += (size_t)snprintf(task->id + at, sizeof task->id - at, "%02x", random[i]);
    task->server = s;
    task->http = http;
    task->api = api;
    task->created = (int64_t)time(NULL);
    task->arrived_seconds = http_started(http);
    atomic_init(&task->references, 1);
    pthread_mutex_init(&task->lock, NULL);
    pthread_mutex_init(&task->session_lock, NULL);
    server_parameters_default(&task->parameters);
    task->parameters.stream = api->stream;
    http_ref(http);
    server_work_task_begun(&s->work, task);
    http_watch(http, on_client_gone, task);
    return task;
}

static void choice_free(server_choice *c)
{
    strata_decoder_free(c->decoder);
    server_text_free(&c->text);
    for (size_t i = 0; i < KIND_COUNT; i++) server_buf_free(&c->parts[i]);
    for (size_t i = 0; i < c->logprob_count; i++) free(c->logprobs[i].top);
    free(c->logprobs);
    free(c->sampled);
    server_buf_free(&c->out);
}

void server_task_ref(server_task *task)
{
    atomic_fetch_add(&task->references, 1);
}

void server_task_clear(server_task *task)
{
    for (size_t i = 0; i < task->choice_count; i++) choice_free(&task->choices[i]);
    for (size_t i = 0; i < task->prompt_count; i++) strata_free(task->prompts[i].tokens);
    free(task->choices);
    free(task->prompts);
    server_parameters_free(&task->parameters);
    json_decref(task->body);
    json_decref(task->messages);
    json_decref(task->tools);
    json_decref(task->arguments);
    pthread_mutex_destroy(&task->lock);
    pthread_mutex_destroy(&task->session_lock);
}

bool server_task_ref_if_alive(server_task *task)
{
    unsigned references = atomic_load(&task->references);
    while (references > 0)
        if (atomic_compare_exchange_weak(&task->references, &references, references + 1)) return true;
    return false;
}

void server_task_unref(server_task *task)
{
    if (atomic_fetch_sub(&task->references, 1) > 1) return;
    http_forget(task->http);
    server_work_task_ended(&task->server->work, task);
    server_task_clear(task);
    http_unref(task->http);
    free(task);
}

/* A cancelled call ends with the step under way, whose pages and recurrent state stay good for the client's next
 * attempt; an interrupt would give them up. It is for a session between two calls: the next one ends before its first
 * step. */
void server_session_stop(strata_session *session)
{
    if (!strata_session_cancel(session)) strata_session_interrupt(session, true);
}

void server_task_cancel(server_task *task)
{
    atomic_store(&task->cancelled, true);
    pthread_mutex_lock(&task->session_lock);
    for (size_t i = 0; i < task->choice_count; i++)
        if (task->choices[i].session) server_session_stop(task->choices[i].session);
    server_work_drop(&task->server->work, task);
    pthread_mutex_unlock(&task->session_lock);
}

/* ---- choices --------------------------------------------------------------------------------------------------- */

/* Receives the parts of an answer; the task's lock is held. */
static void take_text(void *context, server_kind kind, const char *text, size_t length)
{
    server_choice *c = context;
    server_task *task = c->task;
    server_buf_add(&c->parts[kind], text, length);
    if (!task->parameters.stream || task->failed) return;
    server_piece piece = {.kind = kind, .text = text, .length = length};
    if (c->logprob_count > c->logprobs_sent) {
        piece.logprobs = c->logprobs + c->logprobs_sent;
        piece.logprob_count = c->logprob_count - c->logprobs_sent;
        c->logprobs_sent = c->logprob_count;
    }
    task->api->write_piece(task, c, &piece, &c->out);
}

static bool choice_open(server_choice *c, server_task *task, server_fail *fail)
{
    strata_error error;
    const server_parameters *p = &task->parameters;
    c->task = task;
    server_text_open(&c->text, c->prompt->chat ? &task->server->chat.marks : NULL, c->prompt->thinking,
                     (const char *const *)p->stops, p->stop_count);
    c->text.emit = take_text;
    c->text.context = c;
    if (strata_decoder_new(task->server->engine.model, &c->decoder, &error) == STRATA_OK) return true;
    return server_refuse_error(fail, &error);
}

bool server_task_choices(server_task *task, server_fail *fail)
{
    size_t n = (size_t)task->parameters.n, count = task->prompt_count * n;
    if (count > LIMIT_CHOICES)
        return server_refuse(fail, FAULT_INVALID, "n",
                             "n: expected at most %d answers in all, found %zu prompts × %zu", LIMIT_CHOICES,
                             task->prompt_count, n);
    server_choice *choices = calloc(count, sizeof *choices);
    if (!choices) return server_refuse(fail, FAULT_BUSY, NULL, "no memory for the request");
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        choices[i].index = i;
        choices[i].prompt = &task->prompts[i / n];
        choices[i].leads = i % n == 0;
        choices[i].block = -1;
        good = choice_open(&choices[i], task, fail);
    }
    /* A cancel looks at the choices from another thread. */
    pthread_mutex_lock(&task->session_lock);
    task->choices = choices;
    task->choice_count = count;
    pthread_mutex_unlock(&task->session_lock);
    task->remaining = count;
    return good;
}

size_t server_task_prompt_tokens(const server_task *task)
{
    size_t sum = 0;
    for (size_t i = 0; i < task->prompt_count; i++) sum += task->prompts[i].count;
    return sum;
}

size_t server_task_reused_tokens(const server_task *task)
{
    size_t sum = 0;
    for (size_t i = 0; i < task->prompt_count; i++) sum += task->prompts[i].reused;
    return sum;
}

size_t server_task_answer_tokens(const server_task *task)
{
    size_t sum = 0;
    for (size_t i = 0; i < task->choice_count; i++) sum += task->choices[i].tokens;
    return sum;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* Sends the bytes; the client may have gone. The lock is held. */
static void send_out(server_task *task, server_buf *out)
{
    if (out->length == 0 && !out->failed) return;
    if (out->failed || !http_stream_write(task->http, out->data, out->length)) atomic_store(&task->cancelled, true);
    out->length = 0;
    out->failed = false;
}

void server_task_admit(server_task *task)
{
    server_buf out = {0}, keep_alive = {0};
    pthread_mutex_lock(&task->lock);
    task->admitted = true;
    if (task->parameters.stream) {
        task->api->write_keep_alive(task, &keep_alive);
        http_stream_begin(task->http, task->api->stream_type, keep_alive.data);
        if (task->api->write_start) task->api->write_start(task, &out);
        send_out(task, &out);
    }
    pthread_mutex_unlock(&task->lock);
    server_buf_free(&out);
    server_buf_free(&keep_alive);
}

void server_task_prompted(server_task *task)
{
    server_buf out = {0};
    pthread_mutex_lock(&task->lock);
    if (!task->prompted) {
        task->prompted = true;
        if (task->parameters.stream && !task->failed && task->api->write_prompted)
            task->api->write_prompted(task, &out);
        send_out(task, &out);
    }
    pthread_mutex_unlock(&task->lock);
    server_buf_free(&out);
}

void server_task_fail(server_task *task, const server_fail *fail)
{
    pthread_mutex_lock(&task->lock);
    bool first = !task->failed && !atomic_load(&task->cancelled);
    task->failed = true;
    task->fail = *fail;
    if (first && task->admitted && task->parameters.stream) {
        server_buf out = {0};
        if (fail->log[0]) server_log(task->server, "%s: %s", http_path(task->http), fail->log);
        task->api->write_failure(task, fail, &out);
        send_out(task, &out);
        server_buf_free(&out);
        http_stream_end(task->http);
    } else if (first) {
        server_reply_fail(task->server, task->http, task->api, fail);
    }
    pthread_mutex_unlock(&task->lock);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

static bool grow(void **items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) return true;
    size_t more = *capacity ? *capacity * 2 : 64;
    void *grown = realloc(*items, more * size);
    if (!grown) return false;
    *items = grown;
    *capacity = more;
    return true;
}

static void keep_sampled(server_choice *c, strata_token token)
{
    void *sampled = c->sampled;
    bool room = grow(&sampled, c->sampled_count, &c->sampled_capacity, sizeof *c->sampled);
    c->sampled = sampled;
    if (room) c->sampled[c->sampled_count++] = token;
}

static bool keep_logprob(server_choice *c, const strata_sampled *sampled)
{
    void *items = c->logprobs;
    bool room = grow(&items, c->logprob_count, &c->logprob_capacity, sizeof *c->logprobs);
    c->logprobs = items;
    if (!room) return false;
    server_logprob kept = {.chosen = {sampled->token, sampled->logprob}, .top_count = sampled->top_count};
    kept.top = calloc(sampled->top_count + 1, sizeof *kept.top);
    if (!kept.top) return false;
    for (size_t i = 0; i < sampled->top_count; i++)
        kept.top[i] = (server_likely){sampled->top[i].token, sampled->top[i].logprob};
    c->logprobs[c->logprob_count++] = kept;
    return true;
}

static void observe(server_choice *c)
{
    server_metrics *m = &c->task->server->metrics;
    double now = server_now();
    if (c->tokens == 0) server_observe(&m->first_token, now - c->task->arrived_seconds);
    else server_observe(&m->gap, now - c->last_seconds);
    if (c->index == 0 && c->tokens == 0) c->task->first_seconds = now;
    c->last_seconds = now;
}

bool server_choice_token(server_choice *c, const strata_sampled *sampled)
{
    server_task *task = c->task;
    const char *text;
    size_t length;
    if (atomic_load(&task->cancelled)) return false;
    keep_sampled(c, sampled->token);
    if (sampled->end) return true;
    observe(c);
    c->tokens++;
    server_count(&task->server->metrics.answer_tokens, 1);
    if (task->parameters.logprobs && !keep_logprob(c, sampled)) return false;
    if (strata_decoder_push(c->decoder, sampled->token, &text, &length, NULL) != STRATA_OK) return false;
    pthread_mutex_lock(&task->lock);
    bool go_on = server_text_push(&c->text, text, length, sampled->control);
    send_out(task, &c->out);
    pthread_mutex_unlock(&task->lock);
    return go_on;
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

static void end_stream(server_task *task, server_choice *c, bool last)
{
    task->api->write_choice_end(task, c, &c->out);
    if (last) task->api->write_end(task, &c->out);
    send_out(task, &c->out);
    if (last) http_stream_end(task->http);
}

static void end_whole(server_task *task)
{
    server_buf out = {0};
    task->api->write_whole(task, &out);
    server_reply(task->http, 200, "application/json", &out);
}

void server_choice_end(server_choice *c, server_finish finish)
{
    server_task *task = c->task;
    const char *text;
    size_t length;
    pthread_mutex_lock(&task->lock);
    c->finish = finish;
    c->ended = true;
    bool last = --task->remaining == 0, silent = task->failed || atomic_load(&task->cancelled);
    if (!silent) {
        if (finish != FINISH_STOP && strata_decoder_finish(c->decoder, &text, &length, NULL) == STRATA_OK && length)
            server_text_push(&c->text, text, length, false);
        server_text_finish(&c->text);
        if (c->finish != FINISH_STOP && c->text.stopped != SIZE_MAX) c->finish = FINISH_STOP;
        if (task->parameters.stream) end_stream(task, c, last);
        else if (last) end_whole(task);
    }
    pthread_mutex_unlock(&task->lock);
}
