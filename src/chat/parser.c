#include "chat/parser.h"

#include "base/error.h"

#define OP1(c) JINJA_OPERATOR(c, 0)

/* ---- tokens, names and nodes ---- */

bool st_parser_enter(parser *p)
{
    if (p->depth >= p->machine->limits.depth_max) {
        return st_jinja_fail_limit(p->machine, "levels of nesting", p->machine->limits.depth_max);
    }
    p->depth++;
    return true;
}

void st_parser_leave(parser *p)
{
    p->depth--;
}

void st_parser_advance(parser *p)
{
    if (p->position + 1 < p->tokens.count) p->position++;
    p->machine->line = st_parser_current(p)->line;
}

bool st_parser_at_operator(const parser *p, unsigned operator)
{
    const jinja_token *token = st_parser_current(p);
    return token->type == JINJA_TOKEN_OPERATOR && token->operator == operator;
}

bool st_parser_at_name(const parser *p, const char *name)
{
    const jinja_token *token = st_parser_current(p);
    return token->type == JINJA_TOKEN_NAME && st_str_is(token->text, name);
}

bool st_parser_skip_operator(parser *p, unsigned operator)
{
    if (!st_parser_at_operator(p, operator)) return false;
    st_parser_advance(p);
    return true;
}

bool st_parser_skip_name(parser *p, const char *name)
{
    if (!st_parser_at_name(p, name)) return false;
    st_parser_advance(p);
    return true;
}

bool st_parser_fail_token(parser *p, const char *expected)
{
    static const char *const names[] = {
        [JINJA_TOKEN_DATA] = "text",         [JINJA_TOKEN_VARIABLE_BEGIN] = "'{{'", [JINJA_TOKEN_VARIABLE_END] = "'}}'",
        [JINJA_TOKEN_BLOCK_BEGIN] = "'{%'", [JINJA_TOKEN_BLOCK_END] = "'%}'",      [JINJA_TOKEN_END] = "the end",
    };
    const jinja_token *token = st_parser_current(p);
    p->machine->line = token->line;
    st_str text = st_str_head(token->text, 60);
    if (token->type >= JINJA_TOKEN_NAME && token->type <= JINJA_TOKEN_OPERATOR) {
        return st_jinja_fail(p->machine, "expected %s, found '%.*s'", expected, ST_STR_ARG(text));
    }
    return st_jinja_fail(p->machine, "expected %s, found %s", expected, names[token->type]);
}

bool st_parser_expect_operator(parser *p, unsigned operator)
{
    if (st_parser_skip_operator(p, operator)) return true;
    char expected[8] = {'\'', (char)(operator & 0xFF), '\'', '\0'};
    return st_parser_fail_token(p, expected);
}

bool st_parser_expect_name(parser *p, st_str *name)
{
    const jinja_token *token = st_parser_current(p);
    if (token->type != JINJA_TOKEN_NAME) return st_parser_fail_token(p, "a name");
    *name = token->text;
    st_parser_advance(p);
    return true;
}

bool st_parser_symbol(parser *p, st_str name, uint32_t *symbol)
{
    jinja_program *program = p->program;
    const uint32_t *known = st_map_find(&program->symbol_ids, name);
    if (known) {
        *symbol = *known;
        return true;
    }
    jinja_symbol *symbols =
        st_jinja_grown(p->machine, program->symbols, program->symbol_count, sizeof *symbols, &p->symbol_capacity);
    if (!symbols) return false;
    program->symbols = symbols;
    *symbol = (uint32_t)program->symbol_count;
    if (st_map_add(&program->symbol_ids, name, *symbol) != ST_MAP_ADDED) {
        p->machine->status = st_error_memory(p->machine->error, sizeof(st_map_entry), "chat template");
        return false;
    }
    program->symbols[program->symbol_count++] =
        (jinja_symbol){name, {.native = st_jinja_find(&st_jinja_globals, name)}};
    return true;
}

jinja_node *st_parser_node(parser *p, jinja_node_type type, uint32_t line)
{
    jinja_node *node = st_jinja_alloc(p->machine, 1, sizeof *node);
    if (!node) return NULL;
    node->type = type;
    node->line = line;
    return node;
}

