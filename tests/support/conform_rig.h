/* Operations on the reference and on an instruction set, or the backend of mirror.h, and the comparison of their results.
 * Every comparison that fails is printed with its seed. */
#ifndef TEST_SUPPORT_CONFORM_RIG_H
#define TEST_SUPPORT_CONFORM_RIG_H

#include "backend/backend.h"
#include "base/alloc.h"
#include "support/kit.h"
#include "support/random.h"

typedef struct level_case {
    const char *cpu;
    uint32_t type;
} level_case;

/* How many random shapes a test tries; each kind of operation takes some multiple. */
uint32_t conform_rounds(void);
void conform_close(void); /* at the end of a group: closes the devices */

bool level_is_here(const char *cpu);
static inline void check_level(const level_case *c)
{
    if (!level_is_here(c->cpu)) skip();
}

/* Runs an operation of all rows of the step. Under the address sanitizer it has the scratch that it stated and no more. */
void run_op(const char *cpu, const st_bound_op *bound, st_step *step);
/* The same for operations that run one after another in a segment. */
void run_segment(const char *cpu, const st_bound_op *ops, uint32_t count, st_step *step);

/* Runs an operation on the reference. The caller frees the result. */
float *run_plainly(st_bound_op *bound, st_step *step);

double distance(const float *a, const float *b, size_t count); /* ‖a−b‖/‖b‖ */

/* Counts a comparison of the running test; conclude fails the test if an error was above its bound. */
void note(const char *cpu, const char *what, double error, double error_max, uint32_t rows, uint64_t seed);
void conclude(void);

/* Runs the operation on `cpu` and compares with `expected`, which is freed, or with the reference. */
void compare_with(float *expected, const char *cpu, const char *what, st_bound_op *bound, st_step *step, double error_max,
                  uint64_t seed);
void compare(const char *cpu, const char *what, st_bound_op *bound, st_step *step, double error_max, uint64_t seed);

static inline float *random_floats(size_t count)
{
    float *out = st_alloc_array(count, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = random_float();
    return out;
}

static inline uint32_t random_rows(void)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 70};
    return rows[random_bits() % (sizeof rows / sizeof *rows)];
}

#endif
