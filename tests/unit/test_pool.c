/* src/base/pool.c: every part exactly once, by a worker that exists, however many threads there are. */
#include "support/kit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/pool.h"

enum { PARTS_MAX = 5000, WORKERS_MAX = 8 };

typedef struct job {
    _Atomic uint32_t runs[PARTS_MAX];
    _Atomic uint32_t inside[WORKERS_MAX]; /* a worker runs one part at a time */
    _Atomic uint32_t wrong;
    uint32_t threads;
} job;

static void count_part(void *context, uint32_t worker, size_t part)
{
    job *j = context;
    if (worker >= j->threads || part >= PARTS_MAX || atomic_fetch_add(&j->inside[worker], 1) != 0) j->wrong++;
    atomic_fetch_add(&j->runs[part], 1);
    atomic_fetch_sub(&j->inside[worker], 1);
}

static job the_job;

static void every_part_runs_once(void **state)
{
    (void)state;
    static const size_t parts[] = {0, 1, 2, 3, 7, 8, 9, 64, 1000, PARTS_MAX};
    for (uint32_t threads = 1; threads <= WORKERS_MAX; threads++) {
        st_pool *pool = NULL;
        assert_int_equal(st_pool_new(threads, &pool, NULL), STRATA_OK);
        assert_int_equal(st_pool_threads(pool), threads);
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            memset(&the_job, 0, sizeof the_job);
            the_job.threads = threads;
            st_pool_run(pool, count_part, &the_job, parts[p]);
            assert_int_equal(the_job.wrong, 0);
            for (size_t i = 0; i < PARTS_MAX; i++) assert_int_equal(the_job.runs[i], i < parts[p]);
        }
        st_pool_free(pool);
    }
}

static void add_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    atomic_fetch_add((_Atomic uint64_t *)context, part + 1);
}

/* When run returns, all is done: a job that follows at once must not meet workers of the last. */
static void many_short_jobs(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 8};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        st_pool *pool = NULL;
        assert_int_equal(st_pool_new(threads[t], &pool, NULL), STRATA_OK);
        for (uint64_t round = 0; round < 3000; round++) {
            _Atomic uint64_t sum = 0;
            uint64_t parts = round % 5;
            st_pool_run(pool, add_part, &sum, parts);
            assert_int_equal(sum, parts * (parts + 1) / 2);
        }
        st_pool_free(pool);
    }
}

/* --- a million short jobs from two threads: none is lost, none hangs -------------------------------------- */

enum { JOBS = 500000 }; /* of each caller */

typedef struct caller {
    st_pool *pool;
    pthread_mutex_t *turn; /* whoever shares the pool takes turns; NULL: it is the caller's own */
    pthread_t thread;
    uint64_t wrong;
} caller;

static void *run_short_jobs(void *context)
{
    caller *c = context;
    for (uint64_t round = 0; round < JOBS; round++) {
        _Atomic uint64_t sum = 0;
        uint64_t parts = 2 + round % 3;
        if (c->turn) pthread_mutex_lock(c->turn);
        st_pool_run(c->pool, add_part, &sum, parts);
        if (c->turn) pthread_mutex_unlock(c->turn);
        if (sum != parts * (parts + 1) / 2) c->wrong++;
    }
    return NULL;
}

static void run_two_callers(caller callers[2])
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&callers[i].thread, NULL, run_short_jobs, &callers[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].wrong, 0);
    }
}

/* As sessions of one engine do. */
static void two_callers_take_turns(void **state)
{
    (void)state;
    st_pool *pool = NULL;
    pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    assert_int_equal(st_pool_new(2, &pool, NULL), STRATA_OK);
    caller callers[2] = {{.pool = pool, .turn = &turn}, {.pool = pool, .turn = &turn}};
    run_two_callers(callers);
    st_pool_free(pool);
}

/* As two engines do: more threads than the machine may have cores. */
static void two_callers_with_a_pool_each(void **state)
{
    (void)state;
    st_pool *pools[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) assert_int_equal(st_pool_new(2, &pools[i], NULL), STRATA_OK);
    caller callers[2] = {{.pool = pools[0]}, {.pool = pools[1]}};
    run_two_callers(callers);
    for (int i = 0; i < 2; i++) st_pool_free(pools[i]);
}

