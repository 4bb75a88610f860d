#include "moe/policy.h"

#include <math.h>
#include <string.h>

/* In tokens. The optimum is flat (docs/experts.md): 12 to 20 are within half a point of it. */
#define SLOW_HALF_LIFE 16.0
#define FAST_HALF_LIFE 2.0
#define SLOW_SUM 23.587 /* 1 / (1 − 2^(−1/16)): the sum of decayed uses if every token is one */

/* Instead of decaying every mark at every event, new uses are added with a growing gain; at this gain all marks are
 * scaled back. */
#define GAIN_LIMIT 0x1p200

/* ---- decay ------------------------------------------------------------------------------------------------------- */

static void age_one(double *marks, uint32_t count, double *gain, double half_lives)
{
    double grown = half_lives < 400.0 ? *gain * exp2(half_lives) : INFINITY;
    if (grown < GAIN_LIMIT) {
        *gain = grown;
        return;
    }
    double scale = grown < INFINITY ? 1.0 / grown : 0.0; /* decayed to nothing */
    for (uint32_t i = 0; i < count; i++) marks[i] *= scale;
    *gain = 1.0;
}

/* 1 + d + d² + …, one term per token. */
static double decayed_sum(uint32_t tokens, double half_life)
{
    return tokens == 1 ? 1.0 : (1.0 - exp2(-(tokens / half_life))) / (1.0 - exp2(-1.0 / half_life));
}

void st_marks_age(st_marks *marks, uint32_t tokens)
{
    age_one(marks->slow, marks->experts, &marks->slow_gain, tokens / SLOW_HALF_LIFE);
    age_one(marks->fast, marks->experts, &marks->fast_gain, tokens / FAST_HALF_LIFE);
    marks->slow_sum = decayed_sum(tokens, SLOW_HALF_LIFE);
    marks->fast_sum = decayed_sum(tokens, FAST_HALF_LIFE);
}

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

static void touch_stamp(const st_policy *policy, st_marks *marks, const st_touch *touch)
{
    (void)policy;
    marks->stamp[touch->expert] = ++marks->clock;
}

static double worth_stamp(const st_policy *policy, const st_marks *marks, uint32_t expert)
{
    (void)policy;
    return (double)marks->stamp[expert];
}

/* The other slots are the probation segment: a quarter, and at least one token's experts, which would evict each other
 * otherwise. */
static uint32_t guarded_limit(const st_marks *marks)
{
    uint32_t probation = marks->slots / 4 > marks->used ? marks->slots / 4 : marks->used;
    return marks->slots > probation ? marks->slots - probation : 0;
}

/* The least recently used protected expert returns to probation as its most recent. */
static void demote_oldest(st_marks *marks)
{
    uint32_t oldest = UINT32_MAX;
    for (uint32_t i = 0; i < marks->experts; i++)
        if (marks->guarded[i] && (oldest == UINT32_MAX || marks->stamp[i] < marks->stamp[oldest])) oldest = i;
    if (oldest == UINT32_MAX) return;
    marks->guarded[oldest] = false;
    marks->guarded_count--;
    marks->stamp[oldest] = ++marks->clock;
}

static void touch_segments(const st_policy *policy, st_marks *marks, const st_touch *touch)
{
    touch_stamp(policy, marks, touch);
    if (!marks->resident[touch->expert] || marks->guarded[touch->expert]) return;
    marks->guarded[touch->expert] = true;
    marks->guarded_count++;
    if (marks->guarded_count > guarded_limit(marks)) demote_oldest(marks);
}

static double worth_segments(const st_policy *policy, const st_marks *marks, uint32_t expert)
{
    return worth_stamp(policy, marks, expert) + (marks->guarded[expert] ? 0x1p51 : 0.0);
}

static void touch_uses(const st_policy *policy, st_marks *marks, const st_touch *touch)
{
    touch_stamp(policy, marks, touch);
    double part = policy->slow_weight;
    double slow = (1.0 - part) * touch->share + part * touch->weight;
    marks->slow[touch->expert] += marks->slow_gain * marks->slow_sum * slow;
    marks->fast[touch->expert] += marks->fast_gain * marks->fast_sum * touch->share;
}

/* Proportional to the estimated uses per token. */
static double worth_uses(const st_policy *policy, const st_marks *marks, uint32_t expert)
{
    return marks->slow[expert] / marks->slow_gain + policy->fast_share * (marks->fast[expert] / marks->fast_gain);
}

const st_policy st_policies[] = {
    /* docs/experts.md compares them. A fast share of 0.35 is 5 % once the sums are divided by their half-lives. */
    {"blend", 1, true, 0.5, 0.35, SLOW_SUM, touch_uses, worth_uses},
    {"lru", 1, false, 0.0, 0.0, 0.0, touch_stamp, worth_stamp},
    {"slru", 1, false, 0.0, 0.0, 0.0, touch_segments, worth_segments},
    {"lfu", 1, false, 0.0, 0.0, SLOW_SUM, touch_uses, worth_uses},
};
const size_t st_policy_count = sizeof st_policies / sizeof *st_policies;

const st_policy *st_policy_find(const char *name)
{
    if (!name) return &st_policies[0];
    for (size_t i = 0; i < st_policy_count; i++)
        if (strcmp(st_policies[i].name, name) == 0) return &st_policies[i];
    return NULL;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

void st_marks_enter(st_marks *marks, uint32_t expert)
{
    marks->resident[expert] = true;
}

void st_marks_leave(st_marks *marks, uint32_t expert)
{
    marks->resident[expert] = false;
    if (marks->guarded[expert]) marks->guarded_count--;
    marks->guarded[expert] = false;
}

bool st_policy_before(const st_policy *policy, const st_marks *marks, uint32_t a, uint32_t b)
{
    double worth_a = policy->worth(policy, marks, a), worth_b = policy->worth(policy, marks, b);
    return worth_a != worth_b ? worth_a < worth_b : marks->stamp[a] < marks->stamp[b];
}
