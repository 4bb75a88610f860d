/* Reference operations of routed experts. */
#include "backend/cpu/ref.h"

/* A router's scratch: what experts are selected by, and what groups are. */
typedef struct route_scores {
    const st_op *op;
    float *experts; /* [experts] */
    float *groups;  /* [groups] */
} route_scores;

static size_t best_of(const float *scores, size_t count)
{
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

/* The sum of the `top` largest scores of a group: one or two. */
static float group_score(const float *scores, size_t count, size_t top)
{
    float first = -INFINITY, second = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        second = fmaxf(second, fminf(first, scores[i]));
        first = fmaxf(first, scores[i]);
    }
    return top > 1 && count > 1 ? first + second : first;
}

/* Experts outside the best groups are not selected. */
static void drop_groups(const route_scores *s)
{
    size_t groups = s->op->p.route.groups, size = s->op->p.route.experts / (groups ? groups : 1);
    if (groups <= 1) return;
    for (size_t g = 0; g < groups; g++)
        s->groups[g] = group_score(s->experts + g * size, size, s->op->p.route.group_top);
    for (size_t i = 0; i < s->op->p.route.groups_used; i++) s->groups[best_of(s->groups, groups)] = -INFINITY;
    for (size_t g = 0; g < groups; g++) /* the best are marked */
        for (size_t i = 0; s->groups[g] != -INFINITY && i < size; i++) s->experts[g * size + i] = -INFINITY;
}

/* Scores become probabilities. Sigmoids saturate: without bias and groups the scores themselves select. A softmax over
 * the chosen experts is computed when they are known. */
static void score_experts(const st_cpu_call *call, float *scores, const route_scores *s)
{
    const st_bound_weight *bias = &call->bound->weight[0];
    size_t experts = call->op->p.route.experts;
    st_router router = call->op->p.route.router;
    bool softmax = router == ST_ROUTER_SOFTMAX;
    bool plain = !softmax && !bias->data && call->op->p.route.groups <= 1;
    if (plain) memcpy(s->experts, scores, experts * sizeof *scores);
    if (softmax) st_ref_softmax(scores, experts);
    for (size_t i = 0; i < experts; i++) {
        if (router == ST_ROUTER_SIGMOID) scores[i] = st_ref_sigmoid(scores[i]);
        if (!plain) s->experts[i] = scores[i] + (bias->data ? st_cpu_element(bias, i) : 0);
    }
}

/* Overwrites the scores; no later operation reads them. */
static void route_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    float *scores = st_cpu_row(call->bound->in[0], row);
    int32_t *ids = (int32_t *)call->bound->out.data + row * call->bound->out.width;
    float *weights = st_cpu_row(call->bound->out2, row), scale = call->op->p.route.scale;
    size_t experts = call->op->p.route.experts, used = call->op->p.route.used;
    route_scores s = {.op = call->op, .experts = st_cpu_scratch(call, worker)};
    s.groups = s.experts + experts;
    score_experts(call, scores, &s);
    drop_groups(&s);
    for (size_t i = 0; i < used; i++) {
        size_t best = best_of(s.experts, experts);
        ids[i] = (int32_t)best;
        weights[i] = scores[best];
        s.experts[best] = -INFINITY;
    }
    if (call->op->p.route.router == ST_ROUTER_SOFTMAX_CHOSEN) st_ref_softmax(weights, used);
    float sum = 0;
    for (size_t i = 0; i < used; i++) sum += weights[i];
    for (size_t i = 0; i < used; i++)
        weights[i] = weights[i] / (call->op->p.route.renormalise ? sum : 1) * (scale > 0 ? scale : 1);
}

/* A recorded choice replaces the router's. */
static void take_recorded(const st_cpu_call *call, size_t row)
{
    const uint32_t *choice = st_step_choices(call->step, row) + call->op->p.route.choices_at;
    size_t used = call->op->p.route.used;
    if ((int32_t)choice[0] < 0) return;
    memcpy((int32_t *)call->bound->out.data + row * call->bound->out.width, choice, used * sizeof *choice);
    memcpy(st_cpu_row(call->bound->out2, row), choice + used, used * sizeof *choice);
}

