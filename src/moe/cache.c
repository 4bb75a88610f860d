#include "moe/cache.h"

#include <inttypes.h>
#include <math.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/error.h"
#include "moe/gate.h"
#include "moe/policy.h"

enum { EXPERTS_MAX = 1 << 20 };

/* An expert is uploaded on a prediction only if its predicted probability exceeds that of the victim by so much. */
#define HINT_MARGIN 0.1

typedef enum slot_state { SLOT_EMPTY, SLOT_WRITING, SLOT_READY } slot_state;

typedef struct layer {
    st_marks marks;
    st_gate gate;
    int32_t *where;      /* [experts]: its slot, ready or being written; −1: none */
    uint64_t *asked;     /* [experts]: the last event that chose it or spared it: that event does not evict it */
    bool *touched;       /* [experts]: chosen since it was last evicted */
    int32_t *holds;      /* [slots]: the expert; −1: none */
    slot_state *states;  /* [slots] */
    uint32_t empty_count;
    uint32_t placed;     /* at load */
    uint64_t event;
    double credit;       /* exchanges that the budget allows now */
} layer;

struct st_cache {
    st_arena arena; /* of all arrays */
    const st_policy *policy;
    uint32_t used, admission;
    double budget;
    layer *layers;
    int32_t *slot;            /* [most experts]: of the answer */
    uint32_t *missing;        /* [most experts]: misses without an upload under way */
    st_cache_upload *uploads; /* [most slots] */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bool allocate_layer(st_arena *arena, layer *l)
{
    uint32_t experts = l->marks.experts, slots = l->marks.slots;
    l->marks.stamp = st_arena_alloc(arena, experts, sizeof *l->marks.stamp);
    l->marks.slow = st_arena_alloc(arena, experts, sizeof *l->marks.slow);
    l->marks.fast = st_arena_alloc(arena, experts, sizeof *l->marks.fast);
    l->marks.resident = st_arena_alloc(arena, experts, sizeof *l->marks.resident);
    l->marks.guarded = st_arena_alloc(arena, experts, sizeof *l->marks.guarded);
    l->gate.balance = st_arena_alloc(arena, experts, sizeof *l->gate.balance);
    l->gate.until = st_arena_alloc(arena, experts, sizeof *l->gate.until);
    l->where = st_arena_alloc(arena, experts, sizeof *l->where);
    l->asked = st_arena_alloc(arena, experts, sizeof *l->asked);
    l->touched = st_arena_alloc(arena, experts, sizeof *l->touched);
    l->holds = st_arena_alloc(arena, slots, sizeof *l->holds);
    l->states = st_arena_alloc(arena, slots, sizeof *l->states);
    return l->marks.stamp && l->marks.slow && l->marks.fast && l->marks.resident && l->marks.guarded &&
           l->gate.balance && l->gate.until && l->where && l->asked && l->touched && l->holds && l->states;
}

static bool allocate(st_cache *cache, const st_cache_options *options)
{
    uint32_t most_experts = 0, most_slots = 0;
    cache->layers = st_arena_alloc(&cache->arena, options->layers, sizeof *cache->layers);
    for (uint32_t i = 0; cache->layers && i < options->layers; i++) {
        layer *l = &cache->layers[i];
        l->marks = (st_marks){.experts = options->experts[i], .slots = options->slots[i], .used = options->used};
        if (!allocate_layer(&cache->arena, l)) return false;
        if (l->marks.experts > most_experts) most_experts = l->marks.experts;
        if (l->marks.slots > most_slots) most_slots = l->marks.slots;
    }
    cache->slot = st_arena_alloc(&cache->arena, most_experts, sizeof *cache->slot);
    cache->missing = st_arena_alloc(&cache->arena, most_experts, sizeof *cache->missing);
    cache->uploads = st_arena_alloc(&cache->arena, most_slots, sizeof *cache->uploads);
    return cache->layers && cache->slot && cache->missing && cache->uploads;
}

static void init_layer(layer *l, double upload_cost)
{
    l->marks.slow_gain = l->marks.fast_gain = 1.0;
    st_gate_init(&l->gate, upload_cost, l->marks.slots, l->gate.balance, l->gate.until);
    for (uint32_t i = 0; i < l->marks.experts; i++) l->where[i] = -1;
    for (uint32_t i = 0; i < l->marks.slots; i++) l->holds[i] = -1;
    l->empty_count = l->marks.slots;
}

static strata_status check_options(const st_cache_options *o, strata_error *error)
{
    if (!st_policy_find(o->policy))
        return st_error_set(error, STRATA_USAGE, "strata replay lists them",
                            "placement.expert_policy: unknown policy %s", o->policy);
    if (o->used == 0 || o->admission > 2 || isnan(o->budget) || !(o->upload_cost >= 0.0))
        return st_error_set(error, STRATA_USAGE, NULL,
                            "the expert cache: expected experts per token, admission on touch 1 or 2, a budget and a "
                            "cost, found %" PRIu32 ", %" PRIu32 ", %g and %g",
                            o->used, o->admission, o->budget, o->upload_cost);
    for (uint32_t i = 0; i < o->layers; i++)
        if (o->experts[i] > EXPERTS_MAX || o->slots[i] > o->experts[i])
            return st_error_set(error, STRATA_USAGE, NULL,
                                "the expert cache: layer %" PRIu32 ": expected at most %d experts and no more slots, "
                                "found %" PRIu32 " and %" PRIu32, i, EXPERTS_MAX, o->experts[i], o->slots[i]);
    return STRATA_OK;
}

strata_status st_cache_new(const st_cache_options *options, st_cache **out, strata_error *error)
{
    strata_status status = check_options(options, error);
    if (status != STRATA_OK) return status;
    st_cache *cache = st_alloc_zero(1, sizeof *cache);
    if (!cache || !allocate(cache, options)) {
        st_cache_free(cache);
        return st_error_memory(error, options->layers * sizeof(layer), "the expert cache");
    }
    cache->policy = st_policy_find(options->policy);
    cache->used = options->used;
    cache->admission = options->admission ? options->admission : cache->policy->admission;
    cache->budget = options->budget;
    for (uint32_t i = 0; i < options->layers; i++) init_layer(&cache->layers[i], options->upload_cost);
    *out = cache;
    return STRATA_OK;
}

void st_cache_free(st_cache *cache)
{
    if (!cache) return;
    st_arena_free(&cache->arena);
    st_free(cache);
}

/* ---- one event --------------------------------------------------------------------------------------------------- */

/* Counts hits and misses. Writes the misses without an upload under way to `missing` and returns their number. */
static uint32_t look_up(st_cache *cache, layer *l, const st_cache_demand *demand, st_cache_answer *answer)
{
    uint32_t missing = 0;
    for (uint32_t i = 0; i < demand->count; i++) {
        uint32_t expert = demand->experts[i];
        int32_t slot = l->where[expert];
        bool ready = slot >= 0 && l->states[slot] == SLOT_READY;
        l->asked[expert] = l->event;
        cache->slot[i] = ready ? slot : -1;
        if (ready) answer->hits++;
        else if (slot >= 0) answer->coming++;
        else cache->missing[missing++] = expert;
    }
    answer->misses = demand->count - answer->hits;
    return missing;
}

/* The i-th expert's part of the weights, times `used`: comparable between routers whose weights have other sums. */
static double weight_of(const st_cache *cache, const st_cache_demand *demand, double weight_sum, uint32_t i)
{
    return demand->weights[i] > 0.0f ? demand->weights[i] * (double)cache->used / weight_sum : 0.0;
}

static void touch_all(const st_cache *cache, layer *l, const st_cache_demand *demand)
{
    uint32_t tokens = demand->tokens ? demand->tokens : 1;
    double weight_sum = 0.0;
    for (uint32_t i = 0; demand->weights && i < demand->count; i++)
        if (demand->weights[i] > 0.0f) weight_sum += demand->weights[i];
    bool weighed = demand->weights && weight_sum > 0.0 && isfinite(weight_sum);
    double even = (double)cache->used / (demand->count ? demand->count : 1); /* without counts and weights */
    st_marks_age(&l->marks, tokens);
    for (uint32_t i = 0; i < demand->count; i++) {
        st_touch touch = {.expert = demand->experts[i]};
        double weight = weighed ? weight_of(cache, demand, weight_sum, i) : -1.0;
        if (demand->uses) touch.share = (double)demand->uses[i] / tokens;
        else if (tokens == 1) touch.share = 1.0;
        else touch.share = fmin(weighed ? weight : even, 1.0);
        touch.weight = weighed ? weight : touch.share;
        cache->policy->touch(cache->policy, &l->marks, &touch);
        st_gate_use(&l->gate, touch.expert);
    }
}

static int32_t find_empty(const layer *l)
{
    for (uint32_t i = 0; l->empty_count && i < l->marks.slots; i++)
        if (l->states[i] == SLOT_EMPTY) return (int32_t)i;
    return -1;
}

/* The slot whose expert is worth least, among the slots that this event may evict; −1: none. */
static int32_t find_victim(const st_cache *cache, const layer *l)
{
    int32_t found = -1;
    for (uint32_t i = 0; i < l->marks.slots; i++) {
        if (l->states[i] != SLOT_READY || l->asked[l->holds[i]] == l->event) continue;
        if (found < 0 || st_policy_before(cache->policy, &l->marks, (uint32_t)l->holds[i], (uint32_t)l->holds[found]))
            found = (int32_t)i;
    }
    return found;
}

/* The index in `missing` of the next expert to upload: the router's next, or for a choosy policy the one worth most. */
static uint32_t choose(const st_cache *cache, const layer *l, uint32_t first, uint32_t count)
{
    uint32_t best = first;
    for (uint32_t i = first + 1; cache->policy->choosy && i < count; i++)
        if (st_policy_before(cache->policy, &l->marks, cache->missing[best], cache->missing[i])) best = i;
    return best;
}

static void clear_slot(layer *l, uint32_t slot)
{
    if (l->states[slot] == SLOT_EMPTY) return;
    uint32_t expert = (uint32_t)l->holds[slot];
    st_marks_leave(&l->marks, expert);
    l->where[expert] = -1;
    l->holds[slot] = -1;
    l->states[slot] = SLOT_EMPTY;
    l->empty_count++;
}

static void occupy(layer *l, uint32_t slot, uint32_t expert, slot_state state)
{
    l->where[expert] = (int32_t)slot;
    l->holds[slot] = (int32_t)expert;
    l->states[slot] = state;
    l->empty_count--;
    st_marks_enter(&l->marks, expert);
}

/* Takes an exchange from the budget; false: it is spent. */
static bool spend(const st_cache *cache, layer *l)
{
    if (cache->budget < 0.0) return true;
    if (l->credit < 1.0) return false;
    l->credit -= 1.0;
    return true;
}

/* Uploads one expert, or counts why not; false: none of the `left` experts can be uploaded. An empty slot is filled
 * without conditions, because nothing is evicted; after loading only failed copies leave empty slots. */
static bool upload_one(st_cache *cache, layer *l, uint32_t expert, uint32_t left, st_cache_answer *answer)
{
    int32_t slot = find_empty(l), victim = -1;
    if (slot < 0) {
        slot = find_victim(cache, l);
        if (slot < 0) {
            answer->no_room += left;
            return false;
        }
        victim = l->holds[slot];
        if (cache->policy->choosy && !st_policy_before(cache->policy, &l->marks, (uint32_t)victim, expert)) {
            answer->unwanted += left; /* sorted by worth: the others are worth no more */
            return false;
        }
        if (cache->admission > 1 && !l->touched[expert]) {
            answer->unwanted++;
            return true;
        }
        if (!st_gate_propose(&l->gate, expert, (uint32_t)victim)) {
            answer->unpaid++;
            l->asked[victim] = l->event; /* spared: the next proposal has another victim */
            return true;
        }
        if (!spend(cache, l)) {
            answer->over_budget++;
            return true;
        }
        l->touched[victim] = false;
        clear_slot(l, (uint32_t)slot);
    }
    occupy(l, (uint32_t)slot, expert, SLOT_WRITING);
    cache->uploads[answer->upload_count++] = (st_cache_upload){expert, (uint32_t)slot, victim};
    return true;
}

static void upload(st_cache *cache, layer *l, uint32_t missing, st_cache_answer *answer)
{
    for (uint32_t i = 0; i < missing; i++) {
        uint32_t best = choose(cache, l, i, missing), expert = cache->missing[best];
        cache->missing[best] = cache->missing[i];
        cache->missing[i] = expert;
        if (!upload_one(cache, l, expert, missing - i, answer)) return;
    }
}

void st_cache_ask(st_cache *cache, const st_cache_demand *demand, st_cache_answer *answer)
{
    layer *l = &cache->layers[demand->layer];
    *answer = (st_cache_answer){.slot = cache->slot, .uploads = cache->uploads};
    l->event++;
    double saved = fmax(cache->budget, cache->used);
    if (cache->budget >= 0.0) l->credit = fmin(l->credit + cache->budget, saved);
    st_gate_begin_event(&l->gate);
    uint32_t missing = look_up(cache, l, demand, answer);
    touch_all(cache, l, demand);
    upload(cache, l, missing, answer);
    for (uint32_t i = 0; i < demand->count; i++) l->touched[demand->experts[i]] = true;
}

/* ---- a prediction ------------------------------------------------------------------------------------------------ */

/* Whether an expert with that probability is worth the victim's slot. Where the policy's worth is not a frequency, the
 * probability must exceed a half. */
static bool worth_it(const st_cache *cache, const layer *l, uint32_t expert, uint32_t victim, double likely)
{
    const st_policy *policy = cache->policy;
    if (policy->unit <= 0.0) return likely > 0.5;
    double gain = policy->worth(policy, &l->marks, expert) - policy->worth(policy, &l->marks, victim);
    return gain + (likely - HINT_MARGIN) * policy->unit > 0.0;
}

void st_cache_hint(st_cache *cache, const st_cache_demand *likely, st_cache_answer *answer)
{
    layer *l = &cache->layers[likely->layer];
    *answer = (st_cache_answer){.slot = cache->slot, .uploads = cache->uploads};
    l->event++; /* predicted experts are not evicted; those of the last event may be */
    for (uint32_t i = 0; i < likely->count; i++) {
        uint32_t expert = likely->experts[i];
        l->asked[expert] = l->event;
        cache->slot[i] = st_cache_slot_of(cache, likely->layer, expert);
    }
    for (uint32_t i = 0; i < likely->count; i++) {
        uint32_t expert = likely->experts[i];
        int32_t slot = find_empty(l), victim = -1;
        if (l->where[expert] >= 0) continue;
        if (slot < 0) slot = find_victim(cache, l);
        if (slot < 0) return;
        victim = l->holds[slot];
        if (victim >= 0 && !worth_it(cache, l, expert, (uint32_t)victim, likely->weights[i])) continue;
        if (victim >= 0) l->touched[victim] = false;
        clear_slot(l, (uint32_t)slot);
        occupy(l, (uint32_t)slot, expert, SLOT_WRITING);
        cache->uploads[answer->upload_count++] = (st_cache_upload){expert, (uint32_t)slot, victim};
    }
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

void st_cache_filled(st_cache *cache, uint32_t layer_index, uint32_t slot)
{
    layer *l = &cache->layers[layer_index];
    if (l->states[slot] == SLOT_WRITING) l->states[slot] = SLOT_READY;
}

void st_cache_failed(st_cache *cache, uint32_t layer_index, uint32_t slot)
{
    clear_slot(&cache->layers[layer_index], slot);
}

int32_t st_cache_place(st_cache *cache, uint32_t layer_index, uint32_t expert)
{
    layer *l = &cache->layers[layer_index];
    if (expert >= l->marks.experts) return -1;
    if (l->where[expert] >= 0) return l->where[expert];
    int32_t slot = find_empty(l);
    if (slot < 0) return -1;
    occupy(l, (uint32_t)slot, expert, SLOT_READY);
    /* The first placed is evicted last. */
    if (l->marks.stamp[expert] == 0) l->marks.stamp[expert] = -(int64_t)++l->placed;
    return slot;
}

int32_t st_cache_slot_of(const st_cache *cache, uint32_t layer_index, uint32_t expert)
{
    const layer *l = &cache->layers[layer_index];
    if (expert >= l->marks.experts || l->where[expert] < 0) return -1;
    return l->states[l->where[expert]] == SLOT_READY ? l->where[expert] : -1;
}

size_t st_cache_policy_count(void)
{
    return st_policy_count;
}

const char *st_cache_policy_name(size_t index)
{
    return index < st_policy_count ? st_policies[index].name : NULL;
}
