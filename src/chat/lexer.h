/* Source text → tokens, with Jinja's rules for white space around tags. Knows no grammar. */
#ifndef ST_CHAT_LEXER_H
#define ST_CHAT_LEXER_H

#include "chat/value.h"

typedef enum jinja_token_type {
    JINJA_TOKEN_DATA,
    JINJA_TOKEN_VARIABLE_BEGIN,
    JINJA_TOKEN_VARIABLE_END,
    JINJA_TOKEN_BLOCK_BEGIN,
    JINJA_TOKEN_BLOCK_END,
    JINJA_TOKEN_NAME,
    JINJA_TOKEN_STRING, /* text: between the quotes, escapes unresolved */
    JINJA_TOKEN_INTEGER,
    JINJA_TOKEN_FLOAT,
    JINJA_TOKEN_OPERATOR,
    JINJA_TOKEN_END,
} jinja_token_type;

/* An operator as a number: its one or two characters. */
#define JINJA_OPERATOR(first, second) ((unsigned)(first) | (unsigned)(second) << 8)
#define JINJA_IN JINJA_OPERATOR('i', 0)
#define JINJA_NOT_IN JINJA_OPERATOR('n', 0)

typedef struct jinja_token {
    jinja_token_type type;
    uint32_t line;
    unsigned operator;
    st_str text;
} jinja_token;

typedef struct jinja_tokens {
    jinja_token *items; /* [count]; the last is END */
    size_t count;
    size_t capacity;
} jinja_tokens;

/* The tokens refer to a copy of `source` in the machine's arena. */
bool st_jinja_lex(jinja_machine *machine, st_str source, jinja_tokens *out);

/* Resolves Python's escapes. */
bool st_jinja_unescape(jinja_machine *machine, st_str text, jinja_value *out);

#endif
