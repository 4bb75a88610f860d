/* src/sampler: each stage against a slow reference, draws against the distribution, and ranks against a sort. */
#include "support/kit.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "sampler/rank.h"
#include "sampler/sampler.h"

enum { VOCAB = 40 };

static unsigned random_state = 1;

static double uniform(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / (double)(1 << 24);
}

/* Random logits; every other time on a coarse grid, so that there are ties. */
static void random_logits(float *logits)
{
    bool coarse = uniform() < 0.5;
    for (int i = 0; i < VOCAB; i++) {
        double value = (uniform() - 0.5) * 8;
        logits[i] = coarse ? (float)round(value) : (float)value;
    }
}

static strata_sampling plain(void)
{
    return (strata_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1};
}

static st_sampler *make(const strata_sampling *sampling)
{
    st_sampler *sampler = NULL;
    strata_error error;
    if (st_sampler_new(sampling, VOCAB, &sampler, &error) != STRATA_OK) fail_msg("%s", error.message);
    return sampler;
}

static strata_token pick(st_sampler *sampler, const float *logits)
{
    strata_token token = -1;
    strata_error error;
    if (st_sampler_pick(sampler, logits, &token, &error) != STRATA_OK) fail_msg("%s", error.message);
    return token;
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

/* The probability of each token, stage by stage as the header says. `recent` are the tokens accepted last. */
static void distribution(const strata_sampling *s, const float *logits, const strata_token *recent, size_t recent_count,
                         double probability[VOCAB])
{
    double logit[VOCAB];
    for (int i = 0; i < VOCAB; i++) logit[i] = (double)logits[i];
    for (size_t b = 0; b < s->bias_count; b++) logit[s->biases[b].token] += (double)s->biases[b].bias;
    for (int i = 0; i < VOCAB; i++) {
        size_t count = 0, first = recent_count > s->penalty_tokens ? recent_count - s->penalty_tokens : 0;
        for (size_t k = first; k < recent_count; k++) count += recent[k] == i;
        if (count == 0) continue;
        if (logit[i] > 0) logit[i] /= (double)s->repeat_penalty;
        else logit[i] *= (double)s->repeat_penalty;
        logit[i] -= (double)count * (double)s->frequency_penalty + (double)s->presence_penalty;
    }
    int order[VOCAB]; /* by logit, then by id */
    for (int i = 0; i < VOCAB; i++) {
        int at = i;
        while (at > 0 && logit[order[at - 1]] < logit[i]) at--;
        memmove(order + at + 1, order + at, sizeof *order * (size_t)(i - at));
        order[at] = i;
    }
    int kept = s->temperature <= 0 ? 1 : s->top_k && s->top_k < VOCAB ? (int)s->top_k : VOCAB;
    double sum = 0, so_far = 0;
    for (int i = 0; i < kept; i++) sum += exp(logit[order[i]] - logit[order[0]]);
    for (int i = 0; i < kept && s->top_p < 1; i++) {
        so_far += exp(logit[order[i]] - logit[order[0]]) / sum;
        if (so_far >= (double)s->top_p) kept = i + 1;
    }
    while (kept > 1 && exp(logit[order[kept - 1]] - logit[order[0]]) < (double)s->min_p) kept--;
    for (int i = 0; i < VOCAB; i++) probability[i] = 0;
    sum = 0;
    for (int i = 0; i < kept; i++) {
        double difference = logit[order[i]] - logit[order[0]];
        probability[order[i]] = s->temperature <= 0 ? 1 : exp(difference / (double)s->temperature);
        sum += probability[order[i]];
    }
    for (int i = 0; i < VOCAB; i++) probability[i] /= sum;
}

/* Draws many times: no token of probability zero is drawn, and the others are drawn as often as they should be. */
static void check_draws(const strata_sampling *s, const float *logits, const strata_token *recent, size_t recent_count)
{
    enum { DRAWS = 4000 };
    double probability[VOCAB];
    distribution(s, logits, recent, recent_count, probability);
    st_sampler *sampler = make(s);
    for (size_t i = 0; i < recent_count; i++) st_sampler_accept(sampler, recent[i]);
    int seen[VOCAB] = {0};
    for (int i = 0; i < DRAWS; i++) {
        strata_token token = pick(sampler, logits);
        assert_in_range(token, 0, VOCAB - 1);
        seen[token]++;
    }
    double chi_square = 0;
    int cells = 0;
    for (int i = 0; i < VOCAB; i++) {
        double expected = probability[i] * DRAWS;
        if (probability[i] == 0 && seen[i]) fail_msg("token %d was drawn %d times: its probability is 0", i, seen[i]);
        if (expected < 8) continue;
        chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
        cells++;
        if (expected > 40 && !seen[i]) fail_msg("token %d was never drawn: expected %g times", i, expected);
    }
    if (chi_square > cells + 8 * sqrt(2.0 * cells) + 8) fail_msg("chi square %g over %d cells", chi_square, cells);
    st_sampler_free(sampler);
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static void temperature_alone(void **state)
{
    (void)state;
    static const float temperatures[] = {0.1f, 0.5f, 1, 2, 100};
    float logits[VOCAB];
    for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++) {
        strata_sampling s = plain();
        s.temperature = temperatures[i];
        random_logits(logits);
        check_draws(&s, logits, NULL, 0);
    }
}

/* At temperature 100 all kept tokens are almost equally likely, so draws show the whole set. */
static void top_k(void **state)
{
    (void)state;
    static const uint32_t ks[] = {1, 2, 3, 5, 10, 39, 40, 41, 1000};
    float logits[VOCAB];
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
        for (int round = 0; round < 3; round++) {
            strata_sampling s = plain();
            s.top_k = ks[i];
            s.temperature = 100;
            s.seed = (uint64_t)round;
            random_logits(logits);
            check_draws(&s, logits, NULL, 0);
        }
}

static void top_k_ties_go_to_the_lower_id(void **state)
{
    (void)state;
    float logits[VOCAB] = {0};
    logits[30] = 1;
    strata_sampling s = plain();
    s.top_k = 3;
    s.temperature = 100;
    double probability[VOCAB];
    distribution(&s, logits, NULL, 0, probability);
    for (int i = 0; i < VOCAB; i++) assert_int_equal(probability[i] > 0, i == 30 || i == 0 || i == 1);
    check_draws(&s, logits, NULL, 0);
}

static void top_p(void **state)
{
    (void)state;
    static const float ps[] = {0, 0.01f, 0.3f, 0.5f, 0.9f, 0.95f, 0.999f, 1};
    float logits[VOCAB];
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++)
        for (int round = 0; round < 4; round++) {
            strata_sampling s = plain();
            s.top_p = ps[i];
            s.top_k = round % 2 ? 20 : 0;
            s.temperature = 100;
            random_logits(logits);
            check_draws(&s, logits, NULL, 0);
        }
}

