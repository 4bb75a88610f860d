/* Rates of the classes of operations (backend.h), measured with segments as the executor prepares them: operations that run
 * together are timed together. Each is repeated with weights, KV and state of its own, more than the L2 cache holds, and a line
 * through several sizes tells its fixed time from its rate. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/probe.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fit.h"
#include "quant/dequant.h"

enum {
    MIB = 1 << 20,
    WEIGHT_BYTES = 160 * MIB, /* matrices, KV and states, then two values, scratch and the step block */
    VALUE_BYTES = 32 * MIB,
    A_OFFSET = WEIGHT_BYTES,
    B_OFFSET = A_OFFSET + VALUE_BYTES,
    SCRATCH_OFFSET = B_OFFSET + VALUE_BYTES,
    STEP_OFFSET = ST_CUDA_PROBE_BYTES - MIB,
    SCRATCH_BYTES = STEP_OFFSET - SCRATCH_OFFSET,
    WIDTH = 4096,             /* of rows, and of the queries of all heads */
    HEAD = 128, KV_WIDTH = 1024, WIDE_HEAD = 256,
    PAGE_SHIFT = 6,
    SHORT = 128, LONG = 32768, /* positions; between them ST_DEEP_POSITIONS */
    EMBEDDING = 2048, USED = 8, EXPERTS_MAX = 64, EXPERT_WIDTH = 768, /* of experts */
    KEY_HEADS = 16, VALUE_HEADS = 32, STATE = 128, TAPS = 4,           /* of the delta rule */
    CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * STATE,
    BATCH = 512, LARGE_BATCH = 2048, /* rows */
    FEW = 16, FEW_COPIES = 8,        /* conversations that decode together */
    TYPE_BYTES = 48 * MIB,    /* of a matrix of each type */
    COPIES = 16, COPIES_MAX = 64, OPS_MAX = 5 * COPIES_MAX,
    LAUNCHES = 4, TRIES = 4,
};

#define WARM_SECONDS 0.25 /* an idle GPU has a lower clock, and raises it late */

typedef struct timer {
    st_device *device;
    st_queue queue;
    unsigned char *memory, *host;
    void *begin, *end; /* events */
    size_t used;       /* of the weights */
    bool apart;        /* each row is a conversation of its own */
    uint32_t count;
    st_op ops[OPS_MAX];
    st_bound_op bound[OPS_MAX];
    const void *parts[ST_CUDA_TABLES][EXPERTS_MAX]; /* of the experts' matrices */
    double read_bytes; /* per second */
    st_device_rates *out;
    strata_error *error;
} timer;

/* --- operations ----------------------------------------------------------------------------------------------------- */

static void *take(timer *t, size_t bytes)
{
    bytes = st_cuda_round_up(bytes, ST_CUDA_ALIGNMENT);
    if (t->used + bytes > WEIGHT_BYTES) t->used = 0; /* the first ones have left the cache */
    void *at = t->memory + t->used;
    t->used += bytes;
    return at;
}

/* Row values of a copy; those of A and of B do not overlap. */
static st_bound_value value_at(const timer *t, size_t offset, size_t index, uint32_t width)
{
    return (st_bound_value){t->memory + offset + index * (VALUE_BYTES / COPIES_MAX), width};
}

static void begin(timer *t)
{
    t->count = 0;
    t->used = 0;
    t->apart = false;
}

static st_bound_op *append(timer *t, st_op op, st_bound_value in, st_bound_value out)
{
    st_bound_op *b = &t->bound[t->count];
    t->ops[t->count] = op;
    *b = (st_bound_op){.op = &t->ops[t->count++], .in[0] = in, .out = out};
    return b;
}

static st_bound_weight matrix(timer *t, uint32_t type, size_t row_bytes, uint32_t width, uint32_t columns)
{
    return (st_bound_weight){.data = take(t, row_bytes * columns), .type = type, .ne = {width, columns, 1},
                             .row_bytes = row_bytes};
}

static st_bound_weight floats(timer *t, uint32_t width, uint32_t rows)
{
    return matrix(t, ST_TYPE_F32, width * sizeof(float), width, rows);
}

/* --- timing --------------------------------------------------------------------------------------------------------- */

