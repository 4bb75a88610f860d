/* src/plan: placement and exact sizes. The small model's sums are computed by hand. */
#include "support/plan_rig.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "plan/draft.h"
#include "sampler/candidates.h"

/* plan_small: a layer's attention part is a norm, q, k, v and the output projection; its feed-forward part a norm and
 * three matrices; all are float32. A position is 32 keys and 32 values in each of four layers. */
enum {
    ATTENTION = (64 + 64 * 64 + 2 * 64 * 32 + 64 * 64) * 4,
    FFN = (64 + 3 * 64 * 128) * 4,
    OUTPUT = 64 * 256 * 4,
    OUTPUT_NORM = 64 * 4,
    EMBEDDING = 64 * 256 * 4,
    LAYERS = 4,
    ROW_F16 = 2 * 32 * 2,
    LOGITS = 256 * 4, /* a row */
    PAGE = ST_KV_PAGE_TOKENS,
};

static uint64_t up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Positions that the pool of full attention has memory for: whole pages, and one more for copies on write. */
static uint64_t positions(uint64_t pool_tokens)
{
    return up(pool_tokens, PAGE) + PAGE;
}

/* The same for a window: the pages of window − 1 positions wherever they begin, a spare one and one that is being filled for
 * each conversation; once the rows of a step. */
static uint64_t window_positions(uint64_t window, uint64_t batch, uint64_t conversations)
{
    uint64_t tail = up(window - 1, PAGE) / PAGE + 1;
    return ((tail + 2) * conversations + up(batch, PAGE) / PAGE) * PAGE;
}

/* Every second layer has a window of eight positions. */
static const plan_shape windowed = {.arch = "gemma4", .layers = 4, .embedding = 64, .heads = 4, .kv_heads = 2, .head = 32,
                                    .ffn = 128, .vocab = 256, .context = 4096, .window = 8, .window_head = 16,
                                    .full_every = 2};

static uint64_t owner(const plan_rig *rig, uint32_t device, st_owner of)
{
    return rig->plan->devices[device].owners[of];
}

static uint8_t device_of(const plan_rig *rig, st_op_kind kind, int32_t layer, int nth)
{
    const st_program *program = rig->source.program;
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == kind && program->ops[i].layer == layer && nth-- == 0)
            return rig->plan->op_device[i];
    fail_msg("no such operation");
    return 0;
}

static uint8_t readers_of(const plan_rig *rig, st_role role, int32_t layer)
{
    return rig->plan->weight_devices[st_binding_find(rig->source.binding, role, layer)];
}

static void check_lines(const char *const *lines, uint32_t count, const char *part)
{
    for (uint32_t i = 0; i < count; i++)
        if (strstr(lines[i], part)) return;
    for (uint32_t i = 0; i < count; i++) print_message("%s\n", lines[i]);
    fail_msg("no line says: %s", part);
}

static void check_why(const plan_rig *rig, const char *part)
{
    check_lines(rig->plan->why, rig->plan->why_count, part);
}

static void check_refused(plan_rig *rig, strata_status status, const char *message, const char *hint)
{
    plan_rig_plan(rig);
    if (rig->status != status || !strstr(rig->error.message, message) || !strstr(rig->error.hint, hint))
        fail_msg("expected status %d, \"%s\" (%s); found %d, \"%s\" (%s)", status, message, hint, rig->status,
                 rig->error.message, rig->error.hint);
}

/* --- placement --------------------------------------------------------------------------------------------------- */

/* Adjustments up and candidates down, for so many rows. */
static uint64_t reduction(uint32_t rows)
{
    return up(rows * sizeof(st_adjustments), 256) + rows * sizeof(st_candidates);
}

static void everything_on_the_gpu(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    rig.devices[ST_CARD].overhead_bytes = 12345;
    rig.devices[ST_CARD].granularity = 2 << 20;
    const st_plan *plan = plan_rig_get(&rig);
    assert_int_equal(plan->device_count, 2);
    assert_int_equal(plan->layers_on_card, 4);
    assert_int_equal(plan->ffn_on_card, 4);
    assert_true(plan->output_on_card);
    assert_int_equal(plan->kv_type, ST_TYPE_F16);
    assert_int_equal(plan->experts.mode, ST_MOE_AUTO);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_RUNTIME), 12345);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_WEIGHTS), LAYERS * (ATTENTION + FFN) + OUTPUT_NORM + OUTPUT);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), positions(1024) * LAYERS * ROW_F16);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_PADDING), 0);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_STAGING), 0);
    uint64_t used = LAYERS * (ATTENTION + FFN) + OUTPUT_NORM + OUTPUT + positions(1024) * LAYERS * ROW_F16 +
                    plan->memory[ST_CARD].working.bytes;
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_GRANULARITY), (2 << 20) - used % (2 << 20));
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_WEIGHTS), EMBEDDING);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_KV), 0);
    st_step_limits step = {.rows = 16, .out_rows = 1, .conversations = 1, .tables = 1024 / PAGE};
    assert_memory_equal(&plan->step, &step, sizeof step);
    assert_true(plan->reduces_logits);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_STAGING), 2 * up(st_step_bytes(&step), 256) + LOGITS + LOGITS + reduction(1));
    assert_int_equal(device_of(&rig, ST_OP_EMBED, -1, 0), ST_HOST);
    check_why(&rig, "attention and KV of 4 of 4 layers");
    check_why(&rig, "the embedding stays in RAM");
    plan_rig_close(&rig);
}

