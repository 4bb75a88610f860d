/* A crowd: conversations of different lengths with shared prefixes, forks and cuts at random tokens, run together in random
 * steps. The logits of every row must be the ones that the conversation gets alone. */
#ifndef TEST_SUPPORT_CROWD_H
#define TEST_SUPPORT_CROWD_H

#include "support/golden.h"

enum { CROWD = 5 };

typedef struct crowd {
    const golden *g;
    golden_options options; /* of the crowd; its conversations, pages and restore points depend on the seed */
    uint32_t rows_max;      /* of a step */
    uint32_t length_max;    /* of a conversation */
    uint32_t check_every;   /* rows are compared at such positions, and the last of each piece; 0: all */
    double error_max;       /* ‖a − b‖/‖b‖ of each row or, with `mean`, of all rows together */
    bool mean;
    const char *name;       /* for messages */
} crowd;

/* Runs one crowd; fails the test, naming the seed, at the first row whose logits differ. Returns the largest error or, with
 * `mean`, that of all rows together. */
double crowd_run(const crowd *c, uint32_t seed);

/* Seeds of a test: `usual`, or STRATA_CROWD_SEEDS. */
uint32_t crowd_seeds(uint32_t usual);

#endif
