/* A long prefix that conversations have in common, for every family: with a mark at its end a second conversation runs what is
 * left and at most a page more, and forks hold its pages once. The models are the kit's with a longer context. */
#include "support/session_rig.h"

#include <stdio.h>
#include <string.h>

enum { PREFIX = 1000, COUNT = PREFIX + 70, CONTEXT = 2048, PAGE = SESSION_PAGE, FORKS = 8 };

static void open_family(session_rig *r, const char *name)
{
    strata_engine_options options = {.threads = 2, .batch = 128, .sessions = 2, .context = CONTEXT, .kv_type = "f32",
                                     .cpu = SESSION_FASTEST};
    session_rig_open_longer(r, name, CONTEXT, options);
}

static size_t reused_of(strata_session *session, const strata_token *tokens)
{
    static const size_t marks[] = {PREFIX};
    strata_prompt_options options = {.marks = marks, .mark_count = 1};
    size_t reused = 0;
    strata_error error;
    if (strata_session_prompt(session, tokens, COUNT, &options, &reused, &error) != STRATA_OK) fail_msg("%s", error.message);
    return reused;
}

static void second_conversation_reuses_the_prefix(void **state)
{
    const char *name = *state;
    session_rig r;
    strata_token other[COUNT];
    open_family(&r, name);
    for (int i = 0; i < COUNT; i++) other[i] = i < PREFIX ? session_ids[i] : 281 + i % 30;
    assert_int_equal(reused_of(r.session, session_ids), 0);
    strata_session *second = session_open(&r);
    size_t reused = reused_of(second, other);
    if (reused + PAGE < PREFIX || reused > PREFIX) fail_msg("%s: %zu of %d tokens were reused", name, reused, PREFIX);
    session_check_near(&r, second, other, COUNT);
    strata_session_free(r.session); /* also after the first has gone */
    r.session = session_open(&r);
    other[PREFIX] = 280;
    reused = reused_of(r.session, other);
    if (reused + PAGE < PREFIX || reused > PREFIX) fail_msg("%s: %zu of %d tokens were reused", name, reused, PREFIX);
    session_check_near(&r, r.session, other, COUNT);
    strata_session_free(second);
    session_rig_close(&r);
}

static void forks_hold_the_prefix_once(void **state)
{
    const char *name = *state;
    session_rig r;
    strata_session *forks[FORKS];
    strata_token longer[PREFIX + 2];
    open_family(&r, name);
    memcpy(longer, session_ids, sizeof longer);
    (void)session_prompt(r.session, session_ids, PREFIX);
    uint64_t pages = (PREFIX + PAGE - 1) / PAGE;
    assert_int_equal(session_kv_use(&r, 0, "held"), pages);
    for (int i = 0; i < FORKS; i++) assert_int_equal(strata_session_fork(r.session, &forks[i], NULL), STRATA_OK);
    assert_int_equal(session_kv_use(&r, 0, "held"), pages);
    for (int i = 0; i < FORKS; i++) { /* each has a last page of its own */
        longer[PREFIX + 1] = 281 + i;
        uint64_t ran = session_prompt(forks[i], longer, PREFIX + 2);
        if (ran > 2 + PAGE) fail_msg("%s: fork %d ran %u tokens", name, i, (unsigned)ran);
        assert_int_equal(session_kv_use(&r, 0, "held"), pages + 1 + (uint64_t)i);
    }
    longer[PREFIX + 1] = 281;
    session_check_near(&r, forks[0], longer, PREFIX + 2);
    for (int i = 0; i < FORKS; i++) strata_session_free(forks[i]);
    session_rig_close(&r);
}

int main(int argc, char **argv)
{
    static const char *const families[] = {"llama",    "mixtral",  "qwen2",        "qwen3",      "qwen2moe", "qwen3moe", "olmoe",
                                           "llama4",   "gemma4-e", "gemma4-dense", "gemma4-moe", "qwen35",   "qwen35moe"};
    enum { FAMILIES = sizeof families / sizeof *families };
    static struct CMUnitTest tests[2 * FAMILIES];
    static char names[2 * FAMILIES][64];
    size_t count = 0;
    for (size_t f = 0; f < FAMILIES; f += kit_is_slow() ? 4 : 1) /* under a sanitizer one family of each kind of layer */
        for (int k = 0; k < 2; k++, count++) {
            snprintf(names[count], sizeof *names, "%s: %s", families[f], k ? "forks" : "a second conversation");
            tests[count] = (struct CMUnitTest){.name = names[count],
                                               .test_func = k ? forks_hold_the_prefix_once : second_conversation_reuses_the_prefix,
                                               .initial_state = (void *)(uintptr_t)families[f]};
        }
    return kit_run("reuse", tests, count, NULL, NULL, argc, argv);
}