/* `rows` rows of one conversation from `position` on, or of as many conversations at that position. */
static strata_status send_step(timer *t, uint32_t rows, uint32_t position)
{
    const st_cuda_api *api = t->device->api;
    st_step *step = (st_step *)(void *)t->host;
    uint32_t conversations = t->apart ? rows : 1, own = rows / conversations, pages = ((position + own) >> PAGE_SHIFT) + 1;
    st_step_lay_out(step, rows, conversations, rows, conversations * pages);
    step->out_count = rows;
    for (uint32_t i = 0; i < conversations; i++)
        st_step_conversations(step)[i] = (st_step_conversation){.first_row = i * own, .rows = own, .position = position,
                                                                .pages[0].table = i * pages};
    for (uint32_t i = 0; i < rows; i++) {
        st_step_rows(step)[i] = (st_step_row){.position = position + i % own, .conversation = i / own};
        st_step_out_rows(step)[i] = i;
    }
    for (uint32_t i = 0; i < conversations * pages; i++) st_step_tables(step)[i] = i;
    st_cuda_result result = api->copy(t->memory + STEP_OFFSET, step, step->bytes, ST_COPY_UP, t->queue.stream);
    if (result == ST_CUDA_OK) result = api->stream_sync(t->queue.stream);
    return st_cuda_check(t->device, result, "measuring the GPU", t->error);
}

static strata_status time_launches(timer *t, st_segment *segment, uint32_t rows, double *seconds)
{
    const st_cuda_api *api = t->device->api;
    st_cuda_result result = api->event_record(t->begin, t->queue.stream);
    strata_status status = st_cuda_check(t->device, result, "measuring the GPU", t->error);
    for (int i = 0; i < LAUNCHES && status == STRATA_OK; i++) status = st_cuda_launch(segment, &t->queue, rows, t->error);
    if (status != STRATA_OK) return status;
    result = api->event_record(t->end, t->queue.stream);
    if (result == ST_CUDA_OK) result = api->stream_sync(t->queue.stream);
    if (result == ST_CUDA_OK) result = api->event_elapsed(t->begin, t->end, seconds);
    *seconds /= LAUNCHES;
    return st_cuda_check(t->device, result, "measuring the GPU", t->error);
}

/* Seconds of what was appended, over `copies`; at least `least` seconds of tries. */
static strata_status time_for(timer *t, uint32_t rows, uint32_t position, uint32_t copies, double least, double *out)
{
    st_segment_source source = {.ops = t->bound, .count = t->count, .rows = ST_ROWS_ALL,
                                .step = (st_step *)(void *)(t->memory + STEP_OFFSET), .step_bytes = MIB,
                                .scratch = t->memory + SCRATCH_OFFSET, .shared_bytes = SCRATCH_BYTES};
    st_segment *segment = NULL;
    double best = 1e9, end = st_clock_seconds() + least;
    strata_status status = send_step(t, rows, position);
    if (status == STRATA_OK) status = st_cuda_prepare(t->device, &source, &segment, t->error);
    for (int i = 0; (i < TRIES || st_clock_seconds() < end) && status == STRATA_OK; i++) {
        double seconds = 0;
        status = time_launches(t, segment, rows, &seconds);
        if (i > 0 && seconds < best) best = seconds; /* the first finds weights of an earlier one in the cache */
    }
    st_cuda_segment_free(segment);
    *out = best / copies;
    return status;
}

static strata_status time_ops(timer *t, uint32_t rows, uint32_t position, uint32_t copies, double *out)
{
    return time_for(t, rows, position, copies, 0, out);
}

static double share_of(double rate, double full)
{
    double share = full > 0 ? rate / full : 0;
    return share < 1 ? share : 1;
}

static double memory_seconds(const timer *t, double bytes)
{
    return bytes / t->read_bytes;
}

static double above_zero(double x)
{
    return x > 0 ? x : 0;
}

/* What is left of a time without a part of it that is priced on its own. */
static double without(double seconds, double part)
{
    return seconds > 2 * part ? seconds - part : seconds / 2;
}

/* --- rows and products ---------------------------------------------------------------------------------------------- */

static void norm(timer *t, st_bound_value in, st_bound_value out, uint32_t group)
{
    st_op op = {.kind = ST_OP_RMS_NORM, .p.norm = {.group = group, .epsilon = 1e-6f}};
    append(t, op, in, out)->weight[0] = floats(t, group, 1);
}

/* A sum, its norm, an activation. */
static void append_rows(timer *t, st_bound_value x, st_bound_value y)
{
    append(t, (st_op){.kind = ST_OP_ADD}, x, x)->in[1] = y;
    norm(t, x, y, WIDTH);
    append(t, (st_op){.kind = ST_OP_GATED_ACT}, y, y)->in[1] = x;
}

/* One row. This is the first measurement: it lasts until the GPU has its clock. */
static strata_status time_row(timer *t)
{
    begin(t);
    for (size_t i = 0; i < COPIES; i++)
        append_rows(t, value_at(t, A_OFFSET, i, WIDTH), value_at(t, B_OFFSET, i, WIDTH));
    return time_for(t, 1, 0, 3 * COPIES, WARM_SECONDS, &t->out->classes[ST_CLASS_ROWS].seconds);
}

