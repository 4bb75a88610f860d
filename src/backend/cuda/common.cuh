/* Shared by the kernels: the step block and rows of the KV cache, warp reductions, and element-wise launches with one
 * thread per element. */
#ifndef ST_CUDA_COMMON_CUH
#define ST_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include "backend/cuda/call.h"
#include "backend/cuda/machine.cuh"

/* --- the step block: backend.h's accessors for device code ---------------------------------------------------------- */

struct st_cuda_rows {
    const st_step *step; /* device memory */
    const uint32_t *counted; /* which of its counts */

    __device__ uint32_t count() const
    {
        return *counted;
    }
    /* Whether a row may be read: of the first one the loads do not wait for the count, and rows past it were never written. */
    __device__ bool loads(uint32_t row) const
    {
        return row == 0 || row < count();
    }
    __device__ const st_step_row &at(uint32_t row) const
    {
        return ((const st_step_row *)(step->values + step->rows_at))[row];
    }
    __device__ uint32_t out_row(uint32_t row) const
    {
        return step->values[row];
    }
    __device__ uint32_t conversation_count() const
    {
        return step->conversation_count;
    }
    __device__ const st_step_conversation &conversation(uint32_t index) const
    {
        return ((const st_step_conversation *)(step->values + step->out_max))[index];
    }
    __device__ const uint32_t *choices(uint32_t row) const
    {
        return step->values + step->choices_at + (size_t)row * step->choice_words;
    }
    __device__ const uint32_t *tables() const
    {
        return step->values + step->tables_at;
    }
};

static inline st_cuda_rows st_cuda_rows_of(const st_cuda_call *call)
{
    return {call->step, call->kind == ST_ROWS_ALL ? &call->step->count : &call->step->out_count};
}

/* At most this many conversations have rows in the step, of which the host knows only the number of rows. */
static inline uint32_t st_cuda_conversations_max(const st_cuda_call *call)
{
    uint32_t slots = call->bound->state.slots;
    return call->rows < slots ? call->rows : slots;
}

/* The keys and values of one conversation in a layer. */
struct st_cuda_kv_rows {
    const st_kv_view &kv;
    const uint32_t *table; /* of the conversation's pages */
    uint32_t first_page;

    __device__ st_cuda_kv_rows(const st_kv_view &view, const st_cuda_rows &rows, uint32_t conversation) : kv(view)
    {
        const st_step_pages &pages = rows.conversation(conversation).pages[view.pool];
        table = rows.tables() + pages.table;
        first_page = pages.first_page;
    }
    __device__ size_t page(uint32_t position) const
    {
        return table[(position >> kv.page_shift) - first_page];
    }
    __device__ size_t row(uint32_t position) const
    {
        return position & ((1u << kv.page_shift) - 1);
    }
    __device__ unsigned char *key(uint32_t position) const
    {
        return kv.keys + page(position) * kv.key_page_bytes + row(position) * kv.key_row_bytes;
    }
    __device__ unsigned char *value(uint32_t position) const
    {
        return kv.values + page(position) * kv.value_page_bytes + row(position) * kv.value_row_bytes;
    }
};

static inline float *st_cuda_floats(st_bound_value value)
{
    return (float *)value.data;
}

/* --- weight vectors: F32, F16 or BF16 ----------------------------------------------------------------------------- */

struct st_cuda_vector {
    const void *data; /* NULL: absent */
    uint32_t type;
    uint32_t count;

    __device__ float at(size_t i) const
    {
        if (type == ST_TYPE_F32) return ((const float *)data)[i];
        if (type == ST_TYPE_F16) return __half2float(((const __half *)data)[i]);
        return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    }
    /* Elements i to i + 3; i is a multiple of 4. */
    __device__ float4 four(size_t i) const
    {
        if (type == ST_TYPE_F32) return *(const float4 *)((const float *)data + i);
        uint2 bits = *(const uint2 *)((const uint16_t *)data + i);
        if (type != ST_TYPE_F16)
            return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u), __uint_as_float(bits.y << 16),
                               __uint_as_float(bits.y & 0xFFFF0000u));
        float2 low = __half22float2(*(const __half2 *)&bits.x), high = __half22float2(*(const __half2 *)&bits.y);
        return make_float4(low.x, low.y, high.x, high.y);
    }
};

