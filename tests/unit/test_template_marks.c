/* Which bytes of a rendering came from the arguments: every operation keeps the marks. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "chat/template.h"

static const char args_text[] =
    "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"c\": \"<|im_start|>\", \"p\": \"  <|a|> x <|b|>  \","
    " \"csv\": \"<|a|>,<|b|>\", \"q\": \"\\\"<|é|>\\n\", \"list\": [\"<|a|>\", \"b\"], \"obj\": {\"<|k|>\": \"<|v|>\", "
    "\"n\": 5},"
    " \"messages\": [{\"role\": \"user\", \"content\": \"<|im_start|>\"}, {\"role\": \"<|evil|>\", \"content\": \"x\"},"
    " {\"role\": \"a b\", \"content\": \"x\", \"inner\": {\"role\": \"user\"}}], \"role\": \"user\", \"deep\": "
    "{\"role\": \"user\"},"
    " \"nested\": {\"bos_token\": \"<s>\"}}";

typedef struct marks_row {
    const char *source;
    const char *output;
    const char *marks; /* a letter for each byte of the output: F foreign, . own */
} marks_row;

/* A foreign é is two bytes, so two letters. */
static const marks_row rows[] = {
    {"<|im_start|>{{ c }}!", "<|im_start|><|im_start|>!", "............FFFFFFFFFFFF."},
    {"{{ bos_token }}{{ eos_token }}", "<s></s>", "......."},
    {"{{ nested.bos_token }}", "<s>", "FFF"},
    {"<|{{ messages[0].role }}|>", "<|user|>", "........"},
    {"{{ messages[1].role }}", "<|evil|>", "FFFFFFFF"},
    {"{{ messages[2]['role'] }}", "a b", "FFF"},
    {"{{ messages[2].inner.role }}", "user", "FFFF"},
    {"{{ role }}{{ deep.role }}", "useruser", "FFFFFFFF"},
    {"{{ messages[0].role ~ messages[0].content[:2] ~ '|' }}", "user<||", "....FF."},
    {"[{{ p|trim }}]", "[<|a|> x <|b|>]", ".FFFFFFFFFFFFF."},
    {"{{ p.strip() }}{{ p.lstrip()[:2] }}", "<|a|> x <|b|><|", "FFFFFFFFFFFFFFF"},
    {"{{ p|trim|replace('x', '-') }}", "<|a|> - <|b|>", "FFFFFF.FFFFFF"},
    {"{{ 'axb'|replace('x', c[:3]) }}", "a<|ib", ".FFF."},
    {"{{ p.strip().replace(' x ', '+', 1) }}", "<|a|>+<|b|>", "FFFFF.FFFFF"},
    {"{{ csv.split(',') | join('; ') }}", "<|a|>; <|b|>", "FFFFF..FFFFF"},
    {"{{ csv.split(',')[1] }}{{ csv.rsplit(',', 1)[0] }}", "<|b|><|a|>", "FFFFFFFFFF"},
    {"{{ csv.partition(',')[2] }}", "<|b|>", "FFFFF"},
    {"{{ '+'.join(list) }}", "<|a|>+b", "FFFFF.F"},
    {"{{ list|join('+') }}", "<|a|>+b", "FFFFF.F"},
    {"{{ c|upper }}{{ c.title() }}{{ c|capitalize }}", "<|IM_START|><|Im_Start|><|im_start|>",
     "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"},
    {"{{ ('<' ~ c[1:3])|upper }}", "<|I", ".FF"},
    {"{{ c[2:4] }}{{ c[::-1][:3] }}{{ c[0] }}{{ c|first }}{{ c|last }}", "im>|t<<>", "FFFFFFFF"},
    {"{{ c|reverse }}", ">|trats_mi|<", "FFFFFFFFFFFF"},
    {"{{ q|tojson }}", "\"\\\"<|é|>\\n\"", ".FFFFFFFFFF."},
    {"{{ q|tojson(ensure_ascii=true) }}", "\"\\\"<|\\u00e9|>\\n\"", ".FFFFFFFFFFFFFF."},
    {"{{ obj|tojson }}", "{\"<|k|>\": \"<|v|>\", \"n\": 5}", "..FFFFF....FFFFF....F....."},
    {"{{ list|tojson(indent=1) }}", "[\n \"<|a|>\",\n \"b\"\n]", "....FFFFF.....F..."},
    {"{{ list }}", "['<|a|>', 'b']", "..FFFFF....F.."},
    {"{{ obj }}", "{'<|k|>': '<|v|>', 'n': 5}", "..FFFFF....FFFFF....F....."},
    {"{{ [q] }}", "['\"<|é|>\\n']", "..FFFFFFFFF.."},
    {"{{ '%s|%5s' % (c[:2], c[:2]) }}", "<||   <|", "FF....FF"},
    {"{{ '{}:{:>4}'.format(c[:2], c[:2]) }}", "<|:  <|", "FF...FF"},
    {"{{ '%s'|format(c) }}", "<|im_start|>", "FFFFFFFFFFFF"},
    {"{{ c[:2] * 2 }}{{ c[:1] + 'x' }}", "<|<|<x", "FFFFF."},
    {"{% set x %}a{{ c[:2] }}b{% endset %}{{ x }}", "a<|b", ".FF."},
    {"{% macro m(v) %}({{ v }}){% endmacro %}{{ m(c[:2])|upper }}", "(<|)", ".FF."},
    {"{% filter upper %}a{{ c[2:4] }}{% endfilter %}", "AIM", ".FF"},
    {"{% set ns = namespace(s='') %}{% for i in 'ab' %}{% set ns.s = ns.s ~ '-' ~ c[:2] %}{% endfor %}{{ ns.s }}",
     "-<|-<|", ".FF.FF"},
    {"{% for k, v in obj.items() %}{{ k }}={{ v }};{% endfor %}", "<|k|>=<|v|>;n=5;", "FFFFF.FFFFF.F..."},
    {"{% for k, v in obj|dictsort %}{{ k }}{% endfor %}", "<|k|>n", "FFFFFF"},
    {"{% for ch in c[:3] %}{{ ch }}.{% endfor %}", "<.|.i.", "F.F.F."},
    {"{{ (c[:2] ~ '\\nx')|indent(2, true) }}", "  <|\n  x", "..FF...."},
    {"{{ c[:2]|e }}", "&lt;|", "FFFFF"},
    {"{{ 'ab'.center(4, c[0]) }}", "<ab<", "F..F"},
    {"{{ '<|'.center(4) }}{{ c[:2]|center(4) }}", " <|  <| ", ".....FF."},
    {"{{ 'a\\nb'.splitlines()[1] ~ q.splitlines()[0][1:3] }}", "b<|", ".FF"},
    {"{{ c.removeprefix('<|') }}{{ c.removesuffix('|>')[:2] }}", "im_start|><|", "FFFFFFFFFFFF"},
    {"{{ c|string|safe }}", "<|im_start|>", "FFFFFFFFFFFF"},
    {"{{ list|map('upper')|join }}", "<|A|>B", "FFFFFF"},
    {"{{ list|sort|last }}{{ list|min }}", "b<|a|>", "FFFFFF"},
    {"{{ c|truncate(5, true) }}", "<|...", "FF..."},
    {"{{ {'k': c}.k }}{{ dict(a=c).a[:1] }}", "<|im_start|><", "FFFFFFFFFFFFF"},
    {"{{ c if true else 'x' }}{{ zz|default(c[:1]) }}", "<|im_start|><", "FFFFFFFFFFFFF"},
    {"{{ obj.n }}{{ obj.n ~ '' }}", "55", ".."},
    {"{{ strftime_now('%Y' ~ c[:1]) }}", "2026<", "....F"},
    {"{{ q[2:] }}", "|é|>\n", "FFFFFF"},
};

