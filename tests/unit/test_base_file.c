/* src/base: files mapped and read, each of their system calls failing in turn; the log. */
#include "support/kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"

static char folder[] = "/tmp/strata-test-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_file(const char *text, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* Open descriptors of this process: a failure must not leak one. */
static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) != -1) count++;
    return count;
}

/* Pages of a mapping that are in RAM. */
static size_t resident_pages(const st_mapping *mapping)
{
    enum { MOST = 8192 };
    static unsigned char there[MOST];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (mapping->size + page - 1) / page, count = 0;
    assert_true(pages <= MOST);
    assert_int_equal(mincore((void *)(uintptr_t)mapping->data, mapping->size, there), 0);
    for (size_t i = 0; i < pages; i++) count += there[i] & 1;
    return count;
}

enum { POPULATED_BYTES = (20 << 20) + 5000, POPULATED_PAGES = POPULATED_BYTES / 4096 + 1 };

/* Populates the file, in several threads only if the page cache has it. Returns false if the kernel evicted pages meanwhile,
 * which it may at any time. */
static bool populates(bool dropped)
{
    st_mapping mapping = {0};
    strata_error error;
    int fd = open(path, O_RDONLY);
    assert_int_equal(fsync(fd), 0);
    if (dropped) assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    assert_int_equal(st_file_map(path, &mapping, &error), STRATA_OK);
    if (!dropped) st_file_populate(mapping.data, mapping.size);
    size_t cached = resident_pages(&mapping);
    bool populated = st_file_populate_cached(mapping.data + 100, mapping.size - 100);
    if (!populated) st_file_populate(mapping.data + 100, mapping.size - 100);
    bool expected = (cached != POPULATED_PAGES || populated) && (cached != 0 || !populated) && (dropped || cached == POPULATED_PAGES) &&
                    resident_pages(&mapping) == POPULATED_PAGES;
    st_file_unmap(&mapping);
    return expected;
}

static void a_file_is_populated(void **state)
{
    (void)state;
    char *text = calloc(1, POPULATED_BYTES);
    write_file(text, POPULATED_BYTES);
    free(text);
    for (int dropped = 0; dropped < 2; dropped++) {
        bool expected = false;
        for (int i = 0; i < 20 && !expected; i++) expected = populates(dropped);
        assert_true(expected);
    }
}

static void a_file_is_mapped(void **state)
{
    (void)state;
    st_mapping mapping = {0};
    strata_error error;
    write_file("some\0bytes", 10);
    assert_int_equal(st_file_map(path, &mapping, &error), STRATA_OK);
    assert_int_equal(mapping.size, 10);
    assert_memory_equal(mapping.data, "some\0bytes", 10);
    st_file_unmap(&mapping);
    assert_null(mapping.data);
    st_file_unmap(&mapping);
    write_file("", 0);
    assert_int_equal(st_file_map(path, &mapping, &error), STRATA_OK);
    assert_null(mapping.data);
    assert_int_equal(mapping.size, 0);
    st_file_unmap(&mapping);
}

static void only_regular_files_are_mapped(void **state)
{
    (void)state;
    st_mapping mapping = {.size = 77};
    st_buf buf = {0};
    strata_error error;
    assert_int_equal(st_file_map("/nonexistent/x.gguf", &mapping, &error), STRATA_FILE);
    assert_non_null(strstr(error.message, "/nonexistent/x.gguf"));
    assert_string_equal(error.hint, "check the path");
    assert_int_equal(st_file_map(folder, &mapping, &error), STRATA_FILE);
    assert_non_null(strstr(error.message, "a directory"));
    assert_int_equal(st_file_map("/dev/null", &mapping, &error), STRATA_FILE);
    assert_int_equal(mapping.size, 77); /* unchanged */
    assert_int_equal(st_file_map("/nonexistent/x.gguf", &mapping, NULL), STRATA_FILE);
    assert_int_equal(st_file_read("/nonexistent/x.txt", 10, &buf, &error), STRATA_FILE);
    assert_int_equal(st_file_read(folder, 10, &buf, &error), STRATA_FILE);
    assert_int_equal(buf.length, 0);
    st_buf_free(&buf);
}