/* Workers that fell asleep between jobs come back, and a pool can be let go of while they sleep. */
static void jobs_after_a_sleep(void **state)
{
    (void)state;
    st_pool *pool = NULL;
    assert_int_equal(st_pool_new(4, &pool, NULL), STRATA_OK);
    for (int round = 0; round < 200; round++) {
        _Atomic uint64_t sum = 0;
        usleep(round % 4 * 50); /* around the time that a worker spins */
        st_pool_run(pool, add_part, &sum, 8);
        assert_int_equal(sum, 36);
    }
    usleep(2000);
    st_pool_free(pool);
}

enum { LATE_US = 20000, SHORT_US = 200, ROUNDS_MAX = 100000 };

typedef struct late_job {
    useconds_t worker_us; /* what a part takes that the caller does not run */
    _Atomic uint32_t by_worker;
} late_job;

static void part_by_somebody(void *context, uint32_t worker, size_t part)
{
    (void)part;
    late_job *j = context;
    atomic_fetch_add(&j->by_worker, worker != 0);
    usleep(worker ? j->worker_us : SHORT_US);
}

/* Runs two parts at a time until the worker has had so many. */
static bool run_until(st_pool *pool, late_job *j, uint32_t parts)
{
    for (int i = 0; i < ROUNDS_MAX && j->by_worker < parts; i++) st_pool_run(pool, part_by_somebody, j, 2);
    return j->by_worker >= parts;
}

/* A worker whose parts come late again and again is left out for longer and longer; it comes back, and rests no longer than
 * the pool is there. */
static void who_keeps_others_waiting_rests(void **state)
{
    (void)state;
    enum { TIMES = 6 }; /* after which it rests 64 ms */
    st_pool *pool = NULL;
    assert_int_equal(st_pool_new(2, &pool, NULL), STRATA_OK);
    late_job late = {.worker_us = LATE_US}, after = {.worker_us = 0};
    assert_true(run_until(pool, &late, TIMES));
    for (int i = 0; i < 20; i++) st_pool_run(pool, part_by_somebody, &after, 4);
    assert_int_equal(after.by_worker, 0);
    assert_true(run_until(pool, &after, 1));
    assert_true(run_until(pool, &late, TIMES + 3));
    st_pool_free(pool);
}

static void nothing_is_allocated_to_run(void **state)
{
    (void)state;
    st_pool *pool = NULL;
    assert_int_equal(st_pool_new(4, &pool, NULL), STRATA_OK);
    _Atomic uint64_t sum = 0;
    st_fault_arm(ST_FAULT_ALLOC, UINT64_MAX, false);
    st_pool_run(pool, add_part, &sum, 100);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_int_equal(sum, 5050);
    st_pool_free(pool);
}

static void sizes_of_a_pool(void **state)
{
    (void)state;
    st_pool *pool = NULL;
    strata_error error;
    assert_int_equal(st_pool_new(1025, &pool, &error), STRATA_USAGE);
    assert_null(pool);
    assert_non_null(strstr(error.message, "1025"));
    assert_int_equal(st_pool_new(0, &pool, &error), STRATA_OK);
    assert_true(st_pool_threads(pool) >= 1);
    st_pool_free(pool);
    st_pool_free(NULL);
}

static void memory_that_is_not_there(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        st_pool *pool = NULL;
        strata_error error = {0};
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = st_pool_new(4, &pool, &error);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        assert_int_equal(status, STRATA_MEMORY);
        assert_int_equal(error.status, STRATA_MEMORY);
        assert_null(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_once),        cmocka_unit_test(many_short_jobs),
        cmocka_unit_test(two_callers_take_turns),      cmocka_unit_test(two_callers_with_a_pool_each),
        cmocka_unit_test(jobs_after_a_sleep),          cmocka_unit_test(who_keeps_others_waiting_rests),
        cmocka_unit_test(nothing_is_allocated_to_run), cmocka_unit_test(sizes_of_a_pool),
        cmocka_unit_test(memory_that_is_not_there),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
