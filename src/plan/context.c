/* Chooses the context, and finds the placement with the most on the GPU at a given context. */
#include "plan/draft.h"

enum {
    CONTEXT_WHOLE = 4096, /* a model that fits on the GPU completely with this context stays there */
    CONTEXT_USUAL = 8192, /* the context that other models are placed for */
    CONTEXT_STEP = 256,
};

/* A longer context must keep this share of the speed at the usual one; streaming dense parts this share of the speed
 * without it, because prompts are many times faster. */
#define SPEED_KEPT 0.9
#define STREAMING_SPEED_KEPT 0.8

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t context_max(const st_planner *p)
{
    return p->source->desc->context_max;
}

uint32_t st_context_fixed(const st_planner *p)
{
    return smaller(p->options.context, context_max(p));
}

/* The planner chooses no shorter context. */
static uint32_t context_least(const st_planner *p)
{
    return smaller(CONTEXT_STEP, context_max(p));
}

uint32_t st_context_usual(const st_planner *p, st_moe_mode mode)
{
    return smaller(mode == ST_MOE_RESIDENT ? CONTEXT_WHOLE : CONTEXT_USUAL, context_max(p));
}

/* --- placement at a context --------------------------------------------------------------------------------------- */

static void try_step(st_planner *p, uint32_t step, st_draft *draft)
{
    st_draft_set_step(p, step, draft);
    st_draft_place(p, draft);
    st_draft_size(p, draft);
}

/* Slots are first shared among all layers that may have some; the experts of a layer without slots then move to the
 * host. */
static void give_slots(st_planner *p, st_draft *draft)
{
    st_draft filled = *draft;
    filled.slots = filled.more = 0;
    st_draft_place(p, &filled);
    st_draft_size(p, &filled);
    st_draft_fill_slots(p, &filled);
    if (filled.slots + filled.more > 0) *draft = filled;
    st_draft_place(p, draft);
    st_draft_size(p, draft);
}

/* Expert slots come last: a cache has everything else on the GPU. A mode that the options ask for uses the GPU. */
static uint32_t step_least(const st_planner *p, st_moe_mode mode, bool whole)
{
    if (whole || mode == ST_MOE_CACHE) return st_draft_step_last(p);
    return p->card && mode == ST_MOE_RESIDENT && p->options.layers == ST_LAYERS_AUTO ? 1 : 0;
}

static bool draft_at(st_planner *p, st_moe_mode mode, bool whole, uint32_t context, bool stays, st_draft *out)
{
    *out = (st_draft){.mode = mode, .context = context, .stays = stays};
    bool fixed_slots = p->options.expert_slots > 0;
    if (mode == ST_MOE_CACHE) {
        out->slots = fixed_slots ? (uint32_t)p->options.expert_slots : 0;
        out->more = fixed_slots ? 0 : 1;
    }
    uint32_t low = step_least(p, mode, whole), high = st_draft_step_last(p);
    try_step(p, low, out);
    if (!out->fits[ST_CARD]) return false;
    /* Everything on the GPU may take less of it than the step before, which streams from RAM. */
    if (low < high) try_step(p, high, out);
    if (out->fits[ST_CARD]) low = high;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        try_step(p, middle, out);
        if (out->fits[ST_CARD]) low = middle;
        else high = middle - 1;
    }
    try_step(p, low, out);
    if (mode == ST_MOE_CACHE && !fixed_slots) give_slots(p, out);
    return st_draft_fits(out);
}

/* The time in which a decoded token reads all weights but routed experts. */
static double read_seconds(const st_planner *p, const st_draft *draft)
{
    double seconds = 0;
    for (uint32_t d = 0; d < p->source->device_count; d++)
        if (p->source->devices[d].memory_rate > 0)
            seconds += (double)draft->weight_bytes[d] / p->source->devices[d].memory_rate;
    return seconds;
}

/* The buffers and the larger batch of streamed parts take GPU memory from other parts: a draft streams unless that
 * costs too much speed of decoding, or does not fit. */
bool st_draft_at(st_planner *p, st_moe_mode mode, bool whole, uint32_t context, st_draft *out)
{
    bool fits = draft_at(p, mode, whole, context, true, out);
    if (p->dense_rows == 0) return fits;
    st_draft stays = *out;
    if (draft_at(p, mode, whole, context, false, out) && out->streams &&
        (!fits || STREAMING_SPEED_KEPT * read_seconds(p, out) <= read_seconds(p, &stays)))
        return true;
    return draft_at(p, mode, whole, context, true, out);
}

/* --- search ------------------------------------------------------------------------------------------------------- */

bool st_draft_holds(st_planner *p, const st_draft *draft, uint32_t context)
{
    st_draft trial = *draft;
    trial.context = context;
    st_draft_size(p, &trial);
    return st_draft_fits(&trial) && trial.disk_bytes <= draft->disk_bytes;
}

