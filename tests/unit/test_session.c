/* src/engine.c and src/session.c through strata.h: prompts and their reuse, scoring, generation, errors, and concurrent
 * sessions. */
#include "support/session_rig.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/sim/sim.h"
#include "base/alloc.h"
#include "base/fault.h"
#include "base/utf8.h"
#include "engine.h"

enum { VOCAB = SESSION_VOCAB, PAGE = SESSION_PAGE, WINDOW = 16, PROMPT = 24, END_TOKEN = 288 };

static const strata_token *const ids = session_ids;

/* ---- the engine -------------------------------------------------------------------------------------------------- */

static void invalid_engine_options_are_refused(void **state)
{
    (void)state;
    static const struct { strata_engine_options options; const char *says; } rows[] = {
        {{.batch = 1 << 20}, "batch"},
        {{.kv_type = "f8"}, "f32, f16, bf16 or q8_0, found f8"},
        {{.cpu = "abacus"}, "abacus"},
        {{.nextn = true}, "no NextN block"},
        {{.threads = 100000}, "threads"},
        {{.sessions = 100000}, "options.sessions"}};
    strata_model *model = NULL;
    strata_error error;
    assert_int_equal(strata_model_open(kit_path("llama.gguf"), NULL, &model, NULL), STRATA_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strata_engine *engine = NULL;
        assert_int_equal(strata_engine_new(model, &rows[i].options, &engine, &error), STRATA_USAGE);
        assert_null(engine);
        if (!strstr(error.message, rows[i].says)) fail_msg("%s: does not say %s", error.message, rows[i].says);
    }
    strata_model_close(model);
    strata_engine_free(NULL);
    strata_session_free(NULL);
}

static void a_vocabulary_alone_is_refused(void **state)
{
    (void)state;
    strata_model *model = NULL;
    strata_engine *engine = NULL;
    strata_error error;
    assert_int_equal(strata_model_open(kit_path("tokenizer/gpt-2.vocab.gguf"), NULL, &model, NULL), STRATA_OK);
    strata_status status = strata_engine_new(model, NULL, &engine, &error);
    assert_true(status == STRATA_FORMAT || status == STRATA_UNSUPPORTED);
    assert_null(engine);
    strata_model_close(model);
}

static void context_is_clamped_to_the_models_maximum(void **state)
{
    (void)state;
    static const struct { uint32_t asked, given; } rows[] = {{0, 512}, {100, 100}, {1, 1}, {512, 512}, {513, 512},
                                                             {UINT32_MAX, 512}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        session_rig r;
        session_rig_open(&r, "llama", (strata_engine_options){.context = rows[i].asked, .threads = 1});
        assert_int_equal(strata_engine_context(r.engine), rows[i].given);
        session_rig_close(&r);
    }
}

static void loading_reports_progress(void **state)
{
    (void)state;
    session_counter c = {0};
    session_rig r;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1, .progress = session_count, .progress_context = &c});
    assert_int_equal(c.done, c.total);
    assert_int_equal(c.total, st_gguf_tensor_bytes(st_model_gguf(r.model)));
    strata_engine *engine = NULL;
    strata_error error;
    c = (session_counter){.stop_at = 2};
    strata_engine_options options = {.threads = 1, .progress = session_count, .progress_context = &c};
    assert_int_equal(strata_engine_new(r.model, &options, &engine, &error), STRATA_INTERRUPTED);
    assert_null(engine);
    assert_int_equal(c.calls, 2);
    session_rig_close(&r);
}

