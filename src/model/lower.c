/* Lowers a description to a program: the only definition of the forward pass. Reads a row's axes, never its name. */
#include <math.h>

#include "base/error.h"
#include "model/emit.h"

enum { OPS_PER_LAYER_MAX = 64 };

/* --- layers ------------------------------------------------------------------------------------------------------- */

/* Returns the scaled, normed per-layer inputs of all layers, or ST_NO_VALUE. */
static int32_t per_layer_inputs(st_builder *b, int32_t x)
{
    uint32_t width = b->desc->per_layer_width;
    if (width == 0) return ST_NO_VALUE;
    int32_t all = st_emit_matmul(b, "per_layer", st_emit_model_weight(b, ST_ROLE_PER_LAYER_MODEL_PROJ), x);
    st_emit_scale_in_place(b, all, 1.0f / sqrtf((float)b->desc->embedding));
    st_emit_norm_in_place(b, st_emit_model_weight(b, ST_ROLE_PER_LAYER_PROJ_NORM), width, all);
    int32_t table = st_emit_model_weight(b, ST_ROLE_PER_LAYER_TOKEN_EMBD);
    int32_t tokens = st_emit_embed(b, "per_layer_token", table, sqrtf((float)width));
    st_emit_add_to(b, all, tokens);
    st_emit_scale_in_place(b, all, sqrtf(0.5f));
    return all;
}

static void add_per_layer_input(st_builder *b, int32_t x, int32_t inputs)
{
    uint32_t width = b->desc->per_layer_width;
    int32_t gate = st_emit_project(b, "per_layer_gate", ST_ROLE_INP_GATE, ST_ROLE_COUNT, x);
    uint32_t first = width * (uint32_t)b->layer;
    int32_t mine = st_emit_slice(b, "per_layer_input", inputs, 1, st_emit_width(b, inputs), first, width);
    st_emit_gated_act_in_place(b, b->desc->arch->activation, gate, mine);
    int32_t out = st_emit_project(b, "per_layer_out", ST_ROLE_PROJ, ST_ROLE_COUNT, gate);
    st_emit_norm_row(b, ST_ROLE_POST_NORM, out);
    st_emit_add_to(b, x, out);
}

/* x += part, which is scaled and, if the form has such norms, normalised. */
static void add_part(st_builder *b, int32_t x, int32_t part, st_role post_norm)
{
    st_layer_form form = b->desc->arch->form;
    if (form == ST_FORM_SANDWICH || form == ST_FORM_POST_NORM) st_emit_norm_row(b, post_norm, part);
    if (b->desc->residual_scale != 1) st_emit_scale_in_place(b, part, b->desc->residual_scale);
    st_emit_add_to(b, x, part);
}

/* The input of the feed-forward part; `h` is that of the mixer. */
static int32_t ffn_input(st_builder *b, int32_t x, int32_t h)
{
    const st_arch *arch = b->desc->arch;
    if (arch->form == ST_FORM_PARALLEL) return h;
    if (arch->form == ST_FORM_POST_NORM) return x;
    st_role role = arch->ffn_norm_is_post_attention ? ST_ROLE_POST_ATTENTION_NORM : ST_ROLE_FFN_NORM;
    return st_emit_norm(b, "ffn_in", st_emit_weight(b, role), x);
}

static void both_parts(st_builder *b, const st_layer_desc *l, int32_t x)
{
    int32_t h = x;
    b->block = ST_BLOCK_ATTENTION;
    if (b->desc->arch->form != ST_FORM_POST_NORM)
        h = st_emit_norm(b, "attn_in", st_emit_weight(b, ST_ROLE_ATTN_NORM), x);
    add_part(b, x, st_lower_mixer(b, l, h), ST_ROLE_POST_ATTENTION_NORM);
    b->block = ST_BLOCK_FFN;
    add_part(b, x, st_lower_ffn(b, &l->ffn, x, ffn_input(b, x, h)), ST_ROLE_POST_FFW_NORM);
}

