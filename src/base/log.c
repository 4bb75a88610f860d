#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void st_log(st_log_level level, const char *format, ...)
{
    static const char *const names[] = {[ST_LOG_ERROR] = "error", [ST_LOG_WARN] = "warning", [ST_LOG_NOTE] = "note"};
    char line[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* one call, so that lines of several threads do not interleave */
    if (length >= 0) fprintf(stderr, "strata: %s: %s\n", names[level], line);
}
