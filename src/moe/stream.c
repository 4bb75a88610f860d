#include "moe/stream.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/error.h"
#include "memory/halves.h"
#include "moe/split.h"
#include "moe/trace.h"

enum { MATRICES = ST_EXPERT_MATRICES, FLIGHTS = 64, WAIT_LIMIT_US = 120 * 1000 * 1000 };

/* The probability that a prefetched expert is used: one that the last token used, and one that the next layer's router
 * chooses from this layer's input. */
#define LIKELY_AGAIN 0.4f
#define LIKELY_NEXT 0.85f

/* The weight of the last measurement of the host's speed, and how far it counts from the mean: a single event may be
 * late because another process had a core. */
#define FACTOR_NEW 0.125
#define FACTOR_STEP 2.0

/* The weight of a layer's event in the mean of what fetching would gain: some five tokens of 48 layers. */
#define GAIN_NEW (1.0 / 256)

typedef struct stream_layer {
    uint32_t experts, used, slots; /* experts 0: not in slots */
    st_slot_layout slot;
    unsigned char *slots_at;
    double token_ops;
    const void **home[MATRICES];                   /* [experts]: addresses in host memory */
    const void **card[MATRICES], **host[MATRICES]; /* [experts]: the tables */
    bool *predicted;                               /* [experts]: prefetched and not used since */
    uint32_t *last;                                /* [used]: experts of the last token; `experts`: none */
} stream_layer;

/* An upload under way. */
typedef struct flight {
    st_event *landed;
    uint32_t layer, slot, expert;
} flight;

struct st_stream {
    st_stream_source source;
    st_stream_options options;
    st_arena arena;
    stream_layer *layers;
    uint32_t layer_count, experts_max;
    st_cache *cache;
    st_queue *upload_queue;
    flight flights[FLIGHTS]; /* a ring, in the order of sending */
    uint32_t flight_first, flight_count;
    /* fetches: waves alternate between two halves of the staging memory */
    unsigned char *staging;
    uint32_t half;           /* experts that fit in a half */
    size_t place_bytes;      /* of one expert in the staging memory */
    st_halves halves;
    const void ***waves;     /* [wave × MATRICES][experts_max] */
    uint32_t wave_count;
    /* the current event */
    uint32_t *tokens;        /* [experts_max]: tokens that chose the expert */
    float *weights;          /* [experts_max] */
    uint32_t *demanded;      /* [experts_max], distinct */
    float *demanded_weights, *scores;
    uint32_t *demanded_uses;
    uint32_t *missing, *missing_tokens; /* [experts_max], by tokens, descending; the first fetch_count are fetched */
    uint32_t missing_count, fetch_count, failed_fetches;
    st_stream_step step;
    double host_factor[2]; /* measured time over that by its rates, mean of the last events: of prompts, of decoding */
    double fetch_gain;     /* seconds that fetching saves in a layer, mean of the last events of few rows */
    uint32_t rows, hits;   /* of the current event */
    st_cache_upload *uploads; /* [experts_max] */
    uint32_t upload_count;
};

