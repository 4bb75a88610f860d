/* The best tokens of a row of logits. A key of 64 bits holds a logit and its token, so that all keys differ, and ties fall to
 * the lower id whatever the order of the sort. The first kernel finds the highest key of every group of tokens. At least KEPT tokens
 * are as high as the KEPT-th highest of those keys, so the second one takes these, few if the highest are in different groups, and
 * its last block for a row sorts them. They are found in any order, but sorted into one. */
#include "backend/cuda/common.cuh"

namespace {

enum {
    THREADS = 1024,
    WARPS = THREADS / ST_CUDA_WARP,
    KEPT = ST_CANDIDATES_MAX,
    BINS = 256,
};
static_assert((int)WARPS == (int)ST_CUDA_CHUNK_GROUPS, "a warp has the tokens of a group");
static_assert((int)THREADS == (int)ST_CUDA_CHUNK_MIN, "a thread has a token of the smallest chunk");
static_assert((int)WARPS == (int)ST_CUDA_WARP, "a warp joins the sums of the others");

/* Of the raw logits of a chunk, or of a row. */
struct sums {
    float highest, sum; /* Σ exp(logit − highest) */
    uint32_t broken, unused;
};
static_assert(sizeof(sums) == ST_CUDA_CHUNK_SUMS_BYTES, "call.h states the scratch");

typedef unsigned long long key;

struct candidates_args {
    st_cuda_rows rows;
    const float *logits;             /* [rows, vocab] */
    const st_adjustments *lists;     /* [rows] */
    st_candidates *out;              /* [rows] */
    unsigned char *scratch;          /* of each row of the launch */
    st_cuda_candidates_layout layout;
    uint32_t vocab;
    uint32_t first; /* row of the launch */

