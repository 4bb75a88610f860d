/* The gated delta rule of prompts, in chunks of CHUNK rows on tensor cores. With S the state before a chunk, e the
 * decays from its start to each row and D those from row j to row i, the chunk's δ solve a triangular system:
 *
 *     (I + L) δ = b·(V − e·K S),   L[i][j] = b[i] (k[i]·k[j]) D[i][j] for j < i
 *     o = (e·Q S + P δ) / √d,      P[i][j] = (q[i]·k[j]) D[i][j] for j ≤ i
 *     S ← e[last] S + Kᵀ (D[last]·δ)
 *
 * The first kernel prepares all chunks at the same time: queries and keys of unit length, (I + L)⁻¹·b, P and decays, in
 * scratch. The second runs through the chunks of a conversation. A warp has 16 columns of the state, transposed, in the
 * registers of its sums, which have the layout of a factor of the next product. Columns do not depend on each other, so
 * what a warp computes of a chunk never leaves its registers.
 *
 * All factors are sums of two f16 numbers; columns are scaled by powers of two, so a product is as exact as in float32.
 * Decays are exponentials of sums of logarithms, added up from row to row: differences of sums from the start of the
 * chunk would cancel. They are at most 1, and so are the elements of (I + L)⁻¹·b and P. */
#include "backend/cuda/deltanet.cuh"
#include "backend/cuda/mma.cuh"

namespace {

enum {
    CHUNK = ST_CUDA_DELTA_CHUNK, TILES = CHUNK / 8,
    PREPARE_WARPS = 4, /* 16 rows each of the keys and queries of a chunk */
    STACKED = 2 * CHUNK,
    ROW = CHUNK + 4,   /* floats from a row of a matrix in shared memory to the next */
    KEYS = 0, QUERIES = 1, SOLVE = 0, SCORES = 1,
};
/* Elements of up to 1 as f16: the low parts stay above the smallest numbers. */
const float KEY_SCALE = 1024, MATRIX_SCALE = 64;

static_assert(CHUNK == (int)ST_CUDA_WARP, "a lane has a column of a chunk's matrices");
static_assert((int)STACKED == 16 * PREPARE_WARPS, "a warp has 16 rows");
static_assert((int)ST_CUDA_FEW_ROWS >= (int)ST_CUDA_CORES_ROWS, "few rows keep activations of products in scratch");

struct chunk_args {
    st_cuda_delta_args d;
    __half *key_halves;    /* [row][key head][KEYS, QUERIES][high, low][size], × KEY_SCALE */
    __half *matrix_halves; /* [row][value head][SOLVE, SCORES][high, low][CHUNK], × MATRIX_SCALE */
    float2 *row_decays;    /* [row][value head]: from the start of the chunk, to its end */

    template <int SIZE> __device__ const float *row(uint32_t row) const
    {
        return d.qkv + (size_t)row * (2 * d.key_heads + d.value_heads) * SIZE;
    }
    template <int SIZE> __device__ __half *keys(uint32_t row, uint32_t key_head, int which) const
    {
        return key_halves + (((size_t)row * d.key_heads + key_head) * 2 + which) * 2 * SIZE;
    }
    __device__ __half *matrices(uint32_t row, uint32_t head, int which) const
    {
        return matrix_halves + (((size_t)row * d.value_heads + head) * 2 + which) * 2 * CHUNK;
    }
    __device__ float2 *decays(uint32_t row, uint32_t head) const
    {
        return row_decays + (size_t)row * d.value_heads + head;
    }
};

/* --- products ----------------------------------------------------------------------------------------------------- */

/* c[16 × CHUNK] += a · bᵀ, where b has CHUNK rows: 16 elements of each, from k on */
template <class TILE>
__device__ __forceinline__ void multiply(float (*c)[4], const unsigned (*a)[4], TILE b, uint32_t k)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, matrix = lane / 8, row = lane % 8;
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
        unsigned f[2][4];
#pragma unroll
        for (int part = 0; part < 2; part++)
            st_cuda_load_matrices(f[part], b.at(8 * (n + matrix / 2) + row, k + matrix % 2 * 8, part));
        st_cuda_mma_split(c + n, a, f);
    }
}