/* The layer's only part. Its norm belongs to the mixer's block or to the feed-forward one. */
static void one_part(st_builder *b, const st_layer_desc *l, int32_t x)
{
    bool ffn = l->kind == ST_LAYER_FFN;
    b->block = ffn ? ST_BLOCK_FFN : ST_BLOCK_ATTENTION;
    int32_t h = st_emit_norm(b, ffn ? "ffn_in" : "attn_in", st_emit_weight(b, ST_ROLE_ATTN_NORM), x);
    add_part(b, x, ffn ? st_lower_ffn(b, &l->ffn, x, h) : st_lower_mixer(b, l, h), ST_ROLE_COUNT);
}

static void layer(st_builder *b, uint32_t index, int32_t x, int32_t inputs)
{
    b->layer = (int32_t)index;
    (b->desc->arch->form == ST_FORM_SINGLE ? one_part : both_parts)(b, &b->desc->layers[index], x);
    if (inputs != ST_NO_VALUE) add_per_layer_input(b, x, inputs);
    int32_t output_scale = st_emit_weight(b, ST_ROLE_LAYER_OUTPUT_SCALE);
    if (output_scale != ST_NO_WEIGHT) st_emit_mul_weight_in_place(b, x, output_scale);
    b->layer = -1;
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

static int32_t output_matrix(const st_builder *b)
{
    int32_t own = st_emit_model_weight(b, ST_ROLE_OUTPUT);
    return own != ST_NO_WEIGHT ? own : st_emit_model_weight(b, ST_ROLE_TOKEN_EMBD);
}

static int32_t output_norm(const st_builder *b)
{
    bool of_embedding = b->desc->arch->output_norm_is_embedding_norm;
    return st_emit_model_weight(b, of_embedding ? ST_ROLE_TOKEN_EMBD_NORM : ST_ROLE_OUTPUT_NORM);
}

/* The output rows, normalised, times the output matrix. */
static void head(st_builder *b, int32_t hidden, int32_t norm_weight, int32_t matrix, st_part *part)
{
    part->body.count = b->op_count - part->body.first;
    part->hidden = hidden;
    part->head.first = b->op_count;
    b->block = ST_BLOCK_OUTPUT;
    int32_t chosen = st_emit_value(b, "out_rows", st_emit_width(b, hidden), ST_ROWS_OUT);
    st_emit(b, ST_OP_GATHER, hidden, ST_NO_VALUE, chosen);
    st_emit_norm_in_place(b, norm_weight, st_emit_width(b, chosen), chosen);
    part->logits = st_emit_matmul(b, "logits", matrix, chosen);
    if (b->desc->logit_scale != 1) st_emit_scale_in_place(b, part->logits, b->desc->logit_scale);
    if (b->desc->logit_softcap > 0)
        st_emit(b, ST_OP_SOFTCAP, part->logits, ST_NO_VALUE, part->logits)->p.softcap.cap = b->desc->logit_softcap;
    part->head.count = b->op_count - part->head.first;
}

static void lower_main(st_builder *b, st_part *part)
{
    *part = (st_part){.body.first = b->op_count, .input = ST_NO_VALUE};
    b->part_first = b->op_count;
    b->block = ST_BLOCK_INPUT;
    int32_t x = st_emit_embed(b, "x", st_emit_model_weight(b, ST_ROLE_TOKEN_EMBD), b->desc->embedding_scale);
    int32_t inputs = per_layer_inputs(b, x);
    for (uint32_t i = 0; i < b->desc->layer_count; i++) layer(b, i, x, inputs);
    head(b, x, output_norm(b), output_matrix(b), part);
}

/* The NextN block predicts the token after the next from the hidden state and the next token's embedding. */
static void lower_nextn(st_builder *b, st_part *part)
{
    uint32_t index = b->desc->layer_count;
    b->layer = (int32_t)index;
    *part = (st_part){.body.first = b->op_count};
    b->part_first = b->op_count;
    b->block = ST_BLOCK_INPUT;
    part->input = st_emit_value(b, "hidden_in", b->desc->embedding, ST_ROWS_ALL);
    int32_t own_table = st_emit_weight(b, ST_ROLE_NEXTN_EMBED_TOKENS);
    if (own_table == ST_NO_WEIGHT) own_table = st_emit_model_weight(b, ST_ROLE_TOKEN_EMBD);
    int32_t e = st_emit_embed(b, "next_token", own_table, b->desc->embedding_scale);
    b->block = ST_BLOCK_ATTENTION;
    st_emit_norm_row(b, ST_ROLE_NEXTN_ENORM, e);
    int32_t h = st_emit_norm(b, "hidden", output_norm(b), part->input);
    st_emit_norm_row(b, ST_ROLE_NEXTN_HNORM, h);
    int32_t both = st_emit_value(b, "next_and_hidden", 2 * (uint64_t)b->desc->embedding, ST_ROWS_ALL);
    st_emit(b, ST_OP_CONCAT, e, h, both);
    int32_t x = st_emit_project(b, "x", ST_ROLE_NEXTN_EH_PROJ, ST_ROLE_COUNT, both);
    layer(b, index, x, ST_NO_VALUE);

    b->layer = (int32_t)index;
    int32_t own_matrix = st_emit_weight(b, ST_ROLE_NEXTN_SHARED_HEAD_HEAD);
    if (own_matrix == ST_NO_WEIGHT) own_matrix = output_matrix(b);
    head(b, x, st_emit_weight(b, ST_ROLE_NEXTN_SHARED_HEAD_NORM), own_matrix, part);
    b->layer = -1;
}

/* Lowers a description with its weights to operations, in `arena`. */
static strata_status build(const st_desc *desc, const st_binding *binding, bool recorded, st_arena *arena,
                           const st_program **out, strata_error *error)
{
    uint32_t max = (desc->layer_count + desc->nextn_count + 2) * OPS_PER_LAYER_MAX;
    st_builder b = {.desc = desc, .binding = binding, .op_max = max, .value_max = max, .layer = -1,
                    .recorded = recorded};
    st_program *program = st_arena_alloc(arena, 1, sizeof *program);
    b.ops = st_arena_alloc(arena, max, sizeof *b.ops);
    b.values = st_arena_alloc(arena, max, sizeof *b.values);
    if (!program || !b.ops || !b.values)
        return st_error_memory(error, max * (sizeof *b.ops + sizeof *b.values), "the model's program");
    lower_main(&b, &program->main);
    b.recorded = false;
    if (desc->nextn_count) lower_nextn(&b, &program->nextn);
    if (b.overflow)
        return st_error_set(error, STRATA_RUNTIME, NULL, "the model's program is longer than %u operations", max);
    if (!st_values_place(&b, arena, program)) return st_error_memory(error, b.value_count * 16, "the model's program");
    program->ops = b.ops;
    program->op_count = b.op_count;
    program->values = b.values;
    program->value_count = b.value_count;
    program->choice_words = b.choice_words;
    *out = program;
    return STRATA_OK;
}

strata_status st_program_of_file_with(const st_gguf *gguf, const st_program_options *options, st_arena *arena,
                                      const st_desc **desc, const st_binding **binding, const st_program **program,
                                      strata_error *error)
{
    strata_status status = st_desc_build(gguf, arena, desc, error);
    if (status == STRATA_OK && options->experts_used)
        status = st_desc_use_experts(*desc, options->experts_used, arena, desc, error);
    if (status == STRATA_OK) status = st_binding_build(*desc, gguf, arena, binding, error);
    return status == STRATA_OK ? build(*desc, *binding, options->recorded, arena, program, error) : status;
}

strata_status st_program_of_file(const st_gguf *gguf, st_arena *arena, const st_desc **desc, const st_binding **binding,
                                 const st_program **program, strata_error *error)
{
    return st_program_of_file_with(gguf, &(st_program_options){0}, arena, desc, binding, program, error);
}
