/* Which experts a layer will ask for, told by what an earlier layer has just asked for: pairs of one token's choices, counted
 * as they come, so that it knows nothing of a model before its first prompt and no more than that afterwards. A guess only:
 * whoever acts on it must be right without it. Knows layers and experts as numbers; knows no cache. */
#ifndef ST_MOE_ECHO_H
#define ST_MOE_ECHO_H

#include <stdint.h>

#include "strata.h"

typedef struct st_echo st_echo;

typedef struct st_echo_guess {
    uint32_t expert;
    float likely; /* 0 to 1 */
} st_echo_guess;

/* `lead`: how many layers ahead; at least 1. `experts` [layers]. Takes 2 bytes per pair of experts and layer. */
strata_status st_echo_new(uint32_t layers, const uint32_t *experts, uint32_t used, uint32_t lead, st_echo **out,
                          strata_error *error);
void st_echo_free(st_echo *echo);

/* One token's choice in a layer, in the order of layers (a layer that is not above the last begins another token). Allocates
 * nothing. */
void st_echo_see(st_echo *echo, uint32_t layer, uint32_t count, const uint32_t *experts);

/* What the token that was seen last will ask for in `layer`, which is `lead` above the last that was seen: the likeliest
 * first, at most `most`. How many there are; 0 where nothing is known. */
uint32_t st_echo_guess_of(st_echo *echo, uint32_t layer, uint32_t most, st_echo_guess *out);

#endif
