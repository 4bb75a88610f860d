/* A real model, SmolLM2-135M-Instruct, against float32 on its dequantised weights: the probability of each next
 * token, and greedy answers. Needs the default model in the cache (tools/fetch-model) and is skipped without it. A
 * short part of the check is run; STRATA_TEST_WHOLE=1 runs all of it, on the reference kernels and on the fastest.
 * With STRATA_TEST_BACKEND all of it runs on that backend (support/mirror.h). */
#include "support/kit.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "strata.h"
#include "support/mirror.h"

enum { IDS_MAX = 2048, CHUNK = 512, ANSWER = 48 };

/* What runs the model, and how far it may be from float32: relative error of the perplexity, root mean square of the
 * errors of log probabilities, and the margin below which another greedy token is excused. The fast kernels quantise
 * activations. Over so short a text the random error of the perplexity is ±0.1 %; the error of single log probabilities
 * is the stricter check. */
typedef struct kernels {
    const char *name, *cpu;
    double perplexity_max, spread_max, margin_max;
} kernels;

static kernels reference = {"reference", "ref", 1e-4, 1e-4, 1e-2}, fastest = {"best kernels", NULL, 2e-3, 0.05, 0.1},
               backend = {"backend", NULL, 1e-3, 0.05, 0.1};

static json_t *expected;
static strata_model *model;

static bool is_whole(void)
{
    const char *value = getenv("STRATA_TEST_WHOLE");
    return value && strcmp(value, "1") == 0;
}

static int set_up(void **state)
{
    (void)state;
    st_buf text = {0};
    kit_read(kit_path("smollm2/expect.json"), &text);
    expected = json_loadb(text.data, text.length, 0, NULL);
    st_buf_free(&text);
    if (!expected) return 1;
    const char *path = kit_default_model();
    return path && strata_model_open(path, NULL, &model, NULL) != STRATA_OK;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(expected);
    strata_model_close(model);
    return 0;
}

static strata_engine *open_engine(const kernels *k)
{
    strata_engine *engine = NULL;
    strata_error error;
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    strata_engine_options options = {.cpu = k->cpu, .context = 1024, .kv_type = "f32", .placement = &placement};
    placement.device = "cpu";
    if (k == &backend) {
        placement.device = mirror_name();
        placement.layers = -1;
        placement.vram_bytes = (uint64_t)4 << 30;
    }
    if (strata_engine_new(model, &options, &engine, &error) != STRATA_OK) fail_msg("%s", error.message);
    return engine;
}

static size_t read_ids(const json_t *array, strata_token *ids)
{
    size_t count = json_array_size(array);
    assert_true(count <= IDS_MAX);
    for (size_t i = 0; i < count; i++) ids[i] = (strata_token)json_integer_value(json_array_get(array, i));
    return count;
}

/* ---- probability of the next token ------------------------------------------------------------------------------ */

typedef struct scores {
    const strata_token *ids; /* of the chunk */
    size_t first, count;     /* first token of the chunk, number of its tokens */
    const json_t *logprobs;
    double sum, expected_sum, worst, squares; /* squares: sum of the squared errors of log probabilities */
    size_t scored;
} scores;

static double log_probability(const float *logits, size_t vocab, strata_token token)
{
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < vocab; i++) largest = fmax(largest, (double)logits[i]);
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - largest);
    return (double)logits[token] - largest - log(sum);
}

static bool score_row(void *context, size_t row, const float *logits, size_t vocab)
{
    scores *s = context;
    if (row + 1 == s->count) return true; /* the next token is in another chunk */
    double found = log_probability(logits, vocab, s->ids[row + 1]);
    double wanted = json_real_value(json_array_get(s->logprobs, s->first + row));
    s->sum += found;
    s->expected_sum += wanted;
    s->worst = fmax(s->worst, fabs(found - wanted));
    s->squares += (found - wanted) * (found - wanted);
    s->scored++;
    return true;
}

/* Scores the first `count` tokens of the text, in chunks from an empty context. */
static scores score(const kernels *k, size_t count)
{
    strata_token ids[IDS_MAX];
    strata_session *session = NULL;
    strata_error error;
    size_t all = read_ids(json_object_get(expected, "tokens"), ids);
    assert_true(count <= all);
    strata_engine *engine = open_engine(k);
    assert_int_equal(strata_session_new(engine, &session, NULL), STRATA_OK);
    scores s = {.logprobs = json_object_get(expected, "next_logprob")};
    for (s.first = 0; s.first < count; s.first += CHUNK) {
        s.ids = ids + s.first;
        s.count = count - s.first < CHUNK ? count - s.first : CHUNK;
        if (strata_session_score(session, s.ids, s.count, false, score_row, &s, &error) != STRATA_OK)
            fail_msg("%s", error.message);
    }
    strata_session_free(session);
    strata_engine_free(engine);
    return s;
}

static double perplexity(double sum, size_t scored)
{
    return exp(-sum / (double)scored);
}

static void next_token_probabilities_match(void **state)
{
    (void)state;
    if (!model) kit_skip(KIT_NO_MODEL);
    size_t tokens = kit_is_slow() ? 8 : 64;
    scores s = score(&reference, tokens);
    assert_int_equal(s.scored, tokens - 1);
    double found = perplexity(s.sum, s.scored), wanted = perplexity(s.expected_sum, s.scored);
    if (!(s.worst <= 2e-3)) fail_msg("a log chance is off by %g", s.worst);
    if (!(fabs(found / wanted - 1) <= 1e-4)) fail_msg("perplexity %.4f, expected %.4f", found, wanted);
}