uint32_t st_draft_largest_context(st_planner *p, const st_draft *draft, uint32_t from, uint32_t to, uint32_t step)
{
    uint32_t low = 0, high = to > from ? (to - from) / step : 0;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (st_draft_holds(p, draft, from + middle * step)) low = middle;
        else high = middle - 1;
    }
    return from + low * step;
}

/* The largest multiple of `step` below `below` that a placement exists for; 0: none. */
static uint32_t largest_placed(st_planner *p, st_moe_mode mode, bool whole, uint32_t below, uint32_t step)
{
    st_draft trial;
    uint32_t least = (context_least(p) + step - 1) / step, low = 0, high = (below - 1) / step;
    if (high < least || !st_draft_at(p, mode, whole, least * step, &trial)) return 0;
    for (low = least; low < high;) {
        uint32_t middle = high - (high - low) / 2;
        if (st_draft_at(p, mode, whole, middle * step, &trial)) low = middle;
        else high = middle - 1;
    }
    return low * step;
}

/* Places at the usual context or, where that does not fit, at the largest that does. */
static bool place_usual(st_planner *p, st_moe_mode mode, bool whole, uint32_t usual, uint32_t step, st_draft *out)
{
    if (st_draft_at(p, mode, whole, usual, out)) return true;
    uint32_t context = largest_placed(p, mode, whole, usual, step);
    return st_draft_at(p, mode, whole, context ? context : context_least(p), out);
}

static void extend(st_planner *p, uint32_t to, uint32_t step, st_draft *draft)
{
    draft->context = st_draft_largest_context(p, draft, draft->context, to, step);
    st_draft_size(p, draft);
}

/* Without routed experts, or with every expert resident: the largest context that fits, not rounded. */
static bool choose_exact(st_planner *p, st_moe_mode mode, st_draft *out)
{
    uint32_t max = context_max(p);
    bool chosen = mode == ST_MOE_RESIDENT && p->options.moe != ST_MOE_RESIDENT;
    if (!st_draft_at(p, mode, true, smaller(CONTEXT_WHOLE, max), out)) {
        if (chosen || !place_usual(p, mode, false, smaller(CONTEXT_USUAL, max), 1, out)) return false;
    }
    extend(p, max, 1, out);
    return true;
}

/* Trades expert slots for context while decoding keeps SPEED_KEPT of its speed. */
static strata_status choose_cache(st_planner *p, uint32_t usual, uint32_t max, st_draft *out, strata_error *error)
{
    double usual_tps, tps;
    strata_status status = st_draft_decode_tps(p, out, &usual_tps, error);
    uint32_t low = 0, high = max > usual ? (max - usual) / CONTEXT_STEP : 0;
    while (status == STRATA_OK && low < high) {
        uint32_t middle = high - (high - low) / 2;
        st_draft trial;
        bool good = st_draft_at(p, ST_MOE_CACHE, true, usual + middle * CONTEXT_STEP, &trial) &&
                    trial.disk_bytes <= out->disk_bytes;
        if (good) status = st_draft_decode_tps(p, &trial, &tps, error);
        if (good && tps >= SPEED_KEPT * usual_tps) low = middle;
        else high = middle - 1;
    }
    if (status == STRATA_OK) st_draft_at(p, ST_MOE_CACHE, true, usual + low * CONTEXT_STEP, out);
    return status;
}

static uint32_t whole_steps(uint32_t context)
{
    return context < CONTEXT_STEP ? context : context / CONTEXT_STEP * CONTEXT_STEP;
}

static strata_status choose_by_steps(st_planner *p, st_moe_mode mode, st_draft *out, bool *fits, strata_error *error)
{
    uint32_t max = whole_steps(context_max(p)), usual = smaller(CONTEXT_USUAL, max);
    *fits = place_usual(p, mode, false, usual, smaller(CONTEXT_STEP, max), out);
    if (!*fits || out->context < usual) return STRATA_OK;
    if (mode == ST_MOE_CACHE && p->options.expert_slots < 0) return choose_cache(p, usual, max, out, error);
    extend(p, max, CONTEXT_STEP, out);
    return STRATA_OK;
}

strata_status st_draft_with_context(st_planner *p, st_moe_mode mode, st_draft *out, bool *fits, strata_error *error)
{
    bool whole = mode == ST_MOE_RESIDENT && p->options.moe != ST_MOE_RESIDENT;
    if (p->options.context) {
        *fits = st_draft_at(p, mode, whole, st_context_fixed(p), out);
        return STRATA_OK;
    }
    if (p->card && (mode == ST_MOE_CPU || mode == ST_MOE_CACHE)) return choose_by_steps(p, mode, out, fits, error);
    *fits = choose_exact(p, mode, out);
    return STRATA_OK;
}
