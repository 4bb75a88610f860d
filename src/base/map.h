/* A hash map from byte strings to 32-bit values. The caller owns the strings, which must outlive the map. The hash
 * is keyed per process, so a file cannot be built to collide. */
#ifndef ST_BASE_MAP_H
#define ST_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef struct st_map_entry {
    st_str key;     /* data is NULL in an empty slot */
    uint32_t hash;
    uint32_t value;
} st_map_entry;

/* Zero-initialise to create; st_map_free to destroy. */
typedef struct st_map {
    st_map_entry *entries; /* [capacity], a power of two */
    size_t capacity;
    size_t count;
} st_map;

typedef enum st_map_result { ST_MAP_ADDED, ST_MAP_EXISTS, ST_MAP_NO_MEMORY } st_map_result;

bool st_map_reserve(st_map *map, size_t count);
st_map_result st_map_add(st_map *map, st_str key, uint32_t value); /* keeps an existing value */
const uint32_t *st_map_find(const st_map *map, st_str key);        /* NULL if absent; valid until the next add */
void st_map_free(st_map *map);

/* The keyed hash itself (SipHash-1-3). */
uint64_t st_hash_bytes(const void *bytes, size_t length);

#endif
