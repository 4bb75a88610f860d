/* The tensors of a file: names, shapes and types. Checks that their data is aligned, inside the file and without
 * overlaps. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "gguf/directory.h"
#include "gguf/limits.h"

/* Type numbers that strata does not read, and their names. */
typedef struct known_number {
    uint32_t number;
    const char *name;
} known_number;

static const known_number known_numbers[] = {
    {4, "Q4_2, removed from the format"},      {5, "Q4_3, removed from the format"},
    {9, "Q8_1, never in files"},               {15, "Q8_K, never in files"},
    {31, "Q4_0_4_4, removed from the format"}, {32, "Q4_0_4_8, removed from the format"},
    {33, "Q4_0_8_8, removed from the format"}, {36, "IQ4_NL_4_4, removed from the format"},
    {37, "IQ4_NL_4_8, removed from the format"}, {38, "IQ4_NL_8_8, removed from the format"},
    {41, "Q1_0"},
};

static strata_status fail_type(const st_gguf_place *place, uint32_t type, strata_error *error)
{
    const char *name = "unknown";
    for (size_t i = 0; i < sizeof known_numbers / sizeof *known_numbers; i++)
        if (known_numbers[i].number == type) name = known_numbers[i].name;
    return st_gguf_fail(place, STRATA_UNSUPPORTED, "use a file with another quantisation, or a newer strata", error,
                        "expected a tensor type that strata reads, found number %" PRIu32 " (%s)", type, name);
}

static strata_status read_shape(st_gguf_reader *reader, const st_gguf_place *place, st_gguf_tensor *tensor,
                                strata_error *error)
{
    if (!st_gguf_reader_u32(reader, &tensor->dim_count))
        return st_gguf_fail_short(place, reader, 4, "the number of dimensions", error);
    if (tensor->dim_count < 1 || tensor->dim_count > ST_GGUF_DIMS_MAX)
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error, "expected 1 to %d dimensions, found %" PRIu32,
                            ST_GGUF_DIMS_MAX, tensor->dim_count);
    for (uint32_t i = 0; i < ST_GGUF_DIMS_MAX; i++) {
        tensor->ne[i] = 1;
        if (i >= tensor->dim_count) continue;
        if (!st_gguf_reader_u64(reader, &tensor->ne[i]))
            return st_gguf_fail_short(place, reader, 8, "a dimension", error);
        if (tensor->ne[i] == 0)
            return st_gguf_fail(place, STRATA_FORMAT, NULL, error,
                                "expected at least one element in each dimension, found 0 in dimension %" PRIu32, i);
    }
    return STRATA_OK;
}

/* Computes the exact size. The number of elements must also fit an int64, which other modules rely on. */
static strata_status compute_size(const st_gguf_place *place, st_gguf_tensor *tensor, strata_error *error)
{
    if (tensor->ne[0] % tensor->info->block != 0)
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error,
                            "expected rows of a whole number of %s blocks (%" PRIu32 " elements), found %" PRIu64
                            " elements",
                            tensor->info->name, tensor->info->block, tensor->ne[0]);
    size_t bytes;
    bool fits = st_type_row_bytes(tensor->info, tensor->ne[0], &bytes) && tensor->ne[0] <= INT64_MAX;
    int64_t elements = fits ? (int64_t)tensor->ne[0] : 0;
    for (uint32_t i = 1; i < ST_GGUF_DIMS_MAX && fits; i++)
        fits = tensor->ne[i] <= INT64_MAX && st_mul_size(bytes, (size_t)tensor->ne[i], &bytes) &&
               !__builtin_mul_overflow(elements, (int64_t)tensor->ne[i], &elements);
    if (!fits)
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error,
                            "expected a size that fits in 64 bits, found %" PRIu64 " × %" PRIu64 " × %" PRIu64
                            " × %" PRIu64 " elements of %s",
                            tensor->ne[0], tensor->ne[1], tensor->ne[2], tensor->ne[3], tensor->info->name);
    tensor->bytes = bytes;
    return STRATA_OK;
}

