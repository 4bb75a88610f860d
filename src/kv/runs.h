/* The free numbers of 0 … count − 1, with the longest run of adjacent ones. Pure; allocates only in st_runs_new. */
#ifndef ST_KV_RUNS_H
#define ST_KV_RUNS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct st_run {
    uint32_t first, length;
} st_run;

/* A node of a binary tree over the numbers: the free ones at its left end, at its right end, and its longest run. */
typedef struct st_runs_node {
    uint32_t head, tail, longest;
} st_runs_node;

/* Zero-initialise before st_runs_new; st_runs_free to destroy. */
typedef struct st_runs {
    st_runs_node *nodes; /* [2 × leaves]; the root is 1, the leaves follow the inner nodes */
    uint32_t leaves;     /* count, rounded up to a power of two */
    uint32_t count;
} st_runs;

enum { ST_RUNS_MAX = 1 << 28 }; /* the most numbers */

/* All numbers are free. False: no memory. `count` is at most ST_RUNS_MAX. */
bool st_runs_new(st_runs *runs, uint32_t count);
void st_runs_free(st_runs *runs);

bool st_runs_is_free(const st_runs *runs, uint32_t number); /* false past the end */
void st_runs_set(st_runs *runs, uint32_t number, bool free); /* O(log count) */
st_run st_runs_longest(const st_runs *runs);                /* the first of several; length 0: none. O(log count) */

#endif
