/* An arena: many small allocations that are freed together. Memory is zeroed; blocks grow geometrically. */
#ifndef ST_BASE_ARENA_H
#define ST_BASE_ARENA_H

#include <stddef.h>

#include "base/str.h"

typedef struct st_arena_block st_arena_block;

/* Zero-initialise to create; st_arena_free to destroy. */
typedef struct st_arena {
    st_arena_block *blocks; /* newest first */
    size_t used_bytes;      /* requested bytes, alignment included */
} st_arena;

void *st_arena_alloc(st_arena *arena, size_t count, size_t size); /* count × size checked; NULL: failed; aligned 16 */
char *st_arena_copy(st_arena *arena, const char *text, size_t length); /* NUL added */
void st_arena_free(st_arena *arena);                                   /* the arena is then empty and usable */

#endif
