/* The file layer: whole files, mapped or read, with injected failures (fault.h). Knows no format. */
#ifndef ST_BASE_FILE_H
#define ST_BASE_FILE_H

#include <stdbool.h>
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

/* Reads a range of a mapping before it is used, so that its pages are in the page cache and in the page tables. A hint: it
 * cannot fail. */
void st_file_populate(const void *data, size_t bytes);
/* The same in several threads, for a large range that the page cache has: 18 GB take one thread 0.7 s. False: not all of a
 * sample is there, and nothing was read, because a disk is best read by one thread, in order. */
bool st_file_populate_cached(const void *data, size_t bytes);

/* Appends the whole file to `out`; "-" is standard input. STRATA_LIMIT for more than `limit_bytes`. */
strata_status st_file_read(const char *path, size_t limit_bytes, st_buf *out, strata_error *error);

#endif
