/* src/model/lower.c, cost.c, print.c: the program of every family is consistent. Values are written before they are
 * read, live values do not overlap, and widths match their weights; all recomputed here from the operations alone. */
#include "support/golden.h"

#include <stdio.h>

#include "support/gguf_writer.h"

static const char *const families[] = {"llama",    "mixtral",      "qwen2",      "qwen3",  "qwen2moe",
                                       "qwen3moe", "olmoe",        "llama4",     "gemma4-e", "gemma4-dense",
                                       "gemma4-moe", "qwen35",     "qwen35moe",
                                       "more/deepseek2", "more/gpt-oss-clamp", "more/kimi-linear", "more/granitehybrid",
                                       "more/nemotron_h_moe", "more/lfm2moe", "more/qwen3next", "more/phi3",
                                       "more/mistral3"};

enum { FAMILIES = sizeof families / sizeof *families, VALUES_MAX = 4096 };

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void values_are_written_before_they_are_read(void **state)
{
    golden g;
    assert_true(golden_open(&g, *state));
    const st_program *p = g.program;
    static bool written[VALUES_MAX];
    memset(written, 0, sizeof written);
    assert_true(p->value_count <= VALUES_MAX);
    uint32_t count = 0; /* of values written */
    for (uint32_t i = 0; i < p->op_count; i++) {
        const st_op *op = &p->ops[i];
        if (p->nextn.body.count && i == p->nextn.body.first) { /* NextN runs other rows: earlier values are invalid */
            for (uint32_t k = 0; k < p->value_count; k++) count += written[k];
            memset(written, 0, sizeof written);
            written[p->nextn.input] = true; /* the executor fills it */
        }
        for (int k = 0; k < ST_OP_INPUTS; k++)
            if (op->in[k] != ST_NO_VALUE && !written[op->in[k]])
                fail_msg("operation %u (%s) reads %s too early", i, st_op_name(op->kind), p->values[op->in[k]].name);
        if (op->out != ST_NO_VALUE) written[op->out] = true;
        if (op->out2 != ST_NO_VALUE) written[op->out2] = true;
    }
    for (uint32_t k = 0; k < p->value_count; k++) count += written[k];
    assert_int_equal(count, p->value_count);
    golden_close(&g);
}

typedef struct span {
    uint32_t first, last;
} span;

static bool uses(const st_op *op, int32_t value)
{
    for (int k = 0; k < ST_OP_INPUTS; k++)
        if (op->in[k] == value) return true;
    return op->out == value || op->out2 == value;
}

/* A value is live from its first to its last use; always, if the executor reads it between the parts. */
static span life_of(const st_program *p, int32_t value)
{
    const int32_t kept[] = {p->main.hidden, p->main.logits, p->nextn.body.count ? p->nextn.input : ST_NO_VALUE,
                            p->nextn.body.count ? p->nextn.hidden : ST_NO_VALUE,
                            p->nextn.body.count ? p->nextn.logits : ST_NO_VALUE};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (kept[i] == value) return (span){0, p->op_count};
    span life = {UINT32_MAX, 0};
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (!uses(&p->ops[i], value)) continue;
        if (life.first == UINT32_MAX) life.first = i;
        life.last = i;
    }
    return life;
}

