/* Keys and values on tensor cores: tiles of them as f16 in shared memory, scores, the running softmax of a warp's 16 rows,
 * and the weighted sum of values. Queries and weights are sums of two f16 numbers, so the result is as that of float32
 * products: F16 and BF16 are f16 as they are (BF16 with an exponent less), Q8_0 is a sum of two as well. */
#ifndef ST_CUDA_ATTENTION_MMA_CUH
#define ST_CUDA_ATTENTION_MMA_CUH

#include "backend/cuda/attention.cuh"
#include "backend/cuda/mma.cuh"

namespace {

enum { PAD = ST_CUDA_ROW_PAD };

/* Eight elements of a key or value as f16. SHRINK: what they are divided by. */
struct from_f16 {
    typedef st_cuda_kv_f16 kv;
    enum { SPLIT = false, SHRINK = 1 };
    static __device__ __forceinline__ void halves(const kv::eight &x, uint4 &high, uint4 &)
    {
        high = x;
    }
};

struct from_bf16 {
    typedef st_cuda_kv_bf16 kv;
    enum { SPLIT = false, SHRINK = ST_CUDA_BF16_SHRINK };
    static __device__ __forceinline__ void halves(const kv::eight &x, uint4 &high, uint4 &)
    {
        high.x = st_cuda_shrink_bf16(x.x), high.y = st_cuda_shrink_bf16(x.y);
        high.z = st_cuda_shrink_bf16(x.z), high.w = st_cuda_shrink_bf16(x.w);
    }
};

struct from_q8_0 {
    typedef st_cuda_kv_q8_0 kv;
    enum { SPLIT = true, SHRINK = 1 };
    static __device__ __forceinline__ void halves(const kv::eight &x, uint4 &high, uint4 &low)
    {
        float v[8];
        kv::unpack(x, v);
        st_cuda_split_halves(v[0], v[1], high.x, low.x);
        st_cuda_split_halves(v[2], v[3], high.y, low.y);
        st_cuda_split_halves(v[4], v[5], high.z, low.z);
        st_cuda_split_halves(v[6], v[7], high.w, low.w);
    }
};

/* f.run<type>() for the type of a KV cache, which is not float32. */
template <class L> int with_halves(st_type type, const L &f)
{
    switch (type) {
    case ST_TYPE_F16: return f.template run<from_f16>();
    case ST_TYPE_BF16: return f.template run<from_bf16>();
    case ST_TYPE_Q8_0: return f.template run<from_q8_0>();
    default: return (int)cudaErrorInvalidValue;
    }
}

/* A tile of f16 rows; with SPLIT it has low parts. */
template <int HEAD, int COUNT> using rows_of = st_cuda_half_rows<HEAD, COUNT>;

/* Queries of 16 rows and 16 × STEPS elements, as fragments: [step][high, low]. */
template <int STEPS> struct queries {
    unsigned fragments[STEPS][2][4];

    /* Queries × factor. `in`: the first row's first element; rows are `stride` floats apart, those past `active` are
     * zeros. Of each fragment a lane has rows lane / 4 and 8 further, elements lane % 4 × 2 and 8 further. */
    __device__ __forceinline__ void load(const float *in, size_t stride, uint32_t active, float factor)
    {
        uint32_t lane = threadIdx.x % ST_CUDA_WARP;
#pragma unroll
        for (int i = 0; i < STEPS * 4; i++) {
            int step = i / 4, part = i % 4;
            uint32_t row = lane / 4 + part % 2 * 8, element = step * 16 + part / 2 * 8 + lane % 4 * 2;
            float2 x = {};
            if (row < active) x = *(const float2 *)(in + row * stride + element);
            st_cuda_split_halves(x.x * factor, x.y * factor, fragments[step][0][part], fragments[step][1][part]);
        }
    }
};

/* scores += queries · keys of a tile, over the elements from `first` on */
template <class F, int STEPS, int HEAD, int COUNT>
__device__ __forceinline__ void score(const queries<STEPS> &q, rows_of<HEAD, COUNT> keys, uint32_t first,
                                      float (*scores)[4])
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, matrix = lane / 8, row = lane % 8;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        uint32_t k = first + step * 16 + matrix % 2 * 8;
#pragma unroll
        for (int n = 0; n < COUNT / 8; n += 2) {
            unsigned b[4];
            st_cuda_load_matrices(b, keys.at(8 * (n + matrix / 2) + row, k, 0));
#pragma unroll
            for (int i = 0; i < 4; i++)
                st_cuda_mma(scores[n + i % 2], q.fragments[step][i / 2], b[i % 2 * 2], b[i % 2 * 2 + 1]);
            if (!F::SPLIT) continue;
            st_cuda_load_matrices(b, keys.at(8 * (n + matrix / 2) + row, k, 1));
#pragma unroll
            for (int i = 0; i < 2; i++) st_cuda_mma(scores[n + i], q.fragments[step][0], b[2 * i], b[2 * i + 1]);
        }
    }
}

