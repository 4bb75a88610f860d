#include "moe/recorded.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/check.h"
#include "base/error.h"

static const char other_model[] = "a routing replays on the model that it was recorded of";

/* The tokens of a turn follow one another from position 0 on. */
typedef struct turn {
    size_t first; /* row */
    uint32_t tokens, prompt;
} turn;

struct st_recorded {
    st_arena arena;
    turn *turns;
    uint32_t turn_count;
    uint32_t words;  /* of a row */
    uint32_t *rows;  /* [tokens of all turns, words] */
};

/* What is being read. */
typedef struct reader {
    const st_trace *trace;
    const char *where;
    const st_op **routers; /* [layers]: NULL where a layer has none */
    uint32_t main_layers;  /* before a NextN block, whose router chooses */
    uint32_t layers, router_count;
    st_recorded *out;
    strata_error *error;
} reader;

/* --- the shape ---------------------------------------------------------------------------------------------------- */

static strata_status find_routers(reader *r, const st_desc *desc, const st_program *program)
{
    r->main_layers = desc->layer_count;
    r->layers = desc->layer_count + desc->nextn_count;
    r->routers = st_arena_alloc(&r->out->arena, r->layers, sizeof *r->routers);
    if (!r->routers) return st_error_memory(r->error, r->layers * sizeof *r->routers, "the recorded routing");
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        if (op->kind != ST_OP_ROUTE || !op->p.route.recorded) continue;
        r->routers[op->layer] = op;
        r->router_count++;
    }
    if (r->router_count) return STRATA_OK;
    return st_error_set(r->error, STRATA_USAGE, NULL, "%s: the model has no routed experts to replace", r->where);
}

