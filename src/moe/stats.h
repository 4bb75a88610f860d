/* What happened to routed experts: used where, moved why, how many bytes; per layer and expert, prompts and decoding apart;
 * and how far apart an expert's uses are. Counts what it is told and decides nothing. Counting allocates nothing. */
#ifndef ST_MOE_STATS_H
#define ST_MOE_STATS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "strata.h"

/* Each is counted per layer; name of the field, column of the table ("" : JSON alone), what it is. */
#define ST_STATS_TABLE(X)                                                                              \
    X(EVENTS, events, "events", "times that a layer's router asked")                                   \
    X(HITS, hits, "hits", "experts asked for that were in a slot")                                     \
    X(MISSES, misses, "misses", "experts asked for that were not")                                     \
    X(FETCHES, fetches, "fetched", "misses copied to the card and waited for")                         \
    X(COMPUTED, computed, "on CPU", "misses computed on the CPU")                                      \
    X(UPLOADS, uploads, "uploads", "copies into slots begun in the background")                        \
    X(PREFETCHES, prefetches, "", "those of them begun on a prediction")                               \
    X(PREFETCH_HITS, prefetch_hits, "", "first uses of predicted experts that were there in time")     \
    X(FILLS, fills, "", "slots filled at load")                                                        \
    X(COMING, coming, "", "misses whose copy was under way")                                           \
    X(UNWANTED, unwanted, "", "misses that the policy or the admission kept out")                      \
    X(UNPAID, unpaid, "", "misses kept out because uploads do not pay")                                \
    X(OVER_BUDGET, over_budget, "", "misses kept out by the budget")                                   \
    X(NO_ROOM, no_room, "", "misses that no slot could be given up for")                               \
    X(QUEUE_FULL, queue_full, "", "uploads given up because the queue was full")                       \
    X(DROPPED, dropped, "", "predictions dropped because the link was busy")                           \
    X(FAILED, failed, "failed", "copies that failed")                                                  \
    X(FETCH_BYTES, fetch_bytes, "", "")                                                                \
    X(UPLOAD_BYTES, upload_bytes, "", "")                                                              \
    X(CPU_BYTES, cpu_bytes, "", "weights that the CPU read for misses")

typedef enum st_stat {
#define X(name, field, column, text) ST_STAT_##name,
    ST_STATS_TABLE(X)
#undef X
        ST_STAT_COUNT
} st_stat;

enum { ST_REUSE_BUCKETS = 18 }; /* never before; 1; 2; to 4; to 8; … */

typedef struct st_stats st_stats;

strata_status st_stats_new(uint32_t layers, const uint32_t *experts, st_stats **out, strata_error *error);
void st_stats_free(st_stats *stats);

/* One event of a layer: what was asked for ([count], distinct) and in which slots it was (−1: missing; NULL: all are at
 * hand). Counts events, hits, misses, experts and distances; distances are in events. */
void st_stats_event(st_stats *stats, uint32_t layer, bool decode, uint32_t count, const uint32_t *experts,
                    const int32_t *slots);
/* Anything else of a layer. */
void st_stats_add(st_stats *stats, uint32_t layer, bool decode, st_stat what, uint64_t amount);
/* An upload of this expert began. */
void st_stats_upload(st_stats *stats, uint32_t layer, bool decode, uint32_t expert, uint64_t bytes);

uint64_t st_stats_total(const st_stats *stats, bool decode, st_stat what);

/* Tables for people; docs/json.md has the fields of the JSON. False and NULL: no memory. */
bool st_stats_print(const st_stats *stats, st_buf *out);
json_t *st_stats_json(const st_stats *stats);

#endif
