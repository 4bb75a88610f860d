/* Times the operations of a token on a GPU, by parts of a layer: each part is repeated in one segment, with weights and KV of its
 * own, and launched a few times between two events. Weights, KV and values are random. Without the CUDA plugin or a GPU, prints
 * so and ends.
 *
 *   bench_gpu [PLUGINS]              all parts, hand-overs first
 *   bench_gpu PLUGINS handover       hand-overs to the host and back, alone
 *   bench_gpu PLUGINS decode OUTPUTS [TEXT]
 *                                    the parts of decoding and the delta rule of prompts, those whose names have TEXT, one line
 *                                    each: name, microseconds, GB/s of weights; writes what each part computed to OUTPUTS, so that two
 *                                    plugins can be compared */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/plugin.h"
#include "quant/quant.h"
#include "quant/row.h"
#include "sampler/candidates.h"

enum {
    MEMORY_BYTES = 2000 << 20, /* weights and KV; more than any cache holds */
    VALUE_BYTES = 128 << 20,   /* of each value, for all copies */
    SCRATCH_BYTES = 512 << 20,
    STEP_BYTES = 1 << 20,
    RANDOM_BYTES = 64 << 20,   /* repeated in all memory */
    COPIES = 16, BATCH_COPIES = 4,
    FEW_ROWS = 64,             /* so many rows are conversations of their own; more are a prompt, and those of a delta rule */
    OUTPUTS_MAX = 1 << 20,     /* the last floats of a part that are written */
    EXPERTS_MAX = 256, USED = 8, TAPS = 4,
    OPS_MAX = 20,
    LAUNCHES = 10,
    TRIES = 3,
    PAGE_SHIFT = 6,
    WAIT_US = 20 * 1000 * 1000,
};

typedef struct shape {
    const char *name;
    uint32_t layers, embedding, heads, kv_heads, head, hidden, vocabulary;
    uint32_t experts; /* 0: none; `hidden` is their width */
    uint32_t key_heads, value_heads, state; /* of the delta rule. 0: none */
} shape;

static const shape shapes[] = {
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 0, 0, 0, 0},
    {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 0, 0, 0, 0},
    {"qwen3-30b", 48, 2048, 32, 4, 128, 768, 151936, 128, 0, 0, 0},
    {"qwen35-35b", 40, 2048, 16, 2, 256, 512, 248320, 256, 16, 32, 128},
};

static struct {
    const st_backend *backend;
    st_device *device;
    st_queue *queue;
    st_event *begin, *end;
    unsigned char *memory, *values, *scratch, *step;
    size_t used;         /* of `memory`, modulo its size */
    st_op ops[OPS_MAX * COPIES];
    st_bound_op bound[OPS_MAX * COPIES];
    uint32_t count;
    uint32_t copy, copies; /* the copy that is being built, of so many */
    const void *parts[BATCH_COPIES * 3][EXPERTS_MAX];
    double weight_bytes; /* of one copy */
    st_type kv_type;
    uint32_t conversations; /* of a step; each has pages of its own */
    FILE *outputs; /* NULL: none */
} g;

static void must(strata_status status, const strata_error *error)
{
    if (status == STRATA_OK) return;
    fprintf(stderr, "bench_gpu: %s\n", error->message);
    exit(1);
}

/* --- a part: its operations are appended to g.bound ----------------------------------------------------------------- */

enum { X, Y, H, Q, K, V, A, O, GATE, UP, ANGLES, LOGITS, IDS, WEIGHTS, SCORES, VALUES };

static st_bound_value value(int index, uint32_t width)
{
    size_t stride = VALUE_BYTES / g.copies / 256 * 256;
    return (st_bound_value){g.values + (size_t)index * VALUE_BYTES + g.copy * stride, width};
}

static void *take(size_t bytes)
{
    bytes = (bytes + 255) / 256 * 256;
    if (g.used + bytes > MEMORY_BYTES) g.used = 0;
    void *at = g.memory + g.used;
    g.used += bytes;
    return at;
}

static st_bound_op *append(st_op_kind kind, st_bound_value in, st_bound_value out)
{
    st_bound_op *b = &g.bound[g.count];
    g.ops[g.count] = (st_op){.kind = kind};
    *b = (st_bound_op){.op = &g.ops[g.count++], .in[0] = in, .out = out};
    return b;
}

static st_op *op_of(const st_bound_op *b)
{
    return &g.ops[b - g.bound];
}

static void matmul(uint32_t type, int in, uint32_t width, int out, uint32_t columns)
{
    st_bound_weight w = {.info = st_type_find(type), .type = type, .ne = {width, columns, 1}};
    st_type_row_bytes(w.info, width, &w.row_bytes);
    w.data = take(w.row_bytes * columns);
    g.weight_bytes += (double)(w.row_bytes * columns) / g.copies;
    append(ST_OP_MATMUL, value(in, width), value(out, columns))->weight[0] = w;
}

