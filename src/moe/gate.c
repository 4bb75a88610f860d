#include "moe/gate.h"

#include <math.h>

/* The decay of the sums per event: they cover about a hundred events. */
#define KEPT (1.0 - 1.0 / 96.0)

/* By how many standard errors the gain must differ from the cost. Closing needs better evidence than opening: a stale
 * cache loses more than a few uploads cost. */
#define CLOSE_ERRORS 2.0
#define OPEN_ERRORS 0.5

/* In events: the gain is not extrapolated further. */
#define STAY_MAX 128.0

/* Pairs × events; below that the sample is too small. */
#define WATCHED_MIN 64.0

void st_gate_init(st_gate *gate, double cost, uint32_t slots, int32_t *balance, uint64_t *until)
{
    gate->cost = cost;
    gate->slots = slots;
    gate->open = true;
    gate->balance = balance;
    gate->until = until;
}

/* Events for which a newcomer keeps its slot, at the present rate of proposals. */
static double stay(const st_gate *gate)
{
    double events = gate->proposals > 0.0 ? gate->slots * gate->events / gate->proposals : STAY_MAX;
    return fmin(fmax(events, ST_GATE_EVENTS), STAY_MAX);
}

static double gain_of(const st_gate *gate)
{
    return gate->watched > 0.0 ? stay(gate) * gate->uses / gate->watched : 0.0;
}

/* Adds the last event to the sums. The gate moves only if the difference of gain and cost is significant. */
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
    if (gate->count) judge(gate); /* without a pair there is no sample: the sums stay */
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
    /* A newcomer that is not admitted is proposed at each of its uses: that counts as one exchange. */
    if (gate->until[newcomer] <= gate->event && gate->count < ST_GATE_PAIRS) {
        uint64_t end = gate->event + ST_GATE_EVENTS + 1; /* the uses of this event are counted already */
        gate->pairs[(gate->first + gate->count++) % ST_GATE_PAIRS] = (st_gate_pair){newcomer, victim, end};
        gate->until[newcomer] = end;
        gate->balance[newcomer]++;
        gate->balance[victim]--;
        gate->fresh++;
    }
    return gate->open;
}
