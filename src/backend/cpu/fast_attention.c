/* Attention on the fast path. A batch: tiles of keys are turned once and meet the queries of a block of rows and of all
 * heads that share them, with a running softmax. A few rows: the cache is read once, split into stretches of positions so
 * that every thread has some, and the stretches are joined in order. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast.h"
#include "quant/blocks.h"
#include "quant/row.h"

enum {
    KEYS = ST_KEY_TILE,
    STRETCH = 256, /* positions of a stretch, at least */
    VEC = 16,
};

typedef struct attention_shape {
    size_t heads, kv_heads, shared; /* shared: heads that read one KV head */
    size_t key, value, value_padded;
    size_t rows_per_block;
} attention_shape;

static attention_shape shape_of(const st_op *op)
{
    attention_shape s = {.heads = op->p.attention.heads, .kv_heads = op->p.attention.kv_heads,
                         .key = op->p.attention.key_length, .value = op->p.attention.value_length};
    s.shared = s.heads / s.kv_heads;
    s.value_padded = (s.value + VEC - 1) / VEC * VEC;
    s.rows_per_block = s.shared >= ST_QUERY_BLOCK ? 1 : ST_QUERY_BLOCK / s.shared;
    return s;
}

/* `count` positions of one KV head as float rows of `padded` elements. */
static void load_rows(const st_cpu_call *call, const unsigned char *cache, size_t row_bytes, uint32_t first, size_t count,
                      size_t head, size_t size, size_t padded, float *out)
{
    const st_kv_view *kv = &call->bound->kv;
    for (size_t i = 0; i < count; i++) {
        const unsigned char *row = cache + (first + i) % kv->capacity * row_bytes;
        float *to = out + i * padded;
        if (call->isa->to_float[kv->type]) call->isa->to_float[kv->type](row + st_row_bytes(kv->type, head * size), to, size);
        else if (size % ST_BLOCK == 0) call->isa->q8_to_float(row + st_row_bytes(kv->type, head * size), to, size);
        else st_row_load(kv->type, row, head * size, size, to);
        memset(to + size, 0, (padded - size) * sizeof *to);
    }
}

/* --- a block of rows ---------------------------------------------------------------------------------------------------------------- */

typedef struct block_state {
    size_t queries;   /* rows × shared heads */
    float *q;         /* [queries, key] */
    float *rows;      /* [KEYS, max(key, value_padded)] */
    float *turned;    /* [key, KEYS] */
    float *scores;    /* [queries, KEYS] */
    float *out;       /* [queries, value_padded] */
    float *largest, *sum; /* [queries] */
} block_state;

static block_state block_in(float *scratch, const attention_shape *s)
{
    size_t queries = s->rows_per_block * s->shared, widest = s->key > s->value_padded ? s->key : s->value_padded;
    block_state b = {.q = scratch};
    b.rows = b.q + queries * s->key;
    b.turned = b.rows + KEYS * widest;
    b.scores = b.turned + KEYS * s->key;
    b.out = b.scores + queries * KEYS;
    b.largest = b.out + queries * s->value_padded;
    b.sum = b.largest + queries;
    return b;
}

/* Query i of the block is row i / shared, head i % shared of the KV head's. */
static void gather_queries(const st_cpu_call *call, const attention_shape *s, size_t first_row, size_t kv_head, block_state *b)
{
    for (size_t i = 0; i < b->queries; i++) {
        const float *q = st_cpu_row(call->bound->in[0], first_row + i / s->shared) + (kv_head * s->shared + i % s->shared) * s->key;
        call->isa->scale(q, call->op->p.attention.scale, b->q + i * s->key, s->key);
        b->largest[i] = -INFINITY;
        b->sum[i] = 0;
    }
    memset(b->out, 0, b->queries * s->value_padded * sizeof *b->out);
}

/* Scores outside what a row sees become −∞; the rest is weighed against the largest so far. */
static void soften(const st_cpu_call *call, const attention_shape *s, uint32_t first_position, uint32_t tile, size_t count,
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
            call->isa->scale(b->out + i * s->value_padded, shrink, b->out + i * s->value_padded, s->value_padded);
            b->largest[i] = top;
        }
        b->sum[i] += call->isa->exp_and_sum(scores + low, b->largest[i], high - low);
        memset(scores, 0, low * sizeof *scores);
        memset(scores + high, 0, (KEYS - high) * sizeof *scores);
    }
}