static void nothing_on_the_gpu(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    for (int i = 0; i < 3; i++) {
        rig.source.device_count = i == 0 ? 1 : 2;
        rig.options.layers = i == 1 ? 0 : ST_LAYERS_AUTO;
        if (i == 2) rig.devices[ST_CARD].free_bytes = 100000; /* not even one layer */
        const st_plan *plan = plan_rig_get(&rig);
        assert_int_equal(plan->device_count, 1);
        assert_int_equal(plan->layers_on_card, 0);
        assert_false(plan->output_on_card);
        assert_int_equal(plan->kv_type, ST_TYPE_F16);
        assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_WEIGHTS),
                         LAYERS * (ATTENTION + FFN) + OUTPUT_NORM + OUTPUT + EMBEDDING);
        assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_KV), positions(1024) * LAYERS * ROW_F16);
        assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_STAGING), LOGITS); /* of the conversation */
        if (i > 0) check_why(&rig, i == 1 ? "the GPU is not used: placement.layers 0" : "no layer fits");
    }
    plan_rig_close(&rig);
}

static void the_first_layers_go_to_the_gpu(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 512;
    for (int32_t n = 1; n <= 4; n++) {
        rig.options.layers = n;
        const st_plan *plan = plan_rig_get(&rig);
        assert_int_equal(plan->layers_on_card, n);
        assert_int_equal(plan->ffn_on_card, n);
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_WEIGHTS), n * (ATTENTION + FFN) + OUTPUT_NORM + OUTPUT);
        assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_WEIGHTS), (LAYERS - n) * (ATTENTION + FFN) + EMBEDDING);
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), positions(512) * n * ROW_F16);
        assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_KV), positions(512) * (LAYERS - n) * ROW_F16);
        for (int32_t l = 0; l < LAYERS; l++) assert_int_equal(plan->kv_device[l], l < n ? ST_CARD : ST_HOST);
    }
    plan_rig_close(&rig);
}

/* Attention is placed first, then the output matrix, then feed-forward parts from the first layer on; each as soon as
 * its last byte fits. */
static void a_dense_model_larger_than_the_gpu(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    st_profile *card = &rig.devices[ST_CARD];
    for (uint32_t n = 0; n <= LAYERS; n++) {
        card->free_bytes = (uint64_t)1 << 40;
        rig.options.cpu_ffn_layers = LAYERS - n;
        uint64_t need = plan_rig_get(&rig)->devices[ST_CARD].planned_bytes;
        assert_int_equal(rig.plan->ffn_on_card, n);
        rig.options.cpu_ffn_layers = 0;
        card->free_bytes = need;
        assert_int_equal(plan_rig_get(&rig)->ffn_on_card, n);
        assert_int_equal(rig.plan->devices[ST_CARD].planned_bytes, need);
        assert_int_equal(rig.plan->layers_on_card, LAYERS);
        assert_true(rig.plan->output_on_card);
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_WEIGHTS), LAYERS * ATTENTION + OUTPUT_NORM + OUTPUT + n * FFN);
        assert_int_equal(device_of(&rig, ST_OP_GATED_ACT, 0, 0), n > 0 ? ST_CARD : ST_HOST);
        assert_int_equal(device_of(&rig, ST_OP_GATED_ACT, 3, 0), n > 3 ? ST_CARD : ST_HOST);
        if (n < LAYERS) check_lines(rig.plan->lacking, rig.plan->lacking_count, "another dense feed-forward part");
        card->free_bytes = need - 1;
        assert_int_equal(plan_rig_get(&rig)->ffn_on_card, n > 0 ? n - 1 : 0);
        assert_int_equal(rig.plan->output_on_card, n > 0);
        assert_int_equal(rig.plan->layers_on_card, LAYERS);
    }
    plan_rig_close(&rig);
}

/* A chosen context is the longest with which everything is on the GPU; a longer one that is asked for moves dense parts
 * to RAM, and the plan names the longest that would not. */
static void a_chosen_context_moves_nothing_to_ram(void **state)
{
    (void)state;
    plan_shape longer = windowed;
    longer.context = 65536;
    plan_rig rig;
    plan_rig_open(&rig, &longer);
    rig.options.context = 20480;
    uint64_t need = plan_rig_get(&rig)->devices[ST_CARD].planned_bytes;
    rig.devices[ST_CARD].free_bytes = need;
    rig.options.context = 0;
    assert_int_equal(plan_rig_get(&rig)->context, 20480);
    assert_int_equal(rig.plan->devices[ST_CARD].planned_bytes, need);
    assert_int_equal(rig.plan->ffn_on_card, LAYERS);
    rig.options.context = UINT32_MAX;
    assert_int_equal(plan_rig_get(&rig)->context, 65536);
    assert_true(rig.plan->ffn_on_card < LAYERS);
    check_lines(rig.plan->lacking, rig.plan->lacking_count, "options.context 20,480: everything on the GPU");
    rig.options.context = 20481;
    assert_true(plan_rig_get(&rig)->ffn_on_card < LAYERS);
    plan_rig_close(&rig);
}

