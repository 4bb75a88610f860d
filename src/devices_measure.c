/* The measurement of a host: taken through the CPU backend, stored in a JSON file. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/profiles.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/file.h"
#include "base/fit.h"
#include "base/log.h"
#include "devices.h"

enum {
    FILE_BYTES_MAX = 1 << 20,
    MACHINES_MAX = 64,
    FORMAT = 5, /* of an entry: of what is measured. Entries of another one are measured again */
};

/* A type that reads less than this share of the memory's rate from the cache is limited by arithmetic. */
#define MEMORY_LIMITED 0.5

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static bool is_common(uint32_t type)
{
    return type == ST_TYPE_Q4_K || type == ST_TYPE_Q6_K || type == ST_TYPE_Q8_0;
}

/* Of a batch; ST_SUM_COUNT: it does not count. The most common types do, and of keys and values all but float32. */
static st_rate_sum sum_of(const st_op_measure *row, uint32_t type)
{
    switch (row->kind) {
    case ST_OP_MATMUL:
        if (!is_common(type)) return ST_SUM_COUNT;
        return row->rows > ST_MEASURE_SMALL_BATCH ? ST_SUM_MATRICES : ST_SUM_SMALL;
    case ST_OP_EXPERTS:
        if (!is_common(type)) return ST_SUM_COUNT;
        return row->rows > ST_MEASURE_SMALL_BATCH ? ST_SUM_EXPERTS : ST_SUM_FEW_EXPERTS;
    case ST_OP_ATTENTION: return type != ST_TYPE_F32 ? ST_SUM_ATTENTION : ST_SUM_COUNT;
    case ST_OP_DELTANET: return ST_SUM_RECURRENT;
    default: return ST_SUM_COUNT;
    }
}

/* Products of one row are limited by reading: a type's kernels reach a share of the memory's rate. These operations
 * ran with weights in the cache, so read_types measures again where the cache made them faster than memory. Batches
 * are limited by arithmetic: the rates are means. */
bool st_rate_sums_add(void *sums, const st_op_measure *row)
{
    st_rate_sums *s = sums;
    uint32_t type = ST_PROFILE_TYPES;
    if (!(row->seconds > 0.0)) return true;
    if (row->rows == 1 && row->kind == ST_OP_RMS_NORM) s->m->classes[ST_CLASS_ROWS].seconds = row->seconds;
    if (!st_profile_type(row->type, &type)) return true;
    if (row->rows == 1) {
        if (row->kind == ST_OP_MATMUL) s->m->type_share[type] = row->bytes / row->seconds / s->m->read_rate;
        return true;
    }
    st_rate_sum sum = sum_of(row, type);
    if (sum == ST_SUM_COUNT) return true;
    s->seconds_per_op[sum] += row->seconds / row->ops;
    s->count[sum]++;
    return true;
}

/* 0: none was timed. */
static double mean_of(const st_rate_sums *sums, st_rate_sum sum)
{
    return sums->count[sum] > 0 ? sums->seconds_per_op[sum] / sums->count[sum] : 0;
}

/* Unpacking weights takes the time of some rows: a line through both sizes, unless another process made the small one
 * take longer than the large one. */
static st_fit fit_of_batches(const st_rate_sums *sums, st_rate_sum of_small, st_rate_sum of_large)
{
    double small = mean_of(sums, of_small) * ST_MEASURE_SMALL_BATCH, large = mean_of(sums, of_large) * ST_MEASURE_BATCH;
    st_fit fit = st_fit_line((st_fit_point[]){{ST_MEASURE_SMALL_BATCH, small}, {ST_MEASURE_BATCH, large}}, 2);
    return fit.each > 0 ? fit : (st_fit){.each = large / ST_MEASURE_BATCH};
}

/* `each`: of a matrix. */
static void finish_experts(const st_rate_sums *sums, double each)
{
    st_class_rates *rates = &sums->m->classes[ST_CLASS_EXPERTS];
    st_fit fit = fit_of_batches(sums, ST_SUM_FEW_EXPERTS, ST_SUM_EXPERTS);
    if (!(fit.each > 0)) return;
    rates->op_share = fmin(1, each / fit.each);
    rates->fill = fit.fixed / fit.each / ST_MEASURE_ROWS_OF_EXPERT;
}

