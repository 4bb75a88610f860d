/* A thread pool that runs one job at a time. A job is cut into parts, and an idle thread claims the next part. Which
 * thread runs a part must not matter to the result. */
#ifndef ST_BASE_POOL_H
#define ST_BASE_POOL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "strata.h"

typedef struct st_pool st_pool;

enum { ST_POOL_THREADS_MAX = 1024 };

/* `worker` is below st_pool_threads and indexes the thread's own scratch. */
typedef void (*st_pool_job)(void *context, uint32_t worker, size_t part);

/* `threads` counts the caller; 0: the physical cores that the process may use (cores.h). */
strata_status st_pool_new(uint32_t threads, st_pool **out, strata_error *error);
void st_pool_free(st_pool *pool);
uint32_t st_pool_threads(const st_pool *pool);

/* Cancellation: from now on, parts are skipped once `*flag` is true; NULL: never. A job with skipped parts has an
 * undefined result. */
void st_pool_watch(st_pool *pool, const atomic_bool *flag);
bool st_pool_skipped(const st_pool *pool); /* whether parts were skipped since st_pool_watch */

/* Runs parts 0 … parts − 1 and returns when all are done. Called by one thread at a time, never from a job. */
void st_pool_run(st_pool *pool, st_pool_job job, void *context, size_t parts);

/* What the next job reads first: each thread `bytes` from `from` + worker × step on, within `all` bytes from `from` on. */
typedef struct st_pool_range {
    const void *from;
    size_t step, bytes, all;
} st_pool_range;
enum { ST_POOL_RANGES = 8 };

/* From now on threads without a part prefetch their shares of the ranges, in order; count 0: nothing. At most ST_POOL_RANGES
 * count. The memory need not exist any more. */
void st_pool_expect(st_pool *pool, const st_pool_range *ranges, uint32_t count);

/* Idle workers stay awake from now on, until false: jobs follow in short succession, with pauses in which workers would
 * fall asleep. They yield their cores to other threads. */
void st_pool_keep_awake(st_pool *pool, bool awake);
uint32_t st_pool_asleep(const st_pool *pool); /* idle workers that sleep now */

/* Replaces the monotonic clock by which the pool detects slow workers. Called before the first job; the clock is read
 * by any thread. */
typedef uint64_t (*st_pool_clock)(void *context);
void st_pool_set_clock(st_pool *pool, st_pool_clock clock, void *context);

#endif
