/* Explains a plan: a line for every decision with its numbers, and lines for what did not fit. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/draft.h"

enum { LINE_BYTES = 512, CONTEXT_LEAST = 256 /* of a shorter context that is proposed */ };

const char *st_device_text(const st_profile *profile, char text[ST_DEVICE_TEXT])
{
    bool card = profile->kind == ST_DEVICE_CARD;
    bool says = strcmp(profile->name, card ? "card" : "host") != 0;
    snprintf(text, ST_DEVICE_TEXT, "%s%s%s", card ? "GPU" : "RAM", says ? card ? " " : " of " : "",
             says ? profile->name : "");
    return text;
}

__attribute__((format(printf, 3, 4))) static void tell(st_planner *p, st_lines *lines, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0 || lines->count == ST_PLAN_LINES_MAX) return;
    const char *copy = st_arena_copy(p->arena, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    if (!copy) p->out_of_memory = true;
    else lines->lines[lines->count++] = copy;
}

#define WHY(...) tell(p, &p->why, __VA_ARGS__)
#define LACKING(...) tell(p, &p->lacking, __VA_ARGS__)

/* --- why ---------------------------------------------------------------------------------------------------------- */

static void tell_devices(st_planner *p, const st_plan *plan)
{
    for (uint32_t d = 0; d < plan->device_count; d++) {
        const st_plan_device *device = &plan->devices[d];
        bool asked = p->options.margin_bytes[d] != ST_BYTES_AUTO;
        char name[ST_DEVICE_TEXT], capacity[ST_NUMBER_TEXT], margin[ST_NUMBER_TEXT];
        WHY("%s: %s, less a margin of %s (%s)%s", st_device_text(device->profile, name),
            st_size_text(device->capacity_bytes, capacity), st_size_text(device->margin_bytes, margin),
            asked ? "as asked" : d == ST_CARD && device->profile->display ? "a display uses it" : "default",
            d == ST_CARD ? " and the driver's memory" : "");
    }
    if (p->source->device_count > plan->device_count)
        WHY("the GPU is not used: %s", p->options.layers == 0 ? "placement.layers 0" : "no layer fits");
}

static void tell_dense(st_planner *p, const st_draft *draft)
{
    char size[ST_NUMBER_TEXT], buffer[ST_NUMBER_TEXT];
    if (!draft->streams) return;
    WHY("dense parts in RAM: steps of %u tokens or more copy %u matrices (%s) to the GPU and run them there, in two "
        "buffers of %s; smaller steps run them on the CPU",
        p->dense_rows, draft->dense_fetches, st_size_text(draft->dense_bytes, size),
        st_size_text(draft->dense_buffer_bytes, buffer));
}

static void tell_layers(st_planner *p, const st_draft *draft)
{
    if (draft->trunk == 0) return;
    bool fixed = p->options.layers != ST_LAYERS_AUTO;
    uint32_t most = p->dense_count > p->options.cpu_ffn_layers ? p->dense_count - p->options.cpu_ffn_layers : 0;
    if (p->layers_asked) WHY("layers: %u asked for, clamped to the model's %u", p->layers_asked, p->layer_count);
    WHY("layers: attention and KV of %u of %u layers are on the GPU (%s)", draft->trunk, p->layer_count,
        fixed                            ? "placement.layers"
        : draft->trunk == p->layer_count ? "all fit"
                                         : "as many as fit; the last layers are in RAM");
    if (p->dense_count && draft->ffn < most)
        WHY("feed-forward: %u of %u dense parts are on the GPU, lowest layers first: as many as fit beside attention",
            draft->ffn, p->dense_count);
    if (p->dense_count && p->options.cpu_ffn_layers)
        WHY("feed-forward: the first %u dense parts are in RAM, as asked",
            p->options.cpu_ffn_layers < p->dense_count ? p->options.cpu_ffn_layers : p->dense_count);
    tell_dense(p, draft);
    if (p->options.nextn) WHY("NextN block: %s", draft->nextn ? "on the GPU, because all layers are" : "in RAM");
}

static void tell_output(st_planner *p, const st_draft *draft)
{
    if (draft->trunk == 0) return;
    const st_weight *matrix = &p->source->binding->weights[p->output_matrix];
    bool tied = matrix->role == ST_ROLE_TOKEN_EMBD;
    char size[ST_NUMBER_TEXT];
    WHY("output matrix: %s %s%s", st_size_text(matrix->bytes, size),
        draft->output ? "on the GPU: every token reads all of it" : "in RAM: the GPU has no room for it",
        !tied ? "; the embedding stays in RAM: a token reads one row of it"
              : draft->output ? "; it is also the embedding" : "");
}