static void norm(int in, int out, uint32_t width, uint32_t group)
{
    st_bound_op *b = append(ST_OP_RMS_NORM, value(in, width), value(out, width));
    op_of(b)->p.norm.group = group;
    op_of(b)->p.norm.epsilon = 1e-6f;
    b->weight[0] = (st_bound_weight){.data = take(group * sizeof(float)), .type = ST_TYPE_F32, .info = st_type_find(ST_TYPE_F32),
                                     .ne = {group, 1, 1}, .row_bytes = group * sizeof(float)};
}

static void add(int to, int other, uint32_t width)
{
    append(ST_OP_ADD, value(to, width), value(to, width))->in[1] = value(other, width);
}

static void rope(int of, uint32_t heads, uint32_t head)
{
    st_bound_op *b = append(ST_OP_ROPE, value(of, heads * head), value(of, heads * head));
    b->in[1] = value(ANGLES, head);
    op_of(b)->p.rope.heads = heads;
    op_of(b)->p.rope.head_size = op_of(b)->p.rope.dims = head;
    op_of(b)->p.rope.style = ST_ROPE_HALVES;
}

static void norms_and_rope(const shape *s)
{
    norm(Q, Q, s->heads * s->head, s->head);
    rope(Q, s->heads, s->head);
    norm(K, K, s->kv_heads * s->head, s->head);
    rope(K, s->kv_heads, s->head);
}

static st_kv_view kv_of(const shape *s, uint32_t context)
{
    st_kv_view kv = {.page_shift = PAGE_SHIFT, .pages = g.conversations * ((context >> PAGE_SHIFT) + 1), .type = g.kv_type};
    kv.key_row_bytes = kv.value_row_bytes = st_row_bytes(g.kv_type, (size_t)s->kv_heads * s->head);
    kv.key_page_bytes = kv.value_page_bytes = kv.key_row_bytes << PAGE_SHIFT;
    kv.keys = take(kv.pages * kv.key_page_bytes);
    kv.values = take(kv.pages * kv.value_page_bytes);
    return kv;
}

static void store(const shape *s, const st_kv_view *kv)
{
    uint32_t width = s->kv_heads * s->head;
    st_bound_op *b = append(ST_OP_KV_STORE, value(K, width), (st_bound_value){0});
    b->in[1] = value(V, width);
    b->kv = *kv;
}

static void attend(const shape *s, const st_kv_view *kv)
{
    st_bound_op *b = append(ST_OP_ATTENTION, value(Q, s->heads * s->head), value(A, s->heads * s->head));
    b->kv = *kv;
    op_of(b)->p.attention.heads = s->heads;
    op_of(b)->p.attention.kv_heads = s->kv_heads;
    op_of(b)->p.attention.key_length = op_of(b)->p.attention.value_length = s->head;
    op_of(b)->p.attention.scale = 0.1f;
}

/* A matrix of each expert; `index`: gate, up, down. */
static st_bound_weight expert_matrices(const shape *s, uint32_t type, uint32_t width, uint32_t columns, uint32_t index)
{
    st_bound_weight w = {.info = st_type_find(type), .type = type, .ne = {width, columns, s->experts}};
    st_type_row_bytes(w.info, width, &w.row_bytes);
    const unsigned char *data = take(w.row_bytes * columns * s->experts);
    w.data = data;
    w.parts = g.parts[g.copy * 3 + index];
    for (uint32_t i = 0; i < s->experts; i++) g.parts[g.copy * 3 + index][i] = data + i * w.row_bytes * columns;
    return w;
}

static void experts(const shape *s, uint32_t down_type)
{
    st_bound_op *b = append(ST_OP_EXPERTS, value(H, s->embedding), value(Y, s->embedding));
    b->in[1] = (st_bound_value){g.values + (size_t)IDS * VALUE_BYTES, USED};
    b->in[2] = (st_bound_value){g.values + (size_t)WEIGHTS * VALUE_BYTES, USED};
    op_of(b)->p.experts.experts = s->experts;
    op_of(b)->p.experts.used = USED;
    op_of(b)->p.experts.width = s->hidden;
    b->weight[0] = expert_matrices(s, ST_TYPE_Q4_K, s->embedding, s->hidden, 0);
    b->weight[1] = expert_matrices(s, ST_TYPE_Q4_K, s->embedding, s->hidden, 1);
    b->weight[2] = expert_matrices(s, down_type, s->hidden, s->embedding, 2);
}

