/* How the columns of a product with few rows are divided into parts for the pool. A thread streams weights fastest in one long
 * run, and threads end together only if the last parts are short: the parts of each level are half as long as those before.
 * Pure arithmetic. */
#ifndef ST_BACKEND_CPU_PARTS_H
#define ST_BACKEND_CPU_PARTS_H

#include <stddef.h>
#include <stdint.h>

enum { ST_PARTS_LEVELS = 24 };

typedef struct st_parts_level {
    size_t part, column, size; /* the first part, its first column, columns of each part */
} st_parts_level;

typedef struct st_parts {
    size_t columns, count;
    uint32_t level_count;
    st_parts_level levels[ST_PARTS_LEVELS];
} st_parts;

typedef struct st_columns {
    size_t first, count;
} st_columns;

/* What is divided: `step`: all parts but the last have a multiple of it; `bytes`: weights of a column; `bytes_max`: of a part, unless
 * a step has more; 0: any number. */
typedef struct st_parts_of {
    size_t columns, step, bytes, bytes_max;
} st_parts_of;

void st_parts_cut(st_parts *parts, const st_parts_of *of, uint32_t threads);
st_columns st_parts_at(const st_parts *parts, size_t part);

#endif
