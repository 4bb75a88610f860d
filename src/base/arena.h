/* An arena: many small allocations that die together. Zeroed memory; blocks grow geometrically. */
#ifndef ST_BASE_ARENA_H
#define ST_BASE_ARENA_H

#include <stddef.h>

#include "base/str.h"

typedef struct st_arena_block st_arena_block;

/* Zero-initialise to create; st_arena_free to destroy. */
typedef struct st_arena {
    st_arena_block *blocks; /* newest first */
    size_t used_bytes;      /* what callers asked for, alignment included */
} st_arena;

void *st_arena_alloc(st_arena *arena, size_t count, size_t size); /* count × size checked; NULL on failure; aligned 16 */
char *st_arena_copy(st_arena *arena, const char *text, size_t length); /* NUL added */
void st_arena_free(st_arena *arena);                                   /* leaves it empty and usable */

#endif