typedef enum part {
    PART_NORM, PART_QKV, PART_POSITIONS, PART_ATTEND, PART_ATTENTION, PART_OUT, PART_GATE_UP, PART_ACTIVATION, PART_DOWN, PART_DOWN_Q6_K,
    PART_LAYER, PART_HEAD, PART_EXPERTS, PART_ROUTER, PART_ROUTE, PART_ROUTE_EXPERTS, PART_CONV, PART_DELTA,
    PART_CANDIDATES, PART_NORM_QKV, PART_OUT_TO_UP, PART_UP_TO_DOWN, PART_EXPERTS_Q6_K, PARTS
} part;

static const char *const names[PARTS] = {
    "add, norm", "q, k, v", "norm, rope, store", "… and attention", "attention", "attention out", "gate, up", "activation", "down, Q4_K",
    "down, Q6_K", "the whole layer", "the head", "experts", "router", "route", "route, experts", "convolution", "delta rule", "candidates",
    "norm to q, k, v", "out to gate, up", "gate, up to down", "experts, down Q6_K"};

/* The router's matrix is F32: random numbers of one magnitude, so that rows choose experts evenly. */
static void router(const shape *s)
{
    strata_error error;
    matmul(ST_TYPE_F32, H, s->embedding, SCORES, s->experts);
    const st_bound_weight *w = &g.bound[g.count - 1].weight[0];
    must(g.backend->copy(g.queue, ST_COPY_WITHIN, (void *)(uintptr_t)w->data, value(LOGITS, 0).data, w->row_bytes * s->experts, &error),
         &error);
}

static void route(const shape *s)
{
    st_bound_op *b = append(ST_OP_ROUTE, value(SCORES, s->experts), (st_bound_value){g.values + (size_t)IDS * VALUE_BYTES, USED});
    b->out2 = (st_bound_value){g.values + (size_t)WEIGHTS * VALUE_BYTES, USED};
    op_of(b)->p.route.experts = s->experts;
    op_of(b)->p.route.used = USED;
    op_of(b)->p.route.renormalise = true;
}

static st_bound_weight floats(uint32_t width, uint32_t rows)
{
    return (st_bound_weight){.data = take((size_t)width * rows * sizeof(float)), .type = ST_TYPE_F32, .info = st_type_find(ST_TYPE_F32),
                             .ne = {width, rows, 1}, .row_bytes = width * sizeof(float)};
}

static st_state_view state_of(const shape *s, uint32_t channels)
{
    size_t conv = (size_t)(TAPS - 1) * channels, delta = (size_t)s->value_heads * s->state * s->state;
    float *memory = take((conv + delta) * FEW_ROWS * sizeof(float));
    return (st_state_view){.conv = memory, .delta = memory + conv, .slot_floats = conv + delta, .slots = FEW_ROWS};
}

static void convolve(const shape *s)
{
    uint32_t channels = (2 * s->key_heads + s->value_heads) * s->state;
    st_bound_op *b = append(ST_OP_CONV, value(Q, channels), value(Q, channels));
    b->weight[0] = floats(TAPS, channels);
    b->state = state_of(s, channels);
    op_of(b)->p.conv.width = TAPS;
}

static void delta_rule(const shape *s)
{
    uint32_t channels = (2 * s->key_heads + s->value_heads) * s->state;
    st_bound_op *b = append(ST_OP_DELTANET, value(Q, channels), value(A, s->value_heads * s->state));
    b->in[1] = value(K, s->value_heads);
    b->in[2] = value(V, s->value_heads);
    b->weight[0] = floats(s->value_heads, 1);
    b->weight[1] = floats(s->value_heads, 1);
    b->state = state_of(s, channels);
    op_of(b)->p.deltanet.key_heads = s->key_heads;
    op_of(b)->p.deltanet.value_heads = s->value_heads;
    op_of(b)->p.deltanet.size = s->state;
}

/* The adjustments are empty lists: 16 bytes of zeros at their begin. */
static void candidates(const shape *s)
{
    st_bound_op *b = append(ST_OP_CANDIDATES, value(LOGITS, s->vocabulary), value(O, sizeof(st_candidates) / sizeof(float)));
    b->in[1] = value(SCORES, sizeof(st_adjustments) / sizeof(float));
}

static void project_up(const shape *s)
{
    matmul(ST_TYPE_Q4_K, H, s->embedding, GATE, s->hidden);
    matmul(ST_TYPE_Q4_K, H, s->embedding, UP, s->hidden);
}

static void activate(const shape *s)
{
    append(ST_OP_GATED_ACT, value(GATE, s->hidden), value(GATE, s->hidden))->in[1] = value(UP, s->hidden);
}

