/* Prints a program, one operation per line. */
#include <inttypes.h>

#include "model/program.h"

static void print_value(const st_program *program, int32_t value, st_buf *out)
{
    if (value == ST_NO_VALUE) return;
    const st_value *v = &program->values[value];
    st_buf_printf(out, "%s[%" PRIu32 "]", v->name, v->width);
}

static void print_weight(const st_binding *binding, int32_t index, st_buf *out)
{
    if (index == ST_NO_WEIGHT) return;
    const st_weight *w = &binding->weights[index];
    st_buf_printf(out, ", %.*s %s [%" PRIu64, ST_STR_ARG(w->tensor->name), w->tensor->info->name, w->ne[0]);
    for (int i = 1; i < 3 && w->ne[i] > 1; i++) st_buf_printf(out, ", %" PRIu64, w->ne[i]);
    st_buf_printf(out, "]%s", w->parts ? " in parts" : "");
}

static void print_angles(const st_op *op, st_buf *out)
{
    const st_rope *rope = &op->p.angles.rope;
    static const char *const scalings[] = {"", ", linear scaling", ", YaRN"};
    st_buf_printf(out, "  base %g%s", (double)rope->base, scalings[rope->scaling]);
}

static void print_rope(const st_op *op, st_buf *out)
{
    st_buf_printf(out, "  heads %" PRIu32 " × %" PRIu32 ", %s", op->p.rope.heads, op->p.rope.head_size,
                  op->p.rope.style == ST_ROPE_PAIRS ? "pairs" : "halves");
}

static void print_attention(const st_op *op, st_buf *out)
{
    st_buf_printf(out, "  heads %" PRIu32 "/%" PRIu32 " × %" PRIu32 ", KV of layer %" PRIu32, op->p.attention.heads,
                  op->p.attention.kv_heads, op->p.attention.key_length, op->p.attention.kv_layer);
    if (op->p.attention.window) st_buf_printf(out, ", window %" PRIu32, op->p.attention.window);
    if (op->p.attention.value_in_key) st_buf_printf(out, ", values in keys");
    if (op->p.attention.chunk) st_buf_printf(out, ", chunks of %" PRIu32, op->p.attention.chunk);
}

static void print_route(const st_op *op, st_buf *out)
{
    static const char *const routers[] = {[ST_ROUTER_SOFTMAX] = "softmax", [ST_ROUTER_SIGMOID] = "sigmoid",
                                          [ST_ROUTER_SOFTMAX_CHOSEN] = "softmax of the chosen"};
    st_buf_printf(out, "  %" PRIu32 " of %" PRIu32 ", %s%s", op->p.route.used, op->p.route.experts,
                  routers[op->p.route.router], op->p.route.renormalise ? ", renormalised" : "");
    if (op->p.route.groups > 1)
        st_buf_printf(out, ", from %" PRIu32 " of %" PRIu32 " groups", op->p.route.groups_used, op->p.route.groups);
    if (op->p.route.scale > 0) st_buf_printf(out, ", × %g", (double)op->p.route.scale);
}

static void print_deltanet(const st_op *op, st_buf *out)
{
    if (op->p.deltanet.grouped) st_buf_printf(out, "  key heads in groups");
    if (op->p.deltanet.channels) st_buf_printf(out, "  a decay per channel");
}

static void print_ssm(const st_op *op, st_buf *out)
{
    st_buf_printf(out, "  heads %" PRIu32 " × %" PRIu32 " × %" PRIu32 ", %" PRIu32 " groups", op->p.ssm.heads,
                  op->p.ssm.head_size, op->p.ssm.state_size, op->p.ssm.groups);
}

static const char *activation_name(st_activation activation)
{
    static const char *const names[] = {[ST_ACT_SILU] = "silu", [ST_ACT_GELU] = "gelu",
                                        [ST_ACT_SWIGLU_CLAMPED] = "swiglu, clamped", [ST_ACT_RELU_SQUARED] = "relu²"};
    return names[activation];
}

static void print_parameters(const st_op *op, st_buf *out)
{
    switch (op->kind) {
    case ST_OP_LAYER_NORM:
    case ST_OP_RMS_NORM: st_buf_printf(out, "  groups of %" PRIu32, op->p.norm.group); break;
    case ST_OP_ANGLES: print_angles(op, out); break;
    case ST_OP_ROPE: print_rope(op, out); break;
    case ST_OP_ATTENTION: print_attention(op, out); break;
    case ST_OP_ROUTE: print_route(op, out); break;
    case ST_OP_SCALE: st_buf_printf(out, "  × %g", (double)op->p.scale.factor); break;
    case ST_OP_EMBED: st_buf_printf(out, "  × %g", (double)op->p.embed.scale); break;
    case ST_OP_SOFTCAP: st_buf_printf(out, "  cap %g", (double)op->p.softcap.cap); break;
    case ST_OP_GATED_ACT: st_buf_printf(out, "  %s", activation_name(op->p.gate.activation)); break;
    case ST_OP_DELTANET: print_deltanet(op, out); break;
    case ST_OP_SSM: print_ssm(op, out); break;
    case ST_OP_HEAD_MATMUL: st_buf_printf(out, "  heads %" PRIu32, op->p.head_matmul.heads); break;
    case ST_OP_CONV: st_buf_printf(out, op->p.conv.linear ? "  linear" : ""); break;
    default: break;
    }
}

bool st_op_print(const st_program *program, const st_binding *binding, const st_op *op, st_buf *out)
{
    if (op->layer >= 0) st_buf_printf(out, "%4" PRId32 "  ", op->layer);
    else st_buf_printf(out, "   -  ");
    st_buf_printf(out, "%-13s", st_op_name(op->kind));
    print_value(program, op->out, out);
    if (op->out2 != ST_NO_VALUE) st_buf_printf(out, ", ");
    print_value(program, op->out2, out);
    st_buf_printf(out, op->out == ST_NO_VALUE ? "cache <- " : " <- ");
    for (int i = 0; i < ST_OP_INPUTS && op->in[i] != ST_NO_VALUE; i++) {
        if (i) st_buf_printf(out, ", ");
        print_value(program, op->in[i], out);
    }
    if (op->in[0] == ST_NO_VALUE) st_buf_printf(out, op->kind == ST_OP_ANGLES ? "positions" : "ids");
    for (int i = 0; i < ST_OP_WEIGHTS; i++) print_weight(binding, op->weight[i], out);
    print_parameters(op, out);
    return st_buf_append_char(out, '\n');
}
