/* Binds values, weights and caches to addresses, and prepares each run of operations as a segment of its device. */
#include "run/ready.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "sampler/candidates.h"

unsigned char *st_ready_value(const st_ready_device *device, const st_program *program, const st_plan *plan,
                              int32_t value)
{
    const st_value *v = &program->values[value];
    uint32_t rows = v->rows == ST_ROWS_ALL ? plan->batch : plan->out_rows;
    return device->working + device->set->values[v->rows] + v->offset_bytes * rows;
}

static void bind_value(const st_ready *ready, uint8_t device, int32_t value, st_bound_value *out)
{
    const st_run_source *source = ready->source;
    if (value != ST_NO_VALUE) out->data = st_ready_value(&ready->devices[device], source->program, source->plan, value);
}

/* Which of a layer's experts an operation computes. */
typedef enum expert_share { ALL_EXPERTS, CARD_EXPERTS, HOST_EXPERTS, WAVE_EXPERTS } expert_share;

typedef struct expert_source {
    expert_share share;
    uint32_t wave;
} expert_source;

/* Where an operation finds weights that are not simply on its device. */
typedef struct weight_source {
    expert_source experts;
    const unsigned char *buffer; /* of fetched matrices; NULL: they are not fetched */
} weight_source;

static const void *const *shared_table(const st_ready *ready, expert_source experts, uint32_t layer, int matrix)
{
    const st_stream *stream = ready->source->stream;
    if (experts.share == CARD_EXPERTS) return st_stream_card_parts(stream, layer, matrix);
    if (experts.share == HOST_EXPERTS) return st_stream_host_parts(stream, layer, matrix);
    return st_stream_wave_parts(stream, experts.wave, matrix);
}

/* The address of each expert: a slice of one tensor or, on the host, a tensor of its own. */
static const void *const *expert_table(const st_ready *ready, uint8_t device, const st_weight *w,
                                       const unsigned char *data)
{
    const void **table = st_arena_alloc(ready->arena, w->ne[2], sizeof *table);
    if (!table) return NULL;
    for (uint64_t i = 0; i < w->ne[2]; i++)
        table[i] = device == ST_HOST ? st_weight_expert(w, data, i) : data + i * st_weight_expert_bytes(w);
    return table;
}

/* Where the weight is on the device. A fetched matrix is in its buffer. */
static const unsigned char *weight_at(const st_ready *ready, uint8_t device, const st_op *op, int slot,
                                      const unsigned char *buffer)
{
    st_fetch_layout fetch = {0};
    if (buffer) fetch = st_fetch_layout_of(ready->source->binding, op);
    if (fetch.matrix_bytes[slot]) return buffer + fetch.offset[slot];
    return ready->source->devices[device].weights[op->weight[slot]];
}

static strata_status bind_weight(const st_ready *ready, uint8_t device, const st_op *op, int slot,
                                 weight_source from, st_bound_weight *out, strata_error *error)
{
    expert_source experts = from.experts;
    int32_t index = op->weight[slot];
    if (index == ST_NO_WEIGHT) return STRATA_OK;
    bool routed = op->kind == ST_OP_EXPERTS && slot < ST_EXPERT_MATRICES;
    bool shared = routed && experts.share != ALL_EXPERTS;
    const st_weight *w = &ready->source->binding->weights[index];
    const unsigned char *data = weight_at(ready, device, op, slot, from.buffer);
    if (shared) data = ready->devices[device].working; /* not read: the tables hold the addresses */
    if (!data)
        return st_error_set(error, STRATA_RUNTIME, NULL, "tensor %.*s is not on the device that reads it",
                            ST_STR_ARG(w->tensor->name));
    out->data = data;
    if (out->row_bytes == 0)
        return st_error_set(error, STRATA_FORMAT, NULL, "tensor %.*s: rows are no whole number of blocks",
                            ST_STR_ARG(w->tensor->name));
    if (shared) out->parts = shared_table(ready, experts, (uint32_t)op->layer, slot);
    if (routed && !shared) {
        out->parts = expert_table(ready, device, w, data);
        if (!out->parts) return st_error_memory(error, w->ne[2] * sizeof(void *), "the table of experts");
    }
    return STRATA_OK;
}

