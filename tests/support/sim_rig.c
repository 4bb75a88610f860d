#include "support/sim_rig.h"

#include <string.h>

/* --- the operations ----------------------------------------------------------------------------------------------- */

static const st_gguf_tensor tensor = {.type = ST_TYPE_F32, .dim_count = 2, .ne = {SIM_IN, SIM_OUT, 1, 1},
                                      .bytes = SIM_WEIGHT_BYTES};
static const st_weight weights[] = {{.tensor = &tensor, .ne = {SIM_IN, SIM_OUT, 1}, .bytes = SIM_WEIGHT_BYTES}};
const st_binding sim_binding = {.weights = weights, .count = 1};

static const st_value values[] = {
    {.name = "x", .width = SIM_IN}, {.name = "y", .width = SIM_OUT}, {.name = "z", .width = SIM_OUT}};

#define NO_MORE ST_NO_VALUE, ST_NO_VALUE, ST_NO_VALUE
static const st_op ops[] = {
    {.kind = ST_OP_MATMUL, .layer = 0, .in = {0, ST_NO_VALUE, NO_MORE}, .out = 1, .out2 = ST_NO_VALUE,
     .weight = {0, -1, -1, -1, -1, -1, -1}},
    {.kind = ST_OP_ADD, .layer = 0, .in = {1, 1, NO_MORE}, .out = 2, .out2 = ST_NO_VALUE, .weight = {-1, -1, -1, -1, -1, -1, -1}},
};
const st_program sim_program = {.ops = ops, .op_count = 2, .values = values, .value_count = 3};

const st_step_limits sim_step_limits = {.rows = SIM_ROWS, .out_rows = SIM_ROWS, .conversations = 1};

static float weight_at(uint32_t column, uint32_t i)
{
    return (float)(column * SIM_IN + i) * 0.25f - 1;
}

static float input_at(uint32_t row, uint32_t i)
{
    return (float)row + 0.5f * (float)i;
}

/* --- the devices -------------------------------------------------------------------------------------------------- */

st_sim_options sim_options(void)
{
    st_sim_options options = {.host = st_profile_default(ST_DEVICE_HOST), .card = st_profile_default(ST_DEVICE_CARD),
                              .program = &sim_program, .binding = &sim_binding};
    st_profile *card = &options.card, *host = &options.host;
    card->overhead_bytes = 1000;
    card->total_bytes = 2 * SIM_CAPACITY;
    card->free_bytes = SIM_CAPACITY + card->overhead_bytes;
    card->granularity = SIM_GRANULARITY;
    card->memory_rate = 1000;
    card->op_rate = 10000;
    card->link_up = 100;
    card->link_down = 50;
    card->launch_seconds = 0.25;
    card->handover_seconds = 0.5;
    host->memory_rate = 500;
    host->op_rate = 2000;
    return options;
}

st_sim_world *sim_world_open(const st_sim_options *options)
{
    st_sim_world *world = NULL;
    strata_error error;
    if (st_sim_world_new(options, &world, &error) != STRATA_OK) fail_msg("%s", error.message);
    return world;
}

enum {
    PIECE = 256,
    STEP = 0,
    WEIGHTS = PIECE,
    X = 2 * PIECE,
    Y = 3 * PIECE,
    Z = 4 * PIECE,
    SCRATCH = 5 * PIECE,
    END = 6 * PIECE,
};

static void lay_out(sim_rig *r)
{
    r->step = (st_step *)(void *)(r->block + STEP);
    r->weights = (float *)(void *)(r->block + WEIGHTS);
    r->x = (float *)(void *)(r->block + X);
    r->z = (float *)(void *)(r->block + Z);
    r->scratch = r->block + SCRATCH;
    r->host_step = (st_step *)(void *)(r->host + STEP);
    r->host_x = (float *)(void *)(r->host + X);
    r->host_z = (float *)(void *)(r->host + Z);
    st_bound_value y = {.data = r->block + Y, .width = SIM_OUT};
    r->ops[0] = (st_bound_op){.op = &ops[0], .in = {{.data = r->x, .width = SIM_IN}}, .out = y};
    r->ops[0].weight[0] = (st_bound_weight){.data = r->weights, .info = st_type_find(ST_TYPE_F32), .type = ST_TYPE_F32,
                                            .ne = {SIM_IN, SIM_OUT, 1}, .row_bytes = SIM_IN * sizeof(float)};
    r->ops[1] = (st_bound_op){.op = &ops[1], .in = {y, y}, .out = {.data = r->z, .width = SIM_OUT}};
}

