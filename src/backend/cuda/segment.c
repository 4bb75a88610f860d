/* Segments: operations that are checked once and enqueued to a stream, in order, at each launch. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

/* --- which operations with which types ---------------------------------------------------------------------------- */

#define BIT(type) ((uint64_t)1 << ST_TYPE_##type)
#define VECTORS (BIT(F32) | BIT(F16) | BIT(BF16))
#define MATRICES                                                                                                       \
    (VECTORS | BIT(Q4_0) | BIT(Q4_1) | BIT(Q5_0) | BIT(Q5_1) | BIT(Q8_0) | BIT(Q2_K) | BIT(Q3_K) | BIT(Q4_K) | BIT(Q5_K) | \
     BIT(Q6_K) | BIT(IQ1_S) | BIT(IQ1_M) | BIT(IQ2_XXS) | BIT(IQ2_XS) | BIT(IQ2_S) | BIT(IQ3_XXS) | BIT(IQ3_S) |       \
     BIT(IQ4_NL) | BIT(IQ4_XS) | BIT(TQ1_0) | BIT(TQ2_0) | BIT(MXFP4) | BIT(NVFP4))
#define KV_TYPES (VECTORS | BIT(Q8_0))

/* A weight vector, such as a norm's, is F32, F16 or BF16. */
#define TYPES_OF(kind) ((kind) == ST_OP_EMBED || (kind) == ST_OP_MATMUL || (kind) == ST_OP_EXPERTS ? MATRICES : VECTORS)
const uint64_t st_cuda_types[ST_OP_COUNT] = {
#define OP(id, text, cost) [ST_OP_##id] = TYPES_OF(ST_OP_##id),
#include "model/ops.def"
#undef OP
};

static bool has_bit(uint64_t types, uint32_t type)
{
    return type < 64 && types >> type & 1;
}

/* How many of an operation's weights are matrices; the others are vectors. */
static int matrices_of(st_op_kind kind)
{
    return kind == ST_OP_EXPERTS ? ST_CUDA_TABLES : kind == ST_OP_EMBED || kind == ST_OP_MATMUL ? 1 : 0;
}

static const char *name_of(st_op_kind kind)
{
    static const char *const names[ST_OP_COUNT] = {
#define OP(id, text, cost) [ST_OP_##id] = (text),
#include "model/ops.def"
#undef OP
    };
    return names[kind];
}

static strata_status check_op(const st_bound_op *bound, strata_error *error)
{
    st_op_kind kind = bound->op->kind;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        const st_bound_weight *w = &bound->weight[i];
        if (w->data && !has_bit(i < matrices_of(kind) ? st_cuda_types[kind] : VECTORS, w->type))
            return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s of layer %d: weight %d is of type %s, which has no kernel",
                                name_of(kind), bound->op->layer, i, w->info->name);
    }
    bool has_kv = kind == ST_OP_KV_STORE || kind == ST_OP_ATTENTION;
    if (has_kv && !has_bit(KV_TYPES, bound->kv.type))
        return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s of layer %d: no kernel for KV of type %d", name_of(kind),
                            bound->op->layer, (int)bound->kv.type);
    return STRATA_OK;
}

strata_status st_cuda_prepare(st_device *device, const st_segment_source *source, st_segment **out, strata_error *error)
{
    strata_status status = st_cuda_enter(device, error);
    if (status == STRATA_OK && !source->host_step)
        status = st_error_set(error, STRATA_USAGE, NULL, "a segment for %s: expected the host's copy of the step block",
                              device->facts.name);
    for (uint32_t i = 0; i < source->count && status == STRATA_OK; i++) status = check_op(&source->ops[i], error);
    if (status != STRATA_OK) return status;
    size_t bytes = sizeof(st_segment) + source->count * sizeof(st_bound_op);
    st_segment *segment = st_alloc_zero(1, bytes);
    if (!segment) return st_error_memory(error, bytes, "a segment of the program");
    segment->device = device;
    segment->source = *source;
    memcpy(segment->ops, source->ops, source->count * sizeof *segment->ops);
    segment->source.ops = segment->ops;
    *out = segment;
    return STRATA_OK;
}

