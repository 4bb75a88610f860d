#include "backend/cuda/halves.cuh"

namespace {

/* A block per row and group: blockIdx has them as x and y. */
struct norm_args {
    st_cuda_rows rows;
    const float *in, *other; /* other: added to the input; NULL: none */
    float *sum;              /* in + other */
    float *out;
    uint32_t group, width;   /* elements of a group, of a row */
    float share, epsilon;    /* share: 1 / group */
    st_cuda_vector weight;
    uint32_t weight_step;    /* elements of the weight from a group to the next; 0: all have the same */
    st_cuda_acts acts;       /* memory NULL: not quantised */
    st_cuda_converter to;

    __device__ size_t base() const
    {
        return (size_t)blockIdx.x * width + blockIdx.y * group;
    }
    __device__ float scale(float squares) const
    {
        return st_cuda_reciprocal_root(squares * share + epsilon);
    }
    __device__ float4 factors(uint32_t i) const
    {
        return weight.data ? weight.four(blockIdx.y * weight_step + i) : make_float4(1, 1, 1, 1);
    }
};

template <int WARPS> __global__ void rms_norm(norm_args a)
{
    st_cuda_begin();
    enum { THREADS = WARPS * ST_CUDA_WARP };
    if (blockIdx.x >= a.rows.count()) return;
    size_t base = a.base();
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) {
        float x = a.other ? a.in[base + i] + a.other[base + i] : a.in[base + i];
        if (a.other) a.sum[base + i] = x;
        squares += x * x;
    }
    float scale = a.scale(st_cuda_block_sum<WARPS>(squares));
    const float *in = a.other ? a.sum : a.in; /* each thread reads what it wrote */
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS)
        a.out[base + i] = in[base + i] * scale * (a.weight.data ? a.weight.at(blockIdx.y * a.weight_step + i) : 1);
}

