/* The reference operations: slow and obvious, on dequantised rows and float activations. The tests compare every
 * faster kernel of every device with them. A result never depends on the number of threads. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "quant/row.h"

/* --- reading weights ---------------------------------------------------------------------------------------------- */

enum { LANES = 16, COLUMNS_PER_PART = 16 };

static void load_row(const st_bound_weight *w, const void *data, size_t row, float *out)
{
    w->info->dequantise((const unsigned char *)data + row * w->row_bytes, out, w->ne[0] / w->info->block);
}

/* Sixteen independent partial sums, in a fixed order. */
static float dot(const float *a, const float *b, size_t count)
{
    float lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t k = 0; k < LANES; k++) lanes[k] += a[i + k] * b[i + k];
    for (size_t k = 0; i + k < count; k++) lanes[k] += a[i + k] * b[i + k];
    for (size_t step = LANES / 2; step > 0; step /= 2)
        for (size_t k = 0; k < step; k++) lanes[k] += lanes[k + step];
    return lanes[0];
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float silu(float x)
{
    return x * sigmoid(x);
}

static float gelu(float x)
{
    const float root = 0.797884560802865f; /* √(2/π) */
    return 0.5f * x * (1.0f + tanhf(root * (x + 0.044715f * x * x * x)));
}

static float activate(st_activation activation, float x)
{
    return activation == ST_ACT_SILU ? silu(x) : gelu(x);
}

/* --- rows in parallel: most operations work on one row at a time -------------------------------------------------- */

typedef struct row_job {
    const st_cpu_call *call;
    void (*row)(const st_cpu_call *call, uint32_t worker, size_t row);
} row_job;

static void run_row(void *context, uint32_t worker, size_t row)
{
    const row_job *job = context;
    job->row(job->call, worker, row);
}

static void each_row(const st_cpu_call *call, void (*row)(const st_cpu_call *, uint32_t, size_t))
{
    row_job job = {.call = call, .row = row};
    st_pool_run(call->pool, run_row, &job, call->rows);
}

/* --- embedding and matrices --------------------------------------------------------------------------------------- */

static void embed_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    float *out = st_cpu_row(call->bound->out, row);
    load_row(&call->bound->weight[0], call->bound->weight[0].data, (size_t)st_cpu_step_row(call, row)->id, out);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] *= call->op->p.embed.scale;
}

static void ref_embed(const st_cpu_call *call)
{
    each_row(call, embed_row);
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
        load_row(matrix, matrix->data, column, weights);
        float offset = bias->data ? st_cpu_element(bias, column) : 0;
        for (size_t row = 0; row < call->rows; row++)
            st_cpu_row(bound->out, row)[column] = dot(weights, st_cpu_row(bound->in[0], row), matrix->ne[0]) + offset;
    }
}

static void ref_matmul(const st_cpu_call *call)
{
    size_t parts = (call->bound->out.width + COLUMNS_PER_PART - 1) / COLUMNS_PER_PART;
    st_pool_run(call->pool, matmul_part, (void *)(uintptr_t)call, parts);
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
    each_row(call, rms_norm_row);
}

/* YaRN: high-frequency pairs keep their frequency, low-frequency pairs are interpolated, with a ramp between. */
static float yarn_share(const st_rope *rope, uint32_t pair)
{
    float dims = (float)rope->dims, log_base = 2 * logf(rope->base);
    float low = floorf(dims * logf(rope->original_context / (rope->beta_fast * 6.28318530718f)) / log_base);
    float high = ceilf(dims * logf(rope->original_context / (rope->beta_slow * 6.28318530718f)) / log_base);
    low = fmaxf(low, 0);
    high = fminf(high, dims - 1);
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
    each_row(call, angles_row);
}

static void rope_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *rotations = st_cpu_row(call->bound->in[1], row);
    float *value = st_cpu_row(call->bound->out, row);
    size_t pairs = call->op->p.rope.dims / 2;
    bool halves = call->op->p.rope.style == ST_ROPE_HALVES;
    for (size_t head = 0; head < call->op->p.rope.heads; head++) {
        float *base = value + head * call->op->p.rope.head_size;
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
    each_row(call, rope_row);
}

