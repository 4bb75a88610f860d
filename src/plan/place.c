/* Placement: derives the device of every operation, layer and weight from a draft's decisions. */
#include "plan/draft.h"

#include <string.h>

#include "base/check.h"

/* --- facts that hold for every draft ------------------------------------------------------------------------------ */

static uint32_t kv_layer_of(const st_op *op)
{
    if (op->kind == ST_OP_KV_STORE) return op->p.kv.kv_layer;
    if (op->kind == ST_OP_ATTENTION) return op->p.attention.kv_layer;
    return st_op_has_state(op->kind) ? (uint32_t)op->layer : UINT32_MAX;
}

st_slot_layout st_slot_layout_of(const st_binding *binding, const st_op *op)
{
    st_slot_layout slot = {0};
    for (int i = 0; i < ST_EXPERT_MATRICES; i++) {
        if (op->weight[i] == ST_NO_WEIGHT) continue;
        slot.offset[i] = slot.bytes;
        slot.matrix_bytes[i] = st_weight_expert_bytes(&binding->weights[op->weight[i]]);
        slot.bytes += st_align_up(slot.matrix_bytes[i], ST_RANGE_ALIGN);
    }
    return slot;
}

static void survey_layers(st_planner *p)
{
    const st_desc *desc = p->source->desc;
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        const st_ffn_desc *ffn = &desc->layers[i].ffn;
        st_layer_facts *layer = &p->layers[i];
        /* The NextN block is placed as a whole. */
        bool dense = ffn->experts == 0 && i < p->layer_count;
        *layer = (st_layer_facts){.dense_index = UINT32_MAX, .moe_index = UINT32_MAX, .experts = ffn->experts,
                                  .used = ffn->experts_used, .state_on_card = p->card, .experts_on_card = p->card};
        if (dense) layer->dense_index = p->dense_count++;
        if (ffn->experts && (i < p->layer_count || p->options.nextn)) layer->moe_index = p->moe_count++;
    }
}

/* With an expert cache the GPU adds the host's sum to its own, an operation that the program does not list. */
static bool card_runs(const st_planner *p, const st_op *op)
{
    st_op add = {.kind = ST_OP_ADD};
    for (int i = 0; i < ST_OP_WEIGHTS; i++) add.weight[i] = ST_NO_WEIGHT;
    const st_profile *card = &p->source->devices[ST_CARD];
    return p->card && st_profile_runs(card, p->source->binding, op) &&
           (op->kind != ST_OP_EXPERTS || st_profile_runs(card, p->source->binding, &add));
}

/* The executor lets the GPU reduce its logits, an operation that the program does not list either. */
static void survey_candidates(st_planner *p)
{
    const st_profile *card = &p->source->devices[ST_CARD];
    st_op op = {.kind = ST_OP_CANDIDATES, .layer = -1, .block = ST_BLOCK_OUTPUT};
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op.weight[i] = ST_NO_WEIGHT;
    p->card_reduces = p->card && st_profile_runs(card, p->source->binding, &op);
    st_bound_op shape = {.op = &op, .in[0].width = p->source->desc->vocab};
    if (p->card_reduces) p->reducing = card->scratch(&shape, p->options.out_rows);
}

static void survey_ops(st_planner *p)
{
    const st_plan_source *source = p->source;
    survey_candidates(p);
    for (uint32_t i = 0; i < source->program->op_count; i++) {
        const st_op *op = &source->program->ops[i];
        p->card_runs[i] = card_runs(p, op);
        uint32_t kv_layer = kv_layer_of(op);
        if (kv_layer != UINT32_MAX && !p->card_runs[i]) p->layers[kv_layer].state_on_card = false;
        if (op->kind != ST_OP_EXPERTS) continue;
        p->slot_bytes[op->layer] = st_slot_layout_of(source->binding, op).bytes;
        p->layers[op->layer].experts_on_card = p->card_runs[i];
    }
}

