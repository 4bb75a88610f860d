/* The rates of a GPU as strata's kernels reach them: the best of a few tries. Takes about a second. A hand-over within a launch is
 * timed as the median of many: some are delayed by other threads of the machine. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "quant/dequant.h"

enum {
    PROBE_BYTES = 256 << 20,   /* of device memory: matrices, then values, then step blocks. More than the L2 cache holds */
    WEIGHT_BYTES = 192 << 20,
    IN_OFFSET = WEIGHT_BYTES,
    OUT_OFFSET = IN_OFFSET + (16 << 20),
    STEP_OFFSET = OUT_OFFSET + (16 << 20),
    STEP_BYTES = 4096,
    SCRATCH_OFFSET = STEP_OFFSET + (1 << 20),
    WIDTH = 4096,              /* of the square matrices */
    BATCH = 512,
    MATRICES_MAX = 16,
    OPERATIONS = 256,          /* of the graph that times small operations */
    TRIES = 5,
    ROUND_TRIPS = 64,          /* of a chain */
    HANDED_WIDTH = 2048,       /* floats, each way */
    HANDED_OFFSET = 1 << 20,   /* in host memory */
    HANDOVER_LIMIT_US = 1000000,
};

typedef enum probe_kind { PROBE_UP, PROBE_DOWN, PROBE_READ, PROBE_HANDOVER, PROBE_BATCH, PROBE_GRAPH } probe_kind;

typedef struct probe {
    st_device *device;
    unsigned char *memory, *host;
    void *begin, *end; /* events */
    void *graph;       /* of PROBE_GRAPH */
    st_cuda_call calls[OPERATIONS];
    st_bound_op ops[OPERATIONS];
} probe;

static const struct { uint32_t type, block, bytes; } types[] = {
#define X(name, function, block, bytes) {ST_TYPE_##name, block, bytes},
    ST_TYPE_TABLE(X)
#undef X
};

enum { TYPES = sizeof types / sizeof *types };

static st_cuda_call call_of(const probe *p, const st_bound_op *op, uint32_t rows)
{
    size_t step = STEP_OFFSET + (rows == 1 ? 0 : STEP_BYTES);
    return (st_cuda_call){.bound = op, .step = (const st_step *)(const void *)(p->memory + step), .rows = rows,
                          .scratch = p->memory + SCRATCH_OFFSET, .quantised = true, .stream = p->device->stream};
}

static st_bound_op matmul_of(const probe *p, uint32_t type, size_t row_bytes, size_t offset)
{
    static const st_op op = {.kind = ST_OP_MATMUL};
    return (st_bound_op){.op = &op, .in[0] = {p->memory + IN_OFFSET, WIDTH}, .out = {p->memory + OUT_OFFSET, WIDTH},
                         .weight[0] = {.data = p->memory + offset, .type = type, .ne = {WIDTH, WIDTH, 1}, .row_bytes = row_bytes}};
}

