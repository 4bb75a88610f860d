#include <math.h>

#include "base/check.h"
#include "chat/format.h"
#include "chat/lexer.h"
#include "chat/native.h"
#include "chat/printf.h"

#define OP1(c) JINJA_OPERATOR(c, 0)
#define OP2(c, d) JINJA_OPERATOR(c, d)

static bool fail_operands(jinja_machine *machine, const char *operator, jinja_value a, jinja_value b)
{
    return st_jinja_fail(machine, "unsupported operand type(s) for %s: '%s' and '%s'", operator, st_jinja_type_name(a),
                         st_jinja_type_name(b));
}

static bool fail_overflow(jinja_machine *machine)
{
    return st_jinja_fail(machine, "the result does not fit a 64-bit integer");
}

/* ---- numbers ---- */

static bool integer_power(jinja_machine *machine, int64_t base, int64_t exponent, jinja_value *out)
{
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return st_jinja_fail(machine, "0 cannot be raised to a negative power");
        *out = st_jinja_float(pow((double)base, (double)exponent));
        return true;
    }
    if (base == 0 || base == 1) result = exponent ? base : 1;
    else if (base == -1) result = exponent % 2 ? -1 : 1;
    else {
        for (; exponent; exponent--) {
            if (__builtin_mul_overflow(result, base, &result)) return fail_overflow(machine);
        }
    }
    *out = st_jinja_integer(result);
    return true;
}

static bool divide_integers(jinja_machine *machine, bool remainder, int64_t a, int64_t b, jinja_value *out)
{
    if (b == 0) return st_jinja_fail(machine, "integer division or modulo by zero");
    if (b == -1) { /* the one pair that overflows */
        if (remainder) *out = st_jinja_integer(0);
        else if (a == INT64_MIN) return fail_overflow(machine);
        else *out = st_jinja_integer(-a);
        return true;
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = st_jinja_integer(remainder ? rest : quotient);
    return true;
}

static bool integers(jinja_machine *machine, unsigned operator, int64_t a, int64_t b, jinja_value *out)
{
    int64_t result = 0;
    bool overflow = false;
    switch (operator) {
    case OP1('+'): overflow = __builtin_add_overflow(a, b, &result); break;
    case OP1('-'): overflow = __builtin_sub_overflow(a, b, &result); break;
    case OP1('*'): overflow = __builtin_mul_overflow(a, b, &result); break;
    case OP1('/'):
        if (b == 0) return st_jinja_fail(machine, "division by zero");
        *out = st_jinja_float((double)a / (double)b);
        return true;
    case OP2('/', '/'): return divide_integers(machine, false, a, b, out);
    case OP1('%'): return divide_integers(machine, true, a, b, out);
    default: return integer_power(machine, a, b, out);
    }
    if (overflow) return fail_overflow(machine);
    *out = st_jinja_integer(result);
    return true;
}

static bool reals(jinja_machine *machine, unsigned operator, double a, double b, jinja_value *out)
{
    double result, rest;
    switch (operator) {
    case OP1('+'): result = a + b; break;
    case OP1('-'): result = a - b; break;
    case OP1('*'): result = a * b; break;
    case OP2('*', '*'): result = pow(a, b); break;
    default:
        if (b == 0.0) return st_jinja_fail(machine, "float division by zero");
        rest = fmod(a, b);
        if (rest != 0.0 && (rest < 0) != (b < 0)) rest += b;
        result = operator == OP1('/') ? a / b : operator == OP1('%') ? rest : floor((a - rest) / b + 0.5);
    }
    *out = st_jinja_float(result);
    return true;
}

/* ---- sequences ---- */

static bool add_lists(jinja_machine *machine, jinja_value a, jinja_value b, jinja_value *out)
{
    size_t total;
    if (!st_add_size(a.list->count, b.list->count, &total)) return fail_overflow(machine);
    jinja_list *list = st_jinja_list_new(machine, total);
    if (!list || !st_jinja_charge(machine, total / 8)) return false;
    if (a.list->count) memcpy(list->items, a.list->items, a.list->count * sizeof *list->items);
    if (b.list->count) memcpy(list->items + a.list->count, b.list->items, b.list->count * sizeof *list->items);
    list->count = total;
    *out = (jinja_value){.kind = a.kind, .list = list};
    return true;
}

/* Joining a safe string with plain text escapes the plain text. */
static bool add_safe(jinja_machine *machine, jinja_value a, jinja_value b, jinja_value *out)
{
    if (!a.string->safe && !st_jinja_string_escape(machine, a.string, &a)) return false;
    if (!b.string->safe && !st_jinja_string_escape(machine, b.string, &b)) return false;
    jinja_value joined;
    return st_jinja_string_concat(machine, a.string, b.string, &joined) &&
           st_jinja_string_safe(machine, joined.string, out);
}

static bool add_sequences(jinja_machine *machine, jinja_value a, jinja_value b, jinja_value *out)
{
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        if (a.string->safe || b.string->safe) return add_safe(machine, a, b, out);
        return st_jinja_string_concat(machine, a.string, b.string, out);
    }
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) return add_lists(machine, a, b, out);
    if (a.kind == JINJA_STRING || a.kind == JINJA_LIST || a.kind == JINJA_TUPLE) {
        const char *name = st_jinja_type_name(a);
        return st_jinja_fail(machine, "can only concatenate %s (not \"%s\") to %s", name, st_jinja_type_name(b), name);
    }
    return fail_operands(machine, "+", a, b);
}

