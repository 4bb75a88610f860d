/* Attention on the fast path. A batch in floats: tiles of keys are turned once and meet the queries of a block of rows and
 * of all heads that share them, with a running softmax (fast_bytes.c has the same in bytes). A few rows: the cache is read
 * once, in the order in which it lies, split into stretches of positions so that every thread has some, and the stretches are
 * joined in order. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast_attention.h"
#include "quant/blocks.h"
#include "quant/row.h"

enum {
    KEYS = ST_KEY_TILE,
    STRETCH = 64,       /* positions of a stretch, or some times as many … */
    FEW = ST_FEW_KEYS, /* … of which a few rows take so many at a time */
    PARTS_PER_THREAD = 4,
    RUN = ST_KEY_RUN,      /* positions that all heads of a few rows take before the next (few.inc) … */
    FETCH_BYTES = 3 << 10, /* … and what is fetched ahead, behind the next run */
    VEC = 16,
};

st_attention_shape st_attention_shape_of(const st_op *op)
{
    st_attention_shape s = {.heads = op->p.attention.heads, .kv_heads = op->p.attention.kv_heads,
                            .key = op->p.attention.key_length, .value = op->p.attention.value_length};
    s.shared = s.heads / s.kv_heads;
    return s;
}

st_cache_side st_cache_keys(const st_cpu_call *call)
{
    return (st_cache_side){call->bound->kv.keys, call->bound->kv.key_row_bytes, call->op->p.attention.key_length};
}

st_cache_side st_cache_values(const st_cpu_call *call)
{
    return (st_cache_side){call->bound->kv.values, call->bound->kv.value_row_bytes, call->op->p.attention.value_length};
}

void st_cache_load(const st_cpu_call *call, const st_cache_side *side, uint32_t first, size_t count, size_t head,
                   size_t padded, uintptr_t fetch, float *out)
{
    const st_kv_view *kv = &call->bound->kv;
    size_t size = side->width, from = st_row_bytes(kv->type, head * size), bytes = st_row_bytes(kv->type, size);
    void (*to_float)(const void *row, float *out, size_t count) = call->isa->to_float[kv->type];
    for (size_t i = 0; i < count; i++, fetch += fetch ? bytes : 0) {
        const unsigned char *row = side->rows + (first + i) % kv->capacity * side->row_bytes;
        float *to = out + i * padded;
        if (fetch) st_fetch_lines(fetch, bytes);
        if (to_float) to_float(row + from, to, size);
        else if (size % ST_BLOCK == 0) call->isa->q8_to_float(row + from, to, size);
        else st_row_load(kv->type, row, head * size, size, to);
        for (size_t k = size; k < padded; k++) to[k] = 0;
    }
}

/* --- a block of rows ---------------------------------------------------------------------------------------------------------------- */

typedef struct block_state {
    size_t queries;   /* rows × shared heads */
    size_t padded;    /* the width of a value, in whole vectors */
    float *q;         /* [queries, key] */
    float *rows;      /* [KEYS, max(key, padded)] */
    float *turned;    /* [key, KEYS] */
    float *scores;    /* [queries, KEYS] */
    float *out;       /* [queries, padded] */
    float *largest, *sum; /* [queries] */
} block_state;

static size_t rows_of_block(const st_attention_shape *s)
{
    return s->shared >= ST_QUERY_BLOCK ? 1 : ST_QUERY_BLOCK / s->shared;
}

static block_state block_in(float *scratch, const st_attention_shape *s)
{
    block_state b = {.padded = (s->value + VEC - 1) / VEC * VEC, .q = scratch};
    size_t queries = rows_of_block(s) * s->shared, widest = s->key > b.padded ? s->key : b.padded;
    b.rows = b.q + queries * s->key;
    b.turned = b.rows + KEYS * widest;
    b.scores = b.turned + KEYS * s->key;
    b.out = b.scores + queries * KEYS;
    b.largest = b.out + queries * b.padded;
    b.sum = b.largest + queries;
    return b;
}