static void whole_layers_move_to_ram_last_first(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    rig.options.cpu_ffn_layers = LAYERS;
    rig.options.layers = 1; /* with the output matrix */
    uint64_t working = plan_rig_get(&rig)->memory[ST_CARD].working.bytes, layer = ATTENTION + positions(1024) * ROW_F16;
    working -= up(reduction(1), 256); /* logits that the host computes are not reduced */
    rig.options.cpu_ffn_layers = 0;
    rig.options.layers = ST_LAYERS_AUTO;
    for (uint32_t n = 1; n <= LAYERS; n++) {
        rig.devices[ST_CARD].free_bytes = working + n * layer;
        assert_int_equal(plan_rig_get(&rig)->layers_on_card, n);
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_WEIGHTS), n * ATTENTION);
        assert_int_equal(rig.plan->devices[ST_CARD].planned_bytes, working + n * layer);
        rig.devices[ST_CARD].free_bytes--;
        assert_int_equal(plan_rig_get(&rig)->layers_on_card, n - 1);
    }
    plan_rig_close(&rig);
}

/* A tied output matrix on the GPU also serves the embedding look-up; no copy of it is in RAM. */
static void a_tied_output_matrix_is_stored_once(void **state)
{
    (void)state;
    plan_shape shape = plan_small;
    shape.tied = true;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.context = 256;
    plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_WEIGHTS), 0);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_WEIGHTS), LAYERS * (ATTENTION + FFN) + OUTPUT_NORM + OUTPUT);
    assert_int_equal(device_of(&rig, ST_OP_EMBED, -1, 0), ST_CARD);
    assert_int_equal(rig.plan->memory[ST_HOST].working.bytes, 0); /* nothing runs there */
    check_why(&rig, "it is also the embedding");
    rig.devices[ST_CARD].types[ST_OP_EMBED] = 0; /* the GPU cannot look up: both devices have a copy */
    plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_WEIGHTS), EMBEDDING);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_WEIGHTS), LAYERS * (ATTENTION + FFN) + OUTPUT_NORM + OUTPUT);
    assert_int_equal(readers_of(&rig, ST_ROLE_TOKEN_EMBD, -1), 3);
    plan_rig_close(&rig);
}

static void per_layer_tables_stay_in_ram(void **state)
{
    (void)state;
    plan_shape shape = windowed;
    shape.context = 1024;
    shape.per_layer = 16;
    shape.tied = true;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_WEIGHTS), 16 * 4 * 256 * 4);
    assert_int_equal(readers_of(&rig, ST_ROLE_PER_LAYER_TOKEN_EMBD, -1), 1 << ST_HOST);
    assert_int_equal(readers_of(&rig, ST_ROLE_PER_LAYER_MODEL_PROJ, -1), 1 << ST_CARD);
    assert_int_equal(readers_of(&rig, ST_ROLE_TOKEN_EMBD, -1), 1 << ST_CARD);
    plan_rig_close(&rig);
}

/* Output rows are gathered on the hidden state's device, so that only they are copied; the norm runs beside the output
 * matrix. */
static void output_rows_are_gathered_on_the_last_layers_device(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    rig.options.layers = 2;
    plan_rig_get(&rig);
    assert_true(rig.plan->output_on_card);
    assert_int_equal(device_of(&rig, ST_OP_GATHER, -1, 0), ST_HOST);
    assert_int_equal(device_of(&rig, ST_OP_RMS_NORM, -1, 0), ST_CARD);
    rig.options.layers = ST_LAYERS_ALL;
    rig.devices[ST_CARD].free_bytes = plan_rig_get(&rig)->devices[ST_CARD].planned_bytes - OUTPUT;
    plan_rig_get(&rig);
    assert_false(rig.plan->output_on_card);
    assert_int_equal(device_of(&rig, ST_OP_GATHER, -1, 0), ST_CARD);
    assert_int_equal(device_of(&rig, ST_OP_RMS_NORM, -1, 0), ST_HOST);
    rig.options.cpu_ffn_layers = 4; /* the layers end on the CPU */
    plan_rig_get(&rig);
    assert_int_equal(device_of(&rig, ST_OP_GATHER, -1, 0), ST_HOST);
    plan_rig_close(&rig);
}

