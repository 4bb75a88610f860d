/* The text of one answer on its way to the client: separates reasoning from content, ends at stop strings, and removes
 * control tokens. Holds back what may be the start of a mark or of a stop string. Knows no API and no model. */
#ifndef SERVER_TEXT_H
#define SERVER_TEXT_H

#include "buf.h"

typedef enum server_kind { KIND_CONTENT, KIND_REASONING, KIND_COUNT } server_kind;

/* How a template marks reasoning. White space around the marks belongs to neither text. */
typedef struct server_marks {
    char open[128];  /* empty: the template has no reasoning */
    char close[128];
} server_marks;

typedef enum server_text_state { TEXT_BEFORE, TEXT_REASONING, TEXT_CONTENT } server_text_state;

typedef struct server_text {
    server_marks marks;
    server_text_state state;
    bool trim; /* white space at the start of this part is dropped */
    const char *const *stops; /* [stop_count]; of the content */
    size_t stop_count;
    size_t stopped; /* index of the stop string that ended the content; SIZE_MAX: none */
    server_buf raw;     /* not yet assigned to a part */
    server_buf control; /* one byte for each of `raw`: 1 for the text of a control token */
    server_buf held;    /* content that may begin a stop string */
    void (*emit)(void *context, server_kind kind, const char *text, size_t length);
    void *context;
} server_text;

/* `thinking`: the prompt has opened the reasoning already. The stops must outlive the text. */
void server_text_open(server_text *t, const server_marks *marks, bool thinking, const char *const *stops,
                      size_t stop_count);
/* Whole code points. False: a stop string was found, and nothing follows. */
bool server_text_push(server_text *t, const char *text, size_t length, bool control);
/* Emits what was held back. */
void server_text_finish(server_text *t);
void server_text_free(server_text *t);
bool server_text_failed(const server_text *t); /* no memory */

#endif
