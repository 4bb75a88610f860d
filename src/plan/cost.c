/* Prices the plan's stages as events; timeline.c walks them. sim/ keeps time by the same rates and rules, so that a
 * prediction can be compared with it. */
#include "plan/plan.h"

#include <string.h>

#include "backend/backend.h"
#include "base/error.h"
#include "kv/stops.h"
#include "plan/timeline.h"
#include "sampler/candidates.h"

enum { PREFILL_DEFAULT = 512, EVENTS_BESIDE_STAGES = 8 };

static const char *const spent_names[ST_SPENT_COUNT] = {
    [ST_SPENT_CARD_MEMORY] = "the card's memory", [ST_SPENT_RAM] = "RAM",
    [ST_SPENT_LINK] = "the link",                 [ST_SPENT_HANDOVER] = "hand-overs",
    [ST_SPENT_ARITHMETIC] = "arithmetic",         [ST_SPENT_DISK] = "the disk",
    [ST_SPENT_OPERATIONS] = "small operations",
};

typedef struct predictor {
    st_plan_source source;
    const st_plan *plan;
    const st_plan_part *main; /* with the most stages: of steps that stream dense parts, or of others */
    uint32_t depth, batch;
    uint32_t together;        /* conversations that decode at a time, a row each */
    double host_weight_bytes; /* of all weights that the host reads */
    st_priced *token, *step;  /* events of a decoded token; of the current prompt batch */
    st_priced *apart;         /* of a decoded token whose stages are launched one by one, so that experts can be fetched */
    uint32_t token_count, apart_count;
    double *marks; /* by stage of a range, and one for the copy that is no stage */
} predictor;

/* --- hit rates ---------------------------------------------------------------------------------------------------- */

/* Measured: one LRU cache per layer, on real routings of models with many small experts. */
static const struct { double share, rate; } hit_table[] = {{0, 0},       {0.06, 0.36}, {0.19, 0.74},
                                                           {0.38, 0.89}, {0.63, 0.96}, {1, 1}};

double st_hit_rate_assumed(uint32_t experts, double share)
{
    if (share <= 0) return 0;
    if (share >= 1) return 1;
    if (experts < ST_HIT_TABLE_EXPERTS) return share;
    size_t i = 1;
    while (hit_table[i].share < share) i++;
    double from = hit_table[i - 1].share, along = (share - from) / (hit_table[i].share - from);
    return hit_table[i - 1].rate + along * (hit_table[i].rate - hit_table[i - 1].rate);
}

st_hit_point st_hit_at(const st_hit_curve *curve, double share)
{
    const st_hit_point *points = curve->points;
    uint32_t i = 1;
    while (i + 1 < curve->count && points[i].share < share) i++;
    const st_hit_point *from = &points[i - 1], *to = &points[i];
    double along = to->share > from->share ? (share - from->share) / (to->share - from->share) : 1;
    along = along < 0 ? 0 : along > 1 ? 1 : along;
    return (st_hit_point){.share = share, .rate = from->rate + along * (to->rate - from->rate),
                          .uploads = from->uploads + along * (to->uploads - from->uploads)};
}

double st_hit_rate_of(const st_hit_curve *curve, uint32_t experts, double share)
{
    return curve ? st_hit_at(curve, share).rate : st_hit_rate_assumed(experts, share);
}

/* --- pricing: stages → events ------------------------------------------------------------------------------------- */

/* Writes the events of one step. */
typedef struct pricing {
    const predictor *p;
    st_priced *events;
    uint32_t count;
    const st_plan_part *part; /* by the rows */
    uint32_t rows[2]; /* by st_rows */
    uint32_t depth;
    bool chained;     /* the range is a chain */
    bool may_chain;   /* a decoded token that fetches experts may not */
    bool answer;      /* rows of conversations: tokens are chosen from candidates. A prompt brings all logits to the host */
} pricing;

