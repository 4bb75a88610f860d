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

/* How warps share a head. */
template <int HEAD> struct shares {
    enum { WIDTH = HEAD < WIDTH_MAX ? HEAD : (int)WIDTH_MAX, SHARERS = HEAD / WIDTH, SETS = WARPS / SHARERS };
};

/* What a lane has of its warp's sums: head lane / 4. */
template <int WIDTH> struct running {
    float out[WIDTH / 8][4], largest, total;
};

/* A type's tile: ROW bytes of WIDTH elements at a position, PITCH bytes apart. `query`: the first of the two elements
 * that half `pair` of step k multiplies in lane t of four. `element`: of the output, of fragment n and column c.
 * FACTOR: of the softmax weights. SHRINK: what keys and values are divided by. */
template <int WIDTH, bool BF16> struct tile_halves {
    enum { ROW = 2 * WIDTH, PITCH = ROW + 16, CHUNK = 16, FACTOR = 1, SHRINK = BF16 ? (int)ST_CUDA_BF16_SHRINK : 1 };
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
    static __device__ __forceinline__ void score(const unsigned char *keys, const unsigned (*q)[4], uint32_t lane, float (*scores)[4])
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
    }
    static __device__ __forceinline__ void gather(const unsigned char *values, const float *weights, uint32_t lane, float (*out)[4])
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

/* Two bytes, at `select` of the words a and b, as f16. */
__device__ __forceinline__ unsigned two_halves(unsigned a, unsigned b, unsigned select)
{
    unsigned bytes = __byte_perm(a, b, select), biased = __byte_perm(bytes ^ 0x8080u, 0x64646464u, 0x4140); /* 1024 + 128 + byte */
    __half2 x = __hsub2(*(const __half2 *)&biased, __half2half2(__ushort_as_half(0x6480)));
    return *(const unsigned *)&x;
}

template <int WIDTH> struct tile_q8_0 {
    enum { BLOCK = 34, BLOCKS = WIDTH / 32, ROW = BLOCKS * BLOCK };
    enum { CHUNK = ROW % 8 ? 4 : 8, PITCH = ROW + (CHUNK == 8 ? 8 : 12) };
    /* 64 keeps weight × scale off f16's subnormal numbers; 65504 / 127 × 64 is no infinity. */
    enum { FACTOR = 64, SHRINK = 1 };
    static __device__ __forceinline__ uint32_t query(uint32_t k, uint32_t pair, uint32_t t)
    {
        return 32 * (k / 2) + 8 * t + 4 * (k % 2) + 2 * pair;
    }
    static __device__ __forceinline__ uint32_t element(uint32_t n, uint32_t c)
    {
        return 32 * (n / 4) + 4 * c + n % 4;
    }
    static __device__ __forceinline__ float scale(const unsigned char *row, int block)
    {
        return __half2float(*(const __half *)(row + block * BLOCK));
    }
    /* COUNT words of a block from byte 4 × `first` of its elements on: even blocks begin two bytes behind a word. */
    template <int COUNT>
    static __device__ __forceinline__ void words(const unsigned char *row, int block, uint32_t first, unsigned *out)
    {
        const unsigned *from = (const unsigned *)(row + block * BLOCK + (block % 2 ? 2 : 0)) + first;
#pragma unroll
        for (int i = 0; i < COUNT; i++) out[i] = block % 2 ? from[i] : __funnelshift_r(from[i], from[i + 1], 16);
    }
    static __device__ __forceinline__ void score(const unsigned char *keys, const unsigned (*q)[4], uint32_t lane, float (*scores)[4])
    {
        uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < BLOCKS; j++) {
                unsigned bytes[2];
                float sums[4] = {};
                const unsigned char *own = keys + (8 * n + 2 * t) * PITCH; /* positions 2 t and 2 t + 1: the columns of the sums */
                words<2>(keys + (8 * n + g) * PITCH, j, 2 * t, bytes);
#pragma unroll
                for (int k = 0; k < 2; k++)
                    st_cuda_mma(sums, q[2 * j + k], two_halves(bytes[k], 0, 0x10), two_halves(bytes[k], 0, 0x32));
                float first = scale(own, j), second = scale(own + PITCH, j);
                scores[n][0] += first * (sums[0] + sums[2]);
                scores[n][1] += second * (sums[1] + sums[3]);
            }
    }
    static __device__ __forceinline__ void gather(const unsigned char *values, const float *weights, uint32_t lane, float (*out)[4])
    {
        uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            unsigned w[4], bytes[4];
            float scaled[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned char *row = values + (i / 2 * 8 + 2 * t + i % 2) * PITCH;
                scaled[i] = weights[i] * scale(row, j);
                words<1>(row, j, g, &bytes[i]);
            }
            st_cuda_split_halves(scaled[0], scaled[1], w[0], w[1]);
            st_cuda_split_halves(scaled[2], scaled[3], w[2], w[3]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                unsigned select = 0x40 + 0x11 * i; /* byte i of both words */
                st_cuda_mma(out[4 * j + i], w, two_halves(bytes[0], bytes[1], select), two_halves(bytes[2], bytes[3], select));
            }
        }
    }
};