/* The rate at which a batch is read and written: three values, two and three. What few rows take more than one. */
static strata_status time_rows(timer *t)
{
    st_class_rates *rates = &t->out->classes[ST_CLASS_ROWS];
    double bytes = 8.0 * LARGE_BATCH * WIDTH * sizeof(float), batch = 0, few = 0;
    begin(t);
    append_rows(t, value_at(t, A_OFFSET, 0, WIDTH), value_at(t, B_OFFSET, 0, WIDTH));
    strata_status status = time_ops(t, LARGE_BATCH, 0, 1, &batch);
    if (status != STRATA_OK) return status;
    rates->memory_share = share_of(bytes / batch, t->read_bytes * t->out->type_share[ST_TYPE_F32]);
    t->out->classes[ST_CLASS_POSITIONS].memory_share = rates->memory_share;
    begin(t);
    for (size_t i = 0; i < COPIES; i++)
        append_rows(t, value_at(t, A_OFFSET, i, WIDTH), value_at(t, B_OFFSET, i, WIDTH));
    status = time_ops(t, FEW, 0, 3 * COPIES, &few);
    if (status == STRATA_OK) rates->batch_seconds = above_zero(few - rates->seconds - batch / 3 * FEW / LARGE_BATCH);
    return status;
}

typedef struct block {
    uint32_t type, elements, bytes;
} block;

static const block q4_k = {ST_TYPE_Q4_K, 256, 144};

static size_t row_bytes_of(const block *b, uint32_t width)
{
    return (size_t)width / b->elements * b->bytes;
}

/* Seconds in which one row reads weights of a type. */
static double weights_seconds(const timer *t, uint32_t type, size_t bytes)
{
    double share = t->out->type_share[type];
    return memory_seconds(t, (double)bytes) / (share > 0 ? share : 1);
}

/* Products that share nothing, each of the norm of its own input: a norm also quantises for a single row. */
static void append_products(timer *t, const block *b, uint32_t width, uint32_t columns, uint32_t copies)
{
    static const st_op op = {.kind = ST_OP_MATMUL};
    begin(t);
    for (size_t i = 0; i < copies; i++) {
        st_bound_value in = value_at(t, A_OFFSET, i, width), out = value_at(t, B_OFFSET, i, columns);
        norm(t, in, in, width);
        append(t, op, in, out)->weight[0] = matrix(t, b->type, row_bytes_of(b, width), width, columns);
    }
}

/* Seconds of a product of `rows` rows, without the norm. */
static strata_status time_product(timer *t, uint32_t rows, uint32_t copies, double *out)
{
    const st_class_rates *norms = &t->out->classes[ST_CLASS_ROWS];
    double bytes = rows > 1 ? 2.0 * rows * t->bound[0].in[0].width * sizeof(float) : 0;
    strata_status status = time_ops(t, rows, 0, copies, out);
    if (norms->memory_share > 0) bytes /= norms->memory_share * t->out->type_share[ST_TYPE_F32];
    *out = without(*out, norms->seconds + (rows > 1 ? norms->batch_seconds : 0) + memory_seconds(t, bytes));
    return status;
}

static strata_status time_products(timer *t)
{
    static const struct { uint32_t columns, copies; } sizes[] = {{1024, 64}, {4096, 16}, {10240, 6}, {20480, 3}};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    st_fit_point points[SIZES] = {{0}};
    strata_status status = STRATA_OK;
    for (size_t i = 0; i < SIZES && status == STRATA_OK; i++) {
        append_products(t, &q4_k, WIDTH, sizes[i].columns, sizes[i].copies);
        points[i].work = (double)(sizes[i].columns * row_bytes_of(&q4_k, WIDTH));
        status = time_product(t, 1, sizes[i].copies, &points[i].seconds);
    }
    t->out->classes[ST_CLASS_PRODUCT].seconds = st_fit_line(points, status == STRATA_OK ? SIZES : 0).fixed;
    return status;
}

static const block types[] = {
#define X(name, function, block, bytes) {ST_TYPE_##name, block, bytes},
    ST_TYPE_TABLE(X)
#undef X
};

/* The share of the memory's rate that matrices of each type reach with one row. */
static strata_status time_types(timer *t)
{
    strata_status status = STRATA_OK;
    double fixed = t->out->classes[ST_CLASS_PRODUCT].seconds;
    for (size_t k = 0; k < sizeof types / sizeof *types && status == STRATA_OK; k++) {
        size_t row_bytes = row_bytes_of(&types[k], WIDTH);
        uint32_t columns = (uint32_t)(TYPE_BYTES / row_bytes / 256 * 256), copies = WEIGHT_BYTES / TYPE_BYTES;
        double seconds;
        if (!(st_cuda_types[ST_OP_MATMUL] >> types[k].type & 1)) continue;
        append_products(t, &types[k], WIDTH, columns, copies);
        status = time_product(t, 1, copies, &seconds);
        t->out->type_share[types[k].type] = share_of((double)(columns * row_bytes) / without(seconds, fixed), t->read_bytes);
    }
    return status;
}

