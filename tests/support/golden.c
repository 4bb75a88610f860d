#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cores.h"
#include "support/mirror.h"

const golden_family golden_families[] = {
    {"llama", 2e-5, 0},
    {"mixtral", 2e-5, GOLDEN_EXPERTS},
    {"qwen2", 2e-5, 0},
    {"qwen3", 2e-5, 0},
    {"qwen2moe", 2e-5, GOLDEN_EXPERTS},
    {"qwen3moe", 2e-5, GOLDEN_EXPERTS},
    {"olmoe", 2e-5, GOLDEN_EXPERTS},
    {"llama4", 2e-5, GOLDEN_EXPERTS},
    {"gemma4-e", 2e-5, 0},
    {"gemma4-dense", 2e-5, 0},
    {"gemma4-moe", 2e-5, GOLDEN_EXPERTS},
    {"qwen35", 5e-5, 0},
    {"qwen35moe", 5e-5, GOLDEN_EXPERTS},
    {"llama4-long", 2e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE | GOLDEN_LONG},
    {"qwen35-long", 5e-5, GOLDEN_OUTSIDE | GOLDEN_LONG},
    {"qwen35moe-long", 5e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE | GOLDEN_LONG},
    {"more/glm4moe", 2e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE},
    {"more/glm4moe-mtp", 2e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE},
    {"more/minimax-m2", 2e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE},
    {"more/ernie4_5-moe", 2e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE},
    {"more/gpt-oss-clamp", 2e-5, GOLDEN_EXPERTS},
    {"more/deepseek2", 2e-5, GOLDEN_EXPERTS},
    {"more/deepseek2-lite", 2e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE},
    {"more/qwen3next", 5e-5, GOLDEN_EXPERTS},
    {"more/qwen3next-long", 5e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE | GOLDEN_LONG},
    {"more/kimi-linear", 5e-5, GOLDEN_EXPERTS},
    {"more/kimi-linear-long", 5e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE | GOLDEN_LONG},
    {"more/granitehybrid", 5e-5, GOLDEN_EXPERTS},
    {"more/granitehybrid-long", 5e-5, GOLDEN_EXPERTS | GOLDEN_OUTSIDE | GOLDEN_LONG},
    {"more/nemotron_h_moe", 5e-5, GOLDEN_EXPERTS},
    {"more/lfm2moe", 5e-5, GOLDEN_EXPERTS},
    {"more/granite", 2e-5, GOLDEN_OUTSIDE},
    {"more/smollm3", 2e-5, GOLDEN_OUTSIDE},
    {"more/gemma3", 2e-5, GOLDEN_OUTSIDE},
    {"more/mistral3", 2e-5, 0},
    {"more/phi3", 2e-5, 0},
    {"more/phi3-long", 2e-5, GOLDEN_OUTSIDE},
};

const size_t golden_family_count = sizeof golden_families / sizeof *golden_families;

bool golden_is_long(const golden_family *family)
{
    return family->flags & GOLDEN_LONG;
}

static bool is_outside(const char *name)
{
    for (size_t i = 0; i < golden_family_count; i++)
        if (strcmp(golden_families[i].name, name) == 0) return golden_families[i].flags & GOLDEN_OUTSIDE;
    return false;
}

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
    if (st_program_of_file(g->model, &g->arena, &g->desc, &g->binding, &g->program, &error) != STRATA_OK)
        fail_msg("%s", error.message);
}

strata_status golden_lower(golden *g, const st_program_options *options, strata_error *error)
{
    return st_program_of_file_with(g->model, options, &g->arena, &g->desc, &g->binding, &g->program, error);
}

