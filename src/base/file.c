#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fault.h"
#include "base/slices.h"

/* Called before each system call of this file, so that a test can make it fail. */
static bool must_fail(void)
{
    if (!st_fault_hit(ST_FAULT_FILE)) return false;
    errno = EIO;
    return true;
}

static strata_status fail_file(strata_error *error, const char *path, const char *what)
{
    int cause = errno;
    const char *hint = cause == ENOENT   ? "check the path"
                       : cause == EACCES ? "check the file's permissions"
                       : cause == ENOMEM ? "free some memory, or raise the limit on address space"
                                         : NULL;
    strata_status status = cause == ENOMEM ? STRATA_MEMORY : STRATA_FILE;
    return st_error_set(error, status, hint, "%s: cannot %s: %s", path, what, strerror(cause));
}

static int open_file(const char *path)
{
    if (must_fail()) return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
}

static int stat_file(int fd, struct stat *info)
{
    if (must_fail()) return -1;
    return fstat(fd, info);
}

static strata_status map_open_file(int fd, const char *path, st_mapping *out, strata_error *error)
{
    struct stat info;
    if (stat_file(fd, &info) != 0) return fail_file(error, path, "stat the file");
    if (!S_ISREG(info.st_mode))
        return st_error_set(error, STRATA_FILE, "give the path of a file", "%s: expected a regular file, found %s",
                            path, S_ISDIR(info.st_mode) ? "a directory" : "something else");
    if (info.st_size == 0) {
        *out = (st_mapping){0};
        return STRATA_OK;
    }
    if ((uintmax_t)info.st_size > SIZE_MAX)
        return st_error_set(error, STRATA_FILE, NULL, "%s: the file is larger than the address space", path);
    size_t size = (size_t)info.st_size;
    void *data = must_fail() ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return fail_file(error, path, "map the file");
    *out = (st_mapping){.data = data, .size = size};
    return STRATA_OK;
}

strata_status st_file_map(const char *path, st_mapping *out, strata_error *error)
{
    int fd = open_file(path);
    if (fd < 0) return fail_file(error, path, "open the file");
    strata_status status = map_open_file(fd, path, out, error);
    close(fd);
    return status;
}

void st_file_unmap(st_mapping *mapping)
{
    if (mapping->data) munmap((void *)(uintptr_t)mapping->data, mapping->size);
    *mapping = (st_mapping){0};
}

/* --- populating: the kernel enters every page of a mapping into the page tables and reads missing pages ------------ */

enum { SLICE_BYTES = 8 << 20, SAMPLES = 256 };

static void populate(void *memory, size_t bytes)
{
#ifdef MADV_POPULATE_READ
    if (madvise(memory, bytes, MADV_POPULATE_READ) == 0) return;
#endif
    madvise(memory, bytes, MADV_WILLNEED);
}

typedef struct pages {
    unsigned char *start;
    size_t bytes, page;
} pages;

/* The pages of a range, which the system is asked to read as large ones. */
static pages pages_of(const void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)data & ~(page - 1);
    pages p = {(unsigned char *)start, bytes + ((uintptr_t)data - start), page};
#ifdef MADV_HUGEPAGE
    madvise(p.start, p.bytes, MADV_HUGEPAGE); /* huge pages in the page cache make reads faster */
#endif
    return p;
}

/* Whether a sample of the pages is in the page cache. */
static bool is_cached(const pages *p)
{
    for (size_t i = 0; i < SAMPLES; i++) {
        unsigned char there;
        if (mincore(p->start + p->bytes / SAMPLES * i / p->page * p->page, p->page, &there) != 0 || !(there & 1)) return false;
    }
    return true;
}

bool st_file_populate_cached(const void *data, size_t bytes)
{
    pages p = pages_of(data, bytes);
    if (!is_cached(&p)) return false;
    st_slices_run(p.start, p.bytes, SLICE_BYTES, populate);
    return true;
}

void st_file_populate(const void *data, size_t bytes)
{
    pages p = pages_of(data, bytes);
    populate(p.start, p.bytes);
}

static ssize_t read_some(int fd, void *bytes, size_t length)
{
    if (must_fail()) return -1;
    ssize_t got;
    do got = read(fd, bytes, length);
    while (got < 0 && errno == EINTR);
    return got;
}

static strata_status read_to_end(int fd, const char *path, size_t limit_bytes, st_buf *out, strata_error *error)
{
    enum { STEP = 1 << 16 };
    size_t total = 0;
    for (;;) {
        if (!st_buf_reserve(out, STEP)) return st_error_memory(error, STEP, path);
        ssize_t got = read_some(fd, out->data + out->length, STEP);
        if (got < 0) return fail_file(error, path, "read the file");
        if (got == 0) return STRATA_OK;
        out->length += (size_t)got;
        total += (size_t)got;
        if (total > limit_bytes)
            return st_error_set(error, STRATA_LIMIT, NULL, "%s: expected at most %zu bytes, found more", path,
                                limit_bytes);
    }
}

strata_status st_file_read(const char *path, size_t limit_bytes, st_buf *out, strata_error *error)
{
    bool standard_input = strcmp(path, "-") == 0;
    int fd = standard_input ? STDIN_FILENO : open_file(path);
    if (fd < 0) return fail_file(error, path, "open the file");
    size_t before = out->length;
    strata_status status = read_to_end(fd, standard_input ? "standard input" : path, limit_bytes, out, error);
    if (status != STRATA_OK) out->length = before;
    if (!standard_input) close(fd);
    return status;
}
