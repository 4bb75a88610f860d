/* out = w0 · in0 (+ w1) of Q4_K for a few rows, such as conversations that decode together: f16 products on tensor cores. A warp has
 * 16 columns of all rows and every SPLITS-th block of 256 elements; the SPLITS warps of the same columns add up in shared memory.
 * Warps share nothing before that: weights come straight into registers two blocks ahead, activations (halves.cuh, by block) from the
 * L1 cache. A nibble is an f16 number by its bits alone, n × 2^-24 or, four bits up, n × 2^-20, so weights cost a mask each two. The
 * sums over 32 elements are multiplied by their scale in float32; minima multiply the totals of 32 activations, both sums of two f16,
 * which is two more products for each 256 elements. */
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
    unsigned magic; /* the bits of 2^23: from here into a register, since an instruction has one constant alone */
};

/* What a lane has of a block of 256 elements of two columns: of each quarter, 64 elements, the bytes from 8 t on. */
struct raw_blocks {
    unsigned qs[2][4][2], head[2][4]; /* [column][quarter] */

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

/* Adds the products of a block of 256 elements. `chunks`: those of the lane, for each eight rows, of which this
 * block has those from `at` on. */
template <int TN>
__device__ __forceinline__ void add_block(const raw_blocks &raw, const uint4 *const *chunks, int at, uint32_t t, unsigned magic,
                                          float (*sums)[4])
{
    unsigned minima[4];
    column_scales scales[2] = {raw.head[0], raw.head[1]};
#pragma unroll
    for (int c = 0; c < 2; c++) minima_of(raw.head[c], t, magic, minima[c], minima[2 + c]);
#pragma unroll
    for (int n = 0; n < TN; n++) {
        uint4 totals = chunks[n][at + 8 * ST_CUDA_CHUNK_STRIDE];
        st_cuda_mma(sums[n], minima, totals.x, totals.y);
        st_cuda_mma(sums[n], minima, totals.z, totals.w);
    }
#pragma unroll
    for (int part = 0; part < 8; part++) {
        const unsigned mask = part % 2 ? 0x00F000F0u : 0x000F000Fu;
        unsigned a[2][4]; /* of two steps of 16 elements */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned word = raw.qs[i % 2][part / 2][i / 2];
            a[i / 2][i % 2] = word & mask;
            a[i / 2][2 + i % 2] = word >> 8 & mask;
        }
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
}

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

template <int SPLITS, int TN>
__global__ void __launch_bounds__(SPLITS *ST_CUDA_WARP, WARPS_OF_A_PROCESSOR / SPLITS) multiply_rows(cores_args a)
{
    st_cuda_release();
    const st_cuda_gemv_product &p = a.products.own();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, split = threadIdx.x / ST_CUDA_WARP, t = lane % 4;
    uint32_t first = (blockIdx.x - p.first_block) * SPAN + lane / 4, blocks = a.halves.width / 256;
    const unsigned char *columns[2];
#pragma unroll
    for (int c = 0; c < 2; c++) columns[c] = p.weights + (size_t)min(first + 8 * c, p.columns - 1) * p.row_bytes;
    raw_blocks raw[2]; /* of this block and the next */
    raw[0].load(columns, min(split, blocks - 1), t);
    raw[1].load(columns, min(split + SPLITS, blocks - 1), t);
    st_cuda_await();
    uint32_t count = a.products.rows.count();
    if (count == 0) return;
    enum { GROUP = ST_CUDA_BLOCK_CHUNKS * ST_CUDA_CHUNK_STRIDE };
    const uint4 *chunks[TN]; /* rows past the end: the last ones, not stored */
#pragma unroll
    for (int n = 0; n < TN; n++) chunks[n] = a.halves.of(min(8u * n, count - 1)) + split * GROUP + lane;
    float sums[TN][4] = {};
    for (uint32_t block = split; block < blocks; block += 2 * SPLITS) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t own = block + i * SPLITS;
            if (own >= blocks) break;
            add_block<TN>(raw[i], chunks, i * SPLITS * GROUP, t, a.magic, sums);
            raw[i].load(columns, min(own + 2 * SPLITS, blocks - 1), t);
        }
#pragma unroll
        for (int n = 0; n < TN; n++) chunks[n] += 2 * SPLITS * GROUP;
    }
    add_splits<SPLITS, TN>(a, p, first, count, sums);
}

struct launch {
    const st_cuda_call *call;
    st_cuda_block_halves halves;

    template <int SPLITS, int TN> int start(const st_cuda_gemv_args &products, uint32_t spans) const
    {
        static_assert(8 * TN <= ST_CUDA_CORES_ROWS, "rows of a block");
        return st_cuda_start<multiply_rows<SPLITS, TN>>(call, spans, SPLITS * ST_CUDA_WARP, 0, cores_args{products, halves, 0x4B000000u});
    }
    template <int TN> int run() const
    {
        uint32_t spans;
        st_cuda_gemv_args products = st_cuda_gemv_args_of(call, SPAN, spans);
        return spans <= FEW_SPANS ? start<8, TN>(products, spans) : start<4, TN>(products, spans);
    }
};

} // namespace

extern "C" int st_cuda_matmul_cores(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    st_cuda_converter to = {{call->scratch, (uint32_t)b->weight[0].ne[0], call->rows}, NULL, true};
    int code = call->ready ? (int)cudaSuccess : st_cuda_start_convert(call, {to, st_cuda_rows_of(call), NULL, st_cuda_floats(b->in[0])});
    if (code != cudaSuccess) return code;
    launch l = {call, to.blocks()};
    return call->rows <= 8 ? l.run<1>() : l.run<2>();
}