static void an_engine_describes_itself(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "qwen35", (strata_engine_options){.threads = 2, .context = 100, .batch = 10, .kv_type = "q8_0"});
    char *text = NULL;
    assert_int_equal(strata_engine_describe(r.engine, &text, NULL), STRATA_OK);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "backend")), "cpu");
    assert_string_equal(json_string_value(json_object_get(json, "kernels")), "ref");
    assert_string_equal(json_string_value(json_object_get(json, "kv_type")), "Q8_0");
    assert_int_equal(json_integer_value(json_object_get(json, "threads")), 2);
    assert_int_equal(json_integer_value(json_object_get(json, "context")), 100);
    assert_int_equal(json_integer_value(json_object_get(json, "batch")), 10);
    json_int_t state_bytes = json_integer_value(json_object_get(json, "state_bytes"));
    assert_true(state_bytes >= 3 * (128 * 3 + 4 * 16 * 16) * 4);
    assert_true(json_integer_value(json_object_get(json, "restore_bytes")) >= 2 * state_bytes);
    json_t *use = json_object_get(json, "kv_use");
    assert_int_equal(json_integer_value(json_object_get(use, "page_tokens")), PAGE);
    assert_int_equal(json_integer_value(json_object_get(use, "slots")), 8);
    assert_int_equal(json_integer_value(json_object_get(use, "sessions")), 1);
    assert_int_equal(json_integer_value(json_object_get(use, "restore_points")), 0);
    assert_int_equal(json_integer_value(json_object_get(json, "weight_bytes")),
                     st_gguf_tensor_bytes(st_model_gguf(r.model)));
    json_int_t scratch_bytes = json_integer_value(json_object_get(json, "scratch_bytes"));
    assert_true(scratch_bytes > 10 * 64 * 4 && scratch_bytes < 64 << 20);
    double ops = json_number_value(json_object_get(json, "ops_per_token"));
    double prompt_ops = json_number_value(json_object_get(json, "prompt_ops_per_token"));
    assert_true(prompt_ops > 0 && ops >= prompt_ops + 2.0 * 64 * VOCAB); /* only a prompt's last token has logits */
    json_t *reads = json_object_get(json, "kv_reads");
    assert_int_equal(json_array_size(reads), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(reads, 0), "span")), 0);
    assert_true(json_integer_value(json_object_get(json_array_get(reads, 0), "bytes_per_position")) * 100 <=
                json_integer_value(json_object_get(json, "kv_bytes")));
    assert_int_equal(json_array_size(json_object_get(json, "profile")), 0);
    json_decref(json);
    strata_free(text);
    session_rig_close(&r);
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static void a_common_prefix_is_reused(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1, .batch = 8});
    strata_token other[64];
    memcpy(other, ids, sizeof other);
    assert_int_equal(session_prompt(r.session, ids, 20), 20);
    session_check(&r, r.session, ids, 20);
    assert_int_equal(session_prompt(r.session, ids, 20), 1); /* the last token again, for its logits */
    session_check(&r, r.session, ids, 20);
    assert_int_equal(session_prompt(r.session, ids, 33), 13);
    session_check(&r, r.session, ids, 33);
    assert_int_equal(session_prompt(r.session, ids, 5), 1);
    session_check(&r, r.session, ids, 5);
    other[3] = 300;
    assert_int_equal(session_prompt(r.session, other, 10), 7);
    session_check(&r, r.session, other, 10);
    other[0] = 301;
    assert_int_equal(session_prompt(r.session, other, 10), 10);
    assert_int_equal(session_prompt(r.session, other, 1), 1);
    session_check(&r, r.session, other, 1);
    session_rig_close(&r);
}

/* Recurrent state goes back only to restore points, which lie at the ends of pages. */
static void recurrent_models_return_to_restore_points(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen35", "qwen35moe"};
    for (int n = 0; n < 4; n += kit_is_slow() ? 3 : 1) {
        session_rig r;
        session_rig_open(&r, names[n % 2], (strata_engine_options){.threads = 1, .batch = 24, .kv_type = "f32", .nextn = n >= 2});
        strata_token other[3 * PAGE];
        memcpy(other, ids, sizeof other);
        assert_int_equal(session_prompt(r.session, ids, 20), 20);
        assert_int_equal(session_prompt(r.session, ids, 30), 10); /* continues */
        session_check(&r, r.session, ids, 30);
        other[25] = 300;
        assert_int_equal(session_prompt(r.session, other, 40), 40); /* no page is full */
        session_check(&r, r.session, other, 40);
        memcpy(other, ids, sizeof other);
        assert_int_equal(session_prompt(r.session, ids, 150), 150); /* leaves a point at the end of its last full page */
        session_check(&r, r.session, ids, 150);
        for (size_t changed = 2 * PAGE; changed < 150; changed += 10) {
            other[changed] = 301;
            assert_int_equal(session_prompt(r.session, other, 160), 160 - 2 * PAGE);
            session_check(&r, r.session, other, 160);
        }
        other[100] = 302; /* before that point: restarts, and leaves a point where the prompts diverge */
        assert_int_equal(session_prompt(r.session, other, 160), 160);
        other[90] = 303;
        assert_int_equal(session_prompt(r.session, other, 160), 160 - PAGE);
        session_check(&r, r.session, other, 160);
        session_rig_close(&r);
    }
}

