/* Values, weights and caches get their addresses; runs of operations become the devices' segments. */
#include "run/ready.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

unsigned char *st_ready_value(const st_ready_device *device, const st_program *program, const st_plan *plan, int32_t value)
{
    const st_value *v = &program->values[value];
    uint32_t rows = v->rows == ST_ROWS_ALL ? plan->batch : plan->out_rows;
    return device->working + device->set->values[v->rows] + v->offset_bytes * rows;
}

static st_bound_value bind_value(const st_ready *ready, uint8_t device, int32_t value)
{
    if (value == ST_NO_VALUE) return (st_bound_value){0};
    const st_run_source *source = ready->source;
    return (st_bound_value){.data = st_ready_value(&ready->devices[device], source->program, source->plan, value),
                            .width = source->program->values[value].width};
}

/* Where each expert is: pieces of one tensor, or on the host tensors of their own. */
static const void *const *expert_table(const st_ready *ready, uint8_t device, const st_weight *w, const unsigned char *data)
{
    const void **table = st_arena_alloc(ready->arena, w->ne[2], sizeof *table);
    if (!table) return NULL;
    for (uint64_t i = 0; i < w->ne[2]; i++)
        table[i] = w->parts && device == ST_HOST ? w->parts[i]->data : data + i * (w->bytes / w->ne[2]);
    return table;
}

static strata_status bind_weight(const st_ready *ready, uint8_t device, int32_t index, bool of_experts, st_bound_weight *out,
                                 strata_error *error)
{
    if (index == ST_NO_WEIGHT) return STRATA_OK;
    const st_weight *w = &ready->source->binding->weights[index];
    const unsigned char *data = ready->source->devices[device].weights[index];
    if (!data)
        return st_error_set(error, STRATA_RUNTIME, NULL, "tensor %.*s is not on the device that reads it",
                            ST_STR_ARG(w->tensor->name));
    *out = (st_bound_weight){.data = data, .info = w->tensor->info, .type = w->tensor->type};
    memcpy(out->ne, w->ne, sizeof out->ne);
    if (!st_type_row_bytes(out->info, w->ne[0], &out->row_bytes))
        return st_error_set(error, STRATA_FORMAT, NULL, "tensor %.*s: rows are no whole number of blocks",
                            ST_STR_ARG(w->tensor->name));
    if (of_experts) {
        out->parts = expert_table(ready, device, w, data);
        if (!out->parts) return st_error_memory(error, w->ne[2] * sizeof(void *), "the table of experts");
    }
    return STRATA_OK;
}

static strata_status bind_op(const st_ready *ready, uint8_t device, const st_op *op, st_bound_op *out, strata_error *error)
{
    const st_run_device *source = &ready->source->devices[device];
    *out = (st_bound_op){.op = op, .out = bind_value(ready, device, op->out), .out2 = bind_value(ready, device, op->out2)};
    for (int i = 0; i < ST_OP_INPUTS; i++) out->in[i] = bind_value(ready, device, op->in[i]);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        strata_status status = bind_weight(ready, device, op->weight[i], op->kind == ST_OP_EXPERTS, &out->weight[i], error);
        if (status != STRATA_OK) return status;
        if (out->weight[i].data && !source->backend->supports(source->device, op->kind, out->weight[i].type))
            return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s with %s weights: the device %s cannot run it",
                                st_op_name(op->kind), out->weight[i].info->name, source->backend->name);
    }
    if (op->kind == ST_OP_KV_STORE) out->kv = st_kv_view_of(ready->kv, op->p.kv.kv_layer);
    if (op->kind == ST_OP_ATTENTION) out->kv = st_kv_view_of(ready->kv, op->p.attention.kv_layer);
    if (op->kind == ST_OP_CONV || op->kind == ST_OP_DELTANET) out->state = st_kv_state_of(ready->kv, (uint32_t)op->layer);
    return STRATA_OK;
}

static strata_status prepare_segment(const st_ready *ready, int part, const st_stage *stage, st_rows rows, st_segment **out,
                                     strata_error *error)
{
    const st_ready_device *device = &ready->devices[stage->device];
    st_bound_op *ops = st_alloc_zero(stage->ops.count, sizeof *ops);
    if (!ops) return st_error_memory(error, stage->ops.count * sizeof *ops, "the bound program");
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < stage->ops.count && status == STRATA_OK; i++)
        status = bind_op(ready, stage->device, &ready->source->program->ops[stage->ops.first + i], &ops[i], error);
    st_segment_source segment = {.ops = ops, .count = stage->ops.count, .rows = rows, .step = device->step[part],
                                 .scratch = device->working + device->set->scratch,
                                 .shared_bytes = device->set->shared_bytes, .worker_bytes = device->set->worker_bytes};
    if (status == STRATA_OK) status = device->source.backend->prepare(device->source.device, &segment, out, error);
    st_free(ops);
    return status;
}

static strata_status prepare_stage(const st_ready *ready, int part, st_rows rows, bool marked, st_ready_stage *out,
                                   strata_error *error)
{
    const st_run_device *card = &ready->source->devices[ST_CARD];
    if (out->stage.kind == ST_STAGE_RUN) return prepare_segment(ready, part, &out->stage, rows, &out->segment, error);
    return marked ? card->backend->event_new(card->device, &out->end, error) : STRATA_OK;
}

strata_status st_ready_range_new(const st_ready *ready, int part, st_op_range ops, st_rows rows, st_ready_range *out,
                                 strata_error *error)
{
    const st_run_source *source = ready->source;
    st_stages stages;
    strata_status status = st_schedule_build(source->program, source->plan->op_device, ops, ready->valid, ready->arena,
                                             &stages, error);
    if (status != STRATA_OK) return status;
    out->stages = st_arena_alloc(ready->arena, stages.count, sizeof *out->stages);
    if (!out->stages) return st_error_memory(error, stages.count * sizeof *out->stages, "the program's stages");
    out->count = stages.count; /* those without a segment yet hold NULL: whoever frees them may come early */
    for (uint32_t i = 0; i < stages.count; i++) out->stages[i] = (st_ready_stage){.stage = stages.stages[i]};
    out->pending = stages.pending;
    for (uint32_t i = 0; i < stages.count && status == STRATA_OK; i++) {
        bool marked = stages.stages[i].awaited || stages.pending == (int32_t)i;
        status = prepare_stage(ready, part, rows, marked, &out->stages[i], error);
    }
    return status;
}

void st_ready_range_free(const st_ready_device *devices, st_ready_range *range)
{
    for (uint32_t i = 0; i < range->count; i++) {
        st_ready_stage *s = &range->stages[i];
        if (s->segment) devices[s->stage.device].source.backend->segment_free(s->segment);
        if (s->end) devices[ST_CARD].source.backend->event_free(s->end);
    }
    *range = (st_ready_range){0};
}
