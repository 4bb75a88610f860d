/* The directories of full-size models as their files have them, without data: shapes and types of the published ones. */
#ifndef TEST_SUPPORT_FULL_SIZE_H
#define TEST_SUPPORT_FULL_SIZE_H

#include <stdbool.h>

#include "support/gguf_writer.h"

typedef struct full_size {
    const char *name;
    void (*write)(gguf_writer *writer); /* keys and tensors; the caller finishes the directory */
} full_size;

enum { FULL_SIZES = 5 };
extern const full_size full_sizes[FULL_SIZES];

/* Writes FOLDER/NAME.gguf for every model, as long as the real file: the data are a hole, which takes no disk space. */
bool full_size_write_files(const char *folder);

#endif
