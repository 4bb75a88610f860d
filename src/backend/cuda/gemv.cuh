/* Dot products of quantised weights with int8 activations: lanes of a warp share a row of weights, unit by unit. */
#ifndef ST_CUDA_GEMV_CUH
#define ST_CUDA_GEMV_CUH

#include "backend/cuda/acts.cuh"
#include "backend/cuda/units.cuh"

/* Products of the same input that run in one launch. */
struct st_cuda_gemv_product {
    const unsigned char *weights;
    size_t row_bytes;
    uint32_t columns, first_block;
    float *out;
    st_cuda_vector bias;
};

struct st_cuda_gemv_args {
    st_cuda_rows rows;
    st_cuda_acts acts;
    uint32_t count;
    st_cuda_gemv_product products[ST_CUDA_JOINED_MAX];

    /* The product of a block. */
    __device__ const st_cuda_gemv_product &of(uint32_t block) const
    {
        uint32_t found = 0;
        while (found + 1 < count && block >= products[found + 1].first_block) found++;
        return products[found];
    }
    __device__ const st_cuda_gemv_product &own() const
    {
        return of(blockIdx.x);
    }
};

/* Blocks have `each` columns; `blocks`: how many there are. The activations are in scratch. */
static inline st_cuda_gemv_args st_cuda_gemv_args_of(const st_cuda_call *call, uint32_t each, uint32_t &blocks)
{
    const st_bound_op *b = call->bound;
    st_cuda_gemv_args args = {st_cuda_rows_of(call), {call->scratch, (uint32_t)b->weight[0].ne[0]}, 1 + call->joined, {}};
    blocks = 0;
    for (uint32_t i = 0; i < args.count; i++, b++) {
        args.products[i] = {(const unsigned char *)b->weight[0].data, b->weight[0].row_bytes, b->out.width, blocks,
                            st_cuda_floats(b->out), st_cuda_vector_of(&b->weight[1])};
        blocks += st_cuda_blocks(b->out.width, each);
    }
    return args;
}

static inline uint32_t st_cuda_gemv_columns(const st_cuda_call *call)
{
    uint32_t columns = 0;
    for (uint32_t i = 0; i <= call->joined; i++) columns += call->bound[i].out.width;
    return columns;
}

/* The activations that a unit is multiplied with. */
struct st_cuda_unit_acts {
    int q[2][4];
    float scale[2], total[2];
};

template <class W>
static __device__ __forceinline__ void st_cuda_load_acts(const st_cuda_acts &acts, uint32_t row, uint32_t unit, st_cuda_unit_acts &x)
{
    const signed char *bytes = acts.bytes(row);
    const st_cuda_act_group *groups = acts.groups(row);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t at = W::at(unit, half);
        int4 q = *(const int4 *)(bytes + at);
        float2 group = *(const float2 *)(groups + at / ST_CUDA_ACT_GROUP);
        x.q[half][0] = q.x, x.q[half][1] = q.y, x.q[half][2] = q.z, x.q[half][3] = q.w;
        x.scale[half] = group.x;
        x.total[half] = group.y;
    }
}

/* sum + w · x */
static __device__ __forceinline__ float st_cuda_unit_dot(const st_cuda_unit &w, const st_cuda_unit_acts &x, float sum = 0)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int dot = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) dot = __dp4a((int)w.q[half][i], x.q[half][i], dot);
        sum += x.scale[half] * (w.d[half] * (float)dot + w.m[half] * x.total[half]);
    }
    return sum;
}

/* What a lane multiplies at a time, with activations that it keeps for several rows of weights: a unit … */
template <class W> struct st_cuda_span_of_unit : W {
    enum { ELEMENTS = 32 };
    typedef st_cuda_unit_acts acts;
    typedef uint32_t place; /* of a span in a row */

    /* For a loop over rows of weights. */
    static __device__ __forceinline__ void keep(place &unit)
    {
        st_cuda_keep(unit);
    }
    static __device__ __forceinline__ void load(const st_cuda_acts &from, uint32_t row, uint32_t unit, acts &x)
    {
        st_cuda_load_acts<W>(from, row, unit, x);
    }
    /* Products with them are 0. */
    static __device__ __forceinline__ void clear(acts &x)
    {
        x.scale[0] = x.scale[1] = 0;
    }
    static __device__ __forceinline__ float dot(const unsigned char *row, place unit, const unsigned *words, const acts &x, float sum)
    {
        st_cuda_unit w;
        W::decode(row, unit, words, w);
        return st_cuda_unit_dot(w, x, sum);
    }
};

