/* Loading and running while the n-th allocation or file call fails, for every n until a run has no failure: a typed
 * error, no leak (checked by the sanitizer), and the same model works afterwards. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "strata.h"

enum { VOCAB = 320, PROMPT = 20, CONTEXT = 48 };

typedef struct rig {
    strata_model *model;
    strata_engine *engine;
    strata_session *session, *child;
} rig;

/* An operation that runs while calls fail. */
typedef struct attempt {
    const char *name;
    strata_status (*run)(rig *r, strata_error *error);
    int given; /* set_up creates: 1 the model, 2 also the engine, 3 also the session, 4 also runs the prompt */
    uint64_t failures_min; /* minimum number of failures */
} attempt;

static const char *model_name; /* file name in the kit */
static strata_token ids[PROMPT];
static float expected_logits[VOCAB]; /* logits of a run without failures */

static strata_engine_options engine_options(void)
{
    return (strata_engine_options){.threads = 2, .context = CONTEXT, .batch = 8, .cpu = "ref"};
}

static strata_status open_model(rig *r, strata_error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", kit_path(model_name));
    return strata_model_open(path, NULL, &r->model, error);
}

static strata_status new_engine(rig *r, strata_error *error)
{
    strata_engine_options options = engine_options();
    return strata_engine_new(r->model, &options, &r->engine, error);
}

static strata_status new_session(rig *r, strata_error *error)
{
    return strata_session_new(r->engine, &r->session, error);
}

static strata_status run_prompt(rig *r, strata_error *error)
{
    return strata_session_prompt(r->session, ids, PROMPT, NULL, NULL, error);
}

static strata_status first_decode(rig *r, strata_error *error)
{
    const float *logits;
    size_t count;
    strata_token longer[PROMPT + 1];
    memcpy(longer, ids, sizeof ids);
    longer[PROMPT] = 5;
    strata_status status = strata_session_prompt(r->session, longer, PROMPT + 1, NULL, NULL, error);
    return status == STRATA_OK ? strata_session_logits(r->session, &logits, &count, error) : status;
}

/* The fork answers as the session would; its first logits allocate the copy that they are returned in. */
static strata_status fork_session(rig *r, strata_error *error)
{
    const float *logits;
    size_t count;
    strata_status status = strata_session_fork(r->session, &r->child, error);
    if (status == STRATA_OK) status = strata_session_logits(r->child, &logits, &count, error);
    if (status == STRATA_OK) assert_memory_equal(logits, expected_logits, sizeof expected_logits);
    return status;
}

static bool count_text(void *context, const char *text, size_t length)
{
    (void)text;
    *(size_t *)context += length;
    return true;
}

static strata_status generate(rig *r, strata_error *error)
{
    static const char *const stops[] = {"first stop", "second stop"};
    size_t text_bytes = 0;
    strata_answer answer;
    strata_generation generation = {.sampling = STRATA_SAMPLING_DEFAULT, .max_tokens = 12, .stops = stops,
                                    .stop_count = 2, .ignore_end = true, .on_text = count_text, .context = &text_bytes};
    return strata_session_generate(r->session, &generation, &answer, error);
}

/* From opening the model to generating text: the n-th call may fail in any step. */
static strata_status everything(rig *r, strata_error *error)
{
    strata_status status = open_model(r, error);
    if (status == STRATA_OK) status = new_engine(r, error);
    if (status == STRATA_OK) status = new_session(r, error);
    if (status == STRATA_OK) status = run_prompt(r, error);
    return status == STRATA_OK ? generate(r, error) : status;
}

static void tear_down(rig *r)
{
    strata_session_free(r->child);
    strata_session_free(r->session);
    strata_engine_free(r->engine);
    strata_model_close(r->model);
    *r = (rig){0};
}

static void set_up(rig *r, int given)
{
    strata_error error;
    strata_status status = STRATA_OK;
    *r = (rig){0};
    if (given >= 1) status = open_model(r, &error);
    if (given >= 2 && status == STRATA_OK) status = new_engine(r, &error);
    if (given >= 3 && status == STRATA_OK) status = new_session(r, &error);
    if (given >= 4 && status == STRATA_OK) status = run_prompt(r, &error);
    if (status != STRATA_OK) fail_msg("%s", error.message);
}

