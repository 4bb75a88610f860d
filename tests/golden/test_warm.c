/* Warm = cold: whatever a conversation reuses (its own tokens, pages of others, restore points), its logits have the bits
 * that a conversation without any reuse gets. On the reference path, for every kind of layer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/golden.h"

enum { PAGE = 4, BATCH = 16, TOKENS = 48, CONTEXT = 64 };

/* Full attention; windows and layers that share KV; chunks; recurrent state and a NextN block. */
static const char *const models[] = {"llama", "llama4", "gemma4-e", "gemma4-dense", "qwen35", "qwen35moe"};

typedef struct rig {
    golden g;
    golden_run warm, cold;
    strata_token base[TOKENS];
    const char *name;
} rig;

static void open_rig(rig *r, const char *name, golden_options options)
{
    assert_true(golden_open(&r->g, name));
    r->name = name;
    assert_true(r->g.token_count >= TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++) r->base[i] = r->g.tokens[i];
    options.kv_type = ST_TYPE_F32;
    options.cpu = "ref";
    options.threads = 2;
    options.nextn = r->g.nextn_logits != NULL;
    options.batch = BATCH;
    options.context = CONTEXT;
    if (!options.page_tokens) options.page_tokens = PAGE;
    golden_run_open(&r->warm, &r->g, &options);
    options.conversations = 1;
    golden_run_open(&r->cold, &r->g, &options);
}

static void close_rig(rig *r)
{
    golden_run_close(&r->warm);
    golden_run_close(&r->cold);
    golden_close(&r->g);
}

static void must(const rig *r, strata_status status, const strata_error *error)
{
    if (status != STRATA_OK) fail_msg("%s: %s", r->name, error->message);
}

static st_conversation *new_conversation(rig *r)
{
    st_conversation *c;
    strata_error error;
    must(r, st_conversation_new(st_run_kv(r->warm.run), &c, &error), &error);
    return c;
}

static const float *last_logits(rig *r, golden_run *run, uint32_t row)
{
    const float *logits;
    strata_error error;
    must(r, st_run_logits(run->run, &row, 1, &logits, &error), &error);
    return logits;
}

/* Runs what is missing of the tokens, as a session does: with a restore point at every page boundary. Returns how many ran. */
static uint32_t run_to(rig *r, st_conversation *c, const strata_token *tokens, uint32_t count)
{
    st_seek seek;
    strata_error error;
    st_conversation_run(c, true);
    must(r, st_conversation_seek(c, tokens, count, true, &seek, &error), &error);
    for (uint32_t at = seek.kept; at < count;) {
        uint32_t piece = PAGE - at % PAGE < count - at ? PAGE - at % PAGE : count - at;
        st_run_piece step = {.conversation = c, .count = piece, .prompt = true};
        must(r, st_run_step(r->warm.run, &step, 1, &error), &error);
        must(r, st_run_wait(r->warm.run, &error), &error);
        st_conversation_keep(c, ST_RESTORE_PASSING);
        at += piece;
    }
    st_conversation_run(c, false);
    return count - seek.kept;
}

/* The logits after the last token are those of a run without reuse. Returns how many tokens ran. */
static uint32_t check(rig *r, st_conversation *c, const strata_token *tokens, uint32_t count)
{
    st_seek seek;
    strata_error error;
    uint32_t ran = run_to(r, c, tokens, count), last = (count - 1) % BATCH, vocab = r->g.desc->vocab;
    uint32_t start = count - ran, row = (count - 1) % PAGE - (start / PAGE == (count - 1) / PAGE ? start % PAGE : 0);
    const float *warm = last_logits(r, &r->warm, row);
    must(r, st_conversation_seek(r->cold.conversation, tokens, 0, false, &seek, &error), &error);
    for (uint32_t at = 0; at < count; at += BATCH)
        must(r, golden_step(&r->cold, r->cold.conversation, tokens + at, count - at < BATCH ? count - at : BATCH, &error), &error);
    const float *cold = last_logits(r, &r->cold, last);
    if (memcmp(warm, cold, vocab * sizeof *warm) != 0) {
        double difference = 0;
        for (uint32_t i = 0; i < vocab; i++) difference += ((double)warm[i] - cold[i]) * ((double)warm[i] - cold[i]);
        fail_msg("%s: %u tokens, %u of them ran: the logits differ by %g", r->name, count, ran, difference);
    }
    return ran;
}

