/* Replays a recorded routing against a cache and gives its hit rate, its uploads and an estimate of the time. One event per
 * token and layer; the prompt warms the cache, decoding counts; an upload has landed at the layer's next event. Knows
 * traces and policies; knows no more of devices than the three rates below. */
#ifndef ST_MOE_REPLAY_H
#define ST_MOE_REPLAY_H

#include "moe/trace.h"

/* Bytes and seconds: resident experts and the trunk on the card, missing experts on the host at the same time. */
typedef struct st_replay_rates {
    double card, host;
    double handover_seconds; /* of each event */
} st_replay_rates;

typedef struct st_replay_options {
    const char *policy;  /* of the cache; ST_REPLAY_OPTIMUM: knows the future */
    uint32_t slots;      /* of each layer; 0: all experts on the host */
    uint32_t admission;  /* as of a cache; the optimum has none of the three */
    double budget;
    double upload_cost;
    st_replay_rates rates;
} st_replay_options;

/* Belady: keeps what is used soonest, and need not take in what it has missed. */
#define ST_REPLAY_OPTIMUM "optimum"

/* Of decoding alone. */
typedef struct st_replay_result {
    uint64_t events, hits, misses, uploads;
    double seconds; /* of all tokens: the roofline summed event by event */
} st_replay_result;

strata_status st_replay(const st_trace *trace, const st_replay_options *options, st_replay_result *out, strata_error *error);

#endif
