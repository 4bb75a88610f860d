/* Routed experts on the fast path. The pairs (token, chosen expert) are sorted by expert. First all hidden rows: gate and
 * up of each expert over its tokens. Then the output, a few columns at a time: each expert's down over its hidden rows,
 * added up in the order of the experts, so that the result does not depend on who computes what. */
#include <string.h>

#include "backend/cpu/fast.h"

enum { BATCH_TOKENS = ST_FEW_ROWS, FEW_COLUMNS = ST_FEW_COLUMNS, ALIGN = ST_SCRATCH_ALIGN };

typedef struct pair_list {
    uint32_t *first;  /* [experts + 1]: an expert's pairs are first[e] … first[e + 1] − 1 */
    uint32_t *places; /* [experts + 1]: where its rows begin among the activations: a tile's start */
    uint32_t *pair;   /* [pairs]: token × used + choice */
    uint32_t active_count;
    uint32_t *active; /* [experts]: those with pairs */
} pair_list;

typedef struct experts_job {
    const st_cpu_call *call;
    const st_bound_weight *gate, *up, *down;
    size_t up_first;       /* the row of `up` where it begins: behind gate if they are fused */
    size_t width, embedding;
    size_t columns;        /* of a part: a strip; for a few tokens more, so that the memory can stream */
    pair_list list;
    st_acts inputs, hidden_acts;
    float *hidden;         /* [places, width] */
    bool int8_in, int8_out;
} experts_job;

static size_t align_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Rows of activations when every expert's begin at a tile. */
static size_t places_max(size_t pairs, size_t experts)
{
    size_t active = pairs < experts ? pairs : experts;
    return pairs + active * (ST_ACT_TILE - 1);
}

static void list_pairs(experts_job *job)
{
    const st_cpu_call *call = job->call;
    uint32_t used = call->op->p.experts.used, experts = call->op->p.experts.experts;
    const int32_t *ids = call->bound->in[1].data;
    pair_list *list = &job->list;
    uint32_t pairs = call->rows * used;
    memset(list->first, 0, (experts + 1) * sizeof *list->first);
    for (uint32_t i = 0; i < pairs; i++) list->first[ids[i] + 1] += job->gate->parts[ids[i]] ? 1 : 0;
    list->places[0] = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t count = list->first[e + 1];
        if (count) list->active[list->active_count++] = e;
        list->places[e + 1] = list->places[e] + (count + ST_ACT_TILE - 1) / ST_ACT_TILE * ST_ACT_TILE;
        list->first[e + 1] += list->first[e];
    }
    uint32_t *next = list->pair + pairs; /* a second list behind the first, used while sorting */
    memcpy(next, list->first, experts * sizeof *next);
    for (uint32_t i = 0; i < pairs; i++)
        if (job->gate->parts[ids[i]]) list->pair[next[ids[i]]++] = i;
}

/* --- hidden rows ------------------------------------------------------------------------------------------------------------------- */

static float pair_weight(const st_cpu_call *call, uint32_t pair)
{
    uint32_t used = call->op->p.experts.used;
    return st_cpu_row(call->bound->in[2], pair / used)[pair % used];
}

/* The input of a pair: the token's row, times the router's weight where the family wants it there. */
static const float *pair_input(const experts_job *job, uint32_t pair, float *scratch)
{
    const st_cpu_call *call = job->call;
    const float *x = st_cpu_row(call->bound->in[0], pair / call->op->p.experts.used);
    if (!call->op->p.experts.weight_on_input) return x;
    call->isa->scale(x, pair_weight(call, pair), scratch, job->embedding);
    return scratch;
}

static uint32_t tokens_of(const experts_job *job, uint32_t e)
{
    return job->list.first[e + 1] - job->list.first[e];
}

/* A part is an active expert: quantises its tokens' inputs. */
static void quantise_inputs(void *context, uint32_t worker, size_t part)
{
    const experts_job *job = context;
    uint32_t e = job->list.active[part], count = tokens_of(job, e);
    for (uint32_t i = 0; i < count; i++) {
        st_act_row out = st_acts_row(&job->inputs, job->list.places[e] + i, count >= BATCH_TOKENS);
        const float *x = pair_input(job, job->list.pair[job->list.first[e] + i], st_cpu_scratch(job->call, worker));
        job->call->isa->quantise(x, job->embedding, &out);
    }
}

static void quantise_hidden(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const experts_job *job = context;
    uint32_t e = job->list.active[part], count = tokens_of(job, e);
    for (uint32_t i = 0; i < count; i++) {
        size_t place = job->list.places[e] + i;
        st_act_row out = st_acts_row(&job->hidden_acts, place, count >= BATCH_TOKENS);
        job->call->isa->quantise(job->hidden + place * job->width, job->width, &out);
    }
}

