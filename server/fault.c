#include "fault.h"

#include <stdarg.h>
#include <stdio.h>

const server_fault_row server_fault_rows[FAULT_COUNT] = {
#define X(name, status, type, code, anthropic) {status, type, code, anthropic},
    SERVER_FAULT_TABLE(X)
#undef X
};

bool server_refuse(server_fail *fail, server_fault fault, const char *field, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail->fault = fault;
    fail->log[0] = '\0';
    if (vsnprintf(fail->message, sizeof fail->message, format, args) < 0) fail->message[0] = '\0';
    va_end(args);
    snprintf(fail->field, sizeof fail->field, "%s", field ? field : "");
    return false;
}

bool server_refuse_error(server_fail *fail, const strata_error *error)
{
    static const struct { strata_status status; server_fault fault; } rows[] = {
        {STRATA_INPUT, FAULT_INVALID},    {STRATA_USAGE, FAULT_INVALID}, {STRATA_LIMIT, FAULT_INVALID},
        {STRATA_TEMPLATE, FAULT_INVALID}, {STRATA_MEMORY, FAULT_BUSY},   {STRATA_INTERRUPTED, FAULT_BUSY},
    };
    server_fault fault = FAULT_INTERNAL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == error->status) fault = rows[i].fault;
    const char *kind = strata_status_text(error->status);
    if (fault != FAULT_INTERNAL)
        return server_refuse(fail, fault, NULL, "%s", error->message[0] ? error->message : kind);
    server_refuse(fail, fault, NULL, "%s: the server's log says more", kind);
    snprintf(fail->log, sizeof fail->log, "%s", error->message);
    return false;
}
