/* Prompts in virtual time, for a dense model of Qwen3.5-27B's shape that does not fit a GPU of 12 GiB: the GPU runs the
 * parts that are in RAM, and the clock agrees with the prediction. No tensor is computed. */
#include "support/clock_rig.h"

#include <math.h>

#include "kv/stops.h"

enum { PROMPT = 4096, SHORT = 24 };

static const plan_shape shape = {.arch = "qwen35", .layers = 64, .embedding = 5120, .heads = 24, .kv_heads = 4,
                                 .head = 256, .ffn = 17408, .vocab = 248320, .context = 262144, .delta_keys = 16,
                                 .delta_values = 48, .delta_size = 128, .type = ST_TYPE_Q4_K, .big = ST_TYPE_Q6_K};

static void no_router(void *context, uint32_t layer, uint32_t rows, uint32_t used, int32_t *ids, float *weights)
{
    (void)context, (void)rows, (void)used, (void)ids, (void)weights;
    fail_msg("layer %u has a router", layer);
}

typedef struct speeds {
    double prompt, decode, predicted_prompt, predicted_decode; /* tokens per second */
    double small_step;                                         /* seconds of a step of SHORT rows */
    uint32_t batch, rows, ffn_on_card;
} speeds;

static double timed_step(clock_rig *r, st_conversation *c, uint32_t count)
{
    double start = st_sim_world_seconds(r->world);
    clock_rig_step(r, c, count);
    return st_sim_world_seconds(r->world) - start;
}

static st_conversation *open_clock(clock_rig *r, uint32_t dense_rows, uint32_t batch, double link)
{
    static const st_sim_routing routing = {.choose = no_router};
    strata_error error;
    st_conversation *c;
    clock_rig_open(r, &shape, (uint64_t)12 << 30);
    r->plan.devices[ST_CARD].link_up = r->plan.devices[ST_CARD].link_down = link;
    r->plan.options.dense_rows = dense_rows;
    r->plan.options.batch = batch;
    clock_rig_load(r, &(st_stream_options){0}, &routing);
    clock_must(st_conversation_new(st_run_kv(r->run), &c, &error), &error);
    for (uint32_t i = 0; i < PROMPT + SHORT + 1; i++) st_conversation_tokens(c)[i] = 1;
    return c;
}

/* Where the scheduler ends a piece of the prompt: a batch, or a restore point. */
static uint32_t piece_end(const st_plan *plan, uint32_t done)
{
    st_stops stops = {.diverged = ST_NO_STOP, .end = PROMPT, .page_tokens = plan->memory[ST_HOST].kv->options.page_tokens};
    st_restore_kind kind;
    uint32_t stop = st_stops_next(&stops, done, &kind), end = done + plan->batch < PROMPT ? done + plan->batch : PROMPT;
    return stop < end ? stop : end;
}

static speeds run(uint32_t dense_rows, double link)
{
    clock_rig r;
    strata_error error;
    st_conversation *c = open_clock(&r, dense_rows, 0, link);
    const st_plan *plan = r.plan.plan;
    double start = st_sim_world_seconds(r.world);
    uint32_t rows = 0;
    for (uint32_t done = 0; done < PROMPT; done += rows) {
        rows = piece_end(plan, done) - done;
        st_run_piece piece = {.conversation = c, .count = rows, .prompt = true};
        clock_must(st_run_step(r.run, &piece, 1, &error), &error);
    }
    assert_true(plan->restore_bytes > 0 && rows < plan->batch); /* the last step is short */
    clock_head(r.run, rows - 1, true);
    speeds s = {.prompt = PROMPT / (st_sim_world_seconds(r.world) - start), .batch = plan->batch,
                .rows = plan->dense.rows, .ffn_on_card = plan->ffn_on_card};
    s.small_step = timed_step(&r, c, SHORT);
    s.decode = 1 / timed_step(&r, c, 1);
    st_plan_speed predicted = st_plan_predict(&r.plan.source, plan, PROMPT + SHORT, PROMPT, -1);
    s.predicted_prompt = predicted.prefill_tps;
    s.predicted_decode = predicted.decode_tps;
    print_message("batch %u, streams from %u rows, %u dense parts on the GPU: prompt %.1f t/s, predicted %.1f; decoding %.2f, predicted %.2f\n",
                  s.batch, s.rows, s.ffn_on_card, s.prompt, s.predicted_prompt, s.decode, s.predicted_decode);
    st_conversation_free(c);
    clock_rig_close(&r);
    return s;
}

static bool close_to(double a, double b)
{
    return fabs(a / b - 1) <= 0.02;
}

/* The link is the bottleneck of a prompt, or the GPU. */
static void prompts_are_many_times_faster(void **state)
{
    (void)state;
    for (int fast = 0; fast < 2; fast++) {
        double link = fast ? 50e9 : 6e9;
        speeds host = run(ST_NEVER, link), streamed = run(0, link);
        assert_true(host.batch == 512 && host.rows == 0);
        assert_true(streamed.batch == 2048 && streamed.rows > ST_EARLY_ROWS_MAX && streamed.rows <= 512);
        assert_true(streamed.prompt >= (fast ? 10 : 5) * host.prompt);
        assert_true(streamed.decode >= 0.8 * host.decode);
        assert_true(close_to(host.prompt, host.predicted_prompt) && close_to(streamed.prompt, streamed.predicted_prompt));
        assert_true(close_to(host.decode, host.predicted_decode) && close_to(streamed.decode, streamed.predicted_decode));
        assert_true(streamed.small_step <= 1.25 * host.small_step); /* on the CPU in both */
    }
}

/* Steps of the chosen number of rows take as long as on the CPU, more or less: the choice is near the best. */
static void the_threshold_is_where_both_are_equal(void **state)
{
    (void)state;
    double link = 3e9; /* so slow that the threshold is above the least */
    uint32_t rows = run(0, link).rows;
    assert_true(rows > 2 * ST_EARLY_ROWS_MAX);
    double seconds[2];
    for (int never = 0; never < 2; never++) {
        clock_rig r;
        st_conversation *c = open_clock(&r, never ? 2000 : rows, 2048, link); /* the same placement */
        seconds[never] = timed_step(&r, c, rows);
        st_conversation_free(c);
        clock_rig_close(&r);
    }
    print_message("a step of %u rows: streamed %.3f s, on the CPU %.3f s\n", rows, seconds[0], seconds[1]);
    assert_true(seconds[0] <= 1.1 * seconds[1] && seconds[1] <= 1.5 * seconds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_many_times_faster),
        cmocka_unit_test(the_threshold_is_where_both_are_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
