/* Converts the device options to device profiles and planner options, for strata_plan, the engine and the replay.
 * Knows the options, profiles and the machine; knows no model. */
#ifndef ST_PLACEMENT_H
#define ST_PLACEMENT_H

#include "backends.h"
#include "strata.h"

typedef struct st_placement {
    st_profile devices[ST_DEVICES_MAX]; /* the host, then the GPU */
    uint32_t device_count;
    const st_backend_row *backend;      /* opens them. If the row has no GPU, a GPU can only be planned for */
    st_load_device gpu;                 /* the GPU found, open; empty: none found */
    st_plan_options options;
} st_placement;

typedef enum st_placement_use {
    ST_PLACEMENT_PLAN, /* a GPU that is asked for and not found is planned for as its profile describes it */
    ST_PLACEMENT_RUN,  /* … is an error (STRATA_DEVICE) */
} st_placement_use;

/* `threads`: workers of the CPU as it will be opened. Rates of the host come from the saved measurement or, without
 * one, from a profile. A GPU of this machine is opened, to query its memory: the caller calls st_placement_close, or
 * takes over `gpu`. Without a GPU the model runs on the CPU, and a note tells the user. */
strata_status st_placement_of(const strata_engine_options *options, st_placement_use use, uint32_t threads,
                              st_placement *out, strata_error *error);

/* The devices alone (`options` is left as it is). `placement` may be NULL. */
strata_status st_placement_devices(const strata_placement *placement, st_placement_use use, uint32_t threads,
                                   st_placement *out, strata_error *error);

void st_placement_close(st_placement *placement);

#endif