void st_ref_route(const st_cpu_call *call)
{
    st_ref_each_row(call, route_row);
    for (size_t row = 0; call->op->p.route.recorded && row < call->rows; row++) take_recorded(call, row);
}

/* out[columns] = `columns` rows of one expert's matrix, starting at `first`, · in, with the expert's row of biases */
static void expert_matmul(const st_bound_weight *w, const st_bound_weight *bias, size_t expert, size_t first,
                          size_t columns, const float *in, float *row, float *out)
{
    for (size_t i = 0; i < columns; i++) {
        st_ref_load_row(w, w->parts[expert], first + i, row);
        out[i] = st_ref_dot(row, in, w->ne[0]) + (bias->data ? st_cpu_element(bias, expert * columns + i) : 0);
    }
}

/* The scratch of a worker. */
typedef struct expert_rows {
    float *input;      /* [E] */
    float *gate, *up;  /* [F] */
    float *matrix_row; /* [max(E, F)] */
} expert_rows;

/* out += weight × what the expert makes of r->input */
static void add_expert(const st_cpu_call *call, size_t expert, float weight, const expert_rows *r, float *out)
{
    const st_bound_op *bound = call->bound;
    const st_bound_weight *first = &bound->weight[0], *down = &bound->weight[2], *biases = &bound->weight[4];
    size_t width = call->op->p.experts.width, embedding = bound->in[0].width;
    bool fused = call->op->p.experts.fused, ungated = call->op->p.experts.ungated;
    expert_matmul(first, &biases[0], expert, 0, width, r->input, r->matrix_row, r->gate);
    if (!ungated)
        expert_matmul(fused ? first : &bound->weight[1], &biases[1], expert, fused ? width : 0, width, r->input,
                      r->matrix_row, r->up);
    for (size_t k = 0; k < width; k++)
        r->gate[k] = st_ref_gated(call->op->p.experts.activation, r->gate[k], ungated ? 1 : r->up[k]);
    for (size_t k = 0; k < embedding; k++) {
        st_ref_load_row(down, down->parts[expert], k, r->matrix_row);
        float bias = biases[2].data ? st_cpu_element(&biases[2], expert * embedding + k) : 0;
        out[k] += weight * (st_ref_dot(r->matrix_row, r->gate, width) + bias);
    }
}

static void experts_row(const st_cpu_call *call, uint32_t worker, size_t row)
{
    const st_bound_op *bound = call->bound;
    const st_bound_weight *factors = &bound->weight[3];
    size_t width = call->op->p.experts.width, embedding = bound->in[0].width;
    const float *x = st_cpu_row(bound->in[0], row), *weights = st_cpu_row(bound->in[2], row);
    const int32_t *ids = (const int32_t *)bound->in[1].data + row * bound->in[1].width;
    float *out = st_cpu_row(bound->out, row);
    expert_rows r = {.input = st_cpu_scratch(call, worker)};
    r.gate = r.input + embedding;
    r.up = r.gate + width;
    r.matrix_row = r.up + width;
    bool on_input = call->op->p.experts.weight_on_input;
    memset(out, 0, embedding * sizeof *out);
    for (size_t i = 0; i < call->op->p.experts.used; i++) {
        size_t expert = (size_t)ids[i];
        if (!bound->weight[0].parts[expert]) continue;
        for (size_t k = 0; k < embedding; k++) r.input[k] = x[k] * (on_input ? weights[i] : 1);
        float weight = (on_input ? 1 : weights[i]) * (factors->data ? st_cpu_element(factors, expert) : 1);
        add_expert(call, expert, weight, &r, out);
    }
}

void st_ref_experts(const st_cpu_call *call)
{
    st_ref_each_row(call, experts_row);
}
