/* Carries out the decisions of the expert cache: fetches, which the token waits for, uploads into slots, which it does
 * not wait for, and the tables that tell each device which experts it computes. The GPU's table of a layer has the
 * experts in slots and the host's table has all others, so each expert is summed once. Owns the cache, the tables and
 * the copy queues; launches no operation and orders none: the executor (run/) does. */
#ifndef ST_MOE_STREAM_H
#define ST_MOE_STREAM_H

#include "backend/backend.h"
#include "moe/cache.h"
#include "moe/stats.h"
#include "plan/plan.h"

typedef struct st_stream st_stream;

/* The cost of an upload, in hits: it reads host memory as a computed miss does, but about half of the time the host's
 * memory is idle. */
#define ST_UPLOAD_COST 0.6

typedef enum st_stream_arms {
    ST_ARMS_BOTH,  /* fetch some, compute the others on the CPU: the fastest split (split.h) */
    ST_ARMS_CPU,   /* the CPU computes every miss */
    ST_ARMS_FETCH, /* every miss is fetched */
} st_stream_arms;

/* Which experts are uploaded before the router chooses them, while the link is idle: the layer's experts of the
 * last token, and the experts that its router chooses from the input of the layer before. */
enum { ST_PREFETCH_SAME = 1, ST_PREFETCH_NEXT = 2 };

typedef struct st_stream_options {
    const char *policy;   /* of the cache; NULL: the default */
    bool no_uploads;      /* slots keep the experts that were loaded at first */
    uint32_t flights_max; /* uploads in flight at a time; others are dropped. 0: 64, the maximum */
    st_stream_arms arms;  /* how misses are computed */
    bool deterministic;   /* uploads become visible only at the start of a batch, all at once */
    unsigned prefetch;    /* ST_PREFETCH_… flags */
    const struct st_trace *warm; /* a trace whose most used experts fill the slots at load; NULL: the first experts */
} st_stream_options;

typedef struct st_stream_source {
    const st_plan_source *plan_source;
    const st_plan *plan;
    const st_backend *backend; /* of the GPU */
    st_device *device;
    unsigned char *block;      /* the plan's block of GPU memory */
    const void *const *host_weights; /* [weights] */
    st_stats *stats;           /* may be NULL */
} st_stream_source;

/* Fills the slots. The source's parts must outlive the stream. */
strata_status st_stream_new(const st_stream_source *source, const st_stream_options *options, st_stream **out,
                            strata_error *error);
void st_stream_free(st_stream *stream);

/* Whether the layer has slots. */
bool st_stream_covers(const st_stream *stream, uint32_t layer);

/* The tables [experts] of a layer's matrix: the address of each expert, NULL if the device does not compute it. A wave
 * is a group of experts that are fetched for one batch. The entries change; the addresses of the tables do not. */
const void *const *st_stream_card_parts(const st_stream *stream, uint32_t layer, int matrix);
const void *const *st_stream_host_parts(const st_stream *stream, uint32_t layer, int matrix);
const void *const *st_stream_wave_parts(const st_stream *stream, uint32_t wave, int matrix);
uint32_t st_stream_waves(const st_stream *stream, uint32_t layer); /* the most that a batch needs */

/* What a layer needs besides the experts in slots. */
typedef struct st_stream_work {
    uint32_t waves; /* to fetch and launch */
    bool host;      /* the CPU computes some experts */
} st_stream_work;

/* Whether steps of few rows may be one launch for all layers (backend.h, chains): no miss is fetched, since the launch of
 * a wave would come too late. False while fetching gains more than one launch does, or if it is wanted. */
bool st_stream_may_chain(const st_stream *stream);

/* What the executor knows of a step. `decoding`: none of its rows belongs to a prompt; `chained`: it is one launch. */
typedef struct st_stream_step {
    bool decoding, chained;
} st_stream_step;

/* A step begins. The event `computing` follows the last launch of the
 * batch before it, which may still read the tables; NULL: that batch has ended. Landed uploads become visible only
 * after that batch; `deterministic` waits for both. */
strata_status st_stream_begin(st_stream *stream, st_event *computing, st_stream_step step, strata_error *error);

/* The router has chosen ids [rows, used] with weights. The GPU's launch for the layer uses the tables as they are
 * now. */
strata_status st_stream_decide(st_stream *stream, uint32_t layer, const int32_t *ids, const float *weights,
                               uint32_t rows, st_stream_work *out, strata_error *error);
/* Fetches a wave; *ready is recorded behind the copies, NULL if the copies failed and the CPU has to compute the wave.
 * After the launch of the wave, st_stream_launched records that its staging memory is free when `queue` gets there. */
strata_status st_stream_fetch(st_stream *stream, uint32_t layer, uint32_t wave, st_event **ready, strata_error *error);
strata_status st_stream_launched(st_stream *stream, uint32_t wave, st_queue *queue, strata_error *error);
/* The host has waited so long for the router's choice, or computed its share for so long: the next splits go by the
 * speed that it had. */
void st_stream_waited(st_stream *stream, uint32_t layer, double seconds);
void st_stream_computed(st_stream *stream, uint32_t layer, uint32_t rows, double seconds);
/* The layer is launched and the CPU's share is computed, or something failed: sends the uploads, and makes landed
 * uploads of other layers visible; of a chained step not those of the next layer, which the GPU may have begun. */
strata_status st_stream_end(st_stream *stream, uint32_t layer, strata_error *error);

/* The next layer whose experts may be prefetched; UINT32_MAX: none. The executor writes the scores of its router to
 * st_stream_scores, then st_stream_hint prefetches the best. */
uint32_t st_stream_asks(const st_stream *stream, uint32_t layer);
float *st_stream_scores(const st_stream *stream); /* NULL: no router is evaluated early */
strata_status st_stream_hint(st_stream *stream, uint32_t layer, strata_error *error);

#endif
