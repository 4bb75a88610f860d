/* The log: lines on standard error, or wherever the host sends them. Never on standard output. */
#ifndef ST_BASE_LOG_H
#define ST_BASE_LOG_H

typedef enum st_log_level { ST_LOG_ERROR, ST_LOG_WARN, ST_LOG_INFO, ST_LOG_DEBUG } st_log_level;

void st_log_set_level(st_log_level level); /* lines above it are dropped; ST_LOG_WARN at the start */
void st_log(st_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
