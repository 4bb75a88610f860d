#include "chat/printf.h"

#include <math.h>
#include <stdio.h>

#include "chat/format.h"

enum { NUMBER_BYTES = 512, PRECISION_MAX = 100, WIDTH_MAX = 100000 };

/* The specification between the marker and the conversion letter, of both kinds of format. */
typedef struct spec {
    uint32_t fill;
    char align; /* '<', '>', '^', '=' or 0 */
    char sign;  /* '+', ' ' or 0 */
    bool alternate, grouped;
    int64_t width, precision; /* -1: none */
    char letter;              /* 0: none */
} spec;

static bool add_fill(jinja_builder *builder, uint32_t fill, size_t count)
{
    while (count-- > 0) {
        if (!st_jinja_add_code(builder, fill, false)) return false;
    }
    return true;
}

/* `=` fills between the sign and the digits. */
static bool add_padded(jinja_builder *builder, const spec *s, char align, const jinja_string *text, size_t sign_length)
{
    size_t count = st_jinja_string_count(text), width = s->width > 0 ? (size_t)s->width : 0;
    size_t room = width > count ? width - count : 0, sign = align == '=' ? sign_length : 0;
    size_t after = align == '<' ? room : align == '^' ? room - room / 2 : 0;
    return st_jinja_add_slice(builder, text, 0, sign) && add_fill(builder, s->fill, room - after) &&
           st_jinja_add_slice(builder, text, sign, text->length) && add_fill(builder, s->fill, after);
}

static bool add_text(jinja_builder *builder, const spec *s, const jinja_string *text, char align)
{
    jinja_value cut = st_jinja_text(text);
    if (s->precision >= 0) {
        size_t end = st_jinja_string_offset(text, (size_t)s->precision);
        if (!st_jinja_string_slice(builder->machine, text, 0, end, &cut)) return false;
    }
    return add_padded(builder, s, align, cut.string, 0);
}

/* Puts a comma between groups of three digits of the integer part. */
static void group_digits(char text[NUMBER_BYTES])
{
    size_t whole = strspn(text, "0123456789");
    for (size_t at = whole; at > 3; at -= 3) {
        size_t place = at - 3, length = strlen(text);
        if (length + 2 > NUMBER_BYTES) return;
        memmove(text + place + 1, text + place, length - place + 1);
        text[place] = ',';
    }
}

static void write_binary(unsigned long long value, char text[NUMBER_BYTES])
{
    char digits[65];
    size_t count = 0;
    do digits[count++] = (char)('0' + (value & 1));
    while (value >>= 1);
    for (size_t i = 0; i < count; i++) text[i] = digits[count - 1 - i];
    text[count] = '\0';
}

static void write_integer(const spec *s, int64_t value, char text[NUMBER_BYTES])
{
    unsigned long long size = value < 0 ? 0ULL - (unsigned long long)value : (unsigned long long)value;
    const char *prefix = !s->alternate      ? ""
                         : s->letter == 'x' ? "0x"
                         : s->letter == 'X' ? "0X"
                         : s->letter == 'o' ? "0o"
                         : s->letter == 'b' ? "0b"
                                            : "";
    size_t used = strlen(prefix);
    memcpy(text, prefix, used + 1);
    switch (s->letter) {
    case 'x': snprintf(text + used, NUMBER_BYTES - used, "%llx", size); break;
    case 'X': snprintf(text + used, NUMBER_BYTES - used, "%llX", size); break;
    case 'o': snprintf(text + used, NUMBER_BYTES - used, "%llo", size); break;
    case 'b': write_binary(size, text + used); break;
    default: snprintf(text + used, NUMBER_BYTES - used, "%llu", size);
    }
}

static void write_real(const spec *s, double value, char text[NUMBER_BYTES])
{
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    double size = fabs(value);
    if (!isfinite(value)) snprintf(text, NUMBER_BYTES, "%s", isnan(value) ? "nan" : "inf");
    else if (s->letter == 'e') snprintf(text, NUMBER_BYTES, "%.*e", precision, size);
    else if (s->letter == 'E') snprintf(text, NUMBER_BYTES, "%.*E", precision, size);
    else if (s->letter == 'g' || s->letter == 'G') snprintf(text, NUMBER_BYTES, "%.*g", precision, size);
    else if (s->letter == '%') snprintf(text, NUMBER_BYTES, "%.*f%%", precision, size * 100);
    else if (s->letter == 0 && s->precision < 0) st_jinja_format_float(size, text);
    else if (s->letter == 0) snprintf(text, NUMBER_BYTES, "%.*g", precision ? precision : 1, size);
    else snprintf(text, NUMBER_BYTES, "%.*f", precision, size);
    for (char *c = text; *c; c++) {
        if (*c == ',') *c = '.'; /* the locale's decimal point */
    }
}