static void build(part p, const shape *s, uint32_t context)
{
    uint32_t q = s->heads * s->head, kv = s->kv_heads * s->head;
    bool all = p == PART_LAYER;
    st_kv_view view = kv_of(s, context);
    bool out_to_up = p == PART_OUT_TO_UP, up_to_down = p == PART_UP_TO_DOWN;
    if (all || p == PART_NORM || p == PART_NORM_QKV) add(X, Y, s->embedding), norm(X, H, s->embedding, s->embedding);
    if (all || p == PART_QKV || p == PART_NORM_QKV) {
        matmul(ST_TYPE_Q4_K, H, s->embedding, Q, q);
        matmul(ST_TYPE_Q4_K, H, s->embedding, K, kv);
        matmul(ST_TYPE_Q4_K, H, s->embedding, V, kv);
    }
    if (all || p == PART_POSITIONS || p == PART_ATTEND) norms_and_rope(s), store(s, &view);
    if (all || p == PART_ATTEND || p == PART_ATTENTION) attend(s, &view);
    if (all || p == PART_OUT || out_to_up) matmul(ST_TYPE_Q4_K, A, q, O, s->embedding);
    if (all || out_to_up) add(X, O, s->embedding), norm(X, H, s->embedding, s->embedding);
    if ((all && s->experts) || p == PART_ROUTER) router(s);
    if ((all && s->experts) || p == PART_ROUTE || p == PART_ROUTE_EXPERTS) route(s);
    if ((all && s->experts) || p == PART_EXPERTS || p == PART_ROUTE_EXPERTS) experts(s, ST_TYPE_Q4_K);
    if (p == PART_EXPERTS_Q6_K) experts(s, ST_TYPE_Q6_K);
    if (p == PART_CONV) convolve(s);
    if (p == PART_DELTA) delta_rule(s);
    if (p == PART_CANDIDATES) candidates(s);
    if (all && s->experts) return;
    if (all || p == PART_GATE_UP || out_to_up || up_to_down) project_up(s);
    if (all || p == PART_ACTIVATION || up_to_down) activate(s);
    if (all || p == PART_DOWN || up_to_down) matmul(ST_TYPE_Q4_K, GATE, s->hidden, Y, s->embedding);
    if (p == PART_DOWN_Q6_K) matmul(ST_TYPE_Q6_K, GATE, s->hidden, Y, s->embedding);
    if (p == PART_HEAD) norm(X, H, s->embedding, s->embedding), matmul(ST_TYPE_Q6_K, H, s->embedding, LOGITS, s->vocabulary);
}

/* --- timing --------------------------------------------------------------------------------------------------------- */

/* A step of `rows` conversations with a row each at position `context`, or of a prompt from there on. */
static void send_step(uint32_t rows, uint32_t context, bool prompt)
{
    static uint32_t block[STEP_BYTES / sizeof(uint32_t)];
    strata_error error;
    st_step *step = (st_step *)(void *)block;
    uint32_t pages = ((context + (prompt ? rows : 0)) >> PAGE_SHIFT) + 1;
    st_step_lay_out(step, rows, g.conversations, rows, g.conversations * pages);
    step->out_count = rows;
    for (uint32_t i = 0; i < rows; i++) {
        st_step_rows(step)[i] = (st_step_row){.position = context + (prompt ? i : 0), .conversation = prompt ? 0 : i};
        if (!prompt || i == 0)
            st_step_conversations(step)[i] = (st_step_conversation){.first_row = i, .rows = prompt ? rows : 1, .position = context,
                                                                          .slot = i, .pages[0].table = i * pages};
        st_step_out_rows(step)[i] = i;
    }
    for (uint32_t i = 0; i < g.conversations * pages; i++) st_step_tables(step)[i] = i;
    must(g.backend->copy(g.queue, ST_COPY_UP, g.step, step, step->bytes, &error), &error);
    must(g.backend->event_record(g.end, g.queue, &error), &error);
    must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
}

/* The experts of every row, at random and all different: 16 rows have 82 of 128. The generator's low bits repeat. */
static void send_ids(const shape *s, uint32_t rows)
{
    static int32_t ids[4096 * USED];
    strata_error error;
    uint32_t state = 1;
    for (uint32_t i = 0; i < rows * USED && s->experts; i++) {
        bool again;
        do {
            state = state * 1664525 + 1013904223;
            ids[i] = (int32_t)((state >> 8) % s->experts);
            again = false;
            for (uint32_t k = i / USED * USED; k < i; k++) again |= ids[k] == ids[i];
        } while (again);
    }
    must(g.backend->copy(g.queue, ST_COPY_UP, g.values + (size_t)IDS * VALUE_BYTES, ids, sizeof ids, &error), &error);
}

/* Random values, and weights that are finite in every type: a float16 scale is any 16 bits of an exponent below that of 1. */
static void fill(unsigned char *memory, size_t bytes, bool weights)
{
    static uint32_t blocks[2][RANDOM_BYTES / sizeof(uint32_t)];
    static bool made[2];
    strata_error error;
    uint32_t *block = blocks[weights];
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < RANDOM_BYTES / sizeof *block && !made[weights]; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        float x = (float)(int32_t)(state >> 32) / 2147483648.0f;
        if (weights) block[i] = (uint32_t)(state >> 32) & 0xBBFFBBFFu;
        else memcpy(&block[i], &x, sizeof x);
    }
    made[weights] = true;
    for (size_t done = 0; done < bytes; done += RANDOM_BYTES) {
        size_t count = bytes - done < RANDOM_BYTES ? bytes - done : RANDOM_BYTES;
        must(done ? g.backend->copy(g.queue, ST_COPY_WITHIN, memory + done, memory, count, &error)
                  : g.backend->copy(g.queue, ST_COPY_UP, memory, block, count, &error), &error);
    }
    must(g.backend->event_record(g.end, g.queue, &error), &error);
    must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
}