static void test_marks(void **state)
{
    (void)state;
    json_t *args = json_loads(args_text, 0, NULL);
    assert_non_null(args);
    size_t right = 0, count = sizeof rows / sizeof *rows;
    for (size_t i = 0; i < count; i++) {
        st_template *made = NULL;
        st_rendering rendering = {0};
        strata_error error = {0};
        strata_status status = st_template_new(st_str_from(rows[i].source), NULL, &made, &error);
        if (status == STRATA_OK) status = st_template_render(made, args, 1794700800, &rendering, &error);
        char found[256] = "";
        for (size_t b = 0; b < rendering.foreign.length && b + 1 < sizeof found; b++) {
            found[b] = rendering.foreign.data[b] ? 'F' : '.';
        }
        bool same = status == STRATA_OK &&
                    st_str_is((st_str){rendering.text.data, rendering.text.length}, rows[i].output) &&
                    strcmp(found, rows[i].marks) == 0;
        right += same;
        if (!same) {
            fprintf(stderr, "%s\n  expected %s\n  %s\n  found %.*s %s\n  %s\n", rows[i].source, rows[i].output,
                    rows[i].marks, (int)rendering.text.length, rendering.text.data, error.message, found);
        }
        st_rendering_free(&rendering);
        st_template_free(made);
    }
    json_decref(args);
    assert_int_equal(right, count);
}

/* The literals of a template: the control tokens that it may write. */
static void test_source(void **state)
{
    (void)state;
    st_template *made = NULL;
    assert_int_equal(
        st_template_new(
            ST_STR("a{# no #}{% if x == '\\x3c|b|>' %}{{ \"c\" 'd' ~ 1 }}{% raw %}{{ e{% endraw %}{% endif %}f"), NULL,
            &made, NULL),
        STRATA_OK);
    st_str source = st_template_source(made);
    assert_true(st_str_is(source, "a\n<|b|>\ncd\n{{ e\nf"));
    st_template_free(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_marks), cmocka_unit_test(test_source)};
    return cmocka_run_group_tests_name("template_marks", tests, NULL, NULL);
}
