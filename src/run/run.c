#include "run/run.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"

enum { ALIGNMENT = 256 };

/* A part of the program made ready for the device. */
typedef struct ready_part {
    st_segment *body, *head;
    st_step *host_step, *step; /* what the host writes, and its copy in device memory */
} ready_part;

struct st_run {
    st_run_source source;
    st_run_options options;
    st_queue *queue;
    st_kv *kv;
    st_arena tables;         /* where the experts are */
    unsigned char *memory;   /* device memory: values, steps, scratch, carry */
    unsigned char *rows_base[2]; /* values by st_rows */
    unsigned char *scratch;
    size_t memory_bytes, shared_bytes, worker_bytes; /* the latter two: scratch for all, and for each worker */
    unsigned char *host;     /* host memory: steps, and logits if the device's cannot be read */
    float *host_logits;      /* NULL: logits are read where they are */
    float *carry;            /* the hidden state of the token before the next batch */
    bool carry_valid;
    uint32_t last_count, last_nextn_rows;
    ready_part main, nextn;
};

/* --- memory ------------------------------------------------------------------------------------------------------------------- */

/* Offsets of the pieces of one allocation; `failed` once something does not fit a size. */
typedef struct block_plan {
    size_t end;
    bool failed;
} block_plan;

static size_t take(block_plan *plan, size_t count, size_t size)
{
    size_t bytes, start, end;
    if (plan->failed || !st_mul_size(count, size, &bytes) || !st_align_size(plan->end, ALIGNMENT, &start) ||
        !st_add_size(start, bytes, &end)) {
        plan->failed = true;
        return 0;
    }
    plan->end = end;
    return start;
}

static uint32_t rows_max(const st_run *run, st_rows rows)
{
    return rows == ST_ROWS_ALL ? run->options.batch : run->options.out_rows;
}

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* One operation runs at a time: the scratch is what the hungriest takes. */
static void size_scratch(st_run *run)
{
    const st_program *program = run->source.program;
    for (uint32_t i = 0; i < program->op_count; i++) {
        st_op_cost cost = st_op_estimate(program, run->source.binding, &program->ops[i], run->options.batch,
                                         run->source.layout->options.context);
        if (round_up(cost.shared_bytes) > run->shared_bytes) run->shared_bytes = round_up(cost.shared_bytes);
        if (round_up(cost.worker_bytes) > run->worker_bytes) run->worker_bytes = round_up(cost.worker_bytes);
    }
}

/* Where the pieces lie in the run's two blocks. */
typedef struct places {
    size_t all, out, steps, scratch, carry, end;   /* of device memory */
    size_t host_steps, host_logits, host_end;      /* of host memory */
} places;

static bool plan_places(const st_run *run, places *out)
{
    const st_run_source *source = &run->source;
    const st_program *program = source->program;
    st_device_info info;
    source->backend->info(source->device, &info);
    size_t step_bytes = st_step_bytes(run->options.batch);
    block_plan plan = {0}, host_plan = {0};
    out->all = take(&plan, program->row_bytes[ST_ROWS_ALL], run->options.batch);
    out->out = take(&plan, program->row_bytes[ST_ROWS_OUT], run->options.out_rows);
    out->steps = take(&plan, 2, step_bytes + ALIGNMENT);
    out->scratch = take(&plan, 1, run->shared_bytes);
    take(&plan, info.workers, run->worker_bytes); /* right behind: both are multiples of the alignment */
    out->carry = take(&plan, source->desc->embedding, sizeof(float));
    out->host_steps = take(&host_plan, 2, step_bytes + ALIGNMENT);
    out->host_logits =
        take(&host_plan, info.reads_host_memory ? 0 : run->options.out_rows, source->desc->vocab * sizeof(float));
    out->end = plan.end;
    out->host_end = host_plan.end;
    return !plan.failed && !host_plan.failed;
}

