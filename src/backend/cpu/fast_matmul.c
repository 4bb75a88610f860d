/* Matrix multiplication on the fast path. Up to three rows (GEMV): each row of weights is read once, in the file's
 * format, and multiplied with int8 activations. A batch (GEMM): a strip of weights at a time is unpacked to bytes,
 * stays in the CPU cache, and is multiplied with all tokens. Matrices of the same input run together, with one
 * quantisation and one dispatch to the pool.
 *
 * A few channels of the activations are far larger than the others, and their blocks hold most of the rounding error.
 * In a batch, a block with more than 1/ST_REFINED of its row's squared error is refined: the residual becomes a second
 * int8 block. Few rows have a scale for each half of a block instead. */
#include <string.h>

#include "backend/cpu/fast.h"
#include "backend/cpu/parts.h"

enum {
    PIECE_BYTES = 384 << 10, /* weights of a part that several rows read: they stay in the L2 cache */
    PIECE_COLUMNS = 16,      /* a part of quantised weights for a few rows has a multiple of it */
    ALIGN = ST_SCRATCH_ALIGN,
};

/* --- activations and strips in scratch ---------------------------------------------------------------------------- */

static size_t align_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Bytes of one tile, interleaved or not: q, scale, sum, total. */
static size_t tile_bytes(size_t width)
{
    size_t blocks = width / ST_ACT_BLOCK;
    return align_up(ST_ACT_TILE * (width + blocks * (2 * sizeof(float) + 2 * sizeof(int32_t))));
}

size_t st_acts_bytes(size_t width, size_t rows)
{
    return (rows + ST_ACT_TILE - 1) / ST_ACT_TILE * tile_bytes(width);
}

st_act_row st_acts_tile(const st_acts *acts, size_t tile)
{
    unsigned char *base = acts->memory + tile * tile_bytes(acts->width);
    size_t blocks = acts->width / ST_ACT_BLOCK;
    float *scale = (float *)(void *)(base + ST_ACT_TILE * acts->width);
    return (st_act_row){.q = (int8_t *)base,
                        .scale = scale,
                        .sum = scale + ST_ACT_TILE * blocks,
                        .total = (int32_t *)(void *)(scale + 2 * ST_ACT_TILE * blocks),
                        .stride = ST_ACT_TILE};
}

st_act_row st_acts_row(const st_acts *acts, size_t row, bool interleaved)
{
    size_t within = row % ST_ACT_TILE, blocks = acts->width / ST_ACT_BLOCK;
    st_act_row tile = st_acts_tile(acts, row / ST_ACT_TILE);
    if (!interleaved)
        return (st_act_row){.q = tile.q + within * acts->width, .scale = tile.scale + within * blocks,
                            .sum = tile.sum + within * blocks, .total = tile.total + within * blocks * 2, .stride = 1};
    tile.q += within * ST_ACT_BLOCK;
    tile.scale += within;
    tile.sum += within;
    tile.total += within * 2;
    return tile;
}

/* A scale and a sum of each half take as much memory as the four numbers of a block. */
st_act_halves st_acts_halves(const st_acts *acts, size_t row)
{
    size_t within = row % ST_ACT_TILE, halves = acts->width / ST_ACT_HALF;
    unsigned char *base = acts->memory + row / ST_ACT_TILE * tile_bytes(acts->width);
    float *scale = (float *)(void *)(base + ST_ACT_TILE * acts->width);
    return (st_act_halves){.q = (int8_t *)base + within * acts->width, .scale = scale + within * halves,
                           .sum = scale + (ST_ACT_TILE + within) * halves};
}

/* --- strips --------------------------------------------------------------------------------------------------------- */

/* Elements of the rows that a strip holds. */
static size_t strip_width(size_t width, size_t tokens)
{
    return tokens > ST_STRIP_TOKENS && width > ST_STRIP_WIDTH ? width : ST_STRIP_WIDTH;
}