static st_priced *push(pricing *w, st_event_kind kind, int32_t mark)
{
    st_priced *e = &w->events[w->count++];
    *e = (st_priced){.kind = kind, .mark = mark, .chained = w->chained};
    if (w->chained && (kind == ST_EVENT_COPY || kind == ST_EVENT_EXPERTS))
        e->handover = w->p->source.devices[ST_CARD].round_trip_seconds / 2;
    return e;
}

static void push_copy(pricing *w, bool up, double bytes, uint32_t mark)
{
    st_priced *e = push(w, ST_EVENT_COPY, (int32_t)mark);
    e->copy = st_copy_seconds(w->p->source.devices, up, bytes);
    e->up = up;
}

static double value_bytes(const pricing *w, int32_t value)
{
    const st_value *v = &w->p->source.program->values[value];
    return (double)v->width * sizeof(float) * w->rows[v->rows];
}

/* An operation has the rows of its output; one without an output belongs to a body. Conversations have KV and state of
 * their own. */
static st_work work_of(const pricing *w, const st_op *op)
{
    const st_plan_source *s = &w->p->source;
    uint32_t rows = w->rows[op->out == ST_NO_VALUE ? ST_ROWS_ALL : s->program->values[op->out].rows];
    bool apart = w->answer && rows > 1 && (st_op_has_kv(op->kind) || st_op_has_state(op->kind));
    st_work work = st_work_of(s->program, s->binding, op, apart ? 1 : rows, w->depth, w->p->plan->kv_type);
    if (!apart) return work;
    work.bytes *= rows;
    work.ops *= rows;
    work.rows = rows;
    return work;
}

static void add_op(const pricing *w, const st_op *op, uint32_t device, st_priced *to)
{
    const st_profile *profile = &w->p->source.devices[device];
    st_work work = work_of(w, op);
    double fixed = st_profile_fixed(profile, &work), seconds = st_profile_seconds(profile, &work) - fixed;
    to->fixed += fixed;
    if (st_profile_reads(profile, &work)) to->memory += seconds;
    else to->arithmetic += seconds;
    if (op->weight[0] != ST_NO_WEIGHT) to->weight_bytes += work.bytes;
}

/* The experts of a SPLIT. Their inputs were moved before it; its sum goes back to the GPU. */
static void push_experts(pricing *w, const st_stage *split)
{
    const st_op *op = &w->p->source.program->ops[split->ops.first];
    push(w, ST_EVENT_EXPERTS, split->wait)->cached =
        (st_cached_experts){.layer = (uint32_t)op->layer, .experts = op->p.experts.experts, .used = op->p.experts.used,
                            .rows = w->rows[ST_ROWS_ALL], .touched = st_experts_touched(op, w->rows[ST_ROWS_ALL]),
                            .work = work_of(w, op), .up = st_copy_seconds(w->p->source.devices, true, value_bytes(w, op->out))};
}

/* A run is one launch. The last operation of a run before a SPLIT is priced with the SPLIT. */
static void price_run(pricing *w, const st_stage *stage, bool split)
{
    st_priced *run = push(w, stage->device == ST_HOST ? ST_EVENT_HOST : ST_EVENT_CARD, stage->wait);
    for (uint32_t i = 0; i < stage->ops.count - split; i++)
        add_op(w, &w->p->source.program->ops[stage->ops.first + i], stage->device, run);
    const st_op *first = &w->p->source.program->ops[stage->ops.first];
    if (stage->fetched) run->fetch_bytes = (double)st_fetch_layout_of(w->p->source.binding, first).copied_bytes;
}

static bool card_takes_part(const st_stages *stages)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stages->stages[i].device == ST_CARD) return true;
    return false;
}

