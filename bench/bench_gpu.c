/* Times the operations of a token on a GPU, by parts of a layer: each part is repeated in one segment, with weights and KV of its
 * own, and launched a few times between two events. Without the CUDA plugin or a GPU, prints so and ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/plugin.h"
#include "quant/quant.h"

enum {
    MEMORY_BYTES = 2000 << 20, /* weights and KV; more than any cache holds */
    VALUE_BYTES = 128 << 20,   /* of each value, for all copies */
    SCRATCH_BYTES = 512 << 20,
    STEP_BYTES = 1 << 20,
    COPIES = 16, BATCH_COPIES = 4,
    FEW_ROWS = 64,             /* so many rows are conversations of their own; more are a prompt */
    EXPERTS_MAX = 256, USED = 8,
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
} shape;

static const shape shapes[] = {
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 0},
    {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 0},
    {"qwen3-30b", 48, 2048, 32, 4, 128, 768, 151936, 128},
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
} g;

static void must(strata_status status, const strata_error *error)
{
    if (status == STRATA_OK) return;
    fprintf(stderr, "bench_gpu: %s\n", error->message);
    exit(1);
}

/* --- a part: its operations are appended to g.bound ----------------------------------------------------------------- */

enum { X, Y, H, Q, K, V, A, O, GATE, UP, ANGLES, LOGITS, IDS, WEIGHTS, VALUES };

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
    st_kv_view kv = {.page_shift = PAGE_SHIFT, .pages = (context >> PAGE_SHIFT) + 1, .type = ST_TYPE_F16};
    kv.key_row_bytes = kv.value_row_bytes = (size_t)s->kv_heads * s->head * 2;
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
static st_bound_weight expert_matrices(const shape *s, uint32_t width, uint32_t columns, uint32_t index)
{
    st_bound_weight w = {.info = st_type_find(ST_TYPE_Q4_K), .type = ST_TYPE_Q4_K, .ne = {width, columns, s->experts}};
    st_type_row_bytes(w.info, width, &w.row_bytes);
    const unsigned char *data = take(w.row_bytes * columns * s->experts);
    w.data = data;
    w.parts = g.parts[g.copy * 3 + index];
    for (uint32_t i = 0; i < s->experts; i++) g.parts[g.copy * 3 + index][i] = data + i * w.row_bytes * columns;
    return w;
}

static void experts(const shape *s)
{
    st_bound_op *b = append(ST_OP_EXPERTS, value(H, s->embedding), value(Y, s->embedding));
    b->in[1] = (st_bound_value){g.values + (size_t)IDS * VALUE_BYTES, USED};
    b->in[2] = (st_bound_value){g.values + (size_t)WEIGHTS * VALUE_BYTES, USED};
    op_of(b)->p.experts.experts = s->experts;
    op_of(b)->p.experts.used = USED;
    op_of(b)->p.experts.width = s->hidden;
    b->weight[0] = expert_matrices(s, s->embedding, s->hidden, 0);
    b->weight[1] = expert_matrices(s, s->embedding, s->hidden, 1);
    b->weight[2] = expert_matrices(s, s->hidden, s->embedding, 2);
}

typedef enum part {
    PART_NORM, PART_QKV, PART_POSITIONS, PART_ATTEND, PART_ATTENTION, PART_OUT, PART_GATE_UP, PART_ACTIVATION, PART_DOWN, PART_DOWN_Q6_K,
    PART_LAYER, PART_HEAD, PART_EXPERTS, PARTS
} part;

static const char *const names[PARTS] = {
    "add, norm", "q, k, v", "norm, rope, store", "… and attention", "attention", "attention out", "gate, up", "activation", "down, Q4_K",
    "down, Q6_K", "the whole layer", "the head", "experts"};

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
    if (all || p == PART_NORM) add(X, Y, s->embedding), norm(X, H, s->embedding, s->embedding);
    if (all || p == PART_QKV) {
        matmul(ST_TYPE_Q4_K, H, s->embedding, Q, q);
        matmul(ST_TYPE_Q4_K, H, s->embedding, K, kv);
        matmul(ST_TYPE_Q4_K, H, s->embedding, V, kv);
    }
    if (all || p == PART_POSITIONS || p == PART_ATTEND) norms_and_rope(s), store(s, &view);
    if (all || p == PART_ATTEND || p == PART_ATTENTION) attend(s, &view);
    if (all || p == PART_OUT) matmul(ST_TYPE_Q4_K, A, q, O, s->embedding);
    if (all) add(X, O, s->embedding), norm(X, H, s->embedding, s->embedding);
    if ((all && s->experts) || p == PART_EXPERTS) experts(s);
    if (all && s->experts) return;
    if (all || p == PART_GATE_UP) project_up(s);
    if (all || p == PART_ACTIVATION) activate(s);
    if (all || p == PART_DOWN) matmul(ST_TYPE_Q4_K, GATE, s->hidden, Y, s->embedding);
    if (p == PART_DOWN_Q6_K) matmul(ST_TYPE_Q6_K, GATE, s->hidden, Y, s->embedding);
    if (p == PART_HEAD) norm(X, H, s->embedding, s->embedding), matmul(ST_TYPE_Q6_K, H, s->embedding, LOGITS, s->vocabulary);
}