/* Bytes of weights, scales and offsets. */
static st_strip strip_in(float *scratch, size_t width)
{
    float *scale = scratch + align_up(ST_STRIP_ROWS * width) / sizeof *scratch;
    return (st_strip){.bytes = (uint8_t *)scratch, .scale = scale, .offset = scale + (width + 15) / 16 * ST_STRIP_ROWS};
}

static size_t strip_floats(size_t width)
{
    return align_up(ST_STRIP_ROWS * width) / sizeof(float) + (width + 15) / 16 * 2 * ST_STRIP_ROWS;
}

/* A strip, and the sums of tokens with a part of the rows. */
static size_t strip_bytes(size_t width, size_t tokens)
{
    size_t parts = tokens < ST_STRIP_TOKENS ? tokens + ST_ACT_TILE - 1 : ST_STRIP_TOKENS;
    return (strip_floats(strip_width(width, tokens)) + parts / ST_ACT_TILE * ST_ACT_TILE * ST_STRIP_ROWS) * sizeof(float);
}

static size_t bytes_of(const st_row_range *r, size_t count)
{
    return count / r->matrix->info->block * r->matrix->info->bytes;
}

/* An integer, because the next matrix may have fewer or shorter rows, and the prefetch past its end. */
static void prefetch(uintptr_t from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)(from + at), 0, 2);
}

/* Unpacks elements at … at + count − 1 of the rows and prefetches the next, of these rows or those read after them. */
static void unpack_rows(const st_isa_type *type, const st_row_range *r, size_t at, size_t count, const st_strip *strip)
{
    size_t bytes = bytes_of(r, count), row_bytes = r->matrix->row_bytes;
    const unsigned char *from = r->rows + bytes_of(r, at), *next = from + bytes;
    if (at + count == r->matrix->ne[0]) next = r->next ? r->next : from;
    for (size_t lane = 0; lane < ST_STRIP_ROWS; lane += 4) {
        const unsigned char *four[4];
        for (size_t i = 0; i < 4; i++) { /* a short strip repeats its last row; the copies are not used */
            size_t row = lane + i < r->lanes ? lane + i : r->lanes - 1;
            four[i] = from + row * row_bytes;
            prefetch((uintptr_t)next + row * row_bytes, bytes);
        }
        type->unpack(four, count, strip, lane);
    }
}

/* Fills a strip with elements at … at + count − 1, ST_STRIP_WIDTH at a time. */
static void fill(const st_isa_type *type, const st_row_range *r, size_t at, size_t count, st_strip *strip)
{
    strip->first = at / ST_ACT_BLOCK;
    strip->blocks = count / ST_ACT_BLOCK;
    for (size_t done = 0; done < count; done += ST_STRIP_WIDTH) {
        size_t scales = done / type->group * ST_STRIP_ROWS;
        st_strip part = {.bytes = strip->bytes + done * ST_STRIP_ROWS, .scale = strip->scale + scales, .offset = strip->offset + scales};
        unpack_rows(type, r, at + done, count - done < ST_STRIP_WIDTH ? count - done : ST_STRIP_WIDTH, &part);
    }
}

size_t st_strip_part_bytes(void)
{
    return strip_floats(ST_STRIP_WIDTH) * sizeof(float);
}

st_strip st_strip_fill(const st_isa_type *type, const st_row_range *rows, size_t at, size_t count, float *scratch)
{
    st_strip strip = strip_in(scratch, ST_STRIP_WIDTH);
    fill(type, rows, at, count, &strip);
    return strip;
}

static st_act_tile tile_of(const st_batch *batch, size_t i)
{
    st_act_tile tile = {.acts = st_acts_tile(&batch->acts, batch->tile + i)};
    if (!batch->lists) return tile;
    tile.rest = st_acts_tile(&batch->rest, batch->tile + i);
    tile.refined = batch->lists + i * ST_ACT_TILE;
    return tile;
}