/* Window layers keep the window of 16 positions, and at least a page behind it. */
static void windows_limit_cuts(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "gemma4-e", (strata_engine_options){.threads = 1, .batch = 24});
    strata_token other[320];
    memcpy(other, ids, sizeof other);
    assert_int_equal(session_prompt(r.session, ids, 300), 300);
    session_check(&r, r.session, ids, 300);
    other[298] = 300;
    assert_int_equal(session_prompt(r.session, other, 302), 4);
    session_check(&r, r.session, other, 302);
    other[4 * PAGE + WINDOW] = 300; /* attends to position 257 and later */
    assert_int_equal(session_prompt(r.session, other, 302), 302 - 4 * PAGE - WINDOW);
    session_check(&r, r.session, other, 302);
    other[3 * PAGE + 4] = 300; /* its window begins in the page before, which is gone; no point at 192 yet */
    assert_int_equal(session_prompt(r.session, other, 302), 302);
    other[3 * PAGE + 2] = 300;
    assert_int_equal(session_prompt(r.session, other, 302), 302 - 3 * PAGE);
    session_check(&r, r.session, other, 302);
    session_rig_close(&r);
}

static void invalid_prompts_are_refused(void **state)
{
    (void)state;
    session_rig r;
    strata_error error;
    const float *logits = NULL;
    size_t count = 0;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1, .context = 32, .batch = 8});
    assert_int_equal(strata_session_logits(r.session, &logits, &count, &error), STRATA_INPUT);
    assert_null(logits);
    assert_int_equal(strata_session_prompt(r.session, ids, 33, NULL, NULL, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "33"));
    assert_non_null(strstr(error.message, "32"));
    assert_int_equal(strata_session_prompt(r.session, ids, 0, NULL, NULL, &error), STRATA_INPUT);
    static const strata_token wrong[] = {-1, VOCAB, INT32_MAX, INT32_MIN};
    assert_int_equal(session_prompt(r.session, ids, 10), 10);
    for (int i = 0; i < 4; i++) {
        strata_token bad[3] = {1, 2, wrong[i]};
        assert_int_equal(strata_session_prompt(r.session, bad, 3, NULL, NULL, &error), STRATA_INPUT);
        assert_non_null(strstr(error.message, "token 2"));
        assert_int_equal(strata_session_score(r.session, bad, 3, false, NULL, NULL, &error), STRATA_INPUT);
        session_check(&r, r.session, ids, 10); /* the session is unchanged */
    }
    assert_int_equal(session_prompt(r.session, ids, 32), 22);
    session_check(&r, r.session, ids, 32);
    session_rig_close(&r);
}

static void a_prompt_can_be_cancelled(void **state)
{
    (void)state;
    session_rig r;
    strata_error error;
    session_rig_open(&r, "qwen35", (strata_engine_options){.threads = 1, .batch = 8, .kv_type = "f32"});
    session_counter c = {.stop_at = 2};
    strata_prompt_options watched = {.progress = session_count, .context = &c};
    assert_int_equal(strata_session_prompt(r.session, ids, 100, &watched, NULL, &error), STRATA_INTERRUPTED);
    assert_in_range(c.done, 16, 32); /* a call may tell of two steps */
    assert_int_equal(c.calls, 2);
    assert_int_equal(c.total, 100);
    uint64_t left = session_prompt(r.session, ids, 100); /* continues where it stopped, two steps later at most */
    assert_in_range(left, 100 - c.done - 16, 100 - c.done);
    assert_int_equal(left % 8, 100 % 8);
    session_check(&r, r.session, ids, 100);
    c = (session_counter){.stop_at = 1};
    assert_int_equal(strata_session_prompt(r.session, ids + 3, 40, &watched, NULL, &error), STRATA_INTERRUPTED);
    (void)session_logits(r.session); /* and logits are available */
    session_check(&r, r.session, ids + 3, 40);
    session_rig_close(&r);
}

