/* The standard keys of the format and the types their values may have: one table. */
#ifndef ST_GGUF_KNOWN_H
#define ST_GGUF_KNOWN_H

#include <stddef.h>

#include "gguf/gguf.h"

/* The types that a value may have; several may be allowed. */
typedef enum st_gguf_kind {
    ST_GGUF_IS_STRING = 1 << 0,
    ST_GGUF_IS_BOOL = 1 << 1,
    ST_GGUF_IS_FLOAT = 1 << 2,
    ST_GGUF_IS_INT = 1 << 3,
    ST_GGUF_IS_UINT = 1 << 4, /* a non-negative integer of any type */
    ST_GGUF_IS_STRINGS = 1 << 5,
    ST_GGUF_IS_BOOLS = 1 << 6,
    ST_GGUF_IS_FLOATS = 1 << 7,
    ST_GGUF_IS_INTS = 1 << 8,
    ST_GGUF_IS_UINTS = 1 << 9,
} st_gguf_kind;

typedef struct st_gguf_known {
    const char *name;  /* a name that starts with "." stands behind the value of general.architecture */
    unsigned kinds;    /* of st_gguf_kind */
} st_gguf_known;

/* The table, [*count] rows. */
const st_gguf_known *st_gguf_known_rows(size_t *count);

#endif
