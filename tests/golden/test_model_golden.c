/* Every family against another implementation's logits, on the reference path and on every instruction set that this
 * machine has. */
#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/mirror.h"

/* A family on a level of the CPU. */
typedef struct level_case {
    const golden_family *family;
    const char *cpu;
} level_case;

static bool level_is_here(const char *cpu)
{
    st_device_options options = {.cpu = cpu, .threads = 1};
    st_device *device = NULL;
    if (st_backend_cpu()->open(&options, &device, NULL) != STRATA_OK) return false;
    st_backend_cpu()->close(device);
    return true;
}

/* The fast kernels add in another order and approximate the exponential. */
static double error_max_of(const level_case *c)
{
    if (mirror_name()) return 1e-3;
    return strcmp(c->cpu, "ref") == 0 ? c->family->error_max : 2e-4;
}

static void check_score(const char *name, const golden *g, const golden_score *score, double error_max, bool nextn)
{
    print_message("# error %-24s %9.2e of %.0e, %u of %u argmaxes\n", name, golden_error(score), error_max, score->agree,
                  score->rows);
    if (!(golden_error(score) <= error_max)) fail_msg("%s: relative error %g, expected %g", name, golden_error(score), error_max);
    if (score->rows != g->row_count || score->agree != score->rows)
        fail_msg("%s: %u of %u argmaxes, expected %u", name, score->agree, score->rows, g->row_count);
    if (!nextn) return;
    if (score->nextn_rows != g->nextn_count) fail_msg("%s: %u NextN rows, expected %u", name, score->nextn_rows, g->nextn_count);
    if (!(golden_nextn_error(score) <= error_max)) fail_msg("%s: NextN error %g", name, golden_nextn_error(score));
}

/* The whole prompt in batches of `batch`, logits, argmaxes, NextN, then greedy decoding. */
static void run_family(const level_case *c, uint32_t batch, uint32_t threads)
{
    golden g;
    if (!level_is_here(c->cpu) || !golden_open(&g, c->family->name)) skip();
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = batch < g.token_count ? batch : g.token_count,
                              .threads = threads, .nextn = g.nextn_logits != NULL, .cpu = c->cpu};
    golden_run r;
    golden_run_open(&r, &g, &options);
    golden_score score = {0};
    golden_feed(&r, 0, g.token_count, &score);
    check_score(c->family->name, &g, &score, error_max_of(c), options.nextn);
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

/* Runs to the end, cuts the conversation and runs again: the logits are the same. A restore point lies at 31. */
static void after_a_cut(void **state)
{
    const level_case *c = *state;
    golden g;
    if (!level_is_here(c->cpu) || !golden_open(&g, c->family->name)) skip();
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = 16, .threads = 1, .page_tokens = 1,
                              .nextn = g.nextn_logits != NULL, .cpu = c->cpu};
    static const uint32_t back_to[] = {47, 33, 31, 30, 16, 1};
    for (size_t i = 0; i < sizeof back_to / sizeof *back_to; i++) {
        golden_run r;
        strata_error error;
        golden_run_open(&r, &g, &options);
        golden_feed(&r, 0, 31, NULL);
        assert_int_equal(st_run_wait(r.run, &error), STRATA_OK);
        st_conversation_keep(r.conversation, ST_RESTORE_MARK);
        golden_feed(&r, 31, g.token_count - 31, NULL);
        uint32_t reached = golden_cut(&r, back_to[i]);
        assert_in_range(reached, back_to[i] < 31 ? 0 : 31, back_to[i]);
        golden_score score = {0};
        golden_feed(&r, reached, g.token_count - reached, &score);
        if (!(golden_error(&score) <= error_max_of(c)) || score.agree != score.rows)
            fail_msg("%s: back to %u, reached %u: error %g", c->family->name, back_to[i], reached, golden_error(&score));
        if (options.nextn && !(golden_nextn_error(&score) <= error_max_of(c)))
            fail_msg("%s: back to %u, reached %u: NextN error %g", c->family->name, back_to[i], reached, golden_nextn_error(&score));
        golden_run_close(&r);
    }
    golden_close(&g);
}