/* Batches: beside what one row takes, a product of several rows has a time of its own and that of its arithmetic. Single
 * matrices stay in the cache; several are read, as in a model. */
static strata_status time_batches(timer *t)
{
    static const struct { uint32_t rows, columns, copies; } sizes[] = {
        {16, 4096, COPIES}, {64, 16384, 4}, {BATCH, 1024, 1}, {BATCH, 4096, 1}, {LARGE_BATCH, 4096, 1}};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    st_class_rates *rates = &t->out->classes[ST_CLASS_PRODUCT];
    st_fit_point points[SIZES] = {{0}};
    strata_status status = STRATA_OK;
    for (size_t i = 0; i < SIZES && status == STRATA_OK; i++) {
        append_products(t, &q4_k, WIDTH, sizes[i].columns, sizes[i].copies);
        points[i].work = 2.0 * WIDTH * sizes[i].rows * sizes[i].columns;
        status = time_product(t, sizes[i].rows, sizes[i].copies, &points[i].seconds);
        double read = sizes[i].copies > 1 ? weights_seconds(t, ST_TYPE_Q4_K, sizes[i].columns * row_bytes_of(&q4_k, WIDTH)) : 0;
        points[i].seconds = without(points[i].seconds, rates->seconds + read);
    }
    if (status != STRATA_OK) return status;
    st_fit fit = st_fit_line(points, SIZES);
    t->out->batch_ops = fit.each > 0 ? 1 / fit.each : points[SIZES - 1].work / points[SIZES - 1].seconds;
    rates->batch_seconds = fit.fixed;
    return STRATA_OK;
}

static const block plain = {ST_TYPE_F32, 1, sizeof(float)};

/* Matrices of floats. A batch with few columns, as a router's, takes the time of so many outputs more. */
static strata_status time_plain(timer *t)
{
    static const uint32_t columns[] = {128, 4096};
    st_class_rates *rates = &t->out->classes[ST_CLASS_PLAIN_PRODUCT];
    st_fit_point points[2] = {{0}};
    double one = 0;
    append_products(t, &plain, EMBEDDING, columns[0], COPIES);
    strata_status status = time_product(t, 1, COPIES, &one);
    rates->seconds = without(one, weights_seconds(t, ST_TYPE_F32, columns[0] * row_bytes_of(&plain, EMBEDDING)));
    for (size_t i = 0; i < 2 && status == STRATA_OK; i++) {
        append_products(t, &plain, EMBEDDING, columns[i], 1);
        points[i].work = (double)LARGE_BATCH * columns[i];
        status = time_product(t, LARGE_BATCH, 1, &points[i].seconds);
    }
    if (status != STRATA_OK) return status;
    st_fit fit = st_fit_line(points, 2);
    double each = fit.each > 0 ? fit.each : points[1].seconds / points[1].work;
    rates->op_share = 2.0 * EMBEDDING / each / t->out->batch_ops;
    rates->fill = fit.fixed / each;
    return STRATA_OK;
}

/* --- attention ------------------------------------------------------------------------------------------------------ */

typedef struct heads {
    st_op_class op_class;
    uint32_t size, kv; /* elements of a head; heads of keys and values */
} heads;

static const heads narrow = {ST_CLASS_ATTENTION, HEAD, KV_WIDTH / HEAD};
static const heads wide = {ST_CLASS_WIDE_ATTENTION, WIDE_HEAD, KV_WIDTH / WIDE_HEAD};

static st_kv_view kv_of(timer *t, uint32_t conversations, uint32_t positions)
{
    st_kv_view kv = {.page_shift = PAGE_SHIFT, .pages = conversations * ((positions >> PAGE_SHIFT) + 1), .type = ST_TYPE_F16,
                     .key_row_bytes = KV_WIDTH * 2, .value_row_bytes = KV_WIDTH * 2,
                     .key_page_bytes = (size_t)KV_WIDTH * 2 << PAGE_SHIFT, .value_page_bytes = (size_t)KV_WIDTH * 2 << PAGE_SHIFT};
    kv.keys = take(t, kv.pages * kv.key_page_bytes);
    kv.values = take(t, kv.pages * kv.value_page_bytes);
    return kv;
}

static void rope(timer *t, st_bound_value of, st_bound_value angles, uint32_t size)
{
    st_op op = {.kind = ST_OP_ROPE,
                .p.rope = {.heads = of.width / size, .head_size = size, .dims = size, .style = ST_ROPE_HALVES}};
    append(t, op, of, of)->in[1] = angles;
}

