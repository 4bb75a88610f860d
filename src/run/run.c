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
    st_event *chain_end;     /* after the last chain */
    st_event *pending;       /* after copies that may still read the host's values; NULL: none */
    bool step_sending;
    bool computing;          /* the last batch may not have reached batch_end */
    float *host_logits;      /* the GPU's logits are copied here */
    float *slot_logits;      /* [conversations, vocab]: logits by slot */
    st_segment *reduce;      /* the GPU's logits to candidates; NULL: the plan does not reduce logits */
    st_adjustments *adjustments; /* [out_rows]: copied to the GPU … */
    st_candidates *candidates;   /* … and its candidates from there */
    const atomic_bool *interrupt;
    st_stream_step kind;     /* of the step */
    uint32_t sequence;       /* of the last step block */
    st_watch_row *origins;   /* [batch], of a watched plan */
    uint32_t last_count, last_nextn_rows;
    ready_part parts[ST_PARTS];
    /* steps of many rows that run dense parts in RAM on the GPU */
    st_dense *dense;         /* NULL: there are none */
    st_ready_range streamed_body, streamed_head; /* of the main part */
    bool streamed;           /* the last step is one */
};

static bool has_card(const st_run *run)
{
    return run->source.devices[ST_CARD].backend != NULL;
}

/* The stages of a part in the last step. */
static const st_plan_part *planned_part(const st_run *run, int part)
{
    const st_plan *plan = run->source.plan;
    return part == ST_PART_MAIN && run->streamed ? &plan->streamed : &plan->parts[part];
}

static const st_ready_range *body_of(const st_run *run, int part)
{
    return part == ST_PART_MAIN && run->streamed ? &run->streamed_body : &run->parts[part].body;
}

static const st_ready_range *head_of(const st_run *run, int part)
{
    return part == ST_PART_MAIN && run->streamed ? &run->streamed_head : &run->parts[part].head;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static strata_status open_queues(st_run *run, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t d = 0; d < ST_DEVICES_MAX && status == STRATA_OK; d++) {
        const st_run_device *device = &run->source.devices[d];
        if (!device->backend) continue;
        status = device->backend->queue_new(device->device, ST_QUEUE_COMPUTE, &run->devices[d].queue, error);
    }
    if (status != STRATA_OK || !has_card(run)) return status;
    const st_run_device *card = &run->source.devices[ST_CARD];
    status = card->backend->event_new(card->device, &run->crossed, error);
    if (status == STRATA_OK) status = card->backend->event_new(card->device, &run->step_sent, error);
    if (status == STRATA_OK) status = card->backend->event_new(card->device, &run->share_sent, error);
    if (status == STRATA_OK) status = card->backend->event_new(card->device, &run->batch_end, error);
    if (status == STRATA_OK) status = card->backend->event_new(card->device, &run->chain_end, error);
    return status;
}

/* Converts the plan's offsets to addresses. */
static void lay_out(st_run *run)
{
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++) {
        const st_plan_memory *memory = &run->source.plan->memory[d];
        st_ready_device *device = &run->devices[d];
        device->source = run->source.devices[d];
        if (!device->source.backend) continue;
        device->set = &memory->working;
        device->working = device->source.memory + memory->working_offset;
        for (int part = 0; part < ST_PARTS; part++)
            device->step[part] = (st_step *)(void *)(device->working + memory->working.steps[part]);
    }
    const st_plan_memory *host = &run->source.plan->memory[ST_HOST];
    unsigned char *staging = run->source.devices[ST_HOST].memory + host->staging_offset;
    for (int part = 0; part < ST_PARTS; part++)
        run->parts[part].master = has_card(run) ? (st_step *)(void *)(staging + host->staging_steps[part])
                                                : run->devices[ST_HOST].step[part];
    run->host_logits = (float *)(void *)(staging + host->staging_logits);
    run->slot_logits = (float *)(void *)(staging + host->staging_slot_logits);
    run->adjustments = (st_adjustments *)(void *)(staging + host->staging_adjustments);
    run->candidates = (st_candidates *)(void *)(staging + host->staging_candidates);
}

static strata_status open_kv(st_run *run, strata_error *error)
{
    const st_plan *plan = run->source.plan;
    st_kv_source source = {.restore = run->source.devices[ST_HOST].memory + plan->memory[ST_HOST].restore_offset,
                           .restore_bytes = plan->restore_bytes,
                           .tier = run->source.devices[ST_HOST].memory + plan->memory[ST_HOST].tier_offset,
                           .tier_pages = plan->tier_pages};
    for (uint32_t d = 0; d < plan->device_count; d++) {
        const st_ready_device *device = &run->devices[d];
        source.shares[source.share_count++] = (st_kv_share){
            .layout = plan->memory[d].kv, .backend = device->source.backend, .device = device->source.device,
            .queue = device->queue, .memory = device->source.memory + plan->memory[d].kv_offset};
    }
    return st_kv_new(&source, &run->kv, error);
}

