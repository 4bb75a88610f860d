/* Products on tensor cores with weights of 4 bits that are indices of a table of values. */
#include "backend/cuda/tiles.cuh"

int st_cuda_tiles_table(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan)
{
    switch (type) {
    case ST_TYPE_IQ4_NL: return st_cuda_run_tiles<st_cuda_unit_iq4_nl, 0, 8 * sizeof(st_block_iq4_nl)>(call, args, plan);
    case ST_TYPE_IQ4_XS: return st_cuda_run_tiles<st_cuda_unit_iq4_xs, 0, sizeof(st_block_iq4_xs)>(call, args, plan);
    case ST_TYPE_MXFP4: return st_cuda_run_tiles<st_cuda_unit_mxfp4, 0, 8 * sizeof(st_block_mxfp4)>(call, args, plan);
    default: return (int)cudaErrorInvalidValue;
    }
}
