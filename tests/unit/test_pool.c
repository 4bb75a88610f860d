/* src/base/pool.c: every part runs exactly once, on a valid worker, for every number of threads. */
#include "support/kit.h"

#include <pthread.h>
#include <sched.h>
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

/* Idle threads prefetch while the ranges change; a prefetch of memory that does not exist is no error. */
static void what_is_expected_need_not_exist(void **state)
{
    (void)state;
    static unsigned char memory[1 << 16];
    static const st_pool_range ranges[] = {{memory, 1 << 13, 1 << 13, sizeof memory}, {memory, 0, 64, 64}, {(void *)64, 4096, 1 << 20, SIZE_MAX},
                                           {NULL, 0, 0, 0}, {memory, 1, SIZE_MAX, 100}, {memory, 0, 0, 0}, {memory, 0, 0, 0},
                                           {memory, 64, 64, 128}, {memory, 64, 64, 128}};
    st_pool *pool = NULL;
    assert_int_equal(st_pool_new(4, &pool, NULL), STRATA_OK);
    st_pool_keep_awake(pool, true);
    for (uint32_t i = 0; i < 2000; i++) {
        st_pool_expect(pool, ranges + i % 4, i % (sizeof ranges / sizeof *ranges - 3));
        memset(&the_job, 0, sizeof the_job);
        the_job.threads = 4;
        st_pool_run(pool, count_part, &the_job, 9);
        assert_int_equal(the_job.wrong, 0);
        for (size_t k = 0; k < 10; k++) assert_int_equal(the_job.runs[k], k < 9);
        if (i % 100 == 0) usleep(200);
    }
    st_pool_expect(pool, ranges, sizeof ranges / sizeof *ranges); /* at most ST_POOL_RANGES count */
    st_pool_run(pool, count_part, &the_job, 9);
    st_pool_expect(pool, NULL, 0);
    st_pool_free(pool);
}

/* When run returns, all parts are done: no worker of the last job may touch the next. */
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

enum { JOBS = 500000 }; /* per caller */

typedef struct caller {
    st_pool *pool;
    pthread_mutex_t *lock; /* NULL: the pool is this caller's alone */
    pthread_t thread;
    uint64_t wrong;
} caller;