static strata_status bind_op(const st_ready *ready, uint8_t device, const st_op *op, weight_source from,
                             st_bound_op *out, strata_error *error)
{
    *out = st_bound_shape(ready->source->program, ready->source->binding, op);
    bind_value(ready, device, op->out, &out->out);
    bind_value(ready, device, op->out2, &out->out2);
    for (int i = 0; i < ST_OP_INPUTS; i++) bind_value(ready, device, op->in[i], &out->in[i]);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        strata_status status = bind_weight(ready, device, op, i, from, &out->weight[i], error);
        if (status != STRATA_OK) return status;
    }
    st_bound_for_context(out, ready->source->plan->context);
    if (op->kind == ST_OP_KV_STORE) out->kv = st_kv_view_of(ready->kv, op->p.kv.kv_layer);
    if (op->kind == ST_OP_ATTENTION) out->kv = st_kv_view_of(ready->kv, op->p.attention.kv_layer);
    if (st_op_has_state(op->kind))
        out->state = st_kv_state_of(ready->kv, (uint32_t)op->layer);
    return STRATA_OK;
}

static strata_status prepare_bound(const st_ready *ready, int part, uint8_t device, const st_bound_op *ops,
                                   uint32_t count, st_rows rows, st_segment **out, strata_error *error)
{
    const st_ready_device *d = &ready->devices[device];
    st_segment_source segment = {.ops = ops, .count = count, .rows = rows, .step = d->step[part],
                                 .rows_min = ready->rows_min,
                                 .step_bytes = st_step_bytes(&ready->source->plan->step),
                                 .scratch = d->working + d->set->scratch, .shared_bytes = d->set->shared_bytes,
                                 .worker_bytes = d->set->worker_bytes};
    return d->source.backend->prepare(d->source.device, &segment, out, error);
}

/* Experts in slots use the cache's tables, resident experts a table of their own. */
static expert_source experts_of(const st_ready *ready, uint8_t device, const st_op *op)
{
    bool slots = ready->source->stream && op->kind == ST_OP_EXPERTS && device == ST_CARD &&
                 st_stream_covers(ready->source->stream, (uint32_t)op->layer);
    return (expert_source){.share = slots ? CARD_EXPERTS : ALL_EXPERTS};
}

static strata_status prepare_segment(const st_ready *ready, int part, const st_ready_stage *of, st_rows rows,
                                     st_segment **out, strata_error *error)
{
    const st_stage *stage = of->stage;
    st_bound_op *ops = st_alloc_zero(stage->ops.count, sizeof *ops);
    if (!ops) return st_error_memory(error, stage->ops.count * sizeof *ops, "the bound program");
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < stage->ops.count && status == STRATA_OK; i++) {
        const st_op *op = &ready->source->program->ops[stage->ops.first + i];
        weight_source from = {.experts = experts_of(ready, stage->device, op),
                              .buffer = stage->fetched ? st_dense_buffer(ready->dense, of->fetch) : NULL};
        status = bind_op(ready, stage->device, op, from, &ops[i], error);
    }
    if (status == STRATA_OK)
        status = prepare_bound(ready, part, stage->device, ops, stage->ops.count, rows, out, error);
    st_free(ops);
    return status;
}

/* --- misses of the expert cache ----------------------------------------------------------------------------------- */

static st_bound_value sum_at(const st_ready *ready, int which, uint32_t width)
{
    const st_ready_device *card = &ready->devices[ST_CARD];
    return (st_bound_value){.data = card->working + card->set->sums[which], .width = width};
}

