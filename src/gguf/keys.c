/* The keys of a file: names, types and the places of their values. Every value is checked here, so the getters need not
 * check lengths. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "gguf/directory.h"
#include "gguf/limits.h"

static strata_status check_bools(const st_gguf_place *place, const unsigned char *bytes, uint64_t count,
                                 strata_error *error)
{
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] > 1)
            return st_gguf_fail(place, STRATA_FORMAT, NULL, error, "expected a bool of 0 or 1, found %d", bytes[i]);
    return STRATA_OK;
}

/* `count` numbers or bools of `type`. */
static strata_status skip_scalars(st_gguf_reader *reader, const st_gguf_place *place, st_gguf_type type, uint64_t count,
                                  strata_error *error)
{
    size_t bytes;
    const unsigned char *start;
    size_t each = st_gguf_type_bytes(type);
    if (count > st_gguf_reader_left(reader) / each || !st_mul_size((size_t)count, each, &bytes) ||
        !st_gguf_reader_take(reader, bytes, &start))
        return st_gguf_fail(place, STRATA_FORMAT, "the file is incomplete or damaged: download or copy it again", error,
                            "expected %" PRIu64 " × %zu bytes of value, found %zu before the end of the file", count,
                            each, st_gguf_reader_left(reader));
    return type == ST_GGUF_BOOL ? check_bools(place, start, count, error) : STRATA_OK;
}

static strata_status skip_string(st_gguf_reader *reader, const st_gguf_place *place, strata_error *error)
{
    uint64_t length;
    const unsigned char *bytes;
    if (!st_gguf_reader_u64(reader, &length))
        return st_gguf_fail_short(place, reader, 8, "a string's length", error);
    if (length > ST_GGUF_STRING_BYTES_MAX && length <= st_gguf_reader_left(reader))
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error,
                            "expected a string of at most %d bytes, found one of %" PRIu64, ST_GGUF_STRING_BYTES_MAX,
                            length);
    if (!st_gguf_reader_take(reader, length, &bytes))
        return st_gguf_fail_short(place, reader, length, "a string", error);
    return STRATA_OK;
}

static strata_status skip_array(st_gguf_reader *reader, const st_gguf_place *place, const st_gguf_key *key,
                                strata_error *error)
{
    if (key->item_type != ST_GGUF_STRING) return skip_scalars(reader, place, key->item_type, key->count, error);
    if (key->count > st_gguf_reader_left(reader) / 8)
        return st_gguf_fail(place, STRATA_FORMAT, "the file is incomplete or damaged: download or copy it again", error,
                            "expected an array of at most %zu strings in the bytes that are left, found %" PRIu64,
                            st_gguf_reader_left(reader) / 8, key->count);
    for (uint64_t i = 0; i < key->count; i++) {
        strata_status status = skip_string(reader, place, error);
        if (status != STRATA_OK) return status;
    }
    return STRATA_OK;
}

static strata_status read_type(st_gguf_reader *reader, const st_gguf_place *place, const char *what, st_gguf_type *out,
                               strata_error *error)
{
    uint32_t type;
    if (!st_gguf_reader_u32(reader, &type)) return st_gguf_fail_short(place, reader, 4, what, error);
    if (type >= ST_GGUF_TYPE_COUNT)
        return st_gguf_fail(place, STRATA_UNSUPPORTED, "the file is damaged, or newer than this strata", error,
                            "%s: expected a value type below %d, found %" PRIu32, what, ST_GGUF_TYPE_COUNT, type);
    *out = (st_gguf_type)type;
    return STRATA_OK;
}

