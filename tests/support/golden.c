#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const void *data_of(const st_gguf *gguf, const char *name, uint64_t *ne0, uint64_t *ne1)
{
    const st_gguf_tensor *tensor = st_gguf_tensor_find(gguf, name);
    if (!tensor) return NULL;
    if (ne0) *ne0 = tensor->ne[0];
    if (ne1) *ne1 = tensor->ne[1];
    return tensor->data;
}

static st_gguf *open_or_fail(const char *path)
{
    strata_error error;
    st_gguf *gguf = NULL;
    if (st_gguf_open(path, &gguf, &error) != STRATA_OK) fail_msg("%s", error.message);
    return gguf;
}

static void read_expectations(golden *g)
{
    uint64_t n = 0, rows = 0, greedy = 0, nextn = 0;
    g->tokens = data_of(g->expect, "tokens", &n, NULL);
    g->logits = data_of(g->expect, "logits", NULL, &rows);
    g->rows = data_of(g->expect, "rows", NULL, NULL);
    g->greedy = data_of(g->expect, "greedy", &greedy, NULL);
    g->greedy_margin = data_of(g->expect, "greedy_margin", NULL, NULL);
    g->nextn_logits = data_of(g->expect, "mtp_logits", NULL, &nextn);
    assert_non_null(g->tokens);
    assert_non_null(g->logits);
    g->token_count = (uint32_t)n;
    g->row_count = (uint32_t)rows;
    g->greedy_count = (uint32_t)greedy;
    g->nextn_count = (uint32_t)nextn;
}

static void build_program(golden *g)
{
    strata_error error;
    if (st_desc_build(g->model, &g->arena, &g->desc, &error) != STRATA_OK ||
        st_binding_build(g->desc, g->model, &g->arena, &g->binding, &error) != STRATA_OK ||
        st_program_build(g->desc, g->binding, &g->arena, &g->program, &error) != STRATA_OK)
        fail_msg("%s", error.message);
}

bool golden_open(golden *g, const char *name)
{
    *g = (golden){0};
    char file[256];
    snprintf(file, sizeof file, "%s.gguf", name);
    const char *path = strstr(name, "-long") ? kit_path_optional(file) : kit_path(file);
    if (!path) return false;
    g->model = open_or_fail(path);
    snprintf(file, sizeof file, "%s.expect.gguf", name);
    g->expect = open_or_fail(kit_path(file));
    build_program(g);
    read_expectations(g);
    return true;
}

void golden_open_bytes(golden *g, const golden *like, const void *bytes, size_t length)
{
    *g = *like;
    g->arena = (st_arena){0};
    g->expect = NULL;
    strata_error error;
    if (st_gguf_open_memory("copy.gguf", bytes, length, &g->model, &error) != STRATA_OK) fail_msg("%s", error.message);
    build_program(g);
}

void golden_close(golden *g)
{
    st_arena_free(&g->arena);
    st_gguf_close(g->model);
    st_gguf_close(g->expect);
}

