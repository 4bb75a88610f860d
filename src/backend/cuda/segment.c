/* Segments: operations that are checked once and enqueued to a stream, in order, at each launch. Expert tables are copied to
 * mapped pinned memory, where kernels read them. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/positions.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

/* --- which operations with which types ---------------------------------------------------------------------------- */

static bool has_bit(uint64_t types, uint32_t type)
{
    return type < 64 && types >> type & 1;
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
    if (!st_cuda_runs(bound->op))
        return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s of layer %d: no kernel for an operation of this size",
                            name_of(kind), bound->op->layer);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        const st_bound_weight *w = &bound->weight[i];
        if (w->data && !has_bit(st_cuda_types_of_weight(kind, i), w->type))
            return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s of layer %d: weight %d is of type %s, which has no kernel",
                                name_of(kind), bound->op->layer, i, w->info->name);
    }
    bool has_kv = kind == ST_OP_KV_STORE || kind == ST_OP_ATTENTION;
    if (has_kv && !has_bit(st_cuda_kv_types, bound->kv.type))
        return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s of layer %d: no kernel for KV of type %d", name_of(kind),
                            bound->op->layer, (int)bound->kv.type);
    return STRATA_OK;
}

/* --- scratch ------------------------------------------------------------------------------------------------------ */

/* int8 activations of the rows, at most `most` of them. */
static size_t acts_bytes(size_t width, uint32_t rows, uint32_t most)
{
    return (rows < most ? rows : most) * st_cuda_acts_row_bytes(width);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* int8 activations of few rows; halves of more, with counters and the sums of parts of the depth. */
static size_t matmul_scratch(const st_bound_op *shape, uint32_t rows)
{
    size_t width = shape->weight[0].ne[0], few = acts_bytes(width, rows, ST_CUDA_INT8_ROWS);
    if (rows >= ST_CUDA_CORES_ROWS_MIN && st_cuda_matmul_on_cores(shape, ST_CUDA_CORES_ROWS))
        few = larger(few, st_cuda_block_halves_bytes(width, rows < ST_CUDA_CORES_ROWS ? rows : ST_CUDA_CORES_ROWS));
    if (!st_cuda_matmul_in_tiles(shape, rows)) return few;
    return larger(few, st_cuda_halves_bytes(width, rows) + ST_CUDA_COUNTERS_BYTES + st_cuda_partial_bytes(width, shape->out.width, rows));
}

/* Copies of the tables, the hidden rows of every (row, expert) pair, and int8 activations of both, with the products of all pairs
 * where they share experts; more rows: the layout of call.h. A launch of fewer rows than planned may need more: the most of all. */
static size_t experts_scratch(const st_bound_op *shape, uint32_t rows)
{
    const st_op *op = shape->op;
    size_t used = op->p.experts.used, width = op->p.experts.width, tables = st_cuda_tables_bytes(op->p.experts.experts);
    uint32_t embedding = shape->in[0].width, most = ST_CUDA_EXPERTS_INT8_ROWS;
    size_t bytes = tables + rows * used * width * sizeof(float) + acts_bytes(embedding, rows, most) +
                   used * acts_bytes(width, rows, most);
    uint32_t shared = st_cuda_experts_shared_rows(op) < rows ? st_cuda_experts_shared_rows(op) : rows;
    if (st_cuda_experts_are_shared(shape, shared))
        bytes = larger(bytes, tables + shared * (st_cuda_acts_row_bytes(embedding) + used * st_cuda_acts_row_bytes(width)) +
                                  shared * used * embedding * sizeof(float));
    return st_cuda_experts_in_tiles(shape, rows) ? larger(bytes, st_cuda_experts_lay_out(op, embedding, rows).bytes) : bytes;
}

/* int8 activations of the output, a counter for each block of heads, and the partial sums of each part of the context with two
 * floats each. */
static size_t attention_scratch(const st_op *op, uint32_t rows)
{
    size_t width = (size_t)op->p.attention.heads * op->p.attention.value_length, most = 0;
    for (uint32_t r = 1; r <= rows && r <= ST_CUDA_ATTENTION_ROWS; r++) {
        size_t parts = (size_t)r * st_cuda_attention_splits(op, r);
        if (most < parts) most = parts;
    }
    return acts_bytes(width, rows, ST_CUDA_INT8_ROWS) + st_cuda_attention_counters_bytes(op) +
           most * (width + 2 * (size_t)op->p.attention.heads) * sizeof(float);
}

static size_t candidates_scratch(uint32_t vocab, uint32_t rows)
{
    return (rows < ST_CUDA_CANDIDATE_ROWS ? rows : (uint32_t)ST_CUDA_CANDIDATE_ROWS) * st_cuda_candidates_lay_out(vocab).bytes;
}

static size_t deltanet_scratch(const st_op *op, uint32_t rows)
{
    return st_cuda_delta_in_chunks(op, rows) ? st_cuda_delta_lay_out(op, rows).bytes : 0;
}

/* A graph's kernels lay out scratch for the rows of the graph, which may be more than those of the launch. */
st_scratch st_cuda_scratch(const st_bound_op *shape, uint32_t rows)
{
    rows = st_cuda_graph_rows(rows);
    switch (shape->op->kind) {
    case ST_OP_MATMUL: return (st_scratch){.shared_bytes = matmul_scratch(shape, rows)};
    case ST_OP_EXPERTS: return (st_scratch){.shared_bytes = experts_scratch(shape, rows)};
    case ST_OP_ATTENTION: return (st_scratch){.shared_bytes = attention_scratch(shape->op, rows)};
    case ST_OP_CANDIDATES: return (st_scratch){.shared_bytes = candidates_scratch(shape->in[0].width, rows)};
    case ST_OP_DELTANET: return (st_scratch){.shared_bytes = deltanet_scratch(shape->op, rows)};
    default: return (st_scratch){0};
    }
}

/* --- preparing ---------------------------------------------------------------------------------------------------- */

/* Entries that did not change are not written. */
void st_cuda_refresh_tables(const st_segment *segment)
{
    for (uint32_t i = 0; i < segment->table_count; i++) {
        const st_cuda_table *t = &segment->tables[i];
        for (uint32_t k = 0; k < t->count; k++)
            if (t->copy[k] != t->parts[k]) t->copy[k] = t->parts[k];
    }
}

/* Blocks are large: small pinned allocations would take device memory for page tables. */
strata_status st_cuda_mapped_new(st_device *device, size_t entries, const void ***out, strata_error *error)
{
    size_t all = ST_CUDA_TABLES_BYTES / sizeof(void *);
    uint32_t block = device->tables_block + (device->tables_used + entries > all);
    if (entries > all || block == ST_CUDA_TABLE_BLOCKS)
        return st_error_set(error, STRATA_MEMORY, "open fewer models on the GPU",
                            "%s: no room for %zu more entries of expert tables", device->facts.name, entries);
    strata_status status = st_cuda_tables_block(device, block, error);
    if (status != STRATA_OK) return status;
    if (block != device->tables_block) device->tables_used = 0;
    device->tables_block = block;
    *out = device->tables[block] + device->tables_used;
    device->tables_used += entries;
    device->tables_users++;
    return STRATA_OK;
}

/* Lists the expert tables of all operations and gives each a copy in pinned memory. */
static strata_status copy_tables(st_segment *segment, strata_error *error)
{
    st_device *device = segment->device;
    size_t entries = 0;
    for (uint32_t i = 0; i < segment->count; i++)
        for (int k = 0; k < ST_CUDA_TABLES && segment->ops[i].op->kind == ST_OP_EXPERTS; k++)
            if (segment->ops[i].weight[k].parts) {
                st_cuda_table *t = &segment->tables[segment->table_count++];
                t->parts = segment->ops[i].weight[k].parts;
                t->count = segment->ops[i].op->p.experts.experts;
                entries += t->count;
            }
    const void **next = NULL;
    strata_status status = entries ? st_cuda_mapped_new(device, entries, &next, error) : STRATA_OK;
    if (status != STRATA_OK) {
        segment->table_count = 0;
        return status;
    }
    if (entries) memset(next, 0, entries * sizeof *next);
    for (uint32_t i = 0; i < segment->table_count; next += segment->tables[i++].count) segment->tables[i].copy = next;
    return STRATA_OK;
}

void st_cuda_mapped_free(st_device *device)
{
    if (--device->tables_users > 0) return;
    device->tables_block = 0;
    device->tables_used = 0;
}

static void fill_calls(st_segment *segment, const st_segment_source *source)
{
    const st_cuda_table *table = segment->tables;
    for (uint32_t i = 0; i < segment->count; i++) {
        st_cuda_call *call = &segment->calls[i];
        *call = (st_cuda_call){.bound = &segment->ops[i], .step = source->step, .kind = source->rows, .scratch = source->scratch};
        for (int k = 0; k < ST_CUDA_TABLES && segment->ops[i].op->kind == ST_OP_EXPERTS; k++)
            if (segment->ops[i].weight[k].parts) call->tables[k] = (table++)->copy;
    }
}

/* --- neighbours that run together, in launches of few rows ---------------------------------------------------------- */

/* An operation that can write int8 activations of its output. */
static bool can_quantise(const st_bound_op *b)
{
    switch (b->op->kind) {
    case ST_OP_RMS_NORM: return b->op->p.norm.group % ST_CUDA_ACT_BLOCK == 0;
    case ST_OP_GATED_ACT: case ST_OP_SIGMOID_GATE: case ST_OP_SILU_GATE: return b->out.width % ST_CUDA_ACT_BLOCK == 0;
    case ST_OP_ATTENTION: return st_cuda_attention_splits_context(b, 1);
    default: return false;
    }
}

/* … or its halves, in launches of more rows. */
static bool can_convert(const st_bound_op *b)
{
    return b->op->kind != ST_OP_ATTENTION && (b->op->kind != ST_OP_RMS_NORM || b->op->p.norm.group == b->out.width);
}

static bool is_int8_matmul(const st_bound_op *b)
{
    return b->op->kind == ST_OP_MATMUL && st_cuda_matmul_in_int8(b, 1);
}

/* Whether an operation changes the value, or scratch. */
static bool ends(const st_bound_op *op, const void *value)
{
    return op->op->kind == ST_OP_EXPERTS || op->op->kind == ST_OP_ATTENTION || op->out.data == value || op->out2.data == value;
}

/* Lets the producer of a matrix product's input quantise it, and later products of the same input use what is in scratch. In
 * launches of more rows the producer converts it, or the first product. In between, products differ in what they read. */
static void share_activations(st_segment *segment)
{
    const void *held = NULL, *halves = NULL; /* the value whose int8 activations are in scratch; whose halves are */
    struct {
        const void *of;
        bool cores;
    } some = {NULL, false}; /* … with ST_CUDA_CORES_ROWS_MIN to ST_CUDA_CORES_ROWS rows: whose activations for products on_cores or others */
    for (uint32_t i = 0; i < segment->count; i++) {
        const st_bound_op *op = &segment->ops[i], *next = i + 1 < segment->count ? op + 1 : NULL;
        if (is_int8_matmul(op)) {
            segment->calls[i].quantised = op->in[0].data == held;
            segment->calls[i].converted = op->in[0].data == halves;
            held = halves = op->in[0].data;
            bool cores = st_cuda_matmul_on_cores(op, ST_CUDA_CORES_ROWS);
            segment->calls[i].ready = some.of == op->in[0].data && some.cores == cores;
            some.of = op->in[0].data;
            some.cores = cores;
            continue;
        }
        bool quantises = next && is_int8_matmul(next) && next->in[0].data == op->out.data && can_quantise(op);
        segment->calls[i].quantises = quantises;
        if (quantises) held = op->out.data;
        else if (ends(op, held)) held = NULL;
        if (quantises && can_convert(op)) {
            halves = some.of = op->out.data;
            some.cores = segment->calls[i].cores = st_cuda_matmul_on_cores(next, ST_CUDA_CORES_ROWS);
            continue;
        }
        if (quantises || ends(op, halves) || st_cuda_delta_in_chunks(op->op, UINT32_MAX)) halves = NULL;
        if (quantises || ends(op, some.of)) some.of = NULL;
    }
}

/* Products of the same input with matrices of the same type are one launch. */
static void join_products(st_segment *segment)
{
    for (uint32_t i = 0, count; i < segment->count; i += count) {
        const st_bound_op *first = &segment->ops[i];
        for (count = 1; is_int8_matmul(first) && i + count < segment->count && count < ST_CUDA_JOINED_MAX; count++) {
            const st_bound_op *op = first + count;
            if (!is_int8_matmul(op) || op->in[0].data != first->in[0].data || op->weight[0].type != first->weight[0].type) break;
            segment->calls[i + count].skipped = segment->calls[i + count].always = true;
        }
        segment->calls[i].joined = count - 1;
    }
}

/* Whether rows of two values overlap; the same rows do not count. */
static bool overlap(st_bound_value a, st_bound_value b)
{
    uintptr_t x = (uintptr_t)a.data, y = (uintptr_t)b.data;
    size_t a_bytes = ST_CUDA_FEW_ROWS * a.width * sizeof(float), b_bytes = ST_CUDA_FEW_ROWS * b.width * sizeof(float);
    if (x == y && a.width == b.width) return false;
    return x < y + b_bytes && y < x + a_bytes;
}

/* A sum is computed by the norm that reads it. */
static void join_sums(st_segment *segment)
{
    for (uint32_t i = 0; i + 1 < segment->count; i++) {
        const st_bound_op *sum = &segment->ops[i], *norm = sum + 1;
        if (sum->op->kind != ST_OP_ADD || norm->op->kind != ST_OP_RMS_NORM || norm->in[0].data != sum->out.data ||
            norm->op->p.norm.group != sum->out.width || overlap(norm->out, sum->in[0]) || overlap(norm->out, sum->in[1]))
            continue;
        segment->calls[i].skipped = true;
        segment->calls[i + 1].sum = sum;
    }
}

/* Norm and RoPE of queries and keys run in one kernel, which stores keys and values as well. */
static void join_positions(st_segment *segment)
{
    for (uint32_t i = 0, count; i < segment->count; i += count ? count : 1) {
        st_cuda_positions found;
        count = st_cuda_find_positions(&segment->ops[i], segment->count - i, &found);
        segment->calls[i].positioned = count;
        for (uint32_t k = 1; k < count; k++) segment->calls[i + k].skipped = segment->calls[i + k].always = true;
        if (count && i + count < segment->count && st_cuda_attention_counts(&segment->ops[i + count])) {
            segment->calls[i].attention = &segment->ops[i + count];
            segment->calls[i + count].counts = true;
        }
    }
}

/* The router prepares what the experts right behind it read: nothing uses scratch in between. */
static void join_routes(st_segment *segment)
{
    for (uint32_t i = 0; i + 1 < segment->count; i++) {
        if (segment->ops[i].op->kind != ST_OP_ROUTE || segment->ops[i + 1].op->kind != ST_OP_EXPERTS) continue;
        segment->calls[i].experts = &segment->calls[i + 1];
        segment->calls[i + 1].prepared = true;
    }
}

static st_segment *segment_alloc(st_device *device, const st_segment_source *source)
{
    uint32_t experts = 0;
    for (uint32_t i = 0; i < source->count; i++) experts += source->ops[i].op->kind == ST_OP_EXPERTS;
    st_segment *segment = st_alloc_zero(1, sizeof *segment);
    if (!segment) return NULL;
    segment->device = device;
    segment->count = source->count;
    segment->shared_bytes = source->shared_bytes;
    segment->ops = st_alloc_array(source->count, sizeof *segment->ops);
    segment->calls = st_alloc_array(source->count, sizeof *segment->calls);
    segment->tables = st_alloc_zero(experts * ST_CUDA_TABLES + 1, sizeof *segment->tables);
    if (segment->ops && segment->calls && segment->tables) {
        memcpy(segment->ops, source->ops, source->count * sizeof *segment->ops);
        return segment;
    }
    st_cuda_segment_free(segment);
    return NULL;
}

strata_status st_cuda_prepare(st_device *device, const st_segment_source *source, st_segment **out, strata_error *error)
{
    strata_status status = st_cuda_enter(device, error);
    for (uint32_t i = 0; i < source->count && status == STRATA_OK; i++) status = check_op(&source->ops[i], error);
    if (status != STRATA_OK) return status;
    st_segment *segment = segment_alloc(device, source);
    if (!segment) return st_error_memory(error, source->count * sizeof(st_bound_op), "a segment of the program");
    status = copy_tables(segment, error);
    fill_calls(segment, source);
    join_sums(segment);
    share_activations(segment);
    join_products(segment);
    join_positions(segment);
    join_routes(segment);
    bool graphs = !device->profile && source->rows_min <= 1; /* they are for few rows, and their memory is limited */
    if (status == STRATA_OK && graphs) status = st_cuda_graphs_new(segment, error);
    if (status == STRATA_OK) *out = segment;
    else st_cuda_segment_free(segment);
    return status;
}

void st_cuda_segment_free(st_segment *segment)
{
    if (!segment) return;
    st_cuda_graphs_free(segment);
    if (segment->table_count > 0) st_cuda_mapped_free(segment->device);
    st_free(segment->ops);
    st_free(segment->calls);
    st_free(segment->tables);
    st_free(segment);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

strata_status st_cuda_check_scratch(st_segment *segment, uint32_t rows, strata_error *error)
{
    if (rows == segment->checked_rows) return STRATA_OK;
    for (uint32_t i = 0; i < segment->count; i++) {
        size_t needed = st_cuda_scratch(&segment->ops[i], rows).shared_bytes;
        if (needed > segment->shared_bytes)
            return st_error_set(error, STRATA_RUNTIME, NULL, "%s of layer %d, %u rows: expected %zu bytes of scratch, found %zu",
                                name_of(segment->ops[i].op->kind), segment->ops[i].op->layer, rows, needed, segment->shared_bytes);
    }
    segment->checked_rows = rows;
    return STRATA_OK;
}

static strata_status launch_op(st_device *device, const st_cuda_call *call, strata_error *error)
{
    st_op_kind kind = call->bound->op->kind;
    double start = device->profile ? st_clock_seconds() : 0;
    st_cuda_result result = device->api->run(call);
    if (result == ST_CUDA_OK && device->profile) result = device->api->stream_sync(call->stream);
    if (result != ST_CUDA_OK) return st_cuda_check(device, result, name_of(kind), error);
    if (!device->profile) return STRATA_OK;
    device->times[kind].seconds += st_clock_seconds() - start;
    device->times[kind].calls++;
    return STRATA_OK;
}

strata_status st_cuda_launch(st_segment *segment, st_queue *queue, uint32_t rows, strata_error *error)
{
    st_device *device = segment->device;
    strata_status status = st_cuda_enter(device, error);
    if (status == STRATA_OK) status = st_cuda_check_scratch(segment, rows, error);
    if (status != STRATA_OK || rows == 0) return status;
    st_cuda_refresh_tables(segment);
    void *graph = st_cuda_graph_of(segment, rows);
    if (graph) return st_cuda_check(device, device->api->graph_launch(graph, queue->stream), "launching a graph", error);
    for (uint32_t i = 0; i < segment->count && status == STRATA_OK; i++) {
        st_cuda_call call = segment->calls[i];
        call.rows = rows;
        call.stream = queue->stream;
        status = launch_op(device, &call, error);
    }
    return status;
}