/* What a lane has of its warp's 16 rows: rows lane / 4 and 8 further. */
template <int HEAD> struct running {
    float out[HEAD / 8][4], largest[2], total[2];
};

/* Scores, as exponents of two, to weights; what was summed before shrinks. `sees`: the positions of the two rows. */
template <int HEAD, int COUNT>
__device__ __forceinline__ void softmax(float (*scores)[4], uint32_t base, const uint2 *sees, running<HEAD> &r)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
    float shrink[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (base < sees[j].x || base + COUNT - 1 > sees[j].y) { /* the tiles at both ends */
#pragma unroll
            for (int i = 0; i < COUNT / 4; i++) {
                uint32_t position = base + i / 2 * 8 + lane % 4 * 2 + i % 2;
                if (position < sees[j].x || position > sees[j].y) scores[i / 2][2 * j + i % 2] = -INFINITY;
            }
        }
        float largest = r.largest[j];
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) largest = fmaxf(largest, scores[i / 2][2 * j + i % 2]);
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
        float top = largest == -INFINITY ? 0 : largest, total = 0;
        shrink[j] = st_cuda_exp2(r.largest[j] - top);
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            float &x = scores[i / 2][2 * j + i % 2];
            x = st_cuda_exp2(x - top);
            total += x;
        }
        r.largest[j] = largest;
        r.total[j] = r.total[j] * shrink[j] + total;
    }
    if (__all_sync(0xFFFFFFFFu, shrink[0] == 1 && shrink[1] == 1)) return;
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) r.out[i / 4][i % 4] *= shrink[i % 4 / 2];
}

/* out += weights · WIDTH elements of the values of a tile, from `first` on */
template <class F, int WIDTH, int HEAD, int COUNT>
__device__ __forceinline__ void gather(const float (*weights)[4], rows_of<HEAD, COUNT> values, uint32_t first, float (*out)[4])
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, matrix = lane / 8, row = lane % 8;
#pragma unroll
    for (int k = 0; k < COUNT / 16; k++) {
        unsigned w[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *two = &weights[2 * k + i / 2][i % 2 * 2];
            st_cuda_split_halves(two[0], two[1], w[0][i], w[1][i]);
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n += 2) {
            unsigned b[4];
            st_cuda_load_transposed(b, values.at(16 * k + matrix % 2 * 8 + row, first + 8 * (n + matrix / 2), 0));
#pragma unroll
            for (int i = 0; i < 4; i++) st_cuda_mma(out[n + i % 2], w[i / 2], b[i % 2 * 2], b[i % 2 * 2 + 1]);
            if (!F::SPLIT) continue;
            st_cuda_load_transposed(b, values.at(16 * k + matrix % 2 * 8 + row, first + 8 * (n + matrix / 2), 1));
#pragma unroll
            for (int i = 0; i < 2; i++) st_cuda_mma(out[n + i], w[0], b[2 * i], b[2 * i + 1]);
        }
    }
}

/* The sum of the weights of row j, over the four lanes that have it. */
template <int HEAD> __device__ __forceinline__ float total_of(const running<HEAD> &r, int j)
{
    float total = r.total[j] + __shfl_xor_sync(0xFFFFFFFFu, r.total[j], 1);
    return total + __shfl_xor_sync(0xFFFFFFFFu, total, 2);
}

/* A sink's weight beside those of row j. */
template <int HEAD> __device__ __forceinline__ float sink_weight(const running<HEAD> &r, int j, float sink)
{
    const float log2e = 1.4426950408889634f;
    return exp2f(sink * log2e - r.largest[j]);
}

} // namespace

#endif
