/* Attention of a batch in bytes, for layers whose keys and values are no finer than int8 arithmetic made them (`narrow`).
 *
 * Keys lose their mean: it adds the same to all scores of a query, which a softmax does not see. What is left is balanced
 * with the queries, element by element, so that both are as wide, and the product is the same. Then a query is bytes with a
 * scale, and so is a key; values have a scale for each element of a tile, and weights are bytes against the largest of
 * their tile. Sums of products are whole numbers, so no result depends on how the rows are cut into parts. */
#include <math.h>
#include <string.h>

#include "backend/cpu/fast_attention.h"

enum {
    KEYS = ST_BYTE_KEYS,
    WORD = 4,
    LANES = 16,           /* of st_byte_queries.sum */
    PARTS_PER_THREAD = 3, /* at least, if the rows allow it */
    ROWS_MIN = 16,        /* of a part: tiles are packed anew for each */
    FIRST = 1,            /* the position at which tiles begin: those before it are floats */
    WEIGHT = 255,         /* of the largest score of a tile */
};

typedef struct byte_job {
    const st_cpu_call *call;
    st_attention_shape shape;
    size_t key, value; /* padded */
    size_t rows;       /* of a part */
    float *balance;    /* [kv_heads, BALANCE, key] */
} byte_job;

/* What a KV head's keys and queries are balanced by, one array of `key` behind the other. */
enum { MEAN, KEY_FACTOR, QUERY_FACTOR, BALANCE };

/* What a worker holds: tiles, queries and what packing needs. */
typedef struct byte_state {
    st_byte_queries queries;
    st_byte_tile tile;
    st_seen *seen;  /* [queries] */
    float *floats;  /* [KEYS, max(key, value)] */
    int8_t *packed; /* [KEYS, key], before it is turned */
    size_t count;   /* of queries, padded */
} byte_state;

