/* src/backend/cpu/parts.c: how columns are divided among threads. */
#include "support/kit.h"

#include "backend/cpu/parts.h"

/* Every column is in one part; the parts are in order, and none is longer than one before it. */
static st_parts check_cut(st_parts_of of, uint32_t threads)
{
    st_parts parts;
    size_t column = 0, before = of.columns;
    st_parts_cut(&parts, &of, threads);
    for (size_t i = 0; i < parts.count; i++) {
        st_columns c = st_parts_at(&parts, i);
        assert_int_equal(c.first, column);
        assert_true(c.count > 0 && c.count <= before);
        if (i + 1 < parts.count) assert_int_equal(c.count % of.step, 0);
        if (of.bytes_max) assert_true(c.count <= of.step || c.count * of.bytes <= of.bytes_max);
        before = c.count;
        column += c.count;
    }
    assert_int_equal(column, of.columns);
    return parts;
}

static void every_column_is_in_one_part(void **state)
{
    (void)state;
    static const size_t columns[] = {1, 2, 15, 16, 17, 32, 100, 511, 768, 2048, 6144, 12288, 151936};
    static const size_t bytes[] = {1, 144, 432, 1152, 2304, 8192, 100000};
    static const uint32_t threads[] = {1, 2, 3, 16, 64, 1024};
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++)
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
                for (size_t step = 1; step <= 16; step *= 4) {
                    check_cut((st_parts_of){columns[c], step, bytes[b], 0}, threads[t]);
                    check_cut((st_parts_of){columns[c], step, bytes[b], 384 << 10}, threads[t]);
                }
}

/* A large matrix: the first part of each thread is half of its share, the last parts are short. */
static void long_parts_come_first(void **state)
{
    (void)state;
    st_parts parts = check_cut((st_parts_of){24576, 16, 2304, 0}, 16);
    assert_int_equal(st_parts_at(&parts, 0).count, 24576 / 32);
    assert_int_equal(st_parts_at(&parts, 15).count, 24576 / 32);
    assert_true(st_parts_at(&parts, 16).count < 24576 / 32);
    assert_true(st_parts_at(&parts, parts.count - 2).count * 2304 < 160 << 10);
    assert_true(parts.count < 16 * 8);
}

/* A part that several rows read again stays in the cache. */
static void parts_are_limited(void **state)
{
    (void)state;
    st_parts parts = check_cut((st_parts_of){151936, 16, 2304, 384 << 10}, 2);
    assert_int_equal(st_parts_at(&parts, 0).count, 160);
}

/* A small matrix is divided evenly. */
static void every_thread_has_a_part(void **state)
{
    (void)state;
    st_parts parts = check_cut((st_parts_of){128, 1, 8192, 0}, 16);
    assert_int_equal(parts.count, 16);
    assert_int_equal(st_parts_at(&parts, 3).count, 8);
    parts = check_cut((st_parts_of){768, 16, 2304, 0}, 16);
    assert_int_equal(parts.count, 16);
    assert_int_equal(st_parts_at(&parts, 0).count, 48);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_column_is_in_one_part),
        cmocka_unit_test(long_parts_come_first),
        cmocka_unit_test(parts_are_limited),
        cmocka_unit_test(every_thread_has_a_part),
    };
    return cmocka_run_group_tests_name("parts", tests, NULL, NULL);
}
