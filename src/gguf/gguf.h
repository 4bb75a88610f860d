/* GGUF: bytes → a validated directory of keys and tensors. The only module that knows the file format. Reads the
 * directory, never tensor data, and checks every count and length before it allocates. Knows no model family and no
 * tokenizer; the types of the standard keys (known.c) are part of the format. */
#ifndef ST_GGUF_GGUF_H
#define ST_GGUF_GGUF_H

#include "base/str.h"
#include "quant/quant.h"
#include "strata.h"

typedef struct st_gguf st_gguf;

typedef enum st_gguf_type {
    ST_GGUF_U8,
    ST_GGUF_I8,
    ST_GGUF_U16,
    ST_GGUF_I16,
    ST_GGUF_U32,
    ST_GGUF_I32,
    ST_GGUF_F32,
    ST_GGUF_BOOL,
    ST_GGUF_STRING,
    ST_GGUF_ARRAY,
    ST_GGUF_U64,
    ST_GGUF_I64,
    ST_GGUF_F64,
    ST_GGUF_TYPE_COUNT
} st_gguf_type;

/* A key; its value stays in the file. */
typedef struct st_gguf_key {
    st_str name;
    st_gguf_type type;
    st_gguf_type item_type;    /* of an array; otherwise the same as type */
    uint64_t count;            /* of an array; otherwise 1 */
    const unsigned char *data; /* the value, or the first item; strings are length (u64) and bytes */
    size_t data_bytes;
} st_gguf_key;

typedef struct st_gguf_tensor {
    st_str name;
    const st_type_info *info;
    uint32_t type;             /* an st_type */
    uint32_t dim_count;        /* 1 to 4 */
    uint64_t ne[4];            /* elements per dimension, 1 beyond dim_count; ne[0] is a whole number of blocks */
    size_t bytes;              /* exact size */
    uint32_t file;             /* which file of a split, from 0 */
    uint64_t file_offset;      /* from the start of that file */
    const unsigned char *data; /* mapped: the first access reads the disk */
} st_gguf_tensor;

/* Opens a file, or all files of a split by the name of any of them. */
strata_status st_gguf_open(const char *path, st_gguf **out, strata_error *error);
/* The same for bytes in memory, which must outlive it. `name` is for messages. */
strata_status st_gguf_open_memory(const char *name, const void *bytes, size_t size, st_gguf **out,
                                  strata_error *error);
void st_gguf_close(st_gguf *gguf);

const char *st_gguf_path(const st_gguf *gguf);       /* as passed to open */
uint32_t st_gguf_version(const st_gguf *gguf);
uint32_t st_gguf_file_count(const st_gguf *gguf);
uint64_t st_gguf_file_bytes(const st_gguf *gguf);    /* of all files */
uint64_t st_gguf_tensor_bytes(const st_gguf *gguf);  /* of all tensors, exact */

size_t st_gguf_key_count(const st_gguf *gguf);
const st_gguf_key *st_gguf_key_at(const st_gguf *gguf, size_t index);
const st_gguf_key *st_gguf_key_find(const st_gguf *gguf, const char *name); /* NULL if absent */

size_t st_gguf_tensor_count(const st_gguf *gguf);
const st_gguf_tensor *st_gguf_tensor_at(const st_gguf *gguf, size_t index);
const st_gguf_tensor *st_gguf_tensor_find(const st_gguf *gguf, const char *name); /* NULL if absent */

/* Typed getters. An absent key does not write *out, so the caller puts the default there first; `found` may be NULL.
 * A value of another type or out of range is STRATA_FORMAT. */
strata_status st_gguf_get_u64(const st_gguf *gguf, const char *name, uint64_t *out, bool *found, strata_error *error);
strata_status st_gguf_get_f64(const st_gguf *gguf, const char *name, double *out, bool *found, strata_error *error);
strata_status st_gguf_get_bool(const st_gguf *gguf, const char *name, bool *out, bool *found, strata_error *error);
strata_status st_gguf_get_str(const st_gguf *gguf, const char *name, st_str *out, bool *found, strata_error *error);
/* The key if it is an array of `item_type`; ST_GGUF_I64 stands for any integer type, ST_GGUF_F64 for any float type.
 * *out is NULL if the key is absent. */
strata_status st_gguf_get_array(const st_gguf *gguf, const char *name, st_gguf_type item_type, const st_gguf_key **out,
                                strata_error *error);

/* Items of an array of numbers or bools; index < count. */
int64_t st_gguf_item_i64(const st_gguf_key *array, uint64_t index);
double st_gguf_item_f64(const st_gguf_key *array, uint64_t index);

/* Iterates over an array of strings: start with *cursor = 0; false at the end. */
bool st_gguf_next_str(const st_gguf_key *array, size_t *cursor, st_str *out);

const char *st_gguf_type_name(st_gguf_type type); /* "u32", "string", … */

#endif