/* Writes what the last operation of the first copy computed. */
static void write_output(uint32_t rows)
{
    const st_bound_op *last = &g.bound[g.count / g.copies - 1];
    st_bound_value out = last->op->kind == ST_OP_ROUTE ? last->out2 : last->out.data ? last->out : last->in[0];
    uint32_t all = rows * out.width, count = all < OUTPUTS_MAX ? all : (uint32_t)OUTPUTS_MAX;
    const float *from = (const float *)out.data + (all - count);
    strata_error error;
    float *found = malloc(count * sizeof *found);
    if (!found) exit(1);
    must(g.backend->copy(g.queue, ST_COPY_DOWN, found, from, count * sizeof *found, &error), &error);
    must(g.backend->event_record(g.end, g.queue, &error), &error);
    must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
    if (fwrite(&count, sizeof count, 1, g.outputs) != 1 || fwrite(found, sizeof *found, count, g.outputs) != count) exit(1);
    free(found);
}

/* Microseconds of one copy of the part. */
static double time_part(part p, const shape *s, uint32_t rows, uint32_t context)
{
    strata_error error;
    st_segment *segment = NULL;
    double best = 1e9;
    int launches = rows > FEW_ROWS ? 3 : LAUNCHES;
    g.count = 0;
    g.used = 0;
    g.weight_bytes = 0;
    bool prompt = rows > FEW_ROWS || p == PART_DELTA;
    g.conversations = prompt ? 1 : rows;
    if (g.outputs) fill(g.values, (size_t)VALUES * VALUE_BYTES, false), fill(g.memory, MEMORY_BYTES, true);
    bool batch = p == PART_HEAD || p == PART_EXPERTS || s->experts || rows > 8;
    uint32_t copies = g.copies = rows > 1024 ? 1 : batch ? BATCH_COPIES : COPIES;
    for (g.copy = 0; g.copy < copies; g.copy++) build(p, s, context + (rows > FEW_ROWS ? rows : 0));
    send_ids(s, rows);
    send_step(rows, context, prompt);
    if (p == PART_CANDIDATES) must(g.backend->zero(g.queue, g.values + (size_t)SCORES * VALUE_BYTES, VALUE_BYTES, &error), &error);
    st_segment_source source = {.ops = g.bound, .count = g.count, .rows = ST_ROWS_ALL, .step = (st_step *)(void *)g.step,
                                .step_bytes = STEP_BYTES, .scratch = g.scratch, .shared_bytes = SCRATCH_BYTES};
    must(g.backend->prepare(g.device, &source, &segment, &error), &error);
    if (g.outputs) {
        must(g.backend->launch(segment, g.queue, rows, &error), &error);
        write_output(rows);
    }
    for (int i = 0; i < TRIES; i++) {
        must(g.backend->event_record(g.begin, g.queue, &error), &error);
        for (int k = 0; k < launches; k++) must(g.backend->launch(segment, g.queue, rows, &error), &error);
        must(g.backend->event_record(g.end, g.queue, &error), &error);
        must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
        double seconds = g.backend->event_seconds(g.end) - g.backend->event_seconds(g.begin);
        if (seconds < best) best = seconds;
    }
    g.backend->segment_free(segment);
    return 1e6 * best / (launches * copies);
}

static void print_part(part p, const shape *s, uint32_t rows, uint32_t context)
{
    double us = time_part(p, s, rows, context), gigabytes = g.weight_bytes / us / 1e3;
    printf("%-11s %-19s %4u rows, context %5u: %8.2f µs", s->name, names[p], rows, context, us);
    if (g.weight_bytes > 0 && rows <= FEW_ROWS) printf(", %5.0f GB/s of weights", gigabytes);
    /* Q4_K has 4.5 bits an element, and most parts are of that type */
    if (g.weight_bytes > 0 && rows > 8) printf(", %5.1f Top/s if all is Q4_K", g.weight_bytes / 4.5 * 8 * 2 * rows / us / 1e6);
    printf("\n");
    fflush(stdout);
}

static void time_delta(const shape *s)
{
    static const uint32_t rows[] = {1, 64, 96, 128, 256, 512, 2048};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) print_part(PART_DELTA, s, rows[i], 0);
}

