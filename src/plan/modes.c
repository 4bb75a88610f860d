/* Chooses the mode of routed experts by the predicted speed of each. */
#include "plan/draft.h"

#include "base/error.h"

/* A mode must be faster than a simpler one by more than this factor. */
#define MODE_GAIN 1.15

/* --- predictions of drafts ---------------------------------------------------------------------------------------- */

/* Sums over the layers with routed experts. */
typedef struct shares {
    uint64_t slots, experts;
    uint32_t layers, cached_layers, widest;
    double hits, uploads; /* over cached layers */
} shares;

static shares shares_of(const st_planner *p)
{
    shares s = {0};
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        const st_layer_facts *layer = &p->layers[i];
        if (layer->moe_index == UINT32_MAX) continue;
        s.layers++;
        s.experts += layer->experts;
        s.slots += p->slots[i];
        if (s.widest < layer->experts) s.widest = layer->experts;
        if (p->slots[i] == 0) continue;
        s.cached_layers++;
        double share = (double)p->slots[i] / layer->experts;
        s.hits += st_hit_rate_of(p->options.hits, layer->experts, share);
        if (p->options.hits) s.uploads += st_hit_at(p->options.hits, share).uploads;
    }
    return s;
}

static st_plan_experts view_experts(const st_planner *p, const st_draft *draft)
{
    st_plan_experts e = {
        .mode = draft->mode, .slots = p->slots, .slot_bytes = p->slot_bytes, .hit_source = "all or none",
        .hits = p->options.hits};
    if (p->moe_count == 0) return e;
    shares s = shares_of(p);
    e.budget_bytes = st_draft_expert_budget(draft);
    e.slots_per_layer = (double)s.slots / s.layers;
    e.resident_share = (double)s.slots / (double)s.experts;
    e.hit_rate = draft->mode == ST_MOE_RESIDENT ? e.resident_share : 0;
    if (draft->mode != ST_MOE_CACHE) return e;
    e.hit_rate = s.cached_layers ? s.hits / s.cached_layers : 0;
    e.hit_source = e.hits ? "recorded" : s.widest >= ST_HIT_TABLE_EXPERTS ? "table" : "slots / experts";
    e.uploads = s.cached_layers ? s.uploads / s.cached_layers : 0;
    return e;
}

st_plan st_draft_view(const st_planner *p, const st_draft *draft)
{
    st_plan plan = {.context = draft->context,
                    .batch = draft->batch,
                    .out_rows = draft->out_rows,
                    .conversations = p->options.conversations,
                    .pool_tokens = draft->pool_tokens,
                    .restore_bytes = draft->restore_bytes,
                    .tier_pages = draft->tier_pages,
                    .tier_bytes = draft->tier_bytes,
                    .step = draft->step,
                    .nextn = p->options.nextn,
                    .kv_type = draft->kv_type,
                    .device_count = draft->trunk > 0 ? 2 : 1,
                    .op_device = p->op_device,
                    .watched = p->options.watch,
                    .weight_devices = p->weight_devices,
                    .slots_offset = draft->slots_offset,
                    .expert_staging_offset = draft->expert_staging_offset,
                    .expert_staging_bytes = draft->expert_staging_bytes,
                    .dense = {.rows = draft->streams ? p->dense_rows : 0,
                              .op_device = p->dense_device,
                              .fetches = draft->dense_fetches,
                              .bytes = draft->dense_bytes,
                              .offset = draft->dense_offset,
                              .buffer_bytes = draft->dense_buffer_bytes},
                    .kv_device = p->kv_device,
                    .layers_total = p->layer_count,
                    .layers_on_card = draft->trunk,
                    .output_on_card = draft->output,
                    .reduces_logits = st_draft_reduces(p, draft),
                    .on_disk = draft->disk_bytes > 0,
                    .experts = view_experts(p, draft)};
    for (uint32_t d = 0; d < plan.device_count; d++) {
        plan.devices[d] = draft->devices[d];
        plan.memory[d] = draft->memory[d];
        plan.memory_offset[d] = draft->memory_offset[d];
    }
    return plan;
}

