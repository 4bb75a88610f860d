/* Attention of few rows on tensor cores, for F16, BF16 and Q8_0 keys and values. A warp has tiles of 16 positions,
 * which it copies to its own shared memory, one tile ahead. Of heads with more than WIDTH_MAX elements it has so
 * many: the warps that share a tile compute parts of the scores and add them up. Rows 0 to 7 of a fragment are the query
 * heads of a group and rows 8 to 15 what f16 leaves of them: queries and softmax weights are sums of two f16 numbers, so
 * the result is as exact as that of float32 products. The bytes of Q8_0 are f16 as they are; their scales multiply the
 * sums over a block's 32 elements, and the softmax weights. */
#include "backend/cuda/attention_parts.cuh"
#include "backend/cuda/mma.cuh"

namespace {

enum { THREADS = ST_CUDA_PARTS_THREADS, WARPS = THREADS / ST_CUDA_WARP, POSITIONS = 16, STAGES = 2, WIDTH_MAX = 128 };
enum { CHUNK = 16 }; /* bytes that a lane copies at a time */

/* How warps share a head. */
template <int HEAD> struct shares {
    enum { WIDTH = HEAD < WIDTH_MAX ? HEAD : (int)WIDTH_MAX, SHARERS = HEAD / WIDTH, SETS = WARPS / SHARERS };
};

/* What a lane has of its warp's sums: head lane / 4. */
template <int WIDTH> struct running {
    float out[WIDTH / 8][4], largest, total;
};

/* Where the rows of a warp's tile begin. Rows of Q8_0 begin at any multiple of four bytes and are copied from the multiple
 * of 16 before; tiles begin at such. */
struct row_starts {
    size_t of_head, row_bytes; /* of_head: bytes before the warp's elements */

    /* Bytes between the multiple of 16 and the row. */
    __device__ __forceinline__ uint32_t past(uint32_t row) const
    {
        return (uint32_t)(of_head + row * row_bytes) % CHUNK;
    }
};

/* A type's tile: ROW bytes of WIDTH elements at a position, copied as CHUNKS to rows that are PITCH bytes apart. `query`:
 * the first of the two elements that half `pair` of step k multiplies in lane t of four. `element`: of the output, of
 * fragment n and column c. FACTOR: of the softmax weights. SHRINK: what keys and values are divided by. */
template <int WIDTH, bool BF16> struct tile_halves {
    enum { ROW = 2 * WIDTH, CHUNKS = ROW / CHUNK, PITCH = ROW + CHUNK };
    enum { FACTOR = 1, SHRINK = BF16 ? (int)ST_CUDA_BF16_SHRINK : 1 };
    static __device__ __forceinline__ void convert(unsigned *b)
    {
#pragma unroll
        for (int i = 0; i < 4 && BF16; i++) b[i] = st_cuda_shrink_bf16(b[i]);
    }
    static __device__ __forceinline__ uint32_t query(uint32_t k, uint32_t pair, uint32_t t)
    {
        return 16 * k + 8 * pair + 2 * t;
    }
    static __device__ __forceinline__ uint32_t element(uint32_t n, uint32_t c)
    {
        return 8 * n + c;
    }
    static __device__ __forceinline__ void score(const unsigned char *keys, row_starts, const unsigned (*q)[4], uint32_t lane,
                                                 float (*scores)[4])
    {
        uint32_t matrix = lane / 8, row = lane % 8;
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++) {
            unsigned b[4];
            st_cuda_load_matrices(b, keys + (8 * (matrix / 2) + row) * PITCH + (16 * k + matrix % 2 * 8) * 2);
            convert(b);
            st_cuda_mma(scores[0], q[k], b[0], b[1]);
            st_cuda_mma(scores[1], q[k], b[2], b[3]);
        }
#pragma unroll
        for (int n = 0; n < 2; n++) scores[n][0] += scores[n][2], scores[n][1] += scores[n][3]; /* both parts of the queries */
    }
    static __device__ __forceinline__ void gather(const unsigned char *values, row_starts, const float *weights, uint32_t lane,
                                                  float (*out)[4])
    {
        uint32_t matrix = lane / 8, row = lane % 8;
        unsigned w[4];
        st_cuda_split_halves(weights[0], weights[1], w[0], w[1]);
        st_cuda_split_halves(weights[2], weights[3], w[2], w[3]);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n += 2) {
            unsigned b[4];
            st_cuda_load_transposed(b, values + (matrix % 2 * 8 + row) * PITCH + 8 * (n + matrix / 2) * 2);
            convert(b);
            st_cuda_mma(out[n], w, b[0], b[1]);
            st_cuda_mma(out[n + 1], w, b[2], b[3]);
        }
    }
};

