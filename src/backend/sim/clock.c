/* Advances virtual time from one event to the next. */
#include "backend/sim/clock.h"

#include <math.h>

#include "backend/sim/clock_state.h"
#include "base/error.h"

/* --- events of one moment ----------------------------------------------------------------------------------------- */

static st_clock_phase phase_of(const st_clock *clock, const st_demand *demand)
{
    st_clock_phase p = {.latency = fmax(demand->latency, 0)};
    for (int i = 0; i < ST_RESOURCE_COUNT; i++) p.work = fmax(p.work, demand->amount[i] / clock->rates[i]);
    for (int i = 0; i < ST_RESOURCE_COUNT && p.work > 0; i++) p.share.usage[i] = fmax(demand->amount[i], 0) / p.work;
    return p;
}

static bool is_over(const st_clock_phase *p)
{
    return p->latency <= 0 && p->work <= 0;
}

static void stop(st_clock *clock, st_clock_lane *q, strata_status status, const strata_error *error)
{
    q->failure = status;
    q->error = *error;
    st_clock_drop_all(clock, q);
}

/* Starts the command's next phase, or ends the command if there is none. */
static void begin_phase(st_clock *clock, st_clock_lane *q, bool first)
{
    const st_command *command = &st_clock_front(q)->command;
    st_demand demand = command->demand;
    if (command->next ? command->next(command->context, &demand) : first) {
        q->phase = phase_of(clock, &demand);
        return;
    }
    st_clock_drop(st_clock_front(q));
    st_clock_pop(q);
}

static bool end_phase(st_clock *clock, st_clock_lane *q)
{
    if (!q->begun || !is_over(&q->phase)) return false;
    const st_command *command = &st_clock_front(q)->command;
    strata_error error = {.message = ""};
    strata_status status = command->end ? command->end(command->context, &error) : STRATA_OK;
    if (status != STRATA_OK) stop(clock, q, status, &error);
    else begin_phase(clock, q, false);
    return true;
}

/* Whether the first command may start. Stops the queue if the command has waited too long. */
static bool is_ready(st_clock *clock, st_clock_lane *q)
{
    const st_command *command = &st_clock_front(q)->command;
    if (!command->ready || command->ready(command->context)) return true;
    if (!q->impatient) {
        q->impatient = command->patience > 0;
        q->patience = command->patience;
    } else if (q->patience <= 0) {
        strata_error error;
        strata_status status = st_error_set(&error, STRATA_DEVICE, NULL,
                                            "a queue waited %.0f µs for a counter that did not reach its value",
                                            command->patience * 1e6);
        stop(clock, q, status, &error);
    }
    return false;
}

/* Processes the first entry if that is possible now. */
static bool begin_entry(st_clock *clock, st_clock_lane *q)
{
    if (q->begun || q->count == 0) return false;
    st_clock_entry *e = st_clock_front(q);
    if (e->kind == ST_ENTRY_COMMAND) {
        if (!is_ready(clock, q)) return false;
        q->begun = true;
        q->impatient = false;
        if (e->command.start) e->command.start(e->command.context);
        begin_phase(clock, q, true);
        return true;
    }
    st_clock_mark *p = &clock->points[e->slot];
    if (e->kind == ST_ENTRY_DEPEND && p->state != ST_MARK_REACHED) return false;
    if (e->kind == ST_ENTRY_POINT) {
        p->state = ST_MARK_REACHED;
        p->seconds = clock->now;
    }
    p->uses--;
    st_clock_pop(q);
    return true;
}

/* Ends and starts commands until nothing more happens at this moment. */
static void settle(st_clock *clock)
{
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < clock->queue_count; i++) more |= end_phase(clock, &clock->queues[i]);
        for (uint32_t i = 0; i < clock->queue_count; i++) more |= begin_entry(clock, &clock->queues[i]);
    }
}

/* --- from one moment to the next ---------------------------------------------------------------------------------- */

static void share_resources(st_clock *clock)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < clock->queue_count; i++) {
        st_clock_phase *p = &clock->queues[i].phase;
        if (clock->queues[i].begun && p->latency <= 0) clock->sharing[count++] = &p->share;
    }
    if (clock->host_works && clock->host.latency <= 0) clock->sharing[count++] = &clock->host.share;
    st_share_out(clock->rates, clock->sharing, count);
}

static double seconds_left(const st_clock_phase *p)
{
    return p->latency > 0 ? p->latency : p->work / p->share.pace;
}