/* The host runs operations that the GPU cannot; KV is placed on a device that can run its operations. */
static void operations_the_gpu_cannot_run(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 256;
    rig.devices[ST_CARD].types[ST_OP_GATED_ACT] = 0;
    plan_rig_get(&rig);
    assert_int_equal(device_of(&rig, ST_OP_GATED_ACT, 2, 0), ST_HOST);
    assert_int_equal(device_of(&rig, ST_OP_MATMUL, 2, 0), ST_CARD);
    rig.devices[ST_CARD].types[ST_OP_ATTENTION] = 0;
    plan_rig_get(&rig);
    assert_int_equal(device_of(&rig, ST_OP_KV_STORE, 2, 0), ST_HOST);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), 0);
    plan_rig_close(&rig);
}

/* A cache adds the host's experts to the GPU's, so a GPU that cannot add has no experts. */
static void a_gpu_that_cannot_add_has_no_experts(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.options.context = 256;
    rig.options.moe = ST_MOE_CACHE;
    plan_rig_get(&rig);
    assert_int_equal(device_of(&rig, ST_OP_EXPERTS, 2, 0), ST_CARD);
    rig.devices[ST_CARD].types[ST_OP_ADD] = 0;
    plan_rig_get(&rig);
    assert_int_equal(device_of(&rig, ST_OP_EXPERTS, 2, 0), ST_HOST);
    assert_int_equal(device_of(&rig, ST_OP_MATMUL, 2, 0), ST_CARD);
    plan_rig_close(&rig);
}

/* For operations with and without weights, the planner refuses before anything is loaded. */
static void operations_the_host_cannot_run_are_refused(void **state)
{
    (void)state;
    static const struct { st_op_kind kind; const char *message; } rows[] = {
        {ST_OP_EXPERTS, "cannot run experts (layer 0) with F32 weights"},
        {ST_OP_ROUTE, "cannot run route (layer 0) with no weights"},
    };
    for (size_t i = 0; i < 2; i++) {
        plan_rig rig;
        plan_rig_open(&rig, &plan_small_moe);
        rig.devices[ST_HOST].types[rows[i].kind] = 0;
        assert_int_equal(plan_rig_plan(&rig), STRATA_UNSUPPORTED);
        if (!strstr(rig.error.message, rows[i].message)) fail_msg("%s", rig.error.message);
        plan_rig_close(&rig);
    }
}

/* --- keys, values and state -------------------------------------------------------------------------------------- */

static void kv_bytes_of_every_type(void **state)
{
    (void)state;
    static const struct { int32_t type; uint64_t row; } rows[] = {
        {ST_TYPE_F32, 2 * 32 * 4}, {ST_TYPE_F16, 2 * 32 * 2}, {ST_TYPE_BF16, 2 * 32 * 2}, {ST_TYPE_Q8_0, 2 * 34}, {-1, 2 * 32 * 2}};
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1000;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rig.options.kv_type = rows[i].type;
        plan_rig_get(&rig);
        uint64_t kv = positions(1000) * LAYERS * rows[i].row;
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), kv);
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_PADDING), up(kv, 256) - kv); /* the layers of a page lie together */
    }
    plan_rig_close(&rig);
}

/* The pool of window layers does not grow with the context, and has a part for each conversation; a pattern that is all
 * "full" is a dense model. */
static void window_layers_have_pools(void **state)
{
    (void)state;
    enum { FULL_ROW = 2 * 2 * 32 * 2, WINDOW_ROW = 2 * 2 * 16 * 2 };
    plan_shape shape = windowed;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    for (uint32_t context = 1024; context <= 4096; context *= 4)
        for (uint32_t n = 1; n < 4; n++) {
            rig.options.context = context;
            rig.options.conversations = n;
            plan_rig_get(&rig);
            assert_int_equal(rig.plan->pool_tokens, n * context);
            assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV),
                             2 * positions(n * context) * FULL_ROW + 2 * window_positions(8, 16, n) * WINDOW_ROW);
        }
    rig.options.no_windows = true;
    rig.options.conversations = 1;
    plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), positions(4096) * (2 * FULL_ROW + 2 * WINDOW_ROW));
    plan_rig_close(&rig);

    shape.full_every = 1; /* none has a window */
    plan_rig_open(&rig, &shape);
    rig.options.context = 1024;
    uint64_t planned = plan_rig_get(&rig)->devices[ST_CARD].planned_bytes;
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), 4 * positions(1024) * FULL_ROW);
    plan_rig_close(&rig);
    shape.window = 0;
    plan_rig_open(&rig, &shape);
    rig.options.context = 1024;
    assert_int_equal(plan_rig_get(&rig)->devices[ST_CARD].planned_bytes, planned);
    plan_rig_close(&rig);
}

/* Layers that share another layer's KV have none of their own; a host layer's look-up is copied to the GPU. */
static void layers_may_share_kv(void **state)
{
    (void)state;
    plan_shape shape = windowed;
    shape.layers = 6;
    shape.shared_kv = 4;
    plan_rig rig;
    plan_rig_open(&rig, &shape);
    rig.options.context = 1024;
    uint64_t kv = positions(1024) * 2 * 2 * 32 * 2 + window_positions(8, 16, 1) * 2 * 2 * 16 * 2;
    plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), kv);
    rig.options.layers = 3;
    plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), kv);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_KV), 0);
    assert_int_equal(rig.plan->kv_device[5], ST_CARD);
    assert_int_equal(device_of(&rig, ST_OP_MATMUL, 5, 0), ST_HOST);
    assert_int_equal(device_of(&rig, ST_OP_ATTENTION, 5, 0), ST_CARD);
    plan_rig_close(&rig);
}