/* ---- a device that fails ----------------------------------------------------------------------------------------- */

static void a_session_restarts_after_an_error(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma4-e", "qwen35moe"};
    for (int n = 0; n < 3; n++)
        for (uint64_t nth = 1; nth <= 3; nth++) {
            session_rig r;
            strata_error error;
            strata_placement placement = STRATA_PLACEMENT_DEFAULT;
            placement.device = "sim";
            placement.vram_bytes = (uint64_t)1 << 30;
            session_rig_open(&r, names[n], (strata_engine_options){.threads = 1, .batch = 8, .kv_type = "f32", .placement = &placement});
            st_sim_fail_at(r.engine->backends.world, ST_SIM_LAUNCH, nth);
            assert_int_equal(strata_session_prompt(r.session, ids, 24, NULL, NULL, &error), STRATA_DEVICE);
            assert_int_equal(error.status, STRATA_DEVICE);
            assert_in_range(session_prompt(r.session, ids, 24), 8, 24); /* steps that had ended may be kept */
            session_check(&r, r.session, ids, 24);
            session_rig_close(&r);
        }
}

/* ---- scoring ----------------------------------------------------------------------------------------------------- */

typedef struct scores {
    float *rows; /* [rows, VOCAB] */
    size_t count, stop_at;
} scores;

static bool take_row(void *context, size_t row, const float *logits, size_t vocab)
{
    scores *s = context;
    assert_int_equal(row, s->count);
    assert_int_equal(vocab, VOCAB);
    memcpy(s->rows + s->count++ * VOCAB, logits, VOCAB * sizeof *logits);
    return s->count != s->stop_at;
}

