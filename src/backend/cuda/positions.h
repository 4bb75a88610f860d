/* Operations between the projections and the attention of a layer that run as one kernel: norm and RoPE of
 * the query heads, norm and RoPE of the key heads, norm of the value heads, KV_STORE. Norms are optional and in place, and
 * queries may be missing. */
#ifndef ST_CUDA_POSITIONS_H
#define ST_CUDA_POSITIONS_H

#include "backend/cuda/call.h"

enum { ST_CUDA_QUERIES, ST_CUDA_KEYS, ST_CUDA_VALUES, ST_CUDA_SIDES };

typedef struct st_cuda_positions {
    const st_bound_op *norm[ST_CUDA_SIDES], *rope[ST_CUDA_SIDES]; /* NULL: none */
    const st_bound_op *store;
} st_cuda_positions;

/* A warp has a head: its size is a multiple of 32. */
static inline bool st_cuda_head_fits(uint32_t size)
{
    return size > 0 && size % 32 == 0 && size <= ST_CUDA_HEAD_MAX;
}

static inline bool st_cuda_is_norm_in_place(const st_bound_op *b)
{
    return b->op->kind == ST_OP_RMS_NORM && b->in[0].data == b->out.data && st_cuda_head_fits(b->op->p.norm.group);
}

/* Norm, if there is one, and RoPE of queries or keys. Returns the number of operations; 0: none. */
static inline uint32_t st_cuda_find_rope(const st_bound_op *ops, uint32_t count, int side, st_cuda_positions *out)
{
    bool norm = count > 1 && st_cuda_is_norm_in_place(ops) && ops[1].op->kind == ST_OP_ROPE && ops[1].out.data == ops->out.data &&
                ops[1].op->p.rope.head_size == ops->op->p.norm.group;
    const st_bound_op *rope = ops + norm;
    if (count == 0 || rope->op->kind != ST_OP_ROPE) return 0;
    uint32_t size = rope->op->p.rope.head_size, dims = rope->op->p.rope.dims;
    if (!st_cuda_head_fits(size) || dims > size || dims % 2 || rope->op->p.rope.offset || rope->op->p.rope.heads * size != rope->out.width) return 0;
    out->norm[side] = norm ? ops : NULL;
    out->rope[side] = rope;
    return norm + 1u;
}

/* Norm of values, if there is one, and the KV_STORE of the keys found before. Returns the number of operations; 0: none. */
static inline uint32_t st_cuda_find_store(const st_bound_op *ops, uint32_t count, st_cuda_positions *out)
{
    bool norm = count > 1 && st_cuda_is_norm_in_place(ops) && ops[1].op->kind == ST_OP_KV_STORE && ops[1].in[1].data == ops->out.data;
    const st_bound_op *store = ops + norm;
    if (count == 0 || store->op->kind != ST_OP_KV_STORE || store->in[0].data != out->rope[ST_CUDA_KEYS]->out.data ||
        !store->in[1].data || store->in[1].data == store->in[0].data || store->in[1].width % 32)
        return 0;
    out->norm[ST_CUDA_VALUES] = norm ? ops : NULL;
    out->store = store;
    return norm + 1u;
}

/* Returns how many operations from `ops` on run as one kernel; 0: none. */
static inline uint32_t st_cuda_find_positions(const st_bound_op *ops, uint32_t count, st_cuda_positions *out)
{
    const st_cuda_positions none = {{NULL}, {NULL}, NULL};
    *out = none;
    uint32_t queries = st_cuda_find_rope(ops, count, ST_CUDA_QUERIES, out);
    uint32_t keys = queries ? st_cuda_find_rope(ops + queries, count - queries, ST_CUDA_KEYS, out) : 0, before = queries + keys;
    uint32_t stored = keys ? st_cuda_find_store(ops + before, count - before, out) : 0;
    if (stored) return before + stored;
    *out = none;
    keys = st_cuda_find_rope(ops, count, ST_CUDA_KEYS, out);
    stored = keys ? st_cuda_find_store(ops + keys, count - keys, out) : 0;
    return stored ? keys + stored : 0;
}

#endif