/* A strip is filled and multiplied with all tokens. For a few tokens it holds a part of the rows, which stays in the L1
 * cache, and the other parts follow; the order of a token's sums is the same. */
static void strip_multiply(const st_isa *isa, const st_row_range *r, const st_batch *batch, float *scratch, float *out,
                           size_t stride)
{
    const st_isa_type *type = &isa->types[r->matrix->type];
    size_t width = r->matrix->ne[0], step = strip_width(width, batch->tokens);
    st_strip strip = strip_in(scratch, step);
    float *sums = scratch + strip_floats(step);
    for (size_t at = 0; at < width; at += step) {
        size_t count = width - at < step ? width - at : step;
        fill(type, r, at, count, &strip);
        for (size_t token = 0; token < batch->tokens; token += ST_ACT_TILE) {
            size_t left = batch->tokens - token;
            st_act_tile tile = tile_of(batch, token / ST_ACT_TILE);
            float *so_far = sums + token * ST_STRIP_ROWS;
            st_tile_sums of_tile = {at == 0 ? NULL : so_far, so_far, ST_STRIP_ROWS, ST_STRIP_ROWS};
            if (at + count == width) of_tile = (st_tile_sums){of_tile.from, out + token * stride, stride, r->lanes};
            isa->strip_times_tile(type, &strip, &tile, left < ST_ACT_TILE ? left : ST_ACT_TILE, &of_tile);
        }
    }
}

size_t st_batch_bytes(size_t width, size_t columns, size_t tokens)
{
    size_t strip = strip_bytes(width, tokens), panel = st_panel_scratch_bytes(columns, tokens);
    return strip > panel ? strip : panel;
}

void st_batch_multiply(const st_cpu_call *call, const st_bound_weight *matrix, const void *data, size_t first,
                       size_t columns, const st_batch *batch, float *scratch, float *out, size_t stride)
{
    const unsigned char *from = (const unsigned char *)data + first * matrix->row_bytes;
    st_row_range rows = {matrix, from, columns, batch->next};
    if (batch->panel) st_panel_multiply(call, &rows, batch->panel, batch->tokens, scratch, out, stride);
    else strip_multiply(call->isa, &rows, batch, scratch, out, stride);
}

/* Shared: int8 activations and residuals, or bfloat16 activations. For each worker: strips and their sums, a row of
 * floats, or a tile of a float matrix. */
st_scratch st_cpu_fast_matmul_scratch(const st_bound_op *shape, uint32_t rows)
{
    enum { FLOAT_PIECE_BYTES = ST_FLOAT_COLUMNS * (2 * ST_FLOAT_STRETCH + ST_FLOAT_ROWS) * 4 };
    size_t width = shape->weight[0].ne[0], floats = width * sizeof(float);
    size_t worker = st_batch_bytes(width, ST_PANEL_COLUMNS, rows), panel = st_panel_bytes(width, rows);
    size_t rest = st_acts_bytes(ST_REFINED * ST_ACT_BLOCK, rows) + rows * sizeof(st_refined);
    size_t acts = st_acts_bytes(width, rows) + rest;
    if (floats > worker) worker = floats;
    return (st_scratch){.shared_bytes = acts > panel ? acts : panel,
                        .worker_bytes = worker > FLOAT_PIECE_BYTES ? worker : FLOAT_PIECE_BYTES};
}

/* --- int8 --------------------------------------------------------------------------------------------------------- */

static const st_isa_type *int8_type(const st_isa *isa, const st_bound_op *bound)
{
    const st_isa_type *type = &isa->types[bound->weight[0].type];
    return type->dots && bound->weight[0].ne[0] % ST_ACT_BLOCK == 0 ? type : NULL;
}

uint32_t st_cpu_fast_group(const st_isa *isa, const st_bound_op *ops, uint32_t count)
{
    uint32_t group = 1;
    if (ops->op->kind != ST_OP_MATMUL || !int8_type(isa, ops)) return 1;
    while (group < count && ops[group].op->kind == ST_OP_MATMUL && ops[group].in[0].data == ops->in[0].data &&
           int8_type(isa, &ops[group]))
        group++;
    return group;
}

