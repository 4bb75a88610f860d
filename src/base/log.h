/* The log: lines on standard error. */
#ifndef ST_BASE_LOG_H
#define ST_BASE_LOG_H

typedef enum st_log_level { ST_LOG_ERROR, ST_LOG_WARN, ST_LOG_NOTE } st_log_level;

void st_log(st_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
