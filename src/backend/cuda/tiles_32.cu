/* Products on tensor cores with weights in blocks of 32, and IQ4_XS, whose units are neighbours as well. */
#include "backend/cuda/tiles.cuh"

template <class U, int CENTRE, int GROUP_BYTES>
using launch_of = st_cuda_tiles_launch<st_cuda_stream_of<st_cuda_pieces_of_units<U, CENTRE>, GROUP_BYTES>>;

int st_cuda_tiles_32(const st_cuda_call *call, uint32_t type, const st_cuda_tiles_args &args, const st_cuda_tiles_plan &plan)
{
#define CASE(NAME, name, centre, blocks) \
    case ST_TYPE_##NAME: return launch_of<st_cuda_unit_##name, centre, (blocks) * sizeof(st_block_##name)>{call, plan}.run(args);
    switch (type) {
        CASE(Q4_0, q4_0, 8, 8)
        CASE(Q4_1, q4_1, 8, 8)
        CASE(Q5_0, q5_0, 16, 8)
        CASE(Q5_1, q5_1, 16, 8)
        CASE(Q8_0, q8_0, 0, 8)
        CASE(IQ4_NL, iq4_nl, 0, 8)
        CASE(IQ4_XS, iq4_xs, 0, 1)
        CASE(MXFP4, mxfp4, 0, 8)
    default: return (int)cudaErrorInvalidValue;
    }
#undef CASE
}