static void block_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_kv_view *kv = &call->bound->kv;
    attention_shape s = shape_of(call->op);
    size_t kv_head = part % s.kv_heads, first_row = part / s.kv_heads * s.rows_per_block;
    size_t rows = call->rows - first_row < s.rows_per_block ? call->rows - first_row : s.rows_per_block;
    block_state b = block_in(st_cpu_scratch(call, worker), &s);
    b.queries = rows * s.shared;
    gather_queries(call, &s, first_row, kv_head, &b);
    uint32_t position = call->step->position + (uint32_t)first_row, last = position + (uint32_t)rows - 1;
    for (uint32_t tile = st_cpu_first_seen(call->op, position); tile <= last; tile += KEYS) {
        size_t count = last - tile + 1 < KEYS ? last - tile + 1 : KEYS;
        load_rows(call, kv->keys, kv->key_row_bytes, tile, count, kv_head, s.key, s.key, b.rows);
        if (count < KEYS) memset(b.rows + count * s.key, 0, (KEYS - count) * s.key * sizeof *b.rows);
        call->isa->transpose(b.rows, s.key, b.turned, KEYS, KEYS, s.key);
        call->isa->gemm(b.q, s.key, b.turned, KEYS, b.scores, KEYS, b.queries, KEYS, s.key, false);
        soften(call, &s, position, tile, count, &b);
        load_rows(call, kv->values, kv->value_row_bytes, tile, count, kv_head, s.value, s.value_padded, b.rows);
        call->isa->gemm(b.scores, KEYS, b.rows, s.value_padded, b.out, s.value_padded, b.queries, s.value_padded, count, true);
    }
    for (size_t i = 0; i < b.queries; i++) {
        float *out = st_cpu_row(call->bound->out, first_row + i / s.shared) + (kv_head * s.shared + i % s.shared) * s.value;
        call->isa->scale(b.out + i * s.value_padded, 1 / b.sum[i], out, s.value);
    }
}

/* --- a few rows ------------------------------------------------------------------------------------------------------------------------ */

typedef struct few_job {
    const st_cpu_call *call;
    attention_shape shape;
    size_t stretches;       /* of every row */
    float *partial;         /* [row, kv head, stretch, shared, value + 2]: sums, then the largest score and their sum */
} few_job;

static void stretch_of(const few_job *job, uint32_t position, size_t stretch, uint32_t *from, uint32_t *to)
{
    uint32_t first = st_cpu_first_seen(job->call->op, position), count = position - first + 1;
    uint32_t each = (uint32_t)((count + job->stretches - 1) / job->stretches);
    uint64_t start = (uint64_t)first + (uint64_t)each * stretch, end = start + each;
    *from = start > position ? position + 1 : (uint32_t)start;
    *to = end > (uint64_t)position + 1 ? position + 1 : (uint32_t)end;
}

static float *partial_of(const few_job *job, size_t row, size_t kv_head, size_t stretch)
{
    const attention_shape *s = &job->shape;
    return job->partial + ((row * s->kv_heads + kv_head) * job->stretches + stretch) * s->shared * (s->value + 2);
}

/* Keys or values of some positions as float rows: where they lie, or converted into scratch. */
typedef struct float_rows {
    const float *first;
    size_t stride; /* floats from row to row */
} float_rows;

static float_rows rows_at(const st_cpu_call *call, const unsigned char *cache, size_t row_bytes, uint32_t position,
                          size_t count, size_t head, size_t size, float *scratch)
{
    const st_kv_view *kv = &call->bound->kv;
    if (kv->type == ST_TYPE_F32) {
        const unsigned char *row = cache + position % kv->capacity * row_bytes;
        return (float_rows){(const float *)(const void *)row + head * size, row_bytes / sizeof(float)};
    }
    load_rows(call, cache, row_bytes, position, count, head, size, size, scratch);
    return (float_rows){scratch, size};
}

/* A tile of keys and values against one of the heads that share them. `scores` is [KEYS]. */
static void few_tile(const few_job *job, const float *query, float_rows keys, float_rows values, size_t count, float *scores,
                     float *partial)
{
    const st_isa *isa = job->call->isa;
    const attention_shape *s = &job->shape;
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const float *four[4];
        for (size_t k = 0; k < 4; k++) four[k] = keys.first + (i + k) * keys.stride;
        isa->dot_four(query, four, s->key, scores + i);
    }
    for (; i < count; i++) scores[i] = isa->dot_float[ST_TYPE_F32](keys.first + i * keys.stride, query, s->key);
    isa->scale(scores, job->call->op->p.attention.scale, scores, count);
    float top = isa->maximum(scores, count), *largest = partial + s->value, *sum = largest + 1;
    if (top > *largest) {
        float shrink = expf(*largest - top);
        isa->scale(partial, shrink, partial, s->value);
        *sum *= shrink;
        *largest = top;
    }
    *sum += isa->exp_and_sum(scores, *largest, count);
    isa->weigh(values.first, values.stride, count, scores, partial, s->value);
}

