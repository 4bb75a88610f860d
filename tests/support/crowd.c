#include "support/crowd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct member {
    strata_token *tokens; /* [length]: what it will say */
    uint32_t length, prefix; /* `prefix` tokens are those of member `like` */
    uint32_t like;
    float *alone, *alone_nextn; /* [length, vocab] */
    st_conversation *conversation;
    bool done; /* it has said everything */
} member;

typedef struct party {
    const crowd *crowd;
    uint32_t seed;
    uint64_t state;
    golden_run run;
    member members[CROWD];
    double worst, differences, norms; /* the largest error of a row; sums over all rows */
} party;

static uint32_t next_random(party *p)
{
    p->state = p->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->state >> 33);
}

static uint32_t between(party *p, uint32_t low, uint32_t high)
{
    return low + next_random(p) % (high - low + 1);
}

static void must(const party *p, strata_status status, const strata_error *error)
{
    if (status != STRATA_OK) fail_msg("%s, seed %u: %s", p->crowd->name, p->seed, error->message);
}

/* The first says the kit's tokens from some place on; the others begin like another one. */
static void invent(party *p, uint32_t index)
{
    member *m = &p->members[index];
    const golden *g = p->crowd->g;
    uint32_t most = p->crowd->length_max, from = between(p, 0, g->token_count - 1);
    m->length = between(p, most / 4 + 2, most);
    m->tokens = calloc(m->length, sizeof *m->tokens);
    assert_non_null(m->tokens);
    for (uint32_t i = 0; i < m->length; i++) m->tokens[i] = g->tokens[(from + i) % g->token_count];
    if (index == 0) return;
    m->like = between(p, 0, index - 1);
    const member *like = &p->members[m->like];
    m->prefix = between(p, 0, like->length < m->length ? like->length : m->length - 1);
    memcpy(m->tokens, like->tokens, m->prefix * sizeof *m->tokens);
}

static void read_rows(golden_run *r, bool nextn, uint32_t first, uint32_t count, float *out)
{
    uint32_t vocab = r->g->desc->vocab;
    strata_error error;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = first + i;
        const float *logits;
        strata_status status = nextn ? st_run_nextn_logits(r->run, &row, 1, &logits, &error) : st_run_logits(r->run, &row, 1, &logits, &error);
        if (status != STRATA_OK) fail_msg("%s", error.message);
        memcpy(out + (size_t)i * vocab, logits, vocab * sizeof *out);
    }
}

/* What every member gets alone, in large steps. */
static void run_alone(party *p)
{
    golden_options options = p->crowd->options;
    uint32_t vocab = p->crowd->g->desc->vocab;
    options.batch = p->crowd->rows_max;
    options.context = p->crowd->length_max;
    golden_run r;
    golden_run_open(&r, p->crowd->g, &options);
    for (uint32_t k = 0; k < CROWD; k++) {
        member *m = &p->members[k];
        st_seek seek;
        strata_error error;
        m->alone = calloc(m->length, vocab * sizeof *m->alone);
        m->alone_nextn = calloc(m->length, vocab * sizeof *m->alone);
        assert_non_null(m->alone);
        assert_non_null(m->alone_nextn);
        must(p, st_conversation_seek(r.conversation, m->tokens, 0, false, &seek, &error), &error);
        for (uint32_t done = 0; done < m->length;) {
            uint32_t count = m->length - done < options.batch ? m->length - done : options.batch;
            must(p, golden_step(&r, r.conversation, m->tokens + done, count, &error), &error);
            read_rows(&r, false, 0, count, m->alone + (size_t)done * vocab);
            uint32_t first = done == 0; /* the first token has no row in the NextN block */
            if (options.nextn) read_rows(&r, true, 0, count - first, m->alone_nextn + (size_t)(done + first) * vocab);
            done += count;
        }
    }
    golden_run_close(&r);
}

static void compare(party *p, const member *m, bool nextn, uint32_t row, uint32_t position)
{
    uint32_t vocab = p->crowd->g->desc->vocab, every = p->crowd->check_every;
    if (every && position % every && position + 1 < m->length) return;
    const float *expected = (nextn ? m->alone_nextn : m->alone) + (size_t)position * vocab;
    const float *found;
    strata_error error;
    must(p, nextn ? st_run_nextn_logits(p->run.run, &row, 1, &found, &error) : st_run_logits(p->run.run, &row, 1, &found, &error), &error);
    double difference = 0, norm = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        difference += ((double)found[i] - expected[i]) * ((double)found[i] - expected[i]);
        norm += (double)expected[i] * expected[i];
    }
    double relative = sqrt(difference / norm);
    if (p->worst < relative) p->worst = relative;
    p->differences += difference;
    p->norms += norm;
    if (!p->crowd->mean && !(relative <= p->crowd->error_max))
        fail_msg("%s, seed %u, conversation %d, %stoken %u: relative error %g, expected %g", p->crowd->name, p->seed,
                 (int)(m - p->members), nextn ? "NextN, " : "", position, relative, p->crowd->error_max);
}

/* A member's conversation begins: alone, or as a fork of the one that it begins like. */
static void begin(party *p, member *m)
{
    strata_error error;
    st_seek seek;
    st_conversation *parent = m->prefix ? p->members[m->like].conversation : NULL;
    must(p, st_conversation_new(st_run_kv(p->run.run), &m->conversation, &error), &error);
    st_conversation_run(m->conversation, true);
    if (parent && between(p, 0, 1)) must(p, st_conversation_fork(parent, m->conversation, &error), &error);
    must(p, st_conversation_seek(m->conversation, m->tokens, m->length, true, &seek, &error), &error);
    if (seek.kept >= m->length) fail_msg("%s, seed %u: %u of %u tokens kept", p->crowd->name, p->seed, seek.kept, m->length);
}

