/* OpenAI's chat completions, and what its APIs share. */
#include "openai.h"

#include <math.h>
#include <string.h>

#include "messages.h"
#include "sse.h"

/* ---- shared ---------------------------------------------------------------------------------------------------- */

void openai_write_error(const server_fail *fail, server_buf *out)
{
    const server_fault_row *row = &server_fault_rows[fail->fault];
    server_buf_text(out, "{\"error\":{\"message\":");
    server_buf_json(out, fail->message, strlen(fail->message));
    server_buf_printf(out, ",\"type\":\"%s\",\"param\":", row->type);
    if (fail->field[0]) server_buf_json(out, fail->field, strlen(fail->field));
    else server_buf_text(out, "null");
    if (row->code) server_buf_printf(out, ",\"code\":\"%s\"}}", row->code);
    else server_buf_text(out, ",\"code\":null}}");
}

void openai_write_failure(server_task *task, const server_fail *fail, server_buf *out)
{
    (void)task;
    server_sse_begin(out, NULL);
    openai_write_error(fail, out);
    server_sse_end(out);
    server_sse_done(out);
}

void openai_write_keep_alive(server_task *task, server_buf *out)
{
    (void)task;
    server_sse_comment(out, "keep-alive");
}

void openai_write_number(double logprob, server_buf *out)
{
    server_buf_printf(out, "%.9g", isfinite(logprob) ? logprob : -9999.0);
}

void openai_write_token(server_task *task, strata_token token, server_buf *out)
{
    char *text = NULL;
    size_t length = 0;
    if (strata_detokenize(task->server->engine.model, &token, 1, &text, &length, NULL) != STRATA_OK) length = 0;
    server_buf_json(out, text ? text : "", length);
    strata_free(text);
}

const char *openai_finish(server_finish finish)
{
    return finish == FINISH_LENGTH ? "length" : "stop";
}

bool server_read_arguments(server_task *task, server_fail *fail)
{
    json_t *given = server_field(task->body, "chat_template_kwargs"), *effort;
    task->arguments = json_object();
    if (given && !json_is_object(given))
        return server_refuse(fail, FAULT_INVALID, "chat_template_kwargs", "chat_template_kwargs: expected an object");
    effort = server_field(task->body, "reasoning_effort");
    if (!effort) effort = server_field(task->body, "reasoning.effort");
    bool whole = task->arguments && (!json_is_string(effort) ||
                                     json_object_set(task->arguments, "reasoning_effort", effort) == 0);
    if (json_is_string(effort) && strcmp(json_string_value(effort), "none") == 0)
        whole = whole && json_object_set_new(task->arguments, "enable_thinking", json_false()) == 0;
    whole = whole && (!given || json_object_update(task->arguments, given) == 0);
    return whole || server_refuse(fail, FAULT_BUSY, NULL, "no memory for the request");
}

/* ---- from the request ------------------------------------------------------------------------------------------ */

static bool read_chat(server_task *task, server_fail *fail)
{
    if (task->parameters.top_logprobs >= 0 && !task->parameters.logprobs)
        return server_refuse(fail, FAULT_INVALID, "top_logprobs", "top_logprobs: expected logprobs to be true, too");
    task->tools = server_tools_openai(server_field(task->body, "tools"), fail);
    if (!task->tools && fail->message[0]) return false;
    task->messages = server_messages_openai(server_field(task->body, "messages"), "messages", fail);
    return task->messages && server_read_arguments(task, fail) && server_prompt_chat(task, fail);
}

/* ---- to the client --------------------------------------------------------------------------------------------- */

static void write_likely(server_task *task, const server_likely *likely, server_buf *out)
{
    char *text = NULL;
    size_t length = 0;
    if (strata_detokenize(task->server->engine.model, &likely->token, 1, &text, &length, NULL) != STRATA_OK) length = 0;
    server_buf_text(out, "{\"token\":");
    server_buf_json(out, text ? text : "", length);
    server_buf_text(out, ",\"logprob\":");
    openai_write_number(likely->logprob, out);
    server_buf_text(out, ",\"bytes\":[");
    for (size_t i = 0; text && i < length; i++) server_buf_printf(out, "%s%u", i ? "," : "", (unsigned char)text[i]);
    server_buf_text(out, "]");
    strata_free(text);
}

