/* The simulated GPU as a backend: memory, queues and events on the virtual clock, copies and counters. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/sim/world.h"
#include "base/alloc.h"
#include "base/error.h"

struct st_device {
    st_sim_card card;
};

struct st_queue {
    st_device *device;
    uint32_t number;
};

struct st_event {
    st_device *device;
    uint64_t point; /* 0: not recorded */
};

/* --- the device --------------------------------------------------------------------------------------------------- */

static void card_close(st_device *device)
{
    if (!device) return;
    if (device->card.cpu_queue) st_backend_cpu()->queue_free(device->card.cpu_queue);
    st_backend_cpu()->close(device->card.cpu);
    st_free(device);
}

static strata_status card_open(const st_device_options *options, st_device **out, strata_error *error)
{
    if (!options->world)
        return st_error_set(error, STRATA_USAGE, NULL, "the simulated GPU: expected a world, found none");
    st_device *device = st_alloc_zero(1, sizeof *device);
    if (!device) return st_error_memory(error, sizeof *device, "the simulated GPU");
    device->card.world = options->world;
    st_device_options reference = {.cpu = "ref", .threads = 1};
    strata_status status = st_sim_enter(options->world, ST_SIM_CALLS, error);
    if (status == STRATA_OK) status = st_backend_cpu()->open(&reference, &device->card.cpu, error);
    if (status == STRATA_OK)
        status = st_backend_cpu()->queue_new(device->card.cpu, ST_QUEUE_COMPUTE, &device->card.cpu_queue, error);
    if (status != STRATA_OK) {
        card_close(device);
        return status;
    }
    *out = device;
    return STRATA_OK;
}

static void card_info(const st_device *device, st_device_info *out)
{
    const st_sim_world *world = device->card.world;
    *out = (st_device_info){
        .name = world->card.name,
        .total_bytes = (size_t)world->card.total_bytes,
        .free_bytes = world->memory.capacity - world->memory.used,
        .exact = true,
        .alignment = ST_SIM_ALIGNMENT,
        .workers = 1,
        .reads_host_memory = false,
    };
}

static strata_status card_probe(st_device *device, st_device_rates *out, strata_error *error)
{
    const st_profile *profile = &device->card.world->card;
    strata_status status = st_sim_enter(device->card.world, ST_SIM_CALLS, error);
    if (status == STRATA_OK) *out = (st_device_rates){.read_bytes = profile->memory_rate, .int8_ops = profile->op_rate};
    return status;
}

