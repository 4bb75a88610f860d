/* Splits a layer's misses between the GPU, which has to fetch them, and the CPU; both compute at the same time. Pure:
 * rates and counts in, a number out. */
#ifndef ST_MOE_SPLIT_H
#define ST_MOE_SPLIT_H

#include <stdint.h>

#include "backend/profile.h"

typedef struct st_split_demand {
    uint32_t missing;
    const uint32_t *tokens;   /* [missing]: tokens of the batch that chose each; sorted, descending */
    double expert_bytes;
    double token_ops;         /* multiplications and additions of one token in one expert */
    double resident_bytes, resident_ops; /* of the hits, which the GPU computes */
    double host_seconds;      /* of copying the CPU's share to the GPU, if it has one */
} st_split_demand;

/* The number of experts to fetch, from the first, that makes the layer fastest. Copies and the CPU share the host's
 * DRAM. */
uint32_t st_split_fetch(const st_profile *host, const st_profile *card, const st_split_demand *demand);

#endif