static void write_logprobs(server_task *task, const server_logprob *logprobs, size_t count, server_buf *out)
{
    if (!task->parameters.logprobs) {
        server_buf_text(out, "null");
        return;
    }
    server_buf_text(out, "{\"content\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) server_buf_text(out, ",");
        write_likely(task, &logprobs[i].chosen, out);
        server_buf_text(out, ",\"top_logprobs\":[");
        for (size_t j = 0; j < logprobs[i].top_count; j++) {
            if (j) server_buf_text(out, ",");
            write_likely(task, &logprobs[i].top[j], out);
            server_buf_text(out, "}");
        }
        server_buf_text(out, "]}");
    }
    server_buf_text(out, "],\"refusal\":null}");
}

static void write_usage(const server_task *task, server_buf *out)
{
    size_t prompt = server_task_prompt_tokens(task), answer = server_task_answer_tokens(task);
    server_buf_printf(out,
                      "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                      "\"prompt_tokens_details\":{\"cached_tokens\":%zu}}",
                      prompt, answer, prompt + answer, server_task_reused_tokens(task));
}

/* The beginning of every object of the answer. */
static void write_head(const server_task *task, const char *object, server_buf *out)
{
    server_buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", task->id, object,
                      (long long)task->created);
    server_buf_json(out, task->model, strlen(task->model));
}

static void begin_chunk(const server_task *task, size_t index, server_buf *out)
{
    server_sse_begin(out, NULL);
    write_head(task, "chat.completion.chunk", out);
    server_buf_printf(out, ",\"choices\":[{\"index\":%zu,\"delta\":", index);
}

static void end_chunk(const server_task *task, const char *finish, server_buf *out)
{
    if (finish) server_buf_printf(out, ",\"finish_reason\":\"%s\"}]", finish);
    else server_buf_text(out, ",\"finish_reason\":null}]");
    if (task->parameters.include_usage) server_buf_text(out, ",\"usage\":null");
    server_buf_text(out, "}");
    server_sse_end(out);
}