static const plan_shape recurrent = {.arch = "qwen35",
                                     .layers = 8,
                                     .embedding = 64,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head = 32,
                                     .ffn = 128,
                                     .vocab = 256,
                                     .context = 2048,
                                     .delta_keys = 2,
                                     .delta_values = 4,
                                     .delta_size = 16,
                                     .nextn = true};

/* Six DeltaNet layers: three inputs of the convolution over 2 · 32 + 64 channels, and a 16 × 16 state for each of 4
 * heads. */
enum { STATE = 6 * (3 * 128 + 4 * 16 * 16) * 4 };

/* Each conversation that runs has a slot of state. */
static void recurrent_state(void **state)
{
    (void)state;
    enum { KV = 2 * 2 * 2 * 32 * 2 };
    plan_rig rig;
    plan_rig_open(&rig, &recurrent);
    rig.options.context = 1024;
    rig.options.conversations = 3;
    plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_STATE), 3 * STATE);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), positions(3 * 1024) * KV);
    rig.options.layers = 0;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->kv_type, ST_TYPE_BF16); /* in RAM too */
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_STATE), 3 * STATE);
    plan_rig_close(&rig);
}

/* --- the pool, pages and restore points -------------------------------------------------------------------------- */

/* A fixed context has room for every conversation or, if that does not fit, for as many as fit, and at least one. */
static void a_fixed_context_has_a_pool_for_all(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.source.device_count = 1;
    rig.options.context = 1000;
    rig.options.conversations = 6;
    uint64_t whole = plan_rig_get(&rig)->devices[ST_HOST].planned_bytes;
    /* Conversations share no page that is not full: several have whole pages each. */
    static const uint32_t pools[] = {0, 1000, 2 * 1024, 3 * 1024, 4 * 1024, 5 * 1024, 6 * 1024};
    for (uint32_t pool = 6; pool > 0; pool--) {
        uint64_t need = whole - (positions(pools[6]) - positions(pools[pool])) * LAYERS * ROW_F16;
        rig.devices[ST_HOST].free_bytes = need;
        plan_rig_get(&rig);
        assert_int_equal(rig.plan->context, 1000);
        assert_int_equal(rig.plan->conversations, 6);
        assert_int_equal(rig.plan->pool_tokens, pools[pool]);
        assert_int_equal(rig.plan->devices[ST_HOST].planned_bytes, need);
        rig.devices[ST_HOST].free_bytes = need - 1;
        if (pool > 1) assert_int_equal(plan_rig_get(&rig)->pool_tokens, pools[pool - 1]);
        else check_refused(&rig, STRATA_MEMORY, ": 1 bytes are missing", "options.context 960");
    }
    plan_rig_close(&rig);
}

/* A chosen context is as long as fits, and one conversation may fill the pool; memory beyond the model's maximum makes the
 * pool larger. */
static void a_chosen_context_fills_the_pool(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.source.device_count = 1;
    rig.options.conversations = 4;
    uint64_t whole = plan_rig_get(&rig)->devices[ST_HOST].planned_bytes, page = (uint64_t)PAGE * LAYERS * ROW_F16;
    for (uint32_t pool = 4; pool > 0; pool--) {
        rig.devices[ST_HOST].free_bytes = whole - (4 - pool) * (4096 / PAGE) * page;
        assert_int_equal(plan_rig_get(&rig)->context, 4096);
        assert_int_equal(rig.plan->pool_tokens, 4096 * pool);
        rig.devices[ST_HOST].free_bytes--;
        plan_rig_get(&rig);
        assert_int_equal(rig.plan->context, pool > 1 ? 4096 : 4096 - PAGE);
        assert_int_equal(rig.plan->pool_tokens, pool > 1 ? 4096 * (pool - 1) : 4096 - PAGE);
    }
    rig.devices[ST_HOST].free_bytes -= 20 * page; /* shorter page tables make up for the missing byte */
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->context, 4096 - 20 * PAGE);
    assert_int_equal(rig.plan->pool_tokens, rig.plan->context);
    plan_rig_close(&rig);
}

static void pages_of_other_sizes(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1000;
    for (uint32_t page = 1; page <= 256; page *= 4) {
        rig.options.page_tokens = page;
        plan_rig_get(&rig);
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), (up(1000, page) + page) * LAYERS * ROW_F16);
        assert_int_equal(rig.plan->step.tables, up(1000, page) / page);
    }
    static const uint32_t wrong[] = {3, 100, 1u << 17, 0x80000001u};
    for (size_t i = 0; i < 4; i++) {
        rig.options.page_tokens = wrong[i];
        check_refused(&rig, STRATA_USAGE, "tokens of a page: expected a power of two", "");
    }
    plan_rig_close(&rig);
}

