/* Quantised weights as bytes for int8 dot products: a unit is 32 elements of a row, two halves of 16 neighbours each. One
 * lane unpacks a unit from the file's format. Element = d × byte + m, with d and m of its half. */
#ifndef ST_CUDA_UNITS_CUH
#define ST_CUDA_UNITS_CUH

#include "backend/cuda/common.cuh"
#include "quant/elements.h"

struct st_cuda_unit {
    unsigned q[2][4]; /* bytes of the halves */
    float d[2], m[2];
};

/* --- loads -------------------------------------------------------------------------------------------------------- */

/* COUNT words from any address, by aligned loads that touch no word beside them. */
template <int COUNT> static __device__ __forceinline__ void st_cuda_load(unsigned *out, const void *from)
{
    unsigned shift = (unsigned)((uintptr_t)from & 3) * 8;
    const unsigned *words = (const unsigned *)((uintptr_t)from & ~(uintptr_t)3);
    unsigned low = __ldg(words);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        unsigned high = i + 1 < COUNT || shift ? __ldg(words + i + 1) : 0;
        out[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

/* 16 bytes from an aligned address. */
static __device__ __forceinline__ void st_cuda_load_16(unsigned *out, const void *from)
{
    uint4 x = __ldg((const uint4 *)from);
    out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
}

static __device__ __forceinline__ float st_cuda_half(unsigned bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}

static __device__ __forceinline__ unsigned st_cuda_load_half_bits(const void *from)
{
    return __ldg((const unsigned short *)from);
}

/* --- nibbles and bits --------------------------------------------------------------------------------------------- */

/* Low nibbles to the first half, high nibbles to the second. */
static __device__ __forceinline__ void st_cuda_split(const unsigned *qs, st_cuda_unit &u)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u.q[0][i] = qs[i] & 0x0F0F0F0Fu;
        u.q[1][i] = qs[i] >> 4 & 0x0F0F0F0Fu;
    }
}

/* Bit 4 of each byte, from four neighbouring bits. */
static __device__ __forceinline__ unsigned st_cuda_fifth_bits(unsigned bits)
{
    return (bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25;
}

/* st_iq4_values and st_fp4_values (quant/tables.h). */
#define ST_CUDA_IQ4_WORDS {0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u}
#define ST_CUDA_FP4_WORDS {0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu}

/* Looks up eight nibbles in a table of 16 bytes: the low nibbles' bytes, and the high nibbles'. */
static __device__ __forceinline__ void st_cuda_look_up(unsigned nibbles, const unsigned *table, unsigned &low, unsigned &high)
{
    unsigned found[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned four = nibbles >> 16 * i & 0xFFFF;
        unsigned small = __byte_perm(table[0], table[1], four & 0x7777), large = __byte_perm(table[2], table[3], four & 0x7777);
        found[i] = __byte_perm(small, large, 0x3210 | (four & 0x8888) >> 1);
    }
    low = __byte_perm(found[0], found[1], 0x6420);
    high = __byte_perm(found[0], found[1], 0x7531);
}

static __device__ __forceinline__ void st_cuda_look_up_all(const unsigned *qs, const unsigned *table, st_cuda_unit &u)
{
#pragma unroll
    for (int i = 0; i < 4; i++) st_cuda_look_up(qs[i], table, u.q[0][i], u.q[1][i]);
}

static __device__ __forceinline__ void st_cuda_same(st_cuda_unit &u, float d, float m)
{
    u.d[0] = u.d[1] = d;
    u.m[0] = u.m[1] = m;
}

/* --- the types ---------------------------------------------------------------------------------------------------- */

/* Where the halves begin: neighbours, in most types. */
struct st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ uint32_t at(uint32_t unit, int half)
    {
        return unit * 32 + half * 16;
    }
};

