/* A device profile: memory sizes and rates of a device, which this machine may lack. The planner predicts with it and
 * the simulated GPU keeps time by it, so both call the same functions. Pure; knows no placement and no model. */
#ifndef ST_BACKEND_PROFILE_H
#define ST_BACKEND_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "quant/quant.h"

typedef enum st_device_kind { ST_DEVICE_HOST, ST_DEVICE_CARD } st_device_kind;

/* Where the rates of a profile come from. */
typedef enum st_rates_source {
    ST_RATES_FILE,     /* the user's file */
    ST_RATES_SHEET,    /* the table's row: the data sheet's */
    ST_RATES_STAND_IN, /* those of another profile: `rates_of` */
    ST_RATES_ASSUMED,  /* low estimates: the machine was not measured */
    ST_RATES_MEASURED,
} st_rates_source;

typedef struct st_profile {
    char name[64];
    st_device_kind kind;
    bool estimate;             /* from a data sheet; the rates below are already the share that counts */
    st_rates_source rates;
    const char *rates_of;      /* ST_RATES_STAND_IN: the profile whose rates these are; a text that lives forever */
    double rates_spread;       /* ST_RATES_MEASURED: (largest − smallest) / largest of repeated measurements */
    bool no_backend;           /* strata cannot run on such a GPU yet: it can be planned for and simulated */
    bool display;              /* it drives a display: a larger margin */
    uint64_t total_bytes, free_bytes;
    double memory_rate;        /* bytes per second: a GPU's memory; a host's DRAM with all cores, shared with copies */
    double type_share[ST_PROFILE_TYPES]; /* of memory_rate reached with weights of a type; 0: 1 */
    double op_rate;            /* multiplications and additions per second in batches */
    st_class_rates classes[ST_CLASS_COUNT];
    bool adds_up;              /* the times of memory and of arithmetic of several rows add up */
    double link_up, link_down; /* bytes per second of pinned copies; of a GPU */
    double disk_rate;          /* bytes per second of reading the model's file; of a host */
    double handover_seconds;   /* from the end of the GPU's work until the host continues */
    double launch_seconds;     /* of a segment */
    double round_trip_seconds; /* of a chain's hand-over to the host and back; 0: the GPU has no chains (backend.h) */
    double row_seconds;        /* of a host: for each conversation between two steps, such as choosing its token */
    uint32_t cores;            /* of a host */
    uint32_t alignment;        /* of a range */
    uint64_t granularity;      /* of an allocation */
    uint64_t overhead_bytes;   /* a driver's context and modules */
    uint32_t pinned_per_byte;  /* pinned bytes of the host for each byte of the GPU's page tables; 0: no such tables */
    st_scratch_statement scratch; /* of the backend that runs it */
    uint64_t types[ST_OP_COUNT]; /* supported operations. Bit t: with weights of type t; bit 0: without weights */
    bool (*runs)(const st_op *op); /* forms of the supported operations, as st_backend.runs; NULL: all */
} st_profile;

/* row_seconds of a host that is not measured: 16 conversations took 59 µs between two steps and 64 took 210, on a Xeon. */
#define ST_ROW_SECONDS 3.2e-6

/* "file", "data sheet", "stand-in", "assumed" or "measured". */
const char *st_rates_name(st_rates_source source);

/* The work of one operation for rows that see `depth` earlier positions, in bytes of the device's memory and in
 * operations. Keys and values are counted at their own type. */
typedef struct st_work {
    double bytes, ops;
    uint32_t type; /* of the weights with the most bytes; ST_TYPE_F32 without weights */
    st_op_class op_class;
    bool joined;   /* it is computed with the one before or behind it, and has no time of its own */
    double rows;
    double positions;  /* of attention: that a row sees */
    double ops_filled; /* for each unit of the class's `fill` */
} st_work;

/* "rows", "product", …: a class in files; NULL: no such class. */
const char *st_class_name(st_op_class op_class);

st_work st_work_of(const st_program *program, const st_binding *binding, const st_op *op, uint32_t rows, uint32_t depth,
                   st_type kv_type);

/* The work at the device's full rates: bytes over the shares of the type and the class, operations with what the class
 * fills up, over its share. */
st_work st_profile_demand(const st_profile *profile, const st_work *work);
/* The time of one operation beside its bytes and its arithmetic. */
double st_profile_fixed(const st_profile *profile, const st_work *work);
/* Whether memory takes longer than arithmetic, or as long. */
bool st_profile_reads(const st_profile *profile, const st_work *work);
/* The time of the work alone on the device: the longer of memory and arithmetic, and what is fixed. An unknown rate
 * takes no time. */
double st_profile_seconds(const st_profile *profile, const st_work *work);

/* Whether the device can run an operation in this form, with weights or without. The planner calls this for every
 * operation on every device; no other code decides it, so a device can run every operation that is placed on it. */
bool st_profile_runs(const st_profile *profile, const st_binding *binding, const st_op *op);

/* A tensor type that a profile can name; case does not matter. */
bool st_profile_type(const char *name, uint32_t *type);

/* Drops the operations that a backend cannot run. */
void st_profile_set_statement(st_profile *profile, const st_backend_statement *statement);
/* The same, and gives the profile the scratch of `backend`, and no round trip if that has no chains. */
void st_profile_set_backend(st_profile *profile, const st_backend *backend);

/* A GPU or a host that runs every operation with every type of weights, without sizes and rates: the caller sets
 * them. */
st_profile st_profile_default(st_device_kind kind);

#endif
