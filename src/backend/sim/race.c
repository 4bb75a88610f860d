/* The race checker: compares the memory accesses of copies and operations that overlap in virtual time, in different
 * queues or on host and GPU. If two overlap and one writes, a wait is missing, even if the result happens to be right.
 * An operation on the KV cache or on recurrent state accesses the rows and slots that the step names, and no others.
 * Host writes to tables of experts are checked in segment.c. */
#include "backend/sim/world.h"
#include "base/error.h"

/* Compares one access with the accesses of another actor. */
typedef struct comparison {
    const st_sim_actor *other;
    st_sim_access access;
    bool conflict;
} comparison;

static void compare(void *context, st_sim_access access)
{
    comparison *c = context;
    uintptr_t a = (uintptr_t)access.address, b = (uintptr_t)c->access.address;
    bool overlap = a < b + c->access.bytes && b < a + access.bytes;
    if (overlap && (access.write || c->access.write)) c->conflict = true;
}

static void compare_all(void *context, st_sim_access access)
{
    comparison *c = context;
    c->access = access;
    c->other->visit(c->other, compare, c);
}

void st_sim_begin(st_sim_world *world, st_sim_actor *actor)
{
    actor->raced = false;
    for (st_sim_actor *other = world->actors; other; other = other->next) {
        comparison c = {.other = other};
        actor->visit(actor, compare_all, &c);
        if (c.conflict) actor->raced = other->raced = true;
    }
    actor->next = world->actors;
    world->actors = actor;
}

void st_sim_end(st_sim_world *world, st_sim_actor *actor)
{
    st_sim_actor **link = &world->actors;
    while (*link && *link != actor) link = &(*link)->next;
    if (*link) *link = actor->next;
}

strata_status st_sim_tell_race(const char *what, int32_t layer, strata_error *error)
{
    return st_error_set(error, STRATA_DEVICE, "a wait is missing between two queues, or between the host and a queue",
                        "%s (layer %d): another copy or operation used its memory at the same time", what, layer);
}

/* --- the accesses of an operation --------------------------------------------------------------------------------- */

static void see(st_sim_visitor *visitor, void *context, const void *address, size_t bytes, bool write)
{
    if (address && bytes) visitor(context, (st_sim_access){.address = address, .bytes = bytes, .write = write});
}

static void see_value(st_sim_visitor *visitor, void *context, st_bound_value value, uint32_t rows, bool write)
{
    see(visitor, context, value.data, (size_t)rows * value.width * sizeof(float), write);
}

/* The experts that the rows chose. */
static void see_experts(const st_sim_op *op, int index, st_sim_visitor *visitor, void *context)
{
    const st_bound_weight *w = &op->bound->weight[index];
    const st_bound_value *chosen = &op->bound->in[1];
    const int32_t *ids = chosen->data;
    for (size_t i = 0; i < (size_t)op->rows * chosen->width; i++)
        if (ids[i] >= 0 && (uint32_t)ids[i] < op->bound->op->p.experts.experts)
            see(visitor, context, w->parts[ids[i]], w->ne[1] * w->row_bytes, false);
}

/* --- KV cache and recurrent state: the step block says what an operation accesses --------------------------------- */

/* One side of the KV cache, keys or values. Rows of adjacent pages are one access where they continue in memory. */
static void see_rows(const st_sim_op *op, const st_step_conversation *conversation, bool values,
                     st_sim_visitor *visitor, void *context)
{
    const st_kv_view *kv = &op->bound->kv;
    unsigned char *base = values ? kv->values : kv->keys;
    size_t row_bytes = values ? kv->value_row_bytes : kv->key_row_bytes;
    size_t page_bytes = values ? kv->value_page_bytes : kv->key_page_bytes;
    st_sim_span left = st_sim_positions(op->bound, conversation);
    st_sim_page_rows rows;
    st_sim_access run = {.write = op->bound->op->kind == ST_OP_KV_STORE};
    while (st_sim_next_page(op->source->step, kv, conversation, &left, &rows)) {
        unsigned char *start = base + rows.page * page_bytes + rows.first * row_bytes;
        if (!run.address || start != (const unsigned char *)run.address + run.bytes) {
            see(visitor, context, run.address, run.bytes, run.write);
            run.address = start;
            run.bytes = 0;
        }
        run.bytes += rows.count * row_bytes;
    }
    see(visitor, context, run.address, run.bytes, run.write);
}

static void see_slot(const st_bound_op *bound, uint32_t slot, st_sim_visitor *visitor, void *context)
{
    const st_state_view *state = &bound->state;
    if (slot >= state->slots) return;
    float *at = (bound->op->kind == ST_OP_CONV ? state->conv : state->delta) + slot * state->slot_floats;
    see(visitor, context, at, st_sim_state_floats(bound) * sizeof(float), true);
}

/* The block may have been overwritten since the operation began: that race is already reported. */
static void see_conversations(const st_sim_op *op, st_sim_visitor *visitor, void *context)
{
    st_op_kind kind = op->bound->op->kind;
    st_step *step = op->source->step;
    bool kv = st_op_has_kv(kind), state = st_op_has_state(kind);
    if ((!kv && !state) || !st_sim_step_is_sane(step, op->source->step_bytes)) return;
    for (uint32_t i = 0; i < step->conversation_count; i++) {
        const st_step_conversation *conversation = &st_step_conversations(step)[i];
        if (state) see_slot(op->bound, conversation->slot, visitor, context);
        for (int side = 0; kv && side < 2; side++) see_rows(op, conversation, side, visitor, context);
    }
}

static void visit_op(const st_sim_actor *actor, st_sim_visitor *visitor, void *context)
{
    const st_sim_op *op = (const st_sim_op *)(const void *)actor;
    const st_bound_op *bound = op->bound;
    see(visitor, context, op->source->step, op->step_bytes, false);
    see_value(visitor, context, bound->out, op->rows, true);
    see_value(visitor, context, bound->out2, op->rows, true);
    for (int i = 0; i < ST_OP_INPUTS; i++)
        see_value(visitor, context, bound->in[i], bound->op->kind == ST_OP_GATHER ? op->all_rows : op->rows, false);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        const st_bound_weight *w = &bound->weight[i];
        if (st_sim_is_expert(bound, i)) see_experts(op, i, visitor, context);
        else see(visitor, context, w->data, w->ne[1] * w->ne[2] * w->row_bytes, false);
    }
    see_conversations(op, visitor, context);
}

st_sim_op st_sim_op_of(const st_segment_source *source, const st_bound_op *bound, uint32_t rows)
{
    return (st_sim_op){.actor.visit = visit_op, .source = source, .bound = bound, .rows = rows,
                       .all_rows = source->step->count, .step_bytes = source->step->bytes};
}
