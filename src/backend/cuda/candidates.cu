/* The best tokens of a row of logits. A key of 64 bits holds a logit and its token, so that all keys differ, and ties fall to
 * the lower id whatever the order of the sort. No atomics: the result does not depend on the order of blocks. */
#include "backend/cuda/common.cuh"

namespace {

enum { THREADS = 1024, KEPT = ST_CANDIDATES_MAX };

/* Of the raw logits of a chunk, or of a row. */
struct sums {
    float highest, sum; /* Σ exp(logit − highest) */
    uint32_t broken, unused;
};
static_assert(sizeof(sums) == ST_CUDA_CHUNK_SUMS_BYTES, "call.h states the scratch");

struct candidates_args {
    st_cuda_rows rows;
    const float *logits;             /* [rows, vocab] */
    const st_adjustments *lists;     /* [rows] */
    st_candidates *out;              /* [rows] */
    unsigned long long *kept;        /* [rows at a time, chunks, KEPT]: scratch */
    sums *chunk_sums;                /* [rows at a time, chunks]: scratch */
    uint32_t vocab, chunks;
    uint32_t first; /* row of the launch */
};

/* The order of the keys is that of the logits, −0 equal to 0, then the lower id first. 0: no token. */
__device__ unsigned long long key_of(float logit, uint32_t id)
{
    int32_t bits = __float_as_int(logit + 0.0f);
    uint32_t sorted = (uint32_t)(bits ^ (bits < 0 ? INT32_MAX : 0)) ^ 0x80000000u;
    return (unsigned long long)sorted << 32 | (0xFFFFFFFFu - id);
}

__device__ uint32_t id_of(unsigned long long key)
{
    return 0xFFFFFFFFu - (uint32_t)key;
}

__device__ float logit_of(unsigned long long key)
{
    int32_t sorted = (int32_t)((uint32_t)(key >> 32) ^ 0x80000000u);
    return __int_as_float(sorted ^ (sorted < 0 ? INT32_MAX : 0));
}

/* st_adjusted without fused operations. */
__device__ float adjust(float logit, const st_adjustment &a)
{
    logit = a.bias > FLT_MAX ? FLT_MAX : __fadd_rn(logit, a.bias);
    if (a.repeat > 0) {
        logit = logit <= 0 ? __fmul_rn(logit, a.repeat) : __fdiv_rn(logit, a.repeat);
        logit = __fsub_rn(logit, a.subtract);
        if (logit > FLT_MAX) logit = FLT_MAX;
    }
    return logit;
}

__device__ sums join(const sums &a, const sums &b)
{
    float highest = fmaxf(a.highest, b.highest), sum = 0;
    if (a.highest > -INFINITY) sum += a.sum * expf(a.highest - highest);
    if (b.highest > -INFINITY) sum += b.sum * expf(b.highest - highest);
    return {highest, sum, a.broken | b.broken, 0};
}

__device__ sums sums_of(float logit)
{
    return {logit, logit > -INFINITY ? 1.0f : 0.0f, !(logit <= FLT_MAX), 0};
}

/* The sum over the block, in thread 0. */
__device__ sums join_block(sums mine, sums *shared)
{
    for (int step = ST_CUDA_WARP / 2; step > 0; step /= 2) {
        sums other = {__shfl_down_sync(0xFFFFFFFFu, mine.highest, step), __shfl_down_sync(0xFFFFFFFFu, mine.sum, step),
                      __shfl_down_sync(0xFFFFFFFFu, mine.broken, step), 0};
        mine = join(mine, other);
    }
    if (threadIdx.x % ST_CUDA_WARP == 0) shared[threadIdx.x / ST_CUDA_WARP] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t i = 1; i < THREADS / ST_CUDA_WARP; i++) mine = join(mine, shared[i]);
    return mine;
}

/* Bitonic sort of ST_CUDA_CHUNK keys in shared memory, the highest first. */
__device__ void sort(unsigned long long *keys)
{
    for (uint32_t size = 2; size <= ST_CUDA_CHUNK; size *= 2)
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < ST_CUDA_CHUNK / 2; i += THREADS) {
                uint32_t low = i / step * (2 * step) + i % step, high = low + step;
                unsigned long long a = keys[low], b = keys[high];
                bool descends = (low & size) == 0;
                if ((a < b) == descends) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    __syncthreads();
}