static void live_values_do_not_overlap(void **state)
{
    golden g;
    assert_true(golden_open(&g, *state));
    const st_program *p = g.program;
    static span lives[VALUES_MAX];
    size_t most[2] = {0};
    for (uint32_t i = 0; i < p->value_count; i++) {
        const st_value *v = &p->values[i];
        lives[i] = life_of(p, (int32_t)i);
        assert_true(v->width > 0);
        assert_int_equal(v->offset_bytes % 64, 0);
        size_t end = v->offset_bytes + v->width * sizeof(float);
        if (end > most[v->rows]) most[v->rows] = end;
        assert_true(end <= p->row_bytes[v->rows]);
    }
    uint32_t shared = 0;
    for (uint32_t a = 0; a < p->value_count; a++)
        for (uint32_t b = a + 1; b < p->value_count; b++) {
            const st_value *v = &p->values[a], *w = &p->values[b];
            if (v->rows != w->rows) continue;
            bool apart = v->offset_bytes + v->width * sizeof(float) <= w->offset_bytes ||
                         w->offset_bytes + w->width * sizeof(float) <= v->offset_bytes;
            bool together = lives[a].first <= lives[b].last && lives[b].first <= lives[a].last;
            if (together && !apart) fail_msg("%s (%u) and %s (%u) overlap", v->name, a, w->name, b);
            shared += !apart;
        }
    assert_true(shared > 0); /* memory is reused */
    for (int rows = 0; rows < 2; rows++) assert_true(p->row_bytes[rows] < most[rows] + 64);
    golden_close(&g);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct op_shape {
    uint32_t in[ST_OP_INPUTS], out, out2;
    const uint64_t *w[ST_OP_WEIGHTS];
} op_shape;

static op_shape shape_of(const golden *g, const st_op *op)
{
    op_shape s = {.out = op->out == ST_NO_VALUE ? 0 : g->program->values[op->out].width,
                  .out2 = op->out2 == ST_NO_VALUE ? 0 : g->program->values[op->out2].width};
    for (int i = 0; i < ST_OP_INPUTS; i++) s.in[i] = op->in[i] == ST_NO_VALUE ? 0 : g->program->values[op->in[i]].width;
    for (int i = 0; i < ST_OP_WEIGHTS; i++)
        s.w[i] = op->weight[i] == ST_NO_WEIGHT ? NULL : g->binding->weights[op->weight[i]].ne;
    return s;
}

static bool attention_fits(const golden *g, const st_op *op, const op_shape *s)
{
    const st_attention_desc *own = &g->desc->layers[op->layer].attention;
    return s->in[0] == op->p.attention.heads * op->p.attention.key_length &&
           s->out == op->p.attention.heads * op->p.attention.value_length &&
           op->p.attention.kv_layer == own->kv_layer && op->p.attention.window == own->window &&
           op->p.attention.chunk == own->chunk;
}

static bool experts_fit(const st_op *op, const op_shape *s)
{
    uint64_t f = op->p.experts.width, x = op->p.experts.experts;
    bool first = s->w[0] && s->w[0][0] == s->in[0] && s->w[0][1] == (op->p.experts.fused ? 2 * f : f) &&
                 s->w[0][2] == x;
    bool joined = op->p.experts.fused || op->p.experts.ungated;
    bool up = joined ? !s->w[1] : s->w[1] && s->w[1][1] == f && s->w[1][2] == x;
    bool down = s->w[2] && s->w[2][0] == f && s->w[2][1] == s->out && s->w[2][2] == x;
    bool chosen = s->in[1] == op->p.experts.used && s->in[2] == op->p.experts.used;
    bool biases = !s->w[4] || (s->w[4][0] == f && s->w[4][1] == x && s->w[6][0] == s->out && s->w[6][1] == x);
    return first && up && down && chosen && biases && s->out == s->in[0] && (!s->w[3] || s->w[3][0] == x);
}

static bool deltanet_fits(const st_op *op, const op_shape *s)
{
    uint32_t size = op->p.deltanet.size, keys = op->p.deltanet.key_heads, values = op->p.deltanet.value_heads;
    uint32_t decays = op->p.deltanet.channels ? size * values : values;
    return s->in[0] == size * (2 * keys + values) && s->in[1] == decays && s->in[2] == values &&
           s->out == size * values && s->w[0][0] == decays && s->w[1][0] == values;
}

static bool conv_fits(const st_op *op, const op_shape *s)
{
    uint64_t channels = 0;
    for (int i = 0; i < 3; i++) channels += s->w[i] ? s->w[i][1] : 0;
    return s->in[0] == s->out && s->w[0][0] == op->p.conv.width && channels == s->in[0] &&
           (!s->w[3] || s->w[3][0] == s->in[0]);
}

static bool ssm_fits(const st_op *op, const op_shape *s)
{
    uint32_t inner = op->p.ssm.heads * op->p.ssm.head_size;
    return s->in[0] == inner + 2 * op->p.ssm.groups * op->p.ssm.state_size && s->in[1] == op->p.ssm.heads &&
           s->out == inner && s->w[0][0] == op->p.ssm.heads && s->w[2][0] == op->p.ssm.heads;
}

static bool head_matmul_fits(const st_op *op, const op_shape *s)
{
    uint32_t heads = op->p.head_matmul.heads;
    return s->w[0][2] == heads && s->in[0] / heads >= s->w[0][0] &&
           s->out == heads * (s->w[0][1] + s->in[0] / heads - s->w[0][0]);
}

static bool fits(const golden *g, const st_op *op)
{
    op_shape s = shape_of(g, op);
    switch (op->kind) {
    case ST_OP_EMBED: return s.w[0][0] == s.out && s.w[0][1] == g->desc->vocab;
    case ST_OP_MATMUL: return s.w[0][0] == s.in[0] && s.w[0][1] == s.out && (!s.w[1] || s.w[1][0] == s.out);
    case ST_OP_LAYER_NORM:
    case ST_OP_RMS_NORM:
        return s.in[0] == s.out && s.out % op->p.norm.group == 0 &&
               (!s.w[0] || s.w[0][0] == op->p.norm.group || s.w[0][0] == s.out);
    case ST_OP_ANGLES: return s.out == op->p.angles.rope.dims && (!s.w[0] || s.w[0][0] >= s.out / 2);
    case ST_OP_ROPE:
        return s.out == op->p.rope.heads * op->p.rope.head_size && op->p.rope.offset + op->p.rope.dims <= op->p.rope.head_size &&
               op->out == op->in[0] && s.in[1] == op->p.rope.dims;
    case ST_OP_TEMPERATURE: return op->out == op->in[0] && op->p.temperature.chunk > 0;
    case ST_OP_KV_STORE: {
        const st_attention_desc *a = &g->desc->layers[op->p.kv.kv_layer].attention;
        return s.in[0] == a->kv_heads * a->key_length && s.in[1] == (a->latent_query ? 0 : a->kv_heads * a->value_length);
    }
    case ST_OP_ATTENTION: return attention_fits(g, op, &s);
    case ST_OP_SLICE: {
        uint32_t groups = op->p.slice.groups, size = s.out / groups;
        return s.out % groups == 0 && (groups - 1) * op->p.slice.stride + op->p.slice.offset + size <= s.in[0];
    }
    case ST_OP_CONCAT: return s.out == s.in[0] + s.in[1];
    case ST_OP_GATED_ACT: return s.in[0] == s.out && (s.in[1] == s.out || op->in[1] == ST_NO_VALUE);
    case ST_OP_ADD:
    case ST_OP_MUL:
    case ST_OP_SILU_GATE: return s.in[0] == s.out && s.in[1] == s.out;
    case ST_OP_SIGMOID_GATE: return s.in[0] == s.out && (s.in[1] == s.out || s.in[1] == 1);
    case ST_OP_MUL_WEIGHT: return s.in[0] == s.out && (s.w[0][0] == s.out || s.w[0][0] == 1);
    case ST_OP_SCALE:
    case ST_OP_SOFTCAP:
    case ST_OP_GATHER: return s.in[0] == s.out;
    case ST_OP_ROUTE:
        return s.in[0] == op->p.route.experts && s.out == op->p.route.used && s.out2 == op->p.route.used;
    case ST_OP_EXPERTS: return experts_fit(op, &s);
    case ST_OP_CONV: return conv_fits(op, &s);
    case ST_OP_SSM: return ssm_fits(op, &s);
    case ST_OP_HEAD_MATMUL: return head_matmul_fits(op, &s);
    case ST_OP_DELTANET: return deltanet_fits(op, &s);
    default: return false;
    }
}

static void widths_match_their_weights(void **state)
{
    golden g;
    assert_true(golden_open(&g, *state));
    for (uint32_t i = 0; i < g.program->op_count; i++)
        if (!fits(&g, &g.program->ops[i])) fail_msg("operation %u (%s)", i, st_op_name(g.program->ops[i].kind));
    golden_close(&g);
}

/* Each part is a body and a head of one row kind each; the parts are consecutive, without gaps. */
static void parts_cover_the_program(void **state)
{
    golden g;
    assert_true(golden_open(&g, *state));
    const st_program *p = g.program;
    const st_part *parts[] = {&p->main, &p->nextn};
    uint32_t next = 0;
    for (int i = 0; i < 2; i++) {
        if (parts[i]->body.count == 0) continue;
        assert_int_equal(parts[i]->body.first, next);
        assert_int_equal(parts[i]->head.first, next + parts[i]->body.count);
        for (uint32_t k = parts[i]->body.first; k < parts[i]->head.first; k++)
            if (p->ops[k].out != ST_NO_VALUE) assert_int_equal(p->values[p->ops[k].out].rows, ST_ROWS_ALL);
        next = parts[i]->head.first + parts[i]->head.count;
        for (uint32_t k = parts[i]->head.first; k < next; k++)
            assert_int_equal(p->values[p->ops[k].out].rows, ST_ROWS_OUT);
        assert_int_equal(p->values[parts[i]->logits].width, g.desc->vocab);
    }
    assert_int_equal(next, p->op_count);
    assert_int_equal(p->nextn.body.count > 0, g.desc->nextn_count > 0);
    assert_int_equal(p->main.input, ST_NO_VALUE);
    golden_close(&g);
}

static void every_operation_is_used_by_a_family(void **state)
{
    (void)state;
    bool reached[ST_OP_COUNT] = {false};
    for (size_t f = 0; f < FAMILIES; f++) {
        golden g;
        assert_true(golden_open(&g, families[f]));
        for (uint32_t i = 0; i < g.program->op_count; i++) reached[g.program->ops[i].kind] = true;
        golden_close(&g);
    }
    for (int kind = 0; kind < ST_OP_COUNT; kind++)
        if (!reached[kind] && kind != ST_OP_LAYER_NORM && /* of a family without a pair: golden/test_made_families.c */
            kind != ST_OP_CANDIDATES) /* the executor adds it to the head */
            fail_msg("no family has the operation %s", st_op_name((st_op_kind)kind));
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

typedef struct printed {
    const char *family;
    const char *lines[9];
} printed;

static const printed prints[] = {
    {"llama",
     {"   -  embed        x[64] <- ids, token_embd.weight F32 [64, 320]  × 1\n",
      "   0  rms_norm     attn_in[64] <- x[64], blk.0.attn_norm.weight F32 [64]  groups of 64\n",
      "   0  matmul       q[64] <- attn_in[64], blk.0.attn_q.weight F32 [64, 64]\n",
      "   0  angles       angles[16] <- positions  base 10000\n",
      "   0  rope         q[64] <- q[64], angles[16]  heads 4 × 16, pairs\n",
      "   0  kv_store     cache <- k[32], v[32]\n",
      "   3  attention    attention[64] <- q[64]  heads 4/2 × 16, KV of layer 3\n",
      "   -  gather       out_rows[64] <- x[64]\n",
      "   -  matmul       logits[320] <- out_rows[64], token_embd.weight F32 [64, 320]\n"}},
    {"mixtral",
     {"   1  route        expert_ids[2], expert_weights[2] <- router[4]  2 of 4, softmax, renormalised\n",
      "   1  experts      experts[64] <- ffn_in[64], expert_ids[2], expert_weights[2], blk.1.ffn_gate_exps.weight F32 "
      "[64, 96, 4], blk.1.ffn_up_exps.weight F32 [64, 96, 4], blk.1.ffn_down_exps.weight F32 [96, 64, 4]\n"}},
    {"qwen2",
     {"   2  matmul       v[32] <- attn_in[64], blk.2.attn_v.weight F32 [64, 32], blk.2.attn_v.bias F32 [32]\n"}},
    {"qwen3", {"   0  rms_norm     q[128] <- q[128], blk.0.attn_q_norm.weight F32 [32]  groups of 32\n",
               "   0  rope         q[128] <- q[128], angles[32]  heads 4 × 32, halves\n"}},
    {"qwen2moe", {"   0  route        expert_ids[2], expert_weights[2] <- router[8]  2 of 8, softmax\n",
                  "   0  sigmoid_gate shared_expert[64] <- shared_expert[64], shared_gate[1]\n"}},
    {"qwen3moe",
     {"   3  route        expert_ids[4], expert_weights[4] <- router[16]  4 of 16, softmax, renormalised\n"}},
    {"olmoe", {"   0  rms_norm     k[64] <- k[64], blk.0.attn_k_norm.weight F32 [64]  groups of 64\n",
               "   0  route        expert_ids[4], expert_weights[4] <- router[16]  4 of 16, softmax\n"}},
    {"llama4", {"   0  attention    attention[64] <- q[64]  heads 4/2 × 16, KV of layer 0, chunks of 8192\n",
                "   0  rms_norm     q[64] <- q[64]  groups of 16\n",
                "   3  temperature  q[64] <- q[64]\n",
                "   3  attention    attention[64] <- q[64]  heads 4/2 × 16, KV of layer 3\n",
                "   0  route        expert_ids[1], expert_weights[1] <- router[4]  1 of 4, sigmoid\n"}},
    {"gemma4-e", {"   -  embed        x[64] <- ids, token_embd.weight F32 [64, 320]  × 8\n",
                  "   -  embed        per_layer_token[96] <- ids, per_layer_token_embd.weight F32 [96, 320]  × 4\n",
                  "   4  attention    attention[64] <- q[64]  heads 4/2 × 16, KV of layer 1, window 16\n",
                  "   5  attention    attention[128] <- q[128]  heads 4/2 × 32, KV of layer 2\n",
                  "   2  angles       angles[32] <- positions, rope_freqs.weight F32 [16]  base 1e+06\n",
                  "   5  gated_act    per_layer_gate[16] <- per_layer_gate[16], per_layer_input[16]  gelu\n",
                  "   5  mul_weight   x[64] <- x[64], blk.5.layer_output_scale.weight F32 [1]\n",
                  "   -  softcap      logits[320] <- logits[320]  cap 30\n"}},
    {"gemma4-dense", {"   2  slice        v[32] <- k[32]\n", "   2  rms_norm     v[32] <- v[32]  groups of 32\n"}},
    {"gemma4-moe", {"   0  scale        router_in[64] <- router_in[64]  × 0.125\n",
                    "   0  mul_weight   router_in[64] <- router_in[64], blk.0.ffn_gate_inp.scale F32 [64]\n"}},
    {"qwen35", {"   0  conv         qkv[128] <- qkv[128], blk.0.ssm_conv1d.weight F32 [4, 128]\n",
                "   0  deltanet     delta[64] <- qkv[128], alpha[4], beta[4], blk.0.ssm_dt.bias F32 [4], "
                "blk.0.ssm_a F32 [4]\n",
                "   0  silu_gate    delta[64] <- delta[64], z[64]\n",
                "   3  slice        q_gate[128] <- q[256]\n",
                "   3  sigmoid_gate attention[128] <- attention[128], q_gate[128]\n",
                "   4  concat       next_and_hidden[128] <- next_token[64], hidden[64]\n",
                "   4  attention    attention[128] <- q[128]  heads 4/2 × 32, KV of layer 4\n"}},
    {"qwen35moe",
     {"   3  route        expert_ids[4], expert_weights[4] <- router[16]  4 of 16, softmax, renormalised\n"}},
    {"more/deepseek2",
     {"   1  route        expert_ids[3], expert_weights[3] <- router[12], blk.1.exp_probs_b.bias F32 [12]  3 of 12, "
      "sigmoid, renormalised, from 2 of 3 groups, × 2.5\n",
      "   0  kv_store     cache <- kv_latent[48]\n",
      "   0  head_matmul  q_absorbed[192] <- q[160], blk.0.attn_k_b.weight F32 [24, 32, 4]  heads 4\n",
      "   0  attention    attention[128] <- q_absorbed[192]  heads 4/1 × 48, KV of layer 0, values in keys\n",
      "   0  head_matmul  heads[80] <- attention[128], blk.0.attn_v_b.weight F32 [32, 20, 4]  heads 4\n"}},
    {"more/gpt-oss-clamp",
     {"   0  attention    attention[64] <- q[64], blk.0.attn_sinks.weight F32 [4]  heads 4/2 × 16, KV of layer 0, window 16\n",
      "   1  route        expert_ids[3], expert_weights[3] <- router[7]  3 of 7, softmax of the chosen\n"}},
    {"more/nemotron_h_moe",
     {"   1  gated_act    ffn_up[56] <- ffn_up[56]  relu²\n",
      "   0  ssm          ssm[120] <- xbc[216], dt[6], blk.0.ssm_dt.bias F32 [6], blk.0.ssm_a F32 [6], blk.0.ssm_d F32 [6]  "
      "heads 6 × 20 × 24, 2 groups\n"}},
    {"more/lfm2moe", {"   0  mul          conv_b[64] <- conv_b[64], conv_x[64]\n",
                      "   0  conv         conv_b[64] <- conv_b[64], blk.0.shortconv.conv.weight F32 [3, 64]  linear\n"}},
};

enum { PRINTS = sizeof prints / sizeof *prints };

static void every_operation_is_printed(void **state)
{
    const printed *row = *state;
    golden g;
    assert_true(golden_open(&g, row->family));
    st_buf text = {0};
    for (uint32_t i = 0; i < g.program->op_count; i++) {
        size_t before = text.length;
        assert_true(st_op_print(g.program, g.binding, &g.program->ops[i], &text));
        assert_int_equal(text.data[text.length - 1], '\n');
        assert_null(memchr(text.data + before, '\n', text.length - before - 1)); /* one line each */
    }
    st_buf_append_char(&text, '\0');
    for (size_t i = 0; i < 9 && row->lines[i]; i++)
        if (!strstr(text.data, row->lines[i])) fail_msg("expected the line\n%sin\n%s", row->lines[i], text.data);
    st_buf_free(&text);
    golden_close(&g);
}

/* ---- costs ------------------------------------------------------------------------------------------------------- */

static void cost_of_one(const golden *g, const st_op *op, uint32_t rows)
{
    st_op_cost cost = st_op_estimate(g->program, g->binding, op, rows, 100);
    op_shape s = shape_of(g, op);
    assert_true(cost.flops >= 0 && cost.weight_bytes >= 0 && cost.state_bytes >= 0 && cost.value_bytes > 0);
    if (op->kind == ST_OP_MATMUL) {
        double bias = s.w[1] ? (double)s.w[1][0] * 4 : 0;
        assert_true(cost.flops == 2.0 * s.in[0] * s.out * rows);
        assert_true(cost.weight_bytes == 4.0 * s.in[0] * s.out + bias); /* once, however many rows */
        assert_true(cost.value_bytes == 4.0 * (s.in[0] + s.out) * rows);
    } else if (op->kind == ST_OP_EMBED) {
        assert_true(cost.weight_bytes == 4.0 * s.out * rows); /* a row for each token */
    } else if (op->kind == ST_OP_EXPERTS) {
        double x = op->p.experts.experts, touched = x, left = 1; /* those that no row has chosen yet */
        for (uint32_t r = 0; r < rows; r++) left *= 1 - op->p.experts.used / x;
        touched *= 1 - left;
        double matrices = op->p.experts.ungated ? 2 : 3, biases = s.w[4] ? 2.0 * op->p.experts.width + s.out : 0;
        double one = 4.0 * (matrices * s.in[0] * op->p.experts.width + biases) + (s.w[3] ? 4 : 0);
        assert_true(cost.weight_bytes > one * touched * 0.999 && cost.weight_bytes < one * touched * 1.001);
        assert_true(cost.flops == 2 * matrices * s.in[0] * op->p.experts.width * op->p.experts.used * rows);
    } else if (op->kind == ST_OP_ATTENTION) {
        double seen = 100 + (rows + 1) / 2.0;
        if (op->p.attention.window && seen > op->p.attention.window) seen = op->p.attention.window;
        double head = (double)op->p.attention.key_length + op->p.attention.value_length;
        assert_true(cost.flops == 2 * op->p.attention.heads * head * seen * rows);
        double kept = op->p.attention.value_in_key ? op->p.attention.key_length : head; /* the latent is read once */
        assert_true(cost.state_bytes == 4 * op->p.attention.kv_heads * kept * seen);
    } else if (op->kind == ST_OP_DELTANET) {
        double state = (double)op->p.deltanet.value_heads * op->p.deltanet.size * op->p.deltanet.size;
        assert_true(cost.state_bytes == 2 * 4 * state);
    }
}

static void costs_add_up(void **state)
{
    golden g;
    assert_true(golden_open(&g, *state));
    static const uint32_t rows[] = {1, 2, 7, 512};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (uint32_t i = 0; i < g.program->op_count; i++) cost_of_one(&g, &g.program->ops[i], rows[r]);
    golden_close(&g);
}

/* A token of a dense model with a tied output reads every weight once, and one row of the embedding once more. */
static void a_token_reads_every_weight_once(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "llama"));
    double bytes = 0;
    for (uint32_t i = 0; i < g.program->op_count; i++)
        bytes += st_op_estimate(g.program, g.binding, &g.program->ops[i], 1, 0).weight_bytes;
    assert_true(bytes == (double)st_gguf_tensor_bytes(g.model) + 64 * 4);
    golden_close(&g);
}

