/* src/kv/conversation.c: pages, slots and restore points of conversations, with rows that are written by hand. */
#include "support/kv_rig.h"

#include <stdio.h>
#include <string.h>

static const kv_shape full = {.page = 4, .context = 64, .pool = 64, .conversations = 2, .batch = 8};
static const kv_shape windowed = {.page = 4, .context = 64, .pool = 128, .conversations = 2, .batch = 8, .windows = {6},
                                  .points = 8};
static const kv_shape recurrent = {.page = 4, .context = 64, .pool = 128, .conversations = 2, .batch = 8, .state = true,
                                   .points = 8};
static const kv_shape nextn = {.page = 4, .context = 64, .pool = 128, .conversations = 2, .batch = 8, .nextn = true,
                               .points = 8};

static uint32_t held(const kv_rig *rig, uint32_t pool)
{
    return st_kv_count(rig->kv).pools[pool].held;
}

static uint32_t seek(kv_rig *rig, st_conversation *c, const strata_token *tokens, uint32_t count, uint32_t *diverged)
{
    st_seek found = {0};
    assert_int_equal(st_conversation_seek(c, tokens, count, true, &found, NULL), STRATA_OK);
    assert_int_equal(found.kept, st_conversation_position(c));
    kv_rig_check(rig, c);
    if (diverged) *diverged = found.diverged;
    return found.kept;
}

/* A new conversation with a prompt. */
static st_conversation *prompted(kv_rig *rig, const strata_token *tokens, uint32_t count)
{
    st_conversation *c = kv_rig_conversation(rig);
    kv_rig_prompt(rig, c, tokens, count);
    return c;
}

/* --- full attention ----------------------------------------------------------------------------------------------- */

static void a_longer_prompt_runs_what_is_new(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_open(&rig, &full);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *c = prompted(&rig, tokens, 10);
    assert_int_equal(held(&rig, 0), 3);
    assert_int_equal(kv_rig_prompt(&rig, c, tokens, 23), 10);
    assert_int_equal(held(&rig, 0), 6);
    assert_int_equal(seek(&rig, c, tokens, 23, NULL), 22); /* the last token runs again: its logits are wanted */
    assert_int_equal(seek(&rig, c, tokens, 0, NULL), 0);
    assert_int_equal(held(&rig, 0), 0);
    st_conversation_free(c);
    kv_rig_close(&rig);
}

/* A tail page that nobody else can find is cut in place; a published one is copied and stays in the prefix cache. */
static void a_conversation_is_cut_at_any_token(void **state)
{
    (void)state;
    for (uint32_t cut = 1; cut < 22; cut++) {
        kv_rig rig;
        strata_token tokens[64], other[64];
        kv_rig_open(&rig, &full);
        kv_rig_tokens(tokens, 64, 1);
        kv_rig_tokens(other, 64, 500);
        memcpy(other, tokens, cut * sizeof *other);
        st_conversation *c = prompted(&rig, tokens, 22);
        st_kv_use before = st_kv_count(rig.kv);
        assert_int_equal(kv_rig_prompt(&rig, c, other, cut + 2), cut);
        kv_rig_check(&rig, c);
        st_kv_use after = st_kv_count(rig.kv);
        assert_int_equal(after.pools[0].held, (cut + 2 + 3) / 4);
        if (cut >= 20) assert_int_equal(after.pools[0].cached, 0); /* in place */
        else assert_int_equal(after.pools[0].cached, 5 - cut / 4);
        assert_int_equal(before.pools[0].total, after.pools[0].total);
        st_conversation *again = kv_rig_conversation(&rig); /* the first prompt is as it was */
        assert_int_equal(kv_rig_prompt(&rig, again, tokens, 22), 20);
        kv_rig_check(&rig, c);
        st_conversation_free(again);
        st_conversation_free(c);
        kv_rig_close(&rig);
    }
}

