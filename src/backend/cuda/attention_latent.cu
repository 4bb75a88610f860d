/* Latent attention on tensor cores: one KV head, whose values are the first part of its keys, for all query heads. A block has HEADS
 * query heads of one row and goes through the positions of a part of the context in tiles: a tile is read once, for scores and
 * values. The four warps share the depth of the scores and then the columns of the values. Queries are sums of two f16 numbers, as
 * weights are (attention_mma.cuh). */
#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/attention_parts.cuh"

namespace {

enum { WARPS = 4, THREADS = WARPS * ST_CUDA_WARP, HEADS = 16, KEY = ST_CUDA_LATENT_KEY, VALUE = ST_CUDA_LATENT_VALUE };
enum { STEPS = KEY / 16 / WARPS, COLUMNS = VALUE / WARPS }; /* of a warp: products along the key, columns of the values */
static_assert(STEPS * 16 * WARPS == KEY && COLUMNS % 16 == 0, "warps have equal shares");

/* Positions base … end − 1 of the latent; the rest of the tile is zeros. */
template <class F, int COUNT>
__device__ void load_tile(const st_cuda_kv_rows &kv, uint32_t base, uint32_t end, rows_of<KEY, COUNT> tile)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < COUNT * KEY / 8; i += THREADS) {
        uint32_t row = i / (KEY / 8), element = i % (KEY / 8) * 8;
        uint4 high = {}, low = {};
        if (base + row < end) F::halves(F::kv::load_eight(kv.key(base + row), element), high, low);
        *(uint4 *)tile.at(row, element, 0) = high;
        if (F::SPLIT) *(uint4 *)tile.at(row, element, 1) = low;
    }
}

/* Scores of a tile, as the warps computed them. */
template <int COUNT> struct __align__(16) shared_scores {
    float part[WARPS][HEADS][COUNT + PAD];

    /* Adds up those of all warps; a lane writes and reads heads lane / 4 and 8 further, positions lane % 4 × 2 and the next. */
    __device__ __forceinline__ void add(float (*scores)[4])
    {
        uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP;
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++)
            *(float2 *)&part[warp][lane / 4 + i % 2 * 8][i / 2 * 8 + lane % 4 * 2] = *(const float2 *)&scores[i / 2][i % 2 * 2];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            float2 sum = {};
            for (int w = 0; w < WARPS; w++) {
                float2 x = *(const float2 *)&part[w][lane / 4 + i % 2 * 8][i / 2 * 8 + lane % 4 * 2];
                sum.x += x.x, sum.y += x.y;
            }
            scores[i / 2][i % 2 * 2] = sum.x, scores[i / 2][i % 2 * 2 + 1] = sum.y;
        }
    }
};

/* Writes what a lane has of head j × 8 + lane / 4. With parts: unscaled, with its largest score and sum. */
template <class F>
__device__ __forceinline__ void write_head(const st_cuda_attention_parts &s, uint32_t row, uint32_t head, bool valid, bool in_parts,
                                           const running<COLUMNS> &r, int j)
{
    const float ln2 = 0.6931471805599453f;
    uint32_t lane = threadIdx.x % ST_CUDA_WARP, warp = threadIdx.x / ST_CUDA_WARP;
    float total = total_of(r, j);
    if (!valid) return;
    size_t of = (size_t)row * s.a.heads + head, part = of * s.splits + blockIdx.y;
    float factor = in_parts ? (float)F::SHRINK : F::SHRINK / (total + sink_weight(r, j, s.a.sink(head)));
    if (in_parts && warp == 0 && lane % 4 == 0) s.scales[part] = make_float2(r.largest[j] * ln2, total);
    float *out = (in_parts ? s.sums + part * VALUE : s.a.out + of * VALUE) + warp * COLUMNS + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) *(float2 *)(out + 8 * n) = make_float2(r.out[n][2 * j] * factor, r.out[n][2 * j + 1] * factor);
}

template <class F> struct tile_of {
    enum { POSITIONS = F::SPLIT ? 16 : 32, BYTES = (F::SPLIT ? 2 : 1) * POSITIONS * (KEY + PAD) * (int)sizeof(__half) };
};

/* A block per row and HEADS heads, and part of the context. */
template <class F> __global__ void __launch_bounds__(THREADS) attend(st_cuda_attention_parts s, bool in_parts)
{
    st_cuda_begin();
    enum { POSITIONS = tile_of<F>::POSITIONS };
    ST_CUDA_DYNAMIC(uint4, shared);
    __shared__ shared_scores<POSITIONS> sums;
    const st_cuda_attention_args &a = s.a;
    uint32_t blocks = (a.heads + HEADS - 1) / HEADS, row = blockIdx.x / blocks, first = blockIdx.x % blocks * HEADS;
    if (row >= a.rows.count()) return; /* the same for the whole block, as below */
    uint32_t active = min((uint32_t)HEADS, a.heads - first), position = a.rows.at(row).position, from = a.first(position), end = position + 1;
    if (in_parts) {
        uint32_t length = s.part_length(end - from);
        from += blockIdx.y * length;
        end = min(end, from + length);
    }
    if (from >= end) return;
    const float log2e = 1.4426950408889634f;
    rows_of<KEY, POSITIONS> tile = {(__half *)shared};
    st_cuda_kv_rows kv(a.kv, a.rows, a.rows.at(row).conversation);
    uint32_t depth = threadIdx.x / ST_CUDA_WARP * STEPS * 16; /* the warp's part of it */
    queries<STEPS> q;
    q.load(a.in + ((size_t)row * a.heads + first) * KEY + depth, KEY, active, a.scale * log2e * F::SHRINK);
    running<COLUMNS> r = {{}, {-INFINITY, -INFINITY}, {}};
    const uint2 sees[2] = {{from, end - 1}, {from, end - 1}};
    for (uint32_t base = from; base < end; base += POSITIONS) {
        __syncthreads();
        load_tile<F, POSITIONS>(kv, base, end, tile);
        __syncthreads();
        float scores[POSITIONS / 8][4] = {};
        score<F>(q, tile, depth, scores);
        sums.add(scores);
        softmax<COLUMNS, POSITIONS>(scores, base, sees, r);
        gather<F, COLUMNS>(scores, tile, threadIdx.x / ST_CUDA_WARP * COLUMNS, r.out);
    }
    for (int j = 0; j < 2; j++) {
        uint32_t head = threadIdx.x % ST_CUDA_WARP / 4 + 8 * j;
        write_head<F>(s, row, first + head, head < active, in_parts, r, j);
    }
}

struct launch {
    const st_cuda_call *call;
    st_cuda_attention_parts args;

    template <class F> int run() const
    {
        enum { BYTES = tile_of<F>::BYTES };
        static_assert(BYTES + sizeof(shared_scores<tile_of<F>::POSITIONS>) <= 99 * 1024, "shared memory of a block");
        bool in_parts = call->rows <= ST_CUDA_ATTENTION_ROWS;
        dim3 grid(call->rows * st_cuda_blocks(args.a.heads, HEADS), in_parts ? args.splits : 1);
        int code = (int)cudaFuncSetAttribute(attend<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
        if (code == cudaSuccess) code = st_cuda_start<attend<F>>(call, grid, THREADS, BYTES, args, in_parts);
        return code == cudaSuccess && in_parts ? st_cuda_combine(call, args) : code;
    }
};

} // namespace

extern "C" int st_cuda_attention_latent(const st_cuda_call *call)
{
    return with_halves(call->bound->kv.type, launch{call, st_cuda_attention_parts_of(call)});
}
