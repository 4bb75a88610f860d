/* Builds the stages. Two invariants keep values intact although values share memory (places, program.h):
 * 1. A move never overwrites a live value. It comes after the operation that writes the value and before the one that
 *    reads it, so within the value's lifetime, and no other live value has that place.
 * 2. A place is not overwritten while it is still read. The GPU's queue runs in order, and the host runs in order and
 *    waits for the moves that it reads. Only a move from the host to the GPU may read host memory after it was
 *    enqueued, so a host run that writes to that place waits for the move. */
#include "plan/schedule.h"

#include <string.h>

#include "base/error.h"

enum { NONE = -1 };

typedef struct move {
    int32_t value;
    uint8_t from, to;
    int32_t next; /* in the list of its gap */
} move;

/* Gap i is the point before the i-th operation of the range. A value written before the range has gap 0. */
typedef struct gap {
    int32_t first, last; /* list of moves */
} gap;

typedef struct builder {
    const st_program *program;
    const uint8_t *placed;
    st_op_range range;
    uint8_t *valid;
    uint32_t *made;   /* [values]: the gap after its last write */
    gap *gaps;        /* [range.count + 1] */
    move *moves;
    uint32_t move_count;
    uint32_t group;     /* the first of the moves that the host's current run waits for */
    uint32_t group_gap; /* the gap that they share: after the last of their values is written */
    /* second pass */
    st_stage *stages;
    uint32_t stage_count;
    int32_t *moved;   /* [values]: the last MOVE of the value to the host */
    int32_t waited;   /* the host has waited for this stage, and so for all before it */
    int32_t *up;      /* MOVE stages from host to GPU that may still be running */
    uint32_t up_count;
} builder;

static const st_op *op_at(const builder *b, uint32_t index)
{
    return &b->program->ops[b->range.first + index];
}

static uint8_t flags_at(const builder *b, uint32_t index)
{
    return b->placed[b->range.first + index] & (ST_SHARED | ST_WATCHED);
}

static bool fetched_at(const builder *b, uint32_t index)
{
    return b->placed[b->range.first + index] & ST_FETCHED;
}

static uint8_t device_at(const builder *b, uint32_t index)
{
    return b->placed[b->range.first + index] & ST_CARD;
}

/* --- which values move, and where --------------------------------------------------------------------------------- */

static void put_in_gap(builder *b, uint32_t index, uint32_t at)
{
    gap *g = &b->gaps[at];
    b->moves[index].next = NONE;
    if (g->first == NONE) g->first = (int32_t)index;
    else b->moves[g->last].next = (int32_t)index;
    g->last = (int32_t)index;
}

/* Ends the group of the host's run. All its moves share one gap, so that they interrupt the GPU's run only once. */
static void close_group(builder *b)
{
    for (; b->group < b->move_count; b->group++) put_in_gap(b, b->group, b->group_gap);
    b->group_gap = 0;
}

static strata_status need(builder *b, int32_t value, uint32_t index, uint8_t device, strata_error *error)
{
    uint8_t *valid = &b->valid[value];
    if (*valid >> device & 1) return STRATA_OK;
    if (*valid == 0)
        return st_error_set(error, STRATA_RUNTIME, NULL, "operation %u (%s): its input %s is on no device",
                            b->range.first + index, st_op_name(op_at(b, index)->kind), b->program->values[value].name);
    b->moves[b->move_count++] = (move){.value = value, .from = (uint8_t)__builtin_ctz(*valid), .to = device};
    *valid |= (uint8_t)(1u << device);
    if (device == ST_HOST) {
        if (b->group_gap < b->made[value]) b->group_gap = b->made[value];
    } else {
        put_in_gap(b, b->move_count - 1, b->made[value]);
        b->group = b->move_count;
    }
    return STRATA_OK;
}

static void write_value(builder *b, int32_t value, uint32_t index)
{
    if (value == ST_NO_VALUE) return;
    b->valid[value] = (uint8_t)(1u << device_at(b, index));
    b->made[value] = index + 1;
}

static strata_status need_inputs(builder *b, uint32_t index, uint8_t device, strata_error *error)
{
    const st_op *op = op_at(b, index);
    strata_status status = STRATA_OK;
    for (int k = 0; k < ST_OP_INPUTS && status == STRATA_OK; k++)
        if (op->in[k] != ST_NO_VALUE) status = need(b, op->in[k], index, device, error);
    return status;
}

