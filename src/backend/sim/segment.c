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
    const void **tables;      /* of experts, as the GPU reads them in a chain; NULL: no experts */
    size_t entries;           /* of all tables */
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

/* Bytes from the first of `count` pieces, `stride` bytes apart, to the end of the last. SIZE_MAX: overflow. */
static size_t extent(size_t count, size_t stride, size_t piece)
{
    size_t before, bytes;
    if (count == 0) return 0;
    return st_mul_size(count - 1, stride, &before) && st_add_size(before, piece, &bytes) ? bytes : SIZE_MAX;
}

/* All pages of a pool. Between them are the other layers if the layout is page-major: one block has them all. */
static strata_status check_pool(const check *c, const char *what, const void *base, size_t row_bytes, size_t page_bytes)
{
    const st_kv_view *kv = &c->bound->kv;
    size_t rows = SIZE_MAX, bytes;
    if (kv->page_shift > 31 || !st_mul_size(row_bytes, (size_t)1 << kv->page_shift, &rows) || page_bytes < rows)
        return st_error_set(c->error, STRATA_DEVICE, NULL,
                            "%s of layer %d: %s: expected pages of at least %zu bytes, found %zu",
                            st_op_name(c->bound->op->kind), c->bound->op->layer, what, rows, page_bytes);
    if (holds(c, base, 1, extent(kv->pages, page_bytes, rows), &bytes)) return STRATA_OK;
    return refuse(c, what, 0, base, bytes);
}

static strata_status check_state(const check *c)
{
    const st_bound_op *bound = c->bound;
    const st_kv_view *kv = &bound->kv;
    const st_state_view *state = &bound->state;
    size_t bytes;
    strata_status status = STRATA_OK;
    if (kv->keys) status = check_pool(c, "keys", kv->keys, kv->key_row_bytes, kv->key_page_bytes);
    if (kv->values && status == STRATA_OK)
        status = check_pool(c, "values", kv->values, kv->value_row_bytes, kv->value_page_bytes);
    if (status != STRATA_OK || !st_op_has_state(bound->op->kind)) return status;
    bool delta = bound->op->kind != ST_OP_CONV;
    const float *slots = delta ? state->delta : state->conv;
    if (holds(c, slots, extent(state->slots, state->slot_floats, st_sim_state_floats(bound)), sizeof(float), &bytes))
        return STRATA_OK;
    return refuse(c, "state", delta, slots, bytes);
}

static strata_status check_addresses(const check *c, uint32_t rows, uint32_t all_rows)
{
    const st_segment_source *source = &c->segment->source;
    size_t scratch = SIZE_MAX, bytes;
    if (!st_add_size(source->shared_bytes, source->worker_bytes, &scratch) ||
        !holds(c, source->scratch, 1, scratch, &bytes))
        return refuse(c, "scratch", 0, source->scratch, scratch);
    strata_status status = check_values(c, rows, all_rows);
    if (status == STRATA_OK) status = check_weights(c);
    return status == STRATA_OK ? check_state(c) : status;
}