template <int WIDTH> using tile_f16 = tile_halves<WIDTH, false>;
template <int WIDTH> using tile_bf16 = tile_halves<WIDTH, true>;

/* Four signed bytes as f16, exactly: the last eight bits of the number 1024 + n are n, and n is byte + 128. */
__device__ __forceinline__ void bytes_to_halves(unsigned bytes, unsigned *out)
{
    bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned biased = __byte_perm(bytes, 0x64646464u, i ? 0x4342 : 0x4140);
        __half2 x = __hsub2(*(const __half2 *)&biased, __half2half2(__ushort_as_half(0x6480)));
        out[i] = *(const unsigned *)&x;
    }
}

/* Two numbers, each the sum of two f16, times two f16, as sums of two f16 again: what rounding takes from the high product is an
 * f16 number, which joins the low one. */
__device__ __forceinline__ void scale_halves(unsigned high, unsigned low, __half2 scale, unsigned &scaled_high, unsigned &scaled_low)
{
    __half2 x = *(const __half2 *)&high, product = __hmul2(x, scale), left = __hfma2(x, scale, __hneg2(product));
    left = __hfma2(*(const __half2 *)&low, scale, left);
    scaled_high = *(const unsigned *)&product, scaled_low = *(const unsigned *)&left;
}

/* Rows begin at a multiple of four bytes, so that the elements of even blocks begin two bytes behind a word. */
template <int WIDTH> struct tile_q8_0 {
    enum { BLOCK = 34, BLOCKS = WIDTH / 32, ROW = BLOCKS * BLOCK, CHUNKS = ROW / CHUNK + 1, PITCH = CHUNKS * CHUNK };
    /* 126 keeps weight × scale off f16's subnormal numbers; 65504 / 127, which is 516 as f16, × 126 is no infinity. */
    enum { FACTOR = 126, SHRINK = 1 };

    /* The element that is byte i of a block's word `index` (below). */
    static __device__ __forceinline__ uint32_t element_of(int block, uint32_t index, uint32_t i)
    {
        return 32 * block + (4 * index + i + (block % 2 ? 0 : 2)) % 32;
    }
    static __device__ __forceinline__ uint32_t query(uint32_t k, uint32_t pair, uint32_t t)
    {
        return element_of(k / 2, t + k % 2 * 4, 2 * pair);
    }
    static __device__ __forceinline__ uint32_t element(uint32_t n, uint32_t c)
    {
        return element_of(n / 4, c, n % 4);
    }
    /* Row 8 + `row` begins 8 × PITCH further. */
    static __device__ __forceinline__ const unsigned char *row_at(const unsigned char *rows, row_starts starts, uint32_t row)
    {
        return rows + row * PITCH + starts.past(row);
    }
    /* Words of two blocks, of which the first begins with a word and the second ends with one. */
    static __device__ __forceinline__ const unsigned *two_blocks(const unsigned char *row, int block)
    {
        return (const unsigned *)(row + block / 2 * 2 * BLOCK);
    }
    /* The scales of a block in rows x and y. */
    static __device__ __forceinline__ __half2 scales(const unsigned char *x, const unsigned char *y, int block)
    {
        uint32_t at = block % 2 * (BLOCK / 4);
        unsigned both = __byte_perm(two_blocks(x, block)[at], two_blocks(y, block)[at], block % 2 ? 0x7632 : 0x5410);
        return *(const __half2 *)&both;
    }
    /* One of the eight words of a block's elements; the last word of an even block has its last two and its first two elements. */
    static __device__ __forceinline__ unsigned word(const unsigned char *row, int block, uint32_t index)
    {
        const unsigned *words = two_blocks(row, block);
        unsigned x = words[(block % 2 ? 9 : 1) + index];
        return block % 2 ? x : __byte_perm(x, words[0], index == 7 ? 0x7610 : 0x3210);
    }
    static __device__ __forceinline__ void score(const unsigned char *keys, row_starts starts, const unsigned (*q)[4], uint32_t lane,
                                                 float (*scores)[4])
    {
        uint32_t g = lane / 4, t = lane % 4;
        const unsigned char *key = row_at(keys, starts, g);
        const unsigned char *first = row_at(keys, starts, 2 * t), *second = row_at(keys, starts, 2 * t + 1); /* columns of the sums */
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < BLOCKS; j++) {
                float sums[4] = {};
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    unsigned b[2];
                    bytes_to_halves(word(key + 8 * n * PITCH, j, t + 4 * k), b);
                    st_cuda_mma(sums, q[2 * j + k], b[0], b[1]);
                }
                float2 scale = __half22float2(scales(first + 8 * n * PITCH, second + 8 * n * PITCH, j));
                scores[n][0] += scale.x * (sums[0] + sums[2]);
                scores[n][1] += scale.y * (sums[1] + sums[3]);
            }
    }
    static __device__ __forceinline__ void gather(const unsigned char *values, row_starts starts, const float *weights, uint32_t lane,
                                                  float (*out)[4])
    {
        uint32_t g = lane / 4, t = lane % 4;
        const unsigned char *first = row_at(values, starts, 2 * t), *second = row_at(values, starts, 2 * t + 1);
        unsigned high[2], low[2];
        st_cuda_split_halves(weights[0], weights[1], high[0], low[0]);
        st_cuda_split_halves(weights[2], weights[3], high[1], low[1]);
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            unsigned w[4], b[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const unsigned char *x = first + 8 * n * PITCH, *y = second + 8 * n * PITCH;
                scale_halves(high[n], low[n], scales(x, y, j), w[2 * n], w[2 * n + 1]);
                unsigned x_word = word(x, j, g), y_word = word(y, j, g);
                bytes_to_halves(__byte_perm(x_word, y_word, 0x5140), b[n]); /* a byte of both rows is a pair */
                bytes_to_halves(__byte_perm(x_word, y_word, 0x7362), b[n] + 2);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) st_cuda_mma(out[4 * j + i], w, b[0][i], b[1][i]);
        }
    }
};