/* Powers of two for the two rows that a lane has of a fragment: × up, the row's largest element is about 2¹². */
struct row_scales {
    float up[2], down[2];
};

template <int COUNT> __device__ __forceinline__ row_scales scales_of(const float (*x)[4])
{
    enum { EXPONENT_BIT = 23, UP = 2 * 127 + 12, MOST = 252 };
    row_scales s;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float largest = 0;
#pragma unroll
        for (int n = 0; n < COUNT; n++) largest = fmaxf(largest, fmaxf(fabsf(x[n][2 * j]), fabsf(x[n][2 * j + 1])));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
        int exponent = min((int)UP - (int)(__float_as_uint(largest) >> EXPONENT_BIT), (int)MOST);
        s.up[j] = __uint_as_float((unsigned)exponent << EXPONENT_BIT);
        s.down[j] = __uint_as_float((unsigned)(2 * 127 - exponent) << EXPONENT_BIT);
    }
    return s;
}

/* Two tiles of sums as a factor of 16 × 16, scaled. */
__device__ __forceinline__ void split(const float (*x)[4], const row_scales &s, unsigned (*a)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *two = &x[i / 2][i % 2 * 2];
        st_cuda_split_halves(two[0] * s.up[i % 2], two[1] * s.up[i % 2], a[0][i], a[1][i]);
    }
}

/* c = x · bᵀ, still scaled. */
template <class TILE> __device__ __forceinline__ row_scales multiply_rows(float (*c)[4], const float (*x)[4], TILE b)
{
    row_scales s = scales_of<TILES>(x);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[n][e] = 0;
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
        unsigned a[2][4];
        split(x + 2 * k, s, a);
        multiply(c, a, b, 16 * k);
    }
    return s;
}

/* --- the first kernel --------------------------------------------------------------------------------------------- */

struct chunk_rows {
    uint32_t first, count;
};

__device__ uint32_t chunks_of(const st_step_conversation &c)
{
    return c.rows < ST_CUDA_DELTA_CHUNK_ROWS ? 0 : (c.rows + CHUNK - 1) / CHUNK;
}

/* The conversation that has the prompt `index` of the step; NULL: there are not so many. */
__device__ const st_step_conversation *find_prompt(const st_cuda_rows &rows, uint32_t index)
{
    for (uint32_t i = 0; i < rows.conversation_count(); i++)
        if (chunks_of(rows.conversation(i)) && index-- == 0) return &rows.conversation(i);
    return NULL;
}

/* The rows of chunk `index` of the step. Returns false if there are not so many. */
__device__ bool find_chunk(const st_cuda_rows &rows, uint32_t index, chunk_rows &out)
{
    for (uint32_t i = 0; i < rows.conversation_count(); i++) {
        const st_step_conversation &c = rows.conversation(i);
        if (index < chunks_of(c)) {
            out.first = c.first_row + index * CHUNK;
            out.count = min((uint32_t)CHUNK, c.rows - index * CHUNK);
            return true;
        }
        index -= chunks_of(c);
    }
    return false;
}