static void time_experts(const shape *s)
{
    static const uint32_t rows[] = {1, 8, 16, 64, 512, 2048};
    print_part(PART_ROUTE, s, 1, 128);
    for (size_t i = 0; i < 6; i++) print_part(PART_EXPERTS, s, rows[i], 128);
    print_part(PART_LAYER, s, 2048, 0);
}

static void time_batches(const shape *s)
{
    static const uint32_t rows[] = {9, 16, 32, 64, 512, 2048};
    static const part parts[] = {PART_QKV, PART_OUT, PART_GATE_UP, PART_DOWN, PART_DOWN_Q6_K, PART_ATTEND, PART_ATTENTION, PART_LAYER};
    for (size_t i = 0; i < 6; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) print_part(parts[k], s, rows[i], rows[i] > FEW_ROWS ? 0 : 128);
    for (size_t i = 1; i < 4; i++) print_part(PART_HEAD, s, rows[i], 128);
    print_part(PART_NORM, s, 2048, 0);
    print_part(PART_ACTIVATION, s, 2048, 0);
    print_part(PART_ATTENTION, s, 512, 8192);
}

static void time_shape(const shape *s)
{
    if (s->state) time_delta(s);
    if (s->experts) {
        time_experts(s);
        return;
    }
    static const uint32_t contexts[] = {4096, 32000}, more_rows[] = {2, 4, 8};
    for (int p = 0; p < PART_EXPERTS; p++) print_part((part)p, s, 1, 128);
    for (size_t i = 0; i < 2; i++) print_part(PART_ATTENTION, s, 1, contexts[i]), print_part(PART_ATTEND, s, 1, contexts[i]);
    for (size_t i = 0; i < 3; i++) print_part(PART_GATE_UP, s, more_rows[i], 128);
    print_part(PART_LAYER, s, 8, 128);
    if (s->embedding > 2048) time_batches(s);
    double layer = time_part(PART_LAYER, s, 1, 128), head = time_part(PART_HEAD, s, 1, 128);
    printf("%-11s a token of %u layers and the head: %.0f µs, %.0f tokens/s\n", s->name, s->layers, s->layers * layer + head,
           1e6 / (s->layers * layer + head));
}

/* --- hand-overs: a layer is a norm, its output and the routing to the host, another norm, and the host's sum ------------- */

enum { LAYERS = 48, HANDED = 2048, HOST_BYTES = 1 << 20, LINKS = 4 }; /* of a layer: norm, SEND, norm, ADD */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

typedef struct handed {
    st_link_value down[3], up;
    st_segment *segment;
} handed;

static handed hand_over_of(unsigned char *host)
{
    strata_error error;
    handed h;
    g.count = 0, g.copies = 1, g.copy = 0;
    norm(X, H, HANDED, HANDED);
    st_segment_source source = {.ops = g.bound, .count = g.count, .rows = ST_ROWS_ALL, .step = (st_step *)(void *)g.step,
                                .step_bytes = STEP_BYTES, .scratch = g.scratch, .shared_bytes = SCRATCH_BYTES};
    must(g.backend->prepare(g.device, &source, &h.segment, &error), &error);
    h.down[0] = (st_link_value){host, value(H, HANDED).data, HANDED};
    h.down[1] = (st_link_value){host + HANDED * sizeof(float), value(IDS, USED).data, USED};
    h.down[2] = (st_link_value){host + 2 * HANDED * sizeof(float), value(WEIGHTS, USED).data, USED};
    h.up = (st_link_value){value(H, HANDED).data, host + 4 * HANDED * sizeof(float), HANDED};
    return h;
}

/* Microseconds of a layer with a chain; 0: the GPU has none. */
static double time_chain(const handed *h)
{
    static st_link links[LAYERS * LINKS];
    strata_error error;
    st_chain *chain = NULL;
    double best = 1e9;
    for (int i = 0; i < LAYERS; i++) {
        links[i * LINKS] = links[i * LINKS + 2] = (st_link){.kind = ST_LINK_RUN, .segment = h->segment};
        links[i * LINKS + 1] = (st_link){.kind = ST_LINK_SEND, .values = {h->down[0], h->down[1], h->down[2]}, .value_count = 3};
        links[i * LINKS + 3] = (st_link){.kind = ST_LINK_ADD, .values = {h->up}, .value_count = 1};
    }
    st_chain_source source = {.links = links, .count = LAYERS * LINKS, .step = (st_step *)(void *)g.step, .limit_us = WAIT_US};
    if (g.backend->chain_new) must(g.backend->chain_new(g.device, &source, &chain, &error), &error);
    if (!chain) return 0;
    for (uint32_t try = 1; try <= 20; try++) {
        st_step step = {.count = 1, .out_count = 1, .sequence = try};
        must(g.backend->copy(g.queue, ST_COPY_UP, g.step, &step, sizeof step, &error), &error);
        double start = now();
        must(g.backend->chain_launch(chain, g.queue, 1, try, g.end, &error), &error);
        for (uint32_t i = 0; i < LAYERS; i++) {
            must(g.backend->chain_await(chain, i * LINKS + 1, WAIT_US, NULL, &error), &error);
            g.backend->chain_answer(chain, i * LINKS + 3, false);
        }
        must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
        if (now() - start < best) best = now() - start;
    }
    g.backend->chain_free(chain);
    return 1e6 * best / LAYERS;
}

