/* The reference operations: slow and obvious, on dequantised rows and float activations. The tests compare every
 * faster kernel of every device with them. A result never depends on the number of threads. */
#include "backend/cpu/ref.h"
#include "quant/row.h"

enum { COLUMNS_PER_PART = 16 };

/* --- rows in parallel --------------------------------------------------------------------------------------------- */

typedef struct row_job {
    const st_cpu_call *call;
    st_ref_row row;
} row_job;

static void run_row(void *context, uint32_t worker, size_t row)
{
    const row_job *job = context;
    job->row(job->call, worker, row);
}

void st_ref_each_row(const st_cpu_call *call, st_ref_row row)
{
    row_job job = {.call = call, .row = row};
    st_pool_run(call->pool, run_row, &job, call->rows);
}

/* --- embedding and matrices --------------------------------------------------------------------------------------- */

static void embed_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    float *out = st_cpu_row(call->bound->out, row);
    st_ref_load_row(&call->bound->weight[0], call->bound->weight[0].data, (size_t)st_cpu_step_row(call, row)->id, out);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] *= call->op->p.embed.scale;
}

static void ref_embed(const st_cpu_call *call)
{
    st_ref_each_row(call, embed_row);
}

/* A part is a few columns of the output: each row of the matrix is dequantised once and multiplied with every token. */
static void matmul_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    const st_bound_weight *matrix = &bound->weight[0], *bias = &bound->weight[1];
    float *weights = st_cpu_scratch(call, worker); /* [ne[0]] */
    size_t end = (part + 1) * COLUMNS_PER_PART;
    for (size_t column = part * COLUMNS_PER_PART; column < end && column < bound->out.width; column++) {
        st_ref_load_row(matrix, matrix->data, column, weights);
        float offset = bias->data ? st_cpu_element(bias, column) : 0;
        for (size_t row = 0; row < call->rows; row++) {
            const float *in = st_cpu_row(bound->in[0], row);
            st_cpu_row(bound->out, row)[column] = st_ref_dot(weights, in, matrix->ne[0]) + offset;
        }
    }
}

static void ref_matmul(const st_cpu_call *call)
{
    size_t parts = (call->bound->out.width + COLUMNS_PER_PART - 1) / COLUMNS_PER_PART;
    st_pool_run(call->pool, matmul_part, (void *)(uintptr_t)call, parts);
}

/* A part is a few columns of one head's output. The first part of a head also copies the rest of it. */
static void head_matmul_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    const st_bound_weight *matrix = &bound->weight[0];
    size_t heads = call->op->p.head_matmul.heads;
    size_t in_size = bound->in[0].width / heads, out_size = bound->out.width / heads;
    size_t parts = (matrix->ne[1] + COLUMNS_PER_PART - 1) / COLUMNS_PER_PART;
    size_t head = part / parts, first = part % parts * COLUMNS_PER_PART;
    float *weights = st_cpu_scratch(call, worker); /* [ne[0]] */
    for (size_t column = first; column < first + COLUMNS_PER_PART && column < matrix->ne[1]; column++) {
        st_ref_load_row(matrix, matrix->data, head * matrix->ne[1] + column, weights);
        for (size_t row = 0; row < call->rows; row++) {
            const float *in = st_cpu_row(bound->in[0], row) + head * in_size;
            st_cpu_row(bound->out, row)[head * out_size + column] = st_ref_dot(weights, in, matrix->ne[0]);
        }
    }
    for (size_t row = 0; first == 0 && row < call->rows; row++)
        memcpy(st_cpu_row(bound->out, row) + head * out_size + matrix->ne[1],
               st_cpu_row(bound->in[0], row) + head * in_size + matrix->ne[0],
               (out_size - matrix->ne[1]) * sizeof(float));
}

static void ref_head_matmul(const st_cpu_call *call)
{
    size_t parts = (call->bound->weight[0].ne[1] + COLUMNS_PER_PART - 1) / COLUMNS_PER_PART;
    st_pool_run(call->pool, head_matmul_part, (void *)(uintptr_t)call, parts * call->op->p.head_matmul.heads);
}

/* --- norms and positions ------------------------------------------------------------------------------------------ */