/* out[t × stride + column] for rows first … of an expert's matrix and the activations of its `count` tokens. */
static void int8_columns(const experts_job *job, const st_bound_weight *matrix, uint32_t e, size_t first, size_t columns,
                         const st_acts *acts, float *scratch, float *out, size_t stride)
{
    const st_isa *isa = job->call->isa;
    const st_isa_type *type = &isa->types[matrix->type];
    const unsigned char *rows = matrix->parts[e];
    uint32_t count = tokens_of(job, e);
    if (count < BATCH_TOKENS) {
        for (uint32_t t = 0; t < count; t++) {
            st_act_row act = st_acts_row(acts, job->list.places[e] + t, false);
            type->dots(rows + first * matrix->row_bytes, matrix->row_bytes, columns, &act, matrix->ne[0], out + t * stride);
        }
        return;
    }
    st_strip strip = st_strip_in(scratch, matrix->ne[0]);
    st_strip_fill(type, rows, matrix->row_bytes, matrix->ne[0], first, columns, &strip);
    for (uint32_t t = 0; t < count; t += ST_ACT_TILE) {
        st_act_tile tile = {.acts = st_acts_tile(acts, (job->list.places[e] + t) / ST_ACT_TILE)};
        size_t tokens = count - t < ST_ACT_TILE ? count - t : ST_ACT_TILE;
        isa->strip_times_tile(type, &strip, &tile, matrix->ne[0], tokens, columns, out + t * stride, stride);
    }
}

/* The same in float, for weights without an int8 kernel; `input` gives a token's row. */
static void float_columns(const experts_job *job, const st_bound_weight *matrix, uint32_t e, size_t first, size_t columns,
                          bool hidden, float *scratch, float *out, size_t stride)
{
    const st_cpu_call *call = job->call;
    uint32_t count = tokens_of(job, e);
    float *row = scratch, *scaled = scratch + matrix->ne[0];
    for (size_t i = 0; i < columns; i++) {
        matrix->info->dequantise((const unsigned char *)matrix->parts[e] + (first + i) * matrix->row_bytes, row,
                                 matrix->ne[0] / matrix->info->block);
        for (uint32_t t = 0; t < count; t++) {
            const float *x = hidden ? job->hidden + (job->list.places[e] + t) * job->width
                                    : pair_input(job, job->list.pair[job->list.first[e] + t], scaled);
            out[t * stride + i] = call->isa->dot_float[ST_TYPE_F32](row, x, matrix->ne[0]);
        }
    }
}

static void hidden_columns(const experts_job *job, const st_bound_weight *matrix, uint32_t e, size_t first, size_t columns,
                           float *scratch, float *out, size_t stride)
{
    if (job->int8_in) int8_columns(job, matrix, e, first, columns, &job->inputs, scratch, out, stride);
    else float_columns(job, matrix, e, first, columns, false, scratch, out, stride);
}

/* A part is a strip's columns of one expert's hidden rows: gate, up, and their product. */
static void hidden_part(void *context, uint32_t worker, size_t part)
{
    const experts_job *job = context;
    const st_cpu_call *call = job->call;
    size_t strips = (job->width + job->columns - 1) / job->columns;
    uint32_t e = job->list.active[part / strips], count = tokens_of(job, e);
    size_t first = part % strips * job->columns;
    size_t columns = job->width - first < job->columns ? job->width - first : job->columns;
    float *ups = st_cpu_scratch(call, worker); /* [rows, columns] */
    float *rest = ups + (size_t)call->rows * job->columns;
    float *gates = job->hidden + job->list.places[e] * job->width + first;
    hidden_columns(job, job->gate, e, first, columns, rest, gates, job->width);
    hidden_columns(job, job->up, e, job->up_first + first, columns, rest, ups, job->columns);
    for (uint32_t t = 0; t < count; t++)
        call->isa->gated(call->op->p.experts.activation, gates + t * job->width, ups + t * job->columns,
                         gates + t * job->width, columns);
}

/* --- output -------------------------------------------------------------------------------------------------------------------------- */

