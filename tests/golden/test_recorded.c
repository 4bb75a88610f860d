/* src/moe/recorded.c: a recorded routing replaces the routers' choices on every placement. The model's own routing gives
 * the same logits, bit by bit; another one changes them; a trace of another model or a damaged one is refused. */
#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/mirror.h"

enum { PROMPT = 14, BATCH = 7, TOKENS = 21 };

typedef struct rig {
    golden g;
    golden_watch stats;
    uint64_t bytes[GOLDEN_EXPERTS_MAX];
    uint32_t used, experts;
    char path[64];
    float *logits; /* [TOKENS, vocab]: of the last run */
} rig;

static void open_rig(rig *r, const char *name)
{
    *r = (rig){0};
    assert_true(golden_open(&r->g, name));
    for (uint32_t i = 0; i < r->g.desc->layer_count; i++) {
        const st_ffn_desc *ffn = &r->g.desc->layers[i].ffn;
        r->bytes[i] = ffn->experts ? 1 : 0;
        if (ffn->experts_used > r->used) r->used = ffn->experts_used;
        if (ffn->experts > r->experts) r->experts = ffn->experts;
    }
    snprintf(r->path, sizeof r->path, "/tmp/strata-recorded-%d", (int)getpid());
    r->logits = st_alloc_zero((size_t)TOKENS * r->g.desc->vocab, sizeof *r->logits);
    assert_non_null(r->logits);
}

static void close_rig(rig *r)
{
    unlink(r->path);
    st_free(r->logits);
    golden_close(&r->g);
}

/* Runs a prompt in two batches and then token by token, and records the routing. */
static st_trace *run(rig *r, const st_plan_options *placed, const st_recorded *recorded)
{
    uint32_t layers = r->g.desc->layer_count + r->g.desc->nextn_count, vocab = r->g.desc->vocab;
    st_trace_shape shape = {.model = "kit", .arch = "kit", .layers = layers, .experts = r->experts, .used = r->used,
                            .expert_bytes = r->bytes, .dense_bytes = r->bytes};
    golden_watch_open(&r->stats, &r->g);
    assert_int_equal(st_trace_writer_open(r->path, &shape, &r->stats.watch.trace, NULL), STRATA_OK);
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = BATCH, .threads = 1, .cpu = "ref", .placed = placed,
                              .watch = &r->stats.watch, .recorded = recorded, .experts.deterministic = true};
    golden_run run;
    strata_error error;
    golden_run_open(&run, &r->g, &options);
    for (uint32_t at = 0; at < TOKENS; at += at < PROMPT ? BATCH : 1) {
        uint32_t count = at < PROMPT ? BATCH : 1, last = count - 1;
        const float *logits;
        golden_feed(&run, at, count, NULL);
        if (st_run_logits(run.run, &last, 1, &logits, &error) != STRATA_OK) fail_msg("%s", error.message);
        memcpy(r->logits + (size_t)at * vocab, logits, vocab * sizeof *logits);
    }
    golden_run_close(&run);
    st_trace *trace = NULL;
    assert_int_equal(st_trace_writer_close(r->stats.watch.trace, NULL), STRATA_OK);
    if (st_trace_read(r->path, &trace, &error) != STRATA_OK) fail_msg("%s", error.message);
    golden_watch_close(&r->stats);
    return trace;
}

static st_recorded *recorded_of(rig *r, const st_trace *trace)
{
    strata_error error;
    st_recorded *recorded = NULL;
    st_program_options options = {.experts_used = trace->shape.used, .recorded = true};
    if (golden_lower(&r->g, &options, &error) != STRATA_OK) fail_msg("%s", error.message);
    if (st_recorded_new(trace, "t", r->g.desc, r->g.program, &recorded, &error) != STRATA_OK) fail_msg("%s", error.message);
    return recorded;
}

/* Other backends add in another order. */
static bool same_logits(const rig *r, const float *others)
{
    size_t count = (size_t)TOKENS * r->g.desc->vocab;
    double error = 0, norm = 0;
    if (!mirror_name()) return memcmp(r->logits, others, count * sizeof *others) == 0;
    for (size_t i = 0; i < count; i++) {
        error += ((double)r->logits[i] - others[i]) * ((double)r->logits[i] - others[i]);
        norm += (double)others[i] * others[i];
    }
    return sqrt(error / norm) <= 1e-3;
}

static void same_routing(const st_trace *a, const st_trace *b)
{
    assert_int_equal(a->row_count, b->row_count);
    assert_memory_equal(a->experts, b->experts, a->row_count * sizeof *a->experts);
    assert_memory_equal(a->weights, b->weights, a->row_count * sizeof *a->weights);
}

