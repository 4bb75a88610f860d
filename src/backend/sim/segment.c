/* Segments of the simulated GPU. Each operation is a phase in virtual time; the reference computes it at the end of the
 * phase. The addresses, row counts and indices that an operation uses are checked first, and so are the tables of
 * experts, which must not change between the launch and the end: each mistake is an error with a message, where a real
 * GPU would compute wrong numbers. */
#include <string.h>

#include "backend/sim/world.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"

struct st_segment {
    st_sim_card *card;
    st_segment_source source; /* its operations are in `ops` */
    st_sim_ops ops;
    uint32_t uses;            /* its owner, and its launches that have not ended */
};

/* --- addresses ---------------------------------------------------------------------------------------------------- */

/* One operation under examination. */
typedef struct check {
    const st_segment *segment;
    const st_bound_op *bound;
    const void *const *tables; /* of experts, at the launch; one table after the other */
    strata_error *error;
} check;

static strata_status refuse(const check *c, const char *what, int index, const void *address, size_t bytes)
{
    return st_error_set(c->error, STRATA_DEVICE, NULL,
                        "%s of layer %d: %s %d: expected %zu bytes of GPU memory, found %p",
                        st_op_name(c->bound->op->kind), c->bound->op->layer, what, index, bytes, address);
}

static bool holds(const check *c, const void *address, size_t count, size_t size, size_t *bytes)
{
    *bytes = SIZE_MAX;
    if (!st_mul_size(count, size, bytes)) return false;
    return *bytes == 0 || st_sim_memory_holds(&c->segment->card->world->memory, address, *bytes);
}

static strata_status check_value(const check *c, const char *what, int index, st_bound_value value, uint32_t rows)
{
    size_t bytes;
    if (!value.data || holds(c, value.data, (size_t)rows * value.width, sizeof(float), &bytes)) return STRATA_OK;
    return refuse(c, what, index, value.data, bytes);
}

/* A gather reads a value with `all_rows` of the batch; the other values have `rows`. */
static strata_status check_values(const check *c, uint32_t rows, uint32_t all_rows)
{
    const st_bound_op *bound = c->bound;
    strata_status status = check_value(c, "output", 0, bound->out, rows);
    if (status == STRATA_OK) status = check_value(c, "output", 1, bound->out2, rows);
    for (int i = 0; i < ST_OP_INPUTS && status == STRATA_OK; i++)
        status = check_value(c, "input", i, bound->in[i], bound->op->kind == ST_OP_GATHER ? all_rows : rows);
    return status;
}

/* Experts are checked when they are chosen. */
static strata_status check_weights(const check *c)
{
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        const st_bound_weight *w = &c->bound->weight[i];
        size_t rows, bytes = SIZE_MAX;
        if (!w->data || st_sim_is_expert(c->bound, i)) continue;
        if (!st_mul_size(w->ne[1], w->ne[2], &rows) || !holds(c, w->data, rows, w->row_bytes, &bytes))
            return refuse(c, "weight", i, w->data, bytes);
    }
    return STRATA_OK;
}

static strata_status check_state(const check *c)
{
    const st_bound_op *bound = c->bound;
    const st_kv_view *kv = &bound->kv;
    const st_op *op = bound->op;
    size_t bytes;
    if (kv->keys && !holds(c, kv->keys, kv->capacity, kv->key_row_bytes, &bytes))
        return refuse(c, "keys", 0, kv->keys, bytes);
    if (kv->values && !holds(c, kv->values, kv->capacity, kv->value_row_bytes, &bytes))
        return refuse(c, "values", 0, kv->values, bytes);
    if (op->kind == ST_OP_CONV &&
        !holds(c, bound->state.conv, (size_t)(op->p.conv.width - 1) * bound->in[0].width, sizeof(float), &bytes))
        return refuse(c, "state", 0, bound->state.conv, bytes);
    size_t rows = (size_t)op->p.deltanet.value_heads * op->p.deltanet.size;
    if (op->kind == ST_OP_DELTANET &&
        !holds(c, bound->state.delta, rows, op->p.deltanet.size * sizeof(float), &bytes))
        return refuse(c, "state", 1, bound->state.delta, bytes);
    return STRATA_OK;
}