static strata_status allocate(st_run *run, strata_error *error)
{
    const st_run_source *source = &run->source;
    st_device_info info;
    source->backend->info(source->device, &info);
    size_scratch(run);
    places at = {0};
    if (!plan_places(run, &at))
        return st_error_set(error, STRATA_MEMORY, "use a smaller batch", "the working set of %u rows does not fit a size",
                            run->options.batch);

    void *memory, *host;
    bool pinned;
    strata_status status = source->backend->alloc(source->device, at.end, &memory, error);
    if (status != STRATA_OK) return status;
    run->memory = memory;
    run->memory_bytes = at.end;
    status = source->backend->host_alloc(source->device, at.host_end, &host, &pinned, error);
    if (status != STRATA_OK) return status;
    run->host = host;

    size_t step_stride = round_up(st_step_bytes(run->options.batch));
    run->rows_base[ST_ROWS_ALL] = run->memory + at.all;
    run->rows_base[ST_ROWS_OUT] = run->memory + at.out;
    run->main.step = (st_step *)(void *)(run->memory + at.steps);
    run->nextn.step = (st_step *)(void *)(run->memory + at.steps + step_stride);
    run->scratch = run->memory + at.scratch;
    run->carry = (float *)(void *)(run->memory + at.carry);
    run->main.host_step = (st_step *)(void *)(run->host + at.host_steps);
    run->nextn.host_step = (st_step *)(void *)(run->host + at.host_steps + step_stride);
    run->host_logits = info.reads_host_memory ? NULL : (float *)(void *)(run->host + at.host_logits);
    return STRATA_OK;
}

size_t st_run_price(const st_run_source *source, const st_run_options *options)
{
    st_run run = {.source = *source, .options = *options};
    places at = {0};
    size_scratch(&run);
    return plan_places(&run, &at) ? at.end : SIZE_MAX;
}

/* --- binding addresses ------------------------------------------------------------------------------------------------------------ */

static st_bound_value bind_value(const st_run *run, int32_t value)
{
    if (value == ST_NO_VALUE) return (st_bound_value){0};
    const st_value *v = &run->source.program->values[value];
    return (st_bound_value){.data = run->rows_base[v->rows] + v->offset_bytes * rows_max(run, v->rows), .width = v->width};
}

/* Where each expert is: pieces of one tensor, or tensors of their own. */
static const void *const *expert_table(st_run *run, const st_weight *w, size_t row_bytes)
{
    const void **table = st_arena_alloc(&run->tables, w->ne[2], sizeof *table);
    if (!table) return NULL;
    for (uint64_t i = 0; i < w->ne[2]; i++)
        table[i] = w->parts ? w->parts[i]->data : w->tensor->data + i * w->ne[1] * row_bytes;
    return table;
}

static strata_status bind_weight(st_run *run, int32_t index, bool of_experts, st_bound_weight *out, strata_error *error)
{
    if (index == ST_NO_WEIGHT) return STRATA_OK;
    const st_weight *w = &run->source.binding->weights[index];
    *out = (st_bound_weight){.data = w->tensor->data, .info = w->tensor->info, .type = w->tensor->type};
    memcpy(out->ne, w->ne, sizeof out->ne);
    if (!st_type_row_bytes(out->info, w->ne[0], &out->row_bytes))
        return st_error_set(error, STRATA_FORMAT, NULL, "tensor %.*s: rows are no whole number of blocks",
                            ST_STR_ARG(w->tensor->name));
    if (of_experts) {
        out->parts = expert_table(run, w, out->row_bytes);
        if (!out->parts) return st_error_memory(error, w->ne[2] * sizeof(void *), "the table of experts");
    }
    return STRATA_OK;
}

static strata_status bind_op(st_run *run, const st_op *op, st_bound_op *out, strata_error *error)
{
    const st_run_source *source = &run->source;
    *out = (st_bound_op){.op = op, .out = bind_value(run, op->out), .out2 = bind_value(run, op->out2)};
    for (int i = 0; i < ST_OP_INPUTS; i++) out->in[i] = bind_value(run, op->in[i]);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        strata_status status = bind_weight(run, op->weight[i], op->kind == ST_OP_EXPERTS, &out->weight[i], error);
        if (status != STRATA_OK) return status;
        if (out->weight[i].data && !source->backend->supports(source->device, op->kind, out->weight[i].type))
            return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s with %s weights: the device %s cannot run it",
                                st_op_name(op->kind), out->weight[i].info->name, source->backend->name);
    }
    if (op->kind == ST_OP_KV_STORE) out->kv = st_kv_view_of(run->kv, op->p.kv.kv_layer);
    if (op->kind == ST_OP_ATTENTION) out->kv = st_kv_view_of(run->kv, op->p.attention.kv_layer);
    if (op->kind == ST_OP_CONV || op->kind == ST_OP_DELTANET) out->state = st_kv_state_of(run->kv, (uint32_t)op->layer);
    return STRATA_OK;
}