/* The tiles of a warp: every SETS-th of the part. The lanes copy LANES chunks of ROWS rows at a time. If rows have one chunk more,
 * it is copied alone: lanes 0 to 15 have those of the keys, the others those of the values. */
template <class T> struct tiles_of {
    enum { ROWS_BYTES = POSITIONS * T::PITCH, STAGE = 2 * ROWS_BYTES }; /* keys, then values */
    enum { LANES = T::CHUNKS / 2 * 2, ROWS = ST_CUDA_WARP / LANES, ALONE = T::CHUNKS > (int)LANES };
    static_assert(ST_CUDA_WARP % LANES == 0 && T::CHUNKS <= LANES + 1, "lanes for a row's chunks");
    const st_cuda_kv_rows &kv;
    unsigned char *stages;
    uint32_t from, end; /* positions of the part */
    row_starts starts;
    uint32_t lane;

    __device__ __forceinline__ size_t page(uint32_t base) const
    {
        return base < end ? kv.page(base) : 0;
    }
    __device__ __forceinline__ bool present(uint32_t position) const
    {
        return position >= from && position < end;
    }
    /* Bytes of a tile before a row's chunks. */
    __device__ __forceinline__ size_t place(uint32_t row) const
    {
        return starts.of_head + row * starts.row_bytes - starts.past(row);
    }
    /* Whether the chunk that is copied alone is a row's first, not the last: the others are then whole sectors of memory, 32 bytes. */
    __device__ __forceinline__ bool first_alone(uint32_t row) const
    {
        return ALONE && place(row) % (2 * CHUNK) != 0;
    }
    template <bool WHOLE> __device__ __forceinline__ void copy(uint32_t base, const unsigned char *keys, unsigned char *to) const
    {
        size_t to_values = (uintptr_t)kv.kv.values - (uintptr_t)kv.kv.keys;
        uint32_t row = lane / LANES, at = (lane % LANES + first_alone(row)) * CHUNK;
        const unsigned char *from_row = keys + place(row) + at;
        unsigned char *to_row = to + row * T::PITCH + at;
#pragma unroll(WHOLE ? (int)POSITIONS : 1)
        for (int i = 0; i < POSITIONS; i += ROWS) {
            bool valid = WHOLE || present(base + row + i); /* others may be NaN */
            st_cuda_copy_or_zero<CHUNK>(to_row + i * T::PITCH, from_row + i * starts.row_bytes, valid);
            st_cuda_copy_or_zero<CHUNK>(to_row + i * T::PITCH + ROWS_BYTES, from_row + i * starts.row_bytes + to_values, valid);
        }
        if (!ALONE) return;
        row = lane % POSITIONS, at = first_alone(row) ? 0 : LANES * CHUNK;
        bool values = lane >= POSITIONS;
        st_cuda_copy_or_zero<CHUNK>(to + values * ROWS_BYTES + row * T::PITCH + at, keys + (values ? to_values : 0) + place(row) + at,
                                    WHOLE || present(base + row));
    }
    /* Copies the tile at `base`, a multiple of 16, so that it is within one page. */
    __device__ __forceinline__ void load(uint32_t base, size_t page, uint32_t stage) const
    {
        if (base < end) {
            const unsigned char *keys = kv.kv.keys + page * kv.kv.key_page_bytes + kv.row(base) * starts.row_bytes;
            bool whole = present(base) && base + POSITIONS <= end;
            if (whole) copy<true>(base, keys, stages + stage * STAGE);
            else copy<false>(base, keys, stages + stage * STAGE);
        }
        st_cuda_copies_end();
    }
};