/* Seconds until the next event; INFINITY: there is none. */
static double next_event(const st_clock *clock)
{
    double seconds = clock->host_works ? seconds_left(&clock->host) : INFINITY;
    for (uint32_t i = 0; i < clock->queue_count; i++) {
        const st_clock_lane *q = &clock->queues[i];
        if (q->begun) seconds = fmin(seconds, seconds_left(&q->phase));
        else if (q->impatient) seconds = fmin(seconds, q->patience);
    }
    return seconds;
}

/* Whether a phase with `left` seconds ends within `seconds`, despite rounding. */
static bool fits(double left, double seconds)
{
    return left <= seconds * (1 + 1e-12);
}

static void pass(st_clock_phase *p, double seconds)
{
    bool over = fits(seconds_left(p), seconds);
    if (p->latency > 0) p->latency = over ? 0 : p->latency - seconds;
    else p->work = over ? 0 : p->work - seconds * p->share.pace;
}

static void advance(st_clock *clock, double seconds)
{
    clock->now += seconds;
    for (uint32_t i = 0; i < clock->queue_count; i++) {
        st_clock_lane *q = &clock->queues[i];
        if (q->begun) pass(&q->phase, seconds);
        else if (q->impatient) q->patience = fits(q->patience, seconds) ? 0 : q->patience - seconds;
    }
    if (clock->host_works) pass(&clock->host, seconds);
}

/* --- the host ----------------------------------------------------------------------------------------------------- */

typedef bool condition(void *context);

/* Runs until the condition (may be NULL) holds (OK), the host's phase has ended (LIMIT) or no event is left
 * (DEVICE). */
static strata_status run(st_clock *clock, condition *done, void *context)
{
    for (;;) {
        settle(clock);
        if (done && done(context)) return STRATA_OK;
        if (clock->host_works && is_over(&clock->host)) return STRATA_LIMIT;
        share_resources(clock);
        double seconds = next_event(clock);
        if (!isfinite(seconds)) return STRATA_DEVICE;
        advance(clock, seconds);
    }
}

/* The error of a wait that cannot end: that of a stopped queue, or else `what`. */
static strata_status give_up(const st_clock *clock, const char *what, strata_error *error)
{
    for (uint32_t i = 0; i < clock->queue_count; i++)
        if (clock->queues[i].failure != STRATA_OK) return st_clock_failure(&clock->queues[i], error);
    return st_error_set(error, STRATA_DEVICE, NULL, "%s", what);
}

strata_status st_clock_wait_until(st_clock *clock, bool (*ready)(void *context), void *context, double limit,
                                  strata_error *error)
{
    clock->host_works = limit > 0; /* the limit is a latency of the host */
    clock->host = (st_clock_phase){.latency = limit};
    strata_status status = run(clock, ready, context);
    clock->host_works = false;
    if (status == STRATA_OK) return STRATA_OK;
    if (status == STRATA_LIMIT)
        return st_error_set(error, STRATA_DEVICE, NULL, "the device took longer than the %.0f µs it was given",
                            limit * 1e6);
    return give_up(clock, "waited for an event that no queue will reach", error);
}

/* A lost point ends the wait too. */
typedef struct point_wait {
    const st_clock *clock;
    uint32_t slot;
} point_wait;

static bool is_decided(void *context)
{
    const point_wait *wait = context;
    return wait->clock->points[wait->slot].state != ST_MARK_PENDING;
}

strata_status st_clock_wait(st_clock *clock, uint64_t number, double limit, strata_error *error)
{
    if (!st_clock_find(clock, number)) return st_clock_no_point(error);
    if (st_clock_reached(clock, number, NULL)) return STRATA_OK;
    point_wait wait = {.clock = clock, .slot = (uint32_t)number};
    strata_status status = st_clock_wait_until(clock, is_decided, &wait, limit, error);
    if (status != STRATA_OK || st_clock_reached(clock, number, NULL)) return status;
    return give_up(clock, "waited for an event of a queue that was freed", error);
}

strata_status st_clock_work(st_clock *clock, const st_demand *demand, strata_error *error)
{
    (void)error; /* the error of a stopped queue goes to the wait for that queue */
    clock->host = phase_of(clock, demand);
    clock->host_works = true;
    run(clock, NULL, NULL);
    clock->host_works = false;
    return STRATA_OK;
}
