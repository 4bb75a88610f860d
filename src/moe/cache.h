/* The expert cache: decides which experts are in which slots. State and one event → hits, misses, uploads and
 * evictions. Pure: it reads no clock and touches no device; the stream (stream.h) carries the decisions out and reports
 * when a copy has landed or failed. Every layer has its own slots. Knows layers, experts and slots as numbers. */
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
    const char *policy;      /* a name (st_cache_policy_name); NULL: the default */
    /* Limits on exchanges, in which an upload evicts an expert; an empty slot is filled at once. */
    uint32_t admission;      /* an expert is uploaded on its first or second touch; 0: by the policy */
    double budget;           /* exchanges per event; fractions accumulate, up to `used`. Negative: unlimited */
    double upload_cost;      /* of an exchange, in hits: exchanges are made while they gain more (gate.h). 0: free */
} st_cache_options;

/* The experts that a layer's router chose: those of a token, or the union of a batch's. */
typedef struct st_cache_demand {
    uint32_t layer, count;
    const uint32_t *experts; /* [count], distinct */
    const float *weights;    /* [count]: the router's, summed over the batch; NULL: unknown */
    uint32_t tokens;         /* of the batch; 0 means 1 */
    const uint32_t *uses;    /* [count]: tokens that chose the expert; NULL: estimated from the weights */
} st_cache_demand;

typedef struct st_cache_upload {
    uint32_t expert, slot;
    int32_t evicted; /* the evicted expert; −1: the slot was empty */
} st_cache_upload;

typedef struct st_cache_answer {
    const int32_t *slot;     /* [count]: of each expert; −1: a miss */
    uint32_t hits, misses;
    const st_cache_upload *uploads; /* to carry out; the slot holds no expert until st_cache_filled */
    uint32_t upload_count;
    /* Why the other misses are not uploaded: an upload is in flight, the policy or the admission rejects it, it would
     * cost more than it gains, the budget is spent, or no slot may be evicted. */
    uint32_t coming, unwanted, unpaid, over_budget, no_room;
} st_cache_answer;

strata_status st_cache_new(const st_cache_options *options, st_cache **out, strata_error *error);
void st_cache_free(st_cache *cache);

/* One event. The answer is valid until the next call. An event evicts none of its own experts. Allocates nothing. */
void st_cache_ask(st_cache *cache, const st_cache_demand *demand, st_cache_answer *answer);

/* Predicts the layer's next event (`weights`: the probability of each expert; sorted, descending) and answers with
 * uploads of the experts that are worth more than one in a slot. It counts no use; of the answer's counts only
 * `upload_count` is set. */
void st_cache_hint(st_cache *cache, const st_cache_demand *likely, st_cache_answer *answer);

/* The copy into a slot has landed: the expert is resident. Or it has failed: the slot is empty. */
void st_cache_filled(st_cache *cache, uint32_t layer, uint32_t slot);
void st_cache_failed(st_cache *cache, uint32_t layer, uint32_t slot);

/* Makes an expert resident in an empty slot, as at load. Returns the slot, or −1 if none is empty. */
int32_t st_cache_place(st_cache *cache, uint32_t layer, uint32_t expert);

int32_t st_cache_slot_of(const st_cache *cache, uint32_t layer, uint32_t expert); /* −1: not resident */

/* The policies; the first is the default. */
size_t st_cache_policy_count(void);
const char *st_cache_policy_name(size_t index);

#endif
