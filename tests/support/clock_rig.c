#include "support/clock_rig.h"

void clock_must(strata_status status, const strata_error *error)
{
    if (status != STRATA_OK) fail_msg("%s", error->message);
}

static void describe_machine(plan_rig *rig, uint64_t card_bytes)
{
    st_profile *host = &rig->devices[ST_HOST], *card = &rig->devices[ST_CARD];
    *host = st_profile_default(ST_DEVICE_HOST);
    *card = st_profile_default(ST_DEVICE_CARD);
    host->total_bytes = host->free_bytes = (uint64_t)64 << 30;
    host->memory_rate = 60e9;
    host->op_rate = 1e12;
    card->total_bytes = card->free_bytes = card_bytes;
    card->memory_rate = 504e9;
    card->op_rate = 40e12;
    card->link_up = card->link_down = 25e9;
    card->handover_seconds = 20e-6;
    card->launch_seconds = 3e-6;
}

void clock_rig_open(clock_rig *r, const plan_shape *shape, uint64_t card_bytes)
{
    *r = (clock_rig){0};
    plan_rig_open(&r->plan, shape);
    describe_machine(&r->plan, card_bytes);
    r->plan.options.context = 32768;
    r->plan.options.kv_type = ST_TYPE_BF16;
    r->plan.options.batch = 0;
    r->plan.options.margin_bytes[ST_HOST] = r->plan.options.margin_bytes[ST_CARD] = ST_BYTES_AUTO;
}

static void open_stats(clock_rig *r)
{
    const st_desc *desc = r->plan.source.desc;
    uint32_t experts[256], layers = desc->layer_count + desc->nextn_count;
    strata_error error;
    assert_true(layers <= 256);
    for (uint32_t i = 0; i < layers; i++) experts[i] = desc->layers[i].ffn.experts;
    clock_must(st_stats_new(layers, experts, &r->watch.stats, &error), &error);
}

void clock_rig_load(clock_rig *r, const st_stream_options *experts, const st_sim_routing *routing)
{
    strata_error error;
    const st_plan *plan = plan_rig_get(&r->plan);
    st_sim_options sim = {.host = r->plan.devices[ST_HOST], .card = r->plan.devices[ST_CARD],
                          .program = r->plan.source.program, .binding = r->plan.source.binding, .routing = routing};
    clock_must(st_sim_world_new(&sim, &r->world, &error), &error);
    st_device_options device = {.cpu = "ref", .threads = 1, .world = r->world};
    r->devices[ST_HOST].backend = st_backend_sim_host();
    r->devices[ST_CARD].backend = st_backend_sim_card();
    for (int d = 0; d < ST_DEVICES_MAX; d++)
        clock_must(r->devices[d].backend->open(&device, &r->devices[d].device, &error), &error);
    st_load_options load = {.untouched = true, .experts = *experts};
    open_stats(r);
    if (plan->watched) load.watch = &r->watch;
    load.stats = r->watch.stats;
    clock_must(st_load_new(&r->plan.source, plan, r->devices, &load, &r->load, &error), &error);
    r->run = st_load_run(r->load);
    r->stream = st_load_stream(r->load);
}

void clock_rig_close(clock_rig *r)
{
    st_load_free(r->load);
    st_stats_free(r->watch.stats);
    for (int d = 0; d < ST_DEVICES_MAX; d++) r->devices[d].backend->close(r->devices[d].device);
    assert_int_equal(st_sim_used_bytes(r->world), 0);
    st_sim_world_free(r->world);
    plan_rig_close(&r->plan);
}

void clock_head(st_run *run, uint32_t row, bool prompt)
{
    strata_error error;
    const float *logits;
    const st_candidates *best;
    st_adjustments *lists = prompt ? NULL : st_run_adjustments(run);
    if (lists) lists[0].count = 0;
    clock_must(lists ? st_run_candidates(run, &row, 1, &best, &error) : st_run_logits(run, &row, 1, &logits, &error), &error);
}

void clock_rig_step(clock_rig *r, st_conversation *c, uint32_t count)
{
    strata_error error;
    st_run_piece piece = {.conversation = c, .count = count, .prompt = count > 1};
    clock_must(st_run_step(r->run, &piece, 1, &error), &error);
    clock_head(r->run, count - 1, piece.prompt);
}
