/* The CUDA backend's host part on a table of functions whose n-th call fails (plugin/failing.h), for every n: a typed error,
 * nothing leaked, and the next run works. After a sticky error the device is lost and stays lost. The same for a model: in
 * load, prompt, decoding and uploads of experts. The table below is the fake, or the real one where it is linked in
 * (`bench/gpu fault`): then a sample of n fails. */
#include <string.h>

#include "backend/cuda/probe.h"
#include "base/alloc.h"
#include "plugin/failing.h"
#include "plugin/fake.h"
#include "support/golden.h"

enum { SAMPLE = 60 }; /* calls of a run that fail in turn on a real GPU */

__attribute__((weak)) const st_cuda_api *st_cuda_api_real(void);

static bool is_real(void)
{
    return st_cuda_api_real != NULL;
}

static const st_cuda_api *table_below(void)
{
    return is_real() ? st_cuda_api_real() : st_cuda_fake(NULL);
}

static const st_cuda_api *table(void)
{
    return st_cuda_failing(table_below());
}

static void fail_at(uint64_t nth, st_cuda_result with, bool sticky)
{
    failing = (struct st_cuda_failing_state){.fail_at = nth, .with = with, .sticky = sticky};
}

/* From one failing call to the next. */
static uint64_t stride(uint64_t calls)
{
    return is_real() ? calls / SAMPLE + 1 : kit_is_slow() ? 7 : 1;
}

static size_t free_bytes(void)
{
    size_t available, total;
    assert_int_equal(table_below()->memory(&available, &total), ST_CUDA_OK);
    return available;
}

/* --- a small run: open, allocate, copy up, launch, copy down, wait ------------------------------------------------- */

enum { EXPERTS = 3, USED = 2, WIDTH = 4, BYTES = 4096, OPERATIONS = 3, MANY_OPERATIONS = 40, GRAPH_ROWS = 64 };

typedef struct rig {
    st_device *device;
    st_queue *queue;
    st_event *event;
    st_segment *segment;
    uint32_t rows_min; /* of its launches */
    void *block, *host;
} rig;

static void rig_close(rig *r)
{
    const st_backend *b = &st_cuda_backend;
    if (!r->device) return;
    if (r->segment) b->segment_free(r->segment);
    if (r->host) b->host_free(r->device, r->host);
    b->free(r->device, r->block);
    b->event_free(r->event);
    b->queue_free(r->queue);
    b->close(r->device);
}

/* A segment of experts and other operations: OPERATIONS make a small graph, MANY_OPERATIONS a large one. */
static strata_status prepare(rig *r, uint32_t count, strata_error *error)
{
    static const void *parts[EXPERTS];
    static const st_op add = {.kind = ST_OP_ADD}, op = {.kind = ST_OP_EXPERTS, .p.experts = {.experts = EXPERTS, .used = USED, .width = WIDTH, .fused = true}};
    st_bound_op bound[MANY_OPERATIONS] = {
        {.op = &op, .in = {{r->block, WIDTH}, {r->block, USED}, {r->block, USED}}, .out = {r->block, WIDTH}}};
    for (uint32_t i = 1; i < count; i++)
        bound[i] = (st_bound_op){.op = &add, .in = {{r->block, WIDTH}, {r->block, WIDTH}}, .out = {r->block, WIDTH}};
    for (int i = 0; i < 3; i += 2)
        bound[0].weight[i] = (st_bound_weight){.data = r->block, .parts = parts, .info = st_type_find(ST_TYPE_F32),
                                            .ne = {WIDTH, WIDTH, EXPERTS}, .row_bytes = WIDTH * sizeof(float)};
    st_segment_source source = {.ops = bound, .count = count, .rows_min = r->rows_min, .step = r->block,
                                .step_bytes = sizeof(st_step), .scratch = r->block, .shared_bytes = BYTES};
    return st_cuda_backend.prepare(r->device, &source, &r->segment, error);
}