/* Adds the scores of the warps that share positions, in an order that gives all of them the same sums. */
template <int SHARERS> __device__ __forceinline__ void add_shares(float (*scores)[4], uint32_t stage)
{
    /* By stage: a warp may be a tile ahead of another that reads. */
    __shared__ float4 parts[STAGES][WARPS][ST_CUDA_WARP];
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP;
    parts[stage][warp][lane] = make_float4(scores[0][0], scores[0][1], scores[1][0], scores[1][1]);
    __syncthreads();
    float4 x = parts[stage][warp ^ 1][lane];
    scores[0][0] += x.x, scores[0][1] += x.y, scores[1][0] += x.z, scores[1][1] += x.w;
    if (SHARERS == 2) return;
    float4 y = parts[stage][warp ^ 2][lane], z = parts[stage][warp ^ 3][lane];
    scores[0][0] += y.x + z.x, scores[0][1] += y.y + z.y, scores[1][0] += y.z + z.z, scores[1][1] += y.w + z.w;
}

/* Scores, as exponents of two, to weights × FACTOR; what was summed before shrinks. */
template <class T, int WIDTH>
__device__ __forceinline__ void softmax(float (*scores)[4], uint32_t base, uint32_t from, uint32_t end, uint32_t t,
                                        running<WIDTH> &r, float *weights)
{
    float largest = r.largest, total = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t position = base + i / 2 * 8 + 2 * t + i % 2;
        weights[i] = position >= from && position < end ? scores[i / 2][i % 2] : -INFINITY;
        largest = fmaxf(largest, weights[i]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    float top = largest == -INFINITY ? 0 : largest, shrink = st_cuda_exp2(r.largest - top);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        weights[i] = st_cuda_exp2(weights[i] - top);
        total += weights[i];
        weights[i] *= T::FACTOR;
    }
    r.largest = largest;
    r.total = r.total * shrink + total;
    if (__all_sync(0xFFFFFFFFu, shrink == 1)) return;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) r.out[i / 4][i % 4] *= shrink;
}

/* Adds up the sets of warps of the block and writes its part; `whole`: it is the only one, so that the sums are the output.
 * `shared`: as much as shared_of states. */
