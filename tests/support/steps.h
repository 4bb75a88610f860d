/* Steps of several conversations and the pages of their KV cache, for tests of operations. Everything follows from seeds.
 * Rows of the KV cache that no conversation sees are NaN: an operation that reads one spoils its result. */
#ifndef TEST_SUPPORT_STEPS_H
#define TEST_SUPPORT_STEPS_H

#include "backend/backend.h"

/* A conversation's share of a step. */
typedef struct step_part {
    uint32_t rows, position; /* of its first row */
    uint32_t slot;
    uint64_t seed; /* of its keys and values */
} step_part;

/* The pages of a pool. */
typedef struct step_pool {
    uint32_t page_shift;
    uint32_t window, chunk; /* of its layers: earlier pages are not in the tables. 0: none */
    uint32_t shared;        /* the first positions of all conversations have the same keys and values, and share pages */
    uint64_t order;         /* a seed: pages lie in runs of 1 to 4, in random order; 0: in the order of the tables */
    uint32_t pages;         /* out: of the pool, some of them in no table */
} step_pool;

/* A step of all rows of `parts`, each of them an output row; ids are 0. Fills in the number of pages of each pool. The
 * caller frees the step with st_free. */
st_step *step_new(const step_part *parts, uint32_t count, step_pool *pools, uint32_t pool_count);

/* The same for one conversation without KV. */
st_step *step_rows(uint32_t rows, uint32_t position);

/* The KV of a layer in pool `index`, all NaN. `gap`: bytes between pages. */
st_kv_view step_view(const step_pool *pool, uint32_t index, st_type type, size_t key_width, size_t value_width, size_t gap);
void step_view_free(st_kv_view *view);

/* Stores the keys and values of the positions that the step's rows see: before the rows, and with `rows`, of the rows. */
void step_fill(const st_kv_view *view, const step_pool *pool, st_step *step, const step_part *parts, size_t key_width,
               size_t value_width, bool rows);

/* Recurrent state for `slots` slots, all NaN. The caller frees it with st_free. */
float *step_slots(uint32_t slots, size_t slot_floats);

#endif
