/* out = w0 · in0 (+ w1) of Q4_K and Q6_K for a few rows, such as conversations that decode together: f16 products on tensor cores. A
 * warp has 16 columns of all rows and every SPLITS-th block of 256 elements; the SPLITS warps of the same columns add up in shared
 * memory. Warps share nothing before that: weights come straight into registers, a block or two ahead, and activations (halves.cuh, by
 * block) from the L1 cache.
 *
 * A nibble of Q4_K is an f16 number by its bits alone, n × 2^-24 or, four bits up, n × 2^-20, so that a mask unpacks two weights. Scales
 * multiply the sums over 32 elements in float32; minima multiply the totals of 32 activations, both sums of two f16, which is two more
 * products for each 256 elements. */
#include "backend/cuda/gemv.cuh"
#include "backend/cuda/halves.cuh"

namespace {

enum {
    SPAN = 16,        /* columns of a warp */
    WARPS_OF_A_PROCESSOR = 16,
    FEW_SPANS = 264,  /* as many fill a GPU with eight warps each */
};
#define MINIMA_FACTOR 64.0f                               /* so that they are normal numbers in f16 */
#define SUMS_FACTOR (MINIMA_FACTOR * ST_CUDA_TOTAL_SHRINK) /* of all sums */

struct cores_args {
    st_cuda_gemv_args products;
    st_cuda_block_halves halves;
    unsigned magic; /* W::MAGIC: from here into a register, since an instruction has one constant alone */
};

/* 2^23 + byte `at` of a word, by its bits. */
__device__ __forceinline__ float byte_of(unsigned word, int at, unsigned magic)
{
    return __uint_as_float(__byte_perm(word, magic, 0x7440u + (unsigned)at));
}

/* The scales of a column, as bytes of two words, and what they are multiplied by. */
struct column_scales {
    unsigned bytes[2];
    float d[2], base[2]; /* of low nibbles; of high ones */

    __device__ __forceinline__ column_scales(const unsigned *head)
    {
        bytes[0] = head[1] & 0x3F3F3F3Fu;
        bytes[1] = (head[3] & 0x0F0F0F0Fu) | (head[1] >> 2 & 0x30303030u);
        d[0] = st_cuda_half(head[0] & 0xFFFF) * (SUMS_FACTOR * 16777216.0f);
        d[1] = d[0] * (1 / 16.0f);
        base[0] = -8388608.0f * d[0];
        base[1] = -8388608.0f * d[1];
    }
    /* Exact: the fused product is rounded once, and its result has 17 bits. */
    __device__ __forceinline__ float of(int part, unsigned magic) const
    {
        return fmaf(byte_of(bytes[part / 4], part % 4, magic), d[part % 2], base[part % 2]);
    }
};

/* The minima of parts t and t + 4 of a column, as sums of two f16. */
__device__ __forceinline__ void minima_of(const unsigned *head, uint32_t t, unsigned magic, unsigned &high, unsigned &low)
{
    float d = -MINIMA_FACTOR * st_cuda_half(head[0] >> 16), base = -8388608.0f * d;
    unsigned second = head[2] >> 8 * t, third = head[3] >> 8 * t;
    float first = fmaf(__uint_as_float((second & 0x3F) | magic), d, base);
    float last = fmaf(__uint_as_float((third >> 4 & 0x0F) | (second >> 2 & 0x30) | magic), d, base);
    st_cuda_split_halves(first, last, high, low);
}

/* What a lane has of the weights of two columns, by type. AHEAD: blocks of 256 elements that are under way at a time. `load` starts the
 * loads of a block; `add` adds the products of
 * block `own`, and starts the loads of block `next` instead. `chunks`: the lane's activations, for
 * each eight rows, of which the block has those from `at` on. */
struct weights_q4_k {
    enum { AHEAD = 2 };
    static constexpr unsigned MAGIC = 0x4B000000u; /* the bits of 2^23 */
    unsigned qs[2][4][2], head[2][4]; /* [column][quarter]: of its 64 elements the bytes from 8 t on */

