/* A profile from a JSON file: {"card": {…}, "host": {…}}, where "card" is the GPU. Either may be absent.
 * docs/json.md lists the fields. */
#include <jansson.h>
#include <stdlib.h>
#include <strings.h>

#include "backend/profiles.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/error.h"
#include "base/file.h"

enum { FILE_BYTES_MAX = 1 << 20 };

#define SIZE_MAX_BYTES ((double)((uint64_t)1 << 62))

typedef enum field_kind {
    FIELD_SIZE, FIELD_POWER, FIELD_RATE, FIELD_NUMBER, FIELD_FLAG, FIELD_NAME, FIELD_OTHER
} field_kind;

enum { OF_CARD = 1 << ST_DEVICE_CARD, OF_HOST = 1 << ST_DEVICE_HOST, OF_BOTH = OF_CARD | OF_HOST };

typedef struct field_row {
    const char *key;
    unsigned devices;
    field_kind kind;
    size_t offset;    /* in st_profile: uint64_t for sizes, double for rates and numbers */
    double unit;      /* what one of them is */
    double low, high; /* in the file's unit */
    bool data_sheet;  /* counts ST_DATA_SHEET_SHARE unless it was measured */
} field_row;

#define AT(member) offsetof(st_profile, member)
static const field_row field_rows[] = {
    {"name", OF_BOTH, FIELD_NAME, AT(name), 0, 0, 0, false},
    {"like", OF_BOTH, FIELD_OTHER, 0, 0, 0, 0, false},
    {"source", OF_BOTH, FIELD_OTHER, 0, 0, 0, 0, false},
    {"type_share", OF_BOTH, FIELD_OTHER, 0, 0, 0, 0, false},
    {"vram", OF_CARD, FIELD_SIZE, AT(total_bytes), 1, 1, SIZE_MAX_BYTES, false},
    {"ram", OF_HOST, FIELD_SIZE, AT(total_bytes), 1, 1, SIZE_MAX_BYTES, false},
    {"free", OF_BOTH, FIELD_SIZE, AT(free_bytes), 1, 0, SIZE_MAX_BYTES, false},
    {"overhead", OF_CARD, FIELD_SIZE, AT(overhead_bytes), 1, 0, SIZE_MAX_BYTES, false},
    {"granularity", OF_CARD, FIELD_POWER, AT(granularity), 1, 1, 1 << 30, false},
    {"alignment", OF_BOTH, FIELD_OTHER, 0, 1, 1, 256, false},
    {"cores", OF_HOST, FIELD_OTHER, 0, 1, 1, 4096, false},
    {"memory_gb_per_s", OF_BOTH, FIELD_RATE, AT(memory_rate), 1e9, ST_FILE_RATE_MIN, ST_FILE_BYTES_RATE_MAX, true},
    {"host_read_gb_per_s", OF_HOST, FIELD_RATE, AT(memory_rate), 1e9, ST_FILE_RATE_MIN, ST_FILE_BYTES_RATE_MAX, false},
    {"ops_gop_per_s", OF_BOTH, FIELD_RATE, AT(op_rate), 1e9, ST_FILE_RATE_MIN, ST_FILE_OPS_RATE_MAX, true},
    {"expert_share", OF_BOTH, FIELD_NUMBER, AT(classes[ST_CLASS_EXPERTS].op_share), 1, 0.001, 1, false},
    {"operations", OF_BOTH, FIELD_OTHER, 0, 0, 0, 0, false},
    {"link_up_gb_per_s", OF_CARD, FIELD_RATE, AT(link_up), 1e9, ST_FILE_RATE_MIN, ST_FILE_BYTES_RATE_MAX, false},
    {"link_down_gb_per_s", OF_CARD, FIELD_RATE, AT(link_down), 1e9, ST_FILE_RATE_MIN, ST_FILE_BYTES_RATE_MAX, false},
    {"disk_gb_per_s", OF_HOST, FIELD_RATE, AT(disk_rate), 1e9, ST_FILE_RATE_MIN, ST_FILE_BYTES_RATE_MAX, false},
    {"handover_us", OF_CARD, FIELD_NUMBER, AT(handover_seconds), 1e-6, 0, ST_FILE_US_MAX, false},
    {"launch_us", OF_CARD, FIELD_NUMBER, AT(launch_seconds), 1e-6, 0, ST_FILE_US_MAX, false},
    {"round_trip_us", OF_CARD, FIELD_NUMBER, AT(round_trip_seconds), 1e-6, 0, ST_FILE_US_MAX, false},
    {"row_us", OF_HOST, FIELD_NUMBER, AT(row_seconds), 1e-6, 0, ST_FILE_US_MAX, false},
    {"display", OF_CARD, FIELD_FLAG, AT(display), 0, 0, 0, false},
};
enum { FIELDS = sizeof field_rows / sizeof *field_rows };