static void temperature_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    uint32_t position = st_cpu_step_row(call, row)->position;
    float chunks = floorf((float)(position + 1) / (float)call->op->p.temperature.chunk);
    float scale = logf(chunks + 1) * call->op->p.temperature.factor + 1;
    float *value = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) value[i] *= scale;
}

static void ref_temperature(const st_cpu_call *call)
{
    each_row(call, temperature_row);
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
    st_row_store(kv->type, st_cpu_row(bound->in[1], row), bound->in[1].width, st_kv_value(kv, c, tables, position));
}

static void ref_kv_store(const st_cpu_call *call)
{
    each_row(call, kv_store_row);
}

static void softmax(float *scores, size_t count)
{
    float largest = -INFINITY;
    for (size_t i = 0; i < count; i++) largest = fmaxf(largest, scores[i]);
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        scores[i] = expf(scores[i] - largest);
        sum += scores[i];
    }
    for (size_t i = 0; i < count; i++) scores[i] = (float)(scores[i] / sum);
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
    float *out = st_cpu_row(call->bound->out, row) + head * value_length, largest = -INFINITY, sum = 0;
    memset(out, 0, value_length * sizeof *out);
    /* Online softmax: the sums are rescaled when the maximum grows, so scratch does not grow with the context. */
    for (uint32_t seen = st_cpu_first_seen(op, position); seen <= position; seen++) {
        st_row_load(kv->type, st_kv_key(kv, c, tables, seen), kv_head * key_length, key_length, key);
        st_row_load(kv->type, st_kv_value(kv, c, tables, seen), kv_head * value_length, value_length, value);
        float score = dot(query, key, key_length) * op->p.attention.scale;
        float rescale = score > largest ? expf(largest - score) : 1;
        if (score > largest) largest = score;
        float weight = expf(score - largest);
        sum = sum * rescale + weight;
        for (size_t k = 0; k < value_length; k++) out[k] = out[k] * rescale + weight * value[k];
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
    each_row(call, slice_row);
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
    each_row(call, concat_row);
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
    each_row(call, add_row);
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
    each_row(call, scale_row);
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
    each_row(call, mul_weight_row);
}

static void gated_act_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *gate = st_cpu_row(call->bound->in[0], row), *up = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = activate(call->op->p.gate.activation, gate[i]) * up[i];
}

static void ref_gated_act(const st_cpu_call *call)
{
    each_row(call, gated_act_row);
}

static void sigmoid_gate_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *in = st_cpu_row(call->bound->in[0], row), *gate = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    bool one = call->bound->in[1].width == 1;
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = in[i] * sigmoid(gate[one ? 0 : i]);
}

static void ref_sigmoid_gate(const st_cpu_call *call)
{
    each_row(call, sigmoid_gate_row);
}

static void silu_gate_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    const float *in = st_cpu_row(call->bound->in[0], row), *gate = st_cpu_row(call->bound->in[1], row);
    float *out = st_cpu_row(call->bound->out, row);
    for (size_t i = 0; i < call->bound->out.width; i++) out[i] = in[i] * silu(gate[i]);
}

static void ref_silu_gate(const st_cpu_call *call)
{
    each_row(call, silu_gate_row);
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
    each_row(call, gather_row);
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
    each_row(call, softcap_row);
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

/* Overwrites the scores; no later operation reads them. */
static void route_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    (void)worker;
    float *scores = st_cpu_row(call->bound->in[0], row);
    int32_t *ids = (int32_t *)call->bound->out.data + row * call->bound->out.width;
    float *weights = st_cpu_row(call->bound->out2, row);
    size_t experts = call->op->p.route.experts, used = call->op->p.route.used;
    bool sigmoids = call->op->p.route.router == ST_ROUTER_SIGMOID;
    if (!sigmoids) softmax(scores, experts);
    float sum = 0;
    for (size_t i = 0; i < used; i++) {
        size_t best = 0;
        for (size_t k = 1; k < experts; k++)
            if (scores[k] > scores[best]) best = k;
        ids[i] = (int32_t)best;
        weights[i] = sigmoids ? sigmoid(scores[best]) : scores[best];
        sum += weights[i];
        scores[best] = -INFINITY;
    }
    if (call->op->p.route.renormalise)
        for (size_t i = 0; i < used; i++) weights[i] /= sum;
}

