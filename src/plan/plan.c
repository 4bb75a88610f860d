#include "plan/plan.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "plan/draft.h"

enum { BATCH_MAX = 1 << 16, SMALL_BATCH = 32, BATCHES_OF_PROMPT = 16 };

#define MIB ((uint64_t)1 << 20)
#define CARD_MARGIN (256 * MIB)
#define DISPLAY_MARGIN (768 * MIB)
#define HOST_MARGIN (4096 * MIB)

const char *st_owner_name(st_owner owner)
{
    static const char *const names[ST_OWNER_COUNT] = {
#define X(id, name) [ST_OWNER_##id] = (name),
        ST_OWNER_TABLE(X)
#undef X
    };
    return names[owner];
}

const char *st_moe_mode_name(st_moe_mode mode)
{
    static const char *const names[] = {"auto", "resident", "cpu", "cache"};
    return names[mode];
}

st_plan_options st_plan_options_default(void)
{
    st_plan_options options = {.layers = ST_LAYERS_AUTO, .kv_type = -1, .out_rows = 1, .conversations = 1,
                               .restore_bytes = ST_BYTES_AUTO, .tier_bytes = ST_BYTES_AUTO, .expert_slots = -1};
    for (int i = 0; i < ST_DEVICES_MAX; i++) {
        options.workers[i] = 1;
        options.margin_bytes[i] = ST_BYTES_AUTO;
    }
    return options;
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static strata_status check_devices(const st_plan_source *source, strata_error *error)
{
    bool known = source->device_count >= 1 && source->device_count <= ST_DEVICES_MAX;
    known = known && source->devices[ST_HOST].kind == ST_DEVICE_HOST;
    for (uint32_t i = 1; known && i < source->device_count; i++) known = source->devices[i].kind == ST_DEVICE_CARD;
    if (known) return STRATA_OK;
    return st_error_set(error, STRATA_USAGE, NULL,
                        "devices: expected the host and at most one GPU, found %" PRIu32 " devices",
                        source->device_count);
}

static strata_status check_numbers(const st_plan_source *source, const st_plan_options *o, strata_error *error)
{
    if (o->batch > BATCH_MAX)
        return st_error_set(error, STRATA_USAGE, NULL, "options.batch: expected at most %d, found %" PRIu32, BATCH_MAX,
                            o->batch);
    if (o->conversations > ST_CONVERSATIONS_MAX)
        return st_error_set(error, STRATA_USAGE, NULL, "options.sessions: expected at most %d, found %" PRIu32,
                            ST_CONVERSATIONS_MAX, o->conversations);
    if (o->expert_slots < -1)
        return st_error_set(error, STRATA_USAGE, NULL,
                            "placement.expert_slots: expected a number of slots, found %" PRId32, o->expert_slots);
    if (o->nextn && source->program->nextn.body.count == 0)
        return st_error_set(error, STRATA_USAGE, NULL, "the model has no NextN block");
    return STRATA_OK;
}

/* The layouts of all drafts have the same pools at most: a shorter context has fewer. */
static strata_status check_kv(const st_plan_source *source, const st_plan_options *o, strata_error *error)
{
    uint32_t longest = source->desc->context_max;
    if (o->context && o->context < longest) longest = o->context;
    st_kv_options kv = {.type = o->kv_type >= 0 ? (st_type)o->kv_type : st_kv_default_type(source->desc),
                        .page_tokens = o->page_tokens ? o->page_tokens : ST_KV_PAGE_TOKENS,
                        .context = longest, .pool_tokens = longest, .conversations = 1, .batch = 1,
                        .no_windows = o->no_windows};
    return st_kv_layout_check(source->desc, &kv, error);
}

static strata_status check_margins(const st_plan_source *source, const st_plan_options *o, strata_error *error)
{
    char margin[ST_NUMBER_TEXT], there[ST_NUMBER_TEXT], missing[ST_NUMBER_TEXT];
    for (uint32_t i = 0; i < source->device_count; i++) {
        uint64_t asked = o->margin_bytes[i], available = source->devices[i].free_bytes;
        if (asked == ST_BYTES_AUTO || asked <= available) continue;
        const char *hint = i == ST_HOST ? "use a smaller placement.ram_margin_bytes"
                                        : "use a smaller placement.vram_margin_bytes";
        return st_error_set(error, STRATA_MEMORY, hint,
                            "%s: a margin of %s bytes, %s are available: %s bytes are missing",
                            source->devices[i].name, st_number_text(asked, margin), st_number_text(available, there),
                            st_number_text(asked - available, missing));
    }
    return STRATA_OK;
}

static strata_status check_layers(const st_plan_source *source, const st_plan_options *o, strata_error *error)
{
    if (o->layers < ST_LAYERS_AUTO)
        return st_error_set(error, STRATA_USAGE, "-1 means all layers",
                            "placement.layers: expected a number of layers, found %" PRId32, o->layers);
    if (source->device_count == 1 && o->layers != ST_LAYERS_AUTO && o->layers != 0)
        return st_error_set(error, STRATA_DEVICE,
                            "describe a GPU that the machine does not have with placement.vram_bytes or "
                            "placement.profile; placement.layers 0 uses none",
                            "placement.layers %" PRId32 " asks for a GPU, and no GPU was found", o->layers);
    return STRATA_OK;
}

static strata_status contradiction(strata_error *error, const char *option, const char *why)
{
    return st_error_set(error, STRATA_USAGE, NULL, "%s: %s", option, why);
}

/* Options of routed experts mean nothing for a model without. */
static strata_status check_moe(const st_planner *p, strata_error *error)
{
    const st_plan_options *o = &p->options;
    bool slots = o->expert_slots > 0, cache = o->moe == ST_MOE_CACHE || slots;
    if (p->moe_count == 0) return STRATA_OK;
    if (slots && (o->moe == ST_MOE_RESIDENT || o->moe == ST_MOE_CPU))
        return contradiction(error, "placement.expert_slots", "only a cache has slots (placement.moe cache)");
    if (o->moe == ST_MOE_CACHE && o->expert_slots == 0)
        return contradiction(error, "placement.expert_slots 0", "a cache needs slots; placement.moe cpu has none");
    if ((cache || o->moe == ST_MOE_RESIDENT) && !p->card)
        return st_error_set(error, p->source->device_count > 1 ? STRATA_USAGE : STRATA_DEVICE,
                            "placement.vram_bytes or placement.profile describes a GPU",
                            "%s: expected layers on a GPU, found none",
                            slots ? "placement.expert_slots" : "placement.moe");
    if ((cache || o->moe == ST_MOE_RESIDENT) && o->cpu_moe_layers >= p->moe_count)
        return contradiction(error, "placement.cpu_moe_layers", "it leaves no layer whose experts could be on the GPU");
    return STRATA_OK;
}

/* The host runs every operation that the GPU does not, so it must be able to run all of them. */
static strata_status check_host(const st_planner *p, strata_error *error)
{
    const st_plan_source *source = p->source;
    const st_profile *host = &source->devices[ST_HOST];
    for (uint32_t i = 0; i < source->program->op_count; i++) {
        const st_op *op = &source->program->ops[i];
        const st_type_info *info = op->weight[0] == ST_NO_WEIGHT ? NULL
                                                                 : source->binding->weights[op->weight[0]].tensor->info;
        if (st_profile_runs(host, source->binding, op)) continue;
        return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s cannot run %s (layer %" PRId32 ") with %s weights",
                            host->name, st_op_name(op->kind), op->layer, info ? info->name : "no");
    }
    return STRATA_OK;
}

