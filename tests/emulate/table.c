/* The fake plugin with kernels that run, emulated. */
#include "plugin/fake.h"

const st_cuda_api *st_cuda_fake_table(void)
{
    return st_cuda_fake(st_cuda_run);
}
