#include "support/session_rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/gguf_copy.h"

strata_token session_ids[SESSION_IDS];

static void open_path(session_rig *r, const char *path, strata_engine_options options)
{
    strata_error error;
    *r = (session_rig){0};
    if (!options.cpu) options.cpu = "ref";
    else if (strcmp(options.cpu, SESSION_FASTEST) == 0) options.cpu = NULL;
    if (!options.sessions) options.sessions = 8;
    if (strata_model_open(path, NULL, &r->model, &error) != STRATA_OK ||
        strata_engine_new(r->model, &options, &r->engine, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    r->session = session_open(r);
    for (uint32_t i = 0; i < SESSION_IDS; i++) session_ids[i] = (strata_token)((i * 37 + i / 280 * 5 + 11) % 280);
}

void session_rig_open(session_rig *r, const char *name, strata_engine_options options)
{
    char file[64];
    snprintf(file, sizeof file, "%s.gguf", name);
    open_path(r, kit_path(file), options);
}

void session_rig_open_longer(session_rig *r, const char *name, uint32_t context, strata_engine_options options)
{
    gguf_copy copy;
    char path[64];
    gguf_copy_open(&copy, name);
    gguf_copy_set_u32(&copy, ".context_length", context);
    gguf_copy_finish(&copy, true);
    gguf_copy_save(&copy, path);
    gguf_copy_close(&copy);
    open_path(r, path, options);
    unlink(path); /* it is mapped */
}

void session_rig_close(session_rig *r)
{
    strata_session_free(r->session);
    strata_engine_free(r->engine);
    strata_model_close(r->model);
    *r = (session_rig){0};
}

strata_session *session_open(const session_rig *r)
{
    strata_session *session = NULL;
    strata_error error;
    if (strata_session_new(r->engine, &session, &error) != STRATA_OK) fail_msg("%s", error.message);
    return session;
}

bool session_count(void *context, uint64_t done, uint64_t total)
{
    session_counter *c = context;
    c->calls++;
    c->done = done;
    c->total = total;
    return c->calls != c->stop_at;
}

uint64_t session_prompt(strata_session *session, const strata_token *tokens, size_t count)
{
    session_counter c = {0};
    size_t reused = SIZE_MAX;
    strata_error error;
    strata_prompt_options options = {.progress = session_count, .context = &c};
    if (strata_session_prompt(session, tokens, count, &options, &reused, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(c.done, c.total);
    assert_int_equal(c.total, count - reused);
    return c.total;
}

const float *session_logits(strata_session *session)
{
    const float *logits;
    size_t count;
    strata_error error;
    if (strata_session_logits(session, &logits, &count, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(count, SESSION_VOCAB);
    return logits;
}

/* Keeps the last row. */
static bool take_row(void *context, size_t row, const float *logits, size_t vocab)
{
    (void)row;
    memcpy(context, logits, vocab * sizeof *logits);
    return true;
}

void session_cold(const session_rig *r, const strata_token *tokens, size_t count, float *logits)
{
    strata_session *fresh = session_open(r);
    strata_error error;
    if (strata_session_score(fresh, tokens, count, false, take_row, logits, &error) != STRATA_OK) fail_msg("%s", error.message);
    strata_session_free(fresh);
}

void session_check(const session_rig *r, strata_session *session, const strata_token *tokens, size_t count)
{
    static float cold[SESSION_VOCAB];
    session_cold(r, tokens, count, cold);
    assert_memory_equal(session_logits(session), cold, sizeof cold);
}

void session_check_near(const session_rig *r, strata_session *session, const strata_token *tokens, size_t count)
{
    static float cold[SESSION_VOCAB];
    session_cold(r, tokens, count, cold);
    const float *found = session_logits(session);
    double error = 0, norm = 0;
    for (int i = 0; i < SESSION_VOCAB; i++) {
        error += ((double)found[i] - cold[i]) * ((double)found[i] - cold[i]);
        norm += (double)cold[i] * cold[i];
    }
    if (!(sqrt(error / norm) <= 2e-4)) fail_msg("relative error %g", sqrt(error / norm));
}

uint64_t session_kv_use(const session_rig *r, int pool, const char *key)
{
    char *text = NULL;
    assert_int_equal(strata_engine_describe(r->engine, &text, NULL), STRATA_OK);
    json_t *json = json_loads(text, 0, NULL);
    const json_t *use = json_object_get(json, "kv_use");
    if (pool >= 0) use = json_array_get(json_object_get(use, "pools"), (size_t)pool);
    const json_t *value = json_object_get(use, key);
    assert_true(json_is_integer(value));
    uint64_t found = (uint64_t)json_integer_value(value);
    json_decref(json);
    strata_free(text);
    return found;
}