/* … or, of Q4_K and Q6_K, four groups of 16 elements: what they share is unpacked once for 64 elements. */
template <class W> struct st_cuda_span : st_cuda_span_of_unit<W> {};

struct st_cuda_group_acts {
    int q[4][4];
    float scale[4];

    /* Returns the sum of the group's bytes. */
    __device__ __forceinline__ float load(const st_cuda_acts &from, uint32_t row, uint32_t at, int group)
    {
        int4 bytes = *(const int4 *)(from.bytes(row) + at);
        float2 own = *(const float2 *)(from.groups(row) + at / ST_CUDA_ACT_GROUP);
        q[group][0] = bytes.x, q[group][1] = bytes.y, q[group][2] = bytes.z, q[group][3] = bytes.w;
        scale[group] = own.x;
        return own.y;
    }
};

/* Of Q4_K a quarter of a block: 64 neighbours, the low nibbles of 32 bytes and then the high ones. These are not shifted and count 16
 * times, so the scales of their activations are divided by 16. */
template <> struct st_cuda_span<st_cuda_unit_q4_k> {
    enum { ELEMENTS = 64, WORDS = 12 };
    struct acts : st_cuda_group_acts {
        float sums[2]; /* of 32 elements */
    };
    struct place {
        uint32_t block, quarter; /* offsets, in bytes */
        st_cuda_places_6 scales;

        place() = default;
        __device__ __forceinline__ explicit place(uint32_t span)
            : block(span / 4 * (uint32_t)sizeof(st_block_q4_k)), quarter(span % 4 * 32), scales(span % 4)
        {
        }
    };
    static __device__ __forceinline__ void keep(place &p)
    {
        st_cuda_keep(p.block), st_cuda_keep(p.quarter), st_cuda_keep(p.scales.bytes);
        st_cuda_keep(p.scales.down), st_cuda_keep(p.scales.own), st_cuda_keep(p.scales.last);
    }
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, const place &p, unsigned *w)
    {
        const st_block_q4_k *b = (const st_block_q4_k *)(row + p.block);
#pragma unroll
        for (int i = 0; i < 2; i++) M::sixteen(w + 4 * i, b->qs + p.quarter + 16 * i);
        M::sixteen(w + 8, b);
    }
    static __device__ __forceinline__ void load(const st_cuda_acts &from, uint32_t row, uint32_t span, acts &x)
    {
        float totals[4];
#pragma unroll
        for (int k = 0; k < 4; k++) totals[k] = x.st_cuda_group_acts::load(from, row, span * 64 + k * 16, k);
#pragma unroll
        for (int i = 0; i < 2; i++) x.sums[i] = x.scale[2 * i] * totals[2 * i] + x.scale[2 * i + 1] * totals[2 * i + 1];
        x.scale[2] *= 1 / 16.0f, x.scale[3] *= 1 / 16.0f;
    }
    static __device__ __forceinline__ void clear(acts &x)
    {
        x.scale[0] = x.scale[1] = x.scale[2] = x.scale[3] = x.sums[0] = x.sums[1] = 0;
    }
    static __device__ __forceinline__ float dot(const unsigned char *, const place &p, const unsigned *w, const acts &x, float sum)
    {
        float scales[2], minima[2];
        p.scales.scales(w + 8, scales, minima);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned mask = half ? 0xF0F0F0F0u : 0x0F0F0F0Fu;
            int first = 0, second = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                first = st_cuda_dot_4(w[i] & mask, x.q[2 * half][i], first);
                second = st_cuda_dot_4(w[4 + i] & mask, x.q[2 * half + 1][i], second);
            }
            sum += scales[half] * (x.scale[2 * half] * (float)first + x.scale[2 * half + 1] * (float)second);
            sum += minima[half] * x.sums[half];
        }
        return sum;
    }
};

