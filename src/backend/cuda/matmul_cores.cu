/* out = w0 · in0 (+ w1) of Q4_K and Q6_K for a few rows, such as conversations that decode together: f16 products on tensor cores.
 *
 * A span of columns is multiplied by `splits` warps, each of which has every splits-th block of 256 elements; they add up in shared
 * memory. A block of threads has a group of spans at a time. The grid has as many blocks as run at a time, and each goes on to its
 * next group. A warp copies its weights to a ring of its own in shared memory (cp.async), STAGES blocks of 256 elements ahead and on
 * into the next group, so it waits for its own copies alone.
 *
 * Activations (halves.cuh, by block) are loaded some chunks ahead. Those of 16 rows have twice the bytes of a span's weights, so they
 * have to come from the L1 cache: copies of weights bypass it, and the warps of a group that have the same part of the depth read the
 * same activations at about the same time.
 *
 * A nibble of Q4_K is an f16 number by its bits alone, n × 2^-24 or, four bits up, n × 2^-20, so that a mask unpacks two weights. Scales
 * multiply the sums over 32 elements in float32; minima multiply the totals of 32 activations, both sums of two f16, which is two more
 * products for each 256 elements. */
#include "backend/cuda/gemv.cuh"
#include "backend/cuda/halves.cuh"

namespace {

enum {
    TM = 2,                 /* fragments of 16 columns of a warp */
    SPAN = 16 * TM,         /* its columns */
    STAGES = 2,             /* blocks of 256 elements in its ring: 2 to 4 */
    RESIDENT = 2,           /* blocks of threads of a processor … */
    WARPS_MAX = 8,          /* … and their warps, at most … */
    MANY_ROWS_WARPS = 6,    /* … with more than 16 rows, whose sums take more registers */
    RING_BYTES = 96 * 1024, /* of all warps of a block of threads, at most */
    SCALES = 32,            /* bytes of a column's scales, which a lane unpacks for the others */
    PITCH = SPAN + 4,       /* of a row of sums in shared memory: the rows of a fragment differ in their banks */
};
#define MINIMA_FACTOR 64.0f                               /* so that they are normal numbers in f16 */
#define SUMS_FACTOR (MINIMA_FACTOR * ST_CUDA_TOTAL_SHRINK) /* of all sums */

struct cores_args {
    st_cuda_gemv_args products; /* of which a block has one span of columns: first_block is the first span */
    st_cuda_block_halves halves;
    uint32_t groups, each; /* groups of `each` spans */
    uint32_t splits;       /* warps of a span */
    unsigned magic;        /* W::MAGIC: from here into a register, since an instruction has one constant alone */
};

/* 2^23 + byte `at` of a word, by its bits. */
__device__ __forceinline__ float byte_of(unsigned word, int at, unsigned magic)
{
    return __uint_as_float(__byte_perm(word, magic, 0x7440u + (unsigned)at));
}

/* The scales of a column's parts: exact, since the fused product is rounded once and its result has 17 bits. */
__device__ __forceinline__ void make_scales(const unsigned *head, unsigned magic, float *out)
{
    unsigned bytes[2] = {head[1] & 0x3F3F3F3Fu, (head[3] & 0x0F0F0F0Fu) | (head[1] >> 2 & 0x30303030u)};
    float d[2], base[2]; /* of low nibbles; of high ones, which are 16 times as large */
    d[0] = st_cuda_half(head[0] & 0xFFFF) * (SUMS_FACTOR * 16777216.0f);
    d[1] = d[0] * (1 / 16.0f);
    base[0] = -8388608.0f * d[0];
    base[1] = -8388608.0f * d[1];
#pragma unroll
    for (int part = 0; part < 8; part++) out[part] = fmaf(byte_of(bytes[part / 4], part % 4, magic), d[part % 2], base[part % 2]);
}

/* The minima of parts t and t + 4 of a column, as sums of two f16. */
__device__ __forceinline__ void minima_of(const unsigned *head, uint32_t t, unsigned magic, unsigned &high, unsigned &low)
{
    float d = -MINIMA_FACTOR * st_cuda_half(head[0] >> 16), base = -8388608.0f * d;
    unsigned second = head[2] >> 8 * t, third = head[3] >> 8 * t;
    float first = fmaf(__uint_as_float((second & 0x3F) | magic), d, base);
    float last = fmaf(__uint_as_float((third >> 4 & 0x0F) | (second >> 2 & 0x30) | magic), d, base);
    st_cuda_split_halves(first, last, high, low);
}

/* A stage of a ring: for each column CHUNKS units of 16 bytes, of which the first COPIED have its block of BYTES. */
template <int BLOCK_BYTES, int USED, int ALL> struct stage_of {
    enum { BYTES = BLOCK_BYTES, COPIED = USED, CHUNKS = ALL, STAGE = SPAN * ALL * 16, RING = STAGES * STAGE + SPAN * SCALES };
    static constexpr bool ALIGNED = BYTES % 16 == 0;
    static_assert(COPIED * 16 >= BYTES, "a stage has a block of each column");

    /* Warps of a block of threads, at most. */
    template <int TN> static constexpr int warps()
    {
        constexpr int FITTING = RING_BYTES / RING, MOST = TN == 4 ? (int)MANY_ROWS_WARPS : (int)WARPS_MAX;
        return FITTING < MOST ? FITTING : MOST;
    }
};

/* A lane's activations. The W::STEPS chunks of a block are multiplied in the order of W::chunk; the next AHEAD ones are under way, those
 * of the warp's next block too. */
template <class W, int TN> struct activations {
    enum { AHEAD = W::template ahead<TN>() };
    static_assert(W::STEPS % AHEAD == 0, "a block begins at x[0]");
    const uint4 *chunks[TN]; /* of each eight rows, of the block; rows past the end: the last ones, not stored */
    int to_next;             /* chunks from the block to the warp's next one */
    uint4 x[AHEAD][TN];

    __device__ __forceinline__ void load(int step)
    {
        int chunk = W::chunk(step % W::STEPS) * ST_CUDA_CHUNK_STRIDE;
#pragma unroll
        for (int n = 0; n < TN; n++) x[step % AHEAD][n] = (step < W::STEPS ? chunks[n] : chunks[n] + to_next)[chunk];
    }
};

struct weights_q4_k : stage_of<sizeof(st_block_q4_k), 9, 9> {
    static constexpr unsigned MAGIC = 0x4B000000u; /* the bits of 2^23 */
    enum { STEPS = 9 }; /* totals, then the parts */

