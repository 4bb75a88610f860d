/* The kernel table of the fast path, and the operations that work on one row at a time. */
#include "backend/cpu/fast.h"

#include <math.h>
#include <string.h>

enum { PARALLEL_ELEMENTS = 1 << 15 }; /* for fewer elements, dispatching to the pool costs more than it saves */

typedef void (*row_function)(const st_cpu_call *call, size_t row);

typedef struct rows_job {
    const st_cpu_call *call;
    row_function function;
} rows_job;

static void rows_part(void *context, uint32_t worker, size_t row)
{
    (void)worker;
    const rows_job *job = context;
    job->function(job->call, row);
}

static void each_row(const st_cpu_call *call, size_t width, row_function function)
{
    rows_job job = {.call = call, .function = function};
    if (call->rows * width >= PARALLEL_ELEMENTS) {
        st_pool_run(call->pool, rows_part, &job, call->rows);
        return;
    }
    for (size_t row = 0; row < call->rows; row++) function(call, row);
}

/* The weight is absent or float32. Other types run on the reference kernel. */
static bool is_float(const st_bound_weight *weight)
{
    return !weight->data || weight->type == ST_TYPE_F32;
}

static void reference(const st_cpu_call *call)
{
    st_cpu_ref_kernels[call->op->kind](call);
}

static void norm_row(const st_cpu_call *call, size_t row)
{
    const float *weight = call->bound->weight[0].data, *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    size_t group = call->op->p.norm.group, width = call->bound->out.width;
    bool whole = weight && call->bound->weight[0].ne[0] == width;
    for (size_t start = 0; start < width; start += group) {
        float mean = call->isa->sum_squares(in + start, group) / (float)group;
        float factor = 1.0f / sqrtf(mean + call->op->p.norm.epsilon);
        call->isa->norm(in + start, whole ? weight + start : weight, factor, out + start, group);
    }
}

static void fast_norm(const st_cpu_call *call)
{
    if (!is_float(&call->bound->weight[0])) reference(call);
    else each_row(call, call->bound->out.width, norm_row);
}

static void layer_norm_row(const st_cpu_call *call, size_t row)
{
    const float *weight = call->bound->weight[0].data, *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    size_t width = call->bound->out.width;
    double sum = 0;
    for (size_t i = 0; i < width; i++) sum += in[i];
    float mean = (float)(sum / (double)width);
    for (size_t i = 0; i < width; i++) out[i] = in[i] - mean;
    float variance = call->isa->sum_squares(out, width) / (float)width;
    call->isa->norm(out, weight, 1.0f / sqrtf(variance + call->op->p.norm.epsilon), out, width);
}

static void fast_layer_norm(const st_cpu_call *call)
{
    bool whole = call->op->p.norm.group == call->bound->out.width;
    if (!is_float(&call->bound->weight[0]) || !whole) reference(call);
    else each_row(call, call->bound->out.width, layer_norm_row);
}

static void rope_row(const st_cpu_call *call, size_t row)
{
    const float *rotations = st_cpu_row(call->bound->in[1], row);
    float *value = st_cpu_row(call->bound->out, row);
    size_t pairs = call->op->p.rope.dims / 2;
    for (size_t head = 0; head < call->op->p.rope.heads; head++) {
        float *base = value + head * call->op->p.rope.head_size + call->op->p.rope.offset;
        if (call->op->p.rope.style == ST_ROPE_HALVES) {
            call->isa->rotate(base, base + pairs, rotations, pairs);
            continue;
        }
        for (size_t i = 0; i < pairs; i++) {
            float x = base[2 * i], y = base[2 * i + 1], c = rotations[2 * i], s = rotations[2 * i + 1];
            base[2 * i] = x * c - y * s;
            base[2 * i + 1] = x * s + y * c;
        }
    }
}

static void fast_rope(const st_cpu_call *call)
{
    each_row(call, call->bound->out.width, rope_row);
}

enum { HEAD_COLUMNS = 16 }; /* of a head's output, computed at a time */

