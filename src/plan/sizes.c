/* Sizing: the bytes of every owner on each device, for a placed draft. */
#include <string.h>

#include "backend/backend.h"
#include "base/check.h"
#include "plan/draft.h"
#include "sampler/candidates.h"

enum { BATCH_DEFAULT = 512, BATCH_LARGE = 2048, EXPERTS_IN_TRANSIT = 2 };
enum { RESTORE_POINTS = 4, RESTORE_SHARE = 32 }; /* points per running conversation; at most 1/32 of the RAM */

/* The RAM tier by default: room for eight times the pages of the GPU's pool, within a share of the RAM and half of what
 * is left of it. The tier is pinned, and pinning takes time: at most 8 GiB. */
enum { TIER_POOLS = 8, TIER_SHARE = 8 };
#define TIER_MOST ((uint64_t)8 << 30)

/* --- the executor ------------------------------------------------------------------------------------------------ */

static uint32_t batch_or(const st_planner *p, const st_draft *draft, uint32_t chosen)
{
    uint32_t batch = p->options.batch ? p->options.batch : chosen;
    return batch < draft->context ? batch : draft->context;
}

uint32_t st_draft_large_batch(const st_planner *p, const st_draft *draft)
{
    return batch_or(p, draft, BATCH_LARGE);
}

/* With weights in RAM a larger batch is faster: every batch reads nearly all experts, and all streamed matrices. */
static uint32_t batch_of(const st_planner *p, const st_draft *draft)
{
    bool experts_in_ram = draft->trunk > 0 && draft->expert_bytes[ST_HOST] > 0;
    return experts_in_ram || draft->streams ? st_draft_large_batch(p, draft) : batch_or(p, draft, BATCH_DEFAULT);
}

/* Each device's backend states its scratch; hundreds of drafts have the same batch. */
static void ask_scratch(st_planner *p, uint32_t batch)
{
    const st_plan_source *source = p->source;
    if (p->scratch_batch == batch) return;
    for (uint32_t i = 0; i < source->program->op_count; i++) {
        st_bound_op shape = st_bound_shape(source->program, source->binding, &source->program->ops[i]);
        for (uint32_t d = 0; d < source->device_count; d++)
            p->scratch[d][i] = source->devices[d].scratch(&shape, batch);
    }
    p->scratch_batch = batch;
}

bool st_draft_reduces(const st_planner *p, const st_draft *draft)
{
    return draft->trunk > 0 && draft->output && p->card_reduces;
}

/* Staging on the host: the logits of each running conversation and, beside a GPU, step blocks and adjustments to
 * upload, and logits or candidates to download. */
static bool size_staging(const st_planner *p, const st_draft *draft, st_plan_memory *s)
{
    bool card = draft->trunk > 0;
    size_t reduced = st_draft_reduces(p, draft) ? draft->out_rows : 0;
    size_t end = 0, row = (size_t)p->source->desc->vocab * sizeof(float), step = card ? st_step_bytes(&draft->step) : 0;
    bool sized = st_range_append(&end, 1, step, &s->staging_steps[0]) &&
                 st_range_append(&end, 1, step, &s->staging_steps[1]) &&
                 st_range_append(&end, card && draft->output ? draft->out_rows : 0, row, &s->staging_logits) &&
                 st_range_append(&end, p->options.conversations, row, &s->staging_slot_logits) &&
                 st_range_append(&end, reduced, sizeof(st_adjustments), &s->staging_adjustments) &&
                 st_range_append(&end, reduced, sizeof(st_candidates), &s->staging_candidates);
    s->staging_bytes = end;
    return sized;
}

/* The default: a few points per running conversation, within a share of the RAM. */
static uint64_t restore_bytes_of(const st_planner *p, const st_draft *draft, const st_kv_layout kv[ST_DEVICES_MAX])
{
    uint64_t point = kv[ST_HOST].point_bytes + (draft->trunk > 0 ? kv[ST_CARD].point_bytes : 0);
    uint64_t chosen = RESTORE_POINTS * (uint64_t)p->options.conversations * point;
    uint64_t most = p->capacity_bytes[ST_HOST] / RESTORE_SHARE;
    if (!kv[ST_HOST].needs_points) return 0;
    if (p->options.restore_bytes != ST_BYTES_AUTO) return p->options.restore_bytes;
    return chosen < most ? chosen : most;
}

