/* A GPU behind a plugin: opened, and described as the planner wants it. Knows backends and profiles; knows no model. */
#ifndef ST_GPU_H
#define ST_GPU_H

#include "backends.h"

typedef struct st_gpu_options {
    uint32_t index;      /* which of several */
    uint64_t cap_bytes;  /* of its memory, use no more than this, the driver's context included; 0: all of it */
    bool time_operations; /* add up the time of every kind of operation */
} st_gpu_options;

/* Opens the GPU of a row that has a plugin; the caller closes it. STRATA_DEVICE: no plugin, no driver or no such GPU. The
 * profile has rates as stored by `strata devices --probe`, or else as measured now. */
strata_status st_gpu_open(const st_backend_row *row, const st_gpu_options *options, st_load_device *out, st_profile *profile,
                          strata_error *error);

/* Measures an opened GPU, into its profile, and stores the rates. */
strata_status st_gpu_measure(const st_load_device *gpu, const char *path, st_profile *profile, strata_error *error);

#endif
