/* The record by which a device that computed a row of logits offers it to the sampler: the best tokens, instead of all.
 * Plain data for operations (ST_OP_CANDIDATES), the executor and the sampler; usable from C and .cu. */
#ifndef ST_SAMPLER_CANDIDATES_H
#define ST_SAMPLER_CANDIDATES_H

#include <float.h>
#include <stdint.h>

enum {
    ST_CANDIDATES_MAX = 256,   /* of a row */
    ST_ADJUSTMENTS_MAX = 1024, /* of a row */
};

/* What biases and penalties do to one token's logit (st_adjusted). Each token at most once in a row. */
typedef struct st_adjustment {
    int32_t id;
    float bias;     /* added; more than FLT_MAX: the logit becomes FLT_MAX */
    float repeat;   /* then: a positive logit is divided by it, another one multiplied; 0: no penalties */
    float subtract; /* then: subtracted */
} st_adjustment;

/* The same operations in the same order on every device: none of them may be fused. */
static inline float st_adjusted(float logit, const st_adjustment *a)
{
    logit = a->bias > FLT_MAX ? FLT_MAX : logit + a->bias;
    if (a->repeat > 0) {
        logit = logit <= 0 ? logit * a->repeat : logit / a->repeat;
        logit -= a->subtract;
        if (logit > FLT_MAX) logit = FLT_MAX;
    }
    return logit;
}

typedef struct st_adjustments {
    uint32_t count;
    uint32_t unused[3];
    st_adjustment items[ST_ADJUSTMENTS_MAX];
} st_adjustments;

enum { ST_CANDIDATES_BROKEN = 1 }; /* a raw logit is NaN or +infinity: the other fields mean nothing */

/* The best tokens by adjusted logit, the highest first and the lower id first among equal ones. */
typedef struct st_candidates {
    uint32_t count;   /* ST_CANDIDATES_MAX, or the size of a smaller vocabulary */
    uint32_t flags;
    float highest;    /* of all raw logits */
    float log_sum;    /* of exp(raw logit), over all tokens */
    int32_t ids[ST_CANDIDATES_MAX];
    float logits[ST_CANDIDATES_MAX]; /* adjusted */
    float raw[ST_CANDIDATES_MAX];
} st_candidates;

#endif
