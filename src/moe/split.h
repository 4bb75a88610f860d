/* Splits a layer's misses between the GPU, which has to fetch its share, and the CPU; both compute at the same time. A
 * pure function of rates and counts. */
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
    double queued_bytes;      /* of uploads that are under way: fetches share the link with them */
    double host_seconds;      /* time to copy the CPU's sum to the GPU, if the CPU computes any expert */
    double host_factor;       /* the CPU's measured time over that by its rates; 0: not measured */
} st_split_demand;

/* The number of experts to fetch, taken from the front of `tokens`, that minimises the layer's time. Copies and the CPU
 * share the host's DRAM bandwidth. */
uint32_t st_split_fetch(const st_profile *host, const st_profile *card, const st_split_demand *demand);

/* The host_factor, nearest to the demand's, of a CPU that took `seconds` for what is not fetched. The copies of the fetched
 * experts read the host's memory as well: how much longer it took because of them is known only at most. */
double st_split_host_factor(const st_profile *host, const st_profile *card, const st_split_demand *demand,
                            uint32_t fetched, double seconds);

/* How long a layer takes with `fetched` of the missing experts on the GPU. */
double st_split_seconds(const st_profile *host, const st_profile *card, const st_split_demand *demand,
                        uint32_t fetched);

#endif
