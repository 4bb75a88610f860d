/* src/moe/cache.c: a million random events against a simple model of the cache, and the upload gate on synthetic
 * routings. */
#include "support/kit.h"

#include <stdlib.h>
#include <string.h>

#include "moe/cache.h"

enum { LAYERS = 5, EXPERTS_MAX = 48, SLOTS_MAX = 24 };

typedef struct model {
    int32_t slot_of[EXPERTS_MAX]; /* filled or being written; −1: none */
    int32_t holds[SLOTS_MAX];
    bool writing[SLOTS_MAX];
} model;

typedef struct rig {
    st_cache *cache;
    uint32_t experts[LAYERS], slots[LAYERS], used;
    model models[LAYERS];
    uint64_t random;
    uint64_t hits, misses, uploads, reasons, hints;
} rig;

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static uint32_t draw_demand(rig *r, uint32_t layer, uint32_t out[EXPERTS_MAX])
{
    uint32_t experts = r->experts[layer], limit = draw(&r->random, 50) == 0 ? experts : r->used, count = 0;
    uint32_t wanted = 1 + draw(&r->random, limit), span = draw(&r->random, 2) ? experts : (experts + 2) / 3;
    bool taken[EXPERTS_MAX] = {false};
    for (uint32_t tries = 0; count < wanted && tries < 4 * wanted; tries++) {
        uint32_t expert = draw(&r->random, span);
        if (taken[expert]) continue;
        taken[expert] = true;
        out[count++] = expert;
    }
    return count;
}

static void check_uploads(rig *r, uint32_t layer, const uint32_t *demand, uint32_t count, const st_cache_answer *a)
{
    model *m = &r->models[layer];
    for (uint32_t u = 0; u < a->upload_count; u++) {
        const st_cache_upload *upload = &a->uploads[u];
        assert_true(upload->slot < r->slots[layer] && upload->expert < r->experts[layer]);
        assert_false(m->writing[upload->slot]);             /* no upload to the slot is in flight */
        assert_int_equal(m->slot_of[upload->expert], -1);   /* in at most one slot */
        assert_int_equal(m->holds[upload->slot], upload->evicted);
        bool asked = false;
        for (uint32_t i = 0; i < count; i++) {
            assert_true(upload->evicted < 0 || (uint32_t)upload->evicted != demand[i]); /* no event evicts what it uses */
            asked |= demand[i] == upload->expert;
        }
        assert_true(asked);
        if (upload->evicted >= 0) m->slot_of[upload->evicted] = -1;
        m->slot_of[upload->expert] = (int32_t)upload->slot;
        m->holds[upload->slot] = (int32_t)upload->expert;
        m->writing[upload->slot] = true;
    }
}

static void ask(rig *r)
{
    uint32_t layer = draw(&r->random, LAYERS), demand[EXPERTS_MAX], count;
    float weights[EXPERTS_MAX];
    model *m = &r->models[layer];
    if (r->experts[layer] == 0) return;
    count = draw_demand(r, layer, demand);
    for (uint32_t i = 0; i < count; i++) weights[i] = (float)draw(&r->random, 1000) / 1000.0f;
    st_cache_demand d = {.layer = layer, .count = count, .experts = demand,
                         .weights = draw(&r->random, 4) ? weights : NULL,
                         .tokens = draw(&r->random, 40) ? 1 : 1 + draw(&r->random, 4096)};
    st_cache_answer a;
    st_cache_ask(r->cache, &d, &a);
    uint32_t hits = 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t slot = m->slot_of[demand[i]], usable = slot >= 0 && !m->writing[slot] ? slot : -1;
        assert_int_equal(a.slot[i], usable); /* a hit if and only if its upload is complete */
        hits += usable >= 0;
    }
    assert_int_equal(a.hits, hits);
    assert_int_equal(a.misses, count - hits);
    uint32_t reasons = a.coming + a.unwanted + a.unpaid + a.over_budget + a.no_room;
    assert_int_equal(a.upload_count + reasons, a.misses);
    check_uploads(r, layer, demand, count, &a);
    r->hits += a.hits;
    r->misses += a.misses;
    r->uploads += a.upload_count;
    r->reasons += reasons;
}