    static __host__ __device__ constexpr int chunk(int step)
    {
        return step == 0 ? 8 : step - 1;
    }
    template <int TN> static constexpr int ahead()
    {
        return TN == 1 ? 9 : TN == 2 ? 3 : 1;
    }
    /* The fragments of two steps of 16 elements, from the bytes of [step][column]. */
    static __device__ __forceinline__ void unpack(int part, const unsigned *words, unsigned (*a)[4])
    {
        const unsigned mask = part % 2 ? 0x00F000F0u : 0x000F000Fu;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i / 2][i % 2] = words[i] & mask;
            a[i / 2][2 + i % 2] = words[i] >> 8 & mask;
        }
    }
    template <int TN>
    static __device__ __forceinline__ void multiply(const unsigned char *stage, unsigned char *scales, activations<weights_q4_k, TN> &rows,
                                                    uint32_t, uint32_t, unsigned magic, float (*sums)[TN][4])
    {
        uint32_t lane = threadIdx.x % ST_CUDA_WARP;
        const unsigned char *matrices = stage + lane % 16 * sizeof(st_block_q4_k) + offsetof(st_block_q4_k, qs) + lane / 16 * 16;
        const float2 *pairs = (const float2 *)(scales + lane / 4 * SCALES); /* of two parts */
        unsigned words[TM][4], head[4];
        float own_scales[8];
        st_cuda_from_shared::sixteen(head, stage + lane * sizeof(st_block_q4_k));
        make_scales(head, magic, own_scales);
#pragma unroll
        for (int i = 0; i < 2; i++) ((float4 *)(scales + lane * SCALES))[i] = ((const float4 *)own_scales)[i];
#pragma unroll
        for (int m = 0; m < TM; m++) {
            unsigned minima[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                st_cuda_from_shared::sixteen(head, stage + (lane / 4 + 16 * m + 8 * i) * sizeof(st_block_q4_k));
                minima_of(head, lane % 4, magic, minima[i], minima[2 + i]);
            }
#pragma unroll
            for (int n = 0; n < TN; n++) {
                st_cuda_mma(sums[m][n], minima, rows.x[0][n].x, rows.x[0][n].y);
                st_cuda_mma(sums[m][n], minima, rows.x[0][n].z, rows.x[0][n].w);
            }
        }
        rows.load(rows.AHEAD);
        __syncwarp(); /* all lanes' scales */
        float2 d[2 * TM];
#pragma unroll
        for (int part = 0; part < 8; part++) {
            const uint4 *x = rows.x[(part + 1) % rows.AHEAD];
#pragma unroll
            for (int m = 0; m < TM; m++) {
                unsigned a[2][4];
                if (part % 2 == 0) {
                    st_cuda_load_matrices(words[m], matrices + 16 * m * sizeof(st_block_q4_k) + 16 * part);
#pragma unroll
                    for (int i = 2 * m; i < 2 * m + 2; i++) d[i] = pairs[i * (8 * SCALES / sizeof(float2)) + part / 2];
                }
                unpack(part, words[m], a);
#pragma unroll
                for (int n = 0; n < TN; n++) {
                    float own[4] = {};
                    st_cuda_mma(own, a[0], x[n].x, x[n].y);
                    st_cuda_mma(own, a[1], x[n].z, x[n].w);
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[m][n][i] += (part % 2 ? d[2 * m + i / 2].y : d[2 * m + i / 2].x) * own[i];
                }
            }
            rows.load(part + 1 + rows.AHEAD);
        }
    }
};