static st_kv_options kv_options_of(const st_planner *p, const st_draft *draft, uint8_t device)
{
    return (st_kv_options){.type = draft->kv_type,
                           .page_tokens = p->options.page_tokens,
                           .context = draft->context,
                           .pool_tokens = draft->pool_tokens,
                           .conversations = p->options.conversations,
                           .batch = draft->batch,
                           .carry = p->options.nextn ? p->source->desc->embedding : 0,
                           .no_windows = p->options.no_windows,
                           .page_major = device != ST_HOST,
                           .layer_device = p->kv_device,
                           .device = device};
}

strata_status st_draft_kv(const st_planner *p, const st_draft *draft, uint8_t device, const st_kv_layout **out,
                          strata_error *error)
{
    st_kv_options options = kv_options_of(p, draft, device);
    return st_kv_layout_build(p->source->desc, &options, p->arena, out, error);
}

/* Sizes the pool and the KV cache of every device, then the step block and the restore points, which depend on them. */
static bool size_kv(const st_planner *p, st_draft *draft, uint32_t devices, st_kv_layout kv[ST_DEVICES_MAX])
{
    uint64_t page = p->options.page_tokens, longest = draft->context;
    if (p->pool > 1) longest = (longest + page - 1) / page * page; /* conversations share no page that is not full */
    uint64_t pool = p->options.pool_tokens ? p->options.pool_tokens : longest * p->pool;
    if (pool < draft->context) pool = draft->context;
    draft->pool_tokens = pool < UINT32_MAX ? (uint32_t)pool : UINT32_MAX;
    for (uint32_t d = 0; d < devices; d++) {
        st_kv_options options = kv_options_of(p, draft, (uint8_t)d);
        if (!st_kv_layout_price(p->source->desc, &options, &kv[d])) return false;
    }
    draft->step = (st_step_limits){.rows = draft->batch,
                                   .out_rows = draft->out_rows,
                                   .conversations = p->options.conversations,
                                   .tables = st_kv_tables_max(&kv[ST_HOST]),
                                   .choice_words = p->source->program->choice_words};
    draft->restore_bytes = restore_bytes_of(p, draft, kv);
    return true;
}

static bool size_memory(const st_planner *p, st_draft *draft, uint8_t device, const st_kv_layout *kv)
{
    st_plan_memory *s = &draft->memory[device];
    *s = (st_plan_memory){0};
    st_working_options working = {.op_device = p->op_device,
                                  .dense_device = draft->streams ? p->dense_device : NULL,
                                  .device = device,
                                  .step = draft->step,
                                  .workers = p->options.workers[device],
                                  .nextn = p->options.nextn,
                                  .expert_cache = draft->mode == ST_MOE_CACHE,
                                  .watched = p->options.watch && p->moe_count > 0,
                                  .candidates = device == ST_CARD && st_draft_reduces(p, draft) ? &p->reducing : NULL,
                                  .scratch = p->scratch[device]};
    size_t end = kv->total_bytes;
    if (!st_working_set_of(p->source->desc, p->source->program, &working, &s->working)) return false;
    if (device == ST_HOST && !size_staging(p, draft, s)) return false;
    return st_range_append(&end, 1, device == ST_HOST ? draft->restore_bytes : 0, &s->restore_offset) &&
           st_range_append(&end, 1, device == ST_HOST ? draft->tier_bytes : 0, &s->tier_offset) &&
           st_range_append(&end, 1, s->working.bytes, &s->working_offset) &&
           st_range_append(&end, 1, s->staging_bytes, &s->staging_offset) &&
           st_align_size(end, ST_RANGE_ALIGN, &s->bytes);
}

/* --- a device ----------------------------------------------------------------------------------------------------- */

static uint64_t slots_total(const st_planner *p)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->kv_layer_count; i++) bytes += p->slots[i] * p->slot_bytes[i];
    return bytes;
}

