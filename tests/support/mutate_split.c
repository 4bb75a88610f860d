#include "support/mutate_split.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    exit(1);
}

void split_folder_make(split_folder *folder)
{
    snprintf(folder->path, sizeof folder->path, "/tmp/strata-split-XXXXXX");
    if (!mkdtemp(folder->path)) die(folder->path);
}

void split_folder_remove(split_folder *folder)
{
    DIR *dir = opendir(folder->path);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[512];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder->path, entry->d_name);
        if (unlink(path) != 0) rmdir(path);
    }
    closedir(dir);
    rmdir(folder->path);
}

const char *split_path(const split_folder *folder, int number, int count)
{
    static char paths[4][160];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/m-%05d-of-%05d.gguf", folder->path, number + 1, count);
    return path;
}

split_part split_part_of(int number)
{
    static const char *const names[SPLIT_FILES] = {"t0", "t2", "t4"};
    return (split_part){.number = number,
                        .count = SPLIT_FILES,
                        .tensors = 2 * SPLIT_FILES,
                        .architecture = number == 0 ? "llama" : NULL,
                        .tensor = names[number % SPLIT_FILES]};
}

void split_write_bytes(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, length, file) != length || fclose(file) != 0) die(path);
}

void split_write(const char *path, const split_part *part)
{
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    if (part->architecture) gguf_write_key_string(&writer, "general.architecture", part->architecture);
    if (part->architecture) gguf_write_key_u32(&writer, "llama.block_count", 3);
    if (part->number >= 0) gguf_write_key_u16(&writer, "split.no", (uint16_t)part->number);
    if (part->count >= 0) gguf_write_key_u16(&writer, "split.count", (uint16_t)part->count);
    if (part->tensors >= 0) gguf_write_key_i32(&writer, "split.tensors.count", part->tensors);
    char second[8];
    snprintf(second, sizeof second, "t%d", (part->tensor[1] - '0' + 1) % 10);
    gguf_write_tensor(&writer, part->tensor, ST_TYPE_F32, 1, (uint64_t[]){16});
    gguf_write_tensor(&writer, second, ST_TYPE_Q4_0, 2, (uint64_t[]){32, 3});
    gguf_writer_finish(&writer);
    split_write_bytes(path, writer.out.data, writer.out.length);
    gguf_writer_free(&writer);
}

void split_write_all(const split_folder *folder)
{
    for (int i = 0; i < SPLIT_FILES; i++) {
        split_part part = split_part_of(i);
        split_write(split_path(folder, i, SPLIT_FILES), &part);
    }
}