static void fill_in(st_planner *p)
{
    st_plan_options *o = &p->options;
    if (o->conversations == 0) o->conversations = 1;
    if (o->out_rows == 0) o->out_rows = 1;
    p->pool = 1;
    if (o->page_tokens == 0) o->page_tokens = ST_KV_PAGE_TOKENS;
    if (o->layers > 0 && (uint32_t)o->layers > p->source->desc->layer_count) {
        p->layers_asked = (uint32_t)o->layers;
        o->layers = ST_LAYERS_ALL;
    }
    p->card = p->source->device_count > 1 && o->layers != 0;
    for (uint32_t i = 0; i < p->source->device_count; i++) {
        const st_profile *profile = &p->source->devices[i];
        uint64_t margin = o->margin_bytes[i], half = profile->free_bytes / 2;
        if (o->workers[i] == 0) o->workers[i] = 1;
        if (margin == ST_BYTES_AUTO && i == ST_HOST) margin = HOST_MARGIN < half ? HOST_MARGIN : half;
        else if (margin == ST_BYTES_AUTO) margin = profile->display ? DISPLAY_MARGIN : CARD_MARGIN;
        p->capacity_bytes[i] = profile->free_bytes;
        p->margin_bytes[i] = margin < profile->free_bytes ? margin : profile->free_bytes;
    }
}

