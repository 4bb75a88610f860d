/* The reference of ST_OP_CANDIDATES. */
#include "backend/cpu/ref.h"

#include "sampler/candidates.h"

static float adjusted(const st_adjustments *list, int32_t id, float logit)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i].id == id) return st_adjusted(logit, &list->items[i]);
    return logit;
}

/* Inserts behind all that are at least as high: tokens come in the order of their ids. */
static void insert(st_candidates *best, int32_t id, float logit, float raw)
{
    uint32_t at = best->count;
    if (at == ST_CANDIDATES_MAX && !(logit > best->logits[at - 1])) return;
    if (at == ST_CANDIDATES_MAX) at--;
    else best->count++;
    for (; at > 0 && best->logits[at - 1] < logit; at--) {
        best->ids[at] = best->ids[at - 1];
        best->logits[at] = best->logits[at - 1];
        best->raw[at] = best->raw[at - 1];
    }
    best->ids[at] = id;
    best->logits[at] = logit;
    best->raw[at] = raw;
}

static void candidates_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    const float *logits = st_cpu_row(call->bound->in[0], row);
    const st_adjustments *list = (const st_adjustments *)(const void *)st_cpu_row(call->bound->in[1], row);
    st_candidates *out = (st_candidates *)(void *)st_cpu_row(call->bound->out, row);
    size_t vocab = call->bound->in[0].width;
    double sum = 0;
    (void)worker;
    *out = (st_candidates){.highest = -INFINITY};
    for (size_t i = 0; i < vocab; i++) {
        if (!(logits[i] <= FLT_MAX)) out->flags = ST_CANDIDATES_BROKEN;
        if (logits[i] > out->highest) out->highest = logits[i];
        insert(out, (int32_t)i, adjusted(list, (int32_t)i, logits[i]), logits[i]);
    }
    for (size_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)out->highest);
    out->log_sum = out->highest > -FLT_MAX ? (float)(out->highest + log(sum)) : -INFINITY;
}

void st_ref_candidates(const st_cpu_call *call)
{
    st_ref_each_row(call, candidates_row);
}
