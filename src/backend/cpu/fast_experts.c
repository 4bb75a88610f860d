/* Routed experts on the fast path. The pairs (token, chosen expert) are sorted by expert. The first pass computes all
 * hidden rows: gate and up of each expert for its tokens. The second pass computes the output, a few columns at a
 * time: down of each expert for its hidden rows, summed in the order of the experts. So the result does not depend on
 * the distribution of the work over threads. */
#include <string.h>

#include "backend/cpu/fast.h"
#include "backend/cpu/parts.h"

#define NO_PLACE UINT32_MAX

/* The pairs to compute. A pair whose expert is absent is skipped. */
typedef struct pair_list {
    uint32_t *first;  /* [experts + 1]: an expert's pairs are first[e] … first[e + 1] − 1 */
    uint32_t *places; /* [experts + 1]: an expert's first hidden and activation row; a tile's start */
    uint32_t *pair;   /* [pairs]: token × used + choice */
    uint32_t *place;  /* [pairs]: index of a pair's row; NO_PLACE: its expert is absent */
    uint32_t *next;   /* [experts]: the next free entry of `pair` during the sort */
    uint32_t active_count;
    uint32_t *active; /* [experts]: the experts that have pairs */
} pair_list;

typedef struct experts_job {
    const st_cpu_call *call;
    const st_bound_weight *gate, *up, *down; /* up NULL: the experts have no gate, and `gate` is their only matrix */
    size_t up_first;       /* first row of up in its matrix: the row after gate if the two are fused */
    size_t width, embedding;
    size_t columns;        /* that are computed at a time: a strip; more for a few tokens, for streaming reads */
    size_t strips;         /* of a part of the first pass of a batch */
    bool batch;            /* strips and activations in tiles by expert; otherwise dots and activations by token */
    st_parts hidden_parts, output_parts; /* of the passes, unless it is a batch: that has `columns` in a part */
    const st_isa_panels *panels; /* of a batch: its activations are in bfloat16 */
    pair_list list;
    st_acts inputs;        /* indexed by place in a batch, otherwise by token */
    st_acts hidden_acts;   /* indexed by place */
    float *hidden;         /* [places, width] */
    bool int8_in, int8_out;
} experts_job;

/* --- scratch ------------------------------------------------------------------------------------------------------ */

/* Byte offsets into the shared scratch. */
typedef struct layout {
    size_t first, places, pair, place, next, active, hidden, inputs, hidden_acts, bytes;
} layout;

static size_t reserve(size_t *end, size_t bytes)
{
    size_t start = *end;
    *end += (bytes + ST_SCRATCH_ALIGN - 1) / ST_SCRATCH_ALIGN * ST_SCRATCH_ALIGN;
    return start;
}

/* Strips are faster from ST_FEW_PAIRS tokens per expert on. The average over all experts decides, not each expert's
 * token count: a token's result must not depend on the experts that other tokens choose. */
static bool is_batch(const st_op *op, size_t rows)
{
    return rows * op->p.experts.used >= (size_t)ST_FEW_PAIRS * op->p.experts.experts;
}

/* The same for bfloat16: its kernels unpack at higher cost and multiply at lower. */
static bool is_panel(const st_op *op, size_t rows)
{
    return rows * op->p.experts.used >= (size_t)ST_PANEL_ROWS * op->p.experts.experts;
}

/* The columns that are computed at a time. For a few rows their weights are read in one stretch: the fewer rows, the longer. */
static size_t columns_max(const st_op *op, size_t rows, bool panels)
{
    if (panels) return ST_PANEL_FEW;
    if (is_batch(op, rows)) return ST_STRIP_ROWS;
    return rows < ST_FEW_ROWS ? ST_FEW_COLUMNS : ST_SOME_COLUMNS;
}