    __device__ __forceinline__ void load(const unsigned char *const *columns, uint32_t block, uint32_t t)
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const st_block_q4_k *b = (const st_block_q4_k *)columns[c] + block;
            st_cuda_read_16(head[c], b);
#pragma unroll
            for (int q = 0; q < 4; q++) st_cuda_read_8(qs[c][q], b->qs + 32 * q + 8 * t);
        }
    }
    /* The fragments of two steps of 16 elements. */
    __device__ __forceinline__ void unpack(int part, unsigned (*a)[4]) const
    {
        const unsigned mask = part % 2 ? 0x00F000F0u : 0x000F000Fu;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned word = qs[i % 2][part / 2][i / 2];
            a[i / 2][i % 2] = word & mask;
            a[i / 2][2 + i % 2] = word >> 8 & mask;
        }
    }
    template <int TN>
    __device__ __forceinline__ void add(const uint4 *const *chunks, int at, const unsigned char *const *columns, uint32_t, uint32_t next,
                                        uint32_t t, unsigned magic, float (*sums)[4])
    {
        unsigned minima[4];
        column_scales scales[2] = {head[0], head[1]};
#pragma unroll
        for (int c = 0; c < 2; c++) minima_of(head[c], t, magic, minima[c], minima[2 + c]);
#pragma unroll
        for (int n = 0; n < TN; n++) {
            uint4 totals = chunks[n][at + 8 * ST_CUDA_CHUNK_STRIDE];
            st_cuda_mma(sums[n], minima, totals.x, totals.y);
            st_cuda_mma(sums[n], minima, totals.z, totals.w);
        }
#pragma unroll
        for (int part = 0; part < 8; part++) {
            unsigned a[2][4];
            unpack(part, a);
            float d[2] = {scales[0].of(part, magic), scales[1].of(part, magic)};
            uint4 x[TN];
#pragma unroll
            for (int n = 0; n < TN; n++) x[n] = chunks[n][at + part * ST_CUDA_CHUNK_STRIDE];
#pragma unroll
            for (int n = 0; n < TN; n++) {
                float own[4] = {};
                st_cuda_mma(own, a[0], x[n].x, x[n].y);
                st_cuda_mma(own, a[1], x[n].z, x[n].w);
#pragma unroll
                for (int i = 0; i < 4; i++) sums[n][i] += d[i / 2] * own[i];
            }
        }
        load(columns, next, t);
    }
};

/* Q6_K: a weight less 32 times its scale, which is an integer, is rounded to f16; d multiplies the sums over 256 elements. */
struct weights_q6_k {
    enum { AHEAD = 1 };
    static constexpr unsigned MAGIC = 0x64006400u; /* the bits of 1024, twice: an integer up to 1023 in its lower bits is added to it */
    struct column {
        unsigned ql[2][2][3], qh[2][3], scales[5], d; /* [side of 128 elements][its half]: aligned words around the bytes from 8 t on */
    } raw[2];

