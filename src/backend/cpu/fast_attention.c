/* Attention on the fast path. The rows of a conversation in the step choose the way. A batch of rows: a block of queries,
 * all that read one KV head, is multiplied with tiles of keys and values, with an online softmax. Products are float32;
 * for KV narrower than that they are sums of bfloat16 products where the CPU has fast ones. A few rows (decode): the KV
 * cache is read once, in the order of its memory, split into stretches of positions so that every thread has some; the
 * partial sums of the stretches are added in order.
 *
 * Tiles and stretches begin at positions that depend on the row alone, so a row's result depends neither on the rows
 * beside it nor on where its pages are. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast.h"
#include "quant/blocks.h"
#include "quant/row.h"

enum {
    KEYS = ST_KEY_TILE,
    STRETCH = 64,      /* a stretch is a multiple of so many positions */
    FEW = ST_FEW_KEYS, /* positions that a few rows take at a time */
    PARTS_PER_THREAD = 4,
    SUMMED_ALONE = 1 << 15, /* fewer floats than this are added up by the caller: dispatching them takes longer */
    ROWS_MIN = 16, /* of a block: each block converts all keys and values that it sees */
    RUN = ST_KEY_RUN,          /* positions whose heads are read before the next positions (few.inc) */
    PREFETCH_BYTES = 3 << 10,  /* how far behind the next run the prefetch reaches, at least */
    VEC = 16,                  /* floats of the widest register */
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

static size_t round_up(size_t count, size_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* --- the KV cache of a conversation ---------------------------------------------------------------------------------- */

/* Its keys or its values. */
typedef struct cache_side {
    const unsigned char *pages; /* page 0 */
    const uint32_t *table;      /* the pages of the conversation, from `first_page` on */
    uint32_t first_page, page_shift;
    size_t row_bytes, page_bytes;
    size_t width; /* elements of a head */
} cache_side;

static cache_side side_of(const st_cpu_call *call, const st_step_conversation *c)
{
    const st_kv_view *kv = &call->bound->kv;
    const st_step_pages *pages = &c->pages[kv->pool];
    return (cache_side){.table = st_step_tables(call->step) + pages->table, .first_page = pages->first_page,
                        .page_shift = kv->page_shift};
}

static cache_side keys_of(const st_cpu_call *call, const st_step_conversation *c)
{
    cache_side side = side_of(call, c);
    side.pages = call->bound->kv.keys;
    side.row_bytes = call->bound->kv.key_row_bytes;
    side.page_bytes = call->bound->kv.key_page_bytes;
    side.width = call->op->p.attention.key_length;
    return side;
}

static cache_side values_of(const st_cpu_call *call, const st_step_conversation *c)
{
    cache_side side = side_of(call, c);
    side.pages = call->bound->kv.values;
    side.row_bytes = call->bound->kv.value_row_bytes;
    side.page_bytes = call->bound->kv.value_page_bytes;
    side.width = call->op->p.attention.value_length;
    return side;
}

static const unsigned char *row_at(const cache_side *side, uint32_t position)
{
    size_t page = side->table[(position >> side->page_shift) - side->first_page];
    return side->pages + page * side->page_bytes + (position & ((1u << side->page_shift) - 1)) * side->row_bytes;
}

/* How many positions from `position` on are contiguous in memory: to the end of the page, and on through pages that
 * follow it there. At most `most`, which are all in the table. */
static size_t run_at(const cache_side *side, uint32_t position, size_t most)
{
    size_t page_rows = (size_t)1 << side->page_shift, count = page_rows - (position & (page_rows - 1));
    const uint32_t *page = side->table + ((position >> side->page_shift) - side->first_page);
    if (side->page_bytes == page_rows * side->row_bytes)
        for (; count < most && page[1] == page[0] + 1; page++) count += page_rows;
    return smaller(count, most);
}

static void prefetch(uintptr_t from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)(from + at), 0, 2);
}

/* Converts `count` rows of `stride` bytes, one KV head of each, to floats: rows of `padded` elements, the rest of each
 * zero. Meanwhile it prefetches as many bytes from `ahead` on, unless that is 0. */
