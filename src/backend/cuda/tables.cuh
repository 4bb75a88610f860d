/* The expert tables of an operation: copied from mapped pinned memory to scratch first, since every warp reads an entry. */
#ifndef ST_CUDA_TABLES_CUH
#define ST_CUDA_TABLES_CUH

#include "backend/cuda/common.cuh"

struct st_cuda_tables {
    const void *const *from[ST_CUDA_TABLES]; /* NULL: none */
    const void **to;                         /* [ST_CUDA_TABLES, experts] */
    uint32_t experts;

    /* Copies the entries of expert i. */
    __device__ void fetch(uint32_t i) const
    {
        for (int t = 0; t < ST_CUDA_TABLES && i < experts; t++)
            if (from[t]) to[t * experts + i] = ((const void *const volatile *)from[t])[i];
    }
};

static inline st_cuda_tables st_cuda_tables_of(const st_cuda_call *call)
{
    return {{call->tables[0], call->tables[1], call->tables[2]}, (const void **)call->scratch, call->bound->op->p.experts.experts};
}

#endif
