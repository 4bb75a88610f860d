/* Quantised weights as bytes for int8 dot products: a unit is 32 elements of a row, two halves of 16 neighbours each. One
 * lane loads the words of a unit (fetch) and unpacks them from the file's format (decode), so that a kernel has the loads of
 * several units under way before it uses the first. Element = d × byte + m, with d and m of its half. */
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

/* Where a unit's words are loaded from: device memory … */
struct st_cuda_from_device {
    static __device__ __forceinline__ unsigned word(const void *from) { return st_cuda_read_word(from); }
    static __device__ __forceinline__ void eight(unsigned *out, const void *from) { st_cuda_read_8(out, from); }
    static __device__ __forceinline__ void sixteen(unsigned *out, const void *from) { st_cuda_read_16(out, from); }
    static __device__ __forceinline__ unsigned half_bits(const void *from) { return st_cuda_read_half_bits(from); }
    static __device__ __forceinline__ unsigned byte(const void *from) { return st_cuda_read_byte(from); }
};

/* … or shared memory. */
struct st_cuda_from_shared {
    static __device__ __forceinline__ unsigned word(const void *from) { return *(const unsigned *)from; }
    static __device__ __forceinline__ void eight(unsigned *out, const void *from)
    {
        uint2 x = *(const uint2 *)from;
        out[0] = x.x, out[1] = x.y;
    }
    static __device__ __forceinline__ void sixteen(unsigned *out, const void *from)
    {
        uint4 x = *(const uint4 *)from;
        out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
    }
    static __device__ __forceinline__ unsigned half_bits(const void *from) { return *(const unsigned short *)from; }
    static __device__ __forceinline__ unsigned byte(const void *from) { return *(const unsigned char *)from; }
};

/* The aligned words that COUNT words from any address are in, COUNT + 1 at most, and no word beside them. */
template <class M, int COUNT> static __device__ __forceinline__ void st_cuda_read_around(unsigned *out, const void *from)
{
    const unsigned *words = (const unsigned *)((uintptr_t)from & ~(uintptr_t)3);
#pragma unroll
    for (int i = 0; i < COUNT; i++) out[i] = M::word(words + i);
    out[COUNT] = (uintptr_t)from & 3 ? M::word(words + COUNT) : 0;
}

