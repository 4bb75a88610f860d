/* Virtual time: queues of commands that share resources, run as discrete events. A command waits for its turn in its
 * queue and for the points it depends on, takes its latency, then its work at the pace that the resources allow: alone
 * the slowest of amount / rate, together with others a fair share of what they have in common (share.h). Knows no
 * device, no operation and no memory: a command calls back when it starts and when it ends.
 *
 * Time passes only while the host waits or works. What happens at the same moment happens in the order of the queues'
 * numbers, ends before beginnings. */
#ifndef ST_SIM_CLOCK_H
#define ST_SIM_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "strata.h"

typedef enum st_resource {
    ST_RESOURCE_DEVICE_MEMORY,
    ST_RESOURCE_DEVICE_OPS,
    ST_RESOURCE_LINK_UP,
    ST_RESOURCE_LINK_DOWN,
    ST_RESOURCE_HOST_DRAM, /* shared by the CPU and copies */
    ST_RESOURCE_CPU_OPS,
    ST_RESOURCE_COUNT
} st_resource;

typedef struct st_clock st_clock;

typedef struct st_demand {
    double latency;                    /* seconds before the work begins */
    double amount[ST_RESOURCE_COUNT];  /* bytes or operations */
} st_demand;

/* A command's effect on memory. A callback must not call the clock. What is NULL is not called.
 * `start` is called once; then each phase takes what `next` says (false: no phase is left) and is followed by `end`.
 * Without `next` there is one phase, which takes `demand`. `end` returning a status other than OK stops the queue with
 * it: what is behind it is dropped, and its points are never reached. */
typedef struct st_command {
    st_demand demand;
    bool (*ready)(void *context); /* does not begin before this is true; asked after every event */
    double patience;              /* seconds that it waits for `ready` before the queue stops; 0: for ever */
    void (*start)(void *context);
    bool (*next)(void *context, st_demand *demand);
    strata_status (*end)(void *context, strata_error *error);
    void (*drop)(void *context); /* the clock is done with the context: after the last `end`, or if it never ran */
    void *context;
} st_command;

/* A rate of 0: nothing is charged for the resource. */
strata_status st_clock_new(const double rates[ST_RESOURCE_COUNT], st_clock **out, strata_error *error);
void st_clock_free(st_clock *clock);
double st_clock_now(const st_clock *clock); /* the host's time */

/* A queue is a number; so is a point: reached when everything pushed to its queue before it is done. A queue that is
 * freed drops what it has not begun or finished. A point is kept until it is forgotten; no point is 0. */
strata_status st_clock_queue_new(st_clock *clock, uint32_t *queue, strata_error *error);
void st_clock_queue_free(st_clock *clock, uint32_t queue);
/* Takes the context over if it succeeds. Fails with what stopped the queue if something has. */
strata_status st_clock_push(st_clock *clock, uint32_t queue, const st_command *command, strata_error *error);
strata_status st_clock_point(st_clock *clock, uint32_t queue, uint64_t *point, strata_error *error);
/* What is pushed to `queue` after this waits for the point. */
strata_status st_clock_depend(st_clock *clock, uint32_t queue, uint64_t point, strata_error *error);
void st_clock_forget(st_clock *clock, uint64_t point);

bool st_clock_reached(const st_clock *clock, uint64_t point, double *seconds);
/* Runs until the point is reached: the host waits. STRATA_DEVICE if it never will be, or not within `limit` seconds
 * (0: no limit); the failure of a queue if one has stopped. */
strata_status st_clock_wait(st_clock *clock, uint64_t point, double limit, strata_error *error);
/* The same for a condition in memory. */
strata_status st_clock_wait_until(st_clock *clock, bool (*ready)(void *context), void *context, double limit,
                                  strata_error *error);
/* The host itself works (its command is not in a queue) while the queues go on. */
strata_status st_clock_work(st_clock *clock, const st_demand *demand, strata_error *error);

#endif