typedef struct matmul_job {
    const st_cpu_call *call;
    st_acts acts;
    bool batch;         /* at least ST_FEW_ROWS rows: `acts` is interleaved; otherwise it has halves */
    unsigned char *panel; /* batch in bfloat16: the activations, instead of `acts`, `rest` and `lists` */
    st_acts rest;       /* batch only: residuals of the refined blocks, not interleaved */
    st_refined *lists;  /* batch only: [rows], the refined blocks of each row */
    size_t columns_per_part; /* of a batch */
    st_parts parts;     /* of a few rows */
} matmul_job;

/* Lists the blocks with more than 1/ST_REFINED of a row's squared error, which is proportional to the squared scale. */
static uint32_t choose_blocks(const st_act_row *acts, size_t blocks, uint32_t *list)
{
    float sum = 0;
    uint32_t count = 0;
    for (size_t b = 0; b < blocks; b++) sum += acts->scale[b * acts->stride] * acts->scale[b * acts->stride];
    float least = sum / ST_REFINED;
    for (size_t b = 0; b < blocks && count < ST_REFINED; b++) {
        float scale = acts->scale[b * acts->stride];
        if (scale * scale > least) list[count++] = (uint32_t)b;
    }
    return count;
}

/* Quantises one row of a batch. Neither its bytes nor its refined blocks depend on other rows. */
static void quantise_row(const matmul_job *job, size_t row)
{
    const st_isa *isa = job->call->isa;
    const float *x = st_cpu_row(job->call->bound->in[0], row);
    st_act_row acts = st_acts_row(&job->acts, row, true);
    isa->quantise(x, job->acts.width, &acts);
    st_refined *list = &job->lists[row];
    st_act_row rest = st_acts_row(&job->rest, row, false);
    list->count = choose_blocks(&acts, job->acts.width / ST_ACT_BLOCK, list->blocks);
    for (size_t i = 0; i < list->count; i++) {
        float left[ST_ACT_BLOCK];
        isa->residual(x, &acts, list->blocks[i], left);
        st_act_row out = {.q = rest.q + i * ST_ACT_BLOCK, .scale = rest.scale + i, .sum = rest.sum + i,
                          .total = rest.total + i * 2, .stride = 1};
        isa->quantise(left, ST_ACT_BLOCK, &out);
    }
}

/* A part is a tile of a batch. */
static void quantise_tile(void *context, uint32_t worker, size_t tile)
{
    (void)worker;
    const matmul_job *job = context;
    size_t end = (tile + 1) * ST_ACT_TILE;
    for (size_t row = tile * ST_ACT_TILE; row < end && row < job->call->rows; row++) {
        const float *x = st_cpu_row(job->call->bound->in[0], row);
        if (job->panel) st_panel_pack(job->call->panels, x, job->acts.width, job->panel, row);
        else quantise_row(job, row);
    }
}

static void add_bias(const st_bound_op *bound, size_t first, size_t count, size_t rows)
{
    if (!bound->weight[1].data) return;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = first; i < first + count; i++) st_cpu_row(bound->out, row)[i] += st_cpu_element(&bound->weight[1], i);
}

static void few_rows_columns(const matmul_job *job, const st_bound_op *bound, size_t first, size_t count)
{
    const st_bound_weight *matrix = &bound->weight[0];
    const st_isa_type *type = &job->call->isa->types[matrix->type];
    const unsigned char *rows = (const unsigned char *)matrix->data + first * matrix->row_bytes;
    for (size_t row = 0; row < job->call->rows; row++) {
        st_act_halves act = st_acts_halves(&job->acts, row);
        type->dots(rows, matrix->row_bytes, count, &act, job->acts.width, st_cpu_row(bound->out, row) + first);
    }
    add_bias(bound, first, count, job->call->rows);
}