static void attend(timer *t, const heads *h, st_bound_value q, st_bound_value out, const st_kv_view *kv)
{
    st_op op = {.kind = ST_OP_ATTENTION, .p.attention = {.heads = q.width / h->size, .kv_heads = h->kv, .key_length = h->size,
                                                         .value_length = h->size, .scale = 0.1f}};
    append(t, op, q, out)->kv = *kv;
}

/* Norms and rotation of queries and keys, the storing, and attention behind `depth` positions. */
static void append_layer(timer *t, const heads *h, uint32_t rows, uint32_t depth, size_t copy, bool with_attention)
{
    st_bound_value q = value_at(t, A_OFFSET, copy, WIDTH), k = value_at(t, B_OFFSET, copy, KV_WIDTH), v = k;
    float *values = k.data;
    v.data = values + (size_t)rows * KV_WIDTH;
    st_bound_value angles = {values + (size_t)2 * rows * KV_WIDTH, h->size}, out = {values + (size_t)4 * rows * KV_WIDTH, WIDTH};
    st_kv_view kv = kv_of(t, rows, depth + 1);
    norm(t, q, q, h->size);
    rope(t, q, angles, h->size);
    norm(t, k, k, h->size);
    rope(t, k, angles, h->size);
    st_bound_op *store = append(t, (st_op){.kind = ST_OP_KV_STORE}, k, (st_bound_value){0});
    store->in[1] = v;
    store->kv = kv;
    if (with_attention) attend(t, h, q, out, &kv);
}

/* Conversations with a row each. */
static strata_status time_layers(timer *t, const heads *h, uint32_t rows, uint32_t depth, uint32_t copies, bool with_attention,
                                 double *seconds)
{
    begin(t);
    t->apart = rows > 1;
    for (size_t i = 0; i < copies; i++) append_layer(t, h, rows, depth, i, with_attention);
    return time_ops(t, rows, depth, copies, seconds);
}

/* Prompts from an empty context: a row sees half of the others. Half as many heads keep the GPU less busy: the mean of both. */
static strata_status time_prompt(timer *t, const heads *h)
{
    static const uint32_t widths[] = {WIDTH, WIDTH / 2};
    double all = 0, ops = 0;
    strata_status status = STRATA_OK;
    for (size_t i = 0; i < 2 && status == STRATA_OK; i++) {
        double seconds = 0;
        begin(t);
        st_kv_view kv = kv_of(t, 1, LARGE_BATCH);
        attend(t, h, value_at(t, A_OFFSET, 0, widths[i]), value_at(t, B_OFFSET, 0, widths[i]), &kv);
        status = time_ops(t, LARGE_BATCH, 0, 1, &seconds);
        all += seconds;
        ops += 2.0 * LARGE_BATCH * widths[i] * (LARGE_BATCH + 1);
    }
    if (status == STRATA_OK) t->out->classes[h->op_class].op_share = ops / all / t->out->batch_ops;
    return status;
}

static strata_status time_attention(timer *t)
{
    st_class_rates *classes = t->out->classes;
    st_class_rates *attention = &classes[ST_CLASS_ATTENTION], *other = &classes[ST_CLASS_WIDE_ATTENTION];
    double position_bytes = 2.0 * KV_WIDTH * 2, positions = 0, close = 0, deep = 0, far = 0, wide_close = 0;
    double few_positions = 0, few_close = 0;
    strata_status status = time_layers(t, &narrow, 1, SHORT, COPIES, false, &positions);
    if (status == STRATA_OK) status = time_layers(t, &narrow, 1, SHORT, COPIES, true, &close);
    if (status == STRATA_OK) status = time_layers(t, &narrow, 1, ST_DEEP_POSITIONS, COPIES / 2, true, &deep);
    if (status == STRATA_OK) status = time_layers(t, &narrow, 1, LONG, 1, true, &far);
    if (status == STRATA_OK) status = time_layers(t, &wide, 1, SHORT, COPIES, true, &wide_close);
    if (status == STRATA_OK) status = time_layers(t, &narrow, FEW, SHORT, FEW_COPIES, false, &few_positions);
    if (status == STRATA_OK) status = time_layers(t, &narrow, FEW, SHORT, FEW_COPIES, true, &few_close);
    if (status != STRATA_OK) return status;
    double rate = far > deep ? (LONG - ST_DEEP_POSITIONS) * position_bytes / (far - deep) : t->read_bytes;
    if (rate > t->read_bytes) rate = t->read_bytes;
    classes[ST_CLASS_POSITIONS].seconds = positions;
    attention->memory_share = other->memory_share = share_of(rate, t->read_bytes * t->out->type_share[ST_TYPE_F32]);
    attention->seconds = above_zero(close - positions);
    attention->deep_seconds = above_zero(deep - positions - ST_DEEP_POSITIONS * position_bytes / rate);
    other->seconds = above_zero(wide_close - positions);
    other->deep_seconds = other->seconds + above_zero(attention->deep_seconds - attention->seconds);
    classes[ST_CLASS_POSITIONS].batch_seconds = above_zero(few_positions - positions);
    attention->batch_seconds = above_zero(few_close - few_positions - attention->seconds - FEW * SHORT * position_bytes / rate);
    other->batch_seconds = attention->batch_seconds;
    status = time_prompt(t, &narrow);
    return status == STRATA_OK ? time_prompt(t, &wide) : status;
}

