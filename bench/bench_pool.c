/* The cost of one fork-join of the thread pool, for consecutive jobs as in decoding: an empty job, whose parts one
 * thread may run alone, and a barrier job, whose parts wait for each other, so that every thread must run one. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/pool.h"

enum { JOBS = 5000, RUNS = 15 };

static void do_nothing(void *context, uint32_t worker, size_t part)
{
    (void)context;
    (void)worker;
    (void)part;
}

typedef struct barrier {
    _Atomic size_t come;
    size_t expected;
} barrier;

static void wait_at_barrier(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    (void)part;
    barrier *m = context;
    atomic_fetch_add(&m->come, 1);
    while (atomic_load(&m->come) < m->expected) continue;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_jobs(st_pool *pool, st_pool_job job, size_t parts)
{
    barrier m = {.expected = parts};
    double start = st_clock_seconds();
    for (int i = 0; i < JOBS; i++) {
        atomic_store_explicit(&m.come, 0, memory_order_relaxed);
        st_pool_run(pool, job, &m, parts);
    }
    return (st_clock_seconds() - start) / JOBS * 1e6; /* µs */
}

static void measure(const char *what, st_pool_job job, uint32_t threads, size_t parts_per_thread)
{
    st_pool *pool = NULL;
    strata_error error;
    if (st_pool_new(threads, &pool, &error) != STRATA_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    double times[RUNS];
    size_t parts = st_pool_threads(pool) * parts_per_thread;
    for (int run = 0; run < RUNS; run++) times[run] = time_jobs(pool, job, parts);
    qsort(times, RUNS, sizeof *times, compare_numbers);
    char name[64];
    snprintf(name, sizeof name, "%s: %u threads, %zu parts", what, st_pool_threads(pool), parts);
    printf("%-40s %9.3f µs  (median of %d; %.3f – %.3f)\n", name, times[RUNS / 2], RUNS, times[0], times[RUNS - 1]);
    st_pool_free(pool);
}

int main(void)
{
    measure("fork-join", do_nothing, 2, 1);
    measure("fork-join", do_nothing, 0, 1);
    measure("fork-join", do_nothing, 0, 8);
    measure("barrier", wait_at_barrier, 2, 1);
    measure("barrier", wait_at_barrier, 0, 1);
    return 0;
}