static void batch_columns(const matmul_job *job, const st_bound_op *bound, size_t first, size_t count, float *scratch)
{
    st_batch batch = {.acts = job->acts, .rest = job->rest, .lists = job->lists, .panel = job->panel,
                      .tokens = job->call->rows};
    size_t step = job->panel ? ST_PANEL_COLUMNS : ST_STRIP_ROWS;
    for (size_t i = first; i < first + count; i += step) {
        size_t columns = first + count - i < step ? first + count - i : step, end = i + columns;
        batch.next = end < bound->weight[0].ne[1] ? (const unsigned char *)bound->weight[0].data + end * bound->weight[0].row_bytes : NULL;
        st_batch_multiply(job->call, &bound->weight[0], bound->weight[0].data, i, columns, &batch, scratch,
                          st_cpu_row(bound->out, 0) + i, bound->out.width);
    }
    add_bias(bound, first, count, job->call->rows);
}

/* A part is a range of columns. The columns of all matrices of the group are numbered consecutively. */
static void columns_part(void *context, uint32_t worker, size_t part)
{
    const matmul_job *job = context;
    st_columns own = {part * job->columns_per_part, job->columns_per_part};
    if (!job->batch) own = st_parts_at(&job->parts, part);
    size_t end = own.first + own.count, before = 0;
    float *scratch = st_cpu_scratch(job->call, worker);
    for (uint32_t i = 0; i < job->call->group && before < end; i++) {
        const st_bound_op *bound = &job->call->bound[i];
        size_t width = bound->out.width, from = own.first > before ? own.first - before : 0;
        size_t to = end - before < width ? end - before : width;
        if (from < to && job->batch) batch_columns(job, bound, from, to - from, scratch);
        else if (from < to) few_rows_columns(job, bound, from, to - from);
        before += width;
    }
}

static bool is_panel(const st_cpu_call *call)
{
    return call->panels && call->rows >= ST_PANEL_ROWS;
}

/* Columns of a part of a bfloat16 batch. The more columns, the less often a thread reads the activations from a distant
 * cache, but the last parts may leave threads idle: the number with the least estimated time. */
static size_t panel_columns(size_t threads, size_t columns)
{
    static const struct { size_t columns; double cost; } sizes[] = { /* measured */
        {ST_PANEL_COLUMNS, 1.0}, {128, 1.2}, {64, 1.5}, {32, 2.1}};
    size_t best = 0;
    double least = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t parts = (columns + sizes[i].columns - 1) / sizes[i].columns, turns = (parts + threads - 1) / threads;
        double cost = (double)(turns * sizes[i].columns) * sizes[i].cost;
        if (i > 0 && cost >= least) continue;
        least = cost;
        best = sizes[i].columns;
    }
    return best;
}

/* A group has at least one matrix, with at least one column. */
static size_t columns_of(const st_bound_op *ops, uint32_t group)
{
    size_t columns = ops->out.width;
    for (uint32_t i = 1; i < group; i++) columns += ops[i].out.width;
    return columns;
}

static size_t weight_bytes_of(const st_bound_op *ops, uint32_t group)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < group; i++) bytes += ops[i].weight[0].row_bytes * ops[i].out.width;
    return bytes;
}

/* The parts of a few rows. The matrix of a router has few columns of floats: each thread gets some of them. */
static void cut_few_rows(st_parts *parts, const st_bound_op *ops, uint32_t group, bool int8, uint32_t rows, uint32_t threads)
{
    size_t columns = columns_of(ops, group);
    st_parts_cut(parts, &(st_parts_of){columns, int8 ? PIECE_COLUMNS : 1, weight_bytes_of(ops, group) / columns, rows > 1 ? PIECE_BYTES : 0},
                 threads);
}

