#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cores.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"

/* One atomic word holds the job number, the number of parts and the next part. A thread claims a part with one atomic
 * addition to that word, so a claimed part always belongs to the job that the same word names. The caller waits for
 * claimed parts, never for a thread without one: a preempted idle worker delays no job. An idle worker spins for 50 µs,
 * because the next job of a token is microseconds away, then sleeps on a futex.
 *
 * A worker that shares its core with another process is preempted in the middle of a part again and again, and every
 * thread waits for it. So a worker that the caller waited for much longer than parts take backs off: it claims no
 * part for 2 ms, and each time it is late again, for twice as long as the last time.
 *
 * Between the parts of two jobs memory would be idle. Threads without a part prefetch what the next job reads first. */
enum {
    COUNT_BITS = 24, /* of the number of parts, and of the next part */
    SPIN_US = 50,
    CHECKS_PER_CLOCK = 64, /* loads of the word between two readings of the clock */
    LATE_US = 300,         /* a part is late after this time … */
    LATE_PARTS = 4,        /* … plus this many times the caller's mean time per part */
    BACKOFF_US = 2000,
    BACKOFF_MAX_US = 256000,
    REPEAT_US = 10000,  /* late again within this time after a back-off … */
    REPEAT_BACKOFFS = 4, /* … plus this many times its length: the next back-off is twice as long */
    LINE_BYTES = 64,
    LINES_AT_ONCE = 8, /* of a prefetch, between two looks for a part */
};

#define COUNT_MASK (((uint64_t)1 << COUNT_BITS) - 1)

/* How far a thread has prefetched its shares of what is expected. */
typedef struct ahead {
    uint32_t number, range;
    size_t at;
} ahead;

/* Written while threads read it: they may see fields of two calls, and prefetch what nobody needs. */
typedef struct expected_range {
    _Atomic uintptr_t from;
    _Atomic size_t step, bytes, all;
} expected_range;

typedef struct worker_thread {
    st_pool *pool;
    uint32_t index;
    pthread_t thread;
    uint64_t late_us;                    /* when the caller found it late; 0: in time */
    uint64_t backoff_us, backoff_end_us; /* the last back-off; the caller's, as is late_us */
    ahead ahead;                         /* the worker's */
    _Alignas(64) _Atomic bool busy;      /* running a part, or about to claim one */
    _Atomic uint64_t backs_off_until_us; /* 0: it does not back off */
} worker_thread;

