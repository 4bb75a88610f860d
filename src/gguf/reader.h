/* A bounds-checked cursor over little-endian bytes. Private to src/gguf. */
#ifndef ST_GGUF_READER_H
#define ST_GGUF_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are little endian and read in place");

typedef struct st_gguf_reader {
    const unsigned char *data; /* [size] */
    size_t size;
    size_t position; /* at most size */
} st_gguf_reader;

static inline size_t st_gguf_reader_left(const st_gguf_reader *reader)
{
    return reader->size - reader->position;
}

/* Advances by `length` bytes and points *out at them; false, without advancing, when fewer are left. */
static inline bool st_gguf_reader_take(st_gguf_reader *reader, uint64_t length, const unsigned char **out)
{
    if (length > st_gguf_reader_left(reader)) return false;
    *out = reader->data + reader->position;
    reader->position += (size_t)length;
    return true;
}

static inline bool st_gguf_reader_u32(st_gguf_reader *reader, uint32_t *out)
{
    const unsigned char *bytes;
    if (!st_gguf_reader_take(reader, sizeof *out, &bytes)) return false;
    memcpy(out, bytes, sizeof *out);
    return true;
}

static inline bool st_gguf_reader_u64(st_gguf_reader *reader, uint64_t *out)
{
    const unsigned char *bytes;
    if (!st_gguf_reader_take(reader, sizeof *out, &bytes)) return false;
    memcpy(out, bytes, sizeof *out);
    return true;
}

#endif