/* Keys, then queries, of unit length: in shared memory, zeros behind the last row, and in scratch. */
template <int SIZE>
__device__ void load_units(const chunk_args &a, chunk_rows c, uint32_t key_head, st_cuda_half_rows<SIZE, STACKED> to)
{
    enum { LANES = SIZE / 4, AT_ONCE = ST_CUDA_WARP / LANES };
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, element = lane % LANES * 4;
    uint32_t first = threadIdx.x / ST_CUDA_WARP * 16 + lane / LANES;
#pragma unroll 4
    for (uint32_t i = 0; i < 16; i += AT_ONCE) {
        uint32_t row = (first + i) % CHUNK;
        int which = (first + i) / CHUNK;
        float4 x = make_float4(0, 0, 0, 0);
        const float *from = a.row<SIZE>(c.first + row) + (which == KEYS ? a.d.key_heads + key_head : key_head) * SIZE;
        __half *kept = a.keys<SIZE>(c.first + row, key_head, which);
        if (row < c.count) x = *(const float4 *)(from + element);
        float squares = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xFFFFFFFFu, squares, step);
        float scale = KEY_SCALE / sqrtf(squares + 1e-6f);
        uint2 parts[2];
        st_cuda_split_halves(x.x * scale, x.y * scale, parts[0].x, parts[1].x);
        st_cuda_split_halves(x.z * scale, x.w * scale, parts[0].y, parts[1].y);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            *(uint2 *)to.at(first + i, element, part) = parts[part];
            if (row < c.count) *(uint2 *)(kept + part * SIZE + element) = parts[part];
        }
    }
}

/* Dot products of all keys and queries with all keys: [STACKED][ROW]. */
template <int SIZE> __device__ void dot_products(st_cuda_half_rows<SIZE, STACKED> units, float *dots)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP;
    float sums[TILES][4] = {};
#pragma unroll 2
    for (uint32_t k = 0; k < SIZE; k += 16) {
        unsigned a[2][4];
        st_cuda_load_factor(a, units, 16 * warp, k);
        multiply(sums, a, units, k);
    }
    const float scale = 1 / (KEY_SCALE * KEY_SCALE);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            *(float2 *)&dots[(16 * warp + lane / 4 + 8 * j) * ROW + 8 * n + lane % 4 * 2] =
                make_float2(sums[n][2 * j] * scale, sums[n][2 * j + 1] * scale);
}

/* Calls f(i, decay from the lane's row to row i) for every row i, by all lanes; before its own row the decay is 0.
 * Returns the decays from the start of the chunk and to its end. `log_decay`: of the lane's row. */
template <class F> __device__ __forceinline__ float2 each_decay(float log_decay, F f)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
    float before = 0, sum = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < CHUNK; i++) {
        float one = __shfl_sync(0xFFFFFFFFu, log_decay, i);
        if (i <= lane) before += one;
        else sum += one;
        f(i, i < lane ? 0 : expf(sum));
    }
    return make_float2(expf(before), expf(sum));
}

__device__ __forceinline__ void store_element(__half *row, uint32_t column, float x)
{
    x *= MATRIX_SCALE;
    __half high = __float2half_rn(x);
    row[column] = high;
    row[CHUNK + column] = __float2half_rn(x - __half2float(high));
}

/* P, by one warp. */
__device__ void store_scores(const chunk_args &a, chunk_rows c, uint32_t head, const float *dots)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
    float log_decay = lane < c.count ? a.d.log_decay(c.first + lane, head, 0) : 0;
    each_decay(log_decay, [&](uint32_t i, float decay) {
        float score = dots[(CHUNK + i) * ROW + lane] * decay;
        if (i < c.count) store_element(a.matrices(c.first + i, head, SCORES), lane, score);
    });
}