/* Query i of the block is row i / shared, head i % shared of the KV head's. */
static void gather_queries(const st_cpu_call *call, const st_attention_shape *s, size_t first_row, size_t kv_head, block_state *b)
{
    for (size_t i = 0; i < b->queries; i++) {
        const float *q = st_cpu_row(call->bound->in[0], first_row + i / s->shared) + (kv_head * s->shared + i % s->shared) * s->key;
        call->isa->scale(q, call->op->p.attention.scale, b->q + i * s->key, s->key);
        b->largest[i] = -INFINITY;
        b->sum[i] = 0;
    }
    memset(b->out, 0, b->queries * b->padded * sizeof *b->out);
}

/* Scores outside what a row sees become −∞; the rest is weighed against the largest so far. */
static void soften(const st_cpu_call *call, const st_attention_shape *s, uint32_t first_position, uint32_t tile, size_t count,
                   block_state *b)
{
    for (size_t i = 0; i < b->queries; i++) {
        uint32_t position = first_position + (uint32_t)(i / s->shared), from = st_cpu_first_seen(call->op, position);
        float *scores = b->scores + i * KEYS;
        size_t low = from > tile ? from - tile : 0;
        size_t high = position >= tile ? (size_t)position - tile + 1 : 0;
        if (high > count) high = count;
        if (low >= high) {
            memset(scores, 0, KEYS * sizeof *scores);
            continue;
        }
        float top = call->isa->maximum(scores + low, high - low);
        if (top > b->largest[i]) {
            float shrink = expf(b->largest[i] - top);
            b->sum[i] *= shrink;
            call->isa->scale(b->out + i * b->padded, shrink, b->out + i * b->padded, b->padded);
            b->largest[i] = top;
        }
        b->sum[i] += call->isa->exp_and_sum(scores + low, b->largest[i], high - low);
        memset(scores, 0, low * sizeof *scores);
        memset(scores + high, 0, (KEYS - high) * sizeof *scores);
    }
}

/* A tile of keys and values in floats. */
static void block_tile(const st_cpu_call *call, const st_attention_shape *s, size_t kv_head, uint32_t position,
                       uint32_t tile, size_t count, block_state *b)
{
    st_cache_side keys = st_cache_keys(call), values = st_cache_values(call);
    st_cache_load(call, &keys, tile, count, kv_head, s->key, 0, b->rows);
    if (count < KEYS) memset(b->rows + count * s->key, 0, (KEYS - count) * s->key * sizeof *b->rows);
    call->isa->transpose(b->rows, s->key, b->turned, KEYS, KEYS, s->key);
    call->isa->gemm(b->q, s->key, b->turned, KEYS, b->scores, KEYS, b->queries, KEYS, s->key, false);
    soften(call, s, position, tile, count, b);
    st_cache_load(call, &values, tile, count, kv_head, b->padded, 0, b->rows);
    call->isa->gemm(b->scores, KEYS, b->rows, b->padded, b->out, b->padded, b->queries, b->padded, count,
                    true);
}

static void block_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    st_attention_shape s = st_attention_shape_of(call->op);
    size_t each = rows_of_block(&s), blocks = (call->rows + each - 1) / each;
    size_t kv_head = part % s.kv_heads, block = blocks - 1 - part / s.kv_heads; /* those that see most come first */
    size_t first_row = block * each;
    size_t rows = call->rows - first_row < each ? call->rows - first_row : each;
    block_state b = block_in(st_cpu_scratch(call, worker), &s);
    b.queries = rows * s.shared;
    gather_queries(call, &s, first_row, kv_head, &b);
    uint32_t position = call->step->position + (uint32_t)first_row, last = position + (uint32_t)rows - 1;
    for (uint32_t tile = st_cpu_first_seen(call->op, position); tile <= last; tile += KEYS) {
        size_t count = last - tile + 1 < KEYS ? last - tile + 1 : KEYS;
        block_tile(call, &s, kv_head, position, tile, count, &b);
    }
    for (size_t i = 0; i < b.queries; i++) {
        float *out = st_cpu_row(call->bound->out, first_row + i / s.shared) + (kv_head * s.shared + i % s.shared) * s.value;
        call->isa->scale(b.out + i * b.padded, 1 / b.sum[i], out, s.value);
    }
}

/* --- a few rows ------------------------------------------------------------------------------------------------------------------------ */

typedef struct few_job {
    const st_cpu_call *call;
    st_attention_shape shape;
    size_t stretches;       /* of every row … */
    size_t together;        /* … and of a part: more of them than one thread needs are read better by one */
    st_type type;           /* of what the kernels read: the cache's, or float */
    float *partial;         /* [row, stretch, head, value + 2]: sums, then the largest score and their sum */
} few_job;

