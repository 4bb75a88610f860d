/* The gated delta rule: S ← diag(decay)·S; δ = b·(v − Sᵀk); S ← S + k⊗δ; o = Sᵀq / √d. Columns of the state do not depend on each
 * other: a block runs COLUMNS of one head through the rows of a conversation, with its part of the state in shared memory or, for
 * the sizes of models, in registers. Conversations of many rows run in chunks instead (deltanet_chunks.cu). */
#include "backend/cuda/deltanet.cuh"

namespace {

enum { COLUMNS = 32, SLICES = 8 };

/* out = in / ‖in‖, by one warp. */
__device__ void unit_length(const float *in, uint32_t count, float *out)
{
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < count; i += ST_CUDA_WARP) squares += in[i] * in[i];
    float scale = 1.0f / sqrtf(st_cuda_warp_sum(squares) + 1e-6f);
    for (uint32_t i = threadIdx.x; i < count; i += ST_CUDA_WARP) out[i] = in[i] * scale;
}

__global__ void __launch_bounds__(COLUMNS * SLICES) deltanet(st_cuda_delta_args a)
{
    st_cuda_begin();
    ST_CUDA_DYNAMIC(float, shared); /* state[size, COLUMNS], q[size], k[size], decay[size], partial[SLICES, COLUMNS] */
    float *state = shared, *q = state + a.size * COLUMNS, *k = q + a.size, *decay = k + a.size, *partial = decay + a.size;
    uint32_t head = blockIdx.x, key_head = a.key_head(head), x = threadIdx.x, y = threadIdx.y;
    uint32_t column = blockIdx.y * COLUMNS + x, channels = (2 * a.key_heads + a.value_heads) * a.size;
    bool inside = column < a.size;
    if (blockIdx.z >= a.rows.conversation_count()) return;
    const st_step_conversation &c = a.rows.conversation(blockIdx.z);
    if (c.rows >= a.rows_end) return;
    float *own = a.state + c.slot * a.slot_floats + (size_t)head * a.size * a.size + column;
    for (uint32_t i = y; i < a.size; i += SLICES) state[i * COLUMNS + x] = inside ? own[(size_t)i * a.size] : 0;
    for (uint32_t row = c.first_row; row < c.first_row + c.rows; row++) {
        const float *qkv = a.qkv + (size_t)row * channels;
        if (y == 0) unit_length(qkv + key_head * a.size, a.size, q);
        if (y == 1) unit_length(qkv + (a.key_heads + key_head) * a.size, a.size, k);
        for (uint32_t i = x; y == 2 && i < a.size; i += COLUMNS) decay[i] = expf(a.log_decay(row, head, i));
        float value = inside ? qkv[(2 * a.key_heads + head) * a.size + column] : 0;
        float b = a.write_strength(row, head), part = 0, sum = 0;
        __syncthreads();
        for (uint32_t i = y; i < a.size; i += SLICES) {
            state[i * COLUMNS + x] *= decay[i];
            part += state[i * COLUMNS + x] * k[i];
        }
        partial[y * COLUMNS + x] = part;
        __syncthreads();
        for (int i = 0; i < SLICES; i++) sum += partial[i * COLUMNS + x];
        float delta = b * (value - sum);
        part = sum = 0;
        __syncthreads();
        for (uint32_t i = y; i < a.size; i += SLICES) {
            state[i * COLUMNS + x] += k[i] * delta;
            part += state[i * COLUMNS + x] * q[i];
        }
        partial[y * COLUMNS + x] = part;
        __syncthreads();
        for (int i = 0; i < SLICES; i++) sum += partial[i * COLUMNS + x];
        if (y == 0 && inside) a.out[((size_t)row * a.value_heads + head) * a.size + column] = sum / sqrtf((float)a.size);
        __syncthreads();
    }
    for (uint32_t i = y; i < a.size && inside; i += SLICES) own[(size_t)i * a.size] = state[i * COLUMNS + x];
}