/* A part is a few columns of one head, for all rows: each row of the matrix is read once. */
static void head_matmul_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    const st_bound_weight *matrix = &bound->weight[0];
    size_t heads = call->op->p.head_matmul.heads, in_size = bound->in[0].width / heads, out_size = bound->out.width / heads;
    size_t parts = (matrix->ne[1] + HEAD_COLUMNS - 1) / HEAD_COLUMNS, head = part / parts, first = part % parts * HEAD_COLUMNS;
    float (*dot)(const void *row, const float *x, size_t count) = call->isa->dot_float[matrix->type];
    float *floats = st_cpu_scratch(call, worker); /* [ne[0]] */
    for (size_t column = first; column < first + HEAD_COLUMNS && column < matrix->ne[1]; column++) {
        const void *weights = (const unsigned char *)matrix->data + (head * matrix->ne[1] + column) * matrix->row_bytes;
        if (!dot) matrix->info->dequantise(weights, floats, matrix->ne[0] / matrix->info->block);
        for (size_t row = 0; row < call->rows; row++) {
            const float *in = st_cpu_row(bound->in[0], row) + head * in_size;
            st_cpu_row(bound->out, row)[head * out_size + column] =
                dot ? dot(weights, in, matrix->ne[0]) : call->isa->dot_float[ST_TYPE_F32](floats, in, matrix->ne[0]);
        }
    }
    for (size_t row = 0; first == 0 && row < call->rows; row++)
        memcpy(st_cpu_row(bound->out, row) + head * out_size + matrix->ne[1],
               st_cpu_row(bound->in[0], row) + head * in_size + matrix->ne[0], (out_size - matrix->ne[1]) * sizeof(float));
}

static void fast_head_matmul(const st_cpu_call *call)
{
    size_t parts = (call->bound->weight[0].ne[1] + HEAD_COLUMNS - 1) / HEAD_COLUMNS;
    st_pool_run(call->pool, head_matmul_part, (void *)(uintptr_t)call, parts * call->op->p.head_matmul.heads);
}

static void kv_store_row(const st_cpu_call *call, size_t row)
{
    const st_bound_op *bound = call->bound;
    const st_kv_view *kv = &bound->kv;
    const st_step_conversation *c = st_cpu_conversation(call, row);
    const uint32_t *tables = st_step_tables(call->step), position = st_cpu_step_row(call, row)->position;
    void (*store)(const float *in, void *out, size_t count) = call->isa->from_float[kv->type];
    store(st_cpu_row(bound->in[0], row), st_kv_key(kv, c, tables, position), bound->in[0].width);
    if (bound->in[1].data) store(st_cpu_row(bound->in[1], row), st_kv_value(kv, c, tables, position), bound->in[1].width);
}

static void fast_kv_store(const st_cpu_call *call)
{
    if (!call->isa->from_float[call->bound->kv.type]) reference(call);
    else each_row(call, call->bound->in[0].width, kv_store_row);
}

static void add_row(const st_cpu_call *call, size_t row)
{
    float *out = st_cpu_row(call->bound->out, row), *first = st_cpu_row(call->bound->in[0], row);
    if (out != first) memcpy(out, first, call->bound->out.width * sizeof *out);
    call->isa->add_scaled(out, st_cpu_row(call->bound->in[1], row), 1, call->bound->out.width);
}

static void fast_add(const st_cpu_call *call)
{
    each_row(call, call->bound->out.width, add_row);
}

static void mul_row(const st_cpu_call *call, size_t row)
{
    call->isa->multiply(st_cpu_row(call->bound->in[0], row), st_cpu_row(call->bound->in[1], row),
                        st_cpu_row(call->bound->out, row), call->bound->out.width);
}

static void fast_mul(const st_cpu_call *call)
{
    each_row(call, call->bound->out.width, mul_row);
}

static void scale_row(const st_cpu_call *call, size_t row)
{
    call->isa->scale(st_cpu_row(call->bound->in[0], row), call->op->p.scale.factor, st_cpu_row(call->bound->out, row),
                     call->bound->out.width);
}

static void fast_scale(const st_cpu_call *call)
{
    each_row(call, call->bound->out.width, scale_row);
}

static void mul_weight_row(const st_cpu_call *call, size_t row)
{
    const float *weight = call->bound->weight[0].data, *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    bool one = call->bound->weight[0].ne[0] == 1;
    call->isa->norm(in, one ? NULL : weight, one ? weight[0] : 1, out, call->bound->out.width);
}