/* output on the GPU += the host's sum, or a wave's. */
static strata_status bind_add(const st_ready *ready, const st_op *experts, int which, st_bound_op *out,
                              strata_error *error)
{
    st_op *add = st_arena_alloc(ready->arena, 1, sizeof *add);
    if (!add) return st_error_memory(error, sizeof *add, "the program's stages");
    *add = (st_op){.kind = ST_OP_ADD, .layer = experts->layer, .block = experts->block, .out = experts->out,
                   .out2 = ST_NO_VALUE};
    for (int i = 0; i < ST_OP_INPUTS; i++) add->in[i] = i < 2 ? experts->out : ST_NO_VALUE;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) add->weight[i] = ST_NO_WEIGHT;
    strata_status status = bind_op(ready, ST_CARD, add, (weight_source){0}, out, error);
    out->in[1] = sum_at(ready, which, out->in[1].width);
    return status;
}

static strata_status prepare_wave(const st_ready *ready, int part, const st_op *op, uint32_t wave, st_segment **out,
                                  strata_error *error)
{
    st_bound_op ops[2];
    weight_source fetched = {.experts = {.share = WAVE_EXPERTS, .wave = wave}};
    strata_status status = bind_op(ready, ST_CARD, op, fetched, &ops[0], error);
    ops[0].out = sum_at(ready, 1, ops[0].out.width);
    if (status == STRATA_OK) status = bind_add(ready, op, 1, &ops[1], error);
    return status == STRATA_OK ? prepare_bound(ready, part, ST_CARD, ops, 2, ST_ROWS_ALL, out, error) : status;
}

/* The operation that computes the scores of a layer's router. */
static const st_op *router_of(const st_program *program, uint32_t layer)
{
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *route = &program->ops[i];
        if (route->kind != ST_OP_ROUTE || route->layer != (int32_t)layer) continue;
        for (const st_op *op = route; op-- > program->ops;)
            if (op->out == route->in[0]) return op->kind == ST_OP_MATMUL ? op : NULL;
    }
    return NULL;
}

/* For prefetching: runs the next layer's router matrix on the host, from the mapped file, even if the router is on
 * the GPU. */
static strata_status prepare_ask(const st_ready *ready, int part, const st_op *experts, st_segment **out,
                                 strata_error *error)
{
    const st_stream *stream = ready->source->stream;
    uint32_t next = st_stream_asks(stream, (uint32_t)experts->layer);
    const st_op *router = next == UINT32_MAX ? NULL : router_of(ready->source->program, next);
    if (!router || !st_stream_scores(stream)) return STRATA_OK;
    const st_weight *w = &ready->source->binding->weights[router->weight[0]];
    st_bound_op bound = st_bound_shape(ready->source->program, ready->source->binding, router);
    if (bound.in[0].width != w->ne[0] || bound.weight[0].row_bytes == 0) return STRATA_OK;
    bind_value(ready, ST_HOST, experts->in[0], &bound.in[0]);
    bound.out.data = st_stream_scores(stream);
    bound.weight[0].data = w->tensor->data;
    return prepare_bound(ready, part, ST_HOST, &bound, 1, ST_ROWS_ALL, out, error);
}

static strata_status prepare_split(const st_ready *ready, int part, const st_op *op, st_ready_split *out,
                                   strata_error *error)
{
    st_bound_op bound;
    const st_stream *stream = ready->source->stream;
    uint32_t waves = st_stream_waves(stream, (uint32_t)op->layer);
    weight_source host_share = {.experts = {.share = HOST_EXPERTS}};
    out->waves = st_arena_alloc(ready->arena, waves, sizeof *out->waves);
    if (!out->waves) return st_error_memory(error, waves * sizeof *out->waves, "the program's stages");
    out->wave_count = waves;
    strata_status status = bind_op(ready, ST_HOST, op, host_share, &bound, error);
    if (status == STRATA_OK) status = prepare_bound(ready, part, ST_HOST, &bound, 1, ST_ROWS_ALL, &out->host, error);
    if (status == STRATA_OK) status = bind_add(ready, op, 0, &bound, error);
    if (status == STRATA_OK)
        status = prepare_bound(ready, part, ST_CARD, &bound, 1, ST_ROWS_ALL, &out->add_host, error);
    for (uint32_t i = 0; i < waves && status == STRATA_OK; i++)
        status = prepare_wave(ready, part, op, i, &out->waves[i], error);
    return status == STRATA_OK ? prepare_ask(ready, part, op, &out->ask, error) : status;
}

