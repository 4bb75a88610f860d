/* src/backend/cpu/cpu.c: the CPU as a device. Memory, queues, events, counters, and segments of operations. */
#include "support/kit.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/fast.h"
#include "backend/cpu/parts.h"
#include "base/alloc.h"
#include "base/fault.h"
#include "support/steps.h"

static st_device *open_device(uint32_t threads)
{
    st_device *device = NULL;
    strata_error error;
    st_device_options options = {.cpu = "ref", .threads = threads};
    if (st_backend_cpu()->open(&options, &device, &error) != STRATA_OK) fail_msg("%s", error.message);
    return device;
}

static st_queue *open_queue(st_device *device)
{
    st_queue *queue = NULL;
    assert_int_equal(st_backend_cpu()->queue_new(device, ST_QUEUE_COMPUTE, &queue, NULL), STRATA_OK);
    return queue;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void device_info_states_kernels_and_workers(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    assert_int_equal(cpu->version, ST_BACKEND_VERSION);
    assert_string_equal(cpu->name, "cpu");
    st_device *device = open_device(3);
    st_device_info info;
    cpu->info(device, &info);
    assert_string_equal(info.name, "ref");
    assert_int_equal(info.workers, 3);
    assert_true(info.reads_host_memory);
    assert_true(info.total_bytes > 0 && info.free_bytes <= info.total_bytes);
    assert_true(info.alignment >= 64 && (info.alignment & (info.alignment - 1)) == 0);
    for (int kind = 0; kind < ST_OP_COUNT; kind++) /* equals the host's profile */
        assert_true(st_cpu_ref_kernels[kind] && st_cpu_fast_kernels[kind]);
    cpu->close(device);
    cpu->close(NULL);
}

static void kernels_by_name(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    st_device *device = NULL;
    strata_error error;
    assert_int_equal(cpu->open(&(st_device_options){.cpu = "abacus", .threads = 1}, &device, &error), STRATA_USAGE);
    assert_null(device);
    assert_non_null(strstr(error.message, "ref"));
    assert_non_null(strstr(error.message, "abacus"));
    assert_int_equal(cpu->open(&(st_device_options){.threads = 1}, &device, &error), STRATA_OK);
    cpu->close(device);
    device = NULL;
    assert_int_equal(cpu->open(&(st_device_options){.cpu = "ref", .threads = 5000}, &device, &error), STRATA_USAGE);
    assert_null(device);
}

static void memory_is_aligned_and_moves(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    st_device *device = open_device(1);
    st_queue *queue = open_queue(device);
    st_device_info info;
    cpu->info(device, &info);
    static const size_t sizes[] = {0, 1, 63, 64, 65, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *block = NULL, *host = NULL;
        bool pinned = true;
        assert_int_equal(cpu->alloc(device, sizes[i], &block, NULL), STRATA_OK);
        assert_int_equal(cpu->host_alloc(device, sizes[i], &host, &pinned, NULL), STRATA_OK);
        assert_int_equal((uintptr_t)block % info.alignment, 0);
        assert_false(pinned);
        if (sizes[i]) memset(host, 0x5A, sizes[i]);
        assert_int_equal(cpu->copy(queue, ST_COPY_UP, block, host, sizes[i], NULL), STRATA_OK);
        if (sizes[i]) assert_memory_equal(block, host, sizes[i]);
        assert_int_equal(cpu->zero(queue, block, sizes[i], NULL), STRATA_OK);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(((unsigned char *)block)[k], 0);
        cpu->host_free(device, host);
        cpu->free(device, block);
    }
    char text[] = "abcdefgh"; /* copies within a block may overlap */
    assert_int_equal(cpu->copy(queue, ST_COPY_WITHIN, text + 2, text, 5, NULL), STRATA_OK);
    assert_string_equal(text, "ababcdeh");
    cpu->queue_free(queue);
    cpu->close(device);
}

static void events_complete_in_queue_order(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    st_device *device = open_device(1);
    st_queue *queue = open_queue(device);
    st_event *first = NULL, *second = NULL;
    strata_error error = {0};
    assert_int_equal(cpu->event_new(device, &first, NULL), STRATA_OK);
    assert_int_equal(cpu->event_new(device, &second, NULL), STRATA_OK);
    assert_false(cpu->event_done(first));
    assert_int_equal(cpu->event_wait_host(first, 1000, &error), STRATA_DEVICE);
    assert_int_equal(error.status, STRATA_DEVICE);
    assert_int_equal(cpu->event_record(first, queue, NULL), STRATA_OK);
    assert_true(cpu->event_done(first));
    assert_int_equal(cpu->event_wait_host(first, 0, NULL), STRATA_OK);
    assert_int_equal(cpu->event_wait_queue(first, queue, NULL), STRATA_OK);
    usleep(2000);
    assert_int_equal(cpu->event_record(second, queue, NULL), STRATA_OK);
    double between = cpu->event_seconds(second) - cpu->event_seconds(first);
    assert_true(between >= 0.002);
    cpu->event_free(first);
    cpu->event_free(second);
    cpu->queue_free(queue);
    cpu->close(device);
}

typedef struct hand_over {
    st_queue *queue;
    uint64_t *counter;
} hand_over;

static void *signal_later(void *context)
{
    hand_over *h = context;
    usleep(20000);
    st_backend_cpu()->signal(h->queue, h->counter, 3, NULL);
    return NULL;
}

static void counters_synchronise_queues(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    st_device *device = open_device(1);
    st_queue *one = open_queue(device), *two = open_queue(device);
    uint64_t counter = 0;
    strata_error error = {0};
    double start = seconds();
    assert_int_equal(cpu->wait(one, &counter, 1, 20000, &error), STRATA_DEVICE);
    double waited = seconds() - start;
    assert_true(waited >= 0.02);
    assert_non_null(strstr(error.message, "20000"));
    assert_int_equal(cpu->signal(one, &counter, 2, NULL), STRATA_OK);
    assert_int_equal(counter, 2);
    assert_int_equal(cpu->wait(two, &counter, 1, 0, NULL), STRATA_OK); /* the counter has already passed 1 */
    assert_int_equal(cpu->wait(two, &counter, 2, 0, NULL), STRATA_OK);
    pthread_t thread;
    hand_over h = {one, &counter};
    assert_int_equal(pthread_create(&thread, NULL, signal_later, &h), 0);
    assert_int_equal(cpu->wait(two, &counter, 3, 3600u * 1000000, &error), STRATA_OK);
    pthread_join(thread, NULL);
    cpu->queue_free(one);
    cpu->queue_free(two);
    cpu->close(device);
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

enum { WIDTH = 5, ROWS = 4 };

static void a_prepared_segment_runs_repeatedly(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    st_device *device = open_device(2);
    st_queue *queue = open_queue(device);
    float a[ROWS][WIDTH], b[ROWS][WIDTH], out[ROWS][WIDTH];
    st_op ops[2] = {{.kind = ST_OP_ADD}, {.kind = ST_OP_SCALE}};
    ops[1].p.scale.factor = 2;
    st_bound_op bound[2] = {
        {.op = &ops[0], .in = {{a, WIDTH}, {b, WIDTH}}, .out = {out, WIDTH}},
        {.op = &ops[1], .in = {{out, WIDTH}}, .out = {out, WIDTH}},
    };
    st_step *step = step_rows(ROWS, 0);
    for (int kind = 0; kind < 2; kind++) {
        st_segment *segment = NULL;
        st_segment_source source = {.ops = bound, .count = 2, .rows = (st_rows)kind, .step = step, .step_bytes = step->bytes};
        st_bound_op kept = bound[0];
        assert_int_equal(cpu->prepare(device, &source, &segment, NULL), STRATA_OK);
        bound[0] = (st_bound_op){0}; /* prepare has copied it */
        for (uint32_t rows = 1; rows <= ROWS; rows++) {
            step->count = kind == ST_ROWS_ALL ? rows : ROWS;
            step->out_count = kind == ST_ROWS_ALL ? 0 : rows;
            for (int r = 0; r < ROWS; r++)
                for (int i = 0; i < WIDTH; i++)
                    a[r][i] = (float)(rows + (uint32_t)(r * 10)), b[r][i] = (float)i, out[r][i] = -1;
            assert_int_equal(cpu->launch(segment, queue, rows, NULL), STRATA_OK);
            for (uint32_t r = 0; r < ROWS; r++)
                for (int i = 0; i < WIDTH; i++) assert_true(out[r][i] == (r < rows ? 2 * (a[r][i] + b[r][i]) : -1));
        }
        bound[0] = kept;
        cpu->segment_free(segment);
    }
    st_free(step);
    cpu->segment_free(NULL);
    cpu->queue_free(queue);
    cpu->close(device);
}

/* Idle threads prefetch where parts begin, for each number of rows. */
static void parts_begin_where_they_are_expected(void **state)
{
    (void)state;
    enum { COLUMNS = 24576, BLOCKS = 128, THREADS = 16, MOST_BYTES = 384 << 10 };
    const st_isa *isa = st_isa_avx2();
    if (!isa) skip();
    st_op op = {.kind = ST_OP_MATMUL};
    st_bound_op bound = {.op = &op, .in[0] = {.width = BLOCKS * 32}, .out = {.width = COLUMNS}};
    const st_type_info *info = st_type_find(ST_TYPE_Q4_0);
    bound.weight[0] = (st_bound_weight){.info = info, .type = ST_TYPE_Q4_0, .ne = {BLOCKS * 32, COLUMNS, 1}, .row_bytes = BLOCKS * info->bytes};
    for (uint32_t rows = 1; rows < ST_FEW_ROWS; rows++) {
        st_parts parts;
        st_pool_range range;
        st_parts_cut(&parts, &(st_parts_of){COLUMNS, 16, BLOCKS * info->bytes, rows > 1 ? MOST_BYTES : 0}, THREADS);
        assert_true(st_cpu_fast_expected(isa, &bound, 1, rows, THREADS, &range));
        for (uint32_t i = 0; i < THREADS; i++)
            assert_int_equal(i * range.step, st_parts_at(&parts, i).first * BLOCKS * info->bytes);
        assert_int_equal(range.bytes, ST_EXPECTED_BYTES);
        assert_int_equal(range.all, COLUMNS * BLOCKS * info->bytes);
    }
    op.kind = ST_OP_ADD;
    assert_false(st_cpu_fast_expected(isa, &bound, 1, 1, THREADS, &(st_pool_range){0}));
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    st_device *device = open_device(1), *other = NULL;
    st_queue *queue = NULL;
    st_event *event = NULL;
    st_segment *segment = NULL;
    void *memory = NULL;
    bool pinned;
    st_device_options options = {.cpu = "ref", .threads = 2};
    for (uint64_t nth = 1; nth <= 3; nth++) {
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = cpu->open(&options, &other, NULL);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        assert_int_equal(status, STRATA_MEMORY);
        assert_null(other);
    }
    st_segment_source source = {.ops = &(st_bound_op){0}, .count = 1};
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    strata_status found[] = {cpu->alloc(device, 10, &memory, NULL),
                             cpu->host_alloc(device, 10, &memory, &pinned, NULL),
                             cpu->queue_new(device, ST_QUEUE_UP, &queue, NULL),
                             cpu->event_new(device, &event, NULL),
                             cpu->prepare(device, &source, &segment, NULL)};
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) assert_int_equal(found[i], STRATA_MEMORY);
    assert_true(!memory && !queue && !event && !segment);
    cpu->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_info_states_kernels_and_workers), cmocka_unit_test(kernels_by_name),
        cmocka_unit_test(memory_is_aligned_and_moves), cmocka_unit_test(events_complete_in_queue_order),
        cmocka_unit_test(counters_synchronise_queues), cmocka_unit_test(a_prepared_segment_runs_repeatedly),
        cmocka_unit_test(parts_begin_where_they_are_expected), cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