/* One of the file's devices, while it is read. */
typedef struct reader {
    const char *where, *device; /* of messages: the file; "card" or "host" */
    st_device_kind kind;
    bool measured;
    strata_error *error;
} reader;

static strata_status refuse(const reader *r, const char *key, const char *expected, const json_t *value)
{
    char *found = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    strata_status status = st_error_set(r->error, STRATA_INPUT, "docs/json.md lists the fields of a profile",
                                        "%s: %s.%s: expected %s, found %.60s", r->where, r->device, key, expected,
                                        found ? found : "something else");
    free(found);
    return status;
}

bool st_profile_parse_size(const char *text, uint64_t *out)
{
    static const double kib = 1 << 10, mib = 1 << 20, gib = 1 << 30, tib = 1099511627776.0;
    static const struct { const char *name; double bytes; } units[] = {
        {"", 1},    {"B", 1},   {"kB", 1e3}, {"MB", 1e6},  {"GB", 1e9},  {"TB", 1e12}, {"K", kib},
        {"M", mib}, {"G", gib}, {"T", tib},  {"KiB", kib}, {"MiB", mib}, {"GiB", gib}, {"TiB", tib}};
    size_t digits = strspn(text, "0123456789.");
    char *end = NULL;
    if (digits == 0) return false;
    double number = strtod(text, &end);
    if (end != text + digits) return false;
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].name) != 0) continue;
        double bytes = number * units[i].bytes;
        if (!(bytes <= SIZE_MAX_BYTES)) return false;
        /* A plain number may be longer than a double is exact. */
        *out = units[i].bytes == 1 && !memchr(text, '.', digits) ? strtoull(text, NULL, 10) : (uint64_t)bytes;
        return true;
    }
    return false;
}

static bool size_of(const json_t *value, uint64_t *out)
{
    if (json_is_string(value)) return st_profile_parse_size(json_string_value(value), out);
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static strata_status take_size(const reader *r, const field_row *row, const json_t *value, st_profile *p)
{
    uint64_t bytes = 0;
    bool good = size_of(value, &bytes) && (double)bytes >= row->low && (double)bytes <= row->high;
    if (row->kind == FIELD_POWER && !st_is_power_of_two(bytes)) good = false;
    if (!good)
        return refuse(r, row->key, row->kind == FIELD_POWER ? "a power of two of bytes, at most 1 GiB"
                                                            : "a number of bytes, or a text like \"12GiB\"", value);
    memcpy((char *)p + row->offset, &bytes, sizeof bytes);
    if (row->offset == AT(total_bytes)) p->free_bytes = bytes; /* "free" comes later in the table */
    return STRATA_OK;
}

static strata_status take_number(const reader *r, const field_row *row, const json_t *value, st_profile *p)
{
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= row->low && number <= row->high)) {
        char expected[64];
        snprintf(expected, sizeof expected, "a number from %g to %g", row->low, row->high);
        return refuse(r, row->key, expected, value);
    }
    number *= row->unit * (row->data_sheet && !r->measured ? ST_DATA_SHEET_SHARE : 1.0);
    memcpy((char *)p + row->offset, &number, sizeof number);
    return STRATA_OK;
}