static size_t up_to(size_t count, size_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

static void *take(unsigned char **from, size_t bytes)
{
    void *piece = *from;
    *from += up_to(bytes, ST_SCRATCH_ALIGN);
    return piece;
}

static byte_state state_in(const byte_job *job, uint32_t worker)
{
    unsigned char *at = (unsigned char *)st_cpu_scratch(job->call, worker);
    size_t key = job->key, value = job->value, wider = key > value ? key : value;
    byte_state b = {.count = up_to(job->rows * job->shape.shared, ST_BYTE_GROUP)};
    b.queries = (st_byte_queries){.key = key, .value = value};
    b.queries.q = take(&at, b.count * key);
    b.queries.scale = take(&at, b.count * sizeof(float));
    b.queries.largest = take(&at, b.count * sizeof(float));
    b.queries.sum = take(&at, b.count * LANES * sizeof(float));
    b.queries.out = take(&at, b.count * value * sizeof(float));
    b.tile.keys = take(&at, KEYS * key);
    b.tile.start = take(&at, KEYS * sizeof(int32_t));
    b.tile.key_scale = take(&at, KEYS * sizeof(float));
    b.tile.values = take(&at, KEYS * value);
    b.tile.value_scale = take(&at, value * sizeof(float));
    b.seen = take(&at, b.count * sizeof(st_seen));
    b.floats = take(&at, KEYS * wider * sizeof(float));
    b.packed = take(&at, KEYS * key);
    return b;
}

static const float *query_at(const byte_job *job, size_t row, size_t kv_head)
{
    return st_cpu_row(job->call->bound->in[0], row) + kv_head * job->shape.shared * job->shape.key;
}

static float *balance_of(const byte_job *job, size_t kv_head, size_t which)
{
    return job->balance + (kv_head * BALANCE + which) * job->key;
}

/* The mean of the batch's keys, and the factors that make keys and queries as wide. */
static void balance_part(void *context, uint32_t worker, size_t kv_head)
{
    const byte_job *job = context;
    const st_cpu_call *call = job->call;
    const st_isa_bytes *bytes = call->isa->bytes;
    st_cache_side keys = st_cache_keys(call);
    size_t key = job->shape.key, rows = call->rows, queries = rows * job->shape.shared;
    float *mean = balance_of(job, kv_head, MEAN), *of_keys = mean + job->key, *of_queries = of_keys + job->key;
    float *floats = st_cpu_scratch(call, worker), *ignored = floats;
    memset(mean, 0, BALANCE * job->key * sizeof(float));
    for (size_t i = 0; i < rows; i += KEYS) {
        size_t count = rows - i < KEYS ? rows - i : KEYS;
        st_cache_load(call, &keys, call->step->position + (uint32_t)i, count, kv_head, key, 0, floats);
        bytes->moments(floats, key, count, key, mean, of_keys);
    }
    memset(ignored, 0, key * sizeof(float));
    for (size_t i = 0; i < rows; i++)
        bytes->moments(query_at(job, i, kv_head), key, job->shape.shared, key, ignored, of_queries);
    for (size_t i = 0; i < key; i++) {
        mean[i] /= (float)rows;
        float wide = of_keys[i] / (float)rows - mean[i] * mean[i], against = of_queries[i] / (float)queries;
        of_queries[i] = wide > 0 && against > 0 ? sqrtf(sqrtf(wide / against)) : 1;
        of_keys[i] = 1 / of_queries[i];
    }
}

/* The first position is a sink: its key lies far from the others, and most of the weight of many heads is its own, so that
 * in bytes little would be left of the positions beside it. Queries begin with it, in floats. */
typedef struct sink {
    bool there;
    float *key, *value;
} sink;

static sink sink_of(const byte_job *job, size_t kv_head, byte_state *b)
{
    const st_cpu_call *call = job->call;
    st_cache_side keys = st_cache_keys(call), values = st_cache_values(call);
    sink s = {st_cpu_first_seen(call->op, call->step->position) == 0, b->floats, b->floats + job->key};
    memset(b->floats, 0, (job->key + job->value) * sizeof(float));
    if (!s.there) return s;
    st_cache_load(call, &keys, 0, 1, kv_head, job->shape.key, 0, s.key);
    st_cache_load(call, &values, 0, 1, kv_head, job->value, 0, s.value);
    call->isa->add_scaled(s.key, balance_of(job, kv_head, MEAN), -1, job->shape.key);
    return s;
}

static void gather(const byte_job *job, size_t first_row, size_t rows, size_t kv_head, byte_state *b)
{
    const st_cpu_call *call = job->call;
    const st_isa *isa = call->isa;
    size_t key = job->shape.key, shared = job->shape.shared;
    float factor = call->op->p.attention.scale * 1.44269504f; /* log2 e */
    st_byte_queries *q = &b->queries;
    sink first = sink_of(job, kv_head, b);
    memset(q->q, 0, b->count * job->key);
    memset(q->scale, 0, b->count * sizeof(float));
    memset(q->sum, 0, b->count * LANES * sizeof(float));
    for (size_t i = 0; i < b->count; i++) q->largest[i] = -INFINITY;
    for (size_t i = 0; i < rows * shared; i++) {
        const float *in = query_at(job, first_row + i / shared, kv_head) + i % shared * key;
        uint32_t position = call->step->position + (uint32_t)(first_row + i / shared);
        float score;
        q->scale[i] = factor * isa->bytes->pack_query(in, balance_of(job, kv_head, QUERY_FACTOR), first.key, key,
                                                      q->q + i * job->key, &score);
        bool sees = first.there && st_cpu_first_seen(call->op, position) == 0;
        if (sees) q->largest[i] = factor * score;
        q->sum[i * LANES] = sees ? WEIGHT : 0;
        isa->scale(first.value, sees ? WEIGHT : 0, q->out + i * job->value, job->value);
    }
    memset(q->out + rows * shared * job->value, 0, (b->count - rows * shared) * job->value * sizeof(float));
}

/* Positions of one side of the cache: `count` rows of `width` floats, where they lie or copied. */
static const float *rows_at(const byte_job *job, const st_cache_side *side, uint32_t position, size_t count, size_t kv_head,
                            size_t width, float *copy, size_t *stride)
{
    const st_kv_view *kv = &job->call->bound->kv;
    size_t at = position % kv->capacity;
    if (kv->type == ST_TYPE_F32 && width == side->width && at + count <= kv->capacity) {
        *stride = side->row_bytes / sizeof(float);
        return (const float *)(const void *)(side->rows + at * side->row_bytes) + kv_head * width;
    }
    *stride = width;
    st_cache_load(job->call, side, position, count, kv_head, width, 0, copy);
    return copy;
}

/* Positions from … to − 1 of a tile; the others are zeros, and nobody sees them. */
static void pack_tile(const byte_job *job, size_t kv_head, uint32_t tile, size_t from, size_t to, byte_state *b)
{
    const st_cpu_call *call = job->call;
    const float *mean = balance_of(job, kv_head, MEAN), *factor = balance_of(job, kv_head, KEY_FACTOR);
    st_cache_side keys = st_cache_keys(call), values = st_cache_values(call);
    size_t key = job->shape.key, stride;
    const float *rows = rows_at(job, &keys, tile + (uint32_t)from, to - from, kv_head, key, b->floats, &stride);
    if (to - from < KEYS || key < job->key) {
        memset(b->packed, 0, KEYS * job->key);
        memset(b->tile.key_scale, 0, KEYS * sizeof(float));
    }
    call->isa->bytes->pack_keys(rows, stride, to - from, mean, factor, key, b->packed + from * job->key, job->key,
                                b->tile.key_scale + from);
    call->isa->transpose((const float *)(const void *)b->packed, job->key / WORD, (float *)(void *)b->tile.keys, KEYS, KEYS,
                         job->key / WORD);
    call->isa->bytes->start_keys(&b->tile, job->key);
    if (to - from == KEYS) {
        rows = rows_at(job, &values, tile, KEYS, kv_head, job->value, b->floats, &stride);
    } else {
        memset(b->floats, 0, KEYS * job->value * sizeof(float));
        st_cache_load(call, &values, tile + (uint32_t)from, to - from, kv_head, job->value, 0, b->floats + from * job->value);
        rows = b->floats;
        stride = job->value;
    }
    call->isa->bytes->pack_values(rows, stride, job->value, &b->tile);
}

static void look(const byte_job *job, size_t first_row, size_t rows, uint32_t tile, byte_state *b)
{
    memset(b->seen, 0, b->count * sizeof *b->seen);
    for (size_t row = 0; row < rows; row++) {
        uint32_t position = job->call->step->position + (uint32_t)(first_row + row);
        uint32_t first = st_cpu_first_seen(job->call->op, position);
        st_seen seen = {0, 0};
        if (position >= tile && first < tile + KEYS) {
            seen.from = (uint8_t)(first > tile ? first - tile : 0);
            seen.to = (uint8_t)(position - tile + 1 < KEYS ? position - tile + 1 : KEYS);
        }
        for (size_t i = 0; i < job->shape.shared; i++) b->seen[row * job->shape.shared + i] = seen;
    }
}

typedef enum sight { NOTHING, SOME, ALL } sight;

static sight sight_of(const st_seen *group)
{
    bool all = true, any = false;
    for (size_t i = 0; i < ST_BYTE_GROUP; i++) {
        all = all && group[i].from == 0 && group[i].to == KEYS;
        any = any || group[i].from < group[i].to;
    }
    return all ? ALL : any ? SOME : NOTHING;
}

/* Groups that see as much of the tile go together. */
static void meet_tile(const byte_job *job, size_t first_row, size_t rows, uint32_t tile, byte_state *b)
{
    look(job, first_row, rows, tile, b);
    for (size_t first = 0, end; first < b->count; first = end) {
        sight sees = sight_of(b->seen + first);
        for (end = first + ST_BYTE_GROUP; end < b->count && sight_of(b->seen + end) == sees;) end += ST_BYTE_GROUP;
        if (sees != NOTHING) job->call->isa->bytes->meet(&b->queries, &b->tile, first, end, sees == ALL ? NULL : b->seen);
    }
}

static void byte_part(void *context, uint32_t worker, size_t part)
{
    const byte_job *job = context;
    const st_cpu_call *call = job->call;
    size_t blocks = (call->rows + job->rows - 1) / job->rows, shared = job->shape.shared, value = job->shape.value;
    size_t kv_head = part % job->shape.kv_heads;
    size_t first_row = (blocks - 1 - part / job->shape.kv_heads) * job->rows; /* those that see most come first */
    size_t rows = call->rows - first_row < job->rows ? call->rows - first_row : job->rows;
    byte_state b = state_in(job, worker);
    gather(job, first_row, rows, kv_head, &b);
    uint32_t start = call->step->position, position = start + (uint32_t)first_row, last = position + (uint32_t)rows - 1;
    uint32_t kept = st_cpu_first_seen(call->op, start), end = start + call->rows; /* what the cache holds for this batch */
    uint32_t first = st_cpu_first_seen(call->op, position);
    for (uint32_t tile = FIRST + (first > FIRST ? first - FIRST : 0) / KEYS * KEYS; tile <= last; tile += KEYS) {
        size_t from = kept > tile ? kept - tile : 0, to = end - tile < KEYS ? end - tile : KEYS;
        pack_tile(job, kv_head, tile, from, to, &b);
        meet_tile(job, first_row, rows, tile, &b);
    }
    for (size_t i = 0; i < rows * shared; i++) {
        float *out = st_cpu_row(call->bound->out, first_row + i / shared) + (kv_head * shared + i % shared) * value;
        call->isa->bytes->finish(&b.queries, i, out, value);
    }
}

/* As many rows as a worker has room for, unless that leaves threads idle. */
static size_t rows_of_part(const byte_job *job)
{
    size_t queries = ST_BYTE_STATE / job->value, shared = job->shape.shared, most = shared >= queries ? 1 : queries / shared;
    size_t fair = job->call->rows * job->shape.kv_heads / (PARTS_PER_THREAD * st_pool_threads(job->call->pool));
    if (fair < ROWS_MIN) fair = ROWS_MIN;
    return fair < most ? fair : most;
}

bool st_cpu_attention_in_bytes(const st_cpu_call *call)
{
    if (!call->op->p.attention.narrow || !call->isa->bytes || call->op->p.attention.key_length > ST_BYTE_KEY_MAX) return false;
    byte_job job = {.call = call, .shape = st_attention_shape_of(call->op)};
    job.key = up_to(job.shape.key, WORD);
    job.value = up_to(job.shape.value, ST_BYTE_VALUES);
    job.rows = rows_of_part(&job);
    job.balance = (float *)(void *)call->shared;
    st_pool_run(call->pool, balance_part, &job, job.shape.kv_heads);
    st_pool_run(call->pool, byte_part, &job, (call->rows + job.rows - 1) / job.rows * job.shape.kv_heads);
    return true;
}
