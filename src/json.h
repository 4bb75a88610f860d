/* What the calls that return JSON share. Knows no field. */
#ifndef ST_JSON_H
#define ST_JSON_H

#include <jansson.h>

#include "base/str.h"
#include "strata.h"

/* Text of a file, repaired where it is not UTF-8. NULL: out of memory. */
json_t *st_json_text(st_str text);

/* Writes a value as text and frees it. `flags` are jansson's besides the indentation; a `root` of NULL is a failed
 * allocation, of `what`. */
strata_status st_json_give(json_t *root, size_t flags, const char *what, char **json, strata_error *error);

#endif