/* The block must be readable before its content is checked. */
static strata_status check_block(const check *c)
{
    const st_segment_source *source = &c->segment->source;
    size_t bytes, room = source->step_bytes < sizeof *source->step ? sizeof *source->step : source->step_bytes;
    return holds(c, source->step, 1, room, &bytes) ? STRATA_OK : refuse(c, "step", 0, source->step, bytes);
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

static strata_status check_ids(const check *c, const int32_t *ids, size_t count)
{
    uint32_t experts = c->bound->op->p.experts.experts;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= experts)
            return st_error_set(c->error, STRATA_DEVICE, "wait for the copy that brings them",
                                "%s of layer %d: expected experts from 0 to %u, found %d",
                                st_op_name(c->bound->op->kind), c->bound->op->layer, experts - 1, ids[i]);
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
    strata_status status = check_ids(c, ids, count);
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

/* Everything that the operation uses, at the start and again at the end. */
static strata_status check_op(const check *c, uint32_t rows)
{
    const st_segment_source *source = &c->segment->source;
    strata_status status = check_block(c);
    if (status == STRATA_OK) status = st_sim_check_step(source, c->bound, rows, c->error);
    if (status == STRATA_OK) status = check_addresses(c, rows, source->step->count);
    return status == STRATA_OK && c->bound->op->kind == ST_OP_EXPERTS ? check_experts(c, rows) : status;
}

/* --- in virtual time ---------------------------------------------------------------------------------------------- */

/* A launch that has not ended. */
typedef struct flight {
    st_segment *segment;
    uint32_t rows;
    uint32_t next;        /* operation */
    st_sim_op op;         /* the one before it */
    strata_status status; /* of the checks at its start */
    strata_error error;
    double launch;        /* seconds before the first operation */
    size_t table;         /* of its experts, in `tables` */
    const void *const *tables; /* of experts: `own`, or the segment's, of a link of a chain */
    const void *own[];    /* at the launch */
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
    st_free(segment->tables);
    st_free(segment);
}

/* A mistake at the start is reported at the end, also if the memory is right by then. */
static st_demand begin_op(flight *f, uint32_t index)
{
    const st_segment *segment = f->segment;
    check c = {.segment = segment, .bound = &segment->ops.bound[index], .tables = f->tables + f->table,
               .error = &f->error};
    f->status = check_op(&c, f->rows);
    if (f->status != STRATA_OK) return (st_demand){0};
    f->op = st_sim_op_of(&segment->source, c.bound, f->rows);
    st_sim_begin(segment->card->world, &f->op.actor);
    return st_sim_price(segment->card->world, ST_DEVICE_CARD, c.bound, f->rows, segment->source.step);
}

/* An empty segment takes the time of its launch. */
static bool next_op(void *context, st_demand *demand)
{
    flight *f = context;
    uint32_t index = f->next++, count = f->segment->source.count;
    if (index >= count && index > 0) return false;
    *demand = count ? begin_op(f, index) : (st_demand){0};
    if (index == 0) demand->latency += f->launch;
    return true;
}

static strata_status end_op(void *context, strata_error *error)
{
    flight *f = context;
    const st_segment *segment = f->segment;
    st_sim_end(segment->card->world, &f->op.actor);
    if (segment->card->world->lost) return st_sim_tell_lost(error);
    if (segment->source.count == 0) return STRATA_OK;
    if (f->status != STRATA_OK) {
        if (error) *error = f->error;
        return f->status;
    }
    check c = {.segment = segment, .bound = &segment->ops.bound[f->next - 1], .tables = f->tables + f->table,
               .error = error};
    f->table += table_entries(c.bound);
    if (f->op.actor.raced) return st_sim_tell_race(st_op_name(c.bound->op->kind), c.bound->op->layer, error);
    strata_status status = check_op(&c, f->rows);
    if (status != STRATA_OK) return status;
    return st_sim_ops_run(segment->card->world, &segment->ops, f->next - 1, f->rows, segment->card->cpu_queue, error);
}

static void drop_flight(void *context)
{
    flight *f = context;
    st_sim_end(f->segment->card->world, &f->op.actor);
    release(f->segment);
    st_free(f);
}

static size_t all_entries(const st_segment_source *source)
{
    size_t entries = 0;
    for (uint32_t i = 0; i < source->count; i++) entries += table_entries(&source->ops[i]);
    return entries;
}

static void copy_all_tables(const st_segment *segment, const void **to)
{
    for (uint32_t i = 0; i < segment->source.count; i++) to += copy_tables(&segment->ops.bound[i], to);
}

static strata_status push(st_segment *segment, uint32_t queue, const flight *like, size_t entries, strata_error *error)
{
    flight *f = st_alloc_zero(1, sizeof *f + entries * sizeof *f->own);
    if (!f) return st_error_memory(error, sizeof *f, "a launch on the simulated GPU");
    *f = *like;
    f->segment = segment;
    f->tables = entries ? f->own : segment->tables;
    if (entries) copy_all_tables(segment, f->own);
    st_command command = {.next = next_op, .end = end_op, .drop = drop_flight, .context = f};
    strata_status status = st_clock_push(segment->card->world->clock, queue, &command, error);
    if (status == STRATA_OK) segment->uses++;
    else st_free(f);
    return status;
}

strata_status st_sim_segment_launch(st_segment *segment, uint32_t queue, uint32_t rows, strata_error *error)
{
    flight like = {.rows = rows, .launch = segment->card->world->card.launch_seconds};
    return push(segment, queue, &like, segment->entries, error);
}

strata_status st_sim_segment_chain(st_segment *segment, uint32_t queue, uint32_t rows, double launch,
                                   strata_error *error)
{
    return push(segment, queue, &(flight){.rows = rows, .launch = launch}, 0, error);
}

void st_sim_segment_show(st_segment *segment)
{
    if (segment->tables) copy_all_tables(segment, segment->tables);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

strata_status st_sim_segment_new(st_sim_card *card, const st_segment_source *source, st_segment **out,
                                 strata_error *error)
{
    st_segment *segment = st_alloc_zero(1, sizeof *segment);
    if (!segment) return st_error_memory(error, sizeof *segment, "a segment of the program");
    *segment = (st_segment){.card = card, .source = *source, .uses = 1, .entries = all_entries(source)};
    strata_status status = STRATA_OK;
    if (segment->entries) segment->tables = st_alloc_zero(segment->entries, sizeof *segment->tables);
    if (segment->entries && !segment->tables)
        status = st_error_memory(error, segment->entries * sizeof(void *), "the table of experts");
    for (uint32_t i = 0; i < source->count && status == STRATA_OK; i++) {
        check c = {.segment = segment, .bound = &source->ops[i], .error = error};
        status = check_block(&c);
        /* The rows are known at a launch: there is room for one. */
        if (status == STRATA_OK) status = check_addresses(&c, 1, 1);
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