bool st_cpu_fast_expected(const st_isa *isa, const st_bound_op *ops, uint32_t count, uint32_t rows, uint32_t threads,
                          st_pool_range *out)
{
    const st_bound_weight *matrix = &ops->weight[0];
    st_parts parts;
    if (ops->op->kind != ST_OP_MATMUL) return false;
    cut_few_rows(&parts, ops, st_cpu_fast_group(isa, ops, count), int8_type(isa, ops) != NULL, rows, threads);
    size_t step = parts.levels[0].size * matrix->row_bytes;
    *out = (st_pool_range){matrix->data, step, step < ST_EXPECTED_BYTES ? step : ST_EXPECTED_BYTES, matrix->row_bytes * ops->out.width};
    return true;
}

/* Columns of a part of a batch. A few tokens: about PIECE_BYTES of weights, with at least one part per thread, and whole
 * strips. More tokens: a strip, or some in bfloat16. */
static size_t columns_of_part(const st_cpu_call *call, size_t columns)
{
    if (is_panel(call)) return panel_columns(st_pool_threads(call->pool), columns);
    if (call->rows > ST_STRIP_TOKENS) return ST_STRIP_ROWS;
    size_t threads = st_pool_threads(call->pool);
    size_t parts = (weight_bytes_of(call->bound, call->group) / PIECE_BYTES + threads) / threads * threads;
    size_t count = (columns + parts - 1) / parts;
    return (count + ST_STRIP_ROWS - 1) / ST_STRIP_ROWS * ST_STRIP_ROWS;
}

/* Places the residuals and the lists behind the activations in the shared scratch. */
static void lay_out(matmul_job *job)
{
    size_t rows = job->call->rows, width = job->acts.width;
    job->rest = (st_acts){.memory = job->acts.memory + st_acts_bytes(width, rows),
                          .width = ST_REFINED * ST_ACT_BLOCK};
    job->lists = (st_refined *)(void *)(job->rest.memory + st_acts_bytes(job->rest.width, rows));
}

static void int8_matmul(const st_cpu_call *call)
{
    matmul_job job = {.call = call,
                      .acts = {.memory = call->shared, .width = call->bound->weight[0].ne[0]},
                      .batch = call->rows >= ST_FEW_ROWS,
                      .panel = is_panel(call) ? call->shared : NULL};
    lay_out(&job);
    if (job.batch) {
        size_t columns = columns_of(call->bound, call->group);
        job.columns_per_part = columns_of_part(call, columns);
        st_pool_run(call->pool, quantise_tile, &job, (call->rows + ST_ACT_TILE - 1) / ST_ACT_TILE);
        st_pool_run(call->pool, columns_part, &job, (columns + job.columns_per_part - 1) / job.columns_per_part);
        return;
    }
    cut_few_rows(&job.parts, call->bound, call->group, true, call->rows, st_pool_threads(call->pool));
    for (size_t row = 0; row < call->rows; row++) {
        st_act_halves act = st_acts_halves(&job.acts, row);
        call->isa->quantise_halves(st_cpu_row(call->bound->in[0], row), job.acts.width, &act);
    }
    st_pool_run(call->pool, columns_part, &job, job.parts.count);
}

/* --- float weights: F32, F16 and BF16 are read directly, other types are dequantised row by row ------------------- */

/* Loads elements first … first + count − 1 of a row of weights as floats; whole blocks only. */
static void load_floats(const st_cpu_call *call, const st_bound_weight *matrix, size_t column, size_t first, size_t count,
                        float *out)
{
    const unsigned char *row = (const unsigned char *)matrix->data + column * matrix->row_bytes;
    row += first / matrix->info->block * matrix->info->bytes;
    if (call->isa->to_float[matrix->type]) call->isa->to_float[matrix->type](row, out, count);
    else matrix->info->dequantise(row, out, count / matrix->info->block);
}

