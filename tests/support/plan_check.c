#include "base/alloc.h"
#include "base/check.h"
#include "sampler/candidates.h"
#include "support/plan_rig.h"

static bool op_runs(const plan_rig *rig, uint32_t op)
{
    const st_part *nextn = &rig->source.program->nextn;
    bool of_nextn = nextn->body.count && op >= nextn->body.first;
    return !of_nextn || rig->plan->nextn;
}

static bool is_expert_tensor(st_role role)
{
    return role == ST_ROLE_FFN_GATE_UP_EXPS || role == ST_ROLE_FFN_GATE_EXPS || role == ST_ROLE_FFN_UP_EXPS ||
           role == ST_ROLE_FFN_DOWN_EXPS;
}

/* Whether the operation is on the host, and on the GPU in steps of many rows. */
static bool is_streamed(const st_plan *plan, uint32_t op)
{
    return plan->dense.rows && plan->op_device[op] == ST_HOST && plan->dense.op_device[op] == ST_CARD;
}

/* Which devices' operations read each weight. The GPU has no matrices of streamed operations. */
static void find_readers(const plan_rig *rig, uint8_t *readers)
{
    const st_plan *plan = rig->plan;
    const st_binding *binding = rig->source.binding;
    const st_program *program = rig->source.program;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        bool cached = op->kind == ST_OP_EXPERTS && plan->op_device[i] == ST_CARD && plan->experts.mode == ST_MOE_CACHE;
        for (int k = 0; k < ST_OP_WEIGHTS && op_runs(rig, i); k++) {
            if (op->weight[k] == ST_NO_WEIGHT) continue;
            bool slots = cached && is_expert_tensor(binding->weights[op->weight[k]].role);
            bool streamed = is_streamed(plan, i) && binding->weights[op->weight[k]].ne[1] < 2;
            unsigned bits = slots ? 1u : cached || streamed ? 3u : 1u << plan->op_device[i];
            readers[op->weight[k]] |= (uint8_t)bits;
        }
    }
}

/* Tensors on the GPU do not overlap: first all but the experts, then the experts, each directly after the previous one.
 * */
static void check_offsets(const plan_rig *rig, const uint8_t *readers)
{
    const st_plan *plan = rig->plan;
    const st_binding *binding = rig->source.binding;
    size_t end = 0;
    for (int experts = 0; experts < 2; experts++)
        for (uint32_t i = 0; i < binding->count; i++) {
            if (is_expert_tensor(binding->weights[i].role) != (experts == 1)) continue;
            size_t offset = plan->weight_offset[ST_CARD][i];
            assert_true((readers[i] >> ST_CARD & 1) == (offset != SIZE_MAX));
            if (offset == SIZE_MAX) continue;
            assert_true(offset >= end && offset - end < ST_RANGE_ALIGN && offset % ST_RANGE_ALIGN == 0);
            end = offset + binding->weights[i].bytes;
        }
    assert_true(end <= plan->slots_offset && plan->slots_offset - end < ST_RANGE_ALIGN);
}

/* Each tensor is on the devices whose operations read it, and on no other. */
static void check_weights(const plan_rig *rig)
{
    const st_plan *plan = rig->plan;
    const st_binding *binding = rig->source.binding;
    uint64_t sums[ST_DEVICES_MAX][2] = {{0}};
    uint8_t *readers = st_alloc_zero(binding->count, 1);
    assert_non_null(readers);
    find_readers(rig, readers);
    for (uint32_t i = 0; i < binding->count; i++) {
        assert_int_equal(plan->weight_devices[i], readers[i]);
        assert_true(plan->weight_offset[ST_HOST][i] == SIZE_MAX);
        for (uint32_t d = 0; d < ST_DEVICES_MAX; d++)
            if (readers[i] >> d & 1) sums[d][is_expert_tensor(binding->weights[i].role)] += binding->weights[i].bytes;
    }
    if (plan->device_count == 2) check_offsets(rig, readers);
    st_free(readers);
    for (uint32_t d = 0; d < plan->device_count; d++) {
        const uint64_t *owners = plan->devices[d].owners;
        bool all = owners[ST_OWNER_WEIGHTS] == sums[d][0] && owners[ST_OWNER_EXPERTS] == sums[d][1];
        assert_int_equal(all, d == ST_CARD || !plan->on_disk);
    }
}

