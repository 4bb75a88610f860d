/* strata_replay: replays a routing trace against cache policies and the optimum; the result is JSON. */
#include <inttypes.h>
#include "json.h"
#include <string.h>

#include "base/alloc.h"
#include "base/cores.h"
#include "base/error.h"
#include "moe/cache.h"
#include "moe/replay.h"
#include "placement.h"

enum { LIST_MAX = 64, NAME_SIZE = 32 };

typedef struct job {
    st_trace *trace;
    st_placement devices;
    st_replay_options base;
    uint32_t slots[LIST_MAX];
    size_t slot_count;
    char policies[LIST_MAX][NAME_SIZE];
    size_t policy_count;
} job;

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Copies the part up to the next comma, "" if it is too long, and advances *list; NULL at the end. */
static void next_part(const char **list, char out[NAME_SIZE])
{
    size_t length = strcspn(*list, ",");
    out[0] = '\0';
    if (length < NAME_SIZE) {
        memcpy(out, *list, length);
        out[length] = '\0';
    }
    *list += length;
    if (**list) (*list)++;
    else *list = NULL;
}

static bool parse_slots(const char *text, uint32_t maximum, uint32_t *out)
{
    uint64_t value = 0;
    size_t length = strlen(text);
    if (length == 0 || length > 9) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    if (value == 0 || value > maximum) return false;
    *out = (uint32_t)value;
    return true;
}

static strata_status refuse_slots(uint32_t experts, const char *list, strata_error *error)
{
    return st_error_set(error, STRATA_USAGE, NULL,
                        "options.slots: expected up to %d numbers from 1 to %" PRIu32 ", found %.64s", LIST_MAX,
                        experts, list);
}

static strata_status set_slots(job *j, const char *list, strata_error *error)
{
    static const uint32_t sixteenths[] = {1, 2, 4, 6, 8, 12}; /* of the experts: 8, 16, 32, 48, 64 and 96 of 128 */
    uint32_t experts = j->trace->shape.experts;
    for (size_t i = 0; !list && i < sizeof sixteenths / sizeof *sixteenths; i++) {
        uint32_t slots = experts * sixteenths[i] / 16;
        if (slots && (!j->slot_count || slots > j->slots[j->slot_count - 1])) j->slots[j->slot_count++] = slots;
    }
    for (const char *rest = list; rest;) {
        char part[NAME_SIZE];
        next_part(&rest, part);
        if (j->slot_count == LIST_MAX || !parse_slots(part, experts, &j->slots[j->slot_count]))
            return refuse_slots(experts, list, error);
        j->slot_count++;
    }
    return STRATA_OK;
}

static bool is_policy(const char *name)
{
    for (size_t i = 0; i < st_cache_policy_count(); i++)
        if (strcmp(st_cache_policy_name(i), name) == 0) return true;
    return strcmp(name, ST_REPLAY_OPTIMUM) == 0;
}

static strata_status refuse_policy(const char *list, strata_error *error)
{
    char known[LIST_MAX * 4] = "";
    for (size_t i = 0; i < st_cache_policy_count(); i++) {
        strncat(known, st_cache_policy_name(i), sizeof known - strlen(known) - 1);
        strncat(known, ", ", sizeof known - strlen(known) - 1);
    }
    return st_error_set(error, STRATA_USAGE, NULL, "options.policies: expected %s%s, found %.64s", known,
                        ST_REPLAY_OPTIMUM, list);
}

static strata_status set_policies(job *j, const char *list, strata_error *error)
{
    for (size_t i = 0; !list && i < st_cache_policy_count(); i++)
        strncpy(j->policies[j->policy_count++], st_cache_policy_name(i), NAME_SIZE - 1);
    if (!list) strncpy(j->policies[j->policy_count++], ST_REPLAY_OPTIMUM, NAME_SIZE - 1);
    for (const char *rest = list; rest;) {
        char part[NAME_SIZE];
        next_part(&rest, part);
        if (j->policy_count == LIST_MAX || !is_policy(part)) return refuse_policy(list, error);
        memcpy(j->policies[j->policy_count++], part, NAME_SIZE);
    }
    return STRATA_OK;
}

/* The GPU is the profile's, or the default one, never this machine's; the size of its memory does not matter. */
static strata_status set_devices(job *j, const char *profile, strata_error *error)
{
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    placement.device = "sim";
    placement.profile = profile;
    placement.vram_bytes = (uint64_t)12 << 30;
    strata_status status = st_placement_devices(&placement, ST_PLACEMENT_PLAN, st_cores_here(), &j->devices, error);
    if (status != STRATA_OK) return status;
    const st_profile *host = &j->devices.devices[ST_HOST], *card = &j->devices.devices[ST_CARD];
    double handover = card->round_trip_seconds > 0.0 ? card->round_trip_seconds : card->handover_seconds;
    j->base.rates = (st_replay_rates){card->memory_rate, host->memory_rate, handover};
    return STRATA_OK;
}

