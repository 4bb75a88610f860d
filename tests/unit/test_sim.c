/* src/backend/sim: the simulated GPU and its host: memory, copies, time, and mistakes that must be errors. */
#include "support/sim_rig.h"

#include <math.h>
#include <string.h>

static const st_backend *card;

static void open_rig(sim_rig *r)
{
    st_sim_options options = sim_options();
    strata_error error;
    card = st_backend_sim_card();
    if (sim_rig_open(r, sim_world_open(&options), &error) != STRATA_OK) fail_msg("%s", error.message);
}

/* Operations take no time but their launch latency. */
static void open_unpriced(sim_rig *r)
{
    st_sim_options options = sim_options();
    options.program = NULL;
    options.binding = NULL;
    assert_int_equal(sim_rig_open(r, sim_world_open(&options), NULL), STRATA_OK);
}

static void close_rig(sim_rig *r)
{
    sim_rig_close(r);
    assert_int_equal(st_sim_used_bytes(r->world), 0);
    st_sim_world_free(r->world);
}

static void check_seconds(const char *what, double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("%s: %.12g s, expected %.12g", what, found, expected);
}

/* Waits for everything in the queue. */
static strata_status drain(sim_rig *r, st_queue *queue, strata_error *error)
{
    st_event *event = NULL;
    assert_int_equal(card->event_new(r->device, &event, NULL), STRATA_OK);
    strata_status status = card->event_record(event, queue, error);
    if (status == STRATA_OK) status = card->event_wait_host(event, 0, error);
    card->event_free(event);
    return status;
}

static void expect(strata_status found, strata_status expected, const strata_error *error, const char *words)
{
    if (found != expected || !strstr(error->message, words))
        fail_msg("expected %s with \"%s\", found %s: %s", strata_status_name(expected), words, strata_status_name(found),
                 error->message);
}

/* --- the device --------------------------------------------------------------------------------------------------- */

static void device_info(void **state)
{
    (void)state;
    sim_rig r;
    open_rig(&r);
    st_device_info info;
    card->info(r.device, &info);
    assert_int_equal(info.total_bytes, 2 * SIM_CAPACITY);
    assert_int_equal(info.free_bytes, SIM_CAPACITY - 1536);
    assert_int_equal(info.workers, 1);
    assert_int_equal(info.alignment, 256);
    assert_false(info.reads_host_memory);
    st_device_rates rates;
    assert_int_equal(card->probe(r.device, &rates, NULL), STRATA_OK);
    assert_true(rates.read_bytes == 1000 && rates.int8_ops == 10000);
    close_rig(&r);

    strata_error error;
    st_device *device = NULL;
    expect(card->open(&(st_device_options){.world = NULL}, &device, &error), STRATA_USAGE, &error, "world");
    expect(st_backend_sim_host()->open(&(st_device_options){.world = NULL}, &device, &error), STRATA_USAGE, &error,
           "world");
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void memory_is_limited(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r); /* takes 1536 bytes: three times the granularity */
    assert_int_equal(st_sim_used_bytes(r.world), 1536);
    void *a = NULL, *b = NULL, *c = NULL;
    assert_int_equal(card->alloc(r.device, 1, &a, NULL), STRATA_OK);
    assert_int_equal(st_sim_used_bytes(r.world), 2048);
    expect(card->alloc(r.device, SIM_CAPACITY - 2047, &b, &error), STRATA_MEMORY, &error, "1046529 bytes");
    assert_non_null(strstr(error.message, "2048 of 1048576"));
    assert_null(b);
    assert_int_equal(card->alloc(r.device, SIM_CAPACITY - 2048, &b, NULL), STRATA_OK);
    assert_int_equal(st_sim_used_bytes(r.world), SIM_CAPACITY);
    assert_int_equal(card->alloc(r.device, 0, &c, NULL), STRATA_MEMORY);
    card->free(r.device, a);
    assert_int_equal(card->alloc(r.device, 512, &c, NULL), STRATA_OK);
    assert_ptr_equal(c, a); /* the gap is found again */
    assert_int_equal(card->alloc(r.device, SIZE_MAX, &a, NULL), STRATA_MEMORY);
    card->free(r.device, b);
    card->free(r.device, c);
    card->free(r.device, NULL);
    close_rig(&r);
}

