#include "run/load.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

enum { WAIT_LIMIT_US = 600 * 1000 * 1000 };

struct st_load {
    const st_plan_source *source;
    const st_plan *plan;
    st_load_device devices[ST_DEVICES_MAX];
    st_load_options options;
    st_ledger *ledger;
    const void **weights[ST_DEVICES_MAX]; /* [weights] */
    st_run *run;
    st_stream *stream;                    /* NULL: no expert cache */
    st_queue *queue;                      /* of the GPU, while weights are copied */
    st_event *event;
    const void **pinned;                  /* [file_count]: start of the file's pinned range; NULL: not pinned */
    uint32_t file_count;
    bool refused;                         /* pinning has failed: the user has been told */
    bool populated;                       /* the page tables have all weights */
    uint64_t done_bytes, total_bytes;     /* of weights */
    uint64_t placed_bytes[ST_DEVICES_MAX]; /* in each block: the sum of the owners' ranges … */
    uint64_t end_bytes[ST_DEVICES_MAX];    /* … and the end of the last range */
};

/* --- the ledger --------------------------------------------------------------------------------------------------- */

static strata_status open_ledger(st_load *load, strata_error *error)
{
    const st_plan *plan = load->plan;
    strata_status status = st_ledger_new(plan->device_count, load->options.trace, load->options.context, &load->ledger,
                                         error);
    if (status != STRATA_OK) return status;
    for (uint32_t d = 0; d < plan->device_count; d++) {
        const st_plan_device *device = &plan->devices[d];
        st_ledger_name(load->ledger, d, device->profile->name, device->capacity_bytes);
        for (int owner = 0; owner < ST_OWNER_COUNT; owner++)
            st_ledger_reserve(load->ledger, d, (st_owner)owner, device->owners[owner]);
    }
    st_ledger_commit(load->ledger, ST_HOST, ST_OWNER_RUNTIME, plan->devices[ST_HOST].owners[ST_OWNER_RUNTIME]);
    if (plan->device_count > 1)
        st_ledger_commit(load->ledger, ST_CARD, ST_OWNER_RUNTIME, plan->devices[ST_CARD].owners[ST_OWNER_RUNTIME]);
    st_ledger_mark(load->ledger, "start");
    return STRATA_OK;
}

static strata_status allocate_blocks(st_load *load, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t d = 0; d < load->plan->device_count && status == STRATA_OK; d++) {
        /* The GPU copies from and to the host's block: its backend pins it. */
        const st_load_device *owner = &load->devices[load->plan->device_count - 1];
        if (d == ST_CARD) owner = &load->devices[ST_CARD];
        status = st_ledger_allocate(load->ledger, d, owner->backend, owner->device, load->plan->devices[d].block_bytes,
                                    d == ST_HOST, error);
    }
    return status;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

static st_owner owner_of(const st_weight *w)
{
    return st_role_is_expert(w->role) ? ST_OWNER_EXPERTS : ST_OWNER_WEIGHTS;
}

static uint32_t part_count(const st_weight *w)
{
    return w->parts ? (uint32_t)w->ne[2] : 1;
}

static const st_gguf_tensor *part_at(const st_weight *w, uint32_t i)
{
    return w->parts ? w->parts[i] : w->tensor;
}

static strata_status report_progress(st_load *load, uint64_t bytes, strata_error *error)
{
    load->done_bytes += bytes;
    if (!load->options.progress || load->options.progress(load->options.context, load->done_bytes, load->total_bytes))
        return STRATA_OK;
    return st_error_set(error, STRATA_INTERRUPTED, NULL, "loading was interrupted");
}

/* Weights on the host are mapped: pages are read now, unless the plan leaves weights on disk. */
static strata_status load_on_host(st_load *load, uint32_t index, strata_error *error)
{
    const st_weight *w = &load->source->binding->weights[index];
    strata_status status = STRATA_OK;
    load->weights[ST_HOST][index] = w->tensor->data;
    for (uint32_t i = 0; i < part_count(w) && status == STRATA_OK; i++) {
        const st_gguf_tensor *tensor = part_at(w, i);
        if (!load->plan->on_disk && !load->options.untouched && !load->populated)
            st_file_populate(tensor->data, tensor->bytes);
        status = report_progress(load, tensor->bytes, error);
    }
    if (!load->plan->on_disk) st_ledger_commit(load->ledger, ST_HOST, owner_of(w), w->bytes);
    return status;
}

