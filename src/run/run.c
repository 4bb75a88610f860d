#include "run/run.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "run/ready.h"

enum { WAIT_LIMIT_US = 120 * 1000 * 1000 };

/* A part of the program with its stages prepared. */
typedef struct ready_part {
    st_ready_range body, head;
    st_step *master; /* the step block as the host writes it */
} ready_part;

struct st_run {
    st_run_source source;
    st_kv *kv;
    st_arena arena;          /* of the stages and the tables of experts */
    st_ready_device devices[ST_DEVICES_MAX];
    st_event *crossed;       /* after the last copy of logits or hidden states between devices */
    st_event *step_sent;     /* after the last copy of a step block to the GPU */
    st_event *share_sent;    /* after the last copy of the host's share of experts to the GPU */
    st_event *batch_end;     /* after the last launch of the last batch */
    st_event *pending;       /* after copies that may still read the host's values; NULL: none */
    bool step_sending;
    bool computing;          /* the last batch may not have reached batch_end */
    float *host_logits;      /* the GPU's logits are copied here */
    bool carry_valid;
    uint32_t last_count, last_nextn_rows;
    ready_part parts[ST_PARTS];
};

static bool has_card(const st_run *run)
{
    return run->source.devices[ST_CARD].backend != NULL;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static strata_status open_queues(st_run *run, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t d = 0; d < ST_DEVICES_MAX && status == STRATA_OK; d++) {
        const st_run_device *device = &run->source.devices[d];
        if (!device->backend) continue;
        status = device->backend->queue_new(device->device, ST_QUEUE_COMPUTE, &run->devices[d].queue, error);
        if (status == STRATA_OK && device->backend->queue_watch)
            device->backend->queue_watch(run->devices[d].queue, run->source.interrupt);
    }
    if (status != STRATA_OK || !has_card(run)) return status;
    const st_run_device *card = &run->source.devices[ST_CARD];
    status = card->backend->event_new(card->device, &run->crossed, error);
    if (status == STRATA_OK) status = card->backend->event_new(card->device, &run->step_sent, error);
    if (status == STRATA_OK) status = card->backend->event_new(card->device, &run->share_sent, error);
    if (status == STRATA_OK) status = card->backend->event_new(card->device, &run->batch_end, error);
    return status;
}

/* Converts the plan's offsets to addresses. */
static void lay_out(st_run *run)
{
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++) {
        const st_plan_sequence *sequence = &run->source.plan->sequence[d];
        st_ready_device *device = &run->devices[d];
        device->source = run->source.devices[d];
        if (!device->source.backend) continue;
        device->set = &sequence->working;
        device->working = device->source.memory + sequence->working_offset;
        for (int part = 0; part < ST_PARTS; part++)
            device->step[part] = (st_step *)(void *)(device->working + sequence->working.steps[part]);
    }
    const st_plan_sequence *host = &run->source.plan->sequence[ST_HOST];
    unsigned char *staging = run->source.devices[ST_HOST].memory + host->staging_offset;
    for (int part = 0; part < ST_PARTS; part++)
        run->parts[part].master = has_card(run) ? (st_step *)(void *)(staging + host->staging_steps[part])
                                                : run->devices[ST_HOST].step[part];
    run->host_logits = (float *)(void *)(staging + host->staging_logits);
}

static strata_status open_kv(st_run *run, strata_error *error)
{
    st_kv_share shares[ST_DEVICES_MAX];
    uint32_t count = 0;
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++) {
        const st_plan_sequence *sequence = &run->source.plan->sequence[d];
        const st_ready_device *device = &run->devices[d];
        if (device->source.backend)
            shares[count++] = (st_kv_share){.layout = sequence->kv, .backend = device->source.backend, .queue = device->queue,
                                            .memory = device->source.memory + sequence->kv_offset};
    }
    return st_kv_new(shares, count, &run->kv, error);
}

static strata_status prepare_part(st_run *run, int which, const st_ready *ready, strata_error *error)
{
    const st_plan_part *planned = &run->source.plan->parts[which];
    ready_part *part = &run->parts[which];
    part->master->batch_max = run->source.plan->batch;
    strata_status status = st_ready_range_new(ready, which, &planned->body, ST_ROWS_ALL, &part->body, error);
    if (status == STRATA_OK) status = st_ready_range_new(ready, which, &planned->head, ST_ROWS_OUT, &part->head, error);
    return status;
}

