/* A plain main for a fuzz target: runs it over the files kept in tests/fuzz/corpus/NAME, NAME being the program's, and
 * prints TAP. An empty or missing corpus fails. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Runs one file in a block of exactly its size, so that the sanitizer finds a read past its end. */
static int run_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(size ? size : 1);
    int ok = file && bytes && fread(bytes, 1, size, file) == size;
    /* Prints the name first: if the target crashes, it is the last line. */
    printf("# %s\n", path);
    fflush(stdout);
    if (ok) (void)LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    if (file) fclose(file);
    return ok;
}

int main(int argc, char **argv)
{
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "";
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
    size_t count = 0, unread = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
        if (run_file(path, (size_t)info.st_size)) count++;
        else unread++;
    }
    if (dir) closedir(dir);
    int ok = count > 0 && unread == 0;
    printf("1..1\n%s 1 - corpus %s (%zu files)\n", ok ? "ok" : "not ok", name, count);
    if (!ok) printf("# %s: expected files that can be read, found %zu, and %zu that cannot\n", folder, count, unread);
    return ok ? 0 : 1;
}
