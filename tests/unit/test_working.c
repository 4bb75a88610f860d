/* src/plan/working.c: the working set of the executor, piece by piece. */
#include "support/plan_rig.h"

enum { OPS_MAX = 1024, EVERY_OP = -1 };

static st_working_set set_of(const plan_rig *rig, const st_working_options *options)
{
    st_scratch scratch[OPS_MAX];
    st_working_options asked = *options;
    st_working_set set;
    plan_rig_scratch(rig, options->device, options->step.rows, scratch, OPS_MAX);
    asked.scratch = scratch;
    assert_true(st_working_set_of(rig->source.desc, rig->source.program, &asked, &set));
    return set;
}

static size_t up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static st_scratch largest(const plan_rig *rig, uint32_t device, uint32_t batch, int without)
{
    st_scratch most = {0}, scratch[OPS_MAX];
    plan_rig_scratch(rig, device, batch, scratch, OPS_MAX);
    for (uint32_t i = 0; i < rig->source.program->op_count; i++) {
        if ((int)rig->source.program->ops[i].kind == without) continue;
        if (most.shared_bytes < scratch[i].shared_bytes) most.shared_bytes = scratch[i].shared_bytes;
        if (most.worker_bytes < scratch[i].worker_bytes) most.worker_bytes = scratch[i].worker_bytes;
    }
    return most;
}

static void buffers_are_consecutive(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    const st_program *program = rig.source.program;
    st_scratch most = largest(&rig, ST_HOST, 7, EVERY_OP);
    st_step_limits step = {.rows = 7, .out_rows = 3, .conversations = 2, .tables = 40};
    st_working_set set = set_of(&rig, &(st_working_options){.step = step, .workers = 5});
    assert_int_equal(set.values[ST_ROWS_ALL], 0);
    assert_int_equal(set.values[ST_ROWS_OUT], up(program->row_bytes[ST_ROWS_ALL] * 7));
    assert_int_equal(set.steps[0], set.values[ST_ROWS_OUT] + up(program->row_bytes[ST_ROWS_OUT] * 3));
    assert_int_equal(st_step_bytes(&step), sizeof(st_step) + (3 + 40) * 4 + 2 * sizeof(st_step_conversation) + 7 * 12);
    assert_int_equal(set.steps[1], set.steps[0] + up(st_step_bytes(&step)));
    assert_int_equal(set.scratch, set.steps[1] + up(st_step_bytes(&step)));
    assert_int_equal(set.shared_bytes, up(most.shared_bytes));
    assert_int_equal(set.worker_bytes, up(most.worker_bytes));
    assert_int_equal(set.bytes, set.scratch + set.shared_bytes + 5 * set.worker_bytes);
    plan_rig_close(&rig);
}

/* A device's working set covers its own operations; a device without operations has none. */
static void only_the_devices_operations_count(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    const st_program *program = rig.source.program;
    uint8_t op_device[OPS_MAX] = {0};
    assert_true(program->op_count < OPS_MAX);
    st_working_options host = {.op_device = op_device, .device = ST_HOST, .workers = 1,
                               .step = {.rows = 256, .out_rows = 1, .conversations = 1, .tables = 8}};
    st_working_options card = host;
    card.device = ST_CARD;
    st_working_set all = set_of(&rig, &host), none = set_of(&rig, &card);
    assert_int_equal(none.bytes, 0);
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == ST_OP_EXPERTS) op_device[i] = ST_CARD;
    st_working_set rest = set_of(&rig, &host), experts = set_of(&rig, &card);
    assert_int_equal(all.shared_bytes, up(largest(&rig, ST_HOST, 256, EVERY_OP).shared_bytes));
    assert_int_equal(rest.shared_bytes, up(largest(&rig, ST_HOST, 256, ST_OP_EXPERTS).shared_bytes));
    assert_true(rest.bytes <= all.bytes && experts.bytes <= all.bytes);
    assert_int_equal(experts.shared_bytes, 0); /* the simulated GPU states no shared scratch */
    assert_int_equal(experts.worker_bytes, up(largest(&rig, ST_CARD, 256, EVERY_OP).worker_bytes));
    assert_int_equal(experts.scratch, all.scratch); /* both devices hold all values */
    memset(op_device, ST_CARD, sizeof op_device);
    assert_int_equal(set_of(&rig, &host).bytes, 0);
    host.watched = true; /* the host reads values that the GPU has written */
    assert_int_equal(set_of(&rig, &host).scratch, all.scratch);
    assert_true(set_of(&rig, &host).shared_bytes == 0 && set_of(&rig, &host).worker_bytes == 0);
    memset(op_device, ST_HOST, sizeof op_device);
    host.expert_cache = true; /* the host computes misses */
    assert_int_equal(set_of(&rig, &host).bytes, all.bytes);
    plan_rig_close(&rig);
}

/* It includes the widest head and the per-layer embeddings of all layers, for every row of the batch. */
static void wide_heads_and_per_layer_embeddings_are_counted(void **state)
{
    (void)state;
    enum { BATCH = 32 };
    plan_shape shape = {.arch = "gemma4",
                        .layers = 6,
                        .embedding = 64,
                        .heads = 4,
                        .kv_heads = 1,
                        .head = 32,
                        .ffn = 1024,
                        .vocab = 256,
                        .context = 4096,
                        .window = 16,
                        .window_head = 32,
                        .full_every = 6,
                        .tied = true};
    st_working_options options = {.step = {.rows = BATCH, .out_rows = 1, .conversations = 1}, .workers = 1};
    size_t bytes[4];
    for (int i = 0; i < 4; i++) {
        plan_shape s = shape;
        if (i == 1) s.head = 512;      /* one layer of six */
        if (i == 2) s.per_layer = 32;
        if (i == 3) s.per_layer = 64;
        plan_rig rig;
        plan_rig_open(&rig, &s);
        bytes[i] = set_of(&rig, &options).values[ST_ROWS_OUT];
        plan_rig_close(&rig);
    }
    /* The feed-forward part (x, normed x, gate, up) was the widest; now q and what attention makes of it are, with x */
    size_t angles = 32;
    assert_int_equal(bytes[0], BATCH * (64 + 64 + 1024 + 1024 + angles) * sizeof(float));
    assert_true(bytes[1] >= BATCH * (64 + 2 * 4 * 512) * sizeof(float));
    assert_int_equal(bytes[3] - bytes[2], BATCH * 6 * 32 * sizeof(float));
    assert_true(bytes[2] - bytes[0] >= BATCH * 6 * 32 * sizeof(float));
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    plan_rig rig;
    plan_rig_open(&rig, &plan_small);
    st_working_set set = {.bytes = 1};
    st_scratch scratch[OPS_MAX] = {{SIZE_MAX, SIZE_MAX}};
    st_working_options options = {.step = {.rows = 8, .out_rows = 1, .conversations = 1}, .workers = 1, .scratch = scratch};
    assert_false(st_working_set_of(rig.source.desc, rig.source.program, &options, &set));
    assert_int_equal(set.bytes, 1);
    plan_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_consecutive), cmocka_unit_test(only_the_devices_operations_count),
        cmocka_unit_test(wide_heads_and_per_layer_embeddings_are_counted),
        cmocka_unit_test(sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests_name("working set", tests, NULL, NULL);
}