bool st_planner_survey(st_planner *p)
{
    const st_plan_source *source = p->source;
    uint32_t ops = source->program->op_count;
    p->layer_count = source->desc->layer_count;
    p->kv_layer_count = p->layer_count + source->desc->nextn_count;
    p->layers = st_arena_alloc(p->arena, p->kv_layer_count, sizeof *p->layers);
    p->slot_bytes = st_arena_alloc(p->arena, p->kv_layer_count, sizeof *p->slot_bytes);
    p->card_runs = st_arena_alloc(p->arena, ops, sizeof *p->card_runs);
    p->may_stream = st_arena_alloc(p->arena, ops, sizeof *p->may_stream);
    p->op_device = st_arena_alloc(p->arena, ops, sizeof *p->op_device);
    p->dense_device = st_arena_alloc(p->arena, ops, sizeof *p->dense_device);
    p->kv_device = st_arena_alloc(p->arena, p->kv_layer_count, sizeof *p->kv_device);
    p->weight_devices = st_arena_alloc(p->arena, source->binding->count, sizeof *p->weight_devices);
    p->slots = st_arena_alloc(p->arena, p->kv_layer_count, sizeof *p->slots);
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++) p->scratch[d] = st_arena_alloc(p->arena, ops, sizeof *p->scratch[d]);
    if (!p->layers || !p->slot_bytes || !p->card_runs || !p->op_device || !p->kv_device || !p->weight_devices ||
        !p->slots || !p->scratch[ST_HOST] || !p->scratch[ST_CARD] || !p->may_stream || !p->dense_device)
        return false;
    p->output_matrix = st_binding_find(source->binding, ST_ROLE_OUTPUT, -1);
    if (p->output_matrix == ST_NO_WEIGHT) p->output_matrix = st_binding_find(source->binding, ST_ROLE_TOKEN_EMBD, -1);
    survey_layers(p);
    survey_ops(p);
    st_planner_survey_dense(p);
    return true;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Dense feed-forward parts that may be on the GPU. */
static uint32_t ffn_most(const st_planner *p)
{
    return p->dense_count > p->options.cpu_ffn_layers ? p->dense_count - p->options.cpu_ffn_layers : 0;
}

static uint32_t trunk_fixed(const st_planner *p)
{
    return p->options.layers == ST_LAYERS_ALL ? p->layer_count : (uint32_t)p->options.layers;
}

static bool nextn_may(const st_planner *p, uint32_t trunk)
{
    return p->options.nextn && trunk == p->layer_count;
}

uint32_t st_draft_step_last(const st_planner *p)
{
    if (!p->card) return 0;
    if (p->options.layers != ST_LAYERS_AUTO) return nextn_may(p, trunk_fixed(p)) ? 2 : 1;
    return p->layer_count + 1 + ffn_most(p) + (p->options.nextn ? 1 : 0);
}

