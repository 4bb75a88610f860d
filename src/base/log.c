#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic(strata_log) receiver;
static _Atomic(void *) receiver_context;

void strata_log_to(strata_log log, void *context)
{
    atomic_store(&receiver_context, context);
    atomic_store(&receiver, log);
}

void st_log(st_log_level level, const char *format, ...)
{
    static const char *const names[] = {[ST_LOG_ERROR] = "error", [ST_LOG_WARN] = "warning", [ST_LOG_NOTE] = "note"};
    char line[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    strata_log log = atomic_load(&receiver);
    if (length >= 0 && log) log(atomic_load(&receiver_context), level, line);
    /* one call, so that lines of several threads do not interleave */
    if (length >= 0 && !log) fprintf(stderr, "strata: %s: %s\n", names[level], line);
}