static void load_rows(const st_cpu_call *call, const unsigned char *row, size_t stride, size_t count, size_t head,
                      size_t size, size_t padded, uintptr_t ahead, float *out)
{
    st_type type = call->bound->kv.type;
    size_t from = st_row_bytes(type, head * size), bytes = st_row_bytes(type, size);
    void (*to_float)(const void *row, float *out, size_t count) = call->isa->to_float[type];
    for (size_t i = 0; i < count; i++, row += stride, out += padded, ahead += ahead ? bytes : 0) {
        if (ahead) prefetch(ahead, bytes);
        if (to_float) to_float(row + from, out, size);
        else if (size % ST_BLOCK == 0) call->isa->q8_to_float(row + from, out, size);
        else st_row_load(type, row, head * size, size, out);
        for (size_t k = size; k < padded; k++) out[k] = 0;
    }
}

/* The factor that turns a head's weighted sums into its output, given their maximum and their sum of weights. A sink
 * joins the sum and has no value. */
static float normaliser(const st_cpu_call *call, size_t head, float largest, float sum)
{
    const st_bound_weight *sinks = &call->bound->weight[0];
    return 1 / (sinks->data ? sum + expf(st_cpu_element(sinks, head) - largest) : sum);
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

/* As many rows as the scratch has room for, unless that leaves threads idle. `rows`: of all conversations with a batch. */
static size_t rows_of_block(const st_cpu_call *call, const shape *s, size_t rows)
{
    size_t most = s->shared >= ST_QUERY_BLOCK ? 1 : ST_QUERY_BLOCK / s->shared;
    size_t fair = rows * s->kv_heads / (PARTS_PER_THREAD * st_pool_threads(call->pool));
    return smaller(fair < ROWS_MIN ? ROWS_MIN : fair, most);
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

/* Query i of the block is row i / shared, head i % shared of the KV head's. */
static void gather_queries(const st_cpu_call *call, const shape *s, size_t first_row, size_t kv_head, block_state *b)
{
    memset(b->sums, 0, b->queries * b->stride * sizeof *b->sums);
    memset(b->q, 0, b->queries * b->key * sizeof *b->q);
    for (size_t i = 0; i < b->rows * s->shared; i++) {
        const float *row = st_cpu_row(call->bound->in[0], first_row + i / s->shared);
        const float *q = row + (kv_head * s->shared + i % s->shared) * s->key;
        call->isa->scale(q, call->op->p.attention.scale, b->q + i * b->key, s->key);
        b->sums[i * b->stride + b->value] = -INFINITY;
    }
    if (b->split) b->split->split_row(b->q, b->queries * b->key);
}

/* Positions from … to − 1 of a tile, zeros elsewhere. */
static void load_tile(const st_cpu_call *call, const cache_side *side, uint32_t tile, size_t from, size_t to, size_t kv_head,
                      size_t width, float *out)
{
    memset(out, 0, from * width * sizeof *out);
    for (size_t at = from, count; at < to; at += count) {
        uint32_t position = tile + (uint32_t)at;
        count = run_at(side, position, to - at);
        load_rows(call, row_at(side, position), side->row_bytes, count, kv_head, side->width, width, 0, out + at * width);
    }
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
    bool exact = call->bound->kv.type == ST_TYPE_BF16; /* nothing is left for the low halves */
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

/* Scores become weights; those of positions that a row does not see become 0. The softmax runs over whole registers: what
 * pads them is −∞. */
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

/* Rows of one conversation, and the KV head that they read. */
typedef struct block {
    const st_step_conversation *conversation;
    size_t first_row, rows, kv_head;
} block;

static void run_block(const st_cpu_call *call, uint32_t worker, const block *k)
{
    shape s = shape_of(call->op);
    block_state b = block_in(call, worker, &s, k->rows);
    gather_queries(call, &s, k->first_row, k->kv_head, &b);
    cache_side keys = keys_of(call, k->conversation), values = values_of(call, k->conversation);
    uint32_t position = st_cpu_step_row(call, k->first_row)->position, last = position + (uint32_t)b.rows - 1;
    uint32_t first = st_cpu_first_seen(call->op, position); /* positions before it may not be in the table */
    for (uint32_t tile = first / KEYS * KEYS; tile <= last; tile += KEYS) {
        size_t from = first > tile ? first - tile : 0, to = last - tile < KEYS ? last - tile + 1 : KEYS;
        load_tile(call, &keys, tile, from, to, k->kv_head, b.key, b.tile);
        multiply_keys(call, &b);
        softmax(call, &s, position, tile, &b);
        load_tile(call, &values, tile, from, to, k->kv_head, b.value, b.tile);
        multiply_values(call, to, &b);
    }
    for (size_t i = 0; i < b.rows * s.shared; i++) {
        const float *sums = b.sums + i * b.stride;
        float *row = st_cpu_row(call->bound->out, k->first_row + i / s.shared);
        size_t head = k->kv_head * s.shared + i % s.shared;
        call->isa->scale(sums, normaliser(call, head, sums[b.value], sums[b.value + 1]), row + head * s.value, s.value);
    }
}

/* --- a few rows -------------------------------------------------------------------------------------------------------- */

/* Positions from … to − 1 of a row. */
typedef struct few_stretch {
    uint32_t row, from, to;
} few_stretch;

/* The stretches of a row in a group. */
typedef struct few_row {
    uint32_t row, first, count;
} few_row;

/* The blocks of the conversations with a batch of rows, and a group of the few rows of the other conversations: as many
 * as the scratch has room for. */
typedef struct attention_job {
    const st_cpu_call *call;
    shape shape;
    size_t block_rows;  /* of a block */
    size_t block_parts; /* blocks × KV heads */
    st_type type;       /* that the kernels of a few rows read: the cache's, or float32 */
    float *partial;     /* [stretch, head, value + 2]: weighted sums, the maximum, the sum of weights */
    uint32_t row_count, stretch_count, part_count;
    few_row rows[ST_FEW_STRETCHES];
    few_stretch stretches[ST_FEW_STRETCHES];
    uint32_t part_first[ST_FEW_STRETCHES + 1]; /* the stretches of a part are neighbours */
} attention_job;

/* Adds a row to the group. A stretch is a multiple of STRETCH positions; only the last may end early. False: no room. */
static bool add_row(attention_job *job, uint32_t row)
{
    uint32_t position = st_cpu_step_row(job->call, row)->position, first = st_cpu_first_seen(job->call->op, position);
    uint64_t units = ((uint64_t)position - first + STRETCH) / STRETCH, end = position + UINT64_C(1);
    uint32_t count = (uint32_t)smaller(units, ST_STRETCHES);
    if (count > ST_FEW_STRETCHES - job->stretch_count) return false;
    job->rows[job->row_count++] = (few_row){row, job->stretch_count, count};
    for (uint32_t i = 0; i < count; i++) {
        uint64_t from = first + units * i / count * STRETCH, to = first + units * (i + 1) / count * STRETCH;
        job->stretches[job->stretch_count++] = (few_stretch){row, (uint32_t)from, (uint32_t)smaller(to, end)};
    }
    return true;
}

/* Cuts the group into parts of about the same number of positions. */
static void cut_parts(attention_job *job)
{
    uint64_t total = 0, sum = 0;
    for (uint32_t i = 0; i < job->stretch_count; i++) total += job->stretches[i].to - job->stretches[i].from;
    uint64_t fair = total / (PARTS_PER_THREAD * st_pool_threads(job->call->pool));
    job->part_count = 0;
    for (uint32_t i = 0; i < job->stretch_count; i++) {
        if (sum == 0) job->part_first[job->part_count++] = i;
        sum += job->stretches[i].to - job->stretches[i].from;
        if (sum >= fair) sum = 0;
    }
    job->part_first[job->part_count] = job->stretch_count;
}

static float *partial_of(const attention_job *job, size_t stretch, size_t head)
{
    const shape *s = &job->shape;
    return job->partial + (stretch * s->heads + head) * (s->value + 2);
}

/* The scratch of a worker for one stretch. */
typedef struct few_state {
    uint32_t end;   /* behind the last position that the row sees */
    cache_side keys, values;
    float *q;       /* [heads, key], scaled and packed */
    float *rows;    /* [RUN, kv_heads, max(key, value)]: positions converted to float32 */
    float *scores;  /* [heads, FEW] */
    float *partial; /* [heads, value + 2] */
} few_state;

static few_state few_in(const attention_job *job, uint32_t worker, size_t index)
{
    const st_cpu_call *call = job->call;
    const shape *s = &job->shape;
    size_t row = job->stretches[index].row;
    const st_step_conversation *c = st_cpu_conversation(call, row);
    few_state state = {.end = st_cpu_step_row(call, row)->position + 1, .keys = keys_of(call, c),
                       .values = values_of(call, c), .q = st_cpu_scratch(call, worker), .partial = partial_of(job, index, 0)};
    state.rows = state.q + s->heads * s->key;
    state.scores = state.rows + RUN * s->kv_heads * (s->key > s->value ? s->key : s->value);
    call->isa->scale(st_cpu_row(call->bound->in[0], row), call->op->p.attention.scale, state.q, s->heads * s->key);
    if (call->isa->pack_queries[job->type]) call->isa->pack_queries[job->type](state.q, s->heads, s->key);
    memset(state.partial, 0, s->heads * (s->value + 2) * sizeof *state.partial);
    for (size_t h = 0; h < s->heads; h++) state.partial[h * (s->value + 2) + s->value] = -INFINITY;
    return state;
}

/* How many positions lie between the one that is read and the one that is prefetched. */
static size_t lead_of(const cache_side *side)
{
    return RUN + round_up((PREFETCH_BYTES + side->row_bytes - 1) / side->row_bytes, RUN);
}

/* The next positions of the cache with all their heads, at most `most`: in place, or converted to float32, RUN of them at
 * most, where the type has no kernel for heads of this width. They are contiguous, and so are the positions that reading
 * them prefetches. */
static st_cache_rows rows_at(const attention_job *job, const few_state *state, const cache_side *side, uint32_t position,
                             size_t most)
{
    const unsigned char *row = row_at(side, position);
    size_t count = run_at(side, position, most), left = state->end - position, lead = lead_of(side);
    uintptr_t ahead = (uintptr_t)row;
    if (lead < left) {
        size_t wanted = smaller(count, left - lead), run = run_at(side, position + (uint32_t)lead, wanted);
        ahead = (uintptr_t)row_at(side, position + (uint32_t)lead);
        if (run < wanted) count = run < RUN ? run : run / RUN * RUN;
    }
    size_t heads = job->shape.kv_heads, width = heads * side->width;
    if (job->type == job->call->bound->kv.type)
        return (st_cache_rows){row, side->row_bytes, count, heads, side->width, ahead};
    count = smaller(count, RUN);
    load_rows(job->call, row, side->row_bytes, count, 0, width, width, ahead, state->rows);
    return (st_cache_rows){(const unsigned char *)state->rows, width * sizeof(float), count, heads, side->width, 0};
}

/* All heads of a row against a tile: its keys, then its values, are read in the order of their memory. */
static void few_tile(const attention_job *job, const few_state *state, uint32_t from, size_t count)
{
    const st_isa *isa = job->call->isa;
    const shape *s = &job->shape;
    st_cache_rows rows;
    for (size_t i = 0; i < count; i += rows.count) {
        rows = rows_at(job, state, &state->keys, from + (uint32_t)i, count - i);
        isa->dot_rows[job->type](state->q, s->key, s->shared, &rows, state->scores + i, FEW);
    }
    isa->softmax(state->scores, FEW, s->heads, count, state->partial, s->value + 2, s->value);
    for (size_t i = 0; i < count; i += rows.count) {
        rows = rows_at(job, state, &state->values, from + (uint32_t)i, count - i);
        isa->weigh_rows[job->type](state->scores + i, FEW, s->shared, &rows, state->partial, s->value + 2);
    }
}

/* Prefetches the first positions of a row's stretch: rows_at prefetches only what lies behind them. */
static void prefetch_first(const cache_side *side, uint32_t position, uint32_t end)
{
    size_t left = smaller(lead_of(side), end - position);
    for (size_t count; left > 0; left -= count, position += (uint32_t)count) {
        count = run_at(side, position, left);
        prefetch((uintptr_t)row_at(side, position), count * side->row_bytes);
    }
}

static void few_part(const attention_job *job, uint32_t worker, size_t part)
{
    uint32_t row = UINT32_MAX;
    for (size_t i = job->part_first[part]; i < job->part_first[part + 1]; i++) {
        const few_stretch *t = &job->stretches[i];
        few_state state = few_in(job, worker, i);
        if (t->row != row) {
            prefetch_first(&state.keys, t->from, state.end);
            prefetch_first(&state.values, t->from, state.end);
        }
        row = t->row;
        for (uint32_t from = t->from, count; from < t->to; from += count) {
            count = t->to - from < FEW ? t->to - from : FEW;
            few_tile(job, &state, from, count);
        }
    }
}

/* Adds up the stretches of one head of one row, in order. */
static void sum_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const attention_job *job = context;
    const shape *s = &job->shape;
    const few_row *r = &job->rows[part / s->heads];
    size_t head = part % s->heads, end = r->first + r->count;
    const st_isa *isa = job->call->isa;
    float *out = st_cpu_row(job->call->bound->out, r->row) + head * s->value, largest = -INFINITY, sum = 0;
    for (size_t i = r->first; i < end; i++) largest = fmaxf(largest, partial_of(job, i, head)[s->value]);
    memset(out, 0, s->value * sizeof *out);
    for (size_t i = r->first; i < end; i++) {
        const float *partial = partial_of(job, i, head);
        float share = expf(partial[s->value] - largest);
        isa->add_scaled(out, partial, share, s->value);
        sum += share * partial[s->value + 1];
    }
    isa->scale(out, normaliser(job->call, head, largest, sum), out, s->value);
}

static void sum_stretches(attention_job *job)
{
    size_t parts = job->row_count * job->shape.heads;
    if (job->stretch_count * job->shape.heads * job->shape.value >= SUMMED_ALONE) st_pool_run(job->call->pool, sum_part, job, parts);
    else
        for (size_t i = 0; i < parts; i++) sum_part(job, 0, i);
}

/* --- a step ------------------------------------------------------------------------------------------------------------ */

static size_t blocks_of(const attention_job *job, const st_step_conversation *c)
{
    return c->rows < ST_FEW_ROWS ? 0 : (c->rows + job->block_rows - 1) / job->block_rows;
}

/* The blocks of a conversation in the reverse order of their positions: the longest come first. */
static block block_at(const attention_job *job, size_t part)
{
    const st_step_conversation *c = st_step_conversations(job->call->step);
    size_t index = part / job->shape.kv_heads;
    for (; index >= blocks_of(job, c); c++) index -= blocks_of(job, c);
    size_t start = (blocks_of(job, c) - 1 - index) * job->block_rows;
    return (block){c, c->first_row + start, smaller(c->rows - start, job->block_rows), part % job->shape.kv_heads};
}

/* Blocks come first: the parts of a few rows are smaller and keep the threads busy to the end. */
static void attention_part(void *context, uint32_t worker, size_t part)
{
    const attention_job *job = context;
    if (part >= job->block_parts) {
        few_part(job, worker, part - job->block_parts);
        return;
    }
    block b = block_at(job, part);
    run_block(job->call, worker, &b);
}

static void plan_blocks(attention_job *job)
{
    const st_step *step = job->call->step;
    const st_step_conversation *c = st_step_conversations(job->call->step);
    size_t rows = 0;
    for (size_t i = 0; i < step->conversation_count; i++) rows += c[i].rows < ST_FEW_ROWS ? 0 : c[i].rows;
    job->block_rows = rows_of_block(job->call, &job->shape, rows);
    for (size_t i = 0; i < step->conversation_count; i++) job->block_parts += blocks_of(job, &c[i]) * job->shape.kv_heads;
}

/* Makes a group of the few rows from `row` on and returns the row behind it. */
static uint32_t plan_group(attention_job *job, uint32_t row)
{
    job->row_count = job->stretch_count = 0;
    while (row < job->call->rows) {
        const st_step_conversation *c = st_cpu_conversation(job->call, row);
        if (c->rows >= ST_FEW_ROWS) row += c->rows;
        else if (add_row(job, row)) row++;
        else break;
    }
    cut_parts(job);
    return row;
}

void st_cpu_fast_attention(const st_cpu_call *call)
{
    attention_job job = {.call = call, .shape = shape_of(call->op), .partial = (float *)(void *)call->shared};
    bool blocks = job.shape.key % ST_BLOCK == 0 && job.shape.value % ST_BLOCK == 0;
    job.type = call->bound->kv.type == ST_TYPE_Q8_0 && !blocks ? ST_TYPE_F32 : call->bound->kv.type;
    plan_blocks(&job);
    for (uint32_t row = 0; row < call->rows; job.block_parts = 0) {
        row = plan_group(&job, row);
        st_pool_run(call->pool, attention_part, &job, job.block_parts + job.part_count);
        sum_stretches(&job);
    }
}
