/* The rates of a GPU as strata's kernels reach them: the best of a few tries. Takes about two seconds, with classes.c. A hand-over
 * within a launch is timed as the median of many: some are delayed by other threads of the machine. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/probe.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

enum {
    READ_BYTES = 192 << 20, /* more than the L2 cache holds */
    PIECE_BYTES = 1 << 20,  /* of a copy, as large as the matrices of small experts */
    TRIES = 5,
    STEP_OFFSET = ST_CUDA_PROBE_BYTES - (1 << 20),
    ROUND_TRIPS = 64,        /* of a chain */
    HANDED_WIDTH = 2048,     /* floats, each way */
    HANDED_OFFSET = 1 << 20, /* in host memory */
    HANDOVER_LIMIT_US = 1000000,
};

typedef enum probe_kind { PROBE_UP, PROBE_DOWN, PROBE_READ, PROBE_HANDOVER } probe_kind;
enum { PROBES = PROBE_HANDOVER + 1 };

typedef struct probe {
    st_device *device;
    unsigned char *memory, *host;
    void *begin, *end; /* events */
} probe;

/* One piece behind the other, as experts are fetched. */
static st_cuda_result copy_pieces(const probe *p, bool up)
{
    st_cuda_result result = ST_CUDA_OK;
    for (size_t at = 0; at < ST_CUDA_PROBE_BYTES && result == ST_CUDA_OK; at += PIECE_BYTES) {
        void *to = up ? p->memory + at : p->host + at, *from = up ? p->host + at : p->memory + at;
        result = p->device->api->copy(to, from, PIECE_BYTES, up ? ST_COPY_UP : ST_COPY_DOWN, p->device->stream);
    }
    return result;
}

static st_cuda_result run_once(const probe *p, probe_kind kind)
{
    const st_cuda_api *api = p->device->api;
    void *stream = p->device->stream;
    switch (kind) {
    case PROBE_UP: return copy_pieces(p, true);
    case PROBE_DOWN: return copy_pieces(p, false);
    case PROBE_READ: return api->probe_read(p->memory, READ_BYTES, (uint32_t *)(void *)(p->memory + READ_BYTES), stream);
    case PROBE_HANDOVER: return api->zero(p->memory, 4, stream);
    }
    return ST_CUDA_FAILED;
}

static strata_status best_seconds(const probe *p, probe_kind kind, double *best, strata_error *error)
{
    const st_cuda_api *api = p->device->api;
    void *stream = p->device->stream;
    *best = 1e9;
    for (int i = 0; i < TRIES; i++) {
        double device_seconds = 0, start = st_clock_seconds();
        st_cuda_result result = api->event_record(p->begin, stream);
        if (result == ST_CUDA_OK) result = run_once(p, kind);
        if (result == ST_CUDA_OK) result = api->event_record(p->end, stream);
        if (result == ST_CUDA_OK) result = api->stream_sync(stream);
        double seconds = st_clock_seconds() - start;
        if (result == ST_CUDA_OK) result = api->event_elapsed(p->begin, p->end, &device_seconds);
        if (result != ST_CUDA_OK) return st_cuda_check(p->device, result, "measuring the GPU", error);
        if (kind != PROBE_HANDOVER) seconds = device_seconds;
        if (seconds < *best) *best = seconds;
    }
    return STRATA_OK;
}

/* --- a hand-over to the host and back, within a launch ------------------------------------------------------------- */

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Follows a launch: the host answers at once. From one hand-over to the next is a round trip. */
static strata_status follow(st_chain *chain, double *median, strata_error *error)
{
    double times[ROUND_TRIPS], before = 0;
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < ROUND_TRIPS && status == STRATA_OK; i++) {
        status = st_cuda_chain_await(chain, 2 * i, HANDOVER_LIMIT_US, NULL, error);
        st_cuda_chain_answer(chain, 2 * i + 1, false);
        double now = st_clock_seconds();
        times[i] = now - before;
        before = now;
    }
    if (status != STRATA_OK) {
        st_cuda_chain_abandon(chain);
        return status;
    }
    qsort(times + 1, ROUND_TRIPS - 1, sizeof *times, compare_seconds); /* the first has no hand-over before it */
    *median = times[ROUND_TRIPS / 2];
    return STRATA_OK;
}

