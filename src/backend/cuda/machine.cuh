/* What only nvcc compiles: the launch of a kernel, dynamic shared memory, and PTX instructions (compute capability
 * 8.0). Kernels use these names, so that tests/emulate, which compiles them for the CPU, replaces this header and no
 * other. Knows no operation. */
#ifndef ST_CUDA_MACHINE_CUH
#define ST_CUDA_MACHINE_CUH

#include <stddef.h>
#include <stdint.h>

/* The dynamic shared memory of a block, as an array. */
#define ST_CUDA_DYNAMIC(TYPE, NAME) extern __shared__ TYPE NAME[]

/* load.cu: whether all kernels were compiled for compute capability 9.0 or later, so that they wait for the one before. */
extern bool st_cuda_dependent;

/* `early`: the kernel may start while the one before it runs. Returns a cudaError_t. */
template <auto KERNEL, class... Args>
static int st_cuda_launch(void *stream, bool early, dim3 blocks, dim3 threads, size_t shared_bytes, const Args &...args)
{
    cudaLaunchAttribute serialization = {};
    serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    serialization.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = threads, config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)stream, config.attrs = &serialization, config.numAttrs = early && st_cuda_dependent;
    return (int)cudaLaunchKernelEx(&config, KERNEL, args...);
}

static __device__ __forceinline__ uint64_t st_cuda_nanoseconds(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* --- arithmetic in one instruction: 2 units in the last place; subnormal numbers are 0 ------------------------------- */

static __device__ __forceinline__ float st_cuda_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float st_cuda_reciprocal_root(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float st_cuda_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* NaN if one of the two is. */
static __device__ __forceinline__ float st_cuda_max_or_nan(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* --- dependent launches: common.cuh has the rule -------------------------------------------------------------------- */

static __device__ __forceinline__ void st_cuda_release(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void st_cuda_await(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* --- loads ---------------------------------------------------------------------------------------------------------- */

/* Loads of weights, in the order of the source. Plain ones: the assembler moves loads through the read-only cache (ld.global.nc)
 * behind a wait for the kernel before. */
static __device__ __forceinline__ unsigned st_cuda_read_word(const void *from)
{
    unsigned x;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

static __device__ __forceinline__ void st_cuda_read_8(unsigned *out, const void *from)
{
    asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(out[0]), "=r"(out[1]) : "l"(from));
}

/* 16 bytes from an aligned address. */
static __device__ __forceinline__ void st_cuda_read_16(unsigned *out, const void *from)
{
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "l"(from));
}

static __device__ __forceinline__ unsigned st_cuda_read_half_bits(const void *from)
{
    unsigned short x;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(from));
    return x;
}

static __device__ __forceinline__ unsigned st_cuda_read_byte(const void *from)
{
    unsigned x;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

/* --- copies to shared memory by the memory system: compute capability 9.0 --------------------------------------------- */

static inline bool st_cuda_has_bulk(void)
{
    return st_cuda_dependent;
}

static inline uint32_t st_cuda_processors(void)
{
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 1;
    return (uint32_t)count;
}

/* A barrier in shared memory that a copy opens. The thread that made it begins copies; others synchronise with it first. */
static __device__ __forceinline__ void st_cuda_bulk_barrier(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    unsigned at = (unsigned)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(at) : "memory");
#endif
}

/* Both addresses and `bytes` are multiples of 16. */
static __device__ __forceinline__ void st_cuda_bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    unsigned shared = (unsigned)__cvta_generic_to_shared(to), at = (unsigned)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(at)
                 : "memory");
#endif
}

/* Waits for the n-th copy of the barrier; `odd`: n is odd, counted from 0. */
static __device__ __forceinline__ void st_cuda_bulk_wait(uint64_t *barrier, uint32_t odd)
{
#if __CUDA_ARCH__ >= 900
    unsigned at = (unsigned)__cvta_generic_to_shared(barrier), open = 0;
    while (!open)
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(open)
                     : "r"(at), "r"(odd)
                     : "memory");
#endif
}

/* --- copies to shared memory -------------------------------------------------------------------------------------- */

/* 16 bytes from device memory to shared memory. */
static __device__ __forceinline__ void st_cuda_copy_16(void *to, const void *from)
{
    unsigned shared = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

/* BYTES from device memory to shared memory; zeros if it is not present. */
template <int BYTES> static __device__ __forceinline__ void st_cuda_copy_or_zero(void *to, const void *from, bool present)
{
    unsigned shared = (unsigned)__cvta_generic_to_shared(to), bytes = present ? BYTES : 0;
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared), "l"(from), "r"(bytes), "n"(BYTES) : "memory");
}

static __device__ __forceinline__ void st_cuda_copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most LEFT groups of copies are under way. */
template <int LEFT> static __device__ __forceinline__ void st_cuda_copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Brings the line of an address into the L2 cache. */
static __device__ __forceinline__ void st_cuda_prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* --- tensor cores: f16 fragments, sums in float32 ----------------------------------------------------------------- */

/* c[16 × 8] += a[16 × 16] · b[16 × 8] */
static __device__ __forceinline__ void st_cuda_mma(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices of 8 × 8 f16: lane 8 i + r has the address of row r of matrix i. */
static __device__ __forceinline__ void st_cuda_load_matrices(unsigned *out, const void *row)
{
    unsigned shared = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared)
                 : "memory");
}

/* … each transposed. */
static __device__ __forceinline__ void st_cuda_load_transposed(unsigned *out, const void *row)
{
    unsigned shared = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared)
                 : "memory");
}

#endif