static strata_status take_count(const reader *r, const field_row *row, const json_t *value, uint32_t *out)
{
    json_int_t count = json_integer_value(value);
    bool good = json_is_integer(value) && (double)count >= row->low && (double)count <= row->high;
    char expected[64];
    snprintf(expected, sizeof expected, "a whole number from %g to %g", row->low, row->high);
    if (!good) return refuse(r, row->key, expected, value);
    *out = (uint32_t)count;
    return STRATA_OK;
}

static strata_status take_name(const reader *r, const json_t *value, st_profile *p)
{
    if (!json_is_string(value) || json_string_length(value) == 0 || json_string_length(value) >= sizeof p->name)
        return refuse(r, "name", "a text of at most 63 bytes", value);
    memset(p->name, 0, sizeof p->name);
    memcpy(p->name, json_string_value(value), json_string_length(value));
    return STRATA_OK;
}

/* {"Q4_K": 0.9, …}: the share of the memory rate that is reached with weights of a type. */
static strata_status take_shares(const reader *r, json_t *value, st_profile *p)
{
    const char *name;
    json_t *share;
    if (!json_is_object(value)) return refuse(r, "type_share", "an object of tensor types", value);
    json_object_foreach(value, name, share) {
        uint32_t type;
        double number = json_number_value(share);
        if (!st_profile_type(name, &type)) return refuse(r, "type_share", "tensor types", value);
        if (!(number >= ST_FILE_SHARE_MIN && number <= 1.0)) return refuse(r, "type_share", "shares from 1e-06 to 1", value);
        p->type_share[type] = number;
    }
    return STRATA_OK;
}

static strata_status take_classes(const reader *r, json_t *value, st_profile *p)
{
    char expected[96];
    return st_classes_read(value, p->classes, expected, sizeof expected) ? STRATA_OK
                                                                         : refuse(r, "operations", expected, value);
}

static strata_status take_other(const reader *r, const field_row *row, json_t *value, st_profile *p)
{
    if (strcmp(row->key, "alignment") == 0) {
        strata_status status = take_count(r, row, value, &p->alignment);
        if (status != STRATA_OK || st_is_power_of_two(p->alignment)) return status;
        return refuse(r, row->key, "a power of two", value);
    }
    if (strcmp(row->key, "cores") == 0) return take_count(r, row, value, &p->cores);
    if (strcmp(row->key, "type_share") == 0) return take_shares(r, value, p);
    if (strcmp(row->key, "operations") == 0) return take_classes(r, value, p);
    return STRATA_OK; /* "like" and "source" were read before all others */
}

static strata_status take_field(const reader *r, const field_row *row, json_t *value, st_profile *p)
{
    switch (row->kind) {
    case FIELD_SIZE:
    case FIELD_POWER: return take_size(r, row, value, p);
    case FIELD_RATE:
    case FIELD_NUMBER: return take_number(r, row, value, p);
    case FIELD_NAME: return take_name(r, value, p);
    case FIELD_FLAG:
        if (!json_is_boolean(value)) return refuse(r, row->key, "true or false", value);
        p->display = json_is_true(value);
        return STRATA_OK;
    default: return take_other(r, row, value, p);
    }
}

static strata_status check_keys(const reader *r, json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (i < FIELDS && (strcmp(field_rows[i].key, key) != 0 || !(field_rows[i].devices >> r->kind & 1u))) i++;
        if (i == FIELDS)
            return st_error_set(r->error, STRATA_INPUT, "docs/json.md lists the fields of a profile",
                                "%s: %s.%s: a %s has no such field", r->where, r->device, key,
                                r->kind == ST_DEVICE_CARD ? "GPU" : "host");
    }
    return STRATA_OK;
}

