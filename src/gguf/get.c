/* Access to the directory. Lengths were checked when the file was opened. */
#include <inttypes.h>

#include "gguf/directory.h"

typedef struct type_row {
    const char *name;
    const char *array_name;
    size_t bytes; /* 0: variable length */
    char kind;    /* i integer, s signed integer, f float, b bool */
} type_row;

static const type_row type_rows[ST_GGUF_TYPE_COUNT] = {
    [ST_GGUF_U8] = {"u8", "an array of u8", 1, 'i'},
    [ST_GGUF_I8] = {"i8", "an array of i8", 1, 's'},
    [ST_GGUF_U16] = {"u16", "an array of u16", 2, 'i'},
    [ST_GGUF_I16] = {"i16", "an array of i16", 2, 's'},
    [ST_GGUF_U32] = {"u32", "an array of u32", 4, 'i'},
    [ST_GGUF_I32] = {"i32", "an array of i32", 4, 's'},
    [ST_GGUF_F32] = {"f32", "an array of f32", 4, 'f'},
    [ST_GGUF_BOOL] = {"bool", "an array of bools", 1, 'b'},
    [ST_GGUF_STRING] = {"string", "an array of strings", 0, 0},
    [ST_GGUF_ARRAY] = {"array", "an array of arrays", 0, 0},
    [ST_GGUF_U64] = {"u64", "an array of u64", 8, 'i'},
    [ST_GGUF_I64] = {"i64", "an array of i64", 8, 's'},
    [ST_GGUF_F64] = {"f64", "an array of f64", 8, 'f'},
};

const char *st_gguf_type_name(st_gguf_type type)
{
    return (size_t)type < ST_GGUF_TYPE_COUNT ? type_rows[type].name : "unknown";
}

size_t st_gguf_type_bytes(st_gguf_type type)
{
    return type_rows[type].bytes;
}

static bool is_integer(st_gguf_type type)
{
    return type_rows[type].kind == 'i' || type_rows[type].kind == 's';
}

bool st_gguf_type_is_float(st_gguf_type type)
{
    return type_rows[type].kind == 'f';
}

const char *st_gguf_key_kind(const st_gguf_key *key)
{
    return key->type == ST_GGUF_ARRAY ? type_rows[key->item_type].array_name : type_rows[key->type].name;
}

bool st_gguf_load_integer(st_gguf_type type, const unsigned char *data, uint64_t *value)
{
    const type_row *row = &type_rows[type];
    uint64_t bits = 0;
    memcpy(&bits, data, row->bytes); /* little endian: the low bytes */
    bool negative = row->kind == 's' && bits >> (8 * row->bytes - 1) & 1;
    if (negative && row->bytes < 8) bits |= UINT64_MAX << 8 * row->bytes;
    *value = bits;
    return !negative;
}

static double load_float(st_gguf_type type, const unsigned char *data)
{
    float single;
    double value;
    if (type == ST_GGUF_F64) {
        memcpy(&value, data, sizeof value);
        return value;
    }
    memcpy(&single, data, sizeof single);
    return (double)single;
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

size_t st_gguf_key_count(const st_gguf *gguf)
{
    return gguf->files[0].key_count;
}

const st_gguf_key *st_gguf_key_at(const st_gguf *gguf, size_t index)
{
    return index < gguf->files[0].key_count ? &gguf->files[0].keys[index] : NULL;
}

const st_gguf_key *st_gguf_key_find(const st_gguf *gguf, const char *name)
{
    return st_gguf_file_key(&gguf->files[0], st_str_from(name));
}

/* The error of a getter for a key of another type. */
static strata_status fail_kind(const st_gguf *gguf, const st_gguf_key *key, const char *expected, strata_error *error)
{
    st_gguf_place place = {.file = &gguf->files[0], .kind = "key", .name = key->name};
    return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected %s, found %s", expected, st_gguf_key_kind(key));
}

/* The key, with `found` set; NULL if it is absent. */
static const st_gguf_key *look_up(const st_gguf *gguf, const char *name, bool *found)
{
    const st_gguf_key *key = st_gguf_key_find(gguf, name);
    if (found) *found = key != NULL;
    return key;
}

strata_status st_gguf_get_u64(const st_gguf *gguf, const char *name, uint64_t *out, bool *found, strata_error *error)
{
    const st_gguf_key *key = look_up(gguf, name, found);
    if (!key) return STRATA_OK;
    uint64_t value;
    if (!is_integer(key->type)) return fail_kind(gguf, key, "an integer", error);
    if (!st_gguf_load_integer(key->type, key->data, &value)) {
        st_gguf_place place = {.file = &gguf->files[0], .kind = "key", .name = key->name};
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected an integer of 0 or more, found %" PRId64,
                            (int64_t)value);
    }
    *out = value;
    return STRATA_OK;
}

