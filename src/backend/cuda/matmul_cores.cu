/* out = w0 · in0 (+ w1) of Q4_K for up to 8 rows, such as conversations that decode together: int8 products on tensor cores. The sums
 * over 32 elements are integers; scales and minima multiply them in float32, so the result is that of matmul_int8.cu. A warp has 16
 * columns of all rows and every SPLITS-th block of 256 elements; the SPLITS warps of the same columns add up in shared memory.
 * Of the 32 elements of a product, lane t of four has those from 8 t on. */
#include "backend/cuda/gemv.cuh"
#include "backend/cuda/mma.cuh"

namespace {

enum { MANY_COLUMNS = 8192, WARPS = 16, SPAN = 16 }; /* columns of a warp */

/* What a lane has of a block of 256 elements of two columns. */
struct raw_blocks {
    unsigned qs[2][4][2], head[2][4]; /* [column][quarter] */

    __device__ __forceinline__ void load(const unsigned char *const *columns, uint32_t block, uint32_t t)
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const st_block_q4_k *b = (const st_block_q4_k *)columns[c] + block;
#pragma unroll
            for (int q = 0; q < 4; q++) st_cuda_read_8(qs[c][q], b->qs + 32 * q + 8 * t);
            st_cuda_read_16(head[c], b);
        }
    }
};

/* The activations of a step's rows; past the end: the last row, not stored. */
struct row_offsets {
    uint32_t bytes, blocks[2];

    __device__ __forceinline__ row_offsets(const st_cuda_acts &acts, uint32_t count, uint32_t g, uint32_t t)
    {
        uint32_t stride = (uint32_t)st_cuda_acts_row_bytes(acts.width);
        bytes = min(g, count - 1) * stride + 8 * t;
#pragma unroll
        for (int e = 0; e < 2; e++) blocks[e] = min(2 * t + e, count - 1) * stride + acts.width;
    }
};

/* Adds the products of a quarter of a block: 2 × 32 elements. `unit` has the scales of its two halves for a column. */
__device__ __forceinline__ void add_quarter(const raw_blocks &raw, int q, const unsigned char *acts, const row_offsets &rows,
                                            uint32_t block, float *sums)
{
    st_cuda_unit scales[2];
#pragma unroll
    for (int c = 0; c < 2; c++) st_cuda_scales_6(raw.head[c], q, scales[c]);
    unsigned a[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        unsigned word = raw.qs[i % 2][q][i / 2];
        a[0][i] = word & 0x0F0F0F0Fu;
        a[1][i] = word >> 4 & 0x0F0F0F0Fu;
    }
    int4 x[2]; /* of two rows: scale and total of both halves */
#pragma unroll
    for (int e = 0; e < 2; e++) x[e] = *(const int4 *)(acts + rows.blocks[e] + (block * 8 + 2 * q) * sizeof(st_cuda_act_block));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int dots[4];
        st_cuda_mma_int8(dots, a[half], *(const uint2 *)(acts + rows.bytes + block * 256 + 64 * q + 32 * half));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float scale = __int_as_float(half ? x[i % 2].z : x[i % 2].x);
            float total = (float)__dp2a_lo(half ? x[i % 2].w : x[i % 2].y, 0x0101, 0);
            sums[i] += scale * (scales[i / 2].d[half] * (float)dots[i] + scales[i / 2].m[half] * total);
        }
    }
}

template <int SPLITS> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP, 1) multiply_rows(st_cuda_gemv_args a)
{
    enum { GROUPS = WARPS / SPLITS };
    ST_CUDA_DYNAMIC(float, parts); /* [SPLITS, GROUPS, 4, lane] */
    st_cuda_release();
    const st_cuda_gemv_product &p = a.own();
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP, group = warp % GROUPS, split = warp / GROUPS;
    uint32_t g = lane / 4, t = lane % 4, first = (blockIdx.x - p.first_block) * SPAN * GROUPS + SPAN * group + g;
    uint32_t blocks = a.acts.width / 256;
    const unsigned char *columns[2];
#pragma unroll
    for (int c = 0; c < 2; c++) columns[c] = p.weights + (size_t)min(first + 8 * c, p.columns - 1) * p.row_bytes;
    raw_blocks now, next;
    next.load(columns, min(split, blocks - 1), t);
    st_cuda_await();
    uint32_t count = a.rows.count();
    if (count == 0) return;
    row_offsets rows(a.acts, count, g, t);
    float sums[4] = {};
    for (uint32_t block = split; block < blocks; block += SPLITS) {
        now = next;
        next.load(columns, min(block + SPLITS, blocks - 1), t);
#pragma unroll
        for (int q = 0; q < 4; q++) add_quarter(now, q, a.acts.memory, rows, block, sums);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) parts[((split * GROUPS + group) * 4 + i) * ST_CUDA_WARP + lane] = sums[i];
    __syncthreads();
    for (uint32_t i = split; i < 4; i += SPLITS) {
        uint32_t row = 2 * t + i % 2, column = first + i / 2 * 8;
        float sum = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) sum += parts[((s * GROUPS + group) * 4 + i) * ST_CUDA_WARP + lane];
        if (row < count && column < p.columns)
            p.out[(size_t)row * p.columns + column] = sum + (p.bias.data ? p.bias.at(column) : 0);
    }
}

struct launch {
    const st_cuda_call *call;

    template <int SPLITS> int start() const
    {
        enum { BYTES = WARPS * 4 * ST_CUDA_WARP * (int)sizeof(float), COLUMNS = SPAN * WARPS / SPLITS };
        uint32_t blocks;
        st_cuda_gemv_args args = st_cuda_gemv_args_of(call, COLUMNS, blocks);
        return st_cuda_start<multiply_rows<SPLITS>>(call, blocks, WARPS * ST_CUDA_WARP, BYTES, args);
    }
};

} // namespace

extern "C" int st_cuda_matmul_cores(const st_cuda_call *call)
{
    static_assert(ST_CUDA_CORES_ROWS == 8, "a fragment has eight rows");
    const st_bound_op *b = call->bound;
    int code = cudaSuccess;
    if (!call->ready) code = st_cuda_quantise_rows(call, st_cuda_floats(b->in[0]), (uint32_t)b->weight[0].ne[0], call->scratch);
    if (code != cudaSuccess) return code;
    launch l = {call};
    return st_cuda_gemv_columns(call) < MANY_COLUMNS ? l.start<8>() : l.start<4>();
}
