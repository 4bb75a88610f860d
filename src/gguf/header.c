/* The header: the first 24 bytes, with magic, version, and the numbers of tensors and keys. */
#include <inttypes.h>

#include "gguf/directory.h"
#include "gguf/limits.h"

/* Files that are often given instead of a GGUF file, by their first bytes. */
typedef struct not_gguf {
    const char *start;
    const char *what;
    const char *hint;
} not_gguf;

static const not_gguf not_gguf_rows[] = {
    {"FUGG", "a big-endian GGUF file", "convert the model again for a little-endian machine"},
    {"lmgg", "a GGML file, older than GGUF", "convert the model to GGUF, or download a GGUF file of it"},
    {"tjgg", "a GGJT file, older than GGUF", "convert the model to GGUF, or download a GGUF file of it"},
    {"fmgg", "a GGMF file, older than GGUF", "convert the model to GGUF, or download a GGUF file of it"},
    {"version https://git-lfs", "a Git LFS pointer", "fetch the file itself with `git lfs pull`"},
    {"<!DOCTYPE", "a web page", "download the file itself, not the page about it"},
    {"<!doctype", "a web page", "download the file itself, not the page about it"},
    {"<html", "a web page", "download the file itself, not the page about it"},
    {"PK\003\004", "a zip archive", "unpack it first; PyTorch models must be converted to GGUF"},
};

static strata_status fail_magic(const st_gguf_place *place, strata_error *error)
{
    const st_gguf_file *file = place->file;
    for (size_t i = 0; i < sizeof not_gguf_rows / sizeof *not_gguf_rows; i++) {
        const not_gguf *row = &not_gguf_rows[i];
        size_t length = strlen(row->start);
        if (file->size >= length && memcmp(file->data, row->start, length) == 0)
            return st_gguf_fail(place, STRATA_UNSUPPORTED, row->hint, error,
                                "expected a little-endian GGUF file, found %s", row->what);
    }
    if (file->size > 8 && file->data[8] == '{')
        return st_gguf_fail(place, STRATA_UNSUPPORTED, "convert the model to GGUF, or download a GGUF file of it",
                            error, "expected a GGUF file, found what looks like a safetensors file");
    unsigned char found[4] = {0};
    memcpy(found, file->data, file->size < 4 ? file->size : 4);
    return st_gguf_fail(place, STRATA_FORMAT, "check that this is a GGUF file", error,
                        "expected the bytes \"GGUF\" at the start, found %02x %02x %02x %02x", found[0], found[1],
                        found[2], found[3]);
}

static strata_status check_version(const st_gguf_place *place, uint32_t version, strata_error *error)
{
    if (version >= ST_GGUF_VERSION_MIN && version <= ST_GGUF_VERSION_MAX) return STRATA_OK;
    uint32_t swapped = __builtin_bswap32(version);
    if (swapped >= 1 && swapped <= 0xFF)
        return st_gguf_fail(place, STRATA_UNSUPPORTED, "convert the model again for a little-endian machine", error,
                            "expected a little-endian GGUF file, found a big-endian one (version %" PRIu32 ")",
                            swapped);
    const char *hint = version < ST_GGUF_VERSION_MIN ? "convert the model again, or download a newer file of it"
                                                     : "a newer strata may know this version";
    return st_gguf_fail(place, STRATA_UNSUPPORTED, hint, error, "expected GGUF version %d or %d, found %" PRIu32,
                        ST_GGUF_VERSION_MIN, ST_GGUF_VERSION_MAX, version);
}

static strata_status check_count(const st_gguf_place *place, const st_gguf_reader *reader, uint64_t count,
                                 uint64_t limit, size_t bytes_min, const char *what, strata_error *error)
{
    if (count > limit)
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error, "expected at most %" PRIu64 " %s, found %" PRIu64, limit,
                            what, count);
    size_t left = st_gguf_reader_left(reader);
    if (count > left / bytes_min)
        return st_gguf_fail(place, STRATA_FORMAT, "the file is incomplete or damaged: download or copy it again", error,
                            "expected at most %zu %s in the %zu bytes after the header, found %" PRIu64,
                            left / bytes_min, what, left, count);
    return STRATA_OK;
}

strata_status st_gguf_read_header(st_gguf_file *file, st_gguf_reader *reader, strata_error *error)
{
    st_gguf_place place = {.file = file};
    if (file->size == 0)
        return st_gguf_fail(&place, STRATA_FORMAT, "download or copy the file again", error,
                            "expected a GGUF file, found an empty file");
    const unsigned char *magic;
    if (!st_gguf_reader_take(reader, 4, &magic) || memcmp(magic, "GGUF", 4) != 0) return fail_magic(&place, error);
    if (!st_gguf_reader_u32(reader, &file->version))
        return st_gguf_fail_short(&place, reader, 4, "the version", error);
    strata_status status = check_version(&place, file->version, error);
    if (status != STRATA_OK) return status;
    if (!st_gguf_reader_u64(reader, &file->tensor_total))
        return st_gguf_fail_short(&place, reader, 8, "the number of tensors", error);
    if (!st_gguf_reader_u64(reader, &file->key_total))
        return st_gguf_fail_short(&place, reader, 8, "the number of keys", error);
    status = check_count(&place, reader, file->key_total, ST_GGUF_KEYS_MAX, ST_GGUF_KEY_BYTES_MIN, "keys", error);
    if (status != STRATA_OK) return status;
    return check_count(&place, reader, file->tensor_total, ST_GGUF_TENSORS_MAX, ST_GGUF_TENSOR_BYTES_MIN, "tensors",
                       error);
}