/* The parts add up to the device's total, the block is the total less mapped and runtime memory, and the total fits. */
static void check_device(const plan_rig *rig, uint32_t d)
{
    const st_plan_device *device = &rig->plan->devices[d];
    uint64_t sum = 0, outside = device->owners[ST_OWNER_RUNTIME];
    for (int i = 0; i < ST_OWNER_COUNT; i++) sum += device->owners[i];
    if (d == ST_HOST) outside += device->owners[ST_OWNER_WEIGHTS] + device->owners[ST_OWNER_EXPERTS];
    assert_int_equal(device->planned_bytes, sum);
    assert_int_equal(device->block_bytes, sum - outside);
    assert_int_equal(device->block_bytes % rig->devices[d].granularity, 0);
    assert_true(device->owners[ST_OWNER_GRANULARITY] < rig->devices[d].granularity);
    assert_int_equal(device->capacity_bytes, rig->devices[d].free_bytes);
    assert_true(device->planned_bytes + device->margin_bytes <= device->capacity_bytes);
}

/* The pool of full attention holds at least one context and at most one for each conversation; the layouts of all devices
 * have the same pools. */
static void check_pools(const plan_rig *rig, uint8_t d)
{
    const st_plan *plan = rig->plan;
    const st_kv_layout *kv = plan->memory[d].kv;
    uint64_t page = rig->options.page_tokens ? rig->options.page_tokens : ST_KV_PAGE_TOKENS;
    uint64_t longest = (plan->context + page - 1) / page * page; /* several conversations have whole pages each */
    assert_true(plan->pool_tokens == plan->context || plan->pool_tokens % longest == 0);
    assert_true(plan->pool_tokens <= longest * plan->conversations);
    assert_int_equal(kv->options.page_tokens, page);
    assert_int_equal(kv->options.conversations, plan->conversations);
    assert_int_equal(kv->options.pool_tokens, plan->pool_tokens);
    assert_int_equal(kv->pools[0].pages, (plan->pool_tokens + page - 1) / page + 1);
    assert_int_equal(kv->pool_count, plan->memory[ST_HOST].kv->pool_count);
    for (uint32_t i = 0; i < kv->pool_count; i++)
        assert_int_equal(kv->pools[i].pages, plan->memory[ST_HOST].kv->pools[i].pages);
    assert_int_equal(plan->step.rows, plan->batch);
    assert_int_equal(plan->step.out_rows, plan->out_rows);
    assert_int_equal(plan->step.conversations, plan->conversations);
    assert_int_equal(plan->step.tables, st_kv_tables_max(kv));
}

static size_t range_bytes(size_t bytes)
{
    return st_align_up(bytes, ST_RANGE_ALIGN);
}

/* Staging on the host: the step blocks of both parts and out_rows rows of logits beside a GPU, then a row of logits for
 * each conversation. */
static void check_staging(const plan_rig *rig)
{
    const st_plan *plan = rig->plan;
    const st_plan_memory *s = &plan->memory[ST_HOST];
    bool card = plan->device_count == 2;
    size_t step = card ? st_step_bytes(&plan->step) : 0, row = rig->source.desc->vocab * sizeof(float);
    size_t logits = card && plan->output_on_card ? plan->out_rows * row : 0;
    assert_int_equal(s->staging_steps[0], 0);
    assert_int_equal(s->staging_steps[1], range_bytes(step));
    assert_int_equal(s->staging_logits, 2 * range_bytes(step));
    assert_int_equal(s->staging_slot_logits, s->staging_logits + range_bytes(logits));
    size_t reduced = card && plan->reduces_logits ? plan->out_rows : 0;
    assert_int_equal(s->staging_adjustments, s->staging_slot_logits + range_bytes(plan->conversations * row));
    assert_int_equal(s->staging_candidates, s->staging_adjustments + range_bytes(reduced * sizeof(st_adjustments)));
    assert_int_equal(s->staging_bytes, s->staging_candidates + reduced * sizeof(st_candidates));
}

