/* The log: lines on standard error, or to the function of strata_log_to. */
#ifndef ST_BASE_LOG_H
#define ST_BASE_LOG_H

#include "strata.h"

typedef strata_log_level st_log_level;
#define ST_LOG_ERROR STRATA_LOG_ERROR
#define ST_LOG_WARN STRATA_LOG_WARN
#define ST_LOG_NOTE STRATA_LOG_NOTE

void st_log(st_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