/* The tiles of a warp: every SETS-th of the part. */
template <class T> struct tiles_of {
    enum { ROWS_BYTES = POSITIONS * T::PITCH, STAGE = 2 * ROWS_BYTES }; /* keys, then values */
    const st_cuda_kv_rows &kv;
    unsigned char *stages;
    uint32_t from, end; /* positions of the part */
    size_t of_head;     /* bytes before the warp's elements */

    __device__ __forceinline__ size_t page(uint32_t base) const
    {
        return base < end ? kv.page(base) : 0;
    }
    /* Copies the tile at `base`, a multiple of 16, so that it is within one page. */
    __device__ __forceinline__ void load(uint32_t base, size_t page, uint32_t stage, uint32_t lane) const
    {
        enum { CHUNKS = T::ROW / T::CHUNK };
        unsigned char *to = stages + stage * STAGE;
        if (base < end) {
            const unsigned char *keys = kv.kv.keys + page * kv.kv.key_page_bytes + kv.row(base) * kv.kv.key_row_bytes + of_head;
            const unsigned char *values = kv.kv.values + page * kv.kv.value_page_bytes + kv.row(base) * kv.kv.value_row_bytes + of_head;
#pragma unroll 4
            for (uint32_t i = lane; i < POSITIONS * CHUNKS; i += ST_CUDA_WARP) {
                uint32_t row = i / CHUNKS, chunk = i % CHUNKS * T::CHUNK;
                bool present = base + row >= from && base + row < end; /* others may be NaN */
                st_cuda_copy_or_zero<T::CHUNK>(to + row * T::PITCH + chunk, keys + row * kv.kv.key_row_bytes + chunk, present);
                st_cuda_copy_or_zero<T::CHUNK>(to + ROWS_BYTES + row * T::PITCH + chunk, values + row * kv.kv.value_row_bytes + chunk, present);
            }
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
    tiles_of<T> tiles = {kv, (unsigned char *)shared + warp * STAGES * tiles_of<T>::STAGE, b.from, b.end,
                         (size_t)(b.kv_head * SHARERS + share) * T::ROW};
    size_t page = empty ? 0 : tiles.page(first);
    st_cuda_await();
    if (empty) return;
    static_assert((int)STAGES == 2, "one tile is loaded ahead");
    tiles.load(first, page, 0, lane);
    uint32_t head = b.head + min(g, b.active - 1); /* past the end: the last, not stored */
    unsigned q[WIDTH / 16][4];
    const float *query = a.in + ((size_t)b.row * a.heads + head) * HEAD + share * WIDTH;
    load_query<T, WIDTH>(query, a.scale * 1.4426950408889634f /* log2 e */ * T::SHRINK, t, q);
    running<WIDTH> r = {{}, -INFINITY, 0};
    uint32_t stage = 0;
    uint32_t stop = b.end + (SHARERS > 1 ? offset : 0); /* warps that share heads have as many tiles, for add_shares */
    for (uint32_t base = first; base < stop; base += STEP, stage = 1 - stage) {
        bool present = SHARERS == 1 || base < b.end;
        tiles.load(base + STEP, tiles.page(base + STEP), 1 - stage, lane);
        st_cuda_copies_wait<1>();
        __syncwarp();
        const unsigned char *keys = tiles.stages + stage * tiles_of<T>::STAGE, *values = keys + tiles_of<T>::ROWS_BYTES;
        float scores[2][4] = {}, weights[4];
        if (present) T::score(keys, q, lane, scores);
#pragma unroll
        for (int n = 0; n < 2; n++) scores[n][0] += scores[n][2], scores[n][1] += scores[n][3]; /* both parts of the queries */
        if constexpr (SHARERS > 1) add_shares<SHARERS>(scores, stage);
        if (!present) break; /* the last tiles */
        softmax<T, WIDTH>(scores, base, b.from, b.end, t, r, weights);
        T::gather(values, weights, lane, r.out);
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