static bool repeat(jinja_machine *machine, jinja_value sequence, int64_t count, jinja_value *out)
{
    if (sequence.kind == JINJA_STRING) return st_jinja_string_repeat(machine, sequence.string, count, out);
    size_t total = 0;
    if (count > 0 && !st_mul_size(sequence.list->count, (size_t)count, &total)) return fail_overflow(machine);
    jinja_list *list = st_jinja_list_new(machine, total);
    if (!list || !st_jinja_charge(machine, total)) return false;
    for (; list->count < total; list->count++)
        list->items[list->count] = sequence.list->items[list->count % sequence.list->count];
    *out = (jinja_value){.kind = sequence.kind, .list = list};
    return true;
}

static bool is_sequence(jinja_value value)
{
    return value.kind == JINJA_STRING || value.kind == JINJA_LIST || value.kind == JINJA_TUPLE;
}

bool st_jinja_binary(jinja_machine *machine, unsigned operator, jinja_value a, jinja_value b, jinja_value *out)
{
    bool percent = operator == OP1('%') && a.kind == JINJA_STRING;
    if (a.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, a.undefined);
    if (percent) {
        jinja_arguments arguments = {&b, 1, NULL, 0};
        if (b.kind == JINJA_TUPLE) arguments = (jinja_arguments){b.list->items, b.list->count, NULL, 0};
        return st_jinja_format_percent(machine, a.string, &arguments, b, out);
    }
    if (b.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, b.undefined);
    bool a_whole = st_jinja_is_integer(a), b_whole = st_jinja_is_integer(b);
    if (a_whole && b_whole) return integers(machine, operator, st_jinja_whole(a), st_jinja_whole(b), out);
    if (st_jinja_is_number(a) && st_jinja_is_number(b)) {
        return reals(machine, operator, st_jinja_real_of(a), st_jinja_real_of(b), out);
    }
    if (operator == OP1('+')) return add_sequences(machine, a, b, out);
    if (operator == OP1('*') && is_sequence(a) && b_whole) return repeat(machine, a, st_jinja_whole(b), out);
    if (operator == OP1('*') && is_sequence(b) && a_whole) return repeat(machine, b, st_jinja_whole(a), out);
    char name[3] = {(char)(operator & 0xFF), (char)(operator >> 8), '\0'};
    return fail_operands(machine, name, a, b);
}

bool st_jinja_relation(jinja_machine *machine, unsigned operator, jinja_value a, jinja_value b, bool *out)
{
    char name[3] = {(char)(operator & 0xFF), (char)(operator >> 8), '\0'};
    bool ok, negated = operator == OP2('!', '=') || operator == JINJA_NOT_IN;
    int order = 0;
    switch (operator) {
    case OP2('=', '='):
    case OP2('!', '='): ok = st_jinja_equal(machine, a, b, out); break;
    case JINJA_IN:
    case JINJA_NOT_IN: ok = st_jinja_contains(machine, b, a, out); break;
    default:
        ok = st_jinja_compare(machine, a, b, name, &order);
        *out = order == (name[0] == '<' ? -1 : 1) || (name[1] == '=' && order == 0);
    }
    if (ok && negated) *out = !*out;
    return ok;
}
