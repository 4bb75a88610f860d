/* How much scratch each operation of the CPU needs, and the fence that enforces it under the address sanitizer. */
#include "backend/cpu/fast.h"
#include "base/error.h"
#include "base/poison.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static st_scratch max_scratch(st_scratch a, st_scratch b)
{
    return (st_scratch){larger(a.shared_bytes, b.shared_bytes), larger(a.worker_bytes, b.worker_bytes)};
}

static size_t round_up(size_t count, size_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

/* --- the reference: floats for each worker ------------------------------------------------------------------------ */

static size_t ref_matmul(const st_bound_op *shape)
{
    return shape->weight[0].ne[0];
}

static size_t ref_attention(const st_bound_op *shape)
{
    return (size_t)shape->op->p.attention.key_length + shape->op->p.attention.value_length;
}

static size_t ref_experts(const st_bound_op *shape)
{
    size_t embedding = shape->in[0].width, hidden = shape->op->p.experts.width;
    return embedding + 2 * hidden + larger(embedding, hidden);
}

static size_t ref_route(const st_bound_op *shape)
{
    return (size_t)shape->op->p.route.experts + shape->op->p.route.groups;
}

static size_t ref_deltanet(const st_bound_op *shape)
{
    return 4 * (size_t)shape->op->p.deltanet.size;
}

st_scratch st_cpu_ref_scratch(const st_bound_op *shape, uint32_t rows)
{
    static size_t (*const floats[ST_OP_COUNT])(const st_bound_op *shape) = {
        [ST_OP_MATMUL] = ref_matmul,
        [ST_OP_HEAD_MATMUL] = ref_matmul,
        [ST_OP_ATTENTION] = ref_attention,
        [ST_OP_ROUTE] = ref_route,
        [ST_OP_EXPERTS] = ref_experts,
        [ST_OP_DELTANET] = ref_deltanet,
    };
    (void)rows;
    if (!floats[shape->op->kind]) return (st_scratch){0};
    return (st_scratch){.worker_bytes = floats[shape->op->kind](shape) * sizeof(float)};
}

/* --- the fast path: the maximum over the ways to compute an operation --------------------------------------------- */

/* A worker's scratch holds a block of queries with a tile of keys and values, or the tiles of a few rows. The shared
 * scratch holds the partial sums of a few rows: any row of a step may be the only one of its conversation. */
static st_scratch fast_attention(const st_bound_op *shape, uint32_t rows)
{
    const st_op *op = shape->op;
    size_t key = round_up(op->p.attention.key_length, ST_SPLIT_CHUNK);
    size_t value = round_up(op->p.attention.value_length, ST_SPLIT_TILE);
    size_t heads = op->p.attention.heads, shared = heads / op->p.attention.kv_heads;
    size_t queries = round_up(larger(ST_QUERY_BLOCK, shared), ST_SPLIT_TILE);
    size_t block = queries * (key + ST_KEY_TILE + value + ST_SPLIT_TILE) + ST_KEY_TILE * (larger(key, value) + key);
    size_t few = heads * (key + ST_FEW_KEYS) + ST_KEY_RUN * heads / shared * larger(key, value);
    size_t stretches = rows < ST_FEW_STRETCHES / ST_STRETCHES ? (size_t)rows * ST_STRETCHES : ST_FEW_STRETCHES;
    size_t sums = stretches * heads * (op->p.attention.value_length + 2);
    return (st_scratch){.shared_bytes = sums * sizeof(float), .worker_bytes = larger(block, few) * sizeof(float)};
}

static st_scratch fast_conv(const st_bound_op *shape, uint32_t rows)
{
    (void)rows;
    return (st_scratch){.worker_bytes = (2 * (size_t)shape->op->p.conv.width + 1) * ST_CONV_CHANNELS * sizeof(float)};
}

static st_scratch fast_deltanet(const st_bound_op *shape, uint32_t rows)
{
    (void)rows;
    size_t size = shape->op->p.deltanet.size;
    return (st_scratch){.worker_bytes = ST_DELTA_CHUNK * (5 * size + 2 * ST_DELTA_CHUNK + 1) * sizeof(float)};
}

st_scratch st_cpu_fast_scratch(const st_bound_op *shape, uint32_t rows)
{
    static const st_scratch_statement statements[ST_OP_COUNT] = {
        [ST_OP_MATMUL] = st_cpu_fast_matmul_scratch, [ST_OP_ATTENTION] = fast_attention,
        [ST_OP_EXPERTS] = st_cpu_fast_experts_scratch, [ST_OP_CONV] = fast_conv, [ST_OP_DELTANET] = fast_deltanet,
    };
    st_scratch reference = st_cpu_ref_scratch(shape, rows); /* runs operations without a fast kernel */
    st_scratch_statement statement = statements[shape->op->kind];
    return statement ? max_scratch(reference, statement(shape, rows)) : reference;
}

/* --- the fence ---------------------------------------------------------------------------------------------------- */

strata_status st_cpu_scratch_fence(const st_segment_source *source, uint32_t workers, const st_op *op, st_scratch stated,
                                   strata_error *error)
{
    if (stated.shared_bytes > source->shared_bytes || stated.worker_bytes > source->worker_bytes)
        return st_error_set(error, STRATA_RUNTIME, NULL,
                            "%s: expected %zu bytes of scratch and %zu for each worker, found %zu and %zu", st_op_name(op->kind),
                            stated.shared_bytes, stated.worker_bytes, source->shared_bytes, source->worker_bytes);
    unsigned char *at = source->scratch;
    st_unpoison(at, stated.shared_bytes);
    st_poison(at + stated.shared_bytes, source->shared_bytes - stated.shared_bytes);
    at += source->shared_bytes;
    for (uint32_t i = 0; i < workers; i++, at += source->worker_bytes) {
        st_unpoison(at, stated.worker_bytes);
        st_poison(at + stated.worker_bytes, source->worker_bytes - stated.worker_bytes);
    }
    return STRATA_OK;
}

void st_cpu_scratch_unfence(const st_segment_source *source, uint32_t workers)
{
    st_unpoison(source->scratch, source->shared_bytes + workers * source->worker_bytes);
}
