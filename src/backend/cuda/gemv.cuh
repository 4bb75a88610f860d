/* Dot products of quantised weights with int8 activations: lanes of a warp share a row of weights, unit by unit. */
#ifndef ST_CUDA_GEMV_CUH
#define ST_CUDA_GEMV_CUH

#include "backend/cuda/acts.cuh"
#include "backend/cuda/units.cuh"

/* Products of the same input that run in one launch. */
struct st_cuda_gemv_product {
    const unsigned char *weights;
    size_t row_bytes;
    uint32_t columns, first_block;
    float *out;
    st_cuda_vector bias;
};

struct st_cuda_gemv_args {
    st_cuda_rows rows;
    st_cuda_acts acts;
    uint32_t count;
    st_cuda_gemv_product products[ST_CUDA_JOINED_MAX];

    /* The product of a block. */
    __device__ const st_cuda_gemv_product &of(uint32_t block) const
    {
        uint32_t found = 0;
        while (found + 1 < count && block >= products[found + 1].first_block) found++;
        return products[found];
    }
    __device__ const st_cuda_gemv_product &own() const
    {
        return of(blockIdx.x);
    }
};

/* Blocks have `each` columns; `blocks`: how many there are. The activations are in scratch. */
static inline st_cuda_gemv_args st_cuda_gemv_args_of(const st_cuda_call *call, uint32_t each, uint32_t &blocks)
{
    const st_bound_op *b = call->bound;
    st_cuda_gemv_args args = {st_cuda_rows_of(call), {call->scratch, (uint32_t)b->weight[0].ne[0]}, 1 + call->joined, {}};
    blocks = 0;
    for (uint32_t i = 0; i < args.count; i++, b++) {
        args.products[i] = {(const unsigned char *)b->weight[0].data, b->weight[0].row_bytes, b->out.width, blocks,
                            st_cuda_floats(b->out), st_cuda_vector_of(&b->weight[1])};
        blocks += st_cuda_blocks(b->out.width, each);
    }
    return args;
}

static inline uint32_t st_cuda_gemv_columns(const st_cuda_call *call)
{
    uint32_t columns = 0;
    for (uint32_t i = 0; i <= call->joined; i++) columns += call->bound[i].out.width;
    return columns;
}

/* The activations that a unit is multiplied with. */
struct st_cuda_unit_acts {
    int q[2][4];
    float scale[2], total[2];
};

/* The words of UNITS units of each of ROWS rows of weights: u, u + 32 …; past the end those of the last unit, which are not used. */
template <class W, int ROWS, int UNITS>
static __device__ __forceinline__ void st_cuda_fetch_units(const unsigned char *const *rows, uint32_t u, uint32_t units,
                                                           unsigned (*words)[ROWS][W::WORDS])
{
#pragma unroll
    for (int i = 0; i < UNITS; i++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) W::template fetch<st_cuda_from_device>(rows[r], min(u + i * ST_CUDA_WARP, units - 1), words[i][r]);
}

template <class W>
static __device__ __forceinline__ void st_cuda_load_acts(const st_cuda_acts &acts, uint32_t row, uint32_t unit, st_cuda_unit_acts &x)
{
    const signed char *bytes = acts.bytes(row);
    const st_cuda_act_group *groups = acts.groups(row);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t at = W::at(unit, half);
        int4 q = *(const int4 *)(bytes + at);
        float2 group = *(const float2 *)(groups + at / ST_CUDA_ACT_GROUP);
        x.q[half][0] = q.x, x.q[half][1] = q.y, x.q[half][2] = q.z, x.q[half][3] = q.w;
        x.scale[half] = group.x;
        x.total[half] = group.y;
    }
}

/* sum + w · x */
static __device__ __forceinline__ float st_cuda_unit_dot(const st_cuda_unit &w, const st_cuda_unit_acts &x, float sum = 0)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int dot = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) dot = __dp4a((int)w.q[half][i], x.q[half][i], dot);
        sum += x.scale[half] * (w.d[half] * (float)dot + w.m[half] * x.total[half]);
    }
    return sum;
}

#endif
