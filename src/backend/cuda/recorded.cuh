/* A recorded choice in the step block replaces a router's, at the end of its kernel: no launch is added. */
#ifndef ST_CUDA_RECORDED_CUH
#define ST_CUDA_RECORDED_CUH

#include "backend/cuda/common.cuh"

/* The choices of one router in the rows of a step; `here` is false for a router that chooses. */
struct st_cuda_recorded {
    bool here;
    uint32_t at, used;
};

static inline st_cuda_recorded st_cuda_recorded_of(const st_op *op)
{
    return {op->p.route.recorded, op->p.route.choices_at, op->p.route.used};
}

/* Called by all lanes of the warp that has written the row's ids and weights. */
static __device__ void st_cuda_take_recorded(const st_cuda_recorded &recorded, const st_cuda_rows &rows, uint32_t row,
                                             int32_t *ids, float *weights, uint32_t lane)
{
    if (!recorded.here) return;
    const uint32_t *choice = rows.choices(row) + recorded.at;
    if ((int32_t)choice[0] < 0) return;
    __syncwarp();
    for (uint32_t k = lane; k < recorded.used; k += ST_CUDA_WARP) {
        ids[k] = (int32_t)choice[k];
        weights[k] = __uint_as_float(choice[recorded.used + k]);
    }
}

#endif