/* `count` tokens that are the base's up to `branch`, then others. */
static void branch_at(const rig *r, uint32_t branch, uint32_t count, uint32_t salt, strata_token *out)
{
    for (uint32_t i = 0; i < count; i++) out[i] = i < branch ? r->base[i] : r->base[(i * 7 + salt + 1) % TOKENS];
    if (branch < count && out[branch] == r->base[branch % TOKENS]) out[branch] = (out[branch] + 1) % 200;
}

static void extending(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 2});
    st_conversation *c = new_conversation(&r);
    check(&r, c, r.base, 5);
    check(&r, c, r.base, 6);
    assert_int_equal(check(&r, c, r.base, 21), 15);
    assert_int_equal(check(&r, c, r.base, TOKENS), TOKENS - 21);
    assert_true(check(&r, c, r.base, TOKENS) <= PAGE); /* the same again */
    st_conversation_free(c);
    close_rig(&r);
}

/* The same conversation, another one with the first still there, and another one after it is gone. */
static void branching_at_any_token(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 2, .restore_bytes = 64 << 20});
    strata_token other[TOKENS];
    st_conversation *c = new_conversation(&r);
    for (uint32_t branch = 1; branch < TOKENS - 6; branch += kit_is_slow() ? 5 : 1) {
        check(&r, c, r.base, TOKENS);
        branch_at(&r, branch, branch + 5, branch, other);
        assert_true(check(&r, c, other, branch + 5) <= 5 + PAGE);
        st_conversation *second = new_conversation(&r);
        branch_at(&r, branch, branch + 6, branch + 1, other);
        assert_true(check(&r, second, other, branch + 6) <= 6 + PAGE);
        st_conversation_free(second);
    }
    st_conversation_free(c);
    c = new_conversation(&r);
    assert_true(check(&r, c, r.base, TOKENS) <= PAGE); /* the prefix cache has it */
    st_conversation_free(c);
    close_rig(&r);
}

static void editing_inside_the_last_page(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 1});
    strata_token other[TOKENS];
    st_conversation *c = new_conversation(&r);
    for (uint32_t count = 20; count < 26; count++)
        for (uint32_t edit = count - 5; edit < count; edit++) {
            check(&r, c, r.base, count);
            branch_at(&r, edit, count, edit, other);
            check(&r, c, other, count);
        }
    st_conversation_free(c);
    close_rig(&r);
}

static void interleaved(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 2});
    strata_token other[TOKENS];
    branch_at(&r, 9, TOKENS, 3, other);
    st_conversation *a = new_conversation(&r), *b = new_conversation(&r);
    for (uint32_t count = 2; count <= TOKENS; count += 1 + count % 3) {
        check(&r, a, r.base, count);
        check(&r, b, other, count);
    }
    st_conversation_free(a);
    st_conversation_free(b);
    close_rig(&r);
}

/* More conversations than slots, and a pool for one: each takes slots and pages of the others. */
static void more_conversations_than_memory(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 2, .pool_tokens = CONTEXT});
    st_conversation *c[4];
    strata_token texts[4][TOKENS];
    for (uint32_t i = 0; i < 4; i++) {
        c[i] = new_conversation(&r);
        branch_at(&r, 5 + 7 * i, TOKENS, i, texts[i]);
    }
    for (uint32_t count = 8; count <= TOKENS; count += 10)
        for (uint32_t i = 0; i < 4; i++) check(&r, c[i], texts[i], count);
    for (uint32_t i = 0; i < 4; i++) st_conversation_free(c[i]);
    close_rig(&r);
}

static void cancelled_in_a_prompt(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 1});
    st_conversation *c = new_conversation(&r);
    atomic_bool flag = true;
    strata_error error;
    for (uint32_t count = 3; count < 40; count += 6) {
        st_seek seek;
        check(&r, c, r.base, count);
        must(&r, st_conversation_seek(c, r.base, count + 5, true, &seek, &error), &error);
        st_run_piece piece = {.conversation = c, .count = count + 5 - seek.kept, .prompt = true};
        st_run_watch(r.warm.run, &flag);
        assert_int_equal(st_run_step(r.warm.run, &piece, 1, &error), STRATA_INTERRUPTED);
        st_run_watch(r.warm.run, NULL);
        check(&r, c, r.base, count + 5);
    }
    st_conversation_free(c);
    close_rig(&r);
}

