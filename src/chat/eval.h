/* The evaluator: walks the syntax tree. Expressions are in eval.c, statements in exec.c, calls in call.c. */
#ifndef ST_CHAT_EVAL_H
#define ST_CHAT_EVAL_H

#include "chat/ast.h"
#include "chat/text.h"

typedef struct jinja_binding {
    uint32_t symbol;
    jinja_value value;
} jinja_binding;

/* The variables of a loop iteration, a macro or a block. */
typedef struct jinja_scope {
    struct jinja_scope *parent; /* NULL: the top */
    jinja_binding *bindings;    /* [capacity] */
    size_t count;
    size_t capacity;
    bool captured; /* a macro refers to it: it must not be reused */
} jinja_scope;

struct jinja_macro {
    const jinja_macro_definition *definition;
    jinja_scope *scope; /* where it was defined */
};

struct jinja_loop {
    const jinja_node *node;
    jinja_scope *scope; /* around the loop */
    jinja_iterator iterator;
    size_t index0;
    size_t length;
    size_t depth0; /* of a recursive loop */
    jinja_value previous, current;
    jinja_value changed; /* the last arguments of loop.changed(); MISSING: none yet */
};

typedef enum jinja_flow { JINJA_FLOW_NEXT, JINJA_FLOW_BREAK, JINJA_FLOW_CONTINUE, JINJA_FLOW_FAIL } jinja_flow;

bool st_jinja_eval(jinja_machine *machine, const jinja_node *node, jinja_value *out);
jinja_flow st_jinja_exec(jinja_machine *machine, const jinja_body *body);

jinja_scope *st_jinja_scope_new(jinja_machine *machine, jinja_scope *parent);
bool st_jinja_scope_set(jinja_machine *machine, uint32_t symbol, jinja_value value); /* in the innermost scope */
bool st_jinja_scope_get(jinja_machine *machine, uint32_t symbol, jinja_value *out);

/* Runs a body and returns its output as a string. */
bool st_jinja_capture(jinja_machine *machine, const jinja_body *body, jinja_value *out);
bool st_jinja_macro_new(jinja_machine *machine, const jinja_macro_definition *definition, jinja_value *out);
/* A call node, with one more keyword argument (NULL: none). */
bool st_jinja_eval_call(jinja_machine *machine, const jinja_node *node, const jinja_keyword *extra, jinja_value *out);
/* Calls a recursive loop for an inner iterable. */
bool st_jinja_loop_call(jinja_machine *machine, const jinja_loop *loop, jinja_value iterable, jinja_value *out);
bool st_jinja_loop_attribute(jinja_machine *machine, jinja_value loop, st_str name,
                             jinja_value *out); /* MISSING: none */

#endif
