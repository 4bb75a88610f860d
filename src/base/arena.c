#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

enum { ARENA_ALIGN = 16, ARENA_BLOCK_MIN = 4096, ARENA_BLOCK_MAX = 1 << 20 };

struct st_arena_block {
    st_arena_block *next;
    size_t capacity;
    size_t used;
    _Alignas(ARENA_ALIGN) unsigned char bytes[];
};

static st_arena_block *arena_grow(st_arena *arena, size_t size)
{
    size_t capacity = ARENA_BLOCK_MIN;
    if (arena->blocks && arena->blocks->capacity < ARENA_BLOCK_MAX) capacity = arena->blocks->capacity * 2;
    else if (arena->blocks) capacity = ARENA_BLOCK_MAX;
    if (capacity < size) capacity = size;

    size_t bytes;
    if (!st_add_size(capacity, sizeof(st_arena_block), &bytes) || bytes > PTRDIFF_MAX) return NULL;
    st_arena_block *block = st_alloc_zero(1, bytes);
    if (!block) return NULL;
    block->capacity = capacity;
    block->next = arena->blocks;
    arena->blocks = block;
    return block;
}

void *st_arena_alloc(st_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (!st_mul_size(count, size, &bytes) || !st_align_size(bytes, ARENA_ALIGN, &bytes)) return NULL;
    if (bytes == 0) bytes = ARENA_ALIGN;
    st_arena_block *block = arena->blocks;
    if (!block || block->capacity - block->used < bytes) block = arena_grow(arena, bytes);
    if (!block) return NULL;
    void *pointer = block->bytes + block->used;
    block->used += bytes;
    arena->used_bytes += bytes;
    return pointer;
}

char *st_arena_copy(st_arena *arena, const char *text, size_t length)
{
    size_t bytes;
    if (!st_add_size(length, 1, &bytes)) return NULL;
    char *copy = st_arena_alloc(arena, bytes, 1);
    if (copy && length) memcpy(copy, text, length);
    return copy;
}

void st_arena_free(st_arena *arena)
{
    st_arena_block *block = arena->blocks;
    while (block) {
        st_arena_block *next = block->next;
        st_free(block);
        block = next;
    }
    *arena = (st_arena){0};
}
