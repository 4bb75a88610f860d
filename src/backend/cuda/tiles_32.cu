/* Products on tensor cores with weights in blocks of 32 whose values are integers. */
#include "backend/cuda/tiles.cuh"

int st_cuda_tiles_32(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan)
{
    switch (type) {
    case ST_TYPE_Q4_0: return st_cuda_run_tiles<st_cuda_unit_q4_0, 8, 8 * sizeof(st_block_q4_0)>(call, args, plan);
    case ST_TYPE_Q4_1: return st_cuda_run_tiles<st_cuda_unit_q4_1, 8, 8 * sizeof(st_block_q4_1)>(call, args, plan);
    case ST_TYPE_Q5_0: return st_cuda_run_tiles<st_cuda_unit_q5_0, 16, 8 * sizeof(st_block_q5_0)>(call, args, plan);
    case ST_TYPE_Q5_1: return st_cuda_run_tiles<st_cuda_unit_q5_1, 16, 8 * sizeof(st_block_q5_1)>(call, args, plan);
    case ST_TYPE_Q8_0: return st_cuda_run_tiles<st_cuda_unit_q8_0, 0, 8 * sizeof(st_block_q8_0)>(call, args, plan);
    default: return (int)cudaErrorInvalidValue;
    }
}
