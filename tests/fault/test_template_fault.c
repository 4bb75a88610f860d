/* Each allocation of parsing the arguments, compiling and rendering fails once, and then it and all later ones: a typed
 * error, no leak (checked by the sanitizer), and the next call works. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "chat/template.h"

static const char source[] =
    "{%- macro show(m, sep='\\n') -%}<|{{ m.role }}|>{{ sep }}{{ m.content | trim }}{%- endmacro -%}\n"
    "{%- set ns = namespace(all='', n=0) -%}\n"
    "{%- for m in messages if m.role != 'tool' -%}\n"
    "{%- set ns.all = ns.all ~ show(m) ~ loop.index -%}\n"
    "{%- set ns.n = ns.n + 1 -%}\n"
    "{%- endfor -%}\n"
    "{{ ns.all }}{{ tools | tojson(indent=2, sort_keys=true) }}{{ messages | map(attribute='role') | unique | join(', "
    "') }}\n"
    "{% set block | upper %}a{{ words.split(' ') | sort(reverse=true) }}{% endset %}{{ block[::-1] }}\n"
    "{{ '%s-%d' % ('a', ns.n) }}{{ '{:>4}'.format('b') }}{{ words.replace('a', 'b').partition('b') }}\n"
    "{{ dict(a=1).items()|list }}{{ words is defined and [1] == [1.0] }}{{ strftime_now('%Y') }}";

static const char args_text[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \" a \\u00e9 \"}, {\"role\": \"assistant\", \"content\": \"b\"},"
    " {\"role\": \"tool\", \"content\": \"c\"}], \"tools\": [{\"b\": [1, 2.5, null], \"a\": {\"x\": \"\\n\"}}], "
    "\"words\": \"c a d b\"}";

/* Parses the arguments, compiles and renders. */
static strata_status run_all(st_rendering *out, strata_error *error)
{
    st_template *made = NULL;
    json_t *args = NULL;
    strata_status status = st_template_parse_args(args_text, sizeof args_text - 1, &args, error);
    if (status == STRATA_OK) status = st_template_new((st_str){source, sizeof source - 1}, NULL, &made, error);
    if (status == STRATA_OK) status = st_template_render(made, args, 0, out, error);
    st_template_free(made);
    json_decref(args);
    return status;
}

static void fail_each(bool persistent)
{
    st_rendering whole = {0};
    strata_error error = {0};
    st_fault_arm(ST_FAULT_ALLOC, UINT64_MAX, false);
    strata_status status = run_all(&whole, &error);
    uint64_t calls = st_fault_calls(ST_FAULT_ALLOC);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    if (status != STRATA_OK) fail_msg("%s", error.message);
    assert_true(calls > 20);
    for (uint64_t nth = 1; nth <= calls; nth++) {
        st_rendering rendering = {0};
        st_fault_arm(ST_FAULT_ALLOC, nth, persistent);
        status = run_all(&rendering, &error);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        if (status != STRATA_MEMORY)
            fail_msg("allocation %llu: %s", (unsigned long long)nth, strata_status_name(status));
        assert_int_equal(error.status, STRATA_MEMORY);
        assert_null(rendering.text.data);
        status = run_all(&rendering, &error);
        assert_int_equal(status, STRATA_OK);
        assert_true(st_str_equal((st_str){rendering.text.data, rendering.text.length},
                                 (st_str){whole.text.data, whole.text.length}));
        st_rendering_free(&rendering);
    }
    st_rendering_free(&whole);
}

static void one_failed_allocation_is_reported(void **state)
{
    (void)state;
    fail_each(false);
}

static void persistent_allocation_failure_is_reported(void **state)
{
    (void)state;
    fail_each(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_failed_allocation_is_reported),
        cmocka_unit_test(persistent_allocation_failure_is_reported),
    };
    json_set_alloc_funcs(st_alloc, st_free);
    return cmocka_run_group_tests_name("template_fault", tests, NULL, NULL);
}