static strata_status find_moves(builder *b, strata_error *error)
{
    for (uint32_t i = 0; i < b->range.count; i++) {
        if (i > 0 && device_at(b, i) != device_at(b, i - 1)) close_group(b);
        strata_status status = need_inputs(b, i, device_at(b, i), error);
        if (status == STRATA_OK && flags_at(b, i) && device_at(b, i) != ST_HOST) {
            status = need_inputs(b, i, ST_HOST, error);
            close_group(b);
        }
        if (status != STRATA_OK) return status;
        write_value(b, op_at(b, i)->out, i);
        write_value(b, op_at(b, i)->out2, i);
    }
    close_group(b);
    return STRATA_OK;
}

/* --- stages, and what the host waits for -------------------------------------------------------------------------- */

static bool share_a_place(const st_program *program, int32_t a, int32_t b)
{
    const st_value *v = &program->values[a], *w = &program->values[b];
    return v->rows == w->rows && v->offset_bytes < w->offset_bytes + (size_t)w->width * sizeof(float) &&
           w->offset_bytes < v->offset_bytes + (size_t)v->width * sizeof(float);
}

static void wait_for(builder *b, int32_t stage, int32_t *wait)
{
    if (stage > b->waited && stage > *wait) *wait = stage;
}

/* The moves that the host must wait for before it writes the place of `value`, which they read. */
static void wait_for_readers(builder *b, int32_t value, int32_t *wait)
{
    if (value == ST_NO_VALUE) return;
    for (uint32_t i = 0; i < b->up_count; i++)
        if (share_a_place(b->program, b->stages[b->up[i]].value, value)) wait_for(b, b->up[i], wait);
}

static int32_t wait_of(builder *b, st_op_range ops)
{
    int32_t wait = ST_NO_STAGE;
    for (uint32_t i = ops.first; i < ops.first + ops.count; i++) {
        const st_op *op = &b->program->ops[i];
        for (int k = 0; k < ST_OP_INPUTS; k++)
            if (op->in[k] != ST_NO_VALUE) wait_for(b, b->moved[op->in[k]], &wait);
        wait_for_readers(b, op->out, &wait);
        wait_for_readers(b, op->out2, &wait);
    }
    return wait;
}

static void emit_stage(builder *b, st_stage stage)
{
    if (stage.kind != ST_STAGE_RUN || stage.device == ST_HOST) stage.wait = wait_of(b, stage.ops);
    if (stage.wait != ST_NO_STAGE) {
        b->stages[stage.wait].awaited = true;
        b->waited = stage.wait;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < b->up_count; i++)
            if (b->up[i] > b->waited) b->up[kept++] = b->up[i];
        b->up_count = kept;
    }
    b->stages[b->stage_count++] = stage;
}

static void emit_run(builder *b, uint32_t first, uint32_t end)
{
    if (first == end) return;
    uint8_t device = device_at(b, first);
    st_stage stage = {.kind = ST_STAGE_RUN, .device = device, .from = device, .value = ST_NO_VALUE, .wait = ST_NO_STAGE,
                      .fetched = fetched_at(b, first), .ops = {.first = b->range.first + first, .count = end - first}};
    emit_stage(b, stage);
    if (!flags_at(b, end - 1)) return;
    stage.kind = flags_at(b, end - 1) & ST_SHARED ? ST_STAGE_SPLIT : ST_STAGE_WATCH;
    stage.ops = (st_op_range){.first = b->range.first + end - 1, .count = 1};
    emit_stage(b, stage);
}

static void emit_moves(builder *b, uint32_t at)
{
    for (int32_t i = b->gaps[at].first; i != NONE; i = b->moves[i].next) {
        const move *m = &b->moves[i];
        int32_t stage = (int32_t)b->stage_count++;
        b->stages[stage] = (st_stage){.kind = ST_STAGE_MOVE, .device = m->to, .from = m->from, .value = m->value,
                                      .wait = ST_NO_STAGE};
        if (m->to == ST_HOST) b->moved[m->value] = stage;
        else b->up[b->up_count++] = stage;
    }
}

/* Whether operation `index` continues the run of the one before it. */
static bool continues(const builder *b, uint32_t index)
{
    return device_at(b, index) == device_at(b, index - 1) && !flags_at(b, index - 1) && !fetched_at(b, index) &&
           !fetched_at(b, index - 1);
}

static void emit_stages(builder *b)
{
    uint32_t first = 0; /* of the current run */
    for (uint32_t i = 0; i < b->range.count; i++) {
        bool moves = b->gaps[i].first != NONE;
        if (!moves && (i == 0 || continues(b, i))) continue;
        emit_run(b, first, i);
        emit_moves(b, i);
        first = i;
    }
    emit_run(b, first, b->range.count);
}

/* --- chains ------------------------------------------------------------------------------------------------------- */

