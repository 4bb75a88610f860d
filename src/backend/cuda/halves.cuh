/* Rows of f16 activations for tensor cores. A row has a scale, a power of two, so that none of its elements overflows. The
 * layout is that of the products' fragments: of each group of 256 elements, lane t of four has the 64 from 64 t on, in
 * pieces of 32 and chunks of 8 elements (16 bytes); eight rows are interleaved by chunk: [group][piece][chunk][row][lane]. Of
 * each four elements the second and the third are swapped. */
#ifndef ST_CUDA_HALVES_CUH
#define ST_CUDA_HALVES_CUH

#include "backend/cuda/acts.cuh"
#include "backend/cuda/mma.cuh"

enum { ST_CUDA_PIECE_CHUNKS = 128, ST_CUDA_CHUNK_STRIDE = 32 }; /* of eight rows, in units of 16 bytes: from one to the next */

struct st_cuda_halves {
    unsigned char *memory;
    uint32_t width, rows; /* rows: the room */

    __host__ __device__ uint32_t pieces() const
    {
        return (width + ST_CUDA_HALF_GROUP - 1) / ST_CUDA_HALF_GROUP * 2;
    }
    /* Where a row begins, in chunks. */
    __device__ size_t at(uint32_t row) const
    {
        return (size_t)(row / ST_CUDA_HALF_ROWS) * pieces() * ST_CUDA_PIECE_CHUNKS + row % ST_CUDA_HALF_ROWS * 4;
    }
    __host__ __device__ uint4 *chunks() const
    {
        return (uint4 *)memory;
    }
    __host__ __device__ float *scales() const
    {
        size_t groups = (rows + ST_CUDA_HALF_ROWS - 1) / ST_CUDA_HALF_ROWS;
        return (float *)(memory + groups * pieces() * ST_CUDA_PIECE_CHUNKS * sizeof(uint4));
    }
};

/* The same for matmul_cores.cu: lane t has 8 of each 32 neighbouring elements, from 8 t on. [group][chunk][row][lane]: eight chunks of
 * elements, then one with the totals of each 32 of them as sums of two f16. Lane t has the high parts of the totals t and t + 4, twice,
 * then the low parts, twice. */
enum { ST_CUDA_BLOCK_CHUNKS = 9 };
#define ST_CUDA_TOTAL_SHRINK (1 / 32.0f) /* totals are multiplied by this, so that none overflows */

struct st_cuda_block_halves {
    unsigned char *memory;
    uint32_t width, rows;

    /* Chunks of eight rows. */
    __host__ __device__ uint32_t chunks() const
    {
        return (width + ST_CUDA_HALF_GROUP - 1) / ST_CUDA_HALF_GROUP * ST_CUDA_BLOCK_CHUNKS * ST_CUDA_CHUNK_STRIDE;
    }
    /* The chunks of eight rows, of which `row` is one. */
    __device__ uint4 *of(uint32_t row) const
    {
        return (uint4 *)memory + (size_t)(row / ST_CUDA_HALF_ROWS) * chunks();
    }
    __device__ float *scales() const
    {
        return (float *)of(rows + ST_CUDA_HALF_ROWS - 1);
    }
    /* Stores elements i to i + 3 of a row and, with the lanes beside this one, the total of the 32 that they belong to. */
    __device__ __forceinline__ void store(uint32_t row, uint32_t i, uint2 four) const
    {
        float2 even = st_cuda_unpack(four.x), odd = st_cuda_unpack(four.y);
        float total = (even.x + even.y + (odd.x + odd.y)) * ST_CUDA_TOTAL_SHRINK;
        for (int step = 1; step < 8; step *= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, step);
        uint32_t part = i % 256 / 32;
        uint4 *to = of(row) + i / 256 * ST_CUDA_BLOCK_CHUNKS * ST_CUDA_CHUNK_STRIDE + row % ST_CUDA_HALF_ROWS * 4;
        ((uint2 *)(to + part * ST_CUDA_CHUNK_STRIDE + i % 32 / 8))[i / 4 % 2] = four;
        __half *totals = (__half *)(to + 8 * ST_CUDA_CHUNK_STRIDE + part % 4) + part / 4, high = __float2half_rn(total);
        __half low = __float2half_rn(total - __half2float(high));
        if (i % 32 == 0) totals[0] = totals[2] = high, totals[4] = totals[6] = low;
    }
};

/* How an operation converts its output: a block per row, WARPS warps, each thread four elements at a time from 4 × its number
 * on. Rows up to the next multiple of eight are zeros. */
struct st_cuda_converter {
    st_cuda_halves halves; /* memory NULL: the output is not converted */
    uint32_t *counters;    /* of split products: set to 0. NULL: none */
    bool by_block;         /* the layout of st_cuda_block_halves */

    /* The number of rows that blocks are needed for. */
    __host__ __device__ static uint32_t padded(uint32_t rows)
    {
        return (rows + ST_CUDA_HALF_ROWS - 1) / ST_CUDA_HALF_ROWS * ST_CUDA_HALF_ROWS;
    }
    __device__ void begin() const
    {
        for (uint32_t i = threadIdx.x; counters && blockIdx.x == 0 && i < ST_CUDA_SPLIT_COUNTERS; i += blockDim.x) counters[i] = 0;
    }
    /* `values`: the row; each thread reads elements that it wrote. NULL: zeros. `top`: the largest magnitude among the thread's
     * elements, or NaN. A row with NaN or an infinity has NaN as its scale. */
    template <int WARPS> __device__ void finish(uint32_t row, const float *values, float top) const;
    __host__ __device__ st_cuda_block_halves blocks() const
    {
        return {halves.memory, halves.width, halves.rows};
    }
};

