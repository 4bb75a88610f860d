/* Fuzzes files of saved state: any bytes are refused with a message, or every page and restore point lies inside the file. The
 * first byte says whether the tables get the right digest, without which nothing behind the header is ever looked at. */
#include <string.h>

#include "base/alloc.h"
#include "kv/save.h"
#include "kv/store_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const st_save_file *file, const unsigned char *bytes, size_t length)
{
    uint64_t sum = 0;
    const st_save_shape *shape = &file->shape;
    for (uint32_t i = 0; i < shape->page_count; i++) {
        uint64_t offset = st_save_page_offset(file, i);
        if (offset > length || shape->page_bytes > length - offset) __builtin_trap();
        for (uint32_t k = 0; k < shape->page_tokens; k++) sum += (uint64_t)st_save_id(file, (uint64_t)i * shape->page_tokens + k);
        sum += st_save_page_digest(file, i).words[0];
    }
    for (uint32_t i = 0; i < shape->point_count; i++) {
        st_save_point point = st_save_point_at(file, i);
        if (point.offset > length || point.bytes > length - point.offset) __builtin_trap();
        if (point.page < shape->first_page || point.page - shape->first_page > shape->page_count) __builtin_trap();
        if (point.bytes) sum += bytes[point.offset];
    }
    if (sum == 0x5eed) __builtin_trap(); /* keeps the reads */
}

/* The index finds every page of the file by its key, and nothing once the file is removed. */
static void check_index(const st_save_file *file, unsigned char *tables)
{
    st_store_index index = {0};
    st_index_file row = {.bytes = file->file_bytes, .tables = tables, .file = *file};
    if (!st_index_add(&index, &row)) {
        st_free(tables);
        return;
    }
    if (file->shape.page_tokens <= 64 && file->shape.page_count > 0) {
        strata_token ids[64];
        for (uint32_t i = 0; i < file->shape.page_tokens; i++) ids[i] = st_save_id(file, i);
        st_digest key = st_save_key(file->shape.parent, ids, file->shape.page_tokens);
        if (st_index_find(&index, key, false, NULL) != 0) __builtin_trap();
    }
    st_index_remove(&index, 0);
    if (index.row_count || index.bytes) __builtin_trap();
    st_index_free(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    bool seals = data[0] & 1;
    size_t length = size - 1;
    unsigned char *bytes = st_alloc(length + 1);
    if (!bytes) return 0;
    memcpy(bytes, data + 1, length);
    uint64_t table_bytes = 0;
    strata_error error = {0};
    st_save_file file;
    if (length >= ST_SAVE_HEADER_BYTES && seals && st_save_measure(bytes, length, &table_bytes, NULL) == STRATA_OK) {
        if (table_bytes > length) __builtin_trap();
        st_save_seal(bytes, table_bytes);
    }
    strata_status status = st_save_parse(bytes, length, length, &file, &error);
    if (status == STRATA_OK) {
        check(&file, bytes, length);
        check_index(&file, bytes);
        return 0;
    }
    if (status != STRATA_FORMAT || error.message[0] == 0) __builtin_trap();
    st_free(bytes);
    return 0;
}
