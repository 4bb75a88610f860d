/* Stop strings in a stream of text: what may be shown, and whether one has come. Bytes that could be the start of a stop
 * string are held back until that is decided. */
#ifndef ST_SAMPLER_STOP_H
#define ST_SAMPLER_STOP_H

#include "base/buf.h"
#include "strata.h"

typedef struct st_stop st_stop;

/* Copies the strings; an empty one is refused. */
strata_status st_stop_new(const char *const *strings, size_t count, st_stop **out, strata_error *error);
void st_stop_free(st_stop *stop);

/* Takes text and appends to `out` what may be shown. *stopped: a stop string has come, and nothing behind it is shown. */
strata_status st_stop_push(st_stop *stop, st_str text, st_buf *out, bool *stopped, strata_error *error);

/* The end: appends what was held back. */
strata_status st_stop_finish(st_stop *stop, st_buf *out, strata_error *error);

#endif
