#include "moe/watch.h"

#include <string.h>

static void count_routing(st_watch *watch, const st_routing *r)
{
    uint32_t count = 0;
    memset(watch->seen, 0, watch->experts_max * sizeof *watch->seen);
    for (size_t i = 0; i < (size_t)r->rows * r->used; i++) {
        uint32_t expert = (uint32_t)r->ids[i];
        if (expert >= watch->experts_max || watch->seen[expert]) continue;
        watch->seen[expert] = true;
        watch->distinct[count++] = expert;
    }
    st_stats_event(watch->stats, r->layer, r->decoding, count, watch->distinct, NULL);
    st_stats_rows(watch->stats, r->layer, r->decoding, r->rows, r->used);
}

void st_watch_routing(st_watch *watch, const st_routing *r, bool all_resident)
{
    if (watch->stats && all_resident) count_routing(watch, r);
    for (uint32_t row = 0; watch->trace && row < r->rows; row++) {
        const st_watch_row *origin = &r->origins[row];
        st_trace_event event = {.turn = origin->turn, .step = origin->position, .layer = r->layer,
                                .decode = !origin->prompt, .count = r->used};
        st_trace_writer_event(watch->trace, &event, (const uint32_t *)(const void *)(r->ids + (size_t)row * r->used),
                              r->weights + (size_t)row * r->used, NULL);
    }
}
