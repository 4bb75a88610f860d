/* A fake of the table of functions below the CUDA backend: memory is the host's, streams run at once, kernels are left out but
 * for the router's choice, which the host reads. The n-th call can be made to fail. */
#ifndef TEST_PLUGIN_FAKE_H
#define TEST_PLUGIN_FAKE_H

#include "backend/cuda/api.h"

extern struct st_cuda_fake_state {
    uint64_t calls, fail_at; /* 0: none fails */
    st_cuda_result with;
    bool sticky;             /* every call after it fails too */
    int64_t allocated;       /* blocks, streams and events that are not freed */
    uint64_t launched;
    size_t used_bytes;       /* of device memory */
    size_t taken_bytes;      /* … by others */
} fake;

const st_cuda_api *st_cuda_fake(void);

#endif