static strata_status upload_tensor(st_load *load, unsigned char *to, const st_gguf_tensor *tensor, strata_error *error)
{
    const st_backend *card = load->devices[ST_CARD].backend;
    strata_status status = card->copy(load->queue, ST_COPY_UP, to, tensor->data, tensor->bytes, error);
    return status == STRATA_OK ? report_progress(load, tensor->bytes, error) : status;
}

/* Records a range of a device's block in the ledger. */
static void place(st_load *load, uint32_t device, st_owner owner, uint64_t offset, uint64_t bytes)
{
    st_ledger_commit(load->ledger, device, owner, bytes);
    load->placed_bytes[device] += bytes;
    if (bytes && load->end_bytes[device] < offset + bytes) load->end_bytes[device] = offset + bytes;
}

static strata_status load_on_gpu(st_load *load, uint32_t index, strata_error *error)
{
    const st_weight *w = &load->source->binding->weights[index];
    size_t offset = load->plan->weight_offset[ST_CARD][index];
    if (offset == SIZE_MAX) return STRATA_OK; /* the stream loads cached experts into slots */
    unsigned char *to = st_ledger_block(load->ledger, ST_CARD) + offset;
    load->weights[ST_CARD][index] = to;
    place(load, ST_CARD, owner_of(w), offset, w->bytes);
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < part_count(w) && status == STRATA_OK; i++) {
        status = upload_tensor(load, to, part_at(w, i), error);
        to += part_at(w, i)->bytes;
    }
    return status;
}

/* --- the mapped files ------------------------------------------------------------------------------------------- */

/* A layer's weights, or those of EVERY_LAYER, that a range is to hold. */
typedef bool (*weight_filter)(const st_load *load, uint32_t index, int32_t layer);

enum { EVERY_LAYER = INT32_MIN };

static bool is_any(const st_load *load, uint32_t index, int32_t layer)
{
    (void)load;
    (void)index;
    (void)layer;
    return true;
}

/* The range of a file that holds the weights; 0 bytes: it has none. */
static size_t range_of(const st_load *load, uint32_t file, weight_filter holds, int32_t layer, const unsigned char **first)
{
    const unsigned char *end = *first = NULL;
    for (uint32_t i = 0; i < load->source->binding->count; i++) {
        const st_weight *w = &load->source->binding->weights[i];
        for (uint32_t k = 0; holds(load, i, layer) && k < part_count(w); k++) {
            const st_gguf_tensor *tensor = part_at(w, k);
            if (tensor->file != file || tensor->bytes == 0) continue;
            if (!*first || tensor->data < *first) *first = tensor->data;
            if (tensor->data + tensor->bytes > end) end = tensor->data + tensor->bytes;
        }
    }
    return *first ? (size_t)(end - *first) : 0;
}

static void count_files(st_load *load)
{
    const st_binding *binding = load->source->binding;
    for (uint32_t i = 0; i < binding->count; i++)
        for (uint32_t k = 0; k < part_count(&binding->weights[i]); k++) {
            uint32_t file = part_at(&binding->weights[i], k)->file;
            if (file >= load->file_count) load->file_count = file + 1;
        }
}

/* A piece that takes longer is read from a disk: to users who do not own the file the system reports every page as cached. */
#define PIECE_BYTES ((size_t)1 << 30)
#define PIECE_SECONDS 0.5

static bool populate_file(const unsigned char *first, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        double begin = st_clock_seconds();
        size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        if (!st_file_populate_cached(first + at, piece) || st_clock_seconds() - begin > PIECE_SECONDS) return false;
    }
    return true;
}

/* Files that the page cache does not have are read tensor by tensor, with progress. */
static void populate_cached(st_load *load)
{
    const unsigned char *first;
    if (load->plan->on_disk || load->options.untouched) return;
    load->populated = true;
    for (uint32_t file = 0; file < load->file_count; file++) {
        size_t bytes = range_of(load, file, is_any, EVERY_LAYER, &first);
        load->populated = populate_file(first, bytes) && load->populated;
    }
}