template <class T, int HEAD, int WIDTH>
__device__ void write_part(const st_cuda_attention_parts &s, const st_cuda_block_of_heads &b, const running<WIDTH> &r, bool whole,
                           float *shared)
{
    __shared__ float inverse[ST_CUDA_GROUP_MAX];
    enum { STRIDE = HEAD + 8, QUADS = HEAD / 4, GROUP = ST_CUDA_GROUP_MAX }; /* 8: heads begin in different banks */
    enum { SETS = shares<HEAD>::SETS, SHARERS = shares<HEAD>::SHARERS };
    const float ln2 = 0.6931471805599453f, log2e = 1.4426950408889634f;
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, g = lane / 4, t = lane % 4;
    uint32_t set = warp / SHARERS, share = warp % SHARERS;
    float2 *scales = (float2 *)shared; /* [SETS, GROUP]: largest score, total */
    float *sums = shared + 2 * SETS * GROUP, *own = sums + (set * GROUP + g) * STRIDE + share * WIDTH, top = -INFINITY, all = 0;
    float total = r.total + __shfl_xor_sync(0xFFFFFFFFu, r.total, 1);
    total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
    if (t == 0 && share == 0) scales[set * GROUP + g] = make_float2(r.largest, total);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SETS; k++) top = fmaxf(top, scales[k * GROUP + g].x);
    float base = top == -INFINITY ? 0 : top, weight = st_cuda_exp2(r.largest - base) * ((float)T::SHRINK / T::FACTOR);
#pragma unroll
    for (int k = 0; k < SETS; k++) all += st_cuda_exp2(scales[k * GROUP + g].x - base) * scales[k * GROUP + g].y;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) own[T::element(n, 2 * t + e)] = (r.out[n][e] + r.out[n][2 + e]) * weight;
    size_t part = ((size_t)b.row * s.a.heads + b.head) * s.splits + blockIdx.y; /* of the first head */
    if (warp == 0 && t == 0 && g < b.active) {
        if (whole) inverse[g] = st_cuda_reciprocal(all + st_cuda_exp2(s.a.sink(b.head + g) * log2e - base));
        else s.scales[part + g * s.splits] = make_float2(top * ln2, all);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t first = 0; first < GROUP * QUADS; first += THREADS) {
        if (first >= b.active * QUADS) break;
        bool valid = first + threadIdx.x < b.active * QUADS;
        uint32_t i = valid ? first + threadIdx.x : 0, h = i / QUADS, at = i % QUADS * 4;
        const float4 *from = (const float4 *)(sums + h * STRIDE + at);
        float4 sum = *from;
#pragma unroll
        for (int k = 1; k < SETS; k++) st_cuda_add(sum, 1, from[k * GROUP * STRIDE / 4]);
        if (whole) st_cuda_attention_store(s, b.row, b.head + h, at, sum, inverse[h], valid);
        else if (valid) *(float4 *)(s.sums + (part + h * s.splits) * HEAD + at) = sum;
    }
}

template <class T, int HEAD> struct shared_of {
    enum { TILES = WARPS * STAGES * tiles_of<T>::STAGE, SUMS = ST_CUDA_GROUP_MAX * shares<HEAD>::SETS * (HEAD + 10) * 4 };
    enum { BYTES = (int)TILES > (int)SUMS ? (int)TILES : (int)SUMS };
};

/* Query × factor of the lane's head as fragments. */
template <class T, int WIDTH>
__device__ __forceinline__ void load_query(const float *query, float factor, uint32_t t, unsigned (*q)[4])
{
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            float2 x = *(const float2 *)(query + T::query(k, pair, t));
            st_cuda_split_halves(x.x * factor, x.y * factor, q[k][2 * pair], q[k][2 * pair + 1]);
        }
}