/* (I + L)⁻¹·b and decays, by one warp: a lane has a column of the inverse. `lower`: [CHUNK][ROW], the warp's own. */
__device__ void store_solution(const chunk_args &a, chunk_rows c, uint32_t head, const float *dots, float *lower)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, row = c.first + lane;
    bool present = lane < c.count;
    float log_decay = present ? a.d.log_decay(row, head, 0) : 0, strength = present ? a.d.write_strength(row, head) : 0;
    float2 ends = each_decay(log_decay, [&](uint32_t i, float decay) {
        float of_row = __shfl_sync(0xFFFFFFFFu, strength, i);
        lower[i * ROW + lane] = of_row * dots[i * ROW + lane] * decay; /* the diagonal and above are not read */
    });
    if (present) *a.decays(row, head) = ends;
    __syncwarp();
    float column[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        float sums[4] = {};
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float4 l = *(const float4 *)&lower[i * ROW + m];
            sums[0] += l.x * column[m];
            if (m + 1 < i) sums[1] += l.y * column[m + 1];
            if (m + 2 < i) sums[2] += l.z * column[m + 2];
            if (m + 3 < i) sums[3] += l.w * column[m + 3];
        }
        column[i] = (i == (int)lane ? 1.0f : 0.0f) - ((sums[0] + sums[1]) + (sums[2] + sums[3]));
        if (i < (int)c.count) store_element(a.matrices(c.first + i, head, SOLVE), lane, column[i] * strength);
    }
    __syncwarp();
}

template <int SIZE> struct prepare_memory {
    enum {
        DOTS_BYTES = STACKED * ROW * (int)sizeof(float),
        LOWER_BYTES = PREPARE_WARPS * CHUNK * ROW * (int)sizeof(float),
        UNITS_BYTES = 2 * st_cuda_half_rows<SIZE, STACKED>::HALVES * (int)sizeof(__half),
        BYTES = DOTS_BYTES + (UNITS_BYTES > LOWER_BYTES ? UNITS_BYTES : LOWER_BYTES), /* one after the other */
    };
};

template <int SIZE> __global__ void __launch_bounds__(PREPARE_WARPS * ST_CUDA_WARP) prepare_chunks(chunk_args a)
{
    st_cuda_begin();
    ST_CUDA_DYNAMIC(uint4, shared);
    float *dots = (float *)shared, *lower = dots + STACKED * ROW;
    st_cuda_half_rows<SIZE, STACKED> units = {(__half *)lower};
    uint32_t key_head = blockIdx.x, warp = threadIdx.x / ST_CUDA_WARP, group = a.d.value_heads / a.d.key_heads;
    chunk_rows c;
    if (!find_chunk(a.d.rows, blockIdx.y, c)) return;
    load_units<SIZE>(a, c, key_head, units);
    __syncthreads();
    dot_products<SIZE>(units, dots);
    __syncthreads();
    for (uint32_t i = warp; i < 2 * group; i += PREPARE_WARPS) {
        uint32_t head = a.d.grouped ? key_head * group + i / 2 : i / 2 * a.d.key_heads + key_head;
        if (i % 2 == SOLVE) store_solution(a, c, head, dots, lower + warp * CHUNK * ROW);
        else store_scores(a, c, head, dots);
    }
}

/* --- the second kernel -------------------------------------------------------------------------------------------- */

/* Two warps for each head of a model's size: enough blocks for a large GPU, and two read a chunk's keys together. */
template <int SIZE> struct block_of {
    enum { WARPS = SIZE < 32 ? 1 : 2, THREADS = WARPS * ST_CUDA_WARP, COLUMNS = 16 * WARPS };
};

/* Starts copies of the chunk's rows, PIECES of 16 bytes each; zeros behind the last row. `to`: where the thread's piece
 * of the first row goes; rows follow each other by `step` bytes. */
template <int PIECES, int THREADS>
__device__ __forceinline__ void copy_rows(const void *rows, size_t stride, uint32_t count, void *to, uint32_t step)
{
    enum { ROWS = THREADS / PIECES };
    static_assert(THREADS % PIECES == 0, "a thread copies the same piece of some rows");
    uint32_t row = threadIdx.x / PIECES;
    const unsigned char *from = (const unsigned char *)rows + min(row, count - 1) * stride + threadIdx.x % PIECES * 16;
    unsigned char *at = (unsigned char *)to + row * step;
#pragma unroll 8
    for (; row < CHUNK; row += ROWS) {
        st_cuda_copy_or_zero<16>(at, from, row < count);
        at += ROWS * step;
        if (row + ROWS < count) from += ROWS * stride;
    }
}

