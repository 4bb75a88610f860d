/* The error for a plan that does not fit, with the numbers and the options that would fit. */
#include <stdio.h>

#include "base/error.h"
#include "plan/draft.h"

enum { HINT_BYTES = 256, NAME_BYTES = 96 };

/* The mode and context that were drafted, and the hint being written. */
typedef struct refusal {
    st_planner *p;
    st_moe_mode mode;
    uint32_t context;
    uint32_t device; /* that is too small */
    char hint[HINT_BYTES];
    size_t used;
} refusal;

static bool fits_now(refusal *r, uint32_t context)
{
    st_draft trial;
    return st_draft_at(r->p, r->mode, false, context, &trial);
}

static void suggest(refusal *r, const char *option, uint64_t number, bool with_number)
{
    char text[ST_NUMBER_TEXT] = "";
    if (with_number) snprintf(text, sizeof text, " %llu", (unsigned long long)number);
    int written = snprintf(r->hint + r->used, sizeof r->hint - r->used, "%s%s%s",
                           r->used ? ", or " : "would fit: ", option, text);
    if (written > 0) r->used += (size_t)written;
    if (r->used >= sizeof r->hint) r->used = sizeof r->hint - 1;
}

/* The largest number of low … high that `fits` (so do all smaller); 0: none. */
static uint32_t largest(refusal *r, uint32_t low, uint32_t high, bool (*fits)(refusal *, uint32_t))
{
    if (low > high || !fits(r, low)) return 0;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (fits(r, middle)) low = middle;
        else high = middle - 1;
    }
    return low;
}

static void suggest_context(refusal *r)
{
    uint32_t context = largest(r, 1, r->context - 1, fits_now);
    if (context) suggest(r, "options.context", context, true);
}

static void suggest_kv_type(refusal *r)
{
    int32_t before = r->p->options.kv_type;
    if (before == ST_TYPE_Q8_0) return;
    r->p->options.kv_type = ST_TYPE_Q8_0;
    if (fits_now(r, r->context)) suggest(r, "options.kv_type q8_0", 0, false);
    r->p->options.kv_type = before;
}

static bool fits_with_layers(refusal *r, uint32_t layers)
{
    r->p->options.layers = (int32_t)layers;
    return fits_now(r, r->context);
}

static void suggest_layers(refusal *r)
{
    int32_t before = r->p->options.layers;
    if (before == ST_LAYERS_AUTO || r->device != ST_CARD) return;
    uint32_t asked = before == ST_LAYERS_ALL ? r->p->layer_count : (uint32_t)before;
    uint32_t layers = largest(r, 1, asked - 1, fits_with_layers);
    if (layers) suggest(r, "placement.layers", layers, true);
    r->p->options.layers = before;
}

/* Experts on the CPU take no VRAM; resident experts take no RAM. */
static void suggest_mode(refusal *r)
{
    st_moe_mode before = r->mode;
    if (before == ST_MOE_AUTO || !r->p->card) return;
    r->mode = r->device == ST_CARD ? ST_MOE_CPU : ST_MOE_RESIDENT;
    if (r->mode != before && fits_now(r, r->context))
        suggest(r, r->mode == ST_MOE_CPU ? "placement.moe cpu" : "placement.moe resident", 0, false);
    r->mode = before;
}

static void suggest_disk(refusal *r)
{
    if (r->p->options.disk || r->device != ST_HOST) return;
    r->p->options.disk = true;
    if (fits_now(r, r->context)) suggest(r, "placement.disk (weights stay in the file)", 0, false);
    r->p->options.disk = false;
}

static void name_parts(const refusal *r, const st_draft *draft, char name[NAME_BYTES])
{
    const char *experts = draft->mode == ST_MOE_RESIDENT ? " with their experts"
                          : draft->mode == ST_MOE_CACHE  ? " with expert slots"
                                                         : "";
    if (r->device == ST_HOST)
        snprintf(name, NAME_BYTES, "%s", draft->trunk ? "the weights that are not on the GPU" : "the weights");
    else snprintf(name, NAME_BYTES, "%u of %u layers%s", draft->trunk, r->p->layer_count, experts);
}

strata_status st_draft_refuse(st_planner *p, const st_draft *draft, strata_error *error)
{
    refusal r = {
        .p = p, .mode = draft->mode, .context = draft->context, .device = draft->fits[ST_CARD] ? ST_HOST : ST_CARD};
    const st_plan_device *device = &draft->devices[r.device];
    char name[NAME_BYTES], context[ST_NUMBER_TEXT], needed[ST_NUMBER_TEXT], missing[ST_NUMBER_TEXT];
    name_parts(&r, draft, name);
    suggest_context(&r);
    suggest_kv_type(&r);
    suggest_layers(&r);
    suggest_mode(&r);
    suggest_disk(&r);
    bool countable = device->planned_bytes < UINT64_MAX - device->margin_bytes;
    uint64_t needs = countable ? device->planned_bytes + device->margin_bytes : UINT64_MAX;
    char who[ST_DEVICE_TEXT], size[ST_NUMBER_TEXT], there[ST_NUMBER_TEXT];
    return st_error_set(error, STRATA_MEMORY, r.used ? r.hint : NULL,
                        "%s: %s, a context of %s and the margin need %s (%s bytes), %s are available: "
                        "%s bytes are missing",
                        st_device_text(device->profile, who), name, st_number_text(draft->context, context),
                        st_size_text(needs, size), st_number_text(needs, needed),
                        st_size_text(device->capacity_bytes, there),
                        st_number_text(needs - device->capacity_bytes, missing));
}