bool st_rate_sums_finish(const st_rate_sums *sums)
{
    static const struct { st_rate_sum sum; st_op_class op_class; } shares[] = {
        {ST_SUM_ATTENTION, ST_CLASS_ATTENTION}, {ST_SUM_ATTENTION, ST_CLASS_WIDE_ATTENTION}, {ST_SUM_RECURRENT, ST_CLASS_RECURRENT}};
    st_fit fit = fit_of_batches(sums, ST_SUM_SMALL, ST_SUM_MATRICES);
    if (!(fit.each > 0)) return false;
    sums->m->op_rate = 1 / fit.each;
    sums->m->classes[ST_CLASS_PRODUCT].fill = fit.fixed / fit.each;
    finish_experts(sums, fit.each);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        double mean = mean_of(sums, shares[i].sum);
        if (mean > 0) sums->m->classes[shares[i].op_class].op_share = fmin(100, fit.each / mean);
    }
    return true;
}

/* What a product of one row takes beside its bytes, and the shares with weights from memory. */
static strata_status read_types(const st_backend *backend, st_device *device, st_measurement *m, strata_error *error)
{
    double rates[ST_PROFILE_TYPES] = {0};
    st_fit_point points[2] = {{0}};
    for (uint32_t type = 0; type < ST_PROFILE_TYPES; type++)
        if (m->type_share[type] >= MEMORY_LIMITED) rates[type] = m->type_share[type] * m->read_rate;
    strata_status status = st_measure_products(backend, device, points, error);
    if (status != STRATA_OK) return status;
    double fixed = st_fit_line(points, 2).fixed;
    m->classes[ST_CLASS_PRODUCT].seconds = m->classes[ST_CLASS_PLAIN_PRODUCT].seconds = fixed;
    status = st_measure_reading(backend, device, fixed, rates, ST_PROFILE_TYPES, error);
    if (status != STRATA_OK) return status;
    for (uint32_t type = 0; type < ST_PROFILE_TYPES; type++)
        if (rates[type] > 0.0) m->type_share[type] = fmin(1.0, rates[type] / m->read_rate);
    return STRATA_OK;
}

/* What experts of one row take beside their bytes: the host gets few of a layer's experts at a time. */
static strata_status time_experts(const st_backend *backend, st_device *device, st_measurement *m, strata_error *error)
{
    st_class_rates *rates = &m->classes[ST_CLASS_EXPERTS];
    st_fit_point points[2] = {{0}};
    strata_status status = st_measure_experts(backend, device, points, error);
    st_fit fit = st_fit_line(points, status == STRATA_OK ? 2 : 0);
    double share = m->type_share[ST_TYPE_Q4_K] > 0 ? m->type_share[ST_TYPE_Q4_K] : 1;
    rates->seconds = fit.fixed;
    if (fit.each > 0) rates->memory_share = fmin(1.0, 1 / fit.each / (m->read_rate * share));
    return status;
}

strata_status st_rate_settle(st_rate_sample *sample, void *context, double *best, double *spread, strata_error *error)
{
    enum { WINDOW = 3, SAMPLES_MAX = 9 };
    double last[WINDOW] = {0}, low = 0.0, high = 0.0;
    for (int taken = 1; taken <= SAMPLES_MAX; taken++) {
        strata_status status = sample(context, &last[taken % WINDOW], error);
        if (status != STRATA_OK) return status;
        if (taken < WINDOW) continue;
        low = high = last[0];
        for (int i = 1; i < WINDOW; i++) {
            low = fmin(low, last[i]);
            high = fmax(high, last[i]);
        }
        if (high - low <= ST_SPREAD_MAX * high) break;
    }
    *best = high;
    *spread = high > 0.0 ? (high - low) / high : 0.0;
    return STRATA_OK;
}

typedef struct probing {
    const st_backend *backend;
    st_device *device;
    double int8_rate; /* the largest */
} probing;

