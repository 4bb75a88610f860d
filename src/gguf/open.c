/* Opening and closing: one file, all files of a split, or bytes in memory. */
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "gguf/directory.h"
#include "gguf/limits.h"

enum { PATH_SHOWN_MAX = 200 };

/* The path for messages; a long path is cut to its end, to leave room for the message. */
static const char *shown_path(st_gguf *gguf, const char *path)
{
    static const char cut[] = "…";
    size_t length = strlen(path);
    if (length <= PATH_SHOWN_MAX) return st_arena_copy(&gguf->arena, path, length);
    const char *end = path + length - PATH_SHOWN_MAX;
    while (((unsigned char)*end & 0xC0) == 0x80) end++; /* not inside a code point */
    char *shown = st_arena_alloc(&gguf->arena, sizeof cut + PATH_SHOWN_MAX, 1);
    if (shown) snprintf(shown, sizeof cut + PATH_SHOWN_MAX, "%s%s", cut, end);
    return shown;
}

static void free_keys(st_gguf_file *file)
{
    st_free(file->keys);
    file->keys = NULL;
    file->key_count = 0;
    st_map_free(&file->key_map);
}

void st_gguf_close(st_gguf *gguf)
{
    if (!gguf) return;
    for (uint32_t i = 0; i < gguf->file_count; i++) {
        free_keys(&gguf->files[i]);
        st_file_unmap(&gguf->files[i].mapping);
    }
    st_free(gguf->files);
    st_free(gguf->tensors);
    st_map_free(&gguf->tensor_map);
    st_arena_free(&gguf->arena);
    st_free(gguf->path);
    st_free(gguf);
}

static strata_status gguf_new(const char *path, uint32_t file_count, st_gguf **out, strata_error *error)
{
    st_gguf *gguf = st_alloc(sizeof *gguf);
    if (!gguf) return st_error_memory(error, sizeof *gguf, path);
    *gguf = (st_gguf){.path = st_strndup(path, strlen(path)), .files = st_alloc_zero(file_count, sizeof *gguf->files)};
    if (!gguf->path || !gguf->files) {
        st_gguf_close(gguf);
        return st_error_memory(error, file_count * sizeof(st_gguf_file), path);
    }
    gguf->file_count = file_count;
    *out = gguf;
    return STRATA_OK;
}

/* Reads the directory of a mapped file. */
static strata_status read_file(st_gguf *gguf, st_gguf_file *file, strata_error *error)
{
    st_gguf_reader reader = {.data = file->data, .size = file->size};
    strata_status status = st_gguf_read_header(file, &reader, error);
    if (status == STRATA_OK) status = st_gguf_read_keys(file, &reader, error);
    if (status == STRATA_OK) status = st_gguf_split_check(file, gguf->file_count, error);
    if (status == STRATA_OK) status = st_gguf_read_tensors(gguf, file, &reader, error);
    return status;
}

static strata_status map_file(st_gguf *gguf, st_gguf_file *file, const char *path, strata_error *error)
{
    file->path = shown_path(gguf, path);
    if (!file->path) return st_error_memory(error, PATH_SHOWN_MAX, path);
    strata_status status = st_file_map(path, &file->mapping, error);
    if (status != STRATA_OK) return status;
    file->data = file->mapping.data;
    file->size = file->mapping.size;
    return read_file(gguf, file, error);
}

/* Opens file `index` of a split, in the folder of the file that was named. */
static strata_status map_part(st_gguf *gguf, const st_gguf_split_name *name, uint32_t index, strata_error *error)
{
    size_t room;
    if (!st_add_size(name->stem_length, 64, &room)) return st_error_memory(error, SIZE_MAX, gguf->path);
    char *path = st_alloc(room);
    if (!path) return st_error_memory(error, room, gguf->path);
    memcpy(path, gguf->path, name->stem_length);
    snprintf(path + name->stem_length, room - name->stem_length, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", index + 1,
             name->count);
    gguf->files[index].index = index;
    strata_status status = map_file(gguf, &gguf->files[index], path, error);
    if (status == STRATA_FILE && error) {
        strata_error cause = *error;
        st_error_set(error, status, "put all files of the split into one folder", "%s (file %" PRIu32 " of %" PRIu32
                     " of a split)", cause.message, index + 1, name->count);
    }
    st_free(path);
    return status;
}

/* The last step of every open: checks the split and returns `gguf`, or frees it. */
static strata_status finish_open(st_gguf *gguf, strata_status status, st_gguf **out, strata_error *error)
{
    if (status == STRATA_OK) status = st_gguf_split_check_all(gguf, error);
    if (status == STRATA_OK) *out = gguf;
    else st_gguf_close(gguf);
    return status;
}

static strata_status open_split(const char *path, const st_gguf_split_name *name, st_gguf **out, strata_error *error)
{
    if (name->index >= name->count || name->count > ST_GGUF_FILES_MAX)
        return st_error_set(error, STRATA_FORMAT, "keep the names that the files of the split had",
                            "%s: expected a name from NAME-00001-of-N.gguf to NAME-N-of-N.gguf with N up to %d", path,
                            ST_GGUF_FILES_MAX);
    st_gguf *gguf = NULL;
    strata_status status = gguf_new(path, name->count, &gguf, error);
    for (uint32_t i = 0; i < name->count && status == STRATA_OK; i++) {
        status = map_part(gguf, name, i, error);
        if (i > 0 && status == STRATA_OK) free_keys(&gguf->files[i]); /* the model's keys are the first file's */
    }
    return finish_open(gguf, status, out, error);
}

strata_status st_gguf_open(const char *path, st_gguf **out, strata_error *error)
{
    st_gguf_split_name name;
    if (st_gguf_split_parse(path, &name) && (name.count > 1 || name.index >= name.count))
        return open_split(path, &name, out, error);
    st_gguf *gguf = NULL;
    strata_status status = gguf_new(path, 1, &gguf, error);
    if (status == STRATA_OK) status = map_file(gguf, &gguf->files[0], path, error);
    return finish_open(gguf, status, out, error);
}

strata_status st_gguf_open_memory(const char *name, const void *bytes, size_t size, st_gguf **out,
                                  strata_error *error)
{
    st_gguf *gguf = NULL;
    strata_status status = gguf_new(name, 1, &gguf, error);
    if (status != STRATA_OK) return status;
    st_gguf_file *file = &gguf->files[0];
    file->path = shown_path(gguf, name);
    file->data = bytes;
    file->size = size;
    status = file->path ? read_file(gguf, file, error) : st_error_memory(error, PATH_SHOWN_MAX, name);
    return finish_open(gguf, status, out, error);
}
