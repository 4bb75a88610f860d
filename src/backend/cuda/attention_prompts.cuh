/* Attention of prompts: which rows of a conversation a block has, which positions they see, and their output. A warp has
 * 16 rows, as attention_mma.cuh has them. Knows nothing of tiles and shared memory. */
#ifndef ST_CUDA_ATTENTION_PROMPTS_CUH
#define ST_CUDA_ATTENTION_PROMPTS_CUH

#include "backend/cuda/attention_mma.cuh"

namespace {

/* ROWS rows at most, of a conversation that has enough of them. */
template <int ROWS> struct block_rows {
    uint32_t conversation, first, count, position;

    static __device__ uint32_t tiles_of(const st_step_conversation &c)
    {
        return c.rows < ST_CUDA_FLASH_ROWS_MIN ? 0 : (c.rows + ROWS - 1) / ROWS;
    }
    /* Tiles of rows with the longest contexts come first. Returns false if the block has none. */
    __device__ bool find(const st_cuda_rows &rows)
    {
        uint32_t all = 0, conversations = rows.conversation_count();
        for (uint32_t i = 0; i < conversations; i++) all += tiles_of(rows.conversation(i));
        if (blockIdx.y >= all) return false;
        uint32_t tile = all - 1 - blockIdx.y;
        for (conversation = 0; tile >= tiles_of(rows.conversation(conversation)); conversation++)
            tile -= tiles_of(rows.conversation(conversation));
        const st_step_conversation &c = rows.conversation(conversation);
        first = c.first_row + tile * ROWS;
        count = min((uint32_t)ROWS, c.rows - tile * ROWS);
        position = c.position + tile * ROWS;
        return true;
    }
    __device__ uint32_t end() const
    {
        return position + count;
    }
};

/* The positions of a warp's 16 rows: the range that they see together, and the ranges of the lane's two rows. */
struct warp_rows {
    uint32_t from, last;
    uint2 sees[2]; /* first, last */

    /* `row`: the warp's first of the block's rows; past the end: as the last one, not stored. */
    template <int ROWS> __device__ void find(const st_cuda_attention_args &a, const block_rows<ROWS> &b, uint32_t row)
    {
        uint32_t own = b.position + min(row, b.count - 1);
        from = a.first(own), last = min(own + 15, b.end() - 1);
        for (int j = 0; j < 2; j++) {
            uint32_t position = min(b.position + row + threadIdx.x % ST_CUDA_WARP / 4 + 8 * j, b.end() - 1);
            sees[j] = make_uint2(a.first(position), position);
        }
    }
    __device__ bool sees_tile(uint32_t base, uint32_t positions) const
    {
        return base <= last && base + positions > from;
    }
};

/* Writes WIDTH elements of the output from `first` on, of the warp's rows from `row` on. */
template <class F, int HEAD, int ROWS, int WIDTH>
__device__ __forceinline__ void write_rows(const st_cuda_attention_args &a, const block_rows<ROWS> &b, uint32_t head,
                                           uint32_t row, uint32_t first, const running<WIDTH> &r)
{
    uint32_t lane = threadIdx.x % ST_CUDA_WARP;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t own = row + lane / 4 + 8 * j;
        float factor = F::SHRINK / (total_of(r, j) + sink_weight(r, j, a.sink(head)));
        if (own >= b.count) continue;
        float *out = a.out + ((size_t)(b.first + own) * a.heads + head) * HEAD + first + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
            *(float2 *)(out + 8 * n) = make_float2(r.out[n][2 * j] * factor, r.out[n][2 * j + 1] * factor);
    }
}

/* Launches a kernel, KERNEL, of blocks with ROWS rows of a head. Returns a cudaError_t. */
template <auto KERNEL, int ROWS, int THREADS, int BYTES>
int start_prompts(const st_cuda_call *call, const st_cuda_attention_args &args)
{
    static_assert(BYTES <= 99 * 1024, "shared memory of a block");
    uint32_t tiles = st_cuda_blocks(call->rows, ROWS) + call->rows / ST_CUDA_FLASH_ROWS_MIN;
    int code = (int)cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    return code == cudaSuccess ? st_cuda_start<KERNEL>(call, dim3(args.heads, tiles), THREADS, BYTES, args) : code;
}

} // namespace

/* attention_wide.cu: heads of 256 and 512. Returns a cudaError_t. */
int st_cuda_attention_wide(const st_cuda_call *call, const st_cuda_attention_args &args);

#endif