/* Ranges that are in use never overlap, are aligned, and add up. */
static void allocations_do_not_overlap(void **state)
{
    (void)state;
    sim_rig r;
    open_rig(&r);
    enum { BLOCKS = 40 };
    struct { unsigned char *at; size_t bytes; } blocks[BLOCKS] = {{NULL, 0}};
    unsigned seed = 5;
    size_t used = st_sim_used_bytes(r.world);
    for (int round = 0; round < 4000; round++) {
        seed = seed * 1664525u + 1013904223u;
        int i = (int)((seed >> 8) % BLOCKS);
        if (blocks[i].at) {
            for (size_t k = 0; k < blocks[i].bytes; k++)
                if (blocks[i].at[k] != (unsigned char)i) fail_msg("round %d: block %d was overwritten", round, i);
            card->free(r.device, blocks[i].at);
            used -= (blocks[i].bytes + SIM_GRANULARITY - 1) / SIM_GRANULARITY * SIM_GRANULARITY;
            blocks[i].at = NULL;
        } else {
            void *at;
            blocks[i].bytes = 1 + (seed >> 16) % 20000;
            assert_int_equal(card->alloc(r.device, blocks[i].bytes, &at, NULL), STRATA_OK);
            assert_true((uintptr_t)at % 256 == 0);
            assert_int_equal(*(unsigned char *)at, 0xFF); /* poisoned: callers must not rely on zeros */
            blocks[i].at = memset(at, i, blocks[i].bytes);
            used += (blocks[i].bytes + SIM_GRANULARITY - 1) / SIM_GRANULARITY * SIM_GRANULARITY;
        }
        assert_int_equal(st_sim_used_bytes(r.world), used);
    }
    for (int i = 0; i < BLOCKS; i++) card->free(r.device, blocks[i].at);
    close_rig(&r);
}

static void freeing_an_unknown_address_is_an_error(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    void *a;
    assert_int_equal(card->alloc(r.device, 100, &a, NULL), STRATA_OK);
    card->free(r.device, a);
    card->free(r.device, a);
    expect(card->alloc(r.device, 100, &a, &error), STRATA_DEVICE, &error, "freed");
    assert_int_equal(card->alloc(r.device, 100, &a, &error), STRATA_OK);
    card->free(r.device, (unsigned char *)a + 1);
    expect(card->zero(r.up, a, 100, &error), STRATA_DEVICE, &error, "freed");
    card->free(r.device, a);
    close_rig(&r);
}

