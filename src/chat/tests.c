#include "chat/format.h"
#include "chat/lexer.h"
#include "chat/native.h"

static bool answer(jinja_value *out, bool value)
{
    *out = st_jinja_bool(value);
    return true;
}

/* The kind of the value is in the row's set. */
static bool test_kind(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    (void)machine;
    return answer(out, call->mode >> call->self.kind & 1);
}

enum {
    UNDEFINED = 1 << JINJA_UNDEFINED,
    NUMBER = 1 << JINJA_BOOL | 1 << JINJA_INTEGER | 1 << JINJA_FLOAT,
    CALLABLE = UNDEFINED | 1 << JINJA_MACRO | 1 << JINJA_NATIVE | 1 << JINJA_LOOP,
    SEQUENCE = UNDEFINED | 1 << JINJA_STRING | 1 << JINJA_LIST | 1 << JINJA_TUPLE | 1 << JINJA_RANGE | 1 << JINJA_DICT,
    ITERABLE = SEQUENCE | 1 << JINJA_GENERATOR | 1 << JINJA_VIEW | 1 << JINJA_LOOP,
};

static bool test_boolean(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    (void)machine;
    return answer(out, call->self.kind == JINJA_BOOL && call->self.boolean == (bool)call->mode);
}

static bool test_escaped(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    (void)machine;
    return answer(out, call->self.kind == JINJA_STRING && call->self.string->safe);
}

static bool test_relation(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool holds;
    return st_jinja_relation(machine, (unsigned)call->mode, call->self, call->slots[0], &holds) && answer(out, holds);
}

/* The same object, not an equal one. */
static bool test_same(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_value a = call->self, b = call->slots[0];
    (void)machine;
    if (a.kind != b.kind) return answer(out, false);
    if (a.kind == JINJA_BOOL) return answer(out, a.boolean == b.boolean);
    return answer(out, a.kind == JINJA_NONE || a.integer == b.integer);
}

static bool remainder_is(jinja_machine *machine, jinja_value value, int64_t divisor, int64_t expected, jinja_value *out)
{
    jinja_value rest;
    bool equal;
    if (value.kind == JINJA_STRING)
        return st_jinja_fail(machine, "not all arguments converted during string formatting");
    return st_jinja_binary(machine, '%', value, st_jinja_integer(divisor), &rest) &&
           st_jinja_equal(machine, rest, st_jinja_integer(expected), &equal) && answer(out, equal);
}

static bool test_parity(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return remainder_is(machine, call->self, 2, call->mode, out);
}

static bool test_divisible(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int64_t divisor;
    return st_jinja_integer_of(machine, call->slots[0], "divisibleby", &divisor) &&
           remainder_is(machine, call->self, divisor, 0, out);
}

static bool test_case(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    static const jinja_arguments none = {0};
    st_str method = call->mode == JINJA_UPPER ? ST_STR("isupper") : ST_STR("islower");
    const jinja_string *text;
    return st_jinja_to_string(machine, call->self, &text) &&
           st_jinja_call_native(machine, st_jinja_find(&st_jinja_string_queries, method), st_jinja_text(text), &none,
                                out);
}

static bool test_filter(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *name;
    return st_jinja_want_string(machine, call->self, "filter", &name) &&
           answer(out, st_jinja_find_filter(st_jinja_view(name)) != NULL);
}

static bool test_test(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *name;
    return st_jinja_want_string(machine, call->self, "test", &name) &&
           answer(out, st_jinja_find(&st_jinja_tests, st_jinja_view(name)) != NULL);
}

static const jinja_native test_rows[] = {
    {"defined", "", 0, test_kind, ~UNDEFINED},
    {"undefined", "", 0, test_kind, UNDEFINED},
    {"none", "", 0, test_kind, 1 << JINJA_NONE},
    {"string", "", 0, test_kind, 1 << JINJA_STRING},
    {"mapping", "", 0, test_kind, 1 << JINJA_DICT},
    {"iterable", "", 0, test_kind, ITERABLE},
    {"sequence", "", 0, test_kind, SEQUENCE},
    {"number", "", 0, test_kind, NUMBER},
    {"integer", "", 0, test_kind, 1 << JINJA_INTEGER},
    {"float", "", 0, test_kind, 1 << JINJA_FLOAT},
    {"boolean", "", 0, test_kind, 1 << JINJA_BOOL},
    {"true", "", 0, test_boolean, true},
    {"false", "", 0, test_boolean, false},
    {"callable", "", 0, test_kind, CALLABLE},
    {"escaped", "", 0, test_escaped, 0},
    {"sameas", "other", 1, test_same, 0},
    {"odd", "", 0, test_parity, 1},
    {"even", "", 0, test_parity, 0},
    {"divisibleby", "num", 1, test_divisible, 0},
    {"lower", "", 0, test_case, JINJA_LOWER},
    {"upper", "", 0, test_case, JINJA_UPPER},
    {"in", "seq", 1, test_relation, JINJA_IN},
    {"filter", "", 0, test_filter, 0},
    {"test", "", 0, test_test, 0},
    {"==", "other", 1, test_relation, JINJA_OPERATOR('=', '=')},
    {"eq", "other", 1, test_relation, JINJA_OPERATOR('=', '=')},
    {"equalto", "other", 1, test_relation, JINJA_OPERATOR('=', '=')},
    {"!=", "other", 1, test_relation, JINJA_OPERATOR('!', '=')},
    {"ne", "other", 1, test_relation, JINJA_OPERATOR('!', '=')},
    {"<", "other", 1, test_relation, JINJA_OPERATOR('<', 0)},
    {"lt", "other", 1, test_relation, JINJA_OPERATOR('<', 0)},
    {"lessthan", "other", 1, test_relation, JINJA_OPERATOR('<', 0)},
    {"<=", "other", 1, test_relation, JINJA_OPERATOR('<', '=')},
    {"le", "other", 1, test_relation, JINJA_OPERATOR('<', '=')},
    {">", "other", 1, test_relation, JINJA_OPERATOR('>', 0)},
    {"gt", "other", 1, test_relation, JINJA_OPERATOR('>', 0)},
    {"greaterthan", "other", 1, test_relation, JINJA_OPERATOR('>', 0)},
    {">=", "other", 1, test_relation, JINJA_OPERATOR('>', '=')},
    {"ge", "other", 1, test_relation, JINJA_OPERATOR('>', '=')},
};
const jinja_native_table st_jinja_tests = {test_rows, sizeof test_rows / sizeof *test_rows};