static strata_status run_all(rig *r, strata_error *error)
{
    const st_backend *b = &st_cuda_backend;
    bool pinned = false;
    double back;
    strata_status status = st_cuda_open(table(), &(st_device_options){0}, &r->device, error);
    if (status == STRATA_OK) status = b->queue_new(r->device, ST_QUEUE_COMPUTE, &r->queue, error);
    if (status == STRATA_OK) status = b->event_new(r->device, &r->event, error);
    if (status == STRATA_OK) status = b->alloc(r->device, BYTES, &r->block, error);
    if (status == STRATA_OK) status = b->host_alloc(r->device, BYTES, &r->host, &pinned, error);
    if (status == STRATA_OK) memset(r->host, 0, BYTES);
    if (status == STRATA_OK) status = b->copy(r->queue, ST_COPY_UP, r->block, r->host, BYTES, error);
    if (status == STRATA_OK) status = b->zero(r->queue, r->block, sizeof(double), error);
    if (status == STRATA_OK) status = prepare(r, OPERATIONS, error);
    if (status == STRATA_OK) status = b->launch(r->segment, r->queue, 1, error);
    if (status == STRATA_OK && pinned) status = b->signal(r->queue, r->host, 3, error);
    if (status == STRATA_OK && pinned) status = b->wait(r->queue, r->host, 3, 1000000, error);
    if (status == STRATA_OK) status = b->copy(r->queue, ST_COPY_DOWN, &back, r->block, sizeof back, error);
    if (status == STRATA_OK) status = b->event_record(r->event, r->queue, error);
    if (status == STRATA_OK) status = b->event_wait_queue(r->event, r->queue, error);
    if (status == STRATA_OK) status = b->event_wait_host(r->event, 1000000, error);
    if (status == STRATA_OK) assert_true(back == 0 && failing.launched == 1); /* one graph */
    return status;
}

static strata_status try(uint64_t nth, st_cuda_result with, bool sticky, strata_error *error)
{
    rig r = {0};
    fail_at(nth, with, sticky);
    strata_status status = run_all(&r, error);
    rig_close(&r);
    assert_int_equal(failing.allocated, 0);
    return status;
}

static void every_failed_call_is_reported(void **state)
{
    (void)state;
    static const struct { st_cuda_result with; bool sticky; strata_status status; } rows[] = {
        {ST_CUDA_FAILED, false, STRATA_DEVICE}, {ST_CUDA_MEMORY, false, STRATA_MEMORY}, {ST_CUDA_LOST, true, STRATA_DEVICE_LOST}};
    strata_error error;
    assert_int_equal(try(0, ST_CUDA_OK, false, &error), STRATA_OK);
    uint64_t calls = failing.calls, step = is_real() ? calls / 20 + 1 : 1; /* a real GPU is opened in a second */
    st_cuda_facts facts;
    assert_int_equal(table_below()->facts(0, &facts), ST_CUDA_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t failed = 0;
        for (uint64_t n = 1; n <= calls; n += step) {
            strata_status status = try(n, rows[i].with, rows[i].sticky, &error);
            /* memory that cannot be pinned is pageable; errors of calls that free are ignored */
            if (status == STRATA_OK) continue;
            failed++;
            if (n > 1 || rows[i].with == ST_CUDA_LOST) assert_int_equal(status, rows[i].status);
            assert_non_null(strstr(error.message, n == 1 ? "GPU" : facts.name));
        }
        assert_true(failed * step > 15);
        assert_int_equal(try(0, ST_CUDA_OK, false, &error), STRATA_OK);
    }
}

/* Once the device is lost, every call fails at once and does not reach the GPU. */
static void a_lost_device_stays_lost(void **state)
{
    (void)state;
    const st_backend *b = &st_cuda_backend;
    strata_error error;
    rig r = {0};
    fail_at(0, ST_CUDA_OK, false);
    assert_int_equal(run_all(&r, &error), STRATA_OK);
    failing.fail_at = failing.calls + 2;
    failing.with = ST_CUDA_LOST;
    assert_int_equal(b->launch(r.segment, r.queue, 1, &error), STRATA_DEVICE_LOST);
    uint64_t calls = failing.calls;
    assert_int_equal(b->launch(r.segment, r.queue, 1, &error), STRATA_DEVICE_LOST);
    assert_int_equal(b->event_wait_host(r.event, 0, &error), STRATA_DEVICE_LOST);
    assert_non_null(strstr(error.message, "no longer usable"));
    assert_int_equal(b->copy(r.queue, ST_COPY_UP, r.block, r.host, 1, &error), STRATA_DEVICE_LOST);
    assert_false(b->event_done(r.event));
    assert_int_equal(failing.calls, calls);
    rig_close(&r);
    assert_int_equal(failing.allocated, 0);
}

