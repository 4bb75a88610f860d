#include "backend/cuda/halves.cuh"

namespace {

struct norm_args {
    st_cuda_rows rows;
    const float *in, *other; /* other: added to the input; NULL: none */
    float *sum;              /* in + other */
    float *out;
    uint32_t group, groups;  /* elements of a group, groups of a row */
    float epsilon;
    st_cuda_vector weight;
    st_cuda_acts acts;       /* memory NULL: not quantised */
    st_cuda_converter to;

    __device__ float input(size_t at) const
    {
        return other ? in[at] + other[at] : in[at];
    }
};

__device__ float factor_of(const norm_args &a, uint32_t i)
{
    return a.weight.data ? a.weight.at(i % a.weight.count) : 1;
}

/* A block per group. */
template <int WARPS> __global__ void rms_norm(norm_args a)
{
    st_cuda_begin();
    enum { THREADS = WARPS * ST_CUDA_WARP };
    uint32_t row = blockIdx.x / a.groups, start = blockIdx.x % a.groups * a.group;
    if (row >= a.rows.count()) return;
    size_t base = (size_t)row * a.groups * a.group + start;
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) {
        float x = a.input(base + i);
        if (a.other) a.sum[base + i] = x;
        squares += x * x;
    }
    float scale = 1.0f / sqrtf(st_cuda_block_sum<WARPS>(squares) / (float)a.group + a.epsilon);
    const float *in = a.other ? a.sum : a.in; /* each thread reads what it wrote */
    for (uint32_t i = threadIdx.x; i < a.group; i += THREADS) a.out[base + i] = in[base + i] * scale * factor_of(a, start + i);
}

__device__ float4 factors_of(const norm_args &a, uint32_t i)
{
    return make_float4(factor_of(a, i), factor_of(a, i + 1), factor_of(a, i + 2), factor_of(a, i + 3));
}

/* The same by four elements; groups of a multiple of 32 elements may be quantised, and rows of one group converted. The first
 * KEPT × 4 elements of a thread stay in registers, and their weights are loaded before the kernel waits for the one before it. */
template <int WARPS> __global__ void __launch_bounds__(WARPS *ST_CUDA_WARP) rms_norm_by_four(norm_args a)
{
    enum { THREADS = WARPS * ST_CUDA_WARP, STEP = 4 * THREADS, KEPT = 4 };
    st_cuda_release();
    uint32_t row = blockIdx.x / a.groups, start = blockIdx.x % a.groups * a.group, own = 4 * threadIdx.x;
    float4 kept[KEPT], factors[KEPT];
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        if (own + k * STEP < a.group) factors[k] = factors_of(a, start + own + k * STEP);
    st_cuda_await();
    if (a.to.halves.memory) a.to.begin();
    if (row >= a.rows.count()) {
        if (a.to.halves.memory && row < st_cuda_converter::padded(a.rows.count())) a.to.finish<WARPS>(row, NULL, 0);
        return;
    }
    size_t base = (size_t)row * a.groups * a.group + start;
    float squares = 0, top = 0;
    auto load = [&](uint32_t i) {
        float4 x = *(const float4 *)(a.in + base + i);
        if (a.other) {
            float4 y = *(const float4 *)(a.other + base + i);
            x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
            *(float4 *)(a.sum + base + i) = x;
        }
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        return x;
    };
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        if (own + k * STEP < a.group) kept[k] = load(own + k * STEP);
    for (uint32_t i = own + KEPT * STEP; i < a.group; i += STEP) load(i);
    float scale = 1.0f / sqrtf(st_cuda_block_sum<WARPS>(squares) / (float)a.group + a.epsilon);
    auto finish = [&](uint32_t i, float4 x, float4 factor) {
        x = make_float4(x.x * scale * factor.x, x.y * scale * factor.y, x.z * scale * factor.z, x.w * scale * factor.w);
        *(float4 *)(a.out + base + i) = x;
        if (a.acts.memory) st_cuda_quantise(a.acts, row, start + i, x);
        if (a.to.halves.memory) top = st_cuda_top_of(top, x);
    };
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        if (own + k * STEP < a.group) finish(own + k * STEP, kept[k], factors[k]);
    const float *in = a.other ? a.sum : a.in; /* each thread reads what it wrote */
    for (uint32_t i = own + KEPT * STEP; i < a.group; i += STEP) finish(i, *(const float4 *)(in + base + i), factors_of(a, start + i));
    if (a.to.halves.memory) a.to.finish<WARPS>(row, a.out + base, top);
}

/* Few enough that a block finds room beside those of the product before it. */
enum { MANY_WARPS = 8, SMALL_GROUP = 512 };

} // namespace

extern "C" int st_cuda_rms_norm(const st_cuda_call *call)
{
    bool few = call->rows <= ST_CUDA_FEW_ROWS;
    const st_bound_op *b = call->bound, *sum = few ? call->sum : NULL;
    uint32_t group = b->op->p.norm.group, groups = b->out.width / group, blocks = call->rows * groups;
    const float *in = st_cuda_floats(sum ? sum->in[0] : b->in[0]);
    norm_args args = {st_cuda_rows_of(call), in, sum ? st_cuda_floats(sum->in[1]) : NULL, sum ? st_cuda_floats(sum->out) : NULL,
                      st_cuda_floats(b->out), group, groups, b->op->p.norm.epsilon, st_cuda_vector_of(&b->weight[0]),
                      {st_cuda_writes_int8(call) ? call->scratch : NULL, b->out.width},
                      st_cuda_converter_of(call, b->out.width)};
    if (groups > 1) args.to.halves.memory = NULL;
    if (args.to.halves.memory) blocks = st_cuda_converter::padded(call->rows);
    if (group % 4) return st_cuda_start<rms_norm<MANY_WARPS>>(call, blocks, MANY_WARPS * ST_CUDA_WARP, 0, args);
    if (group <= SMALL_GROUP) return st_cuda_start<rms_norm_by_four<1>>(call, blocks, ST_CUDA_WARP, 0, args);
    return st_cuda_start<rms_norm_by_four<MANY_WARPS>>(call, blocks, MANY_WARPS * ST_CUDA_WARP, 0, args);
}
