#include "base/large.h"

#include <stdint.h>
#include <sys/mman.h>

#include "base/fault.h"
#include "base/slices.h"

enum { LARGE_PAGE = 2 << 20, SMALL_PAGE = 4096 };

static size_t round_up(size_t bytes)
{
    return (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
}

/* One write makes the system provide a page. */
static void touch(void *memory, size_t bytes)
{
    volatile unsigned char *page = memory;
    for (size_t at = 0; at < bytes; at += SMALL_PAGE) page[at] = 0;
}

void *st_large_new(size_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX - 2 * (size_t)LARGE_PAGE || st_fault_hit(ST_FAULT_ALLOC)) return NULL;
    size_t whole = round_up(bytes), mapped = whole + LARGE_PAGE;
    unsigned char *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return NULL;
    size_t before = (size_t)(-(uintptr_t)map % LARGE_PAGE);
    if (before > 0) munmap(map, before);
    munmap(map + before + whole, LARGE_PAGE - before);
    madvise(map + before, whole, MADV_HUGEPAGE); /* a kernel without large pages provides small ones */
    st_slices_run(map + before, whole, LARGE_PAGE, touch);
    return map + before;
}

void st_large_free(void *memory, size_t bytes)
{
    if (memory) munmap(memory, round_up(bytes));
}