static strata_status prepare_range(st_run *run, st_op_range range, st_rows rows, st_step *step, st_segment **out,
                                   strata_error *error)
{
    const st_run_source *source = &run->source;
    st_bound_op *ops = st_alloc_zero(range.count, sizeof *ops);
    if (!ops) return st_error_memory(error, range.count * sizeof *ops, "the bound program");
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < range.count && status == STRATA_OK; i++)
        status = bind_op(run, &source->program->ops[range.first + i], &ops[i], error);
    st_segment_source segment = {.ops = ops, .count = range.count, .rows = rows, .step = step, .scratch = run->scratch,
                                 .shared_bytes = run->shared_bytes, .worker_bytes = run->worker_bytes};
    if (status == STRATA_OK) status = source->backend->prepare(source->device, &segment, out, error);
    st_free(ops);
    return status;
}

static strata_status prepare_part(st_run *run, const st_part *part, ready_part *ready, strata_error *error)
{
    ready->host_step->batch_max = run->options.batch;
    strata_status status = prepare_range(run, part->body, ST_ROWS_ALL, ready->step, &ready->body, error);
    if (status != STRATA_OK) return status;
    return prepare_range(run, part->head, ST_ROWS_OUT, ready->step, &ready->head, error);
}

/* --- life --------------------------------------------------------------------------------------------------------------------------- */

static strata_status set_up(st_run *run, strata_error *error)
{
    const st_run_source *source = &run->source;
    strata_status status = source->backend->queue_new(source->device, ST_QUEUE_COMPUTE, &run->queue, error);
    if (status == STRATA_OK) status = allocate(run, error);
    if (status == STRATA_OK) status = st_kv_new(source->layout, source->backend, source->device, run->queue, &run->kv, error);
    if (status == STRATA_OK) status = prepare_part(run, &source->program->main, &run->main, error);
    if (status == STRATA_OK && run->options.nextn) status = prepare_part(run, &source->program->nextn, &run->nextn, error);
    return status;
}

strata_status st_run_new(const st_run_source *source, const st_run_options *options, st_run **out, strata_error *error)
{
    if (options->batch == 0 || options->out_rows == 0 || options->batch > source->layout->options.batch)
        return st_error_set(error, STRATA_USAGE, NULL, "batch: expected 1 to %u, found %u", source->layout->options.batch,
                            options->batch);
    if (options->nextn && source->program->nextn.body.count == 0)
        return st_error_set(error, STRATA_USAGE, NULL, "the model has no NextN block");
    st_run *run = st_alloc_zero(1, sizeof *run);
    if (!run) return st_error_memory(error, sizeof *run, "the executor");
    run->source = *source;
    run->options = *options;
    strata_status status = set_up(run, error);
    if (status != STRATA_OK) {
        st_run_free(run);
        return status;
    }
    *out = run;
    return STRATA_OK;
}

static void free_part(const st_run *run, ready_part *part)
{
    if (part->body) run->source.backend->segment_free(part->body);
    if (part->head) run->source.backend->segment_free(part->head);
}

void st_run_free(st_run *run)
{
    if (!run) return;
    const st_run_source *source = &run->source;
    free_part(run, &run->main);
    free_part(run, &run->nextn);
    st_kv_free(run->kv);
    if (run->host) source->backend->host_free(source->device, run->host);
    if (run->memory) source->backend->free(source->device, run->memory);
    if (run->queue) source->backend->queue_free(run->queue);
    st_arena_free(&run->tables);
    st_free(run);
}

st_kv *st_run_kv(st_run *run)
{
    return run->kv;
}

size_t st_run_scratch_bytes(const st_run *run)
{
    return run->memory_bytes;
}

/* --- steps --------------------------------------------------------------------------------------------------------------------------- */

static strata_status send_step(st_run *run, ready_part *part, strata_error *error)
{
    return run->source.backend->copy(run->queue, ST_COPY_UP, part->step, part->host_step,
                                     st_step_bytes(run->options.batch), error);
}

static strata_status run_body(st_run *run, ready_part *part, const strata_token *ids, uint32_t count, uint32_t position,
                              strata_error *error)
{
    part->host_step->count = count;
    part->host_step->position = position;
    part->host_step->out_count = 0;
    memcpy(st_step_ids(part->host_step), ids, count * sizeof *ids);
    strata_status status = send_step(run, part, error);
    if (status != STRATA_OK) return status;
    return run->source.backend->launch(part->body, run->queue, error);
}

