#include "chat/lexer.h"

#include "base/utf8.h"
#include "chat/text.h"

typedef struct lexer {
    jinja_machine *machine;
    st_str source;
    size_t position;
    size_t line_counted; /* machine->line is that of this position */
    bool line_starting;  /* the last tag ended at the end of its line */
    char *brackets;      /* [depth_max]: what closes each open bracket */
    size_t bracket_count;
    jinja_tokens *tokens;
} lexer;

static bool push(lexer *l, jinja_token token)
{
    jinja_tokens *tokens = l->tokens;
    jinja_token *items = st_jinja_grown(l->machine, tokens->items, tokens->count, sizeof *items, &tokens->capacity);
    if (!items) return false;
    tokens->items = items;
    token.line = l->machine->line;
    tokens->items[tokens->count++] = token;
    return true;
}

static bool push_text(lexer *l, jinja_token_type type, size_t from, size_t to)
{
    return push(l, (jinja_token){.type = type, .text = {l->source.data + from, to - from}});
}

static void count_lines(lexer *l, size_t to)
{
    for (; l->line_counted < to; l->line_counted++) l->machine->line += l->source.data[l->line_counted] == '\n';
}

static char at(const lexer *l, size_t position)
{
    return position < l->source.length ? l->source.data[position] : '\0';
}

static bool matches(const lexer *l, size_t position, const char *text)
{
    size_t length = strlen(text);
    return l->source.length - position >= length && memcmp(l->source.data + position, text, length) == 0;
}

static size_t space_at(const lexer *l, size_t position)
{
    if (position >= l->source.length) return 0;
    uint32_t code;
    size_t length = st_utf8_decode(l->source.data + position, l->source.length - position, &code);
    return st_jinja_is_space(code) ? length : 0;
}

static size_t skip_space(const lexer *l, size_t position)
{
    for (size_t length; (length = space_at(l, position)) != 0;) position += length;
    return position;
}

/* ---- text between tags ---- */

static size_t strip_right(const lexer *l, size_t from, size_t to)
{
    while (to > from) {
        size_t last = to - 1;
        while (last > from && ((unsigned char)l->source.data[last] & 0xC0) == 0x80) last--;
        if (!space_at(l, last)) break;
        to = last;
    }
    return to;
}

/* lstrip_blocks: drops white space between the start of the line and the tag. */
static size_t strip_line(const lexer *l, size_t from, size_t to)
{
    size_t line = to;
    while (line > from && l->source.data[line - 1] != '\n') line--;
    if (line == from && !l->line_starting) return to;
    return strip_right(l, line, to) == line ? line : to;
}

static bool push_data(lexer *l, size_t from, size_t to, char sign, bool is_variable)
{
    size_t end = to;
    if (sign == '-') end = strip_right(l, from, to);
    else if (sign != '+' && !is_variable) end = strip_line(l, from, to);
    if (end > from && !push_text(l, JINJA_TOKEN_DATA, from, end)) return false;
    count_lines(l, to);
    return true;
}

/* Moves past the end of a tag: `-` drops the white space that follows, trim_blocks one newline. */
static void finish_tag(lexer *l, size_t end, char sign, bool trims)
{
    if (sign == '-') end = skip_space(l, end);
    else if (sign != '+' && trims && at(l, end) == '\n') end++;
    l->position = end;
    l->line_starting = end > 0 && at(l, end - 1) == '\n';
    count_lines(l, end);
}

static bool lex_comment(lexer *l, size_t from)
{
    for (size_t i = from; i + 1 < l->source.length; i++) {
        if (l->source.data[i] != '#' || l->source.data[i + 1] != '}') continue;
        finish_tag(l, i + 2, i > from ? l->source.data[i - 1] : '\0', true);
        return true;
    }
    return st_jinja_fail(l->machine, "the comment has no end");
}

/* Matches `{%`, a sign, `word`, a sign and `%}` at `position`: returns the end of the tag, or 0. */
static size_t match_tag(const lexer *l, size_t position, const char *word, char *begin_sign, char *end_sign)
{
    if (!matches(l, position, "{%")) return 0;
    position += 2;
    *begin_sign = at(l, position);
    if (*begin_sign == '-' || *begin_sign == '+') position++;
    position = skip_space(l, position);
    if (!matches(l, position, word)) return 0;
    position = skip_space(l, position + strlen(word));
    *end_sign = at(l, position);
    if (*end_sign == '-' || *end_sign == '+') position++;
    return matches(l, position, "%}") ? position + 2 : 0;
}

static bool lex_raw(lexer *l, size_t from)
{
    for (size_t i = from; i < l->source.length; i++) {
        char begin_sign, end_sign;
        size_t end = l->source.data[i] == '{' ? match_tag(l, i, "endraw", &begin_sign, &end_sign) : 0;
        if (end == 0) continue;
        if (!push_data(l, from, i, begin_sign, false)) return false;
        finish_tag(l, end, end_sign, true);
        return true;
    }
    return st_jinja_fail(l->machine, "raw has no endraw");
}

