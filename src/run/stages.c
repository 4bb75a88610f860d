#include "run/stages.h"

#include "base/error.h"

enum { WAIT_LIMIT_US = 120 * 1000 * 1000 };

/* --- copies between devices: the GPU's queue is in order, so an event follows everything enqueued before it ------ */

strata_status st_stages_wait(st_run *run, st_event *event, strata_error *error)
{
    return run->source.devices[ST_CARD].backend->event_wait_host(event, WAIT_LIMIT_US, error);
}

strata_status st_stages_record(st_run *run, st_event *event, strata_error *error)
{
    return run->source.devices[ST_CARD].backend->event_record(event, run->devices[ST_CARD].queue, error);
}

strata_status st_stages_settle(st_run *run, strata_error *error)
{
    st_event *pending = run->pending;
    run->pending = NULL;
    if (!pending || run->source.devices[ST_CARD].backend->event_done(pending)) return STRATA_OK;
    return st_stages_wait(run, pending, error);
}

strata_status st_stages_copy(st_run *run, uint8_t to_device, void *to, uint8_t from_device, const void *from,
                             size_t bytes, strata_error *error)
{
    if (bytes == 0) return STRATA_OK;
    st_copy_kind kind = to_device == from_device ? ST_COPY_WITHIN : to_device == ST_CARD ? ST_COPY_UP : ST_COPY_DOWN;
    uint8_t queue = kind == ST_COPY_WITHIN ? to_device : ST_CARD;
    return run->source.devices[queue].backend->copy(run->devices[queue].queue, kind, to, from, bytes, error);
}

unsigned char *st_stages_value(const st_run *run, uint8_t device, int32_t value)
{
    return st_ready_value(&run->devices[device], run->source.program, run->source.plan, value);
}