struct st_cuda_unit_q4_0 : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q4_0 *b = (const st_block_q4_0 *)row + unit;
        unsigned qs[4];
        st_cuda_load<4>(qs, b->qs);
        float d = st_cuda_half(st_cuda_load_half_bits(&b->d));
        st_cuda_split(qs, u);
        st_cuda_same(u, d, -8 * d);
    }
};

struct st_cuda_unit_q4_1 : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q4_1 *b = (const st_block_q4_1 *)row + unit;
        const unsigned *words = (const unsigned *)b;
        unsigned head = __ldg(words), qs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) qs[i] = __ldg(words + 1 + i);
        st_cuda_split(qs, u);
        st_cuda_same(u, st_cuda_half(head & 0xFFFF), st_cuda_half(head >> 16));
    }
};

static __device__ __forceinline__ void st_cuda_add_fifth_bits(unsigned qh, st_cuda_unit &u)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u.q[0][i] |= st_cuda_fifth_bits(qh >> 4 * i);
        u.q[1][i] |= st_cuda_fifth_bits(qh >> (16 + 4 * i));
    }
}

struct st_cuda_unit_q5_0 : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q5_0 *b = (const st_block_q5_0 *)row + unit;
        unsigned words[5];
        st_cuda_load<5>(words, b->qh);
        float d = st_cuda_half(st_cuda_load_half_bits(&b->d));
        st_cuda_split(words + 1, u);
        st_cuda_add_fifth_bits(words[0], u);
        st_cuda_same(u, d, -16 * d);
    }
};

struct st_cuda_unit_q5_1 : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const uint2 *b = (const uint2 *)(row + (size_t)unit * sizeof(st_block_q5_1));
        uint2 first = __ldg(b), second = __ldg(b + 1), third = __ldg(b + 2);
        unsigned qs[4] = {second.x, second.y, third.x, third.y};
        st_cuda_split(qs, u);
        st_cuda_add_fifth_bits(first.y, u);
        st_cuda_same(u, st_cuda_half(first.x & 0xFFFF), st_cuda_half(first.x >> 16));
    }
};

struct st_cuda_unit_q8_0 : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q8_0 *b = (const st_block_q8_0 *)row + unit;
        unsigned qs[8];
        st_cuda_load<8>(qs, b->qs);
#pragma unroll
        for (int i = 0; i < 8; i++) u.q[i / 4][i % 4] = qs[i];
        st_cuda_same(u, st_cuda_half(st_cuda_load_half_bits(&b->d)), 0);
    }
};

struct st_cuda_unit_iq4_nl : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_iq4_nl *b = (const st_block_iq4_nl *)row + unit;
        unsigned qs[4];
        st_cuda_load<4>(qs, b->qs);
        const unsigned iq4[] = ST_CUDA_IQ4_WORDS;
        st_cuda_look_up_all(qs, iq4, u);
        st_cuda_same(u, st_cuda_half(st_cuda_load_half_bits(&b->d)), 0);
    }
};

struct st_cuda_unit_mxfp4 : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_mxfp4 *b = (const st_block_mxfp4 *)row + unit;
        unsigned qs[4];
        st_cuda_load<4>(qs, b->qs);
        const unsigned fp4[] = ST_CUDA_FP4_WORDS;
        st_cuda_look_up_all(qs, fp4, u);
        st_cuda_same(u, st_half_of_e8m0(__ldg(&b->e)), 0);
    }
};

/* Eight units of a block of 256, of which `part` is one. */
struct st_cuda_unit_iq4_xs : st_cuda_unit_of_neighbours {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_iq4_xs *b = (const st_block_iq4_xs *)row + unit / 8;
        unsigned part = unit % 8, qs[4];
        uint2 head = __ldg((const uint2 *)b), first = __ldg((const uint2 *)b->qs + 2 * part), second = __ldg((const uint2 *)b->qs + 2 * part + 1);
        qs[0] = first.x, qs[1] = first.y, qs[2] = second.x, qs[3] = second.y;
        int scale = (int)((head.y >> 4 * part & 15) | (head.x >> (16 + 2 * part) & 3) << 4) - 32;
        const unsigned iq4[] = ST_CUDA_IQ4_WORDS;
        st_cuda_look_up_all(qs, iq4, u);
        st_cuda_same(u, st_cuda_half(head.x & 0xFFFF) * (float)scale, 0);
    }
};