static void invalid_calls_are_errors(void **state)
{
    (void)state;
    const st_backend *b = &st_cuda_backend;
    strata_error error;
    st_device *device = NULL;
    fail_at(0, ST_CUDA_OK, false);
    assert_int_equal(st_cuda_open(table(), &(st_device_options){.index = 99}, &device, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "CUDA GPU 99 not found"));
    rig r = {0};
    assert_int_equal(run_all(&r, &error), STRATA_OK);
    st_event *event = NULL;
    assert_int_equal(b->event_new(r.device, &event, &error), STRATA_OK);
    assert_int_equal(b->event_wait_host(event, 0, &error), STRATA_DEVICE); /* no queue has recorded it */
    assert_int_equal(b->wait(r.queue, r.host, 4, 10, &error), STRATA_OK);
    assert_int_equal(b->event_record(event, r.queue, &error), STRATA_OK);
    assert_int_equal(b->event_wait_host(event, 0, &error), STRATA_DEVICE); /* the counter was never signalled */
    assert_non_null(strstr(error.message, "counter"));
    assert_int_equal(b->event_wait_host(event, 0, &error), STRATA_OK);
    b->event_free(event);
    st_op op = {.kind = ST_OP_RMS_NORM};
    st_bound_op bound = {.op = &op, .weight[0] = {.data = r.block, .type = ST_TYPE_Q4_K, .info = st_type_find(ST_TYPE_Q4_K)}};
    st_segment *segment = NULL;
    st_segment_source source = {.ops = &bound, .count = 1, .step = r.block, .step_bytes = sizeof(st_step)};
    assert_int_equal(b->prepare(r.device, &source, &segment, &error), STRATA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "rms_norm"));
    assert_int_equal(b->launch(r.segment, r.queue, BYTES, &error), STRATA_RUNTIME); /* so many rows need more scratch */
    assert_non_null(strstr(error.message, "scratch"));
    rig_close(&r);
    assert_int_equal(failing.allocated, 0);
}

/* Of `count` operations: launches up to `most` rows are one graph; beyond, the operations one by one. */
static void check_launches(const rig *r, st_segment *segment, uint32_t count, uint32_t most)
{
    strata_error error;
    for (uint32_t rows = 1; rows <= GRAPH_ROWS + 1; rows += 3) {
        failing.launched = 0;
        assert_int_equal(st_cuda_backend.launch(segment, r->queue, rows, &error), STRATA_OK);
        assert_int_equal(failing.launched, rows <= most ? 1 : count);
    }
}

/* Prepares SEGMENTS more and counts those with a graph for 1 and for GRAPH_ROWS rows. All graphs end with their segment. */
static void count_graphs(rig *r, uint32_t count, uint32_t by_graph[2])
{
    enum { SEGMENTS = 160 };
    const st_backend *b = &st_cuda_backend;
    strata_error error;
    int64_t without = failing.allocated;
    st_segment *first = r->segment, *more[SEGMENTS];
    by_graph[0] = by_graph[1] = 0;
    for (int i = 0; i < SEGMENTS; i++) {
        assert_int_equal(prepare(r, count, &error), STRATA_OK);
        more[i] = r->segment;
        for (uint32_t k = 0; k < 2; k++) {
            failing.launched = 0;
            assert_int_equal(b->launch(more[i], r->queue, k ? GRAPH_ROWS : 1, &error), STRATA_OK);
            by_graph[k] += failing.launched == 1;
        }
    }
    for (int i = 0; i < SEGMENTS; i++) b->segment_free(more[i]);
    assert_int_equal(failing.allocated, without);
    r->segment = first;
}

/* Small segments have a graph for one row, large ones for up to 64 rows, as far as the memory reserved for graphs goes. */
static void launches_are_graphs(void **state)
{
    (void)state;
    strata_error error;
    rig r = {0};
    uint32_t by_graph[2];
    fail_at(0, ST_CUDA_OK, false);
    assert_int_equal(run_all(&r, &error), STRATA_OK);
    check_launches(&r, r.segment, OPERATIONS, 1);
    count_graphs(&r, OPERATIONS, by_graph);
    assert_int_equal(by_graph[0], 64 - 1); /* one is the rig's */
    assert_int_equal(by_graph[1], 0);
    count_graphs(&r, OPERATIONS, by_graph);
    assert_int_equal(by_graph[0], 64 - 1);
    st_cuda_backend.segment_free(r.segment);
    assert_int_equal(prepare(&r, MANY_OPERATIONS, &error), STRATA_OK);
    check_launches(&r, r.segment, MANY_OPERATIONS, GRAPH_ROWS);
    count_graphs(&r, MANY_OPERATIONS, by_graph);
    assert_in_range(by_graph[1], 5, by_graph[0] - 1); /* the last quarter is for one row */
    assert_in_range(by_graph[0], 5, 100);
    r.rows_min = GRAPH_ROWS; /* launches of many rows alone take none of that memory */
    count_graphs(&r, MANY_OPERATIONS, by_graph);
    assert_true(by_graph[0] == 0 && by_graph[1] == 0);
    rig_close(&r);
    assert_int_equal(failing.allocated, 0);
}

