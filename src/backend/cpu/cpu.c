/* The CPU as a device: memory, queues that complete every operation immediately, and the loop over a segment. */
#include "backend/cpu/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/fast.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/poison.h"

enum { CPU_ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

struct st_device {
    st_pool *pool;
    const st_cpu_kernel *kernels; /* [ST_OP_COUNT] */
    const st_isa *isa;            /* NULL on the reference path */
    const st_isa_split *split;    /* NULL: no fast bfloat16 products */
    const st_isa_panels *panels;  /* NULL: batches in int8 */
    st_scratch_statement scratch;
    const char *name;
    bool profile;
    st_op_time times[ST_OP_COUNT];
};

struct st_queue {
    st_device *device;
    const atomic_bool *flag; /* launches stop when it becomes true; NULL: never */
};

struct st_event {
    double seconds; /* when it was recorded; negative: not recorded yet */
};

struct st_segment {
    st_device *device;
    st_segment_source source; /* its `ops` points to the array below */
    /* [2][source.count]: what the next product behind an operation reads first, for one row, and for a few, which have shorter
     * parts; bytes 0: unknown */
    st_pool_range *expected;
    st_bound_op ops[];
};

/* The CPU levels, best last; the option `cpu` names one. */
typedef struct cpu_level {
    const char *name;
    const st_cpu_kernel *kernels;
    st_scratch_statement scratch;
    const st_isa *(*isa)(void); /* NULL: needs no instruction set. Returns NULL if the CPU lacks it. */
    const st_isa_panels *(*panels)(void); /* NULL: batches in int8. Returns NULL if the CPU lacks a matrix unit. */
} cpu_level;

static const cpu_level levels[] = {
    {"ref", st_cpu_ref_kernels, st_cpu_ref_scratch, NULL, NULL},
    {"avx2", st_cpu_fast_kernels, st_cpu_fast_scratch, st_isa_avx2, NULL},
    {"avxvnni", st_cpu_fast_kernels, st_cpu_fast_scratch, st_isa_avxvnni, NULL},
    {"avx512", st_cpu_fast_kernels, st_cpu_fast_scratch, st_isa_avx512, NULL},
    {"amx", st_cpu_fast_kernels, st_cpu_fast_scratch, st_isa_avx512, st_panels_amx},
};

enum { LEVELS = sizeof levels / sizeof *levels };

static bool level_supported(const cpu_level *level)
{
    return (!level->isa || level->isa()) && (!level->panels || level->panels());
}

/* The level of that name, or the best supported one. */
static const cpu_level *find_level(const char *name)
{
    const cpu_level *found = NULL;
    for (size_t i = 0; i < LEVELS; i++)
        if (level_supported(&levels[i]) && (!name || strcmp(name, levels[i].name) == 0)) found = &levels[i];
    return found;
}

static strata_status refuse_level(const char *name, strata_error *error)
{
    char names[64] = "";
    size_t used = 0;
    for (size_t i = 0; i < LEVELS && used < sizeof names; i++)
        if (level_supported(&levels[i]))
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", levels[i].name);
    return st_error_set(error, STRATA_USAGE, NULL, "options.cpu %s is not supported on this CPU (supported: %s)", name,
                        names);
}

static strata_status cpu_open(const st_device_options *options, st_device **out, strata_error *error)
{
    const cpu_level *level = find_level(options->cpu);
    if (!level) return refuse_level(options->cpu, error);
    st_device *device = st_alloc_zero(1, sizeof *device);
    if (!device) return st_error_memory(error, sizeof *device, "the CPU device");
    device->kernels = level->kernels;
    device->scratch = level->scratch;
    device->isa = level->isa ? level->isa() : NULL;
    device->split = device->isa && device->isa->split ? device->isa->split() : NULL;
    device->panels = level->panels ? level->panels() : NULL;
    device->name = level->name;
    device->profile = options->profile;
    strata_status status = st_pool_new(options->threads, &device->pool, error);
    if (status != STRATA_OK) {
        st_free(device);
        return status;
    }
    *out = device;
    return STRATA_OK;
}

static void cpu_close(st_device *device)
{
    if (!device) return;
    st_pool_free(device->pool);
    st_free(device);
}

static void cpu_info(const st_device *device, st_device_info *out)
{
    st_memory memory = st_memory_now();
    *out = (st_device_info){
        .name = device->name,
        .total_bytes = (size_t)memory.total_bytes,
        .free_bytes = (size_t)memory.available_bytes,
        .alignment = CPU_ALIGNMENT,
        .workers = st_pool_threads(device->pool),
        .reads_host_memory = true,
    };
}

static strata_status cpu_alloc(st_device *device, size_t bytes, void **out, strata_error *error)
{
    (void)device;
    void *memory = st_alloc_aligned(bytes, bytes >= HUGE_PAGE ? HUGE_PAGE : CPU_ALIGNMENT);
    if (!memory) return st_error_memory(error, bytes, "the CPU's memory");
    if (bytes >= HUGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE); /* KV is read sequentially: fewer TLB misses */
    *out = memory;
    return STRATA_OK;
}

static void cpu_free(st_device *device, void *memory)
{
    (void)device;
    st_free(memory);
}

static strata_status cpu_host_alloc(st_device *device, size_t bytes, void **out, bool *pinned, strata_error *error)
{
    strata_status status = cpu_alloc(device, bytes, out, error);
    if (status == STRATA_OK) *pinned = false;
    return status;
}

static strata_status cpu_probe(st_device *device, st_device_rates *out, strata_error *error)
{
    return st_cpu_probe(device, device->pool, device->isa, device->panels, out, error);
}

/* --- queues and events -------------------------------------------------------------------------------------------- */

static strata_status cpu_queue_new(st_device *device, st_queue_kind kind, st_queue **out, strata_error *error)
{
    (void)kind;
    st_queue *queue = st_alloc_zero(1, sizeof *queue);
    if (!queue) return st_error_memory(error, sizeof *queue, "a queue");
    queue->device = device;
    *out = queue;
    return STRATA_OK;
}

static void cpu_queue_free(st_queue *queue)
{
    st_free(queue);
}

static void cpu_queue_watch(st_queue *queue, const atomic_bool *flag)
{
    queue->flag = flag;
}

static void cpu_queue_hold(st_queue *queue, bool hold)
{
    st_pool_keep_awake(queue->device->pool, hold);
}

static strata_status cpu_event_new(st_device *device, st_event **out, strata_error *error)
{
    (void)device;
    st_event *event = st_alloc_zero(1, sizeof *event);
    if (!event) return st_error_memory(error, sizeof *event, "an event");
    event->seconds = -1;
    *out = event;
    return STRATA_OK;
}

static void cpu_event_free(st_event *event)
{
    st_free(event);
}

static strata_status cpu_event_record(st_event *event, st_queue *queue, strata_error *error)
{
    (void)queue;
    (void)error;
    event->seconds = st_clock_seconds();
    return STRATA_OK;
}

static bool cpu_event_done(const st_event *event)
{
    return event->seconds >= 0;
}

static strata_status cpu_event_wait_host(st_event *event, uint64_t limit_us, strata_error *error)
{
    (void)limit_us; /* a recorded event is complete; an unrecorded one never will be */
    if (cpu_event_done(event)) return STRATA_OK;
    return st_error_set(error, STRATA_DEVICE, NULL, "waited for an event that no queue has recorded");
}

static strata_status cpu_event_wait_queue(st_event *event, st_queue *queue, strata_error *error)
{
    (void)queue;
    return cpu_event_wait_host(event, 0, error);
}

static double cpu_event_seconds(const st_event *event)
{
    return event->seconds;
}

static strata_status cpu_copy(st_queue *queue, st_copy_kind kind, void *to, const void *from, size_t bytes,
                              strata_error *error)
{
    (void)queue;
    (void)kind;
    (void)error;
    if (bytes) memmove(to, from, bytes);
    return STRATA_OK;
}

static strata_status cpu_zero(st_queue *queue, void *memory, size_t bytes, strata_error *error)
{
    (void)queue;
    (void)error;
    if (bytes) memset(memory, 0, bytes);
    return STRATA_OK;
}

static strata_status cpu_signal(st_queue *queue, uint64_t *counter, uint64_t value, strata_error *error)
{
    (void)queue;
    (void)error;
    __atomic_store_n(counter, value, __ATOMIC_RELEASE);
    return STRATA_OK;
}

static strata_status cpu_wait(st_queue *queue, uint64_t *counter, uint64_t value, uint64_t limit_us, strata_error *error)
{
    (void)queue;
    double end = st_clock_seconds() + 1e-6 * (double)limit_us;
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < value) {
        if (st_clock_seconds() > end)
            return st_error_set(error, STRATA_DEVICE, NULL, "waited %llu µs for a counter to reach %llu",
                                (unsigned long long)limit_us, (unsigned long long)value);
        sched_yield();
    }
    return STRATA_OK;
}

