#include "placement.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/profiles.h"
#include "base/error.h"
#include "base/log.h"
#include "base/pool.h"
#include "devices.h"
#include "engine.h"
#include "gpu.h"

static const strata_placement defaults = STRATA_PLACEMENT_DEFAULT;

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static void give_memory(st_profile *profile, uint64_t bytes)
{
    profile->total_bytes = profile->free_bytes = bytes;
}

/* The profile's host, or this machine; with the memory of the options, of the profile, or available now. */
static st_profile host_of(const strata_placement *placement, const st_profile_set *set, uint32_t threads)
{
    st_profile here = st_host_profile(), host = set->has_host ? set->host : here;
    if (placement->ram_bytes) give_memory(&host, placement->ram_bytes);
    else if (host.total_bytes == 0) {
        host.total_bytes = here.total_bytes;
        host.free_bytes = here.free_bytes;
    }
    /* Fewer threads than cores compute less, but read memory almost as fast. */
    if (!set->has_host && threads && threads < host.cores) host.op_rate *= (double)threads / host.cores;
    return host;
}

/* A GPU of which only the memory is known has the rates of this one. */
#define STAND_IN "rtx-4070-ti"

/* The profile's GPU, or a typical one with the given memory. It runs what a GPU of that kind would run. */
static st_profile card_of(const strata_placement *placement, const st_profile_set *set)
{
    st_profile card = set->card;
    if (!set->has_card) {
        st_profile_find(ST_STR(STAND_IN), &card);
        memcpy(card.name, "card", sizeof "card");
        card.rates = ST_RATES_STAND_IN;
        card.rates_of = STAND_IN;
    }
    if (placement->vram_bytes) give_memory(&card, placement->vram_bytes);
    if (placement->overhead_bytes != ST_BYTES_AUTO) card.overhead_bytes = placement->overhead_bytes;
    if (!card.no_backend) st_profile_set_statement(&card, st_backend_default_gpu()->statement);
    return card;
}

static bool asks_for_layers(const strata_placement *placement)
{
    return placement->layers != ST_LAYERS_AUTO && placement->layers != 0;
}

/* A named device decides whether a GPU is used. */
static strata_status check_device(const strata_placement *placement, const st_backend_row *row, bool card_given,
                                  strata_error *error)
{
    const char *device = placement->device;
    char names[64];
    if (!device) return STRATA_OK;
    if (!row)
        return st_error_set(error, STRATA_USAGE, "cuda:0 is the first NVIDIA GPU, cuda:1 the second",
                            "placement.device: expected %s, found %s",
                            st_backend_names(names, sizeof names), device);
    if (!st_backend_has_gpu(row) && placement->vram_bytes > 0)
        return st_error_set(error, STRATA_USAGE, "leave one of them out",
                            "placement.device %s: expected no GPU, found placement.vram_bytes", device);
    if (!st_backend_has_gpu(row) && asks_for_layers(placement))
        return st_error_set(error, STRATA_USAGE, "leave one of them out",
                            "placement.device %s: expected no GPU, found placement.layers %" PRId32, device,
                            placement->layers);
    if (!row->card || card_given) return STRATA_OK;
    return st_error_set(error, STRATA_USAGE, "give its memory (placement.vram_bytes) or its name (placement.profile)",
                        "placement.device %s: expected a GPU to simulate, found none", device);
}

/* A GPU of a profile has the profile's memory and rates, as far as the GPU has the memory. */
static void take_profile(const strata_placement *placement, const st_profile_set *set, st_profile *gpu)
{
    st_profile found = *gpu;
    if (set->has_card) {
        *gpu = set->card;
        gpu->scratch = found.scratch;
        gpu->runs = found.runs;
        memcpy(gpu->types, found.types, sizeof gpu->types);
        memcpy(gpu->name, found.name, sizeof gpu->name);
        gpu->alignment = found.alignment;
        gpu->granularity = found.granularity;
        gpu->overhead_bytes = found.overhead_bytes;
        if (found.total_bytes < gpu->total_bytes || placement->vram_bytes) give_memory(gpu, found.total_bytes);
    }
    if (placement->overhead_bytes != ST_BYTES_AUTO) gpu->overhead_bytes = placement->overhead_bytes;
}

/* Once in a process: servers and tests make many engines. */
static void note_absence(const strata_error *why)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told)) st_log(ST_LOG_NOTE, "no GPU: %s; the model runs on the CPU", why->message);
}

/* A GPU was asked for and none can be used: the option that asks, why there is none, and that a run without the option
 * needs none. */
static strata_status refuse_gpu(const strata_placement *placement, const strata_error *why, strata_error *error)
{
    const char *asks = placement->device       ? "placement.device"
                       : placement->vram_bytes ? "placement.vram_bytes"
                       : placement->profile    ? "placement.profile"
                                               : "placement.layers";
    char hint[sizeof error->hint];
    if (placement->device) snprintf(hint, sizeof hint, "%.180s; %s cpu uses no GPU", why->hint, asks);
    else snprintf(hint, sizeof hint, "%.180s; without %s the model runs on the CPU", why->hint, asks);
    return st_error_set(error, why->status, why->hint[0] ? hint : hint + 2,
                        "%s asks for a GPU, and none can be used: %s", asks, why->message);
}