/* … and the COUNT words out of them. */
template <int COUNT> static __device__ __forceinline__ void st_cuda_align(const unsigned *words, const void *from, unsigned *out)
{
    unsigned shift = (unsigned)((uintptr_t)from & 3) * 8;
#pragma unroll
    for (int i = 0; i < COUNT; i++) out[i] = __funnelshift_r(words[i], words[i + 1], shift);
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

/* Blocks of 32 with 16 bytes of nibbles behind a float16 scale: at any even address. */
template <class B> struct st_cuda_unit_of_nibbles : st_cuda_unit_of_neighbours {
    enum { WORDS = 6 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const B *b = (const B *)row + unit;
        st_cuda_read_around<M, 4>(w, b->qs);
        w[5] = M::half_bits(&b->d);
    }
    static __device__ __forceinline__ void align(const unsigned char *row, uint32_t unit, const unsigned *w, unsigned *qs)
    {
        st_cuda_align<4>(w, ((const B *)row + unit)->qs, qs);
    }
};

struct st_cuda_unit_q4_0 : st_cuda_unit_of_nibbles<st_block_q4_0> {
    static __device__ __forceinline__ void decode(const unsigned char *row, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        unsigned qs[4];
        align(row, unit, w, qs);
        st_cuda_split(qs, u);
        float d = st_cuda_half(w[5]);
        st_cuda_same(u, d, -8 * d);
    }
};

struct st_cuda_unit_iq4_nl : st_cuda_unit_of_nibbles<st_block_iq4_nl> {
    static __device__ __forceinline__ void decode(const unsigned char *row, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        const unsigned iq4[] = ST_CUDA_IQ4_WORDS;
        unsigned qs[4];
        align(row, unit, w, qs);
        st_cuda_look_up_all(qs, iq4, u);
        st_cuda_same(u, st_cuda_half(w[5]), 0);
    }
};

struct st_cuda_unit_q4_1 : st_cuda_unit_of_neighbours {
    enum { WORDS = 5 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const unsigned *words = (const unsigned *)((const st_block_q4_1 *)row + unit);
#pragma unroll
        for (int i = 0; i < WORDS; i++) w[i] = M::word(words + i);
    }
    static __device__ __forceinline__ void decode(const unsigned char *, uint32_t, const unsigned *w, st_cuda_unit &u)
    {
        st_cuda_split(w + 1, u);
        st_cuda_same(u, st_cuda_half(w[0] & 0xFFFF), st_cuda_half(w[0] >> 16));
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
    enum { WORDS = 7 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_q5_0 *b = (const st_block_q5_0 *)row + unit;
        st_cuda_read_around<M, 5>(w, b->qh);
        w[6] = M::half_bits(&b->d);
    }
    static __device__ __forceinline__ void decode(const unsigned char *row, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        unsigned bits[5];
        st_cuda_align<5>(w, ((const st_block_q5_0 *)row + unit)->qh, bits);
        st_cuda_split(bits + 1, u);
        st_cuda_add_fifth_bits(bits[0], u);
        float d = st_cuda_half(w[6]);
        st_cuda_same(u, d, -16 * d);
    }
};

struct st_cuda_unit_q5_1 : st_cuda_unit_of_neighbours {
    enum { WORDS = 6 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const unsigned char *b = row + (size_t)unit * sizeof(st_block_q5_1);
#pragma unroll
        for (int i = 0; i < 3; i++) M::eight(w + 2 * i, b + 8 * i);
    }
    static __device__ __forceinline__ void decode(const unsigned char *, uint32_t, const unsigned *w, st_cuda_unit &u)
    {
        st_cuda_split(w + 2, u);
        st_cuda_add_fifth_bits(w[1], u);
        st_cuda_same(u, st_cuda_half(w[0] & 0xFFFF), st_cuda_half(w[0] >> 16));
    }
};

struct st_cuda_unit_q8_0 : st_cuda_unit_of_neighbours {
    enum { WORDS = 10 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_q8_0 *b = (const st_block_q8_0 *)row + unit;
        st_cuda_read_around<M, 8>(w, b->qs);
        w[9] = M::half_bits(&b->d);
    }
    static __device__ __forceinline__ void decode(const unsigned char *row, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        const int8_t *qs = ((const st_block_q8_0 *)row + unit)->qs;
        st_cuda_align<4>(w, qs, u.q[0]);
        st_cuda_align<4>(w + 4, qs, u.q[1]);
        st_cuda_same(u, st_cuda_half(w[9]), 0);
    }
};

struct st_cuda_unit_mxfp4 : st_cuda_unit_of_neighbours {
    enum { WORDS = 6 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_mxfp4 *b = (const st_block_mxfp4 *)row + unit;
        st_cuda_read_around<M, 4>(w, b->qs);
        w[5] = M::byte(&b->e);
    }
    static __device__ __forceinline__ void decode(const unsigned char *row, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        const unsigned fp4[] = ST_CUDA_FP4_WORDS;
        unsigned qs[4];
        st_cuda_align<4>(w, ((const st_block_mxfp4 *)row + unit)->qs, qs);
        st_cuda_look_up_all(qs, fp4, u);
        st_cuda_same(u, st_half_of_e8m0((uint8_t)w[5]), 0);
    }
};

/* Eight units of a block of 256, of which `part` is one. */
struct st_cuda_unit_iq4_xs : st_cuda_unit_of_neighbours {
    enum { WORDS = 6 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_iq4_xs *b = (const st_block_iq4_xs *)row + unit / 8;
        M::eight(w, b->qs + 16 * (unit % 8));
        M::eight(w + 2, b->qs + 16 * (unit % 8) + 8);
        M::eight(w + 4, b);
    }
    static __device__ __forceinline__ void decode(const unsigned char *, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        const unsigned iq4[] = ST_CUDA_IQ4_WORDS;
        unsigned part = unit % 8;
        int scale = (int)((w[5] >> 4 * part & 15) | (w[4] >> (16 + 2 * part) & 3) << 4) - 32;
        st_cuda_look_up_all(w, iq4, u);
        st_cuda_same(u, st_cuda_half(w[4] & 0xFFFF) * (float)scale, 0);
    }
};

/* x × byte `index` of the word: 2²³ + byte is a number with the byte as its last bits, and 2²³ x is subtracted before the product is
 * rounded. */
static __device__ __forceinline__ float st_cuda_times_byte(float x, unsigned bytes, int index)
{
    return fmaf(x, __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 | index)), x * -8388608.0f);
}