/* How many positions from `position` on lie one behind the other, at most a tile. */
static size_t run_of(const st_kv_view *kv, uint32_t position, uint32_t end)
{
    size_t count = end - position < KEYS ? end - position : KEYS, room = kv->capacity - position % kv->capacity;
    return count < room ? count : room;
}

static void few_part(void *context, uint32_t worker, size_t part)
{
    const few_job *job = context;
    const st_cpu_call *call = job->call;
    const attention_shape *s = &job->shape;
    const st_kv_view *kv = &call->bound->kv;
    size_t stretch = part % job->stretches, kv_head = part / job->stretches % s->kv_heads;
    size_t row = part / job->stretches / s->kv_heads;
    uint32_t from, to;
    stretch_of(job, call->step->position + (uint32_t)row, stretch, &from, &to);
    float *key_scratch = st_cpu_scratch(call, worker), *value_scratch = key_scratch + KEYS * s->key;
    float *scores = value_scratch + KEYS * s->value, *partial = partial_of(job, row, kv_head, stretch);
    for (size_t h = 0; h < s->shared; h++) {
        float *mine = partial + h * (s->value + 2);
        memset(mine, 0, (s->value + 2) * sizeof *mine);
        mine[s->value] = -INFINITY;
    }
    while (from < to) {
        size_t count = run_of(kv, from, to);
        float_rows keys = rows_at(call, kv->keys, kv->key_row_bytes, from, count, kv_head, s->key, key_scratch);
        float_rows values = rows_at(call, kv->values, kv->value_row_bytes, from, count, kv_head, s->value, value_scratch);
        for (size_t h = 0; h < s->shared; h++) {
            const float *query = st_cpu_row(call->bound->in[0], row) + (kv_head * s->shared + h) * s->key;
            few_tile(job, query, keys, values, count, scores, partial + h * (s->value + 2));
        }
        from += (uint32_t)count;
    }
}

/* Joins the stretches of one head of one row, in order. */
static void join_stretches(const few_job *job, size_t row, size_t head)
{
    const attention_shape *s = &job->shape;
    const st_isa *isa = job->call->isa;
    float *out = st_cpu_row(job->call->bound->out, row) + head * s->value, largest = -INFINITY, sum = 0;
    size_t offset = head % s->shared * (s->value + 2);
    for (size_t i = 0; i < job->stretches; i++)
        largest = fmaxf(largest, (partial_of(job, row, head / s->shared, i) + offset)[s->value]);
    memset(out, 0, s->value * sizeof *out);
    for (size_t i = 0; i < job->stretches; i++) {
        const float *partial = partial_of(job, row, head / s->shared, i) + offset;
        if (partial[s->value + 1] == 0) continue; /* an empty stretch */
        float share = expf(partial[s->value] - largest);
        isa->add_scaled(out, partial, share, s->value);
        sum += share * partial[s->value + 1];
    }
    isa->scale(out, 1 / sum, out, s->value);
}

static void few_rows(const st_cpu_call *call)
{
    few_job job = {.call = call, .shape = shape_of(call->op), .partial = (float *)(void *)call->shared};
    uint32_t last = call->step->position + call->rows - 1;
    job.stretches = (last - st_cpu_first_seen(call->op, last) + STRETCH) / STRETCH;
    if (job.stretches > ST_STRETCHES) job.stretches = ST_STRETCHES;
    st_pool_run(call->pool, few_part, &job, call->rows * job.shape.kv_heads * job.stretches);
    for (size_t row = 0; row < call->rows; row++)
        for (size_t head = 0; head < job.shape.heads; head++) join_stretches(&job, row, head);
}

void st_cpu_fast_attention(const st_cpu_call *call)
{
    if (call->rows < ST_FEW_ROWS) {
        few_rows(call);
        return;
    }
    attention_shape s = shape_of(call->op);
    size_t blocks = (call->rows + s.rows_per_block - 1) / s.rows_per_block;
    st_pool_run(call->pool, block_part, (void *)(uintptr_t)call, blocks * s.kv_heads);
}