static void *run_short_jobs(void *context)
{
    caller *c = context;
    for (uint64_t round = 0; round < JOBS; round++) {
        _Atomic uint64_t sum = 0;
        uint64_t parts = 2 + round % 3;
        if (c->lock) pthread_mutex_lock(c->lock);
        st_pool_run(c->pool, add_part, &sum, parts);
        if (c->lock) pthread_mutex_unlock(c->lock);
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

/* Like two sessions of one engine. */
static void two_callers_share_a_pool(void **state)
{
    (void)state;
    st_pool *pool = NULL;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    assert_int_equal(st_pool_new(2, &pool, NULL), STRATA_OK);
    caller callers[2] = {{.pool = pool, .lock = &lock}, {.pool = pool, .lock = &lock}};
    run_two_callers(callers);
    st_pool_free(pool);
}

/* Like two engines: there may be more threads than cores. */
static void two_pools_run_side_by_side(void **state)
{
    (void)state;
    st_pool *pools[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) assert_int_equal(st_pool_new(2, &pools[i], NULL), STRATA_OK);
    caller callers[2] = {{.pool = pools[0]}, {.pool = pools[1]}};
    run_two_callers(callers);
    for (int i = 0; i < 2; i++) st_pool_free(pools[i]);
}

/* Workers that fell asleep between jobs wake up, and a pool can be freed while they sleep. */
static void sleeping_workers_wake_up(void **state)
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

/* --- back-off, by a clock that only the caller's readings advance ----------------------------------------- */

typedef struct test_clock {
    pthread_t caller;
    _Atomic uint64_t now_us, step_us; /* the caller's reading adds step_us */
} test_clock;

static uint64_t read_clock(void *context)
{
    test_clock *c = context;
    return atomic_fetch_add(&c->now_us, pthread_equal(pthread_self(), c->caller) ? c->step_us : 0);
}

typedef struct slow_job {
    test_clock *clock;
    _Atomic uint32_t by_worker, by_caller;
    bool each;       /* a part of the caller and one of the worker wait for each other … */
    uint64_t end_us; /* … and the worker's takes until then */
} slow_job;

static void part_of_slow_job(void *context, uint32_t worker, size_t part)
{
    (void)part;
    slow_job *j = context;
    atomic_fetch_add(worker ? &j->by_worker : &j->by_caller, 1);
    while (j->each && atomic_load(worker ? &j->by_caller : &j->by_worker) == 0) sched_yield();
    while (worker && atomic_load(&j->clock->now_us) < j->end_us) sched_yield();
}

/* One part for each of two threads; the worker's takes `us` longer than the caller's. */
static void run_one_each(st_pool *pool, test_clock *c, uint64_t us)
{
    slow_job j = {.clock = c, .each = true, .end_us = c->now_us + us};
    c->step_us = us ? 100 : 0;
    st_pool_run(pool, part_of_slow_job, &j, 2);
    assert_int_equal(j.by_worker, 1);
    c->step_us = 0;
}

/* The worker claims no part; at most the one that it was about to claim when it started to back off. */
static void check_backs_off(st_pool *pool, test_clock *c)
{
    slow_job j = {.clock = c};
    for (int i = 0; i < 50; i++) st_pool_run(pool, part_of_slow_job, &j, 4);
    assert_in_range(j.by_worker, 0, 1);
}

/* Each back-off is twice as long as the last, up to 256 ms; then the worker claims parts again. A worker that was in
 * time for long enough starts from 2 ms. */
static void a_slow_worker_backs_off(void **state)
{
    (void)state;
    enum { PART_US = 20000, FIRST_US = 2000, MAX_US = 256000 };
    st_pool *pool = NULL;
    test_clock c = {.caller = pthread_self(), .now_us = 1000000};
    assert_int_equal(st_pool_new(2, &pool, NULL), STRATA_OK);
    st_pool_set_clock(pool, read_clock, &c);
    run_one_each(pool, &c, 0); /* in time: no back-off follows */
    for (int round = 0; round < 2; round++) {
        uint64_t backoff_us = FIRST_US;
        for (int late = 0; late < 9; late++) {
            run_one_each(pool, &c, PART_US);
            c.now_us += backoff_us - 200; /* of which at most 100 passed since the end was set */
            check_backs_off(pool, &c);
            c.now_us += 200;
            backoff_us = backoff_us < MAX_US ? 2 * backoff_us : MAX_US;
        }
        run_one_each(pool, &c, 0);
        c.now_us += 100 * MAX_US;
    }
    st_pool_free(pool);
}

/* The pool does not wait for the end of a back-off. */
static void a_pool_is_freed_during_a_backoff(void **state)
{
    (void)state;
    st_pool *pool = NULL;
    test_clock c = {.caller = pthread_self(), .now_us = 1000000};
    assert_int_equal(st_pool_new(2, &pool, NULL), STRATA_OK);
    st_pool_set_clock(pool, read_clock, &c);
    run_one_each(pool, &c, 20000);
    st_pool_free(pool); /* the clock never advances: a pool that waits would hang */
}

static void running_a_job_allocates_nothing(void **state)
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

static void the_thread_count_is_checked(void **state)
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

static void failed_allocations_are_errors(void **state)
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

static void sums_up(st_pool *pool)
{
    _Atomic uint64_t sum = 0;
    st_pool_run(pool, add_part, &sum, 100);
    assert_int_equal(sum, 5050);
}

/* Waits until so many workers sleep. */
static void sleepers_become(const st_pool *pool, uint32_t count)
{
    for (int i = 0; st_pool_asleep(pool) != count; i++) {
        assert_true(i < 10000);
        usleep(1000);
    }
}

/* Kept awake, idle workers do not sleep; afterwards they do again. Jobs run in either case. */
static void idle_workers_stay_awake_on_request(void **state)
{
    (void)state;
    st_pool *pool = NULL;
    assert_int_equal(st_pool_new(4, &pool, NULL), STRATA_OK);
    for (int round = 0; round < 2; round++) {
        sleepers_become(pool, 3);
        st_pool_keep_awake(pool, true);
        sleepers_become(pool, 0);
        sums_up(pool);
        usleep(5000); /* a hundred times as long as workers spin else */
        assert_int_equal(st_pool_asleep(pool), 0);
        st_pool_keep_awake(pool, false);
        sleepers_become(pool, 3);
        sums_up(pool);
    }
    st_pool_keep_awake(pool, true); /* a pool may be freed meanwhile */
    st_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_once), cmocka_unit_test(what_is_expected_need_not_exist),
        cmocka_unit_test(many_short_jobs),
        cmocka_unit_test(two_callers_share_a_pool), cmocka_unit_test(two_pools_run_side_by_side),
        cmocka_unit_test(sleeping_workers_wake_up),
        cmocka_unit_test(idle_workers_stay_awake_on_request), cmocka_unit_test(a_slow_worker_backs_off),
        cmocka_unit_test(a_pool_is_freed_during_a_backoff), cmocka_unit_test(running_a_job_allocates_nothing),
        cmocka_unit_test(the_thread_count_is_checked), cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
