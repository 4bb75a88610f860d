/* Routing traces: reads and writes the text format "route_trace v1". The file has one row per routed expert; the reader
 * groups them into events, one per token and layer, and sorts them. Knows the format; knows no cache and no device.
 *
 *     # route_trace v1
 *     # model=NAME arch=NAME n_layer=48 n_expert=128 n_expert_used=6
 *     # layer=0 expert_bytes=3059712 dense_bytes=11953152
 *     turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
 *     0,0,0,0,0,49,0.221297,0,3059712
 */
#ifndef ST_MOE_TRACE_H
#define ST_MOE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "strata.h"

enum { ST_TRACE_LAYERS_MAX = 4096, ST_TRACE_EXPERTS_MAX = 65536, ST_TRACE_USED_MAX = 256, ST_TRACE_NAME_SIZE = 128 };

/* The header. */
typedef struct st_trace_shape {
    char model[ST_TRACE_NAME_SIZE], arch[ST_TRACE_NAME_SIZE];
    uint32_t layers, experts, used;
    uint64_t *expert_bytes, *dense_bytes; /* [layers]: of one expert (0: none), of everything else that a token reads */
} st_trace_shape;

/* The experts of one token in one layer. */
typedef struct st_trace_event {
    uint32_t turn, step, layer;
    bool decode;           /* false: of a prompt */
    uint32_t count;
    size_t first;          /* of `experts` and `weights` */
} st_trace_event;

typedef struct st_trace {
    st_trace_shape shape;
    st_trace_event *events; /* [event_count] by turn, step, layer */
    size_t event_count;
    uint32_t *experts;      /* [row_count], in the router's order within an event */
    float *weights;
    size_t row_count;
    uint64_t decode_tokens; /* tokens with a decode event */
} st_trace;

/* A text in another format is STRATA_INPUT with the number of the line. */
strata_status st_trace_read(const char *path, st_trace **out, strata_error *error);
strata_status st_trace_parse(const char *where, const char *text, size_t length, st_trace **out, strata_error *error);
void st_trace_free(st_trace *trace);

/* ---- writing (trace_write.c) ------------------------------------------------------------------------------------- */

typedef struct st_trace_writer st_trace_writer;

/* Creates the file and writes the header; blanks in names become underscores. */
strata_status st_trace_writer_open(const char *path, const st_trace_shape *shape, st_trace_writer **out,
                                   strata_error *error);
/* One event; `resident` [count], NULL: none was. Allocates nothing; st_trace_writer_close reports a failure. */
void st_trace_writer_event(st_trace_writer *writer, const st_trace_event *event, const uint32_t *experts,
                           const float *weights, const bool *resident);
/* Flushes and closes; STRATA_RUNTIME if a write has failed. NULL is allowed. */
strata_status st_trace_writer_close(st_trace_writer *writer, strata_error *error);

#endif