static void tell_mode(st_planner *p, const st_draft *draft, const st_plan *plan)
{
    const st_plan_options *o = &p->options;
    const char *name = st_moe_mode_name(draft->mode);
    if (draft->trunk == 0) {
        WHY("experts: %s, because no layer is on the GPU", name);
        return;
    }
    if (o->moe != ST_MOE_AUTO || o->expert_slots >= 0) {
        WHY("experts: %s, as asked", name);
        return;
    }
    char text[160] = "";
    int used = 0;
    for (int mode = ST_MOE_RESIDENT; mode <= ST_MOE_CACHE && used < (int)sizeof text; mode++) {
        const char *mode_name = st_moe_mode_name((st_moe_mode)mode), *comma = used ? ", " : "";
        if (p->tried_tps[mode] > 0)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%s %.1f t/s", comma, mode_name,
                             p->tried_tps[mode]);
        else used += snprintf(text + used, sizeof text - (size_t)used, "%s%s does not fit", comma, mode_name);
    }
    char context[ST_NUMBER_TEXT];
    WHY("experts: %s, at %.1f t/s; compared with a context of %s: %s; a mode must be 15 %% faster than simpler ones",
        name, plan->speed.decode_tps, st_number_text(p->tried_context, context), text);
}

/* The routed experts of the layer that has most. */
static uint32_t most_experts(const st_planner *p)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->kv_layer_count; i++)
        if (most < p->layers[i].experts) most = p->layers[i].experts;
    return most;
}

static void tell_slots(st_planner *p)
{
    uint32_t asked = (uint32_t)p->options.expert_slots, most = most_experts(p);
    if (asked > most) WHY("expert slots: %u asked for, clamped to the %u experts of a layer", asked, most);
    else WHY("expert slots: %u per layer, as asked", asked);
}

static void tell_experts(st_planner *p, const st_draft *draft, const st_plan *plan)
{
    if (p->moe_count == 0) return;
    const st_plan_experts *e = &plan->experts;
    tell_mode(p, draft, plan);
    if (draft->trunk == 0) return;
    char size[ST_NUMBER_TEXT];
    WHY("expert budget: %s of GPU memory beside the other weights, KV and scratch; %.1f experts per layer are on the "
        "GPU (%.1f %%)",
        st_size_text(e->budget_bytes, size), e->slots_per_layer, 100 * e->resident_share);
    if (draft->mode == ST_MOE_CACHE && strcmp(e->hit_source, "table") == 0)
        WHY("hit rate: %.1f %%, typical for %.1f of %u slots", 100 * e->hit_rate, e->slots_per_layer, most_experts(p));
    else if (draft->mode == ST_MOE_CACHE && e->hits)
        WHY("hit rate: %.1f %% with %.1f of %u slots, %.2f uploads per layer and token, by the recorded routing",
            100 * e->hit_rate, e->slots_per_layer, most_experts(p), e->uploads);
    else if (draft->mode == ST_MOE_CACHE) WHY("hit rate: %.1f %% (%s)", 100 * e->hit_rate, e->hit_source);
    if (p->options.expert_slots > 0) tell_slots(p);
    if (p->options.cpu_moe_layers)
        WHY("experts of the first %u layers are on the CPU, as asked", p->options.cpu_moe_layers);
}

/* The device that has no room for one more step of the context; NULL: neither. */
static const char *full_device(st_planner *p, const st_draft *draft, uint32_t step)
{
    st_draft longer = *draft;
    longer.context += step;
    st_draft_size(p, &longer);
    if (!longer.fits[ST_CARD]) return "the GPU";
    return !longer.fits[ST_HOST] || longer.disk_bytes > draft->disk_bytes ? "RAM" : NULL;
}

static void tell_context(st_planner *p, const st_draft *draft)
{
    uint32_t max = p->source->desc->context_max, asked = p->options.context;
    char chosen[ST_NUMBER_TEXT], limit[ST_NUMBER_TEXT], found[ST_NUMBER_TEXT];
    st_number_text(draft->context, chosen);
    st_number_text(max, limit);
    if (asked > max)
        WHY("context: %s asked for, clamped to the model's maximum of %s", st_number_text(asked, found), limit);
    else if (asked) WHY("context: %s, as asked", chosen);
    else if (draft->context == max) WHY("context: %s, the model's maximum", chosen);
    else {
        bool by_steps = draft->trunk > 0 && (draft->mode == ST_MOE_CPU || draft->mode == ST_MOE_CACHE);
        const char *full = full_device(p, draft, by_steps ? 256 : 1);
        bool traded = draft->mode == ST_MOE_CACHE && p->options.expert_slots < 0;
        if (traded)
            WHY("context: %s of the model's %s: a longer one takes expert slots and over 10 %% of the speed at 8,192",
                chosen, limit);
        else
            WHY("context: %s of the model's %s: the largest%s that fits%s%s", chosen, limit,
                by_steps ? " multiple of 256" : "", full ? " " : "", full ? full : "");
    }
}