/* For launches of `rows` rows. Which experts are read is not known before their router ran. */
static void find_expected(const st_segment *segment, uint32_t rows, st_pool_range *out)
{
    st_pool_range next = {0};
    uint32_t threads = st_pool_threads(segment->device->pool);
    for (uint32_t i = segment->source.count; i-- > 0;) {
        out[i] = next;
        const st_bound_op *op = &segment->ops[i];
        uint32_t rest = segment->source.count - i;
        if (!st_cpu_fast_expected(segment->device->isa, op, rest, rows, threads, &next) && op->op->kind == ST_OP_EXPERTS)
            next = (st_pool_range){0};
    }
}

static strata_status cpu_prepare(st_device *device, const st_segment_source *source, st_segment **out,
                                 strata_error *error)
{
    st_segment *segment = st_alloc_zero(1, sizeof *segment + source->count * sizeof *segment->ops);
    if (!segment) return st_error_memory(error, source->count * sizeof *segment->ops, "a segment of the program");
    segment->device = device;
    segment->source = *source;
    memcpy(segment->ops, source->ops, source->count * sizeof *segment->ops);
    segment->source.ops = segment->ops;
    size_t count = source->count;
    segment->expected = st_alloc_zero(2 * count, sizeof *segment->expected);
    if (!segment->expected) {
        st_free(segment);
        return st_error_memory(error, 2 * count * sizeof *segment->expected, "a segment of the program");
    }
    for (uint32_t k = 0; k < 2 && device->isa; k++) find_expected(segment, k + 1, segment->expected + k * count);
    *out = segment;
    return STRATA_OK;
}

