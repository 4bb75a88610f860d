/* Templates and arguments that exceed a limit: the error names the limit. */
#include "support/kit.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "chat/template.h"

static strata_status render(st_str source, const char *args_text, const st_template_limits *limits, st_rendering *out,
                            strata_error *error)
{
    st_template *made = NULL;
    json_t *args = NULL;
    *error = (strata_error){0};
    strata_status status = st_template_parse_args(args_text, strlen(args_text), &args, error);
    if (status == STRATA_OK) status = st_template_new(source, limits, &made, error);
    if (status == STRATA_OK) status = st_template_render(made, args, 0, out, error);
    st_template_free(made);
    json_decref(args);
    return status;
}

typedef struct limit_row {
    const char *name;
    const char *source;
    const char *limit; /* a part of the message */
} limit_row;

static const limit_row rows[] = {
    {"macro recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "200 levels of nesting"},
    {"mutual recursion", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
     "200 levels"},
    {"caller recursion",
     "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}"
     "{% call f() %}x{% endcall %}",
     "200 levels"},
    {"recursive loop",
     "{% set ns = namespace() %}{% set ns.l = [1] %}{% for i in ns.l recursive %}{{ loop(ns.l) }}{% endfor %}",
     "200 levels"},
    {"nested generators",
     "{% set ns = namespace(g=[1]) %}{% for i in range(10000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}"
     "{{ ns.g|list }}",
     "200 levels"},
    {"great range", "{% for i in range(1000000000) %}{% endfor %}", "100000 numbers in a range()"},
    {"great range as list", "{{ range(10 ** 18)|list }}", "100000 numbers in a range()"},
    {"many steps", "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
     "10000000 steps"},
    {"great output", "{% set x = 'x' * 1000000 %}{% for i in range(100) %}{{ x }}{% endfor %}",
     "16777216 bytes of output"},
    {"string product", "{{ 'abc' * 1000000000 }}", "268435456 bytes of memory"},
    {"string product overflow", "{{ ('ab' * 1000) * 9223372036854775807 }}", "bytes of memory"},
    {"string doubling",
     "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
     "268435456 bytes of memory"},
    {"list product", "{{ [1, 2] * 100000000 }}", "bytes of memory"},
    {"list doubling", "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
     "limit of"},
    {"replace bomb", "{% set x = 'a' * 100000 %}{{ x|replace('a', x) }}", "bytes of memory"},
    {"join bomb", "{% set x = 'a' * 1000000 %}{{ range(1000)|join(x) }}", "bytes of memory"},
    {"center bomb", "{{ 'a'.center(100000000000) }}", "bytes of memory"},
    {"indent bomb", "{{ 'a\\nb'|indent(100000000000) }}", "bytes of memory"},
    {"json indent bomb", "{{ [1]|tojson(indent=100000000000) }}", "bytes of memory"},
    {"batch bomb", "{{ [1]|batch(100000000000, 'x')|list }}", "limit of"},
    {"slice bomb", "{{ [1]|slice(100000000000)|list }}", "limit of"},
    {"nested lists printed",
     "{% set ns = namespace(s=[]) %}{% for i in range(1000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
     "200 levels of nesting"},
    {"nested lists as JSON",
     "{% set ns = namespace(s=[]) %}{% for i in range(1000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|tojson }}",
     "200 levels of nesting"},
    {"nested lists compared",
     "{% set ns = namespace(s=[], t=[]) %}{% for i in range(10000) %}{% set ns.s = [ns.s] %}"
     "{% set ns.t = [ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
     "200 levels of nesting"},
    {"nested tuples as key",
     "{% set ns = namespace(s=()) %}{% for i in range(10000) %}{% set ns.s = (ns.s,) %}{% endfor %}"
     "{{ {ns.s: 1} }}",
     "200 levels of nesting"},
    {"shared lists printed",
     "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
     "limit of"},
    {"shared lists compared",
     "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}"
     "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
     "10000000 steps"},
    {"namespace in itself", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "200 levels of nesting"},
    {"rsplit of repeats", "{% set x = 'a' * 1000000 %}{% set y = 'a' * 500000 ~ 'b' %}{{ x.rsplit(y) }}",
     "10000000 steps"},
    {"search again and again",
     "{% set x = 'a' * 10000000 %}{% for i in range(100000) %}{% if 'b' in x %}{% endif %}{% endfor %}",
     "10000000 steps"},
};

static void test_limits(void **state)
{
    (void)state;
    size_t right = 0, count = sizeof rows / sizeof *rows;
    for (size_t i = 0; i < count; i++) {
        st_rendering rendering = {0};
        strata_error error;
        strata_status status = render(st_str_from(rows[i].source), "{}", NULL, &rendering, &error);
        bool same = status == STRATA_LIMIT && strstr(error.message, rows[i].limit) && rendering.text.length == 0;
        right += same;
        if (!same)
            fprintf(stderr, "%s: expected %s, found %s: %s\n", rows[i].name, rows[i].limit, strata_status_name(status),
                    error.message);
        st_rendering_free(&rendering);
    }
    assert_int_equal(right, count);
}

/* `opening` and `closing` around `middle`, `count` times each. */
static strata_status render_nested(const char *opening, const char *middle, const char *closing, size_t count,
                                   strata_error *error)
{
    st_buf source = {0};
    st_rendering rendering = {0};
    for (size_t i = 0; i < count; i++) st_buf_append_str(&source, st_str_from(opening));
    st_buf_append_str(&source, st_str_from(middle));
    for (size_t i = 0; i < count; i++) st_buf_append_str(&source, st_str_from(closing));
    assert_false(source.failed);
    strata_status status = render((st_str){source.data, source.length}, "{}", NULL, &rendering, error);
    st_rendering_free(&rendering);
    st_buf_free(&source);
    return status;
}

static void test_deep_source(void **state)
{
    (void)state;
    static const char *const rows_of_three[][3] = {
        {"{% if true %}", "x", "{% endif %}"},
        {"{% for i in [1] %}", "x", "{% endfor %}"},
        {"{% set x %}", "x", "{% endset %}"},
    };
    strata_error error;
    for (size_t i = 0; i < sizeof rows_of_three / sizeof *rows_of_three; i++) {
        const char *const *row = rows_of_three[i];
        assert_int_equal(render_nested(row[0], row[1], row[2], 60, &error), STRATA_OK);
        assert_int_equal(render_nested(row[0], row[1], row[2], 10000, &error), STRATA_LIMIT);
        assert_non_null(strstr(error.message, "200 levels of nesting"));
    }
}

static void test_deep_expressions(void **state)
{
    (void)state;
    static const char *const rows_of_three[][3] = {
        {"(", "1", ")"},    {"[", "1", "]"},  {"{1: ", "1", "}"},   {"-", "1", ""},     {"not ", "1", ""},
        {"", "1", "+1"},    {"", "x", ".a"},  {"", "1", "|string"}, {"", "1", " if 1"}, {"1 if 1 else ", "1", ""},
        {"", "1", " or 1"}, {"f(", "1", ")"}, {"a[", "1", "]"},     {"", "1", "**1"},   {"1 ~ (", "1", ")"},
    };
    for (size_t i = 0; i < sizeof rows_of_three / sizeof *rows_of_three; i++) {
        const char *const *row = rows_of_three[i];
        st_buf source = {0};
        st_rendering rendering = {0};
        strata_error error;
        st_buf_append_str(&source, ST_STR("{{ "));
        for (size_t k = 0; k < 10000; k++) st_buf_append_str(&source, st_str_from(row[0]));
        st_buf_append_str(&source, st_str_from(row[1]));
        for (size_t k = 0; k < 10000; k++) st_buf_append_str(&source, st_str_from(row[2]));
        st_buf_append_str(&source, ST_STR(" }}"));
        strata_status status = render((st_str){source.data, source.length}, "{}", NULL, &rendering, &error);
        if (status != STRATA_LIMIT) fail_msg("%s%s%s: %s", row[0], row[1], row[2], error.message);
        assert_non_null(strstr(error.message, "200 levels of nesting"));
        st_rendering_free(&rendering);
        st_buf_free(&source);
    }
}

static void test_source_size(void **state)
{
    (void)state;
    st_template_limits limits = st_template_default_limits;
    st_rendering rendering = {0};
    strata_error error;
    limits.source_bytes_max = 10;
    assert_int_equal(render(ST_STR("0123456789"), "{}", &limits, &rendering, &error), STRATA_OK);
    assert_int_equal(render(ST_STR("0123456789a"), "{}", &limits, &rendering, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "10 bytes of source"));
    st_rendering_free(&rendering);
}

/* A rendering passes at its exact limit and fails at one less. */
static void test_limits_are_exact(void **state)
{
    (void)state;
    st_template_limits limits = st_template_default_limits;
    st_rendering rendering = {0};
    strata_error error;
    limits.output_bytes_max = 5;
    assert_int_equal(render(ST_STR("{{ 'abcde' }}"), "{}", &limits, &rendering, &error), STRATA_OK);
    assert_int_equal(render(ST_STR("{{ 'abcdef' }}"), "{}", &limits, &rendering, &error), STRATA_LIMIT);
    assert_int_equal(rendering.text.length, 5); /* a failure leaves the output as it was */
    limits = st_template_default_limits;
    limits.depth_max = 8;
    assert_int_equal(render(ST_STR("{{ (((((1))))) }}"), "{}", &limits, &rendering, &error), STRATA_LIMIT);
    limits.depth_max = 40;
    assert_int_equal(render(ST_STR("{{ (((((1))))) }}"), "{}", &limits, &rendering, &error), STRATA_OK);
    limits.steps_max = 3;
    assert_int_equal(render(ST_STR("{{ 1 + 1 + 1 + 1 }}"), "{}", &limits, &rendering, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "3 steps"));
    st_rendering_free(&rendering);
}

static void test_args(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        strata_status status;
        const char *message;
    } bad[] = {
        {"", STRATA_INPUT, "line 1, column 1"},
        {"[]", STRATA_INPUT, "expected a JSON object"},
        {"3", STRATA_INPUT, ""},
        {"{", STRATA_INPUT, "line 1, column 2"},
        {"{\n\"é\": nope}", STRATA_INPUT, "line 2, column 6: expected a value"},
        {"{} x", STRATA_INPUT, ""},
        {"{\"a\": \"\xff\"}", STRATA_INPUT, ""},
        {"{\"a\": 99999999999999999999999}", STRATA_INPUT, ""},
        {"{\"a\": \"\\ud800\"}", STRATA_INPUT, "surrogates"},
        {"{\"a\": \"\\ud800\\u0041\"}", STRATA_INPUT, "surrogates"},
        {"{\"a\": \"\\q\"}", STRATA_INPUT, "escape"},
        {"{\"a\": \"\\u12\"}", STRATA_INPUT, "hexadecimal"},
        {"{\"a\": \"\n\"}", STRATA_INPUT, "control character"},
        {"{\"a\": \"b", STRATA_INPUT, "closing quote"},
        {"{\"a\": \"b\\", STRATA_INPUT, ""},
        {"{\"a\\u0000\": 1}", STRATA_INPUT, "U+0000"},
        {"{\"a\": 1e999}", STRATA_INPUT, "too large"},
        {"{\"a\": 01}", STRATA_INPUT, "expected ',' or '}'"},
        {"{\"a\": 1.}", STRATA_INPUT, "expected a digit"},
        {"{\"a\": -}", STRATA_INPUT, "expected a digit"},
        {"{\"a\": [1,]}", STRATA_INPUT, "expected a value"},
        {"{\"a\": [1 2]}", STRATA_INPUT, "expected ',' or ']'"},
        {"{\"a\": 1,}", STRATA_INPUT, "expected a string"},
        {"{\"a\" 1}", STRATA_INPUT, "expected ':'"},
        {"{a: 1}", STRATA_INPUT, "expected a string"},
        {"{\"a\": NaN}", STRATA_INPUT, "expected a value"},
        {"{\"a\": tru}", STRATA_INPUT, "expected a value"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *json = NULL;
        strata_error error = {0};
        assert_int_equal(st_template_parse_args(bad[i].text, strlen(bad[i].text), &json, &error), bad[i].status);
        assert_null(json);
        if (!strstr(error.message, bad[i].message)) fail_msg("%s: %s", bad[i].text, error.message);
    }
    json_t *json = NULL;
    const char twice[] = "{\"a\": 1, \"b\": 2, \"a\": 3, \"z\": \"\\u0000\"}";
    assert_int_equal(st_template_parse_args(twice, sizeof twice - 1, &json, NULL), STRATA_OK);
    assert_int_equal(json_integer_value(json_object_get(json, "a")), 3);
    assert_int_equal(json_string_length(json_object_get(json, "z")), 1);
    json_decref(json);
}

static void test_deep_args(void **state)
{
    (void)state;
    static const size_t depths[] = {190, 1000, 100000};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        st_buf text = {0};
        strata_error error = {0};
        json_t *json = NULL;
        st_buf_append_str(&text, ST_STR("{\"x\": "));
        for (size_t k = 0; k < depths[i]; k++) st_buf_append_char(&text, '[');
        for (size_t k = 0; k < depths[i]; k++) st_buf_append_char(&text, ']');
        st_buf_append_char(&text, '}');
        strata_status status = st_template_parse_args(text.data, text.length, &json, &error);
        assert_true(i == 0 ? status == STRATA_OK : status == STRATA_LIMIT || status == STRATA_INPUT);
        json_decref(json);
        st_buf_free(&text);
    }
    /* Values that were not parsed from text are checked too. */
    json_t *args = json_object(), *inner = json_array();
    for (size_t k = 0; k < 1000; k++) {
        json_t *outer = json_array();
        json_array_append_new(outer, inner);
        inner = outer;
    }
    json_object_set_new(args, "x", inner);
    st_template *made = NULL;
    st_rendering rendering = {0};
    strata_error error = {0};
    assert_int_equal(st_template_new(ST_STR("{{ x }}"), NULL, &made, &error), STRATA_OK);
    assert_int_equal(st_template_render(made, args, 0, &rendering, &error), STRATA_LIMIT);
    assert_int_equal(st_template_render(made, NULL, 0, &rendering, &error), STRATA_INPUT);
    st_template_free(made);
    json_decref(args);
}