static size_t over(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Activations in int8 or bfloat16. */
static size_t batch_acts_bytes(size_t width, size_t rows)
{
    size_t acts = st_acts_bytes(width, rows), panel = st_panel_bytes(width, rows);
    return acts > panel ? acts : panel;
}

enum {
    COLUMNS_STEP = 16,      /* a part for a few rows has a multiple of it */
    PART_BYTES = 384 << 10, /* of weights that several rows may read: they stay in the L2 cache */
    STRIPS_MAX = 4,         /* of a part of a batch: the weights of all but the first are prefetched */
    FIRST_BYTES = 4 << 10,  /* of weights, which are prefetched while those before them are multiplied */
};

static layout lay_out(const st_op *op, size_t embedding, size_t rows)
{
    size_t experts = op->p.experts.experts, pairs = rows * op->p.experts.used, end = 0;
    size_t places = pairs + (pairs < experts ? pairs : experts) * (ST_PANEL_TILE - 1); /* an expert starts at a tile */
    size_t inputs = is_batch(op, rows) ? batch_acts_bytes(embedding, places) : st_acts_bytes(embedding, rows);
    layout at = {.first = reserve(&end, (experts + 1) * sizeof(uint32_t)),
                 .places = reserve(&end, (experts + 1) * sizeof(uint32_t)),
                 .pair = reserve(&end, pairs * sizeof(uint32_t)),
                 .place = reserve(&end, pairs * sizeof(uint32_t)),
                 .next = reserve(&end, experts * sizeof(uint32_t)),
                 .active = reserve(&end, experts * sizeof(uint32_t)),
                 .hidden = reserve(&end, places * op->p.experts.width * sizeof(float)),
                 .inputs = reserve(&end, inputs),
                 .hidden_acts = reserve(&end, batch_acts_bytes(op->p.experts.width, places))};
    at.bytes = end;
    return at;
}

/* Each worker's scratch holds the results of some columns, and a strip or a row of floats. */
st_scratch st_cpu_fast_experts_scratch(const st_bound_op *shape, uint32_t rows)
{
    size_t hidden = shape->op->p.experts.width, embedding = shape->in[0].width;
    size_t columns = (size_t)rows * (is_panel(shape->op, rows) ? ST_PANEL_FEW : ST_STRIP_ROWS);
    for (size_t few = 1; few <= rows && !is_batch(shape->op, few); few++) {
        size_t of_few = few * columns_max(shape->op, few, false);
        if (of_few > columns) columns = of_few;
    }
    size_t width = hidden > embedding ? hidden : embedding, floats = width * sizeof(float);
    size_t strip = st_batch_bytes(width, ST_PANEL_FEW, rows);
    return (st_scratch){.shared_bytes = lay_out(shape->op, embedding, rows).bytes,
                        .worker_bytes = columns * sizeof(float) + (floats > strip ? floats : strip)};
}

/* --- pairs -------------------------------------------------------------------------------------------------------- */

static void list_pairs(experts_job *job)
{
    const st_cpu_call *call = job->call;
    uint32_t used = call->op->p.experts.used, experts = call->op->p.experts.experts;
    const int32_t *ids = call->bound->in[1].data;
    pair_list *list = &job->list;
    uint32_t pairs = call->rows * used;
    memset(list->first, 0, (experts + 1) * sizeof *list->first);
    for (uint32_t i = 0; i < pairs; i++) list->first[ids[i] + 1] += job->gate->parts[ids[i]] ? 1 : 0;
    uint32_t tile = job->panels ? ST_PANEL_TILE : ST_ACT_TILE;
    list->places[0] = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t count = list->first[e + 1];
        if (count) list->active[list->active_count++] = e;
        list->places[e + 1] = list->places[e] + (count + tile - 1) / tile * tile;
        list->first[e + 1] += list->first[e];
    }
    memcpy(list->next, list->first, experts * sizeof *list->next);
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t e = (uint32_t)ids[i];
        list->place[i] = NO_PLACE;
        if (!job->gate->parts[e]) continue;
        list->place[i] = list->places[e] + list->next[e] - list->first[e];
        list->pair[list->next[e]++] = i;
    }
}

static float pair_weight(const st_cpu_call *call, uint32_t pair)
{
    uint32_t used = call->op->p.experts.used;
    return st_cpu_row(call->bound->in[2], pair / used)[pair % used];
}

static uint32_t tokens_of(const experts_job *job, uint32_t e)
{
    return job->list.first[e + 1] - job->list.first[e];
}

/* --- hidden rows -------------------------------------------------------------------------------------------------- */