static void ref_route(const st_cpu_call *call)
{
    each_row(call, route_row);
}

/* out[columns] = `columns` rows of one expert's matrix, starting at `first`, · in */
static void expert_matmul(const st_bound_weight *w, size_t expert, size_t first, size_t columns, const float *in,
                          float *row, float *out)
{
    for (size_t i = 0; i < columns; i++) {
        load_row(w, w->parts[expert], first + i, row);
        out[i] = dot(row, in, w->ne[0]);
    }
}

static void experts_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    const st_bound_op *bound = call->bound;
    const st_bound_weight *first = &bound->weight[0], *down = &bound->weight[2], *factors = &bound->weight[3];
    size_t width = call->op->p.experts.width, embedding = bound->in[0].width;
    const float *x = st_cpu_row(bound->in[0], row), *weights = st_cpu_row(bound->in[2], row);
    const int32_t *ids = (const int32_t *)bound->in[1].data + row * bound->in[1].width;
    float *out = st_cpu_row(bound->out, row);
    /* scratch: input[E], gate[F], up[F], one row of a matrix [max(E, F)] */
    float *input = st_cpu_scratch(call, worker), *gate = input + embedding, *up = gate + width, *matrix_row = up + width;
    bool fused = call->op->p.experts.fused, on_input = call->op->p.experts.weight_on_input;
    memset(out, 0, embedding * sizeof *out);
    for (size_t i = 0; i < call->op->p.experts.used; i++) {
        size_t expert = (size_t)ids[i];
        if (!first->parts[expert]) continue;
        for (size_t k = 0; k < embedding; k++) input[k] = x[k] * (on_input ? weights[i] : 1);
        expert_matmul(first, expert, 0, width, input, matrix_row, gate);
        expert_matmul(fused ? first : &bound->weight[1], expert, fused ? width : 0, width, input, matrix_row, up);
        for (size_t k = 0; k < width; k++) gate[k] = activate(call->op->p.experts.activation, gate[k]) * up[k];
        float weight = (on_input ? 1 : weights[i]) * (factors->data ? st_cpu_element(factors, expert) : 1);
        for (size_t k = 0; k < embedding; k++) {
            load_row(down, down->parts[expert], k, matrix_row);
            out[k] += weight * dot(matrix_row, gate, width);
        }
    }
}

static void ref_experts(const st_cpu_call *call)
{
    each_row(call, experts_row);
}

/* --- recurrent layers --------------------------------------------------------------------------------------------- */

enum { CHANNELS_PER_PART = 64, TAPS_MAX = 64 };

/* One channel of one conversation: its rows, in order. */
static void conv_channel(const st_cpu_call *call, const st_step_conversation *conversation, size_t c)
{
    const st_bound_op *bound = call->bound;
    size_t channels = bound->in[0].width, taps = call->op->p.conv.width;
    float *state = bound->state.conv + conversation->slot * bound->state.slot_floats;
    float seen[TAPS_MAX]; /* the last taps − 1 inputs, oldest first, then the current one */
    for (size_t t = 0; t + 1 < taps; t++) seen[t] = state[t * channels + c];
    for (size_t i = 0; i < conversation->rows; i++) {
        size_t row = conversation->first_row + i;
        seen[taps - 1] = st_cpu_row(bound->in[0], row)[c];
        float sum = 0;
        for (size_t t = 0; t < taps; t++) sum += seen[t] * st_cpu_element(&bound->weight[0], c * taps + t);
        st_cpu_row(bound->out, row)[c] = silu(sum);
        for (size_t t = 0; t + 1 < taps; t++) seen[t] = seen[t + 1];
    }
    for (size_t t = 0; t + 1 < taps; t++) state[t * channels + c] = seen[t];
}