bool st_parser_push(parser *p, parser_items *items, const jinja_node *node)
{
    const jinja_node **grown = st_jinja_grown(p->machine, items->items, items->count, sizeof *grown, &items->capacity);
    if (!grown) return false;
    items->items = grown;
    items->items[items->count++] = node;
    return true;
}

bool st_parser_sequence(parser *p, jinja_node_type type, uint32_t line, const parser_items *items,
                        const jinja_node **out)
{
    jinja_node *node = st_parser_node(p, type, line);
    if (!node) return false;
    node->items = (jinja_body){items->items, items->count};
    *out = node;
    return true;
}

bool st_parser_literal(parser *p, const jinja_string *string)
{
    return (p->literals.length == 0 || st_jinja_add_literal(&p->literals, "\n")) &&
           st_jinja_add_string(&p->literals, string);
}

/* An unknown filter or test is a compile-time error, but inside `if` only when it is evaluated, as in Jinja.
 */
static bool check_unknown(parser *p, size_t known)
{
    if (p->unknown_count <= known) return true;
    size_t last = sizeof p->unknown / sizeof *p->unknown - 1;
    const parser_unknown *unknown = &p->unknown[known < last ? known : last];
    p->machine->line = unknown->line;
    st_str name = st_str_head(unknown->name, 100);
    return st_jinja_fail(p->machine, "no %s named '%.*s'", unknown->what, ST_STR_ARG(name));
}

/* ---- bodies ---- */

static bool parse_statement(parser *p, const jinja_node **out);

static bool expect_block_end(parser *p)
{
    if (st_parser_current(p)->type != JINJA_TOKEN_BLOCK_END) return st_parser_fail_token(p, "'%}'");
    st_parser_advance(p);
    return true;
}

/* Data, {{ prints }} and {% statements %} up to `{% name`, where name is one of `ends` (NULL: the end of the source).
 * The parser then stands at that name. */
static bool parse_body(parser *p, const char *const *ends, jinja_body *out)
{
    parser_items items = {0};
    if (!st_parser_enter(p)) return false;
    for (;;) {
        const jinja_token *token = st_parser_current(p);
        const jinja_node *item = NULL;
        if (token->type == JINJA_TOKEN_END) {
            if (!ends) break;
            p->machine->line = p->statement_line;
            while (ends[1]) ends++; /* END ends every body */
            return st_jinja_fail(p->machine, "expected '{%% %s %%}', found the end", ends[0]);
        }
        st_parser_advance(p);
        if (token->type == JINJA_TOKEN_DATA) {
            jinja_node *node = st_parser_node(p, JINJA_NODE_DATA, token->line);
            if (!node || !st_jinja_string_new(p->machine, token->text, false, &node->constant)) return false;
            if (!st_parser_literal(p, node->constant.string)) return false;
            item = node;
        } else if (token->type == JINJA_TOKEN_VARIABLE_BEGIN) {
            jinja_node *node = st_parser_node(p, JINJA_NODE_PRINT, token->line);
            if (!node || !st_parser_tuple(p, true, NULL, false, &node->a)) return false;
            if (st_parser_current(p)->type != JINJA_TOKEN_VARIABLE_END) return st_parser_fail_token(p, "'}}'");
            st_parser_advance(p);
            item = node;
        } else {
            bool at_end = false;
            for (size_t i = 0; ends && ends[i]; i++) at_end = at_end || st_parser_at_name(p, ends[i]);
            if (at_end) break;
            if (!parse_statement(p, &item)) return false;
        }
        if (!st_parser_push(p, &items, item)) return false;
    }
    *out = (jinja_body){items.items, items.count};
    st_parser_leave(p);
    return true;
}

/* A whole block: `%}`, the body, `{% end %}`. */
static bool parse_block(parser *p, const char *end, jinja_body *out)
{
    const char *const ends[] = {end, NULL};
    if (!expect_block_end(p) || !parse_body(p, ends, out)) return false;
    st_parser_advance(p);
    return expect_block_end(p);
}

/* The same for a block with its own scope, where an unknown filter is a compile-time error. */
static bool parse_scope(parser *p, const char *end, jinja_body *out)
{
    size_t known = p->unknown_count;
    return parse_block(p, end, out) && check_unknown(p, known);
}

