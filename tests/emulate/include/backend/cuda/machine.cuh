/* In the place of src/backend/cuda/machine.cuh: launches, dynamic shared memory and PTX instructions on the
 * emulator. */
#ifndef ST_CUDA_MACHINE_CUH
#define ST_CUDA_MACHINE_CUH

#include "emulate/cuda.h"

#define ST_CUDA_DYNAMIC(TYPE, NAME) TYPE *NAME = (TYPE *)emulate_dynamic()

template <auto KERNEL, class... Args>
static int st_cuda_launch(void *, dim3 blocks, dim3 threads, size_t shared_bytes, const Args &...args)
{
    emulate_launch((const void *)KERNEL, blocks, threads, shared_bytes, [&] { KERNEL(args...); });
    return (int)cudaSuccess;
}

static inline uint64_t st_cuda_nanoseconds(void)
{
    return emulate_nanoseconds();
}

/* --- copies to shared memory -------------------------------------------------------------------------------------- */

static inline void st_cuda_copy_16(void *to, const void *from)
{
    emulate_copy(to, from, 16, 16);
}

static inline void st_cuda_copies_end()
{
    emulate_copies_end();
}

template <int LEFT> static inline void st_cuda_copies_wait()
{
    emulate_copies_wait(LEFT);
}

static inline void st_cuda_prefetch(const void *)
{
}

/* --- tensor cores ------------------------------------------------------------------------------------------------- */

static inline void st_cuda_mma(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
    emulate_mma_f16(c, a, b0, b1);
}

static inline void st_cuda_load_matrices(unsigned *out, const void *row)
{
    emulate_load_matrices(out, row, false);
}

static inline void st_cuda_load_transposed(unsigned *out, const void *row)
{
    emulate_load_matrices(out, row, true);
}

#endif