/* Four tokens of probability 1/4: two reach 0.5, and 0.51 needs the third. */
static void top_p_keeps_the_token_that_reaches_it(void **state)
{
    (void)state;
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = i < 4 ? 0 : -1000;
    static const struct { float p; int kept; } rows[] = {{0.25f, 1}, {0.26f, 2}, {0.5f, 2}, {0.51f, 3}, {0.75f, 3},
                                                         {0.76f, 4}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        strata_sampling s = plain();
        s.top_p = rows[r].p;
        st_sampler *sampler = make(&s);
        bool seen[VOCAB] = {false};
        for (int i = 0; i < 500; i++) seen[pick(sampler, logits)] = true;
        for (int i = 0; i < VOCAB; i++) assert_int_equal(seen[i], i < rows[r].kept);
        st_sampler_free(sampler);
    }
}

static void min_p(void **state)
{
    (void)state;
    static const float ps[] = {0, 0.001f, 0.05f, 0.2f, 0.5f, 0.9f};
    float logits[VOCAB];
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++)
        for (int round = 0; round < 4; round++) {
            strata_sampling s = plain();
            s.min_p = ps[i];
            s.temperature = 100;
            random_logits(logits);
            check_draws(&s, logits, NULL, 0);
        }
}

static void min_p_of_one_keeps_the_best_alone(void **state)
{
    (void)state;
    float logits[VOCAB] = {0};
    logits[7] = 0.5f;
    strata_sampling s = plain();
    s.min_p = 1;
    st_sampler *sampler = make(&s);
    for (int i = 0; i < 100; i++) assert_int_equal(pick(sampler, logits), 7);
    st_sampler_free(sampler);
}