/* What the eight lanes of a set read of a row, without scales. */
template <int KEYS, int SET_COLUMNS, bool CHANNELS> struct row_of {
    float4 q[KEYS / 4], k[KEYS / 4];
    float4 alpha[CHANNELS ? KEYS / 4 : 1]; /* without channels the x of the first */
    float value[SET_COLUMNS], beta;

    __device__ void load(const st_cuda_delta_args &a, uint32_t row, uint32_t head, uint32_t lane, uint32_t column)
    {
        enum { SIZE = KEYS * 8 };
        uint32_t key_head = a.key_head(head);
        const float *qkv = a.qkv + (size_t)row * (2 * a.key_heads + a.value_heads) * SIZE;
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            q[i] = *(const float4 *)(qkv + key_head * SIZE + 32 * i + 4 * lane);
            k[i] = *(const float4 *)(qkv + (a.key_heads + key_head) * SIZE + 32 * i + 4 * lane);
        }
#pragma unroll
        for (int c = 0; c < SET_COLUMNS; c++) value[c] = qkv[(2 * a.key_heads + head) * SIZE + column + c];
        const float *alphas = a.alpha + ((size_t)row * a.value_heads + head) * (CHANNELS ? SIZE : 1);
        if (!CHANNELS) alpha[0].x = alphas[0];
#pragma unroll
        for (int i = 0; CHANNELS && i < KEYS / 4; i++) alpha[i] = *(const float4 *)(alphas + 32 * i + 4 * lane);
        beta = a.beta[(size_t)row * a.value_heads + head];
    }
};

__device__ float dot(float4 x, float4 y)
{
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}

__device__ float4 times(float4 x, float4 y)
{
    return make_float4(x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w);
}