static void a_gpu_without_free_memory(void **state)
{
    (void)state;
    st_sim_options options = sim_options();
    options.card.free_bytes = options.card.overhead_bytes;
    st_sim_world *world = sim_world_open(&options);
    sim_rig r;
    strata_error error;
    expect(sim_rig_open(&r, world, &error), STRATA_MEMORY, &error, "0 of 0");
    sim_rig_close(&r);
    st_sim_world_free(world);
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

static void the_target_of_a_copy_is_poisoned_until_it_ends(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    memset(r.block, 1, 100);
    memset(r.host, 2, 100);
    st_event *event = NULL;
    assert_int_equal(card->event_new(r.device, &event, NULL), STRATA_OK);
    expect(card->event_wait_host(event, 0, &error), STRATA_DEVICE, &error, "recorded");
    expect(card->event_wait_queue(event, r.up, &error), STRATA_DEVICE, &error, "recorded");
    assert_true(card->event_seconds(event) < 0);
    assert_int_equal(card->copy(r.up, ST_COPY_UP, r.block, r.host, 100, NULL), STRATA_OK);
    assert_int_equal(card->event_record(event, r.up, NULL), STRATA_OK);
    assert_false(card->event_done(event));
    assert_int_equal(r.block[0], 1); /* the copy has not started: the host has not waited */
    expect(card->event_wait_host(event, 400000, &error), STRATA_DEVICE, &error, "400000");
    check_seconds("timed out after", st_sim_world_seconds(r.world), 0.4);
    for (int i = 0; i < 100; i++) assert_int_equal(r.block[i], 0xFF);
    assert_true(isnan(*(float *)(void *)r.block));
    memset(r.host, 3, 100); /* the copy reads its source when it ends */
    assert_int_equal(card->event_wait_host(event, 0, &error), STRATA_OK);
    for (int i = 0; i < 100; i++) assert_int_equal(r.block[i], 3);
    assert_true(card->event_done(event));
    check_seconds("copied", card->event_seconds(event), 1);
    check_seconds("with the hand-over", st_sim_world_seconds(r.world), 1.5);

    assert_int_equal(card->copy(r.up, ST_COPY_DOWN, r.host + 256, r.block, 50, NULL), STRATA_OK); /* 1 s */
    assert_int_equal(card->copy(r.up, ST_COPY_WITHIN, r.block + 512, r.block, 100, NULL), STRATA_OK); /* 0.2 s */
    assert_int_equal(card->zero(r.up, r.block, 100, NULL), STRATA_OK); /* 0.1 s */
    assert_int_equal(card->copy(r.up, ST_COPY_UP, r.block, r.host, 0, NULL), STRATA_OK);
    assert_int_equal(drain(&r, r.up, &error), STRATA_OK);
    assert_int_equal(r.host[256 + 49], 3);
    assert_int_equal(r.block[512 + 99], 3);
    assert_int_equal(r.block[99], 0);
    check_seconds("all", st_sim_world_seconds(r.world), 1.5 + 1.3 + 0.5);
    card->event_free(event);
    close_rig(&r);
}

/* A KV cache is filled with zeros at once: ranges that take no host memory still do not. */
static void a_large_range_becomes_zeros(void **state)
{
    (void)state;
    enum { BYTES = (300 << 20) + 77, START = 3 };
    st_sim_options options = sim_options();
    options.card.total_bytes = options.card.free_bytes = 400 << 20;
    sim_rig r;
    strata_error error;
    void *memory;
    assert_int_equal(sim_rig_open(&r, sim_world_open(&options), &error), STRATA_OK);
    assert_int_equal(card->alloc(r.device, BYTES + START, &memory, &error), STRATA_OK);
    unsigned char *at = (unsigned char *)memory + START;
    static const size_t places[] = {0, 1, 4095, 5000, BYTES / 2, BYTES - 5000, BYTES - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) at[places[i]] = 7;
    at[-1] = 7; /* it is not of the range */
    assert_int_equal(card->zero(r.up, at, BYTES, &error), STRATA_OK);
    assert_int_equal(drain(&r, r.up, &error), STRATA_OK);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) assert_int_equal(at[places[i]], 0);
    assert_int_equal(at[-1], 7);
    card->free(r.device, memory);
    close_rig(&r);
}

