/* Replays a recorded routing against a cache and gives its hit rate, its uploads and an estimate of the time. One
 * event per token and layer; the prompt warms the cache, decoding counts; an upload counts as landed at the layer's
 * next event. Knows traces and policies; knows no more of devices than the three rates below. */
#ifndef ST_MOE_REPLAY_H
#define ST_MOE_REPLAY_H

#include "moe/trace.h"

/* The GPU reads resident experts, and all weights but routed experts, while the host reads the misses. */
typedef struct st_replay_rates {
    double card, host;       /* bytes per second */
    double handover_seconds; /* per event */
} st_replay_rates;

typedef struct st_replay_options {
    const char *policy;  /* of the cache, or ST_REPLAY_OPTIMUM */
    uint32_t slots;      /* per layer; 0: all experts on the host */
    uint32_t admission;  /* this and the next two as in st_cache_options; the optimum ignores them */
    double budget;
    double upload_cost;
    uint32_t before;     /* times that the trace was replayed before it counts; the optimum ignores it */
    st_replay_rates rates;
} st_replay_options;

/* Belady's optimum knows the future: it keeps the experts that are used soonest and may not admit a miss. */
#define ST_REPLAY_OPTIMUM "optimum"

/* Decoding only. */
typedef struct st_replay_result {
    uint64_t events, hits, misses, uploads;
    double seconds; /* of all tokens: the sum of the events' rooflines */
} st_replay_result;

strata_status st_replay(const st_trace *trace, const st_replay_options *options, st_replay_result *out,
                        strata_error *error);

#endif
