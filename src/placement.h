/* Turns the options for devices into device profiles and the planner's options, for strata_plan, the engine and the
 * replay. Knows the options, profiles and the machine; knows no model. */
#ifndef ST_PLACEMENT_H
#define ST_PLACEMENT_H

#include "backends.h"
#include "strata.h"

enum { ST_SNAPSHOTS = 4 }; /* kept of a model whose state cannot be rewound */

typedef struct st_placement {
    st_profile devices[ST_DEVICES_MAX]; /* the host, then the GPU */
    uint32_t device_count;
    const st_backend_row *backend;      /* opens them. A GPU can only be planned for where the row has none */
    st_plan_options options;
} st_placement;

/* `threads`: workers of the CPU. The host's rates come from the kept measurement, or else from a profile; nothing is
 * measured here. */
strata_status st_placement_of(const strata_engine_options *options, uint32_t threads, st_placement *out, strata_error *error);

/* The devices alone (`options` is left as it is). `placement` may be NULL. */
strata_status st_placement_devices(const strata_placement *placement, uint32_t threads, st_placement *out,
                                   strata_error *error);

#endif
