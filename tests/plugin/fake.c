#include "plugin/fake.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/clock.h"

enum { TOTAL_MIB = 16384, CONTEXT_MIB = 500, BLOCKS_MAX = 16, PROBE_BYTES = 256 << 20,
       UNWRITTEN = 0xFF }; /* kernels that read it compute NaN */

static struct { void *memory; size_t bytes; } blocks[BLOCKS_MAX]; /* of device memory */
static size_t used_bytes;  /* their sum */
static size_t taken_bytes; /* of device memory, by other processes */
static uint64_t launched;
static st_cuda_kernel kernels; /* NULL: they are left out */

static st_cuda_result fake_new(void **out, size_t bytes)
{
    *out = st_alloc_aligned(bytes ? bytes : 1, ST_CUDA_ALIGNMENT);
    return *out ? ST_CUDA_OK : ST_CUDA_MEMORY;
}

static st_cuda_result fake_free(void *memory)
{
    st_free(memory);
    return ST_CUDA_OK;
}

static st_cuda_result fake_host_free(void *memory, size_t bytes)
{
    (void)bytes;
    return fake_free(memory);
}

static const char *fake_reason(void)
{
    return "the fake says so";
}

static st_cuda_result fake_facts(int index, st_cuda_facts *out)
{
    *out = (st_cuda_facts){.name = "fake GPU", .major = 9, .processors = 1};
    return index == 0 ? ST_CUDA_OK : ST_CUDA_NONE;
}

static st_cuda_result fake_use(int index)
{
    (void)index;
    return ST_CUDA_OK;
}

static st_cuda_result fake_load(void)
{
    return ST_CUDA_OK;
}

static st_cuda_result fake_pin(const void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
    return ST_CUDA_OK;
}

static st_cuda_result fake_unpin(const void *memory)
{
    (void)memory;
    return ST_CUDA_OK;
}

static st_cuda_result fake_memory(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = (size_t)TOTAL_MIB << 20;
    *free_bytes = *total_bytes - ((size_t)CONTEXT_MIB << 20) - used_bytes - taken_bytes;
    return ST_CUDA_OK;
}

static st_cuda_result fake_alloc(void **out, size_t bytes)
{
    size_t i = 0;
    while (i < BLOCKS_MAX && blocks[i].memory) i++;
    const char *others = getenv("STRATA_FAKE_TAKEN_MIB"); /* taken by another process since the plan was made */
    if (others && bytes != PROBE_BYTES && taken_bytes == 0) taken_bytes = (size_t)atoi(others) << 20;
    size_t free_bytes, total_bytes;
    fake_memory(&free_bytes, &total_bytes);
    st_cuda_result result = i < BLOCKS_MAX && bytes <= free_bytes ? fake_new(out, bytes) : ST_CUDA_MEMORY;
    if (result != ST_CUDA_OK) return result;
    memset(*out, kernels ? UNWRITTEN : 0, bytes);
    blocks[i].memory = *out;
    blocks[i].bytes = bytes;
    used_bytes += bytes;
    return ST_CUDA_OK;
}

static st_cuda_result fake_release(void *memory)
{
    for (size_t i = 0; i < BLOCKS_MAX; i++) {
        if (!memory || blocks[i].memory != memory) continue;
        used_bytes -= blocks[i].bytes;
        blocks[i].memory = NULL;
    }
    return fake_free(memory);
}

/* --- streams: work is done at once, but for a graph that waits for the host ------------------------------------------ */

typedef struct fake_graph {
    struct fake_stream *stream; /* of the last launch; NULL: none */
    uint32_t count;
    st_cuda_call calls[];
} fake_graph;

/* The graph that was launched last goes on whenever something asks for the stream's state. */
typedef struct fake_stream {
    const fake_graph *graph; /* that has not ended; NULL: none */
    uint32_t next;           /* of its calls */
    double since;            /* its next call waits for the host since then; 0: it has not been asked */
    uint64_t launched, ended;
} fake_stream;

typedef struct fake_event {
    fake_stream *stream; /* NULL: not recorded, or reached when it was */
    uint64_t launched;   /* graphs of the stream at that time */
} fake_event;

static st_cuda_result fake_run(const st_cuda_call *c);

/* Whether the host has answered a hand-over; one that takes too long times out. */
static bool is_answered(const st_cuda_handover *h, uint32_t sequence, fake_stream *stream)
{
    if (h->link.kind == ST_LINK_SEND || *h->flag >> 1 == sequence) return true;
    double now = st_clock_seconds();
    if (stream->since == 0) stream->since = now;
    if (now - stream->since <= 1e-6 * (double)h->limit_us) return false;
    *h->timed_out = 1;
    *h->flag = st_cuda_answer(sequence, true);
    return true;
}

