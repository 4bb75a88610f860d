/* Ollama's chat and generate: lines of JSON. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "messages.h"
#include "openai.h"

/* ---- from the request ------------------------------------------------------------------------------------------ */

static bool read_think(server_task *task, server_fail *fail)
{
    json_t *think = server_field(task->body, "think");
    if (!server_read_arguments(task, fail)) return false;
    if (json_is_boolean(think)) json_object_set(task->arguments, "enable_thinking", think);
    else if (json_is_string(think)) json_object_set(task->arguments, "reasoning_effort", think);
    return true;
}

static bool read_chat(server_task *task, server_fail *fail)
{
    task->tools = server_tools_openai(server_field(task->body, "tools"), fail);
    if (!task->tools && fail->message[0]) return false;
    task->messages = server_messages_openai(server_field(task->body, "messages"), "messages", fail);
    return task->messages && read_think(task, fail) && server_prompt_chat(task, fail);
}

static bool read_generate(server_task *task, server_fail *fail)
{
    const json_t *prompt = server_field(task->body, "prompt"), *system = server_field(task->body, "system");
    if (server_field(task->body, "template"))
        return server_refuse(fail, FAULT_INVALID, "template",
                             "template: this server does not take templates from requests; leave it out");
    if (!json_is_string(prompt))
        return server_refuse(fail, FAULT_INVALID, "prompt", "prompt: expected a string");
    if (json_is_true(server_field(task->body, "raw")) || !task->server->chat.chat_template)
        return server_prompt_text(task, json_string_value(prompt), json_string_length(prompt), fail);
    json_t *messages = json_array();
    if (json_is_string(system) && json_string_length(system))
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", prompt));
    task->messages = server_messages_openai(messages, "prompt", fail);
    json_decref(messages);
    return task->messages && read_think(task, fail) && server_prompt_chat(task, fail);
}

/* ---- to the client --------------------------------------------------------------------------------------------- */

static void write_error(const server_fail *fail, server_buf *out)
{
    server_buf_text(out, "{\"error\":");
    server_buf_json(out, fail->message, strlen(fail->message));
    server_buf_text(out, "}");
}

static void write_failure(server_task *task, const server_fail *fail, server_buf *out)
{
    (void)task;
    write_error(fail, out);
    server_buf_text(out, "\n");
}

static void write_head(const server_task *task, server_buf *out)
{
    struct timespec now;
    struct tm parts;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    server_buf_text(out, "{\"model\":");
    server_buf_json(out, task->model, strlen(task->model));
    server_buf_printf(out, ",\"created_at\":\"%s.%06ldZ\"", text, now.tv_nsec / 1000);
}

/* The texts of a line: a message or, for generate, members of the line itself. Absent reasoning is left out. */
static void write_texts(const server_task *task, const char *content, size_t content_length, const char *thinking,
                        size_t thinking_length, server_buf *out)
{
    bool chat = task->api == &server_api_ollama_chat;
    server_buf_text(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    server_buf_json(out, content, content_length);
    if (thinking_length) {
        server_buf_text(out, ",\"thinking\":");
        server_buf_json(out, thinking, thinking_length);
    }
    if (chat) server_buf_text(out, "}");
}

static void write_piece(server_task *task, server_choice *c, const server_piece *piece, server_buf *out)
{
    bool reasoning = piece->kind == KIND_REASONING;
    (void)c;
    write_head(task, out);
    write_texts(task, reasoning ? "" : piece->text, reasoning ? 0 : piece->length, piece->text,
                reasoning ? piece->length : 0, out);
    server_buf_text(out, ",\"done\":false}\n");
}

static long long nanoseconds(double seconds)
{
    return seconds > 0 ? (long long)(seconds * 1e9) : 0;
}

/* The last line: how it ended, and how long it took. */
static void write_tail(const server_task *task, server_buf *out)
{
    const server_choice *c = &task->choices[0];
    double now = server_now(), first = c->tokens > 0 ? task->first_seconds : now;
    server_buf_printf(out,
                      ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%lld,\"load_duration\":0,"
                      "\"prompt_eval_count\":%zu,\"prompt_eval_duration\":%lld,\"eval_count\":%zu,"
                      "\"eval_duration\":%lld}",
                      openai_finish(c->finish), nanoseconds(now - task->arrived_seconds),
                      server_task_prompt_tokens(task), nanoseconds(first - task->admitted_seconds), c->tokens,
                      nanoseconds(now - first));
}

static void write_choice_end(server_task *task, server_choice *c, server_buf *out)
{
    (void)c;
    write_head(task, out);
    write_texts(task, "", 0, "", 0, out);
    write_tail(task, out);
    server_buf_text(out, "\n");
}

static void write_end(server_task *task, server_buf *out)
{
    (void)task;
    (void)out;
}

static void write_whole(server_task *task, server_buf *out)
{
    const server_buf *parts = task->choices[0].parts;
    write_head(task, out);
    write_texts(task, parts[KIND_CONTENT].data ? parts[KIND_CONTENT].data : "", parts[KIND_CONTENT].length,
                parts[KIND_REASONING].data, parts[KIND_REASONING].length, out);
    write_tail(task, out);
}

/* A line has no comments: an empty piece keeps the connection alive. */
static void write_keep_alive(server_task *task, server_buf *out)
{
    write_head(task, out);
    write_texts(task, "", 0, "", 0, out);
    server_buf_text(out, ",\"done\":false}\n");
}

const server_api server_api_ollama_chat = {
    .name = "ollama chat", .fields = API_OLLAMA, .stream_type = "application/x-ndjson", .id_prefix = "ollama-",
    .stream = true, .read = read_chat, .write_piece = write_piece, .write_choice_end = write_choice_end,
    .write_end = write_end, .write_whole = write_whole, .write_failure = write_failure, .write_error = write_error,
    .write_keep_alive = write_keep_alive,
};

const server_api server_api_ollama_generate = {
    .name = "ollama generate", .fields = API_OLLAMA, .stream_type = "application/x-ndjson", .id_prefix = "ollama-",
    .stream = true, .read = read_generate, .write_piece = write_piece, .write_choice_end = write_choice_end,
    .write_end = write_end, .write_whole = write_whole, .write_failure = write_failure, .write_error = write_error,
    .write_keep_alive = write_keep_alive,
};
