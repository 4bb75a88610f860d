/* The gated delta rule: S ← decay·S; δ = b·(v − Sᵀk); S ← S + k⊗δ; o = Sᵀq / √d. Columns of the state do not depend on each
 * other: a block runs COLUMNS of one head through the rows of a conversation, with its part of the state in shared memory. */
#include "backend/cuda/common.cuh"

namespace {

enum { COLUMNS = 32, SLICES = 8 };

struct delta_args {
    st_cuda_rows rows;
    const float *qkv, *alpha, *beta;
    float *out;
    float *state; /* of slot 0: [value_heads, size, size] */
    size_t slot_floats;
    st_cuda_vector bias, a;
    uint32_t key_heads, value_heads, size;
};

/* out = in / ‖in‖, by one warp. */
__device__ void unit_length(const float *in, uint32_t count, float *out)
{
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < count; i += ST_CUDA_WARP) squares += in[i] * in[i];
    float scale = 1.0f / sqrtf(st_cuda_warp_sum(squares) + 1e-6f);
    for (uint32_t i = threadIdx.x; i < count; i += ST_CUDA_WARP) out[i] = in[i] * scale;
}

__device__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

__global__ void __launch_bounds__(COLUMNS * SLICES) deltanet(delta_args a)
{
    extern __shared__ float shared[]; /* state[size, COLUMNS], q[size], k[size], partial[SLICES, COLUMNS] */
    float *state = shared, *q = state + a.size * COLUMNS, *k = q + a.size, *partial = k + a.size;
    uint32_t head = blockIdx.x, key_head = head % a.key_heads, x = threadIdx.x, y = threadIdx.y;
    uint32_t column = blockIdx.y * COLUMNS + x, channels = (2 * a.key_heads + a.value_heads) * a.size;
    bool inside = column < a.size;
    if (blockIdx.z >= a.rows.conversation_count()) return;
    const st_step_conversation &c = a.rows.conversation(blockIdx.z);
    float *own = a.state + c.slot * a.slot_floats + (size_t)head * a.size * a.size + column, bias = a.bias.at(head), rate = a.a.at(head);
    for (uint32_t i = y; i < a.size; i += SLICES) state[i * COLUMNS + x] = inside ? own[(size_t)i * a.size] : 0;
    for (uint32_t row = c.first_row; row < c.first_row + c.rows; row++) {
        const float *qkv = a.qkv + (size_t)row * channels;
        if (y == 0) unit_length(qkv + key_head * a.size, a.size, q);
        if (y == 1) unit_length(qkv + (a.key_heads + key_head) * a.size, a.size, k);
        float value = inside ? qkv[(2 * a.key_heads + head) * a.size + column] : 0;
        float decay = expf(softplus(a.alpha[(size_t)row * a.value_heads + head] + bias) * rate);
        float b = st_cuda_sigmoid(a.beta[(size_t)row * a.value_heads + head]), part = 0, sum = 0;
        __syncthreads();
        for (uint32_t i = y; i < a.size; i += SLICES) {
            state[i * COLUMNS + x] *= decay;
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

} // namespace

extern "C" int st_cuda_deltanet(const st_cuda_call *call)
{
    const st_bound_op *b = call->bound;
    const auto &p = b->op->p.deltanet;
    delta_args args = {st_cuda_rows_of(call), st_cuda_floats(b->in[0]), st_cuda_floats(b->in[1]), st_cuda_floats(b->in[2]),
                       st_cuda_floats(b->out), b->state.delta, b->state.slot_floats, st_cuda_vector_of(&b->weight[0]),
                       st_cuda_vector_of(&b->weight[1]), p.key_heads, p.value_heads, p.size};
    size_t bytes = ((size_t)p.size * (COLUMNS + 2) + SLICES * COLUMNS) * sizeof(float);
    int code = (int)cudaFuncSetAttribute(deltanet, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (code != cudaSuccess) return code;
    dim3 grid(p.value_heads, st_cuda_blocks(p.size, COLUMNS), st_cuda_conversations_max(call));
    return st_cuda_start<deltanet>(call->stream, grid, dim3(COLUMNS, SLICES), bytes, args);
}
