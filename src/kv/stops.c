#include "kv/stops.h"

static uint32_t round_down(uint32_t position, uint32_t multiple)
{
    return position - position % multiple;
}

/* The page boundary for `wanted` if that is between `position` and the end. */
static uint32_t boundary(const st_stops *s, uint32_t position, uint32_t wanted)
{
    uint32_t rounded = round_down(wanted, s->page_tokens);
    return wanted <= s->end && rounded > position ? rounded : ST_NO_STOP;
}

static uint32_t next_mark(const st_stops *s, uint32_t position)
{
    uint32_t next = boundary(s, position, s->diverged);
    for (uint32_t i = 0; i < s->mark_count; i++) {
        uint32_t marked = boundary(s, position, s->marks[i]);
        if (marked == ST_NO_STOP) continue;
        return marked < next ? marked : next;
    }
    return next;
}

static uint32_t next_passing(const st_stops *s, uint32_t position)
{
    if (position >= s->end) return ST_NO_STOP;
    uint32_t every = s->page_tokens > ST_STOPS_EVERY ? s->page_tokens : ST_STOPS_EVERY;
    uint64_t next = (uint64_t)round_down(position, every) + every;
    if (next < s->end) return (uint32_t)next;
    return boundary(s, position, s->end - 1);
}

uint32_t st_stops_next(const st_stops *stops, uint32_t position, st_restore_kind *kind)
{
    uint32_t mark = next_mark(stops, position), passing = next_passing(stops, position);
    if (mark == ST_NO_STOP && passing == ST_NO_STOP) return ST_NO_STOP;
    *kind = mark <= passing ? ST_RESTORE_MARK : ST_RESTORE_PASSING;
    return mark <= passing ? mark : passing;
}