/* ---- statements ---- */

static bool parse_if(parser *p, jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    size_t known = p->unknown_count;
    for (;;) {
        if (!st_parser_tuple(p, false, NULL, false, &node->a)) return false;
        if (!expect_block_end(p) || !parse_body(p, ends, &node->body)) return false;
        if (!st_parser_skip_name(p, "elif")) break;
        jinja_node *next = st_parser_node(p, JINJA_NODE_IF, st_parser_current(p)->line);
        parser_items items = {0};
        if (!next || !st_parser_push(p, &items, next)) return false;
        node->otherwise = (jinja_body){items.items, items.count};
        node = next;
    }
    if (st_parser_skip_name(p, "else") && (!expect_block_end(p) || !parse_body(p, last, &node->otherwise)))
        return false;
    st_parser_advance(p);
    p->unknown_count = known;
    return expect_block_end(p);
}

/* A name, `namespace.name` where allowed, or several of them. */
static bool parse_target_part(parser *p, bool with_namespace, const jinja_node **out)
{
    if (st_parser_skip_operator(p, OP1('('))) {
        parser_items items = {0};
        uint32_t line = p->machine->line;
        if (!st_parser_enter(p)) return false;
        while (!st_parser_at_operator(p, OP1(')'))) {
            const jinja_node *part = NULL;
            if (items.count && !st_parser_expect_operator(p, OP1(','))) return false;
            if (!parse_target_part(p, with_namespace, &part) || !st_parser_push(p, &items, part)) return false;
        }
        st_parser_leave(p);
        return st_parser_sequence(p, JINJA_NODE_TUPLE, line, &items, out) && st_parser_expect_operator(p, OP1(')'));
    }
    const jinja_token *token = st_parser_current(p);
    jinja_node *node = st_parser_node(p, JINJA_NODE_NAME, token->line);
    st_str name = {0};
    if (!node || !st_parser_expect_name(p, &name)) return false;
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (st_str_is(name, constants[i])) return st_jinja_fail(p->machine, "can't assign to '%s'", constants[i]);
    }
    if (!st_parser_symbol(p, name, &node->symbol)) return false;
    *out = node;
    if (!with_namespace || !st_parser_skip_operator(p, OP1('.'))) return true;
    st_str member;
    node->type = JINJA_NODE_NAMESPACE_TARGET;
    return st_parser_expect_name(p, &member) && st_jinja_string_new(p->machine, member, false, &node->constant);
}

static bool parse_target(parser *p, bool with_namespace, const char *end, const jinja_node **out)
{
    if (!parse_target_part(p, with_namespace, out)) return false;
    if (!st_parser_at_operator(p, OP1(','))) return true;
    uint32_t line = p->machine->line;
    parser_items items = {0};
    if (!st_parser_push(p, &items, *out)) return false;
    while (st_parser_skip_operator(p, OP1(','))) {
        const jinja_node *part;
        if ((end && st_parser_at_name(p, end)) || st_parser_at_operator(p, OP1('='))) break;
        if (!parse_target_part(p, with_namespace, &part) || !st_parser_push(p, &items, part)) return false;
    }
    return st_parser_sequence(p, JINJA_NODE_TUPLE, line, &items, out);
}

static bool parse_for(parser *p, jinja_node *node)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    if (!parse_target(p, false, "in", &node->a)) return false;
    if (!st_parser_skip_name(p, "in")) return st_parser_fail_token(p, "'in'");
    if (!st_parser_tuple(p, false, "recursive", false, &node->b)) return false;
    size_t known = p->unknown_count;
    if (st_parser_skip_name(p, "if") && !st_parser_expression(p, &node->c)) return false;
    node->recursive = st_parser_skip_name(p, "recursive");
    p->loop_depth++;
    if (!expect_block_end(p) || !parse_body(p, ends, &node->body)) return false;
    p->loop_depth--;
    if (st_parser_skip_name(p, "else") && (!expect_block_end(p) || !parse_body(p, last, &node->otherwise)))
        return false;
    st_parser_advance(p);
    return expect_block_end(p) && check_unknown(p, known);
}

