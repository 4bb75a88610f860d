/* A growing byte buffer that writes JSON strings. A failed allocation sets `failed`, and later appends do nothing. */
#ifndef SERVER_BUF_H
#define SERVER_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise to create; server_buf_free to destroy. */
typedef struct server_buf {
    char *data; /* [capacity], NUL terminated if anything was appended */
    size_t length;
    size_t capacity;
    bool failed;
} server_buf;

void server_buf_add(server_buf *buf, const void *data, size_t length);
void server_buf_text(server_buf *buf, const char *text);
void server_buf_printf(server_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes. Invalid UTF-8 becomes U+FFFD. `text` may be NULL if it is empty. */
void server_buf_json(server_buf *buf, const char *text, size_t length);
void server_buf_free(server_buf *buf);

/* A copy with a NUL behind it; NULL: no memory. */
char *server_copy(const char *text, size_t length);
/* Sets the error and returns its status. */
#include "strata.h"
strata_status server_error(strata_error *error, strata_status status, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