static void card_times(const st_device *device, st_op_time out[ST_OP_COUNT])
{
    (void)device; /* its operations take virtual time, not real time */
    memset(out, 0, ST_OP_COUNT * sizeof *out);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static strata_status card_alloc(st_device *device, size_t bytes, void **out, strata_error *error)
{
    strata_status status = st_sim_enter(device->card.world, ST_SIM_ALLOC, error);
    return status == STRATA_OK ? st_sim_memory_take(&device->card.world->memory, bytes, out, error) : status;
}

static void card_free(st_device *device, void *memory)
{
    if (memory) st_sim_memory_give(&device->card.world->memory, memory);
}

static strata_status card_host_alloc(st_device *device, size_t bytes, void **out, bool *pinned, strata_error *error)
{
    strata_status status = st_sim_enter(device->card.world, ST_SIM_ALLOC, error);
    if (status == STRATA_OK) status = st_backend_cpu()->host_alloc(device->card.cpu, bytes, out, pinned, error);
    if (status == STRATA_OK) *pinned = true;
    return status;
}

static void card_host_free(st_device *device, void *memory)
{
    st_backend_cpu()->host_free(device->card.cpu, memory);
}

/* --- queues and events -------------------------------------------------------------------------------------------- */

static strata_status card_queue_new(st_device *device, st_queue_kind kind, st_queue **out, strata_error *error)
{
    (void)kind;
    strata_status status = st_sim_enter(device->card.world, ST_SIM_CALLS, error);
    if (status != STRATA_OK) return status;
    st_queue *queue = st_alloc_zero(1, sizeof *queue);
    if (!queue) return st_error_memory(error, sizeof *queue, "a queue");
    queue->device = device;
    status = st_clock_queue_new(device->card.world->clock, &queue->number, error);
    if (status == STRATA_OK) *out = queue;
    else st_free(queue);
    return status;
}

static void card_queue_free(st_queue *queue)
{
    if (!queue) return;
    st_clock_queue_free(queue->device->card.world->clock, queue->number);
    st_free(queue);
}

static strata_status card_event_new(st_device *device, st_event **out, strata_error *error)
{
    strata_status status = st_sim_enter(device->card.world, ST_SIM_CALLS, error);
    if (status != STRATA_OK) return status;
    st_event *event = st_alloc_zero(1, sizeof *event);
    if (!event) return st_error_memory(error, sizeof *event, "an event");
    event->device = device;
    *out = event;
    return STRATA_OK;
}

static void card_event_free(st_event *event)
{
    if (!event) return;
    st_clock_forget(event->device->card.world->clock, event->point);
    st_free(event);
}

static strata_status card_event_record(st_event *event, st_queue *queue, strata_error *error)
{
    st_sim_world *world = event->device->card.world;
    uint64_t point;
    strata_status status = st_sim_enter(world, ST_SIM_CALLS, error);
    if (status == STRATA_OK) status = st_clock_point(world->clock, queue->number, &point, error);
    if (status != STRATA_OK) return status;
    st_clock_forget(world->clock, event->point);
    event->point = point;
    return STRATA_OK;
}

static strata_status check_recorded(const st_event *event, strata_error *error)
{
    strata_status status = st_sim_enter(event->device->card.world, ST_SIM_CALLS, error);
    if (status != STRATA_OK || event->point) return status;
    return st_error_set(error, STRATA_DEVICE, NULL, "waited for an event that no queue has recorded");
}

static strata_status card_event_wait_queue(st_event *event, st_queue *queue, strata_error *error)
{
    strata_status status = check_recorded(event, error);
    if (status != STRATA_OK) return status;
    return st_clock_depend(event->device->card.world->clock, queue->number, event->point, error);
}

static bool card_event_done(const st_event *event)
{
    return st_clock_reached(event->device->card.world->clock, event->point, NULL);
}

static strata_status card_event_wait_host(st_event *event, uint64_t limit_us, strata_error *error)
{
    st_sim_world *world = event->device->card.world;
    strata_status status = check_recorded(event, error);
    if (status == STRATA_OK) status = st_clock_wait(world->clock, event->point, 1e-6 * (double)limit_us, error);
    if (status != STRATA_OK) return status;
    st_demand handover = {.latency = world->card.handover_seconds};
    return st_clock_work(world->clock, &handover, error);
}

static double card_event_seconds(const st_event *event)
{
    double seconds = -1;
    st_clock_reached(event->device->card.world->clock, event->point, &seconds);
    return seconds;
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

static strata_status card_copy(st_queue *queue, st_copy_kind kind, void *to, const void *from, size_t bytes,
                               strata_error *error)
{
    st_sim_world *world = queue->device->card.world;
    strata_status status = st_sim_enter(world, ST_SIM_COPY, error);
    if (status == STRATA_OK && bytes && !from)
        status = st_error_set(error, STRATA_DEVICE, NULL, "copy: expected a source of %zu bytes, found none", bytes);
    return status == STRATA_OK ? st_sim_transfer(world, queue->number, kind, to, from, bytes, error) : status;
}

static strata_status card_zero(st_queue *queue, void *memory, size_t bytes, strata_error *error)
{
    st_sim_world *world = queue->device->card.world;
    strata_status status = st_sim_enter(world, ST_SIM_CALLS, error);
    if (status != STRATA_OK) return status;
    return st_sim_transfer(world, queue->number, ST_COPY_WITHIN, memory, NULL, bytes, error);
}

/* --- counters ----------------------------------------------------------------------------------------------------- */

static strata_status count_up(void *context, strata_error *error)
{
    (void)error;
    const st_sim_count *c = context;
    __atomic_store_n(c->counter, c->value, __ATOMIC_RELEASE);
    return STRATA_OK;
}

static strata_status push_counting(st_queue *queue, const st_sim_count *source, const st_command *like,
                                   strata_error *error)
{
    st_sim_world *world = queue->device->card.world;
    strata_status status = st_sim_enter(world, ST_SIM_CALLS, error);
    if (status != STRATA_OK) return status;
    st_sim_count *c = st_alloc(sizeof *c);
    if (!c) return st_error_memory(error, sizeof *c, "a counter of the simulated GPU");
    *c = *source;
    st_command command = *like;
    command.drop = st_free;
    command.context = c;
    status = st_clock_push(world->clock, queue->number, &command, error);
    if (status != STRATA_OK) st_free(c);
    return status;
}

static strata_status card_signal(st_queue *queue, uint64_t *counter, uint64_t value, strata_error *error)
{
    return push_counting(queue, &(st_sim_count){counter, value}, &(st_command){.end = count_up}, error);
}

static strata_status card_wait(st_queue *queue, uint64_t *counter, uint64_t value, uint64_t limit_us,
                               strata_error *error)
{
    st_command command = {.ready = st_sim_count_reached, .patience = 1e-6 * (double)limit_us};
    return push_counting(queue, &(st_sim_count){counter, value}, &command, error);
}

/* --- segments ----------------------------------------------------------------------------------------------------- */

static strata_status card_prepare(st_device *device, const st_segment_source *source, st_segment **out,
                                  strata_error *error)
{
    strata_status status = st_sim_enter(device->card.world, ST_SIM_CALLS, error);
    return status == STRATA_OK ? st_sim_segment_new(&device->card, source, out, error) : status;
}

static strata_status card_launch(st_segment *segment, st_queue *queue, uint32_t rows, strata_error *error)
{
    strata_status status = st_sim_enter(queue->device->card.world, ST_SIM_LAUNCH, error);
    return status == STRATA_OK ? st_sim_segment_launch(segment, queue->number, rows, error) : status;
}

/* --- chains ------------------------------------------------------------------------------------------------------- */

static strata_status card_chain_new(st_device *device, const st_chain_source *source, st_chain **out,
                                    strata_error *error)
{
    *out = NULL;
    strata_status status = st_sim_enter(device->card.world, ST_SIM_CALLS, error);
    if (status != STRATA_OK || device->card.world->card.round_trip_seconds <= 0) return status;
    return st_sim_chain_new(&device->card, source, out, error);
}

static uint32_t card_chain_rows(const st_chain *chain)
{
    (void)chain;
    return ST_CHAIN_ROWS;
}

static strata_status card_chain_launch(st_chain *chain, st_queue *queue, uint32_t rows, uint32_t sequence,
                                       st_event *end, strata_error *error)
{
    strata_status status = st_sim_enter(queue->device->card.world, ST_SIM_LAUNCH, error);
    if (status == STRATA_OK) status = st_sim_chain_launch(chain, queue->number, rows, sequence, error);
    if (status == STRATA_OK) status = card_event_record(end, queue, error);
    if (status == STRATA_OK) st_sim_chain_ends(chain, end->point);
    return status;
}

static const st_backend card_backend = {
    .version = ST_BACKEND_VERSION,
    .name = "sim",
    .open = card_open,
    .close = card_close,
    .info = card_info,
    .scratch = st_cpu_ref_scratch,
    .probe = card_probe,
    .times = card_times,
    .alloc = card_alloc,
    .free = card_free,
    .host_alloc = card_host_alloc,
    .host_free = card_host_free,
    .queue_new = card_queue_new,
    .queue_free = card_queue_free,
    .event_new = card_event_new,
    .event_free = card_event_free,
    .event_record = card_event_record,
    .event_wait_queue = card_event_wait_queue,
    .event_done = card_event_done,
    .event_wait_host = card_event_wait_host,
    .event_seconds = card_event_seconds,
    .copy = card_copy,
    .zero = card_zero,
    .signal = card_signal,
    .wait = card_wait,
    .prepare = card_prepare,
    .launch = card_launch,
    .segment_free = st_sim_segment_free,
    .chain_new = card_chain_new,
    .chain_free = st_sim_chain_free,
    .chain_rows = card_chain_rows,
    .chain_launch = card_chain_launch,
    .chain_await = st_sim_chain_await,
    .chain_answer = st_sim_chain_answer,
    .chain_abandon = st_sim_chain_abandon,
};

const st_backend *st_backend_sim_card(void)
{
    return &card_backend;
}
