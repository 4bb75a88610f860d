#include "chat/format.h"
#include "chat/native.h"

static bool answer(jinja_value *out, bool value)
{
    *out = st_jinja_bool(value);
    return true;
}

#define SIMPLE_TEST(name, condition)                                                            \
    static bool name(jinja_machine *machine, const jinja_call *call, jinja_value *out)          \
    {                                                                                           \
        jinja_value self = call->self;                                                          \
        (void)machine;                                                                          \
        return answer(out, condition);                                                          \
    }

SIMPLE_TEST(test_defined, self.kind != JINJA_UNDEFINED)
SIMPLE_TEST(test_undefined, self.kind == JINJA_UNDEFINED)
SIMPLE_TEST(test_none, self.kind == JINJA_NONE)
SIMPLE_TEST(test_string, self.kind == JINJA_STRING)
SIMPLE_TEST(test_mapping, self.kind == JINJA_DICT)
SIMPLE_TEST(test_number, st_jinja_is_number(self))
SIMPLE_TEST(test_integer, self.kind == JINJA_INTEGER)
SIMPLE_TEST(test_float, self.kind == JINJA_FLOAT)
SIMPLE_TEST(test_boolean, self.kind == JINJA_BOOL)
SIMPLE_TEST(test_true, self.kind == JINJA_BOOL && self.boolean)
SIMPLE_TEST(test_false, self.kind == JINJA_BOOL && !self.boolean)
SIMPLE_TEST(test_callable, self.kind == JINJA_UNDEFINED || self.kind == JINJA_MACRO || self.kind == JINJA_NATIVE ||
                               self.kind == JINJA_LOOP)
SIMPLE_TEST(test_escaped, self.kind == JINJA_STRING && self.string->safe)
SIMPLE_TEST(test_iterable, self.kind == JINJA_UNDEFINED || self.kind == JINJA_STRING || st_jinja_is_list(self) ||
                               self.kind == JINJA_RANGE || self.kind == JINJA_DICT || self.kind == JINJA_LOOP)
SIMPLE_TEST(test_sequence, self.kind == JINJA_UNDEFINED || self.kind == JINJA_STRING || self.kind == JINJA_LIST ||
                               self.kind == JINJA_TUPLE || self.kind == JINJA_RANGE || self.kind == JINJA_DICT)

static bool test_equal(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool equal;
    return st_jinja_equal(machine, call->self, call->slots[0], &equal) && answer(out, equal);
}

static bool test_unequal(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool equal;
    return st_jinja_equal(machine, call->self, call->slots[0], &equal) && answer(out, !equal);
}

static bool order_of(jinja_machine *machine, const jinja_call *call, const char *operator, int *order)
{
    return st_jinja_compare(machine, call->self, call->slots[0], operator, order);
}

static bool test_less(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int order;
    return order_of(machine, call, "<", &order) && answer(out, order == -1);
}

static bool test_less_equal(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int order;
    return order_of(machine, call, "<=", &order) && answer(out, order == -1 || order == 0);
}

static bool test_greater(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int order;
    return order_of(machine, call, ">", &order) && answer(out, order == 1);
}

static bool test_greater_equal(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int order;
    return order_of(machine, call, ">=", &order) && answer(out, order == 1 || order == 0);
}

static bool test_in(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool found;
    return st_jinja_contains(machine, call->slots[0], call->self, &found) && answer(out, found);
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

static bool test_odd(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return remainder_is(machine, call->self, 2, 1, out);
}

static bool test_even(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return remainder_is(machine, call->self, 2, 0, out);
}

static bool test_divisible(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int64_t divisor;
    return st_jinja_integer_of(machine, call->slots[0], "divisibleby", &divisor) &&
           remainder_is(machine, call->self, divisor, 0, out);
}

static bool has_case(jinja_machine *machine, const jinja_call *call, const char *method, jinja_value *out)
{
    static const jinja_arguments none = {0};
    const jinja_string *text;
    return st_jinja_to_string(machine, call->self, &text) &&
           st_jinja_call_native(machine, st_jinja_find(&st_jinja_string_queries, st_str_from(method)),
                                st_jinja_text(text), &none, out);
}

static bool test_lower(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return has_case(machine, call, "islower", out);
}

static bool test_upper(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return has_case(machine, call, "isupper", out);
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
           answer(out, st_jinja_find_test(st_jinja_view(name)) != NULL);
}

static const jinja_native test_rows[] = {
    {"defined", "", 0, test_defined},
    {"undefined", "", 0, test_undefined},
    {"none", "", 0, test_none},
    {"string", "", 0, test_string},
    {"mapping", "", 0, test_mapping},
    {"iterable", "", 0, test_iterable},
    {"sequence", "", 0, test_sequence},
    {"number", "", 0, test_number},
    {"integer", "", 0, test_integer},
    {"float", "", 0, test_float},
    {"boolean", "", 0, test_boolean},
    {"true", "", 0, test_true},
    {"false", "", 0, test_false},
    {"callable", "", 0, test_callable},
    {"escaped", "", 0, test_escaped},
    {"sameas", "other", 1, test_same},
    {"odd", "", 0, test_odd},
    {"even", "", 0, test_even},
    {"divisibleby", "num", 1, test_divisible},
    {"lower", "", 0, test_lower},
    {"upper", "", 0, test_upper},
    {"in", "seq", 1, test_in},
    {"filter", "", 0, test_filter},
    {"test", "", 0, test_test},
    {"==", "other", 1, test_equal},
    {"eq", "other", 1, test_equal},
    {"equalto", "other", 1, test_equal},
    {"!=", "other", 1, test_unequal},
    {"ne", "other", 1, test_unequal},
    {"<", "other", 1, test_less},
    {"lt", "other", 1, test_less},
    {"lessthan", "other", 1, test_less},
    {"<=", "other", 1, test_less_equal},
    {"le", "other", 1, test_less_equal},
    {">", "other", 1, test_greater},
    {"gt", "other", 1, test_greater},
    {"greaterthan", "other", 1, test_greater},
    {">=", "other", 1, test_greater_equal},
    {"ge", "other", 1, test_greater_equal},
};
const jinja_native_table st_jinja_tests = {test_rows, sizeof test_rows / sizeof *test_rows};