static void scoring(void **state)
{
    (void)state;
    enum { COUNT = 45 };
    session_rig r;
    strata_error error;
    scores s = {.rows = st_alloc_array(COUNT * VOCAB, sizeof(float))};
    assert_non_null(s.rows);
    session_rig_open(&r, "qwen35", (strata_engine_options){.threads = 1, .batch = 20, .kv_type = "f32", .nextn = true});
    assert_int_equal(session_prompt(r.session, ids + 7, 9), 9); /* scoring restarts at position 0 */
    if (strata_session_score(r.session, ids, COUNT, false, take_row, &s, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    assert_int_equal(s.count, COUNT);
    strata_session *other = session_open(&r);
    for (size_t i = 1; i <= COUNT; i++) {
        (void)session_prompt(other, ids, i);
        assert_memory_equal(session_logits(other), s.rows + (i - 1) * VOCAB, VOCAB * sizeof(float));
    }
    assert_memory_equal(session_logits(r.session), s.rows + (COUNT - 1) * VOCAB, VOCAB * sizeof(float));
    s.count = 0;
    assert_int_equal(strata_session_score(r.session, ids, COUNT, true, take_row, &s, &error), STRATA_OK);
    assert_int_equal(s.count, COUNT - 1);
    s.count = 0;
    s.stop_at = 25;
    assert_int_equal(strata_session_score(r.session, ids, COUNT, false, take_row, &s, &error), STRATA_INTERRUPTED);
    assert_int_equal(s.count, 25);
    (void)session_prompt(r.session, ids, COUNT);
    session_check(&r, r.session, ids, COUNT);
    strata_session_free(other);
    session_rig_close(&r);
    session_rig_open(&r, "qwen35", (strata_engine_options){.threads = 1});
    assert_int_equal(strata_session_score(r.session, ids, COUNT, true, take_row, &s, &error), STRATA_USAGE);
    session_rig_close(&r);
    st_free(s.rows);
}

/* ---- generating -------------------------------------------------------------------------------------------------- */

typedef struct listener {
    st_buf text;
    size_t calls, cancel_at;
    uint64_t allocations; /* at the second call, and whether there were more since */
    bool watch, allocated;
} listener;

static bool hear(void *context, const char *text, size_t length)
{
    listener *l = context;
    assert_true(length > 0);
    assert_int_equal(st_utf8_valid_prefix(text, length), length);
    if (l->calls >= 2 && l->watch && st_fault_calls(ST_FAULT_ALLOC) != l->allocations) l->allocated = true;
    st_buf_append(&l->text, text, length);
    l->calls++;
    l->allocations = st_fault_calls(ST_FAULT_ALLOC); /* after the test's own allocations */
    return l->calls != l->cancel_at;
}

static strata_generation greedy(listener *l, size_t max_tokens)
{
    return (strata_generation){.sampling = {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
                               .max_tokens = max_tokens, .ignore_end = true, .on_text = hear, .context = l};
}

static strata_answer generate(strata_session *session, const strata_generation *generation)
{
    strata_answer answer;
    strata_error error;
    if (strata_session_generate(session, generation, &answer, &error) != STRATA_OK) fail_msg("%s", error.message);
    return answer;
}

/* The text of a greedy answer. */
static char *greedy_text(session_rig *r, size_t max_tokens)
{
    listener l = {0};
    strata_generation g = greedy(&l, max_tokens);
    (void)session_prompt(r->session, ids, PROMPT);
    strata_answer answer = generate(r->session, &g);
    assert_int_equal(answer.finish, STRATA_FINISH_LENGTH);
    assert_int_equal(answer.tokens, max_tokens);
    assert_true(answer.first_seconds >= 0 && answer.first_seconds <= answer.seconds);
    return st_buf_take(&l.text, NULL);
}

static void greedy_picks_the_largest_logit(void **state)
{
    (void)state;
    enum { COUNT = 20 };
    session_rig r;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1});
    strata_token sequence[PROMPT + COUNT];
    memcpy(sequence, ids, sizeof *ids * PROMPT);
    for (size_t i = 0; i < COUNT; i++) {
        (void)session_prompt(r.session, sequence, PROMPT + i);
        const float *logits = session_logits(r.session);
        strata_token best = 0;
        for (strata_token t = 1; t < VOCAB; t++)
            if (logits[t] > logits[best]) best = t;
        sequence[PROMPT + i] = best;
    }
    char *text = greedy_text(&r, COUNT), *expected = NULL;
    size_t length;
    assert_int_equal(strata_detokenize(r.model, sequence + PROMPT, COUNT, &expected, &length, NULL), STRATA_OK);
    assert_string_equal(text, expected);
    assert_int_equal(session_prompt(r.session, sequence, PROMPT + COUNT), 1); /* the answer is part of the conversation */
    strata_free(text);
    strata_free(expected);
    session_rig_close(&r);
}

/* A stop string that spans tokens: the text before it is shown, and no part of it. */
static void stop_strings(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1});
    char *text = greedy_text(&r, 30);
    size_t length = strlen(text);
    assert_true(length > 12);
    for (size_t start = 0; start + 4 < length; start += 3) {
        char stop[5] = {0};
        memcpy(stop, text + start, 4);
        if (st_utf8_valid_prefix(stop, 4) != 4) continue;
        const char *const stops[] = {"\x01\x02never", stop};
        listener l = {0};
        strata_generation g = greedy(&l, 30);
        g.stops = stops;
        g.stop_count = 2;
        (void)session_prompt(r.session, ids, PROMPT);
        strata_answer answer = generate(r.session, &g);
        assert_int_equal(answer.finish, STRATA_FINISH_END);
        assert_true(answer.tokens <= 30);
        size_t shown = (size_t)(strstr(text, stop) - text);
        assert_int_equal(l.text.length, shown);
        if (shown) assert_memory_equal(l.text.data, text, shown);
        st_buf_free(&l.text);
    }
    strata_free(text);
    session_rig_close(&r);
}

/* Text that was held back as the start of a stop string is shown at the end. */
static void the_start_of_a_stop_string_is_shown_at_the_end(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1});
    char *text = greedy_text(&r, 10), stop[4096];
    snprintf(stop, sizeof stop, "%s and more", text);
    const char *const stops[] = {stop};
    listener l = {0};
    strata_generation g = greedy(&l, 10);
    g.stops = stops;
    g.stop_count = 1;
    (void)session_prompt(r.session, ids, PROMPT);
    assert_int_equal(generate(r.session, &g).finish, STRATA_FINISH_LENGTH);
    assert_int_equal(l.calls, 1);
    assert_int_equal(l.text.length, strlen(text));
    assert_memory_equal(l.text.data, text, l.text.length);
    st_buf_free(&l.text);
    strata_free(text);
    session_rig_close(&r);
}

