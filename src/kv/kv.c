/* The KV cache of a sequence: its position, rewinding, and snapshots of recurrent state. */
#include "kv/kv.h"

#include "base/alloc.h"
#include "base/error.h"

typedef struct snapshot {
    uint32_t position;
    uint64_t age; /* 0: empty */
} snapshot;

struct st_kv {
    st_kv_share shares[ST_KV_SHARES_MAX];
    uint32_t share_count;
    uint32_t snapshot_count;
    bool has_state;
    uint32_t position;
    uint32_t highest;    /* one past the highest position ever stored: tells what the rings have overwritten */
    snapshot *snapshots; /* [snapshot_count] */
    uint64_t clock;
};

static strata_status clear_state(st_kv *kv, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < kv->share_count && status == STRATA_OK; i++) {
        const st_kv_share *s = &kv->shares[i];
        status = s->backend->zero(s->queue, s->memory + s->layout->state_offset, s->layout->state_bytes, error);
    }
    return status;
}

strata_status st_kv_new(const st_kv_share *shares, uint32_t count, st_kv **out, strata_error *error)
{
    st_kv *kv = st_alloc_zero(1, sizeof *kv);
    if (!kv) return st_error_memory(error, sizeof *kv, "the KV cache");
    kv->share_count = count;
    for (uint32_t i = 0; i < count; i++) {
        kv->shares[i] = shares[i];
        kv->snapshot_count = shares[i].layout->options.snapshots;
        kv->has_state = kv->has_state || shares[i].layout->state_bytes > 0;
    }
    kv->snapshots = st_alloc_zero(kv->snapshot_count, sizeof *kv->snapshots);
    strata_status status =
        kv->snapshots ? clear_state(kv, error) : st_error_memory(error, sizeof *kv->snapshots, "the KV cache");
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
    st_free(kv->snapshots);
    st_free(kv);
}

/* The share that a layer is in. */
static const st_kv_share *share_of(const st_kv *kv, uint32_t layer)
{
    for (uint32_t i = 1; i < kv->share_count; i++) {
        const st_kv_options *options = &kv->shares[i].layout->options;
        if (options->layer_device && options->layer_device[layer] == options->device) return &kv->shares[i];
    }
    return &kv->shares[0];
}

st_kv_view st_kv_view_of(const st_kv *kv, uint32_t layer)
{
    const st_kv_share *s = share_of(kv, layer);
    const st_kv_layer *l = &s->layout->layers[layer];
    return (st_kv_view){.keys = s->memory + l->keys_offset,
                        .values = s->memory + l->values_offset,
                        .key_row_bytes = l->key_row_bytes,
                        .value_row_bytes = l->value_row_bytes,
                        .capacity = l->capacity,
                        .type = s->layout->options.type};
}

st_state_view st_kv_state_of(const st_kv *kv, uint32_t layer)
{
    const st_kv_share *s = share_of(kv, layer);
    const st_kv_layer *l = &s->layout->layers[layer];
    return (st_state_view){.conv = (float *)(void *)(s->memory + l->conv_offset),
                           .delta = (float *)(void *)(s->memory + l->delta_offset)};
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

/* Whether every ring still holds all positions that the token at `position` attends to. */
static bool rings_reach(const st_kv *kv, uint32_t position)
{
    for (uint32_t i = 0; i < kv->shares[0].layout->layer_count; i++) {
        const st_kv_layer *l = &share_of(kv, i)->layout->layers[i];
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
    for (uint32_t i = 0; i < kv->snapshot_count; i++) {
        const snapshot *s = &kv->snapshots[i];
        if (s->age && s->position <= position && (!best || s->position > best->position)) best = s;
    }
    return best;
}

/* Copies the state of every device to or from a snapshot. */
static strata_status copy_state(st_kv *kv, const snapshot *kept_at, bool restore, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < kv->share_count && status == STRATA_OK; i++) {
        const st_kv_share *s = &kv->shares[i];
        unsigned char *state = s->memory + s->layout->state_offset;
        unsigned char *kept = state + s->layout->state_bytes * (1 + (size_t)(kept_at - kv->snapshots));
        status = s->backend->copy(s->queue, ST_COPY_WITHIN, restore ? state : kept, restore ? kept : state,
                                  s->layout->state_bytes, error);
    }
    return status;
}

static strata_status start_again(st_kv *kv, uint32_t *reached, strata_error *error)
{
    strata_status status = clear_state(kv, error);
    if (status != STRATA_OK) return status;
    kv->position = kv->highest = 0;
    for (uint32_t i = 0; i < kv->snapshot_count; i++) kv->snapshots[i].age = 0;
    *reached = 0;
    return STRATA_OK;
}

/* Drops snapshots past the rewind point. */
static void drop_snapshots_after(st_kv *kv, uint32_t position)
{
    for (uint32_t i = 0; i < kv->snapshot_count; i++)
        if (kv->snapshots[i].position > position) kv->snapshots[i].age = 0;
}

strata_status st_kv_rewind(st_kv *kv, uint32_t position, uint32_t *reached, strata_error *error)
{
    /* Position 0 always clears the state: a failed batch may have left it half updated. */
    if (position == 0) return start_again(kv, reached, error);
    if (position >= kv->position) {
        *reached = kv->position;
        return STRATA_OK;
    }
    if (!rings_reach(kv, position)) return start_again(kv, reached, error);
    if (kv->has_state) {
        const snapshot *s = nearest_snapshot(kv, position);
        if (!s || !rings_reach(kv, s->position)) return start_again(kv, reached, error);
        strata_status status = copy_state(kv, s, true, error);
        if (status != STRATA_OK) return status;
        position = s->position;
    }
    kv->position = position;
    drop_snapshots_after(kv, position);
    *reached = position;
    return STRATA_OK;
}

strata_status st_kv_snapshot(st_kv *kv, strata_error *error)
{
    if (!kv->has_state || kv->snapshot_count == 0) return STRATA_OK;
    snapshot *place = &kv->snapshots[0];
    for (uint32_t i = 0; i < kv->snapshot_count; i++) {
        snapshot *s = &kv->snapshots[i];
        if (s->age && s->position == kv->position) return STRATA_OK;
        if (s->age < place->age) place = s;
    }
    strata_status status = copy_state(kv, place, false, error);
    if (status != STRATA_OK) return status;
    *place = (snapshot){.position = kv->position, .age = ++kv->clock};
    return STRATA_OK;
}