/* A launch uses the graph of the next power of two: its scratch is that of so many rows. */
static void scratch_is_for_the_rows_of_the_graph(void **state)
{
    (void)state;
    const st_op experts = {.kind = ST_OP_EXPERTS, .p.experts = {.experts = 8, .used = 2, .width = 64}};
    const st_op attention = {.kind = ST_OP_ATTENTION,
                             .p.attention = {.heads = 4, .kv_heads = 1, .key_length = 256, .value_length = 256}};
    const st_op matmul = {.kind = ST_OP_MATMUL};
    const st_bound_op shapes[] = {{.op = &experts, .in[0].width = 128}, {.op = &attention}, {.op = &matmul, .weight[0].ne = {128, 1, 1}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t rows = 1, graph = 1; rows <= GRAPH_ROWS; rows++) {
            if (rows > graph) graph *= 2;
            assert_int_equal(st_cuda_scratch(&shapes[i], rows).shared_bytes, st_cuda_scratch(&shapes[i], graph).shared_bytes);
        }
        assert_true(st_cuda_scratch(&shapes[i], GRAPH_ROWS + 1).shared_bytes >= st_cuda_scratch(&shapes[i], GRAPH_ROWS).shared_bytes);
    }
}

/* --- chains ---------------------------------------------------------------------------------------------------------- */

enum { VALUE = 1024, STEP = 2048, BACK = 3072, SEND = 0, ADD = 1, AGAIN = 2, RECEIVE = 3, LINKS = 5 };

/* The value goes to the host, which adds to it, and again, and the host replaces it; it comes back behind the first. */
static st_chain *chain_new(const rig *r, void *host, uint64_t limit_us)
{
    unsigned char *device = r->block, *at = host;
    st_link_value down = {at + VALUE, device + VALUE, WIDTH}, up = {device + VALUE, at + VALUE, WIDTH};
    st_link_value back = {at + BACK, device + VALUE, WIDTH};
    st_link links[LINKS] = {{.kind = ST_LINK_SEND, .values = {down}, .value_count = 1},
                            {.kind = ST_LINK_ADD, .values = {up}, .value_count = 1},
                            {.kind = ST_LINK_SEND, .values = {down}, .value_count = 1},
                            {.kind = ST_LINK_RECEIVE, .values = {up}, .value_count = 1},
                            {.kind = ST_LINK_SEND, .values = {back}, .value_count = 1}};
    st_chain_source source = {.links = links, .count = LINKS, .step = (st_step *)(void *)(device + STEP), .limit_us = limit_us};
    st_chain *chain = NULL;
    strata_error error;
    if (st_cuda_backend.chain_new(r->device, &source, &chain, &error) != STRATA_OK) fail_msg("%s", error.message);
    return chain;
}

static strata_status chain_begin(const rig *r, st_chain *chain, uint32_t sequence, strata_error *error)
{
    const st_backend *b = &st_cuda_backend;
    st_step *step = (st_step *)(void *)((unsigned char *)r->host + STEP);
    float *value = (float *)(void *)((unsigned char *)r->host + VALUE);
    *step = (st_step){.count = 1, .sequence = sequence};
    for (int i = 0; i < WIDTH; i++) value[i] = (float)i;
    strata_status status = b->copy(r->queue, ST_COPY_UP, (unsigned char *)r->block + STEP, step, sizeof *step, error);
    if (status == STRATA_OK)
        status = b->copy(r->queue, ST_COPY_UP, (unsigned char *)r->block + VALUE, value, WIDTH * sizeof *value, error);
    if (status == STRATA_OK) status = b->event_record(r->event, r->queue, error);
    if (status == STRATA_OK) status = b->event_wait_host(r->event, 0, error); /* the host writes the same memory */
    return status == STRATA_OK ? b->chain_launch(chain, r->queue, 1, sequence, r->event, error) : status;
}

static void must(strata_status status, const strata_error *error)
{
    if (status != STRATA_OK) fail_msg("%s", error->message);
}

static void rig_open(rig *r)
{
    strata_error error;
    *r = (rig){0};
    fail_at(0, ST_CUDA_OK, false);
    must(run_all(r, &error), &error);
}

static void rig_end(rig *r)
{
    rig_close(r);
    assert_int_equal(failing.allocated, 0);
}

static void values_are(const rig *r, size_t offset, float each, float first)
{
    const float *value = (const float *)(const void *)((const unsigned char *)r->host + offset);
    for (int i = 0; i < WIDTH; i++) assert_true(value[i] == each * (float)i + first);
}

static void fill(const rig *r, float with)
{
    float *value = (float *)(void *)((unsigned char *)r->host + VALUE);
    for (int i = 0; i < WIDTH; i++) value[i] = with;
}

