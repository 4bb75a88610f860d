/* Who watches the routing: statistics, and a recorded trace, of every layer with routed experts wherever they run. Owns
 * neither; allocates nothing while tokens run. */
#ifndef ST_MOE_WATCH_H
#define ST_MOE_WATCH_H

#include "moe/stats.h"
#include "moe/trace.h"

typedef struct st_watch {
    st_stats *stats;        /* NULL: none */
    st_trace_writer *trace; /* NULL: none */
    uint32_t turn;          /* of the trace: sequences one after the other */
    uint32_t experts_max;
    bool *seen;             /* [experts_max] */
    uint32_t *distinct;     /* [experts_max] */
} st_watch;

/* A batch in one layer. */
typedef struct st_routing {
    uint32_t layer, position, rows, used;
    const int32_t *ids;     /* [rows, used] */
    const float *weights;   /* [rows, used] */
} st_routing;

/* Records the routing. Statistics of layers in a cache are the stream's (moe/stream.h): they are counted here only where
 * `all_at_hand`. */
void st_watch_routing(st_watch *watch, const st_routing *routing, bool all_at_hand);

#endif
