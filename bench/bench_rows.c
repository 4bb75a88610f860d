/* How the time of an operation grows with the rows of a step: matrices, routed experts, and attention of many
 * conversations. Every column is the shortest time of a number of rows, relative to one row; the row counts alternate,
 * so that a busy machine disturbs all of them alike. Weights and KV pages are read from memory: several copies alternate.
 *
 * bench_rows [THREADS [CPU [NAME]]]: NAME selects the lines that contain it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/memory.h"
#include "quant/row.h"

enum {
    ROWS_MAX = 512,
    COPIES_MAX = 64,
    EXPERTS = 64,
    USED = 8,
    EXPERT_WIDTH = 1024,
    EMBEDDING = 2048,
    HEADS = 16,
    KV_HEADS = 8,
    HEAD = 128,
    PAGE_SHIFT = 6,
};
#define LINE_SECONDS 1.5

static const uint32_t row_counts[] = {1, 2, 3, 4, 8, 16, 32, 64, ROWS_MAX};
enum { COUNTS = sizeof row_counts / sizeof *row_counts };

static st_device *device;
static st_queue *queue;
static uint32_t workers;
static const char *selected = "";
static strata_error error;

static void check(strata_status status)
{
    if (status == STRATA_OK) return;
    fprintf(stderr, "bench_rows: %s\n", error.message);
    exit(1);
}

static void *memory_of(size_t bytes)
{
    void *memory = NULL;
    check(st_backend_cpu()->alloc(device, bytes, &memory, &error));
    check(st_backend_cpu()->zero(queue, memory, bytes, &error));
    return memory;
}

static void release(void *memory)
{
    st_backend_cpu()->free(device, memory);
}

/* --- steps and segments ------------------------------------------------------------------------------------------- */

/* `conversations` of one row each at the same position, or one conversation with all rows; pages are never shared. */
static st_step *step_of(uint32_t rows, uint32_t conversations, uint32_t position)
{
    uint32_t pages = ((position + rows) >> PAGE_SHIFT) + 1, tables = pages * conversations;
    st_step_limits most = {.rows = rows, .out_rows = rows, .conversations = conversations, .tables = tables};
    st_step *step = st_alloc_zero(1, st_step_bytes(&most));
    if (!step) exit(1);
    st_step_lay_out(step, rows, conversations, rows, tables);
    step->out_count = rows;
    uint32_t each = rows / conversations;
    for (uint32_t c = 0; c < conversations; c++) {
        st_step_conversations(step)[c] = (st_step_conversation){.first_row = c * each, .rows = each, .position = position};
        st_step_conversations(step)[c].pages[0].table = c * pages;
    }
    for (uint32_t i = 0; i < rows; i++)
        st_step_rows(step)[i] = (st_step_row){.position = position + i % each, .conversation = i / each};
    for (uint32_t i = 0; i < tables; i++) st_step_tables(step)[i] = i;
    return step;
}

typedef struct timed {
    st_step *step;
    void *values, *scratch;
    st_segment *segments[COPIES_MAX];
    uint32_t copies, rows;
    uint32_t pages; /* of the KV cache */
    double shortest;
} timed;

/* `bounds`: the operation with each copy of its weights. Takes `step` and `values`. */
static timed prepare(const st_bound_op *bounds, uint32_t copies, st_step *step, void *values)
{
    timed t = {.step = step, .values = values, .copies = copies, .rows = step->count, .shortest = 1e9};
    st_scratch scratch = st_backend_cpu()->scratch(bounds, step->count);
    scratch.shared_bytes = (scratch.shared_bytes + 255) / 256 * 256;
    scratch.worker_bytes = (scratch.worker_bytes + 255) / 256 * 256;
    t.scratch = memory_of(scratch.shared_bytes + scratch.worker_bytes * workers);
    for (uint32_t i = 0; i < copies; i++) {
        st_segment_source source = {.ops = &bounds[i], .count = 1, .rows = ST_ROWS_ALL, .step = step, .step_bytes = step->bytes,
                                    .scratch = t.scratch, .shared_bytes = scratch.shared_bytes,
                                    .worker_bytes = scratch.worker_bytes};
        check(st_backend_cpu()->prepare(device, &source, &t.segments[i], &error));
    }
    return t;
}

static void free_timed(timed *t)
{
    for (uint32_t i = 0; i < t->copies; i++) st_backend_cpu()->segment_free(t->segments[i]);
    release(t->values);
    release(t->scratch);
    st_free(t->step);
}