/* --- experts -------------------------------------------------------------------------------------------------------- */

enum { IDS_OFFSET = B_OFFSET, CHOSEN_OFFSET = B_OFFSET + 4 * MIB, SUM_OFFSET = B_OFFSET + 16 * MIB };

typedef struct expert_shape {
    uint32_t experts, width;
} expert_shape;

static size_t expert_bytes(const expert_shape *s)
{
    return (size_t)3 * EMBEDDING * s->width / 256 * 144;
}

/* Gate, up and down; `ids` begin with those of operation `index`, for one row each. */
static void append_experts(timer *t, const expert_shape *s, size_t index)
{
    st_op op = {.kind = ST_OP_EXPERTS, .p.experts = {.experts = s->experts, .used = USED, .width = s->width}};
    st_bound_op *b = append(t, op, value_at(t, A_OFFSET, 0, EMBEDDING), value_at(t, SUM_OFFSET, 0, EMBEDDING));
    b->in[1] = (st_bound_value){t->memory + IDS_OFFSET + index * ST_CUDA_ALIGNMENT, USED};
    b->in[2] = (st_bound_value){t->memory + CHOSEN_OFFSET + index * ST_CUDA_ALIGNMENT, USED};
    for (int m = 0; m < ST_CUDA_TABLES; m++) {
        bool down = m == ST_CUDA_TABLES - 1;
        uint32_t width = down ? s->width : EMBEDDING, columns = down ? EMBEDDING : s->width;
        b->weight[m] = (st_bound_weight){.data = t->memory, .parts = t->parts[m], .type = ST_TYPE_Q4_K,
                                         .ne = {width, columns, s->experts}, .row_bytes = width / 256 * 144};
        for (uint32_t i = 0; i < s->experts; i++)
            t->parts[m][i] = t->memory + i * expert_bytes(s) + (size_t)m * expert_bytes(s) / 3;
    }
}

/* `rows` rows one behind the other, or one row for each of `ops` operations. All experts are chosen as often. */
static strata_status send_ids(timer *t, uint32_t experts, uint32_t rows, uint32_t ops)
{
    const st_cuda_api *api = t->device->api;
    size_t stride = ops > 1 ? ST_CUDA_ALIGNMENT / sizeof(int32_t) : USED, count = ops > 1 ? ops : rows;
    int32_t *ids = (int32_t *)(void *)t->host;
    for (size_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < USED; k++) ids[i * stride + k] = (int32_t)((i * USED + k) % experts);
    st_cuda_result result = api->copy(t->memory + IDS_OFFSET, ids, count * stride * sizeof *ids, ST_COPY_UP, t->queue.stream);
    if (result == ST_CUDA_OK) result = api->stream_sync(t->queue.stream); /* the host's memory is used again */
    return st_cuda_check(t->device, result, "measuring the GPU", t->error);
}

/* One row: experts of two widths, no expert twice. */
static strata_status time_few_experts(timer *t)
{
    static const expert_shape shapes[] = {{64, 512}, {40, 1024}};
    st_class_rates *rates = &t->out->classes[ST_CLASS_EXPERTS];
    st_fit_point points[2] = {{0}};
    strata_status status = STRATA_OK;
    for (size_t i = 0; i < 2 && status == STRATA_OK; i++) {
        uint32_t ops = shapes[i].experts / USED;
        begin(t);
        for (size_t k = 0; k < ops; k++) append_experts(t, &shapes[i], k);
        points[i].work = USED * (double)expert_bytes(&shapes[i]);
        status = send_ids(t, shapes[i].experts, 1, ops);
        if (status == STRATA_OK) status = time_ops(t, 1, 0, ops, &points[i].seconds);
    }
    if (status != STRATA_OK) return status;
    st_fit fit = st_fit_line(points, 2);
    rates->seconds = fit.fixed;
    rates->memory_share = fit.each > 0 ? share_of(1 / fit.each, t->read_bytes * t->out->type_share[ST_TYPE_Q4_K]) : 0;
    return STRATA_OK;
}

