/* The clock's queues and points; opening and closing the clock. */
#include "backend/sim/clock_state.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"

/* --- points ------------------------------------------------------------------------------------------------------- */

st_clock_mark *st_clock_find(const st_clock *clock, uint64_t number)
{
    uint32_t slot = (uint32_t)number, generation = (uint32_t)(number >> 32);
    if (slot >= clock->point_count) return NULL;
    st_clock_mark *p = &clock->points[slot];
    return p->held && p->generation == generation ? p : NULL;
}

/* A free slot. Slots are reused, so their number is bounded by the number of events. */
static strata_status take_slot(st_clock *clock, uint32_t *slot, strata_error *error)
{
    for (uint32_t i = 0; i < clock->point_count; i++) {
        if (clock->points[i].uses) continue;
        *slot = i;
        return STRATA_OK;
    }
    uint32_t count = clock->point_count ? clock->point_count * 2 : 16;
    size_t bytes;
    st_clock_mark *points = st_mul_size(count, sizeof *points, &bytes) ? st_realloc(clock->points, bytes) : NULL;
    if (!points) return st_error_memory(error, count * sizeof *points, "points in virtual time");
    memset(points + clock->point_count, 0, (count - clock->point_count) * sizeof *points);
    *slot = clock->point_count;
    clock->points = points;
    clock->point_count = count;
    return STRATA_OK;
}

void st_clock_forget(st_clock *clock, uint64_t number)
{
    st_clock_mark *p = st_clock_find(clock, number);
    if (!p) return;
    p->held = false;
    p->uses--;
}

bool st_clock_reached(const st_clock *clock, uint64_t number, double *seconds)
{
    const st_clock_mark *p = st_clock_find(clock, number);
    if (!p || p->state != ST_MARK_REACHED) return false;
    if (seconds) *seconds = p->seconds;
    return true;
}

bool st_clock_decided(const st_clock *clock, uint64_t number)
{
    const st_clock_mark *p = st_clock_find(clock, number);
    return !p || p->state != ST_MARK_PENDING;
}

/* --- queues ------------------------------------------------------------------------------------------------------- */

void st_clock_pop(st_clock_lane *q)
{
    q->first = (q->first + 1) & (q->capacity - 1);
    q->count--;
    q->begun = q->impatient = false;
    q->phase = (st_clock_phase){0};
}

void st_clock_drop(const st_clock_entry *e)
{
    if (e->command.drop) e->command.drop(e->command.context);
}

void st_clock_drop_all(st_clock *clock, st_clock_lane *q)
{
    for (; q->count; st_clock_pop(q)) {
        const st_clock_entry *e = st_clock_front(q);
        if (e->kind == ST_ENTRY_COMMAND) {
            st_clock_drop(e);
            continue;
        }
        st_clock_mark *p = &clock->points[e->slot];
        if (e->kind == ST_ENTRY_POINT) p->state = ST_MARK_LOST;
        p->uses--;
    }
}

static strata_status grow(st_clock_lane *q, strata_error *error)
{
    uint32_t capacity = q->capacity ? q->capacity * 2 : 16;
    st_clock_entry *ring = st_alloc_array(capacity, sizeof *ring);
    if (!ring) return st_error_memory(error, capacity * sizeof *ring, "a queue in virtual time");
    for (uint32_t i = 0; i < q->count; i++) ring[i] = q->ring[(q->first + i) & (q->capacity - 1)];
    st_free(q->ring);
    q->ring = ring;
    q->first = 0;
    q->capacity = capacity;
    return STRATA_OK;
}

strata_status st_clock_failure(const st_clock_lane *q, strata_error *error)
{
    if (error) *error = q->error;
    return q->failure;
}

static strata_status push(st_clock_lane *q, const st_clock_entry *e, strata_error *error)
{
    if (q->failure != STRATA_OK) return st_clock_failure(q, error);
    strata_status status = q->count == q->capacity ? grow(q, error) : STRATA_OK;
    if (status != STRATA_OK) return status;
    q->ring[(q->first + q->count++) & (q->capacity - 1)] = *e;
    return STRATA_OK;
}

