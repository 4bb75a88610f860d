/* Malformed files: every row of the table, every prefix and every changed byte of small valid ones. Each must be
 * refused with a typed error, within twice the size of the file and 64 MiB of memory, or open and be consistent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/gguf_walk.h"
#include "support/mutate.h"

enum { ROWS_MIN = 220, MEMORY_SPARE = 64 << 20 };

/* The sanitizers and valgrind need more address space than a limit would leave. */
static bool memory_can_be_limited(void)
{
#if defined(__SANITIZE_ADDRESS__)
    return false;
#else
    const char *preloaded = getenv("LD_PRELOAD");
    return !(preloaded && strstr(preloaded, "vgpreload"));
#endif
}

static size_t address_space_now(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1) fail_msg("cannot read /proc/self/statm");
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void limit_memory(size_t extra)
{
    if (!memory_can_be_limited()) return;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = extra == SIZE_MAX ? limit.rlim_max : address_space_now() + extra;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
}

static void check_answer(const mutate_case *row, strata_status status, const strata_error *error, const char *path)
{
    if (!(row->statuses >> status & 1))
        fail_msg("%s: found the status %s (%s)", row->name, strata_status_name(status),
                 status == STRATA_OK ? "it opened" : error->message);
    assert_int_equal(error->status, status);
    if (!strstr(error->message, path)) fail_msg("%s: no file name in: %s", row->name, error->message);
    if (!strstr(error->message, row->message))
        fail_msg("%s: expected \"%s\" in: %s", row->name, row->message, error->message);
    if (!strstr(error->message, "expected")) fail_msg("%s: no \"expected\" in: %s", row->name, error->message);
    if (!strstr(error->message, "found")) fail_msg("%s: no \"found\" in: %s", row->name, error->message);
}

static void check_case(void **state)
{
    const mutate_case *row = *state;
    gguf_writer writer;
    row->build(row, &writer);
    assert_false(writer.out.failed);
    /* A block of exactly the file's size, so that the sanitizer sees a read past its end. */
    size_t size = writer.out.length;
    unsigned char *bytes = st_alloc(size);
    assert_non_null(bytes);
    if (size) memcpy(bytes, writer.out.data, size);
    gguf_writer_free(&writer);

    st_gguf *gguf = NULL;
    strata_error error = {0};
    limit_memory(2 * size + MEMORY_SPARE);
    strata_status status = st_gguf_open_memory("test.gguf", bytes, size, &gguf, &error);
    limit_memory(SIZE_MAX);
    if (status == STRATA_OK) st_gguf_close(gguf);
    else assert_null(gguf);
    st_free(bytes);
    check_answer(row, status, &error, "test.gguf");
}

/* The same results for files on disk. */
static void check_on_disk(void **state)
{
    (void)state;
    char path[] = "/tmp/strata-test-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    close(fd);
    size_t count;
    const mutate_case *rows = mutate_cases(&count);
    for (size_t i = 0; i < count; i++) {
        gguf_writer writer;
        rows[i].build(&rows[i], &writer);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(writer.out.data ? writer.out.data : "", 1, writer.out.length, file), writer.out.length);
        assert_int_equal(fclose(file), 0);
        gguf_writer_free(&writer);
        st_gguf *gguf = NULL;
        strata_error error = {0};
        strata_status status = st_gguf_open(path, &gguf, &error);
        if (status == STRATA_OK) st_gguf_close(gguf);
        check_answer(&rows[i], status, &error, path);
    }
    unlink(path);
}

static strata_status open_copy(const char *data, size_t size, size_t changed, unsigned char value)
{
    unsigned char *bytes = st_alloc(size);
    assert_non_null(bytes);
    if (size) memcpy(bytes, data, size);
    if (changed < size) bytes[changed] = value;
    st_gguf *gguf = NULL;
    strata_error error = {0};
    strata_status status = st_gguf_open_memory("test.gguf", bytes, size, &gguf, &error);
    if (status == STRATA_OK) {
        (void)gguf_walk(gguf);
        st_gguf_close(gguf);
    } else {
        assert_true(MUTATE_ANY_ERROR >> status & 1);
        assert_int_equal(error.status, status);
        assert_non_null(strstr(error.message, "test.gguf: "));
        assert_null(gguf);
    }
    st_free(bytes);
    return status;
}

/* A prefix opens if, and only if, nothing but padding is missing. */
static void check_prefixes(void **state)
{
    (void)state;
    for (size_t index = 0; index < MUTATE_VALID_COUNT; index++) {
        gguf_writer writer;
        size_t directory_end, file_end;
        mutate_valid(index, &writer, &directory_end, &file_end);
        for (size_t length = 0; length <= writer.out.length; length++) {
            strata_status status = open_copy(writer.out.data, length, SIZE_MAX, 0);
            if ((status == STRATA_OK) != (length >= file_end))
                fail_msg("file %zu: the first %zu of %zu bytes: found the status %s", index, length, writer.out.length,
                         strata_status_name(status));
        }
        gguf_writer_free(&writer);
    }
}

static void check_changed_bytes(void **state)
{
    (void)state;
    static const unsigned char masks[] = {0x01, 0x80, 0xFF};
    size_t refused = 0;
    for (size_t index = 0; index < MUTATE_VALID_COUNT; index++) {
        gguf_writer writer;
        size_t directory_end, file_end;
        mutate_valid(index, &writer, &directory_end, &file_end);
        for (size_t i = 0; i < directory_end; i++)
            for (size_t mask = 0; mask < sizeof masks; mask++) {
                unsigned char value = (unsigned char)writer.out.data[i] ^ masks[mask];
                refused += open_copy(writer.out.data, writer.out.length, i, value) != STRATA_OK;
            }
        gguf_writer_free(&writer);
    }
    assert_true(refused > 1000);
}

int main(void)
{
    size_t count;
    const mutate_case *rows = mutate_cases(&count);
    if (count < ROWS_MIN) {
        printf("not ok - expected at least %d malformed files, found %zu\n", ROWS_MIN, count);
        return 1;
    }
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(rows[i].name, rows[j].name) == 0) {
                printf("not ok - two malformed files are named %s\n", rows[i].name);
                return 1;
            }
    struct CMUnitTest *tests = calloc(count + 3, sizeof *tests);
    if (!tests) return 1;
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){
            .name = rows[i].name, .test_func = check_case, .initial_state = (void *)(uintptr_t)&rows[i]};
    tests[count] = (struct CMUnitTest){.name = "all of them on disk", .test_func = check_on_disk};
    tests[count + 1] = (struct CMUnitTest){.name = "every prefix of five files", .test_func = check_prefixes};
    tests[count + 2] = (struct CMUnitTest){.name = "every byte of five directories changed",
                                           .test_func = check_changed_bytes};
    int failed = _cmocka_run_group_tests("gguf mutate", tests, count + 3, NULL, NULL);
    free(tests);
    return failed;
}
