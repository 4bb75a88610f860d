/* How a layer's missing experts are shared out: fetched to the card, or computed by the CPU, both at the same time. Pure:
 * rates and counts in, a number out. */
#ifndef ST_MOE_SPLIT_H
#define ST_MOE_SPLIT_H

#include <stdint.h>

#include "backend/profile.h"

typedef struct st_split_demand {
    uint32_t missing;
    const uint32_t *tokens;   /* [missing]: how many of the batch's tokens chose each; the most wanted first */
    double expert_bytes;
    double token_ops;         /* multiplications and additions of one token in one expert */
    double resident_bytes, resident_ops; /* what the card computes anyway */
    double host_seconds;      /* of bringing the CPU's share back, if it has one */
} st_split_demand;

/* How many of the first are fetched, so that card, link, CPU and the host's DRAM, which copies and CPU share, are
 * through soonest. */
uint32_t st_split_fetch(const st_profile *host, const st_profile *card, const st_split_demand *demand);

#endif