static void fill_host(sim_rig *r)
{
    float *w = (float *)(void *)(r->host + WEIGHTS);
    memset(r->host_step, 0, PIECE);
    st_step_lay_out(r->host_step, SIM_ROWS, 1, SIM_ROWS, 0);
    *st_step_conversations(r->host_step) = (st_step_conversation){.rows = SIM_ROWS, .position = SIM_POSITION};
    for (uint32_t row = 0; row < SIM_ROWS; row++) st_step_rows(r->host_step)[row].position = SIM_POSITION + row;
    for (uint32_t column = 0; column < SIM_OUT; column++)
        for (uint32_t i = 0; i < SIM_IN; i++) w[column * SIM_IN + i] = weight_at(column, i);
    for (uint32_t row = 0; row < SIM_ROWS; row++)
        for (uint32_t i = 0; i < SIM_IN; i++) r->host_x[row * SIM_IN + i] = input_at(row, i);
    memset(r->host_z, 0, SIM_ROWS * SIM_OUT * sizeof(float));
}

strata_status sim_rig_open(sim_rig *r, st_sim_world *world, strata_error *error)
{
    *r = (sim_rig){.world = world, .card = st_backend_sim_card()};
    void *block = NULL, *host = NULL;
    bool pinned = false;
    strata_status status = r->card->open(&(st_device_options){.world = world}, &r->device, error);
    if (status == STRATA_OK) status = r->card->queue_new(r->device, ST_QUEUE_COMPUTE, &r->compute, error);
    if (status == STRATA_OK) status = r->card->queue_new(r->device, ST_QUEUE_UP, &r->up, error);
    if (status == STRATA_OK) status = r->card->alloc(r->device, END, &block, error);
    r->block = block;
    if (status == STRATA_OK) status = r->card->host_alloc(r->device, END, &host, &pinned, error);
    r->host = host;
    if (status != STRATA_OK) return status;
    assert_true(pinned);
    lay_out(r);
    fill_host(r);
    st_segment_source source = {.ops = r->ops, .count = 2, .rows = ST_ROWS_ALL, .step = r->step, .step_bytes = PIECE,
                                .scratch = r->scratch, .worker_bytes = PIECE};
    return r->card->prepare(r->device, &source, &r->segment, error);
}

void sim_rig_close(sim_rig *r)
{
    if (!r->device) return;
    r->card->segment_free(r->segment);
    r->card->queue_free(r->up);
    r->card->queue_free(r->compute);
    r->card->host_free(r->device, r->host);
    r->card->free(r->device, r->block);
    r->card->close(r->device);
}

/* --- a run -------------------------------------------------------------------------------------------------------- */

static strata_status send(sim_rig *r, strata_error *error)
{
    strata_status status = r->card->copy(r->up, ST_COPY_UP, r->step, r->host_step, r->host_step->bytes, error);
    if (status == STRATA_OK)
        status = r->card->copy(r->up, ST_COPY_UP, r->weights, r->host + WEIGHTS, SIM_WEIGHT_BYTES, error);
    if (status == STRATA_OK)
        status = r->card->copy(r->up, ST_COPY_UP, r->x, r->host_x, SIM_ROWS * SIM_IN * sizeof(float), error);
    return status;
}

strata_status sim_rig_run(sim_rig *r, bool wait, strata_error *error)
{
    st_event *event = NULL;
    strata_status status = r->card->event_new(r->device, &event, error);
    if (status == STRATA_OK) status = send(r, error);
    if (status == STRATA_OK && wait) status = r->card->event_record(event, r->up, error);
    if (status == STRATA_OK && wait) status = r->card->event_wait_queue(event, r->compute, error);
    if (status == STRATA_OK) status = r->card->launch(r->segment, r->compute, SIM_ROWS, error);
    if (status == STRATA_OK)
        status = r->card->copy(r->compute, ST_COPY_DOWN, r->host_z, r->z, SIM_ROWS * SIM_OUT * sizeof(float), error);
    if (status == STRATA_OK) status = r->card->event_record(event, r->compute, error);
    if (status == STRATA_OK) status = r->card->event_wait_host(event, 0, error);
    r->card->event_free(event);
    return status;
}

bool sim_rig_is_right(const sim_rig *r)
{
    for (uint32_t row = 0; row < SIM_ROWS; row++) {
        for (uint32_t column = 0; column < SIM_OUT; column++) {
            float sum = 0; /* multiples of 1/8: sums are exact in any order */
            for (uint32_t i = 0; i < SIM_IN; i++) sum += weight_at(column, i) * input_at(row, i);
            if (r->host_z[row * SIM_OUT + column] != 2 * sum) return false;
        }
    }
    return true;
}