/* The model's own routing, then one where every expert is another. */
static void replay_on(const char *name, const st_plan_options *placed)
{
    rig r;
    open_rig(&r, name);
    size_t bytes = (size_t)TOKENS * r.g.desc->vocab * sizeof(float);
    st_trace *own = run(&r, placed, NULL);
    float *before = memcpy(st_alloc(bytes), r.logits, bytes);
    st_recorded *recorded = recorded_of(&r, own);
    assert_int_equal(st_recorded_turns(recorded), 1);
    assert_int_equal(st_recorded_tokens(recorded, 0), TOKENS);
    assert_int_equal(st_recorded_prompt(recorded, 0), PROMPT);
    st_trace *again = run(&r, placed, recorded);
    same_routing(again, own);
    if (!same_logits(&r, before)) fail_msg("%s: its own routing changes the logits", name);
    st_trace_free(again);
    st_recorded_free(recorded);
    for (size_t i = 0; i < own->row_count; i++) own->experts[i] = (own->experts[i] + 1) % r.experts;
    recorded = recorded_of(&r, own);
    again = run(&r, placed, recorded);
    same_routing(again, own);
    for (uint32_t i = 0; i < TOKENS; i += i < PROMPT ? BATCH : 1) {
        size_t row = (size_t)i * r.g.desc->vocab;
        assert_true(memcmp(r.logits + row, before + row, r.g.desc->vocab * sizeof(float)) != 0);
    }
    st_trace_free(again);
    st_trace_free(own);
    st_recorded_free(recorded);
    st_free(before);
    close_rig(&r);
}

static void replays_on_every_placement(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3moe", "mixtral", "gemma4-moe", "qwen35moe", "more/deepseek2"};
    static const st_moe_mode modes[] = {ST_MOE_RESIDENT, ST_MOE_CPU, ST_MOE_CACHE};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        replay_on(names[n], NULL);
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            st_plan_options placed = st_plan_options_default();
            placed.layers = ST_LAYERS_ALL;
            placed.moe = modes[m];
            if (modes[m] == ST_MOE_CACHE) placed.expert_slots = 2;
            replay_on(names[n], &placed);
        }
    }
}

/* Fewer experts than the model uses: the first of each token; the weights are theirs. */
static void replays_with_fewer_experts(void **state)
{
    (void)state;
    rig r;
    strata_error error;
    open_rig(&r, "qwen3moe");
    st_program_options fewer = {.experts_used = 1};
    assert_true(r.used > 1);
    st_trace *own = run(&r, NULL, NULL);
    size_t bytes = (size_t)TOKENS * r.g.desc->vocab * sizeof(float);
    float *before = memcpy(st_alloc(bytes), r.logits, bytes);
    assert_int_equal(golden_lower(&r.g, &fewer, &error), STRATA_OK);
    r.used = 1;
    st_trace *one = run(&r, NULL, NULL);
    assert_true(one->shape.used == 1 && one->row_count < own->row_count && !same_logits(&r, before));
    memcpy(before, r.logits, bytes);
    st_recorded *recorded = recorded_of(&r, one);
    st_trace *again = run(&r, NULL, recorded);
    same_routing(again, one);
    assert_true(same_logits(&r, before));
    st_trace_free(again);
    st_trace_free(one);
    st_trace_free(own);
    st_recorded_free(recorded);
    st_free(before);
    close_rig(&r);
}

/* A prompt's token without an event of a layer: the router chooses. Behind the last token there is no routing. */
static void routers_choose_where_a_prompt_has_no_event(void **state)
{
    (void)state;
    rig r;
    strata_error error;
    open_rig(&r, "qwen3moe");
    st_trace *own = run(&r, NULL, NULL);
    size_t bytes = (size_t)TOKENS * r.g.desc->vocab * sizeof(float);
    float *before = memcpy(st_alloc(bytes), r.logits, bytes);
    assert_true(!own->events[1].decode && own->events[1].step == 0);
    memmove(&own->events[1], &own->events[2], (--own->event_count - 1) * sizeof *own->events);
    st_recorded *recorded = recorded_of(&r, own);
    st_trace_free(run(&r, NULL, recorded));
    assert_true(same_logits(&r, before));

    const uint32_t *row;
    assert_int_equal(st_recorded_row(recorded, 3, TOKENS - 1, &row, &error), STRATA_OK); /* turn 0 again */
    assert_int_equal(st_recorded_row(recorded, 0, TOKENS, &row, &error), STRATA_LIMIT);
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = TOKENS, .threads = 1, .cpu = "ref", .recorded = recorded};
    golden_run run;
    golden_run_open(&run, &r.g, &options);
    golden_feed(&run, 0, TOKENS, NULL);
    assert_int_equal(golden_step(&run, run.conversation, r.g.tokens + TOKENS, 1, &error), STRATA_LIMIT);
    assert_string_equal(error.message, "the recorded routing has 21 tokens, found position 21");
    assert_int_equal(st_conversation_position(run.conversation), TOKENS);
    golden_run_close(&run);
    options.recorded = NULL;
    assert_int_equal(golden_run_try(&run, &r.g, &options, &error), STRATA_RUNTIME);
    st_recorded_free(recorded);
    st_trace_free(own);
    st_free(before);
    close_rig(&r);
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

