/* A model split over files in a folder of its own, for the tests of splits. */
#ifndef TEST_SUPPORT_MUTATE_SPLIT_H
#define TEST_SUPPORT_MUTATE_SPLIT_H

#include "support/gguf_writer.h"

enum { SPLIT_FILES = 3 };

typedef struct split_folder {
    char path[64];
} split_folder;

/* The split keys of one file; a negative number omits the key. */
typedef struct split_part {
    int number;
    int count;
    int tensors;
    const char *architecture; /* NULL: none */
    const char *tensor;       /* the name of its first tensor */
} split_part;

void split_folder_make(split_folder *folder);
void split_folder_remove(split_folder *folder);

/* "FOLDER/m-00002-of-00003.gguf" for number 1 (from 0) of 3. The path is valid until the fourth call after this one. */
const char *split_path(const split_folder *folder, int number, int count);

/* The valid part with that number: each has two tensors, t0 to t5 in all. */
split_part split_part_of(int number);
void split_write(const char *path, const split_part *part);
/* Writes all three files, valid. */
void split_write_all(const split_folder *folder);

void split_write_bytes(const char *path, const void *bytes, size_t length);

#endif
