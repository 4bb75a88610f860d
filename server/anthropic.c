/* Anthropic's messages and the count of their tokens. */
#include <string.h>

#include "core.h"
#include "messages.h"
#include "openai.h"
#include "sse.h"

/* ---- from the request ------------------------------------------------------------------------------------------ */

/* `thinking` switches the template's reasoning; templates call it enable_thinking. */
static bool read_thinking(server_task *task, server_fail *fail)
{
    const json_t *thinking = server_field(task->body, "thinking");
    const char *type = json_string_value(json_object_get(thinking, "type"));
    if (!thinking) return true;
    if (!type) return server_refuse(fail, FAULT_INVALID, "thinking", "thinking: expected an object with a type");
    if (strcmp(type, "disabled") == 0) json_object_set_new(task->arguments, "enable_thinking", json_false());
    if (strcmp(type, "enabled") == 0) json_object_set_new(task->arguments, "enable_thinking", json_true());
    return true;
}

static bool read_messages(server_task *task, server_fail *fail)
{
    if (!task->count_only && task->parameters.max_tokens < 0 && !server_field(task->body, "max_tokens"))
        return server_refuse(fail, FAULT_INVALID, "max_tokens", "max_tokens: expected a number, found nothing");
    task->tools = server_tools_anthropic(server_field(task->body, "tools"), fail);
    if (!task->tools && fail->message[0]) return false;
    task->messages = server_messages_anthropic(server_field(task->body, "system"),
                                               server_field(task->body, "messages"), fail);
    return task->messages && server_read_arguments(task, fail) && read_thinking(task, fail) &&
           server_prompt_chat(task, fail);
}

static bool read_count(server_task *task, server_fail *fail)
{
    task->count_only = true;
    return read_messages(task, fail);
}

/* ---- to the client --------------------------------------------------------------------------------------------- */

static void write_error(const server_fail *fail, server_buf *out)
{
    server_buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                      server_fault_rows[fail->fault].anthropic);
    server_buf_json(out, fail->message, strlen(fail->message));
    server_buf_text(out, "}}");
}

static void write_failure(server_task *task, const server_fail *fail, server_buf *out)
{
    (void)task;
    server_sse_begin(out, "error");
    write_error(fail, out);
    server_sse_end(out);
}

static void write_usage(const server_task *task, size_t answer, server_buf *out)
{
    size_t reused = server_task_reused_tokens(task);
    server_buf_printf(out,
                      "{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%zu,"
                      "\"output_tokens\":%zu}",
                      server_task_prompt_tokens(task) - reused, reused, answer);
}

static const char *stop_reason(server_finish finish)
{
    return finish == FINISH_LENGTH ? "max_tokens" : finish == FINISH_STOP ? "stop_sequence" : "end_turn";
}

static void write_stop(const server_task *task, const server_choice *c, server_buf *out)
{
    server_buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c->finish));
    if (c->finish == FINISH_STOP) {
        const char *text = task->parameters.stops[c->text.stopped];
        server_buf_json(out, text, strlen(text));
    } else {
        server_buf_text(out, "null");
    }
}

static void write_head(const server_task *task, server_buf *out)
{
    server_buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", task->id);
    server_buf_json(out, task->model, strlen(task->model));
}

static void write_prompted(server_task *task, server_buf *out)
{
    server_sse_begin(out, "message_start");
    server_buf_text(out, "{\"type\":\"message_start\",\"message\":");
    write_head(task, out);
    server_buf_text(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    write_usage(task, 0, out);
    server_buf_text(out, "}}");
    server_sse_end(out);
}

static void end_block(server_choice *c, server_buf *out)
{
    if (!c->open) return;
    if (c->block_kind == KIND_REASONING) {
        server_sse_begin(out, "content_block_delta");
        server_buf_printf(out, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"signature_delta\","
                          "\"signature\":\"strata\"}}", c->block);
        server_sse_end(out);
    }
    server_sse_begin(out, "content_block_stop");
    server_buf_printf(out, "{\"type\":\"content_block_stop\",\"index\":%d}", c->block);
    server_sse_end(out);
    c->open = false;
}

static void begin_block(server_choice *c, server_kind kind, server_buf *out)
{
    static const char *const blocks[KIND_COUNT] = {
        [KIND_CONTENT] = "{\"type\":\"text\",\"text\":\"\"}",
        [KIND_REASONING] = "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"};
    if (c->open && c->block_kind == (int)kind) return;
    end_block(c, out);
    c->open = true;
    c->block_kind = (int)kind;
    c->block++;
    server_sse_begin(out, "content_block_start");
    server_buf_printf(out, "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":%s}", c->block,
                      blocks[kind]);
    server_sse_end(out);
}