/* … with copies and events between launches. */
static double time_copies(const handed *h)
{
    strata_error error;
    double best = 1e9;
    for (int try = 0; try < 20; try++) {
        double start = now();
        for (int i = 0; i < LAYERS; i++) {
            must(g.backend->launch(h->segment, g.queue, 1, &error), &error);
            for (const st_link_value *v = h->down; v < h->down + 3; v++)
                must(g.backend->copy(g.queue, ST_COPY_DOWN, v->to, v->from, v->width * sizeof(float), &error), &error);
            must(g.backend->event_record(g.end, g.queue, &error), &error);
            must(g.backend->launch(h->segment, g.queue, 1, &error), &error);
            must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
            must(g.backend->copy(g.queue, ST_COPY_UP, h->up.to, h->up.from, h->up.width * sizeof(float), &error), &error);
            must(g.backend->launch(h->segment, g.queue, 1, &error), &error); /* that adds it */
        }
        must(g.backend->event_record(g.end, g.queue, &error), &error);
        must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
        if (now() - start < best) best = now() - start;
    }
    return 1e6 * best / LAYERS;
}

static void time_handovers(void)
{
    strata_error error;
    void *host;
    bool pinned;
    must(g.backend->host_alloc(g.device, HOST_BYTES, &host, &pinned, &error), &error);
    memset(host, 0, HOST_BYTES);
    g.conversations = 1;
    send_step(1, 0, false);
    handed h = hand_over_of(host);
    double chain = time_chain(&h), copies = time_copies(&h);
    printf("%d layers of two norms, 8 KiB and the routing to the host, 8 KiB back: %.2f µs each in a chain, %.2f with copies\n",
           LAYERS, chain, copies);
    g.backend->segment_free(h.segment);
    g.backend->host_free(g.device, host);
}

typedef struct decode_row {
    int shape;
    part part;
    uint32_t rows, context;
    st_type kv;
} decode_row;

enum { QWEN3_8B = 1, QWEN3_30B, QWEN35_35B };

/* What decoding spends its time on, alone and together, and the delta rule of prompts. */
static const decode_row decode_rows[] = {
    {QWEN3_8B, PART_NORM, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_QKV, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_POSITIONS, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_ATTENTION, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_ATTEND, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_OUT, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_GATE_UP, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_ACTIVATION, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_DOWN, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_DOWN_Q6_K, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_HEAD, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_CANDIDATES, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_LAYER, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_NORM_QKV, 1, 128, ST_TYPE_F16}, {QWEN3_8B, PART_OUT_TO_UP, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_UP_TO_DOWN, 1, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_LAYER, 2, 128, ST_TYPE_F16}, {QWEN3_8B, PART_LAYER, 4, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_LAYER, 8, 128, ST_TYPE_F16}, {QWEN3_8B, PART_LAYER, 16, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_LAYER, 64, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_ATTEND, 1, 4096, ST_TYPE_F16}, {QWEN3_8B, PART_ATTEND, 1, 32000, ST_TYPE_F16},
    {QWEN3_8B, PART_ATTEND, 1, 128, ST_TYPE_Q8_0}, {QWEN3_8B, PART_ATTEND, 1, 4096, ST_TYPE_Q8_0},
    {QWEN3_8B, PART_ATTEND, 1, 32000, ST_TYPE_Q8_0}, {QWEN3_8B, PART_ATTEND, 16, 1000, ST_TYPE_F16},
    {QWEN3_8B, PART_ATTEND, 64, 1000, ST_TYPE_F16}, {QWEN3_8B, PART_ATTEND, 64, 1000, ST_TYPE_Q8_0},
    {QWEN3_8B, PART_QKV, 16, 128, ST_TYPE_F16}, {QWEN3_8B, PART_OUT, 16, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_GATE_UP, 16, 128, ST_TYPE_F16}, {QWEN3_8B, PART_DOWN, 16, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_DOWN_Q6_K, 16, 128, ST_TYPE_F16}, {QWEN3_8B, PART_GATE_UP, 64, 128, ST_TYPE_F16},
    {QWEN3_8B, PART_DOWN, 64, 128, ST_TYPE_F16},
    {QWEN3_30B, PART_QKV, 1, 128, ST_TYPE_F16}, {QWEN3_30B, PART_ATTEND, 1, 128, ST_TYPE_F16},
    {QWEN3_30B, PART_OUT, 1, 128, ST_TYPE_F16}, {QWEN3_30B, PART_ROUTER, 1, 128, ST_TYPE_F16},
    {QWEN3_30B, PART_ROUTE, 1, 128, ST_TYPE_F16}, {QWEN3_30B, PART_EXPERTS, 1, 128, ST_TYPE_F16},
    {QWEN3_30B, PART_ROUTE_EXPERTS, 1, 128, ST_TYPE_F16}, {QWEN3_30B, PART_LAYER, 1, 128, ST_TYPE_F16},
    {QWEN3_30B, PART_EXPERTS, 16, 128, ST_TYPE_F16}, {QWEN3_30B, PART_EXPERTS_Q6_K, 16, 128, ST_TYPE_F16},
    {QWEN3_30B, PART_ROUTER, 16, 128, ST_TYPE_F16}, {QWEN3_30B, PART_ROUTE, 16, 128, ST_TYPE_F16},
    {QWEN3_30B, PART_EXPERTS, 32, 128, ST_TYPE_F16}, {QWEN3_30B, PART_LAYER, 16, 128, ST_TYPE_F16},
    {QWEN35_35B, PART_CONV, 1, 128, ST_TYPE_BF16}, {QWEN35_35B, PART_DELTA, 1, 128, ST_TYPE_BF16},
    {QWEN35_35B, PART_DELTA, 64, 0, ST_TYPE_BF16}, {QWEN35_35B, PART_DELTA, 96, 0, ST_TYPE_BF16},
    {QWEN35_35B, PART_DELTA, 512, 0, ST_TYPE_BF16}, {QWEN35_35B, PART_DELTA, 2048, 0, ST_TYPE_BF16},
    {QWEN35_35B, PART_ATTEND, 1, 128, ST_TYPE_BF16}, {QWEN35_35B, PART_ROUTE, 1, 128, ST_TYPE_BF16},
    {QWEN35_35B, PART_ROUTE_EXPERTS, 1, 128, ST_TYPE_BF16}, {QWEN35_35B, PART_LAYER, 1, 128, ST_TYPE_BF16},
};

