/* CUDA's keywords, variables and functions for kernels that g++ compiles: included before every .cu file. Warp
 * functions go to emulate.h; the others are computed here, as CUDA documents them. Knows no kernel. */
#ifndef TEST_EMULATE_CUDA_H
#define TEST_EMULATE_CUDA_H

#include <cmath>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <type_traits>

#include "emulate/emulate.h"
#include "emulate/tensor.h"

/* Shared memory is one block's: only one runs at a time. */
#undef __shared__
#define __shared__ static
#undef __global__
#define __global__
#undef __launch_bounds__
#define __launch_bounds__(...)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* --- the CUDA runtime, as far as launches use it ------------------------------------------------------------------ */

template <class... Args>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(Args...), cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) emulate_allow((const void *)kernel, (size_t)value);
    return cudaSuccess;
}

/* --- bits and numbers --------------------------------------------------------------------------------------------- */

using std::isnan;

template <class A, class B> static inline auto min(A a, B b)
{
    using type = std::common_type_t<decltype(+a), decltype(+b)>;
    return (type)b < (type)a ? (type)b : (type)a;
}

template <class A, class B> static inline auto max(A a, B b)
{
    using type = std::common_type_t<decltype(+a), decltype(+b)>;
    return (type)a < (type)b ? (type)b : (type)a;
}

template <class To, class From> static inline To emulate_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To out;
    memcpy(&out, &x, sizeof out);
    return out;
}

static inline float __uint_as_float(unsigned x)
{
    return emulate_bits<float>(x);
}

static inline float __int_as_float(int x)
{
    return emulate_bits<float>(x);
}

static inline unsigned __float_as_uint(float x)
{
    return emulate_bits<unsigned>(x);
}

static inline int __float_as_int(float x)
{
    return emulate_bits<int>(x);
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline int __float2int_rn(float x)
{
    if (std::isnan(x)) return 0;
    if (x >= 2147483648.0f) return INT32_MAX;
    return x < -2147483648.0f ? INT32_MIN : (int)lrintf(x);
}

/* One rounding, as on the GPU: the product of two f16 is exact in float64. */
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
    return __floats2half2_rn((float)((double)x.x * y.x + z.x), (float)((double)x.y * y.y + z.y));
}

/* c + Σ a[i] × b[i] of four signed bytes */
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}

/* c + Σ a[i] × b[i] of two signed 16-bit numbers and the two low signed bytes of b */
static inline int __dp2a_lo(int a, int b, int c)
{
    for (int i = 0; i < 2; i++) c += (int)(short)(a >> 16 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned chosen = selector >> 4 * i, byte = (unsigned)(bytes >> 8 * (chosen & 7)) & 0xFF;
        if (chosen & 8) byte = byte & 0x80 ? 0xFF : 0;
        out |= byte << 8 * i;
    }
    return out;
}

template <class F> static inline unsigned emulate_by_bytes(unsigned a, unsigned b, F f)
{
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8) out |= (unsigned)(f((int)(a >> i & 0xFF), (int)(b >> i & 0xFF)) & 0xFF) << i;
    return out;
}

static inline unsigned __vsub4(unsigned a, unsigned b)
{
    return emulate_by_bytes(a, b, [](int x, int y) { return x - y; });
}

static inline unsigned __vsubss4(unsigned a, unsigned b)
{
    return emulate_by_bytes(a, b, [](int x, int y) { return max(-128, min(127, (signed char)x - (signed char)y)); });
}

static inline unsigned __vcmpeq4(unsigned a, unsigned b)
{
    return emulate_by_bytes(a, b, [](int x, int y) { return x == y ? 0xFF : 0; });
}

static inline unsigned __vcmpne4(unsigned a, unsigned b)
{
    return ~__vcmpeq4(a, b);
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

template <class T> static inline T __ldg(const T *from)
{
    return *from;
}

template <class T> static inline T __ldcg(const T *from)
{
    return *from;
}

/* Threads are switched where they wait, so a read and a write are one step. */
template <class T, class U> static inline T atomicAdd(T *to, U x)
{
    T before = *to;
    *to = before + (T)x;
    return before;
}

static inline void __threadfence()
{
}

static inline void __threadfence_system()
{
}

static inline void __nanosleep(unsigned)
{
}

static inline uint64_t emulate_nanoseconds()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Programmatic dependent launch: the kernel before has ended. */
static inline void cudaGridDependencySynchronize()
{
}

static inline void cudaTriggerProgrammaticLaunchCompletion()
{
}

/* --- barriers and collectives: the last argument is the line of the caller ---------------------------------------- */

static inline void __syncthreads(int line = __builtin_LINE())
{
    emulate_barrier(line);
}

static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, int line = __builtin_LINE())
{
    emulate_meet(mask, emulate_value(), line);
}

template <class T> static inline T emulate_shuffle(unsigned mask, T x, unsigned from, int line)
{
    static_assert(sizeof(T) <= sizeof(emulate_value), "a lane's value");
    emulate_value own = {};
    memcpy(own.words, &x, sizeof x);
    const emulate_value *all = emulate_meet(mask, own, line);
    if (!(mask >> from & 1))
        emulate_fault("it reads lane %u, which is not in the mask %08x (line %d)", from, mask, line);
    memcpy(&x, all[from].words, sizeof x);
    return x;
}

template <class T> static inline T __shfl_sync(unsigned mask, T x, int from, int line = __builtin_LINE())
{
    return emulate_shuffle(mask, x, (unsigned)from % EMULATE_WARP, line);
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int step, int line = __builtin_LINE())
{
    return emulate_shuffle(mask, x, emulate_lane() ^ (unsigned)step, line);
}

/* Lanes without such a neighbour keep their own value. */
template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned step, int line = __builtin_LINE())
{
    unsigned lane = emulate_lane();
    return emulate_shuffle(mask, x, lane >= step ? lane - step : lane, line);
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned step, int line = __builtin_LINE())
{
    unsigned lane = emulate_lane();
    return emulate_shuffle(mask, x, lane + step < EMULATE_WARP ? lane + step : lane, line);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    emulate_value own = {{predicate != 0}};
    const emulate_value *all = emulate_meet(mask, own, line);
    unsigned out = 0;
    for (unsigned i = 0; i < EMULATE_WARP; i++)
        if (mask >> i & 1 && all[i].words[0]) out |= 1u << i;
    return out;
}

template <class F> static inline unsigned emulate_reduce(unsigned mask, unsigned x, int line, F f)
{
    emulate_value own = {{x}};
    const emulate_value *all = emulate_meet(mask, own, line);
    for (unsigned i = 0; i < EMULATE_WARP; i++)
        if (mask >> i & 1) x = f(x, (unsigned)all[i].words[0]);
    return x;
}

static inline unsigned __reduce_max_sync(unsigned mask, unsigned x, int line = __builtin_LINE())
{
    return emulate_reduce(mask, x, line, [](unsigned a, unsigned b) { return max(a, b); });
}

static inline unsigned __reduce_min_sync(unsigned mask, unsigned x, int line = __builtin_LINE())
{
    return emulate_reduce(mask, x, line, [](unsigned a, unsigned b) { return min(a, b); });
}

static inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, line) == mask;
}

static inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, line) != 0;
}

#endif
