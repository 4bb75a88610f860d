/* Attention on the fast path.
 *
 * Prompts: a block of queries that read the same KV head is multiplied with tiles of keys and values, with an online
 * softmax. Products are float32; for narrower KV each float is split into bfloat16 halves where the CPU has fast bfloat16
 * products. A tile covers the same positions in every batch, so a row's result does not depend on its neighbours.
 *
 * Few rows (decode): the KV cache is read once, in memory order, split into stretches of positions so that every thread
 * has work; the partial sums of the stretches are added in order. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast.h"
#include "quant/blocks.h"
#include "quant/row.h"

enum {
    KEYS = ST_KEY_TILE,
    STRETCH = 64,      /* a stretch is a multiple of this many positions */
    FEW = ST_FEW_KEYS, /* positions per step with few rows */
    PARTS_PER_THREAD = 4,
    ROWS_MIN = 16, /* least rows of a block: each block converts all the keys and values that it reads */
    RUN = ST_KEY_RUN,          /* positions of a run: all their heads are read before the next run (few.inc) */
    PREFETCH_BYTES = 3 << 10,  /* distance of the prefetch past the next run */
    VEC = 16,                  /* floats in the widest register */
    TILE = ST_SPLIT_TILE,
    CHUNK = ST_SPLIT_CHUNK,
};

typedef struct shape {
    size_t heads, kv_heads, shared; /* shared: query heads that read one KV head */
    size_t key, value;              /* elements of a head */
} shape;

static shape shape_of(const st_op *op)
{
    shape s = {.heads = op->p.attention.heads, .kv_heads = op->p.attention.kv_heads,
               .key = op->p.attention.key_length, .value = op->p.attention.value_length};
    s.shared = s.heads / s.kv_heads;
    return s;
}

/* The keys or the values of a KV cache. */
typedef struct cache_side {
    const unsigned char *rows;
    size_t row_bytes;
    size_t width; /* elements of a head */
} cache_side;

static cache_side keys_of(const st_cpu_call *call)
{
    return (cache_side){call->bound->kv.keys, call->bound->kv.key_row_bytes, call->op->p.attention.key_length};
}

static cache_side values_of(const st_cpu_call *call)
{
    return (cache_side){call->bound->kv.values, call->bound->kv.value_row_bytes, call->op->p.attention.value_length};
}

static void prefetch(uintptr_t from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)(from + at), 0, 2);
}

/* Loads `count` positions of one KV head as float rows, zero-padded to `padded` elements. Meanwhile it prefetches the
 * same number of bytes from `ahead` on, unless `ahead` is 0. */
static void load_rows(const st_cpu_call *call, const cache_side *side, uint32_t first, size_t count, size_t head,
                      size_t padded, uintptr_t ahead, float *out)
{
    const st_kv_view *kv = &call->bound->kv;
    size_t size = side->width, from = st_row_bytes(kv->type, head * size), bytes = st_row_bytes(kv->type, size);
    void (*to_float)(const void *row, float *out, size_t count) = call->isa->to_float[kv->type];
    for (size_t i = 0; i < count; i++, ahead += ahead ? bytes : 0) {
        const unsigned char *row = side->rows + (first + i) % kv->capacity * side->row_bytes;
        float *to = out + i * padded;
        if (ahead) prefetch(ahead, bytes);
        if (to_float) to_float(row + from, to, size);
        else if (size % ST_BLOCK == 0) call->isa->q8_to_float(row + from, to, size);
        else st_row_load(kv->type, row, head * size, size, to);
        for (size_t k = size; k < padded; k++) to[k] = 0;
    }
}

/* --- a batch of rows ------------------------------------------------------------------------------------------------- */

/* The scratch of a worker. */
typedef struct block_state {
    const st_isa_split *split; /* NULL: products are float32 */
    size_t rows, queries;      /* queries: rows × shared, padded to whole tiles */
    size_t key, value;         /* elements of a head, padded to whole chunks and tiles */
    size_t stride;             /* of sums: `value` sums, the maximum, the sum of weights */
    float *q;                  /* [queries, key] */
    float *tile;               /* [KEYS, max(key, value)] */
    float *transposed;         /* [key, KEYS] */
    float *scores;             /* [queries, KEYS] */
    float *sums;               /* [queries, stride] */
} block_state;

