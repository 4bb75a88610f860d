/* strata_devices: the devices of this machine, or of a placement, as JSON (docs/json.md). */
#include "devices.h"

#include "backend/profiles.h"
#include "base/alloc.h"
#include "base/cores.h"
#include "base/error.h"
#include "gpu.h"
#include "json.h"
#include "placement.h"

static bool set_number(json_t *object, const char *field, double value, double unit)
{
    return value <= 0.0 || json_object_set_new(object, field, json_real(value / unit)) == 0;
}

json_t *st_shares_json(const double type_share[ST_PROFILE_TYPES])
{
    json_t *shares = json_object();
    for (uint32_t type = 0; type < ST_PROFILE_TYPES; type++) {
        if (!(type_share[type] > 0.0) || !st_type_find(type)) continue;
        if (json_object_set_new(shares, st_type_find(type)->name, json_real(type_share[type])) == 0) continue;
        json_decref(shares);
        return NULL;
    }
    return shares;
}

/* Leaves out rates that the device does not have. NULL: no memory. */
static json_t *profile_json(const st_profile *p)
{
    bool card = p->kind == ST_DEVICE_CARD;
    json_t *o = json_pack("{s:s, s:s, s:b, s:I, s:I}", "name", p->name, "kind", card ? "card" : "host", "estimate",
                          p->estimate, "total_bytes", (json_int_t)p->total_bytes, "free_bytes",
                          (json_int_t)p->free_bytes);
    const struct {
        const char *field;
        double value, unit;
    } rows[] = {{"memory_gb_per_s", p->memory_rate, 1e9}, {"ops_gop_per_s", p->op_rate, 1e9},
                {"link_up_gb_per_s", p->link_up, 1e9},    {"link_down_gb_per_s", p->link_down, 1e9},
                {"disk_gb_per_s", p->disk_rate, 1e9},     {"handover_us", p->handover_seconds, 1e-6},
                {"launch_us", p->launch_seconds, 1e-6},   {"round_trip_us", p->round_trip_seconds, 1e-6},
                {"row_us", p->row_seconds, 1e-6},
                {"expert_share", p->classes[ST_CLASS_EXPERTS].op_share, 1}};
    bool whole = o && json_object_set_new(o, "rates", json_string(st_rates_name(p->rates))) == 0;
    if (whole && p->rates_of) whole = json_object_set_new(o, "rates_of", json_string(p->rates_of)) == 0;
    if (whole && p->rates_spread > 0.0) whole = json_object_set_new(o, "spread", json_real(p->rates_spread)) == 0;
    if (whole && p->no_backend) whole = json_object_set_new(o, "no_backend", json_true()) == 0;
    for (size_t i = 0; whole && i < sizeof rows / sizeof *rows; i++)
        whole = set_number(o, rows[i].field, rows[i].value, rows[i].unit);
    if (whole) whole = json_object_set_new(o, "operations", st_classes_json(p->classes)) == 0;
    if (whole && card)
        whole = json_object_set_new(o, "display", json_boolean(p->display)) == 0 &&
                json_object_set_new(o, "overhead_bytes", json_integer((json_int_t)p->overhead_bytes)) == 0 &&
                json_object_set_new(o, "granularity_bytes", json_integer((json_int_t)p->granularity)) == 0;
    else if (whole)
        whole = json_object_set_new(o, "cores", json_integer(p->cores)) == 0 &&
                json_object_set_new(o, "type_share", st_shares_json(p->type_share)) == 0;
    if (whole) return o;
    json_decref(o);
    return NULL;
}

/* The table of known devices; a host row for any amount of memory has no total. */
static json_t *profiles_json(void)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < st_profile_row_count(); i++) {
        st_profile profile = st_profile_row(i);
        json_t *row = profile_json(&profile);
        json_object_del(row, "free_bytes");
        json_object_del(row, "type_share");
        if (profile.total_bytes == 0) json_object_del(row, "total_bytes");
        if (json_array_append_new(rows, row) == 0) continue;
        json_decref(rows);
        return NULL;
    }
    return rows;
}

static json_t *devices_json(const st_placement *placement, const char *kept)
{
    json_t *cards = json_array(), *path = kept ? json_string(kept) : json_null();
    if (placement->device_count > 1 && json_array_append_new(cards, profile_json(&placement->devices[ST_CARD])) != 0) {
        json_decref(cards);
        cards = NULL;
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "host", profile_json(&placement->devices[ST_HOST]), "cards", cards,
                     "profiles", profiles_json(), "measurement", path);
}

static strata_status measure_here(const char *path, strata_error *error)
{
    st_measurement measurement;
    if (!path)
        return st_error_set(error, STRATA_RUNTIME, "set XDG_CACHE_HOME to a folder that can be written",
                            "no cache folder for the measurement: neither XDG_CACHE_HOME nor HOME is an absolute path");
    strata_status status = st_measurement_take(&measurement, error);
    return status == STRATA_OK ? st_measurement_save(path, &measurement, error) : status;
}

strata_status strata_devices(const strata_placement *placement, bool probe, char **json, strata_error *error)
{
    st_placement devices = {0};
    char *path = st_measurement_path();
    strata_status status = probe ? measure_here(path, error) : STRATA_OK;
    if (status == STRATA_OK)
        status = st_placement_devices(placement, ST_PLACEMENT_PLAN, st_cores_here(), &devices, error);
    if (status == STRATA_OK && probe && devices.gpu.device)
        status = st_gpu_measure(&devices.gpu, path, &devices.devices[ST_CARD], error);
    if (status == STRATA_OK) {
        /* The file may hold measurements of other machines only. */
        bool here = !devices.devices[ST_HOST].estimate && !(placement && placement->profile);
        json_t *root = devices_json(&devices, here ? path : NULL);
        status = st_json_give(root, JSON_REAL_PRECISION(6), "the list of devices", json, error);
    }
    st_placement_close(&devices);
    st_free(path);
    return status;
}
