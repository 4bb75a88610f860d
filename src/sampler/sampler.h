/* Samples the next token from logits: bias, penalties, top-k, top-p, min-p, temperature, one draw. The only module with
 * random numbers; knows no model and no text. Nothing is allocated after st_sampler_new. */
#ifndef ST_SAMPLER_SAMPLER_H
#define ST_SAMPLER_SAMPLER_H

#include "sampler/candidates.h"
#include "strata.h"

typedef struct st_sampler st_sampler;

/* A stream of random numbers (xoshiro256**). */
typedef struct st_random {
    uint64_t state[4];
} st_random;

/* An error names the parameter that is out of range. The sampler copies what it needs, and starts a random stream from
 * the seed. At most 2^24 tokens. */
strata_status st_sampler_new(const strata_sampling *sampling, size_t vocab, st_sampler **out, strata_error *error);
void st_sampler_free(st_sampler *sampler);

/* Tokens that are never chosen. The sampler keeps the pointer; ids beyond the vocabulary are ignored. */
void st_sampler_ban(st_sampler *sampler, const strata_token *ids, size_t count);

/* The sampler's random stream: a caller may replace it, or keep it for a later sampler. */
st_random *st_sampler_random(st_sampler *sampler);

/* Penalties apply to the tokens accepted last. */
void st_sampler_accept(st_sampler *sampler, strata_token token);

/* Chooses from logits[vocab], which stay unchanged. Equal logits rank by id, the lower id first. NaN, +infinity, and
 * logits that leave no token to choose are STRATA_RUNTIME. */
strata_status st_sampler_pick(st_sampler *sampler, const float *logits, strata_token *token, strata_error *error);

/* Whether the best ST_CANDIDATES_MAX tokens suffice to choose: greedily, or with a top-k up to that. Then `out` is what
 * biases and penalties do to the next logits. False too if they change more than ST_ADJUSTMENTS_MAX tokens, or if a
 * token has several biases. */
bool st_sampler_adjust(st_sampler *sampler, st_adjustments *out);

/* Chooses the token that st_sampler_pick would choose from the logits of which these are the best, with the adjustments
 * of st_sampler_adjust. */
strata_status st_sampler_pick_among(st_sampler *sampler, const st_candidates *best, strata_token *token,
                                    strata_error *error);

#endif
