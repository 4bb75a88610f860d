/* Opens the GPU of a plugin and makes the device profile that the planner uses. Knows backends and profiles; knows no
 * model. */
#ifndef ST_GPU_H
#define ST_GPU_H

#include "backends.h"

typedef struct st_gpu_options {
    uint32_t index;      /* of the GPU, from 0 */
    uint64_t cap_bytes;  /* use at most this much of its memory, the driver's context included; 0: all */
    bool time_operations; /* add up the time of every kind of operation */
} st_gpu_options;

/* Opens the GPU of a row that has a plugin; the caller closes it. STRATA_DEVICE: no plugin, no driver or no such GPU.
 * The profile gets the rates that `strata devices --probe` saved, or measures them. */
strata_status st_gpu_open(const st_backend_row *row, const st_gpu_options *options, st_load_device *out,
                          st_profile *profile, strata_error *error);

/* Measures the rates of an opened GPU, sets them in its profile and saves them. */
strata_status st_gpu_measure(const st_load_device *gpu, const char *path, st_profile *profile, strata_error *error);

#endif
