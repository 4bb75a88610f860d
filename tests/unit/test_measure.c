/* The arithmetic of the machine's measurement: the matrix that is timed, and the rates from timed operations. */
#include "support/kit.h"

#include <math.h>

#include "base/memory.h"
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
        add(&sums, ST_OP_MATMUL, types[i], 64, i + 1); /* of as many operations in all: no rows to unpack */
        add(&sums, ST_OP_EXPERTS, types[i], 256, 3 * (i + 1));
    }
    add(&sums, ST_OP_MATMUL, "IQ1_S", 256, 1000); /* too rare to count */
    add(&sums, ST_OP_ATTENTION, "Q8_0", 256, 4);
    add(&sums, ST_OP_ATTENTION, "F16", 256, 12);
    add(&sums, ST_OP_ATTENTION, "F32", 256, 1000); /* rare */
    add(&sums, ST_OP_DELTANET, "F32", 256, 1);
    add(&sums, ST_OP_RMS_NORM, "-", 256, 1000);
    add(&sums, ST_OP_RMS_NORM, "-", 1, 5);
    add(&sums, ST_OP_ADD, "-", 1, 1000);
    add(&sums, ST_OP_MATMUL, "Q4_K", 256, 0); /* not timed */
    add(&sums, ST_OP_MATMUL, "Q4_K", 1, 2);
    add(&sums, ST_OP_EXPERTS, "Q4_K", 1, 1);
    add(&sums, ST_OP_ATTENTION, "Q8_0", 1, 1);
    assert_true(st_rate_sums_finish(&sums));
    close_to(m.op_rate, 600);
    close_to(m.classes[ST_CLASS_EXPERTS].op_share, 1.0 / 3);
    close_to(m.classes[ST_CLASS_ATTENTION].op_share, 2.0 / 8);
    close_to(m.classes[ST_CLASS_WIDE_ATTENTION].op_share, 2.0 / 8);
    close_to(m.classes[ST_CLASS_RECURRENT].op_share, 2);
    assert_true(m.classes[ST_CLASS_ROWS].seconds == 5 && m.classes[ST_CLASS_PRODUCT].fill == 0);
    close_to(m.type_share[ST_TYPE_Q4_K], 0.3); /* one row: only matrices count */
    assert_true(m.type_share[ST_TYPE_Q8_0] == 0);
}

/* 64 rows take 2 s and 256 rows 5 s: a row 1/64 s, after the time of 64 rows. */
static void unpacking_takes_the_time_of_some_rows(void **state)
{
    (void)state;
    st_measurement m = {.read_rate = 1000};
    st_rate_sums sums = {.m = &m};
    st_op_measure small = {ST_OP_MATMUL, "Q4_K", 64, 2, 600, 64 * 10}, large = {ST_OP_MATMUL, "Q4_K", 256, 5, 600, 256 * 10};
    assert_true(st_rate_sums_add(&sums, &small) && st_rate_sums_add(&sums, &large));
    assert_true(st_rate_sums_finish(&sums));
    close_to(m.op_rate, 640);
    close_to(m.classes[ST_CLASS_PRODUCT].fill, 64);
    assert_true(m.classes[ST_CLASS_EXPERTS].fill == 0 && m.classes[ST_CLASS_EXPERTS].op_share == 0); /* unknown */
    /* Experts take 3 s and 9 s: a row 1/32 s, half as fast, after the time of 32 rows, of which each expert has a quarter. */
    st_op_measure few = {ST_OP_EXPERTS, "Q4_K", 64, 3, 600, 64 * 10}, many = {ST_OP_EXPERTS, "Q4_K", 256, 9, 600, 256 * 10};
    assert_true(st_rate_sums_add(&sums, &few) && st_rate_sums_add(&sums, &many));
    assert_true(st_rate_sums_finish(&sums));
    close_to(m.classes[ST_CLASS_EXPERTS].op_share, 0.5);
    close_to(m.classes[ST_CLASS_EXPERTS].fill, 32.0 / ST_MEASURE_ROWS_OF_EXPERT);
}

static double prepared_bytes[2]; /* of experts: in operations of one expert, and of several */