/* The scales and minima, six bits each, of the two parts that share their bytes: two bytes of each word of the head. Those of
 * the last four parts have their low bits in the last word and the high ones in the upper bits of the others. The two scales and
 * the two minima are unpacked as the bytes of one word; what depends on the quarter alone, a loop computes once. */
static __device__ __forceinline__ void st_cuda_scales_6(const unsigned *head, unsigned quarter, st_cuda_unit &u)
{
    bool late = quarter >= 2;
    unsigned places = 0x5410 + 0x2222 * (quarter % 2), down = late ? 2 : 0;
    unsigned own = late ? 0x30303030u : 0x3F3F3F3Fu, last = late ? 0x0F0F0F0Fu : 0;
    unsigned bytes = (__byte_perm(head[1], head[2], places) >> down & own) | (__byte_perm(head[3], head[3] >> 4, places) & last);
    float d = st_cuda_half(head[0] & 0xFFFF), min_d = -st_cuda_half(head[0] >> 16);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u.d[i] = st_cuda_times_byte(d, bytes, i);
        u.m[i] = st_cuda_times_byte(min_d, bytes, 2 + i);
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
    enum { WORDS = 8 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_q4_k *b = (const st_block_q4_k *)row + unit / 8;
        M::sixteen(w, b->qs + unit % 8 * 16);
        M::sixteen(w + 4, b);
    }
    static __device__ __forceinline__ void decode(const unsigned char *, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        st_cuda_split(w, u);
        st_cuda_scales_6(w + 4, unit % 8 / 2, u);
    }
};

struct st_cuda_unit_q5_k : st_cuda_unit_of_quarters {
    enum { WORDS = 12 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_q5_k *b = (const st_block_q5_k *)row + unit / 8;
        M::sixteen(w, b->qs + unit % 8 * 16);
        M::sixteen(w + 4, b);
        M::sixteen(w + 8, b->qh + unit % 2 * 16);
    }
    static __device__ __forceinline__ void decode(const unsigned char *, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        unsigned quarter = unit % 8 / 2;
        st_cuda_split(w, u);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u.q[0][i] |= (w[8 + i] >> 2 * quarter & 0x01010101u) << 4;
            u.q[1][i] |= (w[8 + i] >> (2 * quarter + 1) & 0x01010101u) << 4;
        }
        st_cuda_scales_6(w + 4, quarter, u);
    }
};

