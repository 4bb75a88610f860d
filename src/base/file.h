/* The file layer: whole files, mapped or read, with failures on demand (fault.h). Knows no format. */
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

/* Maps the regular file at `path`. A directory, a pipe or a missing file is STRATA_FILE. */
strata_status st_file_map(const char *path, st_mapping *out, strata_error *error);
void st_file_unmap(st_mapping *mapping);

/* Brings a range of a mapping into memory now, so that nobody waits for the disk later. Only a hint: it cannot fail. */
void st_file_populate(const void *data, size_t bytes);

/* Appends the whole file to `out`; "-" is standard input. More than `limit_bytes` is STRATA_LIMIT. */
strata_status st_file_read(const char *path, size_t limit_bytes, st_buf *out, strata_error *error);

#endif