static strata_status prepare_part(st_run *run, int which, const st_ready *ready, strata_error *error)
{
    const st_plan_part *planned = &run->source.plan->parts[which];
    ready_part *part = &run->parts[which];
    strata_status status = st_ready_range_new(ready, which, &planned->body, ST_ROWS_ALL, &part->body, error);
    if (status == STRATA_OK) status = st_ready_range_new(ready, which, &planned->head, ST_ROWS_OUT, &part->head, error);
    return status;
}

static strata_status prepare_streamed(st_run *run, st_ready ready, strata_error *error)
{
    const st_plan *plan = run->source.plan;
    const st_run_device *card = &run->source.devices[ST_CARD];
    st_dense_source source = {.binding = run->source.binding, .program = run->source.program,
                              .stages = &plan->streamed.body, .backend = card->backend, .device = card->device,
                              .buffers = run->source.dense_buffers, .buffer_bytes = plan->dense.buffer_bytes,
                              .host_weights = run->source.devices[ST_HOST].weights};
    strata_status status = st_dense_new(&source, &run->dense, error);
    if (status != STRATA_OK) return status;
    ready.dense = run->dense;
    ready.rows_min = plan->dense.rows;
    status = st_ready_range_new(&ready, ST_PART_MAIN, &plan->streamed.body, ST_ROWS_ALL, &run->streamed_body, error);
    if (status != STRATA_OK) return status;
    ready.rows_min = 0; /* a head has its own rows */
    return st_ready_range_new(&ready, ST_PART_MAIN, &plan->streamed.head, ST_ROWS_OUT, &run->streamed_head, error);
}

static bool reduces(const st_run *run)
{
    return run->source.plan->reduces_logits && run->source.plan->parts[ST_PART_MAIN].logits_device == ST_CARD;
}

static strata_status prepare(st_run *run, strata_error *error)
{
    st_ready ready = {.source = &run->source, .kv = run->kv, .devices = run->devices, .arena = &run->arena};
    strata_status status = prepare_part(run, ST_PART_MAIN, &ready, error);
    if (status == STRATA_OK && run->source.plan->nextn) status = prepare_part(run, ST_PART_NEXTN, &ready, error);
    if (status == STRATA_OK && reduces(run)) status = st_ready_reduction_new(&ready, &run->reduce, error);
    if (status == STRATA_OK && run->source.plan->dense.rows) status = prepare_streamed(run, ready, error);
    return status;
}

static strata_status check_source(const st_run_source *source, strata_error *error)
{
    if ((source->program->choice_words > 0) == (source->recorded != NULL)) return STRATA_OK;
    return st_error_set(error, STRATA_RUNTIME, NULL, "a recorded routing needs a program that takes its choices, and "
                                                     "such a program needs a recorded routing");
}

strata_status st_run_new(const st_run_source *source, st_run **out, strata_error *error)
{
    st_run *run = st_alloc_zero(1, sizeof *run);
    if (!run) return st_error_memory(error, sizeof *run, "the executor");
    run->source = *source;
    strata_status status = check_source(source, error);
    if (status == STRATA_OK) status = open_queues(run, error);
    if (status == STRATA_OK && source->watch) {
        run->origins = st_arena_alloc(&run->arena, source->plan->batch, sizeof *run->origins);
        if (!run->origins) status = st_error_memory(error, source->plan->batch * sizeof *run->origins, "the executor");
    }
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

static strata_status drain(st_run *run, strata_error *error);

void st_run_free(st_run *run)
{
    if (!run) return;
    if (run->chain_end && run->devices[ST_CARD].queue) (void)drain(run, NULL); /* a chain ends before it is freed */
    for (int part = 0; part < ST_PARTS; part++) {
        st_ready_range_free(run->devices, &run->parts[part].body);
        st_ready_range_free(run->devices, &run->parts[part].head);
    }
    st_ready_range_free(run->devices, &run->streamed_body);
    st_ready_range_free(run->devices, &run->streamed_head);
    st_dense_free(run->dense);
    if (run->reduce) run->source.devices[ST_CARD].backend->segment_free(run->reduce);
    st_kv_free(run->kv);
    if (run->crossed) run->source.devices[ST_CARD].backend->event_free(run->crossed);
    if (run->step_sent) run->source.devices[ST_CARD].backend->event_free(run->step_sent);
    if (run->share_sent) run->source.devices[ST_CARD].backend->event_free(run->share_sent);
    if (run->batch_end) run->source.devices[ST_CARD].backend->event_free(run->batch_end);
    if (run->chain_end) run->source.devices[ST_CARD].backend->event_free(run->chain_end);
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++)
        if (run->devices[d].queue) run->source.devices[d].backend->queue_free(run->devices[d].queue);
    st_arena_free(&run->arena);
    st_free(run);
}

