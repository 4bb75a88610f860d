/* What the user said about devices → device profiles and the planner's options: one place for plan, engine and bench. Knows
 * option texts, profiles and the machine; knows no model beyond what the options say. */
#ifndef ST_PLACEMENT_H
#define ST_PLACEMENT_H

#include "backends.h"
#include "strata.h"

enum { ST_SNAPSHOTS = 4 }; /* kept of a model whose state cannot be rewound */

typedef struct st_placement {
    st_profile devices[ST_DEVICES_MAX]; /* the host, then the card */
    uint32_t device_count;
    const st_backend_row *backend;      /* what opens them; a card of a row without one can only be planned for */
    st_plan_options options;
} st_placement;

/* `threads`: workers of the CPU as it will be opened. Rates of the host come from the kept measurement if there is one
 * and from a profile else; nothing is measured here. */
strata_status st_placement_of(const strata_engine_options *options, uint32_t threads, st_placement *out, strata_error *error);

/* The devices alone (`options` is left as it is). `placement` may be NULL. */
strata_status st_placement_devices(const strata_placement *placement, uint32_t threads, st_placement *out,
                                   strata_error *error);

#endif