/* A part is a range of channels of all conversations. */
static void conv_part(void *context, uint32_t worker, size_t part)
{
    (void)worker;
    const st_cpu_call *call = context;
    size_t channels = call->bound->in[0].width, end = (part + 1) * CHANNELS_PER_PART;
    for (size_t i = 0; i < call->step->conversation_count; i++)
        for (size_t c = part * CHANNELS_PER_PART; c < end && c < channels; c++)
            conv_channel(call, &st_step_conversations(call->step)[i], c);
}

static void ref_conv(const st_cpu_call *call)
{
    size_t parts = (call->bound->in[0].width + CHANNELS_PER_PART - 1) / CHANNELS_PER_PART;
    st_pool_run(call->pool, conv_part, (void *)(uintptr_t)call, parts);
}

static void l2_normalise(const float *in, size_t count, float *out)
{
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += (double)in[i] * in[i];
    float scale = 1.0f / sqrtf((float)squares + 1e-6f);
    for (size_t i = 0; i < count; i++) out[i] = in[i] * scale;
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* One token of the gated delta rule: S ← decay·S; δ = b·(v − Sᵀk); S ← S + k⊗δ; o = Sᵀq / √d. S is [key, value]. */
static void delta_step(float *state, size_t size, const float *q, const float *k, const float *v, float decay, float b,
                       float *delta, float *out)
{
    for (size_t j = 0; j < size; j++) delta[j] = 0;
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            state[i * size + j] *= decay;
            delta[j] += state[i * size + j] * k[i];
        }
    for (size_t j = 0; j < size; j++) {
        delta[j] = b * (v[j] - delta[j]);
        out[j] = 0;
    }
    float scale = 1.0f / sqrtf((float)size);
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            state[i * size + j] += k[i] * delta[j];
            out[j] += state[i * size + j] * q[i] * scale;
        }
}

/* A part is one value head of one conversation: its rows, in order. */
static void deltanet_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    size_t key_heads = call->op->p.deltanet.key_heads, value_heads = call->op->p.deltanet.value_heads;
    size_t size = call->op->p.deltanet.size, head = part % value_heads, key_head = head % key_heads;
    const st_step_conversation *c = &st_step_conversations(call->step)[part / value_heads];
    float *state = bound->state.delta + c->slot * bound->state.slot_floats + head * size * size;
    float *q = st_cpu_scratch(call, worker), *k = q + size, *delta = k + size;
    float bias = st_cpu_element(&bound->weight[0], head), a = st_cpu_element(&bound->weight[1], head);
    for (size_t row = c->first_row; row < (size_t)c->first_row + c->rows; row++) {
        const float *qkv = st_cpu_row(bound->in[0], row);
        l2_normalise(qkv + key_head * size, size, q);
        l2_normalise(qkv + (key_heads + key_head) * size, size, k);
        const float *v = qkv + (2 * key_heads + head) * size;
        float decay = expf(softplus(st_cpu_row(bound->in[1], row)[head] + bias) * a);
        float b = sigmoid(st_cpu_row(bound->in[2], row)[head]);
        delta_step(state, size, q, k, v, decay, b, delta, st_cpu_row(bound->out, row) + head * size);
    }
}

static void ref_deltanet(const st_cpu_call *call)
{
    size_t parts = (size_t)call->step->conversation_count * call->op->p.deltanet.value_heads;
    st_pool_run(call->pool, deltanet_part, (void *)(uintptr_t)call, parts);
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
    [ST_OP_ROUTE] = ref_route,
    [ST_OP_EXPERTS] = ref_experts,
    [ST_OP_CONV] = ref_conv,
    [ST_OP_DELTANET] = ref_deltanet,
    [ST_OP_SILU_GATE] = ref_silu_gate,
    [ST_OP_GATHER] = ref_gather,
    [ST_OP_SOFTCAP] = ref_softcap,
};
