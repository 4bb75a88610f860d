/* A fake of the table of functions below the CUDA backend: memory is the host's, streams run at once, kernels are left
 * out except for the router's choice, which the host reads. Keeps the state of one GPU; never fails but for memory. */
#ifndef TEST_PLUGIN_FAKE_H
#define TEST_PLUGIN_FAKE_H

#include "backend/cuda/api.h"

const st_cuda_api *st_cuda_fake(void);

#endif