static void write_start(server_task *task, server_buf *out)
{
    for (size_t i = 0; i < task->choice_count; i++) {
        begin_chunk(task, i, out);
        server_buf_text(out, "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
        end_chunk(task, NULL, out);
    }
}

static void write_piece(server_task *task, server_choice *c, const server_piece *piece, server_buf *out)
{
    begin_chunk(task, c->index, out);
    server_buf_text(out, piece->kind == KIND_REASONING ? "{\"reasoning_content\":" : "{\"content\":");
    server_buf_json(out, piece->text, piece->length);
    server_buf_text(out, "},\"logprobs\":");
    write_logprobs(task, piece->logprobs, piece->logprob_count, out);
    end_chunk(task, NULL, out);
}

static void write_choice_end(server_task *task, server_choice *c, server_buf *out)
{
    begin_chunk(task, c->index, out);
    server_buf_text(out, "{},\"logprobs\":");
    if (c->logprob_count > c->logprobs_sent)
        write_logprobs(task, c->logprobs + c->logprobs_sent, c->logprob_count - c->logprobs_sent, out);
    else server_buf_text(out, "null");
    end_chunk(task, openai_finish(c->finish), out);
}

/* The end of a stream, with the usage if the client asks for it. */
static void write_last(const server_task *task, const char *object, server_buf *out)
{
    if (task->parameters.include_usage) {
        server_sse_begin(out, NULL);
        write_head(task, object, out);
        server_buf_text(out, ",\"choices\":[],\"usage\":");
        write_usage(task, out);
        server_buf_text(out, "}");
        server_sse_end(out);
    }
    server_sse_done(out);
}

static void write_end(server_task *task, server_buf *out)
{
    write_last(task, "chat.completion.chunk", out);
}

static void write_text(const server_buf *text, server_buf *out)
{
    server_buf_json(out, text->data ? text->data : "", text->length);
}

static void write_whole(server_task *task, server_buf *out)
{
    write_head(task, "chat.completion", out);
    server_buf_text(out, ",\"choices\":[");
    for (size_t i = 0; i < task->choice_count; i++) {
        const server_choice *c = &task->choices[i];
        server_buf_printf(out, "%s{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
        write_text(&c->parts[KIND_CONTENT], out);
        if (c->parts[KIND_REASONING].length) {
            server_buf_text(out, ",\"reasoning_content\":");
            write_text(&c->parts[KIND_REASONING], out);
        }
        server_buf_text(out, ",\"refusal\":null},\"logprobs\":");
        write_logprobs(task, c->logprobs, c->logprob_count, out);
        server_buf_printf(out, ",\"finish_reason\":\"%s\"}", openai_finish(c->finish));
    }
    server_buf_text(out, "],\"usage\":");
    write_usage(task, out);
    server_buf_text(out, "}");
}

const server_api server_api_chat = {
    .name = "chat", .fields = API_CHAT, .stream_type = "text/event-stream", .id_prefix = "chatcmpl-",
    .read = read_chat, .write_start = write_start, .write_piece = write_piece, .write_choice_end = write_choice_end,
    .write_end = write_end, .write_whole = write_whole, .write_failure = openai_write_failure,
    .write_error = openai_write_error, .write_keep_alive = openai_write_keep_alive,
};

/* ---- completions: text that continues a prompt ----------------------------------------------------------------- */

static bool is_ids(const json_t *value)
{
    return json_is_array(value) && json_is_integer(json_array_get(value, 0));
}

static bool add_prompt(server_task *task, const json_t *prompt, server_fail *fail)
{
    if (json_is_string(prompt))
        return server_prompt_text(task, json_string_value(prompt), json_string_length(prompt), fail);
    if (json_is_array(prompt) && (is_ids(prompt) || json_array_size(prompt) == 0))
        return server_prompt_ids(task, prompt, fail);
    return server_refuse(fail, FAULT_INVALID, "prompt", "prompt: expected a string, token ids, or an array of them");
}

static bool read_completion(server_task *task, server_fail *fail)
{
    server_parameters *p = &task->parameters;
    const json_t *prompt = server_field(task->body, "prompt"), *best = server_field(task->body, "best_of");
    p->logprobs = p->top_logprobs >= 0;
    if (best && json_integer_value(best) != p->n)
        return server_refuse(fail, FAULT_INVALID, "best_of",
                             "best_of: expected the value of n: this server does not rank");
    if (p->echo && p->logprobs)
        return server_refuse(fail, FAULT_INVALID, "echo", "echo: this server has no logprobs of prompts");
    bool several = json_is_array(prompt) && json_array_size(prompt) > 0 && !is_ids(prompt);
    if (!several) return add_prompt(task, prompt, fail);
    if (json_array_size(prompt) > LIMIT_CHOICES)
        return server_refuse(fail, FAULT_INVALID, "prompt", "prompt: expected at most %d prompts", LIMIT_CHOICES);
    size_t i;
    json_t *one;
    json_array_foreach(prompt, i, one)
        if (!add_prompt(task, one, fail)) return false;
    return true;
}

static void write_legacy_logprobs(server_task *task, const server_logprob *logprobs, size_t count, server_buf *out)
{
    if (!task->parameters.logprobs) {
        server_buf_text(out, "null");
        return;
    }
    server_buf_text(out, "{\"tokens\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) server_buf_text(out, ",");
        openai_write_token(task, logprobs[i].chosen.token, out);
    }
    server_buf_text(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) server_buf_text(out, ",");
        openai_write_number(logprobs[i].chosen.logprob, out);
    }
    server_buf_text(out, "],\"top_logprobs\":[");
    for (size_t i = 0; i < count; i++) {
        server_buf_text(out, i ? ",{" : "{");
        for (size_t j = 0; j < logprobs[i].top_count; j++) {
            if (j) server_buf_text(out, ",");
            openai_write_token(task, logprobs[i].top[j].token, out);
            server_buf_text(out, ":");
            openai_write_number(logprobs[i].top[j].logprob, out);
        }
        server_buf_text(out, "}");
    }
    server_buf_text(out, "],\"text_offset\":[]}");
}

static void write_completion_choice(server_task *task, size_t index, const char *text, size_t length,
                                    const server_logprob *logprobs, size_t logprob_count, const char *finish,
                                    server_buf *out)
{
    server_buf_printf(out, "{\"index\":%zu,\"text\":", index);
    server_buf_json(out, text, length);
    server_buf_text(out, ",\"logprobs\":");
    write_legacy_logprobs(task, logprobs, logprob_count, out);
    if (finish) server_buf_printf(out, ",\"finish_reason\":\"%s\"}", finish);
    else server_buf_text(out, ",\"finish_reason\":null}");
}

static void write_completion_chunk(server_task *task, size_t index, const char *text, size_t length,
                                   const server_logprob *logprobs, size_t logprob_count, const char *finish,
                                   server_buf *out)
{
    server_sse_begin(out, NULL);
    write_head(task, "text_completion", out);
    server_buf_text(out, ",\"choices\":[");
    write_completion_choice(task, index, text, length, logprobs, logprob_count, finish, out);
    server_buf_text(out, task->parameters.include_usage ? "],\"usage\":null}" : "]}");
    server_sse_end(out);
}

/* The prompt's text, for echo (strata_free). */
static char *echo_text(server_task *task, const server_prompt *prompt, size_t *length)
{
    char *text = NULL;
    *length = 0;
    if (!task->parameters.echo) return NULL;
    if (strata_detokenize(task->server->engine.model, prompt->tokens, prompt->count, &text, length, NULL) != STRATA_OK)
        return NULL;
    return text;
}

static void write_completion_start(server_task *task, server_buf *out)
{
    for (size_t i = 0; task->parameters.echo && i < task->choice_count; i++) {
        size_t length;
        char *text = echo_text(task, task->choices[i].prompt, &length);
        if (text) write_completion_chunk(task, i, text, length, NULL, 0, NULL, out);
        strata_free(text);
    }
}

static void write_completion_piece(server_task *task, server_choice *c, const server_piece *piece, server_buf *out)
{
    write_completion_chunk(task, c->index, piece->text, piece->length, piece->logprobs, piece->logprob_count, NULL,
                           out);
}

static void write_completion_end(server_task *task, server_choice *c, server_buf *out)
{
    write_completion_chunk(task, c->index, "", 0, c->logprobs ? c->logprobs + c->logprobs_sent : NULL,
                           c->logprob_count - c->logprobs_sent, openai_finish(c->finish), out);
}

static void write_completions_end(server_task *task, server_buf *out)
{
    write_last(task, "text_completion", out);
}

static void write_completion_whole(server_task *task, server_buf *out)
{
    write_head(task, "text_completion", out);
    server_buf_text(out, ",\"choices\":[");
    for (size_t i = 0; i < task->choice_count; i++) {
        const server_choice *c = &task->choices[i];
        size_t length;
        char *echo = echo_text(task, c->prompt, &length);
        server_buf text = {0};
        server_buf_add(&text, echo, length);
        server_buf_add(&text, c->parts[KIND_CONTENT].data, c->parts[KIND_CONTENT].length);
        if (i) server_buf_text(out, ",");
        if (text.failed) out->failed = true;
        write_completion_choice(task, i, text.data ? text.data : "", text.length, c->logprobs, c->logprob_count,
                                openai_finish(c->finish), out);
        server_buf_free(&text);
        strata_free(echo);
    }
    server_buf_text(out, "],\"usage\":");
    write_usage(task, out);
    server_buf_text(out, "}");
}

const server_api server_api_completion = {
    .name = "completion", .fields = API_COMPLETION, .stream_type = "text/event-stream", .id_prefix = "cmpl-",
    .read = read_completion, .write_start = write_completion_start, .write_piece = write_completion_piece,
    .write_choice_end = write_completion_end, .write_end = write_completions_end,
    .write_whole = write_completion_whole, .write_failure = openai_write_failure,
    .write_error = openai_write_error, .write_keep_alive = openai_write_keep_alive,
};
