#include "chat/parser.h"

#include <errno.h>
#include <stdlib.h>

#include "chat/format.h"

#define OP1(c) JINJA_OPERATOR(c, 0)
#define OP2(c, d) JINJA_OPERATOR(c, d)

static bool parse_plain(parser *p, const jinja_node **out); /* without `x if y` */

static jinja_node *binary(parser *p, jinja_node_type type, uint32_t line, const jinja_node *a, const jinja_node *b)
{
    jinja_node *node = st_parser_node(p, type, line);
    if (!node) return NULL;
    node->a = a;
    node->b = b;
    return node;
}

/* ---- literals ---- */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

static bool integer_value(parser *p, st_str text, jinja_value *out)
{
    int base = 10;
    size_t i = 0;
    if (text.length > 2 && text.data[0] == '0') {
        char letter = (char)(text.data[1] | 0x20);
        base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
        if (base != 10) i = 2;
    }
    int64_t value = 0;
    for (; i < text.length; i++) {
        if (text.data[i] == '_') continue;
        int digit = digit_of(text.data[i]);
        if (digit >= base) return st_jinja_fail(p->machine, "'%.*s' is not a number", ST_STR_ARG(text));
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
            return st_jinja_fail(p->machine, "the integer does not fit 64 bits");
        }
    }
    *out = st_jinja_integer(value);
    return true;
}

static bool number_value(parser *p, const jinja_token *token, jinja_value *out)
{
    if (token->text.length > 400) return st_jinja_fail(p->machine, "the number is too long");
    if (token->type == JINJA_TOKEN_INTEGER) return integer_value(p, token->text, out);
    double real;
    if (!st_jinja_parse_float(token->text, &real)) return st_jinja_fail(p->machine, "the number is malformed");
    *out = st_jinja_float(real);
    return true;
}

static bool parse_string(parser *p, jinja_node *node)
{
    while (st_parser_current(p)->type == JINJA_TOKEN_STRING) {
        jinja_value piece;
        if (!st_jinja_unescape(p->machine, st_parser_current(p)->text, &piece)) return false;
        if (node->constant.kind != JINJA_STRING) node->constant = piece;
        else if (!st_jinja_string_concat(p->machine, node->constant.string, piece.string, &node->constant))
            return false;
        st_parser_advance(p);
    }
    /* Renderings share constants: none may be appended to in place. */
    jinja_string *own = st_jinja_alloc(p->machine, 1, sizeof *own);
    if (!own) return false;
    *own = *node->constant.string;
    own->tail = NULL;
    node->constant = st_jinja_text(own);
    return st_parser_literal(p, own);
}

static bool parse_name(parser *p, const jinja_node **out)
{
    static const struct {
        const char *name;
        jinja_kind kind;
        bool value;
    } rows[] = {{"true", JINJA_BOOL, true},   {"True", JINJA_BOOL, true},   {"false", JINJA_BOOL, false},
                {"False", JINJA_BOOL, false}, {"none", JINJA_NONE, false}, {"None", JINJA_NONE, false}};
    const jinja_token *token = st_parser_current(p);
    jinja_node *node = st_parser_node(p, JINJA_NODE_NAME, token->line);
    if (!node) return false;
    *out = node;
    st_parser_advance(p);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!st_str_is(token->text, rows[i].name)) continue;
        node->type = JINJA_NODE_CONSTANT;
        node->constant = (jinja_value){.kind = rows[i].kind, .boolean = rows[i].value};
        return true;
    }
    if (!st_parser_symbol(p, token->text, &node->symbol)) return false;
    if (node->symbol == JINJA_SYMBOL_CALLER) p->uses_caller = true;
    if (node->symbol == JINJA_SYMBOL_VARARGS) p->uses_varargs = true;
    if (node->symbol == JINJA_SYMBOL_KWARGS) p->uses_kwargs = true;
    return true;
}