/* A launch is replayed with another sequence number; what the host answers is what the GPU adds or takes. */
static void a_chain_hands_over(void **state)
{
    (void)state;
    const st_backend *b = &st_cuda_backend;
    strata_error error;
    rig r;
    rig_open(&r);
    st_chain *chain = chain_new(&r, r.host, 1000000);
    assert_non_null(chain);
    assert_true(b->chain_rows(chain) >= 1);
    assert_int_equal(b->chain_launch(chain, r.queue, ST_CHAIN_ROWS + 1, 1, r.event, &error), STRATA_RUNTIME);
    for (uint32_t sequence = 1; sequence < 5; sequence++) {
        bool none = sequence % 2;
        failing.launched = 0;
        must(chain_begin(&r, chain, sequence, &error), &error);
        must(b->chain_await(chain, SEND, 1000000, NULL, &error), &error);
        values_are(&r, VALUE, 1, 0);
        fill(&r, 10);
        b->chain_answer(chain, ADD, none);
        must(b->chain_await(chain, AGAIN, 1000000, NULL, &error), &error);
        values_are(&r, VALUE, 1, none ? 0 : 10);
        fill(&r, 7);
        b->chain_answer(chain, RECEIVE, false);
        must(b->event_wait_host(r.event, 1000000, &error), &error);
        values_are(&r, BACK, 0, 7);
        assert_int_equal(failing.launched, 1);
    }
    b->chain_free(chain);
    rig_end(&r);
}

/* The GPU's wait ends by itself, the host's by the end of the launch, by its limit or by an interrupt. */
static void waits_of_a_chain_end(void **state)
{
    (void)state;
    const st_backend *b = &st_cuda_backend;
    strata_error error;
    rig r;
    atomic_bool stop = true;
    rig_open(&r);
    st_chain *chain = chain_new(&r, r.host, 2000);
    must(chain_begin(&r, chain, 1, &error), &error);
    must(b->chain_await(chain, SEND, 1000000, NULL, &error), &error);
    while (b->chain_await(chain, AGAIN, 1000000, NULL, &error) == STRATA_OK && !b->event_done(r.event)) continue;
    assert_int_equal(b->event_wait_host(r.event, 1000000, &error), STRATA_DEVICE); /* nobody answered */
    assert_non_null(strstr(error.message, "timed out"));
    b->chain_free(chain);
    chain = chain_new(&r, r.host, 1000000000);
    must(chain_begin(&r, chain, 2, &error), &error);
    must(b->chain_await(chain, SEND, 1000000, NULL, &error), &error);
    assert_int_equal(b->chain_await(chain, AGAIN, 1000, NULL, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "1000 µs"));
    assert_int_equal(b->chain_await(chain, AGAIN, 1000000, &stop, &error), STRATA_INTERRUPTED);
    b->chain_abandon(chain);
    must(b->event_wait_host(r.event, 1000000, &error), &error);
    b->chain_free(chain);
    rig_end(&r);
}

/* A GPU that is lost in the middle ends the host's wait. */
static void a_chain_on_a_lost_device_ends(void **state)
{
    (void)state;
    const st_backend *b = &st_cuda_backend;
    strata_error error;
    rig r;
    rig_open(&r);
    st_chain *chain = chain_new(&r, r.host, 1000000);
    must(chain_begin(&r, chain, 1, &error), &error);
    must(b->chain_await(chain, SEND, 1000000, NULL, &error), &error);
    failing.fail_at = failing.calls + 1;
    failing.with = ST_CUDA_LOST;
    failing.sticky = true;
    assert_int_equal(b->chain_await(chain, AGAIN, 1000000, NULL, &error), STRATA_DEVICE_LOST);
    b->chain_abandon(chain);
    b->chain_free(chain);
    rig_end(&r);
}

/* Memory that the GPU does not reach, and a device that times each operation: no chain, and no error. */
static void a_chain_needs_mapped_memory(void **state)
{
    (void)state;
    static _Alignas(ST_CUDA_ALIGNMENT) unsigned char pageable[BYTES];
    rig r;
    rig_open(&r);
    assert_null(chain_new(&r, pageable, 1000000));
    r.device->profile = true;
    assert_null(chain_new(&r, r.host, 1000000));
    rig_end(&r);
}

/* --- a model on it: without kernels its logits mean nothing, but every call is made ----------------------------------- */

static strata_status open_failing(const st_device_options *options, st_device **out, strata_error *error)
{
    return st_cuda_open(table(), options, out, error);
}

static const st_backend *failing_backend(void)
{
    static st_backend backend;
    backend = st_cuda_backend;
    backend.open = open_failing;
    return &backend;
}

