/* Quantised weights for tensor cores: a piece is 32 neighbouring elements of a row as bytes, in order, with a scale and an offset
 * for each half; st_cuda_four_halves makes f16 numbers of them. CENTRE: the middle of the bytes; 0:
 * they are signed. */
#ifndef ST_CUDA_PIECES_CUH
#define ST_CUDA_PIECES_CUH

#include "backend/cuda/mma.cuh"
#include "backend/cuda/units.cuh"

typedef st_cuda_unit st_cuda_piece;

/* Types whose units are 32 neighbours. */
template <class U, int MIDDLE> struct st_cuda_pieces_of_units {
    enum { CENTRE = MIDDLE };
    static __device__ __forceinline__ void load(const unsigned char *row, uint32_t piece, st_cuda_piece &w)
    {
        st_cuda_unpack_unit<U>(row, piece, w);
    }
};

/* The scale and the minimum of part `part` of Q5_K. */
static __device__ __forceinline__ void st_cuda_scale_6(const unsigned *head, uint32_t part, st_cuda_piece &w)
{
    uint32_t place = 8 * (part % 4);
    unsigned first = head[1] >> place, second = head[2] >> place, third = head[3] >> place;
    unsigned scale = part < 4 ? first & 0x3F : (third & 0x0F) | (first >> 6 & 3) << 4;
    unsigned min = part < 4 ? second & 0x3F : (third >> 4 & 0x0F) | (second >> 6 & 3) << 4;
    st_cuda_same(w, st_cuda_half(head[0] & 0xFFFF) * (float)scale, -st_cuda_half(head[0] >> 16) * (float)min);
}

static __device__ __forceinline__ void st_cuda_load_32(unsigned *out, const void *from)
{
    st_cuda_load_16(out, from);
    st_cuda_load_16(out + 4, (const unsigned char *)from + 16);
}

struct st_cuda_pieces_q5_k {
    enum { CENTRE = 16 };
    static __device__ __forceinline__ void load(const unsigned char *row, uint32_t piece, st_cuda_piece &w)
    {
        const st_block_q5_k *b = (const st_block_q5_k *)row + piece / 8;
        uint32_t part = piece % 8;
        unsigned head[4], qs[8], qh[8];
        st_cuda_load_32(qs, b->qs + 32 * (part / 2));
        st_cuda_load_32(qh, b->qh);
        st_cuda_load_16(head, b);
#pragma unroll
        for (int i = 0; i < 8; i++)
            w.q[i / 4][i % 4] = (qs[i] >> 4 * (part % 2) & 0x0F0F0F0Fu) | (qh[i] >> part & 0x01010101u) << 4;
        st_cuda_scale_6(head, part, w);
    }
};

struct st_cuda_pieces_q6_k {
    enum { CENTRE = 32 };
    static __device__ __forceinline__ void load(const unsigned char *row, uint32_t piece, st_cuda_piece &w)
    {
        const st_block_q6_k *b = (const st_block_q6_k *)row + piece / 8;
        uint32_t part = piece % 8, side = part / 4, of_side = part % 4;
        unsigned ql[8], qh[8];
        st_cuda_load<8>(ql, b->ql + 64 * side + 32 * (of_side % 2));
        st_cuda_load<8>(qh, b->qh + 32 * side);
        float d = st_cuda_half(st_cuda_load_half_bits(&b->d));
#pragma unroll
        for (int i = 0; i < 8; i++)
            w.q[i / 4][i % 4] = (ql[i] >> 4 * (of_side / 2) & 0x0F0F0F0Fu) | (qh[i] >> 2 * of_side & 0x03030303u) << 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            w.d[half] = d * (float)__ldg(&b->scales[2 * part + half]);
            w.m[half] = -32 * w.d[half];
        }
    }
};

struct st_cuda_pieces_q2_k {
    enum { CENTRE = 2 };
    static __device__ __forceinline__ void load(const unsigned char *row, uint32_t piece, st_cuda_piece &w)
    {
        const st_block_q2_k *b = (const st_block_q2_k *)row + piece / 8;
        uint32_t part = piece % 8;
        unsigned qs[8], scales = __ldg((const unsigned *)&b->d);
        st_cuda_load<8>(qs, b->qs + 32 * (part / 4));
#pragma unroll
        for (int i = 0; i < 8; i++) w.q[i / 4][i % 4] = qs[i] >> 2 * (part % 4) & 0x03030303u;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned both = __ldg(&b->scales[2 * part + half]);
            w.d[half] = st_cuda_half(scales & 0xFFFF) * (float)(both & 0x0F);
            w.m[half] = -st_cuda_half(scales >> 16) * (float)(both >> 4);
        }
    }
};