static void rms_norm_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const st_bound_weight *w = &call->bound->weight[0];
    const float *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    size_t group = call->op->p.norm.group;
    for (size_t start = 0; start < call->bound->out.width; start += group) {
        double squares = 0;
        for (size_t i = 0; i < group; i++) squares += (double)in[start + i] * in[start + i];
        float scale = 1.0f / sqrtf((float)(squares / (double)group) + call->op->p.norm.epsilon);
        for (size_t i = 0; i < group; i++) {
            float factor = w->data ? st_cpu_element(w, (start + i) % w->ne[0]) : 1;
            out[start + i] = in[start + i] * scale * factor;
        }
    }
}

static void ref_rms_norm(const st_cpu_call *call)
{
    st_ref_each_row(call, rms_norm_row);
}

static void layer_norm_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const st_bound_weight *w = &call->bound->weight[0];
    const float *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    size_t group = call->op->p.norm.group;
    for (size_t start = 0; start < call->bound->out.width; start += group) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < group; i++) sum += in[start + i];
        float mean = (float)(sum / (double)group);
        for (size_t i = 0; i < group; i++) squares += (double)(in[start + i] - mean) * (in[start + i] - mean);
        float scale = 1.0f / sqrtf((float)(squares / (double)group) + call->op->p.norm.epsilon);
        for (size_t i = 0; i < group; i++) {
            float factor = w->data ? st_cpu_element(w, (start + i) % w->ne[0]) : 1;
            out[start + i] = (in[start + i] - mean) * scale * factor;
        }
    }
}

static void ref_layer_norm(const st_cpu_call *call)
{
    st_ref_each_row(call, layer_norm_row);
}

/* YaRN: high-frequency pairs keep their frequency, low-frequency pairs are interpolated, with a ramp between. */
static float yarn_share(const st_rope *rope, uint32_t pair)
{
    float dims = (float)rope->dims, log_base = 2 * logf(rope->base);
    float low = dims * logf(rope->original_context / (rope->beta_fast * 6.28318530718f)) / log_base;
    float high = dims * logf(rope->original_context / (rope->beta_slow * 6.28318530718f)) / log_base;
    low = fmaxf(rope->unrounded ? low : floorf(low), 0);
    high = fminf(rope->unrounded ? high : ceilf(high), dims - 1);
    float ramp = ((float)pair - low) / fmaxf(0.001f, high - low);
    return 1 - fminf(1, fmaxf(0, ramp)); /* weight of the unscaled frequency */
}

static float rope_angle(const st_rope *rope, const st_bound_weight *factors, uint32_t position, uint32_t pair)
{
    float frequency = (float)(1.0 / pow(rope->base, 2.0 * pair / rope->dims));
    if (factors->data) frequency /= st_cpu_element(factors, pair);
    if (rope->scaling == ST_ROPE_SCALING_NONE) return (float)position * frequency;
    float slow = frequency / rope->scaling_factor;
    float share = rope->scaling == ST_ROPE_SCALING_YARN ? yarn_share(rope, pair) : 0;
    return (float)position * (slow * (1 - share) + frequency * share);
}

static void angles_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const st_rope *rope = &call->op->p.angles.rope;
    float *out = st_cpu_row(call->bound->out, row);
    for (uint32_t pair = 0; pair < rope->dims / 2; pair++) {
        float angle = rope_angle(rope, &call->bound->weight[0], st_cpu_step_row(call, row)->position, pair);
        out[2 * pair] = cosf(angle) * rope->attention_factor;
        out[2 * pair + 1] = sinf(angle) * rope->attention_factor;
    }
}

static void ref_angles(const st_cpu_call *call)
{
    st_ref_each_row(call, angles_row);
}

static void rope_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *rotations = st_cpu_row(call->bound->in[1], row);
    float *value = st_cpu_row(call->bound->out, row);
    size_t pairs = call->op->p.rope.dims / 2;
    bool halves = call->op->p.rope.style == ST_ROPE_HALVES;
    for (size_t head = 0; head < call->op->p.rope.heads; head++) {
        float *base = value + head * call->op->p.rope.head_size + call->op->p.rope.offset;
        for (size_t pair = 0; pair < pairs; pair++) {
            float *a = base + (halves ? pair : 2 * pair), *b = base + (halves ? pair + pairs : 2 * pair + 1);
            float x = *a, y = *b, c = rotations[2 * pair], s = rotations[2 * pair + 1];
            *a = x * c - y * s;
            *b = x * s + y * c;
        }
    }
}