/* Q6_K: six bits are an f16 number as those of Q4_K are, n × 2^-24 or n × 2^-20. A weight is (n − 32) × scale × 2^-16, rounded once; d
 * multiplies the sums over 256 elements. Blocks begin at multiples of 2: a stage has the aligned units around them, and an unused one, so
 * that columns differ in their banks. */
struct weights_q6_k : stage_of<sizeof(st_block_q6_k), 14, 15> {
    static constexpr unsigned MAGIC = 0x64006400u; /* the bits of 1024, twice: a byte in its lower bits is added to it */
    enum { STEPS = 8 }; /* parts: the two with the same bytes, low nibbles and high ones, one after the other */

    static __host__ __device__ constexpr int chunk(int step)
    {
        return step / 4 * 4 + step % 2 * 2 + step / 2 % 2;
    }
    template <int TN> static constexpr int ahead()
    {
        return TN == 1 ? 8 : TN == 2 ? 4 : 1;
    }

    /* A column's block in a stage. */
    struct column {
        const unsigned *words;
        unsigned shift;

        column() = default;
        __device__ __forceinline__ column(const unsigned char *stage, uint32_t of, uint32_t block, uint32_t row_bytes)
        {
            uint32_t start = (of * row_bytes + block * (uint32_t)sizeof(st_block_q6_k)) % 16; /* spans begin at multiples of 16 */
            words = (const unsigned *)(stage + of * CHUNKS * 16) + start / 4;
            shift = start % 4 * 8;
        }
        __device__ __forceinline__ unsigned word(uint32_t byte) const
        {
            return __funnelshift_r(words[byte / 4], words[byte / 4 + 1], shift);
        }
    };