/* The router prepares what its experts read: it is timed with them. */
static strata_status time_route(timer *t)
{
    static const expert_shape shape = {64, 512};
    double alone = 0, both = 0;
    strata_status status = send_ids(t, shape.experts, 1, 1);
    for (int routed = 0; routed < 2 && status == STRATA_OK; routed++) {
        begin(t);
        for (size_t i = 0; i < USED; i++) {
            st_op op = {.kind = ST_OP_ROUTE, .p.route = {.experts = shape.experts, .used = USED, .renormalise = true}};
            st_bound_value ids = {t->memory + IDS_OFFSET, USED}, chosen = {t->memory + CHOSEN_OFFSET, USED};
            if (routed) append(t, op, value_at(t, A_OFFSET, 1, shape.experts), ids)->out2 = chosen;
            append_experts(t, &shape, 0);
        }
        status = time_ops(t, 1, 0, USED, routed ? &both : &alone);
    }
    t->out->classes[ST_CLASS_ROUTE].seconds = above_zero(both - alone);
    return status;
}

/* Batches: more experts for the same rows take the time of so many rows more for each. */
static strata_status time_many_experts(timer *t)
{
    static const expert_shape shapes[] = {{16, EXPERT_WIDTH}, {56, EXPERT_WIDTH}};
    st_class_rates *rates = &t->out->classes[ST_CLASS_EXPERTS];
    st_fit_point points[2] = {{0}};
    strata_status status = STRATA_OK;
    for (size_t i = 0; i < 2 && status == STRATA_OK; i++) {
        begin(t);
        append_experts(t, &shapes[i], 0);
        points[i].work = shapes[i].experts;
        status = send_ids(t, shapes[i].experts, BATCH, 1);
        if (status == STRATA_OK) status = time_ops(t, BATCH, 0, 1, &points[i].seconds);
        double read = weights_seconds(t, ST_TYPE_Q4_K, shapes[i].experts * expert_bytes(&shapes[i]));
        if (rates->memory_share > 0) read /= rates->memory_share;
        points[i].seconds = without(points[i].seconds, rates->seconds + read);
    }
    if (status != STRATA_OK) return status;
    st_fit fit = st_fit_line(points, 2);
    double pairs = (double)BATCH * USED, row = (fit.fixed > 0 ? fit.fixed : points[0].seconds) / pairs;
    rates->op_share = 6.0 * EMBEDDING * EXPERT_WIDTH / row / t->out->batch_ops;
    rates->fill = fit.fixed > 0 ? fit.each / row : 0;
    return STRATA_OK;
}

/* --- recurrent state, candidates -------------------------------------------------------------------------------------- */

enum { CONV_FLOATS = (TAPS - 1) * CHANNELS, DELTA_FLOATS = VALUE_HEADS * STATE * STATE };

static st_state_view state_of(timer *t)
{
    float *memory = take(t, (size_t)(CONV_FLOATS + DELTA_FLOATS) * sizeof *memory);
    return (st_state_view){.conv = memory, .delta = memory + CONV_FLOATS, .slot_floats = CONV_FLOATS + DELTA_FLOATS, .slots = 1};
}

static void append_delta(timer *t, st_bound_value in, st_bound_value alpha, st_bound_value beta, st_bound_value out)
{
    st_op op = {.kind = ST_OP_DELTANET, .p.deltanet = {.key_heads = KEY_HEADS, .value_heads = VALUE_HEADS, .size = STATE}};
    st_bound_op *b = append(t, op, in, out);
    b->in[1] = alpha;
    b->in[2] = beta;
    b->weight[0] = floats(t, VALUE_HEADS, 1);
    b->weight[1] = floats(t, VALUE_HEADS, 1);
    b->state = state_of(t);
}

static strata_status time_recurrent(timer *t)
{
    enum { LAYERS = 48 };
    st_class_rates *rates = &t->out->classes[ST_CLASS_RECURRENT];
    double seconds;
    begin(t);
    for (size_t i = 0; i < LAYERS; i++) {
        st_bound_value q = value_at(t, A_OFFSET, i, CHANNELS), out = value_at(t, B_OFFSET, i, VALUE_HEADS * STATE);
        st_bound_value alpha = {(float *)q.data + CHANNELS, VALUE_HEADS}, beta = {(float *)q.data + CHANNELS + 64, VALUE_HEADS};
        st_bound_op *conv = append(t, (st_op){.kind = ST_OP_CONV, .p.conv = {.width = TAPS}}, q, q);
        conv->weight[0] = floats(t, TAPS, CHANNELS);
        conv->state = state_of(t);
        append_delta(t, q, alpha, beta, out);
    }
    strata_status status = time_ops(t, 1, 0, LAYERS, &seconds);
    if (status != STRATA_OK) return status;
    rates->seconds = above_zero(seconds - memory_seconds(t, 2.0 * (CONV_FLOATS + DELTA_FLOATS) * sizeof(float))) / 2;
    begin(t);
    st_bound_value alpha = {t->memory + A_OFFSET + 20 * MIB, VALUE_HEADS}, beta = {t->memory + A_OFFSET + 22 * MIB, VALUE_HEADS};
    append_delta(t, value_at(t, A_OFFSET, 0, CHANNELS), alpha, beta, value_at(t, B_OFFSET, 0, VALUE_HEADS * STATE));
    status = time_ops(t, BATCH, 0, 1, &seconds);
    if (status == STRATA_OK) rates->op_share = 7.0 * DELTA_FLOATS * BATCH / seconds / t->out->batch_ops;
    return status;
}