static jinja_node *captured_node(parser *p)
{
    return st_parser_node(p, JINJA_NODE_CAPTURED, p->machine->line);
}

static bool parse_set(parser *p, jinja_node *node)
{
    if (!parse_target(p, true, NULL, &node->a)) return false;
    if (st_parser_skip_operator(p, OP1('='))) {
        return st_parser_tuple(p, true, NULL, false, &node->b) && expect_block_end(p);
    }
    node->type = JINJA_NODE_SET_BLOCK;
    const jinja_node *captured = captured_node(p);
    if (!captured || !st_parser_filters(p, captured, false, &node->b)) return false;
    return parse_scope(p, "endset", &node->body);
}

static bool parse_parameters(parser *p, jinja_macro_definition *macro)
{
    size_t capacity = 0;
    if (!st_parser_expect_operator(p, OP1('('))) return false;
    while (!st_parser_at_operator(p, OP1(')'))) {
        if (macro->parameter_count && !st_parser_expect_operator(p, OP1(','))) return false;
        size_t i = macro->parameter_count;
        jinja_parameter *all = st_jinja_grown(p->machine, macro->parameters, i, sizeof *all, &capacity);
        if (!all) return false;
        macro->parameters = all;
        if (!st_parser_expect_name(p, &all[i].name) || !st_parser_symbol(p, all[i].name, &all[i].symbol)) return false;
        if (st_parser_skip_operator(p, OP1('='))) {
            if (!st_parser_expression(p, &all[i].fallback)) return false;
        } else if (i > 0 && all[i - 1].fallback) {
            return st_jinja_fail(p->machine, "a parameter without a default must come before those with one");
        }
        macro->parameter_count++;
    }
    st_parser_advance(p);
    return true;
}

/* The body of a macro or a call block: enclosing loops do not count for break and continue. */
static bool parse_macro_body(parser *p, jinja_macro_definition *macro, const char *end)
{
    bool caller = p->uses_caller, varargs = p->uses_varargs, kwargs = p->uses_kwargs;
    size_t loop_depth = p->loop_depth;
    p->uses_caller = p->uses_varargs = p->uses_kwargs = false;
    p->loop_depth = 0;
    if (!parse_scope(p, end, &macro->body)) return false;
    p->loop_depth = loop_depth;
    macro->uses_caller = p->uses_caller;
    macro->uses_varargs = p->uses_varargs;
    macro->uses_kwargs = p->uses_kwargs;
    p->uses_caller |= caller;
    p->uses_varargs |= varargs;
    p->uses_kwargs |= kwargs;
    return true;
}

static bool parse_macro(parser *p, jinja_node *node)
{
    jinja_macro_definition *macro = st_jinja_alloc(p->machine, 1, sizeof *macro);
    if (!macro || !st_parser_expect_name(p, &macro->name) || !st_parser_symbol(p, macro->name, &macro->symbol))
        return false;
    node->macro = macro;
    return parse_parameters(p, macro) && parse_macro_body(p, macro, "endmacro");
}

static bool parse_call_block(parser *p, jinja_node *node)
{
    jinja_macro_definition *macro = st_jinja_alloc(p->machine, 1, sizeof *macro);
    if (!macro) return false;
    macro->name = ST_STR("caller");
    macro->symbol = JINJA_SYMBOL_CALLER;
    node->macro = macro;
    if (st_parser_at_operator(p, OP1('(')) && !parse_parameters(p, macro)) return false;
    if (!st_parser_expression(p, &node->a)) return false;
    if (node->a->type != JINJA_NODE_CALL) return st_jinja_fail(p->machine, "expected a call in '{%% call %%}'");
    return parse_macro_body(p, macro, "endcall");
}

static bool parse_filter_block(parser *p, jinja_node *node)
{
    const jinja_node *captured = captured_node(p);
    return captured && st_parser_filters(p, captured, true, &node->b) && parse_scope(p, "endfilter", &node->body);
}

