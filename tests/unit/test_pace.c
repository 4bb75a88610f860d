/* What the scheduler learns of the cost of steps. */
#include "support/kit.h"

#include <math.h>

#include "sched/pace.h"

/* A machine whose steps take this long. */
static double machine(st_pace_load load)
{
    return 0.004 + 0.0006 * load.answers + 0.0004 * load.rows + 2e-8 * (double)load.attended;
}

static st_pace_load piece(uint32_t answers, uint32_t rows, uint32_t position)
{
    return (st_pace_load){.answers = answers, .rows = rows, .attended = (uint64_t)(rows + answers) * position};
}

static void predictions_follow_the_steps_that_ran(void **state)
{
    (void)state;
    static const double wrong[] = {0.1, 1.0, 13.0}; /* times the right estimates */
    for (int w = 0; w < 3; w++) {
        st_pace pace;
        st_pace_start(&pace, 0.004 * wrong[w], 0.0004 * wrong[w]);
        for (uint32_t i = 0; i < 12; i++) {
            st_pace_load load = piece(3, 100 + 10 * (i % 5), 200 * i);
            st_pace_learn(&pace, load, machine(load));
        }
        st_pace_load next = piece(3, 130, 2600);
        double off = st_pace_predict(&pace, next) / machine(next);
        if (off < 0.85 || off > 1.15) fail_msg("estimates %g × off: a prediction is %g × the step", wrong[w], off);
    }
}

static void answers_alone_and_prompts_are_told_apart(void **state)
{
    (void)state;
    st_pace pace;
    st_pace_start(&pace, 0.05, 0.00001);
    for (int i = 0; i < 60; i++) {
        st_pace_load load = i % 2 ? piece(3, 0, 1000) : piece(3, 220, 1000);
        st_pace_learn(&pace, load, machine(load));
    }
    st_pace_load both = piece(3, 220, 1000), alone = piece(3, 0, 1000);
    assert_true(fabs(st_pace_predict(&pace, both) / machine(both) - 1) < 0.02);
    assert_true(fabs(st_pace_predict(&pace, alone) / machine(alone) - 1) < 0.05);
}

/* One step that took a hundred times as long changes little; a machine that has become slow is learnt. */
static void an_interruption_is_not_a_cost(void **state)
{
    (void)state;
    st_pace pace;
    st_pace_start(&pace, 0.004, 0.0004);
    st_pace_load load = piece(2, 200, 500);
    for (int i = 0; i < 20; i++) st_pace_learn(&pace, load, machine(load));
    double before = st_pace_predict(&pace, load);
    st_pace_learn(&pace, load, 100 * machine(load));
    assert_true(st_pace_predict(&pace, load) < 1.6 * before);
    for (int i = 0; i < 30; i++) st_pace_learn(&pace, load, 10 * machine(load));
    assert_true(st_pace_predict(&pace, load) > 9 * before);
}

static void rows_are_the_most_that_fit(void **state)
{
    (void)state;
    st_pace pace;
    st_pace_start(&pace, 0.004, 0.0004);
    for (int i = 0; i < 40; i++) {
        st_pace_load load = piece(4, 50 + 30 * (i % 7), 100 * i);
        st_pace_learn(&pace, load, machine(load));
    }
    st_pace_load answers = {.answers = 4, .attended = 4000};
    uint32_t rows = st_pace_rows(&pace, answers, 1000, 0.1, 512);
    assert_in_range(rows, 100, 300);
    st_pace_load with = answers, more = answers;
    with.rows = rows;
    with.attended += (uint64_t)rows * 1000 + (uint64_t)rows * rows / 2;
    more.rows = rows + 1;
    more.attended += (uint64_t)(rows + 1) * 1000 + (uint64_t)(rows + 1) * (rows + 1) / 2;
    assert_true(st_pace_predict(&pace, with) <= 0.1);
    assert_true(st_pace_predict(&pace, more) > 0.1);
    assert_int_equal(st_pace_rows(&pace, answers, 1000, 1000.0, 512), 512);
    assert_int_equal(st_pace_rows(&pace, answers, 1000, 0.0, 512), 0);
}

static void times_that_are_no_times_are_ignored(void **state)
{
    (void)state;
    st_pace pace;
    st_pace_start(&pace, 0.004, 0.0004);
    double before = st_pace_predict(&pace, piece(1, 10, 0));
    st_pace_learn(&pace, piece(1, 10, 0), -1.0);
    st_pace_learn(&pace, piece(1, 10, 0), NAN);
    st_pace_learn(&pace, piece(1, 10, 0), INFINITY);
    assert_true(st_pace_predict(&pace, piece(1, 10, 0)) == before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_follow_the_steps_that_ran),
        cmocka_unit_test(answers_alone_and_prompts_are_told_apart), cmocka_unit_test(an_interruption_is_not_a_cost),
        cmocka_unit_test(rows_are_the_most_that_fit), cmocka_unit_test(times_that_are_no_times_are_ignored),
    };
    return cmocka_run_group_tests_name("pace", tests, NULL, NULL);
}