    static __device__ __forceinline__ const st_block_q6_k *at(const unsigned char *const *columns, int c, uint32_t block)
    {
        return (const st_block_q6_k *)columns[c] + block;
    }
    __device__ __forceinline__ void load_scales(const unsigned char *const *columns, uint32_t block)
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            st_cuda_read_around<st_cuda_from_device, 4>(raw[c].scales, at(columns, c, block)->scales);
            raw[c].d = st_cuda_read_half_bits(&at(columns, c, block)->d);
        }
    }
    __device__ __forceinline__ void load_side(const unsigned char *const *columns, uint32_t block, int side, uint32_t t)
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const st_block_q6_k *b = at(columns, c, block);
#pragma unroll
            for (int i = 0; i < 2; i++) st_cuda_read_around<st_cuda_from_device, 2>(raw[c].ql[side][i], b->ql + 64 * side + 32 * i + 8 * t);
            st_cuda_read_around<st_cuda_from_device, 2>(raw[c].qh[side], b->qh + 32 * side + 8 * t);
        }
    }
    __device__ __forceinline__ void load(const unsigned char *const *columns, uint32_t block, uint32_t t)
    {
        load_scales(columns, block);
        load_side(columns, block, 0, t);
        load_side(columns, block, 1, t);
    }
    /* Four weights of a part, of which `low` has the four lower bits and `high` the others: elements 0 and 2, then 1 and 3. */
    static __device__ __forceinline__ void unpack(int part, unsigned low, unsigned high, __half2 scale, unsigned magic, unsigned *out)
    {
        const bool upper = part % 4 >= 2; /* they are 16 times as large */
        const __half2 bias = __float2half2_rn(upper ? -1024.0f - 16 * 32 : -1024.0f - 32);
        const unsigned mask = upper ? 0x00F000F0u : 0x000F000Fu, high_mask = upper ? 0x03000300u : 0x00300030u;
        unsigned places[2] = {part % 2 ? high << 2 : high << 4, part % 2 ? high >> 6 : high >> 4};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned bits = ((i ? low >> 8 : low) & mask) | magic;
            bits |= places[i] & high_mask;
            __half2 x = __hmul2(__hadd2(*(const __half2 *)&bits, bias), scale);
            out[i] = *(const unsigned *)&x;
        }
    }
    /* The scale of the lane's 8 elements of a part: `bytes` has 128 more in byte 0 or 2. */
    static __device__ __forceinline__ __half2 scale_of(unsigned bytes, int part, unsigned magic)
    {
        unsigned bits = __byte_perm(bytes, magic, part % 2 ? 0x5252 : 0x5050);
        const float shrink = part % 4 >= 2 ? 1 / 16.0f : 1;
        return __hfma2(*(const __half2 *)&bits, __float2half2_rn(shrink), __float2half2_rn(-(1024 + 128) * shrink));
    }
    template <int TN>
    __device__ __forceinline__ void add(const uint4 *const *chunks, int first, const unsigned char *const *columns, uint32_t own,
                                        uint32_t next, uint32_t t, unsigned magic, float (*sums)[4])
    {
        float dots[TN][4] = {}, d[2];
        unsigned scales[2][4], shift[2]; /* scales: in bytes 0 and 2 those of the lane's half of each 32 elements */
#pragma unroll
        for (int c = 0; c < 2; c++) {
            shift[c] = (unsigned)((uintptr_t)at(columns, c, own) & 3) * 8;
            d[c] = st_cuda_half(raw[c].d) * SUMS_FACTOR;
#pragma unroll
            for (int i = 0; i < 4; i++)
                scales[c][i] = (__funnelshift_r(raw[c].scales[i], raw[c].scales[i + 1], shift[c]) ^ 0x80808080u) >> t / 2 * 8;
        }
        load_scales(columns, next);
#pragma unroll
        for (int part = 0; part < 8; part++) {
            unsigned a[2][4]; /* of two steps of 16 elements */
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int c = k % 2, i = k / 2;
                const unsigned *ql = raw[c].ql[part / 4][part % 2] + i, *qh = raw[c].qh[part / 4] + i;
                unsigned two[2];
                unpack(part, __funnelshift_r(ql[0], ql[1], shift[c]), __funnelshift_r(qh[0], qh[1], shift[c]),
                       scale_of(scales[c][part / 2], part, magic), magic, two);
                a[i][c] = two[0];
                a[i][2 + c] = two[1];
            }
#pragma unroll
            for (int n = 0; n < TN; n++) {
                uint4 x = chunks[n][first + part * ST_CUDA_CHUNK_STRIDE];
                st_cuda_mma(dots[n], a[0], x.x, x.y);
                st_cuda_mma(dots[n], a[1], x.z, x.w);
            }
            if (part % 4 == 3) load_side(columns, next, part / 4, t);
        }
#pragma unroll
        for (int i = 0; i < TN * 4; i++) sums[i / 4][i % 4] += d[i % 4 / 2] * dots[i / 4][i % 4];
    }
};

/* Adds up what the warps of a block have, and writes it: a warp writes every SPLITS-th element of the lanes' sums. */
template <int SPLITS, int TN>
__device__ __forceinline__ void add_splits(const cores_args &a, const st_cuda_gemv_product &p, uint32_t first, uint32_t count,
                                           const float (*sums)[4])
{
    enum { EACH = (TN * 4 + SPLITS - 1) / SPLITS };
    __shared__ float parts[SPLITS][TN * 4][ST_CUDA_WARP];
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, split = threadIdx.x / ST_CUDA_WARP;
    float scales[EACH]; /* loaded while other warps still multiply */
    auto row_of = [&](uint32_t i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; };
#pragma unroll
    for (int k = 0; k < EACH; k++) scales[k] = a.halves.scales()[min(row_of(split + k * SPLITS), count - 1)];
#pragma unroll
    for (int i = 0; i < TN * 4; i++) parts[split][i][lane] = sums[i / 4][i % 4];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        uint32_t i = split + k * SPLITS, row = row_of(i), column = first + i / 2 % 2 * 8;
        if (i >= TN * 4 || row >= count || column >= p.columns) continue;
        float sum = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) sum += parts[s][i][lane];
        p.out[(size_t)row * p.columns + column] = sum * (scales[k] / SUMS_FACTOR) + (p.bias.data ? p.bias.at(column) : 0);
    }
}