static void an_end_token_ends_the_answer(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1, .context = 64});
    const strata_bias end = {END_TOKEN, 1e9f};
    listener l = {0};
    strata_generation g = greedy(&l, 5);
    g.sampling.biases = &end;
    g.sampling.bias_count = 1;
    g.ignore_end = false;
    (void)session_prompt(r.session, ids, PROMPT);
    strata_answer answer = generate(r.session, &g);
    assert_int_equal(answer.finish, STRATA_FINISH_END);
    assert_int_equal(answer.tokens, 0);
    assert_int_equal(l.calls, 0);
    g.ignore_end = true;
    answer = generate(r.session, &g);
    assert_int_equal(answer.finish, STRATA_FINISH_LENGTH);
    assert_int_equal(answer.tokens, 5);
    st_buf_free(&l.text);
    session_rig_close(&r);
}

static void a_full_context_ends_the_answer(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma4-e", "qwen35"};
    for (int n = 0; n < 3; n++) {
        session_rig r;
        session_rig_open(&r, names[n], (strata_engine_options){.threads = 1, .context = 32});
        for (size_t length = 30; length <= 32; length++) {
            strata_generation g = greedy(NULL, 0);
            g.on_text = NULL;
            (void)session_prompt(r.session, ids, length);
            strata_answer answer = generate(r.session, &g);
            assert_int_equal(answer.finish, STRATA_FINISH_LENGTH);
            assert_int_equal(answer.tokens, 32 - length + 1); /* the last token needs no position */
        }
        assert_int_equal(session_prompt(r.session, ids + 100, 32), 32);
        session_check(&r, r.session, ids + 100, 32);
        session_rig_close(&r);
    }
}

static void the_callback_cancels_the_answer(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "qwen35moe", (strata_engine_options){.threads = 1, .kv_type = "f32"});
    listener l = {.cancel_at = 3};
    strata_generation g = greedy(&l, 50);
    (void)session_prompt(r.session, ids, PROMPT);
    strata_answer answer = generate(r.session, &g);
    assert_int_equal(answer.finish, STRATA_FINISH_CANCEL);
    assert_int_equal(l.calls, 3);
    assert_true(answer.tokens >= 3 && answer.tokens < 50);
    (void)session_prompt(r.session, ids, PROMPT + 8);
    session_check(&r, r.session, ids, PROMPT + 8);
    st_buf_free(&l.text);
    session_rig_close(&r);
}

static void a_seed_determines_the_answer(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "qwen3", (strata_engine_options){.threads = 1});
    char *texts[4];
    static const uint64_t seed[] = {7, 7, 8, STRATA_SEED_RANDOM};
    for (int i = 0; i < 4; i++) {
        listener l = {0};
        strata_generation g = greedy(&l, 40);
        g.sampling = (strata_sampling){.temperature = 1.5f, .top_p = 1, .repeat_penalty = 1, .seed = seed[i]};
        (void)session_prompt(r.session, ids, PROMPT);
        (void)generate(r.session, &g);
        texts[i] = st_buf_take(&l.text, NULL);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_string_not_equal(texts[0], texts[2]);
    assert_string_not_equal(texts[0], texts[3]);
    for (int i = 0; i < 4; i++) strata_free(texts[i]);
    session_rig_close(&r);
}

