/* The file layer: whole files, mapped or read, with injected failures (fault.h). Knows no format. */
#ifndef ST_BASE_FILE_H
#define ST_BASE_FILE_H

#include <stddef.h>

#include "base/buf.h"
#include "strata.h"

/* A file mapped read-only. Zero-initialise to create; st_file_unmap to destroy. */
typedef struct st_mapping {
    const unsigned char *data; /* [size]; NULL when the file is empty */
    size_t size;
} st_mapping;

/* Maps the regular file at `path`; STRATA_FILE for a directory, a pipe or a missing file. */
strata_status st_file_map(const char *path, st_mapping *out, strata_error *error);
void st_file_unmap(st_mapping *mapping);

/* Reads a range of a mapping into the page cache before it is used. A hint: it cannot fail. */
void st_file_populate(const void *data, size_t bytes);

/* Appends the whole file to `out`; "-" is standard input. STRATA_LIMIT for more than `limit_bytes`. */
strata_status st_file_read(const char *path, size_t limit_bytes, st_buf *out, strata_error *error);

#endif