/* --- candidates --------------------------------------------------------------------------------------------------- */

strata_status st_ready_reduction_new(const st_ready *ready, st_segment **out, strata_error *error)
{
    const st_ready_device *card = &ready->devices[ST_CARD];
    int32_t logits = ready->source->program->main.logits;
    st_op *op = st_arena_alloc(ready->arena, 1, sizeof *op);
    if (!op) return st_error_memory(error, sizeof *op, "the program's stages");
    *op = (st_op){.kind = ST_OP_CANDIDATES, .layer = -1, .block = ST_BLOCK_OUTPUT, .out = ST_NO_VALUE,
                  .out2 = ST_NO_VALUE};
    for (int i = 0; i < ST_OP_INPUTS; i++) op->in[i] = i == 0 ? logits : ST_NO_VALUE;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op->weight[i] = ST_NO_WEIGHT;
    st_bound_op bound;
    strata_status status = bind_op(ready, ST_CARD, op, (weight_source){0}, &bound, error);
    bound.in[1] = (st_bound_value){card->working + card->set->adjustments, sizeof(st_adjustments) / sizeof(float)};
    bound.out = (st_bound_value){card->working + card->set->candidates, sizeof(st_candidates) / sizeof(float)};
    if (status != STRATA_OK) return status;
    return prepare_bound(ready, ST_PART_MAIN, ST_CARD, &bound, 1, ST_ROWS_OUT, out, error);
}

static strata_status prepare_stage(const st_ready *ready, int part, st_rows rows, st_ready_stage *out,
                                   strata_error *error)
{
    const st_run_device *card = &ready->source->devices[ST_CARD];
    const st_stage *stage = out->stage;
    switch (stage->kind) {
    case ST_STAGE_RUN: return prepare_segment(ready, part, out, rows, &out->segment, error);
    case ST_STAGE_MOVE: return stage->awaited ? card->backend->event_new(card->device, &out->end, error) : STRATA_OK;
    case ST_STAGE_SPLIT:
        return prepare_split(ready, part, &ready->source->program->ops[stage->ops.first], &out->split, error);
    case ST_STAGE_WATCH: break;
    }
    return STRATA_OK;
}

/* --- chains ------------------------------------------------------------------------------------------------------- */

enum { ANSWER_LIMIT_US = 120 * 1000 * 1000 };

static st_link_value link_value(const st_ready *ready, int32_t value, uint8_t to, uint8_t from)
{
    st_bound_value there = {0}, here = {0};
    bind_value(ready, to, value, &there);
    bind_value(ready, from, value, &here);
    return (st_link_value){.to = there.data, .from = here.data, .width = ready->source->program->values[value].width};
}

