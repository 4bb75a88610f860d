/* Matrix products on tensor cores: their parameters, and which kernel runs them. tiles.cuh has the kernel; it is compiled by type
 * in tiles_32.cu (blocks of 32), tiles_k.cu (K-quants) and tiles_table.cu (IQ4_NL, IQ4_XS and MXFP4). */
#ifndef ST_CUDA_TILES_H
#define ST_CUDA_TILES_H

#include "backend/cuda/halves.cuh"

struct st_cuda_tile_product {
    const unsigned char *weights;
    size_t row_bytes;
    uint32_t columns, first_block; /* first_block: the kernel's launch fills it in */
    float *out;                    /* [rows, columns] */
    st_cuda_vector bias;
};

/* A tile's rows of the sorted pairs (row, expert). */
struct st_cuda_tile {
    uint32_t expert, first, count, unused;
};

struct st_cuda_tile_experts {
    const st_cuda_tile *tiles;  /* NULL: the product has one matrix, and its rows are those of the step */
    const uint32_t *tile_count;
    const uint32_t *order;      /* pairs by expert */
    const void *const *table;   /* [experts] */
    const void *const *up_table;
    size_t up_bytes;            /* of a row of `up` */
    uint32_t first, up_first;   /* rows of the matrices at which they begin */
    uint32_t used;
    bool inputs;   /* gate and up, or up alone: halves are those of the step's rows, out by place in `order`, with the activation */
                   /* … otherwise down: halves by place in `order`, out by pair */
    bool gated;    /* of inputs: both, out = activation(gate) × up */
    const float *weights; /* [pairs]: of the input. NULL: none */
    st_cuda_vector bias, up_bias; /* of inputs, a row per expert; bias: of gate or of up alone */
    st_activation activation;
};

struct st_cuda_tiles_args {
    st_cuda_rows rows;
    st_cuda_halves halves;
    uint32_t count, splits;
    st_cuda_tile_product products[ST_CUDA_JOINED_MAX];
    float *partial;     /* of each block, if splits > 1 */
    uint32_t *counters; /* of each tile: 0 before and after the launch */
    st_cuda_tile_experts experts;
};

/* The shape of a launch. */
struct st_cuda_tiles_plan {
    uint32_t warps, rows; /* a tile has 32 columns for each warp, and so many rows */
    uint32_t grid_rows;   /* tiles one below the other */
    uint32_t splits;
    bool narrow;          /* a tile has 16 columns for each warp: more blocks run at a time */
};

/* The largest tile that is faster than smaller ones: Q4_K is cheap to unpack, and smaller tiles run more at a time. */
static inline uint32_t st_cuda_tile_rows_max(uint32_t type)
{
    return type == ST_TYPE_Q4_K ? 64 : 128;
}

int st_cuda_tiles_32(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan);
int st_cuda_tiles_table(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan);
int st_cuda_tiles_k(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan);

static inline int st_cuda_tiles_start(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args,
                                      const st_cuda_tiles_plan &plan)
{
    bool k = type == ST_TYPE_Q2_K || type == ST_TYPE_Q3_K || type == ST_TYPE_Q4_K || type == ST_TYPE_Q5_K || type == ST_TYPE_Q6_K;
    bool table = type == ST_TYPE_IQ4_NL || type == ST_TYPE_IQ4_XS || type == ST_TYPE_MXFP4;
    return (k ? st_cuda_tiles_k : table ? st_cuda_tiles_table : st_cuda_tiles_32)(call, type, args, plan);
}

#endif