/* Logits that differ: equal ones would all be candidates. */
static strata_status send_logits(timer *t)
{
    const st_cuda_api *api = t->device->api;
    float *logits = (float *)(void *)t->host;
    uint32_t state = 1;
    for (size_t i = 0; i < VALUE_BYTES / sizeof *logits; i++) {
        state = state * 1664525u + 1013904223u;
        logits[i] = (float)(state >> 8) * 0x1p-20f;
    }
    st_cuda_result result = api->copy(t->memory + A_OFFSET, logits, VALUE_BYTES, ST_COPY_UP, t->queue.stream);
    if (result == ST_CUDA_OK) result = api->stream_sync(t->queue.stream);
    return st_cuda_check(t->device, result, "measuring the GPU", t->error);
}

/* Vocabularies of two sizes, and rows of several conversations; no penalties. */
static strata_status time_candidates(timer *t)
{
    static const struct { uint32_t vocabulary, rows, copies; } sizes[] = {{65536, 1, COPIES}, {131072, 1, COPIES}, {131072, 16, 1}};
    enum { SIZES = sizeof sizes / sizeof *sizes, ROWS_MAX = 16 };
    st_class_rates *rates = &t->out->classes[ST_CLASS_CANDIDATES];
    st_bound_value lists = value_at(t, B_OFFSET, COPIES, sizeof(st_adjustments) / sizeof(float));
    st_fit_point points[SIZES] = {{0}};
    st_cuda_result result = t->device->api->zero(lists.data, ROWS_MAX * sizeof(st_adjustments), t->queue.stream);
    strata_status status = st_cuda_check(t->device, result, "measuring the GPU", t->error);
    if (status == STRATA_OK) status = send_logits(t);
    for (size_t i = 0; i < SIZES && status == STRATA_OK; i++) {
        begin(t);
        for (size_t k = 0; k < sizes[i].copies; k++)
            append(t, (st_op){.kind = ST_OP_CANDIDATES}, value_at(t, A_OFFSET, k, sizes[i].vocabulary),
                   value_at(t, B_OFFSET, k, sizeof(st_candidates) / sizeof(float)))->in[1] = lists;
        points[i].work = sizes[i].rows * (double)sizes[i].vocabulary * sizeof(float);
        status = time_ops(t, sizes[i].rows, 0, sizes[i].copies, &points[i].seconds);
    }
    st_fit fit = st_fit_line(points, status == STRATA_OK ? SIZES : 0);
    rates->seconds = fit.fixed;
    rates->memory_share = fit.each > 0 ? share_of(1 / fit.each, t->read_bytes * t->out->type_share[ST_TYPE_F32]) : 0;
    return status;
}

/* --- in all ----------------------------------------------------------------------------------------------------------- */

strata_status st_cuda_probe_classes(st_device *device, const st_cuda_probe_memory *memory, st_device_rates *out,
                                    strata_error *error)
{
    /* The first brings the GPU to its clock. Later ones use the rates of earlier ones. */
    static strata_status (*const steps[])(timer *t) = {
        time_row,       time_products,    time_types, time_rows,         time_batches,   time_plain,
        time_attention, time_few_experts, time_route, time_many_experts, time_recurrent, time_candidates};
    timer *t = st_alloc_zero(1, sizeof *t);
    if (!t) return st_error_memory(error, sizeof *t, "measuring the GPU");
    *t = (timer){.device = device, .queue = {device, device->stream}, .memory = memory->device, .host = memory->host,
                 .begin = memory->begin, .end = memory->end, .read_bytes = out->read_bytes, .out = out, .error = error};
    strata_status status = STRATA_OK;
    bool profile = device->profile;
    device->profile = false; /* which would wait for each operation, and count it */
    for (size_t i = 0; i < sizeof steps / sizeof *steps && status == STRATA_OK; i++) status = steps[i](t);
    device->profile = profile;
    st_free(t);
    return status;
}