/* Room for one token's experts and two in transit. */
static size_t expert_staging(const st_planner *p, const st_draft *draft)
{
    uint64_t largest = 0, used = 0;
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        if (!st_draft_has_cache(p, draft, i)) continue;
        if (largest < p->slot_bytes[i]) largest = p->slot_bytes[i];
        if (used < p->layers[i].used) used = p->layers[i].used;
    }
    return largest ? (size_t)((used + EXPERTS_IN_TRANSIT) * largest) : 0;
}

/* Streaming weights pins the model's files, and the RAM tier is pinned; the GPU's page tables for them take memory. */
static uint64_t page_table_bytes(const st_planner *p, const st_draft *draft)
{
    const st_profile *card = &p->source->devices[ST_CARD];
    uint64_t bytes = draft->tier_bytes, granularity = card->granularity ? card->granularity : 1;
    if (card->pinned_per_byte == 0) return 0;
    bool pins = draft->mode == ST_MOE_CACHE || draft->streams;
    for (uint32_t i = 0; pins && i < p->source->binding->count; i++)
        bytes += p->source->binding->weights[i].bytes;
    return (bytes / card->pinned_per_byte + granularity - 1) / granularity * granularity;
}

/* The GPU's block up to the executor's memory. */
static void size_card_block(const st_planner *p, st_draft *draft)
{
    uint64_t *owners = draft->devices[ST_CARD].owners;
    owners[ST_OWNER_RUNTIME] = p->source->devices[ST_CARD].overhead_bytes + page_table_bytes(p, draft);
    owners[ST_OWNER_SLOTS] = draft->mode == ST_MOE_CACHE ? slots_total(p) : 0;
    draft->slots_offset = st_align_up(draft->weights_end, ST_RANGE_ALIGN);
    draft->expert_staging_offset = draft->slots_offset + owners[ST_OWNER_SLOTS];
    draft->expert_staging_bytes = expert_staging(p, draft);
    draft->dense_offset = draft->expert_staging_offset + draft->expert_staging_bytes;
    owners[ST_OWNER_STAGING] = draft->expert_staging_bytes + ST_FETCH_BUFFERS * draft->dense_buffer_bytes;
    draft->memory_offset[ST_CARD] = draft->expert_staging_offset + owners[ST_OWNER_STAGING];
}

static uint64_t owners_sum(const st_plan_device *device)
{
    uint64_t sum = 0;
    for (int i = 0; i < ST_OWNER_COUNT; i++) sum += device->owners[i];
    return sum;
}

/* The rest of the block is padding. False: overflow. */
static bool size_device(st_planner *p, st_draft *draft, uint8_t d, const st_kv_layout *kv)
{
    st_plan_device *device = &draft->devices[d];
    st_plan_memory *s = &draft->memory[d];
    uint64_t granularity = p->source->devices[d].granularity;
    size_t used;
    if (!size_memory(p, draft, d, kv) || !st_add_size(draft->memory_offset[d], s->bytes, &used)) return false;
    uint64_t *owners = device->owners, outside = owners[ST_OWNER_RUNTIME];
    owners[ST_OWNER_KV] = kv->exact.kv;
    owners[ST_OWNER_STATE] = kv->exact.state;
    owners[ST_OWNER_RESTORE] = d == ST_HOST ? draft->restore_bytes : 0;
    owners[ST_OWNER_TIER] = d == ST_HOST ? draft->tier_bytes : 0;
    owners[ST_OWNER_SCRATCH] = s->working.bytes;
    owners[ST_OWNER_STAGING] += s->staging_bytes;
    owners[ST_OWNER_WEIGHTS] = draft->weight_bytes[d];
    owners[ST_OWNER_EXPERTS] = draft->expert_bytes[d];
    if (d == ST_HOST) outside += owners[ST_OWNER_WEIGHTS] + owners[ST_OWNER_EXPERTS]; /* mapped from the file */
    owners[ST_OWNER_PADDING] = used - (owners_sum(device) - outside);
    size_t block;
    if (!st_align_size(used, granularity ? granularity : 1, &block)) return false;
    owners[ST_OWNER_GRANULARITY] = block - used;
    draft->block_used[d] = used;
    device->block_bytes = block;
    device->planned_bytes = owners_sum(device);
    return device->planned_bytes >= block; /* else the sum has overflowed */
}

