#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "chat/format.h"
#include "chat/native.h"

/* Filters of single values: defaults, numbers, JSON. */

static bool filter_default(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool replace =
        call->self.kind == JINJA_UNDEFINED || (st_jinja_truth(call->slots[1]) && !st_jinja_truth(call->self));
    if (replace && !st_jinja_given(call->slots[0])) return st_jinja_string_new(machine, ST_STR(""), false, out);
    *out = replace ? call->slots[0] : call->self;
    return true;
}

static bool filter_length(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    size_t length;
    if (!st_jinja_length(machine, call->self, &length)) return false;
    *out = st_jinja_integer((int64_t)length);
    return true;
}

static bool filter_attr(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    if (call->self.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, call->self.undefined);
    const jinja_string *name;
    if (!st_jinja_want_string(machine, call->slots[0], "attr", &name)) return false;
    bool is_item = call->self.kind == JINJA_DICT && !st_jinja_find(&st_jinja_dict_methods, st_jinja_view(name));
    if (is_item) return st_jinja_undefined_member(machine, JINJA_DICT, call->slots[0], false, out);
    return st_jinja_attribute(machine, call->self, call->slots[0], out);
}

/* ---- numbers ---- */

/* Python's int(text, base): blanks around, a sign, digits with single underscores between. */
static bool parse_integer(st_str text, int64_t base, int64_t *out)
{
    size_t i = 0, end = text.length;
    while (i < end && st_jinja_is_space((unsigned char)text.data[i])) i++;
    while (end > i && st_jinja_is_space((unsigned char)text.data[end - 1])) end--;
    bool negative = i < end && text.data[i] == '-';
    if (i < end && (text.data[i] == '-' || text.data[i] == '+')) i++;
    static const struct {
        char letter;
        int64_t base;
    } prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++) {
        bool has = base == prefixes[p].base && end - i > 2 && text.data[i] == '0' &&
                   (text.data[i + 1] | 0x20) == prefixes[p].letter;
        if (has) i += 2;
    }
    if (i == end) return false;
    int64_t value = 0;
    for (size_t first = i; i < end; i++) {
        char c = text.data[i];
        if (c == '_' && i > first && i + 1 < end && text.data[i - 1] != '_') continue;
        int64_t digit = c >= '0' && c <= '9'                     ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                                 : 99;
        if (digit >= base || __builtin_mul_overflow(value, base, &value)) return false;
        if (__builtin_add_overflow(value, negative ? -digit : digit, &value)) return false;
    }
    *out = value;
    return true;
}

static bool real_to_integer(double real, jinja_value *out)
{
    if (!(fabs(real) < 9.2e18)) return false;
    *out = st_jinja_integer((int64_t)real);
    return true;
}

static bool filter_int(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_value self = call->self;
    int64_t base = 10, integer;
    double real;
    if (self.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, self.undefined);
    if (st_jinja_given(call->slots[1]) && !st_jinja_integer_of(machine, call->slots[1], "int", &base)) return false;
    if (base < 2 || base > 36) return st_jinja_fail(machine, "int: the base must be between 2 and 36");
    *out = st_jinja_given(call->slots[0]) ? call->slots[0] : st_jinja_integer(0);
    if (st_jinja_is_integer(self)) *out = st_jinja_integer(st_jinja_whole(self));
    else if (self.kind == JINJA_FLOAT) real_to_integer(self.real, out);
    else if (self.kind == JINJA_STRING) {
        st_str text = st_jinja_view(self.string);
        if (parse_integer(text, base, &integer)) *out = st_jinja_integer(integer);
        else if (st_jinja_parse_float(text, &real)) real_to_integer(real, out);
    }
    return true;
}

static bool filter_float(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_value self = call->self;
    double real;
    if (self.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, self.undefined);
    *out = st_jinja_given(call->slots[0]) ? call->slots[0] : st_jinja_float(0.0);
    if (st_jinja_is_number(self)) *out = st_jinja_float(st_jinja_real_of(self));
    else if (self.kind == JINJA_STRING && st_jinja_parse_float(st_jinja_view(self.string), &real))
        *out = st_jinja_float(real);
    return true;
}

static bool want_number(jinja_machine *machine, jinja_value value, const char *filter)
{
    if (value.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, value.undefined);
    if (st_jinja_is_number(value)) return true;
    return st_jinja_fail(machine, "%s: expected a number, found '%s'", filter, st_jinja_type_name(value));
}