/* The pool is a whole number of contexts, in whole pages: one for each conversation that runs, if they fit. */
static void tell_pool(st_planner *p, const st_draft *draft)
{
    uint32_t running = p->options.conversations;
    char tokens[ST_NUMBER_TEXT];
    st_number_text(draft->pool_tokens, tokens);
    if (running == 1) WHY("pool: %s tokens, the context of the one conversation that runs at a time", tokens);
    else if (p->pool == running)
        WHY("pool: %s tokens, a full context for each of %u running conversations", tokens, running);
    else
        WHY("pool: %s tokens shared by up to %u running conversations: %u full context%s; as many as fit", tokens,
            running, p->pool, p->pool == 1 ? "" : "s");
}

static void tell_restore(st_planner *p, const st_plan *plan)
{
    uint64_t asked = p->options.restore_bytes;
    char size[ST_NUMBER_TEXT];
    if (!plan->memory[ST_HOST].kv->needs_points) {
        if (asked && asked != ST_BYTES_AUTO)
            WHY("restore points: none; every layer of the model can continue a conversation at any token");
    } else if (asked == 0) WHY("restore points: none, as asked; a conversation that branches off runs from its start");
    else
        WHY("restore points: %s of RAM (%s)", st_size_text(plan->restore_bytes, size),
            asked == ST_BYTES_AUTO ? "default" : "as asked");
}

static void tell_tier(st_planner *p, const st_plan *plan)
{
    uint64_t asked = p->options.tier_bytes;
    char size[ST_NUMBER_TEXT], tokens[ST_NUMBER_TEXT];
    bool possible = plan->device_count > 1 && plan->memory[ST_CARD].kv->pools[0].page_bytes > 0;
    if (!possible) {
        if (asked && asked != ST_BYTES_AUTO) WHY("kv ram: none; no KV pages of full attention are on a GPU");
    } else if (plan->tier_pages > 0)
        WHY("kv ram: %s for copies of the GPU's KV pages, %s tokens (%s): conversations that lose their pages come "
            "back from RAM", st_size_text(plan->tier_bytes, size),
            st_number_text((uint64_t)plan->tier_pages * plan->memory[ST_HOST].kv->options.page_tokens, tokens),
            asked == ST_BYTES_AUTO ? "default: eight pools, within an eighth of the RAM, half of what is left, 8 GiB"
                                   : "as asked");
    else if (asked == ST_BYTES_AUTO) WHY("kv ram: none; RAM has no room for more KV pages than the GPU has");
    else if (asked) WHY("kv ram: none; a KV page is larger than %s", st_size_text(asked, size));
    else WHY("kv ram: none, as asked; a conversation that loses its pages runs again");
}

static void tell_sizes(st_planner *p, const st_draft *draft)
{
    const st_plan_options *o = &p->options;
    char disk[ST_NUMBER_TEXT];
    WHY("kv type: %s (%s)", st_kv_type_name(draft->kv_type),
        o->kv_type >= 0 ? "as asked" : p->source->desc->recurrent ? "the model has recurrent state" : "default");
    WHY("batch: %u (%s)", draft->batch,
        draft->batch == draft->context ? "the whole context" : o->batch ? "as asked"
        : draft->trunk > 0 && draft->expert_bytes[ST_HOST] ? "experts are in RAM"
        : draft->streams                                   ? "dense parts are streamed from RAM"
                                                           : "default");
    if (draft->disk_bytes)
        WHY("disk: %s bytes of weights stay in the file and are read on use",
            st_number_text(draft->disk_bytes, disk));
}

void st_draft_tell(st_planner *p, const st_draft *draft, const st_plan *plan)
{
    tell_devices(p, plan);
    tell_layers(p, draft);
    tell_output(p, draft);
    tell_experts(p, draft, plan);
    if (p->moe_count == 0 && (p->options.moe != ST_MOE_AUTO || p->options.expert_slots >= 0))
        WHY("experts: the model has none; options for them are ignored");
    tell_context(p, draft);
    tell_pool(p, draft);
    tell_restore(p, plan);
    tell_tier(p, plan);
    tell_sizes(p, draft);
}

/* --- what did not fit --------------------------------------------------------------------------------------------- */

