/* Tokens ranked by logit, without sorting them: the highest logit first, the lower index first among equal logits.
 * Finds the token at which the running sum of weights, taken in that order, reaches a target. Time is linear in the
 * number of tokens. Knows no sampling rule and no randomness.
 *
 * A weight is 1, or exp(-x) with x = (highest logit - logit) * inverse_temperature as a fixed-point number. Sums of
 * integers do not depend on the order of addition, so the result is exactly that of a full sort. */
#ifndef ST_SAMPLER_RANK_H
#define ST_SAMPLER_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ST_RANK_COPIES histograms are filled side by side: additions to one bucket in a row would wait for each other. */
enum { ST_RANK_BUCKETS = 1024, ST_RANK_COPIES = 4 };

/* The weight of the highest logit is 2^39: 2^24 tokens fit in 63 bits. Weights at ST_RANK_X_MAX and beyond are zero. */
#define ST_RANK_UNIT 0x1p39f
#define ST_RANK_X_MAX 27.25f

typedef struct st_logit_range {
    float highest, lowest;
    bool usable; /* no NaN and no +infinity */
} st_logit_range;

st_logit_range st_rank_range(const float *logits, size_t count); /* count > 0 */

typedef struct st_rank_member {
    uint32_t index;
    uint32_t key;    /* the logit as an integer that sorts the same way */
    uint64_t weight;
} st_rank_member;

typedef struct st_rank {
    const float *logits;         /* [count], no NaN, no +infinity */
    size_t count;                /* at most 2^24 */
    float highest, lowest;       /* bounds of the logits; the highest one is finite */
    float inverse_temperature;   /* 0: every token weighs 1 */
    float bucket_x, bucket_scale; /* a token's bucket is (highest - logit) * bucket_x * bucket_scale */
    uint64_t sum;                /* of all weights */
    uint64_t sums[ST_RANK_COPIES][ST_RANK_BUCKETS];
    st_rank_member *members;     /* [count], scratch that the caller provides */
} st_rank;

typedef struct st_rank_place {
    size_t index;
    uint64_t sum; /* of the weights up to and with this token */
} st_rank_place;

/* Weighs the tokens. `members` must be set; logits stay in use until the last st_rank_find. */
void st_rank_build(st_rank *rank, const float *logits, size_t count, float highest, float lowest,
                   float inverse_temperature);

/* The first token at which the running sum reaches `target`, which is 1 to rank->sum. */
st_rank_place st_rank_find(st_rank *rank, uint64_t target);

/* exp(-x) * ST_RANK_UNIT for 0 <= x <= ST_RANK_X_MAX, within 3e-6 of the true value. Only additions, multiplications
 * and bit operations: the result is the same on every machine and in every vector width. */
static inline float st_rank_weight(float x)
{
    static const float round_to_int = 0x1.8p23f;
    static const int32_t rounded_zero = 0x4B400000; /* the bits of round_to_int */
    float power = x * -1.44269504f, rounded = power + round_to_int, rest = power - (rounded - round_to_int);
    int32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    bits = (bits - rounded_zero + 127 + 39) << 23; /* 2^(integer part) * ST_RANK_UNIT */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    /* 2^rest = exp(rest * ln 2) by its Taylor series, |rest| <= 1/2. */
    float series = 1.54035304e-4f;
    series = series * rest + 1.33335581e-3f;
    series = series * rest + 9.61812911e-3f;
    series = series * rest + 5.55041087e-2f;
    series = series * rest + 2.40226507e-1f;
    series = series * rest + 6.93147181e-1f;
    series = series * rest + 1.0f;
    return series * scale;
}

#endif