/* Values that are given to the host one after the other are one hand-over of a chain. */
static void price_move(pricing *w, const st_stages *stages, uint32_t index)
{
    const st_stage *stage = &stages->stages[index];
    uint32_t before = 0; /* of the same direction */
    while (before < index && stages->stages[index - before - 1].kind == ST_STAGE_MOVE &&
           stages->stages[index - before - 1].device == ST_HOST)
        before++;
    if (w->chained && stage->guarded) push_copy(w, true, 0, index);
    push_copy(w, stage->device == ST_CARD, value_bytes(w, stage->value), index);
    if (stage->device == ST_HOST && before % ST_LINK_VALUES) w->events[w->count - 1].handover = 0;
}

/* The step block: the page tables of a conversation grow with its positions. */
static size_t body_step_bytes(const pricing *w)
{
    const st_plan *plan = w->p->plan;
    st_step_limits sent = {.rows = w->rows[ST_ROWS_ALL], .out_rows = plan->step.out_rows,
                           .conversations = w->answer ? w->rows[ST_ROWS_ALL] : 1,
                           .choice_words = plan->step.choice_words};
    uint64_t positions = (uint64_t)w->depth + (w->answer ? 1 : sent.rows);
    uint64_t entries = plan->conversations ? plan->step.tables / plan->conversations : 0; /* of a full context */
    if (positions < plan->context) entries = (entries * positions + plan->context - 1) / plan->context;
    sent.tables = (uint32_t)entries * sent.conversations;
    return st_step_bytes(&sent);
}

/* The header and the output rows. */
static size_t head_step_bytes(const pricing *w)
{
    return st_step_bytes(&(st_step_limits){.out_rows = w->rows[ST_ROWS_OUT]});
}

static void price_range(pricing *w, const st_stages *stages, size_t step_bytes)
{
    w->chained = false;
    if (card_takes_part(stages)) push_copy(w, true, (double)step_bytes, stages->count);
    if (stages->chained && w->may_chain && w->rows[ST_ROWS_ALL] <= ST_CHAIN_ROWS) {
        w->chained = true;
        push(w, ST_EVENT_CARD, ST_NO_MARK)->chained = false; /* the launch of all of it */
    }
    for (uint32_t i = 0; i < stages->count; i++) {
        const st_stage *stage = &stages->stages[i];
        bool split = i + 1 < stages->count && stages->stages[i + 1].kind == ST_STAGE_SPLIT;
        switch (stage->kind) {
        case ST_STAGE_RUN: price_run(w, stage, split); break;
        case ST_STAGE_MOVE: price_move(w, stages, i); break;
        case ST_STAGE_SPLIT: push_experts(w, stage); break;
        case ST_STAGE_WATCH: push(w, ST_EVENT_HOST, stage->wait); break;
        }
    }
    w->chained = false;
}

/* Reading the logits once, and the launch. */
static void price_reduction(pricing *w, const st_part *part)
{
    st_op op = {.kind = ST_OP_CANDIDATES, .layer = -1, .out = ST_NO_VALUE, .out2 = ST_NO_VALUE};
    for (int i = 0; i < ST_OP_INPUTS; i++) op.in[i] = i == 0 ? part->logits : ST_NO_VALUE;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op.weight[i] = ST_NO_WEIGHT;
    push_copy(w, true, sizeof(st_adjustments) - sizeof(st_adjustment[ST_ADJUSTMENTS_MAX]), w->part->head.count);
    add_op(w, &op, ST_CARD, push(w, ST_EVENT_CARD, ST_NO_MARK));
}

/* The head, and what it computes to the host: the best candidates, or all logits. */
static void price_head(pricing *w)
{
    const st_part *part = &w->p->source.program->main;
    uint32_t end = w->part->head.count;
    bool reduces = w->p->plan->reduces_logits && w->answer;
    price_range(w, &w->part->head, head_step_bytes(w));
    if (w->part->logits_device == ST_HOST) return;
    if (reduces) price_reduction(w, part);
    double candidates = (double)sizeof(st_candidates) * w->rows[ST_ROWS_OUT];
    push_copy(w, false, reduces ? candidates : value_bytes(w, part->logits), end);
    push(w, ST_EVENT_HOST, (int32_t)end);
}

