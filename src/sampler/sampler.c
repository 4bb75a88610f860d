#include "sampler/sampler.h"

#include <float.h>
#include <math.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"

typedef struct candidate {
    strata_token id;
    float logit;
} candidate;

struct st_sampler {
    strata_sampling sampling;
    size_t vocab;
    candidate *candidates;  /* [vocab] */
    strata_bias *biases;    /* [sampling.bias_count] */
    strata_token *recent;   /* [sampling.penalty_tokens], a ring */
    size_t recent_count, recent_next;
    uint32_t *counts;       /* [vocab]: how often a token is in the ring */
    uint64_t random[4];
};

/* --- random numbers: xoshiro256** seeded by splitmix64 ----------------------------------------------------------------------- */

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

static double next_uniform(uint64_t s[4])
{
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

static void seed_random(st_sampler *sampler)
{
    uint64_t seed = sampler->sampling.seed;
    if (seed == STRATA_SEED_RANDOM && getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)time(NULL);
    for (int i = 0; i < 4; i++) sampler->random[i] = splitmix(&seed);
}

/* --- life ------------------------------------------------------------------------------------------------------------------------ */

enum { PENALTY_TOKENS_MAX = 1 << 20, BIASES_MAX = 1 << 20 };

static strata_status check_range(const char *name, double value, double min, double max, strata_error *error)
{
    if (value >= min && value <= max) return STRATA_OK; /* false for NaN */
    return st_error_set(error, STRATA_USAGE, NULL, "%s: expected %g to %g, found %g", name, min, max, value);
}

static strata_status check_sampling(const strata_sampling *s, size_t vocab, strata_error *error)
{
    const struct { const char *name; double value, min, max; } ranges[] = {
        {"temperature", s->temperature, 0, 100},
        {"top-k", s->top_k, 0, INT32_MAX},
        {"top-p", s->top_p, 0, 1},
        {"min-p", s->min_p, 0, 1},
        {"repeat penalty", s->repeat_penalty, 0.01, 100},
        {"presence penalty", s->presence_penalty, -100, 100},
        {"frequency penalty", s->frequency_penalty, -100, 100},
        {"penalty tokens", s->penalty_tokens, 0, PENALTY_TOKENS_MAX},
        {"number of biases", (double)s->bias_count, 0, BIASES_MAX},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        strata_status status = check_range(ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, error);
        if (status != STRATA_OK) return status;
    }
    for (size_t i = 0; i < s->bias_count; i++) {
        if (isnan(s->biases[i].bias))
            return st_error_set(error, STRATA_USAGE, NULL, "bias of token %d: expected a number", s->biases[i].token);
        strata_status status = check_range("token of a bias", s->biases[i].token, 0, (double)vocab - 1, error);
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
    sampler->candidates = st_alloc_array(vocab, sizeof *sampler->candidates);
    sampler->biases = st_alloc_array(sampling->bias_count, sizeof *sampler->biases);
    sampler->recent = st_alloc_array(sampling->penalty_tokens, sizeof *sampler->recent);
    sampler->counts = st_alloc_zero(vocab, sizeof *sampler->counts);
    if (!sampler->candidates || !sampler->biases || !sampler->recent || !sampler->counts) {
        st_sampler_free(sampler);
        return st_error_memory(error, vocab * (sizeof(candidate) + sizeof(uint32_t)), "the sampler");
    }
    for (size_t i = 0; i < sampling->bias_count; i++) sampler->biases[i] = sampling->biases[i];
    seed_random(sampler);
    *out = sampler;
    return STRATA_OK;
}

void st_sampler_free(st_sampler *sampler)
{
    if (!sampler) return;
    st_free(sampler->candidates);
    st_free(sampler->biases);
    st_free(sampler->recent);
    st_free(sampler->counts);
    st_free(sampler);
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

/* --- the chain ---------------------------------------------------------------------------------------------------------------------- */

static bool changes_logits(const strata_sampling *s)
{
    return s->bias_count || s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

static void apply_penalties(st_sampler *sampler)
{
    const strata_sampling *s = &sampler->sampling;
    if (!changes_logits(s)) return;
    for (size_t i = 0; i < sampler->vocab; i++) { /* candidates are still in the order of their ids */
        uint32_t count = sampler->counts[i];
        if (count == 0) continue;
        float *logit = &sampler->candidates[i].logit;
        *logit = *logit <= 0 ? *logit * s->repeat_penalty : *logit / s->repeat_penalty;
        *logit -= (float)count * s->frequency_penalty + s->presence_penalty;
    }
}

/* Higher logit first, lower id on ties. */
static bool comes_before(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void swap(candidate *a, candidate *b)
{
    candidate other = *a;
    *a = *b;
    *b = other;
}

static void sift_down(candidate *heap, size_t count, size_t at)
{
    for (;;) {
        size_t worst = at, left = 2 * at + 1, right = left + 1;
        if (left < count && comes_before(heap[worst], heap[left])) worst = left;
        if (right < count && comes_before(heap[worst], heap[right])) worst = right;
        if (worst == at) return;
        swap(&heap[at], &heap[worst]);
        at = worst;
    }
}

/* The best k to the front, in order: a heap of the best so far with its worst on top, then taken apart. In place:
 * qsort would allocate. */
static void sort_best(candidate *candidates, size_t count, size_t k)
{
    for (size_t i = k / 2; i-- > 0;) sift_down(candidates, k, i);
    for (size_t i = k; i < count; i++) {
        if (!comes_before(candidates[i], candidates[0])) continue;
        candidates[0] = candidates[i];
        sift_down(candidates, k, 0);
    }
    for (size_t left = k; left > 1; left--) {
        swap(&candidates[0], &candidates[left - 1]);
        sift_down(candidates, left - 1, 0);
    }
}

static size_t keep_top_p(const candidate *sorted, size_t count, float top_p)
{
    if (top_p >= 1) return count;
    double sum = 0, reached = 0;
    for (size_t i = 0; i < count; i++) sum += exp((double)sorted[i].logit - sorted[0].logit);
    for (size_t i = 0; i < count; i++) {
        reached += exp((double)sorted[i].logit - sorted[0].logit);
        if (reached >= (double)top_p * sum) return i + 1;
    }
    return count;
}

static size_t keep_min_p(const candidate *sorted, size_t count, float min_p)
{
    if (min_p <= 0) return count;
    float least = sorted[0].logit + logf(min_p);
    size_t kept = 1;
    while (kept < count && sorted[kept].logit >= least) kept++;
    return kept;
}

static strata_token draw(st_sampler *sampler, size_t count)
{
    const candidate *c = sampler->candidates;
    double temperature = sampler->sampling.temperature, sum = 0;
    for (size_t i = 0; i < count; i++) sum += exp(((double)c[i].logit - c[0].logit) / temperature);
    double point = next_uniform(sampler->random) * sum;
    strata_token chosen = c[0].id;
    for (size_t i = 0; i < count && point >= 0; i++) {
        double share = exp(((double)c[i].logit - c[0].logit) / temperature);
        if (share > 0) chosen = c[i].id; /* rounding may leave the point behind the end: never on what cannot come */
        point -= share;
    }
    return chosen;
}

/* What is no number is the least likely; infinities become numbers, so that differences of logits are. */
static float finite_logit(float logit)
{
    if (isnan(logit) || logit < -FLT_MAX) return -FLT_MAX;
    return logit > FLT_MAX ? FLT_MAX : logit;
}

static void fill_candidates(st_sampler *sampler, const float *logits)
{
    for (size_t i = 0; i < sampler->vocab; i++)
        sampler->candidates[i] = (candidate){.id = (strata_token)i, .logit = finite_logit(logits[i])};
    for (size_t i = 0; i < sampler->sampling.bias_count; i++)
        sampler->candidates[sampler->biases[i].token].logit += sampler->biases[i].bias;
    apply_penalties(sampler);
    for (size_t i = 0; i < sampler->vocab; i++) sampler->candidates[i].logit = finite_logit(sampler->candidates[i].logit);
}

/* The likeliest token needs no list of candidates. NaN is never larger. */
static strata_token likeliest(const float *logits, size_t vocab)
{
    size_t best = 0;
    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best] || isnan(logits[best])) best = i;
    return (strata_token)best;
}

strata_token st_sampler_pick(st_sampler *sampler, const float *logits)
{
    const strata_sampling *s = &sampler->sampling;
    if (s->temperature <= 0 && !changes_logits(s)) return likeliest(logits, sampler->vocab);
    fill_candidates(sampler, logits);
    size_t count = s->temperature <= 0 ? 1 : s->top_k;
    if (count == 0 || count > sampler->vocab) count = sampler->vocab;
    sort_best(sampler->candidates, sampler->vocab, count);
    if (count == 1) return sampler->candidates[0].id;
    count = keep_top_p(sampler->candidates, count, s->top_p);
    count = keep_min_p(sampler->candidates, count, s->min_p);
    return draw(sampler, count);
}
