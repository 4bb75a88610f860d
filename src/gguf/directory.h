/* Private to src/gguf: the opened files, the directory of their keys and tensors, and its error messages. */
#ifndef ST_GGUF_DIRECTORY_H
#define ST_GGUF_DIRECTORY_H

#include "base/arena.h"
#include "base/file.h"
#include "base/map.h"
#include "gguf/gguf.h"
#include "gguf/reader.h"

/* One file; a split model has several. */
typedef struct st_gguf_file {
    const char *path;          /* for messages: of a long path only the end */
    st_mapping mapping;        /* empty when the bytes are the caller's */
    const unsigned char *data; /* [size] */
    size_t size;
    uint32_t index;            /* among the files of a split, from 0 */
    uint32_t version;
    uint64_t key_total;        /* from the header */
    uint64_t tensor_total;     /* from the header */
    st_gguf_key *keys;         /* [key_count] */
    size_t key_count;
    st_map key_map;            /* name → index in keys */
    st_str architecture;       /* empty: the key is absent */
    uint64_t split_tensors;    /* split.tensors.count of this file; UINT64_MAX: absent */
    size_t alignment;
    size_t data_start;         /* where the tensors' data begins */
} st_gguf_file;

struct st_gguf {
    char *path;          /* as given to open */
    st_arena arena;      /* the paths in `files` */
    st_gguf_file *files; /* [file_count] */
    uint32_t file_count;
    st_gguf_tensor *tensors; /* [tensor_count], of all files in order */
    size_t tensor_count;
    size_t tensor_capacity;
    st_map tensor_map; /* name → index in tensors */
    uint64_t tensor_bytes;
};

/* The location of an error in the directory. */
typedef struct st_gguf_place {
    const st_gguf_file *file;
    const char *kind; /* "key" or "tensor"; NULL: the file itself */
    uint64_t index;   /* among its kind, from 0 */
    st_str name;      /* empty until it has been read */
} st_gguf_place;

/* st_error_set with the location before the message. */
strata_status st_gguf_fail(const st_gguf_place *place, strata_status status, const char *hint, strata_error *error,
                           const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The error for a file that ends before the next `wanted` bytes, which are `what`. */
strata_status st_gguf_fail_short(const st_gguf_place *place, const st_gguf_reader *reader, uint64_t wanted,
                                 const char *what, strata_error *error);

/* Reads the name of a key or tensor into place->name: not empty, at most `limit_bytes`, UTF-8 without NUL. */
strata_status st_gguf_read_name(st_gguf_reader *reader, st_gguf_place *place, size_t limit_bytes, strata_error *error);

/* Read the header, the keys and the tensors of file->data, in this order. After a failure the caller closes `gguf`. */
strata_status st_gguf_read_header(st_gguf_file *file, st_gguf_reader *reader, strata_error *error);
strata_status st_gguf_read_keys(st_gguf_file *file, st_gguf_reader *reader, strata_error *error);
strata_status st_gguf_read_tensors(st_gguf *gguf, st_gguf_file *file, st_gguf_reader *reader, strata_error *error);

/* Checks the types of a file's standard keys (known.c); sets file->architecture. */
strata_status st_gguf_check_known(st_gguf_file *file, strata_error *error);

const st_gguf_key *st_gguf_file_key(const st_gguf_file *file, st_str name); /* NULL if absent */

/* The size of a value type; 0 for strings and arrays. */
size_t st_gguf_type_bytes(st_gguf_type type);
bool st_gguf_type_is_float(st_gguf_type type);

/* Loads the integer at `data` into *value, sign-extended to 64 bits; false when it is negative. */
bool st_gguf_load_integer(st_gguf_type type, const unsigned char *data, uint64_t *value);

/* The type of a key's value in words: "u32", "an array of strings". */
const char *st_gguf_key_kind(const st_gguf_key *key);

/* ---- split files ---------------------------------------------------------------------------------------------- */

/* The parts of a name such as X-00002-of-00003.gguf. */
typedef struct st_gguf_split_name {
    size_t stem_length; /* of "X" */
    uint32_t index;     /* from 0 */
    uint32_t count;
} st_gguf_split_name;

/* False for a name of another form. */
bool st_gguf_split_parse(const char *path, st_gguf_split_name *out);

/* Checks the split.* keys of file->index of `count` files; 1 is a file that is not split. */
strata_status st_gguf_split_check(st_gguf_file *file, uint32_t count, strata_error *error);

/* Checks the files of a split against each other. */
strata_status st_gguf_split_check_all(const st_gguf *gguf, strata_error *error);

#endif