/* A part is a strip's columns of the output, over all experts in order. */
static void output_part(void *context, uint32_t worker, size_t part)
{
    const experts_job *job = context;
    const st_cpu_call *call = job->call;
    size_t first = part * job->columns;
    size_t columns = job->embedding - first < job->columns ? job->embedding - first : job->columns;
    float *products = st_cpu_scratch(call, worker); /* [rows, columns] */
    float *rest = products + (size_t)call->rows * job->columns;
    for (size_t row = 0; row < call->rows; row++) memset(st_cpu_row(call->bound->out, row) + first, 0, columns * sizeof(float));
    for (uint32_t a = 0; a < job->list.active_count; a++) {
        uint32_t e = job->list.active[a], count = tokens_of(job, e);
        if (job->int8_out) int8_columns(job, job->down, e, first, columns, &job->hidden_acts, rest, products, job->columns);
        else float_columns(job, job->down, e, first, columns, true, rest, products, job->columns);
        const st_bound_weight *factors = &call->bound->weight[3];
        float factor = factors->data ? st_cpu_element(factors, e) : 1;
        for (uint32_t t = 0; t < count; t++) {
            uint32_t pair = job->list.pair[job->list.first[e] + t];
            float weight = factor * (call->op->p.experts.weight_on_input ? 1 : pair_weight(call, pair));
            float *out = st_cpu_row(call->bound->out, pair / call->op->p.experts.used) + first;
            for (size_t i = 0; i < columns; i++) out[i] += weight * products[t * job->columns + i];
        }
    }
}

/* --- the whole ------------------------------------------------------------------------------------------------------------------------ */

static bool is_int8(const st_isa *isa, const st_bound_weight *matrix)
{
    return isa->types[matrix->type].dots && matrix->ne[0] % ST_ACT_BLOCK == 0;
}

static unsigned char *take(unsigned char **at, size_t bytes)
{
    unsigned char *start = *at;
    *at += align_up(bytes);
    return start;
}

/* The pairs (token, expert) sorted, their inputs and hidden rows, each expert's beginning at a tile. */
st_scratch st_cpu_fast_experts_scratch(const st_bound_op *shape, uint32_t rows)
{
    size_t experts = shape->op->p.experts.experts, pairs = (size_t)rows * shape->op->p.experts.used;
    size_t places = places_max(pairs, experts), hidden = shape->op->p.experts.width, embedding = shape->in[0].width;
    size_t lists = (4 * (experts + 1) + pairs) * sizeof(uint32_t), widest = hidden > embedding ? hidden : embedding;
    size_t columns = (size_t)rows * ST_STRIP_ROWS, few = (ST_FEW_ROWS - 1) * FEW_COLUMNS;
    return (st_scratch){.shared_bytes = lists + places * hidden * sizeof(float) + st_acts_bytes(embedding, places) +
                                        st_acts_bytes(hidden, places) + 8 * ALIGN,
                        .worker_bytes = (columns > few ? columns : few) * sizeof(float) + st_strip_bytes(widest)};
}

static void set_up(experts_job *job, const st_cpu_call *call)
{
    const st_bound_op *bound = call->bound;
    bool fused = call->op->p.experts.fused;
    uint32_t experts = call->op->p.experts.experts, pairs = call->rows * call->op->p.experts.used;
    *job = (experts_job){.call = call, .gate = &bound->weight[0], .up = fused ? &bound->weight[0] : &bound->weight[1],
                         .down = &bound->weight[2], .up_first = fused ? call->op->p.experts.width : 0,
                         .width = call->op->p.experts.width, .embedding = bound->in[0].width};
    job->columns = call->rows < ST_FEW_ROWS ? FEW_COLUMNS : ST_STRIP_ROWS;
    job->int8_in = is_int8(call->isa, job->gate) && is_int8(call->isa, job->up);
    job->int8_out = is_int8(call->isa, job->down);
    size_t places = places_max(pairs, experts);
    unsigned char *at = call->shared;
    job->list.first = (uint32_t *)(void *)take(&at, (experts + 1) * sizeof(uint32_t));
    job->list.places = (uint32_t *)(void *)take(&at, (experts + 1) * sizeof(uint32_t));
    job->list.active = (uint32_t *)(void *)take(&at, experts * sizeof(uint32_t));
    job->list.pair = (uint32_t *)(void *)take(&at, ((size_t)pairs + experts) * sizeof(uint32_t));
    job->hidden = (float *)(void *)take(&at, places * job->width * sizeof(float));
    job->inputs = (st_acts){.memory = take(&at, st_acts_bytes(job->embedding, places)), .width = job->embedding};
    job->hidden_acts = (st_acts){.memory = at, .width = job->width};
}

void st_cpu_fast_experts(const st_cpu_call *call)
{
    experts_job job;
    set_up(&job, call);
    list_pairs(&job);
    size_t active = job.list.active_count;
    if (job.int8_in) st_pool_run(call->pool, quantise_inputs, &job, active);
    st_pool_run(call->pool, hidden_part, &job, active * ((job.width + job.columns - 1) / job.columns));
    if (job.int8_out) st_pool_run(call->pool, quantise_hidden, &job, active);
    st_pool_run(call->pool, output_part, &job, (job.embedding + job.columns - 1) / job.columns);
}