static void a_copy_with_addresses_of_the_wrong_device_is_refused(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    unsigned char *device = r.block, *host = r.host;
    const struct { st_copy_kind kind; void *to; const void *from; size_t bytes; const char *words; } rows[] = {
        {ST_COPY_UP, host, host + 100, 10, "target: expected GPU memory"},
        {ST_COPY_UP, device, device + 100, 10, "source: expected host memory"},
        {ST_COPY_DOWN, device, device + 100, 10, "target: expected host memory"},
        {ST_COPY_DOWN, host, host + 100, 10, "source: expected GPU memory"},
        {ST_COPY_WITHIN, device, host, 10, "source: expected GPU memory"},
        {ST_COPY_WITHIN, host, device, 10, "target: expected GPU memory"},
        {ST_COPY_WITHIN, device, device + 5, 10, "overlap"},
        {ST_COPY_UP, device + 1500, host, 37, "target: expected GPU memory"}, /* one past the 1536 */
        {ST_COPY_UP, device, NULL, 10, "source"},
        {ST_COPY_DOWN, NULL, device, 10, "target"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect(card->copy(r.up, rows[i].kind, rows[i].to, rows[i].from, rows[i].bytes, &error), STRATA_DEVICE, &error,
               rows[i].words);
    expect(card->zero(r.up, host, 10, &error), STRATA_DEVICE, &error, "zero");
    assert_int_equal(card->copy(r.up, ST_COPY_UP, device + 1500, host, 36, &error), STRATA_OK);
    assert_int_equal(drain(&r, r.up, &error), STRATA_OK);
    close_rig(&r);
}

static void memory_freed_during_a_copy_is_an_error(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    void *memory;
    assert_int_equal(card->alloc(r.device, 100, &memory, NULL), STRATA_OK);
    assert_int_equal(card->copy(r.up, ST_COPY_UP, memory, r.host, 100, NULL), STRATA_OK);
    card->free(r.device, memory);
    expect(drain(&r, r.up, &error), STRATA_DEVICE, &error, "target: expected GPU memory");
    close_rig(&r);
}

/* --- segments ----------------------------------------------------------------------------------------------------- */

static void operations_take_the_predicted_time(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    if (sim_rig_run(&r, true, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_true(sim_rig_is_right(&r));
    st_sim_options options = sim_options();
    double sent = (double)(st_step_bytes(&sim_step_limits) + SIM_WEIGHT_BYTES + SIM_ROWS * SIM_IN * 4) / 100;
    double ran = 0.25;
    for (uint32_t i = 0; i < 2; i++) {
        st_work work = st_work_of(&sim_program, &sim_binding, &sim_program.ops[i], SIM_ROWS, SIM_POSITION, ST_TYPE_F32);
        assert_true(work.bytes > 0);
        ran += st_profile_seconds(&options.card, &work);
    }
    double back = (double)(SIM_ROWS * SIM_OUT * 4) / 50;
    check_seconds("in all", st_sim_world_seconds(r.world), sent + ran + back + 0.5);

    /* A type that reaches half the rate takes twice as long. */
    close_rig(&r);
    options.card.type_share[ST_TYPE_F32] = 0.5;
    assert_int_equal(sim_rig_open(&r, sim_world_open(&options), &error), STRATA_OK);
    assert_int_equal(sim_rig_run(&r, true, &error), STRATA_OK);
    ran = 0.25;
    for (uint32_t i = 0; i < 2; i++) {
        st_work work = st_work_of(&sim_program, &sim_binding, &sim_program.ops[i], SIM_ROWS, SIM_POSITION, ST_TYPE_F32);
        ran += st_profile_seconds(&options.card, &work);
    }
    check_seconds("in all", st_sim_world_seconds(r.world), sent + ran + back + 0.5);

    /* Without a program operations have no cost: a launch takes its latency. */
    close_rig(&r);
    open_unpriced(&r);
    assert_int_equal(sim_rig_run(&r, true, &error), STRATA_OK);
    check_seconds("latency", st_sim_world_seconds(r.world), sent + 0.25 + back + 0.5);
    close_rig(&r);
}

static void a_missing_wait_is_an_error(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    /* The step is still poisoned when the operation reads it. */
    open_rig(&r);
    expect(sim_rig_run(&r, false, &error), STRATA_DEVICE, &error, "the step says");
    assert_false(sim_rig_is_right(&r));
    close_rig(&r);

    /* Step and weights have arrived; the input arrives while the operation runs: still an error. */
    for (int fast = 0; fast < 2; fast++) {
        open_rig(&r);
        assert_int_equal(sim_rig_run(&r, true, &error), STRATA_OK);
        size_t bytes = fast ? 8 : SIM_ROWS * SIM_IN * sizeof(float);
        assert_int_equal(card->copy(r.up, ST_COPY_UP, r.x, r.host_x, bytes, NULL), STRATA_OK);
        assert_int_equal(card->launch(r.segment, r.compute, SIM_ROWS, NULL), STRATA_OK);
        expect(drain(&r, r.compute, &error), STRATA_DEVICE, &error, "matmul");
        assert_non_null(strstr(error.hint, "wait"));
        close_rig(&r);
    }

    /* An input overwritten while it is read. */
    open_rig(&r);
    assert_int_equal(sim_rig_run(&r, true, &error), STRATA_OK);
    assert_int_equal(card->launch(r.segment, r.compute, SIM_ROWS, NULL), STRATA_OK);
    assert_int_equal(card->copy(r.up, ST_COPY_UP, r.x, r.host_x, 4, NULL), STRATA_OK);
    expect(drain(&r, r.up, &error), STRATA_DEVICE, &error, "copy");
    close_rig(&r);

    /* Concurrent reads are valid. */
    open_rig(&r);
    assert_int_equal(sim_rig_run(&r, true, &error), STRATA_OK);
    assert_int_equal(card->launch(r.segment, r.compute, SIM_ROWS, NULL), STRATA_OK);
    assert_int_equal(card->copy(r.up, ST_COPY_DOWN, r.host + 128, r.x, 4, NULL), STRATA_OK);
    assert_int_equal(drain(&r, r.up, &error), STRATA_OK);
    assert_int_equal(drain(&r, r.compute, &error), STRATA_OK);
    close_rig(&r);
}

/* A copy to the host without a wait: the host reads poison. */
static void the_host_reads_poison_without_a_wait(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    assert_int_equal(sim_rig_run(&r, true, &error), STRATA_OK);
    assert_true(sim_rig_is_right(&r));
    st_event *event = NULL;
    assert_int_equal(card->event_new(r.device, &event, NULL), STRATA_OK);
    assert_int_equal(card->copy(r.compute, ST_COPY_DOWN, r.host + 256, r.weights, SIM_WEIGHT_BYTES, NULL), STRATA_OK);
    assert_int_equal(card->event_record(event, r.up, NULL), STRATA_OK); /* the wrong queue */
    assert_int_equal(card->event_wait_host(event, 0, NULL), STRATA_OK); /* 0.5 s, and the copy takes 0.96 */
    assert_true(isnan(*(float *)(void *)(r.host + 256)));
    assert_int_equal(card->event_record(event, r.compute, NULL), STRATA_OK);
    assert_int_equal(card->event_wait_host(event, 0, NULL), STRATA_OK);
    assert_memory_equal(r.host + 256, r.weights, SIM_WEIGHT_BYTES);
    card->event_free(event);
    close_rig(&r);
}

static void addresses_of_the_host_are_refused(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    static float elsewhere[64];
    st_segment *segment = NULL;
    for (int i = 0; i < 6; i++) {
        st_bound_op bound = r.ops[0];
        st_segment_source source = {.ops = &bound, .count = 1, .step = r.step, .step_bytes = 256, .scratch = r.scratch,
                                    .worker_bytes = 256};
        static const char *const words[] = {"input 0", "output 0", "weight 0", "step", "scratch", "keys"};
        if (i == 0) bound.in[0].data = elsewhere;
        if (i == 1) bound.out.data = elsewhere;
        if (i == 2) bound.weight[0].data = elsewhere;
        if (i == 3) source.step = r.host_step;
        if (i == 4) source.scratch = elsewhere;
        if (i == 5)
            bound.kv = (st_kv_view){.keys = (unsigned char *)elsewhere, .pages = 1, .key_row_bytes = 16,
                                    .key_page_bytes = 16};
        expect(card->prepare(r.device, &source, &segment, &error), STRATA_DEVICE, &error, words[i]);
        assert_null(segment);
    }
    /* A value that ends past its allocation: one row fits, two do not. */
    void *small;
    assert_int_equal(card->alloc(r.device, SIM_IN * 4, &small, NULL), STRATA_OK);
    st_bound_op bound = r.ops[0];
    bound.in[0].data = small;
    st_segment_source source = {.ops = &bound, .count = 1, .step = r.step, .step_bytes = 256, .scratch = r.scratch,
                                .worker_bytes = 256};
    assert_int_equal(card->prepare(r.device, &source, &segment, NULL), STRATA_OK);
    assert_int_equal(card->copy(r.compute, ST_COPY_UP, r.step, r.host_step, r.host_step->bytes, NULL), STRATA_OK);
    assert_int_equal(card->launch(segment, r.compute, SIM_ROWS, NULL), STRATA_OK);
    expect(drain(&r, r.compute, &error), STRATA_DEVICE, &error, "32 bytes");
    card->segment_free(segment);
    card->free(r.device, small);
    close_rig(&r);
}

/* Poisoned indices would make a kernel read out of bounds. */
static void indices_out_of_range_are_errors(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_unpriced(&r);
    static const st_op embed = {.kind = ST_OP_EMBED, .p.embed.scale = 1}, gather = {.kind = ST_OP_GATHER};
    static const st_op experts = {.kind = ST_OP_EXPERTS, .p.experts = {.experts = 2, .used = 1, .width = 2}};
    const void *parts[2] = {r.weights, &error}; /* the second is not in GPU memory */
    st_bound_weight table = r.ops[0].weight[0], expert = table;
    expert.parts = parts;
    expert.ne[1] = 2;
    int32_t *ids = (int32_t *)(void *)(r.block + 1024); /* where z is */
    st_bound_op bound[3] = {
        {.op = &embed, .weight = {table}, .out = {.data = r.x, .width = SIM_IN}},
        {.op = &gather, .in = {{.data = r.x, .width = SIM_IN}}, .out = {.data = r.x, .width = SIM_IN}},
        {.op = &experts, .in = {{.data = r.x, .width = SIM_IN}, {.data = ids, .width = 1}, {.data = r.x, .width = 1}},
         .weight = {expert, expert, expert}, .out = {.data = r.scratch, .width = SIM_IN}},
    };
    static const struct { int op; int32_t id; const char *words; } rows[] = {
        {0, SIM_OUT, "token ids from 0 to 2, found 3"}, {0, -1, "found -1"}, {0, 1, NULL},
        {1, SIM_ROWS, "output rows from 0 to 1, found 2"}, {1, 0, NULL},
        {2, -1, "experts from 0 to 1, found -1"},       {2, 1, "expert 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        st_segment *segment = NULL;
        st_queue *queue = NULL;
        st_segment_source source = {.ops = &bound[rows[i].op], .count = 1, .step = r.step, .step_bytes = 256,
                                    .scratch = r.scratch, .worker_bytes = 256};
        assert_int_equal(card->queue_new(r.device, ST_QUEUE_COMPUTE, &queue, NULL), STRATA_OK);
        assert_int_equal(card->prepare(r.device, &source, &segment, NULL), STRATA_OK);
        memcpy(r.step, r.host_step, r.host_step->bytes);
        r.step->out_count = SIM_ROWS;
        for (int k = 0; k < SIM_ROWS; k++) {
            st_step_rows(r.step)[k].id = ids[k] = rows[i].id;
            st_step_out_rows(r.step)[k] = (uint32_t)rows[i].id;
        }
        assert_int_equal(card->launch(segment, queue, SIM_ROWS, NULL), STRATA_OK);
        strata_status status = drain(&r, queue, &error);
        if (rows[i].words) expect(status, STRATA_DEVICE, &error, rows[i].words);
        else assert_int_equal(status, STRATA_OK);
        card->segment_free(segment);
        card->queue_free(queue);
    }
    close_rig(&r);
}

static void a_segment_may_be_freed_in_flight(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    assert_int_equal(sim_rig_run(&r, true, &error), STRATA_OK);
    assert_int_equal(card->launch(r.segment, r.compute, SIM_ROWS, NULL), STRATA_OK);
    assert_int_equal(card->launch(r.segment, r.compute, SIM_ROWS, NULL), STRATA_OK); /* two launches in flight */
    card->segment_free(r.segment);
    r.segment = NULL;
    assert_int_equal(drain(&r, r.compute, &error), STRATA_OK);
    st_segment_source nothing = {.step = r.step, .scratch = r.scratch};
    assert_int_equal(card->prepare(r.device, &nothing, &r.segment, NULL), STRATA_OK);
    double before = st_sim_world_seconds(r.world);
    assert_int_equal(card->launch(r.segment, r.compute, SIM_ROWS, NULL), STRATA_OK);
    assert_int_equal(drain(&r, r.compute, &error), STRATA_OK);
    check_seconds("a launch of nothing", st_sim_world_seconds(r.world) - before, 0.25 + 0.5);
    assert_int_equal(card->launch(r.segment, r.compute, SIM_ROWS, NULL), STRATA_OK); /* dropped with its queue */
    close_rig(&r);
}

static void counters_synchronise_queues(void **state)
{
    (void)state;
    sim_rig r;
    strata_error error;
    open_rig(&r);
    uint64_t counter = 0;
    assert_int_equal(card->wait(r.compute, &counter, 2, 0, NULL), STRATA_OK);
    assert_int_equal(card->zero(r.compute, r.block, 100, NULL), STRATA_OK);
    assert_int_equal(card->copy(r.up, ST_COPY_UP, r.block, r.host, 100, NULL), STRATA_OK);
    assert_int_equal(card->signal(r.up, &counter, 2, NULL), STRATA_OK);
    assert_int_equal(drain(&r, r.compute, &error), STRATA_OK);
    check_seconds("1 s of copy, then 0.1 s", st_sim_world_seconds(r.world), 1.1 + 0.5);
    assert_int_equal(counter, 2);
    assert_int_equal(r.block[0], 0);
    assert_int_equal(card->wait(r.compute, &counter, 3, 2000000, NULL), STRATA_OK);
    expect(drain(&r, r.compute, &error), STRATA_DEVICE, &error, "2000000");
    close_rig(&r);
}

/* --- the host beside the GPU ------------------------------------------------------------------------------------- */

typedef struct host_rig {
    const st_backend *host;
    st_device *device;
    st_queue *queue;
    st_segment *segment;
    float z[SIM_ROWS * SIM_OUT], y[SIM_ROWS * SIM_OUT];
} host_rig;

/* The same operations over the rig's host memory. */
static void open_host(host_rig *h, sim_rig *r)
{
    *h = (host_rig){.host = st_backend_sim_host()};
    st_device_options options = {.cpu = "ref", .threads = 1, .world = r->world};
    assert_int_equal(h->host->open(&options, &h->device, NULL), STRATA_OK);
    assert_int_equal(h->host->queue_new(h->device, ST_QUEUE_COMPUTE, &h->queue, NULL), STRATA_OK);
    st_bound_op ops[2] = {r->ops[0], r->ops[1]};
    ops[0].in[0].data = r->host_x;
    ops[0].weight[0].data = r->host + 256;
    ops[0].out.data = ops[1].in[0].data = ops[1].in[1].data = h->y;
    ops[1].out.data = h->z;
    static unsigned char scratch[256];
    st_segment_source source = {.ops = ops, .count = 2, .step = r->host_step, .step_bytes = 256,
                                .scratch = scratch, .worker_bytes = 256};
    assert_int_equal(h->host->prepare(h->device, &source, &h->segment, NULL), STRATA_OK);
}

static void close_host(host_rig *h)
{
    h->host->segment_free(h->segment);
    h->host->queue_free(h->queue);
    h->host->close(h->device);
}

static void the_host_shares_the_clock(void **state)
{
    (void)state;
    sim_rig r;
    host_rig h;
    strata_error error;
    open_rig(&r);
    open_host(&h, &r);
    st_sim_options options = sim_options();
    st_device_info info;
    h.host->info(h.device, &info);
    assert_true(info.reads_host_memory);
    st_device_rates rates;
    assert_int_equal(h.host->probe(h.device, &rates, NULL), STRATA_OK);
    assert_true(rates.read_bytes == 500 && rates.int8_ops == 2000);
    void *memory;
    bool pinned = false;
    assert_int_equal(h.host->host_alloc(h.device, 100, &memory, &pinned, NULL), STRATA_OK);
    assert_true(pinned);
    h.host->host_free(h.device, memory);

    double alone = 0;
    for (uint32_t i = 0; i < 2; i++) {
        st_work work = st_work_of(&sim_program, &sim_binding, &sim_program.ops[i], SIM_ROWS, SIM_POSITION, ST_TYPE_F32);
        alone += st_profile_seconds(&options.host, &work);
    }
    assert_int_equal(h.host->launch(h.segment, h.queue, SIM_ROWS, &error), STRATA_OK);
    check_seconds("alone", st_sim_world_seconds(r.world), alone);
    memcpy(r.host_z, h.z, sizeof h.z);
    assert_true(sim_rig_is_right(&r));

    /* The GPU runs while the host works: a copy of 10 bytes takes 0.1 s and leaves the host 400 of its 500 bytes/s. */
    st_event *event = NULL;
    assert_int_equal(card->event_new(r.device, &event, NULL), STRATA_OK);
    assert_int_equal(card->copy(r.up, ST_COPY_UP, r.block, r.host + 1280, 10, NULL), STRATA_OK);
    assert_int_equal(card->event_record(event, r.up, NULL), STRATA_OK);
    assert_int_equal(h.host->launch(h.segment, h.queue, SIM_ROWS, &error), STRATA_OK);
    assert_true(card->event_done(event));
    check_seconds("the copy", card->event_seconds(event), alone + 0.1);
    check_seconds("together", st_sim_world_seconds(r.world), 2 * alone + 10.0 / 500);
    card->event_free(event);

    /* The host's own copies and zeroing use DRAM bandwidth. */
    double before = st_sim_world_seconds(r.world);
    assert_int_equal(h.host->copy(h.queue, ST_COPY_WITHIN, r.host + 1280, r.host, 50, NULL), STRATA_OK);
    assert_int_equal(h.host->zero(h.queue, r.host + 1280, 100, NULL), STRATA_OK);
    check_seconds("moved", st_sim_world_seconds(r.world) - before, 0.4);
    assert_int_equal(r.host[1280], 0);
    close_host(&h);
    close_rig(&r);
}

static void the_host_must_wait_for_its_inputs(void **state)
{
    (void)state;
    sim_rig r;
    host_rig h;
    strata_error error;
    open_rig(&r);
    open_host(&h, &r);
    /* Its input is still being copied down: a wait is missing. */
    assert_int_equal(card->copy(r.compute, ST_COPY_DOWN, r.host_x, r.x, 16, NULL), STRATA_OK);
    expect(h.host->launch(h.segment, h.queue, SIM_ROWS, &error), STRATA_DEVICE, &error, "matmul");
    close_host(&h);
    close_rig(&r);

    /* The host's events and counters. */
    open_rig(&r);
    open_host(&h, &r);
    st_event *event = NULL;
    uint64_t counter = 0;
    assert_int_equal(h.host->event_new(h.device, &event, NULL), STRATA_OK);
    assert_false(h.host->event_done(event));
    expect(h.host->event_wait_host(event, 0, &error), STRATA_DEVICE, &error, "recorded");
    assert_int_equal(card->copy(r.up, ST_COPY_UP, r.block, r.host, 50, NULL), STRATA_OK); /* 0.5 s */
    assert_int_equal(card->signal(r.up, &counter, 1, NULL), STRATA_OK);
    expect(h.host->wait(h.queue, &counter, 1, 250000, &error), STRATA_DEVICE, &error, "250000");
    assert_int_equal(h.host->wait(h.queue, &counter, 1, 0, &error), STRATA_OK);
    assert_int_equal(h.host->event_record(event, h.queue, NULL), STRATA_OK);
    check_seconds("event", h.host->event_seconds(event), 0.5);
    assert_int_equal(h.host->event_wait_queue(event, h.queue, NULL), STRATA_OK);
    expect(h.host->wait(h.queue, &counter, 2, 0, &error), STRATA_DEVICE, &error, "no queue will reach");
    assert_int_equal(h.host->signal(h.queue, &counter, 2, NULL), STRATA_OK);
    assert_int_equal(h.host->wait(h.queue, &counter, 2, 0, &error), STRATA_OK);
    h.host->event_free(event);
    close_host(&h);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_info), cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(allocations_do_not_overlap), cmocka_unit_test(freeing_an_unknown_address_is_an_error),
        cmocka_unit_test(a_gpu_without_free_memory), cmocka_unit_test(the_target_of_a_copy_is_poisoned_until_it_ends),
        cmocka_unit_test(a_large_range_becomes_zeros),
        cmocka_unit_test(a_copy_with_addresses_of_the_wrong_device_is_refused),
        cmocka_unit_test(memory_freed_during_a_copy_is_an_error), cmocka_unit_test(operations_take_the_predicted_time),
        cmocka_unit_test(a_missing_wait_is_an_error), cmocka_unit_test(the_host_reads_poison_without_a_wait),
        cmocka_unit_test(addresses_of_the_host_are_refused), cmocka_unit_test(indices_out_of_range_are_errors),
        cmocka_unit_test(a_segment_may_be_freed_in_flight), cmocka_unit_test(counters_synchronise_queues),
        cmocka_unit_test(the_host_shares_the_clock), cmocka_unit_test(the_host_must_wait_for_its_inputs),
    };
    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
