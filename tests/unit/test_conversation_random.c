/* src/kv against a slow and obvious model: each conversation is an array of tokens, and each row depends on all tokens
 * up to it. Random prompts, steps of several conversations, forks, failures and frees; after each of them every
 * conversation is compared. STRATA_TEST_SEED=N runs one seed. */
#include "support/kv_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store.h"
#include "support/random.h"
#include "support/tree.h"

enum { CONVERSATIONS = 7, CONTEXT = 96, SLOTS = 3, BATCH = 9, OPERATIONS = 1500, SEEDS = 6, ALPHABET = 2 };

typedef struct modelled {
    st_conversation *c; /* NULL: none */
    strata_token tokens[CONTEXT];
    uint32_t count;     /* of the tokens to store */
    bool runs;
} modelled;

typedef struct world {
    kv_rig rig;
    modelled all[CONVERSATIONS];
    bool roomy;         /* the pool has room for all: no step may be refused */
    st_store *store;    /* saved state; NULL: none */
} world;

static uint32_t refused, reused; /* how often, so that the test knows what it has tested */

/* --- what always holds -------------------------------------------------------------------------------------------- */

static void check_all(world *w)
{
    st_kv_use use = st_kv_count(w->rig.kv);
    uint32_t alive = 0;
    for (int i = 0; i < CONVERSATIONS; i++) {
        modelled *m = &w->all[i];
        if (!m->c) continue;
        alive++;
        uint32_t position = st_conversation_position(m->c);
        if (position > m->count) fail_msg("%s: position %u of %u tokens", w->rig.label, position, m->count);
        if (memcmp(st_conversation_tokens(m->c), m->tokens, position * sizeof *m->tokens) != 0)
            fail_msg("%s: conversation %d has other tokens", w->rig.label, i);
        kv_rig_check(&w->rig, m->c);
    }
    assert_int_equal(use.conversations, alive);
    assert_true(use.slots_taken <= SLOTS && use.slots_taken <= alive);
    if (use.restore_bytes > w->rig.source.restore_bytes)
        fail_msg("%s: %zu bytes of restore points", w->rig.label, use.restore_bytes);
    for (uint32_t p = 0; p < use.pool_count; p++)
        assert_int_equal(use.pools[p].total, use.pools[p].free + use.pools[p].held + use.pools[p].cached);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static modelled *any(world *w)
{
    modelled *m = &w->all[between(0, CONVERSATIONS - 1)];
    if (!m->c) {
        m->c = kv_rig_conversation(&w->rig);
        m->count = 0;
    }
    return m;
}

static void set_running(modelled *m, bool runs)
{
    if (m->c) st_conversation_run(m->c, runs);
    m->runs = runs && m->c;
}

/* A conversation that runs: any one, and then another may have to stop. */
static modelled *running(world *w)
{
    modelled *m = any(w);
    uint32_t count = 0;
    for (int i = 0; i < CONVERSATIONS; i++) count += w->all[i].runs;
    for (uint32_t i = between(0, CONVERSATIONS - 1); !m->runs && count == SLOTS; i = (i + 1) % CONVERSATIONS) {
        count -= w->all[i].runs;
        set_running(&w->all[i], false);
    }
    set_running(m, true);
    return m;
}

static void seek(world *w, modelled *m)
{
    uint32_t before = st_conversation_position(m->c), common = 0;
    bool ready = st_conversation_ready(m->c), shared = between(0, 9) > 0;
    const strata_token *stored = st_conversation_tokens(m->c);
    while (common < before && common + 1 < m->count && stored[common] == m->tokens[common]) common++;
    st_seek found;
    strata_error error;
    if (st_conversation_seek(m->c, m->tokens, m->count, shared, &found, &error) != STRATA_OK)
        fail_msg("%s: %s", w->rig.label, error.message);
    assert_int_equal(found.kept, st_conversation_position(m->c));
    bool cuts = w->rig.shape.state || w->rig.shape.nextn || w->rig.shape.windows[0];
    uint32_t least = !cuts || (ready && common == before) ? common : 0; /* what it has itself is never lost */
    if (found.kept < least || found.kept >= m->count)
        fail_msg("%s: %u of %u tokens are kept, %u expected", w->rig.label, found.kept, m->count, least);
    if (found.diverged) assert_true(found.diverged > found.kept && found.diverged < m->count);
    reused += found.kept > common;
}

/* A prompt that begins like one of the conversations. */
static void prompt(world *w)
{
    modelled *m = running(w);
    const modelled *like = any(w);
    uint32_t common = like->count ? between(0, like->count) : 0;
    uint32_t more = between(common == 0, CONTEXT - common < 40 ? CONTEXT - common : 40);
    memmove(m->tokens, like->tokens, common * sizeof *m->tokens);
    for (uint32_t i = 0; i < more; i++) m->tokens[common + i] = (strata_token)between(0, ALPHABET - 1);
    m->count = common + more;
    seek(w, m);
}

/* Steps rows of up to SLOTS conversations that have tokens left, as an executor does. */
static void step(world *w, bool cancels)
{
    modelled *pieces[SLOTS];
    uint32_t rows[SLOTS], count = 0, left = BATCH, prepared = 0;
    for (int i = 0; i < CONVERSATIONS; i++) {
        modelled *m = &w->all[i];
        if (m->runs && between(0, 3) > 0 && st_conversation_position(m->c) < m->count) pieces[count++] = m;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!st_conversation_ready(pieces[i]->c) || st_conversation_position(pieces[i]->c) == 0) seek(w, pieces[i]);
    for (uint32_t i = 0; i < count && left > 0; i++) {
        modelled *m = pieces[i];
        strata_error error;
        uint32_t missing = m->count - st_conversation_position(m->c), most = missing < left ? missing : left;
        rows[i] = between(1, most);
        left -= rows[i];
        memcpy(st_conversation_tokens(m->c), m->tokens, m->count * sizeof *m->tokens);
        strata_status status = st_conversation_prepare(m->c, rows[i], &error);
        if (status != STRATA_OK && (w->roomy || status != STRATA_LIMIT))
            fail_msg("%s: %s", w->rig.label, error.message);
        refused += status != STRATA_OK;
        if (status != STRATA_OK) break;
        prepared++;
    }
    uint32_t entries = 0;
    for (uint32_t i = 0; i < prepared; i++) { /* the tables of the step have room for all */
        st_step_conversation written;
        entries += st_conversation_write(pieces[i]->c, 0, entries, &written, w->rig.tables + entries);
        assert_true(entries <= st_kv_tables_max(w->rig.source.shares[0].layout));
    }
    for (uint32_t i = 0; i < prepared; i++) {
        if (cancels) st_conversation_cancel(pieces[i]->c);
        else kv_rig_run(&w->rig, pieces[i]->c, rows[i]);
    }
}

/* An executor that fails in the middle of a step. */
static void fail_step(world *w)
{
    modelled *m = running(w);
    if (st_conversation_ready(m->c) && st_conversation_position(m->c) < m->count) {
        memcpy(st_conversation_tokens(m->c), m->tokens, m->count * sizeof *m->tokens);
        (void)st_conversation_prepare(m->c, 1, NULL);
    }
    /* Saved state is loaded into host memory at once, where steps end at once, too: nothing of it can be lost. */
    if (w->store && !w->rig.shape.far) kv_rig_confirm(&w->rig);
    kv_rig_fail(&w->rig);
}

static void fork_one(world *w)
{
    modelled *m = any(w);
    for (int i = 0; i < CONVERSATIONS; i++) {
        if (w->all[i].c) continue;
        modelled *child = any(w);
        if (child == m || child->count) continue;
        *child = (modelled){.c = child->c, .count = m->count, .runs = child->runs};
        memcpy(child->tokens, m->tokens, sizeof m->tokens);
        assert_int_equal(st_conversation_fork(m->c, child->c, NULL), STRATA_OK);
        return;
    }
}

static void free_one(world *w)
{
    modelled *m = &w->all[between(0, CONVERSATIONS - 1)];
    st_conversation_free(m->c);
    *m = (modelled){0};
}

static void keep_all(world *w)
{
    for (int i = 0; i < CONVERSATIONS; i++)
        if (w->all[i].c) st_conversation_keep(w->all[i].c, between(0, 1) ? ST_RESTORE_MARK : ST_RESTORE_PASSING);
}

static void operate(world *w)
{
    uint32_t choice = between(0, 99);
    if (choice < 8) prompt(w);
    else if (choice < 10) set_running(&w->all[between(0, CONVERSATIONS - 1)], false);
    else if (choice < 60) step(w, false);
    else if (choice < 63) step(w, true);
    else if (choice < 75) kv_rig_confirm(&w->rig);
    else if (choice < 87) keep_all(w);
    else if (choice < 89) fail_step(w);
    else if (choice < 95) fork_one(w);
    else if (choice < 99) free_one(w);
    else st_conversation_forget(any(w)->c);
}

/* --- saved state: later seeds of a shape find what earlier ones saved ---------------------------------------------- */

static bool saves;

static void open_store(world *w)
{
    char path[128];
    strata_error error;
    st_digest identity = st_digest_add((st_digest){{0}}, &w->rig.shape.page, sizeof w->rig.shape.page);
    identity.words[0] += st_kv_saved_page_bytes(w->rig.kv);
    snprintf(path, sizeof path, "%s/%u", tree_root, w->rig.shape.far);
    st_store_options options = {.path = path, .identity = identity, .page_tokens = w->rig.shape.page,
                                .page_bytes = st_kv_saved_page_bytes(w->rig.kv), .limit_bytes = 1 << 20};
    if (st_store_open(&options, &w->store, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(st_kv_set_store(w->rig.kv, w->store, &identity, NULL), STRATA_OK);
}

/* Waits until nothing holds pages for the writer any more. */
static void finish_store(world *w)
{
    st_seek seek;
    const strata_token none = 0;
    st_conversation *c = kv_rig_conversation(&w->rig);
    st_store_flush(w->store);
    assert_int_equal(st_conversation_seek(c, &none, 0, true, &seek, NULL), STRATA_OK); /* releases what is written */
    st_conversation_free(c);
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

static void run_seed(kv_shape shape, uint32_t seed)
{
    static world w; /* large */
    w = (world){.roomy = seed % 2 == 0};
    random_state = seed * 7919 + shape.page;
    shape.context = CONTEXT;
    shape.conversations = SLOTS;
    shape.batch = BATCH;
    shape.far = between(0, 1);
    if (shape.far && between(0, 3) > 0) shape.tier = between(1, 3 * CONTEXT / shape.page + 1);
    shape.points = between(0, 12);
    shape.pool = w.roomy ? CONVERSATIONS * (CONTEXT + shape.page) : between(CONTEXT, CONTEXT + 40);
    kv_rig_open(&w.rig, &shape);
    if (saves) open_store(&w);
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        snprintf(w.rig.label, sizeof w.rig.label, "page %u, seed %u, operation %u", shape.page, seed, i);
        kv_rig_faults.lags = between(0, 3) == 0;
        operate(&w);
        check_all(&w);
    }
    for (int i = 0; i < CONVERSATIONS; i++) st_conversation_free(w.all[i].c);
    if (w.store) finish_store(&w);
    kv_rig_close(&w.rig);
    st_store_close(w.store);
}

static void run_shape(kv_shape shape)
{
    static const uint32_t pages[] = {1, 4, 64};
    const char *one = getenv("STRATA_TEST_SEED");
    refused = reused = 0;
    uint32_t first = one ? (uint32_t)strtoul(one, NULL, 10) : 1, last = one ? first : SEEDS;
    for (size_t p = 0; p < 3; p++)
        for (uint32_t seed = first; seed <= last; seed++) {
            shape.page = pages[p];
            run_seed(shape, seed);
        }
    if (!one) { if (refused < 10 || reused < 100) fail_msg("%u refused, %u reused", refused, reused); }
}

static void full_attention(void **state)
{
    (void)state;
    run_shape((kv_shape){0});
}

static void windows(void **state)
{
    (void)state;
    run_shape((kv_shape){.windows = {6}});
    run_shape((kv_shape){.windows = {17, 1, 5}});
}

static void recurrent_state(void **state)
{
    (void)state;
    run_shape((kv_shape){.state = true});
}

static void nextn(void **state)
{
    (void)state;
    run_shape((kv_shape){.nextn = true});
}

static void windows_state_and_nextn(void **state)
{
    (void)state;
    run_shape((kv_shape){.windows = {6, 20}, .state = true});
    run_shape((kv_shape){.windows = {9}, .state = true, .nextn = true});
}

static void saved_on_disk(void **state)
{
    (void)state;
    saves = true;
    run_shape((kv_shape){0});
    run_shape((kv_shape){.windows = {6}, .state = true});
    saves = false;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_attention), cmocka_unit_test(windows), cmocka_unit_test(recurrent_state),
        cmocka_unit_test(nextn), cmocka_unit_test(windows_state_and_nextn),
        cmocka_unit_test_setup_teardown(saved_on_disk, tree_make, tree_remove),
    };
    return kit_run("conversation, random", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
