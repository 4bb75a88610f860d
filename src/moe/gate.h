/* Whether exchanges pay: of each that a policy proposes, made or not, it watches for some events how often the newcomer is
 * asked for and how often the one that would have to go. The difference, for as long as a newcomer would keep its slot, is
 * what an upload brings, in hits. Where routing is uniform that is nothing, whatever the policy believes; and since demand is
 * seen without uploads, a closed gate learns when to open again. Knows experts as numbers, and of slots their number. */
#ifndef ST_MOE_GATE_H
#define ST_MOE_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* How long a pair is watched: long enough to see uses, short enough to see a change. */
enum { ST_GATE_EVENTS = 32, ST_GATE_PAIRS = 256 };

typedef struct st_gate_pair {
    uint32_t newcomer, victim;
    uint64_t end; /* of the watch: the event */
} st_gate_pair;

/* Of one layer. */
typedef struct st_gate {
    double cost;          /* of an upload, in hits; 0: always open */
    double difference;    /* of this event: newcomers' uses less victims' */
    double uses, square, watched; /* decayed sums over events: of differences, of their squares, of pairs under watch */
    double proposals, events;     /* the same of new pairs, and of the events themselves */
    uint32_t slots, fresh;        /* of the layer; new pairs of this event */
    bool open;
    uint64_t event;
    int32_t *balance;     /* [experts]: pairs in which it is the newcomer, less those in which it is the victim */
    uint64_t *until;      /* [experts]: watched as a newcomer until this event */
    st_gate_pair pairs[ST_GATE_PAIRS]; /* a ring, the oldest first */
    uint32_t first, count;
} st_gate;

/* `balance` and `until` are zero. Open until it knows better. */
void st_gate_init(st_gate *gate, double cost, uint32_t slots, int32_t *balance, uint64_t *until);

/* An event: first its uses, one by one, then what is proposed. */
void st_gate_begin_event(st_gate *gate);
void st_gate_use(st_gate *gate, uint32_t expert);
/* An exchange is proposed: it is watched, and whether it is made is the answer. */
bool st_gate_propose(st_gate *gate, uint32_t newcomer, uint32_t victim);

#endif