void st_cuda_segment_free(st_segment *segment)
{
    st_free(segment);
}

/* --- scratch ------------------------------------------------------------------------------------------------------ */

static size_t aligned(size_t bytes)
{
    return (bytes + ST_CUDA_ALIGNMENT - 1) / ST_CUDA_ALIGNMENT * ST_CUDA_ALIGNMENT;
}

static size_t table_bytes(const st_op *op)
{
    return aligned(op->p.experts.experts * sizeof(void *));
}

/* EXPERTS: copies of the tables, then the hidden rows of every (row, expert) pair. */
st_scratch st_cuda_scratch(const st_bound_op *shape, uint32_t rows)
{
    const st_op *op = shape->op;
    if (op->kind != ST_OP_EXPERTS) return (st_scratch){0};
    size_t hidden = (size_t)rows * op->p.experts.used * op->p.experts.width * sizeof(float);
    return (st_scratch){.shared_bytes = ST_CUDA_TABLES * table_bytes(op) + hidden};
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

/* The host may change the expert tables after the launch, so the launch enqueues a copy. The tables are in pageable
 * memory, which the driver reads before the call returns. */
static strata_status send_tables(const st_segment *segment, st_cuda_call *call, strata_error *error)
{
    st_device *device = segment->device;
    const st_op *op = call->bound->op;
    size_t table = table_bytes(op), needed = st_cuda_scratch(call->bound, call->rows).shared_bytes;
    if (needed > segment->source.shared_bytes)
        return st_error_set(error, STRATA_RUNTIME, NULL, "experts of layer %d: expected %zu bytes of scratch, found %zu",
                            op->layer, needed, segment->source.shared_bytes);
    strata_status status = STRATA_OK;
    for (int i = 0; i < ST_CUDA_TABLES && status == STRATA_OK; i++) {
        const void *const *parts = call->bound->weight[i].parts;
        unsigned char *to = call->scratch;
        call->scratch += table;
        if (!parts) continue;
        call->tables[i] = (const void *const *)(void *)to;
        st_cuda_result sent =
            device->api->copy(to, parts, op->p.experts.experts * sizeof *parts, ST_COPY_UP, call->stream);
        status = st_cuda_check(device, sent, "a copy of the expert tables", error);
    }
    return status;
}

static strata_status launch_op(const st_segment *segment, const st_cuda_call *like, const st_bound_op *bound,
                               strata_error *error)
{
    st_device *device = segment->device;
    st_cuda_call call = *like;
    call.bound = bound;
    strata_status status = bound->op->kind == ST_OP_EXPERTS ? send_tables(segment, &call, error) : STRATA_OK;
    double start = device->profile ? st_clock_seconds() : 0;
    st_cuda_result result = status == STRATA_OK ? device->api->run(&call) : ST_CUDA_OK;
    if (result == ST_CUDA_OK && device->profile) result = device->api->stream_sync(call.stream);
    if (status != STRATA_OK || result != ST_CUDA_OK)
        return status != STRATA_OK ? status : st_cuda_check(device, result, name_of(bound->op->kind), error);
    if (!device->profile) return STRATA_OK;
    st_op_time *time = &device->times[bound->op->kind];
    time->seconds += st_clock_seconds() - start;
    time->calls++;
    return STRATA_OK;
}

strata_status st_cuda_launch(st_segment *segment, st_queue *queue, strata_error *error)
{
    const st_segment_source *source = &segment->source;
    const st_step *step = source->host_step;
    st_cuda_call call = {.step = source->step, .kind = source->rows, .scratch = source->scratch, .stream = queue->stream,
                         .rows = source->rows == ST_ROWS_ALL ? step->count : step->out_count};
    strata_status status = st_cuda_enter(segment->device, error);
    for (uint32_t i = 0; i < source->count && call.rows && status == STRATA_OK; i++)
        status = launch_op(segment, &call, &segment->ops[i], error);
    return status;
}
