/* Answers on a GPU that reduces its logits to candidates: the tokens are those that the sampler chooses from all logits, and
 * a caller that reads logits gets them. */
#include "support/session_rig.h"

#include <math.h>
#include <string.h>

#include "engine.h"

enum { PROMPT = 20, TOKENS = 24 };

typedef struct listener {
    strata_token tokens[TOKENS];
    uint32_t count, with_logits;
    strata_likely chosen[TOKENS], top[TOKENS][STRATA_TOP_LOGPROBS_MAX];
} listener;

static bool keep_token(void *context, const strata_sampled *sampled)
{
    listener *l = context;
    assert_int_equal(sampled->vocab, SESSION_VOCAB);
    l->with_logits += sampled->logits != NULL;
    if (sampled->top_count && l->count < TOKENS) {
        l->chosen[l->count] = (strata_likely){sampled->token, sampled->logprob};
        memcpy(l->top[l->count], sampled->top, sampled->top_count * sizeof *sampled->top);
    } else {
        assert_true(isnan(sampled->logprob));
    }
    if (l->count < TOKENS) l->tokens[l->count++] = sampled->token;
    return true;
}

static void open_gpu(session_rig *r, const char *name)
{
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    placement.device = "sim";
    placement.vram_bytes = (uint64_t)1 << 30;
    placement.layers = -1;
    session_rig_open(r, name, (strata_engine_options){.placement = &placement, .context = 256});
}

static listener generate_with(const session_rig *r, const strata_sampling *sampling, bool without_logits, size_t top)
{
    listener l = {0};
    strata_answer answer;
    strata_error error;
    strata_generation g = {.sampling = *sampling, .max_tokens = TOKENS, .ignore_end = true, .on_token = keep_token,
                           .context = &l, .without_logits = without_logits, .logprobs = top > 0, .top_logprobs = top};
    session_prompt(r->session, session_ids, PROMPT);
    if (strata_session_generate(r->session, &g, &answer, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(answer.tokens, TOKENS);
    return l;
}

static listener generate(const session_rig *r, const strata_sampling *sampling, bool without_logits)
{
    return generate_with(r, sampling, without_logits, 0);
}

/* Log-probabilities from candidates are those of all logits; with adjustments, all logits are sent. */
static void logprobs_are_those_of_all_logits(void **state)
{
    (void)state;
    session_rig r;
    open_gpu(&r, "llama");
    strata_sampling sampling = {.temperature = 1, .top_k = 30, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    for (int i = 0; i < 2; i++) {
        listener few = generate_with(&r, &sampling, true, 20), all = generate_with(&r, &sampling, false, 20);
        assert_int_equal(few.with_logits, TOKENS); /* end tokens are banned: an adjustment */
        assert_memory_equal(few.tokens, all.tokens, sizeof few.tokens);
        sampling.seed++;
    }
    listener l = {0};
    strata_answer answer;
    strata_error error;
    strata_generation g = {.sampling = sampling, .max_tokens = TOKENS, .on_token = keep_token, .context = &l,
                           .without_logits = true, .logprobs = true, .top_logprobs = 20};
    session_prompt(r.session, session_ids, PROMPT);
    if (strata_session_generate(r.session, &g, &answer, &error) != STRATA_OK) fail_msg("%s", error.message);
    listener all = {0};
    g.without_logits = false;
    g.context = &all;
    session_prompt(r.session, session_ids, PROMPT);
    if (strata_session_generate(r.session, &g, &answer, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_true(l.count > 2 && l.with_logits == 1 && all.count == l.count && all.with_logits == all.count);
    for (uint32_t i = 0; i < l.count; i++) {
        assert_true(l.chosen[i].token == all.chosen[i].token && l.chosen[i].logprob < 0);
        assert_true(fabsf(l.chosen[i].logprob - all.chosen[i].logprob) < 1e-4f);
        for (int k = 0; k < STRATA_TOP_LOGPROBS_MAX; k++)
            assert_true(l.top[i][k].token == all.top[i][k].token &&
                        fabsf(l.top[i][k].logprob - all.top[i][k].logprob) < 1e-4f);
    }
    session_rig_close(&r);
}

static void the_tokens_are_those_of_all_logits(void **state)
{
    (void)state;
    static const strata_bias biases[] = {{7, 3.5f}, {100, -INFINITY}, {8, 2}};
    const strata_sampling rows[] = {
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 5},
        {.temperature = 1.4f, .top_k = 256, .top_p = 1, .repeat_penalty = 1, .seed = 6},
        {.temperature = 1, .top_k = 50, .top_p = 0.9f, .repeat_penalty = 1.3f, .presence_penalty = 0.5f,
         .frequency_penalty = 0.25f, .penalty_tokens = 64, .seed = 7, .biases = biases, .bias_count = 3},
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1.5f, .penalty_tokens = UINT32_MAX},
    };
    static const char *const names[] = {"llama", "qwen3moe"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        session_rig r;
        open_gpu(&r, names[n]);
        assert_true(r.engine->plan->reduces_logits);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            listener few = generate(&r, &rows[i], true), all = generate(&r, &rows[i], false);
            assert_int_equal(all.with_logits, TOKENS);
            assert_int_equal(few.with_logits, 1); /* the prompt's logits are at hand */
            assert_memory_equal(few.tokens, all.tokens, sizeof few.tokens);
        }
        session_rig_close(&r);
    }
}

/* A sampler that may choose any token gets all logits. */
static void without_top_k_the_logits_are_sent(void **state)
{
    (void)state;
    session_rig r;
    open_gpu(&r, "llama");
    strata_sampling any = {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1, .seed = 3};
    assert_int_equal(generate(&r, &any, true).with_logits, TOKENS);
    any.top_k = 257;
    assert_int_equal(generate(&r, &any, true).with_logits, TOKENS);
    session_rig_close(&r);
}

/* After an answer that ended by an end token, the session has no logits of its last token: it computes them again. */
static void logits_after_an_answer(void **state)
{
    (void)state;
    session_rig r;
    strata_error error;
    open_gpu(&r, "llama");
    listener l = {0};
    strata_answer answer;
    strata_generation g = {.sampling = {.top_p = 1, .repeat_penalty = 1}, .max_tokens = 4, .ignore_end = true,
                           .on_token = keep_token, .context = &l, .without_logits = true};
    session_prompt(r.session, session_ids, PROMPT);
    if (strata_session_generate(r.session, &g, &answer, &error) != STRATA_OK) fail_msg("%s", error.message);
    strata_token tokens[PROMPT + 4];
    memcpy(tokens, session_ids, PROMPT * sizeof *tokens);
    memcpy(tokens + PROMPT, l.tokens, 4 * sizeof *tokens);
    session_check_near(&r, r.session, tokens, PROMPT + 4);
    session_rig_close(&r);
}

/* Without a GPU nothing is reduced. */
static void a_cpu_reduces_nothing(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "llama", (strata_engine_options){.context = 256});
    strata_sampling greedy = {.top_p = 1, .repeat_penalty = 1};
    assert_false(r.engine->plan->reduces_logits);
    assert_int_equal(generate(&r, &greedy, true).with_logits, TOKENS);
    session_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tokens_are_those_of_all_logits), cmocka_unit_test(logprobs_are_those_of_all_logits),
        cmocka_unit_test(without_top_k_the_logits_are_sent),
        cmocka_unit_test(logits_after_an_answer), cmocka_unit_test(a_cpu_reduces_nothing),
    };
    return cmocka_run_group_tests_name("reduced", tests, NULL, NULL);
}