bool golden_open(golden *g, const char *name)
{
    *g = (golden){0};
    char file[256];
    snprintf(file, sizeof file, "%s.gguf", name);
    const char *path = is_outside(name) ? kit_path_optional(file) : kit_path(file);
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

void golden_open_file(golden *g, const char *path, const strata_token *tokens, uint32_t count)
{
    *g = (golden){.model = open_or_fail(path), .tokens = tokens, .token_count = count};
    build_program(g);
}

void golden_close(golden *g)
{
    st_arena_free(&g->arena);
    st_gguf_close(g->model);
    st_gguf_close(g->expect);
}

/* The backend of the GPU; NULL: it is simulated. */
static const st_backend *backend_of(const golden_options *options)
{
    return options->backend ? options->backend : mirror_name() ? mirror_backend() : NULL;
}

/* The default placement on the backend that the tests run on. */
static const st_plan_options *everything_there(void)
{
    static st_plan_options all;
    all = st_plan_options_default();
    all.layers = ST_LAYERS_ALL;
    return &all;
}

static void describe_devices(golden_run *r, const golden_options *options)
{
    r->profiles[ST_HOST] = options->profiles ? options->profiles[ST_HOST] : st_profile_default(ST_DEVICE_HOST);
    r->profiles[ST_CARD] = options->profiles ? options->profiles[ST_CARD] : st_profile_default(ST_DEVICE_CARD);
    r->profiles[ST_HOST].total_bytes = r->profiles[ST_HOST].free_bytes = (uint64_t)16 << 30;
    uint64_t card = options->card_bytes ? options->card_bytes : (uint64_t)1 << 30;
    r->profiles[ST_CARD].total_bytes = r->profiles[ST_CARD].free_bytes = card;
    if (backend_of(options)) st_profile_set_backend(&r->profiles[ST_CARD], backend_of(options));
    const golden *g = r->g;
    r->source = (st_plan_source){.desc = g->desc, .binding = g->binding, .program = g->program, .devices = r->profiles,
                                 .device_count = options->placed ? 2 : 1};
}

static strata_status plan_run(golden_run *r, const golden_options *options, strata_error *error)
{
    const golden *g = r->g;
    st_plan_options plan = options->placed ? *options->placed : st_plan_options_default();
    plan.context = options->context ? options->context : g->token_count + g->greedy_count;
    plan.kv_type = (int32_t)options->kv_type;
    plan.batch = options->batch;
    plan.out_rows = 4;
    plan.conversations = options->conversations;
    plan.page_tokens = options->page_tokens;
    plan.pool_tokens = options->pool_tokens;
    if (options->restore_bytes) plan.restore_bytes = options->restore_bytes;
    plan.nextn = options->nextn;
    plan.no_windows = options->no_windows;
    plan.watch = options->watch != NULL;
    plan.workers[ST_HOST] = options->threads ? options->threads : st_cores_here();
    plan.workers[ST_CARD] = 1;
    return st_plan_build(&r->source, &plan, &r->arena, &r->plan, error);
}

static strata_status open_devices(golden_run *r, const golden_options *options, strata_error *error)
{
    st_device_options device = {.cpu = options->cpu, .threads = options->threads};
    r->devices[ST_HOST].backend = st_backend_cpu();
    strata_status status = STRATA_OK;
    r->devices[ST_CARD].backend = backend_of(options);
    if (!r->devices[ST_CARD].backend && options->placed) {
        st_sim_options sim = {.host = r->profiles[ST_HOST], .card = r->profiles[ST_CARD], .program = r->g->program,
                              .binding = r->g->binding};
        status = st_sim_world_new(&sim, &r->world, error);
        device.world = r->world;
        r->devices[ST_HOST].backend = st_backend_sim_host();
        r->devices[ST_CARD].backend = st_backend_sim_card();
    }
    for (uint32_t d = 0; d < r->plan->device_count && status == STRATA_OK; d++) {
        if (d == ST_CARD && !r->world) device.threads = 1; /* the plan counts one worker */
        status = r->devices[d].backend->open(&device, &r->devices[d].device, error);
    }
    if (status == STRATA_OK && options->fails_at) st_sim_fail_at(r->world, options->fails, options->fails_at);
    return status;
}

strata_status golden_run_try(golden_run *r, const golden *g, const golden_options *options, strata_error *error)
{
    golden_options there = *options;
    if (mirror_name() && !options->placed) {
        there.placed = everything_there();
        options = &there;
    }
    *r = (golden_run){.g = g, .batch = options->batch};
    describe_devices(r, options);
    st_load_options load = {.experts = options->experts, .watch = options->watch, .recorded = options->recorded,
                            .stats = options->watch ? options->watch->stats : NULL};
    strata_status status = plan_run(r, options, error);
    if (status == STRATA_OK) status = open_devices(r, options, error);
    if (status == STRATA_OK) status = st_load_new(&r->source, r->plan, r->devices, &load, &r->load, error);
    if (status == STRATA_OK) {
        r->run = st_load_run(r->load);
        status = st_conversation_new(st_run_kv(r->run), &r->conversation, error);
    }
    if (status != STRATA_OK) golden_run_close(r);
    return status;
}

void golden_run_open(golden_run *r, const golden *g, const golden_options *options)
{
    strata_error error;
    if (golden_run_try(r, g, options, &error) != STRATA_OK) fail_msg("%s", error.message);
    if (st_ledger_check(st_load_ledger(r->load), &error) != STRATA_OK) fail_msg("%s", error.message);
}

void golden_run_close(golden_run *r)
{
    st_conversation_free(r->conversation);
    st_load_free(r->load);
    for (uint32_t d = ST_DEVICES_MAX; d-- > 0;)
        if (r->devices[d].device) r->devices[d].backend->close(r->devices[d].device);
    if (r->world && st_sim_used_bytes(r->world)) fail_msg("closing leaves %d bytes", (int)st_sim_used_bytes(r->world));
    st_sim_world_free(r->world);
    st_arena_free(&r->arena);
    *r = (golden_run){0};
}

void golden_watch_open(golden_watch *w, const golden *g)
{
    uint32_t layers = g->desc->layer_count + g->desc->nextn_count, experts[GOLDEN_EXPERTS_MAX];
    assert_true(layers <= GOLDEN_EXPERTS_MAX);
    for (uint32_t i = 0; i < layers; i++) experts[i] = g->desc->layers[i].ffn.experts;
    w->watch = (st_watch){.experts_max = GOLDEN_EXPERTS_MAX, .seen = w->seen, .distinct = w->distinct};
    assert_int_equal(st_stats_new(layers, experts, &w->watch.stats, NULL), STRATA_OK);
}

void golden_watch_close(golden_watch *w)
{
    st_stats_free(w->watch.stats);
}

uint64_t golden_watch_count(const golden_watch *w, st_stat what)
{
    return st_stats_total(w->watch.stats, false, what) + st_stats_total(w->watch.stats, true, what);
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
    uint32_t first = st_conversation_position(r->conversation) - rows; /* the token of the first row */
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

strata_status golden_step(golden_run *r, st_conversation *c, const strata_token *ids, uint32_t count, strata_error *error)
{
    memcpy(st_conversation_tokens(c) + st_conversation_position(c), ids, count * sizeof *ids);
    st_run_piece piece = {.conversation = c, .count = count, .prompt = count > 1};
    return st_run_step(r->run, &piece, 1, error);
}

uint32_t golden_cut(golden_run *r, uint32_t position)
{
    st_conversation *c = r->conversation;
    strata_error error;
    st_seek seek;
    assert_true(position <= st_conversation_position(c));
    if (st_conversation_seek(c, st_conversation_tokens(c), position + 1, true, &seek, &error) != STRATA_OK) fail_msg("%s", error.message);
    return seek.kept;
}

void golden_feed(golden_run *r, uint32_t first, uint32_t count, golden_score *score)
{
    strata_error error;
    for (uint32_t done = 0; done < count;) {
        uint32_t piece = count - done < r->batch ? count - done : r->batch;
        uint32_t position = st_conversation_position(r->conversation);
        assert_int_equal(position, first + done);
        if (golden_step(r, r->conversation, r->g->tokens + position, piece, &error) != STRATA_OK) fail_msg("%s", error.message);
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
    for (uint32_t i = 0; i < g->greedy_count && !(kit_is_slow() && i == 4); i++) {
        const float *logits;
        if (st_run_logits(r->run, &last, 1, &logits, &error) != STRATA_OK) fail_msg("%s", error.message);
        strata_token id = (strata_token)golden_argmax(logits, g->desc->vocab);
        if (id != g->greedy[i]) return g->greedy_margin[i] < margin ? g->greedy_count : i;
        if (golden_step(r, r->conversation, &id, 1, &error) != STRATA_OK) fail_msg("%s", error.message);
        last = 0;
    }
    return g->greedy_count;
}