/* A block for each chunk and row. */
__global__ void __launch_bounds__(THREADS) keep_chunk(candidates_args a)
{
    st_cuda_begin();
    __shared__ unsigned long long keys[ST_CUDA_CHUNK];
    __shared__ sums shared[THREADS / ST_CUDA_WARP];
    uint32_t row = a.first + blockIdx.y, chunk = blockIdx.x, first = chunk * ST_CUDA_CHUNK;
    if (row >= a.rows.count()) return;
    const float *logits = a.logits + (size_t)row * a.vocab;
    sums mine = {-INFINITY, 0, 0, 0};
    for (uint32_t i = threadIdx.x; i < ST_CUDA_CHUNK; i += THREADS) {
        uint32_t id = first + i;
        keys[i] = id < a.vocab ? key_of(logits[id], id) : 0;
        if (id < a.vocab) mine = join(mine, sums_of(logits[id]));
    }
    mine = join_block(mine, shared); /* ends with all keys written */
    const st_adjustments &list = a.lists[row];
    for (uint32_t i = threadIdx.x; i < list.count; i += THREADS) {
        uint32_t id = (uint32_t)list.items[i].id;
        if (id >= first && id < a.vocab && id - first < ST_CUDA_CHUNK) keys[id - first] = key_of(adjust(logits[id], list.items[i]), id);
    }
    sort(keys);
    size_t at = (size_t)blockIdx.y * a.chunks + chunk;
    if (threadIdx.x < KEPT) a.kept[at * KEPT + threadIdx.x] = keys[threadIdx.x];
    if (threadIdx.x == 0) a.chunk_sums[at] = mine;
}

__device__ void write_sums(const candidates_args &a, uint32_t row, uint32_t count)
{
    const sums *chunks = a.chunk_sums + (size_t)(row - a.first) * a.chunks;
    sums all = chunks[0];
    for (uint32_t i = 1; i < a.chunks; i++) all = join(all, chunks[i]);
    st_candidates &out = a.out[row];
    out.count = count;
    out.flags = all.broken ? ST_CANDIDATES_BROKEN : 0;
    out.highest = all.highest;
    out.log_sum = all.highest > -FLT_MAX ? all.highest + logf(all.sum) : -INFINITY;
}

/* A block for each row: the best so far stay at the beginning of the keys. */
__global__ void __launch_bounds__(THREADS) keep_row(candidates_args a)
{
    st_cuda_begin();
    __shared__ unsigned long long keys[ST_CUDA_CHUNK];
    uint32_t row = a.first + blockIdx.x, all = a.chunks * KEPT;
    if (row >= a.rows.count()) return;
    const unsigned long long *kept = a.kept + (size_t)blockIdx.x * all;
    uint32_t taken = 0;
    for (uint32_t held = 0; taken < all; held = KEPT) {
        uint32_t room = ST_CUDA_CHUNK - held;
        for (uint32_t i = threadIdx.x; i < room; i += THREADS) keys[held + i] = taken + i < all ? kept[taken + i] : 0;
        taken += room;
        sort(keys);
    }
    uint32_t count = a.vocab < KEPT ? a.vocab : KEPT, i = threadIdx.x;
    st_candidates &out = a.out[row];
    if (i < count) {
        uint32_t id = id_of(keys[i]);
        out.ids[i] = (int32_t)id;
        out.logits[i] = logit_of(keys[i]);
        out.raw[i] = a.logits[(size_t)row * a.vocab + id];
    }
    if (i == 0) write_sums(a, row, count);
}

} // namespace

extern "C" int st_cuda_candidates(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    uint32_t vocab = b->in[0].width, chunks = st_cuda_candidate_chunks(vocab);
    uint32_t most = call->rows < ST_CUDA_CANDIDATE_ROWS ? call->rows : (uint32_t)ST_CUDA_CANDIDATE_ROWS;
    unsigned long long *kept = (unsigned long long *)call->scratch;
    candidates_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), (const st_adjustments *)b->in[1].data,
                            (st_candidates *)b->out.data, kept, (sums *)(kept + (size_t)most * chunks * KEPT), vocab, chunks, 0};
    int result = (int)cudaSuccess;
    for (; args.first < call->rows && !result; args.first += most) {
        uint32_t rows = call->rows - args.first < most ? call->rows - args.first : most;
        result = st_cuda_start<keep_chunk>(call, dim3(chunks, rows), THREADS, 0, args);
        if (!result) result = st_cuda_start<keep_row>(call, rows, THREADS, 0, args);
    }
    return result;
}
