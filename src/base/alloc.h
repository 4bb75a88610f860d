/* The allocator of the whole library: malloc with failures on demand (fault.h). Blocks carry no header of ours, so
 * they may be handed to libraries that call free(). */
#ifndef ST_BASE_ALLOC_H
#define ST_BASE_ALLOC_H

#include <stddef.h>

/* Each returns NULL on failure; a size of 0 gives a pointer that can be freed. */
void *st_alloc(size_t size);
void *st_alloc_zero(size_t count, size_t size); /* count × size is checked */
void *st_alloc_array(size_t count, size_t size); /* count × size is checked; not zeroed */
void *st_alloc_aligned(size_t size, size_t alignment); /* a power of two; freed as any other */
void *st_realloc(void *pointer, size_t size);    /* on failure `pointer` is still good */
char *st_strndup(const char *text, size_t length); /* NUL added */
void st_free(void *pointer);

#endif