st_adjustments *st_run_adjustments(st_run *run)
{
    return run->reduce ? run->adjustments : NULL;
}

st_kv *st_run_kv(st_run *run)
{
    return run->kv;
}

float *st_run_slot_logits(st_run *run, uint32_t slot)
{
    return run->slot_logits + (size_t)slot * run->source.desc->vocab;
}

void st_run_watch(st_run *run, const atomic_bool *flag)
{
    run->interrupt = flag;
    for (uint32_t d = 0; d < ST_DEVICES_MAX; d++) {
        const st_backend *backend = run->source.devices[d].backend;
        if (backend && backend->queue_watch) backend->queue_watch(run->devices[d].queue, flag);
    }
}

/* --- copies between devices: the GPU's queue is in order, so an event follows everything enqueued before it ------ */

static strata_status wait_for(st_run *run, st_event *event, strata_error *error)
{
    return run->source.devices[ST_CARD].backend->event_wait_host(event, WAIT_LIMIT_US, error);
}

static strata_status record_event(st_run *run, st_event *event, strata_error *error)
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
    size_t rows = value->rows == ST_ROWS_ALL ? step->count : step->out_count;
    size_t bytes = rows * value->width * sizeof(float);
    strata_status status = copy(run, stage->device, value_at(run, stage->device, stage->value), stage->from,
                                value_at(run, stage->from, stage->value), bytes, error);
    return status == STRATA_OK && ready->end ? record_event(run, ready->end, error) : status;
}

/* --- misses of the expert cache: the GPU fetches some, the host computes the others, and the GPU adds the sums --- */

static strata_status run_waves(st_run *run, const st_ready_split *split, const st_routing *routing,
                               st_stream_work *work, strata_error *error)
{
    const st_backend *card = run->source.devices[ST_CARD].backend;
    st_queue *queue = run->devices[ST_CARD].queue;
    st_stream *stream = run->source.stream;
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < work->waves && status == STRATA_OK; i++) {
        st_event *ready;
        status = st_stream_fetch(stream, routing->layer, i, &ready, error);
        if (status == STRATA_OK && !ready) {
            work->host = true; /* the fetch failed: the host computes the wave */
            continue;
        }
        if (status == STRATA_OK) status = card->event_wait_queue(ready, queue, error);
        if (status == STRATA_OK) status = card->launch(split->waves[i], queue, routing->rows, error);
        if (status == STRATA_OK) status = st_stream_launched(stream, i, queue, error);
    }
    return status;
}

static strata_status run_host_share(st_run *run, const st_ready_split *split, int32_t out, uint32_t rows,
                                    strata_error *error)
{
    const st_run_device *devices = run->source.devices;
    st_queue *queue = run->devices[ST_CARD].queue;
    size_t bytes = (size_t)rows * run->source.program->values[out].width * sizeof(float);
    unsigned char *sum = run->devices[ST_CARD].working + run->devices[ST_CARD].set->sums[0];
    strata_status status = devices[ST_HOST].backend->launch(split->host, run->devices[ST_HOST].queue, rows, error);
    if (status == STRATA_OK) status = copy(run, ST_CARD, sum, ST_HOST, value_at(run, ST_HOST, out), bytes, error);
    if (status == STRATA_OK) status = record_event(run, run->share_sent, error);
    if (status == STRATA_OK) run->pending = run->share_sent;
    return status == STRATA_OK ? devices[ST_CARD].backend->launch(split->add_host, queue, rows, error) : status;
}

/* The batch's routing in host memory. */
static st_routing routing_of(const st_run *run, const st_stage *stage, const st_step *step)
{
    const st_op *op = &run->source.program->ops[stage->ops.first];
    return (st_routing){.layer = (uint32_t)op->layer, .rows = step->count, .used = op->p.experts.used,
                        .decoding = run->kind.decoding, .origins = run->origins,
                        .ids = (const int32_t *)(const void *)value_at(run, ST_HOST, op->in[1]),
                        .weights = (const float *)(const void *)value_at(run, ST_HOST, op->in[2])};
}

