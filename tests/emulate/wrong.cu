#include "emulate/wrong.h"

#include "backend/cuda/machine.cuh"

namespace {

enum { ALL = -1, HALF = 0xFFFF, BLOCK = 128, WARP = 32 };

template <class F> __global__ void each(F f)
{
    f();
}

template <class F> void launch(dim3 blocks, dim3 threads, size_t shared_bytes, F f)
{
    st_cuda_launch<each<F>>(NULL, false, blocks, threads, shared_bytes, f);
}

template <class F> void warp(F f)
{
    launch(1, WARP, 0, f);
}

} // namespace

/* --- faults ------------------------------------------------------------------------------------------------------- */

void wrong_mask(void)
{
    warp([] { __shfl_xor_sync(HALF, 1, 1); });
}

void wrong_exited_lane(void)
{
    warp([] {
        if (threadIdx.x != 3) __syncwarp();
    });
}

void wrong_source(void)
{
    warp([] {
        if (threadIdx.x < 16) __shfl_xor_sync(HALF, 1, 16);
    });
}

void wrong_branch(void)
{
    warp([] {
        if (threadIdx.x < 16) __syncwarp();
        else __syncthreads();
    });
}

void wrong_barrier(void)
{
    launch(1, BLOCK, 0, [] {
        if (threadIdx.x < 64) __syncthreads();
        else
            __syncthreads();
    });
}

void wrong_word(void)
{
    alignas(16) static unsigned char bytes[32];
    static unsigned sum;
    warp([] { sum += ((const volatile uint4 *)(bytes + 4 * (threadIdx.x == 7)))->x; });
}

void wrong_copy(void)
{
    alignas(16) static unsigned char to[16], from[32];
    warp([] { st_cuda_copy_16(to, from + 8); });
}

void wrong_grid(void)
{
    launch(dim3(1, 65536), WARP, 0, [] {});
}

void wrong_block(void)
{
    launch(1, 1025, 0, [] {});
}

void wrong_shared(void)
{
    launch(1, WARP, 64 << 10, [] {});
}

void wrong_shared_size(void)
{
    auto nothing = [] {};
    cudaFuncSetAttribute(each<decltype(nothing)>, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10);
}

void wrong_bounds(void)
{
    launch(1, WARP, WARP * sizeof(float), [] {
        ST_CUDA_DYNAMIC(float, shared);
        shared[threadIdx.x + 1] = 1;
    });
}

/* --- results ------------------------------------------------------------------------------------------------------ */

bool shared_reverse(bool barrier)
{
    static unsigned out[BLOCK];
    launch(1, BLOCK, 0, [=] {
        __shared__ unsigned numbers[BLOCK];
        numbers[threadIdx.x] = 0;
        __syncthreads();
        numbers[threadIdx.x] = threadIdx.x;
        if (barrier) __syncthreads();
        out[threadIdx.x] = numbers[BLOCK - 1 - threadIdx.x];
    });
    for (unsigned i = 0; i < BLOCK; i++)
        if (out[i] != BLOCK - 1 - i) return false;
    return true;
}

bool shared_rotate(bool barrier)
{
    static unsigned out[WARP];
    launch(1, WARP, 0, [=] {
        __shared__ unsigned numbers[WARP];
        numbers[threadIdx.x] = WARP;
        __syncwarp();
        numbers[threadIdx.x] = threadIdx.x;
        if (barrier) __syncwarp();
        out[threadIdx.x] = numbers[(threadIdx.x + WARP - 1) % WARP];
    });
    for (unsigned i = 0; i < WARP; i++)
        if (out[i] != (i + WARP - 1) % WARP) return false;
    return true;
}

bool shared_copied(bool wait)
{
    static uint4 from[2 * WARP], out[WARP];
    for (unsigned i = 0; i < 2 * WARP; i++) from[i] = {i, i, i, i};
    launch(1, WARP, 2 * sizeof from, [=] {
        ST_CUDA_DYNAMIC(uint4, shared);
        for (unsigned i = 0; i < 2; i++) {
            st_cuda_copy_16(&shared[threadIdx.x + i * WARP], &from[threadIdx.x + i * WARP]);
            st_cuda_copies_end();
        }
        if (wait) st_cuda_copies_wait<1>();
        out[threadIdx.x] = shared[threadIdx.x];
        if (shared[threadIdx.x + WARP].x == threadIdx.x + WARP) out[0].x = WARP; /* may not be there yet */
    });
    for (unsigned i = 0; i < WARP; i++)
        if (out[i].x != i || out[i].w != i) return false;
    return true;
}