static strata_status run_move(st_run *run, const st_ready_stage *ready, const st_step *step, strata_error *error)
{
    const st_stage *stage = ready->stage;
    const st_value *value = &run->source.program->values[stage->value];
    size_t rows = value->rows == ST_ROWS_ALL ? step->count : step->out_count;
    size_t bytes = rows * value->width * sizeof(float);
    strata_status status = st_stages_copy(run, stage->device, st_stages_value(run, stage->device, stage->value),
                                          stage->from, st_stages_value(run, stage->from, stage->value), bytes, error);
    return status == STRATA_OK && ready->end ? st_stages_record(run, ready->end, error) : status;
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

/* On the host's clock: that of a simulated one is virtual. */
static double host_seconds(const st_run *run)
{
    const st_backend *host = run->source.devices[ST_HOST].backend;
    (void)host->event_record(run->host_now, run->devices[ST_HOST].queue, NULL);
    return host->event_seconds(run->host_now);
}

static strata_status compute_host_share(st_run *run, const st_ready_split *split, const st_routing *routing, strata_error *error)
{
    double begin = host_seconds(run);
    strata_status status =
        run->source.devices[ST_HOST].backend->launch(split->host, run->devices[ST_HOST].queue, routing->rows, error);
    if (status == STRATA_OK) st_stream_computed(run->source.stream, routing->layer, routing->rows, host_seconds(run) - begin);
    return status;
}

static strata_status run_host_share(st_run *run, const st_ready_split *split, int32_t out, const st_routing *routing,
                                    strata_error *error)
{
    const st_run_device *devices = run->source.devices;
    st_queue *queue = run->devices[ST_CARD].queue;
    uint32_t rows = routing->rows;
    size_t bytes = (size_t)rows * run->source.program->values[out].width * sizeof(float);
    unsigned char *sum = run->devices[ST_CARD].working + run->devices[ST_CARD].set->sums[0];
    strata_status status = compute_host_share(run, split, routing, error);
    if (status == STRATA_OK)
        status = st_stages_copy(run, ST_CARD, sum, ST_HOST, st_stages_value(run, ST_HOST, out), bytes, error);
    if (status == STRATA_OK) status = st_stages_record(run, run->share_sent, error);
    if (status == STRATA_OK) run->pending = run->share_sent;
    return status == STRATA_OK ? devices[ST_CARD].backend->launch(split->add_host, queue, rows, error) : status;
}

/* The batch's routing in host memory. */
static st_routing routing_of(const st_run *run, const st_stage *stage, const st_step *step)
{
    const st_op *op = &run->source.program->ops[stage->ops.first];
    return (st_routing){.layer = (uint32_t)op->layer, .rows = step->count, .used = op->p.experts.used,
                        .decoding = run->kind.decoding, .origins = run->origins,
                        .ids = (const int32_t *)(const void *)st_stages_value(run, ST_HOST, op->in[1]),
                        .weights = (const float *)(const void *)st_stages_value(run, ST_HOST, op->in[2])};
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
    if (status == STRATA_OK && work.host) status = run_host_share(run, split, out, routing, error);
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

/* Waits until the GPU has sent what the stage reads on the host. */
static strata_status await_stage(st_run *run, const st_ready_range *range, const st_ready_stage *ready, bool chained,
                                 strata_error *error)
{
    const st_stage *stage = ready->stage;
    if (stage->wait == ST_NO_STAGE) return STRATA_OK;
    const st_ready_stage *sent = &range->stages[stage->wait];
    bool split = stage->kind == ST_STAGE_SPLIT;
    double begin = split ? host_seconds(run) : 0;
    strata_status status = chained ? run->source.devices[ST_CARD].backend->chain_await(range->chain, sent->link, WAIT_LIMIT_US,
                                                                                       run->interrupt, error)
                                   : st_stages_wait(run, sent->end, error);
    if (!split) return status;
    uint32_t layer = (uint32_t)run->source.program->ops[stage->ops.first].layer;
    st_stream_waited(run->source.stream, layer, host_seconds(run) - begin);
    return status;
}

/* --- chains: the GPU's stages of a range are one launch, which the host follows ----------------------------------- */

/* A prediction changes the tables of the next layer and reads this layer's input: it comes before the answer, upon
 * which the GPU goes on to the next layer. Uploads come after it, so that the GPU does not wait for them. */
static strata_status answer_split(st_run *run, const st_ready_range *range, const st_ready_stage *ready,
                                  const st_routing *routing, strata_error *error)
{
    const st_run_device *devices = run->source.devices;
    const st_ready_split *split = &ready->split;
    bool asks = asks_of(run, routing) != UINT32_MAX;
    st_stream_work work = {0};
    strata_status status = st_stream_decide(run->source.stream, routing->layer, routing->ids, routing->weights,
                                            routing->rows, &work, error);
    if (status == STRATA_OK && work.host) status = compute_host_share(run, split, routing, error);
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
        status = check_interrupt(run, error);
        if (status == STRATA_OK) status = await_stage(run, range, ready, true, error);
        if (status == STRATA_OK) status = follow_stage(run, range, ready, step, error);
    }
    hold_host(run, false);
    if (status != STRATA_OK) card->chain_abandon(range->chain);
    else run->pending = run->chain_end;
    return status;
}

strata_status st_stages_run(st_run *run, const st_ready_range *range, const st_step *step, uint32_t rows,
                            strata_error *error)
{
    strata_status status = STRATA_OK;
    if (run->kind.chained && range->chain && rows <= range->chain_rows) return run_chain(run, range, step, error);
    for (uint32_t i = 0; i < range->count && status == STRATA_OK; i++) {
        const st_ready_stage *ready = &range->stages[i];
        status = check_interrupt(run, error);
        if (status == STRATA_OK) status = await_stage(run, range, ready, false, error);
        if (status == STRATA_OK) status = run_stage(run, ready, step, rows, error);
    }
    if (status == STRATA_OK && range->pending != ST_NO_STAGE) run->pending = range->stages[range->pending].end;
    return status;
}
