/* What can be wrong with a request: the HTTP status and the names that each API gives it, in one table. */
#ifndef SERVER_FAULT_H
#define SERVER_FAULT_H

#include <stdbool.h>

#include "strata.h"

/* X(name, HTTP status, OpenAI's type, OpenAI's code or NULL, Anthropic's type) */
#define SERVER_FAULT_TABLE(X)                                                                                \
    X(INVALID, 400, "invalid_request_error", NULL, "invalid_request_error")                                  \
    X(CONTEXT, 400, "invalid_request_error", "context_length_exceeded", "invalid_request_error")             \
    X(KEY, 401, "invalid_request_error", "invalid_api_key", "authentication_error")                          \
    X(FORBIDDEN, 403, "invalid_request_error", "forbidden", "permission_error")                              \
    X(ROUTE, 404, "invalid_request_error", "not_found", "not_found_error")                                   \
    X(MODEL, 404, "invalid_request_error", "model_not_found", "not_found_error")                             \
    X(METHOD, 405, "invalid_request_error", "method_not_allowed", "invalid_request_error")                   \
    X(LARGE, 413, "invalid_request_error", "request_too_large", "request_too_large")                         \
    X(MEDIA, 415, "invalid_request_error", "unsupported_media_type", "invalid_request_error")                \
    X(INTERNAL, 500, "server_error", NULL, "api_error")                                                      \
    X(BUSY, 503, "server_error", "overloaded", "overloaded_error")

typedef enum server_fault {
#define X(name, status, type, code, anthropic) FAULT_##name,
    SERVER_FAULT_TABLE(X)
#undef X
        FAULT_COUNT
} server_fault;

typedef struct server_fault_row {
    int status;
    const char *type, *code, *anthropic;
} server_fault_row;
extern const server_fault_row server_fault_rows[FAULT_COUNT];

typedef struct server_fail {
    server_fault fault;
    char message[768];
    char field[96]; /* of the request; empty: none */
    char log[768];  /* what the log says instead of the message; empty: nothing */
} server_fail;

/* Sets the failure; returns false. `field` may be NULL. */
bool server_refuse(server_fail *fail, server_fault fault, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The failure of a strata_ call; returns false. A failure of the machine may name its files and addresses: clients get
 * its kind alone, and the log all of it. */
bool server_refuse_error(server_fail *fail, const strata_error *error);

#endif
