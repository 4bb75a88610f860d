/* Fuzzes routing traces: any text is refused with a line number, or can be replayed. */
#include <string.h>

#include "moe/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The replay's preconditions on a trace. */
static bool holds_together(const st_trace *trace)
{
    size_t rows = 0;
    for (size_t i = 0; i < trace->event_count; i++) {
        const st_trace_event *e = &trace->events[i];
        if (e->first != rows || e->count == 0 || e->count > trace->shape.used || e->layer >= trace->shape.layers) return false;
        for (size_t r = rows; r < rows + e->count; r++)
            if (trace->experts[r] >= trace->shape.experts || !(trace->weights[r] >= 0.0f)) return false;
        rows += e->count;
    }
    return rows == trace->row_count && rows > 0;
}

static void replay(const st_trace *trace, const char *policy)
{
    st_replay_options options = {.policy = policy, .slots = trace->shape.experts / 2, .budget = 0.5, .upload_cost = 0.5,
                                 .rates = {1e9, 1e9, 0.0}};
    st_replay_result result;
    if (st_replay(trace, &options, &result, NULL) != STRATA_OK) __builtin_trap();
    if (result.hits + result.misses > trace->row_count || !(result.seconds >= 0.0)) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_trace *trace = NULL;
    strata_error error = {0};
    strata_status status = st_trace_parse("fuzz.csv", (const char *)data, size, &trace, &error);
    if (status == STRATA_OK) {
        if (!holds_together(trace)) __builtin_trap();
        if ((uint64_t)trace->shape.layers * trace->shape.experts <= 1 << 16) { /* larger caches take long */
            replay(trace, NULL);
            replay(trace, "slru");
            replay(trace, ST_REPLAY_OPTIMUM);
        }
        st_trace_free(trace);
    } else if (trace || status != STRATA_INPUT || strncmp(error.message, "fuzz.csv: line ", 15) != 0) {
        __builtin_trap();
    }
    return 0;
}