/* --- the plan itself ---------------------------------------------------------------------------------------------- */

static strata_status lay_out_device(st_planner *p, const st_draft *draft, uint8_t device, st_plan *plan,
                                    strata_error *error)
{
    size_t *offsets = st_arena_alloc(p->arena, p->source->binding->count, sizeof *offsets);
    if (!offsets) return st_error_memory(error, p->source->binding->count * sizeof *offsets, "the plan");
    if (device == ST_CARD) st_weights_lay_out(p, offsets);
    else memset(offsets, 0xff, p->source->binding->count * sizeof *offsets); /* mapped: in no block */
    plan->weight_offset[device] = offsets;
    return st_draft_kv(p, draft, device, &plan->memory[device].kv, error);
}

static uint32_t dense_on_card(const st_planner *p, const st_draft *draft)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < draft->trunk && i < p->layer_count; i++) {
        uint32_t index = p->layers[i].dense_index, kept = p->options.cpu_ffn_layers;
        count += index != UINT32_MAX && index >= kept && index - kept < draft->ffn;
    }
    return count;
}

static void predict(const st_planner *p, st_plan *plan)
{
    /* In very small batches a prompt of 512 tokens is many steps to price; a shorter one has the same speed. */
    uint32_t prefill = plan->batch < SMALL_BATCH ? BATCHES_OF_PROMPT * plan->batch : 0;
    plan->speed = st_plan_predict(p->source, plan, ST_DEPTH_DEFAULT, prefill, -1);
}

static strata_status give_lines(const st_planner *p, const st_lines *lines, const char *const **out, uint32_t *count,
                                strata_error *error)
{
    const char **copy = st_arena_alloc(p->arena, lines->count, sizeof *copy);
    if (!copy || p->out_of_memory) return st_error_memory(error, lines->count * sizeof *copy, "the plan");
    memcpy(copy, lines->lines, lines->count * sizeof *copy);
    *out = copy;
    *count = lines->count;
    return STRATA_OK;
}

static strata_status finish(st_planner *p, const st_draft *draft, st_plan *plan, strata_error *error)
{
    *plan = st_draft_view(p, draft);
    plan->ffn_on_card = dense_on_card(p, draft);
    for (uint32_t d = 0; d < plan->device_count; d++) {
        strata_status status = lay_out_device(p, draft, (uint8_t)d, plan, error);
        if (status != STRATA_OK) return status;
    }
    strata_status status = st_plan_schedule(p->source, plan, p->arena, error);
    if (status != STRATA_OK) return status;
    predict(p, plan);
    st_draft_tell(p, draft, plan);
    status = give_lines(p, &p->why, &plan->why, &plan->why_count, error);
    if (status == STRATA_OK) status = give_lines(p, &p->lacking, &plan->lacking, &plan->lacking_count, error);
    return status;
}

static strata_status build(st_planner *p, st_plan *plan, strata_error *error)
{
    if (!st_planner_survey(p))
        return st_error_memory(error, p->source->program->op_count * sizeof *p->scratch[0], "the plan");
    strata_status status = check_host(p, error);
    if (status == STRATA_OK) status = check_moe(p, error);
    st_draft draft;
    if (status == STRATA_OK) status = st_draft_choose(p, &draft, error);
    if (status != STRATA_OK) return status;
    st_draft_tell_lacking(p, &draft);
    st_draft_place(p, &draft);
    st_draft_size(p, &draft);
    return finish(p, &draft, plan, error);
}

strata_status st_plan_build(const st_plan_source *source, const st_plan_options *options, st_arena *arena,
                            const st_plan **out, strata_error *error)
{
    strata_status status = check_devices(source, error);
    if (status == STRATA_OK) status = check_numbers(source, options, error);
    if (status == STRATA_OK) status = check_kv(source, options, error);
    if (status == STRATA_OK) status = check_layers(source, options, error);
    if (status == STRATA_OK) status = check_margins(source, options, error);
    if (status != STRATA_OK) return status;
    st_planner *planner = st_arena_alloc(arena, 1, sizeof *planner);
    st_plan *plan = st_arena_alloc(arena, 1, sizeof *plan);
    if (!planner || !plan) return st_error_memory(error, sizeof *planner + sizeof *plan, "the plan");
    *planner = (st_planner){.source = source, .options = *options, .arena = arena};
    fill_in(planner);
    status = build(planner, plan, error);
    if (status == STRATA_OK) *out = plan;
    return status;
}