static void fast_mul_weight(const st_cpu_call *call)
{
    if (!is_float(&call->bound->weight[0])) reference(call);
    else each_row(call, call->bound->out.width, mul_weight_row);
}

static void gated_row(const st_cpu_call *call, size_t row)
{
    call->isa->gated(call->op->p.gate.activation, st_cpu_row(call->bound->in[0], row), st_cpu_row(call->bound->in[1], row),
                     st_cpu_row(call->bound->out, row), call->bound->out.width);
}

static void relu_squared_row(const st_cpu_call *call, size_t row)
{
    call->isa->relu_squared(st_cpu_row(call->bound->in[0], row), st_cpu_row(call->bound->out, row), call->bound->out.width);
}

static void fast_gated(const st_cpu_call *call)
{
    bool alone = !call->bound->in[1].data;
    if (alone && call->op->p.gate.activation != ST_ACT_RELU_SQUARED) reference(call);
    else each_row(call, call->bound->out.width, alone ? relu_squared_row : gated_row);
}

static void sigmoid_gate_row(const st_cpu_call *call, size_t row)
{
    const float *in = st_cpu_row(call->bound->in[0], row), *gate = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    if (call->bound->in[1].width == 1) call->isa->scale(in, 1.0f / (1.0f + expf(-gate[0])), out, call->bound->out.width);
    else call->isa->times_sigmoid(in, gate, out, call->bound->out.width);
}

static void fast_sigmoid_gate(const st_cpu_call *call)
{
    each_row(call, call->bound->out.width, sigmoid_gate_row);
}

static void silu_gate_row(const st_cpu_call *call, size_t row)
{
    call->isa->times_silu(st_cpu_row(call->bound->in[0], row), st_cpu_row(call->bound->in[1], row),
                          st_cpu_row(call->bound->out, row), call->bound->out.width);
}

static void fast_silu_gate(const st_cpu_call *call)
{
    each_row(call, call->bound->out.width, silu_gate_row);
}

static void softcap_row(const st_cpu_call *call, size_t row)
{
    call->isa->tanh_cap(st_cpu_row(call->bound->in[0], row), call->op->p.softcap.cap, st_cpu_row(call->bound->out, row),
                        call->bound->out.width);
}

static void fast_softcap(const st_cpu_call *call)
{
    each_row(call, call->bound->out.width, softcap_row);
}

const st_cpu_kernel st_cpu_fast_kernels[ST_OP_COUNT] = {
    [ST_OP_EMBED] = reference, /* copies one table row per token */
    [ST_OP_MATMUL] = st_cpu_fast_matmul,
    [ST_OP_RMS_NORM] = fast_norm,
    [ST_OP_ANGLES] = reference, /* runs once per batch, not per layer */
    [ST_OP_ROPE] = fast_rope,
    [ST_OP_TEMPERATURE] = reference, /* one multiplication per element, in one layer of four of one model family */
    [ST_OP_KV_STORE] = fast_kv_store,
    [ST_OP_ATTENTION] = st_cpu_fast_attention,
    [ST_OP_SLICE] = reference, /* only copies */
    [ST_OP_CONCAT] = reference,
    [ST_OP_ADD] = fast_add,
    [ST_OP_SCALE] = fast_scale,
    [ST_OP_MUL_WEIGHT] = fast_mul_weight,
    [ST_OP_GATED_ACT] = fast_gated,
    [ST_OP_SIGMOID_GATE] = fast_sigmoid_gate,
    [ST_OP_ROUTE] = reference,
    [ST_OP_EXPERTS] = st_cpu_fast_experts,
    [ST_OP_CONV] = st_cpu_fast_conv,
    [ST_OP_DELTANET] = st_cpu_fast_deltanet,
    [ST_OP_SILU_GATE] = fast_silu_gate,
    [ST_OP_GATHER] = reference,
    [ST_OP_SOFTCAP] = fast_softcap,
    [ST_OP_CANDIDATES] = reference, /* logits that the CPU computes go to the sampler as they are */
    [ST_OP_LAYER_NORM] = fast_layer_norm,
    [ST_OP_HEAD_MATMUL] = fast_head_matmul,
    [ST_OP_MUL] = fast_mul,
    [ST_OP_SSM] = st_cpu_fast_ssm,
};