static st_cuda_result run_once(const probe *p, probe_kind kind)
{
    const st_cuda_api *api = p->device->api;
    void *stream = p->device->stream;
    st_bound_op batch = matmul_of(p, ST_TYPE_Q8_0, WIDTH / 32 * 34, 0);
    st_cuda_call call = call_of(p, &batch, BATCH);
    switch (kind) {
    case PROBE_UP: return api->copy(p->memory, p->host, PROBE_BYTES, ST_COPY_UP, stream);
    case PROBE_DOWN: return api->copy(p->host, p->memory, PROBE_BYTES, ST_COPY_DOWN, stream);
    case PROBE_READ: return api->probe_read(p->memory, WEIGHT_BYTES, (uint32_t *)(void *)(p->memory + OUT_OFFSET), stream);
    case PROBE_HANDOVER: return api->zero(p->memory, 4, stream);
    case PROBE_BATCH: return api->run(&call);
    case PROBE_GRAPH: return api->graph_launch(p->graph, stream);
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

/* Seconds of one operation, run in a graph of the first `count` of p->ops. */
static strata_status graph_seconds(probe *p, uint32_t count, double *seconds, strata_error *error)
{
    for (uint32_t i = 0; i < count; i++) p->calls[i] = call_of(p, &p->ops[i], 1);
    st_cuda_result result = p->device->api->graph_new(p->calls, count, &p->graph);
    if (result != ST_CUDA_OK) return st_cuda_check(p->device, result, "measuring the GPU", error);
    strata_status status = best_seconds(p, PROBE_GRAPH, seconds, error);
    p->device->api->graph_free(p->graph);
    *seconds /= count;
    return status;
}

/* Small operations: norms and sums of one row. */
static strata_status time_operations(probe *p, double *seconds, strata_error *error)
{
    static const st_op ops[] = {{.kind = ST_OP_RMS_NORM, .p.norm = {.group = WIDTH, .epsilon = 1e-6f}}, {.kind = ST_OP_ADD}};
    st_bound_value in = {p->memory + IN_OFFSET, WIDTH}, out = {p->memory + OUT_OFFSET, WIDTH};
    for (int i = 0; i < OPERATIONS; i++) p->ops[i] = (st_bound_op){.op = &ops[i % 2], .in = {in, in}, .out = out};
    return graph_seconds(p, OPERATIONS, seconds, error);
}

/* The share of the memory's rate that matrices of each type reach with one row. */
static strata_status time_types(probe *p, st_device_rates *out, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t t = 0; t < TYPES && status == STRATA_OK; t++) {
        size_t row_bytes = WIDTH / types[t].block * types[t].bytes, bytes = WIDTH * row_bytes;
        uint32_t count = (uint32_t)(WEIGHT_BYTES / bytes < MATRICES_MAX ? WEIGHT_BYTES / bytes : MATRICES_MAX);
        double seconds;
        if (!(st_cuda_types[ST_OP_MATMUL] >> types[t].type & 1)) continue;
        for (uint32_t i = 0; i < count; i++) p->ops[i] = matmul_of(p, types[t].type, row_bytes, i * bytes);
        status = graph_seconds(p, count, &seconds, error);
        double own = seconds > 2 * out->classes[ST_CLASS_ROWS].seconds ? seconds - out->classes[ST_CLASS_ROWS].seconds : seconds / 2;
        double share = (double)bytes / own / out->read_bytes;
        if (status == STRATA_OK) out->type_share[types[t].type] = share < 1 ? share : 1;
    }
    return status;
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
    void *there = p->host + HANDED_OFFSET, *here = p->memory + IN_OFFSET;
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

static strata_status send_steps(const probe *p, strata_error *error)
{
    static const uint32_t counts[] = {1, BATCH};
    const st_device *device = p->device;
    st_cuda_result result = ST_CUDA_OK;
    for (size_t i = 0; i < 2 && result == ST_CUDA_OK; i++) {
        st_step *step = (st_step *)(void *)(p->host + i * STEP_BYTES);
        *step = (st_step){.count = counts[i], .out_count = counts[i]};
        result = device->api->copy(p->memory + STEP_OFFSET + i * STEP_BYTES, step, sizeof *step, ST_COPY_UP, device->stream);
    }
    return st_cuda_check(p->device, result, "measuring the GPU", error);
}

/* The copies up come first: they initialise the memory. */
static strata_status measure(probe *p, st_device_rates *out, strata_error *error)
{
    double seconds[PROBE_GRAPH];
    strata_status status = best_seconds(p, PROBE_UP, &seconds[PROBE_UP], error);
    if (status == STRATA_OK) status = send_steps(p, error);
    for (int kind = PROBE_DOWN; kind < PROBE_GRAPH && status == STRATA_OK; kind++)
        status = best_seconds(p, (probe_kind)kind, &seconds[kind], error);
    if (status != STRATA_OK) return status;
    *out = (st_device_rates){.read_bytes = WEIGHT_BYTES / seconds[PROBE_READ],
                             .batch_ops = 2.0 * BATCH * WIDTH * WIDTH / seconds[PROBE_BATCH],
                             .link_up = PROBE_BYTES / seconds[PROBE_UP], .link_down = PROBE_BYTES / seconds[PROBE_DOWN],
                             .handover_seconds = seconds[PROBE_HANDOVER]};
    status = time_operations(p, &out->classes[ST_CLASS_ROWS].seconds, error);
    if (status == STRATA_OK) status = time_round_trip(p, &out->round_trip_seconds, error);
    if (status == STRATA_OK) status = send_steps(p, error);
    return status == STRATA_OK ? time_types(p, out, error) : status;
}

static strata_status open_probe(probe *p, strata_error *error)
{
    const st_cuda_api *api = p->device->api;
    void *memory = NULL, *host = NULL;
    bool pinned;
    strata_status status = st_cuda_alloc(p->device, PROBE_BYTES, &memory, error);
    if (status == STRATA_OK) status = st_cuda_host_alloc(p->device, PROBE_BYTES, &host, &pinned, error);
    p->memory = memory;
    p->host = host;
    if (status == STRATA_OK) memset(host, 1, PROBE_BYTES);
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