static void eight_forks(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 3, .pool_tokens = 8 * CONTEXT});
    st_conversation *parent = new_conversation(&r), *forks[8];
    strata_token other[TOKENS];
    strata_error error;
    check(&r, parent, r.base, 33);
    uint32_t held = st_kv_count(st_run_kv(r.warm.run)).pools[0].held;
    for (uint32_t i = 0; i < 8; i++) {
        forks[i] = new_conversation(&r);
        must(&r, st_conversation_fork(parent, forks[i], &error), &error);
    }
    assert_int_equal(st_kv_count(st_run_kv(r.warm.run)).pools[0].held, held);
    for (uint32_t i = 0; i < 8; i++) {
        branch_at(&r, 30 + i % 5, 40, i, other);
        check(&r, forks[i], other, 40);
    }
    check(&r, parent, r.base, TOKENS);
    for (uint32_t i = 0; i < 8; i++) st_conversation_free(forks[i]);
    st_conversation_free(parent);
    close_rig(&r);
}

/* Two conversations run and the pool has room for one: one of them gets an error, and goes on when there is room. */
static void memory_exhausted_while_decoding(void **state)
{
    rig r;
    open_rig(&r, *state, (golden_options){.conversations = 2, .pool_tokens = CONTEXT});
    strata_token other[TOKENS];
    strata_error error;
    branch_at(&r, 0, TOKENS, 11, other);
    st_conversation *a = new_conversation(&r), *b = new_conversation(&r);
    check(&r, a, r.base, 40);
    st_conversation_run(a, true);
    run_to(&r, b, other, 20);
    st_conversation_run(b, true);
    strata_status status = STRATA_OK;
    uint32_t at = 20;
    memcpy(st_conversation_tokens(b), other, sizeof other);
    for (; status == STRATA_OK && at < TOKENS; at++) {
        st_run_piece piece = {.conversation = b, .count = 1};
        status = st_run_step(r.warm.run, &piece, 1, &error);
    }
    assert_int_equal(status, STRATA_LIMIT);
    assert_int_equal(st_conversation_position(b), at - 1);
    st_conversation_run(a, false);
    check(&r, b, other, TOKENS);
    check(&r, a, r.base, TOKENS);
    st_conversation_free(a);
    st_conversation_free(b);
    close_rig(&r);
}

/* --- evicted from a simulated GPU, and back from RAM -------------------------------------------------------------- */

enum { TALKS = 4 };

/* Conversations on a pool for one of them: each one evicts the others. */
typedef struct crowd_on_gpu {
    rig r;
    st_conversation *c[TALKS];
    strata_token texts[TALKS][TOKENS];
} crowd_on_gpu;

static void open_on_gpu(crowd_on_gpu *w, const char *name, int32_t layers)
{
    st_plan_options placed = st_plan_options_default();
    placed.layers = layers;
    open_rig(&w->r, name, (golden_options){.conversations = 2, .pool_tokens = CONTEXT, .restore_bytes = 64 << 20,
                                           .placed = &placed});
    for (uint32_t i = 0; i < TALKS; i++) {
        w->c[i] = new_conversation(&w->r);
        branch_at(&w->r, 5 + 7 * i, TOKENS, i, w->texts[i]);
        run_to(&w->r, w->c[i], w->texts[i], TOKENS - 1);
    }
}

static void close_on_gpu(crowd_on_gpu *w)
{
    for (uint32_t i = 0; i < TALKS; i++) st_conversation_free(w->c[i]);
    close_rig(&w->r);
}

static const int32_t splits[] = {ST_LAYERS_ALL, 2};

/* Pages that were lost are not computed again. */
static void evicted_and_back_from_ram(void **state)
{
    for (int s = 0; s < 2; s++) {
        crowd_on_gpu w;
        open_on_gpu(&w, *state, splits[s]);
        st_kv *kv = st_run_kv(w.r.warm.run);
        assert_true(st_kv_count(kv).pools[0].total < TALKS * (TOKENS / PAGE));
        for (uint32_t i = 0; i < TALKS; i++) {
            uint32_t ran = check(&w.r, w.c[i], w.texts[i], TOKENS);
            bool on_gpu = w.r.warm.plan->tier_pages > 0; /* the first layers may have windows or state alone */
            if (on_gpu && ran > 2 * PAGE) fail_msg("%s, split %d: %u tokens ran again", w.r.name, s, ran);
        }
        st_conversation_free(w.c[0]); /* also for another conversation with the same beginning */
        w.c[0] = new_conversation(&w.r);
        branch_at(&w.r, 24, 40, 9, w.texts[0]);
        uint32_t ran = check(&w.r, w.c[0], w.texts[0], 40);
        assert_true(s > 0 || ran <= 16 + PAGE);
        assert_int_equal(st_kv_count(kv).tier_pages_used > 0, w.r.warm.plan->tier_pages > 0);
        assert_true(s > 0 || w.r.warm.plan->tier_pages > 0);
        close_on_gpu(&w);
    }
}