static strata_status read_value(st_gguf_reader *reader, const st_gguf_place *place, st_gguf_key *key,
                                strata_error *error)
{
    strata_status status = read_type(reader, place, "the type", &key->type, error);
    if (status != STRATA_OK) return status;
    key->item_type = key->type;
    key->count = 1;
    if (key->type == ST_GGUF_ARRAY) {
        status = read_type(reader, place, "the type of the items", &key->item_type, error);
        if (status != STRATA_OK) return status;
        if (key->item_type == ST_GGUF_ARRAY)
            return st_gguf_fail(place, STRATA_UNSUPPORTED, NULL, error,
                                "expected an array of numbers, bools or strings, found an array of arrays");
        if (!st_gguf_reader_u64(reader, &key->count))
            return st_gguf_fail_short(place, reader, 8, "the number of items", error);
    }
    size_t start = reader->position;
    key->data = reader->data + start;
    if (key->type == ST_GGUF_ARRAY) status = skip_array(reader, place, key, error);
    else if (key->type == ST_GGUF_STRING) status = skip_string(reader, place, error);
    else status = skip_scalars(reader, place, key->type, 1, error);
    key->data_bytes = reader->position - start;
    return status;
}

static strata_status read_key(st_gguf_file *file, st_gguf_reader *reader, st_gguf_place *place, strata_error *error)
{
    strata_status status = st_gguf_read_name(reader, place, ST_GGUF_KEY_NAME_BYTES_MAX, error);
    if (status != STRATA_OK) return status;
    st_gguf_key key = {.name = place->name};
    status = read_value(reader, place, &key, error);
    if (status != STRATA_OK) return status;
    switch (st_map_add(&file->key_map, key.name, (uint32_t)file->key_count)) {
    case ST_MAP_NO_MEMORY: return st_error_memory(error, sizeof(st_map_entry), file->path);
    case ST_MAP_EXISTS:
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error, "expected each key once, found this one twice");
    case ST_MAP_ADDED: break;
    }
    file->keys[file->key_count++] = key;
    return STRATA_OK;
}

/* The one key that the reader itself depends on. The format fixes its type. */
static strata_status read_alignment(st_gguf_file *file, strata_error *error)
{
    file->alignment = ST_GGUF_ALIGNMENT_DEFAULT;
    const st_gguf_key *key = st_gguf_file_key(file, ST_STR("general.alignment"));
    if (!key) return STRATA_OK;
    st_gguf_place place = {.file = file, .kind = "key", .name = key->name};
    uint64_t value;
    if (key->type != ST_GGUF_U32)
        return st_gguf_fail(&place, STRATA_FORMAT, "the file is damaged or was converted wrongly", error,
                            "expected u32, found %s", st_gguf_key_kind(key));
    st_gguf_load_integer(key->type, key->data, &value);
    if (!st_is_power_of_two(value) || value < ST_GGUF_ALIGNMENT_MIN || value > ST_GGUF_ALIGNMENT_MAX)
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error,
                            "expected a power of two from %d to %d, found %" PRIu64, ST_GGUF_ALIGNMENT_MIN,
                            ST_GGUF_ALIGNMENT_MAX, value);
    file->alignment = (size_t)value;
    return STRATA_OK;
}

strata_status st_gguf_read_keys(st_gguf_file *file, st_gguf_reader *reader, strata_error *error)
{
    size_t count = (size_t)file->key_total; /* at most ST_GGUF_KEYS_MAX: read_header checked it */
    file->keys = st_alloc_zero(count, sizeof *file->keys);
    if (!file->keys || !st_map_reserve(&file->key_map, count))
        return st_error_memory(error, count * sizeof *file->keys, file->path);
    for (uint64_t i = 0; i < count; i++) {
        st_gguf_place place = {.file = file, .kind = "key", .index = i};
        strata_status status = read_key(file, reader, &place, error);
        if (status != STRATA_OK) return status;
    }
    strata_status status = st_gguf_check_known(file, error);
    if (status != STRATA_OK) return status;
    return read_alignment(file, error);
}

const st_gguf_key *st_gguf_file_key(const st_gguf_file *file, st_str name)
{
    const uint32_t *index = st_map_find(&file->key_map, name);
    return index ? &file->keys[*index] : NULL;
}
