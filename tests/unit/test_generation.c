/* strata_session_generate through strata.h: which tokens are chosen, which are shown, and unusable logits. */
#include "support/kit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "strata.h"
#include "support/gguf_copy.h"

/* Tokens of the kit's models: <|im_start|> is a control token but no end token; the others are end tokens. */
enum { PROMPT = 24, LETTER_A = 32, ENDOFTEXT = 286, IM_START = 287, IM_END = 288, WIDTH = 64, VOCAB = 320 };

typedef struct rig {
    strata_model *model;
    strata_engine *engine;
    strata_session *session;
    strata_token ids[64];
} rig;

static void open_path(rig *r, const char *path)
{
    strata_error error;
    strata_engine_options options = {.cpu = "ref", .threads = 1, .context = 128, .sessions = 2};
    *r = (rig){0};
    if (strata_model_open(path, NULL, &r->model, &error) != STRATA_OK ||
        strata_engine_new(r->model, &options, &r->engine, &error) != STRATA_OK ||
        strata_session_new(r->engine, &r->session, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    for (int i = 0; i < 64; i++) r->ids[i] = (i * 37 + 11) % 280;
}

static void close_rig(rig *r)
{
    strata_session_free(r->session);
    strata_engine_free(r->engine);
    strata_model_close(r->model);
}

static bool append_text(void *context, const char *text, size_t length)
{
    return st_buf_append(context, text, length);
}

static strata_generation generation(st_buf *text, size_t max_tokens)
{
    return (strata_generation){.sampling = {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
                               .max_tokens = max_tokens, .on_text = append_text, .context = text};
}

static strata_answer answer_to(rig *r, const strata_generation *g)
{
    strata_answer answer;
    strata_error error;
    if (strata_session_prompt(r->session, r->ids, PROMPT, NULL, NULL, &error) != STRATA_OK ||
        strata_session_generate(r->session, g, &answer, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    return answer;
}

/* ---- control tokens and end tokens ------------------------------------------------------------------------------- */

static void control_tokens_are_not_text(void **state)
{
    (void)state;
    static const strata_bias bias = {.token = IM_START, .bias = 1e9f};
    rig r;
    open_path(&r, kit_path("llama.gguf"));
    for (int show = 0; show < 2; show++) {
        st_buf text = {0};
        strata_generation g = generation(&text, 2);
        g.sampling.biases = &bias;
        g.sampling.bias_count = 1;
        g.show_control = show;
        strata_answer answer = answer_to(&r, &g);
        assert_int_equal(answer.finish, STRATA_FINISH_LENGTH);
        assert_int_equal(answer.tokens, 2);
        assert_string_equal(st_buf_append_char(&text, '\0') ? text.data : NULL, show ? "<|im_start|><|im_start|>" : "");
        st_buf_free(&text);
    }
    close_rig(&r);
}

/* A stop string may name a control token, though its text is not shown. */
static void a_control_token_as_stop_string(void **state)
{
    (void)state;
    static const strata_bias bias = {.token = IM_START, .bias = 1e9f};
    static const char *const stops[] = {"never", "<|im_start|>"};
    rig r;
    open_path(&r, kit_path("llama.gguf"));
    for (int show = 0; show < 2; show++) {
        st_buf text = {0};
        strata_generation g = generation(&text, 5);
        g.sampling.biases = &bias;
        g.sampling.bias_count = 1;
        g.stops = stops;
        g.stop_count = 2;
        g.show_control = show;
        strata_answer answer = answer_to(&r, &g);
        assert_int_equal(answer.finish, STRATA_FINISH_END);
        assert_int_equal(answer.tokens, 1);
        assert_int_equal(text.length, 0);
        st_buf_free(&text);
    }
    close_rig(&r);
}

static void end_tokens_are_banned_with_ignore_end(void **state)
{
    (void)state;
    static const strata_bias biases[] = {{IM_END, 1e9f}, {ENDOFTEXT, 1e8f}, {LETTER_A, 1e7f}};
    for (int ignore = 0; ignore < 2; ignore++)
        for (int temperature = 0; temperature < 2; temperature++) {
            rig r;
            open_path(&r, kit_path("llama.gguf"));
            st_buf text = {0};
            strata_generation g = generation(&text, 3);
            g.sampling.temperature = (float)temperature;
            g.sampling.biases = biases;
            g.sampling.bias_count = 3;
            g.ignore_end = ignore;
            g.show_control = true;
            strata_answer answer = answer_to(&r, &g);
            assert_int_equal(answer.finish, ignore ? STRATA_FINISH_LENGTH : STRATA_FINISH_END);
            assert_int_equal(answer.tokens, ignore ? 3 : 0);
            assert_int_equal(text.length, ignore ? 3 : 0); /* three letters, and no <|im_end|> */
            st_buf_free(&text);
            close_rig(&r);
        }
}

/* ---- logits that cannot be used ---------------------------------------------------------------------------------- */

enum { BROKEN_TOKEN = 305 }; /* in no prompt */

/* The kit's model with NaN in the embedding of one token, and an output matrix of its own without. */
static void save_broken(char path[64])
{
    gguf_copy copy;
    gguf_copy_open(&copy, "llama");
    gguf_copy_tensor *embedding = gguf_copy_find(&copy, "token_embd.weight");
    size_t bytes = VOCAB * WIDTH * sizeof(float);
    float *broken = st_alloc(bytes);
    assert_non_null(broken);
    memcpy(broken, embedding->data, bytes);
    for (int i = 0; i < WIDTH; i++) broken[BROKEN_TOKEN * WIDTH + i] = NAN;
    gguf_copy_add(&copy, "output.weight", embedding->type, embedding->dim_count, embedding->ne, embedding->data);
    embedding->data = broken;
    gguf_copy_finish(&copy, true);
    gguf_copy_save(&copy, path);
    gguf_copy_close(&copy);
    st_free(broken);
}

static void nan_logits_are_an_error_and_the_session_goes_on(void **state)
{
    (void)state;
    static const strata_bias ban = {BROKEN_TOKEN, -INFINITY};
    char path[64];
    save_broken(path);
    rig r, whole;
    open_path(&r, path);
    open_path(&whole, kit_path("llama.gguf"));
    for (int temperature = 0; temperature < 2; temperature++) {
        st_buf text = {0}, expected = {0};
        strata_generation g = generation(&text, 8), same = generation(&expected, 8);
        g.sampling.temperature = same.sampling.temperature = (float)temperature;
        g.ignore_end = same.ignore_end = true;
        g.sampling.biases = same.sampling.biases = &ban;
        g.sampling.bias_count = same.sampling.bias_count = 1;
        g.sampling.seed = same.sampling.seed = 3;
        strata_token bad[] = {r.ids[0], r.ids[1], BROKEN_TOKEN, r.ids[3]};
        strata_answer answer = {.tokens = 77};
        strata_error error = {0};
        assert_int_equal(strata_session_prompt(r.session, bad, 4, NULL, NULL, &error), STRATA_OK);
        assert_int_equal(strata_session_generate(r.session, &g, &answer, &error), STRATA_RUNTIME);
        assert_int_equal(answer.tokens, 77);
        assert_int_equal(text.length, 0);
        if (!strstr(error.message, "NaN")) fail_msg("%s", error.message);
        (void)answer_to(&r, &g);
        (void)answer_to(&whole, &same);
        assert_true(text.length > 0);
        assert_int_equal(text.length, expected.length);
        assert_memory_equal(text.data, expected.data, text.length);
        st_buf_free(&text);
        st_buf_free(&expected);
    }
    close_rig(&r);
    close_rig(&whole);
    unlink(path);
}

/* ---- random streams and penalties -------------------------------------------------------------------------------- */

static char *draw_text(rig *r, uint64_t seed, bool go_on)
{
    st_buf text = {0};
    strata_generation g = generation(&text, 20);
    g.sampling.temperature = 1.5f;
    g.sampling.seed = seed;
    g.ignore_end = true;
    g.continue_random = go_on;
    (void)answer_to(r, &g);
    return st_buf_take(&text, NULL);
}

/* Turns of a chat with one seed draw different numbers, and the whole chat can be repeated. */
static void one_random_stream_spans_generations(void **state)
{
    (void)state;
    char *turns[2][3];
    for (int chat = 0; chat < 2; chat++) {
        rig r;
        open_path(&r, kit_path("llama.gguf"));
        for (int turn = 0; turn < 3; turn++) turns[chat][turn] = draw_text(&r, 7, true);
        char *again = draw_text(&r, 7, false); /* the seed starts a stream */
        assert_string_equal(again, turns[chat][0]);
        strata_free(again);
        close_rig(&r);
    }
    for (int turn = 0; turn < 3; turn++) {
        assert_string_equal(turns[0][turn], turns[1][turn]);
        if (turn) assert_string_not_equal(turns[0][turn], turns[0][turn - 1]);
    }
    for (int i = 0; i < 6; i++) strata_free(turns[i / 3][i % 3]);
}

static void penalties_over_the_whole_context(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {128, (1u << 20) + 1, UINT32_MAX};
    rig r;
    open_path(&r, kit_path("llama.gguf"));
    char *first = NULL;
    for (int i = 0; i < 3; i++) {
        st_buf text = {0};
        strata_generation g = generation(&text, 40);
        g.sampling.presence_penalty = 5;
        g.sampling.penalty_tokens = tokens[i];
        (void)answer_to(&r, &g);
        char *found = st_buf_take(&text, NULL);
        if (first) assert_string_equal(found, first);
        if (first) strata_free(found);
        else first = found;
    }
    strata_free(first);
    close_rig(&r);
}

/* ---- sampled tokens --------------------------------------------------------------------------------------------- */

typedef struct listener {
    strata_sampled seen[16];
    size_t count, stop_at;
    bool greedy; /* each token so far had the highest logit */
} listener;

static bool keep_token(void *context, const strata_sampled *sampled)
{
    listener *l = context;
    for (size_t i = 0; i < sampled->vocab; i++)
        if (sampled->logits[i] > sampled->logits[sampled->token]) l->greedy = false;
    l->seen[l->count++] = *sampled;
    return l->count != l->stop_at;
}

static void every_sampled_token_is_passed_on(void **state)
{
    (void)state;
    rig r;
    open_path(&r, kit_path("llama.gguf"));
    listener l = {.greedy = true};
    strata_generation g = {.sampling = {.top_p = 1, .repeat_penalty = 1}, .max_tokens = 5, .ignore_end = true,
                           .on_token = keep_token, .context = &l};
    assert_int_equal(answer_to(&r, &g).tokens, 5);
    assert_int_equal(l.count, 5);
    assert_true(l.greedy);
    assert_int_equal(l.seen[0].vocab, VOCAB);
    static const strata_bias end = {.token = IM_END, .bias = 1e9f};
    l = (listener){0};
    g.ignore_end = false;
    g.sampling.biases = &end;
    g.sampling.bias_count = 1;
    assert_int_equal(answer_to(&r, &g).tokens, 0);
    assert_true(l.count == 1 && l.seen[0].end && l.seen[0].control && l.seen[0].token == IM_END);
    l = (listener){.stop_at = 3};
    g.ignore_end = true;
    strata_answer answer = answer_to(&r, &g);
    assert_true(answer.tokens == 3 && l.count == 3 && answer.finish == STRATA_FINISH_CANCEL);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_tokens_are_not_text), cmocka_unit_test(a_control_token_as_stop_string),
        cmocka_unit_test(end_tokens_are_banned_with_ignore_end),
        cmocka_unit_test(nan_logits_are_an_error_and_the_session_goes_on),
        cmocka_unit_test(one_random_stream_spans_generations), cmocka_unit_test(penalties_over_the_whole_context),
        cmocka_unit_test(every_sampled_token_is_passed_on),
    };
    return cmocka_run_group_tests_name("generation", tests, NULL, NULL);
}
