/* Arithmetic on sizes. Functions that return bool check for overflow: on overflow they return false and keep *out. */
#ifndef ST_BASE_CHECK_H
#define ST_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool st_add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}

static inline bool st_mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

/* Rounds up to a multiple of `alignment`, which is any number but 0. */
static inline bool st_align_size(size_t value, size_t alignment, size_t *out)
{
    return st_mul_size(value / alignment + (value % alignment != 0), alignment, out);
}

/* The same where the caller knows that the result fits. */
static inline size_t st_align_up(size_t value, size_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

enum { ST_RANGE_ALIGN = 256 }; /* of the ranges that a device's block of memory is divided into */

/* Appends a range of `count` × `size` bytes to a block that ends at *end. */
static inline bool st_range_append(size_t *end, size_t count, size_t size, size_t *offset)
{
    size_t bytes, start, next;
    if (!st_mul_size(count, size, &bytes) || !st_align_size(*end, ST_RANGE_ALIGN, &start) ||
        !st_add_size(start, bytes, &next))
        return false;
    *offset = start;
    *end = next;
    return true;
}

static inline bool st_is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

#endif