/* Reads one entry; file_offset is relative to the data for now. */
static strata_status read_tensor(const st_gguf_file *file, st_gguf_reader *reader, st_gguf_place *place,
                                 st_gguf_tensor *tensor, strata_error *error)
{
    strata_status status = st_gguf_read_name(reader, place, ST_GGUF_TENSOR_NAME_BYTES_MAX, error);
    if (status != STRATA_OK) return status;
    *tensor = (st_gguf_tensor){.name = place->name, .file = file->index};
    status = read_shape(reader, place, tensor, error);
    if (status != STRATA_OK) return status;
    if (!st_gguf_reader_u32(reader, &tensor->type)) return st_gguf_fail_short(place, reader, 4, "the type", error);
    tensor->info = st_type_find(tensor->type);
    if (!tensor->info) return fail_type(place, tensor->type, error);
    status = compute_size(place, tensor, error);
    if (status != STRATA_OK) return status;
    if (!st_gguf_reader_u64(reader, &tensor->file_offset))
        return st_gguf_fail_short(place, reader, 8, "the offset", error);
    if (tensor->file_offset % file->alignment != 0)
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error,
                            "expected an offset that is a multiple of the alignment %zu, found %" PRIu64,
                            file->alignment, tensor->file_offset);
    return STRATA_OK;
}

static strata_status add_tensor(st_gguf *gguf, const st_gguf_place *place, const st_gguf_tensor *tensor,
                                strata_error *error)
{
    switch (st_map_add(&gguf->tensor_map, tensor->name, (uint32_t)gguf->tensor_count)) {
    case ST_MAP_NO_MEMORY: return st_error_memory(error, sizeof(st_map_entry), place->file->path);
    case ST_MAP_EXISTS:
        return st_gguf_fail(place, STRATA_FORMAT, NULL, error, "expected each tensor once, found this one twice");
    case ST_MAP_ADDED: break;
    }
    gguf->tensors[gguf->tensor_count++] = *tensor;
    return STRATA_OK;
}

static strata_status reserve_tensors(st_gguf *gguf, const st_gguf_file *file, strata_error *error)
{
    size_t count = gguf->tensor_count + (size_t)file->tensor_total; /* each at most ST_GGUF_TENSORS_MAX */
    st_gguf_place place = {.file = file};
    if (count > ST_GGUF_TENSORS_MAX)
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected at most %d tensors in all files, found %zu",
                            ST_GGUF_TENSORS_MAX, count);
    if (count > gguf->tensor_capacity) {
        st_gguf_tensor *tensors = st_realloc(gguf->tensors, count * sizeof *tensors);
        if (!tensors) return st_error_memory(error, count * sizeof *tensors, file->path);
        gguf->tensors = tensors;
        gguf->tensor_capacity = count;
    }
    if (!st_map_reserve(&gguf->tensor_map, count))
        return st_error_memory(error, count * sizeof(st_map_entry), file->path);
    return STRATA_OK;
}

/* Zeros must fill the gap between the directory and the data; other bytes mean that the counts in the header are
 * wrong. */
static strata_status check_padding(const st_gguf_file *file, const st_gguf_reader *reader, strata_error *error)
{
    st_gguf_place place = {.file = file};
    size_t end = file->data_start < file->size ? file->data_start : file->size;
    for (size_t i = reader->position; i < end; i++)
        if (file->data[i] != 0)
            return st_gguf_fail(&place, STRATA_FORMAT, "the file is damaged: download or copy it again", error,
                                "expected zeros between the directory and the data, found 0x%02x at offset %zu",
                                file->data[i], i);
    return STRATA_OK;
}

