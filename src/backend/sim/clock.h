/* Virtual time: a discrete-event simulation of queues of commands that share resources. A command waits for the
 * commands before it in its queue and for the points that it depends on. It then takes its latency and its work: alone,
 * the slowest of amount / rate; with others, at a fair share of the resources in common (share.h). Knows no device, no
 * operation and no memory: a command calls back when it starts and when it ends.
 *
 * Time advances only while the host waits or works. Events at the same time are processed in the order of the queue
 * numbers, ends before starts. */
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

/* The callbacks of a command may be NULL and must not call the clock. `start` is called once. Then `next` gives the
 * demand of each phase (false: no phase is left) and `end` follows each phase. Without `next` there is one phase, with
 * `demand`. If `end` returns an error, the queue stops with that error: later commands are dropped, later points never
 * reached. */
typedef struct st_command {
    st_demand demand;
    bool (*ready)(void *context); /* the command starts when this is true; called after every event */
    double patience;              /* seconds to wait for `ready` before the queue stops; 0: no limit */
    void (*start)(void *context);
    bool (*next)(void *context, st_demand *demand);
    strata_status (*end)(void *context, strata_error *error);
    void (*drop)(void *context); /* frees the context: after the last `end`, or if the command never ran */
    void *context;
} st_command;

/* A resource with a rate of 0 costs no time. */
strata_status st_clock_new(const double rates[ST_RESOURCE_COUNT], st_clock **out, strata_error *error);
void st_clock_free(st_clock *clock);
double st_clock_now(const st_clock *clock); /* the host's time */

/* Queues and points are numbers. A point is reached when every command pushed to its queue before it has ended; it
 * exists until st_clock_forget; no point is 0. Freeing a queue drops the commands that have not ended. */
strata_status st_clock_queue_new(st_clock *clock, uint32_t *queue, strata_error *error);
void st_clock_queue_free(st_clock *clock, uint32_t queue);
/* Takes ownership of the context on success. Fails with the error that stopped the queue, if any. */
strata_status st_clock_push(st_clock *clock, uint32_t queue, const st_command *command, strata_error *error);
strata_status st_clock_point(st_clock *clock, uint32_t queue, uint64_t *point, strata_error *error);
/* Commands pushed to `queue` after this wait for the point. */
strata_status st_clock_depend(st_clock *clock, uint32_t queue, uint64_t point, strata_error *error);
void st_clock_forget(st_clock *clock, uint64_t point);

bool st_clock_reached(const st_clock *clock, uint64_t point, double *seconds);
bool st_clock_decided(const st_clock *clock, uint64_t point); /* reached, or never will be */
/* The host waits for the point. STRATA_DEVICE if it is never reached, or not within `limit` seconds (0: no limit); the
 * error of a queue if one has stopped. */
strata_status st_clock_wait(st_clock *clock, uint64_t point, double limit, strata_error *error);
/* The host waits for a condition in memory. */
strata_status st_clock_wait_until(st_clock *clock, bool (*ready)(void *context), void *context, double limit,
                                  strata_error *error);
/* The host works, outside any queue, while the queues continue. */
strata_status st_clock_work(st_clock *clock, const st_demand *demand, strata_error *error);

#endif
