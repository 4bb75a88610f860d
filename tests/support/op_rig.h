/* A device that runs one operation at a time (the reference kernels, or the backend of mirror.h), and the formulas for the
 * expected results. */
#ifndef TEST_SUPPORT_OP_RIG_H
#define TEST_SUPPORT_OP_RIG_H

#include "backend/backend.h"
#include "support/kit.h"

enum { ROWS = 5, OP_PAGES = 64, OP_CHOICES = 24 };

/* cmocka group set-up: opens the device and a step: ROWS rows of one conversation, from position 0 on, with OP_CHOICES
 * words of recorded choices each, and OP_PAGES entries for its page table. */
int op_rig_open(void **state);
int op_rig_close(void **state);

extern st_step *op_step;

/* Moves the rows to `position` and on. */
void op_step_at(uint32_t position);

void op_run(const st_bound_op *bound, st_rows rows);

float random_value(void); /* between −1 and 1 */
void randomise(float *values, size_t count);

st_bound_weight floats(const float *data, uint64_t ne0, uint64_t ne1);

#define CLOSE 2e-6
/* Fails unless |found − expected| ≤ CLOSE × size, where size is the sum of the magnitudes that were added up. */
void check_close(const char *what, size_t index, double found, double expected, double size);

double sigmoid(double x);
double silu(double x);
double gelu(double x);

#endif
