/* Operations for the tests of their forms: random weights, inputs and state, and comparisons of state. The form that a
 * backend does not run is skipped. */
#ifndef TEST_SUPPORT_FORM_RIG_H
#define TEST_SUPPORT_FORM_RIG_H

#include "support/conform_rig.h"
#include "support/steps.h"

/* An operation without weights in its description, where a backend looks for them. */
st_op form_op(st_op_kind kind);
/* States the weights of `bound` in the description; skips the test if the backend does not run the operation. */
void form_need(st_op *op, const st_bound_op *bound);

/* form_free frees them. */
st_bound_weight form_floats(size_t width, size_t rows, size_t parts);
/* F32, F16, BF16 or Q8_0: random rows; other types: random blocks of MXFP4. */
st_bound_weight form_weight(st_type type, size_t width, size_t rows, size_t parts);
/* A table of parts for a matrix of experts. */
st_bound_weight form_table(st_bound_weight w);
st_bound_weight form_experts(uint32_t width, uint32_t columns, uint32_t count);
st_bound_value form_value(uint32_t rows, uint32_t width);
/* The inputs of an EXPERTS operation: ids that differ within a row, and weights. */
void form_choices(st_bound_op *bound, uint32_t rows);
/* The operation's inputs and weights, and the step. */
void form_free(st_bound_op *b, st_step *step);

/* A delta rule whose key heads are in groups or, with `channels`, with a decay per channel; a state space. Of two slots; the caller
 * gives the state. */
st_bound_op form_deltanet(st_op *op, uint32_t rows, uint32_t keys, uint32_t values, uint32_t size, bool channels);
st_bound_op form_ssm(st_op *op, uint32_t rows, uint32_t heads, uint32_t size, uint32_t states, uint32_t groups);

/* Runs the operation on the reference and on `cpu`, from the same state at *view, and compares outputs and states. */
void form_compare_state(const char *cpu, const char *what, st_bound_op *bound, st_step *step, float **view,
                        size_t floats, uint64_t seed);

st_step *form_two_conversations(uint32_t first, uint32_t second);

#endif
