/* Fuzzes streams: text in pieces of any size becomes the events of every API. Each event is one line of JSON, and the
 * texts in the events are the texts of the answer. */
#include "server_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Adds the strings of an event that are pieces of the answer. */
static void add_texts(const json_t *value, server_buf *texts)
{
    static const char *const names[] = {"content", "reasoning_content", "text", "thinking", "response", "delta"};
    const json_t *choice = json_array_get(json_object_get(value, "choices"), 0), *delta = json_object_get(value, "delta");
    const json_t *places[] = {json_object_get(choice, "delta"), choice, json_object_get(value, "message"),
                              json_is_object(delta) ? delta : NULL, value};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (size_t j = 0; j < sizeof names / sizeof *names; j++) {
            const json_t *text = json_object_get(places[i], names[j]);
            bool whole = i == 4 && strcmp(names[j], "text") == 0; /* the end of an item repeats its text */
            if (json_is_string(text) && !whole)
                server_buf_add(texts, json_string_value(text), json_string_length(text));
        }
}

static void check_line(const char *line, size_t length, server_buf *texts)
{
    static const char done[] = "[DONE]";
    if (length == 0 || line[0] == ':' || (length > 7 && memcmp(line, "event: ", 7) == 0)) return;
    if (length > 6 && memcmp(line, "data: ", 6) == 0) {
        line += 6;
        length -= 6;
    }
    if (length == sizeof done - 1 && memcmp(line, done, length) == 0) return;
    json_t *value = json_loadb(line, length, JSON_ALLOW_NUL, NULL);
    if (!value) abort();
    add_texts(value, texts);
    json_decref(value);
}

/* `answer`: bytes of all texts; SIZE_MAX: not known, because cut code points were replaced. */
static void check_stream(const server_buf *out, size_t answer)
{
    server_buf texts = {0};
    for (size_t at = 0; at < out->length;) {
        const char *end = memchr(out->data + at, '\n', out->length - at);
        if (!end) abort();
        size_t length = (size_t)(end - out->data) - at;
        check_line(out->data + at, length, &texts);
        at += length + 1;
    }
    if (answer != SIZE_MAX && texts.length != answer) abort();
    server_buf_free(&texts);
}

/* Whether writing the text as JSON replaced nothing. */
static bool is_utf8(const server_buf *text)
{
    server_buf json = {0};
    server_buf_json(&json, text->data, text->length);
    json_t *value = json_loadb(json.data, json.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!value) abort();
    bool same = json_string_length(value) == text->length;
    json_decref(value);
    server_buf_free(&json);
    return same;
}

static void push(server_choice *c, const uint8_t *data, size_t size)
{
    while (size > 1 && c->text.stopped == SIZE_MAX) {
        size_t length = data[0] % 24 + 1u;
        bool control = data[0] >= 240;
        while (size > 2 && (data[1] & 0xC0) == 0x80) {
            data++;
            size--;
        }
        if ((data[1] & 0xC0) == 0x80) break; /* a piece begins with a code point */
        if (length > size - 1) length = size - 1;
        while (length < size - 1 && (data[1 + length] & 0xC0) == 0x80) length++; /* whole code points */
        server_text_push(&c->text, (const char *)data + 1, length, control);
        data += length + 1;
        size -= length + 1;
    }
    server_text_finish(&c->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"prompt\":\"x\",\"input\":\"x\","
                         "\"max_tokens\":9,\"stop\":[\"stop\",\"\\u20ac\"]}";
    if (size < 2 || size > 4096) return 0;
    const server_api *api = rig_apis[data[0] % RIG_APIS];
    if (api == &server_api_count_tokens) return 0;
    server_task *task = rig_task(api);
    server_fail fail = {0};
    task->body = server_body_parse(body, sizeof body - 1, &fail);
    if (!server_fields_read(task->body, api->fields, &task->parameters, &fail) || !api->read(task, &fail) ||
        !server_task_choices(task, &fail))
        abort();
    task->parameters.stream = true;
    server_choice *c = &task->choices[0];
    if (api->write_start) api->write_start(task, &c->out);
    if (api->write_prompted) api->write_prompted(task, &c->out);
    push(c, data + 1, size - 1);
    c->finish = c->text.stopped != SIZE_MAX ? FINISH_STOP : FINISH_END;
    if (c->finish == FINISH_STOP && !task->parameters.stop_count) abort();
    api->write_choice_end(task, c, &c->out);
    api->write_end(task, &c->out);
    bool valid = is_utf8(&c->parts[KIND_CONTENT]) && is_utf8(&c->parts[KIND_REASONING]);
    check_stream(&c->out, valid && is_utf8(&c->out) ? c->parts[0].length + c->parts[1].length : SIZE_MAX);
    rig_task_free(task);
    return 0;
}
