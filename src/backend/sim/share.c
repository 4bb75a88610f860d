#include "backend/sim/share.h"

#include <math.h>

/* The sum of usages of each resource, in parts of its rate. */
static void add_up(const double rates[ST_RESOURCE_COUNT], st_share *const *shares, uint32_t count,
                   double loads[ST_RESOURCE_COUNT])
{
    for (int r = 0; r < ST_RESOURCE_COUNT; r++) {
        loads[r] = 0;
        for (uint32_t i = 0; i < count; i++) loads[r] += shares[i]->usage[r] / rates[r];
    }
}

static double weight_of(const double rates[ST_RESOURCE_COUNT], const double loads[ST_RESOURCE_COUNT],
                        const st_share *share)
{
    double weight = 0, most = 0;
    for (int r = 0; r < ST_RESOURCE_COUNT; r++) {
        if (share->usage[r] <= 0 || loads[r] <= most) continue;
        most = loads[r];
        weight = share->usage[r] / rates[r];
    }
    return weight;
}

/* The level at which the unsettled commands exhaust a resource; INFINITY: none uses it. */
static double level_of(double rate, st_share *const *shares, uint32_t count, int resource)
{
    double left = rate, growth = 0;
    for (uint32_t i = 0; i < count; i++) {
        double usage = shares[i]->usage[resource];
        if (shares[i]->settled) left -= shares[i]->pace * usage;
        else if (usage > 0) growth += usage / shares[i]->weight;
    }
    return growth > 0 ? left / growth : INFINITY;
}

static void settle(st_share *share, double pace)
{
    share->pace = pace < 1 ? pace : 1;
    share->settled = true;
}

/* Raises the level of all unsettled commands to the next one at which a command reaches full speed or a resource is
 * exhausted, and settles the commands concerned. */
static bool rise(const double rates[ST_RESOURCE_COUNT], st_share *const *shares, uint32_t count, double *level)
{
    double levels[ST_RESOURCE_COUNT], next = INFINITY;
    bool rising = false;
    for (int r = 0; r < ST_RESOURCE_COUNT; r++) next = fmin(next, levels[r] = level_of(rates[r], shares, count, r));
    for (uint32_t i = 0; i < count; i++) {
        if (shares[i]->settled) continue;
        next = fmin(next, shares[i]->weight);
        rising = true;
    }
    *level = fmax(*level, next); /* rounding must not lower it */
    for (uint32_t i = 0; i < count; i++) {
        bool stops = shares[i]->weight <= *level;
        for (int r = 0; r < ST_RESOURCE_COUNT; r++)
            stops = stops || (shares[i]->usage[r] > 0 && levels[r] <= *level * (1 + 1e-12));
        if (stops && !shares[i]->settled) settle(shares[i], *level / shares[i]->weight);
    }
    return rising;
}

void st_share_out(const double rates[ST_RESOURCE_COUNT], st_share *const *shares, uint32_t count)
{
    double loads[ST_RESOURCE_COUNT], level = 0;
    add_up(rates, shares, count, loads);
    for (uint32_t i = 0; i < count; i++) {
        shares[i]->settled = false;
        shares[i]->weight = weight_of(rates, loads, shares[i]);
        if (shares[i]->weight <= 0) settle(shares[i], 1);
    }
    while (rise(rates, shares, count, &level)) {
    }
}
