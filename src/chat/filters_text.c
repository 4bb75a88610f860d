#include "chat/format.h"
#include "chat/native.h"
#include "chat/printf.h"

/* Filters of text. A value that is not a string is converted first, as in Jinja. */

/* Applies a string method to the value as text. */
static bool as_method(jinja_machine *machine, const jinja_call *call, const char *method,
                      const jinja_arguments *arguments, jinja_value *out)
{
    const jinja_string *text;
    return st_jinja_to_string(machine, call->self, &text) &&
           st_jinja_call_native(machine, st_jinja_find(&st_jinja_string_methods, st_str_from(method)),
                                st_jinja_text(text), arguments, out);
}

static bool filter_trim(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_arguments arguments = {call->slots, st_jinja_given(call->slots[0]) ? 1 : 0, NULL, 0};
    return as_method(machine, call, "strip", &arguments, out);
}

static bool filter_case(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text;
    return st_jinja_to_string(machine, call->self, &text) &&
           st_jinja_string_case(machine, text, (jinja_case)call->mode, out);
}

static bool starts_word(uint32_t code)
{
    return code == '-' || code == '(' || code == '{' || code == '[' || code == '<' || st_jinja_is_space(code);
}

/* Unlike the method, the filter starts a word only after a blank or an opening bracket. */
static bool filter_title(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text;
    jinja_builder builder = {.machine = machine};
    bool at_start = true;
    if (!st_jinja_to_string(machine, call->self, &text)) return false;
    for (size_t i = 0, length; i < text->length; i += length) {
        uint32_t code = st_jinja_string_code(text, i, &length);
        jinja_value piece, changed;
        if (!st_jinja_charge(machine, 1) || !st_jinja_string_slice(machine, text, i, i + length, &piece) ||
            !st_jinja_string_case(machine, piece.string, at_start ? JINJA_UPPER : JINJA_LOWER, &changed) ||
            !st_jinja_add_string(&builder, changed.string)) {
            return false;
        }
        at_start = starts_word(code);
    }
    return st_jinja_builder_finish(&builder, out);
}

static bool filter_replace(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text, *from, *to;
    int64_t limit = -1;
    bool limited = st_jinja_given_value(call->slots[2]);
    return st_jinja_to_string(machine, call->self, &text) && st_jinja_to_string(machine, call->slots[0], &from) &&
           st_jinja_to_string(machine, call->slots[1], &to) &&
           (!limited || st_jinja_integer_of(machine, call->slots[2], "replace", &limit)) &&
           st_jinja_string_replace(machine, text, from, to, limit, out);
}

static bool filter_string(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text;
    if (!st_jinja_to_string(machine, call->self, &text)) return false;
    *out = st_jinja_text(text);
    return true;
}

static bool filter_safe(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text;
    return st_jinja_to_string(machine, call->self, &text) && st_jinja_string_safe(machine, text, out);
}

static bool filter_force_escape(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text;
    jinja_value escaped;
    return st_jinja_to_string(machine, call->self, &text) && st_jinja_string_escape(machine, text, &escaped) &&
           st_jinja_string_safe(machine, escaped.string, out);
}

static bool filter_escape(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    if (call->self.kind != JINJA_STRING || !call->self.string->safe) return filter_force_escape(machine, call, out);
    *out = call->self;
    return true;
}

/* Puts the indentation before each line but the first. */
static bool indent_prefix(jinja_machine *machine, jinja_value width, jinja_value *out)
{
    jinja_string blank = {.bytes = " ", .length = 1, .ascii = true};
    int64_t count = 4;
    if (width.kind == JINJA_STRING) {
        *out = width;
        return true;
    }
    if (st_jinja_given(width) && !st_jinja_integer_of(machine, width, "indent", &count)) return false;
    return st_jinja_string_repeat(machine, &blank, count, out);
}

static bool filter_indent(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    static const jinja_arguments none = {0};
    const jinja_string *text;
    jinja_value prefix, lines;
    jinja_builder builder = {.machine = machine};
    bool first = st_jinja_truth(call->slots[1]), blank = st_jinja_truth(call->slots[2]);
    const jinja_native *splitlines = st_jinja_find(&st_jinja_string_methods, ST_STR("splitlines"));
    if (!st_jinja_want_string(machine, call->self, "indent", &text) || !indent_prefix(machine, call->slots[0], &prefix))
        return false;
    jinja_string newline = {.bytes = "\n", .length = 1, .ascii = true};
    jinja_value extended;
    if (!st_jinja_string_concat(machine, text, &newline, &extended))
        return false; /* counts a last empty line */
    if (!st_jinja_call_native(machine, splitlines, extended, &none, &lines)) return false;
    if (first && !st_jinja_add_string(&builder, prefix.string)) return false;
    for (size_t i = 0; i < lines.list->count; i++) {
        const jinja_string *line = lines.list->items[i].string;
        if (i && !st_jinja_add_literal(&builder, "\n")) return false;
        if (i && (line->length || blank) && !st_jinja_add_string(&builder, prefix.string)) return false;
        if (!st_jinja_add_string(&builder, line)) return false;
    }
    return st_jinja_builder_finish(&builder, out);
}