static void a_file_is_read_up_to_its_limit(void **state)
{
    (void)state;
    enum { SIZE = 200000 };
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++) text[i] = (char)(i * 7);
    write_file(text, SIZE);
    st_buf buf = {0};
    strata_error error;
    assert_true(st_buf_append(&buf, "before", 6));
    assert_int_equal(st_file_read(path, SIZE - 1, &buf, &error), STRATA_LIMIT);
    assert_int_equal(buf.length, 6);
    assert_int_equal(st_file_read(path, SIZE, &buf, &error), STRATA_OK);
    assert_int_equal(buf.length, 6 + SIZE);
    assert_memory_equal(buf.data, "before", 6);
    assert_memory_equal(buf.data + 6, text, SIZE);
    st_buf_free(&buf);
    free(text);
}

static void every_call_may_fail(void **state)
{
    (void)state;
    int before = open_descriptors();
    write_file("text", 4);
    uint64_t calls = 0;
    for (uint64_t nth = 1; nth < 20; nth++) {
        st_mapping mapping = {0};
        strata_error error = {0};
        st_fault_arm(ST_FAULT_FILE, nth, false);
        strata_status status = st_file_map(path, &mapping, &error);
        calls = st_fault_calls(ST_FAULT_FILE);
        st_fault_arm(ST_FAULT_FILE, 0, false);
        assert_int_equal(status, nth <= calls ? STRATA_FILE : STRATA_OK);
        if (status != STRATA_OK) assert_non_null(strstr(error.message, path));
        st_file_unmap(&mapping);
    }
    assert_int_equal(calls, 3); /* open, stat, map */
    for (uint64_t nth = 1; nth < 20; nth++) {
        st_buf buf = {0};
        st_fault_arm(ST_FAULT_FILE, nth, true);
        strata_status status = st_file_read(path, 100, &buf, NULL);
        calls = st_fault_calls(ST_FAULT_FILE);
        st_fault_arm(ST_FAULT_FILE, 0, false);
        assert_int_equal(status, nth <= calls ? STRATA_FILE : STRATA_OK);
        assert_int_equal(buf.length, status == STRATA_OK ? 4 : 0);
        st_buf_free(&buf);
    }
    assert_int_equal(calls, 3); /* open, read, read the end */
    assert_int_equal(open_descriptors(), before);
}

static void reading_without_memory_is_an_error(void **state)
{
    (void)state;
    int before = open_descriptors();
    st_buf buf = {0};
    strata_error error;
    write_file("text", 4);
    st_fault_arm(ST_FAULT_ALLOC, 1, false);
    assert_int_equal(st_file_read(path, 100, &buf, &error), STRATA_MEMORY);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_int_equal(open_descriptors(), before);
    st_buf_free(&buf);
}

static void a_dash_is_standard_input(void **state)
{
    (void)state;
    int pipe_ends[2], saved = dup(STDIN_FILENO);
    assert_int_equal(pipe(pipe_ends), 0);
    assert_int_equal(write(pipe_ends[1], "piped", 5), 5);
    close(pipe_ends[1]);
    dup2(pipe_ends[0], STDIN_FILENO);
    close(pipe_ends[0]);
    st_buf buf = {0};
    strata_status status = st_file_read("-", 100, &buf, NULL);
    bool still_open = fcntl(STDIN_FILENO, F_GETFD) != -1;
    dup2(saved, STDIN_FILENO);
    close(saved);
    assert_int_equal(status, STRATA_OK);
    assert_true(still_open);
    assert_int_equal(buf.length, 5);
    assert_memory_equal(buf.data, "piped", 5);
    st_buf_free(&buf);
}

static void the_log_writes_to_standard_error(void **state)
{
    (void)state;
    int saved = dup(STDERR_FILENO), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    st_log(ST_LOG_WARN, "number %d", 1);
    st_log(ST_LOG_ERROR, "number %d", 2);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(file);
    st_buf buf = {0};
    kit_read(path, &buf);
    st_buf_append_char(&buf, '\0');
    assert_string_equal(buf.data, "strata: warning: number 1\nstrata: error: number 2\n");
    st_buf_free(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_mapped),
        cmocka_unit_test(a_file_is_populated),
        cmocka_unit_test(only_regular_files_are_mapped),
        cmocka_unit_test(a_file_is_read_up_to_its_limit),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(reading_without_memory_is_an_error),
        cmocka_unit_test(a_dash_is_standard_input),
        cmocka_unit_test(the_log_writes_to_standard_error),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
