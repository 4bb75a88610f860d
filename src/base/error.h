/* Errors as values: fills the public strata_error. Owns the texts of the status table; knows no caller. */
#ifndef ST_BASE_ERROR_H
#define ST_BASE_ERROR_H

#include "strata.h"

/* Sets `error` (may be NULL) and returns `status`, so a failure is one statement:
 *     return st_error_set(error, STRATA_FORMAT, "download it again", "%s: key %s: expected %s, found %s", …);
 * The message says where, what was expected and what was found; `hint` (NULL: none) says what to do. Bytes that are
 * not printable UTF-8 are replaced: text from a file must not send escape sequences to the terminal. */
strata_status st_error_set(strata_error *error, strata_status status, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for a failed allocation of `bytes` for `what`. Allocates nothing. */
strata_status st_error_memory(strata_error *error, size_t bytes, const char *what);

/* Copies an error that another thread has set; returns its status. `error` may be NULL. */
strata_status st_error_copy(strata_error *error, const strata_error *from);

/* Appends `name` to a list of names for a message; list[size] is cut where it is full. */
void st_error_list(char *list, size_t size, const char *name);

/* Puts `prefix` and ": " before the message of `error`. */
void st_error_prefix(strata_error *error, const char *prefix);

#endif
