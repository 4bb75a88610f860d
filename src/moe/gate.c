#include "moe/gate.h"

#include <math.h>

/* What an event leaves of the sums: some hundred events count. */
#define KEPT (1.0 - 1.0 / 96.0)

/* How many standard errors from the cost the gain must be. Closing wants better evidence than opening: a cache that goes stale
 * by mistake loses more than a few uploads cost. */
#define CLOSE_ERRORS 2.0
#define OPEN_ERRORS 0.5

/* In events: further ahead nothing is promised. */
#define STAY_MAX 128.0

/* Pairs times events; less is an anecdote. */
#define WATCHED_MIN 64.0

void st_gate_init(st_gate *gate, double cost, uint32_t slots, int32_t *balance, uint64_t *until)
{
    gate->cost = cost;
    gate->slots = slots;
    gate->open = true;
    gate->balance = balance;
    gate->until = until;
}

/* For how many events a newcomer would keep its slot: the others come after it. */
static double stay(const st_gate *gate)
{
    double events = gate->proposals > 0.0 ? gate->slots * gate->events / gate->proposals : STAY_MAX;
    return fmin(fmax(events, ST_GATE_EVENTS), STAY_MAX);
}

static double gain_of(const st_gate *gate)
{
    return gate->watched > 0.0 ? stay(gate) * gate->uses / gate->watched : 0.0;
}

/* The sums take in the last event; the gate moves only where its gain is further from the cost than chance would have it. */
static void judge(st_gate *gate)
{
    gate->uses = gate->uses * KEPT + gate->difference;
    gate->watched = gate->watched * KEPT + gate->count;
    gate->square = gate->square * KEPT * KEPT + gate->difference * gate->difference;
    double gain = gain_of(gate), error = stay(gate) * sqrt(gate->square) / gate->watched;
    if (gate->watched < WATCHED_MIN) return;
    if (gain + CLOSE_ERRORS * error < gate->cost) gate->open = false;
    if (gain - OPEN_ERRORS * error > gate->cost) gate->open = true;
}

void st_gate_begin_event(st_gate *gate)
{
    gate->event++;
    if (gate->cost <= 0.0) return;
    gate->events = gate->events * KEPT + 1.0;
    gate->proposals = gate->proposals * KEPT + gate->fresh;
    gate->fresh = 0;
    if (gate->count) judge(gate); /* else nothing was seen, and nothing is forgotten */
    gate->difference = 0.0;
    while (gate->count && gate->pairs[gate->first].end <= gate->event) {
        gate->balance[gate->pairs[gate->first].newcomer]--;
        gate->balance[gate->pairs[gate->first].victim]++;
        gate->first = (gate->first + 1) % ST_GATE_PAIRS;
        gate->count--;
    }
}

void st_gate_use(st_gate *gate, uint32_t expert)
{
    gate->difference += gate->balance[expert];
}

bool st_gate_propose(st_gate *gate, uint32_t newcomer, uint32_t victim)
{
    if (gate->cost <= 0.0) return true;
    /* One that stays out is proposed at its every use: that is one exchange, not many. */
    if (gate->until[newcomer] <= gate->event && gate->count < ST_GATE_PAIRS) {
        uint64_t end = gate->event + ST_GATE_EVENTS + 1; /* this event's uses are over */
        gate->pairs[(gate->first + gate->count++) % ST_GATE_PAIRS] = (st_gate_pair){newcomer, victim, end};
        gate->until[newcomer] = end;
        gate->balance[newcomer]++;
        gate->balance[victim]--;
        gate->fresh++;
    }
    return gate->open;
}