static void eight_forks_hold_the_prefix_once(void **state)
{
    (void)state;
    kv_shape shape = full;
    shape.pool = 128;
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_open(&rig, &shape);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *c = prompted(&rig, tokens, 22), *forks[8];
    for (uint32_t i = 0; i < 8; i++) {
        forks[i] = kv_rig_conversation(&rig);
        assert_int_equal(st_conversation_fork(c, forks[i], NULL), STRATA_OK);
        assert_int_equal(st_conversation_position(forks[i]), 22);
    }
    assert_int_equal(held(&rig, 0), 6);
    for (uint32_t i = 0; i < 8; i++) {
        strata_token *next = st_conversation_tokens(forks[i]) + 22;
        kv_rig_tokens(next, 4, 100 * i);
        assert_int_equal(kv_rig_step(&rig, forks[i], 3, NULL), STRATA_OK); /* its tail page is copied on write */
        kv_rig_confirm(&rig);
        kv_rig_check(&rig, c);
    }
    assert_int_equal(held(&rig, 0), 5 + 8 * 2 + 1);
    for (uint32_t i = 0; i < 8; i++) {
        kv_rig_check(&rig, forks[i]);
        st_conversation_free(forks[i]);
    }
    assert_int_equal(held(&rig, 0), 6);
    kv_rig_tokens(st_conversation_tokens(c) + 22, 1, 9);
    assert_int_equal(kv_rig_step(&rig, c, 1, NULL), STRATA_OK); /* the tail page is its own again */
    assert_int_equal(held(&rig, 0), 6);
    st_conversation_free(c);
    kv_rig_close(&rig);
}

static void a_prefix_is_found_after_its_conversation_is_freed(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_open(&rig, &full);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation_free(prompted(&rig, tokens, 22));
    assert_int_equal(st_kv_count(rig.kv).pools[0].cached, 5);
    st_conversation *c = kv_rig_conversation(&rig);
    assert_int_equal(kv_rig_prompt(&rig, c, tokens, 40), 20);
    st_conversation_free(c);
    c = kv_rig_conversation(&rig);
    assert_int_equal(kv_rig_prompt(&rig, c, tokens, 40), 39); /* the last page is shared and copied to be written */
    kv_rig_check(&rig, c);
    st_conversation_free(c);
    kv_rig_close(&rig);
}

/* A conversation that bypasses the prefix cache finds nothing and publishes nothing. */
static void a_conversation_may_bypass_the_prefix_cache(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64];
    st_seek found;
    kv_rig_open(&rig, &full);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation_free(prompted(&rig, tokens, 22));
    st_conversation *c = kv_rig_conversation(&rig);
    assert_int_equal(st_conversation_seek(c, tokens, 22, false, &found, NULL), STRATA_OK);
    assert_int_equal(found.kept, 0);
    assert_int_equal(kv_rig_step(&rig, c, 8, NULL), STRATA_OK);
    kv_rig_confirm(&rig);
    st_conversation_free(c);
    assert_int_equal(st_kv_count(rig.kv).pools[0].cached, 5);
    c = kv_rig_conversation(&rig);
    kv_rig_tokens(tokens, 64, 77);
    assert_int_equal(st_conversation_seek(c, tokens, 22, false, &found, NULL), STRATA_OK);
    assert_int_equal(kv_rig_step(&rig, c, 8, NULL), STRATA_OK);
    kv_rig_confirm(&rig);
    st_conversation_free(c);
    assert_int_equal(st_kv_count(rig.kv).pools[0].cached, 5);
    kv_rig_close(&rig);
}

/* Two conversations compute the same prefix at the same time, and the one that published it is freed and evicted: what
 * the other one holds is published again. */
static void prefix_of_two_survives_the_first(kv_shape shape)
{
    shape.pool = shape.context = 40;
    kv_rig rig;
    strata_token tokens[64], other[64];
    kv_rig_open(&rig, &shape);
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 900);
    st_conversation *a = kv_rig_conversation(&rig), *b = kv_rig_conversation(&rig);
    st_conversation_run(a, true);
    st_conversation_run(b, true);
    seek(&rig, a, tokens, 12, NULL);
    seek(&rig, b, tokens, 12, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kv_rig_step(&rig, a, 6, NULL), STRATA_OK);
        assert_int_equal(kv_rig_step(&rig, b, 6, NULL), STRATA_OK);
        kv_rig_confirm(&rig);
    }
    assert_int_equal(held(&rig, 0), 3); /* they share it from then on */
    kv_rig_check(&rig, a);
    kv_rig_check(&rig, b);
    st_conversation_free(a); /* it was confirmed, and so published, first */
    st_conversation_free(prompted(&rig, other, 32)); /* evicts */
    kv_rig_prompt(&rig, b, tokens, 16);
    st_conversation_free(b);
    b = kv_rig_conversation(&rig);
    assert_int_equal(kv_rig_prompt(&rig, b, tokens, 20), 16);
    st_conversation_free(b);
    kv_rig_close(&rig);
}

static void a_prefix_of_two_survives_the_first(void **state)
{
    (void)state;
    prefix_of_two_survives_the_first(full);
    prefix_of_two_survives_the_first(nextn);
}

/* --- windows ------------------------------------------------------------------------------------------------------ */