static st_cuda_result go_on(fake_stream *stream)
{
    st_cuda_result result = ST_CUDA_OK;
    while (stream && stream->graph && result == ST_CUDA_OK) {
        const st_cuda_call *call = &stream->graph->calls[stream->next];
        if (stream->next == stream->graph->count) {
            stream->graph = NULL;
            stream->ended = stream->launched;
            break;
        }
        if (call->handover && !is_answered(call->handover, call->step->sequence, stream)) break;
        result = fake_run(call);
        stream->since = 0;
        stream->next++;
    }
    if (result != ST_CUDA_OK) {
        stream->graph = NULL;
        stream->ended = stream->launched;
    }
    return result;
}

/* Before more work: a real stream would queue it, but nobody could wait for it. */
static st_cuda_result finish(void *stream)
{
    st_cuda_result result = go_on(stream);
    bool waits = stream && ((const fake_stream *)stream)->graph;
    return result == ST_CUDA_OK && waits ? ST_CUDA_FAILED : result;
}

static st_cuda_result fake_stream_new(void **out)
{
    st_cuda_result result = fake_new(out, sizeof(fake_stream));
    if (result == ST_CUDA_OK) *(fake_stream *)*out = (fake_stream){0};
    return result;
}

static st_cuda_result fake_stream_free(void *stream)
{
    (void)go_on(stream);
    return fake_free(stream);
}

static st_cuda_result fake_sync(void *stream)
{
    return finish(stream);
}

static st_cuda_result fake_copy(void *to, const void *from, size_t bytes, st_copy_kind kind, void *stream)
{
    (void)kind;
    st_cuda_result result = finish(stream);
    if (result == ST_CUDA_OK) memcpy(to, from, bytes);
    return result;
}

static st_cuda_result fake_zero(void *memory, size_t bytes, void *stream)
{
    st_cuda_result result = finish(stream);
    if (result == ST_CUDA_OK) memset(memory, 0, bytes);
    return result;
}

static st_cuda_result fake_event_new(void **out)
{
    st_cuda_result result = fake_new(out, sizeof(fake_event));
    if (result == ST_CUDA_OK) *(fake_event *)*out = (fake_event){0};
    return result;
}

static st_cuda_result fake_record(void *event, void *stream)
{
    fake_stream *s = stream;
    bool waits = s && s->graph; /* else the event is reached, and the stream may be freed before it is asked */
    *(fake_event *)event = (fake_event){waits ? s : NULL, waits ? s->launched : 0};
    return ST_CUDA_OK;
}

static st_cuda_result fake_query(void *event)
{
    const fake_event *e = event;
    st_cuda_result result = go_on(e->stream);
    return result == ST_CUDA_OK && e->stream && e->stream->ended < e->launched ? ST_CUDA_PENDING : result;
}

static st_cuda_result fake_stream_wait(void *stream, void *event)
{
    (void)stream;
    return finish(((const fake_event *)event)->stream);
}

static st_cuda_result fake_elapsed(void *from, void *to, double *seconds)
{
    (void)from;
    (void)to;
    *seconds = 1e-4;
    return ST_CUDA_OK;
}

static st_cuda_result fake_set(uint64_t *counter, uint64_t value, void *stream)
{
    (void)stream;
    *counter = value;
    return ST_CUDA_OK;
}

static st_cuda_result fake_wait(const uint64_t *counter, uint64_t value, uint64_t limit_us, uint32_t *timed_out, void *stream)
{
    (void)limit_us;
    (void)stream;
    if (*counter < value) *timed_out = 1;
    return ST_CUDA_OK;
}

/* The host reads what a router chooses: some experts, others each time. */
static void choose_experts(const st_cuda_call *c)
{
    const st_op *op = c->bound->op;
    uint32_t used = op->p.route.used;
    for (uint32_t i = 0; i < c->step->count * used; i++) {
        ((int32_t *)c->bound->out.data)[i] = (int32_t)((launched * used + i) % op->p.route.experts);
        ((float *)c->bound->out2.data)[i] = 1.0f / (float)used;
    }
}

