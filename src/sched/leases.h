/* Leases: a conversation whose prompt has ended keeps its place for a moment, because its caller usually generates
 * next. Knows conversations and real time; what a place is worth is the scheduler's business. */
#ifndef ST_SCHED_LEASES_H
#define ST_SCHED_LEASES_H

#include "kv/conversation.h"
#include "plan/plan.h"

#define ST_LEASE_SECONDS 0.02

typedef struct st_lease {
    st_conversation *conversation;
    double until; /* real time: a virtual clock stands still while nothing runs */
} st_lease;

typedef struct st_leases {
    st_lease rows[ST_CONVERSATIONS_MAX];
    uint32_t count;
} st_leases;

void st_leases_add(st_leases *leases, st_conversation *conversation);

/* Ends those whose time is over: their conversations do not run any more. */
void st_leases_end(st_leases *leases);

/* Removes the conversation's lease, and leaves its place to it. False: it has none. */
bool st_leases_take(st_leases *leases, const st_conversation *conversation);

#endif