    /* The scales of parts, by step, each of both halves, × 2^8 or, of parts whose nibbles are high, × 2^4. */
    static __device__ __forceinline__ void make_scales(const column &c, unsigned magic, unsigned *out)
    {
#pragma unroll
        for (int step = 0; step < 8; step++) {
            int part = chunk(step);
            unsigned bytes = c.word(offsetof(st_block_q6_k, scales) + part / 2 * 4) ^ 0x80808080u;
            unsigned bits = __byte_perm(bytes, magic, part % 2 ? 0x5352 : 0x5150);
            __half2 both = __hadd2(*(const __half2 *)&bits, __float2half2_rn(-(1024 + 128)));
            both = __hmul2(both, __float2half2_rn(part % 4 >= 2 ? 16.0f : 256.0f));
            out[step] = *(const unsigned *)&both;
        }
    }
    /* Four weights of a part, of which `low` has the four lower bits and `high` the others: elements 0 and 2, then 1 and 3. */
    static __device__ __forceinline__ void unpack(int part, unsigned low, unsigned high, __half2 scale, __half2 offset, unsigned *out)
    {
        const bool upper = part % 4 >= 2;
        const unsigned mask = upper ? 0x00F000F0u : 0x000F000Fu, high_mask = upper ? 0x03000300u : 0x00300030u;
        unsigned places[2] = {part % 2 ? high << 2 : high << 4, part % 2 ? high >> 6 : high >> 4};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned bits = ((i ? low >> 8 : low) & mask) | (places[i] & high_mask);
            __half2 x = __hfma2(*(const __half2 *)&bits, scale, offset);
            out[2 * i] = *(const unsigned *)&x;
        }
    }
    /* Half of the fragments of a part's two steps of 16 elements. */
    static __device__ __forceinline__ void unpack_column(int part, const unsigned *low, const unsigned *high, unsigned scales, int c,
                                                         unsigned (*a)[4])
    {
        __half2 both = *(const __half2 *)&scales;
        __half2 offsets = __hmul2(both, __float2half2_rn(part % 4 >= 2 ? -1 / 32768.0f : -1 / 524288.0f));
        unpack(part, low[0], high[0], __low2half2(both), __low2half2(offsets), a[0] + c);
        unpack(part, low[1], high[1], __high2half2(both), __high2half2(offsets), a[1] + c);
    }
    template <int TN>
    static __device__ __forceinline__ void multiply(const unsigned char *stage, unsigned char *scales, activations<weights_q6_k, TN> &rows,
                                                    uint32_t block, uint32_t row_bytes, unsigned magic, float (*sums)[TN][4])
    {
        uint32_t lane = threadIdx.x % ST_CUDA_WARP, t = lane % 4 * 4;
        const uint2 *pairs = (const uint2 *)(scales + lane / 4 * SCALES); /* of two steps */
        float dots[TM][TN][4] = {};
        unsigned own_scales[8];
        make_scales(column(stage, lane, block, row_bytes), magic, own_scales);
#pragma unroll
        for (int i = 0; i < 2; i++) ((uint4 *)(scales + lane * SCALES))[i] = ((const uint4 *)own_scales)[i];
        __syncwarp();
        column columns[2 * TM];
#pragma unroll
        for (int i = 0; i < 2 * TM; i++) columns[i] = column(stage, lane / 4 + 8 * i, block, row_bytes);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            unsigned high[2 * TM][2];
            uint2 two[2 * TM];
#pragma unroll
            for (int k = 0; k < 4 * TM; k++)
                high[k / 2][k % 2] = columns[k / 2].word(offsetof(st_block_q6_k, qh) + 32 * side + 16 * (k % 2) + t);
#pragma unroll
            for (int step = 4 * side; step < 4 * side + 4; step++) {
                int part = chunk(step);
                const uint4 *x = rows.x[step % rows.AHEAD];
                unsigned low[2 * TM][2];
#pragma unroll
                for (int k = 0; k < 4 * TM; k++) low[k / 2][k % 2] = columns[k / 2].word(64 * side + 32 * (part % 2) + 16 * (k % 2) + t);
#pragma unroll
                for (int m = 0; m < TM; m++) {
                    unsigned a[2][4];
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        int i = 2 * m + c;
                        if (step % 2 == 0) two[i] = pairs[i * (8 * SCALES / sizeof(uint2)) + step / 2];
                        unpack_column(part, low[i], high[i], step % 2 ? two[i].y : two[i].x, c, a);
                    }
#pragma unroll
                    for (int n = 0; n < TN; n++) {
                        st_cuda_mma(dots[m][n], a[0], x[n].x, x[n].y);
                        st_cuda_mma(dots[m][n], a[1], x[n].z, x[n].w);
                    }
                }
                rows.load(step + rows.AHEAD);
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * TM; i++) {
            float d = st_cuda_half(columns[i].word(offsetof(st_block_q6_k, d)) & 0xFFFF) * (SUMS_FACTOR * 65536.0f);
#pragma unroll
            for (int k = 0; k < 2 * TN; k++) sums[i / 2][k / 2][i % 2 * 2 + k % 2] += d * dots[i / 2][k / 2][i % 2 * 2 + k % 2];
        }
    }
};

/* What a warp copies: block by block of its span, then of its span of the next group. Copies go up to the next multiple of 16 bytes;
 * matrices are padded to ST_CUDA_ALIGNMENT. */