/* A stretch is some times STRETCH, but for what the last one lacks: what is left over would cost as much as a whole one. */
static void stretch_of(const few_job *job, uint32_t position, size_t stretch, uint32_t *from, uint32_t *to)
{
    uint32_t first = st_cpu_first_seen(job->call->op, position);
    uint64_t units = ((uint64_t)position - first + STRETCH) / STRETCH, end = position + UINT64_C(1);
    uint64_t stop = first + units * (stretch + 1) / job->stretches * STRETCH;
    *from = first + (uint32_t)(units * stretch / job->stretches * STRETCH);
    *to = (uint32_t)(stop < end ? stop : end);
}

static float *partial_of(const few_job *job, size_t row, size_t stretch, size_t head)
{
    const st_attention_shape *s = &job->shape;
    return job->partial + ((row * job->stretches + stretch) * s->heads + head) * (s->value + 2);
}

/* What a worker holds of one row while it walks over a stretch. */
typedef struct few_state {
    float *q;       /* [heads, key], scaled and packed */
    float *rows;    /* [RUN, kv_heads, max(key, value)]: positions of a cache that is not of floats */
    float *scores;  /* [heads, FEW] */
    float *partial; /* [heads, value + 2] */
} few_state;

static few_state few_in(const few_job *job, uint32_t worker, size_t row, size_t stretch)
{
    const st_attention_shape *s = &job->shape;
    few_state state = {.q = st_cpu_scratch(job->call, worker), .partial = partial_of(job, row, stretch, 0)};
    state.rows = state.q + s->heads * s->key;
    state.scores = state.rows + RUN * s->kv_heads * (s->key > s->value ? s->key : s->value);
    const float *query = st_cpu_row(job->call->bound->in[0], row);
    job->call->isa->scale(query, job->call->op->p.attention.scale, state.q, s->heads * s->key);
    if (job->call->isa->pack_queries[job->type]) job->call->isa->pack_queries[job->type](state.q, s->heads, s->key);
    memset(state.partial, 0, s->heads * (s->value + 2) * sizeof *state.partial);
    for (size_t h = 0; h < s->heads; h++) state.partial[h * (s->value + 2) + s->value] = -INFINITY;
    return state;
}

/* Positions of a cache, all heads of them: as many as are wanted where they lie, or RUN at most as floats, where the type has
 * no kernel for heads of this width. What lies FETCH_BYTES behind a run is fetched meanwhile, in the order of the memory: the
 * machine's own prefetching knows no other. */
static st_cache_rows rows_at(const few_job *job, const st_cache_side *side, uint32_t position, size_t count, float *converted)
{
    const st_kv_view *kv = &job->call->bound->kv;
    const unsigned char *row = side->rows + position % kv->capacity * side->row_bytes;
    uintptr_t fetch = (uintptr_t)row + RUN * side->row_bytes + FETCH_BYTES;
    size_t heads = job->shape.kv_heads, width = heads * side->width;
    if (job->type == kv->type) return (st_cache_rows){row, side->row_bytes, count, heads, side->width, fetch};
    st_cache_side whole = {side->rows, side->row_bytes, width};
    if (count > RUN) count = RUN;
    st_cache_load(job->call, &whole, position, count, 0, width, fetch, converted);
    return (st_cache_rows){(const unsigned char *)converted, width * sizeof(float), count, heads, side->width, 0};
}

/* A tile against all heads of a row: keys, then values, are read in the order in which they lie. */
static void few_tile(const few_job *job, const few_state *state, uint32_t from, size_t count)
{
    const st_isa *isa = job->call->isa;
    const st_attention_shape *s = &job->shape;
    st_cache_side keys = st_cache_keys(job->call), values = st_cache_values(job->call);
    st_cache_rows rows;
    for (size_t i = 0; i < count; i += rows.count) {
        rows = rows_at(job, &keys, from + (uint32_t)i, count - i, state->rows);
        isa->dot_rows[job->type](state->q, s->key, s->shared, &rows, state->scores + i, FEW);
    }
    isa->soften(state->scores, FEW, s->heads, count, state->partial, s->value + 2, s->value);
    for (size_t i = 0; i < count; i += rows.count) {
        rows = rows_at(job, &values, from + (uint32_t)i, count - i, state->rows);
        isa->weigh_rows[job->type](state->scores + i, FEW, s->shared, &rows, state->partial, s->value + 2);
    }
}

