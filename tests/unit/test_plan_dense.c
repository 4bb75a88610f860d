/* src/plan/dense.c: dense parts in RAM that the GPU runs in steps of many rows. The small model's sums are computed by
 * hand. */
#include "support/plan_rig.h"

#include <string.h>

/* plan_small: float32; a layer's feed-forward part is a norm and three matrices. */
enum {
    NORM = 64 * 4,
    MATRIX = 64 * 128 * 4,
    FFN = NORM + 3 * MATRIX,
    ATTENTION = (64 + 64 * 64 + 2 * 64 * 32 + 64 * 64) * 4,
    OUTPUT = 64 * 256 * 4,
    EMBEDDING = 64 * 256 * 4,
    LAYERS = 4,
    WEIGHTS = LAYERS * (ATTENTION + FFN) + NORM + OUTPUT + EMBEDDING,
};

static void open_small(plan_rig *rig, uint32_t in_ram)
{
    plan_rig_open(rig, &plan_small);
    rig->options.context = 4096;
    rig->options.batch = 0;
    rig->options.layers = ST_LAYERS_ALL;
    rig->options.cpu_ffn_layers = in_ram;
}

static bool says(const plan_rig *rig, const char *part)
{
    for (uint32_t i = 0; i < rig->plan->why_count; i++)
        if (strstr(rig->plan->why[i], part)) return true;
    return false;
}

static void the_buffers_are_planned_to_the_byte(void **state)
{
    (void)state;
    plan_rig rig;
    open_small(&rig, 2);
    rig.devices[ST_CARD].overhead_bytes = 1000;
    rig.devices[ST_CARD].pinned_per_byte = 512;
    rig.options.tier_bytes = 0;
    const st_plan *plan = plan_rig_get(&rig);
    const uint64_t *card = plan->devices[ST_CARD].owners, *host = plan->devices[ST_HOST].owners;
    assert_true(plan->dense.rows > ST_EARLY_ROWS_MAX);
    assert_int_equal(plan->dense.fetches, 2 * 3);
    assert_int_equal(plan->dense.bytes, 2 * 3 * MATRIX);
    assert_int_equal(plan->dense.buffer_bytes, MATRIX);
    assert_int_equal(card[ST_OWNER_STAGING], 2 * MATRIX);
    assert_int_equal(card[ST_OWNER_WEIGHTS], LAYERS * ATTENTION + 2 * FFN + 2 * NORM + NORM + OUTPUT);
    assert_int_equal(host[ST_OWNER_WEIGHTS], EMBEDDING + 2 * FFN);
    assert_int_equal(card[ST_OWNER_RUNTIME], 1000 + WEIGHTS / 512); /* the file is pinned */
    assert_int_equal(plan->batch, 2048);
    assert_true(says(&rig, "batch: 2048 (dense parts are streamed from RAM)"));
    assert_true(says(&rig, "6 matrices"));
    plan_rig_close(&rig);
}

/* In such a step the host runs the embedding alone, and the head gathers its rows on the GPU. */
static void a_large_step_runs_on_the_gpu(void **state)
{
    (void)state;
    plan_rig rig;
    open_small(&rig, LAYERS);
    const st_plan *plan = plan_rig_get(&rig);
    const st_program *program = rig.source.program;
    uint32_t downs[2] = {0};
    for (int streamed = 0; streamed < 2; streamed++) {
        const st_plan_part *part = streamed ? &plan->streamed : &plan->parts[ST_PART_MAIN];
        for (uint32_t i = 0; i < part->body.count; i++) {
            const st_stage *stage = &part->body.stages[i];
            downs[streamed] += stage->kind == ST_STAGE_MOVE && stage->device == ST_HOST;
            if (streamed && stage->kind == ST_STAGE_RUN && stage->device == ST_HOST)
                assert_int_equal(program->ops[stage->ops.first].kind, ST_OP_EMBED);
        }
        assert_int_equal(part->logits_device, ST_CARD);
        assert_int_equal(part->hidden_devices, 1 << (streamed ? ST_CARD : ST_HOST));
    }
    assert_true(downs[0] >= LAYERS && downs[1] == 0);
    for (uint32_t i = 0; i < program->main.head.count; i++) {
        uint32_t op = program->main.head.first + i;
        if (program->ops[op].kind != ST_OP_GATHER) continue;
        assert_int_equal(plan->op_device[op], ST_HOST);
        assert_int_equal(plan->dense.op_device[op], ST_CARD);
    }
    plan_rig_close(&rig);
}

