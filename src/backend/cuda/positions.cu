/* Norm and RoPE of the query and key heads, norm of the value heads, and the store of keys and values: a warp per
 * head. */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/positions.h"

namespace {

enum { VALUES_OF_WARP = 128 };

struct side {
    float *data;          /* [rows, width] */
    uint32_t heads, size; /* of this side's warps; the last may have less */
    uint32_t width;
    bool normed;
    float epsilon;
    st_cuda_vector weight;
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

/* Element i of a head that RoPE turns. */
__device__ float rotated(const side &s, const float *head, uint32_t row, uint32_t i)
{
    uint32_t pairs = s.dims / 2, pair = s.halves ? i % pairs : i / 2;
    bool second = s.halves ? i >= pairs : i % 2;
    float x = head[s.halves ? pair : 2 * pair], y = head[s.halves ? pair + pairs : 2 * pair + 1];
    float2 turn = *(const float2 *)(s.angles + (size_t)row * s.dims + 2 * pair);
    return second ? x * turn.y + y * turn.x : x * turn.x - y * turn.y;
}

template <class K> __global__ void __launch_bounds__(ST_CUDA_WARP) positions(positions_args a)
{
    st_cuda_begin();
    __shared__ float head[ST_CUDA_HEAD_MAX];
    uint32_t lane = threadIdx.x, row = blockIdx.y, index = blockIdx.x;
    if (a.counters && row == 0 && index == 0)
        for (uint32_t i = lane; i < a.counter_count; i += ST_CUDA_WARP) a.counters[i] = 0;
    if (row >= a.rows.count()) return;
    int of = 0;
    while (index >= a.sides[of].heads) index -= a.sides[of++].heads;
    const side &s = a.sides[of];
    uint32_t start = index * s.size, size = min(s.size, s.width - start);
    float *data = s.data + (size_t)row * s.width + start, squares = 0;
    unsigned char *stored = NULL; /* found first: its loads are under way while the head is loaded */
    if (of != ST_CUDA_QUERIES) {
        const st_step_row &at = a.rows.at(row);
        st_cuda_kv_rows kv(a.kv, a.rows, at.conversation);
        stored = of == ST_CUDA_KEYS ? kv.key(at.position) : kv.value(at.position);
    }
    for (uint32_t i = lane; i < size; i += ST_CUDA_WARP) {
        float x = data[i];
        head[i] = x;
        squares += x * x;
    }
    if (s.normed) {
        float scale = 1.0f / sqrtf(st_cuda_warp_sum(squares) / (float)size + s.epsilon);
        for (uint32_t i = lane; i < size; i += ST_CUDA_WARP)
            head[i] = head[i] * scale * (s.weight.data ? s.weight.at((start + i) % s.weight.count) : 1);
    }
    __syncwarp();
    for (uint32_t i = lane; i < size; i += ST_CUDA_WARP) {
        float x = s.angles && i < s.dims ? rotated(s, head, row, i) : head[i];
        data[i] = x;
        if (stored) K::store(stored, start + i, true, x);
    }
}

side side_of(const st_bound_op *norm, const st_bound_op *rope, st_bound_value value)
{
    side s = {st_cuda_floats(value), 0, VALUES_OF_WARP, value.width, norm != NULL, 0, {}, NULL, 0, false};
    if (norm) {
        s.size = norm->op->p.norm.group;
        s.epsilon = norm->op->p.norm.epsilon;
        s.weight = st_cuda_vector_of(&norm->weight[0]);
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
        uint32_t heads = 0;
        for (int i = 0; i < ST_CUDA_SIDES; i++) heads += args.sides[i].heads;
        return st_cuda_start<positions<K>>(call, dim3(heads, call->rows), ST_CUDA_WARP, 0, args);
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
