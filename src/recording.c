#include "recording.h"

#include "base/error.h"
#include "json.h"

/* The cache replays the trace by the policy that the engine's cache will have. */
static const char *policy_of(const strata_engine_options *options)
{
    return options->placement ? options->placement->expert_policy : NULL;
}

static strata_status read_trace(st_recording *recording, const strata_engine_options *options, strata_error *error)
{
    if (options->kv_save)
        return st_error_set(error, STRATA_USAGE, "leave one of them out",
                            "options.kv_save: saved state of a replayed routing (options.replay_routing) would be "
                            "wrong for the model");
    return st_trace_read(options->replay_routing, &recording->trace, error);
}

/* The trace may use fewer experts of a token than the model, but no more. */
static strata_status lower(const st_recording *recording, const char *path, const st_gguf *gguf, st_arena *arena,
                           const st_desc **desc, const st_binding **binding, const st_program **program,
                           strata_error *error)
{
    st_program_options options = {.experts_used = recording->trace->shape.used, .recorded = true};
    strata_error why;
    strata_status status = st_program_of_file_with(gguf, &options, arena, desc, binding, program, &why);
    if (status == STRATA_USAGE) return st_error_set(error, STRATA_INPUT, why.hint, "%s: %s", path, why.message);
    if (status != STRATA_OK && error) *error = why;
    return status;
}

strata_status st_recording_open(st_recording *recording, const strata_engine_options *options, const st_gguf *gguf,
                                st_arena *arena, const st_desc **desc, const st_binding **binding,
                                const st_program **program, strata_error *error)
{
    const char *path = options->replay_routing;
    if (!path) return st_program_of_file(gguf, arena, desc, binding, program, error);
    strata_status status = read_trace(recording, options, error);
    if (status == STRATA_OK) status = lower(recording, path, gguf, arena, desc, binding, program, error);
    if (status == STRATA_OK)
        status = st_recorded_new(recording->trace, path, *desc, *program, &recording->rows, error);
    if (status == STRATA_OK) status = st_curve_new(recording->trace, policy_of(options), &recording->curve, error);
    if (status != STRATA_OK) st_recording_close(recording);
    return status;
}

void st_recording_close(st_recording *recording)
{
    st_recorded_free(recording->rows);
    st_trace_free(recording->trace);
    recording->rows = NULL;
    recording->trace = NULL;
}

const st_hit_curve *st_recording_hits(const st_recording *recording)
{
    return recording->trace ? &recording->curve.hits : NULL;
}

/* --- strata_routing_describe -------------------------------------------------------------------------------------- */

/* Tokens of the first turn, of its prompt or decoded. */
static uint32_t count_tokens(const st_trace *trace, bool decode)
{
    uint32_t count = 0;
    for (size_t i = 0; i < trace->event_count && trace->events[i].turn == trace->events[0].turn; i++) {
        const st_trace_event *e = &trace->events[i];
        count += e->decode == decode && (i == 0 || e[-1].step != e->step);
    }
    return count;
}

strata_status strata_routing_describe(const char *path, char **json, strata_error *error)
{
    st_trace *trace = NULL;
    strata_status status = st_trace_read(path, &trace, error);
    if (status != STRATA_OK) return status;
    const st_trace_shape *shape = &trace->shape;
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "model", shape->model, "architecture", shape->arch,
                             "layers", (json_int_t)shape->layers, "experts", (json_int_t)shape->experts, "experts_used",
                             (json_int_t)shape->used, "prompt_tokens", (json_int_t)count_tokens(trace, false),
                             "decode_tokens", (json_int_t)count_tokens(trace, true));
    st_trace_free(trace);
    return st_json_give(root, 0, "the recorded routing as JSON", json, error);
}
