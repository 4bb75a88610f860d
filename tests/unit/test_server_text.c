/* The server's text: reasoning, stop strings, control tokens, JSON strings and events; and the marks of templates. */
#include "support/kit.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/reasoning.h"
#include "server/sse.h"
#include "server/text.h"

/* ---- parts ----------------------------------------------------------------------------------------------------- */

typedef struct parts {
    char text[KIND_COUNT][4096];
    size_t length[KIND_COUNT];
} parts;

static void keep(void *context, server_kind kind, const char *text, size_t length)
{
    parts *p = context;
    assert_true(length > 0 && p->length[kind] + length < sizeof p->text[kind]);
    memcpy(p->text[kind] + p->length[kind], text, length);
    p->length[kind] += length;
    p->text[kind][p->length[kind]] = '\0';
}

typedef struct row {
    const char *text; /* with ~ between pieces if `cut` is 0; a piece in {} is a control token */
    const char *reasoning, *content;
    const char *stop; /* NULL: none */
    bool thinking;
} row;

/* Pushes the row's text in pieces of `cut` bytes (0: as the row has them). Returns whether a stop string was found. */
static bool push_row(const row *r, const server_marks *marks, size_t cut, parts *out)
{
    server_text t;
    char plain[1024];
    bool go_on = true;
    server_text_open(&t, marks, r->thinking, &r->stop, r->stop ? 1 : 0);
    *out = (parts){0};
    t.emit = keep;
    t.context = out;
    snprintf(plain, sizeof plain, "%s", r->text);
    char *rest = plain;
    for (char *piece = strsep(&rest, "~"); piece && go_on; piece = strsep(&rest, "~")) {
        size_t length = strlen(piece);
        bool control = piece[0] == '{';
        if (control) {
            piece++;
            length -= 2;
        }
        size_t step = cut == 0 || control ? length : cut;
        for (size_t at = 0; at < length && go_on; at += step)
            go_on = server_text_push(&t, piece + at, length - at < step ? length - at : step, control);
    }
    server_text_finish(&t);
    assert_false(server_text_failed(&t));
    bool stopped = t.stopped != SIZE_MAX;
    server_text_free(&t);
    return stopped;
}