/* --- pinning the mapped files: uploads from pinned memory need no staging ---------------------------------------- */

/* Without weights that are streamed one layer is pinned at a time, because the GPU's page tables grow with pinned
 * memory. A larger layer is not pinned. */
#define LAYER_BYTES_MAX ((size_t)2 << 30)

static bool has_cache(const st_load *load)
{
    return load->plan->experts.mode == ST_MOE_CACHE;
}

/* Whether weights are copied to the GPU at run time. */
static bool streams(const st_load *load)
{
    return has_cache(load) || load->plan->dense.rows > 0;
}

static bool is_uploaded(const st_load *load, uint32_t index, int32_t layer)
{
    const st_weight *w = &load->source->binding->weights[index];
    bool cached = has_cache(load) && st_role_is_expert(w->role);
    bool resident = load->plan->weight_devices[index] & (1u << ST_CARD);
    bool dense = load->plan->dense.rows > 0 && w->layer >= 0 && !st_role_is_expert(w->role);
    return (layer == EVERY_LAYER || w->layer == layer) && (resident || cached || dense);
}

static strata_status list_pinned(st_load *load, strata_error *error)
{
    load->pinned = st_alloc_zero(load->file_count, sizeof *load->pinned);
    if (!load->pinned) return st_error_memory(error, load->file_count * sizeof *load->pinned, "pinning the file");
    return STRATA_OK;
}

/* If pinning fails, copies are slower; one note tells the user. A plan with weights on disk pins nothing. */
static strata_status pin_files(st_load *load, int32_t layer, strata_error *error)
{
    const st_load_device *card = &load->devices[ST_CARD];
    const unsigned char *first;
    strata_status status = STRATA_OK;
    if (load->plan->device_count < 2 || !card->backend->host_pin || load->plan->on_disk) return STRATA_OK;
    if (!load->pinned) status = list_pinned(load, error);
    for (uint32_t file = 0; file < load->file_count && status == STRATA_OK; file++) {
        bool pinned = false;
        size_t bytes = range_of(load, file, is_uploaded, layer, &first);
        if (bytes == 0 || (layer != EVERY_LAYER && bytes > LAYER_BYTES_MAX)) continue;
        status = card->backend->host_pin(card->device, first, bytes, &pinned, error);
        if (status == STRATA_OK && !pinned && !load->refused)
            st_log(ST_LOG_NOTE,
                   "%s: %zu bytes of the model's file cannot be pinned: weights are copied through buffers",
                   load->plan->devices[ST_CARD].profile->name, bytes);
        load->refused = load->refused || !pinned;
        load->pinned[file] = pinned ? first : NULL;
    }
    return status;
}

static void unpin_files(st_load *load)
{
    const st_load_device *card = &load->devices[ST_CARD];
    for (uint32_t file = 0; load->pinned && file < load->file_count; file++) {
        if (load->pinned[file]) card->backend->host_unpin(card->device, load->pinned[file]);
        load->pinned[file] = NULL;
    }
}

static strata_status load_layer(st_load *load, int32_t layer, strata_error *error)
{
    const st_binding *binding = load->source->binding;
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < binding->count && status == STRATA_OK; i++) {
        uint8_t devices = load->plan->weight_devices[i];
        if (binding->weights[i].layer != layer) continue;
        if (devices & (1u << ST_HOST)) status = load_on_host(load, i, error);
        if (status == STRATA_OK && devices & (1u << ST_CARD)) status = load_on_gpu(load, i, error);
    }
    return status;
}

/* A layer's copies are enqueued together; the loader waits once, at the layer's end. */
static strata_status wait_for_copies(st_load *load, strata_error *error)
{
    if (!load->queue) return STRATA_OK;
    const st_backend *card = load->devices[ST_CARD].backend;
    strata_status status = card->event_record(load->event, load->queue, error);
    return status == STRATA_OK ? card->event_wait_host(load->event, WAIT_LIMIT_US, error) : status;
}