static strata_status probe_once(void *context, double *rate, strata_error *error)
{
    probing *p = context;
    st_device_rates rates = {0};
    strata_status status = p->backend->probe(p->device, &rates, error);
    *rate = rates.read_bytes;
    p->int8_rate = fmax(p->int8_rate, rates.int8_ops);
    return status;
}

static strata_status measure_device(const st_backend *backend, st_device *device, st_measurement *m,
                                    strata_error *error)
{
    probing p = {.backend = backend, .device = device};
    st_rate_sums sums = {.m = m};
    strata_status status = st_rate_settle(probe_once, &p, &m->read_rate, &m->spread, error);
    if (status != STRATA_OK) return status;
    m->int8_rate = p.int8_rate;
    if (m->spread > ST_SPREAD_MAX)
        st_log(ST_LOG_WARN, "the machine is busy: its memory rate varied by %.0f %%, measured again and again; kept",
               100.0 * m->spread);
    status = st_measure_ops(backend, device, st_rate_sums_add, &sums, error);
    if (status != STRATA_OK) return status;
    if (!st_rate_sums_finish(&sums) || !(m->read_rate > 0.0))
        return st_error_set(error, STRATA_DEVICE, "free some memory and try again",
                            "%s: the measurement found no rates", m->cpu);
    status = read_types(backend, device, m, error);
    if (status == STRATA_OK) status = st_measure_short_attention(backend, device, &m->classes[ST_CLASS_ATTENTION].seconds, error);
    m->classes[ST_CLASS_WIDE_ATTENTION].seconds = m->classes[ST_CLASS_ATTENTION].seconds;
    return status == STRATA_OK ? time_experts(backend, device, m, error) : status;
}

strata_status st_measurement_take(st_measurement *out, strata_error *error)
{
    const st_backend *backend = st_backend_cpu();
    st_measurement m = {.cores = st_cores_here()};
    st_device *device = NULL;
    st_host_cpu_name("/proc/cpuinfo", m.cpu, sizeof m.cpu);
    strata_status status = backend->open(&(st_device_options){.threads = 0}, &device, error);
    if (status != STRATA_OK) return status;
    status = measure_device(backend, device, &m, error);
    backend->close(device);
    if (status == STRATA_OK) *out = m;
    return status;
}

/* ---- storing ----------------------------------------------------------------------------------------------------- */

char *st_measurement_path(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    st_buf path = {0};
    if (cache && cache[0] == '/') st_buf_printf(&path, "%s/strata/devices.json", cache);
    else if (home && home[0] == '/') st_buf_printf(&path, "%s/.cache/strata/devices.json", home);
    if (path.length > 0) return st_buf_take(&path, NULL);
    st_buf_free(&path);
    return NULL;
}

/* What is stored; an empty object if the file is missing or damaged. NULL: no memory. */
static json_t *load_root(const char *path)
{
    st_buf text = {0};
    json_t *root = NULL;
    if (st_file_read(path, FILE_BYTES_MAX, &text, NULL) == STRATA_OK)
        root = json_loadb(text.length ? text.data : "", text.length, 0, NULL);
    st_buf_free(&text);
    if (json_is_object(root)) return root;
    json_decref(root);
    return json_object();
}

/* A list of the file and the fields that name an entry of it. A GPU has no cores. */
typedef struct entry_name {
    const char *list, *field, *name;
    uint32_t cores;
} entry_name;

static entry_name name_of_host(const char *cpu, uint32_t cores)
{
    return (entry_name){"machines", "cpu", cpu, cores};
}

static entry_name name_of_gpu(const char *gpu)
{
    return (entry_name){"gpus", "gpu", gpu, 0};
}

static bool is_of(const json_t *entry, const entry_name *wanted)
{
    const char *version = json_string_value(json_object_get(entry, "strata"));
    const char *name = json_string_value(json_object_get(entry, wanted->field));
    return version && name && strcmp(version, STRATA_VERSION) == 0 && strcmp(name, wanted->name) == 0 &&
           json_integer_value(json_object_get(entry, "cores")) == (json_int_t)wanted->cores;
}