/* The router of the next layer, on the input of this one, and what to upload by it. */
static strata_status run_ask(st_run *run, const st_ready_split *split, uint32_t next, strata_error *error)
{
    strata_status status = STRATA_OK;
    if (split->ask) /* the prediction reads the first row only */
        status = run->source.devices[ST_HOST].backend->launch(split->ask, run->devices[ST_HOST].queue, 1, error);
    return status == STRATA_OK ? st_stream_hint(run->source.stream, next, error) : status;
}

static uint32_t asks_of(const st_run *run, const st_routing *routing)
{
    return routing->decoding ? st_stream_asks(run->source.stream, routing->layer) : UINT32_MAX;
}

static strata_status end_split(st_run *run, const st_ready_split *split, const st_routing *routing,
                               strata_status status, strata_error *error)
{
    uint32_t next = asks_of(run, routing);
    strata_status ended = st_stream_end(run->source.stream, routing->layer, status == STRATA_OK ? error : NULL);
    if (status == STRATA_OK) status = ended;
    return status == STRATA_OK && next != UINT32_MAX ? run_ask(run, split, next, error) : status;
}

static strata_status run_split(st_run *run, const st_ready_stage *ready, const st_routing *routing, strata_error *error)
{
    const st_ready_split *split = &ready->split;
    int32_t out = run->source.program->ops[ready->stage->ops.first].out;
    st_stream_work work;
    strata_status status = st_stream_decide(run->source.stream, routing->layer, routing->ids, routing->weights,
                                            routing->rows, &work, error);
    if (status == STRATA_OK) status = run_waves(run, split, routing, &work, error);
    if (status == STRATA_OK && work.host) status = run_host_share(run, split, out, routing->rows, error);
    return end_split(run, split, routing, status, error);
}

static strata_status check_interrupt(const st_run *run, strata_error *error)
{
    if (!run->interrupt || !atomic_load_explicit(run->interrupt, memory_order_relaxed)) return STRATA_OK;
    return st_error_set(error, STRATA_INTERRUPTED, NULL, "the computation was interrupted");
}

/* Launches that read a buffer have more than ST_EARLY_ROWS_MAX rows by plan, so none starts before its wait. */
static strata_status run_fetched(st_run *run, const st_ready_stage *ready, uint32_t rows, strata_error *error)
{
    st_queue *queue = run->devices[ST_CARD].queue;
    strata_status status = st_dense_await(run->dense, ready->fetch, queue, error);
    if (status == STRATA_OK) status = run->source.devices[ST_CARD].backend->launch(ready->segment, queue, rows, error);
    return status == STRATA_OK ? st_dense_launched(run->dense, ready->fetch, queue, error) : status;
}

/* `step` is the block as the host wrote it. */
static strata_status run_stage(st_run *run, const st_ready_stage *ready, const st_step *step, uint32_t rows,
                               strata_error *error)
{
    const st_stage *stage = ready->stage;
    uint8_t device = stage->device;
    if (stage->kind == ST_STAGE_MOVE) return run_move(run, ready, step, error);
    if (stage->fetched) return run_fetched(run, ready, rows, error);
    if (stage->kind == ST_STAGE_RUN)
        return run->source.devices[device].backend->launch(ready->segment, run->devices[device].queue, rows, error);
    st_routing routing = routing_of(run, stage, step);
    if (run->source.watch) st_watch_routing(run->source.watch, &routing, stage->kind == ST_STAGE_WATCH);
    return stage->kind == ST_STAGE_SPLIT ? run_split(run, ready, &routing, error) : STRATA_OK;
}

/* --- chains: the GPU's stages of a range are one launch, which the host follows ------------------------------------ */

/* A prediction changes the tables of the next layer and reads this layer's input: it comes before the answer, upon which
 * the GPU goes on to the next layer. Uploads come after it, so that the GPU does not wait for them. */
static strata_status answer_split(st_run *run, const st_ready_range *range, const st_ready_stage *ready,
                                  const st_routing *routing, strata_error *error)
{
    const st_run_device *devices = run->source.devices;
    const st_ready_split *split = &ready->split;
    bool asks = asks_of(run, routing) != UINT32_MAX;
    st_stream_work work = {0};
    strata_status status = st_stream_decide(run->source.stream, routing->layer, routing->ids, routing->weights,
                                            routing->rows, &work, error);
    if (status == STRATA_OK && work.host)
        status = devices[ST_HOST].backend->launch(split->host, run->devices[ST_HOST].queue, routing->rows, error);
    if (asks) status = end_split(run, split, routing, status, error);
    if (status == STRATA_OK) devices[ST_CARD].backend->chain_answer(range->chain, ready->link, !work.host);
    return asks ? status : end_split(run, split, routing, status, error);
}

