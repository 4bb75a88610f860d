#include "messages.h"

#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "limits.h"

static const char *word(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

/* ---- content --------------------------------------------------------------------------------------------------- */

typedef struct place {
    char text[96]; /* messages[3].content */
} place;

static place place_of(const char *path, size_t index, const char *field)
{
    place p;
    snprintf(p.text, sizeof p.text, "%.40s[%zu]%s%.30s", path, index, *field ? "." : "", field);
    return p;
}

json_t *server_text_without_nonces(const char *text, size_t length)
{
    static const char *const nonces[] = {"x-anthropic-billing-header:"};
    server_buf out = {0};
    size_t at = 0;
    while (at < length) {
        const char *end = memchr(text + at, '\n', length - at);
        size_t line = end ? (size_t)(end - text) + 1 - at : length - at;
        bool nonce = false;
        for (size_t i = 0; i < sizeof nonces / sizeof *nonces; i++)
            nonce |= line >= strlen(nonces[i]) && memcmp(text + at, nonces[i], strlen(nonces[i])) == 0;
        if (!nonce) server_buf_add(&out, text + at, line);
        at += line;
    }
    json_t *value = out.failed ? NULL : json_stringn(out.data ? out.data : "", out.length);
    server_buf_free(&out);
    return value;
}

static bool is_text_part(const char *type)
{
    static const char *const types[] = {"text", "input_text", "output_text", "refusal", "summary_text"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

static void add_text(server_buf *out, const char *text, size_t length)
{
    if (out->length && length) server_buf_text(out, "\n");
    server_buf_add(out, text, length);
}

/* A part of a content array that is text. */
static bool add_part(const json_t *part, place where, server_buf *out, server_fail *fail)
{
    const char *type = word(part, "type");
    const json_t *text = json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
    if (json_is_string(part)) text = part;
    else if (!is_text_part(type))
        return server_refuse(fail, FAULT_INVALID, where.text,
                             "%s: expected parts of text, found \"%.40s\": this server reads text only", where.text,
                             type);
    if (!json_is_string(text))
        return server_refuse(fail, FAULT_INVALID, where.text, "%s: expected a part with a string as text", where.text);
    add_text(out, json_string_value(text), json_string_length(text));
    return true;
}

/* A string, null, or an array of text parts. */
static bool read_content(const json_t *content, place where, server_buf *out, server_fail *fail)
{
    size_t i;
    json_t *part;
    if (!content || json_is_null(content)) return true;
    if (json_is_string(content)) {
        server_buf_add(out, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return server_refuse(fail, FAULT_INVALID, where.text, "%s: expected a string or an array of parts", where.text);
    json_array_foreach(content, i, part)
        if (!add_part(part, where, out, fail)) return false;
    return true;
}

/* A message of the text in `buf`, which is freed. Unused lists may be NULL. */
static bool append_message(json_t *out, const char *role, server_buf *text, server_buf *reasoning, json_t *tool_calls,
                           const char *tool_call_id, server_fail *fail)
{
    bool system = strcmp(role, "system") == 0;
    const char *data = text->data && text->length ? text->data : "";
    json_t *content = system ? server_text_without_nonces(data, text->length) : json_stringn(data, text->length);
    json_t *message = content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    bool whole = message && !text->failed;
    if (whole && reasoning && reasoning->length)
        whole = json_object_set_new(message, "reasoning_content",
                                    json_stringn(reasoning->data, reasoning->length)) == 0;
    if (whole && json_array_size(tool_calls) > 0) whole = json_object_set(message, "tool_calls", tool_calls) == 0;
    if (whole && tool_call_id && *tool_call_id)
        whole = json_object_set_new(message, "tool_call_id", json_string(tool_call_id)) == 0;
    server_buf_free(text);
    if (reasoning) server_buf_free(reasoning);
    if (whole && json_array_append_new(out, message) == 0) return true;
    json_decref(message);
    return server_refuse(fail, FAULT_BUSY, NULL, "no memory for the messages");
}

static bool check_list(const json_t *messages, const char *path, server_fail *fail)
{
    size_t count = json_array_size(messages);
    if (json_is_array(messages) && count > 0 && count <= LIMIT_MESSAGES) return true;
    return server_refuse(fail, FAULT_INVALID, path, "%s: expected an array of 1 to %d messages, found %s", path,
                         LIMIT_MESSAGES, json_is_array(messages) ? count ? "more" : "none" : "no array");
}

/* ---- OpenAI ---------------------------------------------------------------------------------------------------- */

static const char *openai_role(const char *role)
{
    static const char *const roles[][2] = {{"system", "system"}, {"developer", "system"}, {"user", "user"},
                                           {"assistant", "assistant"}, {"tool", "tool"}, {"function", "tool"}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(roles[i][0], role) == 0) return roles[i][1];
    return NULL;
}

/* A tool call for templates, which take the arguments as an object (decref). */
static json_t *tool_call(const char *id, const char *name, json_t *arguments)
{
    json_t *parsed = NULL;
    if (json_is_string(arguments))
        parsed = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_DECODE_ANY, NULL);
    json_t *taken = json_is_object(parsed) ? json_incref(parsed) : arguments ? json_incref(arguments) : json_object();
    json_decref(parsed);
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name, "arguments",
                     taken);
}

static json_t *openai_calls(const json_t *calls)
{
    json_t *out = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        json_array_append_new(out, tool_call(word(call, "id"), word(function, "name"),
                                             json_object_get(function, "arguments")));
    }
    return out;
}

static bool openai_message(const json_t *message, const char *path, size_t index, json_t *out, server_fail *fail)
{
    place role_at = place_of(path, index, "role"), content_at = place_of(path, index, "content");
    const char *role = openai_role(word(message, "role"));
    server_buf text = {0}, reasoning = {0};
    if (!role)
        return server_refuse(fail, FAULT_INVALID, role_at.text,
                             "%s: expected system, developer, user, assistant or tool, found \"%.40s\"", role_at.text,
                             word(message, "role"));
    if (json_array_size(json_object_get(message, "images")) > 0)
        return server_refuse(fail, FAULT_INVALID, place_of(path, index, "images").text,
                             "%s: this server reads text only", place_of(path, index, "images").text);
    if (!read_content(json_object_get(message, "content"), content_at, &text, fail)) {
        server_buf_free(&text);
        return false;
    }
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !reasoning.length; i++)
        server_buf_text(&reasoning, word(message, names[i]));
    json_t *calls = openai_calls(json_object_get(message, "tool_calls"));
    bool good = append_message(out, role, &text, &reasoning, calls, word(message, "tool_call_id"), fail);
    json_t *made = json_array_get(out, json_array_size(out) - 1);
    if (good && *word(message, "name")) json_object_set_new(made, "name", json_string(word(message, "name")));
    json_decref(calls);
    return good;
}

json_t *server_messages_openai(const json_t *messages, const char *path, server_fail *fail)
{
    json_t *out = json_array();
    bool good = check_list(messages, path, fail);
    for (size_t i = 0; good && i < json_array_size(messages); i++)
        good = openai_message(json_array_get(messages, i), path, i, out, fail);
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* ---- Anthropic ------------------------------------------------------------------------------------------------- */

/* The parts of a message that become one of the template's. */
typedef struct blocks {
    server_buf text, reasoning;
    json_t *calls;
} blocks;

typedef bool read_block(const json_t *block, place where, blocks *b, json_t *out, server_fail *fail);

static bool block_text(const json_t *block, place where, blocks *b, json_t *out, server_fail *fail)
{
    (void)out;
    return add_part(block, where, &b->text, fail);
}

static bool block_thinking(const json_t *block, place where, blocks *b, json_t *out, server_fail *fail)
{
    const char *text = word(block, "thinking");
    (void)where;
    (void)out;
    (void)fail;
    add_text(&b->reasoning, text, strlen(text));
    return true;
}

static bool block_ignored(const json_t *block, place where, blocks *b, json_t *out, server_fail *fail)
{
    (void)block;
    (void)where;
    (void)b;
    (void)out;
    (void)fail;
    return true;
}

static bool block_tool_use(const json_t *block, place where, blocks *b, json_t *out, server_fail *fail)
{
    (void)where;
    (void)out;
    (void)fail;
    json_array_append_new(b->calls, tool_call(word(block, "id"), word(block, "name"), json_object_get(block, "input")));
    return true;
}

/* A tool's result is a message of its own. */
static bool block_tool_result(const json_t *block, place where, blocks *b, json_t *out, server_fail *fail)
{
    server_buf text = {0};
    (void)b;
    if (!read_content(json_object_get(block, "content"), where, &text, fail)) {
        server_buf_free(&text);
        return false;
    }
    return append_message(out, "tool", &text, NULL, NULL, word(block, "tool_use_id"), fail);
}

static const struct { const char *type; read_block *read; } block_rows[] = {
    {"text", block_text},          {"thinking", block_thinking},       {"redacted_thinking", block_ignored},
    {"tool_use", block_tool_use},  {"tool_result", block_tool_result},
};

static bool read_one_block(const json_t *block, place where, blocks *b, json_t *out, server_fail *fail)
{
    const char *type = word(block, "type");
    for (size_t i = 0; i < sizeof block_rows / sizeof *block_rows; i++)
        if (strcmp(type, block_rows[i].type) == 0) return block_rows[i].read(block, where, b, out, fail);
    return server_refuse(fail, FAULT_INVALID, where.text, "%s: expected blocks of text, thinking, tool_use or "
                         "tool_result, found \"%.40s\": this server reads text only", where.text, type);
}

static bool anthropic_message(const json_t *message, size_t index, json_t *out, server_fail *fail)
{
    place role_at = place_of("messages", index, "role"), where = place_of("messages", index, "content");
    const char *role = word(message, "role");
    const json_t *content = json_object_get(message, "content");
    blocks b = {.calls = json_array()};
    bool good = true;
    if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0)
        good = server_refuse(fail, FAULT_INVALID, role_at.text,
                             "%s: expected user, assistant or system, found \"%.40s\"", role_at.text, role);
    for (size_t i = 0; good && i < json_array_size(content); i++)
        good = read_one_block(json_array_get(content, i), where, &b, out, fail);
    if (good && !json_is_array(content)) good = read_content(content, where, &b.text, fail);
    bool empty = json_is_array(content) && json_array_size(content) > 0 && !b.text.length && !b.reasoning.length &&
                 json_array_size(b.calls) == 0; /* of tool results alone */
    if (good && !empty) good = append_message(out, role, &b.text, &b.reasoning, b.calls, NULL, fail);
    server_buf_free(&b.text);
    server_buf_free(&b.reasoning);
    json_decref(b.calls);
    return good;
}

json_t *server_messages_anthropic(const json_t *system, const json_t *messages, server_fail *fail)
{
    json_t *out = json_array();
    server_buf text = {0};
    place where = {"system"};
    bool good = check_list(messages, "messages", fail) && read_content(system, where, &text, fail);
    if (good && text.length) good = append_message(out, "system", &text, NULL, NULL, NULL, fail);
    server_buf_free(&text);
    for (size_t i = 0; good && i < json_array_size(messages); i++)
        good = anthropic_message(json_array_get(messages, i), i, out, fail);
    /* A system prompt of a nonce alone is none. */
    if (good && json_array_size(out) > 1 && !json_string_length(json_object_get(json_array_get(out, 0), "content")) &&
        strcmp(word(json_array_get(out, 0), "role"), "system") == 0)
        json_array_remove(out, 0);
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* ---- Responses ------------------------------------------------------------------------------------------------- */

/* Reasoning and calls stand before the message that they belong to. */
static bool flush_item(blocks *b, json_t *out, server_fail *fail)
{
    bool any = b->text.length || b->reasoning.length || json_array_size(b->calls) > 0;
    bool good = !any || append_message(out, "assistant", &b->text, &b->reasoning, b->calls, NULL, fail);
    json_decref(b->calls);
    b->calls = json_array();
    return good;
}

static bool responses_item(const json_t *item, size_t index, blocks *b, json_t *out, server_fail *fail)
{
    const char *type = word(item, "type"), *role = openai_role(word(item, "role"));
    place where = place_of("input", index, "content");
    server_buf text = {0};
    if (strcmp(type, "function_call") == 0) {
        json_array_append_new(b->calls, tool_call(word(item, "call_id"), word(item, "name"),
                                                  json_object_get(item, "arguments")));
        return true;
    }
    if (strcmp(type, "reasoning") == 0) {
        const json_t *content = json_object_get(item, "content");
        if (!json_array_size(content)) content = json_object_get(item, "summary");
        size_t i;
        json_t *part;
        json_array_foreach(content, i, part) {
            const json_t *said = json_object_get(part, "text");
            if (json_is_string(said)) add_text(&b->reasoning, json_string_value(said), json_string_length(said));
        }
        return true;
    }
    if (strcmp(type, "function_call_output") == 0)
        return flush_item(b, out, fail) && read_content(json_object_get(item, "output"), where, &text, fail) &&
               append_message(out, "tool", &text, NULL, NULL, word(item, "call_id"), fail);
    if ((*type && strcmp(type, "message") != 0) || !role)
        return server_refuse(fail, FAULT_INVALID, where.text,
                             "input[%zu]: expected a message, reasoning, function_call or function_call_output, found "
                             "\"%.40s\"", index, *type ? type : word(item, "role"));
    if (strcmp(role, "assistant") == 0) {
        if (b->text.length && !flush_item(b, out, fail)) return false;
        return read_content(json_object_get(item, "content"), where, &b->text, fail);
    }
    if (!flush_item(b, out, fail)) return false;
    if (!read_content(json_object_get(item, "content"), where, &text, fail)) {
        server_buf_free(&text);
        return false;
    }
    return append_message(out, role, &text, NULL, NULL, NULL, fail);
}

json_t *server_messages_responses(const json_t *instructions, const json_t *input, server_fail *fail)
{
    json_t *out = json_array();
    server_buf text = {0};
    blocks b = {.calls = json_array()};
    place where = {"instructions"};
    bool good = read_content(instructions, where, &text, fail);
    if (good && text.length) good = append_message(out, "system", &text, NULL, NULL, NULL, fail);
    server_buf_free(&text);
    if (good && json_is_string(input)) {
        server_buf_add(&text, json_string_value(input), json_string_length(input));
        good = append_message(out, "user", &text, NULL, NULL, NULL, fail);
    } else if (good) {
        good = check_list(input, "input", fail);
        for (size_t i = 0; good && i < json_array_size(input); i++)
            good = responses_item(json_array_get(input, i), i, &b, out, fail);
        good = good && flush_item(&b, out, fail);
    }
    server_buf_free(&b.text);
    server_buf_free(&b.reasoning);
    json_decref(b.calls);
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* ---- tools ----------------------------------------------------------------------------------------------------- */

static bool check_tools(const json_t *tools, server_fail *fail)
{
    fail->message[0] = '\0';
    if (!tools || json_is_null(tools)) return false;
    if (!json_is_array(tools)) return server_refuse(fail, FAULT_INVALID, "tools", "tools: expected an array");
    return json_array_size(tools) > 0;
}

/* A function from its name, description and schema (decref); NULL: it has no name. */
static json_t *function_tool(const json_t *from, const char *schema)
{
    json_t *parameters = json_object_get(from, schema), *function;
    if (!*word(from, "name")) return NULL;
    function = json_pack("{s:s, s:s, s:o}", "name", word(from, "name"), "description", word(from, "description"),
                         "parameters", parameters ? json_incref(parameters) : json_object());
    return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

static json_t *give_tools(json_t *out)
{
    if (json_array_size(out) > 0) return out;
    json_decref(out);
    return NULL;
}

json_t *server_tools_openai(const json_t *tools, server_fail *fail)
{
    size_t i;
    json_t *tool;
    if (!check_tools(tools, fail)) return NULL;
    json_t *out = json_array();
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        if (json_is_object(function)) json_array_append(out, tool);
        else if (strcmp(word(tool, "type"), "function") == 0)
            json_array_append_new(out, function_tool(tool, "parameters"));
    }
    return give_tools(out);
}

json_t *server_tools_anthropic(const json_t *tools, server_fail *fail)
{
    size_t i;
    json_t *tool;
    if (!check_tools(tools, fail)) return NULL;
    json_t *out = json_array();
    json_array_foreach(tools, i, tool)
        if (json_object_get(tool, "input_schema")) json_array_append_new(out, function_tool(tool, "input_schema"));
    return give_tools(out);
}
