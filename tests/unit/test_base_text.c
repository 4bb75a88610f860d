/* src/base: UTF-8 and the hash map. */
#include "support/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/map.h"
#include "base/utf8.h"

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------ */

static void every_scalar_value_round_trips(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        char bytes[4];
        uint32_t back = 0;
        size_t length = st_utf8_encode(code, bytes);
        size_t expected = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        if (length != expected || st_utf8_decode(bytes, length, &back) != length || back != code)
            fail_msg("U+%04X does not round-trip", code);
        for (size_t cut = 1; cut < length; cut++) {
            if (st_utf8_unfinished_tail(bytes, cut) != cut) fail_msg("U+%04X cut at %zu", code, cut);
            if (st_utf8_decode(bytes, cut, &back) != cut || back != UINT32_MAX) fail_msg("U+%04X cut", code);
        }
        if (st_utf8_unfinished_tail(bytes, length) != 0) fail_msg("U+%04X is finished", code);
    }
}

static void invalid_code_points_are_encoded_as_the_replacement(void **state)
{
    (void)state;
    uint32_t codes[] = {0xD800, 0xDFFF, 0x110000, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        char bytes[4];
        assert_int_equal(st_utf8_encode(codes[i], bytes), 3);
        assert_memory_equal(bytes, "\xEF\xBF\xBD", 3);
    }
}

/* The Unicode standard's table 3-8 and its neighbours: each maximal part becomes one U+FFFD (shown as *). */
static void invalid_parts_are_replaced_as_unicode_specifies(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        const char *repaired;
    } rows[] = {
        {"", ""},
        {"plain", "plain"},
        {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", "a***b*c**d"},
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "********A"},             /* overlong */
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "********A"},             /* surrogates */
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "*****A**B"},             /* beyond U+10FFFF */
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "****A"},                 /* truncated */
        {"\xF5\x80", "**"},
        {"\xC3\xA9\xC3", "\xC3\xA9*"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        st_buf out = {0}, expected = {0};
        for (const char *c = rows[i].repaired; *c; c++)
            if (*c == '*') st_buf_append(&expected, "\xEF\xBF\xBD", 3);
            else st_buf_append_char(&expected, *c);
        assert_true(st_utf8_repair(&out, rows[i].bytes, strlen(rows[i].bytes)));
        assert_int_equal(out.length, expected.length);
        if (out.length) assert_memory_equal(out.data, expected.data, out.length);
        assert_int_equal(st_utf8_valid_prefix(out.data, out.length), out.length);
        st_buf_free(&out);
        st_buf_free(&expected);
    }
}

static void the_valid_prefix_ends_at_the_first_invalid_byte(void **state)
{
    (void)state;
    assert_int_equal(st_utf8_valid_prefix("", 0), 0);
    assert_int_equal(st_utf8_valid_prefix("ab\xFFgh", 5), 2);
    assert_int_equal(st_utf8_valid_prefix("a\xC3\xA9\xE2\x82", 5), 3);
    assert_int_equal(st_utf8_valid_prefix("a\0b", 3), 3);
}

static void a_tail_is_unfinished_only_if_it_can_be_completed(void **state)
{
    (void)state;
    assert_int_equal(st_utf8_unfinished_tail("", 0), 0);
    assert_int_equal(st_utf8_unfinished_tail("abc", 3), 0);
    assert_int_equal(st_utf8_unfinished_tail("a\xE2\x82", 3), 2);
    assert_int_equal(st_utf8_unfinished_tail("\xF0\x9F\x98", 3), 3);
    assert_int_equal(st_utf8_unfinished_tail("\x80\x80\x80\x80", 4), 0);
    assert_int_equal(st_utf8_unfinished_tail("\xE0\x80", 2), 0); /* overlong whatever follows */
    assert_int_equal(st_utf8_unfinished_tail("\xED\xA0", 2), 0); /* a surrogate whatever follows */
    assert_int_equal(st_utf8_unfinished_tail("\xFF", 1), 0);
    assert_int_equal(st_utf8_unfinished_tail("\xC3\xA9\x80", 3), 0);
}

/* Random bytes: repair always gives valid text, and repairing in two parts at an unfinished tail gives the same. */
static void repairing_in_parts_gives_the_same_text(void **state)
{
    (void)state;
    uint64_t seed = 12345;
    for (int round = 0; round < 20000; round++) {
        static const unsigned char alphabet[] = {0x00, 0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF,
                                                 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
        char bytes[24];
        size_t length = (size_t)(seed >> 20) % sizeof bytes;
        for (size_t i = 0; i < length; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (char)alphabet[(seed >> 33) % sizeof alphabet];
        }
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t cut = length ? (size_t)(seed >> 33) % (length + 1) : 0;
        cut -= st_utf8_unfinished_tail(bytes, cut);
        st_buf whole = {0}, parts = {0};
        st_utf8_repair(&whole, bytes, length);
        st_utf8_repair(&parts, bytes, cut);
        st_utf8_repair(&parts, bytes + cut, length - cut);
        if (st_utf8_valid_prefix(whole.data, whole.length) != whole.length) fail_msg("round %d: not valid", round);
        if (whole.length != parts.length || (whole.length && memcmp(whole.data, parts.data, whole.length) != 0))
            fail_msg("round %d: cut at %zu of %zu", round, cut, length);
        st_buf_free(&whole);
        st_buf_free(&parts);
    }
}

static void repair_reports_failed_allocations(void **state)
{
    (void)state;
    st_buf out = {0};
    st_fault_arm(ST_FAULT_ALLOC, 1, false);
    assert_false(st_utf8_repair(&out, "\xFF", 1));
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_buf_free(&out);
}

/* ---- the map ---------------------------------------------------------------------------------------------------- */

static void a_map_finds_what_was_added(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    char(*keys)[12] = st_alloc_array(COUNT, sizeof *keys);
    st_map map = {0};
    assert_null(st_map_find(&map, ST_STR("absent")));
    for (uint32_t i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof keys[i], "%u", i * 7919u);
        assert_int_equal(st_map_add(&map, st_str_from(keys[i]), i), ST_MAP_ADDED);
    }
    assert_int_equal(map.count, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t *found = st_map_find(&map, st_str_from(keys[i]));
        assert_non_null(found);
        assert_int_equal(*found, i);
    }
    assert_null(st_map_find(&map, ST_STR("absent")));
    assert_null(st_map_find(&map, ST_STR("")));
    st_map_free(&map);
    assert_null(map.entries);
    st_map_free(&map);
    st_free(keys);
}