static void ref_rope(const st_cpu_call *call)
{
    st_ref_each_row(call, rope_row);
}

static void temperature_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    uint32_t position = st_cpu_step_row(call, row)->position + (call->op->p.temperature.from_zero ? 0 : 1);
    float chunks = floorf((float)position / (float)call->op->p.temperature.chunk);
    float scale = logf(chunks + 1) * call->op->p.temperature.factor + 1;
    float *value = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) value[i] *= scale;
}

static void ref_temperature(const st_cpu_call *call)
{
    st_ref_each_row(call, temperature_row);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

static void kv_store_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const st_bound_op *bound = call->bound;
    const st_kv_view *kv = &bound->kv;
    const st_step_conversation *c = st_cpu_conversation(call, row);
    const uint32_t *tables = st_step_tables(call->step), position = st_cpu_step_row(call, row)->position;
    st_row_store(kv->type, st_cpu_row(bound->in[0], row), bound->in[0].width, st_kv_key(kv, c, tables, position));
    if (!bound->in[1].data) return; /* the value is a part of the key */
    st_row_store(kv->type, st_cpu_row(bound->in[1], row), bound->in[1].width, st_kv_value(kv, c, tables, position));
}

static void ref_kv_store(const st_cpu_call *call)
{
    st_ref_each_row(call, kv_store_row);
}

/* A part is one head of one row. */
static void attention_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_op *op = call->op;
    const st_kv_view *kv = &call->bound->kv;
    size_t heads = op->p.attention.heads, row = part / heads, head = part % heads;
    size_t key_length = op->p.attention.key_length, value_length = op->p.attention.value_length;
    size_t kv_head = head / (heads / op->p.attention.kv_heads);
    const st_step_conversation *c = st_cpu_conversation(call, row);
    const uint32_t *tables = st_step_tables(call->step), position = st_cpu_step_row(call, row)->position;
    float *key = st_cpu_scratch(call, worker), *value = key + key_length;

    const float *query = st_cpu_row(call->bound->in[0], row) + head * key_length;
    const st_bound_weight *sinks = &call->bound->weight[0];
    float largest = sinks->data ? st_cpu_element(sinks, head) : -INFINITY, sum = sinks->data ? 1 : 0;
    float *out = st_cpu_row(call->bound->out, row) + head * value_length;
    memset(out, 0, value_length * sizeof *out);
    /* Online softmax: the sums are rescaled when the maximum grows, so scratch does not grow with the context. */
    for (uint32_t seen = st_cpu_first_seen(op, position); seen <= position; seen++) {
        st_row_load(kv->type, st_kv_key(kv, c, tables, seen), kv_head * key_length, key_length, key);
        st_row_load(kv->type, st_kv_value(kv, c, tables, seen), kv_head * value_length, value_length, value);
        float score = st_ref_dot(query, key, key_length) * op->p.attention.scale;
        float rescale = score > largest ? expf(largest - score) : 1;
        if (score > largest) largest = score;
        float weight = expf(score - largest);
        sum = sum * rescale + weight;
        st_ref_scale_add(out, rescale, weight, value, value_length);
    }
    for (size_t k = 0; k < value_length; k++) out[k] /= sum;
}

static void ref_attention(const st_cpu_call *call)
{
    st_pool_run(call->pool, attention_part, (void *)(uintptr_t)call, (size_t)call->rows * call->op->p.attention.heads);
}

/* --- element by element ------------------------------------------------------------------------------------------- */

static void slice_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    size_t groups = call->op->p.slice.groups, size = call->bound->out.width / groups;
    for (size_t i = 0; i < groups; i++)
        memcpy(out + i * size, in + i * call->op->p.slice.stride + call->op->p.slice.offset, size * sizeof *out);
}

static void ref_slice(const st_cpu_call *call)
{
    st_ref_each_row(call, slice_row);
}

static void concat_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const st_bound_op *bound = call->bound;
    float *out = st_cpu_row(bound->out, row);
    memcpy(out, st_cpu_row(bound->in[0], row), bound->in[0].width * sizeof *out);
    memcpy(out + bound->in[0].width, st_cpu_row(bound->in[1], row), bound->in[1].width * sizeof *out);
}

static void ref_concat(const st_cpu_call *call)
{
    st_ref_each_row(call, concat_row);
}