/* A window of 6 tokens has at most 3 pages of 4, and one is kept behind it. */
static void a_window_slides_and_gives_pages_back(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_open(&rig, &windowed);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *c = kv_rig_conversation(&rig);
    seek(&rig, c, tokens, 64, NULL);
    for (uint32_t n = 1; n <= 64; n++) {
        assert_int_equal(kv_rig_step(&rig, c, 1, NULL), STRATA_OK);
        kv_rig_confirm(&rig);
        uint32_t oldest = n + 1 > 6 ? (n + 1 - 6) / 4 : 0, first = oldest > 0 ? oldest - 1 : 0;
        assert_int_equal(held(&rig, 1), (n + 3) / 4 - first);
        assert_int_equal(held(&rig, 0), (n + 3) / 4);
    }
    st_conversation_free(c);
    kv_rig_close(&rig);
}

/* Within the spare page a conversation with windows is cut at any token; before it, at restore points. */
static void windows_are_cut_within_their_spare_page(void **state)
{
    (void)state;
    for (uint32_t cut = 1; cut < 30; cut++) {
        kv_rig rig;
        strata_token tokens[64], other[64];
        kv_rig_open(&rig, &windowed);
        kv_rig_tokens(tokens, 64, 1);
        kv_rig_tokens(other, 64, 500);
        memcpy(other, tokens, cut * sizeof *other);
        st_conversation *c = prompted(&rig, tokens, 30);     /* points at 8, 16 and 24 */
        uint32_t first = (30 + 1 - 6) / 4 - 1, kept = cut / 8 * 8; /* the oldest page that is left */
        if ((cut + 1 > 6 ? (cut + 1 - 6) / 4 : 0) >= first) kept = cut;
        assert_int_equal(kv_rig_prompt(&rig, c, other, 40), kept);
        kv_rig_check(&rig, c);
        st_conversation_free(c);
        kv_rig_close(&rig);
    }
}

/* --- restore points ----------------------------------------------------------------------------------------------- */

static void restore_points_bring_back(const kv_shape *shape)
{
    kv_rig rig;
    strata_token tokens[64], other[64];
    kv_rig_open(&rig, shape);
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 500);
    memcpy(other, tokens, 26 * sizeof *other);
    st_conversation *a = prompted(&rig, tokens, 30);
    assert_int_equal(st_kv_count(rig.kv).points, 3);
    st_conversation *b = kv_rig_conversation(&rig);
    uint32_t diverged;
    assert_int_equal(seek(&rig, b, other, 60, &diverged), 24); /* kv_rig_check compares tails and state */
    assert_int_equal(diverged, 0);
    assert_true(st_conversation_ready(b));
    kv_rig_prompt(&rig, b, other, 60);
    kv_rig_check(&rig, a);
    assert_int_equal(kv_rig_prompt(&rig, a, tokens, 25), 24);
    st_conversation_free(a);
    st_conversation_free(b);
    a = kv_rig_conversation(&rig);
    assert_int_equal(kv_rig_prompt(&rig, a, other, 64), 60);
    st_conversation_free(a);
    kv_rig_close(&rig);
}

static void restore_points_bring_tails_and_state_back(void **state)
{
    (void)state;
    kv_shape both = windowed, three = windowed;
    both.state = both.nextn = true;
    three.windows[1] = 1;
    three.windows[2] = 13;
    const kv_shape *shapes[] = {&windowed, &recurrent, &nextn, &both, &three};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int far = 0; far < 2; far++) {
            kv_shape shape = *shapes[i];
            shape.far = far;
            restore_points_bring_back(&shape);
        }
}

/* A conversation that was cut may lack the spare page of a window: a restore point there would be too short. */
static void no_restore_point_without_its_spare_page(void **state)
{
    (void)state;
    kv_shape shape = windowed;
    shape.page = 1;
    shape.windows[0] = 1; /* its tail lies before that of the larger window */
    shape.windows[1] = 5;
    kv_rig rig;
    strata_token tokens[64], other[64];
    kv_rig_open(&rig, &shape);
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 500);
    st_conversation *a = kv_rig_conversation(&rig);
    seek(&rig, a, tokens, 40, NULL);
    assert_int_equal(kv_rig_step(&rig, a, 8, NULL), STRATA_OK);
    kv_rig_confirm(&rig);
    memcpy(other, tokens, 7 * sizeof *other);
    assert_int_equal(seek(&rig, a, other, 40, NULL), 7);
    st_conversation_keep(a, ST_RESTORE_MARK);
    assert_int_equal(st_kv_count(rig.kv).points, 0);
    assert_int_equal(kv_rig_step(&rig, a, 1, NULL), STRATA_OK);
    kv_rig_confirm(&rig);
    st_conversation_keep(a, ST_RESTORE_MARK);
    assert_int_equal(st_kv_count(rig.kv).points, 1);
    st_conversation *b = kv_rig_conversation(&rig);
    assert_int_equal(seek(&rig, b, other, 40, NULL), 8);
    st_conversation_free(a);
    st_conversation_free(b);
    kv_rig_close(&rig);
}

