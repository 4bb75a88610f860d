/* Queues, which are CUDA streams, with their events, copies and counters. */
#include <sched.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

strata_status st_cuda_queue_new(st_device *device, st_queue_kind kind, st_queue **out, strata_error *error)
{
    (void)kind;
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK) return status;
    st_queue *queue = st_alloc_zero(1, sizeof *queue);
    if (!queue) return st_error_memory(error, sizeof *queue, "a queue");
    queue->device = device;
    status = st_cuda_check(device, device->api->stream_new(&queue->stream), "creating a stream", error);
    if (status == STRATA_OK) *out = queue;
    else st_free(queue);
    return status;
}

void st_cuda_queue_free(st_queue *queue)
{
    if (!queue) return;
    queue->device->api->use(queue->device->index);
    queue->device->api->stream_free(queue->stream);
    st_free(queue);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

strata_status st_cuda_event_new(st_device *device, st_event **out, strata_error *error)
{
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK) return status;
    st_event *event = st_alloc_zero(1, sizeof *event);
    if (!event) return st_error_memory(error, sizeof *event, "an event");
    event->device = device;
    status = st_cuda_check(device, device->api->event_new(&event->event), "creating an event", error);
    if (status == STRATA_OK) *out = event;
    else st_free(event);
    return status;
}

void st_cuda_event_free(st_event *event)
{
    if (!event) return;
    event->device->api->use(event->device->index);
    event->device->api->event_free(event->event);
    st_free(event);
}

strata_status st_cuda_event_record(st_event *event, st_queue *queue, strata_error *error)
{
    st_device *device = event->device;
    strata_status status = st_cuda_enter(device, error);
    if (status == STRATA_OK)
        status = st_cuda_check(device, device->api->event_record(event->event, queue->stream), "recording an event", error);
    if (status == STRATA_OK) event->recorded = true;
    return status;
}

static strata_status check_recorded(const st_event *event, strata_error *error)
{
    strata_status status = st_cuda_enter(event->device, error);
    if (status != STRATA_OK || event->recorded) return status;
    return st_error_set(error, STRATA_DEVICE, NULL, "waited for an event that no queue has recorded");
}

strata_status st_cuda_event_wait_queue(st_event *event, st_queue *queue, strata_error *error)
{
    st_device *device = event->device;
    strata_status status = check_recorded(event, error);
    if (status != STRATA_OK) return status;
    return st_cuda_check(device, device->api->stream_wait(queue->stream, event->event), "waiting for an event", error);
}

bool st_cuda_event_done(const st_event *event)
{
    const st_device *device = event->device;
    return event->recorded && !__atomic_load_n(&device->lost, __ATOMIC_RELAXED) &&
           device->api->event_query(event->event) == ST_CUDA_OK;
}

strata_status st_cuda_event_wait_host(st_event *event, uint64_t limit_us, strata_error *error)
{
    st_device *device = event->device;
    strata_status status = check_recorded(event, error);
    if (status != STRATA_OK) return status;
    double end = st_clock_seconds() + 1e-6 * (double)limit_us;
    st_cuda_result result;
    while ((result = device->api->event_query(event->event)) == ST_CUDA_PENDING) {
        if (limit_us && st_clock_seconds() > end)
            return st_error_set(error, STRATA_DEVICE, NULL,
                                "%s: timed out: the work did not end within %llu µs", device->facts.name,
                                (unsigned long long)limit_us);
        sched_yield();
    }
    if (result != ST_CUDA_OK) return st_cuda_check(device, result, "the GPU's work", error);
    if (__atomic_exchange_n(device->timed_out, 0, __ATOMIC_ACQ_REL))
        return st_error_set(error, STRATA_DEVICE, NULL, "%s: timed out: a queue waited for a counter that was not set",
                            device->facts.name);
    return STRATA_OK;
}

double st_cuda_event_seconds(const st_event *event)
{
    double seconds = -1;
    const st_device *device = event->device;
    if (!st_cuda_event_done(event) || device->api->event_elapsed(device->epoch, event->event, &seconds) != ST_CUDA_OK) return -1;
    return seconds;
}

/* --- copies and counters ------------------------------------------------------------------------------------------ */

/* Waits until the last copy from a staging buffer has ended, so that it may be filled again. */
static st_cuda_result wait_for_piece(const st_device *device, uint32_t piece)
{
    st_cuda_result result;
    while ((result = device->api->event_query(device->staging.copied[piece])) == ST_CUDA_PENDING) sched_yield();
    return result;
}

/* Staged by hand: the driver stages copies from pageable memory as well, but blocks the caller until all is copied. */
static strata_status copy_staged(st_queue *queue, unsigned char *to, const unsigned char *from, size_t bytes, strata_error *error)
{
    st_device *device = queue->device;
    st_cuda_staging *staging = &device->staging;
    st_cuda_result result = ST_CUDA_OK;
    for (size_t done = 0; done < bytes && result == ST_CUDA_OK; done += ST_CUDA_PIECE_BYTES) {
        uint32_t piece = staging->next;
        size_t count = bytes - done < ST_CUDA_PIECE_BYTES ? bytes - done : ST_CUDA_PIECE_BYTES;
        unsigned char *buffer = staging->pieces + (size_t)piece * ST_CUDA_PIECE_BYTES;
        staging->next = (piece + 1) % ST_CUDA_PIECES;
        result = wait_for_piece(device, piece);
        if (result != ST_CUDA_OK) break;
        memcpy(buffer, from + done, count);
        result = device->api->copy(to + done, buffer, count, ST_COPY_UP, queue->stream);
        if (result == ST_CUDA_OK) result = device->api->event_record(staging->copied[piece], queue->stream);
    }
    return st_cuda_check(device, result, "a copy", error);
}

strata_status st_cuda_copy(st_queue *queue, st_copy_kind kind, void *to, const void *from, size_t bytes,
                           strata_error *error)
{
    st_device *device = queue->device;
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK || bytes == 0) return status;
    if (kind == ST_COPY_UP && !st_cuda_is_pinned(device, from, bytes)) return copy_staged(queue, to, from, bytes, error);
    return st_cuda_check(device, device->api->copy(to, from, bytes, kind, queue->stream), "a copy", error);
}

strata_status st_cuda_zero(st_queue *queue, void *memory, size_t bytes, strata_error *error)
{
    st_device *device = queue->device;
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK || bytes == 0) return status;
    return st_cuda_check(device, device->api->zero(memory, bytes, queue->stream), "zeroing memory", error);
}

strata_status st_cuda_signal(st_queue *queue, uint64_t *counter, uint64_t value, strata_error *error)
{
    st_device *device = queue->device;
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK) return status;
    return st_cuda_check(device, device->api->counter_set(counter, value, queue->stream), "setting a counter", error);
}

strata_status st_cuda_wait(st_queue *queue, uint64_t *counter, uint64_t value, uint64_t limit_us, strata_error *error)
{
    st_device *device = queue->device;
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK) return status;
    st_cuda_result result = device->api->counter_wait(counter, value, limit_us, device->timed_out, queue->stream);
    return st_cuda_check(device, result, "waiting for a counter", error);
}
