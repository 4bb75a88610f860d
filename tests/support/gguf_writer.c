#include "support/gguf_writer.h"

enum { HEADER_TENSORS_AT = 8, HEADER_KEYS_AT = 16 };

void gguf_writer_begin(gguf_writer *writer, uint32_t version)
{
    *writer = (gguf_writer){.alignment = 32};
    st_buf_append(&writer->out, "GGUF", 4);
    gguf_write_u32(writer, version);
    gguf_write_u64(writer, 0);
    gguf_write_u64(writer, 0);
}

void gguf_writer_free(gguf_writer *writer)
{
    st_buf_free(&writer->out);
}

static void pad(st_buf *out, size_t alignment)
{
    while (!out->failed && out->length % alignment != 0) st_buf_append_char(out, 0);
}

void gguf_writer_finish_directory(gguf_writer *writer)
{
    if (writer->out.failed) return;
    memcpy(writer->out.data + HEADER_TENSORS_AT, &writer->tensor_count, 8);
    memcpy(writer->out.data + HEADER_KEYS_AT, &writer->key_count, 8);
}

void gguf_writer_finish(gguf_writer *writer)
{
    gguf_writer_finish_directory(writer);
    pad(&writer->out, writer->alignment);
    if (!st_buf_reserve(&writer->out, (size_t)writer->data_bytes)) return;
    memset(writer->out.data + writer->out.length, 0x5A, (size_t)writer->data_bytes);
    writer->out.length += (size_t)writer->data_bytes;
}

void gguf_write_u32(gguf_writer *writer, uint32_t value)
{
    st_buf_append(&writer->out, &value, sizeof value);
}

void gguf_write_u64(gguf_writer *writer, uint64_t value)
{
    st_buf_append(&writer->out, &value, sizeof value);
}

void gguf_write_string(gguf_writer *writer, const char *text, size_t length)
{
    gguf_write_u64(writer, length);
    st_buf_append(&writer->out, text, length);
}

void gguf_write_key(gguf_writer *writer, const char *name, uint32_t type)
{
    gguf_write_string(writer, name, strlen(name));
    gguf_write_u32(writer, type);
    writer->key_count++;
}

void gguf_write_key_bytes(gguf_writer *writer, const char *name, uint32_t type, const void *value, size_t length)
{
    gguf_write_key(writer, name, type);
    st_buf_append(&writer->out, value, length);
}

void gguf_write_key_u16(gguf_writer *writer, const char *name, uint16_t value)
{
    gguf_write_key_bytes(writer, name, ST_GGUF_U16, &value, sizeof value);
}

void gguf_write_key_u32(gguf_writer *writer, const char *name, uint32_t value)
{
    gguf_write_key_bytes(writer, name, ST_GGUF_U32, &value, sizeof value);
}

void gguf_write_key_i32(gguf_writer *writer, const char *name, int32_t value)
{
    gguf_write_key_bytes(writer, name, ST_GGUF_I32, &value, sizeof value);
}

void gguf_write_key_f32(gguf_writer *writer, const char *name, float value)
{
    gguf_write_key_bytes(writer, name, ST_GGUF_F32, &value, sizeof value);
}

void gguf_write_key_bool(gguf_writer *writer, const char *name, bool value)
{
    unsigned char byte = value;
    gguf_write_key_bytes(writer, name, ST_GGUF_BOOL, &byte, 1);
}

void gguf_write_key_string(gguf_writer *writer, const char *name, const char *value)
{
    gguf_write_key(writer, name, ST_GGUF_STRING);
    gguf_write_string(writer, value, strlen(value));
}

void gguf_write_key_array(gguf_writer *writer, const char *name, uint32_t item_type, uint64_t count)
{
    gguf_write_key(writer, name, ST_GGUF_ARRAY);
    gguf_write_u32(writer, item_type);
    gguf_write_u64(writer, count);
}

void gguf_write_key_strings(gguf_writer *writer, const char *name, const char *const *items, size_t count)
{
    gguf_write_key_array(writer, name, ST_GGUF_STRING, count);
    for (size_t i = 0; i < count; i++) gguf_write_string(writer, items[i], strlen(items[i]));
}

static void write_one(gguf_writer *writer, st_gguf_type type)
{
    static const unsigned char sizes[ST_GGUF_TYPE_COUNT] = {
        [ST_GGUF_U8] = 1,  [ST_GGUF_I8] = 1,  [ST_GGUF_U16] = 2,  [ST_GGUF_I16] = 2, [ST_GGUF_U32] = 4,
        [ST_GGUF_I32] = 4, [ST_GGUF_BOOL] = 1, [ST_GGUF_U64] = 8, [ST_GGUF_I64] = 8,
    };
    uint64_t one = 1;
    float single = 1;
    double twice = 1;
    if (type == ST_GGUF_STRING) gguf_write_string(writer, "1", 1);
    else if (type == ST_GGUF_F32) st_buf_append(&writer->out, &single, sizeof single);
    else if (type == ST_GGUF_F64) st_buf_append(&writer->out, &twice, sizeof twice);
    else st_buf_append(&writer->out, &one, sizes[type]);
}

void gguf_write_key_sample(gguf_writer *writer, const char *name, st_gguf_type type, bool array)
{
    if (array) gguf_write_key_array(writer, name, type, 2);
    else gguf_write_key(writer, name, type);
    write_one(writer, type);
    if (array) write_one(writer, type);
}

void gguf_write_tensor_raw(gguf_writer *writer, const char *name, size_t name_length, uint32_t type, uint32_t dim_count,
                           const uint64_t *ne, uint64_t offset)
{
    gguf_write_string(writer, name, name_length);
    gguf_write_u32(writer, dim_count);
    for (uint32_t i = 0; i < dim_count; i++) gguf_write_u64(writer, ne[i]);
    gguf_write_u32(writer, type);
    gguf_write_u64(writer, offset);
    writer->tensor_count++;
}

void gguf_write_tensor(gguf_writer *writer, const char *name, uint32_t type, uint32_t dim_count, const uint64_t *ne)
{
    gguf_write_tensor_raw(writer, name, strlen(name), type, dim_count, ne, writer->data_bytes);
    const st_type_info *info = st_type_find(type);
    uint64_t bytes = info ? ne[0] / info->block * info->bytes : 0;
    for (uint32_t i = 1; i < dim_count; i++) bytes *= ne[i];
    uint64_t end = writer->data_bytes + bytes;
    writer->data_bytes = (end + writer->alignment - 1) / writer->alignment * writer->alignment;
}
