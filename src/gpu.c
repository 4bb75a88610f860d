#include "gpu.h"

#include <stdio.h>
#include <string.h>

#include "backend/plugin.h"
#include "base/alloc.h"
#include "devices.h"

static void set_rates(st_profile *p, const st_device_rates *rates)
{
    p->rates = ST_RATES_MEASURED;
    p->memory_rate = rates->read_bytes;
    p->op_rate = rates->batch_ops;
    p->link_up = rates->link_up;
    p->link_down = rates->link_down;
    p->handover_seconds = rates->handover_seconds;
    p->round_trip_seconds = rates->round_trip_seconds;
    memcpy(p->classes, rates->classes, sizeof p->classes);
    memcpy(p->type_share, rates->type_share, sizeof p->type_share);
}

/* Memory as the driver counts it. Bytes in use with the context open, by this process and by others, are charged to the
 * runtime; the capacity is the total memory, or the cap. */
static st_profile describe(const st_load_device *gpu, uint64_t cap_bytes)
{
    st_device_info info;
    st_profile p = st_profile_default(ST_DEVICE_CARD);
    gpu->backend->info(gpu->device, &info);
    st_profile_set_backend(&p, gpu->backend);
    snprintf(p.name, sizeof p.name, "%s", info.name);
    p.total_bytes = p.free_bytes = cap_bytes && cap_bytes < info.total_bytes ? cap_bytes : info.total_bytes;
    p.overhead_bytes = info.total_bytes - info.free_bytes;
    p.alignment = (uint32_t)info.alignment;
    p.pinned_per_byte = info.pinned_per_byte;
    return p;
}

/* The stored rates of the GPU, or else those of now. */
static strata_status find_rates(const st_load_device *gpu, st_profile *p, strata_error *error)
{
    st_device_rates rates;
    char *path = st_measurement_path();
    bool stored = path && st_gpu_rates_load(path, p->name, &rates);
    st_free(path);
    strata_status status = stored ? STRATA_OK : gpu->backend->probe(gpu->device, &rates, error);
    if (status == STRATA_OK) set_rates(p, &rates);
    return status;
}

strata_status st_gpu_measure(const st_load_device *gpu, const char *path, st_profile *profile, strata_error *error)
{
    st_device_rates rates;
    strata_status status = gpu->backend->probe(gpu->device, &rates, error);
    if (status != STRATA_OK) return status;
    set_rates(profile, &rates);
    return st_gpu_rates_save(path, profile->name, &rates, error);
}

strata_status st_gpu_open(const st_backend_row *row, const st_gpu_options *options, st_load_device *out,
                          st_profile *profile, strata_error *error)
{
    st_device_options device = {.index = options->index, .profile = options->time_operations};
    st_load_device gpu = {0};
    strata_status status = st_plugin_load(row->plugin, NULL, &gpu.backend, error);
    if (status == STRATA_OK) status = gpu.backend->open(&device, &gpu.device, error);
    if (status != STRATA_OK) return status;
    st_profile p = describe(&gpu, options->cap_bytes);
    status = find_rates(&gpu, &p, error);
    if (status != STRATA_OK) {
        gpu.backend->close(gpu.device);
        return status;
    }
    *profile = p;
    *out = gpu;
    return STRATA_OK;
}