static uint32_t price_step(const predictor *p, uint32_t rows, uint32_t depth, bool last, st_priced *events)
{
    bool answer = events != p->step;
    pricing w = {.p = p, .events = events, .rows = {[ST_ROWS_ALL] = rows, [ST_ROWS_OUT] = answer ? rows : 1},
                 .depth = depth, .answer = answer, .may_chain = events == p->token};
    w.part = p->plan->dense.rows && rows >= p->plan->dense.rows ? &p->plan->streamed : &p->plan->parts[ST_PART_MAIN];
    price_range(&w, &w.part->body, body_step_bytes(&w));
    if (last) price_head(&w);
    else if (w.part->body.pending != ST_NO_STAGE)
        push(&w, ST_EVENT_HOST, w.part->body.pending); /* the next batch writes values */
    return w.count;
}

/* --- a predictor -------------------------------------------------------------------------------------------------- */

static bool is_cached(const predictor *p, uint32_t op)
{
    return p->plan->experts.mode == ST_MOE_CACHE && p->plan->op_device[op] == ST_CARD &&
           p->source.program->ops[op].kind == ST_OP_EXPERTS;
}

/* Of the main part alone: what a NextN block reads is little. Cached experts have their copy on the host. */
static bool add_host_weights(predictor *p)
{
    const st_program *program = p->source.program;
    const st_binding *binding = p->source.binding;
    st_arena scratch = {0};
    bool *seen = st_arena_alloc(&scratch, binding->count, sizeof *seen);
    uint32_t end = program->main.head.first + program->main.head.count;
    for (uint32_t i = program->main.body.first; seen && i < end; i++) {
        const st_op *op = &program->ops[i];
        if (p->plan->op_device[i] != ST_HOST && !is_cached(p, i)) continue;
        for (int k = 0; k < ST_OP_WEIGHTS; k++) {
            if (op->weight[k] == ST_NO_WEIGHT || seen[op->weight[k]]) continue;
            seen[op->weight[k]] = true;
            p->host_weight_bytes += (double)binding->weights[op->weight[k]].bytes;
        }
    }
    bool ok = seen != NULL;
    st_arena_free(&scratch);
    return ok;
}

static strata_status build(predictor *p, st_arena *arena, strata_error *error)
{
    size_t most = 2 * (size_t)p->main->body.count + p->main->head.count + EVENTS_BESIDE_STAGES; /* with gates */
    p->token = st_arena_alloc(arena, most, sizeof *p->token);
    p->step = st_arena_alloc(arena, most, sizeof *p->step);
    p->apart = st_arena_alloc(arena, most, sizeof *p->apart);
    p->marks = st_arena_alloc(arena, most, sizeof *p->marks);
    if (!p->token || !p->step || !p->apart || !p->marks || !add_host_weights(p))
        return st_error_memory(error, most * sizeof *p->token, "a prediction");
    p->token_count = price_step(p, p->together, p->depth, true, p->token);
    if (p->plan->experts.mode == ST_MOE_CACHE) p->apart_count = price_step(p, p->together, p->depth, true, p->apart);
    return STRATA_OK;
}

static strata_status predictor_new(const st_plan_source *source, const st_plan *plan, uint32_t depth, uint32_t together,
                                   st_arena *arena, predictor **out, strata_error *error)
{
    predictor *p = st_arena_alloc(arena, 1, sizeof *p);
    if (!p) return st_error_memory(error, sizeof *p, "a prediction");
    *p = (predictor){.source = *source, .plan = plan, .main = &plan->parts[ST_PART_MAIN],
                     .batch = plan->batch ? plan->batch : 1, .together = together ? together : 1};
    if (plan->streamed.body.count + plan->streamed.head.count > p->main->body.count + p->main->head.count)
        p->main = &plan->streamed;
    p->depth = depth < plan->context ? depth : plan->context - (plan->context > 0);
    strata_status status = build(p, arena, error);
    if (status == STRATA_OK) *out = p;
    return status;
}

