/* The arithmetic of the machine's measurement: the matrix that is timed, and the rates from timed operations. */
#include "support/kit.h"

#include "devices.h"
#include "run/measure.h"

static void close_to(double a, double b)
{
    if (a < b * (1 - 1e-12) || a > b * (1 + 1e-12)) fail_msg("%.17g is not %.17g", a, b);
}

static void the_timed_matrix_grows_with_the_workers(void **state)
{
    (void)state;
    assert_int_equal(st_measure_columns(1024, 0), 1024);
    assert_int_equal(st_measure_columns(1024, 1), 1024);
    assert_int_equal(st_measure_columns(1024, 2), 1024);
    assert_int_equal(st_measure_columns(1024, 3), 1024);
    assert_int_equal(st_measure_columns(1024, 4), 2048);
    assert_int_equal(st_measure_columns(1024, 16), 8192);
    assert_int_equal(st_measure_columns(2048, 32), 32768);
    assert_int_equal(st_measure_columns(2048, 1000), 32768); /* as large as a model's */
}

static void add(st_rate_sums *sums, st_op_kind kind, const char *type, uint32_t rows, double seconds)
{
    st_op_measure row = {kind, type, rows, seconds, 600, 1200};
    assert_true(st_rate_sums_add(sums, &row));
}

/* Matrices take 1 s, 2 s and 3 s for 1,200 operations each, experts three times as long. */
static void matrices_and_experts_have_rates_of_their_own(void **state)
{
    (void)state;
    static const char *const types[] = {"Q4_K", "Q6_K", "Q8_0"};
    st_measurement m = {.read_rate = 1000};
    st_rate_sums sums = {.m = &m};
    for (int i = 0; i < 3; i++) {
        add(&sums, ST_OP_MATMUL, types[i], 256, i + 1);
        add(&sums, ST_OP_EXPERTS, types[i], 256, 3 * (i + 1));
    }
    add(&sums, ST_OP_MATMUL, "IQ1_S", 256, 1000); /* too rare to count */
    add(&sums, ST_OP_ATTENTION, "Q8_0", 256, 1000);
    add(&sums, ST_OP_MATMUL, "Q4_K", 256, 0); /* not timed */
    add(&sums, ST_OP_MATMUL, "Q4_K", 1, 2);
    add(&sums, ST_OP_EXPERTS, "Q4_K", 1, 1);
    add(&sums, ST_OP_ATTENTION, "Q8_0", 1, 1);
    assert_true(st_rate_sums_finish(&sums));
    close_to(m.op_rate, 600);
    close_to(m.classes[ST_CLASS_EXPERTS].op_share, 1.0 / 3);
    close_to(m.type_share[ST_TYPE_Q4_K], 0.3); /* one row: only matrices count */
    assert_true(m.type_share[ST_TYPE_Q8_0] == 0);
}

/* Eight experts have eight times the bytes of one, and take longer. */
static void experts_are_timed_from_memory(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    strata_error error;
    st_device *device = NULL;
    st_fit_point points[2] = {{0}};
    assert_int_equal(cpu->open(&(st_device_options){.threads = 1}, &device, &error), STRATA_OK);
    if (st_measure_experts(cpu, device, points, &error) != STRATA_OK) fail_msg("%s", error.message);
    cpu->close(device);
    close_to(points[0].work, 3.0 * 2048 * 768 / 256 * 144);
    close_to(points[1].work, 8 * points[0].work);
    assert_true(points[0].seconds > 0 && points[1].seconds > points[0].seconds);
}

static void experts_are_at_most_as_fast_as_matrices(void **state)
{
    (void)state;
    st_measurement m = {.read_rate = 1000};
    st_rate_sums sums = {.m = &m};
    assert_false(st_rate_sums_finish(&sums));
    add(&sums, ST_OP_EXPERTS, "Q4_K", 256, 1);
    assert_false(st_rate_sums_finish(&sums)); /* no matrices */
    add(&sums, ST_OP_MATMUL, "Q4_K", 256, 2);
    assert_true(st_rate_sums_finish(&sums));
    assert_true(m.op_rate == 600 && m.classes[ST_CLASS_EXPERTS].op_share == 1);

    st_measurement dense = {.read_rate = 1000};
    st_rate_sums matrices = {.m = &dense};
    add(&matrices, ST_OP_MATMUL, "Q8_0", 256, 2);
    assert_true(st_rate_sums_finish(&matrices));
    assert_true(dense.op_rate == 600 && dense.classes[ST_CLASS_EXPERTS].op_share == 0); /* unknown */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_timed_matrix_grows_with_the_workers),
        cmocka_unit_test(matrices_and_experts_have_rates_of_their_own),
        cmocka_unit_test(experts_are_timed_from_memory),
        cmocka_unit_test(experts_are_at_most_as_fast_as_matrices),
    };
    return cmocka_run_group_tests_name("measure", tests, NULL, NULL);
}
