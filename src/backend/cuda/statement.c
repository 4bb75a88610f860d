/* What the backend runs: operations, types of weights, and sizes. Compiled into the plugin and into the library, which plans for GPUs
 * that are only described: calls no CUDA. */
#include "backend/cuda/call.h"
#include "backend/cuda/statement.h"

#define BIT(type) ((uint64_t)1 << ST_TYPE_##type)
#define VECTORS (BIT(F32) | BIT(F16) | BIT(BF16))
#define MATRICES                                                                                                       \
    (VECTORS | BIT(Q4_0) | BIT(Q4_1) | BIT(Q5_0) | BIT(Q5_1) | BIT(Q8_0) | BIT(Q2_K) | BIT(Q3_K) | BIT(Q4_K) | BIT(Q5_K) | \
     BIT(Q6_K) | BIT(IQ1_S) | BIT(IQ1_M) | BIT(IQ2_XXS) | BIT(IQ2_XS) | BIT(IQ2_S) | BIT(IQ3_XXS) | BIT(IQ3_S) |       \
     BIT(IQ4_NL) | BIT(IQ4_XS) | BIT(TQ1_0) | BIT(TQ2_0) | BIT(MXFP4) | BIT(NVFP4) |        \
     BIT(Q1_0) | BIT(Q2_0))

/* A weight vector, such as a norm's, is F32, F16 or BF16. */
#define HAS_MATRICES(kind) \
    ((kind) == ST_OP_EMBED || (kind) == ST_OP_MATMUL || (kind) == ST_OP_EXPERTS || (kind) == ST_OP_HEAD_MATMUL)
const uint64_t st_cuda_types[ST_OP_COUNT] = {
#define OP(id, text, cost) [ST_OP_##id] = HAS_MATRICES(ST_OP_##id) ? MATRICES : VECTORS,
#include "model/ops.def"
#undef OP
};

const uint64_t st_cuda_kv_types = VECTORS | BIT(Q8_0);

/* How many of an operation's weights are matrices; the others are vectors. */
static int matrices_of(st_op_kind kind)
{
    return kind == ST_OP_EXPERTS ? ST_CUDA_TABLES : HAS_MATRICES(kind) ? 1 : 0;
}

uint64_t st_cuda_types_of_weight(st_op_kind kind, int weight)
{
    return weight < matrices_of(kind) ? st_cuda_types[kind] : VECTORS;
}

/* Every form of an operation has kernels, up to these sizes. */
bool st_cuda_runs(const st_op *op)
{
    switch (op->kind) {
    case ST_OP_ROUTE: return op->p.route.experts + op->p.route.groups <= ST_CUDA_ROUTES_MAX;
    case ST_OP_CONV: return op->p.conv.width <= ST_CUDA_TAPS_MAX;
    case ST_OP_DELTANET: return op->p.deltanet.size <= ST_CUDA_DELTA_MAX;
    case ST_OP_SSM: return op->p.ssm.state_size <= ST_CUDA_STATE_MAX;
    default: return true;
    }
}

const st_backend_statement st_cuda_statement = {.types = st_cuda_types, .runs = st_cuda_runs};
