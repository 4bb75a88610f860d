/* A hash map from pairs of 32-bit numbers to an order and an id: the merges of byte-pair vocabularies and the edges of
 * the trie of special tokens. One cache line per look-up; keyed, so that a file cannot be made to collide. Knows
 * neither texts nor tokens. */
#ifndef ST_TOKENIZER_PAIRS_H
#define ST_TOKENIZER_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct st_pair {
    uint64_t key; /* left and right, plus one: 0 is an empty place */
    uint32_t order;
    uint32_t id;
} st_pair;

/* Zero-initialise to create; st_pairs_free to destroy. */
typedef struct st_pairs {
    st_pair *entries; /* [mask + 1], a power of two; NULL when nothing was reserved */
    size_t mask;
    size_t count;
    uint64_t seed;
} st_pairs;

/* Room for `count` pairs in all; must come before the first add. */
bool st_pairs_reserve(st_pairs *pairs, size_t count);
/* False when the pair is there already: it stays as it was. Never beyond what was reserved. */
bool st_pairs_add(st_pairs *pairs, uint32_t left, uint32_t right, uint32_t order, uint32_t id);
void st_pairs_free(st_pairs *pairs);

/* The product of two 64-bit numbers, folded: the one mixing step of this folder's hashes. */
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

/* Asks for the memory of a pair that will be added soon. */
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
