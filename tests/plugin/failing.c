#include "plugin/failing.h"

struct st_cuda_failing_state failing;

static const st_cuda_api *below;
static bool injected; /* the last failure is the test's */

/* Counts a call; ST_CUDA_OK: it is passed on. */
static st_cuda_result call(void)
{
    failing.calls++;
    injected = failing.fail_at && (failing.sticky ? failing.calls >= failing.fail_at : failing.calls == failing.fail_at);
    return injected ? failing.with : ST_CUDA_OK;
}

#define PASS(expression)                                                                                               \
    do {                                                                                                               \
        st_cuda_result result = call();                                                                                \
        return result == ST_CUDA_OK ? (expression) : result;                                                           \
    } while (0)

/* A call that creates an object. */
#define CREATE(expression)                                                                                             \
    do {                                                                                                               \
        st_cuda_result result = call();                                                                                \
        if (result == ST_CUDA_OK) result = (expression);                                                               \
        if (result == ST_CUDA_OK) failing.allocated++;                                                                 \
        return result;                                                                                                 \
    } while (0)

/* A call that frees one: the object is gone even if the call fails. */
#define DESTROY(expression)                                                                                            \
    do {                                                                                                               \
        st_cuda_result result = call(), freed = (expression);                                                          \
        failing.allocated--;                                                                                           \
        return result == ST_CUDA_OK ? freed : result;                                                                  \
    } while (0)

static const char *failing_reason(void)
{
    return injected ? "the test says so" : below->reason();
}

static st_cuda_result failing_facts(int index, st_cuda_facts *out)
{
    st_cuda_result found = below->facts(index, out); /* also when the call fails: errors name the device */
    st_cuda_result result = call();
    return result == ST_CUDA_OK ? found : result;
}

static st_cuda_result failing_use(int index)
{
    PASS(below->use(index));
}

static st_cuda_result failing_load(void)
{
    PASS(below->load());
}

static st_cuda_result failing_memory(size_t *free_bytes, size_t *total_bytes)
{
    PASS(below->memory(free_bytes, total_bytes));
}

static st_cuda_result failing_alloc(void **out, size_t bytes)
{
    CREATE(below->alloc(out, bytes));
}

static st_cuda_result failing_free(void *memory)
{
    DESTROY(below->free(memory));
}

static st_cuda_result failing_host_alloc(void **out, size_t bytes)
{
    CREATE(below->host_alloc(out, bytes));
}

static st_cuda_result failing_host_free(void *memory, size_t bytes)
{
    DESTROY(below->host_free(memory, bytes));
}

static st_cuda_result failing_host_pin(const void *memory, size_t bytes)
{
    CREATE(below->host_pin(memory, bytes));
}

static st_cuda_result failing_host_unpin(const void *memory)
{
    DESTROY(below->host_unpin(memory));
}

static st_cuda_result failing_copy(void *to, const void *from, size_t bytes, st_copy_kind kind, void *stream)
{
    PASS(below->copy(to, from, bytes, kind, stream));
}

static st_cuda_result failing_zero(void *memory, size_t bytes, void *stream)
{
    PASS(below->zero(memory, bytes, stream));
}

static st_cuda_result failing_stream_new(void **out)
{
    CREATE(below->stream_new(out));
}

static st_cuda_result failing_stream_free(void *stream)
{
    DESTROY(below->stream_free(stream));
}

static st_cuda_result failing_stream_sync(void *stream)
{
    PASS(below->stream_sync(stream));
}

static st_cuda_result failing_stream_wait(void *stream, void *event)
{
    PASS(below->stream_wait(stream, event));
}

static st_cuda_result failing_event_new(void **out)
{
    CREATE(below->event_new(out));
}

static st_cuda_result failing_event_free(void *event)
{
    DESTROY(below->event_free(event));
}

static st_cuda_result failing_event_record(void *event, void *stream)
{
    PASS(below->event_record(event, stream));
}

/* How often an event is asked before it is reached depends on time: those calls are not counted. */
static st_cuda_result failing_event_query(void *event)
{
    st_cuda_result found = below->event_query(event);
    if (found == ST_CUDA_PENDING) return found;
    PASS(found);
}

static st_cuda_result failing_event_elapsed(void *from, void *to, double *seconds)
{
    PASS(below->event_elapsed(from, to, seconds));
}

static st_cuda_result failing_counter_set(uint64_t *counter, uint64_t value, void *stream)
{
    PASS(below->counter_set(counter, value, stream));
}

static st_cuda_result failing_counter_wait(const uint64_t *counter, uint64_t value, uint64_t limit_us, uint32_t *timed_out,
                                           void *stream)
{
    PASS(below->counter_wait(counter, value, limit_us, timed_out, stream));
}

static st_cuda_result failing_run(const st_cuda_call *operation)
{
    failing.launched++;
    PASS(below->run(operation));
}

static st_cuda_result failing_graph_new(const st_cuda_call *calls, uint32_t count, void **out)
{
    CREATE(below->graph_new(calls, count, out));
}

static st_cuda_result failing_graph_free(void *graph)
{
    DESTROY(below->graph_free(graph));
}

static st_cuda_result failing_graph_launch(void *graph, void *stream)
{
    failing.launched++;
    PASS(below->graph_launch(graph, stream));
}

static st_cuda_result failing_probe_read(const void *memory, size_t bytes, uint32_t *sink, void *stream)
{
    PASS(below->probe_read(memory, bytes, sink, stream));
}

const st_cuda_api *st_cuda_failing(const st_cuda_api *table)
{
    static const st_cuda_api api = {
        .reason = failing_reason,
        .facts = failing_facts,
        .use = failing_use,
        .load = failing_load,
        .memory = failing_memory,
        .alloc = failing_alloc,
        .free = failing_free,
        .host_alloc = failing_host_alloc,
        .host_free = failing_host_free,
        .host_pin = failing_host_pin,
        .host_unpin = failing_host_unpin,
        .copy = failing_copy,
        .zero = failing_zero,
        .stream_new = failing_stream_new,
        .stream_free = failing_stream_free,
        .stream_sync = failing_stream_sync,
        .stream_wait = failing_stream_wait,
        .event_new = failing_event_new,
        .event_free = failing_event_free,
        .event_record = failing_event_record,
        .event_query = failing_event_query,
        .event_elapsed = failing_event_elapsed,
        .counter_set = failing_counter_set,
        .counter_wait = failing_counter_wait,
        .run = failing_run,
        .graph_new = failing_graph_new,
        .graph_free = failing_graph_free,
        .graph_launch = failing_graph_launch,
        .probe_read = failing_probe_read,
    };
    below = table;
    return &api;
}