static bool filter_abs(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_value self = call->self;
    if (!want_number(machine, self, "abs")) return false;
    if (self.kind == JINJA_FLOAT) *out = st_jinja_float(fabs(self.real));
    else if (self.kind == JINJA_BOOL) *out = st_jinja_integer(self.boolean);
    else if (self.integer >= 0) *out = self;
    else return st_jinja_binary(machine, '-', st_jinja_integer(0), self, out);
    return true;
}

/* Python rounds the exact decimal value, halves to even, and so does printf. */
static double round_common(double value, int64_t precision)
{
    char text[512];
    if (!isfinite(value)) return value;
    if (precision < 0) {
        double scale = pow(10.0, (double)-precision);
        return isfinite(scale) ? nearbyint(value / scale) * scale : 0.0;
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, value);
    return strtod(text, NULL);
}

static bool filter_round(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *method = NULL;
    int64_t precision = 0;
    jinja_value self = call->self;
    if (!want_number(machine, self, "round")) return false;
    if (st_jinja_given(call->slots[0]) && !st_jinja_integer_of(machine, call->slots[0], "round", &precision))
        return false;
    if (precision > 100 || precision < -400) return st_jinja_fail(machine, "round: the precision is beyond 100 digits");
    if (st_jinja_given(call->slots[1]) && !st_jinja_want_string(machine, call->slots[1], "round", &method))
        return false;
    st_str name = method ? st_jinja_view(method) : ST_STR("common");
    double scale = pow(10.0, (double)precision), real = st_jinja_real_of(self);
    if (st_str_is(name, "common")) {
        bool whole = self.kind != JINJA_FLOAT && precision >= 0;
        *out = whole ? st_jinja_integer(st_jinja_whole(self)) : st_jinja_float(round_common(real, precision));
        if (!whole && self.kind != JINJA_FLOAT) real_to_integer(out->real, out);
        return true;
    }
    if (st_str_is(name, "ceil")) *out = st_jinja_float(ceil(real * scale) / scale);
    else if (st_str_is(name, "floor")) *out = st_jinja_float(floor(real * scale) / scale);
    else return st_jinja_fail(machine, "round: method must be common, ceil or floor");
    return true;
}

/* ---- JSON ---- */

static bool separator_of(jinja_machine *machine, jinja_value pair, size_t index, const char *fallback,
                         const jinja_string **out)
{
    bool given = pair.kind == JINJA_TUPLE || pair.kind == JINJA_LIST;
    if (given && pair.list->count == 2) return st_jinja_want_string(machine, pair.list->items[index], "tojson", out);
    if (st_jinja_given_value(pair))
        return st_jinja_fail(machine, "tojson: separators must be a pair of strings");
    jinja_value text;
    if (!st_jinja_string_new(machine, st_str_from(fallback), false, &text)) return false;
    *out = text.string;
    return true;
}

static bool json_indent(jinja_machine *machine, jinja_value indent, const jinja_string **out)
{
    jinja_string blank = {.bytes = " ", .length = 1, .ascii = true};
    jinja_value text = indent;
    int64_t width;
    if (!st_jinja_given_value(indent)) return true;
    if (indent.kind != JINJA_STRING) {
        if (!st_jinja_integer_of(machine, indent, "tojson", &width)) return false;
        if (!st_jinja_string_repeat(machine, &blank, width, &text)) return false;
    }
    *out = text.string;
    return true;
}

static bool filter_tojson(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_builder builder = {.machine = machine};
    jinja_json_style style = {.ascii = st_jinja_truth(call->slots[0]), .sort_keys = st_jinja_truth(call->slots[3])};
    return json_indent(machine, call->slots[1], &style.indent) &&
           separator_of(machine, call->slots[2], 0, style.indent ? "," : ", ", &style.item_separator) &&
           separator_of(machine, call->slots[2], 1, ": ", &style.key_separator) &&
           st_jinja_add_json(&builder, call->self, &style) && st_jinja_builder_finish(&builder, out);
}

static const jinja_native value_rows[] = {
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson, 0},
    {"default", "default_value boolean", 0, filter_default, 0},
    {"d", "default_value boolean", 0, filter_default, 0},
    {"length", "", 0, filter_length, 0},
    {"count", "", 0, filter_length, 0},
    {"attr", "name", 1, filter_attr, 0},
    {"int", "default base", 0, filter_int, 0},
    {"float", "default", 0, filter_float, 0},
    {"abs", "", 0, filter_abs, 0},
    {"round", "precision method", 0, filter_round, 0},
};
const jinja_native_table st_jinja_value_filters = {value_rows, sizeof value_rows / sizeof *value_rows};