static strata_status follow_stage(st_run *run, const st_ready_range *range, const st_ready_stage *ready,
                                  const st_step *step, strata_error *error)
{
    const st_stage *stage = ready->stage;
    const st_run_device *devices = run->source.devices;
    if (stage->kind == ST_STAGE_MOVE) {
        if (stage->device == ST_CARD || stage->guarded)
            devices[ST_CARD].backend->chain_answer(range->chain, ready->link - stage->guarded, false);
        return STRATA_OK;
    }
    if (stage->kind == ST_STAGE_RUN)
        return stage->device == ST_CARD ? STRATA_OK
                                        : devices[ST_HOST].backend->launch(ready->segment, run->devices[ST_HOST].queue,
                                                                           step->count, error);
    st_routing routing = routing_of(run, stage, step);
    if (run->source.watch) st_watch_routing(run->source.watch, &routing, false);
    return answer_split(run, range, ready, &routing, error);
}

/* The CPU's threads stay awake while the host follows a chain. */
static void hold_host(st_run *run, bool hold)
{
    const st_backend *host = run->source.devices[ST_HOST].backend;
    if (host->queue_hold) host->queue_hold(run->devices[ST_HOST].queue, hold);
}

/* After a failure the launch still ends: it is answered in every case. */
static strata_status run_chain(st_run *run, const st_ready_range *range, const st_step *step, strata_error *error)
{
    const st_backend *card = run->source.devices[ST_CARD].backend;
    strata_status status = card->chain_launch(range->chain, run->devices[ST_CARD].queue, step->count, step->sequence,
                                              run->chain_end, error);
    hold_host(run, true);
    for (uint32_t i = 0; i < range->count && status == STRATA_OK; i++) {
        const st_ready_stage *ready = &range->stages[i];
        int32_t wait = ready->stage->wait;
        status = check_interrupt(run, error);
        if (status == STRATA_OK && wait != ST_NO_STAGE)
            status = card->chain_await(range->chain, range->stages[wait].link, WAIT_LIMIT_US, run->interrupt, error);
        if (status == STRATA_OK) status = follow_stage(run, range, ready, step, error);
    }
    hold_host(run, false);
    if (status != STRATA_OK) card->chain_abandon(range->chain);
    else run->pending = run->chain_end;
    return status;
}