/* … of four parts of WIDTH f16 each, to tiles that follow each other. */
template <int WIDTH, int THREADS>
__device__ __forceinline__ void copy_parts(const __half *rows, uint32_t heads, uint32_t count, __half *to)
{
    typedef st_cuda_half_rows<WIDTH, CHUNK> tile;
    enum { PART_PIECES = WIDTH / 8, PIECES = 4 * PART_PIECES, STEP = tile::STRIDE * (int)sizeof(__half) };
    uint32_t piece = threadIdx.x % PIECES;
    to += piece / PART_PIECES * tile::HALVES + piece % PART_PIECES * 8;
    copy_rows<PIECES, THREADS>(rows, (size_t)heads * 4 * WIDTH * sizeof(__half), count, to, STEP);
}

/* What a block reads of a chunk. */
template <int SIZE> struct chunk_tiles {
    typedef st_cuda_half_rows<SIZE, CHUNK> key_tile;
    typedef st_cuda_half_rows<CHUNK, CHUNK> matrix_tile;
    typedef block_of<SIZE> block;
    enum {
        KEY_HALVES = 2 * key_tile::HALVES, MATRIX_HALVES = 2 * matrix_tile::HALVES,
        HALVES_BYTES = 2 * (KEY_HALVES + MATRIX_HALVES) * (int)sizeof(__half),
        VALUE_ROW = block::COLUMNS + 4, /* floats from a row of values to the next: lanes read different banks */
        BYTES = HALVES_BYTES + CHUNK * (VALUE_ROW * (int)sizeof(float) + (int)sizeof(float2)),
    };
    unsigned char *memory;

    __device__ key_tile keys(int which) const
    {
        return {(__half *)memory + which * KEY_HALVES};
    }
    __device__ matrix_tile matrices(int which) const
    {
        return {(__half *)memory + 2 * KEY_HALVES + which * MATRIX_HALVES};
    }
    __device__ float2 *decays() const
    {
        return (float2 *)(memory + BYTES) - CHUNK;
    }

    __device__ float *values() const
    {
        return (float *)(memory + HALVES_BYTES);
    }

    /* Starts the copies of a chunk of a value head: the values of the block's columns, from `column` on. */
    __device__ void load(const chunk_args &a, chunk_rows c, uint32_t head, uint32_t column) const
    {
        enum { THREADS = block::THREADS, PIECES = block::COLUMNS / 4, STEP = VALUE_ROW * (int)sizeof(float) };
        size_t stride = (size_t)(2 * a.d.key_heads + a.d.value_heads) * SIZE * sizeof(float);
        const float *from = a.row<SIZE>(c.first) + (2 * a.d.key_heads + head) * SIZE + column;
        copy_parts<SIZE, THREADS>(a.keys<SIZE>(c.first, a.d.key_head(head), 0), a.d.key_heads, c.count, keys(0).data);
        copy_parts<CHUNK, THREADS>(a.matrices(c.first, head, 0), a.d.value_heads, c.count, matrices(0).data);
        copy_rows<PIECES, THREADS>(from, stride, c.count, values() + threadIdx.x % PIECES * 4, STEP);
        if (threadIdx.x < CHUNK) {
            uint32_t row = min(threadIdx.x, c.count - 1);
            st_cuda_copy_or_zero<8>(&decays()[threadIdx.x], a.decays(c.first + row, head), threadIdx.x < c.count);
        }
        st_cuda_copies_end();
    }
};

/* A lane's rows of a chunk in tile n of a transposed product: 8 n + 2 (lane % 4) and the next. Its columns: lane / 4 of
 * the warp's 16, and 8 further. */
__device__ __forceinline__ uint32_t first_row_of(int n)
{
    return 8 * n + threadIdx.x % 4 * 2;
}