    __device__ uint32_t row() const
    {
        return first + blockIdx.y;
    }
    __device__ key *tops() const /* [groups] */
    {
        return (key *)(scratch + blockIdx.y * layout.bytes);
    }
    __device__ key *found() const /* [room] */
    {
        return (key *)(scratch + blockIdx.y * layout.bytes + layout.found);
    }
    __device__ sums *chunk_sums() const /* [chunks] */
    {
        return (sums *)(scratch + blockIdx.y * layout.bytes + layout.sums);
    }
    __device__ uint32_t *counters() const /* keys in `found`, chunks that are done */
    {
        return (uint32_t *)(scratch + blockIdx.y * layout.bytes + layout.counters);
    }
};

/* The order of the keys is that of the logits, −0 equal to 0, then the lower id first. 0: no token. */
__device__ key key_of(float logit, uint32_t id)
{
    int32_t bits = __float_as_int(logit + 0.0f);
    uint32_t sorted = (uint32_t)(bits ^ (bits < 0 ? INT32_MAX : 0)) ^ 0x80000000u;
    return (key)sorted << 32 | (0xFFFFFFFFu - id);
}

__device__ uint32_t id_of(key k)
{
    return 0xFFFFFFFFu - (uint32_t)k;
}

__device__ float logit_of(key k)
{
    int32_t sorted = (int32_t)((uint32_t)(k >> 32) ^ 0x80000000u);
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
    if (a.highest > -INFINITY) sum += a.sum * st_cuda_exp(a.highest - highest);
    if (b.highest > -INFINITY) sum += b.sum * st_cuda_exp(b.highest - highest);
    return {highest, sum, a.broken | b.broken, 0};
}

/* The sum over the warp, in lane 0. */
__device__ sums join_warp(sums mine)
{
    for (int step = ST_CUDA_WARP / 2; step > 0; step /= 2) {
        sums other = {__shfl_down_sync(0xFFFFFFFFu, mine.highest, step), __shfl_down_sync(0xFFFFFFFFu, mine.sum, step),
                      __shfl_down_sync(0xFFFFFFFFu, mine.broken, step), 0};
        mine = join(mine, other);
    }
    return mine;
}

/* --- a chunk of a row: a thread has EACH tokens, one for every THREADS ---------------------------------------------- */

template <int EACH> __device__ uint32_t token_of(int i)
{
    return (blockIdx.x * EACH + i) * THREADS + threadIdx.x;
}

template <int EACH> __device__ void load_values(const candidates_args &a, float *values)
{
    const float *logits = a.logits + (size_t)a.row() * a.vocab;
#pragma unroll
    for (int i = 0; i < EACH; i++) values[i] = token_of<EACH>(i) < a.vocab ? logits[token_of<EACH>(i)] : -INFINITY;
}

/* The sums of the chunk's raw logits, in thread 0. */
template <int EACH> __device__ sums sum_values(const float *values)
{
    __shared__ sums warps[WARPS];
    sums mine = {-INFINITY, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine.highest = fmaxf(mine.highest, values[i]);
        mine.broken |= !(values[i] <= FLT_MAX);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) mine.sum += mine.highest > -INFINITY ? st_cuda_exp(values[i] - mine.highest) : 0;
    mine = join_warp(mine);
    if (threadIdx.x % ST_CUDA_WARP == 0) warps[threadIdx.x / ST_CUDA_WARP] = mine;
    __syncthreads();
    return threadIdx.x < ST_CUDA_WARP ? join_warp(warps[threadIdx.x]) : mine;
}

/* `shared` is of EACH × THREADS floats. */
template <int EACH> __device__ void adjust_values(const candidates_args &a, float *values, float *shared)
{
    const st_adjustments &list = a.lists[a.row()];
    if (list.count == 0) return; /* the same for the block */
    uint32_t tokens = EACH * THREADS, first = blockIdx.x * tokens;
#pragma unroll
    for (int i = 0; i < EACH; i++) shared[i * THREADS + threadIdx.x] = values[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < list.count; i += THREADS) {
        uint32_t id = (uint32_t)list.items[i].id;
        if (id >= first && id < a.vocab && id - first < tokens) shared[id - first] = adjust(shared[id - first], list.items[i]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) values[i] = shared[i * THREADS + threadIdx.x];
}

template <int EACH> __device__ key key_at(const candidates_args &a, const float *values, int i)
{
    return token_of<EACH>(i) < a.vocab ? key_of(values[i], token_of<EACH>(i)) : 0;
}

/* A block for each chunk and row. */
template <int EACH> __global__ void __launch_bounds__(THREADS) find_tops(candidates_args a)
{
    st_cuda_begin();
    __shared__ float shared[EACH * THREADS];
    if (a.row() >= a.rows.count()) return;
    float values[EACH];
    load_values<EACH>(a, values);
    sums all = sum_values<EACH>(values);
    adjust_values<EACH>(a, values, shared);
    key top = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) top = max(top, key_at<EACH>(a, values, i));
    for (int step = ST_CUDA_WARP / 2; step > 0; step /= 2) top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
    if (threadIdx.x % ST_CUDA_WARP == 0) a.tops()[blockIdx.x * WARPS + threadIdx.x / ST_CUDA_WARP] = top;
    if (threadIdx.x == 0) a.chunk_sums()[blockIdx.x] = all;
    if (threadIdx.x < 2 && blockIdx.x == 0) a.counters()[threadIdx.x] = 0;
}

/* --- the best of a row ---------------------------------------------------------------------------------------------- */

/* The bin that has the `wanted`-th highest key; by one warp. Lanes have BINS / 32 bins each, the highest ones first. */
struct chosen_bin {
    uint32_t bin, wanted; /* wanted: of the bin */
    bool whole;           /* all keys of the bin are wanted */
};

__device__ void choose_bin(const uint32_t *bins, uint32_t wanted, chosen_bin *out)
{
    enum { OWN = BINS / ST_CUDA_WARP };
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, top = BINS - 1 - lane * OWN, own = 0;
    for (int i = 0; i < OWN; i++) own += bins[top - i];
    uint32_t until = own; /* with those of the lanes before */
    for (int step = 1; step < ST_CUDA_WARP; step *= 2) {
        uint32_t other = __shfl_up_sync(0xFFFFFFFFu, until, step);
        if (lane >= (uint32_t)step) until += other;
    }
    if (until < wanted || until - own >= wanted) return;
    uint32_t left = wanted - (until - own);
    while (bins[top] < left) left -= bins[top--];
    *out = {top, left, bins[top] == left};
}

/* The KEPT-th highest key, or a lower one that no key lies between; 0: there are fewer. */
__device__ key threshold(const key *keys, uint32_t count)
{
    __shared__ uint32_t bins[BINS];
    __shared__ chosen_bin chosen;
    key prefix = 0, mask = 0;
    uint32_t wanted = KEPT;
    if (count < KEPT) return 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < BINS) bins[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += THREADS)
            if ((keys[i] & mask) == prefix) atomicAdd(&bins[keys[i] >> shift & (BINS - 1)], 1);
        __syncthreads();
        if (threadIdx.x < ST_CUDA_WARP) choose_bin(bins, wanted, &chosen);
        __syncthreads();
        prefix |= (key)chosen.bin << shift;
        mask |= (key)(BINS - 1) << shift;
        wanted = chosen.wanted;
        if (chosen.whole) break; /* the same for the block */
        __syncthreads();
    }
    return prefix;
}