/* Where the prefix cache reaches further than the restore points, seek says where a point pays. */
static void seek_reports_where_prompts_diverge(void **state)
{
    (void)state;
    kv_shape shape = recurrent;
    shape.batch = 16;
    kv_rig rig;
    strata_token tokens[64], other[64];
    uint32_t diverged;
    kv_rig_open(&rig, &shape);
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 500);
    memcpy(other, tokens, 30 * sizeof *other);
    st_conversation_free(prompted(&rig, tokens, 40)); /* points at 16 and 32 */
    st_conversation *c = kv_rig_conversation(&rig);
    assert_int_equal(seek(&rig, c, other, 40, &diverged), 16);
    assert_int_equal(diverged, 28);
    assert_int_equal(seek(&rig, c, tokens, 40, &diverged), 32);
    assert_int_equal(diverged, 0); /* all of the prompt is cached: nothing diverges */
    st_conversation_free(c);
    kv_rig_close(&rig);
}

static void restore_points_stay_within_their_budget(void **state)
{
    (void)state;
    for (uint32_t points = 0; points < 4; points++) {
        kv_shape shape = windowed;
        shape.state = true;
        shape.points = points;
        kv_rig rig;
        strata_token tokens[64];
        kv_rig_open(&rig, &shape);
        for (uint32_t i = 0; i < 6; i++) {
            kv_rig_tokens(tokens, 64, 100 * i);
            st_conversation_free(prompted(&rig, tokens, 40));
            st_kv_use use = st_kv_count(rig.kv);
            assert_true(use.restore_bytes <= rig.source.restore_bytes);
            assert_true(use.points <= points + 1); /* a conversation's first points are smaller */
        }
        st_conversation *c = kv_rig_conversation(&rig);
        assert_int_equal(seek(&rig, c, tokens, 41, NULL), points ? 40 : 0);
        st_conversation_free(c);
        kv_rig_close(&rig);
    }
}

/* Points are found only once their copy has ended, and a fifth copy waits for the first. */
static void copies_of_restore_points_end_later(void **state)
{
    (void)state;
    kv_shape shape = recurrent;
    shape.far = true;
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_open(&rig, &shape);
    kv_rig_faults.lags = true;
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *a = prompted(&rig, tokens, 24), *b = kv_rig_conversation(&rig);
    assert_int_equal(st_kv_count(rig.kv).points, 3);
    assert_int_equal(seek(&rig, b, tokens, 25, NULL), 0);
    kv_rig_prompt(&rig, a, tokens, 49); /* points at 32, 40 and 48: the copies of those at 8 and 16 are waited for */
    assert_int_equal(seek(&rig, b, tokens, 60, NULL), 16);
    kv_rig_faults.lags = false;
    assert_int_equal(seek(&rig, b, tokens, 60, NULL), 48);
    st_conversation_free(a);
    st_conversation_free(b);
    kv_rig_close(&rig);
}

/* --- slots and pages of others ------------------------------------------------------------------------------------ */

static void a_slot_is_taken_from_the_conversation_idle_longest(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64], other[64], third[64];
    kv_rig_open(&rig, &recurrent);
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 300);
    kv_rig_tokens(third, 64, 600);
    st_conversation *a = prompted(&rig, tokens, 20), *b = prompted(&rig, other, 20);
    st_conversation *c = prompted(&rig, third, 20);
    assert_int_equal(st_conversation_slot(a), ST_NO_SLOT);
    assert_false(st_conversation_ready(a));
    assert_true(st_conversation_ready(b));
    assert_int_equal(st_kv_count(rig.kv).slots_taken, 2);
    st_conversation_run(b, true);
    st_conversation_run(c, true);
    strata_error error;
    st_seek found;
    assert_int_equal(st_conversation_seek(a, tokens, 30, true, &found, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "3 conversations"));
    assert_int_equal(st_conversation_position(a), 0);
    kv_rig_check(&rig, b);
    kv_rig_check(&rig, c);
    st_conversation_run(b, false);
    assert_int_equal(kv_rig_prompt(&rig, a, tokens, 30), 20); /* from its restore point */
    assert_int_equal(st_conversation_slot(b), ST_NO_SLOT);
    st_conversation_run(c, false);
    assert_int_equal(kv_rig_prompt(&rig, b, other, 20), 16);
    st_conversation_free(a);
    st_conversation_free(b);
    st_conversation_free(c);
    kv_rig_close(&rig);
}