static strata_status run_range(st_run *run, const st_ready_range *range, const st_step *step, uint32_t rows,
                               strata_error *error)
{
    strata_status status = STRATA_OK;
    if (run->kind.chained && range->chain && rows <= range->chain_rows) return run_chain(run, range, step, error);
    for (uint32_t i = 0; i < range->count && status == STRATA_OK; i++) {
        const st_ready_stage *ready = &range->stages[i];
        status = check_interrupt(run, error);
        if (status == STRATA_OK && ready->stage->wait != ST_NO_STAGE)
            status = wait_for(run, range->stages[ready->stage->wait].end, error);
        if (status == STRATA_OK) status = run_stage(run, ready, step, rows, error);
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
    strata_status status = record_event(run, run->crossed, error);
    return status == STRATA_OK ? wait_for(run, run->crossed, error) : status;
}

/* Ends a failed step. Enqueued work must end before its memory is used again. After an interrupt the steps before this
 * one are complete; after other failures only confirmed tokens are. */
static strata_status give_up(st_run *run, strata_status status)
{
    if (drain(run, NULL) == STRATA_OK && status == STRATA_INTERRUPTED) st_kv_confirm(run->kv);
    st_kv_fail(run->kv);
    run->last_count = run->last_nextn_rows = 0;
    return status;
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
    return record_event(run, run->step_sent, error);
}

/* Waits until the GPU has the last step block, so that it may be written. */
static strata_status step_may_change(st_run *run, strata_error *error)
{
    if (!run->step_sending) return STRATA_OK;
    run->step_sending = false;
    if (run->source.devices[ST_CARD].backend->event_done(run->step_sent)) return STRATA_OK;
    return wait_for(run, run->step_sent, error);
}

/* Runs the body of a part for the step block that the caller has written. */
static strata_status run_body(st_run *run, int part, strata_error *error)
{
    st_step *step = run->parts[part].master;
    strata_status status = send_step(run, part, 0, step->bytes, error);
    if (part == ST_PART_MAIN) run->streamed = run->dense && step->count >= run->source.plan->dense.rows;
    if (status == STRATA_OK && part == ST_PART_MAIN && run->streamed) status = st_dense_begin(run->dense, error);
    return status == STRATA_OK ? run_range(run, body_of(run, part), step, step->count, error) : status;
}

static strata_status may_write_step(st_run *run, strata_error *error)
{
    strata_status status = step_may_change(run, error);
    return status == STRATA_OK ? settle(run, error) : status;
}

/* The step's positions were checked. */
static void write_choices(const st_run *run, uint32_t conversation, uint32_t position, uint32_t *out)
{
    const uint32_t *row;
    if (st_recorded_row(run->source.recorded, conversation, position, &row, NULL) == STRATA_OK)
        memcpy(out, row, run->source.program->choice_words * sizeof *out);
}

/* Writes the rows of conversation `index` of the step: the piece's tokens from `skipped` on. `*row` is the next row. */
static void write_rows(st_run *run, const st_run_piece *piece, uint32_t skipped, uint32_t index, uint32_t *row,
                       st_step *step)
{
    st_step_conversation *c = &st_step_conversations(step)[index];
    const strata_token *tokens = st_conversation_tokens(piece->conversation);
    uint32_t number = st_conversation_number(piece->conversation);
    c->first_row = *row;
    c->rows = piece->count - skipped;
    for (uint32_t i = 0; i < c->rows; i++, (*row)++) {
        uint32_t position = c->position + i;
        st_step_rows(step)[*row] = (st_step_row){.id = tokens[position], .position = position, .conversation = index};
        if (run->origins)
            run->origins[*row] = (st_watch_row){.turn = number, .position = position, .prompt = piece->prompt};
        if (step->choice_words) write_choices(run, number, position, st_step_choices(step, *row));
    }
}

/* Writes the step block of a part. The NextN block pairs each token with the hidden state of the token before it: the
 * first token of a conversation has none. */
static void write_step(st_run *run, int part, const st_run_piece *pieces, uint32_t count)
{
    st_step *step = run->parts[part].master;
    uint32_t rows = 0, conversations = 0, tables = 0, row = 0, index = 0;
    bool nextn = part == ST_PART_NEXTN;
    uint32_t choices = nextn ? 0 : run->source.program->choice_words;
    step->sequence = ++run->sequence;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t of_piece = pieces[i].count - (nextn && st_conversation_position(pieces[i].conversation) == 0);
        rows += of_piece;
        conversations += of_piece > 0;
    }
    st_step_lay_out_choices(step, run->source.plan->step.out_rows, conversations, rows, 0, choices);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = st_conversation_position(pieces[i].conversation), skipped = nextn && position == 0;
        if (pieces[i].count == skipped) continue;
        tables += st_conversation_write(pieces[i].conversation, position + skipped, tables,
                                        &st_step_conversations(step)[index], st_step_tables(step) + tables);
        write_rows(run, &pieces[i], skipped, index++, &row, step);
    }
    st_step_lay_out_choices(step, run->source.plan->step.out_rows, conversations, rows, tables, choices);
}

/* Copies a piece's input of the NextN block: the hidden row of the conversation's state, then all hidden rows of this
 * step but the last, which becomes the state's. `row` is its first row in the step, `*to_row` the next row of the
 * input. */
static strata_status carry_piece(st_run *run, const st_run_piece *piece, uint32_t row, uint32_t *to_row,
                                 strata_error *error)
{
    const st_program *program = run->source.program;
    size_t row_bytes = run->source.desc->embedding * sizeof(float);
    uint8_t to = planned_part(run, ST_PART_NEXTN)->input_device, at = planned_part(run, ST_PART_MAIN)->hidden_devices;
    uint8_t from = at & (1u << to) ? to : (uint8_t)!to;
    unsigned char *input = value_at(run, to, program->nextn.input) + *to_row * row_bytes;
    unsigned char *carry = st_kv_carry(run->kv, to, st_conversation_slot(piece->conversation));
    const unsigned char *hidden = value_at(run, from, program->main.hidden) + row * row_bytes;
    size_t last = (piece->count - 1) * row_bytes; /* the offset of the last hidden row */
    uint32_t carried = st_conversation_position(piece->conversation) > 0;
    strata_status status = carried ? copy(run, to, input, to, carry, row_bytes, error) : STRATA_OK;
    if (status == STRATA_OK) status = copy(run, to, input + carried * row_bytes, from, hidden, last, error);
    if (status == STRATA_OK) status = copy(run, to, carry, from, hidden + last, row_bytes, error);
    if (to != from) run->pending = run->crossed; /* these copies may still access host rows: the body waits for them */
    *to_row += piece->count - 1 + carried;
    return status;
}