/* Bitonic sort of `count` keys, a power of two, in shared memory, the highest first. */
__device__ void sort(key *keys, uint32_t count)
{
    for (uint32_t size = 2; size <= count; size *= 2)
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < count / 2; i += THREADS) {
                uint32_t low = i / step * (2 * step) + i % step, high = low + step;
                key a = keys[low], b = keys[high];
                bool descends = (low & size) == 0;
                if ((a < b) == descends) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    __syncthreads();
}

/* The KEPT highest of `count` keys: the best so far stay at the beginning. */
__device__ void sort_found(const key *found, uint32_t count, key *keys)
{
    for (uint32_t taken = 0, held = 0; taken < count; held = KEPT) {
        uint32_t take = min(count - taken, ST_CUDA_CHUNK_MAX - held), size = 2;
        while (size < held + take) size *= 2;
        for (uint32_t i = threadIdx.x; i < size - held; i += THREADS) keys[held + i] = i < take ? __ldcg(found + taken + i) : 0;
        taken += take;
        sort(keys, size);
    }
}

__device__ void write_sums(const candidates_args &a, uint32_t count)
{
    sums all = {-INFINITY, 0, 0, 0};
    for (uint32_t i = threadIdx.x; i < a.layout.chunks; i += ST_CUDA_WARP) all = join(all, a.chunk_sums()[i]);
    all = join_warp(all);
    if (threadIdx.x > 0) return;
    st_candidates &out = a.out[a.row()];
    out.count = count;
    out.flags = all.broken ? ST_CANDIDATES_BROKEN : 0;
    out.highest = all.highest;
    out.log_sum = all.highest > -FLT_MAX ? all.highest + logf(all.sum) : -INFINITY;
}

/* Whether this block is the last of its row: what the others have found is visible to it. */
__device__ bool is_last(const candidates_args &a)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&a.counters()[1], 1) + 1 == a.layout.chunks;
    __syncthreads();
    __threadfence();
    return last;
}

/* A block for each chunk and row. */
template <int EACH> __global__ void __launch_bounds__(THREADS) take_best(candidates_args a)
{
    st_cuda_begin();
    __shared__ key keys[ST_CUDA_CHUNK_MAX];
    if (a.row() >= a.rows.count()) return;
    float values[EACH];
    load_values<EACH>(a, values);
    adjust_values<EACH>(a, values, (float *)keys);
    key least = threshold(a.tops(), a.layout.groups);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        key k = key_at<EACH>(a, values, i);
        if (k > 0 && k >= least) a.found()[atomicAdd(&a.counters()[0], 1)] = k;
    }
    if (!is_last(a)) return;
    sort_found(a.found(), __ldcg(&a.counters()[0]), keys);
    uint32_t count = a.vocab < KEPT ? a.vocab : KEPT, i = threadIdx.x;
    st_candidates &out = a.out[a.row()];
    if (i < count) {
        uint32_t id = id_of(keys[i]);
        out.ids[i] = (int32_t)id;
        out.logits[i] = logit_of(keys[i]);
        out.raw[i] = a.logits[(size_t)a.row() * a.vocab + id];
    }
    if (i < ST_CUDA_WARP) write_sums(a, count);
}

template <int EACH> int start(const st_cuda_call *call, dim3 grid, const candidates_args &args)
{
    int result = st_cuda_start<find_tops<EACH>>(call, grid, THREADS, 0, args);
    return result ? result : st_cuda_start<take_best<EACH>>(call, grid, THREADS, 0, args);
}

} // namespace

extern "C" int st_cuda_candidates(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    candidates_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), (const st_adjustments *)b->in[1].data,
                            (st_candidates *)b->out.data, call->scratch, st_cuda_candidates_lay_out(b->in[0].width), b->in[0].width, 0};
    int result = (int)cudaSuccess;
    for (; args.first < call->rows && !result; args.first += ST_CUDA_CANDIDATE_ROWS) {
        dim3 grid(args.layout.chunks, min(call->rows - args.first, (uint32_t)ST_CUDA_CANDIDATE_ROWS));
        result = args.layout.chunk == THREADS ? start<1>(call, grid, args) : start<ST_CUDA_CHUNK_MAX / THREADS>(call, grid, args);
    }
    return result;
}
