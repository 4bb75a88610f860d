/* Converts options to the library's placement and engine options. */
#include <string.h>

#include "cli.h"

strata_placement cli_placement_of(const cli_arguments *arguments)
{
    const cli_value *values = arguments->values;
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    placement.device = values[OPTION_DEVICE].text;
    placement.profile = values[OPTION_DEVICE_PROFILE].text;
    placement.vram_bytes = (uint64_t)cli_integer(arguments, OPTION_VRAM, 0);
    placement.ram_bytes = (uint64_t)cli_integer(arguments, OPTION_RAM, 0);
    if (values[OPTION_MARGIN].set) placement.vram_margin_bytes = (uint64_t)values[OPTION_MARGIN].number;
    if (values[OPTION_RAM_MARGIN].set) placement.ram_margin_bytes = (uint64_t)values[OPTION_RAM_MARGIN].number;
    if (values[OPTION_OVERHEAD].set) placement.overhead_bytes = (uint64_t)values[OPTION_OVERHEAD].number;
    placement.layers = (int32_t)cli_integer(arguments, OPTION_GPU_LAYERS, placement.layers);
    placement.moe = values[OPTION_MOE].text;
    placement.expert_slots = (int32_t)cli_integer(arguments, OPTION_EXPERT_SLOTS, placement.expert_slots);
    placement.cpu_moe_layers = (uint32_t)cli_integer(arguments, OPTION_N_CPU_MOE, 0);
    placement.cpu_ffn_layers = (uint32_t)cli_integer(arguments, OPTION_N_CPU_FFN, 0);
    placement.expert_policy = values[OPTION_EXPERT_POLICY].text;
    placement.expert_profile = values[OPTION_EXPERT_PROFILE].text;
    placement.prefetch = values[OPTION_PREFETCH].text;
    placement.deterministic = values[OPTION_DETERMINISTIC].set;
    placement.disk = values[OPTION_DISK].set;
    return placement;
}

bool cli_simulates(const cli_arguments *arguments)
{
    const char *device = arguments->values[OPTION_DEVICE].text;
    return device && strcmp(device, "sim") == 0;
}

const char *cli_simulated(const cli_arguments *arguments)
{
    return cli_simulates(arguments) ? " simulated" : "";
}

void cli_note_simulation(const cli_arguments *arguments)
{
    if (cli_simulates(arguments))
        cli_note("note: this CPU computes what the simulated GPU would, with slow reference kernels: the command takes "
                 "much longer than the simulated times");
}

void cli_note_context(const cli_arguments *arguments, uint32_t context)
{
    int64_t asked = cli_integer(arguments, OPTION_CONTEXT, 0);
    if (asked > (int64_t)context)
        cli_note("the context is %u tokens, the model's maximum, instead of %lld", context, (long long)asked);
}

/* For the library 0 is the default; on the command line it means none. */
static uint64_t bytes_or_none(const cli_value *value, uint64_t none)
{
    if (!value->set) return 0;
    return value->number > 0 ? (uint64_t)value->number : none;
}

enum { SERVE_SESSIONS = 8 };

/* For the library 0 means as many tokens as fit, and the model's maximum is the limit. */
static uint32_t context_asked(const cli_value *value, uint32_t otherwise)
{
    if (!value->set) return otherwise;
    if (value->number == 0) return UINT32_MAX;
    return value->number > 0 ? (uint32_t)value->number : 0;
}

strata_engine_options cli_engine_options(const cli_arguments *arguments, const strata_placement *placement,
                                         uint32_t context)
{
    const cli_value *values = arguments->values;
    int64_t threads = cli_integer(arguments, OPTION_THREADS, 0);
    return (strata_engine_options){
        .context = context_asked(&values[OPTION_CONTEXT], context),
        .batch = (uint32_t)cli_integer(arguments, OPTION_BATCH, 0),
        .sessions = (uint32_t)cli_integer(arguments, OPTION_PARALLEL,
                                          arguments->command == COMMAND_SERVE ? SERVE_SESSIONS : 0),
        .step_ms = (uint32_t)cli_integer(arguments, OPTION_STEP_MS, 0),
        .restore_bytes = bytes_or_none(&values[OPTION_RESTORE_RAM], STRATA_RESTORE_OFF),
        .kv_ram_bytes = bytes_or_none(&values[OPTION_KV_RAM], STRATA_KV_RAM_OFF),
        .kv_save = values[OPTION_KV_SAVE].text,
        .kv_save_bytes = (uint64_t)cli_integer(arguments, OPTION_KV_SAVE_LIMIT, 0),
        .placement = placement,
        .threads = threads > 0 ? (uint32_t)threads : 0,
        .cpu = values[OPTION_CPU].text,
        .kv_type = values[OPTION_KV_TYPE].text,
        .nextn = values[OPTION_NEXTN].set,
        .profile = values[OPTION_PROFILE].set,
        .expert_stats = values[OPTION_EXPERT_STATS].set,
        .record_routing = values[OPTION_RECORD_ROUTING].text,
        .replay_routing = values[OPTION_ROUTING].text,
    };
}