static void parts_do_not_depend_on_where_the_text_is_cut(void **state)
{
    (void)state;
    static const server_marks think = {"<think>", "</think>"};
    static const row rows[] = {
        {"Hello", "", "Hello", NULL, false},
        {"", "", "", NULL, false},
        {"  \n", "", "  \n", NULL, false},
        {"<think>\nwhy\n\nso\n</think>\n\nanswer", "why\n\nso", "answer", NULL, false},
        {"\n<think>a</think>b", "a", "b", NULL, false},
        {"<think></think>b", "", "b", NULL, false},
        {"<think>\n\n</think>\n\nb ", "", "b ", NULL, false},
        {"<think>a </thin k> b </think> c", "a </thin k> b", "c", NULL, false},
        {"<thin air", "", "<thin air", NULL, false},
        {"<think", "", "<think", NULL, false},
        {"<think>cut", "cut", "", NULL, false},
        {"<think>cut </thi", "cut </thi", "", NULL, false},
        {"a <think>b</think>", "", "a <think>b</think>", NULL, false},
        {"why\n</think>\nanswer", "why", "answer", NULL, true},
        {"no end", "no end", "", NULL, true},
        {"<think>stop</think>one stop two", "stop", "one ", "stop", false},
        {"one st", "", "one st", "stop", false},
        {"ststop", "", "st", "stop", false},
        {"stop", "", "", "stop", false},
        {"aab", "", "a", "ab", false},
        {"x{~{<|eot|>}~y", "", "x{y", NULL, false},
        {"x~{<|eot|>}~y", "", "x", "<|eot|>", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t cut = 0; cut < 12; cut++) {
            parts found;
            bool stopped = push_row(&rows[i], &think, cut, &found);
            if (strcmp(found.text[KIND_REASONING], rows[i].reasoning) != 0 ||
                strcmp(found.text[KIND_CONTENT], rows[i].content) != 0)
                fail_msg("row %zu in pieces of %zu: \"%s\", \"%s\"", i, cut, found.text[KIND_REASONING],
                         found.text[KIND_CONTENT]);
            assert_int_equal(stopped, rows[i].stop && strstr(rows[i].text, rows[i].stop) != NULL);
        }
}

static void marks_may_be_of_control_tokens(void **state)
{
    (void)state;
    static const server_marks channel = {"<|c|>why<|m|>", "<|end|><|c|>final<|m|>"};
    static const row whole = {"{<|c|>}~why~{<|m|>}~thoughts~{<|end|>}~{<|c|>}~final~{<|m|>}~answer", "thoughts",
                              "answer", NULL, false};
    static const row bare = {"{<|x|>}~answer", "", "answer", NULL, false};
    parts found;
    push_row(&whole, &channel, 0, &found);
    assert_string_equal(found.text[KIND_REASONING], whole.reasoning);
    assert_string_equal(found.text[KIND_CONTENT], whole.content);
    push_row(&bare, &channel, 0, &found);
    assert_string_equal(found.text[KIND_CONTENT], bare.content);
}

/* ---- marks of templates ---------------------------------------------------------------------------------------- */

static char *render(void *context, const json_t *arguments)
{
    char *text = json_dumps(arguments, 0), *out = NULL;
    size_t length;
    if (strata_template_render(context, text, strlen(text), NULL, &out, &length, NULL) != STRATA_OK) out = NULL;
    free(text);
    return out;
}

static void marks_are_found_by_rendering(void **state)
{
    (void)state;
#define TURN "{% for m in messages %}[{{ m.role }}]"
#define TAIL "{{ m.content }}[end]{% endfor %}"
    static const struct { const char *source, *open, *close; } rows[] = {
        {TURN TAIL "[assistant]", "", ""},
        {TURN "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}" TAIL
              "{% if add_generation_prompt %}[assistant]{% endif %}", "<think>", "</think>"},
        {TURN "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}" TAIL
              "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}", "<think>", "</think>"},
        {TURN "{{ m.content.split('</think>')[-1] }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
         "<think>", "</think>"},
        {TURN TAIL "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}", "<think>", "</think>"},
        {TURN "{% if m.thinking %}<|c|>a<|m|>{{ m.thinking }}<|e|>[assistant]<|c|>f<|m|>{% endif %}" TAIL
              "{% if add_generation_prompt %}[assistant]{% endif %}", "<|c|>a<|m|>", "<|e|>[assistant]<|c|>f<|m|>"},
        {"{{ raise_exception('no') }}", "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strata_template *t = NULL;
        server_marks found;
        assert_int_equal(strata_template_new(rows[i].source, strlen(rows[i].source), &t, NULL), STRATA_OK);
        server_reasoning_find(render, t, &found);
        if (strcmp(found.open, rows[i].open) != 0 || strcmp(found.close, rows[i].close) != 0)
            fail_msg("row %zu: \"%s\", \"%s\"", i, found.open, found.close);
        strata_template_free(t);
    }
}

static void an_open_mark_at_the_end_of_a_prompt(void **state)
{
    (void)state;
    static const server_marks think = {"<think>", "</think>"}, none = {"", ""};
    assert_true(server_reasoning_is_open(&think, "[assistant]<think>\n"));
    assert_false(server_reasoning_is_open(&think, "[assistant]<think>\n\n</think>\n\n"));
    assert_false(server_reasoning_is_open(&think, "[assistant]"));
    assert_false(server_reasoning_is_open(&none, "<think>"));
}

/* ---- JSON strings and events ----------------------------------------------------------------------------------- */

/* Every text becomes one line that a JSON parser reads back, with U+FFFD for what is not UTF-8. */
static void strings_are_one_line_of_json(void **state)
{
    (void)state;
    static const struct { const char *text; size_t length; const char *expected; } rows[] = {
        {"", 0, ""}, {"a\"\\\n\r\t\b\f\x01\x7f z", 12, "a\"\\\n\r\t\b\f\x01\x7f z"},
        {"\xf0\x9f\x99\x82", 4, "\xf0\x9f\x99\x82"},
        {"a\xff" "b", 3, "a\xEF\xBF\xBD" "b"}, {"\xc0\x80", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"}, {"\xed\xa0\x80", 3, NULL},
        {"\xf0\x9f\x99", 3, NULL}, {"\xf4\x90\x80\x80", 4, NULL}, {"x\xe2\x82", 3, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        server_buf buf = {0};
        server_buf_json(&buf, rows[i].text, rows[i].length);
        json_t *value = json_loadb(buf.data, buf.length, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        if (rows[i].expected) assert_string_equal(json_string_value(value), rows[i].expected);
        for (size_t j = 0; j < buf.length; j++) assert_true((unsigned char)buf.data[j] >= 0x20);
        json_decref(value);
        server_buf_free(&buf);
    }
}

static void events_are_framed(void **state)
{
    (void)state;
    server_buf buf = {0};
    server_sse_begin(&buf, "name");
    server_buf_json(&buf, "a\nb", 3);
    server_sse_end(&buf);
    server_sse_comment(&buf, "keep-alive");
    server_sse_done(&buf);
    assert_string_equal(buf.data, "event: name\ndata: \"a\\nb\"\n\n: keep-alive\n\ndata: [DONE]\n\n");
    server_buf_free(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_do_not_depend_on_where_the_text_is_cut),
        cmocka_unit_test(marks_may_be_of_control_tokens),
        cmocka_unit_test(marks_are_found_by_rendering),
        cmocka_unit_test(an_open_mark_at_the_end_of_a_prompt),
        cmocka_unit_test(strings_are_one_line_of_json),
        cmocka_unit_test(events_are_framed),
    };
    return cmocka_run_group_tests_name("server text", tests, NULL, NULL);
}