/* A float32 matrix of B bytes is B / 2 operations a row: the host takes rows × B / 2 / 10¹² s, a copy B / 25·10⁹ s. Both
 * are equal at 80 rows. */
static void the_rows_follow_from_the_rates(void **state)
{
    (void)state;
    static const struct { double host_ops, card_ops, link; uint32_t rows; } cases[] = {
        {1e12, 1e18, 25e9, 81}, {1e12, 1e18, 5e9, 401}, {1e12, 1e18, 100e9, 21},
        {1e12, 1e12, 25e9, 0}, /* the GPU computes no faster than the host */
        {1e12, 4e11, 25e9, 0}, {1e18, 1e18, 25e9, 0}};
    plan_rig rig;
    open_small(&rig, 1);
    rig.devices[ST_CARD].launch_seconds = 0;
    rig.devices[ST_HOST].memory_rate = 1e12;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig.devices[ST_HOST].op_rate = cases[i].host_ops;
        rig.devices[ST_CARD].op_rate = cases[i].card_ops;
        rig.devices[ST_CARD].link_up = cases[i].link;
        const st_plan *plan = plan_rig_get(&rig);
        uint32_t least = cases[i].rows ? ST_EARLY_ROWS_MAX + 1 : 0;
        assert_int_equal(plan->dense.rows, cases[i].rows > least ? cases[i].rows : least);
        assert_int_equal(plan->batch, cases[i].rows ? 2048 : 512);
    }
    plan_rig_close(&rig);
}

/* Without steps of so many rows, or without dense parts in RAM beside a GPU, nothing is streamed. */
static void what_is_never_used_is_not_planned(void **state)
{
    (void)state;
    plan_rig rig;
    open_small(&rig, 1);
    rig.options.dense_rows = 100;
    assert_int_equal(plan_rig_get(&rig)->dense.rows, 100);
    rig.options.batch = 100;
    assert_int_equal(plan_rig_get(&rig)->dense.rows, 100);
    rig.options.batch = 99;
    assert_int_equal(plan_rig_get(&rig)->dense.rows, 0);
    assert_int_equal(rig.plan->devices[ST_CARD].owners[ST_OWNER_STAGING], 0);
    rig.options.batch = 0;
    rig.options.context = 99;
    assert_int_equal(plan_rig_get(&rig)->dense.rows, 0);
    rig.options.context = 4096;
    rig.options.dense_rows = ST_NEVER;
    assert_int_equal(plan_rig_get(&rig)->dense.rows, 0);
    assert_int_equal(rig.plan->batch, 512);
    rig.options.dense_rows = 0;
    rig.options.cpu_ffn_layers = 0;
    assert_int_equal(plan_rig_get(&rig)->dense.rows, 0);
    rig.options.layers = 0;
    assert_int_equal(plan_rig_get(&rig)->dense.rows, 0);
    plan_rig_close(&rig);
}

static uint64_t planned(plan_rig *rig)
{
    return plan_rig_get(rig)->devices[ST_CARD].planned_bytes;
}

/* The smallest GPU that has a plan. */
static uint64_t least_gpu(plan_rig *rig, uint64_t high)
{
    uint64_t low = 0;
    while (high - low > 1) {
        rig->devices[ST_CARD].free_bytes = low + (high - low) / 2;
        if (plan_rig_plan(rig) == STRATA_OK) high = rig->devices[ST_CARD].free_bytes;
        else low = rig->devices[ST_CARD].free_bytes;
    }
    return high;
}

