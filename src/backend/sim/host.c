/* The host of the simulated GPU: the CPU backend, whose operations also take virtual time, during which the GPU's
 * queues go on. An operation is computed at the end of its time, as on the GPU. */
#include "backend/cpu/cpu.h"
#include "backend/sim/world.h"
#include "base/alloc.h"
#include "base/error.h"

/* The handles wrap those of the CPU backend. */
struct st_device {
    st_sim_world *world;
    st_device *cpu;
};

struct st_queue {
    st_device *device;
    st_queue *cpu;
};

struct st_event {
    st_device *device;
    double seconds; /* of virtual time when it was recorded; negative: not recorded */
};

struct st_segment {
    st_device *device;
    st_segment_source source; /* its operations are in `ops` */
    st_sim_ops ops;
};

static const st_backend *cpu(void)
{
    return st_backend_cpu();
}

/* --- the device --------------------------------------------------------------------------------------------------- */

static strata_status host_open(const st_device_options *options, st_device **out, strata_error *error)
{
    if (!options->world)
        return st_error_set(error, STRATA_USAGE, NULL, "the simulated host: expected a world, found none");
    st_device *device = st_alloc_zero(1, sizeof *device);
    if (!device) return st_error_memory(error, sizeof *device, "the simulated host");
    device->world = options->world;
    strata_status status = cpu()->open(options, &device->cpu, error);
    if (status == STRATA_OK) *out = device;
    else st_free(device);
    return status;
}

static void host_close(st_device *device)
{
    if (!device) return;
    cpu()->close(device->cpu);
    st_free(device);
}

static void host_info(const st_device *device, st_device_info *out)
{
    cpu()->info(device->cpu, out);
    out->total_bytes = (size_t)device->world->host.total_bytes;
    out->free_bytes = (size_t)device->world->host.free_bytes;
}

static strata_status host_probe(st_device *device, st_device_rates *out, strata_error *error)
{
    (void)error;
    const st_profile *profile = &device->world->host;
    *out = (st_device_rates){.read_bytes = profile->memory_rate, .int8_ops = profile->op_rate};
    return STRATA_OK;
}