/* --- the RAM tier ------------------------------------------------------------------------------------------------ */

/* Bytes of a page of full attention on all devices; 0: the GPU has no layer with full attention. */
static uint64_t tier_page_bytes(const st_draft *draft, const st_kv_layout kv[ST_DEVICES_MAX])
{
    if (draft->trunk == 0 || kv[ST_CARD].pools[0].page_bytes == 0) return 0;
    return (uint64_t)kv[ST_HOST].pools[0].page_bytes + kv[ST_CARD].pools[0].page_bytes;
}

/* Sets the tier to the pages that fit in `bytes`. */
static void set_tier(st_draft *draft, const st_kv_layout kv[ST_DEVICES_MAX], uint64_t bytes)
{
    const st_kv_layout *layouts[ST_DEVICES_MAX] = {&kv[ST_HOST], &kv[ST_CARD]};
    uint64_t page = tier_page_bytes(draft, kv), pages = page ? bytes / page : 0;
    draft->tier_pages = pages < ST_TIER_PAGES_MAX ? (uint32_t)pages : ST_TIER_PAGES_MAX;
    draft->tier_bytes = 0;
    while (draft->tier_pages > 0) { /* ranges are aligned: a page less may be needed */
        draft->tier_bytes = st_kv_tier_bytes(layouts, ST_DEVICES_MAX, draft->tier_pages);
        if (draft->tier_bytes <= bytes) return;
        draft->tier_pages--;
    }
    draft->tier_bytes = 0;
}

/* Every full page of the GPU's pool is copied to the tier, so a tier smaller than the pool would hold nothing that the
 * pool has not. */
static void choose_tier(const st_planner *p, st_draft *draft, const st_kv_layout kv[ST_DEVICES_MAX], uint64_t left)
{
    uint64_t pool = tier_page_bytes(draft, kv) * kv[ST_HOST].pools[0].pages, most = TIER_POOLS * pool;
    if (most > p->capacity_bytes[ST_HOST] / TIER_SHARE) most = p->capacity_bytes[ST_HOST] / TIER_SHARE;
    if (most > left / 2) most = left / 2;
    if (most > TIER_MOST) most = TIER_MOST;
    set_tier(draft, kv, most >= pool ? most : 0);
}

static void take_from(uint64_t *owner, uint64_t *bytes)
{
    uint64_t taken = *bytes < *owner ? *bytes : *owner;
    *owner -= taken;
    *bytes -= taken;
}

/* Weights that do not fit in RAM stay on disk, experts first: each is read least often. */
static void leave_on_disk(st_plan_device *host, uint64_t limit, uint64_t *disk_bytes)
{
    uint64_t missing = host->planned_bytes > limit ? host->planned_bytes - limit : 0, left = missing;
    take_from(&host->owners[ST_OWNER_EXPERTS], &left);
    take_from(&host->owners[ST_OWNER_WEIGHTS], &left);
    *disk_bytes = missing - left;
    host->planned_bytes -= *disk_bytes;
}

static bool size_host(st_planner *p, st_draft *draft, const st_kv_layout kv[ST_DEVICES_MAX])
{
    st_plan_device *host = &draft->devices[ST_HOST], before = *host;
    bool chosen = p->options.tier_bytes == ST_BYTES_AUTO;
    uint64_t limit = host->capacity_bytes - host->margin_bytes;
    set_tier(draft, kv, chosen ? 0 : p->options.tier_bytes);
    if (!size_device(p, draft, ST_HOST, &kv[ST_HOST])) return false;
    if (!chosen || host->planned_bytes >= limit) return true;
    uint64_t left = limit - host->planned_bytes;
    choose_tier(p, draft, kv, left);
    *host = before;
    return size_device(p, draft, ST_HOST, &kv[ST_HOST]);
}