/* A fixed placement streams if the buffers fit to the byte, and is refused only if it does not fit without them. */
static void a_gpu_without_room_for_the_buffers(void **state)
{
    (void)state;
    plan_rig rig;
    open_small(&rig, 1);
    uint64_t with = planned(&rig);
    rig.options.dense_rows = ST_NEVER;
    uint64_t without = planned(&rig), least = least_gpu(&rig, without);
    assert_true(least < without && without < with);
    rig.options.dense_rows = 0;
    rig.devices[ST_CARD].free_bytes = with;
    assert_true(plan_rig_get(&rig)->dense.rows > 0 && rig.plan->output_on_card);
    rig.devices[ST_CARD].free_bytes = with - 1;
    assert_true(plan_rig_get(&rig)->dense.rows == 0 || !rig.plan->output_on_card);
    rig.devices[ST_CARD].free_bytes = without;
    assert_true(plan_rig_get(&rig)->dense.rows == 0 && rig.plan->output_on_card);
    assert_int_equal(rig.plan->devices[ST_CARD].planned_bytes, without);
    assert_int_equal(least_gpu(&rig, without), least);
    plan_rig_close(&rig);
}

/* The last part to move to the GPU makes the buffers and the large batch unnecessary: a GPU that has room for everything
 * gets everything, even if it has none for all but one part and the buffers. */
static void everything_may_need_less_than_nearly_everything(void **state)
{
    (void)state;
    plan_rig rig;
    open_small(&rig, 0);
    rig.options.layers = ST_LAYERS_AUTO;
    uint64_t whole = planned(&rig);
    assert_int_equal(rig.plan->ffn_on_card, LAYERS);
    rig.devices[ST_CARD].free_bytes = whole;
    assert_int_equal(plan_rig_get(&rig)->ffn_on_card, LAYERS);
    assert_int_equal(rig.plan->dense.rows, 0);
    rig.options.batch = 512; /* the larger batch would take more than all of the parts */
    for (uint64_t less = 1; less <= whole / 4; less += whole / 4 - 1) {
        rig.devices[ST_CARD].free_bytes = whole - less;
        assert_true(plan_rig_get(&rig)->ffn_on_card < LAYERS);
        assert_true(rig.plan->dense.rows > 0);
    }
    plan_rig_close(&rig);
}

/* A tiny model would lose the GPU to a batch of 2,048 rows. */
static void streaming_does_not_cost_the_layers(void **state)
{
    (void)state;
    plan_rig rig;
    open_small(&rig, 0);
    rig.options.layers = ST_LAYERS_AUTO;
    rig.devices[ST_CARD].free_bytes = planned(&rig) - 1;
    assert_true(plan_rig_get(&rig)->ffn_on_card == LAYERS - 1 && rig.plan->output_on_card);
    assert_int_equal(rig.plan->dense.rows, 0);
    assert_int_equal(rig.plan->batch, 512);
    plan_rig_close(&rig);
}

/* Layers on the host stream their matrices too; attention stays with their KV cache. */
static void layers_on_the_host_are_streamed(void **state)
{
    (void)state;
    plan_rig rig;
    open_small(&rig, 0);
    rig.options.layers = 1;
    const st_plan *plan = plan_rig_get(&rig);
    assert_true(plan->dense.rows > 0);
    assert_int_equal(plan->dense.fetches, 3 * 7); /* q, k, v, the output projection and three */
    for (uint32_t i = 0; i < rig.source.program->main.body.count; i++) {
        const st_op *op = &rig.source.program->ops[i];
        bool on_card = plan->dense.op_device[i] == ST_CARD;
        if (op->kind == ST_OP_ATTENTION) assert_int_equal(on_card, op->layer == 0);
        if (op->kind == ST_OP_MATMUL) assert_true(on_card);
    }
    plan_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_buffers_are_planned_to_the_byte),
        cmocka_unit_test(a_large_step_runs_on_the_gpu),
        cmocka_unit_test(the_rows_follow_from_the_rates),
        cmocka_unit_test(what_is_never_used_is_not_planned),
        cmocka_unit_test(a_gpu_without_room_for_the_buffers),
        cmocka_unit_test(everything_may_need_less_than_nearly_everything),
        cmocka_unit_test(streaming_does_not_cost_the_layers),
        cmocka_unit_test(layers_on_the_host_are_streamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
