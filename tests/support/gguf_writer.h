/* Builds GGUF bytes in memory: valid files, and malformed ones with the raw calls. A failed allocation sets
 * out.failed. */
#ifndef TEST_SUPPORT_GGUF_WRITER_H
#define TEST_SUPPORT_GGUF_WRITER_H

#include "base/buf.h"
#include "gguf/gguf.h"

typedef struct gguf_writer {
    st_buf out;
    uint64_t key_count;
    uint64_t tensor_count;
    uint64_t data_bytes; /* where the next tensor's data goes */
    size_t alignment;    /* 32; a caller that changes it also writes general.alignment */
} gguf_writer;

void gguf_writer_begin(gguf_writer *writer, uint32_t version);
void gguf_writer_free(gguf_writer *writer);

/* Pads the directory, writes the tensors' data and the counts of the header. */
void gguf_writer_finish(gguf_writer *writer);
/* The same without data: for truncated files. */
void gguf_writer_finish_directory(gguf_writer *writer);

/* Raw fields. */
void gguf_write_u32(gguf_writer *writer, uint32_t value);
void gguf_write_u64(gguf_writer *writer, uint64_t value);
void gguf_write_string(gguf_writer *writer, const char *text, size_t length);

/* A key's name and type; the caller writes its value with the raw calls. */
void gguf_write_key(gguf_writer *writer, const char *name, uint32_t type);
void gguf_write_key_bytes(gguf_writer *writer, const char *name, uint32_t type, const void *value, size_t length);

void gguf_write_key_u16(gguf_writer *writer, const char *name, uint16_t value);
void gguf_write_key_u32(gguf_writer *writer, const char *name, uint32_t value);
void gguf_write_key_i32(gguf_writer *writer, const char *name, int32_t value);
void gguf_write_key_f32(gguf_writer *writer, const char *name, float value);
void gguf_write_key_bool(gguf_writer *writer, const char *name, bool value);
void gguf_write_key_string(gguf_writer *writer, const char *name, const char *value);
/* The head of an array; the caller writes the items with the raw calls. */
void gguf_write_key_array(gguf_writer *writer, const char *name, uint32_t item_type, uint64_t count);
void gguf_write_key_strings(gguf_writer *writer, const char *name, const char *const *items, size_t count);
/* A value of any type: 1, "1", or an array of two of them. */
void gguf_write_key_sample(gguf_writer *writer, const char *name, st_gguf_type type, bool array);

/* Appends a tensor. */
void gguf_write_tensor(gguf_writer *writer, const char *name, uint32_t type, uint32_t dim_count, const uint64_t *ne);
void gguf_write_tensor_raw(gguf_writer *writer, const char *name, size_t name_length, uint32_t type, uint32_t dim_count,
                           const uint64_t *ne, uint64_t offset);

#endif
