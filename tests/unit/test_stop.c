/* src/sampler/stop.c: stop strings in streamed text. */
#include "support/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "sampler/stop.h"

typedef struct stop_case {
    const char *stops[4];
    const char *text;
    const char *shown; /* the whole output */
    bool stopped;
} stop_case;

static const stop_case cases[] = {
    {{NULL}, "all of it", "all of it", false},
    {{"END"}, "no such thing", "no such thing", false},
    {{"END"}, "beforeENDafter", "before", true},
    {{"END"}, "END", "", true},
    {{"END"}, "EEND", "E", true},
    {{"END"}, "ENEND", "EN", true},
    {{"END"}, "ENENENx", "ENENENx", false},
    {{"END"}, "it is the EN", "it is the EN", false}, /* held back, and shown at the end */
    {{"aab"}, "aaaab", "aa", true},
    {{"abab"}, "abaabab", "aba", true},
    {{"\n\n"}, "one\ntwo\n\nthree", "one\ntwo", true},
    {{"x"}, "aaax", "aaa", true},
    {{"END", "STOP"}, "a STOP b END", "a ", true},
    {{"END", "STOP"}, "a END b STOP", "a ", true},
    {{"abcd", "c"}, "zabcd", "zab", true},
    {{"bc", "abc"}, "zabc", "z", true},
    {{"é"}, "caf\xC3\xA9!", "caf", true},
    {{"<|im_end|>"}, "<|im_start|>", "<|im_start|>", false},
    {{"aaaa"}, "aaa", "aaa", false},
};

enum { CASES = sizeof cases / sizeof *cases };

static size_t count_stops(const stop_case *row)
{
    size_t count = 0;
    while (count < 4 && row->stops[count]) count++;
    return count;
}

/* Pushes the text in pieces of `size` bytes. */
static void feed(const stop_case *row, size_t size, st_buf *out, bool *stopped)
{
    st_stop *stop = NULL;
    assert_int_equal(st_stop_new(row->stops, count_stops(row), &stop, NULL), STRATA_OK);
    size_t length = strlen(row->text);
    *stopped = false;
    for (size_t at = 0; at < length && !*stopped; at += size) {
        st_str piece = {row->text + at, length - at < size ? length - at : size};
        assert_int_equal(st_stop_push(stop, piece, out, stopped, NULL), STRATA_OK);
        if (out->length) assert_memory_equal(out->data, row->shown, out->length); /* no byte too many is shown */
    }
    if (!*stopped) assert_int_equal(st_stop_finish(stop, out, NULL), STRATA_OK);
    st_stop_free(stop);
}

static void text_in_pieces_of_all_sizes(void **state)
{
    const stop_case *row = *state;
    for (size_t size = 1; size <= strlen(row->text); size++) {
        st_buf out = {0};
        bool stopped;
        feed(row, size, &out, &stopped);
        assert_int_equal(stopped, row->stopped);
        st_buf_append_char(&out, '\0');
        assert_string_equal(out.data, row->shown);
        st_buf_free(&out);
    }
}

/* Text that cannot become a stop string is shown at once. */
static void text_that_cannot_match_is_shown_at_once(void **state)
{
    (void)state;
    const char *const stops[] = {"END"};
    st_stop *stop = NULL;
    st_buf out = {0};
    bool stopped;
    assert_int_equal(st_stop_new(stops, 1, &stop, NULL), STRATA_OK);
    static const struct { const char *text; size_t shown; } steps[] = {{"abc", 3}, {"E", 3}, {"N", 3}, {"N", 6},
                                                                       {"E", 6}, {"E", 7}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(st_stop_push(stop, st_str_from(steps[i].text), &out, &stopped, NULL), STRATA_OK);
        assert_int_equal(out.length, steps[i].shown);
        assert_false(stopped);
    }
    assert_int_equal(st_stop_push(stop, (st_str){NULL, 0}, &out, &stopped, NULL), STRATA_OK);
    assert_int_equal(st_stop_finish(stop, &out, NULL), STRATA_OK);
    assert_int_equal(out.length, 8);
    st_stop_free(stop);
    st_buf_free(&out);
}

static void invalid_stop_strings_are_refused(void **state)
{
    (void)state;
    st_stop *stop = NULL;
    strata_error error;
    const char *const empty[] = {"a", ""};
    assert_int_equal(st_stop_new(empty, 2, &stop, &error), STRATA_USAGE);
    assert_non_null(strstr(error.message, "stop string 2"));
    static char text[4098];
    memset(text, 'x', 4097);
    const char *const endless[] = {text};
    assert_int_equal(st_stop_new(endless, 1, &stop, &error), STRATA_USAGE);
    static const char *many[257];
    for (size_t i = 0; i < 257; i++) many[i] = "a";
    assert_int_equal(st_stop_new(many, 257, &stop, &error), STRATA_USAGE);
    assert_null(stop);
    assert_int_equal(st_stop_new(many, 256, &stop, &error), STRATA_OK);
    st_stop_free(stop);
    st_stop_free(NULL);
}

static void short_texts_allocate_nothing(void **state)
{
    (void)state;
    const char *const stops[] = {"END", "STOP"};
    st_stop *stop = NULL;
    st_buf out = {0};
    bool stopped;
    assert_int_equal(st_stop_new(stops, 2, &stop, NULL), STRATA_OK);
    assert_true(st_buf_reserve(&out, 4096));
    st_fault_arm(ST_FAULT_ALLOC, UINT64_MAX, false);
    for (int i = 0; i < 500; i++)
        assert_int_equal(st_stop_push(stop, ST_STR("a ENS"), &out, &stopped, NULL), STRATA_OK);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_stop_free(stop);
    st_buf_free(&out);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    const char *const stops[] = {"END", "STOP"};
    for (uint64_t nth = 1;; nth++) {
        st_stop *stop = NULL;
        strata_error error = {0};
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = st_stop_new(stops, 2, &stop, &error);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        if (status == STRATA_OK) {
            st_stop_free(stop);
            assert_true(nth > 4);
            break;
        }
        assert_int_equal(status, STRATA_MEMORY);
        assert_null(stop);
    }
}

int main(void)
{
    static char names[CASES][64];
    static struct CMUnitTest tests[CASES + 4];
    size_t n = 0;
    for (; n < CASES; n++) {
        snprintf(names[n], sizeof *names, "%zu: %zu stops", n, count_stops(&cases[n]));
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = text_in_pieces_of_all_sizes,
                                       .initial_state = (void *)(uintptr_t)&cases[n]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(text_that_cannot_match_is_shown_at_once);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(invalid_stop_strings_are_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(short_texts_allocate_nothing);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(failed_allocations_are_errors);
    return _cmocka_run_group_tests("stop", tests, n, NULL, NULL);
}
