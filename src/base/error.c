#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

typedef struct status_row {
    const char *name;
    int exit_code;
    const char *text;
} status_row;

static const status_row status_rows[STRATA_STATUS_COUNT] = {
#define X(name, exit_code, text) [STRATA_##name] = {#name, exit_code, text},
    STRATA_STATUS_TABLE(X)
#undef X
};

static const status_row *row_of(strata_status status)
{
    size_t index = (size_t)status;
    return &status_rows[index < STRATA_STATUS_COUNT ? index : STRATA_RUNTIME];
}

const char *strata_status_name(strata_status status)
{
    return row_of(status)->name;
}

const char *strata_status_text(strata_status status)
{
    return row_of(status)->text;
}

int strata_status_exit_code(strata_status status)
{
    return row_of(status)->exit_code;
}

void strata_free(void *pointer)
{
    st_free(pointer);
}

/* Replaces control characters and invalid UTF-8 in place, byte for byte, and drops an incomplete last code point. */
static void make_printable(char *text)
{
    size_t length = strlen(text), position = 0;
    length -= st_utf8_unfinished_tail(text, length);
    text[length] = '\0';
    while (position < length) {
        uint32_t code;
        size_t taken = st_utf8_decode(text + position, length - position, &code);
        bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
        if (control || code == UINT32_MAX) memset(text + position, '?', taken);
        position += taken;
    }
}

strata_status st_error_set(strata_error *error, strata_status status, const char *hint, const char *format, ...)
{
    if (!error) return status;
    error->status = status;
    va_list args;
    va_start(args, format);
    if (vsnprintf(error->message, sizeof error->message, format, args) < 0) error->message[0] = '\0';
    va_end(args);
    snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
    make_printable(error->message);
    make_printable(error->hint);
    return status;
}

strata_status st_error_memory(strata_error *error, size_t bytes, const char *what)
{
    return st_error_set(error, STRATA_MEMORY, "close other programs, or use a smaller model",
                        "%s: no memory for %zu bytes", what, bytes);
}

void st_error_prefix(strata_error *error, const char *prefix)
{
    if (!error) return;
    char message[sizeof error->message];
    memcpy(message, error->message, sizeof message);
    /* A long message loses its end: the location is at its start. */
    int kept = snprintf(error->message, sizeof error->message, "%s: ", prefix);
    size_t used = kept < 0 ? 0 : (size_t)kept;
    if (used < sizeof error->message) snprintf(error->message + used, sizeof error->message - used, "%.*s",
                                               (int)(sizeof message - used - 1), message);
    make_printable(error->message);
}

void st_error_list(char *list, size_t size, const char *name)
{
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%s", used ? ", " : "", name);
}

strata_status st_error_copy(strata_error *error, const strata_error *from)
{
    if (error) *error = *from;
    return from->status;
}