static void invalid_generations_are_refused(void **state)
{
    (void)state;
    session_rig r;
    strata_error error;
    session_rig_open(&r, "llama", (strata_engine_options){.threads = 1});
    strata_answer answer = {.tokens = 12345, .seconds = -1};
    strata_generation g = greedy(NULL, 5);
    g.on_text = NULL;
    assert_int_equal(strata_session_generate(r.session, &g, &answer, &error), STRATA_INPUT); /* no prompt to continue */
    (void)session_prompt(r.session, ids, PROMPT);
    g.sampling.temperature = -1;
    assert_int_equal(strata_session_generate(r.session, &g, &answer, &error), STRATA_USAGE);
    assert_non_null(strstr(error.message, "temperature"));
    g.sampling.temperature = 0;
    const char *const empty[] = {""};
    g.stops = empty;
    g.stop_count = 1;
    assert_int_equal(strata_session_generate(r.session, &g, &answer, &error), STRATA_USAGE);
    assert_non_null(strstr(error.message, "stop string"));
    assert_true(answer.tokens == 12345 && answer.seconds == -1); /* outputs are left as they were */
    g.stop_count = 0;
    assert_int_equal(generate(r.session, &g).tokens, 5);
    session_rig_close(&r);
}

static void generating_allocates_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma4-moe", "qwen35moe"};
    for (int n = 0; n < 3; n++) {
        session_rig r;
        session_rig_open(&r, names[n], (strata_engine_options){.threads = 2});
        (void)session_prompt(r.session, ids, PROMPT);
        (void)session_logits(r.session); /* the first call allocates the copy that it returns */
        st_fault_arm(ST_FAULT_ALLOC, UINT64_MAX, false);
        for (size_t i = 1; i < 20; i++) {
            assert_int_equal(strata_session_prompt(r.session, ids, PROMPT + i, NULL, NULL, NULL), STRATA_OK);
            (void)session_logits(r.session);
        }
        assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
        listener l = {.watch = true};
        strata_generation g = greedy(&l, 60);
        g.sampling = (strata_sampling)STRATA_SAMPLING_DEFAULT;
        g.sampling.seed = 3;
        (void)generate(r.session, &g);
        assert_true(l.calls > 10);
        assert_false(l.allocated);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        st_buf_free(&l.text);
        session_rig_close(&r);
    }
}

/* The same prompt again, and again after an answer to it: attention alone runs the last token, for its logits. Models with
 * recurrent state run from the last page that they have a restore point at. */
static void a_repeated_prompt_is_reused(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen35", "qwen35"};
    for (int n = 0; n < 3; n++) {
        session_rig r;
        enum { COUNT = PAGE + 20 };
        uint64_t again = n == 0 ? 1 : COUNT - PAGE;
        session_rig_open(&r, names[n], (strata_engine_options){.threads = 1, .batch = 24, .kv_type = "f32", .nextn = n == 2});
        assert_int_equal(session_prompt(r.session, ids, COUNT), COUNT);
        for (int round = 0; round < 6; round++) {
            assert_int_equal(session_prompt(r.session, ids, COUNT), again);
            session_check(&r, r.session, ids, COUNT);
            listener l = {0};
            strata_generation generation = greedy(&l, 50); /* an answer passes the end of a page */
            if (round % 2 == 0) (void)generate(r.session, &generation);
            st_buf_free(&l.text);
        }
        assert_int_equal(session_prompt(r.session, ids, COUNT), again);
        for (size_t count = COUNT + 1; count < COUNT + 20; count++) assert_int_equal(session_prompt(r.session, ids, count), 1);
        assert_int_equal(session_prompt(r.session, ids, COUNT), again);
        session_check(&r, r.session, ids, COUNT);
        session_rig_close(&r);
    }
}

/* ---- side by side ------------------------------------------------------------------------------------------------ */

typedef struct talker {
    strata_engine *engine;
    int number;
    char *texts[3];
    bool failed;
} talker;

/* No assertions in here: cmocka is not thread-safe. */
static bool collect(void *context, const char *text, size_t length)
{
    return st_buf_append(context, text, length);
}

static void *talk(void *context)
{
    talker *t = context;
    strata_session *session = NULL;
    if (strata_session_new(t->engine, &session, NULL) != STRATA_OK) t->failed = true;
    for (int i = 0; i < 3 && !t->failed; i++) {
        st_buf text = {0};
        strata_answer answer;
        strata_generation g = {.sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1,
                                            .seed = (uint64_t)(t->number * 10 + i)},
                               .max_tokens = 25, .ignore_end = true, .on_text = collect, .context = &text};
        if (strata_session_prompt(session, ids + t->number * 5, (size_t)(20 + 10 * i), NULL, NULL, NULL) != STRATA_OK ||
            strata_session_generate(session, &g, &answer, NULL) != STRATA_OK)
            t->failed = true;
        t->texts[i] = st_buf_take(&text, NULL);
    }
    strata_session_free(session);
    return NULL;
}