static strata_status count_bytes(st_device *device, const st_segment_source *source, st_segment **out, strata_error *error)
{
    const st_bound_op *op = &source->ops[0];
    uint32_t used = op->op->p.experts.used;
    for (int m = 0; m < 3; m += 2) prepared_bytes[used > 1] += (double)used * (double)(op->weight[m].row_bytes * op->weight[m].ne[1]);
    return st_backend_cpu()->prepare(device, source, out, error);
}

/* Eight experts have eight times the bytes of one. Neither stay in a cache between two passes: single
 * experts once did, where the last-level cache has 300 MiB. */
static void experts_are_timed_from_memory(void **state)
{
    (void)state;
    st_backend counting = *st_backend_cpu();
    const st_backend *cpu = &counting;
    strata_error error;
    st_device *device = NULL;
    st_fit_point points[2] = {{0}};
    counting.prepare = count_bytes;
    prepared_bytes[0] = prepared_bytes[1] = 0;
    assert_int_equal(cpu->open(&(st_device_options){.threads = 1}, &device, &error), STRATA_OK);
    if (st_measure_experts(cpu, device, points, &error) != STRATA_OK) fail_msg("%s", error.message);
    cpu->close(device);
    for (int i = 0; i < 2; i++) assert_true(prepared_bytes[i] > 0.9 * (double)st_memory_probe_bytes_now());
    close_to(points[0].work, 3.0 * 2048 * 768 / 256 * 144);
    close_to(points[1].work, 8 * points[0].work);
    assert_true(points[0].seconds > 0 && points[1].seconds > 0);
}

/* On two cores a large matrix has four times the bytes of a small one. */
static void products_and_attention_are_timed(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    strata_error error;
    st_device *device = NULL;
    st_fit_point points[2] = {{0}};
    double attention = 0;
    assert_int_equal(cpu->open(&(st_device_options){.threads = 1}, &device, &error), STRATA_OK);
    if (st_measure_products(cpu, device, points, &error) != STRATA_OK) fail_msg("%s", error.message);
    if (st_measure_short_attention(cpu, device, &attention, &error) != STRATA_OK) fail_msg("%s", error.message);
    close_to(points[0].work, 1024 * 1024 / 256 * 144);
    close_to(points[1].work, 4 * points[0].work);
    assert_true(points[0].seconds > 0 && points[1].seconds > 0 && attention > 0);
    /* The fixed time is taken out of each product: with −10⁶ s it is all that counts, and with 10⁶ s nothing is left. */
    static const struct { double fixed, least, most; } rows[] = {{0, 2, INFINITY}, {-1e6, 0.58, 0.59}, {1e6, 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double rates[ST_TYPE_Q4_K + 1] = {[ST_TYPE_Q4_K] = 1};
        if (st_measure_reading(cpu, device, rows[i].fixed, rates, ST_TYPE_Q4_K + 1, &error) != STRATA_OK) fail_msg("%s", error.message);
        assert_true(rates[ST_TYPE_Q4_K] >= rows[i].least && rates[ST_TYPE_Q4_K] <= rows[i].most);
        assert_true(rates[ST_TYPE_Q4_0] == 0);
    }
    cpu->close(device);
}

/* Another process delayed the small batch: nothing is known of unpacking. */
static void a_disturbed_batch_leaves_a_rate(void **state)
{
    (void)state;
    st_measurement m = {.read_rate = 1000};
    st_rate_sums sums = {.m = &m};
    st_op_measure small = {ST_OP_MATMUL, "Q4_K", 64, 6, 600, 64 * 10}, large = {ST_OP_MATMUL, "Q4_K", 256, 4, 600, 256 * 10};
    assert_true(st_rate_sums_add(&sums, &small) && st_rate_sums_add(&sums, &large));
    assert_true(st_rate_sums_finish(&sums));
    close_to(m.op_rate, 640);
    assert_true(m.classes[ST_CLASS_PRODUCT].fill == 0);
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
        cmocka_unit_test(a_disturbed_batch_leaves_a_rate),
        cmocka_unit_test(unpacking_takes_the_time_of_some_rows),
        cmocka_unit_test(experts_are_timed_from_memory),
        cmocka_unit_test(products_and_attention_are_timed),
        cmocka_unit_test(experts_are_at_most_as_fast_as_matrices),
    };
    return cmocka_run_group_tests_name("measure", tests, NULL, NULL);
}