template <class W, int SPLITS, int TN>
__global__ void __launch_bounds__(SPLITS *ST_CUDA_WARP, WARPS_OF_A_PROCESSOR / SPLITS) multiply_rows(cores_args a)
{
    st_cuda_release();
    const st_cuda_gemv_product &p = a.products.own();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, split = threadIdx.x / ST_CUDA_WARP, t = lane % 4;
    uint32_t first = (blockIdx.x - p.first_block) * SPAN + lane / 4, blocks = a.halves.width / 256;
    const unsigned char *columns[2];
#pragma unroll
    for (int c = 0; c < 2; c++) columns[c] = p.weights + (size_t)min(first + 8 * c, p.columns - 1) * p.row_bytes;
    W weights[W::AHEAD];
#pragma unroll
    for (int i = 0; i < W::AHEAD; i++) weights[i].load(columns, min(split + i * SPLITS, blocks - 1), t);
    st_cuda_await();
    uint32_t count = a.products.rows.count();
    if (count == 0) return;
    enum { GROUP = ST_CUDA_BLOCK_CHUNKS * ST_CUDA_CHUNK_STRIDE };
    const uint4 *chunks[TN]; /* rows past the end: the last ones, not stored */
#pragma unroll
    for (int n = 0; n < TN; n++) chunks[n] = a.halves.of(min(8u * n, count - 1)) + split * GROUP + lane;
    float sums[TN][4] = {};
    for (uint32_t block = split; block < blocks; block += W::AHEAD * SPLITS) {
#pragma unroll
        for (int i = 0; i < W::AHEAD; i++) {
            uint32_t own = block + i * SPLITS;
            if (own >= blocks) break;
            uint32_t next = min(own + W::AHEAD * SPLITS, blocks - 1);
            weights[i].template add<TN>(chunks, i * SPLITS * GROUP, columns, own, next, t, a.magic, sums);
        }
#pragma unroll
        for (int n = 0; n < TN; n++) chunks[n] += W::AHEAD * SPLITS * GROUP;
    }
    add_splits<SPLITS, TN>(a, p, first, count, sums);
}

template <class W> struct launch {
    const st_cuda_call *call;
    st_cuda_block_halves halves;

    template <int SPLITS, int TN> int start(const st_cuda_gemv_args &products, uint32_t spans) const
    {
        static_assert(8 * TN <= ST_CUDA_CORES_ROWS, "rows of a block");
        return st_cuda_start<multiply_rows<W, SPLITS, TN>>(call, spans, SPLITS * ST_CUDA_WARP, 0, cores_args{products, halves, W::MAGIC});
    }
    template <int TN> int split() const
    {
        uint32_t spans;
        st_cuda_gemv_args products = st_cuda_gemv_args_of(call, SPAN, spans);
        return spans <= FEW_SPANS ? start<8, TN>(products, spans) : start<4, TN>(products, spans);
    }
    int run() const
    {
        return call->rows <= 8 ? split<1>() : call->rows <= 16 ? split<2>() : split<4>();
    }
};

} // namespace

extern "C" int st_cuda_matmul_cores(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    st_cuda_converter to = {{call->scratch, (uint32_t)b->weight[0].ne[0], call->rows}, NULL, true};
    int code = call->ready ? (int)cudaSuccess : st_cuda_start_convert(call, {to, st_cuda_rows_of(call), NULL, st_cuda_floats(b->in[0])});
    if (code != cudaSuccess) return code;
    return b->weight[0].type == ST_TYPE_Q6_K ? launch<weights_q6_k>{call, to.blocks()}.run() : launch<weights_q4_k>{call, to.blocks()}.run();
}
