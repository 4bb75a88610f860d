/* Observes the routing of every layer with routed experts, on every device: statistics and a trace. Owns neither;
 * allocates nothing. */
#ifndef ST_MOE_WATCH_H
#define ST_MOE_WATCH_H

#include "moe/stats.h"
#include "moe/trace.h"

typedef struct st_watch {
    st_stats *stats;        /* NULL: none */
    st_trace_writer *trace; /* NULL: none */
    uint32_t experts_max;
    bool *seen;             /* [experts_max] */
    uint32_t *distinct;     /* [experts_max] */
} st_watch;

/* A row of a step: of which conversation, where, and whether it belongs to a prompt. */
typedef struct st_watch_row {
    uint32_t turn, position;
    bool prompt;
} st_watch_row;

/* A step in one layer. */
typedef struct st_routing {
    uint32_t layer, rows, used;
    bool decoding;               /* no row belongs to a prompt */
    const st_watch_row *origins; /* [rows] */
    const int32_t *ids;     /* [rows, used] */
    const float *weights;   /* [rows, used] */
} st_routing;

/* Records the routing. The stream (moe/stream.h) counts the layers of a cache; the others, whose experts are
 * `all_resident`, are counted here. */
void st_watch_routing(st_watch *watch, const st_routing *routing, bool all_resident);

#endif
