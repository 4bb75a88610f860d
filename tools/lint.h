/* Included before each file that tools/lint analyses: the analyser sees one file at a time and would otherwise have to
 * assume that a failure may return STRATA_OK, or true. */
#if defined LINT_CLI
#include "cli/cli.h"
#define cli_fail(error, status, ...) ((void)cli_fail(error, status, __VA_ARGS__), (status))
#else
#include "base/error.h"
#define st_error_set(error, status, ...) ((void)st_error_set(error, status, __VA_ARGS__), (status))
#define st_error_memory(error, bytes, what) ((void)st_error_memory(error, bytes, what), STRATA_MEMORY)
#endif
#if defined LINT_CHAT
#include "chat/parser.h"
#include "chat/value.h"
#define st_jinja_fail(machine, ...) ((void)st_jinja_fail(machine, __VA_ARGS__), false)
#define st_jinja_fail_limit(machine, limit, value) ((void)st_jinja_fail_limit(machine, limit, value), false)
#define st_jinja_fail_undefined(machine, undefined) ((void)st_jinja_fail_undefined(machine, undefined), false)
#define st_parser_fail_token(p, expected) ((void)st_parser_fail_token(p, expected), false)
#endif