/* A prompt of two batches, then tokens one by one. */
static strata_status run_model(golden_run *r, strata_error *error)
{
    const float *logits;
    uint32_t row = 0, position = 16;
    strata_status status = golden_step(r, r->conversation, r->g->tokens, 8, error);
    if (status == STRATA_OK) status = golden_step(r, r->conversation, r->g->tokens + 8, 8, error);
    for (; position < 20 && status == STRATA_OK; position++) {
        status = golden_step(r, r->conversation, r->g->tokens + position, 1, error);
        if (status == STRATA_OK) status = st_run_logits(r->run, &row, 1, &logits, error);
    }
    return status;
}

/* After an error the same conversation restarts, unless the device is lost: then every call fails with that error. */
static void check_next(golden_run *r, bool sticky, uint64_t nth)
{
    strata_error error;
    st_seek seek;
    strata_status status = st_conversation_seek(r->conversation, r->g->tokens, 0, false, &seek, &error);
    if (status == STRATA_OK) status = run_model(r, &error);
    strata_status expected = sticky ? STRATA_DEVICE_LOST : STRATA_OK;
    if (status != expected) fail_msg("after call %u: status %d: %s", (unsigned)nth, (int)status, error.message);
}

/* Returns the status with which the n-th call ended; *calls is how many there were. */
static strata_status try_model(const golden *g, const golden_options *options, uint64_t nth, st_cuda_result with, bool sticky,
                               uint64_t *calls)
{
    golden_run r;
    strata_error error = {0};
    fail_at(nth, with, sticky);
    strata_status status = golden_run_try(&r, g, options, &error);
    if (status == STRATA_OK) {
        status = run_model(&r, &error);
        *calls = failing.calls;
        if (status != STRATA_OK) check_next(&r, sticky, nth);
        golden_run_close(&r);
    }
    if (status != STRATA_OK) assert_true(error.status == status && error.message[0] != '\0');
    if (failing.allocated != 0) fail_msg("call %u failed, and %d objects are left", (unsigned)nth, (int)failing.allocated);
    return status;
}

static void a_model(const char *name, const st_plan_options *placed, uint64_t failures_min)
{
    static const struct { st_cuda_result with; bool sticky; strata_status status; } rows[] = {
        {ST_CUDA_FAILED, false, STRATA_DEVICE}, {ST_CUDA_MEMORY, false, STRATA_MEMORY}, {ST_CUDA_LOST, true, STRATA_DEVICE_LOST}};
    golden g;
    assert_true(golden_open(&g, name));
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = 8, .threads = 1, .cpu = "ref", .placed = placed,
                              .backend = failing_backend()};
    uint64_t calls = 0, ignored;
    assert_int_equal(try_model(&g, &options, 0, ST_CUDA_OK, false, &calls), STRATA_OK);
    size_t before = free_bytes();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t failed = 0;
        for (uint64_t nth = 1; nth <= calls; nth += stride(calls)) {
            strata_status status = try_model(&g, &options, nth, rows[i].with, rows[i].sticky, &ignored);
            /* failed uploads are dropped, memory that cannot be pinned is pageable, and errors of calls that free are ignored */
            if (status == STRATA_OK) continue;
            failed++;
            if (nth > 1 && status != rows[i].status) fail_msg("%s, call %u: status %d", name, (unsigned)nth, (int)status);
        }
        print_message("# %s: %u of %u calls fail with %d, %u of them end a run\n", name,
                      (unsigned)((calls - 1) / stride(calls) + 1), (unsigned)calls, (int)rows[i].with, (unsigned)failed);
        assert_true(failed * stride(calls) >= failures_min);
    }
    if (free_bytes() != before) fail_msg("%s: %zd bytes of the GPU are lost", name, (ssize_t)(before - free_bytes()));
    golden_close(&g);
}

static void a_model_all_on_the_gpu(void **state)
{
    (void)state;
    st_plan_options placed = st_plan_options_default();
    placed.layers = ST_LAYERS_ALL;
    a_model("qwen35", &placed, 200);
}

static void a_model_with_streamed_dense_parts(void **state)
{
    (void)state;
    st_plan_options placed = st_plan_options_default();
    placed.layers = ST_LAYERS_ALL;
    placed.cpu_ffn_layers = 3;
    placed.dense_rows = 8; /* the batches; logits mean nothing here */
    a_model("qwen3", &placed, 200);
}

static void a_model_with_experts_in_slots(void **state)
{
    (void)state;
    st_plan_options placed = st_plan_options_default();
    placed.layers = ST_LAYERS_ALL;
    placed.moe = ST_MOE_CACHE;
    placed.expert_slots = 3;
    a_model("qwen3moe", &placed, 200);
}

static void a_model_with_experts_on_the_cpu(void **state)
{
    (void)state;
    st_plan_options placed = st_plan_options_default();
    placed.layers = ST_LAYERS_ALL;
    placed.moe = ST_MOE_CPU;
    a_model("qwen2moe", &placed, 100);
}