/* [item, ...] or {key: value, ...}, with a comma at the end allowed. */
static bool parse_display(parser *p, jinja_node_type type, unsigned closing, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    parser_items items = {0};
    const jinja_node *item;
    st_parser_advance(p);
    while (!st_parser_at_operator(p, closing)) {
        if (items.count && !st_parser_expect_operator(p, OP1(','))) return false;
        if (st_parser_at_operator(p, closing)) break;
        if (!st_parser_expression(p, &item) || !st_parser_push(p, &items, item)) return false;
        if (type == JINJA_NODE_LIST) continue;
        if (!st_parser_expect_operator(p, OP1(':')) || !st_parser_expression(p, &item) ||
            !st_parser_push(p, &items, item)) {
            return false;
        }
    }
    return st_parser_sequence(p, type, line, &items, out) && st_parser_expect_operator(p, closing);
}

static bool parse_primary(parser *p, const jinja_node **out)
{
    const jinja_token *token = st_parser_current(p);
    if (token->type == JINJA_TOKEN_NAME) return parse_name(p, out);
    if (st_parser_at_operator(p, OP1('('))) {
        st_parser_advance(p);
        return st_parser_tuple(p, true, NULL, true, out) && st_parser_expect_operator(p, OP1(')'));
    }
    if (st_parser_at_operator(p, OP1('['))) return parse_display(p, JINJA_NODE_LIST, OP1(']'), out);
    if (st_parser_at_operator(p, OP1('{'))) return parse_display(p, JINJA_NODE_DICT, OP1('}'), out);
    if (token->type != JINJA_TOKEN_STRING && token->type != JINJA_TOKEN_INTEGER && token->type != JINJA_TOKEN_FLOAT) {
        return st_parser_fail_token(p, "an expression");
    }
    jinja_node *node = st_parser_node(p, JINJA_NODE_CONSTANT, token->line);
    if (!node) return false;
    *out = node;
    if (token->type == JINJA_TOKEN_STRING) return parse_string(p, node);
    st_parser_advance(p);
    return number_value(p, token, &node->constant);
}

static bool at_tuple_end(const parser *p, const char *end)
{
    jinja_token_type type = st_parser_current(p)->type;
    if (type == JINJA_TOKEN_VARIABLE_END || type == JINJA_TOKEN_BLOCK_END) return true;
    return st_parser_at_operator(p, OP1(')')) || (end && st_parser_at_name(p, end));
}

bool st_parser_tuple(parser *p, bool with_condition, const char *end, bool parenthesised, const jinja_node **out)
{
    parser_items items = {0};
    uint32_t line = st_parser_current(p)->line;
    bool is_tuple = false;
    for (;;) {
        const jinja_node *item = NULL;
        if (at_tuple_end(p, end)) break;
        if (!(with_condition ? st_parser_expression : parse_plain)(p, &item)) return false;
        if (!st_parser_push(p, &items, item)) return false;
        if (!st_parser_skip_operator(p, OP1(','))) break;
        is_tuple = true;
    }
    if (!is_tuple && items.count) {
        *out = items.items[0];
        return true;
    }
    if (!is_tuple && !parenthesised) return st_parser_fail_token(p, "an expression");
    return st_parser_sequence(p, JINJA_NODE_TUPLE, line, &items, out);
}

/* ---- postfix operators ---- */

static bool add_keyword(parser *p, jinja_call_arguments *arguments, size_t *capacity, jinja_call_keyword keyword)
{
    jinja_call_keyword *keywords =
        st_jinja_grown(p->machine, arguments->keywords, arguments->keyword_count, sizeof *keywords, capacity);
    if (!keywords) return false;
    arguments->keywords = keywords;
    keywords[arguments->keyword_count++] = keyword;
    return true;
}