static strata_status time_chain(const probe *p, st_chain *chain, st_queue *queue, st_event *end, double *best, strata_error *error)
{
    st_device *device = p->device;
    strata_status status = STRATA_OK;
    st_step *step = (st_step *)(void *)p->host;
    *best = 1e9;
    for (uint32_t i = 1; i <= TRIES && status == STRATA_OK; i++) {
        double median = 1e9;
        *step = (st_step){.count = 1, .out_count = 1, .sequence = i};
        status = st_cuda_copy(queue, ST_COPY_UP, p->memory + STEP_OFFSET, step, sizeof *step, error);
        if (status == STRATA_OK) status = st_cuda_chain_launch(chain, queue, 1, i, end, error);
        if (status == STRATA_OK) status = follow(chain, &median, error);
        strata_status ended = st_cuda_check(device, device->api->stream_sync(queue->stream), "measuring the GPU", error);
        if (status == STRATA_OK) status = ended;
        if (median < *best) *best = median;
    }
    return status;
}

/* 0: the GPU has no chains here. */
static strata_status time_round_trip(const probe *p, double *seconds, strata_error *error)
{
    st_device *device = p->device;
    st_link links[2 * ROUND_TRIPS];
    void *there = p->host + HANDED_OFFSET, *here = p->memory + READ_BYTES;
    for (int i = 0; i < 2 * ROUND_TRIPS; i++)
        links[i] = (st_link){.kind = i % 2 ? ST_LINK_ADD : ST_LINK_SEND, .value_count = 1,
                             .values = {{i % 2 ? here : there, i % 2 ? there : here, HANDED_WIDTH}}};
    st_chain_source source = {.links = links, .count = 2 * ROUND_TRIPS, .step = (st_step *)(void *)(p->memory + STEP_OFFSET),
                              .limit_us = HANDOVER_LIMIT_US};
    st_chain *chain = NULL;
    st_queue *queue = NULL;
    st_event *end = NULL;
    *seconds = 0;
    strata_status status = st_cuda_chain_new(device, &source, &chain, error);
    if (status == STRATA_OK && chain) status = st_cuda_queue_new(device, ST_QUEUE_COMPUTE, &queue, error);
    if (status == STRATA_OK && chain) status = st_cuda_event_new(device, &end, error);
    if (status == STRATA_OK && chain) status = time_chain(p, chain, queue, end, seconds, error);
    st_cuda_chain_free(chain);
    st_cuda_event_free(end);
    st_cuda_queue_free(queue);
    return status;
}

/* The copies up come first: they initialise the memory. */
static strata_status measure(const probe *p, st_device_rates *out, strata_error *error)
{
    double seconds[PROBES];
    strata_status status = STRATA_OK;
    for (int kind = PROBE_UP; kind < PROBES && status == STRATA_OK; kind++)
        status = best_seconds(p, (probe_kind)kind, &seconds[kind], error);
    if (status != STRATA_OK) return status;
    *out = (st_device_rates){.read_bytes = READ_BYTES / seconds[PROBE_READ], .link_up = ST_CUDA_PROBE_BYTES / seconds[PROBE_UP],
                             .link_down = ST_CUDA_PROBE_BYTES / seconds[PROBE_DOWN], .handover_seconds = seconds[PROBE_HANDOVER]};
    status = time_round_trip(p, &out->round_trip_seconds, error);
    if (status != STRATA_OK) return status;
    return st_cuda_probe_classes(p->device, &(st_cuda_probe_memory){p->memory, p->host, p->begin, p->end}, out, error);
}

static strata_status open_probe(probe *p, strata_error *error)
{
    const st_cuda_api *api = p->device->api;
    void *memory = NULL, *host = NULL;
    bool pinned;
    strata_status status = st_cuda_alloc(p->device, ST_CUDA_PROBE_BYTES, &memory, error);
    if (status == STRATA_OK) status = st_cuda_host_alloc(p->device, ST_CUDA_PROBE_BYTES, &host, &pinned, error);
    p->memory = memory;
    p->host = host;
    if (status == STRATA_OK) memset(host, 1, ST_CUDA_PROBE_BYTES);
    if (status == STRATA_OK) status = st_cuda_check(p->device, api->event_new(&p->begin), "creating an event", error);
    if (status == STRATA_OK) status = st_cuda_check(p->device, api->event_new(&p->end), "creating an event", error);
    return status;
}

strata_status st_cuda_probe(st_device *device, st_device_rates *out, strata_error *error)
{
    probe *p = st_alloc_zero(1, sizeof *p);
    if (!p) return st_error_memory(error, sizeof *p, "measuring the GPU");
    p->device = device;
    strata_status status = open_probe(p, error);
    if (status == STRATA_OK) status = measure(p, out, error);
    if (p->begin) device->api->event_free(p->begin);
    if (p->end) device->api->event_free(p->end);
    if (p->host) st_cuda_host_free(device, p->host);
    st_cuda_free(device, p->memory);
    st_free(p);
    return status;
}
