/* A view of bytes that another object owns; not NUL-terminated. */
#ifndef ST_BASE_STR_H
#define ST_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct st_str {
    const char *data;
    size_t length;
} st_str;

/* For printf: printf("%.*s", ST_STR_ARG(s)). Callers print no view longer than INT_MAX. */
#define ST_STR_ARG(s) (int)(s).length, (s).data
#define ST_STR(literal) ((st_str){"" literal, sizeof(literal) - 1})

static inline st_str st_str_from(const char *text)
{
    return (st_str){text, strlen(text)};
}

/* The first `length` bytes at most, for messages that quote a file or a template. */
static inline st_str st_str_head(st_str text, size_t length)
{
    return (st_str){text.data, text.length < length ? text.length : length};
}

static inline bool st_str_equal(st_str a, st_str b)
{
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

static inline bool st_str_is(st_str a, const char *literal)
{
    return st_str_equal(a, st_str_from(literal));
}

#endif
