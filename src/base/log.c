#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic int log_level = ST_LOG_WARN;

void st_log_set_level(st_log_level level)
{
    atomic_store(&log_level, (int)level);
}

void st_log(st_log_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if ((int)level > atomic_load(&log_level)) return;
    char line[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (length >= 0) fprintf(stderr, "strata: %s: %s\n", names[level], line); /* one call: lines do not interleave */
}
