/* The builder of a program: emits operations and values one after the other, for the layer and block that are set.
 * Knows the operations' operands, not what a layer computes; lower*.c decide that. */
#ifndef ST_MODEL_EMIT_H
#define ST_MODEL_EMIT_H

#include "model/program.h"

typedef struct st_builder {
    const st_desc *desc;
    const st_binding *binding;
    st_op *ops;
    uint32_t op_count, op_max;
    st_value *values;
    uint32_t value_count, value_max;
    int32_t layer;     /* of the operations now emitted; −1: none */
    st_block block;    /* of the operations now emitted */
    uint32_t part_first; /* the part's first operation: angles are shared within a part */
    bool recorded;     /* the routers now emitted take their choices from the step block */
    uint32_t choice_words; /* of the choices so far */
    bool overflow;     /* the program passed its size bound: an internal error, reported and not run */
} st_builder;

int32_t st_emit_value(st_builder *b, const char *name, uint64_t width, st_rows rows);
uint32_t st_emit_width(const st_builder *b, int32_t value);
st_rows st_emit_rows(const st_builder *b, int32_t value);
st_op *st_emit(st_builder *b, st_op_kind kind, int32_t in0, int32_t in1, int32_t out);
int32_t st_emit_weight(const st_builder *b, st_role role);
int32_t st_emit_model_weight(const st_builder *b, st_role role);
int32_t st_emit_embed(st_builder *b, const char *name, int32_t table, float scale);
int32_t st_emit_matmul_bias(st_builder *b, const char *name, int32_t matrix, int32_t bias, int32_t in);
int32_t st_emit_matmul(st_builder *b, const char *name, int32_t matrix, int32_t in);
void st_emit_norm_to(st_builder *b, int32_t norm_weight, uint32_t group, int32_t in, int32_t out);
int32_t st_emit_norm(st_builder *b, const char *name, int32_t norm_weight, int32_t in);
void st_emit_norm_in_place(st_builder *b, int32_t norm_weight, uint32_t group, int32_t value);
/* out = the layer's matrix of that role · in, with its bias if the file has one; ST_ROLE_COUNT: no bias. */
int32_t st_emit_project(st_builder *b, const char *name, st_role role, st_role bias_role, int32_t in);
/* Norm of whole rows in place, with the layer's weight of that role. */
void st_emit_norm_row(st_builder *b, st_role role, int32_t value);
void st_emit_add_to(st_builder *b, int32_t value, int32_t other);
void st_emit_scale_in_place(st_builder *b, int32_t value, float factor);
void st_emit_mul_weight_in_place(st_builder *b, int32_t value, int32_t factors);
int32_t st_emit_slice(st_builder *b, const char *name, int32_t in, uint32_t groups, uint32_t stride, uint32_t offset,
                     uint32_t size);
/* act(gate) × up, in gate's place */
void st_emit_gated_act_in_place(st_builder *b, st_activation activation, int32_t gate, int32_t up);

/* lower_attention.c, lower_recurrent.c: the part of a layer that mixes tokens. Returns its output, before the residual
 * addition. */
int32_t st_lower_mixer(st_builder *b, const st_layer_desc *layer, int32_t h);
int32_t st_lower_recurrent(st_builder *b, const st_layer_desc *layer, int32_t h);

/* lower_ffn.c: the feed-forward part of a layer on its normed input `h`; `x` is the residual stream. */
int32_t st_lower_ffn(st_builder *b, const st_ffn_desc *f, int32_t x, int32_t h);

/* values.c: gives every value its offset; values with disjoint lifetimes may share one. False: out of memory. */
bool st_values_place(st_builder *b, st_arena *arena, st_program *program);

#endif
