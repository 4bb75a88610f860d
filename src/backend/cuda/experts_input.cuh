/* What the experts of few rows read: their tables in device memory, and int8 activations of their input. */
#ifndef ST_CUDA_EXPERTS_INPUT_CUH
#define ST_CUDA_EXPERTS_INPUT_CUH

#include "backend/cuda/acts.cuh"
#include "backend/cuda/tables.cuh"

struct st_cuda_experts_input {
    const float *in; /* [rows, width of acts] */
    st_cuda_acts acts;
    st_cuda_tables tables;

    /* Blocks of so many threads that a row takes, and all rows with the tables. */
    __host__ __device__ uint32_t blocks_of_row(uint32_t threads) const
    {
        return (acts.width / 4 + threads - 1) / threads;
    }
    uint32_t blocks(uint32_t rows, uint32_t threads) const
    {
        return rows * blocks_of_row(threads) + st_cuda_blocks(tables.experts, threads);
    }
    /* The part of one of these blocks; rows_max: the rows that they were counted for. */
    __device__ void prepare(const st_cuda_rows &rows, uint32_t rows_max, uint32_t block) const
    {
        uint32_t each = blocks_of_row(blockDim.x), row = block / each, first = (block % each * blockDim.x + threadIdx.x) * 4;
        if (row >= rows_max) {
            tables.fetch((block - rows_max * each) * blockDim.x + threadIdx.x);
            return;
        }
        float4 x = {};
        if (first < acts.width && rows.loads(row)) x = *(const float4 *)(in + (size_t)row * acts.width + first);
        st_cuda_quantise(acts, row, first, x, first < acts.width && row < rows.count());
    }
};

/* Of an EXPERTS operation: behind the tables in scratch. */
static inline st_cuda_experts_input st_cuda_experts_input_of(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    unsigned char *memory = call->scratch + st_cuda_tables_bytes(b->op->p.experts.experts);
    return {st_cuda_floats(b->in[0]), {memory, b->in[0].width}, st_cuda_tables_of(call)};
}

#endif