static bool parse_argument(parser *p, jinja_call_arguments *arguments, parser_items *items, size_t *capacity)
{
    const jinja_node *value;
    if (st_parser_skip_operator(p, OP2('*', '*'))) {
        if (arguments->double_star) return st_jinja_fail(p->machine, "a call takes one ** argument");
        return st_parser_expression(p, &arguments->double_star);
    }
    if (st_parser_skip_operator(p, OP1('*'))) {
        if (arguments->star || arguments->double_star) return st_jinja_fail(p->machine, "a call takes one * argument");
        return st_parser_expression(p, &arguments->star);
    }
    const jinja_token *token = st_parser_current(p);
    bool is_keyword =
        token->type == JINJA_TOKEN_NAME && token[1].type == JINJA_TOKEN_OPERATOR && token[1].operator== OP1('=');
    if (is_keyword) {
        st_parser_advance(p);
        st_parser_advance(p);
        if (arguments->double_star) return st_jinja_fail(p->machine, "a keyword argument must come before **");
        return st_parser_expression(p, &value) &&
               add_keyword(p, arguments, capacity, (jinja_call_keyword){token->text, value});
    }
    if (arguments->keyword_count || arguments->star || arguments->double_star) {
        return st_jinja_fail(p->machine, "a positional argument must come before keyword arguments");
    }
    return st_parser_expression(p, &value) && st_parser_push(p, items, value);
}

static bool parse_arguments(parser *p, const jinja_call_arguments **out)
{
    jinja_call_arguments *arguments = st_jinja_alloc(p->machine, 1, sizeof *arguments);
    parser_items items = {0};
    size_t capacity = 0;
    bool first = true;
    if (!arguments || !st_parser_expect_operator(p, OP1('('))) return false;
    while (!st_parser_at_operator(p, OP1(')'))) {
        if (!first && !st_parser_expect_operator(p, OP1(','))) return false;
        if (!first && st_parser_at_operator(p, OP1(')'))) break;
        if (!parse_argument(p, arguments, &items, &capacity)) return false;
        first = false;
    }
    arguments->positional = (jinja_body){items.items, items.count};
    *out = arguments;
    return st_parser_expect_operator(p, OP1(')'));
}

/* One entry of a subscript: an index, or `from:to:step` as a SLICE node. */
static bool parse_subscript_part(parser *p, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    const jinja_node *bounds[3] = {NULL, NULL, NULL};
    size_t part = 0;
    bool is_slice = false;
    while (!st_parser_at_operator(p, OP1(']')) && !st_parser_at_operator(p, OP1(','))) {
        if (st_parser_skip_operator(p, OP1(':'))) {
            is_slice = true;
            if (++part > 2) return st_parser_fail_token(p, "']'");
        } else if (bounds[part]) {
            return st_parser_fail_token(p, "']'");
        } else if (!st_parser_expression(p, &bounds[part])) {
            return false;
        }
    }
    if (!is_slice) {
        *out = bounds[0];
        return bounds[0] || st_parser_fail_token(p, "an index");
    }
    parser_items items = {0};
    for (size_t i = 0; i < 3; i++) {
        if (!st_parser_push(p, &items, bounds[i])) return false;
    }
    return st_parser_sequence(p, JINJA_NODE_SLICE, line, &items, out);
}

static bool parse_subscript(parser *p, const jinja_node *object, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    parser_items parts = {0};
    st_parser_advance(p);
    while (!st_parser_at_operator(p, OP1(']'))) {
        const jinja_node *part = NULL;
        if (parts.count && !st_parser_expect_operator(p, OP1(','))) return false;
        if (!parse_subscript_part(p, &part) || !st_parser_push(p, &parts, part)) return false;
    }
    st_parser_advance(p);
    if (parts.count == 1 && parts.items[0]->type == JINJA_NODE_SLICE && !parts.items[0]->a) {
        jinja_node *slice = st_parser_node(p, JINJA_NODE_SLICE, line);
        if (!slice) return false;
        *slice = *parts.items[0];
        slice->a = object;
        *out = slice;
        return true;
    }
    const jinja_node *key = parts.count == 1 ? parts.items[0] : NULL;
    if (!key) { /* several indices are a tuple, and so are none */
        if (!st_parser_sequence(p, JINJA_NODE_TUPLE, line, &parts, &key)) return false;
        for (size_t i = 0; i < parts.count; i++) {
            if (parts.items[i]->type == JINJA_NODE_SLICE && !parts.items[i]->a) {
                return st_jinja_fail(p->machine, "a slice among several indices is not supported");
            }
        }
    }
    *out = binary(p, JINJA_NODE_ITEM, line, object, key);
    return *out != NULL;
}