static void copy_acts(const st_act_row *from, const st_act_row *to, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++) {
        size_t i = b * from->stride, k = b * to->stride;
        memcpy(to->q + k * ST_ACT_BLOCK, from->q + i * ST_ACT_BLOCK, ST_ACT_BLOCK);
        to->scale[k] = from->scale[i];
        to->sum[k] = from->sum[i];
        memcpy(to->total + 2 * k, from->total + 2 * i, 2 * sizeof *to->total);
    }
}

/* Packs a token once and copies it to the tiles of its other experts. */
static void pack_input(const experts_job *job, const float *x, size_t token)
{
    size_t used = job->call->op->p.experts.used;
    uint32_t first = NO_PLACE;
    for (size_t i = token * used; i < (token + 1) * used; i++) {
        uint32_t place = job->list.place[i];
        if (place == NO_PLACE) continue;
        if (first != NO_PLACE) st_panel_copy(job->inputs.memory, job->embedding, first, place);
        else st_panel_pack(job->panels, x, job->embedding, job->inputs.memory, first = place);
    }
}

/* A part is a token. Its row is quantised once; in a batch it is copied to the tiles of the other experts. */
static void quantise_input(void *context, uint32_t worker, size_t token)
{
    (void)worker;
    const experts_job *job = context;
    const st_cpu_call *call = job->call;
    const float *x = st_cpu_row(call->bound->in[0], token);
    size_t used = call->op->p.experts.used;
    if (job->panels) {
        pack_input(job, x, token);
        return;
    }
    if (!job->batch) {
        st_act_halves halves = st_acts_halves(&job->inputs, token);
        call->isa->quantise_halves(x, job->embedding, &halves);
        return;
    }
    st_act_row first;
    bool done = false;
    for (size_t i = token * used; i < (token + 1) * used; i++) {
        if (job->list.place[i] == NO_PLACE) continue;
        st_act_row out = st_acts_row(&job->inputs, job->list.place[i], true);
        if (done) {
            copy_acts(&first, &out, job->embedding / ST_ACT_BLOCK);
            continue;
        }
        call->isa->quantise(x, job->embedding, &out);
        first = out;
        done = true;
    }
}

static void quantise_hidden(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const experts_job *job = context;
    uint32_t e = job->list.active[part], count = tokens_of(job, e);
    for (uint32_t i = 0; i < count; i++) {
        size_t place = job->list.places[e] + i;
        const float *x = job->hidden + place * job->width;
        if (job->panels) {
            st_panel_pack(job->panels, x, job->width, job->hidden_acts.memory, place);
            continue;
        }
        if (job->batch) {
            st_act_row out = st_acts_row(&job->hidden_acts, place, true);
            job->call->isa->quantise(x, job->width, &out);
        } else {
            st_act_halves out = st_acts_halves(&job->hidden_acts, place);
            job->call->isa->quantise_halves(x, job->width, &out);
        }
    }
}

/* Computes out[t × stride + column] from `columns` rows of an expert's matrix, starting at `first`, and the
 * activations of its tokens: the hidden rows if `hidden`, otherwise the inputs. `next`: the rows that a batch reads after
 * these; NULL: unknown. */
static void int8_columns(const experts_job *job, const st_bound_weight *matrix, uint32_t e, size_t first, size_t columns,
                         bool hidden, const unsigned char *next, float *scratch, float *out, size_t stride)
{
    const st_isa_type *type = &job->call->isa->types[matrix->type];
    const st_acts *acts = hidden ? &job->hidden_acts : &job->inputs;
    const unsigned char *rows = matrix->parts[e];
    uint32_t count = tokens_of(job, e), place = job->list.places[e];
    if (!job->batch) {
        for (uint32_t t = 0; t < count; t++) {
            size_t token = job->list.pair[job->list.first[e] + t] / job->call->op->p.experts.used;
            st_act_halves act = st_acts_halves(acts, hidden ? place + t : token);
            type->dots(rows + first * matrix->row_bytes, matrix->row_bytes, columns, &act, matrix->ne[0], out + t * stride);
        }
        return;
    }
    st_batch batch = {.acts = *acts, .tile = place / ST_ACT_TILE, .tokens = count, .next = next};
    if (job->panels) batch.panel = acts->memory + st_panel_bytes(acts->width, place);
    st_batch_multiply(job->call, matrix, rows, first, columns, &batch, scratch, out, stride);
}

