/* Measures the machine's rates: memory reads, and the arithmetic of batches in registers (int8, or bfloat16 on AMX).
 * Each is the best of many rounds with all workers. The first rounds wake the workers and raise the clock; rounds
 * disturbed by other processes do not count. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "base/memory.h"

enum { PARTS_PER_WORKER = 16, ROUNDS_MIN = 8, PART_ALIGNMENT = 4096 };
#define READ_SECONDS 0.25
#define INT8_SECONDS 0.1
#define INT8_ROUND_SECONDS 2e-3 /* minimum length of a round: a thousand times the cost of starting it */

typedef struct probe_job {
    float *buffer;
    size_t part_bytes;
    const st_isa *isa;
    uint64_t (*work)(uint64_t rounds); /* the arithmetic of batches */
    uint64_t part_work;     /* rounds of `work` */
    _Atomic uint64_t sink;  /* keeps the compiler from removing the work */
} probe_job;

static float *part_of(const probe_job *job, size_t part)
{
    return job->buffer + part * (job->part_bytes / sizeof *job->buffer);
}

static void clear_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const probe_job *job = context;
    memset(part_of(job, part), 0, job->part_bytes);
}

static void read_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    probe_job *job = context;
    const float *zeros = part_of(job, part);
    size_t count = job->part_bytes / sizeof *zeros;
    float sum = 0;
    if (job->isa) sum = job->isa->sum_squares(zeros, count);
    else
        for (size_t i = 0; i < count; i++) sum += zeros[i];
    job->sink += (uint64_t)sum;
}

static void int8_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    (void)part;
    probe_job *job = context;
    job->sink += job->work(job->part_work);
}

static double time_round(st_pool *pool, st_pool_job part, probe_job *job, size_t parts)
{
    double start = st_clock_seconds();
    st_pool_run(pool, part, job, parts);
    return st_clock_seconds() - start;
}

static double best_round(st_pool *pool, st_pool_job part, probe_job *job, size_t parts, double seconds)
{
    double best = 1e9, end = st_clock_seconds() + seconds;
    for (int i = 0; i < ROUNDS_MIN || st_clock_seconds() < end; i++) {
        double took = time_round(pool, part, job, parts);
        if (took < best) best = took;
    }
    return best;
}

strata_status st_cpu_probe(st_device *device, st_pool *pool, const st_isa *isa, const st_isa_panels *panels,
                           st_device_rates *out, strata_error *error)
{
    size_t parts = PARTS_PER_WORKER * (size_t)st_pool_threads(pool);
    size_t part_bytes = (size_t)st_memory_probe_bytes_now() / parts / PART_ALIGNMENT * PART_ALIGNMENT;
    probe_job job = {.isa = isa, .part_bytes = part_bytes, .part_work = 64};
    void *buffer = NULL;
    st_device_rates rates = {0};
    /* allocated like weights and KV, in huge pages; with small pages the probe would measure page walks */
    strata_status status = st_backend_cpu()->alloc(device, parts * job.part_bytes, &buffer, error);
    if (status != STRATA_OK) return status;
    job.buffer = buffer;
    st_pool_run(pool, clear_part, &job, parts);
    if (job.part_bytes > 0)
        rates.read_bytes = (double)(parts * job.part_bytes) / best_round(pool, read_part, &job, parts, READ_SECONDS);
    if (isa) {
        job.work = panels ? panels->work : isa->int8_work;
        while (time_round(pool, int8_part, &job, parts) < INT8_ROUND_SECONDS) job.part_work *= 2;
        uint32_t round_ops = panels ? panels->ops_per_round : isa->int8_ops_per_round;
        double ops = (double)round_ops * (double)job.part_work * (double)parts;
        rates.int8_ops = ops / best_round(pool, int8_part, &job, parts, INT8_SECONDS);
    }
    st_backend_cpu()->free(device, buffer);
    *out = rates;
    return STRATA_OK;
}