static void run_kernel(st_device *device, const st_cpu_call *call)
{
    st_cpu_kernel kernel = device->kernels[call->op->kind];
    if (!device->profile) {
        kernel(call);
        return;
    }
    double start = st_clock_seconds();
    kernel(call);
    st_op_time *time = &device->times[call->op->kind];
    time->seconds += st_clock_seconds() - start;
    time->calls += call->group;
}

static void cpu_times(const st_device *device, st_op_time out[ST_OP_COUNT])
{
    memcpy(out, device->times, sizeof device->times);
}

/* While an operation runs, threads without a part prefetch for the next product, unless that is of a batch. */
static void expect(st_cpu_call *call, const st_pool_range *range)
{
    const st_pool_range *next = range->bytes && call->rows < ST_FEW_ROWS ? range : NULL;
    if (!call->next && !next) return;
    if (!next || !call->next || next->from != call->next->from) st_pool_expect(call->pool, next, next ? 1 : 0);
    call->next = next;
}

static strata_status cpu_launch(st_segment *segment, st_queue *queue, uint32_t rows, strata_error *error)
{
    const st_segment_source *source = &segment->source;
    const st_device *device = segment->device;
    const st_pool_range *expected = segment->expected + (rows > 1 ? source->count : 0);
    strata_status status = STRATA_OK;
    st_cpu_call call = {
        .rows = rows,
        .step = source->step,
        .isa = device->isa,
        .split = device->split,
        .panels = device->panels,
        .pool = device->pool,
        .shared = source->scratch,
        .scratch = (unsigned char *)source->scratch + source->shared_bytes,
        .worker_bytes = source->worker_bytes,
    };
    st_pool_watch(device->pool, queue->flag);
    for (uint32_t i = 0; i < source->count && status == STRATA_OK && !st_pool_skipped(device->pool); i += call.group) {
        call.bound = &segment->ops[i];
        call.op = call.bound->op;
        call.group = call.isa ? st_cpu_fast_group(call.isa, call.bound, source->count - i) : 1;
        expect(&call, &expected[i + call.group - 1]);
        if (ST_POISONS)
            status = st_cpu_scratch_fence(source, st_pool_threads(device->pool), call.op,
                                          device->scratch(call.bound, call.rows), error);
        if (status == STRATA_OK) run_kernel(segment->device, &call);
    }
    st_pool_expect(device->pool, NULL, 0);
    if (ST_POISONS) st_cpu_scratch_unfence(source, st_pool_threads(device->pool));
    if (status == STRATA_OK && st_pool_skipped(device->pool))
        status = st_error_set(error, STRATA_INTERRUPTED, NULL, "the computation was interrupted");
    st_pool_watch(device->pool, NULL);
    return status;
}

static void cpu_segment_free(st_segment *segment)
{
    if (!segment) return;
    st_free(segment->expected);
    st_free(segment);
}

static const st_backend cpu_backend = {
    .version = ST_BACKEND_VERSION,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .scratch = st_cpu_fast_scratch,
    .probe = cpu_probe,
    .times = cpu_times,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_free,
    .queue_new = cpu_queue_new,
    .queue_free = cpu_queue_free,
    .queue_watch = cpu_queue_watch,
    .queue_hold = cpu_queue_hold,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .event_wait_queue = cpu_event_wait_queue,
    .event_done = cpu_event_done,
    .event_wait_host = cpu_event_wait_host,
    .event_seconds = cpu_event_seconds,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .signal = cpu_signal,
    .wait = cpu_wait,
    .prepare = cpu_prepare,
    .launch = cpu_launch,
    .segment_free = cpu_segment_free,
};

const st_backend *st_backend_cpu(void)
{
    return &cpu_backend;
}
