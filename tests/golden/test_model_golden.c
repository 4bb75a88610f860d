/* Every family against another implementation's logits, on the reference path. */
#include "support/golden.h"

#include <stdio.h>

typedef struct family {
    const char *name;
    double error_max;
} family;

static const family families[] = {
    {"llama", 2e-5},    {"mixtral", 2e-5},      {"qwen2", 2e-5},      {"qwen3", 2e-5},  {"qwen2moe", 2e-5},
    {"qwen3moe", 2e-5}, {"olmoe", 2e-5},        {"llama4", 2e-5},     {"gemma4-e", 2e-5}, {"gemma4-dense", 2e-5},
    {"gemma4-moe", 2e-5}, {"qwen35", 5e-5},     {"qwen35moe", 5e-5},  {"llama4-long", 2e-5},
    {"qwen35-long", 5e-5}, {"qwen35moe-long", 5e-5},
};

static void check_score(const char *name, const golden *g, const golden_score *score, double error_max, bool nextn)
{
    if (!(golden_error(score) <= error_max)) fail_msg("%s: relative error %g, expected %g", name, golden_error(score), error_max);
    if (score->rows != g->row_count || score->agree != score->rows)
        fail_msg("%s: %u of %u argmaxes, expected %u", name, score->agree, score->rows, g->row_count);
    if (!nextn) return;
    if (score->nextn_rows != g->nextn_count) fail_msg("%s: %u NextN rows, expected %u", name, score->nextn_rows, g->nextn_count);
    if (!(golden_nextn_error(score) <= error_max)) fail_msg("%s: NextN error %g", name, golden_nextn_error(score));
}

/* The whole prompt in batches of `batch`, logits, argmaxes, NextN, then greedy decoding. */
static void run_family(const family *f, uint32_t batch, uint32_t threads)
{
    golden g;
    if (!golden_open(&g, f->name)) skip();
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = batch < g.token_count ? batch : g.token_count,
                              .threads = threads, .nextn = g.nextn_logits != NULL, .cpu = "ref"};
    golden_run r;
    golden_run_open(&r, &g, &options);
    golden_score score = {0};
    golden_feed(&r, 0, g.token_count, &score);
    check_score(f->name, &g, &score, f->error_max, options.nextn);
    assert_int_equal(golden_greedy(&r, 1e-3f), g.greedy_count);
    golden_run_close(&r);
    golden_close(&g);
}

static void whole_batch(void **state)
{
    run_family(*state, 512, 2);
}

static void token_by_token(void **state)
{
    run_family(*state, 1, 1);
}

static void batches_of_seven(void **state)
{
    run_family(*state, 7, 2);
}

/* Runs to the end, goes back, and comes again: the same logits as without the detour. */
static void after_a_rewind(void **state)
{
    const family *f = *state;
    golden g;
    if (!golden_open(&g, f->name)) skip();
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = 16, .threads = 1, .nextn = g.nextn_logits != NULL, .cpu = "ref"};
    static const uint32_t back_to[] = {47, 33, 31, 30, 16, 1};
    for (size_t i = 0; i < sizeof back_to / sizeof *back_to; i++) {
        golden_run r;
        strata_error error;
        golden_run_open(&r, &g, &options);
        golden_feed(&r, 0, 31, NULL);
        assert_int_equal(st_kv_snapshot(st_run_kv(r.run), &error), STRATA_OK);
        golden_feed(&r, 31, g.token_count - 31, NULL);
        uint32_t reached;
        assert_int_equal(st_run_rewind(r.run, back_to[i], &reached, &error), STRATA_OK);
        assert_true(reached <= back_to[i]);
        golden_score score = {0};
        golden_feed(&r, reached, g.token_count - reached, &score);
        if (!(golden_error(&score) <= f->error_max) || score.agree != score.rows)
            fail_msg("%s: back to %u, reached %u: error %g", f->name, back_to[i], reached, golden_error(&score));
        if (options.nextn && !(golden_nextn_error(&score) <= f->error_max))
            fail_msg("%s: back to %u, reached %u: NextN error %g", f->name, back_to[i], reached, golden_nextn_error(&score));
        golden_run_close(&r);
    }
    golden_close(&g);
}

