/* Which function launches the kernels of which operation. Knows neither streams nor graphs. */
#include "backend/cuda/call.h"

static const st_cuda_kernel kernels[ST_OP_COUNT] = {
    [ST_OP_EMBED] = st_cuda_embed,
    [ST_OP_MATMUL] = st_cuda_matmul,
    [ST_OP_RMS_NORM] = st_cuda_rms_norm,
    [ST_OP_ANGLES] = st_cuda_angles,
    [ST_OP_ROPE] = st_cuda_rope,
    [ST_OP_TEMPERATURE] = st_cuda_temperature,
    [ST_OP_KV_STORE] = st_cuda_kv_store,
    [ST_OP_ATTENTION] = st_cuda_attention,
    [ST_OP_SLICE] = st_cuda_slice,
    [ST_OP_CONCAT] = st_cuda_concat,
    [ST_OP_ADD] = st_cuda_add,
    [ST_OP_SCALE] = st_cuda_scale,
    [ST_OP_MUL_WEIGHT] = st_cuda_mul_weight,
    [ST_OP_GATED_ACT] = st_cuda_gated_act,
    [ST_OP_SIGMOID_GATE] = st_cuda_sigmoid_gate,
    [ST_OP_ROUTE] = st_cuda_route,
    [ST_OP_EXPERTS] = st_cuda_experts,
    [ST_OP_CONV] = st_cuda_conv,
    [ST_OP_DELTANET] = st_cuda_deltanet,
    [ST_OP_SILU_GATE] = st_cuda_silu_gate,
    [ST_OP_GATHER] = st_cuda_gather,
    [ST_OP_SOFTCAP] = st_cuda_softcap,
    [ST_OP_CANDIDATES] = st_cuda_candidates,
    [ST_OP_LAYER_NORM] = st_cuda_layer_norm,
    [ST_OP_HEAD_MATMUL] = st_cuda_head_matmul,
    [ST_OP_MUL] = st_cuda_mul,
    [ST_OP_SSM] = st_cuda_ssm,
};

int st_cuda_run(const st_cuda_call *call)
{
    if (call->handover) return st_cuda_handover_run(call);
    if (st_cuda_is_skipped(call, call->rows)) return 0;
    return call->positioned ? st_cuda_positions_run(call) : kernels[call->bound->op->kind](call);
}