static size_t round_up(size_t count, size_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

/* Rows of a block: as many as fit into the scratch, fewer if threads would be idle. */
static size_t rows_of_block(const st_cpu_call *call, const shape *s)
{
    size_t most = s->shared >= ST_QUERY_BLOCK ? 1 : ST_QUERY_BLOCK / s->shared;
    size_t fair = call->rows * s->kv_heads / (PARTS_PER_THREAD * st_pool_threads(call->pool));
    if (fair < ROWS_MIN) fair = ROWS_MIN;
    return fair < most ? fair : most;
}

static block_state block_in(const st_cpu_call *call, uint32_t worker, const shape *s, size_t rows)
{
    block_state b = {.split = call->bound->kv.type == ST_TYPE_F32 ? NULL : call->split, .rows = rows};
    b.key = b.split ? round_up(s->key, CHUNK) : s->key;
    b.value = round_up(s->value, TILE);
    b.stride = b.value + TILE;
    b.queries = round_up(rows * s->shared, TILE);
    b.q = st_cpu_scratch(call, worker);
    b.tile = b.q + b.queries * b.key;
    b.transposed = b.tile + KEYS * (b.key > b.value ? b.key : b.value);
    b.scores = b.transposed + KEYS * b.key;
    b.sums = b.scores + b.queries * KEYS;
    return b;
}

/* Query i of the block is row i / shared and the (i % shared)-th of the query heads that read the KV head. */
static void gather_queries(const st_cpu_call *call, const shape *s, size_t first_row, size_t kv_head, block_state *b)
{
    memset(b->sums, 0, b->queries * b->stride * sizeof *b->sums);
    memset(b->q, 0, b->queries * b->key * sizeof *b->q);
    for (size_t i = 0; i < b->rows * s->shared; i++) {
        const float *q = st_cpu_row(call->bound->in[0], first_row + i / s->shared) + (kv_head * s->shared + i % s->shared) * s->key;
        call->isa->scale(q, call->op->p.attention.scale, b->q + i * b->key, s->key);
        b->sums[i * b->stride + b->value] = -INFINITY;
    }
    if (b->split) b->split->split_row(b->q, b->queries * b->key);
}

/* Loads positions from … to − 1 of a tile; the others are zero. */
static void load_tile(const st_cpu_call *call, const cache_side *side, uint32_t tile, size_t from, size_t to, size_t kv_head,
                      size_t width, float *out)
{
    memset(out, 0, from * width * sizeof *out);
    load_rows(call, side, tile + (uint32_t)from, to - from, kv_head, width, 0, out + from * width);
    memset(out + to * width, 0, (KEYS - to) * width * sizeof *out);
}

/* scores = q · keysᵀ */
static void multiply_keys(const st_cpu_call *call, block_state *b)
{
    if (b->split) b->split->split_row(b->tile, KEYS * b->key);
    call->isa->transpose(b->tile, b->key, b->transposed, KEYS, KEYS, b->key);
    if (!b->split) {
        call->isa->gemm(b->q, b->key, b->transposed, KEYS, b->scores, KEYS, b->queries, KEYS, b->key, false);
        return;
    }
    bool exact = call->bound->kv.type == ST_TYPE_BF16; /* bf16 keys have no low halves */
    st_split queries = {b->q, b->q + TILE, b->key, CHUNK};
    st_split keys = {b->transposed, exact ? NULL : b->transposed + TILE * KEYS, KEYS, CHUNK * KEYS};
    b->split->gemm(&queries, &keys, b->scores, KEYS, b->queries, KEYS, b->key / CHUNK, false);
}

/* sums += weights · values, which are zero from position `count` of the tile on */
static void multiply_values(const st_cpu_call *call, size_t count, block_state *b)
{
    if (!b->split) {
        call->isa->gemm(b->scores, KEYS, b->tile, b->value, b->sums, b->stride, b->queries, b->value, count, true);
        return;
    }
    bool exact = call->bound->kv.type == ST_TYPE_BF16;
    b->split->split_row(b->scores, b->queries * KEYS);
    for (size_t i = 0; i < KEYS; i += 2)
        b->split->split_two_rows(b->tile + i * b->value, b->tile + (i + 1) * b->value, b->value);
    st_split weights = {b->scores, b->scores + TILE, KEYS, CHUNK};
    st_split values = {b->tile, exact ? NULL : b->tile + b->value, 2 * b->value, CHUNK * b->value};
    b->split->gemm(&weights, &values, b->sums, b->stride, b->queries, b->value, KEYS / CHUNK, true);
}

/* Softmax: scores become weights, 0 for positions that a row does not attend to. It runs over whole registers, padded
 * with −∞. */
static void softmax(const st_cpu_call *call, const shape *s, uint32_t first_position, uint32_t tile, block_state *b)
{
    for (size_t i = 0; i < b->rows * s->shared; i++) {
        uint32_t position = first_position + (uint32_t)(i / s->shared), first = st_cpu_first_seen(call->op, position);
        float *scores = b->scores + i * KEYS;
        size_t low = first > tile ? first - tile : 0, high = position >= tile ? (size_t)position - tile + 1 : 0;
        if (high > KEYS) high = KEYS;
        if (low > high) low = high;
        size_t start = low / VEC * VEC, end = round_up(high, VEC);
        for (size_t k = start; k < low; k++) scores[k] = -INFINITY;
        for (size_t k = high; k < end; k++) scores[k] = -INFINITY;
        if (low < high)
            call->isa->softmax(scores + start, KEYS, 1, end - start, b->sums + i * b->stride, b->stride, b->value);
        memset(scores, 0, low * sizeof *scores);
        memset(scores + high, 0, (KEYS - high) * sizeof *scores);
    }
}

static void block_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    shape s = shape_of(call->op);
    size_t each = rows_of_block(call, &s), blocks = (call->rows + each - 1) / each;
    size_t kv_head = part % s.kv_heads, block = blocks - 1 - part / s.kv_heads; /* the longest blocks start first */
    size_t first_row = block * each;
    block_state b = block_in(call, worker, &s, call->rows - first_row < each ? call->rows - first_row : each);
    gather_queries(call, &s, first_row, kv_head, &b);
    cache_side keys = keys_of(call), values = values_of(call);
    uint32_t position = call->step->position + (uint32_t)first_row, last = position + (uint32_t)b.rows - 1;
    uint32_t first = st_cpu_first_seen(call->op, position); /* a ring may have overwritten earlier positions */
    for (uint32_t tile = first / KEYS * KEYS; tile <= last; tile += KEYS) {
        size_t from = first > tile ? first - tile : 0, to = last - tile < KEYS ? last - tile + 1 : KEYS;
        load_tile(call, &keys, tile, from, to, kv_head, b.key, b.tile);
        multiply_keys(call, &b);
        softmax(call, &s, position, tile, &b);
        load_tile(call, &values, tile, from, to, kv_head, b.value, b.tile);
        multiply_values(call, to, &b);
    }
    for (size_t i = 0; i < b.rows * s.shared; i++) {
        const float *sums = b.sums + i * b.stride;
        float *out = st_cpu_row(call->bound->out, first_row + i / s.shared) + (kv_head * s.shared + i % s.shared) * s.value;
        call->isa->scale(sums, 1 / sums[b.value + 1], out, s.value);
    }
}

