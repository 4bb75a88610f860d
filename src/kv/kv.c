/* A sequence's memory: one block, a position, and snapshots of what cannot be rewound. */
#include "kv/kv.h"

#include "base/alloc.h"
#include "base/error.h"

typedef struct snapshot {
    uint32_t position;
    uint64_t age; /* 0: empty */
} snapshot;

struct st_kv {
    const st_kv_layout *layout;
    const st_backend *backend;
    st_device *device;
    st_queue *queue;
    unsigned char *block;
    uint32_t position;
    uint32_t highest;    /* one past the highest position ever stored: what rings have overwritten */
    snapshot *snapshots; /* [layout->options.snapshots] */
    uint64_t clock;
};

static strata_status clear_state(st_kv *kv, strata_error *error)
{
    return kv->backend->zero(kv->queue, kv->block + kv->layout->state_offset, kv->layout->state_bytes, error);
}

strata_status st_kv_new(const st_kv_layout *layout, const st_backend *backend, st_device *device, st_queue *queue,
                        st_kv **out, strata_error *error)
{
    st_kv *kv = st_alloc_zero(1, sizeof *kv);
    if (!kv) return st_error_memory(error, sizeof *kv, "the KV cache");
    *kv = (st_kv){.layout = layout, .backend = backend, .device = device, .queue = queue};
    kv->snapshots = st_alloc_zero(layout->options.snapshots, sizeof *kv->snapshots);
    void *block = NULL;
    strata_status status = kv->snapshots ? STRATA_OK : st_error_memory(error, sizeof *kv->snapshots, "the KV cache");
    if (status == STRATA_OK) status = backend->alloc(device, layout->total_bytes, &block, error);
    kv->block = block;
    if (status == STRATA_OK) status = clear_state(kv, error);
    if (status != STRATA_OK) {
        st_kv_free(kv);
        return status;
    }
    *out = kv;
    return STRATA_OK;
}

void st_kv_free(st_kv *kv)
{
    if (!kv) return;
    if (kv->block) kv->backend->free(kv->device, kv->block);
    st_free(kv->snapshots);
    st_free(kv);
}

st_kv_view st_kv_view_of(const st_kv *kv, uint32_t layer)
{
    const st_kv_layer *l = &kv->layout->layers[layer];
    return (st_kv_view){.keys = kv->block + l->keys_offset,
                        .values = kv->block + l->values_offset,
                        .key_row_bytes = l->key_row_bytes,
                        .value_row_bytes = l->value_row_bytes,
                        .capacity = l->capacity,
                        .type = kv->layout->options.type};
}

st_state_view st_kv_state_of(const st_kv *kv, uint32_t layer)
{
    const st_kv_layer *l = &kv->layout->layers[layer];
    return (st_state_view){.conv = (float *)(void *)(kv->block + l->conv_offset),
                           .delta = (float *)(void *)(kv->block + l->delta_offset)};
}

uint32_t st_kv_position(const st_kv *kv)
{
    return kv->position;
}

void st_kv_advance(st_kv *kv, uint32_t count)
{
    kv->position += count;
    if (kv->highest < kv->position) kv->highest = kv->position;
}

/* Whether every ring still holds what the token at `position` would look back at. */
static bool rings_reach(const st_kv *kv, uint32_t position)
{
    for (uint32_t i = 0; i < kv->layout->layer_count; i++) {
        const st_kv_layer *l = &kv->layout->layers[i];
        if (l->span == 0 || l->capacity == 0 || kv->highest <= l->capacity) continue;
        uint32_t oldest_kept = kv->highest - l->capacity;
        uint32_t oldest_seen = position + 1 > l->span ? position + 1 - l->span : 0;
        if (oldest_seen < oldest_kept) return false;
    }
    return true;
}

static const snapshot *nearest_snapshot(const st_kv *kv, uint32_t position)
{
    const snapshot *best = NULL;
    for (uint32_t i = 0; i < kv->layout->options.snapshots; i++) {
        const snapshot *s = &kv->snapshots[i];
        if (s->age && s->position <= position && (!best || s->position > best->position)) best = s;
    }
    return best;
}

static unsigned char *snapshot_bytes(const st_kv *kv, const snapshot *s)
{
    const st_kv_layout *layout = kv->layout;
    return kv->block + layout->state_offset + layout->state_bytes * (1 + (size_t)(s - kv->snapshots));
}

static strata_status start_again(st_kv *kv, uint32_t *reached, strata_error *error)
{
    strata_status status = clear_state(kv, error);
    if (status != STRATA_OK) return status;
    kv->position = kv->highest = 0;
    for (uint32_t i = 0; i < kv->layout->options.snapshots; i++) kv->snapshots[i].age = 0;
    *reached = 0;
    return STRATA_OK;
}

/* Snapshots past the point belong to a future that will not be. */
static void forget_snapshots_after(st_kv *kv, uint32_t position)
{
    for (uint32_t i = 0; i < kv->layout->options.snapshots; i++)
        if (kv->snapshots[i].position > position) kv->snapshots[i].age = 0;
}

strata_status st_kv_rewind(st_kv *kv, uint32_t position, uint32_t *reached, strata_error *error)
{
    /* To the beginning even from there: a batch that broke off may have left something in the state. */
    if (position == 0) return start_again(kv, reached, error);
    if (position >= kv->position) {
        *reached = kv->position;
        return STRATA_OK;
    }
    if (!rings_reach(kv, position)) return start_again(kv, reached, error);
    if (kv->layout->state_bytes) {
        const snapshot *s = nearest_snapshot(kv, position);
        if (!s || !rings_reach(kv, s->position)) return start_again(kv, reached, error);
        strata_status status =
            kv->backend->copy(kv->queue, ST_COPY_WITHIN, kv->block + kv->layout->state_offset, snapshot_bytes(kv, s),
                              kv->layout->state_bytes, error);
        if (status != STRATA_OK) return status;
        position = s->position;
    }
    kv->position = position;
    forget_snapshots_after(kv, position);
    *reached = position;
    return STRATA_OK;
}

strata_status st_kv_snapshot(st_kv *kv, strata_error *error)
{
    if (kv->layout->state_bytes == 0 || kv->layout->options.snapshots == 0) return STRATA_OK;
    snapshot *place = &kv->snapshots[0];
    for (uint32_t i = 0; i < kv->layout->options.snapshots; i++) {
        snapshot *s = &kv->snapshots[i];
        if (s->age && s->position == kv->position) return STRATA_OK;
        if (s->age < place->age) place = s;
    }
    strata_status status = kv->backend->copy(kv->queue, ST_COPY_WITHIN, snapshot_bytes(kv, place),
                                             kv->block + kv->layout->state_offset, kv->layout->state_bytes, error);
    if (status != STRATA_OK) return status;
    *place = (snapshot){.position = kv->position, .age = ++kv->clock};
    return STRATA_OK;
}
