#include "backend/cpu/parts.h"

enum { LEAST_BYTES = 128 << 10 }; /* weights of a part: shorter ones take longer to begin than to read */

static size_t over(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Adds `count` parts of `size` columns, or fewer in the last. Returns the columns that they have. */
static size_t add_level(st_parts *parts, size_t column, size_t count, size_t size)
{
    parts->levels[parts->level_count++] = (st_parts_level){parts->count, column, size};
    parts->count += count;
    return smaller(count * size, parts->columns - column);
}

void st_parts_cut(st_parts *parts, const st_parts_of *of, uint32_t threads)
{
    size_t share = over(over(of->columns, threads), of->step) * of->step; /* of a thread */
    size_t least = larger(over(LEAST_BYTES, of->bytes * of->step), 1) * of->step;
    size_t most = of->bytes_max ? larger(of->bytes_max / (of->bytes * of->step), 1) * of->step : of->columns;
    *parts = (st_parts){.columns = of->columns};
    if (share < 2 * least) least = share; /* evenly */
    if (least > most) least = most;
    for (size_t column = 0; column < of->columns;) {
        size_t left = of->columns - column, half = left / (2 * (size_t)threads) / of->step * of->step, size = smaller(half, most);
        if (size <= least || parts->level_count + 1 == ST_PARTS_LEVELS)
            column += add_level(parts, column, over(left, least), least);
        else /* as many of the longest parts as leave two of them to each thread */
            column += add_level(parts, column, half > most ? over(left - 2 * threads * size, size) : threads, size);
    }
}

st_columns st_parts_at(const st_parts *parts, size_t part)
{
    uint32_t level = parts->level_count - 1;
    while (parts->levels[level].part > part) level--;
    size_t first = parts->levels[level].column + (part - parts->levels[level].part) * parts->levels[level].size;
    return (st_columns){first, smaller(parts->levels[level].size, parts->columns - first)};
}