static strata_status check_addresses(const check *c, uint32_t rows, uint32_t all_rows)
{
    const st_segment_source *source = &c->segment->source;
    size_t scratch = SIZE_MAX, bytes;
    if (!holds(c, source->step, 1, sizeof *source->step, &bytes)) return refuse(c, "step", 0, source->step, bytes);
    if (!st_add_size(source->shared_bytes, source->worker_bytes, &scratch) ||
        !holds(c, source->scratch, 1, scratch, &bytes))
        return refuse(c, "scratch", 0, source->scratch, scratch);
    strata_status status = check_values(c, rows, all_rows);
    if (status == STRATA_OK) status = check_weights(c);
    return status == STRATA_OK ? check_state(c) : status;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static bool step_is_sane(const st_segment *segment)
{
    const st_step *step = segment->source.step;
    const st_sim_memory *memory = &segment->card->world->memory;
    return st_sim_memory_holds(memory, step, sizeof *step) && step->count <= step->batch_max &&
           step->out_count <= step->batch_max && st_sim_memory_holds(memory, step, st_step_bytes(step->batch_max));
}

static strata_status check_step(const check *c)
{
    const st_step *step = c->segment->source.step;
    if (step_is_sane(c->segment)) return STRATA_OK;
    return st_error_set(c->error, STRATA_DEVICE, "wait for the copy of the step before the launch",
                        "%s of layer %d: the step says %u rows, %u of logits, at most %u",
                        st_op_name(c->bound->op->kind), c->bound->op->layer, step->count, step->out_count, step->batch_max);
}

static strata_status check_indices(const check *c, const char *what, const int32_t *indices, size_t count,
                                   uint64_t limit)
{
    for (size_t i = 0; i < count; i++)
        if (indices[i] < 0 || (uint64_t)indices[i] >= limit)
            return st_error_set(c->error, STRATA_DEVICE, "wait for the copy that brings them",
                                "%s of layer %d: expected %s from 0 to %llu, found %d", st_op_name(c->bound->op->kind),
                                c->bound->op->layer, what, (unsigned long long)limit - 1, indices[i]);
    return STRATA_OK;
}

/* A kernel reads the tables at any moment between its launch and its end, so the entries of the experts that its rows
 * chose must stay as they were. */
static strata_status check_entry(const check *c, const void *launched, int table, int32_t expert)
{
    const void *entry = c->bound->weight[table].parts[expert];
    if (entry == launched) return STRATA_OK;
    return st_error_set(c->error, STRATA_DEVICE, "change a table of experts only when no launched segment reads it",
                        "%s of layer %d: the host changed entry %d of table %d after the launch, from %p to %p",
                        st_op_name(c->bound->op->kind), c->bound->op->layer, expert, table, launched, entry);
}

static strata_status check_experts(const check *c, uint32_t rows)
{
    const int32_t *ids = c->bound->in[1].data;
    size_t count = (size_t)rows * c->bound->in[1].width, bytes = SIZE_MAX;
    strata_status status = check_indices(c, "experts", ids, count, c->bound->op->p.experts.experts);
    for (size_t i = 0; i < count && status == STRATA_OK; i++) {
        const void *const *launched = c->tables;
        for (int k = 0; k < ST_EXPERT_MATRICES && status == STRATA_OK; k++) {
            const st_bound_weight *w = &c->bound->weight[k];
            if (!st_sim_is_expert(c->bound, k)) continue;
            status = check_entry(c, launched[ids[i]], k, ids[i]);
            launched += c->bound->op->p.experts.experts;
            if (status != STRATA_OK || !w->parts[ids[i]]) continue; /* an expert of another device */
            if (!holds(c, w->parts[ids[i]], w->ne[1], w->row_bytes, &bytes))
                status = refuse(c, "expert", ids[i], w->parts[ids[i]], bytes);
        }
    }
    return status;
}

static strata_status check_ids(const check *c, uint32_t rows)
{
    return check_indices(c, "token ids", st_step_ids(c->segment->source.step), rows, c->bound->weight[0].ne[1]);
}

static strata_status check_out_rows(const check *c, uint32_t rows)
{
    st_step *step = c->segment->source.step;
    return check_indices(c, "rows", st_step_out_rows(step), rows, step->count);
}

/* Indices that the reference does not check. */
static strata_status (*const number_checks[ST_OP_COUNT])(const check *c, uint32_t rows) = {
    [ST_OP_EMBED] = check_ids,
    [ST_OP_GATHER] = check_out_rows,
    [ST_OP_EXPERTS] = check_experts,
};

/* --- in virtual time ---------------------------------------------------------------------------------------------- */

/* A launch that has not ended. */
typedef struct flight {
    st_segment *segment;
    uint32_t next;        /* operation */
    st_sim_op op;         /* the one before it */
    size_t table;         /* of its experts, in `tables` */
    const void *tables[]; /* of experts, at the launch */
} flight;

/* Entries of an operation's tables of experts. */
static size_t table_entries(const st_bound_op *bound)
{
    size_t entries = 0;
    for (int i = 0; i < ST_EXPERT_MATRICES; i++)
        if (st_sim_is_expert(bound, i)) entries += bound->op->p.experts.experts;
    return entries;
}

static size_t copy_tables(const st_bound_op *bound, const void **to)
{
    size_t at = 0, entries = bound->op->p.experts.experts;
    for (int i = 0; i < ST_EXPERT_MATRICES; i++) {
        if (!st_sim_is_expert(bound, i)) continue;
        memcpy(to + at, bound->weight[i].parts, entries * sizeof *to);
        at += entries;
    }
    return at;
}

static void release(st_segment *segment)
{
    if (--segment->uses) return;
    st_sim_ops_free(&segment->ops);
    st_free(segment);
}

/* Rows and depth are those of the step block when the operation starts. */
static st_demand begin_op(flight *f, uint32_t index)
{
    const st_segment *segment = f->segment;
    const st_step *step = segment->source.step;
    check c = {.segment = segment, .bound = &segment->ops.bound[index]};
    if (!step_is_sane(segment) ||
        check_addresses(&c, st_sim_rows(segment->source.rows, step), step->count) != STRATA_OK)
        return (st_demand){0}; /* end_op reports it */
    f->op = (st_sim_op){.actor.visit = st_sim_op_visit, .bound = c.bound, .step = segment->source.step,
                        .rows = st_sim_rows(segment->source.rows, segment->source.step)};
    st_sim_begin(segment->card->world, &f->op.actor);
    return st_sim_price(segment->card->world, ST_DEVICE_CARD, f->op.bound, f->op.rows, f->op.step->position);
}

/* An empty segment takes the time of its launch. */
static bool next_op(void *context, st_demand *demand)
{
    flight *f = context;
    uint32_t index = f->next++, count = f->segment->source.count;
    if (index >= count && index > 0) return false;
    *demand = count ? begin_op(f, index) : (st_demand){0};
    if (index == 0) demand->latency = f->segment->card->world->card.launch_seconds;
    return true;
}

static strata_status end_op(void *context, strata_error *error)
{
    flight *f = context;
    const st_segment *segment = f->segment;
    st_sim_end(segment->card->world, &f->op.actor);
    if (segment->card->world->lost) return st_sim_tell_lost(error);
    if (segment->source.count == 0) return STRATA_OK;
    check c = {.segment = segment, .bound = &segment->ops.bound[f->next - 1], .tables = f->tables + f->table,
               .error = error};
    f->table += table_entries(c.bound);
    if (f->op.actor.raced) return st_sim_tell_race(st_op_name(c.bound->op->kind), c.bound->op->layer, error);
    strata_status status = check_step(&c);
    if (status != STRATA_OK) return status;
    uint32_t rows = st_sim_rows(segment->source.rows, segment->source.step);
    status = check_addresses(&c, rows, segment->source.step->count);
    if (status == STRATA_OK && number_checks[c.bound->op->kind]) status = number_checks[c.bound->op->kind](&c, rows);
    if (status != STRATA_OK) return status;
    return st_sim_ops_run(segment->card->world, &segment->ops, f->next - 1, rows, segment->card->cpu_queue, error);
}

static void drop_flight(void *context)
{
    flight *f = context;
    st_sim_end(f->segment->card->world, &f->op.actor);
    release(f->segment);
    st_free(f);
}

strata_status st_sim_segment_launch(st_segment *segment, uint32_t queue, strata_error *error)
{
    size_t entries = 0;
    for (uint32_t i = 0; i < segment->source.count; i++) entries += table_entries(&segment->ops.bound[i]);
    flight *f = st_alloc_zero(1, sizeof *f + entries * sizeof *f->tables);
    if (!f) return st_error_memory(error, sizeof *f, "a launch on the simulated GPU");
    f->segment = segment;
    entries = 0;
    for (uint32_t i = 0; i < segment->source.count; i++)
        entries += copy_tables(&segment->ops.bound[i], f->tables + entries);
    st_command command = {.next = next_op, .end = end_op, .drop = drop_flight, .context = f};
    strata_status status = st_clock_push(segment->card->world->clock, queue, &command, error);
    if (status == STRATA_OK) segment->uses++;
    else st_free(f);
    return status;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

strata_status st_sim_segment_new(st_sim_card *card, const st_segment_source *source, st_segment **out,
                                 strata_error *error)
{
    st_segment *segment = st_alloc_zero(1, sizeof *segment);
    if (!segment) return st_error_memory(error, sizeof *segment, "a segment of the program");
    *segment = (st_segment){.card = card, .source = *source, .uses = 1};
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < source->count && status == STRATA_OK; i++) {
        check c = {.segment = segment, .bound = &source->ops[i], .error = error};
        status = check_addresses(&c, 1, 1); /* the rows are known at a launch: there is room for one */
    }
    if (status == STRATA_OK) status = st_sim_ops_new(card->cpu, source, &segment->ops, error);
    if (status == STRATA_OK) *out = segment;
    else release(segment);
    return status;
}

void st_sim_segment_free(st_segment *segment)
{
    if (segment) release(segment);
}
