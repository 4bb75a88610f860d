/* The host as a profile: its memory, its CPU, and their measured rates. `strata devices --probe` takes the
 * measurement and stores it in $XDG_CACHE_HOME/strata/devices.json. Reads files of the system; knows no model. */
#ifndef ST_DEVICES_H
#define ST_DEVICES_H

#include <jansson.h>

#include "backend/backend.h"
#include "backend/profile.h"
#include "run/measure.h"
#include "strata.h"

/* {"Q4_K": 0.9, …}: the shares above 0; NULL: no memory. */
json_t *st_shares_json(const double type_share[ST_PROFILE_TYPES]);

/* The CPU's name from a file in the format of /proc/cpuinfo; "CPU" if it has none. */
void st_host_cpu_name(const char *path, char *out, size_t size);

/* The measured rates of a host. */
typedef struct st_measurement {
    char cpu[64];
    uint32_t cores;
    double read_rate; /* bytes per second */
    double spread;    /* of read_rate in repeated measurements: (largest − smallest) / largest */
    double int8_rate; /* operations per second in registers; 0: none */
    double op_rate;   /* multiplications and additions per second of a batch's matrix products */
    st_class_rates classes[ST_CLASS_COUNT]; /* of products and experts; others are unknown */
    double type_share[ST_PROFILE_TYPES]; /* of read_rate, with weights of a type; 0: unknown */
} st_measurement;

/* What is summed of batches. */
typedef enum st_rate_sum {
    ST_SUM_MATRICES,
    ST_SUM_SMALL, /* matrices, with ST_MEASURE_SMALL_BATCH rows */
    ST_SUM_EXPERTS,
    ST_SUM_FEW_EXPERTS, /* likewise */
    ST_SUM_ATTENTION,
    ST_SUM_RECURRENT,
    ST_SUM_COUNT
} st_rate_sum;

typedef struct st_rate_sums {
    st_measurement *m;
    double seconds_per_op[ST_SUM_COUNT];
    uint32_t count[ST_SUM_COUNT];
} st_rate_sums;

/* An st_on_measure: adds an operation to the st_rate_sums, and sets the type_share of a matrix with one row, and the time of small
 * operations. */
bool st_rate_sums_add(void *sums, const st_op_measure *row);
/* Sets op_rate, the other classes' shares of it, and the rows that unpacking a matrix or an expert takes. False: no batch of
 * matrices was timed. */
bool st_rate_sums_finish(const st_rate_sums *sums);

/* Calls `sample` for rates until three in a row agree within ST_SPREAD_MAX, at most nine times. *best is the largest of
 * the last three, and *spread what they differ by: above ST_SPREAD_MAX the machine was busy. */
#define ST_SPREAD_MAX 0.10
typedef strata_status st_rate_sample(void *context, double *rate, strata_error *error);
strata_status st_rate_settle(st_rate_sample *sample, void *context, double *best, double *spread, strata_error *error);

/* Measures with all cores; takes about ten seconds. A busy machine is measured again, and then warned about. */
strata_status st_measurement_take(st_measurement *out, strata_error *error);

/* The path of the stored measurements (st_free); NULL: no cache folder, or no memory. */
char *st_measurement_path(void);
/* Loads the measurement of this CPU, number of cores and version. A missing or damaged file has none. */
bool st_measurement_load(const char *path, const char *cpu, uint32_t cores, st_measurement *out);
/* Stores the measurement beside those of other machines. The file is written atomically. */
strata_status st_measurement_save(const char *path, const st_measurement *measurement, strata_error *error);

/* The rates of a GPU, by its name, in the same file. */
bool st_gpu_rates_load(const char *path, const char *gpu, st_device_rates *out);
strata_status st_gpu_rates_save(const char *path, const char *gpu, const st_device_rates *rates, strata_error *error);

/* This host with its stored rates, or low estimates. Measures nothing. */
st_profile st_host_profile(void);

#endif