/* Another conversation's steps run while the pages are on their way. */
static void others_run_while_pages_arrive(void **state)
{
    crowd_on_gpu w;
    strata_error error;
    st_seek seek;
    open_on_gpu(&w, *state, ST_LAYERS_ALL);
    check(&w.r, w.c[1], w.texts[1], 8);
    st_conversation_run(w.c[1], true);
    must(&w.r, st_conversation_seek(w.c[2], w.texts[2], TOKENS - 1, true, &seek, &error), &error);
    assert_true(seek.kept + 2 * PAGE >= TOKENS - 1);
    /* The copy of a restore point may have waited for older ones, and the pages have arrived meanwhile. */
    if (!w.r.warm.plan->memory[ST_HOST].kv->needs_points) assert_true(st_conversation_arriving(w.c[2]));
    memcpy(st_conversation_tokens(w.c[1]), w.texts[1], sizeof w.texts[1]);
    st_run_piece step = {.conversation = w.c[1], .count = 4, .prompt = true};
    must(&w.r, st_run_step(w.r.warm.run, &step, 1, &error), &error);
    must(&w.r, st_run_wait(w.r.warm.run, &error), &error);
    must(&w.r, st_conversation_await(w.c[2], &error), &error);
    assert_false(st_conversation_arriving(w.c[2]));
    st_conversation_run(w.c[1], false);
    check(&w.r, w.c[2], w.texts[2], TOKENS);
    check(&w.r, w.c[1], w.texts[1], TOKENS);
    close_on_gpu(&w);
}

/* Whatever copy fails while a conversation comes back: an error or a colder start, and right logits in the end. */
static void copies_that_fail_on_the_way_back(void **state)
{
    crowd_on_gpu w;
    uint32_t failures = 0;
    open_on_gpu(&w, *state, ST_LAYERS_ALL);
    for (uint64_t n = 1; n < 40; n += kit_is_slow() && n > 4 ? 6 : 1) {
        strata_error error;
        st_seek seek;
        st_conversation *c = w.c[n % TALKS];
        uint64_t before = st_sim_calls(w.r.warm.world, ST_SIM_COPY);
        st_sim_fail_at(w.r.warm.world, ST_SIM_COPY, n);
        st_conversation_run(c, true);
        strata_status status = st_conversation_seek(c, w.texts[n % TALKS], TOKENS, true, &seek, &error);
        if (status == STRATA_OK && st_conversation_ready(c) && seek.kept < TOKENS) {
            st_run_piece piece = {.conversation = c, .count = 1, .prompt = true};
            status = st_run_step(w.r.warm.run, &piece, 1, &error);
            if (status == STRATA_OK) status = st_run_wait(w.r.warm.run, &error);
        }
        if (status != STRATA_OK) assert_int_equal(status, STRATA_DEVICE);
        failures += st_sim_calls(w.r.warm.world, ST_SIM_COPY) - before >= n;
        st_sim_fail_at(w.r.warm.world, ST_SIM_COPY, 0);
        st_conversation_run(c, false);
        check(&w.r, c, w.texts[n % TALKS], TOKENS);
    }
    assert_true(failures >= 3);
    close_on_gpu(&w);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; CMUnitTestFunction function; } cases[] = {
        {"extending", extending}, {"branching at any token", branching_at_any_token},
        {"editing inside the last page", editing_inside_the_last_page}, {"interleaved", interleaved},
        {"more conversations than memory", more_conversations_than_memory}, {"cancelled in a prompt", cancelled_in_a_prompt},
        {"eight forks", eight_forks}, {"memory exhausted while decoding", memory_exhausted_while_decoding},
        {"evicted and back from RAM", evicted_and_back_from_ram},
        {"others run while pages arrive", others_run_while_pages_arrive},
        {"copies that fail on the way back", copies_that_fail_on_the_way_back}};
    enum { CASES = sizeof cases / sizeof *cases, MODELS = sizeof models / sizeof *models };
    size_t count = 0;
    static struct CMUnitTest tests[CASES * MODELS];
    static char names[CASES * MODELS][80];
    for (size_t k = 0; k < CASES; k++)
        for (size_t i = 0; i < MODELS; i += kit_is_slow() ? 2 : 1, count++) { /* every second model has other layers */
            snprintf(names[count], sizeof names[count], "%s, %s", cases[k].name, models[i]);
            tests[count] = (struct CMUnitTest){names[count], cases[k].function, NULL, NULL, (void *)(uintptr_t)models[i]};
        }
    return kit_run("warm", tests, count, NULL, NULL, argc, argv);
}