/* Fills *p with the defaults of absent fields: the profile that "like" names, or a common one. */
static strata_status start_from(reader *r, json_t *object, st_profile *p)
{
    bool card = r->kind == ST_DEVICE_CARD;
    json_t *like = json_object_get(object, "like"), *source = json_object_get(object, "source");
    const char *name = like ? json_string_value(like) : card ? "rtx-4070-ti" : "ddr4-3200";
    if (!name || !st_profile_find(st_str_from(name), p) || p->kind != r->kind)
        return refuse(r, "like", card ? "the name of a GPU's profile" : "the name of a host's profile", like);
    if (card && !like && !json_object_get(object, "vram"))
        return st_error_set(r->error, STRATA_INPUT, NULL, "%s: card.vram: expected the GPU's memory, found none",
                            r->where);
    const char *word = source ? json_string_value(source) : "data sheet";
    r->measured = word && strcmp(word, "measured") == 0;
    if (!r->measured && !(word && strcmp(word, "data sheet") == 0))
        return refuse(r, "source", "\"data sheet\" or \"measured\"", source);
    p->estimate = !r->measured;
    p->rates = ST_RATES_FILE;
    if (!like) memcpy(p->name, r->device, strlen(r->device) + 1);
    return STRATA_OK;
}

static strata_status read_device(reader *r, json_t *object, st_profile *out)
{
    st_profile p;
    if (!json_is_object(object))
        return st_error_set(r->error, STRATA_INPUT, NULL, "%s: %s: expected an object", r->where, r->device);
    strata_status status = check_keys(r, object);
    if (status == STRATA_OK) status = start_from(r, object, &p);
    for (size_t i = 0; i < FIELDS && status == STRATA_OK; i++) {
        json_t *value = json_object_get(object, field_rows[i].key);
        if (value) status = take_field(r, &field_rows[i], value, &p);
    }
    if (status == STRATA_OK && p.free_bytes > p.total_bytes && p.total_bytes > 0)
        status = refuse(r, "free", "at most the total memory", json_object_get(object, "free"));
    if (status == STRATA_OK) *out = p;
    return status;
}

static strata_status read_root(const char *where, json_t *root, st_profile_set *out, strata_error *error)
{
    st_profile_set set = {0};
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        bool card = strcmp(key, "card") == 0;
        reader r = {.where = where, .device = key, .kind = card ? ST_DEVICE_CARD : ST_DEVICE_HOST, .error = error};
        if (!card && strcmp(key, "host") != 0)
            return st_error_set(error, STRATA_INPUT, "docs/json.md lists the fields of a profile",
                                "%s: %s: expected only \"card\" (the GPU) and \"host\"", where, key);
        strata_status status = read_device(&r, value, card ? &set.card : &set.host);
        if (status != STRATA_OK) return status;
        if (card) set.has_card = true;
        else set.has_host = true;
    }
    if (!set.has_card && !set.has_host)
        return st_error_set(error, STRATA_INPUT, NULL, "%s: expected an object with \"card\" (the GPU) or \"host\"",
                            where);
    *out = set;
    return STRATA_OK;
}

strata_status st_profile_file_parse(const char *where, const char *text, size_t length, st_profile_set *out,
                                    strata_error *error)
{
    json_error_t problem;
    json_t *root = json_loadb(length ? text : "", length, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        return st_error_set(error, STRATA_INPUT, NULL, "%s: line %d: expected a profile as JSON: %s", where,
                            problem.line, problem.text);
    strata_status status = read_root(where, root, out, error);
    json_decref(root);
    return status;
}

strata_status st_profile_file_read(const char *path, st_profile_set *out, strata_error *error)
{
    st_buf text = {0};
    strata_status status = st_file_read(path, FILE_BYTES_MAX, &text, error);
    if (status == STRATA_OK) status = st_profile_file_parse(path, text.data, text.length, out, error);
    else if (status == STRATA_FILE || status == STRATA_LIMIT) {
        status = STRATA_INPUT; /* STRATA_FILE is the model's */
        if (error) error->status = status;
    }
    st_buf_free(&text);
    return status;
}
