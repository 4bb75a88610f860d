#include "sched/leases.h"

#include "base/clock.h"

void st_leases_add(st_leases *leases, st_conversation *conversation)
{
    leases->rows[leases->count++] = (st_lease){conversation, st_clock_seconds() + ST_LEASE_SECONDS};
}

void st_leases_end(st_leases *leases)
{
    double now = st_clock_seconds();
    for (uint32_t i = leases->count; i-- > 0;) {
        if (leases->rows[i].until > now) continue;
        st_conversation_run(leases->rows[i].conversation, false);
        leases->rows[i] = leases->rows[--leases->count];
    }
}

bool st_leases_take(st_leases *leases, const st_conversation *conversation)
{
    for (uint32_t i = 0; i < leases->count; i++) {
        if (leases->rows[i].conversation != conversation) continue;
        leases->rows[i] = leases->rows[--leases->count];
        return true;
    }
    return false;
}