static void whole_text_probabilities_match(void **state)
{
    const kernels *k = *state;
    if (!model) kit_skip(KIT_NO_MODEL);
    scores s = score(k, json_array_size(json_object_get(expected, "tokens")));
    double found = perplexity(s.sum, s.scored), wanted = json_real_value(json_object_get(expected, "perplexity"));
    double spread = sqrt(s.squares / (double)s.scored);
    fprintf(stderr, "# %s: perplexity %.4f, expected %.4f (%+.4f %%), log-probability error %.2g, worst %.2g\n",
            k->name, found, wanted, 100 * (found / wanted - 1), spread, s.worst);
    assert_int_equal(s.scored, (size_t)json_integer_value(json_object_get(expected, "scored")));
    if (!(spread <= k->spread_max)) fail_msg("log probabilities are off by %g", spread);
    if (!(fabs(found / wanted - 1) <= k->perplexity_max)) fail_msg("perplexity %.4f, expected %.4f", found, wanted);
}

/* ---- greedy answers ---------------------------------------------------------------------------------------------- */

/* Checks greedy decoding against the expected ids, at most `limit` of them. The first difference ends the check; it is
 * excused if the expected margin is below `excused`. */
static void follow(strata_session *session, const json_t *chat, size_t limit, double excused)
{
    strata_token ids[IDS_MAX], wanted[IDS_MAX];
    strata_error error;
    size_t count = read_ids(json_object_get(chat, "ids"), ids);
    size_t answers = read_ids(json_object_get(chat, "greedy"), wanted);
    for (size_t i = 0; i < answers && i < limit; i++) {
        const float *logits;
        size_t vocab;
        if (strata_session_prompt(session, ids, count, NULL, NULL, &error) != STRATA_OK ||
            strata_session_logits(session, &logits, &vocab, &error) != STRATA_OK)
            fail_msg("%s", error.message);
        strata_token best = 0;
        for (size_t t = 1; t < vocab; t++)
            if (logits[t] > logits[best]) best = (strata_token)t;
        double margin = json_real_value(json_array_get(json_object_get(chat, "margin"), i));
        if (best != wanted[i] && margin >= excused)
            fail_msg("token %zu is %d, expected %d (margin %g)", i, best, wanted[i], margin);
        if (best != wanted[i]) return;
        ids[count++] = best;
    }
}

static void follow_chats(const kernels *k, size_t count, size_t limit)
{
    strata_engine *engine = open_engine(k);
    strata_session *session = NULL;
    assert_int_equal(strata_session_new(engine, &session, NULL), STRATA_OK);
    const json_t *chats = json_object_get(expected, "chats");
    assert_int_equal(json_array_size(chats), 5);
    for (size_t i = 0; i < count; i++) follow(session, json_array_get(chats, i), limit, k->margin_max);
    strata_session_free(session);
    strata_engine_free(engine);
}

static void greedy_chat_matches(void **state)
{
    if (!model) kit_skip(KIT_NO_MODEL);
    follow_chats(*state, 1, ANSWER);
}

static void all_greedy_chats_match(void **state)
{
    if (!model) kit_skip(KIT_NO_MODEL);
    follow_chats(*state, 5, IDS_MAX);
}

/* The model's template and tokenizer produce the expected ids of each conversation. */
static void chat_prompts_match(void **state)
{
    (void)state;
    if (!model) kit_skip(KIT_NO_MODEL);
    strata_template *chat_template = NULL;
    assert_int_equal(strata_template_of_model(model, &chat_template, NULL), STRATA_OK);
    const json_t *chats = json_object_get(expected, "chats");
    for (size_t i = 0; i < json_array_size(chats); i++) {
        const json_t *chat = json_array_get(chats, i);
        json_t *messages = json_object_get(chat, "messages");
        json_t *args = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", 1);
        char *text = json_dumps(args, 0);
        strata_token *found = NULL, wanted[IDS_MAX];
        size_t count = 0, wanted_count = read_ids(json_object_get(chat, "ids"), wanted);
        strata_error error;
        strata_status status =
            strata_template_tokenize(chat_template, model, text, strlen(text), NULL, &found, &count, &error);
        if (status != STRATA_OK) fail_msg("%s", error.message);
        assert_int_equal(count, wanted_count);
        assert_memory_equal(found, wanted, count * sizeof *found);
        strata_free(found);
        free(text);
        json_decref(args);
    }
    strata_template_free(chat_template);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_token_probabilities_match),
        cmocka_unit_test(chat_prompts_match),
        {.name = "a chat, best kernels", .test_func = greedy_chat_matches, .initial_state = &fastest},
        {.name = "a chat, reference", .test_func = greedy_chat_matches, .initial_state = &reference},
        {.name = "the whole text, reference", .test_func = whole_text_probabilities_match, .initial_state = &reference},
        {.name = "the whole text, best kernels", .test_func = whole_text_probabilities_match, .initial_state = &fastest},
        {.name = "all chats, reference", .test_func = all_greedy_chats_match, .initial_state = &reference},
        {.name = "all chats, best kernels", .test_func = all_greedy_chats_match, .initial_state = &fastest},
    };
    const struct CMUnitTest there[] = {
        {.name = "the whole text", .test_func = whole_text_probabilities_match, .initial_state = &backend},
        {.name = "all chats", .test_func = all_greedy_chats_match, .initial_state = &backend},
    };
    if (mirror_name()) return kit_run("smollm2", there, sizeof there / sizeof *there, set_up, tear_down, argc, argv);
    /* The whole check runs only on request and is otherwise not counted as skipped. The chat on the reference does not
     * run when tests are slow: next_token_probabilities_match runs the same operations. */
    size_t count = is_whole() ? 8 : kit_is_slow() ? 3 : 4;
    return kit_run("smollm2", tests, count, set_up, tear_down, argc, argv);
}
