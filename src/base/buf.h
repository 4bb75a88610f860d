/* A growable byte buffer. After a failed append it is `failed` and later appends do nothing, so a writer checks
 * once, at the end. */
#ifndef ST_BASE_BUF_H
#define ST_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

/* Zero-initialise to create; st_buf_free to destroy. */
typedef struct st_buf {
    char *data; /* [capacity] */
    size_t length;
    size_t capacity;
    bool failed; /* an append could not allocate */
} st_buf;

bool st_buf_reserve(st_buf *buf, size_t extra); /* makes room for `extra` more bytes; false when failed */
bool st_buf_append(st_buf *buf, const void *bytes, size_t length);
bool st_buf_append_str(st_buf *buf, st_str text);
bool st_buf_append_char(st_buf *buf, char c);
bool st_buf_printf(st_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Terminates the bytes with NUL and gives them to the caller (st_free); the buffer is then empty. NULL when it
 * failed. */
char *st_buf_take(st_buf *buf, size_t *length);
void st_buf_free(st_buf *buf);

#endif