static void idle_conversations_are_released_for_pages(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64], other[64], third[64];
    kv_rig_open(&rig, &full); /* 17 pages */
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 300);
    kv_rig_tokens(third, 64, 600);
    st_conversation *a = prompted(&rig, tokens, 24), *b = prompted(&rig, other, 24);
    st_conversation_run(a, true);
    st_conversation *c = prompted(&rig, third, 32);
    assert_int_equal(st_conversation_position(b), 0);
    assert_int_equal(st_conversation_position(a), 24);
    kv_rig_check(&rig, a);
    st_conversation_run(a, false);
    assert_int_equal(kv_rig_prompt(&rig, b, other, 24) % 4, 0); /* the front of its prefix is still cached */
    kv_rig_check(&rig, b);
    st_conversation_free(a);
    st_conversation_free(b);
    st_conversation_free(c);
    kv_rig_close(&rig);
}

static void a_full_pool_changes_nothing(void **state)
{
    (void)state;
    const kv_shape *shapes[] = {&full, &windowed, &recurrent, &nextn};
    for (size_t i = 0; i < 4; i++) {
        kv_shape shape = *shapes[i];
        shape.pool = 64;
        kv_rig rig;
        strata_token tokens[64], other[64];
        strata_error error;
        kv_rig_open(&rig, &shape);
        kv_rig_tokens(tokens, 64, 1);
        kv_rig_tokens(other, 64, 300);
        st_conversation *a = prompted(&rig, tokens, 40), *b = prompted(&rig, other, 27);
        st_conversation_run(a, true);
        st_conversation_run(b, true);
        memcpy(st_conversation_tokens(b), other, sizeof other);
        st_kv_use before = st_kv_count(rig.kv);
        assert_int_equal(st_conversation_prepare(b, 6, &error), STRATA_LIMIT);
        assert_non_null(strstr(error.message, "64 tokens"));
        st_kv_use after = st_kv_count(rig.kv);
        assert_int_equal(before.pools[0].held, after.pools[0].held);
        assert_int_equal(st_conversation_position(b), 27);
        kv_rig_check(&rig, a);
        kv_rig_check(&rig, b);
        assert_int_equal(kv_rig_step(&rig, b, 1, &error), STRATA_OK); /* what fits goes on */
        kv_rig_confirm(&rig);
        st_conversation_free(a);
        assert_int_equal(kv_rig_step(&rig, b, 8, &error), STRATA_OK);
        kv_rig_check(&rig, b);
        st_conversation_free(b);
        kv_rig_close(&rig);
    }
}

/* A shared tail page whose copy does not fit: the last holder writes in place. */
static void a_published_page_without_room_for_a_copy(void **state)
{
    (void)state;
    kv_shape shape = full;
    shape.context = shape.pool = 16; /* 5 pages */
    kv_rig rig;
    strata_token tokens[64], other[64];
    kv_rig_open(&rig, &shape);
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 500);
    st_conversation *a = prompted(&rig, tokens, 16), *b = kv_rig_conversation(&rig);
    st_conversation_run(a, true);
    st_conversation_run(b, true);
    assert_int_equal(seek(&rig, b, other, 3, NULL), 0);
    assert_int_equal(kv_rig_step(&rig, b, 3, NULL), STRATA_OK);
    assert_int_equal(kv_rig_prompt(&rig, a, tokens, 16), 15); /* all 5 pages are held */
    kv_rig_check(&rig, a);
    kv_rig_check(&rig, b);
    assert_int_equal(held(&rig, 0), 5);
    st_conversation_free(a);
    st_conversation_free(b);
    kv_rig_close(&rig);
}

static void more_than_the_context_is_refused(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64];
    strata_error error;
    kv_rig_open(&rig, &full);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *c = prompted(&rig, tokens, 60);
    assert_int_equal(st_conversation_prepare(c, 5, &error), STRATA_LIMIT);
    assert_non_null(strstr(error.message, "5 tokens at position 60: the context holds 64"));
    assert_int_equal(st_conversation_prepare(c, UINT32_MAX, &error), STRATA_LIMIT);
    kv_rig_tokens(st_conversation_tokens(c) + 60, 4, 2);
    assert_int_equal(kv_rig_step(&rig, c, 4, &error), STRATA_OK);
    st_conversation_free(c);
    kv_rig_close(&rig);
}