/* Q6_K: of each half of 128, the nibbles of 16 bytes are elements i and 64 + i. */
struct st_cuda_unit_q6_k {
    enum { WORDS = 13 };
    static __device__ __forceinline__ uint32_t at(uint32_t unit, int half)
    {
        return unit / 4 * 128 + unit % 4 * 16 + half * 64;
    }
    static __device__ __forceinline__ const st_block_q6_k *block(const unsigned char *row, uint32_t unit)
    {
        return (const st_block_q6_k *)row + unit / 8;
    }
    static __device__ __forceinline__ const void *low(const unsigned char *row, uint32_t unit)
    {
        return block(row, unit)->ql + 64 * (unit / 4 % 2) + 16 * (unit % 4);
    }
    static __device__ __forceinline__ const void *high(const unsigned char *row, uint32_t unit)
    {
        return block(row, unit)->qh + 32 * (unit / 4 % 2) + 16 * (unit % 2);
    }
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_q6_k *b = block(row, unit);
        st_cuda_read_around<M, 4>(w, low(row, unit));
        st_cuda_read_around<M, 4>(w + 5, high(row, unit));
        w[10] = M::half_bits(&b->d);
#pragma unroll
        for (int half = 0; half < 2; half++) w[11 + half] = M::byte(&b->scales[8 * (unit / 4 % 2) + unit % 4 + 4 * half]);
    }
    static __device__ __forceinline__ void decode(const unsigned char *row, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        unsigned shift = 2 * (unit % 4 / 2), ql[4], qh[4];
        float d = st_cuda_half(w[10]);
        st_cuda_align<4>(w, low(row, unit), ql);
        st_cuda_align<4>(w + 5, high(row, unit), qh);
        st_cuda_split(ql, u);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u.q[0][i] |= qh[i] << (4 - shift) & 0x30303030u;
            u.q[1][i] |= qh[i] >> shift & 0x30303030u;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u.d[half] = d * (float)(signed char)w[11 + half];
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
    enum { WORDS = 7 };
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_q2_k *b = (const st_block_q2_k *)row + unit / 8;
        const unsigned char *qs = b->qs + unit / 4 % 2 * 32 + unit % 2 * 16; /* 84 bytes a block: words are aligned */
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = M::word(qs + 4 * i);
        w[4] = M::word(&b->d);
#pragma unroll
        for (int half = 0; half < 2; half++) w[5 + half] = M::byte(&b->scales[at(unit % 8, half) / 16]);
    }
    static __device__ __forceinline__ void decode(const unsigned char *, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        two_bits(w, unit, u);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u.d[half] = st_cuda_half(w[4] & 0xFFFF) * (float)(w[5 + half] & 0x0F);
            u.m[half] = -st_cuda_half(w[4] >> 16) * (float)(w[5 + half] >> 4);
        }
    }
};

struct st_cuda_unit_q3_k : st_cuda_unit_of_pairs {
    enum { WORDS = 15 };
    static __device__ __forceinline__ const void *low(const unsigned char *row, uint32_t unit)
    {
        return ((const st_block_q3_k *)row + unit / 8)->qs + unit / 4 % 2 * 32 + unit % 2 * 16;
    }
    static __device__ __forceinline__ const void *mask(const unsigned char *row, uint32_t unit)
    {
        return ((const st_block_q3_k *)row + unit / 8)->hmask + unit % 2 * 16;
    }
    template <class M> static __device__ __forceinline__ void fetch(const unsigned char *row, uint32_t unit, unsigned *w)
    {
        const st_block_q3_k *b = (const st_block_q3_k *)row + unit / 8;
        st_cuda_read_around<M, 4>(w, low(row, unit));
        st_cuda_read_around<M, 4>(w + 5, mask(row, unit));
        w[10] = M::half_bits(&b->d);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t part = at(unit % 8, half) / 16;
            w[11 + half] = M::byte(&b->scales[part % 8]);
            w[13 + half] = M::byte(&b->scales[8 + part % 4]);
        }
    }
    static __device__ __forceinline__ void decode(const unsigned char *row, uint32_t unit, const unsigned *w, st_cuda_unit &u)
    {
        float d = st_cuda_half(w[10]);
        unsigned qs[4], high[4];
        st_cuda_align<4>(w, low(row, unit), qs);
        st_cuda_align<4>(w + 5, mask(row, unit), high);
        two_bits(qs, unit, u);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t first = at(unit % 8, half), part = first / 16;
#pragma unroll
            for (int i = 0; i < 4; i++) u.q[half][i] |= (high[i] >> first / 32 & 0x01010101u) << 2;
            unsigned low = w[11 + half] >> (part < 8 ? 0 : 4) & 0x0F;
            unsigned top = w[13 + half] >> 2 * (part / 4) & 3;
            u.d[half] = d * (float)((int)(low | top << 4) - 32);
            u.m[half] = -4 * u.d[half];
        }
    }
};

/* Loads and unpacks a unit. */
template <class W>
static __device__ __forceinline__ void st_cuda_unpack_unit(const unsigned char *row, uint32_t unit, st_cuda_unit &u)
{
    unsigned w[W::WORDS];
    W::template fetch<st_cuda_from_device>(row, unit, w);
    W::decode(row, unit, w, u);
}

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