/* How many positions from `position` on lie one behind the other, at most FEW. */
static size_t run_of(const few_job *job, uint32_t position, uint32_t end)
{
    const st_kv_view *kv = &job->call->bound->kv;
    size_t count = end - position < FEW ? end - position : FEW, room = kv->capacity - position % kv->capacity;
    return count < room ? count : room;
}

/* Nobody has fetched the beginning of a stretch: what rows_at has fetched begins behind it. */
static void fetch_first(const few_job *job, uint32_t position)
{
    const st_kv_view *kv = &job->call->bound->kv;
    size_t at = position % kv->capacity;
    st_fetch_lines((uintptr_t)kv->keys + at * kv->key_row_bytes, RUN * kv->key_row_bytes + FETCH_BYTES);
    st_fetch_lines((uintptr_t)kv->values + at * kv->value_row_bytes, RUN * kv->value_row_bytes + FETCH_BYTES);
}

/* Some stretches of a row, one behind the other. */
static void few_part(void *context, uint32_t worker, size_t part)
{
    const few_job *job = context;
    size_t parts = (job->stretches + job->together - 1) / job->together, row = part / parts, count;
    size_t stretch = part % parts * job->together, end = stretch + job->together;
    for (bool first = true; stretch < end && stretch < job->stretches; stretch++, first = false) {
        uint32_t from, to;
        stretch_of(job, job->call->step->position + (uint32_t)row, stretch, &from, &to);
        few_state state = few_in(job, worker, row, stretch);
        if (first) fetch_first(job, from);
        for (; from < to; from += (uint32_t)count) {
            count = run_of(job, from, to);
            few_tile(job, &state, from, count);
        }
    }
}

/* Joins the stretches of one head of one row, in order. */
static void join_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const few_job *job = context;
    const st_attention_shape *s = &job->shape;
    size_t row = part / s->heads, head = part % s->heads;
    const st_isa *isa = job->call->isa;
    float *out = st_cpu_row(job->call->bound->out, row) + head * s->value, largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < job->stretches; i++) largest = fmaxf(largest, partial_of(job, row, i, head)[s->value]);
    memset(out, 0, s->value * sizeof *out);
    for (size_t i = 0; i < job->stretches; i++) {
        const float *partial = partial_of(job, row, i, head);
        if (partial[s->value + 1] == 0) continue; /* an empty stretch */
        float share = expf(partial[s->value] - largest);
        isa->add_scaled(out, partial, share, s->value);
        sum += share * partial[s->value + 1];
    }
    isa->scale(out, 1 / sum, out, s->value);
}

static void few_rows(const st_cpu_call *call)
{
    few_job job = {.call = call, .shape = st_attention_shape_of(call->op), .partial = (float *)(void *)call->shared};
    bool blocks = job.shape.key % ST_BLOCK == 0 && job.shape.value % ST_BLOCK == 0;
    job.type = call->bound->kv.type == ST_TYPE_Q8_0 && !blocks ? ST_TYPE_F32 : call->bound->kv.type;
    uint32_t last = call->step->position + call->rows - 1;
    job.stretches = (last - st_cpu_first_seen(call->op, last) + STRETCH) / STRETCH;
    if (job.stretches > ST_STRETCHES) job.stretches = ST_STRETCHES;
    job.together = job.stretches / (PARTS_PER_THREAD * st_pool_threads(call->pool));
    if (job.together == 0) job.together = 1;
    st_pool_run(call->pool, few_part, &job, call->rows * ((job.stretches + job.together - 1) / job.together));
    st_pool_run(call->pool, join_part, &job, call->rows * job.shape.heads);
}

void st_cpu_fast_attention(const st_cpu_call *call)
{
    if (call->rows < ST_FEW_ROWS) {
        few_rows(call);
        return;
    }
    if (st_cpu_attention_in_bytes(call)) return;
    st_attention_shape s = st_attention_shape_of(call->op);
    size_t each = rows_of_block(&s), blocks = (call->rows + each - 1) / each;
    st_pool_run(call->pool, block_part, (void *)(uintptr_t)call, blocks * s.kv_heads);
}
