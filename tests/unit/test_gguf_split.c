/* Split files on disk: valid ones by any of their names, and wrong, missing and duplicate ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/gguf_walk.h"
#include "support/mutate_split.h"

static void opens_by_any_name(void **state)
{
    (void)state;
    split_folder folder;
    split_folder_make(&folder);
    split_write_all(&folder);
    for (int i = 0; i < SPLIT_FILES; i++) {
        st_gguf *gguf = NULL;
        strata_error error = {0};
        const char *path = split_path(&folder, i, SPLIT_FILES);
        if (st_gguf_open(path, &gguf, &error) != STRATA_OK) fail_msg("%s", error.message);
        (void)gguf_walk(gguf);
        assert_string_equal(st_gguf_path(gguf), path);
        assert_int_equal(st_gguf_file_count(gguf), SPLIT_FILES);
        assert_int_equal(st_gguf_tensor_count(gguf), 2 * SPLIT_FILES);
        assert_int_equal(st_gguf_tensor_bytes(gguf), SPLIT_FILES * (64 + 54));
        assert_int_equal(st_gguf_key_count(gguf), 5); /* the first file's */
        for (uint32_t t = 0; t < 2 * SPLIT_FILES; t++) {
            char name[16];
            snprintf(name, sizeof name, "t%u", t);
            const st_gguf_tensor *tensor = st_gguf_tensor_find(gguf, name);
            assert_non_null(tensor);
            assert_int_equal(tensor->file, t / 2);
            assert_int_equal(tensor->data[tensor->bytes - 1], 0x5A);
        }
        st_gguf_close(gguf);
    }
    split_folder_remove(&folder);
}

/* ---- wrong ones -------------------------------------------------------------------------------------------------- */

typedef struct split_case {
    const char *name;
    void (*spoil)(const split_folder *folder);
    int number, count; /* the name that is opened */
    strata_status status;
    const char *message;
} split_case;

static const char *part_path(const split_folder *folder, int number)
{
    return split_path(folder, number, SPLIT_FILES);
}

static void nothing(const split_folder *folder)
{
    (void)folder;
}

static void no_first(const split_folder *folder)
{
    unlink(part_path(folder, 0));
}

static void no_second(const split_folder *folder)
{
    unlink(part_path(folder, 1));
}

static void no_last(const split_folder *folder)
{
    unlink(part_path(folder, 2));
}

/* Defines `name`, which changes one member of part `part`. */
#define SPOIL(name, part, member, value)                          \
    static void name(const split_folder *folder)                  \
    {                                                             \
        split_part spoilt = split_part_of(part);                  \
        spoilt.member = (value);                                  \
        split_write(part_path(folder, part), &spoilt);            \
    }

SPOIL(second_is_first, 1, number, 0)
SPOIL(second_is_third, 1, number, 2)
SPOIL(second_is_far, 1, number, 65535)
SPOIL(second_has_no_number, 1, number, -1)
SPOIL(first_has_no_number, 0, number, -1)
SPOIL(first_has_no_count, 0, count, -1)
SPOIL(second_has_no_count, 1, count, -1)
SPOIL(first_of_two, 0, count, 2)
SPOIL(first_of_four, 0, count, 4)
SPOIL(first_of_none, 0, count, 0)
SPOIL(second_of_two, 1, count, 2)
SPOIL(last_of_many, 2, count, 65535)
SPOIL(one_tensor_more, 0, tensors, 7)
SPOIL(one_tensor_less, 0, tensors, 5)
SPOIL(last_counts_otherwise, 2, tensors, 4)
SPOIL(other_architecture, 1, architecture, "qwen2")
SPOIL(tensor_twice, 2, tensor, "t0")

static void copy_over(const split_folder *folder, int from, int to)
{
    split_part part = split_part_of(from);
    split_write(part_path(folder, to), &part);
}

static void second_copied_from_first(const split_folder *folder)
{
    copy_over(folder, 0, 1);
}

static void swapped(const split_folder *folder)
{
    copy_over(folder, 1, 2);
    copy_over(folder, 2, 1);
}

static void second_is_empty(const split_folder *folder)
{
    split_write_bytes(part_path(folder, 1), "", 0);
}

static void second_is_text(const split_folder *folder)
{
    split_write_bytes(part_path(folder, 1), "hello, world", 12);
}

static void second_is_cut(const split_folder *folder)
{
    if (truncate(part_path(folder, 1), 200) != 0) fail_msg("truncate");
}