static void sessions_are_independent(void **state)
{
    (void)state;
    enum { TALKERS = 4 };
    static const char *const names[] = {"llama", "qwen35moe", "qwen3moe"};
    for (int n = 0; n < 3; n++) {
        session_rig r;
        strata_placement placement = STRATA_PLACEMENT_DEFAULT; /* the last one's sessions share an expert cache */
        placement.device = n == 2 ? "sim" : NULL;
        placement.vram_bytes = n == 2 ? (uint64_t)1 << 30 : 0;
        placement.moe = n == 2 ? "cache" : NULL;
        placement.expert_slots = n == 2 ? 3 : -1;
        /* GPU and CPU differ in an expert's last bits, and timing decides which of them runs it. Float32 KV keeps the
         * difference that small; a narrower type may round it up to its own step, and another token is drawn. */
        session_rig_open(&r, names[n], (strata_engine_options){.threads = 2, .batch = 8, .placement = &placement,
                                                       .kv_type = n == 2 ? "f32" : NULL, .expert_stats = n == 2});
        talker alone[TALKERS], together[TALKERS];
        pthread_t threads[TALKERS];
        for (int i = 0; i < TALKERS; i++) {
            alone[i] = together[i] = (talker){.engine = r.engine, .number = i};
            talk(&alone[i]);
        }
        for (int i = 0; i < TALKERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, talk, &together[i]), 0);
        for (int i = 0; i < TALKERS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < TALKERS; i++) {
            assert_false(alone[i].failed || together[i].failed);
            for (int k = 0; k < 3; k++) {
                assert_string_equal(alone[i].texts[k], together[i].texts[k]);
                strata_free(alone[i].texts[k]);
                strata_free(together[i].texts[k]);
            }
        }
        session_rig_close(&r);
    }
}

/* Counters are read while another thread updates them: the thread sanitizer detects a race. */
static void an_engine_is_described_while_a_session_runs(void **state)
{
    (void)state;
    session_rig r;
    session_rig_open(&r, "qwen3moe", (strata_engine_options){.threads = 2, .batch = 8, .expert_stats = true, .profile = true});
    talker other = {.engine = r.engine, .number = 1};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, talk, &other), 0);
    for (int i = 0; i < 5; i++) {
        char *text = NULL;
        assert_int_equal(strata_engine_describe(r.engine, &text, NULL), STRATA_OK);
        strata_free(text);
    }
    pthread_join(thread, NULL);
    assert_false(other.failed);
    for (int k = 0; k < 3; k++) strata_free(other.texts[k]);
    session_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_engine_options_are_refused), cmocka_unit_test(a_vocabulary_alone_is_refused),
        cmocka_unit_test(context_is_clamped_to_the_models_maximum), cmocka_unit_test(loading_reports_progress),
        cmocka_unit_test(an_engine_describes_itself), cmocka_unit_test(a_common_prefix_is_reused),
        cmocka_unit_test(recurrent_models_return_to_restore_points), cmocka_unit_test(a_repeated_prompt_is_reused),
        cmocka_unit_test(windows_limit_cuts), cmocka_unit_test(invalid_prompts_are_refused),
        cmocka_unit_test(a_prompt_can_be_cancelled), cmocka_unit_test(a_session_restarts_after_an_error),
        cmocka_unit_test(scoring), cmocka_unit_test(greedy_picks_the_largest_logit), cmocka_unit_test(stop_strings),
        cmocka_unit_test(the_start_of_a_stop_string_is_shown_at_the_end),
        cmocka_unit_test(an_end_token_ends_the_answer), cmocka_unit_test(a_full_context_ends_the_answer),
        cmocka_unit_test(the_callback_cancels_the_answer), cmocka_unit_test(a_seed_determines_the_answer),
        cmocka_unit_test(invalid_generations_are_refused), cmocka_unit_test(generating_allocates_nothing),
        cmocka_unit_test(sessions_are_independent), cmocka_unit_test(an_engine_is_described_while_a_session_runs),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