__device__ float element(float4 x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* Heads of SIZE: eight lanes have SET_COLUMNS columns of the state, of which each has SIZE / 8 elements in registers. One round of
 * sums a row: with the state before it, o = (decay·S)ᵀq + (k·q) δ, and the sums that scale q and k to unit length. */
template <int SIZE, bool CHANNELS> __global__ void __launch_bounds__(COLUMNS * SLICES / 2) deltanet_sets(st_cuda_delta_args a)
{
    st_cuda_begin();
    enum { LANES = 8, SET_COLUMNS = 2, KEYS = SIZE / LANES, SUMS = 3 + 2 * SET_COLUMNS, DECAYS = CHANNELS ? KEYS : 1 };
    uint32_t head = blockIdx.x, lane = threadIdx.x % LANES, column = blockIdx.y * COLUMNS + threadIdx.x / LANES * SET_COLUMNS;
    if (blockIdx.z >= a.rows.conversation_count()) return;
    const st_step_conversation &c = a.rows.conversation(blockIdx.z);
    if (c.rows >= a.rows_end) return;
    float *own = a.state + c.slot * a.slot_floats + (size_t)head * SIZE * SIZE + column, rate = a.a.at(head);
    float state[SET_COLUMNS][KEYS], bias[DECAYS];
#pragma unroll
    for (int i = 0; i < DECAYS; i++) bias[i] = a.bias.at(CHANNELS ? head * SIZE + i / 4 * 32 + 4 * lane + i % 4 : head);
#pragma unroll
    for (int i = 0; i < KEYS; i++)
#pragma unroll
        for (int n = 0; n < SET_COLUMNS; n++) state[n][i] = own[(size_t)(i / 4 * 32 + 4 * lane + i % 4) * SIZE + n];
    row_of<KEYS, SET_COLUMNS, CHANNELS> now, next;
    uint32_t end = c.first_row + c.rows;
    next.load(a, c.first_row, head, lane, column);
    for (uint32_t row = c.first_row; row < end; row++) {
        now = next;
        if (row + 1 < end) next.load(a, row + 1, head, lane, column);
        float sums[SUMS] = {}, decay[DECAYS]; /* of each channel, or of the head */
#pragma unroll
        for (int i = 0; i < DECAYS; i++)
            decay[i] = expf(st_cuda_softplus(element(now.alpha[i / 4], i % 4) + bias[i]) * rate);
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) {
            float4 e = make_float4(decay[4 * i % DECAYS], decay[(4 * i + 1) % DECAYS], decay[(4 * i + 2) % DECAYS],
                                   decay[(4 * i + 3) % DECAYS]);
            sums[0] += dot(now.q[i], now.q[i]);
            sums[1] += dot(now.k[i], now.k[i]);
            sums[2] += dot(now.q[i], now.k[i]);
#pragma unroll
            for (int n = 0; n < SET_COLUMNS; n++) {
                float4 s = make_float4(state[n][4 * i], state[n][4 * i + 1], state[n][4 * i + 2], state[n][4 * i + 3]);
                if (CHANNELS) s = times(e, s);
                sums[3 + 2 * n] += dot(s, now.k[i]);
                sums[4 + 2 * n] += dot(s, now.q[i]);
            }
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < SUMS; i++) sums[i] += __shfl_xor_sync(0xFFFFFFFFu, sums[i], step);
        float q_scale = st_cuda_reciprocal_root(sums[0] + 1e-6f), k_scale = st_cuda_reciprocal_root(sums[1] + 1e-6f);
        float b = st_cuda_sigmoid(now.beta), after = CHANNELS ? 1 : decay[0]; /* after: what the sums do not have yet */
#pragma unroll
        for (int n = 0; n < SET_COLUMNS; n++) {
            float delta = b * (now.value[n] - after * sums[3 + 2 * n] * k_scale), step = delta * k_scale;
            float out = after * sums[4 + 2 * n] * q_scale + sums[2] * q_scale * k_scale * delta;
            if (lane == n) a.out[((size_t)row * a.value_heads + head) * SIZE + column + n] = out * (1 / sqrtf((float)SIZE));
#pragma unroll
            for (int i = 0; i < KEYS; i++) state[n][i] = decay[i % DECAYS] * state[n][i] + step * element(now.k[i / 4], i % 4);
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++)
#pragma unroll
        for (int n = 0; n < SET_COLUMNS; n++) own[(size_t)(i / 4 * 32 + 4 * lane + i % 4) * SIZE + n] = state[n][i];
}

template <int SIZE, bool CHANNELS> int start_sets(const st_cuda_call *call, dim3 grid, const st_cuda_delta_args &args)
{
    return st_cuda_start<deltanet_sets<SIZE, CHANNELS>>(call, grid, COLUMNS * SLICES / 2, 0, args);
}

} // namespace

extern "C" int st_cuda_deltanet(const st_cuda_call *call)
{
    const auto &p = call->bound->op->p.deltanet;
    st_cuda_delta_args args = st_cuda_delta_args_of(call);
    size_t bytes = ((size_t)p.size * (COLUMNS + 3) + SLICES * COLUMNS) * sizeof(float);
    int code = (int)cudaFuncSetAttribute(deltanet, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (code != cudaSuccess) return code;
    if (st_cuda_delta_in_chunks(call->bound->op, call->rows)) {
        args.rows_end = ST_CUDA_DELTA_CHUNK_ROWS;
        code = st_cuda_deltanet_chunks(call);
        if (code != cudaSuccess) return code;
    }
    dim3 grid(p.value_heads, st_cuda_blocks(p.size, COLUMNS), st_cuda_conversations_max(call));
    if (p.size == 64) return p.channels ? start_sets<64, true>(call, grid, args) : start_sets<64, false>(call, grid, args);
    if (p.size == 128) return p.channels ? start_sets<128, true>(call, grid, args) : start_sets<128, false>(call, grid, args);
    return st_cuda_start<deltanet>(call, grid, dim3(COLUMNS, SLICES), bytes, args);
}