static bool parse_with(parser *p, jinja_node *node)
{
    parser_items items = {0};
    while (st_parser_current(p)->type != JINJA_TOKEN_BLOCK_END) {
        const jinja_node *target, *value;
        if (items.count && !st_parser_expect_operator(p, OP1(','))) return false;
        if (!parse_target_part(p, false, &target) || !st_parser_expect_operator(p, OP1('=')) ||
            !st_parser_expression(p, &value) || !st_parser_push(p, &items, target) ||
            !st_parser_push(p, &items, value)) {
            return false;
        }
    }
    node->items = (jinja_body){items.items, items.count};
    return parse_scope(p, "endwith", &node->body);
}

/* `generation` marks the assistant's text for training; rendering only runs its body. */
static bool parse_generation(parser *p, jinja_node *node)
{
    return parse_scope(p, "endgeneration", &node->body);
}

static bool parse_print(parser *p, jinja_node *node)
{
    return st_parser_tuple(p, true, NULL, false, &node->a) && expect_block_end(p);
}

static bool parse_loop_control(parser *p, jinja_node *node)
{
    if (p->loop_depth == 0) return st_jinja_fail(p->machine, "break and continue belong into a loop");
    (void)node;
    return expect_block_end(p);
}

static bool parse_refused(parser *p, jinja_node *node)
{
    (void)node;
    return st_jinja_fail(p->machine,
                         "a chat template is one text: it can neither import nor include nor extend another");
}

static const struct statement_row {
    const char *name;
    jinja_node_type type;
    bool (*parse)(parser *p, jinja_node *node);
} statement_rows[] = {
    {"if", JINJA_NODE_IF, parse_if},
    {"for", JINJA_NODE_FOR, parse_for},
    {"set", JINJA_NODE_SET, parse_set},
    {"macro", JINJA_NODE_MACRO, parse_macro},
    {"call", JINJA_NODE_CALL_BLOCK, parse_call_block},
    {"filter", JINJA_NODE_FILTER_BLOCK, parse_filter_block},
    {"with", JINJA_NODE_WITH, parse_with},
    {"generation", JINJA_NODE_WITH, parse_generation},
    {"print", JINJA_NODE_PRINT, parse_print},
    {"break", JINJA_NODE_BREAK, parse_loop_control},
    {"continue", JINJA_NODE_CONTINUE, parse_loop_control},
    {"import", JINJA_NODE_WITH, parse_refused},
    {"from", JINJA_NODE_WITH, parse_refused},
    {"include", JINJA_NODE_WITH, parse_refused},
    {"extends", JINJA_NODE_WITH, parse_refused},
    {"block", JINJA_NODE_WITH, parse_refused},
};

static bool parse_statement(parser *p, const jinja_node **out)
{
    uint32_t line = st_parser_current(p)->line;
    st_str name = {0};
    if (!st_parser_expect_name(p, &name)) return false;
    for (size_t i = 0; i < sizeof statement_rows / sizeof *statement_rows; i++) {
        const struct statement_row *row = &statement_rows[i];
        if (!st_str_is(name, row->name)) continue;
        jinja_node *node = st_parser_node(p, row->type, line);
        uint32_t outer = p->statement_line;
        p->statement_line = line;
        if (!node || !row->parse(p, node)) return false;
        p->statement_line = outer;
        *out = node;
        return true;
    }
    p->machine->line = line;
    name = st_str_head(name, 60);
    return st_jinja_fail(p->machine, "unknown tag '%.*s'", ST_STR_ARG(name));
}

bool st_jinja_parse(jinja_machine *machine, st_str source, jinja_program *out)
{
    static const char *const reserved[] = {
        [JINJA_SYMBOL_LOOP] = "loop",
        [JINJA_SYMBOL_CALLER] = "caller",
        [JINJA_SYMBOL_VARARGS] = "varargs",
        [JINJA_SYMBOL_KWARGS] = "kwargs",
    };
    parser p = {.machine = machine, .program = out, .literals = {.machine = machine}};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        uint32_t symbol;
        if (!st_parser_symbol(&p, st_str_from(reserved[i]), &symbol)) return false;
    }
    if (!st_jinja_lex(machine, source, &p.tokens)) return false;
    machine->line = st_parser_current(&p)->line;
    if (!parse_body(&p, NULL, &out->body) || !check_unknown(&p, 0)) return false;
    out->literals = (st_str){p.literals.bytes ? p.literals.bytes : "", p.literals.length};
    return true;
}