/* The scales and minima of the two parts that share their bytes. */
static __device__ __forceinline__ void st_cuda_scales_6(const unsigned *head, int quarter, st_cuda_unit &u)
{
    float d = st_cuda_half(head[0] & 0xFFFF), min_d = st_cuda_half(head[0] >> 16);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int part = 2 * quarter + half, place = 8 * (part % 4);
        unsigned first = head[1] >> place, second = head[2] >> place, third = head[3] >> place;
        unsigned scale = part < 4 ? first & 0x3F : (third & 0x0F) | (first >> 6 & 3) << 4;
        unsigned min = part < 4 ? second & 0x3F : (third >> 4 & 0x0F) | (second >> 6 & 3) << 4;
        u.d[half] = d * (float)scale;
        u.m[half] = -min_d * (float)min;
    }
}

/* Q4_K and Q5_K: the nibbles of 16 bytes are elements i and 32 + i of a quarter. */
struct st_cuda_unit_of_quarters {
    static __device__ __forceinline__ uint32_t at(uint32_t unit, int half)
    {
        return unit / 8 * 256 + unit % 8 / 2 * 64 + unit % 2 * 16 + half * 32;
    }
};

struct st_cuda_unit_q4_k : st_cuda_unit_of_quarters {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q4_k *b = (const st_block_q4_k *)row + unit / 8;
        unsigned head[4], qs[4];
        st_cuda_load_16(qs, b->qs + unit % 8 * 16);
        st_cuda_load_16(head, b);
        st_cuda_split(qs, u);
        st_cuda_scales_6(head, unit % 8 / 2, u);
    }
};

struct st_cuda_unit_q5_k : st_cuda_unit_of_quarters {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q5_k *b = (const st_block_q5_k *)row + unit / 8;
        unsigned head[4], qh[4], qs[4], quarter = unit % 8 / 2;
        st_cuda_load_16(qs, b->qs + unit % 8 * 16);
        st_cuda_load_16(qh, b->qh + unit % 2 * 16);
        st_cuda_load_16(head, b);
        st_cuda_split(qs, u);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u.q[0][i] |= (qh[i] >> 2 * quarter & 0x01010101u) << 4;
            u.q[1][i] |= (qh[i] >> (2 * quarter + 1) & 0x01010101u) << 4;
        }
        st_cuda_scales_6(head, (int)quarter, u);
    }
};

/* Q6_K: of each half of 128, the nibbles of 16 bytes are elements i and 64 + i. */
struct st_cuda_unit_q6_k {
    static __device__ __forceinline__ uint32_t at(uint32_t unit, int half)
    {
        return unit / 4 * 128 + unit % 4 * 16 + half * 64;
    }
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q6_k *b = (const st_block_q6_k *)row + unit / 8;
        unsigned side = unit / 4 % 2, part = unit % 4, ql[4], qh[4];
        st_cuda_load<4>(ql, b->ql + 64 * side + 16 * part);
        st_cuda_load<4>(qh, b->qh + 32 * side + 16 * (part % 2));
        float d = st_cuda_half(st_cuda_load_half_bits(&b->d));
        st_cuda_split(ql, u);
        unsigned shift = 2 * (part / 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u.q[0][i] |= (qh[i] >> shift & 0x03030303u) << 4;
            u.q[1][i] |= (qh[i] >> (shift + 4) & 0x03030303u) << 4;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u.d[half] = d * (float)__ldg(&b->scales[8 * side + part + 4 * half]);
            u.m[half] = -32 * u.d[half];
        }
    }
};

