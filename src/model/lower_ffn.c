/* Lowers the feed-forward part of a layer: dense, routed experts, shared expert. */
#include <math.h>

#include "model/emit.h"

/* activation(gate) × up, or activation(up) without a gate. */
static int32_t hidden_ffn(st_builder *b, st_role gate_role, st_role up_role, int32_t h)
{
    const st_arch *arch = b->desc->arch;
    int32_t gate, up = ST_NO_VALUE;
    if (arch->ffn == ST_FFN_UNGATED) {
        gate = st_emit_project(b, "ffn_up", up_role, ST_ROLE_COUNT, h);
    } else if (st_emit_weight(b, gate_role) != ST_NO_WEIGHT) {
        gate = st_emit_project(b, "ffn_gate", gate_role, ST_ROLE_COUNT, h);
        up = st_emit_project(b, "ffn_up", up_role, ST_ROLE_COUNT, h);
    } else {
        int32_t both = st_emit_project(b, "ffn_gate_up", up_role, ST_ROLE_COUNT, h);
        uint32_t width = st_emit_width(b, both) / 2;
        gate = st_emit_slice(b, "ffn_gate", both, 1, 2 * width, 0, width);
        up = st_emit_slice(b, "ffn_up", both, 1, 2 * width, width, width);
    }
    st_emit_gated_act_in_place(b, arch->activation, gate, up);
    return gate;
}

static int32_t dense_ffn(st_builder *b, const char *name, st_role gate_role, st_role up_role, st_role down_role,
                         int32_t h)
{
    return st_emit_project(b, name, down_role, ST_ROLE_COUNT, hidden_ffn(b, gate_role, up_role, h));
}

static int32_t shared_expert(st_builder *b, int32_t h)
{
    int32_t shared = dense_ffn(b, "shared_expert", ST_ROLE_FFN_GATE_SHEXP, ST_ROLE_FFN_UP_SHEXP,
                               ST_ROLE_FFN_DOWN_SHEXP, h);
    if (b->desc->arch->shared_expert == ST_SHARED_GATED) {
        int32_t gate = st_emit_project(b, "shared_gate", ST_ROLE_FFN_GATE_INP_SHEXP, ST_ROLE_COUNT, h);
        st_emit(b, ST_OP_SIGMOID_GATE, shared, gate, shared);
    }
    return shared;
}

/* The shared expert comes between the router and the experts: on another device it overlaps with them. */
static int32_t routed_experts(st_builder *b, const st_ffn_desc *f, int32_t router_input, int32_t h)
{
    const st_arch *arch = b->desc->arch;
    int32_t scores = st_emit_project(b, "router", ST_ROLE_FFN_GATE_INP, ST_ROLE_FFN_GATE_INP_BIAS, router_input);
    int32_t ids = st_emit_value(b, "expert_ids", f->experts_used, ST_ROWS_ALL);
    int32_t weights = st_emit_value(b, "expert_weights", f->experts_used, ST_ROWS_ALL);
    st_op *route = st_emit(b, ST_OP_ROUTE, scores, ST_NO_VALUE, ids);
    route->out2 = weights;
    route->p.route.experts = f->experts;
    route->p.route.used = f->experts_used;
    route->weight[0] = st_emit_weight(b, ST_ROLE_EXP_PROBS_B);
    route->p.route.router = f->router;
    route->p.route.renormalise = f->renormalise;
    route->p.route.scale = f->weights_scale == 1 ? 0 : f->weights_scale;
    route->p.route.groups = f->groups;
    route->p.route.groups_used = f->groups_used;
    route->p.route.group_top = f->group_top;
    route->p.route.recorded = b->recorded;
    route->p.route.choices_at = b->choice_words;
    if (b->recorded) b->choice_words += 2 * f->experts_used;

    int32_t shared = f->shared_width ? shared_expert(b, h) : ST_NO_VALUE;
    int32_t out = st_emit_value(b, "experts", b->desc->embedding, ST_ROWS_ALL);
    b->block = ST_BLOCK_EXPERTS;
    st_op *op = st_emit(b, ST_OP_EXPERTS, h, ids, out);
    b->block = ST_BLOCK_FFN;
    op->in[2] = weights;
    bool fused = st_emit_weight(b, ST_ROLE_FFN_GATE_UP_EXPS) != ST_NO_WEIGHT;
    bool ungated = arch->ffn == ST_FFN_UNGATED;
    st_role gate = ungated ? ST_ROLE_FFN_UP_EXPS : ST_ROLE_FFN_GATE_EXPS;
    op->weight[0] = st_emit_weight(b, fused ? ST_ROLE_FFN_GATE_UP_EXPS : gate);
    op->weight[1] = ungated ? ST_NO_WEIGHT : st_emit_weight(b, ST_ROLE_FFN_UP_EXPS);
    op->weight[2] = st_emit_weight(b, ST_ROLE_FFN_DOWN_EXPS);
    op->weight[3] = st_emit_weight(b, ST_ROLE_FFN_DOWN_EXPS_SCALE);
    op->weight[4] = st_emit_weight(b, ST_ROLE_FFN_GATE_EXPS_BIAS);
    op->weight[5] = st_emit_weight(b, ST_ROLE_FFN_UP_EXPS_BIAS);
    op->weight[6] = st_emit_weight(b, ST_ROLE_FFN_DOWN_EXPS_BIAS);
    op->p.experts.experts = f->experts;
    op->p.experts.used = f->experts_used;
    op->p.experts.width = f->expert_width;
    op->p.experts.activation = arch->activation;
    op->p.experts.fused = fused;
    op->p.experts.ungated = ungated;
    op->p.experts.weight_on_input = arch->weight_on_input;
    if (shared != ST_NO_VALUE) st_emit_add_to(b, out, shared);
    return out;
}

/* Dense FFN and experts in parallel, each with its norms; the router reads the residual stream. */
static int32_t ffn_beside_experts(st_builder *b, const st_ffn_desc *f, int32_t x, int32_t dense)
{
    int32_t router_input = st_emit_norm(b, "router_in", ST_NO_WEIGHT, x);
    st_emit_scale_in_place(b, router_input, 1.0f / sqrtf((float)b->desc->embedding));
    st_emit_mul_weight_in_place(b, router_input, st_emit_weight(b, ST_ROLE_FFN_GATE_INP_SCALE));
    int32_t h = st_emit_norm(b, "expert_in", st_emit_weight(b, ST_ROLE_PRE_FFW_NORM_2), x);
    int32_t routed = routed_experts(b, f, router_input, h);
    st_emit_norm_row(b, ST_ROLE_POST_FFW_NORM_1, dense);
    st_emit_norm_row(b, ST_ROLE_POST_FFW_NORM_2, routed);
    st_emit_add_to(b, dense, routed);
    return dense;
}

int32_t st_lower_ffn(st_builder *b, const st_ffn_desc *f, int32_t x, int32_t h)
{
    int32_t out = ST_NO_VALUE;
    if (f->dense_width) out = dense_ffn(b, "ffn_out", ST_ROLE_FFN_GATE, ST_ROLE_FFN_UP, ST_ROLE_FFN_DOWN, h);
    if (f->experts && f->dense_width) return ffn_beside_experts(b, f, x, out);
    return f->experts ? routed_experts(b, f, h, h) : out;
}