/* A trace that strata has written counts the layer of a NextN block too. */
static strata_status check_shape(const reader *r)
{
    const st_trace_shape *shape = &r->trace->shape;
    uint32_t experts = 0;
    for (uint32_t i = 0; i < r->layers; i++)
        if (r->routers[i] && r->routers[i]->p.route.experts > experts) experts = r->routers[i]->p.route.experts;
    if (shape->layers != r->main_layers && shape->layers != r->layers)
        return st_error_set(r->error, STRATA_INPUT, other_model, "%s: expected %" PRIu32 " layers, found %" PRIu32,
                            r->where, r->main_layers, shape->layers);
    if (shape->experts != experts)
        return st_error_set(r->error, STRATA_INPUT, other_model,
                            "%s: expected %" PRIu32 " experts of a layer, found %" PRIu32, r->where, experts,
                            shape->experts);
    return STRATA_OK;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static bool begins_token(const st_trace *trace, size_t event)
{
    const st_trace_event *e = &trace->events[event];
    return event == 0 || e[-1].turn != e->turn || e[-1].step != e->step;
}

static strata_status check_event(const reader *r, const st_trace_event *e)
{
    const st_op *router = e->layer < r->layers ? r->routers[e->layer] : NULL;
    if (!router)
        return st_error_set(r->error, STRATA_INPUT, other_model,
                            "%s: turn %" PRIu32 ", step %" PRIu32 ": expected a layer with routed experts, found layer "
                            "%" PRIu32, r->where, e->turn, e->step, e->layer);
    if (e->count != router->p.route.used)
        return st_error_set(r->error, STRATA_INPUT, "is the file whole?",
                            "%s: turn %" PRIu32 ", step %" PRIu32 ", layer %" PRIu32 ": expected %" PRIu32
                            " experts, found %" PRIu32, r->where, e->turn, e->step, e->layer, router->p.route.used,
                            e->count);
    for (size_t i = e->first; i < e->first + e->count; i++)
        if (r->trace->experts[i] >= router->p.route.experts)
            return st_error_set(r->error, STRATA_INPUT, other_model,
                                "%s: turn %" PRIu32 ", step %" PRIu32 ", layer %" PRIu32
                                ": expected an expert below %" PRIu32 ", found %" PRIu32, r->where, e->turn, e->step,
                                e->layer, router->p.route.experts, r->trace->experts[i]);
    return STRATA_OK;
}

static void write_event(const reader *r, const st_trace_event *e, uint32_t *row)
{
    uint32_t *choice = row + r->routers[e->layer]->p.route.choices_at;
    memcpy(choice, r->trace->experts + e->first, e->count * sizeof *choice);
    memcpy(choice + e->count, r->trace->weights + e->first, e->count * sizeof *choice);
}

/* The events of a token fill its row. `*event` is the token's first, and then the next token's. */
static strata_status read_token(const reader *r, size_t *event, uint32_t *row)
{
    const st_trace *trace = r->trace;
    const st_trace_event *first = &trace->events[*event];
    uint32_t found = 0;
    memset(row, 0xFF, r->out->words * sizeof *row);
    do {
        const st_trace_event *e = &trace->events[*event];
        (*event)++;
        if (e->layer >= r->main_layers && e->layer < r->layers) continue; /* a NextN block's */
        strata_status status = check_event(r, e);
        if (status != STRATA_OK) return status;
        write_event(r, e, row);
        found++;
    } while (*event < trace->event_count && !begins_token(trace, *event));
    if (!first->decode || found == r->router_count) return STRATA_OK;
    return st_error_set(r->error, STRATA_INPUT, "is the file whole?",
                        "%s: turn %" PRIu32 ", step %" PRIu32 ": expected the experts of %" PRIu32
                        " layers, found %" PRIu32, r->where, first->turn, first->step, r->router_count, found);
}

static strata_status read_turn(const reader *r, size_t *event, size_t *row, turn *out)
{
    const st_trace *trace = r->trace;
    uint32_t number = trace->events[*event].turn;
    *out = (turn){.first = *row};
    while (*event < trace->event_count && trace->events[*event].turn == number) {
        const st_trace_event *e = &trace->events[*event];
        if (e->step != out->tokens)
            return st_error_set(r->error, STRATA_INPUT, "is the file whole?",
                                "%s: turn %" PRIu32 ": expected step %" PRIu32 ", found %" PRIu32, r->where, number,
                                out->tokens, e->step);
        if (!e->decode && out->prompt == out->tokens) out->prompt++;
        strata_status status = read_token(r, event, r->out->rows + *row * r->out->words);
        if (status != STRATA_OK) return status;
        out->tokens++;
        (*row)++;
    }
    return STRATA_OK;
}

static strata_status read_rows(const reader *r)
{
    const st_trace *trace = r->trace;
    st_recorded *out = r->out;
    size_t tokens = 0, turns = 0, words, bytes = SIZE_MAX, row = 0;
    for (size_t i = 0; i < trace->event_count; i++) {
        tokens += begins_token(trace, i);
        turns += i == 0 || trace->events[i - 1].turn != trace->events[i].turn;
    }
    bool counted = st_mul_size(tokens, out->words, &words) && st_mul_size(words, sizeof *out->rows, &bytes);
    out->turns = st_arena_alloc(&out->arena, turns, sizeof *out->turns);
    out->rows = counted ? st_alloc(bytes) : NULL;
    if (!out->turns || !out->rows) return st_error_memory(r->error, bytes, "the recorded routing");
    strata_status status = STRATA_OK;
    for (size_t event = 0; event < trace->event_count && status == STRATA_OK; out->turn_count++)
        status = read_turn(r, &event, &row, &out->turns[out->turn_count]);
    return status;
}

strata_status st_recorded_new(const st_trace *trace, const char *where, const st_desc *desc, const st_program *program,
                              st_recorded **out, strata_error *error)
{
    st_recorded *recorded = st_alloc_zero(1, sizeof *recorded);
    if (!recorded) return st_error_memory(error, sizeof *recorded, "the recorded routing");
    recorded->words = program->choice_words;
    reader r = {.trace = trace, .where = where, .out = recorded, .error = error};
    strata_status status = find_routers(&r, desc, program);
    if (status == STRATA_OK) status = check_shape(&r);
    if (status == STRATA_OK) status = read_rows(&r);
    if (status == STRATA_OK) *out = recorded;
    else st_recorded_free(recorded);
    return status;
}

void st_recorded_free(st_recorded *recorded)
{
    if (!recorded) return;
    st_free(recorded->rows);
    st_arena_free(&recorded->arena);
    st_free(recorded);
}

uint32_t st_recorded_turns(const st_recorded *recorded)
{
    return recorded->turn_count;
}

uint32_t st_recorded_tokens(const st_recorded *recorded, uint32_t index)
{
    return recorded->turns[index].tokens;
}

uint32_t st_recorded_prompt(const st_recorded *recorded, uint32_t index)
{
    return recorded->turns[index].prompt;
}

strata_status st_recorded_row(const st_recorded *recorded, uint32_t conversation, uint32_t position,
                              const uint32_t **out, strata_error *error)
{
    const turn *t = &recorded->turns[conversation % recorded->turn_count];
    if (position >= t->tokens)
        return st_error_set(error, STRATA_LIMIT, "use fewer tokens, or a longer recording",
                            "the recorded routing has %" PRIu32 " tokens, found position %" PRIu32, t->tokens,
                            position);
    *out = recorded->rows + (t->first + position) * recorded->words;
    return STRATA_OK;
}
