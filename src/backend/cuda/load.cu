/* Loads every kernel at once: the driver would load each at its first launch, and take memory then. */
#include "backend/cuda/common.cuh"

/* Constant-initialised, so it is good before any list entry is. */
static const st_cuda_entry *entries;

const st_cuda_entry *st_cuda_list(const st_cuda_entry *entry)
{
    const st_cuda_entry *before = entries;
    entries = entry;
    return before;
}

bool st_cuda_dependent;

extern "C" int st_cuda_load(void)
{
    cudaError_t code = cudaSuccess;
    bool wait = true;
    for (const st_cuda_entry *e = entries; e && code == cudaSuccess; e = e->next) {
        struct cudaFuncAttributes attributes;
        code = cudaFuncGetAttributes(&attributes, e->kernel);
        wait = wait && code == cudaSuccess && attributes.ptxVersion >= 90;
    }
    st_cuda_dependent = wait && code == cudaSuccess;
    return (int)code;
}
