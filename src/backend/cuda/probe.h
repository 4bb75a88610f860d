/* Private to rates.c and classes.c: the probe's memory and its second half. */
#ifndef ST_CUDA_PROBE_H
#define ST_CUDA_PROBE_H

#include "backend/cuda/cuda.h"

enum { ST_CUDA_PROBE_BYTES = 256 << 20 }; /* of device memory, and of pinned host memory */

typedef struct st_cuda_probe_memory {
    unsigned char *device, *host; /* ST_CUDA_PROBE_BYTES each; the device's has been written */
    void *begin, *end;            /* events */
} st_cuda_probe_memory;

/* Fills in the rates of batches, classes and types; read_bytes is measured already. */
strata_status st_cuda_probe_classes(st_device *device, const st_cuda_probe_memory *memory, st_device_rates *out,
                                    strata_error *error);

#endif