/* Creates whatever part of the rig is missing; the prompt's logits must equal those of a run without failures. */
static void check_usable(rig *r)
{
    strata_error error;
    strata_status status = STRATA_OK;
    if (!r->model) status = open_model(r, &error);
    if (!r->engine && status == STRATA_OK) status = new_engine(r, &error);
    if (!r->session && status == STRATA_OK) status = new_session(r, &error);
    if (status == STRATA_OK) status = run_prompt(r, &error);
    const float *logits;
    size_t count;
    if (status == STRATA_OK) status = strata_session_logits(r->session, &logits, &count, &error);
    if (status != STRATA_OK) fail_msg("%s", error.message);
    assert_memory_equal(logits, expected_logits, sizeof expected_logits);
}

static void compute_expected(void)
{
    rig r;
    const float *logits;
    size_t count;
    set_up(&r, 4);
    assert_int_equal(strata_session_logits(r.session, &logits, &count, NULL), STRATA_OK);
    assert_int_equal(count, VOCAB);
    memcpy(expected_logits, logits, sizeof expected_logits);
    tear_down(&r);
}

static const attempt attempts[] = {
    {"engine", new_engine, 1, 5},      {"session", new_session, 2, 5}, {"prompt", run_prompt, 3, 0},
    {"first decode", first_decode, 4, 0}, {"fork", fork_session, 4, 5},
    {"generate", generate, 4, 8}, {"everything", everything, 0, 20},
};

static void check_faults(const attempt *a, st_fault_kind kind, strata_status expected, bool persistent)
{
    uint64_t failed = 0, tolerated = 0;
    for (uint64_t nth = 1;; nth++) {
        rig r;
        strata_error error = {0};
        set_up(&r, a->given);
        st_fault_arm(kind, nth, persistent);
        strata_status status = a->run(&r, &error);
        uint64_t calls = st_fault_calls(kind);
        st_fault_arm(kind, 0, false);
        if (status == STRATA_OK) {
            check_usable(&r);
            tear_down(&r);
            if (calls < nth) break; /* fewer than n calls: nothing failed */
            assert_true(++tolerated < 16); /* loading works without the stored measurement of this machine */
            continue;
        }
        failed++;
        if (status != expected) fail_msg("%s, call %u: status %d: %s", a->name, (unsigned)nth, status, error.message);
        assert_int_equal(error.status, expected);
        assert_true(error.message[0] != '\0');
        /* Checking after every failure would take long: check the first ones, then a sample. */
        if (nth < 10 || nth % 37 == 0) check_usable(&r);
        tear_down(&r);
        assert_true(nth < 100000);
    }
    assert_true(failed >= a->failures_min);
}

static void failed_allocation_is_reported(void **state)
{
    model_name = *state;
    for (int i = 0; i < PROMPT; i++) ids[i] = (i * 37 + 11) % 280;
    compute_expected();
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        check_faults(&attempts[i], ST_FAULT_ALLOC, STRATA_MEMORY, false);
        if (attempts[i].given) check_faults(&attempts[i], ST_FAULT_ALLOC, STRATA_MEMORY, true);
    }
}

static void failed_file_call_is_reported(void **state)
{
    model_name = *state;
    for (int i = 0; i < PROMPT; i++) ids[i] = (i * 37 + 11) % 280;
    compute_expected();
    const attempt opening = {"open", open_model, 0, 3}, all = {"everything", everything, 0, 3};
    for (int persistent = 0; persistent < 2; persistent++) {
        check_faults(&opening, ST_FAULT_FILE, STRATA_FILE, persistent);
        check_faults(&all, ST_FAULT_FILE, STRATA_FILE, persistent);
    }
}

int main(void)
{
    static char llama[] = "llama.gguf", recurrent[] = "qwen35moe.gguf";
    const struct CMUnitTest tests[] = {
        {.name = "llama: allocations", .test_func = failed_allocation_is_reported, .initial_state = llama},
        {.name = "qwen35moe: allocations", .test_func = failed_allocation_is_reported, .initial_state = recurrent},
        {.name = "llama: file calls", .test_func = failed_file_call_is_reported, .initial_state = llama},
        {.name = "qwen35moe: file calls", .test_func = failed_file_call_is_reported, .initial_state = recurrent},
    };
    return _cmocka_run_group_tests("engine fault", tests, sizeof tests / sizeof *tests, NULL, NULL);
}