/* Finds the GPU where one is named, asked for, or not ruled out. */
static strata_status find_gpu(const strata_placement *placement, const st_profile_set *set, st_placement_use use,
                              bool time_operations, st_placement *out, strata_error *error)
{
    bool asked = out->device_count > 1 || asks_for_layers(placement);
    st_gpu_options options = {.cap_bytes = placement->vram_bytes, .time_operations = time_operations};
    strata_error why;
    if (placement->device ? !out->backend->plugin : placement->layers == 0 && !asked) return STRATA_OK;
    const st_backend_row *row = placement->device ? st_backend_find(placement->device, &options.index)
                                                  : st_backend_default_gpu();
    strata_status status = st_gpu_open(row, &options, &out->gpu, &out->devices[ST_CARD], &why);
    if (status == STRATA_OK) {
        out->backend = row;
        out->device_count = 2;
        take_profile(placement, set, &out->devices[ST_CARD]);
        return STRATA_OK;
    }
    if (placement->device || (use == ST_PLACEMENT_RUN && asked)) return refuse_gpu(placement, &why, error);
    if (use == ST_PLACEMENT_RUN) note_absence(&why);
    return STRATA_OK;
}

static strata_status place_devices(const strata_placement *placement, st_placement_use use, uint32_t threads,
                                   bool time_operations, st_placement *out, strata_error *error)
{
    st_profile_set set = {0};
    strata_status status = STRATA_OK;
    uint32_t index;
    if (placement->profile) status = st_profile_set_of(placement->profile, &set, error);
    bool card_given = set.has_card || placement->vram_bytes > 0;
    const st_backend_row *row = st_backend_find(placement->device, &index);
    if (status == STRATA_OK) status = check_device(placement, row, card_given, error);
    if (status != STRATA_OK) return status;
    out->backend = row;
    out->gpu = (st_load_device){0};
    out->device_count = card_given && (st_backend_has_gpu(row) || !placement->device) ? 2 : 1;
    out->devices[ST_HOST] = host_of(placement, &set, threads);
    out->devices[ST_CARD] = (st_profile){0};
    if (out->device_count == 2) out->devices[ST_CARD] = card_of(placement, &set);
    return find_gpu(placement, &set, use, time_operations, out, error);
}

strata_status st_placement_devices(const strata_placement *placement, st_placement_use use, uint32_t threads,
                                   st_placement *out, strata_error *error)
{
    return place_devices(placement ? placement : &defaults, use, threads, false, out, error);
}

void st_placement_close(st_placement *placement)
{
    if (placement->gpu.device) placement->gpu.backend->close(placement->gpu.device);
    placement->gpu = (st_load_device){0};
}

/* ---- the planner's options --------------------------------------------------------------------------------------- */

/* A word of the options and its value. */
typedef struct word_row {
    const char *word;
    int value;
} word_row;

static const word_row moe_words[] = {{"auto", ST_MOE_AUTO}, {"resident", ST_MOE_RESIDENT}, {"cache", ST_MOE_CACHE},
                                     {"cpu", ST_MOE_CPU}, {NULL, ST_MOE_AUTO}};

/* The row of a word; for NULL the last row, which is the default. */
static const word_row *find_word(const word_row *rows, const char *word)
{
    for (; rows->word; rows++)
        if (word && strcmp(rows->word, word) == 0) return rows;
    return word ? NULL : rows;
}

static strata_status set_words(const strata_engine_options *options, const strata_placement *placement,
                               st_plan_options *out, strata_error *error)
{
    const st_kv_type *kv = options->kv_type ? st_kv_type_find(options->kv_type) : NULL;
    const word_row *moe = find_word(moe_words, placement->moe);
    if (options->kv_type && !kv)
        return st_error_set(error, STRATA_USAGE, NULL, "options.kv_type: expected " ST_KV_TYPE_NAMES ", found %s",
                            options->kv_type);
    if (!moe)
        return st_error_set(error, STRATA_USAGE, NULL, "placement.moe: expected resident, cache or cpu, found %s",
                            placement->moe);
    out->kv_type = kv ? (int32_t)kv->type : -1;
    out->moe = (st_moe_mode)moe->value;
    return STRATA_OK;
}

strata_status st_placement_of(const strata_engine_options *options, st_placement_use use, uint32_t threads,
                              st_placement *out, strata_error *error)
{
    const strata_placement *placement = options->placement ? options->placement : &defaults;
    st_placement made = {.options = st_plan_options_default()};
    if (threads > ST_POOL_THREADS_MAX) /* the plan counts the scratch of each */
        return st_error_set(error, STRATA_USAGE, NULL, "options.threads: expected at most %d, found %" PRIu32,
                            ST_POOL_THREADS_MAX, threads);
    strata_status status = set_words(options, placement, &made.options, error);
    if (status == STRATA_OK) status = place_devices(placement, use, threads, options->profile, &made, error);
    if (status != STRATA_OK) return status;
    st_plan_options *o = &made.options;
    o->layers = placement->layers;
    o->context = options->context;
    o->batch = options->batch;
    o->out_rows = options->sessions > ST_SESSION_OUT_ROWS ? options->sessions : ST_SESSION_OUT_ROWS;
    o->conversations = options->sessions;
    o->pool_tokens = options->pool_tokens;
    if (options->restore_bytes == STRATA_RESTORE_OFF) o->restore_bytes = 0;
    else if (options->restore_bytes) o->restore_bytes = options->restore_bytes;
    if (options->kv_ram_bytes == STRATA_KV_RAM_OFF) o->tier_bytes = 0;
    else if (options->kv_ram_bytes) o->tier_bytes = options->kv_ram_bytes;
    o->workers[ST_HOST] = threads;
    o->workers[ST_CARD] = 1;
    o->nextn = options->nextn;
    o->watch = options->expert_stats || options->record_routing;
    o->expert_slots = placement->expert_slots;
    o->cpu_moe_layers = placement->cpu_moe_layers;
    o->cpu_ffn_layers = placement->cpu_ffn_layers;
    o->margin_bytes[ST_HOST] = placement->ram_margin_bytes;
    o->margin_bytes[ST_CARD] = placement->vram_margin_bytes;
    o->disk = placement->disk;
    *out = made;
    return STRATA_OK;
}