/* Chooses members that are not done, and marks them as running. */
static uint32_t choose(party *p, uint32_t slots, member *chosen[CROWD])
{
    uint32_t count = 0, wanted = between(p, 1, slots), first = between(p, 0, CROWD - 1);
    for (uint32_t i = 0; i < CROWD && count < wanted; i++) {
        member *m = &p->members[(first + i) % CROWD];
        if (m->done) continue;
        chosen[count++] = m;
        if (m->conversation) st_conversation_run(m->conversation, true);
    }
    return count;
}

static void make_ready(party *p, member *m)
{
    strata_error error;
    st_seek seek;
    if (!m->conversation) begin(p, m);
    else if (!st_conversation_ready(m->conversation) || st_conversation_position(m->conversation) == 0)
        must(p, st_conversation_seek(m->conversation, m->tokens, m->length, true, &seek, &error), &error);
}

static void compare_step(party *p, const st_run_piece *pieces, member *const *members, const uint32_t *positions, uint32_t count)
{
    uint32_t row = 0, nextn_row = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < pieces[i].count; k++) compare(p, members[i], false, row++, positions[i] + k);
    for (uint32_t i = 0; i < count && p->crowd->options.nextn; i++)
        for (uint32_t k = positions[i] == 0; k < pieces[i].count; k++) compare(p, members[i], true, nextn_row++, positions[i] + k);
}

/* After a step: sometimes a restore point, a cut at a random token, or a conversation that is freed. */
static void disturb(party *p, member *m)
{
    strata_error error;
    st_seek seek;
    if (between(p, 0, 1)) st_conversation_keep(m->conversation, between(p, 0, 1) ? ST_RESTORE_MARK : ST_RESTORE_PASSING);
    if (between(p, 0, 7) == 0) {
        uint32_t keep = between(p, 1, st_conversation_position(m->conversation));
        must(p, st_conversation_seek(m->conversation, m->tokens, keep, true, &seek, &error), &error);
        memcpy(st_conversation_tokens(m->conversation), m->tokens, m->length * sizeof *m->tokens);
    }
    if (between(p, 0, 15) == 0) {
        st_conversation_free(m->conversation);
        m->conversation = NULL;
    }
}

/* One step; false: all are done. */
static bool run_step(party *p, uint32_t slots)
{
    member *chosen[CROWD];
    st_run_piece pieces[CROWD];
    uint32_t positions[CROWD], count = choose(p, slots, chosen), room = between(p, count ? count : 1, p->crowd->rows_max);
    strata_error error;
    for (uint32_t i = 0; i < count; i++) make_ready(p, chosen[i]);
    for (uint32_t i = 0; i < count; i++) {
        positions[i] = st_conversation_position(chosen[i]->conversation);
        uint32_t left = chosen[i]->length - positions[i], most = room - (count - 1 - i);
        uint32_t rows = between(p, 0, 2) ? between(p, 1, left < most ? left : most) : 1;
        room -= rows;
        pieces[i] = (st_run_piece){.conversation = chosen[i]->conversation, .count = rows, .prompt = rows > 1};
    }
    if (count == 0) return false;
    must(p, st_run_step(p->run.run, pieces, count, &error), &error);
    compare_step(p, pieces, chosen, positions, count);
    must(p, st_run_wait(p->run.run, &error), &error);
    for (uint32_t i = 0; i < count; i++) {
        st_conversation_run(chosen[i]->conversation, false);
        chosen[i]->done = positions[i] + pieces[i].count == chosen[i]->length;
    }
    disturb(p, chosen[between(p, 0, count - 1)]);
    return true;
}

double crowd_run(const crowd *c, uint32_t seed)
{
    party p = {.crowd = c, .seed = seed, .state = seed};
    golden_options options = c->options;
    uint32_t slots = c->options.conversations ? c->options.conversations : between(&p, 2, CROWD);
    options.conversations = slots;
    if (!options.page_tokens) options.page_tokens = 1u << between(&p, 0, 2);
    options.batch = c->rows_max;
    options.context = c->length_max;
    for (uint32_t i = 0; i < CROWD; i++) invent(&p, i);
    run_alone(&p);
    golden_run_open(&p.run, c->g, &options);
    uint32_t steps = 0;
    while (run_step(&p, slots))
        if (++steps > 50000) fail_msg("%s, seed %u: no end", c->name, seed);
    for (uint32_t i = 0; i < CROWD; i++) {
        st_conversation_free(p.members[i].conversation);
        free(p.members[i].tokens);
        free(p.members[i].alone);
        free(p.members[i].alone_nextn);
    }
    st_kv_use use = st_kv_count(st_run_kv(p.run.run));
    for (uint32_t i = 0; i < use.pool_count; i++) assert_int_equal(use.pools[i].held, 0);
    assert_int_equal(use.slots_taken, 0);
    golden_run_close(&p.run);
    double together = sqrt(p.differences / p.norms);
    if (c->mean && !(together <= c->error_max))
        fail_msg("%s, seed %u: relative error %g, expected %g", c->name, seed, together, c->error_max);
    return c->mean ? together : p.worst;
}

uint32_t crowd_seeds(uint32_t usual)
{
    const char *text = getenv("STRATA_CROWD_SEEDS");
    unsigned long seeds = text ? strtoul(text, NULL, 10) : 0;
    return seeds ? (uint32_t)seeds : usual;
}