/* The NextN block pairs each token with the hidden state before it: the carried one, then this batch's but the last. */
static strata_status run_nextn(st_run *run, const strata_token *ids, uint32_t count, uint32_t position,
                               strata_error *error)
{
    const st_backend *backend = run->source.backend;
    const st_program *program = run->source.program;
    size_t row_bytes = run->source.desc->embedding * sizeof(float);
    unsigned char *input = bind_value(run, program->nextn.input).data;
    const unsigned char *hidden = bind_value(run, program->main.hidden).data;
    uint32_t carried = run->carry_valid ? 1 : 0;
    strata_status status = STRATA_OK;
    if (carried) status = backend->copy(run->queue, ST_COPY_WITHIN, input, run->carry, row_bytes, error);
    if (status == STRATA_OK)
        status = backend->copy(run->queue, ST_COPY_WITHIN, input + carried * row_bytes, hidden, (count - 1) * row_bytes, error);
    if (status == STRATA_OK)
        status = backend->copy(run->queue, ST_COPY_WITHIN, run->carry, hidden + (count - 1) * row_bytes, row_bytes, error);
    if (status != STRATA_OK) return status;
    uint32_t rows = count - 1 + carried, skipped = 1 - carried;
    run->carry_valid = true;
    run->last_nextn_rows = rows;
    return rows ? run_body(run, &run->nextn, ids + skipped, rows, position - carried, error) : STRATA_OK;
}

strata_status st_run_tokens(st_run *run, const strata_token *ids, uint32_t count, strata_error *error)
{
    uint32_t position = st_kv_position(run->kv), context = run->source.layout->options.context;
    if (count == 0 || count > run->options.batch || count > context - position)
        return st_error_set(error, STRATA_LIMIT, NULL, "%u tokens at position %u: expected 1 to %u in a context of %u",
                            count, position, run->options.batch, context);
    strata_status status = run_body(run, &run->main, ids, count, position, error);
    if (status == STRATA_OK && run->options.nextn) status = run_nextn(run, ids, count, position, error);
    if (status != STRATA_OK) return status;
    st_kv_advance(run->kv, count);
    run->last_count = count;
    return STRATA_OK;
}

static strata_status run_head(st_run *run, ready_part *part, int32_t logits, uint32_t row_limit, const uint32_t *rows,
                              uint32_t count, const float **out, strata_error *error)
{
    const st_backend *backend = run->source.backend;
    if (count == 0 || count > run->options.out_rows)
        return st_error_set(error, STRATA_LIMIT, NULL, "rows of logits: expected 1 to %u, found %u", run->options.out_rows,
                            count);
    for (uint32_t i = 0; i < count; i++) {
        if (rows[i] >= row_limit)
            return st_error_set(error, STRATA_LIMIT, NULL, "logits of row %u: the last batch has %u", rows[i], row_limit);
        st_step_out_rows(part->host_step)[i] = (int32_t)rows[i];
    }
    part->host_step->out_count = count;
    strata_status status = send_step(run, part, error);
    if (status == STRATA_OK) status = backend->launch(part->head, run->queue, error);
    if (status != STRATA_OK) return status;
    st_bound_value value = bind_value(run, logits);
    if (run->host_logits) {
        status = backend->copy(run->queue, ST_COPY_DOWN, run->host_logits, value.data,
                               (size_t)count * value.width * sizeof(float), error);
        if (status != STRATA_OK) return status;
    }
    *out = run->host_logits ? run->host_logits : value.data;
    return STRATA_OK;
}

strata_status st_run_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out, strata_error *error)
{
    return run_head(run, &run->main, run->source.program->main.logits, run->last_count, rows, count, out, error);
}

uint32_t st_run_nextn_rows(const st_run *run)
{
    return run->last_nextn_rows;
}

strata_status st_run_nextn_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out,
                                  strata_error *error)
{
    return run_head(run, &run->nextn, run->source.program->nextn.logits, run->last_nextn_rows, rows, count, out, error);
}

strata_status st_run_rewind(st_run *run, uint32_t position, uint32_t *reached, strata_error *error)
{
    if (position > 0 && position >= st_kv_position(run->kv)) {
        *reached = st_kv_position(run->kv);
        return STRATA_OK;
    }
    /* With the NextN block the token before the point is run again: its hidden state is what the next row starts from. */
    if (run->options.nextn && position > 0) position--;
    strata_status status = st_kv_rewind(run->kv, position, reached, error);
    if (status != STRATA_OK) return status;
    run->carry_valid = false;
    run->last_count = run->last_nextn_rows = 0;
    return STRATA_OK;
}