/* The host chooses a token of the record: all are equal. */
static void list_candidates(const st_cuda_call *c)
{
    uint32_t vocab = c->bound->in[0].width;
    for (uint32_t row = 0; row < c->step->out_count; row++) {
        st_candidates *out = (st_candidates *)c->bound->out.data + row;
        memset(out, 0, sizeof *out);
        out->count = vocab < ST_CANDIDATES_MAX ? vocab : ST_CANDIDATES_MAX;
        for (uint32_t i = 0; i < out->count; i++) out->ids[i] = (int32_t)i;
    }
}

static void hand_over(const st_cuda_call *c)
{
    const st_cuda_handover *h = c->handover;
    bool none = h->link.kind != ST_LINK_SEND && *h->flag != st_cuda_answer(c->step->sequence, false);
    for (uint32_t i = 0; i < h->link.value_count && !none; i++) {
        const st_link_value *v = &h->link.values[i];
        size_t words = (size_t)c->step->count * v->width;
        if (h->link.kind != ST_LINK_ADD) memcpy(v->to, v->from, words * sizeof(float));
        for (size_t k = 0; k < words && h->link.kind == ST_LINK_ADD; k++) ((float *)v->to)[k] += ((const float *)v->from)[k];
    }
    if (h->link.kind == ST_LINK_SEND) *h->flag = st_cuda_answer(c->step->sequence, false);
}

/* The grid covers every row of the step. */
static st_cuda_result fake_run(const st_cuda_call *c)
{
    if (c->rows < (c->kind == ST_ROWS_ALL ? c->step->count : c->step->out_count)) return ST_CUDA_FAILED;
    launched++;
    if (kernels) return kernels(c) == 0 ? ST_CUDA_OK : ST_CUDA_FAILED;
    if (c->handover) {
        hand_over(c);
        return ST_CUDA_OK;
    }
    if (c->bound->op->kind == ST_OP_ROUTE) choose_experts(c);
    if (c->bound->op->kind == ST_OP_CANDIDATES) list_candidates(c);
    return ST_CUDA_OK;
}

static st_cuda_result fake_run_now(const st_cuda_call *c)
{
    st_cuda_result result = finish(c->stream);
    return result == ST_CUDA_OK ? fake_run(c) : result;
}

static st_cuda_result fake_graph_new(const st_cuda_call *calls, uint32_t count, void **out)
{
    st_cuda_result result = fake_new(out, sizeof(fake_graph) + count * sizeof *calls);
    if (result != ST_CUDA_OK) return result;
    fake_graph *graph = *out;
    graph->stream = NULL;
    graph->count = count;
    memcpy(graph->calls, calls, count * sizeof *calls);
    return ST_CUDA_OK;
}

/* A graph that waits ends with it: a real one would go on, with memory that may be freed. */
static st_cuda_result fake_graph_free(void *graph)
{
    fake_stream *stream = ((const fake_graph *)graph)->stream;
    if (stream && stream->graph == graph) {
        (void)go_on(stream);
        stream->graph = NULL;
        stream->ended = stream->launched;
    }
    return fake_free(graph);
}

static st_cuda_result fake_graph_launch(void *graph, void *stream)
{
    fake_stream *s = stream;
    st_cuda_result result = finish(s);
    if (result != ST_CUDA_OK) return result;
    s->graph = graph;
    ((fake_graph *)graph)->stream = s;
    s->next = 0;
    s->launched++;
    return go_on(s);
}

static st_cuda_result fake_read(const void *memory, size_t bytes, uint32_t *sink, void *stream)
{
    (void)memory;
    (void)bytes;
    (void)sink;
    return fake_sync(stream);
}

const st_cuda_api *st_cuda_fake(st_cuda_kernel run)
{
    kernels = run;
    static const st_cuda_api api = {
        .reason = fake_reason,
        .facts = fake_facts,
        .use = fake_use,
        .load = fake_load,
        .memory = fake_memory,
        .alloc = fake_alloc,
        .free = fake_release,
        .host_alloc = fake_new,
        .host_free = fake_host_free,
        .host_pin = fake_pin,
        .host_unpin = fake_unpin,
        .copy = fake_copy,
        .zero = fake_zero,
        .stream_new = fake_stream_new,
        .stream_free = fake_stream_free,
        .stream_sync = fake_sync,
        .stream_wait = fake_stream_wait,
        .event_new = fake_event_new,
        .event_free = fake_free,
        .event_record = fake_record,
        .event_query = fake_query,
        .event_elapsed = fake_elapsed,
        .counter_set = fake_set,
        .counter_wait = fake_wait,
        .run = fake_run_now,
        .graph_new = fake_graph_new,
        .graph_free = fake_graph_free,
        .graph_launch = fake_graph_launch,
        .probe_read = fake_read,
    };
    return &api;
}