/* The converter of an operation's output to scratch, for the product that follows. */
static inline st_cuda_converter st_cuda_converter_of(const st_cuda_call *call, uint32_t width)
{
    st_cuda_converter c = {{NULL, width, call->rows}, NULL, call->cores && call->rows <= ST_CUDA_CORES_ROWS};
    if (!call->quantises || st_cuda_writes_int8(call)) return c;
    c.halves.memory = call->scratch;
    if (!c.by_block) c.counters = (uint32_t *)(call->scratch + st_cuda_halves_bytes(width, call->rows));
    return c;
}

static __device__ __forceinline__ float st_cuda_power_of_two(int exponent)
{
    return __uint_as_float((unsigned)(exponent + 127) << 23);
}

/* NaN if one is. */
static __device__ __forceinline__ float st_cuda_top_of(float top, float4 x)
{
    return st_cuda_max_or_nan(top, st_cuda_max_or_nan(st_cuda_max_or_nan(fabsf(x.x), fabsf(x.y)), st_cuda_max_or_nan(fabsf(x.z), fabsf(x.w))));
}

template <int WARPS> __device__ void st_cuda_converter::finish(uint32_t row, const float *values, float top) const
{
    __shared__ float tops[WARPS];
    for (int step = ST_CUDA_WARP / 2; step > 0; step /= 2) top = st_cuda_max_or_nan(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
    if (threadIdx.x % ST_CUDA_WARP == 0) tops[threadIdx.x / ST_CUDA_WARP] = top;
    __syncthreads();
    top = tops[0];
    for (int i = 1; i < WARPS; i++) top = st_cuda_max_or_nan(top, tops[i]);
    bool finite = top <= 3.4028235e38f;
    int exponent = max(-100, (int)(__float_as_uint(top) >> 23) - 127); /* the row × 2^(14 − exponent) is below 2^15 */
    float factor = st_cuda_power_of_two(finite ? 14 - exponent : 0);
    float *scales = by_block ? blocks().scales() : halves.scales();
    if (threadIdx.x == 0) scales[row] = finite ? st_cuda_power_of_two(exponent - 14) : NAN;
    uint2 *out = (uint2 *)(halves.chunks() + halves.at(row));
    for (uint32_t i = 4 * threadIdx.x; i < halves.pieces() * 128; i += 4 * WARPS * ST_CUDA_WARP) {
        uint32_t piece = i / 256 * 2 + i % 64 / 32, chunk = i % 32 / 8, lane = i % 256 / 64;
        uint2 x = {};
        if (i < halves.width && values && finite) {
            float4 v = *(const float4 *)(values + i);
            x = make_uint2(st_cuda_pack(v.x * factor, v.z * factor), st_cuda_pack(v.y * factor, v.w * factor));
        }
        if (by_block) blocks().store(row, i, x); /* by whole warps: a group of 256 elements is two */
        else out[(piece * ST_CUDA_PIECE_CHUNKS + chunk * ST_CUDA_CHUNK_STRIDE + lane) * 2 + i / 4 % 2] = x;
    }
}

struct st_cuda_convert_args {
    st_cuda_converter to;
    st_cuda_rows rows;
    const uint32_t *count; /* of rows; NULL: those of the step */
    const float *in;
};

/* halves.cu: converts the rows. Returns a cudaError_t. */
int st_cuda_start_convert(const st_cuda_call *call, const st_cuda_convert_args &args);

/* As st_cuda_each_quantised_kernel, for rows that are converted. */
template <int WARPS, class F>
static __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) st_cuda_each_converted_kernel(st_cuda_rows rows, st_cuda_converter to,
                                                                                            st_cuda_pairs<F> pairs)
{
    st_cuda_begin();
    uint32_t row = blockIdx.x, width = to.halves.width;
    bool present = row < rows.count();
    to.begin();
    if (row >= st_cuda_converter::padded(rows.count())) return;
    float top = 0;
    for (uint32_t i = 4 * threadIdx.x; i < width && present; i += 4 * WARPS * ST_CUDA_WARP) {
        float4 x = pairs.four(row, i);
        pairs.store(row, i, x);
        top = st_cuda_top_of(top, x);
    }
    to.finish<WARPS>(row, present ? pairs.out + (size_t)row * width : NULL, top);
}

/* out = f(in[0], in[1]) by element; the output may be quantised or converted. */
template <class F> static int st_cuda_each_for_product(const st_cuda_call *call, const F &f)
{
    enum { WARPS = 8 };
    st_cuda_pairs<F> pairs = st_cuda_pairs_of(call, f);
    st_cuda_converter to = st_cuda_converter_of(call, pairs.width);
    if (!to.halves.memory) return st_cuda_each_quantised(call, pairs);
    return st_cuda_start<st_cuda_each_converted_kernel<WARPS, F>>(call, st_cuda_converter::padded(call->rows), WARPS * ST_CUDA_WARP, 0,
                                                                  st_cuda_rows_of(call), to, pairs);
}

#endif
