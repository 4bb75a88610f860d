#include "tokenizer/pairs.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/map.h"

bool st_pairs_reserve(st_pairs *pairs, size_t count)
{
    size_t least, capacity = 16;
    if (!st_add_size(count, count / 3, &least)) return false;
    while (capacity <= least)
        if (!st_mul_size(capacity, 2, &capacity)) return false;
    st_pair *entries = st_alloc_zero(capacity, sizeof *entries);
    if (!entries) return false;
    st_free(pairs->entries);
    *pairs = (st_pairs){.entries = entries, .mask = capacity - 1, .seed = st_hash_bytes("pairs", 5)};
    return true;
}

bool st_pairs_add(st_pairs *pairs, uint32_t left, uint32_t right, uint32_t order, uint32_t id)
{
    uint64_t key = st_pairs_key(left, right);
    size_t i = st_pairs_place(pairs, key);
    while (pairs->entries[i].key != 0) {
        if (pairs->entries[i].key == key) return false;
        i = (i + 1) & pairs->mask;
    }
    pairs->entries[i] = (st_pair){.key = key, .order = order, .id = id};
    pairs->count++;
    return true;
}

void st_pairs_free(st_pairs *pairs)
{
    st_free(pairs->entries);
    *pairs = (st_pairs){0};
}
