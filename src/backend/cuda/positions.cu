/* Norm and RoPE of the query and key heads, norm of the value heads, and the store of keys and values: a warp per
 * head. */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/positions.h"

namespace {

enum { VALUES_OF_WARP = 128, EACH_MAX = ST_CUDA_HEAD_MAX / ST_CUDA_WARP };

struct side {
    float *data;          /* [rows, width] */
    uint32_t heads, size; /* of this side's warps; the last may have less */
    uint32_t width;
    bool normed;
    float epsilon;
    st_cuda_vector weight;
    bool whole;           /* the weight is of all heads, not of one */
    const float *angles;  /* [rows, dims]; NULL: not rotated */
    uint32_t dims;
    bool halves;
};

struct positions_args {
    st_cuda_rows rows;
    st_kv_view kv;
    side sides[ST_CUDA_SIDES];
    uint32_t *counters; /* set to 0. NULL: none */
    uint32_t counter_count;
};

/* Which pair RoPE rotates with element i of a head, and the other element of it. */
struct pair_of {
    uint32_t pair, other;
    bool second;

    __device__ pair_of(const side &s, uint32_t i)
    {
        uint32_t pairs = s.dims / 2;
        second = s.halves ? i >= pairs : i % 2;
        other = s.halves ? (second ? i - pairs : i + pairs) : i ^ 1;
        pair = s.halves ? min(i, other) : i / 2;
    }
};

/* Lanes have up to EACH elements, whose loads are under way at once. Weights, the number of rows and the place in the KV cache
 * are loaded before the kernel waits for the one before it. */
template <class K, int EACH> __global__ void __launch_bounds__(ST_CUDA_WARP) positions(positions_args a)
{
    __shared__ float head[EACH * ST_CUDA_WARP];
    st_cuda_release();
    uint32_t lane = threadIdx.x, row = blockIdx.y, index = blockIdx.x;
    int of = 0;
    while (index >= a.sides[of].heads) index -= a.sides[of++].heads;
    const side &s = a.sides[of];
    uint32_t start = index * s.size, size = min(s.size, s.width - start), of_weight = s.whole ? start : 0;
    float x[EACH] = {}, factors[EACH], squares = 0;
    float2 angles[EACH];
    /* f(k, i) */
    auto each = [&](uint32_t end, auto f) {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (lane + k * ST_CUDA_WARP < end) f(k, lane + k * ST_CUDA_WARP);
    };
    if (!s.weight.data) each(size, [&](int k, uint32_t) { factors[k] = 1; });
    else if (s.weight.type == ST_TYPE_F32)
        each(size, [&](int k, uint32_t i) { factors[k] = ((const float *)s.weight.data)[of_weight + i]; });
    else each(size, [&](int k, uint32_t i) { factors[k] = s.weight.at(of_weight + i); });
    float *data = s.data + (size_t)row * s.width + start;
    unsigned char *stored = NULL;
    bool present = row < a.rows.count();
    if (present && of != ST_CUDA_QUERIES) {
        const st_step_row &at = a.rows.at(row);
        st_cuda_kv_rows kv(a.kv, a.rows, at.conversation);
        stored = of == ST_CUDA_KEYS ? kv.key(at.position) : kv.value(at.position);
    }
    st_cuda_await();
    if (present) each(size, [&](int k, uint32_t i) { x[k] = data[i]; });
    if (present && s.angles)
        each(s.dims, [&](int k, uint32_t i) {
            angles[k] = *(const float2 *)(s.angles + (size_t)row * s.dims + 2 * pair_of(s, i).pair);
        });
    if (a.counters && row == 0 && blockIdx.x == 0)
#pragma unroll 1
        for (uint32_t i = lane; i < a.counter_count; i += ST_CUDA_WARP) a.counters[i] = 0;
    if (!present) return;
    if (s.normed) {
        each(size, [&](int k, uint32_t) { squares += x[k] * x[k]; });
        float scale = st_cuda_reciprocal_root(st_cuda_warp_sum(squares) * st_cuda_reciprocal((float)size) + s.epsilon);
        each(size, [&](int k, uint32_t) { x[k] = x[k] * scale * factors[k]; });
    }
    if (s.angles) {
        each(size, [&](int k, uint32_t i) { head[i] = x[k]; });
        __syncwarp();
        each(s.dims, [&](int k, uint32_t i) {
            pair_of p(s, i);
            x[k] = p.second ? head[p.other] * angles[k].y + x[k] * angles[k].x : x[k] * angles[k].x - head[p.other] * angles[k].y;
        });
    }
    each(size, [&](int k, uint32_t i) {
        data[i] = x[k];
        if (stored) K::store(stored, start + i, true, x[k]);
    });
}

side side_of(const st_bound_op *norm, const st_bound_op *rope, st_bound_value value)
{
    side s = {st_cuda_floats(value), 0, VALUES_OF_WARP, value.width, norm != NULL, 0, {}, false, NULL, 0, false};
    if (norm) {
        s.size = norm->op->p.norm.group;
        s.epsilon = norm->op->p.norm.epsilon;
        s.weight = st_cuda_vector_of(&norm->weight[0]);
        s.whole = s.weight.count == value.width;
    }
    if (rope) {
        s.size = rope->op->p.rope.head_size;
        s.angles = st_cuda_floats(rope->in[1]);
        s.dims = rope->op->p.rope.dims;
        s.halves = rope->op->p.rope.style == ST_ROPE_HALVES;
    }
    s.heads = st_cuda_blocks(value.width, s.size);
    return s;
}

struct launch {
    const st_cuda_call *call;
    positions_args args;
    template <class K> int run() const
    {
        uint32_t size = 0;
        for (int i = 0; i < ST_CUDA_SIDES; i++) size = max(size, args.sides[i].heads ? args.sides[i].size : 0);
        return size <= 4 * ST_CUDA_WARP ? start<K, 4>() : size <= 8 * ST_CUDA_WARP ? start<K, 8>() : start<K, EACH_MAX>();
    }
    template <class K, int EACH> int start() const
    {
        uint32_t heads = 0;
        for (int i = 0; i < ST_CUDA_SIDES; i++) heads += args.sides[i].heads;
        return st_cuda_start<positions<K, EACH>>(call, dim3(heads, call->rows), ST_CUDA_WARP, 0, args);
    }
};

} // namespace

extern "C" int st_cuda_positions_run(const st_cuda_call *call)
{
    st_cuda_positions p;
    if (!st_cuda_find_positions(call->bound, call->positioned, &p)) return (int)cudaErrorInvalidValue;
    positions_args args = {st_cuda_rows_of(call), p.store->kv, {}, NULL, 0};
    if (p.rope[ST_CUDA_QUERIES])
        args.sides[ST_CUDA_QUERIES] = side_of(p.norm[ST_CUDA_QUERIES], p.rope[ST_CUDA_QUERIES], p.rope[ST_CUDA_QUERIES]->out);
    args.sides[ST_CUDA_KEYS] = side_of(p.norm[ST_CUDA_KEYS], p.rope[ST_CUDA_KEYS], p.store->in[0]);
    args.sides[ST_CUDA_VALUES] = side_of(p.norm[ST_CUDA_VALUES], NULL, p.store->in[1]);
    if (call->attention && call->rows <= ST_CUDA_FEW_ROWS) {
        args.counters = st_cuda_attention_counters(call->attention->op, call->rows, call->scratch);
        args.counter_count = call->rows * st_cuda_attention_blocks(call->attention->op);
    }
    return st_cuda_with_kv_type(p.store->kv.type, launch{call, args});
}