strata_status st_gguf_get_f64(const st_gguf *gguf, const char *name, double *out, bool *found, strata_error *error)
{
    const st_gguf_key *key = look_up(gguf, name, found);
    if (!key) return STRATA_OK;
    if (!st_gguf_type_is_float(key->type)) return fail_kind(gguf, key, "a float", error);
    *out = load_float(key->type, key->data);
    return STRATA_OK;
}

strata_status st_gguf_get_bool(const st_gguf *gguf, const char *name, bool *out, bool *found, strata_error *error)
{
    const st_gguf_key *key = look_up(gguf, name, found);
    if (!key) return STRATA_OK;
    if (key->type != ST_GGUF_BOOL) return fail_kind(gguf, key, "a bool", error);
    *out = key->data[0] != 0;
    return STRATA_OK;
}

strata_status st_gguf_get_str(const st_gguf *gguf, const char *name, st_str *out, bool *found, strata_error *error)
{
    const st_gguf_key *key = look_up(gguf, name, found);
    if (!key) return STRATA_OK;
    if (key->type != ST_GGUF_STRING) return fail_kind(gguf, key, "a string", error);
    *out = (st_str){(const char *)key->data + 8, key->data_bytes - 8};
    return STRATA_OK;
}

strata_status st_gguf_get_array(const st_gguf *gguf, const char *name, st_gguf_type item_type, const st_gguf_key **out,
                                strata_error *error)
{
    const st_gguf_key *key = st_gguf_key_find(gguf, name);
    if (key) {
        bool right = item_type == ST_GGUF_I64   ? is_integer(key->item_type)
                     : item_type == ST_GGUF_F64 ? st_gguf_type_is_float(key->item_type)
                                                : key->item_type == item_type;
        const char *expected = item_type == ST_GGUF_I64   ? "an array of integers"
                               : item_type == ST_GGUF_F64 ? "an array of floats"
                                                          : type_rows[item_type].array_name;
        if (key->type != ST_GGUF_ARRAY || !right) return fail_kind(gguf, key, expected, error);
    }
    *out = key;
    return STRATA_OK;
}

/* ---- items of arrays -------------------------------------------------------------------------------------------- */

static const unsigned char *item_at(const st_gguf_key *array, uint64_t index)
{
    size_t bytes = type_rows[array->item_type].bytes;
    if (bytes == 0 || index >= array->count) return NULL;
    return array->data + index * bytes;
}

static int64_t clamp_to_i64(double value)
{
    if (value != value) return 0;
    if (value >= 9223372036854775808.0) return INT64_MAX;
    if (value < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)value;
}

int64_t st_gguf_item_i64(const st_gguf_key *array, uint64_t index)
{
    const unsigned char *data = item_at(array, index);
    if (!data) return 0;
    if (st_gguf_type_is_float(array->item_type)) return clamp_to_i64(load_float(array->item_type, data));
    uint64_t value;
    bool positive = st_gguf_load_integer(array->item_type, data, &value);
    return positive && value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

double st_gguf_item_f64(const st_gguf_key *array, uint64_t index)
{
    const unsigned char *data = item_at(array, index);
    if (!data) return 0.0;
    if (st_gguf_type_is_float(array->item_type)) return load_float(array->item_type, data);
    uint64_t value;
    return st_gguf_load_integer(array->item_type, data, &value) ? (double)value : (double)(int64_t)value;
}

bool st_gguf_next_str(const st_gguf_key *array, size_t *cursor, st_str *out)
{
    if (array->item_type != ST_GGUF_STRING || *cursor >= array->data_bytes) return false;
    st_gguf_reader reader = {.data = array->data, .size = array->data_bytes, .position = *cursor};
    uint64_t length;
    const unsigned char *bytes;
    if (!st_gguf_reader_u64(&reader, &length) || !st_gguf_reader_take(&reader, length, &bytes)) return false;
    *out = (st_str){(const char *)bytes, (size_t)length};
    *cursor = reader.position;
    return true;
}

/* ---- tensors and files ------------------------------------------------------------------------------------------- */

size_t st_gguf_tensor_count(const st_gguf *gguf)
{
    return gguf->tensor_count;
}

const st_gguf_tensor *st_gguf_tensor_at(const st_gguf *gguf, size_t index)
{
    return index < gguf->tensor_count ? &gguf->tensors[index] : NULL;
}

const st_gguf_tensor *st_gguf_tensor_find(const st_gguf *gguf, const char *name)
{
    const uint32_t *index = st_map_find(&gguf->tensor_map, st_str_from(name));
    return index ? &gguf->tensors[*index] : NULL;
}

const char *st_gguf_path(const st_gguf *gguf)
{
    return gguf->path;
}

uint32_t st_gguf_version(const st_gguf *gguf)
{
    return gguf->files[0].version;
}

uint32_t st_gguf_file_count(const st_gguf *gguf)
{
    return gguf->file_count;
}

uint64_t st_gguf_file_bytes(const st_gguf *gguf)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < gguf->file_count; i++) total += gguf->files[i].size;
    return total;
}

uint64_t st_gguf_tensor_bytes(const st_gguf *gguf)
{
    return gguf->tensor_bytes;
}