typedef struct damage {
    void (*change)(st_trace *trace);
    const char *message; /* NULL: it is no damage */
} damage;

static void no_change(st_trace *trace)
{
    (void)trace;
}

static void another_layer_count(st_trace *trace)
{
    trace->shape.layers++;
}

static void another_expert_count(st_trace *trace)
{
    trace->shape.experts *= 2;
}

static void expert_out_of_range(st_trace *trace)
{
    trace->experts[3] = 99;
}

static void short_event(st_trace *trace)
{
    trace->events[2].count = 2;
}

static void last_layer_missing(st_trace *trace)
{
    trace->event_count--;
}

static void gap_between_tokens(st_trace *trace)
{
    for (size_t i = 0; i < trace->event_count; i++) trace->events[i].step += trace->events[i].step > 4;
}

static void layer_without_experts(st_trace *trace)
{
    for (size_t i = 0; i < trace->event_count; i++)
        if (trace->events[i].layer == 1) trace->events[i].layer = 0;
}

static void damaged_traces_are_refused(void **state)
{
    (void)state;
    static const damage rows[] = {
        {no_change, NULL},
        {another_layer_count, "t: expected 4 layers, found 5"},
        {another_expert_count, "t: expected 12 experts of a layer, found 24"},
        {expert_out_of_range, "t: turn 0, step 0, layer 2: expected an expert below 12, found 99"},
        {short_event, "t: turn 0, step 0, layer 3: expected 3 experts, found 2"},
        {last_layer_missing, "t: turn 0, step 20: expected the experts of 3 layers, found 2"},
        {gap_between_tokens, "t: turn 0: expected step 5, found 6"},
        {layer_without_experts, "t: turn 0, step 0: expected a layer with routed experts, found layer 0"},
    };
    rig r;
    strata_error error;
    open_rig(&r, "more/deepseek2"); /* its first layer is dense */
    st_trace_free(run(&r, NULL, NULL));
    st_program_options options = {.experts_used = r.used, .recorded = true};
    assert_int_equal(golden_lower(&r.g, &options, &error), STRATA_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        st_trace *trace = NULL;
        st_recorded *recorded = NULL;
        assert_int_equal(st_trace_read(r.path, &trace, &error), STRATA_OK);
        rows[i].change(trace);
        strata_status status = st_recorded_new(trace, "t", r.g.desc, r.g.program, &recorded, &error);
        print_message("# %s\n", status == STRATA_OK ? "accepted" : error.message);
        assert_int_equal(status, rows[i].message ? STRATA_INPUT : STRATA_OK);
        if (rows[i].message) assert_string_equal(error.message, rows[i].message);
        st_recorded_free(recorded);
        st_trace_free(trace);
    }
    close_rig(&r);
}

static void more_experts_than_the_model_uses_are_refused(void **state)
{
    (void)state;
    rig r;
    strata_error error;
    open_rig(&r, "qwen3moe");
    st_program_options options = {.experts_used = r.used + 1, .recorded = true};
    assert_int_equal(golden_lower(&r.g, &options, &error), STRATA_USAGE);
    close_rig(&r);
    open_rig(&r, "llama");
    st_trace trace = {0};
    st_recorded *recorded = NULL;
    options = (st_program_options){.recorded = true};
    assert_int_equal(golden_lower(&r.g, &options, &error), STRATA_OK);
    assert_int_equal(r.g.program->choice_words, 0);
    assert_int_equal(st_recorded_new(&trace, "t", r.g.desc, r.g.program, &recorded, &error), STRATA_USAGE);
    close_rig(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_on_every_placement),
        cmocka_unit_test(replays_with_fewer_experts),
        cmocka_unit_test(routers_choose_where_a_prompt_has_no_event),
        cmocka_unit_test(damaged_traces_are_refused),
        cmocka_unit_test(more_experts_than_the_model_uses_are_refused),
    };
    return kit_run("recorded", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
