/* Opens a model, runs eight tokens and closes it, many times, on the simulated GPU or the backend of support/mirror.h.
 * An open model takes exactly the planned bytes of the device, and closing it frees all of them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/golden.h"
#include "support/mirror.h"

enum { TOKENS = 8, WARM_UP = 5, CYCLES = 50, GROWTH_MAX = 2 << 20 };

/* The free bytes of a device that stays open, so that its context does, too; 0: the backend does not report them. */
static size_t free_bytes(void)
{
    st_device_info info;
    if (!mirror_name() || mirror_backend() == st_backend_cpu()) return 0;
    mirror_backend()->info(mirror_device(), &info);
    return info.free_bytes;
}

/* Bytes of the process in RAM. */
static size_t resident_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void expect_taken(size_t before, size_t bytes, const char *moment)
{
    size_t now = free_bytes();
    if (before && before - now != bytes)
        fail_msg("%s: expected %zu bytes of the device in use, found %zd", moment, bytes, (ssize_t)(before - now));
}

static void cycle(const golden *g, const st_plan_options *placed)
{
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = TOKENS, .threads = 1, .cpu = "ref", .placed = placed};
    size_t before = free_bytes();
    golden_run r;
    golden_run_open(&r, g, &options); /* compares with the simulated device's free bytes */
    size_t block = r.plan->devices[ST_CARD].block_bytes;
    expect_taken(before, block, "a model is open");
    golden_feed(&r, 0, TOKENS, NULL);
    expect_taken(before, block, "after eight tokens");
    golden_run_close(&r);
    expect_taken(before, 0, "closed again");
}

static void cycles(const char *name, st_moe_mode moe)
{
    golden g;
    assert_true(golden_open(&g, name));
    st_plan_options placed = st_plan_options_default();
    placed.layers = ST_LAYERS_ALL;
    placed.moe = moe;
    if (moe == ST_MOE_CACHE) placed.expert_slots = 3;
    for (int i = 0; i < WARM_UP; i++) cycle(&g, &placed);
    size_t start = resident_bytes(), bytes = free_bytes();
    for (int i = 0; i < (mirror_name() ? CYCLES : WARM_UP); i++) cycle(&g, &placed);
    size_t grown = resident_bytes() > start ? resident_bytes() - start : 0;
    if (mirror_name()) { /* the sanitizers find leaks themselves, and keep freed memory */
        print_message("# %s: %zu bytes of the device lost, the process is %zu larger\n", name, bytes - free_bytes(), grown);
        assert_true(grown <= GROWTH_MAX);
    }
    golden_close(&g);
}

/* Segments of a layer each, as a plan with an expert cache has them; frees them again. Returns the bytes they took. */
static size_t take_segments(unsigned char *memory, size_t before)
{
    enum { SEGMENTS = 64, OPERATIONS = 16 };
    const st_backend *b = mirror_backend();
    st_segment *segments[SEGMENTS];
    st_bound_op ops[OPERATIONS];
    static const st_op add = {.kind = ST_OP_ADD};
    for (int i = 0; i < OPERATIONS; i++)
        ops[i] = (st_bound_op){.op = &add, .in = {{memory, 1}, {memory, 1}}, .out = {memory, 1}};
    st_segment_source source = {.ops = ops, .count = OPERATIONS, .step = (st_step *)(void *)memory, .step_bytes = sizeof(st_step)};
    for (int i = 0; i < SEGMENTS; i++) assert_int_equal(b->prepare(mirror_device(), &source, &segments[i], NULL), STRATA_OK);
    size_t taken = before - free_bytes();
    for (int i = 0; i < SEGMENTS; i++) b->segment_free(segments[i]);
    return taken;
}

/* Objects of the backend take no device memory, or the plan would have to count it. */
static void objects(void **state)
{
    (void)state;
    enum { QUEUES = 6, EVENTS = 128, PINNED = 64 << 20 };
    if (!free_bytes()) skip();
    const st_backend *b = mirror_backend();
    st_device *device = mirror_device();
    st_queue *queues[QUEUES];
    st_event *events[EVENTS];
    unsigned char *memory = st_alloc_aligned(PINNED, 4096);
    void *host;
    bool pinned = false;
    assert_non_null(memory);
    memset(memory, 1, PINNED);
    size_t before = free_bytes();
    for (int i = 0; i < QUEUES; i++) {
        assert_int_equal(b->queue_new(device, ST_QUEUE_UP, &queues[i], NULL), STRATA_OK);
        print_message("# %d queues: %zd bytes\n", i + 1, (ssize_t)(before - free_bytes()));
    }
    for (int i = 0; i < EVENTS; i++) assert_int_equal(b->event_new(device, &events[i], NULL), STRATA_OK);
    print_message("# and %d events: %zd bytes\n", EVENTS, (ssize_t)(before - free_bytes()));
    assert_int_equal(b->host_alloc(device, PINNED, &host, &pinned, NULL), STRATA_OK);
    print_message("# and %d bytes pinned: %zd bytes\n", PINNED, (ssize_t)(before - free_bytes()));
    if (b->host_pin) assert_int_equal(b->host_pin(device, memory, PINNED, &pinned, NULL), STRATA_OK);
    print_message("# and as many pinned in place (%d): %zd bytes\n", pinned, (ssize_t)(before - free_bytes()));
    size_t taken = take_segments(host, before);
    print_message("# and segments: %zd bytes\n", (ssize_t)taken);
    if (b->host_unpin) b->host_unpin(device, memory);
    b->host_free(device, host);
    for (int i = 0; i < EVENTS; i++) b->event_free(events[i]);
    for (int i = 0; i < QUEUES; i++) b->queue_free(queues[i]);
    print_message("# and freed: %zd bytes\n", (ssize_t)(before - free_bytes()));
    st_free(memory);
    assert_int_equal(taken, 0);
}

static void all_on_the_gpu(void **state)
{
    (void)state;
    cycles("qwen35", ST_MOE_AUTO);
}

static void experts_in_slots(void **state)
{
    (void)state;
    cycles("qwen3moe", ST_MOE_CACHE);
}

/* Streams take memory that the context keeps. Here two devices are open at a time, in a program one: the memory that the
 * second one takes when it is opened is in use from the first cycle on. */
static int open_twice(void **state)
{
    (void)state;
    st_device *second = NULL;
    if (!free_bytes()) return 0;
    if (mirror_backend()->open(&(st_device_options){0}, &second, NULL) != STRATA_OK) return -1;
    mirror_backend()->close(second);
    return 0;
}

static int close_mirror(void **state)
{
    (void)state;
    mirror_close();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(objects), cmocka_unit_test(all_on_the_gpu),
                                       cmocka_unit_test(experts_in_slots)};
    return kit_run("cycles", tests, sizeof tests / sizeof *tests, open_twice, close_mirror, argc, argv);
}