/* With one thread the CPU time, which does not count the time slices of other processes. */
static double seconds_now(void)
{
    struct timespec t;
    if (workers > 1) return st_clock_seconds();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Times all in turn, prints them relative to the first, and frees them. */
static void time_line(const char *name, timed *all, size_t count)
{
    double end = st_clock_seconds() + LINE_SECONDS;
    for (uint32_t round = 0; round < 3 || st_clock_seconds() < end; round++)
        for (size_t i = 0; i < count; i++) {
            uint32_t tables = all[i].step->table_count, sets = all[i].pages / tables; /* pages that are not in the cache */
            for (uint32_t k = 0; k < tables && sets > 0; k++) st_step_tables(all[i].step)[k] = round % sets * tables + k;
            double start = seconds_now();
            check(st_backend_cpu()->launch(all[i].segments[round % all[i].copies], queue, all[i].rows, &error));
            double took = seconds_now() - start;
            if (took < all[i].shortest) all[i].shortest = took;
        }
    printf("%-28s %9.1f", name, all[0].shortest * 1e6);
    for (size_t i = 1; i < count; i++) printf(" %7.2f", all[i].shortest / all[0].shortest);
    printf("\n");
    fflush(stdout);
    for (size_t i = 0; i < count; i++) free_timed(&all[i]);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static void *values_of(size_t floats)
{
    float *values = memory_of(floats * sizeof *values);
    uint32_t bits = 1;
    for (size_t i = 0; i < floats; i++) {
        bits = bits * 1664525 + 1013904223;
        values[i] = (float)(int32_t)bits * 0x1p-31f;
    }
    return values;
}

static st_bound_weight weight_of(st_type type, size_t in, size_t out, size_t experts)
{
    st_bound_weight w = {.info = st_type_find(type), .type = type, .ne = {in, out, experts}};
    st_type_row_bytes(w.info, in, &w.row_bytes);
    return w;
}

static void time_matmul(st_type type, uint32_t in, uint32_t out)
{
    char name[64];
    snprintf(name, sizeof name, "MATMUL %s %u x %u", st_type_find(type)->name, in, out);
    if (!strstr(name, selected)) return;
    st_op op = {.kind = ST_OP_MATMUL};
    st_bound_weight w = weight_of(type, in, out, 1);
    size_t bytes = (w.row_bytes * out + 4095) / 4096 * 4096, copies = (size_t)st_memory_probe_bytes_now() / bytes; /* more than the cache */
    if (copies > COPIES_MAX) copies = COPIES_MAX;
    if (copies == 0) copies = 1; /* little memory */
    unsigned char *weights = memory_of(bytes * copies);
    timed all[COUNTS];
    for (size_t i = 0; i < COUNTS; i++) {
        uint32_t rows = row_counts[i];
        float *values = values_of((size_t)rows * (in + out));
        st_bound_op bounds[COPIES_MAX];
        for (size_t k = 0; k < copies; k++) {
            bounds[k] = (st_bound_op){.op = &op, .in[0] = {values, in}, .out = {values + (size_t)rows * in, out}, .weight[0] = w};
            bounds[k].weight[0].data = weights + k * bytes;
        }
        all[i] = prepare(bounds, (uint32_t)copies, step_of(rows, 1, 0), values);
    }
    time_line(name, all, COUNTS);
    release(weights);
}

static void time_experts(st_type type)
{
    char name[64];
    snprintf(name, sizeof name, "EXPERTS %s %u of %u", st_type_find(type)->name, USED, EXPERTS);
    if (!strstr(name, selected)) return;
    st_op op = {.kind = ST_OP_EXPERTS};
    op.p.experts.experts = EXPERTS;
    op.p.experts.used = USED;
    op.p.experts.width = EXPERT_WIDTH;
    st_bound_weight w[3] = {weight_of(type, EMBEDDING, EXPERT_WIDTH, EXPERTS), weight_of(type, EMBEDDING, EXPERT_WIDTH, EXPERTS),
                            weight_of(type, EXPERT_WIDTH, EMBEDDING, EXPERTS)};
    const void *parts[3][EXPERTS];
    void *weights[3];
    for (int m = 0; m < 3; m++) {
        size_t bytes = w[m].row_bytes * w[m].ne[1];
        w[m].data = weights[m] = memory_of(bytes * EXPERTS);
        w[m].parts = parts[m];
        for (size_t e = 0; e < EXPERTS; e++) parts[m][e] = (unsigned char *)weights[m] + e * bytes;
    }
    timed all[COUNTS];
    for (size_t i = 0; i < COUNTS; i++) {
        uint32_t rows = row_counts[i], bits = 7;
        float *values = values_of((size_t)rows * 2 * (EMBEDDING + USED));
        st_bound_op bound = {.op = &op, .in = {{values, EMBEDDING}, {values + (size_t)rows * 2 * EMBEDDING, USED},
                                               {values + (size_t)rows * (2 * EMBEDDING + USED), USED}},
                             .out = {values + (size_t)rows * EMBEDDING, EMBEDDING}, .weight = {w[0], w[1], w[2]}};
        int32_t *ids = bound.in[1].data;
        for (uint32_t k = 0; k < rows * USED; k++) { /* distinct within a row */
            if (k % USED == 0) bits = bits * 1664525 + 1013904223;
            ids[k] = (int32_t)(((bits >> 20) + k % USED * 23) % EXPERTS);
        }
        all[i] = prepare(&bound, 1, step_of(rows, 1, 0), values);
    }
    time_line(name, all, COUNTS);
    for (int m = 0; m < 3; m++) release(weights[m]);
}

/* Conversations of one row each. */
static void time_attention(st_type type, uint32_t depth)
{
    static const uint32_t conversations[] = {1, 4, 16, 32};
    enum { LINE = sizeof conversations / sizeof *conversations };
    char name[64];
    snprintf(name, sizeof name, "ATTENTION %s depth %u", st_type_find(type)->name, depth);
    if (!strstr(name, selected)) return;
    st_op op = {.kind = ST_OP_ATTENTION};
    op.p.attention.heads = HEADS;
    op.p.attention.kv_heads = KV_HEADS;
    op.p.attention.key_length = op.p.attention.value_length = HEAD;
    op.p.attention.scale = 1;
    size_t row_bytes = st_row_bytes(type, KV_HEADS * HEAD), page_bytes = row_bytes << PAGE_SHIFT;
    timed all[LINE];
    st_kv_view kv = {.key_row_bytes = row_bytes, .value_row_bytes = row_bytes, .key_page_bytes = page_bytes,
                     .value_page_bytes = page_bytes, .page_shift = PAGE_SHIFT, .type = type};
    kv.pages = ((depth + 32) / 64 + 1) * 32 + 32;
    kv.keys = memory_of(kv.pages * page_bytes);
    kv.values = memory_of(kv.pages * page_bytes);
    for (size_t i = 0; i < LINE; i++) {
        uint32_t rows = conversations[i];
        float *values = values_of((size_t)rows * 2 * HEADS * HEAD);
        st_bound_op bound = {.op = &op, .in[0] = {values, HEADS * HEAD}, .out = {values + (size_t)rows * HEADS * HEAD, HEADS * HEAD},
                             .kv = kv};
        all[i] = prepare(&bound, 1, step_of(rows, rows, depth), values);
        all[i].pages = kv.pages;
    }
    time_line(name, all, LINE);
    release(kv.keys);
    release(kv.values);
}

int main(int argc, char **argv)
{
    st_device_options options = {.threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 0,
                                 .cpu = argc > 2 && *argv[2] ? argv[2] : NULL};
    if (argc > 3) selected = argv[3];
    check(st_backend_cpu()->open(&options, &device, &error));
    check(st_backend_cpu()->queue_new(device, ST_QUEUE_COMPUTE, &queue, &error));
    st_device_info info;
    st_backend_cpu()->info(device, &info);
    workers = info.workers;
    printf("%-28s %9s", "rows", "1, µs");
    for (size_t i = 1; i < COUNTS; i++) printf(" %7u", row_counts[i]);
    printf("\n");
    static const st_type types[] = {ST_TYPE_Q4_K, ST_TYPE_Q6_K, ST_TYPE_Q8_0, ST_TYPE_Q4_0, ST_TYPE_Q4_1, ST_TYPE_F16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        time_matmul(types[i], 1024, 3072);  /* qwen3-0.6b, gate */
        time_matmul(types[i], 4096, 12288); /* qwen3-8b, gate */
        time_matmul(types[i], 12288, 4096); /* … down */
    }
    time_experts(ST_TYPE_Q4_K);
    time_experts(ST_TYPE_Q8_0);
    printf("%-28s %9s %7u %7u %7u\n", "conversations", "1, µs", 4, 16, 32);
    time_attention(ST_TYPE_F16, 1024);
    time_attention(ST_TYPE_F16, 4096);
    time_attention(ST_TYPE_Q8_0, 4096);
    st_backend_cpu()->queue_free(queue);
    st_backend_cpu()->close(device);
    return 0;
}
