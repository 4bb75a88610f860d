/* A modified copy of a GGUF file in memory: keys dropped or set, tensors dropped, renamed, reshaped or added, the data
 * of the other tensors unchanged. Any failure fails the test. */
#ifndef TEST_SUPPORT_GGUF_COPY_H
#define TEST_SUPPORT_GGUF_COPY_H

#include "support/gguf_writer.h"
#include "support/kit.h"

enum { GGUF_COPY_TENSORS = 1024, GGUF_COPY_KEYS = 32 };

typedef struct gguf_copy_tensor {
    char name[96];
    uint32_t type;
    uint32_t dim_count;
    uint64_t ne[4];
    const void *data; /* NULL: the writer's fill pattern */
    size_t bytes;
} gguf_copy_tensor;

typedef struct gguf_copy {
    st_gguf *source;
    gguf_writer writer;
    gguf_copy_tensor *tensors; /* [tensor_count], tensors of the copy */
    size_t tensor_count;
    char replaced[GGUF_COPY_KEYS][96];
    size_t replaced_count;
    char prefix[32]; /* "llama." */
} gguf_copy;

/* Starts a copy of the kit's NAME.gguf. */
void gguf_copy_open(gguf_copy *copy, const char *name);
void gguf_copy_close(gguf_copy *copy);

/* Drops a key of the source. A name that begins with a dot is prefixed with the architecture. To change a key, drop it
 * and write it to copy->writer under the name that gguf_copy_key returns (valid until the next call). */
void gguf_copy_drop_key(gguf_copy *copy, const char *name);
const char *gguf_copy_key(const gguf_copy *copy, const char *name);
void gguf_copy_set_u32(gguf_copy *copy, const char *name, uint32_t value);
void gguf_copy_drop_keys_of(gguf_copy *copy, const char *start);

gguf_copy_tensor *gguf_copy_find(gguf_copy *copy, const char *name); /* the tensor must exist */
void gguf_copy_remove(gguf_copy *copy, const char *name);
/* `data` must live until gguf_copy_finish. */
gguf_copy_tensor *gguf_copy_add(gguf_copy *copy, const char *name, uint32_t type, uint32_t dim_count,
                                const uint64_t *ne, const void *data);
void gguf_copy_clear_tensors(gguf_copy *copy);

/* Builds the file: copy->writer.out holds its bytes until close. Without data it ends after the directory. */
void gguf_copy_finish(gguf_copy *copy, bool data);

/* Writes the finished bytes to a file in the temporary folder; the name goes to `path`, the caller removes it. */
void gguf_copy_save(const gguf_copy *copy, char path[64]);

#endif
