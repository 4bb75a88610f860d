/* src/base: statuses and errors, checked arithmetic, the allocator and its failures, arenas, buffers. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/check.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/str.h"

/* ---- statuses --------------------------------------------------------------------------------------------------- */

static void every_status_has_a_name_and_an_exit_code(void **state)
{
    (void)state;
    for (int i = 0; i < STRATA_STATUS_COUNT; i++) {
        assert_true(strlen(strata_status_name((strata_status)i)) > 0);
        assert_true(strlen(strata_status_text((strata_status)i)) > 0);
        assert_true(strata_status_exit_code((strata_status)i) >= 0);
        assert_int_equal(strata_status_exit_code((strata_status)i) == 0, i == STRATA_OK);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(strata_status_name((strata_status)i), strata_status_name((strata_status)j));
    }
    assert_string_equal(strata_status_name(STRATA_DEVICE_LOST), "DEVICE_LOST");
}

static void exit_codes_are_the_documented_ones(void **state)
{
    (void)state;
    static const struct {
        strata_status status;
        int code;
    } rows[] = {{STRATA_OK, 0},          {STRATA_RUNTIME, 1},     {STRATA_LIMIT, 1},  {STRATA_TEMPLATE, 1},
                {STRATA_INPUT, 1},       {STRATA_USAGE, 2},       {STRATA_FILE, 3},   {STRATA_FORMAT, 3},
                {STRATA_UNSUPPORTED, 3}, {STRATA_MEMORY, 4},      {STRATA_DEVICE, 5}, {STRATA_DEVICE_LOST, 5},
                {STRATA_NETWORK, 6},     {STRATA_INTERRUPTED, 130}};
    assert_int_equal(sizeof rows / sizeof *rows, STRATA_STATUS_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(strata_status_exit_code(rows[i].status), rows[i].code);
}

static void a_status_out_of_range_is_a_runtime_error(void **state)
{
    (void)state;
    int wrong[] = {-1, STRATA_STATUS_COUNT, 1000000};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_string_equal(strata_status_name((strata_status)wrong[i]), "RUNTIME");
        assert_int_equal(strata_status_exit_code((strata_status)wrong[i]), 1);
    }
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static void an_error_carries_message_and_hint(void **state)
{
    (void)state;
    strata_error error;
    assert_int_equal(st_error_set(&error, STRATA_FORMAT, "fetch it again", "key %s: expected %d", "a.b", 3),
                     STRATA_FORMAT);
    assert_int_equal(error.status, STRATA_FORMAT);
    assert_string_equal(error.message, "key a.b: expected 3");
    assert_string_equal(error.hint, "fetch it again");
    st_error_set(&error, STRATA_INPUT, NULL, "other");
    assert_string_equal(error.hint, "");
}

static void an_error_may_be_null(void **state)
{
    (void)state;
    assert_int_equal(st_error_set(NULL, STRATA_LIMIT, "hint", "%d", 1), STRATA_LIMIT);
    assert_int_equal(st_error_memory(NULL, 10, "x"), STRATA_MEMORY);
    st_error_prefix(NULL, "x");
}

static void control_characters_in_an_error_are_replaced(void **state)
{
    (void)state;
    strata_error error;
    st_error_set(&error, STRATA_FORMAT, "a\x1b[2Jb", "%s", "\x1b]0;x\a \xC2\x9B \xFF\x80 \n\t\x7F caf\xC3\xA9");
    assert_string_equal(error.message, "?]0;x? ?? ?? ??? caf\xC3\xA9");
    assert_string_equal(error.hint, "a?[2Jb");
}

static void a_long_error_is_cut_between_code_points(void **state)
{
    (void)state;
    strata_error error;
    char text[2000];
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'x', sizeof text);
        for (size_t i = shift; i + 4 < sizeof text; i += 4) memcpy(text + i, "\xF0\x9F\x98\x80", 4);
        text[sizeof text - 1] = '\0';
        st_error_set(&error, STRATA_FORMAT, text, "%s", text);
        size_t length = strlen(error.message), hint_length = strlen(error.hint);
        assert_in_range(length, sizeof error.message - 4, sizeof error.message - 1);
        assert_int_equal((length - shift) % 4, 0);
        assert_null(strchr(error.message, '?'));
        assert_in_range(hint_length, sizeof error.hint - 4, sizeof error.hint - 1);
    }
}

static void a_memory_error_names_the_object_and_its_bytes(void **state)
{
    (void)state;
    strata_error error;
    assert_int_equal(st_error_memory(&error, 4096, "the vocabulary"), STRATA_MEMORY);
    assert_int_equal(error.status, STRATA_MEMORY);
    assert_non_null(strstr(error.message, "the vocabulary"));
    assert_non_null(strstr(error.message, "4096"));
    assert_true(error.hint[0] != '\0');
}