/* --- forks of windows and state ----------------------------------------------------------------------------------- */

static void a_fork_goes_on_if_a_slot_is_free(void **state)
{
    (void)state;
    kv_shape both = windowed;
    both.state = both.nextn = true;
    const kv_shape *shapes[] = {&windowed, &recurrent, &nextn, &both};
    for (size_t i = 0; i < 4; i++) {
        kv_rig rig;
        strata_token tokens[64];
        kv_rig_open(&rig, shapes[i]);
        kv_rig_tokens(tokens, 64, 1);
        st_conversation *a = prompted(&rig, tokens, 30), *b = kv_rig_conversation(&rig), *c = kv_rig_conversation(&rig);
        assert_int_equal(st_conversation_fork(a, b, NULL), STRATA_OK);
        assert_true(st_conversation_ready(b));
        kv_rig_tokens(st_conversation_tokens(b) + 30, 10, 700);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(kv_rig_step(&rig, b, 3, NULL), STRATA_OK);
            kv_rig_confirm(&rig);
            kv_rig_check(&rig, a);
        }
        assert_int_equal(st_conversation_fork(a, c, NULL), STRATA_OK); /* both slots are taken */
        assert_false(st_conversation_ready(c));
        assert_int_equal(kv_rig_prompt(&rig, c, tokens, 35), 24);
        assert_int_equal(kv_rig_prompt(&rig, a, tokens, 36) % 8, 0);
        st_conversation_free(a);
        st_conversation_free(b);
        st_conversation_free(c);
        kv_rig_close(&rig);
    }
}

/* --- steps that do not take place or fail ------------------------------------------------------------------------- */

static void a_cancelled_step_gives_its_pages_back(void **state)
{
    (void)state;
    const kv_shape *shapes[] = {&full, &windowed, &recurrent, &nextn};
    for (size_t i = 0; i < 4; i++) {
        kv_rig rig;
        strata_token tokens[64];
        kv_rig_open(&rig, shapes[i]);
        kv_rig_tokens(tokens, 64, 1);
        st_conversation *c = prompted(&rig, tokens, 22);
        st_kv_use before = st_kv_count(rig.kv);
        memcpy(st_conversation_tokens(c), tokens, sizeof tokens);
        assert_int_equal(st_conversation_prepare(c, 8, NULL), STRATA_OK);
        assert_int_equal(held(&rig, 0), 8);
        st_conversation_cancel(c);
        st_kv_use after = st_kv_count(rig.kv);
        for (uint32_t p = 0; p < before.pool_count; p++) assert_int_equal(before.pools[p].held, after.pools[p].held);
        kv_rig_check(&rig, c);
        assert_int_equal(kv_rig_step(&rig, c, 8, NULL), STRATA_OK);
        kv_rig_confirm(&rig);
        kv_rig_check(&rig, c);
        st_conversation_free(c);
        kv_rig_close(&rig);
    }
}

/* After a failure the conversation has what was confirmed. Recurrent state is lost, and comes back from a restore
 * point. */
static void a_failed_step_goes_back_to_what_was_confirmed(void **state)
{
    (void)state;
    const kv_shape *shapes[] = {&full, &windowed, &recurrent, &nextn};
    for (size_t i = 0; i < 4; i++)
        for (uint32_t committed = 0; committed < 3; committed++) { /* steps that were not confirmed */
            kv_rig rig;
            strata_token tokens[64], other[64];
            kv_rig_open(&rig, shapes[i]);
            kv_rig_tokens(tokens, 64, 1);
            kv_rig_tokens(other, 64, 400);
            st_conversation *a = prompted(&rig, tokens, 26), *b = prompted(&rig, other, 10);
            memcpy(st_conversation_tokens(a), tokens, sizeof tokens);
            for (uint32_t k = 0; k < committed; k++) assert_int_equal(kv_rig_step(&rig, a, 8, NULL), STRATA_OK);
            assert_int_equal(st_conversation_prepare(a, 8, NULL), STRATA_OK);
            kv_rig_fail(&rig);
            assert_int_equal(st_conversation_position(a), 26);
            assert_int_equal(st_conversation_position(b), 10);
            assert_true(st_conversation_ready(b)); /* it was not in the step */
            kv_rig_check(&rig, a);
            kv_rig_check(&rig, b);
            bool lost = i >= 2 || (i == 1 && committed > 0); /* the window has slid too far */
            assert_int_equal(st_conversation_ready(a), !lost);
            assert_int_equal(kv_rig_prompt(&rig, a, tokens, 30), lost ? 24 : 26);
            st_conversation_free(a);
            st_conversation_free(b);
            kv_rig_close(&rig);
        }
}

