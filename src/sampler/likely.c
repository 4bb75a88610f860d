#include "sampler/likely.h"

#include <math.h>

static size_t limit(size_t wanted, size_t count)
{
    if (wanted > STRATA_TOP_LOGPROBS_MAX) wanted = STRATA_TOP_LOGPROBS_MAX;
    return wanted < count ? wanted : count;
}

/* Inserts a logit behind the logits that are at least as high. */
static void insert(st_likely *out, size_t most, strata_token token, float logit)
{
    if (out->top_count == most && (most == 0 || !(logit > out->top[most - 1].logprob))) return;
    size_t at = out->top_count < most ? out->top_count++ : most - 1;
    for (; at > 0 && out->top[at - 1].logprob < logit; at--) out->top[at] = out->top[at - 1];
    out->top[at] = (strata_likely){token, logit};
}

void st_likely_of_logits(const float *logits, size_t vocab, strata_token token, size_t wanted, st_likely *out)
{
    size_t most = limit(wanted, vocab);
    float highest = -INFINITY;
    double sum = 0;
    *out = (st_likely){0};
    for (size_t i = 0; i < vocab; i++) {
        if (logits[i] > highest) highest = logits[i];
        insert(out, most, (strata_token)i, logits[i]);
    }
    for (size_t i = 0; i < vocab; i++) sum += exp((double)(logits[i] - highest));
    float norm = highest + (float)log(sum > 1 ? sum : 1); /* the highest term is 1 */
    out->logprob = logits[token] - norm;
    for (size_t i = 0; i < out->top_count; i++) out->top[i].logprob -= norm;
}

void st_likely_of_candidates(const st_candidates *best, strata_token token, size_t wanted, st_likely *out)
{
    *out = (st_likely){.logprob = -INFINITY, .top_count = limit(wanted, best->count)};
    for (uint32_t i = 0; i < best->count; i++)
        if (best->ids[i] == token) out->logprob = best->raw[i] - best->log_sum;
    for (size_t i = 0; i < out->top_count; i++)
        out->top[i] = (strata_likely){best->ids[i], best->raw[i] - best->log_sum};
}
