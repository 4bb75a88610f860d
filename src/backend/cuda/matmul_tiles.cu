/* out = w0 · in0 (+ w1) on tensor cores, for more than few rows. Up to ST_CUDA_JOINED_MAX products of the same input run together. */
#include "backend/cuda/tiles.h"

namespace {

enum {
    LARGE_ROWS = 128,   /* of a tile */
    ENOUGH_TILES = 100, /* of that many rows: fewer leave processors idle */
    MANY_TILES = 260,   /* of twice the columns: they read activations half as often */
    PIECES_MIN = 8,     /* of a part of the depth */
    SPLITS_MAX = 6,
    WIDE_BLOCKS = 264,  /* of split products with many rows */
};

/* Columns in tiles of `each`. */
uint32_t tiles_of(const st_cuda_tiles_args &args, uint32_t each)
{
    uint32_t tiles = 0;
    for (uint32_t i = 0; i < args.count; i++) tiles += st_cuda_blocks(args.products[i].columns, each);
    return tiles;
}

st_cuda_tiles_plan plan_of(const st_cuda_tiles_args &args, uint32_t type, uint32_t rows)
{
    uint32_t large = st_cuda_blocks(rows, LARGE_ROWS), tiles = tiles_of(args, ST_CUDA_TILE_COLUMNS), pieces = args.halves.pieces();
    if (rows > ST_CUDA_SPLIT_ROWS) {
        bool prefers_large = st_cuda_tile_rows_max(type) == LARGE_ROWS;
        if (prefers_large && tiles_of(args, 2 * ST_CUDA_TILE_COLUMNS) * large >= MANY_TILES)
            return {2 * ST_CUDA_TILE_WARPS, LARGE_ROWS, large, 1, false};
        if (prefers_large && tiles * large >= ENOUGH_TILES) return {ST_CUDA_TILE_WARPS, LARGE_ROWS, large, 1, false};
        uint32_t below = st_cuda_blocks(rows, ST_CUDA_SPLIT_ROWS), splits = min(WIDE_BLOCKS / (tiles * below), pieces / PIECES_MIN);
        return {ST_CUDA_TILE_WARPS, ST_CUDA_SPLIT_ROWS, below, max(splits, 1u), false};
    }
    bool narrow = tiles < ENOUGH_TILES;
    uint32_t blocks = narrow ? tiles_of(args, ST_CUDA_NARROW_COLUMNS) : tiles;
    uint32_t splits = min((narrow ? ST_CUDA_SPLIT_BLOCKS : ST_CUDA_SPLIT_BLOCKS / 2) / blocks, pieces / PIECES_MIN);
    return {ST_CUDA_TILE_WARPS, rows <= 16 ? 16u : rows <= 32 ? 32u : 64u, 1, max(min(splits, (uint32_t)SPLITS_MAX), 1u), narrow};
}

} // namespace

extern "C" int st_cuda_matmul_tiles(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    st_cuda_halves halves = {call->scratch, (uint32_t)b->weight[0].ne[0], call->rows};
    unsigned char *counters = call->scratch + st_cuda_halves_bytes(halves.width, call->rows);
    int code = cudaSuccess;
    if (!(call->rows <= ST_CUDA_CORES_ROWS ? call->ready : call->converted))
        code = st_cuda_start_convert(call, {{halves, (uint32_t *)counters, false}, st_cuda_rows_of(call), NULL, st_cuda_floats(b->in[0])});
    if (code != cudaSuccess) return code;
    st_cuda_tiles_args args = {st_cuda_rows_of(call), halves, 1 + call->joined, 1, {}, (float *)(counters + ST_CUDA_COUNTERS_BYTES),
                               (uint32_t *)counters, {}};
    for (uint32_t i = 0; i < args.count; i++) {
        const st_bound_weight *w = &b[i].weight[0];
        args.products[i] = {(const unsigned char *)w->data, w->row_bytes, b[i].out.width, 0, st_cuda_floats(b[i].out),
                            st_cuda_vector_of(&b[i].weight[1])};
    }
    st_cuda_tiles_plan plan = plan_of(args, b->weight[0].type, call->rows);
    args.splits = plan.splits;
    return st_cuda_tiles_start(call, b->weight[0].type, args, plan);
}