template <int SIZE> struct column_state {
    float s[SIZE / 8][4]; /* keys as the rows of a chunk above */

    __device__ void load(const float *from)
    {
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = from[(size_t)(first_row_of(n) + e % 2) * SIZE + e / 2 * 8];
    }
    __device__ void store(float *to) const
    {
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) to[(size_t)(first_row_of(n) + e % 2) * SIZE + e / 2 * 8] = s[n][e];
    }

    /* K S and Q S, transposed and still scaled. */
    __device__ __forceinline__ row_scales multiply_keys(const chunk_tiles<SIZE> &t, float (*by_keys)[4],
                                                        float (*by_queries)[4]) const
    {
        row_scales scales = scales_of<SIZE / 8>(s);
#pragma unroll
        for (int k = 0; k < SIZE / 16; k++) {
            unsigned a[2][4];
            split(s + 2 * k, scales, a);
            multiply(by_keys, a, t.keys(KEYS), 16 * k);
            multiply(by_queries, a, t.keys(QUERIES), 16 * k);
        }
        return scales;
    }

    /* S ← decay·S + Kᵀ x */
    __device__ __forceinline__ void update(const chunk_tiles<SIZE> &t, const float (*x)[4], float decay)
    {
        uint32_t lane = threadIdx.x % ST_CUDA_WARP, row = lane / 8 % 2 * 8 + lane % 8, column = lane / 16 * 8;
        row_scales scales = scales_of<TILES>(x);
        unsigned a[CHUNK / 16][2][4];
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) split(x + 2 * k, scales, a[k]);
#pragma unroll
        for (int n = 0; n < SIZE / 8; n += 2) {
            float sums[2][4] = {};
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++) {
                unsigned f[2][4];
#pragma unroll
                for (int part = 0; part < 2; part++)
                    st_cuda_load_transposed(f[part], t.keys(KEYS).at(16 * k + row, 8 * n + column, part));
                st_cuda_mma_split(sums, a[k], f);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n + i][e] = decay * s[n + i][e] + sums[i][e] * (scales.down[e / 2] * (1 / KEY_SCALE));
        }
    }
};

/* Addresses go from tile to tile: all at once would not fit beside the state in registers. */
__device__ __forceinline__ void store_values(const float (*x)[4], size_t stride, uint32_t count, float *to)
{
    to += first_row_of(0) * stride;
#pragma unroll
    for (int n = 0; n < TILES; n++, to += 8 * stride)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (first_row_of(n) + e % 2 < count) to[e % 2 * stride + e / 2 * 8] = x[n][e];
}

/* One chunk of 16 columns. `column`: the lane's first of the block's; `out`: of the chunk's first row and that one. */
template <int SIZE>
__device__ __forceinline__ void run_chunk(const chunk_args &a, const chunk_tiles<SIZE> &t, uint32_t count,
                                          uint32_t column, float *out, column_state<SIZE> &state)
{
    const float scale = 1 / sqrtf((float)SIZE);
    float x[TILES][4], by_keys[TILES][4] = {}, by_queries[TILES][4] = {}, delta[TILES][4], sums[TILES][4];
    row_scales s = state.multiply_keys(t, by_keys, by_queries);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float decay = t.decays()[first_row_of(n) + e % 2].x * s.down[e / 2] * (1 / KEY_SCALE);
            float value = t.values()[(first_row_of(n) + e % 2) * t.VALUE_ROW + column + e / 2 * 8];
            x[n][e] = value - by_keys[n][e] * decay;
            by_queries[n][e] *= decay;
        }
    s = multiply_rows(delta, x, t.matrices(SOLVE));
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) delta[n][e] *= s.down[e / 2] * (1 / MATRIX_SCALE);
    s = multiply_rows(sums, delta, t.matrices(SCORES));
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[n][e] = scale * (by_queries[n][e] + sums[n][e] * (s.down[e / 2] * (1 / MATRIX_SCALE)));
            delta[n][e] *= t.decays()[first_row_of(n) + e % 2].y;
        }
    store_values(sums, (size_t)a.d.value_heads * SIZE, count, out);
    state.update(t, delta, t.decays()[count - 1].x);
}

