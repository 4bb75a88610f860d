#include "base/map.h"

#include <pthread.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "base/check.h"

static uint64_t hash_key[2];
static pthread_once_t hash_key_once = PTHREAD_ONCE_INIT;

static void make_hash_key(void)
{
    if (getrandom(hash_key, sizeof hash_key, GRND_NONBLOCK) == (ssize_t)sizeof hash_key) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    hash_key[0] = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u;
    hash_key[1] = (uint64_t)(uintptr_t)&now ^ (uint64_t)now.tv_sec;
}

static inline uint64_t rotate_left(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate_left(v[1], 13) ^ v[0];
    v[3] = rotate_left(v[3], 16) ^ v[2];
    v[0] = rotate_left(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate_left(v[1], 17) ^ v[2];
    v[3] = rotate_left(v[3], 21) ^ v[0];
    v[2] = rotate_left(v[2], 32);
}

uint64_t st_hash_bytes(const void *data, size_t length)
{
    pthread_once(&hash_key_once, make_hash_key);
    const unsigned char *bytes = data;
    uint64_t v[4] = {hash_key[0] ^ 0x736f6d6570736575u, hash_key[1] ^ 0x646f72616e646f6du,
                     hash_key[0] ^ 0x6c7967656e657261u, hash_key[1] ^ 0x7465646279746573u};
    size_t whole = length & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)length << 56;
    for (size_t i = whole; i < length; i++) last |= (uint64_t)bytes[i] << (8 * (i - whole));
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xFF;
    for (int i = 0; i < 3; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static st_map_entry *find_place(st_map_entry *entries, size_t capacity, st_str key, uint32_t hash)
{
    size_t mask = capacity - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        st_map_entry *entry = &entries[i];
        if (!entry->key.data || (entry->hash == hash && st_str_equal(entry->key, key))) return entry;
    }
}

bool st_map_reserve(st_map *map, size_t count)
{
    size_t wanted = 16, least;
    if (!st_mul_size(count, 2, &least)) return false;
    while (wanted < least)
        if (!st_mul_size(wanted, 2, &wanted)) return false;
    if (wanted <= map->capacity) return true;
    st_map_entry *entries = st_alloc_zero(wanted, sizeof *entries);
    if (!entries) return false;
    for (size_t i = 0; i < map->capacity; i++) {
        st_map_entry *old = &map->entries[i];
        if (old->key.data) *find_place(entries, wanted, old->key, old->hash) = *old;
    }
    st_free(map->entries);
    map->entries = entries;
    map->capacity = wanted;
    return true;
}

st_map_result st_map_add(st_map *map, st_str key, uint32_t value)
{
    if (!st_map_reserve(map, map->count + 1)) return ST_MAP_NO_MEMORY;
    if (!key.data) key.data = ""; /* an empty key needs a data pointer: NULL marks an empty slot */
    uint32_t hash = (uint32_t)st_hash_bytes(key.data, key.length);
    st_map_entry *entry = find_place(map->entries, map->capacity, key, hash);
    if (entry->key.data) return ST_MAP_EXISTS;
    *entry = (st_map_entry){.key = key, .hash = hash, .value = value};
    map->count++;
    return ST_MAP_ADDED;
}

const uint32_t *st_map_find(const st_map *map, st_str key)
{
    if (map->capacity == 0) return NULL;
    if (!key.data) key.data = "";
    uint32_t hash = (uint32_t)st_hash_bytes(key.data, key.length);
    st_map_entry *entry = find_place(map->entries, map->capacity, key, hash);
    return entry->key.data ? &entry->value : NULL;
}

void st_map_free(st_map *map)
{
    st_free(map->entries);
    *map = (st_map){0};
}
