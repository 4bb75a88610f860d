/* Zeroed memory in large pages, which several threads touch, so that gigabytes of it are there within a fraction of a
 * second. For memory that is used whole, such as what a GPU copies from. */
#ifndef ST_BASE_LARGE_H
#define ST_BASE_LARGE_H

#include <stddef.h>

/* NULL if there is too little address space. The memory begins at a multiple of 2 MiB. */
void *st_large_new(size_t bytes);
void st_large_free(void *memory, size_t bytes); /* the bytes that st_large_new was called with */

#endif