/* --- a few rows -------------------------------------------------------------------------------------------------------- */

typedef struct few_job {
    const st_cpu_call *call;
    shape shape;
    size_t stretches; /* of a row */
    size_t together;  /* neighbouring stretches that one part of the job reads */
    st_type type;     /* type that the kernels read: the cache's or float32 */
    float *partial;   /* [row, stretch, head, value + 2]: weighted sums, the maximum, the sum of weights */
} few_job;

/* A stretch is a multiple of STRETCH positions; only the last may end early. */
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
    const shape *s = &job->shape;
    return job->partial + ((row * job->stretches + stretch) * s->heads + head) * (s->value + 2);
}

/* The scratch of a worker for one row and one stretch. */
typedef struct few_state {
    float *q;       /* [heads, key], scaled and packed */
    float *rows;    /* [RUN, kv_heads, max(key, value)]: positions converted to float32 */
    float *scores;  /* [heads, FEW] */
    float *partial; /* [heads, value + 2] */
} few_state;

static few_state few_in(const few_job *job, uint32_t worker, size_t row, size_t stretch)
{
    const shape *s = &job->shape;
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

/* Positions of the cache with all their heads: in place, or, if the type has no kernel for heads of this width,
 * converted to float32, at most RUN of them. Prefetches PREFETCH_BYTES past the next run. */
static st_cache_rows rows_at(const few_job *job, const cache_side *side, uint32_t position, size_t count, float *converted)
{
    const st_kv_view *kv = &job->call->bound->kv;
    const unsigned char *row = side->rows + position % kv->capacity * side->row_bytes;
    uintptr_t ahead = (uintptr_t)row + RUN * side->row_bytes + PREFETCH_BYTES;
    size_t heads = job->shape.kv_heads, width = heads * side->width;
    if (job->type == kv->type) return (st_cache_rows){row, side->row_bytes, count, heads, side->width, ahead};
    cache_side whole = {side->rows, side->row_bytes, width};
    if (count > RUN) count = RUN;
    load_rows(job->call, &whole, position, count, 0, width, ahead, converted);
    return (st_cache_rows){(const unsigned char *)converted, width * sizeof(float), count, heads, side->width, 0};
}

/* All heads of a row against a tile: its keys, then its values, are read in memory order. */
static void few_tile(const few_job *job, const few_state *state, uint32_t from, size_t count)
{
    const st_isa *isa = job->call->isa;
    const shape *s = &job->shape;
    cache_side keys = keys_of(job->call), values = values_of(job->call);
    st_cache_rows rows;
    for (size_t i = 0; i < count; i += rows.count) {
        rows = rows_at(job, &keys, from + (uint32_t)i, count - i, state->rows);
        isa->dot_rows[job->type](state->q, s->key, s->shared, &rows, state->scores + i, FEW);
    }
    isa->softmax(state->scores, FEW, s->heads, count, state->partial, s->value + 2, s->value);
    for (size_t i = 0; i < count; i += rows.count) {
        rows = rows_at(job, &values, from + (uint32_t)i, count - i, state->rows);
        isa->weigh_rows[job->type](state->scores + i, FEW, s->shared, &rows, state->partial, s->value + 2);
    }
}

/* How many positions from `position` on are contiguous in the ring, at most FEW. */
static size_t run_of(const few_job *job, uint32_t position, uint32_t end)
{
    const st_kv_view *kv = &job->call->bound->kv;
    size_t count = end - position < FEW ? end - position : FEW, room = kv->capacity - position % kv->capacity;
    return count < room ? count : room;
}

/* Prefetches the start of the first stretch: rows_at prefetches only later positions. */
static void prefetch_first(const few_job *job, uint32_t position)
{
    const st_kv_view *kv = &job->call->bound->kv;
    size_t at = position % kv->capacity;
    prefetch((uintptr_t)kv->keys + at * kv->key_row_bytes, RUN * kv->key_row_bytes + PREFETCH_BYTES);
    prefetch((uintptr_t)kv->values + at * kv->value_row_bytes, RUN * kv->value_row_bytes + PREFETCH_BYTES);
}

/* Computes neighbouring stretches of a row. */
static void few_part(void *context, uint32_t worker, size_t part)
{
    const few_job *job = context;
    size_t parts = (job->stretches + job->together - 1) / job->together, row = part / parts, count;
    size_t stretch = part % parts * job->together, end = stretch + job->together;
    for (bool first = true; stretch < end && stretch < job->stretches; stretch++, first = false) {
        uint32_t from, to;
        stretch_of(job, job->call->step->position + (uint32_t)row, stretch, &from, &to);
        few_state state = few_in(job, worker, row, stretch);
        if (first) prefetch_first(job, from);
        for (; from < to; from += (uint32_t)count) {
            count = run_of(job, from, to);
            few_tile(job, &state, from, count);
        }
    }
}

/* Adds up the stretches of one head of one row, in order. */
static void sum_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const few_job *job = context;
    const shape *s = &job->shape;
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
    few_job job = {.call = call, .shape = shape_of(call->op), .partial = (float *)(void *)call->shared};
    bool blocks = job.shape.key % ST_BLOCK == 0 && job.shape.value % ST_BLOCK == 0;
    job.type = call->bound->kv.type == ST_TYPE_Q8_0 && !blocks ? ST_TYPE_F32 : call->bound->kv.type;
    uint32_t last = call->step->position + call->rows - 1;
    job.stretches = (last - st_cpu_first_seen(call->op, last) + STRETCH) / STRETCH;
    if (job.stretches > ST_STRETCHES) job.stretches = ST_STRETCHES;
    job.together = job.stretches / (PARTS_PER_THREAD * st_pool_threads(call->pool));
    if (job.together == 0) job.together = 1;
    st_pool_run(call->pool, few_part, &job, call->rows * ((job.stretches + job.together - 1) / job.together));
    st_pool_run(call->pool, sum_part, &job, call->rows * job.shape.heads);
}

void st_cpu_fast_attention(const st_cpu_call *call)
{
    if (call->rows < ST_FEW_ROWS) {
        few_rows(call);
        return;
    }
    shape s = shape_of(call->op);
    size_t each = rows_of_block(call, &s), blocks = (call->rows + each - 1) / each;
    st_pool_run(call->pool, block_part, (void *)(uintptr_t)call, blocks * s.kv_heads);
}
