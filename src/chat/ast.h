/* The syntax tree of a compiled template, immutable once built, and the program that the parser makes of it. */
#ifndef ST_CHAT_AST_H
#define ST_CHAT_AST_H

#include "base/map.h"
#include "chat/native.h"
#include "chat/value.h"

typedef enum jinja_node_type {
    /* expressions */
    JINJA_NODE_CONSTANT,
    JINJA_NODE_NAME,
    JINJA_NODE_LIST,      /* items */
    JINJA_NODE_TUPLE,     /* items */
    JINJA_NODE_DICT,      /* items: key, value, key, value… */
    JINJA_NODE_ATTRIBUTE, /* a.constant */
    JINJA_NODE_ITEM,      /* a[b] */
    JINJA_NODE_SLICE,     /* a[items[0]:items[1]:items[2]], each may be NULL */
    JINJA_NODE_CALL,      /* a(arguments) */
    JINJA_NODE_FILTER,    /* a|native(arguments) */
    JINJA_NODE_TEST,      /* a is native(arguments) */
    JINJA_NODE_NOT,
    JINJA_NODE_NEGATIVE,
    JINJA_NODE_POSITIVE,
    JINJA_NODE_BINARY, /* a operator b */
    JINJA_NODE_CONCAT, /* items joined by ~ */
    JINJA_NODE_AND,
    JINJA_NODE_OR,
    JINJA_NODE_COMPARE,   /* a, then operators[i] items[i] */
    JINJA_NODE_CONDITION, /* b if a else c (c may be NULL) */
    JINJA_NODE_CAPTURED,  /* the rendered text of the enclosing block */
    /* statements */
    JINJA_NODE_DATA,      /* constant */
    JINJA_NODE_PRINT,     /* a */
    JINJA_NODE_IF,        /* a: test, body, otherwise */
    JINJA_NODE_FOR,       /* a: target, b: iterable, c: filter or NULL, body, otherwise */
    JINJA_NODE_SET,       /* a: target, b: value */
    JINJA_NODE_SET_BLOCK, /* a: target, b: value made of CAPTURED, body */
    JINJA_NODE_MACRO,     /* macro */
    JINJA_NODE_CALL_BLOCK, /* a: the call, macro: the caller */
    JINJA_NODE_FILTER_BLOCK, /* b: value made of CAPTURED, body */
    JINJA_NODE_WITH,         /* items: target, value, target, value…, body */
    JINJA_NODE_BREAK,
    JINJA_NODE_CONTINUE,
    JINJA_NODE_NAMESPACE_TARGET, /* target of set: symbol.constant */
} jinja_node_type;

typedef struct jinja_node jinja_node;

typedef struct jinja_body {
    const jinja_node **items; /* [count] */
    size_t count;
} jinja_body;

typedef struct jinja_call_keyword {
    st_str name;
    const jinja_node *value;
} jinja_call_keyword;

typedef struct jinja_call_arguments {
    jinja_body positional;
    jinja_call_keyword *keywords; /* [keyword_count] */
    size_t keyword_count;
    const jinja_node *star;        /* *expression or NULL */
    const jinja_node *double_star; /* **expression or NULL */
} jinja_call_arguments;

typedef struct jinja_parameter {
    st_str name;
    uint32_t symbol;
    const jinja_node *fallback; /* NULL: no default */
} jinja_parameter;

typedef struct jinja_macro_definition {
    st_str name;
    uint32_t symbol;
    jinja_parameter *parameters; /* [parameter_count] */
    size_t parameter_count;
    bool uses_caller, uses_varargs, uses_kwargs;
    jinja_body body;
} jinja_macro_definition;

struct jinja_node {
    jinja_node_type type;
    uint32_t line;
    uint32_t symbol;
    unsigned operator;
    bool recursive;
    const jinja_node *a, *b, *c;
    jinja_body items;
    jinja_body body, otherwise;
    unsigned *operators; /* [items.count] */
    const jinja_call_arguments *arguments;
    const jinja_native *native; /* NULL: no such filter or test; an error when evaluated */
    const jinja_macro_definition *macro;
    jinja_value constant;
};

/* Names are interned as numbers; these come first in every template. */
enum { JINJA_SYMBOL_LOOP, JINJA_SYMBOL_CALLER, JINJA_SYMBOL_VARARGS, JINJA_SYMBOL_KWARGS };

typedef struct jinja_symbol {
    st_str name;
    jinja_bound global; /* .native NULL: no global of this name */
} jinja_symbol;

typedef struct jinja_program {
    jinja_body body;
    jinja_symbol *symbols; /* [symbol_count] */
    size_t symbol_count;
    st_map symbol_ids; /* of symbols' names */
    st_str literals;   /* all text and string constants, joined by newlines */
} jinja_program;

/* After a failure the caller frees the machine's arena and out->symbol_ids (st_map_free). */
bool st_jinja_parse(jinja_machine *machine, st_str source, jinja_program *out);

#endif
