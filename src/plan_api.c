/* strata_plan: from an opened file to its plan as JSON. Reads the directory alone. */
#include "base/cores.h"
#include "json.h"
#include "model.h"
#include "placement.h"
#include "plan/explain.h"
#include "recording.h"

/* A text of the file's directory; null where the file has none. NULL: out of memory. */
static json_t *text_key(const st_gguf *gguf, const char *key)
{
    st_str text;
    bool found = false;
    return st_gguf_get_str(gguf, key, &text, &found, NULL) == STRATA_OK && found ? st_json_text(text) : json_null();
}

static json_t *model_facts(const st_gguf *gguf, const st_desc *desc)
{
    json_t *facts = json_object();
    json_int_t file_bytes = (json_int_t)st_gguf_file_bytes(gguf), tensor_bytes = (json_int_t)st_gguf_tensor_bytes(gguf);
    bool whole = json_object_set_new(facts, "name", text_key(gguf, "general.name")) == 0 &&
                 json_object_set_new(facts, "architecture", text_key(gguf, "general.architecture")) == 0 &&
                 json_object_set_new(facts, "file_bytes", json_integer(file_bytes)) == 0 &&
                 json_object_set_new(facts, "tensor_bytes", json_integer(tensor_bytes)) == 0 &&
                 json_object_set_new(facts, "context_length", json_integer(desc->context_max)) == 0;
    if (whole) return facts;
    json_decref(facts);
    return NULL;
}

/* `simulated`: the plan is for devices with a clock of their own. */
static strata_status write_plan(const st_gguf *gguf, const st_plan_source *source, const st_plan *plan,
                                const st_alternatives *alternatives, bool simulated, char **json, strata_error *error)
{
    json_t *root = st_plan_json(source, plan);
    bool whole = root && st_alternatives_json(alternatives, root) &&
                 json_object_set_new(root, "simulated", json_boolean(simulated)) == 0 &&
                 json_object_set_new(root, "model", model_facts(gguf, source->desc)) == 0;
    if (!whole) {
        json_decref(root);
        root = NULL;
    }
    return st_json_give(root, JSON_REAL_PRECISION(8), "the plan as JSON", json, error);
}

strata_status strata_plan(const strata_model *model, const strata_engine_options *options, char **json,
                          strata_error *error)
{
    static const strata_engine_options defaults = {0};
    const st_gguf *gguf = st_model_gguf(model);
    st_arena arena = {0};
    st_placement placement = {0};
    st_recording recording = {0};
    st_plan_source source = {.devices = placement.devices};
    const st_plan *plan = NULL;
    st_alternatives alternatives;
    if (!options) options = &defaults;
    uint32_t threads = options->threads ? options->threads : st_cores_here();
    strata_status status = st_placement_of(options, ST_PLACEMENT_PLAN, threads, &placement, error);
    if (status == STRATA_OK)
        status = st_recording_open(&recording, options, gguf, &arena, &source.desc, &source.binding, &source.program,
                                   error);
    if (status == STRATA_OK) {
        source.device_count = placement.device_count;
        placement.options.hits = st_recording_hits(&recording);
        status = st_plan_build(&source, &placement.options, &arena, &plan, error);
    }
    if (status == STRATA_OK) status = st_plan_alternatives(&source, &placement.options, plan, &alternatives, error);
    if (status == STRATA_OK) {
        bool simulated = placement.backend->seconds != NULL;
        status = write_plan(gguf, &source, plan, &alternatives, simulated, json, error);
    }
    st_arena_free(&arena);
    st_recording_close(&recording);
    st_placement_close(&placement);
    return status;
}