/* Makes the offsets relative to the file and checks that the file holds all data. */
static strata_status check_ends(st_gguf_tensor *tensors, size_t count, const st_gguf_file *file, strata_error *error)
{
    const st_gguf_tensor *last = NULL;
    size_t last_end = 0;
    for (size_t i = 0; i < count; i++) {
        st_gguf_tensor *tensor = &tensors[i];
        st_gguf_place place = {.file = file, .kind = "tensor", .index = i, .name = tensor->name};
        size_t start, end;
        if (tensor->file_offset > SIZE_MAX || !st_add_size(file->data_start, (size_t)tensor->file_offset, &start) ||
            !st_add_size(start, tensor->bytes, &end))
            return st_gguf_fail(&place, STRATA_FORMAT, NULL, error,
                                "expected an end that fits in 64 bits, found offset %" PRIu64 " and %zu bytes",
                                tensor->file_offset, tensor->bytes);
        tensor->file_offset = start;
        if (end > last_end) {
            last = tensor;
            last_end = end;
        }
    }
    if (last_end <= file->size) return STRATA_OK;
    st_gguf_place place = {.file = file, .kind = "tensor", .name = last->name};
    return st_gguf_fail(&place, STRATA_FORMAT, "the file is incomplete: download or copy it again", error,
                        "expected a file of at least %zu bytes, found %zu: %zu bytes are missing", last_end, file->size,
                        last_end - file->size);
}

static int compare_offsets(const void *a, const void *b)
{
    const st_gguf_tensor *const *left = a, *const *right = b;
    if ((*left)->file_offset != (*right)->file_offset) return (*left)->file_offset < (*right)->file_offset ? -1 : 1;
    return *left < *right ? -1 : *left > *right;
}

static strata_status check_overlaps(const st_gguf_tensor *tensors, size_t count, const st_gguf_file *file,
                                    strata_error *error)
{
    const st_gguf_tensor **order = st_alloc_array(count, sizeof(const st_gguf_tensor *));
    if (!order) return st_error_memory(error, count * sizeof *order, file->path);
    bool sorted = true;
    for (size_t i = 0; i < count; i++) {
        order[i] = &tensors[i];
        if (i > 0 && tensors[i].file_offset < tensors[i - 1].file_offset) sorted = false;
    }
    if (!sorted) qsort(order, count, sizeof *order, compare_offsets);

    strata_status status = STRATA_OK;
    for (size_t i = 1; i < count && status == STRATA_OK; i++) {
        const st_gguf_tensor *before = order[i - 1], *tensor = order[i];
        uint64_t end = before->file_offset + before->bytes; /* does not wrap: check_ends checked it */
        if (tensor->file_offset >= end) continue;
        st_gguf_place place = {.file = file, .kind = "tensor", .name = tensor->name};
        status = st_gguf_fail(&place, STRATA_FORMAT, NULL, error,
                              "expected data without overlaps, found that it overlaps tensor %.*s by %" PRIu64
                              " bytes", ST_STR_ARG(before->name), end - tensor->file_offset);
    }
    st_free(order);
    return status;
}

strata_status st_gguf_read_tensors(st_gguf *gguf, st_gguf_file *file, st_gguf_reader *reader, strata_error *error)
{
    size_t first = gguf->tensor_count;
    strata_status status = reserve_tensors(gguf, file, error);
    for (uint64_t i = 0; i < file->tensor_total && status == STRATA_OK; i++) {
        st_gguf_place place = {.file = file, .kind = "tensor", .index = i};
        st_gguf_tensor tensor;
        status = read_tensor(file, reader, &place, &tensor, error);
        if (status == STRATA_OK) status = add_tensor(gguf, &place, &tensor, error);
    }
    if (status != STRATA_OK) return status;
    if (!st_align_size(reader->position, file->alignment, &file->data_start)) file->data_start = SIZE_MAX;
    status = check_padding(file, reader, error);
    if (status != STRATA_OK || file->tensor_total == 0) return status;

    st_gguf_tensor *tensors = gguf->tensors + first;
    size_t count = gguf->tensor_count - first;
    status = check_ends(tensors, count, file, error);
    if (status == STRATA_OK) status = check_overlaps(tensors, count, file, error);
    for (size_t i = 0; i < count && status == STRATA_OK; i++) {
        tensors[i].data = file->data + tensors[i].file_offset;
        gguf->tensor_bytes += tensors[i].bytes; /* does not wrap: inside the file, without overlaps */
    }
    return status;
}