static uint64_t card_staging(const st_plan *plan)
{
    return plan->expert_staging_bytes + (plan->dense.rows ? ST_FETCH_BUFFERS * plan->dense.buffer_bytes : 0);
}

/* Operations on KV and state are where the layer is; the matrices of the others fit into a buffer each. Steps of so many
 * rows can occur. */
static void check_dense(const plan_rig *rig)
{
    const st_plan *plan = rig->plan;
    const st_program *program = rig->source.program;
    uint64_t bytes = 0;
    uint32_t fetches = 0, runs = 0;
    size_t largest = 0;
    assert_int_equal(plan->dense.rows > 0, plan->streamed.body.count > 0);
    if (plan->dense.rows == 0) return;
    assert_true(plan->device_count == 2 && plan->dense.rows <= plan->batch);
    for (uint32_t i = 0; i < program->op_count; i++) {
        if (!is_streamed(plan, i)) continue;
        st_fetch_layout fetch = st_fetch_layout_of(rig->source.binding, &program->ops[i]);
        assert_false(st_op_has_kv(program->ops[i].kind) || st_op_has_state(program->ops[i].kind));
        assert_int_equal(st_plan_fetches(&rig->source, plan, i), fetch.bytes > 0);
        if (fetch.bytes > largest) largest = fetch.bytes;
        bytes += fetch.copied_bytes;
        fetches += fetch.bytes > 0;
    }
    for (uint32_t i = 0; i < plan->streamed.body.count; i++) runs += plan->streamed.body.stages[i].fetched;
    assert_true(fetches > 0 && fetches == plan->dense.fetches && fetches == runs && bytes == plan->dense.bytes);
    assert_int_equal(largest, plan->dense.buffer_bytes);
    assert_int_equal(plan->dense.offset, plan->expert_staging_offset + plan->expert_staging_bytes);
    assert_int_equal(plan->dense.offset % ST_RANGE_ALIGN, 0);
    assert_int_equal(plan->memory_offset[ST_CARD], plan->dense.offset + ST_FETCH_BUFFERS * plan->dense.buffer_bytes);
}