static void penalties(void **state)
{
    (void)state;
    static const struct { float repeat, presence, frequency; uint32_t tokens; } rows[] = {
        {1.3f, 0, 0, 64}, {0.7f, 0, 0, 64}, {1, 1.5f, 0, 64}, {1, 0, 0.7f, 64},  {1, -1, 0.2f, 64},
        {2, 0.5f, 0.25f, 64}, {2, 0.5f, 0.25f, 3}, {2, 0.5f, 0.25f, 1}, {2, 0.5f, 0.25f, 0}};
    strata_token recent[20];
    float logits[VOCAB];
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int round = 0; round < 3; round++) {
            strata_sampling s = plain();
            s.repeat_penalty = rows[r].repeat;
            s.presence_penalty = rows[r].presence;
            s.frequency_penalty = rows[r].frequency;
            s.penalty_tokens = rows[r].tokens;
            s.temperature = 2;
            random_logits(logits);
            for (int i = 0; i < 20; i++) recent[i] = (strata_token)(uniform() * 10); /* some often, some never */
            check_draws(&s, logits, recent, 20);
        }
}

/* The repeat penalty divides a positive logit and multiplies a negative one. */
static void penalties_by_hand(void **state)
{
    (void)state;
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = -100;
    logits[3] = 4;
    logits[5] = 2.1f;
    strata_sampling s = plain();
    s.temperature = 0;
    s.repeat_penalty = 2;
    s.penalty_tokens = 8;
    st_sampler *sampler = make(&s);
    assert_int_equal(pick(sampler, logits), 3);
    st_sampler_accept(sampler, 3); /* 4 / 2 is below 2.1 */
    assert_int_equal(pick(sampler, logits), 5);
    st_sampler_accept(sampler, 5); /* 2.1 / 2 is below 2 */
    assert_int_equal(pick(sampler, logits), 3);
    for (int i = 0; i < 8; i++) st_sampler_accept(sampler, 9); /* both leave the window */
    assert_int_equal(pick(sampler, logits), 3);
    for (int i = 0; i < VOCAB; i++) logits[i] = -1000;
    logits[9] = -1;
    logits[8] = -1.5f;
    assert_int_equal(pick(sampler, logits), 8); /* −1 × 2 is below −1.5 */
    st_sampler_free(sampler);
}

static void logit_biases(void **state)
{
    (void)state;
    const strata_bias list[] = {{3, 5}, {4, -5}, {3, 1}, {39, -INFINITY}};
    float logits[VOCAB];
    strata_sampling s = plain();
    s.biases = list;
    s.bias_count = 4;
    for (int round = 0; round < 5; round++) {
        random_logits(logits);
        check_draws(&s, logits, NULL, 0);
    }
}