template <template <int> class TILE, int HEAD>
__global__ void __launch_bounds__(THREADS, HEAD > WIDTH_MAX ? 2 : 3) attend_on_cores(st_cuda_attention_parts s)
{
    enum { WIDTH = shares<HEAD>::WIDTH, SHARERS = shares<HEAD>::SHARERS, STEP = shares<HEAD>::SETS * POSITIONS };
    typedef TILE<WIDTH> T;
    ST_CUDA_DYNAMIC(uint4, shared);
    st_cuda_release();
    const st_cuda_attention_args &a = s.a;
    st_cuda_block_of_heads b = st_cuda_block_of_heads::get<ST_CUDA_GROUP_MAX>(s);
    bool empty = b.from > b.position; /* the same for the block */
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, g = lane / 4, t = lane % 4;
    uint32_t share = warp % SHARERS, offset = warp / SHARERS * POSITIONS, first = b.from / POSITIONS * POSITIONS + offset;
    st_cuda_kv_rows kv(a.kv, a.rows, empty ? 0 : a.rows.at(b.row).conversation);
    row_starts starts = {(size_t)(b.kv_head * SHARERS + share) * T::ROW, a.kv.key_row_bytes};
    tiles_of<T> tiles = {kv, (unsigned char *)shared + warp * STAGES * tiles_of<T>::STAGE, b.from, b.end, starts, lane};
    size_t page = empty ? 0 : tiles.page(first);
    st_cuda_await();
    if (empty) return;
    static_assert((int)STAGES == 2, "one tile is loaded ahead");
    tiles.load(first, page, 0);
    page = tiles.page(first + STEP); /* it arrives while the tile before is multiplied */
    uint32_t head = b.head + min(g, b.active - 1); /* past the end: the last, not stored */
    unsigned q[WIDTH / 16][4];
    const float *query = a.in + ((size_t)b.row * a.heads + head) * HEAD + share * WIDTH;
    load_query<T, WIDTH>(query, a.scale * 1.4426950408889634f /* log2 e */ * T::SHRINK, t, q);
    running<WIDTH> r = {{}, -INFINITY, 0};
    uint32_t stage = 0;
    uint32_t stop = b.end + (SHARERS > 1 ? offset : 0); /* warps that share heads have as many tiles, for add_shares */
    for (uint32_t base = first; base < stop; base += STEP, stage = 1 - stage) {
        bool present = SHARERS == 1 || base < b.end;
        tiles.load(base + STEP, page, 1 - stage);
        page = tiles.page(base + 2 * STEP);
        st_cuda_copies_wait<1>();
        __syncwarp();
        const unsigned char *keys = tiles.stages + stage * tiles_of<T>::STAGE, *values = keys + tiles_of<T>::ROWS_BYTES;
        float scores[2][4] = {}, weights[4];
        if (present) T::score(keys, starts, q, lane, scores);
        if constexpr (SHARERS > 1) add_shares<SHARERS>(scores, stage);
        if (!present) break; /* the last tiles */
        softmax<T, WIDTH>(scores, base, b.from, b.end, t, r, weights);
        T::gather(values, starts, weights, lane, r.out);
        __syncwarp(); /* the stage is filled again by all lanes */
    }
    st_cuda_copies_wait<0>();
    __syncthreads();
    uint32_t parts = s.parts(b.count);
    bool whole = s.counters && parts == 1;
    write_part<T, HEAD>(s, b, r, whole, (float *)shared);
    if (!s.counters || whole) return;
    if (st_cuda_is_last(s, parts)) st_cuda_combine_heads(s, b.row, b.head, b.active, parts);
}

struct launch {
    const st_cuda_call *call;
    const st_cuda_attention_parts &args;

    template <template <int> class TILE, int HEAD> int start() const
    {
        enum { BYTES = shared_of<TILE<shares<HEAD>::WIDTH>, HEAD>::BYTES };
        static_assert(BYTES + 9 * 1024 <= 99 * 1024, "shared memory of a block");
        int code = (int)cudaFuncSetAttribute(attend_on_cores<TILE, HEAD>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
        if (code != cudaSuccess) return code;
        dim3 grid(call->rows * (args.a.heads / args.a.group) * args.blocks_of_group, args.splits);
        return st_cuda_start<attend_on_cores<TILE, HEAD>>(call, grid, THREADS, BYTES, args);
    }
    template <template <int> class TILE> int run() const
    {
        return args.a.key == 64    ? start<TILE, 64>()
               : args.a.key == 128 ? start<TILE, 128>()
               : args.a.key == 256 ? start<TILE, 256>()
                                   : start<TILE, 512>();
    }
};

} // namespace

int st_cuda_attention_cores(const st_cuda_call *call, const st_cuda_attention_parts &args)
{
    launch l = {call, args};
    switch (call->bound->kv.type) {
    case ST_TYPE_F16: return l.run<tile_f16>();
    case ST_TYPE_BF16: return l.run<tile_bf16>();
    default: return l.run<tile_q8_0>();
    }
}