/* The same in float, for weights without an int8 kernel. */
static void float_columns(const experts_job *job, const st_bound_weight *matrix, uint32_t e, size_t first, size_t columns,
                          bool hidden, const unsigned char *next, float *scratch, float *out, size_t stride)
{
    (void)next;
    const st_cpu_call *call = job->call;
    uint32_t count = tokens_of(job, e), used = call->op->p.experts.used;
    for (size_t i = 0; i < columns; i++) {
        matrix->info->dequantise((const unsigned char *)matrix->parts[e] + (first + i) * matrix->row_bytes, scratch,
                                 matrix->ne[0] / matrix->info->block);
        for (uint32_t t = 0; t < count; t++) {
            const float *x = hidden ? job->hidden + (job->list.places[e] + t) * job->width
                                    : st_cpu_row(call->bound->in[0], job->list.pair[job->list.first[e] + t] / used);
            out[t * stride + i] = call->isa->dot_float[ST_TYPE_F32](scratch, x, matrix->ne[0]);
        }
    }
}

static void expert_columns(const experts_job *job, const st_bound_weight *matrix, uint32_t e, size_t first, size_t columns,
                           bool hidden, const unsigned char *next, float *scratch, float *out, size_t stride)
{
    bool int8 = hidden ? job->int8_out : job->int8_in;
    (int8 ? int8_columns : float_columns)(job, matrix, e, first, columns, hidden, next, scratch, out, stride);
}

/* Adds `columns` of an expert's biases, from `first` on, to the rows of all its tokens; `width`: biases of an expert. */
static void add_bias(const experts_job *job, const st_bound_weight *bias, uint32_t e, size_t width, size_t first, size_t columns,
                     float *out, size_t stride)
{
    if (!bias->data) return;
    for (size_t i = 0; i < columns; i++) {
        float value = st_cpu_element(bias, e * width + first + i);
        for (uint32_t t = 0; t < tokens_of(job, e); t++) out[t * stride + i] += value;
    }
}

/* The beginning of the columns from `first` on: kernels prefetch within the rows that they are given. An integer because the
 * columns may continue in the next expert, and the prefetch past the end of this one. */
static void prefetch_first(const experts_job *job, const st_bound_weight *matrix, uint32_t e, size_t first, size_t columns)
{
    if (job->batch) return;
    uintptr_t from = (uintptr_t)matrix->parts[e] + first * matrix->row_bytes;
    size_t bytes = smaller(columns * matrix->row_bytes, FIRST_BYTES);
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)(from + at), 0, 2);
}

/* (w × x) · row = w × (x · row): scales gate and up of each token by its weight. */
static void weigh_inputs(const experts_job *job, uint32_t e, float *gates, float *ups, size_t columns)
{
    const st_cpu_call *call = job->call;
    if (!call->op->p.experts.weight_on_input) return;
    for (uint32_t t = 0; t < tokens_of(job, e); t++) {
        float *gate = gates + t * job->width, *up = ups + t * job->columns;
        float weight = pair_weight(call, job->list.pair[job->list.first[e] + t]);
        call->isa->scale(gate, weight, gate, columns);
        if (job->up) call->isa->scale(up, weight, up, columns);
    }
}

static const unsigned char *row_of(const st_bound_weight *matrix, uint32_t e, size_t row)
{
    return (const unsigned char *)matrix->parts[e] + row * matrix->row_bytes;
}

/* Some columns of an expert's hidden rows: act(gate) × up. `more`: those behind them follow. */
static void hidden_columns(const experts_job *job, uint32_t worker, uint32_t e, size_t first, size_t columns, bool more)
{
    const st_cpu_call *call = job->call;
    const unsigned char *then = more ? row_of(job->gate, e, first + columns) : NULL;
    float *ups = st_cpu_scratch(call, worker); /* [rows, columns] */
    float *rest = ups + (size_t)call->rows * job->columns;
    float *gates = job->hidden + job->list.places[e] * job->width + first;
    if (job->up) prefetch_first(job, job->up, e, job->up_first + first, columns);
    expert_columns(job, job->gate, e, first, columns, false, job->up ? row_of(job->up, e, job->up_first + first) : then, rest, gates,
                   job->width);
    if (job->up) expert_columns(job, job->up, e, job->up_first + first, columns, false, then, rest, ups, job->columns);
    weigh_inputs(job, e, gates, ups, columns);
    add_bias(job, &call->bound->weight[4], e, job->width, first, columns, gates, job->width);
    add_bias(job, &call->bound->weight[5], e, job->width, first, columns, ups, job->columns);
    for (uint32_t t = 0; t < tokens_of(job, e); t++) {
        float *gate = gates + t * job->width;
        if (job->up) call->isa->gated(call->op->p.experts.activation, gate, ups + t * job->columns, gate, columns);
        else call->isa->relu_squared(gate, gate, columns);
    }
}

