/* A fake of the table of functions below the CUDA backend: memory is the host's, and streams run at once, but for a graph
 * that waits for the host (chain.c): it goes on when an event or the stream is asked. Keeps the state of one GPU; fails
 * for lack of memory, and for work behind such a graph. */
#ifndef TEST_PLUGIN_FAKE_H
#define TEST_PLUGIN_FAKE_H

#include "backend/cuda/api.h"

/* `run` launches the kernels of an operation (tests/emulate). NULL: kernels are left out except for the router's
 * choice, which the host reads. */
const st_cuda_api *st_cuda_fake(st_cuda_kernel run);

/* The table of the plugin that plugin.c makes: tests/plugin/table.c without kernels, tests/emulate/table.c with
 * them. */
const st_cuda_api *st_cuda_fake_table(void);

#endif