static void last_lacks_a_byte(const split_folder *folder)
{
    struct stat info;
    const char *path = part_path(folder, 2);
    /* 54 of the last tensor's 64 bytes are data */
    if (stat(path, &info) != 0 || truncate(path, info.st_size - 11) != 0) fail_msg("truncate");
}

static void second_is_folder(const split_folder *folder)
{
    unlink(part_path(folder, 1));
    if (mkdir(part_path(folder, 1), 0700) != 0) fail_msg("mkdir");
}

/* Two files with 70,000 tensors each: within the limit one by one, beyond it together. */
static void too_many_together(const split_folder *folder)
{
    for (int i = 0; i < 2; i++) {
        gguf_writer writer;
        gguf_writer_begin(&writer, 3);
        gguf_write_key_u16(&writer, "split.no", (uint16_t)i);
        gguf_write_key_u16(&writer, "split.count", SPLIT_FILES);
        for (unsigned t = 0; t < 70000; t++) {
            char name[32];
            snprintf(name, sizeof name, "f%d.t%u", i, t);
            gguf_write_tensor(&writer, name, ST_TYPE_I8, 1, (uint64_t[]){1});
        }
        gguf_writer_finish(&writer);
        split_write_bytes(part_path(folder, i), writer.out.data, writer.out.length);
        gguf_writer_free(&writer);
    }
}

/* The first file by names that do not suit it. */
static void renamed(const split_folder *folder, int number, int count)
{
    split_part part = split_part_of(0);
    split_write(split_path(folder, number, count), &part);
}

static void first_as_one_of_one(const split_folder *folder)
{
    renamed(folder, 0, 1);
}

static void first_as_one_of_two(const split_folder *folder)
{
    renamed(folder, 0, 2);
}

static void first_as_one_of_many(const split_folder *folder)
{
    renamed(folder, 0, 1024);
}

static void first_as_four_of_three(const split_folder *folder)
{
    renamed(folder, 3, 3);
}

static const split_case split_cases[] = {
    {"the first is missing", no_first, 0, 3, STRATA_FILE, "m-00001-of-00003.gguf: cannot open the file"},
    {"the first is missing, opened by the second", no_first, 1, 3, STRATA_FILE, "m-00001-of-00003.gguf"},
    {"the second is missing", no_second, 0, 3, STRATA_FILE, "m-00002-of-00003.gguf: cannot open the file"},
    {"the last is missing", no_last, 0, 3, STRATA_FILE, "(file 3 of 3 of a split)"},
    {"the last is missing, opened by the last", no_last, 2, 3, STRATA_FILE, "m-00003-of-00003.gguf"},
    {"the second says it is the first", second_is_first, 0, 3, STRATA_FORMAT, "split.no: expected 1, as the file's"},
    {"the second says it is the third", second_is_third, 0, 3, STRATA_FORMAT, "name says, found 2"},
    {"the second says it is the 65536th", second_is_far, 2, 3, STRATA_FORMAT, "found 65535"},
    {"the second has no number", second_has_no_number, 0, 3, STRATA_FORMAT, "split.no: expected 1, found no such key"},
    {"the first has no number", first_has_no_number, 0, 3, STRATA_FORMAT, "split.no: expected 0, found no such key"},
    {"the first has no count", first_has_no_count, 0, 3, STRATA_FORMAT, "split.count: expected 3, as the file's name"},
    {"the second has no count", second_has_no_count, 0, 3, STRATA_FORMAT, "m-00002-of-00003.gguf: key split.count"},
    {"the first says two files", first_of_two, 0, 3, STRATA_FORMAT, "split.count: expected 3, as the file's name says"},
    {"the first says four files", first_of_four, 0, 3, STRATA_FORMAT, "found 4"},
    {"the first says no files", first_of_none, 0, 3, STRATA_FORMAT, "found 0"},
    {"the second says two files", second_of_two, 0, 3, STRATA_FORMAT, "m-00002-of-00003.gguf: key split.count"},
    {"the last says 65535 files", last_of_many, 0, 3, STRATA_FORMAT, "found 65535"},
    {"the count is one tensor too high", one_tensor_more, 0, 3, STRATA_FORMAT, "split.tensors.count: expected 6"},
    {"the count is one tensor too low", one_tensor_less, 0, 3, STRATA_FORMAT, "split.tensors.count: expected 6"},
    {"the last has another count", last_counts_otherwise, 0, 3, STRATA_FORMAT, "m-00003-of-00003.gguf: key split.tens"},
    {"the second is of another model", other_architecture, 0, 3, STRATA_FORMAT, "expected \"llama\" as in the first"},
    {"a tensor in two files", tensor_twice, 0, 3, STRATA_FORMAT, "m-00003-of-00003.gguf: tensor t0: expected each"},
    {"the second is a copy of the first", second_copied_from_first, 0, 3, STRATA_FORMAT, "split.no: expected 1"},
    {"the second and third are swapped", swapped, 0, 3, STRATA_FORMAT, "split.no: expected 1"},
    {"the second is empty", second_is_empty, 0, 3, STRATA_FORMAT, "m-00002-of-00003.gguf: expected a GGUF file"},
    {"the second is text", second_is_text, 0, 3, STRATA_FORMAT, "m-00002-of-00003.gguf: expected the bytes"},
    {"the second is truncated", second_is_cut, 0, 3, STRATA_FORMAT, "m-00002-of-00003.gguf: "},
    {"the last lacks a byte", last_lacks_a_byte, 0, 3, STRATA_FORMAT, ": 1 bytes are missing"},
    {"the second is a folder", second_is_folder, 0, 3, STRATA_FILE, "found a directory"},
    {"too many tensors together", too_many_together, 0, 3, STRATA_FORMAT, "tensors in all files, found 14"},
    {"named one of one", first_as_one_of_one, 0, 1, STRATA_FORMAT, "found one of 3 files"},
    {"named one of two", first_as_one_of_two, 0, 2, STRATA_FORMAT, "split.count: expected 2"},
    {"named one of 1024", first_as_one_of_many, 0, 1024, STRATA_FORMAT, "split.count: expected 1024"},
    {"named four of three", first_as_four_of_three, 3, 3, STRATA_FORMAT, "expected a name from NAME-00001-of-N"},
    {"named zero of three", nothing, -1, 3, STRATA_FORMAT, "expected a name from NAME-00001-of-N"},
    {"named one of zero", nothing, 0, 0, STRATA_FORMAT, "expected a name from NAME-00001-of-N"},
    {"named one of 99999", nothing, 0, 99999, STRATA_FORMAT, "with N up to 1024"},
};

