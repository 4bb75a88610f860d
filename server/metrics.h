/* Counters of the server, and their Prometheus text. Any thread may count. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <jansson.h>
#include <stdatomic.h>

#include "buf.h"

/* X(member, name, help): counters that only grow. */
#define SERVER_COUNTERS(X)                                                                           \
    X(requests, "requests_total", "requests that were answered or refused")                          \
    X(refused, "requests_refused_total", "requests with a status of 400 or more")                    \
    X(rejected, "requests_rejected_total", "requests that found the queue full")                     \
    X(cancelled, "requests_cancelled_total", "requests whose client went away")                      \
    X(prompt_tokens, "prompt_tokens_total", "tokens of prompts")                                     \
    X(reused_tokens, "prompt_tokens_reused_total", "tokens of prompts found in the KV cache")        \
    X(prefix_hits, "prefix_hits_total", "prompts whose beginning was found in the KV cache")         \
    X(answer_tokens, "answer_tokens_total", "generated tokens")                                      \
    X(prefix_misses, "prefix_misses_total", "prompts that left an earlier conversation before its end")

enum { METRIC_BUCKETS = 16 };
typedef struct server_histogram {
    atomic_ullong buckets[METRIC_BUCKETS + 1];
    atomic_ullong count, sum_us;
} server_histogram;

typedef struct server_metrics {
#define X(member, name, help) atomic_ullong member;
    SERVER_COUNTERS(X)
#undef X
    atomic_long running, queued;
    server_histogram first_token, gap; /* seconds */
} server_metrics;

static inline void server_count(atomic_ullong *counter, size_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

void server_observe(server_histogram *histogram, double seconds);

/* `facts` is the parsed JSON of strata_engine_describe; NULL: left out. */
void server_metrics_write(server_metrics *metrics, const json_t *facts, server_buf *out);

#endif
