/* What the two halves of the parser share: expressions (parser_expr.c) and statements (parser.c). */
#ifndef ST_CHAT_PARSER_H
#define ST_CHAT_PARSER_H

#include "chat/ast.h"
#include "chat/lexer.h"
#include "chat/text.h"

/* An unknown filter or test. Inside `if` it is an error only when evaluated. */
typedef struct parser_unknown {
    const char *what;
    st_str name;
    uint32_t line;
} parser_unknown;

typedef struct parser {
    jinja_machine *machine;
    jinja_program *program;
    jinja_tokens tokens;
    size_t position;
    size_t depth;
    size_t loop_depth; /* for break and continue */
    uint32_t statement_line; /* line of the innermost statement */
    size_t symbol_capacity;
    bool uses_caller, uses_varargs, uses_kwargs; /* since the macro being parsed began */
    parser_unknown unknown[16];
    size_t unknown_count; /* may exceed the array: only the first are kept */
    jinja_builder literals;
} parser;

static inline const jinja_token *st_parser_current(const parser *p)
{
    return &p->tokens.items[p->position];
}

bool st_parser_enter(parser *p); /* counts nesting; st_parser_leave after success */
void st_parser_leave(parser *p);
void st_parser_advance(parser *p);
bool st_parser_at_operator(const parser *p, unsigned operator);
bool st_parser_at_name(const parser *p, const char *name);
bool st_parser_skip_operator(parser *p, unsigned operator); /* true if it was skipped */
bool st_parser_skip_name(parser *p, const char *name);
bool st_parser_expect_operator(parser *p, unsigned operator);
bool st_parser_expect_name(parser *p, st_str *name);
bool st_parser_fail_token(parser *p, const char *expected);
bool st_parser_symbol(parser *p, st_str name, uint32_t *symbol);
jinja_node *st_parser_node(parser *p, jinja_node_type type, uint32_t line);
bool st_parser_literal(parser *p, const jinja_string *string); /* records a literal of the template */

/* A body under construction. */
typedef struct parser_items {
    const jinja_node **items; /* [capacity] */
    size_t count;
    size_t capacity;
} parser_items;
bool st_parser_push(parser *p, parser_items *items, const jinja_node *node);
/* A node with the collected items. */
bool st_parser_sequence(parser *p, jinja_node_type type, uint32_t line, const parser_items *items,
                        const jinja_node **out);

bool st_parser_expression(parser *p, const jinja_node **out);
/* Comma-separated expressions make a tuple; `end` is a name that ends it, or NULL. */
bool st_parser_tuple(parser *p, bool with_condition, const char *end, bool parenthesised, const jinja_node **out);
/* `|name(…)|name(…)`; `at_start` when the first has no bar. */
bool st_parser_filters(parser *p, const jinja_node *node, bool at_start, const jinja_node **out);

#endif
