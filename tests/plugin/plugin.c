/* The CUDA backend on the fake, as a plugin: for tests of what a program does with a GPU. */
#include "backend/cuda/cuda.h"
#include "plugin/fake.h"

static strata_status open_fake(const st_device_options *options, st_device **out, strata_error *error)
{
    return st_cuda_open(st_cuda_fake_table(), options, out, error);
}

const st_backend *st_backend_plugin(void);

__attribute__((visibility("default"))) const st_backend *st_backend_plugin(void)
{
    static st_backend backend;
    backend = st_cuda_backend;
    backend.open = open_fake;
    return &backend;
}