static inline st_cuda_vector st_cuda_vector_of(const st_bound_weight *w)
{
    return {w->data, w->type, (uint32_t)w->ne[0]};
}

/* --- divisions ----------------------------------------------------------------------------------------------------- */

/* A divisor that is the same for a launch. n × value < 2³². */
struct st_cuda_divisor {
    uint32_t value, factor; /* factor: 2³² / value, rounded up; 0: value is 1 */

    __device__ uint32_t quotient(uint32_t n) const
    {
        return factor ? __umulhi(n, factor) : n;
    }
};

static inline st_cuda_divisor st_cuda_divisor_of(uint32_t value)
{
    return {value, value > 1 ? UINT32_MAX / value + 1 : 0};
}

/* n / d of numbers below 2²⁰: half a unit is more than all roundings. */
static __device__ __forceinline__ uint32_t st_cuda_small_quotient(uint32_t n, uint32_t d)
{
    return (uint32_t)(((float)n + 0.5f) * st_cuda_reciprocal((float)d));
}

/* --- arithmetic ---------------------------------------------------------------------------------------------------- */

enum { ST_CUDA_WARP = 32 };

static __device__ __forceinline__ float st_cuda_warp_sum(float x)
{
    for (int step = ST_CUDA_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

static __device__ __forceinline__ float st_cuda_warp_max(float x)
{
    for (int step = ST_CUDA_WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
    return x;
}

/* Half of a reduction of two sums at once: the lane and the one `step` away each get one of them, added over both lanes, x that of the
 * lower lane, y the other. */
static __device__ __forceinline__ float st_cuda_exchange(float x, float y, uint32_t step)
{
    bool upper = threadIdx.x & step;
    return (upper ? y : x) + __shfl_xor_sync(0xFFFFFFFFu, upper ? x : y, step);
}

/* Of a magnitude of up to 16: within 1e-6 of the exponential. */
static __device__ __forceinline__ float st_cuda_exp(float x)
{
    return st_cuda_exp2(x * 1.4426950408889634f); /* log2 e */
}

static __device__ __forceinline__ float st_cuda_sigmoid(float x)
{
    return st_cuda_reciprocal(1.0f + st_cuda_exp(-x));
}

static __device__ __forceinline__ float st_cuda_silu(float x)
{
    return x * st_cuda_sigmoid(x);
}

static __device__ __forceinline__ float st_cuda_gelu(float x)
{
    const float twice_root = 1.595769121605731f; /* 2 √(2/π): (1 + tanh x) / 2 = sigmoid(2 x) */
    return x * st_cuda_sigmoid(twice_root * (x + 0.044715f * x * x * x));
}

/* activation(gate) × up */
static __device__ __forceinline__ float st_cuda_gated(st_activation activation, float gate, float up)
{
    float g = fminf(gate, 7.0f), u = fminf(fmaxf(up, -7.0f), 7.0f), positive = fmaxf(gate, 0.0f);
    switch (activation) {
    case ST_ACT_SILU: return st_cuda_silu(gate) * up;
    case ST_ACT_GELU: return st_cuda_gelu(gate) * up;
    case ST_ACT_SWIGLU_CLAMPED: return (u + 1.0f) * g * st_cuda_sigmoid(1.702f * g);
    default: return positive * positive * up; /* ST_ACT_RELU_SQUARED */
    }
}

static __device__ __forceinline__ float st_cuda_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* The sum over the block, which has WARPS warps. Between two calls the block synchronises. */
template <int WARPS> static __device__ float st_cuda_block_sum(float x)
{
    __shared__ float partial[WARPS];
    x = st_cuda_warp_sum(x);
    if (WARPS == 1) return x;
    if (threadIdx.x % ST_CUDA_WARP == 0) partial[threadIdx.x / ST_CUDA_WARP] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < WARPS; i++) x += partial[i];
    return x;
}

/* --- launches -------------------------------------------------------------------------------------------------------- */

/* Programmatic dependent launch (compute capability 9.0): a kernel starts while the one before it in the stream still runs,
 * as soon as all blocks of that one have called st_cuda_release or ended. st_cuda_await returns when the kernel before has
 * ended and its writes are visible. The rule that makes this safe:
 *
 * - Every thread of every kernel calls st_cuda_await, unconditionally and before any return. The end of a kernel then implies
 *   the end of all kernels before it, however early it started: values and scratch may be reused two kernels later.
 * - Before st_cuda_await a kernel writes nothing, and reads only its parameters, weights that never change, and the step
 *   block: no values, no KV cache, no expert slots. The step block is copied to the GPU before the first kernel of a step,
 *   which does not start early: only kernels behind kernels do. So is recurrent state, which one kernel of a step writes:
 *   that one may read it. Weights that are streamed from RAM do change: the executor
 *   launches them with more than ST_EARLY_ROWS_MAX rows alone, and no kernel of so many rows starts early.
 *
 * A kernel that calls st_cuda_await before st_cuda_release lets the next one read, before its own wait, what was complete before
 * both: experts_shared.cu alone does so.
 *
 * st_cuda_begin, the first statement of most kernels, is both. tests/e2e/kernels.sh checks that every kernel has it, or calls
 * st_cuda_await at the outermost level before its first return. */
static __device__ __forceinline__ void st_cuda_begin(void)
{
    st_cuda_release();
    st_cuda_await();
}

/* A list of all kernels that can be launched: load.cu loads them before free memory is measured. */
struct st_cuda_entry {
    const void *kernel;
    const st_cuda_entry *next;
};

const st_cuda_entry *st_cuda_list(const st_cuda_entry *entry); /* adds the entry; returns the old head of the list */

template <auto KERNEL> struct st_cuda_listed {
    static const st_cuda_entry entry;
};
template <auto KERNEL> const st_cuda_entry st_cuda_listed<KERNEL>::entry = {(const void *)KERNEL, st_cuda_list(&entry)};

/* Launches a kernel of an operation. Returns a cudaError_t. With more rows, whose products are tiles, a kernel does not start early:
 * its blocks would wait on processors that could take more of those before them (64 rows of a product: 134 µs instead of 119). */
template <auto KERNEL, class... Args>
static int st_cuda_start(const st_cuda_call *call, dim3 blocks, dim3 threads, size_t shared_bytes, const Args &...args)
{
    enum { EARLY_ROWS = 16 };
    (void)&st_cuda_listed<KERNEL>::entry;
    static_assert((int)EARLY_ROWS <= (int)ST_EARLY_ROWS_MAX, "what backend.h states of launches of more rows");
    return st_cuda_launch<KERNEL>(call->stream, call->rows <= EARLY_ROWS, blocks, threads, shared_bytes, args...);
}

/* … that starts early with up to ST_EARLY_ROWS_MAX rows: one of many short blocks, or of few, which wait on no processor for long. */
template <auto KERNEL, class... Args>
static int st_cuda_start_early(const st_cuda_call *call, dim3 blocks, dim3 threads, size_t shared_bytes, const Args &...args)
{
    (void)&st_cuda_listed<KERNEL>::entry;
    return st_cuda_launch<KERNEL>(call->stream, call->rows <= ST_EARLY_ROWS_MAX, blocks, threads, shared_bytes, args...);
}

/* … of no operation. */
template <auto KERNEL, class... Args>
static int st_cuda_start_alone(void *stream, dim3 blocks, dim3 threads, size_t shared_bytes, const Args &...args)
{
    (void)&st_cuda_listed<KERNEL>::entry;
    return st_cuda_launch<KERNEL>(stream, false, blocks, threads, shared_bytes, args...);
}

static inline uint32_t st_cuda_blocks(size_t count, uint32_t each)
{
    return (uint32_t)((count + each - 1) / each);
}

/* Calls f(rows, row, column) for every element; rows have `width` columns. */
template <class F> static __global__ void st_cuda_each_kernel(st_cuda_rows rows, uint32_t width, F f)
{
    st_cuda_begin();
    uint32_t row = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column < width && row < rows.count()) f(rows, row, column);
}

template <class F> static int st_cuda_each(const st_cuda_call *call, uint32_t width, F f)
{
    enum { THREADS = 256 };
    if (call->rows == 0 || width == 0) return (int)cudaSuccess;
    uint32_t threads = min(st_cuda_blocks(width, ST_CUDA_WARP) * ST_CUDA_WARP, (uint32_t)THREADS);
    dim3 blocks(call->rows, st_cuda_blocks(width, threads));
    return st_cuda_start<st_cuda_each_kernel<F>>(call, blocks, threads, 0, st_cuda_rows_of(call), width, f);
}

#endif
