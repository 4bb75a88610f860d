#include "base/slices.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/cores.h"

enum { THREADS_MAX = 16 };

typedef struct slice {
    unsigned char *memory;
    size_t bytes;
    st_slice_work work;
} slice;

static void *run(void *of)
{
    const slice *s = of;
    s->work(s->memory, s->bytes);
    return NULL;
}

void st_slices_run(void *memory, size_t bytes, size_t unit, st_slice_work work)
{
    pthread_t threads[THREADS_MAX];
    slice slices[THREADS_MAX];
    bool started[THREADS_MAX];
    size_t units = bytes / unit + (bytes % unit > 0), cores = st_cores_here(), count = cores < THREADS_MAX ? cores : THREADS_MAX;
    if (count > units) count = units;
    for (size_t i = 0, at = 0; i < count; i++) {
        size_t all = units * (i + 1) / count * unit, end = all < bytes ? all : bytes;
        slices[i] = (slice){(unsigned char *)memory + at, end - at, work};
        started[i] = i + 1 < count && pthread_create(&threads[i], NULL, run, &slices[i]) == 0;
        at = end;
    }
    for (size_t i = 0; i < count; i++)
        if (!started[i]) run(&slices[i]);
    for (size_t i = 0; i < count; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}
