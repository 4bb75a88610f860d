#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "chat/format.h"
#include "chat/template.h"

/* JSON text → jansson values. jansson's own parser hides failed allocations and has a fixed depth limit; this one
 * reports both. */

typedef struct reader {
    const char *text; /* [length] */
    size_t length;
    size_t position;
    size_t depth;
    size_t depth_max;
    strata_status status;
    strata_error *error;
} reader;

static json_t *read_value(reader *r);

static json_t *fail(reader *r, const char *what)
{
    if (r->status != STRATA_OK) return NULL;
    size_t line = 1, column = 1;
    for (size_t i = 0; i < r->position && i < r->length; i++) {
        if (r->text[i] == '\n') {
            line++;
            column = 1;
        } else {
            column += ((unsigned char)r->text[i] & 0xC0) != 0x80;
        }
    }
    r->status = st_error_set(r->error, STRATA_INPUT, "the arguments are one JSON object, like {\"messages\": []}",
                             "template arguments: line %zu, column %zu: %s", line, column, what);
    return NULL;
}

static json_t *fail_memory(reader *r)
{
    if (r->status == STRATA_OK) r->status = st_error_memory(r->error, r->length, "template arguments");
    return NULL;
}

/* Checks a new value: NULL is a failed allocation. */
static json_t *made(reader *r, json_t *json)
{
    return json ? json : fail_memory(r);
}

static char at(const reader *r)
{
    return r->position < r->length ? r->text[r->position] : '\0';
}