static void adding_an_existing_key_keeps_its_value(void **state)
{
    (void)state;
    st_map map = {0};
    assert_int_equal(st_map_add(&map, ST_STR("a"), 1), ST_MAP_ADDED);
    assert_int_equal(st_map_add(&map, ST_STR("a"), 2), ST_MAP_EXISTS);
    assert_int_equal(*st_map_find(&map, ST_STR("a")), 1);
    assert_int_equal(map.count, 1);
    st_map_free(&map);
}

static void empty_keys_and_keys_with_nul_are_keys(void **state)
{
    (void)state;
    st_map map = {0};
    assert_int_equal(st_map_add(&map, (st_str){NULL, 0}, 1), ST_MAP_ADDED);
    assert_int_equal(st_map_add(&map, ST_STR(""), 2), ST_MAP_EXISTS);
    assert_int_equal(st_map_add(&map, ST_STR("\0"), 3), ST_MAP_ADDED);
    assert_int_equal(st_map_add(&map, ST_STR("\0\0"), 4), ST_MAP_ADDED);
    assert_int_equal(*st_map_find(&map, (st_str){NULL, 0}), 1);
    assert_int_equal(*st_map_find(&map, ST_STR("\0")), 3);
    assert_int_equal(*st_map_find(&map, ST_STR("\0\0")), 4);
    st_map_free(&map);
}

static void a_failed_allocation_leaves_the_map_unchanged(void **state)
{
    (void)state;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    st_map map = {0};
    assert_false(st_map_reserve(&map, SIZE_MAX));
    assert_false(st_map_reserve(&map, SIZE_MAX / 2));
    uint32_t added = 0;
    st_fault_arm(ST_FAULT_ALLOC, 2, true); /* the first table is allocated, growing it fails */
    while (added < 26 && st_map_add(&map, (st_str){letters + added, 1}, added) == ST_MAP_ADDED) added++;
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_in_range(added, 1, 25);
    assert_int_equal(map.count, added);
    for (uint32_t i = 0; i < added; i++) assert_int_equal(*st_map_find(&map, (st_str){letters + i, 1}), i);
    for (; added < 26; added++)
        assert_int_equal(st_map_add(&map, (st_str){letters + added, 1}, added), ST_MAP_ADDED);
    st_map_free(&map);
}

static void reserving_keeps_the_entries(void **state)
{
    (void)state;
    st_map map = {0};
    st_map_add(&map, ST_STR("one"), 1);
    assert_true(st_map_reserve(&map, 10000));
    size_t capacity = map.capacity;
    assert_true(capacity >= 20000);
    assert_int_equal(*st_map_find(&map, ST_STR("one")), 1);
    assert_true(st_map_reserve(&map, 1));
    assert_int_equal(map.capacity, capacity);
    st_map_free(&map);
}

static void the_hash_depends_on_every_byte_and_the_length(void **state)
{
    (void)state;
    unsigned char bytes[40] = {0};
    for (size_t length = 0; length <= sizeof bytes; length++) {
        uint64_t hash = st_hash_bytes(bytes, length);
        assert_true(hash == st_hash_bytes(bytes, length));
        if (length < sizeof bytes) assert_true(hash != st_hash_bytes(bytes, length + 1));
        for (size_t i = 0; i < length; i++) {
            bytes[i] ^= 0x40;
            assert_true(hash != st_hash_bytes(bytes, length));
            bytes[i] ^= 0x40;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_value_round_trips),
        cmocka_unit_test(invalid_code_points_are_encoded_as_the_replacement),
        cmocka_unit_test(invalid_parts_are_replaced_as_unicode_specifies),
        cmocka_unit_test(the_valid_prefix_ends_at_the_first_invalid_byte),
        cmocka_unit_test(a_tail_is_unfinished_only_if_it_can_be_completed),
        cmocka_unit_test(repairing_in_parts_gives_the_same_text), cmocka_unit_test(repair_reports_failed_allocations),
        cmocka_unit_test(a_map_finds_what_was_added), cmocka_unit_test(adding_an_existing_key_keeps_its_value),
        cmocka_unit_test(empty_keys_and_keys_with_nul_are_keys),
        cmocka_unit_test(a_failed_allocation_leaves_the_map_unchanged), cmocka_unit_test(reserving_keeps_the_entries),
        cmocka_unit_test(the_hash_depends_on_every_byte_and_the_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
