#include "sampler/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "sampler/rank.h"

struct st_sampler {
    strata_sampling sampling;
    size_t vocab;
    float *logits;        /* [vocab]: logits with biases and penalties; later the candidates' logits */
    strata_token *ids;    /* [vocab]: the candidates, if they are not all tokens */
    strata_bias *biases;  /* [sampling.bias_count] */
    const strata_token *banned; /* [banned_count], the caller's */
    size_t banned_count;
    strata_token *recent; /* [sampling.penalty_tokens], a ring */
    size_t recent_count, recent_next;
    uint32_t *counts;     /* [vocab]: how often a token is in the ring */
    st_random random;
    st_rank rank;
};

/* --- random numbers: xoshiro256** seeded by splitmix64 ------------------------------------------------------------ */

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t rotate_left(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t next_random(uint64_t s[4])
{
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* Starts a stream; STRATA_SEED_RANDOM takes the seed from the system. */
static void start_stream(st_random *random, uint64_t seed)
{
    if (seed == STRATA_SEED_RANDOM && getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)time(NULL);
    for (int i = 0; i < 4; i++) random->state[i] = splitmix(&seed);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

enum { BIASES_MAX = 1 << 20, VOCAB_MAX = 1 << 24 };

static strata_status check_range(const char *name, double value, double min, double max, strata_error *error)
{
    if (value >= min && value <= max) return STRATA_OK; /* false for NaN */
    return st_error_set(error, STRATA_USAGE, NULL, "%s: expected %g to %g, found %g", name, min, max, value);
}

static strata_status check_sampling(const strata_sampling *s, size_t vocab, strata_error *error)
{
    const struct { const char *name; double value, min, max; } ranges[] = {
        {"temperature", s->temperature, 0, 100},
        {"top_k", s->top_k, 0, INT32_MAX},
        {"top_p", s->top_p, 0, 1},
        {"min_p", s->min_p, 0, 1},
        {"repeat_penalty", s->repeat_penalty, 0.01, 100},
        {"presence_penalty", s->presence_penalty, -100, 100},
        {"frequency_penalty", s->frequency_penalty, -100, 100},
        {"bias_count", (double)s->bias_count, 0, BIASES_MAX},
        {"vocabulary", (double)vocab, 1, VOCAB_MAX},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        strata_status status = check_range(ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, error);
        if (status != STRATA_OK) return status;
    }
    for (size_t i = 0; i < s->bias_count; i++) {
        if (isnan(s->biases[i].bias))
            return st_error_set(error, STRATA_USAGE, NULL, "biases: token %d: expected a number, found NaN",
                                s->biases[i].token);
        strata_status status = check_range("biases: token", s->biases[i].token, 0, (double)vocab - 1, error);
        if (status != STRATA_OK) return status;
    }
    return STRATA_OK;
}

strata_status st_sampler_new(const strata_sampling *sampling, size_t vocab, st_sampler **out, strata_error *error)
{
    strata_status status = check_sampling(sampling, vocab, error);
    if (status != STRATA_OK) return status;
    st_sampler *sampler = st_alloc_zero(1, sizeof *sampler);
    if (!sampler) return st_error_memory(error, sizeof *sampler, "the sampler");
    sampler->sampling = *sampling;
    sampler->vocab = vocab;
    sampler->logits = st_alloc_array(vocab, sizeof *sampler->logits);
    sampler->ids = st_alloc_array(vocab, sizeof *sampler->ids);
    sampler->rank.members = st_alloc_array(vocab, sizeof *sampler->rank.members);
    sampler->biases = st_alloc_array(sampling->bias_count, sizeof *sampler->biases);
    sampler->recent = st_alloc_array(sampling->penalty_tokens, sizeof *sampler->recent);
    sampler->counts = st_alloc_zero(vocab, sizeof *sampler->counts);
    if (!sampler->logits || !sampler->ids || !sampler->rank.members || !sampler->biases || !sampler->recent ||
        !sampler->counts) {
        st_sampler_free(sampler);
        return st_error_memory(error, vocab * (sizeof(st_rank_member) + 3 * sizeof(uint32_t)), "the sampler");
    }
    for (size_t i = 0; i < sampling->bias_count; i++) sampler->biases[i] = sampling->biases[i];
    start_stream(&sampler->random, sampling->seed);
    *out = sampler;
    return STRATA_OK;
}

void st_sampler_free(st_sampler *sampler)
{
    if (!sampler) return;
    st_free(sampler->logits);
    st_free(sampler->ids);
    st_free(sampler->rank.members);
    st_free(sampler->biases);
    st_free(sampler->recent);
    st_free(sampler->counts);
    st_free(sampler);
}

void st_sampler_ban(st_sampler *sampler, const strata_token *ids, size_t count)
{
    sampler->banned = ids;
    sampler->banned_count = count;
}

st_random *st_sampler_random(st_sampler *sampler)
{
    return &sampler->random;
}

void st_sampler_accept(st_sampler *sampler, strata_token token)
{
    size_t capacity = sampler->sampling.penalty_tokens;
    if (capacity == 0) return;
    if (sampler->recent_count == capacity) sampler->counts[sampler->recent[sampler->recent_next]]--;
    else sampler->recent_count++;
    sampler->recent[sampler->recent_next] = token;
    sampler->recent_next = (sampler->recent_next + 1) % capacity;
    sampler->counts[token]++;
}

/* --- logits ------------------------------------------------------------------------------------------------------- */

static const char damaged[] =
    "the model file may be damaged, or a kernel is wrong: compare with the CPU kernels \"ref\"";

static strata_status refuse_all(strata_error *error)
{
    return st_error_set(error, STRATA_RUNTIME, NULL, "every logit is -infinity: no token is left to choose");
}

static strata_status refuse_logits(const float *logits, size_t vocab, strata_error *error)
{
    size_t i = 0;
    while (i + 1 < vocab && logits[i] <= FLT_MAX) i++;
    return st_error_set(error, STRATA_RUNTIME, damaged, "the logit of token %zu is %s: expected a number", i,
                        isnan(logits[i]) ? "NaN" : "+infinity");
}

static bool changes_logits(const st_sampler *sampler)
{
    const strata_sampling *s = &sampler->sampling;
    return sampler->banned_count || s->bias_count || s->repeat_penalty != 1 || s->presence_penalty != 0 ||
           s->frequency_penalty != 0;
}

/* A bias of +infinity forces a token, and one of -infinity bans it. */
static void apply_biases(st_sampler *sampler)
{
    for (size_t i = 0; i < sampler->sampling.bias_count; i++) {
        float *logit = &sampler->logits[sampler->biases[i].token], bias = sampler->biases[i].bias;
        *logit = bias > FLT_MAX ? FLT_MAX : *logit + bias;
    }
    for (size_t i = 0; i < sampler->banned_count; i++)
        if ((size_t)sampler->banned[i] < sampler->vocab) sampler->logits[sampler->banned[i]] = -INFINITY;
}

static void apply_penalties(st_sampler *sampler)
{
    const strata_sampling *s = &sampler->sampling;
    for (size_t i = 0; i < sampler->vocab; i++) {
        uint32_t count = sampler->counts[i];
        if (count == 0) continue;
        float *logit = &sampler->logits[i];
        *logit = *logit <= 0 ? *logit * s->repeat_penalty : *logit / s->repeat_penalty;
        *logit -= (float)count * s->frequency_penalty + s->presence_penalty;
        if (*logit > FLT_MAX) *logit = FLT_MAX;
    }
}

/* --- the chain ---------------------------------------------------------------------------------------------------- */

/* The candidate tokens, in the order of their ids. */
typedef struct candidates {
    const float *logits; /* [count] */
    const strata_token *ids; /* NULL: all tokens, and an index is an id */
    size_t count;
    float highest, lowest;
} candidates;

/* Keeps the tokens with a logit above `least`, and those equal to it up to index `last`. */
static void keep(st_sampler *sampler, candidates *c, float least, size_t last)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (!(c->logits[i] >= least) || (c->logits[i] == least && i > last)) continue;
        sampler->ids[kept] = c->ids ? c->ids[i] : (strata_token)i;
        sampler->logits[kept++] = c->logits[i];
    }
    *c = (candidates){sampler->logits, sampler->ids, kept, c->highest, least};
}

static st_rank *rank(st_sampler *sampler, const candidates *c, float inverse_temperature)
{
    st_rank_build(&sampler->rank, c->logits, c->count, c->highest, c->lowest, inverse_temperature);
    return &sampler->rank;
}

static void keep_top_k(st_sampler *sampler, candidates *c)
{
    size_t k = sampler->sampling.top_k;
    if (k == 0 || k >= c->count) return;
    size_t last = st_rank_find(rank(sampler, c, 0), k).index;
    keep(sampler, c, c->logits[last], last);
}

/* Top-p and min-p keep a prefix of the ranking. At temperature 1 without min-p the draw has the same weights as top-p,
 * so it uses that ranking and limits the target to the prefix's sum instead of removing tokens. */
static strata_token draw(st_sampler *sampler, candidates *c)
{
    const strata_sampling *s = &sampler->sampling;
    uint64_t sum = 0; /* of the weights to draw from; 0: the ranking has other weights */
    if (s->top_p < 1) {
        st_rank *r = rank(sampler, c, 1);
        uint64_t target = (uint64_t)ceil((double)s->top_p * (double)r->sum);
        st_rank_place last = st_rank_find(r, target < 1 ? 1 : target < r->sum ? target : r->sum);
        if (s->temperature == 1 && s->min_p <= 0) sum = last.sum;
        else keep(sampler, c, c->logits[last.index], last.index);
    }
    if (s->min_p > 0) keep(sampler, c, fmaxf(c->lowest, c->highest + logf(s->min_p)), c->count);
    if (sum == 0) sum = rank(sampler, c, 1 / s->temperature)->sum;
    __extension__ typedef unsigned __int128 wide;
    uint64_t target = (uint64_t)((wide)next_random(sampler->random.state) * sum >> 64) + 1;
    size_t index = st_rank_find(&sampler->rank, target).index;
    return c->ids ? c->ids[index] : (strata_token)index;
}

strata_status st_sampler_pick(st_sampler *sampler, const float *logits, strata_token *token, strata_error *error)
{
    const strata_sampling *s = &sampler->sampling;
    st_logit_range range = st_rank_range(logits, sampler->vocab);
    if (!range.usable) return refuse_logits(logits, sampler->vocab, error);
    if (changes_logits(sampler)) {
        memcpy(sampler->logits, logits, sampler->vocab * sizeof *logits);
        apply_biases(sampler);
        apply_penalties(sampler);
        logits = sampler->logits;
        range = st_rank_range(logits, sampler->vocab);
    }
    if (!(range.highest >= -FLT_MAX)) return refuse_all(error);
    candidates c = {logits, NULL, sampler->vocab, range.highest, range.lowest};
    if (s->temperature <= 0) {
        size_t best = 0;
        while (logits[best] != range.highest) best++;
        *token = (strata_token)best;
        return STRATA_OK;
    }
    keep_top_k(sampler, &c);
    *token = draw(sampler, &c);
    return STRATA_OK;
}

/* --- from the best tokens ----------------------------------------------------------------------------------------- */

static bool has_penalties(const strata_sampling *s)
{
    return s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

static st_adjustment *find_adjustment(st_adjustments *list, uint32_t count, strata_token token)
{
    for (uint32_t i = 0; i < count; i++)
        if (list->items[i].id == token) return &list->items[i];
    return NULL;
}

/* The token's adjustment, made if the list has none among its first `known`; NULL: the list is full. */
static st_adjustment *adjustment_of(st_adjustments *list, uint32_t known, strata_token token)
{
    st_adjustment *found = find_adjustment(list, known, token);
    if (found || list->count == ST_ADJUSTMENTS_MAX) return found;
    list->items[list->count] = (st_adjustment){.id = token};
    return &list->items[list->count++];
}

static bool adjust_biases(const st_sampler *sampler, st_adjustments *out)
{
    for (size_t i = 0; i < sampler->sampling.bias_count; i++) {
        uint32_t before = out->count;
        st_adjustment *a = adjustment_of(out, before, sampler->biases[i].token);
        if (!a || out->count == before) return false; /* sums of floats depend on their order */
        a->bias = sampler->biases[i].bias;
    }
    for (size_t i = 0; i < sampler->banned_count; i++) {
        if ((size_t)sampler->banned[i] >= sampler->vocab) continue;
        st_adjustment *a = adjustment_of(out, out->count, sampler->banned[i]);
        if (!a) return false;
        a->bias = -INFINITY;
    }
    return true;
}

/* Each token of the ring once: a mark in its count tells that it was seen. */
static bool adjust_penalties(st_sampler *sampler, st_adjustments *out)
{
    const strata_sampling *s = &sampler->sampling;
    const uint32_t seen = 1u << 31, biased = out->count;
    bool all = true;
    for (size_t i = 0; i < sampler->recent_count && all; i++) {
        strata_token token = sampler->recent[i];
        uint32_t count = sampler->counts[token];
        if (count & seen) continue;
        sampler->counts[token] |= seen;
        st_adjustment *a = adjustment_of(out, biased, token);
        all = a != NULL;
        if (!a) continue;
        a->repeat = s->repeat_penalty;
        a->subtract = (float)count * s->frequency_penalty + s->presence_penalty;
    }
    for (size_t i = 0; i < sampler->recent_count; i++) sampler->counts[sampler->recent[i]] &= ~seen;
    return all;
}

bool st_sampler_adjust(st_sampler *sampler, st_adjustments *out)
{
    const strata_sampling *s = &sampler->sampling;
    bool few = s->temperature <= 0 || (s->top_k > 0 && s->top_k <= ST_CANDIDATES_MAX) ||
               sampler->vocab <= ST_CANDIDATES_MAX;
    out->count = 0;
    return few && adjust_biases(sampler, out) && (!has_penalties(s) || adjust_penalties(sampler, out));
}

typedef struct token_logit {
    strata_token id;
    float logit;
} token_logit;

static int compare_ids(const void *a, const void *b)
{
    const token_logit *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* The best `count`, at least one, in the order of their ids, as top-k leaves them. */
static candidates take_best(st_sampler *sampler, const st_candidates *best, size_t count)
{
    token_logit order[ST_CANDIDATES_MAX];
    size_t taken = 0;
    do order[taken] = (token_logit){best->ids[taken], best->logits[taken]};
    while (++taken < count);
    qsort(order, count, sizeof *order, compare_ids);
    for (size_t i = 0; i < count; i++) {
        sampler->ids[i] = order[i].id;
        sampler->logits[i] = order[i].logit;
    }
    return (candidates){sampler->logits, sampler->ids, count, best->logits[0], best->logits[count - 1]};
}

/* The record comes from a device. */
static strata_status check_best(const st_sampler *sampler, const st_candidates *best, strata_error *error)
{
    bool sound = best->count >= 1 && best->count <= ST_CANDIDATES_MAX;
    for (uint32_t i = 0; sound && i < best->count; i++)
        sound = best->ids[i] >= 0 && (size_t)best->ids[i] < sampler->vocab;
    if (sound) return STRATA_OK;
    return st_error_set(error, STRATA_RUNTIME, damaged,
                        "candidates: expected 1 to %d tokens below %zu, found %u that do not fit", ST_CANDIDATES_MAX,
                        sampler->vocab, best->count);
}

strata_status st_sampler_pick_among(st_sampler *sampler, const st_candidates *best, strata_token *token,
                                    strata_error *error)
{
    const strata_sampling *s = &sampler->sampling;
    strata_status status = check_best(sampler, best, error);
    if (status != STRATA_OK) return status;
    if (best->flags & ST_CANDIDATES_BROKEN)
        return st_error_set(error, STRATA_RUNTIME, damaged, "a logit is NaN or +infinity: expected numbers");
    if (!(best->logits[0] >= -FLT_MAX)) return refuse_all(error);
    if (s->temperature <= 0) {
        *token = best->ids[0];
        return STRATA_OK;
    }
    candidates c = take_best(sampler, best, s->top_k && s->top_k < best->count ? s->top_k : best->count);
    *token = draw(sampler, &c);
    return STRATA_OK;
}