__device__ float4 plus(float4 x, float4 y)
{
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

__device__ float squares_of(float4 x)
{
    return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

/* The same by four elements; groups of a multiple of 32 elements may be quantised, and rows of one group converted. The first
 * KEPT × 4 elements of a thread stay in registers: all their loads are under way at once, those of the weights before the kernel
 * waits for the one before it. MORE: there are other elements. */
template <int WARPS, int KEPT, bool MORE> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) rms_norm_by_four(norm_args a)
{
    enum { THREADS = WARPS * ST_CUDA_WARP, STEP = 4 * THREADS };
    st_cuda_release();
    uint32_t row = blockIdx.x, own = 4 * threadIdx.x;
    float4 kept[KEPT] = {}, factors[KEPT];
    /* f(k, i, valid): of the kept elements from i on. */
    auto each = [&](auto f) {
#pragma unroll
        for (int k = 0; k < KEPT; k++) f(k, own + k * STEP, own + k * STEP < a.group);
    };
    const float *floats = (const float *)a.weight.data + blockIdx.y * a.weight_step;
    if (a.weight.data && a.weight.type == ST_TYPE_F32)
        each([&](int k, uint32_t i, bool valid) { if (valid) factors[k] = *(const float4 *)(floats + i); });
    else each([&](int k, uint32_t i, bool valid) { if (valid) factors[k] = a.factors(i); });
    uint32_t count = a.rows.count();
    st_cuda_await();
    size_t base = a.base();
    if (row < count) {
        float4 others[KEPT];
        each([&](int k, uint32_t i, bool valid) { if (valid) kept[k] = *(const float4 *)(a.in + base + i); });
        if (a.other) {
            each([&](int k, uint32_t i, bool valid) { if (valid) others[k] = *(const float4 *)(a.other + base + i); });
            each([&](int k, uint32_t, bool valid) { if (valid) kept[k] = plus(kept[k], others[k]); });
        }
    }
    bool present = row < count;
    if (a.to.halves.memory) a.to.begin();
    if (!present && !(a.to.halves.memory && row < st_cuda_converter::padded(count))) return;
    uint32_t end = present ? a.group : 0;
    float squares = 0, top = 0;
    if (a.other) each([&](int k, uint32_t i, bool) { if (i < end) *(float4 *)(a.sum + base + i) = kept[k]; });
    each([&](int k, uint32_t, bool) { squares += squares_of(kept[k]); });
    for (uint32_t i = own + KEPT * STEP; MORE && i < end; i += STEP) {
        float4 x = *(const float4 *)(a.in + base + i);
        if (a.other) *(float4 *)(a.sum + base + i) = x = plus(x, *(const float4 *)(a.other + base + i));
        squares += squares_of(x);
    }
    float scale = a.scale(st_cuda_block_sum<WARPS>(squares));
    auto finish = [&](uint32_t i, float4 x, float4 factor) {
        x = make_float4(x.x * scale * factor.x, x.y * scale * factor.y, x.z * scale * factor.z, x.w * scale * factor.w);
        if (i < end) *(float4 *)(a.out + base + i) = x;
        return x;
    };
    auto store = [&](uint32_t i, const st_cuda_quantised &q) { if (i < end) q.store(a.acts, row, blockIdx.y * a.group + i); };
    each([&](int k, uint32_t i, bool) { kept[k] = finish(i, kept[k], factors[k]); });
    if (a.acts.memory) { /* all before they are stored: the sums over lanes then run together */
        st_cuda_quantised quantised[KEPT];
        each([&](int k, uint32_t, bool) { quantised[k] = st_cuda_quantised(kept[k]); });
        each([&](int k, uint32_t i, bool) { store(i, quantised[k]); });
    }
    const float *in = a.other ? a.sum : a.in; /* each thread reads what it wrote */
    for (uint32_t start = KEPT * STEP; MORE && start < end; start += STEP) {
        uint32_t i = start + own;
        float4 x = {};
        if (i < end) x = finish(i, *(const float4 *)(in + base + i), a.factors(i));
        if (a.acts.memory) store(i, st_cuda_quantised(x));
        top = st_cuda_top_of(top, x);
    }
    if (!a.to.halves.memory) return;
    each([&](int k, uint32_t i, bool) { if (i < end) top = st_cuda_top_of(top, kept[k]); });
    a.to.finish<WARPS>(row, present ? a.out + base : NULL, top);
}

/* Few enough that a block finds room beside those of the product before it. */
enum { MANY_WARPS = 8 };

template <int WARPS, int KEPT, bool MORE = false> int start(const st_cuda_call *call, dim3 blocks, const norm_args &args)
{
    return st_cuda_start<rms_norm_by_four<WARPS, KEPT, MORE>>(call, blocks, WARPS * ST_CUDA_WARP, 0, args);
}

} // namespace

extern "C" int st_cuda_rms_norm(const st_cuda_call *call)
{
    bool few = call->rows <= ST_CUDA_FEW_ROWS;
    const st_bound_op *b = call->bound, *sum = few ? call->sum : NULL;
    uint32_t group = b->op->p.norm.group, width = b->out.width;
    const float *in = st_cuda_floats(sum ? sum->in[0] : b->in[0]);
    norm_args args = {st_cuda_rows_of(call), in, sum ? st_cuda_floats(sum->in[1]) : NULL,
                      sum ? st_cuda_floats(sum->out) : NULL, st_cuda_floats(b->out), group, width, 1.0f / (float)group,
                      b->op->p.norm.epsilon, st_cuda_vector_of(&b->weight[0]), b->weight[0].ne[0] == width ? group : 0,
                      {st_cuda_writes_int8(call) ? call->scratch : NULL, width}, st_cuda_converter_of(call, width)};
    if (group < width) args.to.halves.memory = NULL;
    dim3 blocks(args.to.halves.memory ? st_cuda_converter::padded(call->rows) : call->rows, width / group);
    if (group % 4) return st_cuda_start<rms_norm<MANY_WARPS>>(call, blocks, MANY_WARPS * ST_CUDA_WARP, 0, args);
    if (group <= 128) return start<1, 1>(call, blocks, args);
    if (group <= 512) return start<4, 1>(call, blocks, args);
    if (group <= 1024) return start<MANY_WARPS, 1>(call, blocks, args);
    if (group <= 2048) return start<MANY_WARPS, 2>(call, blocks, args);
    return start<MANY_WARPS, 4, true>(call, blocks, args);
}
