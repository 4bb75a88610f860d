/* A GPU as a device: opening and closing, memory. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/error.h"

enum { STAGING_BYTES = ST_CUDA_PIECES * ST_CUDA_PIECE_BYTES };

/* --- failures ----------------------------------------------------------------------------------------------------- */

static strata_status tell_lost(const st_device *device, strata_error *error)
{
    return st_error_set(error, STRATA_DEVICE_LOST,
                        "run strata again; if the GPU fails again, check its driver and hardware",
                        "the GPU %s failed and is no longer usable in this process", device->facts.name);
}

strata_status st_cuda_check(st_device *device, st_cuda_result result, const char *what, strata_error *error)
{
    static const strata_status statuses[] = {
        [ST_CUDA_OK] = STRATA_OK,         [ST_CUDA_PENDING] = STRATA_DEVICE, [ST_CUDA_NONE] = STRATA_DEVICE,
        [ST_CUDA_MEMORY] = STRATA_MEMORY, [ST_CUDA_FAILED] = STRATA_DEVICE,  [ST_CUDA_LOST] = STRATA_DEVICE_LOST};
    if (result == ST_CUDA_OK) return STRATA_OK;
    if (result == ST_CUDA_LOST) __atomic_store_n(&device->lost, true, __ATOMIC_RELAXED);
    return st_error_set(error, statuses[result], NULL, "%s: %s failed: %s", device->facts.name, what, device->api->reason());
}

strata_status st_cuda_enter(st_device *device, strata_error *error)
{
    if (__atomic_load_n(&device->lost, __ATOMIC_RELAXED)) return tell_lost(device, error);
    return st_cuda_check(device, device->api->use(device->index), "selecting the GPU", error);
}

/* --- pinned memory -------------------------------------------------------------------------------------------------- */

/* The pinned range that has all of it; NULL: none. */
static const st_cuda_pinned *find_range(const st_device *device, const void *memory, size_t bytes)
{
    for (const st_cuda_pinned *p = device->pinned; p; p = p->next) {
        uintptr_t offset = (uintptr_t)memory - (uintptr_t)p->memory;
        if (offset < p->bytes && bytes <= p->bytes - offset) return p;
    }
    return NULL;
}

bool st_cuda_is_pinned(const st_device *device, const void *memory, size_t bytes)
{
    return find_range(device, memory, bytes) != NULL;
}

bool st_cuda_is_mapped(const st_device *device, const void *memory, size_t bytes)
{
    const st_cuda_pinned *p = find_range(device, memory, bytes);
    return p && !p->elsewhere;
}

static strata_status list_pinned(st_device *device, const void *memory, size_t bytes, bool elsewhere, strata_error *error)
{
    st_cuda_pinned *entry = st_alloc_zero(1, sizeof *entry);
    if (!entry) return st_error_memory(error, sizeof *entry, "pinned memory");
    *entry = (st_cuda_pinned){.memory = memory, .bytes = bytes, .elsewhere = elsewhere, .next = device->pinned};
    device->pinned = entry;
    return STRATA_OK;
}

/* The link to the entry that begins at `memory`; NULL: not found. */
static st_cuda_pinned **find_pinned(st_device *device, const void *memory)
{
    for (st_cuda_pinned **at = &device->pinned; *at; at = &(*at)->next)
        if ((*at)->memory == memory) return at;
    return NULL;
}

