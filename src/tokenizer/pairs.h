/* A hash map from pairs of 32-bit numbers to an order and an id, for the merges of byte-pair vocabularies and the edges
 * of the trie of special tokens. A look-up touches one cache line. The hash is keyed, so that a file cannot force
 * collisions. Knows neither texts nor tokens. */
#ifndef ST_TOKENIZER_PAIRS_H
#define ST_TOKENIZER_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct st_pair {
    uint64_t key; /* left and right, plus one; 0: an empty slot */
    uint32_t order;
    uint32_t id;
} st_pair;

/* Zero-initialise to create; st_pairs_free to destroy. */
typedef struct st_pairs {
    st_pair *entries; /* [mask + 1], a power of two; NULL before st_pairs_reserve */
    size_t mask;
    size_t count;
    uint64_t seed;
} st_pairs;

/* Allocates room for `count` pairs; call it once, before the first add. False: no memory. */
bool st_pairs_reserve(st_pairs *pairs, size_t count);
/* False: the pair exists already, and is not changed. The caller adds no more than it reserved. */
bool st_pairs_add(st_pairs *pairs, uint32_t left, uint32_t right, uint32_t order, uint32_t id);
void st_pairs_free(st_pairs *pairs);

/* Multiplies two 64-bit numbers and folds the product: the mixing step of this folder's hashes. */
static inline uint64_t st_hash_fold(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t st_pairs_key(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << 32 | right) + 1;
}

static inline size_t st_pairs_place(const st_pairs *pairs, uint64_t key)
{
    return (size_t)st_hash_fold(key ^ pairs->seed, 0x9E3779B97F4A7C15u) & pairs->mask;
}

/* Prefetches the slot of a pair that is added soon. */
static inline void st_pairs_prefetch(const st_pairs *pairs, uint32_t left, uint32_t right)
{
    __builtin_prefetch(&pairs->entries[st_pairs_place(pairs, st_pairs_key(left, right))], 1);
}

/* NULL if absent. */
static inline const st_pair *st_pairs_find(const st_pairs *pairs, uint32_t left, uint32_t right)
{
    if (!pairs->entries) return NULL;
    uint64_t key = st_pairs_key(left, right);
    for (size_t i = st_pairs_place(pairs, key);; i = (i + 1) & pairs->mask) {
        const st_pair *entry = &pairs->entries[i];
        if (entry->key == key) return entry;
        if (entry->key == 0) return NULL;
    }
}

#endif