void golden_run_open(golden_run *r, const golden *g, const golden_options *options)
{
    *r = (golden_run){.g = g, .batch = options->batch};
    strata_error error;
    st_kv_options kv = {.type = options->kv_type, .batch = options->batch, .snapshots = 3, .no_rings = options->no_rings};
    kv.context = options->context ? options->context : g->token_count + g->greedy_count;
    const st_kv_layout *layout;
    st_device_options device = {.cpu = options->cpu, .threads = options->threads};
    const st_backend *backend = st_backend_cpu();
    if (st_kv_layout_build(g->desc, &kv, &r->arena, &layout, &error) != STRATA_OK ||
        backend->open(&device, &r->device, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    st_run_source source = {.desc = g->desc, .binding = g->binding, .program = g->program, .layout = layout,
                            .backend = backend, .device = r->device};
    st_run_options run = {.batch = options->batch, .out_rows = 4, .nextn = options->nextn};
    if (st_run_new(&source, &run, &r->run, &error) != STRATA_OK) fail_msg("%s", error.message);
}

void golden_run_close(golden_run *r)
{
    st_run_free(r->run);
    st_backend_cpu()->close(r->device);
    st_arena_free(&r->arena);
}

uint32_t golden_argmax(const float *logits, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Which row of the expectation is for `position`; UINT32_MAX: none. */
static uint32_t expected_row(const golden *g, uint32_t position)
{
    if (!g->rows) return position < g->row_count ? position : UINT32_MAX;
    for (uint32_t i = 0; i < g->row_count; i++)
        if ((uint32_t)g->rows[i] == position) return i;
    return UINT32_MAX;
}

static void add_squares(const float *found, const float *expected, uint32_t count, double *error, double *norm)
{
    for (uint32_t i = 0; i < count; i++) {
        double difference = (double)found[i] - expected[i];
        *error += difference * difference;
        *norm += (double)expected[i] * expected[i];
    }
}

static void compare_rows(golden_run *r, uint32_t position, uint32_t count, golden_score *score)
{
    uint32_t vocab = r->g->desc->vocab;
    strata_error error;
    for (uint32_t row = 0; row < count; row++) {
        uint32_t expected = expected_row(r->g, position + row);
        if (expected == UINT32_MAX) continue;
        const float *logits, *wanted = r->g->logits + (size_t)expected * vocab;
        if (st_run_logits(r->run, &row, 1, &logits, &error) != STRATA_OK) fail_msg("%s", error.message);
        add_squares(logits, wanted, vocab, &score->error_squares, &score->norm_squares);
        score->agree += golden_argmax(logits, vocab) == golden_argmax(wanted, vocab);
        score->rows++;
    }
}

/* The expectation holds the last rows; the block's rows come one per token but the first. */
static void compare_nextn(golden_run *r, golden_score *score)
{
    uint32_t vocab = r->g->desc->vocab, rows = st_run_nextn_rows(r->run);
    uint32_t skipped = r->g->token_count - 1 - r->g->nextn_count;
    uint32_t first = st_kv_position(st_run_kv(r->run)) - rows; /* the token of the first row */
    strata_error error;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t index = first + row - 1;
        if (index < skipped || index >= r->g->token_count - 1) continue;
        const float *logits;
        if (st_run_nextn_logits(r->run, &row, 1, &logits, &error) != STRATA_OK) fail_msg("%s", error.message);
        add_squares(logits, r->g->nextn_logits + (size_t)(index - skipped) * vocab, vocab, &score->nextn_error_squares,
                    &score->nextn_norm_squares);
        score->nextn_rows++;
    }
}

void golden_feed(golden_run *r, uint32_t first, uint32_t count, golden_score *score)
{
    strata_error error;
    for (uint32_t done = 0; done < count;) {
        uint32_t piece = count - done < r->batch ? count - done : r->batch;
        uint32_t position = st_kv_position(st_run_kv(r->run));
        assert_int_equal(position, first + done);
        if (st_run_tokens(r->run, r->g->tokens + position, piece, &error) != STRATA_OK) fail_msg("%s", error.message);
        if (score) compare_rows(r, position, piece, score);
        if (score && r->g->nextn_logits && st_run_nextn_rows(r->run)) compare_nextn(r, score);
        done += piece;
    }
}

double golden_error(const golden_score *score)
{
    return sqrt(score->error_squares / score->norm_squares);
}

double golden_nextn_error(const golden_score *score)
{
    return sqrt(score->nextn_error_squares / score->nextn_norm_squares);
}

uint32_t golden_greedy(golden_run *r, float margin)
{
    const golden *g = r->g;
    strata_error error;
    uint32_t last = (g->token_count - 1) % r->batch;
    for (uint32_t i = 0; i < g->greedy_count; i++) {
        const float *logits;
        if (st_run_logits(r->run, &last, 1, &logits, &error) != STRATA_OK) fail_msg("%s", error.message);
        strata_token id = (strata_token)golden_argmax(logits, g->desc->vocab);
        if (id != g->greedy[i]) return g->greedy_margin[i] < margin ? g->greedy_count : i;
        if (st_run_tokens(r->run, &id, 1, &error) != STRATA_OK) fail_msg("%s", error.message);
        last = 0;
    }
    return g->greedy_count;
}