/* ---- depth ------------------------------------------------------------------------------------------------------- */

/* A llama of `layers` layers of minimal size. */
static void write_deep(gguf_writer *w, uint32_t layers)
{
    static const struct { const char *name; uint32_t dims; } tensors[] = {
        {"attn_norm", 1}, {"ffn_norm", 1}, {"attn_q", 2}, {"attn_k", 2}, {"attn_v", 2}, {"attn_output", 2},
        {"ffn_gate", 2},  {"ffn_up", 2},   {"ffn_down", 2}};
    static const uint64_t ne[2] = {4, 4};
    gguf_writer_begin(w, 3);
    gguf_write_key_string(w, "general.architecture", "llama");
    gguf_write_key_u32(w, "llama.block_count", layers);
    gguf_write_key_u32(w, "llama.embedding_length", 4);
    gguf_write_key_u32(w, "llama.feed_forward_length", 4);
    gguf_write_key_u32(w, "llama.context_length", 64);
    gguf_write_key_u32(w, "llama.attention.head_count", 1);
    gguf_write_key_u32(w, "llama.vocab_size", 4);
    gguf_write_key_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_write_tensor(w, "token_embd.weight", ST_TYPE_F32, 2, ne);
    gguf_write_tensor(w, "output_norm.weight", ST_TYPE_F32, 1, ne);
    for (uint32_t i = 0; i < layers; i++)
        for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", i, tensors[t].name);
            gguf_write_tensor(w, name, ST_TYPE_F32, tensors[t].dims, ne);
        }
    gguf_writer_finish(w);
    assert_false(w->out.failed);
}

