/* The fake plugin runs no kernels. */
#include "plugin/fake.h"

const st_cuda_api *st_cuda_fake_table(void)
{
    return st_cuda_fake(NULL);
}
