/* Products on tensor cores with weights of the K-quants. */
#include "backend/cuda/tiles.cuh"

int st_cuda_tiles_k(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan)
{
    switch (type) {
    case ST_TYPE_Q2_K: return st_cuda_tiles_launch<st_cuda_stream_of<st_cuda_pieces_q2_k, sizeof(st_block_q2_k)>>{call, plan}.run(args);
    case ST_TYPE_Q3_K: return st_cuda_tiles_launch<st_cuda_stream_of<st_cuda_pieces_q3_k, sizeof(st_block_q3_k)>>{call, plan}.run(args);
    case ST_TYPE_Q4_K: return st_cuda_tiles_launch<st_cuda_stream_q4_k>{call, plan}.run(args);
    case ST_TYPE_Q5_K: return st_cuda_tiles_launch<st_cuda_stream_of<st_cuda_pieces_q5_k, sizeof(st_block_q5_k)>>{call, plan}.run(args);
    case ST_TYPE_Q6_K: return st_cuda_tiles_launch<st_cuda_stream_of<st_cuda_pieces_q6_k, sizeof(st_block_q6_k)>>{call, plan}.run(args);
    default: return (int)cudaErrorInvalidValue;
    }
}
