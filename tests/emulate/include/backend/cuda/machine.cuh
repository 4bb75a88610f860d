/* In the place of src/backend/cuda/machine.cuh: launches, dynamic shared memory and PTX instructions on the
 * emulator. */
#ifndef ST_CUDA_MACHINE_CUH
#define ST_CUDA_MACHINE_CUH

#include "emulate/cuda.h"

#define ST_CUDA_DYNAMIC(TYPE, NAME) TYPE *NAME = (TYPE *)emulate_dynamic()

template <auto KERNEL, class... Args>
static int st_cuda_launch(void *, bool, dim3 blocks, dim3 threads, size_t shared_bytes, const Args &...args)
{
    emulate_launch((const void *)KERNEL, blocks, threads, shared_bytes, [&] { KERNEL(args...); });
    return (int)cudaSuccess;
}

static inline uint64_t st_cuda_nanoseconds(void)
{
    return emulate_nanoseconds();
}

/* --- arithmetic in one instruction ---------------------------------------------------------------------------------- */

static inline float emulate_flush(float x)
{
    return std::fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static inline float st_cuda_reciprocal(float x)
{
    return emulate_flush(1 / emulate_flush(x));
}

static inline float st_cuda_reciprocal_root(float x)
{
    return 1 / sqrtf(emulate_flush(x));
}

static inline float st_cuda_exp2(float x)
{
    return emulate_flush(exp2f(emulate_flush(x)));
}

static inline float st_cuda_max_or_nan(float a, float b)
{
    return a > b || std::isnan(a) ? a : b;
}

/* --- dependent launches: the kernel before has ended -------------------------------------------------------------- */

extern bool st_cuda_dependent;

static inline void st_cuda_release()
{
}

static inline void st_cuda_await()
{
}

/* --- loads -------------------------------------------------------------------------------------------------------- */

static inline void emulate_read(void *out, const void *from, size_t bytes)
{
    emulate_aligned(from, bytes);
    memcpy(out, from, bytes);
}

static inline unsigned st_cuda_read_word(const void *from)
{
    unsigned x;
    emulate_read(&x, from, sizeof x);
    return x;
}

static inline void st_cuda_read_8(unsigned *out, const void *from)
{
    emulate_read(out, from, 8);
}

static inline void st_cuda_read_16(unsigned *out, const void *from)
{
    emulate_read(out, from, 16);
}

static inline unsigned st_cuda_read_half_bits(const void *from)
{
    unsigned short x;
    emulate_read(&x, from, sizeof x);
    return x;
}

static inline unsigned st_cuda_read_byte(const void *from)
{
    return *(const unsigned char *)from;
}

/* --- copies to shared memory by the memory system -------------------------------------------------------------------- */

static inline bool st_cuda_has_bulk(void)
{
    return true;
}

static inline uint32_t st_cuda_processors(void)
{
    return 2;
}

/* Counts the copies. */
static inline void st_cuda_bulk_barrier(uint64_t *barrier)
{
    *barrier = 0;
}

static inline void st_cuda_bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
    emulate_aligned(to, 16);
    emulate_aligned(from, 16);
    emulate_aligned((const void *)(uintptr_t)bytes, 16);
    memcpy(to, from, bytes);
    ++*barrier;
}

static inline void st_cuda_bulk_wait(uint64_t *barrier, uint32_t odd)
{
    if (*barrier % 2 == odd) emulate_fault("a wait for a copy to shared memory that has not begun");
}

/* --- copies to shared memory -------------------------------------------------------------------------------------- */

static inline void st_cuda_copy_16(void *to, const void *from)
{
    emulate_copy(to, from, 16, 16);
}

template <int BYTES> static inline void st_cuda_copy_or_zero(void *to, const void *from, bool present)
{
    emulate_copy(to, from, BYTES, present ? BYTES : 0);
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
