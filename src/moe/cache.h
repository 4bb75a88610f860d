/* Which experts are in which slots: state + one event → hits, misses, uploads and evictions. Pure decisions, without a
 * clock and without memory but its own tables: who carries them out (stream.h) says when a slot is filled or lost. A
 * layer's slots are its own. Knows layers, experts and slots as numbers; knows no device, no bytes and no weights. */
#ifndef ST_MOE_CACHE_H
#define ST_MOE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "strata.h"

typedef struct st_cache st_cache;

typedef struct st_cache_options {
    uint32_t layers;
    const uint32_t *experts; /* [layers]; 0: the layer has none */
    const uint32_t *slots;   /* [layers]: at most its experts */
    uint32_t used;           /* experts of a token in a layer; at least 1 */
    const char *policy;      /* a row of the table; NULL: the default */
    uint32_t admission;      /* an expert is uploaded on its first touch or its second; 0: by the policy */
    double budget;           /* exchanges per event; fractions add up, to one token's demand. Negative: unlimited */
    double upload_cost;      /* of an exchange in units of what one hit saves: a layer's are made while the hits that they are
                                seen to bring are worth more (gate.h). 0: free. Budget, cost and admission are of exchanges:
                                an empty slot is filled at once */
} st_cache_options;

/* What a layer's router asks for: a token's experts, or the union of a batch's. */
typedef struct st_cache_demand {
    uint32_t layer, count;
    const uint32_t *experts; /* [count], distinct */
    const float *weights;    /* [count]: the router's, summed over the batch; NULL: unknown */
    uint32_t tokens;         /* of the batch; 0 is 1 */
    const uint32_t *uses;    /* [count]: how many of them chose it; NULL: told by the weights, and of one token each once */
} st_cache_demand;

typedef struct st_cache_upload {
    uint32_t expert, slot;
    int32_t evicted; /* the expert that was there; −1: none */
} st_cache_upload;

typedef struct st_cache_answer {
    const int32_t *slot;     /* [count]: where each demanded expert is; −1: missing */
    uint32_t hits, misses;
    const st_cache_upload *uploads; /* to be carried out; each slot is nobody's until it is filled */
    uint32_t upload_count;
    /* Why the other misses are not uploaded: they are on the way already, the policy or the admission is against it, it would
     * not pay, the budget is spent, or no slot may be given up. */
    uint32_t coming, unwanted, unpaid, over_budget, no_room;
} st_cache_answer;

strata_status st_cache_new(const st_cache_options *options, st_cache **out, strata_error *error);
void st_cache_free(st_cache *cache);

/* One event. The answer is good until the next call. Nothing that this event uses is evicted by it. Allocates nothing. */
void st_cache_ask(st_cache *cache, const st_cache_demand *demand, st_cache_answer *answer);

/* What the layer's next event will probably ask for (`weights`: the probability of each; the likeliest first):
 * uploads of those that are likely enough to be worth another's slot. A prediction is no event: nothing counts as used, and
 * of the answer's counts only `upload_count` has a meaning. */
void st_cache_hint(st_cache *cache, const st_cache_demand *likely, st_cache_answer *answer);

/* The copy for a slot ended: from now on it is a hit. Or failed: the slot is empty. */
void st_cache_filled(st_cache *cache, uint32_t layer, uint32_t slot);
void st_cache_failed(st_cache *cache, uint32_t layer, uint32_t slot);

/* Puts an expert into a slot as if it had been uploaded, while the layer has empty ones: how slots are filled at load.
 * The slot, or −1. */
int32_t st_cache_place(st_cache *cache, uint32_t layer, uint32_t expert);

int32_t st_cache_slot_of(const st_cache *cache, uint32_t layer, uint32_t expert); /* −1: not resident */

/* The policies by name, in the table's order; the first is the default. */
size_t st_cache_policy_count(void);
const char *st_cache_policy_name(size_t index);

#endif