/* Its rows need no more memory than those of two layers. Quadratic time would exceed the time limit of the test run. */
static void a_model_of_maximum_depth(void **state)
{
    (void)state;
    static const uint32_t layers[] = {2, 4096};
    golden g[2], nothing = {0};
    gguf_writer w[2] = {{.key_count = 0}};
    for (int i = 0; i < 2; i++) {
        write_deep(&w[i], layers[i]);
        golden_open_bytes(&g[i], &nothing, w[i].out.data, w[i].out.length);
        assert_int_equal(g[i].desc->layer_count, layers[i]);
    }
    assert_true(g[1].program->op_count > 4096 * 10);
    for (int rows = 0; rows < 2; rows++)
        assert_int_equal(g[1].program->row_bytes[rows], g[0].program->row_bytes[rows]);
    for (int i = 0; i < 2; i++) {
        golden_close(&g[i]);
        gguf_writer_free(&w[i]);
    }
}

int main(void)
{
    static const struct { const char *name; CMUnitTestFunction run; } kinds[] = {
        {"written before read", values_are_written_before_they_are_read},
        {"live values do not overlap", live_values_do_not_overlap},
        {"widths", widths_match_their_weights},
        {"parts", parts_cover_the_program},
        {"costs", costs_add_up},
    };
    enum { KINDS = sizeof kinds / sizeof *kinds };
    static char names[FAMILIES * KINDS + PRINTS][64];
    static struct CMUnitTest tests[FAMILIES * KINDS + PRINTS + 3];
    size_t n = 0;
    for (size_t f = 0; f < FAMILIES; f++)
        for (size_t k = 0; k < KINDS; k++, n++) {
            snprintf(names[n], sizeof *names, "%s: %s", families[f], kinds[k].name);
            tests[n] = (struct CMUnitTest){.name = names[n], .test_func = kinds[k].run,
                                           .initial_state = (void *)(uintptr_t)families[f]};
        }
    for (size_t i = 0; i < PRINTS; i++, n++) {
        snprintf(names[n], sizeof *names, "%s: printed", prints[i].family);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = every_operation_is_printed,
                                       .initial_state = (void *)(uintptr_t)&prints[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(every_operation_is_used_by_a_family);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(a_token_reads_every_weight_once);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(a_model_of_maximum_depth);
    return _cmocka_run_group_tests("program", tests, n, NULL, NULL);
}