/* Of Q6_K the elements 32 k + i of half a block, for 16 neighbouring i: their high bits are in the same 16 bytes. Sums are multiplied by
 * scales as integers, which stay below 2²⁴: float32 has them exactly. */
template <> struct st_cuda_span<st_cuda_unit_q6_k> {
    enum { ELEMENTS = 64, WORDS = 20 };
    struct acts : st_cuda_group_acts {
        int offset[4]; /* -32 × the sum of the bytes */
    };
    struct place {
        uint32_t block, low, high, scales; /* offsets, in bytes: those of the three in the block */

        place() = default;
        __device__ __forceinline__ explicit place(uint32_t span)
        {
            uint32_t half = span % 4 / 2, side = span % 2;
            block = span / 4 * (uint32_t)sizeof(st_block_q6_k), low = 64 * half + 16 * side;
            high = (uint32_t)offsetof(st_block_q6_k, qh) + 32 * half + 16 * side;
            scales = (uint32_t)offsetof(st_block_q6_k, scales) + 8 * half + side;
        }
    };
    static __device__ __forceinline__ void keep(place &p)
    {
        st_cuda_keep(p.block), st_cuda_keep(p.low), st_cuda_keep(p.high), st_cuda_keep(p.scales);
    }
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, const place &p, unsigned *w)
    {
        const unsigned char *b = row + p.block, *words = (const unsigned char *)M::aligned(b);
#pragma unroll
        for (int i = 0; i < 5; i++) { /* up to 4 bytes more than are used, of the same block */
            w[i] = M::word(words + p.low + 4 * i);
            w[5 + i] = M::word(words + p.low + 32 + 4 * i);
            w[10 + i] = M::word(words + p.high + 4 * i);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) w[15 + k] = M::byte(b + p.scales + 2 * k);
        w[19] = M::half_bits(b + offsetof(st_block_q6_k, d));
    }
    static __device__ __forceinline__ void load(const st_cuda_acts &from, uint32_t row, uint32_t span, acts &x)
    {
#pragma unroll
        for (int k = 0; k < 4; k++)
            x.offset[k] = -32 * (int)x.st_cuda_group_acts::load(from, row, span / 2 * 128 + span % 2 * 16 + 32 * k, k);
    }
    static __device__ __forceinline__ void clear(acts &x)
    {
        x.scale[0] = x.scale[1] = x.scale[2] = x.scale[3] = 0;
    }
    static __device__ __forceinline__ float dot(const unsigned char *row, const place &p, const unsigned *w, const acts &x, float sum)
    {
        unsigned shift = (unsigned)(uintptr_t)(row + p.block) * 8; /* the instruction takes it modulo 32 */
        float own = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int dot = x.offset[k];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                unsigned low = __funnelshift_r(w[k % 2 * 5 + i], w[k % 2 * 5 + i + 1], shift);
                unsigned high = __funnelshift_r(w[10 + i], w[10 + i + 1], shift);
                low = low >> (k < 2 ? 0 : 4) & 0x0F0F0F0Fu;
                high = (k < 2 ? high << (4 - 2 * k) : high >> (2 * k - 4)) & 0x30303030u;
                dot = st_cuda_dot_4(low | high, x.q[k][i], dot);
            }
            own += x.scale[k] * (float)((int)(signed char)w[15 + k] * dot);
        }
        return sum + st_cuda_half(w[19]) * own;
    }
};

/* The words of SPANS spans of each of ROWS rows of weights: i, i + 32 …; past the end those of the last span, which are not used. */
template <class S, int ROWS, int SPANS>
static __device__ __forceinline__ void st_cuda_fetch_spans(const unsigned char *const *rows, uint32_t i, uint32_t spans,
                                                           unsigned (*words)[ROWS][S::WORDS])
{
#pragma unroll
    for (int k = 0; k < SPANS; k++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            S::template fetch<st_cuda_from_device>(rows[r], typename S::place(min(i + k * ST_CUDA_WARP, spans - 1)), words[k][r]);
}

#endif