/* Batch: transposes a tile of the weights (columns × elements) and multiplies it in a float GEMM. */
static void float_batch_part(void *context, uint32_t worker, size_t part)
{
    const st_cpu_call *call = context;
    const st_bound_op *bound = call->bound;
    const st_bound_weight *matrix = &bound->weight[0];
    size_t first = part * ST_FLOAT_COLUMNS, width = matrix->ne[0];
    size_t columns = bound->out.width - first < ST_FLOAT_COLUMNS ? bound->out.width - first : ST_FLOAT_COLUMNS;
    float *rows = st_cpu_scratch(call, worker), *transposed = rows + ST_FLOAT_COLUMNS * ST_FLOAT_STRETCH;
    float *sums = transposed + ST_FLOAT_COLUMNS * ST_FLOAT_STRETCH; /* [ST_FLOAT_ROWS, ST_FLOAT_COLUMNS] */
    for (size_t row = 0; row < call->rows; row += ST_FLOAT_ROWS) {
        size_t tokens = call->rows - row < ST_FLOAT_ROWS ? call->rows - row : ST_FLOAT_ROWS;
        for (size_t at = 0; at < width; at += ST_FLOAT_STRETCH) {
            size_t count = width - at < ST_FLOAT_STRETCH ? width - at : ST_FLOAT_STRETCH;
            for (size_t c = 0; c < ST_FLOAT_COLUMNS; c++)
                load_floats(call, matrix, first + (c < columns ? c : columns - 1), at, count, rows + c * ST_FLOAT_STRETCH);
            call->isa->transpose(rows, ST_FLOAT_STRETCH, transposed, ST_FLOAT_COLUMNS, ST_FLOAT_COLUMNS, count);
            call->isa->gemm(st_cpu_row(bound->in[0], row) + at, width, transposed, ST_FLOAT_COLUMNS, sums, ST_FLOAT_COLUMNS,
                            tokens, ST_FLOAT_COLUMNS, count, at > 0);
        }
        for (size_t t = 0; t < tokens; t++)
            memcpy(st_cpu_row(bound->out, row + t) + first, sums + t * ST_FLOAT_COLUMNS, columns * sizeof *sums);
    }
    add_bias(bound, first, columns, call->rows);
}

static void float_few_part(void *context, uint32_t worker, size_t part)
{
    const matmul_job *job = context;
    const st_cpu_call *call = job->call;
    const st_bound_op *bound = call->bound;
    const st_bound_weight *matrix = &bound->weight[0];
    st_columns own = st_parts_at(&job->parts, part);
    size_t end = own.first + own.count, width = matrix->ne[0];
    for (size_t column = own.first; column < end; column++) {
        const void *weights = (const unsigned char *)matrix->data + column * matrix->row_bytes;
        uint32_t type = matrix->type;
        if (!call->isa->dot_float[type]) {
            load_floats(call, matrix, column, 0, width, st_cpu_scratch(call, worker));
            weights = st_cpu_scratch(call, worker);
            type = ST_TYPE_F32;
        }
        float bias = bound->weight[1].data ? st_cpu_element(&bound->weight[1], column) : 0;
        for (size_t row = 0; row < call->rows; row++)
            st_cpu_row(bound->out, row)[column] =
                call->isa->dot_float[type](weights, st_cpu_row(bound->in[0], row), width) + bias;
    }
}

static void float_few_rows(const st_cpu_call *call)
{
    matmul_job job = {.call = call};
    cut_few_rows(&job.parts, call->bound, 1, false, call->rows, st_pool_threads(call->pool));
    st_pool_run(call->pool, float_few_part, &job, job.parts.count);
}

void st_cpu_fast_matmul(const st_cpu_call *call)
{
    if (int8_type(call->isa, call->bound)) {
        int8_matmul(call);
        return;
    }
    if (call->rows < ST_FEW_ROWS) {
        float_few_rows(call);
        return;
    }
    size_t parts = (call->bound->out.width + ST_FLOAT_COLUMNS - 1) / ST_FLOAT_COLUMNS;
    st_pool_run(call->pool, float_batch_part, (void *)(uintptr_t)call, parts);
}
