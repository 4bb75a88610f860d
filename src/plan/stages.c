/* The stages of a plan: which routed experts are shared or watched, and every part of the program scheduled. */
#include "base/error.h"
#include "plan/plan.h"

/* The plan's devices with the scheduler's flags. NULL: out of memory. */
static const uint8_t *place_ops(const st_plan_source *source, const st_plan *plan, st_arena *scratch)
{
    const st_program *program = source->program;
    uint8_t *placed = st_arena_alloc(scratch, program->op_count, 1);
    for (uint32_t i = 0; placed && i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        placed[i] = plan->op_device[i];
        if (op->kind != ST_OP_EXPERTS) continue;
        if (plan->watched) placed[i] |= ST_WATCHED;
        bool cached = plan->op_device[i] == ST_CARD && plan->experts.mode == ST_MOE_CACHE;
        if (cached && plan->experts.slots[op->layer] < op->p.experts.experts) placed[i] |= ST_SHARED;
    }
    return placed;
}

/* The same for a step that streams dense parts. */
static const uint8_t *place_streamed(const st_plan_source *source, const st_plan *plan, st_arena *scratch)
{
    const uint8_t *others = place_ops(source, plan, scratch);
    uint8_t *placed = st_arena_alloc(scratch, source->program->op_count, 1);
    for (uint32_t i = 0; others && placed && i < source->program->op_count; i++) {
        bool moved = plan->dense.op_device[i] != plan->op_device[i];
        placed[i] = moved ? plan->dense.op_device[i] : others[i];
        if (st_plan_fetches(source, plan, i)) placed[i] |= ST_FETCHED;
    }
    return others ? placed : NULL;
}

static uint8_t first_reader(const st_program *program, const uint8_t *op_device, st_op_range range, int32_t value)
{
    for (uint32_t i = range.first; i < range.first + range.count; i++)
        for (int k = 0; k < ST_OP_INPUTS; k++)
            if (program->ops[i].in[k] == value) return op_device[i];
    return ST_HOST;
}

typedef struct scheduling {
    const st_program *program;
    const uint8_t *op_device, *placed;
    uint8_t *valid;
    st_arena *arena;
    bool chains; /* the GPU has them */
} scheduling;

static strata_status schedule_part(const scheduling *s, const st_part *part, st_plan_part *out, strata_error *error)
{
    if (part->input != ST_NO_VALUE) {
        out->input_device = first_reader(s->program, s->op_device, part->body, part->input);
        s->valid[part->input] = (uint8_t)(1u << out->input_device);
    }
    strata_status status = st_schedule_build(s->program, s->placed, part->body, s->valid, s->arena, &out->body, error);
    if (status != STRATA_OK) return status;
    out->hidden_devices = s->valid[part->hidden];
    status = st_schedule_build(s->program, s->placed, part->head, s->valid, s->arena, &out->head, error);
    out->body.chained = out->body.chained && s->chains;
    out->head.chained = false; /* a head has other rows */
    out->logits_device = s->valid[part->logits] & (1u << ST_HOST) ? ST_HOST : ST_CARD;
    return status;
}

static strata_status schedule_parts(const st_plan_source *source, st_plan *plan, bool streamed, st_arena *arena,
                                    strata_error *error)
{
    const st_program *program = source->program;
    st_arena scratch = {0};
    scheduling s = {.program = program, .op_device = plan->op_device, .arena = arena,
                    .chains = source->device_count > ST_CARD && source->devices[ST_CARD].round_trip_seconds > 0};
    s.placed = place_ops(source, plan, &scratch);
    s.valid = st_arena_alloc(&scratch, program->value_count, 1);
    if (streamed) {
        s.op_device = plan->dense.op_device;
        s.chains = false; /* a chain is for few rows */
        s.placed = place_streamed(source, plan, &scratch);
    }
    strata_status status = STRATA_OK;
    st_plan_part *main = streamed ? &plan->streamed : &plan->parts[ST_PART_MAIN];
    if (!s.placed || !s.valid) status = st_error_memory(error, program->op_count, "the plan's stages");
    if (status == STRATA_OK) status = schedule_part(&s, &program->main, main, error);
    if (status == STRATA_OK && plan->nextn && !streamed)
        status = schedule_part(&s, &program->nextn, &plan->parts[ST_PART_NEXTN], error);
    st_arena_free(&scratch);
    return status;
}

strata_status st_plan_schedule(const st_plan_source *source, st_plan *plan, st_arena *arena, strata_error *error)
{
    strata_status status = schedule_parts(source, plan, false, arena, error);
    return status == STRATA_OK && plan->dense.rows ? schedule_parts(source, plan, true, arena, error) : status;
}
