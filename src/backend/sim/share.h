/* How commands that run at the same time share resources: max-min fair by what each uses of the most wanted one. Pure
 * arithmetic. */
#ifndef ST_SIM_SHARE_H
#define ST_SIM_SHARE_H

#include "backend/sim/clock.h"

typedef struct st_share {
    double usage[ST_RESOURCE_COUNT]; /* per second, when it runs alone; at most the rate */
    double pace;                     /* found: the part of that speed, above 0 and at most 1 */
    double weight;                   /* inside: the part of the resource it has to fight for that it can use */
    bool settled;                    /* inside */
} st_share;

/* All get the same share of what they fight for, but nobody more than it can use: what one leaves (it wants less, or
 * another resource holds it up) goes to the others. Whoever is slowed down uses a resource that is used up. */
void st_share_out(const double rates[ST_RESOURCE_COUNT], st_share *const *shares, uint32_t count);

#endif