struct st_pool {
    _Alignas(64) _Atomic uint64_t word;  /* job number (16 bits) | parts (24) | next part (24) */
    _Alignas(64) _Atomic uint64_t done;  /* finished parts of this job */
    _Alignas(64) _Atomic uint32_t epoch; /* counts jobs: the futex of idle workers */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t stop; /* the futex of workers that back off */
    _Atomic bool awake;    /* idle workers do not sleep */
    const atomic_bool *flag; /* parts are skipped once it is true; NULL: never */
    _Atomic bool skipped;
    _Alignas(64) _Atomic uint32_t expected; /* counts calls of st_pool_expect */
    _Atomic uint32_t range_count;
    expected_range ranges[ST_POOL_RANGES];
    _Alignas(64) ahead ahead; /* the caller's */
    st_pool_job job;       /* written before the word names the job, read only by threads that claimed a part of it */
    void *context;
    st_pool_clock clock;
    void *clock_context;
    uint32_t threads;
    uint32_t started;
    worker_thread *workers; /* [threads − 1] */
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool has_parts(uint64_t word)
{
    return (word & COUNT_MASK) < (word >> COUNT_BITS & COUNT_MASK);
}

static uint64_t monotonic_us(void *context)
{
    (void)context;
    return (uint64_t)(1e6 * st_clock_seconds());
}

static uint64_t now_us(const st_pool *pool)
{
    return pool->clock(pool->clock_context);
}

void st_pool_watch(st_pool *pool, const atomic_bool *flag)
{
    pool->flag = flag;
    atomic_store_explicit(&pool->skipped, false, memory_order_relaxed);
}

bool st_pool_skipped(const st_pool *pool)
{
    return atomic_load_explicit(&pool->skipped, memory_order_relaxed);
}

/* Once a part is skipped, so are all later ones: the flag may be cleared meanwhile, and they need its result. */
static void run_or_skip(st_pool *pool, st_pool_job job, void *context, uint32_t worker, size_t part)
{
    if (pool->flag && !st_pool_skipped(pool) &&
        (atomic_load_explicit(pool->flag, memory_order_relaxed) || st_fault_hit(ST_FAULT_PART)))
        atomic_store_explicit(&pool->skipped, true, memory_order_relaxed);
    if (!st_pool_skipped(pool)) job(context, worker, part);
}

/* Claims a part and runs it; false if none is left. */
static bool run_part(st_pool *pool, uint32_t worker)
{
    if (!has_parts(atomic_load_explicit(&pool->word, memory_order_relaxed))) return false;
    uint64_t word = atomic_fetch_add_explicit(&pool->word, 1, memory_order_acq_rel);
    if (!has_parts(word)) return false;
    run_or_skip(pool, pool->job, pool->context, worker, word & COUNT_MASK);
    atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
    return true;
}

static uint64_t backoff_left_us(worker_thread *self)
{
    uint64_t until = atomic_load_explicit(&self->backs_off_until_us, memory_order_relaxed);
    if (until == 0) return 0;
    uint64_t now = now_us(self->pool);
    if (now < until) return until - now;
    atomic_store_explicit(&self->backs_off_until_us, 0, memory_order_relaxed);
    return 0;
}

/* Runs parts until none is left or the worker has to back off. */
static void run_parts(st_pool *pool, worker_thread *self)
{
    bool ran = true;
    while (ran && backoff_left_us(self) == 0) {
        atomic_store_explicit(&self->busy, true, memory_order_relaxed);
        ran = run_part(pool, self->index);
        atomic_store_explicit(&self->busy, false, memory_order_relaxed);
    }
}

void st_pool_expect(st_pool *pool, const st_pool_range *ranges, uint32_t count)
{
    if (count > ST_POOL_RANGES) count = ST_POOL_RANGES;
    for (uint32_t i = 0; i < count; i++) {
        expected_range *range = &pool->ranges[i];
        atomic_store_explicit(&range->from, (uintptr_t)ranges[i].from, memory_order_relaxed);
        atomic_store_explicit(&range->step, ranges[i].step, memory_order_relaxed);
        atomic_store_explicit(&range->bytes, ranges[i].bytes, memory_order_relaxed);
        atomic_store_explicit(&range->all, ranges[i].all, memory_order_relaxed);
    }
    atomic_store_explicit(&pool->range_count, count, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->expected, 1, memory_order_release);
}

/* Prefetches some lines of the thread's shares; false: nothing is left. */
static bool prefetch_some(st_pool *pool, ahead *done, uint32_t worker)
{
    uint32_t number = atomic_load_explicit(&pool->expected, memory_order_acquire);
    if (done->number != number) *done = (ahead){.number = number};
    if (done->range >= atomic_load_explicit(&pool->range_count, memory_order_relaxed)) return false;
    const expected_range *range = &pool->ranges[done->range];
    size_t all = atomic_load_explicit(&range->all, memory_order_relaxed);
    size_t bytes = atomic_load_explicit(&range->bytes, memory_order_relaxed);
    size_t first = worker * atomic_load_explicit(&range->step, memory_order_relaxed) + done->at;
    uintptr_t from = atomic_load_explicit(&range->from, memory_order_relaxed);
    for (uint32_t i = 0; i < LINES_AT_ONCE && done->at < bytes && first < all; i++, first += LINE_BYTES, done->at += LINE_BYTES)
        __builtin_prefetch((const void *)(from + first), 0, 2);
    if (done->at >= bytes || first >= all) *done = (ahead){.number = number, .range = done->range + 1};
    return true;
}

/* Returns when a job has parts left, the pool stops, or SPIN_US have passed and workers may sleep. */
static void spin(st_pool *pool, worker_thread *self)
{
    double end = st_clock_seconds() + 1e-6 * SPIN_US;
    for (;;) {
        for (int i = 0; i < CHECKS_PER_CLOCK; i++) {
            if (has_parts(atomic_load_explicit(&pool->word, memory_order_relaxed)) || atomic_load(&pool->stop)) return;
            if (!prefetch_some(pool, &self->ahead, self->index)) relax();
        }
        if (st_clock_seconds() < end) continue;
        if (!atomic_load_explicit(&pool->awake, memory_order_relaxed)) return;
        sched_yield(); /* another thread may need this core */
    }
}

static void sleep_until_job(st_pool *pool, uint32_t epoch)
{
    atomic_fetch_add(&pool->sleepers, 1);
    if (!has_parts(atomic_load(&pool->word)) && !atomic_load(&pool->stop))
        syscall(SYS_futex, &pool->epoch, FUTEX_WAIT_PRIVATE, epoch, NULL, NULL, 0);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void sleep_for(st_pool *pool, uint64_t us)
{
    struct timespec time = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    syscall(SYS_futex, &pool->stop, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
}

static void *worker_main(void *argument)
{
    worker_thread *self = argument;
    st_pool *pool = self->pool;
    while (!atomic_load(&pool->stop)) {
        uint32_t epoch = atomic_load(&pool->epoch);
        uint64_t backoff = backoff_left_us(self);
        if (backoff) {
            sleep_for(pool, backoff);
            continue;
        }
        spin(pool, self);
        if (has_parts(atomic_load(&pool->word))) run_parts(pool, self);
        else sleep_until_job(pool, epoch);
    }
    return NULL;
}

static void wake_all(st_pool *pool)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (!atomic_load(&pool->sleepers)) return;
    syscall(SYS_futex, &pool->epoch, FUTEX_WAKE_PRIVATE, ST_POOL_THREADS_MAX, NULL, NULL, 0);
}

void st_pool_keep_awake(st_pool *pool, bool awake)
{
    atomic_store(&pool->awake, awake);
    if (awake) wake_all(pool);
}

uint32_t st_pool_asleep(const st_pool *pool)
{
    return atomic_load(&pool->sleepers);
}

static uint32_t default_threads(void)
{
    uint32_t cores = st_cores_here();
    return cores > ST_POOL_THREADS_MAX ? ST_POOL_THREADS_MAX : cores;
}

static strata_status start_workers(st_pool *pool, strata_error *error)
{
    for (uint32_t i = 0; i + 1 < pool->threads; i++) {
        pool->workers[i] = (worker_thread){.pool = pool, .index = i + 1};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0)
            return st_error_set(error, STRATA_RUNTIME, "use fewer options.threads", "cannot start thread %u of %u",
                                i + 2, pool->threads);
        pool->started++;
    }
    return STRATA_OK;
}

strata_status st_pool_new(uint32_t threads, st_pool **out, strata_error *error)
{
    if (threads == 0) threads = default_threads();
    if (threads > ST_POOL_THREADS_MAX)
        return st_error_set(error, STRATA_USAGE, NULL, "threads: expected at most %d, found %u", ST_POOL_THREADS_MAX,
                            threads);
    st_pool *pool = st_alloc_aligned(sizeof *pool, _Alignof(st_pool));
    worker_thread *workers = st_alloc_aligned(threads * sizeof *workers, _Alignof(worker_thread));
    if (!pool || !workers) {
        st_free(pool);
        st_free(workers);
        return st_error_memory(error, sizeof *pool + threads * sizeof *workers, "the thread pool");
    }
    *pool = (st_pool){.threads = threads, .workers = workers, .clock = monotonic_us};
    strata_status status = start_workers(pool, error);
    if (status != STRATA_OK) {
        st_pool_free(pool);
        return status;
    }
    *out = pool;
    return STRATA_OK;
}

void st_pool_free(st_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, 1);
    wake_all(pool);
    syscall(SYS_futex, &pool->stop, FUTEX_WAKE_PRIVATE, ST_POOL_THREADS_MAX, NULL, NULL, 0);
    for (uint32_t i = 0; i < pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    st_free(pool->workers);
    st_free(pool);
}

uint32_t st_pool_threads(const st_pool *pool)
{
    return pool->threads;
}

void st_pool_set_clock(st_pool *pool, st_pool_clock clock, void *context)
{
    pool->clock = clock;
    pool->clock_context = context;
}

/* A worker that still holds a part is late. */
static void note_slow_workers(st_pool *pool, uint64_t now)
{
    for (uint32_t i = 0; i < pool->started; i++)
        pool->workers[i].late_us = atomic_load_explicit(&pool->workers[i].busy, memory_order_relaxed) ? now : 0;
}

static void back_off_slow_workers(st_pool *pool)
{
    uint64_t now = now_us(pool);
    for (uint32_t i = 0; i < pool->started; i++) {
        worker_thread *w = &pool->workers[i];
        if (!w->late_us) continue;
        bool repeated = w->backoff_us && w->late_us < w->backoff_end_us + REPEAT_BACKOFFS * w->backoff_us + REPEAT_US;
        w->late_us = 0;
        w->backoff_us = !repeated ? BACKOFF_US : w->backoff_us < BACKOFF_MAX_US ? 2 * w->backoff_us : BACKOFF_MAX_US;
        w->backoff_end_us = now + w->backoff_us;
        atomic_store_explicit(&w->backs_off_until_us, w->backoff_end_us, memory_order_relaxed);
    }
}

/* Waits for the parts that workers claimed. The caller ran `mine` parts since `start`. */
static void wait_for_workers(st_pool *pool, size_t parts, size_t mine, uint64_t start)
{
    uint64_t limit = 0;
    bool late = false;
    for (uint32_t looks = 1; atomic_load_explicit(&pool->done, memory_order_acquire) < parts; looks++) {
        if (!prefetch_some(pool, &pool->ahead, 0)) relax();
        if (looks > 4096) sched_yield(); /* the worker with the last part may need this core */
        if (mine == 0 || looks % CHECKS_PER_CLOCK) continue;
        uint64_t now = now_us(pool);
        if (limit == 0) limit = now + LATE_US + LATE_PARTS * (now - start) / mine;
        if (late || now < limit) continue;
        late = true;
        note_slow_workers(pool, now);
    }
    if (late) back_off_slow_workers(pool);
}

static void run_together(st_pool *pool, st_pool_job job, void *context, size_t parts)
{
    uint64_t start = now_us(pool);
    size_t mine = 0;
    pool->job = job;
    pool->context = context;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    uint64_t number = (atomic_load_explicit(&pool->word, memory_order_relaxed) >> 2 * COUNT_BITS) + 1;
    atomic_store(&pool->word, number << 2 * COUNT_BITS | (uint64_t)parts << COUNT_BITS);
    wake_all(pool);
    while (run_part(pool, 0)) mine++;
    wait_for_workers(pool, parts, mine, start);
}

typedef struct shifted_job {
    st_pool_job job;
    void *context;
    size_t first;
} shifted_job;

static void run_shifted(void *context, uint32_t worker, size_t part)
{
    const shifted_job *shifted = context;
    shifted->job(shifted->context, worker, shifted->first + part);
}

void st_pool_run(st_pool *pool, st_pool_job job, void *context, size_t parts)
{
    if (pool->threads == 1 || parts <= 1) {
        for (size_t i = 0; i < parts; i++) run_or_skip(pool, job, context, 0, i);
        return;
    }
    /* More parts than the word can count run in several jobs, with room for one late addition of each thread. */
    size_t most = COUNT_MASK - ST_POOL_THREADS_MAX;
    for (size_t first = 0; first < parts; first += most) {
        shifted_job shifted = {.job = job, .context = context, .first = first};
        size_t count = parts - first < most ? parts - first : most;
        if (parts <= most) run_together(pool, job, context, parts);
        else run_together(pool, run_shifted, &shifted, count);
    }
}