static void check_split(void **state)
{
    const split_case *row = *state;
    split_folder folder;
    split_folder_make(&folder);
    split_write_all(&folder);
    row->spoil(&folder);
    st_gguf *gguf = NULL;
    strata_error error = {0};
    strata_status status = st_gguf_open(split_path(&folder, row->number, row->count), &gguf, &error);
    if (status == STRATA_OK) st_gguf_close(gguf);
    split_folder_remove(&folder);
    if (status != row->status)
        fail_msg("%s: found the status %s (%s)", row->name, strata_status_name(status), error.message);
    if (!strstr(error.message, row->message))
        fail_msg("%s: expected \"%s\" in: %s", row->name, row->message, error.message);
    assert_true(error.hint[0] || status == STRATA_FORMAT);
}

/* Names that look like a split's but are not: each is a file by itself. */
static void names_that_do_not_belong_to_a_split(void **state)
{
    (void)state;
    static const char *const names[] = {"-00001-of-00003.gguf.bak", "m-0001-of-0003.gguf", "m-00001-of-00003.GGUF",
                                        "m-00001_of-00003.gguf",    "m-0000a-of-00003.gguf", "00001-of-00003.gguf",
                                        "m-00001-of-00001.gguf",    "x"};
    split_folder folder;
    split_folder_make(&folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s", folder.path, names[i]);
        split_part part = {.number = -1, .count = -1, .tensors = -1, .architecture = "llama", .tensor = "t0"};
        split_write(path, &part);
        st_gguf *gguf = NULL;
        strata_error error = {0};
        if (st_gguf_open(path, &gguf, &error) != STRATA_OK) fail_msg("%s", error.message);
        assert_int_equal(st_gguf_file_count(gguf), 1);
        st_gguf_close(gguf);
    }
    split_folder_remove(&folder);
}

int main(void)
{
    enum { COUNT = sizeof split_cases / sizeof *split_cases };
    struct CMUnitTest tests[COUNT + 2];
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){.name = split_cases[i].name, .test_func = check_split,
                                       .initial_state = (void *)(uintptr_t)&split_cases[i]};
    tests[COUNT] = (struct CMUnitTest){.name = "opens by any name", .test_func = opens_by_any_name};
    tests[COUNT + 1] = (struct CMUnitTest){.name = "names that do not belong to a split",
                                           .test_func = names_that_do_not_belong_to_a_split};
    return _cmocka_run_group_tests("gguf split", tests, COUNT + 2, NULL, NULL);
}
