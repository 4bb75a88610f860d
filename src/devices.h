/* The host as a profile: its memory, its CPU, and their measured rates. `strata devices --probe` takes the measurement and
 * stores it in $XDG_CACHE_HOME/strata/devices.json. Reads files of the system; knows no model. */
#ifndef ST_DEVICES_H
#define ST_DEVICES_H

#include "backend/backend.h"
#include "backend/profile.h"
#include "strata.h"

typedef struct st_host_memory {
    uint64_t total_bytes, available_bytes;
} st_host_memory;

/* Reads a file in the format of /proc/meminfo; false if a field is missing. */
bool st_host_memory_read(const char *path, st_host_memory *out);

/* devices_cgroup.c: lowers `memory` to the limits of the process's control groups and their ancestors. Memory that a group
 * uses is not available; its reclaimable page cache is. `root` is put before each path of the system ("": this machine). */
void st_cgroup_limit_memory(const char *root, st_host_memory *memory);

/* The CPU's name from a file in the format of /proc/cpuinfo; "CPU" if it has none. */
void st_host_cpu_name(const char *path, char *out, size_t size);

/* What was measured of a host. */
typedef struct st_measurement {
    char cpu[64];
    uint32_t cores;
    double read_rate; /* bytes per second */
    double int8_rate; /* operations per second in registers; 0: none */
    double op_rate;   /* multiplications and additions per second of matrices times batches */
    double type_share[ST_PROFILE_TYPES]; /* of read_rate, with weights of a type; 0: unknown */
} st_measurement;

/* devices_rates.c: bytes per second of decoding with weights of a type that come from memory and not from a cache. */
strata_status st_measure_reading(const st_backend *backend, st_device *device, uint32_t type, double *rate,
                                 strata_error *error);

/* Measures, with all cores: some five seconds. */
strata_status st_measurement_take(st_measurement *out, strata_error *error);

/* Where it is kept (st_free); NULL: nowhere, or no memory. */
char *st_measurement_path(void);
/* The one that was kept for this processor, this many cores and this version. A file that is damaged, or absent, has none. */
bool st_measurement_load(const char *path, const char *cpu, uint32_t cores, st_measurement *out);
/* Keeps it; those of other machines stay. The file is replaced at once. */
strata_status st_measurement_save(const char *path, const st_measurement *measurement, strata_error *error);

/* The host that this is, with the rates that were kept, or careful guesses. Measures nothing. */
st_profile st_host_profile(void);

#endif