static bool is_current(const json_t *entry)
{
    return json_integer_value(json_object_get(entry, "format")) == FORMAT;
}

/* The first entry of that name and of this format, in `root`; NULL: none. */
static json_t *find_entry(const json_t *root, const entry_name *wanted)
{
    const json_t *list = json_object_get(root, wanted->list);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (is_of(json_array_get(list, i), wanted) && is_current(json_array_get(list, i)))
            return json_array_get(list, i);
    return NULL;
}

/* A number of the entry, times the unit. Negative: there is none in its range. */
static double number_of(const json_t *entry, const char *field, double low, double high, double unit)
{
    const json_t *found = json_object_get(entry, field);
    double number = json_number_value(found);
    return json_is_number(found) && number >= low && number <= high ? number * unit : -1;
}

static double bytes_rate_of(const json_t *entry, const char *field)
{
    return number_of(entry, field, ST_FILE_RATE_MIN, ST_FILE_BYTES_RATE_MAX, 1e9);
}

static double ops_rate_of(const json_t *entry, const char *field, double low)
{
    return number_of(entry, field, low, ST_FILE_OPS_RATE_MAX, 1e9);
}

static bool read_shares(const json_t *entry, double out[ST_PROFILE_TYPES])
{
    const char *name;
    json_t *share;
    json_object_foreach(json_object_get(entry, "type_share"), name, share) {
        uint32_t type;
        double number = json_number_value(share);
        if (!st_profile_type(name, &type)) continue;
        if (!(number >= ST_FILE_SHARE_MIN && number <= 1.0)) return false;
        out[type] = number;
    }
    return true;
}

static bool read_classes(const json_t *entry, st_class_rates out[ST_CLASS_COUNT])
{
    char wrong[96];
    return st_classes_read(json_object_get(entry, "operations"), out, wrong, sizeof wrong);
}

static bool read_entry(json_t *entry, const char *cpu, uint32_t cores, st_measurement *out)
{
    st_measurement m = {.cores = cores, .read_rate = bytes_rate_of(entry, "read_gb_per_s"),
                        .int8_rate = ops_rate_of(entry, "int8_gop_per_s", 0),
                        .op_rate = ops_rate_of(entry, "batch_gop_per_s", ST_FILE_RATE_MIN),
                        .spread = number_of(entry, "spread", 0, 1, 1)};
    snprintf(m.cpu, sizeof m.cpu, "%s", cpu);
    if (m.read_rate < 0 || m.int8_rate < 0 || m.op_rate < 0 || m.spread < 0) return false;
    if (!read_classes(entry, m.classes) || !read_shares(entry, m.type_share)) return false;
    *out = m;
    return true;
}

bool st_measurement_load(const char *path, const char *cpu, uint32_t cores, st_measurement *out)
{
    entry_name name = name_of_host(cpu, cores);
    json_t *root = load_root(path), *entry = find_entry(root, &name);
    bool found = entry && read_entry(entry, cpu, cores, out);
    json_decref(root);
    return found;
}

/* A round trip of 0: the GPU has no chains. */
bool st_gpu_rates_load(const char *path, const char *gpu, st_device_rates *out)
{
    json_t *root = load_root(path);
    entry_name name = name_of_gpu(gpu);
    const json_t *entry = find_entry(root, &name);
    st_device_rates rates = {.read_bytes = bytes_rate_of(entry, "read_gb_per_s"),
                             .batch_ops = ops_rate_of(entry, "batch_gop_per_s", ST_FILE_RATE_MIN),
                             .link_up = bytes_rate_of(entry, "link_up_gb_per_s"),
                             .link_down = bytes_rate_of(entry, "link_down_gb_per_s"),
                             .handover_seconds = number_of(entry, "handover_us", 0, ST_FILE_US_MAX, 1e-6),
                             .round_trip_seconds = number_of(entry, "round_trip_us", 0, ST_FILE_US_MAX, 1e-6)};
    bool whole = read_shares(entry, rates.type_share) && read_classes(entry, rates.classes) && rates.read_bytes > 0.0 &&
                 rates.batch_ops > 0.0 && rates.link_up > 0.0 && rates.link_down > 0.0 && rates.handover_seconds > 0.0 &&
                 rates.round_trip_seconds >= 0.0;
    json_decref(root);
    if (whole) *out = rates;
    return whole;
}