/* --- predictions -------------------------------------------------------------------------------------------------- */

/* Converts a hit rate over all layers into that of the layers with some slots but not all: layers without slots have a
 * rate of 0, and those with all slots 1. Negative: the rate is assumed. */
static double rate_of_uncertain(const predictor *p, double rate)
{
    const uint32_t *slots = p->plan->experts.slots;
    const st_op_range body = p->source.program->main.body;
    double all = 0, certain = 0, uncertain = 0;
    if (rate < 0 || !slots) return -1;
    for (uint32_t i = body.first; i < body.first + body.count; i++) {
        const st_op *op = &p->source.program->ops[i];
        if (!is_cached(p, i)) continue;
        all++;
        if (slots[op->layer] >= op->p.experts.experts) certain++;
        else if (slots[op->layer] > 0) uncertain++;
    }
    if (uncertain == 0) return rate;
    double left = (rate * all - certain) / uncertain;
    return left < 0 ? 0 : left > 1 ? 1 : left;
}

/* Weights get the RAM that the other owners leave; the rest is read from disk. */
static double disk_share_of(const predictor *p)
{
    const st_plan *plan = p->plan;
    if (!plan->on_disk || p->host_weight_bytes <= 0) return 0;
    const st_plan_device *host = &plan->devices[ST_HOST];
    double room = (double)host->capacity_bytes - (double)host->margin_bytes;
    for (int i = 0; i < ST_OWNER_COUNT; i++)
        if (i != ST_OWNER_WEIGHTS && i != ST_OWNER_EXPERTS) room -= (double)host->owners[i];
    if (room < 0) room = 0;
    return room < p->host_weight_bytes ? 1 - room / p->host_weight_bytes : 0;
}

static st_timeline begin(const predictor *p, double hit_rate, double batch_rate)
{
    return (st_timeline){.devices = p->source.devices, .marks = p->marks, .slots = p->plan->experts.slots,
                         .hit_rate = rate_of_uncertain(p, hit_rate),
                         .batch_rate = rate_of_uncertain(p, batch_rate), .disk_share = disk_share_of(p),
                         .uploads = p->plan->experts.uploads, .hits = p->plan->experts.hits};
}

static double end_of(const st_timeline *line)
{
    return line->host > line->card ? line->host : line->card;
}

/* As one launch, or launched one by one and fetching some of the missing experts, whichever is faster: the executor changes over. */
static double decode_seconds(const predictor *p, double hit_rate, const char **limit)
{
    st_timeline line = begin(p, hit_rate, -1), apart = line;
    st_timeline_walk(&line, p->token, p->token_count);
    st_timeline_walk(&apart, p->apart, p->apart_count);
    if (p->apart_count && end_of(&apart) < end_of(&line)) line = apart;
    int most = 0; /* of all work, though some of it overlaps */
    for (int i = 1; i < ST_SPENT_COUNT; i++)
        if (line.spent[i] > line.spent[most]) most = i;
    *limit = spent_names[most];
    return end_of(&line) + p->together * p->source.devices[ST_HOST].row_seconds;
}

/* Where the step of a prompt from `done` on ends: a restore point ends it early. */
static uint32_t step_end(const predictor *p, uint32_t done, uint32_t tokens)
{
    uint32_t end = tokens - done < p->batch ? tokens : done + p->batch;
    if (p->plan->restore_bytes == 0) return end;
    st_stops stops = {.diverged = ST_NO_STOP, .end = tokens, .page_tokens = p->plan->memory[ST_HOST].kv->options.page_tokens};
    st_restore_kind kind;
    uint32_t stop = st_stops_next(&stops, done, &kind);
    return stop < end ? stop : end;
}