/* Of the body; of a prompt each layer has some. */
static void a_decoded_token_is_one_launch(void **state)
{
    (void)state;
    for (int cache = 0; cache < 2; cache++) {
        golden g;
        golden_run r;
        strata_error error;
        st_plan_options placed = st_plan_options_default();
        placed.layers = ST_LAYERS_ALL;
        placed.moe = cache ? ST_MOE_CACHE : ST_MOE_CPU;
        placed.expert_slots = cache ? 3 : -1;
        assert_true(golden_open(&g, "qwen3moe"));
        golden_options options = {.kv_type = ST_TYPE_F32, .batch = 8, .threads = 1, .cpu = "ref", .placed = &placed,
                                  .backend = failing_backend()};
        fail_at(0, ST_CUDA_OK, false);
        golden_run_open(&r, &g, &options);
        must(golden_step(&r, r.conversation, g.tokens, 8, &error), &error);
        assert_true(failing.launched > g.desc->layer_count);
        for (uint32_t i = 8; i < 12; i++) {
            failing.launched = 0;
            must(golden_step(&r, r.conversation, g.tokens + i, 1, &error), &error);
            assert_int_equal(failing.launched, 1);
        }
        golden_run_close(&r);
        golden_close(&g);
    }
}

/* A model with many experts and many segments has more table entries than one block of pinned memory. */
static void expert_tables_fill_several_blocks(void **state)
{
    (void)state;
    enum { MANY = 100000, SEGMENTS = 5 };
    static const void *parts[MANY];
    const st_op op = {.kind = ST_OP_EXPERTS, .p.experts = {.experts = MANY, .used = USED, .width = WIDTH, .fused = true}};
    const st_backend *b = &st_cuda_backend;
    rig r = {0};
    strata_error error;
    fail_at(0, ST_CUDA_OK, false);
    assert_int_equal(run_all(&r, &error), STRATA_OK);
    st_bound_op bound = {.op = &op, .in = {{r.block, WIDTH}, {r.block, USED}, {r.block, USED}}, .out = {r.block, WIDTH}};
    for (int i = 0; i < 3; i += 2)
        bound.weight[i] = (st_bound_weight){.data = r.block, .parts = parts, .info = st_type_find(ST_TYPE_F32),
                                            .ne = {WIDTH, WIDTH, MANY}, .row_bytes = WIDTH * sizeof(float)};
    st_segment_source source = {.ops = &bound, .count = 1, .step = r.block, .step_bytes = sizeof(st_step),
                                .scratch = r.block, .shared_bytes = BYTES};
    for (int round = 0; round < 2; round++) { /* freed segments give their entries back */
        st_segment *segments[SEGMENTS];
        for (int i = 0; i < SEGMENTS; i++)
            if (b->prepare(r.device, &source, &segments[i], &error) != STRATA_OK) fail_msg("%s", error.message);
        for (int i = 0; i < SEGMENTS; i++) b->segment_free(segments[i]);
    }
    rig_close(&r);
    assert_int_equal(failing.allocated, 0);
}

/* --- the probe ------------------------------------------------------------------------------------------------------ */

static struct {
    const st_cuda_api *below;
    unsigned char *memory; /* the probe's */
    uint64_t kinds[ST_OP_COUNT];
} probed;

static st_cuda_result alloc_probed(void **out, size_t bytes)
{
    st_cuda_result result = probed.below->alloc(out, bytes);
    if (result == ST_CUDA_OK && bytes == ST_CUDA_PROBE_BYTES) probed.memory = *out;
    return result;
}

/* The range is in the probe's memory, and before `limit`. */
static void is_within(const char *what, const st_cuda_call *c, const void *at, size_t bytes, const void *limit)
{
    uintptr_t first = (uintptr_t)probed.memory, start = (uintptr_t)at;
    uintptr_t end = limit ? (uintptr_t)limit : first + ST_CUDA_PROBE_BYTES;
    if (start < first || start > end || bytes > end - start)
        fail_msg("%s of %s with %u rows: %zu bytes at %td", what, st_op_name(c->bound->op->kind), c->rows, bytes,
                 (const unsigned char *)at - probed.memory);
}

static void check_values(const st_cuda_call *c, uint32_t rows)
{
    const st_bound_op *b = c->bound;
    for (int i = 0; i < ST_OP_INPUTS; i++)
        if (b->in[i].data) is_within("an input", c, b->in[i].data, (size_t)rows * b->in[i].width * 4, NULL);
    if (b->out.data) is_within("the output", c, b->out.data, (size_t)rows * b->out.width * 4, c->scratch);
    if (b->out2.data) is_within("the other output", c, b->out2.data, (size_t)rows * b->out2.width * 4, c->scratch);
    const int32_t *ids = b->in[1].data;
    for (uint32_t i = 0; b->op->kind == ST_OP_EXPERTS && i < rows * b->in[1].width; i++)
        assert_in_range(ids[i], 0, b->op->p.experts.experts - 1);
}