static strata_status load_weights(st_load *load, strata_error *error)
{
    const st_binding *binding = load->source->binding;
    for (uint32_t i = 0; i < binding->count; i++)
        for (uint32_t d = 0; d < load->plan->device_count; d++)
            if (load->plan->weight_devices[i] & (1u << d)) load->total_bytes += binding->weights[i].bytes;
    strata_status status = STRATA_OK;
    if (load->plan->device_count > 1) {
        const st_load_device *card = &load->devices[ST_CARD];
        status = card->backend->queue_new(card->device, ST_QUEUE_UP, &load->queue, error);
        if (status == STRATA_OK) status = card->backend->event_new(card->device, &load->event, error);
    }
    int32_t layers = (int32_t)(load->source->desc->layer_count + load->source->desc->nextn_count);
    for (int32_t layer = -1; layer < layers && status == STRATA_OK; layer++) {
        char moment[32];
        if (!streams(load)) status = pin_files(load, layer, error);
        if (status == STRATA_OK) status = load_layer(load, layer, error);
        if (status == STRATA_OK) status = wait_for_copies(load, error);
        if (!streams(load)) unpin_files(load);
        snprintf(moment, sizeof moment, layer < 0 ? "embedding and output" : "layer %d", layer);
        if (status == STRATA_OK) st_ledger_mark(load->ledger, moment);
    }
    return status;
}

/* --- the rest of the blocks --------------------------------------------------------------------------------------- */

static void place_slots(st_load *load)
{
    const st_plan *plan = load->plan;
    if (plan->dense.rows)
        place(load, ST_CARD, ST_OWNER_STAGING, plan->dense.offset, ST_FETCH_BUFFERS * plan->dense.buffer_bytes);
    if (plan->experts.mode != ST_MOE_CACHE) return;
    uint64_t bytes = 0;
    uint32_t layers = load->source->desc->layer_count + load->source->desc->nextn_count;
    for (uint32_t i = 0; i < layers; i++) bytes += plan->experts.slots[i] * plan->experts.slot_bytes[i];
    place(load, ST_CARD, ST_OWNER_SLOTS, plan->slots_offset, bytes);
    place(load, ST_CARD, ST_OWNER_STAGING, plan->expert_staging_offset, plan->expert_staging_bytes);
}

static void place_kv(st_load *load, uint32_t device, uint64_t at, const st_kv_layout *kv)
{
    uint64_t cache = 0, state = kv->options.carry * sizeof(float) * kv->options.conversations;
    for (uint32_t i = 0; i < kv->layer_count; i++) {
        cache += st_kv_layer_bytes(kv, &kv->layers[i]);
        state += st_kv_layer_state_bytes(kv, &kv->layers[i]);
    }
    place(load, device, ST_OWNER_KV, at, cache);
    place(load, device, ST_OWNER_STATE, at, state);
}

/* The memory of the executor. */
static void place_executor(st_load *load)
{
    for (uint32_t d = 0; d < load->plan->device_count; d++) {
        const st_plan_memory *s = &load->plan->memory[d];
        uint64_t at = load->plan->memory_offset[d];
        place_kv(load, d, at + s->kv_offset, s->kv);
        place(load, d, ST_OWNER_RESTORE, at + s->restore_offset, d == ST_HOST ? load->plan->restore_bytes : 0);
        place(load, d, ST_OWNER_TIER, at + s->tier_offset, d == ST_HOST ? load->plan->tier_bytes : 0);
        place(load, d, ST_OWNER_SCRATCH, at + s->working_offset, s->working.bytes);
        place(load, d, ST_OWNER_STAGING, at + s->staging_offset, s->staging_bytes);
        if (s->bytes) load->end_bytes[d] = at + s->bytes;
    }
}

static strata_status open_stream(st_load *load, strata_error *error)
{
    if (load->plan->experts.mode != ST_MOE_CACHE) return STRATA_OK;
    const st_load_device *card = &load->devices[ST_CARD];
    st_stream_source source = {.plan_source = load->source, .plan = load->plan, .backend = card->backend,
                               .device = card->device, .block = st_ledger_block(load->ledger, ST_CARD),
                               .host_weights = load->weights[ST_HOST], .stats = load->options.stats};
    return st_stream_new(&source, &load->options.experts, &load->stream, error);
}