static strata_status run_nextn(st_run *run, const st_run_piece *pieces, uint32_t count, strata_error *error)
{
    strata_status status = may_write_step(run, error);
    uint32_t row = 0, rows = 0;
    for (uint32_t i = 0; i < count && status == STRATA_OK; row += pieces[i].count, i++)
        status = carry_piece(run, &pieces[i], row, &rows, error);
    if (status == STRATA_OK && run->pending == run->crossed && has_card(run))
        status = record_event(run, run->crossed, error);
    if (status != STRATA_OK) return status;
    run->last_nextn_rows = rows;
    if (rows == 0) return STRATA_OK;
    status = settle(run, error);
    if (status != STRATA_OK) return status;
    write_step(run, ST_PART_NEXTN, pieces, count);
    return run_body(run, ST_PART_NEXTN, error);
}

static strata_status end_batch(st_run *run, strata_error *error)
{
    run->computing = true;
    return record_event(run, run->batch_end, error);
}

/* Whether the step is one launch of the GPU for all layers. Steps of prompts are not: they may fetch experts. */
static bool may_chain(const st_run *run)
{
    const st_ready_range *body = &run->parts[ST_PART_MAIN].body;
    return body->chain && run->kind.decoding && run->parts[ST_PART_MAIN].master->count <= body->chain_rows &&
           (!run->source.stream || st_stream_may_chain(run->source.stream));
}

static strata_status run_parts(st_run *run, const st_run_piece *pieces, uint32_t count, strata_error *error)
{
    strata_status status = may_write_step(run, error);
    if (status != STRATA_OK) return status;
    write_step(run, ST_PART_MAIN, pieces, count);
    run->kind.chained = may_chain(run);
    if (run->source.stream)
        status = st_stream_begin(run->source.stream, run->computing ? run->batch_end : NULL, run->kind, error);
    if (status == STRATA_OK) status = run_body(run, ST_PART_MAIN, error);
    if (status == STRATA_OK && run->source.plan->nextn) status = run_nextn(run, pieces, count, error);
    return status == STRATA_OK && run->source.stream ? end_batch(run, error) : status;
}

/* The recorded routing has the last token of every piece. */
static strata_status check_recorded(const st_run *run, const st_run_piece *pieces, uint32_t count, strata_error *error)
{
    const uint32_t *row;
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; run->source.recorded && i < count && status == STRATA_OK; i++) {
        const st_conversation *c = pieces[i].conversation;
        status = st_recorded_row(run->source.recorded, st_conversation_number(c),
                                 st_conversation_position(c) + pieces[i].count - 1, &row, error);
    }
    return status;
}

static strata_status check_pieces(const st_run *run, const st_run_piece *pieces, uint32_t count, strata_error *error)
{
    const st_step_limits *most = &run->source.plan->step;
    uint64_t rows = 0;
    bool empty = count == 0;
    for (uint32_t i = 0; i < count; i++) {
        rows += pieces[i].count;
        empty = empty || pieces[i].count == 0;
    }
    if (!empty && rows <= most->rows && count <= most->conversations) return check_recorded(run, pieces, count, error);
    return st_error_set(error, STRATA_LIMIT, NULL,
                        "a step of %llu rows of %u conversations: expected 1 to %u rows of at most %u conversations",
                        (unsigned long long)rows, count, most->rows, most->conversations);
}

strata_status st_run_step(st_run *run, const st_run_piece *pieces, uint32_t count, strata_error *error)
{
    strata_status status = check_pieces(run, pieces, count, error);
    if (status != STRATA_OK) return status;
    run->last_count = run->last_nextn_rows = 0;
    run->kind = (st_stream_step){.decoding = true};
    for (uint32_t i = 0; i < count; i++) {
        run->kind.decoding = run->kind.decoding && !pieces[i].prompt;
        status = st_conversation_prepare(pieces[i].conversation, pieces[i].count, error);
        if (status == STRATA_OK) continue;
        while (i-- > 0) st_conversation_cancel(pieces[i].conversation);
        return status;
    }
    status = run_parts(run, pieces, count, error);
    if (status != STRATA_OK) return give_up(run, status);
    for (uint32_t i = 0; i < count; i++) {
        st_conversation_commit(pieces[i].conversation);
        run->last_count += pieces[i].count;
    }
    if (!has_card(run)) st_kv_confirm(run->kv);
    return STRATA_OK;
}