/* The copies of a step may not have taken place either: a conversation whose tail page was copied goes back to its last
 * whole page, and one that a restore point or a fork has brought back goes back to the start. */
static void copies_are_confirmed_with_the_step(void **state)
{
    (void)state;
    const kv_shape *shapes[] = {&full, &windowed, &recurrent, &nextn};
    for (size_t i = 0; i < 4; i++)
        for (uint32_t committed = 0; committed < 2; committed++) {
            kv_rig rig;
            strata_token tokens[64];
            kv_rig_open(&rig, shapes[i]);
            kv_rig_tokens(tokens, 64, 1);
            st_conversation *a = prompted(&rig, tokens, 26), *child = kv_rig_conversation(&rig);
            assert_int_equal(st_conversation_fork(a, child, NULL), STRATA_OK);
            memcpy(st_conversation_tokens(child), tokens, sizeof tokens);
            assert_int_equal(st_conversation_prepare(child, 2, NULL), STRATA_OK);
            if (committed) kv_rig_run(&rig, child, 2);
            kv_rig_fail(&rig);
            assert_int_equal(st_conversation_position(child), i < 2 ? 24 : 0);
            kv_rig_check(&rig, a);
            kv_rig_check(&rig, child);
            assert_int_equal(kv_rig_prompt(&rig, child, tokens, 30), 24);
            kv_rig_check(&rig, a);
            st_seek found;
            assert_int_equal(st_conversation_seek(child, tokens, 25, true, &found, NULL), STRATA_OK);
            kv_rig_fail(&rig);
            kv_rig_check(&rig, child);
            assert_int_equal(kv_rig_prompt(&rig, child, tokens, 30), i == 0 ? 28 : 24);
            st_conversation_free(a);
            st_conversation_free(child);
            kv_rig_close(&rig);
        }
}

/* Tokens of steps that have not ended are neither found by others nor kept in restore points. */
static void what_is_not_confirmed_is_not_shared(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_open(&rig, &recurrent);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *a = kv_rig_conversation(&rig), *b = kv_rig_conversation(&rig);
    seek(&rig, a, tokens, 40, NULL);
    assert_int_equal(kv_rig_step(&rig, a, 8, NULL), STRATA_OK);
    st_conversation_keep(a, ST_RESTORE_MARK);
    assert_int_equal(st_kv_count(rig.kv).points, 0);
    assert_int_equal(seek(&rig, b, tokens, 40, NULL), 0);
    kv_rig_confirm(&rig);
    st_conversation_keep(a, ST_RESTORE_MARK);
    assert_int_equal(st_kv_count(rig.kv).points, 1);
    assert_int_equal(seek(&rig, b, tokens, 40, NULL), 8);
    st_conversation_free(a);
    st_conversation_free(b);
    kv_rig_close(&rig);
}

/* A conversation that loses its slot, or is forked, before its steps have ended keeps only what was confirmed. */
static void unconfirmed_tokens_do_not_outlive_the_slot(void **state)
{
    (void)state;
    kv_shape shape = full;
    shape.conversations = 1;
    kv_rig rig;
    strata_token tokens[64], other[64];
    kv_rig_open(&rig, &shape);
    kv_rig_tokens(tokens, 64, 1);
    kv_rig_tokens(other, 64, 500);
    st_conversation *a = prompted(&rig, tokens, 10), *child = kv_rig_conversation(&rig);
    memcpy(st_conversation_tokens(a), tokens, sizeof tokens);
    assert_int_equal(kv_rig_step(&rig, a, 8, NULL), STRATA_OK);
    assert_int_equal(st_conversation_fork(a, child, NULL), STRATA_OK);
    st_conversation *b = kv_rig_conversation(&rig);
    seek(&rig, b, other, 8, NULL);
    assert_int_equal(st_conversation_prepare(b, 8, NULL), STRATA_OK); /* takes the slot */
    kv_rig_fail(&rig); /* also of the step before */
    assert_int_equal(st_conversation_position(a), 10);
    assert_int_equal(st_conversation_position(child), 10);
    kv_rig_prompt(&rig, child, tokens, 20);
    kv_rig_check(&rig, child);
    st_conversation_free(a);
    st_conversation_free(b);
    st_conversation_free(child);
    kv_rig_close(&rig);
}

