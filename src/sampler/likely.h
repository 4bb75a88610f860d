/* Log-probabilities of a chosen token and of the most likely ones, from all logits or from candidates; before biases and
 * penalties. */
#ifndef ST_SAMPLER_LIKELY_H
#define ST_SAMPLER_LIKELY_H

#include "sampler/candidates.h"
#include "strata.h"

typedef struct st_likely {
    float logprob;
    strata_likely top[STRATA_TOP_LOGPROBS_MAX];
    size_t top_count;
} st_likely;

/* `wanted` of the most likely tokens, at most STRATA_TOP_LOGPROBS_MAX; the lower id first among equal ones. */
void st_likely_of_logits(const float *logits, size_t vocab, strata_token token, size_t wanted, st_likely *out);

/* The candidates were not adjusted, and the token is one of them. */
void st_likely_of_candidates(const st_candidates *best, strata_token token, size_t wanted, st_likely *out);

#endif