static char skip_space(reader *r)
{
    while (r->position < r->length && strchr(" \t\n\r", r->text[r->position]) && at(r)) r->position++;
    return at(r);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* ---- strings ---- */

static bool read_hex(reader *r, uint32_t *code)
{
    *code = 0;
    for (size_t i = 0; i < 4; i++, r->position++) {
        char c = at(r), lower = (char)(c | 0x20);
        if (is_digit(c)) *code = *code << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f') *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else return fail(r, "expected four hexadecimal digits after \\u") != NULL;
    }
    return true;
}

static bool read_unicode(reader *r, st_buf *out)
{
    uint32_t code, low;
    char bytes[4];
    if (!read_hex(r, &code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && at(r) == '\\' && r->position + 1 < r->length &&
        r->text[r->position + 1] == 'u') {
        r->position += 2;
        if (!read_hex(r, &low)) return false;
        if (low >= 0xDC00 && low < 0xE000) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code >= 0xD800 && code < 0xE000) return fail(r, "expected a pair of surrogates, found half of one") != NULL;
    return st_buf_append(out, bytes, st_utf8_encode(code, bytes)) || fail_memory(r) != NULL;
}

static bool read_escape(reader *r, st_buf *out)
{
    static const char plain[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    char c = at(r);
    r->position++;
    if (c == 'u') return read_unicode(r, out);
    for (size_t i = 0; i + 1 < sizeof plain; i += 2) {
        if (plain[i] == c) return st_buf_append_char(out, plain[i + 1]) || fail_memory(r) != NULL;
    }
    r->position--;
    return fail(r, "this escape is not JSON's") != NULL;
}

/* The text between the quotes, with escapes resolved. */
static bool read_text(reader *r, st_buf *out)
{
    if (at(r) != '"') return fail(r, "expected a string") != NULL;
    for (r->position++; at(r) != '"';) {
        size_t run = r->position;
        while (run < r->length && (unsigned char)r->text[run] >= 0x20 && r->text[run] != '"' && r->text[run] != '\\')
            run++;
        size_t valid = st_utf8_valid_prefix(r->text + r->position, run - r->position);
        if (!st_buf_append(out, r->text + r->position, valid)) return fail_memory(r) != NULL;
        r->position += valid;
        if (r->position < run) return fail(r, "expected UTF-8, found an invalid byte") != NULL;
        if (run == r->length) return fail(r, "the string has no closing quote") != NULL;
        if (at(r) == '"') break;
        if (at(r) != '\\') return fail(r, "a control character must be escaped") != NULL;
        r->position++;
        if (!read_escape(r, out)) return false;
    }
    r->position++;
    return true;
}

static json_t *read_string(reader *r)
{
    st_buf text = {0};
    json_t *json = NULL;
    if (read_text(r, &text)) json = made(r, json_stringn_nocheck(text.data ? text.data : "", text.length));
    st_buf_free(&text);
    return json;
}

/* ---- numbers and words ---- */

static bool skip_digits(reader *r)
{
    if (!is_digit(at(r))) return fail(r, "expected a digit") != NULL;
    while (is_digit(at(r))) r->position++;
    return true;
}

static json_t *read_number(reader *r)
{
    size_t from = r->position;
    bool real = false;
    char text[512];
    if (at(r) == '-') r->position++;
    if (at(r) == '0') r->position++;
    else if (!skip_digits(r)) return NULL;
    if (at(r) == '.') {
        real = true;
        r->position++;
        if (!skip_digits(r)) return NULL;
    }
    if (at(r) == 'e' || at(r) == 'E') {
        real = true;
        r->position++;
        if (at(r) == '+' || at(r) == '-') r->position++;
        if (!skip_digits(r)) return NULL;
    }
    size_t length = r->position - from;
    if (length >= sizeof text) return fail(r, "the number is too long");
    memcpy(text, r->text + from, length);
    text[length] = '\0';
    if (real) {
        double value;
        if (!st_jinja_parse_float((st_str){text, length}, &value)) return fail(r, "the number is malformed");
        json_t *json = json_real(value); /* NULL for infinities and NaN */
        return json || (value - value == 0.0) ? made(r, json) : fail(r, "the number is too large");
    }
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno == ERANGE) return fail(r, "the integer does not fit 64 bits");
    return made(r, json_integer(value));
}

static json_t *read_word(reader *r)
{
    static const struct {
        const char *word;
        json_t *(*make)(void);
    } rows[] = {{"true", json_true}, {"false", json_false}, {"null", json_null}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t length = strlen(rows[i].word);
        if (r->length - r->position < length || memcmp(r->text + r->position, rows[i].word, length) != 0) continue;
        r->position += length;
        return rows[i].make();
    }
    return fail(r, r->position < r->length ? "expected a value" : "expected a value, found the end");
}

/* ---- arrays and objects ---- */

/* After an element: true when another follows. */
static bool read_comma(reader *r, char closing, bool *more)
{
    char c = skip_space(r);
    *more = c == ',';
    if (c != ',' && c != closing)
        return fail(r, closing == ']' ? "expected ',' or ']'" : "expected ',' or '}'") != NULL;
    r->position++;
    return true;
}

static bool read_elements(reader *r, json_t *array)
{
    r->position++;
    if (skip_space(r) == ']') {
        r->position++;
        return true;
    }
    for (bool more = true; more;) {
        json_t *value = read_value(r);
        if (!value) return false;
        if (json_array_append_new(array, value) != 0) return fail_memory(r) != NULL;
        if (!read_comma(r, ']', &more)) return false;
    }
    return true;
}

static bool read_member(reader *r, json_t *object, st_buf *key)
{
    key->length = 0;
    skip_space(r);
    if (!read_text(r, key)) return false;
    if (key->length && memchr(key->data, '\0', key->length)) return fail(r, "a key may not hold U+0000") != NULL;
    if (!st_buf_append_char(key, '\0')) return fail_memory(r) != NULL;
    if (skip_space(r) != ':') return fail(r, "expected ':'") != NULL;
    r->position++;
    json_t *value = read_value(r);
    if (!value) return false;
    return json_object_set_new_nocheck(object, key->data, value) == 0 || fail_memory(r) != NULL;
}

static bool read_members(reader *r, json_t *object)
{
    st_buf key = {0};
    bool ok = true;
    r->position++;
    if (skip_space(r) == '}') {
        r->position++;
        return true;
    }
    for (bool more = true; ok && more;) ok = read_member(r, object, &key) && read_comma(r, '}', &more);
    st_buf_free(&key);
    return ok;
}

static json_t *read_container(reader *r, bool is_array)
{
    if (r->depth == r->depth_max) {
        r->status = st_error_set(r->error, STRATA_LIMIT, NULL,
                                 "template arguments: more than the limit of %zu levels of nesting", r->depth_max);
        return NULL;
    }
    json_t *json = made(r, is_array ? json_array() : json_object());
    if (!json) return NULL;
    r->depth++;
    bool ok = is_array ? read_elements(r, json) : read_members(r, json);
    r->depth--;
    if (ok) return json;
    json_decref(json);
    return NULL;
}

static json_t *read_value(reader *r)
{
    char c = skip_space(r);
    if (c == '{' || c == '[') return read_container(r, c == '[');
    if (c == '"') return read_string(r);
    if (c == '-' || is_digit(c)) return read_number(r);
    return read_word(r);
}

strata_status st_template_parse_args(const char *text, size_t length, json_t **out, strata_error *error)
{
    reader r = {.text = text, .length = length, .depth_max = st_template_default_limits.depth_max, .error = error};
    if (skip_space(&r) != '{') {
        fail(&r, "expected a JSON object");
        return r.status;
    }
    json_t *json = read_value(&r);
    if (!json) return r.status;
    skip_space(&r);
    if (r.position < length) {
        fail(&r, "expected the end after the object");
        json_decref(json);
        return r.status;
    }
    *out = json;
    return STRATA_OK;
}