/* By default room for eight pools, in at most an eighth of the RAM and half of what is left; none if the pool is larger. */
static void kv_pages_of_a_gpu_have_copies_in_ram(void **state)
{
    (void)state;
    enum { BYTES = 4 * PAGE * 2 * 2 * 16 * 2, POOL = 1024 / PAGE + 1 }; /* of a page of four layers; pages of the pool */
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    assert_int_equal(plan_rig_get(&rig)->tier_pages, 8 * POOL);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_TIER), 8 * POOL * BYTES);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_TIER), 0);
    rig.options.layers = 2; /* half of each page is in RAM anyway, and is copied too */
    assert_int_equal(plan_rig_get(&rig)->tier_bytes, 8 * POOL * BYTES);
    rig.options.layers = 4;
    rig.devices[ST_HOST].free_bytes = 8 * 2 * POOL * BYTES;
    assert_int_equal(plan_rig_get(&rig)->tier_pages, 2 * POOL);
    rig.devices[ST_HOST].free_bytes = 8 * POOL * BYTES - 8;
    assert_int_equal(plan_rig_get(&rig)->tier_pages, 0);
    rig.options.tier_bytes = 3 * BYTES + 5; /* as asked, in whole pages */
    assert_int_equal(plan_rig_get(&rig)->tier_pages, 3);
    rig.options.tier_bytes = BYTES - 1;
    assert_int_equal(plan_rig_get(&rig)->tier_pages, 0);
    rig.options.tier_bytes = 0;
    assert_int_equal(plan_rig_get(&rig)->tier_bytes, 0);
    rig.options.tier_bytes = 8 * POOL * BYTES;
    check_refused(&rig, STRATA_MEMORY, "bytes are missing", "");
    rig.options.tier_bytes = 1 << 20;
    rig.options.layers = 0;
    assert_int_equal(plan_rig_get(&rig)->tier_bytes, 0);
    plan_rig_close(&rig);
}

/* By default four points for each conversation, in at most 1/32 of the RAM; none for models that can be cut anywhere. */
static void restore_points_have_a_budget(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &recurrent);
    rig.options.context = 1024;
    for (uint32_t n = 1; n < 4; n++) {
        rig.options.conversations = n;
        plan_rig_get(&rig);
        assert_int_equal(rig.plan->restore_bytes, 4 * n * up(STATE, 256));
        assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_RESTORE), rig.plan->restore_bytes);
        assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_RESTORE), 0);
    }
    rig.options.layers = 4; /* three of the six DeltaNet layers: both devices have a part of each point */
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->restore_bytes, 4 * 3 * 2 * up(STATE / 2, 256));
    rig.devices[ST_HOST].free_bytes = 8 << 20;
    assert_int_equal(plan_rig_get(&rig)->restore_bytes, (8 << 20) / 32);
    static const uint64_t given[] = {0, 1, 123456};
    for (int i = 0; i < 3; i++) {
        rig.options.restore_bytes = given[i];
        assert_int_equal(plan_rig_get(&rig)->restore_bytes, given[i]);
    }
    rig.options.restore_bytes = 16 << 20;
    check_refused(&rig, STRATA_MEMORY, "bytes are missing", "");
    plan_rig_close(&rig);

    plan_rig_open(&rig, &windowed); /* two layers of a window: two pages of a point each */
    rig.options.context = 1024;
    rig.options.conversations = 2;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->restore_bytes, 4 * 2 * 2 * 2 * PAGE * 2 * 2 * 16 * 2);
    rig.options.no_windows = true;
    assert_int_equal(plan_rig_get(&rig)->restore_bytes, 0);
    plan_rig_close(&rig);

    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    rig.options.restore_bytes = 123456; /* of no use to a model that can be cut anywhere */
    assert_int_equal(plan_rig_get(&rig)->restore_bytes, 0);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_RESTORE), 0);
    plan_rig_close(&rig);
}

/* Each conversation that runs has a row of logits on the host; a step has room for all of them. */
static void conversations_have_logits_and_tables(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 1024;
    rig.options.conversations = 5;
    rig.options.out_rows = 3;
    const st_plan *plan = plan_rig_get(&rig);
    st_step_limits step = {.rows = 16, .out_rows = 3, .conversations = 5, .tables = 5 * 1024 / PAGE};
    assert_memory_equal(&plan->step, &step, sizeof step);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_STAGING),
                     2 * up(st_step_bytes(&step), 256) + 3 * LOGITS + 5 * LOGITS + reduction(3));
    rig.options.layers = 0;
    plan = plan_rig_get(&rig);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_STAGING), 5 * LOGITS);
    plan_rig_close(&rig);
}

/* --- NextN ------------------------------------------------------------------------------------------------------- */

