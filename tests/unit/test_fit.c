/* src/base/fit.h. */
#include "support/kit.h"

#include <math.h>

#include "base/fit.h"

static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fabs(b))) fail_msg("%.12g is not %.12g", a, b);
}

static void a_line_is_found(void **state)
{
    (void)state;
    static const st_fit_point points[] = {{1, 5}, {10, 23}, {100, 203}};
    for (size_t count = 2; count <= 3; count++) {
        st_fit fit = st_fit_line(points, count);
        close_to(fit.fixed, 3);
        close_to(fit.each, 2);
    }
}

static void large_points_do_not_outweigh_small_ones(void **state)
{
    (void)state;
    static const st_fit_point points[] = {{1, 5}, {10, 23}, {1000, 2203}};
    st_fit fit = st_fit_line(points, 3);
    for (int i = 0; i < 3; i++)
        assert_true(fabs((fit.fixed + fit.each * points[i].work) / points[i].seconds - 1) < 0.1);
}

static void neither_part_is_negative(void **state)
{
    (void)state;
    static const st_fit_point steep[] = {{1, 1}, {10, 20}}, falling[] = {{1, 20}, {10, 10}};
    st_fit fit = st_fit_line(steep, 2);
    assert_true(fit.fixed == 0 && fit.each > 1 && fit.each < 2);
    fit = st_fit_line(falling, 2);
    assert_true(fit.each == 0 && fit.fixed > 10 && fit.fixed < 20);
}

static void too_few_points_have_no_fixed_part(void **state)
{
    (void)state;
    static const st_fit_point points[] = {{4, 8}, {4, 8}, {5, 0}};
    close_to(st_fit_line(points, 1).each, 2);
    close_to(st_fit_line(points, 3).each, 2);
    assert_true(st_fit_line(points, 3).fixed == 0);
    st_fit none = st_fit_line(points + 2, 1);
    assert_true(none.fixed == 0 && none.each == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_found),
        cmocka_unit_test(large_points_do_not_outweigh_small_ones),
        cmocka_unit_test(neither_part_is_negative),
        cmocka_unit_test(too_few_points_have_no_fixed_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