static strata_status prepare(st_run *run, strata_error *error)
{
    st_ready ready = {.source = &run->source, .kv = run->kv, .devices = run->devices, .arena = &run->arena};
    for (int part = 0; part < ST_PARTS; part++) ready.steps[part] = run->parts[part].master;
    strata_status status = prepare_part(run, ST_PART_MAIN, &ready, error);
    if (status == STRATA_OK && run->source.plan->nextn) status = prepare_part(run, ST_PART_NEXTN, &ready, error);
    return status;
}

strata_status st_run_new(const st_run_source *source, st_run **out, strata_error *error)
{
    st_run *run = st_alloc_zero(1, sizeof *run);
    if (!run) return st_error_memory(error, sizeof *run, "the executor");
    run->source = *source;
    strata_status status = open_queues(run, error);
    if (status == STRATA_OK) {
        lay_out(run);
        status = open_kv(run, error);
    }
    if (status == STRATA_OK) status = prepare(run, error);
    if (status != STRATA_OK) {
        st_run_free(run);
        return status;
    }
    *out = run;
    return STRATA_OK;
}

void st_run_free(st_run *run)
{
    if (!run) return;
    for (int part = 0; part < ST_PARTS; part++) {
        st_ready_range_free(run->devices, &run->parts[part].body);
        st_ready_range_free(run->devices, &run->parts[part].head);
    }
    st_kv_free(run->kv);
    if (run->crossed) run->source.devices[ST_CARD].backend->event_free(run->crossed);
    if (run->step_sent) run->source.devices[ST_CARD].backend->event_free(run->step_sent);
    if (run->share_sent) run->source.devices[ST_CARD].backend->event_free(run->share_sent);
    if (run->batch_end) run->source.devices[ST_CARD].backend->event_free(run->batch_end);
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++)
        if (run->devices[d].queue) run->source.devices[d].backend->queue_free(run->devices[d].queue);
    st_arena_free(&run->arena);
    st_free(run);
}

st_kv *st_run_kv(st_run *run)
{
    return run->kv;
}

/* --- copies between devices: the GPU's queue is in order, so an event follows everything enqueued before it ------ */

static strata_status wait_for(st_run *run, st_event *event, strata_error *error)
{
    return run->source.devices[ST_CARD].backend->event_wait_host(event, WAIT_LIMIT_US, error);
}

static strata_status mark(st_run *run, st_event *event, strata_error *error)
{
    return run->source.devices[ST_CARD].backend->event_record(event, run->devices[ST_CARD].queue, error);
}

/* Waits until no copy reads the host's values, so that they may be written. */
static strata_status settle(st_run *run, strata_error *error)
{
    st_event *pending = run->pending;
    run->pending = NULL;
    if (!pending || run->source.devices[ST_CARD].backend->event_done(pending)) return STRATA_OK;
    return wait_for(run, pending, error);
}

static strata_status copy(st_run *run, uint8_t to_device, void *to, uint8_t from_device, const void *from, size_t bytes,
                          strata_error *error)
{
    if (bytes == 0) return STRATA_OK;
    st_copy_kind kind = to_device == from_device ? ST_COPY_WITHIN : to_device == ST_CARD ? ST_COPY_UP : ST_COPY_DOWN;
    uint8_t queue = kind == ST_COPY_WITHIN ? to_device : ST_CARD;
    return run->source.devices[queue].backend->copy(run->devices[queue].queue, kind, to, from, bytes, error);
}

static unsigned char *value_at(const st_run *run, uint8_t device, int32_t value)
{
    return st_ready_value(&run->devices[device], run->source.program, run->source.plan, value);
}

static strata_status run_move(st_run *run, const st_ready_stage *ready, const st_step *step, strata_error *error)
{
    const st_stage *stage = ready->stage;
    const st_value *value = &run->source.program->values[stage->value];
    size_t rows = value->rows == ST_ROWS_ALL ? step->count : step->out_count, bytes = rows * value->width * sizeof(float);
    strata_status status = copy(run, stage->device, value_at(run, stage->device, stage->value), stage->from,
                                value_at(run, stage->from, stage->value), bytes, error);
    return status == STRATA_OK && ready->end ? mark(run, ready->end, error) : status;
}

/* --- misses of the expert cache: the GPU fetches some, the host computes the others, and the GPU adds the sums --- */

static strata_status run_waves(st_run *run, const st_ready_split *split, uint32_t layer, st_stream_work *work,
                               strata_error *error)
{
    const st_backend *card = run->source.devices[ST_CARD].backend;
    st_queue *queue = run->devices[ST_CARD].queue;
    st_stream *stream = run->source.stream;
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < work->waves && status == STRATA_OK; i++) {
        st_event *ready;
        status = st_stream_fetch(stream, layer, i, &ready, error);
        if (status == STRATA_OK && !ready) {
            work->host = true; /* the fetch failed: the host computes the wave */
            continue;
        }
        if (status == STRATA_OK) status = card->event_wait_queue(ready, queue, error);
        if (status == STRATA_OK) status = card->launch(split->waves[i], queue, error);
        if (status == STRATA_OK) status = st_stream_launched(stream, i, queue, error);
    }
    return status;
}

