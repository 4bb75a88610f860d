/* Inside the clock: its queues and points. clock_queue.c keeps them, clock.c lets time pass. */
#ifndef ST_SIM_CLOCK_STATE_H
#define ST_SIM_CLOCK_STATE_H

#include "backend/sim/clock.h"
#include "backend/sim/share.h"

/* A phase on its way: first its latency, then its work. */
typedef struct st_clock_phase {
    double latency; /* seconds left */
    double work;    /* seconds left, as if it were alone */
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
    bool impatient;  /* its first command waits to be ready, and not for ever */
    double patience; /* seconds left of that */
    st_clock_phase phase;
    strata_status failure; /* what stopped it, in words too */
    strata_error error;
    st_clock_entry *ring; /* [capacity], a power of two */
    uint32_t first, count, capacity;
} st_clock_lane;

typedef enum st_clock_mark_state { ST_MARK_PENDING, ST_MARK_REACHED, ST_MARK_LOST } st_clock_mark_state;

/* A point. */
typedef struct st_clock_mark {
    uint32_t generation; /* a number is generation and slot: those of an earlier use are no longer good */
    uint32_t uses;       /* whoever holds its number, its entry, and the entries that depend on it; 0: free */
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
    st_share **sharing; /* [queue_count + 1]: those at work */
};

static inline st_clock_entry *st_clock_front(const st_clock_lane *q)
{
    return &q->ring[q->first];
}

void st_clock_pop(st_clock_lane *q);
void st_clock_drop(const st_clock_entry *command);
void st_clock_drop_all(st_clock *clock, st_clock_lane *q);
/* What stopped it. */
strata_status st_clock_told(const st_clock_lane *q, strata_error *error);
/* The point of a number; NULL if it is not held. */
st_clock_mark *st_clock_find(const st_clock *clock, uint64_t number);
strata_status st_clock_no_point(strata_error *error);

#endif