/* Appending to a string in a loop must not take memory that grows with its square. */
static void test_append_is_linear(void **state)
{
    (void)state;
    st_rendering rendering = {0};
    strata_error error;
    strata_status status = render(ST_STR("{% set ns = namespace(s='') %}{% for i in range(50000) %}"
                                         "{% set ns.s = ns.s ~ c ~ '0123456789' %}{% endfor %}{{ ns.s|length }}"),
                                  "{\"c\": \"x\"}", NULL, &rendering, &error);
    assert_int_equal(status, STRATA_OK);
    assert_true(st_str_is((st_str){rendering.text.data, rendering.text.length}, "550000"));
    st_rendering_free(&rendering);
}

static void test_bad_source(void **state)
{
    (void)state;
    strata_error error;
    st_rendering rendering = {0};
    assert_int_equal(render((st_str){"a\nb\xff", 4}, "{}", NULL, &rendering, &error), STRATA_TEMPLATE);
    assert_non_null(strstr(error.message, "line 2: expected UTF-8"));
    assert_int_equal(render((st_str){"{{ '\0' }}", 9}, "{}", NULL, &rendering, &error), STRATA_OK);
    assert_int_equal(render((st_str){"{{ \0 }}", 7}, "{}", NULL, &rendering, &error), STRATA_TEMPLATE);
    assert_int_equal(render((st_str){NULL, 0}, "{}", NULL, &rendering, &error), STRATA_OK);
    assert_int_equal(rendering.text.length, 0);
    st_rendering_free(&rendering);
}