template <int SIZE> __global__ void __launch_bounds__(block_of<SIZE>::THREADS) run_chunks(chunk_args a)
{
    st_cuda_begin();
    enum { COLUMNS = block_of<SIZE>::COLUMNS, BYTES = chunk_tiles<SIZE>::BYTES };
    ST_CUDA_DYNAMIC(uint4, shared);
    const st_step_conversation *found = find_prompt(a.d.rows, blockIdx.z);
    if (!found) return;
    const st_step_conversation &c = *found;
    uint32_t head = blockIdx.x, end = c.first_row + c.rows, lane = threadIdx.x % ST_CUDA_WARP;
    uint32_t columns = blockIdx.y * COLUMNS, column = threadIdx.x / ST_CUDA_WARP * 16 + lane / 4;
    float *own = a.d.state + c.slot * a.d.slot_floats + (size_t)head * SIZE * SIZE + columns + column;
    chunk_rows now = {c.first_row, min((uint32_t)CHUNK, c.rows)};
    unsigned char *memory = (unsigned char *)shared;
    chunk_tiles<SIZE>{memory}.load(a, now, head, columns);
    column_state<SIZE> state;
    state.load(own);
#pragma unroll 1
    for (uint32_t stage = 0; now.first < end; stage ^= 1) {
        chunk_tiles<SIZE> tiles = {memory + stage * BYTES}, next = {memory + (stage ^ 1) * BYTES};
        st_cuda_copies_wait<0>();
        __syncthreads(); /* the chunk is there, and nobody reads the one before */
        chunk_rows behind = {now.first + CHUNK, min((uint32_t)CHUNK, end - min(end, now.first + CHUNK))};
        if (behind.first < end) next.load(a, behind, head, columns);
        float *out = a.d.out + ((size_t)now.first * a.d.value_heads + head) * SIZE + columns + column;
        run_chunk<SIZE>(a, tiles, now.count, column, out, state);
        now = behind;
    }
    state.store(own);
}

template <int SIZE> int start(const st_cuda_call *call, const chunk_args &args)
{
    typedef block_of<SIZE> block;
    enum { PREPARE_BYTES = prepare_memory<SIZE>::BYTES, BYTES = 2 * chunk_tiles<SIZE>::BYTES };
    static_assert(PREPARE_BYTES <= 48 * 1024 && BYTES <= 99 * 1024, "shared memory of a block");
    uint32_t prompts = min(st_cuda_conversations_max(call), call->rows / ST_CUDA_DELTA_CHUNK_ROWS);
    dim3 chunks(args.d.key_heads, st_cuda_blocks(call->rows, CHUNK) + prompts);
    dim3 columns(args.d.value_heads, SIZE / block::COLUMNS, prompts);
    int code = (int)cudaFuncSetAttribute(run_chunks<SIZE>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (code != cudaSuccess) return code;
    code = st_cuda_start<prepare_chunks<SIZE>>(call, chunks, PREPARE_WARPS * ST_CUDA_WARP, PREPARE_BYTES, args);
    if (code != cudaSuccess) return code;
    return st_cuda_start<run_chunks<SIZE>>(call, columns, block::THREADS, BYTES, args);
}

} // namespace

extern "C" int st_cuda_deltanet_chunks(const st_cuda_call *call)
{
    st_cuda_delta_layout l = st_cuda_delta_lay_out(call->bound->op, call->rows);
    unsigned char *scratch = call->scratch;
    chunk_args args = {st_cuda_delta_args_of(call), (__half *)(scratch + l.keys), (__half *)(scratch + l.matrices),
                       (float2 *)(scratch + l.decays)};
    switch (args.d.size) {
    case 16: return start<16>(call, args);
    case 64: return start<64>(call, args);
    case 128: return start<128>(call, args);
    default: return (int)cudaErrorInvalidValue;
    }
}