static void all_stages_together(void **state)
{
    (void)state;
    const strata_bias list[] = {{2, 1.5f}, {11, -INFINITY}};
    strata_token recent[30];
    float logits[VOCAB];
    for (int round = 0; round < 60; round++) {
        strata_sampling s = {.temperature = (float)(0.3 + 2 * uniform()), .top_k = (uint32_t)(uniform() * 45),
                             .top_p = (float)(0.3 + 0.7 * uniform()), .min_p = (float)(0.2 * uniform()),
                             .repeat_penalty = (float)(0.8 + uniform()), .presence_penalty = (float)(uniform() - 0.5),
                             .frequency_penalty = (float)(uniform() * 0.3),
                             .penalty_tokens = (uint32_t)(uniform() * 40),
                             .seed = (uint64_t)round, .biases = list, .bias_count = 2};
        random_logits(logits);
        for (int i = 0; i < 30; i++) recent[i] = (strata_token)(uniform() * VOCAB);
        check_draws(&s, logits, recent, 30);
    }
}

/* ---- extreme logits ---------------------------------------------------------------------------------------------- */

static void greedy_ties_go_to_the_lower_id(void **state)
{
    (void)state;
    float logits[VOCAB];
    strata_sampling s = plain();
    s.temperature = 0;
    s.top_k = 5; /* greedy sampling ignores it */
    st_sampler *sampler = make(&s);
    for (int round = 0; round < 200; round++) {
        random_logits(logits);
        int best = 0;
        for (int i = 1; i < VOCAB; i++)
            if (logits[i] > logits[best]) best = i;
        assert_int_equal(pick(sampler, logits), best);
    }
    st_sampler_free(sampler);
}

typedef struct odd {
    float others, value; /* token 17 has `value` */
    bool drawn;          /* token 17 is always drawn; otherwise never */
} odd;

static void extreme_logits(void **state)
{
    (void)state;
    static const odd rows[] = {{0, -INFINITY, false}, {-INFINITY, 0, true}, {-1e30f, FLT_MAX, true},
                               {FLT_MAX, -FLT_MAX, false}};
    static const float top_ps[] = {1, 0.9f}, min_ps[] = {0, 0.1f}, temperatures[] = {0, 0.01f, 1, 100};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int c = 0; c < 16; c++) {
            float logits[VOCAB];
            for (int i = 0; i < VOCAB; i++) logits[i] = rows[r].others;
            logits[17] = rows[r].value;
            strata_sampling s = plain();
            s.top_p = top_ps[c % 2];
            s.min_p = min_ps[c / 2 % 2];
            s.temperature = temperatures[c / 4];
            st_sampler *sampler = make(&s);
            for (int i = 0; i < 200; i++)
                if ((pick(sampler, logits) == 17) != rows[r].drawn) fail_msg("row %zu, case %d", r, c);
            st_sampler_free(sampler);
        }
}

/* NaN, +infinity or no finite logit is an error, and the sampler works afterwards. */
static void unusable_logits_are_errors(void **state)
{
    (void)state;
    static const struct { float others, value; const char *says; } rows[] = {
        {0, NAN, "NaN"},  {0, -NAN, "NaN"}, {0, INFINITY, "+infinity"}, {-INFINITY, NAN, "NaN"}, {NAN, 0, "NaN"},
        {INFINITY, 0, "+infinity"}, {-INFINITY, -INFINITY, "-infinity"}};
    static const strata_bias bias = {.token = 3, .bias = 1};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int place = 0; place < VOCAB; place++)
            for (int c = 0; c < 6; c++) {
                float logits[VOCAB];
                for (int i = 0; i < VOCAB; i++) logits[i] = rows[r].others;
                logits[place] = rows[r].value;
                strata_sampling s = plain();
                s.temperature = (float)(c % 3) / 2;
                s.biases = &bias;
                s.bias_count = (size_t)c / 3;
                st_sampler *sampler = make(&s);
                strata_error error = {0};
                strata_token token = -7;
                assert_int_equal(st_sampler_pick(sampler, logits, &token, &error), STRATA_RUNTIME);
                assert_int_equal(token, -7);
                if (!strstr(error.message, rows[r].says)) fail_msg("%s: does not say %s", error.message, rows[r].says);
                for (int i = 0; i < VOCAB; i++) logits[i] = i == 5 ? 100 : 0;
                assert_int_equal(pick(sampler, logits), 5);
                st_sampler_free(sampler);
            }
}

