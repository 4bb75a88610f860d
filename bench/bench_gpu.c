/* Times the operations of a token on a GPU, by parts of a layer: each part is repeated in one segment, with weights and KV of its
 * own, and launched a few times between two events. Without the CUDA plugin or a GPU, prints so and ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/plugin.h"
#include "quant/quant.h"

enum {
    MEMORY_BYTES = 2000 << 20, /* weights and KV; more than any cache holds */
    VALUE_BYTES = 16 << 20,    /* of each value, for all copies */
    SCRATCH_BYTES = 64 << 20,
    STEP_BYTES = 1 << 20,
    COPIES = 16,
    OPS_MAX = 20,
    LAUNCHES = 10,
    TRIES = 3,
    PAGE_SHIFT = 6,
    WAIT_US = 20 * 1000 * 1000,
};

typedef struct shape {
    const char *name;
    uint32_t layers, embedding, heads, kv_heads, head, hidden, vocabulary;
} shape;

static const shape shapes[] = {
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936},
    {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936},
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
    uint32_t copy;       /* the copy that is being built */
    double weight_bytes; /* of one copy */
} g;

static void must(strata_status status, const strata_error *error)
{
    if (status == STRATA_OK) return;
    fprintf(stderr, "bench_gpu: %s\n", error->message);
    exit(1);
}

/* --- a part: its operations are appended to g.bound ----------------------------------------------------------------- */

enum { X, Y, H, Q, K, V, A, O, GATE, UP, ANGLES, LOGITS, VALUES };

static st_bound_value value(int index, uint32_t width)
{
    size_t stride = VALUE_BYTES / COPIES;
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
    g.weight_bytes += (double)(w.row_bytes * columns) / COPIES;
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

typedef enum part {
    PART_NORM, PART_QKV, PART_POSITIONS, PART_ATTEND, PART_ATTENTION, PART_OUT, PART_GATE_UP, PART_ACTIVATION, PART_DOWN, PART_DOWN_Q6_K,
    PART_LAYER, PART_HEAD, PARTS
} part;

static const char *const names[PARTS] = {
    "add, norm", "q, k, v", "norm, rope, store", "… and attention", "attention", "attention out", "gate, up", "activation", "down, Q4_K",
    "down, Q6_K", "the whole layer", "the head"};

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
    if (all || p == PART_GATE_UP) project_up(s);
    if (all || p == PART_ACTIVATION) activate(s);
    if (all || p == PART_DOWN) matmul(ST_TYPE_Q4_K, GATE, s->hidden, Y, s->embedding);
    if (p == PART_DOWN_Q6_K) matmul(ST_TYPE_Q6_K, GATE, s->hidden, Y, s->embedding);
    if (p == PART_HEAD) norm(X, H, s->embedding, s->embedding), matmul(ST_TYPE_Q6_K, H, s->embedding, LOGITS, s->vocabulary);
}

/* --- timing --------------------------------------------------------------------------------------------------------- */

/* A step of `rows` conversations with a row each, at position `context`. */
static void send_step(uint32_t rows, uint32_t context)
{
    static uint32_t block[STEP_BYTES / sizeof(uint32_t)];
    strata_error error;
    st_step *step = (st_step *)(void *)block;
    uint32_t pages = (context >> PAGE_SHIFT) + 1;
    st_step_lay_out(step, rows, rows, rows, pages);
    step->out_count = rows;
    for (uint32_t i = 0; i < rows; i++) {
        st_step_rows(step)[i] = (st_step_row){.position = context, .conversation = i};
        st_step_conversations(step)[i] = (st_step_conversation){.first_row = i, .rows = 1, .position = context};
        st_step_out_rows(step)[i] = i;
    }
    for (uint32_t i = 0; i < pages; i++) st_step_tables(step)[i] = i;
    must(g.backend->copy(g.queue, ST_COPY_UP, g.step, step, step->bytes, &error), &error);
    must(g.backend->event_record(g.end, g.queue, &error), &error);
    must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
}

/* Microseconds of one copy of the part. */
static double time_part(part p, const shape *s, uint32_t rows, uint32_t context)
{
    strata_error error;
    st_segment *segment = NULL;
    double best = 1e9;
    g.count = 0;
    g.weight_bytes = 0;
    uint32_t copies = p == PART_HEAD ? 4 : COPIES;
    for (g.copy = 0; g.copy < copies; g.copy++) build(p, s, context);
    g.weight_bytes *= (double)COPIES / copies;
    send_step(rows, context);
    st_segment_source source = {.ops = g.bound, .count = g.count, .rows = ST_ROWS_ALL, .step = (st_step *)(void *)g.step,
                                .step_bytes = STEP_BYTES, .scratch = g.scratch, .shared_bytes = SCRATCH_BYTES};
    must(g.backend->prepare(g.device, &source, &segment, &error), &error);
    for (int i = 0; i < TRIES; i++) {
        must(g.backend->event_record(g.begin, g.queue, &error), &error);
        for (int k = 0; k < LAUNCHES; k++) must(g.backend->launch(segment, g.queue, rows, &error), &error);
        must(g.backend->event_record(g.end, g.queue, &error), &error);
        must(g.backend->event_wait_host(g.end, WAIT_US, &error), &error);
        double seconds = g.backend->event_seconds(g.end) - g.backend->event_seconds(g.begin);
        if (seconds < best) best = seconds;
    }
    g.backend->segment_free(segment);
    return 1e6 * best / (LAUNCHES * copies);
}

static void print_part(part p, const shape *s, uint32_t rows, uint32_t context)
{
    double us = time_part(p, s, rows, context), gigabytes = g.weight_bytes / us / 1e3;
    printf("%-11s %-19s %2u rows, context %5u: %8.2f µs", s->name, names[p], rows, context, us);
    if (g.weight_bytes > 0) printf(", %5.0f GB/s of weights", gigabytes);
    printf("\n");
    fflush(stdout);
}

static void time_shape(const shape *s)
{
    static const uint32_t contexts[] = {4096, 32000}, more_rows[] = {2, 4, 8};
    for (int p = 0; p < PARTS; p++) print_part((part)p, s, 1, 128);
    for (size_t i = 0; i < 2; i++) print_part(PART_ATTENTION, s, 1, contexts[i]), print_part(PART_ATTEND, s, 1, contexts[i]);
    for (size_t i = 0; i < 3; i++) print_part(PART_GATE_UP, s, more_rows[i], 128);
    print_part(PART_LAYER, s, 8, 128);
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
