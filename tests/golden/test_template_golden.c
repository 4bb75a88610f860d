/* All cases of the kit's chat/cases.json: the text that Jinja2 renders, byte for byte, or an error where it raises one.
 */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "chat/template.h"

enum { CASE_COUNT = 612, RENDER_COUNT = 590, NOW = 1794700800 /* 2026-11-15, UTC */ };

static size_t first_difference(st_str a, st_str b)
{
    size_t i = 0;
    while (i < a.length && i < b.length && a.data[i] == b.data[i]) i++;
    return i;
}

static void print_around(const char *what, st_str text, size_t at)
{
    size_t from = at > 40 ? at - 40 : 0, to = at + 40 < text.length ? at + 40 : text.length;
    fprintf(stderr, "  %s …%.*s…\n", what, (int)(to - from), text.data + from);
}

/* Returns 1 if the case passes, else 0. */
static int check_case(const json_t *test, const st_template *chat_template, const char *name)
{
    st_rendering rendering = {0};
    strata_error error;
    const json_t *output = json_object_get(test, "output");
    strata_status status = st_template_render(chat_template, json_object_get(test, "args"), NOW, &rendering, &error);
    int right = 0;
    if (!output) {
        right = status == STRATA_TEMPLATE;
        if (!right)
            fprintf(stderr, "%s: expected the error %s\n", name, json_string_value(json_object_get(test, "error")));
    } else if (status != STRATA_OK) {
        fprintf(stderr, "%s: %s\n", name, error.message);
    } else {
        st_str expected = {json_string_value(output), json_string_length(output)};
        st_str found = {rendering.text.data, rendering.text.length};
        right = st_str_equal(expected, found) && rendering.foreign.length == found.length;
        if (!right) {
            size_t at = first_difference(expected, found);
            fprintf(stderr, "%s: differs at byte %zu\n", name, at);
            print_around("expected", expected, at);
            print_around("found   ", found, at);
        }
    }
    st_rendering_free(&rendering);
    return right;
}

static st_template *compile(const char *name)
{
    char path[512];
    st_buf source = {0};
    st_template *made = NULL;
    strata_error error;
    snprintf(path, sizeof path, "chat/templates/%s", name);
    kit_read(kit_path(path), &source);
    if (st_template_new((st_str){source.data, source.length}, NULL, &made, &error) != STRATA_OK) {
        fprintf(stderr, "%s: %s\n", name, error.message);
    }
    st_buf_free(&source);
    return made;
}

static void test_all_cases(void **state)
{
    (void)state;
    st_buf text = {0};
    kit_read(kit_path("chat/cases.json"), &text);
    json_t *cases = json_loadb(text.data, text.length, JSON_ALLOW_NUL, NULL);
    st_buf_free(&text);
    assert_non_null(cases);
    int right = 0, renders = 0;
    char last[256] = "";
    st_template *chat_template = NULL;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *test = json_array_get(cases, i);
        const char *file = json_string_value(json_object_get(test, "template"));
        char name[512];
        snprintf(name, sizeof name, "%s, %s", file, json_string_value(json_object_get(test, "case")));
        if (strcmp(last, file) != 0) {
            st_template_free(chat_template);
            chat_template = compile(file);
            snprintf(last, sizeof last, "%s", file);
        }
        renders += json_object_get(test, "output") != NULL;
        if (chat_template) right += check_case(test, chat_template, name);
    }
    st_template_free(chat_template);
    assert_int_equal(json_array_size(cases), CASE_COUNT);
    assert_int_equal(renders, RENDER_COUNT);
    json_decref(cases);
    assert_int_equal(right, CASE_COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_cases)};
    return cmocka_run_group_tests_name("template_golden", tests, NULL, NULL);
}
