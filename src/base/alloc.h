/* The allocator of the library: malloc with injected failures (fault.h). Blocks have no header of their own, so a
 * library that calls free() may own them. */
#ifndef ST_BASE_ALLOC_H
#define ST_BASE_ALLOC_H

#include <stddef.h>

/* Each returns NULL on failure; a size of 0 gives a pointer that can be freed. */
void *st_alloc(size_t size);
void *st_alloc_zero(size_t count, size_t size); /* count × size is checked */
void *st_alloc_array(size_t count, size_t size); /* count × size is checked; not zeroed */
void *st_alloc_aligned(size_t size, size_t alignment); /* `alignment` is a power of two */
void *st_realloc(void *pointer, size_t size);    /* on failure `pointer` stays valid */
char *st_strndup(const char *text, size_t length); /* NUL added */
void st_free(void *pointer);

#endif