strata_status st_draft_decode_tps(const st_planner *p, const st_draft *draft, double *tps, strata_error *error)
{
    st_plan plan = st_draft_view(p, draft);
    st_arena arena = {0};
    strata_status status = st_plan_schedule(p->source, &plan, &arena, error);
    if (status == STRATA_OK) status = st_plan_decode_tps(p->source, &plan, ST_DEPTH_DEFAULT, tps, error);
    st_arena_free(&arena);
    return status;
}

/* --- the choice --------------------------------------------------------------------------------------------------- */

static bool may_cache(const st_planner *p)
{
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        const st_layer_facts *layer = &p->layers[i];
        if (layer->moe_index != UINT32_MAX && layer->moe_index >= p->options.cpu_moe_layers && layer->experts_on_card)
            return true;
    }
    return false;
}

static strata_status try_mode(st_planner *p, st_moe_mode mode, strata_error *error)
{
    uint32_t context = p->options.context ? st_context_fixed(p) : st_context_usual(p, mode);
    st_draft draft;
    if (context > p->tried_context) p->tried_context = context;
    if (!st_draft_at(p, mode, mode == ST_MOE_RESIDENT, context, &draft)) return STRATA_OK;
    return st_draft_decode_tps(p, &draft, &p->tried_tps[mode], error);
}

/* Tries the modes, the simplest first. If none fits, chooses cpu, whose draft the planner then refuses. */
static strata_status choose_mode(st_planner *p, st_moe_mode *out, strata_error *error)
{
    static const st_moe_mode modes[] = {ST_MOE_RESIDENT, ST_MOE_CPU, ST_MOE_CACHE};
    st_moe_mode best = ST_MOE_AUTO;
    for (int i = 0; i < 3; i++) {
        if (modes[i] == ST_MOE_CACHE && !may_cache(p)) continue;
        if (modes[i] == ST_MOE_RESIDENT && p->options.cpu_moe_layers >= p->moe_count) continue;
        strata_status status = try_mode(p, modes[i], error);
        if (status != STRATA_OK) return status;
        double tps = p->tried_tps[modes[i]];
        if (tps > 0 && (best == ST_MOE_AUTO || tps > MODE_GAIN * p->tried_tps[best])) best = modes[i];
    }
    *out = best == ST_MOE_AUTO ? ST_MOE_CPU : best;
    return STRATA_OK;
}

static strata_status decide_mode(st_planner *p, st_moe_mode *out, strata_error *error)
{
    *out = ST_MOE_AUTO;
    if (p->moe_count == 0) return STRATA_OK;
    *out = p->card ? p->options.moe : ST_MOE_CPU;
    if (*out == ST_MOE_AUTO && p->options.expert_slots >= 0)
        *out = p->options.expert_slots > 0 ? ST_MOE_CACHE : ST_MOE_CPU;
    if (*out == ST_MOE_CACHE && !may_cache(p)) *out = ST_MOE_CPU; /* no layer's experts can run on the GPU */
    return *out == ST_MOE_AUTO ? choose_mode(p, out, error) : STRATA_OK;
}

/* A chosen context is as large as fits, so that one conversation may fill the pool. Memory that is left makes the pool
 * larger. */
static void grow_pool(st_planner *p, const st_draft *draft)
{
    uint32_t pool = p->options.context ? p->pool : p->options.conversations;
    for (p->pool = pool; p->pool > 1; p->pool--)
        if (st_draft_holds(p, draft, draft->context)) return;
}

/* The pool of a fixed context has room for every conversation or, if that does not fit, for as many as fit. */
static strata_status draft_with_pool(st_planner *p, st_moe_mode mode, st_draft *out, bool *fits, strata_error *error)
{
    for (;;) {
        strata_status status = st_draft_with_context(p, mode, out, fits, error);
        if (status != STRATA_OK || *fits || p->pool == 1) return status;
        p->pool--;
    }
}

strata_status st_draft_choose(st_planner *p, st_draft *out, strata_error *error)
{
    st_moe_mode mode;
    bool fits = false;
    p->pool = p->options.context ? p->options.conversations : 1;
    strata_status status = decide_mode(p, &mode, error);
    if (status == STRATA_OK) status = draft_with_pool(p, mode, out, &fits, error);
    if (status != STRATA_OK) return status;
    if (!fits) return st_draft_refuse(p, out, error);
    st_draft_place(p, out); /* another draft may have been placed since */
    grow_pool(p, out);
    st_draft_size(p, out);
    return STRATA_OK;
}