static void a_nextn_block(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &recurrent);
    rig.options.context = 1024;
    uint64_t without = plan_rig_get(&rig)->devices[ST_CARD].owners[ST_OWNER_WEIGHTS];
    assert_int_equal(rig.plan->kv_device[8], ST_NO_DEVICE);
    assert_int_equal(readers_of(&rig, ST_ROLE_NEXTN_EH_PROJ, 8), 0);
    rig.options.nextn = true;
    plan_rig_get(&rig);
    /* norms of E and of a head; q with its gate, k, v, output; three matrices; the projection and its three norms */
    uint64_t block = (2 * 64 + 2 * 32 + 64 * 256 + 2 * 64 * 64 + 128 * 64 + 3 * 64 * 128 + 128 * 64 + 3 * 64) * 4;
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_WEIGHTS), without + block);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_KV), 3 * positions(1024) * 2 * 2 * 32 * 2);
    assert_int_equal(owner(&rig, ST_CARD, ST_OWNER_STATE), STATE + 64 * 4); /* with the last hidden row */
    assert_int_equal(rig.plan->kv_device[8], ST_CARD);
    rig.options.layers = 7; /* not all: the NextN block stays in RAM, its logits beside the output matrix */
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->kv_device[8], ST_HOST);
    assert_int_equal(readers_of(&rig, ST_ROLE_NEXTN_EH_PROJ, 8), 1 << ST_HOST);
    assert_int_equal(readers_of(&rig, ST_ROLE_OUTPUT, -1), 1 << ST_CARD);
    assert_int_equal(readers_of(&rig, ST_ROLE_OUTPUT_NORM, -1), 3);
    plan_rig_close(&rig);
}

/* --- margins, disk, refusals ------------------------------------------------------------------------------------- */

static void default_margins(void **state)
{
    (void)state;
    const uint64_t mib = 1 << 20;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 256;
    rig.options.margin_bytes[ST_HOST] = rig.options.margin_bytes[ST_CARD] = ST_BYTES_AUTO;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->devices[ST_CARD].margin_bytes, 256 * mib);
    assert_int_equal(rig.plan->devices[ST_HOST].margin_bytes, 4096 * mib);
    rig.devices[ST_CARD].display = true;
    rig.devices[ST_HOST].free_bytes = 6000 * mib;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->devices[ST_CARD].margin_bytes, 768 * mib);
    assert_int_equal(rig.plan->devices[ST_HOST].margin_bytes, 3000 * mib); /* at most half */
    rig.devices[ST_CARD].free_bytes = 700 * mib; /* the margin leaves no memory */
    assert_int_equal(plan_rig_get(&rig)->device_count, 1);
    rig.options.margin_bytes[ST_CARD] = 701 * mib;
    check_refused(&rig, STRATA_MEMORY,
                  "a margin of 735,051,776 bytes, 734,003,200 are available: 1,048,576 bytes are missing", "");
    plan_rig_close(&rig);
}

static void refusals_are_exact_to_the_byte(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.context = 4096;
    rig.options.layers = ST_LAYERS_ALL;
    rig.options.margin_bytes[ST_CARD] = 1000;
    rig.options.out_rows = 1;
    /* All layers without the output matrix. A context that is a page shorter fits. */
    rig.devices[ST_CARD].types[ST_OP_GATHER] = rig.devices[ST_CARD].types[ST_OP_SOFTCAP] = 0;
    plan_rig_get(&rig);
    uint64_t need = rig.plan->devices[ST_CARD].planned_bytes - OUTPUT - OUTPUT_NORM - up(reduction(1), 256);
    rig.devices[ST_CARD].free_bytes = need + 1000;
    plan_rig_get(&rig);
    assert_false(rig.plan->output_on_card);
    assert_int_equal(rig.plan->devices[ST_CARD].planned_bytes, need);
    rig.devices[ST_CARD].free_bytes--;
    char needed[ST_NUMBER_TEXT], message[128];
    snprintf(message, sizeof message, "(%s bytes)", st_number_text(need + 1000, needed));
    check_refused(&rig, STRATA_MEMORY, message, "would fit: options.context 4032, or options.kv_type q8_0, or placement.layers 3");
    assert_non_null(strstr(rig.error.message, "GPU: 4 of 4 layers, a context of 4,096 and the margin need"));
    assert_non_null(strstr(rig.error.message, " 1 bytes are missing"));
    assert_null(rig.plan);
    rig.options.layers = 0;
    plan_rig_get(&rig);
    rig.devices[ST_HOST].free_bytes = rig.plan->devices[ST_HOST].planned_bytes - 500000; /* too little for the weights */
    check_refused(&rig, STRATA_MEMORY, "RAM: the weights, a context of 4,096", "placement.disk");
    plan_rig_close(&rig);
}

/* 99 layers are all layers, and the reasons say so. */
static void more_layers_than_the_model_has_are_all(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.layers = 99;
    plan_rig_get(&rig);
    assert_int_equal(rig.plan->layers_on_card, rig.plan->layers_total);
    bool told = false;
    for (uint32_t i = 0; i < rig.plan->why_count; i++)
        told |= strcmp(rig.plan->why[i], "layers: 99 asked for, clamped to the model's 4") == 0;
    assert_true(told);
    plan_rig_close(&rig);
}