static void a_prefix_is_prepended_to_the_message(void **state)
{
    (void)state;
    strata_error error;
    st_error_set(&error, STRATA_FORMAT, "hint", "key b");
    st_error_prefix(&error, "file.gguf");
    assert_string_equal(error.message, "file.gguf: key b");
    assert_string_equal(error.hint, "hint");
    assert_int_equal(error.status, STRATA_FORMAT);
    char longer[2000];
    memset(longer, 'p', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    st_error_prefix(&error, longer);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    /* A message that fills the buffer keeps its beginning. */
    memset(longer, 'm', 760);
    longer[760] = '\0';
    st_error_set(&error, STRATA_FORMAT, NULL, "%s", longer);
    st_error_prefix(&error, "12345678901234567890");
    assert_memory_equal(error.message, "12345678901234567890: mmm", 25);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

static void sums_and_products_are_checked(void **state)
{
    (void)state;
    size_t out = 77;
    assert_true(st_add_size(SIZE_MAX - 1, 1, &out));
    assert_true(out == SIZE_MAX);
    out = 77;
    assert_false(st_add_size(SIZE_MAX, 1, &out));
    assert_false(st_mul_size(SIZE_MAX, 2, &out));
    assert_false(st_mul_size((size_t)1 << 32, (size_t)1 << 32, &out));
    assert_int_equal(out, 77);
    assert_true(st_mul_size((size_t)1 << 31, (size_t)1 << 32, &out));
    assert_true(out == (size_t)1 << 63);
    assert_true(st_mul_size(0, SIZE_MAX, &out));
    assert_int_equal(out, 0);
}

static void alignment_rounds_up_and_is_checked(void **state)
{
    (void)state;
    size_t out;
    assert_true(st_align_size(0, 32, &out));
    assert_int_equal(out, 0);
    assert_true(st_align_size(1, 32, &out));
    assert_int_equal(out, 32);
    assert_true(st_align_size(32, 32, &out));
    assert_int_equal(out, 32);
    assert_true(st_align_size(33, 1, &out));
    assert_int_equal(out, 33);
    assert_true(st_align_size(SIZE_MAX - 31, 32, &out));
    assert_true(out == SIZE_MAX - 31);
    out = 5;
    assert_false(st_align_size(SIZE_MAX - 30, 32, &out));
    assert_int_equal(out, 5);
    assert_true(st_align_size(25, 24, &out)); /* not a power of two */
    assert_int_equal(out, 48);
    assert_int_equal(st_align_up(25, 24), 48);
    assert_int_equal(st_align_up(48, 24), 48);
}

static void ranges_are_consecutive(void **state)
{
    (void)state;
    size_t end = 0, offset = 7;
    assert_true(st_range_append(&end, 3, 100, &offset));
    assert_int_equal(offset, 0);
    assert_int_equal(end, 300);
    assert_true(st_range_append(&end, 1, 1, &offset));
    assert_int_equal(offset, 2 * ST_RANGE_ALIGN);
    assert_int_equal(end, 2 * ST_RANGE_ALIGN + 1);
    assert_false(st_range_append(&end, SIZE_MAX, 2, &offset));
    assert_false(st_range_append(&end, SIZE_MAX - 100, 1, &offset));
    assert_int_equal(offset, 2 * ST_RANGE_ALIGN);
    assert_int_equal(end, 2 * ST_RANGE_ALIGN + 1);
}

static void powers_of_two(void **state)
{
    (void)state;
    assert_false(st_is_power_of_two(0));
    assert_false(st_is_power_of_two(UINT64_MAX));
    for (int bit = 0; bit < 64; bit++) {
        assert_true(st_is_power_of_two((uint64_t)1 << bit));
        if (bit > 1) assert_false(st_is_power_of_two(((uint64_t)1 << bit) + 1));
    }
}

/* ---- the allocator and its failures ----------------------------------------------------------------------------- */

static void the_allocator_checks_products(void **state)
{
    (void)state;
    assert_null(st_alloc_array(SIZE_MAX / 2, 3));
    assert_null(st_alloc_zero(SIZE_MAX / 2, 3));
    assert_null(st_strndup("x", SIZE_MAX));
    void *nothing = st_alloc(0), *no_items = st_alloc_array(0, 8), *zero = st_alloc_zero(0, 0);
    assert_non_null(nothing);
    assert_non_null(no_items);
    assert_non_null(zero);
    st_free(nothing);
    st_free(no_items);
    st_free(zero);
    st_free(NULL);
    char *copy = st_strndup("abcdef", 3), *empty = st_strndup(NULL, 0);
    assert_string_equal(copy, "abc");
    assert_string_equal(empty, "");
    st_free(copy);
    strata_free(empty);
    unsigned char *zeroed = st_alloc_zero(100, 7);
    for (size_t i = 0; i < 700; i++) assert_int_equal(zeroed[i], 0);
    zeroed = st_realloc(zeroed, 0);
    assert_non_null(zeroed);
    st_free(zeroed);
}

/* The calls of eight allocations that fail. */
static unsigned failed_calls(void)
{
    unsigned failed = 0;
    for (unsigned i = 0; i < 8; i++) {
        void *block = i % 4 == 0   ? st_alloc(8)
                      : i % 4 == 1 ? st_alloc_zero(2, 4)
                      : i % 4 == 2 ? st_realloc(NULL, 8)
                                   : st_strndup("text", 4);
        if (!block) failed |= 1u << i;
        st_free(block);
    }
    return failed;
}

static void allocations_fail_on_demand(void **state)
{
    (void)state;
    assert_int_equal(failed_calls(), 0);
    for (unsigned nth = 1; nth <= 8; nth++) {
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        assert_int_equal(failed_calls(), 1u << (nth - 1));
        assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 8);
        st_fault_arm(ST_FAULT_ALLOC, nth, true);
        assert_int_equal(failed_calls(), 0xFF & ~((1u << (nth - 1)) - 1));
    }
    st_fault_arm(ST_FAULT_ALLOC, 9, false);
    assert_int_equal(failed_calls(), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_int_equal(failed_calls(), 0);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    /* Each kind of fault has its own counter. */
    st_fault_arm(ST_FAULT_FILE, 1, true);
    assert_int_equal(failed_calls(), 0);
    st_fault_arm(ST_FAULT_FILE, 0, false);
}

static void a_failed_realloc_keeps_the_block(void **state)
{
    (void)state;
    char *block = st_strndup("kept", 4);
    st_fault_arm(ST_FAULT_ALLOC, 1, false);
    assert_null(st_realloc(block, 1 << 20));
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_string_equal(block, "kept");
    st_free(block);
}

/* ---- arenas ----------------------------------------------------------------------------------------------------- */

static void arena_blocks_are_zeroed_aligned_and_disjoint(void **state)
{
    (void)state;
    st_arena arena = {0};
    enum { COUNT = 3000 };
    static unsigned char *blocks[COUNT];
    size_t asked = 0;
    for (size_t i = 0; i < COUNT; i++) {
        size_t size = i % 100 == 99 ? 20000 : i % 67;
        blocks[i] = st_arena_alloc(&arena, size, 1);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t j = 0; j < size; j++) assert_int_equal(blocks[i][j], 0);
        memset(blocks[i], (int)(i & 0xFF), size);
        asked += size;
    }
    for (size_t i = 0; i < COUNT; i++) {
        size_t size = i % 100 == 99 ? 20000 : i % 67;
        for (size_t j = 0; j < size; j++) assert_int_equal(blocks[i][j], i & 0xFF);
    }
    assert_true(arena.used_bytes >= asked);
    st_arena_free(&arena);
    assert_null(arena.blocks);
    assert_int_equal(arena.used_bytes, 0);
    assert_non_null(st_arena_alloc(&arena, 1, 1)); /* the arena is usable again */
    st_arena_free(&arena);
    st_arena_free(&arena);
}

static void an_arena_checks_sizes(void **state)
{
    (void)state;
    st_arena arena = {0};
    assert_null(st_arena_alloc(&arena, SIZE_MAX, 2));
    assert_null(st_arena_alloc(&arena, SIZE_MAX, 1));
    assert_null(st_arena_alloc(&arena, SIZE_MAX - 64, 1));
    assert_null(st_arena_copy(&arena, "x", SIZE_MAX));
    assert_int_equal(arena.used_bytes, 0);
    void *a = st_arena_alloc(&arena, 0, 8), *b = st_arena_alloc(&arena, 0, 8);
    assert_non_null(a);
    assert_ptr_not_equal(a, b);
    assert_string_equal(st_arena_copy(&arena, "hello there", 5), "hello");
    assert_string_equal(st_arena_copy(&arena, NULL, 0), "");
    st_arena_free(&arena);
}

static void an_arena_survives_a_failure(void **state)
{
    (void)state;
    st_arena arena = {0};
    st_fault_arm(ST_FAULT_ALLOC, 1, false);
    assert_null(st_arena_alloc(&arena, 1, 16));
    assert_int_equal(arena.used_bytes, 0);
    assert_non_null(st_arena_alloc(&arena, 1, 16));
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    assert_non_null(st_arena_alloc(&arena, 1, 16)); /* fits into the current chunk */
    assert_null(st_arena_alloc(&arena, 1, 1 << 20));
    assert_null(st_arena_copy(&arena, "x", 100000));
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_arena_free(&arena);
}

/* ---- buffers and views ------------------------------------------------------------------------------------------ */

static void a_buffer_grows(void **state)
{
    (void)state;
    st_buf buf = {0};
    for (int i = 0; i < 1000; i++) {
        assert_true(st_buf_printf(&buf, "%03d", i));
        assert_true(st_buf_append_char(&buf, ','));
        assert_true(st_buf_append_str(&buf, ST_STR("xy")));
        assert_true(st_buf_append(&buf, NULL, 0));
    }
    assert_int_equal(buf.length, 6000);
    assert_memory_equal(buf.data + 5994, "999,xy", 6);
    size_t length = 0;
    char *text = st_buf_take(&buf, &length);
    assert_int_equal(length, 6000);
    assert_int_equal(strlen(text), 6000);
    assert_null(buf.data);
    assert_int_equal(buf.length, 0);
    st_free(text);
    text = st_buf_take(&buf, NULL); /* an empty buffer gives an empty string */
    assert_string_equal(text, "");
    st_free(text);
    st_buf_free(&buf);
}

static void a_failed_buffer_stays_failed(void **state)
{
    (void)state;
    st_buf buf = {0};
    assert_true(st_buf_append(&buf, "abc", 3));
    st_fault_arm(ST_FAULT_ALLOC, 1, false);
    char large[200] = {0};
    assert_false(st_buf_append(&buf, large, sizeof large));
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_true(buf.failed);
    assert_int_equal(buf.length, 3);
    assert_false(st_buf_append_char(&buf, 'x'));
    assert_false(st_buf_printf(&buf, "x"));
    assert_false(st_buf_reserve(&buf, 0));
    size_t length = 55;
    assert_null(st_buf_take(&buf, &length));
    assert_int_equal(length, 55);
    assert_null(buf.data); /* nothing is left to free */
    assert_false(buf.failed);
}

static void a_buffer_checks_sizes(void **state)
{
    (void)state;
    st_buf buf = {0};
    assert_true(st_buf_append_char(&buf, 'x'));
    assert_false(st_buf_reserve(&buf, SIZE_MAX));
    assert_true(buf.failed);
    st_buf_free(&buf);
    assert_false(st_buf_reserve(&buf, SIZE_MAX / 2 + 2));
    st_buf_free(&buf);
}

static void views_compare_bytes(void **state)
{
    (void)state;
    assert_true(st_str_equal(ST_STR("a\0b"), ST_STR("a\0b")));
    assert_false(st_str_equal(ST_STR("a\0b"), ST_STR("a\0c")));
    assert_false(st_str_equal(ST_STR("a"), ST_STR("ab")));
    assert_true(st_str_equal((st_str){NULL, 0}, ST_STR("")));
    assert_true(st_str_is(ST_STR("abc"), "abc"));
    assert_false(st_str_is(ST_STR("abc"), "ab"));
    assert_int_equal(st_str_from("four").length, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_and_an_exit_code),
        cmocka_unit_test(exit_codes_are_the_documented_ones),
        cmocka_unit_test(a_status_out_of_range_is_a_runtime_error), cmocka_unit_test(an_error_carries_message_and_hint),
        cmocka_unit_test(an_error_may_be_null), cmocka_unit_test(control_characters_in_an_error_are_replaced),
        cmocka_unit_test(a_long_error_is_cut_between_code_points),
        cmocka_unit_test(a_memory_error_names_the_object_and_its_bytes),
        cmocka_unit_test(a_prefix_is_prepended_to_the_message), cmocka_unit_test(sums_and_products_are_checked),
        cmocka_unit_test(alignment_rounds_up_and_is_checked), cmocka_unit_test(ranges_are_consecutive),
        cmocka_unit_test(powers_of_two), cmocka_unit_test(the_allocator_checks_products),
        cmocka_unit_test(allocations_fail_on_demand), cmocka_unit_test(a_failed_realloc_keeps_the_block),
        cmocka_unit_test(arena_blocks_are_zeroed_aligned_and_disjoint), cmocka_unit_test(an_arena_checks_sizes),
        cmocka_unit_test(an_arena_survives_a_failure), cmocka_unit_test(a_buffer_grows),
        cmocka_unit_test(a_failed_buffer_stays_failed), cmocka_unit_test(a_buffer_checks_sizes),
        cmocka_unit_test(views_compare_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