template <class W> struct feed {
    uint32_t own, split;          /* own: which span of a group */
    uint32_t group, block;        /* the next ones; block past the end: the group is not open */
    const unsigned char *weights; /* of the span. NULL: nothing is left */
    uint32_t offsets[W::CHUNKS];  /* of what the lane copies of a block */

    __device__ __forceinline__ void open(const cores_args &a)
    {
        uint32_t span = group * a.each + own;
        const st_cuda_gemv_product &p = a.products.of(span);
        uint32_t first = (span - p.first_block) * SPAN;
        weights = group < a.groups && first < p.columns ? p.weights + first * p.row_bytes : NULL;
#pragma unroll
        for (int i = 0; i < W::CHUNKS; i++) { /* past the end: the last column, the last unit */
            uint32_t chunk = i * ST_CUDA_WARP + threadIdx.x % ST_CUDA_WARP, column = min(chunk / W::CHUNKS, p.columns - 1 - first);
            offsets[i] = column * (uint32_t)p.row_bytes + min(chunk % W::CHUNKS, (uint32_t)W::COPIED - 1) * 16;
        }
    }
    __device__ __forceinline__ void send(const cores_args &a, uint32_t blocks, unsigned char *stage)
    {
        if (block >= blocks) {
            open(a);
            block = split, group += gridDim.x;
        }
        uint32_t start = block * W::BYTES;
        const unsigned char *from = W::ALIGNED ? weights + start : weights;
        uint4 *to = (uint4 *)stage + threadIdx.x % ST_CUDA_WARP;
        if (weights)
#pragma unroll
            for (int i = 0; i < W::CHUNKS; i++)
                st_cuda_copy_16(to + i * ST_CUDA_WARP, from + (W::ALIGNED ? offsets[i] : (start + offsets[i]) & ~15u));
        st_cuda_copies_end();
        block += a.splits;
    }
};

/* Adds up what the warps with the same columns have, in their order, and writes it: a warp every so manyth row, a lane a column.
 * `scale`: that of row `lane`; `stage`: of the warp, the last one that it multiplied. */
template <int TN>
__device__ __forceinline__ void add_splits(const cores_args &a, uint32_t span, uint32_t count, float scale, unsigned char *shared,
                                           uint32_t stage, const float (*sums)[TN][4])
{
    __shared__ uint32_t places[WARPS_MAX];
    const st_cuda_gemv_product &p = a.products.of(span);
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, split = warp % a.splits;
    uint32_t column = (span - p.first_block) * SPAN + lane;
    float bias = p.bias.data && column < p.columns ? p.bias.at(column) : 0;
    float *to = (float *)(shared + stage) + lane % 4 * 2 * PITCH + lane / 4;
#pragma unroll
    for (int i = 0; i < TM * TN * 4; i++) {
        int m = i / 4 / TN, n = i / 4 % TN;
        to[(8 * n + i % 2) * PITCH + 16 * m + i / 2 % 2 * 8] = sums[m][n][i % 4];
    }
    if (lane == 0) places[warp] = stage;
    __syncthreads();
#pragma unroll 1
    for (uint32_t row = split; row < count; row += a.splits) {
        float sum = 0;
        for (uint32_t s = 0; s < a.splits; s++) sum += ((const float *)(shared + places[warp - split + s]))[row * PITCH + lane];
        float of_row = __shfl_sync(0xFFFFFFFFu, scale, (int)row);
        if (column < p.columns) p.out[(size_t)row * p.columns + column] = sum * of_row + bias;
    }
    __syncthreads(); /* before a stage of another warp is filled again */
}