/* ---- one template, many threads ---- */

static st_template *shared;

static void *render_often(void *unused)
{
    (void)unused;
    uintptr_t wrong = 0;
    json_t *args = json_loads("{\"c\": \"<x>\"}", 0, NULL);
    for (int i = 0; i < 200; i++) {
        st_rendering rendering = {0};
        strata_status status = st_template_render(shared, args, 0, &rendering, NULL);
        wrong += status != STRATA_OK ||
                 !st_str_is((st_str){rendering.text.data, rendering.text.length}, "ab<x>ab<x>abcd<X>");
        st_rendering_free(&rendering);
    }
    json_decref(args);
    return (void *)wrong;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    assert_int_equal(
        st_template_new(
            ST_STR(
                "{% macro m(x) %}{{ 'a' 'b' + x }}{% endmacro %}{{ m(c) ~ m(c) }}{{ ('a' 'b') + 'cd' }}{{ c|upper }}"),
            NULL, &shared, NULL),
        STRATA_OK);
    for (size_t i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, render_often, NULL), 0);
    for (size_t i = 0; i < 4; i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    st_template_free(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),           cmocka_unit_test(test_deep_source),
        cmocka_unit_test(test_deep_expressions), cmocka_unit_test(test_source_size),
        cmocka_unit_test(test_limits_are_exact), cmocka_unit_test(test_args),
        cmocka_unit_test(test_deep_args),        cmocka_unit_test(test_append_is_linear),
        cmocka_unit_test(test_bad_source),       cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("template_limits", tests, NULL, NULL);
}
