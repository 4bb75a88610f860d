/* The host as a profile: its memory, its CPU, and their measured rates. `strata devices --probe` takes the
 * measurement and stores it in $XDG_CACHE_HOME/strata/devices.json. Reads files of the system; knows no model. */
#ifndef ST_DEVICES_H
#define ST_DEVICES_H

#include "backend/backend.h"
#include "backend/profile.h"
#include "strata.h"

/* The CPU's name from a file in the format of /proc/cpuinfo; "CPU" if it has none. */
void st_host_cpu_name(const char *path, char *out, size_t size);

/* The measured rates of a host. */
typedef struct st_measurement {
    char cpu[64];
    uint32_t cores;
    double read_rate; /* bytes per second */
    double int8_rate; /* operations per second in registers; 0: none */
    double op_rate;   /* multiplications and additions per second of a batch's matrix products */
    double type_share[ST_PROFILE_TYPES]; /* of read_rate, with weights of a type; 0: unknown */
} st_measurement;

/* devices_rates.c: replaces each rate above zero by the bytes per second at which decoding reads weights of that
 * type from memory. */
strata_status st_measure_reading(const st_backend *backend, st_device *device, double rates[ST_PROFILE_TYPES],
                                 strata_error *error);

/* Measures with all cores; takes about ten seconds. */
strata_status st_measurement_take(st_measurement *out, strata_error *error);

/* The path of the stored measurements (st_free); NULL: no cache folder, or no memory. */
char *st_measurement_path(void);
/* Loads the measurement of this CPU, number of cores and version. A missing or damaged file has none. */
bool st_measurement_load(const char *path, const char *cpu, uint32_t cores, st_measurement *out);
/* Stores the measurement beside those of other machines. The file is written atomically. */
strata_status st_measurement_save(const char *path, const st_measurement *measurement, strata_error *error);

/* This host with its stored rates, or low estimates. Measures nothing. */
st_profile st_host_profile(void);

#endif