static void bans_that_leave_no_token_are_an_error(void **state)
{
    (void)state;
    strata_bias list[VOCAB];
    float logits[VOCAB] = {0};
    for (int i = 0; i < VOCAB; i++) list[i] = (strata_bias){.token = i, .bias = -INFINITY};
    strata_sampling s = plain();
    s.biases = list;
    s.bias_count = VOCAB;
    st_sampler *sampler = make(&s);
    strata_token token;
    strata_error error;
    assert_int_equal(st_sampler_pick(sampler, logits, &token, &error), STRATA_RUNTIME);
    assert_non_null(strstr(error.message, "no token is left"));
    st_sampler_free(sampler);
}

static void an_infinite_bias_forces_its_token(void **state)
{
    (void)state;
    const strata_bias list[] = {{21, INFINITY}};
    float logits[VOCAB];
    random_logits(logits);
    logits[21] = -INFINITY;
    strata_sampling s = plain();
    s.biases = list;
    s.bias_count = 1;
    for (int t = 0; t < 2; t++) {
        s.temperature = (float)t;
        st_sampler *sampler = make(&s);
        for (int i = 0; i < 100; i++) assert_int_equal(pick(sampler, logits), 21);
        st_sampler_free(sampler);
    }
}

/* ---- ranks: the same tokens as with a full sort ------------------------------------------------------------------ */

enum { MANY = 1501 };

typedef struct ranked {
    float logit;
    int id;
} ranked;

static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->id - y->id;
}

static uint64_t weight_of(float highest, float logit, float inverse)
{
    if (inverse == 0) return 1;
    float x = (highest - logit) * inverse;
    return (uint64_t)st_rank_weight(x < ST_RANK_X_MAX ? x : ST_RANK_X_MAX);
}

/* Logits that are difficult for a ranking by buckets. */
static void adversarial_logits(int kind, float *logits)
{
    for (int i = 0; i < MANY; i++) {
        float u = (float)uniform();
        switch (kind) {
        case 0: logits[i] = 1.25f; break;                                       /* all equal */
        case 1: logits[i] = i == 1400 ? 1e30f : u; break;                       /* one huge */
        case 2: logits[i] = u < 0.5f ? -INFINITY : 4 * u; break;                /* banned tokens */
        case 3: logits[i] = u * 1e-40f; break;                                  /* denormals */
        case 4: logits[i] = floorf(u * 8); break;                               /* ties */
        case 5: logits[i] = 20 * u - 10; break;
        case 6: logits[i] = i % 2 ? -0.0f : 0.0f; break;                        /* zeros of both signs */
        case 7: logits[i] = 5 + u * 0x1p-20f; break;                            /* a few neighbouring floats */
        case 8: logits[i] = i ? -ldexpf(1 + u, i % 200 - 100) : 0; break;       /* over all exponents */
        case 9: logits[i] = i == 7 ? -INFINITY : 3 + (float)(i % 3) * 0x1p-21f; break;
        case 10: logits[i] = i == 9 ? FLT_MAX : -FLT_MAX; break;
        default: logits[i] = -1000 - 30 * u * u; break;
        }
    }
}

enum { KINDS = 12 };