static bool parse_attribute(parser *p, const jinja_node *object, const jinja_node **out)
{
    st_parser_advance(p);
    const jinja_token *token = st_parser_current(p);
    jinja_node *node = binary(p, JINJA_NODE_ATTRIBUTE, token->line, object, NULL);
    if (!node) return false;
    *out = node;
    st_parser_advance(p);
    if (token->type == JINJA_TOKEN_NAME) return st_jinja_string_new(p->machine, token->text, false, &node->constant);
    if (token->type != JINJA_TOKEN_INTEGER) {
        p->position--;
        return st_parser_fail_token(p, "a name after '.'");
    }
    jinja_node *key = st_parser_node(p, JINJA_NODE_CONSTANT, token->line);
    if (!key) return false;
    node->type = JINJA_NODE_ITEM;
    node->b = key;
    return number_value(p, token, &key->constant);
}

static bool parse_call(parser *p, const jinja_node *callee, const jinja_node **out)
{
    jinja_node *node = binary(p, JINJA_NODE_CALL, st_parser_current(p)->line, callee, NULL);
    if (!node) return false;
    *out = node;
    return parse_arguments(p, &node->arguments);
}

static bool parse_postfix(parser *p, const jinja_node *node, const jinja_node **out)
{
    size_t depth = p->depth;
    for (*out = node;;) {
        bool ok;
        if (st_parser_at_operator(p, OP1('.'))) ok = parse_attribute(p, *out, out);
        else if (st_parser_at_operator(p, OP1('['))) ok = parse_subscript(p, *out, out);
        else if (st_parser_at_operator(p, OP1('('))) ok = parse_call(p, *out, out);
        else break;
        if (!ok || !st_parser_enter(p)) return false; /* the tree grows a level with each */
    }
    p->depth = depth;
    return true;
}

/* ---- filters and tests ---- */

static bool parse_dotted_name(parser *p, st_str *name)
{
    if (!st_parser_expect_name(p, name)) return false;
    while (st_parser_skip_operator(p, OP1('.'))) {
        st_str part;
        if (!st_parser_expect_name(p, &part)) return false;
        name->length = (size_t)(part.data + part.length - name->data);
    }
    return true;
}

static void note_unknown(parser *p, const char *what, st_str name, uint32_t line)
{
    if (p->unknown_count < sizeof p->unknown / sizeof *p->unknown) {
        p->unknown[p->unknown_count] = (parser_unknown){what, name, line};
    }
    p->unknown_count++;
}

static jinja_node *native_node(parser *p, jinja_node_type type, const char *what, const jinja_node *subject)
{
    uint32_t line = st_parser_current(p)->line;
    st_str name;
    jinja_node *node = binary(p, type, line, subject, NULL);
    if (!node || !parse_dotted_name(p, &name)) return NULL;
    node->native = type == JINJA_NODE_FILTER ? st_jinja_find_filter(name) : st_jinja_find(&st_jinja_tests, name);
    if (!st_jinja_string_new(p->machine, name, false, &node->constant)) return NULL;
    if (!node->native) note_unknown(p, what, name, line);
    return node;
}

bool st_parser_filters(parser *p, const jinja_node *subject, bool at_start, const jinja_node **out)
{
    size_t depth = p->depth;
    *out = subject;
    while (at_start || st_parser_skip_operator(p, OP1('|'))) {
        at_start = false;
        if (!st_parser_enter(p)) return false;
        jinja_node *node = native_node(p, JINJA_NODE_FILTER, "filter", *out);
        if (!node) return false;
        *out = node;
        if (st_parser_at_operator(p, OP1('(')) && !parse_arguments(p, &node->arguments)) return false;
    }
    p->depth = depth;
    return true;
}

static bool at_test_argument(const parser *p)
{
    static const char *const excluded[] = {"else", "or", "and"};
    const jinja_token *token = st_parser_current(p);
    if (token->type == JINJA_TOKEN_STRING || token->type == JINJA_TOKEN_INTEGER || token->type == JINJA_TOKEN_FLOAT)
        return true;
    if (st_parser_at_operator(p, OP1('[')) || st_parser_at_operator(p, OP1('{'))) return true;
    if (token->type != JINJA_TOKEN_NAME) return false;
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded; i++) {
        if (st_str_is(token->text, excluded[i])) return false;
    }
    return true;
}