/* ---- inside tags ---- */

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t skip_digits(const lexer *l, size_t position)
{
    while (is_digit(at(l, position)) || (at(l, position) == '_' && is_digit(at(l, position + 1)))) position++;
    return position;
}

static bool lex_number(lexer *l)
{
    size_t from = l->position, end;
    char base = (char)(at(l, from + 1) | 0x20);
    if (at(l, from) == '0' && (base == 'x' || base == 'o' || base == 'b')) {
        for (end = from + 2; is_name_byte(at(l, end));) end++;
        l->position = end;
        return push_text(l, JINJA_TOKEN_INTEGER, from, end);
    }
    end = skip_digits(l, from);
    jinja_token_type type = JINJA_TOKEN_INTEGER;
    if (at(l, end) == '.' && is_digit(at(l, end + 1))) {
        end = skip_digits(l, end + 1);
        type = JINJA_TOKEN_FLOAT;
    }
    if ((at(l, end) | 0x20) == 'e') {
        size_t exponent = end + 1;
        if (at(l, exponent) == '+' || at(l, exponent) == '-') exponent++;
        if (is_digit(at(l, exponent))) {
            end = skip_digits(l, exponent);
            type = JINJA_TOKEN_FLOAT;
        }
    }
    l->position = end;
    return push_text(l, type, from, end);
}

static bool lex_string(lexer *l)
{
    size_t from = l->position + 1, end = from;
    char quote = at(l, l->position);
    while (end < l->source.length && l->source.data[end] != quote) end += l->source.data[end] == '\\' ? 2 : 1;
    if (end >= l->source.length) return st_jinja_fail(l->machine, "the string has no closing quote");
    if (!push_text(l, JINJA_TOKEN_STRING, from, end)) return false;
    l->position = end + 1;
    count_lines(l, l->position);
    return true;
}

static bool balance(lexer *l, char c)
{
    char closing = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : '\0';
    if (closing) {
        if (l->bracket_count == l->machine->limits.depth_max) {
            return st_jinja_fail_limit(l->machine, "levels of nesting", l->machine->limits.depth_max);
        }
        l->brackets[l->bracket_count++] = closing;
        return true;
    }
    if (c != ')' && c != ']' && c != '}') return true;
    if (l->bracket_count == 0) return st_jinja_fail(l->machine, "unexpected '%c'", c);
    char expected = l->brackets[--l->bracket_count];
    if (c != expected) return st_jinja_fail(l->machine, "unexpected '%c', expected '%c'", c, expected);
    return true;
}

static bool lex_operator(lexer *l)
{
    static const char *const doubles[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char singles[] = "+-/*%~[](){}><=.:|,;";
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        if (!matches(l, l->position, doubles[i])) continue;
        l->position += 2;
        return push(l, (jinja_token){.type = JINJA_TOKEN_OPERATOR, .text = {doubles[i], 2},
                                     .operator = JINJA_OPERATOR(doubles[i][0], doubles[i][1])});
    }
    char c = at(l, l->position);
    if (c == '\0' || !strchr(singles, c)) return st_jinja_fail(l->machine, "unexpected character '%c'", c);
    if (!balance(l, c)) return false;
    l->position++;
    return push(l, (jinja_token){.type = JINJA_TOKEN_OPERATOR, .operator = JINJA_OPERATOR(c, 0),
                                 .text = {l->source.data + l->position - 1, 1}});
}

static bool lex_token(lexer *l)
{
    char c = at(l, l->position);
    if (is_digit(c)) return lex_number(l);
    if (c == '\'' || c == '"') return lex_string(l);
    if (!is_name_byte(c)) return lex_operator(l);
    size_t from = l->position;
    while (l->position < l->source.length && is_name_byte(at(l, l->position)) && !space_at(l, l->position))
        l->position++;
    return push_text(l, JINJA_TOKEN_NAME, from, l->position);
}

/* The length of the tag's end at the position; 0 if there is none. */
static size_t match_end(const lexer *l, const char *closing, bool is_block, char *sign)
{
    *sign = at(l, l->position);
    bool has_sign = *sign == '-' || (*sign == '+' && is_block);
    if (has_sign && matches(l, l->position + 1, closing)) return 3;
    *sign = '\0';
    return matches(l, l->position, closing) ? 2 : 0;
}

static bool lex_tag(lexer *l, bool is_block)
{
    uint32_t line = l->machine->line;
    l->bracket_count = 0;
    if (!push(l, (jinja_token){.type = is_block ? JINJA_TOKEN_BLOCK_BEGIN : JINJA_TOKEN_VARIABLE_BEGIN})) return false;
    for (;;) {
        l->position = skip_space(l, l->position);
        count_lines(l, l->position);
        if (l->position >= l->source.length) {
            l->machine->line = line;
            return st_jinja_fail(l->machine, "the tag has no end");
        }
        char sign;
        size_t length = l->bracket_count ? 0 : match_end(l, is_block ? "%}" : "}}", is_block, &sign);
        if (length) {
            if (!push(l, (jinja_token){.type = is_block ? JINJA_TOKEN_BLOCK_END : JINJA_TOKEN_VARIABLE_END}))
                return false;
            finish_tag(l, l->position + length, sign, is_block);
            return true;
        }
        if (!lex_token(l)) return false;
    }
}