static void ranks_match_a_sort(void **state)
{
    (void)state;
    static float logits[MANY];
    static ranked sorted[MANY];
    static st_rank_member members[MANY];
    static st_rank rank;
    static const float inverses[] = {0, 1, 1.25f, 0.01f, 1e30f};
    rank.members = members;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t t = 0; t < sizeof inverses / sizeof *inverses; t++) {
            size_t count = kind % 2 ? MANY : 64 + (size_t)kind;
            adversarial_logits(kind, logits);
            for (size_t i = 0; i < count; i++) sorted[i] = (ranked){logits[i], (int)i};
            qsort(sorted, count, sizeof *sorted, compare_ranked);
            st_logit_range range = st_rank_range(logits, count);
            assert_true(range.usable);
            assert_true(range.highest == sorted[0].logit && range.lowest == sorted[count - 1].logit);
            st_rank_build(&rank, logits, count, range.highest, range.lowest, inverses[t]);
            uint64_t sum = 0;
            for (size_t i = 0; i < count; i++) {
                uint64_t weight = weight_of(range.highest, sorted[i].logit, inverses[t]);
                sum += weight;
                if (weight == 0 || (i % 37 && i > 20)) continue;
                uint64_t targets[] = {sum - weight + 1, sum};
                for (int k = 0; k < 2; k++) {
                    st_rank_place place = st_rank_find(&rank, targets[k]);
                    if (place.index != (size_t)sorted[i].id || place.sum != sum)
                        fail_msg("kind %d, inverse %g, rank %zu: token %zu instead of %d", kind, (double)inverses[t], i,
                                 place.index, sorted[i].id);
                }
            }
            assert_int_equal(rank.sum, sum);
        }
}

/* The sampling rules with a full sort and the same random numbers. */
static strata_token pick_sorted(const strata_sampling *s, const float *logits, st_sampler *random_source)
{
    static ranked sorted[MANY];
    for (int i = 0; i < MANY; i++) sorted[i] = (ranked){logits[i], i};
    qsort(sorted, MANY, sizeof *sorted, compare_ranked);
    size_t count = s->top_k && s->top_k < MANY ? s->top_k : MANY;
    float highest = sorted[0].logit;
    uint64_t sum = 0, reached = 0;
    for (size_t i = 0; i < count; i++) sum += weight_of(highest, sorted[i].logit, 1);
    for (size_t i = 0; i < count && s->top_p < 1; i++) {
        reached += weight_of(highest, sorted[i].logit, 1);
        if ((double)reached >= (double)s->top_p * (double)sum) count = i + 1;
    }
    while (s->min_p > 0 && sorted[count - 1].logit < highest + logf(s->min_p)) count--;
    sum = 0;
    for (size_t i = 0; i < count; i++) sum += weight_of(highest, sorted[i].logit, 1 / s->temperature);
    /* The next output of xoshiro256** from this state. */
    const uint64_t *r = st_sampler_random(random_source)->state;
    uint64_t word = r[1] * 5;
    word = (word << 7 | word >> 57) * 9;
    __extension__ typedef unsigned __int128 wide;
    uint64_t target = (uint64_t)((wide)word * sum >> 64) + 1;
    reached = 0;
    for (size_t i = 0; i < count; i++) {
        reached += weight_of(highest, sorted[i].logit, 1 / s->temperature);
        if (reached >= target) return sorted[i].id;
    }
    return -1;
}

static void draws_match_a_sort(void **state)
{
    (void)state;
    static float logits[MANY];
    static const strata_sampling rows[] = {
        {.temperature = 1, .top_p = 0.95f},
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.8f, .top_p = 0.95f},
        {.temperature = 1.5f, .top_p = 0.5f, .min_p = 0.02f},
        {.temperature = 1, .top_p = 0.95f, .min_p = 0.05f},
        {.temperature = 1, .top_k = 40, .top_p = 0.9f},
        {.temperature = 0.7f, .top_k = 1200, .top_p = 0.99f, .min_p = 1e-6f},
        {.temperature = 1e-6f, .top_p = 0.3f}};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            strata_sampling s = rows[r];
            s.repeat_penalty = 1;
            s.seed = (uint64_t)kind * 100 + r;
            st_sampler *sampler = NULL;
            assert_int_equal(st_sampler_new(&s, MANY, &sampler, NULL), STRATA_OK);
            adversarial_logits(kind, logits);
            for (int i = 0; i < 8; i++) {
                strata_token expected = pick_sorted(&s, logits, sampler), found = pick(sampler, logits);
                if (found != expected) fail_msg("kind %d, row %zu: token %d instead of %d", kind, r, found, expected);
            }
            st_sampler_free(sampler);
        }
}

