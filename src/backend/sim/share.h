/* How concurrent commands share resources: max-min fairness by each command's use of its most contended resource. Pure
 * arithmetic. */
#ifndef ST_SIM_SHARE_H
#define ST_SIM_SHARE_H

#include "backend/sim/clock.h"

typedef struct st_share {
    double usage[ST_RESOURCE_COUNT]; /* per second at full speed; at most the rate */
    double pace;                     /* the result: the part of full speed, above 0 and at most 1 */
    double weight;                   /* private: its usage of its most contended resource, in parts of the rate */
    bool settled;                    /* private */
} st_share;

/* Every command gets the same share of its most contended resource, but no more than it can use; the others get what it
 * leaves. A command below full speed uses a resource that is exhausted. */
void st_share_out(const double rates[ST_RESOURCE_COUNT], st_share *const *shares, uint32_t count);

#endif