void st_draft_size(st_planner *p, st_draft *draft)
{
    uint32_t devices = draft->trunk > 0 ? 2 : 1;
    draft->batch = batch_of(p, draft);
    draft->out_rows = p->options.out_rows < draft->batch ? p->options.out_rows : draft->batch;
    draft->disk_bytes = 0;
    draft->memory_offset[ST_HOST] = 0;
    draft->fits[ST_CARD] = true;
    draft->devices[ST_CARD] = (st_plan_device){0};
    ask_scratch(p, draft->batch);
    st_kv_layout kv[ST_DEVICES_MAX] = {0};
    bool sized = size_kv(p, draft, devices, kv);
    for (uint32_t d = 0; d < devices; d++) {
        st_plan_device *device = &draft->devices[d];
        *device = (st_plan_device){.profile = &p->source->devices[d], .capacity_bytes = p->capacity_bytes[d],
                                   .margin_bytes = p->margin_bytes[d]};
        if (d == ST_CARD) size_card_block(p, draft);
        uint64_t limit = device->capacity_bytes - device->margin_bytes; /* the margin is at most the capacity */
        sized = sized && (d == ST_HOST ? size_host(p, draft, kv) : size_device(p, draft, (uint8_t)d, &kv[d]));
        if (!sized) device->planned_bytes = UINT64_MAX;
        else if (d == ST_HOST && p->options.disk) leave_on_disk(device, limit, &draft->disk_bytes);
        draft->fits[d] = device->planned_bytes <= limit;
    }
}

bool st_draft_fits(const st_draft *draft)
{
    return draft->fits[ST_HOST] && draft->fits[ST_CARD];
}

uint64_t st_draft_missing(const st_draft *draft, uint32_t device)
{
    const st_plan_device *d = &draft->devices[device];
    return draft->fits[device] ? 0 : d->planned_bytes - (d->capacity_bytes - d->margin_bytes);
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

static uint64_t slots_bytes(const st_planner *p, const st_draft *draft, uint32_t slots)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        uint32_t experts = p->layers[i].experts;
        if (st_draft_has_cache(p, draft, i)) bytes += (slots < experts ? slots : experts) * p->slot_bytes[i];
    }
    return bytes;
}

static uint32_t experts_most(const st_planner *p, const st_draft *draft)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->kv_layer_count; i++)
        if (st_draft_has_cache(p, draft, i) && most < p->layers[i].experts) most = p->layers[i].experts;
    return most;
}

/* Bytes that the block may grow by. */
static uint64_t room_on_card(const st_planner *p, const st_draft *draft)
{
    const st_plan_device *card = &draft->devices[ST_CARD];
    uint64_t granularity = p->source->devices[ST_CARD].granularity;
    uint64_t limit = card->capacity_bytes - card->margin_bytes - card->owners[ST_OWNER_RUNTIME];
    if (granularity > 1) limit -= limit % granularity;
    return limit - draft->block_used[ST_CARD];
}

/* Layers get slots in a fixed order, and no layer is skipped for one with smaller slots. So more memory never means
 * fewer slots in a layer. */
void st_draft_fill_slots(const st_planner *p, st_draft *draft)
{
    draft->slots = draft->more = 0;
    if (!draft->fits[ST_CARD]) return;
    uint64_t room = room_on_card(p, draft);
    uint32_t low = 0, high = experts_most(p, draft);
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (slots_bytes(p, draft, middle) <= room) low = middle;
        else high = middle - 1;
    }
    draft->slots = low;
    room -= slots_bytes(p, draft, low);
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        if (!st_draft_has_cache(p, draft, i)) continue;
        uint64_t bytes = low < p->layers[i].experts ? p->slot_bytes[i] : 0;
        if (bytes > room) return;
        room -= bytes;
        draft->more++;
    }
    draft->more = 0; /* every layer has a slot for each expert */
}

uint64_t st_draft_expert_budget(const st_draft *draft)
{
    const st_plan_device *card = &draft->devices[ST_CARD];
    if (draft->trunk == 0) return 0;
    uint64_t others = card->planned_bytes - card->owners[ST_OWNER_EXPERTS] - card->owners[ST_OWNER_SLOTS] -
                      draft->expert_staging_bytes - card->owners[ST_OWNER_GRANULARITY];
    uint64_t limit = card->capacity_bytes - card->margin_bytes;
    return limit > others ? limit - others : 0;
}