static bool add_number(jinja_builder *builder, const spec *s, jinja_value value, bool as_real)
{
    char text[NUMBER_BYTES + 2];
    bool negative = as_real ? signbit(st_jinja_real_of(value)) != 0
                            : value.kind == JINJA_INTEGER && value.integer < 0;
    char sign = negative ? '-' : s->sign;
    size_t used = sign ? 1 : 0;
    text[0] = sign;
    if (as_real) write_real(s, st_jinja_real_of(value), text + used);
    else write_integer(s, st_jinja_whole(value), text + used);
    if (s->grouped) group_digits(text + used);
    jinja_string string = {.bytes = text, .length = strlen(text), .ascii = true};
    return add_padded(builder, s, s->align ? s->align : '>', &string, used);
}

/* Reads a number at the position; does not write *out if there is none. */
static bool read_number(jinja_machine *machine, const jinja_string *pattern, size_t *position, int64_t limit,
                        int64_t *out)
{
    bool any = false;
    int64_t value = 0;
    for (; *position < pattern->length; (*position)++) {
        char c = pattern->bytes[*position];
        if (c < '0' || c > '9') break;
        value = value * 10 + (c - '0');
        any = true;
        if (value > limit)
            return st_jinja_fail(machine, "a format's width or precision is beyond %lld", (long long)limit);
    }
    if (any) *out = value;
    return true;
}

/* ---- % ---- */

typedef struct percent {
    jinja_builder builder;
    const jinja_string *pattern;
    size_t position;
    const jinja_arguments *arguments;
    size_t used;
    jinja_value whole;
    bool by_name;
} percent;

static bool percent_argument(percent *p, jinja_value *out)
{
    jinja_machine *machine = p->builder.machine;
    if (p->used == p->arguments->count) return st_jinja_fail(machine, "not enough arguments for format string");
    *out = p->arguments->items[p->used++];
    return true;
}

static bool percent_name(percent *p, jinja_value *out)
{
    jinja_machine *machine = p->builder.machine;
    const char *start = p->pattern->bytes + p->position + 1;
    const char *end = memchr(start, ')', p->pattern->length - p->position - 1);
    if (!end) return st_jinja_fail(machine, "incomplete format key");
    st_str name = {start, (size_t)(end - start)};
    p->position += name.length + 2;
    p->by_name = true;
    const jinja_keyword *keyword = st_jinja_find_keyword(p->arguments, name);
    if (keyword) {
        *out = keyword->value;
        return true;
    }
    if (p->whole.kind != JINJA_DICT) return st_jinja_fail(machine, "format requires a mapping");
    jinja_value *found = st_jinja_dict_get(p->whole.dict, name);
    if (!found) return st_jinja_fail(machine, "the format's key was not found");
    *out = *found;
    return true;
}

static bool percent_flags(percent *p, spec *s)
{
    jinja_machine *machine = p->builder.machine;
    const jinja_string *pattern = p->pattern;
    for (; p->position < pattern->length; p->position++) {
        char c = pattern->bytes[p->position];
        if (c == '-') s->align = '<';
        else if (c == '0' && s->align != '<') s->align = '=', s->fill = '0';
        else if (c == '+' || (c == ' ' && s->sign != '+')) s->sign = c;
        else if (c == '#') s->alternate = true;
        else break;
    }
    if (s->align == '<') s->fill = ' ';
    if (!read_number(machine, pattern, &p->position, WIDTH_MAX, &s->width)) return false;
    if (p->position < pattern->length && pattern->bytes[p->position] == '.') {
        p->position++;
        s->precision = 0;
        if (!read_number(machine, pattern, &p->position, PRECISION_MAX, &s->precision)) return false;
    }
    if (p->position == pattern->length) return st_jinja_fail(machine, "incomplete format");
    s->letter = pattern->bytes[p->position++];
    return true;
}

static bool percent_text(percent *p, spec *s, jinja_value value)
{
    const jinja_string *text;
    jinja_machine *machine = p->builder.machine;
    if (s->letter == 's') {
        if (!st_jinja_to_string(machine, value, &text)) return false;
    } else {
        jinja_builder inner = {.machine = machine};
        jinja_value made;
        if (!st_jinja_add_repr(&inner, value) || !st_jinja_builder_finish(&inner, &made)) return false;
        text = made.string;
    }
    if (s->fill == '0') s->fill = ' ';
    return add_text(&p->builder, s, text, s->align == '<' ? '<' : '>');
}