/* One thread and two give the same bits. */
static void threads_are_equal(void **state)
{
    const family *f = *state;
    golden g;
    if (!golden_open(&g, f->name)) skip();
    golden_run r[2];
    strata_error error;
    for (uint32_t t = 0; t < 2; t++) {
        golden_options options = {.kv_type = ST_TYPE_F32, .batch = 48, .threads = t + 1, .cpu = "ref"};
        golden_run_open(&r[t], &g, &options);
        golden_feed(&r[t], 0, g.token_count, NULL);
    }
    for (uint32_t row = 0; row < g.token_count; row++) {
        const float *one, *two;
        assert_int_equal(st_run_logits(r[0].run, &row, 1, &one, &error), STRATA_OK);
        assert_int_equal(st_run_logits(r[1].run, &row, 1, &two, &error), STRATA_OK);
        assert_memory_equal(one, two, g.desc->vocab * sizeof *one);
    }
    for (int t = 0; t < 2; t++) golden_run_close(&r[t]);
    golden_close(&g);
}

typedef struct narrow {
    const char *name;
    st_type type;
    double error_max;
} narrow;

static const narrow narrows[] = {
    {"llama", ST_TYPE_BF16, 2e-2},  {"qwen2", ST_TYPE_BF16, 2e-2},  {"qwen3", ST_TYPE_BF16, 2e-2},
    {"qwen35", ST_TYPE_BF16, 2e-2}, {"llama", ST_TYPE_Q8_0, 3e-2},  {"qwen2", ST_TYPE_Q8_0, 3e-2},
    {"qwen3", ST_TYPE_Q8_0, 3e-2},  {"qwen35", ST_TYPE_Q8_0, 3e-2},
};

static void narrow_kv(void **state)
{
    const narrow *n = *state;
    golden g;
    assert_true(golden_open(&g, n->name));
    golden_options options = {.kv_type = n->type, .batch = 48, .threads = 1, .cpu = "ref"};
    golden_run r;
    golden_run_open(&r, &g, &options);
    golden_score score = {0};
    golden_feed(&r, 0, g.token_count, &score);
    if (!(golden_error(&score) <= n->error_max)) fail_msg("%s: relative error %g", n->name, golden_error(&score));
    assert_true(golden_error(&score) > 1e-5); /* the type was really used */
    golden_run_close(&r);
    golden_close(&g);
}

enum { FAMILIES = sizeof families / sizeof *families, NARROWS = sizeof narrows / sizeof *narrows, SHORT_FAMILIES = 13 };

int main(void)
{
    static struct CMUnitTest tests[FAMILIES * 5 + NARROWS];
    static char names[FAMILIES * 5 + NARROWS][64];
    size_t count = 0;
    static const struct { const char *name; CMUnitTestFunction run; bool on_long; } kinds[] = {
        {"whole", whole_batch, true}, {"token by token", token_by_token, false}, {"sevens", batches_of_seven, false},
        {"rewind", after_a_rewind, false}, {"threads", threads_are_equal, false}};
    for (size_t f = 0; f < FAMILIES; f++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (f >= SHORT_FAMILIES && !kinds[k].on_long) continue;
            snprintf(names[count], sizeof *names, "%s: %s", families[f].name, kinds[k].name);
            tests[count] = (struct CMUnitTest){.name = names[count], .test_func = kinds[k].run,
                                               .initial_state = (void *)(uintptr_t)&families[f]};
            count++;
        }
    for (size_t n = 0; n < NARROWS; n++) {
        snprintf(names[count], sizeof *names, "%s: narrow KV %s", narrows[n].name, st_type_find(narrows[n].type)->name);
        tests[count] = (struct CMUnitTest){.name = names[count], .test_func = narrow_kv,
                                           .initial_state = (void *)(uintptr_t)&narrows[n]};
        count++;
    }
    return _cmocka_run_group_tests("model", tests, count, NULL, NULL);
}