static bool parse_test(parser *p, const jinja_node *subject, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    st_parser_advance(p);
    bool negated = st_parser_skip_name(p, "not");
    jinja_node *node = native_node(p, JINJA_NODE_TEST, "test", subject);
    if (!node) return false;
    if (st_parser_at_operator(p, OP1('('))) {
        if (!parse_arguments(p, &node->arguments)) return false;
    } else if (at_test_argument(p)) {
        if (st_parser_at_name(p, "is")) return st_jinja_fail(p->machine, "tests cannot be chained with is");
        jinja_call_arguments *arguments = st_jinja_alloc(p->machine, 1, sizeof *arguments);
        parser_items items = {0};
        const jinja_node *argument;
        if (!arguments || !parse_primary(p, &argument) || !parse_postfix(p, argument, &argument) ||
            !st_parser_push(p, &items, argument)) {
            return false;
        }
        arguments->positional = (jinja_body){items.items, items.count};
        node->arguments = arguments;
    }
    *out = negated ? binary(p, JINJA_NODE_NOT, line, node, NULL) : node;
    return *out != NULL;
}

static bool parse_filter_chain(parser *p, const jinja_node *subject, const jinja_node **out)
{
    size_t depth = p->depth;
    for (*out = subject;;) {
        bool ok;
        if (st_parser_at_operator(p, OP1('|'))) ok = st_parser_filters(p, *out, false, out);
        else if (st_parser_at_name(p, "is")) ok = parse_test(p, *out, out);
        else if (st_parser_at_operator(p, OP1('('))) ok = parse_call(p, *out, out);
        else break;
        if (!ok || !st_parser_enter(p)) return false;
    }
    p->depth = depth;
    return true;
}

/* ---- operators, lowest precedence last ---- */

static bool parse_unary(parser *p, bool with_filters, const jinja_node **out)
{
    if (!st_parser_enter(p)) return false;
    uint32_t line = st_parser_current(p)->line;
    bool minus = st_parser_at_operator(p, OP1('-'));
    if (minus || st_parser_at_operator(p, OP1('+'))) {
        st_parser_advance(p);
        if (!parse_unary(p, false, out)) return false;
        *out = binary(p, minus ? JINJA_NODE_NEGATIVE : JINJA_NODE_POSITIVE, line, *out, NULL);
        if (!*out) return false;
    } else if (!parse_primary(p, out)) {
        return false;
    }
    if (!parse_postfix(p, *out, out)) return false;
    if (with_filters && !parse_filter_chain(p, *out, out)) return false;
    st_parser_leave(p);
    return true;
}

typedef bool (*parse_function)(parser *p, const jinja_node **out);

static bool parse_operand(parser *p, const jinja_node **out)
{
    return parse_unary(p, true, out);
}

/* Left-associative operators of one precedence. Each makes the tree a level deeper. */
static bool parse_rank(parser *p, parse_function operand, const unsigned *operators, const jinja_node **out)
{
    size_t depth = p->depth;
    if (!operand(p, out)) return false;
    for (;;) {
        const jinja_token *token = st_parser_current(p);
        size_t i = 0;
        while (operators[i] && !st_parser_at_operator(p, operators[i])) i++;
        if (!operators[i]) break;
        st_parser_advance(p);
        const jinja_node *right;
        if (!operand(p, &right) || !st_parser_enter(p)) return false;
        jinja_node *node = binary(p, JINJA_NODE_BINARY, token->line, *out, right);
        if (!node) return false;
        node->operator = operators[i];
        *out = node;
    }
    p->depth = depth;
    return true;
}

static bool parse_power(parser *p, const jinja_node **out)
{
    static const unsigned operators[] = {OP2('*', '*'), 0};
    return parse_rank(p, parse_operand, operators, out);
}

static bool parse_product(parser *p, const jinja_node **out)
{
    static const unsigned operators[] = {OP1('*'), OP1('/'), OP2('/', '/'), OP1('%'), 0};
    return parse_rank(p, parse_power, operators, out);
}

