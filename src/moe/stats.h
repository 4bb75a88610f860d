/* Statistics of routed experts: hits, misses, copies and their bytes, per layer and expert, separately for prompts and
 * decoding; and the distances between the uses of an expert. Decides nothing. Counting allocates nothing. */
#ifndef ST_MOE_STATS_H
#define ST_MOE_STATS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "strata.h"

/* Per layer: the JSON field, the column of the table ("": JSON only), the meaning. */
#define ST_STATS_TABLE(X)                                                                              \
    X(EVENTS, events, "events", "events of the layer: a token, or a batch of a prompt")                \
    X(HITS, hits, "hits", "chosen experts that were in a slot")                                        \
    X(MISSES, misses, "misses", "chosen experts that were not")                                        \
    X(EXPECTED, expected, "", "experts that so many rows choose on average, each independently")       \
    X(FETCHES, fetches, "fetched", "misses that were fetched")                                         \
    X(COMPUTED, computed, "on CPU", "misses that the CPU computed")                                    \
    X(UPLOADS, uploads, "uploads", "uploads sent, prefetches included")                                \
    X(PREFETCHES, prefetches, "", "uploads of predicted experts")                                      \
    X(PREFETCH_HITS, prefetch_hits, "", "first uses of predicted experts that had landed in time")     \
    X(FILLS, fills, "", "slots filled at load")                                                        \
    X(COMING, coming, "", "misses whose upload was under way")                                         \
    X(UNWANTED, unwanted, "", "misses that the policy or the admission refused")                       \
    X(UNPAID, unpaid, "", "misses whose upload would have cost more than it gained")                   \
    X(OVER_BUDGET, over_budget, "", "misses that the budget excluded")                                 \
    X(NO_ROOM, no_room, "", "misses without a slot that might be evicted")                             \
    X(QUEUE_FULL, queue_full, "", "uploads dropped because too many were under way")                   \
    X(DROPPED, dropped, "", "predictions dropped because the link was busy")                           \
    X(FAILED, failed, "failed", "fetches and uploads that failed")                                     \
    X(FETCH_BYTES, fetch_bytes, "", "")                                                                \
    X(UPLOAD_BYTES, upload_bytes, "", "")                                                              \
    X(CPU_BYTES, cpu_bytes, "", "weights that the CPU read for misses")                                \
    X(CPU_NS, cpu_ns, "", "nanoseconds in which the CPU computed misses")                              \
    X(WAIT_NS, wait_ns, "", "nanoseconds for which the CPU waited for the router's choice")

typedef enum st_stat {
#define X(name, field, column, text) ST_STAT_##name,
    ST_STATS_TABLE(X)
#undef X
        ST_STAT_COUNT
} st_stat;

enum { ST_REUSE_BUCKETS = 18 }; /* first use; 1; 2; to 4; to 8; … */

typedef struct st_stats st_stats;

strata_status st_stats_new(uint32_t layers, const uint32_t *experts, st_stats **out, strata_error *error);
void st_stats_free(st_stats *stats);

/* One event of a layer: the chosen experts ([count], distinct) and their slots (−1: a miss; NULL: all are resident).
 * Counts events, hits, misses, experts and distances; distances are in events. */
void st_stats_event(st_stats *stats, uint32_t layer, bool decode, uint32_t count, const uint32_t *experts,
                    const int32_t *slots);
/* The event has so many rows, each of which chose `used` experts: counts those expected. */
void st_stats_rows(st_stats *stats, uint32_t layer, bool decode, uint32_t rows, uint32_t used);
/* Any other counter of a layer. */
void st_stats_add(st_stats *stats, uint32_t layer, bool decode, st_stat what, uint64_t amount);
/* An upload of the expert was sent. */
void st_stats_upload(st_stats *stats, uint32_t layer, bool decode, uint32_t expert, uint64_t bytes);

uint64_t st_stats_total(const st_stats *stats, bool decode, st_stat what);

/* As tables, and as JSON (docs/json.md). False and NULL: out of memory. */
bool st_stats_print(const st_stats *stats, st_buf *out);
json_t *st_stats_json(const st_stats *stats);

#endif