static void contradictory_options_are_refused(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.options.layers = -3;
    check_refused(&rig, STRATA_USAGE, "found -3", "-1 means all");
    rig.options.layers = 2;
    rig.source.device_count = 1;
    check_refused(&rig, STRATA_DEVICE, "placement.layers 2 asks for a GPU", "placement.vram_bytes");
    rig.source.device_count = 3;
    check_refused(&rig, STRATA_USAGE, "expected the host and at most one GPU, found 3 devices", "");
    rig.source.device_count = 2;
    rig.options.nextn = true;
    check_refused(&rig, STRATA_USAGE, "no NextN block", "");
    rig.options.nextn = false;
    rig.options.kv_type = ST_TYPE_Q4_0;
    check_refused(&rig, STRATA_USAGE, "options.kv_type: expected f32, f16, bf16 or q8_0", "");
    rig.options.kv_type = -1;
    rig.options.conversations = 65;
    check_refused(&rig, STRATA_USAGE, "options.sessions: expected at most 64, found 65", "");
    rig.options.conversations = 1;
    rig.options.batch = 65537;
    check_refused(&rig, STRATA_USAGE, "options.batch: expected at most 65536, found 65537", "");
    rig.options.batch = 16;
    rig.options.expert_slots = -2;
    check_refused(&rig, STRATA_USAGE, "placement.expert_slots: expected a number of slots, found -2", "");
    plan_rig_close(&rig);
}

/* Weights that do not fit in RAM stay in the file, if that is allowed, and are priced at the disk's rate. */
static void weights_may_stay_in_the_file(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    rig.source.device_count = 1;
    rig.options.context = 1024;
    plan_rig_get(&rig);
    double in_ram = rig.plan->speed.decode_tps;
    rig.devices[ST_HOST].free_bytes = rig.plan->devices[ST_HOST].planned_bytes - 100000;
    check_refused(&rig, STRATA_MEMORY, ": 100,000 bytes are missing", "placement.disk");
    rig.options.disk = true;
    plan_rig_get(&rig);
    assert_true(rig.plan->on_disk);
    assert_int_equal(owner(&rig, ST_HOST, ST_OWNER_WEIGHTS),
                     LAYERS * (ATTENTION + FFN) + OUTPUT_NORM + OUTPUT + EMBEDDING - 100000);
    assert_int_equal(rig.plan->devices[ST_HOST].planned_bytes, rig.devices[ST_HOST].free_bytes);
    assert_true(rig.plan->speed.decode_tps < in_ram);
    check_why(&rig, "100,000 bytes of weights stay in the file");
    plan_rig_close(&rig);
}

/* Each allocation of the planner fails once: an error, and nothing leaks. */
static void failed_allocations_are_errors(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    rig.devices[ST_CARD].free_bytes = 1 << 20;
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        st_fault_arm(ST_FAULT_ALLOC, n, false);
        plan_rig_plan(&rig);
        failed = st_fault_calls(ST_FAULT_ALLOC) >= n;
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        if (failed && rig.status != STRATA_OK) assert_int_equal(rig.status, STRATA_MEMORY);
        if (!failed) assert_int_equal(rig.status, STRATA_OK);
        assert_true(n < 1000);
    }
    plan_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_on_the_gpu), cmocka_unit_test(nothing_on_the_gpu),
        cmocka_unit_test(the_first_layers_go_to_the_gpu), cmocka_unit_test(a_dense_model_larger_than_the_gpu),
        cmocka_unit_test(whole_layers_move_to_ram_last_first), cmocka_unit_test(a_chosen_context_moves_nothing_to_ram),
        cmocka_unit_test(a_tied_output_matrix_is_stored_once),
        cmocka_unit_test(per_layer_tables_stay_in_ram),
        cmocka_unit_test(output_rows_are_gathered_on_the_last_layers_device),
        cmocka_unit_test(operations_the_gpu_cannot_run), cmocka_unit_test(a_gpu_that_cannot_add_has_no_experts),
        cmocka_unit_test(operations_the_host_cannot_run_are_refused), cmocka_unit_test(kv_bytes_of_every_type),
        cmocka_unit_test(window_layers_have_pools), cmocka_unit_test(layers_may_share_kv),
        cmocka_unit_test(recurrent_state), cmocka_unit_test(a_fixed_context_has_a_pool_for_all),
        cmocka_unit_test(a_chosen_context_fills_the_pool), cmocka_unit_test(pages_of_other_sizes),
        cmocka_unit_test(restore_points_have_a_budget), cmocka_unit_test(kv_pages_of_a_gpu_have_copies_in_ram), cmocka_unit_test(conversations_have_logits_and_tables),
        cmocka_unit_test(a_nextn_block),
        cmocka_unit_test(default_margins), cmocka_unit_test(refusals_are_exact_to_the_byte),
        cmocka_unit_test(more_layers_than_the_model_has_are_all),
        cmocka_unit_test(contradictory_options_are_refused), cmocka_unit_test(weights_may_stay_in_the_file),
        cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