/* The ranges of the executor's memory do not overlap; the layout and the working set have the planned sizes. */
static void check_memory(const plan_rig *rig, uint8_t d)
{
    const st_plan *plan = rig->plan;
    const st_plan_memory *s = &plan->memory[d];
    const uint64_t *owners = plan->devices[d].owners;
    uint64_t restore = d == ST_HOST ? plan->restore_bytes : 0, tier = d == ST_HOST ? plan->tier_bytes : 0;
    st_working_set working;
    st_op op = {.kind = ST_OP_CANDIDATES};
    st_bound_op shape = {.op = &op, .in[0].width = rig->source.desc->vocab};
    st_scratch reducing = {0};
    if (plan->reduces_logits) reducing = rig->source.devices[ST_CARD].scratch(&shape, plan->out_rows);
    st_working_options options = {.op_device = plan->op_device, .device = d, .step = plan->step,
                                  .dense_device = plan->dense.rows ? plan->dense.op_device : NULL,
                                  .workers = rig->options.workers[d], .nextn = plan->nextn,
                                  .expert_cache = plan->experts.mode == ST_MOE_CACHE,
                                  .watched = plan->watched && plan->experts.mode != ST_MOE_AUTO,
                                  .candidates = d == ST_CARD && plan->reduces_logits ? &reducing : NULL};
    uint32_t ops = rig->source.program->op_count;
    st_scratch *scratch = st_alloc_array(ops, sizeof *scratch);
    assert_non_null(scratch);
    plan_rig_scratch(rig, d, plan->batch, scratch, ops);
    options.scratch = scratch;
    assert_true(st_working_set_of(rig->source.desc, rig->source.program, &options, &working));
    st_free(scratch);
    assert_memory_equal(&working, &s->working, sizeof working);
    assert_int_equal(owners[ST_OWNER_SCRATCH], working.bytes);
    assert_int_equal(owners[ST_OWNER_KV], s->kv->exact.kv);
    assert_int_equal(owners[ST_OWNER_STATE], s->kv->exact.state);
    assert_int_equal(owners[ST_OWNER_RESTORE], restore);
    assert_int_equal(owners[ST_OWNER_TIER], tier);
    assert_int_equal(owners[ST_OWNER_STAGING], s->staging_bytes + (d == ST_CARD ? card_staging(plan) : 0));
    assert_true(s->kv_offset + s->kv->total_bytes <= s->restore_offset);
    assert_true(s->restore_offset + restore <= s->tier_offset);
    assert_true(s->tier_offset + tier <= s->working_offset);
    assert_true(s->working_offset + s->working.bytes <= s->staging_offset);
    assert_true(s->staging_offset + s->staging_bytes <= s->bytes);
    assert_int_equal((s->kv_offset | s->restore_offset | s->tier_offset | s->working_offset | s->staging_offset | s->bytes) % ST_RANGE_ALIGN, 0);
    assert_int_equal(plan->memory_offset[d] % ST_RANGE_ALIGN, 0);
    assert_int_equal(plan->memory_offset[d] + s->bytes, plan->devices[d].block_bytes - owners[ST_OWNER_GRANULARITY]);
}

/* The RAM tier has whole pages of full attention of both devices, no more than asked for. */
static void check_tier(const plan_rig *rig)
{
    const st_plan *plan = rig->plan;
    const st_kv_layout *layouts[ST_DEVICES_MAX] = {plan->memory[ST_HOST].kv, plan->memory[ST_CARD].kv};
    if (plan->device_count == 1 || layouts[ST_CARD]->pools[0].page_bytes == 0) {
        assert_int_equal(plan->tier_pages, 0);
        assert_int_equal(plan->tier_bytes, 0);
        return;
    }
    uint64_t asked = rig->options.tier_bytes;
    assert_int_equal(plan->tier_bytes, plan->tier_pages ? st_kv_tier_bytes(layouts, 2, plan->tier_pages) : 0);
    if (asked != ST_BYTES_AUTO) assert_true(plan->tier_bytes <= asked);
    else if (plan->tier_pages) assert_true(plan->tier_pages >= layouts[ST_HOST]->pools[0].pages);
}

static void check_experts(const plan_rig *rig)
{
    const st_plan *plan = rig->plan;
    const st_desc *desc = rig->source.desc;
    uint64_t bytes = 0, count = 0, all = 0;
    for (uint32_t i = 0; i < desc->layer_count + (plan->nextn ? desc->nextn_count : 0); i++) {
        assert_true(plan->experts.slots[i] <= desc->layers[i].ffn.experts);
        assert_int_equal(plan->experts.slot_bytes[i] % ST_RANGE_ALIGN, 0);
        bytes += plan->experts.slots[i] * plan->experts.slot_bytes[i];
        count += plan->experts.slots[i];
        all += desc->layers[i].ffn.experts;
    }
    if (all == 0) return;
    assert_true(plan->experts.mode != ST_MOE_AUTO);
    assert_true(plan->experts.resident_share == (double)count / (double)all);
    if (plan->experts.mode != ST_MOE_CACHE) return;
    assert_int_equal(plan->devices[ST_CARD].owners[ST_OWNER_SLOTS], bytes);
    assert_true(bytes + plan->expert_staging_bytes <= plan->experts.budget_bytes);
    assert_int_equal(plan->expert_staging_offset, plan->slots_offset + bytes);
}