static strata_status open_run(st_load *load, strata_error *error)
{
    const st_plan *plan = load->plan;
    st_run_source run = {.desc = load->source->desc, .binding = load->source->binding, .program = load->source->program,
                         .plan = plan, .stream = load->stream, .watch = load->options.watch,
                         .recorded = load->options.recorded};
    if (plan->dense.rows) run.dense_buffers = st_ledger_block(load->ledger, ST_CARD) + plan->dense.offset;
    for (uint32_t d = 0; d < plan->device_count; d++)
        run.devices[d] = (st_run_device){
            .backend = load->devices[d].backend,
            .device = load->devices[d].device,
            .memory = st_ledger_block(load->ledger, d) + plan->memory_offset[d],
            .weights = load->weights[d]};
    return st_run_new(&run, &load->run, error);
}

/* The gaps between ranges, and the rest of the block. */
static void place_gaps(st_load *load)
{
    for (uint32_t d = 0; d < load->plan->device_count; d++) {
        uint64_t block = load->plan->devices[d].block_bytes, end = load->end_bytes[d];
        st_ledger_commit(load->ledger, d, ST_OWNER_PADDING, end - load->placed_bytes[d]);
        st_ledger_commit(load->ledger, d, ST_OWNER_GRANULARITY, block > end ? block - end : 0);
    }
}

/* A difference between planned and allocated bytes is a bug in strata; the model still runs, so it is only logged. */
static void compare(const st_load *load)
{
    strata_error difference = {0};
    if (st_ledger_check(load->ledger, &difference) != STRATA_OK) st_log(ST_LOG_WARN, "%s", difference.message);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static strata_status load_all(st_load *load, strata_error *error)
{
    for (uint32_t d = 0; d < load->plan->device_count; d++) {
        uint32_t count = load->source->binding->count;
        load->weights[d] = st_alloc_zero(count, sizeof *load->weights[d]);
        if (!load->weights[d]) return st_error_memory(error, count * sizeof *load->weights[d], "weight addresses");
    }
    strata_status status = open_ledger(load, error);
    if (status == STRATA_OK) status = allocate_blocks(load, error);
    if (status != STRATA_OK) return status;
    count_files(load);
    populate_cached(load);
    if (streams(load)) status = pin_files(load, EVERY_LAYER, error);
    if (status == STRATA_OK) status = load_weights(load, error);
    if (status != STRATA_OK) return status;
    place_slots(load);
    status = open_stream(load, error);
    if (status != STRATA_OK) return status;
    place_executor(load);
    status = open_run(load, error);
    if (status != STRATA_OK) return status;
    st_ledger_mark(load->ledger, "KV and scratch");
    place_gaps(load);
    st_ledger_lock(load->ledger);
    st_ledger_mark(load->ledger, "end");
    compare(load);
    return STRATA_OK;
}

strata_status st_load_new(const st_plan_source *source, const st_plan *plan, const st_load_device *devices,
                          const st_load_options *options, st_load **out, strata_error *error)
{
    if (options->watch && !plan->watched)
        return st_error_set(error, STRATA_RUNTIME, NULL, "the plan has no stages that show the routing");
    st_load *load = st_alloc_zero(1, sizeof *load);
    if (!load) return st_error_memory(error, sizeof *load, "the loader");
    *load = (st_load){.source = source, .plan = plan, .options = *options};
    for (uint32_t d = 0; d < plan->device_count; d++) load->devices[d] = devices[d];
    strata_status status = load_all(load, error);
    if (load->event) load->devices[ST_CARD].backend->event_free(load->event);
    if (load->queue) load->devices[ST_CARD].backend->queue_free(load->queue);
    load->event = NULL;
    load->queue = NULL;
    if (status != STRATA_OK) {
        st_load_free(load);
        return status;
    }
    *out = load;
    return STRATA_OK;
}

void st_load_free(st_load *load)
{
    if (!load) return;
    st_run_free(load->run);
    st_stream_free(load->stream);
    unpin_files(load);
    st_free(load->pinned);
    strata_error kept;
    if (st_ledger_close(load->ledger, &kept) != STRATA_OK) st_log(ST_LOG_WARN, "%s", kept.message);
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++) st_free(load->weights[d]);
    st_free(load);
}

st_run *st_load_run(const st_load *load)
{
    return load->run;
}

st_stream *st_load_stream(const st_load *load)
{
    return load->stream;
}

const st_ledger *st_load_ledger(const st_load *load)
{
    return load->ledger;
}