bool shared_unwritten(void)
{
    static bool found;
    found = false;
    launch(4, WARP, WARP * sizeof(float), [] {
        ST_CUDA_DYNAMIC(float, shared);
        found = found || !isnan(shared[threadIdx.x]);
        shared[threadIdx.x] = 1;
    });
    return !found;
}

bool blocks_once(void)
{
    enum { X = 5, Y = 3, Z = 2 };
    static unsigned counts[X * Y * Z];
    memset(counts, 0, sizeof counts);
    launch(dim3(X, Y, Z), dim3(4, 2), 0, [] {
        uint32_t at = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        if (threadIdx.x == 3 && threadIdx.y == 1) counts[at]++;
    });
    for (unsigned count : counts)
        if (count != 1) return false;
    return true;
}

bool last_block_sums(void)
{
    enum { BLOCKS = 9 };
    static unsigned parts[BLOCKS], counter, sum;
    counter = sum = 0;
    memset(parts, 0, sizeof parts);
    launch(BLOCKS, WARP, 0, [] {
        __shared__ bool last;
        if (threadIdx.x == 0) {
            parts[blockIdx.x] = blockIdx.x + 1;
            __threadfence();
            last = atomicAdd(&counter, 1) + 1 == gridDim.x;
        }
        __syncthreads();
        if (last && threadIdx.x == 0)
            for (unsigned part : parts) sum += part;
    });
    return sum == BLOCKS * (BLOCKS + 1) / 2;
}

bool halves_apart(void)
{
    static unsigned out[WARP];
    warp([] {
        unsigned lane = threadIdx.x, sum = __shfl_sync(ALL, lane + 100, 5);
        if (lane < 16)
            for (int i = 0; i < 100; i++) sum += __shfl_xor_sync(HALF, 1, 1);
        else sum += __shfl_xor_sync(~HALF, lane, 1);
        out[lane] = sum + __shfl_sync(ALL, lane, 31);
    });
    for (unsigned i = 0; i < WARP; i++)
        if (out[i] != 105 + 31 + (i < 16 ? 100 : (i ^ 1))) return false;
    return true;
}

namespace {

unsigned short half_of(int x)
{
    return __half_as_ushort(__float2half_rn((float)x));
}

int element(unsigned row, unsigned column)
{
    return (int)((row * 7 + column * 3) % 11) - 5;
}

bool is_product(const float *c, unsigned depth)
{
    for (unsigned row = 0; row < 16; row++) {
        for (unsigned column = 0; column < 8; column++) {
            int sum = 1;
            for (unsigned k = 0; k < depth; k++) sum += element(row, k) * element(k, column);
            if (c[row * 8 + column] != (float)sum) return false;
        }
    }
    return true;
}

/* Where a lane's sums are in c[16, 8]. */
template <class T> void store(float *c, const T *sums)
{
    unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
    for (unsigned e = 0; e < 4; e++) c[(g + e / 2 * 8) * 8 + 2 * t + e % 2] = (float)sums[e];
}

} // namespace

bool product_f16(void)
{
    alignas(16) static unsigned short a[16][16], b[16][16]; /* b: two matrices of 8 columns, side by side */
    static float out[2][16 * 8];
    for (unsigned i = 0; i < 16; i++)
        for (unsigned k = 0; k < 16; k++) a[i][k] = half_of(element(i, k)), b[i][k] = half_of(element(i, k % 8));
    warp([] {
        unsigned lane = threadIdx.x, fragment[4], columns[4];
        st_cuda_load_matrices(fragment, &a[lane % 8 + lane / 8 % 2 * 8][lane / 16 * 8]);
        st_cuda_load_transposed(columns, &b[lane % 16][lane / 16 * 8]);
        for (unsigned i = 0; i < 2; i++) {
            float sums[4] = {1, 1, 1, 1};
            st_cuda_mma(sums, fragment, columns[2 * i], columns[2 * i + 1]);
            store(out[i], sums);
        }
    });
    return is_product(out[0], 16) && is_product(out[1], 16);
}
