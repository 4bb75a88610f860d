/* The directories of full-size models as their files have them, without data: shapes and types of the published ones. */
#ifndef TEST_SUPPORT_FULL_SIZE_H
#define TEST_SUPPORT_FULL_SIZE_H

#include "support/gguf_writer.h"

typedef struct full_size {
    const char *name;
    void (*write)(gguf_writer *writer); /* keys and tensors; the caller finishes the directory */
} full_size;

enum { FULL_SIZES = 5 };
extern const full_size full_sizes[FULL_SIZES];

#endif
