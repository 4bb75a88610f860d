/* The limits of a GGUF file. Counts and lengths are also checked against the size of the file. */
#ifndef ST_GGUF_LIMITS_H
#define ST_GGUF_LIMITS_H

enum {
    ST_GGUF_VERSION_MIN = 2,
    ST_GGUF_VERSION_MAX = 3,
    ST_GGUF_KEYS_MAX = 1 << 16,
    ST_GGUF_KEY_NAME_BYTES_MAX = (1 << 16) - 1,
    ST_GGUF_STRING_BYTES_MAX = 64 << 20,
    ST_GGUF_ARCHITECTURE_BYTES_MAX = 64,
    ST_GGUF_TENSORS_MAX = 1 << 17, /* of all files of a split */
    ST_GGUF_TENSOR_NAME_BYTES_MAX = 128,
    ST_GGUF_DIMS_MAX = 4,
    ST_GGUF_ALIGNMENT_DEFAULT = 32,
    ST_GGUF_ALIGNMENT_MIN = 8,
    ST_GGUF_ALIGNMENT_MAX = 1 << 20,
    ST_GGUF_FILES_MAX = 1024, /* of a split */

    /* The smallest size of an entry in the directory: bounds a count by the size of the file. */
    ST_GGUF_KEY_BYTES_MIN = 8 + 1 + 4 + 1,            /* name, type, value */
    ST_GGUF_TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* name, dimensions, type, offset */
};

#endif