static bool parse_concat(parser *p, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    if (!parse_product(p, out)) return false;
    if (!st_parser_at_operator(p, OP1('~'))) return true;
    parser_items items = {0};
    if (!st_parser_push(p, &items, *out)) return false;
    while (st_parser_skip_operator(p, OP1('~'))) {
        if (!parse_product(p, out) || !st_parser_push(p, &items, *out)) return false;
    }
    return st_parser_sequence(p, JINJA_NODE_CONCAT, line, &items, out);
}

static bool parse_sum(parser *p, const jinja_node **out)
{
    static const unsigned operators[] = {OP1('+'), OP1('-'), 0};
    return parse_rank(p, parse_concat, operators, out);
}

/* The next comparison operator; 0 if there is none. */
static unsigned skip_comparison(parser *p)
{
    static const unsigned operators[] = {OP2('=', '='), OP2('!', '='), OP1('<'),
                                         OP2('<', '='), OP1('>'),      OP2('>', '=')};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (st_parser_skip_operator(p, operators[i])) return operators[i];
    }
    if (st_parser_skip_name(p, "in")) return JINJA_IN;
    const jinja_token *token = st_parser_current(p);
    if (st_parser_at_name(p, "not") && token[1].type == JINJA_TOKEN_NAME && st_str_is(token[1].text, "in")) {
        st_parser_advance(p);
        st_parser_advance(p);
        return JINJA_NOT_IN;
    }
    return 0;
}

static bool parse_comparison(parser *p, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    if (!parse_sum(p, out)) return false;
    unsigned operator = skip_comparison(p);
    if (!operator) return true;
    jinja_node *node = binary(p, JINJA_NODE_COMPARE, line, *out, NULL);
    parser_items items = {0};
    if (!node) return false;
    size_t capacity = 0;
    for (; operator; operator = skip_comparison(p)) {
        unsigned *operators = st_jinja_grown(p->machine, node->operators, items.count, sizeof *operators, &capacity);
        if (!operators) return false;
        node->operators = operators;
        operators[items.count] = operator;
        if (!parse_sum(p, out) || !st_parser_push(p, &items, *out)) return false;
    }
    node->items = (jinja_body){items.items, items.count};
    *out = node;
    return true;
}

static bool parse_not(parser *p, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    if (!st_parser_skip_name(p, "not")) return parse_comparison(p, out);
    if (!st_parser_enter(p) || !parse_not(p, out)) return false;
    st_parser_leave(p);
    *out = binary(p, JINJA_NODE_NOT, line, *out, NULL);
    return *out != NULL;
}

static bool parse_logic(parser *p, parse_function operand, const char *name, jinja_node_type type,
                        const jinja_node **out)
{
    size_t depth = p->depth;
    if (!operand(p, out)) return false;
    while (st_parser_at_name(p, name)) {
        uint32_t line = st_parser_current(p)->line;
        const jinja_node *right;
        st_parser_advance(p);
        if (!operand(p, &right) || !st_parser_enter(p)) return false;
        *out = binary(p, type, line, *out, right);
        if (!*out) return false;
    }
    p->depth = depth;
    return true;
}

static bool parse_and(parser *p, const jinja_node **out)
{
    return parse_logic(p, parse_not, "and", JINJA_NODE_AND, out);
}

static bool parse_plain(parser *p, const jinja_node **out)
{
    return parse_logic(p, parse_and, "or", JINJA_NODE_OR, out);
}

bool st_parser_expression(parser *p, const jinja_node **out)
{
    size_t unknown = p->unknown_count, depth = p->depth;
    if (!st_parser_enter(p) || !parse_plain(p, out)) return false;
    while (st_parser_at_name(p, "if")) {
        jinja_node *node = st_parser_node(p, JINJA_NODE_CONDITION, st_parser_current(p)->line);
        if (!node || !st_parser_enter(p)) return false;
        st_parser_advance(p);
        node->b = *out;
        if (!parse_plain(p, &node->a)) return false;
        if (st_parser_skip_name(p, "else") && !st_parser_expression(p, &node->c)) return false;
        p->unknown_count = unknown;
        *out = node;
    }
    p->depth = depth;
    return true;
}