static void write_piece(server_task *task, server_choice *c, const server_piece *piece, server_buf *out)
{
    static const char *const deltas[KIND_COUNT] = {
        [KIND_CONTENT] = "\"type\":\"text_delta\",\"text\"",
        [KIND_REASONING] = "\"type\":\"thinking_delta\",\"thinking\""};
    (void)task;
    begin_block(c, piece->kind, out);
    server_sse_begin(out, "content_block_delta");
    server_buf_printf(out, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{%s:", c->block,
                      deltas[piece->kind]);
    server_buf_json(out, piece->text, piece->length);
    server_buf_text(out, "}}");
    server_sse_end(out);
}

static void write_choice_end(server_task *task, server_choice *c, server_buf *out)
{
    if (!c->parts[KIND_CONTENT].length) begin_block(c, KIND_CONTENT, out); /* every message has text */
    end_block(c, out);
    server_sse_begin(out, "message_delta");
    server_buf_text(out, "{\"type\":\"message_delta\",\"delta\":{");
    write_stop(task, c, out);
    server_buf_text(out, "},\"usage\":");
    write_usage(task, c->tokens, out);
    server_buf_text(out, "}");
    server_sse_end(out);
}

static void write_end(server_task *task, server_buf *out)
{
    (void)task;
    server_sse_begin(out, "message_stop");
    server_buf_text(out, "{\"type\":\"message_stop\"}");
    server_sse_end(out);
}

static void write_whole(server_task *task, server_buf *out)
{
    const server_choice *c = &task->choices[0];
    const server_buf *reasoning = &c->parts[KIND_REASONING], *text = &c->parts[KIND_CONTENT];
    write_head(task, out);
    server_buf_text(out, ",\"content\":[");
    if (reasoning->length) {
        server_buf_text(out, "{\"type\":\"thinking\",\"thinking\":");
        server_buf_json(out, reasoning->data, reasoning->length);
        server_buf_text(out, ",\"signature\":\"strata\"},");
    }
    server_buf_text(out, "{\"type\":\"text\",\"text\":");
    server_buf_json(out, text->data ? text->data : "", text->length);
    server_buf_text(out, "}],");
    write_stop(task, c, out);
    server_buf_text(out, ",\"usage\":");
    write_usage(task, c->tokens, out);
    server_buf_text(out, "}");
}

static void write_count(server_task *task, server_buf *out)
{
    server_buf_printf(out, "{\"input_tokens\":%zu}", server_task_prompt_tokens(task));
}

const server_api server_api_message = {
    .name = "messages", .fields = API_MESSAGE, .stream_type = "text/event-stream", .id_prefix = "msg_",
    .read = read_messages, .write_prompted = write_prompted, .write_piece = write_piece,
    .write_choice_end = write_choice_end, .write_end = write_end, .write_whole = write_whole,
    .write_failure = write_failure, .write_error = write_error, .write_keep_alive = openai_write_keep_alive,
};

const server_api server_api_count_tokens = {
    .name = "count_tokens", .fields = API_MESSAGE, .stream_type = "text/event-stream", .id_prefix = "msg_",
    .read = read_count, .write_whole = write_count, .write_failure = write_failure, .write_error = write_error,
    .write_keep_alive = openai_write_keep_alive,
};