static bool percent_one(percent *p)
{
    jinja_machine *machine = p->builder.machine;
    spec s = {.fill = ' ', .width = -1, .precision = -1};
    jinja_value value = {0};
    bool named = p->position < p->pattern->length && p->pattern->bytes[p->position] == '(';
    if (named && !percent_name(p, &value)) return false;
    if (!percent_flags(p, &s)) return false;
    if (s.letter == '%') return st_jinja_add_literal(&p->builder, "%");
    if (!named && !percent_argument(p, &value)) return false;
    if (s.letter == 's' || s.letter == 'r') return percent_text(p, &s, value);
    if (value.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, value.undefined);
    if (!strchr("dixXouceEfFgG", s.letter))
        return st_jinja_fail(machine, "unsupported format character '%c'", s.letter);
    if (!st_jinja_is_number(value) || s.letter == 'c') {
        return st_jinja_fail(machine, "%%%c format: a real number is required, not %s", s.letter,
                             st_jinja_type_name(value));
    }
    bool as_real = strchr("eEfFgG", s.letter) != NULL;
    if (!as_real && value.kind == JINJA_FLOAT) {
        if (!(fabs(value.real) < 9e18)) return st_jinja_fail(machine, "cannot convert the float to an integer");
        value = st_jinja_integer((int64_t)value.real);
    }
    if (!as_real) s.precision = -1;
    return add_number(&p->builder, &s, value, as_real);
}

/* Python does not report unused values of a mapping, and a list counts as a mapping here. */
static bool has_items(jinja_value value)
{
    return value.kind == JINJA_DICT || value.kind == JINJA_LIST || value.kind == JINJA_RANGE ||
           value.kind == JINJA_UNDEFINED;
}

bool st_jinja_format_percent(jinja_machine *machine, const jinja_string *pattern, const jinja_arguments *arguments,
                             jinja_value whole, jinja_value *out)
{
    percent p = {.builder = {.machine = machine}, .pattern = pattern, .arguments = arguments, .whole = whole};
    while (p.position < pattern->length) {
        const char *found = memchr(pattern->bytes + p.position, '%', pattern->length - p.position);
        size_t end = found ? (size_t)(found - pattern->bytes) : pattern->length;
        if (!st_jinja_add_slice(&p.builder, pattern, p.position, end)) return false;
        p.position = end + 1;
        if (!found) break;
        if (p.position == pattern->length) return st_jinja_fail(machine, "incomplete format");
        if (!st_jinja_charge(machine, 1) || !percent_one(&p)) return false;
    }
    if (p.used < arguments->count && !p.by_name && !has_items(whole)) {
        return st_jinja_fail(machine, "not all arguments converted during string formatting");
    }
    return st_jinja_builder_finish(&p.builder, out);
}

/* ---- {} ---- */

typedef struct braces {
    jinja_builder builder;
    const jinja_string *pattern;
    size_t position;
    const jinja_arguments *arguments;
    size_t automatic; /* the number of the next {} field */
} braces;

static char at(const braces *b)
{
    return b->position < b->pattern->length ? b->pattern->bytes[b->position] : '\0';
}

/* Up to one of `ends`. */
static jinja_value read_word(braces *b, const char *ends, bool *ok)
{
    size_t from = b->position;
    while (b->position < b->pattern->length && !strchr(ends, at(b))) b->position++;
    jinja_value word = {0};
    *ok = st_jinja_string_slice(b->builder.machine, b->pattern, from, b->position, &word);
    return word;
}

static bool field_start(braces *b, jinja_value *out)
{
    jinja_machine *machine = b->builder.machine;
    bool ok;
    jinja_value word = read_word(b, ".[!:}", &ok);
    if (!ok) return false;
    st_str name = st_jinja_view(word.string);
    int64_t index = -1;
    size_t digits = 0;
    if (name.length == 0) index = (int64_t)b->automatic++;
    else if (!read_number(machine, word.string, &digits, WIDTH_MAX, &index)) return false;
    if (index >= 0 && digits == name.length) {
        if ((uint64_t)index >= b->arguments->count)
            return st_jinja_fail(machine, "format: there is no argument %lld", (long long)index);
        *out = b->arguments->items[index];
        return true;
    }
    const jinja_keyword *keyword = st_jinja_find_keyword(b->arguments, name);
    if (keyword) {
        *out = keyword->value;
        return true;
    }
    name = st_str_head(name, 60);
    return st_jinja_fail(machine, "format: there is no argument '%.*s'", ST_STR_ARG(name));
}

