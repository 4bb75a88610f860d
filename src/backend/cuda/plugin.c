/* The plugin's one exported symbol. */
#include "backend/cuda/cuda.h"

static strata_status open_real(const st_device_options *options, st_device **out, strata_error *error)
{
    return st_cuda_open(st_cuda_api_real(), options, out, error);
}

const st_backend *st_backend_plugin(void);

__attribute__((visibility("default"))) const st_backend *st_backend_plugin(void)
{
    static st_backend backend;
    backend = st_cuda_backend;
    backend.open = open_real;
    return &backend;
}