/* The next step of the placement, which does not fit the GPU. */
static void lack_step(st_planner *p, const st_draft *draft)
{
    uint32_t last = st_draft_step_last(p), step = 0;
    st_draft trial = {.mode = draft->mode, .slots = draft->slots, .more = draft->more, .context = draft->context,
                      .stays = draft->stays};
    char bytes[ST_NUMBER_TEXT];
    for (; step <= last; step++) {
        st_draft_set_step(p, step, &trial);
        if (trial.trunk > draft->trunk || trial.ffn > draft->ffn || trial.output > draft->output ||
            trial.nextn > draft->nextn)
            break;
    }
    if (step > last) return;
    st_draft_place(p, &trial);
    st_draft_size(p, &trial);
    const char *what = trial.trunk > draft->trunk     ? "another layer's attention part and KV"
                       : trial.output > draft->output ? "the output matrix"
                       : trial.ffn > draft->ffn       ? "another dense feed-forward part"
                                                      : "the NextN block";
    LACKING("%s on the GPU: %s bytes are missing", what, st_number_text(st_draft_missing(&trial, ST_CARD), bytes));
}

/* Everything on the GPU at this context, and the longest context with which it is. */
static void lack_whole(st_planner *p, const st_draft *draft)
{
    st_draft trial = {.mode = p->moe_count ? ST_MOE_RESIDENT : ST_MOE_AUTO, .context = draft->context};
    char bytes[ST_NUMBER_TEXT], context[ST_NUMBER_TEXT], fits[ST_NUMBER_TEXT];
    st_draft_set_step(p, st_draft_step_last(p), &trial);
    st_draft_place(p, &trial);
    st_draft_size(p, &trial);
    uint64_t missing = st_draft_missing(&trial, ST_CARD);
    if (!missing) return;
    LACKING("everything%s on the GPU with a context of %s: %s bytes are missing",
            p->moe_count ? ", including all experts," : "", st_number_text(draft->context, context),
            st_number_text(missing, bytes));
    if (draft->context <= CONTEXT_LEAST || !st_draft_holds(p, &trial, CONTEXT_LEAST)) return;
    uint32_t longest = st_draft_largest_context(p, &trial, CONTEXT_LEAST, draft->context, 1);
    LACKING("options.context %s: everything on the GPU", st_number_text(longest, fits));
}

static void lack_context(st_planner *p, const st_draft *draft)
{
    uint32_t max = p->source->desc->context_max;
    if (draft->context == max || p->options.context) return;
    st_draft trial = *draft;
    trial.context = max;
    st_draft_place(p, &trial);
    st_draft_size(p, &trial);
    char context[ST_NUMBER_TEXT], card[ST_NUMBER_TEXT], ram[ST_NUMBER_TEXT];
    if (!st_draft_fits(&trial))
        LACKING("the model's maximum context of %s: %s bytes are missing on the GPU, %s in RAM",
                st_number_text(max, context), st_number_text(st_draft_missing(&trial, ST_CARD), card),
                st_number_text(st_draft_missing(&trial, ST_HOST), ram));
}

static void lack_kv_type(st_planner *p, const st_draft *draft)
{
    uint32_t max = p->source->desc->context_max;
    int32_t before = p->options.kv_type;
    if (draft->context == max || p->options.context || draft->kv_type == ST_TYPE_Q8_0) return;
    st_draft trial = *draft;
    p->options.kv_type = ST_TYPE_Q8_0;
    st_draft_place(p, &trial);
    uint32_t context = st_draft_largest_context(p, &trial, draft->context, max, 1);
    p->options.kv_type = before;
    char text[ST_NUMBER_TEXT];
    if (context > draft->context)
        LACKING("options.kv_type q8_0: a context of %s with the same placement", st_number_text(context, text));
}

/* The parts that fit on the GPU with half the context. */
static void lack_shorter(st_planner *p, const st_draft *draft)
{
    uint32_t half = draft->context / 2;
    st_draft trial;
    char text[ST_NUMBER_TEXT];
    if (half < CONTEXT_LEAST || !st_draft_at(p, draft->mode, false, half, &trial)) return;
    st_number_text(half, text);
    if (trial.trunk > draft->trunk)
        LACKING("options.context %s: %u of %u layers on the GPU", text, trial.trunk, p->layer_count);
    else if (trial.ffn > draft->ffn)
        LACKING("options.context %s: %u dense feed-forward parts on the GPU", text, trial.ffn);
    else if (trial.output > draft->output) LACKING("options.context %s: the output matrix on the GPU", text);
    else if (trial.slots > draft->slots)
        LACKING("options.context %s: at least %u expert slots per layer", text, trial.slots);
}

void st_draft_tell_lacking(st_planner *p, const st_draft *draft)
{
    if (p->card) {
        lack_step(p, draft);
        lack_whole(p, draft);
        lack_shorter(p, draft);
    }
    lack_context(p, draft);
    lack_kv_type(p, draft);
}