struct st_cuda_pieces_q3_k {
    enum { CENTRE = 4 };
    static __device__ __forceinline__ void load(const unsigned char *row, uint32_t piece, st_cuda_piece &w)
    {
        const st_block_q3_k *b = (const st_block_q3_k *)row + piece / 8;
        uint32_t part = piece % 8;
        unsigned qs[8], high[8];
        st_cuda_load<8>(qs, b->qs + 32 * (part / 4));
        st_cuda_load<8>(high, b->hmask);
        float d = st_cuda_half(st_cuda_load_half_bits(&b->d));
#pragma unroll
        for (int i = 0; i < 8; i++)
            w.q[i / 4][i % 4] = (qs[i] >> 2 * (part % 4) & 0x03030303u) | (high[i] >> part & 0x01010101u) << 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t scale = 2 * part + half;
            unsigned low = __ldg(&b->scales[scale % 8]) >> (scale < 8 ? 0 : 4) & 0x0F;
            unsigned top = __ldg(&b->scales[8 + scale % 4]) >> 2 * (scale / 4) & 3;
            w.d[half] = d * (float)((int)(low | top << 4) - 32);
            w.m[half] = -4 * w.d[half];
        }
    }
};

/* --- f16 numbers ---------------------------------------------------------------------------------------------------- */

/* Weights are multiplied by this, so that the scales of their blocks are normal numbers in f16; sums are divided by it. */
#define ST_CUDA_WEIGHT_FACTOR 64.0f

/* Of the two halves, or the two pieces, of what a lane has loaded. */
struct st_cuda_scales {
    __half2 d[2], m[2];

    /* `centre`: what is taken off each byte, so that the offset is small and loses little in f16. */
    __device__ __forceinline__ void set(int i, float scale, float offset, float centre, bool valid)
    {
        d[i] = __float2half2_rn(valid ? scale * ST_CUDA_WEIGHT_FACTOR : 0);
        m[i] = __float2half2_rn(valid ? fmaf(centre, scale, offset) * ST_CUDA_WEIGHT_FACTOR : 0);
    }
};

/* Four bytes as f16: elements 0 and 2, then 1 and 3, each d × (byte − CENTRE) + m. A byte b is 1024 + b by the bits of its f16
 * alone; signed ones are those of b + 128. */
template <int CENTRE> static __device__ __forceinline__ void st_cuda_four_halves(unsigned bytes, __half2 d, __half2 m, unsigned *out)
{
    const __half2 bias = __float2half2_rn(-1024.0f - (CENTRE ? CENTRE : 128));
    if (CENTRE == 0) bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned bits = __byte_perm(bytes, 0x64, i ? 0x4341 : 0x4240);
        __half2 x = __hfma2(__hadd2(*(const __half2 *)&bits, bias), d, m);
        out[i] = *(const unsigned *)&x;
    }
}

/* What a lane loads at a time, by type: `fetch` starts the loads, `open` makes scales of them, and `bytes` has elements 4 i to
 * 4 i + 3 of piece p. PIECES: of a fetch. GROUP_BYTES: of 256 elements. */
template <class P, int BYTES> struct st_cuda_stream_of {
    enum { PIECES = 1, CENTRE = P::CENTRE, GROUP_BYTES = BYTES };
    typedef st_cuda_piece raw;
    static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t step, uint32_t lane, uint32_t blocks, raw &w)
    {
        P::load(row, min(step / 2 * 8 + lane * 2 + step % 2, blocks - 1), w);
    }
    /* A piece past the end of the row is the last one times 0. */
    static __device__ __forceinline__ void open(const raw &w, uint32_t step, uint32_t lane, uint32_t blocks, st_cuda_scales &s)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) s.set(half, w.d[half], w.m[half], CENTRE, step / 2 * 8 + lane * 2 + step % 2 < blocks);
    }
    static __device__ __forceinline__ unsigned bytes(const raw &w, int, int i)
    {
        return w.q[i / 4][i % 4];
    }
    static __device__ __forceinline__ int scale(int, int i)
    {
        return i / 4;
    }
};

/* Q4_K: both pieces of a lane are nibbles of the same bytes. */
struct st_cuda_stream_q4_k {
    enum { PIECES = 2, CENTRE = 8, GROUP_BYTES = sizeof(st_block_q4_k) };
    struct raw {
        unsigned qs[8], head[4];
    };
    static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t step, uint32_t lane, uint32_t, raw &w)
    {
        const st_block_q4_k *b = (const st_block_q4_k *)row + step;
        st_cuda_load_32(w.qs, b->qs + 32 * lane);
        st_cuda_load_16(w.head, b);
    }
    static __device__ __forceinline__ void open(const raw &w, uint32_t, uint32_t lane, uint32_t, st_cuda_scales &s)
    {
        st_cuda_unit both;
        st_cuda_scales_6(w.head, (int)lane, both);
#pragma unroll
        for (int p = 0; p < 2; p++) s.set(p, both.d[p], both.m[p], CENTRE, true);
    }
    static __device__ __forceinline__ unsigned bytes(const raw &w, int p, int i)
    {
        return w.qs[i] >> 4 * p & 0x0F0F0F0Fu;
    }
    static __device__ __forceinline__ int scale(int p, int)
    {
        return p;
    }
};

#endif