/* A part is some strips of one expert. */
static void hidden_batch_part(void *context, uint32_t worker, size_t part)
{
    const experts_job *job = context;
    size_t own = job->strips * job->columns, parts = over(job->width, own), first = part % parts * own, end = smaller(first + own, job->width);
    for (size_t at = first, columns; at < end; at += columns) {
        columns = smaller(end - at, job->columns);
        hidden_columns(job, worker, job->list.active[part / parts], at, columns, at + columns < end);
    }
}

/* A part is some columns of the active experts, which are numbered consecutively. */
static void hidden_part(void *context, uint32_t worker, size_t part)
{
    const experts_job *job = context;
    st_columns own = st_parts_at(&job->hidden_parts, part);
    for (size_t at = own.first, end = own.first + own.count, columns; at < end; at += columns) {
        size_t first = at % job->width, next;
        columns = smaller(smaller(end - at, job->columns), job->width - first);
        next = at + columns;
        if (next < end) prefetch_first(job, job->gate, job->list.active[next / job->width], next % job->width, end - next);
        hidden_columns(job, worker, job->list.active[at / job->width], first, columns, false);
    }
}

/* --- output ------------------------------------------------------------------------------------------------------- */

/* Some columns of the output, summed over all experts in order. */
static void output_columns(const experts_job *job, uint32_t worker, size_t first, size_t columns)
{
    const st_cpu_call *call = job->call;
    float *products = st_cpu_scratch(call, worker); /* [rows, columns] */
    float *rest = products + (size_t)call->rows * job->columns;
    for (size_t row = 0; row < call->rows; row++) memset(st_cpu_row(call->bound->out, row) + first, 0, columns * sizeof(float));
    for (uint32_t a = 0; a < job->list.active_count; a++) {
        uint32_t e = job->list.active[a], count = tokens_of(job, e);
        bool more = a + 1 < job->list.active_count;
        if (more) prefetch_first(job, job->down, job->list.active[a + 1], first, columns);
        expert_columns(job, job->down, e, first, columns, true, more ? row_of(job->down, job->list.active[a + 1], first) : NULL, rest,
                       products, job->columns);
        add_bias(job, &call->bound->weight[6], e, job->embedding, first, columns, products, job->columns);
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

static void output_batch_part(void *context, uint32_t worker, size_t part)
{
    const experts_job *job = context;
    output_columns(job, worker, part * job->columns, smaller(job->embedding - part * job->columns, job->columns));
}

static void output_part(void *context, uint32_t worker, size_t part)
{
    const experts_job *job = context;
    st_columns own = st_parts_at(&job->output_parts, part);
    for (size_t at = 0; at < own.count; at += job->columns)
        output_columns(job, worker, own.first + at, smaller(own.count - at, job->columns));
}

/* --- the operation ------------------------------------------------------------------------------------------------ */

static bool is_int8(const st_isa *isa, const st_bound_weight *matrix)
{
    return isa->types[matrix->type].dots && matrix->ne[0] % ST_ACT_BLOCK == 0;
}

static void set_up(experts_job *job, const st_cpu_call *call)
{
    const st_bound_op *bound = call->bound;
    bool fused = call->op->p.experts.fused;
    *job = (experts_job){.call = call, .gate = &bound->weight[0], .up = fused ? &bound->weight[0] : &bound->weight[1],
                         .down = &bound->weight[2], .up_first = fused ? call->op->p.experts.width : 0,
                         .width = call->op->p.experts.width, .embedding = bound->in[0].width,
                         .batch = is_batch(call->op, call->rows)};
    job->panels = is_panel(call->op, call->rows) ? call->panels : NULL;
    if (call->op->p.experts.ungated) job->up = NULL;
    job->int8_in = is_int8(call->isa, job->gate) && (!job->up || is_int8(call->isa, job->up));
    job->int8_out = is_int8(call->isa, job->down);
    layout at = lay_out(call->op, job->embedding, call->rows);
    void *base = call->shared;
    job->list.first = (uint32_t *)base + at.first / sizeof(uint32_t);
    job->list.places = (uint32_t *)base + at.places / sizeof(uint32_t);
    job->list.pair = (uint32_t *)base + at.pair / sizeof(uint32_t);
    job->list.place = (uint32_t *)base + at.place / sizeof(uint32_t);
    job->list.next = (uint32_t *)base + at.next / sizeof(uint32_t);
    job->list.active = (uint32_t *)base + at.active / sizeof(uint32_t);
    job->hidden = (float *)base + at.hidden / sizeof(float);
    job->inputs = (st_acts){.memory = call->shared + at.inputs, .width = job->embedding};
    job->hidden_acts = (st_acts){.memory = call->shared + at.hidden_acts, .width = job->width};
}

/* The parts of the passes of a few rows. */
static void cut_passes(experts_job *job)
{
    size_t active = job->list.active_count, most = job->call->rows > 1 ? PART_BYTES : 0;
    uint32_t threads = st_pool_threads(job->call->pool);
    st_parts_of hidden = {active * job->width, COLUMNS_STEP, job->gate->row_bytes + (job->up ? job->up->row_bytes : 0), most};
    st_parts_of output = {job->embedding, COLUMNS_STEP, active ? active * job->down->row_bytes : 1, most};
    st_parts_cut(&job->hidden_parts, &hidden, threads);
    st_parts_cut(&job->output_parts, &output, threads);
}

/* Threads that are done with the first pass prefetch for the second. */
static void expect_output(const experts_job *job)
{
    st_pool_range ranges[ST_POOL_RANGES];
    uint32_t count = job->list.active_count < ST_POOL_RANGES ? job->list.active_count : ST_POOL_RANGES;
    size_t row_bytes = job->down->row_bytes, step = job->output_parts.levels[0].size * row_bytes;
    for (uint32_t a = 0; a < count; a++)
        ranges[a] = (st_pool_range){job->down->parts[job->list.active[a]], step, smaller(step, ST_EXPECTED_BYTES / count),
                                    job->embedding * row_bytes};
    st_pool_expect(job->call->pool, ranges, count);
}

static void run_few_rows(experts_job *job)
{
    const st_cpu_call *call = job->call;
    cut_passes(job);
    expect_output(job);
    if (job->int8_in) st_pool_run(call->pool, quantise_input, job, call->rows);
    st_pool_run(call->pool, hidden_part, job, job->hidden_parts.count);
    if (job->int8_out) st_pool_run(call->pool, quantise_hidden, job, job->list.active_count);
    st_pool_expect(call->pool, call->next, call->next ? 1 : 0);
    st_pool_run(call->pool, output_part, job, job->output_parts.count);
}

static void run_batch(experts_job *job)
{
    st_pool *pool = job->call->pool;
    size_t active = job->list.active_count, strips = active * over(job->width, job->columns), enough = 8 * (size_t)st_pool_threads(pool);
    job->strips = smaller(strips / enough + 1, STRIPS_MAX);
    if (job->int8_in) st_pool_run(pool, quantise_input, job, job->call->rows);
    st_pool_run(pool, hidden_batch_part, job, active * over(job->width, job->strips * job->columns));
    if (job->int8_out) st_pool_run(pool, quantise_hidden, job, active);
    st_pool_run(pool, output_batch_part, job, over(job->embedding, job->columns));
}

void st_cpu_fast_experts(const st_cpu_call *call)
{
    experts_job job;
    if (call->op->p.experts.ungated && call->op->p.experts.activation != ST_ACT_RELU_SQUARED) {
        st_cpu_ref_kernels[ST_OP_EXPERTS](call);
        return;
    }
    set_up(&job, call);
    list_pairs(&job);
    job.columns = columns_max(call->op, call->rows, job.panels);
    (job.batch ? run_batch : run_few_rows)(&job);
}