static void broken_tokens_are_forgotten(void **state)
{
    (void)state;
    const kv_shape *shapes[] = {&full, &recurrent};
    for (size_t i = 0; i < 2; i++) {
        kv_rig rig;
        strata_token tokens[64];
        kv_rig_open(&rig, shapes[i]);
        kv_rig_tokens(tokens, 64, 1);
        st_conversation *a = prompted(&rig, tokens, 30), *b = kv_rig_conversation(&rig);
        st_conversation_forget(a);
        assert_int_equal(st_conversation_position(a), 0);
        assert_int_equal(held(&rig, 0), 0);
        assert_int_equal(st_kv_count(rig.kv).pools[0].cached, 0);
        assert_int_equal(seek(&rig, b, tokens, 30, NULL), 0);
        st_conversation_free(a);
        st_conversation_free(b);
        kv_rig_close(&rig);
    }
}

/* The restore points of broken tokens are gone too, also for a fork that shares their pages. */
static void broken_restore_points_are_forgotten(void **state)
{
    (void)state;
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_open(&rig, &recurrent);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *a = prompted(&rig, tokens, 30), *b = kv_rig_conversation(&rig);
    assert_int_equal(st_conversation_fork(a, b, NULL), STRATA_OK);
    st_conversation_forget(a);
    assert_int_equal(st_kv_count(rig.kv).points, 0);
    assert_int_equal(seek(&rig, b, tokens, 26, NULL), 0);
    st_conversation_free(a);
    st_conversation_free(b);
    kv_rig_close(&rig);
}

/* A NextN block has no row of the first token, but its page goes to the RAM tier whole. */
static void no_unwritten_byte_leaves_the_device(void **state)
{
    (void)state;
    kv_shape shape = {.page = 4, .context = 64, .pool = 128, .conversations = 2, .batch = 8, .state = true, .nextn = true,
                      .points = 8, .far = true, .tier = 8};
    kv_rig rig;
    strata_token tokens[64];
    kv_rig_prepare(&rig, &shape); /* memory of devices is all NaN */
    const st_kv_layout *layouts[] = {rig.source.shares[0].layout, rig.source.shares[1].layout};
    size_t words = st_kv_tier_bytes(layouts, 2, shape.tier) / sizeof(uint32_t);
    memset(rig.source.tier, 0, words * sizeof(uint32_t));
    assert_int_equal(kv_rig_new(&rig, NULL), STRATA_OK);
    kv_rig_tokens(tokens, 64, 1);
    st_conversation *c = prompted(&rig, tokens, 22);
    assert_int_equal(st_kv_count(rig.kv).tier_pages_used, 5);
    const uint32_t *tier = (const uint32_t *)(const void *)rig.source.tier;
    for (size_t i = 0; i < words; i++) assert_int_not_equal(tier[i], UINT32_MAX);
    st_conversation_free(c);
    kv_rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_longer_prompt_runs_what_is_new), cmocka_unit_test(a_conversation_is_cut_at_any_token),
        cmocka_unit_test(eight_forks_hold_the_prefix_once),
        cmocka_unit_test(a_prefix_is_found_after_its_conversation_is_freed),
        cmocka_unit_test(a_conversation_may_bypass_the_prefix_cache),
        cmocka_unit_test(a_prefix_of_two_survives_the_first),
        cmocka_unit_test(a_window_slides_and_gives_pages_back),
        cmocka_unit_test(windows_are_cut_within_their_spare_page),
        cmocka_unit_test(restore_points_bring_tails_and_state_back),
        cmocka_unit_test(no_restore_point_without_its_spare_page), cmocka_unit_test(seek_reports_where_prompts_diverge),
        cmocka_unit_test(restore_points_stay_within_their_budget), cmocka_unit_test(copies_of_restore_points_end_later),
        cmocka_unit_test(a_slot_is_taken_from_the_conversation_idle_longest),
        cmocka_unit_test(idle_conversations_are_released_for_pages), cmocka_unit_test(a_full_pool_changes_nothing),
        cmocka_unit_test(a_published_page_without_room_for_a_copy), cmocka_unit_test(more_than_the_context_is_refused),
        cmocka_unit_test(a_fork_goes_on_if_a_slot_is_free), cmocka_unit_test(a_cancelled_step_gives_its_pages_back),
        cmocka_unit_test(a_failed_step_goes_back_to_what_was_confirmed),
        cmocka_unit_test(copies_are_confirmed_with_the_step),
        cmocka_unit_test(what_is_not_confirmed_is_not_shared),
        cmocka_unit_test(unconfirmed_tokens_do_not_outlive_the_slot),
        cmocka_unit_test(broken_tokens_are_forgotten), cmocka_unit_test(broken_restore_points_are_forgotten),
        cmocka_unit_test(no_unwritten_byte_leaves_the_device),
    };
    return kit_run("conversation", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