/* ---- the whole ---- */

static bool is_tag_start(const lexer *l, size_t position)
{
    char next = at(l, position + 1);
    return l->source.data[position] == '{' && (next == '%' || next == '{' || next == '#');
}

static bool lex_next(lexer *l)
{
    size_t from = l->position, start = from;
    while (start < l->source.length && !is_tag_start(l, start)) start++;
    if (start == l->source.length) {
        l->position = start;
        return start == from || push_text(l, JINJA_TOKEN_DATA, from, start);
    }
    char kind = at(l, start + 1), sign = at(l, start + 2), end_sign;
    if (!push_data(l, from, start, sign, kind == '{')) return false;
    size_t raw = match_tag(l, start, "raw", &sign, &end_sign);
    if (raw && end_sign != '+') {
        finish_tag(l, raw, end_sign, false);
        return lex_raw(l, l->position);
    }
    size_t inside = start + 2 + (sign == '-' || sign == '+');
    if (kind == '#') return lex_comment(l, inside);
    l->position = inside;
    return lex_tag(l, kind == '%');
}

/* Converts newlines to \n and drops one at the end. */
static bool normalise(jinja_machine *machine, st_str source, st_str *out)
{
    char *text = st_jinja_alloc(machine, source.length, 1);
    if (!text) return false;
    size_t length = 0;
    for (size_t i = 0; i < source.length; i++) {
        if (source.data[i] == '\r') {
            text[length++] = '\n';
            if (i + 1 < source.length && source.data[i + 1] == '\n') i++;
        } else {
            text[length++] = source.data[i];
        }
    }
    if (length && text[length - 1] == '\n') length--;
    *out = (st_str){text, length};
    return true;
}

bool st_jinja_lex(jinja_machine *machine, st_str source, jinja_tokens *out)
{
    lexer l = {.machine = machine, .line_starting = true, .tokens = out};
    machine->line = 1;
    if (!normalise(machine, source, &l.source)) return false;
    size_t valid = st_utf8_valid_prefix(l.source.data, l.source.length);
    if (valid < l.source.length) {
        count_lines(&l, valid);
        return st_jinja_fail(machine, "expected UTF-8, found an invalid byte");
    }
    l.brackets = st_jinja_alloc(machine, machine->limits.depth_max, 1);
    if (!l.brackets) return false;
    while (l.position < l.source.length) {
        if (!lex_next(&l)) return false;
    }
    count_lines(&l, l.source.length);
    return push(&l, (jinja_token){.type = JINJA_TOKEN_END});
}

/* ---- escapes ---- */

static int hex_digit(char c)
{
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The digits of \xhh, \uhhhh and \Uhhhhhhhh. */
static bool unescape_hex(jinja_machine *machine, st_str text, size_t *position, size_t digits, uint32_t *code)
{
    *code = 0;
    for (size_t i = 0; i < digits; i++, (*position)++) {
        int digit = *position < text.length ? hex_digit(text.data[*position]) : -1;
        if (digit < 0) return st_jinja_fail(machine, "the string has an escape with too few digits");
        *code = *code << 4 | (uint32_t)digit;
    }
    if (*code > 0x10FFFF) return st_jinja_fail(machine, "the string has an escape beyond U+10FFFF");
    return true;
}

static bool unescape_one(jinja_builder *builder, st_str text, size_t *position)
{
    static const char plain[] = "n\nt\tr\rb\bf\fa\av\v\\\\''\"\"";
    char c = text.data[(*position)++];
    for (size_t i = 0; i + 1 < sizeof plain; i += 2) {
        if (plain[i] == c) return st_jinja_add_bytes(builder, &plain[i + 1], 1, false);
    }
    if (c == '\n') return true;
    uint32_t code = 0;
    if (c == 'x' || c == 'u' || c == 'U') {
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        return unescape_hex(builder->machine, text, position, digits, &code) && st_jinja_add_code(builder, code, false);
    }
    if (c >= '0' && c <= '7') {
        (*position)--;
        for (size_t i = 0; i < 3 && *position < text.length; i++, (*position)++) {
            char digit = text.data[*position];
            if (digit < '0' || digit > '7') break;
            code = code * 8 + (uint32_t)(digit - '0');
        }
        return st_jinja_add_code(builder, code, false);
    }
    (*position)--; /* not an escape: the backslash stays */
    return st_jinja_add_bytes(builder, "\\", 1, false);
}

bool st_jinja_unescape(jinja_machine *machine, st_str text, jinja_value *out)
{
    if (!memchr(text.data, '\\', text.length)) return st_jinja_string_new(machine, text, false, out);
    jinja_builder builder = {.machine = machine};
    for (size_t i = 0; i < text.length;) {
        if (text.data[i] == '\\' && i + 1 < text.length) {
            i++;
            if (!unescape_one(&builder, text, &i)) return false;
        } else {
            if (!st_jinja_add_bytes(&builder, &text.data[i], 1, false)) return false;
            i++;
        }
    }
    return st_jinja_builder_finish(&builder, out);
}
