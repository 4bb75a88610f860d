/* Error messages of a GGUF file: the file, the key or tensor, what was expected, what was found. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/utf8.h"
#include "gguf/directory.h"

enum { NAME_SHOWN_MAX = 96 };

static const char hint_short[] = "the file is incomplete or damaged: download or copy it again";

strata_status st_gguf_fail(const st_gguf_place *place, strata_status status, const char *hint, strata_error *error,
                           const char *format, ...)
{
    char detail[512];
    va_list args;
    va_start(args, format);
    if (vsnprintf(detail, sizeof detail, format, args) < 0) detail[0] = '\0';
    va_end(args);
    const char *path = place->file->path;
    if (!place->kind) return st_error_set(error, status, hint, "%s: %s", path, detail);
    if (!place->name.length)
        return st_error_set(error, status, hint, "%s: %s number %" PRIu64 ": %s", path, place->kind, place->index + 1,
                            detail);
    bool long_name = place->name.length > NAME_SHOWN_MAX;
    st_str shown = {place->name.data, long_name ? NAME_SHOWN_MAX : place->name.length};
    shown.length -= st_utf8_unfinished_tail(shown.data, shown.length);
    return st_error_set(error, status, hint, "%s: %s %.*s%s: %s", path, place->kind, ST_STR_ARG(shown),
                        long_name ? "…" : "", detail);
}

strata_status st_gguf_fail_short(const st_gguf_place *place, const st_gguf_reader *reader, uint64_t wanted,
                                 const char *what, strata_error *error)
{
    size_t left = st_gguf_reader_left(reader);
    return st_gguf_fail(place, STRATA_FORMAT, hint_short, error,
                        "%s: expected %" PRIu64 " bytes at offset %zu, found %zu before the end of the file", what,
                        wanted, reader->position, left);
}

strata_status st_gguf_read_name(st_gguf_reader *reader, st_gguf_place *place, size_t limit_bytes, strata_error *error)
{
    uint64_t length;
    if (!st_gguf_reader_u64(reader, &length)) return st_gguf_fail_short(place, reader, 8, "the name's length", error);
    if (length == 0) return st_gguf_fail(place, STRATA_FORMAT, NULL, error, "expected a name, found an empty one");
    if (length > limit_bytes)
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error,
                            "expected a name of at most %zu bytes, found one of %" PRIu64, limit_bytes, length);
    const unsigned char *bytes;
    if (!st_gguf_reader_take(reader, length, &bytes))
        return st_gguf_fail_short(place, reader, length, "the name", error);
    st_str name = {(const char *)bytes, (size_t)length};
    place->name = name;
    if (memchr(name.data, '\0', name.length))
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error, "expected a name without NUL bytes, found one in it");
    size_t valid = st_utf8_valid_prefix(name.data, name.length);
    if (valid != name.length)
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error,
                            "expected a name in UTF-8, found byte 0x%02x at place %zu", bytes[valid], valid + 1);
    return STRATA_OK;
}