strata_status st_run_wait(st_run *run, strata_error *error)
{
    strata_status status = drain(run, error);
    if (status == STRATA_OK) st_kv_confirm(run->kv);
    else st_kv_fail(run->kv);
    return status;
}

static strata_status check_out_rows(const st_run *run, const uint32_t *rows, uint32_t count, uint32_t row_limit,
                                    strata_error *error)
{
    uint32_t out_rows = run->source.plan->out_rows;
    if (count == 0 || count > out_rows)
        return st_error_set(error, STRATA_LIMIT, NULL, "rows of logits: expected 1 to %u, found %u", out_rows, count);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i] >= row_limit)
            return st_error_set(error, STRATA_LIMIT, NULL, "logits of row %u: the last step has %u rows", rows[i],
                                row_limit);
    return STRATA_OK;
}

/* Writes the indices of the output rows to the step block, while the body may still be running. */
static strata_status send_out_rows(st_run *run, int part, const uint32_t *rows, uint32_t count, strata_error *error)
{
    st_step *step = run->parts[part].master;
    memcpy(st_step_out_rows(step), rows, count * sizeof *rows);
    step->out_count = count;
    return send_step(run, part, 0, sizeof *step + count * sizeof *rows, error);
}

/* Enqueues the head of a part; a failure has ended the step. */
static strata_status begin_head(st_run *run, int part, uint32_t row_limit, const uint32_t *rows, uint32_t count,
                                strata_error *error)
{
    strata_status status = check_out_rows(run, rows, count, row_limit, error);
    if (status != STRATA_OK) return status;
    status = send_out_rows(run, part, rows, count, error);
    if (status == STRATA_OK) status = run_range(run, head_of(run, part), run->parts[part].master, count, error);
    return status == STRATA_OK ? STRATA_OK : give_up(run, status);
}

/* Copies what the GPU has computed, and waits for it. */
static strata_status bring(st_run *run, void *to, const void *from, size_t bytes, strata_error *error)
{
    strata_status status = copy(run, ST_HOST, to, ST_CARD, from, bytes, error);
    if (status == STRATA_OK) status = record_event(run, run->crossed, error);
    if (status == STRATA_OK) status = wait_for(run, run->crossed, error);
    run->pending = NULL; /* these copies were enqueued before this one */
    run->computing = false;
    return status;
}

static strata_status end_head(st_run *run, strata_status status)
{
    if (status != STRATA_OK) return give_up(run, status);
    st_kv_confirm(run->kv); /* the head reads what the body has written */
    return STRATA_OK;
}

static strata_status run_head(st_run *run, int part, int32_t logits, uint32_t row_limit, const uint32_t *rows,
                              uint32_t count, const float **out, strata_error *error)
{
    strata_status status = begin_head(run, part, row_limit, rows, count, error);
    if (status != STRATA_OK) return status;
    uint8_t device = planned_part(run, part)->logits_device;
    unsigned char *value = value_at(run, device, logits);
    size_t bytes = (size_t)count * run->source.program->values[logits].width * sizeof(float);
    if (device == ST_CARD) status = bring(run, run->host_logits, value, bytes, error);
    *out = device == ST_CARD ? run->host_logits : (const float *)(const void *)value;
    return end_head(run, status);
}

/* The lists up to the last adjustment: empty ones are a few bytes. */
static size_t lists_bytes(const st_run *run, uint32_t count)
{
    const st_adjustments *last = &run->adjustments[count - 1];
    return (size_t)((const unsigned char *)&last->items[last->count] - (const unsigned char *)run->adjustments);
}

strata_status st_run_candidates(st_run *run, const uint32_t *rows, uint32_t count, const st_candidates **out,
                                strata_error *error)
{
    const st_ready_device *card = &run->devices[ST_CARD];
    strata_status status = begin_head(run, ST_PART_MAIN, run->last_count, rows, count, error);
    if (status != STRATA_OK) return status;
    status = copy(run, ST_CARD, card->working + card->set->adjustments, ST_HOST, run->adjustments,
                  lists_bytes(run, count), error);
    if (status == STRATA_OK) status = card->source.backend->launch(run->reduce, card->queue, count, error);
    if (status == STRATA_OK)
        status = bring(run, run->candidates, card->working + card->set->candidates, count * sizeof *run->candidates,
                       error);
    *out = run->candidates;
    return end_head(run, status);
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
    int32_t logits = run->source.program->nextn.logits;
    return run_head(run, ST_PART_NEXTN, logits, run->last_nextn_rows, rows, count, out, error);
}