template <class W, int TN>
__global__ void __launch_bounds__(W::template warps<TN>() * ST_CUDA_WARP, RESIDENT) multiply_rows(cores_args a)
{
    static_assert(8 * TN * PITCH * (int)sizeof(float) <= W::STAGE && SPAN == ST_CUDA_WARP, "sums fit in a stage, a lane writes a column");
    enum { GROUP = ST_CUDA_BLOCK_CHUNKS * ST_CUDA_CHUNK_STRIDE, SCALES_AT = STAGES * W::STAGE };
    ST_CUDA_DYNAMIC(uint4, memory);
    st_cuda_release();
    unsigned char *shared = (unsigned char *)memory;
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, own = warp / a.splits, split = warp % a.splits;
    uint32_t blocks = a.halves.width / 256, row_bytes = (uint32_t)a.products.products[0].row_bytes;
    uint32_t ring = warp * W::RING, stage = ring; /* offsets in shared memory */
    feed<W> next = {own, split, blockIdx.x, blocks, NULL, {}};
    bool freed = false; /* whether `stage` was multiplied, so that it is filled again */
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) next.send(a, blocks, shared + ring + i * W::STAGE);
    st_cuda_await();
    uint32_t count = a.products.rows.count(), groups = count > 0 ? a.groups : 0;
    float scale = a.halves.scales()[min(lane, max(count, 1u) - 1)] / SUMS_FACTOR;
    activations<W, TN> rows;
#pragma unroll
    for (int n = 0; n < TN; n++) rows.chunks[n] = a.halves.of(min(8u * n, max(count, 1u) - 1)) + split * GROUP + lane;
#pragma unroll
    for (int i = 0; i < rows.AHEAD; i++) rows.load(i);
#pragma unroll 1
    for (uint32_t group = blockIdx.x; group < groups; group += gridDim.x) {
        float sums[TM][TN][4] = {};
#pragma unroll 1
        for (uint32_t block = split; block < blocks; block += a.splits) {
            if (freed) {
                next.send(a, blocks, shared + stage);
                stage = stage == ring + SCALES_AT - W::STAGE ? ring : stage + W::STAGE;
            }
            freed = true;
            rows.to_next = (block + a.splits < blocks ? (int)a.splits : (int)split - (int)block) * GROUP;
            st_cuda_copies_wait<STAGES - 1>();
            __syncwarp(); /* all lanes' copies */
            W::template multiply<TN>(shared + stage, shared + ring + SCALES_AT, rows, block, row_bytes, a.magic, sums);
            __syncwarp(); /* all lanes have read the stage */
#pragma unroll
            for (int n = 0; n < TN; n++) rows.chunks[n] += rows.to_next;
        }
        add_splits<TN>(a, group * a.each + own, count, scale, shared, stage, sums);
    }
    st_cuda_copies_wait<0>();
}

template <class W> struct launch {
    const st_cuda_call *call;
    st_cuda_block_halves halves;

    /* Groups of so many spans that the blocks of threads, of which `resident` run at a time, read the fewest bytes: each reads the
     * weights of its spans and all activations, once for each of its groups. */
    template <int TN> void divide(cores_args &a, uint32_t spans, uint32_t resident) const
    {
        constexpr uint32_t WARPS = W::template warps<TN>(), COLUMNS = SPAN * W::BYTES;
        constexpr uint32_t ROWS = TN * ST_CUDA_BLOCK_CHUNKS * ST_CUDA_CHUNK_STRIDE * sizeof(uint4);
        uint32_t least = UINT32_MAX;
        for (uint32_t each = 1; each <= WARPS; each++) {
            uint32_t groups = st_cuda_blocks(spans, each), bytes = st_cuda_blocks(groups, resident) * (each * COLUMNS + ROWS);
            if (bytes >= least) continue;
            least = bytes;
            a.each = each, a.groups = groups, a.splits = min(WARPS / each, halves.width / 256);
        }
    }
    template <int TN> int start() const
    {
        static_assert(8 * TN <= ST_CUDA_CORES_ROWS, "rows of a block");
        constexpr int WARPS = W::template warps<TN>();
        int code = (int)cudaFuncSetAttribute(multiply_rows<W, TN>, cudaFuncAttributeMaxDynamicSharedMemorySize, WARPS * W::RING);
        if (code != cudaSuccess) return code;
        uint32_t spans, resident = st_cuda_resident<multiply_rows<W, TN>>(WARPS * ST_CUDA_WARP, WARPS * W::RING);
        cores_args args = {st_cuda_gemv_args_of(call, SPAN, spans), halves, 0, 0, 0, W::MAGIC};
        divide<TN>(args, spans, resident);
        uint32_t warps = args.each * args.splits;
        return st_cuda_start<multiply_rows<W, TN>>(call, min(args.groups, resident), warps * ST_CUDA_WARP, warps * W::RING, args);
    }
    int run() const
    {
        return call->rows <= 8 ? start<1>() : call->rows <= 16 ? start<2>() : start<4>();
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