void st_draft_set_step(const st_planner *p, uint32_t step, st_draft *draft)
{
    draft->trunk = draft->ffn = 0;
    draft->output = draft->nextn = false;
    if (!p->card) return;
    uint32_t most = ffn_most(p);
    if (p->options.layers != ST_LAYERS_AUTO) {
        draft->trunk = trunk_fixed(p);
        draft->ffn = most;
        draft->output = step >= 1;
        draft->nextn = step >= 2;
        return;
    }
    draft->trunk = step < p->layer_count ? step : p->layer_count;
    step -= draft->trunk;
    draft->output = step >= 1;
    if (step > 1) draft->ffn = step - 1 < most ? step - 1 : most;
    draft->nextn = step > 1 + most;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

/* Operations of a NextN block run only where the options ask for it. */
static bool op_runs(const st_planner *p, uint32_t op)
{
    return p->options.nextn || !st_op_is_nextn(p->source->program, op);
}

static bool layer_on_card(const st_planner *p, const st_draft *draft, uint32_t layer)
{
    return layer < p->layer_count ? layer < draft->trunk : draft->nextn;
}

static bool ffn_on_card(const st_planner *p, const st_draft *draft, uint32_t layer)
{
    if (!layer_on_card(p, draft, layer)) return false;
    uint32_t index = p->layers[layer].dense_index, kept = p->options.cpu_ffn_layers;
    return index == UINT32_MAX || (index >= kept && index - kept < draft->ffn);
}

bool st_draft_has_cache(const st_planner *p, const st_draft *draft, uint32_t layer)
{
    const st_layer_facts *facts = &p->layers[layer];
    return draft->mode == ST_MOE_CACHE && facts->moe_index != UINT32_MAX &&
           facts->moe_index >= p->options.cpu_moe_layers && facts->experts_on_card && layer_on_card(p, draft, layer);
}

static bool experts_on_card(const st_planner *p, const st_draft *draft, uint32_t layer)
{
    const st_layer_facts *facts = &p->layers[layer];
    if (st_draft_has_cache(p, draft, layer)) return p->slots[layer] > 0 || draft->slots + draft->more == 0;
    return draft->mode == ST_MOE_RESIDENT && facts->moe_index != UINT32_MAX &&
           facts->moe_index >= p->options.cpu_moe_layers && layer_on_card(p, draft, layer);
}

static bool head_on_card(const st_planner *p, const st_draft *draft, const st_op *op)
{
    bool own = op->layer >= 0 &&
               st_binding_find(p->source->binding, ST_ROLE_NEXTN_SHARED_HEAD_HEAD, op->layer) != ST_NO_WEIGHT;
    return own ? draft->nextn : draft->output;
}

/* Embedding tables stay in RAM, except one that is also the output matrix and on the GPU. */
static bool unit_on_card(const st_planner *p, const st_draft *draft, const st_op *op)
{
    if (kv_layer_of(op) != UINT32_MAX) return p->kv_device[kv_layer_of(op)] == ST_CARD;
    if (op->kind == ST_OP_EMBED) return draft->output && op->weight[0] == p->output_matrix;
    switch (op->block) {
    case ST_BLOCK_INPUT: return draft->trunk > 0;
    case ST_BLOCK_ATTENTION: return layer_on_card(p, draft, (uint32_t)op->layer);
    case ST_BLOCK_FFN: return ffn_on_card(p, draft, (uint32_t)op->layer);
    case ST_BLOCK_EXPERTS: return experts_on_card(p, draft, (uint32_t)op->layer);
    default: return head_on_card(p, draft, op);
    }
}

/* A head gathers the output rows on the device where its body ended, so that only these rows are copied. */
bool st_hidden_on_card(const st_planner *p, const uint8_t *op_device, uint32_t gather)
{
    const st_op *ops = p->source->program->ops;
    uint32_t i = gather;
    while (i > 0 && ops[i - 1].out != ops[gather].in[0]) i--;
    return i > 0 && op_device[i - 1] != ST_HOST;
}

/* The KV cache is on the device of its layer's attention; layers that share it run attention there. */
static void place_kv(st_planner *p, const st_draft *draft)
{
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        const st_layer_desc *layer = &p->source->desc->layers[i];
        uint32_t owner = layer->kind == ST_LAYER_ATTENTION ? layer->attention.kv_layer : i;
        bool on_card = layer_on_card(p, draft, owner) && p->layers[owner].state_on_card;
        p->kv_device[i] = i >= p->layer_count && !p->options.nextn ? ST_NO_DEVICE : on_card ? ST_CARD : ST_HOST;
    }
}