static void add_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *a = st_cpu_row(call->bound->in[0], row), *b = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = a[i] + b[i];
}

static void ref_add(const st_cpu_call *call)
{
    st_ref_each_row(call, add_row);
}

static void mul_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *a = st_cpu_row(call->bound->in[0], row), *b = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = a[i] * b[i];
}

static void ref_mul(const st_cpu_call *call)
{
    st_ref_each_row(call, mul_row);
}

static void scale_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = in[i] * call->op->p.scale.factor;
}

static void ref_scale(const st_cpu_call *call)
{
    st_ref_each_row(call, scale_row);
}

static void mul_weight_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const st_bound_weight *w = &call->bound->weight[0];
    const float *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = in[i] * st_cpu_element(w, w->ne[0] == 1 ? 0 : i);
}

static void ref_mul_weight(const st_cpu_call *call)
{
    st_ref_each_row(call, mul_weight_row);
}

static void gated_act_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *gate = st_cpu_row(call->bound->in[0], row);
    const float *up = call->bound->in[1].data ? st_cpu_row(call->bound->in[1], row) : NULL;
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++)
        out[i] = st_ref_gated(call->op->p.gate.activation, gate[i], up ? up[i] : 1);
}

static void ref_gated_act(const st_cpu_call *call)
{
    st_ref_each_row(call, gated_act_row);
}

static void sigmoid_gate_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *in = st_cpu_row(call->bound->in[0], row), *gate = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    bool one = call->bound->in[1].width == 1;
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = in[i] * st_ref_sigmoid(gate[one ? 0 : i]);
}

static void ref_sigmoid_gate(const st_cpu_call *call)
{
    st_ref_each_row(call, sigmoid_gate_row);
}

static void silu_gate_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *in = st_cpu_row(call->bound->in[0], row), *gate = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = in[i] * st_ref_silu(gate[i]);
}

static void ref_silu_gate(const st_cpu_call *call)
{
    st_ref_each_row(call, silu_gate_row);
}

static void gather_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    size_t from = st_step_out_rows(call->step)[row];
    memcpy(st_cpu_row(call->bound->out, row), st_cpu_row(call->bound->in[0], from),
           call->bound->out.width * sizeof(float));
}

static void ref_gather(const st_cpu_call *call)
{
    st_ref_each_row(call, gather_row);
}

static void softcap_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    float cap = call->op->p.softcap.cap;
    const float *in = st_cpu_row(call->bound->in[0], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = cap * tanhf(in[i] / cap);
}

static void ref_softcap(const st_cpu_call *call)
{
    st_ref_each_row(call, softcap_row);
}

const st_cpu_kernel st_cpu_ref_kernels[ST_OP_COUNT] = {
    [ST_OP_EMBED] = ref_embed,
    [ST_OP_MATMUL] = ref_matmul,
    [ST_OP_RMS_NORM] = ref_rms_norm,
    [ST_OP_ANGLES] = ref_angles,
    [ST_OP_ROPE] = ref_rope,
    [ST_OP_TEMPERATURE] = ref_temperature,
    [ST_OP_KV_STORE] = ref_kv_store,
    [ST_OP_ATTENTION] = ref_attention,
    [ST_OP_SLICE] = ref_slice,
    [ST_OP_CONCAT] = ref_concat,
    [ST_OP_ADD] = ref_add,
    [ST_OP_SCALE] = ref_scale,
    [ST_OP_MUL_WEIGHT] = ref_mul_weight,
    [ST_OP_GATED_ACT] = ref_gated_act,
    [ST_OP_SIGMOID_GATE] = ref_sigmoid_gate,
    [ST_OP_ROUTE] = st_ref_route,
    [ST_OP_EXPERTS] = st_ref_experts,
    [ST_OP_CONV] = st_ref_conv,
    [ST_OP_DELTANET] = st_ref_deltanet,
    [ST_OP_SILU_GATE] = ref_silu_gate,
    [ST_OP_GATHER] = ref_gather,
    [ST_OP_SOFTCAP] = ref_softcap,
    [ST_OP_CANDIDATES] = st_ref_candidates,
    [ST_OP_LAYER_NORM] = ref_layer_norm,
    [ST_OP_HEAD_MATMUL] = ref_head_matmul,
    [ST_OP_MUL] = ref_mul,
    [ST_OP_SSM] = st_ref_ssm,
};