static strata_status run_host_share(st_run *run, const st_ready_split *split, int32_t out, uint32_t rows, strata_error *error)
{
    const st_run_device *devices = run->source.devices;
    st_queue *queue = run->devices[ST_CARD].queue;
    size_t bytes = (size_t)rows * run->source.program->values[out].width * sizeof(float);
    unsigned char *sum = run->devices[ST_CARD].working + run->devices[ST_CARD].set->sums[0];
    strata_status status = devices[ST_HOST].backend->launch(split->host, run->devices[ST_HOST].queue, error);
    if (status == STRATA_OK) status = copy(run, ST_CARD, sum, ST_HOST, value_at(run, ST_HOST, out), bytes, error);
    if (status == STRATA_OK) status = mark(run, run->share_sent, error);
    if (status == STRATA_OK) run->pending = run->share_sent;
    return status == STRATA_OK ? devices[ST_CARD].backend->launch(split->add_host, queue, error) : status;
}

/* The batch's routing in host memory. */
static st_routing routing_of(const st_run *run, const st_stage *stage, const st_step *step)
{
    const st_op *op = &run->source.program->ops[stage->ops.first];
    return (st_routing){.layer = (uint32_t)op->layer, .position = step->position, .rows = step->count,
                        .used = op->p.experts.used,
                        .ids = (const int32_t *)(const void *)value_at(run, ST_HOST, op->in[1]),
                        .weights = (const float *)(const void *)value_at(run, ST_HOST, op->in[2])};
}

static strata_status run_split(st_run *run, const st_ready_stage *ready, const st_routing *routing, strata_error *error)
{
    const st_ready_split *split = &ready->split;
    st_stream *stream = run->source.stream;
    uint32_t layer = routing->layer, rows = routing->rows;
    int32_t out = run->source.program->ops[ready->stage->ops.first].out;
    st_stream_work work;
    strata_status status = st_stream_decide(stream, layer, routing->ids, routing->weights, rows, &work, error);
    if (status == STRATA_OK) status = run_waves(run, split, layer, &work, error);
    if (status == STRATA_OK && work.host) status = run_host_share(run, split, out, rows, error);
    strata_status ended = st_stream_end(stream, layer, status == STRATA_OK ? error : NULL);
    if (status == STRATA_OK) status = ended;
    uint32_t next = st_stream_asks(stream, layer, rows);
    if (status != STRATA_OK || next == UINT32_MAX) return status;
    if (split->ask) status = run->source.devices[ST_HOST].backend->launch(split->ask, run->devices[ST_HOST].queue, error);
    return status == STRATA_OK ? st_stream_hint(stream, next, error) : status;
}

static strata_status check_interrupt(const st_run *run, strata_error *error)
{
    if (!run->source.interrupt || !atomic_load_explicit(run->source.interrupt, memory_order_relaxed)) return STRATA_OK;
    return st_error_set(error, STRATA_INTERRUPTED, NULL, "the computation was interrupted");
}

/* `step` is the block as the host wrote it. */
static strata_status run_stage(st_run *run, const st_ready_stage *ready, const st_step *step, strata_error *error)
{
    const st_stage *stage = ready->stage;
    uint8_t device = stage->device;
    if (stage->kind == ST_STAGE_MOVE) return run_move(run, ready, step, error);
    if (stage->kind == ST_STAGE_RUN)
        return run->source.devices[device].backend->launch(ready->segment, run->devices[device].queue, error);
    st_routing routing = routing_of(run, stage, step);
    if (run->source.watch) st_watch_routing(run->source.watch, &routing, stage->kind == ST_STAGE_WATCH);
    return stage->kind == ST_STAGE_SPLIT ? run_split(run, ready, &routing, error) : STRATA_OK;
}

static strata_status run_range(st_run *run, const st_ready_range *range, const st_step *step, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < range->count && status == STRATA_OK; i++) {
        const st_ready_stage *ready = &range->stages[i];
        status = check_interrupt(run, error);
        if (status == STRATA_OK && ready->stage->wait != ST_NO_STAGE)
            status = wait_for(run, range->stages[ready->stage->wait].end, error);
        if (status == STRATA_OK) status = run_stage(run, ready, step, error);
    }
    if (status == STRATA_OK && range->pending != ST_NO_STAGE) run->pending = range->stages[range->pending].end;
    return status;
}