/* The number of a layer's experts on the GPU: its slots with a cache, else all or none. */
static void place_slots(st_planner *p, const st_draft *draft)
{
    uint32_t more = draft->more;
    for (uint32_t i = 0; i < p->kv_layer_count; i++) {
        bool resident = draft->mode == ST_MOE_RESIDENT && p->layers[i].experts_on_card && experts_on_card(p, draft, i);
        p->slots[i] = resident ? p->layers[i].experts : 0;
        if (!st_draft_has_cache(p, draft, i)) continue;
        uint32_t wanted = draft->slots + (more > 0 ? 1 : 0);
        if (more > 0) more--;
        p->slots[i] = wanted < p->layers[i].experts ? wanted : p->layers[i].experts;
    }
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* With a cache the host reads all experts, and the GPU has only the slots. Of a streamed operation the GPU has all but
 * the matrices. */
static uint8_t readers_of(const st_planner *p, const st_draft *draft, uint32_t op, int32_t weight)
{
    uint8_t device = p->op_device[op];
    if (st_draft_streams_op(p, draft, op) && p->source->binding->weights[weight].ne[1] < 2)
        return 1u << ST_HOST | 1u << ST_CARD;
    bool cached = draft->mode == ST_MOE_CACHE && device == ST_CARD && p->source->program->ops[op].kind == ST_OP_EXPERTS;
    if (!cached) return (uint8_t)(1u << device);
    unsigned bits =
        st_role_is_expert(p->source->binding->weights[weight].role) ? 1u << ST_HOST : 1u << ST_HOST | 1u << ST_CARD;
    return (uint8_t)bits;
}

static void place_weights(st_planner *p, const st_draft *draft)
{
    const st_program *program = p->source->program;
    memset(p->weight_devices, 0, p->source->binding->count * sizeof *p->weight_devices);
    for (uint32_t i = 0; i < program->op_count; i++) {
        if (!op_runs(p, i)) continue;
        for (int k = 0; k < ST_OP_WEIGHTS; k++) {
            int32_t weight = program->ops[i].weight[k];
            if (weight != ST_NO_WEIGHT) p->weight_devices[weight] |= readers_of(p, draft, i, weight);
        }
    }
}

/* Tensors lie within files, so their sums do not overflow. */
size_t st_weights_lay_out(const st_planner *p, size_t *offsets)
{
    const st_binding *binding = p->source->binding;
    size_t end = 0;
    for (int experts = 0; experts < 2; experts++)
        for (uint32_t i = 0; i < binding->count; i++) {
            if (st_role_is_expert(binding->weights[i].role) != (experts == 1)) continue;
            bool here = p->weight_devices[i] >> ST_CARD & 1;
            if (here) end = st_align_up(end, ST_RANGE_ALIGN);
            if (offsets) offsets[i] = here ? end : SIZE_MAX;
            if (here) end += binding->weights[i].bytes;
        }
    return end;
}

static void sum_weights(const st_planner *p, st_draft *draft)
{
    const st_binding *binding = p->source->binding;
    memset(draft->weight_bytes, 0, sizeof draft->weight_bytes);
    memset(draft->expert_bytes, 0, sizeof draft->expert_bytes);
    for (uint32_t i = 0; i < binding->count; i++) {
        size_t *sums = st_role_is_expert(binding->weights[i].role) ? draft->expert_bytes : draft->weight_bytes;
        for (uint32_t d = 0; d < ST_DEVICES_MAX; d++)
            if (p->weight_devices[i] >> d & 1) sums[d] += binding->weights[i].bytes;
    }
    draft->weights_end = st_weights_lay_out(p, NULL);
}

void st_draft_place(st_planner *p, st_draft *draft)
{
    const st_program *program = p->source->program;
    place_kv(p, draft);
    place_slots(p, draft);
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        bool may = op_runs(p, i) && p->card_runs[i];
        bool gathers = op->kind == ST_OP_GATHER;
        bool on_card = may && (gathers ? st_hidden_on_card(p, p->op_device, i) : unit_on_card(p, draft, op));
        p->op_device[i] = on_card ? ST_CARD : ST_HOST;
    }
    st_draft_place_dense(p, draft);
    place_weights(p, draft);
    sum_weights(p, draft);
    draft->kv_type = p->options.kv_type >= 0 ? (st_type)p->options.kv_type : st_kv_default_type(p->source->desc);
}
