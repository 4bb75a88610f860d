/* The clock's queues and points, private to clock.c, which advances time, and clock_queue.c, which stores them. */
#ifndef ST_SIM_CLOCK_STATE_H
#define ST_SIM_CLOCK_STATE_H

#include "backend/sim/clock.h"
#include "backend/sim/share.h"

/* A running phase: first its latency, then its work. */
typedef struct st_clock_phase {
    double latency; /* seconds left */
    double work;    /* seconds left at full speed */
    st_share share;
} st_clock_phase;

typedef enum st_clock_entry_kind { ST_ENTRY_COMMAND, ST_ENTRY_POINT, ST_ENTRY_DEPEND } st_clock_entry_kind;

typedef struct st_clock_entry {
    st_clock_entry_kind kind;
    uint32_t slot; /* of the point */
    st_command command;
} st_clock_entry;

/* A queue. */
typedef struct st_clock_lane {
    bool open;
    bool begun;      /* its first command has started */
    bool impatient;  /* its first command waits to be ready, with a limit */
    double patience; /* seconds left until the limit */
    st_clock_phase phase;
    strata_status failure; /* the error that stopped it */
    strata_error error;
    st_clock_entry *ring; /* [capacity], a power of two */
    uint32_t first, count, capacity;
} st_clock_lane;

typedef enum st_clock_mark_state { ST_MARK_PENDING, ST_MARK_REACHED, ST_MARK_LOST } st_clock_mark_state;

/* A point. */
typedef struct st_clock_mark {
    uint32_t generation; /* a point's number is generation and slot; numbers of an earlier generation are invalid */
    uint32_t uses;       /* references: the holder of the number, its entry, and entries that depend on it; 0: free */
    bool held;
    st_clock_mark_state state;
    double seconds;
} st_clock_mark;

struct st_clock {
    double rates[ST_RESOURCE_COUNT];
    double now;
    st_clock_lane *queues;
    uint32_t queue_count;
    st_clock_mark *points;
    uint32_t point_count;
    bool host_works;
    st_clock_phase host;
    st_share **sharing; /* [queue_count + 1]: of the running phases */
};

static inline st_clock_entry *st_clock_front(const st_clock_lane *q)
{
    return &q->ring[q->first];
}

void st_clock_pop(st_clock_lane *q);
void st_clock_drop(const st_clock_entry *command);
void st_clock_drop_all(st_clock *clock, st_clock_lane *q);
/* The error that stopped the queue. */
strata_status st_clock_failure(const st_clock_lane *q, strata_error *error);
/* The point of a number; NULL if the number is invalid. */
st_clock_mark *st_clock_find(const st_clock *clock, uint64_t number);
strata_status st_clock_no_point(strata_error *error);

#endif