/* Operations with state run on the device that holds the state, and the GPU runs only operations it supports. */
static void check_ops(const plan_rig *rig)
{
    const st_plan *plan = rig->plan;
    const st_program *program = rig->source.program;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        assert_true(plan->op_device[i] < plan->device_count);
        if (!op_runs(rig, i)) continue;
        if (op->kind == ST_OP_KV_STORE) assert_int_equal(plan->op_device[i], plan->kv_device[op->p.kv.kv_layer]);
        if (op->kind == ST_OP_ATTENTION)
            assert_int_equal(plan->op_device[i], plan->kv_device[op->p.attention.kv_layer]);
        if (op->kind == ST_OP_CONV || op->kind == ST_OP_DELTANET)
            assert_int_equal(plan->op_device[i], plan->kv_device[op->layer]);
        if (op->kind == ST_OP_EXPERTS && plan->experts.mode == ST_MOE_CACHE)
            assert_int_equal(plan->op_device[i] == ST_CARD, plan->experts.slots[op->layer] > 0);
        if (plan->op_device[i] == ST_CARD)
            assert_true(st_profile_runs(&rig->devices[ST_CARD], rig->source.binding, op));
    }
}

/* The stage expected after an operation's run: SPLIT if the GPU lacks some of its experts, WATCH if the routing is
 * read, else none. */
static int stage_behind(const plan_rig *rig, uint32_t i)
{
    const st_plan *plan = rig->plan;
    const st_op *op = &rig->source.program->ops[i];
    if (op->kind != ST_OP_EXPERTS) return -1;
    bool cached = plan->op_device[i] == ST_CARD && plan->experts.mode == ST_MOE_CACHE;
    if (cached && plan->experts.slots[op->layer] < op->p.experts.experts) return ST_STAGE_SPLIT;
    return rig->options.watch ? ST_STAGE_WATCH : -1;
}

/* Every operation runs once, in order and on its device. */
static void check_range(const plan_rig *rig, st_op_range range, const st_stages *stages)
{
    uint32_t next = range.first;
    for (uint32_t s = 0; s < stages->count; s++) {
        const st_stage *stage = &stages->stages[s];
        if (stage->kind != ST_STAGE_RUN) continue;
        assert_int_equal(stage->ops.first, next);
        next += stage->ops.count;
        for (uint32_t i = stage->ops.first; i < next; i++) {
            assert_int_equal(rig->plan->op_device[i], stage->device);
            int behind = stage_behind(rig, i);
            bool follows = i + 1 == next && s + 1 < stages->count && stages->stages[s + 1].kind > ST_STAGE_MOVE;
            assert_int_equal(behind, follows ? (int)stages->stages[s + 1].kind : -1);
            if (follows) assert_int_equal(stages->stages[s + 1].ops.first, i);
        }
    }
    assert_int_equal(next, range.first + range.count);
}

void plan_rig_check(const plan_rig *rig)
{
    const st_plan *plan = rig->plan;
    assert_true(plan->context >= 1 && plan->context <= rig->source.desc->context_max);
    assert_true(plan->batch >= 1 && plan->batch <= plan->context);
    assert_true(plan->why_count > 0);
    check_weights(rig);
    check_experts(rig);
    check_dense(rig);
    check_ops(rig);
    check_range(rig, rig->source.program->main.body, &plan->parts[ST_PART_MAIN].body);
    check_range(rig, rig->source.program->main.head, &plan->parts[ST_PART_MAIN].head);
    if (plan->nextn) check_range(rig, rig->source.program->nextn.body, &plan->parts[ST_PART_NEXTN].body);
    for (uint8_t d = 0; d < plan->device_count; d++) {
        check_device(rig, d);
        check_pools(rig, d);
        check_memory(rig, d);
    }
    check_tier(rig);
    check_staging(rig);
}
