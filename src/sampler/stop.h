/* Finds stop strings in streamed text, and holds back bytes that could be the start of a stop string. */
#ifndef ST_SAMPLER_STOP_H
#define ST_SAMPLER_STOP_H

#include "base/buf.h"
#include "strata.h"

typedef struct st_stop st_stop;

/* Copies the strings; an empty one is STRATA_USAGE. */
strata_status st_stop_new(const char *const *strings, size_t count, st_stop **out, strata_error *error);
void st_stop_free(st_stop *stop);

/* Adds text and appends to `out` the part that may be shown. *stopped: a stop string was found, and `out` ends
 * before it. */
strata_status st_stop_push(st_stop *stop, st_str text, st_buf *out, bool *stopped, strata_error *error);

/* At the end of the text: appends the held bytes. */
strata_status st_stop_finish(st_stop *stop, st_buf *out, strata_error *error);

#endif
