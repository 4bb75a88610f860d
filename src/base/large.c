#include "base/large.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/cores.h"
#include "base/fault.h"

enum { LARGE_PAGE = 2 << 20, SMALL_PAGE = 4096, THREADS_MAX = 16 };

typedef struct slice {
    volatile unsigned char *memory;
    size_t bytes;
} slice;

static size_t round_up(size_t bytes)
{
    return (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
}

/* One write makes the system provide a page. */
static void *touch(void *of)
{
    const slice *s = of;
    for (size_t at = 0; at < s->bytes; at += SMALL_PAGE) s->memory[at] = 0;
    return NULL;
}

/* A slice whose thread cannot be started is touched here. */
static void touch_all(unsigned char *memory, size_t bytes)
{
    pthread_t threads[THREADS_MAX];
    slice slices[THREADS_MAX];
    bool started[THREADS_MAX];
    uint32_t cores = st_cores_here(), count = cores < THREADS_MAX ? cores : THREADS_MAX;
    size_t each = round_up(bytes / count);
    for (uint32_t i = 0; i < count; i++) {
        size_t first = i * each < bytes ? i * each : bytes, end = bytes - first < each ? bytes : first + each;
        slices[i] = (slice){memory + first, end - first};
        started[i] = i + 1 < count && slices[i].bytes > 0 && pthread_create(&threads[i], NULL, touch, &slices[i]) == 0;
    }
    for (uint32_t i = 0; i < count; i++)
        if (started[i]) pthread_join(threads[i], NULL);
        else touch(&slices[i]);
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
    touch_all(map + before, whole);
    return map + before;
}

void st_large_free(void *memory, size_t bytes)
{
    if (memory) munmap(memory, round_up(bytes));
}