/* A prediction: no expert is uploaded twice, and no likely one is evicted. */
static void hint(rig *r)
{
    uint32_t layer = draw(&r->random, LAYERS), likely[EXPERTS_MAX];
    float weights[EXPERTS_MAX];
    st_cache_answer a;
    if (r->experts[layer] == 0) return;
    st_cache_demand d = {.layer = layer, .count = draw_demand(r, layer, likely), .experts = likely, .weights = weights};
    for (uint32_t i = 0; i < d.count; i++) weights[i] = (float)draw(&r->random, 1000) / 1000.0f;
    st_cache_hint(r->cache, &d, &a);
    check_uploads(r, layer, likely, d.count, &a);
    r->hints += a.upload_count;
}

/* Copies end in any order, and some fail; their slots become empty. */
static void disturb(rig *r)
{
    uint32_t layer = draw(&r->random, LAYERS);
    model *m = &r->models[layer];
    if (r->slots[layer] == 0) return;
    uint32_t slot = draw(&r->random, r->slots[layer]), what = draw(&r->random, 200);
    if (what < 150) {
        st_cache_filled(r->cache, layer, slot);
        m->writing[slot] = false;
    } else if (what < 160) {
        st_cache_failed(r->cache, layer, slot);
        if (m->holds[slot] >= 0) m->slot_of[m->holds[slot]] = -1;
        m->holds[slot] = -1;
        m->writing[slot] = false;
    } else if (what < 165) {
        uint32_t expert = draw(&r->random, r->experts[layer]);
        int32_t before = m->slot_of[expert], placed = st_cache_place(r->cache, layer, expert);
        if (before >= 0) assert_int_equal(placed, before);
        else if (placed >= 0) {
            assert_int_equal(m->holds[placed], -1);
            m->slot_of[expert] = placed;
            m->holds[placed] = (int32_t)expert;
        }
    }
}

static void check_state(const rig *r)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        const model *m = &r->models[l];
        for (uint32_t e = 0; e < r->experts[l]; e++) {
            int32_t slot = m->slot_of[e];
            assert_int_equal(st_cache_slot_of(r->cache, l, e), slot >= 0 && !m->writing[slot] ? slot : -1);
        }
    }
}

static void stress(st_cache_options options, uint64_t seed, uint32_t events)
{
    rig r = {.used = 4, .random = seed};
    for (uint32_t l = 0; l < LAYERS; l++) {
        r.experts[l] = l == 1 ? 0 : 1 + draw(&r.random, EXPERTS_MAX);
        uint32_t most = r.experts[l] < SLOTS_MAX ? r.experts[l] : SLOTS_MAX;
        r.slots[l] = l == 2 ? most : draw(&r.random, most + 1);
        for (uint32_t e = 0; e < EXPERTS_MAX; e++) r.models[l].slot_of[e] = -1;
        for (uint32_t s = 0; s < SLOTS_MAX; s++) r.models[l].holds[s] = -1;
    }
    options.layers = LAYERS;
    options.experts = r.experts;
    options.slots = r.slots;
    options.used = r.used;
    assert_int_equal(st_cache_new(&options, &r.cache, NULL), STRATA_OK);
    for (uint32_t i = 0; i < events; i++) {
        ask(&r);
        if (i % 8 == 0) hint(&r);
        for (uint32_t n = draw(&r.random, 8); n > 0; n--) disturb(&r);
        if (i % 1024 == 0) check_state(&r);
    }
    check_state(&r);
    assert_true(r.hits > 0 && r.misses > 0 && r.uploads > 0 && r.hints > 0 && r.uploads + r.reasons == r.misses);
    st_cache_free(r.cache);
}