/* What is known of the host on the way through the stages of a chain. */
typedef struct follower {
    int32_t waited;  /* the last stage that it has waited for */
    int32_t shared;  /* the last SPLIT: the GPU may still read its sum until the host has waited for a later stage */
    bool running;    /* a run of the host has not been answered: the GPU may be ahead of it */
} follower;

static bool may_wait(const st_stage *stages, const st_stage *stage, follower *f)
{
    if (stage->wait != ST_NO_STAGE && stages[stage->wait].device != ST_HOST) return false;
    if (stage->wait > f->waited) f->waited = stage->wait;
    return f->shared == ST_NO_STAGE || f->waited > f->shared;
}

static bool may_follow(st_stage *stages, int32_t index, follower *f)
{
    st_stage *stage = &stages[index];
    switch (stage->kind) {
    case ST_STAGE_RUN:
        if (stage->device != ST_HOST) return true;
        f->running = true;
        return may_wait(stages, stage, f);
    case ST_STAGE_SPLIT:
        if (!may_wait(stages, stage, f)) return false;
        f->shared = index;
        f->running = false;
        return true;
    case ST_STAGE_MOVE:
        stage->guarded = stage->device == ST_HOST && f->running;
        f->running = false;
        return true;
    case ST_STAGE_WATCH: break; /* nothing keeps the GPU from overwriting what the host reads */
    }
    return false;
}

/* A chain is worth it if the GPU waits for the host on its way. */
static bool is_chain(st_stage *stages, uint32_t count)
{
    follower f = {.waited = ST_NO_STAGE, .shared = ST_NO_STAGE};
    bool down = false;
    for (uint32_t i = 0; i < count; i++) {
        if (!may_follow(stages, (int32_t)i, &f)) return false;
        down = down || (stages[i].kind == ST_STAGE_MOVE && stages[i].device == ST_HOST);
    }
    return down;
}

/* --- both passes ------------------------------------------------------------------------------------------------- */

/* At most a move per input and device; at most a stage per move and two per operation. */
static bool allocate(builder *b, st_arena *scratch)
{
    size_t inputs = 0, values = b->program->value_count, count = b->range.count;
    for (uint32_t i = 0; i < b->range.count; i++)
        for (int k = 0; k < ST_OP_INPUTS; k++) inputs += op_at(b, i)->in[k] != ST_NO_VALUE;
    b->made = st_arena_alloc(scratch, values, sizeof *b->made);
    b->gaps = st_arena_alloc(scratch, count + 1, sizeof *b->gaps);
    b->moves = st_arena_alloc(scratch, 2 * inputs, sizeof *b->moves);
    b->stages = st_arena_alloc(scratch, 2 * inputs + 2 * count, sizeof *b->stages);
    b->moved = st_arena_alloc(scratch, values, sizeof *b->moved);
    b->up = st_arena_alloc(scratch, 2 * inputs, sizeof *b->up);
    if (!b->made || !b->gaps || !b->moves || !b->stages || !b->moved || !b->up) return false;
    for (size_t i = 0; i <= count; i++) b->gaps[i] = (gap){NONE, NONE};
    for (size_t i = 0; i < values; i++) b->moved[i] = ST_NO_STAGE;
    return true;
}

static strata_status build(builder *b, st_arena *arena, st_arena *scratch, st_stages *out, strata_error *error)
{
    if (!allocate(b, scratch)) return st_error_memory(error, b->range.count * sizeof *b->stages, "the schedule");
    strata_status status = find_moves(b, error);
    if (status != STRATA_OK) return status;
    emit_stages(b);
    st_stage *stages = st_arena_alloc(arena, b->stage_count, sizeof *stages);
    if (!stages) return st_error_memory(error, b->stage_count * sizeof *stages, "the schedule");
    int32_t pending = b->up_count ? b->up[b->up_count - 1] : ST_NO_STAGE;
    if (pending != ST_NO_STAGE) b->stages[pending].awaited = true;
    memcpy(stages, b->stages, b->stage_count * sizeof *stages);
    *out = (st_stages){.stages = stages, .count = b->stage_count, .pending = pending,
                       .chained = is_chain(stages, b->stage_count)};
    return STRATA_OK;
}

strata_status st_schedule_build(const st_program *program, const uint8_t *placed, st_op_range range, uint8_t *valid,
                                st_arena *arena, st_stages *out, strata_error *error)
{
    st_arena scratch = {0};
    builder b = {.program = program, .placed = placed, .range = range, .valid = valid, .waited = ST_NO_STAGE};
    strata_status status = build(&b, arena, &scratch, out, error);
    st_arena_free(&scratch);
    return status;
}
