/* What a routed expert of one row costs on the CPU, as those that an expert cache on a GPU lacks: the time of the operation
 * beside that of reading the same bytes, in as many jobs of the thread pool. Experts come from memory: several hundred
 * alternate. Between two launches the caller waits, as it does for a router, and the workers spin.
 *
 * bench_misses [THREADS [WAIT_US]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "quant/row.h"

enum {
    EMBEDDING = 2048,
    WIDTH = 768,
    USED_MAX = 8,
    COPIES = 400, /* experts of 2.7 MB: more than a last-level cache of 300 MiB holds */
    ROUNDS = 300,
};

static st_device *device;
static st_queue *queue;
static st_pool *pool;
static double wait_seconds;
static strata_error error;

static void check(strata_status status)
{
    if (status == STRATA_OK) return;
    fprintf(stderr, "bench_misses: %s\n", error.message);
    exit(1);
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The experts: gate, up and down, one behind the other. */
typedef struct weights {
    st_bound_weight gate, down;
    size_t gate_bytes, down_bytes, bytes; /* of one expert */
    unsigned char *memory;
} weights;

static weights weights_of(st_type type, bool large)
{
    weights w = {.gate = {.info = st_type_find(type), .type = type, .ne = {EMBEDDING, WIDTH, 1}},
                 .down = {.info = st_type_find(type), .type = type, .ne = {WIDTH, EMBEDDING, 1}}};
    st_type_row_bytes(w.gate.info, EMBEDDING, &w.gate.row_bytes);
    st_type_row_bytes(w.down.info, WIDTH, &w.down.row_bytes);
    w.gate_bytes = w.gate.row_bytes * WIDTH;
    w.down_bytes = w.down.row_bytes * EMBEDDING;
    w.bytes = 2 * w.gate_bytes + w.down_bytes;
    w.memory = mmap(NULL, w.bytes * COPIES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w.memory == MAP_FAILED) exit(1);
    madvise(w.memory, w.bytes * COPIES, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(w.memory, 1, w.bytes * COPIES);
    return w;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct reading {
    const unsigned char *from;
    size_t bytes, part;
    uint64_t sums[ST_POOL_THREADS_MAX][8]; /* a cache line for each worker */
} reading;

static void read_part(void *context, uint32_t worker, size_t part)
{
    reading *r = context;
    size_t begin = part * r->part, end = begin + r->part < r->bytes ? begin + r->part : r->bytes;
    uint64_t sum = 0;
    for (size_t at = begin; at + sizeof sum <= end; at += sizeof sum) {
        uint64_t word;
        memcpy(&word, r->from + at, sizeof word);
        sum += word;
    }
    r->sums[worker][0] += sum;
}

static reading *reader;

static void read_bytes(const unsigned char *from, size_t bytes)
{
    uint32_t threads = st_pool_threads(pool);
    reader->from = from;
    reader->bytes = bytes;
    reader->part = (bytes / threads + 63) / 64 * 64;
    st_pool_run(pool, read_part, reader, (bytes + reader->part - 1) / reader->part);
}

/* --- the operation ------------------------------------------------------------------------------------------------- */

typedef struct experts {
    st_op op;
    st_bound_op bound;
    const void *parts[3][USED_MAX];
    float values[2 * EMBEDDING + 2 * USED_MAX];
    st_step *step;
    void *scratch;
    st_segment *segment;
} experts;

static void open_experts(experts *x, const weights *w, uint32_t used)
{
    memset(x, 0, sizeof *x);
    x->op.kind = ST_OP_EXPERTS;
    x->op.p.experts.experts = x->op.p.experts.used = used;
    x->op.p.experts.width = WIDTH;
    x->bound = (st_bound_op){.op = &x->op,
                             .in = {{x->values, EMBEDDING}, {x->values + 2 * EMBEDDING, used},
                                    {x->values + 2 * EMBEDDING + USED_MAX, used}},
                             .out = {x->values + EMBEDDING, EMBEDDING}, .weight = {w->gate, w->gate, w->down}};
    for (int m = 0; m < 3; m++) x->bound.weight[m].parts = x->parts[m];
    for (uint32_t i = 0; i < used; i++) ((int32_t *)x->bound.in[1].data)[i] = (int32_t)i;
    st_step_limits most = {.rows = 1, .out_rows = 1, .conversations = 1, .tables = 1};
    x->step = st_alloc_zero(1, st_step_bytes(&most));
    if (!x->step) exit(1);
    st_step_lay_out(x->step, 1, 1, 1, 1);
    st_device_info info;
    st_backend_cpu()->info(device, &info);
    st_scratch scratch = st_backend_cpu()->scratch(&x->bound, 1);
    scratch.worker_bytes = (scratch.worker_bytes + 255) / 256 * 256;
    scratch.shared_bytes = (scratch.shared_bytes + 255) / 256 * 256;
    check(st_backend_cpu()->alloc(device, scratch.shared_bytes + scratch.worker_bytes * info.workers, &x->scratch, &error));
    st_segment_source source = {.ops = &x->bound, .count = 1, .rows = ST_ROWS_ALL, .step = x->step, .step_bytes = x->step->bytes,
                                .scratch = x->scratch, .shared_bytes = scratch.shared_bytes, .worker_bytes = scratch.worker_bytes};
    check(st_backend_cpu()->prepare(device, &source, &x->segment, &error));
}

static void close_experts(experts *x)
{
    st_backend_cpu()->segment_free(x->segment);
    st_backend_cpu()->free(device, x->scratch);
    st_free(x->step);
}

/* --- timing --------------------------------------------------------------------------------------------------------- */

typedef enum task { READ_ONCE, READ_PASSES, COMPUTE } task;

static void run_once(experts *x, const weights *w, task what, uint32_t used, size_t first)
{
    const unsigned char *from = w->memory + first * w->bytes;
    if (what == READ_ONCE) read_bytes(from, used * w->bytes);
    if (what == READ_PASSES) {
        read_bytes(from, used * 2 * w->gate_bytes);
        read_bytes(from + used * 2 * w->gate_bytes, used * w->down_bytes);
    }
    if (what != COMPUTE) return;
    for (uint32_t i = 0; i < used; i++) {
        x->parts[0][i] = from + i * w->bytes;
        x->parts[1][i] = from + i * w->bytes + w->gate_bytes;
        x->parts[2][i] = from + i * w->bytes + 2 * w->gate_bytes;
    }
    check(st_backend_cpu()->launch(x->segment, queue, 1, &error));
}

/* The median of many, in µs. */
static double time_misses(const weights *w, task what, uint32_t used)
{
    static double times[ROUNDS];
    experts *x = st_alloc_zero(1, sizeof *x);
    if (!x) exit(1);
    open_experts(x, w, used);
    for (size_t i = 0; i < ROUNDS; i++) {
        size_t first = i * used % (COPIES - USED_MAX);
        double start = st_clock_seconds() + wait_seconds;
        while (st_clock_seconds() < start) continue;
        start = st_clock_seconds();
        run_once(x, w, what, used, first);
        times[i] = 1e6 * (st_clock_seconds() - start);
    }
    close_experts(x);
    st_free(x);
    qsort(times, ROUNDS, sizeof *times, compare_numbers);
    return times[ROUNDS / 2];
}

static void do_nothing(void *context, uint32_t worker, size_t part)
{
    (void)context;
    (void)worker;
    (void)part;
}

static double time_empty(void)
{
    static double times[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++) {
        double start = st_clock_seconds() + wait_seconds;
        while (st_clock_seconds() < start) continue;
        start = st_clock_seconds();
        st_pool_run(pool, do_nothing, NULL, st_pool_threads(pool));
        times[i] = 1e6 * (st_clock_seconds() - start);
    }
    qsort(times, ROUNDS, sizeof *times, compare_numbers);
    return times[ROUNDS / 2];
}

static void time_pages(bool large)
{
    static const uint32_t used[] = {1, 2, 4, 8};
    weights w = weights_of(ST_TYPE_Q4_K, large);
    const st_backend *backend = st_backend_cpu();
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        double bytes = (double)used[i] * (double)w.bytes * 1e-3; /* over µs: GB/s */
        st_pool_keep_awake(pool, true); /* the workers of one pool at a time: the others would take their cores */
        double once = time_misses(&w, READ_ONCE, used[i]), passes = time_misses(&w, READ_PASSES, used[i]);
        st_pool_keep_awake(pool, false);
        if (backend->queue_hold) backend->queue_hold(queue, true);
        double computed = time_misses(&w, COMPUTE, used[i]);
        if (backend->queue_hold) backend->queue_hold(queue, false);
        printf("%-6s %7u %8.1f %6.1f %8.1f %6.1f %8.1f %6.1f\n", large ? "large" : "small", used[i], once, bytes / once, passes,
               bytes / passes, computed, bytes / computed);
    }
    munmap(w.memory, w.bytes * COPIES);
}

int main(int argc, char **argv)
{
    st_device_options options = {.threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 0};
    wait_seconds = 1e-6 * (argc > 2 ? atoi(argv[2]) : 60);
    check(st_backend_cpu()->open(&options, &device, &error));
    check(st_backend_cpu()->queue_new(device, ST_QUEUE_COMPUTE, &queue, &error));
    check(st_pool_new(options.threads, &pool, &error));
    reader = st_alloc_zero(1, sizeof *reader);
    if (!reader) return 1;
    st_pool_keep_awake(pool, true);
    printf("an empty job of %u threads, %.0f µs apart: %.2f µs\n", st_pool_threads(pool), 1e6 * wait_seconds, time_empty());
    st_pool_keep_awake(pool, false);
    printf("%-6s %7s %15s %15s %15s\n%-6s %7s %8s %6s %8s %6s %8s %6s\n", "", "", "read: one job", "two jobs", "computed", "pages",
           "experts", "µs", "GB/s", "µs", "GB/s", "µs", "GB/s");
    time_pages(true);
    time_pages(false);
    st_free(reader);
    st_pool_free(pool);
    st_backend_cpu()->queue_free(queue);
    st_backend_cpu()->close(device);
    return 0;
}
