#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"

void *st_alloc(size_t size)
{
    if (st_fault_hit(ST_FAULT_ALLOC)) return NULL;
    return malloc(size ? size : 1);
}

void *st_alloc_zero(size_t count, size_t size)
{
    if (st_fault_hit(ST_FAULT_ALLOC)) return NULL;
    return calloc(count ? count : 1, size ? size : 1);
}

void *st_alloc_array(size_t count, size_t size)
{
    size_t bytes;
    if (!st_mul_size(count, size, &bytes)) return NULL;
    return st_alloc(bytes);
}

void *st_alloc_aligned(size_t size, size_t alignment)
{
    void *memory;
    if (st_fault_hit(ST_FAULT_ALLOC) || posix_memalign(&memory, alignment, size ? size : 1) != 0) return NULL;
    return memory;
}

void *st_realloc(void *pointer, size_t size)
{
    if (st_fault_hit(ST_FAULT_ALLOC)) return NULL;
    return realloc(pointer, size ? size : 1);
}

char *st_strndup(const char *text, size_t length)
{
    size_t bytes;
    if (!st_add_size(length, 1, &bytes)) return NULL;
    char *copy = st_alloc(bytes);
    if (!copy) return NULL;
    if (length) memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

void st_free(void *pointer)
{
    free(pointer);
}