static bool filter_format(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *pattern;
    if (call->rest.count && call->rest.keyword_count) {
        return st_jinja_fail(machine, "format: positional and keyword arguments do not go together");
    }
    return st_jinja_to_string(machine, call->self, &pattern) &&
           st_jinja_format_percent(machine, pattern, &call->rest, st_jinja_none(), out);
}

static bool filter_center(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_value width = st_jinja_given(call->slots[0]) ? call->slots[0] : st_jinja_integer(80);
    jinja_arguments arguments = {&width, 1, NULL, 0};
    return as_method(machine, call, "center", &arguments, out);
}

static bool filter_wordcount(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text;
    int64_t count = 0;
    bool inside = false;
    if (!st_jinja_to_string(machine, call->self, &text) || !st_jinja_charge_bytes(machine, text->length)) return false;
    for (size_t i = 0, length; i < text->length; i += length) {
        uint32_t code = st_jinja_string_code(text, i, &length);
        bool is_word = code >= 0x80 ? !st_jinja_is_space(code)
                                    : (code >= '0' && code <= '9') || ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') ||
                                          code == '_';
        count += is_word && !inside;
        inside = is_word;
    }
    *out = st_jinja_integer(count);
    return true;
}

/* Shortens to `length` characters, the end mark included, at a blank unless `killwords`. */
static bool filter_truncate(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *text, *end;
    int64_t length = 255, leeway = 5;
    jinja_value dots = call->slots[2], cut;
    if (call->self.kind == JINJA_UNDEFINED) {
        *out = call->self;
        return true;
    }
    if (!st_jinja_want_string(machine, call->self, "truncate", &text)) return false;
    if (st_jinja_given(call->slots[0]) && !st_jinja_integer_of(machine, call->slots[0], "truncate", &length))
        return false;
    if (st_jinja_given_value(call->slots[3]) && !st_jinja_integer_of(machine, call->slots[3], "truncate", &leeway))
        return false;
    if (!st_jinja_given(dots) && !st_jinja_string_new(machine, ST_STR("..."), false, &dots)) return false;
    if (!st_jinja_want_string(machine, dots, "truncate", &end)) return false;
    int64_t count = (int64_t)st_jinja_string_count(text), mark = (int64_t)st_jinja_string_count(end);
    if (length < mark || leeway < 0)
        return st_jinja_fail(machine, "truncate: expected length >= %lld", (long long)mark);
    if (count - leeway <= length) return filter_string(machine, call, out);
    size_t to = st_jinja_string_offset(text, (size_t)(length - mark));
    if (!st_jinja_truth(call->slots[1])) {
        size_t blank = to;
        while (blank > 0 && text->bytes[blank - 1] != ' ') blank--;
        if (blank > 0) to = blank - 1;
    }
    return st_jinja_string_slice(machine, text, 0, to, &cut) && st_jinja_string_concat(machine, cut.string, end, out);
}

static const jinja_native text_rows[] = {
    {"trim", "chars", 0, filter_trim, 0},
    {"upper", "", 0, filter_case, JINJA_UPPER},
    {"lower", "", 0, filter_case, JINJA_LOWER},
    {"capitalize", "", 0, filter_case, JINJA_CAPITALIZE},
    {"title", "", 0, filter_title, 0},
    {"replace", "old new count", 2, filter_replace, 0},
    {"string", "", 0, filter_string, 0},
    {"safe", "", 0, filter_safe, 0},
    {"escape", "", 0, filter_escape, 0},
    {"e", "", 0, filter_escape, 0},
    {"forceescape", "", 0, filter_force_escape, 0},
    {"indent", "width first blank", 0, filter_indent, 0},
    {"format", "* **", 0, filter_format, 0},
    {"center", "width", 0, filter_center, 0},
    {"wordcount", "", 0, filter_wordcount, 0},
    {"truncate", "length killwords end leeway", 0, filter_truncate, 0},
};
const jinja_native_table st_jinja_text_filters = {text_rows, sizeof text_rows / sizeof *text_rows};
