/* Loads the model as the options ask. */
#include <unistd.h>

#include "cli.h"

/* The context of both functions that loading calls. */
typedef struct loading {
    cli_progress progress; /* first: cli_progress_step gets the same pointer */
    const char *mark;      /* of cli_simulated */
} loading;

/* Prints a line for each step of loading and each device, and removes the progress bar before. */
static void print_memory(void *context, const char *moment, const char *device, uint64_t used, uint64_t left)
{
    char used_text[32], left_text[32];
    loading *l = context;
    cli_progress_end(&l->progress);
    cli_note("memory: %-20s %-12s %18s bytes used%s %18s free%s", moment, device,
             cli_group_digits(used, used_text, sizeof used_text), l->mark,
             cli_group_digits(left, left_text, sizeof left_text), l->mark);
}

static strata_status make_engine(cli_engine *engine, strata_engine_options options, strata_error *error)
{
    loading l = {.mark = cli_simulated(engine->arguments)};
    cli_progress_begin(&l.progress, engine->arguments, "loading", "B", 0);
    options.progress = cli_progress_step;
    options.progress_context = &l;
    if (engine->arguments->values[OPTION_TRACE_MEMORY].set) options.trace_memory = print_memory;
    strata_status status = strata_engine_new(engine->model, &options, &engine->engine, error);
    cli_progress_end(&l.progress);
    return status;
}

uint64_t cli_engine_bytes(const cli_engine *engine, const char *name)
{
    double value = json_number_value(json_object_get(engine->facts, name));
    return value > 0.0 ? (uint64_t)value : 0;
}

const char *cli_engine_memory(const cli_engine *engine, char *out, size_t size)
{
    char weights[32], kv[32], scratch[32];
    uint64_t kept = cli_engine_bytes(engine, "kv_bytes") + cli_engine_bytes(engine, "state_bytes") +
                    cli_engine_bytes(engine, "restore_bytes") + cli_engine_bytes(engine, "kv_ram_bytes");
    const char *mark = cli_simulated(engine->arguments);
    snprintf(out, size, "weights %s%s, KV %s%s, scratch %s%s",
             cli_short_number(cli_engine_bytes(engine, "weight_bytes"), "B", weights, sizeof weights),
             *mark ? mark : " mapped", cli_short_number(kept, "B", kv, sizeof kv), mark,
             cli_short_number(cli_engine_bytes(engine, "scratch_bytes"), "B", scratch, sizeof scratch), mark);
    return out;
}

static const char *fact_text(const json_t *facts, const char *name)
{
    const char *text = json_string_value(json_object_get(facts, name));
    return text ? text : "?";
}

static void print_setup(const cli_engine *engine)
{
    const json_t *facts = engine->facts;
    char memory[160];
    cli_note("%s kernels \"%s\", %lld threads, context %lld, batch %lld, KV cache %s; %s",
             fact_text(facts, "backend"), fact_text(facts, "kernels"),
             (long long)json_integer_value(json_object_get(facts, "threads")),
             (long long)json_integer_value(json_object_get(facts, "context")),
             (long long)json_integer_value(json_object_get(facts, "batch")), fact_text(facts, "kv_type"),
             cli_engine_memory(engine, memory, sizeof memory));
}

/* Workers that share a core wait for each other. */
static void note_threads(const cli_arguments *arguments)
{
    int64_t threads = cli_integer(arguments, OPTION_THREADS, 0);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores > 0 && threads > cores)
        cli_note("note: -t %lld is slow: this machine runs %ld threads at a time", (long long)threads, cores);
}

strata_status cli_engine_open(cli_engine *engine, const cli_arguments *arguments, uint32_t context, bool nextn,
                              strata_error *error)
{
    strata_placement placement = cli_placement_of(arguments);
    strata_engine_options options = cli_engine_options(arguments, &placement, context);
    options.nextn = nextn;
    if (engine->sessions) options.sessions = engine->sessions;
    engine->arguments = arguments;
    strata_status status = engine->model ? STRATA_OK : cli_open_model(arguments, &engine->model, error);
    if (status == STRATA_OK && !engine->card) status = cli_describe(engine->model, 0, &engine->card, error);
    if (status == STRATA_OK) status = make_engine(engine, options, error);
    if (status == STRATA_OK) status = cli_engine_facts(engine, &engine->facts, error);
    if (status == STRATA_OK) status = strata_session_new(engine->engine, &engine->session, error);
    if (status != STRATA_OK) {
        cli_engine_close(engine);
        return status;
    }
    cli_note_context(arguments, strata_engine_context(engine->engine));
    note_threads(arguments);
    json_int_t layers = json_integer_value(json_object_get(engine->card, "layers"));
    if (cli_integer(arguments, OPTION_GPU_LAYERS, 0) > layers)
        cli_note("-g %s is all of the model's %lld layers", arguments->values[OPTION_GPU_LAYERS].text,
                 (long long)layers);
    if (arguments->values[OPTION_VERBOSE].set) print_setup(engine);
    return STRATA_OK;
}

/* Prints the table of --expert-stats. */
static void print_expert_stats(const cli_engine *engine)
{
    json_t *facts = NULL;
    if (!engine->engine || !engine->arguments->values[OPTION_EXPERT_STATS].set) return;
    if (cli_engine_facts(engine, &facts, NULL) != STRATA_OK) return;
    const char *table = json_string_value(json_object_get(facts, "expert_table"));
    if (table && cli_simulates(engine->arguments)) fputs("routed experts, simulated:\n", stderr);
    fputs(table ? table : "strata: the model has no routed experts\n", stderr);
    json_decref(facts);
}

void cli_engine_close(cli_engine *engine)
{
    print_expert_stats(engine);
    strata_session_free(engine->session);
    strata_engine_free(engine->engine);
    json_decref(engine->facts);
    json_decref(engine->card);
    strata_model_close(engine->model);
    *engine = (cli_engine){0};
}