strata_status st_clock_push(st_clock *clock, uint32_t number, const st_command *command, strata_error *error)
{
    st_clock_entry e = {.kind = ST_ENTRY_COMMAND, .command = *command};
    return push(&clock->queues[number], &e, error);
}

strata_status st_clock_point(st_clock *clock, uint32_t number, uint64_t *out, strata_error *error)
{
    st_clock_lane *q = &clock->queues[number];
    st_clock_entry e = {.kind = ST_ENTRY_POINT};
    strata_status status = take_slot(clock, &e.slot, error);
    if (status != STRATA_OK) return status;
    bool reached = q->count == 0 && q->failure == STRATA_OK;
    if (!reached) status = push(q, &e, error);
    if (status != STRATA_OK) return status;
    st_clock_mark *p = &clock->points[e.slot];
    *p = (st_clock_mark){.generation = p->generation + 1, .uses = reached ? 1 : 2, .held = true, .seconds = clock->now};
    if (reached) p->state = ST_MARK_REACHED;
    *out = (uint64_t)p->generation << 32 | e.slot;
    return STRATA_OK;
}

strata_status st_clock_no_point(strata_error *error)
{
    return st_error_set(error, STRATA_DEVICE, NULL, "waited for an event that no queue has recorded");
}

strata_status st_clock_depend(st_clock *clock, uint32_t number, uint64_t point_number, strata_error *error)
{
    st_clock_mark *p = st_clock_find(clock, point_number);
    if (!p) return st_clock_no_point(error);
    if (p->state == ST_MARK_REACHED) return STRATA_OK;
    st_clock_entry e = {.kind = ST_ENTRY_DEPEND, .slot = (uint32_t)point_number};
    strata_status status = push(&clock->queues[number], &e, error);
    if (status == STRATA_OK) p->uses++;
    return status;
}

strata_status st_clock_queue_new(st_clock *clock, uint32_t *out, strata_error *error)
{
    uint32_t slot = 0;
    while (slot < clock->queue_count && clock->queues[slot].open) slot++;
    if (slot == clock->queue_count) {
        size_t count = (size_t)slot + 1;
        st_clock_lane *queues = st_realloc(clock->queues, count * sizeof *queues);
        if (queues) clock->queues = queues;
        st_share **sharing = queues ? st_realloc(clock->sharing, (count + 1) * sizeof *sharing) : NULL;
        if (!sharing) return st_error_memory(error, count * sizeof *queues, "a queue in virtual time");
        clock->sharing = sharing;
        clock->queue_count++;
    }
    clock->queues[slot] = (st_clock_lane){.open = true};
    *out = slot;
    return STRATA_OK;
}

void st_clock_queue_free(st_clock *clock, uint32_t number)
{
    st_clock_lane *q = &clock->queues[number];
    st_clock_drop_all(clock, q);
    st_free(q->ring);
    *q = (st_clock_lane){0};
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

strata_status st_clock_new(const double rates[ST_RESOURCE_COUNT], st_clock **out, strata_error *error)
{
    st_clock *clock = st_alloc_zero(1, sizeof *clock);
    if (!clock) return st_error_memory(error, sizeof *clock, "the virtual clock");
    clock->sharing = st_alloc_zero(1, sizeof *clock->sharing);
    if (!clock->sharing) {
        st_free(clock);
        return st_error_memory(error, sizeof *clock->sharing, "the virtual clock");
    }
    for (int i = 0; i < ST_RESOURCE_COUNT; i++) clock->rates[i] = rates[i] > 0 ? rates[i] : INFINITY;
    *out = clock;
    return STRATA_OK;
}

void st_clock_free(st_clock *clock)
{
    if (!clock) return;
    for (uint32_t i = 0; i < clock->queue_count; i++) st_clock_queue_free(clock, i);
    st_free(clock->queues);
    st_free(clock->points);
    st_free(clock->sharing);
    st_free(clock);
}

double st_clock_now(const st_clock *clock)
{
    return clock->now;
}