static json_t *write_entry(const st_measurement *m)
{
    return json_pack("{s:s, s:i, s:s, s:i, s:f, s:f, s:f, s:f, s:o, s:o}", "strata", STRATA_VERSION, "format", FORMAT,
                     "cpu", m->cpu, "cores", (int)m->cores, "read_gb_per_s", m->read_rate / 1e9, "spread", m->spread,
                     "int8_gop_per_s", m->int8_rate / 1e9, "batch_gop_per_s", m->op_rate / 1e9, "operations",
                     st_classes_json(m->classes), "type_share", st_shares_json(m->type_share));
}

/* Puts the entry first in its list and drops the oldest beyond MACHINES_MAX. Takes `entry` over. */
static bool put_entry(json_t *root, const entry_name *name, json_t *entry)
{
    json_t *list = json_object_get(root, name->list);
    if (!json_is_array(list)) {
        json_object_set_new(root, name->list, json_array());
        list = json_object_get(root, name->list);
    }
    for (size_t i = json_array_size(list); i-- > 0;)
        if (i >= MACHINES_MAX - 1 || is_of(json_array_get(list, i), name)) json_array_remove(list, i);
    return json_array_insert_new(list, 0, entry) == 0;
}

/* Creates the folders of a path; its last part is a file. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) return false;
    }
    return true;
}

/* Writes the file atomically: a temporary file in the same folder is renamed. */
static bool replace_file(const char *path, const json_t *root)
{
    st_buf fresh = {0};
    st_buf_printf(&fresh, "%s.XXXXXX", path);
    if (!st_buf_append_char(&fresh, '\0') || !make_folders(fresh.data)) {
        st_buf_free(&fresh);
        return false;
    }
    int file = mkostemp(fresh.data, O_CLOEXEC);
    bool whole = file >= 0 && json_dumpfd(root, file, JSON_INDENT(2)) == 0 && fsync(file) == 0;
    if (file >= 0 && close(file) != 0) whole = false;
    if (whole) whole = rename(fresh.data, path) == 0;
    if (file >= 0 && !whole) unlink(fresh.data);
    st_buf_free(&fresh);
    return whole;
}

/* Stores the entry, which it takes over, beside what the file has. */
static strata_status store(const char *path, const entry_name *name, json_t *entry, strata_error *error)
{
    json_t *root = load_root(path);
    if (!put_entry(root, name, entry)) {
        json_decref(root);
        return st_error_memory(error, FILE_BYTES_MAX, path);
    }
    errno = 0;
    bool kept = replace_file(path, root);
    int cause = errno;
    json_decref(root);
    if (kept) return STRATA_OK;
    return st_error_set(error, STRATA_RUNTIME, "set XDG_CACHE_HOME to a folder that can be written",
                        "%s: cannot write the measurement: %s", path, cause ? strerror(cause) : "no memory");
}

strata_status st_measurement_save(const char *path, const st_measurement *measurement, strata_error *error)
{
    entry_name name = name_of_host(measurement->cpu, measurement->cores);
    return store(path, &name, write_entry(measurement), error);
}

strata_status st_gpu_rates_save(const char *path, const char *gpu, const st_device_rates *rates, strata_error *error)
{
    entry_name name = name_of_gpu(gpu);
    json_t *entry = json_pack("{s:s, s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "strata", STRATA_VERSION,
                              "format", FORMAT, "gpu", gpu, "read_gb_per_s", rates->read_bytes / 1e9,
                              "batch_gop_per_s", rates->batch_ops / 1e9,
                              "link_up_gb_per_s", rates->link_up / 1e9, "link_down_gb_per_s", rates->link_down / 1e9,
                              "handover_us", rates->handover_seconds * 1e6,
                              "round_trip_us", rates->round_trip_seconds * 1e6,
                              "operations", st_classes_json(rates->classes), "type_share",
                              st_shares_json(rates->type_share));
    return store(path, &name, entry, error);
}
