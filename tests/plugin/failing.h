/* A table of CUDA functions on top of another one, the fake or the real one. It counts calls and objects, and makes the
 * n-th call fail. */
#ifndef TEST_PLUGIN_FAILING_H
#define TEST_PLUGIN_FAILING_H

#include "backend/cuda/api.h"

extern struct st_cuda_failing_state {
    uint64_t calls, fail_at; /* fail_at 0: none fails */
    st_cuda_result with;
    bool sticky;             /* every later call fails too */
    int64_t allocated;       /* blocks, pinned ranges, streams, events and graphs that are not freed */
    uint64_t launched;       /* graphs and operations */
} failing;

/* `below` must outlive the table. There is one such table in a process. */
const st_cuda_api *st_cuda_failing(const st_cuda_api *below);

#endif