static void add_stat(st_stream *stream, uint32_t layer, st_stat what, uint64_t amount)
{
    if (stream->source.stats && amount) st_stats_add(stream->source.stats, layer, stream->step.decoding, what, amount);
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

static unsigned char *slot_at(const stream_layer *l, uint32_t slot)
{
    return l->slots_at + slot * l->slot.bytes;
}

/* The GPU, or the host, computes the expert from now on. */
static void give_to_card(stream_layer *l, uint32_t expert, uint32_t slot)
{
    for (int m = 0; m < MATRICES; m++) {
        if (!l->slot.matrix_bytes[m]) continue;
        l->card[m][expert] = slot_at(l, slot) + l->slot.offset[m];
        l->host[m][expert] = NULL;
    }
}

static void give_to_host(stream_layer *l, uint32_t expert)
{
    for (int m = 0; m < MATRICES; m++) {
        l->card[m][expert] = NULL;
        l->host[m][expert] = l->home[m][expert];
    }
}

static strata_status copy_expert(st_stream *stream, st_queue *queue, const stream_layer *l, uint32_t expert,
                                 unsigned char *to, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (int m = 0; m < MATRICES && status == STRATA_OK; m++)
        if (l->slot.matrix_bytes[m])
            status = stream->source.backend->copy(queue, ST_COPY_UP, to + l->slot.offset[m], l->home[m][expert],
                                                  l->slot.matrix_bytes[m], error);
    return status;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static bool allocate_tables(st_stream *stream, stream_layer *l)
{
    for (int m = 0; m < MATRICES; m++) {
        l->home[m] = st_arena_alloc(&stream->arena, l->experts, sizeof *l->home[m]);
        l->card[m] = st_arena_alloc(&stream->arena, l->experts, sizeof *l->card[m]);
        l->host[m] = st_arena_alloc(&stream->arena, l->experts, sizeof *l->host[m]);
        if (!l->home[m] || !l->card[m] || !l->host[m]) return false;
    }
    l->predicted = st_arena_alloc(&stream->arena, l->experts, sizeof *l->predicted);
    l->last = st_arena_alloc(&stream->arena, l->used, sizeof *l->last);
    if (!l->predicted || !l->last) return false;
    for (uint32_t i = 0; i < l->used; i++) l->last[i] = l->experts;
    return true;
}

/* Where the host has each expert of the operation's matrices. */
static void find_homes(st_stream *stream, const st_op *op, stream_layer *l)
{
    const st_binding *binding = stream->source.plan_source->binding;
    for (int m = 0; m < MATRICES; m++) {
        if (op->weight[m] == ST_NO_WEIGHT) continue;
        const unsigned char *data = stream->source.host_weights[op->weight[m]];
        for (uint32_t e = 0; e < l->experts; e++)
            l->home[m][e] = st_weight_expert(&binding->weights[op->weight[m]], data, e);
    }
}

static bool describe_layer(st_stream *stream, const st_op *op)
{
    const st_plan *plan = stream->source.plan;
    stream_layer *l = &stream->layers[op->layer];
    l->experts = op->p.experts.experts;
    l->used = op->p.experts.used;
    l->slots = plan->experts.slots[op->layer];
    l->slot = st_slot_layout_of(stream->source.plan_source->binding, op);
    l->token_ops = 6.0 * stream->source.plan_source->desc->embedding * op->p.experts.width;
    if (l->experts > stream->experts_max) stream->experts_max = l->experts;
    if (!allocate_tables(stream, l)) return false;
    find_homes(stream, op, l);
    for (uint32_t e = 0; e < l->experts; e++) give_to_host(l, e);
    return true;
}

static bool describe_layers(st_stream *stream)
{
    const st_plan_source *source = stream->source.plan_source;
    const st_plan *plan = stream->source.plan;
    stream->layer_count = source->desc->layer_count + source->desc->nextn_count;
    stream->layers = st_arena_alloc(&stream->arena, stream->layer_count, sizeof *stream->layers);
    if (!stream->layers) return false;
    for (uint32_t i = 0; i < source->program->op_count; i++) {
        const st_op *op = &source->program->ops[i];
        if (op->kind == ST_OP_EXPERTS && plan->op_device[i] == ST_CARD && plan->experts.slots[op->layer] > 0 &&
            !describe_layer(stream, op))
            return false;
    }
    unsigned char *at = stream->source.block + plan->slots_offset;
    for (uint32_t i = 0; i < stream->layer_count; i++) {
        stream->layers[i].slots_at = at;
        at += plan->experts.slots[i] * plan->experts.slot_bytes[i];
    }
    return true;
}

static bool allocate_event(st_stream *stream)
{
    uint32_t count = stream->experts_max;
    st_arena *arena = &stream->arena;
    stream->tokens = st_arena_alloc(arena, count, sizeof *stream->tokens);
    stream->weights = st_arena_alloc(arena, count, sizeof *stream->weights);
    stream->demanded = st_arena_alloc(arena, count, sizeof *stream->demanded);
    stream->demanded_weights = st_arena_alloc(arena, count, sizeof *stream->demanded_weights);
    stream->demanded_uses = st_arena_alloc(arena, count, sizeof *stream->demanded_uses);
    stream->scores = st_arena_alloc(arena, count, sizeof *stream->scores);
    stream->missing = st_arena_alloc(arena, count, sizeof *stream->missing);
    stream->missing_tokens = st_arena_alloc(arena, count, sizeof *stream->missing_tokens);
    stream->uploads = st_arena_alloc(arena, count, sizeof *stream->uploads);
    return stream->tokens && stream->weights && stream->demanded && stream->demanded_weights && stream->demanded_uses &&
           stream->scores && stream->missing &&
           stream->missing_tokens && stream->uploads;
}

/* Waves that fetching `experts` takes. */
static uint32_t waves_of(const st_stream *stream, uint32_t experts)
{
    return stream->half ? (experts + stream->half - 1) / stream->half : 0;
}

static bool allocate_waves(st_stream *stream)
{
    for (uint32_t i = 0; i < stream->layer_count; i++)
        if (stream->layers[i].slot.bytes > stream->place_bytes) stream->place_bytes = stream->layers[i].slot.bytes;
    stream->staging = stream->source.block + stream->source.plan->expert_staging_offset;
    stream->half = (uint32_t)(stream->source.plan->expert_staging_bytes / stream->place_bytes / ST_HALVES);
    stream->wave_count = waves_of(stream, stream->experts_max);
    stream->waves = st_arena_alloc(&stream->arena, (size_t)stream->wave_count * MATRICES, sizeof *stream->waves);
    for (uint32_t i = 0; stream->waves && i < stream->wave_count * MATRICES; i++) {
        stream->waves[i] = st_arena_alloc(&stream->arena, stream->experts_max, sizeof **stream->waves);
        if (!stream->waves[i]) return false;
    }
    return stream->waves != NULL;
}

static strata_status open_cache(st_stream *stream, strata_error *error)
{
    uint32_t *experts = st_arena_alloc(&stream->arena, stream->layer_count, sizeof *experts);
    uint32_t *slots = st_arena_alloc(&stream->arena, stream->layer_count, sizeof *slots);
    if (!experts || !slots) return st_error_memory(error, stream->layer_count * sizeof *slots, "the expert cache");
    uint32_t used = 0;
    for (uint32_t i = 0; i < stream->layer_count; i++) {
        experts[i] = stream->layers[i].experts;
        slots[i] = stream->layers[i].slots;
        if (stream->layers[i].used > used) used = stream->layers[i].used;
    }
    st_cache_options options = {.layers = stream->layer_count, .experts = experts, .slots = slots, .used = used,
                                .policy = stream->options.policy, .budget = stream->options.no_uploads ? 0 : -1,
                                .upload_cost = ST_UPLOAD_COST};
    return st_cache_new(&options, &stream->cache, error);
}

static strata_status open_queues(st_stream *stream, strata_error *error)
{
    const st_backend *backend = stream->source.backend;
    st_device *device = stream->source.device;
    strata_status status = st_halves_open(&stream->halves, backend, device, error);
    if (status == STRATA_OK) status = backend->queue_new(device, ST_QUEUE_UP, &stream->upload_queue, error);
    for (int i = 0; i < FLIGHTS && status == STRATA_OK; i++)
        status = backend->event_new(device, &stream->flights[i].landed, error);
    return status;
}

/* Inserts the expert into `missing`, sorted by tokens, descending; stable. */
static void take_missing(st_stream *stream, uint32_t expert)
{
    uint32_t at = stream->missing_count++;
    for (; at > 0 && stream->tokens[stream->missing[at - 1]] < stream->tokens[expert]; at--)
        stream->missing[at] = stream->missing[at - 1];
    stream->missing[at] = expert;
}

/* Counts the uses of each of the layer's experts in the trace, in stream->tokens. */
static void count_uses(st_stream *stream, uint32_t layer)
{
    const st_trace *warm = stream->options.warm;
    memset(stream->tokens, 0, stream->experts_max * sizeof *stream->tokens);
    for (size_t i = 0; warm && i < warm->event_count; i++) {
        const st_trace_event *event = &warm->events[i];
        if (event->layer != layer) continue;
        for (uint32_t k = 0; k < event->count; k++) {
            uint32_t expert = warm->experts[event->first + k];
            if (expert < stream->layers[layer].experts) stream->tokens[expert]++;
        }
    }
}

/* Sorts the layer's experts by uses in the trace, into stream->missing. Without a trace they keep their order. */
static void order_experts(st_stream *stream, uint32_t layer)
{
    count_uses(stream, layer);
    stream->missing_count = 0;
    for (uint32_t e = 0; e < stream->layers[layer].experts; e++) take_missing(stream, e);
}

static strata_status fill_slots(st_stream *stream, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < stream->layer_count; i++) {
        stream_layer *l = &stream->layers[i];
        if (l->experts) order_experts(stream, i);
        for (uint32_t k = 0; k < l->slots && l->experts && status == STRATA_OK; k++) {
            uint32_t expert = stream->missing[k];
            int32_t slot = st_cache_place(stream->cache, i, expert);
            status = copy_expert(stream, stream->upload_queue, l, expert, slot_at(l, (uint32_t)slot), error);
            give_to_card(l, expert, (uint32_t)slot);
        }
        add_stat(stream, i, ST_STAT_FILLS, l->slots);
    }
    st_event *all = stream->flights[0].landed;
    if (status == STRATA_OK) status = stream->source.backend->event_record(all, stream->upload_queue, error);
    return status == STRATA_OK ? stream->source.backend->event_wait_host(all, WAIT_LIMIT_US, error) : status;
}

strata_status st_stream_new(const st_stream_source *source, const st_stream_options *options, st_stream **out,
                            strata_error *error)
{
    st_stream *stream = st_alloc_zero(1, sizeof *stream);
    if (!stream) return st_error_memory(error, sizeof *stream, "the expert cache");
    stream->source = *source;
    stream->options = *options;
    stream->host_factor[0] = stream->host_factor[1] = 1;
    if (options->flights_max == 0 || options->flights_max > FLIGHTS) stream->options.flights_max = FLIGHTS;
    strata_status status = STRATA_OK;
    if (!describe_layers(stream) || !allocate_event(stream) || !allocate_waves(stream))
        status = st_error_memory(error, stream->experts_max * sizeof(void *), "the tables of experts");
    if (status == STRATA_OK) status = open_cache(stream, error);
    if (status == STRATA_OK) status = open_queues(stream, error);
    if (status == STRATA_OK) status = fill_slots(stream, error);
    stream->missing_count = 0;
    if (status != STRATA_OK) {
        st_stream_free(stream);
        return status;
    }
    *out = stream;
    return STRATA_OK;
}

void st_stream_free(st_stream *stream)
{
    if (!stream) return;
    const st_backend *backend = stream->source.backend;
    for (int i = 0; i < FLIGHTS; i++)
        if (stream->flights[i].landed) backend->event_free(stream->flights[i].landed);
    st_halves_close(&stream->halves);
    if (stream->upload_queue) backend->queue_free(stream->upload_queue);
    st_cache_free(stream->cache);
    st_arena_free(&stream->arena);
    st_free(stream);
}

/* --- tables for the executor -------------------------------------------------------------------------------------- */

bool st_stream_covers(const st_stream *stream, uint32_t layer)
{
    return layer < stream->layer_count && stream->layers[layer].experts > 0;
}

const void *const *st_stream_card_parts(const st_stream *stream, uint32_t layer, int matrix)
{
    return stream->layers[layer].card[matrix];
}

const void *const *st_stream_host_parts(const st_stream *stream, uint32_t layer, int matrix)
{
    return stream->layers[layer].host[matrix];
}

const void *const *st_stream_wave_parts(const st_stream *stream, uint32_t wave, int matrix)
{
    return stream->waves[wave * MATRICES + (uint32_t)matrix];
}

uint32_t st_stream_waves(const st_stream *stream, uint32_t layer)
{
    return stream->options.arms == ST_ARMS_CPU ? 0 : waves_of(stream, stream->layers[layer].experts);
}

static uint32_t next_split(const st_stream *stream, uint32_t layer)
{
    for (uint32_t i = layer + 1; i < stream->layer_count; i++)
        if (st_stream_covers(stream, i) && stream->layers[i].slots < stream->layers[i].experts) return i;
    return UINT32_MAX;
}

/* --- uploads ------------------------------------------------------------------------------------------------------ */

/* Makes landed uploads visible, in the order of sending, up to the first one of a busy layer: a launched operation may
 * read the tables of that layer. */
static void show_landed(st_stream *stream, uint32_t busy, uint32_t next)
{
    while (stream->flight_count) {
        const flight *f = &stream->flights[stream->flight_first];
        if (f->layer == busy || f->layer == next || !stream->source.backend->event_done(f->landed)) return;
        st_cache_filled(stream->cache, f->layer, f->slot);
        give_to_card(&stream->layers[f->layer], f->expert, f->slot);
        stream->flight_first = (stream->flight_first + 1) % FLIGHTS;
        stream->flight_count--;
    }
}

strata_status st_stream_begin(st_stream *stream, st_event *computing, st_stream_step step, strata_error *error)
{
    const st_backend *backend = stream->source.backend;
    strata_status status = STRATA_OK;
    stream->step = step;
    if (stream->options.deterministic && stream->flight_count) {
        const flight *last = &stream->flights[(stream->flight_first + stream->flight_count - 1) % FLIGHTS];
        status = backend->event_wait_host(last->landed, WAIT_LIMIT_US, error);
        if (status == STRATA_OK && computing) status = backend->event_wait_host(computing, WAIT_LIMIT_US, error);
        computing = NULL;
    }
    if (status == STRATA_OK && (!computing || backend->event_done(computing)))
        show_landed(stream, UINT32_MAX, UINT32_MAX);
    return status;
}

/* An upload that cannot be sent is not an error: the host keeps computing the expert. */
static strata_status send_upload(st_stream *stream, uint32_t layer, const st_cache_upload *upload, strata_error *error)
{
    const st_backend *backend = stream->source.backend;
    stream_layer *l = &stream->layers[layer];
    if (stream->flight_count == stream->options.flights_max) {
        add_stat(stream, layer, ST_STAT_QUEUE_FULL, 1);
        st_cache_failed(stream->cache, layer, upload->slot);
        return STRATA_OK;
    }
    flight *f = &stream->flights[(stream->flight_first + stream->flight_count) % FLIGHTS];
    unsigned char *to = slot_at(l, upload->slot);
    strata_status status = copy_expert(stream, stream->upload_queue, l, upload->expert, to, error);
    if (status == STRATA_OK) status = backend->event_record(f->landed, stream->upload_queue, error);
    if (status != STRATA_OK) {
        add_stat(stream, layer, ST_STAT_FAILED, 1);
        st_cache_failed(stream->cache, layer, upload->slot);
        return status == STRATA_DEVICE_LOST ? status : STRATA_OK;
    }
    f->layer = layer;
    f->slot = upload->slot;
    f->expert = upload->expert;
    stream->flight_count++;
    if (stream->source.stats)
        st_stats_upload(stream->source.stats, layer, stream->step.decoding, upload->expert, l->slot.bytes);
    return STRATA_OK;
}

/* --- a layer's event ---------------------------------------------------------------------------------------------- */

/* The distinct experts of a batch, with the number of tokens and the sum of weights of each. */
static uint32_t collect(st_stream *stream, const stream_layer *l, const int32_t *ids, const float *weights,
                        uint32_t rows)
{
    uint32_t count = 0;
    memset(stream->tokens, 0, l->experts * sizeof *stream->tokens);
    for (size_t i = 0; i < (size_t)rows * l->used; i++) {
        uint32_t e = (uint32_t)ids[i];
        if (stream->tokens[e]++ == 0) {
            stream->demanded[count++] = e;
            stream->weights[e] = 0;
        }
        stream->weights[e] += weights[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        stream->demanded_weights[i] = stream->weights[stream->demanded[i]];
        stream->demanded_uses[i] = stream->tokens[stream->demanded[i]];
    }
    return count;
}

static void take_answer(st_stream *stream, stream_layer *l, const st_cache_answer *answer, uint32_t count)
{
    stream->missing_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (answer->slot[i] < 0) take_missing(stream, stream->demanded[i]);
    for (uint32_t i = 0; i < stream->missing_count; i++) stream->missing_tokens[i] = stream->tokens[stream->missing[i]];
    stream->upload_count = answer->upload_count;
    for (uint32_t i = 0; i < answer->upload_count; i++) {
        stream->uploads[i] = answer->uploads[i];
        if (answer->uploads[i].evicted >= 0) give_to_host(l, (uint32_t)answer->uploads[i].evicted);
    }
}

/* What is missing of a batch of `rows`, in stream->missing_tokens. */
static st_split_demand demand_of(const st_stream *stream, const stream_layer *l, uint32_t rows, uint32_t hits)
{
    const st_profile *card = &stream->source.plan_source->devices[ST_CARD];
    double embedding = stream->source.plan_source->desc->embedding;
    uint32_t pairs = rows * l->used, lacking = 0;
    for (uint32_t i = 0; i < stream->missing_count; i++) lacking += stream->missing_tokens[i];
    return (st_split_demand){.missing = stream->missing_count, .tokens = stream->missing_tokens,
                             .expert_bytes = (double)l->slot.bytes, .token_ops = l->token_ops,
                             .resident_bytes = (double)hits * (double)l->slot.bytes,
                             .resident_ops = (pairs - lacking) * l->token_ops,
                             .queued_bytes = stream->flight_count * (double)l->slot.bytes,
                             .host_seconds = rows * embedding * sizeof(float) / card->link_up,
                             .host_factor = stream->host_factor[stream->step.decoding]};
}

static uint32_t choose_fetches(const st_stream *stream, const stream_layer *l, uint32_t rows, uint32_t hits)
{
    const st_profile *devices = stream->source.plan_source->devices;
    if (stream->options.arms == ST_ARMS_CPU || !stream->half || stream->step.chained) return 0;
    if (stream->options.arms == ST_ARMS_FETCH) return stream->missing_count;
    st_split_demand demand = demand_of(stream, l, rows, hits);
    return st_split_fetch(&devices[ST_HOST], &devices[ST_CARD], &demand);
}

bool st_stream_may_chain(const st_stream *stream)
{
    const st_profile *card = &stream->source.plan_source->devices[ST_CARD];
    double saved = card->handover_seconds + 2 * card->launch_seconds - card->round_trip_seconds; /* by a chain, in a layer */
    if (stream->options.arms != ST_ARMS_BOTH) return stream->options.arms == ST_ARMS_CPU;
    return stream->fetch_gain <= saved;
}

/* What the event would gain if the GPU fetched some of its misses, or gains. */
static void note_fetch_gain(st_stream *stream, const stream_layer *l)
{
    const st_profile *devices = stream->source.plan_source->devices, *host = &devices[ST_HOST], *card = &devices[ST_CARD];
    if (!stream->step.decoding || stream->rows > ST_CHAIN_ROWS || !stream->half || card->link_up <= 0) return;
    st_split_demand demand = demand_of(stream, l, stream->rows, stream->hits);
    uint32_t fetched = st_split_fetch(host, card, &demand);
    double gain = st_split_seconds(host, card, &demand, 0) - st_split_seconds(host, card, &demand, fetched);
    stream->fetch_gain += GAIN_NEW * (gain - stream->fetch_gain);
}

static void count_event(st_stream *stream, uint32_t layer, uint32_t rows, uint32_t count, const st_cache_answer *answer)
{
    st_stats *stats = stream->source.stats;
    if (!stats) return;
    st_stats_event(stats, layer, stream->step.decoding, count, stream->demanded, answer->slot);
    st_stats_rows(stats, layer, stream->step.decoding, rows, stream->layers[layer].used);
}

static void count_predictions(st_stream *stream, uint32_t layer, const st_cache_answer *answer, uint32_t count)
{
    stream_layer *l = &stream->layers[layer];
    for (uint32_t i = 0; i < count; i++) {
        if (!l->predicted[stream->demanded[i]]) continue;
        l->predicted[stream->demanded[i]] = false;
        if (answer->slot[i] < 0) continue; /* the upload has not landed in time */
        add_stat(stream, layer, ST_STAT_PREFETCH_HITS, 1);
    }
}

/* Why misses are not uploaded. */
static void count_reasons(st_stream *stream, uint32_t layer, const st_cache_answer *answer)
{
    add_stat(stream, layer, ST_STAT_COMING, answer->coming);
    add_stat(stream, layer, ST_STAT_UNWANTED, answer->unwanted);
    add_stat(stream, layer, ST_STAT_UNPAID, answer->unpaid);
    add_stat(stream, layer, ST_STAT_OVER_BUDGET, answer->over_budget);
    add_stat(stream, layer, ST_STAT_NO_ROOM, answer->no_room);
}

strata_status st_stream_decide(st_stream *stream, uint32_t layer, const int32_t *ids, const float *weights,
                               uint32_t rows, st_stream_work *out, strata_error *error)
{
    stream_layer *l = &stream->layers[layer];
    for (size_t i = 0; i < (size_t)rows * l->used; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= l->experts)
            return st_error_set(error, STRATA_DEVICE, NULL, "layer %u: expected experts from 0 to %u, found %d", layer,
                                l->experts - 1, ids[i]);
    uint32_t count = collect(stream, l, ids, weights, rows);
    st_cache_demand demand = {.layer = layer, .count = count, .experts = stream->demanded,
                              .weights = stream->demanded_weights, .tokens = rows, .uses = stream->demanded_uses};
    st_cache_answer answer;
    st_cache_ask(stream->cache, &demand, &answer);
    count_event(stream, layer, rows, count, &answer);
    take_answer(stream, l, &answer, count);
    count_predictions(stream, layer, &answer, count);
    count_reasons(stream, layer, &answer);
    if (stream->step.decoding)
        for (uint32_t k = 0; k < l->used; k++) l->last[k] = (uint32_t)ids[k];
    stream->rows = rows;
    stream->hits = answer.hits;
    stream->fetch_count = choose_fetches(stream, l, rows, answer.hits);
    for (uint32_t i = 0; i < stream->fetch_count; i++) /* the GPU computes them in this batch */
        for (int m = 0; m < MATRICES; m++) l->host[m][stream->missing[i]] = NULL;
    *out = (st_stream_work){.waves = waves_of(stream, stream->fetch_count),
                            .host = stream->fetch_count < stream->missing_count};
    return STRATA_OK;
}

/* The fetch failed: the host computes the experts of the wave. */
static void leave_wave(st_stream *stream, stream_layer *l, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        for (int m = 0; m < MATRICES; m++) l->host[m][stream->missing[i]] = l->home[m][stream->missing[i]];
    stream->failed_fetches += end - first;
}

static strata_status send_wave(st_stream *stream, const stream_layer *l, uint32_t wave, uint32_t first, uint32_t end,
                               strata_error *error)
{
    uint32_t half = wave % ST_HALVES;
    strata_status status = st_halves_claim(&stream->halves, half, error);
    const void ***tables = &stream->waves[(size_t)wave * MATRICES];
    for (int m = 0; m < MATRICES; m++) memset(tables[m], 0, l->experts * sizeof(void *));
    for (uint32_t i = first; i < end && status == STRATA_OK; i++) {
        unsigned char *to = stream->staging + (half * stream->half + (i - first)) * stream->place_bytes;
        status = copy_expert(stream, stream->halves.queue, l, stream->missing[i], to, error);
        for (int m = 0; m < MATRICES; m++)
            if (l->slot.matrix_bytes[m]) tables[m][stream->missing[i]] = to + l->slot.offset[m];
    }
    return status == STRATA_OK ? st_halves_fill(&stream->halves, half, error) : status;
}

strata_status st_stream_fetch(st_stream *stream, uint32_t layer, uint32_t wave, st_event **ready, strata_error *error)
{
    stream_layer *l = &stream->layers[layer];
    uint32_t first = wave * stream->half, end = first + stream->half;
    if (end > stream->fetch_count) end = stream->fetch_count;
    strata_status status = send_wave(stream, l, wave, first, end, error);
    *ready = status == STRATA_OK ? stream->halves.filled[wave % ST_HALVES] : NULL;
    if (status == STRATA_OK || status == STRATA_DEVICE_LOST) return status;
    leave_wave(stream, l, first, end);
    return STRATA_OK;
}

strata_status st_stream_launched(st_stream *stream, uint32_t wave, st_queue *queue, strata_error *error)
{
    return st_halves_use(&stream->halves, wave % ST_HALVES, queue, error);
}

void st_stream_waited(st_stream *stream, uint32_t layer, double seconds)
{
    if (seconds > 0) add_stat(stream, layer, ST_STAT_WAIT_NS, (uint64_t)(1e9 * seconds));
}

void st_stream_computed(st_stream *stream, uint32_t layer, uint32_t rows, double seconds)
{
    const st_profile *devices = stream->source.plan_source->devices;
    double *factor = &stream->host_factor[stream->step.decoding];
    if (seconds <= 0) return;
    add_stat(stream, layer, ST_STAT_CPU_NS, (uint64_t)(1e9 * seconds));
    /* With weights on disk, fetches would wait for it as well; uploads slow both down. */
    if (stream->failed_fetches || stream->flight_count || stream->options.deterministic || stream->source.plan->on_disk)
        return;
    st_split_demand demand = demand_of(stream, &stream->layers[layer], rows, 0);
    double now = st_split_host_factor(&devices[ST_HOST], &devices[ST_CARD], &demand, stream->fetch_count, seconds);
    *factor += FACTOR_NEW * (fmin(fmax(now, *factor / FACTOR_STEP), *factor * FACTOR_STEP) - *factor);
}

strata_status st_stream_end(st_stream *stream, uint32_t layer, strata_error *error)
{
    stream_layer *l = &stream->layers[layer];
    for (uint32_t i = 0; i < stream->fetch_count; i++)
        for (int m = 0; m < MATRICES; m++) l->host[m][stream->missing[i]] = l->home[m][stream->missing[i]];
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < stream->upload_count && status == STRATA_OK; i++)
        status = send_upload(stream, layer, &stream->uploads[i], error);
    uint64_t fetched = stream->fetch_count - stream->failed_fetches, computed = stream->missing_count - fetched;
    add_stat(stream, layer, ST_STAT_FETCHES, fetched);
    add_stat(stream, layer, ST_STAT_FETCH_BYTES, fetched * l->slot.bytes);
    add_stat(stream, layer, ST_STAT_COMPUTED, computed);
    add_stat(stream, layer, ST_STAT_CPU_BYTES, computed * l->slot.bytes);
    add_stat(stream, layer, ST_STAT_FAILED, stream->failed_fetches);
    note_fetch_gain(stream, l);
    /* The next decision may fail before it writes these, and is followed by an end of its own. */
    stream->fetch_count = stream->failed_fetches = stream->missing_count = stream->upload_count = 0;
    if (!stream->options.deterministic)
        show_landed(stream, layer, stream->step.chained ? next_split(stream, layer) : UINT32_MAX);
    return status;
}

/* --- prefetching -------------------------------------------------------------------------------------------------- */

uint32_t st_stream_asks(const st_stream *stream, uint32_t layer)
{
    return stream->options.prefetch ? next_split(stream, layer) : UINT32_MAX;
}

float *st_stream_scores(const st_stream *stream)
{
    return stream->options.prefetch & ST_PREFETCH_NEXT ? stream->scores : NULL;
}

/* Uploads that are under way go first: no expert is prefetched then. */
static strata_status prefetch(st_stream *stream, uint32_t layer, const uint32_t *guess, float likely,
                              strata_error *error)
{
    stream_layer *l = &stream->layers[layer];
    st_cache_demand demand = {.layer = layer, .experts = stream->demanded, .weights = stream->demanded_weights};
    for (uint32_t k = 0; k < l->used; k++) {
        if (guess[k] >= l->experts || st_cache_slot_of(stream->cache, layer, guess[k]) >= 0) continue;
        stream->demanded[demand.count] = guess[k];
        stream->demanded_weights[demand.count++] = likely;
    }
    if (demand.count == 0) return STRATA_OK;
    if (stream->flight_count) {
        add_stat(stream, layer, ST_STAT_DROPPED, demand.count);
        return STRATA_OK;
    }
    st_cache_answer answer;
    strata_status status = STRATA_OK;
    st_cache_hint(stream->cache, &demand, &answer);
    for (uint32_t i = 0; i < answer.upload_count && status == STRATA_OK; i++) {
        if (answer.uploads[i].evicted >= 0) give_to_host(l, (uint32_t)answer.uploads[i].evicted);
        l->predicted[answer.uploads[i].expert] = true;
        add_stat(stream, layer, ST_STAT_PREFETCHES, 1);
        status = send_upload(stream, layer, &answer.uploads[i], error);
    }
    return status;
}

/* The experts with the highest scores, `used` of them. */
static void choose_best(const st_stream *stream, const stream_layer *l, uint32_t *best)
{
    for (uint32_t k = 0; k < l->used; k++) {
        best[k] = l->experts;
        for (uint32_t e = 0; e < l->experts; e++) {
            bool taken = false;
            for (uint32_t i = 0; i < k; i++) taken = taken || best[i] == e;
            if (!taken && (best[k] == l->experts || stream->scores[e] > stream->scores[best[k]])) best[k] = e;
        }
    }
}

strata_status st_stream_hint(st_stream *stream, uint32_t layer, strata_error *error)
{
    const stream_layer *l = &stream->layers[layer];
    uint32_t *guess = stream->missing; /* free between events */
    strata_status status = STRATA_OK;
    if (stream->options.prefetch & ST_PREFETCH_NEXT) {
        choose_best(stream, l, guess);
        status = prefetch(stream, layer, guess, LIKELY_NEXT, error);
    }
    if (status == STRATA_OK && stream->options.prefetch & ST_PREFETCH_SAME)
        status = prefetch(stream, layer, l->last, LIKELY_AGAIN, error);
    return status;
}