static void unpin(st_device *device, st_cuda_pinned **at)
{
    st_cuda_pinned *entry = *at;
    *at = entry->next;
    device->api->use(device->index);
    if (entry->elsewhere) device->api->host_unpin(entry->memory);
    else device->api->host_free((void *)(uintptr_t)entry->memory, entry->bytes);
    st_free(entry);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void cuda_close(st_device *device)
{
    if (!device) return;
    device->api->use(device->index);
    if (device->epoch) device->api->event_free(device->epoch);
    if (device->stream) device->api->stream_free(device->stream);
    if (device->timed_out) device->api->host_free(device->timed_out, sizeof *device->timed_out);
    for (int i = 0; i < ST_CUDA_TABLE_BLOCKS; i++)
        if (device->tables[i]) device->api->host_free((void *)(uintptr_t)device->tables[i], ST_CUDA_TABLES_BYTES);
    for (int i = 0; i < ST_CUDA_PIECES; i++)
        if (device->staging.copied[i]) device->api->event_free(device->staging.copied[i]);
    if (device->staging.pieces) device->api->host_free(device->staging.pieces, STAGING_BYTES);
    while (device->pinned) unpin(device, &device->pinned);
    st_free(device);
}

/* Streams allocate device memory that the context never returns. Creating and freeing them here makes it part of the
 * memory in use before free memory is measured. */
static strata_status open_streams(st_device *device, strata_error *error)
{
    void *streams[ST_CUDA_STREAMS] = {NULL};
    st_cuda_result result = ST_CUDA_OK;
    for (int i = 0; i < ST_CUDA_STREAMS && result == ST_CUDA_OK; i++) result = device->api->stream_new(&streams[i]);
    for (int i = 0; i < ST_CUDA_STREAMS; i++)
        if (streams[i]) device->api->stream_free(streams[i]);
    return st_cuda_check(device, result, "creating streams", error);
}

static strata_status open_staging(st_device *device, strata_error *error)
{
    const st_cuda_api *api = device->api;
    void *pieces = NULL;
    st_cuda_result result = api->host_alloc(&pieces, STAGING_BYTES);
    device->staging.pieces = pieces;
    for (int i = 0; i < ST_CUDA_PIECES && result == ST_CUDA_OK; i++) {
        result = api->event_new(&device->staging.copied[i]);
        if (result == ST_CUDA_OK) result = api->event_record(device->staging.copied[i], device->stream);
    }
    return st_cuda_check(device, result, "creating staging buffers", error);
}

strata_status st_cuda_tables_block(st_device *device, uint32_t block, strata_error *error)
{
    void *memory = NULL;
    if (device->tables[block]) return STRATA_OK;
    st_cuda_result result = device->api->host_alloc(&memory, ST_CUDA_TABLES_BYTES);
    device->tables[block] = memory;
    return st_cuda_check(device, result, "pinning memory for expert tables", error);
}

static strata_status open_context(st_device *device, strata_error *error)
{
    const st_cuda_api *api = device->api;
    void *word = NULL;
    strata_status status = st_cuda_enter(device, error);
    if (status == STRATA_OK) status = st_cuda_check(device, api->load(), "loading the kernels", error);
    if (status == STRATA_OK) status = open_streams(device, error);
    if (status == STRATA_OK) status = st_cuda_check(device, api->stream_new(&device->stream), "creating a stream", error);
    if (status == STRATA_OK) status = st_cuda_graphs_reserve(device, error);
    if (status == STRATA_OK) status = st_cuda_check(device, api->event_new(&device->epoch), "creating an event", error);
    if (status == STRATA_OK)
        status = st_cuda_check(device, api->event_record(device->epoch, device->stream), "recording an event", error);
    if (status == STRATA_OK) status = st_cuda_check(device, api->host_alloc(&word, sizeof(uint32_t)), "pinning memory", error);
    if (status != STRATA_OK) return status;
    device->timed_out = word;
    *device->timed_out = 0;
    status = st_cuda_tables_block(device, 0, error);
    return status == STRATA_OK ? open_staging(device, error) : status;
}

strata_status st_cuda_open(const st_cuda_api *api, const st_device_options *options, st_device **out, strata_error *error)
{
    st_device *device = st_alloc_zero(1, sizeof *device);
    if (!device) return st_error_memory(error, sizeof *device, "the GPU");
    device->api = api;
    device->index = (int)options->index;
    device->profile = options->profile;
    st_cuda_result found = api->facts(device->index, &device->facts);
    strata_status status = STRATA_OK;
    if (found != ST_CUDA_OK)
        status = st_error_set(error, found == ST_CUDA_LOST ? STRATA_DEVICE_LOST : STRATA_DEVICE, "use placement.device cpu",
                              "CUDA GPU %d not found: %s", device->index, api->reason());
    if (status == STRATA_OK) status = open_context(device, error);
    if (status != STRATA_OK) {
        cuda_close(device);
        return status;
    }
    *out = device;
    return STRATA_OK;
}

static void cuda_info(const st_device *device, st_device_info *out)
{
    *out = (st_device_info){.name = device->facts.name, .alignment = ST_CUDA_ALIGNMENT, .workers = 1,
                             .pinned_per_byte = ST_CUDA_PINNED_PER_BYTE};
    if (device->api->use(device->index) == ST_CUDA_OK) device->api->memory(&out->free_bytes, &out->total_bytes);
}

static void cuda_times(const st_device *device, st_op_time out[ST_OP_COUNT])
{
    memcpy(out, device->times, sizeof device->times);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

strata_status st_cuda_alloc(st_device *device, size_t bytes, void **out, strata_error *error)
{
    void *memory = NULL;
    size_t free_bytes = 0, total_bytes = 0;
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK) return status;
    st_cuda_result result = device->api->alloc(&memory, bytes);
    if (result == ST_CUDA_OK) {
        *out = memory;
        return STRATA_OK;
    }
    status = st_cuda_check(device, result, "an allocation", error);
    if (result != ST_CUDA_MEMORY || device->api->memory(&free_bytes, &total_bytes) != ST_CUDA_OK) return status;
    return st_error_set(error, STRATA_MEMORY, "use a smaller options.context, or fewer placement.layers",
                        "%s: %zu bytes asked for, %zu of %zu are free", device->facts.name, bytes, free_bytes, total_bytes);
}

void st_cuda_free(st_device *device, void *memory)
{
    if (!memory) return;
    device->api->use(device->index);
    device->api->free(memory);
}

/* If pinning fails (a limit on locked memory), allocates pageable memory; copies from it go through staging. */
strata_status st_cuda_host_alloc(st_device *device, size_t bytes, void **out, bool *pinned, strata_error *error)
{
    void *memory = NULL;
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK) return status;
    st_cuda_result result = device->api->host_alloc(&memory, bytes);
    if (result == ST_CUDA_LOST) return st_cuda_check(device, result, "pinning memory", error);
    if (result == ST_CUDA_OK) status = list_pinned(device, memory, bytes, false, error);
    else memory = st_alloc_aligned(bytes, ST_CUDA_ALIGNMENT);
    if (status != STRATA_OK) device->api->host_free(memory, bytes);
    if (status == STRATA_OK && !memory) status = st_error_memory(error, bytes, "the host's memory");
    if (status != STRATA_OK) return status;
    *pinned = result == ST_CUDA_OK;
    *out = memory;
    return STRATA_OK;
}

