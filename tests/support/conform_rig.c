#include "support/conform_rig.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "support/mirror.h"

enum { SCRATCH_BYTES = 1 << 24, FENCE_BYTES = 256, WORKERS = 2 };

/* --- one operation on one device ------------------------------------------------------------------------------------------------ */

/* The devices of the levels, opened once; an empty one ends the list. */
static struct { const char *cpu; st_device *device; } devices[8];

static st_device *device_of(const char *cpu)
{
    size_t i = 0;
    for (; devices[i].cpu; i++)
        if (strcmp(devices[i].cpu, cpu) == 0) return devices[i].device;
    strata_error error;
    st_device_options options = {.cpu = cpu, .threads = WORKERS};
    if (st_backend_cpu()->open(&options, &devices[i].device, &error) != STRATA_OK) fail_msg("%s", error.message);
    devices[i].cpu = cpu;
    return devices[i].device;
}

static void *scratch;

uint32_t conform_rounds(void)
{
    return kit_is_slow() ? 3 : mirror_name() ? 12 : 5;
}

void conform_close(void)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) st_backend_cpu()->close(devices[i].device);
    memset(devices, 0, sizeof devices);
    mirror_close();
    st_free(scratch);
    scratch = NULL;
}

void run_op(const char *cpu, const st_bound_op *bound, st_step *step)
{
    run_segment(cpu, bound, 1, step);
}

void run_segment(const char *cpu, const st_bound_op *ops, uint32_t count, st_step *step)
{
    if (mirror_name() && strcmp(cpu, mirror_name()) == 0) {
        mirror_run(ops, count, ST_ROWS_ALL, step);
        return;
    }
    const st_backend *backend = st_backend_cpu();
    strata_error error;
    st_device *device = device_of(cpu);
    if (!scratch) scratch = st_alloc_aligned(SCRATCH_BYTES, 64);
    assert_non_null(scratch);
    st_queue *queue = NULL;
    st_segment *segment = NULL;
    st_scratch stated = {0};
    for (uint32_t i = 0; i < count; i++) {
        st_scratch more = backend->scratch(&ops[i], step->count);
        if (stated.shared_bytes < more.shared_bytes) stated.shared_bytes = more.shared_bytes;
        if (stated.worker_bytes < more.worker_bytes) stated.worker_bytes = more.worker_bytes;
    }
    st_segment_source source = {.ops = ops, .count = count, .rows = ST_ROWS_ALL, .step = step,
                                .step_bytes = step->bytes, .scratch = scratch,
                                .shared_bytes = (stated.shared_bytes + 63) / 64 * 64 + FENCE_BYTES,
                                .worker_bytes = (stated.worker_bytes + 63) / 64 * 64 + FENCE_BYTES};
    if (source.shared_bytes + WORKERS * source.worker_bytes > SCRATCH_BYTES) fail_msg("scratch for the tests is too small");
    if (backend->queue_new(device, ST_QUEUE_COMPUTE, &queue, &error) != STRATA_OK ||
        backend->prepare(device, &source, &segment, &error) != STRATA_OK ||
        backend->launch(segment, queue, step->count, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    backend->segment_free(segment);
    backend->queue_free(queue);
}

bool level_is_here(const char *cpu)
{
    if (mirror_name()) return true; /* a missing backend is a failure */
    st_device_options options = {.cpu = cpu, .threads = 1};
    st_device *device = NULL;
    if (st_backend_cpu()->open(&options, &device, NULL) != STRATA_OK) return false;
    st_backend_cpu()->close(device);
    return true;
}

/* ‖a−b‖/‖b‖ */
double distance(const float *a, const float *b, size_t count)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(error / (norm > 0 ? norm : 1));
}

/* --- what a test found -------------------------------------------------------------------------------------------------------- */

/* The comparisons of one kind in the running test. */
typedef struct tally {
    const char *what;
    double worst, error_max; /* the largest error against its bound */
    uint32_t compared, failed;
} tally;

enum { TALLIES_MAX = 32 };

static tally tallies[TALLIES_MAX];
static size_t tally_count;

static tally *tally_of(const char *what, double error_max)
{
    for (size_t i = 0; i < tally_count; i++)
        if (strcmp(tallies[i].what, what) == 0 && tallies[i].error_max == error_max) return &tallies[i];
    assert_true(tally_count < TALLIES_MAX);
    tallies[tally_count] = (tally){.what = what, .error_max = error_max};
    return &tallies[tally_count++];
}

void note(const char *cpu, const char *what, double error, double error_max, uint32_t rows, uint64_t seed)
{
    tally *t = tally_of(what, error_max);
    t->compared++;
    if (!(error <= t->worst)) t->worst = error;
    if (error <= error_max) return;
    t->failed++;
    print_message("# %s, %s: error %g, expected %g; %u rows, seed %llu\n", cpu, what, error, error_max, rows,
                  (unsigned long long)seed);
}

/* At the end of a test: what a backend reached, and whether that is enough. */
void conclude(void)
{
    uint32_t failed = 0;
    for (size_t i = 0; i < tally_count; i++) {
        const tally *t = &tallies[i];
        failed += t->failed;
        if (mirror_name())
            print_message("# error %-28s %9.2e of %.0e in %u comparisons, %u failed\n", t->what, t->worst, t->error_max,
                          t->compared, t->failed);
    }
    tally_count = 0;
    if (failed) fail_msg("%u comparisons failed", failed);
}

/* Runs the operation on `cpu` and compares with what is expected of it, which is freed. */
void compare_with(float *expected, const char *cpu, const char *what, st_bound_op *bound, st_step *step,
                         double error_max, uint64_t seed)
{
    size_t count = (size_t)step->count * bound->out.width;
    float *found = st_alloc_zero(count, sizeof *found);
    assert_non_null(found);
    bound->out.data = found;
    run_op(cpu, bound, step);
    note(cpu, what, distance(found, expected, count), error_max, step->count, seed);
    st_free(expected);
    st_free(found);
}

/* What the reference makes of an operation. The caller frees it. */
float *run_plainly(st_bound_op *bound, st_step *step)
{
    float *out = st_alloc_zero((size_t)step->count * bound->out.width, sizeof *out);
    assert_non_null(out);
    bound->out.data = out;
    run_op("ref", bound, step);
    return out;
}

/* Runs the operation on the reference and on `cpu`, and compares. */
void compare(const char *cpu, const char *what, st_bound_op *bound, st_step *step, double error_max, uint64_t seed)
{
    compare_with(run_plainly(bound, step), cpu, what, bound, step, error_max, seed);
}