/* Waits until the GPU's queue is empty, also after a failure. */
static strata_status drain(st_run *run, strata_error *error)
{
    run->pending = NULL;
    run->step_sending = run->computing = false;
    if (!has_card(run)) return STRATA_OK;
    strata_status status = mark(run, run->crossed, error);
    return status == STRATA_OK ? wait_for(run, run->crossed, error) : status;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Copies `bytes` of the step block from `offset` on to every device that runs something. */
static strata_status send_step(st_run *run, int part, size_t offset, size_t bytes, strata_error *error)
{
    const unsigned char *master = (const unsigned char *)run->parts[part].master;
    strata_status status = STRATA_OK;
    for (uint8_t d = 0; d < ST_DEVICES_MAX && status == STRATA_OK; d++) {
        unsigned char *step = (unsigned char *)run->devices[d].step[part];
        if (!run->devices[d].source.backend || run->devices[d].set->bytes == 0 || step == master) continue;
        status = run->source.devices[d].backend->copy(run->devices[d].queue, d == ST_HOST ? ST_COPY_WITHIN : ST_COPY_UP,
                                                      step + offset, master + offset, bytes, error);
    }
    if (status != STRATA_OK || !has_card(run)) return status;
    run->step_sending = true;
    return mark(run, run->step_sent, error);
}

/* Waits until the GPU has the last step block, so that it may be written. */
static strata_status step_may_change(st_run *run, strata_error *error)
{
    if (!run->step_sending) return STRATA_OK;
    run->step_sending = false;
    return run->source.devices[ST_CARD].backend->event_done(run->step_sent) ? STRATA_OK : wait_for(run, run->step_sent, error);
}

static strata_status run_body(st_run *run, int part, const strata_token *ids, uint32_t count, uint32_t position,
                              strata_error *error)
{
    strata_status status = step_may_change(run, error);
    if (status == STRATA_OK) status = settle(run, error);
    if (status != STRATA_OK) return status;
    st_step *step = run->parts[part].master;
    step->count = count;
    step->position = position;
    step->out_count = 0;
    memcpy(st_step_ids(step), ids, count * sizeof *ids);
    status = send_step(run, part, 0, sizeof *step + count * sizeof *ids, error);
    return status == STRATA_OK ? run_range(run, &run->parts[part].body, step, error) : status;
}

/* The NextN block pairs each token with the hidden state of the token before it: first the state carried over from the
 * last batch, then all but the last state of this batch. */
static strata_status run_nextn(st_run *run, const strata_token *ids, uint32_t count, uint32_t position,
                               strata_error *error)
{
    const st_program *program = run->source.program;
    size_t row_bytes = run->source.desc->embedding * sizeof(float);
    const st_plan_part *planned = run->source.plan->parts;
    uint8_t to = planned[ST_PART_NEXTN].input_device, at = planned[ST_PART_MAIN].hidden_devices;
    uint8_t from = at & (1u << to) ? to : (uint8_t)!to;
    unsigned char *input = value_at(run, to, program->nextn.input);
    unsigned char *carry = run->devices[to].working + run->devices[to].set->carry;
    const unsigned char *hidden = value_at(run, from, program->main.hidden);
    uint32_t carried = run->carry_valid ? 1 : 0;
    strata_status status = to == ST_HOST ? settle(run, error) : STRATA_OK;
    if (carried && status == STRATA_OK) status = copy(run, to, input, to, carry, row_bytes, error);
    if (status == STRATA_OK) status = copy(run, to, input + carried * row_bytes, from, hidden, (count - 1) * row_bytes, error);
    if (status == STRATA_OK) status = copy(run, to, carry, from, hidden + (count - 1) * row_bytes, row_bytes, error);
    if (status == STRATA_OK && to != from) {
        status = mark(run, run->crossed, error);
        run->pending = run->crossed; /* these copies may still access host rows: the body waits for them */
    }
    if (status != STRATA_OK) return status;
    uint32_t rows = count - 1 + carried, skipped = 1 - carried;
    run->carry_valid = true;
    run->last_nextn_rows = rows;
    return rows ? run_body(run, ST_PART_NEXTN, ids + skipped, rows, position - carried, error) : STRATA_OK;
}

/* Sessions share the slots and their tables, so this batch must have ended before another session runs the next. */
static strata_status end_batch(st_run *run, strata_error *error)
{
    if (run->source.plan->sequences > 1) return drain(run, error);
    run->computing = true;
    return mark(run, run->batch_end, error);
}

strata_status st_run_tokens(st_run *run, const strata_token *ids, uint32_t count, strata_error *error)
{
    const st_plan *plan = run->source.plan;
    uint32_t position = st_kv_position(run->kv);
    if (count == 0 || count > plan->batch || count > plan->context - position)
        return st_error_set(error, STRATA_LIMIT, NULL, "%u tokens at position %u: expected 1 to %u in a context of %u",
                            count, position, plan->batch, plan->context);
    strata_status status = STRATA_OK;
    if (run->source.stream) status = st_stream_begin(run->source.stream, run->computing ? run->batch_end : NULL, error);
    if (status == STRATA_OK) status = run_body(run, ST_PART_MAIN, ids, count, position, error);
    if (status == STRATA_OK && plan->nextn) status = run_nextn(run, ids, count, position, error);
    if (status == STRATA_OK && run->source.stream) status = end_batch(run, error);
    /* An interrupted batch is half stored: its tokens count until the caller rewinds, which restores the state. */
    if (status == STRATA_OK || status == STRATA_INTERRUPTED) st_kv_advance(run->kv, count);
    if (status != STRATA_OK) return status;
    run->last_count = count;
    return STRATA_OK;
}

/* Writes the indices of the output rows to the step block, while the body may still be running. */
static strata_status send_out_rows(st_run *run, int part, const uint32_t *rows, uint32_t count, uint32_t row_limit,
                                   strata_error *error)
{
    uint32_t out_rows = run->source.plan->out_rows;
    if (count == 0 || count > out_rows)
        return st_error_set(error, STRATA_LIMIT, NULL, "rows of logits: expected 1 to %u, found %u", out_rows, count);
    st_step *step = run->parts[part].master;
    for (uint32_t i = 0; i < count; i++) {
        if (rows[i] >= row_limit)
            return st_error_set(error, STRATA_LIMIT, NULL, "logits of row %u: the last batch has %u", rows[i], row_limit);
        st_step_out_rows(step)[i] = (int32_t)rows[i];
    }
    step->out_count = count;
    strata_status status = send_step(run, part, 0, sizeof *step, error);
    if (status != STRATA_OK) return status;
    size_t offset = (size_t)((unsigned char *)st_step_out_rows(step) - (unsigned char *)step);
    return send_step(run, part, offset, count * sizeof(int32_t), error);
}

static strata_status run_head(st_run *run, int part, int32_t logits, uint32_t row_limit, const uint32_t *rows, uint32_t count,
                              const float **out, strata_error *error)
{
    strata_status status = send_out_rows(run, part, rows, count, row_limit, error);
    if (status == STRATA_OK) status = run_range(run, &run->parts[part].head, run->parts[part].master, error);
    if (status != STRATA_OK) return status;
    uint8_t device = run->source.plan->parts[part].logits_device;
    unsigned char *value = value_at(run, device, logits);
    if (device == ST_CARD) {
        size_t bytes = (size_t)count * run->source.program->values[logits].width * sizeof(float);
        status = copy(run, ST_HOST, run->host_logits, ST_CARD, value, bytes, error);
        if (status == STRATA_OK) status = mark(run, run->crossed, error);
        if (status == STRATA_OK) status = wait_for(run, run->crossed, error);
        run->pending = NULL; /* its copies came before this one */
        run->computing = false;
    }
    *out = device == ST_CARD ? run->host_logits : (const float *)(const void *)value;
    return status;
}

strata_status st_run_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out, strata_error *error)
{
    return run_head(run, ST_PART_MAIN, run->source.program->main.logits, run->last_count, rows, count, out, error);
}

uint32_t st_run_nextn_rows(const st_run *run)
{
    return run->last_nextn_rows;
}

strata_status st_run_nextn_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out,
                                  strata_error *error)
{
    return run_head(run, ST_PART_NEXTN, run->source.program->nextn.logits, run->last_nextn_rows, rows, count, out, error);
}

strata_status st_run_rewind(st_run *run, uint32_t position, uint32_t *reached, strata_error *error)
{
    if (position > 0 && position >= st_kv_position(run->kv)) {
        *reached = st_kv_position(run->kv);
        return STRATA_OK;
    }
    /* With a NextN block the token before the rewind point runs again: the next row needs its hidden state. */
    if (run->source.plan->nextn && position > 0) position--;
    bool ran = st_kv_position(run->kv) > 0;
    strata_status status = drain(run, error);
    if (status != STRATA_OK) return status;
    status = st_kv_rewind(run->kv, position, reached, error);
    if (status != STRATA_OK) return status;
    if (ran && *reached == 0 && run->source.watch) run->source.watch->turn++;
    run->carry_valid = false;
    run->last_count = run->last_nextn_rows = 0;
    return STRATA_OK;
}
