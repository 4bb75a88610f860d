/* Checked arithmetic for every size: each returns false, and leaves *out alone, when the result does not fit. */
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

/* Rounds up to a multiple of `alignment`, which is a power of two. */
static inline bool st_align_size(size_t value, size_t alignment, size_t *out)
{
    size_t raised;
    if (!st_add_size(value, alignment - 1, &raised)) return false;
    *out = raised & ~(alignment - 1);
    return true;
}

static inline bool st_is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

#endif