/* Of a prompt, or of some of its rows, without the head. */
static double prefill_seconds(const predictor *p, uint32_t tokens, bool head, double batch_rate)
{
    st_timeline line = begin(p, -1, batch_rate);
    for (uint32_t done = 0; done < tokens;) {
        uint32_t rows = head ? step_end(p, done, tokens) - done : tokens - done < p->batch ? tokens - done : p->batch;
        uint32_t count = price_step(p, rows, done, head && done + rows == tokens, p->step);
        st_timeline_walk(&line, p->step, count);
        done += rows;
    }
    return end_of(&line);
}

static uint32_t prefill_of(const st_plan *plan, uint32_t prefill)
{
    if (prefill == 0) prefill = plan->batch > PREFILL_DEFAULT ? plan->batch : PREFILL_DEFAULT;
    return prefill < plan->context ? prefill : plan->context;
}

strata_status st_plan_decode_tps(const st_plan_source *source, const st_plan *plan, uint32_t depth, double *tps,
                                 strata_error *error)
{
    st_arena arena = {0};
    predictor *p;
    const char *limit;
    strata_status status = predictor_new(source, plan, depth, 1, &arena, &p, error);
    double seconds = status == STRATA_OK ? decode_seconds(p, -1, &limit) : 0;
    if (status == STRATA_OK) *tps = seconds > 0 ? 1 / seconds : 0;
    st_arena_free(&arena);
    return status;
}

double st_plan_prompt_seconds(const st_plan_source *source, const st_plan *plan, uint32_t tokens, double batch_rate)
{
    st_arena arena = {0};
    predictor *p;
    double seconds = 0;
    if (predictor_new(source, plan, 0, 1, &arena, &p, NULL) == STRATA_OK) seconds = prefill_seconds(p, tokens, true, batch_rate);
    st_arena_free(&arena);
    return seconds;
}

uint32_t st_plan_prompt_rows(const st_plan_source *source, const st_plan *plan)
{
    st_arena arena = {0};
    predictor *p;
    uint32_t rows = plan->batch;
    if (predictor_new(source, plan, 0, 1, &arena, &p, NULL) == STRATA_OK) {
        double row = prefill_seconds(p, plan->batch, false, -1) / plan->batch;
        rows = ST_PROMPT_ROWS_MIN;
        while (rows < plan->batch && prefill_seconds(p, rows, false, -1) * ST_PROMPT_SPEED_KEPT > row * rows) rows *= 2;
    }
    st_arena_free(&arena);
    return rows < plan->batch ? rows : plan->batch;
}

st_plan_speed st_plan_predict(const st_plan_source *source, const st_plan *plan, uint32_t depth, uint32_t prefill,
                              double hit_rate)
{
    st_arena arena = {0};
    predictor *p;
    st_plan_speed speed = {.limit = "unknown", .prefill = prefill_of(plan, prefill)};
    for (uint32_t i = 0; i < plan->device_count; i++) speed.estimate |= source->devices[i].estimate;
    if (predictor_new(source, plan, depth, 1, &arena, &p, NULL) == STRATA_OK) {
        double decode = decode_seconds(p, hit_rate, &speed.limit);
        double whole = prefill_seconds(p, speed.prefill, true, -1);
        speed.depth = p->depth;
        speed.decode_tps = decode > 0 ? 1 / decode : 0;
        speed.prefill_tps = whole > 0 ? speed.prefill / whole : 0;
    }
    st_arena_free(&arena);
    if (plan->conversations > 1)
        speed.together_tps = st_plan_together_tps(source, plan, depth, plan->conversations, hit_rate);
    return speed;
}

double st_plan_together_tps(const st_plan_source *source, const st_plan *plan, uint32_t depth, uint32_t conversations,
                            double hit_rate)
{
    st_arena arena = {0};
    predictor *p;
    const char *limit;
    double seconds = 0;
    if (predictor_new(source, plan, depth, conversations, &arena, &p, NULL) == STRATA_OK)
        seconds = decode_seconds(p, hit_rate, &limit);
    st_arena_free(&arena);
    return seconds > 0 ? conversations / seconds : 0;
}