static void check_memory(const st_cuda_call *c)
{
    const st_bound_op *b = c->bound;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        const st_bound_weight *w = &b->weight[i];
        for (uint64_t k = 0; w->data && k < w->ne[2]; k++)
            is_within("a weight", c, w->parts ? w->parts[k] : w->data, w->row_bytes * w->ne[1], c->scratch);
    }
    if (b->kv.keys) is_within("keys", c, b->kv.keys, b->kv.pages * b->kv.key_page_bytes, c->scratch);
    if (b->kv.values) is_within("values", c, b->kv.values, b->kv.pages * b->kv.value_page_bytes, c->scratch);
    if (b->state.conv) is_within("state", c, b->state.conv, b->state.slots * b->state.slot_floats * 4, c->scratch);
}

/* In place of the kernels. */
static int check_call(const st_cuda_call *c)
{
    enum { PAGE_SHIFT = 6 };
    uint32_t rows = c->step->count;
    if (!probed.memory) return 0;
    probed.kinds[c->bound->op->kind]++;
    check_values(c, rows);
    check_memory(c);
    is_within("scratch", c, c->scratch, st_cuda_scratch(c->bound, c->rows).shared_bytes, c->step);
    is_within("the step", c, c->step, c->step->bytes, NULL);
    const st_step_row *last = (const st_step_row *)(const void *)(c->step->values + c->step->rows_at) + rows - 1;
    assert_in_range(last->position >> PAGE_SHIFT, 0, c->step->table_count - 1);
    return 0;
}

static void the_probe_stays_within_its_memory(void **state)
{
    (void)state;
    static const st_op_kind kinds[] = {ST_OP_ADD,      ST_OP_RMS_NORM,  ST_OP_GATED_ACT, ST_OP_MATMUL,
                                       ST_OP_ROPE,     ST_OP_KV_STORE,  ST_OP_ATTENTION, ST_OP_ROUTE,
                                       ST_OP_EXPERTS,  ST_OP_CONV,      ST_OP_DELTANET,  ST_OP_CANDIDATES};
    if (is_real()) return;
    st_device *device;
    st_device_rates rates = {0};
    strata_error error;
    probed.below = st_cuda_fake(check_call);
    st_cuda_api api = *probed.below;
    api.alloc = alloc_probed;
    assert_int_equal(st_cuda_open(&api, &(st_device_options){.profile = true}, &device, &error), STRATA_OK);
    if (st_cuda_backend.probe(device, &rates, &error) != STRATA_OK) fail_msg("%s", error.message);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) assert_true(probed.kinds[kinds[i]] > 0);
    assert_true(rates.read_bytes > 0 && rates.batch_ops > 0 && rates.type_share[ST_TYPE_Q4_K] > 0);
    for (int i = 0; i < ST_CLASS_COUNT; i++) {
        const st_class_rates *c = &rates.classes[i];
        assert_true(c->seconds >= 0 && c->deep_seconds >= 0 && c->fill >= 0 && c->op_share >= 0);
        assert_true(c->memory_share >= 0 && c->memory_share <= 1);
    }
    st_op_time times[ST_OP_COUNT];
    st_cuda_backend.times(device, times);
    for (int i = 0; i < ST_OP_COUNT; i++) assert_true(times[i].calls == 0); /* nothing of it is in a profile */
    st_cuda_backend.close(device);
    st_cuda_fake(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failed_call_is_reported),
        cmocka_unit_test(a_model_with_streamed_dense_parts),
        cmocka_unit_test(a_model_all_on_the_gpu),
        cmocka_unit_test(a_model_with_experts_in_slots),
        cmocka_unit_test(a_model_with_experts_on_the_cpu),
        cmocka_unit_test(a_decoded_token_is_one_launch),
        cmocka_unit_test(a_chain_hands_over),
        cmocka_unit_test(waits_of_a_chain_end),
        cmocka_unit_test(a_chain_on_a_lost_device_ends),
        cmocka_unit_test(a_chain_needs_mapped_memory),
        cmocka_unit_test(a_lost_device_stays_lost),
        cmocka_unit_test(invalid_calls_are_errors),
        cmocka_unit_test(launches_are_graphs),
        cmocka_unit_test(scratch_is_for_the_rows_of_the_graph), cmocka_unit_test(expert_tables_fill_several_blocks),
        cmocka_unit_test(the_probe_stays_within_its_memory),
    };
    return kit_run("cuda_fault", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