/* One thread and two give the same bits. */
static void threads_are_equal(void **state)
{
    const level_case *c = *state;
    golden g;
    if (!level_is_here(c->cpu) || !golden_open(&g, c->family->name)) skip();
    golden_run r[2];
    strata_error error;
    for (uint32_t t = 0; t < 2; t++) {
        golden_options options = {.kv_type = ST_TYPE_F32, .batch = 48, .threads = t + 1, .cpu = c->cpu};
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
    {"llama", ST_TYPE_F16, 5e-3},     {"mixtral", ST_TYPE_F16, 5e-3},      {"qwen2", ST_TYPE_F16, 5e-3},
    {"qwen3", ST_TYPE_F16, 5e-3},     {"qwen2moe", ST_TYPE_F16, 5e-3},     {"qwen3moe", ST_TYPE_F16, 5e-3},
    {"olmoe", ST_TYPE_F16, 5e-3},     {"llama4", ST_TYPE_F16, 5e-3},       {"gemma4-e", ST_TYPE_F16, 5e-3},
    {"gemma4-dense", ST_TYPE_F16, 5e-3}, {"gemma4-moe", ST_TYPE_F16, 5e-3}, {"qwen35", ST_TYPE_F16, 5e-3},
    {"llama", ST_TYPE_BF16, 5e-3},    {"qwen2", ST_TYPE_BF16, 5e-3},       {"qwen3", ST_TYPE_BF16, 5e-3},
    {"qwen35", ST_TYPE_BF16, 5e-3},   {"llama", ST_TYPE_Q8_0, 3e-2},       {"qwen2", ST_TYPE_Q8_0, 3e-2},
    {"qwen3", ST_TYPE_Q8_0, 3e-2},    {"qwen35", ST_TYPE_Q8_0, 3e-2},
    {"more/deepseek2", ST_TYPE_F16, 5e-3}, {"more/deepseek2", ST_TYPE_BF16, 5e-3}, {"more/deepseek2", ST_TYPE_Q8_0, 1e-1}, /* one rounded row is the key and value of all heads */
    {"more/gpt-oss-clamp", ST_TYPE_F16, 5e-3}, {"more/gpt-oss-clamp", ST_TYPE_Q8_0, 3e-2},
    {"more/kimi-linear", ST_TYPE_BF16, 5e-3}, {"more/lfm2moe", ST_TYPE_F16, 5e-3}, {"more/nemotron_h_moe", ST_TYPE_F16, 5e-3},
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
    assert_true(golden_error(&score) > 1e-5); /* the KV type was used */
    golden_run_close(&r);
    golden_close(&g);
}

/* Narrow KV on the fast path: the error is within the type's own rounding. */
static void narrow_kv_fast(void **state)
{
    const narrow *n = *state;
    golden g;
    assert_true(golden_open(&g, n->name));
    golden_run r[2];
    double error = 0, norm = 0;
    strata_error problem;
    for (int i = 0; i < 2; i++) {
        golden_options options = {.kv_type = n->type, .batch = 48, .threads = 2, .cpu = i ? NULL : "ref"};
        golden_run_open(&r[i], &g, &options);
        golden_feed(&r[i], 0, g.token_count, NULL);
    }
    for (uint32_t row = 0; row < g.token_count; row++) {
        const float *reference, *fast;
        assert_int_equal(st_run_logits(r[0].run, &row, 1, &reference, &problem), STRATA_OK);
        assert_int_equal(st_run_logits(r[1].run, &row, 1, &fast, &problem), STRATA_OK);
        for (uint32_t i = 0; i < g.desc->vocab; i++) {
            error += ((double)fast[i] - reference[i]) * ((double)fast[i] - reference[i]);
            norm += (double)reference[i] * reference[i];
        }
    }
    double most = n->type == ST_TYPE_Q8_0 ? 5e-2 : 1e-2;
    if (!(sqrt(error / norm) <= most)) fail_msg("%s: fast against reference %g", n->name, sqrt(error / norm));
    for (int i = 0; i < 2; i++) golden_run_close(&r[i]);
    golden_close(&g);
}

enum {
    FAMILIES_MAX = 64,
    NARROWS = sizeof narrows / sizeof *narrows,
    LEVELS = 5,
    TESTS_MAX = FAMILIES_MAX * LEVELS * 5 + 2 * NARROWS,
};

static struct CMUnitTest tests[TESTS_MAX];
static char names[TESTS_MAX][80];
static size_t test_count;

static void add(const char *name, const char *kind, const char *where, CMUnitTestFunction function, const void *state)
{
    snprintf(names[test_count], sizeof *names, "%s: %s, %s", name, kind, where);
    tests[test_count] = (struct CMUnitTest){.name = names[test_count], .test_func = function,
                                            .initial_state = (void *)(uintptr_t)state};
    test_count++;
}

/* The long prompts are run in full, the longest in release builds alone: it takes minutes in others. */
static bool is_run(const golden_family *f, bool on_long)
{
    return golden_is_long(f) ? on_long && !(kit_is_slow() && strcmp(f->name, "llama4-long") == 0) : true;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; CMUnitTestFunction run; bool on_long; } kinds[] = {
        {"whole", whole_batch, true}, {"token by token", token_by_token, false}, {"sevens", batches_of_seven, false},
        {"cut", after_a_cut, false}, {"threads", threads_are_equal, false}};
    static const char *const levels[LEVELS] = {"ref", "avx2", "avxvnni", "avx512", "amx"};
    static level_case cases[LEVELS][FAMILIES_MAX];
    size_t level_count = mirror_name() ? 1 : LEVELS; /* another backend has one level */
    for (size_t l = 0; l < level_count; l++)
        for (size_t f = 0; f < golden_family_count && f < FAMILIES_MAX; f++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                cases[l][f] = (level_case){&golden_families[f], levels[l]};
                bool sampled = kit_is_slow() && !mirror_name(); /* two kinds of each short model, in turns */
                if (sampled && !golden_is_long(&golden_families[f]) && (k + f + l) % 5 > 1) continue;
                if (is_run(&golden_families[f], kinds[k].on_long))
                    add(golden_families[f].name, kinds[k].name, levels[l], kinds[k].run, &cases[l][f]);
            }
    for (size_t n = 0; n < NARROWS; n++) {
        add(narrows[n].name, "narrow KV", st_type_find(narrows[n].type)->name, narrow_kv, &narrows[n]);
        add(narrows[n].name, "narrow KV, fast", st_type_find(narrows[n].type)->name, narrow_kv_fast, &narrows[n]);
    }
    return kit_run("model", tests, test_count, NULL, NULL, argc, argv);
}
