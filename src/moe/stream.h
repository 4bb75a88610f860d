/* Carries the cache's decisions out: slots in the card's block, fetches that a token waits for, uploads that nobody waits
 * for, and the tables that tell each device which experts are its own. The card's table of a layer names the experts in
 * its slots, the host's all others, so that the two sums are one. Owns the cache, the tables, the copying queues and the
 * counters; orders no operation: the executor (run/) launches them and waits. */
#ifndef ST_MOE_STREAM_H
#define ST_MOE_STREAM_H

#include "backend/backend.h"
#include "moe/cache.h"
#include "moe/stats.h"
#include "plan/plan.h"

typedef struct st_stream st_stream;

typedef enum st_stream_arms {
    ST_ARMS_BOTH, /* as rates and counts say (split.h) */
    ST_ARMS_CPU,  /* the CPU computes all of it */
    ST_ARMS_FETCH, /* all of it is fetched */
} st_stream_arms;

/* What is uploaded before it is asked for, while the link is idle: what the layer used for the token before, and what its
 * router would choose of what the layer before it sees. */
enum { ST_PREFETCH_SAME = 1, ST_PREFETCH_NEXT = 2 };

typedef struct st_stream_options {
    const char *policy;   /* of the cache; NULL: the default */
    bool no_uploads;      /* slots stay as they were filled */
    uint32_t flights_max; /* uploads under way at a time; more are dropped. 0: 64, the most */
    st_stream_arms arms;  /* who may take what is missing */
    bool deterministic;   /* uploads become visible when a batch begins, all at once */
    unsigned prefetch;    /* ST_PREFETCH_…; 0: nothing */
    const struct st_trace *warm; /* a recorded routing whose most used experts fill the slots; NULL: the first ones do */
} st_stream_options;

typedef struct st_stream_source {
    const st_plan_source *plan_source;
    const st_plan *plan;
    const st_backend *backend; /* of the card */
    st_device *device;
    unsigned char *block;      /* the card's */
    const void *const *host_weights; /* [weights] */
    st_stats *stats;           /* is told what happens; may be NULL */
} st_stream_source;

/* Fills the slots. What the source names must outlive it. */
strata_status st_stream_new(const st_stream_source *source, const st_stream_options *options, st_stream **out,
                            strata_error *error);
void st_stream_free(st_stream *stream);

/* Whether the layer's experts are in slots at all. */
bool st_stream_covers(const st_stream *stream, uint32_t layer);

/* Where each of a layer's experts is for one of the three matrices (gate or gate and up, up, down); NULL: not there. Those
 * of a wave are experts that were fetched for one batch. The tables change; their addresses do not. */
const void *const *st_stream_card_parts(const st_stream *stream, uint32_t layer, int matrix);
const void *const *st_stream_host_parts(const st_stream *stream, uint32_t layer, int matrix);
const void *const *st_stream_wave_parts(const st_stream *stream, uint32_t wave, int matrix);
uint32_t st_stream_waves(const st_stream *stream, uint32_t layer); /* at most */

/* What a layer's batch asks for beyond what the card does by itself. */
typedef struct st_stream_work {
    uint32_t waves; /* of fetched experts */
    bool host;      /* the CPU has a share */
} st_stream_work;

/* A batch begins. `computing` is behind the last launch of the batch before it, which may still read the tables; NULL: it
 * has ended. Uploads that have landed become visible only when that batch has ended; `deterministic` waits for both. */
strata_status st_stream_begin(st_stream *stream, st_event *computing, strata_error *error);

/* The router has chosen ids [rows, used] with weights. The tables as they are now were those of the card's launch. */
strata_status st_stream_decide(st_stream *stream, uint32_t layer, const int32_t *ids, const float *weights, uint32_t rows,
                               st_stream_work *out, strata_error *error);
/* Sends a wave's experts on their way; *ready is reached when they are there. Then, after its launch: its place may be
 * written again when `queue` has come so far. */
strata_status st_stream_fetch(st_stream *stream, uint32_t layer, uint32_t wave, st_event **ready, strata_error *error);
strata_status st_stream_launched(st_stream *stream, uint32_t wave, st_queue *queue, strata_error *error);
/* The CPU has computed its share, or the decision or what followed it failed: uploads are sent, and those of other layers
 * that have landed become visible. */
strata_status st_stream_end(st_stream *stream, uint32_t layer, strata_error *error);

/* The layer whose experts come next and whose router is worth asking now; UINT32_MAX: none. Its scores for the one token
 * go to st_stream_scores, then st_stream_hint acts on them. */
uint32_t st_stream_asks(const st_stream *stream, uint32_t layer, uint32_t rows);
float *st_stream_scores(const st_stream *stream); /* NULL: nobody asks a router */
strata_status st_stream_hint(st_stream *stream, uint32_t layer, strata_error *error);

#endif
