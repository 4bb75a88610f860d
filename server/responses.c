/* OpenAI's Responses, without stored state. An answer is a reasoning item, if there is reasoning, and a message. */
#include <stdio.h>
#include <string.h>

#include "messages.h"
#include "openai.h"
#include "sse.h"

/* ---- from the request ------------------------------------------------------------------------------------------ */

static bool read_response(server_task *task, server_fail *fail)
{
    task->parameters.top_logprobs = -1;
    task->tools = server_tools_openai(server_field(task->body, "tools"), fail);
    if (!task->tools && fail->message[0]) return false;
    task->messages = server_messages_responses(server_field(task->body, "instructions"),
                                               server_field(task->body, "input"), fail);
    return task->messages && server_read_arguments(task, fail) && server_prompt_chat(task, fail);
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

static void write_text(const server_buf *text, server_buf *out)
{
    server_buf_json(out, text->data ? text->data : "", text->length);
}

static void write_part(const server_buf *text, server_buf *out)
{
    static const server_buf empty = {0};
    server_buf_text(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
    write_text(text ? text : &empty, out);
    server_buf_text(out, "}");
}

static void write_item_id(const server_task *task, server_kind kind, server_buf *out)
{
    server_buf_printf(out, "\"%s_%s\"", kind == KIND_REASONING ? "rs" : "msg", task->id + strlen("resp_"));
}

/* An item; `text` NULL: one that has just begun. */
static void write_item(const server_task *task, server_kind kind, const server_buf *text, server_buf *out)
{
    const char *status = text ? "completed" : "in_progress";
    server_buf_text(out, "{\"id\":");
    write_item_id(task, kind, out);
    if (kind == KIND_REASONING) {
        server_buf_printf(out, ",\"type\":\"reasoning\",\"status\":\"%s\",\"summary\":[],\"content\":[", status);
        if (text) {
            server_buf_text(out, "{\"type\":\"reasoning_text\",\"text\":");
            write_text(text, out);
            server_buf_text(out, "}");
        }
    } else {
        server_buf_printf(out, ",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[", status);
        if (text) write_part(text, out);
    }
    server_buf_text(out, "]}");
}

static void write_usage(const server_task *task, server_buf *out)
{
    size_t prompt = server_task_prompt_tokens(task), answer = server_task_answer_tokens(task);
    server_buf_printf(out,
                      "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu},\"output_tokens\":%zu,"
                      "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%zu}",
                      prompt, server_task_reused_tokens(task), answer, prompt + answer);
}

static const char *status_of(const server_task *task, bool ended)
{
    if (task->failed) return "failed";
    return !ended ? "in_progress" : task->choices[0].finish == FINISH_LENGTH ? "incomplete" : "completed";
}

static void write_output(const server_task *task, server_buf *out)
{
    const server_choice *c = &task->choices[0];
    if (c->parts[KIND_REASONING].length) {
        write_item(task, KIND_REASONING, &c->parts[KIND_REASONING], out);
        server_buf_text(out, ",");
    }
    write_item(task, KIND_CONTENT, &c->parts[KIND_CONTENT], out);
}

static void write_response(const server_task *task, bool ended, server_buf *out)
{
    const server_parameters *p = &task->parameters;
    server_buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":",
                      task->id, (long long)task->created, status_of(task, ended));
    server_buf_json(out, task->model, strlen(task->model));
    server_buf_text(out, ",\"error\":");
    if (task->failed) {
        server_buf_text(out, "{\"code\":\"server_error\",\"message\":");
        server_buf_json(out, task->fail.message, strlen(task->fail.message));
        server_buf_text(out, "}");
    } else {
        server_buf_text(out, "null");
    }
    bool cut = ended && !task->failed && task->choices[0].finish == FINISH_LENGTH;
    server_buf_printf(out, ",\"incomplete_details\":%s,\"instructions\":null,\"max_output_tokens\":",
                      cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    if (p->max_tokens > 0) server_buf_printf(out, "%lld", (long long)p->max_tokens);
    else server_buf_text(out, "null");
    server_buf_text(out, ",\"output\":[");
    if (ended) write_output(task, out);
    server_buf_printf(out,
                      "],\"parallel_tool_calls\":true,\"previous_response_id\":null,"
                      "\"reasoning\":{\"effort\":null,\"summary\":null},\"store\":false,\"temperature\":%.9g,"
                      "\"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"auto\",\"tools\":[],\"top_p\":%.9g,"
                      "\"truncation\":\"disabled\",\"metadata\":{},\"usage\":",
                      p->temperature, p->top_p);
    if (ended) write_usage(task, out);
    else server_buf_text(out, "null");
    server_buf_text(out, "}");
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

/* The beginning of an event; the caller adds members and ends it. */
static void begin_event(server_task *task, const char *type, server_buf *out)
{
    server_sse_begin(out, type);
    server_buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%lld", type, (long long)task->sequence++);
}

static void end_event(server_buf *out)
{
    server_buf_text(out, "}");
    server_sse_end(out);
}

static void response_event(server_task *task, const char *type, bool ended, server_buf *out)
{
    begin_event(task, type, out);
    server_buf_text(out, ",\"response\":");
    write_response(task, ended, out);
    end_event(out);
}

static void write_start(server_task *task, server_buf *out)
{
    response_event(task, "response.created", false, out);
    response_event(task, "response.in_progress", false, out);
}

static void item_event(server_task *task, const char *type, server_choice *c, const server_buf *text, server_buf *out)
{
    begin_event(task, type, out);
    server_buf_printf(out, ",\"output_index\":%d,\"item\":", c->block);
    write_item(task, (server_kind)c->block_kind, text, out);
    end_event(out);
}

/* An event of the open item's text. */
static void begin_text_event(server_task *task, const char *type, server_choice *c, server_buf *out)
{
    begin_event(task, type, out);
    server_buf_text(out, ",\"item_id\":");
    write_item_id(task, (server_kind)c->block_kind, out);
    server_buf_printf(out, ",\"output_index\":%d,\"content_index\":0", c->block);
}

static void part_event(server_task *task, const char *type, server_choice *c, const server_buf *text, server_buf *out)
{
    begin_text_event(task, type, c, out);
    server_buf_text(out, ",\"part\":");
    write_part(text, out);
    end_event(out);
}

static void end_item(server_task *task, server_choice *c, server_buf *out)
{
    if (!c->open) return;
    server_kind kind = (server_kind)c->block_kind;
    const server_buf *text = &c->parts[kind];
    bool reasoning = kind == KIND_REASONING;
    begin_text_event(task, reasoning ? "response.reasoning_text.done" : "response.output_text.done", c, out);
    server_buf_text(out, reasoning ? ",\"text\":" : ",\"logprobs\":[],\"text\":");
    write_text(text, out);
    end_event(out);
    if (!reasoning) part_event(task, "response.content_part.done", c, text, out);
    item_event(task, "response.output_item.done", c, text, out);
    c->open = false;
}

static void begin_item(server_task *task, server_choice *c, server_kind kind, server_buf *out)
{
    if (c->open && c->block_kind == (int)kind) return;
    end_item(task, c, out);
    c->open = true;
    c->block_kind = (int)kind;
    c->block++;
    item_event(task, "response.output_item.added", c, NULL, out);
    if (kind == KIND_CONTENT) part_event(task, "response.content_part.added", c, NULL, out);
}

static void write_piece(server_task *task, server_choice *c, const server_piece *piece, server_buf *out)
{
    bool reasoning = piece->kind == KIND_REASONING;
    begin_item(task, c, piece->kind, out);
    begin_text_event(task, reasoning ? "response.reasoning_text.delta" : "response.output_text.delta", c, out);
    server_buf_text(out, reasoning ? ",\"delta\":" : ",\"logprobs\":[],\"delta\":");
    server_buf_json(out, piece->text, piece->length);
    end_event(out);
}

static void write_choice_end(server_task *task, server_choice *c, server_buf *out)
{
    if (!c->parts[KIND_CONTENT].length) begin_item(task, c, KIND_CONTENT, out);
    end_item(task, c, out);
}

static void write_end(server_task *task, server_buf *out)
{
    bool cut = task->choices[0].finish == FINISH_LENGTH;
    response_event(task, cut ? "response.incomplete" : "response.completed", true, out);
}

static void write_whole(server_task *task, server_buf *out)
{
    write_response(task, true, out);
}

static void write_failure(server_task *task, const server_fail *fail, server_buf *out)
{
    (void)fail; /* it is the task's */
    response_event(task, "response.failed", false, out);
}

const server_api server_api_response = {
    .name = "responses", .fields = API_RESPONSE, .stream_type = "text/event-stream", .id_prefix = "resp_",
    .read = read_response, .write_start = write_start, .write_piece = write_piece,
    .write_choice_end = write_choice_end, .write_end = write_end, .write_whole = write_whole,
    .write_failure = write_failure, .write_error = openai_write_error, .write_keep_alive = openai_write_keep_alive,
};
