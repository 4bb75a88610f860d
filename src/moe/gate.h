/* The gate: decides whether exchanges gain more hits than they cost. For some events after each exchange that the
 * policy proposes, made or not, it counts the uses of the newcomer and of the victim. Their difference, over the time
 * that a newcomer keeps its slot, is the gain of an upload in hits. Under uniform routing the gain is 0. Uses are
 * counted without uploads too, so a closed gate can open again. Knows experts as numbers, and the number of slots. */
#ifndef ST_MOE_GATE_H
#define ST_MOE_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* Events for which a pair is watched: enough to count uses, few enough to follow a change of routing. */
enum { ST_GATE_EVENTS = 32, ST_GATE_PAIRS = 256 };

typedef struct st_gate_pair {
    uint32_t newcomer, victim;
    uint64_t end; /* the event at which the watch ends */
} st_gate_pair;

/* Of one layer. */
typedef struct st_gate {
    double cost;          /* of an upload, in hits; 0: always open */
    double difference;    /* of this event: uses of newcomers − uses of victims */
    double uses, square, watched; /* decayed sums over events: differences, their squares, pairs under watch */
    double proposals, events;     /* decayed sums: new pairs, and 1 per event */
    uint32_t slots, fresh;        /* slots of the layer; new pairs of this event */
    bool open;
    uint64_t event;
    int32_t *balance;     /* [experts]: pairs in which it is the newcomer, less those in which it is the victim */
    uint64_t *until;      /* [experts]: watched as a newcomer until this event */
    st_gate_pair pairs[ST_GATE_PAIRS]; /* a ring, the oldest first */
    uint32_t first, count;
} st_gate;

/* `balance` and `until` are zeroed. The gate starts open. */
void st_gate_init(st_gate *gate, double cost, uint32_t slots, int32_t *balance, uint64_t *until);

/* An event: first its uses, one by one, then the proposals. */
void st_gate_begin_event(st_gate *gate);
void st_gate_use(st_gate *gate, uint32_t expert);
/* Watches a proposed exchange; returns whether it is made. */
bool st_gate_propose(st_gate *gate, uint32_t newcomer, uint32_t victim);

#endif