/* --- timing --------------------------------------------------------------------------------------------------------- */

/* A step of `rows` conversations with a row each at position `context`, or of a prompt from there on. */
static void send_step(uint32_t rows, uint32_t context)
{
    static uint32_t block[STEP_BYTES / sizeof(uint32_t)];
    strata_error error;
    st_step *step = (st_step *)(void *)block;
    bool prompt = rows > FEW_ROWS;
    uint32_t pages = ((context + (prompt ? rows : 0)) >> PAGE_SHIFT) + 1;
    st_step_lay_out(step, rows, prompt ? 1 : rows, rows, pages);
    step->out_count = rows;
    for (uint32_t i = 0; i < rows; i++) {
        st_step_rows(step)[i] = (st_step_row){.position = context + (prompt ? i : 0), .conversation = prompt ? 0 : i};
        if (!prompt || i == 0)
            st_step_conversations(step)[i] = (st_step_conversation){.first_row = i, .rows = prompt ? rows : 1, .position = context};
        st_step_out_rows(step)[i] = i;
    }
    for (uint32_t i = 0; i < pages; i++) st_step_tables(step)[i] = i;
    must(g.backend->copy(g.queue, ST_COPY_UP, g.step, step, step->bytes, &error), &error);
    must(g.backend->event_record(g.end, g.queue, &error), &error);
    must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
}

/* The experts of every row, at random and all different. */
static void send_ids(const shape *s, uint32_t rows)
{
    static int32_t ids[4096 * USED];
    strata_error error;
    uint32_t state = 12345;
    for (uint32_t r = 0; r < rows && s->experts; r++)
        for (uint32_t k = 0; k < USED; k++) {
            state = state * 1664525 + 1013904223;
            ids[r * USED + k] = (int32_t)(state % (s->experts / USED) + k * (s->experts / USED));
        }
    must(g.backend->copy(g.queue, ST_COPY_UP, g.values + (size_t)IDS * VALUE_BYTES, ids, sizeof ids, &error), &error);
}

/* Microseconds of one copy of the part. */
static double time_part(part p, const shape *s, uint32_t rows, uint32_t context)
{
    strata_error error;
    st_segment *segment = NULL;
    double best = 1e9;
    int launches = rows > FEW_ROWS ? 3 : LAUNCHES;
    g.count = 0;
    g.weight_bytes = 0;
    bool batch = p == PART_HEAD || p == PART_EXPERTS || s->experts || rows > 8;
    uint32_t copies = g.copies = rows > 1024 ? 1 : batch ? BATCH_COPIES : COPIES;
    for (g.copy = 0; g.copy < copies; g.copy++) build(p, s, context + (rows > FEW_ROWS ? rows : 0));
    send_ids(s, rows);
    send_step(rows, context);
    st_segment_source source = {.ops = g.bound, .count = g.count, .rows = ST_ROWS_ALL, .step = (st_step *)(void *)g.step,
                                .step_bytes = STEP_BYTES, .scratch = g.scratch, .shared_bytes = SCRATCH_BYTES};
    must(g.backend->prepare(g.device, &source, &segment, &error), &error);
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

static void time_experts(const shape *s)
{
    static const uint32_t rows[] = {1, 8, 16, 64, 512, 2048};
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
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) time_shape(&shapes[i]);
    for (int i = 0; i < 4; i++) g.backend->free(g.device, memory[i]);
    g.backend->event_free(g.begin);
    g.backend->event_free(g.end);
    g.backend->queue_free(g.queue);
    g.backend->close(g.device);
    return 0;
}