/* Q2_K and Q3_K: of each half of 128, two bits of byte i are an element of each part of 32. A unit has two parts. */
struct st_cuda_unit_of_pairs {
    static __device__ __forceinline__ uint32_t at(uint32_t unit, int half)
    {
        return unit / 4 * 128 + unit % 4 / 2 * 64 + unit % 2 * 16 + half * 32;
    }
    static __device__ __forceinline__ void two_bits(const unsigned *qs, uint32_t unit, st_cuda_unit &u)
    {
        unsigned shift = 4 * (unit % 4 / 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u.q[0][i] = qs[i] >> shift & 0x03030303u;
            u.q[1][i] = qs[i] >> (shift + 2) & 0x03030303u;
        }
    }
};

struct st_cuda_unit_q2_k : st_cuda_unit_of_pairs {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q2_k *b = (const st_block_q2_k *)row + unit / 8;
        unsigned qs[4];
        st_cuda_load<4>(qs, b->qs + unit / 4 % 2 * 32 + unit % 2 * 16);
        unsigned scales = __ldg((const unsigned *)&b->d);
        two_bits(qs, unit, u);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned both = __ldg(&b->scales[at(unit % 8, half) / 16]);
            u.d[half] = st_cuda_half(scales & 0xFFFF) * (float)(both & 0x0F);
            u.m[half] = -st_cuda_half(scales >> 16) * (float)(both >> 4);
        }
    }
};

struct st_cuda_unit_q3_k : st_cuda_unit_of_pairs {
    static __device__ __forceinline__ void unpack(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
    {
        const st_block_q3_k *b = (const st_block_q3_k *)row + unit / 8;
        unsigned qs[4], high[4];
        st_cuda_load<4>(qs, b->qs + unit / 4 % 2 * 32 + unit % 2 * 16);
        st_cuda_load<4>(high, b->hmask + unit % 2 * 16);
        float d = st_cuda_half(st_cuda_load_half_bits(&b->d));
        two_bits(qs, unit, u);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t first = at(unit % 8, half), part = first / 16;
#pragma unroll
            for (int i = 0; i < 4; i++) u.q[half][i] |= (high[i] >> first / 32 & 0x01010101u) << 2;
            unsigned low = __ldg(&b->scales[part % 8]) >> (part < 8 ? 0 : 4) & 0x0F;
            unsigned top = __ldg(&b->scales[8 + part % 4]) >> 2 * (part / 4) & 3;
            u.d[half] = d * (float)((int)(low | top << 4) - 32);
            u.m[half] = -4 * u.d[half];
        }
    }
};

/* f.run<unit>() for the type of that number, if it has units. */
template <class F> static int st_cuda_with_unit(uint32_t type, const F &f)
{
    switch (type) {
    case ST_TYPE_Q4_0: return f.template run<st_cuda_unit_q4_0>();
    case ST_TYPE_Q4_1: return f.template run<st_cuda_unit_q4_1>();
    case ST_TYPE_Q5_0: return f.template run<st_cuda_unit_q5_0>();
    case ST_TYPE_Q5_1: return f.template run<st_cuda_unit_q5_1>();
    case ST_TYPE_Q8_0: return f.template run<st_cuda_unit_q8_0>();
    case ST_TYPE_Q2_K: return f.template run<st_cuda_unit_q2_k>();
    case ST_TYPE_Q3_K: return f.template run<st_cuda_unit_q3_k>();
    case ST_TYPE_Q4_K: return f.template run<st_cuda_unit_q4_k>();
    case ST_TYPE_Q5_K: return f.template run<st_cuda_unit_q5_k>();
    case ST_TYPE_Q6_K: return f.template run<st_cuda_unit_q6_k>();
    case ST_TYPE_IQ4_NL: return f.template run<st_cuda_unit_iq4_nl>();
    case ST_TYPE_IQ4_XS: return f.template run<st_cuda_unit_iq4_xs>();
    case ST_TYPE_MXFP4: return f.template run<st_cuda_unit_mxfp4>();
    default: return (int)cudaErrorInvalidValue;
    }
}

#endif