static void host_times(const st_device *device, st_op_time out[ST_OP_COUNT])
{
    cpu()->times(device->cpu, out);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static strata_status host_alloc(st_device *device, size_t bytes, void **out, strata_error *error)
{
    return cpu()->alloc(device->cpu, bytes, out, error);
}

static void host_free(st_device *device, void *memory)
{
    cpu()->free(device->cpu, memory);
}

static strata_status host_host_alloc(st_device *device, size_t bytes, void **out, bool *pinned, strata_error *error)
{
    strata_status status = cpu()->host_alloc(device->cpu, bytes, out, pinned, error);
    if (status == STRATA_OK) *pinned = true;
    return status;
}

static void host_host_free(st_device *device, void *memory)
{
    cpu()->host_free(device->cpu, memory);
}

/* --- queues and events -------------------------------------------------------------------------------------------- */

static strata_status host_queue_new(st_device *device, st_queue_kind kind, st_queue **out, strata_error *error)
{
    st_queue *queue = st_alloc_zero(1, sizeof *queue);
    if (!queue) return st_error_memory(error, sizeof *queue, "a queue");
    queue->device = device;
    strata_status status = cpu()->queue_new(device->cpu, kind, &queue->cpu, error);
    if (status == STRATA_OK) *out = queue;
    else st_free(queue);
    return status;
}

static void host_queue_free(st_queue *queue)
{
    if (!queue) return;
    cpu()->queue_free(queue->cpu);
    st_free(queue);
}

static void host_queue_watch(st_queue *queue, const atomic_bool *flag)
{
    cpu()->queue_watch(queue->cpu, flag);
}

static strata_status host_event_new(st_device *device, st_event **out, strata_error *error)
{
    st_event *event = st_alloc_zero(1, sizeof *event);
    if (!event) return st_error_memory(error, sizeof *event, "an event");
    *event = (st_event){.device = device, .seconds = -1};
    *out = event;
    return STRATA_OK;
}

static void host_event_free(st_event *event)
{
    st_free(event);
}

static strata_status host_event_record(st_event *event, st_queue *queue, strata_error *error)
{
    (void)queue;
    (void)error;
    event->seconds = st_clock_now(event->device->world->clock);
    return STRATA_OK;
}

static bool host_event_done(const st_event *event)
{
    return event->seconds >= 0;
}

static strata_status host_event_wait_host(st_event *event, uint64_t limit_us, strata_error *error)
{
    (void)limit_us; /* a recorded event is done; another one never will be */
    if (host_event_done(event)) return STRATA_OK;
    return st_error_set(error, STRATA_DEVICE, NULL, "waited for an event that no queue has recorded");
}

static strata_status host_event_wait_queue(st_event *event, st_queue *queue, strata_error *error)
{
    (void)queue;
    return host_event_wait_host(event, 0, error);
}

static double host_event_seconds(const st_event *event)
{
    return event->seconds;
}

/* --- work --------------------------------------------------------------------------------------------------------- */

static strata_status charge_bytes(const st_queue *queue, double bytes, strata_error *error)
{
    st_demand demand = {.amount = {[ST_RESOURCE_HOST_DRAM] = bytes}};
    return st_clock_work(queue->device->world->clock, &demand, error);
}

static strata_status host_copy(st_queue *queue, st_copy_kind kind, void *to, const void *from, size_t bytes,
                               strata_error *error)
{
    strata_status status = charge_bytes(queue, 2.0 * (double)bytes, error);
    return status == STRATA_OK ? cpu()->copy(queue->cpu, kind, to, from, bytes, error) : status;
}

static strata_status host_zero(st_queue *queue, void *memory, size_t bytes, strata_error *error)
{
    strata_status status = charge_bytes(queue, (double)bytes, error);
    return status == STRATA_OK ? cpu()->zero(queue->cpu, memory, bytes, error) : status;
}

static strata_status host_signal(st_queue *queue, uint64_t *counter, uint64_t value, strata_error *error)
{
    return cpu()->signal(queue->cpu, counter, value, error);
}

/* The GPU counts up in virtual time, which does not pass while the CPU spins. */
static strata_status host_wait(st_queue *queue, uint64_t *counter, uint64_t value, uint64_t limit_us,
                               strata_error *error)
{
    st_sim_count c = {counter, value};
    return st_clock_wait_until(queue->device->world->clock, st_sim_count_reached, &c, 1e-6 * (double)limit_us, error);
}

/* --- segments ----------------------------------------------------------------------------------------------------- */

static void host_segment_free(st_segment *segment)
{
    if (!segment) return;
    st_sim_ops_free(&segment->ops);
    st_free(segment);
}

static strata_status host_prepare(st_device *device, const st_segment_source *source, st_segment **out,
                                  strata_error *error)
{
    st_segment *segment = st_alloc_zero(1, sizeof *segment);
    if (!segment) return st_error_memory(error, sizeof *segment, "a segment of the program");
    *segment = (st_segment){.device = device, .source = *source};
    strata_status status = st_sim_ops_new(device->cpu, source, &segment->ops, error);
    if (status == STRATA_OK) *out = segment;
    else host_segment_free(segment);
    return status;
}

static strata_status run_op(const st_segment *segment, uint32_t index, const st_queue *queue, uint32_t rows,
                            strata_error *error)
{
    st_sim_world *world = segment->device->world;
    const st_bound_op *bound = &segment->ops.bound[index];
    strata_status status = st_sim_check_step(&segment->source, bound, rows, error);
    if (status != STRATA_OK) return status;
    st_sim_op op = st_sim_op_of(&segment->source, bound, rows);
    st_demand demand = st_sim_price(world, ST_DEVICE_HOST, bound, rows, segment->source.step);
    st_sim_begin(world, &op.actor);
    status = st_clock_work(world->clock, &demand, error);
    st_sim_end(world, &op.actor);
    if (status == STRATA_OK && op.actor.raced)
        status = st_sim_tell_race(st_op_name(bound->op->kind), bound->op->layer, error);
    return status == STRATA_OK ? st_sim_ops_run(world, &segment->ops, index, rows, queue->cpu, error) : status;
}

static strata_status host_launch(st_segment *segment, st_queue *queue, uint32_t rows, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < segment->ops.count && status == STRATA_OK; i++)
        status = run_op(segment, i, queue, rows, error);
    return status;
}

static const st_backend host_backend = {
    .version = ST_BACKEND_VERSION,
    .name = "sim-host",
    .open = host_open,
    .close = host_close,
    .info = host_info,
    .scratch = st_cpu_fast_scratch,
    .probe = host_probe,
    .times = host_times,
    .alloc = host_alloc,
    .free = host_free,
    .host_alloc = host_host_alloc,
    .host_free = host_host_free,
    .queue_new = host_queue_new,
    .queue_free = host_queue_free,
    .queue_watch = host_queue_watch,
    .event_new = host_event_new,
    .event_free = host_event_free,
    .event_record = host_event_record,
    .event_wait_queue = host_event_wait_queue,
    .event_done = host_event_done,
    .event_wait_host = host_event_wait_host,
    .event_seconds = host_event_seconds,
    .copy = host_copy,
    .zero = host_zero,
    .signal = host_signal,
    .wait = host_wait,
    .prepare = host_prepare,
    .launch = host_launch,
    .segment_free = host_segment_free,
};

const st_backend *st_backend_sim_host(void)
{
    return &host_backend;
}