static strata_status set_numbers(job *j, const strata_replay_options *options, strata_error *error)
{
    if (options->admission > 2 || !(options->budget >= 0.0) || !(options->upload_cost >= 0.0))
        return st_error_set(error, STRATA_USAGE, NULL,
                            "replay: expected admission on touch 1 or 2, a budget and a cost, found %" PRIu32 ", %g "
                            "and %g",
                            options->admission, options->budget, options->upload_cost);
    j->base.admission = options->admission;
    j->base.budget = options->budget > 0.0 ? options->budget : -1.0;
    j->base.upload_cost = options->upload_cost;
    return STRATA_OK;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static double tokens_per_second(const st_trace *trace, const st_replay_result *result)
{
    return result->seconds > 0.0 ? (double)trace->decode_tokens / result->seconds : 0.0;
}

static strata_status add_row(const job *j, const char *policy, uint32_t slots, json_t *rows, strata_error *error)
{
    st_replay_options options = j->base;
    st_replay_result result;
    options.policy = policy;
    options.slots = slots;
    strata_status status = st_replay(j->trace, &options, &result, error);
    if (status != STRATA_OK) return status;
    double asked = (double)(result.hits + result.misses), events = (double)result.events;
    json_t *row = json_pack("{s:s, s:b, s:I, s:f, s:f, s:f}", "policy", policy, "default",
                            strcmp(policy, st_cache_policy_name(0)) == 0, "slots", (json_int_t)slots, "hit_rate",
                            asked > 0.0 ? (double)result.hits / asked : 0.0, "uploads",
                            events > 0.0 ? (double)result.uploads / events : 0.0, "decode_tps",
                            tokens_per_second(j->trace, &result));
    if (json_array_append_new(rows, row) != 0) return st_error_memory(error, 1 << 10, "the replay as JSON");
    return STRATA_OK;
}

static strata_status replay_all(const job *j, json_t *rows, double *cpu_tps, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (size_t p = 0; status == STRATA_OK && p < j->policy_count; p++)
        for (size_t s = 0; status == STRATA_OK && s < j->slot_count; s++)
            status = add_row(j, j->policies[p], j->slots[s], rows, error);
    st_replay_options none = j->base;
    st_replay_result result = {0};
    if (status == STRATA_OK) status = st_replay(j->trace, &none, &result, error);
    if (status == STRATA_OK) *cpu_tps = tokens_per_second(j->trace, &result);
    return status;
}

static json_t *device_json(const st_profile *profile)
{
    return json_pack("{s:s, s:f}", "name", profile->name, "memory_gb_per_s", profile->memory_rate / 1e9);
}

static strata_status write_json(const job *j, json_t *rows, double cpu_tps, char **out, strata_error *error)
{
    const st_trace_shape *shape = &j->trace->shape;
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:f, s:O}", "model", shape->model,
                             "architecture", shape->arch, "layers", (json_int_t)shape->layers, "experts",
                             (json_int_t)shape->experts, "experts_used", (json_int_t)shape->used, "events",
                             (json_int_t)j->trace->event_count, "decode_tokens",
                             (json_int_t)j->trace->decode_tokens, "card",
                             device_json(&j->devices.devices[ST_CARD]), "host",
                             device_json(&j->devices.devices[ST_HOST]), "cpu_tps", cpu_tps, "rows", rows);
    return st_json_give(root, JSON_REAL_PRECISION(8), "the replay as JSON", out, error);
}

strata_status strata_replay(const char *trace_path, const strata_replay_options *options, char **json,
                            strata_error *error)
{
    static const strata_replay_options defaults = {0};
    json_t *rows = json_array();
    job *j = st_alloc_zero(1, sizeof *j);
    double cpu_tps = 0.0;
    strata_status status = rows && j ? STRATA_OK : st_error_memory(error, sizeof *j, "the replay");
    if (!options) options = &defaults;
    if (status == STRATA_OK) status = st_trace_read(trace_path, &j->trace, error);
    if (status == STRATA_OK) status = set_numbers(j, options, error);
    if (status == STRATA_OK) status = set_slots(j, options->slots, error);
    if (status == STRATA_OK) status = set_policies(j, options->policies, error);
    if (status == STRATA_OK) status = set_devices(j, options->profile, error);
    if (status == STRATA_OK) status = replay_all(j, rows, &cpu_tps, error);
    if (status == STRATA_OK) status = write_json(j, rows, cpu_tps, json, error);
    json_decref(rows);
    if (j) st_trace_free(j->trace);
    st_free(j);
    return status;
}