static bool field_members(braces *b, jinja_value *value)
{
    jinja_machine *machine = b->builder.machine;
    bool ok = true;
    while (at(b) == '.' || at(b) == '[') {
        bool item = at(b) == '[';
        b->position++;
        jinja_value word = read_word(b, item ? "]" : ".[!:}", &ok);
        if (!ok) return false;
        if (item && at(b) == ']') b->position++;
        int64_t index = -1;
        size_t digits = 0;
        if (item && !read_number(machine, word.string, &digits, WIDTH_MAX, &index)) return false;
        jinja_value key = index >= 0 && digits == word.string->length ? st_jinja_integer(index) : word;
        ok = item ? st_jinja_item(machine, *value, key, value) : st_jinja_attribute(machine, *value, key, value);
        if (!ok) return false;
    }
    return true;
}

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static bool field_spec(braces *b, spec *s)
{
    jinja_machine *machine = b->builder.machine;
    if (at(b) != ':') return true;
    b->position++;
    if (b->position < b->pattern->length) {
        size_t step;
        uint32_t fill = st_jinja_string_code(b->pattern, b->position, &step);
        if (b->position + step < b->pattern->length && is_align(b->pattern->bytes[b->position + step]) && fill != '}') {
            s->fill = fill;
            b->position += step;
        }
    }
    if (is_align(at(b))) s->align = at(b), b->position++;
    if (at(b) == '+' || at(b) == '-' || at(b) == ' ') s->sign = at(b) == '-' ? '\0' : at(b), b->position++;
    if (at(b) == '#') s->alternate = true, b->position++;
    if (at(b) == '0' && !s->align) s->fill = '0', s->align = '=';
    if (!read_number(machine, b->pattern, &b->position, WIDTH_MAX, &s->width)) return false;
    if (at(b) == ',') s->grouped = true, b->position++;
    if (at(b) == '.') {
        b->position++;
        if (!read_number(machine, b->pattern, &b->position, PRECISION_MAX, &s->precision)) return false;
    }
    if (at(b) != '}' && at(b) != '\0') s->letter = at(b), b->position++;
    return true;
}

static bool add_field(braces *b, const spec *s, jinja_value value, char conversion)
{
    jinja_machine *machine = b->builder.machine;
    bool number = st_jinja_is_number(value) && conversion == '\0' && (value.kind != JINJA_BOOL || s->letter);
    if (!number) {
        const jinja_string *text;
        if (s->letter && s->letter != 's') return st_jinja_fail(machine, "unknown format code '%c'", s->letter);
        if (conversion == 'r') {
            jinja_builder inner = {.machine = machine};
            if (!st_jinja_add_repr(&inner, value) || !st_jinja_builder_finish(&inner, &value)) return false;
        }
        if (!st_jinja_to_string(machine, value, &text)) return false;
        return add_text(&b->builder, s, text, s->align ? s->align : '<');
    }
    if (s->letter && !strchr("dxXobeEfFgG%n", s->letter))
        return st_jinja_fail(machine, "unknown format code '%c'", s->letter);
    bool as_real = value.kind == JINJA_FLOAT || (s->letter && strchr("eEfFgG%", s->letter));
    if (value.kind == JINJA_FLOAT && s->letter && strchr("dxXob", s->letter)) {
        return st_jinja_fail(machine, "unknown format code '%c' for object of type 'float'", s->letter);
    }
    return add_number(&b->builder, s, value, as_real);
}

static bool braces_field(braces *b)
{
    jinja_machine *machine = b->builder.machine;
    spec s = {.fill = ' ', .width = -1, .precision = -1};
    jinja_value value;
    char conversion = '\0';
    if (!st_jinja_charge(machine, 1) || !field_start(b, &value) || !field_members(b, &value)) return false;
    if (at(b) == '!') {
        b->position++;
        conversion = at(b);
        if (conversion != 'r' && conversion != 's') return st_jinja_fail(machine, "format: expected !r or !s");
        b->position++;
    }
    if (!field_spec(b, &s)) return false;
    if (at(b) != '}') return st_jinja_fail(machine, "format: expected '}' before the end of the field");
    b->position++;
    return add_field(b, &s, value, conversion);
}

bool st_jinja_format_braces(jinja_machine *machine, const jinja_string *pattern, const jinja_arguments *arguments,
                            jinja_value *out)
{
    braces b = {.builder = {.machine = machine}, .pattern = pattern, .arguments = arguments};
    while (b.position < pattern->length) {
        char c = at(&b);
        bool doubled = b.position + 1 < pattern->length && pattern->bytes[b.position + 1] == c;
        if ((c != '{' && c != '}') || doubled) {
            if (!st_jinja_add_slice(&b.builder, pattern, b.position, b.position + 1)) return false;
            b.position += c == '{' || c == '}' ? 2 : 1;
            continue;
        }
        if (c == '}') return st_jinja_fail(machine, "format: single '}' encountered");
        b.position++;
        if (!braces_field(&b)) return false;
    }
    return st_jinja_builder_finish(&b.builder, out);
}