static void weights_are_exponentials(void **state)
{
    (void)state;
    assert_true(st_rank_weight(0) == ST_RANK_UNIT);
    assert_int_equal((uint64_t)st_rank_weight(ST_RANK_X_MAX), 0);
    for (int i = 0; i < 100000; i++) {
        float x = (float)(uniform() * 27.25);
        double expected = exp(-(double)x) * 0x1p39, found = (double)st_rank_weight(x);
        if (fabs(found - expected) > 3e-6 * expected)
            fail_msg("exp(-%g): %g instead of %g", (double)x, found, expected);
    }
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static void a_seed_determines_the_draws(void **state)
{
    (void)state;
    float logits[VOCAB];
    random_logits(logits);
    strata_token first[2][50], other[50];
    strata_sampling s = plain();
    s.seed = 42;
    for (int round = 0; round < 2; round++) {
        st_sampler *sampler = make(&s);
        for (int i = 0; i < 50; i++) first[round][i] = pick(sampler, logits);
        st_sampler_free(sampler);
    }
    assert_memory_equal(first[0], first[1], sizeof *first);
    static const uint64_t others[] = {43, 0, STRATA_SEED_RANDOM};
    for (int k = 0; k < 3; k++) {
        s.seed = others[k];
        st_sampler *sampler = make(&s);
        for (int i = 0; i < 50; i++) other[i] = pick(sampler, logits);
        assert_memory_not_equal(first[0], other, sizeof other);
        st_sampler_free(sampler);
    }
}

/* A saved stream continues. */
static void a_saved_random_stream_continues(void **state)
{
    (void)state;
    float logits[VOCAB];
    random_logits(logits);
    strata_token whole[40], halves[40];
    strata_sampling s = plain();
    st_sampler *sampler = make(&s);
    for (int i = 0; i < 40; i++) whole[i] = pick(sampler, logits);
    st_sampler_free(sampler);
    sampler = make(&s);
    for (int i = 0; i < 20; i++) halves[i] = pick(sampler, logits);
    st_random kept = *st_sampler_random(sampler);
    st_sampler_free(sampler);
    sampler = make(&s);
    *st_sampler_random(sampler) = kept;
    for (int i = 20; i < 40; i++) halves[i] = pick(sampler, logits);
    st_sampler_free(sampler);
    assert_memory_equal(whole, halves, sizeof whole);
}

static void penalties_reach_back_beyond_a_million_tokens(void **state)
{
    (void)state;
    enum { TOKENS = (1 << 20) + 3 };
    float logits[VOCAB] = {0};
    strata_sampling s = plain();
    s.temperature = 0;
    s.presence_penalty = 1;
    s.penalty_tokens = TOKENS;
    st_sampler *sampler = make(&s);
    st_sampler_accept(sampler, 0);
    for (int i = 1; i < TOKENS; i++) st_sampler_accept(sampler, 1);
    assert_int_equal(pick(sampler, logits), 2);
    st_sampler_accept(sampler, 1); /* token 0 leaves the window */
    assert_int_equal(pick(sampler, logits), 0);
    st_sampler_free(sampler);
}

static void logits_are_not_modified(void **state)
{
    (void)state;
    float logits[VOCAB], copy[VOCAB];
    random_logits(logits);
    memcpy(copy, logits, sizeof copy);
    strata_sampling s = plain();
    s.repeat_penalty = 2;
    s.penalty_tokens = 4;
    st_sampler *sampler = make(&s);
    st_sampler_accept(sampler, 3);
    (void)pick(sampler, logits);
    assert_memory_equal(logits, copy, sizeof copy);
    st_sampler_free(sampler);
}

static void picking_allocates_nothing(void **state)
{
    (void)state;
    float logits[VOCAB];
    random_logits(logits);
    strata_sampling s = STRATA_SAMPLING_DEFAULT;
    s.top_k = 0;
    s.repeat_penalty = 1.1f;
    st_sampler *sampler = make(&s);
    st_fault_arm(ST_FAULT_ALLOC, UINT64_MAX, false);
    for (int i = 0; i < 200; i++) st_sampler_accept(sampler, pick(sampler, logits));
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_sampler_free(sampler);
}

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    static const strata_bias wrong[] = {{VOCAB, 1}, {-1, 1}, {3, NAN}};
    static const struct { const char *name; strata_sampling s; } rows[] = {
        {"temperature", {.temperature = -0.1f, .top_p = 1, .repeat_penalty = 1}},
        {"temperature", {.temperature = NAN, .top_p = 1, .repeat_penalty = 1}},
        {"temperature", {.temperature = INFINITY, .top_p = 1, .repeat_penalty = 1}},
        {"top_k", {.top_k = UINT32_MAX, .top_p = 1, .repeat_penalty = 1}},
        {"top_p", {.top_p = 1.01f, .repeat_penalty = 1}},
        {"top_p", {.top_p = -0.01f, .repeat_penalty = 1}},
        {"top_p", {.top_p = NAN, .repeat_penalty = 1}},
        {"min_p", {.top_p = 1, .min_p = 2, .repeat_penalty = 1}},
        {"min_p", {.top_p = 1, .min_p = -1, .repeat_penalty = 1}},
        {"repeat_penalty", {.top_p = 1, .repeat_penalty = 0}},
        {"repeat_penalty", {.top_p = 1, .repeat_penalty = -1}},
        {"presence_penalty", {.top_p = 1, .repeat_penalty = 1, .presence_penalty = INFINITY}},
        {"frequency_penalty", {.top_p = 1, .repeat_penalty = 1, .frequency_penalty = -1000}},
        {"bias_count", {.top_p = 1, .repeat_penalty = 1, .bias_count = SIZE_MAX}},
        {"biases: token", {.top_p = 1, .repeat_penalty = 1, .biases = &wrong[0], .bias_count = 1}},
        {"biases: token", {.top_p = 1, .repeat_penalty = 1, .biases = &wrong[1], .bias_count = 1}},
        {"biases: token 3", {.top_p = 1, .repeat_penalty = 1, .biases = &wrong[2], .bias_count = 1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        st_sampler *sampler = NULL;
        strata_error error = {0};
        assert_int_equal(st_sampler_new(&rows[i].s, VOCAB, &sampler, &error), STRATA_USAGE);
        assert_null(sampler);
        if (!strstr(error.message, rows[i].name)) fail_msg("%s: does not name %s", error.message, rows[i].name);
    }
    st_sampler_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_alone), cmocka_unit_test(top_k), cmocka_unit_test(top_k_ties_go_to_the_lower_id),
        cmocka_unit_test(top_p), cmocka_unit_test(top_p_keeps_the_token_that_reaches_it), cmocka_unit_test(min_p),
        cmocka_unit_test(min_p_of_one_keeps_the_best_alone), cmocka_unit_test(penalties),
        cmocka_unit_test(penalties_by_hand), cmocka_unit_test(logit_biases), cmocka_unit_test(all_stages_together),
        cmocka_unit_test(greedy_ties_go_to_the_lower_id), cmocka_unit_test(extreme_logits),
        cmocka_unit_test(unusable_logits_are_errors), cmocka_unit_test(bans_that_leave_no_token_are_an_error),
        cmocka_unit_test(an_infinite_bias_forces_its_token), cmocka_unit_test(ranks_match_a_sort),
        cmocka_unit_test(draws_match_a_sort), cmocka_unit_test(weights_are_exponentials),
        cmocka_unit_test(a_seed_determines_the_draws), cmocka_unit_test(a_saved_random_stream_continues),
        cmocka_unit_test(penalties_reach_back_beyond_a_million_tokens), cmocka_unit_test(logits_are_not_modified),
        cmocka_unit_test(picking_allocates_nothing), cmocka_unit_test(options_out_of_range_are_refused),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
