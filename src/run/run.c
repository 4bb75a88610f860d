#include "run/stages.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

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
    const st_run_device *host = &run->source.devices[ST_HOST];
    return status == STRATA_OK ? host->backend->event_new(host->device, &run->host_now, error) : status;
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
    st_ready_part *part = &run->parts[which];
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
    if (run->host_now) run->source.devices[ST_HOST].backend->event_free(run->host_now);
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

/* Waits until the GPU's queue is empty, also after a failure. */
static strata_status drain(st_run *run, strata_error *error)
{
    run->pending = NULL;
    run->step_sending = run->computing = false;
    if (!has_card(run)) return STRATA_OK;
    strata_status status = st_stages_record(run, run->crossed, error);
    return status == STRATA_OK ? st_stages_wait(run, run->crossed, error) : status;
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
    return st_stages_record(run, run->step_sent, error);
}

/* Waits until the GPU has the last step block, so that it may be written. */
static strata_status step_may_change(st_run *run, strata_error *error)
{
    if (!run->step_sending) return STRATA_OK;
    run->step_sending = false;
    if (run->source.devices[ST_CARD].backend->event_done(run->step_sent)) return STRATA_OK;
    return st_stages_wait(run, run->step_sent, error);
}

/* Runs the body of a part for the step block that the caller has written. */
static strata_status run_body(st_run *run, int part, strata_error *error)
{
    st_step *step = run->parts[part].master;
    strata_status status = send_step(run, part, 0, step->bytes, error);
    if (part == ST_PART_MAIN) run->streamed = run->dense && step->count >= run->source.plan->dense.rows;
    if (status == STRATA_OK && part == ST_PART_MAIN && run->streamed) status = st_dense_begin(run->dense, error);
    return status == STRATA_OK ? st_stages_run(run, body_of(run, part), step, step->count, error) : status;
}

static strata_status may_write_step(st_run *run, strata_error *error)
{
    strata_status status = step_may_change(run, error);
    return status == STRATA_OK ? st_stages_settle(run, error) : status;
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

/* Writes the output rows that a step mostly has: the last row of each piece. If the head is asked for other rows, they
 * are sent then (send_out_rows). */
static void expect_out_rows(const st_run *run, const st_run_piece *pieces, uint32_t count, st_step *step)
{
    if (count > run->source.plan->step.out_rows) return;
    for (uint32_t i = 0, rows = 0; i < count; i++) {
        rows += pieces[i].count;
        st_step_out_rows(step)[i] = rows - 1;
    }
    step->out_count = count;
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
    if (!nextn) expect_out_rows(run, pieces, count, step);
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
    unsigned char *input = st_stages_value(run, to, program->nextn.input) + *to_row * row_bytes;
    unsigned char *carry = st_kv_carry(run->kv, to, st_conversation_slot(piece->conversation));
    const unsigned char *hidden = st_stages_value(run, from, program->main.hidden) + row * row_bytes;
    size_t last = (piece->count - 1) * row_bytes; /* the offset of the last hidden row */
    uint32_t carried = st_conversation_position(piece->conversation) > 0;
    strata_status status = carried ? st_stages_copy(run, to, input, to, carry, row_bytes, error) : STRATA_OK;
    if (status == STRATA_OK) status = st_stages_copy(run, to, input + carried * row_bytes, from, hidden, last, error);
    if (status == STRATA_OK) status = st_stages_copy(run, to, carry, from, hidden + last, row_bytes, error);
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
        status = st_stages_record(run, run->crossed, error);
    if (status != STRATA_OK) return status;
    run->last_nextn_rows = rows;
    if (rows == 0) return STRATA_OK;
    status = st_stages_settle(run, error);
    if (status != STRATA_OK) return status;
    write_step(run, ST_PART_NEXTN, pieces, count);
    return run_body(run, ST_PART_NEXTN, error);
}

static strata_status end_batch(st_run *run, strata_error *error)
{
    run->computing = true;
    return st_stages_record(run, run->batch_end, error);
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
    if (step->out_count == count && memcmp(st_step_out_rows(step), rows, count * sizeof *rows) == 0) return STRATA_OK;
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
    if (status == STRATA_OK) status = st_stages_run(run, head_of(run, part), run->parts[part].master, count, error);
    return status == STRATA_OK ? STRATA_OK : give_up(run, status);
}

/* Copies what the GPU has computed, and waits for it. */
static strata_status bring(st_run *run, void *to, const void *from, size_t bytes, strata_error *error)
{
    strata_status status = st_stages_copy(run, ST_HOST, to, ST_CARD, from, bytes, error);
    if (status == STRATA_OK) status = st_stages_record(run, run->crossed, error);
    if (status == STRATA_OK) status = st_stages_wait(run, run->crossed, error);
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
    unsigned char *value = st_stages_value(run, device, logits);
    size_t bytes = (size_t)count * run->source.program->values[logits].width * sizeof(float);
    if (device == ST_CARD) status = bring(run, run->host_logits, value, bytes, error);
    *out = device == ST_CARD ? run->host_logits : (const float *)(const void *)value;
    return end_head(run, status);
}

/* Copies the lists up to the last adjustment, unless all are empty and the GPU has them so already. */
static strata_status send_adjustments(st_run *run, uint32_t count, strata_error *error)
{
    const st_ready_device *card = &run->devices[ST_CARD];
    const st_adjustments *last = &run->adjustments[count - 1];
    bool empty = true;
    for (uint32_t i = 0; i < count; i++) empty = empty && run->adjustments[i].count == 0;
    if (empty && count <= run->empty_lists) return STRATA_OK;
    size_t bytes = (size_t)((const unsigned char *)&last->items[last->count] - (const unsigned char *)run->adjustments);
    run->empty_lists = 0;
    strata_status status = st_stages_copy(run, ST_CARD, card->working + card->set->adjustments, ST_HOST,
                                          run->adjustments, bytes, error);
    if (status == STRATA_OK && empty) run->empty_lists = count;
    return status;
}

strata_status st_run_candidates(st_run *run, const uint32_t *rows, uint32_t count, const st_candidates **out,
                                strata_error *error)
{
    const st_ready_device *card = &run->devices[ST_CARD];
    strata_status status = begin_head(run, ST_PART_MAIN, run->last_count, rows, count, error);
    if (status != STRATA_OK) return status;
    status = send_adjustments(run, count, error);
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