void st_cuda_host_free(st_device *device, void *memory)
{
    st_cuda_pinned **entry = find_pinned(device, memory);
    if (entry) unpin(device, entry);
    else st_free(memory);
}

/* The driver pins whole pages. */
static strata_status cuda_host_pin(st_device *device, const void *memory, size_t bytes, bool *pinned, strata_error *error)
{
    strata_status status = st_cuda_enter(device, error);
    if (status != STRATA_OK) return status;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)memory / page * page;
    size_t whole = ((uintptr_t)memory + bytes - first + page - 1) / page * page;
    st_cuda_result result = device->api->host_pin((const void *)first, whole);
    *pinned = result == ST_CUDA_OK;
    if (result == ST_CUDA_LOST) return st_cuda_check(device, result, "pinning memory", error);
    if (result != ST_CUDA_OK) return STRATA_OK;
    status = list_pinned(device, (const void *)first, whole, true, error);
    if (status != STRATA_OK) device->api->host_unpin((const void *)first);
    return status;
}

static void cuda_host_unpin(st_device *device, const void *memory)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    st_cuda_pinned **entry = find_pinned(device, (const void *)((uintptr_t)memory / page * page));
    if (entry) unpin(device, entry);
}

const st_backend st_cuda_backend = {
    .version = ST_BACKEND_VERSION,
    .name = "cuda",
    .close = cuda_close,
    .info = cuda_info,
    .scratch = st_cuda_scratch,
    .types = st_cuda_types,
    .runs = st_cuda_runs,
    .probe = st_cuda_probe,
    .times = cuda_times,
    .alloc = st_cuda_alloc,
    .free = st_cuda_free,
    .host_alloc = st_cuda_host_alloc,
    .host_free = st_cuda_host_free,
    .host_pin = cuda_host_pin,
    .host_unpin = cuda_host_unpin,
    .queue_new = st_cuda_queue_new,
    .queue_free = st_cuda_queue_free,
    .event_new = st_cuda_event_new,
    .event_free = st_cuda_event_free,
    .event_record = st_cuda_event_record,
    .event_wait_queue = st_cuda_event_wait_queue,
    .event_done = st_cuda_event_done,
    .event_wait_host = st_cuda_event_wait_host,
    .event_seconds = st_cuda_event_seconds,
    .copy = st_cuda_copy,
    .zero = st_cuda_zero,
    .signal = st_cuda_signal,
    .wait = st_cuda_wait,
    .prepare = st_cuda_prepare,
    .launch = st_cuda_launch,
    .segment_free = st_cuda_segment_free,
    .chain_new = st_cuda_chain_new,
    .chain_free = st_cuda_chain_free,
    .chain_rows = st_cuda_chain_rows,
    .chain_launch = st_cuda_chain_launch,
    .chain_await = st_cuda_chain_await,
    .chain_answer = st_cuda_chain_answer,
    .chain_abandon = st_cuda_chain_abandon,
};
