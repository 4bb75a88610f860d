/* src/kv while the n-th allocation or the n-th call of a device fails, for every n until a run has no failure: a typed
 * error, nothing leaks, other conversations are as they were, and the same call works when it is tried again. */
#include "support/kv_rig.h"

#include <string.h>

#include "base/fault.h"

static const kv_shape shapes[] = {
    {.page = 4, .context = 64, .pool = 128, .conversations = 3, .batch = 8},
    {.page = 4, .context = 64, .pool = 128, .conversations = 3, .batch = 8, .windows = {6, 11}, .points = 8},
    {.page = 4, .context = 64, .pool = 128, .conversations = 3, .batch = 8, .windows = {6}, .state = true,
     .nextn = true, .points = 8},
    /* a pool that is too small for all, so that pages come back from the RAM tier */
    {.page = 4, .context = 64, .pool = 64, .conversations = 3, .batch = 8, .windows = {6}, .state = true, .points = 8,
     .far = true, .tier = 40},
    {.page = 4, .context = 64, .pool = 64, .conversations = 3, .batch = 8, .far = true, .tier = 40},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct scene {
    kv_rig rig;
    st_conversation *all[4];
    strata_token tokens[64], other[64];
    strata_status expected; /* of a failure */
    uint32_t failures;
} scene;

/* Notes a failed call; true: it is tried again. */
static bool failed(scene *s, strata_status status, const strata_error *error)
{
    if (status == STRATA_OK) return false;
    if (status != s->expected || error->message[0] == 0) fail_msg("status %d: %s", status, error->message);
    s->failures++;
    for (int i = 0; i < 4; i++)
        if (s->all[i]) kv_rig_check(&s->rig, s->all[i]);
    return true;
}

static void make(scene *s, int i)
{
    strata_error error;
    while (failed(s, st_conversation_new(s->rig.kv, &s->all[i], &error), &error)) assert_null(s->all[i]);
}

/* Runs a prompt in steps. A failed step leaves the conversation where it was; a failed seek leaves it empty. */
static void prompt(scene *s, int i, const strata_token *tokens, uint32_t count)
{
    strata_error error;
    st_seek seek;
    st_conversation *c = s->all[i];
    while (failed(s, st_conversation_seek(c, tokens, count, true, &seek, &error), &error))
        assert_int_equal(st_conversation_position(c), 0);
    assert_int_equal(st_conversation_position(c), seek.kept);
    kv_rig_check(&s->rig, c);
    for (uint32_t position; (position = st_conversation_position(c)) < count;) {
        uint32_t rows = count - position < 8 ? count - position : 8;
        while (failed(s, kv_rig_step(&s->rig, c, rows, &error), &error)) {
            assert_int_equal(st_conversation_position(c), position);
            assert_true(st_conversation_ready(c));
        }
        kv_rig_confirm(&s->rig);
        st_conversation_keep(c, ST_RESTORE_MARK); /* its failure only means that there is no point */
    }
}

static void branch(scene *s, int from, int to)
{
    strata_error error;
    while (failed(s, st_conversation_fork(s->all[from], s->all[to], &error), &error))
        assert_int_equal(st_conversation_position(s->all[to]), 0);
    assert_int_equal(st_conversation_position(s->all[to]), st_conversation_position(s->all[from]));
}

/* Every way to take, copy and bring back memory. */
static void play(scene *s)
{
    strata_error error;
    while (failed(s, kv_rig_new(&s->rig, &error), &error)) assert_null(s->rig.kv);
    make(s, 0);
    prompt(s, 0, s->tokens, 30);
    make(s, 1);
    prompt(s, 1, s->other, 40); /* shares a prefix, from a restore point */
    make(s, 2);
    branch(s, 0, 2);
    prompt(s, 2, s->tokens, 34); /* copies the tail page */
    make(s, 3);
    prompt(s, 3, s->other, 20); /* takes a slot */
    prompt(s, 0, s->other, 37);
    prompt(s, 1, s->tokens, 27);
}

static void run(const kv_shape *shape, bool far, uint64_t alloc, uint64_t call, scene *s)
{
    kv_shape with = *shape;
    with.far = far || shape->tier;
    *s = (scene){.expected = alloc ? STRATA_MEMORY : STRATA_DEVICE};
    kv_rig_tokens(s->tokens, 64, 1);
    kv_rig_tokens(s->other, 64, 500);
    memcpy(s->other, s->tokens, 26 * sizeof *s->other);
    kv_rig_prepare(&s->rig, &with);
    kv_rig_faults.fail_at = call;
    st_fault_arm(ST_FAULT_ALLOC, alloc, false);
    play(s);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    for (int i = 0; i < 4; i++) {
        kv_rig_check(&s->rig, s->all[i]);
        st_conversation_free(s->all[i]);
    }
    kv_rig_close(&s->rig);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    static scene s;
    for (size_t i = 0; i < SHAPES; i++)
        for (int far = 0; far < 2; far++) {
            uint64_t n = 0;
            do run(&shapes[i], far, ++n, 0, &s);
            while (s.failures > 0);
            assert_true(n > 30); /* st_kv_new and four conversations */
        }
}

static void failed_device_calls_are_errors(void **state)
{
    (void)state;
    static scene s;
    for (size_t i = 0; i < SHAPES; i++)
        for (int far = 0; far < 2; far++) {
            uint32_t failures = 0;
            uint64_t n = 0;
            do {
                run(&shapes[i], far, 0, ++n, &s);
                failures += s.failures; /* none if it was the copy of a restore point */
            } while (n <= kv_rig_faults.calls);
            assert_true(failures > 1);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_allocations_are_errors), cmocka_unit_test(failed_device_calls_are_errors),
    };
    return kit_run("kv, faults", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