static void a_million_random_events_keep_the_invariants(void **state)
{
    (void)state;
    const double budgets[] = {-1.0, 0.3, 2.0}, costs[] = {0.0, 0.5};
    uint32_t runs = 0, events = kit_is_slow() ? 1000 : 1000000 / 48 + 1;
    for (size_t p = 0; p < st_cache_policy_count(); p++)
        for (uint32_t admission = 1; admission <= 2; admission++)
            for (size_t b = 0; b < 3; b++)
                for (size_t c = 0; c < 2; c++, runs++)
                    stress((st_cache_options){.policy = st_cache_policy_name(p), .admission = admission,
                                              .budget = budgets[b], .upload_cost = costs[c]}, 1000 + runs, events);
    assert_true(kit_is_slow() || (uint64_t)runs * events >= 1000000);
}

/* ---- the gate ---------------------------------------------------------------------------------------------------- */

enum { WIDE = 128, HELD = 48, CHOSEN = 8 };

/* Uploads per event of `events`; local: the demand wanders slowly through a sixth of the experts. */
static double uploads_of(st_cache *cache, uint64_t *random, bool local, uint32_t events)
{
    uint32_t uploads = 0;
    for (uint32_t i = 0; i < events; i++) {
        uint32_t wanted[CHOSEN], base = i / 20 * 3;
        bool taken[WIDE] = {false};
        for (uint32_t n = 0; n < CHOSEN;) {
            uint32_t expert = local ? (base + draw(random, 20)) % WIDE : draw(random, WIDE);
            if (taken[expert]) continue;
            taken[expert] = true;
            wanted[n++] = expert;
        }
        st_cache_demand demand = {.count = CHOSEN, .experts = wanted};
        st_cache_answer answer;
        st_cache_ask(cache, &demand, &answer);
        uploads += answer.upload_count;
        for (uint32_t u = 0; u < answer.upload_count; u++) st_cache_filled(cache, 0, answer.uploads[u].slot);
    }
    return (double)uploads / events;
}

static void the_gate_stops_uploads_that_cost_too_much(void **state)
{
    (void)state;
    const uint32_t experts = WIDE, slots = HELD;
    for (size_t p = 0; p < st_cache_policy_count(); p++) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            uint64_t random = seed;
            st_cache *cache = NULL;
            st_cache_options options = {.layers = 1, .experts = &experts, .slots = &slots, .used = CHOSEN,
                                        .policy = st_cache_policy_name(p), .budget = -1.0, .upload_cost = 1.0};
            assert_int_equal(st_cache_new(&options, &cache, NULL), STRATA_OK);
            for (uint32_t i = 0; i < HELD; i++) assert_true(st_cache_place(cache, 0, i) >= 0);
            double first = uploads_of(cache, &random, false, 100), settled = uploads_of(cache, &random, false, 900);
            double local = uploads_of(cache, &random, true, 400), again = uploads_of(cache, &random, true, 400);
            uploads_of(cache, &random, false, 200);
            double uniform = uploads_of(cache, &random, false, 800);
            if (first > 1.0 || settled > 0.2) fail_msg("%s: uniform: %g, %g uploads", options.policy, first, settled);
            if (local < 0.05 || again < 0.1) fail_msg("%s: local: %g, %g uploads", options.policy, local, again);
            if (uniform > 0.3) fail_msg("%s: uniform again: %g uploads", options.policy, uniform);
            st_cache_free(cache);
            /* Without a cost the gate stays open: only the policy's admission limits uploads. */
            options.upload_cost = 0.0;
            options.policy = "lru";
            assert_int_equal(st_cache_new(&options, &cache, NULL), STRATA_OK);
            assert_true(uploads_of(cache, &random, false, 300) > 3.0);
            st_cache_free(cache);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_random_events_keep_the_invariants),
        cmocka_unit_test(the_gate_stops_uploads_that_cost_too_much),
    };
    return cmocka_run_group_tests_name("cache stress", tests, NULL, NULL);
}