static int time_decoding(const char *outputs, const char *text)
{
    g.outputs = fopen(outputs, "wb");
    if (!g.outputs) return 1;
    for (size_t i = 0; i < sizeof decode_rows / sizeof *decode_rows; i++) {
        const decode_row *r = &decode_rows[i];
        const shape *s = &shapes[r->shape];
        char name[96];
        snprintf(name, sizeof name, "%s: %s, %u rows at %u, %s", s->name, names[r->part], r->rows, r->context, st_type_find(r->kv)->name);
        if (!strstr(name, text)) continue;
        g.kv_type = r->kv;
        double us = time_part(r->part, s, r->rows, r->context);
        printf("%s\t%.2f\t%.0f\n", name, us, g.weight_bytes / us / 1e3);
        fflush(stdout);
    }
    return fclose(g.outputs) ? 1 : 0;
}

int main(int argc, char **argv)
{
    strata_error error;
    void *memory[4];
    const size_t bytes[4] = {MEMORY_BYTES, (size_t)VALUES * VALUE_BYTES, SCRATCH_BYTES, STEP_BYTES};
    if (st_plugin_load("cuda", argc > 1 ? argv[1] : NULL, &g.backend, &error) != STRATA_OK ||
        g.backend->open(&(st_device_options){0}, &g.device, &error) != STRATA_OK) {
        printf("bench_gpu: nothing to measure: %s\n", error.message);
        return 0;
    }
    must(g.backend->queue_new(g.device, ST_QUEUE_COMPUTE, &g.queue, &error), &error);
    must(g.backend->event_new(g.device, &g.begin, &error), &error);
    must(g.backend->event_new(g.device, &g.end, &error), &error);
    for (int i = 0; i < 4; i++) {
        must(g.backend->alloc(g.device, bytes[i], &memory[i], &error), &error);
        must(g.backend->zero(g.queue, memory[i], bytes[i], &error), &error);
    }
    g.memory = memory[0], g.values = memory[1], g.scratch = memory[2], g.step = memory[3];
    g.kv_type = ST_TYPE_F16;
    fill(g.memory, MEMORY_BYTES, true);
    fill(g.values, (size_t)VALUES * VALUE_BYTES, false);
    int code = 0;
    if (argc > 3 && strcmp(argv[2], "decode") == 0) code = time_decoding(argv[3], argc > 4 ? argv[4] : "");
    else time_handovers();
    if (argc <= 2)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) time_shape(&shapes[i]);
    for (int i = 0; i < 4; i++) g.backend->free(g.device, memory[i]);
    g.backend->event_free(g.begin);
    g.backend->event_free(g.end);
    g.backend->queue_free(g.queue);
    g.backend->close(g.device);
    return code;
}
