#include "chat/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

/* ---- floats ---- */

/* The C library writes the locale's decimal point; values need '.'. */
static char decimal_point(void)
{
    char sample[8];
    snprintf(sample, sizeof sample, "%.1f", 0.5);
    return sample[1];
}

/* Splits |value| into its shortest digits and the position of the decimal point. */
static size_t shortest_digits(double value, char digits[20], int *exponent)
{
    char text[32];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    size_t count = 0;
    const char *c = text;
    for (; *c && *c != 'e'; c++) {
        if (*c >= '0' && *c <= '9') digits[count++] = *c;
    }
    *exponent = (int)strtol(c + 1, NULL, 10);
    while (count > 1 && digits[count - 1] == '0') count--;
    return count;
}

void st_jinja_format_float(double value, char out[JINJA_FLOAT_BYTES])
{
    if (isnan(value) || isinf(value)) {
        snprintf(out, JINJA_FLOAT_BYTES, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    char digits[20] = "0";
    int exponent, used = 0;
    size_t count = shortest_digits(fabs(value), digits, &exponent);
    if (signbit(value)) out[used++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[used++] = digits[0];
        if (count > 1) out[used++] = '.';
        for (size_t i = 1; i < count; i++) out[used++] = digits[i];
        snprintf(out + used, JINJA_FLOAT_BYTES - (size_t)used, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        out[used++] = '0';
        out[used++] = '.';
        for (int i = -1; i > exponent; i--) out[used++] = '0';
        for (size_t i = 0; i < count; i++) out[used++] = digits[i];
    } else {
        for (int i = 0; i <= exponent; i++) out[used++] = (size_t)i < count ? digits[i] : '0';
        out[used++] = '.';
        if (count <= (size_t)exponent + 1) out[used++] = '0';
        for (size_t i = (size_t)exponent + 1; i < count; i++) out[used++] = digits[i];
    }
    out[used] = '\0';
}

bool st_jinja_parse_float(st_str text, double *out)
{
    char buffer[512];
    size_t length = 0, i = 0;
    while (i < text.length && st_jinja_is_space((unsigned char)text.data[i])) i++;
    while (text.length > i && st_jinja_is_space((unsigned char)text.data[text.length - 1])) text.length--;
    if (i == text.length || text.length - i >= sizeof buffer) return false;
    bool word = false;
    for (; i < text.length; i++) {
        char c = text.data[i];
        if (c == '_') continue;
        if (c == 'x' || c == 'X' || c == 'p' || c == 'P' || c == '(' || c == '\0')
            return false; /* hexadecimal floats are not Python */
        word = word || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z' && (c | 0x20) != 'e');
        buffer[length++] = c == '.' ? decimal_point() : c;
    }
    buffer[length] = '\0';
    char *end;
    *out = strtod(buffer, &end);
    if (end != buffer + length || length == 0) return false;
    return !word || isnan(*out) || isinf(*out);
}

/* ---- Python's str and repr ---- */

static bool is_printable(uint32_t code)
{
    if (code < 0x80) return code >= 0x20 && code < 0x7F;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

/* Escapes one character as repr() does; the bytes of the escape have the mark of the character. */
static bool add_repr_escape(jinja_builder *builder, uint32_t code, bool foreign)
{
    static const char plain[] = "\nn\rr\tt\\\\";
    char text[16];
    for (size_t i = 0; i + 1 < sizeof plain; i += 2) {
        if (code != (unsigned char)plain[i]) continue;
        snprintf(text, sizeof text, "\\%c", plain[i + 1]);
        return st_jinja_add_bytes(builder, text, 2, foreign);
    }
    int length = code < 0x100     ? snprintf(text, sizeof text, "\\x%02x", (unsigned)code)
                 : code < 0x10000 ? snprintf(text, sizeof text, "\\u%04x", (unsigned)code)
                                  : snprintf(text, sizeof text, "\\U%08x", (unsigned)code);
    return st_jinja_add_bytes(builder, text, (size_t)length, foreign);
}

static bool add_string_repr(jinja_builder *builder, const jinja_string *string)
{
    bool has_single = memchr(string->bytes, '\'', string->length),
         has_double = memchr(string->bytes, '"', string->length);
    const char *quote = has_single && !has_double ? "\"" : "'";
    if (string->safe && !st_jinja_add_literal(builder, "Markup(")) return false;
    if (!st_jinja_add_literal(builder, quote)) return false;
    for (size_t i = 0, length; i < string->length; i += length) {
        uint32_t code = st_jinja_string_code(string, i, &length);
        bool foreign = st_jinja_is_foreign(string, i), ok;
        if (code == (unsigned char)*quote) ok = st_jinja_add_bytes(builder, "\\'", 2, foreign);
        else if (code == '\\' || !is_printable(code)) ok = add_repr_escape(builder, code, foreign);
        else ok = st_jinja_add_slice(builder, string, i, i + length);
        if (!ok) return false;
    }
    return st_jinja_add_literal(builder, quote) && (!string->safe || st_jinja_add_literal(builder, ")"));
}

static bool add_nested(jinja_builder *builder, jinja_value value, size_t depth);

static bool add_items(jinja_builder *builder, const jinja_list *list, const char *open, const char *close, size_t depth)
{
    if (!st_jinja_add_literal(builder, open)) return false;
    for (size_t i = 0; i < list->count; i++) {
        if (i && !st_jinja_add_literal(builder, ", ")) return false;
        if (!add_nested(builder, list->items[i], depth)) return false;
    }
    return st_jinja_add_literal(builder, close);
}

static bool add_dict(jinja_builder *builder, const jinja_dict *dict, size_t depth)
{
    if (!st_jinja_add_literal(builder, "{")) return false;
    for (size_t i = 0; i < dict->count; i++) {
        if (i && !st_jinja_add_literal(builder, ", ")) return false;
        if (!add_nested(builder, dict->entries[i].key, depth) || !st_jinja_add_literal(builder, ": ") ||
            !add_nested(builder, dict->entries[i].value, depth)) {
            return false;
        }
    }
    return st_jinja_add_literal(builder, "}");
}

static bool add_number(jinja_builder *builder, jinja_value value)
{
    char text[JINJA_FLOAT_BYTES];
    if (value.kind == JINJA_FLOAT) st_jinja_format_float(value.real, text);
    else snprintf(text, sizeof text, "%lld", (long long)value.integer);
    return st_jinja_add_literal(builder, text);
}

static bool add_range(jinja_builder *builder, const jinja_range *range)
{
    char text[96];
    long long start = range->start, stop = range->stop, step = range->step;
    if (step == 1) snprintf(text, sizeof text, "range(%lld, %lld)", start, stop);
    else snprintf(text, sizeof text, "range(%lld, %lld, %lld)", start, stop, step);
    return st_jinja_add_literal(builder, text);
}

static bool add_container(jinja_builder *builder, jinja_value value, size_t depth)
{
    char text[64];
    switch (value.kind) {
    case JINJA_LIST: return add_items(builder, value.list, "[", "]", depth);
    case JINJA_TUPLE: return add_items(builder, value.list, "(", value.list->count == 1 ? ",)" : ")", depth);
    case JINJA_VIEW:
        snprintf(text, sizeof text, "%s([", st_jinja_type_name(value));
        return add_items(builder, value.list, text, "])", depth);
    case JINJA_DICT: return add_dict(builder, value.dict, depth);
    case JINJA_NAMESPACE:
        return st_jinja_add_literal(builder, "<Namespace ") && add_dict(builder, value.dict, depth) &&
               st_jinja_add_literal(builder, ">");
    case JINJA_RANGE: return add_range(builder, value.range);
    default:
        snprintf(text, sizeof text, "<%s object>", st_jinja_type_name(value));
        return st_jinja_add_literal(builder, text);
    }
}

static bool add_nested(jinja_builder *builder, jinja_value value, size_t depth)
{
    jinja_machine *machine = builder->machine;
    if (!st_jinja_charge(machine, 1)) return false;
    if (depth > machine->limits.depth_max)
        return st_jinja_fail_limit(machine, "levels of nesting", machine->limits.depth_max);
    switch (value.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED: return st_jinja_add_literal(builder, "Undefined");
    case JINJA_NONE: return st_jinja_add_literal(builder, "None");
    case JINJA_BOOL: return st_jinja_add_literal(builder, value.boolean ? "True" : "False");
    case JINJA_INTEGER:
    case JINJA_FLOAT: return add_number(builder, value);
    case JINJA_STRING: return add_string_repr(builder, value.string);
    default: return add_container(builder, value, depth + 1);
    }
}

bool st_jinja_add_repr(jinja_builder *builder, jinja_value value)
{
    return add_nested(builder, value, 0);
}

bool st_jinja_add_value(jinja_builder *builder, jinja_value value)
{
    if (value.kind == JINJA_STRING) return st_jinja_add_string(builder, value.string);
    if (value.kind == JINJA_UNDEFINED) {
        /* An attribute that the sandbox hides must not be printed either. */
        return !value.undefined->unsafe || st_jinja_fail_undefined(builder->machine, value.undefined);
    }
    return add_nested(builder, value, 0);
}

bool st_jinja_to_string(jinja_machine *machine, jinja_value value, const jinja_string **out)
{
    jinja_value text = value;
    if (value.kind != JINJA_STRING) {
        jinja_builder builder = {.machine = machine};
        if (!st_jinja_add_value(&builder, value) || !st_jinja_builder_finish(&builder, &text)) return false;
    }
    *out = text.string;
    return true;
}

/* ---- JSON ---- */

static bool add_json_escape(jinja_builder *builder, uint32_t code, bool foreign)
{
    static const char plain[] = "\nn\rr\tt\bb\ff\\\\\"\"";
    char text[16];
    int length = 0;
    for (size_t i = 0; i + 1 < sizeof plain && length == 0; i += 2) {
        if (code == (unsigned char)plain[i]) length = snprintf(text, sizeof text, "\\%c", plain[i + 1]);
    }
    if (length == 0 && code < 0x10000) length = snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
    if (length == 0) {
        unsigned rest = (unsigned)code - 0x10000;
        length = snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 | rest >> 10, 0xDC00 | (rest & 0x3FF));
    }
    return st_jinja_add_bytes(builder, text, (size_t)length, foreign);
}

static bool add_json_string(jinja_builder *builder, const jinja_string *string, bool ascii)
{
    if (!st_jinja_add_literal(builder, "\"")) return false;
    size_t start = 0; /* start of the run without escapes */
    for (size_t i = 0, length; i < string->length; i += length) {
        unsigned char c = (unsigned char)string->bytes[i];
        length = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (!ascii || c < 0x7F)) continue;
        uint32_t code = st_jinja_string_code(string, i, &length);
        if (!st_jinja_add_slice(builder, string, start, i)) return false;
        if (!add_json_escape(builder, code, st_jinja_is_foreign(string, i))) return false;
        start = i + length;
    }
    return st_jinja_add_slice(builder, string, start, string->length) && st_jinja_add_literal(builder, "\"");
}

static bool add_json_number(jinja_builder *builder, jinja_value value)
{
    if (value.kind != JINJA_FLOAT || isfinite(value.real)) return add_number(builder, value);
    return st_jinja_add_literal(builder, isnan(value.real) ? "NaN" : value.real < 0 ? "-Infinity" : "Infinity");
}

static bool add_json_key(jinja_builder *builder, jinja_value key, bool ascii)
{
    switch (key.kind) {
    case JINJA_STRING: return add_json_string(builder, key.string, ascii);
    case JINJA_NONE: return st_jinja_add_literal(builder, "\"null\"");
    case JINJA_BOOL: return st_jinja_add_literal(builder, key.boolean ? "\"true\"" : "\"false\"");
    case JINJA_INTEGER:
    case JINJA_FLOAT:
        return st_jinja_add_literal(builder, "\"") && add_json_number(builder, key) &&
               st_jinja_add_literal(builder, "\"");
    default:
        return st_jinja_fail(builder->machine, "keys must be str, int, float, bool or None, not %s",
                             st_jinja_type_name(key));
    }
}

static bool add_json_break(jinja_builder *builder, const jinja_json_style *style, size_t depth)
{
    if (!style->indent) return true;
    if (!st_jinja_add_literal(builder, "\n")) return false;
    for (size_t i = 0; i < depth; i++) {
        if (!st_jinja_add_string(builder, style->indent)) return false;
    }
    return true;
}

static bool add_json_nested(jinja_builder *builder, jinja_value value, const jinja_json_style *style, size_t depth);

static bool add_json_list(jinja_builder *builder, const jinja_list *list, const jinja_json_style *style, size_t depth)
{
    if (list->count == 0) return st_jinja_add_literal(builder, "[]");
    if (!st_jinja_add_literal(builder, "[")) return false;
    for (size_t i = 0; i < list->count; i++) {
        if (i && !st_jinja_add_string(builder, style->item_separator)) return false;
        if (!add_json_break(builder, style, depth) || !add_json_nested(builder, list->items[i], style, depth))
            return false;
    }
    return add_json_break(builder, style, depth - 1) && st_jinja_add_literal(builder, "]");
}

/* The entries in output order. */
static bool ordered_entries(jinja_machine *machine, const jinja_dict *dict, bool sorted, const jinja_entry **out)
{
    *out = dict->entries;
    if (!sorted || dict->count < 2) return true;
    jinja_value *keys = st_jinja_alloc(machine, dict->count, sizeof *keys);
    jinja_value *places = st_jinja_alloc(machine, dict->count, sizeof *places);
    jinja_entry *entries = st_jinja_alloc(machine, dict->count, sizeof *entries);
    if (!keys || !places || !entries) return false;
    for (size_t i = 0; i < dict->count; i++) {
        keys[i] = dict->entries[i].key;
        places[i] = st_jinja_integer((int64_t)i);
    }
    if (!st_jinja_sort(machine, places, keys, dict->count, false)) return false;
    for (size_t i = 0; i < dict->count; i++) entries[i] = dict->entries[places[i].integer];
    *out = entries;
    return true;
}

static bool add_json_dict(jinja_builder *builder, const jinja_dict *dict, const jinja_json_style *style, size_t depth)
{
    const jinja_entry *entries;
    if (dict->count == 0) return st_jinja_add_literal(builder, "{}");
    if (!ordered_entries(builder->machine, dict, style->sort_keys, &entries)) return false;
    if (!st_jinja_add_literal(builder, "{")) return false;
    for (size_t i = 0; i < dict->count; i++) {
        if (i && !st_jinja_add_string(builder, style->item_separator)) return false;
        if (!add_json_break(builder, style, depth) || !add_json_key(builder, entries[i].key, style->ascii) ||
            !st_jinja_add_string(builder, style->key_separator) ||
            !add_json_nested(builder, entries[i].value, style, depth)) {
            return false;
        }
    }
    return add_json_break(builder, style, depth - 1) && st_jinja_add_literal(builder, "}");
}

static bool add_json_nested(jinja_builder *builder, jinja_value value, const jinja_json_style *style, size_t depth)
{
    jinja_machine *machine = builder->machine;
    if (!st_jinja_charge(machine, 1)) return false;
    if (depth > machine->limits.depth_max)
        return st_jinja_fail_limit(machine, "levels of nesting", machine->limits.depth_max);
    switch (value.kind) {
    case JINJA_NONE: return st_jinja_add_literal(builder, "null");
    case JINJA_BOOL: return st_jinja_add_literal(builder, value.boolean ? "true" : "false");
    case JINJA_INTEGER:
    case JINJA_FLOAT: return add_json_number(builder, value);
    case JINJA_STRING: return add_json_string(builder, value.string, style->ascii);
    case JINJA_LIST:
    case JINJA_TUPLE: return add_json_list(builder, value.list, style, depth + 1);
    case JINJA_DICT: return add_json_dict(builder, value.dict, style, depth + 1);
    default: return st_jinja_fail(machine, "Object of type %s is not JSON serializable", st_jinja_type_name(value));
    }
}

bool st_jinja_add_json(jinja_builder *builder, jinja_value value, const jinja_json_style *style)
{
    return add_json_nested(builder, value, style, 0);
}