/* Appends the stage's link, or its value to the hand-over before it. */
static void add_link(const st_ready *ready, st_ready_stage *stage, st_link *links, uint32_t *count)
{
    const st_stage *is = stage->stage;
    st_link *last = *count ? &links[*count - 1] : NULL, *next = &links[*count];
    if (is->kind == ST_STAGE_RUN) {
        if (is->device != ST_CARD) return;
        *next = (st_link){.kind = ST_LINK_RUN, .segment = stage->segment};
    } else if (is->kind == ST_STAGE_SPLIT) {
        int32_t out = ready->source->program->ops[is->ops.first].out;
        *next = (st_link){.kind = ST_LINK_ADD, .values = {link_value(ready, out, ST_CARD, ST_HOST)}, .value_count = 1};
    } else {
        st_link_value value = link_value(ready, is->value, is->device, is->from);
        bool given = is->device == ST_HOST;
        if (is->guarded) {
            *next++ = (st_link){.kind = ST_LINK_RECEIVE};
            ++*count;
        }
        if (given && !is->guarded && last && last->kind == ST_LINK_SEND && last->value_count < ST_LINK_VALUES) {
            last->values[last->value_count++] = value;
            stage->link = *count - 1;
            return;
        }
        *next = (st_link){.kind = given ? ST_LINK_SEND : ST_LINK_RECEIVE, .values = {value}, .value_count = 1};
    }
    stage->link = (*count)++;
}

static strata_status prepare_chain(const st_ready *ready, int part, st_ready_range *range, strata_error *error)
{
    const st_ready_device *card = &ready->devices[ST_CARD];
    const st_backend *backend = card->source.backend;
    if (!backend->chain_new) return STRATA_OK;
    size_t most = 2 * (size_t)range->count; /* a guarded one is two */
    st_link *links = st_alloc_zero(most, sizeof *links);
    if (!links) return st_error_memory(error, most * sizeof *links, "the program's stages");
    st_chain_source source = {.links = links, .step = card->step[part], .limit_us = ANSWER_LIMIT_US};
    for (uint32_t i = 0; i < range->count; i++) add_link(ready, &range->stages[i], links, &source.count);
    strata_status status = backend->chain_new(card->source.device, &source, &range->chain, error);
    if (status == STRATA_OK && range->chain) range->chain_rows = backend->chain_rows(range->chain);
    st_free(links);
    return status;
}

strata_status st_ready_range_new(const st_ready *ready, int part, const st_stages *stages, st_rows rows,
                                 st_ready_range *out, strata_error *error)
{
    strata_status status = STRATA_OK;
    uint32_t fetches = 0;
    out->stages = st_arena_alloc(ready->arena, stages->count, sizeof *out->stages);
    if (!out->stages) return st_error_memory(error, stages->count * sizeof *out->stages, "the program's stages");
    out->count = stages->count; /* a stage that is not prepared holds NULL, so that the range can always be freed */
    out->pending = stages->pending;
    for (uint32_t i = 0; i < stages->count; i++) {
        out->stages[i].stage = &stages->stages[i];
        if (stages->stages[i].fetched) out->stages[i].fetch = fetches++;
    }
    for (uint32_t i = 0; i < stages->count && status == STRATA_OK; i++)
        status = prepare_stage(ready, part, rows, &out->stages[i], error);
    return status == STRATA_OK && stages->chained ? prepare_chain(ready, part, out, error) : status;
}

static void free_split(const st_ready_device *devices, st_ready_split *split)
{
    if (split->host) devices[ST_HOST].source.backend->segment_free(split->host);
    if (split->ask) devices[ST_HOST].source.backend->segment_free(split->ask);
    if (split->add_host) devices[ST_CARD].source.backend->segment_free(split->add_host);
    for (uint32_t i = 0; i < split->wave_count; i++)
        if (split->waves[i]) devices[ST_CARD].source.backend->segment_free(split->waves[i]);
}

void st_ready_range_free(const st_ready_device *devices, st_ready_range *range)
{
    if (range->chain) devices[ST_CARD].source.backend->chain_free(range->chain);
    for (uint32_t i = 0; i < range->count; i++) {
        st_ready_stage *s = &range->stages[i];
        if (s->segment) devices[s->stage->device].source.backend->segment_free(s->segment);
        if (s->end) devices[ST_CARD].source.backend->event_free(s->end);
        free_split(devices, &s->split);
    }
    *range = (st_ready_range){0};
}
