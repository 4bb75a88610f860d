/* Choosing the next token from logits: bias, penalties, top-k, top-p, min-p, temperature, one draw. Alone knows
 * randomness; knows no model and no text. Nothing is allocated after st_sampler_new. */
#ifndef ST_SAMPLER_SAMPLER_H
#define ST_SAMPLER_SAMPLER_H

#include "strata.h"

typedef struct st_sampler st_sampler;

/* Refuses parameters out of range by name. Copies what it needs. */
strata_status st_sampler_new(const strata_sampling *sampling, size_t vocab, st_sampler **out, strata_error *error);
void st_sampler_free(st_sampler *sampler);

/* The penalties look at the tokens accepted last. */
void st_sampler_accept(st_sampler *sampler, strata_token token);

/* Chooses from logits[vocab], which stay as they are. Ties go to the lower id. */
strata_token st_sampler_pick(st_sampler *sampler, const float *logits);

#endif
